//! State shared by the listeners and sessions of a frontend.

use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

use crate::counters::Figures;
use crate::pace::Pace;
use crate::process::Limit;
use crate::stream::LastInvalid;

/// Whether a frontend accepts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It accepts connections.
    Open,
    /// `disable frontend`: the kernel refuses connections until `enable frontend`.
    Paused,
    /// `shutdown frontend`: its sockets are closed permanently.
    Shut,
}

/// A frontend's limits and figures.
#[derive(Debug)]
pub struct FrontendShared {
    gate: watch::Sender<Gate>,
    /// The last request that could not be understood.
    pub invalid: LastInvalid,
    /// Current sessions (`scur`, `smax`) against the frontend's `maxconn`.
    pub sessions: Limit,
    /// `rate-limit sessions`.
    pace: RwLock<Option<Arc<Pace>>>,
    /// All other counters.
    pub figures: Figures,
}

impl FrontendShared {
    /// Returns the state of a frontend that `workers` workers serve.
    pub fn new(workers: usize, maxconn: Option<u32>, session_rate: Option<u32>) -> FrontendShared {
        FrontendShared {
            gate: watch::Sender::new(Gate::Open),
            invalid: LastInvalid::default(),
            sessions: Limit::new(maxconn),
            pace: RwLock::new(session_rate.map(Pace::new).map(Arc::new)),
            figures: Figures::new(workers),
        }
    }

    /// Returns its present state.
    pub fn gate(&self) -> Gate {
        *self.gate.borrow()
    }

    /// Returns a receiver of state changes.
    pub(crate) fn watch_gate(&self) -> watch::Receiver<Gate> {
        self.gate.subscribe()
    }

    /// Returns `rate-limit sessions`, if it is set.
    pub fn pace(&self) -> Option<Arc<Pace>> {
        self.pace.read().clone()
    }

    /// Changes `rate-limit sessions`.
    pub(crate) fn set_session_rate(&self, session_rate: Option<u32>) {
        *self.pace.write() = session_rate.map(Pace::new).map(Arc::new);
    }

    /// Opens, pauses or shuts down the frontend; a shutdown is final. The listeners are notified.
    pub fn set_gate(&self, to: Gate) {
        self.gate.send_if_modified(|gate| *gate != Gate::Shut && std::mem::replace(gate, to) != to);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_gate_that_is_shut_stays_shut_and_changes_wake_once() {
        let frontend = FrontendShared::new(1, None, None);
        let mut watch = frontend.watch_gate();
        let mut check = |to, gate, changes| {
            frontend.set_gate(to);
            assert_eq!((frontend.gate(), watch.has_changed().unwrap()), (gate, changes), "{to:?}");
            watch.mark_unchanged();
        };
        check(Gate::Open, Gate::Open, false);
        check(Gate::Paused, Gate::Paused, true);
        check(Gate::Paused, Gate::Paused, false);
        check(Gate::Open, Gate::Open, true);
        check(Gate::Shut, Gate::Shut, true);
        check(Gate::Open, Gate::Shut, false);
    }

    #[test]
    fn another_session_rate_begins_anew() {
        let frontend = FrontendShared::new(1, None, Some(1));
        let now = Instant::now();
        let pace = frontend.pace().expect("a rate");
        assert!(pace.take(now).is_ok());
        assert!(pace.take(now).is_err());
        frontend.set_session_rate(Some(1));
        assert!(frontend.pace().expect("a rate").take(now).is_ok());
        frontend.set_session_rate(None);
        assert!(frontend.pace().is_none());
    }
}
