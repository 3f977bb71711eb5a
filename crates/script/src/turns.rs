//! Scheduling priorities of workers and of the threads for background work.
//!
//! By default a running thread keeps the core for its time slice of some milliseconds, whichever thread wakes meanwhile
//! and however low its own priority is. From 6.12 on, a thread that requests shorter slices preempts it as soon as it
//! wakes.
//!
//! A service manager may run the process under a filter of system calls that kills it at a call that changes a priority,
//! as Debian's unit of redis-server does (`SystemCallFilter=~@resources`). A filter cannot be asked what it allows, so
//! under one no priority is changed, unless a child of the process has [tried](try_priorities) it.
//!
//! A worker that has used more than its part of the core does not preempt a script when it wakes, and the kernel looks
//! at them again only at its next tick, some milliseconds later. So a script thread either [yields the
//! core](yield_after_turns) itself, or belongs to the class whose threads are preempted by any other ([`run_when_idle`]).

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time slice of a worker, in nanoseconds: the shortest that Linux allows.
const SHORT_NS: u64 = 100_000;

/// The time slice of a thread that [yields](yield_after_turns), in nanoseconds: longer than a worker's, which therefore preempts
/// it. A yield gives away a whole slice, so this is also what it costs.
const YIELDING_NS: u64 = 110_000;

/// The time after which such a thread yields.
const TURN_MAX: Duration = Duration::from_micros(100);

/// The number of polls for which the clock is read once.
const POLLS: u32 = 4;

/// Whether this process changes priorities.
static CHANGES: OnceLock<bool> = OnceLock::new();

/// The kernel's `struct sched_attr` in its first version.
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Requests short time slices for the calling thread, which others wait for. If the kernel does not support them, or
/// refuses the request, nothing changes.
pub fn short_turns() {
    if changes_priorities() {
        set_slice(SHORT_NS);
    }
}

thread_local! {
    /// The beginning of the turn of a thread that [yields](yield_after_turns), and the number of polls since the clock
    /// was read.
    static TURN: Cell<Option<(Instant, u32)>> = const { Cell::new(None) };
}

/// From now on [`poll_turn`] yields the core of the calling thread after each turn of `TURN_MAX`. Its nice value must
/// be set before. Returns false if nothing will be yielded: without time slices per thread (Linux before 6.12, or under
/// a filter of system calls) a yield might give away the kernel's usual slice of some milliseconds.
pub fn yield_after_turns() -> bool {
    let yields = changes_priorities() && {
        set_slice(YIELDING_NS);
        attributes().runtime_ns == YIELDING_NS
    };
    TURN.set(yields.then(|| (Instant::now(), 0)));
    yields
}

/// Yields the core if the calling thread [does so](yield_after_turns) and its turn is over.
#[inline]
pub fn poll_turn() {
    let Some((since, polls)) = TURN.get() else { return };
    TURN.set(Some(match polls + 1 < POLLS {
        true => (since, polls + 1),
        false if since.elapsed() < TURN_MAX => (since, 0),
        false => {
            std::thread::yield_now();
            (Instant::now(), 0)
        }
    }));
}

/// Lets a thread of this process run only while no thread of another class wants its core (`SCHED_IDLE`), by its number;
/// 0 is the calling thread. Returns false if the kernel refuses it.
pub fn run_when_idle(thread: libc::pid_t) -> bool {
    changes_priorities() && set_class(thread, libc::SCHED_IDLE)
}

/// Ends the effect of [`run_when_idle`]. Returns false if the kernel refuses it.
pub fn run_as_usual(thread: libc::pid_t) -> bool {
    changes_priorities() && set_class(thread, libc::SCHED_OTHER)
}

/// Returns whether a thread with this nice value may [run when idle](run_when_idle) and [as usual](run_as_usual) again.
/// The latter needs the privilege to raise priorities (`CAP_SYS_NICE`), or a limit that allows that nice value
/// (`RLIMIT_NICE`).
pub fn may_return_from_idle(nice: libc::c_int) -> bool {
    let tries = move || {
        set_nice(0, nice);
        run_when_idle(0) && run_as_usual(0)
    };
    // Without a thread to try it nothing is promised.
    std::thread::Builder::new().spawn(tries).is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Raises the limit that [`may_return_from_idle`] depends on, to that of the usual nice value, if this process has the
/// privilege: so its threads may return after it has given up its privileges.
pub fn let_return_from_idle() {
    /// The limit for a nice value of 0.
    const USUAL: libc::rlim_t = 20;
    if changes_priorities() {
        let limits = nice_limits();
        if limits.rlim_cur < USUAL {
            set_nice_limits(libc::rlimit { rlim_cur: USUAL, rlim_max: limits.rlim_max.max(USUAL) });
        }
    }
}

fn nice_limits() -> libc::rlimit {
    // SAFETY: the kernel writes the record.
    unsafe {
        let mut limits: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NICE, &mut limits);
        limits
    }
}

fn set_nice_limits(limits: libc::rlimit) {
    // SAFETY: the kernel reads the record.
    unsafe { libc::setrlimit(libc::RLIMIT_NICE, &limits) };
}

/// Sets the class of a thread. Not by the function of the C library, which does nothing in some of them.
fn set_class(thread: libc::pid_t, class: libc::c_int) -> bool {
    let priority: libc::c_int = 0;
    // SAFETY: the kernel reads the number, and changes the class of a thread only.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, class, &raw const priority) == 0 }
}

/// Sets the nice value of a thread of this process, by its number; 0 is the calling thread. If the kernel refuses it,
/// nothing changes.
pub fn set_nice(thread: libc::pid_t, nice: libc::c_int) {
    if changes_priorities() {
        // SAFETY: the call takes numbers, and changes the priority of a thread only.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, nice) };
    }
}

/// Returns whether the process runs under a filter of system calls.
pub fn is_filtered() -> bool {
    // SAFETY: takes and returns numbers.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) > 0 }
}

/// Makes the calls that change priorities, with the present ones: a filter may end the process here.
pub fn try_priorities() {
    // SAFETY: as in `set_nice`; what is set is what it was.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, libc::getpriority(libc::PRIO_PROCESS, 0)) };
    set_slice(0);
    attributes();
    set_class(0, libc::SCHED_OTHER);
    set_nice_limits(nice_limits());
}

/// Decides whether this process changes priorities. The first decision holds; without one, it does so unless it is
/// [filtered](is_filtered).
pub fn let_change_priorities(may: bool) {
    let _ = CHANGES.set(may);
}

fn changes_priorities() -> bool {
    *CHANGES.get_or_init(|| !is_filtered())
}

/// Requests time slices of so many nanoseconds for the calling thread; 0: those that the kernel prefers.
fn set_slice(slice_ns: u64) {
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        // SAFETY: it reads this thread's priority.
        nice: unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) },
        priority: 0,
        runtime_ns: slice_ns,
        deadline_ns: 0,
        period_ns: 0,
    };
    // SAFETY: the kernel reads as many bytes as `size` says, and changes this thread's time slices only.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// Returns the scheduling attributes of the calling thread; those of no thread if the kernel refuses.
fn attributes() -> Attributes {
    // SAFETY: numbers may be zero, and the kernel writes no more than the size that it is given.
    unsafe {
        let mut attributes: Attributes = std::mem::zeroed();
        libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size_of::<Attributes>(), 0);
        attributes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gives_the_turns_that_are_asked_for() {
        std::thread::spawn(|| {
            // SAFETY: it changes this thread's priority.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 3) };
            let before = attributes();
            short_turns();
            let after = attributes();
            assert_eq!((before.nice, after.nice, after.policy), (3, 3, before.policy), "nothing else has changed");
            // A kernel before 6.12 has no time slices per thread, and returns 0.
            assert!(
                before.runtime_ns == 0 || after.runtime_ns == SHORT_NS,
                "{} to {}",
                before.runtime_ns,
                after.runtime_ns
            );
            let yields = yield_after_turns();
            assert_eq!(yields, before.runtime_ns != 0);
            assert!(!yields || attributes().runtime_ns == YIELDING_NS);
        })
        .join()
        .expect("the thread");
    }

    #[test]
    fn a_thread_yields_after_each_of_its_turns_and_not_before() {
        std::thread::spawn(|| {
            poll_turn();
            assert_eq!(TURN.get(), None, "it does not yield");
            let polled = |since| {
                TURN.set(Some((since, 0)));
                (0..POLLS).for_each(|_| poll_turn());
                TURN.get().expect("it yields").0
            };
            let later = Instant::now() + Duration::from_secs(3600);
            assert_eq!(polled(later), later, "the turn is not over");
            let over = Instant::now() - TURN_MAX;
            assert!(polled(over) >= over + TURN_MAX, "another one has begun");
        })
        .join()
        .expect("the thread");
    }

    #[test]
    fn a_thread_goes_behind_all_others() {
        let after = std::thread::spawn(|| {
            assert!(run_when_idle(0));
            let policy = attributes().policy;
            (policy, run_as_usual(0), attributes().policy)
        });
        let (idle, returns, after) = after.join().expect("the thread");
        assert_eq!(idle, libc::SCHED_IDLE as u32);
        assert_eq!(returns, after == libc::SCHED_OTHER as u32);
        assert_eq!(returns, may_return_from_idle(0));
        assert_eq!(attributes().policy, libc::SCHED_OTHER as u32, "the others stay where they were");
    }
}
