//! Coroutines as the driver sees them: started, resumed burst by burst, reused.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::budget::{self, Limits};
use crate::ffi::{self, lua_KContext, lua_KFunction, lua_State};
use crate::state::{Core, Error, ErrorKind, State, error_kind, error_text, traceback};

/// The maximum number of finished coroutines that a state keeps for reuse: as many as a busy worker has in flight.
const IDLE_MAX: usize = 1024;

/// The reason why the innermost coroutine yields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The script called `coroutine.yield`: its resumer gets the values.
    #[default]
    Script,
    /// A C function waits for the driver.
    Waiting,
    /// The budget's hook asks for other work to be done.
    Forced,
}

/// The coroutines that run in a state during a burst.
pub(crate) struct Running {
    /// Set just before a yield that goes up to the driver.
    pub(crate) reason: Reason,
    /// Whether all coroutines between the driver and the running one can be yielded across.
    pub(crate) yieldable: bool,
    /// The coroutine that the driver resumed.
    pub(crate) root: *mut lua_State,
    /// The budget of this burst.
    pub(crate) limits: Limits,
    /// Coroutines of scripts that wait inside a root and must not be resumed otherwise: (root, waiting).
    pub(crate) carried: Vec<(*mut lua_State, *mut lua_State)>,
    /// The last coroutines in which the budget's hook raised an error: Lua leaves hooks forbidden there permanently, so
    /// no code of a script may run in them again.
    unhooked: VecDeque<*mut lua_State>,
}

impl Running {
    /// Records that the hook is about to raise in this coroutine.
    pub(crate) fn note_unhooked(&mut self, thread: *mut lua_State) {
        /// A script cannot easily exceed this, because each of them takes the whole time of its budget.
        const UNHOOKED_MAX: usize = 1024;
        if !self.is_unhooked(thread) {
            self.unhooked.truncate(UNHOOKED_MAX - 1);
            self.unhooked.push_front(thread);
        }
    }

    /// Forgets a coroutine that has been closed, which allows hooks again.
    pub(crate) fn forget_unhooked(&mut self, thread: *mut lua_State) {
        if !self.unhooked.is_empty() {
            self.unhooked.retain(|noted| *noted != thread);
        }
    }

    /// Returns whether the hook has raised in this coroutine.
    pub(crate) fn is_unhooked(&self, thread: *mut lua_State) -> bool {
        self.unhooked.contains(&thread)
    }
}

impl Default for Running {
    fn default() -> Self {
        Running {
            reason: Reason::Script,
            yieldable: false,
            root: ptr::null_mut(),
            limits: Limits::default(),
            carried: Vec::new(),
            unhooked: VecDeque::new(),
        }
    }
}

/// A coroutine that the driver runs, pinned in the registry. Return it with [`State::recycle`].
#[must_use = "a coroutine that is not recycled stays in the registry"]
#[derive(Debug)]
pub struct Coroutine {
    thread: *mut lua_State,
    reference: c_int,
}

// SAFETY: a name of something inside a state; it is only used together with `&mut State`.
unsafe impl Send for Coroutine {}

impl Coroutine {
    /// Returns its `lua_State`, to push a function and arguments on, or to read results from.
    pub fn thread(&self) -> *mut lua_State {
        self.thread
    }
}

/// The run time of one coroutine: limit and use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Run time in all bursts together; `None`: unlimited.
    pub total: Option<Duration>,
    /// Run time without a yield; `None`: unlimited.
    pub burst: Option<Duration>,
    /// Run time so far, without waits.
    pub used: Duration,
    /// Whether a burst has been run; from the second on, bursts are timed.
    started: bool,
}

impl Budget {
    /// Returns a fresh budget.
    pub fn new(total: Option<Duration>, burst: Option<Duration>) -> Budget {
        Budget { total, burst, used: Duration::ZERO, started: false }
    }
}

/// The end of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Burst {
    /// The function returned this number of results, which are on the coroutine's stack.
    Done(c_int),
    /// A C function waits ([`wait`]).
    Waiting,
    /// The slice is over: let others run, then resume.
    Forced,
    /// The script yielded at its top level.
    Yielded,
    /// An error; see [`State::failure`]. The coroutine can only be recycled.
    Failed,
}

/// Returns whether a C function called now may [`wait`].
///
/// # Safety
/// `lua` is the `lua_State` that a C function was called with.
pub unsafe fn can_wait(lua: *mut lua_State) -> bool {
    // SAFETY: as promised by the caller.
    unsafe { Core::of(lua).running.yieldable && ffi::lua_isyieldable(lua) != 0 }
}

/// Suspends up to the driver; `continuation` runs in the C function's place once the driver resumes. Use it as the C
/// function's (or continuation's) return value: it does not return. Raises where it can't yield.
///
/// # Safety
/// As [`can_wait`]; nothing with a destructor is alive in the caller.
pub unsafe fn wait(lua: *mut lua_State, context: lua_KContext, continuation: lua_KFunction) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe {
        if !can_wait(lua) {
            crate::raise(lua, c"attempt to yield across a C-call boundary");
        }
        Core::of(lua).running.reason = Reason::Waiting;
        ffi::lua_yieldk(lua, 0, context, Some(continuation))
    }
}

/// The instruction for a long-running C function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Continue.
    Go,
    /// The slice is over and others wait for this thread: [`leave`].
    Leave,
    /// The script is being ended: [`stopped`].
    Stop,
}

/// Asks whether to continue. A C function that can run long calls it every few thousand steps (bytes copied, elements
/// visited, steps of a pattern). Raises nothing, so values with destructors may be alive.
///
/// Cost: a few loads until the slice is over.
///
/// # Safety
/// `lua` is the `lua_State` that a C function was called with.
#[inline]
pub unsafe fn poll(lua: *mut lua_State) -> Poll {
    // SAFETY: as promised by the caller.
    unsafe { poll_if(lua, || can_wait(lua)) }
}

/// Like [`poll`], with `may_leave` in place of [`can_wait`].
#[inline]
pub(crate) unsafe fn poll_if(lua: *mut lua_State, may_leave: impl Fn() -> bool) -> Poll {
    #[cfg(test)]
    if let Some(verdict) = tests::scripted(may_leave()) {
        return verdict;
    }
    // SAFETY: as promised by the caller.
    unsafe {
        let core = Core::of(lua);
        if core.stop.load(Ordering::Relaxed) {
            return Poll::Stop;
        }
        if !budget::is_over() {
            return Poll::Go;
        }
        let may_leave = may_leave();
        if core.running.limits.expire(may_leave || budget::is_patient()) {
            return Poll::Stop;
        }
        if may_leave && budget::is_hurried() { Poll::Leave } else { Poll::Go }
    }
}

/// The maximum number of bytes that are processed at once on a thread that others wait for: a few hundred microseconds
/// of copying.
const HEAVY: usize = 1 << 20;

/// As [`poll`], before `bytes` are processed at once by code that cannot poll in between: Lua's own copy of a string.
/// Also returns [`Poll::Leave`] if they are too many for this thread.
///
/// # Safety
/// As [`poll`].
#[inline]
pub unsafe fn weigh(lua: *mut lua_State, bytes: usize) -> Poll {
    // SAFETY: as promised by the caller.
    unsafe {
        match poll(lua) {
            Poll::Go if bytes > HEAVY && !budget::is_patient() && can_wait(lua) => Poll::Leave,
            verdict => verdict,
        }
    }
}

/// Like [`weigh`], but without a poll for few bytes, which take a short time.
///
/// # Safety
/// As [`poll`].
#[inline]
pub(crate) unsafe fn weigh_small(lua: *mut lua_State, bytes: usize) -> Poll {
    // SAFETY: as promised by the caller.
    if bytes < 4096 { Poll::Go } else { unsafe { weigh(lua, bytes) } }
}

/// Suspends up to the driver, which gets [`Burst::Forced`]; `continuation` runs in the C function's place when the
/// driver resumes, on a thread that has time ([`patient`](budget::patient)). The function's arguments are still on the
/// stack, so that it can restart or continue. Use it as the C function's return value after a [`poll`] that said
/// [`Poll::Leave`]: it does not return.
///
/// # Safety
/// As [`poll`]; nothing with a destructor is alive in the caller.
pub unsafe fn leave(lua: *mut lua_State, continuation: lua_KFunction) -> c_int {
    // SAFETY: as promised by the caller; `poll` saw that a yield is possible.
    unsafe {
        // The hook that the handler armed would end the next burst as it begins.
        ffi::lua_sethook(lua, None, 0, 0);
        Core::of(lua).running.reason = Reason::Forced;
        ffi::lua_yieldk(lua, 0, 0, Some(continuation))
    }
}

/// Raises the error of a script that is ended, after a [`poll`] that said [`Poll::Stop`].
///
/// # Safety
/// As [`leave`].
pub unsafe fn stopped(lua: *mut lua_State) -> ! {
    // SAFETY: as promised by the caller.
    unsafe {
        let expired = Core::of(lua).running.limits.expired;
        crate::raise(lua, if expired { c"execution timeout" } else { c"script stopped" })
    }
}

impl State {
    /// Returns the flag that ends the running script of this state, and every later one, until it is cleared. Any
    /// thread may set it; the error's kind is [`ErrorKind::Stopped`].
    pub fn stopper(&mut self) -> Arc<AtomicBool> {
        Arc::clone(&self.core().stop)
    }

    /// Returns a coroutine with an empty stack, at least 20 slots free.
    pub fn coroutine(&mut self) -> Result<Coroutine, Error> {
        if let Some(coroutine) = self.core().idle.pop() {
            return Ok(coroutine);
        }
        // SAFETY: nothing is held across the two calls that may raise.
        unsafe {
            self.protect(|lua| {
                let thread = ffi::lua_newthread(lua);
                let reference = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
                Coroutine { thread, reference }
            })
        }
    }

    /// Runs one burst. The first burst of a coroutine calls the function on its stack with the `args` values above
    /// it; later ones pass nothing.
    ///
    /// # Safety
    /// The coroutine belongs to this state and its stack holds the arguments counted by `args`.
    pub unsafe fn resume(&mut self, coroutine: &Coroutine, args: c_int, budget: &mut Budget) -> Burst {
        let thread = coroutine.thread;
        let running = &mut self.core().running;
        let started = if budget.started { Some(Instant::now()) } else { None };
        let left = budget.total.map(|total| total.saturating_sub(budget.used));
        let spent = left == Some(Duration::ZERO);
        running.limits = Limits { started, left, burst: budget.burst, blocked: None, expired: spent };
        if spent {
            return Burst::Failed;
        }
        budget.started = true;
        running.reason = Reason::Script;
        running.yieldable = true;
        running.root = thread;
        let mut results = 0;
        let before = budget::enter(thread);
        // SAFETY: the coroutine is alive (pinned) and not running; errors come back as a status.
        let status = unsafe { ffi::lua_resume(thread, ptr::null_mut(), args, &mut results) };
        budget::leave(before);
        let running = &mut self.core().running;
        running.yieldable = false;
        running.root = ptr::null_mut();
        if let Some(started) = running.limits.started {
            budget.used += started.elapsed();
            budget::count_slice();
        }
        match status {
            ffi::LUA_OK => Burst::Done(results),
            ffi::LUA_YIELD => {
                // SAFETY: a yield leaves its values on the coroutine's stack, which are not needed.
                unsafe { ffi::lua_settop(thread, -results - 1) };
                let reason = running.reason;
                match reason {
                    Reason::Script => Burst::Yielded,
                    Reason::Waiting => Burst::Waiting,
                    // The script is being ended, and must not continue.
                    Reason::Forced if running.limits.expired || self.core().stop.load(Ordering::Relaxed) => {
                        Burst::Failed
                    }
                    Reason::Forced => Burst::Forced,
                }
            }
            _ => Burst::Failed,
        }
    }

    /// Returns the error of the last burst. Call it before the coroutine is recycled.
    pub fn failure(&mut self, coroutine: &Coroutine) -> Error {
        let expired = self.core().running.limits.expired;
        let thread = coroutine.thread;
        // SAFETY: the coroutine is alive and not running.
        unsafe {
            let trace = traceback(thread, 0);
            if expired {
                return Error { kind: ErrorKind::Timeout, message: "execution timeout".into(), trace };
            }
            if ffi::lua_status(thread) == ffi::LUA_YIELD {
                return Error { kind: ErrorKind::Stopped, message: "script stopped".into(), trace };
            }
            let kind = match ffi::lua_status(thread) {
                ffi::LUA_ERRMEM => ErrorKind::Memory,
                _ if self.core().stop.load(Ordering::Relaxed) => ErrorKind::Stopped,
                status if ffi::lua_gettop(thread) > 0 => error_kind(thread, -1, status),
                _ => ErrorKind::Runtime,
            };
            let mut message = if ffi::lua_gettop(thread) > 0 { error_text(thread, -1) } else { "unknown error".into() };
            if self.core().sandbox.on {
                message = crate::sandbox::message::adapted(message);
            }
            Error { kind, message, trace }
        }
    }

    /// Reclaims a coroutine in any state: finished, failed, or aborted while it waited. To-be-closed variables are
    /// closed, within one burst's budget.
    pub fn recycle(&mut self, coroutine: Coroutine) {
        let thread = coroutine.thread;
        let core = self.core();
        // An error raised by a hook (the budget's) leaves hooks forbidden on its coroutine permanently, so nothing
        // could end the next script there. So a coroutine that failed is never used again.
        // SAFETY: reading the status of a coroutine that is alive.
        let failed = !matches!(unsafe { ffi::lua_status(thread) }, ffi::LUA_OK | ffi::LUA_YIELD);
        // SAFETY: the coroutine is alive and not running; closing it is protected.
        unsafe {
            if ffi::lua_status(thread) == ffi::LUA_OK {
                ffi::lua_settop(thread, 0);
                // A coroutine that ended when it was about to be suspended would be suspended at once in its next use.
                if ffi::lua_gethook(thread).is_some() {
                    ffi::lua_sethook(thread, None, 0, 0);
                }
            } else if failed && core.running.is_unhooked(thread) {
                // Its to-be-closed variables are not closed, because nothing could end their metamethods.
                ffi::lua_sethook(thread, None, 0, 0);
            } else {
                core.running.carried.retain(|(root, _)| *root != thread);
                core.running.yieldable = false;
                core.running.limits = Limits { burst: Some(Duration::from_millis(100)), ..Limits::default() };
                ffi::lua_sethook(thread, None, 0, 0);
                let before = budget::enter(thread);
                ffi::lua_closethread(thread, ptr::null_mut());
                budget::leave(before);
                ffi::lua_sethook(thread, None, 0, 0);
                ffi::lua_settop(thread, 0);
                core.running.forget_unhooked(thread);
            }
        }
        if !failed && self.core().idle.len() < IDLE_MAX {
            self.core().idle.push(coroutine);
            return;
        }
        self.forget(coroutine);
    }

    /// Abandons a coroutine to the garbage collector.
    pub(crate) fn forget(&mut self, coroutine: Coroutine) {
        let reference = coroutine.reference;
        // SAFETY: nothing is held. A failure to unpin costs one coroutine's memory until the state goes.
        let _ = unsafe { self.protect(|lua| ffi::luaL_unref(lua, ffi::LUA_REGISTRYINDEX, reference)) };
    }
}

/// Polls whose answers tests determine.
#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::Poll;

    thread_local! {
        static ASKED: Cell<u64> = const { Cell::new(0) };
        static ANSWER: Cell<Option<(u64, Poll)>> = const { Cell::new(None) };
    }

    /// Returns the result that [`answer`] has set, if it is meant for this poll.
    pub(super) fn scripted(may_leave: bool) -> Option<Poll> {
        ASKED.set(ASKED.get() + 1);
        let (at, verdict) = ANSWER.get()?;
        if at != ASKED.get() || (verdict == Poll::Leave && !may_leave) {
            return None;
        }
        ANSWER.set(None);
        Some(verdict)
    }

    /// Makes the poll with number `at` from now on, counted from 1, return `verdict` once.
    pub(crate) fn answer(at: u64, verdict: Poll) {
        ASKED.set(0);
        ANSWER.set(Some((at, verdict)));
    }

    /// Returns the number of polls since [`answer`].
    pub(crate) fn asked() -> u64 {
        ASKED.get()
    }
}
