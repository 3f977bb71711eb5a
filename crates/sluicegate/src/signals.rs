//! Signals, handled as in HAProxy.
//!
//! | signal | effect |
//! |---|---|
//! | TERM, INT | ends at once |
//! | USR1 | a graceful stop: active requests are finished, within `hard-stop-after` |
//! | USR2 | nothing, as in HAProxy: a master reloads, a process on its own is reloaded by a command |
//! | HUP | writes the state of every server and proxy to stderr and to the proxies' logs |
//! | QUIT | writes the process's statistics to stderr |
//! | TTOU, TTIN | frontends stop listening, and listen again |
//! | PIPE | ignored |
//!
//! They are read on the control thread's runtime, which informs the workers through the process. From the beginning
//! of `main` until then they are blocked ([`hold`]), so that none of them ends a process that is still starting,
//! except TERM and INT.

use std::future::pending;
use std::io;

use sluicegate_proxy::log::Severity;
use sluicegate_proxy::reload::Current;
use sluicegate_proxy::running::Running;
use sluicegate_proxy::stats::status_lines::{self, Line};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::report::Report;

/// Signals whose default action would end or stop the process.
const HELD: [i32; 6] = [libc::SIGUSR1, libc::SIGUSR2, libc::SIGHUP, libc::SIGQUIT, libc::SIGTTOU, libc::SIGTTIN];

/// Signals that end a process with a master.
const ENDING: [i32; 2] = [libc::SIGTERM, libc::SIGINT];

fn mask(how: i32, signals: &[i32]) {
    // SAFETY: the set is initialised by `sigemptyset` before it is used; the calls read and write nothing else.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        libc::sigprocmask(how, &raw const set, std::ptr::null_mut());
    }
}

/// Blocks signals until there is a handler. Must be called before the first thread is created, because threads inherit
/// the mask.
pub fn hold() {
    mask(libc::SIG_BLOCK, &HELD);
}

/// Unblocks these signals.
fn release() {
    mask(libc::SIG_UNBLOCK, &HELD);
}

/// Blocks the signals that would end a master between the fork of its worker and the start of its supervision.
pub fn hold_ending() {
    mask(libc::SIG_BLOCK, &ENDING);
}

/// Unblocks the signals blocked by [`hold_ending`].
pub fn release_ending() {
    mask(libc::SIG_UNBLOCK, &ENDING);
}

/// Unblocks all signals that are blocked until there is a handler, in a child of this process. Makes system calls only.
pub fn release_held() {
    release();
    release_ending();
}

/// Sends a signal to a process; errors are ignored.
pub fn send(pid: u32, signal: i32) {
    // SAFETY: takes numbers only.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

/// The signals that a process handles, caught from the creation of this value on.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    soft_stop: Signal,
    reload: Signal,
    hang_up: Signal,
    quit: Signal,
    pause: Signal,
    resume: Signal,
}

impl Signals {
    /// Starts to catch the signals. Must be called inside a runtime.
    pub fn catch() -> io::Result<Signals> {
        let signals = Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            soft_stop: signal(SignalKind::user_defined1())?,
            reload: signal(SignalKind::user_defined2())?,
            hang_up: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            pause: signal(SignalKind::from_raw(libc::SIGTTOU))?,
            resume: signal(SignalKind::from_raw(libc::SIGTTIN))?,
        };
        release();
        Ok(signals)
    }

    /// Returns the number of the next signal.
    pub async fn next(&mut self) -> i32 {
        // In this order, so that simultaneous signals have the most likely intended result: paused, then resumed.
        tokio::select! {
            biased;
            _ = self.terminate.recv() => libc::SIGTERM,
            _ = self.interrupt.recv() => libc::SIGINT,
            _ = self.soft_stop.recv() => libc::SIGUSR1,
            _ = self.reload.recv() => libc::SIGUSR2,
            _ = self.hang_up.recv() => libc::SIGHUP,
            _ = self.quit.recv() => libc::SIGQUIT,
            _ = self.pause.recv() => libc::SIGTTOU,
            _ = self.resume.recv() => libc::SIGTTIN,
        }
    }

    /// Waits for a signal that ends the process.
    pub async fn insist(&mut self) {
        while ![libc::SIGTERM, libc::SIGINT].contains(&self.next().await) {}
    }

    /// Handles signals until the process must end immediately: because of a signal, whose number is returned, or
    /// because a soft stop took longer than `hard-stop-after`.
    pub async fn act(&mut self, current: &Current, report: Report) -> Option<i32> {
        let mut deadline = None;
        let mut stopping = false;
        // The end of `grace`, while the soft stop is only announced.
        let mut announced = None;
        loop {
            let overdue = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => pending().await,
                }
            };
            let over = async {
                match announced {
                    Some(end) => sleep_until(end).await,
                    None => pending().await,
                }
            };
            let signal = tokio::select! {
                signal = self.next() => signal,
                () = over => {
                    announced = None;
                    libc::SIGUSR1
                }
                () = overdue => {
                    report.warning("soft-stop running for too long, performing a hard-stop.");
                    let running = &*current.running();
                    tell(report, running, Severity::Warning, status_lines::hard_stopped(running));
                    return None;
                }
            };
            let running = &*current.running();
            let process = &running.process;
            match signal {
                // A repeated signal prolongs nothing.
                libc::SIGUSR1 if announced.is_some() => {}
                libc::SIGUSR1 if !stopping && !process.is_stopping() && running.config.global.grace.is_some() => {
                    process.announce_stop();
                    announced = running.config.global.grace.and_then(|grace| Instant::now().checked_add(grace));
                }
                libc::SIGUSR1 if !stopping => {
                    stopping = true;
                    tell(report, running, Severity::Warning, status_lines::stopped(running));
                    process.begin_soft_stop();
                    let hard_stop_after = running.config.global.hard_stop_after;
                    deadline = hard_stop_after.and_then(|limit| Instant::now().checked_add(limit));
                }
                libc::SIGUSR1 => {}
                libc::SIGUSR2 => {}
                libc::SIGHUP => {
                    report.warning("SIGHUP received, dumping servers states.");
                    tell(report, running, Severity::Notice, status_lines::states(running));
                }
                libc::SIGQUIT => eprint!("{}", figures(running)),
                libc::SIGTTOU | libc::SIGTTIN => {
                    let pause = signal == libc::SIGTTOU;
                    if process.set_paused(pause).await {
                        let word = if pause { "Paused" } else { "Resumed" };
                        tell(report, running, Severity::Warning, status_lines::listening(running, word));
                    }
                }
                ending => return Some(ending),
            }
        }
    }
}

/// Writes lines to stderr and to the logs of the proxies that they concern.
fn tell(report: Report, running: &Running, severity: Severity, lines: Vec<Line<'_>>) {
    for (proxy, line) in lines {
        report.warning(&line);
        running.logger.send(&proxy.config.log, severity, line.as_bytes());
    }
}

/// Returns the output of SIGQUIT: the size of the process, and the activity of each worker.
fn figures(running: &Running) -> String {
    use std::fmt::Write as _;
    use std::sync::atomic::Ordering::Relaxed;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    let mut text = format!(
        "Dumping figures of process {}: up {} s, {} KiB resident, {} sessions now, {} at most.\n",
        std::process::id(),
        running.process.started.elapsed().as_secs(),
        pages * 4,
        running.process.sessions.current(),
        running.process.sessions.peak(),
    );
    for (index, worker) in running.process.workers.iter().enumerate() {
        let tasks = worker.runtime.get().map_or(0, |runtime| runtime.num_alive_tasks());
        let _ = writeln!(
            text,
            "  - Worker {index} : {} sessions, {} streams, {tasks} tasks, {} sessions and {} requests so far, {} times \
             out of descriptors or memory{}",
            worker.load.load(Relaxed),
            worker.streams.load(Relaxed),
            worker.sessions.get(),
            worker.requests.get(),
            worker.exhausted.get(),
            match worker.still_ms.load(Relaxed) {
                0 => String::new(),
                still => format!(", stuck for {} s", still / 1000),
            },
        );
    }
    text
}

/// Ends the process by a signal's default action, so that a waiting parent sees the signal.
pub fn end_by(signal: i32) -> ! {
    // SAFETY: both calls take numbers only; the default action of TERM and INT ends the process.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    // Reached only if the signal is blocked.
    std::process::exit(128 + signal);
}
