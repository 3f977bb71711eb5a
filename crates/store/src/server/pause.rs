//! CLIENT PAUSE: commands, either writes or all of them, wait before execution until a time or CLIENT UNPAUSE. Expired
//! keys are hidden meanwhile and removed afterwards, and the tick evicts nothing. As in Redis, scripts count as writes
//! unless they declare that they do not write, and so do commands that are replicated.

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
    state: Mutex<Option<State>>,
    ended: Notify,
}

#[derive(Clone, Copy, Debug)]
struct State {
    until: Instant,
    all: bool,
}

impl Pause {
    /// Pauses for a while; a running pause is only ever lengthened and widened, as in Redis. Returns its end.
    pub fn start(&self, time: Duration, all: bool) -> Instant {
        let mut state = self.state.lock();
        let until = Instant::now() + time;
        let new = match *state {
            Some(old) if old.until > Instant::now() => State { until: old.until.max(until), all: old.all || all },
            _ => State { until, all },
        };
        *state = Some(new);
        self.active.store(true, Ordering::Release);
        new.until
    }

    /// Ends it.
    pub fn end(&self) {
        *self.state.lock() = None;
        self.active.store(false, Ordering::Release);
        self.ended.notify_waiters();
    }

    /// Returns whether there may be a pause.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Returns whether a command must wait.
    pub fn holds(&self, is_write: bool) -> bool {
        self.is_active() && self.until(is_write).is_some()
    }

    fn until(&self, is_write: bool) -> Option<Instant> {
        let mut state = self.state.lock();
        let now = *state.as_ref()?;
        if now.until <= Instant::now() {
            *state = None;
            self.active.store(false, Ordering::Release);
            return None;
        }
        (now.all || is_write).then_some(now.until)
    }

    /// Waits until such a command may run.
    pub async fn wait(&self, is_write: bool) {
        loop {
            // Registered before looking, so that an end in between is not missed.
            let ended = self.ended.notified();
            let Some(until) = self.until(is_write) else { return };
            tokio::select! {
                _ = ended => {}
                _ = tokio::time::sleep_until(until.into()) => {}
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
}
