//! Lua's standard libraries for scripts of the proxy: Lua's own functions wherever a call takes a short time.
//!
//! Scripts of a proxy are trusted, but their data comes from clients: a pattern that takes exponential time,
//! or a table that a client's request made large, must not block a worker's other connections. A hook runs between
//! two instructions, and a call of a C function is one instruction. The functions that can take long are therefore
//! replaced by functions that first examine their arguments:
//!
//! - small arguments are passed to Lua's own function, called in place, so results, errors and speed are Lua's;
//! - searches that may take long have a matcher that can be suspended ([`search`], [`pattern`]);
//! - large arguments, or ones with metamethods, are processed by the prelude in Lua, where the hook runs ([`Slow`]);
//! - finalizers run as coroutines with a budget of their own ([`finalizer`]).
//!
//! **Limits.** A string that a script creates while it serves has at most [`STRING_MAX`] bytes, because an operation of
//! Lua's core on one string (`..`, a copy, a hash) can't be suspended; neither can the collector while it marks one
//! table. Lua code that C code calls (the handler of `xpcall`, the chunk that `require` runs, callbacks of C modules)
//! is ended after a fiftieth of the burst's time.

mod finalizer;
mod pattern;
mod search;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use pattern::Matcher;

use crate::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use crate::run::{Coroutine, Poll};
use crate::state::{Core, Error, State};
use crate::{Budget, continuation, function, raise, to_bytes};

/// The functions for slow cases.
const PRELUDE: &str = include_str!("prelude.lua");

/// The maximum length of a string that a script creates in a burst, in bytes.
pub(crate) const STRING_MAX: usize = 32 << 20;

/// The maximum number of bytes that one call of Lua's own functions processes; [`ELEMENTS_MAX`] that of elements.
const BYTES_MAX: usize = 256 << 10;
const ELEMENTS_MAX: i64 = 4096;

/// The maximum size of a state, in kilobytes, that is collected in one call.
const COLLECTED_MAX: c_int = 2048;

/// The number of bytes of source text that are compiled between two polls.
const SOURCE_PIECE: usize = 4096;

/// The data of a state with these libraries in its core.
#[derive(Default)]
pub(crate) struct Own {
    matcher: Option<NonNull<Matcher>>,
    /// The index in the registry of the table with the prelude's functions.
    slow: c_int,
    /// The indices of the table of due finalizers, and of the table of objects with a finalizer.
    pending: c_int,
    finalized: c_int,
    /// Whether finalizers are due.
    is_due: bool,
    /// Whether the state is being closed.
    closes: bool,
    /// The coroutine that runs finalizers, with its budget.
    finalizing: Option<(Coroutine, Budget)>,
}

impl Own {
    /// Returns whether the libraries are open.
    pub(crate) fn is_open(&self) -> bool {
        self.slow != 0
    }

    /// Returns the matcher that searches of this state share.
    ///
    /// # Safety
    /// No other reference to it is alive.
    unsafe fn matcher<'a>(&mut self) -> &'a mut Matcher {
        let matcher = self.matcher.get_or_insert_with(|| NonNull::from(Box::leak(Box::default())));
        // SAFETY: it lives until the state is dropped; the caller has it alone.
        unsafe { matcher.as_mut() }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(matcher) = self.matcher.take() {
            // SAFETY: made by a box, and nothing of the state runs any more.
            drop(unsafe { Box::from_raw(matcher.as_ptr()) });
        }
    }
}

/// Lua's own functions that are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Original {
    Find,
    Match,
    Gmatch,
    Gsub,
    Rep,
    Upper,
    Lower,
    Reverse,
    Format,
    Pack,
    Packsize,
    StringUnpack,
    Concat,
    Insert,
    Remove,
    Move,
    Unpack,
    Sort,
    Utf8Len,
    ToString,
    Print,
    SetMetatable,
    DebugSetMetatable,
    CollectGarbage,
    XpCall,
    Load,
}

/// The library (`None` for a global), the name and the replacement of each, in the order of [`Original`].
const REPLACED: [(Option<&CStr>, &CStr, lua_CFunction); 26] = [
    (Some(c"string"), c"find", function!(search::find)),
    (Some(c"string"), c"match", function!(search::r#match)),
    (Some(c"string"), c"gmatch", function!(search::gmatch)),
    (Some(c"string"), c"gsub", function!(search::gsub)),
    (Some(c"string"), c"rep", function!(rep)),
    (Some(c"string"), c"upper", function!(upper)),
    (Some(c"string"), c"lower", function!(lower)),
    (Some(c"string"), c"reverse", function!(reverse)),
    (Some(c"string"), c"format", function!(format)),
    (Some(c"string"), c"pack", function!(pack)),
    (Some(c"string"), c"packsize", function!(packsize)),
    (Some(c"string"), c"unpack", function!(string_unpack)),
    (Some(c"table"), c"concat", function!(concat)),
    (Some(c"table"), c"insert", function!(insert)),
    (Some(c"table"), c"remove", function!(remove)),
    (Some(c"table"), c"move", function!(r#move)),
    (Some(c"table"), c"unpack", function!(unpack)),
    (Some(c"table"), c"sort", function!(sort)),
    (Some(c"utf8"), c"len", function!(utf8_len)),
    (None, c"tostring", function!(tostring)),
    (None, c"print", function!(print)),
    (None, c"setmetatable", function!(finalizer::setmetatable)),
    (Some(c"debug"), c"setmetatable", function!(finalizer::debug_setmetatable)),
    (None, c"collectgarbage", function!(collectgarbage)),
    (None, c"xpcall", function!(xpcall)),
    (None, c"load", function!(load)),
];

const _: () = assert!(Original::Load as usize + 1 == REPLACED.len());

/// Lua's own functions in the order of [`Original`]; they are the same in every state of the process.
static ORIGINALS: OnceLock<[lua_CFunction; REPLACED.len()]> = OnceLock::new();

/// Lua's own functions that the prelude uses: the name in the prelude, the library, the name in the library.
const NEEDED: [(&CStr, Option<&CStr>, &CStr); 21] = [
    (c"concat", Some(c"table"), c"concat"),
    (c"unpack", Some(c"table"), c"unpack"),
    (c"pack", Some(c"table"), c"pack"),
    (c"format", Some(c"string"), c"format"),
    (c"gmatch", Some(c"string"), c"gmatch"),
    (c"sub", Some(c"string"), c"sub"),
    (c"byte", Some(c"string"), c"byte"),
    (c"upper", Some(c"string"), c"upper"),
    (c"lower", Some(c"string"), c"lower"),
    (c"reverse", Some(c"string"), c"reverse"),
    (c"utf8len", Some(c"utf8"), c"len"),
    (c"print", None, c"print"),
    (c"tostring", None, c"tostring"),
    (c"collectgarbage", None, c"collectgarbage"),
    (c"getmetatable", Some(c"debug"), c"getmetatable"),
    (c"rawget", None, c"rawget"),
    (c"select", None, c"select"),
    (c"type", None, c"type"),
    (c"pcall", None, c"pcall"),
    (c"error", None, c"error"),
    (c"math", None, c"math"),
];

/// The prelude's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Slow {
    Index,
    Upper,
    Lower,
    Reverse,
    Utf8Len,
    ToString,
    Print,
    Format,
    Load,
    Concat,
    Insert,
    Remove,
    Move,
    Unpack,
    Sort,
    Finalize,
    CollectGarbage,
}

/// Their names, in the order of [`Slow`].
const SLOW: [&CStr; 17] = [
    c"index",
    c"upper",
    c"lower",
    c"reverse",
    c"utf8len",
    c"tostring",
    c"print",
    c"format",
    c"load",
    c"concat",
    c"insert",
    c"remove",
    c"move",
    c"unpack",
    c"sort",
    c"finalize",
    c"collectgarbage",
];

const _: () = assert!(Slow::CollectGarbage as usize + 1 == SLOW.len());

/// Opens the standard libraries and replaces functions that can take long.
///
/// # Safety
/// Called inside a protected call; may raise.
pub(crate) unsafe fn open(lua: *mut lua_State) {
    // SAFETY: as promised by the caller.
    unsafe {
        ffi::luaL_openlibs(lua);
        crate::coroutine::open(lua);
        let mut originals = [function!(nothing); REPLACED.len()];
        for (at, (library, name, _)) in REPLACED.iter().enumerate() {
            push_member(lua, *library, name);
            originals[at] = ffi::lua_tocfunction(lua, -1).unwrap_or(originals[at]);
            ffi::lua_settop(lua, -2);
        }
        let _ = ORIGINALS.set(originals);
        finalizer::open(lua);
        open_prelude(lua);
        for (library, name, function) in REPLACED {
            match library {
                None => _ = ffi::lua_pushglobaltable(lua),
                Some(library) => _ = ffi::lua_getglobal(lua, library.as_ptr()),
            }
            ffi::lua_pushcfunction(lua, function);
            ffi::lua_setfield(lua, -2, name.as_ptr());
            ffi::lua_settop(lua, -2);
        }
    }
}

impl State {
    /// Removes libraries from scripts; existing references to their functions stay valid. Without `string`, strings
    /// have no methods.
    pub fn close_libraries(&mut self, names: &[&CStr]) -> Result<(), Error> {
        // SAFETY: nothing with a destructor is alive in the closure.
        unsafe {
            self.protect(|lua| {
                ffi::lua_getfield(lua, ffi::LUA_REGISTRYINDEX, ffi::LUA_LOADED_TABLE);
                for name in names {
                    ffi::lua_pushnil(lua);
                    ffi::lua_setfield(lua, 1, name.as_ptr());
                    ffi::lua_pushnil(lua);
                    ffi::lua_setglobal(lua, name.as_ptr());
                    if *name == c"string" {
                        ffi::lua_pushstring(lua, c"".as_ptr());
                        ffi::lua_pushnil(lua);
                        ffi::lua_setmetatable(lua, -2);
                    } else if *name == c"package" {
                        ffi::lua_pushnil(lua);
                        ffi::lua_setglobal(lua, c"require".as_ptr());
                    }
                }
            })
        }
    }
}

unsafe fn nothing(_: *mut lua_State) -> c_int {
    0
}

/// Pushes a member of a library, or a global.
unsafe fn push_member(lua: *mut lua_State, library: Option<&CStr>, name: &CStr) {
    // SAFETY: as `open`.
    unsafe {
        match library {
            None => _ = ffi::lua_getglobal(lua, name.as_ptr()),
            Some(library) => {
                ffi::lua_getglobal(lua, library.as_ptr());
                ffi::lua_getfield(lua, -1, name.as_ptr());
                ffi::lua_remove(lua, -2);
            }
        }
    }
}

/// Runs the prelude and keeps its functions.
unsafe fn open_prelude(lua: *mut lua_State) {
    // SAFETY: as `open`.
    unsafe {
        let status =
            ffi::luaL_loadbufferx(lua, PRELUDE.as_ptr().cast(), PRELUDE.len(), c"=[Lua]".as_ptr(), c"t".as_ptr());
        if status != ffi::LUA_OK {
            ffi::lua_error(lua);
        }
        ffi::lua_createtable(lua, 0, NEEDED.len() as c_int + 1);
        for (key, library, name) in NEEDED {
            push_member(lua, library, name);
            ffi::lua_setfield(lua, -2, key.as_ptr());
        }
        ffi::lua_pushcfunction(lua, function!(load));
        ffi::lua_setfield(lua, -2, c"load_text".as_ptr());
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, Core::of(lua).standard.pending.into());
        ffi::lua_call(lua, 2, 1);
        ffi::lua_createtable(lua, SLOW.len() as c_int, 0);
        for (at, name) in SLOW.iter().enumerate() {
            ffi::lua_getfield(lua, -2, name.as_ptr());
            ffi::lua_rawseti(lua, -2, at as i64 + 1);
        }
        let slow = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        Core::of(lua).standard.slow = slow;
        ffi::lua_settop(lua, -2);
    }
}

/// Returns whether tests request the large case for small arguments.
#[inline]
fn is_forced() -> bool {
    #[cfg(test)]
    return tests::FORCED.get();
    #[cfg(not(test))]
    false
}

/// Calls one of Lua's own functions instead of its replacement, whose arguments are on the stack.
#[inline]
unsafe fn original(lua: *mut lua_State, which: Original) -> c_int {
    // SAFETY: a C function's usual stack, handed on. The functions were found when the first state was made.
    unsafe {
        match ORIGINALS.get() {
            Some(originals) => originals[which as usize](lua),
            None => 0,
        }
    }
}

/// Pushes one of the prelude's functions.
unsafe fn push_slow(lua: *mut lua_State, which: Slow) {
    // SAFETY: two slots are free; reading the registry raises nothing.
    unsafe {
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, Core::of(lua).standard.slow.into());
        ffi::lua_rawgeti(lua, -1, which as i64 + 1);
        ffi::lua_remove(lua, -2);
    }
}

/// Calls one of the prelude's functions with all arguments, and returns its results.
#[cold]
unsafe fn slow(lua: *mut lua_State, which: Slow) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        ffi::luaL_checkstack(lua, 3, std::ptr::null());
        push_slow(lua, which);
        ffi::lua_insert(lua, 1);
        let args = ffi::lua_gettop(lua) - 1;
        ffi::lua_callk(lua, args, ffi::LUA_MULTRET, 0, Some(continuation!(slow_done)));
        ffi::lua_gettop(lua)
    }
}

unsafe fn slow_done(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: nothing but the results is on the stack.
    unsafe { ffi::lua_gettop(lua) }
}

/// Returns whether the value at `index` has a metatable.
#[inline]
unsafe fn has_metatable(lua: *mut lua_State, index: c_int) -> bool {
    // SAFETY: a slot is free.
    unsafe {
        let has = ffi::lua_getmetatable(lua, index) != 0;
        if has {
            ffi::lua_settop(lua, -2);
        }
        has
    }
}

/// Returns whether converting the value at `index` to text runs a function of the script.
unsafe fn is_converted_by_script(lua: *mut lua_State, index: c_int) -> bool {
    // SAFETY: two slots are free.
    unsafe {
        if matches!(ffi::lua_type(lua, index), ffi::LUA_TSTRING | ffi::LUA_TNUMBER)
            || ffi::luaL_getmetafield(lua, index, c"__tostring".as_ptr()) == ffi::LUA_TNIL
        {
            return false;
        }
        let by_script = ffi::lua_iscfunction(lua, -1) == 0;
        ffi::lua_settop(lua, -2);
        by_script
    }
}

/// Returns whether an argument is an integer, or absent if `or_nothing` is set. A float or a text that Lua accepts as
/// an integer is converted to one.
#[inline]
unsafe fn is_integer(lua: *mut lua_State, index: c_int, or_nothing: bool) -> bool {
    // SAFETY: a slot is free.
    unsafe {
        if ffi::lua_isinteger(lua, index) != 0 {
            return true;
        }
        if ffi::lua_type(lua, index) <= ffi::LUA_TNIL {
            return or_nothing;
        }
        let mut fits = 0;
        let value = ffi::lua_tointegerx(lua, index, &mut fits);
        if fits != 0 {
            ffi::lua_pushinteger(lua, value);
            ffi::lua_replace(lua, index);
        }
        fits != 0
    }
}

/// Raises if a string of this many bytes is too large for a burst.
unsafe fn check_size(lua: *mut lua_State, bytes: usize) {
    if bytes > STRING_MAX && crate::budget::runs() {
        // SAFETY: nothing with a destructor is alive in a C function that calls this.
        unsafe { raise(lua, c"resulting string too large") };
    }
}

unsafe fn rep(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        // Numbers count as their texts.
        for index in [1, 3] {
            if ffi::lua_type(lua, index) == ffi::LUA_TNUMBER {
                ffi::lua_tolstring(lua, index, std::ptr::null_mut());
            }
        }
        if let Some(bytes) = to_bytes(lua, 1)
            && is_integer(lua, 2, false)
        {
            let between = to_bytes(lua, 3).unwrap_or_default().len();
            let count = usize::try_from(ffi::lua_tointeger(lua, 2)).unwrap_or(0);
            check_size(lua, (bytes.len() + between).saturating_mul(count));
        }
        original(lua, Original::Rep)
    }
}

/// Converts a string by Lua's own function, or in pieces.
unsafe fn convert(lua: *mut lua_State, own: Original, in_pieces: Slow) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        if to_bytes(lua, 1).is_some_and(|bytes| bytes.len() > BYTES_MAX || is_forced()) {
            return slow(lua, in_pieces);
        }
        original(lua, own)
    }
}

unsafe fn upper(lua: *mut lua_State) -> c_int {
    // SAFETY: as `convert`.
    unsafe { convert(lua, Original::Upper, Slow::Upper) }
}

unsafe fn lower(lua: *mut lua_State) -> c_int {
    // SAFETY: as `convert`.
    unsafe { convert(lua, Original::Lower, Slow::Lower) }
}

unsafe fn reverse(lua: *mut lua_State) -> c_int {
    // SAFETY: as `convert`.
    unsafe { convert(lua, Original::Reverse, Slow::Reverse) }
}

unsafe fn format(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let top = ffi::lua_gettop(lua);
        if ffi::lua_type(lua, 1) == ffi::LUA_TSTRING && (2..=top).any(|index| is_converted_by_script(lua, index)) {
            return slow(lua, Slow::Format);
        }
        original(lua, Original::Format)
    }
}

/// Checks the layout of `string.pack`, `string.packsize` and `string.unpack`, which Lua parses non-preemptibly.
unsafe fn check_layout(lua: *mut lua_State) {
    // SAFETY: as `check_size`.
    unsafe {
        if to_bytes(lua, 1).is_some_and(|layout| layout.len() > BYTES_MAX) {
            ffi::luaL_argerror(lua, 1, c"format too long".as_ptr());
        }
    }
}

unsafe fn pack(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        check_layout(lua);
        original(lua, Original::Pack)
    }
}

unsafe fn packsize(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        check_layout(lua);
        original(lua, Original::Packsize)
    }
}

unsafe fn string_unpack(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        check_layout(lua);
        original(lua, Original::StringUnpack)
    }
}

/// Returns whether access to elements of the table at `index` may call a function of the script: a metamethod of its
/// metatable, or of those that `__index` leads to.
#[cold]
unsafe fn calls_script(lua: *mut lua_State, index: c_int) -> bool {
    /// The maximum number of tables in a chain that is examined.
    const CHAIN_MAX: u32 = 8;
    // SAFETY: four slots are free; raw access raises nothing, and pushed values are popped.
    unsafe {
        let top = ffi::lua_gettop(lua);
        ffi::luaL_checkstack(lua, 8, std::ptr::null());
        ffi::lua_pushvalue(lua, index);
        let mut calls = true;
        for _ in 0..CHAIN_MAX {
            let is_called = |name: &CStr| {
                let is_there = ffi::luaL_getmetafield(lua, -1, name.as_ptr()) != ffi::LUA_TNIL;
                is_there && ffi::lua_iscfunction(lua, -1) == 0
            };
            let from = ffi::lua_gettop(lua);
            if is_called(c"__newindex") || is_called(c"__len") {
                break;
            }
            ffi::lua_settop(lua, from);
            let next = ffi::luaL_getmetafield(lua, -1, c"__index".as_ptr());
            if next != ffi::LUA_TTABLE {
                calls = next == ffi::LUA_TFUNCTION && ffi::lua_iscfunction(lua, -1) == 0;
                break;
            }
            ffi::lua_replace(lua, top + 1);
        }
        ffi::lua_settop(lua, top);
        calls
    }
}

/// Returns the number of elements of the table at 1 if access to it runs nothing of the script; `None` otherwise.
#[inline]
unsafe fn plain_length(lua: *mut lua_State) -> Option<i64> {
    // SAFETY: a slot is free.
    unsafe {
        let is_plain = ffi::lua_type(lua, 1) == ffi::LUA_TTABLE
            && !(has_metatable(lua, 1) && calls_script(lua, 1))
            && !is_forced();
        is_plain.then(|| ffi::lua_rawlen(lua, 1) as i64)
    }
}

unsafe fn concat(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let (first, last) = (ffi::lua_tointeger(lua, 3), ffi::lua_tointeger(lua, 4));
        let length = plain_length(lua);
        let is_valid = (ffi::lua_type(lua, 2) <= ffi::LUA_TNIL || ffi::lua_isstring(lua, 2) != 0)
            && is_integer(lua, 3, true)
            && is_integer(lua, 4, true)
            && has_parts(lua, 1);
        let is_short = match length {
            None => false,
            Some(_) if ffi::lua_type(lua, 4) > ffi::LUA_TNIL => last.saturating_sub(first) <= ELEMENTS_MAX,
            Some(length) => length <= ELEMENTS_MAX,
        };
        if is_valid && !is_short { slow(lua, Slow::Concat) } else { original(lua, Original::Concat) }
    }
}

/// Returns whether a value may be used as a table: it is a table, or has a metatable.
unsafe fn has_parts(lua: *mut lua_State, index: c_int) -> bool {
    // SAFETY: a slot is free. A value whose metatable lacks the needed metamethods is refused by Lua's own function,
    // whose messages the prelude copies.
    unsafe { ffi::lua_type(lua, index) == ffi::LUA_TTABLE }
}

unsafe fn insert(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack. For a plain table nothing of the script runs.
    unsafe {
        let top = ffi::lua_gettop(lua);
        match plain_length(lua) {
            Some(length) => {
                let place = ffi::lua_tointeger(lua, 2);
                let is_long = top == 3 && is_integer(lua, 2, false) && length.saturating_sub(place) > ELEMENTS_MAX;
                if is_long && place >= 1 { slow(lua, Slow::Insert) } else { original(lua, Original::Insert) }
            }
            None if has_parts(lua, 1) && (top == 2 || (top == 3 && is_integer(lua, 2, false))) => {
                slow(lua, Slow::Insert)
            }
            None => original(lua, Original::Insert),
        }
    }
}

unsafe fn remove(lua: *mut lua_State) -> c_int {
    // SAFETY: as `insert`.
    unsafe {
        let is_valid = is_integer(lua, 2, true);
        match plain_length(lua) {
            Some(length) => {
                let place = ffi::lua_tointeger(lua, 2);
                let is_long = ffi::lua_type(lua, 2) > ffi::LUA_TNIL
                    && is_valid
                    && place >= 1
                    && length.saturating_sub(place) > ELEMENTS_MAX;
                if is_long { slow(lua, Slow::Remove) } else { original(lua, Original::Remove) }
            }
            None if has_parts(lua, 1) && is_valid => slow(lua, Slow::Remove),
            None => original(lua, Original::Remove),
        }
    }
}

unsafe fn r#move(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let to = if ffi::lua_type(lua, 5) > ffi::LUA_TNIL { 5 } else { 1 };
        let is_valid = has_parts(lua, 1) && has_parts(lua, to) && (2..=4).all(|index| is_integer(lua, index, false));
        if is_valid {
            let count = ffi::lua_tointeger(lua, 3).saturating_sub(ffi::lua_tointeger(lua, 2));
            let calls = |index| has_metatable(lua, index) && calls_script(lua, index);
            if count > ELEMENTS_MAX || calls(1) || calls(to) || is_forced() {
                return slow(lua, Slow::Move);
            }
        }
        original(lua, Original::Move)
    }
}

unsafe fn unpack(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack. Lua's stack bounds how many values there are.
    unsafe {
        let is_valid = is_integer(lua, 2, true) && is_integer(lua, 3, true);
        if is_valid && has_parts(lua, 1) && plain_length(lua).is_none() {
            return slow(lua, Slow::Unpack);
        }
        original(lua, Original::Unpack)
    }
}

unsafe fn sort(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let order = ffi::lua_type(lua, 2);
        if order > ffi::LUA_TNIL && order != ffi::LUA_TFUNCTION {
            return original(lua, Original::Sort);
        }
        let by_order = order == ffi::LUA_TFUNCTION;
        match plain_length(lua) {
            Some(length) if !by_order && length <= ELEMENTS_MAX && is_of_plain(lua, length) => {
                original(lua, Original::Sort)
            }
            // This sort can be suspended and continued.
            Some(_) if !has_metatable(lua, 1) => crate::sandbox::sort(lua),
            _ if has_parts(lua, 1) => slow(lua, Slow::Sort),
            _ => original(lua, Original::Sort),
        }
    }
}

/// Returns whether comparing the elements of the table at 1 runs no function of the script and takes a short time.
unsafe fn is_of_plain(lua: *mut lua_State, length: i64) -> bool {
    // SAFETY: a slot is free.
    unsafe {
        let mut bytes = 0;
        for at in 1..=length {
            let kind = ffi::lua_rawgeti(lua, 1, at);
            bytes += to_bytes(lua, -1).unwrap_or_default().len();
            let is_plain = !matches!(kind, ffi::LUA_TTABLE | ffi::LUA_TUSERDATA);
            ffi::lua_settop(lua, -2);
            if !is_plain || bytes > BYTES_MAX {
                return false;
            }
        }
        true
    }
}

unsafe fn utf8_len(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let is_long = to_bytes(lua, 1).is_some_and(|bytes| bytes.len() > BYTES_MAX || is_forced());
        if is_long && is_integer(lua, 2, true) && is_integer(lua, 3, true) {
            return slow(lua, Slow::Utf8Len);
        }
        original(lua, Original::Utf8Len)
    }
}

unsafe fn tostring(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        if is_converted_by_script(lua, 1) {
            ffi::lua_settop(lua, 1);
            return slow(lua, Slow::ToString);
        }
        original(lua, Original::ToString)
    }
}

unsafe fn print(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let top = ffi::lua_gettop(lua);
        if (1..=top).any(|index| is_converted_by_script(lua, index)) {
            return slow(lua, Slow::Print);
        }
        original(lua, Original::Print)
    }
}

unsafe fn collectgarbage(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let is_long = match to_bytes(lua, 1) {
            Some(b"collect") => ffi::lua_gc(lua, ffi::LUA_GCCOUNT) > COLLECTED_MAX,
            None if ffi::lua_type(lua, 1) <= ffi::LUA_TNIL => ffi::lua_gc(lua, ffi::LUA_GCCOUNT) > COLLECTED_MAX,
            Some(b"step") => is_integer(lua, 2, false) && ffi::lua_tointeger(lua, 2) > 64,
            Some(b"generational" | b"incremental") => (2..=4).all(|index| is_integer(lua, index, true)),
            _ => false,
        };
        if is_long {
            return slow(lua, Slow::CollectGarbage);
        }
        let results = original(lua, Original::CollectGarbage);
        if !Core::of(lua).standard.is_due {
            return results;
        }
        // As in Lua, the finalizers of the objects that this call found have run when it returns.
        push_slow(lua, Slow::Finalize);
        ffi::lua_callk(lua, 0, 0, 0, Some(continuation!(collected)));
        1
    }
}

unsafe fn collected(_: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // The result is still on top of the stack.
    1
}

unsafe fn xpcall(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; the handler becomes the upvalue of the one in its place.
    unsafe {
        if ffi::lua_type(lua, 2) == ffi::LUA_TFUNCTION && ffi::lua_iscfunction(lua, 2) == 0 {
            ffi::lua_pushvalue(lua, 2);
            ffi::lua_pushcclosure(lua, function!(handle), 1);
            ffi::lua_replace(lua, 2);
        }
        original(lua, Original::XpCall)
    }
}

/// Calls the handler of an error, unless the error is that the script's time is used up: the handler would run inside
/// the hook that raises this error, where no other hook runs, so nothing could end it.
unsafe fn handle(lua: *mut lua_State) -> c_int {
    // SAFETY: the error is the only argument; the upvalue is the handler.
    unsafe {
        let core = Core::of(lua);
        if !core.running.limits.expired && !core.stop.load(Ordering::Relaxed) {
            ffi::lua_pushvalue(lua, ffi::lua_upvalueindex(1));
            ffi::lua_insert(lua, 1);
            ffi::lua_call(lua, 1, 1);
        }
        1
    }
}

/// The rest of a chunk being compiled.
struct Source {
    bytes: *const u8,
    left: usize,
}

unsafe fn load(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; the chunk's bytes stay on it.
    unsafe {
        match ffi::lua_type(lua, 1) {
            ffi::LUA_TFUNCTION => {
                let name = ffi::lua_type(lua, 2);
                let is_valid = name <= ffi::LUA_TNIL || name == ffi::LUA_TSTRING;
                let mode = ffi::lua_type(lua, 3);
                if is_valid && (mode <= ffi::LUA_TNIL || mode == ffi::LUA_TSTRING) {
                    return slow(lua, Slow::Load);
                }
                original(lua, Original::Load)
            }
            ffi::LUA_TSTRING if to_bytes(lua, 1).is_some_and(|bytes| bytes.len() > BYTES_MAX) => load_long(lua),
            _ => original(lua, Original::Load),
        }
    }
}

/// Compiles a long chunk, within the time limit of the burst.
unsafe fn load_long(lua: *mut lua_State) -> c_int {
    // SAFETY: as `load`.
    unsafe {
        let bytes = to_bytes(lua, 1).unwrap_or_default();
        let name = ffi::luaL_optlstring(lua, 2, bytes.as_ptr().cast(), std::ptr::null_mut());
        let mode = ffi::luaL_optlstring(lua, 3, c"bt".as_ptr(), std::ptr::null_mut());
        let has_environment = ffi::lua_type(lua, 4) != ffi::LUA_TNONE;
        let mut source = Source { bytes: bytes.as_ptr(), left: bytes.len() };
        let status = ffi::lua_load(lua, read, (&raw mut source).cast(), name, mode);
        if status != ffi::LUA_OK {
            ffi::lua_pushnil(lua);
            ffi::lua_insert(lua, -2);
            return 2;
        }
        if has_environment {
            ffi::lua_pushvalue(lua, 4);
            if ffi::lua_setupvalue(lua, -2, 1).is_null() {
                ffi::lua_settop(lua, -2);
            }
        }
        1
    }
}

/// Passes a piece of a chunk to the compiler, which cannot be suspended but can be aborted.
unsafe extern "C-unwind" fn read(
    lua: *mut lua_State,
    source: *mut std::ffi::c_void,
    size: *mut usize,
) -> *const std::ffi::c_char {
    // SAFETY: `load_long` holds the record while it compiles; both have nothing with a destructor.
    unsafe {
        if crate::run::poll_if(lua, || false) == Poll::Stop {
            crate::stopped(lua);
        }
        let source = &mut *(source as *mut Source);
        let piece = source.left.min(SOURCE_PIECE);
        let bytes = source.bytes;
        source.bytes = bytes.add(piece);
        source.left -= piece;
        *size = piece;
        if piece == 0 { std::ptr::null() } else { bytes.cast() }
    }
}
