//! Answers that come from here and not from a server: what rules ask for, error pages, refusals.

use std::task::{Context, Poll};

use sluicegate_config::model::HeaderNames;
use sluicegate_transport::clock;

use super::*;
use crate::log::Severity;
use crate::mux::FlowError;
use crate::sample::elements;
use crate::stream::{Content, StreamContext};

/// The way in which a local response marks its end.
pub(super) struct Ending {
    mark: EndMark,
    /// Whether the connection is closed after the response.
    close: bool,
    /// Whether the response already has a `connection: close` of its own.
    said: bool,
}

impl Ending {
    /// Returns the ending of a response with a known length.
    pub(super) fn length(close: bool) -> Ending {
        Ending { mark: EndMark::Length, close, said: close }
    }
}

/// The mark of the end of a response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndMark {
    Length,
    Chunks,
    /// The end of the connection.
    Close,
}

/// Returns the size that the Content-Length field of a local response adds to [`head_size`] if the head has none yet.
fn length_size(response: &Message, body: usize) -> usize {
    if response.first(b"content-length").is_some() {
        return 0;
    }
    "content-length".len() + body.checked_ilog10().unwrap_or(0) as usize + 1
}

impl Exchange<'_> {
    /// Parses the cookies of a request that is refused before they would be needed, so that its log line has them, and the
    /// server that they name.
    fn log_cookies_of_refused(&mut self) {
        let cx = &mut self.stream.cx;
        let frontend = cx.frontend.clone();
        if let Some(capture) = &frontend.config.logging.cookie {
            cx.log.captures.take_cookie(capture, &cx.request, false);
        }
        let backend = cx.backend.clone().unwrap_or(frontend);
        crate::persist::request_cookie(cx, &backend);
        if let Some(index) = cx.persistence.server {
            cx.log.server = Some(backend.servers[index].clone());
        }
    }

    /// Sends the answer that a rule decided on.
    pub(super) async fn local(&mut self, reply: LocalReply, hook: Hook) -> After {
        if !hook.is_response() {
            self.note_request_done();
        }
        let who = match reply.source {
            ReplySource::Deny if hook.is_response() => {
                self.stream.count_refused_response();
                b'P'
            }
            ReplySource::Deny | ReplySource::Tarpit => {
                self.log_cookies_of_refused();
                self.stream.cx.count(Counted::Error);
                self.stream.count_refused_request();
                b'P'
            }
            ReplySource::Auth | ReplySource::Return | ReplySource::Redirect => {
                if reply.source == ReplySource::Auth {
                    self.stream.cx.count(Counted::Error);
                }
                // A response of a backend was not intercepted before it.
                let cx = &self.stream.cx;
                let request = !hook.is_response();
                if request && cx.backend.as_ref().is_none_or(|backend| backend.id == cx.frontend.id) {
                    self.stream.at_front(|counters| counters.intercepted.add(1));
                }
                b'L'
            }
            ReplySource::Internal => {
                self.stream.count_internal_error();
                b'I'
            }
            ReplySource::Rewrite => {
                self.stream.count_internal_error();
                b'P'
            }
            ReplySource::Invalid if hook.is_response() => {
                self.stream.cx.log.response_started = None;
                self.stream.at_front(|counters| counters.eresp.add(1));
                b'P'
            }
            ReplySource::Invalid => {
                self.stream.at_front(|counters| counters.ereq.add(1));
                b'P'
            }
        };
        let phase = match reply.source {
            ReplySource::Tarpit => b'T',
            _ if hook.is_response() => b'H',
            _ => b'R',
        };
        self.stream.end(who, phase);
        let broken = matches!(reply.source, ReplySource::Internal | ReplySource::Rewrite | ReplySource::Invalid);
        if broken && !hook.is_response() && !self.stream.cx.frontend.config.options.buffer_request {
            // HAProxy never regards such a request as complete, unless it has waited for the body.
            self.stream.cx.log.request_done = None;
        }
        if reply.source == ReplySource::Tarpit {
            self.tarpit().await;
        }
        let page = match reply.page {
            ReplyPage::None => None,
            ReplyPage::Status(status) => self.stream.cx.error_page(status),
            ReplyPage::File(page) => Some(page),
        };
        if let Some(page) = page {
            return self.error_page(&page, reply.head.status()).await;
        }
        // Replies of scripts may have chunks in place of a length.
        let chunks = reply.head.first(b"transfer-encoding").is_some() && reply.head.first(b"content-length").is_none();
        let mark = if chunks { EndMark::Chunks } else { EndMark::Length };
        self.stream.cx.response = reply.head;
        self.answer(&reply.body, Ending { mark, ..Ending::length(reply.close) }).await
    }

    /// Keeps the client waiting for `timeout tarpit`, or until it leaves. The log line counts that as time in a queue.
    pub(super) async fn tarpit(&mut self) {
        let cx = &self.stream.cx;
        let times = &cx.backend.as_ref().unwrap_or(&cx.frontend).config.timeouts;
        let over = clock::now() + times.tarpit.or(times.connect).unwrap_or_default();
        self.front.arm(Some(over));
        let pool = &self.stream.worker().buffers;
        poll_fn(|cx| match self.front.poll_gone(cx, pool, true) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => self.front.poll_alarm(cx),
        })
        .await;
        let log = &mut self.stream.cx.log;
        // To HAProxy the request never was complete, and all of its time was spent in a queue.
        log.request_done = None;
        log.queue_done = Some(clock::now());
    }

    /// Sends the page of a status: the proxies' or the built-in one.
    pub(super) async fn page(&mut self, code: u16, who: u8, phase: u8) -> After {
        self.stream.end(who, phase);
        if let Some(page) = self.stream.cx.error_page(code) {
            return self.error_page(&page, code).await;
        }
        let body = status::error_page(code).fill(&mut self.stream.cx.response);
        self.answer(body.as_ref(), Ending::length(matches!(code, 400 | 408))).await
    }

    /// Redirects the request to the place of its server (`redir`).
    pub(super) async fn redirected(&mut self) -> After {
        let cx = &mut self.stream.cx;
        let prefix = cx.log.server.as_ref().and_then(|server| server.config.redirect.as_deref()).unwrap_or_default();
        let mut location = if prefix == "/" { Vec::new() } else { prefix.as_bytes().to_vec() };
        location.extend_from_slice(path_and_query(cx.request.target()).unwrap_or_default());
        cx.response.clear();
        cx.response.set_response(Version::Http11, 302, b"Found");
        cx.response.add(b"cache-control", b"no-cache");
        cx.response.add(b"content-length", b"0");
        cx.response.add(b"location", &location);
        cx.variables.enter_response();
        let ending = server::ServerFailure::Redirected.ending();
        self.stream.end(ending.who, ending.phase);
        self.answer(b"", Ending::length(false)).await
    }

    /// Blocks a response with a cookie that caches would keep (`option checkcache`). As in HAProxy, the client gets the
    /// error page of the response's status, which for 200 is that of `monitor-uri`.
    pub(super) async fn blocked_cookie(&mut self, backend: &ProxyRun) -> After {
        let worker = self.stream.worker().clone();
        let server = self.stream.cx.log.server.as_ref().map_or("<NOSRV>", |server| server.name());
        let name = &backend.config.name;
        let line = format!("Blocking cacheable cookie in response from instance {name}, server {server}.");
        server::say(backend, &worker.running.logger, "ALERT", Severity::Alert, &line);
        self.stream.count_refused_response();
        let code = match self.stream.cx.response.status() {
            status @ (200 | 404 | 405 | 410 | 501) => status,
            _ => 500,
        };
        self.page(code, b'P', b'H').await
    }

    /// Answers a health request for this proxy (`monitor-uri`): no rule sees it, and it is not logged.
    pub(super) async fn monitored(&mut self, frontend: &ProxyRun) -> After {
        let worker = self.stream.worker().clone();
        self.stream.cx.log.level = Some(LogLevel::Silent);
        frontend.frontend.figures.at(worker.index).intercepted.add(1);
        let verdict =
            rule::run(&frontend.rules.monitor_fail, Hook::HttpRequest, &mut self.stream.cx, worker.scripts()).await;
        let code = if matches!(verdict, Verdict::Continue) { 200 } else { 503 };
        self.page(code, b'L', b'R').await
    }

    /// `option http-restrict-req-hdr-names`.
    pub(super) async fn restrict_names(&mut self, proxy: &ProxyRun) -> Step<()> {
        let strange = |name: &[u8]| !name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
        match proxy.config.options.header_names.unwrap_or_default() {
            HeaderNames::Preserve => Ok(()),
            HeaderNames::Delete => {
                self.stream.cx.request.delete_where(strange);
                Ok(())
            }
            HeaderNames::Reject if self.stream.cx.request.fields().any(|(_, name, _)| strange(name)) => {
                let reply = rule::page_reply(403, ReplySource::Deny);
                Err(self.local(reply, Hook::HttpRequest).await)
            }
            HeaderNames::Reject => Ok(()),
        }
    }

    /// Sends the page of a file. The logged status is the one that the page represents, unless rules set another.
    pub(super) async fn error_page(&mut self, page: &ErrorPage, code: u16) -> After {
        let own;
        let after = match page {
            ErrorPage::Silent => {
                self.answered = true;
                self.stream.cx.log.status = i32::from(code);
                return After::Close;
            }
            ErrorPage::Reply => {
                let worker = self.stream.worker().clone();
                let cx = &self.stream.cx;
                let has = |proxy: &std::sync::Arc<Site>| {
                    let own = proxy.config.errors.get(&code).is_some_and(|page| **page == ErrorPage::Reply);
                    own.then(|| &worker.running.proxies[proxy.id.0 as usize])
                };
                let Some(proxy) = cx.backend.as_ref().and_then(has).or_else(|| has(&cx.frontend)) else {
                    return After::Close;
                };
                let Some(list) = proxy.rules.http_errors.get(&code) else { return After::Close };
                let sent = self.up.has_written().then(|| hide_request(&mut self.stream.cx));
                let made = Box::pin(rule::run(list, Hook::HttpRequest, &mut self.stream.cx, worker.scripts())).await;
                if let Some((request, content)) = sent {
                    self.stream.cx.request = request;
                    self.stream.cx.request_content = content;
                }
                let Verdict::Reply(reply) = made else { return After::Close };
                own = reply.head.status();
                self.stream.cx.response = reply.head;
                Box::pin(self.answer(&reply.body, Ending::length(false))).await
            }
            ErrorPage::Message(message) => {
                let response = &mut self.stream.cx.response;
                response.clear();
                let version = if message.http_1_0 { Version::Http10 } else { Version::Http11 };
                response.set_response(version, message.status, &message.reason);
                for (name, value) in &message.fields {
                    response.add(name, value);
                }
                own = message.status;
                let (length, said) = (message.has_length, message.close);
                // A status without a body ends with its head.
                let ends = length || matches!(message.status, 100..=199 | 204 | 304);
                let mark = if length { EndMark::Length } else { EndMark::Close };
                self.answer(&message.body, Ending { mark, close: said || !ends, said }).await
            }
        };
        if self.stream.cx.response.status() == own {
            self.stream.cx.log.status = i32::from(code);
        }
        after
    }

    /// Sends a built-in page without running rules: the rest of the client's data cannot be parsed. As in HAProxy, a
    /// page of the proxies is not used here, except that an empty one still means no response.
    pub(super) async fn refuse(&mut self, code: u16, who: u8, phase: u8) -> After {
        self.stream.end(who, phase);
        if self.answered {
            return After::Close;
        }
        self.answered = true;
        self.stream.cx.log.status = i32::from(code);
        if self.stream.cx.error_page(code).is_some_and(|page| *page == ErrorPage::Silent) {
            return After::Close;
        }
        // The start line, four fields and end of the page count as one byte less than they have.
        self.stream.count(0, status::error_page(code).raw.len() - 1);
        self.front.send_page(code);
        match self.flush().await {
            Ok(()) => After::Drain,
            Err(()) => After::Close,
        }
    }

    /// Sends the response in the context with this body. The connection stays open if the whole request has been
    /// received.
    pub(super) async fn answer(&mut self, body: &[u8], ending: Ending) -> After {
        if self.answered {
            return After::Close;
        }
        self.answered = true;
        if let Some((name, value)) = self.stream.cx.challenge.take().map(|challenge| *challenge) {
            let response = &mut self.stream.cx.response;
            response.delete_all(name);
            response.add_lower(name, &value);
        }
        self.stream.cx.tell_limits();
        let status = self.stream.cx.response.status();
        if self.has_after_rules() && !Box::pin(self.after_rules()).await {
            // As HAProxy: a page of 500 in its place, on which the rules run once more, and one on which they don't.
            self.constant |= status == 500;
            self.answered = false;
            self.stream.count_internal_error();
            return Box::pin(self.page(500, b'P', b'H')).await;
        }
        let mut moved = Moved::default();
        let complete = matches!(self.up.discard(&mut self.front, &mut moved), Ok(true));
        let response = &self.stream.cx.response;
        let asked = self.head.method != Method::Head;
        let silent = !asked || matches!(response.status(), 100..=199 | 204 | 304);
        // Pages that close the connection say so in a field of their own.
        let field = if ending.said { "connection".len() + "close".len() } else { 0 };
        let announced = ending.mark == EndMark::Length && !response.has_lost_length();
        let length = if announced { length_size(response, body.len()) } else { 0 };
        // HAProxy counts a body that the status forbids.
        let sent = if asked { body.len() } else { 0 };
        self.stream.count(moved.body, head_size(response) + length + field + sent);
        let closes = take_connection(&mut self.stream.cx.response);
        let keep = !ending.close && !closes && complete && self.keeps_client();
        let cx = &mut self.stream.cx;
        cx.log.status = i32::from(cx.response.status());
        let framing = match ending.mark {
            _ if silent => Framing::None,
            EndMark::Length => self.announced_framing(Framing::Length(body.len() as u64)),
            EndMark::Chunks => Framing::Chunked,
            EndMark::Close => Framing::UntilClose,
        };
        self.send_response_head(framing, keep);
        if !silent {
            self.front.send_data(body);
        }
        self.front.send_end(None);
        match self.flush().await {
            Ok(()) if keep => After::KeepAlive,
            Ok(()) if complete => After::Close,
            Ok(()) => After::Drain,
            Err(()) => After::Close,
        }
    }

    pub(super) fn keeps_client(&self) -> bool {
        // A client that has ended its side may have sent further requests before; they are served.
        self.head.keep_alive && self.mode != ConnectionMode::Close && !self.stream.is_stopping()
    }

    /// Returns the framing of the body of the response in the context. A length that rules have deleted, or that a server of
    /// HTTP/2 did not state, is not announced where chunks can take its place.
    pub(super) fn announced_framing(&self, framing: Framing) -> Framing {
        let Framing::Length(length) = framing else { return framing };
        let response = &self.stream.cx.response;
        let unstated =
            || length == 0 && response.version() == Version::Http2 && response.first(b"content-length").is_none();
        let has_chunks = self.version > Version::Http10 && response.version() > Version::Http10;
        if has_chunks && (response.has_lost_length() || unstated()) { Framing::Chunked } else { framing }
    }

    /// Forwards an interim response to clients that support it.
    pub(super) async fn interim(&mut self, head: &Message) -> Step<()> {
        if self.version == Version::Http10 {
            return Ok(());
        }
        self.stream.count(0, head_size(head));
        let names = self.stream.client_names();
        self.front.send_interim(head, HeadForm { framing: Framing::None, connection: ConnectionField::None, names });
        self.flush().await.map_err(|()| After::Close)
    }

    /// Writes the output for the client; nothing else is moved meanwhile.
    pub(super) async fn flush(&mut self) -> Result<(), ()> {
        self.flush_by(|front, cx, moved| front.poll_flush(cx, moved)).await
    }

    /// The same, where `poll` writes.
    pub(super) async fn flush_by(
        &mut self,
        mut poll: impl FnMut(&mut Front<'_>, &mut Context<'_>, &mut Moved) -> Poll<Result<(), FlowError>>,
    ) -> Result<(), ()> {
        self.client_active = clock::now();
        let result = poll_fn(|cx| {
            let mut moved = Moved::default();
            let flushed = poll(&mut self.front, cx, &mut moved);
            self.stream.count_sent(moved.written);
            match flushed {
                Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
                Poll::Ready(Err(_)) => Poll::Ready(Err(b'C')),
                Poll::Pending => {
                    if moved.written > 0 {
                        self.client_active = clock::now();
                    }
                    self.front.arm(self.client_timeout.map(|timeout| self.client_active + timeout));
                    self.front.poll_alarm(cx).map(|()| Err(b'c'))
                }
            }
        })
        .await;
        result.map_err(|who| self.stream.end(who, b'D'))
    }
}

/// Takes what the writer decides out of the Connection fields of a response that rules or scripts have made; returns whether
/// they close the connection.
pub(super) fn take_connection(response: &mut Message) -> bool {
    let mut close = false;
    let mut changes = Vec::new();
    for (id, value) in response.fields_named(b"connection") {
        let mut rest = Vec::new();
        for option in elements(value) {
            if option.eq_ignore_ascii_case(b"close") {
                close = true;
            } else if !option.is_empty() && !option.eq_ignore_ascii_case(b"keep-alive") {
                if !rest.is_empty() {
                    rest.extend_from_slice(b", ");
                }
                rest.extend_from_slice(option);
            }
        }
        changes.push((id, rest));
    }
    for (id, rest) in changes {
        match rest.is_empty() {
            true => response.delete(id),
            false => response.set_value(id, &rest),
        }
    }
    close
}

/// Hides a request being forwarded to a server from rules: HAProxy keeps only its method then. Variables of the request
/// are dropped as well.
fn hide_request(cx: &mut StreamContext) -> (Message, Content) {
    cx.variables.enter_response();
    let request = std::mem::take(&mut cx.request);
    cx.request.set_request(request.sent_method(), b"", request.version());
    let gone = Content { no_http: true, ..Content::default() };
    (request, std::mem::replace(&mut cx.request_content, gone))
}
