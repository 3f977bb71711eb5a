//! Slices of scripts in CPU time that no other thread wants.
//!
//! A slice that only computes runs on a thread of the class `SCHED_IDLE`, the *spare thread*, on behalf of a script
//! thread, which waits for it. A worker that wakes preempts it at once, so other clients do not notice the script. The
//! spare thread holds no lock of the store, as the kernel may keep it from the core for long: a script that calls a
//! command leaves it first, and the script thread does the rest.
//!
//! On a core that others keep busy such a thread runs for a fraction of a percent of the time. Then it gets the script
//! thread's priority, its slice ends early, and the script continues on the script thread for some [turns](Room), which
//! has its part of the core whatever others do. Where the kernel lets no thread leave that class (in a container without
//! `CAP_SYS_NICE`), the spare thread has the highest nice value instead.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use sluicegate_script::{Burst, CpuClock, Watch};

/// The interval at which the script thread looks at a slice on the spare thread.
const LOOK: Duration = Duration::from_millis(20);
/// A slice on the spare thread that has less than one in so many parts of a core ends.
const LEAST: u32 = 5;
/// A script thread that has more than one in so many parts of a core shows that there is room for a spare thread: at
/// its priority it has a quarter of a core that workers keep busy.
const ENOUGH: u32 = 3;
/// The number of turns for which a script stays on script threads after a slice that was ended early, for the first
/// time; it doubles with each following time.
const PAUSE: u32 = 16;
/// The maximum of that number: some seconds.
const PAUSE_MAX: u32 = 1024;
/// The same after a slice that ended with a command.
const PAUSE_OF_COMMAND: u32 = 8;

/// The nice value of a spare thread that cannot belong to the class `SCHED_IDLE`.
const NICE_MAX: libc::c_int = 19;

/// Whether a script's next slice may run on a spare thread.
#[derive(Debug, Default)]
pub(super) struct Room {
    may_be_spare: bool,
    /// The turns that are left before the next attempt.
    pause: u32,
    /// The pause after the last slice that was ended early.
    last_pause: u32,
}

impl Room {
    /// Returns whether the next slice may run on a spare thread.
    pub(super) fn may_be_spare(&self) -> bool {
        self.may_be_spare
    }

    /// Records a turn on a script thread: its CPU time, its duration, and whether the script called a command.
    pub(super) fn took_turn(&mut self, ran: Duration, took: Duration, called: bool) {
        self.pause = self.pause.saturating_sub(1);
        self.may_be_spare = self.pause == 0 && !called && ran * ENOUGH > took;
    }

    /// Makes the next turn one on a script thread, without a pause.
    pub(super) fn forget(&mut self) {
        self.may_be_spare = false;
    }

    /// Records a slice on a spare thread.
    pub(super) fn was_spare(&mut self, end: End) {
        self.may_be_spare = end == End::Slice;
        self.pause = match end {
            End::Slice => 0,
            End::Early => (self.last_pause * 2).clamp(PAUSE, PAUSE_MAX),
            End::Left => PAUSE_OF_COMMAND,
        };
        self.last_pause = match end {
            End::Early => self.pause,
            // It had its part.
            End::Slice | End::Left => 0,
        };
    }
}

/// The end of a slice on a spare thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The slice was over.
    Slice,
    /// There was too little CPU time.
    Early,
    /// The script has to continue on a script thread, or has ended.
    Left,
}

/// A script that can run on a spare thread.
pub(super) trait Slices: Send + 'static {
    /// Runs for a slice.
    fn slice(&mut self) -> Burst;
}

/// A spare thread, owned by a script thread. It ends when its owner drops this.
pub(super) struct Spare<S: Slices> {
    shared: Arc<Shared<S>>,
    watch: Watch,
    thread: libc::pid_t,
    /// Whether it belongs to the class `SCHED_IDLE` while it has enough CPU time.
    is_idle: bool,
}

/// The place where the two threads pass a script to each other.
struct Shared<S> {
    place: Mutex<Place<S>>,
    changed: Condvar,
}

enum Place<S> {
    Empty,
    /// To the spare thread.
    Given(Box<S>),
    /// To its owner, after a slice or a panic.
    Back(Box<S>, thread::Result<Burst>),
    /// The owner has gone.
    Closed,
}

impl<S: Slices> Spare<S> {
    /// Starts a spare thread for the calling thread, which has the nice value `nice`; `None` if there can't be one.
    pub(super) fn start(nice: libc::c_int) -> Option<Spare<S>> {
        static MAY_RETURN: OnceLock<bool> = OnceLock::new();
        let is_idle = *MAY_RETURN.get_or_init(|| sluicegate_script::may_return_from_idle(nice));
        let shared = Arc::new(Shared { place: Mutex::new(Place::Empty), changed: Condvar::new() });
        let (of_thread, (sender, started)) = (shared.clone(), sync_channel(1));
        let work = move || {
            sluicegate_script::patient(true);
            // The thread is registered for signals while nothing keeps it from the core.
            let watch = Watch::of_this_thread();
            if !is_idle {
                sluicegate_script::set_nice(0, NICE_MAX);
            }
            // SAFETY: a thread may always ask for its number.
            let thread = unsafe { libc::gettid() };
            if sender.send((watch, thread)).is_ok() {
                of_thread.work();
            }
        };
        thread::Builder::new().name("store-spare".into()).spawn(work).ok()?;
        let (watch, thread) = started.recv().ok()?;
        let spare = Spare { shared, watch, thread, is_idle };
        spare.go_behind();
        Some(spare)
    }

    /// Lets the thread run behind all others, if it may return.
    fn go_behind(&self) {
        if self.is_idle {
            sluicegate_script::run_when_idle(self.thread);
        }
    }

    /// Returns its number, and the clock of its CPU time.
    pub(super) fn thread(&self) -> (libc::pid_t, CpuClock) {
        (self.thread, self.watch.clock())
    }

    /// Runs a script for a slice on the spare thread, and waits for its end. An error is a panic there.
    pub(super) fn run(&self, script: Box<S>) -> (Box<S>, thread::Result<Burst>, End) {
        let mut place = self.shared.place.lock();
        *place = Place::Given(script);
        self.shared.changed.notify_one();
        let (mut since, mut ran, mut is_early) = (Instant::now(), self.watch.clock().ran(), false);
        loop {
            match std::mem::replace(&mut *place, Place::Empty) {
                Place::Back(script, burst) => {
                    let end = match burst {
                        _ if is_early => End::Early,
                        Ok(Burst::Forced) => End::Slice,
                        _ => End::Left,
                    };
                    drop(place);
                    if is_early {
                        self.go_behind();
                    }
                    return (script, burst, end);
                }
                other => *place = other,
            }
            if !self.shared.changed.wait_for(&mut place, LOOK).timed_out() {
                continue;
            }
            let (now, has_run) = (Instant::now(), self.watch.clock().ran());
            is_early |= has_run.saturating_sub(ran) * LEAST < now - since;
            (since, ran) = (now, has_run);
            if is_early {
                // Repeated, as the slice may not even have begun.
                self.end_early();
            }
        }
    }
}

impl<S: Slices> Spare<S> {
    /// Ends the slice, for which the thread gets the priority of its owner.
    fn end_early(&self) {
        self.watch.end_slice();
        if self.is_idle {
            sluicegate_script::run_as_usual(self.thread);
        }
    }
}

impl<S: Slices> Drop for Spare<S> {
    fn drop(&mut self) {
        *self.shared.place.lock() = Place::Closed;
        self.shared.changed.notify_one();
    }
}

impl<S: Slices> Shared<S> {
    /// Runs slices until the owner has gone.
    fn work(&self) {
        let mut place = self.place.lock();
        loop {
            match std::mem::replace(&mut *place, Place::Empty) {
                Place::Given(mut script) => {
                    let burst = MutexGuard::unlocked(&mut place, || catch_unwind(AssertUnwindSafe(|| script.slice())));
                    *place = Place::Back(script, burst);
                    self.changed.notify_one();
                }
                Place::Closed => return,
                other => *place = other,
            }
            self.changed.wait(&mut place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Waker};

    use sluicegate_testkit::wait_for;

    use super::*;
    use crate::script::run::Step;
    use crate::script::trial::{job_of, store};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_script_that_computes_moves_to_a_spare_thread_while_there_is_room() {
        let mut room = Room::default();
        assert!(!room.may_be_spare(), "nothing is known yet");
        room.took_turn(MS, 4 * MS, false);
        assert!(!room.may_be_spare(), "this is its part of a core that others keep busy");
        room.took_turn(MS, 2 * MS, true);
        assert!(!room.may_be_spare(), "it calls commands");
        room.took_turn(MS, 2 * MS, false);
        assert!(room.may_be_spare());
        room.was_spare(End::Slice);
        assert!(room.may_be_spare());
        room.forget();
        assert!(!room.may_be_spare());
    }

    #[test]
    fn attempts_that_fail_become_rarer() {
        /// Returns the number of turns until the next attempt.
        fn pause(room: &mut Room) -> u32 {
            let mut turns = 0;
            while !room.may_be_spare() {
                room.took_turn(MS, MS, false);
                turns += 1;
            }
            turns
        }
        let mut room = Room::default();
        assert_eq!(pause(&mut room), 1);
        let mut after = |end| {
            room.was_spare(end);
            pause(&mut room)
        };
        assert_eq!([0; 8].map(|_| after(End::Early)), [16, 32, 64, 128, 256, 512, 1024, 1024]);
        assert_eq!([End::Left, End::Early, End::Early].map(&mut after), [8, 16, 32]);
        assert_eq!([End::Slice, End::Early].map(after), [0, 16]);
    }

    /// A script that does what it is told to.
    struct Told(Option<Burst>);

    impl Slices for Told {
        fn slice(&mut self) -> Burst {
            self.0.take().expect("a panic")
        }
    }

    #[test]
    fn the_end_of_a_slice_comes_back_even_if_it_is_a_panic() {
        let spare = Spare::start(0).expect("a thread");
        for (burst, end) in [
            (Some(Burst::Forced), End::Slice),
            (Some(Burst::Waiting), End::Left),
            (Some(Burst::Done(1)), End::Left),
            (Some(Burst::Failed), End::Left),
            (None, End::Left),
        ] {
            // Other tests may keep all cores busy for a while.
            wait_for("a slice that does not end early", || {
                let (script, came, how) = spare.run(Box::new(Told(burst)));
                assert_eq!((came.ok(), script.0), (burst, None));
                assert!(how == end || how == End::Early, "{how:?}");
                (how == end).then_some(())
            });
        }
    }

    /// Keeps the calling thread, and the threads that it starts, on one core.
    fn stay_on_one_core() {
        // SAFETY: the sets are ours; the calls read and change them and the affinity of this thread.
        unsafe {
            let mut all: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&all), &mut all), 0);
            let core = (0..libc::CPU_SETSIZE as usize).find(|core| libc::CPU_ISSET(*core, &all)).expect("a core");
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(core, &mut one);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &one), 0);
        }
    }

    #[test]
    fn a_slice_ends_early_on_a_core_that_is_busy() {
        let steps = || {
            let store = store();
            let mut job = job_of(&store, &["EVAL", "while true do end", "0"]);
            stay_on_one_core();
            let spare = Spare::start(0).expect("a thread");
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
                let mut ends = 0;
                // The script may also have a whole slice from time to time; after an early end it is behind again.
                wait_for("early ends", || {
                    let (step, end) = job.step_on(&spare, &mut Context::from_waker(Waker::noop()));
                    assert!(matches!(step, Step::Forced) && end.is_some(), "it continues");
                    ends += u32::from(end == Some(End::Early));
                    (ends == 3).then_some(())
                });
                is_over.store(true, Ordering::Relaxed);
            });
            drop(job);
            assert_eq!(store.stats().tickets, 0);
        };
        thread::spawn(steps).join().expect("the steps");
    }
}
