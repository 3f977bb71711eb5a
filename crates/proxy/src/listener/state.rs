//! The state of a listening socket shared with its sessions: limits, figures, slots.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluicegate_config::model::{Bind, BindAddress};
use smallvec::SmallVec;

use super::share::{Reverse, Share};
use crate::counters::{Counters, Figures};
use crate::pace::Pace;
use crate::process::{Limit, Process};
use crate::site::Site;

/// An address as it is written on a `bind` line.
pub struct DisplayAddress<'a>(pub &'a BindAddress);

impl fmt::Display for DisplayAddress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            BindAddress::Inet(host, port) => write!(f, "{}", SocketAddr::new(*host, *port)),
            BindAddress::Unix(path) => write!(f, "unix@{}", path.display()),
            BindAddress::Abstract(name) => write!(f, "{name}"),
            BindAddress::Fd(number) => write!(f, "fd@{number}"),
            BindAddress::Sockpair(number) => write!(f, "sockpair@{number}"),
            BindAddress::Reverse(server) => write!(f, "rhttp@{server}"),
        }
    }
}

/// One address of a `bind` line with its limit, shared by the workers that accept from it.
pub struct Listener {
    /// The frontend.
    pub proxy: Arc<Site>,
    /// The process.
    pub process: Arc<Process>,
    /// The index of its `bind` line in the section.
    pub bind: usize,
    /// Its number in the section, from 1; addresses are counted, not lines.
    pub id: u32,
    /// See [`Listener::key`].
    pub(super) key: Arc<str>,
    /// The snapshot that it belongs to: [`Running::generation`](crate::running::Running::generation).
    pub generation: u64,
    /// Current sessions against the bind's `maxconn`; the listeners of one address in successive snapshots share it.
    pub sessions: Arc<Limit>,
    /// Its figures, with `option socket-stats`.
    pub(super) figures: Option<Arc<Figures>>,
    /// The number of workers that wait for a slot of the frontend or of the process before they accept.
    pub(super) waiting: AtomicU32,
    /// The sockets: one per worker, or a shared one; empty once the listener no longer listens.
    pub(super) sockets: Mutex<Vec<Arc<OwnedFd>>>,
    /// Whether a newer configuration no longer contains it: accepted connections finish.
    pub(super) removed: AtomicBool,
    /// The actual address, with the port assigned for port 0; `None` for unix sockets.
    pub local: Option<SocketAddr>,
    /// Whether connections are TCP.
    pub is_tcp: bool,
    /// Whether connections are passed as descriptors (`sockpair@`).
    pub(crate) is_passed: bool,
    /// The number of connections that the kernel may complete ahead of `accept`.
    pub(super) backlog: i32,
    /// Held while a worker suspends the socket.
    pub(super) putting_aside: Mutex<()>,
    /// The connections that are kept in place of accepted ones (`rhttp@`).
    pub(super) reverse: Option<Arc<Reverse>>,
}

/// The rates that limit a listener's new sessions.
pub(super) struct Paces<'a> {
    process: &'a Process,
    frontend: Option<Arc<Pace>>,
    tls: bool,
}

impl Paces<'_> {
    fn limited(&self) -> impl Iterator<Item = &Pace> {
        let frontend = self.frontend.as_deref();
        let tls = self.tls.then_some(&self.process.tls_pace);
        let all = [Some(&self.process.connection_pace), Some(&self.process.session_pace), frontend, tls];
        all.into_iter().flatten().filter(|pace| pace.limit() > 0)
    }

    /// Counts a session, or returns the time to wait.
    pub(super) fn take(&self) -> Result<(), Duration> {
        let limited: SmallVec<[&Pace; 4]> = self.limited().collect();
        if limited.is_empty() { Ok(()) } else { Pace::take_all(&limited, Instant::now()) }
    }

    /// Takes back a session that did not begin.
    pub(super) fn give(&self) {
        self.limited().for_each(Pace::give);
    }
}

impl Listener {
    /// Returns the rates that limit its sessions.
    pub(super) fn paces(&self) -> Paces<'_> {
        Paces { process: &self.process, frontend: self.proxy.frontend.pace(), tls: self.tls().is_some() }
    }

    /// Returns its identity across configurations and processes: its address, and the place among equal ones.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Returns whether it connects to a server and accepts nothing (`rhttp@`).
    pub(crate) fn is_reverse(&self) -> bool {
        self.reverse.is_some()
    }

    /// Returns its `bind` line.
    pub fn bind(&self) -> &Bind {
        &self.proxy.config.binds[self.bind]
    }

    /// `accept-proxy`.
    pub fn accepts_header(&self) -> bool {
        self.bind().accept_proxy
    }

    /// Returns whether it receives datagrams (`dgram-bind`).
    pub(crate) fn is_datagram(&self) -> bool {
        self.proxy.config.binds[self.bind].datagram
    }

    /// Returns the TLS of its `bind` line, if that has `ssl`.
    pub(crate) fn tls(&self) -> Option<&Arc<sluicegate_tls::listener::Listener>> {
        self.proxy.tls.get(self.bind)?.as_ref()
    }

    /// Returns the listener's name: that of its `bind` line, or its number.
    pub fn name(&self) -> Cow<'_, str> {
        name(self.bind(), self.id)
    }

    /// Returns whether the listener accepts nothing until the frontend or the process has room.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns the address as `show stat` prints it.
    pub fn address(&self) -> Cow<'static, str> {
        if self.is_reverse() || self.is_passed {
            return Cow::Borrowed("");
        }
        self.local.map_or(Cow::Borrowed("unix"), |local| Cow::Owned(local.to_string()))
    }

    /// Returns the listener's figures, with `option socket-stats`.
    #[inline]
    pub fn figures(&self) -> Option<&Figures> {
        self.figures.as_deref()
    }

    /// Updates a counter of the frontend and, with `option socket-stats`, of the listener; `worker` is the caller's.
    #[inline]
    pub(crate) fn count(&self, worker: usize, count: impl Fn(&Counters)) {
        count(self.proxy.frontend.figures.at(worker));
        if let Some(figures) = &self.figures {
            count(figures.at(worker));
        }
    }

    /// Returns the socket that this worker accepts on; `None` once it no longer listens.
    pub(crate) fn socket(&self, worker: usize) -> Option<Arc<OwnedFd>> {
        let sockets = self.sockets.lock();
        sockets.get(worker).or(sockets.first()).cloned()
    }

    /// Returns the listener's sockets, to be passed to another process.
    pub fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        self.sockets.lock().clone()
    }

    /// Releases the sockets: they are closed as soon as no worker accepts on them any more.
    pub(crate) fn close(&self) {
        self.sockets.lock().clear();
    }

    /// Returns whether a newer configuration no longer contains the listener.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Returns the listener of the same address among those of a newer snapshot.
    pub(crate) fn successor(&self, newer: &[Arc<Listener>]) -> Option<Arc<Listener>> {
        newer.iter().find(|listener| listener.key == self.key).cloned()
    }

    /// Hands over to the listeners of the next configuration. A socket whose address is no longer listened on is
    /// closed, after the connections that the kernel has already completed were accepted.
    pub(crate) fn leave_to(&self, newer: &[Arc<Listener>]) {
        match self.successor(newer) {
            Some(_) => self.close(),
            None => self.removed.store(true, Ordering::Relaxed),
        }
    }
}

/// Returns the sockets of a section's `bind` lines: the index of the line, its address, and its number in the section.
/// The number is that of `id`, otherwise the next free one after that of the socket before.
pub(crate) fn numbered(binds: &[Bind]) -> Vec<(usize, &BindAddress, u32)> {
    let mut taken: HashSet<u32> = binds.iter().filter_map(|bind| bind.id).collect();
    let mut before = 0;
    let mut sockets = Vec::new();
    for (index, bind) in binds.iter().enumerate() {
        for (place, address) in bind.addresses.iter().enumerate() {
            let id = bind.id.filter(|_| place == 0).unwrap_or_else(|| {
                let mut next = before + 1;
                while !taken.insert(next) {
                    next += 1;
                }
                next
            });
            before = id;
            sockets.push((index, address, id));
        }
    }
    sockets
}

/// Returns the name of a socket of a `bind` line.
pub(crate) fn name(bind: &Bind, id: u32) -> Cow<'_, str> {
    match &bind.name {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("sock-{id}")),
    }
}

/// Returns a name for an address that stays the same in the next configuration. If one address is bound several times
/// (port 0, an inherited descriptor), the names include the order.
pub(super) fn key_of(bind: &Bind, address: &BindAddress, seen: &mut HashMap<String, u32>) -> Arc<str> {
    let datagram = if bind.datagram { "udp@" } else { "" };
    let name =
        format!("{datagram}{}{}", DisplayAddress(address), if bind.v6only == Some(true) { " v6only" } else { "" });
    let count = seen.entry(name.clone()).or_default();
    *count += 1;
    format!("{name}#{count}").into()
}

/// A session's slots in its listener, its frontend and the process; they are released when this is dropped.
pub struct Slots {
    listener: Arc<Listener>,
    worker: usize,
    /// The place among the connections to a server that this side has opened.
    share: Option<Share>,
}

impl Slots {
    /// Acquires one slot of each, or returns the limit that is reached.
    pub(super) fn take(listener: &Arc<Listener>, worker: usize) -> Result<Slots, Full> {
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
        Ok(Slots { listener: listener.clone(), worker, share: None })
    }

    /// Acquires slots for a connection that this side has opened; its place is the listener's limit.
    pub(super) fn take_reversed(listener: &Arc<Listener>, worker: usize, share: Share) -> Result<Slots, (Full, Share)> {
        if !listener.process.sessions.take() {
            return Err((Full::Process, share));
        }
        if !listener.proxy.frontend.sessions.take() {
            listener.process.sessions.give();
            return Err((Full::Frontend, share));
        }
        listener.sessions.force();
        listener.process.workers[worker].load.fetch_add(1, Ordering::Relaxed);
        let slots = Slots { listener: listener.clone(), worker, share: Some(share) };
        slots.used();
        Ok(slots)
    }

    /// Leaves the place of a connection that this side has opened, so that another is opened meanwhile.
    pub(crate) fn leave_reverse(&mut self) {
        self.share = None;
    }

    /// Moves the session to the listener of a newer configuration. Slots are kept even if the new limits are lower.
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
        if let (Some(share), Some(reverse)) = (&mut self.share, &new.reverse) {
            share.follow(reverse);
        }
    }

    /// Records that a connection was accepted with these slots.
    pub(super) fn used(&self) {
        self.listener.process.sessions.used();
        self.listener.proxy.frontend.sessions.used();
        self.listener.sessions.used();
    }

    /// Returns the listener.
    pub fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    fn load(&self, worker: usize) -> &AtomicU32 {
        &self.listener.process.workers[worker].load
    }

    /// Moves the session's count to another worker.
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
pub(super) struct Waits<'a>(&'a AtomicU32);

impl Waits<'_> {
    pub(super) fn on(listener: &Listener) -> Waits<'_> {
        listener.waiting.fetch_add(1, Ordering::Relaxed);
        Waits(&listener.waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The limit that is reached.
pub(super) enum Full {
    Process,
    Frontend,
    Listener,
}

/// An accepted connection that is not yet registered with a worker's runtime.
pub struct Accepted {
    /// The connection, non-blocking.
    pub fd: OwnedFd,
    /// The client's address; `None` behind a unix socket.
    pub peer: Option<SocketAddr>,
    /// Its slots of the limits.
    pub slots: Slots,
}
