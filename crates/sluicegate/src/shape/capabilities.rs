//! `setcap`: capabilities of a process that is not root.
//!
//! Sets of capabilities are those of a thread; the process has one when its privileges are dropped, and later threads
//! inherit them.

use std::io;

/// The version of the kernel's interface with two sets of 32 capabilities each.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Calls a function that changes the user, and keeps these capabilities; returns what the function, and the kernel,
/// say: 0, or -1 with an error.
pub fn keeping(capabilities: u32, change: impl FnOnce() -> i32) -> i32 {
    if capabilities == 0 || super::privileges::user() != 0 {
        return change();
    }
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) };
    match change() {
        0 => set(capabilities, capabilities).map_or(-1, |()| 0),
        failed => failed,
    }
}

/// Makes those of these capabilities effective that the program's file permits, for a process that is started by the
/// user that it runs as.
pub fn raise(capabilities: u32) {
    if capabilities == 0 || super::privileges::user() == 0 {
        return;
    }
    let Sets { effective, permitted, .. } = sets();
    // Without them, what needs them says so.
    let _ = set(effective | permitted & capabilities, permitted);
}

fn sets() -> Sets {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: the header's version says that the kernel writes two sets; both live until the call ends.
    unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    sets[0]
}

fn set(effective: u32, permitted: u32) -> io::Result<()> {
    let mut header = Header { version: VERSION, pid: 0 };
    let sets = [Sets { effective, permitted, inheritable: 0 }, Sets::default()];
    // SAFETY: the header's version says that the kernel reads two sets; both live until the call ends.
    match unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
