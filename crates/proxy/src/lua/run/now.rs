//! Fetches and converters where nothing can be awaited.

use std::rc::Rc;

use sluicegate_script::{BurstGuard, State};

use super::{Begun, Entry, Inner, Label, Lent, Purpose, WARNING, begin_with};
use crate::lua::states::StateCell;
use crate::sample::Sample;
use crate::stream::{ScriptCall, ScriptHook, StreamContext};

/// Attempts to lock a state that another thread uses. Each spins for the length of a few short bursts, so a worker
/// spends some tens of microseconds at most, and never yields its thread.
const ATTEMPTS: usize = 16;

/// Runs a fetch or converter where only reading is possible and nothing may wait: log lines and their kin.
///
/// Another worker may use the shared state. A worker does not block for it: after [`ATTEMPTS`] there is no sample, as if
/// the function had failed, and a rate-limited message says so.
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
    (0..ATTEMPTS).find_map(|_| cell.lock.try_lock())
}
