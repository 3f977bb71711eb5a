//! The proxy crate's integration tests: one binary, a module per area.

mod rules;
