//! Interpreters: Lua states with compiled functions, and their pool.
//!
//! A script gets an interpreter after it has its keys, so it must never wait for one: if the pool is empty, one is
//! created, and returned ones beyond [`IDLE_MAX`] are closed. An interpreter keeps the functions of the scripts it ran
//! last and no other state of theirs, and the libraries whose functions it ran last with the state of their code. One
//! whose script was killed, or ran out of memory, is closed: its state may be corrupt.
//!
//! Cost: about 60 KiB each, which counts as used memory.

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sluicegate_data::short::same;
use sluicegate_script::{
    Chance, Coroutine, Error, ErrorKind, FunctionRef, MemoryLimit, State, ffi, function, host, push_list,
};

use super::active::Active;
use super::api;
use super::code::Code;
use super::counts::Counts;
use super::environment::{self, Environments, Loading};
use super::library::{self, Library, Load};
use super::registry::Script;
use crate::catalogue::{Numbered, Rows};
use crate::memory::{Memory, Outside};
use crate::thread::thread_number;

/// The maximum number of idle interpreters in the common list.
const IDLE_MAX: usize = 64;
/// The number of threads with a slot of their own for an idle interpreter.
const OWN: usize = 16;
/// The maximum number of compiled functions that an interpreter keeps.
const FUNCTIONS_MAX: usize = 128;
/// The maximum number of libraries that an interpreter keeps.
const LIBRARIES_MAX: usize = 128;
/// The name of library code in errors.
const FUNCTION_CHUNK: &CStr = c"@user_function";
/// Bytes that an interpreter's buffers may keep between scripts.
const BUFFER_KEPT: usize = 64 * 1024;
/// The number of slots of the cache of command names.
const COMMANDS: usize = 64;

/// Strings used to convert replies, by their references in Lua's registry: pushing them from there raises nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Name {
    Err,
    Ok,
    Double,
    Map,
    Set,
    BigNumber,
    Verbatim,
    String,
    Format,
    Counted,
}

/// The names themselves, in the order of [`Name`].
const NAMES: [&str; 10] = [
    "err",
    "ok",
    "double",
    "map",
    "set",
    "big_number",
    "verbatim_string",
    "string",
    "format",
    "ignore_error_stats_update",
];

/// A command's name as scripts write it, and its row.
#[derive(Clone, Copy, Default)]
struct Known {
    name: [u8; 24],
    len: u8,
    row: Option<Numbered>,
}

/// The host data of a state, accessible to C functions.
pub(crate) struct Host {
    /// The script that runs.
    pub(crate) active: Option<Active>,
    /// The reply of the last command, encoded.
    pub(crate) reply: Vec<u8>,
    /// The words of the command that is being called. They point to Lua's stack and into `digits`.
    pub(crate) words: Vec<&'static [u8]>,
    /// The texts of numbers among the words.
    pub(crate) digits: Vec<u8>,
    /// The environments of libraries, once one was needed.
    pub(crate) environments: Option<Environments>,
    /// Libraries that are being loaded, or have just been loaded.
    pub(crate) loading: Option<Loading>,
    /// The counters of the script's calls.
    pub(crate) counts: Counts,
    /// The commands of the store.
    rows: &'static Rows,
    names: [c_int; NAMES.len()],
    known: [Known; COMMANDS],
}

/// A compiled script.
struct Function {
    reference: FunctionRef,
    used: u64,
}

impl Function {
    /// Returns a coroutine that will run the script; `None` if the script may not run on this thread.
    fn begin(
        &mut self,
        state: &mut State,
        uses: u64,
        keys: &[&[u8]],
        arguments: &[&[u8]],
    ) -> Result<Option<Begun>, Refused> {
        self.used = uses;
        if !self.reference.may_run_here() {
            return Ok(None);
        }
        let coroutine = state.begin(&self.reference, keys, arguments).map_err(said)?;
        Ok(Some((coroutine, 0)))
    }
}

/// A library that has run.
struct Loaded {
    chunk: FunctionRef,
    /// The references of its functions' code in Lua's registry, by the functions' indices in the library.
    functions: Vec<c_int>,
    /// The library; dangling once it was deleted.
    library: Weak<Library>,
    used: u64,
}

/// A prepared coroutine, and the number of arguments on its stack.
pub(crate) type Begun = (Coroutine, c_int);

impl Host {
    /// Pushes a name.
    ///
    /// # Safety
    /// `lua` belongs to this host's state and has a free slot.
    pub(crate) unsafe fn push_name(&self, lua: *mut ffi::lua_State, name: Name) {
        // SAFETY: the reference was made with the state and is never given back.
        unsafe { ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, self.names[name as usize].into()) };
    }

    /// Returns the row of a command's name.
    pub(crate) fn find(&mut self, name: &[u8]) -> Option<Numbered> {
        let byte = |at: usize| usize::from(name.get(at).copied().unwrap_or_default());
        let sum = name.len().wrapping_add(byte(0) * 7).wrapping_add(byte(name.len() / 2) * 3);
        let known = &mut self.known[sum.wrapping_add(byte(name.len().wrapping_sub(1)) * 5) % COMMANDS];
        if same(&known.name[..usize::from(known.len)], name)
            && let Some(row) = known.row
        {
            return Some(row);
        }
        let row = self.rows.find_spoken(name)?;
        if name.len() <= known.name.len() {
            known.name[..name.len()].copy_from_slice(name);
            known.len = name.len() as u8;
            known.row = Some(row);
        }
        Some(row)
    }
}

/// One interpreter.
pub(crate) struct Interpreter {
    pub(crate) state: State,
    functions: HashMap<u64, Function, foldhash::fast::RandomState>,
    libraries: HashMap<u64, Loaded, foldhash::fast::RandomState>,
    uses: u64,
    /// The number of script flushes when its functions were compiled.
    flushes: u64,
    /// The same for deletions of libraries.
    deletions: u64,
    outside: Outside,
    /// The maximum memory in bytes; a script that needs more ends with `not enough memory`.
    memory_max: usize,
    shown: Shown,
}

/// The memory of an interpreter that is counted in the sums that INFO shows.
#[derive(Default)]
struct Shown {
    bytes: usize,
    /// The index of the sum in which it is counted.
    place: usize,
    sums: Option<Arc<[AtomicUsize; 2]>>,
}

impl Shown {
    fn set(&mut self, sums: &Arc<[AtomicUsize; 2]>, bytes: usize, place: usize) {
        if (bytes, place) != (self.bytes, self.place) || self.sums.is_none() {
            self.clear();
            sums[place].fetch_add(bytes, Ordering::Relaxed);
            *self = Shown { bytes, place, sums: Some(sums.clone()) };
        }
    }

    fn clear(&mut self) {
        if let Some(sums) = self.sums.take() {
            sums[self.place].fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Interpreter {
    fn new(rows: &'static Rows, chance: &Arc<Chance>, memory_max: usize) -> Result<Interpreter, Error> {
        let host = Host {
            active: None,
            reply: Vec::new(),
            words: Vec::new(),
            digits: Vec::new(),
            environments: None,
            loading: None,
            counts: Counts::new(rows),
            rows,
            names: [0; NAMES.len()],
            known: [Known::default(); COMMANDS],
        };
        let mut state = State::sandboxed(Arc::new(MemoryLimit::new(memory_max)), host)?;
        state.share_chance(chance.clone());
        // SAFETY: nothing with a destructor is alive in the closure; the array is plain.
        let names = unsafe {
            state.protect(|lua| {
                api::open(lua);
                NAMES.map(|name| {
                    sluicegate_script::push_bytes(lua, name.as_bytes());
                    ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX)
                })
            })?
        };
        state.host::<Host>().names = names;
        let (functions, libraries) = (HashMap::default(), HashMap::default());
        let (outside, shown) = (Outside::default(), Shown::default());
        let (uses, flushes, deletions) = (0, 0, 0);
        Ok(Interpreter { state, functions, libraries, uses, flushes, deletions, outside, memory_max, shown })
    }

    pub(crate) fn host(&mut self) -> &mut Host {
        self.state.host::<Host>()
    }

    /// Returns a coroutine that will run this code, which is compiled if it is not known here; `None` if that would
    /// take too long for this thread.
    pub(crate) fn begin(&mut self, code: &Code, keys: &[&[u8]], arguments: &[&[u8]]) -> Result<Option<Begun>, Refused> {
        self.uses += 1;
        match code {
            Code::Script(script) => self.begin_script(script, keys, arguments),
            Code::Function(library, place) => self.begin_function(library, *place, keys, arguments),
            Code::Load(load) => self.begin_load(load),
        }
    }

    fn begin_script(&mut self, script: &Script, keys: &[&[u8]], arguments: &[&[u8]]) -> Result<Option<Begun>, Refused> {
        if let Some(function) = self.functions.get_mut(&script.id) {
            return function.begin(&mut self.state, self.uses, keys, arguments);
        }
        let Some(reference) = self.state.compile(script.code(), c"@user_script").map_err(not_compiled)? else {
            return Ok(None);
        };
        self.make_room();
        let mut function = Function { reference, used: self.uses };
        let begun = function.begin(&mut self.state, self.uses, keys, arguments);
        self.functions.insert(script.id, function);
        begun
    }

    /// Prepares the call of a function with keys and arguments as its parameters. The coroutine itself loads the
    /// library if necessary.
    fn begin_function(
        &mut self,
        library: &Arc<Library>,
        place: usize,
        keys: &[&[u8]],
        arguments: &[&[u8]],
    ) -> Result<Option<Begun>, Refused> {
        let environments = self.environments().map_err(said)?;
        if let Some(loaded) = self.libraries.get(&library.id) {
            if !loaded.chunk.may_run_here() {
                return Ok(None);
            }
        } else {
            let Some(chunk) = self.state.compile_library(&library.source, FUNCTION_CHUNK).map_err(not_compiled)? else {
                return Ok(None);
            };
            if !chunk.may_run_here() {
                self.state.release(chunk);
                return Ok(None);
            }
            self.host().loading = Some(Loading::new(vec![chunk], Some(&library.functions[place].name)));
        }
        let coroutine = self.state.begin_empty().map_err(said)?;
        let thread = coroutine.thread();
        match self.libraries.get_mut(&library.id) {
            Some(loaded) => {
                loaded.used = self.uses;
                // SAFETY: the coroutine's stack is empty and has room; chunk and function are kept by this state.
                unsafe { environment::push_function(thread, environments, &loaded.chunk, loaded.functions[place]) };
            }
            // SAFETY: as above.
            None => unsafe { ffi::lua_pushcfunction(thread, function!(environment::load)) },
        }
        // SAFETY: the closure holds references only. Both stacks belong to this state and have room.
        let pushed = unsafe {
            self.state.protect(|lua| {
                push_list(lua, keys);
                push_list(lua, arguments);
                ffi::lua_xmove(lua, thread, 2);
            })
        };
        if let Err(error) = pushed {
            self.state.recycle(coroutine);
            return Err(said(error));
        }
        Ok(Some((coroutine, 2)))
    }

    fn begin_load(&mut self, load: &Load) -> Result<Option<Begun>, Refused> {
        self.environments().map_err(said)?;
        let mut chunks = Vec::with_capacity(load.sources.len());
        let mut failed = None;
        for source in &load.sources {
            match self.state.compile_library(&source.text, FUNCTION_CHUNK) {
                Ok(Some(chunk)) => chunks.push(chunk),
                Ok(None) => failed = Some(Ok(None)),
                Err(error) => failed = Some(Err(Refused::of(error, "ERR Error compiling function: "))),
            }
            if failed.is_some() {
                break;
            }
        }
        if let Some(failed) = failed {
            chunks.into_iter().for_each(|chunk| self.state.release(chunk));
            return failed;
        }
        self.host().loading = Some(Loading::new(chunks, None));
        let coroutine = self.state.begin_empty().map_err(said)?;
        // SAFETY: the coroutine's stack is empty and has room.
        unsafe { ffi::lua_pushcfunction(coroutine.thread(), function!(environment::load)) };
        Ok(Some((coroutine, 0)))
    }

    /// Returns the environments of libraries, created if necessary.
    fn environments(&mut self) -> Result<Environments, Error> {
        if let Some(environments) = self.host().environments {
            return Ok(environments);
        }
        // SAFETY: nothing with a destructor is alive in the closure.
        let environments = unsafe { self.state.protect(|lua| environment::open(lua))? };
        self.host().environments = Some(environments);
        Ok(environments)
    }

    /// Keeps the code just loaded as these libraries. Returns false if it could not: then the interpreter's state may
    /// be corrupt.
    pub(crate) fn adopt(&mut self, libraries: &[Arc<Library>]) -> bool {
        let Some(loading) = self.host().loading.take() else { return true };
        if !loading.is_over || libraries.len() != loading.chunks.len() {
            return false;
        }
        for ((library, chunk), registered) in libraries.iter().zip(loading.chunks).zip(loading.registered) {
            let place_of = |function: &library::Function| {
                registered.iter().find(|(known, _)| known.name == function.name).map(|(_, callback)| *callback)
            };
            let Some(functions) = library.functions.iter().map(place_of).collect() else { return false };
            let oldest = self.libraries.iter().min_by_key(|(_, loaded)| loaded.used).map(|(id, _)| *id);
            if self.libraries.len() >= LIBRARIES_MAX
                && let Some(oldest) = oldest.and_then(|id| self.libraries.remove(&id))
            {
                self.release(oldest);
            }
            let loaded = Loaded { chunk, functions, library: Arc::downgrade(library), used: self.uses };
            self.libraries.insert(library.id, loaded);
        }
        true
    }

    fn release(&mut self, loaded: Loaded) {
        self.state.release(loaded.chunk);
        let functions = &loaded.functions;
        // SAFETY: the closure holds a reference. A failure costs the functions' memory until the state goes.
        let _ = unsafe {
            self.state.protect(|lua| {
                functions.iter().for_each(|function| ffi::luaL_unref(lua, ffi::LUA_REGISTRYINDEX, *function));
            })
        };
    }

    /// Forgets libraries that were deleted.
    fn forget_libraries(&mut self) {
        let is_gone = |loaded: &Loaded| loaded.library.strong_count() == 0;
        let gone: Vec<u64> = self.libraries.iter().filter(|(_, loaded)| is_gone(loaded)).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(loaded) = self.libraries.remove(&id) {
                self.release(loaded);
            }
        }
    }

    /// Makes room for a function; removes the least recently used one if there are too many.
    fn make_room(&mut self) {
        if self.functions.len() < FUNCTIONS_MAX {
            return;
        }
        let oldest = self.functions.iter().min_by_key(|(_, function)| function.used).map(|(id, _)| *id);
        if let Some(oldest) = oldest.and_then(|id| self.functions.remove(&id)) {
            self.state.release(oldest.reference);
        }
    }

    fn forget_functions(&mut self) {
        let functions = std::mem::take(&mut self.functions);
        for function in functions.into_values() {
            self.state.release(function.reference);
        }
    }
}

/// The reason why the script was not started.
pub(crate) struct Refused {
    /// The error for the client.
    pub(crate) text: String,
    /// Whether the interpreter may be reused.
    pub(crate) is_sound: bool,
}

impl Refused {
    fn of(error: Error, before: &str) -> Refused {
        Refused { text: format!("{before}{}", error.message), is_sound: error.kind != ErrorKind::Memory }
    }
}

/// Returns the message for the client about an error that is not caused by its script.
fn said(error: Error) -> Refused {
    Refused::of(error, "ERR ")
}

fn not_compiled(error: Error) -> Refused {
    Refused::of(error, "ERR Error compiling script (new function): ")
}

/// Compiles code to check it. Returns the compiler's error as text, or false if compiling would take too long for this
/// thread.
pub(crate) fn check(pool: &Pool, code: &[u8]) -> Result<bool, String> {
    let mut interpreter = pool.take().map_err(|error| said(error).text)?;
    let checked = interpreter.state.compile(code, c"@user_script").map(|function| {
        let is_done = function.is_some();
        function.into_iter().for_each(|function| interpreter.state.release(function));
        is_done
    });
    let checked = checked.map_err(not_compiled);
    pool.put_away(interpreter, checked.as_ref().map_or_else(|refused| refused.is_sound, |_| true));
    checked.map_err(|refused| refused.text)
}

/// A slot for one idle interpreter, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Own(Mutex<Option<Box<Interpreter>>>);

/// The interpreters of a store.
pub(crate) struct Pool {
    /// The rows of the commands that scripts may call.
    rows: &'static Rows,
    /// The interpreter that each thread used last, so that threads with short scripts write to no cache line that
    /// others write to. Threads beyond this number share the slots.
    own: [Own; OWN],
    /// All other idle interpreters.
    #[allow(clippy::vec_box, reason = "each is moved to its script and back, which is one pointer so")]
    idle: Mutex<Vec<Box<Interpreter>>>,
    memory: Arc<Memory>,
    /// The number of flushes of scripts.
    flushes: AtomicU64,
    /// The number of deletions of libraries.
    deletions: AtomicU64,
    /// The random source of `math.random`.
    chance: Arc<Chance>,
    /// The maximum memory of each, in bytes.
    memory_max: AtomicUsize,
    /// The number of Lua's own bytes beyond which garbage is collected before an interpreter becomes idle.
    garbage_max: AtomicUsize,
    /// The bytes of interpreters that only run scripts, and of those with libraries.
    sums: Arc<[AtomicUsize; 2]>,
    /// Whether replies that scripts discard are not converted to values.
    discards: AtomicBool,
}

impl Pool {
    pub(crate) fn new(memory: Arc<Memory>, rows: &'static Rows) -> Pool {
        Pool {
            rows,
            own: Default::default(),
            idle: Mutex::default(),
            memory,
            flushes: AtomicU64::new(0),
            deletions: AtomicU64::new(0),
            memory_max: AtomicUsize::new(512 << 20),
            garbage_max: AtomicUsize::new(1 << 20),
            sums: Arc::default(),
            chance: Arc::default(),
            discards: AtomicBool::new(true),
        }
    }

    /// Sets the maximum memory of each interpreter, and the memory from which on it collects its garbage.
    pub(crate) fn set_limits(&self, memory_max: u64, garbage_max: u64) {
        self.memory_max.store(memory_max as usize, Ordering::Relaxed);
        self.garbage_max.store(garbage_max as usize, Ordering::Relaxed);
    }

    /// Returns the bytes of interpreters that only run scripts, and of those with libraries, as counted when they
    /// became idle.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        self.sums.each_ref().map(|sum| sum.load(Ordering::Relaxed) as u64)
    }

    /// Moves idle interpreters from the threads' slots to the common list. Returns the number of those there.
    pub(crate) fn assemble(&self) -> usize {
        for own in &self.own {
            let interpreter = own.0.lock().take();
            interpreter.into_iter().for_each(|interpreter| self.keep(interpreter));
        }
        self.idle.lock().len()
    }

    /// Lets the interpreter that has been in the common list for longest collect its garbage. Returns false if the list
    /// is empty.
    pub(crate) fn collect_one(&self) -> bool {
        let mut idle = self.idle.lock();
        if idle.is_empty() {
            return false;
        }
        let mut interpreter = idle.remove(0);
        drop(idle);
        interpreter.state.collect();
        let used = interpreter.state.memory_used();
        self.count(&mut interpreter, used);
        self.keep(interpreter);
        true
    }

    /// Returns this thread's slot.
    fn own(&self) -> &Own {
        &self.own[thread_number() % OWN]
    }

    /// Puts an interpreter into the common list, or closes it if there are too many.
    fn keep(&self, interpreter: Box<Interpreter>) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(interpreter);
        } else {
            // Closed without the lock.
            drop(idle);
        }
    }

    /// Returns an interpreter.
    pub(crate) fn take(&self) -> Result<Box<Interpreter>, Error> {
        let own = self.own().0.lock().take();
        let idle = own.or_else(|| self.idle.lock().pop());
        let memory_max = self.memory_max.load(Ordering::Relaxed);
        let mut interpreter = match idle {
            Some(interpreter) if interpreter.memory_max == memory_max => interpreter,
            // An interpreter with another limit is closed.
            _ => Box::new(Interpreter::new(self.rows, &self.chance, memory_max)?),
        };
        let flushes = self.flushes.load(Ordering::Relaxed);
        if interpreter.flushes != flushes {
            interpreter.flushes = flushes;
            interpreter.forget_functions();
        }
        interpreter.state.discard_replies(self.discards.load(Ordering::Relaxed));
        let deletions = self.deletions.load(Ordering::Relaxed);
        if interpreter.deletions != deletions {
            interpreter.deletions = deletions;
            interpreter.forget_libraries();
        }
        Ok(interpreter)
    }

    /// Puts an interpreter back into the pool, or closes it if its state may be corrupt.
    pub(crate) fn put_away(&self, interpreter: Box<Interpreter>, is_sound: bool) {
        match is_sound {
            true => self.give_back(interpreter),
            false => drop(interpreter),
        }
    }

    /// Puts an interpreter back into the pool after its script has ended normally.
    fn give_back(&self, mut interpreter: Box<Interpreter>) {
        let host = interpreter.host();
        debug_assert!(host.active.is_none(), "its script has ended");
        host.loading = None;
        host.words.clear();
        if host.reply.capacity() > BUFFER_KEPT {
            host.reply = Vec::new();
        }
        if host.digits.capacity() > BUFFER_KEPT {
            host.digits = Vec::new();
        }
        let mut used = interpreter.state.memory_used();
        if used > self.garbage_max.load(Ordering::Relaxed) {
            interpreter.state.collect();
            used = interpreter.state.memory_used();
        }
        self.count(&mut interpreter, used);
        let others = self.own().0.lock().replace(interpreter);
        if let Some(interpreter) = others {
            self.keep(interpreter);
        }
    }

    /// Counts the memory of an interpreter after a slice: a long-running script may use much.
    pub(crate) fn count_running(&self, interpreter: &mut Interpreter) {
        let used = interpreter.state.memory_used();
        self.count(interpreter, used);
    }

    /// Counts the memory of an interpreter, in steps, so that most scripts change no shared counter.
    fn count(&self, interpreter: &mut Interpreter, used: usize) {
        let used = used.next_multiple_of(32 * 1024);
        interpreter.outside.set(&self.memory, used);
        interpreter.shown.set(&self.sums, used, usize::from(!interpreter.libraries.is_empty()));
    }

    /// Closes all idle interpreters.
    #[cfg(test)]
    pub(crate) fn close_all(&self) {
        self.own.iter().for_each(|own| drop(own.0.lock().take()));
        let idle = std::mem::take(&mut *self.idle.lock());
        drop(idle);
    }

    /// Sets whether replies that scripts discard are not converted to values.
    pub(crate) fn discard_replies(&self, yes: bool) {
        if self.discards.swap(yes, Ordering::Relaxed) != yes {
            // Scripts are compiled anew.
            self.flush();
        }
    }

    /// Makes every interpreter forget its functions before it runs again.
    pub(crate) fn flush(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes every interpreter drop deleted libraries before its next run.
    pub(crate) fn forget_libraries(&self) {
        self.deletions.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the host of the state that `lua` belongs to.
///
/// # Safety
/// `lua` belongs to an interpreter; no other reference to its host is alive.
pub(crate) unsafe fn host_of<'h>(lua: *mut ffi::lua_State) -> &'h mut Host {
    // SAFETY: as promised by the caller.
    unsafe { host::<Host>(lua) }
}
