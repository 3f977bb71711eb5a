//! What came of a message, before or besides its head (HAProxy configuration manual 7.3.5 and bodies of 7.3.6).
//!
//! In TCP mode contents are the bytes received and not forwarded yet; in HTTP mode they are what is here of the body.

use sluicegate_config::catalogue::Fetch;

use super::Args;
use super::tls::{self, Look};
use crate::counters::head_size;
use crate::sample::value::Value;
use crate::stream::{Content as Received, ContentForm, StreamContext};

/// Which message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The request.
    Request,
    /// The response.
    Response,
}

/// A fetch of contents.
#[derive(Clone, Debug)]
pub enum Content {
    /// `req.len`, `res.len`.
    Length(Direction),
    /// `payload(offset,length)`; length 0: all that is there.
    Payload(Direction, usize, usize),
    /// `payload_lv`.
    Prefixed {
        /// Which message.
        direction: Direction,
        /// Where the length stands.
        at: usize,
        /// In how many bytes.
        width: usize,
        /// Where the bytes stand.
        from: Start,
    },
    /// `req.proto_http`.
    ProtoHttp,
    /// `req.rdp_cookie`.
    RdpCookie(Box<[u8]>),
    /// `req.rdp_cookie_cnt`.
    RdpCookieCount(Box<[u8]>),
    /// `req.ssl_hello_type`, `res.ssl_hello_type`.
    HelloType(Direction),
    /// `req.ssl_sni`.
    ServerName,
    /// `req.ssl_ver`.
    TlsVersion,
    /// `req.ssl_alpn`.
    Protocols,
    /// `req.ssl_ec_ext`.
    Groups,
    /// `req.ssl_st_ext`.
    SessionTicket,
    /// `req.body`, `res.body`.
    Body(Direction),
    /// `req.body_len`, `res.body_len`.
    BodyLength(Direction),
    /// `req.body_size`, `res.body_size`.
    BodySize(Direction),
}

/// Where the bytes of `payload_lv` stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Behind the length, moved by so much.
    Behind(i64),
    /// At an offset.
    At(usize),
}

impl Content {
    pub(super) fn compile(fetch: Fetch, args: &Args<'_>) -> Result<Option<Content>, String> {
        use Direction::{Request, Response};
        let offset = |index| {
            let number = args.wanted_int(index)?;
            usize::try_from(number).map_err(|_| format!("'{number}' is negative"))
        };
        let payload = |direction| Ok::<_, String>(Content::Payload(direction, offset(0)?, offset(1)?));
        let prefixed = |direction| {
            let width = offset(1)?;
            if !(1..=4).contains(&width) {
                return Err("a length stands in 1 to 4 bytes".to_owned());
            }
            let from = match args.str(2)? {
                None => Start::Behind(0),
                Some(text) => {
                    let bad = || format!("'{text}' is no offset");
                    match text.as_bytes()[0] {
                        b'+' | b'-' => Start::Behind(text.parse().map_err(|_| bad())?),
                        _ => Start::At(text.parse().map_err(|_| bad())?),
                    }
                }
            };
            Ok::<_, String>(Content::Prefixed { direction, at: offset(0)?, width, from })
        };
        Ok(Some(match fetch {
            Fetch::ReqLen => Content::Length(Request),
            Fetch::ResLen => Content::Length(Response),
            Fetch::ReqPayload => payload(Request)?,
            Fetch::ResPayload => payload(Response)?,
            Fetch::ReqPayloadLv => prefixed(Request)?,
            Fetch::ResPayloadLv => prefixed(Response)?,
            Fetch::ReqProtoHttp => Content::ProtoHttp,
            Fetch::ReqRdpCookie => Content::RdpCookie(args.text(0)?),
            Fetch::ReqRdpCookieCnt => Content::RdpCookieCount(args.text(0)?),
            Fetch::ReqSslHelloType => Content::HelloType(Request),
            Fetch::ResSslHelloType => Content::HelloType(Response),
            Fetch::ReqSslSni => Content::ServerName,
            Fetch::ReqSslVer => Content::TlsVersion,
            Fetch::ReqSslAlpn => Content::Protocols,
            Fetch::ReqSslEcExt => Content::Groups,
            Fetch::ReqSslStExt => Content::SessionTicket,
            Fetch::ReqBody => Content::Body(Request),
            Fetch::ResBody => Content::Body(Response),
            Fetch::ReqBodyLen => Content::BodyLength(Request),
            Fetch::ResBodyLen => Content::BodyLength(Response),
            Fetch::ReqBodySize => Content::BodySize(Request),
            Fetch::ResBodySize => Content::BodySize(Response),
            _ => return Ok(None),
        }))
    }

    pub(super) fn fetch<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        // The proxy's mode decides and not whether a head was parsed: contents of a TCP stream may hold one.
        let http = is_http(cx);
        let hello = || Some(&cx.request_content.data[..]).filter(|_| !http);
        Some(match self {
            Content::Length(direction) => {
                let head = match direction {
                    Direction::Request if http => head_size(&cx.request),
                    Direction::Response if http && cx.response.status() != 0 => head_size(&cx.response),
                    _ => 0,
                };
                // More may always come: who compares it waits until it matches.
                cx.inspection.miss();
                Value::Int((head + received(cx, *direction).data.len()) as i64)
            }
            // In HTTP mode contents are messages, which have no bytes at offsets.
            Content::Payload(..) | Content::Prefixed { .. } if http => return None,
            Content::Payload(direction, offset, length) => {
                let data = &received(cx, *direction).data;
                let part = match length {
                    0 => data.get(*offset..),
                    length => data.get(*offset..).and_then(|data| data.get(..*length)),
                };
                if part.is_none() || *length == 0 {
                    cx.inspection.miss();
                }
                Value::Bin(part?.into())
            }
            Content::Prefixed { direction, at, width, from } => {
                let part = prefixed(&received(cx, *direction).data, *at, *width, *from);
                if part == Look::Short {
                    cx.inspection.miss();
                }
                match part {
                    Look::Found(part) => Value::Bin(part.into()),
                    Look::None | Look::Short => return None,
                }
            }
            Content::ProtoHttp => {
                // The request was forwarded.
                if cx.in_response {
                    return None;
                }
                if !http && cx.request.method().is_empty() {
                    if !cx.request_content.no_http {
                        cx.inspection.miss();
                    }
                    return None;
                }
                Value::Bool(true)
            }
            Content::RdpCookie(name) => Value::text(look(cx, rdp_cookie(hello()?, name))?),
            Content::RdpCookieCount(name) => {
                let found = hello().and_then(|data| look(cx, rdp_cookie(data, name)));
                Value::Int(i64::from(found.is_some()))
            }
            Content::HelloType(Direction::Request) => Value::Int(i64::from(look(cx, tls::hello_type(hello()?))?)),
            Content::HelloType(Direction::Response) => {
                let data = Some(&cx.response_content.data[..]).filter(|_| !http)?;
                Value::Int(i64::from(look(cx, tls::hello_type(data))?))
            }
            Content::ServerName => Value::text(look(cx, tls::server_name(hello()?))?),
            Content::TlsVersion => Value::Int(look(cx, tls::version(hello()?))?),
            Content::Protocols => Value::text(look(cx, tls::first_protocol(hello()?))?),
            Content::Groups => Value::Bool(look(cx, tls::has_groups(hello()?))?),
            Content::SessionTicket => Value::Int(look(cx, tls::session_ticket(hello()?))?),
            Content::Body(direction) => {
                body(cx, *direction)?;
                Value::Bin((&received(cx, *direction).data).into())
            }
            Content::BodyLength(direction) => {
                body(cx, *direction)?;
                Value::Int(received(cx, *direction).data.len() as i64)
            }
            Content::BodySize(direction) => {
                body(cx, *direction)?;
                let received = received(cx, *direction);
                Value::Int(received.announced.unwrap_or(received.data.len() as u64) as i64)
            }
        })
    }

    /// Rules with it must be given contents.
    pub(super) fn direction(&self) -> Direction {
        match self {
            Content::Length(direction)
            | Content::Payload(direction, ..)
            | Content::Prefixed { direction, .. }
            | Content::HelloType(direction)
            | Content::Body(direction)
            | Content::BodyLength(direction)
            | Content::BodySize(direction) => *direction,
            _ => Direction::Request,
        }
    }
}

fn is_http(cx: &StreamContext) -> bool {
    match cx.response_content.form {
        // A connection of TCP may have been switched to HTTP.
        ContentForm::ByMode => cx.request_number > 0 || cx.frontend.config.mode == sluicegate_config::model::Mode::Http,
        ContentForm::Bytes => false,
        ContentForm::Http => true,
    }
}

/// Bodies belong to messages.
fn body(cx: &StreamContext, direction: Direction) -> Option<()> {
    let there = match direction {
        Direction::Request => !cx.request.method().is_empty() && !cx.request_content.no_http,
        Direction::Response => cx.response.status() != 0,
    };
    if !there {
        cx.inspection.miss();
    }
    (there && is_http(cx)).then_some(())
}

fn received(cx: &StreamContext, direction: Direction) -> &Received {
    match direction {
        Direction::Request => &cx.request_content,
        Direction::Response => &cx.response_content,
    }
}

fn look<T>(cx: &StreamContext, look: Look<T>) -> Option<T> {
    match look {
        Look::Found(value) => Some(value),
        Look::None => None,
        Look::Short => {
            cx.inspection.miss();
            None
        }
    }
}

/// Bytes whose number stands in `width` bytes at `at`.
fn prefixed(data: &[u8], at: usize, width: usize, from: Start) -> Look<&[u8]> {
    let Some(number) = data.get(at..).and_then(|data| data.get(..width)) else { return Look::Short };
    let length = number.iter().fold(0usize, |length, byte| length << 8 | usize::from(*byte));
    let start = match from {
        Start::At(start) => Some(start),
        Start::Behind(moved) => (at + width).checked_add_signed(moved as isize),
    };
    let (Some(start), true) = (start, length > 0) else { return Look::None };
    match data.get(start..).and_then(|data| data.get(..length)) {
        Some(part) => Look::Found(part),
        None => Look::Short,
    }
}

/// The cookie of an RDP connection request: `Cookie: NAME=VALUE` behind 11 bytes of TPKT and X.224 headers.
fn rdp_cookie<'a>(data: &'a [u8], name: &[u8]) -> Look<&'a [u8]> {
    const HEADERS: usize = 11;
    const WORD: &[u8] = b"Cookie:";
    let Some(rest) = data.get(HEADERS..).filter(|rest| rest.len() > WORD.len()) else { return Look::Short };
    if !rest[..WORD.len()].eq_ignore_ascii_case(WORD) {
        return Look::None;
    }
    let rest = &rest[WORD.len()..];
    let rest = &rest[rest.iter().position(|byte| *byte != b' ').unwrap_or(rest.len())..];
    let value = if name.is_empty() {
        match rest.iter().position(|byte| matches!(byte, b'=' | b'\r' | b'\n')) {
            None => return Look::Short,
            Some(at) if rest[at] != b'=' => return Look::None,
            Some(at) => &rest[at + 1..],
        }
    } else {
        if rest.len() <= name.len() {
            return Look::Short;
        }
        if rest[name.len()] != b'=' || !rest[..name.len()].eq_ignore_ascii_case(name) {
            return Look::None;
        }
        &rest[name.len() + 1..]
    };
    match memchr::memchr(b'\r', value) {
        Some(end) if value.get(end + 1) == Some(&b'\n') => Look::Found(&value[..end]),
        Some(end) if end + 1 < value.len() => Look::None,
        _ => Look::Short,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_stand_before_or_elsewhere() {
        let data = b"\0\0\x03abcdef";
        assert_eq!(prefixed(data, 1, 2, Start::Behind(0)), Look::Found(&b"abc"[..]));
        assert_eq!(prefixed(data, 1, 2, Start::Behind(2)), Look::Found(&b"cde"[..]));
        assert_eq!(prefixed(data, 1, 2, Start::Behind(-3)), Look::Found(&b"\0\0\x03"[..]));
        assert_eq!(prefixed(data, 1, 2, Start::Behind(-4)), Look::None);
        assert_eq!(prefixed(data, 1, 2, Start::At(6)), Look::Found(&b"def"[..]));
        assert_eq!(prefixed(data, 1, 2, Start::At(7)), Look::Short);
        assert_eq!(prefixed(data, 0, 1, Start::Behind(0)), Look::None);
        assert_eq!(prefixed(data, 8, 2, Start::Behind(0)), Look::Short);
        assert_eq!(prefixed(data, usize::MAX, 2, Start::Behind(0)), Look::Short);
    }

    #[test]
    fn rdp_cookies_need_their_line() {
        let head = b"\x03\0\0\x2a\x25\xe0\0\0\0\0\0";
        let check = |rest: &str, name: &str, expected: Look<&str>| {
            let data = [&head[..], rest.as_bytes()].concat();
            let found = match rdp_cookie(&data, name.as_bytes()) {
                Look::Found(value) => Look::Found(String::from_utf8_lossy(value).into_owned()),
                Look::None => Look::None,
                Look::Short => Look::Short,
            };
            let expected = match expected {
                Look::Found(value) => Look::Found(value.to_owned()),
                Look::None => Look::None,
                Look::Short => Look::Short,
            };
            assert_eq!(found, expected, "{rest:?} {name}");
        };
        check("Cookie: mstshash=user\r\n", "", Look::Found("user"));
        check("cookie:MSTShash=user\r\nmore", "mstshash", Look::Found("user"));
        check("Cookie: mstshash=user\r\n", "msts", Look::None);
        check("Cookie: mstshash=user\r", "mstshash", Look::Short);
        check("Cookie: mstshash=us\rer", "mstshash", Look::None);
        check("Cookie: mst", "", Look::Short);
        check("Cookie: mst\r\n", "", Look::None);
        check("Cook", "", Look::Short);
        check("nothing of it", "", Look::None);
    }
}
