//! `core.tcp()`: HAProxy's socket class, with additions (`shutdown`, names, use from any worker).
//!
//! Reads and writes are attempted immediately; the script waits only if they would block. Return values and texts are
//! HAProxy's actual ones, not those of its manual: `receive` returns the buffered bytes when the peer closes or the
//! time is over, and `nil, "connection closed."` if there are none; `send` returns the number of bytes sent, or -1.
//!
//! `setkeepalive` returns the connection to a pool (`pool`).
//!
//! Limits: a line is at most `tune.bufsize` long; a block or `*a` at most [`RECEIVE_MAX`].

use std::ffi::{c_int, c_void};
use std::io::ErrorKind;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_script::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use sluicegate_script::{argument, check_bytes, continuation, function, push_bytes, raise, to_bytes};
use sluicegate_transport::Socket as Stream;

use super::host::{Phase, check_object, host, key, push_text, raise_text, set_functions, wait_for};
use super::operation::{Operation, Outcome, end_name};
use super::pool;
use crate::target::Target;

/// The maximum number of bytes that one `receive` collects.
const RECEIVE_MAX: usize = 512 << 20;

/// Shares a connection with the operation that waits for it. The state may move to another thread meanwhile: the
/// operation uses the kernel's socket alone, and everything else happens under the state's lock.
#[allow(clippy::arc_with_non_send_sync)]
fn shared(stream: Stream) -> Arc<Stream> {
    Arc::new(stream)
}

/// The number of bytes requested from the kernel at a time.
const CHUNK: usize = 16 * 1024;

/// HAProxy's connect timeout of a socket without `settimeout`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The end of the names of pools whose connections have TLS.
const TLS_POOL: &str = "\0tls";

/// Shuts down one or both directions; under TLS, the peer is notified of the end of the sent data.
fn end(stream: &Stream, how: Shutdown) {
    if how != Shutdown::Read
        && let Some(tls) = stream.tls()
    {
        tls.close();
    }
    stream.shutdown(how);
}

/// A socket as stored in its userdata: in place, so that a socket whose finalizer is called by hand, or by another
/// finalizer while a function of it runs, is empty and never freed.
#[derive(Default)]
struct Socket {
    stream: Option<Arc<Stream>>,
    /// Received bytes; the script has not read `buffer[start..]` yet.
    buffer: Vec<u8>,
    start: usize,
    /// The place at which the search for a line's end continues.
    scanned: usize,
    timeout: Option<Duration>,
    /// Whether nothing more will be received, because the peer closed, the time was up, or an error occurred.
    ended: bool,
    /// Whether it behaves like a socket of LuaSocket: error texts, third results, and timeouts that do not close.
    luasocket: bool,
    /// Whether the last operation of such a socket timed out.
    timed_out: bool,
    /// Whether a read is unsatisfied or gave up waiting, so that the peer may still send the data.
    late: bool,
    /// Whether a write is incomplete, or was given up, so that the peer has received only a part.
    cut: bool,
    /// Whether it connects to paths.
    unix: bool,
    /// The pool of its connection.
    pool: Option<Box<str>>,
    /// The number of earlier uses of its connection.
    reused: u32,
    /// Whether it was finalized, so nothing would drop a new connection.
    collected: bool,
}

impl Socket {
    fn pending(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Removes `count` bytes from the front.
    fn consume(&mut self, count: usize) {
        self.start += count;
        self.scanned = 0;
        self.late &= count == 0;
        // A finalizer of the script's may have closed the socket while the bytes were handed over.
        if self.start >= self.buffer.len() {
            self.start = 0;
            self.buffer.clear();
            // A connection that once carried a big value doesn't keep its room.
            self.buffer.shrink_to(CHUNK);
        }
    }

    /// Reads once; returns `false` if it would block.
    fn fill(&mut self, want: usize) -> bool {
        let Some(stream) = &self.stream else {
            self.ended = true;
            return true;
        };
        if self.start > 0 && self.buffer.len() + CHUNK > self.buffer.capacity() {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.reserve(want.clamp(CHUNK, 16 * CHUNK));
        let result = stream.try_read_buf(&mut self.buffer);
        match result {
            Ok(0) => self.ended = true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => self.ended = true,
        }
        true
    }

    fn close(&mut self) {
        if let Some(stream) = self.stream.take() {
            end(&stream, Shutdown::Both);
        }
        self.buffer = Vec::new();
        (self.start, self.scanned) = (0, 0);
        (self.late, self.cut, self.timed_out) = (false, false, false);
        self.ended = true;
    }
}

/// The amount requested by a `receive`.
#[derive(Clone, Copy)]
enum Pattern {
    Line,
    All,
    Count(usize),
}

/// Creates the class and `core.tcp`; the table `core` is a global.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const METHODS: [(&std::ffi::CStr, lua_CFunction); 11] = [
        (c"connect", function!(connect)),
        (c"connect_ssl", function!(connect_ssl)),
        (c"send", function!(send)),
        (c"receive", function!(receive)),
        (c"settimeout", function!(settimeout)),
        (c"setoption", function!(setoption)),
        (c"getpeername", function!(getpeername)),
        (c"getsockname", function!(getsockname)),
        (c"close", function!(close)),
        (c"setkeepalive", function!(setkeepalive)),
        (c"getreusedtimes", function!(getreusedtimes)),
    ];
    // SAFETY: called inside a protected call; nothing is held.
    unsafe {
        ffi::lua_createtable(lua, 0, 4);
        ffi::lua_createtable(lua, 0, 12);
        set_functions(lua, &METHODS);
        set_functions(lua, &[(c"shutdown", function!(shutdown))]);
        ffi::lua_setfield(lua, -2, c"__index".as_ptr());
        set_functions(lua, &[(c"__gc", function!(collect)), (c"__close", function!(close))]);
        ffi::lua_pushstring(lua, c"Socket".as_ptr());
        ffi::lua_setfield(lua, -2, c"__name".as_ptr());
        ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::SOCKET).cast());
        ffi::lua_getglobal(lua, c"core".as_ptr());
        set_functions(lua, &[(c"tcp", function!(tcp))]);
        ffi::lua_settop(lua, -2);
    }
}

unsafe fn tcp(lua: *mut lua_State) -> c_int {
    // SAFETY: as `make`.
    unsafe {
        if host(lua).phase == Phase::Body {
            return 0; // As HAProxy: there is nobody who could wait.
        }
        make(lua, false, false)
    }
}

/// Pushes a socket.
unsafe fn make(lua: *mut lua_State, luasocket: bool, unix: bool) -> c_int {
    // SAFETY: the block is as long as a socket and aligned for one, which owns nothing yet; it is initialized before
    // any call that might access it.
    unsafe {
        let socket = ffi::lua_newuserdatauv(lua, size_of::<Socket>(), 0) as *mut Socket;
        socket.write(Socket { luasocket, unix, ..Socket::default() });
        ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::SOCKET).cast());
        ffi::lua_setmetatable(lua, -2);
        1
    }
}

/// `socket.tcp()` of the module `socket`; with an argument `socket.unix()`.
pub(super) unsafe fn luasocket(lua: *mut lua_State) -> c_int {
    // SAFETY: as `make`.
    unsafe { make(lua, true, ffi::lua_type(lua, 1) > ffi::LUA_TNIL) }
}

/// Returns nil and the reason, as LuaSocket does.
unsafe fn refuse(lua: *mut lua_State, why: &std::ffi::CStr) -> c_int {
    // SAFETY: two slots are free.
    unsafe {
        ffi::lua_pushnil(lua);
        ffi::lua_pushstring(lua, why.as_ptr());
        2
    }
}

/// Returns argument 1 as a socket; raises an error for anything else.
unsafe fn check<'a>(lua: *mut lua_State) -> &'a mut Socket {
    // SAFETY: the metatable proves that the block holds a socket from `make`; the stack keeps it.
    unsafe {
        let socket = check_object::<Socket>(lua, &key::SOCKET, c"socket expected");
        if (*socket).collected {
            ffi::luaL_argerror(lua, 1, c"socket expected".as_ptr());
        }
        &mut *socket
    }
}

unsafe fn collect(lua: *mut lua_State) -> c_int {
    // SAFETY: as `check`; the remaining value owns nothing.
    unsafe {
        *check(lua) = Socket { collected: true, ended: true, ..Socket::default() };
        0
    }
}

unsafe fn connect(lua: *mut lua_State) -> c_int {
    // SAFETY: as `connect_with`.
    unsafe { connect_with(lua, false) }
}

/// `connect` with TLS. The server is not verified and sent no name, as in HAProxy.
unsafe fn connect_ssl(lua: *mut lua_State) -> c_int {
    // SAFETY: as `connect_with`.
    unsafe { connect_with(lua, true) }
}

unsafe fn connect_with(lua: *mut lua_State, secure: bool) -> c_int {
    // SAFETY: a C function's usual stack; what owns memory is moved into the host before Lua is called again.
    unsafe {
        check(lua);
        if secure && host(lua).shared.tls.read().is_none() {
            raise(lua, c"connect_ssl: there is no TLS before the start of the proxies");
        }
        let address = check_bytes(lua, 2);
        let options = if ffi::lua_type(lua, 3) == ffi::LUA_TTABLE { 3 } else { 4 };
        let port = match options == 3 || ffi::lua_type(lua, 3) <= ffi::LUA_TNIL {
            true => None,
            false => Some(ffi::luaL_checkinteger(lua, 3)),
        };
        let mut pool = None;
        if ffi::lua_type(lua, options) == ffi::LUA_TTABLE {
            ffi::lua_getfield(lua, options, c"pool".as_ptr());
            match ffi::lua_type(lua, -1) {
                ffi::LUA_TNIL => {}
                ffi::LUA_TSTRING => pool = to_bytes(lua, -1),
                _ => raise(lua, c"connect: the name of a pool is expected"),
            }
        }
        // The table may be one whose fields are looked up by a function of the script's.
        let socket = check(lua);
        let limit = match socket.timeout {
            None if socket.luasocket => None,
            timeout => Some(timeout.unwrap_or(CONNECT_TIMEOUT)),
        };
        let target = match port.map(u16::try_from).transpose() {
            Ok(_) if socket.unix => std::str::from_utf8(address).ok().map(|path| Target::Unix(path.into())),
            Ok(port) => std::str::from_utf8(address).ok().and_then(|address| Target::parse(address, port)),
            Err(_) => None,
        };
        let Some(target) = target else {
            if port.is_none() && std::str::from_utf8(address).is_ok_and(|text| Target::parse(text, Some(0)).is_some()) {
                raise(lua, c"connect: port missing");
            }
            raise_address(lua);
        };
        // In HAProxy a socket is connected only once; here, connecting it again closes the old connection.
        socket.close();
        socket.ended = false;
        let name = match pool {
            Some(name) => String::from_utf8_lossy(name).into_owned(),
            // The destination is the default name of its pool, as in OpenResty.
            None => match port {
                Some(port) => format!("{}:{port}", String::from_utf8_lossy(address)),
                None => String::from_utf8_lossy(address).into_owned(),
            },
        };
        let name = if secure { name + TLS_POOL } else { name };
        let rested = pool::take(&name);
        socket.pool = Some(name.into());
        socket.reused = 0;
        if let Some((stream, reused)) = rested {
            drop(target);
            socket.stream = Some(shared(stream));
            socket.reused = reused;
            ffi::lua_pushinteger(lua, 1);
            return 1;
        }
        let tls = if secure { host(lua).shared.tls.read().clone() } else { None };
        wait_for(lua, Operation::Connect(target, tls, limit), 0, continuation!(connected))
    }
}

/// Raises HAProxy's error for the address of `connect`, to which it adds a colon if there is a port.
unsafe fn raise_address(lua: *mut lua_State) -> ! {
    // SAFETY: both are the arguments of `connect`, as it has checked; nothing is held but the message.
    unsafe {
        let address = String::from_utf8_lossy(check_bytes(lua, 2));
        let colon = if ffi::lua_tointegerx(lua, 3, std::ptr::null_mut()) > 0 { ":" } else { "" };
        let message = format!("connect: cannot parse destination address '{address}{colon}'");
        drop(address);
        raise_text(lua, message);
    }
}

unsafe fn connected(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the socket is still argument 1; the outcome's values are dropped before Lua is called.
    unsafe {
        let socket = check(lua);
        match host(lua).outcome.take() {
            Some(Outcome::Connected(Ok(stream))) => {
                socket.stream = Some(shared(stream));
                socket.ended = false;
                ffi::lua_pushinteger(lua, 1);
                return 1;
            }
            Some(Outcome::TimedOut) if socket.luasocket => return refuse(lua, c"timeout"),
            Some(outcome @ Outcome::Unresolved) => {
                drop(outcome);
                if socket.luasocket {
                    return refuse(lua, c"host or service not provided, or not known");
                }
                // In HAProxy no name has an address here.
                socket.ended = true;
                raise_address(lua);
            }
            Some(Outcome::Connected(Err(error))) if socket.luasocket => {
                let why = match error.kind() {
                    ErrorKind::ConnectionRefused => c"connection refused",
                    ErrorKind::TimedOut => c"timeout",
                    ErrorKind::HostUnreachable => c"host or service unreachable",
                    ErrorKind::NetworkUnreachable => c"network is unreachable",
                    ErrorKind::PermissionDenied => c"permission denied",
                    _ => c"host or service not provided, or not known",
                };
                drop(error);
                return refuse(lua, why);
            }
            other => drop(other),
        }
        socket.ended = true;
        ffi::lua_pushnil(lua);
        ffi::lua_pushstring(lua, c"Can't connect".as_ptr());
        2
    }
}

unsafe fn send(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        check(lua);
        check_bytes(lua, 2);
        send_from(lua, 0)
    }
}

unsafe fn sent_more(lua: *mut lua_State, _: c_int, context: lua_KContext) -> c_int {
    // SAFETY: as `send`.
    unsafe {
        if let Some(Outcome::TimedOut) = host(lua).outcome.take() {
            let socket = check(lua);
            socket.timed_out = true;
            socket.ended |= !socket.luasocket;
            if let Some(stream) = socket.stream.take_if(|stream| stream.tls().is_some()) {
                // A record was begun with bytes that the script may not send again.
                end(&stream, Shutdown::Both);
            }
            return sent(lua, context as usize);
        }
        send_from(lua, context as usize)
    }
}

/// Continues a send of which `done` bytes were sent.
unsafe fn send_from(lua: *mut lua_State, mut done: usize) -> c_int {
    // SAFETY: arguments stay on the stack while the function waits.
    unsafe {
        let socket = check(lua);
        let data = check_bytes(lua, 2);
        let data = slice(data, ffi::luaL_optinteger(lua, 3, 1), ffi::luaL_optinteger(lua, 4, -1));
        loop {
            if done == data.len() {
                socket.cut &= done == 0;
                // LuaSocket returns the index of the last byte sent, counted from the start of the string, not of the
                // slice.
                let before = if socket.luasocket { ffi::luaL_optinteger(lua, 3, 1).max(1) - 1 } else { 0 };
                ffi::lua_pushinteger(lua, before + done as i64);
                return 1;
            }
            let Some(stream) = &socket.stream else { return sent(lua, done) };
            socket.cut = true;
            match stream.try_write(&data[done..]) {
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let operation = Operation::Writable(stream.clone(), socket.timeout);
                    drop(error);
                    return wait_for(lua, operation, done as lua_KContext, continuation!(sent_more));
                }
                Err(error) => {
                    drop(error);
                    return sent(lua, done);
                }
            }
        }
    }
}

/// Returns the result of a send that could not be finished: the number of bytes sent before, or -1.
unsafe fn sent(lua: *mut lua_State, done: usize) -> c_int {
    // SAFETY: slots are free.
    unsafe {
        let socket = check(lua);
        if socket.luasocket {
            refuse(lua, if std::mem::take(&mut socket.timed_out) { c"timeout" } else { c"closed" });
            ffi::lua_pushinteger(lua, done as i64);
            return 3;
        }
        ffi::lua_pushinteger(lua, if done > 0 { done as i64 } else { -1 });
    }
    1
}

/// Returns `data[i..=j]`, with indices by Lua's rules.
fn slice(data: &[u8], i: i64, j: i64) -> &[u8] {
    let len = data.len() as i64;
    let from = if i < 0 { (len + i + 1).max(1) } else { i.max(1) };
    let to = if j < 0 { len + j + 1 } else { j.min(len) };
    if from > to { &[] } else { &data[from as usize - 1..to as usize] }
}

unsafe fn receive(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        check(lua);
        pattern(lua);
        if ffi::lua_type(lua, 3) > ffi::LUA_TNIL {
            check_bytes(lua, 3);
        }
        receive_on(lua)
    }
}

unsafe fn received_more(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `receive`.
    unsafe {
        if let Some(Outcome::TimedOut) = host(lua).outcome.take() {
            // The inactivity timeout ends the connection, as HAProxy's does and LuaSocket's doesn't.
            let socket = check(lua);
            socket.timed_out = true;
            socket.ended |= !socket.luasocket;
            if !socket.luasocket
                && let Some(stream) = &socket.stream
            {
                end(stream, Shutdown::Both);
            }
        }
        receive_on(lua)
    }
}

/// Returns argument 2 as a pattern; raises an error if it is invalid.
unsafe fn pattern(lua: *mut lua_State) -> Pattern {
    // SAFETY: a C function's usual stack.
    unsafe {
        let kind = ffi::lua_type(lua, 2);
        if kind <= ffi::LUA_TNIL {
            return Pattern::Line;
        }
        if kind == ffi::LUA_TSTRING {
            let text = check_bytes(lua, 2);
            match text.strip_prefix(b"*").unwrap_or(text).first() {
                Some(b'l') => return Pattern::Line,
                Some(b'a') => return Pattern::All,
                _ => {}
            }
        }
        let mut valid = 0;
        let count = ffi::lua_tointegerx(lua, 2, &mut valid);
        if valid == 0 {
            raise(lua, c"Unsupported pattern.");
        }
        match usize::try_from(count) {
            Ok(count) if count <= RECEIVE_MAX => Pattern::Count(count),
            _ => raise(lua, c"Unsupported size."),
        }
    }
}

unsafe fn receive_on(lua: *mut lua_State) -> c_int {
    // SAFETY: arguments stay on the stack while the function waits; the socket keeps what it received.
    unsafe {
        let socket = check(lua);
        // As in LuaSocket, the prefix is a part of what is wanted.
        let prefix = to_bytes(lua, 3).map_or(0, <[u8]>::len);
        let pattern = match pattern(lua) {
            Pattern::Count(count) => Pattern::Count(count.saturating_sub(prefix)),
            pattern => pattern,
        };
        loop {
            let pending = socket.pending();
            let (limit, want) = match pattern {
                Pattern::Line => {
                    if let Some(end) = memchr::memchr(b'\n', &pending[socket.scanned..]) {
                        let end = socket.scanned + end;
                        let line = pending[..end].strip_suffix(b"\r").unwrap_or(&pending[..end]);
                        push_prefixed(lua, line);
                        socket.consume(end + 1);
                        return 1;
                    }
                    socket.scanned = pending.len();
                    (host(lua).shared.bufsize, CHUNK)
                }
                Pattern::Count(count) if pending.len() >= count => {
                    push_prefixed(lua, &pending[..count]);
                    socket.consume(count);
                    return 1;
                }
                Pattern::Count(count) => (RECEIVE_MAX, count - pending.len()),
                Pattern::All => (RECEIVE_MAX, pending.len()),
            };
            let len = socket.pending().len();
            if socket.luasocket
                && (socket.ended || socket.timed_out)
                && !(socket.ended && len > 0 && matches!(pattern, Pattern::All))
            {
                return received_part(lua);
            }
            if socket.ended || len >= limit {
                if len == 0 {
                    ffi::lua_pushnil(lua);
                    ffi::lua_pushstring(lua, c"connection closed.".as_ptr());
                    return 2;
                }
                push_prefixed(lua, socket.pending());
                socket.consume(len);
                return 1;
            }
            if !socket.fill(want)
                && let Some(stream) = &socket.stream
            {
                socket.late = true;
                let operation = Operation::Readable(stream.clone(), socket.timeout);
                return wait_for(lua, operation, 0, continuation!(received_more));
            }
        }
    }
}

/// Returns LuaSocket's results of an incomplete read: nil, the reason, and the partial data, which is removed.
unsafe fn received_part(lua: *mut lua_State) -> c_int {
    // SAFETY: as `push_prefixed`.
    unsafe {
        let socket = check(lua);
        // Argument 3 is the prefix, also where it was not given.
        ffi::lua_settop(lua, 3);
        refuse(lua, if std::mem::take(&mut socket.timed_out) { c"timeout" } else { c"closed" });
        let (len, late) = (socket.pending().len(), socket.late);
        push_prefixed(lua, socket.pending());
        socket.consume(len);
        socket.late = late;
        3
    }
}

/// Pushes argument 3, if there is one, and the bytes, as one string.
unsafe fn push_prefixed(lua: *mut lua_State, bytes: &[u8]) {
    // SAFETY: the bytes belong to a socket that the stack keeps alive.
    unsafe {
        if ffi::lua_type(lua, 3) > ffi::LUA_TNIL {
            ffi::lua_pushvalue(lua, 3);
            push_bytes(lua, bytes);
            ffi::lua_concat(lua, 2);
        } else {
            push_bytes(lua, bytes);
        }
    }
}

unsafe fn settimeout(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack. LuaSocket's second argument (the mode) is accepted: there is one kind.
    unsafe {
        let socket = check(lua);
        if socket.luasocket && (ffi::lua_type(lua, 2) <= ffi::LUA_TNIL || ffi::lua_tonumber(lua, 2) < 0.0) {
            // Without a number, or below 0, LuaSocket waits for ever.
            socket.timeout = None;
            ffi::lua_pushinteger(lua, 1);
            return 1;
        }
        let seconds = ffi::luaL_checknumber(lua, 2);
        if seconds.is_nan() || seconds < 0.0 {
            raise(lua, c"settimeout: cannot set negatives values");
        }
        let seconds = seconds.min(f64::from(i32::MAX) / 1000.0);
        socket.timeout = Some(Duration::from_secs_f64(seconds).max(Duration::from_millis(1)));
        ffi::lua_pushinteger(lua, 1);
        1
    }
}

unsafe fn setoption(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack. As in HAProxy, every option is accepted and none does anything: packets are
    // never delayed, and a connection is looked after by its timeout.
    unsafe {
        if !check(lua).luasocket {
            return 0;
        }
        ffi::lua_pushinteger(lua, 1);
        1
    }
}

unsafe fn getpeername(lua: *mut lua_State) -> c_int {
    // SAFETY: as `name`.
    unsafe { name(lua, true) }
}

unsafe fn getsockname(lua: *mut lua_State) -> c_int {
    // SAFETY: as `name`.
    unsafe { name(lua, false) }
}

unsafe fn name(lua: *mut lua_State, peer: bool) -> c_int {
    // SAFETY: the text moves into the host before it is pushed.
    unsafe {
        let socket = check(lua);
        let split = socket.luasocket && !socket.unix;
        match socket.stream.as_ref().and_then(|stream| end_name(stream, peer)) {
            Some(text) if split => {
                let port = text.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0);
                let ip = text.rsplit_once(':').map_or("", |(ip, _)| ip).to_owned();
                let family = if ip.contains(':') { c"inet6" } else { c"inet" };
                drop(text);
                push_text(lua, ip.into_bytes());
                ffi::lua_pushinteger(lua, port);
                ffi::lua_pushstring(lua, family.as_ptr());
                return 3;
            }
            Some(text) => push_text(lua, text.into_bytes()),
            None => ffi::lua_pushnil(lua),
        }
        1
    }
}

unsafe fn shutdown(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let how = match argument(lua, 2) {
            None | Some(b"both") => Shutdown::Both,
            Some(b"send") => Shutdown::Write,
            Some(b"receive") => Shutdown::Read,
            Some(_) => {
                ffi::luaL_argerror(lua, 2, c"'both', 'send' or 'receive' expected".as_ptr());
                Shutdown::Both
            }
        };
        let socket = check(lua);
        match &socket.stream {
            Some(stream) => {
                end(stream, how);
                // A script that has shut down reading does not get data still in the kernel.
                socket.ended |= how != Shutdown::Write;
                socket.cut |= how != Shutdown::Read;
                ffi::lua_pushinteger(lua, 1);
            }
            None => ffi::lua_pushnil(lua),
        }
        1
    }
}

unsafe fn close(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let socket = check(lua);
        socket.close();
        if !socket.luasocket {
            return 0;
        }
        ffi::lua_pushinteger(lua, 1);
        1
    }
}

/// `setkeepalive([pool [, max_idle [, seconds]]])`, or as in OpenResty `setkeepalive([milliseconds [, size]])`: puts
/// the connection into a pool for other scripts; the socket has none afterwards. Returns 1, or nil and the reason.
unsafe fn setkeepalive(lua: *mut lua_State) -> c_int {
    // SAFETY: what owns memory is moved into the pool or dropped before Lua is called again.
    unsafe {
        let named = ffi::lua_type(lua, 2) == ffi::LUA_TSTRING && ffi::lua_isnumber(lua, 2) == 0;
        let (at, unit) = if named { (4, 1.0) } else { (2, 0.001) };
        let number = |at: c_int, default: f64| match ffi::lua_type(lua, at) <= ffi::LUA_TNIL {
            true => default,
            false => ffi::luaL_checknumber(lua, at),
        };
        // 0 is OpenResty's word for the default of a time.
        let (time, most) = (number(at, 0.0) * unit, number(3, pool::SIZE as f64));
        let idle = match time > 0.0 {
            true => Duration::try_from_secs_f64(time).unwrap_or(Duration::MAX),
            false => pool::IDLE,
        };
        if !(0.0..=65_536.0).contains(&most) {
            raise(lua, c"setkeepalive: the number of connections must be from 0 to 65536");
        }
        let socket = check(lua);
        if socket.stream.is_none() || socket.ended || socket.late || socket.cut {
            // Data that the peer still sends would reach the next user.
            socket.close();
            return refuse(lua, c"closed");
        }
        if !socket.pending().is_empty() || socket.stream.as_ref().is_some_and(|stream| !stream.is_quiet()) {
            // The next user of the connection would take the data for its own response.
            socket.close();
            return refuse(lua, c"unread data in buffer, or closed by the peer");
        }
        let name = match named.then(|| to_bytes(lua, 2)).flatten() {
            Some(name) => {
                let secure = socket.stream.as_ref().is_some_and(|stream| stream.tls().is_some());
                let name = String::from_utf8_lossy(name).into_owned();
                Some(if secure { name + TLS_POOL } else { name }.into_boxed_str())
            }
            None => socket.pool.take(),
        };
        let reused = socket.reused;
        match (name, socket.stream.take().map(Arc::try_unwrap)) {
            (Some(name), Some(Ok(stream))) => pool::put(&name, stream, reused, most as usize, idle),
            (name, stream) => {
                drop((name, stream));
                return refuse(lua, c"the connection is in use");
            }
        }
        socket.close();
        ffi::lua_pushinteger(lua, 1);
        1
    }
}

/// Returns the number of earlier uses of the connection; nil without one.
unsafe fn getreusedtimes(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let socket = check(lua);
        match socket.stream.is_some() {
            true => ffi::lua_pushinteger(lua, i64::from(socket.reused)),
            false => ffi::lua_pushnil(lua),
        }
        1
    }
}

/// Lua aligns blocks for any type of C.
const _: () = assert!(align_of::<Socket>() <= align_of::<*mut c_void>());

#[cfg(test)]
mod tests {
    use super::slice;

    #[test]
    fn slices_follow_lua_s_indices() {
        for (i, j, expected) in [
            (1, -1, "hello"),
            (2, 3, "el"),
            (-2, -1, "lo"),
            (0, 99, "hello"),
            (4, 2, ""),
            (9, 9, ""),
            (-99, 2, "he"),
            (1, -99, ""),
        ] {
            assert_eq!(slice(b"hello", i, j), expected.as_bytes(), "{i} {j}");
        }
    }
}
