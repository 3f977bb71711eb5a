//! Servers, logs and the stats socket, compared with Debian's haproxy, with real workers and a real control thread.

mod asked;
mod balance;
mod cli;
mod commands;
mod errors;
pub mod fixture;
mod hashes;
mod load;
mod logs;
mod retries;
mod rows;
mod sessions;
mod source;
