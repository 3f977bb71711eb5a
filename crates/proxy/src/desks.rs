//! Mailboxes of workers: jobs from other threads, and new configurations.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::process::Process;
use crate::running::Running;
use crate::worker::Worker;

/// A closure from another thread that a worker runs between two events. It must be short.
pub type Job = Box<dyn FnOnce(&Rc<Worker>) + Send>;

/// Another configuration for a worker.
pub(crate) struct Adoption {
    pub(crate) running: Arc<Running>,
    /// Dropped once the worker serves it.
    pub(crate) _done: oneshot::Sender<()>,
}

/// The mailboxes of a process's workers, by worker.
struct Desks {
    jobs: Box<[mpsc::Sender<Job>]>,
    adopters: Box<[mpsc::Sender<Adoption>]>,
}

impl Desks {
    fn of(process: &Process) -> Option<&Desks> {
        process.desks.get()?.downcast_ref()
    }
}

/// Sets the mailboxes of a process's workers, once.
pub(crate) fn open(process: &Process, jobs: Vec<mpsc::Sender<Job>>, adopters: Vec<mpsc::Sender<Adoption>>) {
    // Workers start once per process, so the mailboxes are never set again.
    let _ = process.desks.set(Box::new(Desks { jobs: jobs.into(), adopters: adopters.into() }));
}

impl Process {
    /// Sends every worker another configuration and waits until all of them serve it.
    pub async fn adopt(&self, running: &Arc<Running>) {
        let mut adopted = Vec::new();
        for adopter in Desks::of(self).into_iter().flat_map(|desks| &desks.adopters) {
            let (done, answer) = oneshot::channel();
            if adopter.send(Adoption { running: running.clone(), _done: done }).await.is_ok() {
                adopted.push(answer);
            }
        }
        for answer in adopted {
            // No value is ever sent; the channel closes.
            let _ = answer.await;
        }
    }

    /// Runs a job on a worker and returns its result; `None` if the worker does not run, or is stuck (then it may run
    /// the job later).
    pub async fn on_worker<T: Send + 'static>(
        &self,
        worker: usize,
        job: impl FnOnce(&Rc<Worker>) -> T + Send + 'static,
    ) -> Option<T> {
        /// The interval at which the worker is checked for being stuck.
        const LOOK: Duration = Duration::from_millis(250);
        let desk = Desks::of(self)?.jobs.get(worker)?;
        let is_stuck = || self.workers[worker].stuck.load(Ordering::Relaxed);
        if is_stuck() {
            return None;
        }
        let (answer, mut answered) = oneshot::channel();
        let job: Job = Box::new(move |worker| {
            // The requester may have disconnected.
            let _ = answer.send(job(worker));
        });
        desk.send(job).await.ok()?;
        loop {
            tokio::select! {
                answer = &mut answered => return answer.ok(),
                () = tokio::time::sleep(LOOK) => if is_stuck() { return None },
            }
        }
    }
}
