//! `-m`: a limit of the process's memory, and the sessions that fit into it.
//!
//! As in HAProxy the limit is one of the address space (`RLIMIT_AS`), so it counts what is mapped, not what is used:
//! stacks of workers and the allocator's reserve included. An allocation beyond it fails, which ends the process; the
//! derived `maxconn` keeps the load away from that.

use std::io;

use sluicegate_config::model::Global;

/// What a session costs beside its buffers, in bytes: streams, connections, timers.
const SESSION: u64 = 4096;

/// The share of the limit that sessions may take; the rest is the program's.
const USABLE: f64 = 0.97;

/// Sets the limit that the command line asks for.
pub fn limit(global: &Global) -> Result<(), String> {
    let Some(mib) = global.memory_mib else { return Ok(()) };
    let bytes = mib << 20;
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the pointer is to a live rlimit that the call reads.
    if unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } == 0 {
        return Ok(());
    }
    Err(format!("cannot limit the memory to {mib} MiB ({})", io::Error::last_os_error()))
}

/// How many sessions fit into the limit, each with a buffer for either direction; `None` without a limit.
pub fn sessions(global: &Global) -> Option<u64> {
    let bytes = (global.memory_mib? << 20) as f64 * USABLE;
    Some(bytes as u64 / (SESSION + 2 * global.tune.bufsize as u64))
}
