//! `AppletHTTP` and `AppletTCP`: the objects through which a service responds.
//!
//! A service never touches a socket. It reads from and writes to two bounded buffers ([`AppletIo`]); the stream moves
//! bytes between them and its socket while the script waits, so a body of any size passes through a few kilobytes. A
//! script that reads waits for bytes, one that writes waits for room, and the output of a script that waits for
//! something else (a store, a socket, a sleep) is still sent meanwhile.
//!
//! Limits: at most [`APPLET_ROOM`] bytes of output are queued; input is read only on request of the script, a line up
//! to `tune.bufsize`, a block or "everything" up to [`INPUT_MAX`]. Once the client has disconnected, reading returns
//! the end and writing raises, so that a script without its stream ends soon.

use std::ffi::{CStr, c_int};
use std::time::{Duration, Instant};

use sluicegate_script::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use sluicegate_script::{check_bytes, continuation, function, push_bytes, raise};
use sluicegate_wire::http::Version;

use super::host::{host, key, set_functions, wait_for};
use super::operation::{Operation, Outcome};
use super::txn;
use crate::http_client::{is_field_name, is_field_value};
use crate::sample;
use crate::stream::{APPLET_ROOM, AppletIo, AppletWait, StreamContext};

/// The maximum number of bytes that one `receive` collects.
const INPUT_MAX: usize = 512 << 20;

/// Creates both classes.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const BOTH: [(&CStr, lua_CFunction); 7] = [
        (c"getline", function!(getline)),
        (c"receive", function!(receive)),
        (c"send", function!(send)),
        (c"try_receive", function!(try_receive)),
        (c"set_var", function!(txn::set_var)),
        (c"unset_var", function!(txn::unset_var)),
        (c"get_var", function!(txn::get_var)),
    ];
    const PRIVATE: [(&CStr, lua_CFunction); 2] =
        [(c"set_priv", function!(txn::set_priv)), (c"get_priv", function!(txn::get_priv))];
    const HTTP: [(&CStr, lua_CFunction); 3] = [
        (c"set_status", function!(set_status)),
        (c"add_header", function!(add_header)),
        (c"start_response", function!(start_response)),
    ];
    // SAFETY: called inside a protected call; nothing is held.
    unsafe {
        for (http, class) in [(true, &raw const key::APPLET_HTTP), (false, &raw const key::APPLET_TCP)] {
            ffi::lua_createtable(lua, 0, 2); // the metatable
            ffi::lua_createtable(lua, 0, 16); // the methods
            set_functions(lua, &BOTH);
            set_functions(lua, &PRIVATE);
            if http {
                set_functions(lua, &HTTP);
            }
            txn::set_objects(lua, http);
            ffi::lua_setfield(lua, -2, c"__index".as_ptr());
            ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, class.cast());
        }
    }
}

/// Pushes the object of a service of the running burst's stream.
pub(super) unsafe fn push(lua: *mut lua_State, http: bool) {
    // SAFETY: called inside a coroutine, with slots free; the context outlives the burst.
    unsafe {
        ffi::luaL_checkstack(lua, 12, c"out of stack".as_ptr());
        let stream = host(lua).current.stream_id;
        let class = if http { &raw const key::APPLET_HTTP } else { &raw const key::APPLET_TCP };
        ffi::lua_createtable(lua, 1, if http { 6 } else { 0 });
        ffi::lua_pushinteger(lua, stream as i64);
        ffi::lua_rawseti(lua, -2, 1);
        let Some(cx) = host(lua).current.readable.as_ref().filter(|_| http) else {
            ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, class.cast());
            ffi::lua_setmetatable(lua, -2);
            return;
        };
        let length = cx.request.first(b"content-length").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let received = host(lua).current.applet.as_ref().map_or(0, |io| io.pending().len());
        ffi::lua_pushinteger(lua, length.unwrap_or(received as i64));
        ffi::lua_setfield(lua, -2, c"length".as_ptr());
        type Text = fn(&StreamContext) -> &[u8];
        let texts: [(&CStr, Text); 4] = [
            (c"method", |cx| cx.request.method()),
            (c"version", |cx| match cx.request.version() {
                Version::Http10 => b"HTTP/1.0",
                Version::Http11 => b"HTTP/1.1",
                Version::Http2 => b"HTTP/2.0",
            }),
            (c"path", |cx| sample::path(cx.request.target()).unwrap_or_default()),
            (c"qs", |cx| sample::query(cx.request.target()).unwrap_or_default()),
        ];
        for (name, text) in texts {
            // Looked up anew each time: a finalizer of the script's may run between two of them and change it.
            let Some(cx) = host(lua).current.readable.as_ref() else { continue };
            push_bytes(lua, text(cx));
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
        super::http::push_header_table(lua, |host| host.current.readable.as_ref().map(|cx| &cx.request));
        ffi::lua_setfield(lua, -2, c"headers".as_ptr());
        ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, class.cast());
        ffi::lua_setmetatable(lua, -2);
    }
}

/// Returns the buffers of the service at 1; `None` once its client has disconnected.
unsafe fn io<'a>(lua: *mut lua_State) -> Option<&'a mut AppletIo> {
    // SAFETY: the runner lends the buffers to the burst, and the reference does not outlive the C function.
    unsafe {
        let Some(id) = txn::stream_of_txn(lua) else {
            ffi::luaL_argerror(lua, 1, c"applet expected".as_ptr());
            return None;
        };
        let current = &host(lua).current;
        if current.stream_id != id {
            raise(lua, c"this object belongs to another stream");
        }
        current.applet.as_mut()
    }
}

unsafe fn set_status(lua: *mut lua_State) -> c_int {
    // SAFETY: the reason is copied after the last call that may raise.
    unsafe {
        let code = ffi::luaL_checkinteger(lua, 2);
        if !(100..=599).contains(&code) {
            ffi::lua_pushboolean(lua, 0);
            return 1;
        }
        let reason = if ffi::lua_type(lua, 3) > ffi::LUA_TNIL { Some(check_bytes(lua, 3)) } else { None };
        if reason.is_some_and(|reason| !is_field_value(reason)) {
            raise(lua, c"set_status: invalid reason");
        }
        let Some(io) = io(lua) else { return 0 };
        if io.started {
            raise(lua, c"set_status: headers have already been sent");
        }
        io.status = code as u16;
        io.reason = reason.map(<[u8]>::to_vec);
        ffi::lua_pushboolean(lua, 1);
        1
    }
}

unsafe fn add_header(lua: *mut lua_State) -> c_int {
    // SAFETY: both texts stay on the stack.
    unsafe {
        let name = check_bytes(lua, 2);
        let value = check_bytes(lua, 3);
        if !is_field_name(name) || !is_field_value(value) {
            raise(lua, c"add_header: invalid header");
        }
        let Some(io) = io(lua) else { return 0 };
        if io.started {
            raise(lua, c"add_header: headers have already been sent");
        }
        if io.headers.wire_len() + name.len() + value.len() > host(lua).shared.bufsize {
            raise(lua, c"add_header: the headers don't fit a buffer");
        }
        io.headers.add(name, value);
        ffi::lua_pushboolean(lua, 1);
        1
    }
}

unsafe fn start_response(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let Some(io) = io(lua) else { return 0 };
        if io.started {
            raise(lua, c"start_response: headers have already been sent");
        }
        io.started = true;
        0
    }
}

unsafe fn send(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        check_bytes(lua, 2);
        let http = is_http(lua);
        if let Some(io) = io(lua)
            && http
            && !io.started
        {
            raise(lua, c"Lua: 'send' you must call start_response() before sending data.");
        }
        send_from(lua, 0)
    }
}

/// Returns whether the object at 1 is an `AppletHTTP`.
unsafe fn is_http(lua: *mut lua_State) -> bool {
    // SAFETY: a C function's usual stack.
    unsafe {
        if ffi::lua_getmetatable(lua, 1) == 0 {
            return false;
        }
        ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::APPLET_HTTP).cast());
        let http = ffi::lua_rawequal(lua, -1, -2) != 0;
        ffi::lua_settop(lua, -3);
        http
    }
}

unsafe fn sent_more(lua: *mut lua_State, _: c_int, done: lua_KContext) -> c_int {
    // SAFETY: as `send`.
    unsafe {
        host(lua).outcome = None;
        send_from(lua, done as usize)
    }
}

/// Continues a send of which `done` bytes were accepted.
unsafe fn send_from(lua: *mut lua_State, mut done: usize) -> c_int {
    // SAFETY: the text stays on the stack while the function waits.
    unsafe {
        let data = check_bytes(lua, 2);
        let Some(io) = io(lua) else { raise(lua, c"send: the client has gone") };
        let room = APPLET_ROOM.saturating_sub(io.output.len()).min(data.len() - done);
        io.output.extend_from_slice(&data[done..done + room]);
        done += room;
        if done < data.len() {
            let operation = Operation::Applet(AppletWait::Room, None);
            return wait_for(lua, operation, done as lua_KContext, continuation!(sent_more));
        }
        ffi::lua_pushinteger(lua, done as i64);
        1
    }
}

/// The amount that a read requests.
#[derive(Clone, Copy)]
enum Want {
    Line,
    Count(usize),
    All,
}

unsafe fn getline(lua: *mut lua_State) -> c_int {
    // SAFETY: as `read`.
    unsafe {
        if let Some(io) = io(lua) {
            io.deadline = None;
        }
        read(lua, 0, 0)
    }
}

/// `receive([size [, milliseconds]])`: with a time, returns the available bytes when the time is over.
unsafe fn receive(lua: *mut lua_State) -> c_int {
    // SAFETY: as `read`.
    unsafe {
        let size = ffi::luaL_optinteger(lua, 2, -1);
        let timeout = match ffi::lua_type(lua, 3) {
            ffi::LUA_TNONE | ffi::LUA_TNIL => None,
            _ => Some(Duration::from_millis(ffi::luaL_checkinteger(lua, 3).clamp(0, i64::from(u32::MAX)) as u64)),
        };
        if let Some(io) = io(lua) {
            io.deadline = timeout.map(|timeout| Instant::now() + timeout);
        }
        match size {
            -1 => read(lua, 0, 1),
            0.. => read(lua, 0, size.min(INPUT_MAX as i64) as lua_KContext + 2),
            _ => raise(lua, c"receive: invalid size"),
        }
    }
}

/// `try_receive()`: returns the available bytes; nil if there are none.
unsafe fn try_receive(lua: *mut lua_State) -> c_int {
    // SAFETY: the bytes stay in the buffer while Lua copies them.
    unsafe {
        match io(lua) {
            Some(io) if !io.pending().is_empty() => {
                let count = io.pending().len();
                give(lua, io, count);
            }
            Some(io) => {
                // The next turn of the stream reads for the next call.
                io.wanted = io.wanted.max(1);
                ffi::lua_pushnil(lua);
            }
            None => ffi::lua_pushnil(lua),
        }
        1
    }
}

/// Pushes the first `count` bytes and removes them. They are removed before Lua may run a finalizer, which may read,
/// too.
unsafe fn give(lua: *mut lua_State, io: &mut AppletIo, count: usize) {
    // SAFETY: Lua copies the text before it does anything else.
    unsafe {
        let host = host(lua);
        host.text.clear();
        host.text.extend_from_slice(&io.pending()[..count]);
        io.consume(count);
        push_bytes(lua, &host.text);
    }
}

/// Reads the amount in `what`: 0 a line, 1 everything, else the number of bytes plus two. At the end of the input it
/// returns the rest, and then an empty string.
unsafe fn read(lua: *mut lua_State, _: c_int, what: lua_KContext) -> c_int {
    // SAFETY: the bytes stay in the buffer while Lua copies them; the context has the requested amount while it waits.
    unsafe {
        let late = matches!(host(lua).outcome.take(), Some(Outcome::TimedOut));
        let bufsize = host(lua).shared.bufsize;
        let want = match what {
            0 => Want::Line,
            1 => Want::All,
            count => Want::Count(count as usize - 2),
        };
        let Some(io) = io(lua) else {
            push_bytes(lua, b"");
            return 1;
        };
        let pending = io.pending();
        let (enough, limit) = match want {
            Want::Line => (memchr::memchr(b'\n', &pending[io.scanned..]).map(|at| io.scanned + at + 1), bufsize),
            Want::Count(count) => ((pending.len() >= count).then_some(count), count),
            Want::All => (None, INPUT_MAX),
        };
        let len = pending.len();
        let given = enough.or_else(|| (io.input_ended || late || len >= limit).then_some(len.min(limit)));
        if let Some(count) = given {
            io.wanted = 0;
            give(lua, io, count);
            return 1;
        }
        io.scanned = len;
        io.wanted = match want {
            Want::All => len + bufsize,
            Want::Line | Want::Count(_) => limit,
        };
        wait_for(lua, Operation::Applet(AppletWait::Input(len), io.deadline), what, continuation!(read))
    }
}
