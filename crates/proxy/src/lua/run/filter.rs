//! Functions of filters, which are run to their end where they are called.

use std::cell::Cell;
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::Arc;

use sluicegate_script::ffi;
use sluicegate_script::{Budget, Burst, ErrorKind, State, function};

use super::{Inner, Lent, now, until_it_ends};
use crate::lua::ScriptLine;
use crate::lua::filter::{FilterCall, enter_filter};
use crate::lua::host::Host;
use crate::lua::states::StateCell;
use crate::stream::{
    BoundFilter, FilterAnswer, FilterEvent, FilterMade, FilterPayload, ScriptFilter, ScriptHook, StreamContext,
};

/// The instance of a filter that a stream has.
struct Instance {
    inner: Rc<Inner>,
    cell: Arc<StateCell>,
    bound: BoundFilter,
    /// The registry reference of the script's object.
    reference: i32,
    http: bool,
    sees: Rc<[Cell<bool>; 2]>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.cell.release(self.reference);
    }
}

impl ScriptFilter for Instance {
    fn handles(&self, event: FilterEvent) -> bool {
        self.bound.handles(event)
    }

    fn sees_data(&self, response: bool) -> bool {
        self.sees[usize::from(response)].get()
    }

    fn see_data(&self, response: bool, sees: bool) {
        self.sees[usize::from(response)].set(sees);
    }

    fn call(
        &self,
        cx: &mut StreamContext,
        event: FilterEvent,
        response: bool,
        payload: Option<&mut FilterPayload>,
    ) -> Option<FilterAnswer> {
        let mut state = now::lock(&self.cell)?;
        let call = FilterCall {
            reference: self.reference,
            event: Some(event),
            http: self.http,
            response,
            sees: self.sees.clone(),
            payload: payload.map_or(null_mut(), |payload| payload),
        };
        Some(run(&self.inner, &self.cell, &mut state, cx, &call, &self.bound.code.name))
    }
}

/// Makes a stream's instance of a filter.
pub(super) fn make(inner: &Rc<Inner>, cx: &mut StreamContext, bound: &BoundFilter, http: bool) -> FilterMade {
    let Some(cell) = inner.cell(&bound.code) else { return FilterMade::Ignored };
    let Some(mut state) = now::lock(cell) else { return FilterMade::Busy };
    let sees: Rc<[Cell<bool>; 2]> = Rc::default();
    let call = FilterCall {
        reference: bound.code.references[cell.id],
        event: None,
        http,
        response: false,
        sees: sees.clone(),
        payload: null_mut(),
    };
    let answer = run(inner, cell, &mut state, cx, &call, &bound.code.name);
    match answer.code {
        _ if answer.failed => FilterMade::Failed,
        None => FilterMade::Ignored,
        Some(reference) => FilterMade::Made(Rc::new(Instance {
            inner: inner.clone(),
            cell: cell.clone(),
            bound: bound.clone(),
            reference: reference as i32,
            http,
            sees,
        })),
    }
}

/// Calls a function of a filter. A failure is logged; one whose time is over counts as one that has returned nothing, as in
/// HAProxy.
fn run(
    inner: &Rc<Inner>,
    cell: &Arc<StateCell>,
    state: &mut State,
    cx: &mut StreamContext,
    call: &FilterCall,
    name: &str,
) -> FilterAnswer {
    cell.do_chores(state);
    let mut answer = FilterAnswer { code: None, failed: false, wake: None };
    let sink = state.host::<Host>().shared.sink.clone();
    let coroutine = match state.coroutine() {
        Ok(coroutine) => coroutine,
        Err(error) => {
            sink(&ScriptLine::failure(Some(cx.proxy()), &format!("Lua filter '{name}': {error}.")));
            return answer;
        }
    };
    let shared = &state.host::<Host>().shared;
    let burst = shared.burst_timeout;
    let mut budget = Budget::new(shared.session_timeout.into_iter().chain(burst).min(), burst);
    // SAFETY: a coroutine from the pool has free slots; a C function without upvalues is pushed without allocating.
    unsafe { ffi::lua_pushcfunction(coroutine.thread(), function!(enter_filter)) };
    let hook = match (call.http, call.response) {
        (true, false) => ScriptHook::HttpReq,
        (true, true) => ScriptHook::HttpRes,
        (false, false) => ScriptHook::TcpReq,
        (false, true) => ScriptHook::TcpRes,
    };
    let stream_id = cx.id;
    let (burst, done) = until_it_ends(state, &coroutine, Lent::Filter(cx, call), stream_id, hook, false, &mut budget);
    inner.start_tasks_of(cell, state);
    answer.wake = done.wake;
    match burst {
        Burst::Done(results) => {
            // SAFETY: the results are on the coroutine's stack.
            answer.code = (results > 0).then(|| unsafe { ffi::lua_tointeger(coroutine.thread(), -1) });
        }
        _ if done.done => {}
        _ => {
            let error = state.failure(&coroutine);
            let function = call.function().to_string_lossy();
            let message = match error.kind {
                ErrorKind::Memory => format!("Lua filter '{name}' : out of memory error."),
                ErrorKind::Timeout => format!("Lua filter '{name}' : '{function}' callback execution timeout."),
                _ => {
                    answer.failed = true;
                    format!("Lua filter '{name}' : [state-id {}] {}.", cell.id, error.at_run_time())
                }
            };
            sink(&ScriptLine::failure(Some(cx.proxy()), &message));
        }
    }
    state.recycle(coroutine);
    answer
}
