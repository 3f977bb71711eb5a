//! The tables `core` and `act`.

use std::ffi::{CStr, c_int};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluicegate_script::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use sluicegate_script::{check_bytes, continuation, function, push_bytes, raise, to_bytes};

use super::filter::register_filter;
use super::host::{Host, Phase, RegisteredAs, Registration, TaskReference, host, raise_text, set_functions, wait_for};
use super::operation::Operation;
use super::{LineKind, ScriptLine};
use crate::stream::ScriptHook;

/// Severities by HAProxy's names; `core.silent` is -1 and logs nothing.
const SEVERITIES: [(&CStr, i64); 9] = [
    (c"silent", -1),
    (c"emerg", 0),
    (c"alert", 1),
    (c"crit", 2),
    (c"err", 3),
    (c"warning", 4),
    (c"notice", 5),
    (c"info", 6),
    (c"debug", 7),
];

/// The return codes of an action.
const ACT: [(&CStr, i64); 8] = [
    (c"CONTINUE", 0),
    (c"STOP", 1),
    (c"YIELD", 2),
    (c"ERROR", 3),
    (c"DONE", 4),
    (c"DENY", 5),
    (c"ABORT", 6),
    (c"INVALID", 7),
];

/// Creates both tables; `id` is the id of the state, `core.thread`.
pub(super) unsafe fn open(lua: *mut lua_State, id: usize) {
    const FUNCTIONS: [(&CStr, lua_CFunction); 19] = [
        (c"register_cli", function!(register_cli)),
        (c"register_service", function!(register_service)),
        (c"register_fetches", function!(register_fetches)),
        (c"register_converters", function!(register_converters)),
        (c"register_action", function!(register_action)),
        (c"register_filter", function!(register_filter)),
        (c"register_init", function!(register_init)),
        (c"register_task", function!(register_task)),
        (c"msleep", function!(msleep)),
        (c"sleep", function!(sleep)),
        (c"yield", function!(r#yield)),
        (c"now", function!(now)),
        (c"log", function!(log)),
        (c"Debug", function!(debug)),
        (c"Info", function!(info)),
        (c"Warning", function!(warning)),
        (c"Alert", function!(alert)),
        (c"done", function!(done)),
        (c"tokenize", function!(tokenize)),
    ];
    // SAFETY: called inside a protected call; nothing is held.
    unsafe {
        ffi::lua_createtable(lua, 0, 40);
        set_functions(lua, &FUNCTIONS);
        for (name, level) in SEVERITIES {
            ffi::lua_pushinteger(lua, level);
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
        ffi::lua_pushinteger(lua, id as i64);
        ffi::lua_setfield(lua, -2, c"thread".as_ptr());
        ffi::lua_setglobal(lua, c"core".as_ptr());
        ffi::lua_createtable(lua, 0, 8);
        for (name, value) in ACT {
            ffi::lua_pushinteger(lua, value);
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
        set_functions(lua, &[(c"wake_time", function!(act_wake_time))]);
        ffi::lua_setglobal(lua, c"act".as_ptr());
    }
}

/// `act.wake_time(milliseconds)`: sets the time after which an action that returns `act.YIELD` is called again. As in
/// HAProxy, it counts only in the burst in which the action returns.
unsafe fn act_wake_time(lua: *mut lua_State) -> c_int {
    // SAFETY: nothing is held.
    unsafe {
        let milliseconds = ffi::luaL_checkinteger(lua, 1).max(0) as u64;
        host(lua).current.wake = Some(Duration::from_millis(milliseconds));
        0
    }
}

unsafe fn register_action(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; the name is owned only after the last call that may raise.
    unsafe {
        let top = ffi::lua_gettop(lua);
        if !(3..=4).contains(&top) {
            raise(lua, c"'register_action' needs between 3 and 4 arguments");
        }
        let args = ffi::luaL_optinteger(lua, 4, 0);
        if args < 0 {
            raise(lua, c"register_action: the number of arguments can't be negative");
        }
        if host(lua).phase != Phase::Body {
            raise(lua, c"register_action: not available outside of body context");
        }
        let name = check_bytes(lua, 1);
        ffi::luaL_checktype(lua, 2, ffi::LUA_TTABLE);
        ffi::luaL_checktype(lua, 3, ffi::LUA_TFUNCTION);
        let mut hooks = [None; ScriptHook::ALL.len()];
        ffi::lua_pushnil(lua);
        while ffi::lua_next(lua, 2) != 0 {
            let hook = to_bytes(lua, -1);
            match hook.and_then(ScriptHook::by_name) {
                Some(hook) => hooks[hook as usize] = Some(hook),
                None => {
                    let name = String::from_utf8_lossy(hook.unwrap_or(b"?")).into_owned();
                    let expected = "'tcp-req', 'tcp-res', 'http-req', 'http-res' or 'http-after-res' are expected.";
                    raise_text(lua, format!("Lua action environment '{name}' is unknown. {expected}"))
                }
            }
            ffi::lua_settop(lua, -2);
        }
        if std::str::from_utf8(name).is_err() {
            raise(lua, c"register_action: the name is not UTF-8");
        }
        ffi::lua_pushvalue(lua, 3);
        let reference = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        let name = String::from_utf8_lossy(name).into_owned();
        for hook in hooks.into_iter().flatten() {
            let kind = RegisteredAs::Action(hook);
            register(host(lua), Registration { args: args as usize, ..Registration::new(kind, &name, reference) });
        }
        0
    }
}

/// Stores a registration; actions are registered per rule set. A second registration of the same name and kind replaces
/// the first one with a warning.
pub(super) fn register(host: &mut Host, new: Registration) {
    let what = match new.kind {
        RegisteredAs::Action(_) => "action",
        RegisteredAs::Fetch => "sample-fetch",
        RegisteredAs::Converter => "converter",
        RegisteredAs::HttpService | RegisteredAs::TcpService => "service",
        RegisteredAs::Filter => "filter",
        RegisteredAs::Cli => "command",
    };
    match host.registrations.iter_mut().find(|old| old.kind == new.kind && old.name == new.name) {
        Some(old) => {
            let text = format!("Trying to register {what} 'lua.{}' more than once. The last one counts.", new.name);
            (host.shared.sink)(&ScriptLine::warning(&text));
            *old = new;
        }
        None => host.registrations.push(new),
    }
}

unsafe fn register_fetches(lua: *mut lua_State) -> c_int {
    // SAFETY: as `register_function`.
    unsafe {
        register_function(
            lua,
            RegisteredAs::Fetch,
            c"'register_fetches' needs 2 arguments",
            c"register_fetches: not available outside of body context",
        )
    }
}

unsafe fn register_converters(lua: *mut lua_State) -> c_int {
    // SAFETY: as `register_function`.
    unsafe {
        register_function(
            lua,
            RegisteredAs::Converter,
            c"'register_converters' needs 2 arguments",
            c"register_converters: not available outside of body context",
        )
    }
}

/// The maximum number of words of a command.
const CLI_WORDS: i64 = 5;

/// `core.register_cli(words, usage, function)`.
unsafe fn register_cli(lua: *mut lua_State) -> c_int {
    // SAFETY: as `register_function`; the words are gathered in the host.
    unsafe {
        if ffi::lua_gettop(lua) != 3 {
            raise(lua, c"'register_cli' needs 3 arguments");
        }
        if host(lua).phase != Phase::Body {
            raise(lua, c"register_cli: not available outside of body context");
        }
        if ffi::lua_type(lua, 1) != ffi::LUA_TTABLE {
            ffi::luaL_argerror(lua, 1, c"1st argument must be a table".as_ptr());
        }
        check_bytes(lua, 2);
        ffi::luaL_checktype(lua, 3, ffi::LUA_TFUNCTION);
        host(lua).text.clear();
        let count = ffi::lua_rawlen(lua, 1) as i64;
        if count > CLI_WORDS {
            ffi::luaL_argerror(lua, 1, c"1st argument must be a table with a maximum of 5 entries".as_ptr());
        }
        for index in 1..=count {
            if ffi::lua_rawgeti(lua, 1, index) != ffi::LUA_TSTRING {
                ffi::luaL_argerror(lua, 1, c"1st argument must be a table filled with strings".as_ptr());
            }
            let word = check_bytes(lua, -1);
            if word.is_empty() || word.iter().any(|byte| !byte.is_ascii_graphic()) {
                raise(lua, c"register_cli: a word without blanks is expected");
            }
            let text = &mut host(lua).text;
            if !text.is_empty() {
                text.push(b' ');
            }
            text.extend_from_slice(word);
            ffi::lua_settop(lua, 3);
        }
        if count == 0 {
            raise(lua, c"register_cli: the command has no words");
        }
        push_bytes(lua, &host(lua).text);
        ffi::lua_pushvalue(lua, 3);
        let reference = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        let text = |index| String::from_utf8_lossy(check_bytes(lua, index));
        let new = Registration::new(RegisteredAs::Cli, &text(4), reference);
        register(host(lua), Registration { usage: text(2).into_owned(), ..new });
        0
    }
}

/// `core.register_service(name, mode, function)`.
unsafe fn register_service(lua: *mut lua_State) -> c_int {
    // SAFETY: as `register_function`.
    unsafe {
        if ffi::lua_gettop(lua) != 3 {
            raise(lua, c"'register_service' needs 3 arguments");
        }
        if host(lua).phase != Phase::Body {
            raise(lua, c"register_service: not available outside of body context");
        }
        let name = check_name(lua, 1);
        let kind = match check_bytes(lua, 2) {
            b"http" => RegisteredAs::HttpService,
            b"tcp" => RegisteredAs::TcpService,
            other => {
                let other = String::from_utf8_lossy(other).into_owned();
                raise_text(lua, format!("Lua service environment '{other}' is unknown. 'tcp' or 'http' are expected."))
            }
        };
        ffi::luaL_checktype(lua, 3, ffi::LUA_TFUNCTION);
        ffi::lua_pushvalue(lua, 3);
        let reference = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        register(host(lua), Registration::new(kind, name, reference));
        0
    }
}

/// `register_…(name, function)`.
unsafe fn register_function(lua: *mut lua_State, kind: RegisteredAs, count: &CStr, phase: &CStr) -> c_int {
    // SAFETY: a C function's usual stack; the name is owned only after the last call that may raise.
    unsafe {
        if ffi::lua_gettop(lua) != 2 {
            raise(lua, count);
        }
        if host(lua).phase != Phase::Body {
            raise(lua, phase);
        }
        let name = check_name(lua, 1);
        ffi::luaL_checktype(lua, 2, ffi::LUA_TFUNCTION);
        ffi::lua_pushvalue(lua, 2);
        let reference = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        register(host(lua), Registration::new(kind, name, reference));
        0
    }
}

/// Returns argument `index` as a name that can occur in a configuration.
pub(super) unsafe fn check_name<'a>(lua: *mut lua_State, index: c_int) -> &'a str {
    // SAFETY: the string stays on the stack.
    unsafe {
        match std::str::from_utf8(check_bytes(lua, index)) {
            Ok(name) => name,
            Err(_) => raise(lua, c"the name is not UTF-8"),
        }
    }
}

unsafe fn register_init(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        if ffi::lua_gettop(lua) != 1 {
            raise(lua, c"'register_init' needs 1 arguments");
        }
        if host(lua).phase != Phase::Body {
            raise(lua, c"register_init: not available outside of body context");
        }
        ffi::luaL_checktype(lua, 1, ffi::LUA_TFUNCTION);
        let reference = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        host(lua).inits.push(reference);
        0
    }
}

unsafe fn register_task(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; function and arguments are pinned as one table.
    unsafe {
        let top = ffi::lua_gettop(lua);
        if !(1..=5).contains(&top) {
            raise(lua, c"'register_task' needs between 1 and 5 arguments");
        }
        ffi::luaL_checktype(lua, 1, ffi::LUA_TFUNCTION);
        ffi::lua_createtable(lua, top, 1);
        for index in 1..=top {
            ffi::lua_pushvalue(lua, index);
            ffi::lua_rawseti(lua, -2, index.into());
        }
        ffi::lua_pushinteger(lua, top.into());
        ffi::lua_setfield(lua, -2, c"n".as_ptr());
        let reference = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        host(lua).tasks.push(TaskReference(reference));
        0
    }
}

/// Waits for an operation that has no result. Before traffic nothing waits, as in HAProxy.
unsafe fn pause(lua: *mut lua_State, operation: Operation) -> c_int {
    // SAFETY: the operation is owned by the host before anything can raise.
    unsafe {
        match host(lua).phase {
            Phase::Body | Phase::Init => 0,
            Phase::Run => wait_for(lua, operation, 0, continuation!(paused)),
        }
    }
}

unsafe fn paused(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: dropping the outcome calls nothing of Lua's.
    unsafe { host(lua).outcome = None };
    0
}

unsafe fn msleep(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let milliseconds = ffi::luaL_checkinteger(lua, 1).max(0) as u64;
        pause(lua, Operation::Sleep(Duration::from_millis(milliseconds)))
    }
}

unsafe fn sleep(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let seconds = ffi::luaL_checkinteger(lua, 1).max(0) as u64;
        pause(lua, Operation::Sleep(Duration::from_secs(seconds)))
    }
}

unsafe fn r#yield(lua: *mut lua_State) -> c_int {
    // SAFETY: as `pause`.
    unsafe { pause(lua, Operation::Yield) }
}

unsafe fn now(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ffi::lua_createtable(lua, 0, 2);
        ffi::lua_pushinteger(lua, now.as_secs() as i64);
        ffi::lua_setfield(lua, -2, c"sec".as_ptr());
        ffi::lua_pushinteger(lua, i64::from(now.subsec_micros()));
        ffi::lua_setfield(lua, -2, c"usec".as_ptr());
        1
    }
}

/// Returns argument `index` as a severity; raises an error for anything else.
pub(super) unsafe fn check_level(lua: *mut lua_State, index: c_int) -> i64 {
    // SAFETY: a C function's usual stack.
    unsafe {
        let level = ffi::luaL_checkinteger(lua, index);
        if !SEVERITIES.iter().any(|(_, known)| *known == level) {
            ffi::luaL_argerror(lua, index, c"Invalid loglevel.".as_ptr());
        }
        level
    }
}

/// Logs argument `index` with `level`; unprintable characters become dots. The message goes where the stream's proxy logs
/// if it is `of_stream`.
pub(super) unsafe fn log_argument(lua: *mut lua_State, level: i64, index: c_int, of_stream: bool) -> c_int {
    // SAFETY: a C function's usual stack; the sink doesn't call Lua.
    unsafe {
        let text = check_bytes(lua, index);
        if let Ok(level) = u8::try_from(level)
            && level <= 7
        {
            let line: Vec<u8> = text.iter().map(|byte| if byte.is_ascii_control() { b'.' } else { *byte }).collect();
            let host = host(lua);
            let proxy = host.current.readable.as_ref().filter(|_| of_stream).map(|cx| &*cx.proxy().config);
            let text = String::from_utf8_lossy(&line);
            (host.shared.sink)(&ScriptLine { proxy, level, text: &text, kind: LineKind::Own });
        }
    }
    0
}

unsafe fn log(lua: *mut lua_State) -> c_int {
    // SAFETY: as `log_argument`.
    unsafe { log_argument(lua, check_level(lua, 1), 2, false) }
}

unsafe fn debug(lua: *mut lua_State) -> c_int {
    // SAFETY: as `log_argument`.
    unsafe { log_argument(lua, 7, 1, false) }
}

unsafe fn info(lua: *mut lua_State) -> c_int {
    // SAFETY: as `log_argument`.
    unsafe { log_argument(lua, 6, 1, false) }
}

unsafe fn warning(lua: *mut lua_State) -> c_int {
    // SAFETY: as `log_argument`.
    unsafe { log_argument(lua, 4, 1, false) }
}

unsafe fn alert(lua: *mut lua_State) -> c_int {
    // SAFETY: as `log_argument`.
    unsafe { log_argument(lua, 1, 1, false) }
}

/// `core.done`: raises an error that ends the script and counts as its normal end; the stream continues.
unsafe fn done(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe { end_script(lua, false) }
}

/// Ends the running script and, for `txn:done`, its stream.
pub(super) unsafe fn end_script(lua: *mut lua_State, stream: bool) -> ! {
    // SAFETY: as `done`.
    unsafe {
        let current = &mut host(lua).current;
        current.done = true;
        current.stream_done |= stream;
        ffi::lua_pushstring(lua, c"done".as_ptr());
        ffi::lua_error(lua)
    }
}

/// `core.tokenize(text, separators [, noblank])`: returns the parts between any of the separators.
unsafe fn tokenize(lua: *mut lua_State) -> c_int {
    // SAFETY: the strings stay on the stack.
    unsafe {
        let text = check_bytes(lua, 1);
        let separators = check_bytes(lua, 2);
        let noblank = ffi::lua_toboolean(lua, 3) != 0;
        ffi::lua_createtable(lua, 8, 0);
        let mut count = 0;
        for part in text.split(|byte| separators.contains(byte)) {
            if noblank && part.is_empty() {
                continue;
            }
            count += 1;
            push_bytes(lua, part);
            ffi::lua_rawseti(lua, -2, count);
        }
        1
    }
}
