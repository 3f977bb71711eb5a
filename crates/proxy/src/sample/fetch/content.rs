//! Received data of a message, before or in addition to its head (HAProxy configuration manual 7.3.5 and bodies of
//! 7.3.6).
//!
//! In TCP mode contents are the bytes received and not forwarded yet; in HTTP mode they are the available part of the
//! body.

use super::args::Args;
use super::code::{Compiled, looking, read, read_with};
use super::tls::{self, Look};
use crate::counters::head_size;
use crate::sample::Looks;
use crate::sample::value::Value;
use crate::stream::{Content as Received, ContentForm, StreamContext};

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// The request.
    Request,
    /// The response.
    Response,
}

/// Returns a fetch that reads the contents of a message; they are provided to the rules that use it.
fn contents<T, F>(direction: Direction, args: T, read: F) -> Compiled
where
    T: Send + Sync + 'static,
    F: for<'a> Fn(&'a T, &'a StreamContext) -> Option<Value<'a>> + Send + Sync + 'static,
{
    let (request, response) = (direction == Direction::Request, direction == Direction::Response);
    looking(Looks { request, response, head: false }, read_with(args, read))
}

/// `req.len`, `res.len`.
pub(super) fn length(direction: Direction) -> Compiled {
    contents(direction, direction, |direction, cx| {
        let http = is_http(cx);
        let head = match direction {
            Direction::Request if http => head_size(&cx.request),
            Direction::Response if http && cx.response.status() != 0 => head_size(&cx.response),
            _ => 0,
        };
        // More may always come: who compares it waits until it matches.
        cx.inspection.miss();
        Some(Value::Int((head + received(cx, *direction).data.len()) as i64))
    })
}

/// `payload(offset,length)`; length 0: all available bytes.
pub(super) fn payload(args: &Args<'_>, direction: Direction) -> Compiled {
    let part = (direction, args.wanted_size(0)?, args.wanted_size(1)?);
    contents(direction, part, |(direction, offset, length), cx| {
        let data = &bytes(cx, *direction)?.data;
        let part = match length {
            0 => data.get(*offset..),
            length => data.get(*offset..).and_then(|data| data.get(..*length)),
        };
        if part.is_none() || *length == 0 {
            cx.inspection.miss();
        }
        Some(Value::Bin(part?.into()))
    })
}

/// `payload_lv(offset,width[,start])`.
pub(super) fn payload_lv(args: &Args<'_>, direction: Direction) -> Compiled {
    let width = args.wanted_size(1)?;
    if !(1..=4).contains(&width) {
        return Err("a length stands in 1 to 4 bytes".to_owned());
    }
    let from = match args.str(2)? {
        None => Start::Behind(0),
        Some(text) => {
            let bad = || format!("'{text}' is no offset");
            match text.as_bytes()[0] {
                b'+' | b'-' => Start::Behind(text.parse().map_err(|_| bad())?),
                // HAProxy takes the lowest bit of a number without a sign for the mark of a relative one.
                _ => match text.parse::<usize>().map_err(|_| bad())? {
                    odd if odd % 2 == 1 => Start::Behind((odd / 2) as i64),
                    even => Start::At(even / 2),
                },
            }
        }
    };
    let part = (direction, args.wanted_size(0)?, width, from);
    contents(direction, part, |(direction, at, width, from), cx| {
        let part = prefixed(&bytes(cx, *direction)?.data, *at, *width, *from);
        look(cx, part).map(|part| Value::Bin(part.into()))
    })
}

pub(super) fn proto_http(_: &Args<'_>) -> Compiled {
    let read = read(|cx| {
        // The request was forwarded.
        if cx.in_response {
            return None;
        }
        if !is_http(cx) && cx.request.method().is_empty() {
            if !cx.request_content.no_http {
                cx.inspection.miss();
            }
            return None;
        }
        Some(Value::Bool(true))
    });
    looking(Looks { request: true, response: false, head: true }, read)
}

/// Returns the bytes that may contain a client's hello or cookie. The proxy's mode decides, not whether a head was
/// parsed, because the contents of a TCP stream may contain one.
fn hello(cx: &StreamContext) -> Option<&[u8]> {
    bytes(cx, Direction::Request).map(|content| &content.data[..])
}

pub(super) fn rdp_cookie(args: &Args<'_>) -> Compiled {
    contents(Direction::Request, args.text(0)?, |name, cx| {
        Some(Value::text(look(cx, find_rdp_cookie(hello(cx)?, name))?))
    })
}

pub(super) fn rdp_cookie_cnt(args: &Args<'_>) -> Compiled {
    contents(Direction::Request, args.text(0)?, |name, cx| {
        match hello(cx).map_or(Look::None, |data| find_rdp_cookie(data, name)) {
            Look::Short => {
                cx.inspection.miss();
                None
            }
            found => Some(Value::Int(i64::from(matches!(found, Look::Found(_))))),
        }
    })
}

/// `req.ssl_hello_type`, `res.ssl_hello_type`.
pub(super) fn ssl_hello_type(direction: Direction) -> Compiled {
    contents(direction, direction, |direction, cx| {
        Some(Value::Int(i64::from(look(cx, tls::hello_type(&bytes(cx, *direction)?.data))?)))
    })
}

pub(super) fn ssl_sni(_: &Args<'_>) -> Compiled {
    contents(Direction::Request, (), |(), cx| Some(Value::text(look(cx, tls::server_name(hello(cx)?))?)))
}

pub(super) fn ssl_ver(_: &Args<'_>) -> Compiled {
    contents(Direction::Request, (), |(), cx| Some(Value::Int(look(cx, tls::version(hello(cx)?))?)))
}

pub(super) fn ssl_alpn(_: &Args<'_>) -> Compiled {
    contents(Direction::Request, (), |(), cx| Some(Value::text(look(cx, tls::first_protocol(hello(cx)?))?)))
}

pub(super) fn ssl_ec_ext(_: &Args<'_>) -> Compiled {
    contents(Direction::Request, (), |(), cx| Some(Value::Bool(look(cx, tls::has_groups(hello(cx)?))?)))
}

pub(super) fn ssl_st_ext(_: &Args<'_>) -> Compiled {
    contents(Direction::Request, (), |(), cx| Some(Value::Int(look(cx, tls::session_ticket(hello(cx)?))?)))
}

/// A list of the hello of two-byte numbers: `req.ssl_cipherlist` and its like.
pub(super) fn ssl_list(list: fn(&[u8]) -> Look<&[u8]>) -> Compiled {
    contents(Direction::Request, list, |list, cx| Some(Value::Bin(look(cx, list(hello(cx)?))?.into())))
}

pub(super) fn ssl_keyshare_groups(_: &Args<'_>) -> Compiled {
    contents(Direction::Request, (), |(), cx| Some(Value::Bin(look(cx, tls::share_groups(hello(cx)?))?.into())))
}

/// `req.body`, `res.body`.
pub(super) fn body(direction: Direction) -> Compiled {
    contents(direction, direction, |direction, cx| Some(Value::Bin((&received_body(cx, *direction)?.data).into())))
}

/// `req.body_len`, `res.body_len`.
pub(super) fn body_len(direction: Direction) -> Compiled {
    contents(direction, direction, |direction, cx| Some(Value::Int(received_body(cx, *direction)?.data.len() as i64)))
}

/// `req.body_size`, `res.body_size`.
pub(super) fn body_size(direction: Direction) -> Compiled {
    contents(direction, direction, |direction, cx| {
        let received = received_body(cx, *direction)?;
        Some(Value::Int(received.announced().unwrap_or(received.data.len() as u64) as i64))
    })
}

/// The start of the bytes of `payload_lv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// After the length, moved by this offset.
    Behind(i64),
    /// At an offset.
    At(usize),
}

fn is_http(cx: &StreamContext) -> bool {
    match cx.response_content.form {
        ContentForm::ByMode => cx.is_http(),
        ContentForm::Bytes => false,
        ContentForm::Http => true,
    }
}

/// Returns the received body of a message; a TCP stream has none.
fn received_body(cx: &StreamContext, direction: Direction) -> Option<&Received> {
    let there = match direction {
        Direction::Request => !cx.request.method().is_empty() && !cx.request_content.no_http,
        Direction::Response => cx.response.status() != 0,
    };
    if !there {
        cx.inspection.miss();
    }
    (there && is_http(cx)).then(|| received(cx, direction))
}

fn received(cx: &StreamContext, direction: Direction) -> &Received {
    match direction {
        Direction::Request => &cx.request_content,
        Direction::Response => &cx.response_content,
    }
}

/// Returns the bytes of a message. In HTTP mode there are none, because the contents are messages without byte offsets.
pub(super) fn bytes(cx: &StreamContext, direction: Direction) -> Option<&Received> {
    (!is_http(cx)).then(|| received(cx, direction))
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

/// Returns the bytes whose number is stored in `width` bytes at `at`.
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

/// Returns the cookie of an RDP connection request: `Cookie: NAME=VALUE` after 11 bytes of TPKT and X.224 headers.
fn find_rdp_cookie<'a>(data: &'a [u8], name: &[u8]) -> Look<&'a [u8]> {
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
            let found = match find_rdp_cookie(&data, name.as_bytes()) {
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
