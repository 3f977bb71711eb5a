//! Interpreters: Lua states with the functions they have compiled, and the pool they rest in.
//!
//! A script gets one after it has its keys, so it must never wait for one: if none rests, one is made, and those that
//! come back beyond [`IDLE_MAX`] are closed. An interpreter keeps the functions of the scripts it ran last and nothing
//! else of them. One whose script was ended by force, or ran out of memory, is closed: what it holds is in doubt.
//!
//! Cost: about 60 KiB each, which counts as used memory.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use sluicegate_script::{Coroutine, Error, FunctionRef, MemoryLimit, State, ffi, host};

use super::active::Active;
use super::api;
use super::registry::Script;
use crate::catalogue::{self, CommandSpec};
use crate::memory::{Memory, Outside};

/// Interpreters that rest, at most.
const IDLE_MAX: usize = 64;
/// Compiled functions that one keeps.
const FUNCTIONS_MAX: usize = 128;
/// Bytes that an interpreter's buffers may keep between scripts.
const BUFFER_KEPT: usize = 64 * 1024;
/// Lua's own bytes beyond which garbage is collected before an interpreter rests.
const GARBAGE_MAX: usize = 1024 * 1024;
/// Places of the cache of command names.
const COMMANDS: usize = 64;

/// Strings that replies are taken apart with, by their place in Lua's registry: pushing them from there raises nothing.
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
    Source,
    Line,
    Ignore,
}

/// The names themselves, in the order of [`Name`].
const NAMES: [&str; 12] = [
    "err",
    "ok",
    "double",
    "map",
    "set",
    "big_number",
    "verbatim_string",
    "string",
    "format",
    "source",
    "line",
    "ignore_error_stats_update",
];

/// A command's name as scripts write it, and its row.
#[derive(Clone, Copy, Default)]
struct Known {
    name: [u8; 24],
    len: u8,
    spec: Option<&'static CommandSpec>,
}

/// What C functions find behind their state.
pub(crate) struct Host {
    /// The script that runs.
    pub(crate) active: Option<Active>,
    /// The reply of the last command, encoded.
    pub(crate) reply: Vec<u8>,
    /// The words of the command that is being made. They point to Lua's stack and into `digits`.
    pub(crate) words: Vec<&'static [u8]>,
    /// Numbers among the words.
    pub(crate) digits: Vec<u8>,
    names: [c_int; NAMES.len()],
    known: [Known; COMMANDS],
}

/// A compiled script.
struct Function {
    reference: FunctionRef,
    used: u64,
}

impl Host {
    /// Pushes a name.
    ///
    /// # Safety
    /// `lua` belongs to this host's state and has a free slot.
    pub(crate) unsafe fn push_name(&self, lua: *mut ffi::lua_State, name: Name) {
        // SAFETY: the reference was made with the state and is never given back.
        unsafe { ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, self.names[name as usize].into()) };
    }

    /// The row of a command's name.
    pub(crate) fn find(&mut self, name: &[u8]) -> Option<&'static CommandSpec> {
        let place = name.iter().fold(name.len(), |sum, &byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
        let known = &mut self.known[place % COMMANDS];
        if known.name[..usize::from(known.len)] == *name
            && let Some(spec) = known.spec
        {
            return Some(spec);
        }
        let spec = catalogue::find(name)?;
        if name.len() <= known.name.len() {
            known.name[..name.len()].copy_from_slice(name);
            known.len = name.len() as u8;
            known.spec = Some(spec);
        }
        Some(spec)
    }
}

/// One interpreter.
pub(crate) struct Interpreter {
    pub(crate) state: State,
    functions: HashMap<u64, Function, foldhash::fast::RandomState>,
    uses: u64,
    /// The flush of scripts that its functions have seen.
    flushes: u64,
    outside: Outside,
}

impl Interpreter {
    fn new(limit: &Arc<MemoryLimit>) -> Result<Interpreter, Error> {
        let host = Host {
            active: None,
            reply: Vec::new(),
            words: Vec::new(),
            digits: Vec::new(),
            names: [0; NAMES.len()],
            known: [Known::default(); COMMANDS],
        };
        let mut state = State::sandboxed(limit.clone(), host)?;
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
        Ok(Interpreter { state, functions: HashMap::default(), uses: 0, flushes: 0, outside: Outside::default() })
    }

    pub(crate) fn host(&mut self) -> &mut Host {
        self.state.host::<Host>()
    }

    /// A coroutine that will run a script, which is compiled if it is not known here; none if that would take too long
    /// for this thread.
    pub(crate) fn begin(&mut self, script: &Script) -> Result<Option<Coroutine>, Error> {
        self.uses += 1;
        let uses = self.uses;
        if !self.functions.contains_key(&script.id) {
            match self.state.compile(script.code(), c"@user_script")? {
                Some(reference) => self.keep(script.id, reference),
                None => return Ok(None),
            }
        }
        self.state.seed(0);
        let Some(function) = self.functions.get_mut(&script.id) else { return Ok(None) };
        function.used = uses;
        self.state.begin(&function.reference).map(Some)
    }

    /// Keeps a compiled function; the one that was unused for longest goes if there are many.
    fn keep(&mut self, id: u64, reference: FunctionRef) {
        let mut oldest = None;
        if self.functions.len() >= FUNCTIONS_MAX {
            let id = self.functions.iter().min_by_key(|(_, function)| function.used).map(|(id, _)| *id);
            oldest = id.and_then(|id| self.functions.remove(&id));
        }
        self.functions.insert(id, Function { reference, used: self.uses });
        if let Some(oldest) = oldest {
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

/// Compiles code to see whether it can be: the text of the error if not, and false if it would take too long for this
/// thread.
pub(crate) fn check(pool: &Pool, code: &[u8]) -> Result<bool, String> {
    let mut interpreter = pool.take().map_err(|error| format!("ERR {}", error.message))?;
    let checked = interpreter.state.compile(code, c"@user_script").map(|function| {
        let is_done = function.is_some();
        function.into_iter().for_each(|function| interpreter.state.release(function));
        is_done
    });
    pool.give_back(interpreter);
    checked.map_err(|error| format!("ERR Error compiling script (new function): {}", error.message))
}

/// The interpreters of a store.
pub(crate) struct Pool {
    idle: Mutex<Vec<Interpreter>>,
    memory: Arc<Memory>,
    limit: Arc<MemoryLimit>,
    /// How often the scripts were flushed.
    flushes: AtomicU64,
    /// Interpreters that exist.
    pub(crate) count: AtomicUsize,
    /// Bytes of those that rest, and of those that work when they last rested.
    pub(crate) bytes: AtomicUsize,
}

impl Pool {
    pub(crate) fn new(memory: Arc<Memory>) -> Pool {
        Pool {
            idle: Mutex::default(),
            memory,
            limit: Arc::new(MemoryLimit::new(0)),
            flushes: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    /// An interpreter.
    pub(crate) fn take(&self) -> Result<Interpreter, Error> {
        let idle = self.idle.lock().pop();
        let mut interpreter = match idle {
            Some(interpreter) => interpreter,
            None => {
                let made = Interpreter::new(&self.limit)?;
                self.count.fetch_add(1, Ordering::Relaxed);
                made
            }
        };
        let flushes = self.flushes.load(Ordering::Relaxed);
        if interpreter.flushes != flushes {
            interpreter.flushes = flushes;
            interpreter.forget_functions();
        }
        Ok(interpreter)
    }

    /// Takes an interpreter back whose script has come to its end.
    pub(crate) fn give_back(&self, mut interpreter: Interpreter) {
        let host = interpreter.host();
        host.active = None;
        host.words.clear();
        if host.reply.capacity() > BUFFER_KEPT {
            host.reply = Vec::new();
        }
        if host.digits.capacity() > BUFFER_KEPT {
            host.digits = Vec::new();
        }
        if interpreter.state.memory_used() > GARBAGE_MAX {
            interpreter.state.collect();
        }
        let used = interpreter.state.memory_used();
        self.account(&mut interpreter, used);
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(interpreter);
            return;
        }
        drop(idle);
        self.close(interpreter);
    }

    /// Closes an interpreter.
    pub(crate) fn close(&self, mut interpreter: Interpreter) {
        self.account(&mut interpreter, 0);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    fn account(&self, interpreter: &mut Interpreter, used: usize) {
        // In steps, so that most scripts change nothing that others read.
        let used = used.next_multiple_of(32 * 1024);
        let before = interpreter.outside.bytes();
        if used != before {
            interpreter.outside.set(&self.memory, used);
            self.bytes.fetch_add(used.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Makes every interpreter forget its functions before it runs again.
    pub(crate) fn flush(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    /// Collects the garbage of those that rest.
    pub(crate) fn collect(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        for mut interpreter in idle {
            interpreter.state.collect();
            self.give_back(interpreter);
        }
    }
}

/// The host of the state that `lua` belongs to.
///
/// # Safety
/// `lua` belongs to an interpreter; no other reference to its host is alive.
pub(crate) unsafe fn host_of<'h>(lua: *mut ffi::lua_State) -> &'h mut Host {
    // SAFETY: as promised by the caller.
    unsafe { host::<Host>(lua) }
}
