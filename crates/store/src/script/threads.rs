//! Script threads: the execution of scripts beyond their first slice.
//!
//! They have a lower priority than the workers (`nice`), which request [shorter scheduler
//! turns](sluicegate_script::short_turns), so the kernel gives a busy core to the workers first. Between two commands a
//! script thread [yields the core](sluicegate_script::yield_after_turns) after a short turn. While a script only
//! computes and the workers leave room, its slices run on the thread's [`spare`](super::spare) thread, which a worker
//! preempts when it wakes.
//!
//! A script runs for a slice and then queues behind the other scripts; one whose keys are wanted goes first for a few
//! slices. A script thread does not interrupt a long library function, so another thread is started if all existing
//! ones are occupied by such functions.
//!
//! If the [maximum number of threads](THREADS_MAX) is occupied, those that have been for [`KEPT`] step aside: they get
//! a core only when no other thread wants it, are no longer counted, and end with their function. So other scripts run
//! even if patterns take forever, and the patterns take no more time from the workers. Loops of Lua are interrupted and
//! never step aside, however many there are.
//!
//! The queue is bounded by the clients: a client has one script at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sluicegate_script::CpuClock;

use super::run::{Ended, Heir, Job, Runs, Step};
use super::spare::{End, Room, Spare};
use crate::claim::Claim;

/// The maximum number of threads, not counting those that have stepped aside.
const THREADS_MAX: usize = 16;
/// The maximum number of threads that have stepped aside. The kernel gives all of them together less time than one
/// worker.
const ASIDE_MAX: usize = 64;
/// The CPU time of one turn after which a thread counts as occupied by a function that is not interrupted: many slices.
const KEPT: Duration = Duration::from_millis(20);
/// An idle thread ends after this time.
const IDLE: Duration = Duration::from_secs(10);
/// The nice value of these threads: on a core that workers keep busy a script gets a quarter of it.
const NICE: libc::c_int = 5;
/// The nice value of a thread that has stepped aside: the maximum. It keeps this value until it ends.
const NICE_ASIDE: libc::c_int = 19;
/// The time that a script waits for a thread before another one is started.
const PATIENCE: Duration = Duration::from_millis(20);
/// The maximum number of consecutive slices of a script whose keys others wait for.
const FAVOURS: u8 = 4;

/// The threads of a store.
#[derive(Default)]
pub(crate) struct Threads(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    ready: VecDeque<(Arc<Task>, Instant)>,
    /// The number of threads, without those that have stepped aside.
    threads: usize,
    idle: usize,
    /// The number of threads that have stepped aside.
    aside: usize,
    /// The records of all running threads.
    posts: Vec<Post>,
}

impl State {
    /// Lets one occupied thread step aside, if there is one and the limit allows it.
    fn let_one_step_aside(&mut self) {
        // Every thread is examined, so that its CPU time is known from now on.
        let mut kept: Vec<&mut Post> =
            self.posts.iter_mut().filter_map(|post| post.is_kept().then_some(post)).collect();
        if self.aside < ASIDE_MAX
            && let Some(post) = kept.first_mut()
        {
            post.step_aside();
            self.aside += 1;
            self.threads -= 1;
        }
    }

    fn post(&mut self, thread: libc::pid_t) -> Option<&mut Post> {
        self.posts.iter_mut().find(|post| post.thread == thread)
    }
}

/// The record of a thread, visible to others.
struct Post {
    thread: libc::pid_t,
    clock: CpuClock,
    /// Its spare thread: number and clock.
    spare: Option<(libc::pid_t, CpuClock)>,
    /// The number of turns that it has run.
    turns: u64,
    /// The turn in which it was examined last, and its CPU time when it was first examined in that turn.
    seen: (u64, Duration),
    /// Whether it has stepped aside.
    is_aside: bool,
}

impl Post {
    /// Returns the record of the calling thread.
    fn new() -> Post {
        // SAFETY: a thread may always ask for its number.
        let thread = unsafe { libc::gettid() };
        let clock = CpuClock::of_this_thread();
        Post { thread, clock, spare: None, turns: 0, seen: (0, Duration::ZERO), is_aside: false }
    }

    /// Returns whether the thread counts as occupied and has not stepped aside: it has used [`KEPT`] of CPU time since
    /// it was first examined in this turn.
    fn is_kept(&mut self) -> bool {
        let ran = self.clock.ran() + self.spare.map_or(Duration::ZERO, |(_, clock)| clock.ran());
        if self.seen.0 != self.turns {
            self.seen = (self.turns, ran);
        }
        !self.is_aside && ran.saturating_sub(self.seen.1) >= KEPT
    }

    fn step_aside(&mut self) {
        self.is_aside = true;
        // The threads are alive, as the record is removed before they end.
        for thread in std::iter::once(self.thread).chain(self.spare.map(|(thread, _)| thread)) {
            sluicegate_script::set_nice(thread, NICE_ASIDE);
        }
    }
}

/// A script on a script thread.
struct Task {
    shared: Arc<Shared>,
    /// Taken by the thread that runs the script; empty after its end.
    job: Mutex<Option<Box<Job>>>,
    /// Used by the same thread.
    room: Mutex<Room>,
    /// Whether it is in the queue, or has to be queued when its slice is over.
    is_ready: AtomicBool,
    done: Mutex<Option<Done>>,
    /// The duration of its turns so far, in microseconds.
    worked_us: AtomicU64,
}

/// The channel through which the caller of a script learns of its end, and its run time on script threads.
pub(crate) type Told = Arc<Claim<(Ended, Duration)>>;

/// The receiver of a script's end.
pub(crate) enum Done {
    /// No receiver: its caller has gone.
    Nobody,
    /// Its caller.
    Caller(Told),
    /// The continuation of its section.
    Then(Heir),
}

impl Done {
    fn hear(self, ended: Ended, worked: Duration) {
        match self {
            Done::Nobody => drop(ended.finish()),
            Done::Caller(claim) => claim.answer((ended, worked)),
            Done::Then(then) => then(ended),
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.is_ready.swap(true, Ordering::SeqCst) {
            let shared = self.shared.clone();
            shared.add(self, false);
        }
    }
}

impl Threads {
    /// Queues a script; `done` receives its end. The caller has no stripe locked.
    pub(crate) fn add(&self, job: Box<Job>, done: Done) {
        crate::thread::assert_none_locked();
        let job = Mutex::new(Some(job));
        let task = Arc::new(Task {
            shared: self.0.clone(),
            job,
            room: Mutex::default(),
            is_ready: AtomicBool::new(true),
            done: Mutex::new(Some(done)),
            worked_us: AtomicU64::new(0),
        });
        self.0.add(task, false);
    }

    /// Starts a thread if a script has waited for one for too long.
    pub(crate) fn tick(&self) {
        let mut state = self.0.state.lock();
        let is_late = state.ready.front().is_some_and(|(_, since)| since.elapsed() > PATIENCE);
        if !is_late || state.idle > 0 {
            return;
        }
        if state.threads == THREADS_MAX {
            state.let_one_step_aside();
        }
        if state.threads < THREADS_MAX {
            self.0.spawn(&mut state);
        }
    }
}

impl Shared {
    fn add(self: &Arc<Self>, task: Arc<Task>, first: bool) {
        let mut state = self.state.lock();
        match first {
            true => state.ready.push_front((task, Instant::now())),
            false => state.ready.push_back((task, Instant::now())),
        }
        if state.idle >= state.ready.len() {
            self.more.notify_one();
        } else if state.threads < cores() {
            self.spawn(&mut state);
        }
    }

    fn spawn(self: &Arc<Self>, state: &mut State) {
        let shared = self.clone();
        let started = std::thread::Builder::new().name("store-script".into()).spawn(move || shared.work());
        // If no thread can be created, the existing ones do the work; if there is none, the next tick tries again.
        state.threads += usize::from(started.is_ok());
    }

    fn work(self: &Arc<Self>) {
        sluicegate_script::set_nice(0, NICE);
        sluicegate_script::yield_after_turns();
        sluicegate_script::patient(true);
        let mut state = self.state.lock();
        let post = Post::new();
        let thread = post.thread;
        let mut worker = Worker::new(&post);
        state.posts.push(post);
        loop {
            if let Some((task, _)) = state.ready.pop_front() {
                if let Some(post) = state.post(thread) {
                    post.turns += 1;
                }
                drop(state);
                self.turn(task, &mut worker);
                state = self.state.lock();
                if state.post(thread).is_some_and(|post| post.is_aside) {
                    state.aside -= 1;
                    break;
                }
                continue;
            }
            state.idle += 1;
            let timed_out = self.more.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.ready.is_empty() {
                state.threads -= 1;
                break;
            }
        }
        state.posts.retain(|post| post.thread != thread);
        // The script just requeued may be the only work.
        if !state.ready.is_empty() && state.idle == 0 && state.threads < cores() {
            self.spawn(&mut state);
        }
    }

    /// Runs a slice of a script, and queues it again if it continues.
    fn turn(self: &Arc<Self>, task: Arc<Task>, worker: &mut Worker) {
        let is_first = self.run(&task, worker);
        if let Some(first) = is_first {
            self.add(task, first);
        }
    }

    /// Runs a slice of a script. Returns whether it continues, and if so whether before the others.
    fn run(&self, task: &Arc<Task>, worker: &mut Worker) -> Option<bool> {
        let waker = Waker::from(task.clone());
        let mut place = task.job.lock();
        let job = place.as_mut()?;
        // From here on, a wake-up queues it again.
        task.is_ready.store(false, Ordering::SeqCst);
        let start = Instant::now();
        let mut room = task.room.lock();
        if room.may_be_spare() && worker.spare.is_none() {
            let spare = Spare::start(NICE);
            if let Some(post) = self.state.lock().post(worker.thread) {
                post.spare = spare.as_ref().map(Spare::thread);
            }
            worker.spare = Some(spare);
        }
        let step = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            worker.step(job, &mut room, &mut Context::from_waker(&waker))
        }));
        drop(room);
        let turn_us = start.elapsed().as_micros() as u64;
        let worked = Duration::from_micros(turn_us + task.worked_us.fetch_add(turn_us, Ordering::Relaxed));
        match step {
            Ok(Step::Waits) => None,
            Ok(Step::Forced) => {
                let is_wanted = job.is_wanted();
                drop(place);
                if task.is_ready.swap(true, Ordering::SeqCst) {
                    // It was woken meanwhile, and so it is in the queue.
                    return None;
                }
                let favours = &mut worker.favours;
                *favours = if is_wanted && *favours < FAVOURS { *favours + 1 } else { 0 };
                Some(*favours > 0)
            }
            Ok(Step::Done(ended)) => {
                *place = None;
                drop(place);
                let done = task.done.lock().take();
                done.unwrap_or(Done::Nobody).hear(ended, worked);
                None
            }
            Err(_) => {
                // A panic ends the script, whose caller gets an error.
                let ended = place.take().map(|job| job.fail());
                drop(place);
                if let (Some(done), Some(ended)) = (task.done.lock().take(), ended) {
                    done.hear(ended, worked);
                }
                None
            }
        }
    }
}

/// What belongs to one script thread.
struct Worker {
    thread: libc::pid_t,
    clock: CpuClock,
    /// Its spare thread, from the first attempt to start one.
    spare: Option<Option<Spare<Runs>>>,
    /// The number of consecutive slices of a script whose keys others wait for.
    favours: u8,
}

impl Worker {
    fn new(post: &Post) -> Worker {
        Worker { thread: post.thread, clock: post.clock, spare: None, favours: 0 }
    }

    /// Runs a slice of a script, on the spare thread if there is room.
    fn step(&mut self, job: &mut Job, room: &mut Room, context: &mut Context<'_>) -> Step {
        if room.may_be_spare()
            && let Some(Some(spare)) = &self.spare
        {
            let (step, end) = job.step_on(spare, context);
            match end {
                // It called a command where it could not leave.
                Some(End::Slice) if job.has_called() => room.was_spare(End::Left),
                Some(end) => room.was_spare(end),
                None => room.forget(),
            }
            return step;
        }
        let (ran, start) = (self.clock.ran(), Instant::now());
        let step = job.step(context, true);
        if let Step::Forced = step {
            room.took_turn(self.clock.ran().saturating_sub(ran), start.elapsed(), job.has_called());
        }
        step
    }
}

/// Returns the number of threads that scripts get before one of these is occupied for long.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(THREADS_MAX)
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::Poll;

    use sluicegate_testkit::wait_for;

    use super::*;
    use crate::command::asked::ask;
    use crate::script::trial::{job_of, store};

    /// Returns the order in which three scripts get turns on one thread, by their indices; commands wait for the keys
    /// of those in `wanted`.
    fn turns(wanted: &[usize], count: usize) -> Vec<usize> {
        let store = store();
        // The count pretends that there are enough threads, so that none is started.
        let shared = Arc::new(Shared {
            state: Mutex::new(State { threads: usize::MAX, ..State::default() }),
            ..Shared::default()
        });
        let names = ["a", "b", "c"];
        let tasks = names.map(|key| {
            let job = job_of(&store, &["EVAL", "while true do end", "1", key]);
            let (job, done) = (Mutex::new(Some(job)), Mutex::new(Some(Done::Nobody)));
            let (is_ready, worked_us) = (AtomicBool::new(true), AtomicU64::new(0));
            Arc::new(Task { shared: shared.clone(), job, room: Mutex::default(), is_ready, done, worked_us })
        });
        tasks.iter().for_each(|task| shared.add(task.clone(), false));
        let waiting: Vec<_> =
            wanted.iter().map(|&place| ask(&store, &["GET", names[place]]).expect_err("held")).collect();
        let mut worker = Worker::new(&Post::new());
        let turn = |_| {
            let (task, _) = shared.state.lock().ready.pop_front().expect("none ends");
            let place = tasks.iter().position(|known| Arc::ptr_eq(known, &task)).expect("one of them");
            shared.turn(task, &mut worker);
            place
        };
        let trace = (0..count).map(turn).collect();
        drop(waiting);
        // The queue and the scripts refer to each other; without this they would never be freed.
        shared.state.lock().ready.clear();
        trace
    }

    /// Queues `count` scripts, each with a key of its own; nobody waits for their end.
    fn add(store: &crate::Store, script: &str, count: usize) {
        for number in 0..count {
            let job = job_of(store, &["EVAL", script, "1", &format!("own{number}")]);
            store.0.scripts.threads.add(job, Done::Nobody);
        }
    }

    /// Ends all scripts, and waits for their end.
    fn kill_all(store: &crate::Store) {
        wait_for("all to end", || {
            for control in store.0.scripts.running.all() {
                control.kill(true);
            }
            (store.stats().tickets == 0).then_some(())
        });
    }

    #[test]
    fn patterns_that_take_forever_step_aside_for_other_scripts() {
        // All but one of the counted threads may still run patterns when the other script ends.
        check_aside("return ('a'):rep(40):find(('a*'):rep(40) .. 'b')", 20 - (THREADS_MAX - 1));
        // Some of these begin their patterns on spare threads.
        check_aside("for i = 1, 3000000 do end return ('a'):rep(40):find(('a*'):rep(40) .. 'b')", 0);
    }

    /// Checks that another script runs beside many of these, of which at least `least` have stepped aside by then.
    fn check_aside(script: &str, least: usize) {
        let store = store();
        let threads = &store.0.scripts.threads;
        add(&store, script, 20);
        let claim = Arc::new(Claim::new());
        // No worker begins a script with arguments this large, however short it is.
        let large = "x".repeat(2 << 20);
        let long = job_of(&store, &["EVAL", "for i = 1, 1000000 do end return 'ended'", "1", "long", &large]);
        threads.add(long, Done::Caller(claim.clone()));
        wait_for("a script that ends", || {
            threads.tick();
            claim.poll(Waker::noop()).is_ready().then_some(())
        });
        {
            let state = threads.0.state.lock();
            assert!((least..=20).contains(&state.aside) && state.threads <= THREADS_MAX);
        }
        kill_all(&store);
        wait_for("those that stepped aside to end", || (threads.0.state.lock().aside == 0).then_some(()));
        assert!(threads.0.state.lock().posts.len() <= THREADS_MAX);
    }

    #[test]
    fn endless_loops_make_no_more_threads() {
        let store = store();
        let threads = &store.0.scripts.threads;
        add(&store, "while true do pcall(function() while true do end end) end", THREADS_MAX + 8);
        wait_for("many turns", || {
            threads.tick();
            let state = threads.0.state.lock();
            // A pause of the whole machine counts as CPU time of the threads that run, one per core at most.
            assert!(state.aside <= cores() && state.threads <= THREADS_MAX);
            let turns: u64 = state.posts.iter().map(|post| post.turns).sum();
            (turns > 20 * THREADS_MAX as u64).then_some(())
        });
        kill_all(&store);
    }

    #[test]
    fn a_script_computes_on_a_spare_thread_and_does_the_rest_on_its_own() {
        let store = store();
        let threads = &store.0.scripts.threads;
        let names: Arc<Mutex<Vec<String>>> = Arc::default();
        let logged = names.clone();
        store.0.scripts.set_log(move |_, _| {
            logged.lock().push(std::thread::current().name().unwrap_or_default().to_owned());
        });
        // The comparison function cannot be suspended, and so calls its command wherever it is.
        let script = "local sum = 0 for turn = 1, 20 do for i = 1, 400000 do sum = sum + i % 3 end \
                      redis.call('INCR', KEYS[1]) redis.log(redis.LOG_WARNING, 'a turn') \
                      table.sort({3, 1, 2}, function(a, b) redis.call('INCR', KEYS[2]) return a < b end) end \
                      return {sum, redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])}";
        let mut was_spare = false;
        // Other tests may leave no room for a while.
        wait_for("a spare thread", || {
            assert!(ask(&store, &["DEL", "turns", "compared"]).is_ok());
            names.lock().clear();
            // The script may end in its first slice.
            let mut parked = ask(&store, &["EVAL", script, "2", "turns", "compared"]).err()?;
            let reply = wait_for("its end", || {
                was_spare |= threads.0.state.lock().posts.iter().any(|post| post.spare.is_some());
                match Pin::new(&mut parked).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(reply) => Some(String::from_utf8_lossy(&reply).into_owned()),
                    Poll::Pending => None,
                }
            });
            let compared = reply.strip_prefix("*3\r\n:8000000\r\n$2\r\n20\r\n$2\r\n").expect("the numbers");
            assert!(compared.trim().parse::<u32>().is_ok_and(|compared| compared >= 40 && compared % 20 == 0));
            was_spare.then_some(())
        });
        let names = names.lock();
        assert_eq!(names.len(), 20);
        assert!(names.iter().all(|name| name != "store-spare"), "{names:?}");
    }

    #[test]
    fn a_script_that_computes_is_ended_on_its_spare_thread() {
        let store = store();
        let threads = &store.0.scripts.threads;
        add(&store, "while true do end", 1);
        let has_spare = || threads.0.state.lock().posts.iter().any(|post| post.spare.is_some());
        wait_for("a spare thread", || has_spare().then_some(()));
        kill_all(&store);
    }

    #[test]
    fn scripts_take_turns() {
        assert_eq!(turns(&[], 9), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn one_that_others_wait_for_has_more_turns_in_a_row() {
        assert_eq!(turns(&[1], 14), [0, 1, 1, 1, 1, 1, 2, 0, 1, 1, 1, 1, 1, 2]);
        assert_eq!(turns(&[0, 2], 11), [0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2]);
    }
}
