//! The life of a session: admission, successive requests, and responses to invalid requests.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use sluicegate_config::model::{ErrorPage, Mode};
use sluicegate_transport::clock;
use sluicegate_wire::http::{HeadError, Limits, RequestHead};
use sluicegate_wire::http2;

use super::{Session, attach, h2, handshake, syslog};
use crate::counters::Counters;
use crate::hook::Hook;
use crate::listener::Accepted;
use crate::mux::Front;
use crate::proxied::Proxied;
use crate::rule::{self, Verdict};
use crate::server;
use crate::site::Site;
use crate::stick::{Counted, Tracked};
use crate::stream::http::{self, After};
use crate::stream::{Active, Attaching, ExpectedHeaders, Fault, tcp};
use crate::worker::Worker;

/// Serves a connection on this worker or, if `to` is another worker with room in its inbox, there.
pub(crate) fn start(worker: &Rc<Worker>, mut accepted: Accepted, to: usize) {
    if to != worker.index {
        match worker.hand_over(accepted, to) {
            Ok(()) => return,
            Err(back) => accepted = back,
        }
    }
    let Some(worker) = worker.for_listener(&mut accepted) else { return };
    // A socket that cannot be registered cannot be served; closing it is the only notice to the client.
    if let Ok(session) = Session::new(&worker, accepted) {
        tokio::task::spawn_local(run(session));
    }
}

/// Returns a session's task.
///
/// This is not an `async fn`, because the future of such a function stores its argument twice: as received, and where
/// it is used.
#[allow(clippy::manual_async_fn)]
pub(crate) fn run(mut session: Session) -> impl Future<Output = ()> {
    async move {
        set_up(&session);
        let rules = &session.run_of_frontend().rules;
        let rules = !rules.tcp_request_connection.is_empty() || !rules.tcp_request_session.is_empty();
        let bind = session.listener().bind();
        let begins = bind.accept_proxy || bind.cip.is_some() || session.listener().tls().is_some();
        if (rules || begins) && !Box::pin(admit(&mut session)).await {
            return;
        }
        count(&session);
        if session.frontend().config.log_forward.is_some() {
            return Box::pin(syslog::serve(&mut session)).await;
        }
        if session.frontend().config.mode == Mode::Tcp {
            let watch = session.place.watch();
            let stream = session.new_stream();
            // Made where it will live: `Box::pin` makes it on the stack and copies all its kilobytes.
            let serving = Box::write(Box::new_uninit(), tcp::serve(Front::H1(&mut session.front), stream));
            let Some(Some(stream)) = watch.unless_killed(Box::into_pin(serving)).await else { return };
            // Switched to HTTP, each request finds its own way through the frontend, as in HAProxy.
            session.switched = Some(Box::new(stream));
        }
        serve_http(&mut session).await;
    }
}

/// Returns the task of a session that this side has opened; its peer has sent its settings.
pub(crate) async fn run_reversed(mut session: Session, wire: http2::Connection) {
    set_up(&session);
    for hook in [Hook::TcpRequestConnection, Hook::TcpRequestSession] {
        if run_rules(&mut session, hook).await.is_none() {
            return;
        }
    }
    count(&session);
    h2::serve_reversed(&mut session, wire).await;
}

/// Returns this side of HTTP/2 on a connection that it opens for a frontend.
pub(crate) fn reversed_server(worker: &Worker, frontend: &Site) -> http2::Connection {
    http2::Connection::reversed_server(h2::settings_reversed(worker, frontend))
}

/// Counts a connection, and sets the options of its socket.
fn set_up(session: &Session) {
    let index = session.worker().index;
    session.listener().count(index, |counters| counters.conn_tot.add(1));
    let options = &session.frontend().config.options;
    session.front.socket().settle(server::keepalive(&options.client_probes).as_ref(), options.nolinger);
    if let Some(sizes) = &session.worker().client_sockets {
        session.front.socket().set_options(sizes);
    }
    session.frontend().frontend.figures.at(index).conn_rate.add(session.client.accepted, 1);
}

/// Counts a session that rules have admitted.
fn count(session: &Session) {
    session.frontend().frontend.figures.at(session.worker().index).session(session.client.accepted);
    Tracked::count(&Tracked::default(), &session.client.tracked.borrow(), Counted::Session);
}

/// Runs `tcp-request connection`, reads the PROXY protocol header if one is expected, performs the TLS handshake of a
/// `bind … ssl`, and runs `tcp-request session`; returns `false` if the connection is refused, or was given to a server.
async fn admit(session: &mut Session) -> bool {
    let Some((expected, _)) = run_rules(session, Hook::TcpRequestConnection).await else { return false };
    let header = expected.proxy || session.listener().accepts_header();
    if header && !handshake::receive(session).await {
        return false;
    }
    let cip = expected.cip || session.listener().bind().cip.is_some();
    if cip && !handshake::receive_cip(session).await {
        return false;
    }
    let tls = session.listener().tls().cloned();
    if let Some(tls) = &tls
        && !handshake::secure(session, tls).await
    {
        return false;
    }
    let Some((_, attaching)) = run_rules(session, Hook::TcpRequestSession).await else {
        // As in HAProxy, a line is written only of a connection that had a handshake.
        if header || cip || tls.is_some() {
            handshake::refuse(session, None);
        }
        return false;
    };
    if let Some(attaching) = attaching {
        count(session);
        attach::serve(session, *attaching).await;
        return false;
    }
    true
}

/// What the rules of a connection have set.
type Ruled = (ExpectedHeaders, Option<Box<Attaching>>);

/// Runs the rules of a connection; returns `None` if it is refused, otherwise the headers that the rules expect and the
/// server that they give the connection to.
async fn run_rules(session: &mut Session, hook: Hook) -> Option<Ruled> {
    let worker = session.worker().clone();
    let frontend = &worker.running.proxies[session.frontend().id.0 as usize];
    let of_connection = hook == Hook::TcpRequestConnection;
    let rules = &frontend.rules;
    let list = if of_connection { &rules.tcp_request_connection } else { &rules.tcp_request_session };
    if list.is_empty() {
        return Some(Ruled::default());
    }
    let mut stream = session.new_stream();
    // A connection is not a stream yet: it has no unique id.
    stream.cx.making_unique_id.set(true);
    let verdict = rule::run(list, hook, &mut stream.cx, worker.scripts()).await;
    let ruled = (stream.cx.expected, stream.cx.attaching.take());
    // What rules say of a connection holds for all of its streams.
    let (before, now) = (session.client.ends(), (stream.cx.source, stream.cx.destination));
    let proxied = !of_connection && before != now && session.client.proxied().is_none();
    session.client.set_ends(now, proxied.then_some(Proxied { peer: before.0, local: before.1, tlvs: None }));
    drop(stream);
    if !matches!(verdict, Verdict::Continue) {
        let refused = |counters: &Counters| if of_connection { counters.dcon.add(1) } else { counters.dses.add(1) };
        session.listener().count(worker.index, refused);
        return None;
    }
    Some(ruled)
}

/// The result of waiting for a request.
enum Arrival {
    /// A complete head, and the time at which it was complete.
    Request(Active, RequestHead, Instant),
    Invalid(HeadError),
    /// `timeout http-request`, or `http-keep-alive` with nothing received.
    TimedOut,
    /// The client ended or broke the connection.
    Gone,
    /// The process is stopping and this connection is idle.
    Stopping,
}

async fn serve_http(session: &mut Session) {
    if session.speaks_h2() {
        session.abandon_switched();
        return Box::pin(h2::serve(session)).await;
    }
    loop {
        let mut next = NextRequest::new(session);
        let arrival = poll_fn(|cx| {
            clock::begin();
            let arrived = next.poll(session, cx);
            // The turn continues in the request's stream.
            if !matches!(arrived, Poll::Ready(Arrival::Request(..))) {
                clock::end();
            }
            arrived
        });
        let after = match arrival.await {
            Arrival::Request(stream, head, now) => {
                let watch = session.place.watch();
                // Made where it will live, like that of TCP.
                let serving =
                    Box::write(Box::new_uninit(), http::serve(Front::H1(&mut session.front), stream, head, now));
                match watch.unless_killed(Box::into_pin(serving)).await {
                    Some(after) => after,
                    None => return,
                }
            }
            Arrival::Stopping => return,
            Arrival::Invalid(HeadError::Version) if session.begins_h2() => {
                session.abandon_switched();
                return Box::pin(h2::serve(session)).await;
            }
            failed => {
                session.abandon_switched();
                return Box::pin(refuse(session, failed, next.started)).await;
            }
        };
        match after {
            After::KeepAlive => {}
            After::Close => return,
            After::Drain => return Box::pin(session.drain()).await,
        }
    }
}

/// The wait for a complete request head.
struct NextRequest {
    /// The stream, acquired when bytes have arrived; they are parsed into its message.
    stream: Option<Active>,
    /// The arrival of the head's first byte; before that, the start of the wait for it.
    started: Instant,
    /// Whether there are bytes that were not parsed yet.
    fresh: bool,
}

impl NextRequest {
    fn new(session: &mut Session) -> NextRequest {
        let started = session.client.last_active();
        let times = &session.frontend().config.timeouts;
        let for_head = times.http_request.or(times.client);
        let timeout = if session.client.requests() == 0 { for_head } else { times.http_keep_alive.or(for_head) };
        session.front.arm(timeout.map(|timeout| started + timeout));
        // The last request's bytes are used up: an idle connection keeps no buffer.
        session.front.give_back(&session.place.worker().buffers, false);
        NextRequest { stream: None, started, fresh: !session.front.input().is_empty() }
    }

    fn poll(&mut self, session: &mut Session, cx: &mut Context<'_>) -> Poll<Arrival> {
        loop {
            if std::mem::take(&mut self.fresh)
                && let Some(arrival) = self.parse(session)
            {
                return Poll::Ready(arrival);
            }
            if session.front.has_ended() {
                return Poll::Ready(Arrival::Gone);
            }
            if self.stream.is_none() && session.front.input().is_empty() {
                session.follow();
            }
            let waits_on = session.frontend().config.options.idle_close_on_response;
            if let Some(at) = session.closing_time()
                && !waits_on
                && session.client.requests() > 0
                && session.front.input().is_empty()
            {
                if at <= clock::now() {
                    return Poll::Ready(Arrival::Stopping);
                }
                // An idle connection ends without an answer whichever time is over.
                session.front.arm_by(at);
            }
            session.place.waits(cx.waker());
            match session.front.poll_fill(cx, &session.place.worker().buffers) {
                Poll::Ready(Ok(count)) if count > 0 => self.fresh = true,
                Poll::Ready(_) => return Poll::Ready(Arrival::Gone),
                Poll::Pending => return session.front.poll_alarm(cx).map(|()| Arrival::TimedOut),
            }
        }
    }

    fn parse(&mut self, session: &mut Session) -> Option<Arrival> {
        let now = clock::now();
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                self.started = now;
                session.new_stream()
            }
        };
        let lenient = stream.cx.frontend.config.options.unsafe_requests;
        let limits = &Limits { lenient, ..session.worker().limits };
        match session.front.parse_head(limits, &mut stream.cx.request) {
            Ok(Some(head)) => {
                if let Some(switched) = session.switched.take() {
                    stream = switched.of_request(stream);
                }
                note_start(session, &mut stream, self.started);
                stream.cx.request_number = session.client.count_request();
                Some(Arrival::Request(stream, head, now))
            }
            Ok(None) => {
                self.stream = Some(stream);
                // Only the first head of a connection is waited for since before its first byte.
                if session.client.requests() > 0 {
                    let times = &session.frontend().config.timeouts;
                    let timeout = times.http_request.or(times.client);
                    session.front.arm(timeout.map(|timeout| self.started + timeout));
                }
                None
            }
            Err(error) => {
                drop(stream);
                Some(Arrival::Invalid(error))
            }
        }
    }
}

/// Records when the first byte of a request arrived, and when the wait for it began: at the acceptance of the
/// connection, or at the end of the previous request.
fn note_start(session: &Session, stream: &mut Active, started: Instant) {
    let (worker, log) = (session.worker(), &mut stream.cx.log);
    log.request_started_at = worker.wall_clock(started);
    log.request_started = started;
    log.accepted = session.client.last_active();
}

/// Answers a connection on which no valid request arrived, as HAProxy's H1 layer does: the page is sent unchanged and
/// no rule sees it.
async fn refuse(session: &mut Session, arrival: Arrival, started: Instant) {
    let silent = session.front.input().is_empty();
    let mut fault = None;
    let (code, who, answered) = match arrival {
        Arrival::Invalid(error) => {
            fault = Some(Fault::Head(error));
            (error.request_status(), b'P', true)
        }
        Arrival::TimedOut => (408, b'c', true),
        // A client that ended its side can still read; one that broke the connection can't.
        _ => (400, b'C', session.front.has_ended()),
    };
    // An idle keep-alive connection ends without a response and without a log line.
    if silent && session.client.requests() > 0 {
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
    let mut stream = session.new_stream();
    if let Some(fault) = fault {
        stream.capture_request(session.front.input(), fault);
    }
    if counted {
        stream.cx.count(Counted::Request);
        stream.cx.count(Counted::Error);
    }
    stream.cx.log.no_request = true;
    note_start(session, &mut stream, started);
    stream.cx.log.status = i32::from(code);
    stream.note_received(session.front.input().len());
    stream.end(who, b'R');
    if unlogged {
        stream.cx.log.level = Some(sluicegate_config::model::LogLevel::Silent);
    }
    if counted || !unlogged {
        stream.begin();
    }
    let hushed = stream.cx.error_page(code).is_some_and(|page| *page == ErrorPage::Silent);
    if answered && !ignored && !hushed {
        // One attempt: there is no waiting for a client that has sent only invalid data.
        stream.count_sent(session.front.try_page(code));
    }
    drop(stream);
    if answered {
        session.drain().await;
    }
}

/// Returns the size of the future that a session's function returns.
const fn future_size<F, R>(_: &F) -> usize
where
    F: Fn(Session) -> R,
{
    size_of::<R>()
}

/// An idle session is this future and its timer.
const _: () = assert!(future_size(&run) <= 512);
