//! The store from outside: over RESP, beside the distribution's redis-server.

mod server;
mod support;
