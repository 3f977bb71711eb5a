//! The load balancer: listeners, streams, rules, servers and their Lua scripts.
//!
//! The proxy depends on its configuration ([`sluicegate_config`]), the codecs and the engine interface
//! ([`sluicegate_wire`]) and Lua states ([`sluicegate_script`]); it does not depend on the store.

pub mod acme;
pub mod auth;
pub mod balance;
pub mod cli;
mod compress;
pub mod control;
pub mod counters;
mod date;
pub mod desks;
pub mod directory;
pub mod engines;
pub mod errors;
pub mod frontend;
mod hash;
pub mod hook;
pub mod hosts;
mod http_client;
pub mod limit;
pub mod listener;
pub mod local_reply;
pub mod log;
pub mod lua;
mod mail;
mod mux;
pub mod namespaces;
mod ocsp_update;
pub mod pace;
pub mod peers;
pub mod persist;
pub mod process;
pub mod proxied;
mod random;
pub mod reload;
pub mod resolve;
pub mod ring;
mod ring_servers;
pub mod rule;
pub mod running;
pub mod runtime_state;
pub mod sample;
pub mod script_commands;
pub mod server;
mod session;
pub mod site;
pub mod stats;
pub mod stick;
pub mod stream;
mod target;
pub mod time_zone;
pub mod tls;
mod watchdog;
pub mod worker;
