//! Arithmetic that Lua 5.4 delegates to metatables: numeric strings (`"10" + 5`), and divisions of numbers, as
//! described in [`chunk`](super::chunk).

use std::ffi::{CStr, c_int};

use super::{argument, number};
use crate::ffi::{self, lua_CFunction, lua_State};
use crate::{continuation, function};

/// Adds the operators to the table on top of the stack.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const OPERATORS: [(&CStr, lua_CFunction); 7] = [
        (c"__add", function!(add)),
        (c"__sub", function!(sub)),
        (c"__mul", function!(mul)),
        (c"__div", function!(div)),
        (c"__mod", function!(r#mod)),
        (c"__pow", function!(pow)),
        (c"__unm", function!(unm)),
    ];
    // SAFETY: called inside a protected call.
    unsafe {
        for (name, function) in OPERATORS {
            ffi::lua_pushcfunction(lua, function);
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
    }
}

/// Pushes the metatable of numbers.
pub(super) unsafe fn push_of_numbers(lua: *mut lua_State) {
    // SAFETY: called inside a protected call.
    unsafe { super::register(lua, &[(c"__div", function!(div)), (c"__pow", function!(pow))]) };
}

macro_rules! operators {
    ($($name:ident, $event:literal: $compute:expr;)*) => {$(
        unsafe fn $name(lua: *mut lua_State) -> c_int {
            // SAFETY: a metamethod has two operands.
            unsafe { operate(lua, $event, $compute) }
        }
    )*};
}

operators! {
    add, c"__add": |a, b| a + b;
    sub, c"__sub": |a, b| a - b;
    mul, c"__mul": |a, b| a * b;
    div, c"__div": |a, b| a / b;
    r#mod, c"__mod": |a, b| a - (a / b).floor() * b;
    pow, c"__pow": |a: f64, b| a.powf(b);
    unm, c"__unm": |a, _| -a;
}

#[inline]
unsafe fn operate(lua: *mut lua_State, event: &CStr, compute: fn(f64, f64) -> f64) -> c_int {
    // SAFETY: as above.
    unsafe {
        let (left, right) = (argument::to_number(lua, 1), argument::to_number(lua, 2));
        if let (Some(left), Some(right)) = (left, right) {
            number::push(lua, compute(left, right));
            return 1;
        }
        // If a string is not a number, the other operand's metamethod is called.
        if !matches!(ffi::lua_type(lua, 2), ffi::LUA_TSTRING | ffi::LUA_TNUMBER)
            && ffi::luaL_getmetafield(lua, 2, event.as_ptr()) != ffi::LUA_TNIL
        {
            ffi::lua_pushvalue(lua, 1);
            ffi::lua_pushvalue(lua, 2);
            ffi::lua_callk(lua, 2, 1, 0, Some(continuation!(super::base::called)));
            return 1;
        }
        let name = argument::type_name(lua, if left.is_none() { 1 } else { 2 }).as_ptr();
        ffi::luaL_error(lua, c"attempt to perform arithmetic on a %s value".as_ptr(), name)
    }
}
