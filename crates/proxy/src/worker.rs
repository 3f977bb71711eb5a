//! A worker: one thread, one runtime, and the state of that thread.
//!
//! A worker accepts connections, serves the sessions that it accepted or received, and runs tasks of the binary (the
//! store's listener, demo servers). It shares nothing with other threads except an inbox of accepted descriptors and
//! the figures in [`Process`](crate::process::Process).
//!
//! A configuration that replaces another one gets a new [`Worker`] on the same thread: sessions switch from the old to
//! the new between two requests, and the old one is dropped with its last stream.
//!
//! It exits when the phase becomes [`Phase::Ended`]; its runtime then drops all running tasks, and a dropped stream
//! writes its log line.

mod thread;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use sluicegate_config::model::{CloseSpread, Tune};
use sluicegate_transport::{BufferPool, SocketOptions, clock};
use sluicegate_wire::http::Limits;
use sluicegate_wire::http2::Settings;
use tokio::sync::mpsc;

use crate::listener::Accepted;
use crate::process::{self, Phase, WorkerFigures};
use crate::running::Running;
use crate::server::{AgentConnections, AppConnections, Http2Connections, IdleConnections, socket_options};
use crate::stream::{Cards, Client, FreeList, Scripts};

pub use thread::{INBOX, WorkerTask, Workers, start};

/// The time for which the wall clock is derived from the monotonic one before it is read again.
const WALL_CLOCK_KEPT: Duration = Duration::from_secs(1);

/// State shared by a worker's tasks, behind an `Rc` that never leaves its thread.
pub struct Worker {
    /// The worker's index, from 0.
    pub index: usize,
    /// The configuration it serves.
    pub running: Arc<Running>,
    /// Server connections that wait for a request; another worker may take from them.
    pub idle: Arc<IdleConnections>,
    /// The worker's scripts, if the file loads any.
    pub scripts: Option<Rc<dyn Scripts>>,
    /// Buffers of `tune.bufsize`.
    pub buffers: Rc<BufferPool>,
    /// Connections of HTTP/2 to servers.
    pub(crate) http2: Rc<Http2Connections>,
    /// Connections to agents.
    pub(crate) agents: Rc<AgentConnections>,
    /// Connections to FastCGI applications.
    pub(crate) applications: Rc<AppConnections>,
    /// The time at which this worker began to serve the configuration.
    began: Instant,
    /// Limits of a head (`tune.bufsize`, `tune.maxrewrite`, `tune.http.maxhdr`).
    pub limits: Limits,
    /// Options of clients' sockets, if there are any.
    pub(crate) client_sockets: Option<SocketOptions>,
    pub(crate) streams: FreeList,
    pub(crate) cards: Cards,
    station: Rc<Station>,
}

/// The state of a worker that outlives configurations.
struct Station {
    peers: Arc<[mpsc::Sender<Accepted>]>,
    phase: Cell<Phase>,
    sessions: RefCell<Sessions>,
    next_stream: Cell<u64>,
    /// Both clocks at the same moment.
    clocks: Cell<(Instant, SystemTime)>,
    /// The worker of the configuration that is served now; `None` before the start and after the end.
    current: RefCell<Option<Rc<Worker>>>,
    /// Workers of earlier configurations that still have a stream.
    elders: RefCell<Vec<Weak<Worker>>>,
}

/// Returns this side's settings on connections of HTTP/2 to servers.
fn settings_for_servers(tune: &Tune, head: Limits) -> Settings {
    let side = &tune.h2.back;
    Settings {
        header_table_size: tune.h2.header_table,
        initial_window: tune.h2.window(side, tune.bufsize),
        receive_total: tune.h2.receive_total(side, tune.bufsize),
        max_concurrent_streams: tune.h2.streams(side),
        max_frame_size: tune.h2.frame(tune.bufsize),
        // Without meaning for a server, but HAProxy sends it to both.
        connect_protocol: !tune.h2.no_websocket,
        glitches_threshold: side.glitches,
        head,
        ..Settings::default()
    }
}

impl Worker {
    /// Returns its scripts, as rules call them.
    pub fn scripts(&self) -> Option<&dyn Scripts> {
        self.scripts.as_deref()
    }

    /// Returns a worker; `before` is the same worker under the previous snapshot.
    fn new(index: usize, running: Arc<Running>, station: Rc<Station>, before: Option<&Worker>) -> Rc<Worker> {
        if !running.config.global.insecure_setuid {
            refuse_privileges();
        }
        let scripts = match before.filter(|before| running.has_scripts_of(&before.running)) {
            Some(before) => before.scripts.clone(),
            None => running.lua.as_ref().map(|states| states.clone().worker(index)),
        };
        let tune = &running.config.global.tune;
        let limits = Limits {
            max_head: tune.bufsize.saturating_sub(tune.maxrewrite),
            max_fields: tune.http_maxhdr,
            lenient: false,
            any_payload: running.config.global.any_payload,
            keeps_insecure: running.config.global.keeps_insecure,
        };
        let client_sockets = socket_options(&tune.client_sockets);
        let client_sockets = (client_sockets != SocketOptions::default()).then_some(client_sockets);
        let buffers = Rc::new(process::buffers(tune, running.process.clone(), index));
        let used = running.proxies.iter().flat_map(|proxy| &proxy.servers).any(|server| server.may_speak_http2());
        let settings = settings_for_servers(tune, limits);
        let glitches_load = (tune.h2.glitches_load > 0).then(|| (running.process.clone(), tune.h2.glitches_load));
        Rc::new(Worker {
            index,
            began: Instant::now(),
            limits,
            client_sockets,
            http2: Rc::new(Http2Connections::new(index, settings, glitches_load, buffers.clone(), used)),
            agents: Rc::new(AgentConnections::new(index, buffers.clone(), running.logger.clone())),
            applications: Rc::new(AppConnections::new(index, buffers.clone(), running.logger.clone())),
            streams: FreeList::default(),
            cards: Cards::default(),
            idle: running.idle[index].clone(),
            scripts,
            buffers,
            running,
            station,
        })
    }

    /// Returns the phase that this worker has seen last.
    pub fn phase(&self) -> Phase {
        self.station.phase.get()
    }

    /// Returns the same worker under the newest configuration, unless this is already that one.
    pub(crate) fn newer(&self) -> Option<Rc<Worker>> {
        let current = self.station.current.borrow();
        current.as_ref().filter(|current| current.running.generation > self.running.generation).cloned()
    }

    /// Returns the time from which a client's connection should carry no further request, because the process is stopping
    /// or nothing listens to its address any more; `None` if it may continue.
    pub(crate) fn closing_time(&self, client: &Client) -> Option<Instant> {
        let since = match self.phase() {
            Phase::Serving if client.listener.as_ref().is_some_and(|listener| listener.is_removed()) => {
                self.newer().map_or(self.began, |newer| newer.began)
            }
            Phase::Serving => return None,
            Phase::Stopping | Phase::Ended => self.running.process.stopping_since.get().copied().unwrap_or(self.began),
        };
        self.spread(client, since)
    }

    /// Returns the time from which a client should open a new connection, because this one has an older configuration.
    pub(crate) fn renewal_time(&self, client: &Client) -> Option<Instant> {
        self.spread(client, self.newer()?.began)
    }

    /// Returns a connection's moment by `close-spread-time`.
    fn spread(&self, client: &Client, since: Instant) -> Option<Instant> {
        match self.running.config.global.close_spread {
            CloseSpread::AtOnce => Some(since),
            CloseSpread::Within(time) => since.checked_add(time.mul_f64(client.share(self.running.process.started))),
            CloseSpread::Never => None,
        }
    }

    /// Returns this worker under every configuration that has streams, the newest first.
    pub(crate) fn all(self: &Rc<Self>) -> Vec<Rc<Worker>> {
        let mut all: Vec<Rc<Worker>> = self.station.current.borrow().iter().cloned().collect();
        all.extend(self.station.elders.borrow().iter().filter_map(Weak::upgrade));
        all
    }

    /// Returns the figures that this worker publishes.
    pub fn figures(&self) -> &WorkerFigures {
        &self.running.process.workers[self.index]
    }

    /// Returns the wall-clock time at `instant`, which is now or in the recent past. The wall clock is read once a
    /// second and otherwise derived from the monotonic clock, which every request reads anyway.
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

    /// Returns a number for a new stream, unique in the process: the worker in the upper 16 bits, a count below.
    pub fn next_stream_id(&self) -> u64 {
        let count = self.station.next_stream.get();
        self.station.next_stream.set(count + 1);
        (self.index as u64) << 48 | count
    }

    /// Passes a connection to another worker; returns the connection if the worker's inbox has no room.
    pub(crate) fn hand_over(&self, mut accepted: Accepted, to: usize) -> Result<(), Accepted> {
        accepted.slots.move_to(to);
        self.station.peers[to].try_send(accepted).map_err(|error| {
            let mut accepted = error.into_inner();
            accepted.slots.move_to(self.index);
            accepted
        })
    }

    /// Returns the worker of the configuration under which a connection was accepted; if that is gone, the connection
    /// is moved to this one. `None` if no listener has its address any more.
    pub(crate) fn for_listener(self: &Rc<Self>, accepted: &mut Accepted) -> Option<Rc<Worker>> {
        let generation = accepted.slots.listener().generation;
        if generation == self.running.generation {
            return Some(self.clone());
        }
        if let Some(worker) = self.all().into_iter().find(|worker| worker.running.generation == generation) {
            return Some(worker);
        }
        let successor = accepted.slots.listener().successor(self.running.listeners())?;
        accepted.slots.follow(successor);
        Some(self.clone())
    }

    /// Wakes every session that waits for a request, so that it checks the phase.
    fn wake_idle_sessions(&self) {
        // Collected first: a waker may run anything, so the list is not borrowed while they are called.
        let wakers: Vec<Waker> =
            self.station.sessions.borrow().entries.iter().filter_map(|entry| entry.waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Registers the waker of a session; returns whether the session was ended.
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

    /// Ends a session: its task drops its work as soon as it runs.
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

    /// Returns a place among the sessions that are woken when the process stops.
    pub(crate) fn register_session(self: &Rc<Self>) -> SessionPlace {
        let mut sessions = self.station.sessions.borrow_mut();
        let place = sessions.free.pop().unwrap_or_else(|| {
            sessions.entries.push(SessionEntry::default());
            sessions.entries.len() as u32 - 1
        });
        SessionPlace { worker: self.clone(), place }
    }
}

/// This worker's sessions: their wakers, and whether an administrator ended them. The place of an ended session is
/// reused.
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

    /// Moves the session to another configuration.
    pub(crate) fn follow(&mut self, worker: Rc<Worker>) {
        self.worker = worker;
    }

    /// Registers a waker. A task's waker doesn't change, so this costs a comparison after the first time.
    pub(crate) fn waits(&self, waker: &Waker) {
        self.worker.session_waits(self.place, waker);
    }

    /// Returns its number.
    pub(crate) fn number(&self) -> u32 {
        self.place
    }

    /// Returns the watch of whether it was ended.
    pub(crate) fn watch(&self) -> SessionWatch {
        SessionWatch { worker: self.worker.clone(), place: self.place }
    }
}

/// Watches whether an administrator has ended a session, which is borrowed by its own future meanwhile.
pub(crate) struct SessionWatch {
    worker: Rc<Worker>,
    place: u32,
}

impl SessionWatch {
    /// Drives `future` until it is done. When the session is ended, the future is polled once more, so that it can
    /// tell its client, and is dropped if it is not done then.
    pub(crate) fn unless_killed<F>(self, mut future: F) -> impl Future<Output = Option<F::Output>>
    where
        F: Future + Unpin,
    {
        poll_fn(move |cx| {
            let killed = self.worker.session_waits(self.place, cx.waker());
            clock::begin_or_go_on();
            let polled = Pin::new(&mut future).poll(cx);
            clock::end();
            match polled {
                Poll::Pending if killed => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
                Poll::Ready(output) => {
                    if killed {
                        // The stream that was to be ended is over; the connection may continue.
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

/// Prevents programs that this thread starts from gaining privileges (unless `insecure-setuid-wanted` is set).
fn refuse_privileges() {
    // SAFETY: it takes numbers, and concerns the calling thread and what it starts.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
}

#[cfg(test)]
mod tests;
