//! Connections to FastCGI applications: each belongs to a task of the worker that opened it, and lends places to requests.
//!
//! A connection has one request at a time, or several as the application's section or its own values say ('option
//! get-values', to which requests wait for the answer). Requests get the odd numbers, as in HAProxy; when the last one is
//! used the connection lends no more. Records for a request that has ended are skipped, so an application that was not
//! told of an abort, because it has the whole request, does not disturb the next one.
//!
//! `http-reuse` decides who shares a connection, as for HTTP/2 ([`super::h2`]). Connections are not taken over by other
//! workers. One without requests is closed if the server has more connections than were needed lately, or after
//! `pool-purge-delay`, and at once without 'option keep-conn'.
//!
//! **Memory.** The input is a buffer of `tune.bufsize`. A request whose response has filled a buffer stops the reading of
//! the whole connection until its data is forwarded. The output is limited; beyond it requests wait.

use std::cell::{RefCell, RefMut};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use sluicegate_config::model::{FcgiApp, HttpReuse};
use sluicegate_transport::{Buffer, BufferPool, Socket, Timer};
use sluicegate_wire::fcgi::{self, EndRequest, HEADER, Header, Kind};

use super::app::App;
use super::by_server::{ByServer, key_of};
use super::h2::{Wanted, poll_fill};
use super::idle::Open;
use super::opening::{Openings, Part, Sought};
use super::pooled::{Pooled, take_place, write_output};
use super::run::ServerRun;
use super::traced::Trace;
use crate::log::{Logger, Source};

/// The bytes of the output from which on requests wait.
const OUTPUT_MAX: usize = 64 << 10;

/// The last number of a request.
const REQUEST_LAST: u16 = 0x7fff;

/// The time for which a connection without requests is kept for its session under `http-reuse never`.
const OWN_IDLE: Duration = Duration::from_secs(5);

/// The time in which an application has to read what remains to be written when no request is left.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// A request as the connection sees it.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// Its number once it has begun.
    id: Option<u16>,
    /// The part of the response that the request has not taken yet.
    pub(crate) received: Vec<u8>,
    /// Whether the response is complete.
    pub(crate) complete: bool,
    /// Whether the application has ended the request.
    pub(crate) ended: bool,
    /// Whether the whole request, or its abort, was sent.
    pub(crate) finished: bool,
    waker: Option<Waker>,
}

impl Slot {
    /// Registers the task that is woken when something happens to the request.
    pub(crate) fn wait(&mut self, cx: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

/// The part of a connection that its task and its requests share.
pub(crate) struct State {
    app: Arc<App>,
    /// `None` once the connection is closed.
    socket: Option<Socket>,
    /// The count of the connection.
    _open: Option<Open>,
    /// Whether the application's values are known.
    ready: bool,
    gone: bool,
    /// Whether no further request begins.
    retired: bool,
    output: Vec<u8>,
    written: usize,
    /// By place; those that are lent have an entry.
    slots: Vec<Option<Slot>>,
    next_id: u16,
    /// The number of requests at a time.
    limit: usize,
    /// The record whose contents, and then whose padding, come next.
    record: Option<Header>,
    /// Whether only padding, or contents that are skipped, is left of it.
    skips: bool,
    /// The size from which on a request's data stops the reading.
    received_max: usize,
    lent: u32,
    /// The only session that may use the connection while it is busy.
    session: Option<u32>,
    idle_since: Option<Instant>,
    task: Option<Waker>,
    /// `None` for a connection of a test.
    trace: Option<Trace>,
}

impl State {
    fn new(app: &Arc<App>, socket: Option<Socket>, open: Option<Open>, received_max: usize) -> State {
        let config = &app.config;
        let mut output = Vec::new();
        if config.get_values {
            fcgi::write_get_values(&mut output);
        }
        State {
            app: app.clone(),
            socket,
            _open: open,
            ready: !config.get_values,
            gone: false,
            retired: !config.keep_conn,
            output,
            written: 0,
            slots: Vec::new(),
            next_id: 1,
            limit: config.max_requests as usize,
            record: None,
            skips: false,
            received_max,
            lent: 0,
            session: None,
            idle_since: None,
            task: None,
            trace: None,
        }
    }

    /// Reports a record to the traces of the process.
    fn trace(&self, events: &'static [&'static str], text: &str, request: u16) {
        if let Some(trace) = &self.trace {
            trace.unit(events, text, u64::from(request));
        }
    }

    /// Returns whether the connection is over.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Returns whether a request may send: the application's values are known, and the output has room.
    pub(crate) fn has_room(&self) -> bool {
        self.ready && self.output.len() - self.written < OUTPUT_MAX
    }

    /// Returns the slot of a place.
    pub(crate) fn slot(&mut self, place: usize) -> Option<&mut Slot> {
        self.slots.get_mut(place)?.as_mut()
    }

    /// Wakes the connection's task, which writes the output and reads on.
    pub(crate) fn wake_task(&self) {
        if let Some(task) = &self.task {
            task.wake_by_ref();
        }
    }

    fn wake_all(&self) {
        self.slots.iter().flatten().for_each(Slot::wake);
    }

    fn in_use(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    fn has_place(&self) -> bool {
        !self.gone && !self.retired && self.in_use() < self.limit
    }

    /// Begins the request of a place with its parameters; `false`: the connection has no number left.
    pub(crate) fn begin(&mut self, place: usize, params: &[u8]) -> bool {
        let id = self.next_id;
        if id > REQUEST_LAST {
            return false;
        }
        let Some(slot) = self.slots.get_mut(place).and_then(Option::as_mut) else { return false };
        slot.id = Some(id);
        self.next_id += 2;
        self.retired |= self.next_id > REQUEST_LAST;
        fcgi::write_begin(&mut self.output, id, self.app.config.keep_conn);
        fcgi::write_params(&mut self.output, id, params);
        self.trace(&["tx_begin_request", "tx_record"], "FCGI BEGIN_REQUEST record xferred", id);
        self.trace(&["tx_params", "tx_record"], "FCGI PARAMS record xferred", id);
        true
    }

    /// Returns whether the request of a place has begun.
    pub(crate) fn has_begun(&self, place: usize) -> bool {
        self.slots.get(place).and_then(Option::as_ref).is_some_and(|slot| slot.id.is_some())
    }

    /// Sends a part of a request's body; an empty one is its end.
    pub(crate) fn send(&mut self, place: usize, part: &[u8]) {
        let Some(slot) = self.slots.get_mut(place).and_then(Option::as_mut) else { return };
        let Some(id) = slot.id.filter(|_| !slot.finished) else { return };
        slot.finished = part.is_empty();
        fcgi::write_stdin(&mut self.output, id, part);
        self.trace(&["tx_stding", "tx_record"], "FCGI STDIN record xferred", id);
    }

    /// Gives a place back; an application that does not have the whole request is told that it is aborted.
    fn give_back(&mut self, place: usize) {
        let Some(slot) = self.slots.get_mut(place).and_then(Option::take) else { return };
        if let Some(id) = slot.id.filter(|_| !slot.finished && !slot.ended && !self.gone) {
            fcgi::write_abort(&mut self.output, id);
            self.trace(&["tx_abort", "tx_record"], "FCGI ABORT record xferred", id);
        }
    }

    /// Ends the connection and its requests.
    fn fail(&mut self) {
        self.gone = true;
        self.wake_all();
    }

    fn slot_of(&mut self, request: u16) -> Option<&mut Slot> {
        self.slots.iter_mut().flatten().find(|slot| slot.id == Some(request))
    }

    /// Reads records at the start of the input; returns the length of what is done with. Like HAProxy it waits for the end
    /// of a record, unless the input is full.
    fn parse(&mut self, input: &[u8], full: bool) -> usize {
        let mut taken = 0;
        while !self.gone {
            let rest = &input[taken..];
            let Some(record) = self.record else {
                let Some(header) = fcgi::header(rest) else { break };
                taken += HEADER;
                // Until its values are known, the application says nothing else.
                let answers = matches!(header.kind, Kind::GetValuesResult | Kind::Unknown) && header.request == 0;
                if !self.ready && !answers {
                    self.fail();
                    break;
                }
                let (events, text): (&[_], _) = match header.kind {
                    Kind::GetValuesResult => (&["rx_get_values", "rx_record"], "FCGI GET_VALUES_RESULT record rcvd"),
                    Kind::Stdout => (&["rx_stdout", "rx_record"], "FCGI STDOUT record rcvd"),
                    Kind::Stderr => (&["rx_stderr", "rx_record"], "FCGI STDERR record rcvd"),
                    Kind::EndRequest => (&["rx_end_req", "rx_record"], "FCGI END_REQUEST record rcvd"),
                    _ => (&["rx_record"], "FCGI record rcvd"),
                };
                self.trace(events, text, header.request);
                self.record = Some(header);
                self.skips = false;
                continue;
            };
            let whole = record.content + record.padding;
            if !self.skips && rest.len() < whole && !(full && taken == 0) {
                break;
            }
            let done = self.content(record, &rest[..rest.len().min(record.content)]);
            let Some(done) = done else { break };
            taken += done;
            self.record = Some(Header { content: record.content - done, ..record });
            if done < record.content {
                if done == 0 {
                    break;
                }
                continue;
            }
            self.skips = true;
            let padding = (input.len() - taken).min(record.padding);
            taken += padding;
            self.record = (padding < record.padding).then_some(Header {
                content: 0,
                padding: record.padding - padding,
                ..record
            });
            if self.record.is_some() {
                break;
            }
        }
        taken
    }

    /// Processes the contents of a record, as far as they are here; returns the length of the processed part, `None` if
    /// the request has no room for them.
    fn content(&mut self, record: Header, content: &[u8]) -> Option<usize> {
        if self.skips {
            return Some(content.len());
        }
        let complete = content.len() == record.content;
        let max = self.received_max;
        match record.kind {
            Kind::GetValuesResult if record.request == 0 => match complete.then(|| fcgi::values(content)).flatten() {
                Some(values) => self.learn(values),
                None => self.fail(),
            },
            Kind::Unknown if record.request == 0 && !self.ready => self.learn(fcgi::Values::default()),
            Kind::Stdout => {
                let Some(slot) = self.slot_of(record.request).filter(|slot| !slot.complete && !slot.ended) else {
                    return Some(content.len());
                };
                if record.content == 0 {
                    slot.complete = true;
                } else {
                    if slot.received.len() >= max {
                        return None;
                    }
                    slot.received.extend_from_slice(content);
                }
                slot.wake();
            }
            Kind::Stderr if !content.is_empty() && self.slot_of(record.request).is_some_and(|slot| !slot.ended) => {
                self.app.log(content);
            }
            Kind::EndRequest => {
                let status = complete.then(|| fcgi::end_request(content)).flatten();
                let Some(slot) = self.slot_of(record.request).filter(|slot| !slot.ended) else {
                    return Some(content.len());
                };
                slot.ended = true;
                // A record that cannot be read is an error of its request.
                slot.complete |= status.is_some();
                slot.wake();
                match status {
                    Some(EndRequest::CannotMultiplex) => self.limit = 1,
                    Some(EndRequest::Overloaded | EndRequest::UnknownRole) => self.retired = true,
                    _ => {}
                }
            }
            _ => {}
        }
        Some(content.len())
    }

    /// Applies the application's values.
    fn learn(&mut self, values: fcgi::Values) {
        if let Some(max) = values.max_requests {
            self.limit = max as usize;
        }
        if !values.multiplexes.unwrap_or(self.app.config.multiplexes) {
            self.limit = 1;
        }
        self.ready = true;
        self.wake_all();
    }
}

/// A connection to an application.
pub(crate) struct Connection {
    state: RefCell<State>,
    pooled: Pooled,
    /// What a request must have to use the connection: see [`Wanted`].
    label: Option<Arc<[u8]>>,
    address: Option<SocketAddr>,
    tls: bool,
    /// The time for which the connection stays open without a request.
    patience: Duration,
}

impl Connection {
    /// Returns the state, which nothing else has borrowed: no borrow lasts longer than a call.
    pub(crate) fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// Lends a place for one more request.
    fn lend(self: &Rc<Self>) -> Stream {
        let mut state = self.state();
        state.lent = state.lent.saturating_add(1);
        self.pooled.set_idle(&mut state.idle_since, false);
        let place = take_place(&mut state.slots);
        Stream { connection: self.clone(), place }
    }

    /// Lends no more places.
    fn retire(&self) {
        let mut state = self.state();
        state.retired = true;
        state.wake_task();
    }

    /// Reads and writes records; ready when the connection is over.
    fn poll(&self, cx: &mut Context<'_>, input: &mut Buffer, pool: &BufferPool, timer: &mut Timer) -> Poll<()> {
        let mut state = self.state();
        let state = &mut *state;
        if !state.task.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            state.task = Some(cx.waker().clone());
        }
        loop {
            let full = input.len() == pool.size();
            let taken = state.parse(input.data(), full);
            input.consume(taken);
            if state.gone {
                return Poll::Ready(());
            }
            if taken == 0 && full {
                // A request has no room.
                break;
            }
            let Some(socket) = &mut state.socket else { return Poll::Ready(()) };
            match poll_fill(socket, cx, input, pool) {
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        let was_full = !state.has_room();
        let Some(socket) = &mut state.socket else { return Poll::Ready(()) };
        let Ok(pending) = write_output(socket, cx, &mut state.output, &mut state.written) else {
            return Poll::Ready(());
        };
        if was_full && state.has_room() {
            state.wake_all();
        }
        pool.retire(input);
        if state.in_use() > 0 {
            timer.set(None);
            return Poll::Pending;
        }
        if state.retired && !pending {
            return Poll::Ready(());
        }
        let since = state.idle_since.unwrap_or_else(Instant::now);
        timer.set(Some(since + if pending { FLUSH_TIME } else { self.patience }));
        ready!(timer.poll(cx));
        self.pooled.server.lower_need(1);
        Poll::Ready(())
    }

    /// Closes the connection: its requests are gone.
    fn end(&self) {
        let mut state = self.state();
        self.pooled.set_idle(&mut state.idle_since, false);
        state.fail();
        if let Some(trace) = &state.trace {
            trace.connection(&["fconn_end"], "FCGI connection terminated");
        }
        if let Some(socket) = state.socket.take() {
            socket.shutdown_write();
        }
        state._open = None;
        state.output = Vec::new();
        state.written = 0;
    }
}

/// A place on a connection, lent to one request.
pub(crate) struct Stream {
    connection: Rc<Connection>,
    place: usize,
}

impl Stream {
    /// Returns the connection.
    pub(crate) fn connection(&self) -> &Rc<Connection> {
        &self.connection
    }

    /// Returns the place.
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    /// Returns the application.
    pub(crate) fn app(&self) -> Arc<App> {
        self.connection.state().app.clone()
    }

    /// Calls `read` with the connection's socket, if it is open.
    pub(crate) fn with_socket(&self, read: impl FnOnce(&Socket)) {
        if let Some(socket) = &self.connection.state().socket {
            read(socket);
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.connection.state();
        state.give_back(self.place);
        if state.in_use() == 0 && !state.gone {
            state.session = None;
            let pooled = &self.connection.pooled;
            state.retired |= pooled.is_used_up(state.lent) || !pooled.is_needed();
            pooled.set_idle(&mut state.idle_since, true);
        }
        state.wake_task();
    }
}

/// A new connection.
pub(super) struct Opened {
    pub(super) socket: Socket,
    pub(super) open: Open,
    pub(super) label: Option<Arc<[u8]>>,
    pub(super) address: Option<SocketAddr>,
    /// Whether requests of other sessions, or none but the first, may use the connection.
    pub(super) session: Option<u32>,
    pub(super) shared: bool,
}

/// One worker's connections to applications under one configuration.
pub(crate) struct Connections {
    by_server: ByServer<Connection>,
    worker: usize,
    openings: Rc<Openings>,
    buffers: Rc<BufferPool>,
    logger: Logger,
}

impl Connections {
    /// Returns a set without connections.
    pub(crate) fn new(worker: usize, buffers: Rc<BufferPool>, logger: Logger) -> Connections {
        Connections { by_server: ByServer::default(), worker, openings: Rc::default(), buffers, logger }
    }

    /// Lends a place of an open connection; also returns the number of places that were lent before.
    /// With `proven_only` it is one that was reused before.
    pub(super) fn take(
        &self,
        server: &ServerRun,
        app: &Arc<App>,
        wanted: &Wanted<'_>,
        proven_only: bool,
    ) -> Option<(Stream, u32)> {
        let tls = server.tls().is_some();
        self.by_server.find(&server.shared, |connection| {
            if connection.label.as_deref() != wanted.label
                || connection.address != wanted.address
                || connection.tls != tls
            {
                return None;
            }
            let mut state = connection.state();
            let busy = state.in_use() > 0;
            let other =
                busy && (state.session.is_some() || wanted.session.is_some()) && state.session != wanted.session;
            let before = state.lent;
            if other
                || !state.has_place()
                || (proven_only && before <= 1)
                || !Arc::ptr_eq(&state.app.config, &app.config)
            {
                return None;
            }
            if connection.pooled.is_used_up(before) {
                drop(state);
                connection.retire();
                return None;
            }
            state.session = wanted.session;
            drop(state);
            Some((connection.lend(), before))
        })
    }

    /// Joins a connection to the server that is being opened, or begins to open one: see [`super::opening`].
    pub(super) fn join_opening(&self, server: &ServerRun, app: &App, wanted: &Wanted<'_>) -> Part {
        let sought = Sought {
            server: key_of(&server.shared),
            label: wanted.label.map(Arc::from),
            address: wanted.address,
            tls: server.tls().is_some(),
        };
        // The request that opens the connection has its first place.
        let others = server.config.pool.max_reuse.unwrap_or(u32::MAX).min(app.config.max_requests - 1);
        self.openings.join(sought, others)
    }

    /// Begins the protocol on a new connection, and lends its first place.
    pub(super) fn add(self: &Rc<Self>, server: &Arc<ServerRun>, app: &Arc<App>, opened: Opened) -> Stream {
        let Opened { mut socket, open, label, address, session, shared } = opened;
        if let Some(tls) = socket.tls_mut() {
            tls.multiplex();
        }
        let mut state = State::new(app, Some(socket), Some(open), self.buffers.size());
        state.retired |= !shared;
        state.session = session;
        let trace = Trace::new(Source::Fcgi, &self.logger, self.worker, server);
        trace.connection(&["fconn_new"], "new FCGI connection");
        if app.config.get_values {
            trace.unit(&["tx_get_values", "tx_record"], "FCGI GET_VALUES record xferred", 0);
        }
        state.trace = Some(trace);
        let own = server.reuse == HttpReuse::Never;
        let patience = if own { Some(OWN_IDLE) } else { server.config.pool.purge_delay };
        let pooled = Pooled::new(server, self.worker);
        let connection = Rc::new(Connection {
            state: RefCell::new(state),
            pooled: if own { pooled.own() } else { pooled },
            label,
            address,
            tls: server.tls().is_some(),
            patience: patience.unwrap_or_default(),
        });
        self.by_server.add(&server.shared, connection.clone());
        let stream = connection.lend();
        tokio::task::spawn_local(run(connection, self.buffers.clone(), Rc::downgrade(self)));
        stream
    }

    /// Ends the connections whose label starts with `label` once they have no request.
    pub(crate) fn forget(&self, label: &[u8]) {
        self.by_server.each(|connection| {
            if connection.label.as_ref().is_some_and(|known| known.starts_with(label)) {
                connection.retire();
            }
        });
    }
}

/// The connections of a configuration that is gone serve no more requests.
impl Drop for Connections {
    fn drop(&mut self) {
        self.by_server.each(|connection| connection.retire());
    }
}

async fn run(connection: Rc<Connection>, buffers: Rc<BufferPool>, owner: Weak<Connections>) {
    let (mut input, mut timer) = (Buffer::default(), Timer::default());
    poll_fn(|cx| connection.poll(cx, &mut input, &buffers, &mut timer)).await;
    buffers.reclaim(&mut input);
    connection.end();
    if let Some(owner) = owner.upgrade() {
        owner.by_server.remove(&connection.pooled.server, &connection);
    }
}

/// Feeds any bytes to a connection with requests: no request gets more than was received or than it has room for, and
/// what is read does not depend on how it arrives.
pub fn fuzz_application(bytes: &[u8]) {
    const REQUESTS: usize = 3;
    const SIZE: usize = 64;
    let app = |get_values| {
        let config = FcgiApp {
            name: "a".into(),
            docroot: "/".into(),
            index: None,
            path_info: None,
            keep_conn: true,
            get_values,
            multiplexes: true,
            max_requests: REQUESTS as u32,
            rules: Vec::new(),
            log: Vec::new(),
            log_global: false,
            at: sluicegate_config::model::Position { file: "".into(), line: 0, column: 0 },
        };
        Arc::new(App::new(Arc::new(config), Box::new(|_| ())))
    };
    for get_values in [false, true] {
        let feed = |step: usize| {
            let mut state = State::new(&app(get_values), None, None, SIZE);
            for _ in 0..REQUESTS {
                let place = take_place(&mut state.slots);
                state.begin(place, b"");
            }
            let (mut held, mut all) = (Vec::new(), vec![Vec::new(); REQUESTS]);
            for part in bytes.chunks(step) {
                held.extend_from_slice(part);
                loop {
                    let room = held.len().min(SIZE);
                    let taken = state.parse(&held[..room], room == SIZE);
                    held.drain(..taken);
                    for (place, all) in all.iter_mut().enumerate() {
                        let slot = state.slot(place).expect("it is lent");
                        assert!(slot.received.len() < 2 * SIZE);
                        all.append(&mut slot.received);
                    }
                    if taken == 0 || state.is_gone() {
                        break;
                    }
                }
            }
            assert!(all.iter().map(Vec::len).sum::<usize>() <= bytes.len());
            let ends: Vec<_> =
                (0..REQUESTS).map(|place| state.slot(place).map(|slot| (slot.complete, slot.ended))).collect();
            (all, ends, state.gone, state.ready)
        };
        assert_eq!(feed(bytes.len().max(1)), feed(SIZE));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn fuzz_application_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz_application(&bytes);
        }

        #[test]
        fn fuzz_application_on_records(
            records in prop::collection::vec(
                (
                    prop_oneof![Just(3u8), Just(6), Just(7), Just(10), any::<u8>()],
                    0u8..7,
                    prop::collection::vec(any::<u8>(), 0..100),
                    0u8..9,
                ),
                0..8,
            ),
        ) {
            let mut bytes = Vec::new();
            for (kind, request, content, padding) in records {
                bytes.extend([1, kind, 0, request, 0, content.len() as u8, padding, 0]);
                bytes.extend(&content);
                bytes.resize(bytes.len() + usize::from(padding), 0);
            }
            fuzz_application(&bytes);
        }
    }
}
