//! Waiting for contents: the inspect delay of content rules, and bodies that rules want to see.
//!
//! What comes stays in the session's buffer, from where it is forwarded later; rules see a copy that grows with it, so
//! no more than `tune.bufsize` is ever held or copied. Rules run once per read, not per byte that a read brings, and at
//! most as often as a buffer has bytes.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluicegate_transport::Buffer;
use sluicegate_wire::http::{BodyDecoder, BodyEvent, Framing, HeadError, Limits, parse_request};

use super::flow::{Flow, FlowError, Moved};
use super::{Active, ChannelIo, Content};
use crate::hook::Hook;
use crate::rule::{self, RuleList, Verdict};
use crate::server::ServerConnection;
use crate::session::Session;
use crate::worker::Worker;

/// How far a body that stays in its buffer has been looked at.
#[derive(Debug)]
pub(super) struct Peek {
    decoder: BodyDecoder,
    /// Bytes of the buffer that the decoder has seen.
    seen: usize,
    complete: bool,
    malformed: bool,
}

impl Peek {
    /// Nothing was looked at of a body framed so.
    pub(super) fn new(framing: Framing, max_fields: usize, content: &mut Content) -> Peek {
        content.announced = match framing {
            Framing::None => Some(0),
            Framing::Length(length) => Some(length),
            Framing::Chunked | Framing::UntilClose => None,
        };
        let mut decoder = BodyDecoder::new(framing);
        decoder.limit_trailers(max_fields);
        Peek { complete: decoder.is_done(), decoder, seen: 0, malformed: false }
    }

    /// Copies what came since the last look, without the frames of chunks.
    pub(super) fn look(&mut self, input: &[u8], content: &mut Content) {
        while !self.complete && !self.malformed && self.seen < input.len() {
            let rest = &input[self.seen..];
            match self.decoder.decode(rest) {
                Ok((taken, event)) => {
                    match event {
                        BodyEvent::Data(range) => content.data.extend_from_slice(&rest[range]),
                        BodyEvent::End => self.complete = true,
                        BodyEvent::More if taken == 0 => return,
                        BodyEvent::More => {}
                    }
                    self.seen += taken;
                    self.complete |= self.decoder.is_done();
                }
                Err(_) => self.malformed = true,
            }
        }
    }

    /// The whole body is here.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// What came can't be the body.
    pub(super) fn is_malformed(&self) -> bool {
        self.malformed
    }
}

/// What waiting for a body gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyCame {
    /// What was wanted, or all there will be before something is forwarded: the body is complete or the buffer full.
    Enough,
    /// The deadline passed.
    Late,
    /// Its chunks are malformed.
    Malformed,
    /// The client ended or broke the connection.
    Gone,
}

/// What a wait for bytes gave.
enum Waited {
    Bytes,
    Deadline,
    Gone,
}

async fn more(session: &mut Session, deadline: Option<Instant>) -> Waited {
    session.timer.set(deadline);
    poll_fn(|cx| match session.poll_fill(cx) {
        Poll::Ready(Ok(_)) => Poll::Ready(Waited::Bytes),
        Poll::Ready(Err(_)) => Poll::Ready(Waited::Gone),
        Poll::Pending => session.timer.poll(cx).map(|()| Waited::Deadline),
    })
    .await
}

/// How long a body is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience {
    /// Until then, whatever comes.
    Until(Instant),
    /// So long between two pieces of data; the frames of chunks are none.
    Inactivity(Duration),
    Endless,
}

/// Waits for a request's body: the whole of it, or `at_least` bytes unless that is 0.
pub(super) async fn body(
    session: &mut Session,
    stream: &mut Active,
    peek: &mut Peek,
    patience: Patience,
    at_least: u64,
) -> BodyCame {
    let mut known = 0;
    let mut active = Instant::now();
    loop {
        let content = &mut stream.cx.request_content;
        peek.look(session.input.data(), content);
        if content.data.len() > known {
            known = content.data.len();
            active = Instant::now();
        }
        if peek.malformed {
            return BodyCame::Malformed;
        }
        let enough = at_least > 0 && content.data.len() as u64 >= at_least;
        if peek.complete || enough || session.is_full() {
            return BodyCame::Enough;
        }
        if session.ended {
            return BodyCame::Gone;
        }
        let deadline = match patience {
            Patience::Until(deadline) => Some(deadline),
            Patience::Inactivity(timeout) => Some(active + timeout),
            Patience::Endless => None,
        };
        match more(session, deadline).await {
            Waited::Bytes => {}
            Waited::Deadline => return BodyCame::Late,
            Waited::Gone => return BodyCame::Gone,
        }
    }
}

/// Runs content rules on an HTTP request until they are decided, within the inspect delay.
pub(super) async fn request_content(
    session: &mut Session,
    stream: &mut Active,
    peek: &mut Peek,
    list: &RuleList,
    delay: Option<Duration>,
) -> Verdict {
    let deadline = delay.map(|delay| Instant::now() + delay);
    let mut over = deadline.is_none();
    loop {
        peek.look(session.input.data(), &mut stream.cx.request_content);
        over |= peek.complete || peek.malformed || session.ended || session.is_full();
        let verdict = run(list, Hook::TcpRequestContent, stream, over).await;
        if !matches!(verdict, Verdict::Missing) {
            return verdict;
        }
        match more(session, deadline).await {
            Waited::Bytes => {}
            Waited::Deadline | Waited::Gone => over = true,
        }
    }
}

/// Runs content rules on what a TCP client sends until they are decided, within the inspect delay.
pub(super) async fn tcp_request(
    session: &mut Session,
    stream: &mut Active,
    list: &RuleList,
    delay: Option<Duration>,
) -> Verdict {
    let deadline = delay.map(|delay| Instant::now() + delay);
    let mut over = deadline.is_none();
    if stream.worker().scripts.is_some() {
        stream.cx.lua.channels.get_or_insert_default();
    }
    loop {
        see_request(session, stream, list.looks().head);
        over |= session.ended || session.is_full();
        let verdict = run_talking(session, stream, list, deadline, over).await;
        if !matches!(verdict, Verdict::Missing) {
            return verdict;
        }
        match more(session, deadline).await {
            Waited::Bytes => {}
            Waited::Deadline | Waited::Gone => over = true,
        }
    }
}

/// Runs content rules on a TCP client's bytes once. Their scripts may wait for more of these, change them, and answer the
/// client meanwhile.
async fn run_talking(
    session: &mut Session,
    stream: &mut Active,
    list: &RuleList,
    deadline: Option<Instant>,
    over: bool,
) -> Verdict {
    let Some(io) = stream.cx.lua.channels.clone() else {
        return run(list, Hook::TcpRequestContent, stream, over).await;
    };
    let patience = stream.cx.frontend.config.timeouts.client;
    io.over.set(over);
    let verdict = {
        let mut rules = pin!(run(list, Hook::TcpRequestContent, stream, over));
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(verdict) = rules.as_mut().poll(cx) {
                    return Poll::Ready(verdict);
                }
                if !serve_script(&io, cx, session, deadline) {
                    return Poll::Pending;
                }
            }
        })
        .await
    };
    io.wants.set(false);
    io.came.borrow_mut().clear();
    if let Some(bytes) = io.edited.take() {
        session.replace_input(&bytes);
    }
    // What it said is sent even if the connection ends now, to a client that takes it.
    if !io.to_client.borrow().is_empty() {
        session.timer.set(patience.map(|patience| Instant::now() + patience));
        poll_fn(|cx| match write_for(&io, cx, session) {
            Poll::Pending => session.timer.poll(cx),
            Poll::Ready(()) => Poll::Ready(()),
        })
        .await;
    }
    verdict
}

/// Does what a script asks of its client's connection; whether it can go on.
fn serve_script(io: &ChannelIo, cx: &mut Context<'_>, session: &mut Session, deadline: Option<Instant>) -> bool {
    if let Some(bytes) = io.edited.take() {
        session.replace_input(&bytes);
    }
    let mut happened = !io.to_client.borrow().is_empty() && write_for(io, cx, session).is_ready();
    if io.wants.get() {
        if session.ended || session.is_full() {
            io.over.set(true);
        } else {
            match session.poll_fill(cx) {
                Poll::Ready(Ok(count)) if count > 0 => {
                    let data = session.input.data();
                    io.came.borrow_mut().extend_from_slice(&data[data.len() - count..]);
                }
                Poll::Ready(_) => io.over.set(true),
                Poll::Pending => {
                    session.timer.set(deadline);
                    if session.timer.poll(cx).is_pending() {
                        return ring(io, happened);
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

/// Writes what a script has for the client; ready when nothing is left, or nobody will take it.
fn write_for(io: &ChannelIo, cx: &mut Context<'_>, session: &mut Session) -> Poll<()> {
    let mut out = io.to_client.borrow_mut();
    while !out.is_empty() {
        match session.socket.poll_write(cx, &out) {
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

/// Shows rules what a TCP client has sent, and where they look at an HTTP request's head, that head.
pub(super) fn see_request(session: &Session, stream: &mut Active, head: bool) {
    let input = session.input.data();
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
            Err(error) => {
                cx.request.clear();
                // A head that is too large is one all the same: what it would have been is not known.
                cx.request_content.no_http = !matches!(error, HeadError::TooLarge | HeadError::TargetTooLong);
            }
        }
    }
}

/// Runs content rules on what a TCP server sends until they are decided, within the inspect delay. What the client
/// sends goes on to the server meanwhile, who may have to hear it before he answers.
pub(super) async fn tcp_response(
    session: &mut Session,
    stream: &mut Active,
    connection: &mut ServerConnection,
    input: &mut Buffer,
    list: &RuleList,
    delay: Option<Duration>,
) -> Verdict {
    let worker = stream.worker().clone();
    let deadline = delay.map(|delay| Instant::now() + delay);
    let mut over = deadline.is_none();
    if worker.scripts.is_some() {
        stream.cx.lua.channels.get_or_insert_default();
    }
    let up = Flow::new(Vec::new(), Framing::UntilClose, Framing::UntilClose);
    let mut answer = Answer { session, connection, input, worker, up, up_open: true, sent: 0, deadline };
    loop {
        let known = stream.cx.response_content.known();
        stream.cx.response_content.data.extend_from_slice(&answer.input.data()[known..]);
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
        answer.worker.buffers.retire(answer.input);
        stream.count(std::mem::take(&mut answer.sent), 0);
    }
}

/// Both sides of a TCP stream while a server's bytes are looked at.
struct Answer<'a> {
    session: &'a mut Session,
    connection: &'a mut ServerConnection,
    /// What the server sent.
    input: &'a mut Buffer,
    worker: Rc<Worker>,
    /// From the client to the server.
    up: Flow,
    up_open: bool,
    /// Bytes of the client's that are not counted yet.
    sent: usize,
    deadline: Option<Instant>,
}

impl Answer<'_> {
    fn is_full(&self) -> bool {
        self.input.len() == self.worker.buffers.size()
    }

    /// Waits for more of the server's bytes, within the inspect delay.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Waited> {
        let Answer { session, connection, input, worker, up, .. } = self;
        if self.up_open {
            let mut moved = Moved::default();
            let socket = &mut connection.socket;
            let result = up.poll(cx, &mut session.input, &mut session.socket, socket, &worker.buffers, &mut moved);
            // The end of a side is the relay's to pass on; here it only means that nothing more goes up.
            self.up_open = !matches!(result, Ok(super::flow::Wait::Done) | Err(FlowError::Source | FlowError::Sink));
            self.sent += moved.body;
        }
        worker.buffers.equip(input);
        match connection.socket.poll_read(cx, input.spare()) {
            Poll::Ready(Ok(count)) if count > 0 => {
                input.filled(count);
                Poll::Ready(Waited::Bytes)
            }
            Poll::Ready(_) => Poll::Ready(Waited::Gone),
            Poll::Pending => {
                worker.buffers.retire(input);
                session.timer.set(self.deadline);
                session.timer.poll(cx).map(|()| Waited::Deadline)
            }
        }
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

    /// Reads for a script; whether it can go on.
    fn serve_script(&mut self, io: &ChannelIo, cx: &mut Context<'_>) -> bool {
        self.take_edited(io);
        if !io.wants.get() {
            return false;
        }
        let known = self.input.len();
        if self.is_full() {
            io.over.set(true);
        } else {
            match self.poll_more(cx) {
                Poll::Ready(Waited::Bytes) => io.came.borrow_mut().extend_from_slice(&self.input.data()[known..]),
                Poll::Ready(Waited::Deadline | Waited::Gone) => io.over.set(true),
                Poll::Pending => return false,
            }
        }
        io.wants.set(false);
        ring(io, true)
    }

    fn take_edited(&mut self, io: &ChannelIo) {
        if let Some(bytes) = io.edited.take() {
            self.worker.buffers.equip(self.input);
            self.input.replace(&bytes);
            self.worker.buffers.retire(self.input);
        }
    }
}

/// Runs content rules once; `over`: nothing more is waited for.
async fn run(list: &RuleList, hook: Hook, stream: &mut Active, over: bool) -> Verdict {
    let worker = stream.worker().clone();
    stream.cx.inspection.set_open(!over);
    let verdict = rule::run(list, hook, &mut stream.cx, worker.scripts()).await;
    stream.cx.inspection.set_open(false);
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_looked_at_as_it_comes() {
        let wire = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: v\r\n\r\nGET /";
        let mut content = Content::default();
        let mut peek = Peek::new(Framing::Chunked, 101, &mut content);
        for end in 0..=wire.len() {
            peek.look(&wire[..end], &mut content);
            assert!(b"abcde".starts_with(&content.data[..]), "after {end}: {:?}", content.data);
        }
        assert!(peek.is_complete() && content.data == b"abcde" && content.announced.is_none());
        let mut content = Content::default();
        let mut peek = Peek::new(Framing::Length(3), 101, &mut content);
        peek.look(b"ab", &mut content);
        assert!(!peek.is_complete());
        peek.look(b"abcGET /", &mut content);
        assert!(peek.is_complete() && content.data == b"abc" && content.announced == Some(3));
        let mut content = Content::default();
        let mut peek = Peek::new(Framing::Chunked, 101, &mut content);
        peek.look(b"zz\r\n", &mut content);
        assert!(peek.malformed && !peek.is_complete());
    }
}
