//! The configuration language as its callers see it: whole files in, typed configurations and diagnostics out.

mod missions;
mod support;
