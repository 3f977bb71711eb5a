//! A Lua state and its resources.

use std::any::{Any, TypeId};
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::ffi::{self, lua_State};
use crate::function;
use crate::memory::{MemoryLimit, allocate, allocate_and_leave};
use crate::run::{Coroutine, Running};

/// The data to which every `lua_State` of a state points from its extra space: one load from any C function.
pub(crate) struct Core {
    /// The host and its type; reached through [`host`].
    pub(crate) host: *mut c_void,
    pub(crate) host_type: TypeId,
    /// The running coroutines.
    pub(crate) running: Running,
    /// Finished coroutines, ready for the next start.
    pub(crate) idle: Vec<Coroutine>,
    /// Whether running scripts are to be ended ([`State::stopper`]).
    pub(crate) stop: Arc<AtomicBool>,
    /// The data of the store's sandbox.
    pub(crate) sandbox: crate::sandbox::Own,
    /// The data of the standard libraries.
    pub(crate) standard: crate::standard::Own,
}

impl Core {
    /// Returns the core of the state that `lua` belongs to.
    ///
    /// # Safety
    /// `lua` belongs to a [`State`]; no other reference to the core is alive.
    pub(crate) unsafe fn of<'a>(lua: *mut lua_State) -> &'a mut Core {
        // SAFETY: the extra space of the main thread is set before anything runs and copied into each coroutine.
        unsafe { &mut **(ffi::lua_getextraspace(lua) as *mut *mut Core) }
    }
}

/// Returns the host value of the state that `lua` belongs to.
///
/// # Safety
/// `lua` belongs to a [`State`] made with a host of type `T`; no other reference to the host is alive.
pub unsafe fn host<'a, T: Any>(lua: *mut lua_State) -> &'a mut T {
    // SAFETY: as `Core::of`; the type is asserted in debug builds and promised by the caller otherwise.
    unsafe {
        let core = Core::of(lua);
        debug_assert_eq!(core.host_type, TypeId::of::<T>());
        &mut *(core.host as *mut T)
    }
}

/// The reason why Lua code did not run to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind of failure.
    pub kind: ErrorKind,
    /// Lua's message, without the traceback.
    pub message: String,
    /// The stack trace, innermost first, as HAProxy prints it: `file:line: in …, file:line: …`. May be empty.
    pub trace: String,
}

/// Kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The code does not parse.
    Syntax,
    /// An error was raised.
    Runtime,
    /// An error was raised whose value is neither a string nor a number; the message names its type.
    Object,
    /// The memory limit was reached.
    Memory,
    /// The budget is used up.
    Timeout,
    /// The script was ended from outside ([`State::stopper`]).
    Stopped,
    /// A file can't be read.
    File,
}

impl Error {
    /// Returns the failure as HAProxy reports that of a running script.
    pub fn at_run_time(&self) -> String {
        match self.kind {
            ErrorKind::Object if self.trace.is_empty() => "unknown runtime error".into(),
            ErrorKind::Object => format!("unknown runtime error from {}", self.trace),
            _ => format!("runtime error: {self}"),
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        if !self.trace.is_empty() {
            write!(f, " from {}", self.trace)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// A Lua 5.4 state.
pub struct State {
    main: *mut lua_State,
    core: *mut Core,
    drop_host: unsafe fn(*mut c_void),
    memory: Arc<MemoryLimit>,
}

// SAFETY: PUC Lua keeps no thread-local data; the state, its core and its host (Send) move together, and `&mut self`
// keeps two threads from using them at once.
unsafe impl Send for State {}

unsafe fn drop_as<T>(host: *mut c_void) {
    // SAFETY: called once, with the pointer that `Box::into_raw` gave for this type.
    drop(unsafe { Box::from_raw(host as *mut T) });
}

/// Called only if an error is raised outside of every protected call, which is a bug of this crate: the state is
/// unusable and Lua would abort silently.
unsafe extern "C-unwind" fn panic(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua leaves the error on the stack.
    let message = unsafe { error_text(lua, -1) };
    eprintln!("fatal: unprotected error in a Lua state: {message}");
    std::process::abort();
}

impl State {
    /// Returns a state with all standard libraries, as `standard` has them.
    pub fn new<T: Any + Send>(memory: Arc<MemoryLimit>, host: T) -> Result<State, Error> {
        let mut state = State::bare(memory, host)?;
        // SAFETY: the function may raise and holds nothing.
        unsafe { state.protect(|lua| crate::standard::open(lua))? };
        Ok(state)
    }

    /// Returns a state without libraries.
    pub(crate) fn bare<T: Any + Send>(memory: Arc<MemoryLimit>, host: T) -> Result<State, Error> {
        State::bare_with(allocate, memory, host)
    }

    /// Like [`bare`](Self::bare), with one of the allocators of [`memory`](crate::memory).
    pub(crate) fn bare_with<T: Any + Send>(
        allocate: ffi::lua_Alloc,
        memory: Arc<MemoryLimit>,
        host: T,
    ) -> Result<State, Error> {
        // SAFETY: the allocator's account outlives the state.
        let main = unsafe { ffi::lua_newstate(allocate, Arc::as_ptr(&memory) as *mut c_void) };
        if main.is_null() {
            return Err(Error { kind: ErrorKind::Memory, message: "not enough memory".into(), trace: String::new() });
        }
        let core = Box::into_raw(Box::new(Core {
            host: Box::into_raw(Box::new(host)) as *mut c_void,
            host_type: TypeId::of::<T>(),
            running: Running::default(),
            idle: Vec::new(),
            stop: Arc::default(),
            sandbox: Default::default(),
            standard: Default::default(),
        }));
        // SAFETY: the extra space of a new state is ours to set.
        unsafe {
            *(ffi::lua_getextraspace(main) as *mut *mut Core) = core;
            ffi::lua_atpanic(main, panic);
        }
        Ok(State { main, core, drop_host: drop_as::<T>, memory })
    }

    /// Returns the main `lua_State`.
    pub fn main(&self) -> *mut lua_State {
        self.main
    }

    pub(crate) fn core(&mut self) -> &mut Core {
        // SAFETY: made in `new`, freed in `drop`; `&mut self` makes it unique.
        unsafe { &mut *self.core }
    }

    /// Returns the host value.
    pub fn host<T: Any>(&mut self) -> &mut T {
        let core = self.core();
        assert_eq!(core.host_type, TypeId::of::<T>(), "the host's type is the one the state was made with");
        // SAFETY: the type was just checked and `&mut self` makes the reference unique.
        unsafe { &mut *(core.host as *mut T) }
    }

    /// As [`protect`](Self::protect), for calls that raise only if memory runs out, and allocate at most `bytes`,
    /// including Lua's overhead: if the limit leaves that room no protection is needed, which saves its cost for short
    /// scripts.
    ///
    /// # Safety
    /// As `protect`.
    pub(crate) unsafe fn protect_memory(&mut self, bytes: usize, f: impl FnOnce(*mut lua_State)) -> Result<(), Error> {
        // SAFETY: this reads a field. An allocator that is not ours has limits of its own.
        let is_ours = unsafe { ffi::lua_getallocf(self.main, ptr::null_mut()) } as usize
            == allocate_and_leave as *const () as usize;
        if !is_ours || !self.memory.has_room(bytes) {
            // SAFETY: as promised by the caller.
            return unsafe { self.protect(f) };
        }
        f(self.main);
        // SAFETY: between calls the main thread's stack is empty.
        unsafe { ffi::lua_settop(self.main, 0) };
        Ok(())
    }

    /// Calls `f` on the main thread of the state so that an error ends in an `Err` instead of the process.
    ///
    /// # Safety
    /// `f` leaves by a longjmp if Lua raises: it holds no value with a destructor across such a call, and it leaves
    /// the stack as it found it or higher.
    pub unsafe fn protect<R, F: FnOnce(*mut lua_State) -> R>(&mut self, f: F) -> Result<R, Error> {
        struct Call<F, R> {
            f: Option<F>,
            result: Option<R>,
        }
        unsafe extern "C-unwind" fn call<R, F: FnOnce(*mut lua_State) -> R>(lua: *mut lua_State) -> c_int {
            // SAFETY: the argument is the `Call` of the frame below, which lives until the protected call returns.
            unsafe {
                crate::guard(lua, || {
                    let call = &mut *(ffi::lua_touserdata(lua, 1) as *mut Call<F, R>);
                    ffi::lua_settop(lua, 0);
                    if let Some(f) = call.f.take() {
                        call.result = Some(f(lua));
                    }
                    0
                })
            }
        }
        let lua = self.main;
        let mut frame = Call { f: Some(f), result: None };
        // SAFETY: three free slots are guaranteed between calls; pushing light values does not raise.
        unsafe {
            ffi::lua_pushcfunction(lua, function!(trace_handler));
            let handler = ffi::lua_gettop(lua);
            ffi::lua_pushcfunction(lua, call::<R, F>);
            ffi::lua_pushlightuserdata(lua, &mut frame as *mut Call<F, R> as *mut c_void);
            let status = ffi::lua_pcall(lua, 1, 0, handler);
            if status != ffi::LUA_OK {
                let error = take_error(lua, status);
                ffi::lua_settop(lua, handler - 1);
                return Err(error);
            }
            ffi::lua_settop(lua, handler - 1);
        }
        Ok(frame.result.expect("the function returned"))
    }

    /// Puts `patterns` before `package.path` (or `package.cpath`), the first pattern first.
    pub fn prepend_path(&mut self, pattern: &str, cpath: bool) -> Result<(), Error> {
        let field = if cpath { c"cpath" } else { c"path" };
        // SAFETY: the closure holds references only.
        unsafe {
            self.protect(|lua| {
                ffi::lua_getglobal(lua, c"package".as_ptr());
                crate::push_bytes(lua, pattern.as_bytes());
                ffi::lua_pushstring(lua, c";".as_ptr());
                ffi::lua_getfield(lua, -3, field.as_ptr());
                ffi::lua_concat(lua, 3);
                ffi::lua_setfield(lua, -2, field.as_ptr());
            })
        }
    }

    /// Adds the directories in which distributions install modules to the default of `package.path` and `package.cpath`,
    /// as their own Lua has them; paths of the environment stay as they are.
    pub fn search_distribution(&mut self) -> Result<(), Error> {
        const ARCH: &str = std::env::consts::ARCH;
        let paths = "/usr/share/lua/5.4/?.lua;/usr/share/lua/5.4/?/init.lua;./?.lua;".to_owned();
        let cpaths =
            format!("/usr/lib/{ARCH}-linux-gnu/lua/5.4/?.so;/usr/lib/lua/5.4/?.so;/usr/local/lib/lua/5.4/loadall.so;");
        for (field, variables, own, more) in [
            (c"path", ["LUA_PATH_5_4", "LUA_PATH"], c"./?.lua;", paths),
            (c"cpath", ["LUA_CPATH_5_4", "LUA_CPATH"], c"/usr/local/lib/lua/5.4/loadall.so;", cpaths),
        ] {
            let set = variables.iter().find_map(std::env::var_os);
            if set.is_some_and(|set| !set.to_string_lossy().contains(";;")) {
                continue;
            }
            let more = CString::new(more).expect("text without zeros");
            // SAFETY: the closure holds references only.
            unsafe {
                self.protect(|lua| {
                    if ffi::lua_getglobal(lua, c"package".as_ptr()) != ffi::LUA_TTABLE {
                        return;
                    }
                    if ffi::lua_getfield(lua, -1, field.as_ptr()) == ffi::LUA_TSTRING {
                        ffi::luaL_gsub(lua, ffi::lua_tostring(lua, -1), own.as_ptr(), more.as_ptr());
                        ffi::lua_setfield(lua, -3, field.as_ptr());
                    }
                })
            }?;
        }
        Ok(())
    }

    /// Loads a file and runs it with `args` as its `...`, on the main thread, without a budget.
    pub fn run_file(&mut self, path: &CStr, args: &[CString]) -> Result<(), Error> {
        let mut status = ffi::LUA_OK;
        let out = &raw mut status;
        // SAFETY: the closure holds references only; `status` outlives it.
        unsafe {
            self.protect(|lua| {
                *out = ffi::luaL_loadfilex(lua, path.as_ptr(), ptr::null());
                finish_load(lua, *out, args);
            })
        }
        .map_err(|error| error.loading(status))
    }

    /// Loads a chunk of text and runs it, as [`State::run_file`] does; `name` as `=name` or `@file`.
    pub fn run_chunk(&mut self, code: &[u8], name: &CStr, args: &[CString]) -> Result<(), Error> {
        let mut status = ffi::LUA_OK;
        let out = &raw mut status;
        // SAFETY: as in `run_file`.
        unsafe {
            self.protect(|lua| {
                *out = ffi::luaL_loadbufferx(lua, code.as_ptr().cast(), code.len(), name.as_ptr(), c"t".as_ptr());
                finish_load(lua, *out, args);
            })
        }
        .map_err(|error| error.loading(status))
    }

    /// Returns the number of bytes that the state uses, as Lua counts them.
    pub fn memory_used(&mut self) -> usize {
        // A sandbox does not share its limit, which has the same number and is faster to read.
        if self.core().sandbox.on && self.memory.is_counted() {
            return self.memory.used();
        }
        // SAFETY: these two requests only read.
        unsafe {
            let kilobytes = ffi::lua_gc(self.main, ffi::LUA_GCCOUNT) as usize;
            kilobytes * 1024 + ffi::lua_gc(self.main, ffi::LUA_GCCOUNTB) as usize
        }
    }

    /// Runs a full garbage collection.
    pub fn collect(&mut self) {
        // SAFETY: finalizers run protected.
        unsafe { ffi::lua_gc(self.main, ffi::LUA_GCCOLLECT) };
    }
}

/// Calls the chunk that a load left on the stack, or raises the load's error.
unsafe fn finish_load(lua: *mut lua_State, status: c_int, args: &[CString]) {
    // SAFETY: the stack holds the chunk or the message.
    unsafe {
        if status != ffi::LUA_OK {
            ffi::lua_error(lua);
        }
        ffi::luaL_checkstack(lua, args.len() as c_int, c"too many arguments".as_ptr());
        for arg in args {
            ffi::lua_pushstring(lua, arg.as_ptr());
        }
        ffi::lua_call(lua, args.len() as c_int, 0);
    }
}

impl Error {
    /// Returns the error of a load: its status distinguishes syntax and file errors from errors raised by the chunk
    /// itself.
    fn loading(mut self, status: c_int) -> Error {
        match status {
            ffi::LUA_ERRSYNTAX => self.kind = ErrorKind::Syntax,
            ffi::LUA_ERRFILE => self.kind = ErrorKind::File,
            _ => return self,
        }
        self.trace.clear();
        self
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if self.core().standard.is_open() {
            self.finalize_all();
        }
        // SAFETY: finalizers that `lua_close` runs may use host and core, so these go last; nothing uses them after.
        unsafe {
            (*self.core).sandbox.scratch.free(self.main);
            ffi::lua_close(self.main);
            (self.drop_host)((*self.core).host);
            drop(Box::from_raw(self.core));
        }
    }
}

/// Message handler of protected calls: turns the error into `{message, trace}` while the stack is still there.
unsafe fn trace_handler(lua: *mut lua_State) -> c_int {
    // SAFETY: the error is at 1. Nothing with a destructor is alive where Lua may raise: the trace is a fixed buffer.
    unsafe {
        // Other values are kept as they are: HAProxy does not ask them for their text.
        ffi::lua_pushvalue(lua, 1);
        let mut buffer = [0u8; TRACE_MAX];
        let len = write_trace(lua, 1, &mut buffer);
        ffi::lua_createtable(lua, 2, 0);
        ffi::lua_pushvalue(lua, -2);
        ffi::lua_rawseti(lua, -2, 1);
        crate::push_bytes(lua, &buffer[..len]);
        ffi::lua_rawseti(lua, -2, 2);
        1
    }
}

/// Returns the kind of a failure with this status, whose value is at `index`.
pub(crate) unsafe fn error_kind(lua: *mut lua_State, index: c_int, status: c_int) -> ErrorKind {
    // SAFETY: reading a type raises nothing.
    match unsafe { ffi::lua_type(lua, index) } {
        _ if status == ffi::LUA_ERRMEM => ErrorKind::Memory,
        ffi::LUA_TSTRING | ffi::LUA_TNUMBER => ErrorKind::Runtime,
        _ => ErrorKind::Object,
    }
}

/// Reads what [`trace_handler`] left, or a bare error, from the top of the stack.
unsafe fn take_error(lua: *mut lua_State, status: c_int) -> Error {
    // SAFETY: the error is on top; reading an array part and strings raises nothing.
    unsafe {
        if ffi::lua_type(lua, -1) != ffi::LUA_TTABLE {
            let kind = error_kind(lua, -1, status);
            return Error { kind, message: error_text(lua, -1), trace: String::new() };
        }
        ffi::lua_rawgeti(lua, -1, 1);
        let kind = error_kind(lua, -1, status);
        let message = error_text(lua, -1);
        ffi::lua_rawgeti(lua, -2, 2);
        let trace = error_text(lua, -1);
        Error { kind, message, trace }
    }
}

/// Returns an error value as text, without calling any metamethod and without converting in place.
pub(crate) unsafe fn error_text(lua: *mut lua_State, index: c_int) -> String {
    // SAFETY: a string is only read; other types are named.
    unsafe {
        match ffi::lua_type(lua, index) {
            ffi::LUA_TSTRING => String::from_utf8_lossy(crate::to_bytes(lua, index).unwrap_or(b"")).into_owned(),
            ffi::LUA_TNUMBER if ffi::lua_isinteger(lua, index) != 0 => ffi::lua_tointeger(lua, index).to_string(),
            ffi::LUA_TNUMBER => ffi::lua_tonumber(lua, index).to_string(),
            other => {
                let name = CStr::from_ptr(ffi::lua_typename(lua, other)).to_string_lossy();
                format!("(error object is a {name} value)")
            }
        }
    }
}

/// Longest traceback, bytes.
const TRACE_MAX: usize = 1024;

/// The maximum number of levels of a traceback.
const TRACE_LEVELS: c_int = 24;

/// Returns the traceback of a coroutine as HAProxy prints it, from `level` on.
///
/// # Safety
/// `lua` is alive and not running.
pub unsafe fn traceback(lua: *mut lua_State, level: c_int) -> String {
    let mut buffer = [0u8; TRACE_MAX];
    // SAFETY: as promised by the caller.
    let len = unsafe { write_trace(lua, level, &mut buffer) };
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

/// Writes `file:line: in function 'name', …`, cut to the buffer.
unsafe fn write_trace(lua: *mut lua_State, mut level: c_int, buffer: &mut [u8]) -> usize {
    use std::io::Write;
    let mut out = std::io::Cursor::new(&mut *buffer);
    // SAFETY: `lua_getstack` fills `record` before `lua_getinfo` reads it. With these options getinfo pushes nothing.
    // A write that does not fit is cut, which is what a bounded log line wants.
    unsafe {
        let mut record: ffi::lua_Debug = std::mem::zeroed();
        // Finding a level costs its depth, so a runaway recursion must not be walked to its end.
        let end = level + TRACE_LEVELS;
        while level < end && ffi::lua_getstack(lua, level, &mut record) != 0 {
            if ffi::lua_getinfo(lua, c"Slnt".as_ptr(), &mut record) == 0 {
                break;
            }
            // The C function that the driver called first is not a part of the script.
            if *record.what as u8 == b'C' && record.name.is_null() && out.position() > 0 {
                let mut outer: ffi::lua_Debug = std::mem::zeroed();
                if ffi::lua_getstack(lua, level + 1, &mut outer) == 0 {
                    break;
                }
            }
            if out.position() > 0 {
                let _ = out.write_all(b", ");
            }
            let _ = out.write_all(CStr::from_ptr(record.short_src.as_ptr()).to_bytes());
            if record.currentline > 0 {
                let _ = write!(out, ":{}", record.currentline);
            }
            let _ = out.write_all(b": in ");
            if !record.name.is_null() && *record.namewhat != 0 {
                let _ = out.write_all(CStr::from_ptr(record.namewhat).to_bytes());
                let _ = out.write_all(b" '");
                let _ = out.write_all(CStr::from_ptr(record.name).to_bytes());
                let _ = out.write_all(b"'");
            } else {
                match *record.what as u8 {
                    b'm' => drop(out.write_all(b"main chunk")),
                    b'C' => drop(out.write_all(b"C function")),
                    _ => drop(write!(out, "function line {}", record.linedefined)),
                }
            }
            level += 1;
        }
        out.position() as usize
    }
}
