//! A client connection from its acceptance to its end.
//!
//! A waiting session is a task of at most 512 bytes (a test measures it): the socket, one timer, the client's identity.
//! It gets a buffer when the socket is readable and a stream when bytes have arrived; the stream's own future is boxed
//! and lives for one request. In TCP mode the session is one stream from the start.
//!
//! A head that arrives slowly occupies only the session's buffer. `timeout http-request` covers the time from the
//! acceptance, or from the head's first byte, to its last; `timeout http-keep-alive` applies between two requests.

mod handshake;
pub(crate) mod run;

use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluicegate_config::model::Mode;
use sluicegate_transport::{Buffer, Socket, Timer};

use crate::listener::{Accepted, Listener, Slots};
use crate::process::Phase;
use crate::running::ProxyRun;
use crate::server;
use crate::site::Site;
use crate::stream::{Active, Client, Fault, Invalid};
use crate::worker::{SessionPlace, Worker};

/// The limits of time and bytes for data that a client sends after an early response, before the connection is closed.
const DRAIN_TIME: Duration = Duration::from_secs(2);
const DRAIN_BYTES: usize = 4 * 1024 * 1024;

/// A client connection.
pub(crate) struct Session {
    pub(crate) socket: Socket,
    pub(crate) input: Buffer,
    pub(crate) timer: Timer,
    /// What its streams share.
    pub(crate) client: Rc<Client>,
    /// The client has sent its FIN; what is in `input` is all there will be.
    pub(crate) ended: bool,
    place: SessionPlace,
    slots: Slots,
}

impl Session {
    /// Registers an accepted connection with this worker.
    pub(crate) fn new(worker: &Rc<Worker>, accepted: Accepted) -> io::Result<Session> {
        let Accepted { fd, peer, slots } = accepted;
        let socket = Socket::from_fd(fd, slots.listener().is_tcp)?;
        let ends = (peer, socket.local_addr());
        let place = worker.register_session();
        let client = Client::new(place.number(), slots.listener().clone(), socket.fd().as_raw_fd(), ends);
        Ok(Session {
            socket,
            input: Buffer::default(),
            timer: Timer::default(),
            client: Rc::new(client),
            ended: false,
            place,
            slots,
        })
    }

    /// The worker.
    pub(crate) fn worker(&self) -> &Rc<Worker> {
        self.place.worker()
    }

    /// Keeps what is in the buffer as the frontend's last invalid request.
    pub(crate) fn capture(&self, fault: Fault) {
        let worker = self.worker();
        let event = worker.running.process.next_invalid();
        let at = worker.wall_clock(Instant::now());
        let mut invalid = Invalid::new(event, at, self.input.data(), fault, true);
        invalid.source = self.client.ends().0;
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

    /// A stream of this connection.
    pub(crate) fn new_stream(&self) -> Active {
        Active::take(self.worker(), &self.client, self.frontend())
    }

    /// Returns the listener that accepted it.
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
        // An empty buffer goes back to the free list.
        self.place.worker().buffers.reclaim(&mut self.input);
        // There are no streams that share it.
        let Some(client) = Rc::get_mut(&mut self.client) else { return };
        client.follow(listener.clone());
        self.slots.follow(listener);
        self.place.follow(worker);
    }

    /// Closes the server connections that only this session may use.
    fn forget_own(&self) {
        let worker = self.worker();
        server::forget_own(&worker.running.unshared, worker.index, self.place());
    }

    /// Reads available data, compacting the buffer if there is no room. 0 is the client's end.
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

    /// Replaces the client's data for the server by these bytes.
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

    /// Polls a client that waits for its response: data that it sends meanwhile is kept for later. Ready when it has
    /// disconnected; with `half` also when it has ended its side.
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
