//! Threads of workers: their start, the loop over successive configurations, and their end.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use sluicegate_script::CpuClock;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;

use super::{Station, Worker};
use crate::desks::{self, Adoption, Job};
use crate::listener::accept::{accept_loop, accept_rest};
use crate::listener::{Accepted, Listener};
use crate::process::Phase;
use crate::running::Running;
use crate::session::run as session;

/// The maximum number of accepted connections that wait for another worker.
pub const INBOX: usize = 256;

/// The maximum number of jobs of the control thread that wait for a worker.
const JOBS: usize = 16;

/// A future that a worker runs from its start to its end, made on the worker's thread.
pub type WorkerTask = Box<dyn FnOnce(&Rc<Worker>) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// Running worker threads.
pub struct Workers {
    threads: Vec<std::thread::JoinHandle<io::Result<()>>>,
}

impl Workers {
    /// Waits until all workers have ended, for `limit` at most. Returns the first error, if any worker could not run,
    /// and the number of workers that are still running. Those are left behind, because nothing can end a thread that
    /// is executing a C function.
    pub async fn join_within(self, limit: Duration) -> (io::Result<()>, usize) {
        /// The interval between two checks.
        const LOOK: Duration = Duration::from_millis(1);
        let begun = Instant::now();
        let runs =
            |threads: &[std::thread::JoinHandle<_>]| threads.iter().filter(|thread| !thread.is_finished()).count();
        while runs(&self.threads) > 0 && begun.elapsed() < limit {
            tokio::time::sleep(LOOK).await;
        }
        let (ended, left): (Vec<_>, Vec<_>) = self.threads.into_iter().partition(|thread| thread.is_finished());
        (Workers { threads: ended }.join(), left.len())
    }

    /// Waits for all workers. Returns the first error, if any worker could not run.
    pub fn join(self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads {
            let one = thread.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
            result = result.and(one);
        }
        result
    }
}

/// The inputs of one worker thread in addition to the snapshot.
struct Setup {
    tasks: Vec<WorkerTask>,
    inbox: mpsc::Receiver<Accepted>,
    jobs: mpsc::Receiver<Job>,
    adoptions: mpsc::Receiver<Adoption>,
    peers: Arc<[mpsc::Sender<Accepted>]>,
}

/// Starts a thread per worker of `running`, and returns once each has its runtime: from then on none needs another
/// descriptor to exist. `tasks` has each worker's own tasks, by index; missing ones mean none.
///
/// # Errors
/// If a thread or its runtime cannot be created; those already created have ended then.
pub fn start(running: &Arc<Running>, bound: Vec<Arc<Listener>>, tasks: Vec<Vec<WorkerTask>>) -> io::Result<Workers> {
    let count = running.process.workers.len();
    running.set_listeners(bound);
    let (peers, inboxes): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(INBOX)).unzip();
    let peers: Arc<[_]> = peers.into();
    let (desks, jobs): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(JOBS)).unzip();
    let (adopters, adoptions): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(1)).unzip();
    desks::open(&running.process, desks, adopters);
    let mut tasks = tasks.into_iter();
    let mut threads = Vec::with_capacity(count);
    let (made, runtimes) = std::sync::mpsc::channel();
    for (index, ((inbox, jobs), adoptions)) in inboxes.into_iter().zip(jobs).zip(adoptions).enumerate() {
        let setup = Setup { tasks: tasks.next().unwrap_or_default(), inbox, jobs, adoptions, peers: peers.clone() };
        let (shared, made) = (running.clone(), made.clone());
        let thread = std::thread::Builder::new().name(format!("worker-{index}"));
        match thread.spawn(move || run(index, shared, setup, made)) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                running.process.stop_now();
                let _ = Workers { threads }.join();
                return Err(error);
            }
        }
    }
    drop(made);
    let workers = Workers { threads };
    // A worker that fails drops its sender, so fewer answers than workers come.
    if runtimes.iter().count() < count {
        running.process.stop_now();
        return Err(workers.join().err().unwrap_or_else(|| io::Error::other("a worker ended at once")));
    }
    Ok(workers)
}

/// The body of a worker thread.
fn run(index: usize, running: Arc<Running>, setup: Setup, made: std::sync::mpsc::Sender<()>) -> io::Result<()> {
    sluicegate_script::short_turns();
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    let _ = made.send(());
    drop(made);
    if running.config.uses_tls() {
        sluicegate_tls::library::seed();
    }
    let process = running.process.clone();
    let _ = process.workers[index].runtime.set(runtime.metrics());
    // SAFETY: takes nothing and can't fail.
    let number = unsafe { libc::gettid() };
    let _ = process.workers[index].thread.set((CpuClock::of_this_thread(), number));
    let station = Rc::new(Station {
        peers: setup.peers.clone(),
        phase: Cell::new(process.phase()),
        sessions: RefCell::default(),
        // Scripts without a stream have 0.
        next_stream: Cell::new(1),
        clocks: Cell::new((Instant::now(), SystemTime::now())),
        current: RefCell::new(None),
        elders: RefCell::default(),
    });
    let worker = Worker::new(index, running, station.clone(), None);
    let result = runtime.block_on(serve(worker, setup));
    if result.is_err() {
        // The others can't carry on as if nothing had happened: a listener would silently have lost a worker.
        process.stop_now();
    }
    let last = station.current.borrow().clone();
    last.iter().for_each(|worker| worker.end_with_process());
    drop(last);
    // Tasks are dropped here, before the worker they belong to.
    drop(runtime);
    let worker = station.current.take();
    // The files of unix sockets are looked at once all sockets are closed.
    worker.iter().flat_map(|worker| worker.running.listeners()).for_each(|listener| listener.close());
    result
}

/// The loops that accept for a worker.
type Accepting = tokio::task::JoinSet<io::Result<()>>;

impl Station {
    /// Starts to serve a configuration, as the only one; starts its scripts, unless they are running already.
    fn enter(&self, worker: &Rc<Worker>, accepting: &mut Accepting, begins: bool) {
        *self.current.borrow_mut() = Some(worker.clone());
        if let Some(scripts) = worker.scripts.as_ref().filter(|_| begins) {
            scripts.start();
        }
        for listener in worker.running.listeners() {
            accepting.spawn_local(accept_loop(worker.clone(), listener.clone()));
        }
    }

    /// Switches to another configuration: sockets of both are kept, sessions follow when they have no request, and
    /// requests in progress finish under the old one.
    async fn adopt(self: &Rc<Self>, old: Rc<Worker>, running: Arc<Running>, accepting: &mut Accepting) -> Rc<Worker> {
        accepting.shutdown().await;
        for listener in
            old.running.listeners().iter().filter(|listener| listener.successor(running.listeners()).is_none())
        {
            if let Some(socket) = listener.socket(old.index) {
                accept_rest(&old, listener, &socket);
            }
        }
        // Scripts that both have go on, and so do their tasks.
        let goes_on = running.has_scripts_of(&old.running);
        if let Some(scripts) = old.scripts.as_ref().filter(|_| !goes_on) {
            scripts.stop();
        }
        old.http2.retire_attached();
        let worker = Worker::new(old.index, running, self.clone(), Some(&old));
        {
            let mut elders = self.elders.borrow_mut();
            elders.retain(|elder| elder.strong_count() > 0);
            elders.push(Rc::downgrade(&old));
        }
        self.enter(&worker, accepting, !goes_on);
        worker.wake_idle_sessions();
        worker
    }
}

async fn serve(worker: Rc<Worker>, setup: Setup) -> io::Result<()> {
    let Setup { tasks, mut inbox, mut jobs, mut adoptions, .. } = setup;
    let station = worker.station.clone();
    let mut accepting = Accepting::new();
    station.enter(&worker, &mut accepting, true);
    for task in tasks {
        tokio::task::spawn_local(task(&worker));
    }
    let mut phase = worker.running.process.watch();
    let mut worker = worker;
    // Accepted by a worker that was faster to serve another configuration.
    let mut early: Vec<Accepted> = Vec::new();
    loop {
        let now = *phase.borrow_and_update();
        station.phase.set(now);
        match now {
            Phase::Serving => {}
            Phase::Stopping => {
                accepting.shutdown().await;
                worker.running.listeners().iter().for_each(|listener| listener.close());
                worker.all().iter().for_each(|worker| worker.http2.retire_attached());
                worker.wake_idle_sessions();
            }
            Phase::Ended => return Ok(()),
        }
        tokio::select! {
            Some(accepted) = inbox.recv() => {
                if accepted.slots.listener().generation > worker.running.generation {
                    early.push(accepted);
                } else {
                    session::start(&worker, accepted, worker.index);
                }
            }
            Some(job) = jobs.recv() => job(&worker),
            Some(Adoption { running, _done }) = adoptions.recv() => {
                worker = station.adopt(worker, running, &mut accepting).await;
                early.drain(..).for_each(|accepted| session::start(&worker, accepted, worker.index));
            }
            Some(ended) = accepting.join_next() => ended.unwrap_or_else(|error| Err(error.into()))?,
            changed = phase.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
            }
        }
    }
}
