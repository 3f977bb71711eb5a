//! The configuration language as its callers see it: whole files in, typed configurations and diagnostics out.

mod catalogue;
mod golden;
mod haproxy;
mod keywords;
mod missions;
mod places;
mod support;
mod tls;
mod typed;
