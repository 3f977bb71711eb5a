//! Execution of one check: its steps, up to the one that decides the result.
//!
//! [`Probe::run`] executes the steps as HAProxy does: a send discards earlier bytes, expectations examine all bytes
//! received since, and a sequence of them is re-evaluated from its first when more arrive. At most [`ANSWER_MAX`] bytes
//! are kept and the whole check has a deadline, so an endless, slow or missing answer is bounded in space and time.

mod connect;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use sluicegate_config::model::{Check, CheckProtocol, CheckStatus, ServerAddress};
use sluicegate_transport::Socket;
use sluicegate_wire::http::Message;
use tokio::time::{Instant as Deadline, timeout_at};

use super::answer::AgentLine;
use super::code::{BytesCode, CheckCode, ConnectCode, ExpectedCode, KindCode, PortCode, RequestCode, StepCode};
use super::expect::{Seen, Verdict};
use super::pooled::{Borrowed, Loan};
use super::translator::Translator;
use crate::log::View;
use crate::running::ProxyRun;
use crate::sample::{Sample, VarMap, Variables};
use crate::server::run::ServerRun;
use crate::server::shared::Operation;
use crate::stream::{ContentForm, LogRecord, StreamContext};

/// The maximum number of response bytes that are kept and examined.
pub(super) const ANSWER_MAX: usize = 16_384;
/// The longest description of a result, bytes.
const INFO_MAX: usize = 127;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(super) status: CheckStatus,
    pub(super) code: u32,
    pub(super) info: Vec<u8>,
    /// The line that the agent sent.
    pub(super) agent: Option<AgentLine>,
}

impl Outcome {
    pub(super) fn new(status: CheckStatus, info: impl Into<Vec<u8>>) -> Outcome {
        Outcome { status, code: 0, info: info.into(), agent: None }
    }
}

/// The inputs of a check.
pub(crate) struct Aim<'a> {
    pub(super) proxy: &'a Arc<ProxyRun>,
    pub(super) server: &'a Arc<ServerRun>,
    /// The settings of checks; `None` for an agent.
    pub(super) check: Option<&'a Check>,
    pub(super) code: &'a CheckCode,
    /// `inter`, which is also the timeout of the whole check.
    pub(super) inter: Duration,
    /// The default destination of connections; `None`: no address is known.
    pub(super) address: Option<SocketAddr>,
    /// `check-send-proxy`.
    pub(super) send_proxy: bool,
    /// `pp2-never-send-local`.
    pub(super) never_local: bool,
    /// This machine's name, for `send-state`.
    pub(super) node: &'a str,
}

/// The reason why no more bytes arrived.
enum Silence {
    /// The deadline.
    TimedOut,
    /// The connection broke before any byte.
    Broken(io::Error),
}

/// A check in progress.
pub(crate) struct Probe<'a> {
    aim: Aim<'a>,
    socket: Option<Socket>,
    /// The place of a socket that comes from the server's pool, unless what was sent closes it.
    loan: Option<Loan>,
    /// A stream of a connection of the server's pool.
    borrowed: Option<Borrowed>,
    /// Whether the connection is closed normally and not with a reset.
    linger: bool,
    deadline: Deadline,
    received: Vec<u8>,
    ended: bool,
    variables: VarMap,
    message: Message,
    pub(super) code: u32,
    /// The version in a MySQL server's first packet.
    greeting: Option<Vec<u8>>,
    /// The state of a connection that speaks HTTP/2 or FastCGI.
    translator: Option<Box<dyn Translator>>,
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl<'a> Probe<'a> {
    pub(crate) fn new(aim: Aim<'a>) -> Probe<'a> {
        Probe {
            deadline: Deadline::now() + aim.inter,
            aim,
            socket: None,
            loan: None,
            borrowed: None,
            linger: true,
            received: Vec::new(),
            ended: false,
            variables: VarMap::default(),
            message: Message::new(),
            code: 0,
            greeting: None,
            translator: None,
        }
    }

    /// Runs the check to its end.
    pub(crate) async fn run(mut self) -> Outcome {
        let mut outcome = self.steps().await;
        if let Some(end) = outcome.info.iter().position(|byte| *byte == 0) {
            outcome.info.truncate(end);
        }
        outcome.info.truncate(INFO_MAX);
        outcome
    }

    async fn steps(&mut self) -> Outcome {
        let code = self.aim.code;
        let mut last: Option<&StepCode> = None;
        // An expectation must read if, since the previous expectation, something was sent or a connection was opened.
        let mut must_read = true;
        let mut row = 0;
        let mut at = 0;
        while let Some(step) = code.steps.get(at) {
            self.code = 0;
            match &step.kind {
                KindCode::Connect(connect) => {
                    last = Some(step);
                    if let Err(outcome) = self.connect(connect, step).await {
                        return outcome;
                    }
                    must_read = true;
                }
                KindCode::Send(bytes) => {
                    last = Some(step);
                    if let Err(outcome) = self.send(bytes, step).await {
                        return outcome;
                    }
                    must_read = true;
                }
                KindCode::Request(request) => {
                    last = Some(step);
                    let (bytes, keeps) = self.request(request);
                    let loan = self.loan.take_if(|loan| keeps && !self.ended && loan.is_free(&self.received));
                    let written = self.write(&bytes, step).await;
                    self.loan = loan;
                    if let Some(loan) = &mut self.loan {
                        loan.ask(request.method.as_bytes());
                    }
                    if let Err(outcome) = written {
                        return outcome;
                    }
                    must_read = true;
                }
                KindCode::Expect(_) => {
                    if !matches!(last.map(|last| &last.kind), Some(KindCode::Expect(_))) {
                        row = at;
                    }
                    last = Some(step);
                    if must_read && let Err(silence) = self.read().await {
                        return self.silent(silence, step);
                    }
                    must_read = false;
                    match self.judge(step) {
                        Verdict::Met => {}
                        Verdict::Wait => {
                            if let Err(silence) = self.read().await {
                                return self.silent(silence, step);
                            }
                            at = row;
                            continue;
                        }
                        Verdict::Ends(outcome) => return outcome,
                    }
                }
                KindCode::Set(setting, expression) => {
                    let sample = self.with_context(|cx| expression.value(cx).map(|value| value.into_sample()));
                    if let Some(sample) = sample {
                        self.change(|variables| setting.set(variables, sample));
                    }
                }
                KindCode::SetText(setting, format) => {
                    let mut text = Vec::new();
                    self.with_context(|cx| format.render(&View::running(cx), &mut text));
                    self.change(|variables| setting.set(variables, Sample::Str(text)));
                }
                KindCode::Unset(variable) => self.change(|variables| variables.unset(variable)),
            }
            at += 1;
        }
        self.passed(last)
    }

    /// Returns the result of a check whose steps have all succeeded.
    fn passed(&mut self, last: Option<&StepCode>) -> Outcome {
        let plain = self.aim.code.protocol == CheckProtocol::Tcp;
        match last.map(|step| &step.kind) {
            Some(KindCode::Connect(connect)) => {
                let status = if self.is_secure() { CheckStatus::L6Ok } else { CheckStatus::L4Ok };
                Outcome::new(status, if connect.implicit { &b""[..] } else { b"(tcp-check)" })
            }
            Some(KindCode::Expect(expect)) => {
                if self.tells_to_stop() {
                    return Outcome { code: self.code, ..Outcome::new(CheckStatus::L7OkCond, "") };
                }
                let mut info = Vec::new();
                match &expect.on_success {
                    Some(format) => self.with_context(|cx| format.render(&View::running(cx), &mut info)),
                    None if plain => info.extend_from_slice(b"(tcp-check)"),
                    None => match (&expect.what, &self.greeting) {
                        (ExpectedCode::LdapBind, _) => info.extend_from_slice(b"Success"),
                        (ExpectedCode::SpopHello, _) => info.extend_from_slice(b"SPOA server is ok"),
                        (ExpectedCode::MysqlPacket, Some(version)) => info.extend_from_slice(version),
                        _ => {}
                    },
                }
                self.set_code(expect.status_code.as_ref());
                let status = expect.ok_status.unwrap_or(CheckStatus::L7Ok);
                Outcome { code: self.code, ..Outcome::new(status, info) }
            }
            _ => Outcome::new(CheckStatus::L7Ok, "(tcp-check)"),
        }
    }

    pub(super) fn set_code(&mut self, expression: Option<&crate::sample::ExpressionCode>) {
        let Some(expression) = expression else { return };
        let number = self.with_context(|cx| {
            let value = expression.value(cx)?;
            value.to_int().or_else(|| {
                let text = value.into_text();
                let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
                std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
            })
        });
        if let Some(number) = number {
            self.code = number as u32;
        }
    }

    /// Returns whether `disable-on-404` applies: the server answered 404 and is not down.
    pub(super) fn tells_to_stop(&self) -> bool {
        self.code == 404
            && self.aim.proxy.config.health.disable_on_404
            && self.aim.code.protocol == CheckProtocol::Http
            && self.aim.server.shared.status().operation != Operation::Stopped
    }

    fn judge(&mut self, step: &StepCode) -> Verdict {
        let KindCode::Expect(expect) = &step.kind else { return Verdict::Met };
        // A full buffer counts as the end of the response, because nothing more will be read.
        let seen = Seen { ended: self.ended || self.received.len() >= ANSWER_MAX };
        match (self.aim.code.protocol, &expect.what) {
            (_, ExpectedCode::AgentLine) => self.judge_agent(step, expect, seen),
            (CheckProtocol::Http, _) => self.judge_http(step, expect, seen),
            _ => self.judge_bytes(step, expect, seen),
        }
    }

    pub(super) fn received(&self) -> &[u8] {
        &self.received
    }

    /// Removes `count` examined bytes from the start of the received ones.
    pub(super) fn discard(&mut self, count: usize) {
        self.received.drain(..count);
    }

    /// Returns whether a MySQL server has sent its first packet.
    pub(super) fn is_greeted(&self) -> bool {
        self.greeting.is_some()
    }

    /// Stores the server version from the first packet, where it follows the packet header and the protocol version.
    pub(super) fn greet(&mut self) {
        let version = || self.received.get(5..).unwrap_or_default().iter().copied();
        self.greeting.get_or_insert_with(|| version().take_while(|byte| *byte != 0).take(INFO_MAX).collect());
    }

    pub(super) fn protocol(&self) -> CheckProtocol {
        self.aim.code.protocol
    }

    pub(super) fn message(&mut self) -> &mut Message {
        &mut self.message
    }

    /// Changes the check's variables. They are kept as a map because a check may continue on another thread, while a
    /// stream's variables cannot change threads.
    fn change(&mut self, f: impl FnOnce(&mut Variables)) {
        let mut variables = Variables::of_check(std::mem::take(&mut self.variables));
        f(&mut variables);
        self.variables = variables.into_check();
    }

    /// Calls `f` with a context in which the check is a stream to the checked server, and the received bytes are its
    /// response.
    pub(super) fn with_context<T>(&mut self, f: impl FnOnce(&StreamContext) -> T) -> T {
        let log = LogRecord::new(SystemTime::now(), Instant::now());
        let mut cx = StreamContext::unconnected(self.aim.proxy.site.clone(), log);
        cx.unique_id_code = self.aim.proxy.log.unique_id().cloned();
        cx.backend = Some(self.aim.proxy.site.clone());
        cx.log.server = Some(self.aim.server.clone());
        cx.in_response = true;
        cx.variables = Variables::of_check(std::mem::take(&mut self.variables));
        cx.response = std::mem::take(&mut self.message);
        cx.response_content.data = std::mem::take(&mut self.received);
        cx.response_content.form = match self.aim.code.protocol {
            CheckProtocol::Http => ContentForm::Http,
            _ => ContentForm::Bytes,
        };
        let result = f(&cx);
        self.variables = std::mem::take(&mut cx.variables).into_check();
        self.message = std::mem::take(&mut cx.response);
        self.received = std::mem::take(&mut cx.response_content.data);
        result
    }

    /// Like [`with_context`](Self::with_context), but with the body of an HTTP response as the received bytes.
    pub(super) fn with_body<T>(&mut self, body: Vec<u8>, f: impl FnOnce(&StreamContext) -> T) -> T {
        let received = std::mem::replace(&mut self.received, body);
        let result = self.with_context(f);
        self.received = received;
        result
    }

    async fn send(&mut self, bytes: &BytesCode, step: &StepCode) -> Result<(), Outcome> {
        let bytes = self.with_context(|cx| bytes.bytes(&View::running(cx)).map(|bytes| bytes.into_owned()));
        // If the format yields nothing, nothing is sent; invalid hexadecimal text ends the check.
        match bytes {
            Ok(bytes) => self.write(&bytes, step).await,
            Err(super::code::NoBytes::Empty) => Ok(()),
            Err(super::code::NoBytes::NoHex) => {
                Err(Outcome::new(CheckStatus::L7Rsp, super::expect::no_bytes(super::code::NoBytes::NoHex)))
            }
        }
    }

    async fn write(&mut self, mut bytes: &[u8], step: &StepCode) -> Result<(), Outcome> {
        self.received.clear();
        // A connection on which something else than a request was sent is not reused.
        self.loan = None;
        if let Some(stream) = &mut self.borrowed {
            self.ended = false;
            return match stream.ask(bytes) {
                true => Ok(()),
                false => Err(self.trouble(CheckStatus::SockErr, None, step)),
            };
        }
        if let Some(translator) = &mut self.translator {
            self.ended = false;
            let begun = translator.request(bytes);
            return match begun.is_ok() && timeout_at(self.deadline, self.flush()).await.is_ok() {
                true => Ok(()),
                false => Err(self.trouble(CheckStatus::L7Rsp, Some("request not accepted".to_owned()), step)),
            };
        }
        while !bytes.is_empty() {
            let Some(socket) = &mut self.socket else { break };
            let write = std::future::poll_fn(|cx| socket.poll_write(cx, bytes));
            match timeout_at(self.deadline, write).await {
                Ok(Ok(count)) => bytes = &bytes[count..],
                Ok(Err(error)) => {
                    let said = describe(&error, Phase::Established);
                    return Err(self.trouble(CheckStatus::SockErr, Some(said), step));
                }
                Err(_) => return Err(self.trouble(CheckStatus::L7Tout, None, step)),
            }
        }
        Ok(())
    }

    /// Waits for more bytes, or for the end of the response.
    async fn read(&mut self) -> Result<(), Silence> {
        if self.ended {
            return Ok(());
        }
        if let Some(stream) = &mut self.borrowed {
            let response = timeout_at(self.deadline, stream.answer()).await.map_err(|_| Silence::TimedOut)?;
            let broken = || Silence::Broken(io::ErrorKind::ConnectionReset.into());
            self.received.append(&mut response.ok_or_else(broken)?);
            self.ended = true;
            return Ok(());
        }
        if self.translator.is_some() {
            return self.read_translated().await;
        }
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let room = ANSWER_MAX.saturating_sub(self.received.len());
        if room == 0 {
            self.ended = true;
            return Ok(());
        }
        let before = self.received.len();
        self.received.resize(before + room.min(4_096), 0);
        let into = &mut self.received[before..];
        let read = timeout_at(self.deadline, std::future::poll_fn(|cx| socket.poll_read(cx, into))).await;
        let count = match &read {
            Ok(Ok(count)) => *count,
            _ => 0,
        };
        self.received.truncate(before + count);
        match read {
            Err(_) => Err(Silence::TimedOut),
            Ok(Err(error)) if before == 0 => Err(Silence::Broken(error)),
            Ok(Err(_)) | Ok(Ok(0)) => {
                self.ended = true;
                Ok(())
            }
            Ok(Ok(_)) => Ok(()),
        }
    }

    /// Writes what a translator has. A connection that breaks is noticed by the next read.
    async fn flush(&mut self) {
        let (Some(translator), Some(socket)) = (&mut self.translator, &mut self.socket) else { return };
        while !translator.output().is_empty() {
            match std::future::poll_fn(|cx| socket.poll_write(cx, translator.output())).await {
                Ok(count) => translator.wrote(count),
                Err(_) => return,
            }
        }
    }

    /// Waits for more of the response, or for its end.
    async fn read_translated(&mut self) -> Result<(), Silence> {
        let mut buffer = [0; 4_096];
        let before = self.received.len();
        while self.received.len() == before && !self.ended {
            if before >= ANSWER_MAX {
                self.ended = true;
                break;
            }
            let (Some(translator), Some(socket)) = (&mut self.translator, &mut self.socket) else { break };
            let read = std::future::poll_fn(|cx| socket.poll_read(cx, &mut buffer));
            let count = match timeout_at(self.deadline, read).await {
                Err(_) => return Err(Silence::TimedOut),
                Ok(Err(error)) if before == 0 => return Err(Silence::Broken(error)),
                Ok(Err(_)) | Ok(Ok(0)) => {
                    self.ended = true;
                    break;
                }
                Ok(Ok(count)) => count,
            };
            self.ended = translator.receive(&buffer[..count], &mut self.received).unwrap_or(true);
            self.received.truncate(ANSWER_MAX);
            if timeout_at(self.deadline, self.flush()).await.is_err() {
                return Err(Silence::TimedOut);
            }
        }
        Ok(())
    }

    fn silent(&mut self, silence: Silence, step: &StepCode) -> Outcome {
        match silence {
            Silence::Broken(error) => {
                self.trouble(CheckStatus::SockErr, Some(describe(&error, Phase::Established)), step)
            }
            Silence::TimedOut => {
                let own = match &step.kind {
                    KindCode::Expect(expect) => expect.timeout_status,
                    _ => None,
                };
                let code = self.code;
                Outcome { code, ..self.trouble(own.unwrap_or(CheckStatus::L7Tout), None, step) }
            }
        }
    }

    /// Returns the result for a connection that failed at a step; for a sequence of `tcp-check` its text names the
    /// step.
    fn trouble(&self, status: CheckStatus, error: Option<String>, step: &StepCode) -> Outcome {
        let mut info = error.unwrap_or_default().into_bytes();
        if self.aim.code.protocol == CheckProtocol::Tcp {
            if step.number == 0 {
                info.extend_from_slice(b" at initial connection step of tcp-check");
            } else {
                info.extend_from_slice(format!(" at step {} of tcp-check", step.number).as_bytes());
                match &step.kind {
                    KindCode::Connect(ConnectCode { port: Some(PortCode::Fixed(port)), .. }) => {
                        info.extend_from_slice(format!(" (connect port {port})").as_bytes());
                    }
                    KindCode::Connect(_) => info.extend_from_slice(b" (connect)"),
                    KindCode::Send(_) => info.extend_from_slice(b" (send)"),
                    KindCode::Expect(expect) => expect.what.describe(&mut info),
                    _ => {}
                }
                if let Some(comment) = &step.comment {
                    info.extend_from_slice(format!(" comment: '{comment}'").as_bytes());
                }
            }
        }
        Outcome::new(status, info)
    }

    /// Returns a request, and whether it keeps its connection open.
    fn request(&mut self, request: &RequestCode) -> (Vec<u8>, bool) {
        let send_state = self.aim.proxy.config.health.send_state;
        let state = send_state.then(|| state_of(self.aim.proxy, self.aim.server, self.aim.node));
        self.with_context(|cx| write_request(request, state.as_deref(), &View::running(cx)))
    }
}

/// Returns a request as HAProxy writes it: header names in lower case, then `content-length` if there is a body, then
/// `connection`. Also returns whether the request keeps its connection open.
fn write_request(request: &RequestCode, state: Option<&str>, view: &View<'_>) -> (Vec<u8>, bool) {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(request.method.as_bytes());
    out.push(b' ');
    match request.uri.bytes(view) {
        Ok(uri) => out.extend_from_slice(&uri),
        Err(_) => out.push(b'/'),
    }
    out.push(b' ');
    out.extend_from_slice(request.version.as_bytes());
    out.extend_from_slice(b"\r\n");
    let mut wishes = None;
    for (name, format) in &request.headers {
        let mut value = Vec::new();
        format.render(view, &mut value);
        // A line end in the value would start another header field.
        value.retain(|byte| !matches!(byte, b'\r' | b'\n'));
        if value.is_empty() {
            continue;
        }
        if &**name == "connection" {
            let wishes: &mut Wishes = wishes.get_or_insert_default();
            value = wishes.take(&value);
            if value.is_empty() {
                continue;
            }
        }
        push_field(&mut out, name, &value);
    }
    if let Some(state) = state {
        push_field(&mut out, "x-haproxy-server-state", state.as_bytes());
    }
    let body = request.body.as_ref().and_then(|body| body.bytes(view).ok()).unwrap_or_default();
    if !body.is_empty() {
        push_field(&mut out, "content-length", body.len().to_string().as_bytes());
    }
    // Connection options that the version implies are omitted, and all of them where the request upgrades the protocol.
    let Wishes { keeps, closes, upgrades } = wishes.unwrap_or(Wishes { closes: true, ..Wishes::default() });
    let stays_open = !closes && !upgrades && (keeps || &*request.version == "HTTP/1.1");
    match &*request.version {
        _ if upgrades => {}
        "HTTP/1.0" if keeps && !closes => push_field(&mut out, "connection", b"keep-alive"),
        "HTTP/1.1" if closes => push_field(&mut out, "connection", b"close"),
        _ => {}
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&body);
    (out, stays_open)
}

/// The options of the Connection fields of `http-check send`.
#[derive(Clone, Copy, Debug, Default)]
struct Wishes {
    keeps: bool,
    closes: bool,
    upgrades: bool,
}

impl Wishes {
    /// Records the options of a field; returns those that are sent in its place, as HAProxy's H1 layer does.
    fn take(&mut self, value: &[u8]) -> Vec<u8> {
        let mut rest = Vec::new();
        for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|option| !option.is_empty()) {
            let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
            match () {
                () if is("keep-alive") => self.keeps = true,
                () if is("close") => self.closes = true,
                () => {
                    self.upgrades |= is("upgrade");
                    rest.push(option);
                }
            }
        }
        rest.join(&b","[..])
    }
}

fn push_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Describes the state of the server as this process sees it, for `http-check send-state`.
fn state_of(proxy: &ProxyRun, server: &ServerRun, node: &str) -> String {
    let status = server.shared.status();
    let health = status.health;
    let falling = || (health.level + 1).saturating_sub(health.rise);
    let word = match (status.operation, health.level == health.top()) {
        (Operation::Running, true) => "UP".to_owned(),
        (Operation::Stopping, true) => "NOLB".to_owned(),
        (Operation::Running, false) => format!("UP {}/{}", falling(), health.fall),
        (Operation::Stopping, false) => format!("NOLB {}/{}", falling(), health.fall),
        (Operation::Stopped, _) if health.level > 0 => format!("DOWN {}/{}", health.level, health.rise),
        (Operation::Stopped, _) => "DOWN".to_owned(),
    };
    let (address, port) = match server.socket_addr(None) {
        Some(address) => (address.ip().to_string(), address.port().to_string()),
        None => match &server.config.address {
            ServerAddress::Unix(path) => (path.display().to_string(), String::new()),
            ServerAddress::Abstract(name) => (name.name.clone(), String::new()),
            _ => (String::new(), String::new()),
        },
    };
    let backend = &proxy.backend;
    let mut line = format!(
        "{word}; address={address}; port={port}; name={}/{}; node={node}; weight={}/{}; scur={}/{}; qcur={}",
        proxy.config.name,
        server.name(),
        server.shared.effective_weight(),
        backend.summary(Instant::now()).weight,
        server.shared.sessions(),
        backend.figures.scur.load(Ordering::Relaxed).saturating_sub(backend.queue.len()),
        server.shared.queued.load(Ordering::Relaxed),
    );
    if let Some(share) = status.throttle() {
        line.push_str(&format!("; throttle={share}%"));
    }
    line
}

/// The phase in which a socket error occurred.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// While the connection was being opened: whether to a unix socket, and whether from an address of `source`.
    Connecting { unix: bool, bound: bool },
    /// On an open connection.
    Established,
}

impl Phase {
    /// Returns the result of a check that could not connect. Errors on a unix socket are reported immediately, and
    /// HAProxy classifies them as socket errors (SOCKERR), not as connection failures.
    fn status(self, error: &io::Error) -> CheckStatus {
        match self {
            Phase::Connecting { unix: false, .. } if error.raw_os_error().is_some() => CheckStatus::L4Con,
            _ => CheckStatus::SockErr,
        }
    }
}

/// Returns HAProxy's description of a socket error, followed by the system's message.
fn describe(error: &io::Error, phase: Phase) -> String {
    let text = error.to_string();
    // Rust appends the number to the system's words.
    let system = &text[..text.find(" (os error").unwrap_or(text.len())];
    let Some(number) = error.raw_os_error() else { return system.to_owned() };
    let words = match (phase, number) {
        (Phase::Connecting { bound: true, .. }, libc::EADDRNOTAVAIL | libc::EADDRINUSE | libc::EACCES) => {
            "Can't bind to source address"
        }
        (Phase::Connecting { .. }, libc::EADDRNOTAVAIL | libc::EAGAIN) => "Out of local source ports on the system",
        (Phase::Connecting { .. }, libc::EADDRINUSE) => "Local source address already in use",
        (Phase::Connecting { .. }, libc::EMFILE) => "Too many sockets on the process",
        (Phase::Connecting { .. }, libc::ENFILE) => "Too many sockets on the system",
        (Phase::Connecting { .. }, libc::ENOMEM | libc::ENOBUFS) => "Out of system buffers",
        (Phase::Connecting { .. }, libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT) => {
            "Protocol or address family not supported"
        }
        // Errors reported immediately have no separate name.
        (Phase::Connecting { unix: true, .. }, _) | (Phase::Connecting { .. }, libc::ENETUNREACH | libc::EINVAL) => {
            "General socket error"
        }
        // The kernel reports these while the connection is being opened; HAProxy then has the system's words alone.
        (
            Phase::Connecting { .. },
            libc::ECONNREFUSED | libc::ECONNRESET | libc::EHOSTUNREACH | libc::ETIMEDOUT | libc::EPIPE,
        ) => return system.to_owned(),
        (_, libc::ECONNREFUSED) => "ECONNREFUSED returned by OS",
        (_, libc::ECONNRESET) => "ECONNRESET returned by OS",
        (_, libc::EHOSTUNREACH | libc::ENETUNREACH) => "ENETUNREACH returned by OS",
        (_, libc::EPIPE) => "EPIPE returned by OS",
        (_, libc::ENOTCONN) => "ENOTCONN returned by OS",
        (_, libc::ENOBUFS) => "ENOBUFS returned by OS",
        (_, libc::ENOMEM) => "ENOMEM returned by OS",
        (_, libc::EINVAL) => "EINVAL returned by OS",
        _ => "General socket error",
    };
    format!("{words} ({system})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_connection_fields() {
        for (values, sent, wishes) in [
            (&["close"][..], &[""][..], [false, true, false]),
            (&["keep-alive, foo"], &["foo"], [true, false, false]),
            (&["Upgrade, close"], &["Upgrade"], [false, true, true]),
            (&["a", "keep-alive"], &["a", ""], [true, false, false]),
        ] {
            let mut found = Wishes::default();
            let rest: Vec<Vec<u8>> = values.iter().map(|value| found.take(value.as_bytes())).collect();
            assert_eq!(rest, sent.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>());
            assert_eq!([found.keeps, found.closes, found.upgrades], wishes, "{values:?}");
        }
    }

    #[test]
    fn errors_are_named_as_in_haproxy() {
        let tcp = Phase::Connecting { unix: false, bound: false };
        let unix = Phase::Connecting { unix: true, bound: false };
        let bound = Phase::Connecting { unix: false, bound: true };
        for (number, phase, status, words) in [
            (libc::ECONNREFUSED, tcp, CheckStatus::L4Con, "Connection refused"),
            (libc::ENETUNREACH, tcp, CheckStatus::L4Con, "General socket error (Network is unreachable)"),
            (libc::EHOSTUNREACH, tcp, CheckStatus::L4Con, "No route to host"),
            (
                libc::ECONNREFUSED,
                Phase::Established,
                CheckStatus::SockErr,
                "ECONNREFUSED returned by OS (Connection refused)",
            ),
            (libc::EMFILE, tcp, CheckStatus::L4Con, "Too many sockets on the process (Too many open files)"),
            (
                libc::EADDRNOTAVAIL,
                bound,
                CheckStatus::L4Con,
                "Can't bind to source address (Cannot assign requested address)",
            ),
            (libc::ENOENT, unix, CheckStatus::SockErr, "General socket error (No such file or directory)"),
            (libc::ECONNREFUSED, unix, CheckStatus::SockErr, "General socket error (Connection refused)"),
            (
                libc::ECONNRESET,
                Phase::Established,
                CheckStatus::SockErr,
                "ECONNRESET returned by OS (Connection reset by peer)",
            ),
        ] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!((phase.status(&error), &*describe(&error, phase)), (status, words));
        }
    }
}
