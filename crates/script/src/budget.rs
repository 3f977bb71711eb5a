//! The timer, its signal and the hook, which make long-running scripts yield and end them.
//!
//! A worker enters a burst by storing the running coroutine and the time stamp, and bumping a sequence number to odd, and
//! leaves it by bumping it to even: no clock, no system call. Each thread that runs scripts has a timer, which the
//! first burst after a pause starts. Its [`SIGNAL`] comes on the thread itself; the handler sees how long the burst that
//! runs has done so. If it has had its slice, the handler arms the hook of its running coroutine (`lua_sethook` is
//! async-signal-safe on the own thread, not from another); if not, it starts the timer for the rest. If no burst runs, the
//! timer rests until the next one.
//!
//! CPU time and not wall-clock time, because scripts that share a state rely on running alone between two waits as long
//! as they are short: a script that the kernel preempted must not count as long because the machine is busy.
//!
//! The hook yields if all enclosing calls can be yielded across; otherwise it retries every few instructions until a
//! fraction (`1 / BLOCKED_PART`) of the burst's limit is used up. The clock is read only here and by bursts that follow
//! a yield; a first burst that was never signalled lasted less than a slice and counts as nothing.
//!
//! Cost: 1,500 signals a second and thread while scripts run, which is 4 % of a core on a virtual machine that leaves it
//! for each timer; two system calls for the first burst after a pause; nothing while no script runs.
//!
//! A [`Watch`] shows other threads that a thread runs a burst, and the current line of its script: the handler of the
//! same signal records the line.
//!
//! `SIGURG` is used because its default action is to be ignored, debuggers pass it through, and nothing else in the
//! process uses out-of-band data.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::{CpuClock, monotonic_ns, stamp};
use crate::ffi::{self, lua_Debug, lua_State};
use crate::run::Reason;
use crate::state::Core;
use crate::timer::Timer;

/// CPU time after which a burst is asked to yield.
pub const SLICE: Duration = Duration::from_micros(650);

/// The least CPU time after which a burst is asked to yield: one that has run for less at the end of the timer's interval
/// gets the rest of its slice.
const LEAST: Duration = Duration::from_micros(300);

/// Both on a [patient] thread, for which only other scripts wait.
const PATIENT_SLICE: Duration = Duration::from_micros(1200);
const PATIENT_LEAST: Duration = Duration::from_micros(1000);

/// The signal of the timer, and of a thread that ends a slice or [asks](Watch::ask).
pub const SIGNAL: c_int = libc::SIGURG;

/// A thread that has run for less than `1 / STANDS_PART` of an interval is waiting for something.
const STANDS_PART: u64 = 8;

/// The longest interval while a thread waits within a burst.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The longest CPU time that a script had a thread that is not [patient], in nanoseconds.
static LONGEST_NS: AtomicU64 = AtomicU64::new(0);

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
    /// The time stamp at which the burst began. Written by the thread itself.
    began: AtomicU64,
    /// The sequence of the burst whose slice is over.
    fired: AtomicU64,
    timer: Timer,
    /// The moment at which the timer was started. Written by the thread itself.
    armed: Armed,
    thread: libc::pthread_t,
    clock: CpuClock,
    /// The thread's CPU time at which the burst whose slice is over began, or less, in nanoseconds.
    since_ns: AtomicU64,
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

/// The moment at which a timer was started.
#[derive(Default)]
struct Armed {
    /// Whether the timer is running.
    is: AtomicBool,
    /// The time at which it expires.
    until_ns: AtomicU64,
    /// The time, the time stamp, and the thread's CPU time.
    at_ns: AtomicU64,
    stamp: AtomicU64,
    ran_ns: AtomicU64,
    /// The sequence, and the CPU time that its burst had had, at least and at most.
    sequence: AtomicU64,
    least_ns: AtomicU64,
    most_ns: AtomicU64,
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
        let found = slots().iter().find(|listed| ptr::eq(Arc::as_ptr(listed), slot)).cloned();
        Watch(found.expect("the thread is registered"))
    }

    /// Returns whether a burst runs.
    pub fn runs(&self) -> bool {
        self.0.sequence.load(Ordering::Acquire) & 1 == 1
    }

    /// Ends the slice of the burst that runs, if one does; a long C function leaves the thread even if it is [`patient`].
    pub fn end_slice(&self) {
        let sequence = self.0.sequence.load(Ordering::Acquire);
        if sequence & 1 == 1 {
            self.0.hurried.store(sequence, Ordering::Release);
            self.0.fired.store(sequence, Ordering::Release);
            self.signal();
        }
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
        self.signal();
    }

    fn signal(&self) {
        // A thread removes its slot from the list before it ends.
        if slots().iter().any(|slot| Arc::ptr_eq(slot, &self.0)) {
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

/// Removes the slot from the list when its thread ends, so that no signal goes to an ended thread.
struct Registration(Arc<Slot>);

impl Drop for Registration {
    fn drop(&mut self) {
        SLOT.set(ptr::null());
        slots().retain(|listed| !Arc::ptr_eq(listed, &self.0));
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

fn slots() -> std::sync::MutexGuard<'static, Vec<Arc<Slot>>> {
    static SLOTS: Mutex<Vec<Arc<Slot>>> = Mutex::new(Vec::new());
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers this thread.
#[cold]
fn register() -> *const Slot {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(install_handler);
    let slot = Arc::new(Slot {
        sequence: AtomicU64::new(0),
        running: AtomicPtr::new(ptr::null_mut()),
        began: AtomicU64::new(0),
        fired: AtomicU64::new(0),
        timer: Timer::of_this_thread(SIGNAL),
        armed: Armed::default(),
        // SAFETY: a thread may always query its own identifier.
        thread: unsafe { libc::pthread_self() },
        clock: CpuClock::of_this_thread(),
        since_ns: AtomicU64::new(0),
        patient: is_patient(),
        hurried: AtomicU64::new(0),
        asked: AtomicBool::new(false),
        place: UnsafeCell::new(Place { source: [0; SOURCE_MAX], line: 0 }),
        answered: AtomicBool::new(false),
    });
    slots().push(Arc::clone(&slot));
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

impl Slot {
    /// Returns the CPU time after which a burst is asked to yield, and the least one.
    fn slice(&self) -> (Duration, Duration) {
        if self.patient { (PATIENT_SLICE, PATIENT_LEAST) } else { (SLICE, LEAST) }
    }

    /// Records the coroutine that runs from now on inside the burst; returns the previous one.
    #[inline]
    fn switch(&self, coroutine: *mut lua_State) -> *mut lua_State {
        let before = self.running.load(Ordering::Relaxed);
        self.running.store(coroutine, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // The handler has armed the coroutine that ran when the slice was over.
        if self.fired.load(Ordering::Relaxed) == self.sequence.load(Ordering::Relaxed) && !coroutine.is_null() {
            // SAFETY: the coroutine is about to run on this thread, or does so.
            unsafe { arm(coroutine) };
        }
        before
    }

    /// Starts the timer. On the slot's own thread.
    fn start(&self, after: Duration, now_ns: u64, ran_ns: u64, (least_ns, most_ns): (u64, u64)) {
        let armed = &self.armed;
        armed.at_ns.store(now_ns, Ordering::Relaxed);
        armed.stamp.store(stamp(), Ordering::Relaxed);
        armed.ran_ns.store(ran_ns, Ordering::Relaxed);
        armed.sequence.store(self.sequence.load(Ordering::Relaxed), Ordering::Relaxed);
        armed.least_ns.store(least_ns, Ordering::Relaxed);
        armed.most_ns.store(most_ns, Ordering::Relaxed);
        armed.until_ns.store(now_ns + after.as_nanos() as u64, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        armed.is.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.timer.start(after);
    }

    /// Starts the timer for a burst that has just begun.
    #[cold]
    fn start_for_burst(&self) {
        self.start(self.slice().0, monotonic_ns(), self.clock.ran_ns(), (0, 0));
    }

    /// Ends the slice of the burst that runs, if it has had it. Called by the handler, so the burst stands still.
    fn expire(&self) {
        let (armed, now_ns) = (&self.armed, monotonic_ns());
        if !armed.is.load(Ordering::Relaxed) || now_ns < armed.until_ns.load(Ordering::Relaxed) {
            return; // Another thread's signal.
        }
        let sequence = self.sequence.load(Ordering::Relaxed);
        if sequence & 1 == 0 {
            armed.is.store(false, Ordering::Relaxed);
            return;
        }
        let ran_ns = self.clock.ran_ns();
        // The time and the CPU time since the timer was started.
        let at_ns = armed.at_ns.load(Ordering::Relaxed);
        let gone_ns = now_ns - at_ns;
        let used_ns = ran_ns.saturating_sub(armed.ran_ns.load(Ordering::Relaxed));
        let had @ (least_ns, most_ns) = if armed.sequence.load(Ordering::Relaxed) == sequence {
            let before = |ns: &AtomicU64| ns.load(Ordering::Relaxed) + used_ns;
            (before(&armed.least_ns), before(&armed.most_ns))
        } else {
            let now = stamp();
            let since = |stamp: &AtomicU64| now.saturating_sub(stamp.load(Ordering::Relaxed));
            used_by_last(gone_ns, used_ns, since(&armed.stamp), since(&self.began))
        };
        let (slice, least) = self.slice();
        let has_had = Duration::from_nanos(least_ns);
        if has_had < least {
            // A C function that waits for something is not to be interrupted a thousand times a second.
            let interval = Duration::from_nanos(armed.until_ns.load(Ordering::Relaxed) - at_ns);
            let stands = used_ns < gone_ns / STANDS_PART;
            let pause = if stands { (2 * interval).min(PAUSE_MAX) } else { Duration::ZERO };
            self.start(pause.max(slice - has_had), now_ns, ran_ns, had);
            return;
        }
        self.since_ns.store(ran_ns.saturating_sub(most_ns), Ordering::Relaxed);
        self.fired.store(sequence, Ordering::Relaxed);
        self.start(slice, now_ns, ran_ns, had);
    }
}

/// Returns the CPU time that the last burst of an interval has had, at least and at most, from the interval's time and CPU
/// time and from the stamps that have gone by since both began: the time in which the thread did not run may lie in this
/// burst or before it.
fn used_by_last(gone_ns: u64, used_ns: u64, stamps: u64, stamps_of_last: u64) -> (u64, u64) {
    let part = u128::from(stamps_of_last.min(stamps)) * u128::from(gone_ns) / u128::from(stamps.max(1));
    let last_ns = part as u64;
    (last_ns.saturating_sub(gone_ns.saturating_sub(used_ns)), last_ns.min(used_ns))
}

/// Returns the longest CPU time for which a script had a thread that others wait for, or a little more. Scripts that end
/// before they are asked to yield are not counted.
pub fn longest_slice() -> Duration {
    Duration::from_nanos(LONGEST_NS.load(Ordering::Relaxed))
}

/// Forgets the [longest](longest_slice).
pub fn reset_longest_slice() {
    LONGEST_NS.store(0, Ordering::Relaxed);
}

/// Counts the burst that has just ended on this thread, or the part of one, for [`longest_slice`], if its slice was over.
#[cold]
pub(crate) fn count_slice() {
    // SAFETY: a burst ran on this thread, so the slot is set.
    let slot = unsafe { &*SLOT.get() };
    // The outermost one has bumped the sequence.
    let bumps = slot.sequence.load(Ordering::Relaxed).wrapping_sub(slot.fired.load(Ordering::Relaxed));
    if !slot.patient && bumps <= 1 {
        let ran_ns = slot.clock.ran_ns();
        LONGEST_NS.fetch_max(ran_ns.saturating_sub(slot.since_ns.load(Ordering::Relaxed)), Ordering::Relaxed);
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
    slot.expire();
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

/// Ends the slice of the script on this thread, as the timer would, if others wait for the thread: the script is
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
    // It leaves by itself, so its slice is not counted.
    slot.since_ns.store(u64::MAX, Ordering::Relaxed);
    slot.fired.store(slot.sequence.load(Ordering::Relaxed), Ordering::Release);
    // SAFETY: as in the handler.
    unsafe { arm(running) };
}

/// Begins a burst of `coroutine` on this thread. Within another burst (a script of the proxy calls one of a store) it is a
/// part of that one. Returns the value for [`leave`].
#[inline]
pub(crate) fn enter(coroutine: *mut lua_State) -> *mut lua_State {
    let mut slot = SLOT.get();
    if slot.is_null() {
        slot = register();
    }
    // SAFETY: the slot lives as long as the pointer is set.
    let slot = unsafe { &*slot };
    let sequence = slot.sequence.load(Ordering::Relaxed);
    if sequence & 1 == 1 {
        return slot.switch(coroutine);
    }
    slot.running.store(coroutine, Ordering::Relaxed);
    slot.began.store(stamp(), Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    slot.sequence.store(sequence + 1, Ordering::Release);
    // The handler stops the timer only outside of bursts.
    compiler_fence(Ordering::SeqCst);
    if !slot.armed.is.load(Ordering::Relaxed) {
        slot.start_for_burst();
    }
    ptr::null_mut()
}

/// Ends the burst, or the part of it.
#[inline]
pub(crate) fn leave(before: *mut lua_State) {
    // SAFETY: `enter` was called on this thread, so the slot is set.
    let slot = unsafe { &*SLOT.get() };
    if !before.is_null() {
        slot.switch(before);
        return;
    }
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
    unsafe { &*slot }.switch(coroutine)
}

/// Lets the timer rest at once. For a thread that has run scripts and continues with something else, which a late signal
/// must not interrupt.
pub fn rest() {
    let slot = SLOT.get();
    if slot.is_null() {
        return;
    }
    // SAFETY: as in `enter`.
    let slot = unsafe { &*slot };
    slot.armed.is.store(false, Ordering::Relaxed);
    slot.timer.stop();
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
        let started = *self.started.get_or_insert_with(|| now - SLICE);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_last_burst_lies_between_its_bounds() {
        assert_eq!(used_by_last(1000, 1000, 50, 10), (200, 200), "the thread has run all the time");
        assert_eq!(used_by_last(1000, 1000, 50, 60), (1000, 1000), "stamps of two cores");
        assert_eq!(used_by_last(1000, 900, 50, 10), (100, 200));
        assert_eq!(used_by_last(1000, 100, 50, 40), (0, 100), "the thread has hardly run");
        assert_eq!(used_by_last(1000, 1200, 50, 40), (800, 800), "clocks are read one after the other");
        assert_eq!(used_by_last(0, 0, 0, 0), (0, 0));
    }
}
