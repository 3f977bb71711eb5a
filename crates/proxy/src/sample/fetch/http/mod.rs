//! HTTP messages (HAProxy configuration manual 7.3.6).

mod auth;
mod parameter;
pub(super) mod target;

use std::borrow::Cow;
use std::net::IpAddr;

use memchr::memchr;
use sluicegate_config::catalogue::Fetch;
use sluicegate_wire::http::{Message, Version};

use super::{Args, Cursor};
use crate::sample::field;
use crate::sample::value::Value;
use crate::stream::StreamContext;
use auth::{Credentials, credentials};
pub(crate) use auth::{basic, basic_credentials};
use parameter::Parameters;

/// Negative occurrences reach this far back (HAProxy's `MAX_HDR_HISTORY`).
const HISTORY: usize = 10;

/// Which message a fetch looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The request.
    Request,
    /// The response.
    Response,
}

/// Which list of values a fetch takes from a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// A header's comma-separated elements.
    Elements,
    /// A header's lines.
    Lines,
    /// A cookie's values.
    Cookies,
}

/// What becomes of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cast {
    /// It stays text.
    Text,
    /// An address; a text that is none is passed over.
    Ip,
    /// An integer.
    Int,
}

/// A fetch of an HTTP message.
#[derive(Clone, Debug)]
pub enum Http {
    /// `hdr`, `fhdr`, `cook` of either side, and their `_ip` and `_val`.
    Occurrence {
        /// Which message.
        side: Side,
        /// Which values.
        list: List,
        /// The header's or cookie's name; empty means any.
        name: Box<[u8]>,
        /// From 1, negative from the end, 0 for the last or, under a cursor, for all.
        occurrence: i64,
        /// What becomes of it.
        cast: Cast,
    },
    /// `url_param`, `req.body_param`.
    Parameter {
        /// In the body, not in the target.
        in_body: bool,
        /// Its name; empty means any.
        name: Box<[u8]>,
        /// What the list begins behind.
        delimiter: u8,
        /// `i`.
        ignore_case: bool,
        /// What becomes of it.
        cast: Cast,
    },
    /// `hdr_cnt`, `fhdr_cnt`, `cook_cnt` of either side.
    Count(Side, List, Box<[u8]>),
    /// `hdr_names`.
    FieldNames(Side, u8),
    /// `cook_names`.
    CookieNames(Side, u8),
    /// `hdrs`.
    Lines(Side),
    /// `hdrs_bin`.
    Binary(Side),
    /// `base`, or `baseq` with the query.
    Base(bool),
    /// `base32`, or `url32` with the query.
    Hash(bool),
    /// `base32+src`, or `url32+src` with the query.
    HashAndSource(bool),
    /// `method`.
    Method,
    /// `path`.
    Path,
    /// `pathq`.
    PathAndQuery,
    /// `query`.
    Query,
    /// `url`.
    Url,
    /// `url_ip`.
    UrlIp,
    /// `url_port`.
    UrlPort,
    /// `req.ver`, `res.ver`.
    Version(Side),
    /// `status`.
    Status,
    /// `http_first_req`.
    FirstRequest,
    /// `capture.req.method`.
    CapturedMethod,
    /// `capture.req.uri`.
    CapturedUri,
    /// `capture.req.ver`, `capture.res.ver`.
    CapturedVersion(Side),
    /// `capture.req.hdr`, `capture.res.hdr`: a slot's number from 0.
    CapturedHeader(Side, usize),
    /// `http_auth_type`.
    AuthType,
    /// `http_auth_user`.
    AuthUser,
    /// `http_auth_pass`.
    AuthPassword,
    /// `http_auth_bearer`, in the field of this name.
    AuthBearer(Box<[u8]>),
}

impl Http {
    pub(super) fn compile(fetch: Fetch, args: &Args<'_>) -> Result<Option<Http>, String> {
        use List::{Cookies, Elements, Lines};
        use Side::{Request, Response};
        let occurrence = |side, list, cast| {
            let occurrence = match list {
                Cookies => 0,
                Elements | Lines => args.int(1)?.unwrap_or(0),
            };
            Ok::<_, String>(Http::Occurrence { side, list, name: args.text(0)?, occurrence, cast })
        };
        let parameter = |cast| {
            Ok::<_, String>(Http::Parameter {
                in_body: false,
                name: args.text(0)?,
                delimiter: args.delimiter(1, b'?')?,
                ignore_case: args.ignores_case(2)?,
                cast,
            })
        };
        let slot = || {
            let number = args.wanted_int(0)?;
            usize::try_from(number).map_err(|_| format!("'{number}' is negative"))
        };
        let count = |side, list| Ok::<_, String>(Http::Count(side, list, args.text(0)?));
        Ok(Some(match fetch {
            Fetch::ReqHdr => occurrence(Request, Elements, Cast::Text)?,
            Fetch::ReqHdrIp => occurrence(Request, Elements, Cast::Ip)?,
            Fetch::ReqHdrVal => occurrence(Request, Elements, Cast::Int)?,
            Fetch::ReqFhdr => occurrence(Request, Lines, Cast::Text)?,
            Fetch::ReqCook => occurrence(Request, Cookies, Cast::Text)?,
            Fetch::ReqCookVal => occurrence(Request, Cookies, Cast::Int)?,
            Fetch::ResHdr => occurrence(Response, Elements, Cast::Text)?,
            Fetch::ResHdrIp => occurrence(Response, Elements, Cast::Ip)?,
            Fetch::ResHdrVal => occurrence(Response, Elements, Cast::Int)?,
            Fetch::ResFhdr => occurrence(Response, Lines, Cast::Text)?,
            Fetch::ResCook => occurrence(Response, Cookies, Cast::Text)?,
            Fetch::ResCookVal => occurrence(Response, Cookies, Cast::Int)?,
            Fetch::UrlParam => parameter(Cast::Text)?,
            Fetch::UrlpVal => parameter(Cast::Int)?,
            Fetch::ReqBodyParam => Http::Parameter {
                in_body: true,
                name: args.text(0)?,
                delimiter: b'&',
                ignore_case: args.ignores_case(1)?,
                cast: Cast::Text,
            },
            Fetch::ReqHdrCnt => count(Request, Elements)?,
            Fetch::ReqFhdrCnt => count(Request, Lines)?,
            Fetch::ReqCookCnt => count(Request, Cookies)?,
            Fetch::ResHdrCnt => count(Response, Elements)?,
            Fetch::ResFhdrCnt => count(Response, Lines)?,
            Fetch::ResCookCnt => count(Response, Cookies)?,
            Fetch::ReqHdrNames => Http::FieldNames(Request, args.delimiter(0, b',')?),
            Fetch::ResHdrNames => Http::FieldNames(Response, args.delimiter(0, b',')?),
            Fetch::ReqCookNames => Http::CookieNames(Request, args.delimiter(0, b',')?),
            Fetch::ResCookNames => Http::CookieNames(Response, args.delimiter(0, b',')?),
            Fetch::ReqHdrs => Http::Lines(Request),
            Fetch::ResHdrs => Http::Lines(Response),
            Fetch::ReqHdrsBin => Http::Binary(Request),
            Fetch::ResHdrsBin => Http::Binary(Response),
            Fetch::Base => Http::Base(false),
            Fetch::Baseq => Http::Base(true),
            Fetch::Base32 => Http::Hash(false),
            Fetch::Url32 => Http::Hash(true),
            Fetch::Base32Src => Http::HashAndSource(false),
            Fetch::Url32Src => Http::HashAndSource(true),
            Fetch::Method => Http::Method,
            Fetch::Path => Http::Path,
            Fetch::Pathq => Http::PathAndQuery,
            Fetch::Query => Http::Query,
            Fetch::Url => Http::Url,
            Fetch::UrlIp => Http::UrlIp,
            Fetch::UrlPort => Http::UrlPort,
            Fetch::ReqVer => Http::Version(Request),
            Fetch::ResVer => Http::Version(Response),
            Fetch::Status => Http::Status,
            Fetch::HttpFirstReq => Http::FirstRequest,
            Fetch::CaptureReqMethod => Http::CapturedMethod,
            Fetch::CaptureReqUri => Http::CapturedUri,
            Fetch::CaptureReqVer => Http::CapturedVersion(Request),
            Fetch::CaptureResVer => Http::CapturedVersion(Response),
            Fetch::CaptureReqHdr => Http::CapturedHeader(Request, slot()?),
            Fetch::CaptureResHdr => Http::CapturedHeader(Response, slot()?),
            Fetch::HttpAuthType => Http::AuthType,
            Fetch::HttpAuthUser => Http::AuthUser,
            Fetch::HttpAuthPass => Http::AuthPassword,
            Fetch::HttpAuthBearer => {
                let name = args.text(0)?;
                Http::AuthBearer(if name.is_empty() { AUTHORIZATION.into() } else { name })
            }
            _ => return Ok(None),
        }))
    }

    pub(super) fn is_multiple(&self) -> bool {
        matches!(self, Http::Occurrence { occurrence: 0, .. } | Http::Parameter { .. })
    }

    #[inline]
    pub(super) fn fetch<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        match self {
            Http::Occurrence { side, list, name, occurrence, cast } => {
                let message = message(cx, *side)?;
                // Without a name the first cookie is meant, though the last one of a name.
                let occurrence = if *list == List::Cookies && name.is_empty() { 1 } else { *occurrence };
                values(message, *side, *list, name, |values| pick(values, occurrence)).and_then(|text| cast.of(text))
            }
            Http::Path => target::path(request(cx)?.target()).map(Value::text),
            Http::Method => request(cx).map(|message| Value::Method(Cow::Borrowed(message.method()))),
            Http::Parameter { cast, .. } => self.parameters(cx)?.next().and_then(|text| cast.of(text)),
            Http::Url => request(cx).map(|message| Value::text(message.target())),
            Http::Query => target::query(request(cx)?.target()).map(Value::text),
            Http::PathAndQuery => target::path_and_query(request(cx)?.target()).map(Value::text),
            Http::Status => match cx.response.status() {
                0 => None,
                status => Some(Value::Int(i64::from(status))),
            },
            other => other.rarer(cx),
        }
    }

    /// What is fetched less often, out of the way of what every rule fetches.
    fn rarer<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        Some(match self {
            Http::Count(side, list, name) => {
                let message = message(cx, *side)?;
                Value::Int(values(message, *side, *list, name, |values| values.count()) as i64)
            }
            Http::FieldNames(side, delimiter) => Value::owned_text(field_names(message(cx, *side)?, *delimiter)),
            Http::CookieNames(side, delimiter) => cookie_names(message(cx, *side)?, *side, *delimiter)?,
            Http::Lines(side) => Value::owned_text(lines(message(cx, *side)?)),
            Http::Binary(side) => Value::Bin(Cow::Owned(binary(message(cx, *side)?))),
            Http::Base(query) => base(request(cx)?, *query)?,
            Http::Hash(query) => Value::Int(i64::from(hash(request(cx)?, *query))),
            Http::HashAndSource(query) => {
                let mut bytes = hash(request(cx)?, *query).to_be_bytes().to_vec();
                match cx.source?.ip() {
                    IpAddr::V4(ip) => bytes.extend_from_slice(&ip.octets()),
                    IpAddr::V6(ip) => bytes.extend_from_slice(&ip.octets()),
                }
                Value::Bin(Cow::Owned(bytes))
            }
            Http::UrlIp => Value::Ip(IpAddr::V4(target::address(request(cx)?.target())?.0)),
            Http::UrlPort => Value::Int(i64::from(target::address(request(cx)?.target())?.1)),
            Http::Version(side) => Value::text(match message(cx, *side)?.version() {
                Version::Http10 => b"1.0",
                Version::Http11 => b"1.1",
            }),
            Http::FirstRequest => Value::Bool(cx.request_number <= 1),
            Http::CapturedMethod => Value::text(captured(cx, 0)?),
            Http::CapturedUri => Value::text(target::path_and_query(captured(cx, 1)?)?),
            Http::CapturedVersion(side) => Value::text(match message(cx, *side)?.version() {
                Version::Http10 => b"HTTP/1.0",
                Version::Http11 => b"HTTP/1.1",
            }),
            Http::CapturedHeader(side, slot) => {
                let captures = &cx.log.captures;
                let slots = if *side == Side::Request { &captures.request } else { &captures.response };
                Value::text(slots.get(*slot)?)
            }
            Http::AuthType => match credentials(request(cx)?, auth::field(cx))? {
                Credentials::Basic(_) => Value::text(b"Basic"),
                Credentials::Bearer(_) => Value::text(b"Bearer"),
            },
            Http::AuthUser | Http::AuthPassword => {
                let Credentials::Basic(mut text) = credentials(request(cx)?, auth::field(cx))? else { return None };
                let colon = memchr(b':', &text)?;
                if matches!(self, Http::AuthUser) {
                    text.truncate(colon);
                } else {
                    text.drain(..=colon);
                }
                Value::owned_text(text)
            }
            Http::AuthBearer(field) => match credentials(request(cx)?, field)? {
                Credentials::Bearer(token) => Value::text(token),
                Credentials::Basic(_) => return None,
            },
            _ => return None,
        })
    }

    /// The occurrence after those the cursor has seen.
    pub(super) fn fetch_next<'a>(&'a self, cx: &'a StreamContext, cursor: &mut Cursor) -> Option<Value<'a>> {
        loop {
            let seen = cursor.seen as usize;
            let (found, cast) = match self {
                Http::Occurrence { side, list, name, cast, .. } => {
                    (values(message(cx, *side)?, *side, *list, name, |values| values.nth(seen))?, cast)
                }
                Http::Parameter { cast, .. } => (self.parameters(cx)?.nth(seen)?, cast),
                _ => return None,
            };
            cursor.seen += 1;
            // What is no address is passed over.
            if let Some(value) = cast.of(found) {
                return Some(value);
            }
        }
    }

    fn parameters<'a>(&'a self, cx: &'a StreamContext) -> Option<Parameters<'a>> {
        let Http::Parameter { in_body, name, delimiter, ignore_case, .. } = self else { return None };
        let request = request(cx)?;
        Some(if *in_body {
            Parameters::new(&cx.request_content.data, name, *delimiter, *ignore_case)
        } else {
            Parameters::of_target(request.target(), name, *delimiter, *ignore_case)
        })
    }

    /// It looks at the request's body.
    pub(super) fn needs_body(&self) -> bool {
        matches!(self, Http::Parameter { in_body: true, .. })
    }
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

/// The number that a text begins with, as HAProxy reads it: into a C `int`, up to the first byte above `9`. What stands
/// below `0` counts as the negative digit that it is by its place in ASCII, so `1.5` gives 85.
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

/// The request, if one was parsed: the context of a TCP stream holds an empty one until its contents are one.
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

/// The occurrence by number: from 1, negative from the end, 0 the last.
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

/// A word of the request line as it came: 0 the method, 1 the target.
fn captured(cx: &StreamContext, word: usize) -> Option<&[u8]> {
    cx.log.request_line.split(|byte| *byte == b' ').nth(word).filter(|text| !text.is_empty())
}

/// The first Host field's first value.
fn host(request: &Message) -> &[u8] {
    field::header_values(request, b"host", false).next().unwrap_or_default()
}

fn base(request: &Message, query: bool) -> Option<Value<'_>> {
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

/// The fields' names in their order, in lower case.
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

/// The fields as lines, names in lower case as HTTP/2 has them.
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

/// The fields behind their lengths, an empty name and an empty value at the end.
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

/// A length as HAProxy's protocols write it: below 240 a byte, else 4 bits in the first and 7 in each further one.
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
