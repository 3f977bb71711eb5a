//! HTTP checks of FastCGI applications: a request of HTTP/1 becomes one of FastCGI, and the response is rendered as one of
//! HTTP/1, which the expectations examine.

use std::net::SocketAddr;
use std::sync::Arc;

use sluicegate_wire::fcgi::{self, HEADER, Kind};
use sluicegate_wire::http::{
    ConnectionField, Framing, Limits, Message, Method, Version, parse_cgi_response, parse_request, write_response,
};

use super::probe::ANSWER_MAX;
use super::translator::{Broken, Translator};
use crate::fcgi::params::{Surroundings, params};
use crate::server::App;

/// The number of the only request of a connection.
const REQUEST: u16 = 1;

/// A check's connection.
pub(super) struct Responder {
    app: Arc<App>,
    /// The application's address. As in HAProxy, this side's is not told.
    destination: Option<SocketAddr>,
    /// Whether the application's values are known, or not asked for.
    ready: bool,
    /// The request that waits for the values.
    unsent: Vec<u8>,
    output: Vec<u8>,
    written: usize,
    /// Received bytes of records that are not complete.
    input: Vec<u8>,
    /// The response up to the end of its head.
    head: Vec<u8>,
    has_head: bool,
    method: Method,
    version: Version,
    message: Message,
}

impl Responder {
    /// Returns a connection that begins.
    pub(super) fn new(app: Arc<App>, destination: Option<SocketAddr>) -> Responder {
        let mut output = Vec::new();
        let ready = !app.config.get_values;
        if !ready {
            fcgi::write_get_values(&mut output);
        }
        Responder {
            app,
            destination,
            ready,
            unsent: Vec::new(),
            output,
            written: 0,
            input: Vec::new(),
            head: Vec::new(),
            has_head: false,
            method: Method::Get,
            version: Version::Http11,
            message: Message::new(),
        }
    }

    /// Processes the contents of a record; returns whether the response is complete.
    fn record(&mut self, kind: Kind, request: u16, content: &[u8], into: &mut Vec<u8>) -> Result<bool, Broken> {
        match kind {
            Kind::GetValuesResult | Kind::Unknown if request == 0 => {
                self.ready = true;
                self.output.append(&mut self.unsent);
            }
            _ if !self.ready => return Err(Broken),
            Kind::Stdout if request == REQUEST && content.is_empty() => return Ok(true),
            Kind::Stdout if request == REQUEST && self.has_head => into.extend_from_slice(content),
            Kind::Stdout if request == REQUEST => {
                self.head.extend_from_slice(content);
                let limits = Limits { max_head: ANSWER_MAX, max_fields: usize::MAX, ..Limits::default() };
                let parsed = parse_cgi_response(&self.head, &limits, self.method, self.version, &mut self.message);
                if let Some(head) = parsed.map_err(|_| Broken)? {
                    write_response(&self.message, Framing::UntilClose, ConnectionField::Close, into);
                    into.extend_from_slice(&self.head[head.head_len..]);
                    self.has_head = true;
                }
            }
            Kind::Stderr if request == REQUEST => self.app.log(content),
            Kind::EndRequest if request == REQUEST => return Ok(true),
            _ => {}
        }
        Ok(false)
    }
}

impl Translator for Responder {
    fn request(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let head = parse_request(bytes, &Limits::of_own_heads(), &mut self.message).ok().flatten().ok_or(Broken)?;
        let body = &bytes[head.head_len..];
        if self.message.first(b"connection").is_none() {
            // An application is told what HTTP/1.0 implies.
            self.message.add(b"connection", b"close");
        }
        if !body.is_empty() {
            // In HAProxy it comes last.
            self.message.delete_all(b"content-length");
            self.message.add(b"content-length", body.len().to_string().as_bytes());
        }
        self.method = Method::of(self.message.method());
        self.version = self.message.version();
        let around = Surroundings {
            parameters: None,
            source: None,
            destination: self.destination,
            https: false,
            length: Some(body.len() as u64),
            server_name: None,
            room: usize::MAX,
        };
        let params = params(&self.app.config, &self.message, &around).ok_or(Broken)?;
        let out = if self.ready { &mut self.output } else { &mut self.unsent };
        fcgi::write_begin(out, REQUEST, self.app.config.keep_conn);
        fcgi::write_params(out, REQUEST, &params);
        if !body.is_empty() {
            fcgi::write_stdin(out, REQUEST, body);
        }
        fcgi::write_stdin(out, REQUEST, b"");
        self.head.clear();
        self.has_head = false;
        Ok(())
    }

    fn output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    fn wrote(&mut self, count: usize) {
        self.written += count;
    }

    fn receive(&mut self, bytes: &[u8], into: &mut Vec<u8>) -> Result<bool, Broken> {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut at = 0;
        while let Some(record) = fcgi::header(&input[at..]) {
            let Some(content) = input.get(at + HEADER..at + HEADER + record.content) else { break };
            if input.len() < at + HEADER + record.content + record.padding {
                break;
            }
            if self.record(record.kind, record.request, content, into)? {
                return Ok(true);
            }
            at += HEADER + record.content + record.padding;
            if into.len() >= ANSWER_MAX {
                return Ok(true);
            }
        }
        self.input.extend_from_slice(&input[at..]);
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::tests::running_with;

    fn app(get_values: bool) -> Arc<App> {
        let text = format!(
            "defaults\n mode http\nfcgi-app a\n docroot /srv\n{}backend b\n use-fcgi-app a\n server s 127.0.0.1:1 proto \
             fcgi\n",
            if get_values { " option get-values\n" } else { "" }
        );
        running_with(&text, 1).proxies[0].fcgi.clone().expect("an application")
    }

    fn record(kind: u8, request: u8, content: &[u8]) -> Vec<u8> {
        [&[1, kind, 0, request, 0, content.len() as u8, 1, 0], content, b"\0"].concat()
    }

    #[test]
    fn a_check_is_a_request_and_its_response_looks_like_one_of_http_1() {
        let mut check = Responder::new(app(true), Some("127.0.0.1:9000".parse().expect("an address")));
        check.request(b"POST /ping?x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nok").expect("a request");
        let begun = check.output().to_vec();
        check.wrote(begun.len());
        assert_eq!(begun[1], 9, "the values are asked for first");
        let mut seen = Vec::new();
        assert_eq!(check.receive(&record(10, 0, b""), &mut seen), Ok(false));
        let sent = check.output().to_vec();
        for (name, value) in [
            ("REQUEST_METHOD", "POST"),
            ("SCRIPT_FILENAME", "/srv/ping"),
            ("QUERY_STRING", "x"),
            ("HTTP_CONNECTION", "close"),
            ("SERVER_PORT", "9000"),
            ("CONTENT_LENGTH", "2"),
        ] {
            let pair = [&[name.len() as u8, value.len() as u8], name.as_bytes(), value.as_bytes()].concat();
            assert!(sent.windows(pair.len()).any(|window| window == pair), "{name}");
        }
        let all = [
            record(6, 1, b"Status: 503 Busy\r\nA: b\r\n"),
            record(7, 1, b"a message"),
            record(6, 1, b"\r\nwait"),
            record(6, 1, b""),
        ];
        let mut ended = false;
        for piece in all.concat().chunks(5) {
            ended |= check.receive(piece, &mut seen).expect("records");
        }
        assert!(ended && seen.starts_with(b"HTTP/1.1 503 Busy\r\n") && seen.ends_with(b"\r\n\r\nwait"), "{seen:?}");
        let mut silent = Responder::new(app(false), None);
        silent.request(b"GET / HTTP/1.0\r\n\r\n").expect("a request");
        assert_eq!(silent.receive(&record(3, 1, &[0; 8]), &mut seen), Ok(true));
    }

    #[test]
    fn an_application_that_does_not_answer_is_broken() {
        let mut check = Responder::new(app(true), None);
        assert_eq!(check.receive(&record(6, 1, b"a"), &mut Vec::new()), Err(Broken));
        let mut check = Responder::new(app(false), None);
        check.request(b"GET / HTTP/1.0\r\n\r\n").expect("a request");
        assert_eq!(check.receive(&record(6, 1, b"no head\r\n\r\n"), &mut Vec::new()), Err(Broken));
    }
}
