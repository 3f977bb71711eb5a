//! Observation of scripts' commands by the server: MONITOR shows them all, SLOWLOG and LATENCY the slow ones.
//!
//! On a worker no command is slow: a slow one moves to a script thread first. So if the slow log's threshold is in
//! milliseconds, as by default, the clock is read only for commands on script threads, and only for those whose work
//! depends on their data.

use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::active::{Active, Ran, Waits};
use crate::catalogue::{Cost, Numbered};
use crate::config::ServerOptions;
use crate::owned::Finished;
use crate::park::Parked;

/// Set if a MONITOR client exists.
const SHOWN: u8 = 1;
/// Set if commands that may take milliseconds are timed.
const LONG_TIMED: u8 = 2;
/// Set if all commands are timed.
const TIMED: u8 = 4;

/// The observers of a store's scripts.
#[derive(Default)]
pub(crate) struct Watches(AtomicU8);

impl Watches {
    /// Sets the flags that follow from the parameters.
    pub(crate) fn set(&self, options: &ServerOptions) {
        self.change(TIMED, options.times_all());
        self.change(LONG_TIMED, options.slowlog_slower_than_us >= 0);
    }

    /// Sets whether a MONITOR client exists.
    pub(crate) fn show(&self, is_wanted: bool) {
        self.change(SHOWN, is_wanted);
    }

    /// Returns whether a MONITOR client exists.
    #[inline]
    pub(crate) fn shows(&self) -> bool {
        self.0.load(Ordering::Relaxed) & SHOWN != 0
    }

    fn change(&self, bit: u8, is_set: bool) {
        match is_set {
            true => self.0.fetch_or(bit, Ordering::Relaxed),
            false => self.0.fetch_and(!bit, Ordering::Relaxed),
        };
    }
}

/// The observation of a running command.
pub(crate) struct Watch {
    is_shown: bool,
    /// Its start, if it is timed.
    began: Option<Instant>,
}

impl Active {
    /// Returns the observation of the next command; usually none. Commands of a non-atomic script may take long on any
    /// thread, since the script waits for them.
    #[inline]
    pub(crate) fn watch(&self, row: Option<Numbered>, words: usize) -> Option<Watch> {
        let all = self.inner().scripts.watches.0.load(Ordering::Relaxed);
        let watched = if self.is_patient || self.section.is_none() { all } else { all & !LONG_TIMED };
        if watched == 0 { None } else { Some(begin(watched, row?, words)) }
    }

    /// Reports a command to its observers, if it has run. The command of a restarted script has run.
    #[cold]
    pub(crate) fn tell(&mut self, watch: Watch, ran: &Ran, words: &[&[u8]]) {
        let is_over = matches!(ran, Ran::Replied | Ran::RepliedMuch);
        if watch.is_shown && (is_over || matches!(self.waits, Waits::Command(_))) {
            self.inner().scripts.with_server(|server| server.show(self.row, words, self.db, "lua"));
        }
        match (watch.began, &mut self.waits) {
            (Some(began), _) if is_over => self.judge(words, began.elapsed()),
            (Some(began), Waits::Command(awaited)) => awaited.worked = Some(began.elapsed()),
            _ => {}
        }
    }

    /// Reports the last command if it took long.
    pub(crate) fn judge(&self, words: &[&[u8]], spent: Duration) {
        let client = self.call.control.client;
        self.inner().scripts.with_server(|server| server.judge(self.row, words, client, spent));
    }
}

#[cold]
fn begin(watched: u8, row: Numbered, words: usize) -> Watch {
    let is_timed = watched & TIMED != 0 || watched & LONG_TIMED != 0 && row.spec.cost_of(words) != Cost::Constant;
    Watch { is_shown: watched & SHOWN != 0, began: is_timed.then(Instant::now) }
}

/// A parked command of a non-atomic script, which waits for it.
pub(crate) struct Awaited {
    pub(crate) parked: Parked,
    /// The time that it has run, if observed while it runs; otherwise it is known at its end.
    pub(crate) worked: Option<Duration>,
}

impl Awaited {
    /// Continues the command; resolves to its reply.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        let began = self.worked.map(|_| Instant::now());
        let polled = self.parked.poll_finished(context);
        if let (Some(began), Some(worked)) = (began, &mut self.worked) {
            *worked += began.elapsed();
            if polled.is_ready() {
                *worked += self.parked.worked();
            }
        }
        polled.map(|finished| match finished {
            Finished::Wire(bytes) => bytes,
            Finished::Value(_) => unreachable!("bytes were asked for"),
        })
    }
}
