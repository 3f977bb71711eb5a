//! Turns of scripts whose slice is over, and finalizers that are due.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluicegate_script::State;

use super::Inner;
use crate::lua::ScriptLine;
use crate::lua::host::{Current, Host};
use crate::lua::states::StateCell;

impl Inner {
    /// Waits until a script whose slice is over may continue. Between two such slices the worker handles its sockets
    /// and other tasks, so that many long scripts together delay others by one slice, not by one slice each.
    pub(super) async fn turn(self: &Rc<Self>) {
        let turns = self.turns.clone();
        self.waiting_turns.set(self.waiting_turns.get() + 1);
        if !self.gives_turns.replace(true) {
            let inner = self.clone();
            tokio::task::spawn_local(async move {
                loop {
                    tokio::task::yield_now().await;
                    if inner.waiting_turns.get() == 0 {
                        return inner.gives_turns.set(false);
                    }
                    inner.turns.notify_one();
                }
            });
        }
        let _waiting = Waiting(self);
        turns.notified().await;
    }

    /// Runs finalizers that are due: one slice now, and further ones in later turns.
    #[cold]
    pub(super) fn finalize(self: &Rc<Self>, cell: &Arc<StateCell>, state: &mut State) {
        finalize(cell, state);
        if state.has_finalizers() && !cell.finalizes.swap(true, Ordering::AcqRel) {
            let (inner, cell) = (self.clone(), cell.clone());
            tokio::task::spawn_local(async move {
                let finalizes = Finalizes(cell);
                loop {
                    inner.turn().await;
                    let mut state = finalizes.0.lock.lock().await;
                    finalize(&finalizes.0, &mut state);
                    if !state.has_finalizers() {
                        return;
                    }
                }
            });
        }
    }
}

/// Counts a script that waits for its turn, until it has it or is dropped.
struct Waiting<'a>(&'a Inner);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting_turns.set(self.0.waiting_turns.get() - 1);
    }
}

/// A state whose finalizers a task runs, until it is dropped.
struct Finalizes(Arc<StateCell>);

impl Drop for Finalizes {
    fn drop(&mut self) {
        self.0.finalizes.store(false, Ordering::Release);
    }
}

/// Runs finalizers of a state for one slice. They have no stream and must not wait.
fn finalize(cell: &StateCell, state: &mut State) {
    state.host::<Host>().current.no_wait = true;
    let ended = state.finalize();
    state.host::<Host>().current = Current::default();
    if let Err(error) = ended {
        let message = format!("Lua finalizer: [state-id {}] {}.", cell.id, error.at_run_time());
        (state.host::<Host>().shared.sink)(&ScriptLine::failure(None, &message));
    }
}
