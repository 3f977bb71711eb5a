//! A client connection from its acceptance to its end.
//!
//! A session that waits is a task of at most 512 bytes (a test measures it): the socket, one timer, who the client is.
//! It takes a buffer when the socket is readable and a stream when bytes have come; the stream's own future is boxed
//! and lives for one request. In TCP mode the session is one stream from the start.
//!
//! A head that comes slowly occupies the session's buffer alone. `timeout http-request` runs from the acceptance or
//! from the head's first byte until its last; between two requests `timeout http-keep-alive` does.

mod handshake;
pub(crate) mod run;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use sluicegate_config::model::{Mode, ProxyId};
use sluicegate_transport::{Buffer, Socket, Timer};

use crate::listener::{Accepted, Listener, Slots};
use crate::process::Phase;
use crate::proxied::Proxied;
use crate::running::ProxyRun;
use crate::sample::VarMap;
use crate::server;
use crate::site::Site;
use crate::stick::Tracked;
use crate::stream::{Connection, Fault, Invalid};
use crate::worker::{SessionPlace, Worker};

/// How long, and how much, a client that was answered early may go on sending before it is closed.
const DRAIN_TIME: Duration = Duration::from_secs(2);
const DRAIN_BYTES: usize = 4 * 1024 * 1024;

/// A client connection.
pub(crate) struct Session {
    pub(crate) socket: Socket,
    pub(crate) input: Buffer,
    pub(crate) timer: Timer,
    /// `sess.` variables between two streams.
    pub(crate) variables: VarMap,
    /// What its rules track.
    pub(crate) tracked: Tracked,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) local: Option<SocketAddr>,
    /// Its own addresses and what its PROXY protocol header said, where `peer` and `local` are others: those of the header,
    /// or those that `tcp-request session` rules set.
    pub(crate) proxied: Option<Rc<Proxied>>,
    pub(crate) accepted: Instant,
    /// When something last moved, as far as a clock was read for it: an idle connection is waited for since then.
    pub(crate) last_active: Instant,
    /// Requests whose head was complete.
    pub(crate) requests: u32,
    /// The server of the last one.
    pub(crate) last_server: LastServer,
    /// The client has sent its FIN; what is in `input` is all there will be.
    pub(crate) ended: bool,
    place: SessionPlace,
    slots: Slots,
}

/// A backend and the place of a server in it, twelve bits each: there is no more room in an idle session. Who is beyond
/// is not remembered.
#[derive(Clone, Copy)]
pub(crate) struct LastServer([u8; 3]);

impl LastServer {
    const NONE: LastServer = LastServer([0xff; 3]);
    const MAX: usize = 0xffe;

    pub(crate) fn new(backend: ProxyId, server: usize) -> LastServer {
        let backend = backend.0 as usize;
        if backend > LastServer::MAX || server > LastServer::MAX {
            return LastServer::NONE;
        }
        let [.., high, middle, low] = (backend << 12 | server).to_be_bytes();
        LastServer([high, middle, low])
    }

    /// The server's place, if it is one of this backend's.
    pub(crate) fn in_backend(self, wanted: ProxyId) -> Option<usize> {
        let [high, middle, low] = self.0;
        let both = u32::from_be_bytes([0, high, middle, low]);
        (both >> 12 == wanted.0 && self.0 != LastServer::NONE.0).then_some((both & 0xfff) as usize)
    }
}

impl Session {
    /// Registers an accepted connection with this worker.
    pub(crate) fn new(worker: &Rc<Worker>, accepted: Accepted) -> io::Result<Session> {
        let Accepted { fd, peer, slots } = accepted;
        let socket = Socket::from_fd(fd, slots.listener().is_tcp)?;
        let local = socket.local_addr();
        let accepted = Instant::now();
        Ok(Session {
            socket,
            input: Buffer::default(),
            timer: Timer::default(),
            variables: VarMap::default(),
            tracked: Tracked::default(),
            peer,
            local,
            proxied: None,
            accepted,
            last_active: accepted,
            requests: 0,
            last_server: LastServer::NONE,
            ended: false,
            place: worker.register_session(),
            slots,
        })
    }

    /// The worker.
    pub(crate) fn worker(&self) -> &Rc<Worker> {
        self.place.worker()
    }

    /// When it was accepted, by the wall clock.
    pub(crate) fn accepted_at(&self) -> SystemTime {
        self.worker().wall_clock(self.accepted)
    }

    /// Keeps what is in the buffer as the frontend's last invalid request.
    pub(crate) fn capture(&self, fault: Fault) {
        let worker = self.worker();
        let event = worker.running.process.next_invalid();
        let at = worker.wall_clock(Instant::now());
        let mut invalid = Invalid::new(event, at, self.input.data(), fault, true);
        invalid.source = self.peer;
        self.frontend().frontend.invalid.set(invalid);
    }

    /// Its place among the worker's sessions.
    pub(crate) fn place(&self) -> u32 {
        self.place.number()
    }

    /// The frontend.
    pub(crate) fn frontend(&self) -> &Arc<Site> {
        &self.slots.listener().proxy
    }

    /// The frontend with its code.
    fn run_of_frontend(&self) -> &ProxyRun {
        &self.worker().running.proxies[self.frontend().id.0 as usize]
    }

    /// The connection as the context of its next stream needs it.
    pub(crate) fn connection(&self) -> Connection<'_> {
        Connection {
            id: self.worker().next_stream_id(),
            session: self.place(),
            listener: self.listener(),
            unique_id: self.run_of_frontend().log.unique_id(),
            scripts: &self.worker().scripts,
            socket: &self.socket,
            peer: self.peer,
            local: self.local,
            proxied: &self.proxied,
            accepted: self.accepted,
            accepted_at: self.accepted_at(),
        }
    }

    /// Where it was accepted.
    pub(crate) fn listener(&self) -> &Arc<Listener> {
        self.slots.listener()
    }

    /// The process is stopping, or nothing listens to the address any more: this connection should carry no further
    /// request.
    pub(crate) fn is_stopping(&self) -> bool {
        self.worker().phase() != Phase::Serving || self.listener().is_removed()
    }

    /// Between two requests: goes on under the newest configuration, unless that has no such listener any more.
    fn follow(&mut self) {
        let Some(worker) = self.worker().newer() else { return };
        let Some(listener) = self.listener().successor(worker.running.listeners()) else { return };
        if listener.proxy.config.mode != Mode::Http {
            return;
        }
        self.forget_own();
        // An empty buffer belongs to nobody.
        self.place.worker().buffers.reclaim(&mut self.input);
        // Servers may have other places there.
        self.last_server = LastServer::NONE;
        self.slots.follow(listener);
        self.place.follow(worker);
    }

    /// Closes the server connections that only this session may use.
    fn forget_own(&self) {
        let worker = self.worker();
        server::forget_own(&worker.running.unshared, worker.index, self.place());
    }

    /// Reads what has come, compacting if there is no room behind it. 0 is the client's end.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // Without readiness no buffer is taken.
        std::task::ready!(self.socket.poll_read_ready(cx))?;
        let worker = self.place.worker();
        worker.buffers.equip(&mut self.input);
        if self.input.spare().is_empty() {
            self.input.compact();
        }
        if self.input.spare().is_empty() {
            return Poll::Pending;
        }
        let result = self.socket.poll_read(cx, self.input.spare());
        match result {
            Poll::Ready(Ok(0)) => self.ended = true,
            Poll::Ready(Ok(count)) => self.input.filled(count),
            _ => {}
        }
        worker.buffers.retire(&mut self.input);
        result
    }

    /// Holds these bytes for the server instead of what the client sent.
    pub(crate) fn replace_input(&mut self, bytes: &[u8]) {
        let worker = self.place.worker();
        worker.buffers.equip(&mut self.input);
        self.input.replace(bytes);
        worker.buffers.retire(&mut self.input);
    }

    /// There is no room for more before something is consumed.
    pub(crate) fn is_full(&self) -> bool {
        self.input.len() == self.worker().buffers.size()
    }

    /// Looks after a client that is waiting for its answer: what it sends meanwhile is kept for later. Ready when it
    /// is gone; with `half` also when it has ended its side.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>, half: bool) -> Poll<()> {
        loop {
            if self.ended {
                return if half { Poll::Ready(()) } else { Poll::Pending };
            }
            match self.poll_fill(cx) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.forget_own();
        let worker = self.place.worker().clone();
        worker.buffers.reclaim(&mut self.input);
    }
}

/// Ends a connection whose client may still be sending: its FIN is awaited, within limits, so that the kernel does not
/// reset the connection under an answer that was not read yet.
pub(crate) async fn drain(session: &mut Session) {
    session.socket.shutdown_write();
    if session.ended {
        return;
    }
    session.timer.set(Some(Instant::now() + DRAIN_TIME));
    let mut room = DRAIN_BYTES;
    poll_fn(|cx| {
        loop {
            session.input.consume(session.input.len());
            match session.poll_fill(cx) {
                Poll::Ready(Ok(count)) if count > 0 && count <= room => room -= count,
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return session.timer.poll(cx),
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_server_is_known_in_its_backend_alone() {
        let last = LastServer::new(ProxyId(7), 4094);
        assert_eq!((last.in_backend(ProxyId(7)), last.in_backend(ProxyId(8))), (Some(4094), None));
        let none = LastServer::NONE;
        assert!((0..=0xfff).all(|backend| none.in_backend(ProxyId(backend)).is_none()));
        for (backend, server) in [(0xfff, 0), (0, 0xfff), (u32::MAX, 1), (1, usize::MAX)] {
            let beyond = LastServer::new(ProxyId(backend), server);
            assert_eq!(beyond.in_backend(ProxyId(backend & 0xffe)), None, "{backend} {server}");
        }
    }
}
