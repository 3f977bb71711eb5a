//! The thread pool for long computations.
//!
//! A command over millions of elements, or freeing such a value, takes about a second in any case. On a worker it would
//! delay the worker's other clients, even in slices; so it runs on separate threads, which the kernel schedules behind
//! the workers (`nice` 10). They are few, created on demand, and exit after an idle period. The queue is bounded by its
//! sources: commands by the number of tickets, values by the content of the store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The maximum number of threads.
const THREADS_MAX: usize = 4;
/// An idle thread ends after this time.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// The threads of a store.
#[derive(Default)]
pub(crate) struct Aside(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl Aside {
    /// Returns whether all queued work is done.
    #[cfg(test)]
    pub(crate) fn is_at_rest(&self) -> bool {
        let state = self.0.state.lock();
        state.jobs.is_empty() && state.idle == state.threads
    }

    /// Returns the number of threads.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        self.0.state.lock().threads
    }

    /// Runs a job on another thread, soon. The caller has no stripe locked.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        crate::thread::assert_none_locked();
        let mut state = self.0.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() {
            self.0.more.notify_one();
        } else if state.threads < THREADS_MAX {
            state.threads += 1;
            let shared = self.0.clone();
            let started = std::thread::Builder::new().name("store-aside".into()).spawn(move || shared.work());
            if started.is_err() {
                state.threads -= 1;
                if state.threads == 0 {
                    // No thread could be started: run the job on this one.
                    let job = state.jobs.pop_back();
                    drop(state);
                    if let Some(job) = job {
                        job();
                    }
                }
            }
        }
    }
}

impl Shared {
    fn work(&self) {
        crate::thread::run_behind_others();
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // A panic in a job does not end the jobs behind it.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let timed_out = self.more.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn every_job_is_done_and_a_fault_stops_nobody() {
        let aside = Aside::default();
        let (done, when_done) = channel();
        for n in 0..50 {
            let done = done.clone();
            aside.run(move || {
                assert!(n != 7, "a fault in a job");
                done.send(n).expect("the test waits");
            });
        }
        drop(done);
        let mut all: Vec<i32> = when_done.iter().collect();
        all.sort_unstable();
        assert_eq!(all, (0..50).filter(|n| *n != 7).collect::<Vec<_>>());
        assert!(aside.0.state.lock().threads <= THREADS_MAX);
    }
}
