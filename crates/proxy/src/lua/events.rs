//! Events that scripts subscribe to: `core.event_sub`, `Server.event_sub` and `Patref.event_sub`.
//!
//! A subscription is a queue and a task of the worker on which it was made. Events are queued by whoever causes them; the
//! task calls the script's function for one after the other, each call as a script of its own, which may wait. Its data
//! reach Lua as a flat table of dotted names, from which the prelude makes the tables of the API.
//!
//! Limits: a queue with more than [`QUEUE_MAX`] events pauses its subscription until it is empty, as in HAProxy; a
//! configuration has at most [`SUBSCRIPTIONS_MAX`] subscriptions.

use std::collections::VecDeque;
use std::ffi::{CStr, c_int};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sluicegate_pattern::{Change, Watcher};
use sluicegate_script::ffi::{self, lua_CFunction, lua_State};
use sluicegate_script::{State, check_bytes, function, raise};
use tokio::sync::Notify;

use super::host::{Host, Phase, TaskReference, Value, host, key, push_text, set_functions};
use super::native::push_value;
use super::run::{Inner, run_event};
use super::states::StateCell;
use super::{LogSink, ScriptLine};
use crate::server::{AdminFlags, Cause, CheckFacts, Detail, ServerEvent};

/// The number of unconsumed events that pauses a subscription (HAProxy's).
const QUEUE_MAX: usize = 100;
/// The maximum number of subscriptions of a configuration.
const SUBSCRIPTIONS_MAX: usize = 65_536;

/// The names of events; the number of a name is its bit in the kinds of a subscription.
const NAMES: [&CStr; 13] = [
    c"SERVER_ADD",
    c"SERVER_DEL",
    c"SERVER_UP",
    c"SERVER_DOWN",
    c"SERVER_STATE",
    c"SERVER_ADMIN",
    c"SERVER_CHECK",
    c"SERVER_INETADDR",
    c"PAT_REF_ADD",
    c"PAT_REF_DEL",
    c"PAT_REF_SET",
    c"PAT_REF_CLEAR",
    c"PAT_REF_COMMIT",
];
/// `SERVER` and `PAT_REF`: all events of a family.
const FAMILIES: [(&[u8], u64); 2] = [(b"SERVER", 0xff), (b"PAT_REF", 0x1f00)];

/// Returns the number of a server's event among the names.
fn number_of(detail: &Detail) -> usize {
    match detail {
        Detail::Added => 0,
        Detail::Deleted => 1,
        Detail::Up => 2,
        Detail::Down => 3,
        Detail::State { .. } => 4,
        Detail::Admin { .. } => 5,
        Detail::Check(_) => 6,
        Detail::Address => 7,
    }
}

/// The objects whose events a subscription gets.
enum Of {
    /// All servers.
    Servers,
    /// The server with this life.
    Server(u64),
    /// A file.
    File,
}

/// An event in a queue.
#[derive(Clone)]
struct Queued {
    number: usize,
    /// Seconds since the epoch.
    when: i64,
    server: Option<Arc<ServerEvent>>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Queued>,
    paused: bool,
    /// Whether no event follows.
    ended: bool,
}

/// A subscription.
pub(super) struct Subscription {
    number: u64,
    of: Of,
    kinds: u64,
    /// The registry's reference of the script's function and of its `EventSub`.
    handler: c_int,
    /// Where the subscription was made.
    place: String,
    sink: LogSink,
    queue: Mutex<Queue>,
    bell: Notify,
}

impl Subscription {
    fn push(&self, event: Queued) {
        if self.kinds & (1 << event.number) == 0 {
            return;
        }
        let mut queue = self.queue.lock();
        if queue.ended || queue.paused {
            return;
        }
        queue.events.push_back(event);
        let count = queue.events.len();
        queue.paused = count > QUEUE_MAX;
        let paused = queue.paused;
        drop(queue);
        self.bell.notify_one();
        if paused {
            let text = format!(
                "Lua event_hdl: pausing the subscription because the handler fails to keep up the pace ({count} \
                 unconsumed events) from {}.",
                self.place
            );
            (self.sink)(&ScriptLine::warning(&text));
        }
    }

    /// Ends the subscription; `at_once`: without the events in the queue.
    fn end(&self, at_once: bool) {
        let mut queue = self.queue.lock();
        queue.ended = true;
        if at_once {
            queue.events.clear();
        }
        drop(queue);
        self.bell.notify_one();
    }

    /// Returns the next event; `None`: the subscription has ended.
    async fn next(&self) -> Option<Queued> {
        loop {
            {
                let mut queue = self.queue.lock();
                if let Some(event) = queue.events.pop_front() {
                    return Some(event);
                }
                queue.paused = false;
                if queue.ended {
                    return None;
                }
            }
            self.bell.notified().await;
        }
    }
}

impl Watcher for Subscription {
    fn changed(&self, change: Change) {
        let number = match change {
            Change::Added => 8,
            Change::Deleted => 9,
            Change::Set => 10,
            Change::Cleared => 11,
            Change::Committed => 12,
        };
        self.push(Queued { number, when: now(), server: None });
    }
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64
}

/// The subscriptions of a configuration's scripts.
#[derive(Default)]
pub(super) struct Subscriptions {
    any: AtomicBool,
    list: Mutex<Vec<Arc<Subscription>>>,
}

impl Subscriptions {
    /// Returns whether there was any.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Queues an event of a server.
    pub(super) fn event(&self, event: &ServerEvent) {
        let number = number_of(&event.detail);
        let queued = Queued { number, when: now(), server: Some(Arc::new(event.clone())) };
        for subscription in &*self.list.lock() {
            match subscription.of {
                Of::Servers => subscription.push(queued.clone()),
                Of::Server(life) if life == event.subject.life => {
                    subscription.push(queued.clone());
                    if matches!(event.detail, Detail::Deleted) {
                        subscription.end(false);
                    }
                }
                Of::Server(_) | Of::File => {}
            }
        }
    }

    fn remove(&self, number: u64) {
        self.list.lock().retain(|subscription| subscription.number != number);
    }
}

/// Adds the functions of the prelude to the table on top.
pub(super) unsafe fn set_native(lua: *mut lua_State) {
    const NATIVE: [(&CStr, lua_CFunction); 3] = [
        (c"event_kind", function!(event_kind)),
        (c"event_sub", function!(event_sub)),
        (c"event_unsub", function!(event_unsub)),
    ];
    // SAFETY: called inside a protected call, with a table on top.
    unsafe { set_functions(lua, &NATIVE) };
}

/// `event_kind(name)`: the bits of an event or a family; nil if it is unknown.
unsafe fn event_kind(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let name = check_bytes(lua, 1);
        let family = FAMILIES.iter().find(|(family, _)| *family == name).map(|(_, kinds)| *kinds);
        let own = || NAMES.iter().position(|known| known.to_bytes() == name).map(|at| 1 << at);
        match family.or_else(own) {
            Some(kinds) => ffi::lua_pushinteger(lua, kinds as i64),
            None => ffi::lua_pushnil(lua),
        }
        1
    }
}

/// `event_sub(kinds, handler [, life | file])`: subscribes; returns the subscription's number. While scripts are
/// loaded only the states of the first worker and the shared one subscribe; others return nothing.
unsafe fn event_sub(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; the subscription is made after the last call that may raise.
    unsafe {
        let kinds = ffi::luaL_checkinteger(lua, 1) as u64;
        ffi::luaL_checktype(lua, 2, ffi::LUA_TTABLE);
        if host(lua).phase != Phase::Run && host(lua).id > 1 {
            return 0;
        }
        if host(lua).shared.events.list.lock().len() >= SUBSCRIPTIONS_MAX {
            raise(lua, c"event_sub: too many subscriptions");
        }
        let (of, name) = match ffi::lua_type(lua, 3) {
            ffi::LUA_TNUMBER => (Of::Server(ffi::lua_tointegerx(lua, 3, std::ptr::null_mut()) as u64), None),
            ffi::LUA_TSTRING => (Of::File, Some(check_bytes(lua, 3))),
            _ => (Of::Servers, None),
        };
        ffi::lua_pushvalue(lua, 2);
        let handler = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        // The script's line: the prelude's function is between.
        ffi::luaL_where(lua, 2);
        let place = check_bytes(lua, -1);
        let place = place.strip_suffix(b": ").unwrap_or(place);
        ffi::lua_pushinteger(lua, subscribe(host(lua), of, kinds, handler, place, name));
        1
    }
}

fn subscribe(host: &mut Host, of: Of, kinds: u64, handler: c_int, place: &[u8], file: Option<&[u8]>) -> i64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let subscription = Arc::new(Subscription {
        number,
        of,
        kinds,
        handler,
        place: String::from_utf8_lossy(place).into_owned(),
        sink: host.shared.sink.clone(),
        queue: Mutex::default(),
        bell: Notify::new(),
    });
    let file = file.and_then(|name| host.shared.patterns.files.get(std::str::from_utf8(name).ok()?));
    if let Some(file) = file {
        let watcher: Arc<dyn Watcher> = subscription.clone();
        file.watch(Arc::downgrade(&watcher));
    }
    let events = &host.shared.events;
    events.list.lock().push(subscription.clone());
    events.any.store(true, Ordering::Release);
    host.subscriptions.push(subscription);
    number as i64
}

/// `event_unsub(number)`.
unsafe fn event_unsub(lua: *mut lua_State) -> c_int {
    // SAFETY: nothing of Lua's is called after the argument was read.
    unsafe {
        let number = ffi::luaL_checkinteger(lua, 1) as u64;
        let found = host(lua).shared.events.list.lock().iter().find(|one| one.number == number).cloned();
        if let Some(subscription) = found {
            subscription.end(true);
        }
        0
    }
}

/// Calls the function of a subscription for one event after the other, until it ends.
pub(super) async fn run_subscription(inner: Rc<Inner>, cell: Arc<StateCell>, subscription: Arc<Subscription>) {
    let events = inner.states.shared.clone();
    while let Some(event) = subscription.next().await {
        let call = {
            let mut state = cell.lock.lock().await;
            let host = state.host::<Host>();
            host.values = values(&event);
            // SAFETY: what the call needs is parked in the host, and nothing else is alive while Lua is called.
            let called = unsafe { pin_call(&mut state, subscription.handler, &event) };
            state.host::<Host>().values.clear();
            called
        };
        match call {
            Ok(task) => run_event(inner.clone(), cell.clone(), task).await,
            Err(message) => (subscription.sink)(&ScriptLine::failure(None, &format!("Lua event_hdl: {message}."))),
        }
    }
    events.events.remove(subscription.number);
    let mut state = cell.lock.lock().await;
    // SAFETY: a reference of this state that nobody uses any more; freeing one does not raise.
    let _ = unsafe {
        let handler = subscription.handler;
        state.protect(move |lua| ffi::luaL_unref(lua, ffi::LUA_REGISTRYINDEX, handler))
    };
}

/// Pins a call of the prelude's dispatcher with an event, as a task is.
unsafe fn pin_call(state: &mut State, handler: c_int, event: &Queued) -> Result<TaskReference, String> {
    let (number, when) = (event.number, event.when);
    let server = event.server.as_ref().map(|event| (event.subject.proxy as i64, event.subject.life as i64));
    let mut reference = ffi::LUA_NOREF;
    let to = &raw mut reference;
    // SAFETY: the closure captures plain numbers.
    let made = unsafe {
        state.protect(move |lua| {
            ffi::lua_createtable(lua, 7, 1);
            ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::DISPATCH).cast());
            ffi::lua_rawseti(lua, -2, 1);
            ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, handler.into());
            ffi::lua_rawseti(lua, -2, 2);
            ffi::lua_pushstring(lua, NAMES[number].as_ptr());
            ffi::lua_rawseti(lua, -2, 3);
            ffi::lua_pushinteger(lua, when);
            ffi::lua_rawseti(lua, -2, 4);
            if let Some((proxy, life)) = server {
                ffi::lua_createtable(lua, 0, 8);
                while let Some((name, value)) = host(lua).values.pop() {
                    push_text(lua, name.as_bytes().to_vec());
                    push_value(lua, Some(value));
                    ffi::lua_rawset(lua, -3);
                }
                ffi::lua_rawseti(lua, -2, 5);
                ffi::lua_pushinteger(lua, proxy);
                ffi::lua_rawseti(lua, -2, 6);
                ffi::lua_pushinteger(lua, life);
                ffi::lua_rawseti(lua, -2, 7);
            }
            ffi::lua_pushinteger(lua, 7);
            ffi::lua_setfield(lua, -2, c"n".as_ptr());
            *to = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        })
    };
    made.map(|()| TaskReference(reference)).map_err(|error| error.to_string())
}

type Values = Vec<(&'static str, Value)>;

/// Returns the data of an event by their dotted names.
fn values(event: &Queued) -> Values {
    let Some(event) = &event.server else { return Vec::new() };
    let subject = &event.subject;
    let mut values = vec![
        ("name", Value::Text(subject.name.to_string())),
        ("puid", Value::Int(subject.puid.into())),
        ("rid", Value::Int(subject.rid.into())),
        ("proxy_name", Value::Text(subject.proxy_name.to_string())),
        ("proxy_uuid", Value::Int(subject.proxy_uuid.into())),
    ];
    match &event.detail {
        Detail::Added | Detail::Deleted | Detail::Up | Detail::Down | Detail::Address => {}
        Detail::State { admin, cause, old, new, requeued } => {
            let text = match cause {
                Cause::Check(facts) => {
                    check_values(facts, &mut values, STATE_CHECK);
                    ""
                }
                Cause::Text(text) => text,
            };
            values.extend([
                ("state.admin", Value::Bool(*admin)),
                ("state.cause", Value::Text(text.to_owned())),
                ("state.old_state", Value::Text(old.name().to_owned())),
                ("state.new_state", Value::Text(new.name().to_owned())),
                ("state.requeued", Value::Int((*requeued).into())),
            ]);
        }
        Detail::Admin { cause, old, new, requeued } => {
            values.extend([
                ("admin.cause", Value::Text(cause.clone())),
                ("admin.requeued", Value::Int((*requeued).into())),
            ]);
            for (names, flags) in [(OLD_ADMIN, old), (NEW_ADMIN, new)] {
                values.extend(names.into_iter().zip(matrix(flags)).map(|(name, set)| (name, Value::Bool(set))));
            }
        }
        Detail::Check(facts) => check_values(facts, &mut values, CHECK),
    }
    values
}

const CHECK: [&str; 9] = [
    "check.agent",
    "check.result",
    "check.duration",
    "check.reason.short",
    "check.reason.desc",
    "check.reason.code",
    "check.health.cur",
    "check.health.rise",
    "check.health.fall",
];
const STATE_CHECK: [&str; 9] = [
    "state.check.agent",
    "state.check.result",
    "state.check.duration",
    "state.check.reason.short",
    "state.check.reason.desc",
    "state.check.reason.code",
    "state.check.health.cur",
    "state.check.health.rise",
    "state.check.health.fall",
];

fn check_values(facts: &CheckFacts, values: &mut Values, names: [&'static str; 9]) {
    let [agent, result, duration, short, desc, code, cur, rise, fall] = names;
    let health = &facts.health;
    values.extend([
        (agent, Value::Bool(facts.agent)),
        (duration, Value::Int(facts.duration_ms)),
        (short, Value::Text(facts.status.name().to_owned())),
        (desc, Value::Text(facts.status.description().to_owned())),
        (cur, Value::Int(health.level.into())),
        (rise, Value::Int(health.rise.into())),
        (fall, Value::Int(health.fall.into())),
    ]);
    values.extend(facts.result().map(|text| (result, Value::Text(text.to_owned()))));
    if facts.status.has_code() {
        values.push((code, Value::Int(facts.code.into())));
    }
}

const OLD_ADMIN: [&str; 8] = [
    "admin.old_admin.MAINT",
    "admin.old_admin.FMAINT",
    "admin.old_admin.IMAINT",
    "admin.old_admin.RMAINT",
    "admin.old_admin.CMAINT",
    "admin.old_admin.DRAIN",
    "admin.old_admin.FDRAIN",
    "admin.old_admin.IDRAIN",
];
const NEW_ADMIN: [&str; 8] = [
    "admin.new_admin.MAINT",
    "admin.new_admin.FMAINT",
    "admin.new_admin.IMAINT",
    "admin.new_admin.RMAINT",
    "admin.new_admin.CMAINT",
    "admin.new_admin.DRAIN",
    "admin.new_admin.FDRAIN",
    "admin.new_admin.IDRAIN",
];

fn matrix(flags: &AdminFlags) -> [bool; 8] {
    [
        flags.maintenance(),
        flags.forced_maintenance,
        flags.inherited_maintenance,
        flags.unresolved,
        flags.configured,
        flags.forced_drain || flags.inherited_drain,
        flags.forced_drain,
        flags.inherited_drain,
    ]
}
