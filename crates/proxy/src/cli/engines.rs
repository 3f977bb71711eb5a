//! `show engines`: the connections to engines in other processes.

use std::fmt::Write as _;

use sluicegate_config::model::StatsLevel;
use sluicegate_wire::engine::WAIT_BOUNDS_MS;

use super::catalogue::{Call, Command, Run};

/// The commands of this module.
pub const COMMANDS: &[Command] = &[Command {
    name: &["show", "engines"],
    arguments: "[name]",
    help: "report the connections to engines, and what failed",
    level: StatsLevel::User,
    run: Run::Now(show_engines),
}];

fn show_engines(call: &mut Call<'_>) {
    let asked = call.arg(0).to_owned();
    let running = call.running.clone();
    let mut engines = running.told(|engine| engine.connections());
    engines.retain(|(name, _)| asked.is_empty() || *name == asked);
    if engines.is_empty() && !asked.is_empty() {
        return call.say("Can't find that redis section");
    }
    let mut text = String::new();
    for (name, of) in &engines {
        // Writing to a string can't fail.
        let state = if of.is_open { "open" } else { "closed" };
        let _ = writeln!(text, "# engine: {name}, address: {}, breaker: {state}", of.address);
        let _ = writeln!(
            text,
            "connections: connected={} connecting={} max={} connects={}",
            of.connected, of.connecting, of.max, of.connects
        );
        let _ = writeln!(
            text,
            "commands: total={} replies={} errors={} resent={} redirected={} queued={} in_flight={}",
            of.commands, of.replies, of.engine_errors, of.resent, of.redirected, of.queued, of.in_flight
        );
        let _ = writeln!(
            text,
            "cache: hits={} misses={} invalidated={} bytes={}",
            of.cache_hits, of.cache_misses, of.cache_invalidated, of.cache_bytes
        );
        text.push_str("failures:");
        for (kind, count) in &of.failures {
            let _ = write!(text, " {kind}={count}");
        }
        text.push_str("\nwaits:");
        for (bucket, count) in of.waits.iter().enumerate() {
            let _ = match WAIT_BOUNDS_MS.get(bucket) {
                Some(bound) => write!(text, " {bound}ms={count}"),
                None => write!(text, " more={count}"),
            };
        }
        let _ = writeln!(text, "\nlast_failure: {}", of.last_failure.as_deref().unwrap_or("none"));
        for node in of.nodes.iter().filter(|_| of.nodes.len() > 1) {
            let _ = writeln!(
                text,
                "node: {} role={} breaker={} connected={} connecting={} connects={} replies={} errors={} in_flight={} \
                 last_failure: {}",
                node.address,
                node.role,
                if node.is_open { "open" } else { "closed" },
                node.connected,
                node.connecting,
                node.connects,
                node.replies,
                node.engine_errors,
                node.in_flight,
                node.last_failure.as_deref().unwrap_or("none")
            );
        }
        text.push('\n');
    }
    call.out.push(text);
}
