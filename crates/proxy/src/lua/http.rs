//! `txn.http`: reading and changing messages from scripts.
//!
//! Values written by a script are checked: a name or value that could end its line early is refused with `false` or an
//! error, so no script can split a message by forwarding client data.

use std::ffi::{CStr, c_int};

use regex::bytes::{Regex, RegexBuilder};
use sluicegate_script::ffi::{self, lua_CFunction, lua_State};
use sluicegate_script::{argument, check_bytes, function, push_bytes, raise};
use sluicegate_wire::http::{EntryId, Message, status};
use smallvec::SmallVec;

use super::filter::check_head;
use super::host::{Host, host, raise_text, set_functions};
use super::txn::{Object, is_message, message_context, object_context};
use crate::http_client::{is_field_name, is_field_value};
use crate::sample;
use crate::stream::StreamContext;

/// The maximum compiled size in bytes of a pattern of `rep_header`.
const REGEX_SIZE_MAX: usize = 1 << 20;

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

/// Returns whether a text can be a part of a request line: it contains no blanks and no control characters.
fn is_target(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| *byte > 0x20 && *byte != 0x7f)
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
    // SAFETY: the failure's text is the only owned value when Lua is called.
    unsafe {
        let name = check_bytes(lua, 2);
        let pattern = check_bytes(lua, 3);
        let template = check_bytes(lua, 4);
        let Some(message) = message(lua, side) else { return 0 };
        match replace_values(message, name, pattern, template, elements) {
            Ok(()) => 0,
            Err(error) => raise_text(lua, error),
        }
    }
}

fn replace_values(
    message: &mut Message,
    name: &[u8],
    pattern: &[u8],
    template: &[u8],
    elements: bool,
) -> Result<(), String> {
    let pattern = std::str::from_utf8(pattern).map_err(|_| "the pattern is not UTF-8".to_owned())?;
    let regex = RegexBuilder::new(pattern)
        .unicode(false)
        .size_limit(REGEX_SIZE_MAX)
        .build()
        .map_err(|error| format!("invalid pattern: {error}"))?;
    let changed: Vec<(EntryId, Vec<u8>)> = message
        .fields_named(name)
        .filter_map(|(id, value)| {
            let new =
                if elements { replace_elements(&regex, value, template) } else { expand(&regex, value, template) };
            new.map(|new| (id, new))
        })
        .collect();
    if changed.iter().any(|(_, value)| !is_field_value(value)) {
        return Err("invalid header value".to_owned());
    }
    for (id, value) in changed {
        message.set_value(id, &value);
    }
    Ok(())
}

fn replace_elements(regex: &Regex, value: &[u8], template: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(value.len());
    let mut changed = false;
    for (index, element) in value.split(|byte| *byte == b',').enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let trimmed = element.trim_ascii();
        match expand(regex, trimmed, template) {
            Some(new) => {
                // The blanks around it go with it, as in HAProxy.
                out.extend_from_slice(&new);
                changed = true;
            }
            None => out.extend_from_slice(element),
        }
    }
    changed.then_some(out)
}

/// Returns the template with its groups, if the pattern matches.
fn expand(regex: &Regex, value: &[u8], template: &[u8]) -> Option<Vec<u8>> {
    let captures = regex.captures(value)?;
    let mut out = Vec::with_capacity(template.len());
    let mut bytes = template.iter();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.as_slice().first()) {
            (b'\\', Some(digit)) if digit.is_ascii_digit() => {
                bytes.next();
                if let Some(group) = captures.get(usize::from(digit - b'0')) {
                    out.extend_from_slice(group.as_bytes());
                }
            }
            (b'\\', Some(next)) => {
                bytes.next();
                out.push(*next);
            }
            _ => out.push(*byte),
        }
    }
    Some(out)
}

/// The part of the request line that a method replaces.
#[derive(Clone, Copy)]
enum Part {
    Method,
    Path,
    Query,
    Uri,
}

unsafe fn set_part(lua: *mut lua_State, part: Part) -> c_int {
    // SAFETY: arguments stay on the stack; the new target is dropped before Lua is called.
    unsafe {
        let text = check_bytes(lua, 2);
        let Some(message) = message(lua, Side::Request) else {
            ffi::lua_pushnil(lua);
            return 1;
        };
        let set = replace_part(message, part, text);
        ffi::lua_pushboolean(lua, c_int::from(set));
        1
    }
}

fn replace_part(message: &mut Message, part: Part, text: &[u8]) -> bool {
    let empty_query = matches!(part, Part::Query) && text.is_empty();
    if !is_target(text) && !empty_query {
        return false;
    }
    match part {
        Part::Method if !is_field_name(text) => return false,
        Part::Method => message.set_method(text),
        Part::Uri => message.replace_target(text),
        Part::Path | Part::Query => {
            let target = message.target();
            let Some(path) = sample::path(target) else { return false };
            // Where the path stands in its target: `path` is a part of it.
            let start = path.as_ptr() as usize - target.as_ptr() as usize;
            let end = start + path.len();
            let mut new = Vec::with_capacity(target.len() + text.len() + 1);
            match part {
                Part::Path => {
                    new.extend_from_slice(&target[..start]);
                    new.extend_from_slice(text);
                    new.extend_from_slice(&target[end..]);
                }
                _ => {
                    new.extend_from_slice(&target[..end]);
                    if !empty_query {
                        new.push(b'?');
                        new.extend_from_slice(text);
                    }
                }
            }
            message.set_target(&new);
        }
    }
    true
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
    req_set_method => |lua| set_part(lua, Part::Method);
    req_set_path => |lua| set_part(lua, Part::Path);
    req_set_query => |lua| set_part(lua, Part::Query);
    req_set_uri => |lua| set_part(lua, Part::Uri);
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_wire::http::Version;

    #[test]
    fn parts_of_the_request_line_are_replaced() {
        let check = |target: &str, part: Part, text: &str, expected: Option<&str>| {
            let mut message = Message::new();
            message.set_request(b"GET", target.as_bytes(), Version::Http11);
            let set = replace_part(&mut message, part, text.as_bytes());
            assert_eq!(set.then(|| message.target()), expected.map(str::as_bytes), "{target} {text}");
        };
        check("/a?b=c", Part::Path, "/x", Some("/x?b=c"));
        check("/a?b=c", Part::Query, "d=e", Some("/a?d=e"));
        check("/a?b=c", Part::Query, "", Some("/a"));
        check("/a", Part::Query, "d", Some("/a?d"));
        check("http://h/a?b", Part::Path, "/x", Some("http://h/x?b"));
        check("/a", Part::Uri, "/y?z", Some("/y?z"));
        check("/a", Part::Path, "/x y", None);
        check("/a", Part::Uri, "/x\r\nEvil: 1", None);
        check("*", Part::Path, "/x", None);
    }

    #[test]
    fn values_are_replaced_by_the_template() {
        let check = |value: &str, pattern: &str, template: &str, elements: bool, expected: &str| {
            let mut message = Message::new();
            message.add(b"X-A", value.as_bytes());
            let result = replace_values(&mut message, b"x-a", pattern.as_bytes(), template.as_bytes(), elements);
            assert_eq!(result, Ok(()));
            assert_eq!(message.first(b"x-a"), Some(expected.as_bytes()), "{value} {pattern}");
        };
        check("abc", "^a(b)", "x\\1y", false, "xby");
        check("abc", "nothing", "x", false, "abc");
        check("a, b,c", "^b$", "[\\0]", true, "a,[b],c");
        check("abc", "a", "\\\\", false, "\\");
        let mut message = Message::new();
        assert!(replace_values(&mut message, b"x", b"(", b"", false).is_err());
        message.add(b"x", b"v");
        assert!(replace_values(&mut message, b"x", b"v", b"a\r\nb", false).is_err());
    }
}
