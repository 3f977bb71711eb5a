//! A client of Redis and Valkey for rules and scripts: callable from every worker, without blocking any.
//!
//! **Lanes.** The commands of a worker share one connection, a *lane*: they are appended to its buffer, written once
//! per iteration of the event loop, and answered in order. So a thousand simultaneous reads by streams cost one
//! connection, one write and one read. A worker without a lane, because `maxconn` is reached, uses the lane of another
//! worker.
//!
//! **Bounds.** At most `maxconn` connections are open or being opened in the whole process; at most `maxqueue` commands
//! wait for one, first in first out, each for at most `timeout queue`. A reply that takes longer than `timeout server`
//! ends its connection. So every command gets a result in bounded time, a reply or a [`Failure`] with its reason.
//!
//! **Retries.** A command of which no byte was sent goes to the next connection. One that may have
//! been sent is repeated only if it reads; a write gets the error, because it may have been executed.
//!
//! **Nodes.** A [`Client`] is a section: its *topology* chooses the *node* of a command, and a node has a lane for each
//! worker and database. The connection limit and the queue belong to the section; back-off, breaker and counters to the
//! node.
//!
//! **Dedicated connections** serve blocking commands, transactions with watched keys and channels, which a shared lane
//! cannot. Each has one user, is idle in a clean state between uses, and never takes the last connection of the limit.
//!
//! **Health.** A node that can't be reached is tried again after decorrelated back-off, never more often than
//! `connect-rate`; after `breaker` failures in a row commands fail at once, except one at a time that probes
//! the node. One failure (a closed connection, `LOADING`, `READONLY`) makes every connection of the node reconnect
//! before its next use.

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
