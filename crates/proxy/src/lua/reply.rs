//! Replies that scripts make: `txn:reply{…}` and what `txn:done` takes.

use std::ffi::c_int;

use sluicegate_script::ffi::{self, lua_State};
use sluicegate_script::{raise, to_bytes};
use sluicegate_wire::http::{Message, Version, status};

use super::host::{host, key};
use crate::http_client::{is_field_name, is_field_value};
use crate::local_reply::{LocalReply, ReplyPage, ReplySource};

/// The class, in Lua: a reply is a table of the fields that `txn:done` reads, so scripts may also write it by hand.
const CLASS: &str = r#"
local Reply = {}
Reply.__index = Reply

function Reply:set_status(status, reason)
    if math.type(status) ~= "integer" or status < 100 or status > 999 then
        error("invalid status code (100..999)", 2)
    end
    self.status, self.reason = status, reason
end

function Reply:add_header(name, value)
    name = string.lower(name)
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
    self.headers[string.lower(name)] = nil
end

function Reply:set_body(body)
    self.body = body
end

return Reply, function(_, given)
    given = given or {}
    local reply = setmetatable({ status = 200, headers = {}, body = given.body }, Reply)
    if given.status ~= nil then
        reply:set_status(given.status, given.reason)
    end
    for name, values in pairs(given.headers or {}) do
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
        ffi::lua_call(lua, 0, 2);
        ffi::lua_insert(lua, -2);
        ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::REPLY).cast());
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
        let Some(reply) = &mut host(lua).current.reply else { return };
        reply.head.set_response(Version::Http11, code, reason);
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
        if code != 204 && code != 304 && code >= 200 {
            reply.head.add_lower(b"content-length", itoa::Buffer::new().format(reply.body.len()).as_bytes());
        }
    }
}

/// Adds a header with the value on top and the name at `name`. Fields that determine the body's length are skipped,
/// because the writer sets them.
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
        if name.eq_ignore_ascii_case(b"content-length") || name.eq_ignore_ascii_case(b"transfer-encoding") {
            return;
        }
        if let Some(reply) = &mut host(lua).current.reply {
            reply.head.add(name, value);
        }
    }
}
