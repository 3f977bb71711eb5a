//! Fetches and converters where nothing can be awaited.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sluicegate_script::{BurstGuard, State};

use super::{Begun, Entry, Inner, Label, Lent, Purpose, WARNING, begin_with};
use crate::lua::states::StateCell;
use crate::sample::Sample;
use crate::stream::{ScriptCall, ScriptHook, StreamContext};

/// Attempts to lock a state that another thread uses before the thread is yielded. Each spins for the length of a few
/// short bursts.
const ATTEMPTS: usize = 16;

/// The longest time that a worker spends on acquiring a state here: many bursts of other workers.
const WAIT: Duration = Duration::from_millis(20);

/// Runs a fetch or converter where only reading is possible and nothing may wait, such as in log lines.
///
/// Another worker may use the shared state. A worker waits for it for [`WAIT`] at most, and not at all where it runs a
/// burst of that state itself; then there is no sample, as if the function had failed, and a rate-limited message says so.
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
            (shared.sink)(WARNING, &format!("{label}: no value, the state is in use ({count} times)."));
        }
        return None;
    };
    let hook = ScriptHook::HttpReq;
    let entry = Entry { purpose: Purpose::of(call), code, hook, input, may_wait: false };
    match begin_with(inner, cell, &mut state, Lent::Read(cx), entry) {
        Begun::Ended(ended) => ended.sample(),
        // Unreachable: what may not wait is run to its end.
        Begun::Waits(_) => None,
    }
}

fn lock(cell: &StateCell) -> Option<BurstGuard<'_, State>> {
    let spun = (0..ATTEMPTS).find_map(|_| cell.lock.try_lock());
    if spun.is_some() || is_in_burst() {
        return spun;
    }
    let begun = Instant::now();
    while begun.elapsed() < WAIT {
        std::thread::yield_now();
        if let Some(state) = cell.lock.try_lock() {
            return Some(state);
        }
    }
    None
}

thread_local! {
    static IN_BURST: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread runs a burst now.
fn is_in_burst() -> bool {
    IN_BURST.get()
}

/// A burst of this thread, for as long as it runs.
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
