//! `core.register_filter` and the table `filter`: filters of streams.
//!
//! A line of the configuration has a copy of the registered class in each state, made when the configuration is compiled.
//! `CLASS:new()` makes the instance of a stream, whose functions are called for the stream's events. A function must not
//! wait; what it returns is a code of `filter`, or the number of bytes that it forwards.

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::model::LuaFilter;
use sluicegate_script::ffi::{self, lua_CFunction, lua_State};
use sluicegate_script::{State, continuation, function, push_bytes, raise};

use super::core_api::{check_name, register};
use super::host::{Host, Phase, RegisteredAs, Registration, host, set_functions};
use super::states::{LuaStates, StateCell};
use super::txn;
use crate::stream::{BoundFilter, FilterEvent, FilterPayload, ScriptCode};

/// The integers of `filter`.
const CODES: [(&CStr, i64); 4] = [(c"CONTINUE", 1), (c"WAIT", 0), (c"ERROR", -1), (c"FLT_CFG_FL_HTX", HTX)];

/// `filter.FLT_CFG_FL_HTX`: the filter filters HTTP.
const HTX: i64 = 1;

/// Names of functions for events, by the number of the event.
const FUNCTIONS: [&CStr; 6] =
    [c"start_analyze", c"http_headers", c"http_payload", c"http_end", c"end_analyze", c"tcp_payload"];

/// A call of a filter's function, which the host refers to while it runs.
pub(super) struct FilterCall {
    /// The registry reference of the instance; of the class for `new`.
    pub(super) reference: c_int,
    /// The event; `None` for `new`.
    pub(super) event: Option<FilterEvent>,
    pub(super) http: bool,
    pub(super) response: bool,
    /// Whether the instance sees the data of the request and of the response.
    pub(super) sees: Rc<[Cell<bool>; 2]>,
    /// The data of a payload; null for other events.
    pub(super) payload: *mut FilterPayload,
}

impl FilterCall {
    /// Returns the name of the function that is called.
    pub(super) fn function(&self) -> &'static CStr {
        self.event.map_or(c"new", |event| FUNCTIONS[event as usize])
    }
}

/// Creates the table `filter`.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const METHODS: [(&CStr, lua_CFunction); 3] = [
        (c"register_data_filter", function!(register_data)),
        (c"unregister_data_filter", function!(unregister_data)),
        (c"wake_time", function!(wake_time)),
    ];
    // SAFETY: called inside a protected call; nothing is held.
    unsafe {
        ffi::lua_createtable(lua, 0, 8);
        for (name, value) in CODES {
            ffi::lua_pushinteger(lua, value);
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
        set_functions(lua, &METHODS);
        ffi::lua_setglobal(lua, c"filter".as_ptr());
    }
}

/// `core.register_filter(name, class, function)`: the reference is that of a table of both.
pub(super) unsafe fn register_filter(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; the name is owned only after the last call that may raise.
    unsafe {
        if ffi::lua_gettop(lua) != 3 {
            raise(lua, c"'register_filter' needs 3 arguments");
        }
        if host(lua).phase != Phase::Body {
            raise(lua, c"register_filter: not available outside of body context");
        }
        let name = check_name(lua, 1);
        ffi::luaL_checktype(lua, 2, ffi::LUA_TTABLE);
        ffi::luaL_checktype(lua, 3, ffi::LUA_TFUNCTION);
        ffi::lua_createtable(lua, 2, 0);
        for index in [2, 3] {
            ffi::lua_pushvalue(lua, index);
            ffi::lua_rawseti(lua, -2, i64::from(index) - 1);
        }
        let reference = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        register(host(lua), Registration::new(RegisteredAs::Filter, name, reference));
        0
    }
}

unsafe fn register_data(lua: *mut lua_State) -> c_int {
    // SAFETY: as `see_data`.
    unsafe { see_data(lua, c"'register_data_filter' needs 2 arguments", true) }
}

unsafe fn unregister_data(lua: *mut lua_State) -> c_int {
    // SAFETY: as `see_data`.
    unsafe { see_data(lua, c"'unregister_data_filter' needs 2 arguments", false) }
}

/// `(instance, channel)`: makes the running filter see the data of a channel, or not any more.
unsafe fn see_data(lua: *mut lua_State, arguments: &CStr, sees: bool) -> c_int {
    // SAFETY: the call outlives the burst; nothing is held.
    unsafe {
        if ffi::lua_gettop(lua) != 2 {
            raise(lua, arguments);
        }
        ffi::luaL_checktype(lua, 1, ffi::LUA_TTABLE);
        let Some(call) = host(lua).current.filter.as_ref() else { raise(lua, c"no filter is running") };
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, call.reference.into());
        if call.event.is_none() || ffi::lua_rawequal(lua, 1, -1) == 0 {
            raise(lua, c"this is not the running filter");
        }
        let Some(response) = txn::side_of_channel(lua, 2) else {
            ffi::luaL_argerror(lua, 2, c"a channel is expected".as_ptr());
            return 0;
        };
        call.sees[usize::from(response)].set(sees);
        0
    }
}

/// `filter.wake_time(milliseconds)`: sets the time after which the running function is called again.
unsafe fn wake_time(lua: *mut lua_State) -> c_int {
    // SAFETY: nothing is held.
    unsafe {
        let milliseconds = ffi::luaL_checkinteger(lua, 1).max(0) as u64;
        host(lua).current.wake = Some(Duration::from_millis(milliseconds));
        0
    }
}

/// The body of the coroutine of a filter's function: calls it with its instance, a `txn`, and the channel or message.
pub(super) unsafe fn enter_filter(lua: *mut lua_State) -> c_int {
    // SAFETY: who runs the burst set the call, which outlives it.
    unsafe {
        let Some(call) = host(lua).current.filter.as_ref() else { return 0 };
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, call.reference.into());
        if ffi::lua_getfield(lua, 1, call.function().as_ptr()) != ffi::LUA_TFUNCTION {
            if call.event.is_none() {
                raise(lua, c"'new' field is not a function");
            }
            return 0;
        }
        ffi::lua_insert(lua, 1);
        let Some(event) = call.event else {
            ffi::lua_callk(lua, 1, 1, 0, Some(continuation!(returned)));
            return made(lua);
        };
        txn::push(lua, host(lua).current.stream_id);
        let of_message = matches!(event, FilterEvent::Headers | FilterEvent::Payload | FilterEvent::MessageEnd);
        let name = match (of_message, call.response) {
            (false, false) => c"req",
            (false, true) => c"res",
            (true, false) => c"http_req",
            (true, true) => c"http_res",
        };
        ffi::lua_getfield(lua, 3, name.as_ptr());
        ffi::lua_callk(lua, 3, ffi::LUA_MULTRET, 0, Some(continuation!(returned)));
        ffi::lua_gettop(lua)
    }
}

/// Called when a function that was interrupted between two slices has returned.
unsafe fn returned(lua: *mut lua_State, _: c_int, _: ffi::lua_KContext) -> c_int {
    // SAFETY: the results are all that is on the stack.
    unsafe {
        match host(lua).current.filter.as_ref() {
            Some(call) if call.event.is_none() => made(lua),
            _ => ffi::lua_gettop(lua),
        }
    }
}

/// Keeps the instance that `new` has returned: the result is its reference, or nothing.
unsafe fn made(lua: *mut lua_State) -> c_int {
    // SAFETY: the only result of `new` is on the stack.
    unsafe {
        if ffi::lua_type(lua, -1) != ffi::LUA_TTABLE {
            return 0;
        }
        let reference = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        ffi::lua_pushinteger(lua, reference.into());
        1
    }
}

/// A line's copy of a class.
#[derive(Clone, Copy)]
struct Class {
    reference: c_int,
    flags: i64,
    events: [bool; 6],
}

impl LuaStates {
    /// Makes the filter of a line in the states in which it is registered.
    pub(super) fn filter_of(&self, line: &LuaFilter) -> Result<BoundFilter, String> {
        let Some(registered) = self.filters.get(&line.name) else { return Err("is not registered".to_owned()) };
        let mut references = vec![ffi::LUA_NOREF; self.cells.len()];
        let mut class = None;
        for (id, cell) in self.cells.iter().enumerate() {
            let (Some(cell), true) = (cell, registered.references[id] != ffi::LUA_NOREF) else { continue };
            let made = make_class(cell, registered.references[id], &line.args)?;
            references[id] = made.reference;
            class.get_or_insert(made);
        }
        let Some(class) = class else { return Err("is not registered".to_owned()) };
        Ok(BoundFilter {
            code: Arc::new(ScriptCode { name: line.name.clone(), references: references.into(), args: Box::default() }),
            http: class.flags & HTX != 0,
            events: class.events,
        })
    }
}

/// Copies a class and calls the function that prepares it for a line with these arguments.
fn make_class(cell: &StateCell, registered: c_int, args: &[String]) -> Result<Class, String> {
    let mut state = cell.lock.lock_blocking();
    let phase = std::mem::replace(&mut state.host::<Host>().phase, Phase::Init);
    let made = prepare_class(&mut state, registered, args);
    state.host::<Host>().phase = phase;
    made.map_err(|error| format!("runtime error : {error}"))
}

fn prepare_class(state: &mut State, registered: c_int, args: &[String]) -> Result<Class, sluicegate_script::Error> {
    // SAFETY: no value with a destructor is alive in the protected call.
    unsafe {
        state.protect(|lua| {
            ffi::luaL_checkstack(lua, 12, c"out of stack".as_ptr());
            let base = ffi::lua_gettop(lua);
            let (class, copy) = (base + 2, base + 3);
            ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, registered.into());
            ffi::lua_rawgeti(lua, base + 1, 1);
            ffi::lua_createtable(lua, 0, 8);
            ffi::lua_pushnil(lua);
            while ffi::lua_next(lua, class) != 0 {
                ffi::lua_pushvalue(lua, -2);
                ffi::lua_insert(lua, -2);
                ffi::lua_settable(lua, copy);
            }
            let is_function = |name: &CStr| {
                let is_function = ffi::lua_getfield(lua, class, name.as_ptr()) == ffi::LUA_TFUNCTION;
                ffi::lua_settop(lua, -2);
                is_function
            };
            let events = FUNCTIONS.map(is_function);
            ffi::lua_getfield(lua, class, c"flags".as_ptr());
            let flags = if ffi::lua_type(lua, -1) == ffi::LUA_TNUMBER { ffi::lua_tointeger(lua, -1) } else { 0 };
            ffi::lua_settop(lua, -2);
            ffi::lua_rawgeti(lua, base + 1, 2);
            ffi::lua_pushvalue(lua, copy);
            ffi::lua_createtable(lua, args.len() as c_int, 0);
            for (index, arg) in (1..).zip(args) {
                push_bytes(lua, arg.as_bytes());
                ffi::lua_rawseti(lua, -2, index);
            }
            ffi::lua_callk(lua, 2, 0, 0, None);
            ffi::lua_settop(lua, copy);
            let reference = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
            ffi::lua_settop(lua, base);
            Class { reference, flags, events }
        })
    }
}

/// Returns the payload that argument 1 stands for, if the running function is one for data of its direction. Raises an
/// error in a filter's other functions. `None`: no filter is running, or it is another direction.
pub(super) unsafe fn payload<'a>(lua: *mut lua_State, response: bool) -> Option<&'a mut FilterPayload> {
    // SAFETY: the call and its payload outlive the burst; one C function uses them at a time.
    unsafe {
        let call = host(lua).current.filter.as_ref()?;
        if call.response != response {
            return None;
        }
        match call.payload.as_mut() {
            Some(payload) => Some(payload),
            None => raise(lua, c"data is accessible to the functions of payloads only"),
        }
    }
}

/// Raises an error unless the running function is one of a filter that may change the head.
pub(super) unsafe fn check_head(lua: *mut lua_State) {
    // SAFETY: the call outlives the burst.
    unsafe {
        let event = host(lua).current.filter.as_ref().and_then(|call| call.event);
        if !matches!(event, Some(FilterEvent::Start | FilterEvent::Headers)) {
            raise(lua, c"the message is being forwarded");
        }
    }
}
