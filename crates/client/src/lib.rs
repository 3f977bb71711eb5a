//! A client of Redis and Valkey, as rules and scripts need one: asked from every worker, and never in their way.
//!
//! **Lanes.** The commands of a worker share one connection, a *lane*: they are appended to its buffer, written once in
//! a turn of the loop, and answered in order. So a thousand streams that ask for a key at once cost one connection, one
//! write and one read. A worker for which the cap leaves no lane uses another worker's.
//!
//! **Bounds.** At most `maxconn` connections are open or being opened in the whole process; at most `maxqueue` commands
//! wait for one, first in first out, each for at most `timeout queue`. A reply that takes longer than `timeout server`
//! ends its connection. So every command is answered in a bounded time, if only by a [`Failure`] that says why.
//!
//! **What is sent twice.** A command of which no byte left this process goes to the next connection. One that may have
//! been sent is repeated only if it reads; a write gets the error, because nobody knows whether it was done.
//!
//! **Nodes.** A [`Client`] is a section: its *topology* says which *node* a command goes to, and a node has a lane for each
//! worker and database. The cap and the queue are the section's; back-off, breaker and figures are the node's.
//!
//! **Connections of their own** are for what a lane can't do: commands that wait for others, transactions, channels.
//! They belong to who took them, rest clean in between, and leave the lanes their share of the cap.
//!
//! **Health.** A node that can't be reached is tried again after decorrelated back-off, never more often than
//! `connect-rate`; after `breaker` failures in a row commands fail at once, and one of them at a time is let through to
//! see whether it is back. One sign of death (an end, `LOADING`, `READONLY`) makes every connection of the node renew
//! itself before its next use.

#![forbid(unsafe_code)]

mod breaker;
mod cache;
mod client;
mod cluster;
mod command;
mod failure;
mod figures;
mod follow;
mod keys;
#[cfg(test)]
mod model;
mod node;
mod options;
mod own;
mod scripts;
mod sentinels;
mod stream;
mod tls;
mod told;
mod topology;
mod transaction;
mod waiter;

pub use client::Client;
pub use command::{refusal, waits_for_others};
pub use failure::Failure;
pub use options::{Address, Auth, MAXCONN_DEFAULT, Mode, Names, Options};
pub use own::{alone, own_here};
pub use tls::{Tls, TlsOptions};
#[doc(hidden)]
pub use told::fuzz_told;
