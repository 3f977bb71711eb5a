//! `txn`, the argument of an action, and its objects.
//!
//! `txn` is a table that holds its stream's id, so scripts may set fields of their own. It contains no pointer: a method
//! compares the id with the stream of the running burst and takes the context from there. Using another stream's `txn` is
//! an error; the stream's own one gives nil after its end. Its objects `f`, `sf`, `c`, `sc`, `http`, `req` and `res` are the
//! same ones for all streams, userdata of a tag, and stand for the stream that runs: one for each stream would cost more
//! than most fetches.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::LazyLock;

use parking_lot::Mutex;
use sluicegate_config::catalogue::{Converter, Fetch};
use sluicegate_config::model::{LogLevel, VarScope};
use sluicegate_script::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use sluicegate_script::{State, check_bytes, continuation, function, push_bytes, raise, to_bytes};

use smallvec::SmallVec;

use super::channel;
use super::core_api::{check_level, end_script, log_argument};
use super::host::{Host, host, key, push_sample, raise_text, set_functions, tagged, wait_for};
use super::operation::{Operation, Outcome};
use super::{http, message, reply};
use crate::engines::Engines;
use crate::sample::{
    CallError, Called, FetchCode, Sample, VarRef, call_converter, call_fetch, converter_by_name, fetch_by_name,
    finish_call,
};
use crate::stream::{Side, StreamContext};

/// The object of `txn` to which a handle refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Object {
    /// `txn.f`: fetches as typed values, nil without a sample.
    Fetches = 0x5347_4c55_4100_0001,
    /// `txn.sf`: fetches as strings, empty without a sample.
    StringFetches,
    /// `txn.c`: converters.
    Converters,
    /// `txn.sc`: converters as strings.
    StringConverters,
    /// `txn.http`.
    Http,
    /// `txn.req`.
    RequestChannel,
    /// `txn.res`.
    ResponseChannel,
    /// `txn.http_req`.
    RequestMessage,
    /// `txn.http_res`.
    ResponseMessage,
}

/// The objects by their names; the messages come after their channels.
const OBJECTS: [(&CStr, Object); 9] = [
    (c"f", Object::Fetches),
    (c"sf", Object::StringFetches),
    (c"c", Object::Converters),
    (c"sc", Object::StringConverters),
    (c"http", Object::Http),
    (c"req", Object::RequestChannel),
    (c"res", Object::ResponseChannel),
    (c"http_req", Object::RequestMessage),
    (c"http_res", Object::ResponseMessage),
];

/// An object as stored in its userdata: without a pointer, so a forged one is harmless.
#[derive(Clone, Copy)]
#[repr(C)]
struct Handle {
    tag: u64,
}

/// Creates the classes.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const METHODS: [(&CStr, lua_CFunction); 19] = [
        (c"set_loglevel", function!(set_loglevel)),
        (c"set_priority_class", function!(set_priority_class)),
        (c"set_priority_offset", function!(set_priority_offset)),
        (c"set_fc_tos", function!(set_tos)),
        (c"set_tos", function!(set_tos)),
        (c"set_fc_mark", function!(set_mark)),
        (c"set_mark", function!(set_mark)),
        (c"set_var", function!(set_var)),
        (c"get_var", function!(get_var)),
        (c"unset_var", function!(unset_var)),
        (c"set_priv", function!(set_priv)),
        (c"get_priv", function!(get_priv)),
        (c"done", function!(done)),
        (c"log", function!(log)),
        (c"deflog", function!(deflog)),
        (c"Debug", function!(debug)),
        (c"Info", function!(info)),
        (c"Warning", function!(warning)),
        (c"Alert", function!(alert)),
    ];
    // SAFETY: called inside a protected call; no value with a destructor is alive.
    unsafe {
        ffi::lua_createtable(lua, 0, 0);
        ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::PRIVATE).cast());
        create_objects(lua);
        for http in [false, true] {
            ffi::lua_createtable(lua, 0, 1); // the metatable of txn
            ffi::lua_createtable(lua, 0, 32);
            set_functions(lua, &METHODS);
            reply::push_constructor(lua);
            ffi::lua_setfield(lua, -2, c"reply".as_ptr());
            set_objects(lua, http);
            ffi::lua_setfield(lua, -2, c"__index".as_ptr());
            host(lua).txn_classes[usize::from(http)] = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        }
    }
}

/// Creates the objects, and keeps them by name in the registry.
unsafe fn create_objects(lua: *mut lua_State) {
    // SAFETY: called inside a protected call; no value with a destructor is alive.
    unsafe {
        ffi::luaL_checkstack(lua, 8, c"out of stack".as_ptr());
        ffi::lua_createtable(lua, 0, OBJECTS.len() as c_int);
        for (name, object) in OBJECTS {
            let handle = ffi::lua_newuserdatauv(lua, size_of::<Handle>(), 0) as *mut Handle;
            handle.write(Handle { tag: object as u64 });
            ffi::lua_createtable(lua, 0, 1); // its metatable
            ffi::lua_createtable(lua, 0, 8); // its methods
            match object {
                Object::Http => http::set_methods(lua),
                Object::RequestChannel | Object::ResponseChannel => channel::set_methods(lua),
                Object::RequestMessage | Object::ResponseMessage => {
                    message::set_methods(lua);
                    let channel = if object == Object::RequestMessage { c"req" } else { c"res" };
                    ffi::lua_getfield(lua, -4, channel.as_ptr());
                    ffi::lua_setfield(lua, -2, c"channel".as_ptr());
                }
                _ => {
                    ffi::lua_createtable(lua, 0, 1);
                    ffi::lua_pushinteger(lua, object as u64 as i64);
                    ffi::lua_pushcclosure(lua, function!(make_method), 1);
                    ffi::lua_setfield(lua, -2, c"__index".as_ptr());
                    ffi::lua_setmetatable(lua, -2);
                }
            }
            ffi::lua_setfield(lua, -2, c"__index".as_ptr());
            ffi::lua_setmetatable(lua, -2);
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
        ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::OBJECTS).cast());
    }
}

/// Adds the objects to the table of methods on top; those of HTTP only if the streams of its class are of HTTP, and those
/// for filters so that they are found in a function of a filter.
pub(super) unsafe fn set_objects(lua: *mut lua_State, http: bool) {
    // SAFETY: called inside a protected call, with a table on top; no value with a destructor is alive.
    unsafe {
        ffi::luaL_checkstack(lua, 4, c"out of stack".as_ptr());
        ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::OBJECTS).cast());
        let always = |object| !matches!(object, Object::RequestMessage | Object::ResponseMessage);
        for (name, _) in OBJECTS.into_iter().filter(|(_, object)| always(*object) && (http || *object != Object::Http))
        {
            ffi::lua_getfield(lua, -1, name.as_ptr());
            ffi::lua_setfield(lua, -3, name.as_ptr());
        }
        ffi::lua_createtable(lua, 0, 1);
        ffi::lua_pushvalue(lua, -2);
        ffi::lua_pushcclosure(lua, function!(message_of_filter), 1);
        ffi::lua_setfield(lua, -2, c"__index".as_ptr());
        ffi::lua_setmetatable(lua, -3);
        ffi::lua_settop(lua, -2);
    }
}

/// Pushes a new `txn` of a stream.
pub(super) unsafe fn push(lua: *mut lua_State, stream: u64) {
    // SAFETY: called inside a coroutine, with slots free.
    unsafe {
        ffi::lua_createtable(lua, 1, 0);
        ffi::lua_pushinteger(lua, stream as i64);
        ffi::lua_rawseti(lua, -2, 1);
        let host = host(lua);
        let http = host.current.readable.as_ref().is_none_or(StreamContext::is_http);
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, host.txn_classes[usize::from(http)].into());
        ffi::lua_setmetatable(lua, -2);
    }
}

/// `__index` of the methods of `txn`: in a function of a filter of HTTP there are messages; upvalue 1 has the objects.
unsafe fn message_of_filter(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        if !matches!(to_bytes(lua, 2), Some(b"http_req" | b"http_res")) || !is_filtering_http(lua) {
            return 0;
        }
        ffi::lua_settop(lua, 2);
        ffi::lua_rawget(lua, ffi::lua_upvalueindex(1));
        1
    }
}

/// Returns whether a function of a filter of HTTP is running.
unsafe fn is_filtering_http(lua: *mut lua_State) -> bool {
    // SAFETY: the call outlives the burst.
    unsafe { host(lua).current.filter.as_ref().is_some_and(|call| call.http) }
}

/// Returns whether the channel at `index` is the response's; `None` if it is no channel.
pub(super) unsafe fn side_of_channel(lua: *mut lua_State, index: c_int) -> Option<bool> {
    // SAFETY: a handle is plain numbers.
    unsafe {
        if tagged::<Handle>(lua, index, Object::ResponseChannel as u64).is_some() {
            return Some(true);
        }
        tagged::<Handle>(lua, index, Object::RequestChannel as u64).map(|_| false)
    }
}

/// Returns whether the message at 1 is the response, and its stream; raises an error if it is not a message.
pub(super) unsafe fn message_context<'a>(lua: *mut lua_State) -> Option<(bool, &'a mut StreamContext)> {
    // SAFETY: as `check_object`, which reads the tag again.
    unsafe {
        let response = tagged::<Handle>(lua, 1, Object::ResponseMessage as u64).is_some();
        let object = if response { Object::ResponseMessage } else { Object::RequestMessage };
        object_context(lua, object).map(|cx| (response, cx))
    }
}

/// Returns whether argument 1 is a message.
pub(super) unsafe fn is_message(lua: *mut lua_State) -> bool {
    // SAFETY: a handle is plain numbers.
    unsafe {
        let mut messages = [Object::RequestMessage, Object::ResponseMessage].into_iter();
        messages.any(|object| tagged::<Handle>(lua, 1, object as u64).is_some())
    }
}

/// Returns the stream id in the table at 1.
pub(super) unsafe fn stream_of_txn(lua: *mut lua_State) -> Option<u64> {
    // SAFETY: a C function's usual stack.
    unsafe {
        if ffi::lua_type(lua, 1) != ffi::LUA_TTABLE {
            return None;
        }
        ffi::lua_rawgeti(lua, 1, 1);
        let id = (ffi::lua_isinteger(lua, -1) != 0).then(|| ffi::lua_tointeger(lua, -1) as u64);
        ffi::lua_settop(lua, -2);
        id
    }
}

/// Raises an error if the running burst belongs to another stream than `id`.
#[inline]
unsafe fn check_stream(lua: *mut lua_State, id: u64) {
    // SAFETY: a C function's usual stack.
    unsafe {
        if host(lua).current.stream_id != id {
            raise(lua, c"this object belongs to another stream");
        }
    }
}

/// Returns the context of the stream that runs: `None` once it has ended.
unsafe fn context<'a>(lua: *mut lua_State) -> Option<&'a mut StreamContext> {
    // SAFETY: the runner lends the context to the burst, and the reference does not outlive the C function.
    unsafe {
        let current = &host(lua).current;
        if current.stream.is_null() && !current.readable.is_null() {
            raise(lua, c"the stream cannot be changed here");
        }
        current.stream.as_mut()
    }
}

/// Returns the context of the stream to which argument 1, which must be a `txn`, refers.
pub(super) unsafe fn txn_context<'a>(lua: *mut lua_State) -> Option<&'a mut StreamContext> {
    // SAFETY: as `context`.
    unsafe {
        match stream_of_txn(lua) {
            Some(id) => {
                check_stream(lua, id);
                context(lua)
            }
            None => {
                ffi::luaL_argerror(lua, 1, c"TXN expected".as_ptr());
                None
            }
        }
    }
}

/// Like [`txn_context`], for reading.
unsafe fn txn_readable<'a>(lua: *mut lua_State) -> Option<&'a StreamContext> {
    // SAFETY: as `context`.
    unsafe {
        match stream_of_txn(lua) {
            Some(id) => {
                check_stream(lua, id);
                host(lua).current.readable.as_ref()
            }
            None => {
                ffi::luaL_argerror(lua, 1, c"TXN expected".as_ptr());
                None
            }
        }
    }
}

/// Returns the channel at 1 and its stream; raises an error if it is not a channel.
pub(super) unsafe fn channel_context<'a>(lua: *mut lua_State) -> Option<(Object, &'a mut StreamContext)> {
    // SAFETY: as `check_object`, which reads the tag again.
    unsafe {
        let is_response = tagged::<Handle>(lua, 1, Object::ResponseChannel as u64).is_some();
        let object = if is_response { Object::ResponseChannel } else { Object::RequestChannel };
        object_context(lua, object).map(|cx| (object, cx))
    }
}

/// Returns the context of argument 1, which must be the `wanted` object.
pub(super) unsafe fn object_context<'a>(lua: *mut lua_State, wanted: Object) -> Option<&'a mut StreamContext> {
    // SAFETY: as `context`.
    unsafe {
        check_object(lua, wanted);
        context(lua)
    }
}

/// Like [`object_context`], for reading.
pub(super) unsafe fn object_readable<'a>(lua: *mut lua_State, wanted: Object) -> Option<&'a StreamContext> {
    // SAFETY: as `context`.
    unsafe {
        check_object(lua, wanted);
        host(lua).current.readable.as_ref()
    }
}

/// Raises an error if the value at 1 is another object, or if no stream runs.
unsafe fn check_object(lua: *mut lua_State, wanted: Object) {
    // SAFETY: a handle is plain numbers.
    unsafe {
        if tagged::<Handle>(lua, 1, wanted as u64).is_none() {
            ffi::luaL_argerror(lua, 1, c"an object of txn is expected".as_ptr());
        }
        if host(lua).current.stream_id == 0 {
            raise(lua, c"this object belongs to a stream");
        }
    }
}

/// A fetch that scripts have used; without arguments it is compiled once for the process.
struct KnownFetch {
    fetch: Fetch,
    bare: Option<FetchCode>,
}

/// Returns the fetch with this name. Known fetches are never freed: there are as many as catalogue rows.
fn known_fetch(name: &str) -> Option<&'static KnownFetch> {
    static KNOWN: LazyLock<Mutex<HashMap<String, &'static KnownFetch>>> = LazyLock::new(Mutex::default);
    let fetch = fetch_by_name(name)?;
    let mut known = KNOWN.lock();
    Some(
        known
            .entry(name.to_owned())
            .or_insert_with(|| Box::leak(Box::new(KnownFetch { fetch, bare: FetchCode::compile(fetch, &[]).ok() }))),
    )
}

/// `__index` of an object's methods: creates the method of a fetch or converter when it is first used, and caches it.
unsafe fn make_method(lua: *mut lua_State) -> c_int {
    // SAFETY: 1 is the table of methods, 2 the name; upvalue 1 is the object. `Converter` is plain data.
    unsafe {
        let Some(name) = to_bytes(lua, 2).and_then(|name| std::str::from_utf8(name).ok()) else { return 0 };
        let object = ffi::lua_tointeger(lua, ffi::lua_upvalueindex(1)) as u64;
        if object == Object::Fetches as u64 || object == Object::StringFetches as u64 {
            let Some(known) = known_fetch(name) else { return 0 };
            ffi::lua_pushlightuserdata(lua, known as *const KnownFetch as *mut c_void);
            let method = if object == Object::Fetches as u64 { function!(fetch) } else { function!(string_fetch) };
            ffi::lua_pushcclosure(lua, method, 1);
        } else {
            let Some(converter) = converter_by_name(name) else { return 0 };
            let slot = ffi::lua_newuserdatauv(lua, size_of::<Converter>(), 0) as *mut Converter;
            slot.write(converter);
            let method =
                if object == Object::Converters as u64 { function!(convert) } else { function!(string_convert) };
            ffi::lua_pushcclosure(lua, method, 1);
        }
        ffi::lua_pushvalue(lua, 2);
        ffi::lua_pushvalue(lua, -2);
        ffi::lua_rawset(lua, 1);
        1
    }
}

unsafe fn fetch(lua: *mut lua_State) -> c_int {
    // SAFETY: as `run_fetch`.
    unsafe { run_fetch(lua, Object::Fetches) }
}

unsafe fn string_fetch(lua: *mut lua_State) -> c_int {
    // SAFETY: as `run_fetch`.
    unsafe { run_fetch(lua, Object::StringFetches) }
}

unsafe fn run_fetch(lua: *mut lua_State, object: Object) -> c_int {
    // SAFETY: owned values are dropped or parked in the host before Lua is called.
    unsafe {
        let Some(cx) = object_readable(lua, object) else {
            ffi::lua_pushnil(lua);
            return 1;
        };
        let known = &*(ffi::lua_touserdata(lua, ffi::lua_upvalueindex(1)) as *const KnownFetch);
        let host = host(lua);
        if ffi::lua_gettop(lua) == 1
            && let Some(code) = &known.bare
        {
            match code.fetch(cx) {
                Some(value) if object == Object::Fetches => push_sample(lua, value.into_sample()),
                Some(value) => {
                    host.text.clear();
                    value.append_text(&mut host.text);
                    drop(value);
                    push_bytes(lua, &host.text);
                }
                None => push_nothing(lua, object),
            }
            return 1;
        }
        check_texts(lua, 2);
        let result = with_texts(lua, 2, |args| call_fetch(known.fetch, args, cx));
        match result {
            Err(CallError(message)) => raise_text(lua, message),
            Ok(Some(sample)) => push_object_sample(lua, object, sample),
            Ok(None) => push_nothing(lua, object),
        }
        1
    }
}

/// Pushes the result of an object without a sample.
unsafe fn push_nothing(lua: *mut lua_State, object: Object) {
    // SAFETY: a slot is free.
    unsafe {
        if matches!(object, Object::StringFetches | Object::StringConverters) {
            push_bytes(lua, b"");
        } else {
            ffi::lua_pushnil(lua);
        }
    }
}

unsafe fn push_object_sample(lua: *mut lua_State, object: Object, sample: Sample) {
    // SAFETY: the text is parked in the host.
    unsafe {
        if matches!(object, Object::StringFetches | Object::StringConverters) {
            let host = host(lua);
            host.text.clear();
            sample.as_value().append_text(&mut host.text);
            drop(sample);
            push_bytes(lua, &host.text);
        } else {
            push_sample(lua, sample);
        }
    }
}

/// Checks that the arguments from `first` on are text, and converts numbers in place; raises an error otherwise.
unsafe fn check_texts(lua: *mut lua_State, first: c_int) {
    // SAFETY: a C function's usual stack.
    unsafe {
        for index in first..=ffi::lua_gettop(lua) {
            if std::str::from_utf8(check_bytes(lua, index)).is_err() {
                ffi::luaL_argerror(lua, index, c"text expected".as_ptr());
            }
        }
    }
}

/// Runs `f` with the arguments from `first` on, which [`check_texts`] has checked. `f` must not call Lua.
unsafe fn with_texts<R>(lua: *mut lua_State, first: c_int, f: impl FnOnce(&[&str]) -> R) -> R {
    // SAFETY: strings stay on the stack; reading them raises nothing.
    unsafe {
        let args: SmallVec<[&str; 4]> = (first..=ffi::lua_gettop(lua))
            .filter_map(|index| to_bytes(lua, index).and_then(|bytes| std::str::from_utf8(bytes).ok()))
            .collect();
        f(&args)
    }
}

/// Returns argument `index` as a sample; `None` for nil.
unsafe fn to_sample(lua: *mut lua_State, index: c_int) -> Option<Sample> {
    // SAFETY: reading raises nothing; the sample is made after the last call of Lua.
    unsafe {
        match ffi::lua_type(lua, index) {
            ffi::LUA_TBOOLEAN => Some(Sample::Bool(ffi::lua_toboolean(lua, index) != 0)),
            // As in HAProxy, a number that is no integer is 0.
            ffi::LUA_TNUMBER => Some(Sample::Int(ffi::lua_tointeger(lua, index))),
            ffi::LUA_TSTRING => to_bytes(lua, index).map(|bytes| Sample::Str(bytes.to_vec())),
            _ => None,
        }
    }
}

unsafe fn convert(lua: *mut lua_State) -> c_int {
    // SAFETY: as `run_convert`.
    unsafe { run_convert(lua, Object::Converters) }
}

unsafe fn string_convert(lua: *mut lua_State) -> c_int {
    // SAFETY: as `run_convert`.
    unsafe { run_convert(lua, Object::StringConverters) }
}

unsafe fn run_convert(lua: *mut lua_State, object: Object) -> c_int {
    static NO_ENGINES: LazyLock<Engines> = LazyLock::new(Engines::new);
    // SAFETY: owned values are dropped or parked in the host before Lua is called.
    unsafe {
        let Some(cx) = object_readable(lua, object) else {
            ffi::lua_pushnil(lua);
            return 1;
        };
        let converter = *(ffi::lua_touserdata(lua, ffi::lua_upvalueindex(1)) as *const Converter);
        if ffi::lua_type(lua, 2) <= ffi::LUA_TNIL {
            push_nothing(lua, object);
            return 1;
        }
        check_texts(lua, 3);
        let host = host(lua);
        let engines = host.shared.engines.get().unwrap_or(&NO_ENGINES);
        let Some(input) = to_sample(lua, 2) else {
            ffi::luaL_argerror(lua, 2, c"string, number or boolean expected".as_ptr());
            return 0;
        };
        let result = with_texts(lua, 3, |args| call_converter(converter, &input, args, cx, engines));
        drop(input);
        match result {
            Err(CallError(message)) => raise_text(lua, message),
            Ok(called) => give(lua, object, called),
        }
    }
}

/// Pushes the result of a converter, or waits for it.
unsafe fn give(lua: *mut lua_State, object: Object, called: Called) -> c_int {
    // SAFETY: as `run_convert`.
    unsafe {
        match called {
            Called::Sample(Some(sample)) => push_object_sample(lua, object, sample),
            Called::Sample(None) => push_nothing(lua, object),
            Called::Changed(effect, sample) => {
                // The object at 1 was checked, and what is lent cannot change while a converter runs.
                if let Some(cx) = host(lua).current.stream.as_mut() {
                    effect.apply(cx);
                }
                push_object_sample(lua, object, sample);
            }
            Called::Failed(message) => raise_text(lua, message),
            Called::Pending(reply) => {
                let string = lua_KContext::from(object == Object::StringConverters);
                return wait_for(lua, Operation::Reply(reply), string, continuation!(converted));
            }
        }
        1
    }
}

unsafe fn converted(lua: *mut lua_State, _: c_int, string: lua_KContext) -> c_int {
    // SAFETY: as `give`.
    unsafe {
        let object = if string != 0 { Object::StringConverters } else { Object::Converters };
        match host(lua).outcome.take() {
            Some(Outcome::Reply(reply)) => give(lua, object, finish_call(reply)),
            _ => raise(lua, c"the store's reply was lost"),
        }
    }
}

/// Returns argument 2 as a variable. Returns `None` for an invalid name; as in HAProxy, such a variable cannot be set
/// and has no value.
unsafe fn variable(lua: *mut lua_State) -> Option<VarRef> {
    // SAFETY: the reference is made last.
    unsafe { std::str::from_utf8(check_bytes(lua, 2)).ok().and_then(VarRef::parse) }
}

/// Raises an error unless a method was called with `least` to `most` arguments, not counting the object.
unsafe fn check_count(lua: *mut lua_State, message: &CStr, least: c_int, most: c_int) {
    // SAFETY: a C function's usual stack.
    unsafe {
        if !(least..=most).contains(&(ffi::lua_gettop(lua))) {
            raise(lua, message);
        }
    }
}

pub(super) unsafe fn set_var(lua: *mut lua_State) -> c_int {
    // SAFETY: owned values are dropped before Lua is called.
    unsafe {
        check_count(lua, c"'set_var' needs between 3 and 4 arguments", 3, 4);
        check_bytes(lua, 2);
        let Some(cx) = txn_context(lua) else {
            ffi::lua_pushnil(lua);
            return 1;
        };
        // `ifexist` applies to variables of the process: one that no rule names and that was never set is not created.
        if ffi::lua_toboolean(lua, 4) != 0
            && let Some(name) = check_bytes(lua, 2).strip_prefix(b"proc.")
            && VarRef::known(VarScope::Proc, std::str::from_utf8(name).unwrap_or_default()).is_none()
        {
            ffi::lua_pushboolean(lua, 0);
            return 1;
        }
        // As in HAProxy, what is no sample is false.
        let set = variable(lua).is_some_and(|variable| {
            let sample = to_sample(lua, 3).unwrap_or(Sample::Bool(false));
            cx.variables.set(&variable, sample)
        });
        ffi::lua_pushboolean(lua, c_int::from(set));
        1
    }
}

pub(super) unsafe fn unset_var(lua: *mut lua_State) -> c_int {
    // SAFETY: as `set_var`.
    unsafe {
        check_count(lua, c"'unset_var' needs between 2 and 3 arguments", 2, 3);
        check_bytes(lua, 2);
        let Some(cx) = txn_context(lua) else {
            ffi::lua_pushnil(lua);
            return 1;
        };
        let known = match variable(lua) {
            Some(variable) => {
                cx.variables.unset(&variable);
                true
            }
            None => false,
        };
        ffi::lua_pushboolean(lua, c_int::from(known));
        1
    }
}

pub(super) unsafe fn get_var(lua: *mut lua_State) -> c_int {
    // SAFETY: as `set_var`.
    unsafe {
        check_bytes(lua, 2);
        let Some(cx) = txn_readable(lua) else {
            ffi::lua_pushnil(lua);
            return 1;
        };
        match variable(lua).and_then(|variable| cx.variables.get(&variable)) {
            Some(sample) => push_sample(lua, sample),
            None => ffi::lua_pushnil(lua),
        }
        1
    }
}

pub(super) unsafe fn set_priv(lua: *mut lua_State) -> c_int {
    // SAFETY: the stream's record is changed after the last call that may raise.
    unsafe {
        ffi::lua_settop(lua, 2);
        let Some(cx) = txn_context(lua) else { return 0 };
        ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::PRIVATE).cast());
        ffi::lua_pushvalue(lua, 2);
        ffi::lua_rawseti(lua, -2, cx.id as i64);
        let cell = host(lua).cell.clone();
        cx.lua.keep_private(cell, cx.id);
        0
    }
}

pub(super) unsafe fn get_priv(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let Some(cx) = txn_readable(lua) else {
            ffi::lua_pushnil(lua);
            return 1;
        };
        ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::PRIVATE).cast());
        ffi::lua_rawgeti(lua, -1, cx.id as i64);
        1
    }
}

/// Drops the private value of a stream that has ended.
pub(super) fn forget_private(state: &mut State, stream: u64) {
    debug_assert!(state.host::<Host>().current.stream.is_null());
    // SAFETY: no value with a destructor is alive. A failure would keep one value until the state is closed.
    let _ = unsafe {
        state.protect(|lua| {
            ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::PRIVATE).cast());
            ffi::lua_pushnil(lua);
            ffi::lua_rawseti(lua, -2, stream as i64);
        })
    };
}

/// `txn:done([reply])`: ends the script and the stream.
unsafe fn done(lua: *mut lua_State) -> c_int {
    // SAFETY: the reply is built inside the host.
    unsafe {
        if txn_context(lua).is_some() && ffi::lua_type(lua, 2) == ffi::LUA_TTABLE {
            reply::build(lua, 2);
        }
        end_script(lua, true)
    }
}

/// `txn:set_loglevel(level)`: with `core.silent` nothing is logged.
unsafe fn set_loglevel(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        check_count(lua, c"'set_loglevel' needs 1 arguments", 2, 2);
        let level = check_level(lua, 2);
        if let Some(cx) = txn_context(lua) {
            cx.log.level = Some(u8::try_from(level).map_or(LogLevel::Silent, LogLevel::Level));
        }
        0
    }
}

/// `txn:set_priority_class(class)`: clamped to the valid range, as by the rule.
unsafe fn set_priority_class(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        check_count(lua, c"'set_priority_class' needs 1 arguments", 2, 2);
        let class = ffi::luaL_checkinteger(lua, 2);
        if let Some(cx) = txn_context(lua) {
            cx.priority.set_class(class);
        }
        0
    }
}

/// `txn:set_priority_offset(milliseconds)`.
unsafe fn set_priority_offset(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        check_count(lua, c"'set_priority_offset' needs 1 arguments", 2, 2);
        let offset = ffi::luaL_checkinteger(lua, 2);
        if let Some(cx) = txn_context(lua) {
            cx.priority.set_offset(offset);
        }
        0
    }
}

unsafe fn set_tos(lua: *mut lua_State) -> c_int {
    // SAFETY: as `set_option`.
    unsafe { set_option(lua, false) }
}

unsafe fn set_mark(lua: *mut lua_State) -> c_int {
    // SAFETY: as `set_option`.
    unsafe { set_option(lua, true) }
}

/// Sets the mark of the packets to the client, or their type of service.
unsafe fn set_option(lua: *mut lua_State, mark: bool) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        check_count(lua, if mark { c"'set_mark' needs 1 arguments" } else { c"'set_tos' needs 1 arguments" }, 2, 2);
        let value = ffi::luaL_checkinteger(lua, 2) as u32;
        if let Some(cx) = txn_context(lua) {
            cx.sockets.set_option(Side::Client, mark, value);
        }
        0
    }
}

unsafe fn log(lua: *mut lua_State) -> c_int {
    // SAFETY: as `log_argument`.
    unsafe { log_argument(lua, check_level(lua, 2), 3, true) }
}

/// `txn:deflog(text)`: logs with the level that the stream's own line was given; as in HAProxy, that is `emerg` if it was
/// given none.
unsafe fn deflog(lua: *mut lua_State) -> c_int {
    // SAFETY: as `log_argument`.
    unsafe {
        let level = match host(lua).current.readable.as_ref().and_then(|cx| cx.log.level) {
            None => 0,
            Some(LogLevel::Level(level)) => level.into(),
            Some(LogLevel::Silent) => -1,
        };
        log_argument(lua, level, 2, true)
    }
}

unsafe fn debug(lua: *mut lua_State) -> c_int {
    // SAFETY: as `log_argument`.
    unsafe { log_argument(lua, 7, 2, true) }
}

unsafe fn info(lua: *mut lua_State) -> c_int {
    // SAFETY: as `log_argument`.
    unsafe { log_argument(lua, 6, 2, true) }
}

unsafe fn warning(lua: *mut lua_State) -> c_int {
    // SAFETY: as `log_argument`.
    unsafe { log_argument(lua, 4, 2, true) }
}

unsafe fn alert(lua: *mut lua_State) -> c_int {
    // SAFETY: as `log_argument`.
    unsafe { log_argument(lua, 1, 2, true) }
}
