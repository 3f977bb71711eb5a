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

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use sluicegate_config::model::{Bind, BindAddress, BindTcp, Position};
use smallvec::SmallVec;
use socket2::{Domain, SockAddr, SockRef, Socket as RawSocket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::counters::Figures;
use crate::pace::Pace;
use crate::process::{AcceptLoop, Limit, Phase, Process};
use crate::running::{ProxyRun, Running};
use crate::server::{self, abstract_address};
use crate::stream::LastInvalid;
use crate::worker::Worker;

/// HAProxy's backlog of a bind without `backlog`, where no `maxconn` says more.
const DEFAULT_BACKLOG: u32 = 1024;

/// Connections that one wake-up of a listener accepts before other tasks get their turn.
const ACCEPTS_PER_WAKE: usize = 64;

/// How long a listener waits for a descriptor if no session ends meanwhile.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Whether a frontend takes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It does.
    Open,
    /// `disable frontend`: the kernel refuses them until `enable frontend`.
    Paused,
    /// `shutdown frontend`: its sockets are closed for good.
    Shut,
}

/// A frontend's limits and figures.
#[derive(Debug)]
pub struct FrontendShared {
    gate: watch::Sender<Gate>,
    /// The last request that could not be understood.
    pub invalid: LastInvalid,
    /// Current sessions (`scur`, `smax`) against the frontend's `maxconn`.
    pub sessions: Limit,
    /// `rate-limit sessions`.
    pace: RwLock<Option<Arc<Pace>>>,
    /// Everything else that is counted.
    pub figures: Figures,
}

impl FrontendShared {
    /// Figures of a frontend that `workers` workers serve.
    pub fn new(workers: usize, maxconn: Option<u32>, session_rate: Option<u32>) -> FrontendShared {
        FrontendShared {
            gate: watch::Sender::new(Gate::Open),
            invalid: LastInvalid::default(),
            sessions: Limit::new(maxconn),
            pace: RwLock::new(session_rate.map(Pace::new).map(Arc::new)),
            figures: Figures::new(workers),
        }
    }

    /// Whether it takes connections.
    pub fn gate(&self) -> Gate {
        *self.gate.borrow()
    }

    /// `rate-limit sessions`, if there is one.
    pub fn pace(&self) -> Option<Arc<Pace>> {
        self.pace.read().clone()
    }

    /// Changes `rate-limit sessions`.
    pub(crate) fn set_session_rate(&self, session_rate: Option<u32>) {
        *self.pace.write() = session_rate.map(Pace::new).map(Arc::new);
    }

    /// Opens, pauses or shuts it; what is shut stays so. Its listeners act on it by themselves.
    pub fn set_gate(&self, to: Gate) {
        self.gate.send_if_modified(|gate| *gate != Gate::Shut && std::mem::replace(gate, to) != to);
    }
}

/// What a listening socket should be.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Where it listens.
    pub address: &'a BindAddress,
    /// Connections that the kernel may complete ahead of `accept`.
    pub backlog: u32,
    /// `v6only`/`v4v6`; `None` leaves the system's default.
    pub v6only: Option<bool>,
    /// Mode of a unix socket.
    pub mode: Option<u32>,
    /// Owner of a unix socket: a name or a number.
    pub user: Option<&'a str>,
    /// Group of a unix socket: a name or a number.
    pub group: Option<&'a str>,
}

/// Who makes listening sockets: this process, or a privileged parent on its behalf.
pub trait Sockets {
    /// A listening, non-blocking, close-on-exec socket.
    fn listen(&self, wanted: Wanted<'_>) -> io::Result<OwnedFd>;
}

/// Sockets made here and now.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemSockets;

impl Sockets for SystemSockets {
    fn listen(&self, wanted: Wanted<'_>) -> io::Result<OwnedFd> {
        listen_system(wanted, false)
    }
}

/// The same for a process that replaces another one: a unix socket takes the place of one that is alive.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplacingSockets;

impl Sockets for ReplacingSockets {
    fn listen(&self, wanted: Wanted<'_>) -> io::Result<OwnedFd> {
        listen_system(wanted, true)
    }
}

fn listen_system(wanted: Wanted<'_>, replace: bool) -> io::Result<OwnedFd> {
    let backlog = wanted.backlog.min(i32::MAX as u32) as i32;
    let socket = match wanted.address {
        BindAddress::Inet(host, port) => listen_inet(*host, *port, wanted.v6only)?,
        BindAddress::Unix(path) => return listen_unix(path, wanted, backlog, replace),
        BindAddress::Abstract(name) => {
            let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&abstract_address(name)?)?;
            socket
        }
        BindAddress::Fd(number) => inherited(*number)?,
    };
    if !socket.is_listener()? {
        socket.listen(backlog)?;
    }
    // Accepted connections inherit it; what is not TCP refuses it.
    let _ = socket.set_tcp_nodelay(true);
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Sets what a `bind` line says of its TCP sockets, where it says something: once they are there, whoever made them.
fn set_up(socket: &OwnedFd, bind: &Bind, backlog: u32) -> io::Result<()> {
    let BindTcp { interface, mss, user_timeout, defer_accept, fast_open } = &bind.tcp;
    let raw = SockRef::from(socket);
    if let Some(interface) = interface {
        raw.bind_device(Some(interface.as_bytes()))?;
    }
    if let Some(mss) = mss {
        raw.set_tcp_mss(*mss)?;
    }
    if user_timeout.is_some() {
        raw.set_tcp_user_timeout(*user_timeout)?;
    }
    if *defer_accept {
        set_tcp(socket, libc::TCP_DEFER_ACCEPT, 1)?;
    }
    if *fast_open {
        set_tcp(socket, libc::TCP_FASTOPEN, backlog.min(i32::MAX as u32) as i32)?;
    }
    Ok(())
}

fn set_tcp(socket: &OwnedFd, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let (fd, from) = (socket.as_raw_fd(), std::ptr::from_ref(&value).cast());
    // SAFETY: the descriptor is the socket's; the kernel reads the integer's size.
    match unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, name, from, size_of_val(&value) as libc::socklen_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn listen_inet(host: IpAddr, port: u16, v6only: Option<bool>) -> io::Result<RawSocket> {
    let address = SocketAddr::new(host, port);
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    // A kernel without it still serves one worker; the second worker's bind then says what is wrong.
    let _ = socket.set_reuse_port(true);
    if let (true, Some(only)) = (address.is_ipv6(), v6only) {
        socket.set_only_v6(only)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A unix socket appears under a temporary name with its final owner and mode, then takes the place of the old one in
/// one step, so that no client ever meets a missing or a wrongly owned socket.
fn listen_unix(path: &std::path::Path, wanted: Wanted<'_>, backlog: i32, replace: bool) -> io::Result<OwnedFd> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = std::path::PathBuf::from(temporary);
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if !replace && path.exists() && !is_stale(path) {
        return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
    }
    let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(&temporary)?)?;
    let set_up = || -> io::Result<()> {
        if let Some(mode) = wanted.mode {
            std::fs::set_permissions(&temporary, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        }
        let user = wanted.user.map(user_id).transpose()?;
        let group = wanted.group.map(group_id).transpose()?;
        if user.is_some() || group.is_some() {
            std::os::unix::fs::chown(&temporary, user, group)?;
        }
        socket.listen(backlog)?;
        socket.set_nonblocking(true)?;
        std::fs::rename(&temporary, path)
    };
    if let Err(error) = set_up() {
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    Ok(socket.into())
}

/// Removes the file of a unix socket that nobody listens on any more; one that is alive, or no socket, stays.
pub fn remove_stale(path: &std::path::Path) {
    if is_stale(path) {
        // Who may not remove it leaves it, for the next process to replace.
        let _ = std::fs::remove_file(path);
    }
}

/// A socket file whose owner has gone refuses connections; anything that is no socket is never stale.
fn is_stale(path: &std::path::Path) -> bool {
    let Ok(address) = SockAddr::unix(path) else { return false };
    let Ok(probe) = RawSocket::new(Domain::UNIX, Type::STREAM, None) else { return false };
    if probe.set_nonblocking(true).is_err() {
        return false;
    }
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()));
    is_socket && matches!(probe.connect(&address), Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED))
}

fn inherited(number: i32) -> io::Result<RawSocket> {
    // SAFETY: `fcntl` with a descriptor that isn't open fails with EBADF and touches no memory.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `copy` was made just now, so nobody else owns it.
    Ok(RawSocket::from(unsafe { OwnedFd::from_raw_fd(copy) }))
}

/// The number of a user, who is named or numbered. Reads the system's files, so it is called before threads exist.
pub fn user_id(name: &str) -> io::Result<u32> {
    look_up(name, "user", |name| {
        // SAFETY: `name` is a C string; the result is read at once, before threads exist that could look up another.
        unsafe { libc::getpwnam(name.as_ptr()).as_ref().map(|entry| entry.pw_uid) }
    })
}

/// The number of a group, as [`user_id`].
pub fn group_id(name: &str) -> io::Result<u32> {
    look_up(name, "group", |name| {
        // SAFETY: `name` is a C string; the result is read at once, before threads exist that could look up another.
        unsafe { libc::getgrnam(name.as_ptr()).as_ref().map(|entry| entry.gr_gid) }
    })
}

fn look_up(name: &str, what: &str, find: impl Fn(&std::ffi::CStr) -> Option<u32>) -> io::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = std::ffi::CString::new(name).ok().and_then(|name| find(&name));
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no {what} '{name}'")))
}

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
    pub proxy: Arc<ProxyRun>,
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
        let mut id = 0;
        for (index, bind) in proxy.config.binds.iter().enumerate() {
            id = bind.id.map_or(id, |id| id - 1);
            for address in &bind.addresses {
                id += 1;
                let key = key_of(bind, address, &mut seen);
                let old = before.iter().find(|listener| listener.key == key && !listener.sockets.lock().is_empty());
                match bind_address(running, proxy, (index, id, key), address, old, sockets) {
                    Ok(listener) => bound.push(Arc::new(listener)),
                    Err(error) => errors.push(BindError::new(bind, &proxy.config.name, address, error)),
                }
            }
        }
    }
    if errors.is_empty() { Ok(bound) } else { Err(errors) }
}

/// Listens on one address of a `bind` line: a socket for each worker where the address allows it, otherwise one.
pub fn listen(bind: &Bind, address: &BindAddress, workers: usize, maker: &dyn Sockets) -> io::Result<Vec<OwnedFd>> {
    listen_for(bind, address, bind.backlog.or(bind.maxconn), workers, maker)
}

fn listen_for(
    bind: &Bind,
    address: &BindAddress,
    backlog: Option<u32>,
    workers: usize,
    maker: &dyn Sockets,
) -> io::Result<Vec<OwnedFd>> {
    let mut wanted = Wanted {
        address,
        backlog: backlog.unwrap_or(DEFAULT_BACKLOG),
        v6only: bind.v6only,
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
        None => listen_for(bind, address, backlog, running.process.workers.len(), maker)?
            .into_iter()
            .map(Arc::new)
            .collect(),
    };
    let local = SockRef::from(&*sockets[0]).local_addr()?.as_socket();
    Ok(Listener {
        proxy: proxy.clone(),
        process: running.process.clone(),
        bind: index,
        id,
        key,
        generation: running.generation,
        sessions: old.map_or_else(|| Arc::new(Limit::new(bind.maxconn)), |old| old.sessions.clone()),
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
    let Some(socket) = listener.socket(worker.index) else { return Ok(()) };
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
                    listener.process.sessions.room().await;
                    continue;
                }
                Err(Full::Frontend) => {
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
                        if server::shed_idle(&worker.running.proxies) > 0 {
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
        let mut frontend = listener.proxy.frontend.gate.subscribe();
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
    let least = (0..process.workers.len()).min_by_key(|index| load(*index)).unwrap_or(worker.index);
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

    fn wanted(address: &BindAddress) -> Wanted<'_> {
        Wanted { address, backlog: 16, v6only: None, mode: None, user: None, group: None }
    }

    #[test]
    fn an_address_in_use_is_said_in_the_systems_words() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = BindAddress::Inet(taken.local_addr().unwrap().ip(), taken.local_addr().unwrap().port());
        let error = SystemSockets.listen(wanted(&address)).unwrap_err();
        let at = Position { file: "a.cfg".into(), line: 7, column: 5 };
        let text = BindError { at, proxy: "www".into(), address: DisplayAddress(&address).to_string(), error };
        let expected = format!("a.cfg:7: 'www': cannot bind {} (Address already in use)", taken.local_addr().unwrap());
        assert_eq!(text.to_string(), expected);
    }

    #[test]
    fn a_unix_socket_gets_its_mode_replaces_a_stale_one_and_spares_a_living_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let address = BindAddress::Unix(path.clone());
        let first = SystemSockets.listen(Wanted { mode: Some(0o600), ..wanted(&address) }).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        let error = SystemSockets.listen(wanted(&address)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EADDRINUSE));
        drop(first);
        SystemSockets.listen(wanted(&address)).unwrap();
    }

    #[test]
    fn an_inherited_socket_may_listen_already() {
        let parent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = SystemSockets.listen(wanted(&BindAddress::Fd(parent.as_raw_fd()))).unwrap();
        assert_eq!(SockRef::from(&fd).local_addr().unwrap().as_socket(), parent.local_addr().ok());
        assert!(SystemSockets.listen(wanted(&BindAddress::Fd(999_999))).is_err());
    }
}
