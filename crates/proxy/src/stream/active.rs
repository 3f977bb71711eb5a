//! A stream in use, and what happens at its end.

use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sluicegate_config::model::{Filter, Mode};

use super::filter::{self, Carries, Chain};
use super::kept::Stream;
use super::{Beginning, Client, Endings, Fault, Invalid, Killer, LogRecord, Side, StreamContext, Timers};
use crate::compress::Encoder;
use crate::counters::{Counters, Figures};
use crate::mux::Moved;
use crate::proxied::ServerTlsError;
use crate::running::ProxyRun;
use crate::server::ServerConnection;
use crate::site::Site;
use crate::spoe::StreamSpoe;
use crate::stick::{Counted, now_ms};
use crate::trace::StreamTrace;
use crate::worker::Worker;
use sluicegate_transport::{Tls, clock};
use sluicegate_wire::http::NameCases;

/// The interval at which a long stream's bytes are added to tracked counters; HAProxy's.
const TALLIED_EVERY_MS: u32 = 5_000;

/// A stream in use. When it is dropped, even together with its task, its end is counted and logged, and its memory goes
/// to the free list.
pub(crate) struct Active {
    worker: Rc<Worker>,
    /// `None` only while the value is being dropped.
    stream: Option<Box<Stream>>,
    begun: bool,
    /// The log record's bytes, of the request and of the response, that are already in the figures.
    counted: (u64, u64),
}

impl Active {
    /// Returns a stream of a client's connection to this frontend.
    pub(crate) fn take(worker: &Rc<Worker>, client: &Rc<Client>, frontend: &Arc<Site>) -> Active {
        let beginning = Beginning {
            id: worker.next_stream_id(),
            client,
            frontend,
            unique_id: worker.running.proxies[frontend.id.0 as usize].log.unique_id(),
            scripts: &worker.scripts,
            accepted_at: client.accepted_at(|at| worker.wall_clock(at)),
        };
        let mut stream = worker.streams.take().unwrap_or_else(|| {
            let card = worker.cards.add();
            let log = LogRecord::new(beginning.accepted_at, client.accepted);
            let mut cx = StreamContext::unconnected(frontend.clone(), log);
            cx.unique_id_code = beginning.unique_id.cloned();
            cx.log.card = Some(card.clone());
            let (request_out, response_out) = (Vec::new(), Vec::new());
            Box::new(Stream { cx, card, request_out, response_out, tallied: (0, 0), tallied_ms: 0 })
        });
        stream.cx.begin(&beginning);
        (stream.tallied, stream.tallied_ms) = ((0, 0), 0);
        Active { worker: worker.clone(), stream: Some(stream), begun: false, counted: (0, 0) }
    }

    /// Returns the worker.
    pub(crate) fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// Returns the frontend with its code.
    #[inline]
    pub(crate) fn frontend(&self) -> &ProxyRun {
        &self.worker.running.proxies[self.cx.frontend.id.0 as usize]
    }

    /// Begins the stream: from now on its end is logged and counted.
    pub(crate) fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            let cx = &self.cx;
            let client = &cx.client;
            self.card.begin(
                (cx.id, cx.place.unwrap_or(client.session), cx.frontend.id),
                client.ends(),
                client.fd.unwrap_or(-1),
                client.last_active(),
            );
            let streams = &self.worker.figures().streams;
            streams.store(streams.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            self.trace_start();
            if !self.cx.frontend.config.filters.is_empty() {
                StreamTrace::begin(&self.cx);
                self.use_agents();
            }
            if !self.cx.log.no_request {
                let worker = self.worker.clone();
                let frontend = &worker.running.proxies[self.cx.frontend.id.0 as usize];
                worker.running.logger.begun(&mut self.cx, &frontend.log);
            }
        }
    }

    /// Records that a backend has been chosen.
    pub(crate) fn set_backend(&mut self, backend: &ProxyRun) {
        self.count_failed_rewrites();
        self.card.set_backend(backend.id);
        self.cx.backend = Some(backend.site.clone());
        if self.has_filters() {
            StreamTrace::backend(&self.cx);
            self.use_agents();
        }
    }

    /// Gives the stream access to agents if its proxies have engines of SPOE.
    fn use_agents(&mut self) {
        let offloads = |filter: &Filter| matches!(filter, Filter::Spoe(_));
        let needs = self.cx.proxies().any(|proxy| proxy.config.filters.iter().any(offloads));
        if needs && self.cx.spoe.is_none() {
            self.cx.spoe = Some(Box::new(StreamSpoe::new(self.worker.clone())));
        }
    }

    /// Returns whether the stream's proxies have filters.
    pub(crate) fn has_filters(&self) -> bool {
        let of = |site: &Arc<Site>| !site.config.filters.is_empty();
        of(&self.cx.frontend) || self.cx.backend.as_ref().is_some_and(of)
    }

    /// Returns the filters of a body, with the encoder in the place of `compression`.
    pub(crate) fn filters(&mut self, response: bool, encoder: Option<Encoder>) -> Chain {
        self.filters_of(response, Carries::Body, encoder)
    }

    /// Returns the filters of the bytes of TCP or of a tunnel.
    pub(crate) fn relay_filters(&mut self, response: bool, carries: Carries) -> Chain {
        self.filters_of(response, carries, None)
    }

    fn filters_of(&mut self, response: bool, carries: Carries, encoder: Option<Encoder>) -> Chain {
        if !self.has_filters() {
            return Chain::default();
        }
        let bufsize = self.worker.buffers.size();
        filter::chain(&mut self.cx, response, carries, encoder, bufsize)
    }

    /// Returns this stream with the request of another, which has not begun.
    pub(crate) fn of_request(mut self, mut other: Active) -> Active {
        std::mem::swap(&mut self.cx.request, &mut other.cx.request);
        self
    }

    /// Ends the stream without counting or logging it, because streams of HTTP take over.
    pub(crate) fn abandon(mut self) {
        if std::mem::take(&mut self.begun) {
            self.card.end();
        }
    }

    /// Counts and logs the end, once.
    fn conclude(&mut self) {
        self.count_bytes();
        self.tally();
        if !std::mem::take(&mut self.begun) {
            return;
        }
        if let Some(killer) = self.card.killed() {
            let phase = self.phase();
            self.end(killer.letter(), phase);
        }
        self.card.end();
        if self.has_filters() {
            StreamTrace::end(&self.cx);
        }
        self.trace_end();
        let ended = clock::now();
        self.cx.log.ended = Some(ended);
        self.count_failed_rewrites();
        let times = Timers::of(&self.cx.log, ended);
        self.count_end(&self.cx, times);
        self.worker.running.logger.stream(&self.cx, &self.frontend().log, times);
    }

    /// Counts bytes of the request and of the response, by [`head_size`](crate::counters::head_size) and the bodies.
    pub(crate) fn count(&mut self, request: usize, response: usize) {
        self.cx.log.bytes_uploaded += request as u64;
        self.cx.log.bytes_read += response as u64;
        // Until a server is chosen, it is unknown to which server's figures these bytes belong.
        if self.cx.log.server.is_some() {
            self.count_bytes();
            if self.cx.tracks() {
                self.tally_now_and_then();
            }
        }
    }

    /// Adds a long stream's bytes to tracked counters before its end.
    fn tally_now_and_then(&mut self) {
        let now = now_ms();
        if self.tallied_ms == 0 {
            self.tallied_ms = now.max(1);
        } else if now.wrapping_sub(self.tallied_ms) >= TALLIED_EVERY_MS {
            self.tallied_ms = now.max(1);
            self.tally();
        }
    }

    /// Updates tracked counters from the log record, including those tracked only after these bytes, as HAProxy counts
    /// them at a stream's end.
    fn tally(&mut self) {
        let (request, response) = (self.cx.log.bytes_uploaded, self.cx.log.bytes_read);
        let before = std::mem::replace(&mut self.tallied, (request, response));
        let bytes = (request - before.0, response.saturating_sub(before.1));
        if bytes != (0, 0) {
            self.cx.count(Counted::Bytes(bytes.0, bytes.1));
        }
    }

    /// Updates the figures of frontend, backend and server from the log record.
    fn count_bytes(&mut self) {
        let index = self.worker.index;
        let (request, response) = (self.cx.log.bytes_uploaded, self.cx.log.bytes_read);
        let (request_before, response_before) = std::mem::replace(&mut self.counted, (request, response));
        let (request, response) = (request - request_before, response - response_before);
        if request + response == 0 {
            return;
        }
        let cx = &self.cx;
        let server = cx.log.server.as_ref().map(|server| &*server.shared.figures);
        // A `listen` is a backend from the start.
        let backend = &*cx.backend.as_ref().unwrap_or(&cx.frontend).backend.figures;
        let add = |figures: &Figures| {
            let counters = figures.at(index);
            counters.bin.add(request);
            counters.bout.add(response);
        };
        add(&cx.frontend.frontend.figures);
        add(backend);
        server.into_iter().for_each(add);
        cx.client.listener.as_ref().and_then(|listener| listener.figures()).into_iter().for_each(add);
    }

    /// Counts the bytes of a body that passed through pipes, from this side to the other.
    pub(crate) fn count_spliced(&self, moved: &Moved, from: Side) {
        if moved.spliced_in == 0 && moved.spliced_out == 0 {
            return;
        }
        let cx = &self.cx;
        let front = cx.frontend.frontend.figures.at(self.worker.index);
        let back = cx.backend.as_ref().unwrap_or(&cx.frontend).backend.figures.at(self.worker.index);
        let (source, sink) = if from == Side::Client { (front, back) } else { (back, front) };
        source.h1_spliced_bytes_in.add(moved.spliced_in as u64);
        sink.h1_spliced_bytes_out.add(moved.spliced_out as u64);
    }

    /// Counts a request at its frontend.
    pub(crate) fn count_arrival(&self, now: Instant) {
        let counters = self.cx.frontend.frontend.figures.at(self.worker.index);
        counters.req_tot.add(1);
        counters.req_rate.add(now, 1);
        self.worker.figures().requests.add(1);
    }

    /// Counts the server's response, whatever the rules do with it.
    pub(crate) fn count_server_response(&self, status: u16) {
        if let Some(server) = &self.cx.log.server {
            let counters = server.shared.figures.at(self.worker.index);
            counters.response(i32::from(status));
            counters.req_tot.add(1);
        }
    }

    /// Counts something at the frontend and at the socket that the client connected to.
    pub(crate) fn at_front(&self, count: impl Fn(&Counters)) {
        let index = self.worker.index;
        count(self.cx.frontend.frontend.figures.at(index));
        if let Some(figures) = self.cx.client.listener.as_ref().and_then(|listener| listener.figures()) {
            count(figures.at(index));
        }
    }

    /// Updates a counter as [`at_front`](Self::at_front) does and, once the backend is known, also there.
    pub(crate) fn each_side(&self, count: impl Fn(&Counters)) {
        let index = self.worker.index;
        self.at_front(&count);
        if let Some(backend) = &self.cx.backend {
            count(backend.backend.figures.at(index));
        }
    }

    /// Like [`each_side`](Self::each_side), and also at the server, if one was chosen.
    fn each_side_and_server(&self, count: impl Fn(&Counters)) {
        self.each_side(&count);
        if let Some(server) = &self.cx.log.server {
            count(server.shared.figures.at(self.worker.index));
        }
    }

    /// Counts a request that rules refuse; a refusal by a backend's rules is also counted at the backend.
    pub(crate) fn count_refused_request(&self) {
        self.each_side(|counters| counters.dreq.add(1));
    }

    /// Counts the rewrites that failed so far on the sides that were known when they did.
    pub(crate) fn count_failed_rewrites(&mut self) {
        let failed = std::mem::take(&mut self.cx.failed_rewrites);
        if failed > 0 {
            self.each_side_and_server(|counters| counters.wrew.add(u64::from(failed)));
        }
    }

    /// Counts an internal error on the sides that are known.
    pub(crate) fn count_internal_error(&self) {
        self.each_side_and_server(|counters| counters.eint.add(1));
    }

    /// Counts a response that rules refuse, on each side that it passed.
    pub(crate) fn count_refused_response(&self) {
        self.each_side_and_server(|counters| counters.dresp.add(1));
    }

    /// Counts an aborted transfer on each side, by the side that ended it.
    pub(crate) fn count_ending(&self, ending: Endings) {
        match ending.who {
            b'C' | b'c' => self.each_side_and_server(|counters| counters.cli_abrt.add(1)),
            b'S' | b's' => self.each_side_and_server(|counters| counters.srv_abrt.add(1)),
            _ => {}
        }
    }

    /// Removes the response's bytes counted so far from the log record: none of it was sent to the client. The figures
    /// keep them, as they may only grow.
    pub(crate) fn discount_response(&mut self) {
        self.cx.log.bytes_read = 0;
        (self.counted.1, self.tallied.1) = (0, 0);
    }

    /// Records the addresses of the connection to the server, if a log line needs them.
    pub(crate) fn note_addresses(&mut self, connection: &ServerConnection) {
        if self.frontend().log.wants_server_addresses {
            let addresses = &mut self.cx.log.server_addresses;
            connection.with_socket(|socket| *addresses = (socket.local_addr(), socket.peer_addr()));
        }
    }

    /// Records that there is a connection to the server, and applies the settings of rules to its packets.
    pub(crate) fn use_server(&mut self, connection: &ServerConnection) {
        let cx = &mut self.cx;
        connection.with_socket(|socket| {
            cx.sockets.set_server(socket, connection.was_reused());
            cx.server_tls = socket.tls().and_then(Tls::facts).cloned();
        });
        cx.server_http2 = connection.http2_facts();
        for (mark, value) in [(true, cx.overrides.server_mark), (false, cx.overrides.server_tos)] {
            if let Some(value) = value {
                cx.sockets.set_option(Side::Server, mark, value);
            }
        }
    }

    /// Records the error of TLS that ended the connection to the server, if there was one.
    pub(crate) fn note_server_error(&mut self, connection: &ServerConnection) {
        let error = &mut self.cx.log.server_error;
        connection.with_socket(|socket| *error = ServerTlsError::of_connection(socket));
    }

    /// Drops the server connection, keeping the data needed by a log line.
    pub(crate) fn server_gone(&mut self) {
        let keep = self.frontend().log.wants_server_connection;
        self.cx.sockets.clear_server(keep);
    }

    /// Returns the case that names of a head need for the client, if any.
    #[inline]
    pub(crate) fn client_names(&self) -> Option<&NameCases> {
        self.names(self.cx.frontend.config.options.case_for_clients)
    }

    /// Returns the case of names by `h1-case-adjust`, where an option asks for it.
    #[inline]
    pub(crate) fn names(&self, wanted: bool) -> Option<&NameCases> {
        wanted.then(|| &self.worker.running.config.global.name_cases)
    }

    /// Returns whether the process is stopping, or nothing listens to the client's address any more: its connection
    /// should carry no further request.
    pub(crate) fn is_stopping(&self) -> bool {
        self.worker.closing_time(&self.cx.client).is_some_and(|at| at <= clock::now())
    }

    /// Keeps what the client sent as the frontend's last invalid request.
    pub(crate) fn capture_request(&self, received: &[u8], fault: Fault) {
        let event = self.worker.running.process.next_invalid();
        let at = self.worker.wall_clock(clock::now());
        let mut invalid = Invalid::new(event, at, received, fault, true);
        invalid.source = self.cx.client.ends().0;
        self.cx.frontend.frontend.invalid.set(invalid);
    }

    /// Writes the log line of an established connection to a server, if it has one.
    pub(crate) fn log_connected(&mut self) {
        if self.frontend().log.has_steps {
            let worker = self.worker.clone();
            let codes = &worker.running.proxies[self.cx.frontend.id.0 as usize].log;
            let until = self.cx.log.connect_done.unwrap_or_else(Instant::now);
            worker.running.logger.connected(&mut self.cx, codes, until);
        }
    }

    /// Writes the log line of a response's head, with `held` bytes of its body.
    pub(crate) fn log_answered(&mut self, held: u64) {
        let worker = self.worker.clone();
        let codes = &worker.running.proxies[self.cx.frontend.id.0 as usize].log;
        let until = self.cx.log.response_started.unwrap_or_else(Instant::now);
        self.cx.log.bytes_read += held;
        worker.running.logger.answered(&mut self.cx, codes, until);
        self.cx.log.bytes_read -= held;
    }

    /// Records, for the log line only, the number of received bytes that did not form a request.
    pub(crate) fn note_received(&mut self, bytes: usize) {
        self.cx.log.bytes_uploaded = bytes as u64;
        (self.counted.0, self.tallied.0) = (bytes as u64, bytes as u64);
    }

    /// Counts bytes that went to the client's socket.
    pub(crate) fn count_sent(&self, bytes: usize) {
        self.worker.figures().bytes_out.add(bytes as u64);
    }

    /// Counts the data known only at the end: the response's status, and the times.
    fn count_end(&self, cx: &StreamContext, times: Timers) {
        let index = self.worker.index;
        let streams = &self.worker.figures().streams;
        streams.store(streams.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        let status = cx.log.status;
        // A request that ended without a response counts among the other statuses, also if rules refused its bytes.
        let told = status != 0 || !cx.log.request_line.is_empty();
        let http = |proxy: &Site| proxy.config.mode == Mode::Http && told;
        if http(&cx.frontend) {
            cx.frontend.frontend.figures.at(index).response(status);
        }
        let Some(backend) = &cx.backend else { return };
        let counters = backend.backend.figures.at(index);
        if http(backend) {
            counters.response(status);
            counters.req_tot.add(1);
        }
        counters.times(times.queue, times.connect, times.response, times.active);
        if let Some(server) = &cx.log.server {
            let counters = server.shared.figures.at(index);
            counters.times(times.queue, times.connect, times.response, times.active);
        }
    }

    /// Returns the phase of the stream, as in the log.
    fn phase(&self) -> u8 {
        let log = &self.cx.log;
        if self.cx.frontend.config.mode == Mode::Tcp {
            // HAProxy names no phase for plain bytes.
            b'-'
        } else if log.response_started.is_some() {
            b'D'
        } else if log.connect_done.is_some() {
            b'H'
        } else if self.cx.backend.is_some() {
            log.phase_before_server()
        } else {
            b'R'
        }
    }

    /// Returns the external cause of its end, if any.
    pub(crate) fn killed(&self) -> Option<Killer> {
        self.card.killed()
    }

    /// Records how the stream ended, unless that is recorded already.
    pub(crate) fn end(&mut self, who: u8, phase: u8) {
        let ending = &mut self.cx.log.ending;
        if *ending == Endings::default() {
            *ending = Endings { who, phase };
        }
    }
}

impl Deref for Active {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        self.stream.as_ref().expect("there until drop")
    }
}

impl DerefMut for Active {
    fn deref_mut(&mut self) -> &mut Stream {
        self.stream.as_mut().expect("there until drop")
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        if self.stream.is_some() {
            self.conclude();
        }
        let Some(mut stream) = self.stream.take() else { return };
        stream.cx.backend = None;
        stream.cx.tracked.clear();
        stream.cx.limits.clear();
        stream.cx.bandwidth.clear();
        stream.cx.cache = None;
        stream.cx.spoe = None;
        stream.cx.client = self.worker.streams.nobody.clone();
        stream.cx.variables.begin(&self.worker.streams.nobody.variables);
        stream.request_out.clear();
        stream.response_out.clear();
        if let Some(stream) = self.worker.streams.give(stream) {
            self.worker.cards.remove(&stream.card);
        }
    }
}
