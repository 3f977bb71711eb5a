//! Signals, as HAProxy answers them.
//!
//! TERM and INT end the process at once, USR1 lets it finish. They are read on the control thread's runtime; workers
//! hear of them through the process's phase.

use std::io;

use sluicegate_proxy::process::Process;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that the process answers, caught from the moment this is made.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    soft_stop: Signal,
}

impl Signals {
    /// Catches them. Inside a runtime.
    pub fn catch() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            soft_stop: signal(SignalKind::user_defined1())?,
        })
    }

    /// Acts on signals until one ends the process at once; gives its number.
    pub async fn act(&mut self, process: &Process) -> i32 {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => break libc::SIGTERM,
                _ = self.interrupt.recv() => break libc::SIGINT,
                _ = self.soft_stop.recv() => process.begin_soft_stop(),
            }
        }
    }
}

/// Ends the process by a signal's default action, so that whoever waits for it sees what ended it.
pub fn end_by(signal: i32) -> ! {
    // SAFETY: both calls take numbers only; the default action of TERM and INT ends the process.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    // Reached only if the signal is blocked.
    std::process::exit(128 + signal);
}
