//! A worker: one thread, one runtime, and what belongs to it alone.
//!
//! A worker accepts, serves the sessions it accepted or was handed, and runs what the binary gave it besides (the
//! store's listener, demo servers). Nothing of it is shared with another thread except an inbox of accepted
//! descriptors and the figures in [`Process`](crate::process::Process).
//!
//! A configuration that replaces another one gets a [`Worker`] of its own on the same thread: sessions change from the
//! old to the new between two requests, and the old one goes with the last stream that began under it.
//!
//! It leaves when the phase becomes [`Phase::Ended`]; its runtime then drops whatever still runs, and a stream that is
//! dropped writes its log line as it goes.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use sluicegate_script::CpuClock;
use sluicegate_transport::BufferPool;
use sluicegate_wire::http::Limits;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot};

use crate::listener::{self, Accepted, Listener};
use crate::lua::{self, WorkerLua};
use crate::process::{self, Phase, WorkerFigures};
use crate::running::Running;
use crate::server::IdleConnections;
use crate::session::{self, Session};
use crate::stream::{Cards, FreeList, Job};

/// Accepted connections on their way to another worker.
pub const INBOX: usize = 256;

/// Jobs of the control thread that wait for a worker.
const JOBS: usize = 16;

/// How long the wall clock is told from the monotonic one before it is read again.
const WALL_CLOCK_KEPT: Duration = Duration::from_secs(1);

/// A future that a worker runs from its start to its end, made on the worker's thread.
pub type WorkerTask = Box<dyn FnOnce(&Rc<Worker>) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// What one worker's tasks share, behind an `Rc` that never leaves its thread.
pub struct Worker {
    /// From 0.
    pub index: usize,
    /// The configuration it serves.
    pub running: Arc<Running>,
    /// Server connections that wait for a request; another worker may take from them.
    pub idle: Arc<IdleConnections>,
    /// The worker's Lua state (`lua-load-per-thread`) and its way to the shared one.
    pub lua: WorkerLua,
    /// Buffers of `tune.bufsize`.
    pub buffers: BufferPool,
    /// What a head may take (`tune.bufsize`, `tune.maxrewrite`, `tune.http.maxhdr`).
    pub limits: Limits,
    pub(crate) streams: FreeList,
    pub(crate) cards: Cards,
    station: Rc<Station>,
}

/// What stays of a worker from one configuration to the next.
struct Station {
    peers: Arc<[mpsc::Sender<Accepted>]>,
    phase: Cell<Phase>,
    sessions: RefCell<Sessions>,
    next_stream: Cell<u64>,
    /// Both clocks at the same moment.
    clocks: Cell<(Instant, SystemTime)>,
    /// The worker of the configuration that is served now; `None` before the start and after the end.
    current: RefCell<Option<Rc<Worker>>>,
    /// Those of configurations before, for as long as a stream goes on under them.
    elders: RefCell<Vec<Weak<Worker>>>,
}

/// Another configuration for a worker.
pub(crate) struct Adoption {
    pub(crate) running: Arc<Running>,
    /// Dropped once the worker serves it.
    pub(crate) _done: oneshot::Sender<()>,
}

impl Worker {
    /// `before` is the same worker under the snapshot before.
    fn new(index: usize, running: Arc<Running>, station: Rc<Station>, before: Option<&Worker>) -> Rc<Worker> {
        if !running.config.global.insecure_setuid {
            refuse_privileges();
        }
        let lua = match before.filter(|before| running.has_scripts_of(&before.running)) {
            Some(before) => before.lua.share(),
            None => running.lua.as_ref().map(|states| states.worker(index)).unwrap_or_default(),
        };
        let tune = &running.config.global.tune;
        Rc::new(Worker {
            index,
            limits: Limits {
                max_head: tune.bufsize.saturating_sub(tune.maxrewrite),
                max_fields: tune.http_maxhdr,
                lenient: false,
            },
            streams: FreeList::default(),
            cards: Cards::default(),
            idle: running.idle[index].clone(),
            lua,
            buffers: process::buffers(tune, running.process.clone(), index),
            running,
            station,
        })
    }

    /// The phase as this worker has heard of it.
    pub fn phase(&self) -> Phase {
        self.station.phase.get()
    }

    /// The same worker under the newest configuration, if this one is not it.
    pub(crate) fn newer(&self) -> Option<Rc<Worker>> {
        let current = self.station.current.borrow();
        current.as_ref().filter(|current| current.running.generation > self.running.generation).cloned()
    }

    /// This worker under every configuration that has streams, the newest first.
    pub(crate) fn all(self: &Rc<Self>) -> Vec<Rc<Worker>> {
        let mut all: Vec<Rc<Worker>> = self.station.current.borrow().iter().cloned().collect();
        all.extend(self.station.elders.borrow().iter().filter_map(Weak::upgrade));
        all
    }

    /// What this worker tells the others.
    pub fn figures(&self) -> &WorkerFigures {
        &self.running.process.workers[self.index]
    }

    /// The wall clock at `instant`, which is now or was a while ago. It is read itself once a second and otherwise told
    /// from the monotonic clock, which every request reads anyway.
    pub fn wall_clock(&self, instant: Instant) -> SystemTime {
        let (known, wall) = self.station.clocks.get();
        match instant.checked_duration_since(known) {
            None => wall - known.duration_since(instant),
            Some(passed) if passed < WALL_CLOCK_KEPT => wall + passed,
            Some(_) => {
                let now = (Instant::now(), SystemTime::now());
                self.station.clocks.set(now);
                now.1 - now.0.duration_since(instant)
            }
        }
    }

    /// A number for a new stream, unique in the process: the worker in the upper 16 bits, a count below.
    pub fn next_stream_id(&self) -> u64 {
        let count = self.station.next_stream.get();
        self.station.next_stream.set(count + 1);
        (self.index as u64) << 48 | count
    }

    /// Serves a connection, here or, if `to` is another worker with room in its inbox, there.
    pub(crate) fn start_session(self: &Rc<Self>, mut accepted: Accepted, to: usize) {
        if to != self.index {
            accepted.slots.move_to(to);
            match self.station.peers[to].try_send(accepted) {
                Ok(()) => return,
                Err(error) => accepted = error.into_inner(),
            }
            accepted.slots.move_to(self.index);
        }
        let Some(worker) = self.for_listener(&mut accepted) else { return };
        // A socket that can't be registered can't be served; there is nobody to tell but the client, who sees it closed.
        if let Ok(session) = Session::new(&worker, accepted) {
            tokio::task::spawn_local(session::run(session));
        }
    }

    /// The worker under the configuration that a connection was accepted by; where that has gone meanwhile, the
    /// connection changes to this one. `None` where nothing listens to its address any more.
    fn for_listener(self: &Rc<Self>, accepted: &mut Accepted) -> Option<Rc<Worker>> {
        let generation = accepted.slots.listener().generation;
        if generation == self.running.generation {
            return Some(self.clone());
        }
        if let Some(worker) = self.all().into_iter().find(|worker| worker.running.generation == generation) {
            return Some(worker);
        }
        let successor = accepted.slots.listener().successor(&self.running)?;
        accepted.slots.follow(successor);
        Some(self.clone())
    }

    /// Wakes every session that waits for a request, to look at the phase.
    fn wake_idle_sessions(&self) {
        // Collected first: a waker may run anything, so the list is not borrowed while they are called.
        let wakers: Vec<Waker> =
            self.station.sessions.borrow().entries.iter().filter_map(|entry| entry.waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Says who is to be woken for a session; tells whether it was ended.
    fn session_waits(&self, place: u32, waker: &Waker) -> bool {
        let entry = &mut self.station.sessions.borrow_mut().entries[place as usize];
        if !entry.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            entry.waker = Some(waker.clone());
        }
        entry.killed
    }

    fn session_goes_on(&self, place: u32) {
        self.station.sessions.borrow_mut().entries[place as usize].killed = false;
    }

    /// Ends a session: its task drops what it does as soon as it runs.
    pub(crate) fn kill_session(&self, place: u32) {
        let waker = match self.station.sessions.borrow_mut().entries.get_mut(place as usize) {
            Some(entry) => {
                entry.killed = true;
                entry.waker.clone()
            }
            None => None,
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A place among the sessions that are woken when the process stops.
    pub(crate) fn register_session(self: &Rc<Self>) -> SessionPlace {
        let mut sessions = self.station.sessions.borrow_mut();
        let place = sessions.free.pop().unwrap_or_else(|| {
            sessions.entries.push(SessionEntry::default());
            sessions.entries.len() as u32 - 1
        });
        SessionPlace { worker: self.clone(), place }
    }
}

/// This worker's sessions: who is to be woken, and whether it was ended by an administrator. A place of an ended
/// session is used again.
#[derive(Default)]
struct Sessions {
    entries: Vec<SessionEntry>,
    free: Vec<u32>,
}

#[derive(Default)]
struct SessionEntry {
    waker: Option<Waker>,
    killed: bool,
}

/// A session's place in its worker's list.
pub(crate) struct SessionPlace {
    worker: Rc<Worker>,
    place: u32,
}

impl SessionPlace {
    pub(crate) fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// The session goes on under another configuration.
    pub(crate) fn follow(&mut self, worker: Rc<Worker>) {
        self.worker = worker;
    }

    /// Says who is to be woken. A task's waker doesn't change, so this costs a comparison after the first time.
    pub(crate) fn waits(&self, waker: &Waker) {
        self.worker.session_waits(self.place, waker);
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.place
    }

    /// Who looks whether it was ended.
    pub(crate) fn watch(&self) -> SessionWatch {
        SessionWatch { worker: self.worker.clone(), place: self.place }
    }
}

/// Looks whether a session was ended by an administrator; the session itself is borrowed by its own future meanwhile.
pub(crate) struct SessionWatch {
    worker: Rc<Worker>,
    place: u32,
}

impl SessionWatch {
    /// Drives `future` until it is done. When the session is ended, the future is driven once more, so that it may say so
    /// to its client, and is dropped if that was not enough.
    pub(crate) fn unless_killed<F>(self, mut future: F) -> impl Future<Output = Option<F::Output>>
    where
        F: Future + Unpin,
    {
        poll_fn(move |cx| {
            let killed = self.worker.session_waits(self.place, cx.waker());
            match Pin::new(&mut future).poll(cx) {
                Poll::Pending if killed => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
                Poll::Ready(output) => {
                    if killed {
                        // The stream is over that was meant; the connection may go on.
                        self.worker.session_goes_on(self.place);
                    }
                    Poll::Ready(Some(output))
                }
            }
        })
    }
}

impl Drop for SessionPlace {
    fn drop(&mut self) {
        let mut sessions = self.worker.station.sessions.borrow_mut();
        let SessionEntry { waker, .. } = std::mem::take(&mut sessions.entries[self.place as usize]);
        sessions.free.push(self.place);
        drop(sessions);
        drop(waker);
    }
}

/// Programs that this thread starts gain no privileges (`insecure-setuid-wanted` leaves them that).
fn refuse_privileges() {
    // SAFETY: it takes numbers, and concerns the calling thread and what it starts.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
}

/// Running worker threads.
pub struct Workers {
    threads: Vec<std::thread::JoinHandle<io::Result<()>>>,
}

impl Workers {
    /// Waits until all of them have ended, for `limit` at most; the first error, if any worker could not run, and how many
    /// have not ended. Those are left behind: nothing ends a thread that is in a function of C.
    pub async fn join_within(self, limit: Duration) -> (io::Result<()>, usize) {
        /// Between two looks.
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

    /// Waits for all of them; the first error, if any worker could not run.
    pub fn join(self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads {
            let one = thread.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
            result = result.and(one);
        }
        result
    }
}

/// What one worker thread needs besides the snapshot.
struct Setup {
    tasks: Vec<WorkerTask>,
    inbox: mpsc::Receiver<Accepted>,
    jobs: mpsc::Receiver<Job>,
    adoptions: mpsc::Receiver<Adoption>,
    peers: Arc<[mpsc::Sender<Accepted>]>,
}

/// Starts a thread per worker of `running`, and returns once each of them has its runtime: from there on none takes
/// another descriptor to exist. `tasks` holds each worker's own, by index; missing ones mean none.
///
/// # Errors
/// Where a thread or its runtime can't be made; those that were made have ended then.
pub fn start(running: &Arc<Running>, bound: Vec<Arc<Listener>>, tasks: Vec<Vec<WorkerTask>>) -> io::Result<Workers> {
    let count = running.process.workers.len();
    running.set_listeners(bound);
    let (peers, inboxes): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(INBOX)).unzip();
    let peers: Arc<[_]> = peers.into();
    let (desks, jobs): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(JOBS)).unzip();
    let (adopters, adoptions): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(1)).unzip();
    running.process.set_desks(desks, adopters);
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

/// A worker thread's body.
fn run(index: usize, running: Arc<Running>, setup: Setup, made: std::sync::mpsc::Sender<()>) -> io::Result<()> {
    sluicegate_script::short_turns();
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    let _ = made.send(());
    drop(made);
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
    /// Serves a configuration from here on, alone; its scripts begin, unless they go on.
    fn enter(&self, worker: &Rc<Worker>, accepting: &mut Accepting, begins: bool) {
        *self.current.borrow_mut() = Some(worker.clone());
        if begins {
            lua::start_worker(worker);
        }
        for listener in worker.running.listeners() {
            accepting.spawn_local(listener::accept_loop(worker.clone(), listener.clone()));
        }
    }

    /// Serves another configuration: sockets that both have go over, sessions follow when they have no request, and
    /// what is in the middle of something finishes it under the old one.
    async fn adopt(self: &Rc<Self>, old: Rc<Worker>, running: Arc<Running>, accepting: &mut Accepting) -> Rc<Worker> {
        accepting.shutdown().await;
        for listener in old.running.listeners().iter().filter(|listener| listener.successor(&running).is_none()) {
            if let Some(socket) = listener.socket(old.index) {
                listener::accept_rest(&old, listener, &socket);
            }
        }
        // Scripts that both have go on, and so do their tasks.
        let goes_on = running.has_scripts_of(&old.running);
        if !goes_on {
            old.lua.stop();
        }
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
                worker.wake_idle_sessions();
            }
            Phase::Ended => return Ok(()),
        }
        tokio::select! {
            Some(accepted) = inbox.recv() => {
                if accepted.slots.listener().generation > worker.running.generation {
                    early.push(accepted);
                } else {
                    worker.start_session(accepted, worker.index);
                }
            }
            Some(job) = jobs.recv() => job(&worker),
            Some(Adoption { running, _done }) = adoptions.recv() => {
                worker = station.adopt(worker, running, &mut accepting).await;
                early.drain(..).for_each(|accepted| worker.start_session(accepted, worker.index));
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
