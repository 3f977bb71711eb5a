//! `bit`: operations on 32 bits, as Lua BitOp 1.0.2 within Redis 7 does them.
//!
//! A number becomes 32 bits by adding a constant that shifts its units to the end of the double's significand: it is
//! rounded to even, taken modulo 2³², and beyond 2⁵¹ in size loses its lowest bits. Results are signed.

use std::ffi::{CStr, c_int};
use std::ptr;

use super::{argument, register};
use crate::ffi::{self, lua_CFunction, lua_State};
use crate::function;

/// Makes the table `bit` and leaves it on the stack.
pub(crate) unsafe fn open(lua: *mut lua_State) {
    const FUNCTIONS: [(&CStr, lua_CFunction); 12] = [
        (c"tobit", function!(tobit)),
        (c"bnot", function!(bnot)),
        (c"band", function!(band)),
        (c"bor", function!(bor)),
        (c"bxor", function!(bxor)),
        (c"lshift", function!(lshift)),
        (c"rshift", function!(rshift)),
        (c"arshift", function!(arshift)),
        (c"rol", function!(rol)),
        (c"ror", function!(ror)),
        (c"bswap", function!(bswap)),
        (c"tohex", function!(tohex)),
    ];
    // SAFETY: called inside a protected call.
    unsafe { register(lua, &FUNCTIONS) };
}

/// Integers of a smaller magnitude lose nothing.
const SMALL: u64 = 1 << 51;

/// Returns the 32 bits of a number.
#[inline(always)]
fn bits(number: f64) -> u32 {
    /// 2⁵² + 2⁵¹.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    (number + SHIFT).to_bits() as u32
}

/// Returns the 32 bits of argument `index`.
#[inline(always)]
unsafe fn take(lua: *mut lua_State, index: c_int) -> u32 {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        if ffi::lua_isinteger(lua, index) != 0 {
            let whole = ffi::lua_tointegerx(lua, index, ptr::null_mut());
            if whole.unsigned_abs() < SMALL {
                return whole as u32;
            }
        }
        bits(argument::number(lua, index))
    }
}

#[inline(always)]
unsafe fn answer(lua: *mut lua_State, bits: u32) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe { ffi::lua_pushinteger(lua, i64::from(bits as i32)) };
    1
}

/// Returns all arguments combined by `join`.
#[inline(always)]
unsafe fn fold(lua: *mut lua_State, join: impl Fn(u32, u32) -> u32) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        let mut all = take(lua, 1);
        // From the last one backwards, so that an error names the last invalid argument.
        for index in (2..=ffi::lua_gettop(lua)).rev() {
            all = join(all, take(lua, index));
        }
        answer(lua, all)
    }
}

/// Shifts the first argument by the number of bits in the second, modulo 32.
#[inline(always)]
unsafe fn shift(lua: *mut lua_State, by: impl Fn(u32, u32) -> u32) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        let (bits, count) = (take(lua, 1), take(lua, 2));
        answer(lua, by(bits, count & 31))
    }
}

unsafe fn tobit(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe { answer(lua, take(lua, 1)) }
}

unsafe fn bnot(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe { answer(lua, !take(lua, 1)) }
}

unsafe fn bswap(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe { answer(lua, take(lua, 1).swap_bytes()) }
}

unsafe fn band(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe { fold(lua, |all, bits| all & bits) }
}

unsafe fn bor(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe { fold(lua, |all, bits| all | bits) }
}

unsafe fn bxor(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe { fold(lua, |all, bits| all ^ bits) }
}

unsafe fn lshift(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe { shift(lua, |bits, count| bits << count) }
}

unsafe fn rshift(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe { shift(lua, |bits, count| bits >> count) }
}

unsafe fn arshift(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe { shift(lua, |bits, count| (bits as i32 >> count) as u32) }
}

unsafe fn rol(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe { shift(lua, u32::rotate_left) }
}

unsafe fn ror(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe { shift(lua, u32::rotate_right) }
}

/// Returns hexadecimal digits, eight by default or the number in the second argument; in capitals if that is negative.
unsafe fn tohex(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        let bits = take(lua, 1);
        let wanted = if ffi::lua_type(lua, 2) == ffi::LUA_TNONE { 8 } else { take(lua, 2) as i32 };
        let digits = if wanted < 0 { b"0123456789ABCDEF" } else { b"0123456789abcdef" };
        let text: [u8; 8] = std::array::from_fn(|at| digits[(bits >> (28 - 4 * at)) as usize & 15]);
        let len = wanted.unsigned_abs().min(8) as usize;
        crate::push_bytes(lua, &text[8 - len..]);
        1
    }
}
