//! `cjson`: JSON to values and back, as lua-cjson 2.1.0 within Redis 7 does it.
//!
//! Texts, numbers and errors are Redis's to the byte, with its limits: nesting ends at the configured depth or where a
//! function of Lua 5.1 runs out of stack, whichever comes first. Neither direction recurses, so the depth costs
//! memory of Lua's and never the thread's stack. No metamethod is called.
//!
//! **Options** belong to one table of functions (`cjson` itself, or what `cjson.new()` made). Redis lets the options
//! that a script sets live on for all scripts after it; here [`reset`] restores the defaults before each run.

mod decode;
mod encode;
mod words;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use super::argument;
use crate::ffi::{self, lua_CFunction, lua_State};
use crate::function;
use crate::state::Core;

/// The most digits that numbers are written with, and the default.
const PRECISION_MAX: i32 = 14;

/// Nesting that is taken by default.
const DEPTH: i32 = 1000;

/// The treatment of NaN and infinity in a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Invalid {
    Refused,
    Written,
    Null,
}

/// The options of one table of functions.
#[derive(Clone, Copy)]
pub(super) struct Options {
    sparse_convert: bool,
    sparse_ratio: i32,
    sparse_safe: i32,
    encode_depth: i32,
    encode_invalid: Invalid,
    precision: i32,
    /// Whole numbers below this have no more than `precision` digits.
    whole: i64,
    keep_buffer: bool,
    decode_depth: i32,
    decode_invalid: bool,
}

impl Options {
    const DEFAULT: Options = Options {
        sparse_convert: false,
        sparse_ratio: 2,
        sparse_safe: 10,
        encode_depth: DEPTH,
        encode_invalid: Invalid::Refused,
        precision: PRECISION_MAX,
        whole: 10_i64.pow(PRECISION_MAX as u32),
        keep_buffer: true,
        decode_depth: DEPTH,
        decode_invalid: true,
    };

    /// Returns those of the function that runs.
    ///
    /// # Safety
    /// The function was made by [`open`].
    unsafe fn of<'a>(lua: *mut lua_State) -> &'a mut Options {
        // SAFETY: each function's first upvalue is the userdata with its options.
        unsafe { &mut *ffi::lua_touserdata(lua, ffi::lua_upvalueindex(1)).cast() }
    }
}

/// Makes the table `cjson`, whose options [`reset`] finds, and leaves it on the stack.
pub(crate) unsafe fn open(lua: *mut lua_State) {
    // SAFETY: called inside a protected call.
    unsafe {
        new_options(lua);
        ffi::lua_pushvalue(lua, -1);
        ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        Core::of(lua).sandbox.json = NonNull::new(ffi::lua_touserdata(lua, -1).cast());
        new_table(lua);
    }
}

/// Gives `cjson` its default options, as each run of a script is to find them, if there is a `cjson`.
pub(super) fn reset(own: &mut super::Own) {
    if let Some(mut options) = own.json {
        // SAFETY: the registry keeps the userdata as long as the state lives, and no function of `cjson` runs.
        unsafe { *options.as_mut() = Options::DEFAULT };
    }
}

unsafe fn new_options(lua: *mut lua_State) {
    // SAFETY: as `open`; the userdata is as large and aligned as asked.
    unsafe {
        let options: *mut Options = ffi::lua_newuserdatauv(lua, size_of::<Options>(), 0).cast();
        options.write(Options::DEFAULT);
    }
}

/// Makes the table of functions for the options on top of the stack, in their place.
unsafe fn new_table(lua: *mut lua_State) {
    const FUNCTIONS: [(&CStr, lua_CFunction); 10] = [
        (c"encode", function!(encode::encode)),
        (c"decode", function!(decode::decode)),
        (c"encode_sparse_array", function!(encode_sparse_array)),
        (c"encode_max_depth", function!(encode_max_depth)),
        (c"decode_max_depth", function!(decode_max_depth)),
        (c"encode_number_precision", function!(encode_number_precision)),
        (c"encode_keep_buffer", function!(encode_keep_buffer)),
        (c"encode_invalid_numbers", function!(encode_invalid_numbers)),
        (c"decode_invalid_numbers", function!(decode_invalid_numbers)),
        (c"new", function!(new)),
    ];
    // SAFETY: as `open`.
    unsafe {
        ffi::lua_createtable(lua, 0, FUNCTIONS.len() as c_int + 3);
        for (name, function) in FUNCTIONS {
            ffi::lua_pushvalue(lua, -2);
            ffi::lua_pushcclosure(lua, function, 1);
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
        ffi::lua_pushlightuserdata(lua, ptr::null_mut::<c_void>());
        ffi::lua_setfield(lua, -2, c"null".as_ptr());
        for (name, value) in [(c"_NAME", c"cjson"), (c"_VERSION", c"2.1.0")] {
            ffi::lua_pushstring(lua, value.as_ptr());
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
        ffi::lua_replace(lua, -2);
    }
}

unsafe fn new(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        new_options(lua);
        new_table(lua);
        1
    }
}

/// Sees to it that there are just `count` arguments, absent ones nil.
unsafe fn arguments(lua: *mut lua_State, count: c_int) {
    // SAFETY: a C function's usual stack.
    unsafe {
        if ffi::lua_gettop(lua) > count {
            argument::fail(lua, count + 1, c"found too many arguments");
        }
        ffi::lua_settop(lua, count);
    }
}

/// Returns the index of the argument in `names`, the last one for `true` and the first one for `false`; `None` if it is
/// nil.
unsafe fn choice(lua: *mut lua_State, index: c_int, names: &[&CStr], on: usize) -> Option<usize> {
    // SAFETY: a C function's usual stack; a string on it ends with a zero byte.
    unsafe {
        match ffi::lua_type(lua, index) {
            ffi::LUA_TNIL => return None,
            ffi::LUA_TBOOLEAN => return Some(if ffi::lua_toboolean(lua, index) != 0 { on } else { 0 }),
            ffi::LUA_TSTRING | ffi::LUA_TNUMBER => {}
            _ => argument::fail_type(lua, index, c"string"),
        }
        let given: *const c_char = argument::string(lua, index).as_ptr().cast();
        match names.iter().position(|name| *name == CStr::from_ptr(given)) {
            Some(chosen) => Some(chosen),
            None => {
                let message = ffi::lua_pushfstring(lua, c"invalid option '%s'".as_ptr(), given);
                argument::fail(lua, index, CStr::from_ptr(message))
            }
        }
    }
}

/// Sets `setting` from an argument that is not nil, and pushes its value.
unsafe fn limit(lua: *mut lua_State, index: c_int, setting: &mut i32, least: i32, most: i32) {
    // SAFETY: a C function's usual stack; the message stays on it.
    unsafe {
        if ffi::lua_type(lua, index) != ffi::LUA_TNIL {
            // What does not fit is cut to 32 bits before it is looked at.
            let value = argument::int(lua, index);
            if value < least || value > most {
                let text = c"expected integer between %d and %d";
                let message = ffi::lua_pushfstring(lua, text.as_ptr(), least, most);
                argument::fail(lua, 1, CStr::from_ptr(message));
            }
            *setting = value;
        }
        ffi::lua_pushinteger(lua, (*setting).into());
    }
}

/// As [`limit`], for a setting that is on or off.
unsafe fn switch(lua: *mut lua_State, index: c_int, setting: &mut bool) {
    // SAFETY: a C function's usual stack.
    unsafe {
        if let Some(chosen) = choice(lua, index, &[c"off", c"on"], 1) {
            *setting = chosen == 1;
        }
        ffi::lua_pushboolean(lua, (*setting).into());
    }
}

unsafe fn encode_sparse_array(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        arguments(lua, 3);
        let options = Options::of(lua);
        switch(lua, 1, &mut options.sparse_convert);
        limit(lua, 2, &mut options.sparse_ratio, 0, i32::MAX);
        limit(lua, 3, &mut options.sparse_safe, 0, i32::MAX);
        3
    }
}

unsafe fn encode_max_depth(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        arguments(lua, 1);
        limit(lua, 1, &mut Options::of(lua).encode_depth, 1, i32::MAX);
        1
    }
}

unsafe fn decode_max_depth(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        arguments(lua, 1);
        limit(lua, 1, &mut Options::of(lua).decode_depth, 1, i32::MAX);
        1
    }
}

unsafe fn encode_number_precision(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        arguments(lua, 1);
        let options = Options::of(lua);
        limit(lua, 1, &mut options.precision, 1, PRECISION_MAX);
        options.whole = 10_i64.pow(options.precision as u32);
        1
    }
}

/// There is no buffer to keep: the setting is only stored and returned.
unsafe fn encode_keep_buffer(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        arguments(lua, 1);
        switch(lua, 1, &mut Options::of(lua).keep_buffer);
        1
    }
}

unsafe fn encode_invalid_numbers(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        arguments(lua, 1);
        let options = Options::of(lua);
        match choice(lua, 1, &[c"off", c"on", c"null"], 1) {
            None => {}
            Some(0) => options.encode_invalid = Invalid::Refused,
            Some(1) => options.encode_invalid = Invalid::Written,
            Some(_) => options.encode_invalid = Invalid::Null,
        }
        match options.encode_invalid {
            Invalid::Refused => ffi::lua_pushboolean(lua, 0),
            Invalid::Written => ffi::lua_pushboolean(lua, 1),
            Invalid::Null => {
                ffi::lua_pushstring(lua, c"null".as_ptr());
            }
        }
        1
    }
}

unsafe fn decode_invalid_numbers(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        arguments(lua, 1);
        switch(lua, 1, &mut Options::of(lua).decode_invalid);
        1
    }
}
