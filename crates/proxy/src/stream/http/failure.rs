//! Missing, invalid or rejected responses: the error sent to the client, and retries.

use super::*;

impl Exchange<'_> {
    /// Handles the case that no response will come from this connection.
    pub(super) async fn no_response(&mut self, event: Event, backend: &ProxyRun, back: &mut Back) -> Step<Outcome> {
        let silent = back.input().is_empty();
        let gone = matches!(event, Event::ServerGone);
        if gone && back.is_unprocessed() && backend.config.retry_on.conn_failure && self.may_retry(backend, back) {
            return Ok(Outcome::Retry);
        }
        let dead = gone && back.connection().was_reused() && silent && back.is_over();
        if dead && is_idempotent(self.head.method) && back.replay() {
            self.up_failed = false;
            return Ok(Outcome::Repeat);
        }
        if gone && !back.has_begun() {
            self.observe(backend, back.connection(), Observed::NotConnected);
            self.count_failed_connection(back.connection());
            return Err(self.page(503, b'S', b'C').await);
        }
        match event {
            Event::Invalid(_) => self.observe(backend, back.connection(), Observed::InvalidHead),
            Event::ServerTimeout => self.observe(backend, back.connection(), Observed::ReadTimeout),
            // Why the connection ended is not known any more.
            Event::ServerGone => self.observe(backend, back.connection(), Observed::BrokenPipe),
            _ => {}
        }
        let retry_on = &backend.config.retry_on;
        let retryable = match event {
            Event::ServerGone => retry_on.empty_response,
            Event::Invalid(_) => retry_on.junk_response,
            Event::ServerTimeout => retry_on.response_timeout,
            _ => false,
        };
        if retryable && self.may_retry(backend, back) {
            // As in HAProxy, a failed response counts even if a retry succeeds; a timeout does not.
            if !dead && !matches!(event, Event::ServerTimeout) {
                self.count_broken_response(back.connection());
            }
            return Ok(Outcome::Retry);
        }
        // As in HAProxy, the response begins in filters once there is a connection.
        if self.stream.is_scripted() && !matches!(event, Event::Refused) {
            self.begin_response_filters().await?;
        }
        match event {
            Event::ServerGone if dead => {
                if !self.stream.cx.is_first_request() {
                    return Ok(self.leave_in_silence(b'S'));
                }
                Err(self.page(502, b'S', b'H').await)
            }
            Event::ServerGone => {
                self.count_bad_response(back.connection());
                // A head that ends in its middle is malformed.
                let who = if silent { b'S' } else { b'P' };
                Err(self.page(502, who, b'H').await)
            }
            Event::Killed(killer) if !self.stream.cx.is_first_request() => Ok(self.leave_in_silence(killer.letter())),
            Event::Killed(killer) => {
                self.count_bad_response(back.connection());
                Err(self.page(502, killer.letter(), b'H').await)
            }
            Event::Invalid(fault) => {
                self.capture_response(back, fault);
                self.count_bad_response(back.connection());
                Err(self.page(502, b'P', b'H').await)
            }
            Event::ServerTimeout => {
                self.count_bad_response(back.connection());
                Err(self.page(504, b's', b'H').await)
            }
            Event::ClientTimeout => {
                self.stream.at_front(|counters| counters.ereq.add(1));
                Err(self.page(408, b'c', b'H').await)
            }
            Event::BadBody => {
                self.stream.capture_request(self.front.input(), Fault::Chunk);
                self.stream.at_front(|counters| counters.ereq.add(1));
                // Body bytes that arrived with the head count as part of it, as in HAProxy.
                match self.up.has_written() {
                    true => Err(self.page(400, b'P', b'H').await),
                    false => Err(self.refuse(400, b'P', b'H').await),
                }
            }
            // As in HAProxy, which does not find an error of the client's there.
            Event::Refused if self.up.has_exceeded() => Err(self.page(500, b'I', b'H').await),
            Event::Refused => Err(self.page(400, b'P', b'H').await),
            // A client in the middle of its request does not read a response, nor does one with a broken connection. A
            // client that has ended its side may still read.
            Event::ClientGone if !self.up.is_done() => Err(self.lost_client(b'H')),
            Event::ClientGone if !self.front.has_ended() => Err(self.lost_client(b'D')),
            Event::ClientGone | Event::Head(_) | Event::Interim(_) => {
                self.count_client_abort();
                Err(self.page(400, b'C', b'H').await)
            }
        }
    }

    /// Handles a client that disconnected before it received any of a response: as in HAProxy since 2.8, a 400 is
    /// logged and counted, though not sent.
    pub(super) fn lost_client(&mut self, phase: u8) -> After {
        self.count_client_abort();
        self.stream.cx.log.status = 400;
        self.stream.count(0, status::error_page(400).raw.len() - 1);
        self.stream.end(b'C', phase);
        After::Close
    }

    /// Ends the client's connection without an answer: the client repeats the request, and only the repeated request is
    /// logged and counted, as in HAProxy.
    fn leave_in_silence(&mut self, who: u8) -> Outcome {
        let log = &mut self.stream.cx.log;
        log.level = Some(LogLevel::Silent);
        log.request_line.clear();
        log.status = 0;
        self.stream.end(who, b'H');
        Outcome::Done { after: After::Close, keep_server: false }
    }

    /// Reports the quality of the response to the server's health.
    pub(super) fn observe(&self, backend: &Site, connection: &Lease, seen: Observed) {
        server::observe(&self.stream.worker().running, backend, connection.server(), seen);
    }

    /// Reports a malformed response body to the server's health, unless the response's head was reported.
    pub(super) fn observe_body(&self, backend: &Site, connection: &Lease) {
        if !self.begins_malformed {
            self.observe(backend, connection, Observed::InvalidBody);
        }
    }

    /// Returns whether the request may be sent again (`retry-on`): it is still complete, and there are retries left. If
    /// so, it is prepared for the next attempt.
    pub(super) fn may_retry(&mut self, backend: &ProxyRun, back: &mut Back) -> bool {
        let cx = &mut self.stream.cx;
        if cx.no_l7_retry || cx.log.retries >= cx.overrides.retries.unwrap_or(backend.config.retries) || !back.replay()
        {
            return false;
        }
        self.up_failed = false;
        cx.response.clear();
        true
    }
}
