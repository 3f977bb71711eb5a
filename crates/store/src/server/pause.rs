//! CLIENT PAUSE: commands, either writes or all of them, wait before execution until a time or CLIENT UNPAUSE. Expired
//! keys are hidden meanwhile and removed afterwards, and the tick evicts nothing. As in Redis, scripts count as writes
//! unless they declare that they do not write, and so do commands that are replicated.
//!
//! While FAILOVER makes a replica the master, writes wait, too. The end of a process that saves its store is a pause of
//! writes, too, which no client ends: what they would write is not in the file, so it must not be acknowledged. When the
//! server stops, the connections of such commands are closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::Inner;
use crate::catalogue::CommandSpec;

/// The pause of a server. The flag makes the common case, no pause, one load.
#[derive(Debug, Default)]
pub(super) struct Pause {
    active: AtomicBool,
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The pause that a client has asked for.
    asked: Option<Asked>,
    end: End,
    /// Whether writes wait because a replica is about to become the master.
    hands_over: bool,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    until: Instant,
    all: bool,
}

/// What the end of the process has to do with writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    /// Nothing.
    #[default]
    Far,
    /// They wait, because the last save has begun.
    Near,
    /// They are not executed any more.
    Here,
}

/// When a command may run.
enum When {
    Now,
    /// At the end of the pause, at the latest at this time.
    Later(Option<Instant>),
    Never,
}

impl State {
    fn is_active(&self) -> bool {
        self.asked.is_some() || self.is_last()
    }

    /// Returns whether others continue this history where writes wait: a file, another process or a replica.
    fn is_last(&self) -> bool {
        self.end != End::Far || self.hands_over
    }
}

impl Pause {
    /// Pauses for a while; a running pause is only ever lengthened and widened, as in Redis. Returns its end.
    pub fn start(&self, time: Duration, all: bool) -> Instant {
        let mut state = self.state.lock();
        let until = Instant::now() + time;
        let new = match state.asked {
            Some(old) if old.until > Instant::now() => Asked { until: old.until.max(until), all: old.all || all },
            _ => Asked { until, all },
        };
        state.asked = Some(new);
        self.active.store(true, Ordering::Release);
        new.until
    }

    /// Ends what [`start`](Self::start) has begun.
    pub fn end(&self) {
        self.change(|state| state.asked = None);
    }

    /// Lets writes wait, or not any more, because a replica is about to become the master.
    pub fn hand_over(&self, hands_over: bool) {
        self.change(|state| state.hands_over = hands_over);
    }

    /// Lets writes wait until the process ends.
    pub fn begin_end(&self) {
        self.change(|state| state.end = End::Near);
    }

    /// Lets writes go on, since the process does not end.
    pub fn put_off_end(&self) {
        self.change(|state| state.end = End::Far);
    }

    /// Returns whether writes wait until the process ends.
    pub fn is_near_end(&self) -> bool {
        self.state.lock().end != End::Far
    }

    /// Returns whether writes wait because a file, another process or a replica continues this history.
    pub fn is_last(&self) -> bool {
        self.state.lock().is_last()
    }

    /// Refuses writes that wait until the process ends, and ends any other pause.
    pub fn stop(&self) {
        self.change(|state| {
            state.asked = None;
            if state.end == End::Near {
                state.end = End::Here;
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        {
            let mut state = self.state.lock();
            change(&mut state);
            self.active.store(state.is_active(), Ordering::Release);
        }
        self.ended.notify_waiters();
    }

    /// Returns whether there may be a pause.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Returns whether a command must wait.
    pub fn holds(&self, is_write: bool) -> bool {
        self.is_active() && !matches!(self.when(is_write), When::Now)
    }

    fn when(&self, is_write: bool) -> When {
        let mut state = self.state.lock();
        match state.end {
            End::Near if is_write => return When::Later(None),
            End::Here if is_write => return When::Never,
            _ if is_write && state.hands_over => return When::Later(None),
            _ => {}
        }
        let Some(asked) = state.asked else { return When::Now };
        if asked.until <= Instant::now() {
            state.asked = None;
            self.active.store(state.is_active(), Ordering::Release);
            return When::Now;
        }
        if asked.all || is_write { When::Later(Some(asked.until)) } else { When::Now }
    }

    /// Waits until such a command may run. Returns false if it never may.
    pub async fn wait(&self, is_write: bool) -> bool {
        loop {
            // Registered before looking, so that an end in between is not missed.
            let ended = self.ended.notified();
            match self.when(is_write) {
                When::Now => return true,
                When::Never => return false,
                When::Later(None) => ended.await,
                When::Later(Some(until)) => tokio::select! {
                    _ = ended => {}
                    _ = tokio::time::sleep_until(until.into()) => {}
                },
            }
        }
    }
}

/// Returns whether a command waits while writes are paused.
#[cold]
pub(super) fn may_write(inner: &Arc<Inner>, spec: &CommandSpec, words: &[&[u8]]) -> bool {
    if spec.counts_as_write() {
        return true;
    }
    spec.script_may_write.is_some_and(|may_write| may_write(inner, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_widened_and_ended() {
        let pause = Pause::default();
        assert!(!pause.holds(true));
        pause.start(Duration::from_secs(1000), false);
        assert!(pause.holds(true) && !pause.holds(false));
        pause.start(Duration::from_secs(1), true);
        assert!(pause.holds(true) && pause.holds(false));
        pause.end();
        assert!(!pause.holds(true));
        pause.start(Duration::ZERO, true);
        assert!(!pause.holds(true));
    }

    #[test]
    fn the_end_of_the_process_is_a_pause_that_no_client_ends() {
        let pause = Pause::default();
        pause.begin_end();
        pause.start(Duration::from_secs(1000), true);
        pause.end();
        assert!(pause.holds(true) && !pause.holds(false));
        pause.start(Duration::ZERO, true);
        assert!(pause.holds(true) && !pause.holds(false) && pause.is_active());
        pause.put_off_end();
        assert!(!pause.holds(true) && !pause.is_active());
        pause.stop();
        assert!(!pause.holds(true));
        pause.begin_end();
        pause.stop();
        assert!(matches!(pause.when(true), When::Never) && matches!(pause.when(false), When::Now));
    }
}
