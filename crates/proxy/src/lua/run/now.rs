//! Fetches and converters where nothing can be awaited.

use std::time::Duration;

use super::{Begun, Entry, HERE, Lent, begin_with};
use crate::lua::Hook;
use crate::lua::sample::LuaCall;
use crate::sample::Sample;
use crate::stream::StreamContext;

/// Runs a fetch or converter where only reading is possible and nothing may wait: log lines and their kin. A thread
/// that is no worker gets no sample.
///
/// The shared state may be in use by another worker; then this one is waited for: for one slice, or for [`LOCK_TIME`]
/// where a function of C keeps it.
pub(in crate::lua) fn sample_now(call: &LuaCall, input: Option<Sample>, cx: &StreamContext) -> Option<Sample> {
    let inner = HERE.with(|here| here.borrow().upgrade())?;
    let code = call.code(&inner.states)?;
    let cell = inner.cell(code)?;
    let mut state = match cell.lock.try_lock() {
        Some(state) => state,
        None => cell.lock.lock_within(LOCK_TIME)?,
    };
    let entry = Entry { purpose: call.purpose(), code, hook: Hook::HttpReq, input, may_wait: false };
    match begin_with(&inner, cell, &mut state, Lent::Read(cx), entry) {
        Begun::Ended(ended) => ended.sample(),
        // Unreachable: what may not wait is run to its end.
        Begun::Waits(_) => None,
    }
}

/// How long a worker stands still for a state that another one uses.
const LOCK_TIME: Duration = Duration::from_millis(100);
