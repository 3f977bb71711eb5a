//! A client connection from its acceptance to its end.
//!
//! A waiting session is a task of at most 512 bytes (a test measures it): the socket, one timer, the client's identity.
//! It gets a buffer when the socket is readable and a stream when bytes have arrived; the stream's own future is boxed
//! and lives for one request. In TCP mode the session is one stream from the start.
//!
//! A head that arrives slowly occupies only the session's buffer. `timeout http-request` covers the time from the
//! acceptance, or from the head's first byte, to its last; `timeout http-keep-alive` applies between two requests.

mod attach;
mod h2;
mod handshake;
mod held;
pub(crate) mod run;
pub(crate) mod syslog;

use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use sluicegate_config::model::{Mode, Proto};
use sluicegate_transport::Socket;
use sluicegate_wire::http2::PREFACE;

use crate::listener::{Accepted, Listener, Slots};
use crate::log::{Events, Level, Source, Subject};
use crate::mux::h1;
use crate::running::ProxyRun;
use crate::server;
use crate::site::Site;
use crate::stream::{Active, Client, ClientTls};
use crate::worker::{SessionPlace, Worker};
use held::Held;

/// A client connection.
pub(crate) struct Session {
    /// Its connection, which is the client side of one stream at a time.
    pub(crate) front: Held<h1::Front>,
    /// State shared by its streams.
    pub(crate) client: Rc<Client>,
    place: SessionPlace,
    slots: Slots,
    /// The stream of a connection that began as TCP, until it becomes that of the first request.
    switched: Option<Box<Active>>,
}

impl Session {
    /// Registers an accepted connection with this worker.
    pub(crate) fn new(worker: &Rc<Worker>, accepted: Accepted) -> io::Result<Session> {
        let Accepted { fd, peer, slots } = accepted;
        let socket = Socket::from_fd(fd, slots.listener().is_tcp)?;
        let ends = (peer, socket.local_addr());
        let place = worker.register_session();
        let client = Client::new(place.number(), slots.listener().clone(), socket.fd().as_raw_fd(), ends);
        Ok(Session::begin(h1::Front::new(socket), client, place, slots))
    }

    /// Returns the session of a connection that this side has opened, to a server that sends requests.
    pub(crate) fn reversed(worker: &Rc<Worker>, mut front: h1::Front, slots: Slots) -> Session {
        let socket = front.socket();
        let (fd, ends) = (socket.fd().as_raw_fd(), (socket.peer_addr(), socket.local_addr()));
        let place = worker.register_session();
        let client = Client::new(place.number(), slots.listener().clone(), fd, ends);
        if let Some(tls) = front.tls() {
            client.set_tls(ClientTls { facts: tls.take_facts(None, None), ..ClientTls::default() });
        }
        Session::begin(front, client, place, slots)
    }

    #[inline]
    fn begin(front: h1::Front, client: Client, place: SessionPlace, slots: Slots) -> Session {
        let session = Session { front: Held::new(front), client: Rc::new(client), place, slots, switched: None };
        session.trace(Source::Session, (&["sess_new"], Level::State), || "new session".to_owned());
        session
    }

    /// Reports an event of the session, or of its connection, to the traces of the process.
    fn trace(&self, source: Source, events: Events, text: impl FnOnce() -> String) {
        let worker = self.worker();
        if worker.running.logger.is_traced(source) {
            let (frontend, session) = (Some(&*self.frontend().config.name), Some(self.place()));
            let listener = Some(self.listener().id);
            let subject = Subject { worker: worker.index, frontend, listener, session, ..Subject::default() };
            worker.running.logger.trace(source, events, &subject, |_| text());
        }
    }

    /// Ends the stream of a connection that began as TCP and has become none of HTTP/1.
    fn abandon_switched(&mut self) {
        if let Some(stream) = self.switched.take() {
            stream.abandon();
        }
    }

    /// Returns the worker.
    pub(crate) fn worker(&self) -> &Rc<Worker> {
        self.place.worker()
    }

    /// Returns the session's index among the worker's sessions.
    pub(crate) fn place(&self) -> u32 {
        self.place.number()
    }

    /// Returns the frontend.
    pub(crate) fn frontend(&self) -> &Arc<Site> {
        &self.slots.listener().proxy
    }

    /// Returns the frontend together with its compiled rules.
    fn run_of_frontend(&self) -> &ProxyRun {
        &self.worker().running.proxies[self.frontend().id.0 as usize]
    }

    /// Returns a new stream of this connection.
    pub(crate) fn new_stream(&self) -> Active {
        Active::take(self.worker(), &self.client, self.frontend())
    }

    /// Returns the listener that accepted this connection.
    pub(crate) fn listener(&self) -> &Arc<Listener> {
        self.slots.listener()
    }

    /// Returns the time from which this connection should carry no further request, because the process is stopping or
    /// nothing listens to the address any more.
    pub(crate) fn closing_time(&self) -> Option<Instant> {
        self.worker().closing_time(&self.client)
    }

    /// Like [`closing_time`](Self::closing_time), also if there is a newer configuration than the session's.
    fn renewal_time(&self) -> Option<Instant> {
        self.closing_time().into_iter().chain(self.worker().renewal_time(&self.client)).min()
    }

    /// Returns whether the connection speaks HTTP/2 by ALPN or by `proto h2`.
    fn speaks_h2(&self) -> bool {
        if let Some(alpn) = self.client.tls_facts().and_then(|facts| facts.alpn.as_deref()) {
            return alpn == b"h2";
        }
        self.client.proto() == Some(Proto::H2)
    }

    /// Returns whether the first bytes of a connection are those of HTTP/2, which any frontend of HTTP accepts unless
    /// `proto h1` or `option disable-h2-upgrade` forbids it.
    fn begins_h2(&self) -> bool {
        /// The part of the preface that looks like a request.
        const REQUEST_LEN: usize = 18;
        if self.frontend().config.options.disable_h2_upgrade || self.client.proto() == Some(Proto::H1) {
            return false;
        }
        self.client.requests() == 0 && self.front.input().starts_with(&PREFACE[..REQUEST_LEN])
    }

    /// Called between two requests: switches to the newest configuration, unless that no longer has this listener.
    fn follow(&mut self) {
        let Some(worker) = self.worker().newer() else { return };
        let Some(listener) = self.listener().successor(worker.running.listeners()) else { return };
        if listener.proxy.config.mode != Mode::Http {
            return;
        }
        // No stream shares the client state at this point.
        let Some(client) = Rc::get_mut(&mut self.client) else { return };
        client.follow(listener.clone());
        self.forget_own();
        // An empty buffer returns to the free list.
        self.front.give_back(&self.place.worker().buffers, true);
        self.slots.follow(listener);
        self.place.follow(worker);
    }

    /// Closes the server connections that only this session may use.
    fn forget_own(&self) {
        let worker = self.worker();
        server::forget_own(&worker.running.unshared, worker.index, self.place());
        if self.client.has_reserved() {
            let proxies = worker.running.proxies.iter();
            proxies.for_each(|proxy| server::forget_own(&proxy.servers, worker.index, self.place()));
        }
        worker.http2.forget(&server::own_label(worker.index, self.place()));
        worker.applications.forget(&server::own_label(worker.index, self.place()));
    }

    /// Ends the connection so that a client that may still be sending can read the response.
    async fn drain(&mut self) {
        self.front.drain(&self.place.worker().buffers).await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.trace(Source::Session, (&["sess_end"], Level::State), || "releasing session".to_owned());
        self.forget_own();
        if let Some(mut front) = self.front.take() {
            front.give_back(&self.place.worker().buffers, true);
        }
    }
}
