//! Signals, as HAProxy answers them.
//!
//! TERM and INT end the process at once, USR1 lets it finish, for as long as `hard-stop-after` allows. They are read on
//! the control thread's runtime; workers hear of them through the process's phase.

use std::future::pending;
use std::io;
use std::time::Duration;

use sluicegate_proxy::process::Process;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

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

    /// Acts on signals until the process is to end at once: by a signal, whose number this gives, or because a soft
    /// stop took longer than `hard_stop_after`.
    pub async fn act(&mut self, process: &Process, hard_stop_after: Option<Duration>) -> Option<i32> {
        let mut deadline = None;
        loop {
            let overdue = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                _ = self.terminate.recv() => break Some(libc::SIGTERM),
                _ = self.interrupt.recv() => break Some(libc::SIGINT),
                _ = self.soft_stop.recv() => {
                    process.begin_soft_stop();
                    // A repeated signal prolongs nothing.
                    deadline = deadline.or(hard_stop_after.and_then(|limit| Instant::now().checked_add(limit)));
                }
                () = overdue => {
                    eprintln!("warning: soft-stop running for too long, performing a hard-stop");
                    break None;
                }
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
