//! The binary from outside: files in, sockets, signals and output.

mod accounting;
mod acme;
mod alone;
mod as_haproxy;
mod bench;
mod caches;
mod command_line;
mod compressed;
mod cookbook;
mod corpus;
mod dns;
mod documents;
mod durable;
mod engine_examples;
mod engines;
mod external_checks;
mod fcgi;
mod fetches;
mod filters;
mod first_run;
mod hatop;
mod http;
mod http2;
mod http2_peers;
mod http2_servers;
mod http_client;
mod keywords;
mod limits;
mod loading;
mod logs;
mod lua_api;
mod lua_events;
mod lua_modules;
mod lua_patterns;
mod lua_replies;
mod lua_rule_sets;
mod lua_samples_and_services;
mod lua_tls;
mod maps;
mod migrate;
mod peers;
mod reload;
mod replication;
mod reverse_http;
mod robust;
mod runtime_state;
mod servers;
mod shape;
mod sockpair;
mod spoe;
mod state_files;
mod states;
mod statistics;
mod stats_tls;
mod stock_redis;
mod store_port;
mod store_scripts;
mod store_tls;
mod store_watch;
mod syslog;
mod tcp_waits;
mod tls;
mod tls_bodies;
mod tls_defaults;
mod tls_failures;
mod tls_generate;
mod tls_header;
mod tls_records;
mod tls_runtime;
mod tls_servers;
mod top;

use sluicegate_testkit::{Listening, Sluicegate};

/// The binary under test.
const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");

/// The workspace's folder, for the examples.
fn workspace() -> std::path::PathBuf {
    std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().and_then(|crates| crates.parent()).unwrap().to_owned()
}

/// Starts the binary with this configuration; the sockets are listening before it runs.
fn start(configuration: &str, listening: &[&Listening]) -> Sluicegate {
    Sluicegate::start(BINARY, configuration, listening)
}
