//! The proxy crate's integration tests: one binary, with one module per area.

mod compression;
mod forms;
mod health;
mod http;
mod limits;
mod lua;
mod pair;
mod proxied;
mod rules;
mod server;
mod stick;
mod support;
mod tcp;
mod timeouts;
