//! The proxy against Debian's haproxy: CPU time, latency, memory, tables, files.
//!
//! Both programs run with one thread on core 0; the load and the origin share core 1, in alternating runs. The figure
//! is the program's CPU time per request where the load is the limit, as it is with two fast proxies.

pub(crate) mod cpu;
mod idle;
mod lists;
pub(crate) mod peer;
pub(crate) mod reloads;
mod shared;
mod spoe;
mod tail;

use crate::report::{Measure, Report};

pub(crate) const PROXY: Report = Report { name: "proxy", title: "The proxy", parts: PARTS };

const PARTS: &[Measure] = &[
    ("cpu", cpu::cpu),
    ("large", cpu::large),
    ("cached", cpu::cached),
    ("spoe", spoe::spoe),
    ("peers", shared::peers),
    ("tail", tail::tail),
    ("idle", idle::idle),
    ("tables", lists::tables),
    ("servers", lists::servers),
    ("check", lists::check),
    ("reloads", reloads::reloads),
];

/// `bench proxy [PART…] [--runs N] [--profile NAME | --program PATH] [--write]`.
pub fn proxy(arguments: &[&str]) -> Result<(), String> {
    PROXY.measure(arguments)
}
