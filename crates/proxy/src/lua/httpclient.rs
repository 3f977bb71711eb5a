//! `core.httpclient`: requests of scripts over the worker's own runtime.
//!
//! A request is one exchange on its own connection, made while the script waits, so it blocks no other task and is
//! dropped with its script. It is sent as by HAProxy's client: the script's fields in lower case, `host`, `accept` and
//! `user-agent` unless given, and a body in chunks. Failures have HAProxy's statuses and pages: 503 if the server
//! cannot be reached, 502 for an invalid response, 504 after a timeout. Redirects are returned like any other response.
//!
//! Differences: connections are not kept, a missing response is not requested again, and names are resolved by the
//! system, in HAProxy by its `resolvers`. A name or value that would split the request is an error.
//!
//! Limits: [`RETRIES`] more attempts to connect, [`CONNECT_TIMEOUT`] each; heads of responses as large as any server's;
//! [`BODY_MAX`] bytes of a body, beyond which the response is invalid. `timeout` limits every wait for the other side.

use std::ffi::{CStr, c_int};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_script::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use sluicegate_script::{check_bytes, continuation, function, push_bytes, raise, to_bytes};
use sluicegate_transport::Socket;
use sluicegate_wire::http::{
    BodyDecoder, BodyEvent, Limits, Message, Method, Version, parse_response, status, write_chunk, write_last_chunk,
};

use super::host::{host, set_functions, wait_for};
use super::http::{is_field_name, is_field_value, push_header_table};
use super::operation::{Operation, Outcome, Target};
use super::tls::ScriptTls;

/// The maximum size in bytes of an answer's body.
const BODY_MAX: usize = 64 << 20;
/// The number of bytes requested from the kernel at a time.
const CHUNK: usize = 16 << 10;
/// HAProxy's `httpclient.timeout.connect`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// HAProxy's `httpclient.retries`.
const RETRIES: u32 = 3;
/// The pause between two attempts.
const TURN_AROUND: Duration = Duration::from_secs(1);

/// A request that is to be sent.
pub(super) struct Request {
    target: Target,
    /// The TLS of an `https` URL, and the name that the server is verified for.
    tls: Option<(Arc<ScriptTls>, String)>,
    method: Method,
    /// Head and body as they are sent.
    bytes: Vec<u8>,
    timeout: Option<Duration>,
}

/// The response, or the page that replaces it.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) head: Message,
    body: Vec<u8>,
}

/// The reason for a missing response.
enum Failure {
    /// The name has no address.
    Unresolved,
    Unreachable,
    NoAnswer,
    Late,
}

impl Answer {
    fn failed(failure: Failure) -> Answer {
        let mut answer = Answer::default();
        let status = match failure {
            Failure::Unresolved => {
                // HAProxy has no page for it either.
                answer.head.set_response(Version::Http11, 503, status::reason(503).as_bytes());
                answer.head.add_lower(b"content-length", b"0");
                return answer;
            }
            Failure::Unreachable => 503,
            Failure::NoAnswer => 502,
            Failure::Late => 504,
        };
        answer.body.extend_from_slice(status::error_page(status).fill(&mut answer.head));
        answer
    }
}

impl Request {
    /// Performs the request; every failure is also returned as an answer.
    pub(super) async fn perform(self) -> Answer {
        match self.exchange().await {
            Ok(answer) => answer,
            Err(failure) => Answer::failed(failure),
        }
    }

    async fn connect(&self) -> Result<Socket, Failure> {
        let mut targets = vec![self.target.clone()];
        if let Target::Name(name, port) = &self.target {
            let found = crate::hosts::lookup(name, *port).await.map_err(|_| Failure::Unresolved)?;
            targets = found.into_iter().map(Target::Inet).collect();
            if targets.is_empty() {
                return Err(Failure::Unresolved);
            }
        }
        for attempt in 0..=RETRIES {
            if attempt > 0 {
                tokio::time::sleep(TURN_AROUND).await;
            }
            for target in &targets {
                let Ok(Ok(mut stream)) = tokio::time::timeout(CONNECT_TIMEOUT, target.clone().connect()).await else {
                    continue;
                };
                if let Some((tls, host)) = &self.tls {
                    let securing = tls.secure_request(&mut stream, host);
                    if !matches!(tokio::time::timeout(CONNECT_TIMEOUT, securing).await, Ok(Ok(()))) {
                        return Err(Failure::Unreachable);
                    }
                }
                return Ok(stream);
            }
        }
        Err(Failure::Unreachable)
    }

    async fn exchange(&self) -> Result<Answer, Failure> {
        let stream = self.connect().await?;
        let mut reader = Reader::new(self.method);
        let mut written = 0;
        loop {
            if written < self.bytes.len() {
                match stream.try_write(&self.bytes[written..]) {
                    Ok(count) => {
                        written += count;
                        continue;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // An answer may have come before the request was read to its end.
                    Err(_) => written = self.bytes.len(),
                }
            }
            reader.input.reserve(CHUNK);
            match stream.try_read_buf(&mut reader.input) {
                Ok(0) => return reader.end(),
                Ok(_) => {
                    if reader.read()? {
                        return Ok(reader.answer);
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return reader.end(),
            }
            let more = written < self.bytes.len();
            let ready = async {
                // An error of readiness shows again in the attempt that follows.
                tokio::select! {
                    _ = stream.readable() => {}
                    _ = stream.writable(), if more => {}
                }
            };
            match self.timeout {
                None => ready.await,
                Some(limit) => tokio::time::timeout(limit, ready).await.map_err(|_| Failure::Late)?,
            }
        }
    }
}

/// An answer that is being received.
struct Reader {
    method: Method,
    input: Vec<u8>,
    /// The decoder of the body, once the head has been received.
    body: Option<BodyDecoder>,
    answer: Answer,
}

impl Reader {
    fn new(method: Method) -> Reader {
        Reader { method, input: Vec::new(), body: None, answer: Answer::default() }
    }

    /// Parses received data; returns whether the response is complete.
    fn read(&mut self) -> Result<bool, Failure> {
        while self.body.is_none() {
            let parsed = parse_response(&self.input, &Limits::default(), self.method, &mut self.answer.head);
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
                BodyEvent::Data(range) => self.answer.body.extend_from_slice(&rest[range]),
                BodyEvent::End => break true,
                BodyEvent::More if taken == 0 => break false,
                BodyEvent::More => {}
            }
            seen += taken;
            if self.answer.body.len() > BODY_MAX {
                return Err(Failure::NoAnswer);
            }
        };
        self.input.drain(..seen);
        Ok(complete)
    }

    /// Called when the connection has ended; as in HAProxy's client, returns the part of the body that was received.
    fn end(self) -> Result<Answer, Failure> {
        if self.body.is_some() { Ok(self.answer) } else { Err(Failure::NoAnswer) }
    }
}

/// Adds the native function that the class uses to the table on top.
pub(super) unsafe fn set_native(lua: *mut lua_State) {
    const NATIVE: [(&CStr, lua_CFunction); 1] = [(c"http", function!(request))];
    // SAFETY: called inside a protected call, with a table on top.
    unsafe { set_functions(lua, &NATIVE) };
}

/// The reason why a request cannot be started.
enum Wrong {
    Url,
    Tls,
    Destination,
    Headers,
}

/// `http(METHOD, url, destination, fields, body, timeout)`: returns the answer's table, or nil and the reason why it
/// cannot be requested. `fields` contains names and values alternately, each preceded by its length.
unsafe fn request(lua: *mut lua_State) -> c_int {
    // SAFETY: arguments are checked first, then the request is made and moved into the host.
    unsafe {
        let (method, url, fields) = (check_bytes(lua, 1), check_bytes(lua, 2), check_bytes(lua, 4));
        let optional = |index| if ffi::lua_type(lua, index) > ffi::LUA_TNIL { to_bytes(lua, index) } else { None };
        let (destination, body) = (optional(3), optional(5));
        let timeout = match ffi::lua_type(lua, 6) {
            ffi::LUA_TNONE | ffi::LUA_TNIL => None,
            _ => Some(Duration::from_millis(ffi::luaL_checkinteger(lua, 6).clamp(1, i64::from(u32::MAX)) as u64)),
        };
        let tls = host(lua).shared.tls.read().clone();
        let made = make(method, url, destination, fields, body, timeout, tls).map(Box::new);
        let wrong = match made {
            Ok(request) => return wait_for(lua, Operation::Http(request), 0, continuation!(answered)),
            Err(Wrong::Url) => c"couldn't start the httpclient",
            Err(Wrong::Tls) => c"httpclient: SSL was disabled (wrong verify/ca-file)!",
            Err(Wrong::Destination) => c"Can't use the 'dst' argument",
            Err(Wrong::Headers) => c"invalid header",
        };
        ffi::lua_pushnil(lua);
        ffi::lua_pushstring(lua, wrong.as_ptr());
        2
    }
}

/// Returns the pairs of names and values, which alternate.
fn pairs(mut rest: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut text = move || {
        let (length, behind) = rest.split_first_chunk::<4>()?;
        let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = behind;
        Some(text)
    };
    std::iter::from_fn(move || Some((text()?, text()?)))
}

fn make(
    method: &[u8],
    url: &[u8],
    destination: Option<&[u8]>,
    fields: &[u8],
    body: Option<&[u8]>,
    timeout: Option<Duration>,
    tls: Option<Arc<ScriptTls>>,
) -> Result<Request, Wrong> {
    let (rest, tls, default_port) = match (url.strip_prefix(b"https://"), url.strip_prefix(b"http://")) {
        (Some(rest), _) => (rest, Some(tls.filter(|tls| tls.has_https()).ok_or(Wrong::Tls)?), 443),
        (None, Some(rest)) => (rest, None, 80),
        (None, None) => return Err(Wrong::Url),
    };
    let rest = std::str::from_utf8(rest).map_err(|_| Wrong::Url)?;
    if rest.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return Err(Wrong::Url);
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let named = match (Target::parse(authority, None), authority.rsplit_once(':')) {
        (Some(target), _) => Some(target),
        // A port that is none.
        (None, Some(_)) if !authority.ends_with(']') => None,
        _ => Target::parse(authority, Some(default_port)),
    };
    let named = named.filter(|target| matches!(target, Target::Inet(_) | Target::Name(..))).ok_or(Wrong::Url)?;
    let target = match destination {
        None => named,
        Some(text) => {
            let text = std::str::from_utf8(text).map_err(|_| Wrong::Destination)?;
            match Target::parse(text, None).or_else(|| Target::parse(text, Some(default_port))) {
                None | Some(Target::Name(..) | Target::Descriptor(_)) => return Err(Wrong::Destination),
                Some(target) => target,
            }
        }
    };
    let mut bytes = Vec::with_capacity(256 + fields.len() + body.map_or(0, <[u8]>::len));
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
    for (name, value) in pairs(fields) {
        // What frames the body is not the script's.
        let framing = name.eq_ignore_ascii_case(b"content-length") || name.eq_ignore_ascii_case(b"transfer-encoding");
        if !is_field_name(name) || !is_field_value(value) || framing {
            return Err(Wrong::Headers);
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
    if body.is_some() {
        field(b"transfer-encoding", b"chunked");
    }
    bytes.extend_from_slice(b"\r\n");
    if let Some(body) = body {
        write_chunk(body, &mut bytes);
        write_last_chunk(std::iter::empty(), &mut bytes);
    }
    let name_of_host = name_of_host.split(|byte| *byte == b':').next().unwrap_or_default();
    let tls = tls.map(|tls| (tls, String::from_utf8_lossy(name_of_host).into_owned()));
    Ok(Request { target, tls, method: Method::of(method), bytes, timeout })
}

unsafe fn answered(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the answer stands in the host while it is pushed, and is looked up anew for each of its parts.
    unsafe {
        match host(lua).outcome.take() {
            Some(Outcome::Http(answer)) => host(lua).http = Some(answer),
            other => {
                drop(other);
                raise(lua, c"the answer was lost");
            }
        }
        ffi::luaL_checkstack(lua, 8, c"out of stack".as_ptr());
        ffi::lua_createtable(lua, 0, 4);
        let status = host(lua).http.as_ref().map_or(0, |answer| answer.head.status());
        ffi::lua_pushinteger(lua, i64::from(status));
        ffi::lua_setfield(lua, -2, c"status".as_ptr());
        push_bytes(lua, host(lua).http.as_ref().map_or(b"", |answer| answer.head.target()));
        ffi::lua_setfield(lua, -2, c"reason".as_ptr());
        push_header_table(lua, |host| host.http.as_ref().map(|answer| &answer.head));
        ffi::lua_setfield(lua, -2, c"headers".as_ptr());
        push_bytes(lua, host(lua).http.as_ref().map_or(b"", |answer| &answer.body));
        ffi::lua_setfield(lua, -2, c"body".as_ptr());
        host(lua).http = None;
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(url: &str, destination: Option<&str>) -> Result<(Target, String), Wrong> {
        let made = make(b"GET", url.as_bytes(), destination.map(str::as_bytes), b"", None, None, None)?;
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
            assert!(matches!(bytes(url, None), Err(Wrong::Url)), "{url}");
        }
        assert!(matches!(bytes("https://a/", None), Err(Wrong::Tls)));
        for destination in ["foo", "fd@3", "", "foo:80"] {
            assert!(matches!(bytes("http://a/", Some(destination)), Err(Wrong::Destination)), "{destination}");
        }
    }
}
