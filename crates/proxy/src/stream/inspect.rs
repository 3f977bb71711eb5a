//! Waiting for contents: the inspect delay of content rules, and bodies that rules read.
//!
//! Received data stays in the session's buffer, from which it is forwarded later; rules see a copy that grows with it,
//! so at most `tune.bufsize` is held or copied. Rules run once per read, not once per byte, and at most as often as a
//! buffer has bytes.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use sluicegate_transport::BufferPool;
use sluicegate_wire::http::{HeadError, Limits, Version, parse_request};
use sluicegate_wire::http2::PREFACE;

use super::flow::Flow;
use super::relay::{CLIENT_LATE, SERVER_LATE};
use super::silence::Silence;
use super::{Active, ChannelIo, Endings};
use crate::hook::Hook;
use crate::mux::{Back, End, FlowError, Front, Moved, Peek, Wait};
use crate::rule::{self, RuleList, Verdict};
use crate::worker::Worker;

/// The result of waiting for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyCame {
    /// The requested amount, or all that can arrive before anything is forwarded: the body is complete or the buffer
    /// full.
    Enough,
    /// The deadline passed.
    Late,
    /// Its chunks are malformed.
    Malformed,
    /// The client ended or broke the connection.
    Gone,
}

/// The result of waiting for bytes.
enum Waited {
    Bytes,
    Deadline,
    Gone,
}

async fn more(front: &mut Front<'_>, pool: &BufferPool, deadline: Option<Instant>) -> Waited {
    front.arm(deadline);
    poll_fn(|cx| match front.poll_fill(cx, pool) {
        Poll::Ready(Ok(_)) => Poll::Ready(Waited::Bytes),
        Poll::Ready(Err(_)) => Poll::Ready(Waited::Gone),
        Poll::Pending => front.poll_alarm(cx).map(|()| Waited::Deadline),
    })
    .await
}

/// Reads what a new client has sent already: as in HAProxy, rules without an inspect delay see it.
pub(super) async fn read_arrived(front: &mut Front<'_>, pool: &BufferPool) {
    // The worker learns that there is something when it polls its sockets next.
    tokio::task::yield_now().await;
    poll_fn(|cx| {
        // A failure is met again by the next read.
        let _ = front.poll_fill(cx, pool);
        Poll::Ready(())
    })
    .await;
}

/// The time limit for a body.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience {
    /// Until this time, regardless of received data.
    Until(Instant),
    /// The maximum time between two pieces of data; the framing of chunks is not data.
    Inactivity(Duration),
    Endless,
}

/// Waits for a request's body: the whole of it, or `at_least` bytes unless that is 0.
pub(super) async fn body(
    front: &mut Front<'_>,
    stream: &mut Active,
    peek: &mut Peek,
    patience: Patience,
    at_least: u64,
) -> BodyCame {
    let mut known = 0;
    let mut active = Instant::now();
    let worker = stream.worker().clone();
    loop {
        let content = &mut stream.cx.request_content;
        front.look(peek, content);
        if content.data.len() > known {
            known = content.data.len();
            active = Instant::now();
        }
        if peek.is_malformed() {
            return BodyCame::Malformed;
        }
        let enough = at_least > 0 && content.data.len() as u64 >= at_least;
        if peek.is_complete() || enough || front.is_full(&worker.buffers) {
            return BodyCame::Enough;
        }
        if front.has_ended() {
            return BodyCame::Gone;
        }
        let deadline = match patience {
            Patience::Until(deadline) => Some(deadline),
            Patience::Inactivity(timeout) => Some(active + timeout),
            Patience::Endless => None,
        };
        match more(front, &worker.buffers, deadline).await {
            Waited::Bytes => {}
            Waited::Deadline => return BodyCame::Late,
            Waited::Gone => return BodyCame::Gone,
        }
    }
}

/// Runs content rules on an HTTP request until they are decided, within the inspect delay. As in HAProxy since 2.8, the end
/// of the request does not decide those that wait for more than it has.
pub(super) async fn request_content(
    front: &mut Front<'_>,
    stream: &mut Active,
    peek: &mut Peek,
    list: &RuleList,
    delay: Option<Duration>,
) -> Verdict {
    let deadline = delay.map(|delay| Instant::now() + delay);
    let mut over = deadline.is_none();
    let worker = stream.worker().clone();
    loop {
        front.look(peek, &mut stream.cx.request_content);
        over |= peek.is_malformed() || front.has_ended() || front.is_full(&worker.buffers);
        let verdict = run(list, Hook::TcpRequestContent, stream, over).await;
        if !matches!(verdict, Verdict::Missing) {
            return verdict;
        }
        match more(front, &worker.buffers, deadline).await {
            Waited::Bytes => {}
            Waited::Deadline | Waited::Gone => over = true,
        }
    }
}

/// Runs content rules on a TCP client's data until they are decided, within the inspect delay. A client that is silent for
/// too long counts as ended, as in HAProxy.
pub(super) async fn tcp_request(
    front: &mut Front<'_>,
    stream: &mut Active,
    list: &RuleList,
    delay: Option<Duration>,
    silence: &mut Silence,
) -> Verdict {
    let deadline = delay.map(|delay| Instant::now() + delay);
    let mut over = deadline.is_none();
    let worker = stream.worker().clone();
    if worker.scripts.is_some() {
        stream.cx.lua.channels.get_or_insert_default();
    }
    loop {
        see_request(front, stream, list.looks().head);
        over |= front.has_ended() || front.is_full(&worker.buffers) || silence.late().is_some();
        let verdict = run_talking(front, stream, list, deadline, over, silence).await;
        if !matches!(verdict, Verdict::Missing) {
            return verdict;
        }
        let late = silence.deadline_of(front, &worker.buffers);
        match more(front, &worker.buffers, sooner(deadline, late)).await {
            Waited::Bytes => silence.interrupt(),
            Waited::Deadline if is_first(late, deadline) => silence.end(INSPECTED_LATE),
            Waited::Deadline | Waited::Gone => over = true,
        }
    }
}

/// The termination state of a client that was late before its rules were decided.
const INSPECTED_LATE: Endings = Endings { who: b'c', phase: b'R' };

/// Returns the earlier of two times.
fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Returns whether a time is before another.
fn is_first(one: Option<Instant>, other: Option<Instant>) -> bool {
    one.is_some_and(|one| other.is_none_or(|other| one < other))
}

/// Runs content rules on a TCP client's bytes once. Their scripts may wait for more of these, change them, and answer
/// the client meanwhile.
async fn run_talking(
    front: &mut Front<'_>,
    stream: &mut Active,
    list: &RuleList,
    deadline: Option<Instant>,
    over: bool,
    silence: &mut Silence,
) -> Verdict {
    let Some(io) = stream.cx.lua.channels.clone() else {
        return run(list, Hook::TcpRequestContent, stream, over).await;
    };
    let worker = stream.worker().clone();
    let pool = &worker.buffers;
    io.over.set(over);
    let verdict = {
        let mut rules = pin!(run(list, Hook::TcpRequestContent, stream, over));
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(verdict) = rules.as_mut().poll(cx) {
                    return Poll::Ready(verdict);
                }
                if !serve_script(&io, cx, front, pool, deadline, silence) {
                    return Poll::Pending;
                }
            }
        })
        .await
    };
    io.wants.set(false);
    io.came.borrow_mut().clear();
    if let Some(bytes) = io.edited.take() {
        front.replace(&bytes, pool);
    }
    // The script's output is sent even if the connection ends now, if the client accepts it.
    if !io.to_client.borrow().is_empty() {
        let patience = stream.cx.frontend.config.timeouts.client;
        front.arm(patience.map(|patience| Instant::now() + patience));
        poll_fn(|cx| match write_for(&io, cx, front) {
            Poll::Pending => front.poll_alarm(cx),
            Poll::Ready(()) => Poll::Ready(()),
        })
        .await;
        silence.interrupt();
    }
    verdict
}

/// Executes a script's operations on its client's connection; returns whether the script can continue.
fn serve_script(
    io: &ChannelIo,
    cx: &mut Context<'_>,
    front: &mut Front<'_>,
    pool: &BufferPool,
    deadline: Option<Instant>,
    silence: &mut Silence,
) -> bool {
    if let Some(bytes) = io.edited.take() {
        front.replace(&bytes, pool);
    }
    let mut happened = !io.to_client.borrow().is_empty() && write_for(io, cx, front).is_ready();
    if io.wants.get() {
        if front.has_ended() || front.is_full(pool) {
            io.over.set(true);
        } else {
            match front.poll_fill(cx, pool) {
                Poll::Ready(Ok(count)) if count > 0 => {
                    let data = front.input();
                    io.came.borrow_mut().extend_from_slice(&data[data.len() - count..]);
                    silence.interrupt();
                }
                Poll::Ready(_) => io.over.set(true),
                Poll::Pending => {
                    let late = silence.deadline();
                    front.arm(sooner(deadline, late));
                    if front.poll_alarm(cx).is_pending() {
                        return ring(io, happened);
                    }
                    if is_first(late, deadline) {
                        silence.end(INSPECTED_LATE);
                    }
                    io.over.set(true);
                }
            }
        }
        io.wants.set(false);
        happened = true;
    }
    ring(io, happened)
}

fn ring(io: &ChannelIo, happened: bool) -> bool {
    if happened {
        io.bell.notify_one();
    }
    happened
}

/// Writes a script's data for the client; ready when none is left, or the client no longer accepts any.
fn write_for(io: &ChannelIo, cx: &mut Context<'_>, front: &mut Front<'_>) -> Poll<()> {
    let mut out = io.to_client.borrow_mut();
    while !out.is_empty() {
        match front.poll_write(cx, &out) {
            Poll::Ready(Ok(count)) => drop(out.drain(..count)),
            Poll::Ready(Err(_)) => {
                out.clear();
                io.over.set(true);
            }
            Poll::Pending => return Poll::Pending,
        }
    }
    Poll::Ready(())
}

/// The part of HTTP/2's preface that has the form of a request's head.
const PREFACE_HEAD: usize = 18;

/// Updates the rules' view of a TCP client's data and, if they read an HTTP request's head, of that head.
pub(super) fn see_request(front: &Front<'_>, stream: &mut Active, head: bool) {
    let input = front.input();
    let lenient = stream.cx.frontend.config.options.unsafe_requests;
    let limits = Limits { lenient, ..stream.worker().limits };
    let cx = &mut stream.cx;
    let known = cx.request_content.known();
    if let Some(more) = input.get(known..) {
        cx.request_content.data.extend_from_slice(more);
    }
    if head && !input.is_empty() && cx.request.method().is_empty() && !cx.request_content.no_http {
        match parse_request(input, &limits, &mut cx.request) {
            Ok(Some(_)) => {}
            Ok(None) => cx.request.clear(),
            // The start of HTTP/2's preface is a request, too (RFC 9113 3.4).
            Err(HeadError::Version) if input.starts_with(&PREFACE[..PREFACE_HEAD]) => {
                cx.request.set_request(b"PRI", b"*", Version::Http2);
            }
            Err(error) => {
                cx.request.clear();
                // A head that is too large is a head nevertheless: its content is unknown.
                cx.request_content.no_http = !matches!(error, HeadError::TooLarge | HeadError::TargetTooLong);
            }
        }
    }
}

/// Runs content rules on data of a TCP server until they are decided, within the inspect delay. Meanwhile, `up`
/// passes the client's data to the server, which may need it for its answer.
pub(super) async fn tcp_response(
    front: &mut Front<'_>,
    stream: &mut Active,
    back: &mut Back,
    up: &mut Flow,
    list: &RuleList,
    delay: Option<Duration>,
    (client, server): (&mut Silence, &mut Silence),
) -> Verdict {
    let worker = stream.worker().clone();
    let deadline = delay.map(|delay| Instant::now() + delay);
    let mut over = deadline.is_none();
    if worker.scripts.is_some() {
        stream.cx.lua.channels.get_or_insert_default();
    }
    let independent = stream.cx.backend.as_ref().is_some_and(|backend| backend.config.options.independent_streams);
    let mut answer = Answer { front, back, worker, up, up_open: true, sent: 0, deadline, client, server, independent };
    loop {
        let known = stream.cx.response_content.known();
        stream.cx.response_content.data.extend_from_slice(&answer.back.input()[known..]);
        over |= answer.is_full();
        let verdict = answer.run(stream, list, &mut over).await;
        stream.count(std::mem::take(&mut answer.sent), 0);
        if !matches!(verdict, Verdict::Missing) {
            return verdict;
        }
        match poll_fn(|cx| answer.poll_more(cx)).await {
            Waited::Bytes => {}
            Waited::Deadline | Waited::Gone => over = true,
        }
        answer.back.rest(&answer.worker.buffers);
        stream.count(std::mem::take(&mut answer.sent), 0);
    }
}

/// Both sides of a TCP stream while rules examine the server's bytes.
struct Answer<'a, 'f> {
    front: &'a mut Front<'f>,
    back: &'a mut Back,
    worker: Rc<Worker>,
    /// The flow from the client to the server.
    up: &'a mut Flow,
    up_open: bool,
    /// The number of the client's bytes that are not counted yet.
    sent: usize,
    deadline: Option<Instant>,
    client: &'a mut Silence,
    server: &'a mut Silence,
    /// `option independent-streams`: what the server is sent is no activity of it.
    independent: bool,
}

impl Answer<'_, '_> {
    fn is_full(&self) -> bool {
        self.back.is_full(&self.worker.buffers)
    }

    /// Waits for more of the server's bytes, within the inspect delay and the timeouts of both sides. A client that is late
    /// counts as ended, and the server may still answer.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Waited> {
        let Answer { front, back, worker, up, client, server, .. } = self;
        let mut client_late = None;
        if self.up_open {
            let mut moved = Moved::default();
            let result = up.poll(cx, *front, *back, &worker.buffers, &mut moved);
            // The relay forwards the end of a side; here it only means that no more data goes to the server.
            self.up_open = !matches!(result, Ok(Wait::Done) | Err(FlowError::Source | FlowError::Sink));
            self.sent += moved.body;
            if moved.read > 0 {
                client.interrupt();
            }
            if moved.written > 0 && !self.independent {
                server.interrupt();
            }
            client_late = client.deadline().filter(|_| matches!(result, Ok(Wait::Source)));
        }
        match back.poll_fill(cx, &worker.buffers) {
            Poll::Ready(Ok(count)) if count > 0 => {
                server.interrupt();
                return Poll::Ready(Waited::Bytes);
            }
            Poll::Ready(_) => return Poll::Ready(Waited::Gone),
            Poll::Pending => back.rest(&worker.buffers),
        }
        let server_late = server.deadline();
        let first = sooner(self.deadline, sooner(client_late, server_late));
        front.arm(first);
        ready!(front.poll_alarm(cx));
        if first == self.deadline {
            return Poll::Ready(Waited::Deadline);
        }
        if first == server_late {
            server.end(SERVER_LATE);
            return Poll::Ready(Waited::Gone);
        }
        client.end(CLIENT_LATE);
        back.end_side();
        self.up_open = false;
        self.poll_more(cx)
    }

    /// Runs the rules once. Their scripts may wait for more of the server's bytes, and change them.
    async fn run(&mut self, stream: &mut Active, list: &RuleList, over: &mut bool) -> Verdict {
        let Some(io) = stream.cx.lua.channels.clone() else {
            return run(list, Hook::TcpResponseContent, stream, *over).await;
        };
        io.over.set(*over);
        let verdict = {
            let mut rules = pin!(run(list, Hook::TcpResponseContent, stream, *over));
            poll_fn(|cx| {
                loop {
                    if let Poll::Ready(verdict) = rules.as_mut().poll(cx) {
                        return Poll::Ready(verdict);
                    }
                    if !self.serve_script(&io, cx) {
                        return Poll::Pending;
                    }
                }
            })
            .await
        };
        *over = io.over.get();
        io.wants.set(false);
        io.came.borrow_mut().clear();
        self.take_edited(&io);
        verdict
    }

    /// Reads for a script; returns whether the script can continue.
    fn serve_script(&mut self, io: &ChannelIo, cx: &mut Context<'_>) -> bool {
        self.take_edited(io);
        if !io.wants.get() {
            return false;
        }
        let known = self.back.input().len();
        if self.is_full() {
            io.over.set(true);
        } else {
            match self.poll_more(cx) {
                Poll::Ready(Waited::Bytes) => io.came.borrow_mut().extend_from_slice(&self.back.input()[known..]),
                Poll::Ready(Waited::Deadline | Waited::Gone) => io.over.set(true),
                Poll::Pending => return false,
            }
        }
        io.wants.set(false);
        ring(io, true)
    }

    fn take_edited(&mut self, io: &ChannelIo) {
        if let Some(bytes) = io.edited.take() {
            self.back.replace(&bytes, &self.worker.buffers);
        }
    }
}

/// Runs content rules once; with `over`, nothing more is waited for.
async fn run(list: &RuleList, hook: Hook, stream: &mut Active, over: bool) -> Verdict {
    let worker = stream.worker().clone();
    stream.cx.inspection.set_open(!over);
    let verdict = rule::run(list, hook, &mut stream.cx, worker.scripts()).await;
    stream.cx.inspection.set_open(false);
    verdict
}
