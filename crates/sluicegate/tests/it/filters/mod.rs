//! Filters: their order, `filter trace`, and bandwidth limits, compared with HAProxy 2.8.

mod bandwidth;
mod trace;
