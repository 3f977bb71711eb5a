//! `tune.renice.startup` and `tune.renice.runtime`: the priority of the process.

use std::io;

use crate::report::Report;
use crate::shape::privileges::reason;

/// Sets the priority of this process, which threads that it starts later have as well.
pub fn set(priority: i8, report: Report) {
    // SAFETY: takes numbers only.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, i32::from(priority)) } != 0 {
        let reason = reason(&io::Error::last_os_error());
        report.warning(&format!("cannot set the priority to {priority} ({reason})"));
    }
}

/// Returns the priority of this process.
pub fn get() -> i8 {
    // SAFETY: takes numbers only.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) as i8 }
}
