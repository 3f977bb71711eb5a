//! Proxy data of a Lua state, and access to it from C functions.
//!
//! A C function may be left by a longjmp whenever it calls Lua's API, so owned values never live on its frame across
//! such a call: they are stored in the host first, and pushed to Lua from there.

use std::ffi::{CString, c_int};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sluicegate_script::ffi::{self, lua_CFunction, lua_KContext, lua_KFunction, lua_State};
use sluicegate_script::{can_wait, push_bytes, raise, wait};
use sluicegate_wire::engine::{Engine, Failed};
use sluicegate_wire::reply::Reply;

use super::events::Subscription;
use super::filter::FilterCall;
use super::httpclient;
use super::native::Named;
use super::operation::{Operation, Outcome};
use super::patterns::MapHandle;
use super::states::{Shared, StateCell};
use crate::local_reply::LocalReply;
use crate::sample::Sample;
use crate::stream::{AppletIo, ScriptCode, ScriptHook, StreamContext};

/// The phase in which a state's code runs; it determines which API functions are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The body of a file: may register, may not wait.
    Body,
    /// A function of `core.register_init`: may not wait.
    Init,
    /// Traffic is processed: may wait, may not register.
    Run,
}

/// The function of `core` that registered a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegisteredAs {
    /// `core.register_action`, for one rule set.
    Action(ScriptHook),
    /// `core.register_fetches`.
    Fetch,
    /// `core.register_converters`.
    Converter,
    /// `core.register_service` of `http`.
    HttpService,
    /// `core.register_service` of `tcp`.
    TcpService,
    /// `core.register_filter`.
    Filter,
    /// `core.register_cli`: the name consists of the command's words, separated by single spaces.
    Cli,
}

/// A function registered in one state.
pub(super) struct Registration {
    pub(super) kind: RegisteredAs,
    pub(super) name: String,
    pub(super) reference: c_int,
    /// The number of arguments of an action.
    pub(super) args: usize,
    /// A command's line in the help.
    pub(super) usage: String,
}

impl Registration {
    /// Returns that of a function without arguments.
    pub(super) fn new(kind: RegisteredAs, name: &str, reference: c_int) -> Registration {
        Registration { kind, name: name.to_owned(), reference, args: 0, usage: String::new() }
    }
}

/// A function of `core.register_task` and its arguments, pinned in the registry as one table.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskReference(pub(super) c_int);

/// The data of the current burst, which is one uninterrupted run of Lua code.
pub(super) struct Current {
    /// The stream that the script runs for; null in a task, and once the stream has ended.
    pub(super) stream: *mut StreamContext,
    /// The same stream for reading; if only this pointer is set, the script may read its stream but not change it.
    pub(super) readable: *const StreamContext,
    /// The stream's id even after its end; 0 in a task.
    pub(super) stream_id: u64,
    /// The buffers of the running service; null in other scripts, and once its client has disconnected.
    pub(super) applet: *mut AppletIo,
    /// The call of a filter's function; null in other scripts.
    pub(super) filter: *const FilterCall,
    /// Whether code may not wait here.
    pub(super) no_wait: bool,
    /// The input sample of the converter that is about to start.
    pub(super) input: Option<Sample>,
    /// The script function that is about to start.
    pub(super) action: *const ScriptCode,
    /// The registry reference of the task that is about to start.
    pub(super) task: c_int,
    /// Whether the action runs in a response rule set.
    pub(super) response: bool,
    /// `act.wake_time`, `filter.wake_time`.
    pub(super) wake: Option<Duration>,
    /// `core.done` or `txn:done` ended the script.
    pub(super) done: bool,
    /// Whether it was `txn:done`, which also ends the stream.
    pub(super) stream_done: bool,
    /// The response of `txn:done`.
    pub(super) reply: Option<Box<LocalReply>>,
}

impl Default for Current {
    fn default() -> Self {
        Current {
            stream: std::ptr::null_mut(),
            readable: std::ptr::null(),
            applet: std::ptr::null_mut(),
            filter: std::ptr::null(),
            no_wait: false,
            input: None,
            stream_id: 0,
            action: std::ptr::null(),
            task: 0,
            response: false,
            wake: None,
            done: false,
            stream_done: false,
            reply: None,
        }
    }
}

impl Current {
    /// Lends a stream to the burst.
    pub(super) fn lend(&mut self, cx: &mut StreamContext) {
        self.applet = cx.lua.applet.as_deref_mut().map_or(std::ptr::null_mut(), |io| io);
        self.stream = cx;
        self.readable = self.stream.cast_const();
    }
}

/// A plain value that is to be pushed into the state.
pub(super) enum Value {
    Nil,
    Bool(bool),
    Int(i64),
    Text(String),
}

/// A store or engine that a script refers to.
pub(super) struct RedisHandle {
    pub(super) name: Arc<str>,
    pub(super) db: u32,
    pub(super) engine: Option<Arc<dyn Engine>>,
    /// Receives the failures of its `acall`.
    pub(super) failed: Failed,
}

/// The host value of each state.
pub(super) struct Host {
    pub(super) shared: Arc<Shared>,
    /// The cell that contains the state, once it has been placed there.
    pub(super) cell: Weak<StateCell>,
    /// The state's id as in HAProxy: 0 for the shared state, otherwise the number of its worker, starting with 1.
    pub(super) id: usize,
    pub(super) phase: Phase,
    pub(super) registrations: Vec<Registration>,
    pub(super) inits: Vec<c_int>,
    pub(super) tasks: Vec<TaskReference>,
    /// Subscriptions that no worker serves yet.
    pub(super) subscriptions: Vec<Arc<Subscription>>,
    pub(super) current: Current,
    /// The references of the metatables of `txn`, in TCP and in HTTP.
    pub(super) txn_classes: [c_int; 2],
    /// The operation that the coroutine that has just yielded waits for.
    pub(super) operation: Option<Operation>,
    /// The result of that operation, for the continuation.
    pub(super) outcome: Option<Outcome>,
    /// Engines, by the index that `core.redis` objects hold.
    pub(super) redis: Vec<RedisHandle>,
    /// Maps, by the index that `Map` objects hold.
    pub(super) maps: Vec<MapHandle>,
    /// The text or bytes that are being pushed into the state.
    pub(super) text: Vec<u8>,
    /// Named values that are being pushed into the state, the last one first.
    pub(super) values: Vec<(&'static str, Value)>,
    /// Servers while they are pushed.
    pub(super) servers: Vec<Named>,
    /// The line and the number of each listening socket, while they are pushed.
    pub(super) sockets: Vec<(usize, u32)>,
    /// The answer of an HTTP server while it is pushed.
    pub(super) http: Option<Box<httpclient::Answer>>,
    /// Replies while they are pushed. There is more than one if a finalizer of the script calls a store while a reply
    /// is being pushed. They are boxed because an earlier reply is still read through a pointer while another is added.
    #[allow(clippy::vec_box)]
    pub(super) answers: Vec<Box<Reply>>,
}

// SAFETY: the raw pointers of `current` are set for the length of one burst by the thread that runs it, and cleared
// before the state can move.
unsafe impl Send for Host {}

impl Host {
    pub(super) fn new(shared: Arc<Shared>, id: usize) -> Host {
        Host {
            shared,
            cell: Weak::new(),
            id,
            phase: Phase::Body,
            registrations: Vec::new(),
            inits: Vec::new(),
            tasks: Vec::new(),
            subscriptions: Vec::new(),
            current: Current::default(),
            txn_classes: [ffi::LUA_NOREF; 2],
            operation: None,
            outcome: None,
            redis: Vec::new(),
            maps: Vec::new(),
            text: Vec::new(),
            values: Vec::new(),
            servers: Vec::new(),
            sockets: Vec::new(),
            http: None,
            answers: Vec::new(),
        }
    }
}

/// Returns the host of the state that `lua` belongs to.
///
/// # Safety
/// As [`sluicegate_script::host`]; every state of this crate is made with a [`Host`].
pub(super) unsafe fn host<'a>(lua: *mut lua_State) -> &'a mut Host {
    // SAFETY: as promised by the caller.
    unsafe { sluicegate_script::host::<Host>(lua) }
}

/// Raises an error with an owned message; the host holds the text while Lua copies it.
///
/// # Safety
/// Nothing else with a destructor is alive in the caller.
pub(super) unsafe fn raise_text(lua: *mut lua_State, message: String) -> ! {
    // SAFETY: the text stays in the host while it is pushed.
    unsafe {
        // The message is pushed first, because the next call may run a finalizer of the script that overwrites the
        // stored text.
        push_text(lua, message.into_bytes());
        ffi::luaL_where(lua, 1);
        ffi::lua_insert(lua, -2);
        ffi::lua_concat(lua, 2);
        ffi::lua_error(lua)
    }
}

/// Returns the content of the userdata at `index`, if it has the size of `T` and begins with this tag. Never raises an
/// error.
///
/// # Safety
/// `T` is `repr(C)` and consists only of numbers, the first of which is the tag.
pub(super) unsafe fn tagged<T: Copy>(lua: *mut lua_State, index: c_int, tag: u64) -> Option<T> {
    // SAFETY: the tag is read only from a block of the size of a `T`, and every bit pattern is a valid `T`.
    unsafe {
        let block = ffi::lua_touserdata(lua, index);
        let is_one = ffi::lua_type(lua, index) == ffi::LUA_TUSERDATA
            && ffi::lua_rawlen(lua, index) == size_of::<T>()
            && block.cast::<u64>().read() == tag;
        is_one.then(|| block.cast::<T>().read())
    }
}

/// Pushes an owned text.
///
/// # Safety
/// As [`raise_text`].
pub(super) unsafe fn push_text(lua: *mut lua_State, text: Vec<u8>) {
    // SAFETY: as `raise_text`.
    unsafe {
        let host = host(lua);
        host.text = text;
        push_bytes(lua, &host.text);
    }
}

/// Stores an operation for the driver and yields; raises an error if the script cannot wait here.
///
/// # Safety
/// As [`raise_text`], except that the operation itself may have a destructor.
pub(super) unsafe fn wait_for(
    lua: *mut lua_State,
    operation: Operation,
    context: lua_KContext,
    then: lua_KFunction,
) -> c_int {
    // SAFETY: the operation is dropped, or owned by the host, before anything can raise.
    unsafe {
        if host(lua).phase != Phase::Run || host(lua).current.no_wait || !can_wait(lua) {
            drop(operation);
            raise(lua, c"cannot wait here");
        }
        host(lua).operation = Some(operation);
        wait(lua, context, then)
    }
}

/// Pushes a sample as the matching Lua type. `tune.lua.bool-sample-conversion` decides whether a boolean becomes the
/// integer 0 or 1, which is the default, or a boolean.
///
/// # Safety
/// As [`raise_text`].
pub(super) unsafe fn push_sample(lua: *mut lua_State, sample: Sample) {
    // SAFETY: the sample's bytes are stored in the host while they are pushed.
    unsafe {
        match sample {
            Sample::Bool(value) if host(lua).shared.bool_as_integer => ffi::lua_pushinteger(lua, i64::from(value)),
            Sample::Bool(value) => ffi::lua_pushboolean(lua, c_int::from(value)),
            Sample::Int(value) => ffi::lua_pushinteger(lua, value),
            other => {
                let host = host(lua);
                host.text.clear();
                match &other {
                    // Bytes are bytes to a script; only text output prints them as hexadecimal.
                    Sample::Bin(bytes) => host.text.extend_from_slice(bytes),
                    value => value.as_value().append_text(&mut host.text),
                }
                drop(other);
                push_bytes(lua, &host.text);
            }
        }
    }
}

/// Sets functions in the table on top of the stack.
///
/// # Safety
/// A table is on top; nothing with a destructor is alive in the caller.
pub(super) unsafe fn set_functions(lua: *mut lua_State, functions: &[(&std::ffi::CStr, lua_CFunction)]) {
    // SAFETY: as promised by the caller.
    unsafe {
        for (name, function) in functions {
            ffi::lua_pushcfunction(lua, *function);
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
    }
}

/// Returns a C string from configuration text; text that contains a zero byte is cut there, as in HAProxy.
pub(super) fn c_string(text: &str) -> CString {
    let bytes = text.as_bytes();
    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}

/// Returns the data block of argument 1 if its metatable is the one at `key` in the registry; otherwise raises an
/// argument error with the text `expected`.
///
/// # Safety
/// As [`raise_text`]; only blocks that hold a `T` get that metatable.
#[inline]
pub(super) unsafe fn check_object<T>(lua: *mut lua_State, key: &'static u8, expected: &std::ffi::CStr) -> *mut T {
    // SAFETY: as promised by the caller; scripts cannot set a metatable of a block.
    unsafe {
        let block = ffi::lua_touserdata(lua, 1) as *mut T;
        let mut ours = false;
        if !block.is_null() && ffi::lua_getmetatable(lua, 1) != 0 {
            ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const *key).cast());
            ours = ffi::lua_rawequal(lua, -1, -2) != 0;
            ffi::lua_settop(lua, -3);
        }
        if !ours {
            ffi::luaL_argerror(lua, 1, expected.as_ptr());
        }
        block
    }
}

/// Keys of the registry: the addresses of these bytes.
pub(super) mod key {
    /// The objects of `txn` by their names.
    pub(in crate::lua) static OBJECTS: u8 = 0;
    /// Metatable of sockets.
    pub(in crate::lua) static SOCKET: u8 = 1;
    /// Metatable of `core.redis` objects.
    pub(in crate::lua) static REDIS: u8 = 2;
    /// Metatable of replies.
    pub(in crate::lua) static REPLY: u8 = 3;
    /// Metatable of `AppletHTTP`.
    pub(in crate::lua) static APPLET_HTTP: u8 = 5;
    /// Metatable of `AppletTCP`.
    pub(in crate::lua) static APPLET_TCP: u8 = 6;
    /// Metatable of bells, the objects with which queues wake waiting scripts.
    pub(in crate::lua) static BELL: u8 = 7;
    /// The prelude's function that publishes proxies.
    pub(in crate::lua) static PUBLISH: u8 = 8;
    /// The prelude's function that calls a subscription's function.
    pub(in crate::lua) static DISPATCH: u8 = 13;
    /// Private values of streams by id.
    pub(in crate::lua) static PRIVATE: u8 = 4;
    /// Metatable of maps.
    pub(in crate::lua) static MAP: u8 = 9;
    /// Metatable of regular expressions.
    pub(in crate::lua) static REGEX: u8 = 10;
    /// Metatable of the store and engine connections that a script opens for its own use.
    pub(in crate::lua) static OWN: u8 = 12;
    /// Methods of `core.redis` objects.
    pub(in crate::lua) static REDIS_METHODS: u8 = 11;
}
