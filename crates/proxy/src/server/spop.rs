//! Connections to agents (SPOP): each belongs to a task of the worker that opened it, and serves several exchanges.
//!
//! A connection begins with hellos; messages that are sent meanwhile wait for the agent's. As in HAProxy 3.2 it then
//! has up to [`EXCHANGES_MAX`] exchanges at a time, or one if either side has no `pipelining`. An exchange is a NOTIFY
//! with a stream number of its own, and the ACK of this number. Only exchanges of the same engine share connections.
//! Connections are not taken over by other workers. One without exchanges is closed if the server has more connections
//! than were needed lately, or after `pool-purge-delay` or `timeout server`, whichever is shorter.
//!
//! An error of the protocol ends the connection and its exchanges: the agent is told the reason (DISCONNECT), which it has
//! [`FLUSH_TIME`] to read.
//!
//! **Memory.** The input is a buffer of `tune.bufsize`, which no frame exceeds. A connection whose agent has not read
//! [`OUTPUT_MAX`] bytes gets no further exchanges, and is closed once those that it has have given up.

use std::cell::{RefCell, RefMut};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use sluicegate_config::model::ProxyId;
use sluicegate_transport::{Buffer, BufferPool, Socket, Timer};
use sluicegate_wire::spop::{self, AgentHello, Frame, Greeting, Messages, Status};

use super::by_server::{ByServer, key_of};
use super::h2::poll_fill;
use super::idle::Open;
use super::opening::{Openings, Part, Sought};
use super::pooled::{Pooled, take_place, write_output};
use super::run::ServerRun;
use super::traced::Trace;
use crate::log::{Logger, Source};
use crate::spoe::{Answer, Engine, OF_CONNECTION};

/// The maximum number of exchanges at a time; HAProxy's.
const EXCHANGES_MAX: usize = 20;

/// The bytes that an agent may leave unread before its connection gets no further exchanges.
const OUTPUT_MAX: usize = 64 << 10;

/// The last number of a stream.
const STREAM_LAST: u64 = 0x7fff_ffff;

/// The time in which an agent has to read the reason why its connection ends.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// The number of the frame of each NOTIFY: a stream has one.
const FRAME: u64 = 1;

/// Returns the status of exchanges whose connection has failed.
fn failed(status: u64) -> Answer {
    Err(status.saturating_add(OF_CONNECTION))
}

/// An exchange.
#[derive(Debug, Default)]
struct Slot {
    /// Its number once it was sent.
    stream: Option<u64>,
    /// Messages that wait for the agent's hello.
    unsent: Option<Messages>,
    answer: Option<Answer>,
    waker: Option<Waker>,
}

impl Slot {
    fn set(&mut self, answer: Answer) {
        if self.answer.is_none() {
            self.answer = Some(answer);
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The agent's hello has not come.
    Hello,
    Running,
    /// The connection is over, and so are its exchanges.
    Over,
}

struct State {
    /// `None` once the connection is closed.
    socket: Option<Socket>,
    /// The count of the connection.
    _open: Option<Open>,
    phase: Phase,
    output: Vec<u8>,
    /// The part of the output that is written.
    written: usize,
    /// By place; those that are lent have an entry.
    slots: Vec<Option<Slot>>,
    next_stream: u64,
    /// The number of exchanges at a time.
    limit: usize,
    max_frame_size: usize,
    /// Whether no further exchange begins.
    retired: bool,
    lent: u32,
    idle_since: Option<Instant>,
    task: Option<Waker>,
    /// `None` for a connection of a test.
    trace: Option<Trace>,
}

impl State {
    /// Returns the state of a new connection, whose output is the hello.
    fn new(engine: &Engine, socket: Option<Socket>, open: Option<Open>, trace: Option<Trace>) -> State {
        let mut output = Vec::new();
        let greeting = Greeting::Engine { id: &engine.id, pipelining: engine.pipelining };
        spop::write_hello(&mut output, engine.max_frame_size, greeting);
        State {
            socket,
            _open: open,
            phase: Phase::Hello,
            output,
            written: 0,
            slots: Vec::new(),
            next_stream: 1,
            limit: if engine.pipelining { EXCHANGES_MAX } else { 1 },
            max_frame_size: engine.max_frame_size as usize,
            retired: false,
            lent: 0,
            idle_since: None,
            task: None,
            trace,
        }
    }

    /// Reports a frame to the traces of the process.
    fn trace(&self, events: &'static [&'static str], text: &str, stream: u64) {
        if let Some(trace) = &self.trace {
            trace.unit(events, text, stream);
        }
    }

    fn in_use(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    fn has_place(&self) -> bool {
        let unread = self.output.len() - self.written;
        self.phase != Phase::Over && !self.retired && unread <= OUTPUT_MAX && self.in_use() < self.limit
    }

    fn wake_task(&self) {
        if let Some(task) = &self.task {
            task.wake_by_ref();
        }
    }

    /// Ends the connection with what exchanges that have no answer get.
    fn fail(&mut self, status: u64) {
        self.phase = Phase::Over;
        self.slots.iter_mut().flatten().for_each(|slot| slot.set(failed(status)));
    }

    /// Ends the connection because of the agent's fault, which it is told.
    fn refuse(&mut self, status: Status) {
        spop::write_disconnect(&mut self.output, status);
        self.trace(&["tx_disconnect", "tx_frame"], "SPOP HAPROXY DISCONNECT frame xferred", 0);
        self.fail(u64::from(status.code()));
    }

    /// Sends messages once the agent has said hello.
    fn send(&mut self, place: usize) {
        let Some(slot) = self.slots.get_mut(place).and_then(Option::as_mut) else { return };
        if self.phase != Phase::Running {
            return;
        }
        let Some(messages) = slot.unsent.take() else { return };
        let stream = self.next_stream;
        let before = self.output.len();
        if spop::write_notify(&mut self.output, stream, FRAME, &messages) > self.max_frame_size {
            self.output.truncate(before);
            slot.set(failed(u64::from(Status::TooBig.code())));
            return;
        }
        slot.stream = Some(stream);
        self.trace(&["tx_notify", "tx_frame"], "SPOP HAPROXY NOTIFY frame xferred", stream);
        self.next_stream += 2;
        self.retired |= self.next_stream > STREAM_LAST;
    }

    fn greet(&mut self, hello: AgentHello) {
        if hello.max_frame_size as usize > self.max_frame_size {
            return self.refuse(Status::BadFrameSize);
        }
        self.max_frame_size = hello.max_frame_size as usize;
        if !hello.pipelining {
            self.limit = 1;
        }
        self.phase = Phase::Running;
        (0..self.slots.len()).for_each(|place| self.send(place));
    }

    /// Returns the exchange of a number; an error if the number was never sent.
    fn exchange(&mut self, stream: u64) -> Result<Option<&mut Slot>, Status> {
        match stream {
            0 => Err(Status::Invalid),
            _ if stream >= self.next_stream => Err(Status::UnknownFrame),
            _ => Ok(self.slots.iter_mut().flatten().find(|slot| slot.stream == Some(stream))),
        }
    }

    fn receive(&mut self, frame: Frame<'_>) {
        let (events, text, stream): (&[_], _, _) = match &frame {
            Frame::Hello(_) => (&["rx_hello", "rx_frame"], "SPOP AGENT HELLO frame rcvd", 0),
            Frame::Disconnect { .. } => (&["rx_disconnect", "rx_frame"], "SPOP AGENT DISCONNECT frame rcvd", 0),
            Frame::Ack { stream, .. } => (&["rx_ack", "rx_frame"], "SPOP AGENT ACK frame rcvd", *stream),
            Frame::Other { stream } => (&["rx_frame"], "receiving SPOP ignored frame", *stream),
        };
        self.trace(events, text, stream);
        match frame {
            Frame::Hello(hello) => self.greet(hello),
            // As in HAProxy, the end before a hello says nothing.
            _ if self.phase == Phase::Hello => self.refuse(Status::Invalid),
            Frame::Disconnect { status, .. } => self.fail(status),
            Frame::Ack { frame: 0, .. } => self.refuse(Status::Invalid),
            Frame::Ack { stream, frame, actions, .. } => match self.exchange(stream) {
                Err(status) => self.refuse(status),
                Ok(Some(_)) if frame > FRAME => self.refuse(Status::UnknownFrame),
                Ok(Some(slot)) => slot.set(Ok(actions.payload().to_vec())),
                // Nobody waits for it any more.
                Ok(None) => {}
            },
            Frame::Other { stream } => {
                if let Err(status) = self.exchange(stream) {
                    self.refuse(status);
                }
            }
        }
    }

    /// Reads the complete frames at the start of the input; returns their length.
    fn parse(&mut self, input: &[u8]) -> usize {
        let mut taken = 0;
        while self.phase != Phase::Over {
            match spop::read(&input[taken..], self.max_frame_size) {
                Ok(Some((frame, length))) => {
                    self.receive(frame);
                    taken += length;
                }
                Ok(None) => break,
                // HAProxy's reason for a length that was not agreed.
                Err(Status::TooBig) => self.refuse(Status::BadFrameSize),
                Err(status) => self.refuse(status),
            }
        }
        taken
    }
}

/// A connection to an agent.
struct Connection {
    state: RefCell<State>,
    pooled: Pooled,
    engine: Arc<Engine>,
    address: Option<SocketAddr>,
    tls: bool,
    /// The time for which the connection stays open without an exchange.
    patience: Option<Duration>,
}

impl Connection {
    fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// Lends a place for one more exchange.
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

    /// Reads and writes frames; ready when the connection is over and the agent was told why.
    fn poll(&self, cx: &mut Context<'_>, input: &mut Buffer, pool: &BufferPool, timer: &mut Timer) -> Poll<()> {
        let mut state = self.state();
        let state = &mut *state;
        if !state.task.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            state.task = Some(cx.waker().clone());
        }
        loop {
            let taken = state.parse(input.data());
            input.consume(taken);
            if state.phase == Phase::Over {
                break;
            }
            let Some(socket) = &mut state.socket else { return Poll::Ready(()) };
            match poll_fill(socket, cx, input, pool) {
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => {
                    // A frame that was cut is malformed; otherwise the agent has just left.
                    let status = if input.data().is_empty() { Status::Io } else { Status::Invalid };
                    state.fail(u64::from(status.code()));
                    return Poll::Ready(());
                }
                Poll::Pending => break,
            }
        }
        let Some(socket) = &mut state.socket else { return Poll::Ready(()) };
        let Ok(pending) = write_output(socket, cx, &mut state.output, &mut state.written) else {
            state.fail(u64::from(Status::Io.code()));
            return Poll::Ready(());
        };
        pool.retire(input);
        let over = state.phase == Phase::Over;
        if over && !pending {
            return Poll::Ready(());
        }
        if !over && state.in_use() > 0 {
            timer.set(None);
            return Poll::Pending;
        }
        if !over && state.retired && !pending {
            return Poll::Ready(());
        }
        let since = state.idle_since.unwrap_or_else(Instant::now);
        let patience = if over || pending { Some(FLUSH_TIME) } else { self.patience };
        timer.set(patience.map(|patience| since + patience));
        ready!(timer.poll(cx));
        self.pooled.server.lower_need(1);
        Poll::Ready(())
    }

    /// Closes the connection.
    fn end(&self) {
        let mut state = self.state();
        self.pooled.set_idle(&mut state.idle_since, false);
        let state = &mut *state;
        if state.phase == Phase::Running {
            spop::write_disconnect(&mut state.output, Status::None);
            state.trace(&["tx_disconnect", "tx_frame"], "SPOP HAPROXY DISCONNECT frame xferred", 0);
        }
        if let Some(trace) = &state.trace {
            trace.connection(&["spop_conn_end"], "SPOP connection terminated");
        }
        state.fail(u64::from(Status::Io.code()));
        if let Some(mut socket) = state.socket.take() {
            // One attempt: an agent that does not read is not waited for.
            let mut cx = Context::from_waker(Waker::noop());
            let _ = socket.poll_write(&mut cx, &state.output[state.written..]);
            socket.shutdown_write();
        }
        (state.output, state.written) = (Vec::new(), 0);
    }
}

/// A place on a connection, lent to one exchange. Dropping it ends the exchange: a later answer is ignored.
pub(crate) struct Stream {
    connection: Rc<Connection>,
    place: usize,
}

impl Stream {
    /// Sends messages and waits for the answer.
    pub(crate) async fn exchange(&self, messages: Messages) -> Answer {
        {
            let mut state = self.connection.state();
            if state.phase == Phase::Over {
                return failed(u64::from(Status::Io.code()));
            }
            if let Some(slot) = &mut state.slots[self.place] {
                slot.unsent = Some(messages);
            }
            state.send(self.place);
            state.wake_task();
        }
        poll_fn(|cx| {
            let mut state = self.connection.state();
            let Some(slot) = &mut state.slots[self.place] else {
                return Poll::Ready(failed(u64::from(Status::Unknown.code())));
            };
            match slot.answer.take() {
                Some(answer) => Poll::Ready(answer),
                None => {
                    slot.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
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
        state.slots[self.place] = None;
        if state.in_use() == 0 && state.phase != Phase::Over {
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
    pub(super) address: Option<SocketAddr>,
    /// `timeout server`.
    pub(super) patience: Option<Duration>,
}

/// One worker's connections to agents under one configuration.
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
    pub(super) fn take(
        &self,
        server: &ServerRun,
        engine: &Arc<Engine>,
        address: Option<SocketAddr>,
    ) -> Option<(Stream, u32)> {
        let tls = server.tls().is_some();
        self.by_server.find(&server.shared, |connection| {
            let fits =
                Arc::ptr_eq(&connection.engine, engine) && connection.address == address && connection.tls == tls;
            let state = connection.state();
            let before = state.lent;
            if !fits || !state.has_place() {
                return None;
            }
            drop(state);
            if connection.pooled.is_used_up(before) {
                connection.retire();
                return None;
            }
            Some((connection.lend(), before))
        })
    }

    /// Joins a connection to the server that is being opened, or begins to open one.
    pub(super) fn join_opening(&self, server: &ServerRun, engine: &Engine, address: Option<SocketAddr>) -> Part {
        let sought = Sought {
            server: key_of(&server.shared),
            label: Some(engine.id.as_bytes().into()),
            address,
            tls: server.tls().is_some(),
        };
        // The exchange that opens the connection has its first place.
        let others = if engine.pipelining { EXCHANGES_MAX as u32 - 1 } else { 0 };
        self.openings.join(sought, others.min(server.config.pool.max_reuse.unwrap_or(u32::MAX)))
    }

    /// Begins the protocol on a new connection, and lends its first place.
    pub(super) fn add(self: &Rc<Self>, server: &Arc<ServerRun>, engine: &Arc<Engine>, opened: Opened) -> Stream {
        let Opened { socket, open, address, patience } = opened;
        let trace = Trace::new(Source::Spop, &self.logger, self.worker, server);
        trace.connection(&["spop_conn_new"], "new SPOP connection");
        trace.unit(&["tx_hello", "tx_frame"], "SPOP HAPROXY HELLO frame xferred", 0);
        let state = State::new(engine, Some(socket), Some(open), Some(trace));
        let connection = Rc::new(Connection {
            state: RefCell::new(state),
            pooled: Pooled::new(server, self.worker),
            engine: engine.clone(),
            address,
            tls: server.tls().is_some(),
            patience: [server.config.pool.purge_delay, patience].into_iter().flatten().min(),
        });
        self.by_server.add(&server.shared, connection.clone());
        let stream = connection.lend();
        tokio::task::spawn_local(run(connection, self.buffers.clone(), Rc::downgrade(self)));
        stream
    }

    fn remove(&self, connection: &Rc<Connection>) {
        self.by_server.remove(&connection.pooled.server, connection);
    }
}

/// The connections of a configuration that is gone serve no more exchanges.
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
        owner.remove(&connection);
    }
}

/// Feeds any bytes to a connection with exchanges: it answers with one reason at most, and once it is over every exchange
/// has an answer.
pub fn fuzz_agent(bytes: &[u8]) {
    const EXCHANGES: usize = 3;
    let engine = Engine { id: "e".into(), backend: ProxyId(0), max_frame_size: 16_380, pipelining: true };
    let mut state = State::new(&engine, None, None, None);
    let mut messages = Messages::default();
    messages.message("m");
    for _ in 0..EXCHANGES {
        let place = take_place(&mut state.slots);
        state.slots[place] = Some(Slot { unsent: Some(messages.clone()), ..Slot::default() });
    }
    let (mut taken, hello) = (0, state.output.len());
    // In two parts, as it may arrive.
    for end in [bytes.len() / 2, bytes.len()] {
        taken += state.parse(&bytes[taken..end]);
    }
    const FRAME_MAX: usize = 100;
    assert!(state.output.len() <= hello + (EXCHANGES + 1) * FRAME_MAX, "a frame for each exchange, and a reason");
    let answered = state.slots.iter().flatten().filter(|slot| slot.answer.is_some()).count();
    assert!(state.phase != Phase::Over || answered == EXCHANGES, "every exchange has an answer");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a frame of an agent.
    fn frame(kind: u8, flags: u8, numbers: [u8; 2], payload: &[u8]) -> Vec<u8> {
        let body = [&[kind, 0, 0, 0, flags][..], &numbers, payload].concat();
        [&(body.len() as u32).to_be_bytes()[..], &body].concat()
    }

    const HELLO: &[u8] = b"\x07version\x08\x032.0\x0emax-frame-size\x03\xfc\xf0\x06\x0ccapabilities\x08\x0apipelining";

    /// An agent that does not read gets no further exchanges.
    #[test]
    fn unread_output_is_bounded() {
        let engine = Engine { id: "e".into(), backend: ProxyId(0), max_frame_size: 16_380, pipelining: true };
        let mut state = State::new(&engine, None, None, None);
        let hello = frame(101, 1, [0, 0], HELLO);
        assert_eq!(state.parse(&hello), hello.len());
        let mut messages = Messages::default();
        messages.message(&"m".repeat(10_000));
        let mut count = 0;
        while state.has_place() {
            let place = take_place(&mut state.slots);
            state.slots[place] = Some(Slot { unsent: Some(messages.clone()), ..Slot::default() });
            state.send(place);
            // It has given up.
            state.slots[place] = None;
            count += 1;
        }
        assert_eq!(count, 7);
    }

    proptest! {
        #[test]
        fn fuzz_agent_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz_agent(&bytes);
        }

        #[test]
        fn fuzz_agent_on_frames(
            frames in prop::collection::vec(
                (prop_oneof![Just(101u8), Just(102), Just(103), any::<u8>()], 0u8..3, 0u8..8, 0u8..3),
                0..8,
            ),
        ) {
            let hello = frame(101, 1, [0, 0], HELLO);
            let rest = frames.iter().flat_map(|(kind, flags, stream, number)| frame(*kind, *flags, [*stream, *number], b""));
            fuzz_agent(&hello.into_iter().chain(rest).collect::<Vec<_>>());
        }
    }
}
