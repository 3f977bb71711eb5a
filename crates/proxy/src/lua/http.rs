//! `txn.http`: reading and changing messages from scripts.
//!
//! Values written by a script are checked: a name or value that could end its line early is refused with `false` or an
//! error, so no script can split a message by forwarding client data.

use std::ffi::{CStr, c_int};

use sluicegate_config::model::TargetPart;
use sluicegate_pattern::Regex;
use sluicegate_script::ffi::{self, lua_CFunction, lua_State};
use sluicegate_script::{argument, check_bytes, function, push_bytes, raise};
use sluicegate_wire::http::{EntryId, Message, status};
use smallvec::SmallVec;

use super::filter::check_head;
use super::host::{Host, host, set_functions};
use super::txn::{Object, is_message, message_context, object_context};
use crate::http_client::{is_field_name, is_field_value};
use crate::rule::{replace_elements, set_target};
use crate::stream::StreamContext;

/// Sets the methods in the table on top.
pub(super) unsafe fn set_methods(lua: *mut lua_State) {
    const METHODS: [(&CStr, lua_CFunction); 17] = [
        (c"req_get_headers", function!(req_get_headers)),
        (c"res_get_headers", function!(res_get_headers)),
        (c"req_add_header", function!(req_add_header)),
        (c"res_add_header", function!(res_add_header)),
        (c"req_set_header", function!(req_set_header)),
        (c"res_set_header", function!(res_set_header)),
        (c"req_del_header", function!(req_del_header)),
        (c"res_del_header", function!(res_del_header)),
        (c"req_rep_header", function!(req_rep_header)),
        (c"res_rep_header", function!(res_rep_header)),
        (c"req_rep_value", function!(req_rep_value)),
        (c"res_rep_value", function!(res_rep_value)),
        (c"req_set_method", function!(req_set_method)),
        (c"req_set_path", function!(req_set_path)),
        (c"req_set_query", function!(req_set_query)),
        (c"req_set_uri", function!(req_set_uri)),
        (c"res_set_status", function!(res_set_status)),
    ];
    // SAFETY: called inside a protected call.
    unsafe { set_functions(lua, &METHODS) };
}

/// Sets the methods of a message that are about its head in the table on top.
pub(super) unsafe fn set_message_methods(lua: *mut lua_State) {
    const METHODS: [(&CStr, lua_CFunction); 11] = [
        (c"get_headers", function!(get_message_headers)),
        (c"add_header", function!(add_message_header)),
        (c"set_header", function!(set_message_header)),
        (c"del_header", function!(del_message_header)),
        (c"rep_header", function!(rep_message_header)),
        (c"rep_value", function!(rep_message_value)),
        (c"set_method", function!(req_set_method)),
        (c"set_path", function!(req_set_path)),
        (c"set_query", function!(req_set_query)),
        (c"set_uri", function!(req_set_uri)),
        (c"set_status", function!(res_set_status)),
    ];
    // SAFETY: called inside a protected call.
    unsafe { set_functions(lua, &METHODS) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Request,
    Response,
}

/// Returns the message of a side; `None` once the stream has ended. Raises an error if the running rules are those of
/// the other side.
unsafe fn message<'a>(lua: *mut lua_State, side: Side) -> Option<&'a mut Message> {
    // SAFETY: as `object_context`.
    unsafe {
        let (cx, response): (&mut StreamContext, bool) = if is_message(lua) {
            check_head(lua);
            let (response, cx) = message_context(lua)?;
            (cx, response)
        } else {
            (object_context(lua, Object::Http)?, host(lua).current.response)
        };
        if response != (side == Side::Response) {
            match side {
                Side::Request => raise(lua, c"a request's method is called while the response is processed"),
                Side::Response => raise(lua, c"a response's method is called while the request is processed"),
            }
        }
        Some(match side {
            Side::Request => &mut cx.request,
            Side::Response => &mut cx.response,
        })
    }
}

/// Returns the side of the message at 1.
unsafe fn side_of_message(lua: *mut lua_State) -> Side {
    // SAFETY: as `message_context`.
    unsafe {
        match message_context(lua) {
            Some((true, _)) => Side::Response,
            _ => Side::Request,
        }
    }
}

unsafe fn get_headers(lua: *mut lua_State, side: Side) -> c_int {
    // SAFETY: as `push_header_table`; the side was checked, and a burst has one stream.
    unsafe {
        if message(lua, side).is_none() {
            ffi::lua_pushnil(lua);
            return 1;
        }
        match side {
            Side::Request => push_header_table(lua, |host| host.current.readable.as_ref().map(|cx| &cx.request)),
            Side::Response => push_header_table(lua, |host| host.current.readable.as_ref().map(|cx| &cx.response)),
        }
        1
    }
}

/// Pushes a table of a message's fields: lower-case names, each with a table of its values from 0.
pub(super) unsafe fn push_header_table(lua: *mut lua_State, message: impl for<'a> Fn(&'a Host) -> Option<&'a Message>) {
    // SAFETY: wherever Lua allocates, a finalizer of the script's may run and change message and host; so each text
    // is copied into Lua first, and both are looked up anew after every such call.
    unsafe {
        ffi::luaL_checkstack(lua, 6, c"out of stack".as_ptr());
        ffi::lua_createtable(lua, 0, 16);
        let table = ffi::lua_gettop(lua);
        let mut place = None;
        while let Some((id, _, value)) = message(host(lua)).and_then(|message| message.field_after(place)) {
            push_bytes(lua, value);
            let Some((named, name, _)) = message(host(lua)).and_then(|message| message.field_after(place)) else {
                break;
            };
            place = Some(id);
            if named != id {
                ffi::lua_settop(lua, table);
                continue;
            }
            let name: SmallVec<[u8; 64]> = name.iter().map(u8::to_ascii_lowercase).collect();
            let host = host(lua);
            host.text.clear();
            host.text.extend_from_slice(&name);
            drop(name);
            push_bytes(lua, &host.text);
            ffi::lua_pushvalue(lua, -1);
            if ffi::lua_rawget(lua, table) == ffi::LUA_TNIL {
                ffi::lua_settop(lua, -2);
                ffi::lua_createtable(lua, 0, 1);
                ffi::lua_pushvalue(lua, table + 1);
                ffi::lua_rawseti(lua, -2, 0);
                ffi::lua_rawset(lua, table);
            } else {
                // Counted from 0, as HAProxy does: the length operator counts from 1.
                let next = ffi::lua_rawlen(lua, -1) as i64 + 1;
                ffi::lua_pushvalue(lua, table + 1);
                ffi::lua_rawseti(lua, -2, next);
            }
            ffi::lua_settop(lua, table);
        }
        ffi::lua_settop(lua, table);
    }
}

unsafe fn add_or_set(lua: *mut lua_State, side: Side, set: bool) -> c_int {
    // SAFETY: arguments stay on the stack; the message is looked up behind every call that may run a finalizer.
    unsafe {
        let name = check_bytes(lua, 2);
        let value = check_bytes(lua, 3);
        let Some(message) = message(lua, side) else {
            ffi::lua_pushnil(lua);
            return 1;
        };
        if !is_field_name(name) || !is_field_value(value) {
            raise(lua, c"invalid header name or value");
        }
        // HAProxy sends the names that it adds in lower case.
        let lower: SmallVec<[u8; 32]> = name.iter().map(u8::to_ascii_lowercase).collect();
        if set {
            message.set(&lower, value);
        } else {
            message.add(&lower, value);
        }
        drop(lower);
        if side == Side::Request && name.eq_ignore_ascii_case(b"host") {
            message.set_authority(value);
        }
        0
    }
}

unsafe fn del_header(lua: *mut lua_State, side: Side) -> c_int {
    // SAFETY: as `add_or_set`.
    unsafe {
        let name = check_bytes(lua, 2);
        if let Some(message) = message(lua, side) {
            message.delete_all(name);
        }
        0
    }
}

/// `rep_header` (whole lines) and `rep_value` (elements between commas): a value that matches is replaced by the
/// template, whose `\1` … `\9` are the groups and `\0` the match.
unsafe fn replace(lua: *mut lua_State, side: Side, elements: bool) -> c_int {
    // SAFETY: what is owned is dropped before Lua is called.
    unsafe {
        let name = check_bytes(lua, 2);
        let pattern = check_bytes(lua, 3);
        let template = check_bytes(lua, 4);
        let Some(message) = message(lua, side) else { return 0 };
        match Regex::new(pattern, false).map(|regex| replace_values(message, name, &regex, template, elements)) {
            Ok(true) => 0,
            Ok(false) => raise(lua, c"invalid header value"),
            Err(error) => {
                drop(error);
                ffi::luaL_argerror(lua, 3, c"invalid regex".as_ptr())
            }
        }
    }
}

/// Replaces the matching values of a field; changes nothing and returns `false` if one would not be the value of a field.
fn replace_values(message: &mut Message, name: &[u8], regex: &Regex, template: &[u8], elements: bool) -> bool {
    let new = |value: &[u8]| {
        let mut new = Vec::new();
        let changed = match elements {
            true => replace_elements(value, regex, template, &mut new),
            false => regex.expand(value, template, &mut new),
        };
        changed.unwrap_or_default().then_some(new)
    };
    let values = message.fields_named(name);
    let changed: Vec<(EntryId, Vec<u8>)> = values.filter_map(|(id, value)| Some((id, new(value)?))).collect();
    let valid = changed.iter().all(|(_, value)| is_field_value(value));
    for (id, value) in changed.iter().filter(|_| valid) {
        message.set_value(*id, value);
    }
    valid
}

/// Changes the request line; returns whether the new part may stand in it.
unsafe fn change_line(lua: *mut lua_State, change: impl FnOnce(&mut Message, &[u8]) -> bool) -> c_int {
    // SAFETY: arguments stay on the stack, and nothing is owned when Lua is called.
    unsafe {
        let text = check_bytes(lua, 2);
        match message(lua, Side::Request) {
            Some(message) => ffi::lua_pushboolean(lua, c_int::from(change(message, text))),
            None => ffi::lua_pushnil(lua),
        }
        1
    }
}

unsafe fn set_part(lua: *mut lua_State, part: TargetPart) -> c_int {
    // SAFETY: as `change_line`.
    unsafe { change_line(lua, |message, text| set_target(message, part, text, usize::MAX)) }
}

unsafe fn set_method(lua: *mut lua_State) -> c_int {
    let set = |message: &mut Message, method: &[u8]| {
        let valid = is_field_name(method);
        if valid {
            message.set_method(method);
        }
        valid
    };
    // SAFETY: as `change_line`.
    unsafe { change_line(lua, set) }
}

unsafe fn res_set_status(lua: *mut lua_State) -> c_int {
    // SAFETY: arguments stay on the stack.
    unsafe {
        let code = ffi::luaL_checkinteger(lua, 2);
        let reason = argument(lua, 3);
        let Some(message) = message(lua, Side::Response) else {
            ffi::lua_pushnil(lua);
            return 1;
        };
        let set = match u16::try_from(code) {
            Ok(code) if (100..=999).contains(&code) && reason.is_none_or(is_field_value) => {
                message.set_status(code, reason.unwrap_or_else(|| status::reason(code).as_bytes()));
                true
            }
            _ => false,
        };
        ffi::lua_pushboolean(lua, c_int::from(set));
        1
    }
}

macro_rules! methods {
    ($($name:ident => $call:expr;)*) => {$(
        unsafe fn $name(lua: *mut lua_State) -> c_int {
            // SAFETY: a C function's usual stack, handed on.
            unsafe { ($call)(lua) }
        }
    )*};
}

methods! {
    get_message_headers => |lua| get_headers(lua, side_of_message(lua));
    add_message_header => |lua| add_or_set(lua, side_of_message(lua), false);
    set_message_header => |lua| add_or_set(lua, side_of_message(lua), true);
    del_message_header => |lua| del_header(lua, side_of_message(lua));
    rep_message_header => |lua| replace(lua, side_of_message(lua), false);
    rep_message_value => |lua| replace(lua, side_of_message(lua), true);
    req_get_headers => |lua| get_headers(lua, Side::Request);
    res_get_headers => |lua| get_headers(lua, Side::Response);
    req_add_header => |lua| add_or_set(lua, Side::Request, false);
    res_add_header => |lua| add_or_set(lua, Side::Response, false);
    req_set_header => |lua| add_or_set(lua, Side::Request, true);
    res_set_header => |lua| add_or_set(lua, Side::Response, true);
    req_del_header => |lua| del_header(lua, Side::Request);
    res_del_header => |lua| del_header(lua, Side::Response);
    req_rep_header => |lua| replace(lua, Side::Request, false);
    res_rep_header => |lua| replace(lua, Side::Response, false);
    req_rep_value => |lua| replace(lua, Side::Request, true);
    res_rep_value => |lua| replace(lua, Side::Response, true);
    req_set_method => |lua| set_method(lua);
    req_set_path => |lua| set_part(lua, TargetPart::Path);
    req_set_query => |lua| set_part(lua, TargetPart::Query);
    req_set_uri => |lua| set_part(lua, TargetPart::Whole);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_replaced_by_the_template() {
        let check = |value: &str, pattern: &str, template: &str, elements: bool, expected: &str| {
            let mut message = Message::new();
            message.add(b"X-A", value.as_bytes());
            let regex = Regex::new(pattern.as_bytes(), false).expect(pattern);
            assert!(replace_values(&mut message, b"x-a", &regex, template.as_bytes(), elements));
            assert_eq!(message.first(b"x-a"), Some(expected.as_bytes()), "{value} {pattern}");
        };
        check("abc", "^a(b)", "x\\1y", false, "xby");
        check("abc", "nothing", "x", false, "abc");
        check("a, b,c", "^b$", "[\\0]", true, "a,[b],c");
        check("abc", "a", "\\\\", false, "\\");
        // As rules do: expressions of PCRE, and bytes in hexadecimal.
        check("abab", "^(ab)\\1$", "\\x61", false, "a");
        for template in ["a\r\nb", "a\\x0d\\x0ab"] {
            let mut message = Message::new();
            message.add(b"x", b"v");
            let regex = Regex::new(b"v", false).expect("an expression");
            assert!(!replace_values(&mut message, b"x", &regex, template.as_bytes(), false));
            assert_eq!(message.first(b"x"), Some(&b"v"[..]));
        }
    }
}
