//! Request and response heads: bytes → [`Message`] and framing.
//!
//! One pass over the received bytes: a table decides about every byte of names and targets, `memchr3` finds the end
//! of a value and with it what may not stand in one (a bare CR, NUL). Offsets are noted in the message on the way and
//! the head is copied into its arena once, when its end has been found. The grammar is HAProxy's and not that of a
//! parser library, because a proxy must accept, fold, merge and refuse what its neighbours do (tabs between the parts
//! of a request line, `HTTP/1.9`, control characters in values, a bare LF as line end), and because bytes that can't
//! begin a request are refused when they come and not when a head's end comes, which for a TLS hello is never.
//!
//! **Invariant:** for every split of the same bytes the result is the same: `None` for a proper prefix of a good head,
//! never for anything else.
//!
//! Cost: about 150 ns for a request with five fields, no allocation once the message is warm (a Connection field that
//! mixes `close` or `keep-alive` with other options allocates). A head that comes byte by byte is read again each
//! time; [`Limits::max_head`] bounds that.

mod fields;
mod line;

use super::field;
use super::{Message, StartLine, Version};
use fields::Fields;
pub(crate) use fields::NAME_MAX;
pub use line::is_token;
use line::{request_line, skip_empty_lines, status_line};

/// The limits of a head.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum length of a head in bytes, `tune.bufsize` minus `tune.maxrewrite`; as in HAProxy, the usable length
    /// is slightly less.
    pub max_head: usize,
    /// `tune.http.maxhdr`: the maximum number of fields of a head, with the end of the head counted as one.
    pub max_fields: usize,
    /// Whether some malformed heads are accepted (`option accept-unsafe-violations-in-http-request`, `-response`).
    pub lenient: bool,
    /// Whether a request of HTTP/1.0 with a body may have a method that hardly ever has one
    /// (`h1-accept-payload-with-any-method`).
    pub any_payload: bool,
    /// Whether a connection stays open after a message with both Content-Length and Transfer-Encoding
    /// (`h1-do-not-close-on-insecure-transfer-encoding`).
    pub keeps_insecure: bool,
}

impl Default for Limits {
    /// HAProxy's defaults: a buffer of 16,384 with 1,024 reserved, and 101 fields.
    fn default() -> Self {
        Limits { max_head: 16_384 - 1_024, max_fields: 101, lenient: false, any_payload: false, keeps_insecure: false }
    }
}

impl Limits {
    /// Limits of heads that this program has written itself: none.
    pub fn of_own_heads() -> Limits {
        Limits { max_head: usize::MAX, max_fields: usize::MAX, lenient: true, ..Limits::default() }
    }

    /// Returns whether a complete head fits. HAProxy does not measure the text but its internal representation, in
    /// which a message takes 79 bytes more and every field 4 more; so this proxy refuses a head at the same length.
    pub(crate) fn admit(&self, head_len: usize, fields: usize) -> bool {
        head_len + 79 + 4 * fields <= self.max_head
    }
}

/// The framing of a body: how its end is found (RFC 9112 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body and the head has no length.
    None,
    /// A number of bytes; 0 where a head declares it.
    Length(u64),
    /// Chunks, trailers.
    Chunked,
    /// A response without length: everything until the server closes.
    UntilClose,
}

/// A request method, as far as it affects the parsing of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Options,
    Trace,
    Connect,
    /// Any other token.
    Other,
}

impl Method {
    /// Returns the method of a request line; methods are case-sensitive.
    pub fn of(token: &[u8]) -> Method {
        match token {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"OPTIONS" => Method::Options,
            b"TRACE" => Method::Trace,
            b"CONNECT" => Method::Connect,
            _ => Method::Other,
        }
    }

    /// Returns the method as it stands in a request line; [`None`] for [`Other`](Method::Other).
    pub fn name(self) -> Option<&'static [u8]> {
        match self {
            Method::Get => Some(b"GET"),
            Method::Head => Some(b"HEAD"),
            Method::Post => Some(b"POST"),
            Method::Put => Some(b"PUT"),
            Method::Delete => Some(b"DELETE"),
            Method::Options => Some(b"OPTIONS"),
            Method::Trace => Some(b"TRACE"),
            Method::Connect => Some(b"CONNECT"),
            Method::Other => None,
        }
    }
}

/// A complete request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Bytes consumed, empty lines before the request line included.
    pub head_len: usize,
    /// Its method.
    pub method: Method,
    /// The framing of its body; never [`Framing::UntilClose`].
    pub body: Framing,
    /// Whether the client wants another request on this connection, and the message allows it. Also `false` if
    /// Transfer-Encoding occurs together with Content-Length or in HTTP/1.0.
    pub keep_alive: bool,
    /// `Expect: 100-continue` in HTTP/1.1.
    pub expect_continue: bool,
    /// `Connection: upgrade` with an Upgrade field that may be honoured: a 101 response turns the connection into a
    /// tunnel.
    pub upgrade: bool,
}

/// A complete response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Bytes consumed.
    pub head_len: usize,
    /// The framing of its body, which depends on the request's method.
    pub body: Framing,
    /// Whether the server's connection may carry another request after this response.
    pub keep_alive: bool,
    /// 100, 102–199: the final response is still to come.
    pub interim: bool,
    /// 101, or a successful answer to CONNECT: both directions become a tunnel.
    pub tunnel: bool,
}

/// The reason for refusing a head. The following bytes on the connection cannot be trusted: it must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// Not a request line or status line.
    StartLine,
    /// The version is not `HTTP/` digit `.` digit, or is missing (HTTP/0.9), or starts HTTP/2.
    Version,
    /// A field name is empty or contains a byte that is not allowed in a token.
    FieldName,
    /// A bare CR or a NUL in a field's value.
    FieldValue,
    /// Content-Length is not one number.
    ContentLength,
    /// Transfer-Encoding is malformed, or a request's does not end in `chunked`.
    TransferEncoding,
    /// A transfer coding other than `chunked`.
    UnknownTransferCoding,
    /// The target is invalid, or target and Host do not fit together.
    Host,
    /// A Host that can't be an authority, or two that differ.
    HostValue,
    /// HTTP/1.0 GET, HEAD or DELETE with a body.
    BodyNotAllowed,
    /// A WebSocket handshake without its key.
    WebSocketKey,
    /// Larger than [`Limits::max_head`].
    TooLarge,
    /// A request line that alone is longer than that.
    TargetTooLong,
    /// More fields than [`Limits::max_fields`].
    TooManyFields,
}

impl HeadError {
    /// Returns the status with which such a request is answered. A server's response of this kind always causes a 502.
    pub fn request_status(self) -> u16 {
        match self {
            HeadError::BodyNotAllowed => 413,
            HeadError::TargetTooLong => 414,
            HeadError::UnknownTransferCoding => 422,
            HeadError::TooLarge => 431,
            _ => 400,
        }
    }
}

impl std::fmt::Display for HeadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            HeadError::StartLine => "malformed start line",
            HeadError::Version => "unsupported HTTP version",
            HeadError::FieldName => "invalid character in a header name",
            HeadError::FieldValue => "invalid character in a header value",
            HeadError::ContentLength => "invalid or conflicting Content-Length",
            HeadError::TransferEncoding => "invalid Transfer-Encoding",
            HeadError::UnknownTransferCoding => "unknown transfer coding",
            HeadError::Host => "Host does not match",
            HeadError::HostValue => "invalid Host",
            HeadError::BodyNotAllowed => "body not allowed with this method in HTTP/1.0",
            HeadError::WebSocketKey => "WebSocket handshake without a valid key",
            HeadError::TooLarge => "head too large",
            HeadError::TargetTooLong => "request line too long",
            HeadError::TooManyFields => "too many header fields",
        })
    }
}

impl std::error::Error for HeadError {}

/// Reads a request head from the start of `buf` into `out`. `None`: more bytes are needed (`out` is then undefined).
///
/// Empty lines before the request line are skipped. In `out`, field names are in lower case, Content-Length is merged
/// into one plain number, repeated equal Host fields are merged into one, `close` and `keep-alive` are removed from
/// Connection, folds are spaces, and a target with an authority is normalized together with Host. All other values are
/// as received.
pub fn parse_request(buf: &[u8], limits: &Limits, out: &mut Message) -> Result<Option<RequestHead>, HeadError> {
    out.clear();
    let Some(skipped) = skip_empty_lines(buf)? else { return line_too_long_or(None, buf, limits) };
    let input = &buf[skipped..];
    let Some(line) = request_line(input, limits.lenient, out)? else { return line_too_long_or(None, buf, limits) };
    let version = line.version;
    let mut fields = Fields::new(true);
    let end = if line.bare { Some(line.end) } else { fields.parse(input, line.end, limits, out)? };
    let Some(end) = end else { return too_large_or(None, buf, limits) };
    if !limits.admit(end, out.entry_count()) {
        return Err(HeadError::TooLarge);
    }
    fields.load(&input[..end], out);
    let Some(version) = version else { return Err(HeadError::Version) };

    let method = line.method;
    let host = fields.host.clone().map(|range| &input[range]);
    let plain_target = input[line.target.start] == b'/' && method != Method::Connect;
    if !plain_target {
        let target = &input[line.target];
        if !field::target_fits_host(method, target, host, limits.lenient) {
            return Err(HeadError::Host);
        }
        let (target, host) = field::normalized(method, target, host);
        if let Some(target) = target {
            out.set_target(&target);
        }
        let host_field = out.fields_named(b"host").next().map(|(id, _)| id);
        if let (Some(id), Some(host)) = (host_field, host) {
            if !field::is_authority(&host) {
                return Err(HeadError::HostValue);
            }
            out.set_value(id, &host);
        }
    }
    if fields.encoding.present && !fields.encoding.chunked {
        return Err(HeadError::TransferEncoding);
    }
    let must_close = fields.drop_length_beside_encoding(version, out);
    let mut body = fields.framing();
    if !limits.any_payload
        && version == Version::Http10
        && !matches!(body, Framing::None | Framing::Length(0))
        && matches!(method, Method::Get | Method::Head | Method::Delete)
    {
        return Err(HeadError::BodyNotAllowed);
    }
    if fields.encoding.other {
        return Err(HeadError::UnknownTransferCoding);
    }
    if method == Method::Connect {
        body = Framing::None;
    }
    if fields.upgrade_http2 && fields.connection.upgrade {
        // If the server accepted, this connection would have to continue in HTTP/2, so the upgrade is not passed on.
        out.delete_all(b"upgrade");
        fields.connection.upgrade = false;
    }
    if fields.connection.upgrade && fields.upgrade_websocket && !fields.websocket_key {
        return Err(HeadError::WebSocketKey);
    }
    Ok(Some(RequestHead {
        head_len: skipped + end,
        method,
        body,
        keep_alive: fields.keep_alive(version) && (!must_close || limits.keeps_insecure),
        expect_continue: fields.expect_continue && version == Version::Http11,
        upgrade: fields.connection.upgrade && fields.upgrade,
    }))
}

/// Reads a response head from the start of `buf` into `out`. `None`: more bytes are needed (`out` is then undefined).
///
/// `request` is the method of the request that is answered, which decides whether there is a body. Fields are treated
/// as in [`parse_request`].
pub fn parse_response(
    buf: &[u8],
    limits: &Limits,
    request: Method,
    out: &mut Message,
) -> Result<Option<ResponseHead>, HeadError> {
    out.clear();
    let Some(skipped) = skip_empty_lines(buf)? else { return too_large_or(None, buf, limits) };
    let input = &buf[skipped..];
    let Some(line) = status_line(input, limits.lenient, out)? else { return too_large_or(None, buf, limits) };
    let mut fields = Fields::new(false);
    let Some(end) = fields.parse(input, line.end, limits, out)? else { return too_large_or(None, buf, limits) };
    if !limits.admit(end, out.entry_count()) {
        return Err(HeadError::TooLarge);
    }
    fields.load(&input[..end], out);

    let status = line.status;
    let must_close = fields.drop_length_beside_encoding(line.version, out);
    if fields.encoding.other {
        return Err(HeadError::UnknownTransferCoding);
    }
    // RFC 9112 6.1: an interim response has no body, so a reader that finds one in it reads the next response wrongly.
    if fields.encoding.present && (100..200).contains(&status) {
        return Err(HeadError::TransferEncoding);
    }
    if line.no_reason {
        out.set_status(status, super::status::reason(status).as_bytes());
    }
    if status == 101 && fields.connection.upgrade && fields.upgrade_websocket && !fields.websocket_key {
        return Err(HeadError::WebSocketKey);
    }
    let tunnel = status == 101 || (request == Method::Connect && (200..300).contains(&status));
    let body = if tunnel || request == Method::Head || matches!(status, 100..=199 | 204 | 304) {
        Framing::None
    } else {
        match fields.framing() {
            Framing::None => Framing::UntilClose,
            framing => framing,
        }
    };
    Ok(Some(ResponseHead {
        head_len: skipped + end,
        body,
        keep_alive: fields.keep_alive(line.version)
            && (!must_close || limits.keeps_insecure)
            && !tunnel
            && body != Framing::UntilClose,
        interim: (100..200).contains(&status) && status != 101,
        tunnel,
    }))
}

/// Parses the head of a response of CGI, which has no status line (RFC 3875 6): the field `Status` has the status, a
/// `Location` without it is a redirection, and anything else is a success, as in HAProxy. `version` is that of the
/// request. A body whose head tells no end is [`Framing::UntilClose`]; `keep_alive` does not count.
pub fn parse_cgi_response(
    buf: &[u8],
    limits: &Limits,
    request: Method,
    version: Version,
    out: &mut Message,
) -> Result<Option<ResponseHead>, HeadError> {
    out.clear();
    let mut fields = Fields::new(false);
    let Some(end) = fields.parse(buf, 0, limits, out)? else { return too_large_or(None, buf, limits) };
    if !limits.admit(end, out.entry_count()) {
        return Err(HeadError::TooLarge);
    }
    fields.load(&buf[..end], out);
    fields.drop_length_beside_encoding(version, out);
    if fields.encoding.other {
        return Err(HeadError::UnknownTransferCoding);
    }
    let (mut status, mut reason) = (0, Vec::new());
    for (_, name, value) in out.fields() {
        match name {
            b"status" => {
                let (code, text) = cgi_status(value);
                (status, reason) = (code, text.to_vec());
            }
            b"location" if status == 0 => (status, reason) = (302, b"Found".to_vec()),
            _ => {}
        }
    }
    if status == 0 {
        (status, reason) = (200, b"OK".to_vec());
    }
    let reason = if reason.is_empty() { super::status::reason(status).as_bytes() } else { &reason };
    out.set_response(version, status, reason);
    if (100..200).contains(&status) || status == 204 {
        out.delete_all(b"content-length");
        out.delete_all(b"transfer-encoding");
    }
    let tunnel = status == 101 || (request == Method::Connect && (200..300).contains(&status));
    let body = if tunnel || request == Method::Head || matches!(status, 100..=199 | 204 | 304) {
        Framing::None
    } else {
        match fields.framing() {
            Framing::None => Framing::UntilClose,
            framing => framing,
        }
    };
    let interim = (100..200).contains(&status) && status != 101;
    Ok(Some(ResponseHead { head_len: end, body, keep_alive: false, interim, tunnel }))
}

/// Returns the code and the text of a field `Status`; 0: it has no code.
fn cgi_status(value: &[u8]) -> (u16, &[u8]) {
    let value = value.trim_ascii_start();
    let end = value.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(value.len());
    let (code, reason) = value.split_at(end);
    let digits = code.iter().take_while(|byte| byte.is_ascii_digit());
    let code = digits.fold(0, |code: u16, digit| code.saturating_mul(10).saturating_add(u16::from(digit - b'0')));
    (code, reason.trim_ascii_start())
}

/// Returns `incomplete`, or an error if the head already fills its room and so can never be complete.
fn too_large_or<T>(incomplete: Option<T>, buf: &[u8], limits: &Limits) -> Result<Option<T>, HeadError> {
    if buf.len() >= limits.max_head { Err(HeadError::TooLarge) } else { Ok(incomplete) }
}

/// Like [`too_large_or`], for a head whose request line is not complete yet.
fn line_too_long_or<T>(incomplete: Option<T>, buf: &[u8], limits: &Limits) -> Result<Option<T>, HeadError> {
    if buf.len() >= limits.max_head { Err(HeadError::TargetTooLong) } else { Ok(incomplete) }
}

/// Fuzz target: any bytes as a request. Panics where an invariant breaks.
pub fn fuzz_request(data: &[u8]) {
    for lenient in [false, true] {
        fuzz_request_of(data, Limits { max_head: 4096, max_fields: 32, lenient, ..Limits::default() });
    }
}

fn fuzz_request_of(data: &[u8], limits: Limits) {
    let mut message = Message::new();
    if let Ok(Some(head)) = parse_request(data, &limits, &mut message) {
        assert!(head.head_len <= data.len() && head.head_len <= limits.max_head);
        assert!(head.body != Framing::UntilClose);
        check_fields(&message, &limits);
        // A written message is parsed as the same message.
        let mut wire = Vec::new();
        super::write_request(&message, head.body, super::ConnectionField::None, &mut wire);
        let roomy = Limits { max_head: 1 << 16, max_fields: 64, ..limits };
        let mut again = Message::new();
        let second = parse_request(&wire, &roomy, &mut again).expect("own output is valid").expect("and complete");
        assert_eq!((second.head_len, second.method), (wire.len(), head.method));
        if head.method != Method::Connect {
            assert_eq!(second.body, head.body);
        }
        assert_eq!(message.start_line(), again.start_line());
    }
}

/// Fuzz target: any bytes as a response. Panics where an invariant breaks.
pub fn fuzz_response(data: &[u8]) {
    let limits = Limits { max_head: 4096, max_fields: 32, ..Limits::default() };
    let mut message = Message::new();
    for method in [Method::Get, Method::Head, Method::Connect] {
        if let Ok(Some(head)) = parse_response(data, &limits, method, &mut message) {
            assert!(head.head_len <= data.len() && head.head_len <= limits.max_head);
            assert!(!(head.keep_alive && head.body == Framing::UntilClose));
            check_fields(&message, &limits);
        }
        if let Ok(Some(head)) = parse_cgi_response(data, &limits, method, Version::Http11, &mut message) {
            assert!(head.head_len <= data.len() && head.head_len <= limits.max_head);
            check_fields(&message, &limits);
        }
    }
}

fn check_fields(message: &Message, limits: &Limits) {
    assert!(message.fields().count() < limits.max_fields);
    for (_, name, value) in message.fields() {
        let odd = limits.lenient && !name.iter().any(|byte| matches!(byte, b':' | b'\r' | b'\n' | 0));
        assert!(!name.is_empty() && (odd || is_token(name)));
        assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n') || *byte == 0 && !limits.lenient));
    }
    if let StartLine::Request { target, .. } = message.start_line() {
        let odd = |byte: &u8| limits.lenient && matches!(byte, b'#' | 0x80..);
        assert!(target.iter().all(|byte| odd(byte) || line::skip_target(&[*byte], 0) == 1));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{ConnectionField, write_request, write_response};
    use super::*;

    /// Returns a parsed request as one line: method, framing, wishes; then the fields as rules see them.
    fn request(bytes: &[u8]) -> Result<Option<String>, HeadError> {
        let mut message = Message::new();
        let Some(head) = parse_request(bytes, &Limits::default(), &mut message)? else { return Ok(None) };
        let mut text = format!("{:?}", head.body);
        for (wish, name) in [
            (head.keep_alive, " keep-alive"),
            (head.expect_continue, " expect"),
            (head.upgrade, " upgrade"),
            (head.head_len != bytes.len(), " rest"),
        ] {
            text.push_str(if wish { name } else { "" });
        }
        for (_, name, value) in message.fields() {
            text.push_str(&format!("|{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
        }
        Ok(Some(text))
    }

    fn check(input: &str, expected: Result<&str, HeadError>) {
        let expected = expected.map(|text| Some(text.to_owned()));
        assert_eq!(request(input.as_bytes()), expected, "{input:?}");
        // A proper prefix of a valid head is never an error, and always an unfinished head.
        if expected.is_ok() {
            let head_len = {
                let mut message = Message::new();
                parse_request(input.as_bytes(), &Limits::default(), &mut message).unwrap().unwrap().head_len
            };
            for at in 0..head_len {
                assert_eq!(request(&input.as_bytes()[..at]), Ok(None), "{input:?} cut at {at}");
            }
        }
    }

    #[test]
    fn requests_that_are_accepted() {
        check("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Ok("None keep-alive|host: a"));
        check("GET / HTTP/1.1\r\n\r\n", Ok("None keep-alive"));
        check("GET / HTTP/1.1\n\n", Ok("None keep-alive"));
        check("\r\n\n\r\nGET / HTTP/1.1\r\n\r\nmore", Ok("None keep-alive rest"));
        check("GET  \t/\t HTTP/1.1\r\n\r\n", Ok("None keep-alive"));
        check("get /~%zz?a=[]|{}\"<>\\^` HTTP/1.9\r\n\r\n", Ok("None keep-alive"));
        check("GET / HTTP/1.0\r\n\r\n", Ok("None"));
        check("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", Ok("None keep-alive"));
        check("GET / HTTP/1.1\r\nConnection: close\r\nA:\r\n\r\n", Ok("None|a: "));
        check("GET / HTTP/1.1\r\nA: b \t\r\nB:\tc\x01\r\n\r\n", Ok("None keep-alive|a: b|b: c\x01"));
        check("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", Ok("Length(5) keep-alive rest|content-length: 5"));
        check(
            "POST / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 0\r\n\r\n",
            Ok("Length(0) keep-alive expect|expect: 100-Continue|content-length: 0"),
        );
        check(
            "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n",
            Ok("Chunked keep-alive|transfer-encoding: Chunked"),
        );
        check(
            "GET /chat HTTP/1.1\r\nUpgrade: x\r\nConnection: keep-alive, Upgrade\r\n\r\n",
            Ok("None keep-alive upgrade|upgrade: x|connection: Upgrade"),
        );
        check(
            "GET / HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
            Ok("None keep-alive|connection: Upgrade"),
        );
        check(
            "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nContent-Length: 3\r\n\r\n",
            Ok("None keep-alive|host: a|content-length: 3"),
        );
    }

    #[test]
    fn folds_become_spaces() {
        check("GET / HTTP/1.1\r\nA: b\r\n c\r\n\td\r\n\r\n", Ok("None keep-alive|a: b   c  \td"));
        check("GET / HTTP/1.1\r\nA:\r\n b\r\nC: d\r\n\r\n", Ok("None keep-alive|a: b|c: d"));
        check("GET / HTTP/1.1\r\nA: b\n \n\r\n", Ok("None keep-alive|a: b"));
        check("GET / HTTP/1.1\r\nContent-Length: 5,\r\n 5\r\n\r\n", Ok("Length(5) keep-alive|content-length: 5"));
        check("GET / HTTP/1.1\r\n A: b\r\n\r\n", Err(HeadError::FieldName));
    }

    #[test]
    fn one_message_has_one_framing() {
        check(
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            Ok("Length(5) keep-alive|content-length: 5"),
        );
        check("POST / HTTP/1.1\r\nContent-Length: 05, 5\r\n\r\n", Ok("Length(5) keep-alive|content-length: 5"));
        check("POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", Err(HeadError::ContentLength));
        check("POST / HTTP/1.1\r\nContent-Length: 5, 6\r\n\r\n", Err(HeadError::ContentLength));
        check("POST / HTTP/1.1\r\nContent-Length: \r\n\r\n", Err(HeadError::ContentLength));
        check(
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            Ok("Chunked|transfer-encoding: chunked"),
        );
        check(
            "POST / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n",
            Ok("Chunked|transfer-encoding: chunked"),
        );
        check("POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", Err(HeadError::TransferEncoding));
        check("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Err(HeadError::UnknownTransferCoding));
        check("POST / HTTP/1.1\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", Err(HeadError::TransferEncoding));
        check(
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            Err(HeadError::TransferEncoding),
        );
        check("GET / HTTP/1.0\r\nContent-Length: 5\r\n\r\n", Err(HeadError::BodyNotAllowed));
    }

    #[test]
    fn requests_that_are_refused() {
        use HeadError::{FieldName, FieldValue, Host, HostValue, StartLine, Version, WebSocketKey};
        check("GET /\r\n\r\n", Err(StartLine));
        check("GET\r\n\r\n", Err(StartLine));
        check("GET / HTTP/1\r\n\r\n", Err(Version));
        check("GET / HTTP/11.1\r\n\r\n", Err(Version));
        check("GET / http/1.1\r\n\r\n", Err(StartLine));
        check("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Err(Version));
        check("GET /\u{e9} HTTP/1.1\r\n\r\n", Err(StartLine));
        check("GET /# HTTP/1.1\r\n\r\n", Err(StartLine));
        check("GET / HTTP/1.1\r\rA: b\r\n\r\n", Err(StartLine));
        check("\rGET / HTTP/1.1\r\n\r\n", Err(StartLine));
        check("\u{16}\u{3}\u{1}", Err(StartLine));
        check("G\0ET", Err(StartLine));
        check(" GET / HTTP/1.1\r\n\r\n", Err(StartLine));
        check("GET / HTTP/1.1\r\nA : b\r\n\r\n", Err(FieldName));
        check("GET / HTTP/1.1\r\n: b\r\n\r\n", Err(FieldName));
        check("GET / HTTP/1.1\r\nA\r\n\r\n", Err(FieldName));
        check("GET / HTTP/1.1\r\nA(: b\r\n\r\n", Err(FieldName));
        check("GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", Err(FieldValue));
        check("GET / HTTP/1.1\r\nA: b\0c\r\n\r\n", Err(FieldValue));
        check("GET / HTTP/1.1\r\nA: b\0", Err(FieldValue));
        check("GET / HTTP/1.1\r\n\rX", Err(FieldName));
        check("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", Err(HostValue));
        check("GET / HTTP/1.1\r\nHost: a\r\nhost: A\r\n\r\n", Ok("None keep-alive|host: a"));
        check("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", Err(Host));
        for host in
            ["a b", "a@b", "a/b", "a, b", "a?b", "a#b", "a\\b", "[::1", "[::1]x", "a[b]", "]", "\u{e9}", "a\x7f"]
        {
            check(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), Err(HostValue));
        }
        check("POST / HTTP/1.1\r\nHost: a\r\n Transfer-Encoding: chunked\r\n\r\n", Err(HostValue));
        check("GET / HTTP/1.1\r\nHost:\r\n [::1]:80\r\n\r\n", Ok("None keep-alive|host: [::1]:80"));
        check("GET / HTTP/1.1\r\nHost: a,b\r\n\r\n", Ok("None keep-alive|host: a,b"));
        let name = |len: usize| format!("GET / HTTP/1.1\r\n{}: b\r\n\r\n", "a".repeat(len));
        check(&name(255), Ok(&format!("None keep-alive|{}: b", "a".repeat(255))));
        check(&name(256), Err(FieldName));
        check("GET a HTTP/1.1\r\n\r\n", Err(Host));
        let keyed = |key: &str| format!("GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n{key}\r\n");
        check(&keyed(""), Err(WebSocketKey));
        check(&keyed("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=\r\n"), Err(WebSocketKey));
    }

    #[test]
    fn limits_hold() {
        let mut message = Message::new();
        let limits = Limits { max_head: 128, max_fields: 3, ..Limits::default() };
        let fields = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(count));
        assert!(parse_request(fields(2).as_bytes(), &limits, &mut message).unwrap().is_some());
        assert_eq!(parse_request(fields(3).as_bytes(), &limits, &mut message), Err(HeadError::TooManyFields));
        // Measured with haproxy 2.6 and its default buffer.
        let head = |len: usize, fields: usize| {
            let small = "X: y\r\n".repeat(fields);
            let target = "u".repeat(len - small.len() - "GET / HTTP/1.1\r\n\r\n".len());
            format!("GET /{target} HTTP/1.1\r\n{small}\r\n")
        };
        for (largest, fields) in [(15_281, 0), (15_277, 1), (15_241, 10), (14_921, 90)] {
            let mut parse = |len| parse_request(head(len, fields).as_bytes(), &Limits::default(), &mut message);
            assert!(matches!(parse(largest), Ok(Some(_))), "{largest} with {fields}");
            assert_eq!(parse(largest + 1), Err(HeadError::TooLarge), "{largest} with {fields}");
        }
        assert_eq!(HeadError::TooLarge.request_status(), 431);
        assert_eq!(HeadError::TargetTooLong.request_status(), 414);
        let long = head(200, 0);
        assert_eq!(parse_request(&long.as_bytes()[..128], &limits, &mut message), Err(HeadError::TargetTooLong));
        assert_eq!(parse_request(&long.as_bytes()[..127], &limits, &mut message), Ok(None));
        let field = format!("GET / HTTP/1.1\r\nA: {}", "b".repeat(128));
        assert_eq!(parse_request(field.as_bytes(), &limits, &mut message), Err(HeadError::TooLarge));
        let empty_lines = "\r\n".repeat(64);
        assert_eq!(parse_request(empty_lines.as_bytes(), &limits, &mut message), Err(HeadError::TargetTooLong));
    }

    #[test]
    fn responses() {
        let check = |method: Method, input: &str, expected: Result<(Framing, bool, bool, bool), HeadError>| {
            let mut message = Message::new();
            let got = parse_response(input.as_bytes(), &Limits::default(), method, &mut message);
            let got = got.map(|head| {
                let head = head.expect("complete");
                (head.body, head.keep_alive, head.interim, head.tunnel)
            });
            assert_eq!(got, expected, "{input:?}");
            if expected.is_ok() {
                for at in 0..input.len() {
                    let cut = parse_response(&input.as_bytes()[..at], &Limits::default(), method, &mut message);
                    assert_eq!(cut, Ok(None), "{input:?} cut at {at}");
                }
            }
        };
        use Method::{Connect, Get, Head};
        let length = Framing::Length(5);
        check(Get, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Ok((length, true, false, false)));
        check(Head, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Ok((Framing::None, true, false, false)));
        check(Get, "HTTP/1.1 200\r\nContent-Length: 5\r\n\r\n", Ok((length, true, false, false)));
        check(Get, "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", Ok((length, false, false, false)));
        check(Get, "HTTP/1.1 200 OK\r\n\r\n", Ok((Framing::UntilClose, false, false, false)));
        check(Get, "HTTP/1.1 204 No\r\n\r\n", Ok((Framing::None, true, false, false)));
        check(Get, "HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n", Ok((Framing::None, true, false, false)));
        check(Get, "HTTP/1.1 100 Continue\r\n\r\n", Ok((Framing::None, true, true, false)));
        check(Get, "HTTP/1.1 101 S\r\n\r\n", Ok((Framing::None, false, false, true)));
        check(Connect, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Ok((Framing::None, false, false, true)));
        check(Get, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Ok((Framing::Chunked, true, false, false)));
        check(
            Get,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
            Ok((Framing::Chunked, false, false, false)),
        );
        let twice = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n";
        check(Get, twice, Err(HeadError::ContentLength));
        check(Get, "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", Err(HeadError::UnknownTransferCoding));
        check(Get, "HTTP/1.1 103 E\r\nTransfer-Encoding: chunked\r\n\r\n", Err(HeadError::TransferEncoding));
        check(Get, "HTTP/1.1 20 OK\r\n\r\n", Err(HeadError::StartLine));
        check(Get, "HTTP/1.1 2000 OK\r\n\r\n", Err(HeadError::StartLine));
        check(Get, "HTTP/1.1 099 OK\r\n\r\n", Err(HeadError::StartLine));
        check(Get, "HTTP/1.1 \r\n\r\n", Err(HeadError::StartLine));
        check(Get, "HTTP/1 200 OK\r\n\r\n", Err(HeadError::Version));
        check(Get, "SSH-2.0-OpenSSH\r\n", Err(HeadError::StartLine));
        check(Get, "HTTP/1.1 200 OK\r\nA b: c\r\n\r\n", Err(HeadError::FieldName));
    }

    #[test]
    fn responses_of_cgi() {
        let check = |input: &str, expected: &str, body: Framing| {
            let (mut message, limits) = (Message::new(), Limits::default());
            let parsed = parse_cgi_response(input.as_bytes(), &limits, Method::Get, Version::Http11, &mut message);
            let head = parsed.expect(input).expect("complete");
            assert_eq!(head.body, body, "{input}");
            let StartLine::Response { status, reason, .. } = message.start_line() else { panic!("a response") };
            assert_eq!(format!("{status} {}", String::from_utf8_lossy(reason)), expected, "{input}");
        };
        check("\r\n", "200 OK", Framing::UntilClose);
        check("a: b\r\n\r\n", "200 OK", Framing::UntilClose);
        check("a: b\n\nbody", "200 OK", Framing::UntilClose);
        check("Location: /x\r\n\r\n", "302 Found", Framing::UntilClose);
        check("Status: 201  Made  so\r\nLocation: /x\r\n\r\n", "201 Made  so", Framing::UntilClose);
        check("Location: /x\r\nstatus: 301 Moved\r\n\r\n", "301 Moved", Framing::UntilClose);
        check("Status: 404\r\nContent-Length: 3\r\n\r\n", "404 Not Found", Framing::Length(3));
        check("Status: x\r\n\r\n", "200 OK", Framing::UntilClose);
        check("Status: 204 No\r\nContent-Length: 3\r\n\r\n", "204 No", Framing::None);
        check("Transfer-Encoding: chunked\r\n\r\n", "200 OK", Framing::Chunked);
        let (mut message, limits) = (Message::new(), Limits::default());
        let mut parse = |input: &[u8]| {
            parse_cgi_response(input, &limits, Method::Get, Version::Http11, &mut message).map(|head| head.is_some())
        };
        assert_eq!(parse(b""), Ok(false));
        assert_eq!(parse(b"a: b\r\n"), Ok(false));
        assert_eq!(parse(b"no field\r\n\r\n"), Err(HeadError::FieldName));
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\n\r\n"), Err(HeadError::FieldName));
        assert_eq!(parse(b"Transfer-Encoding: gzip, chunked\r\n\r\n"), Err(HeadError::UnknownTransferCoding));
    }

    #[test]
    fn heads_are_written_with_the_framing_they_get() {
        let check = |input: &str, body: Framing, connection, expected: &str| {
            let mut message = Message::new();
            let mut wire = Vec::new();
            if input.starts_with("HTTP") {
                parse_response(input.as_bytes(), &Limits::default(), Method::Get, &mut message).unwrap().unwrap();
                write_response(&message, body, connection, &mut wire);
            } else {
                parse_request(input.as_bytes(), &Limits::default(), &mut message).unwrap().unwrap();
                write_request(&message, body, connection, &mut wire);
            }
            assert_eq!(String::from_utf8(wire).unwrap(), expected);
        };
        use ConnectionField::{Close, KeepAlive, None};
        check("GET / HTTP/1.1\r\nA: b\r\n\r\n", Framing::None, None, "GET / HTTP/1.1\r\na: b\r\n\r\n");
        check("GET / HTTP/1.0\r\n\r\n", Framing::None, KeepAlive, "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
        check(
            "POST / HTTP/1.1\r\nContent-Length: 3\r\nB: c\r\n\r\n",
            Framing::Length(3),
            None,
            "POST / HTTP/1.1\r\ncontent-length: 3\r\nb: c\r\n\r\n",
        );
        check(
            "POST / HTTP/1.1\r\nContent-Length: 3\r\nB: c\r\n\r\n",
            Framing::Chunked,
            Close,
            "POST / HTTP/1.1\r\nb: c\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        check(
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n",
            Framing::None,
            None,
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 3\r\n\r\n",
        );
        check("HTTP/1.1 204 No\r\nContent-Length: 3\r\n\r\n", Framing::None, None, "HTTP/1.1 204 No\r\n\r\n");
        check(
            "GET / HTTP/1.1\r\nTE: gzip, trailers\r\n\r\n",
            Framing::None,
            None,
            "GET / HTTP/1.1\r\nte: trailers\r\n\r\n",
        );
    }

    /// Pieces from which nearly valid heads are made.
    fn pieces() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop::sample::select(vec![
            "GET ",
            "POST ",
            "/ ",
            "http://a/ ",
            "* ",
            "HTTP/1.1",
            "HTTP/1.0",
            " 200 OK",
            "\r\n",
            "\r\n",
            "\r\n",
            "\n",
            "\r",
            "\0",
            " ",
            "\t",
            ":",
            "Host: a",
            "Host: b",
            "Content-Length: ",
            "5",
            ", 5",
            "Transfer-Encoding: ",
            "chunked",
            "gzip",
            "Connection: ",
            "close",
            "keep-alive",
            "upgrade",
            "Upgrade: ",
            "websocket",
            "X: y",
            "é",
        ]);
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn fuzz_on_generated_heads(data in pieces()) {
            fuzz_request(&data);
            fuzz_response(&data);
        }

        #[test]
        fn fuzz_on_any_bytes(data in prop::collection::vec(any::<u8>(), 0..256)) {
            fuzz_request(&data);
            fuzz_response(&data);
        }

        #[test]
        fn a_prefix_is_unfinished_or_already_as_wrong_as_the_whole(data in pieces()) {
            let whole = request(&data);
            for at in 0..data.len() {
                let part = request(&data[..at]);
                match &whole {
                    Ok(None) => prop_assert_eq!(part, Ok(None)),
                    // A cut behind the head's end is the whole head.
                    Ok(Some(_)) => prop_assert!(part.is_ok()),
                    Err(error) => prop_assert!(part == Ok(None) || part == Err(*error)),
                }
            }
        }
    }
}
