//! Serialization of message heads for HTTP/2.
//!
//! As in HTTP/1, the writer decides about framing and the connection: the message's own fields about them are left out,
//! and Content-Length is the length of the body that really follows.

use super::super::class::Class;
use super::super::hpack::Encoder;
use crate::http::{self, Framing, Message};

/// The reason why a message can't be sent in HTTP/2. Nothing of the message was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsendable {
    /// The peer has not announced the extended CONNECT, so there is no way to switch protocols.
    NoExtendedConnect,
    /// A request that wants to switch protocols has a body.
    UpgradeWithBody,
    /// A status that HTTP/2 does not have: 101 for a request that was no extended CONNECT.
    Status,
    /// An extended CONNECT whose server answered successfully in the old protocol: its client would read the body as
    /// messages of the new one.
    NotSwitched,
    /// A request without a target.
    Target,
}

impl std::fmt::Display for Unsendable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unsendable::NoExtendedConnect => "the peer does not support extended CONNECT",
            Unsendable::UpgradeWithBody => "an upgrade with a body can't be converted to an extended CONNECT",
            Unsendable::Status => "status 101 without an extended CONNECT",
            Unsendable::NotSwitched => "the server did not switch protocols",
            Unsendable::Target => "no target",
        })
    }
}

impl std::error::Error for Unsendable {}

/// The kind of a request that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Written {
    Plain,
    Connect,
    /// An extended CONNECT to this protocol.
    Extended(Box<[u8]>),
}

/// Appends a response. `body` is the framing of the body that follows, as for [`http::write_response`]. `extended`
/// says whether it answers an extended CONNECT.
pub(in super::super) fn write_response(
    encoder: &mut Encoder,
    message: &Message,
    body: Framing,
    extended: bool,
    out: &mut Vec<u8>,
) -> Result<(), Unsendable> {
    let status = match (message.status(), extended) {
        (101, true) => 200,
        (101, false) => return Err(Unsendable::Status),
        (200..300, true) => return Err(Unsendable::NotSwitched),
        (status, _) => status,
    };
    encoder.begin(out);
    encoder.status(out, status);
    let length = match body {
        Framing::None if status < 200 || status == 204 || message.status() == 101 => Length::None,
        Framing::None => Length::Own,
        Framing::Length(length) => Length::Of(length),
        Framing::Chunked | Framing::UntilClose => Length::None,
    };
    write_fields(encoder, message, length, true, out);
    Ok(())
}

/// Appends a request. `https` says whether the scheme of a target without one is https; `connect_protocol` says whether
/// the peer has announced the extended CONNECT.
pub(in super::super) fn write_request(
    encoder: &mut Encoder,
    message: &Message,
    body: Framing,
    https: bool,
    connect_protocol: bool,
    out: &mut Vec<u8>,
) -> Result<Written, Unsendable> {
    let protocol = upgrade(message);
    if protocol.is_some() {
        if !connect_protocol {
            return Err(Unsendable::NoExtendedConnect);
        }
        if !matches!(body, Framing::None | Framing::Length(0)) {
            return Err(Unsendable::UpgradeWithBody);
        }
    }
    let (method, target) = (message.method(), message.target());
    if target.is_empty() {
        return Err(Unsendable::Target);
    }
    encoder.begin(out);
    let mut sends_host = true;
    let mut kind = Written::Plain;
    if protocol.is_none() && method == b"CONNECT" {
        encoder.field(out, b":method", method, Class::Method);
        encoder.field(out, b":authority", target, Class::Authority);
        (kind, sends_host) = (Written::Connect, false);
    } else {
        match (method, protocol.is_some()) {
            (_, true) => encoder.field(out, b":method", b"CONNECT", Class::Method),
            (b"GET", _) => encoder.fixed(out, 2),
            (b"POST", _) => encoder.fixed(out, 3),
            _ => encoder.field(out, b":method", method, Class::Method),
        }
        let (scheme, mut authority, path) = split(target);
        match scheme {
            Some(scheme) if scheme.eq_ignore_ascii_case(b"http") => encoder.fixed(out, 6),
            Some(scheme) if scheme.eq_ignore_ascii_case(b"https") => encoder.fixed(out, 7),
            Some(scheme) => encoder.field(out, b":scheme", scheme, Class::Scheme),
            None => encoder.fixed(out, if https && !message.is_plain() { 7 } else { 6 }),
        }
        if protocol.is_some() {
            authority = message.first(b"host").or(authority);
        }
        if let Some(authority) = authority.filter(|authority| !authority.is_empty()) {
            encoder.field(out, b":authority", authority, Class::Authority);
            sends_host = false;
        }
        match path {
            b"" if method == b"OPTIONS" => encoder.field(out, b":path", b"*", Class::Path),
            b"" | b"/" => encoder.fixed(out, 4),
            [b'?', ..] => encoder.field(out, b":path", &[b"/", path].concat(), Class::Path),
            _ => encoder.field(out, b":path", path, Class::Path),
        }
        if let Some(protocol) = protocol {
            encoder.field(out, b":protocol", protocol, Class::Protocol);
            kind = Written::Extended(protocol.into());
        }
    }
    let length = match body {
        Framing::Length(length) if kind == Written::Plain => Length::Of(length),
        _ => Length::None,
    };
    write_fields(encoder, message, length, sends_host, out);
    Ok(kind)
}

/// Appends trailers, without fields that are not allowed there. Returns whether any was appended.
pub(in super::super) fn write_trailers(encoder: &mut Encoder, message: &Message, out: &mut Vec<u8>) -> bool {
    let is_allowed = |class: Class| {
        !matches!(class, Class::Host | Class::ContentLength | Class::Connection | Class::Te | Class::Invalid)
    };
    let fields = message.fields().map(|(_, name, value)| (name, value, Class::of_field(name)));
    let mut some = false;
    for (name, value, class) in fields.filter(|(_, _, class)| is_allowed(*class)) {
        if !some {
            encoder.begin(out);
        }
        encoder.field(out, name, value, class);
        some = true;
    }
    some
}

/// The treatment of Content-Length.
#[derive(Clone, Copy)]
enum Length {
    /// The field is left out.
    None,
    /// The message's own field is kept: it describes a body that is not sent.
    Own,
    Of(u64),
}

fn write_fields(encoder: &mut Encoder, message: &Message, length: Length, sends_host: bool, out: &mut Vec<u8>) {
    let mut number = itoa::Buffer::new();
    let mut written = false;
    for (_, name, value) in message.fields() {
        let class = Class::of_field(name);
        match class {
            Class::Connection | Class::Invalid => {}
            Class::Host if !sends_host => {}
            Class::Te => {
                if http::elements(value).any(|element| element.eq_ignore_ascii_case(b"trailers")) {
                    encoder.field(out, name, b"trailers", class);
                }
            }
            Class::ContentLength => match length {
                Length::Of(length) if !written => {
                    encoder.field(out, name, number.format(length).as_bytes(), class);
                    written = true;
                }
                Length::Own => encoder.field(out, name, value, class),
                _ => {}
            },
            _ => encoder.field(out, name, value, class),
        }
    }
    if let Length::Of(length) = length
        && !written
    {
        encoder.field(out, b"content-length", number.format(length).as_bytes(), Class::ContentLength);
    }
}

/// Returns whether a request asks for a tunnel, so that more data follows the end of the request.
pub fn asks_for_tunnel(request: &Message) -> bool {
    request.method() == b"CONNECT" || upgrade(request).is_some()
}

/// Returns the protocol that a request wants to switch to: the first one in its Upgrade field.
fn upgrade(message: &Message) -> Option<&[u8]> {
    let protocol = message.first(b"upgrade")?;
    let is_upgrade = |value| http::elements(value).any(|element| element.eq_ignore_ascii_case(b"upgrade"));
    let wanted = message.fields_named(b"connection").any(|(_, value)| is_upgrade(value));
    http::elements(protocol).next().filter(|protocol| wanted && !protocol.is_empty())
}

/// Splits a target into scheme, authority without user information, and path with query.
fn split(target: &[u8]) -> (Option<&[u8]>, Option<&[u8]>, &[u8]) {
    let colon = match target.first() {
        Some(b'/' | b'*') => None,
        _ => memchr::memchr(b':', target).filter(|at| target[*at..].starts_with(b"://")),
    };
    let Some(colon) = colon else { return (None, None, target) };
    let rest = &target[colon + 3..];
    let (authority, path) = rest.split_at(memchr::memchr3(b'/', b'?', b'#', rest).unwrap_or(rest.len()));
    let host = memchr::memrchr(b'@', authority).map_or(authority, |at| &authority[at + 1..]);
    (Some(&target[..colon]), Some(host), path)
}
