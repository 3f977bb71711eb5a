//! Compilation of source to functions: `load`, `loadstring`, and the store's scripts.
//!
//! Lua's parser reads its source piece by piece, and can be stopped at each read: a compilation that takes too long for
//! its thread is discarded and repeated on a thread for long work. Only text is loaded: binary chunks of Lua 5.4 are
//! refused.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::{Duration, Instant};

use super::buffer::{Buffer, Pile};
use super::chunk::{self, Discards, Globals};
use super::escapes::Escapes;
use super::{argument, json, message};
use crate::ffi::{self, lua_KContext, lua_State};
use crate::run::{self, Coroutine, Poll};
use crate::state::{Core, Error, ErrorKind, State};
use crate::{again, budget, continuation};

/// Bytes of source between two polls: some tens of microseconds of parsing.
const PIECE: usize = 1024;

/// Pieces that are always parsed at once, however long the processor serves others meanwhile: the reply to a short
/// script with an error does not depend on the machine's load.
const PIECES_AT_ONCE: u32 = 8;

/// The time limit of a compilation on a worker.
const PATIENCE: Duration = Duration::from_micros(500);

/// Source on its way into the parser.
struct Source<'a, F> {
    rest: &'a [u8],
    /// Passed to the parser before the source.
    before: &'static [u8],
    escapes: Escapes,
    poll: F,
    verdict: Poll,
}

/// Passes the next piece to the parser, or ends it with an error that is discarded.
unsafe extern "C-unwind" fn read<F: FnMut() -> Poll>(
    lua: *mut lua_State,
    source: *mut c_void,
    len: *mut usize,
) -> *const c_char {
    // SAFETY: the argument is the source of the frame that called the parser. A poll neither raises nor panics.
    unsafe {
        let source = &mut *(source as *mut Source<'_, F>);
        if !source.before.is_empty() {
            let before = std::mem::take(&mut source.before);
            *len = before.len();
            return before.as_ptr().cast();
        }
        if !source.rest.is_empty() {
            source.verdict = (source.poll)();
        }
        if source.verdict != Poll::Go {
            ffi::lua_pushnil(lua);
            ffi::lua_error(lua);
        }
        let piece = source.rest;
        let (kept, skipped) = source.escapes.piece(piece, PIECE);
        source.rest = &piece[kept + skipped..];
        *len = kept;
        piece.as_ptr().cast()
    }
}

/// The properties of a compiled function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// The table for its globals.
    globals: Globals,
    /// Whether it leaves `KEYS` and `ARGV` as they are.
    keeps_arguments: bool,
    /// Whether it has a concatenation of very many values.
    is_wide: bool,
}

/// The result of a compilation.
enum Compiled {
    /// The function is on the stack.
    Function(Known),
    /// The message is on the stack.
    Failed(c_int),
    /// A poll ended the compilation.
    Ended(Poll),
}

/// Compiles `code`.
unsafe fn compile<F: FnMut() -> Poll>(lua: *mut lua_State, code: &[u8], name: &CStr, poll: F) -> Compiled {
    // SAFETY: the source outlives the call, which answers with a status.
    unsafe {
        // A blank before what begins like a binary chunk makes the parser refuse it as text.
        let before: &[u8] = if code.first() == Some(&0x1b) { b" " } else { b"" };
        let mut source = Source { rest: code, before, escapes: Escapes::default(), poll, verdict: Poll::Go };
        let argument = (&raw mut source).cast();
        let status = ffi::lua_load(lua, read::<F>, argument, name.as_ptr(), c"t".as_ptr());
        if source.verdict != Poll::Go {
            ffi::lua_pop(lua, 1);
            return Compiled::Ended(source.verdict);
        }
        if status == ffi::LUA_ERRSYNTAX {
            message::adapt_syntax(lua);
        }
        if status != ffi::LUA_OK {
            return Compiled::Failed(status);
        }
        adapt(lua)
    }
}

/// Replaces the function on top of the stack by what [`chunk`] makes of it.
unsafe fn adapt(lua: *mut lua_State) -> Compiled {
    unsafe extern "C-unwind" fn write(_: *mut lua_State, part: *const c_void, len: usize, to: *mut c_void) -> c_int {
        // SAFETY: the last argument is the buffer of the frame below, which has no destructor.
        unsafe { (*(to as *mut Buffer)).extend(std::slice::from_raw_parts(part.cast(), len)) };
        0
    }
    // SAFETY: the buffer is used by nothing else until this returns; loading a dump calls nothing but its reader, and
    // raises nothing. The changed code was compiled by Lua itself, and the instructions put in are valid there.
    unsafe {
        let mut dump = Buffer::begin(lua);
        ffi::lua_dump(lua, write, (&raw mut dump).cast(), 0);
        let chunk = chunk::adapt(dump.bytes(), Core::of(lua).sandbox.discards);
        dump.free();
        let Some(chunk) = chunk else {
            return Compiled::Function(Known { globals: Globals::Sealed, keeps_arguments: false, is_wide: false });
        };
        let (globals, keeps_arguments, is_wide) = (chunk.globals, chunk.keeps_arguments, chunk.is_wide);
        if let Some(code) = chunk.changed {
            let status = ffi::luaL_loadbufferx(lua, code.as_ptr().cast(), code.len(), c"=?".as_ptr(), c"b".as_ptr());
            ffi::lua_remove(lua, -2);
            if status != ffi::LUA_OK {
                return Compiled::Failed(status);
            }
        }
        Compiled::Function(Known { globals, keeps_arguments, is_wide })
    }
}

/// Compiles within a script and returns the function, or nil and the message.
unsafe fn compile_here(lua: *mut lua_State, code: &[u8], name: &CStr, again: ffi::lua_KFunction) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots. Whether the script can wait is asked before, because nothing
    // can yield while the parser runs.
    unsafe {
        let may_leave = run::can_wait(lua);
        match compile(lua, code, name, || run::poll_if(lua, || may_leave)) {
            // The function is compiled again on a thread where it may run.
            Compiled::Function(Known { is_wide: true, .. }) if may_leave && !budget::is_patient() => {
                ffi::lua_pop(lua, 1);
                crate::leave(lua, again)
            }
            Compiled::Function(..) => 1,
            Compiled::Failed(_) => {
                ffi::lua_pushnil(lua);
                ffi::lua_insert(lua, -2);
                2
            }
            Compiled::Ended(Poll::Leave) => crate::leave(lua, again),
            Compiled::Ended(_) => crate::stopped(lua),
        }
    }
}

pub(super) unsafe fn loadstring(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots; strings of Lua's end in a zero byte.
    unsafe {
        let code = argument::string(lua, 1);
        let name = CStr::from_ptr(argument::string_or(lua, 2, code).as_ptr().cast());
        compile_here(lua, code, name, again!(loadstring))
    }
}

/// The source so far, and the userdata with its length.
const CODE: Pile = Pile { slot: 3 };
const LEN: c_int = 4;

pub(super) unsafe fn load(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::function(lua, 1);
        argument::string_or(lua, 2, b"=(load)");
        ffi::lua_settop(lua, 3);
        (ffi::lua_newuserdatauv(lua, size_of::<usize>(), 0) as *mut usize).write(0);
        ask(lua)
    }
}

/// Asks the function for pieces until there are no more, then compiles.
unsafe fn ask(lua: *mut lua_State) -> c_int {
    // SAFETY: the stack is what `load` made.
    unsafe {
        loop {
            ffi::lua_pushvalue(lua, 1);
            let status = ffi::lua_pcallk(lua, 0, 1, 0, 0, Some(continuation!(answered)));
            if let Some(results) = take(lua, status) {
                return results;
            }
        }
    }
}

unsafe fn answered(lua: *mut lua_State, status: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `ask`.
    unsafe {
        match take(lua, status) {
            Some(results) => results,
            None => ask(lua),
        }
    }
}

/// Takes the piece, or the error, on top; returns the result of `load` once that is known.
unsafe fn take(lua: *mut lua_State, status: c_int) -> Option<c_int> {
    // SAFETY: as `ask`; the length is kept in its userdata.
    unsafe {
        let kind = ffi::lua_type(lua, -1);
        let failed = status != ffi::LUA_OK && status != ffi::LUA_YIELD;
        let wrong = !matches!(kind, ffi::LUA_TNIL | ffi::LUA_TSTRING | ffi::LUA_TNUMBER);
        if failed || wrong {
            if failed {
                message::adapt(lua);
            } else {
                ffi::luaL_where(lua, 1);
                ffi::lua_pushstring(lua, c"reader function must return a string".as_ptr());
                ffi::lua_concat(lua, 2);
            }
            ffi::lua_pushnil(lua);
            ffi::lua_insert(lua, -2);
            return Some(2);
        }
        let len = ffi::lua_touserdata(lua, LEN) as *mut usize;
        let piece = if kind == ffi::LUA_TNIL { b"" } else { argument::string(lua, ffi::lua_gettop(lua)) };
        if piece.is_empty() {
            ffi::lua_settop(lua, LEN);
            return Some(load_compile(lua));
        }
        *len = CODE.add(lua, *len, piece);
        ffi::lua_settop(lua, LEN);
        None
    }
}

unsafe fn load_compile(lua: *mut lua_State) -> c_int {
    // SAFETY: as `ask`.
    unsafe {
        let len = *(ffi::lua_touserdata(lua, LEN) as *const usize);
        let name = CStr::from_ptr(argument::string_or(lua, 2, b"=(load)\0").as_ptr().cast());
        compile_here(lua, CODE.bytes(lua, len), name, again!(load_compile))
    }
}

/// A Lua function that is kept for the driver, until [`State::release`].
#[must_use = "a function that is not released stays in the registry"]
#[derive(Debug, PartialEq, Eq)]
pub struct FunctionRef {
    reference: c_int,
    known: Known,
    /// Whether its table of globals was set and needs no restoring: the function can't replace it.
    is_placed: Cell<bool>,
}

impl FunctionRef {
    /// Returns whether this thread may run it: one with a concatenation of very many values is run only on a thread
    /// that is [`patient`](crate::patient).
    pub fn may_run_here(&self) -> bool {
        !self.known.is_wide || crate::is_patient()
    }

    /// Pushes the function.
    ///
    /// # Safety
    /// `lua` belongs to the state that keeps the function, and has a free slot.
    pub unsafe fn push(&self, lua: *mut lua_State) {
        // SAFETY: as promised by the caller; reading the registry raises nothing.
        unsafe { ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, i64::from(self.reference)) };
    }

    /// Returns whether it uses globals and libraries in no other way than by reading their fields, so that it may be
    /// given a table of globals that [`open_libraries`](super::open_libraries) made.
    pub fn may_be_open(&self) -> bool {
        self.known.globals == Globals::Open
    }
}

impl State {
    /// Compiles a chunk of text, without a first line that begins with `#!`. `name` has the form `=name` or `@file`.
    ///
    /// Returns `None` if it would take too long for this thread, for which others wait; the caller repeats it on a
    /// thread that is [`patient`](crate::patient).
    pub fn compile(&mut self, code: &[u8], name: &CStr) -> Result<Option<FunctionRef>, Error> {
        let skipped = match code.starts_with(b"#!") {
            true => code.iter().position(|byte| *byte == b'\n').unwrap_or(code.len()),
            false => 0,
        };
        let code = &code[skipped..];
        let started = Instant::now();
        let hurried = !budget::is_patient();
        let mut pieces = 0;
        let poll = || {
            pieces += 1;
            if hurried && pieces > PIECES_AT_ONCE && started.elapsed() > PATIENCE { Poll::Leave } else { Poll::Go }
        };
        let mut status = ffi::LUA_OK;
        let out = &raw mut status;
        // SAFETY: the closure holds references only; `status` outlives it.
        let result = unsafe {
            self.protect(|lua| match compile(lua, code, name, poll) {
                Compiled::Function(known) => {
                    let reference = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
                    Some(FunctionRef { reference, known, is_placed: Cell::new(false) })
                }
                Compiled::Failed(status) => {
                    *out = status;
                    ffi::lua_error(lua)
                }
                Compiled::Ended(_) => None,
            })
        };
        result.map_err(|mut error| {
            if status == ffi::LUA_ERRSYNTAX {
                error.kind = ErrorKind::Syntax;
                error.trace.clear();
            }
            error
        })
    }

    /// Compiles a library like [`State::compile`]; its main function has no commands to call.
    pub fn compile_library(&mut self, code: &[u8], name: &CStr) -> Result<Option<FunctionRef>, Error> {
        let kept = self.core().sandbox.discards;
        if kept == Discards::Everywhere {
            self.core().sandbox.discards = Discards::Within;
        }
        let compiled = self.compile(code, name);
        self.core().sandbox.discards = kept;
        compiled
    }

    /// Releases a function.
    pub fn release(&mut self, function: FunctionRef) {
        // SAFETY: no value with a destructor is alive. After a failure the function's memory stays in use until the
        // state is dropped.
        let _ = unsafe { self.protect(|lua| ffi::luaL_unref(lua, ffi::LUA_REGISTRYINDEX, function.reference)) };
    }

    /// Returns a coroutine that will run `function` with new tables `KEYS` and `ARGV` of these strings among its
    /// globals: push arguments on it, then resume it with their number. Earlier changes of the function's environment
    /// are undone, as are those in [`begin_empty`](State::begin_empty).
    pub fn begin(&mut self, function: &FunctionRef, keys: &[&[u8]], arguments: &[&[u8]]) -> Result<Coroutine, Error> {
        let Known { globals, keeps_arguments, .. } = function.known;
        self.set_arguments(globals, keys, arguments)?;
        self.core().sandbox.arguments.are_kept = keeps_arguments;
        let coroutine = self.begin_empty()?;
        let thread = coroutine.thread();
        // SAFETY: the coroutine's stack is empty and has room. Reading the registry and setting an upvalue raise
        // nothing.
        unsafe {
            ffi::lua_rawgeti(thread, ffi::LUA_REGISTRYINDEX, i64::from(function.reference));
            if !function.is_placed.get() {
                super::push(thread, globals);
                if ffi::lua_setupvalue(thread, 1, 1).is_null() {
                    ffi::lua_settop(thread, 1);
                }
                function.is_placed.set(globals != Globals::Sealed);
            }
        }
        Ok(coroutine)
    }

    /// Returns a coroutine whose function is still to be pushed. Earlier settings of `cjson` are undone, and random
    /// numbers come from the shared sequence again, without a script's seed.
    pub fn begin_empty(&mut self) -> Result<Coroutine, Error> {
        let coroutine = self.coroutine()?;
        self.forget_seed();
        json::reset(&mut self.core().sandbox);
        Ok(coroutine)
    }
}
