//! One HTTP request and its response, from a complete request head to the end of both messages.
//!
//! The order is HAProxy's: tcp-request content and http-request rules of the frontend, the choice of the backend, the
//! same rules of the backend, a connection to a server, the request; then the response's head, tcp-response content and
//! http-response rules of the backend and of the frontend, the response. A rule that responds, a server that is
//! unavailable and a message that cannot be parsed all end in [`Exchange::answer`].
//!
//! Both directions move in one future: an upload continues while the response is already being sent, and a slow side
//! only stops the direction of which it is the sink. A small request takes one read and one write on each side.
//!
//! **Timeouts.** `timeout client` runs while the stream waits for the client (its body, or room for the response),
//! `timeout server` until the response's head has arrived and while the stream waits for its body. A side that is not
//! waited for cannot time out. Only data counts as activity: a head, a chunk's size line or trailers that arrive byte
//! by byte do not restart a timeout.
//!
//! **Reused connections.** A server may close an idle connection just when a request is sent on it. If no byte of a
//! response arrived, the whole request is still buffered and the method is idempotent (RFC 9110 9.2.2), the request is
//! sent again on a new connection. Otherwise, as in HAProxy, the first request of a client's connection gets a 502; for
//! a later one the client's connection is closed without a response, so that the client repeats the request.

mod after;
mod answer;
mod cached;
mod compressed;
mod count;
mod document;
mod exporter;
mod failure;
mod fcgi;
mod gathered;
mod held;
mod motion;
mod offload;
mod persist;
mod scripted;
mod service;
mod stats;
mod tunnel;
mod wait;

use std::future::poll_fn;
use std::time::{Duration, Instant};

use sluicegate_config::model::{CompressionAlgorithm, ConnectionMode, ErrorPage, LogLevel, Mode, ProxyId};
use sluicegate_transport::clock;
use sluicegate_wire::http::{ConnectionField, Framing, Message, Method, RequestHead, ResponseHead, Version, status};

use self::held::{
    authenticates_connections, chunks_in_1_0, held_body, is_idempotent, is_worth_draining, own_bytes, walk_held,
};
use self::motion::{Event, Finish};
use self::wait::Coming;
use super::filter::Carries;
use super::flow::{Announced, Flow};
use super::inspect::{self, BodyCame, Patience};
use super::{Active, AppletName, Fault, Invalid, Killer, LastServer};
use crate::compress;
use crate::counters::head_size;
use crate::hook::Hook;
use crate::mux::{Back, End, Front, HeadForm, Moved, Peek, Sent};
use crate::rule::forwardfor;
use crate::rule::{self, LocalReply, ReplyPage, ReplySource, RuleList, Verdict};
use crate::running::ProxyRun;
use crate::sample::path_and_query;
use crate::server::{self, Lease, Observed, ServerConnection, ServerFailure};
use crate::site::Site;
use crate::stick::Counted;
use crate::trace::StreamTrace;

/// The further use of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It carries another request.
    KeepAlive,
    /// It is closed.
    Close,
    /// It is closed once the client, which may still be sending, has had time to read the answer.
    Drain,
}

/// Serves one request, whose head was complete at `now`.
pub(crate) async fn serve(mut front: Front<'_>, mut stream: Active, head: RequestHead, now: Instant) -> After {
    let worker = stream.worker().clone();
    let memory = std::mem::take(&mut stream.response_out);
    let version = front.take_head(&head, worker.limits.max_fields, memory);
    let cx = &mut stream.cx;
    cx.log.request_done = Some(now);
    let line = &mut cx.log.request_line;
    line.extend_from_slice(cx.request.method());
    line.push(b' ');
    line.extend_from_slice(cx.request.target());
    if let Some(version) = version {
        line.push(b' ');
        line.extend_from_slice(&version);
    }
    line.truncate(worker.running.config.global.tune.http_logurilen);
    cx.log.captures.request.take_headers(&cx.frontend.config.logging.request_captures, &cx.request);
    stream.begin();
    stream.trace_head(false);
    let cx = &stream.cx;
    if cx.frontend.config.logging.steps.is_some() {
        worker.running.logger.request(cx, &stream.frontend().log);
    }
    let frontend = &worker.running.proxies[cx.frontend.id.0 as usize];
    // One that content rules may refuse is counted behind them.
    let is_examined = frontend.rules.tcp_request_content.is_empty() || cx.inspected;
    if is_examined || frontend.config.monitor_uri.is_some() {
        stream.count_arrival(now);
    }
    let size = head_size(&stream.cx.request);
    stream.count(size, 0);
    let mut exchange = Exchange {
        sent_method: head.method,
        version: stream.cx.request.version(),
        mode: frontend.config.options.connection,
        client_timeout: frontend.config.timeouts.client,
        compress: None,
        server_timeout: None,
        up: Flow::new(head.body),
        announced: None,
        sent_framing: None,
        peek: None,
        left: false,
        up_failed: false,
        answered: false,
        begins_malformed: false,
        independent: false,
        constant: false,
        client_active: now,
        server_active: now,
        front,
        stream,
        head,
    };
    let after = match exchange.run(frontend, &worker.running.proxies).await {
        Ok(after) | Err(after) => after,
    };
    if exchange.stream.is_scripted() {
        exchange.stream.end_filters().await;
    }
    let Exchange { mut front, mut stream, client_active, server_active, .. } = exchange;
    stream.cx.client.set_last_active(client_active.max(server_active));
    stream.response_out = front.take_memory();
    after
}

/// Returns whether a target equals `monitor-uri`, or has its path if that names no host.
fn is_monitored(uri: &[u8], target: &[u8]) -> bool {
    uri == target || (uri.first() == Some(&b'/') && path_and_query(target) == Some(uri))
}

/// Returns the letter of a response that a client does not take: only the part that the client has to do is missing once all
/// of it has come.
fn abort_phase(whole: bool) -> u8 {
    if whole { b'L' } else { b'D' }
}

/// Returns the stricter mode: `option httpclose` of either side wins over `http-server-close`, and that over
/// keep-alive.
fn stricter(one: ConnectionMode, other: ConnectionMode) -> ConnectionMode {
    match (one, other) {
        (ConnectionMode::Close, _) | (_, ConnectionMode::Close) => ConnectionMode::Close,
        (ConnectionMode::ServerClose, _) | (_, ConnectionMode::ServerClose) => ConnectionMode::ServerClose,
        _ => ConnectionMode::KeepAlive,
    }
}

/// One request with everything it needs. An `Err` of its steps means that the request ended early and was answered, or
/// cannot be answered.
struct Exchange<'a> {
    front: Front<'a>,
    stream: Active,
    head: RequestHead,
    /// The method that the server sees: rules may have changed the client's.
    sent_method: Method,
    /// The HTTP version of the client's request.
    version: Version,
    mode: ConnectionMode,
    /// The compression of the response, if possible.
    compress: Option<CompressionAlgorithm>,
    client_timeout: Option<Duration>,
    server_timeout: Option<Duration>,
    up: Flow,
    /// The rest of the announced length, as in [`Flow`], of a response of this process.
    announced: Option<Announced>,
    /// The framing of the request as it is sent, once its filters are made.
    sent_framing: Option<Framing>,
    /// How far rules have read the request's body, if any did.
    peek: Option<Peek>,
    /// Whether the client disconnected while its body was awaited: as in HAProxy, rules go on and no server is
    /// contacted.
    left: bool,
    /// Whether the server accepts no more of the request; its response may still come.
    up_failed: bool,
    /// Whether bytes of a final response were sent to the client.
    answered: bool,
    /// Whether the part of the response's body that arrived with the head is malformed: `observe` then counts the
    /// head as invalid.
    begins_malformed: bool,
    /// `option independent-streams` of the backend: data that the server accepts does not count as its activity.
    independent: bool,
    /// Whether the answer is sent unchanged, because rules failed on it before.
    constant: bool,
    client_active: Instant,
    server_active: Instant,
}

type Step<T> = Result<T, After>;

impl Exchange<'_> {
    async fn run(&mut self, frontend: &ProxyRun, proxies: &[std::sync::Arc<ProxyRun>]) -> Step<After> {
        crate::persist::at_backend(&mut self.stream.cx, frontend);
        if !frontend.script_filters.is_empty() {
            self.begin_filters(frontend).await?;
        }
        let target = self.stream.cx.request.target();
        if frontend.config.monitor_uri.as_deref().is_some_and(|uri| is_monitored(uri, target)) {
            return Err(Box::pin(self.monitored(frontend)).await);
        }
        self.request_rules(frontend, frontend).await?;
        let worker = self.stream.worker().clone();
        let chosen = rule::choose_backend(&frontend.rules, &mut self.stream.cx, worker.scripts()).await;
        let Some(ProxyId(index)) = chosen else {
            // In HAProxy the request is complete once a backend has it.
            self.stream.cx.log.request_done = None;
            return Err(self.page(503, b'S', b'C').await);
        };
        let backend = &proxies[index as usize];
        if backend.config.mode != Mode::Http {
            // A connection that was switched to HTTP cannot be passed to a backend of another mode.
            return Err(self.page(500, b'I', b'R').await);
        }
        self.stream.set_backend(backend);
        let _stay = backend.backend.enter(worker.index, self.client_active);
        self.server_timeout = self.stream.cx.overrides.server.or(backend.config.timeouts.server);
        self.mode = stricter(self.mode, backend.config.options.connection);
        self.independent = backend.config.options.independent_streams;
        if backend.id != frontend.id {
            crate::persist::at_backend(&mut self.stream.cx, backend);
            if !backend.script_filters.is_empty() {
                self.begin_filters(backend).await?;
            }
            self.request_rules(backend, frontend).await?;
        }
        self.persist(backend).await?;
        self.complete_request(frontend);
        self.sent_method = Method::of(self.stream.cx.request.method());
        self.compress = compress::choose(&mut self.stream.cx.request, frontend, backend);
        self.balance_key(backend);
        self.note_request_done();
        if self.left {
            return Err(self.lost_client(b'R'));
        }
        if self.front.is_gone() {
            // Rules have run, as in HAProxy; no server learns of a request that was reset at once.
            self.stream.end(b'C', b'R');
            self.count_client_abort();
            return Err(After::Close);
        }
        forwardfor::tell(&mut self.stream.cx, backend.rules.forwarded.as_ref(), frontend, backend);
        if self.stream.is_scripted() {
            self.filter_request_head().await?;
        }
        self.parameters(backend).await?;
        self.stream.cx.persistence.last = self.stream.cx.client.last_server().in_backend(backend.id);
        let reuse = !self.stream.cx.is_first_request();
        let mut back = self.connect(backend, reuse, None).await?;
        loop {
            let last = LastServer::new(backend.id, back.connection().server().shared.index);
            self.stream.cx.client.set_last_server(last);
            let result = self.converse(frontend, backend, &mut back).await;
            self.stream.cx.server_http2 = back.http2_facts();
            self.stream.server_gone();
            let extra = !back.input().is_empty();
            let (connection, sent) = back.take_apart(&worker.buffers);
            self.stream.note_server_error(&connection);
            let outcome = match result {
                // The next attempt makes its own connection, so there is one repetition at most.
                Ok(Outcome::Repeat) => {
                    drop(connection);
                    back = self.connect(backend, false, Some(Box::new((None, sent)))).await?;
                    continue;
                }
                Ok(Outcome::Retry) => {
                    back = self.connect(backend, false, Some(Box::new((Some(connection), sent)))).await?;
                    continue;
                }
                Ok(Outcome::Done { after, keep_server }) => Ok((after, keep_server)),
                Err(after) => Err(after),
            };
            self.stream.request_out = sent.into_memory();
            let (after, keep_server) = outcome?;
            if keep_server && !extra {
                connection.release(&worker.idle, worker.index);
            }
            return Ok(after);
        }
    }

    /// Records that nothing more is awaited of the request: as in HAProxy, the time for which rules have waited, for its
    /// body or by themselves, is a part of that for the request.
    fn note_request_done(&mut self) {
        if let Some(done) = &mut self.stream.cx.log.request_done {
            *done = clock::now();
        }
    }

    /// Completes a request after every rule has run.
    fn complete_request(&mut self, frontend: &ProxyRun) {
        let cx = &mut self.stream.cx;
        let logging = &frontend.config.logging;
        if let Some(capture) = &logging.cookie {
            cx.log.captures.take_cookie(capture, &cx.request, false);
        }
        // The unique ID is computed here, wherever it is used later, because it reflects the request at this point.
        let id = cx.unique_id().map(<[u8]>::to_vec);
        if let (Some(name), Some(id)) = (&logging.unique_id_header, id) {
            cx.request.add(name.as_bytes(), &id);
        }
    }

    /// Runs the request rules of a proxy, the frontend or the backend.
    async fn request_rules(&mut self, proxy: &ProxyRun, frontend: &ProxyRun) -> Step<()> {
        let is_backend = self.stream.cx.backend.as_ref().is_some_and(|backend| backend.id == proxy.id);
        if proxy.config.options.buffer_request || (is_backend && proxy.fcgi.is_some()) {
            self.await_body(self.patience(proxy), 0).await?;
        }
        let content = &proxy.rules.tcp_request_content;
        // Those of the frontend ran before a connection of TCP was switched to HTTP.
        let inspected = std::mem::take(&mut self.stream.cx.inspected);
        if !inspected && self.offloads() {
            self.content_events(frontend, proxy).await?;
        }
        if !content.is_empty() && !inspected {
            let delay = proxy.config.inspect_delay;
            let max_fields = self.stream.worker().limits.max_fields;
            let seen = &mut self.stream.cx.request_content;
            let peek = self.peek.get_or_insert_with(|| Peek::new(self.head.body, max_fields, seen));
            let verdict = inspect::request_content(&mut self.front, &mut self.stream, peek, content, delay).await;
            if delay.is_some() {
                self.client_active = clock::now();
            }
            self.obey(verdict, Hook::TcpRequestContent).await?;
            if !is_backend && proxy.config.monitor_uri.is_none() {
                self.stream.count_arrival(clock::now());
            }
        }
        self.stream.cx.count_request(proxy);
        self.restrict_names(proxy).await?;
        if self.offloads() {
            self.request_event(frontend, proxy).await?;
        }
        if proxy.rules.http_request.looks().request {
            self.peek_request();
        }
        let decided = self.rules(&proxy.rules.http_request, Hook::HttpRequest).await;
        self.count_cache(proxy);
        decided?;
        if proxy.config.stats.is_some() {
            Box::pin(self.statistics(proxy)).await?;
        }
        if self.stream.cx.cache_hit().is_some() {
            return Err(Box::pin(self.cached()).await);
        }
        self.rules(&proxy.rules.redirect, Hook::HttpRequest).await
    }

    /// Runs the response rules; `coming` is the server's response, if a server answers.
    async fn response_rules(&mut self, proxy: &ProxyRun, coming: Option<&mut Coming<'_>>) -> Step<()> {
        if let Err(after) = self.rules(&proxy.rules.tcp_response_content, Hook::TcpResponseContent).await {
            // As in HAProxy, a response that content rules refused counts as not received.
            self.stream.cx.log.response_started = None;
            return Err(after);
        }
        // The response counts as the server's with the status that it had before the `http-response` rules.
        if self.stream.cx.backend.as_ref().is_some_and(|backend| backend.id == proxy.id) {
            self.stream.count_server_response(self.stream.cx.response.status());
        }
        // The statistics page is not a server's response: as in HAProxy, only `http-after-response` rules see it.
        let list = &proxy.rules.http_response;
        if list.is_empty() || self.stream.cx.log.applet == Some(AppletName::Statistics) {
            return Ok(());
        }
        self.rules_on(list, Hook::HttpResponse, coming).await
    }

    async fn rules(&mut self, list: &RuleList, hook: Hook) -> Step<()> {
        if list.is_empty() {
            return Ok(());
        }
        self.rules_on(list, hook, None).await
    }

    async fn rules_on(&mut self, list: &RuleList, hook: Hook, mut coming: Option<&mut Coming<'_>>) -> Step<()> {
        let worker = self.stream.worker().clone();
        let held = match &coming {
            Some(coming) => own_bytes(coming.back.framing_of_input(coming.framing), coming.back.input()),
            None if hook.is_response() => 0,
            None => own_bytes(self.head.body, self.front.input()),
        };
        self.stream.cx.hold(held, hook, worker.limits.max_head);
        let verdict = match rule::try_run(list, hook, &mut self.stream.cx, worker.scripts()) {
            rule::Attempt::Ready(verdict) => verdict,
            rule::Attempt::Suspended(mut suspended) => {
                let verdict = loop {
                    match suspended.asks() {
                        Some(rule::Ask::Body(wait)) if hook.is_response() => {
                            // Rules process a local response without its body, so there is nothing to wait for.
                            if let Some(coming) = coming.as_deref_mut() {
                                Box::pin(self.await_response_body(coming, wait)).await?;
                            }
                        }
                        Some(rule::Ask::Body(wait)) => {
                            self.await_body(Patience::Until(Instant::now() + wait.time), wait.at_least).await?;
                        }
                        Some(rule::Ask::Hints) => {
                            if let Some(hints) = self.stream.cx.early_hints.take() {
                                self.interim(&hints).await?;
                            }
                        }
                        None => {}
                    }
                    let resumed = match self.may_see_more(hook) {
                        true => Box::pin(self.resume_looking(list, suspended, hook)).await,
                        false => rule::resume_once(list, suspended, hook, &mut self.stream.cx, worker.scripts()).await,
                    };
                    match resumed {
                        rule::Attempt::Ready(verdict) => break verdict,
                        rule::Attempt::Suspended(again) => suspended = again,
                    }
                };
                // The time of a rule's wait does not count as inactivity.
                self.client_active = clock::now();
                self.server_active = self.client_active;
                verdict
            }
        };
        let set = &self.stream.cx.overrides;
        self.client_timeout = set.client.or(self.client_timeout);
        self.server_timeout = set.server.or(self.server_timeout);
        self.obey(verdict, hook).await
    }

    /// Executes the decision of rules.
    async fn obey(&mut self, verdict: Verdict, hook: Hook) -> Step<()> {
        match verdict {
            Verdict::Continue | Verdict::Missing => Ok(()),
            Verdict::Reply(reply) => Err(self.local(reply, hook).await),
            // Boxed: a service's answer runs rules itself.
            Verdict::Service(service) => Err(Box::pin(self.use_service(&service, hook)).await),
            Verdict::Exporter => Err(Box::pin(self.exporter()).await),
            Verdict::Close | Verdict::End => {
                let refused = matches!(verdict, Verdict::Close);
                match hook.is_response() {
                    _ if !refused => {}
                    true => self.stream.count_refused_response(),
                    false if hook == Hook::HttpRequest => self.stream.count_refused_request(),
                    false => self.stream.at_front(|counters| counters.dreq.add(1)),
                }
                let unparsed = hook == Hook::TcpRequestContent && self.stream.cx.backend.is_none();
                if hook == Hook::TcpResponseContent {
                    self.stream.discount_response();
                }
                let log = &mut self.stream.cx.log;
                let phase = match hook {
                    // HAProxy runs these rules before it parses a request, so it has no request to log.
                    _ if unparsed => {
                        log.request_line.clear();
                        log.request_done = None;
                        b'R'
                    }
                    Hook::TcpResponseContent => {
                        log.status = -1;
                        b'D'
                    }
                    Hook::HttpResponse => b'H',
                    _ => {
                        log.request_done = log.request_done.filter(|_| !refused);
                        b'R'
                    }
                };
                if !refused && matches!(hook, Hook::HttpRequest | Hook::HttpResponse) {
                    log.status = 0;
                }
                self.stream.end(if refused { b'P' } else { b'L' }, phase);
                self.front.give_up();
                Err(After::Close)
            }
        }
    }

    /// Returns a connection to a server of `backend`. `before` is the request if it was already sent, with the
    /// connection that the new one replaces, if any. Returns an error if the client disconnects meanwhile.
    async fn connect(
        &mut self,
        backend: &std::sync::Arc<ProxyRun>,
        reuse: bool,
        before: Option<Box<(Option<ServerConnection>, Sent)>>,
    ) -> Step<Back> {
        let worker = self.stream.worker().clone();
        let half = backend.config.options.abortonclose;
        self.stream.count_failed_rewrites();
        let (failed, sent) = before.map(|before| *before).unzip();
        let failed = failed.flatten();
        let front = &mut self.front;
        let gone = poll_fn(|cx| front.poll_gone(cx, &worker.buffers, half));
        let result = tokio::select! {
            biased;
            result = server::assign_and_connect(backend, &mut self.stream.cx, &worker, reuse, failed) => Some(result),
            () = gone => None,
        };
        match result {
            Some(Ok(connection)) => {
                self.stream.note_addresses(&connection);
                self.stream.log_connected();
                self.stream.use_server(&connection);
                let sent = sent.unwrap_or_else(|| Sent::new(std::mem::take(&mut self.stream.request_out)));
                Ok(Back::new(connection, sent))
            }
            Some(Err(ServerFailure::Redirected)) => Err(Box::pin(self.redirected()).await),
            Some(Err(failure)) => {
                let ending = failure.ending();
                // As in HAProxy, the error page belongs to the response, so the `req.` variables are dropped.
                self.stream.cx.variables.enter_response();
                Err(self.page(failure.status(), ending.who, ending.phase).await)
            }
            None => {
                let phase = self.stream.cx.log.phase_before_server();
                self.stream.end(b'C', phase);
                self.count_client_abort();
                Err(After::Close)
            }
        }
    }

    /// Sends the request and relays the response.
    async fn converse(&mut self, frontend: &ProxyRun, backend: &ProxyRun, back: &mut Back) -> Step<Outcome> {
        let request = &self.stream.cx.request;
        if self.sent_method == Method::Connect && request.first(b"content-length").is_some_and(|length| length != b"0")
        {
            // Ambiguous: a server may take the bytes that follow for the body or for the tunnel's data.
            self.count_bad_response(back.connection());
            return Err(self.page(502, b'S', b'H').await);
        }
        let keep_server = self.mode == ConnectionMode::KeepAlive && !chunks_in_1_0(self.version, self.head.body);
        if back.is_fresh() && !self.send_request(frontend, backend, back, keep_server) {
            return Err(self.page(500, b'I', b'H').await);
        }
        self.up.start();
        if backend.config.options.drop_request_trailers {
            self.up.drop_trailers();
        }
        self.server_active = self.stream.cx.log.connect_done.unwrap_or_else(Instant::now);
        self.client_active = self.server_active;
        let head = loop {
            match poll_fn(|cx| self.poll_head(cx, back, backend.config.options.abortonclose)).await {
                Event::Head(head) => break head,
                Event::Interim(head) => {
                    back.take_head(&head, 0);
                    let head = std::mem::take(&mut self.stream.cx.response);
                    self.stream.count_server_response(head.status());
                    let passed = self.interim(&head).await;
                    self.stream.cx.response = head;
                    passed?;
                }
                event => return self.no_response(event, backend, back).await,
            }
        };
        let status = self.stream.cx.response.status();
        if backend.config.retry_on.statuses.contains(&status) && self.may_retry(backend, back) {
            return Ok(Outcome::Retry);
        }
        let max_fields = self.stream.worker().limits.max_fields;
        back.take_head(&head, max_fields);
        let cx = &mut self.stream.cx;
        if matches!(status, 401 | 407) && authenticates_connections(status, &cx.response) && back.connection().reserve()
        {
            cx.client.set_reserved();
        }
        cx.server_http2 = back.http2_facts();
        cx.log.response_started = Some(self.server_active);
        let size = head_size(&cx.response);
        cx.log.status = i32::from(cx.response.status());
        cx.log.server_status = cx.response.status();
        cx.in_response = true;
        cx.variables.enter_response();
        cx.log.captures.response.take_headers(&frontend.config.logging.response_captures, &cx.response);
        self.stream.count(0, size);
        self.stream.cx.count_response();
        self.begins_malformed = back.connection().server().config.health.observe.is_some()
            && walk_held(back.framing_of_input(head.body), back.input(), |_, _| ()).is_err();
        let seen = if self.begins_malformed { Observed::InvalidHead } else { Observed::of_status(status) };
        self.observe(backend, back.connection(), seen);
        self.decide_compression(head.body);
        let looks = |proxy: &ProxyRun| {
            proxy.rules.http_response.looks().response || proxy.rules.tcp_response_content.looks().response
        };
        let looked = looks(backend) || looks(frontend);
        let mut coming = Coming { back, framing: head.body, tunnel: head.tunnel, max_fields, peek: None };
        if looked {
            coming.look(&mut self.stream.cx.response_content);
        }
        self.store_server(backend).await?;
        if self.stream.is_scripted() {
            self.begin_response_filters().await?;
        }
        let mut passed = match self.offloads() {
            true => self.response_events(frontend, backend).await,
            false => Ok(()),
        };
        if passed.is_ok() {
            passed = self.response_rules(backend, Some(&mut coming)).await;
        }
        if passed.is_ok() && backend.id != frontend.id {
            passed = self.response_rules(frontend, Some(&mut coming)).await;
        }
        if let Err(after) = passed {
            // The part of the body that has arrived is counted although rules refused the response.
            if self.stream.cx.log.status != -1 {
                self.stream.count(0, held_body(back.framing_of_input(head.body), back.input()));
            }
            // If the whole response has arrived, the connection to the server can be reused.
            return match keep_server && head.keep_alive && self.up.is_done() && back.take_whole_body() {
                true => Ok(Outcome::Done { after, keep_server: true }),
                false => Err(after),
            };
        }
        let cx = &mut self.stream.cx;
        if let Some(capture) = &frontend.config.logging.cookie {
            cx.log.captures.take_cookie(capture, &cx.response, true);
        }
        let caught = backend.config.options.check_cache && crate::persist::has_cacheable_cookie(cx);
        crate::persist::response_cookie(cx, backend);
        if caught && !crate::persist::made_private(cx, backend) {
            let after = Box::pin(self.blocked_cookie(backend)).await;
            return match head.keep_alive && self.up.is_done() && back.take_whole_body() {
                true => Ok(Outcome::Done { after, keep_server: true }),
                false => Err(after),
            };
        }
        let finished = match self.finish_response().await {
            Ok(()) if self.stream.is_scripted() => {
                let silent = self.head.method == Method::Head;
                let framing = if silent { Framing::None } else { head.body };
                self.filter_response_head(framing, back.input().len()).await
            }
            finished => finished,
        };
        if let Err(after) = finished {
            self.stream.count(0, held_body(back.framing_of_input(head.body), back.input()));
            return Err(after);
        }
        if frontend.log.has_steps {
            let held = held_body(back.framing_of_input(head.body), back.input());
            self.stream.log_answered(held as u64);
        }
        if head.tunnel {
            return self.tunnel(frontend, backend, back).await;
        }
        self.respond((frontend, backend), back, head, keep_server && head.keep_alive).await
    }

    /// Sends the request's head to the server that was chosen; returns whether it can be sent.
    fn send_request(&mut self, frontend: &ProxyRun, backend: &ProxyRun, back: &mut Back, keep_server: bool) -> bool {
        let name = &backend.config.send_name_header;
        if let Some(name) = name {
            self.stream.cx.request.delete_all(name.as_bytes());
        }
        let proxies = (&**frontend, &**backend);
        // A body that is sent again has passed the filters already.
        let framing = match self.sent_framing {
            Some(framing) => framing,
            None => self.filter_request(proxies),
        };
        self.sent_framing = Some(framing);
        let connection = match self.head.upgrade {
            true => ConnectionField::None,
            false => {
                ConnectionField::for_request(self.version, keep_server || backend.config.options.pretend_keepalive)
            }
        };
        let names = self.stream.names(backend.config.options.case_for_servers);
        let form = HeadForm { framing, connection, names };
        let name = name.as_ref().map(|name| name.to_ascii_lowercase());
        let server = back.connection().server().clone();
        // The field comes last, as in HAProxy.
        let last = name.as_ref().map(|name| (name.as_bytes(), server.name().as_bytes()));
        if let Some(application) = back.application() {
            let length = self.body_length();
            return application.send_request(&self.stream.cx.request, &self.surroundings(length, last));
        }
        back.send_head(&self.stream.cx.request, form, last);
        true
    }

    /// Makes the filters of the request's body; returns the framing that it has behind them.
    fn filter_request(&mut self, proxies: (&Site, &Site)) -> Framing {
        let worker = self.stream.worker().clone();
        let framing = self.stream.cx.scripted_framing(false).unwrap_or(self.head.body);
        let (process, limits) = (&worker.running.process, &worker.running.config.global.compression);
        let request = &mut self.stream.cx.request;
        let encoder = compress::prepare_request(request, &self.head, proxies, process, limits);
        let framing = match framing {
            _ if encoder.is_some() => Framing::Chunked,
            Framing::Length(1..) if self.version > Version::Http10 && request.has_lost_length() => Framing::Chunked,
            framing => framing,
        };
        if self.stream.has_filters() {
            StreamTrace::head(&self.stream.cx, false);
            let filters = match self.asks_for_tunnel() {
                true => self.stream.relay_filters(false, Carries::Tunnel),
                false => self.stream.filters(false, encoder),
            };
            self.up.filter(filters);
            if self.stream.is_scripted() && !self.asks_for_tunnel() {
                self.up.announce(framing);
            }
        }
        framing
    }

    /// Forwards the response's head, its body, and the rest of the request.
    async fn respond(
        &mut self,
        proxies: (&ProxyRun, &ProxyRun),
        back: &mut Back,
        head: ResponseHead,
        keep_server: bool,
    ) -> Step<Outcome> {
        // The answer to HEAD has no body, nor has a response to which rules gave a status without one.
        let head = self.complete_response(back, head);
        let bodiless = matches!(self.stream.cx.response.status(), 100..=199 | 204 | 304);
        let silent = head.body != Framing::None && (self.head.method == Method::Head || bodiless);
        let drained = silent && is_worth_draining(head.body);
        if silent && let Some(cache) = &mut self.stream.cx.cache {
            cache.storing = None;
        }
        if silent && !drained {
            self.stream.count(0, held_body(back.framing_of_input(head.body), back.input()));
        }
        let encoder = if silent { None } else { self.encoder(head.body) };
        let framed = self.stream.cx.scripted_framing(true).filter(|_| self.head.method != Method::Head && !bodiless);
        let framing = match framed.unwrap_or(head.body) {
            _ if encoder.is_some() => Framing::Chunked,
            Framing::Chunked if self.version == Version::Http10 => Framing::UntilClose,
            framing => self.announced_framing(framing),
        };
        // A body that is not sent to the client is read to its end, so that the server's connection can be reused.
        let (source, framing) = match silent {
            true if drained => (head.body, Framing::None),
            true => (Framing::None, Framing::None),
            false => (head.body, framing),
        };
        if silent && !drained {
            back.forget_body();
        }
        let keep_server = keep_server && (!silent || drained);
        let version = self.stream.cx.response.version();
        let keep = self.keeps_client() && framing != Framing::UntilClose && !chunks_in_1_0(version, framing);
        self.send_response_head(framing, keep);
        let mut down = Flow::new(source);
        down.start();
        if drained {
            down.drop_body();
        } else if source == Framing::Length(0) && framing == Framing::Chunked {
            down.end_at_once();
        }
        if self.stream.cx.frontend.config.options.drop_response_trailers {
            down.drop_trailers();
        }
        if self.stream.has_filters() {
            StreamTrace::head(&self.stream.cx, true);
            down.filter(self.stream.filters(true, encoder));
            if self.stream.is_scripted() {
                down.announce(framing);
            }
            if framing == Framing::None {
                down.mute();
            }
            self.up.enable(self.stream.filters(false, None));
        }
        // Behind a tunnel that was refused nothing of the client is awaited.
        self.up_failed |= self.withholds_data() && !self.up.is_done();
        let finish = poll_fn(|cx| self.poll_bodies(cx, back, &mut down)).await;
        let complete = down.is_done();
        if complete && self.stream.cx.log.compressed.is_some() {
            self.stream.each_side(|counters| counters.comp_rsp.add(1));
        }
        let started = down.has_written();
        let (who, phase) = match finish {
            Finish::Complete => {
                let uploaded = self.up.is_done() && !self.up_failed;
                let after = match (uploaded, keep) {
                    (true, true) => After::KeepAlive,
                    (true, false) => After::Close,
                    (false, _) => After::Drain,
                };
                return Ok(Outcome::Done { after, keep_server: keep_server && uploaded });
            }
            Finish::ServerGone => {
                self.count_server_abort();
                self.count_bad_response(back.connection());
                (b'S', b'D')
            }
            // The body was found malformed after a head that has not been sent yet: an error can still be sent.
            Finish::BadResponse if !started => {
                self.observe_body(proxies.1, back.connection());
                self.capture_response(back, Fault::Chunk);
                self.answered = false;
                self.front.take_back_head();
                self.stream.discount_response();
                self.stream.cx.log.response_started = None;
                self.count_bad_response(back.connection());
                return Err(self.page(502, b'P', b'H').await);
            }
            Finish::BadResponse => {
                self.observe_body(proxies.1, back.connection());
                self.capture_response(back, Fault::Chunk);
                self.count_bad_response(back.connection());
                (b'P', b'D')
            }
            Finish::RequestRefused | Finish::ResponseRefused => (b'P', b'D'),
            Finish::ClientGone => {
                self.count_client_abort();
                (b'C', abort_phase(complete || back.has_whole_body()))
            }
            Finish::BadBody => {
                self.stream.capture_request(self.front.input(), Fault::Chunk);
                self.stream.at_front(|counters| counters.ereq.add(1));
                (b'P', b'D')
            }
            Finish::ClientTimeout => {
                self.count_client_abort();
                (b'c', abort_phase(complete || back.has_whole_body()))
            }
            Finish::ServerTimeout => {
                self.count_server_abort();
                self.stream.cx.count(Counted::Failure);
                (b's', b'D')
            }
            Finish::Killed(killer) => {
                self.count_server_abort();
                (killer.letter(), b'D')
            }
        };
        debug_assert!(!complete || self.up_failed || !self.up.is_done(), "an aborted exchange misses something");
        self.stream.end(who, phase);
        Ok(Outcome::Done { after: After::Close, keep_server: false })
    }

    /// Sends the head in the context to the client.
    fn send_response_head(&mut self, framing: Framing, keep: bool) {
        let response = &self.stream.cx.response;
        let connection = ConnectionField::for_response(self.version, response.version(), keep);
        let form = HeadForm { framing, connection, names: self.stream.client_names() };
        self.front.send_head(response, form);
        self.stream.trace_head(true);
        self.answered = true;
    }
}

/// The result of one attempt.
enum Outcome {
    Done {
        after: After,
        keep_server: bool,
    },
    /// The connection was dead before the server answered: the request is sent again on another one.
    Repeat,
    /// `retry-on`: the request is sent again, as after a failed connection attempt.
    Retry,
}
