//! HTTP/2: a client's connection, whose streams are the fronts that drivers use, and backs that are streams of a
//! connection to a server.
//!
//! [`Driver`] belongs to the session's task: it reads frames from the connection, reports new streams, and writes the
//! frames of all streams together. Each stream runs in a task of its own with a [`Front`]; the tasks share [`Shared`],
//! which is borrowed for moments only, on one thread.
//!
//! **Memory.** A stream holds at most its window of received data, and as much unsent data as its driver's buffer. The
//! output of a connection is limited; beyond it streams wait, and so does the reading of frames that need an answer.
//! Messages and buffers that are not in use belong to the thread ([`spare`]), so an idle connection keeps no memory but
//! its HPACK tables, and a connection whose streams only wait has no output buffer.

mod back;
mod front;
mod greeting;
mod spare;

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use sluicegate_transport::{BufferPool, give_way};
use sluicegate_wire::http::{Message, RequestHead};
use sluicegate_wire::http2::{self, Blocked, ErrorCode, Event, Progress, StreamKey};

pub(crate) use back::{Back, Sent};
pub(crate) use front::Front;
pub(crate) use greeting::poll_greeting;
pub(crate) use spare::keep_message;

use super::h1;
use crate::stream::Http2Facts;

/// The largest stream identifier, which a GOAWAY names before the last stream is known.
const LAST_STREAM: u32 = (1 << 31) - 1;

/// A stream as the connection sees it.
#[derive(Default)]
struct Slot {
    key: Option<StreamKey>,
    /// Data that the stream has not taken yet.
    received: Vec<u8>,
    /// Whether the client's message is complete.
    complete: bool,
    trailers: Option<Message>,
    /// The code of the reset: by the client, or by this side because of an error of the client.
    reset: Option<ErrorCode>,
    /// Whether the client has reset the stream.
    by_client: bool,
    waker: Option<Waker>,
}

impl Slot {
    fn wait(&mut self, cx: &Context<'_>) {
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

/// What the task of a connection and those of its streams share.
struct Shared {
    wire: http2::Connection,
    /// Indexed by [`StreamKey::slot`].
    slots: Vec<Slot>,
    task: Option<Waker>,
    /// Whether the connection is over: all its streams are gone.
    gone: bool,
    /// Whether the client has ended its side: complete requests are still answered.
    half: bool,
    /// Whether a rule has ended the connection: it is over once the output is written.
    killed: bool,
    /// Whether some stream waits for room in the output.
    waits_for_room: bool,
}

impl Shared {
    fn slot(&mut self, key: StreamKey) -> Option<&mut Slot> {
        self.slots.get_mut(key.slot()).filter(|slot| slot.key == Some(key))
    }

    /// Returns whether a stream can neither receive nor send.
    fn is_gone(&self, key: StreamKey) -> bool {
        self.gone || self.slots.get(key.slot()).is_none_or(|slot| slot.key != Some(key) || slot.reset.is_some())
    }

    fn wake_task(&self) {
        if let Some(task) = &self.task {
            task.wake_by_ref();
        }
    }

    fn wake_all(&self) {
        self.slots.iter().for_each(Slot::wake);
    }

    /// Records that the client has ended its side. Requests that are not complete never will be.
    fn end_input(&mut self) {
        self.half = true;
        for slot in self.slots.iter_mut().filter(|slot| slot.key.is_some()) {
            if !slot.complete && slot.reset.is_none() {
                (slot.reset, slot.by_client) = (Some(ErrorCode::CANCEL), true);
            }
            slot.wake();
        }
    }

    /// Makes room for a stream that begins.
    fn begin_stream(&mut self, key: StreamKey, complete: bool) {
        if self.slots.len() <= key.slot() {
            // Many connections have one stream at a time.
            self.slots.reserve_exact(usize::from(key.slot() == 0));
            self.slots.resize_with(key.slot() + 1, Slot::default);
        }
        let received = if complete { Vec::new() } else { spare::take_buffer() };
        self.slots[key.slot()] = Slot { key: Some(key), received, complete, ..Slot::default() };
    }

    /// Lends the output a buffer, if it has none.
    fn equip(&mut self) {
        if self.wire.lacks_output_memory() {
            self.wire.lend_output_memory(spare::take_output());
        }
    }

    /// Releases what a connection without streams does not need.
    fn trim(&mut self) {
        self.wire.trim();
        self.slots = Vec::new();
    }

    /// Releases a stream, which is reset unless both its messages are complete. With `kills` the connection ends.
    fn end_stream(&mut self, key: StreamKey, kills: bool) {
        if kills && !self.gone {
            self.wire.reset(key, ErrorCode::ENHANCE_YOUR_CALM);
            self.wire.goaway(self.wire.last_opened(), ErrorCode::ENHANCE_YOUR_CALM);
            self.killed = true;
        }
        self.wire.release(key);
        if let Some(slot) = self.slot(key) {
            let slot = std::mem::take(slot);
            spare::keep_buffer(slot.received);
        }
        self.wake_task();
    }

    /// Applies an event; returns a stream that begins.
    fn apply(&mut self, event: Event, input: &[u8], message: &mut Message) -> Option<(StreamKey, RequestHead, bool)> {
        match event {
            Event::Request { stream, head, end, unparsable } => {
                self.begin_stream(stream, end);
                return Some((stream, head, unparsable));
            }
            Event::Data { stream, range } => {
                if let Some(slot) = self.slot(stream) {
                    slot.received.extend_from_slice(&input[range]);
                    slot.wake();
                }
            }
            Event::Trailers { stream } => {
                let trailers = std::mem::take(message);
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
            Event::Reset { stream, code, by_peer } => {
                if let Some(slot) = self.slot(stream) {
                    (slot.reset, slot.by_client) = (Some(code), by_peer);
                    slot.wake();
                }
            }
            Event::Writable { stream: Some(stream) } => {
                if let Some(slot) = self.slot(stream) {
                    slot.wake();
                }
            }
            Event::Writable { stream: None } | Event::Settings => self.wake_all(),
            Event::Refused { .. } | Event::Response { .. } | Event::GoAway { .. } | Event::Pong(_) => {}
        }
        None
    }
}

impl Http2Facts for RefCell<Shared> {
    fn streams(&self) -> u32 {
        self.borrow().wire.open_streams()
    }

    fn limit(&self) -> u32 {
        self.borrow().wire.streams_limit()
    }

    fn glitches(&self) -> u32 {
        self.borrow().wire.glitches()
    }

    fn reset_code(&self, stream: u32) -> Option<u32> {
        let shared = self.borrow();
        let has_it = |slot: &&Slot| slot.key.is_some_and(|key| key.id() == stream) && slot.by_client;
        shared.slots.iter().find(has_it)?.reset.map(|code| code.0)
    }
}

/// A stream that begins.
pub(crate) struct Arrival {
    /// The stream's front.
    pub(crate) front: Box<Front>,
    /// The parsed head of the request.
    pub(crate) head: RequestHead,
    /// The request's head.
    pub(crate) message: Message,
    /// Whether it has to be answered with 400.
    pub(crate) unparsable: bool,
}

/// The reason why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The client closed the connection or broke it.
    Gone,
    /// The client made an error that ends the connection, or rules ended it.
    Failed,
    /// The client was silent, or did not read.
    TimedOut,
    /// Nothing is left to do: the client has announced the end.
    Done,
    /// Nothing is left to do: this side has announced the end. The client may still be sending requests.
    Stopped,
}

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// For the first request, and for the rest of an incomplete frame.
    pub(crate) request: Option<Duration>,
    /// For the next request of a connection without streams.
    pub(crate) idle: Option<Duration>,
    /// For a client that does not read, and where the others are not set, for one that sends nothing.
    pub(crate) client: Option<Duration>,
    /// For a client that was asked to close its idle connection, where it is set.
    pub(crate) fin: Option<Duration>,
    /// The silence of an idle connection after which the client has to answer a PING, within the same time.
    pub(crate) ping: Option<Duration>,
    /// The time at which [`Driver::stop`] will be called.
    pub(crate) stop: Option<Instant>,
}

/// The action when the timer of a connection expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alarm {
    End,
    Ping,
    /// The caller calls [`Driver::stop`].
    Stop,
}

/// The reader and writer of a connection's frames.
pub(crate) struct Driver {
    shared: Rc<RefCell<Shared>>,
    arrivals: Vec<Arrival>,
    /// The head that is decoded next.
    message: Message,
    /// The time at which the last stream ended.
    idle_since: Instant,
    /// The time at which something was last written or, on an idle connection, received.
    active_at: Instant,
    /// The time at which an incomplete frame began.
    frame_since: Option<Instant>,
    /// Whether streams existed when the driver last ran.
    was_busy: bool,
    stopping: bool,
    /// The time at which this side closes a connection whose client was asked to, because it was idle for too long.
    leaving: Option<Instant>,
    /// Whether the runtime has looked at the socket since the last stream ended.
    looked: bool,
}

impl Driver {
    /// Returns the driver of a connection that begins.
    pub(crate) fn new(settings: http2::Settings, accepted: Instant) -> Driver {
        Driver::of(http2::Connection::server(settings), accepted)
    }

    /// Returns the driver of a connection on which HTTP/2 may have begun.
    pub(crate) fn of(wire: http2::Connection, accepted: Instant) -> Driver {
        let shared = Shared {
            wire,
            slots: Vec::new(),
            task: None,
            gone: false,
            half: false,
            killed: false,
            waits_for_room: false,
        };
        Driver {
            shared: Rc::new(RefCell::new(shared)),
            arrivals: Vec::new(),
            message: Message::new(),
            idle_since: accepted,
            active_at: accepted,
            frame_since: None,
            was_busy: false,
            stopping: false,
            leaving: None,
            looked: false,
        }
    }

    /// Returns the streams that have begun since the last call.
    pub(crate) fn arrivals(&mut self) -> std::vec::Drain<'_, Arrival> {
        self.arrivals.drain(..)
    }

    /// Returns the source of facts for the connection's streams.
    pub(crate) fn facts(&self) -> Rc<dyn Http2Facts> {
        self.shared.clone()
    }

    /// Returns the counts since the last call, and the number of anomalies in all.
    pub(crate) fn take_counts(&self) -> (http2::Counts, u32) {
        let mut shared = self.shared.borrow_mut();
        (shared.wire.take_counts(), shared.wire.glitches())
    }

    /// Returns the number of bytes of the client's preface that have come, until it is complete.
    pub(crate) fn preface_received(&self) -> Option<u8> {
        self.shared.borrow().wire.preface_received()
    }

    /// Sets whether too many anomalies end the connection.
    pub(crate) fn set_strict(&self, strict: bool) {
        self.shared.borrow_mut().wire.set_strict(strict);
    }

    /// Returns whether the connection has no stream.
    pub(crate) fn is_idle(&self) -> bool {
        self.shared.borrow().wire.held_streams() == 0
    }

    /// Begins the end of the connection: streams finish, and the client is asked not to begin others.
    pub(crate) fn stop(&mut self) {
        if !std::mem::replace(&mut self.stopping, true) {
            let mut shared = self.shared.borrow_mut();
            if shared.wire.goaway_sent().is_none() {
                shared.wire.goaway(LAST_STREAM, ErrorCode::NO_ERROR);
            }
        }
    }

    /// Reads and writes frames; ready when the connection is over.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut h1::Front,
        pool: &BufferPool,
        times: &Times,
    ) -> Poll<Over> {
        if let Some(until) = self.leaving {
            return self.poll_leaving(cx, connection, pool, times, until);
        }
        let shared = self.shared.clone();
        let mut shared = shared.borrow_mut();
        if !shared.task.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            shared.task = Some(cx.waker().clone());
        }
        shared.wire.begin_turn();
        shared.equip();
        let mut failed = shared.killed || shared.wire.failure().is_some();
        let mut again = false;
        let (mut written, mut received) = (false, false);
        loop {
            // All received input is parsed before anything is written, and all output is written before more is read.
            let (mut parsing, mut blocked) = (!failed, false);
            while parsing {
                // Also without input: an event may have to follow the last one.
                match shared.wire.receive(connection.input(), &mut self.message) {
                    Ok((count, progress)) => {
                        match progress {
                            Progress::Event(event) => {
                                let begun = shared.apply(event, connection.input(), &mut self.message);
                                if let Some((key, head, unparsable)) = begun {
                                    let message = std::mem::replace(&mut self.message, spare::take_message());
                                    let front = Box::new(Front::new(self.shared.clone(), key));
                                    self.arrivals.reserve_exact(usize::from(self.arrivals.is_empty()));
                                    self.arrivals.push(Arrival { front, head, message, unparsable });
                                }
                            }
                            Progress::Idle => parsing = false,
                            Progress::Blocked(why) => {
                                (parsing, blocked) = (false, true);
                                again |= why == Blocked::Turn;
                            }
                        }
                        connection.skip(count);
                    }
                    Err(_) => (failed, parsing) = (true, false),
                }
            }
            if !self.arrivals.is_empty() {
                // The streams' tasks run before this task writes, so that their immediate answers go out in one write.
                // The streams may end before this task runs again.
                self.was_busy = true;
                connection.give_back(pool, false);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            while !shared.wire.output().is_empty() {
                match connection.poll_write(cx, shared.wire.output()) {
                    Poll::Ready(Ok(count)) => {
                        shared.wire.wrote(count);
                        written = true;
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(Over::Gone),
                    Poll::Pending => break,
                }
            }
            // Streams wait until the output has room, and are woken here: a client that reads late may send no frame
            // that would wake them.
            if shared.waits_for_room && !shared.wire.is_output_full() {
                shared.waits_for_room = false;
                shared.wake_all();
            }
            if failed {
                break;
            }
            if blocked {
                // Answers that waited may be written now.
                if shared.wire.blocked().is_none() {
                    continue;
                }
                break;
            }
            if shared.half {
                break;
            }
            match connection.poll_fill(cx, pool) {
                Poll::Ready(Err(_)) => return Poll::Ready(Over::Gone),
                Poll::Ready(Ok(0)) => shared.end_input(),
                Poll::Ready(Ok(_)) => received = true,
                Poll::Pending => break,
            }
        }
        if again {
            cx.waker().wake_by_ref();
        }
        connection.give_back(pool, false);
        if let Some(memory) = shared.wire.take_output_memory() {
            spare::keep_output(memory);
        }
        let pending = !shared.wire.output().is_empty();
        if failed && !pending {
            return Poll::Ready(Over::Failed);
        }
        let held = shared.wire.held_streams();
        self.looked &= held == 0;
        if held == 0 && !pending {
            if shared.half {
                return Poll::Ready(Over::Gone);
            }
            if shared.wire.goaway_received().is_some() {
                return Poll::Ready(Over::Done);
            }
            if let Some(last) = shared.wire.goaway_sent()
                && (self.stopping || shared.wire.is_last_stream_opened())
            {
                if !std::mem::replace(&mut self.looked, true) {
                    // Requests may have arrived since the runtime last looked at the socket.
                    give_way(cx.waker());
                    return Poll::Pending;
                }
                if last <= shared.wire.last_opened() {
                    return Poll::Ready(Over::Stopped);
                }
                // Tells the client which of its further requests it can safely repeat.
                shared.equip();
                let last = shared.wire.last_opened();
                shared.wire.goaway(last, ErrorCode::NO_ERROR);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        let (at, alarm) = if pending {
            if written {
                self.active_at = Instant::now();
            }
            (times.client.map(|limit| self.active_at + limit), Alarm::End)
        } else if held > 0 {
            self.was_busy = true;
            self.frame_since = None;
            (None, Alarm::End)
        } else {
            self.rest(&mut shared, written || received);
            self.limit(&shared, times)
        };
        let (at, alarm) = match times.stop.filter(|_| !self.stopping) {
            Some(stop) if at.is_none_or(|at| stop < at) => (Some(stop), Alarm::Stop),
            _ => (at, alarm),
        };
        connection.arm(at);
        ready!(connection.poll_alarm(cx));
        if alarm == Alarm::Stop {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if alarm == Alarm::Ping && !shared.wire.awaits_pong() {
            shared.equip();
            shared.wire.ping();
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !failed {
            shared.equip();
            say_goodbye(cx, connection, &mut shared.wire);
            let complete = shared.wire.is_between_frames() || shared.wire.preface_received().is_some();
            let rests = !pending && alarm == Alarm::End && complete;
            if let Some(limit) = times.fin.or(times.client).filter(|_| rests) {
                self.leaving = Some(Instant::now() + limit);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        Poll::Ready(Over::TimedOut)
    }

    /// Waits for the client to close the connection. As in HAProxy, nothing is accepted from it any more.
    fn poll_leaving(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut h1::Front,
        pool: &BufferPool,
        times: &Times,
        until: Instant,
    ) -> Poll<Over> {
        let mut shared = self.shared.borrow_mut();
        while !shared.wire.output().is_empty() {
            match connection.poll_write(cx, shared.wire.output()) {
                Poll::Ready(Ok(count)) => shared.wire.wrote(count),
                Poll::Ready(Err(_)) => return Poll::Ready(Over::TimedOut),
                Poll::Pending => break,
            }
        }
        if let Some(memory) = shared.wire.take_output_memory() {
            spare::keep_output(memory);
        }
        if self.stopping || connection.poll_fill(cx, pool).is_ready() {
            return Poll::Ready(Over::TimedOut);
        }
        connection.give_back(pool, false);
        connection.arm(Some(times.stop.map_or(until, |stop| stop.min(until))));
        ready!(connection.poll_alarm(cx));
        shared.equip();
        say_goodbye(cx, connection, &mut shared.wire);
        Poll::Ready(Over::TimedOut)
    }

    /// Records that the connection has no stream, and with `active` that something was sent or received.
    fn rest(&mut self, shared: &mut Shared, active: bool) {
        if !active && !self.was_busy {
            return;
        }
        self.active_at = Instant::now();
        if std::mem::take(&mut self.was_busy) {
            self.idle_since = self.active_at;
            shared.trim();
            self.message = Message::new();
            self.arrivals = Vec::new();
        }
    }

    /// Returns the time at which a connection without streams times out or is sent a PING, unless something happens
    /// before, and which of the two it is.
    fn limit(&mut self, shared: &Shared, times: &Times) -> (Option<Instant>, Alarm) {
        let wire = &shared.wire;
        let silent = times.client.map(|limit| self.active_at + limit);
        let end = if wire.total_streams() == 0 {
            times.request.map(|limit| self.idle_since + limit).or(silent)
        } else if wire.is_between_frames() {
            self.frame_since = None;
            times.idle.map(|limit| self.idle_since + limit).or(silent)
        } else {
            let since = *self.frame_since.get_or_insert(self.active_at);
            times.request.or(times.client).map(|limit| since + limit)
        };
        // A PING is sent only after the client's preface and settings have arrived, and not once the connection is
        // about to end.
        let tested = wire.is_greeted() && wire.goaway_sent().is_none();
        match times.ping.filter(|_| tested).map(|silence| self.active_at + silence) {
            Some(at) if end.is_none_or(|end| at < end) => (Some(at), Alarm::Ping),
            _ => (end, Alarm::End),
        }
    }

    /// Ends all streams: nothing more is received or sent.
    pub(crate) fn end(&mut self) {
        let mut shared = self.shared.borrow_mut();
        if !std::mem::replace(&mut shared.gone, true) {
            shared.wake_all();
        }
    }

    /// Ready when no stream is left after [`Driver::end`].
    pub(crate) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut shared = self.shared.borrow_mut();
        if shared.wire.held_streams() == 0 {
            return Poll::Ready(());
        }
        shared.task = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Sends a GOAWAY if HTTP/2 has begun, in one attempt: a client that does not read is not waited for.
fn say_goodbye(cx: &mut Context<'_>, connection: &mut h1::Front, wire: &mut http2::Connection) {
    if wire.preface_received().is_some() {
        return;
    }
    let last = wire.last_opened();
    wire.goaway(last, ErrorCode::NO_ERROR);
    if let Poll::Ready(Ok(count)) = connection.poll_write(cx, wire.output()) {
        wire.wrote(count);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.end();
    }
}
