//! Requests prepared before the load starts, and responses of HTTP/1.1 parsed to their end.
//!
//! The requests of HTTP/2 are prepared in the same form, with an absolute target, whose authority it sends.
//!
//! A response is parsed by `wire`, byte by byte as in a proxy: Content-Length, chunks, an end by close,
//! no body after HEAD, 204 and 304, interim responses skipped. A malformed response is an error of its request.

use sluicegate_wire::http::{BodyDecoder, BodyEvent, Limits, Message, Method, parse_request, parse_response};

use super::protocol::{Answer, Outcome, Protocol, Written};
use super::schedule::weighted;
use super::target::Url;
use super::template::{KeySpace, Keys, Template};

/// The maximum size of a response's head, in bytes.
pub(super) const MAX_HEAD: usize = 64 * 1024;

/// The requests of one run, in the order in which they are sent repeatedly.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HttpPlan {
    method: Method,
    requests: Vec<Request>,
    method_name: String,
    /// The numbers of the requests in the order in which they are sent repeatedly; `None`: each once.
    order: Option<Vec<usize>>,
    /// The requests' names, if they are told apart in the report.
    names: Option<Vec<String>>,
    /// Whether each connection walks the requests by itself.
    is_walked_by_each: bool,
}

/// The maximum number of requests that are told apart: each has a histogram of its own in every thread.
const MAX_NAMES: usize = 32;

#[derive(Clone, Debug, PartialEq)]
enum Request {
    /// Head and body together: the body's length is always the same.
    Whole(Template),
    /// The head up to the length, and a body whose length depends on its keys.
    Parts(Template, Template),
}

/// The options for all requests of a run.
#[derive(Clone, Debug)]
pub(crate) struct HttpOptions {
    pub(crate) method: Option<String>,
    pub(crate) headers: Vec<String>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) keep_alive: bool,
    pub(crate) data_size: usize,
    /// How often each URL is requested, relative to the others; `None`: all alike.
    pub(crate) ratios: Option<Vec<u64>>,
    pub(crate) http2: bool,
    /// How the requests of another load generator are sent, which knows no placeholders: as they are, and by each
    /// connection from the first URL on, not in turns of all connections.
    pub(crate) is_plain: bool,
}

impl HttpPlan {
    /// Encodes the requests, and parses each as a server will, so that no invalid one is sent.
    pub(crate) fn new(urls: &[Url], options: &HttpOptions, keys: &KeySpace) -> Result<HttpPlan, String> {
        let default = if options.body.is_some() { "POST" } else { "GET" };
        let method = options.method.clone().unwrap_or(default.to_owned());
        if method == "CONNECT" {
            return Err("a CONNECT request makes a tunnel, not an answer".to_owned());
        }
        let mut fields = String::new();
        let mut own_host = None;
        let mut has_agent = false;
        for header in &options.headers {
            let (name, value) =
                header.split_once(':').ok_or_else(|| format!("--header '{header}': 'NAME: VALUE' is expected"))?;
            let (name, value) = (name.trim(), value.trim());
            match name.to_ascii_lowercase().as_str() {
                "content-length" | "transfer-encoding" | "connection" => {
                    return Err(format!("--header '{header}': the generator sets {name} itself"));
                }
                "upgrade" | "keep-alive" | "proxy-connection" if options.http2 => {
                    return Err(format!("--header '{header}': HTTP/2 has no {name}"));
                }
                "te" if options.http2 && value != "trailers" => {
                    return Err(format!("--header '{header}': HTTP/2 knows 'trailers' alone"));
                }
                "host" => own_host = Some(value.to_owned()),
                "user-agent" => has_agent = true,
                _ => {}
            }
            if value.contains(['\r', '\n', '\0']) {
                return Err(format!("--header '{header}': a value is one line"));
            }
            fields.push_str(&format!("{name}: {value}\r\n"));
        }
        if !has_agent {
            fields.push_str(concat!("User-Agent: sluicegate-bench/", env!("CARGO_PKG_VERSION"), "\r\n"));
        }
        if !options.keep_alive && !options.http2 {
            fields.push_str("Connection: close\r\n");
        }
        let data = vec![b'x'; options.data_size];
        let template =
            |bytes: &[u8]| if options.is_plain { Template::plain(bytes) } else { Template::new(bytes, &data) };
        let body = template(options.body.as_deref().unwrap_or_default());
        let says_length = options.body.is_some() || matches!(method.as_str(), "POST" | "PUT" | "PATCH");
        let mut requests = Vec::with_capacity(urls.len());
        for url in urls {
            let host = if own_host.is_some() { String::new() } else { format!("Host: {}\r\n", url.authority) };
            let origin = if options.http2 {
                let scheme = if url.is_tls { "https" } else { "http" };
                format!("{scheme}://{}", own_host.as_ref().unwrap_or(&url.authority))
            } else {
                String::new()
            };
            let head = format!("{method} {origin}{} HTTP/1.1\r\n{host}{fields}", url.target);
            let request = match body.fixed() {
                Some(fixed) => {
                    let length =
                        if says_length { format!("Content-Length: {}\r\n", fixed.len()) } else { String::new() };
                    let mut whole = template(format!("{head}{length}\r\n").as_bytes());
                    whole.append(fixed);
                    Request::Whole(whole)
                }
                None => Request::Parts(template(head.as_bytes()), body.clone()),
            };
            check(&request, keys).map_err(|reason| format!("{method} {}: {reason}", url.target))?;
            requests.push(request);
        }
        if requests.is_empty() {
            return Err("no URL".to_owned());
        }
        let is_told = !options.is_plain && (2..=MAX_NAMES).contains(&urls.len());
        Ok(HttpPlan {
            method: Method::of(method.as_bytes()),
            requests,
            names: is_told.then(|| urls.iter().map(|url| url.target.clone()).collect()),
            order: options.ratios.as_deref().map(weighted).transpose()?,
            method_name: method,
            is_walked_by_each: options.is_plain,
        })
    }

    /// Returns how many requests are sent before the first is sent again.
    pub(super) fn cycle(&self) -> usize {
        self.order.as_ref().map_or(self.requests.len(), Vec::len)
    }

    /// Returns the number of the request at a place of the cycle.
    pub(super) fn at(&self, place: usize) -> usize {
        self.order.as_ref().map_or(place, |order| order[place])
    }

    /// Returns the number of a request among those that are told apart.
    pub(super) fn command(&self, number: usize) -> u16 {
        if self.names.is_some() { number as u16 } else { 0 }
    }

    /// Returns the names of the requests that are told apart.
    pub(super) fn names(&self) -> Vec<String> {
        self.names.clone().unwrap_or_else(|| vec![self.method_name.clone()])
    }

    /// Returns the method.
    pub(crate) fn method(&self) -> &str {
        &self.method_name
    }

    /// Returns a request without placeholders, in the form of HTTP/1.1.
    pub(super) fn fixed(&self, number: usize) -> Option<&[u8]> {
        match &self.requests[number] {
            Request::Whole(template) => template.fixed(),
            Request::Parts(..) => None,
        }
    }

    /// Appends a request in the form of HTTP/1.1.
    pub(super) fn write(&self, number: usize, keys: &mut Keys, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
        write(&self.requests[number], keys, scratch, out);
    }

    /// Returns the number of different requests.
    pub(crate) fn count(&self) -> usize {
        self.requests.len()
    }
}

/// Checks that a sample of the request is exactly one request to the parser.
fn check(request: &Request, keys: &KeySpace) -> Result<(), String> {
    let mut bytes = Vec::new();
    write(request, &mut Keys::new(keys.clone(), 1, 0, 1), &mut Vec::new(), &mut bytes);
    let limits = Limits { max_head: 1 << 20, max_fields: 1000, ..Limits::default() };
    let mut message = Message::new();
    let head = match parse_request(&bytes, &limits, &mut message) {
        Ok(Some(head)) => head,
        Ok(None) => return Err("the request's head has no end".to_owned()),
        Err(error) => return Err(format!("not a request: {error}")),
    };
    let mut body = BodyDecoder::new(head.body);
    let mut at = head.head_len;
    loop {
        match body.decode(&bytes[at..]) {
            Ok((taken, BodyEvent::Data(_))) => at += taken,
            Ok((taken, BodyEvent::End)) if at + taken == bytes.len() => return Ok(()),
            _ => return Err("the body does not end where the request ends".to_owned()),
        }
    }
}

/// Appends one request. If a request names a key several times, it is the same key.
fn write(request: &Request, keys: &mut Keys, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
    let mut key: Option<(usize, usize)> = None;
    let write_key = |out: &mut Vec<u8>| match key {
        Some((start, end)) => out.extend_from_within(start..end),
        None => {
            let start = out.len();
            keys.write(out);
            key = Some((start, out.len()));
        }
    };
    match request {
        Request::Whole(template) => template.write(out, write_key),
        Request::Parts(head, body) => {
            // The body is written first, to a separate buffer, because the head contains its length.
            scratch.clear();
            let mut key = Vec::new();
            keys.write(&mut key);
            body.write(scratch, |out| out.extend_from_slice(&key));
            head.write(out, |out| out.extend_from_slice(&key));
            out.extend_from_slice(b"Content-Length: ");
            out.extend_from_slice(itoa::Buffer::new().format(scratch.len()).as_bytes());
            out.extend_from_slice(b"\r\n\r\n");
            out.extend_from_slice(scratch);
        }
    }
}

/// HTTP with its state; each thread has its own instance.
pub(super) struct Http {
    plan: HttpPlan,
    /// The keys: one source for all requests, or one for each URL.
    keys: Vec<Keys>,
    /// The index of the next request; one for each connection if each walks them by itself.
    next: Vec<usize>,
    scratch: Vec<u8>,
    limits: Limits,
    message: Message,
}

impl Http {
    pub(super) fn new(plan: HttpPlan, keys: Keys, thread: usize) -> Http {
        let next = if plan.is_walked_by_each { 0 } else { thread % plan.cycle() };
        let keys = keys.of_each(plan.requests.len());
        let limits = Limits { max_head: MAX_HEAD, max_fields: 1000, ..Limits::default() };
        Http { plan, keys, next: vec![next], scratch: Vec::new(), limits, message: Message::new() }
    }
}

/// The state of a response that is being received.
#[derive(Default)]
pub(super) struct HttpSession {
    /// After the head: the status, whether the connection is kept, and the body.
    body: Option<(u16, bool, BodyDecoder)>,
    received: u64,
}

impl Protocol for Http {
    type Session = HttpSession;

    fn start(&self, _: &mut HttpSession, _: &mut Vec<u8>) -> u32 {
        0
    }

    fn write(&mut self, _: &mut HttpSession, client: usize, out: &mut Vec<u8>) -> Written {
        let walker = if self.plan.is_walked_by_each { client } else { 0 };
        if walker >= self.next.len() {
            self.next.resize(walker + 1, 0);
        }
        let next = &mut self.next[walker];
        let number = self.plan.at(*next);
        let own = number % self.keys.len();
        self.plan.write(number, &mut self.keys[own], &mut self.scratch, out);
        *next += 1;
        if *next == self.plan.cycle() {
            *next = 0;
        }
        Written { command: self.plan.command(number), tag: 0 }
    }

    fn read(
        &mut self,
        session: &mut HttpSession,
        buf: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<(usize, Option<Answer>), String> {
        let mut at = 0;
        while session.body.is_none() {
            let head = parse_response(&buf[at..], &self.limits, self.plan.method, &mut self.message)
                .map_err(|error| error.to_string())?;
            let Some(head) = head else { return Ok((at, None)) };
            at += head.head_len;
            if head.tunnel {
                return Err(format!("a {} that was not asked for", self.message.status()));
            }
            if !head.interim {
                session.body = Some((self.message.status(), head.keep_alive, BodyDecoder::new(head.body)));
                session.received = 0;
            }
        }
        let Some((status, keep_alive, body)) = &mut session.body else { return Ok((at, None)) };
        loop {
            let (taken, event) = body.decode(&buf[at..]).map_err(|error| error.to_string())?;
            at += taken;
            match event {
                BodyEvent::Data(range) => session.received += range.len() as u64,
                BodyEvent::More => return Ok((at, None)),
                BodyEvent::End => {
                    let outcome = Outcome::Status(*status);
                    let answer = Answer { tag: 0, outcome, body: session.received, keep_alive: *keep_alive };
                    session.body = None;
                    return Ok((at, Some(answer)));
                }
            }
        }
    }

    fn end(&mut self, session: &mut HttpSession) -> Option<Answer> {
        match session.body.take() {
            Some((status, _, BodyDecoder::UntilClose)) => {
                Some(Answer { tag: 0, outcome: Outcome::Status(status), body: session.received, keep_alive: false })
            }
            other => {
                session.body = other;
                None
            }
        }
    }

    fn is_within(&self, session: &HttpSession) -> bool {
        session.body.is_some()
    }

    fn commands(&self) -> Vec<String> {
        self.plan.names()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::template::KeyPattern;

    fn keys() -> KeySpace {
        KeySpace { prefix: String::new(), min: 5, max: 500, pattern: KeyPattern::Sequential }
    }

    fn plan(url: &str, headers: &[&str], body: Option<&str>, method: Option<&str>) -> Result<HttpPlan, String> {
        let options = HttpOptions {
            method: method.map(str::to_owned),
            headers: headers.iter().map(|header| (*header).to_owned()).collect(),
            body: body.map(|body| body.as_bytes().to_vec()),
            keep_alive: true,
            data_size: 3,
            ratios: None,
            http2: false,
            is_plain: false,
        };
        HttpPlan::new(&[Url::parse(url, false)?], &options, &keys())
    }

    fn check_request(found: Result<HttpPlan, String>, expected: Result<&str, &str>) {
        match (found, expected) {
            (Ok(plan), Ok(expected)) => {
                let mut http = Http::new(plan, Keys::new(keys(), 1, 0, 1), 0);
                let mut out = Vec::new();
                http.write(&mut HttpSession::default(), 0, &mut out);
                let agent = concat!("User-Agent: sluicegate-bench/", env!("CARGO_PKG_VERSION"), "\r\n");
                assert_eq!(String::from_utf8_lossy(&out).replace(agent, ""), expected);
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn requests() {
        check_request(plan("http://h:1/a", &[], None, None), Ok("GET /a HTTP/1.1\r\nHost: h:1\r\n\r\n"));
        check_request(
            plan("http://h/__key__?__data__", &["X: __key__"], None, Some("DELETE")),
            Ok("DELETE /5?xxx HTTP/1.1\r\nHost: h\r\nX: 5\r\n\r\n"),
        );
        check_request(
            plan("http://h/", &["host: other"], Some("a=__data__"), None),
            Ok("POST / HTTP/1.1\r\nhost: other\r\nContent-Length: 5\r\n\r\na=xxx"),
        );
        check_request(
            plan("http://h/__key__", &[], Some("k=__key__"), Some("PUT")),
            Ok("PUT /5 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nk=5"),
        );
        check_request(
            plan("http://h/", &[], None, Some("POST")),
            Ok("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"),
        );
        check_request(plan("http://h/", &["no colon"], None, None), Err("NAME: VALUE"));
        check_request(plan("http://h/", &["a b: c"], None, None), Err("invalid character in a header name"));
        check_request(plan("http://h/", &["Content-Length: 3"], None, None), Err("the generator sets"));
        check_request(plan("http://h/", &["a: b\r\nc: d"], None, None), Err("one line"));
        check_request(plan("http://h/", &[], None, Some("G T")), Err("not a request"));
        check_request(plan("http://h/", &[], None, Some("CONNECT")), Err("tunnel"));
    }

    /// Checks the answers to `method` in `input`, which arrives in pieces of every size; `closed` says whether the peer
    /// ends the connection afterwards.
    fn check_answers(method: &str, input: &str, closed: bool, expected: Result<&[(u16, u64, bool)], &str>) {
        for step in [1, 2, 7, usize::MAX] {
            let mut http =
                Http::new(plan("http://h/", &[], None, Some(method)).unwrap(), Keys::new(keys(), 1, 0, 1), 0);
            let mut session = HttpSession::default();
            let (mut at, mut arrived, mut found, mut error) = (0, 0usize, Vec::new(), None);
            while arrived < input.len() && error.is_none() {
                arrived = arrived.saturating_add(step).min(input.len());
                loop {
                    match http.read(&mut session, &input.as_bytes()[at..arrived], &mut Vec::new()) {
                        Ok((taken, answer)) => {
                            at += taken;
                            match answer {
                                Some(answer) => found.push(answer),
                                None => break,
                            }
                        }
                        Err(text) => {
                            error = Some(text);
                            break;
                        }
                    }
                }
            }
            if closed {
                found.extend(http.end(&mut session));
            }
            match (&error, expected) {
                (None, Ok(expected)) => {
                    let found: Vec<(u16, u64, bool)> = found
                        .iter()
                        .map(|answer| match answer.outcome {
                            Outcome::Status(status) => (status, answer.body, answer.keep_alive),
                            _ => panic!("{answer:?}"),
                        })
                        .collect();
                    assert_eq!(found, expected, "{input:?} in steps of {step}");
                }
                (Some(error), Err(part)) => assert!(error.contains(part), "{error}"),
                other => panic!("{input:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn responses_end_where_they_end() {
        let ok = "HTTP/1.1 200 OK\r\n";
        check_answers("GET", &format!("{ok}Content-Length: 2\r\n\r\nhi").repeat(2), false, Ok(&[(200, 2, true); 2]));
        check_answers(
            "GET",
            &format!(
                "{ok}Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1;x\r\n!\r\n0\r\nT: x\r\n\r\n{ok}Content-Length: 0\r\n\r\n"
            ),
            false,
            Ok(&[(200, 3, true), (200, 0, true)]),
        );
        check_answers("HEAD", &format!("{ok}Content-Length: 9\r\n\r\n").repeat(2), false, Ok(&[(200, 0, true); 2]));
        check_answers(
            "GET",
            "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
            false,
            Ok(&[(204, 0, true), (304, 0, true)]),
        );
        check_answers(
            "GET",
            &format!(
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n{ok}Content-Length: 1\r\n\r\na"
            ),
            false,
            Ok(&[(200, 1, true)]),
        );
        check_answers("GET", &format!("{ok}\r\nuntil the end"), false, Ok(&[]));
        check_answers("GET", &format!("{ok}\r\nuntil the end"), true, Ok(&[(200, 13, false)]));
        check_answers("GET", &format!("{ok}Content-Length: 5\r\n\r\nhi"), true, Ok(&[]));
        check_answers(
            "GET",
            &format!("{ok}Connection: close\r\nContent-Length: 0\r\n\r\n"),
            false,
            Ok(&[(200, 0, false)]),
        );
        check_answers("GET", "HTTP/1.1 101 X\r\n\r\n", false, Err("101"));
        check_answers("GET", &format!("{ok}Content-Length: x\r\n\r\n"), false, Err("Content-Length"));
        check_answers("GET", "SSH-2.0-x\r\n", false, Err("start line"));
        check_answers("GET", &format!("{ok}Transfer-Encoding: chunked\r\n\r\nx"), false, Err("chunk size"));
    }
}
