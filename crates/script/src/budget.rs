//! The ticker, its signal and the hook, which make long-running scripts yield and end them.
//!
//! A worker enters a burst by storing the running coroutine and bumping a sequence number to odd, and leaves it by
//! bumping it to even: two atomic writes each, no clock. One ticker thread looks at all workers every [`TICK`] or more
//! often; a worker that has used a tick of CPU time since it was first seen in an odd sequence gets [`SIGNAL`], whose
//! handler runs on that worker's thread and so may arm the hook of its running coroutine (`lua_sethook` is
//! async-signal-safe on the own thread, not from another).
//!
//! CPU time and not wall-clock time, because scripts that share a state rely on running alone between two waits as long
//! as they are short: a script that the kernel preempted must not count as long because the machine is busy.
//!
//! The hook yields if all enclosing calls can be yielded across; otherwise it retries every few instructions until a
//! fraction (`1 / BLOCKED_PART`) of the burst's limit is used up. The clock is read only here and by bursts that follow
//! a yield; a first burst that was never signalled lasted less than two ticks and counts as nothing.
//!
//! Cost: while scripts run, a thousand wake-ups of the ticker a second (about 0.3 % of a core), each with a system call
//! for every thread whose burst outlives a look; a hundred when idle.
//!
//! A [`Watch`] shows other threads that a thread runs a burst, and the current line of its script: the handler of the
//! same signal records the line.
//!
//! `SIGURG` is used because its default action is to be ignored, debuggers pass it through, and nothing else in the
//! process uses out-of-band data.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::CpuClock;
use crate::ffi::{self, lua_Debug, lua_State};
use crate::run::Reason;
use crate::state::Core;

/// The ticker's interval while scripts run: a burst is asked to yield when it has run for one to two of these.
pub const TICK: Duration = Duration::from_millis(1);

/// CPU time after which a burst is asked to yield; a little less than a tick, so that a burst that ran without
/// interruption is asked at the second check.
const SLICE: Duration = Duration::from_micros(900);

/// The ticker's interval while a script runs on a [patient] thread. A worker that shares a core with that thread loses
/// the core at the end of its scheduler turn, and the kernel may leave it to the script until the next event there: its
/// own tick, which is 4 ms with most distributions, or the wake-up of the ticker.
const PATIENT_TICK: Duration = Duration::from_micros(400);

/// The ticker's interval if no script ran since the last check.
const IDLE_TICK: Duration = Duration::from_millis(10);

/// The signal that the ticker sends to a worker.
pub const SIGNAL: c_int = libc::SIGURG;

/// The number of instructions between two checks of the clock in a burst that can't yield.
const WATCH: c_int = 1000;

/// The fraction of a burst's time that a script has where it can't be suspended: in a Lua function that a C function
/// calls. Everything else on its thread waits meanwhile.
const BLOCKED_PART: u32 = 50;

/// A thread that runs Lua.
struct Slot {
    /// Odd while a burst runs. Written by the thread itself.
    sequence: AtomicU64,
    /// The innermost coroutine that runs. Written by the thread itself, read by the handler on the same thread.
    running: AtomicPtr<lua_State>,
    /// The sequence that the ticker signalled: a handler that comes late sees another one and does nothing.
    fired: AtomicU64,
    thread: libc::pthread_t,
    clock: CpuClock,
    /// Whether the thread is [`patient`].
    patient: bool,
    /// The sequence whose slice is to end at once, and in which a C function leaves the thread although it is patient.
    hurried: AtomicU64,
    /// Whether a [`Watch`] asks for the position of the script.
    asked: AtomicBool,
    place: UnsafeCell<Place>,
    /// Whether the position was written.
    answered: AtomicBool,
}

// SAFETY: `place` is written by the handler on the slot's thread between `asked` and `answered`, and read by the
// asking thread after `answered`.
unsafe impl Sync for Slot {}
// SAFETY: it refers to its thread's coroutine by an atomic and owns nothing else.
unsafe impl Send for Slot {}

/// Bytes of a chunk's name in messages, Lua's `LUA_IDSIZE`.
const SOURCE_MAX: usize = 60;

/// The position of a script: the chunk's name as in messages, and the line.
struct Place {
    source: [u8; SOURCE_MAX],
    line: c_int,
}

/// Access to the state of a thread that runs Lua, for other threads.
#[derive(Clone)]
pub struct Watch(Arc<Slot>);

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Watch").field(&self.runs()).finish()
    }
}

impl Watch {
    /// Returns the watch of the calling thread.
    pub fn of_this_thread() -> Watch {
        if SLOT.get().is_null() {
            register();
        }
        let slot = SLOT.get();
        let found = slots().iter().find(|watched| ptr::eq(Arc::as_ptr(&watched.slot), slot)).map(|w| w.slot.clone());
        Watch(found.expect("the thread is registered"))
    }

    /// Returns whether a burst runs.
    pub fn runs(&self) -> bool {
        self.0.sequence.load(Ordering::Acquire) & 1 == 1
    }

    /// Lets the ticker end the slice of the burst that runs, if one does; a long C function leaves the thread even if it
    /// is [`patient`].
    pub fn end_slice(&self) {
        self.0.hurried.store(self.0.sequence.load(Ordering::Acquire), Ordering::Release);
    }

    /// Returns the clock of the thread's CPU time.
    pub fn clock(&self) -> CpuClock {
        self.0.clock
    }

    /// Asks the thread for the position of its script, which [`Watch::answer`] returns soon. Meant for a thread that
    /// has been in one C function for long: its signal handler reads the stack of the coroutine, which does not change
    /// meanwhile.
    pub fn ask(&self) {
        self.0.answered.store(false, Ordering::Relaxed);
        self.0.asked.store(true, Ordering::Release);
        // A thread removes its slot from the list before it ends.
        if slots().iter().any(|watched| Arc::ptr_eq(&watched.slot, &self.0)) {
            // SAFETY: the thread is alive while the list is locked; only the thread itself removes it.
            unsafe { libc::pthread_kill(self.0.thread, SIGNAL) };
        }
    }

    /// Returns `file:line` once the thread has answered; `None` also if no Lua function runs.
    pub fn answer(&self) -> Option<String> {
        if !self.0.answered.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the handler has written it, and writes again only when it is asked again.
        let place = unsafe { &*self.0.place.get() };
        let end = place.source.iter().position(|byte| *byte == 0).unwrap_or(0);
        let source = String::from_utf8_lossy(&place.source[..end]);
        (end > 0).then(|| format!("{source}:{}", place.line))
    }
}

/// Writes the position of the innermost Lua function.
///
/// # Safety
/// The coroutine is alive and runs on this thread.
unsafe fn answer(slot: &Slot, running: *mut lua_State) {
    /// The maximum number of C functions above it.
    const LEVELS_MAX: c_int = 16;
    // SAFETY: as promised by the caller. Neither function allocates or raises with these arguments.
    unsafe {
        let place = &mut *slot.place.get();
        place.source[0] = 0;
        let mut record: lua_Debug = std::mem::zeroed();
        for level in 0..LEVELS_MAX {
            if ffi::lua_getstack(running, level, &mut record) == 0 {
                break;
            }
            ffi::lua_getinfo(running, c"Sl".as_ptr(), &mut record);
            if record.currentline > 0 {
                for (to, from) in place.source.iter_mut().zip(record.short_src) {
                    *to = from as u8;
                }
                place.line = record.currentline;
                break;
            }
        }
    }
    slot.answered.store(true, Ordering::Release);
}

/// A thread watched by the ticker, with its last state.
struct Watched {
    slot: Arc<Slot>,
    sequence: u64,
    /// The thread's CPU time when it was first seen in this sequence.
    since: Duration,
}

/// Removes the slot from the ticker's list when its thread ends, so that no signal goes to an ended thread.
struct Registration(Arc<Slot>);

impl Drop for Registration {
    fn drop(&mut self) {
        SLOT.set(ptr::null());
        slots().retain(|watched| !Arc::ptr_eq(&watched.slot, &self.0));
    }
}

thread_local! {
    // Without a destructor, so that the signal handler may read it at any time.
    static SLOT: Cell<*const Slot> = const { Cell::new(ptr::null()) };
    static REGISTRATION: Cell<Option<Registration>> = const { Cell::new(None) };
    static PATIENT: Cell<bool> = const { Cell::new(false) };
}

/// Sets whether long scripts may occupy this thread: the kernel preempts it, so a C function that polls
/// ([`poll`](crate::poll)) runs to its end here. Its slices still end, so scripts take turns. Called before the
/// thread's first burst.
pub fn patient(patient: bool) {
    PATIENT.set(patient);
}

/// Returns whether a long C function may occupy this thread.
pub fn is_patient() -> bool {
    PATIENT.get()
}

/// Returns whether the burst that runs on this thread has been signalled: its slice is over.
#[inline]
pub(crate) fn is_over() -> bool {
    is_in(|slot| &slot.fired)
}

/// Returns whether C functions leave this thread at the end of the slice: others wait for it, or it is to be left.
pub(crate) fn is_hurried() -> bool {
    !is_patient() || is_in(|slot| &slot.hurried)
}

/// Returns whether this sequence number of the thread's slot is that of the burst that runs.
#[inline]
fn is_in(number: impl Fn(&Slot) -> &AtomicU64) -> bool {
    let slot = SLOT.get();
    if slot.is_null() {
        return false;
    }
    // SAFETY: the slot lives as long as the pointer is set.
    let slot = unsafe { &*slot };
    number(slot).load(Ordering::Relaxed) == slot.sequence.load(Ordering::Relaxed)
}

/// Returns whether a burst runs on this thread.
pub(crate) fn runs() -> bool {
    let slot = SLOT.get();
    // SAFETY: the slot lives as long as the pointer is set.
    !slot.is_null() && unsafe { (*slot).sequence.load(Ordering::Relaxed) } & 1 == 1
}

fn slots() -> std::sync::MutexGuard<'static, Vec<Watched>> {
    static SLOTS: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers this thread, and starts the ticker with the first thread of the process.
#[cold]
fn register() -> *const Slot {
    // By process, because the ticker's thread does not survive the fork that creates a daemon.
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    if STARTED.swap(process, Ordering::AcqRel) != process {
        install_handler();
        std::thread::Builder::new().name("lua-ticker".into()).spawn(tick).expect("the ticker's thread starts");
    }
    let slot = Arc::new(Slot {
        sequence: AtomicU64::new(0),
        running: AtomicPtr::new(ptr::null_mut()),
        fired: AtomicU64::new(0),
        // SAFETY: a thread may always query its own identifier.
        thread: unsafe { libc::pthread_self() },
        clock: CpuClock::of_this_thread(),
        patient: is_patient(),
        hurried: AtomicU64::new(0),
        asked: AtomicBool::new(false),
        place: UnsafeCell::new(Place { source: [0; SOURCE_MAX], line: 0 }),
        answered: AtomicBool::new(false),
    });
    slots().push(Watched { slot: Arc::clone(&slot), sequence: 0, since: Duration::ZERO });
    let raw = Arc::as_ptr(&slot);
    REGISTRATION.set(Some(Registration(slot)));
    SLOT.set(raw);
    raw
}

fn install_handler() {
    // SAFETY: `handler` is async-signal-safe; SA_RESTART keeps blocking calls of other code undisturbed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(SIGNAL, &action, ptr::null_mut());
    }
}

fn tick() {
    let mut period = IDLE_TICK;
    loop {
        std::thread::sleep(period);
        period = IDLE_TICK;
        // A thread removes its slot from the list before it ends, so the listed threads are alive while it is locked.
        for watched in slots().iter_mut() {
            let slot = &watched.slot;
            let sequence = slot.sequence.load(Ordering::Acquire);
            let (runs, is_new) = (sequence & 1 == 1, sequence != watched.sequence);
            if runs || is_new {
                period = period.min(if slot.patient { PATIENT_TICK } else { TICK });
            }
            let is_hurried = runs && slot.hurried.load(Ordering::Acquire) == sequence;
            if runs && is_new && !is_hurried {
                watched.since = slot.clock.ran();
            } else if is_hurried || runs && slot.clock.ran().saturating_sub(watched.since) >= SLICE {
                slot.fired.store(sequence, Ordering::Release);
                // SAFETY: the thread is alive, as said above.
                unsafe { libc::pthread_kill(slot.thread, SIGNAL) };
            }
            watched.sequence = sequence;
        }
    }
}

extern "C" fn handler(_: c_int) {
    let slot = SLOT.get();
    if slot.is_null() {
        return;
    }
    // SAFETY: the slot lives as long as the pointer is set, and both belong to this thread.
    let slot = unsafe { &*slot };
    let running = slot.running.load(Ordering::Relaxed);
    if !running.is_null() && slot.asked.swap(false, Ordering::Acquire) {
        // SAFETY: as below.
        unsafe { answer(slot, running) };
    }
    if running.is_null() || slot.fired.load(Ordering::Acquire) != slot.sequence.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: `running` is alive while it is set, and it runs on this very thread.
    unsafe { arm(running) };
}

/// Sets the hook of a coroutine. Arming walks the whole call stack, which in a runaway recursion takes longer than a
/// tick, so an armed hook is left alone.
///
/// # Safety
/// The coroutine is alive and runs on this thread.
unsafe fn arm(running: *mut lua_State) {
    // SAFETY: as promised by the caller; setting a hook allocates nothing.
    unsafe {
        if ffi::lua_gethook(running).map(|armed| armed as usize) != Some(hook as *const () as usize) {
            ffi::lua_sethook(running, Some(hook), ffi::LUA_MASKCOUNT, 1);
        }
    }
}

/// Ends the slice of the script on this thread, as the ticker would, if others wait for the thread: the script is
/// suspended before its next instruction, or at its next poll.
pub(crate) fn leave_soon() {
    let slot = SLOT.get();
    if slot.is_null() {
        return;
    }
    // SAFETY: the slot lives as long as the pointer is set, and both belong to this thread.
    let slot = unsafe { &*slot };
    let running = slot.running.load(Ordering::Relaxed);
    if slot.patient || running.is_null() {
        return;
    }
    slot.fired.store(slot.sequence.load(Ordering::Relaxed), Ordering::Release);
    // SAFETY: as in the handler.
    unsafe { arm(running) };
}

/// Begins a burst of `coroutine` on this thread.
#[inline]
pub(crate) fn enter(coroutine: *mut lua_State) {
    let mut slot = SLOT.get();
    if slot.is_null() {
        slot = register();
    }
    // SAFETY: the slot lives as long as the pointer is set.
    let slot = unsafe { &*slot };
    slot.running.store(coroutine, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    slot.sequence.store(slot.sequence.load(Ordering::Relaxed) + 1, Ordering::Release);
}

/// Ends the burst.
#[inline]
pub(crate) fn leave() {
    // SAFETY: `enter` was called on this thread, so the slot is set.
    let slot = unsafe { &*SLOT.get() };
    slot.sequence.store(slot.sequence.load(Ordering::Relaxed) + 1, Ordering::Release);
    compiler_fence(Ordering::SeqCst);
    slot.running.store(ptr::null_mut(), Ordering::Relaxed);
}

/// Records the coroutine that runs from now on inside the burst; returns the previous one.
#[inline]
pub(crate) fn switch(coroutine: *mut lua_State) -> *mut lua_State {
    let slot = SLOT.get();
    if slot.is_null() {
        return ptr::null_mut(); // Code that runs at startup has neither a burst nor a budget.
    }
    // SAFETY: as in `enter`.
    let slot = unsafe { &*slot };
    let before = slot.running.load(Ordering::Relaxed);
    slot.running.store(coroutine, Ordering::Relaxed);
    before
}

/// The limits of the burst that runs.
#[derive(Clone, Copy, Default)]
pub(crate) struct Limits {
    /// The start of the burst; `None` in a first burst without a signal so far.
    pub(crate) started: Option<Instant>,
    /// Run time that is left in total.
    pub(crate) left: Option<Duration>,
    /// Run time without a yield.
    pub(crate) burst: Option<Duration>,
    /// This thread's CPU time when the script was first found where it can't be suspended.
    pub(crate) blocked: Option<Duration>,
    /// Whether the hook raised `execution timeout` in this burst.
    pub(crate) expired: bool,
}

impl Limits {
    /// Returns whether the time is used up; called only in a burst that was signalled. Where the script can't be
    /// suspended, it has a fraction of the burst's time.
    pub(crate) fn expire(&mut self, may_yield: bool) -> bool {
        let now = Instant::now();
        let started = *self.started.get_or_insert_with(|| now - TICK);
        let elapsed = now.duration_since(started);
        let over = |limit: Option<Duration>| limit.is_some_and(|limit| elapsed >= limit);
        self.expired |= over(self.left) || over(self.burst);
        if !may_yield && let Some(burst) = self.burst {
            let used = CpuClock::of_this_thread().ran();
            let since = *self.blocked.get_or_insert(used);
            self.expired |= used.saturating_sub(since) >= burst / BLOCKED_PART;
        }
        self.expired
    }
}

/// The hook, which runs in a coroutine whose burst has taken too long.
unsafe extern "C-unwind" fn hook(lua: *mut lua_State, _: *mut lua_Debug) {
    // SAFETY: called by Lua on the running coroutine; nothing here has a destructor.
    unsafe {
        ffi::lua_sethook(lua, None, 0, 0);
        let core = Core::of(lua);
        let may_yield = core.running.yieldable && ffi::lua_isyieldable(lua) != 0;
        // A script that is being ended yields if it can, and its driver ends it: an error would only reach the next
        // `pcall` around this coroutine.
        let expired = core.running.limits.expire(may_yield);
        if !may_yield && (expired || core.stop.load(Ordering::Relaxed)) {
            core.running.note_unhooked(lua);
            // Every instruction from here raises, so no loop around a `pcall` outlives its budget.
            ffi::lua_sethook(lua, Some(hook), ffi::LUA_MASKCOUNT, 1);
            crate::run::stopped(lua);
        }
        if may_yield {
            core.running.reason = Reason::Forced;
            ffi::lua_yield(lua, 0);
            return;
        }
        ffi::lua_sethook(lua, Some(hook), ffi::LUA_MASKCOUNT, WATCH);
    }
}
