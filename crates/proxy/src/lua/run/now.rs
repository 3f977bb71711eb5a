//! Fetches and converters where nothing can be awaited.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use sluicegate_script::{BurstGuard, State};

use super::{Begun, Entry, Inner, Label, Lent, Purpose, begin_with};
use crate::lua::ScriptLine;
use crate::lua::states::StateCell;
use crate::sample::Sample;
use crate::stream::{ScriptCall, ScriptHook, StreamContext};

/// The maximum time for which a worker waits for a state here: the time of many bursts of other workers.
const WAIT: Duration = Duration::from_millis(20);

/// The same limit for a worker that is running a burst itself, possibly in the same state: the time of a few short
/// bursts of others.
const WAIT_IN_BURST: Duration = Duration::from_micros(50);

/// Runs a fetch or converter where only reading is possible and nothing may wait, such as in log lines.
///
/// Another worker may use the shared state. A worker waits for it for at most [`WAIT`], or [`WAIT_IN_BURST`]; after
/// that there is no sample, as if the function had failed, and a rate-limited message reports it.
pub(super) fn sample_now(
    inner: &Rc<Inner>,
    call: &ScriptCall,
    input: Option<Sample>,
    cx: &StreamContext,
) -> Option<Sample> {
    let code = inner.states.code_of(call)?;
    let cell = inner.cell(code)?;
    let Some(mut state) = lock(cell) else {
        let shared = &inner.states.shared;
        if let Some(count) = shared.busy.count() {
            let label = Label::Function(Purpose::of(call), &code.name);
            let text = format!("{label}: no value, the state is in use ({count} times).");
            (shared.sink)(&ScriptLine::warning(&text));
        }
        return None;
    };
    let hook = ScriptHook::HttpReq;
    let entry = Entry { purpose: Purpose::of(call), code, hook, input, may_wait: false };
    match begin_with(inner, cell, &mut state, Lent::Read(cx), entry) {
        Begun::Ended(ended) => ended.sample(),
        // Unreachable: a function that may not wait is run to its end.
        Begun::Waits(_) => None,
    }
}

/// Locks a state, or gives up when a worker has waited for it as long as it may.
pub(super) fn lock(cell: &StateCell) -> Option<BurstGuard<'_, State>> {
    cell.lock.lock_within(if is_in_burst() { WAIT_IN_BURST } else { WAIT })
}

thread_local! {
    static IN_BURST: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is running a burst.
fn is_in_burst() -> bool {
    IN_BURST.get()
}

/// Marks a burst of this thread as running, until it is dropped.
pub(super) struct InBurst;

impl InBurst {
    pub(super) fn begin() -> InBurst {
        IN_BURST.set(true);
        InBurst
    }
}

impl Drop for InBurst {
    fn drop(&mut self) {
        IN_BURST.set(false);
    }
}
