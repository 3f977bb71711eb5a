//! Scripts: atomic, parallel and preemptible Lua.
//!
//! A script is a section whose commands a Lua state calls as functions. Its keys are held from its start to its end, so
//! scripts on other keys run at the same time on other workers, and commands on other keys proceed. It begins on the
//! worker of its caller; when its slice is over, interpreter and coroutine together move to a script thread, and the
//! worker is free. The functions of its library count their steps and move with it, so no script can keep a worker for
//! longer than about two slices. Large arguments, reads and results are processed there from the start.
//!
//! The life of a script: its body is found by its SHA-1 (`registry`), its flags were parsed when it was sent
//! (`source`); its section waits for its keys (`gather`), an interpreter (`interpreter`) with its function is taken,
//! and a coroutine runs (`run`). `redis.call` (`api`) executes commands in the section (`active`) and converts replies
//! to values (`convert`). An undeclared key is acquired when it is accessed, and waited for if it is held (`take`). A
//! script that leaves the worker continues in `threads`, and can be listed and killed (`control`).
//!
//! **Invariants.** After its keys a script waits for nothing but undeclared keys. No reference to a host crosses a call
//! of Lua that may run other C functions. A script's messages are published at its end, before its holds are released.

mod active;
mod api;
mod busy;
mod call;
mod code;
pub(crate) mod command;
mod control;
mod convert;
mod counts;
mod dragonfly;
mod environment;
pub(crate) mod errors_only;
mod failed;
pub(crate) mod flags;
pub(crate) mod function_command;
mod fuzz;
mod gather;
mod interpreter;
mod library;
mod limited;
mod pending;
mod registry;
mod run;
pub(crate) mod source;
mod spare;
mod take;
mod tell;
mod threads;
mod times;
#[cfg(test)]
pub(crate) mod trial;
mod watched;

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::catalogue::Rows;
use crate::config::ServerOptions;
use crate::memory::Memory;
use parking_lot::RwLock;
use sluicegate_wire::resp::ReplyWriter;

use control::Running;
pub(crate) use counts::{Came, Counts, Sums};
pub use fuzz::fuzz_scripts;
use interpreter::Pool;
use library::Libraries;
use registry::{Registry, Script};
pub(crate) use run::Pending;
use source::Flags;
use take::Waiters;
pub(crate) use take::{Take, Took};
use threads::Threads;
pub(crate) use watched::Watches;

/// A key held by scripts that are to run one after the other. It begins with a byte that no name begins with.
const IN_TURN: &[u8] = b"\0scripts in turn";

/// Writes a line of a script to the server's log: level, text.
type Log = Box<dyn Fn(u8, &[u8]) + Send + Sync>;

/// The server that a store belongs to, for its scripts. Rows are given by their numbers.
pub(crate) trait Surroundings: Send + Sync {
    /// Carries out a command of the server; false if it can't be without a connection.
    fn tell(&self, row: u16, words: &[&[u8]], out: &mut ReplyWriter<'_>) -> bool;

    /// Shows a command to MONITOR clients, with the database and the sender.
    fn show(&self, row: u16, words: &[&[u8]], db: u32, sender: &str);

    /// Keeps a command of a client's script if it took long.
    fn judge(&self, row: u16, words: &[&[u8]], client: u64, spent: Duration);
}

/// The scripting state of a store.
pub(crate) struct Scripting {
    pub(crate) registry: Registry,
    pub(crate) libraries: Libraries,
    pub(crate) pool: Pool,
    pub(crate) running: Running,
    pub(crate) threads: Threads,
    waiters: Waiters,
    pub(crate) counts: Sums,
    /// Whether undeclared keys are refused.
    denies_undeclared: AtomicBool,
    /// The flags of scripts that name none.
    default_flags: AtomicU16,
    /// The age from which on a script can be killed, and clients waiting for its keys get BUSY, in milliseconds; 0:
    /// never.
    busy_after_ms: AtomicU64,
    log: OnceLock<Log>,
    surroundings: RwLock<Option<Box<dyn Surroundings>>>,
    pub(crate) watches: Watches,
}

/// The memory and number of scripts. Bytes are those that count as used memory.
pub(crate) struct Usage {
    /// Bytes of interpreters that only run scripts, as counted when they last became idle.
    pub(crate) eval_bytes: u64,
    /// The same for those with loaded libraries.
    pub(crate) function_bytes: u64,
    pub(crate) scripts: usize,
    pub(crate) script_bytes: usize,
    pub(crate) libraries: usize,
    pub(crate) functions: usize,
    pub(crate) library_bytes: usize,
}

impl Scripting {
    pub(crate) fn new(memory: Arc<Memory>, rows: &'static Rows) -> Scripting {
        Scripting {
            registry: Registry::new(memory.clone()),
            libraries: Libraries::new(memory.clone()),
            pool: Pool::new(memory, rows),
            running: Running::default(),
            threads: Threads::default(),
            waiters: Waiters::default(),
            counts: Sums::new(rows),
            denies_undeclared: AtomicBool::new(false),
            default_flags: AtomicU16::new(0),
            busy_after_ms: AtomicU64::new(5000),
            log: OnceLock::new(),
            surroundings: RwLock::new(None),
            watches: Watches::default(),
        }
    }

    /// Returns whether undeclared keys are refused.
    pub(crate) fn denies_undeclared(&self) -> bool {
        self.denies_undeclared.load(Ordering::Relaxed)
    }

    /// Adopts the parameters.
    pub(crate) fn set(&self, options: &ServerOptions) {
        self.denies_undeclared.store(options.lua_undeclared_keys == "deny", Ordering::Relaxed);
        let busy_after_ms = u64::try_from(options.busy_reply_threshold_ms).unwrap_or(0);
        self.busy_after_ms.store(busy_after_ms, Ordering::Relaxed);
        // Errors in them were reported when they were set.
        let flags = source::listed(&options.default_lua_flags).unwrap_or_default();
        self.default_flags.store(flags.bits(), Ordering::Relaxed);
        self.pool.set_limits(options.lua_memory_limit, options.lua_mem_gc_threshold);
        self.pool.discard_replies(options.lua_auto_async);
        self.watches.set(options);
    }

    /// Returns the flags of a script: its own, or those of scripts that name none.
    fn flags_of(&self, script: &Script) -> Flags {
        match script.flags() {
            flags if flags.has(Flags::UNSAID) => Flags::from_bits(self.default_flags.load(Ordering::Relaxed)),
            flags => flags,
        }
    }

    /// Returns the memory and the number of the scripts.
    pub(crate) fn usage(&self) -> Usage {
        let (scripts, script_bytes) = self.registry.size();
        let (libraries, functions, library_bytes) = self.libraries.size();
        let [eval_bytes, function_bytes] = self.pool.bytes();
        Usage { eval_bytes, function_bytes, scripts, script_bytes, libraries, functions, library_bytes }
    }

    /// Lets scripts write to a log; only the first call has an effect.
    pub(crate) fn set_log(&self, log: impl Fn(u8, &[u8]) + Send + Sync + 'static) {
        let _ = self.log.set(Box::new(log));
    }

    /// Lets scripts call commands that the server executes and that need no connection, and reports their commands to
    /// it.
    pub(crate) fn set_server(&self, server: impl Surroundings + 'static) {
        *self.surroundings.write() = Some(Box::new(server));
    }

    /// Carries out a command of the server by the number of its row; false if that needs a connection.
    fn tell(&self, row: u16, words: &[&[u8]], out: &mut ReplyWriter<'_>) -> bool {
        self.with_server(|server| server.tell(row, words, out)).unwrap_or(false)
    }

    /// Shows a command of `sender`, which is no script, to MONITOR clients.
    #[cold]
    pub(crate) fn show(&self, row: u16, words: &[&[u8]], db: u32, sender: &str) {
        self.with_server(|server| server.show(row, words, db, sender));
    }

    /// Does something with the server, if there is one.
    fn with_server<R>(&self, run: impl FnOnce(&dyn Surroundings) -> R) -> Option<R> {
        self.surroundings.read().as_deref().map(run)
    }

    /// Writes a line of a script to the log, if there is one.
    fn log(&self, level: u8, text: &[u8]) {
        if let Some(log) = self.log.get() {
            log(level, text);
        }
    }
}
