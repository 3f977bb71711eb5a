//! A worker: one thread, one runtime, and what belongs to it alone.
//!
//! A worker accepts, serves the sessions it accepted or was handed, and runs what the binary gave it besides (the
//! store's listener, demo servers). Nothing of it is shared with another thread except an inbox of accepted
//! descriptors and the figures in [`Process`](crate::process::Process).
//!
//! It leaves when the phase becomes [`Phase::Ended`]; its runtime then drops whatever still runs, and a stream that is
//! dropped writes its log line as it goes.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use sluicegate_wire::http::Limits;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;

use crate::listener::{self, Accepted, Bound, Listener};
use crate::lua::{self, WorkerLua};
use crate::process::{Phase, WorkerFigures};
use crate::running::Running;
use crate::server::IdleConnections;
use crate::session::{self, Session};
use crate::stream::{BufferPool, Cards, FreeList, Job};

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
    peers: Arc<[mpsc::Sender<Accepted>]>,
    phase: Cell<Phase>,
    sessions: RefCell<Sessions>,
    next_stream: Cell<u64>,
    /// Both clocks at the same moment.
    clocks: Cell<(Instant, SystemTime)>,
}

impl Worker {
    /// The phase as this worker has heard of it.
    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// What this worker tells the others.
    pub fn figures(&self) -> &WorkerFigures {
        &self.running.process.workers[self.index]
    }

    /// The wall clock at `instant`, which is now or was a while ago. It is read itself once a second and otherwise told
    /// from the monotonic clock, which every request reads anyway.
    pub fn wall_clock(&self, instant: Instant) -> SystemTime {
        let (known, wall) = self.clocks.get();
        match instant.checked_duration_since(known) {
            None => wall - known.duration_since(instant),
            Some(passed) if passed < WALL_CLOCK_KEPT => wall + passed,
            Some(_) => {
                let now = (Instant::now(), SystemTime::now());
                self.clocks.set(now);
                now.1 - now.0.duration_since(instant)
            }
        }
    }

    /// A number for a new stream, unique in the process: the worker in the upper 16 bits, a count below.
    pub fn next_stream_id(&self) -> u64 {
        let count = self.next_stream.get() + 1;
        self.next_stream.set(count);
        (self.index as u64) << 48 | count
    }

    /// Serves a connection, here or, if `to` is another worker with room in its inbox, there.
    pub(crate) fn start_session(self: &Rc<Self>, mut accepted: Accepted, to: usize) {
        if to != self.index {
            accepted.slots.move_to(to);
            match self.peers[to].try_send(accepted) {
                Ok(()) => return,
                Err(error) => accepted = error.into_inner(),
            }
            accepted.slots.move_to(self.index);
        }
        // A socket that can't be registered can't be served; there is nobody to tell but the client, who sees it closed.
        if let Ok(session) = Session::new(self, accepted) {
            tokio::task::spawn_local(session::run(session));
        }
    }

    /// Wakes every session that waits for a request, to look at the phase.
    fn wake_idle_sessions(&self) {
        // Collected first: a waker may run anything, so the list is not borrowed while they are called.
        let wakers: Vec<Waker> =
            self.sessions.borrow().entries.iter().filter_map(|entry| entry.waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Says who is to be woken for a session; tells whether it was ended.
    fn session_waits(&self, place: u32, waker: &Waker) -> bool {
        let entry = &mut self.sessions.borrow_mut().entries[place as usize];
        if !entry.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            entry.waker = Some(waker.clone());
        }
        entry.killed
    }

    /// Ends a session: its task drops what it does as soon as it runs.
    pub(crate) fn kill_session(&self, place: u32) {
        let waker = match self.sessions.borrow_mut().entries.get_mut(place as usize) {
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
        let mut sessions = self.sessions.borrow_mut();
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
    /// Drives `future` until it is done, or drops it and gives nothing when the session is ended.
    pub(crate) fn unless_killed<F>(self, mut future: F) -> impl Future<Output = Option<F::Output>>
    where
        F: Future + Unpin,
    {
        poll_fn(move |cx| {
            if self.worker.session_waits(self.place, cx.waker()) {
                return Poll::Ready(None);
            }
            Pin::new(&mut future).poll(cx).map(Some)
        })
    }
}

impl Drop for SessionPlace {
    fn drop(&mut self) {
        let mut sessions = self.worker.sessions.borrow_mut();
        let SessionEntry { waker, .. } = std::mem::take(&mut sessions.entries[self.place as usize]);
        sessions.free.push(self.place);
        drop(sessions);
        drop(waker);
    }
}

/// Running worker threads.
pub struct Workers {
    threads: Vec<std::thread::JoinHandle<io::Result<()>>>,
}

impl Workers {
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
    listeners: Vec<(Arc<Listener>, OwnedFd)>,
    tasks: Vec<WorkerTask>,
    inbox: mpsc::Receiver<Accepted>,
    jobs: mpsc::Receiver<Job>,
    peers: Arc<[mpsc::Sender<Accepted>]>,
}

/// Starts a thread per worker of `running`, and returns once each of them has its runtime: from there on none takes
/// another descriptor to exist. `tasks` holds each worker's own, by index; missing ones mean none.
///
/// # Errors
/// Where a thread or its runtime can't be made; those that were made have ended then.
pub fn start(running: &Arc<Running>, bound: Vec<Bound>, tasks: Vec<Vec<WorkerTask>>) -> io::Result<Workers> {
    let count = running.process.workers.len();
    let (peers, inboxes): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(INBOX)).unzip();
    let peers: Arc<[_]> = peers.into();
    let (desks, jobs): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(JOBS)).unzip();
    running.process.set_desks(desks);
    let mut tasks = tasks.into_iter();
    let mut setups: Vec<Setup> = inboxes
        .into_iter()
        .zip(jobs)
        .map(|(inbox, jobs)| Setup {
            listeners: Vec::new(),
            tasks: tasks.next().unwrap_or_default(),
            inbox,
            jobs,
            peers: peers.clone(),
        })
        .collect();
    for Bound { listener, sockets } in bound {
        if let [shared] = &sockets[..] {
            for setup in &mut setups[1..] {
                setup.listeners.push((listener.clone(), shared.try_clone()?));
            }
        }
        for (setup, socket) in setups.iter_mut().zip(sockets) {
            setup.listeners.push((listener.clone(), socket));
        }
    }
    let mut threads = Vec::with_capacity(count);
    let (made, runtimes) = std::sync::mpsc::channel();
    for (index, setup) in setups.into_iter().enumerate() {
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
    let _ = running.process.workers[index].runtime.set(runtime.metrics());
    let tune = &running.config.global.tune;
    let worker = Rc::new(Worker {
        index,
        limits: Limits { max_head: tune.bufsize.saturating_sub(tune.maxrewrite), max_fields: tune.http_maxhdr },
        streams: FreeList::default(),
        cards: Cards::default(),
        idle: running.idle[index].clone(),
        lua: running.lua.as_ref().map(|states| states.worker(index)).unwrap_or_default(),
        buffers: BufferPool::of_worker(tune.bufsize, running.process.clone(), index),
        peers: setup.peers,
        phase: Cell::new(running.process.phase()),
        sessions: RefCell::default(),
        next_stream: Cell::new(0),
        clocks: Cell::new((Instant::now(), SystemTime::now())),
        running,
    });
    let result = runtime.block_on(serve(&worker, setup.listeners, setup.tasks, setup.inbox, setup.jobs));
    if result.is_err() {
        // The others can't carry on as if nothing had happened: a listener would silently have lost a worker.
        worker.running.process.stop_now();
    }
    // Tasks are dropped here, before the worker they belong to.
    drop(runtime);
    result
}

async fn serve(
    worker: &Rc<Worker>,
    listeners: Vec<(Arc<Listener>, OwnedFd)>,
    tasks: Vec<WorkerTask>,
    mut inbox: mpsc::Receiver<Accepted>,
    mut jobs: mpsc::Receiver<Job>,
) -> io::Result<()> {
    lua::start_worker(worker);
    for task in tasks {
        tokio::task::spawn_local(task(worker));
    }
    let mut accepting = tokio::task::JoinSet::new();
    for (listener, socket) in listeners {
        accepting.spawn_local(listener::accept_loop(worker.clone(), listener, socket));
    }
    let mut phase = worker.running.process.watch();
    loop {
        let now = *phase.borrow_and_update();
        worker.phase.set(now);
        match now {
            Phase::Serving => {}
            Phase::Stopping => {
                accepting.shutdown().await;
                worker.wake_idle_sessions();
            }
            Phase::Ended => return Ok(()),
        }
        tokio::select! {
            Some(accepted) = inbox.recv() => worker.start_session(accepted, worker.index),
            Some(job) = jobs.recv() => job(worker),
            Some(ended) = accepting.join_next() => ended.unwrap_or_else(|error| Err(error.into()))?,
            changed = phase.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
            }
        }
    }
}
