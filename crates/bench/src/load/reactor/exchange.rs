//! Sending requests, receiving responses, and the ends of connections.

use std::io::ErrorKind;

use super::super::console::shown;
use super::super::poller::Ready;
use super::super::protocol::{Answer, Outcome, Protocol, StreamFault};
use super::super::stats::{ConnectFault, RequestFault};
use super::super::transport::{End, Received};
use super::connection::{Connection, Request, State, connect_fault, request_fault, token};
use super::{BUFFER, MAX_SHOWN, Reactor};

impl<P: Protocol> Reactor<'_, P> {
    /// Closes a connection that is not usable any more. `fault` is that of its first request, and of later requests if
    /// they are independent; otherwise these are dropped.
    pub(super) fn lose(&mut self, id: usize, now: u64, fault: RequestFault, text: impl FnOnce() -> String) {
        let connection = &mut self.connections[id];
        if connection.login_left > 0 {
            connection.login_left = 0;
            return self.connect_failed(id, now, ConnectFault::Login, text());
        }
        let (fault, broken) = match connection.broken.take() {
            Some(error) => (request_fault(&error), Some(error)),
            None => (fault, None),
        };
        if self.load.traces {
            self.trace(id, "connection dropped");
        }
        let connection = &mut self.connections[id];
        let mut requests = std::mem::take(&mut connection.in_flight);
        self.open_requests -= requests.len() as u64;
        if let Some(first) = requests.pop_front() {
            let text = broken.map_or_else(text, |error| error.to_string());
            self.fail_request(&first, fault, || text.clone());
            for request in &requests {
                if P::MULTIPLEXED {
                    self.fail_request(request, fault, || text.clone());
                } else {
                    self.fail_request(request, RequestFault::Dropped, || "behind a request that failed".to_owned());
                }
            }
        } else {
            self.stats_at(now).closed_idle += 1;
        }
        let is_end = matches!(fault, RequestFault::Closed | RequestFault::Short);
        self.reconnect(id, now, if is_end { "Connection dropped" } else { "Connection error" });
    }

    pub(super) fn fail_request(&mut self, request: &Request, fault: RequestFault, text: impl FnOnce() -> String) {
        if let Some(tick) = self.tick.as_mut().filter(|_| request.intended >= self.measure_from) {
            tick.failed += 1;
        }
        if self.load.has_series && request.intended >= self.measure_from {
            let second = self.second(self.shared.now());
            self.stats.second(second, request.command).failed += 1;
        }
        self.stats_of(request.intended).fault(fault, text);
    }

    pub(super) fn flush(&mut self, id: usize) {
        let connection = &mut self.connections[id];
        let Some(transport) = &mut connection.transport else { return };
        let mut sent = 0u64;
        let outcome = loop {
            if connection.written == connection.out.len() {
                connection.out.clear();
                connection.written = 0;
                break match transport.flush() {
                    Ok(()) => Ok(false),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
                    Err(error) => Err(error),
                };
            }
            match transport.send(&connection.out[connection.written..]) {
                Ok(count) => {
                    connection.written += count;
                    sent += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let watches = connection.watches_write;
        let (token, is_blocked) = (token(id, connection.generation), matches!(outcome, Ok(true)));
        let outcome = outcome.and_then(|_| {
            if watches != is_blocked {
                connection.watches_write = is_blocked;
                self.poller.modify(transport.socket(), token, is_blocked)?;
            }
            Ok(())
        });
        if let Err(error) = outcome {
            // The socket stays readable from here on, so its end, or an answer before that, is about to be read.
            connection.broken = Some(error);
            connection.out.clear();
            connection.written = 0;
        }
        if self.cpu_from.is_some() {
            self.stats.bytes_sent += sent;
        }
    }

    pub(super) fn handle(&mut self, ready: Ready) {
        let id = (ready.token & u64::from(u32::MAX)) as usize;
        let is_current = |connection: &Connection<P::Session>| token(id, connection.generation) == ready.token;
        let Some(connection) = self.connections.get(id).filter(|connection| is_current(connection)) else { return };
        match connection.state {
            State::Connecting => {
                let Some(transport) = &connection.transport else { return };
                let error = transport.socket().take_error();
                let now = self.shared.now();
                match error {
                    Ok(None) if ready.writable => self.connected(id, now),
                    Ok(None) => {}
                    Ok(Some(error)) | Err(error) => {
                        self.connect_failed(id, now, connect_fault(&error), error.to_string());
                    }
                }
            }
            State::Open | State::Handshaking => {
                if ready.readable && connection.state == State::Handshaking {
                    self.handshake(id);
                } else if ready.readable {
                    self.receive(id);
                }
                let connection = &self.connections[id];
                if ready.writable && is_current(connection) && connection.watches_write {
                    self.flush(id);
                }
            }
            _ => {}
        }
    }

    pub(super) fn receive(&mut self, id: usize) {
        let connection = &mut self.connections[id];
        let Some(transport) = &mut connection.transport else { return };
        let kept = connection.partial.len();
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer[..kept].copy_from_slice(&connection.partial);
        let outcome = transport.receive(&mut self.records, &mut buffer[kept..]);
        let now = self.shared.now();
        match outcome {
            Ok(received) => {
                let end = kept + received.count;
                self.received(id, received, &buffer[..end], now);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => self.lose(id, now, request_fault(&error), || error.to_string()),
        }
        self.buffer = buffer;
    }

    /// Processes what one call received: `buf` is the incomplete response and the bytes that follow it.
    pub(super) fn received(&mut self, id: usize, received: Received, buf: &[u8], now: u64) {
        let generation = self.connections[id].generation;
        if received.count > 0 {
            self.connections[id].heard = now;
            self.stats_at(now).bytes_received += received.count as u64;
            self.read(id, buf, now);
        }
        let Some(end) = received.end.filter(|_| self.connections[id].generation == generation) else { return };
        match end {
            End::Clean => self.peer_closed(id, now, ""),
            End::Truncated => self.peer_closed(id, now, ", without close_notify"),
            End::Broken(error) => {
                // In TLS 1.3 a server that refuses the client's certificate does so after the client's handshake.
                self.stats_at(now).tls.error(&error.to_string());
                self.lose(id, now, request_fault(&error), || error.to_string());
            }
        }
    }

    /// Parses the received responses, then sends the connection's next requests.
    pub(super) fn read(&mut self, id: usize, buf: &[u8], now: u64) {
        let mut at = 0;
        while at < buf.len() || P::MULTIPLEXED {
            let Connection { session, out, .. } = &mut self.connections[id];
            let answer = match self.protocol.read(session, &buf[at..], out) {
                Ok((used, answer)) => {
                    at += used;
                    match answer {
                        Some(answer) => answer,
                        None => break,
                    }
                }
                Err(text) => {
                    // The protocol may have told the peer the reason.
                    self.flush(id);
                    return self.lose(id, now, RequestFault::BadResponse, || text);
                }
            };
            if !self.take_answer(id, &answer, now) {
                return;
            }
        }
        let rest = &buf[at..];
        if rest.len() > BUFFER / 2 {
            let text = || format!("{} bytes that are not yet an answer", rest.len());
            return self.lose(id, now, RequestFault::BadResponse, text);
        }
        let connection = &mut self.connections[id];
        connection.partial.clear();
        connection.partial.extend_from_slice(rest);
        if P::MULTIPLEXED {
            // Frames of the protocol's own, such as window updates, are sent even if no request follows.
            self.flush(id);
        }
        self.go_on(id, now);
    }

    /// Sends further requests if a connection has room now; replaces a connection on which the peer accepts no more.
    pub(super) fn go_on(&mut self, id: usize, now: u64) {
        let connection = &self.connections[id];
        if P::MULTIPLEXED && connection.in_flight.is_empty() && self.protocol.is_over(&connection.session) {
            return self.reconnect(id, now, "Connection over");
        }
        if self.load.renew_after.is_some_and(|count| connection.carried >= count) && connection.in_flight.is_empty() {
            return self.renew(id, now);
        }
        self.give_work(id);
    }

    /// Processes a response. Returns false if the connection ends with it.
    pub(super) fn take_answer(&mut self, id: usize, answer: &Answer, now: u64) -> bool {
        if answer.outcome == Outcome::Unasked {
            self.stats_at(now).unasked += 1;
            return true;
        }
        let connection = &mut self.connections[id];
        if connection.login_left > 0 {
            if let Outcome::Error(text) = &answer.outcome {
                self.shared.fail(format!("the server refuses the connection's login: {text}"));
                return false;
            }
            connection.login_left -= 1;
            if connection.login_left == 0 {
                self.ready_for_requests(id);
            }
            return true;
        }
        let Some(request) = connection.take_request(answer.tag) else {
            self.stats_at(now).unasked += 1;
            self.lose(id, now, RequestFault::Closed, String::new);
            return false;
        };
        self.open_requests -= 1;
        if let Outcome::Failed(fault, text) = &answer.outcome {
            let fault = match fault {
                StreamFault::Reset => RequestFault::Reset,
                StreamFault::Malformed => RequestFault::BadResponse,
                StreamFault::Unprocessed => RequestFault::Dropped,
            };
            self.fail_request(&request, fault, || text.clone());
            if self.load.keep_alive {
                return true;
            }
            self.renew(id, now);
            return false;
        }
        connection.attempts = 0;
        if self.load.traces {
            let what = match &answer.outcome {
                Outcome::Error(text) => shown(text.as_bytes(), MAX_SHOWN),
                Outcome::Null => "null".to_owned(),
                _ => format!("{} bytes", answer.body),
            };
            self.trace(id, &format!("handled response: {what}"));
        }
        if let Outcome::Error(text) = &answer.outcome
            && self.load.stops_on_error
            && (self.load.nodes.is_empty() || !(text.starts_with("MOVED ") || text.starts_with("ASK ")))
        {
            self.shared.fail(format!("Error from server: {text}"));
            return false;
        }
        self.last_answer = now;
        let latency = now.saturating_sub(request.intended);
        let (is_open_loop, is_in_time) = (self.load.rate.is_some(), now <= self.end);
        if let Some(tick) = self.tick.as_mut().filter(|_| request.intended >= self.measure_from) {
            tick.latency.saturating_record(latency.max(1));
            tick.errors += u64::from(answer.outcome.is_error());
            tick.bytes += answer.body;
        }
        let stats = self.stats_of(request.intended);
        stats.answer(request.command, &answer.outcome, answer.body, latency);
        stats.answered_in_time += u64::from(is_in_time);
        if self.load.has_series && request.intended >= self.measure_from {
            let second = self.second(now);
            let figures = self.stats.second(second, request.command);
            figures.bytes_received += answer.body;
            figures.errors += u64::from(answer.outcome.is_error());
            figures.record(latency / 1000);
            if let Some(client) = self.client(id) {
                client.answered(second, request.command, &answer.outcome, answer.body, latency / 1000);
            }
        }
        let stats = self.stats_of(request.intended);
        if is_open_loop {
            stats.service.saturating_record(now.saturating_sub(request.sent).max(1));
        }
        if answer.keep_alive && self.load.keep_alive {
            return true;
        }
        let dropped = std::mem::take(&mut self.connections[id].in_flight);
        self.open_requests -= dropped.len() as u64;
        for request in &dropped {
            self.fail_request(request, RequestFault::Dropped, || {
                "behind an answer that ended the connection".to_owned()
            });
        }
        self.renew(id, now);
        false
    }

    /// The peer has closed the connection; `defect` describes the end of TLS, which completes no response if it is one.
    pub(super) fn peer_closed(&mut self, id: usize, now: u64, defect: &str) {
        let connection = &mut self.connections[id];
        if defect.is_empty()
            && let Some(answer) = self.protocol.end(&mut connection.session)
        {
            self.take_answer(id, &answer, now);
            return;
        }
        let is_within = !connection.partial.is_empty() || self.protocol.is_within(&connection.session);
        let (fault, text) = if is_within {
            (RequestFault::Short, "the connection ended within an answer")
        } else {
            (RequestFault::Closed, "the connection ended before an answer")
        };
        self.lose(id, now, fault, || format!("{text}{defect}"));
    }
}
