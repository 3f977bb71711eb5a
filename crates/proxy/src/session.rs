//! A client connection from its acceptance to its end.
//!
//! A session that waits is a task of at most 512 bytes (a test measures it): the socket, one timer, who the client is.
//! It takes a buffer when the socket is readable and a stream when bytes have come; the stream's own future is boxed
//! and lives for one request. In TCP mode the session is one stream from the start.
//!
//! A head that comes slowly occupies the session's buffer alone. `timeout http-request` runs from the acceptance or
//! from the head's first byte until its last; between two requests `timeout http-keep-alive` does.

mod handshake;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use sluicegate_config::model::{ErrorPage, Mode, ProxyId};
use sluicegate_transport::{Buffer, Socket, Timer};
use sluicegate_wire::http::{HeadError, Limits, RequestHead, parse_request, status};

use crate::counters::Counters;
use crate::hook::Hook;
use crate::listener::{Accepted, Listener, Slots};
use crate::process::Phase;
use crate::proxied::Proxied;
use crate::rule::{self, Verdict};
use crate::running::ProxyRun;
use crate::sample::VarMap;
use crate::server;
use crate::site::Site;
use crate::stick::{Counted, Tracked};
use crate::stream::http::{self, After};
use crate::stream::{Active, Connection, Fault, Invalid, tcp};
use crate::worker::{SessionPlace, Worker};

/// How long, and how much, a client that was answered early may go on sending before it is closed.
const DRAIN_TIME: Duration = Duration::from_secs(2);
const DRAIN_BYTES: usize = 4 * 1024 * 1024;

/// A client connection.
pub(crate) struct Session {
    pub(crate) socket: Socket,
    pub(crate) input: Buffer,
    pub(crate) timer: Timer,
    /// `sess.` variables between two streams.
    pub(crate) variables: VarMap,
    /// What its rules track.
    pub(crate) tracked: Tracked,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) local: Option<SocketAddr>,
    /// Its own addresses and what its PROXY protocol header said, where `peer` and `local` are others: those of the header,
    /// or those that `tcp-request session` rules set.
    pub(crate) proxied: Option<Rc<Proxied>>,
    pub(crate) accepted: Instant,
    /// When something last moved, as far as a clock was read for it: an idle connection is waited for since then.
    pub(crate) last_active: Instant,
    /// Requests whose head was complete.
    pub(crate) requests: u32,
    /// The server of the last one.
    pub(crate) last_server: LastServer,
    /// The client has sent its FIN; what is in `input` is all there will be.
    pub(crate) ended: bool,
    place: SessionPlace,
    slots: Slots,
}

/// A backend and the place of a server in it, twelve bits each: there is no more room in an idle session. Who is beyond
/// is not remembered.
#[derive(Clone, Copy)]
pub(crate) struct LastServer([u8; 3]);

impl LastServer {
    const NONE: LastServer = LastServer([0xff; 3]);
    const MAX: usize = 0xffe;

    pub(crate) fn new(backend: ProxyId, server: usize) -> LastServer {
        let backend = backend.0 as usize;
        if backend > LastServer::MAX || server > LastServer::MAX {
            return LastServer::NONE;
        }
        let [.., high, middle, low] = (backend << 12 | server).to_be_bytes();
        LastServer([high, middle, low])
    }

    /// The server's place, if it is one of this backend's.
    pub(crate) fn in_backend(self, wanted: ProxyId) -> Option<usize> {
        let [high, middle, low] = self.0;
        let both = u32::from_be_bytes([0, high, middle, low]);
        (both >> 12 == wanted.0).then_some((both & 0xfff) as usize)
    }
}

impl Session {
    /// Registers an accepted connection with this worker.
    pub(crate) fn new(worker: &Rc<Worker>, accepted: Accepted) -> io::Result<Session> {
        let Accepted { fd, peer, slots } = accepted;
        let socket = Socket::from_fd(fd, slots.listener().is_tcp)?;
        let local = socket.local_addr();
        let accepted = Instant::now();
        Ok(Session {
            socket,
            input: Buffer::default(),
            timer: Timer::default(),
            variables: VarMap::default(),
            tracked: Tracked::default(),
            peer,
            local,
            proxied: None,
            accepted,
            last_active: accepted,
            requests: 0,
            last_server: LastServer::NONE,
            ended: false,
            place: worker.register_session(),
            slots,
        })
    }

    /// The worker.
    pub(crate) fn worker(&self) -> &Rc<Worker> {
        self.place.worker()
    }

    /// When it was accepted, by the wall clock.
    pub(crate) fn accepted_at(&self) -> SystemTime {
        self.worker().wall_clock(self.accepted)
    }

    /// Keeps what is in the buffer as the frontend's last invalid request.
    pub(crate) fn capture(&self, fault: Fault) {
        let worker = self.worker();
        let event = worker.running.process.next_invalid();
        let at = worker.wall_clock(Instant::now());
        let mut invalid = Invalid::new(event, at, self.input.data(), fault, true);
        invalid.source = self.peer;
        self.frontend().frontend.invalid.set(invalid);
    }

    /// Its place among the worker's sessions.
    pub(crate) fn place(&self) -> u32 {
        self.place.number()
    }

    /// The frontend.
    pub(crate) fn frontend(&self) -> &Arc<Site> {
        &self.slots.listener().proxy
    }

    /// The frontend with its code.
    fn run_of_frontend(&self) -> &ProxyRun {
        &self.worker().running.proxies[self.frontend().id.0 as usize]
    }

    /// The connection as the context of its next stream needs it.
    pub(crate) fn connection(&self) -> Connection<'_> {
        Connection {
            id: self.worker().next_stream_id(),
            session: self.place(),
            listener: self.listener(),
            unique_id: self.run_of_frontend().log.unique_id(),
            socket: &self.socket,
            peer: self.peer,
            local: self.local,
            proxied: &self.proxied,
            accepted: self.accepted,
            accepted_at: self.accepted_at(),
        }
    }

    /// Where it was accepted.
    pub(crate) fn listener(&self) -> &Arc<Listener> {
        self.slots.listener()
    }

    /// The process is stopping, or nothing listens to the address any more: this connection should carry no further
    /// request.
    pub(crate) fn is_stopping(&self) -> bool {
        self.worker().phase() != Phase::Serving || self.listener().is_removed()
    }

    /// Between two requests: goes on under the newest configuration, unless that has no such listener any more.
    fn follow(&mut self) {
        let Some(worker) = self.worker().newer() else { return };
        let Some(listener) = self.listener().successor(&worker.running) else { return };
        if listener.proxy.config.mode != Mode::Http {
            return;
        }
        self.forget_own();
        // An empty buffer belongs to nobody.
        self.place.worker().buffers.reclaim(&mut self.input);
        // Servers may have other places there.
        self.last_server = LastServer::NONE;
        self.slots.follow(listener);
        self.place.follow(worker);
    }

    /// Closes the server connections that only this session may use.
    fn forget_own(&self) {
        let worker = self.worker();
        server::forget_own(&worker.running.unshared, worker.index, self.place());
    }

    /// Reads what has come, compacting if there is no room behind it. 0 is the client's end.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // Without readiness no buffer is taken.
        std::task::ready!(self.socket.poll_read_ready(cx))?;
        let worker = self.place.worker();
        worker.buffers.equip(&mut self.input);
        if self.input.spare().is_empty() {
            self.input.compact();
        }
        if self.input.spare().is_empty() {
            return Poll::Pending;
        }
        let result = self.socket.poll_read(cx, self.input.spare());
        match result {
            Poll::Ready(Ok(0)) => self.ended = true,
            Poll::Ready(Ok(count)) => self.input.filled(count),
            _ => {}
        }
        worker.buffers.retire(&mut self.input);
        result
    }

    /// Holds these bytes for the server instead of what the client sent.
    pub(crate) fn replace_input(&mut self, bytes: &[u8]) {
        let worker = self.place.worker();
        worker.buffers.equip(&mut self.input);
        self.input.replace(bytes);
        worker.buffers.retire(&mut self.input);
    }

    /// There is no room for more before something is consumed.
    pub(crate) fn is_full(&self) -> bool {
        self.input.len() == self.worker().buffers.size()
    }

    /// Looks after a client that is waiting for its answer: what it sends meanwhile is kept for later. Ready when it
    /// is gone; with `half` also when it has ended its side.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>, half: bool) -> Poll<()> {
        loop {
            if self.ended {
                return if half { Poll::Ready(()) } else { Poll::Pending };
            }
            match self.poll_fill(cx) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.forget_own();
        let worker = self.place.worker().clone();
        worker.buffers.reclaim(&mut self.input);
    }
}

/// A session's task.
///
/// Not an `async fn`: one of those keeps its argument twice, where it came in and where it is used.
#[allow(clippy::manual_async_fn)]
pub(crate) fn run(mut session: Session) -> impl Future<Output = ()> {
    async move {
        let now = session.accepted;
        let index = session.worker().index;
        session.listener().count(index, |counters| counters.conn_tot.add(1));
        let counters = session.frontend().frontend.figures.at(index);
        let options = &session.frontend().config.options;
        session.socket.settle(server::keepalive(&options.client_probes).as_ref(), options.nolinger);
        counters.conn_rate.add(now, 1);
        let rules = &session.run_of_frontend().rules;
        let rules = !rules.tcp_request_connection.is_empty() || !rules.tcp_request_session.is_empty();
        if (rules || session.listener().accepts_header()) && !Box::pin(admit(&mut session)).await {
            return;
        }
        session.frontend().frontend.figures.at(index).session(now);
        Tracked::count(&Tracked::default(), &session.tracked, Counted::Session);
        if session.frontend().config.mode == Mode::Tcp {
            let watch = session.place.watch();
            // Switched to HTTP, each request finds its own way through the frontend, as in HAProxy.
            if watch.unless_killed(Box::pin(tcp::serve(&mut session))).await != Some(true) {
                return;
            }
        }
        serve_http(&mut session).await;
    }
}

/// Runs `tcp-request connection`, reads the PROXY protocol header if there is to be one, and runs `tcp-request
/// session`; `false`: the connection is refused.
async fn admit(session: &mut Session) -> bool {
    let Some(expects_header) = run_rules(session, Hook::TcpRequestConnection).await else { return false };
    if (expects_header || session.listener().accepts_header()) && !handshake::receive(session).await {
        return false;
    }
    run_rules(session, Hook::TcpRequestSession).await.is_some()
}

/// Runs the rules of a connection; `None`: it is refused. Says whether they expect a PROXY protocol header.
async fn run_rules(session: &mut Session, hook: Hook) -> Option<bool> {
    let worker = session.worker().clone();
    let frontend = &worker.running.proxies[session.frontend().id.0 as usize];
    let of_connection = hook == Hook::TcpRequestConnection;
    let rules = &frontend.rules;
    let list = if of_connection { &rules.tcp_request_connection } else { &rules.tcp_request_session };
    if list.is_empty() {
        return Some(false);
    }
    let mut stream = Active::take(session);
    // A connection is not a stream yet: it has no unique id.
    stream.cx.making_unique_id.set(true);
    let verdict = rule::run(list, hook, &mut stream.cx, &worker).await;
    let expects_header = stream.cx.expects_header;
    // What rules say of a connection holds for all of its streams.
    let (before, now) = ((session.peer, session.local), (stream.cx.source, stream.cx.destination));
    if !of_connection && before != now && session.proxied.is_none() {
        session.proxied = Some(Rc::new(Proxied { peer: before.0, local: before.1, tlvs: None }));
    }
    (session.peer, session.local) = now;
    stream.finish(session);
    if !matches!(verdict, Verdict::Continue) {
        let refused = |counters: &Counters| if of_connection { counters.dcon.add(1) } else { counters.dses.add(1) };
        session.listener().count(worker.index, refused);
        return None;
    }
    Some(expects_header)
}

/// What waiting for a request gave.
enum Arrival {
    /// A complete head, and when it was.
    Request(Active, RequestHead, Instant),
    Invalid(HeadError),
    /// `timeout http-request`, or `http-keep-alive` with nothing received.
    TimedOut,
    /// The client ended or broke the connection.
    Gone,
    /// The process stops and this connection is idle.
    Stopping,
}

async fn serve_http(session: &mut Session) {
    loop {
        let mut next = NextRequest::new(session);
        let after = match poll_fn(|cx| next.poll(session, cx)).await {
            Arrival::Request(stream, head, now) => {
                let watch = session.place.watch();
                // Made where it will live: `Box::pin` makes it on the stack and copies all its kilobytes.
                let serving = Box::write(Box::new_uninit(), http::serve(session, stream, head, now));
                match watch.unless_killed(Box::into_pin(serving)).await {
                    Some(after) => after,
                    None => return,
                }
            }
            Arrival::Stopping => return,
            failed => return Box::pin(refuse(session, failed, next.started)).await,
        };
        match after {
            After::KeepAlive => {}
            After::Close => return,
            After::Drain => return Box::pin(drain(session)).await,
        }
    }
}

/// The wait for a complete request head.
struct NextRequest {
    /// Taken when bytes have come; its message is what they are parsed into.
    stream: Option<Active>,
    /// When the head's first byte came; until then, since when it is waited for.
    started: Instant,
    /// There are bytes that were not looked at.
    fresh: bool,
}

impl NextRequest {
    fn new(session: &mut Session) -> NextRequest {
        let started = session.last_active;
        let times = &session.frontend().config.timeouts;
        let for_head = times.http_request.or(times.client);
        let timeout = if session.requests == 0 { for_head } else { times.http_keep_alive.or(for_head) };
        session.timer.set(timeout.map(|timeout| started + timeout));
        // The last request's bytes are used up: an idle connection keeps no buffer.
        let worker = session.place.worker();
        worker.buffers.retire(&mut session.input);
        NextRequest { stream: None, started, fresh: !session.input.is_empty() }
    }

    fn poll(&mut self, session: &mut Session, cx: &mut Context<'_>) -> Poll<Arrival> {
        loop {
            if std::mem::take(&mut self.fresh)
                && let Some(arrival) = self.parse(session)
            {
                return Poll::Ready(arrival);
            }
            if session.ended {
                return Poll::Ready(Arrival::Gone);
            }
            if self.stream.is_none() && session.input.is_empty() {
                session.follow();
            }
            let waits_on = session.frontend().config.options.idle_close_on_response;
            if session.is_stopping() && !waits_on && session.requests > 0 && session.input.is_empty() {
                return Poll::Ready(Arrival::Stopping);
            }
            session.place.waits(cx.waker());
            match session.poll_fill(cx) {
                Poll::Ready(Ok(count)) if count > 0 => self.fresh = true,
                Poll::Ready(_) => return Poll::Ready(Arrival::Gone),
                Poll::Pending => return session.timer.poll(cx).map(|()| Arrival::TimedOut),
            }
        }
    }

    fn parse(&mut self, session: &mut Session) -> Option<Arrival> {
        let now = Instant::now();
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                self.started = now;
                Active::take(session)
            }
        };
        let lenient = stream.cx.frontend.config.options.unsafe_requests;
        let limits = &Limits { lenient, ..session.worker().limits };
        match parse_request(session.input.data(), limits, &mut stream.cx.request) {
            Ok(Some(head)) => {
                note_start(session, &mut stream, self.started);
                session.requests = session.requests.saturating_add(1);
                stream.cx.request_number = session.requests;
                Some(Arrival::Request(stream, head, now))
            }
            Ok(None) => {
                self.stream = Some(stream);
                // Only the first head of a connection is waited for since before its first byte.
                if session.requests > 0 {
                    let times = &session.frontend().config.timeouts;
                    let timeout = times.http_request.or(times.client);
                    session.timer.set(timeout.map(|timeout| self.started + timeout));
                }
                None
            }
            Err(error) => {
                stream.finish(session);
                Some(Arrival::Invalid(error))
            }
        }
    }
}

/// Notes when the first byte of a request came, and since when it was waited for: since the connection was accepted or
/// since the request before it ended.
fn note_start(session: &Session, stream: &mut Active, started: Instant) {
    let (worker, log) = (session.worker(), &mut stream.cx.log);
    log.request_started_at = worker.wall_clock(started);
    log.request_started = started;
    log.accepted = session.last_active;
}

/// Answers a request that never became one, as HAProxy's H1 layer does: the page as it is, no rule sees it.
async fn refuse(session: &mut Session, arrival: Arrival, started: Instant) {
    let silent = session.input.is_empty();
    let (code, who, answered) = match arrival {
        Arrival::Invalid(error) => {
            session.capture(Fault::Head(error));
            (error.request_status(), b'P', true)
        }
        Arrival::TimedOut => (408, b'c', true),
        // A client that ended its side can still read; one that broke the connection can't.
        _ => (400, b'C', session.ended),
    };
    // An idle keep-alive connection ends without a word and without a line.
    if silent && session.requests > 0 {
        return;
    }
    let options = &session.frontend().config.options;
    let ignored = silent && options.http_ignore_probes;
    let unlogged = ignored || (silent && options.dontlognull);
    let counted = !ignored && (!silent || answered);
    if counted {
        session.listener().count(session.worker().index, |counters| {
            counters.ereq.add(1);
            counters.req_tot.add(1);
        });
    }
    let mut stream = Active::take(session);
    if counted {
        stream.cx.count(Counted::Request);
        stream.cx.count(Counted::Error);
    }
    stream.cx.log.no_request = true;
    note_start(session, &mut stream, started);
    stream.cx.log.status = i32::from(code);
    stream.note_received(session.input.len());
    stream.end(who, b'R');
    if unlogged {
        stream.cx.log.level = Some(sluicegate_config::model::LogLevel::Silent);
    }
    if counted || !unlogged {
        stream.begin(session);
    }
    let hushed = stream.cx.error_page(code).is_some_and(|page| *page == ErrorPage::Silent);
    if answered && !ignored && !hushed {
        let page = status::error_page(code).raw.as_bytes();
        // One try: nobody waits for the room of who has shown no sense so far.
        stream.count_sent(session.socket.try_write(page).unwrap_or(0));
    }
    stream.finish(session);
    if answered {
        drain(session).await;
    }
}

/// Ends a connection whose client may still be sending: its FIN is awaited, within limits, so that the kernel does not
/// reset the connection under an answer that was not read yet.
pub(crate) async fn drain(session: &mut Session) {
    session.socket.shutdown_write();
    if session.ended {
        return;
    }
    session.timer.set(Some(Instant::now() + DRAIN_TIME));
    let mut room = DRAIN_BYTES;
    poll_fn(|cx| {
        loop {
            session.input.consume(session.input.len());
            match session.poll_fill(cx) {
                Poll::Ready(Ok(count)) if count > 0 && count <= room => room -= count,
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return session.timer.poll(cx),
            }
        }
    })
    .await;
}

/// The size of what a session's function returns: its future.
const fn future_size<F, R>(_: &F) -> usize
where
    F: Fn(Session) -> R,
{
    size_of::<R>()
}

/// An idle session is this future and its timer.
const _: () = assert!(future_size(&run) <= 512);
