//! Connecting: first attempts, TLS handshakes, retries, giving up, and reconnecting.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use socket2::{Socket, Type};

use super::super::plan::Reconnects;
use super::super::protocol::Protocol;
use super::super::stats::{ConnectFault, RequestFault, Stats};
use super::super::tls::Parameters;
use super::super::transport::{End, Received, Transport};
use super::connection::{State, connect_fault, token};
use super::{NEVER, Reactor, Told};

/// First and longest pause before another attempt to connect, ns.
const PAUSE: (u64, u64) = (10_000_000, 1_000_000_000);

/// The number of attempts after which a connection is given up if the server was never reached.
pub(super) const ATTEMPTS_UNREACHED: u32 = 3;

/// The number of attempts after which a connection is given up if the run ends only by its number of requests.
const ATTEMPTS_COUNTED: u32 = 12;

impl<P: Protocol> Reactor<'_, P> {
    pub(super) fn connect(&mut self, id: usize, now: u64) {
        let connection = &mut self.connections[id];
        connection.connect_began = now;
        connection.generation = connection.generation.wrapping_add(1);
        connection.session = self.protocol.renewed(&mut connection.session);
        connection.partial.clear();
        connection.carried = 0;
        connection.out.clear();
        connection.written = 0;
        let token = token(id, connection.generation);
        let address = &self.addresses[id % self.addresses.len()];
        let socket = match Socket::new(address.domain(), Type::STREAM.nonblocking().cloexec(), None) {
            Ok(socket) => socket,
            Err(error) => return self.connect_failed(id, now, connect_fault(&error), error.to_string()),
        };
        if !address.is_unix() {
            // Requests are written whole; waiting for more would only delay them.
            let _ = socket.set_tcp_nodelay(true);
        }
        let is_made = match socket.connect(address) {
            Ok(()) => true,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INPROGRESS) => false,
            Err(error) => return self.connect_failed(id, now, connect_fault(&error), error.to_string()),
        };
        if let Err(error) = self.poller.add(&socket, token, !is_made) {
            return self.connect_failed(id, now, ConnectFault::Resources, error.to_string());
        }
        let connection = &mut self.connections[id];
        connection.transport = Some(Transport::Plain(socket));
        connection.watches_write = !is_made;
        connection.state = State::Connecting;
        if is_made {
            self.connected(id, self.shared.now());
        } else {
            self.set_deadline(id, now.saturating_add(self.load.connect_timeout_ns));
        }
    }

    pub(super) fn connected(&mut self, id: usize, now: u64) {
        let took = now.saturating_sub(self.connections[id].connect_began).max(1);
        let is_again = self.connections[id].was_open;
        let stats = self.stats_of_connection(now);
        stats.connected += 1;
        stats.reconnected += u64::from(is_again);
        stats.connect.saturating_record(took);
        if self.load.traces {
            self.trace(id, "connected");
        }
        if self.tls.is_some() { self.start_handshake(id, now) } else { self.established(id, now) }
    }

    /// Returns the statistics that count an event of connecting. Connections that are made before the first request
    /// are counted for the run as a whole.
    fn stats_of_connection(&mut self, now: u64) -> &mut Stats {
        if self.load.keep_alive { &mut self.stats } else { self.stats_at(now) }
    }

    fn start_handshake(&mut self, id: usize, now: u64) {
        let Some(tls) = &self.tls else { return };
        let connection = &mut self.connections[id];
        let Some(transport) = connection.transport.take() else { return };
        match tls.connection(id) {
            Ok(tls) => connection.transport = Some(transport.with_tls(tls)),
            Err(error) => return self.connect_failed(id, now, ConnectFault::Tls, error.to_string()),
        }
        connection.state = State::Handshaking;
        // One limit for the connection and its handshake.
        let deadline = connection.connect_began.saturating_add(self.load.connect_timeout_ns);
        connection.connect_began = now;
        self.set_deadline(id, deadline);
        self.flush(id);
    }

    /// Processes messages of the server's handshake.
    pub(super) fn handshake(&mut self, id: usize) {
        let connection = &mut self.connections[id];
        let Some(transport) = &mut connection.transport else { return };
        let mut buffer = std::mem::take(&mut self.buffer);
        let outcome = transport.receive(&mut self.records, &mut buffer);
        let parameters = transport.tls().filter(|tls| !tls.is_handshaking()).and_then(Parameters::of);
        let now = self.shared.now();
        let defect = |(parameters, _): &(Parameters, _)| self.tls.as_ref().and_then(|tls| tls.defect(parameters));
        if let Some(text) = parameters.as_ref().and_then(defect) {
            self.buffer = buffer;
            return self.connect_failed(id, now, ConnectFault::Tls, text);
        }
        match (outcome, parameters) {
            (Ok(received), Some((parameters, kind))) => {
                let (began, generation) = (connection.connect_began, connection.generation);
                let took = now.saturating_sub(began).max(1);
                self.stats_of_connection(now).tls.handshake(parameters, kind, took);
                self.established(id, now);
                // A server may send data with the end of its handshake.
                if self.connections[id].generation == generation {
                    let count = received.count;
                    self.received(id, received, &buffer[..count], now);
                }
            }
            (Ok(Received { end: None, .. }), None) => self.flush(id),
            (Ok(Received { end: Some(end), .. }), None) => {
                let text = match end {
                    End::Broken(error) => error.to_string(),
                    End::Clean | End::Truncated => "the server closed the connection during the handshake".to_owned(),
                };
                self.connect_failed(id, now, ConnectFault::Tls, text);
            }
            (Err(error), _) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            (Err(error), _) => self.connect_failed(id, now, ConnectFault::Tls, error.to_string()),
        }
        self.buffer = buffer;
    }

    /// Marks a connection as open and sends the protocol's preamble; requests follow.
    fn established(&mut self, id: usize, now: u64) {
        self.shared.reached.store(true, Ordering::Relaxed);
        let connection = &mut self.connections[id];
        let replies = self.protocol.start(&mut connection.session, &mut connection.out);
        connection.state = State::Open;
        connection.was_open = true;
        connection.login_left = replies;
        if self.load.reconnects.is_some() {
            let attempts = std::mem::take(&mut connection.attempts);
            if attempts > 0 {
                self.tell(format!("Reconnection successful after {attempts} attempts."));
            }
        }
        if replies > 0 {
            self.set_deadline(id, now.saturating_add(self.load.connect_timeout_ns));
            self.flush(id);
        } else {
            self.ready_for_requests(id);
        }
    }

    pub(super) fn ready_for_requests(&mut self, id: usize) {
        self.connections[id].deadline = NEVER;
        if let Some(request) = self.connections[id].waiting.take() {
            self.write(id, request);
            self.flush(id);
        }
        if self.connections[id].state == State::Open {
            self.give_work(id);
        }
    }

    pub(super) fn connect_failed(&mut self, id: usize, now: u64, fault: ConnectFault, text: String) {
        if let Some(request) = self.connections[id].waiting.take() {
            self.open_requests -= 1;
            let example = text.clone();
            self.fail_request(&request, RequestFault::Connect, || example);
        }
        // Events before the first request are counted for the run as a whole.
        if fault == ConnectFault::Tls {
            self.stats.tls.error(&text);
        }
        let what = if fault == ConnectFault::Timeout { "Connection timeout" } else { "Connection error" };
        if self.load.reconnects.is_some() {
            self.tell(format!("{what}: {text}"));
        }
        self.stats.connect_fault(fault, || text);
        self.pause_or_give_up(id, now, what);
    }

    /// Replaces a connection that has ended prematurely: at once if it has answered, unless the plan has pauses.
    pub(super) fn reconnect(&mut self, id: usize, now: u64, what: &str) {
        if self.connections[id].attempts == 0 && self.load.reconnects.is_none() {
            // It has answered before, so an immediate attempt can't become a tight loop.
            self.connections[id].attempts = 1;
            self.renew(id, now);
        } else {
            self.pause_or_give_up(id, now, what);
        }
    }

    /// Tells something that nothing waits for: without room it is lost.
    fn tell(&self, line: String) {
        let _ = self.told.try_send(Told::Line(line));
    }

    /// Returns the pause before the next attempt of the plan, if there is one, and tells it.
    fn pause_of(&mut self, reconnects: &Reconnects, attempt: u32, what: &str) -> Option<u64> {
        let Some(pause) = reconnects.pause_ns(attempt) else {
            let most = reconnects.most.unwrap_or_default();
            self.stats.exhausted += 1;
            self.tell(format!("Maximum reconnection attempts ({most}) exceeded for {what}."));
            return None;
        };
        let count = match reconnects.most {
            Some(most) => format!("{attempt}/{most}"),
            None => format!("{attempt} (unlimited)"),
        };
        let seconds = pause as f64 / 1e9;
        self.tell(format!("{what}, attempting reconnection {count} in {seconds:.2} seconds..."));
        Some(pause)
    }

    /// Closes a connection that was lost or not made; tries again later, or gives up.
    pub(super) fn pause_or_give_up(&mut self, id: usize, now: u64, what: &str) {
        self.close(id);
        if let Some(reconnects) = self.load.reconnects {
            let connection = &mut self.connections[id];
            connection.attempts = connection.attempts.saturating_add(1);
            let attempt = connection.attempts;
            if !self.is_sending {
                return self.give_up(id);
            }
            let Some(pause) = self.pause_of(&reconnects, attempt, what) else { return self.give_up(id) };
            self.connections[id].state = State::Paused;
            return self.set_deadline(id, now.saturating_add(pause));
        }
        let unreached = !self.shared.reached.load(Ordering::Relaxed);
        let connection = &mut self.connections[id];
        connection.attempts += 1;
        let attempts = connection.attempts;
        let is_over = (unreached && attempts >= ATTEMPTS_UNREACHED)
            || (self.load.duration_ns.is_none() && attempts >= ATTEMPTS_COUNTED);
        if is_over || !self.is_sending {
            return self.give_up(id);
        }
        connection.state = State::Paused;
        let pause = PAUSE.0.saturating_mul(1 << (attempts - 1).min(10)).min(PAUSE.1);
        self.set_deadline(id, now.saturating_add(pause));
    }

    /// Makes no further attempt to connect. Requests that only this connection would send are never sent.
    pub(super) fn give_up(&mut self, id: usize) {
        let connection = &mut self.connections[id];
        connection.state = State::GivenUp;
        self.given_up += 1;
        if !self.load.requests_each.is_empty() {
            let left = std::mem::take(&mut connection.left);
            self.budget = self.budget.saturating_sub(left);
            self.abandoned += left;
        }
    }

    pub(super) fn close(&mut self, id: usize) {
        let connection = &mut self.connections[id];
        if let Some(mut transport) = connection.transport.take() {
            transport.close();
        }
        connection.generation = connection.generation.wrapping_add(1);
        connection.state = State::Closed;
        connection.deadline = NEVER;
        connection.watches_write = false;
        connection.broken = None;
    }

    /// Replaces a connection that has ended as expected.
    pub(super) fn renew(&mut self, id: usize, now: u64) {
        self.close(id);
        if !self.is_sending {
            return;
        }
        if self.load.keep_alive {
            self.connect(id, now);
        } else {
            self.give_work(id);
        }
    }
}
