//! A Lua state: PUC Lua 5.4 driven through its C API, with pooled coroutines, a yield protocol and a budget.
//!
//! Independent of proxy and store. Both register their own C functions and a *host* value, which these functions reach
//! from any `lua_State` in one load ([`host`]).
//!
//! **Yield protocol.** A C function that must wait stores a description of the operation in the host and calls
//! [`wait`]; the driver that resumed the coroutine gets [`Burst::Waiting`], awaits, stores the result in the host and
//! resumes without arguments, and the C function's continuation pushes the result. Such a wait propagates through
//! coroutines created by the script: `coroutine.resume` and `coroutine.wrap` are reimplemented ([`coroutine`]) and
//! yield on behalf of the inner coroutine, so only the driver ever sees it.
//!
//! **Budget.** A short burst costs a few atomic writes and a time stamp. A timer of each thread that runs Lua sends it a
//! signal a thousand times a second; if the same burst has run for a slice, the handler arms a hook on the running
//! coroutine, and the hook yields ([`Burst::Forced`]) or, where it cannot yield or the time is used up, raises
//! `execution timeout` ([`budget`]).
//!
//! **Invariants.** A [`State`] is used by one thread at a time (it is `Send`, not `Sync`; [`BurstLock`] shares one). No
//! Rust value with a destructor is alive across a call of Lua's API that may raise, because an error is a longjmp. No
//! panic passes Lua's frames: functions called by Lua are made by [`function!`] and [`continuation!`]. Calls that may
//! raise run inside a coroutine or inside [`State::protect`].
//!
//! **Limits.** A hook cannot interrupt a C function. In both kinds of states, library functions that can run long call
//! [`poll`] and are suspended, and finalizers run under a budget (`standard`, `sandbox`). A C module, or blocking I/O,
//! occupies its thread; a [`Watch`] shows where.

pub mod budget;
mod clock;
pub mod coroutine;
mod guard;
mod lock;
mod memory;
mod run;
mod sandbox;
mod standard;
mod state;
mod timer;
mod turns;
mod value;

pub use budget::{Watch, is_patient, longest_slice, patient, reset_longest_slice, rest};
pub use clock::CpuClock;
pub use guard::guard;
pub use lock::{BurstGuard, BurstLock, Locking};
pub use memory::MemoryLimit;
pub use mlua_sys::lua54 as ffi;
pub(crate) use run::weigh_small;
pub use run::{Budget, Burst, Coroutine, Poll, can_wait, leave, poll, stopped, wait, weigh};
pub use sandbox::{
    Chance, FunctionRef, fuzz_json, fuzz_msgpack, fuzz_pattern, fuzz_struct, open_libraries, push_globals, push_list,
    seal, seal_strictly,
};
pub use state::{Error, ErrorKind, State, host, traceback};
pub use turns::{
    is_filtered, let_change_priorities, let_return_from_idle, may_return_from_idle, poll_turn, run_as_usual,
    run_when_idle, set_nice, short_turns, try_priorities, yield_after_turns,
};
pub use value::{argument, check_bytes, push_bytes, raise, to_bytes};
