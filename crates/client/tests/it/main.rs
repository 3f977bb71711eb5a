//! The client against Debian's redis-server, and against peers that misbehave.

mod bounds;
mod cache;
mod cluster;
mod everyday;
mod health;
mod own;
mod sentinel;
mod support;
mod tls;
mod transactions;
