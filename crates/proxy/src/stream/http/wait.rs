//! Rules that wait for a message's body.
//!
//! A body stays in the buffer from which it is forwarded later, so at most `tune.bufsize` bytes are awaited; rules see
//! a copy. During the wait for the response's body, the rest of the request is forwarded to the server, which may need
//! it before it sends its response.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use sluicegate_config::model::BodyWait;
use sluicegate_transport::clock;

use super::super::Content;
use super::*;
use crate::mux::{FlowError, Wait};

/// The size of an interim response 100 as [`head_size`] counts it.
const CONTINUE_SIZE: usize = 40;

/// A server's response while rules see it.
pub(super) struct Coming<'a> {
    pub(super) back: &'a mut Back,
    pub(super) framing: Framing,
    /// Whether what follows the head is a tunnel, which is no body to wait for.
    pub(super) tunnel: bool,
    /// `tune.http.maxhdr`.
    pub(super) max_fields: usize,
    /// How far rules have read the body, if any did.
    pub(super) peek: Option<Peek>,
}

impl Coming<'_> {
    /// Updates the rules' view of the body.
    pub(super) fn look(&mut self, content: &mut Content) -> &Peek {
        let peek = self.peek.get_or_insert_with(|| Peek::new(self.framing, self.max_fields, content));
        self.back.look(peek, content);
        peek
    }
}

/// The result of waiting for a response's body.
enum Came {
    /// The requested amount, or all that can arrive before anything is forwarded.
    Enough,
    /// The server closed its connection before that.
    Ended,
    Malformed,
    /// The time limit of the rule or of the server has passed.
    Late,
    /// The client broke its connection, or ended it under `option abortonclose`.
    ClientGone,
    /// The request's chunks are malformed.
    BadBody,
    /// The client's time limit for the rest of its request has passed.
    ClientTimeout,
}

impl Exchange<'_> {
    /// Updates the rules' view of the request's body.
    pub(super) fn peek_request(&mut self) {
        let max_fields = self.stream.worker().limits.max_fields;
        let content = &mut self.stream.cx.request_content;
        let peek = self.peek.get_or_insert_with(|| Peek::new(self.head.body, max_fields, content));
        self.front.look(peek, content);
    }

    /// Makes the data available from which the hash key for the choice of a server is computed.
    pub(super) fn balance_key(&mut self, backend: &ProxyRun) {
        let Some(key) = &backend.rules.balance_key else { return };
        if key.looks().request || key.awaits_body(&self.stream.cx) {
            self.peek_request();
        }
    }

    /// Returns the time limit for the request's body: `timeout http-request` from the request's first byte on, or the
    /// client's inactivity timeout.
    pub(super) fn patience(&self, proxy: &ProxyRun) -> Patience {
        let started = self.stream.cx.log.request_started;
        match (proxy.config.timeouts.http_request, self.client_timeout) {
            (Some(timeout), _) => Patience::Until(started + timeout),
            (None, Some(timeout)) => Patience::Inactivity(timeout),
            (None, None) => Patience::Endless,
        }
    }

    /// Waits for the request's body, or this many bytes of it. A client that expects a 100 gets it.
    pub(super) async fn await_body(&mut self, patience: Patience, at_least: u64) -> Step<()> {
        // A tunnel has none.
        if self.withholds_data() {
            return Ok(());
        }
        self.peek_request();
        self.satisfy_expectation();
        let Some(peek) = &mut self.peek else { return Ok(()) };
        let came = inspect::body(&mut self.front, &mut self.stream, peek, patience, at_least).await;
        self.client_active = clock::now();
        match came {
            BodyCame::Enough => Ok(()),
            BodyCame::Late => {
                // To HAProxy a request whose body it waited for in vain never was complete.
                self.stream.cx.log.request_done = None;
                self.stream.at_front(|counters| counters.ereq.add(1));
                Err(self.page(408, b'c', b'R').await)
            }
            BodyCame::Malformed => {
                self.stream.at_front(|counters| counters.ereq.add(1));
                Err(self.refuse(400, b'P', b'R').await)
            }
            BodyCame::Gone => {
                self.stream.cx.log.request_done = Some(clock::now());
                self.left = true;
                Ok(())
            }
        }
    }

    /// Returns whether more of the request's body may come, which rules that wait for something else would see.
    pub(super) fn may_see_more(&self, hook: Hook) -> bool {
        let comes = |peek: &Peek| !peek.is_complete() && !peek.is_malformed();
        !hook.is_response() && self.peek.as_ref().is_some_and(comes) && !self.withholds_data()
    }

    /// Resumes rules that wait for something else than a body. What comes of the request's body meanwhile is seen by scripts
    /// that continue, and by the rules behind them.
    pub(super) async fn resume_looking(
        &mut self,
        list: &RuleList,
        suspended: rule::Suspended,
        hook: Hook,
    ) -> rule::Attempt {
        let worker = self.stream.worker().clone();
        let arrived = Rc::new(RefCell::new(Content::default()));
        let context = &mut self.stream.cx;
        context.lua.arrived = Some(arrived.clone());
        let attempt = {
            let mut resumed = pin!(rule::resume_once(list, suspended, hook, context, worker.scripts()));
            let (front, peek) = (&mut self.front, &mut self.peek);
            let mut open = true;
            poll_fn(|cx| {
                while let Some(peek) = peek.as_mut().filter(|peek| open && !peek.is_complete() && !peek.is_malformed())
                {
                    let Poll::Ready(filled) = front.poll_fill(cx, &worker.buffers) else { break };
                    // A failure is met again by the next read.
                    open = filled.is_ok_and(|count| count > 0);
                    front.look(peek, &mut arrived.borrow_mut());
                }
                resumed.as_mut().poll(cx)
            })
            .await
        };
        self.stream.cx.see_arrived();
        self.stream.cx.lua.arrived = None;
        attempt
    }

    /// Sends the 100 for which a client waits before it sends its body, as in HAProxy also if the body has come already. A
    /// request that has no body keeps its expectation. HAProxy sends none for a body of HTTP/2 without a length: a client
    /// that waits would never send it.
    fn satisfy_expectation(&mut self) {
        let has_body = matches!(self.head.body, Framing::Length(1..) | Framing::Chunked);
        let request = &mut self.stream.cx.request;
        let expects = |value: &[u8]| value.eq_ignore_ascii_case(b"100-continue");
        if has_body && self.version > Version::Http10 && request.first(b"expect").is_some_and(expects) {
            request.delete_all(b"expect");
            self.front.try_continue();
            self.stream.count(0, CONTINUE_SIZE);
        }
    }

    /// Waits for a server's body, or this many bytes of it. One that ends too early is forwarded as it is.
    pub(super) async fn await_response_body(&mut self, coming: &mut Coming<'_>, wait: BodyWait) -> Step<()> {
        if coming.tunnel {
            return Ok(());
        }
        let deadline = Instant::now() + wait.time;
        match poll_fn(|cx| self.poll_response_body(cx, coming, deadline, wait.at_least)).await {
            Came::Enough | Came::Ended => Ok(()),
            Came::Malformed => {
                if let Some(backend) = self.stream.cx.backend.clone() {
                    self.observe_body(&backend, coming.back.connection());
                }
                self.capture_response(coming.back, Fault::Chunk);
                self.count_bad_response(coming.back.connection());
                self.stream.cx.log.response_started = None;
                Err(self.page(502, b'P', b'H').await)
            }
            Came::Late => Err(self.page(504, b's', b'H').await),
            Came::ClientGone => {
                self.count_client_abort();
                self.stream.end(b'C', b'D');
                Err(After::Close)
            }
            Came::BadBody => {
                self.stream.capture_request(self.front.input(), Fault::Chunk);
                self.stream.at_front(|counters| counters.ereq.add(1));
                Err(self.page(400, b'P', b'D').await)
            }
            Came::ClientTimeout => {
                self.count_client_abort();
                Err(self.page(408, b'c', b'D').await)
            }
        }
    }

    fn poll_response_body(
        &mut self,
        cx: &mut Context<'_>,
        coming: &mut Coming<'_>,
        deadline: Instant,
        at_least: u64,
    ) -> Poll<Came> {
        let mut up = Moved::default();
        let waiting = match self.poll_up(cx, coming.back, &mut up) {
            Ok(waiting) => waiting,
            Err(FlowError::Malformed) => return Poll::Ready(Came::BadBody),
            Err(_) => return Poll::Ready(Came::ClientGone),
        };
        let worker = self.stream.worker().clone();
        let known = self.stream.cx.response_content.data.len();
        loop {
            let content = &mut self.stream.cx.response_content;
            let peek = coming.look(content);
            if peek.is_malformed() {
                return Poll::Ready(Came::Malformed);
            }
            let enough = at_least > 0 && content.data.len() as u64 >= at_least;
            if peek.is_complete() || enough || coming.back.is_full(&worker.buffers) {
                return Poll::Ready(Came::Enough);
            }
            match coming.back.poll_fill(cx, &worker.buffers) {
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => return Poll::Ready(Came::Ended),
                Poll::Pending => break,
            }
        }
        coming.back.rest(&worker.buffers);
        self.note(&up, self.stream.cx.response_content.data.len() > known, false);
        let abort_on_close = self.aborts_on_close();
        if waiting == Wait::Done && self.front.poll_gone(cx, &worker.buffers, abort_on_close).is_ready() {
            return Poll::Ready(Came::ClientGone);
        }
        let server = self.server_timeout.map_or(deadline, |timeout| deadline.min(self.server_active + timeout));
        let client =
            self.client_timeout.filter(|_| waiting == Wait::Source).map(|timeout| self.client_active + timeout);
        let late = client.is_none_or(|client| server <= client);
        self.front.arm(Some(if late { server } else { client.unwrap_or(server) }));
        ready!(self.front.poll_alarm(cx));
        Poll::Ready(if late { Came::Late } else { Came::ClientTimeout })
    }
}
