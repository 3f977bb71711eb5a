//! Lua 5.1's math library. The random numbers are those of Redis: C's generator `lrand48`.
//!
//! All scripts of a store draw from one sequence, as all of a redis-server do, so that two that run at the same time
//! never draw the same numbers. A sequence started by `math.randomseed` is private to the script and ends with it.

use std::ffi::{CStr, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{argument, number};
use crate::ffi::{self, lua_CFunction, lua_State};
use crate::function;
use crate::state::{Core, State};

/// A generator of random numbers as C's `drand48`: 48 bits, of which the upper 31 are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Random(u64);

impl Default for Random {
    /// Redis's initial state.
    fn default() -> Random {
        Random(0x1234_abcd_330e)
    }
}

impl Random {
    pub(crate) fn seeded(seed: i32) -> Random {
        Random(u64::from(seed as u32) << 16 | 0x330e)
    }

    /// Returns the state after this one.
    fn after(self) -> Random {
        Random((self.0.wrapping_mul(0x5_deec_e66d) + 0xb) & 0xffff_ffff_ffff)
    }

    /// Returns the number that this state shows, from 0 to below 2^31.
    fn shown(self) -> i32 {
        (self.0 >> 17) as i32
    }

    fn next(&mut self) -> i32 {
        *self = self.after();
        self.shown()
    }
}

/// A sequence that many states draw from.
#[derive(Debug)]
pub struct Chance(AtomicU64);

impl Default for Chance {
    fn default() -> Chance {
        Chance(AtomicU64::new(Random::default().0))
    }
}

impl Chance {
    fn next(&self) -> i32 {
        let mut known = self.0.load(Ordering::Relaxed);
        loop {
            let next = Random(known).after();
            match self.0.compare_exchange_weak(known, next.0, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return next.shown(),
                Err(other) => known = other,
            }
        }
    }
}

/// The source of a state's random numbers.
#[derive(Default)]
pub(crate) struct Source {
    shared: Arc<Chance>,
    /// The generator seeded by the script.
    own: Option<Random>,
}

impl Source {
    /// Returns a number from 0 to below 1.
    fn fraction(&mut self) -> f64 {
        const MAX: i32 = i32::MAX;
        let number = match &mut self.own {
            Some(own) => own.next(),
            None => self.shared.next(),
        };
        f64::from(number % MAX) / f64::from(MAX)
    }
}

impl State {
    /// Lets scripts draw from this sequence.
    pub fn share_chance(&mut self, chance: Arc<Chance>) {
        self.core().sandbox.random.shared = chance;
    }

    /// Drops the last script's seed.
    pub(crate) fn forget_seed(&mut self) {
        self.core().sandbox.random.own = None;
    }
}

/// Leaves the library's table on the stack.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const FUNCTIONS: [(&CStr, lua_CFunction); 28] = [
        (c"abs", function!(abs)),
        (c"acos", function!(acos)),
        (c"asin", function!(asin)),
        (c"atan", function!(atan)),
        (c"atan2", function!(atan2)),
        (c"ceil", function!(ceil)),
        (c"cos", function!(cos)),
        (c"cosh", function!(cosh)),
        (c"deg", function!(deg)),
        (c"exp", function!(exp)),
        (c"floor", function!(floor)),
        (c"fmod", FMOD),
        (c"frexp", function!(frexp_)),
        (c"ldexp", function!(ldexp_)),
        (c"log", function!(log)),
        (c"log10", function!(log10)),
        (c"max", function!(max)),
        (c"min", function!(min)),
        (c"mod", FMOD),
        (c"modf", function!(modf)),
        (c"pow", function!(pow)),
        (c"rad", function!(rad)),
        (c"random", function!(random)),
        (c"randomseed", function!(randomseed)),
        (c"sin", function!(sin)),
        (c"sinh", function!(sinh)),
        (c"sqrt", function!(sqrt)),
        (c"tan", function!(tan)),
    ];
    // SAFETY: called inside a protected call.
    unsafe {
        super::register(lua, &FUNCTIONS);
        ffi::lua_pushcfunction(lua, function!(tanh));
        ffi::lua_setfield(lua, -2, c"tanh".as_ptr());
        ffi::lua_pushnumber(lua, std::f64::consts::PI);
        ffi::lua_setfield(lua, -2, c"pi".as_ptr());
        ffi::lua_pushnumber(lua, f64::INFINITY);
        ffi::lua_setfield(lua, -2, c"huge".as_ptr());
    }
}

const FMOD: lua_CFunction = function!(fmod);

/// Functions of one number, computed by C's library as Redis does.
macro_rules! of_one {
    ($($name:ident: $compute:expr;)*) => {$(
        unsafe fn $name(lua: *mut lua_State) -> c_int {
            // SAFETY: a C function has `LUA_MINSTACK` free slots.
            unsafe {
                let compute: fn(f64) -> f64 = $compute;
                number::push(lua, compute(argument::number(lua, 1)));
            }
            1
        }
    )*};
}

of_one! {
    abs: |x| x.abs();
    acos: |x| x.acos();
    asin: |x| x.asin();
    atan: |x| x.atan();
    ceil: |x| x.ceil();
    cos: |x| x.cos();
    cosh: |x| x.cosh();
    deg: |x| x / (std::f64::consts::PI / 180.0);
    exp: |x| x.exp();
    floor: |x| x.floor();
    log: |x| x.ln();
    log10: |x| x.log10();
    rad: |x| x * (std::f64::consts::PI / 180.0);
    sin: |x| x.sin();
    sinh: |x| x.sinh();
    sqrt: |x| x.sqrt();
    tan: |x| x.tan();
    tanh: |x| x.tanh();
}

unsafe extern "C" {
    safe fn ldexp(fraction: f64, exponent: c_int) -> f64;
    fn frexp(number: f64, exponent: *mut c_int) -> f64;
}

/// Functions of two numbers.
macro_rules! of_two {
    ($($name:ident: $compute:expr;)*) => {$(
        unsafe fn $name(lua: *mut lua_State) -> c_int {
            // SAFETY: a C function has `LUA_MINSTACK` free slots.
            unsafe {
                let compute: fn(f64, f64) -> f64 = $compute;
                number::push(lua, compute(argument::number(lua, 1), argument::number(lua, 2)));
            }
            1
        }
    )*};
}

of_two! {
    atan2: |y, x| y.atan2(x);
    fmod: |x, y| x % y;
    pow: |x, y| x.powf(y);
}

unsafe fn ldexp_(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        number::push(lua, ldexp(argument::number(lua, 1), argument::int(lua, 2)));
        1
    }
}

unsafe fn frexp_(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots; the exponent is written.
    unsafe {
        let mut exponent = 0;
        number::push(lua, frexp(argument::number(lua, 1), &mut exponent));
        ffi::lua_pushinteger(lua, i64::from(exponent));
        2
    }
}

unsafe fn modf(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        let number = argument::number(lua, 1);
        number::push(lua, number.trunc());
        let fraction = if number.is_infinite() { 0.0f64.copysign(number) } else { number - number.trunc() };
        number::push(lua, fraction.copysign(number));
        2
    }
}

unsafe fn max(lua: *mut lua_State) -> c_int {
    // SAFETY: as `choose`.
    unsafe { choose(lua, |number, most| number > most) }
}

unsafe fn min(lua: *mut lua_State) -> c_int {
    // SAFETY: as `choose`.
    unsafe { choose(lua, |number, least| number < least) }
}

#[inline]
unsafe fn choose(lua: *mut lua_State, better: impl Fn(f64, f64) -> bool) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        let count = ffi::lua_gettop(lua);
        let mut chosen = argument::number(lua, 1);
        for n in 2..=count {
            let number = argument::number(lua, n);
            if better(number, chosen) {
                chosen = number;
            }
        }
        number::push(lua, chosen);
        1
    }
}

unsafe fn random(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots; nothing else refers to the core.
    unsafe {
        let fraction = Core::of(lua).sandbox.random.fraction();
        let (lower, upper) = match ffi::lua_gettop(lua) {
            0 => {
                number::push(lua, fraction);
                return 1;
            }
            1 => {
                let upper = argument::int(lua, 1);
                if upper < 1 {
                    argument::fail(lua, 1, c"interval is empty");
                }
                (1, upper)
            }
            2 => {
                let (lower, upper) = (argument::int(lua, 1), argument::int(lua, 2));
                if lower > upper {
                    argument::fail(lua, 2, c"interval is empty");
                }
                (lower, upper)
            }
            _ => crate::raise(lua, c"wrong number of arguments"),
        };
        // The width is an `int` in Redis too, and may lose its upper bits.
        let width = f64::from(upper.wrapping_sub(lower).wrapping_add(1));
        number::push(lua, (fraction * width).floor() + f64::from(lower));
        1
    }
}

unsafe fn randomseed(lua: *mut lua_State) -> c_int {
    // SAFETY: as `random`.
    unsafe {
        let seed = argument::int(lua, 1);
        Core::of(lua).sandbox.random.own = Some(Random::seeded(seed));
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        safe fn srand48(seed: std::ffi::c_long);
        safe fn lrand48() -> std::ffi::c_long;
    }

    #[test]
    fn chance_is_that_of_lrand48() {
        // The C library's own generator begins the same way after srand48.
        for seed in [0, 5, -1, i32::MAX] {
            let mut random = Random::seeded(seed);
            srand48(seed.into());
            for _ in 0..100 {
                assert_eq!(i64::from(random.next()), lrand48());
            }
        }
    }
}
