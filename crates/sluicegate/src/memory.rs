//! `-m`: a limit of the process's memory, and the sessions that fit into it.
//!
//! The limit applies to private writable memory (`RLIMIT_DATA`): allocations and the stacks of
//! threads. HAProxy limits its address space; that would count mapped files and reservations that are never
//! touched, ten times the memory in use here.
//!
//! The allocator reserves a gigabyte in one piece before `main` begins, unless a limit forbids it. So the limit is set
//! and the program executes itself again, once, before it has done anything else. An allocation beyond the limit ends
//! the process; the derived `maxconn` keeps the load below it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use sluicegate_config::model::Global;

/// The memory of the program before the first session, in MiB: the allocator's first pieces, Lua, stacks of two
/// workers.
const PROGRAM_MIB: u64 = 24;

/// The memory of a session in addition to its buffers, in bytes: streams, connections, timers.
const SESSION: u64 = 4096;

/// The fraction of the limit that sessions may use; the rest is for the program.
const USABLE: f64 = 0.97;

/// Limits the memory of the process, and restarts the program unless it has been started under such a limit. Returns if
/// there is nothing to do, or if it is not possible.
pub fn limit(mib: u64) -> Result<(), String> {
    if mib < PROGRAM_MIB {
        return Err(format!("-m {mib}: the program alone needs {PROGRAM_MIB} MiB"));
    }
    let bytes = mib << 20;
    let failed = |error: io::Error| format!("cannot limit the memory to {mib} MiB ({error})");
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live rlimit that the call fills.
    if unsafe { libc::getrlimit(libc::RLIMIT_DATA, &raw mut limit) } != 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    if limit.rlim_cur <= bytes {
        return Ok(());
    }
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the pointer is to a live rlimit that the call reads.
    if unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) } != 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    let mut words = std::env::args_os();
    let program = std::env::current_exe().map_err(failed)?;
    let mut again = Command::new(program);
    if let Some(name) = words.next() {
        again.arg0(name);
    }
    Err(failed(again.args(words).exec()))
}

/// Returns the number of sessions that fit into the limit, each with one buffer for each direction; `None` without a
/// limit.
pub fn sessions(global: &Global) -> Option<u64> {
    let bytes = ((global.memory_mib?.saturating_sub(PROGRAM_MIB)) << 20) as f64 * USABLE;
    Some(bytes as u64 / (SESSION + 2 * global.tune.bufsize as u64))
}
