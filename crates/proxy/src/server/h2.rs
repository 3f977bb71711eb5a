//! Connections of HTTP/2 to servers: each belongs to a task of the worker that opened it, and lends streams.
//!
//! [`Connections`] has the connections of one worker under one configuration. A request gets a [`Stream`], a reserved
//! place on a connection; the identifier is chosen when its head is sent, because heads have to be sent in the order of
//! identifiers. The connection's task reads frames, distributes them to its streams, and writes the frames of all
//! streams together. All of it is on one thread: [`State`] is borrowed for moments only.
//!
//! `http-reuse` decides who shares a connection: under `never` and `safe` a busy one serves a single session, otherwise
//! any. Connections are not taken over by other workers. One without streams is closed if the server has more
//! connections than were needed lately ([`super::idle::is_needed`]), or after `pool-purge-delay`, and tested by `idle-ping`.
//! Under `always` requests wait for a connection that is being opened ([`super::opening`]).
//!
//! A server may also have opened a connection itself: see [`attached`].
//!
//! **Memory.** A stream holds at most its window of received data and [`HEADS_MAX`] of heads. The output of a connection
//! is limited; beyond it streams wait, and so does the reading of frames that need an answer. An idle connection has no
//! buffers but the tables of HPACK.

pub(crate) mod attached;
mod exchange;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use sluicegate_transport::{Buffer, BufferPool, Socket, Timer};
use sluicegate_wire::http::{Message, ResponseHead};
use sluicegate_wire::http2::{self, Blocked, ErrorCode, Event, Progress, StreamKey};

use super::by_server::{ByServer, key_of};
use super::idle::Open;
use super::opening::{ConnectError, Openings, Part, Sought};
use super::pooled::Pooled;
use super::run::ServerRun;
use super::shared::BackendShared;
use crate::counters::Http2Counters;
use crate::process::Process;

/// The bytes of heads that may wait for a stream's task: interim responses, and the final one.
const HEADS_MAX: usize = 64 * 1024;

/// The memory of a head beside its bytes, by which many small ones are limited, too.
const HEAD_COST: usize = 256;

/// The most heads and buffers that a connection keeps for its next streams.
const KEPT_MAX: usize = 4;

/// The time for which a connection without streams is kept for its session under `http-reuse never`.
const OWN_IDLE: Duration = Duration::from_secs(5);

/// The time in which a peer has to read what remains to be written when no stream is left.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// A stream as the connection sees it.
#[derive(Default)]
pub(crate) struct Slot {
    key: Option<StreamKey>,
    /// Responses that the stream has not taken yet.
    heads: VecDeque<(Message, ResponseHead)>,
    /// Their bytes, and [`HEAD_COST`] of each.
    heads_size: usize,
    /// Data that the stream has not taken yet.
    pub(crate) received: Vec<u8>,
    /// Whether the server's message is complete.
    pub(crate) complete: bool,
    pub(crate) trailers: Option<Message>,
    /// Whether the stream was reset, and whether because its response is malformed.
    pub(crate) reset: bool,
    pub(crate) malformed: bool,
    waker: Option<Waker>,
}

impl Slot {
    /// Adds a response; returns `false` if too many wait already.
    fn push_head(&mut self, message: Message, head: ResponseHead) -> bool {
        if self.heads_size >= HEADS_MAX {
            return false;
        }
        self.heads_size += message.wire_len() + HEAD_COST;
        self.heads.push_back((message, head));
        true
    }

    /// Returns the next response.
    pub(crate) fn pop_head(&mut self) -> Option<(Message, ResponseHead)> {
        let (message, head) = self.heads.pop_front()?;
        self.heads_size -= message.wire_len() + HEAD_COST;
        Some((message, head))
    }

    /// Registers the task that is woken when something happens to the stream.
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

/// The part of a connection that its task and its streams share.
pub(crate) struct State {
    pub(crate) wire: http2::Connection,
    /// `None` once the connection is over and its last stream has ended.
    socket: Option<Socket>,
    open: Option<Open>,
    /// The place of a connection that the server has opened.
    place: Option<attached::Place>,
    /// The head that is decoded next.
    message: Message,
    /// By [`StreamKey::slot`].
    slots: Vec<Slot>,
    task: Option<Waker>,
    /// Tasks that wait for room in the output before they have a slot.
    starting: Vec<Waker>,
    /// Whether the connection is over: all its streams are gone.
    gone: bool,
    /// Whether no further stream begins.
    retired: bool,
    /// Whether some stream waits for room in the output.
    waits_for_room: bool,
    /// Streams that are lent and have not begun.
    reserved: u32,
    /// The number of streams that were lent.
    lent: u32,
    /// The only session that may use the connection while it is busy.
    session: Option<u32>,
    /// The time since which no stream is lent; the connection is counted as idle then.
    idle_since: Option<Instant>,
    messages: Vec<Message>,
    buffers: Vec<Vec<u8>>,
}

impl State {
    /// Returns a stream's slot.
    pub(crate) fn slot(&mut self, key: StreamKey) -> Option<&mut Slot> {
        self.slots.get_mut(key.slot()).filter(|slot| slot.key == Some(key))
    }

    /// Returns whether the connection is over.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Returns whether nothing more can be sent on a stream.
    pub(crate) fn is_shut(&self, key: StreamKey) -> bool {
        self.gone || self.slots.get(key.slot()).is_none_or(|slot| slot.key != Some(key) || slot.reset)
    }

    /// Wakes the connection's task, which writes the output.
    pub(crate) fn wake_task(&self) {
        if let Some(task) = &self.task {
            task.wake_by_ref();
        }
    }

    /// Registers a task that waits for room in the output, or for the server's settings.
    pub(crate) fn wait_for_room(&mut self, key: Option<StreamKey>, cx: &Context<'_>) {
        // A closed window wakes the stream by itself when it opens.
        self.waits_for_room |= key.is_none() || self.wire.is_output_full();
        if let Some(slot) = key.and_then(|key| self.slot(key)) {
            slot.wait(cx);
        } else if !self.starting.iter().any(|known| known.will_wake(cx.waker())) {
            self.starting.push(cx.waker().clone());
        }
    }

    fn wake_all(&mut self) {
        self.slots.iter().for_each(Slot::wake);
        self.starting.drain(..).for_each(Waker::wake);
    }

    /// Returns an empty message.
    pub(crate) fn take_message(&mut self) -> Message {
        self.messages.pop().unwrap_or_default()
    }

    /// Keeps the memory of a message for a later one.
    pub(crate) fn keep_message(&mut self, mut message: Message) {
        if self.messages.len() < KEPT_MAX {
            message.clear();
            self.messages.push(message);
        }
    }

    /// Keeps the memory of a buffer for a later one.
    pub(crate) fn keep_buffer(&mut self, mut buffer: Vec<u8>) {
        if self.buffers.len() < KEPT_MAX && buffer.capacity() > 0 {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// Returns whether no stream is lent.
    fn is_idle(&self) -> bool {
        self.reserved == 0 && self.wire.held_streams() == 0
    }

    /// Closes the socket of a connection that is over, unless a stream still refers to it.
    fn close_if_idle(&mut self) {
        if self.gone && self.is_idle() {
            (self.socket, self.open, self.place) = (None, None, None);
        }
    }

    /// Returns whether another stream can be lent.
    fn has_place(&self) -> bool {
        self.wire.is_greeted() && !self.gone && !self.retired && self.wire.available_streams() > self.reserved
    }

    fn apply(&mut self, event: Event, input: &[u8]) {
        match event {
            Event::Response { stream, head, end } => {
                let next = self.take_message();
                let message = std::mem::replace(&mut self.message, next);
                let Some(slot) = self.slot(stream) else { return };
                if !slot.push_head(message, head) {
                    (slot.reset, slot.malformed) = (true, true);
                    slot.wake();
                    return self.wire.reset(stream, ErrorCode::ENHANCE_YOUR_CALM);
                }
                slot.complete |= end;
                slot.wake();
            }
            Event::Data { stream, range } => {
                if let Some(slot) = self.slot(stream) {
                    slot.received.extend_from_slice(&input[range]);
                    slot.wake();
                }
            }
            Event::Trailers { stream } => {
                let trailers = std::mem::take(&mut self.message);
                if let Some(slot) = self.slot(stream) {
                    (slot.trailers, slot.complete) = (Some(trailers), true);
                    slot.wake();
                }
            }
            Event::End { stream } => {
                if let Some(slot) = self.slot(stream) {
                    slot.complete = true;
                    slot.wake();
                }
            }
            Event::Reset { stream, by_peer, .. } => {
                // To HAProxy only a malformed head is an invalid response; after other errors, such as too much data, the
                // server has disconnected.
                let malformed = !by_peer && self.wire.is_receiving_head();
                if let Some(slot) = self.slot(stream) {
                    (slot.reset, slot.malformed) = (true, malformed);
                    slot.wake();
                }
            }
            Event::Writable { stream: Some(stream) } => {
                if let Some(slot) = self.slot(stream) {
                    slot.wake();
                }
            }
            Event::Writable { stream: None } | Event::Settings | Event::GoAway { .. } => self.wake_all(),
            Event::Request { .. } | Event::Refused { .. } | Event::Pong(_) => {}
        }
    }
}

/// The times of a connection's task.
struct Times {
    timer: Timer,
    /// The time at which something was last sent or received on an idle connection that is tested.
    active_at: Instant,
}

/// A connection to a server.
pub(crate) struct Connection {
    state: RefCell<State>,
    pooled: Pooled,
    /// The backend, whose figures count the connection.
    backend: Arc<BackendShared>,
    worker: usize,
    /// What a request must have to use the connection: see [`Wanted`].
    label: Option<Arc<[u8]>>,
    address: Option<SocketAddr>,
    tls: bool,
    /// Whether the server has opened it.
    attached: bool,
    /// Whether it counts as ended when it is dropped: it has not moved to another worker.
    counted: Cell<bool>,
    /// The time for which the connection stays open without a stream.
    patience: Duration,
    /// The silence after which an idle connection is tested (`idle-ping`).
    ping: Option<Duration>,
    /// See [`Connections`].
    glitches_load: Option<(Arc<Process>, u32)>,
}

impl Connection {
    /// Returns the state, which nothing else has borrowed: no borrow lasts longer than a call.
    pub(crate) fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    fn figures(&self) -> &Http2Counters {
        &self.backend.figures.at(self.worker).http2
    }

    fn set_idle(&self, state: &mut State, idle: bool) {
        let was_idle = state.idle_since.is_some();
        self.pooled.set_idle(&mut state.idle_since, idle);
        if let Some(place) = state.place.as_ref().filter(|_| idle && !was_idle) {
            place.tell();
        }
    }

    /// Reads and writes frames; ready when the connection is over.
    fn poll(&self, cx: &mut Context<'_>, input: &mut Buffer, pool: &BufferPool, times: &mut Times) -> Poll<()> {
        let mut state = self.state();
        let state = &mut *state;
        if !state.task.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            state.task = Some(cx.waker().clone());
        }
        state.wire.begin_turn();
        if let Some((process, least)) = &self.glitches_load {
            state.wire.set_strict(process.kills_glitches(self.worker, *least));
        }
        let mut failed = state.wire.failure().is_some();
        let (mut again, mut active) = (false, false);
        loop {
            // All received bytes are parsed before anything is written, and vice versa.
            let (mut parsing, mut blocked) = (!failed, false);
            while parsing {
                // `receive` is called even without input, because an event may have to follow the last one.
                match state.wire.receive(input.data(), &mut state.message) {
                    Ok((count, progress)) => {
                        match progress {
                            Progress::Event(event) => state.apply(event, input.data()),
                            Progress::Idle => parsing = false,
                            Progress::Blocked(why) => {
                                (parsing, blocked) = (false, true);
                                again |= why == Blocked::Turn;
                            }
                        }
                        input.consume(count);
                    }
                    Err(_) => (failed, parsing) = (true, false),
                }
            }
            let Some(socket) = &mut state.socket else { return Poll::Ready(()) };
            while !state.wire.output().is_empty() {
                match socket.poll_write(cx, state.wire.output()) {
                    Poll::Ready(Ok(count)) => {
                        state.wire.wrote(count);
                        active = true;
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => break,
                }
            }
            if failed {
                break;
            }
            if blocked {
                // Answers that waited may be written now.
                if state.wire.blocked().is_none() {
                    continue;
                }
                break;
            }
            match poll_fill(socket, cx, input, pool) {
                Poll::Ready(Some(_)) => active = true,
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        if std::mem::take(&mut state.waits_for_room) {
            match state.wire.is_output_full() {
                true => state.waits_for_room = true,
                false => state.wake_all(),
            }
        }
        if again {
            cx.waker().wake_by_ref();
        }
        pool.retire(input);
        let pending = !state.wire.output().is_empty();
        if failed {
            // The connection's streams end now; the server may still read the reason.
            if !std::mem::replace(&mut state.gone, true) {
                state.wake_all();
            }
            if !pending {
                return Poll::Ready(());
            }
        }
        if !state.is_idle() && !failed {
            times.timer.set(None);
            return Poll::Pending;
        }
        if !pending && (state.retired || state.wire.is_last_stream_opened()) {
            return Poll::Ready(());
        }
        let idle_since = state.idle_since.unwrap_or_else(Instant::now);
        let end = idle_since + if pending { FLUSH_TIME } else { self.patience };
        let test = self.ping.filter(|_| !pending && state.wire.is_greeted()).map(|silence| {
            if active {
                times.active_at = Instant::now();
            }
            times.active_at.max(idle_since) + silence
        });
        let test = test.filter(|test| *test < end);
        times.timer.set(Some(test.unwrap_or(end)));
        ready!(times.timer.poll(cx));
        if test.is_some() && !state.wire.awaits_pong() {
            state.wire.ping();
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if test.is_none() && !pending && self.attached && !attached::is_surplus(&self.pooled.server) {
            state.idle_since = Some(Instant::now());
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.pooled.server.lower_need(1);
        Poll::Ready(())
    }

    /// Ends the connection: its streams are gone.
    fn end(&self) {
        let mut state = self.state();
        self.figures().add(&state.wire.take_counts());
        self.set_idle(&mut state, false);
        (state.gone, state.place) = (true, None);
        state.wake_all();
        let state = &mut *state;
        let Some(socket) = &mut state.socket else { return };
        if state.wire.failure().is_none() && state.wire.goaway_sent().is_none() {
            state.wire.goaway(0, ErrorCode::NO_ERROR);
            // One attempt: a server that does not read is not waited for.
            let mut cx = Context::from_waker(Waker::noop());
            let _ = socket.poll_write(&mut cx, state.wire.output());
        }
        socket.shutdown_write();
        state.close_if_idle();
    }
}

/// Reads available data; `None`: the server has closed its side or broken the connection.
pub(super) fn poll_fill(
    socket: &mut Socket,
    cx: &mut Context<'_>,
    input: &mut Buffer,
    pool: &BufferPool,
) -> Poll<Option<usize>> {
    // Without readiness no buffer is taken.
    if ready!(socket.poll_read_ready(cx)).is_err() {
        return Poll::Ready(None);
    }
    pool.equip(input);
    if input.spare().is_empty() {
        input.compact();
    }
    if input.spare().is_empty() {
        return Poll::Pending;
    }
    match socket.poll_read(cx, input.spare()) {
        Poll::Ready(Ok(count)) if count > 0 => {
            input.filled(count);
            Poll::Ready(Some(count))
        }
        Poll::Ready(_) => Poll::Ready(None),
        Poll::Pending => {
            pool.retire(input);
            Poll::Pending
        }
    }
}

/// A stream of a connection, lent to one request. Dropping it resets it, unless both its messages are complete.
pub(crate) struct Stream {
    connection: Rc<Connection>,
    key: Option<StreamKey>,
}

/// What fetches report of a stream and its connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamFacts {
    /// The number of the stream; 0 before it begins.
    pub id: u32,
    /// The code with which the server has reset the stream.
    pub reset: Option<u32>,
    /// The streams that are open.
    pub streams: u32,
    /// The streams that may be open at once.
    pub limit: u32,
    /// The anomalies of the connection.
    pub glitches: u32,
}

impl Stream {
    /// Returns the present facts.
    pub(crate) fn facts(&self) -> StreamFacts {
        let state = self.connection.state();
        StreamFacts {
            id: self.key.map_or(0, StreamKey::id),
            reset: self.key.and_then(|key| state.wire.code_received(key)).map(|code| code.0),
            streams: state.wire.open_streams() + state.reserved,
            limit: state.wire.streams_limit(),
            glitches: state.wire.glitches(),
        }
    }

    /// Waits until the server has sent its settings. Until then, as in HAProxy, the connection is not established: no
    /// request is sent, so any can be repeated on another connection. If that fails, the connection lends no more streams.
    pub(super) async fn greeted(&self, limit: Option<Duration>) -> Result<(), ConnectError> {
        let greeted = poll_fn(|cx| {
            let mut state = self.connection.state();
            if state.wire.is_greeted() {
                return Poll::Ready(Ok(()));
            }
            if state.gone {
                return Poll::Ready(Err(ConnectError::Refused));
            }
            state.wait_for_room(None, cx);
            Poll::Pending
        });
        let greeted = match limit {
            Some(limit) => tokio::time::timeout(limit, greeted).await.unwrap_or(Err(ConnectError::TimedOut)),
            None => greeted.await,
        };
        if greeted.is_err() {
            self.connection.retire();
        }
        greeted
    }

    /// Returns the connection.
    pub(crate) fn connection(&self) -> &Rc<Connection> {
        &self.connection
    }

    /// Returns its key, if it has begun.
    pub(crate) fn key(&self) -> Option<StreamKey> {
        self.key
    }

    /// Begins the stream, whose head must be sent next; `None`: the server accepts no more streams.
    pub(crate) fn begin(&mut self, state: &mut State) -> Option<StreamKey> {
        let key = state.wire.open()?;
        self.connection.figures().total_streams.add(1);
        state.reserved -= 1;
        self.key = Some(key);
        if state.slots.len() <= key.slot() {
            state.slots.resize_with(key.slot() + 1, Slot::default);
        }
        let received = state.buffers.pop().unwrap_or_default();
        state.slots[key.slot()] = Slot { key: Some(key), received, ..Slot::default() };
        Some(key)
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
        f.debug_struct("Stream").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.connection.state();
        match self.key {
            None => state.reserved -= 1,
            Some(key) => {
                self.connection.figures().ended_streams.add(1);
                state.wire.release(key);
                if let Some(slot) = state.slot(key) {
                    let slot = std::mem::take(slot);
                    state.keep_buffer(slot.received);
                }
            }
        }
        if state.is_idle() && !state.gone {
            state.session = None;
            let pooled = &self.connection.pooled;
            state.retired |= pooled.is_used_up(state.lent) || !pooled.is_needed();
            self.connection.set_idle(&mut state, true);
        }
        state.close_if_idle();
        state.wake_task();
    }
}

/// What a request needs of a connection.
pub(super) struct Wanted<'a> {
    /// The label, as of idle connections of HTTP/1.
    pub(super) label: Option<&'a [u8]>,
    /// The server's present address.
    pub(super) address: Option<SocketAddr>,
    /// The request's session, if a busy connection serves one session only.
    pub(super) session: Option<u32>,
}

/// A new connection whose protocol is HTTP/2.
pub(super) struct Opened {
    pub(super) socket: Socket,
    pub(super) open: Open,
    pub(super) label: Option<Arc<[u8]>>,
    pub(super) address: Option<SocketAddr>,
    /// Whether requests of other sessions, or none but the first, may use the connection.
    pub(super) session: Option<u32>,
    pub(super) shared: bool,
}

/// A connection on which HTTP/2 has begun.
struct Begun {
    wire: http2::Connection,
    socket: Socket,
    open: Open,
    label: Option<Arc<[u8]>>,
    address: Option<SocketAddr>,
    session: Option<u32>,
    shared: bool,
    attached: Option<attached::Place>,
    /// Received bytes that are not parsed yet.
    input: Buffer,
}

/// One worker's connections of HTTP/2 to all servers under one configuration.
pub(crate) struct Connections {
    by_server: ByServer<Connection>,
    worker: usize,
    settings: http2::Settings,
    /// The process, and the load of a worker from which on glitches end a connection; `None`: always.
    glitches_load: Option<(Arc<Process>, u32)>,
    /// The streams of a connection whose server's settings are not known yet.
    streams: u32,
    openings: Rc<Openings>,
    buffers: Rc<BufferPool>,
    /// Whether the configuration has a server that may speak HTTP/2.
    used: bool,
}

impl Connections {
    /// Returns a set without connections.
    pub(crate) fn new(
        worker: usize,
        settings: http2::Settings,
        glitches_load: Option<(Arc<Process>, u32)>,
        buffers: Rc<BufferPool>,
        used: bool,
    ) -> Connections {
        let streams = http2::Connection::client(settings).available_streams();
        let (by_server, openings) = (ByServer::default(), Rc::default());
        Connections { by_server, worker, settings, glitches_load, streams, openings, buffers, used }
    }

    /// Returns whether the configuration has a server that may speak HTTP/2.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.used
    }

    /// Lends a stream of an open connection; also returns the number of streams that were lent before.
    pub(super) fn take(&self, server: &ServerRun, wanted: &Wanted<'_>) -> Option<(Stream, u32)> {
        let tls = server.tls().is_some();
        self.by_server.find(&server.shared, |connection| {
            if connection.label.as_deref() != wanted.label
                || connection.address != wanted.address
                || connection.tls != tls && !connection.attached
            {
                return None;
            }
            let mut state = connection.state();
            let busy = !state.is_idle();
            let other =
                busy && (state.session.is_some() || wanted.session.is_some()) && state.session != wanted.session;
            if !state.has_place() || other {
                return None;
            }
            if connection.pooled.is_used_up(state.lent) {
                drop(state);
                connection.retire();
                return None;
            }
            let before = state.lent;
            state.session = wanted.session;
            drop(state);
            Some((connection.lend(), before))
        })
    }

    /// Returns whether a connection to the server serves only this session, whose reserved connections have this label.
    pub(super) fn serves_alone(&self, server: &ServerRun, session: u32, label: &[u8]) -> bool {
        let found = self.by_server.find(&server.shared, |connection| {
            let state = connection.state();
            let own = connection.label.as_deref().is_some_and(|known| known.starts_with(label));
            ((own || state.session == Some(session)) && state.wire.is_greeted() && !state.gone).then_some(())
        });
        found.is_some()
    }

    /// Joins a connection to the server that is being opened, or begins to open one: see [`super::opening`].
    pub(super) fn join_opening(&self, server: &ServerRun, wanted: &Wanted<'_>) -> Part {
        let sought = Sought {
            server: key_of(&server.shared),
            label: wanted.label.map(Arc::from),
            address: wanted.address,
            tls: server.tls().is_some(),
        };
        // The request that opens the connection has its first stream.
        let others = server.config.pool.max_reuse.unwrap_or(u32::MAX).min(self.streams.saturating_sub(1));
        self.openings.join(sought, others)
    }

    /// Begins HTTP/2 on a new connection, and lends its first stream.
    pub(super) fn add(self: &Rc<Self>, server: &Arc<ServerRun>, opened: Opened) -> Stream {
        let Opened { socket, open, label, address, session, shared } = opened;
        let (wire, input) = (http2::Connection::client(self.settings), Buffer::default());
        let begun = Begun { wire, socket, open, label, address, session, shared, attached: None, input };
        let connection = self.insert(server, begun);
        connection.figures().total_connections.add(1);
        connection.lend()
    }

    /// Keeps a connection, whose task begins to read and write.
    fn insert(self: &Rc<Self>, server: &Arc<ServerRun>, begun: Begun) -> Rc<Connection> {
        let Begun { wire, mut socket, open, label, address, session, shared, attached, input } = begun;
        if let Some(tls) = socket.tls_mut() {
            tls.multiplex();
        }
        let is_attached = attached.is_some();
        let state = State {
            wire,
            socket: Some(socket),
            open: Some(open),
            place: attached,
            message: Message::new(),
            slots: Vec::new(),
            task: None,
            starting: Vec::new(),
            gone: false,
            retired: !shared,
            waits_for_room: false,
            reserved: 0,
            lent: 0,
            session,
            idle_since: None,
            messages: Vec::new(),
            buffers: Vec::new(),
        };
        let own = server.reuse == sluicegate_config::model::HttpReuse::Never;
        let patience = if own { Some(OWN_IDLE) } else { server.config.pool.purge_delay };
        let pooled = Pooled::new(server, self.worker);
        let pooled = match (own, is_attached) {
            (true, _) => pooled.own(),
            (false, true) => pooled.lasting(),
            (false, false) => pooled,
        };
        let connection = Rc::new(Connection {
            state: RefCell::new(state),
            pooled,
            backend: server.backend.clone(),
            worker: self.worker,
            label,
            address,
            tls: server.tls().is_some(),
            attached: is_attached,
            counted: Cell::new(true),
            patience: patience.unwrap_or_default(),
            ping: server.config.pool.idle_ping,
            glitches_load: self.glitches_load.clone(),
        });
        self.by_server.add(&server.shared, connection.clone());
        tokio::task::spawn_local(run(connection.clone(), input, self.buffers.clone(), Rc::downgrade(self)));
        connection
    }

    fn remove(&self, connection: &Rc<Connection>) {
        self.by_server.remove(&connection.pooled.server, connection);
    }

    /// Ends the connections whose label starts with `label` once they have no stream.
    pub(crate) fn forget(&self, label: &[u8]) {
        if !self.used {
            return;
        }
        self.by_server.each(|connection| {
            if connection.label.as_ref().is_some_and(|known| known.starts_with(label)) {
                connection.retire();
            }
        });
    }

    /// Ends a connection to the server that has no stream, to make room for another.
    pub(super) fn close_one(&self, server: &ServerRun) -> bool {
        let ended = self.by_server.find(&server.shared, |connection| {
            let idle = connection.state().is_idle() && connection.state().open.is_some();
            idle.then(|| {
                connection.end();
                connection.state().wake_task();
            })
        });
        ended.is_some()
    }
}

/// The connections of a configuration that is gone serve no more requests.
impl Drop for Connections {
    fn drop(&mut self) {
        self.by_server.each(|connection| connection.retire());
    }
}

impl Connection {
    /// Lends a place for one more stream.
    fn lend(self: &Rc<Self>) -> Stream {
        let mut state = self.state();
        state.reserved += 1;
        state.lent = state.lent.saturating_add(1);
        self.pooled.set_idle(&mut state.idle_since, false);
        Stream { connection: self.clone(), key: None }
    }

    /// Lends no more streams.
    fn retire(&self) {
        let mut state = self.state();
        state.retired = true;
        state.wake_task();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.counted.get() {
            self.figures().ended_connections.add(1);
        }
    }
}

async fn run(connection: Rc<Connection>, mut input: Buffer, buffers: Rc<BufferPool>, owner: Weak<Connections>) {
    let mut times = Times { timer: Timer::default(), active_at: Instant::now() };
    poll_fn(|cx| {
        let polled = connection.poll(cx, &mut input, &buffers, &mut times);
        let counts = connection.state().wire.take_counts();
        if counts != http2::Counts::default() {
            connection.figures().add(&counts);
        }
        polled
    })
    .await;
    buffers.reclaim(&mut input);
    connection.end();
    if let Some(owner) = owner.upgrade() {
        owner.remove(&connection);
    }
}
