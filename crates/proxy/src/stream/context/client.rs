//! A client's connection as all of its streams see it.
//!
//! It is shared and not lent: HTTP/2 has several streams of one connection at once, each of which reads and changes the
//! session's variables, tracked counters and counts. The client lives on its connection's thread, so cells do.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use sluicegate_config::model::{Proto, ProxyId};
use sluicegate_tls::hello::Hello;
use sluicegate_tls::session::Facts;
use sluicegate_tls::verify::Verdict;
use sluicegate_tls::x509::Certificate;

use crate::hash::avalanche;
use crate::listener::Listener;
use crate::proxied::Proxied;
use crate::sample::SessionVariables;
use crate::stick::Tracked;
use crate::tls::TlsPlace;

/// The two ends of a client's connection; `None` behind a unix socket.
pub(crate) type Ends = (Option<SocketAddr>, Option<SocketAddr>);

/// The facts of a client's connection of HTTP/2.
pub(crate) trait Http2Facts {
    /// Returns the number of its open streams.
    fn streams(&self) -> u32;
    /// Returns the number of streams that may be open, 0: any.
    fn limit(&self) -> u32;
    /// Returns the number of anomalies so far.
    fn glitches(&self) -> u32;
    /// Returns the code with which the client has reset a stream that still runs.
    fn reset_code(&self, stream: u32) -> Option<u32>;
}

/// TLS of a client's connection.
#[derive(Debug, Default)]
pub(crate) struct ClientTls {
    /// The facts of a handshake that has succeeded.
    pub(crate) facts: Option<Facts>,
    /// The name that the client of a failed handshake asked for.
    pub(crate) sni: Option<Box<str>>,
    /// The certificate of a client that was refused for its sake.
    pub(crate) refused: Option<Certificate>,
    /// The version and the suite of a handshake that failed.
    pub(crate) reached: (&'static str, &'static str),
    /// OpenSSL's number of the error that ended the handshake; 0: none.
    pub(crate) error: u32,
    /// The verdict on the client's certificate where the handshake failed.
    pub(crate) verdict: Verdict,
    /// The client's hello, if it is kept (`tune.ssl.capture-buffer-size`).
    pub(crate) hello: Option<Hello>,
    /// The connection counts as one of TLS until this is dropped.
    pub(crate) place: Option<TlsPlace>,
}

impl ClientTls {
    /// Returns the client's certificate, also one that was refused.
    pub(crate) fn certificate(&self) -> Option<&Certificate> {
        match &self.facts {
            Some(facts) => Some(&facts.peer.as_ref()?.leaf),
            None => self.refused.as_ref(),
        }
    }

    /// Returns the version: `ssl_fc_protocol`, `%sslv`.
    pub(crate) fn protocol(&self) -> &'static str {
        self.facts.as_ref().map_or(self.reached.0, Facts::protocol)
    }

    /// Returns OpenSSL's name of the suite: `ssl_fc_cipher`, `%sslc`.
    pub(crate) fn cipher(&self) -> &'static str {
        self.facts.as_ref().map_or(self.reached.1, Facts::cipher)
    }
}

/// A client's connection.
pub struct Client {
    /// The index of its session among the worker's.
    pub(crate) session: u32,
    /// The listener that accepted it; `None` in tests without a session.
    pub(crate) listener: Option<Arc<Listener>>,
    /// The descriptor of its socket, open as long as the connection has streams.
    pub(crate) fd: Option<RawFd>,
    ends: Cell<Ends>,
    proxied: OnceCell<Proxied>,
    tls: OnceCell<Box<ClientTls>>,
    /// `sess.` variables.
    pub(crate) variables: SessionVariables,
    /// The counters tracked by the session's rules.
    pub(crate) tracked: RefCell<Tracked>,
    /// The time of its acceptance.
    pub(crate) accepted: Instant,
    /// The same in wall-clock time, once a stream has needed it.
    accepted_at: OnceCell<SystemTime>,
    last_active: Cell<Instant>,
    requests: Cell<u32>,
    /// The time that its handshakes took, whole milliseconds.
    handshake: Cell<u32>,
    last_server: Cell<LastServer>,
    /// Whether a server authenticates connections of this client, so that some are reserved for it.
    has_reserved: Cell<bool>,
    http2: OnceCell<Rc<dyn Http2Facts>>,
    /// The protocol of `switch-mode`.
    switched_to: Cell<Option<Proto>>,
}

impl Client {
    /// Returns a connection that was accepted now.
    pub(crate) fn new(session: u32, listener: Arc<Listener>, fd: RawFd, ends: Ends) -> Client {
        Client { session, listener: Some(listener), fd: Some(fd), ends: Cell::new(ends), ..Client::unconnected() }
    }

    /// Returns the protocol that `switch-mode`, or else the `bind` line, has set.
    pub(crate) fn proto(&self) -> Option<Proto> {
        let of_line = || {
            let listener = self.listener.as_ref()?;
            listener.proxy.config.binds.get(listener.bind)?.proto
        };
        self.switched_to.get().or_else(of_line)
    }

    /// Returns the connection's place in a time that all connections share: a constant number from 0 to 1, spread evenly
    /// over connections. `start` is a time before their acceptance.
    pub(crate) fn share(&self, start: Instant) -> f64 {
        let passed = self.accepted.saturating_duration_since(start).as_nanos() as u32;
        f64::from(avalanche(passed ^ avalanche(self.session))) / f64::from(u32::MAX)
    }

    /// Returns the wall-clock time of its acceptance, which `convert` derives from the other clock's once.
    pub(crate) fn accepted_at(&self, convert: impl FnOnce(Instant) -> SystemTime) -> SystemTime {
        *self.accepted_at.get_or_init(|| convert(self.accepted))
    }

    /// Sets the protocol in place of that of the `bind` line.
    pub(crate) fn set_proto(&self, proto: Option<Proto>) {
        self.switched_to.set(proto);
    }

    /// Returns the client of a stream without a session.
    pub(crate) fn unconnected() -> Client {
        let now = Instant::now();
        Client {
            session: 0,
            listener: None,
            fd: None,
            ends: Cell::new((None, None)),
            proxied: OnceCell::new(),
            tls: OnceCell::new(),
            variables: SessionVariables::default(),
            tracked: RefCell::default(),
            accepted: now,
            accepted_at: OnceCell::new(),
            last_active: Cell::new(now),
            requests: Cell::new(0),
            handshake: Cell::new(0),
            last_server: Cell::new(LastServer::NONE),
            has_reserved: Cell::new(false),
            http2: OnceCell::new(),
            switched_to: Cell::new(None),
        }
    }

    /// Sets the source of facts of a connection that speaks HTTP/2.
    pub(crate) fn set_http2(&self, facts: Rc<dyn Http2Facts>) {
        // A connection begins to speak HTTP/2 once.
        let _ = self.http2.set(facts);
    }

    /// Returns the facts of a connection that speaks HTTP/2.
    pub(crate) fn http2(&self) -> Option<&dyn Http2Facts> {
        self.http2.get().map(|facts| &**facts)
    }

    /// Returns the client's address and the one that it connected to: those of its PROXY protocol header, or those that
    /// `tcp-request session` rules set, or the connection's own.
    pub(crate) fn ends(&self) -> Ends {
        self.ends.get()
    }

    /// Sets the addresses that its streams see. The first time that they differ from the connection's own, these are
    /// kept, with `proxied` about the header that said so.
    pub(crate) fn set_ends(&self, ends: Ends, proxied: Option<Proxied>) {
        if let Some(proxied) = proxied {
            // A header precedes all rules, and there is one.
            let _ = self.proxied.set(proxied);
        }
        self.ends.set(ends);
    }

    /// Returns the connection's own addresses and what its PROXY protocol header said, where its streams see other
    /// addresses.
    pub(crate) fn proxied(&self) -> Option<&Proxied> {
        self.proxied.get()
    }

    /// Sets what its TLS handshake has found.
    pub(crate) fn set_tls(&self, tls: ClientTls) {
        // There is one handshake.
        let _ = self.tls.set(Box::new(tls));
    }

    /// Returns what its TLS handshake has found.
    pub(crate) fn tls(&self) -> Option<&ClientTls> {
        self.tls.get().map(|tls| &**tls)
    }

    /// Returns the facts of its TLS connection.
    pub(crate) fn tls_facts(&self) -> Option<&Facts> {
        self.tls()?.facts.as_ref()
    }

    /// Returns the time of the last activity at which a clock was read: the start of the idle time of a connection.
    pub(crate) fn last_active(&self) -> Instant {
        self.last_active.get()
    }

    /// Records that something moved at `now`.
    pub(crate) fn set_last_active(&self, now: Instant) {
        self.last_active.set(now);
    }

    /// Returns the number of requests whose head was complete.
    pub(crate) fn requests(&self) -> u32 {
        self.requests.get()
    }

    /// Counts a request; returns its number, from 1.
    pub(crate) fn count_request(&self) -> u32 {
        let number = self.requests.get().saturating_add(1);
        self.requests.set(number);
        number
    }

    /// Returns the time that its handshakes took, whole milliseconds.
    pub(crate) fn handshake(&self) -> i64 {
        i64::from(self.handshake.get())
    }

    /// Records that its handshakes are done.
    pub(crate) fn end_handshakes(&self) {
        self.handshake.set(u32::try_from(self.accepted.elapsed().as_millis()).unwrap_or(u32::MAX));
    }

    /// Returns the server of its last request.
    pub(crate) fn last_server(&self) -> LastServer {
        self.last_server.get()
    }

    /// Remembers the server of its last request.
    pub(crate) fn set_last_server(&self, server: LastServer) {
        self.last_server.set(server);
    }

    /// Returns whether connections to servers are reserved for this client.
    pub(crate) fn has_reserved(&self) -> bool {
        self.has_reserved.get()
    }

    /// Remembers that a connection to a server is reserved for this client.
    pub(crate) fn set_reserved(&self) {
        self.has_reserved.set(true);
    }

    /// Assigns the connection to a listener of another configuration.
    pub(crate) fn follow(&mut self, listener: Arc<Listener>) {
        self.listener = Some(listener);
        // The new configuration may have the servers at other indexes.
        self.last_server.set(LastServer::NONE);
    }
}

/// A backend and the index of a server in it, twelve bits each. Larger numbers are not stored.
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

    /// Returns the server's index, if the server belongs to this backend.
    pub(crate) fn in_backend(self, wanted: ProxyId) -> Option<usize> {
        let [high, middle, low] = self.0;
        let both = u32::from_be_bytes([0, high, middle, low]);
        (both >> 12 == wanted.0 && self.0 != LastServer::NONE.0).then_some((both & 0xfff) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wall clock may be set while a connection has streams.
    #[test]
    fn the_time_of_acceptance_stays_the_same() {
        let client = Client::unconnected();
        let first = client.accepted_at(|_| SystemTime::UNIX_EPOCH);
        assert_eq!(client.accepted_at(|_| SystemTime::now()), first);
    }

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
