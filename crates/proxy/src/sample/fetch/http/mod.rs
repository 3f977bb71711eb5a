//! HTTP messages (HAProxy configuration manual 7.3.6).

mod auth;
mod parameter;
pub(super) mod target;

use std::borrow::Cow;
use std::net::IpAddr;

use memchr::memchr;
use sluicegate_wire::http::{Message, Version};

use super::args::Args;
use super::code::{Compiled, FetchCode, Read, ReadEach, looking, read, read_with};
use crate::sample::field::Cursor;
use crate::sample::value::Value;
use crate::sample::{Looks, field};
use crate::stream::StreamContext;
use auth::{Credentials, credentials};
pub(crate) use auth::{basic, basic_credentials};
use parameter::Parameters;

/// Negative occurrences reach this far back (HAProxy's `MAX_HDR_HISTORY`).
const HISTORY: usize = 10;

/// The message that a fetch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sample::fetch) enum Side {
    /// The request.
    Request,
    /// The response.
    Response,
}

/// The list of values that a fetch reads from a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sample::fetch) enum List {
    /// A header's comma-separated elements.
    Elements,
    /// A header's lines.
    Lines,
    /// A cookie's values.
    Cookies,
}

/// The conversion of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sample::fetch) enum Cast {
    /// It stays text.
    Text,
    /// An address; a text that is not an address is skipped.
    Ip,
    /// An integer.
    Int,
}

/// Returns a fetch of an HTTP message.
fn head<F>(fetch: F) -> Compiled
where
    F: for<'a> Fn(&'a StreamContext) -> Option<Value<'a>> + Send + Sync + 'static,
{
    looking(HEAD, read(fetch))
}

/// Returns a fetch of an HTTP message with arguments.
fn head_with<T, F>(args: T, fetch: F) -> Compiled
where
    T: Send + Sync + 'static,
    F: for<'a> Fn(&'a T, &'a StreamContext) -> Option<Value<'a>> + Send + Sync + 'static,
{
    looking(HEAD, read_with(args, fetch))
}

const HEAD: Looks = Looks { request: false, response: false, head: true };

/// `hdr`, `fhdr`, `cook` of either side, and their `_ip` and `_val`.
struct Occurrence {
    side: Side,
    list: List,
    /// The header's or cookie's name; empty means any.
    name: Box<[u8]>,
    /// The occurrence from 1, negative from the end, 0 for the last or, under a cursor, for all.
    occurrence: i64,
    cast: Cast,
}

pub(super) fn occurrence(args: &Args<'_>, side: Side, list: List, cast: Cast) -> Compiled {
    let occurrence = match list {
        List::Cookies => 0,
        List::Elements | List::Lines => args.int(1)?.unwrap_or(0),
    };
    let fetch = Occurrence { side, list, name: args.text(0)?, occurrence, cast };
    Ok(match occurrence {
        0 => FetchCode::Each(Box::new(fetch), HEAD),
        _ => FetchCode::One(Box::new(fetch), HEAD),
    })
}

impl Read for Occurrence {
    fn read<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        let message = message(cx, self.side)?;
        // Without a name the first cookie is meant, though the last one of a name.
        let occurrence = if self.list == List::Cookies && self.name.is_empty() { 1 } else { self.occurrence };
        let found = values(message, self.side, self.list, &self.name, |values| pick(values, occurrence));
        found.and_then(|text| self.cast.of(text))
    }
}

impl ReadEach for Occurrence {
    fn read<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        Read::read(self, cx)
    }

    fn read_next<'a>(&'a self, cx: &'a StreamContext, cursor: &mut Cursor) -> Option<Value<'a>> {
        let message = message(cx, self.side)?;
        next(self.cast, || match (self.list, self.side) {
            (List::Elements, _) => field::next_header_value(message, &self.name, false, cursor),
            (List::Lines, _) => field::next_header_value(message, &self.name, true, cursor),
            (List::Cookies, Side::Request) => field::next_cookie(message, &self.name, cursor),
            (List::Cookies, Side::Response) => field::next_set_cookie(message, &self.name, cursor),
        })
    }
}

/// Returns the next value. A text that is not an address is skipped.
fn next<'a>(cast: Cast, mut next: impl FnMut() -> Option<&'a [u8]>) -> Option<Value<'a>> {
    loop {
        if let Some(value) = cast.of(next()?) {
            return Some(value);
        }
    }
}

/// `url_param`, `req.body_param`.
struct Parameter {
    /// Whether parameters of the body are read, not of the target.
    in_body: bool,
    /// Its name; empty means any.
    name: Box<[u8]>,
    /// The byte after which the list begins.
    delimiter: u8,
    /// `i`.
    ignore_case: bool,
    cast: Cast,
}

/// `url_param(name[,delimiter[,i]])`, `urlp_val`.
pub(super) fn url_param(args: &Args<'_>, cast: Cast) -> Compiled {
    let (delimiter, ignore_case) = (args.delimiter(1, b'?')?, args.ignores_case(2)?);
    let fetch = Parameter { in_body: false, name: args.text(0)?, delimiter, ignore_case, cast };
    Ok(FetchCode::Each(Box::new(fetch), HEAD))
}

/// `req.body_param(name[,i])`.
pub(super) fn body_param(args: &Args<'_>) -> Compiled {
    let ignore_case = args.ignores_case(1)?;
    let fetch = Parameter { in_body: true, name: args.text(0)?, delimiter: b'&', ignore_case, cast: Cast::Text };
    Ok(FetchCode::Each(Box::new(fetch), Looks { request: true, ..HEAD }))
}

impl Parameter {
    fn values<'a>(&'a self, cx: &'a StreamContext) -> Option<Parameters<'a>> {
        let request = request(cx)?;
        Some(if self.in_body {
            Parameters::new(&cx.request_content.data, &self.name, self.delimiter, self.ignore_case)
        } else {
            Parameters::of_target(request.target(), &self.name, self.delimiter, self.ignore_case)
        })
    }
}

impl ReadEach for Parameter {
    fn read<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        self.values(cx)?.next().and_then(|text| self.cast.of(text))
    }

    fn read_next<'a>(&'a self, cx: &'a StreamContext, cursor: &mut Cursor) -> Option<Value<'a>> {
        let mut values = self.values(cx)?;
        values.pass(cursor.next);
        let found = next(self.cast, || values.next());
        cursor.next = values.passed();
        found
    }
}

/// `hdr_cnt`, `fhdr_cnt`, `cook_cnt` of either side.
pub(super) fn count(args: &Args<'_>, side: Side, list: List) -> Compiled {
    head_with((side, list, args.text(0)?), |(side, list, name), cx| {
        let count = values(message(cx, *side)?, *side, *list, name, |values| values.count());
        Some(Value::Int(count as i64))
    })
}

/// `hdr_names`.
pub(super) fn hdr_names(args: &Args<'_>, side: Side) -> Compiled {
    head_with((side, args.delimiter(0, b',')?), |(side, delimiter), cx| {
        Some(Value::owned_text(field_names(message(cx, *side)?, *delimiter)))
    })
}

/// `cook_names`.
pub(super) fn cook_names(args: &Args<'_>, side: Side) -> Compiled {
    head_with((side, args.delimiter(0, b',')?), |(side, delimiter), cx| {
        cookie_names(message(cx, *side)?, *side, *delimiter)
    })
}

/// `hdrs`.
pub(super) fn hdrs(side: Side) -> Compiled {
    head_with(side, |side, cx| Some(Value::owned_text(lines(message(cx, *side)?))))
}

/// `hdrs_bin`.
pub(super) fn hdrs_bin(side: Side) -> Compiled {
    head_with(side, |side, cx| Some(Value::Bin(Cow::Owned(binary(message(cx, *side)?)))))
}

pub(super) fn base(_: &Args<'_>) -> Compiled {
    head(|cx| host_and_path(request(cx)?, false))
}

pub(super) fn baseq(_: &Args<'_>) -> Compiled {
    head(|cx| host_and_path(request(cx)?, true))
}

/// `base32`, or `url32` with the query.
pub(super) fn hash32(query: bool) -> Compiled {
    head_with(query, |query, cx| Some(Value::Int(i64::from(hash(request(cx)?, *query)))))
}

/// `base32+src`, or `url32+src` with the query.
pub(super) fn hash32_src(query: bool) -> Compiled {
    head_with(query, |query, cx| {
        let mut bytes = hash(request(cx)?, *query).to_be_bytes().to_vec();
        match cx.source?.ip() {
            IpAddr::V4(ip) => bytes.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes.extend_from_slice(&ip.octets()),
        }
        Some(Value::Bin(Cow::Owned(bytes)))
    })
}

pub(super) fn method(_: &Args<'_>) -> Compiled {
    head(|cx| Some(Value::Method(Cow::Borrowed(request(cx)?.sent_method()))))
}

pub(super) fn path(_: &Args<'_>) -> Compiled {
    head(|cx| target::path(request(cx)?.target()).map(Value::text))
}

pub(super) fn pathq(_: &Args<'_>) -> Compiled {
    head(|cx| target::path_and_query(request(cx)?.target()).map(Value::text))
}

pub(super) fn query(_: &Args<'_>) -> Compiled {
    head(|cx| target::query(request(cx)?.target()).map(Value::text))
}

pub(super) fn url(_: &Args<'_>) -> Compiled {
    head(|cx| Some(Value::text(request(cx)?.target())))
}

pub(super) fn url_ip(_: &Args<'_>) -> Compiled {
    head(|cx| Some(Value::Ip(IpAddr::V4(target::address(request(cx)?.target())?.0))))
}

pub(super) fn url_port(_: &Args<'_>) -> Compiled {
    head(|cx| Some(Value::Int(i64::from(target::address(request(cx)?.target())?.1))))
}

/// `req.ver`, `res.ver`.
pub(super) fn version(side: Side) -> Compiled {
    head_with(side, |side, cx| {
        Some(Value::text(match message(cx, *side)?.version() {
            Version::Http10 => b"1.0",
            Version::Http11 => b"1.1",
            Version::Http2 => b"2.0",
        }))
    })
}

pub(super) fn status(_: &Args<'_>) -> Compiled {
    head(|cx| match cx.response.status() {
        0 => None,
        status => Some(Value::Int(i64::from(status))),
    })
}

pub(super) fn http_first_req(_: &Args<'_>) -> Compiled {
    head(|cx| Some(Value::Bool(cx.is_first_request())))
}

pub(super) fn capture_req_method(_: &Args<'_>) -> Compiled {
    head(|cx| captured(cx, 0).map(Value::text))
}

pub(super) fn capture_req_uri(_: &Args<'_>) -> Compiled {
    head(|cx| target::path_and_query(captured(cx, 1)?).map(Value::text))
}

/// `capture.req.ver`, `capture.res.ver`.
pub(super) fn capture_ver(side: Side) -> Compiled {
    head_with(side, |side, cx| {
        Some(Value::text(match message(cx, *side)?.version() {
            Version::Http10 => b"HTTP/1.0",
            Version::Http11 => b"HTTP/1.1",
            Version::Http2 => b"HTTP/2.0",
        }))
    })
}

/// `capture.req.hdr`, `capture.res.hdr`: the content of a slot, whose number starts with 0.
pub(super) fn capture_hdr(args: &Args<'_>, side: Side) -> Compiled {
    head_with((side, args.wanted_size(0)?), |(side, slot), cx| {
        let captures = &cx.log.captures;
        let slots = if *side == Side::Request { &captures.request } else { &captures.response };
        slots.get(*slot).map(Value::text)
    })
}

pub(super) fn http_auth_type(_: &Args<'_>) -> Compiled {
    head(|cx| {
        Some(match credentials(request(cx)?, auth::field(cx))? {
            Credentials::Basic(_) => Value::text(b"Basic"),
            Credentials::Bearer(_) => Value::text(b"Bearer"),
        })
    })
}

/// Returns the text `user:password` of the request's credentials, and the position of the colon.
fn user_and_password(cx: &StreamContext) -> Option<(Vec<u8>, usize)> {
    let Credentials::Basic(text) = credentials(request(cx)?, auth::field(cx))? else { return None };
    let colon = memchr(b':', &text)?;
    Some((text, colon))
}

pub(super) fn http_auth_user(_: &Args<'_>) -> Compiled {
    head(|cx| {
        let (mut text, colon) = user_and_password(cx)?;
        text.truncate(colon);
        Some(Value::owned_text(text))
    })
}

pub(super) fn http_auth_pass(_: &Args<'_>) -> Compiled {
    head(|cx| {
        let (mut text, colon) = user_and_password(cx)?;
        text.drain(..=colon);
        Some(Value::owned_text(text))
    })
}

/// `http_auth_bearer([field])`.
pub(super) fn http_auth_bearer(args: &Args<'_>) -> Compiled {
    let name = args.text(0)?;
    let field = if name.is_empty() { AUTHORIZATION.into() } else { name };
    head_with(field, |field, cx| match credentials(request(cx)?, field)? {
        Credentials::Bearer(token) => Some(Value::text(token)),
        Credentials::Basic(_) => None,
    })
}

impl Cast {
    #[inline]
    fn of(self, text: &[u8]) -> Option<Value<'_>> {
        match self {
            Cast::Text => Some(Value::text(text)),
            Cast::Ip => target::header_address(text).map(Value::Ip),
            Cast::Int => Some(Value::Int(leading_int(text))),
        }
    }
}

const AUTHORIZATION: &[u8] = b"authorization";

/// Returns the number at the start of a text, as HAProxy reads it: into a C `int`, up to the first byte above `9`.
/// Bytes below `0` count as negative digits according to ASCII, so `1.5` yields 85.
fn leading_int(text: &[u8]) -> i64 {
    let (sign, digits) = match text {
        [b'-', rest @ ..] => (-1, rest),
        _ => (1, text),
    };
    let mut number = 0i32;
    for byte in digits {
        let digit = i32::from(*byte as i8) - i32::from(b'0');
        if digit > 9 {
            break;
        }
        number = number.wrapping_mul(10).wrapping_add(sign * digit);
    }
    i64::from(number)
}

/// Returns the request, if one was parsed: the context of a TCP stream contains an empty one until its contents have
/// been parsed as a request.
#[inline]
fn request(cx: &StreamContext) -> Option<&Message> {
    if cx.request.method().is_empty() {
        if !cx.request_content.no_http {
            cx.inspection.miss();
        }
        return None;
    }
    Some(&cx.request)
}

#[inline]
fn message(cx: &StreamContext, side: Side) -> Option<&Message> {
    match side {
        Side::Request => request(cx),
        Side::Response => (cx.response.status() != 0).then_some(&cx.response),
    }
}

#[inline]
fn values<'a, R>(
    message: &'a Message,
    side: Side,
    list: List,
    name: &'a [u8],
    use_them: impl FnOnce(&mut dyn Iterator<Item = &'a [u8]>) -> R,
) -> R {
    match (list, side) {
        (List::Elements, _) => use_them(&mut field::header_values(message, name, false)),
        (List::Lines, _) => use_them(&mut field::header_values(message, name, true)),
        (List::Cookies, Side::Request) => use_them(&mut field::cookies(message, name)),
        (List::Cookies, Side::Response) => use_them(&mut field::set_cookies(message, name)),
    }
}

/// Returns the occurrence with this number: from 1, negative from the end, 0 for the last.
fn pick<'a>(values: &mut dyn Iterator<Item = &'a [u8]>, occurrence: i64) -> Option<&'a [u8]> {
    if occurrence > 0 {
        return values.nth(usize::try_from(occurrence - 1).ok()?);
    }
    let back = if occurrence == 0 { 1 } else { usize::try_from(occurrence.unsigned_abs()).ok()? };
    if back > HISTORY {
        return None;
    }
    let mut ring: [&[u8]; HISTORY] = [b""; HISTORY];
    let mut count = 0;
    for value in values {
        ring[count % HISTORY] = value;
        count += 1;
    }
    (back <= count).then(|| ring[(count - back) % HISTORY])
}

/// Returns a word of the request line as received: 0 the method, 1 the target.
fn captured(cx: &StreamContext, word: usize) -> Option<&[u8]> {
    cx.log.request_line.split(|byte| *byte == b' ').nth(word).filter(|text| !text.is_empty())
}

/// Returns the first Host field's first value.
fn host(request: &Message) -> &[u8] {
    field::header_values(request, b"host", false).next().unwrap_or_default()
}

fn host_and_path(request: &Message, query: bool) -> Option<Value<'_>> {
    let part = |target| if query { target::path_and_query(target) } else { target::path(target) };
    let path = part(request.target());
    match host(request) {
        b"" => path.map(Value::text),
        host => Some(Value::owned_text([host, path.unwrap_or_default()].concat())),
    }
}

fn hash(request: &Message, query: bool) -> u32 {
    let path = if query { target::path_and_query(request.target()) } else { target::path(request.target()) };
    // With the query HAProxy takes the field whole, otherwise its first value.
    let host = if query { field::header_values(request, b"host", true).next() } else { Some(host(request)) };
    target::hash([host.unwrap_or_default(), path.unwrap_or_default()].into_iter())
}

/// Returns the names of the fields in their order, in lower case.
fn field_names(message: &Message, delimiter: u8) -> Vec<u8> {
    let mut joined = Vec::new();
    for (index, (_, name, _)) in message.fields().enumerate() {
        if index > 0 {
            joined.push(delimiter);
        }
        joined.extend(name.iter().map(u8::to_ascii_lowercase));
    }
    joined
}

fn cookie_names(message: &Message, side: Side, delimiter: u8) -> Option<Value<'_>> {
    let mut joined = Vec::new();
    let mut add = |name: &[u8]| {
        if !joined.is_empty() {
            joined.push(delimiter);
        }
        joined.extend_from_slice(name);
    };
    match side {
        Side::Request => field::cookie_names(message).for_each(&mut add),
        Side::Response => field::set_cookie_names(message).for_each(&mut add),
    }
    (!joined.is_empty()).then(|| Value::owned_text(joined))
}

/// Returns the fields as lines, with names in lower case as in HTTP/2.
fn lines(message: &Message) -> Vec<u8> {
    let mut text = Vec::with_capacity(message.wire_len());
    for (_, name, value) in message.fields() {
        text.extend(name.iter().map(u8::to_ascii_lowercase));
        text.extend_from_slice(b": ");
        text.extend_from_slice(value);
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"\r\n");
    text
}

/// Returns the fields in binary form, each name and value preceded by its length, with an empty name and an empty value
/// at the end.
fn binary(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(message.wire_len());
    for (_, name, value) in message.fields() {
        append_length(name.len(), &mut bytes);
        bytes.extend(name.iter().map(u8::to_ascii_lowercase));
        append_length(value.len(), &mut bytes);
        bytes.extend_from_slice(value);
    }
    bytes.extend_from_slice(&[0, 0]);
    bytes
}

/// Appends a length as in HAProxy's protocols: in one byte below 240; otherwise with 4 bits in the first byte and 7 in
/// each further one.
fn append_length(length: usize, out: &mut Vec<u8>) {
    if length < 240 {
        out.push(length as u8);
        return;
    }
    out.push(length as u8 | 0xf0);
    let mut rest = (length - 240) >> 4;
    while rest >= 128 {
        out.push(rest as u8 | 0x80);
        rest = (rest - 128) >> 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occurrences_count_from_both_ends() {
        let values = ["a", "b", "c"];
        let check = |occurrence: i64, expected: Option<&str>| {
            let found = pick(&mut values.iter().map(|value| value.as_bytes()), occurrence);
            assert_eq!(found, expected.map(str::as_bytes), "{occurrence}");
        };
        check(0, Some("c"));
        check(1, Some("a"));
        check(3, Some("c"));
        check(4, None);
        check(-1, Some("c"));
        check(-3, Some("a"));
        check(-4, None);
        check(-11, None);
        check(i64::MIN, None);
        check(i64::MAX, None);
    }

    #[test]
    fn lengths_take_as_many_bytes_as_they_need() {
        let check = |length: usize, expected: &[u8]| {
            let mut out = Vec::new();
            append_length(length, &mut out);
            assert_eq!(out, expected, "{length}");
        };
        check(0, &[0]);
        check(239, &[239]);
        check(240, &[0xf0, 0]);
        check(2287, &[0xff, 0x7f]);
        check(2288, &[0xf0, 0x80, 0]);
    }
}
