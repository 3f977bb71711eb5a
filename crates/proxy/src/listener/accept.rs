//! The loop that accepts connections on a listening socket.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluicegate_transport as transport;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::reverse;
use super::state::{Accepted, Full, Listener, Slots, Waits};
use crate::frontend::Gate;
use crate::process::{AcceptLoop, Phase};
use crate::server;
use crate::session::{run as session, syslog};
use crate::worker::Worker;

/// The maximum number of connections that one wake-up of a listener accepts before other tasks run.
const ACCEPTS_PER_WAKE: usize = 8;

/// The time for which a listener waits for a descriptor if no session ends.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Accepts the connections that the kernel has already completed on a socket about to be closed.
pub(crate) fn accept_rest(worker: &Rc<Worker>, listener: &Arc<Listener>, socket: &OwnedFd) {
    if listener.proxy.frontend.gate() != Gate::Open || listener.is_datagram() {
        return;
    }
    while let Ok(slots) = Slots::take(listener, worker.index) {
        let Ok((fd, peer)) = accept(listener, socket) else { return };
        slots.used();
        worker.figures().sessions.add(1);
        session::start(worker, Accepted { fd, peer, slots }, worker.index);
    }
}

/// Accepts on one socket until the process stops listening. Whenever the future is pending, every accepted connection
/// is already being served; so the future may be dropped at any time, and another loop can continue with the socket.
pub(crate) async fn accept_loop(worker: Rc<Worker>, listener: Arc<Listener>) -> io::Result<()> {
    if let Some(reverse) = listener.reverse.clone() {
        reverse::keep(worker, listener, reverse).await;
        return Ok(());
    }
    match listener.socket(worker.index) {
        Some(socket) if listener.is_datagram() => syslog::receive(worker, listener, socket).await,
        Some(socket) => accept_on(worker, listener, socket).await,
        None => Ok(()),
    }
}

/// Accepts on the socket of another worker while that one is stuck. Shared sockets do not need this.
pub(crate) async fn accept_for(worker: Rc<Worker>, listener: Arc<Listener>, of: usize) {
    /// The interval at which the other worker is checked.
    const LOOK: Duration = Duration::from_millis(100);
    let socket = {
        let sockets = listener.sockets.lock();
        sockets.get(of).filter(|_| sockets.len() > 1).cloned()
    };
    let Some(socket) = socket.filter(|_| !listener.is_datagram()) else { return };
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
    // Whether who passes connections is gone.
    let mut is_over = false;
    let mut socket = register(socket)?;
    let refuses_privileged = worker.running.config.global.refuses_privileged_ports;
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
            ready = socket.readable(), if !is_over => ready?,
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
            let paces = listener.paces();
            if let Err(pause) = paces.take() {
                drop(slots);
                let _waits = Waits::on(&listener);
                tokio::time::sleep(pause).await;
                continue;
            }
            let accepted = ready.try_io(|socket| accept(&listener, socket.get_ref()));
            if !matches!(accepted, Ok(Ok(_))) {
                paces.give();
            }
            match accepted {
                Err(_would_block) => break,
                Ok(Ok((_, Some(peer)))) if refuses_privileged && matches!(peer.port(), 1..1024) => drop(slots),
                Ok(Ok((fd, peer))) => {
                    slots.used();
                    dispatch(&worker, Accepted { fd, peer, slots });
                }
                Ok(Err(error)) if listener.is_passed && error.kind() == io::ErrorKind::UnexpectedEof => {
                    is_over = true;
                    break;
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
                    // Another worker has suspended the shared socket; this worker will be notified at once.
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
    // SAFETY: an `OwnedFd` keeps its descriptor open and unchanged until it is dropped, which cannot happen before the
    // `AsyncFd`, holding one of its owners, is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?)
}

/// The reasons for suspending a listener's socket: the process pauses, or its frontend does.
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

    /// Waits for a change. The senders live as long as the listener, so waiting cannot fail.
    async fn changed(&mut self) {
        tokio::select! {
            biased;
            _ = self.process.changed() => self.process.mark_changed(),
            _ = self.frontend.changed() => self.frontend.mark_changed(),
        }
    }

    /// Returns whether a change has already occurred.
    fn has_changed(&self) -> bool {
        self.process.has_changed().unwrap_or(true) || self.frontend.has_changed().unwrap_or(true)
    }

    /// Suspends listening until both have resumed; returns `false` once the frontend is shut down. Meanwhile the kernel
    /// refuses connections to a TCP port, or assigns them to another process that listens on it. A unix socket cannot
    /// be suspended, so its clients wait in the backlog, as in HAProxy.
    async fn wait(&mut self, listener: &Listener, socket: &OwnedFd, place: &mut AcceptLoop) -> io::Result<bool> {
        let raw = SockRef::from(socket);
        loop {
            let (paused, gate) = (*self.process.borrow_and_update(), *self.frontend.borrow_and_update());
            let open = !paused && gate == Gate::Open;
            if listener.is_tcp && open {
                raw.listen(listener.backlog)?;
            } else if listener.is_tcp {
                let _alone = listener.putting_aside.lock();
                // A shared socket is shut down through one worker's copy only: after a second shutdown it would, once
                // it listens again, accept connections that cannot be read from.
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

/// Passes the connection to a worker with clearly fewer sessions, or keeps it.
fn dispatch(worker: &Rc<Worker>, accepted: Accepted) {
    worker.figures().sessions.add(1);
    let process = &worker.running.process;
    let load = |index: usize| process.workers[index].load.load(Ordering::Relaxed);
    let own = load(worker.index);
    let turns = |index: &usize| !process.workers[*index].stuck.load(Ordering::Relaxed);
    let least = (0..process.workers.len()).filter(turns).min_by_key(|index| load(*index)).unwrap_or(worker.index);
    // A difference of one or two is noise; beyond it an eighth of the load is worth a wake-up of another thread.
    let lighter = own > load(least) + 1 + load(least) / 8;
    session::start(worker, accepted, if lighter { least } else { worker.index });
}

fn accept(listener: &Listener, socket: &OwnedFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    if listener.is_passed {
        return Ok((transport::receive_connection(socket)?, None));
    }
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: `storage` is as large as `len` says and outlives the call.
    let fd = unsafe { libc::accept4(socket.as_fd().as_raw_fd(), storage.as_mut_ptr().cast(), &mut len, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made `fd` for this process, so it has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all-zero bytes are a valid sockaddr_storage, and the kernel wrote a valid address over its start.
    Ok((fd, socket_addr(unsafe { storage.assume_init_ref() })))
}

pub(crate) fn socket_addr(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let pointer: *const libc::sockaddr_storage = storage;
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family determines the form of the address in the storage, which is large and aligned enough
            // for all of them.
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
