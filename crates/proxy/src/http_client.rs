//! The HTTP client of the process itself: requests of scripts, and of tasks of the control thread.
//!
//! A request is one exchange on a connection of its own, on the runtime of its caller: of HTTP/2 if the server of an
//! `https` URL selects it, else of HTTP/1.1. These servers are verified as `httpclient.ssl.verify` and
//! `httpclient.ssl.ca-file` say, for the name in the request's `host` field, which is sent as SNI. All users of a
//! snapshot share the TLS sessions; connections count towards `maxsslconn`.
//!
//! Names are looked up in the cached `/etc/hosts`, then by the system, then in the section `default` of `resolvers`,
//! which works inside a chroot. If `httpclient.resolvers.id` or `.prefer` is set, the system is not asked; if
//! `httpclient.resolvers.disabled` is on, only the cached `/etc/hosts` is used.
//!
//! Limits: `httpclient.retries` more attempts to connect, `httpclient.timeout.connect` each, and as many more requests of a
//! script whose connection ends without a response or whose server is late; the size of a response's
//! head, as for any server; the size of its body and a deadline, both set by the caller. Redirects are returned like
//! other responses.

mod h2;
mod journal;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use sluicegate_config::model::{GlobalTls, HttpClientSettings};
use sluicegate_tls::connector::Connector;
use sluicegate_tls::policy::{Policy, ServerSettings, Verify};
use sluicegate_transport::Socket;
use sluicegate_wire::http::{
    BodyDecoder, BodyEvent, Limits, Message, Method, Version, is_token, parse_response, status, write_chunk_end,
    write_chunk_start, write_last_chunk,
};
use tokio::time::timeout;

use self::journal::Account;
pub(crate) use self::journal::Journal;
use crate::resolve::{Asked, Resolver};
use crate::server::secure_connection;
use crate::target::Target;
use crate::tls::TlsTotals;

/// The number of bytes requested from the kernel at a time.
const CHUNK: usize = 16 << 10;
/// The pause between two attempts.
const TURN_AROUND: Duration = Duration::from_secs(1);

/// The client.
#[derive(Debug)]
pub(crate) struct HttpClient {
    settings: HttpClientSettings,
    /// `None` if servers must be verified and there are no CA certificates.
    https: Option<Arc<Connector>>,
    totals: Arc<TlsTotals>,
    /// The section that resolves names.
    resolver: Option<Arc<Resolver>>,
    /// The log of its requests.
    journal: Option<Journal>,
}

/// The body of a request, by its framing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body<'a> {
    /// None.
    Empty,
    /// With `content-length`.
    Sized(&'a [u8]),
    /// In one chunk.
    Chunked(&'a [u8]),
}

/// The reason why a request cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// The URL is malformed, or its scheme is neither `http` nor `https`.
    Url,
    /// The destination is not an address.
    Destination,
    /// A method, field or value that would split the request.
    Headers,
}

/// A request in the form in which it is sent.
#[derive(Debug)]
pub(crate) struct HttpRequest {
    target: Target,
    /// The name that the server of an `https` URL is verified for.
    secure: Option<String>,
    method: Method,
    url: Box<[u8]>,
    /// Whether its caller logs it.
    is_logged_elsewhere: bool,
    /// Head and body.
    bytes: Vec<u8>,
    /// The place of the body in these, without its framing.
    body: Range<usize>,
}

/// A response.
#[derive(Debug, Default)]
pub(crate) struct HttpResponse {
    /// Its head.
    pub(crate) head: Message,
    /// Its body, decoded.
    pub(crate) body: Vec<u8>,
    /// Whether the body was received to its end.
    pub(crate) is_complete: bool,
    /// Whether a wait for the rest of the body took too long.
    pub(crate) is_late: bool,
}

/// The reason for a missing response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The name has no address.
    Unresolved,
    /// No connection, or no TLS.
    Unreachable,
    /// The response is invalid or too large.
    NoAnswer,
    /// The connection has ended without a response.
    Ended,
    /// The deadline has passed.
    Late,
}

impl Failure {
    /// Returns a sentence for logs.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Failure::Unresolved => "the server's name could not be resolved",
            Failure::Unreachable => "the server could not be reached",
            Failure::NoAnswer | Failure::Ended => "the server sent no valid response",
            Failure::Late => "the server did not respond in time",
        }
    }

    /// Returns the page that replaces the response.
    pub(crate) fn page(self) -> HttpResponse {
        let mut answer = HttpResponse::default();
        let status = match self {
            Failure::Unresolved => {
                // HAProxy has no page for it either.
                answer.head.set_response(Version::Http11, 503, status::reason(503).as_bytes());
                answer.head.add_lower(b"content-length", b"0");
                return answer;
            }
            Failure::Unreachable => 503,
            Failure::NoAnswer | Failure::Ended => 502,
            Failure::Late => 504,
        };
        answer.body.extend_from_slice(status::error_page(status).fill(&mut answer.head));
        answer
    }
}

/// The limits of an exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The size in bytes of the response's body.
    pub(crate) body: usize,
    /// The time of each wait for the server; `None`: unlimited.
    pub(crate) wait: Option<Duration>,
}

impl HttpClient {
    /// Builds the client of a snapshot. The TLS sessions of `before` are kept if their settings have not changed.
    ///
    /// # Errors
    /// A sentence about unusable settings.
    pub(crate) fn new(
        tls: &GlobalTls,
        settings: &HttpClientSettings,
        resolvers: &[Arc<Resolver>],
        totals: &Arc<TlsTotals>,
        journal: Option<Journal>,
        before: Option<&Arc<HttpClient>>,
    ) -> Result<Arc<HttpClient>, String> {
        let https = https(tls);
        let section = settings.resolver();
        let resolver = resolvers.iter().find(|resolver| !settings.is_disabled && *resolver.config.name == *section);
        let known = before.filter(|known| Arc::ptr_eq(&known.totals, totals)).and_then(|known| known.https.as_ref());
        let known = known.filter(|known| https.as_ref() == Some(&known.settings()));
        let https = match (known, https) {
            (Some(known), _) => Some(known.clone()),
            (None, https) => https.map(Connector::new).transpose()?.map(Arc::new),
        };
        let (settings, totals, resolver) = (settings.clone(), totals.clone(), resolver.cloned());
        Ok(Arc::new(HttpClient { settings, https, totals, resolver, journal }))
    }

    /// Returns whether requests over https can be made.
    pub(crate) fn has_https(&self) -> bool {
        self.https.is_some()
    }

    /// Performs a request within a time limit that includes the attempts to connect.
    ///
    /// # Errors
    /// The reason why there is no response.
    pub(crate) async fn request(
        &self,
        request: &HttpRequest,
        deadline: Duration,
        body_max: usize,
    ) -> Result<HttpResponse, Failure> {
        let bounds = Bounds { body: body_max, wait: None };
        let mut account = Account::new();
        let result = timeout(deadline, self.exchange(request, bounds, &mut account)).await;
        self.note(request, &account, result.unwrap_or(Err(Failure::Late)))
    }

    /// Writes the log line of a request that has ended.
    fn note(
        &self,
        request: &HttpRequest,
        account: &Account,
        result: Result<HttpResponse, Failure>,
    ) -> Result<HttpResponse, Failure> {
        if let Some(journal) = self.journal.as_ref().filter(|_| !request.is_logged_elsewhere) {
            journal.write(request, account, &result);
        }
        result
    }

    /// Performs a request; each wait for the server has a time limit, the whole request has none. As in HAProxy, any request
    /// is sent again if the connection ends without a response, or the server is late.
    ///
    /// # Errors
    /// The reason why there is no response.
    pub(crate) async fn persist(&self, request: &HttpRequest, bounds: Bounds) -> Result<HttpResponse, Failure> {
        let mut account = Account::new();
        let mut left = self.settings.retries;
        loop {
            match self.exchange(request, bounds, &mut account).await {
                Err(Failure::Ended | Failure::Late) if left > 0 => left -= 1,
                result => return self.note(request, &account, result),
            }
            account.again();
        }
    }

    async fn exchange(
        &self,
        request: &HttpRequest,
        bounds: Bounds,
        account: &mut Account,
    ) -> Result<HttpResponse, Failure> {
        let mut stream = self.connect(request, account).await?;
        let mut exchange: Box<dyn Exchange + '_> = match stream.alpn() == Some(b"h2") {
            true => Box::new(h2::Stream::new(request, bounds.body)?),
            false => Box::new(Reader::new(request, bounds.body)),
        };
        // Whether something has come.
        let mut begun = false;
        loop {
            if !exchange.output().is_empty() {
                match stream.try_write(exchange.output()) {
                    Ok(count) => {
                        exchange.wrote(count);
                        // Received frames may have waited for room in the output.
                        if exchange.read()? {
                            return exchange.end();
                        }
                        continue;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // A response may have come before the request was read to its end.
                    Err(_) => exchange.be_silent(),
                }
            }
            exchange.input().reserve(CHUNK);
            match stream.try_read_buf(exchange.input()) {
                Ok(0) if !begun => return Err(Failure::Ended),
                Ok(0) => return exchange.end(),
                Ok(_) => {
                    begun = true;
                    account.answered.get_or_insert_with(Instant::now);
                    if exchange.read()? {
                        return exchange.end();
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) if !begun => return Err(Failure::Ended),
                Err(_) => return exchange.end(),
            }
            let more = !exchange.output().is_empty();
            // A unique borrow, because the future is sent between threads. The next read or write reports an error of
            // the socket.
            let waiting = &mut stream;
            let ready = std::future::poll_fn(move |cx| {
                let readable = waiting.poll_read_ready(cx).is_ready();
                match readable || (more && waiting.poll_write_ready(cx).is_ready()) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            });
            match bounds.wait {
                None => ready.await,
                Some(limit) if timeout(limit, ready).await.is_err() => {
                    // As in HAProxy, a response that has begun is given as far as it has come.
                    let response = exchange.end().map_err(|_| Failure::Late)?;
                    return Ok(HttpResponse { is_late: true, is_complete: false, ..response });
                }
                Some(_) => {}
            }
        }
    }

    async fn connect(&self, request: &HttpRequest, account: &mut Account) -> Result<Socket, Failure> {
        let targets = match &request.target {
            Target::Name(name, port) => {
                let found = self.lookup(name, *port).await.unwrap_or_default();
                found.into_iter().map(Target::Inet).collect()
            }
            target => vec![target.clone()],
        };
        if targets.is_empty() {
            return Err(Failure::Unresolved);
        }
        account.resolved.get_or_insert_with(Instant::now);
        let limit = self.settings.connect_timeout;
        for attempt in 0..=self.settings.retries {
            if attempt > 0 {
                account.retries += 1;
                tokio::time::sleep(TURN_AROUND).await;
            }
            for target in &targets {
                let connecting = within(limit, target.clone().connect()).await;
                account.connected_late = connecting.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut);
                let Ok(mut stream) = connecting else { continue };
                if let Some(name) = &request.secure {
                    let connector = self.https.as_ref().ok_or(Failure::Unreachable)?;
                    let securing = secure_connection(&mut stream, connector, Some(name), None, &self.totals);
                    let securing = async { securing.await.map(drop).map_err(|_| ErrorKind::ConnectionAborted.into()) };
                    within(limit, securing).await.map_err(|error| {
                        account.connected_late = error.kind() == ErrorKind::TimedOut;
                        Failure::Unreachable
                    })?;
                }
                account.connected = Some(Instant::now());
                return Ok(stream);
            }
        }
        Err(Failure::Unreachable)
    }

    async fn lookup(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Some(found) = crate::hosts::remembered(name, port) {
            return Ok(found);
        }
        if !self.settings.is_explicit() && !self.settings.is_disabled {
            let found = crate::hosts::lookup(name, port).await;
            if found.as_ref().is_ok_and(|found| !found.is_empty()) {
                return found;
            }
        }
        let Some(resolver) = &self.resolver else { return Ok(Vec::new()) };
        let found = match resolver.ask(name.as_bytes(), self.settings.prefer_v4 == Some(true)) {
            Asked::Known(found) => found,
            Asked::Later(found) => found.await.ok().flatten(),
        };
        Ok(found.map(|ip| SocketAddr::new(ip, port)).into_iter().collect())
    }
}

/// Returns whether a text is a field name.
pub(crate) fn is_field_name(name: &[u8]) -> bool {
    !name.is_empty() && is_token(name)
}

/// Returns whether a text is a field value: it contains nothing that ends the line.
pub(crate) fn is_field_value(value: &[u8]) -> bool {
    !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0))
}

/// Awaits a step of an attempt to connect.
async fn within<T>(limit: Option<Duration>, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match limit {
        None => step.await,
        Some(limit) => timeout(limit, step).await.unwrap_or(Err(ErrorKind::TimedOut.into())),
    }
}

/// Returns the TLS settings of the client; `None`: servers cannot be verified.
fn https(global: &GlobalTls) -> Option<ServerSettings> {
    let verified = global.client_verify != Verify::None;
    let policy = Policy {
        verify: Some(global.client_verify),
        ca: if verified { Some(global.client_authorities.clone()?) } else { None },
        alpn: Some(vec![b"h2".to_vec(), b"http/1.1".to_vec()]),
        ..Policy::default()
    };
    Some(ServerSettings { policy, ..ServerSettings::default() })
}

impl HttpRequest {
    /// Returns whether its response has no body.
    pub(crate) fn is_head(&self) -> bool {
        self.method == Method::Head
    }

    /// Makes a request. `host`, `accept` and `user-agent` are added unless given. As in HAProxy, given fields that frame the
    /// body are left out, and so is the wish to keep the connection.
    /// `destination` replaces the address of the URL.
    ///
    /// # Errors
    /// The part that is malformed.
    pub(crate) fn new<'a>(
        method: &[u8],
        url: &[u8],
        destination: Option<&[u8]>,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        body: Body<'_>,
    ) -> Result<HttpRequest, Malformed> {
        if !is_field_name(method) {
            return Err(Malformed::Headers);
        }
        let (rest, is_secure, default_port) = match (url.strip_prefix(b"https://"), url.strip_prefix(b"http://")) {
            (Some(rest), _) => (rest, true, 443),
            (None, Some(rest)) => (rest, false, 80),
            (None, None) => return Err(Malformed::Url),
        };
        let rest = std::str::from_utf8(rest).map_err(|_| Malformed::Url)?;
        if rest.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err(Malformed::Url);
        }
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let named = match (Target::parse(authority, None), authority.rsplit_once(':')) {
            (Some(target), _) => Some(target),
            // The port is invalid.
            (None, Some(_)) if !authority.ends_with(']') => None,
            _ => Target::parse(authority, Some(default_port)),
        };
        let named = named.filter(|target| matches!(target, Target::Inet(_) | Target::Name(..)));
        let named = named.ok_or(Malformed::Url)?;
        let target = match destination {
            None => named,
            Some(text) => {
                let text = std::str::from_utf8(text).map_err(|_| Malformed::Destination)?;
                match Target::parse(text, None).or_else(|| Target::parse(text, Some(default_port))) {
                    None | Some(Target::Name(..) | Target::Descriptor(_)) => return Err(Malformed::Destination),
                    Some(target) => target,
                }
            }
        };
        let length = match body {
            Body::Empty => 0,
            Body::Sized(body) | Body::Chunked(body) => body.len(),
        };
        let mut bytes = Vec::with_capacity(512 + length);
        bytes.extend_from_slice(method);
        bytes.push(b' ');
        if !path.starts_with('/') {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(path.as_bytes());
        bytes.extend_from_slice(b" HTTP/1.1\r\n");
        let mut field = |name: &[u8], value: &[u8]| {
            bytes.extend(name.iter().map(u8::to_ascii_lowercase));
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        };
        let mut defaults =
            [(&b"host"[..], authority.as_bytes()), (b"accept", b"*/*"), (b"user-agent", b"HAProxy")].map(Some);
        let mut name_of_host = authority.as_bytes();
        for (name, value) in fields {
            if !is_field_name(name) || !is_field_value(value) {
                return Err(Malformed::Headers);
            }
            let is = |wanted: &[u8]| name.eq_ignore_ascii_case(wanted);
            let keeps = is(b"connection") && value.eq_ignore_ascii_case(b"keep-alive");
            if is(b"content-length") || is(b"transfer-encoding") || keeps {
                continue;
            }
            if name.eq_ignore_ascii_case(b"host") {
                name_of_host = value;
            }
            field(name, value);
            for default in &mut defaults {
                default.take_if(|(known, _)| name.eq_ignore_ascii_case(known));
            }
        }
        defaults.into_iter().flatten().for_each(|(name, value)| field(name, value));
        match body {
            Body::Empty => {}
            Body::Sized(body) => field(b"content-length", body.len().to_string().as_bytes()),
            Body::Chunked(_) => field(b"transfer-encoding", b"chunked"),
        }
        bytes.extend_from_slice(b"\r\n");
        let (content, is_chunked) = match body {
            Body::Empty => (&[][..], false),
            Body::Sized(body) => (body, false),
            Body::Chunked(body) => (body, true),
        };
        if is_chunked {
            write_chunk_start(content.len() as u64, &mut bytes);
        }
        let start = bytes.len();
        bytes.extend_from_slice(content);
        let body = start..bytes.len();
        if is_chunked {
            if !body.is_empty() {
                write_chunk_end(&mut bytes);
            }
            write_last_chunk(std::iter::empty(), &mut bytes);
        }
        let name_of_host = name_of_host.split(|byte| *byte == b':').next().unwrap_or_default();
        let secure = is_secure.then(|| String::from_utf8_lossy(name_of_host).into_owned());
        Ok(HttpRequest {
            target,
            secure,
            method: Method::of(method),
            url: url.into(),
            is_logged_elsewhere: false,
            bytes,
            body,
        })
    }

    /// Returns the method as it is sent.
    fn method_text(&self) -> &[u8] {
        self.bytes.split(|byte| *byte == b' ').next().unwrap_or_default()
    }

    /// Leaves the log line to the caller.
    pub(crate) fn logged_elsewhere(mut self) -> HttpRequest {
        self.is_logged_elsewhere = true;
        self
    }

    /// Sets the target to the whole URL, for a request that is sent to a proxy.
    pub(crate) fn through_proxy(mut self, url: &[u8]) -> HttpRequest {
        let start = self.bytes.iter().position(|byte| *byte == b' ').map_or(0, |space| space + 1);
        let length = self.bytes[start..].iter().position(|byte| *byte == b' ').unwrap_or(0);
        let end = url.iter().position(|byte| *byte == b'#').unwrap_or(url.len());
        self.bytes.splice(start..start + length, url[..end].iter().copied());
        self.body = self.body.start + end - length..self.body.end + end - length;
        self.secure = None;
        self
    }

    /// Returns whether the scheme of the URL is `https`.
    pub(crate) fn is_secure(&self) -> bool {
        self.secure.is_some()
    }
}

/// An exchange on a connection, in the connection's protocol.
trait Exchange: Send {
    /// Returns what is to be written.
    fn output(&self) -> &[u8];

    /// Records that bytes were written.
    fn wrote(&mut self, count: usize);

    /// Writes nothing more, because the server does not read.
    fn be_silent(&mut self);

    /// Returns the received bytes that are not parsed yet.
    fn input(&mut self) -> &mut Vec<u8>;

    /// Parses received data; returns whether nothing more of the response comes.
    fn read(&mut self) -> Result<bool, Failure>;

    /// Called when nothing more comes or the connection has ended; as in HAProxy's client, returns the part of the
    /// body that was received.
    fn end(self: Box<Self>) -> Result<HttpResponse, Failure>;
}

/// An exchange of HTTP/1.1.
struct Reader<'a> {
    method: Method,
    /// The rest of the request.
    output: &'a [u8],
    body_max: usize,
    input: Vec<u8>,
    /// The decoder of the body, once the head has been received.
    body: Option<BodyDecoder>,
    response: HttpResponse,
}

impl Reader<'_> {
    fn new(request: &HttpRequest, body_max: usize) -> Reader<'_> {
        Reader {
            method: request.method,
            output: &request.bytes,
            body_max,
            input: Vec::new(),
            body: None,
            response: HttpResponse::default(),
        }
    }
}

impl Exchange for Reader<'_> {
    fn output(&self) -> &[u8] {
        self.output
    }

    fn wrote(&mut self, count: usize) {
        self.output = &self.output[count..];
    }

    fn be_silent(&mut self) {
        self.output = &[];
    }

    fn input(&mut self) -> &mut Vec<u8> {
        &mut self.input
    }

    fn read(&mut self) -> Result<bool, Failure> {
        while self.body.is_none() {
            let parsed = parse_response(&self.input, &Limits::default(), self.method, &mut self.response.head);
            match parsed.map_err(|_| Failure::NoAnswer)? {
                None => return Ok(false),
                Some(head) => {
                    self.input.drain(..head.head_len);
                    if !head.interim {
                        self.body = Some(BodyDecoder::new(head.body));
                    }
                }
            }
        }
        let Some(decoder) = &mut self.body else { return Ok(false) };
        let mut seen = 0;
        let complete = loop {
            if decoder.is_done() {
                break true;
            }
            let rest = &self.input[seen..];
            let (taken, event) = decoder.decode(rest).map_err(|_| Failure::NoAnswer)?;
            match event {
                BodyEvent::Data(range) => self.response.body.extend_from_slice(&rest[range]),
                BodyEvent::End => break true,
                BodyEvent::More if taken == 0 => break false,
                BodyEvent::More => {}
            }
            seen += taken;
            if self.response.body.len() > self.body_max {
                return Err(Failure::NoAnswer);
            }
        };
        self.input.drain(..seen);
        Ok(complete)
    }

    fn end(mut self: Box<Self>) -> Result<HttpResponse, Failure> {
        let decoder = self.body.ok_or(Failure::NoAnswer)?;
        self.response.is_complete = decoder.is_done() || matches!(decoder, BodyDecoder::UntilClose);
        Ok(self.response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(url: &str, destination: Option<&str>) -> Result<(Target, String), Malformed> {
        let made = HttpRequest::new(b"GET", url.as_bytes(), destination.map(str::as_bytes), [], Body::Empty)?;
        let text = String::from_utf8(made.bytes).expect("text");
        Ok((made.target, text.split("\r\naccept").next().unwrap_or_default().to_owned()))
    }

    #[test]
    fn urls_name_who_is_asked_for_what() {
        for (url, destination, target, head) in [
            ("http://1.2.3.4", None, "1.2.3.4:80", "GET / HTTP/1.1\r\nhost: 1.2.3.4"),
            ("http://1.2.3.4:81/a?b", None, "1.2.3.4:81", "GET /a?b HTTP/1.1\r\nhost: 1.2.3.4:81"),
            ("http://[::1]:81?q", None, "[::1]:81", "GET /?q HTTP/1.1\r\nhost: [::1]:81"),
            ("http://www/x", Some("1.2.3.4:5"), "1.2.3.4:5", "GET /x HTTP/1.1\r\nhost: www"),
            ("http://www/x", Some("1.2.3.4"), "1.2.3.4:80", "GET /x HTTP/1.1\r\nhost: www"),
        ] {
            let Ok((found, text)) = bytes(url, destination) else { panic!("{url}") };
            assert_eq!(found, Target::Inet(target.parse().expect("an address")), "{url}");
            assert_eq!(text, head, "{url}");
        }
        assert!(matches!(bytes("http://www:8/", None), Ok((Target::Name(name, 8), _)) if name == "www"));
        for url in [
            "",
            "foo",
            "ftp://a/",
            "http://",
            "http:///x",
            "http://a b/",
            "http://a/\r\nx",
            "http://u@h/",
            "http://a:x/",
        ] {
            assert!(matches!(bytes(url, None), Err(Malformed::Url)), "{url}");
        }
        for destination in ["foo", "fd@3", "", "foo:80"] {
            assert!(matches!(bytes("http://a/", Some(destination)), Err(Malformed::Destination)), "{destination}");
        }
    }

    #[test]
    fn bodies_are_framed_and_what_would_split_a_request_is_refused() {
        let text = |fields: &[(&str, &str)], body| {
            let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            HttpRequest::new(b"POST", b"https://a:9/x", None, fields, body).map(|made| {
                assert_eq!(made.secure.as_deref(), Some("a"));
                String::from_utf8(made.bytes).expect("text")
            })
        };
        let head = "POST /x HTTP/1.1\r\nhost: a:9\r\naccept: */*\r\nuser-agent: HAProxy\r\n";
        assert_eq!(text(&[], Body::Empty).expect("made"), format!("{head}\r\n"));
        assert_eq!(text(&[], Body::Sized(b"ab")).expect("made"), format!("{head}content-length: 2\r\n\r\nab"));
        let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n");
        assert_eq!(text(&[], Body::Chunked(b"ab")).expect("made"), chunked);
        let left_out = [("Content-Length", "1"), ("transfer-encoding", "gzip"), ("Connection", "Keep-Alive")];
        assert_eq!(text(&left_out, Body::Chunked(b"ab")).expect("made"), chunked);
        for (name, value) in [("", "x"), ("a b", "x"), ("a", "x\r\ny: z")] {
            assert_eq!(text(&[(name, value)], Body::Empty).err(), Some(Malformed::Headers), "{name}: {value}");
        }
        let asked = HttpRequest::new(b"GET", b"http://a/x", Some(b"1.2.3.4:8080"), [], Body::Empty).expect("made");
        assert!(asked.through_proxy(b"http://a/x#y").bytes.starts_with(b"GET http://a/x HTTP/1.1\r\nhost: a\r\n"));
        let url = HttpRequest::new(b"GET /x", b"http://a/", None, [], Body::Empty);
        assert_eq!(url.err(), Some(Malformed::Headers));
    }

    fn client() -> Arc<HttpClient> {
        let mut tls = GlobalTls::default();
        tls.client_verify = Verify::None;
        HttpClient::new(&tls, &HttpClientSettings::default(), &[], &Arc::default(), None, None).expect("a client")
    }

    /// Performs a request to a server that sends `response` and closes the connection.
    async fn asked(response: &'static [u8], deadline: Duration, body_max: usize) -> Result<HttpResponse, Failure> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let serving = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = [0; 4096];
            _ = stream.read(&mut request).await.expect("a request");
            stream.write_all(response).await.expect("a response");
            if response.is_empty() {
                std::future::pending::<()>().await;
            }
        };
        let request = HttpRequest::new(b"GET", url.as_bytes(), None, [], Body::Sized(b"x")).expect("a request");
        let client = client();
        let asking = client.request(&request, deadline, body_max);
        tokio::pin!(asking);
        tokio::select! {
            answer = &mut asking => answer,
            () = serving => asking.await,
        }
    }

    #[test]
    fn responses_are_limited_in_size_and_time_and_their_ends_are_known() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let ask = |response, body_max| runtime.block_on(asked(response, Duration::from_secs(60), body_max));
        let whole = ask(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", 3).expect("a response");
        assert_eq!((whole.head.status(), &*whole.body, whole.is_complete), (200, &b"abc"[..], true));
        let whole = ask(b"HTTP/1.1 200 OK\r\n\r\nabc", 3).expect("a response");
        assert_eq!((&*whole.body, whole.is_complete), (&b"abc"[..], true));
        let part = ask(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabc", 9).expect("a response");
        assert_eq!((&*part.body, part.is_complete), (&b"abc"[..], false));
        assert_eq!(ask(b"HTTP/1.1 200 OK\r\n\r\nabc", 2).err(), Some(Failure::NoAnswer));
        assert_eq!(ask(b"HTTP/1.1 200 OK\r\n", 2).err(), Some(Failure::NoAnswer));
        assert_eq!(ask(b"SSH-2.0\r\n\r\n", 2).err(), Some(Failure::NoAnswer));
        let late = runtime.block_on(asked(b"", Duration::from_millis(30), 9));
        assert_eq!(late.err(), Some(Failure::Late));
    }
}
