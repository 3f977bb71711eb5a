//! Keywords by their effect: a value is changed in a file, and what the process does changes with it.

mod bind;
mod default_path;
mod files;
mod global;
mod lua;
mod proxy;
mod rates;
mod sockets;
mod templates;

use sluicegate_testkit::{Listening, Sluicegate};

/// The `defaults` section of every configuration here.
const DEFAULTS: &str =
    "defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n";

/// Returns a rule that answers with the log-format `text`.
fn answer(text: &str) -> String {
    format!("    http-request return status 200 content-type text/plain lf-string \"{text}\"\n")
}

/// Returns a configuration with these lines in `global` and one proxy with these rules, on an inherited socket.
fn one_proxy(global: &str, gate: &Listening, rules: &str) -> String {
    format!("global\n{global}\n{DEFAULTS}listen gate\n    bind \"{}\"\n{rules}", gate.word())
}

/// Returns a value of `show info`.
fn info(server: &Sluicegate, name: &str) -> String {
    let text = Sluicegate::stats(&server.directory().join("stats"), "show info");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name} in:\n{text}")).to_owned()
}
