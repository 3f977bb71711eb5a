//! Listening sockets: how they are made, what limits them, and the loop that accepts.
//!
//! [`bind`] makes the sockets of every `bind` line through [`Sockets`], before any thread exists: one per worker with
//! `SO_REUSEPORT` where the address allows it, so that the kernel spreads connections, and otherwise one that all
//! workers accept from. The kernel spreads by a hash and a shared socket not at all, so the worker that accepts hands
//! the descriptor to one with clearly fewer sessions before it registers it (a registered socket would cost 2.6 µs to
//! move).
//!
//! A session holds a slot of its listener, its frontend and the process, and waits for the frontend's pace. Slots are taken before `accept`, so a limit is
//! exact and what exceeds it stays in the kernel's backlog. A listener that finds no slot waits until one is given
//! back. One that finds no descriptor closes idle server connections; if there are none, it waits until a session ends,
//! or a tenth of a second.

mod sockets;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluicegate_config::model::{Bind, BindAddress, Position};
use smallvec::SmallVec;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::counters::{Counters, Figures};
use crate::frontend::Gate;
use crate::pace::Pace;
use crate::process::{AcceptLoop, Limit, Phase, Process};
use crate::running::{ProxyRun, Running};
use crate::server;
use crate::site::Site;
use crate::worker::Worker;
use sockets::set_up;
pub use sockets::{
    ReplacingSockets, Sockets, SystemSockets, Wanted, group_id, is_alive, remove_stale, set_socket_mode, user_id,
};

/// HAProxy's backlog of a bind without `backlog`, where no `maxconn` says more.
const DEFAULT_BACKLOG: u32 = 1024;

/// Connections that one wake-up of a listener accepts before other tasks get their turn.
const ACCEPTS_PER_WAKE: usize = 64;

/// How long a listener waits for a descriptor if no session ends meanwhile.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// A `bind` address that could not be listened on.
#[derive(Debug)]
pub struct BindError {
    /// The `bind` line.
    pub at: Position,
    /// The section's name.
    pub proxy: Arc<str>,
    /// The address as the user would write it.
    pub address: String,
    /// What the system said.
    pub error: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { file, line, .. } = &self.at;
        write!(f, "{file}:{line}: '{}': cannot bind {} ({})", self.proxy, self.address, reason(&self.error))
    }
}

impl std::error::Error for BindError {}

impl BindError {
    /// An address of a `bind` line that belongs to the section `owner`.
    pub fn new(bind: &Bind, owner: &str, address: &BindAddress, error: io::Error) -> BindError {
        let address = DisplayAddress(address).to_string();
        BindError { at: bind.at.clone(), proxy: owner.into(), address, error }
    }
}

/// The system's words without Rust's `(os error N)`.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// An address as it is written on a `bind` line.
pub struct DisplayAddress<'a>(pub &'a BindAddress);

impl fmt::Display for DisplayAddress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            BindAddress::Inet(host, port) => write!(f, "{}", SocketAddr::new(*host, *port)),
            BindAddress::Unix(path) => write!(f, "unix@{}", path.display()),
            BindAddress::Abstract(name) => write!(f, "abns@{name}"),
            BindAddress::Fd(number) => write!(f, "fd@{number}"),
        }
    }
}

/// One address of a `bind` line with its limit, shared by the workers that accept from it.
pub struct Listener {
    /// The frontend.
    pub proxy: Arc<Site>,
    /// The process.
    pub process: Arc<Process>,
    /// Which `bind` line of the section.
    pub bind: usize,
    /// Its number in the section, from 1: addresses count and not lines.
    pub id: u32,
    /// What it is known by from one configuration to the next: [`Listener::successor`].
    key: Arc<str>,
    /// Of which snapshot it is: [`Running::generation`].
    pub generation: u64,
    /// Current sessions against the bind's `maxconn`; the listeners of one address in successive snapshots share it.
    pub sessions: Arc<Limit>,
    /// What is counted of it, where `option socket-stats` asks for that.
    figures: Option<Arc<Figures>>,
    /// Workers that would accept, but wait for a slot of the frontend or of the process.
    waiting: AtomicU32,
    /// One per worker, or one that is shared; none once it no longer listens.
    sockets: Mutex<Vec<Arc<OwnedFd>>>,
    /// A newer configuration does not have it: what it accepted finishes what it does.
    removed: AtomicBool,
    /// The address it really has: the port where 0 was asked for; `None` for unix sockets.
    pub local: Option<SocketAddr>,
    /// Connections are TCP.
    pub is_tcp: bool,
    /// What the kernel may complete ahead of `accept`.
    backlog: i32,
    /// Held while a worker puts the socket aside.
    putting_aside: Mutex<()>,
}

impl Listener {
    /// `accept-proxy`.
    pub fn accepts_header(&self) -> bool {
        self.proxy.config.binds[self.bind].accept_proxy
    }

    /// Its name: that of its `bind` line, or its number.
    pub fn name(&self) -> Cow<'_, str> {
        name(&self.proxy.config.binds[self.bind], self.id)
    }

    /// It accepts nothing until the frontend or the process has room.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// The address that it really has, as `show stat` tells it.
    pub fn address(&self) -> Cow<'static, str> {
        self.local.map_or(Cow::Borrowed("unix"), |local| Cow::Owned(local.to_string()))
    }

    /// What is counted of it, where `option socket-stats` asks for that.
    #[inline]
    pub fn figures(&self) -> Option<&Figures> {
        self.figures.as_deref()
    }

    /// Counts something at the frontend, and here where that is asked for; `worker` is the caller's.
    #[inline]
    pub(crate) fn count(&self, worker: usize, count: impl Fn(&Counters)) {
        count(self.proxy.frontend.figures.at(worker));
        if let Some(figures) = &self.figures {
            count(figures.at(worker));
        }
    }

    /// The socket that this worker accepts on; `None` once it no longer listens.
    pub(crate) fn socket(&self, worker: usize) -> Option<Arc<OwnedFd>> {
        let sockets = self.sockets.lock();
        sockets.get(worker).or(sockets.first()).cloned()
    }

    /// Its sockets, to be given to another process.
    pub fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        self.sockets.lock().clone()
    }

    /// Gives its sockets up: they are closed as soon as no worker accepts on them any more.
    pub(crate) fn close(&self) {
        self.sockets.lock().clear();
    }

    /// A newer configuration does not have it.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// The listener of the same address in a newer snapshot, if that has one.
    pub(crate) fn successor(&self, running: &Running) -> Option<Arc<Listener>> {
        running.listeners().iter().find(|listener| listener.key == self.key).cloned()
    }

    /// Another configuration takes over from the one that this listener belongs to. What is listened to no longer is
    /// closed once what the kernel has completed already was accepted ([`accept_rest`]).
    pub(crate) fn leave_to(&self, running: &Running) {
        match self.successor(running) {
            Some(_) => self.close(),
            None => self.removed.store(true, Ordering::Relaxed),
        }
    }
}

/// The sockets of a section's `bind` lines: which line, its address, and its number in the section. That is the one
/// that `id` gives, and otherwise its place among all of them or the next one that is free.
pub(crate) fn numbered(binds: &[Bind]) -> Vec<(usize, &BindAddress, u32)> {
    let mut taken: HashSet<u32> = binds.iter().filter_map(|bind| bind.id).collect();
    let mut next = 0;
    let mut sockets = Vec::new();
    for (index, bind) in binds.iter().enumerate() {
        for (place, address) in bind.addresses.iter().enumerate() {
            next += 1;
            let id = bind.id.filter(|_| place == 0).unwrap_or_else(|| {
                while !taken.insert(next) {
                    next += 1;
                }
                next
            });
            sockets.push((index, address, id));
        }
    }
    sockets
}

/// The name of a socket of a `bind` line.
pub(crate) fn name(bind: &Bind, id: u32) -> Cow<'_, str> {
    match &bind.name {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("sock-{id}")),
    }
}

/// A name for an address that is the same in the next configuration. Where one address is bound several times (port 0,
/// an inherited descriptor), the order counts.
fn key_of(bind: &Bind, address: &BindAddress, seen: &mut HashMap<String, u32>) -> Arc<str> {
    let name = format!("{}{}", DisplayAddress(address), if bind.v6only == Some(true) { " v6only" } else { "" });
    let count = seen.entry(name.clone()).or_default();
    *count += 1;
    format!("{name}#{count}").into()
}

/// Binds every address of every frontend, or says which could not be bound and why. What the snapshot before listens to
/// already is taken over from it.
pub fn bind(running: &Running, sockets: &dyn Sockets) -> Result<Vec<Arc<Listener>>, Vec<BindError>> {
    bind_after(running, &[], sockets)
}

/// The same, where `before` listens already: the sockets of addresses that both have stay as they are.
pub fn bind_after(
    running: &Running,
    before: &[Arc<Listener>],
    sockets: &dyn Sockets,
) -> Result<Vec<Arc<Listener>>, Vec<BindError>> {
    let mut bound = Vec::new();
    let mut errors = Vec::new();
    let mut seen = HashMap::new();
    for proxy in running.proxies.iter().filter(|proxy| !proxy.config.disabled) {
        for (index, address, id) in numbered(&proxy.config.binds) {
            let bind = &proxy.config.binds[index];
            let key = key_of(bind, address, &mut seen);
            let old = before.iter().find(|listener| listener.key == key && !listener.sockets.lock().is_empty());
            match bind_address(running, proxy, (index, id, key), address, old, sockets) {
                Ok(listener) => bound.push(Arc::new(listener)),
                Err(error) => errors.push(BindError::new(bind, &proxy.config.name, address, error)),
            }
        }
    }
    if errors.is_empty() { Ok(bound) } else { Err(errors) }
}

/// Listens on one address of a `bind` line: a socket for each worker where the address allows it, otherwise one.
pub fn listen(bind: &Bind, address: &BindAddress, workers: usize, maker: &dyn Sockets) -> io::Result<Vec<OwnedFd>> {
    listen_for(bind, address, bind.backlog.or(bind.maxconn), false, workers, maker)
}

/// Listens likewise on an exclusive address: [`Wanted::exclusive`].
pub fn claim(bind: &Bind, address: &BindAddress, workers: usize, maker: &dyn Sockets) -> io::Result<Vec<OwnedFd>> {
    listen_for(bind, address, bind.backlog.or(bind.maxconn), true, workers, maker)
}

fn listen_for(
    bind: &Bind,
    address: &BindAddress,
    backlog: Option<u32>,
    exclusive: bool,
    workers: usize,
    maker: &dyn Sockets,
) -> io::Result<Vec<OwnedFd>> {
    let mut wanted = Wanted {
        address,
        backlog: backlog.unwrap_or(DEFAULT_BACKLOG),
        v6only: bind.v6only,
        transparent: bind.tcp.transparent,
        exclusive,
        mode: bind.mode,
        user: bind.user.as_deref(),
        group: bind.group.as_deref(),
    };
    let first = maker.listen(wanted)?;
    let local = SockRef::from(&first).local_addr()?.as_socket();
    let mut sockets = vec![first];
    // The first socket decided the port where 0 was asked for.
    let decided;
    if let (BindAddress::Inet(host, _), Some(local)) = (address, local) {
        decided = BindAddress::Inet(*host, local.port());
        wanted.address = &decided;
        wanted.exclusive = false;
        for _ in 1..workers {
            sockets.push(maker.listen(wanted)?);
        }
    }
    for socket in &sockets {
        set_up(socket, bind, wanted.backlog)?;
    }
    Ok(sockets)
}

fn bind_address(
    running: &Running,
    proxy: &Arc<ProxyRun>,
    (index, id, key): (usize, u32, Arc<str>),
    address: &BindAddress,
    old: Option<&Arc<Listener>>,
    maker: &dyn Sockets,
) -> io::Result<Listener> {
    let bind = &proxy.config.binds[index];
    let backlog = bind.backlog.or(proxy.config.backlog).or(bind.maxconn).or(proxy.config.maxconn);
    let sockets = match old {
        Some(old) => old.sockets(),
        None => listen_for(bind, address, backlog, false, running.process.workers.len(), maker)?
            .into_iter()
            .map(Arc::new)
            .collect(),
    };
    let local = SockRef::from(&*sockets[0]).local_addr()?.as_socket();
    let figures = proxy.config.options.socket_stats.then(|| {
        let known = old.and_then(|old| old.figures.clone());
        known.unwrap_or_else(|| Arc::new(Figures::new(running.process.workers.len())))
    });
    Ok(Listener {
        proxy: proxy.site.clone(),
        process: running.process.clone(),
        bind: index,
        id,
        key,
        generation: running.generation,
        sessions: old.map_or_else(|| Arc::new(Limit::new(bind.maxconn)), |old| old.sessions.clone()),
        figures,
        waiting: AtomicU32::new(0),
        sockets: Mutex::new(sockets),
        removed: AtomicBool::new(false),
        local,
        is_tcp: local.is_some(),
        backlog: backlog.unwrap_or(DEFAULT_BACKLOG).min(i32::MAX as u32) as i32,
        putting_aside: Mutex::new(()),
    })
}

/// A session's slots in its listener, its frontend and the process; they go back when it is dropped.
pub struct Slots {
    listener: Arc<Listener>,
    worker: usize,
}

impl Slots {
    /// Takes one slot of each, or says which limit is reached.
    fn take(listener: &Arc<Listener>, worker: usize) -> Result<Slots, Full> {
        if !listener.process.sessions.take() {
            return Err(Full::Process);
        }
        if !listener.proxy.frontend.sessions.take() {
            listener.process.sessions.give();
            return Err(Full::Frontend);
        }
        if !listener.sessions.take() {
            listener.proxy.frontend.sessions.give();
            listener.process.sessions.give();
            return Err(Full::Listener);
        }
        listener.process.workers[worker].load.fetch_add(1, Ordering::Relaxed);
        Ok(Slots { listener: listener.clone(), worker })
    }

    /// The session goes on under the listener of a newer configuration. Limits that are lower now take nothing back.
    pub(crate) fn follow(&mut self, to: Arc<Listener>) {
        let old = std::mem::replace(&mut self.listener, to);
        let new = &self.listener;
        if !Arc::ptr_eq(&old.sessions, &new.sessions) {
            new.sessions.force();
            old.sessions.give();
        }
        if !Arc::ptr_eq(&old.proxy.frontend, &new.proxy.frontend) {
            new.proxy.frontend.sessions.force();
            old.proxy.frontend.sessions.give();
        }
    }

    /// A connection was accepted into them.
    fn used(&self) {
        self.listener.process.sessions.used();
        self.listener.proxy.frontend.sessions.used();
        self.listener.sessions.used();
    }

    /// The listener.
    pub fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    fn load(&self, worker: usize) -> &AtomicU32 {
        &self.listener.process.workers[worker].load
    }

    /// Counts the session for another worker.
    pub(crate) fn move_to(&mut self, worker: usize) {
        self.load(worker).fetch_add(1, Ordering::Relaxed);
        self.load(self.worker).fetch_sub(1, Ordering::Relaxed);
        self.worker = worker;
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let process = &self.listener.process;
        self.load(self.worker).fetch_sub(1, Ordering::Relaxed);
        self.listener.sessions.give();
        self.listener.proxy.frontend.sessions.give();
        process.sessions.give();
        process.descriptors.notify_waiters();
        process.end_if_drained();
    }
}

/// A worker that waits for a slot; its loop may be dropped meanwhile.
struct Waits<'a>(&'a AtomicU32);

impl Waits<'_> {
    fn on(listener: &Listener) -> Waits<'_> {
        listener.waiting.fetch_add(1, Ordering::Relaxed);
        Waits(&listener.waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

enum Full {
    Process,
    Frontend,
    Listener,
}

/// A connection that was accepted and belongs to no worker's runtime yet.
pub struct Accepted {
    /// The connection, non-blocking.
    pub fd: OwnedFd,
    /// The client's address; `None` behind a unix socket.
    pub peer: Option<SocketAddr>,
    /// What it holds of the limits.
    pub slots: Slots,
}

/// Accepts what the kernel has completed already on a socket that is about to be closed.
pub(crate) fn accept_rest(worker: &Rc<Worker>, listener: &Arc<Listener>, socket: &OwnedFd) {
    if listener.proxy.frontend.gate() != Gate::Open {
        return;
    }
    while let Ok(slots) = Slots::take(listener, worker.index) {
        let Ok((fd, peer)) = accept(socket) else { return };
        slots.used();
        worker.figures().sessions.add(1);
        worker.start_session(Accepted { fd, peer, slots }, worker.index);
    }
}

/// Accepts on one socket until the process stops listening. Between two polls nothing is accepted that is not served
/// yet, so the loop may be dropped at any time, and another one go on with the socket.
pub(crate) async fn accept_loop(worker: Rc<Worker>, listener: Arc<Listener>) -> io::Result<()> {
    match listener.socket(worker.index) {
        Some(socket) => accept_on(worker, listener, socket).await,
        None => Ok(()),
    }
}

/// Accepts on the socket of another worker for as long as that one is stuck. A socket that workers share needs nobody.
pub(crate) async fn accept_for(worker: Rc<Worker>, listener: Arc<Listener>, of: usize) {
    /// How often the other one is looked at.
    const LOOK: Duration = Duration::from_millis(100);
    let socket = {
        let sockets = listener.sockets.lock();
        sockets.get(of).filter(|_| sockets.len() > 1).cloned()
    };
    let Some(socket) = socket else { return };
    let process = listener.process.clone();
    let is_back = async {
        while process.workers[of].stuck.load(Ordering::Relaxed) && !listener.is_removed() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        _ = accept_on(worker, listener.clone(), socket) => {}
        () = is_back => {}
    }
}

async fn accept_on(worker: Rc<Worker>, listener: Arc<Listener>, socket: Arc<OwnedFd>) -> io::Result<()> {
    let mut aside = Aside::new(&listener);
    let mut place = listener.process.accept_loop();
    let mut socket = register(socket)?;
    while worker.phase() == Phase::Serving {
        let mut ready = tokio::select! {
            biased;
            () = aside.changed() => {
                // Registered anew: that it was shut down once would be remembered as a readiness that never ends.
                let raw = socket.into_inner();
                if !aside.wait(&listener, &raw, &mut place).await? {
                    listener.close();
                    return Ok(());
                }
                socket = register(raw)?;
                continue;
            }
            ready = socket.readable() => ready?,
        };
        for _ in 0..ACCEPTS_PER_WAKE {
            if aside.has_changed() {
                break;
            }
            let slots = match Slots::take(&listener, worker.index) {
                Ok(slots) => slots,
                Err(Full::Process) => {
                    worker.figures().full.add(1);
                    let _waits = Waits::on(&listener);
                    listener.process.sessions.room().await;
                    continue;
                }
                Err(Full::Frontend) => {
                    let _waits = Waits::on(&listener);
                    listener.proxy.frontend.sessions.room().await;
                    continue;
                }
                Err(Full::Listener) => {
                    listener.sessions.room().await;
                    continue;
                }
            };
            let (process, own) = (&listener.process, listener.proxy.frontend.pace());
            let mut paces = SmallVec::<[&Pace; 3]>::from_slice(&[&process.connection_pace, &process.session_pace]);
            paces.extend(own.as_deref());
            if let Err(pause) = Pace::take_all(&paces, Instant::now()) {
                drop(slots);
                tokio::time::sleep(pause).await;
                continue;
            }
            let accepted = ready.try_io(|socket| accept(socket.get_ref()));
            if !matches!(accepted, Ok(Ok(_))) {
                paces.iter().for_each(|pace| pace.give());
            }
            match accepted {
                Err(_would_block) => break,
                Ok(Ok((fd, peer))) => {
                    slots.used();
                    dispatch(&worker, Accepted { fd, peer, slots });
                }
                Ok(Err(error)) => match error.raw_os_error() {
                    // Our own shortage: without a pause the listener, still readable, would spin.
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                        drop(slots);
                        worker.figures().exhausted.add(1);
                        if server::shed_idle(worker.running.proxies.iter().flat_map(|proxy| &proxy.servers))
                            + worker.buffers.shed_pipes()
                            > 0
                        {
                            continue;
                        }
                        let freed = listener.process.descriptors.notified();
                        let _ = tokio::time::timeout(EXHAUSTED_PAUSE, freed).await;
                    }
                    // Another worker has put the socket that they share aside; this one is told so at once.
                    Some(libc::EINVAL) => {
                        drop(slots);
                        let _ = tokio::time::timeout(EXHAUSTED_PAUSE, aside.changed()).await;
                        aside.process.mark_changed();
                        break;
                    }
                    // The connection's own fault, or a signal: the next one may be well.
                    Some(libc::EINTR | libc::ECONNABORTED | libc::EPERM | libc::EPROTO) => {}
                    _ => return Err(error),
                },
            }
        }
        drop(ready);
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn register(socket: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: an `OwnedFd` keeps its descriptor open and the same until it is dropped, which the `AsyncFd`, holding one
    // of its owners, does not let happen before it has gone itself.
    Ok(unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?)
}

/// What may put a listener's socket aside: the process pauses, or its frontend does.
struct Aside {
    process: watch::Receiver<bool>,
    frontend: watch::Receiver<Gate>,
}

impl Aside {
    fn new(listener: &Listener) -> Aside {
        let mut frontend = listener.proxy.frontend.watch_gate();
        if *frontend.borrow() != Gate::Open {
            frontend.mark_changed();
        }
        Aside { process: listener.process.watch_paused(), frontend }
    }

    /// Something has changed. The senders live as long as the listener, so waiting can't fail.
    async fn changed(&mut self) {
        tokio::select! {
            biased;
            _ = self.process.changed() => self.process.mark_changed(),
            _ = self.frontend.changed() => self.frontend.mark_changed(),
        }
    }

    /// Something has changed already.
    fn has_changed(&self) -> bool {
        self.process.has_changed().unwrap_or(true) || self.frontend.has_changed().unwrap_or(true)
    }

    /// Stops listening until both resume; `false` once the frontend is shut. The kernel then refuses connections to a
    /// TCP port, or gives them to another process on it; a unix socket can't be put aside, so its clients wait in the
    /// backlog, as with HAProxy.
    async fn wait(&mut self, listener: &Listener, socket: &OwnedFd, place: &mut AcceptLoop) -> io::Result<bool> {
        let raw = SockRef::from(socket);
        loop {
            let (paused, gate) = (*self.process.borrow_and_update(), *self.frontend.borrow_and_update());
            let open = !paused && gate == Gate::Open;
            if listener.is_tcp && open {
                raw.listen(listener.backlog)?;
            } else if listener.is_tcp {
                let _alone = listener.putting_aside.lock();
                // Of a shared socket only one worker's copy is shut down: what is shut down twice would, once it
                // listens again, accept connections that can't be read from.
                if raw.is_listener()? {
                    raw.shutdown(std::net::Shutdown::Read)?;
                }
            }
            place.follow(paused);
            if open || gate == Gate::Shut {
                return Ok(open);
            }
            self.changed().await;
        }
    }
}

/// Gives the connection to a worker with clearly fewer sessions, or keeps it.
fn dispatch(worker: &Rc<Worker>, accepted: Accepted) {
    worker.figures().sessions.add(1);
    let process = &worker.running.process;
    let load = |index: usize| process.workers[index].load.load(Ordering::Relaxed);
    let own = load(worker.index);
    let turns = |index: &usize| !process.workers[*index].stuck.load(Ordering::Relaxed);
    let least = (0..process.workers.len()).filter(turns).min_by_key(|index| load(*index)).unwrap_or(worker.index);
    // A difference of one or two is noise; beyond it an eighth of the load is worth a wake-up of another thread.
    let lighter = own > load(least) + 1 + load(least) / 8;
    worker.start_session(accepted, if lighter { least } else { worker.index });
}

fn accept(listener: &OwnedFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: `storage` is as large as `len` says and outlives the call.
    let fd = unsafe { libc::accept4(listener.as_fd().as_raw_fd(), storage.as_mut_ptr().cast(), &mut len, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made `fd` for this process, so nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all-zero bytes are a valid sockaddr_storage, and the kernel wrote a valid address over its start.
    Ok((fd, socket_addr(unsafe { storage.assume_init_ref() })))
}

fn socket_addr(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let pointer: *const libc::sockaddr_storage = storage;
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which of its forms the storage, larger and aligned for all of them, holds.
            let v4 = unsafe { &*pointer.cast::<libc::sockaddr_in>() };
            let host = std::net::Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::from((host, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*pointer.cast::<libc::sockaddr_in6>() };
            let host = std::net::Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(std::net::SocketAddrV6::new(host, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_is_said_in_the_systems_words() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = BindAddress::Inet(taken.local_addr().unwrap().ip(), taken.local_addr().unwrap().port());
        let error = SystemSockets.listen(Wanted::plain(&address)).unwrap_err();
        let at = Position { file: "a.cfg".into(), line: 7, column: 5 };
        let text = BindError { at, proxy: "www".into(), address: DisplayAddress(&address).to_string(), error };
        let expected = format!("a.cfg:7: 'www': cannot bind {} (Address already in use)", taken.local_addr().unwrap());
        assert_eq!(text.to_string(), expected);
    }
}
