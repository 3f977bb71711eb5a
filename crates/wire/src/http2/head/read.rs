//! Parsing of received message heads.

use std::ops::Range;

use smallvec::SmallVec;

use super::super::class::Class;
use super::super::hpack::{self, Block};
use super::Malformed;
use crate::http::{self, Framing, Limits, Message, Method, RequestHead, ResponseHead, Version};

/// The rules of a connection.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Rules {
    pub(in super::super) limits: Limits,
    /// Whether this side has announced the extended CONNECT.
    pub(in super::super) connect_protocol: bool,
}

/// A received request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Request {
    pub(in super::super) head: RequestHead,
    /// Whether the request has to be answered with 400.
    pub(in super::super) unparsable: bool,
    /// Whether it is an extended CONNECT.
    pub(in super::super) extended: bool,
    /// The length that the body must have.
    pub(in super::super) length: Option<u64>,
}

/// A received response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Response {
    pub(in super::super) head: ResponseHead,
    /// The length that the data must have.
    pub(in super::super) length: Option<u64>,
    /// Whether the response has no body by its nature, so that data is ignored.
    pub(in super::super) bodiless: bool,
}

/// The request that a response answers.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Answered<'a> {
    pub(in super::super) head: bool,
    pub(in super::super) connect: bool,
    /// The protocol of an extended CONNECT.
    pub(in super::super) protocol: Option<&'a [u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Request,
    Response,
    Trailers,
}

/// The combined meaning of the fields of one head.
struct Reader<'a> {
    kind: Kind,
    rules: &'a Rules,
    fault: Option<Malformed>,
    /// The values of the pseudo-header fields, by their class.
    pseudo: [Option<Range<usize>>; PSEUDO],
    /// Whether the start line is complete: a field that follows the pseudo-header fields was received.
    begun: bool,
    unparsable: bool,
    extended: bool,
    answered: Option<Answered<'a>>,
    method: Method,
    status: u16,
    host: bool,
    length: Option<u64>,
    expect_continue: bool,
    cookies: SmallVec<[Range<usize>; 4]>,
    fields: usize,
    /// The length of the head as it would be in HTTP/1.
    len: usize,
}

const PSEUDO: usize = Class::Protocol as usize + 1;

/// Decodes a block that is not needed.
pub(in super::super) fn skip(mut block: Block<'_>) -> Result<(), hpack::Error> {
    let mut arena = Vec::new();
    while block.next(&mut arena, false)?.is_some() {}
    Ok(())
}

/// Decodes a request into `out`. `end` says whether no body follows.
pub(in super::super) fn read_request(
    block: Block<'_>,
    rules: &Rules,
    end: bool,
    out: &mut Message,
) -> Result<Result<Request, Malformed>, hpack::Error> {
    let mut reader = Reader::new(Kind::Request, rules, None);
    reader.read(block, out)?;
    Ok(reader.finish_request(end, out))
}

/// Decodes a response into `out`.
pub(in super::super) fn read_response(
    block: Block<'_>,
    rules: &Rules,
    answered: Answered<'_>,
    end: bool,
    out: &mut Message,
) -> Result<Result<Response, Malformed>, hpack::Error> {
    let mut reader = Reader::new(Kind::Response, rules, Some(answered));
    reader.read(block, out)?;
    Ok(reader.finish_response(answered, end, out))
}

/// Decodes trailers into `out`.
pub(in super::super) fn read_trailers(
    block: Block<'_>,
    rules: &Rules,
    out: &mut Message,
) -> Result<Result<(), Malformed>, hpack::Error> {
    let mut reader = Reader::new(Kind::Trailers, rules, None);
    reader.read(block, out)?;
    Ok(reader.fault.map_or(Ok(()), Err).and_then(|()| reader.check_size(out)))
}

impl<'a> Reader<'a> {
    fn new(kind: Kind, rules: &'a Rules, answered: Option<Answered<'a>>) -> Reader<'a> {
        Reader {
            kind,
            rules,
            fault: None,
            pseudo: [const { None }; PSEUDO],
            begun: false,
            unparsable: false,
            extended: false,
            answered,
            method: Method::Other,
            status: 0,
            host: false,
            length: None,
            expect_continue: false,
            cookies: SmallVec::new(),
            fields: 0,
            len: 0,
        }
    }

    /// Decodes a block to its end, even if it is malformed.
    fn read(&mut self, mut block: Block<'_>, out: &mut Message) -> Result<(), hpack::Error> {
        out.clear();
        out.reserve();
        while let Some(field) = block.next(out.arena_mut(), self.fault.is_none())? {
            if self.fault.is_none() {
                self.fault = self.add(field, out).err();
            }
        }
        Ok(())
    }

    fn add(&mut self, field: hpack::Field, out: &mut Message) -> Result<(), Malformed> {
        let hpack::Field { name, value, class, clean } = field;
        let limits = &self.rules.limits;
        self.fields += 1;
        // Fields that are dropped or joined later count here, too; the exact limit is checked at the end.
        if out.arena().len() > 2 * limits.max_head || self.fields > 2 * limits.max_fields {
            return Err(Malformed::TooLarge);
        }
        if class == Class::Path && !limits.lenient && self.kind == Kind::Request {
            let text = &out.arena()[value.clone()];
            if !text.iter().fold(true, |all, byte| all & (*byte > b' ') & (*byte != b'#')) {
                return Err(Malformed::Path);
            }
        } else if !clean {
            return Err(Malformed::FieldValue);
        }
        match class {
            Class::Invalid if out.arena().get(name.start) == Some(&b':') => return Err(Malformed::PseudoField),
            Class::Invalid => return Err(Malformed::FieldName),
            Class::Authority | Class::Method | Class::Path | Class::Scheme | Class::Status | Class::Protocol => {
                let place = &mut self.pseudo[class as usize];
                if self.begun || place.is_some() || self.kind == Kind::Trailers {
                    return Err(Malformed::PseudoField);
                }
                *place = Some(value);
                return Ok(());
            }
            _ => {}
        }
        if !self.begun {
            self.start_line(out)?;
        }
        let (is_request, is_trailer) = (self.kind == Kind::Request, self.kind == Kind::Trailers);
        let text = &out.arena()[value.clone()];
        match class {
            Class::Host | Class::ContentLength | Class::Connection | Class::Te if is_trailer => {
                return Err(Malformed::Trailer);
            }
            Class::Connection => return Err(Malformed::Connection),
            Class::Te if is_request && text != b"trailers" => return Err(Malformed::Connection),
            Class::Host if is_request => {
                if self.host {
                    return Ok(());
                }
                if !http::is_authority(text) {
                    return Err(Malformed::Authority);
                }
                self.host = true;
            }
            Class::ContentLength => {
                let (number, digits) = http::content_length(text).ok_or(Malformed::Length)?;
                return match self.length.replace(number) {
                    None => {
                        self.push(name, value.start + digits.start..value.start + digits.end, out);
                        Ok(())
                    }
                    Some(earlier) if earlier == number => Ok(()),
                    Some(_) => Err(Malformed::Length),
                };
            }
            Class::Expect => self.expect_continue |= text.eq_ignore_ascii_case(b"100-continue"),
            Class::Cookie if is_request => {
                self.cookies.push(trimmed(value, text));
                return Ok(());
            }
            _ => {}
        }
        let value = trimmed(value, text);
        self.push(name, value, out);
        Ok(())
    }

    fn push(&mut self, name: Range<usize>, value: Range<usize>, out: &mut Message) {
        self.len += name.len() + value.len() + 4;
        out.push_field(name, value);
    }

    fn value<'m>(&self, class: Class, out: &'m Message) -> Option<&'m [u8]> {
        self.pseudo[class as usize].clone().map(|range| &out.arena()[range])
    }

    fn start_line(&mut self, out: &mut Message) -> Result<(), Malformed> {
        self.begun = true;
        match self.kind {
            Kind::Request => self.request_line(out),
            Kind::Response => self.status_line(out),
            Kind::Trailers => Ok(()),
        }
    }

    fn request_line(&mut self, out: &mut Message) -> Result<(), Malformed> {
        let has = |class: Class| self.pseudo[class as usize].is_some();
        let (scheme, path) = (has(Class::Scheme), has(Class::Path));
        let (authority, protocol) = (has(Class::Authority), has(Class::Protocol));
        if has(Class::Status) {
            return Err(Malformed::PseudoField);
        }
        let method = self.value(Class::Method, out).ok_or(Malformed::Missing)?;
        self.method = Method::of(method);
        if self.method == Method::Connect && protocol {
            if !self.rules.connect_protocol {
                return Err(Malformed::PseudoField);
            }
            if !(scheme && path && authority) {
                return Err(Malformed::Missing);
            }
            self.extended = true;
        } else if self.method == Method::Connect {
            if scheme || path {
                return Err(Malformed::PseudoField);
            }
            if !authority {
                return Err(Malformed::Missing);
            }
        } else if protocol {
            return Err(Malformed::PseudoField);
        } else if !(scheme && path) {
            return Err(Malformed::Missing);
        }
        if method.is_empty() {
            return Err(Malformed::Method);
        }
        let is_valid_scheme = |scheme: &[u8]| {
            scheme.first().is_some_and(u8::is_ascii_alphabetic)
                && scheme.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
        };
        let is_method = self.method != Method::Other || http::is_token(method);
        let is_scheme = match self.value(Class::Scheme, out) {
            Some(b"https" | b"http") | None => true,
            Some(scheme) => is_valid_scheme(scheme),
        };
        self.unparsable |= !is_method || !is_scheme;
        let all_of_it = match self.value(Class::Path, out) {
            Some(b"*") => true,
            Some([b'/', ..]) | None => false,
            Some(_) => return Err(Malformed::Path),
        };
        if !self.value(Class::Authority, out).is_none_or(http::is_authority) {
            return Err(Malformed::Authority);
        }

        let range = |class: Class| self.pseudo[class as usize].clone().unwrap_or_default();
        let target = if !scheme {
            range(Class::Authority)
        } else if authority {
            let arena = out.arena_mut();
            let start = arena.len();
            arena.extend_from_within(range(Class::Scheme));
            arena.extend_from_slice(b"://");
            arena.extend_from_within(range(Class::Authority));
            if !all_of_it {
                arena.extend_from_within(range(Class::Path));
            }
            start..arena.len()
        } else {
            range(Class::Path)
        };
        if target.is_empty() {
            return Err(Malformed::Missing);
        }
        // The other parts have no such bytes, or are invalid for another reason.
        let path = self.value(Class::Path, out).unwrap_or_default();
        self.unparsable |= path.iter().fold(false, |any, byte| any | (*byte <= b' ') | (*byte == 0x7f));
        let mut method = range(Class::Method);
        if self.extended {
            method = stored(b"GET", out);
            self.method = Method::Get;
        }
        self.len += method.len() + target.len() + 12;
        let plain = scheme && !authority && self.value(Class::Scheme, out) == Some(b"http");
        out.load_request(method, target, Version::Http2);
        if plain {
            out.set_plain();
        }
        if authority {
            let name = stored(b"host", out);
            self.push(name, self.pseudo[Class::Authority as usize].clone().unwrap_or_default(), out);
            self.host = true;
        }
        Ok(())
    }

    fn status_line(&mut self, out: &mut Message) -> Result<(), Malformed> {
        if [Class::Authority, Class::Method, Class::Path, Class::Scheme, Class::Protocol]
            .iter()
            .any(|class| self.pseudo[*class as usize].is_some())
        {
            return Err(Malformed::PseudoField);
        }
        let text = self.value(Class::Status, out).ok_or(Malformed::Missing)?;
        self.status = match text {
            [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9'] => {
                text.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'))
            }
            _ => return Err(Malformed::Status),
        };
        let protocol = self.answered.and_then(|answered| answered.protocol);
        match (self.status, protocol) {
            // Success of an extended CONNECT is a switch of protocols in HTTP/1.
            (200, Some(_)) => self.status = 101,
            (101, _) => return Err(Malformed::Status),
            _ => {}
        }
        let reason = stored(http::status::reason(self.status).as_bytes(), out);
        self.len += 15;
        out.load_response(Version::Http2, self.status, reason);
        if let (101, Some(protocol)) = (self.status, protocol) {
            for (name, value) in [(&b"connection"[..], &b"upgrade"[..]), (b"upgrade", protocol)] {
                let (name, value) = (stored(name, out), stored(value, out));
                self.push(name, value, out);
            }
        }
        Ok(())
    }

    /// Checks the exact limits of a complete head.
    fn check_size(&self, out: &Message) -> Result<(), Malformed> {
        let fields = out.entry_count();
        let limits = &self.rules.limits;
        let fits = fields < limits.max_fields && limits.admit(self.len + 2, fields);
        if fits { Ok(()) } else { Err(Malformed::TooLarge) }
    }

    fn finish_request(mut self, end: bool, out: &mut Message) -> Result<Request, Malformed> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if !self.begun {
            self.start_line(out)?;
        }
        if self.extended {
            let protocol = self.pseudo[Class::Protocol as usize].clone().unwrap_or_default();
            let text = &out.arena()[protocol.clone()];
            // A list of protocols would be a list in HTTP/1's Upgrade field, too, and offer the further protocols.
            let is_one = !text.is_empty() && http::is_token(text);
            if !is_one || text.eq_ignore_ascii_case(b"h2c") || text.eq_ignore_ascii_case(b"h2") {
                return Err(Malformed::Protocol);
            }
            let name = stored(b"upgrade", out);
            self.push(name, protocol, out);
            let (name, value) = (stored(b"connection", out), stored(b"upgrade", out));
            self.push(name, value, out);
        }
        self.join_cookies(out);
        self.check_size(out)?;
        let tunnel = self.extended || self.method == Method::Connect;
        let length = self.length.filter(|_| !tunnel);
        if end && length.is_some_and(|length| length > 0) {
            return Err(Malformed::Length);
        }
        // The target is absolute if it has a scheme and an authority. Without a port and with a path, it is normalized.
        if self.pseudo[Class::Scheme as usize].is_some()
            && let Some(authority) = self.value(Class::Authority, out)
            && (matches!(authority.last(), Some(b'0'..=b'9' | b':')) || self.value(Class::Path, out) == Some(b"*"))
        {
            normalize(self.method, out);
        }
        let head = RequestHead {
            head_len: self.len,
            method: self.method,
            body: match (tunnel, length) {
                (true, _) => Framing::None,
                (false, Some(length)) => Framing::Length(length),
                (false, None) if end => Framing::None,
                (false, None) => Framing::Chunked,
            },
            keep_alive: true,
            expect_continue: self.expect_continue,
            upgrade: self.extended,
        };
        Ok(Request { head, unparsable: self.unparsable, extended: self.extended, length })
    }

    /// Joins the Cookie fields, into which HTTP/2 allows one to be split, and adds the result.
    fn join_cookies(&mut self, out: &mut Message) {
        let value = match &self.cookies[..] {
            [] => return,
            [one] => one.clone(),
            [first, others @ ..] => {
                let arena = out.arena_mut();
                let start = arena.len();
                arena.extend_from_within(first.clone());
                for crumb in others {
                    arena.extend_from_slice(b"; ");
                    arena.extend_from_within(crumb.clone());
                }
                start..arena.len()
            }
        };
        let name = stored(b"cookie", out);
        self.push(name, value, out);
    }

    fn finish_response(mut self, answered: Answered<'_>, end: bool, out: &mut Message) -> Result<Response, Malformed> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if !self.begun {
            self.start_line(out)?;
        }
        self.check_size(out)?;
        let status = self.status;
        let interim = status < 200 && status != 101;
        if interim && end {
            return Err(Malformed::End);
        }
        let tunnel = status == 101 || answered.connect && (200..300).contains(&status);
        let bodiless = tunnel || interim || answered.head || matches!(status, 204 | 304);
        let length = self.length.filter(|_| !bodiless);
        if end && length.is_some_and(|length| length > 0) {
            return Err(Malformed::Length);
        }
        let body = match (bodiless, length) {
            (true, _) => Framing::None,
            (false, Some(length)) => Framing::Length(length),
            (false, None) if end => Framing::Length(0),
            (false, None) => Framing::Chunked,
        };
        let head = ResponseHead { head_len: self.len, body, keep_alive: true, interim, tunnel };
        Ok(Response { head, length, bodiless: bodiless && !tunnel })
    }
}

/// Appends bytes to the arena.
fn stored(bytes: &[u8], out: &mut Message) -> Range<usize> {
    let arena = out.arena_mut();
    let start = arena.len();
    arena.extend_from_slice(bytes);
    start..arena.len()
}

/// Returns the part of a range without white space at the ends.
fn trimmed(range: Range<usize>, text: &[u8]) -> Range<usize> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    if !text.first().is_some_and(is_space) && !text.last().is_some_and(is_space) {
        return range;
    }
    let kept = http::trim(text);
    let before = text.iter().take_while(|byte| is_space(byte)).count().min(text.len() - kept.len());
    range.start + before..range.start + before + kept.len()
}

/// Removes the default port of the scheme from target and Host, and adds a missing path.
fn normalize(method: Method, out: &mut Message) {
    let (target, host) = http::normalized(method, out.target(), out.first(b"host"));
    if let Some(target) = target {
        out.set_target(&target);
        let field = out.fields_named(b"host").next().map(|(id, _)| id);
        if let (Some(id), Some(host)) = (field, host) {
            out.set_value(id, &host);
        }
    }
}
