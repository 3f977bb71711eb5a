//! Replies that scripts make: `txn:reply{…}` and what `txn:done` takes.

use std::ffi::c_int;

use sluicegate_script::ffi::{self, lua_State};
use sluicegate_script::{function, push_bytes, raise, to_bytes};
use sluicegate_wire::http::{Message, Version, status};

use super::host::{host, key};
use crate::http_client::{is_field_name, is_field_value};
use crate::local_reply::{LocalReply, ReplyPage, ReplySource};
use crate::sample::is_chunked;

/// The class, in Lua: a reply is a table of the fields that `txn:done` reads, so scripts may also write it by hand.
const CLASS: &str = r#"
-- Scripts may change the libraries, and 'tune.lua.openlibs' may leave them out.
local lower, tointeger = string.lower, math.tointeger
local reason_of = ...
local Reply = {}
Reply.__index = Reply

function Reply:set_status(status, reason)
    local code = tointeger(status)
    if not code then error("bad argument #1 to 'set_status' (number expected, got " .. type(status) .. ")", 2) end
    if code < 100 or code > 599 then return false end
    self.status, self.reason = code, reason or reason_of(code)
    return true
end

function Reply:add_header(name, value)
    if name == nil or value == nil then
        error("bad argument #" .. (name == nil and 1 or 2) .. " to 'add_header' (string expected, got no value)", 2)
    end
    name = lower(name)
    local values = self.headers[name]
    if values == nil then
        self.headers[name] = { value }
    elseif type(values) == "table" then
        values[#values + 1] = value
    else
        self.headers[name] = { values, value }
    end
end

function Reply:del_header(name)
    self.headers[lower(name)] = nil
end

function Reply:set_body(body)
    self.body = body
end

return Reply, function(txn, given)
    -- Only transactions of HTTP have it.
    if not txn.http then error("txn object is not an HTTP transaction.", 2) end
    if type(given) ~= "table" then given = {} end
    local reply = setmetatable({ headers = {}, body = given.body }, Reply)
    -- A status that is no number is passed over, with its reason.
    local number = given.status == nil or type(given.status) == "number"
    reply:set_status(200, number and given.reason or nil)
    if given.status ~= nil and number then reply:set_status(given.status, given.reason) end
    for name, values in pairs(type(given.headers) == "table" and given.headers or {}) do
        if type(values) == "table" then
            local from = values[0] ~= nil and 0 or 1
            for index = from, #values do
                reply:add_header(name, values[index])
            end
        else
            reply:add_header(name, values)
        end
    end
    return reply
end
"#;

/// Pushes `txn:reply`.
pub(super) unsafe fn push_constructor(lua: *mut lua_State) {
    // SAFETY: called inside a protected call; nothing is held.
    unsafe {
        let status = ffi::luaL_loadbufferx(lua, CLASS.as_ptr().cast(), CLASS.len(), c"=reply".as_ptr(), c"t".as_ptr());
        if status != ffi::LUA_OK {
            ffi::lua_error(lua);
        }
        ffi::lua_pushcclosure(lua, function!(reason_of), 0);
        ffi::lua_call(lua, 1, 2);
        ffi::lua_insert(lua, -2);
        ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::REPLY).cast());
    }
}

/// The usual reason of a status.
unsafe fn reason_of(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let code = u16::try_from(ffi::luaL_checkinteger(lua, 1)).unwrap_or_default();
        push_bytes(lua, status::reason(code).as_bytes());
        1
    }
}

/// Builds the reply that the table at `index` describes, in the host.
pub(super) unsafe fn build(lua: *mut lua_State, index: c_int) {
    // SAFETY: the reply is owned by the host while Lua's calls may raise.
    unsafe {
        host(lua).current.reply = Some(Box::new(LocalReply {
            source: ReplySource::Return,
            head: Message::new(),
            body: Vec::new(),
            close: false,
            page: ReplyPage::None,
        }));
        ffi::lua_getfield(lua, index, c"status".as_ptr());
        let mut valid = 1;
        let code = if ffi::lua_type(lua, -1) == ffi::LUA_TNIL { 200 } else { ffi::lua_tointegerx(lua, -1, &mut valid) };
        if valid == 0 || !(100..=999).contains(&code) {
            raise(lua, c"done: invalid status code (100..999)");
        }
        let code = code as u16;
        ffi::lua_getfield(lua, index, c"reason".as_ptr());
        let reason = to_bytes(lua, -1).unwrap_or_else(|| status::reason(code).as_bytes());
        if !is_field_value(reason) {
            raise(lua, c"done: invalid reason");
        }
        // As in HAProxy, the reply has the version of the request.
        let version = host(lua).current.readable.as_ref().map_or(Version::Http11, |cx| cx.request.version());
        let Some(reply) = &mut host(lua).current.reply else { return };
        reply.head.set_response(version.min(Version::Http11), code, reason);
        ffi::lua_getfield(lua, index, c"headers".as_ptr());
        if ffi::lua_type(lua, -1) == ffi::LUA_TTABLE {
            let headers = ffi::lua_gettop(lua);
            ffi::lua_pushnil(lua);
            while ffi::lua_next(lua, headers) != 0 {
                if ffi::lua_type(lua, -1) == ffi::LUA_TTABLE {
                    let values = ffi::lua_gettop(lua);
                    let from = i64::from(ffi::lua_rawgeti(lua, values, 0) == ffi::LUA_TNIL);
                    for position in from.. {
                        if ffi::lua_rawgeti(lua, values, position) == ffi::LUA_TNIL {
                            break;
                        }
                        add_header(lua, values - 1);
                        ffi::lua_settop(lua, values);
                    }
                } else {
                    ffi::lua_pushvalue(lua, -1);
                    add_header(lua, -3);
                }
                ffi::lua_settop(lua, headers + 1);
            }
        }
        ffi::lua_getfield(lua, index, c"body".as_ptr());
        let Some(reply) = &mut host(lua).current.reply else { return };
        if let Some(body) = to_bytes(lua, -1) {
            reply.body.extend_from_slice(body);
        }
        if code != 204 && code >= 200 && reply.head.first(b"transfer-encoding").is_none() {
            reply.head.add_lower(b"content-length", itoa::Buffer::new().format(reply.body.len()).as_bytes());
        }
    }
}

/// Adds a header with the value on top and the name at `name`. Of the fields that determine the body's length only
/// chunks are taken, because the writer sets them.
unsafe fn add_header(lua: *mut lua_State, name: c_int) {
    // SAFETY: both stay on the stack.
    unsafe {
        let name = to_bytes(lua, name).unwrap_or_default();
        let mut len = 0;
        // A number is converted in its copy on top, never in the table during its traversal.
        let text = ffi::lua_tolstring(lua, -1, &mut len);
        if text.is_null() || !is_field_name(name) {
            raise(lua, c"done: invalid header");
        }
        let value = std::slice::from_raw_parts(text.cast(), len);
        if !is_field_value(value) {
            raise(lua, c"done: invalid header");
        }
        let Some(reply) = &mut host(lua).current.reply else { return };
        if name.eq_ignore_ascii_case(b"content-length") {
            return;
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            // Clients of HTTP/1.0 have no chunks.
            let fits = reply.head.version() > Version::Http10 && reply.head.first(b"transfer-encoding").is_none();
            if fits && is_chunked(value) {
                reply.head.add_lower(b"transfer-encoding", b"chunked");
            }
            return;
        }
        reply.head.add(name, value);
    }
}
