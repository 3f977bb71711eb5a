//! `txn.req` and `txn.res`: the bytes of a TCP stream, read and changed by actions of content rules.
//!
//! Incoming bytes are those that rules see ([`Content`]); bytes that a script forwards or sends precede them as
//! outgoing ones. The driver of the rules moves changes back into the buffer that will be relayed, supplies more bytes
//! when a script waits, and writes data for the client. Both share [`ChannelIo`](crate::stream::ChannelIo), because the
//! rules borrow the stream's context all the time.
//!
//! In a request's rules `txn.res` only supports sending, which answers the client before any server is contacted; in a
//! response's rules `txn.req` is not accessible. In HTTP mode these functions are not available; HAProxy, too, raises
//! an error.
//!
//! Limits: a channel holds `tune.bufsize` bytes, incoming and outgoing together; the same amount may be queued for the
//! client.

use std::ffi::{CStr, c_int};

use sluicegate_config::model::Mode;
use sluicegate_script::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use sluicegate_script::{can_wait, check_bytes, continuation, function, push_bytes, raise};

use super::filter;
use super::host::{host, set_functions, wait_for};
use super::operation::Operation;
use super::txn::{Object, channel_context, is_message, message_context};
use crate::stream::{Content, StreamContext};

/// Sets the methods in the table on top.
pub(super) unsafe fn set_methods(lua: *mut lua_State) {
    const METHODS: [(&CStr, lua_CFunction); 19] = [
        (c"data", function!(data)),
        (c"dup", function!(data)),
        (c"line", function!(line)),
        (c"get", function!(get)),
        (c"getline", function!(getline)),
        (c"append", function!(append)),
        (c"prepend", function!(prepend)),
        (c"insert", function!(insert)),
        (c"set", function!(set)),
        (c"remove", function!(remove)),
        (c"send", function!(send)),
        (c"forward", function!(forward)),
        (c"input", function!(input)),
        (c"get_in_len", function!(input)),
        (c"output", function!(output)),
        (c"get_out_len", function!(output)),
        (c"is_full", function!(is_full)),
        (c"is_resp", function!(is_resp)),
        (c"may_recv", function!(may_recv)),
    ];
    // SAFETY: called inside a protected call.
    unsafe { set_functions(lua, &METHODS) };
}

/// Sets the methods of a message that are about its body in the table on top.
pub(super) unsafe fn set_body_methods(lua: *mut lua_State) {
    const METHODS: [(&CStr, lua_CFunction); 12] = [
        (c"body", function!(data)),
        (c"append", function!(append)),
        (c"prepend", function!(prepend)),
        (c"insert", function!(insert)),
        (c"set", function!(set)),
        (c"remove", function!(remove)),
        (c"send", function!(send)),
        (c"forward", function!(forward)),
        (c"input", function!(input)),
        (c"output", function!(output)),
        (c"is_full", function!(is_full)),
        (c"is_resp", function!(is_resp)),
    ];
    // SAFETY: called inside a protected call.
    unsafe { set_functions(lua, &METHODS) };
}

/// Returns the channel, or the channel of the message, at 1 and its stream; `None` once that has ended.
unsafe fn channel<'a>(lua: *mut lua_State) -> Option<(bool, &'a mut StreamContext)> {
    // SAFETY: as `channel_context`.
    unsafe {
        if is_message(lua) {
            return message_context(lua);
        }
        let (object, cx) = channel_context(lua)?;
        take_more(cx);
        Some((object == Object::ResponseChannel, cx))
    }
}

/// Like [`channel`], for contents; raises an error if they are those of an HTTP message.
unsafe fn tcp_channel<'a>(lua: *mut lua_State) -> Option<(bool, &'a mut StreamContext)> {
    // SAFETY: as `channel`.
    unsafe {
        let (response, cx) = channel(lua)?;
        let filters_http = host(lua).current.filter.as_ref().is_some_and(|call| call.http);
        if (cx.frontend.config.mode == Mode::Http || filters_http) && !is_message(lua) {
            raise(lua, c"Cannot manipulate HAProxy channels in HTTP mode.");
        }
        Some((response, cx))
    }
}

/// Adds the bytes received while the script waited to its view.
fn take_more(cx: &mut StreamContext) {
    if let Some(io) = &cx.lua.channels {
        let content = if cx.in_response { &mut cx.response_content } else { &mut cx.request_content };
        content.data.append(&mut io.came.borrow_mut());
    }
}

/// Returns the contents of a channel, if the running rules process that channel, or the running filter does.
unsafe fn content(lua: *mut lua_State, cx: &mut StreamContext, response: bool) -> Option<&mut Content> {
    // SAFETY: as `filter::payload`.
    unsafe {
        if !host(lua).current.filter.is_null() {
            return filter::payload(lua, response).map(|payload| &mut payload.content);
        }
    }
    match (response, cx.in_response) {
        (false, false) => Some(&mut cx.request_content),
        (true, true) => Some(&mut cx.response_content),
        _ => None,
    }
}

/// Returns the contents for what can be asked of a channel at any time.
unsafe fn known_content(lua: *mut lua_State, cx: &mut StreamContext, response: bool) -> Option<&mut Content> {
    // SAFETY: as `content`.
    unsafe {
        match host(lua).current.filter.as_ref() {
            Some(call) if call.response != response || call.payload.is_null() => None,
            _ => content(lua, cx, response),
        }
    }
}

/// Returns whether the script may wait for more data of this channel.
unsafe fn may_wait(lua: *mut lua_State, cx: &StreamContext, response: bool) -> bool {
    // SAFETY: a C function's `lua_State`.
    unsafe {
        let more = response == cx.in_response && cx.lua.channels.as_ref().is_some_and(|io| !io.over.get());
        more && !host(lua).current.no_wait && can_wait(lua)
    }
}

/// Waits until more data has arrived, or none will.
unsafe fn wait_more(lua: *mut lua_State, cx: &StreamContext, context: lua_KContext, then: ffi::lua_KFunction) -> c_int {
    // SAFETY: the bell moves into the operation.
    unsafe {
        let Some(io) = &cx.lua.channels else { return 0 };
        io.wants.set(true);
        wait_for(lua, Operation::Bell(io.bell.clone(), None), context, then)
    }
}

/// Notifies the driver of the rules that the contents have changed.
fn changed(cx: &StreamContext, response: bool) {
    let content = if response { &cx.response_content } else { &cx.request_content };
    if let Some(io) = &cx.lua.channels {
        *io.edited.borrow_mut() = Some([&content.outgoing[..], &content.data].concat());
    }
}

/// Returns argument `index` as a position in `length` bytes, counted from their end if it is negative.
unsafe fn offset(lua: *mut lua_State, index: c_int, length: usize) -> usize {
    // SAFETY: a C function's usual stack.
    unsafe {
        let offset = ffi::luaL_optinteger(lua, index, 0);
        let from_end = if offset < 0 { (length as i64).saturating_add(offset).max(0) } else { offset };
        match usize::try_from(from_end) {
            Ok(offset) if offset <= length => offset,
            _ => raise(lua, c"offset out of range."),
        }
    }
}

/// Returns argument `index` as a number of bytes; `None` if it is not given.
unsafe fn length(lua: *mut lua_State, index: c_int) -> Option<usize> {
    // SAFETY: a C function's usual stack.
    unsafe {
        if ffi::lua_type(lua, index) <= ffi::LUA_TNIL {
            return None;
        }
        match ffi::luaL_checkinteger(lua, index) {
            -1 => Some(host(lua).shared.bufsize),
            length => match usize::try_from(length) {
                Ok(length) => Some(length),
                Err(_) => raise(lua, c"length out of range."),
            },
        }
    }
}

/// The amount that a read returns, and whether it is removed.
const LINE: lua_KContext = 1;
const TAKE: lua_KContext = 2;

unsafe fn data(lua: *mut lua_State) -> c_int {
    // SAFETY: as `read`.
    unsafe { read(lua, 0, 0) }
}

unsafe fn line(lua: *mut lua_State) -> c_int {
    // SAFETY: as `read`.
    unsafe { read(lua, 0, LINE) }
}

unsafe fn get(lua: *mut lua_State) -> c_int {
    // SAFETY: as `read`.
    unsafe {
        ffi::lua_settop(lua, 1);
        read(lua, 0, TAKE)
    }
}

unsafe fn getline(lua: *mut lua_State) -> c_int {
    // SAFETY: as `read`.
    unsafe {
        ffi::lua_settop(lua, 1);
        read(lua, 0, LINE | TAKE)
    }
}

/// `(channel [, offset [, length]])`: incoming bytes, all or a line of them; waits for more if there are too few.
unsafe fn read(lua: *mut lua_State, _: c_int, how: lua_KContext) -> c_int {
    // SAFETY: the bytes stay in the stream's context while Lua copies them.
    unsafe {
        host(lua).outcome = None;
        let Some((response, cx)) = tcp_channel(lua) else { return nil(lua) };
        let waits = may_wait(lua, cx, response);
        let Some(content) = content(lua, cx, response) else { return nil(lua) };
        let known = content.data.len();
        let from = offset(lua, 2, known);
        let wanted = length(lua, 3);
        if wanted == Some(0) {
            push_bytes(lua, b"");
            return 1;
        }
        let there = wanted.map_or(known - from, |wanted| wanted.min(known - from));
        let bytes = &content.data[from..from + there];
        let end = memchr::memchr(b'\n', bytes).filter(|_| how & LINE != 0).map(|at| at + 1);
        let complete = wanted.map_or(how & LINE == 0, |wanted| there == wanted);
        let enough = end.is_some() || (there > 0 && complete);
        if !enough && waits {
            return wait_more(lua, cx, how, continuation!(read));
        }
        let count = end.unwrap_or(there);
        if count == 0 {
            let more = host(lua).current.filter.as_ref().and_then(|call| call.payload.as_ref());
            if more.is_some_and(|payload| !payload.ended) && is_message(lua) {
                push_bytes(lua, b"");
                return 1;
            }
            return nil(lua);
        }
        // The context still belongs to the burst: no call of Lua since could have ended it.
        push_bytes(lua, &content.data[from..from + count]);
        if how & TAKE != 0 {
            content.data.drain(from..from + count);
            changed(cx, response);
        }
        1
    }
}

unsafe fn nil(lua: *mut lua_State) -> c_int {
    // SAFETY: a slot is free.
    unsafe {
        ffi::lua_pushnil(lua);
        1
    }
}

unsafe fn number(lua: *mut lua_State, number: i64) -> c_int {
    // SAFETY: a slot is free.
    unsafe {
        ffi::lua_pushinteger(lua, number);
        1
    }
}

/// Replaces a range of the incoming bytes by argument 2; returns its length, or -1 if it does not fit.
unsafe fn splice(lua: *mut lua_State, range: impl FnOnce(usize) -> (usize, usize)) -> c_int {
    // SAFETY: the text stays on the stack.
    unsafe {
        let text = check_bytes(lua, 2);
        let size = host(lua).shared.bufsize;
        let Some((response, cx)) = tcp_channel(lua) else { return number(lua, -1) };
        let Some(content) = content(lua, cx, response) else { return number(lua, -1) };
        let known = content.data.len();
        let (from, count) = range(known);
        let to = known.min(from + count);
        if content.outgoing.len() + known - (to - from) + text.len() > size {
            return number(lua, -1);
        }
        content.data.splice(from..to, text.iter().copied());
        changed(cx, response);
        number(lua, text.len() as i64)
    }
}

unsafe fn append(lua: *mut lua_State) -> c_int {
    // SAFETY: as `splice`.
    unsafe { splice(lua, |known| (known, 0)) }
}

unsafe fn prepend(lua: *mut lua_State) -> c_int {
    // SAFETY: as `splice`.
    unsafe { splice(lua, |_| (0, 0)) }
}

/// `insert(channel, text [, offset])`.
unsafe fn insert(lua: *mut lua_State) -> c_int {
    // SAFETY: as `splice`.
    unsafe { splice(lua, |known| (offset(lua, 3, known), 0)) }
}

/// `set(channel, text [, offset [, length]])`: replaces all bytes from the offset on, or some of them.
unsafe fn set(lua: *mut lua_State) -> c_int {
    // SAFETY: as `splice`.
    unsafe {
        splice(lua, |known| {
            let from = offset(lua, 3, known);
            (from, length(lua, 4).unwrap_or(known - from))
        })
    }
}

/// `remove(channel [, offset [, length]])`: returns the number of bytes removed.
unsafe fn remove(lua: *mut lua_State) -> c_int {
    // SAFETY: as `splice`.
    unsafe {
        let Some((response, cx)) = tcp_channel(lua) else { return number(lua, 0) };
        let Some(content) = content(lua, cx, response) else { return number(lua, 0) };
        let known = content.data.len();
        let from = offset(lua, 2, known);
        let count = length(lua, 3).unwrap_or(known - from).min(known - from);
        content.data.drain(from..from + count);
        changed(cx, response);
        number(lua, count as i64)
    }
}

/// `send(channel, text)`: inserts the text before the incoming bytes; returns the accepted length.
unsafe fn send(lua: *mut lua_State) -> c_int {
    // SAFETY: as `send_from`.
    unsafe {
        check_bytes(lua, 2);
        send_from(lua, 0, 0)
    }
}

unsafe fn send_from(lua: *mut lua_State, _: c_int, done: lua_KContext) -> c_int {
    // SAFETY: the text stays on the stack while the function waits.
    unsafe {
        host(lua).outcome = None;
        let text = &check_bytes(lua, 2)[done as usize..];
        let size = host(lua).shared.bufsize;
        let Some((response, cx)) = tcp_channel(lua) else { return number(lua, -1) };
        if let Some(content) = content(lua, cx, response) {
            let room = size.saturating_sub(content.outgoing.len() + content.data.len());
            // A filter sends all of a text or nothing.
            if !host(lua).current.filter.is_null() && text.len() > room {
                return number(lua, -1);
            }
            let count = text.len().min(room);
            content.outgoing.extend_from_slice(&text[..count]);
            changed(cx, response);
            return number(lua, count as i64);
        }
        let may_wait = may_wait(lua, cx, false);
        let Some(io) = cx.lua.channels.as_ref().filter(|_| response) else { return number(lua, -1) };
        let count = {
            let mut out = io.to_client.borrow_mut();
            let count = text.len().min(size.saturating_sub(out.len()));
            out.extend_from_slice(&text[..count]);
            count
        };
        let done = done as usize + count;
        if count < text.len() && may_wait {
            let operation = Operation::Bell(io.bell.clone(), None);
            return wait_for(lua, operation, done as lua_KContext, continuation!(send_from));
        }
        number(lua, done as i64)
    }
}

/// `forward(channel, count)`: makes incoming bytes outgoing, and waits until that number has arrived; returns the
/// number.
unsafe fn forward(lua: *mut lua_State) -> c_int {
    // SAFETY: as `forward_from`.
    unsafe { forward_from(lua, 0, 0) }
}

unsafe fn forward_from(lua: *mut lua_State, _: c_int, done: lua_KContext) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        host(lua).outcome = None;
        let wanted = ffi::luaL_checkinteger(lua, 2).max(0) as usize;
        let Some((response, cx)) = tcp_channel(lua) else { return number(lua, -1) };
        let may_wait = may_wait(lua, cx, response);
        let Some(content) = content(lua, cx, response) else { return number(lua, 0) };
        let count = content.data.len().min(wanted - (done as usize).min(wanted));
        content.outgoing.extend(content.data.drain(..count));
        changed(cx, response);
        let done = done as usize + count;
        if done < wanted && may_wait {
            return wait_more(lua, cx, done as lua_KContext, continuation!(forward_from));
        }
        number(lua, done as i64)
    }
}

/// Returns the number of incoming bytes; in HTTP mode, that of the head and of the known part of the body.
unsafe fn input(lua: *mut lua_State) -> c_int {
    // SAFETY: as `channel`.
    unsafe {
        let Some((response, cx)) = channel(lua) else { return number(lua, 0) };
        let head = match (cx.frontend.config.mode, response) {
            (Mode::Tcp | Mode::Log | Mode::Spop, _) => 0,
            (Mode::Http, false) => cx.request.wire_len(),
            (Mode::Http, true) if cx.in_response => cx.response.wire_len(),
            (Mode::Http, true) => 0,
        };
        let head = if host(lua).current.filter.is_null() { head } else { 0 };
        let known = known_content(lua, cx, response).map_or(0, |content| content.data.len());
        number(lua, (head + known) as i64)
    }
}

/// Returns the number of outgoing bytes.
unsafe fn output(lua: *mut lua_State) -> c_int {
    // SAFETY: as `channel`.
    unsafe {
        let Some((response, cx)) = channel(lua) else { return number(lua, 0) };
        let waiting = cx.lua.channels.as_ref().filter(|_| response).map_or(0, |io| io.to_client.borrow().len());
        let known = known_content(lua, cx, response).map_or(waiting, |content| content.outgoing.len());
        number(lua, known as i64)
    }
}

unsafe fn is_full(lua: *mut lua_State) -> c_int {
    // SAFETY: as `channel`.
    unsafe {
        let size = host(lua).shared.bufsize;
        let full = channel(lua)
            .and_then(|(response, cx)| known_content(lua, cx, response))
            .is_some_and(|content| content.outgoing.len() + content.data.len() >= size);
        ffi::lua_pushboolean(lua, c_int::from(full));
        1
    }
}

unsafe fn is_resp(lua: *mut lua_State) -> c_int {
    // SAFETY: as `channel`.
    unsafe {
        let response = channel(lua).is_some_and(|(response, _)| response);
        ffi::lua_pushboolean(lua, c_int::from(response));
        1
    }
}

/// Returns whether more data may arrive.
unsafe fn may_recv(lua: *mut lua_State) -> c_int {
    // SAFETY: as `channel`.
    unsafe {
        let filtered = host(lua).current.filter.as_ref().and_then(|call| call.payload.as_ref());
        if let Some(payload) = filtered {
            ffi::lua_pushboolean(lua, c_int::from(!payload.ended));
            return 1;
        }
        let may = channel(lua).is_some_and(|(response, cx)| match cx.lua.channels.as_ref() {
            Some(io) if response == cx.in_response => !io.over.get(),
            _ => response != cx.in_response || cx.frontend.config.mode == Mode::Http,
        });
        ffi::lua_pushboolean(lua, c_int::from(may));
        1
    }
}
