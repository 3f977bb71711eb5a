//! `HTTPMessage`: the head and the body of a message, for the functions of filters.
//!
//! The head can be read and changed until the body is forwarded, the body by `http_payload` only. The functions for the head
//! are those of `txn.http`, those for the body are those of channels.

use std::ffi::{CStr, c_int};

use sluicegate_script::ffi::{self, lua_CFunction, lua_State};
use sluicegate_script::{check_bytes, function, push_bytes, raise};
use sluicegate_wire::http::{Framing, StartLine, Version};

use super::host::{host, set_functions};
use super::txn::message_context;
use super::{channel, filter, http};
use crate::stream::FilterEvent;

/// Sets the methods in the table on top.
pub(super) unsafe fn set_methods(lua: *mut lua_State) {
    const METHODS: [(&CStr, lua_CFunction); 6] = [
        (c"get_stline", function!(get_stline)),
        (c"set_body_len", function!(set_body_len)),
        (c"eom", function!(eom)),
        (c"set_eom", function!(set_eom)),
        (c"unset_eom", function!(unset_eom)),
        (c"may_recv", function!(may_recv)),
    ];
    // SAFETY: called inside a protected call.
    unsafe {
        channel::set_body_methods(lua);
        http::set_message_methods(lua);
        set_functions(lua, &METHODS);
    }
}

unsafe fn push_field(lua: *mut lua_State, name: &CStr) {
    // SAFETY: the text in the host stays while Lua copies it; a table is on top.
    unsafe {
        push_bytes(lua, &host(lua).text);
        ffi::lua_setfield(lua, -2, name.as_ptr());
    }
}

/// Returns a table of the start line's parts.
unsafe fn get_stline(lua: *mut lua_State) -> c_int {
    // SAFETY: each part is copied into the host before Lua, which may run a finalizer, is called.
    unsafe {
        filter::check_head(lua);
        ffi::lua_createtable(lua, 0, 3);
        for part in 0..3 {
            let Some((response, cx)) = message_context(lua) else { return 0 };
            let head = if response { &cx.response } else { &cx.request };
            let text = &mut host(lua).text;
            text.clear();
            let version = match head.version() {
                Version::Http10 => "HTTP/1.0",
                Version::Http11 => "HTTP/1.1",
                Version::Http2 => "HTTP/2.0",
            };
            let name = match (head.start_line(), part) {
                (StartLine::Request { method, .. }, 0) => {
                    text.extend_from_slice(method);
                    c"method"
                }
                (StartLine::Request { target, .. }, 1) => {
                    text.extend_from_slice(target);
                    c"uri"
                }
                (StartLine::Response { status, .. }, 0) => {
                    text.extend_from_slice(status.to_string().as_bytes());
                    c"code"
                }
                (StartLine::Response { reason, .. }, 1) => {
                    text.extend_from_slice(reason);
                    c"reason"
                }
                _ => {
                    text.extend_from_slice(version.as_bytes());
                    c"version"
                }
            };
            push_field(lua, name);
        }
        1
    }
}

/// `set_body_len(message, length | "chunked")`: the framing of the body that is sent.
unsafe fn set_body_len(lua: *mut lua_State) -> c_int {
    // SAFETY: arguments stay on the stack; the message is changed after the last call that may raise.
    unsafe {
        if ffi::lua_gettop(lua) != 2 {
            raise(lua, c"'set_body_len' needs 2 arguments");
        }
        filter::check_head(lua);
        let framing = match ffi::lua_type(lua, 2) {
            ffi::LUA_TNUMBER if ffi::lua_tointeger(lua, 2) >= 0 => Framing::Length(ffi::lua_tointeger(lua, 2) as u64),
            ffi::LUA_TSTRING if check_bytes(lua, 2) == b"chunked" => Framing::Chunked,
            _ => raise(
                lua,
                c"The 'set_body_len' function expects a positive integer or the string 'chunked' as argument.",
            ),
        };
        let Some((response, cx)) = message_context(lua) else { return 0 };
        let head = if response { &mut cx.response } else { &mut cx.request };
        head.delete_all(b"content-length");
        head.delete_all(b"transfer-encoding");
        match framing {
            Framing::Length(length) => head.add_lower(b"content-length", length.to_string().as_bytes()),
            _ => head.add_lower(b"transfer-encoding", b"chunked"),
        };
        if let Some(filters) = &mut cx.lua.filters {
            filters.framing[usize::from(response)] = Some(framing);
        }
        ffi::lua_pushboolean(lua, 1);
        1
    }
}

/// Returns whether the end of the message has been received.
unsafe fn has_ended(lua: *mut lua_State) -> bool {
    // SAFETY: as `filter::payload`.
    unsafe {
        let Some((response, cx)) = message_context(lua) else { return true };
        let whole = cx.lua.filters.as_ref().is_some_and(|filters| filters.whole[usize::from(response)]);
        match host(lua).current.filter.as_ref() {
            Some(call) if call.response == response && matches!(call.event, Some(FilterEvent::MessageEnd)) => true,
            Some(call) if call.response == response => call.payload.as_ref().map_or(whole, |payload| payload.ended),
            _ => whole,
        }
    }
}

unsafe fn eom(lua: *mut lua_State) -> c_int {
    // SAFETY: as `has_ended`.
    unsafe {
        let ended = has_ended(lua);
        ffi::lua_pushboolean(lua, c_int::from(ended));
        1
    }
}

unsafe fn may_recv(lua: *mut lua_State) -> c_int {
    // SAFETY: as `has_ended`.
    unsafe {
        let ended = has_ended(lua);
        ffi::lua_pushboolean(lua, c_int::from(!ended));
        1
    }
}

unsafe fn set_eom(lua: *mut lua_State) -> c_int {
    // SAFETY: as `change_end`.
    unsafe { change_end(lua, true) }
}

unsafe fn unset_eom(lua: *mut lua_State) -> c_int {
    // SAFETY: as `change_end`.
    unsafe { change_end(lua, false) }
}

/// Ends the message behind the data that is there, or takes its end back until the script sets it.
unsafe fn change_end(lua: *mut lua_State, ended: bool) -> c_int {
    // SAFETY: as `filter::payload`.
    unsafe {
        let Some((response, _)) = message_context(lua) else { return 0 };
        if let Some(payload) = filter::payload(lua, response) {
            payload.ended = ended;
        }
        0
    }
}
