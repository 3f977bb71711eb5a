//! Filters: their order, `filter trace`, bandwidth limits and filters of scripts, compared with HAProxy 2.8.

mod bandwidth;
mod places;
mod scripts;
mod trace;
