//! The store against redis-server: CPU time, memory, stalls, eviction.
//!
//! Both servers run on core 0 and the load on core 1, in alternating runs. CPU time from the scheduler's statistics is
//! compared, so the figures are usable even on a machine with other load; figures of waiting times are marked as such.
//! Scripts have a report of their own.

mod bullmq;
mod cpu;
mod eviction;
mod memory;
pub(crate) mod peer;
mod scripts;
mod stalls;

use crate::report::{Measure, Report};

pub(crate) const STORE: Report = Report { name: "store", title: "The store", parts: PARTS };
pub(crate) const SCRIPTS: Report = Report { name: "scripts", title: "Scripts", parts: SCRIPT_PARTS };

const PARTS: &[Measure] = &[
    ("cpu", cpu::cpu),
    ("types", cpu::types),
    ("transactions", cpu::transactions),
    ("call", cpu::call),
    ("workers", cpu::workers),
    ("hot", cpu::hot),
    ("memory", memory::memory),
    ("reuse", memory::reuse),
    ("eviction", eviction::eviction),
    ("stalls", stalls::stalls),
    ("delays", stalls::delays),
];

const SCRIPT_PARTS: &[Measure] = &[
    ("costs", scripts::costs),
    ("workers", scripts::workers),
    ("others", scripts::others),
    ("memory", scripts::memory),
    ("bullmq", bullmq::jobs),
];

/// `bench store [PART…] [--runs N] [--profile NAME | --program PATH] [--write]`.
pub fn store(arguments: &[&str]) -> Result<(), String> {
    STORE.measure(arguments)
}

/// `bench scripts [PART…] [--runs N] [--profile NAME | --program PATH] [--write]`.
pub fn scripts(arguments: &[&str]) -> Result<(), String> {
    SCRIPTS.measure(arguments)
}
