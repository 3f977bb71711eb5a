//! Scheduling priorities of workers and of the threads for background work.
//!
//! By default a running thread keeps the core for its time slice of some milliseconds, whichever thread wakes meanwhile
//! and however low its own priority is. From 6.12 on, a thread that requests shorter slices preempts it as soon as it
//! wakes.
//!
//! A service manager may run the process under a filter of system calls that kills it at a call that changes a priority,
//! as Debian's unit of redis-server does (`SystemCallFilter=~@resources`). A filter cannot be asked what it allows, so
//! under one no priority is changed, unless a child of the process has [tried](try_priorities) it.

use std::sync::OnceLock;

/// The time slice of a worker, in nanoseconds: the shortest that Linux allows.
const SHORT_NS: u64 = 100_000;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gives_the_turns_that_are_asked_for() {
        std::thread::spawn(|| {
            // SAFETY: it changes this thread's priority, and reads its attributes into a record that is large enough.
            let read = || unsafe {
                let mut attributes: Attributes = std::mem::zeroed();
                let size = size_of::<Attributes>();
                assert_eq!(libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0), 0);
                attributes
            };
            // SAFETY: as above.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 3) };
            let before = read();
            short_turns();
            let after = read();
            assert_eq!((before.nice, after.nice, after.policy), (3, 3, before.policy), "nothing else has changed");
            // A kernel before 6.12 has no time slices per thread, and returns 0.
            assert!(
                before.runtime_ns == 0 || after.runtime_ns == SHORT_NS,
                "{} to {}",
                before.runtime_ns,
                after.runtime_ns
            );
        })
        .join()
        .expect("the thread");
    }
}
