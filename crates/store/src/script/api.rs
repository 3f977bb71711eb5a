//! Functions called by scripts: the table `redis`, also available as `server`.
//!
//! A command's words are read from Lua's stack without copying, the command is executed, and its encoded reply is
//! converted to a value: nothing with a destructor is alive where Lua may raise. A command that must wait makes the
//! script yield with the words still on its stack; the same function continues from there.

use std::ffi::{CStr, c_int};

use sluicegate_script::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use sluicegate_script::{continuation, function, push_bytes, to_bytes};
use sluicegate_wire::resp::Protocol;

use super::active::{Ran, Waits};
use super::convert::{push_reply, up_to_zero};
use super::counts::Came;
use super::dragonfly;
use super::interpreter::{Host, Name, host_of};
use super::registry::sha_of;
use crate::catalogue::Numbered;

/// The maximum number of digits of a number among a command's words.
const DIGITS_MAX: usize = 32;

/// The variants of calling a command.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(isize)]
enum How {
    /// An error is raised.
    Call = 0,
    /// An error is a value.
    Pcall,
    /// As `Call`; the reply is discarded.
    Acall,
    /// As `Pcall`; the reply is discarded.
    Apcall,
    /// As `Pcall`; returns a hash of the reply, seeded with the first argument. The words follow the second.
    Hash,
}

impl How {
    fn of(context: lua_KContext) -> How {
        match context {
            0 => How::Call,
            1 => How::Pcall,
            2 => How::Acall,
            3 => How::Apcall,
            _ => How::Hash,
        }
    }

    /// Returns the number of arguments before the words.
    fn before(self) -> c_int {
        if self == How::Hash { 2 } else { 0 }
    }

    fn raises(self) -> bool {
        matches!(self, How::Call | How::Acall)
    }

    fn wants_reply(self) -> bool {
        matches!(self, How::Call | How::Pcall | How::Hash)
    }
}

/// Functions available to functions of libraries.
pub(super) const OF_FUNCTIONS: &[(&CStr, lua_CFunction)] = &[
    (c"call", function!(call)),
    (c"pcall", function!(pcall)),
    (c"acall", function!(acall)),
    (c"apcall", function!(apcall)),
    (c"sha1hex", function!(sha1hex)),
    (c"error_reply", function!(error_reply)),
    (c"status_reply", function!(status_reply)),
    (c"setresp", function!(setresp)),
    (c"set_repl", function!(set_repl)),
    (c"log", function!(log)),
    (c"acl_check_cmd", function!(acl_check_cmd)),
];

/// Functions available only to scripts.
const OF_SCRIPTS: &[(&CStr, lua_CFunction)] = &[
    (c"replicate_commands", function!(replicate_commands)),
    (c"breakpoint", function!(breakpoint)),
    (c"debug", function!(debug)),
];

const NUMBERS: &[(&CStr, i64)] = &[
    (c"LOG_DEBUG", 0),
    (c"LOG_VERBOSE", 1),
    (c"LOG_NOTICE", 2),
    (c"LOG_WARNING", 3),
    (c"REPL_NONE", 0),
    (c"REPL_AOF", 1),
    (c"REPL_SLAVE", 2),
    (c"REPL_REPLICA", 2),
    (c"REPL_ALL", 3),
    (c"REDIS_VERSION_NUM", 0x0007_0205),
];

/// Adds the tables to the globals.
///
/// # Safety
/// Called inside a protected call, with the main thread of a sandboxed state.
pub(crate) unsafe fn open(lua: *mut lua_State) {
    // SAFETY: as promised by the caller; constants and functions are pushed and set.
    unsafe {
        push_table(lua, OF_FUNCTIONS, |_| true);
        set_functions(lua, OF_SCRIPTS);
        sluicegate_script::seal(lua);
        sluicegate_script::push_globals(lua);
        dragonfly::push_table(lua);
        ffi::lua_pushstring(lua, c"dragonfly".as_ptr());
        ffi::lua_insert(lua, -2);
        ffi::lua_rawset(lua, -3);
        for name in [c"redis", c"server"] {
            ffi::lua_pushstring(lua, name.as_ptr());
            ffi::lua_pushvalue(lua, -3);
            ffi::lua_rawset(lua, -3);
        }
        ffi::lua_settop(lua, -3);
    }
}

/// Pushes a table with these functions and the requested constants. May raise.
///
/// # Safety
/// Called inside a protected call.
pub(super) unsafe fn push_table(
    lua: *mut lua_State,
    functions: &[(&CStr, lua_CFunction)],
    wants: impl Fn(&str) -> bool,
) {
    // SAFETY: as promised by the caller; constants and functions are pushed and set.
    unsafe {
        ffi::lua_createtable(lua, 0, (functions.len() + NUMBERS.len() + 1) as c_int);
        set_functions(lua, functions);
        for (name, number) in NUMBERS.iter().filter(|(name, _)| wants(name.to_str().unwrap_or_default())) {
            ffi::lua_pushinteger(lua, *number);
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
        push_bytes(lua, crate::redis::REDIS_VERSION.as_bytes());
        ffi::lua_setfield(lua, -2, c"REDIS_VERSION".as_ptr());
    }
}

pub(super) unsafe fn set_functions(lua: *mut lua_State, functions: &[(&CStr, lua_CFunction)]) {
    // SAFETY: as `push_table`.
    unsafe {
        for (name, function) in functions {
            ffi::lua_pushcfunction(lua, *function);
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
    }
}

unsafe fn call(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua's promise to a C function, handed on; so in the next three.
    unsafe { command(lua, How::Call) }
}

unsafe fn pcall(lua: *mut lua_State) -> c_int {
    // SAFETY: as `call`.
    unsafe { command(lua, How::Pcall) }
}

unsafe fn acall(lua: *mut lua_State) -> c_int {
    // SAFETY: as `call`.
    unsafe { command(lua, How::Acall) }
}

unsafe fn apcall(lua: *mut lua_State) -> c_int {
    // SAFETY: as `call`.
    unsafe { command(lua, How::Apcall) }
}

/// Runs the command whose words are the arguments.
unsafe fn command(lua: *mut lua_State, how: How) -> c_int {
    // SAFETY: the words stay on the stack while they are used; nothing with a destructor is alive where Lua may raise:
    // borrowed data belongs to the host.
    unsafe {
        let host = host_of(lua);
        if host.active.is_none() {
            return failed(lua, how, c"redis.call/pcall can only be called inside a script invocation");
        }
        let count = ffi::lua_gettop(lua);
        if count <= how.before() {
            return failed(lua, how, c"Please specify at least one argument for this redis lib call");
        }
        if !words(lua, host, how.before() + 1, count) {
            return failed(lua, how, c"Lua redis lib command arguments must be strings or integers");
        }
        let name = host.words[0];
        let row = host.find(name);
        let Host { active: Some(active), reply, words, .. } = host else { return 0 };
        reply.clear();
        let may_leave = !active.is_patient && sluicegate_script::can_wait(lua);
        if active.is_patient {
            sluicegate_script::poll_turn();
        } else if leaves_spare(lua, host_of(lua)) {
            return wait(lua, host_of(lua), how);
        }
        let watch = active.watch(row, words.len());
        let ran = active.execute(row, words, how.wants_reply(), may_leave, reply);
        if let Some(watch) = watch {
            active.tell(watch, &ran, words);
        }
        match ran {
            Ran::Replied => answer(lua, host_of(lua), how),
            Ran::RepliedMuch => {
                active.waits = Waits::Away(std::mem::take(reply));
                wait(lua, host_of(lua), how)
            }
            Ran::Rejected => {
                if active.row != u16::MAX {
                    host.counts.add(active.row, Came::Rejected);
                }
                give(lua, host_of(lua), how)
            }
            Ran::Waits => wait(lua, host_of(lua), how),
        }
    }
}

/// Reads the words of a command from the arguments `first` to `last`. Returns false if an argument is not a valid word.
pub(super) unsafe fn words(lua: *mut lua_State, host: &mut Host, first: c_int, last: c_int) -> bool {
    // SAFETY: the stored pointers are to strings on the stack, and into a buffer that has room for all numbers. There
    // is room for the words, and all are written before they are counted.
    unsafe {
        host.words.clear();
        host.digits.clear();
        let count = last + 1 - first;
        host.words.reserve(count as usize);
        let place = host.words.as_mut_ptr();
        for index in first..last + 1 {
            let word: &'static [u8] = match ffi::lua_type(lua, index) {
                ffi::LUA_TSTRING => {
                    let mut len = 0;
                    let bytes = ffi::lua_tolstring(lua, index, &mut len);
                    std::slice::from_raw_parts(bytes.cast(), len)
                }
                ffi::LUA_TNUMBER => number(lua, index, &mut host.digits, count),
                _ => return false,
            };
            place.add((index - first) as usize).write(word);
        }
        host.words.set_len(count as usize);
        true
    }
}

/// Writes a double as Lua prints it: `%.14g`.
pub(super) fn write_number(out: &mut Vec<u8>, value: f64) {
    write_as(out, c"%.14g", value);
}

/// Returns a number among `count` arguments as a word, which is kept in `digits`.
unsafe fn number(lua: *mut lua_State, index: c_int, digits: &mut Vec<u8>, count: c_int) -> &'static [u8] {
    /// Numbers below a hundred, the most frequent ones, with two digits each.
    static DIGITS: [[u8; 2]; 100] = {
        let mut digits = [[0; 2]; 100];
        let mut number = 0;
        while number < 100 {
            digits[number] = [b'0' + number as u8 / 10, b'0' + number as u8 % 10];
            number += 1;
        }
        digits
    };
    // SAFETY: the buffer gets room for all arguments before the first one, so it stays where it is.
    unsafe {
        let integer = ffi::lua_tointegerx(lua, index, std::ptr::null_mut());
        // A double with such a value has the same text; one without an integer is read as 0, and so is -0.
        let is_integer = matches!(integer, 1..=99) || ffi::lua_isinteger(lua, index) != 0;
        if let (place @ 0..=99, true) = (integer, is_integer) {
            return &DIGITS[place as usize][usize::from(place < 10)..];
        }
        digits.reserve(DIGITS_MAX * count as usize - digits.len());
        let start = digits.len();
        if is_integer {
            digits.extend_from_slice(itoa::Buffer::new().format(integer).as_bytes());
        } else {
            write_double(digits, ffi::lua_tonumber(lua, index));
        }
        std::slice::from_raw_parts(digits.as_ptr().add(start), digits.len() - start)
    }
}

/// Writes a double as Redis 7.0 converts it to a word: `%.17g`.
fn write_double(out: &mut Vec<u8>, value: f64) {
    write_as(out, c"%.17g", value);
}

fn write_as(out: &mut Vec<u8>, format: &CStr, value: f64) {
    let mut text = [0u8; DIGITS_MAX];
    // SAFETY: the buffer's length is given, and the format is one of a double.
    let len = unsafe { libc::snprintf(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), value) };
    out.extend_from_slice(&text[..usize::try_from(len).unwrap_or(0).min(DIGITS_MAX - 1)]);
}

/// Counts a command that ran, and passes its reply to the script.
unsafe fn answer(lua: *mut lua_State, host: &mut Host, how: How) -> c_int {
    // SAFETY: as `give`.
    unsafe {
        if let Some(active) = &host.active {
            let failed = host.reply.first() == Some(&b'-');
            host.counts.add(active.row, if failed { Came::Failed } else { Came::Well });
        }
        if host.reply.is_empty() && !how.wants_reply() { 0 } else { give(lua, host, how) }
    }
}

/// Passes the reply to the script, and counts each error that a command replied.
unsafe fn give(lua: *mut lua_State, host: &mut Host, how: How) -> c_int {
    // SAFETY: the reply was just encoded, and belongs to the host.
    unsafe {
        let is_error = if let Some((b'-', line)) = host.reply.split_first() {
            host.counts.error(line, 1);
            true
        } else {
            false
        };
        if how == How::Hash {
            return dragonfly::push_hash(lua, host);
        }
        if !(how.wants_reply() || is_error && how.raises()) {
            return 0;
        }
        push_reply(lua, host, &host.reply, &mut 0);
        if is_error && how.raises() {
            ffi::lua_error(lua);
        }
        1
    }
}

/// Lets the script yield for a wait, if it can here.
unsafe fn wait(lua: *mut lua_State, host: &mut Host, how: How) -> c_int {
    // SAFETY: nothing with a destructor is alive; the host keeps the pending operation.
    unsafe {
        let Some(active) = &mut host.active else { return 0 };
        if sluicegate_script::can_wait(lua) {
            return sluicegate_script::wait(lua, how as lua_KContext, continuation!(go_on));
        }
        active.waits = Waits::Nothing;
        failed(lua, how, c"BUSY a command cannot wait here: call it outside of a metamethod")
    }
}

/// Continues a command after a wait.
unsafe fn go_on(lua: *mut lua_State, _: c_int, context: lua_KContext) -> c_int {
    // SAFETY: the words are still on the stack.
    unsafe {
        let how = How::of(context);
        let host = host_of(lua);
        let Some(active) = &mut host.active else { return 0 };
        match std::mem::replace(&mut active.waits, Waits::Nothing) {
            Waits::Reply(reply) => host.reply = reply,
            Waits::Refused(text) => {
                host.reply.clear();
                host.reply.push(b'-');
                host.reply.extend_from_slice(text.as_bytes());
                host.reply.extend_from_slice(b"\r\n");
            }
            _ => return command(lua, how),
        }
        answer(lua, host, how)
    }
}

/// `dragonfly.ihash(hash, sorted, command…)`.
///
/// # Safety
/// As any C function.
pub(super) unsafe fn ihash(lua: *mut lua_State) -> c_int {
    // SAFETY: as `call`.
    unsafe { command(lua, How::Hash) }
}

/// Fails because of the call itself: raises an error, or returns it as a value.
unsafe fn failed(lua: *mut lua_State, how: How, text: &CStr) -> c_int {
    // SAFETY: nothing with a destructor is alive.
    unsafe {
        push_error(lua, host_of(lua), text.to_bytes());
        if how.raises() { ffi::lua_error(lua) } else { 1 }
    }
}

/// Pushes a table with an error of this program's functions; a text without a code gets one.
unsafe fn push_error(lua: *mut lua_State, host: &Host, text: &[u8]) {
    // SAFETY: nothing with a destructor is alive.
    unsafe {
        ffi::luaL_checkstack(lua, 4, std::ptr::null());
        ffi::lua_createtable(lua, 0, 1);
        host.push_name(lua, Name::Err);
        if text.starts_with(b"BUSY ") {
            push_bytes(lua, text);
        } else {
            push_bytes(lua, b"ERR ");
            push_bytes(lua, text);
            ffi::lua_concat(lua, 2);
        }
        ffi::lua_rawset(lua, -3);
    }
}

/// Raises an error as [`push_error`] makes it.
///
/// # Safety
/// As any C function; nothing with a destructor is alive in the caller.
pub(super) unsafe fn fail(lua: *mut lua_State, text: &CStr) -> c_int {
    // SAFETY: as `push_error`.
    unsafe {
        push_error(lua, host_of(lua), text.to_bytes());
        ffi::lua_error(lua)
    }
}

/// Like [`fail`], with the text on top of the stack.
///
/// # Safety
/// As `fail`.
pub(super) unsafe fn fail_with(lua: *mut lua_State) -> c_int {
    // SAFETY: the text stays on the stack.
    unsafe {
        push_error(lua, host_of(lua), to_bytes(lua, -1).unwrap_or_default());
        ffi::lua_error(lua)
    }
}

unsafe fn sha1hex(lua: *mut lua_State) -> c_int {
    // SAFETY: the digest is a plain array.
    unsafe {
        if ffi::lua_gettop(lua) != 1 {
            return fail(lua, c"wrong number of arguments");
        }
        let mut len = 0;
        let text = ffi::lua_tolstring(lua, 1, &mut len);
        let text = if text.is_null() { &[][..] } else { std::slice::from_raw_parts(text.cast(), len) };
        push_bytes(lua, &sha_of(text));
        1
    }
}

unsafe fn error_reply(lua: *mut lua_State) -> c_int {
    // SAFETY: as `single`.
    unsafe {
        if ffi::lua_gettop(lua) != 1 || ffi::lua_type(lua, 1) != ffi::LUA_TSTRING {
            push_error(lua, host_of(lua), b"wrong number or type of arguments");
            return 1;
        }
        let mut text = up_to_zero(to_bytes(lua, 1).unwrap_or_default());
        text = text.strip_prefix(b"-").unwrap_or(text);
        while let [rest @ .., b'\r' | b'\n'] = text {
            text = rest;
        }
        if !text.contains(&b' ') {
            // The text has no code.
            push_error(lua, host_of(lua), text);
            return 1;
        }
        ffi::lua_createtable(lua, 0, 1);
        host_of(lua).push_name(lua, Name::Err);
        push_bytes(lua, text);
        ffi::lua_rawset(lua, -3);
        1
    }
}

unsafe fn status_reply(lua: *mut lua_State) -> c_int {
    // SAFETY: nothing with a destructor is alive.
    unsafe {
        if ffi::lua_gettop(lua) != 1 || ffi::lua_type(lua, 1) != ffi::LUA_TSTRING {
            push_error(lua, host_of(lua), b"wrong number or type of arguments");
            return 1;
        }
        ffi::lua_createtable(lua, 0, 1);
        host_of(lua).push_name(lua, Name::Ok);
        ffi::lua_pushvalue(lua, 1);
        ffi::lua_rawset(lua, -3);
        1
    }
}

unsafe fn setresp(lua: *mut lua_State) -> c_int {
    // SAFETY: nothing with a destructor is alive.
    unsafe {
        if ffi::lua_gettop(lua) != 1 {
            return fail(lua, c"redis.setresp() requires one argument.");
        }
        let protocol = match ffi::lua_tonumber(lua, 1) as i64 {
            2 => Protocol::Resp2,
            3 => Protocol::Resp3,
            _ => return fail(lua, c"RESP version must be 2 or 3."),
        };
        if let Some(active) = &mut host_of(lua).active {
            active.protocol = protocol;
        }
        0
    }
}

unsafe fn set_repl(lua: *mut lua_State) -> c_int {
    // SAFETY: nothing with a destructor is alive.
    unsafe {
        if ffi::lua_gettop(lua) != 1 {
            return fail(lua, c"redis.set_repl() requires two arguments.");
        }
        let wanted = ffi::lua_tonumber(lua, 1) as i64;
        if wanted & !3 != 0 {
            return fail(lua, c"Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.");
        }
        0
    }
}

unsafe fn replicate_commands(lua: *mut lua_State) -> c_int {
    // SAFETY: a slot is free.
    unsafe { ffi::lua_pushboolean(lua, 1) };
    1
}

unsafe fn breakpoint(lua: *mut lua_State) -> c_int {
    // SAFETY: a slot is free. There is no debugger, as where none was asked for in Redis.
    unsafe { ffi::lua_pushboolean(lua, 0) };
    1
}

unsafe fn debug(_: *mut lua_State) -> c_int {
    0
}

/// `redis.log(level, text…)`.
///
/// # Safety
/// As any C function.
pub(super) unsafe fn log(lua: *mut lua_State) -> c_int {
    // SAFETY: strings are borrowed from the stack until the function returns; nothing raises meanwhile.
    unsafe {
        let count = ffi::lua_gettop(lua);
        if count < 2 {
            return fail(lua, c"redis.log() requires two arguments or more.");
        }
        if ffi::lua_isnumber(lua, 1) == 0 {
            return fail(lua, c"First argument must be a number (log level).");
        }
        let level = ffi::lua_tonumber(lua, 1) as i64;
        if !(0..=3).contains(&level) {
            return fail(lua, c"Invalid debug level.");
        }
        let host = host_of(lua);
        if leaves_spare(lua, host) {
            return sluicegate_script::wait(lua, 0, continuation!(log_here));
        }
        host.reply.clear();
        for index in 2..=count {
            // As in Redis, arguments other than strings and numbers are skipped.
            let mut len = 0;
            let text = ffi::lua_tolstring(lua, index, &mut len);
            if text.is_null() {
                continue;
            }
            if index > 2 && !host.reply.is_empty() {
                host.reply.push(b' ');
            }
            host.reply.extend_from_slice(std::slice::from_raw_parts(text.cast(), len));
        }
        if let Some(active) = &host.active {
            active.inner().scripts.log(level as u8, &host.reply);
        }
        0
    }
}

/// Logs on a script thread.
unsafe fn log_here(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the arguments are still on the stack.
    unsafe {
        arrive(host_of(lua));
        log(lua)
    }
}

/// Returns whether the script runs on a spare thread and can leave it here, for something that takes locks. The caller
/// waits then, and repeats itself after it has [arrived](arrive).
///
/// # Safety
/// As [`sluicegate_script::can_wait`].
pub(super) unsafe fn leaves_spare(lua: *mut lua_State, host: &mut Host) -> bool {
    let Some(active) = host.active.as_mut().filter(|active| active.is_spare) else { return false };
    // SAFETY: as promised by the caller.
    let leaves = unsafe { sluicegate_script::can_wait(lua) };
    if leaves {
        active.waits = Waits::Thread;
    }
    leaves
}

/// Notes that the script has arrived on a script thread.
pub(super) fn arrive(host: &mut Host) {
    if let Some(active) = &mut host.active {
        active.waits = Waits::Nothing;
    }
}

/// Returns whether the caller of the script may run the command of the host's words; [`None`] if there is none.
fn allows(host: &Host, row: Option<Numbered>) -> Option<bool> {
    let mut row = row?;
    let Some(active) = &host.active else { return Some(true) };
    if !row.spec.subcommands.is_empty() && host.words.len() >= 2 {
        row = active.inner().rows.subcommand(row, host.words[1])?;
    }
    Some(active.call.guard.as_ref().is_none_or(|guard| guard.allows(row, &host.words)))
}

unsafe fn acl_check_cmd(lua: *mut lua_State) -> c_int {
    // SAFETY: nothing with a destructor is alive.
    unsafe {
        let count = ffi::lua_gettop(lua);
        if count == 0 {
            return fail(lua, c"Please specify at least one argument for this redis lib call");
        }
        let host = host_of(lua);
        if !words(lua, host, 1, count) {
            return fail(lua, c"Lua redis lib command arguments must be strings or integers");
        }
        let name = host.words[0];
        let row = host.find(name);
        let Some(is_allowed) = allows(host, row) else {
            return fail(lua, c"Invalid command passed to redis.acl_check_cmd()");
        };
        ffi::lua_pushboolean(lua, c_int::from(is_allowed));
        1
    }
}
