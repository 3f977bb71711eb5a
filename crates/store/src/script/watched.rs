//! What the server wants to see of the commands of scripts: MONITOR shows them all, SLOWLOG and LATENCY those that took
//! long.
//!
//! On a worker no command takes long: one that would goes to a script thread first. So where the slow log asks for
//! milliseconds, as it does by default, a clock is read for commands on script threads alone, and only for those whose
//! work depends on what they find.

use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::active::{Active, Ran, Waits};
use crate::catalogue::{Cost, Numbered};
use crate::config::ServerOptions;
use crate::park::{Finished, Parked};

/// Somebody watches by MONITOR.
const SHOWN: u8 = 1;
/// Commands that may take milliseconds are timed.
const LONG_TIMED: u8 = 2;
/// All commands are timed.
const TIMED: u8 = 4;

/// What is watched of a store's scripts.
#[derive(Default)]
pub(crate) struct Watches(AtomicU8);

impl Watches {
    /// Takes the parameters over.
    pub(crate) fn set(&self, options: &ServerOptions) {
        self.change(TIMED, options.times_all());
        self.change(LONG_TIMED, options.slowlog_slower_than_us >= 0);
    }

    /// Whether somebody watches by MONITOR.
    pub(crate) fn show(&self, is_wanted: bool) {
        self.change(SHOWN, is_wanted);
    }

    fn change(&self, bit: u8, is_set: bool) {
        match is_set {
            true => self.0.fetch_or(bit, Ordering::Relaxed),
            false => self.0.fetch_and(!bit, Ordering::Relaxed),
        };
    }
}

/// What is watched of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched(u8);

impl Watched {
    #[inline]
    pub(crate) fn is_nothing(self) -> bool {
        self.0 == 0
    }

    fn times(self, row: Numbered, words: usize) -> bool {
        self.0 & TIMED != 0 || self.0 & LONG_TIMED != 0 && row.spec.cost_of(words) != Cost::Constant
    }
}

impl Active {
    /// What is watched of its commands; nearly always nothing. Those of a script that is not atomic may take long wherever
    /// it runs, since it waits for them.
    #[inline]
    pub(crate) fn watched(&self) -> Watched {
        let all = self.inner().scripts.watches.0.load(Ordering::Relaxed);
        Watched(if self.is_patient || self.section.is_none() { all } else { all & !LONG_TIMED })
    }

    /// [`Active::execute`] of a script that is watched. A script that begins anew is seen to.
    #[cold]
    pub(crate) fn execute_watched(
        &mut self,
        watched: Watched,
        row: Option<Numbered>,
        words: &[&[u8]],
        wants_reply: bool,
        may_leave: bool,
        out: &mut Vec<u8>,
    ) -> Ran {
        let began = row.filter(|row| watched.times(*row, words.len())).map(|_| Instant::now());
        let ran = self.execute(row, words, wants_reply, may_leave, out);
        let is_over = matches!(ran, Ran::Replied | Ran::RepliedMuch);
        if watched.0 & SHOWN != 0 && (is_over || matches!(self.waits, Waits::Command(_))) {
            self.inner().scripts.with_server(|server| server.show(self.row, words, self.db));
        }
        match (began, &mut self.waits) {
            (Some(began), _) if is_over => self.judge(words, began.elapsed()),
            (Some(began), Waits::Command(parked)) => parked.worked = Some(began.elapsed()),
            _ => {}
        }
        ran
    }

    /// Keeps the last command if it took long.
    pub(crate) fn judge(&self, words: &[&[u8]], spent: Duration) {
        let client = self.call.control.client;
        self.inner().scripts.with_server(|server| server.judge(self.row, words, client, spent));
    }
}

/// A command of a script that is not atomic, which was parked.
pub(crate) struct ParkedCommand {
    pub(crate) parked: Parked,
    /// How long it has worked, if that is watched; elsewhere than here it is known at its end.
    pub(crate) worked: Option<Duration>,
}

impl ParkedCommand {
    /// Goes on; its reply.
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
