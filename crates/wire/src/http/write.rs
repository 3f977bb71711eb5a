//! Serialization of heads.
//!
//! The writer owns framing and the connection: whatever Content-Length, Transfer-Encoding and Connection fields a
//! message carries, the written head has the framing that its sender will really use, once. A field that agrees with it
//! keeps its position.

use super::{Framing, Message, StartLine, Version};

/// The persistence of the connection that the writer announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionField {
    /// Nothing: the version's default holds, or the message upgrades.
    None,
    /// `connection: close`.
    Close,
    /// `connection: keep-alive`.
    KeepAlive,
}

impl ConnectionField {
    /// Returns the announcement of a request to a server: 1.1 keeps alive by default, 1.0 closes by default (HAProxy's
    /// H1 mux).
    pub fn for_request(version: Version, keep_alive: bool) -> ConnectionField {
        match (version, keep_alive) {
            (Version::Http11 | Version::Http2, false) => ConnectionField::Close,
            (Version::Http10, true) => ConnectionField::KeepAlive,
            _ => ConnectionField::None,
        }
    }

    /// Returns the announcement of a response to a client, given the version of the request and of the response.
    pub fn for_response(request: Version, response: Version, keep_alive: bool) -> ConnectionField {
        // A message of HTTP/2 is written as one of HTTP/1.1.
        match (request.min(Version::Http11), response.min(Version::Http11), keep_alive) {
            (_, Version::Http11, false) => ConnectionField::Close,
            (Version::Http11, Version::Http11, true) | (_, Version::Http10, false) => ConnectionField::None,
            _ => ConnectionField::KeepAlive,
        }
    }
}

/// Appends a request head, empty line included.
///
/// `body` is the framing of the body that follows; [`Framing::UntilClose`] is invalid for a request and counts as
/// [`Framing::None`], with which Content-Length and Transfer-Encoding are omitted.
pub fn write_request(message: &Message, body: Framing, connection: ConnectionField, out: &mut Vec<u8>) {
    let StartLine::Request { method, version, .. } = message.start_line() else {
        debug_assert!(false, "a response written as a request");
        return;
    };
    out.reserve(message.wire_len() + 64);
    out.extend_from_slice(method);
    out.push(b' ');
    message.http1_target().into_iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(match version {
        Version::Http10 => b" HTTP/1.0\r\n".as_slice(),
        Version::Http11 | Version::Http2 => b" HTTP/1.1\r\n",
    });
    let body = if body == Framing::UntilClose { Framing::None } else { body };
    write_fields(message, Some(body), connection, out);
}

/// Returns path and query of a target in absolute form. The path may be empty.
pub fn origin_form(target: &[u8]) -> Option<&[u8]> {
    let scheme = memchr::memmem::find(target, b"://")?;
    if !target[..scheme].iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')) {
        return None;
    }
    let rest = &target[scheme + 3..];
    let start = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    Some(&rest[start..])
}

/// Appends a response head, empty line included.
///
/// `body` is the framing of the body that follows. [`Framing::None`] means that none follows because none is allowed
/// (an answer to HEAD, 1xx, 204, 304): the message's own length fields are passed on, except in 1xx and 204, where they
/// are not allowed. An empty body where one is allowed is `Length(0)`.
pub fn write_response(message: &Message, body: Framing, connection: ConnectionField, out: &mut Vec<u8>) {
    let StartLine::Response { version, status, reason } = message.start_line() else {
        debug_assert!(false, "a request written as a response");
        return;
    };
    out.reserve(message.wire_len() + 64);
    out.extend_from_slice(match version {
        Version::Http10 => b"HTTP/1.0 ".as_slice(),
        Version::Http11 | Version::Http2 => b"HTTP/1.1 ",
    });
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    out.push(b' ');
    // An empty reason is written as the status's own, as in HAProxy since 2.8.
    out.extend_from_slice(if reason.is_empty() { super::status::reason(status).as_bytes() } else { reason });
    out.extend_from_slice(b"\r\n");
    let framing = match body {
        Framing::None if status < 200 || status == 204 => Some(Framing::None),
        Framing::None => None,
        body => Some(body),
    };
    write_fields(message, framing, connection, out);
}

/// `framing` is the framing to enforce; `None`: the message's own fields describe a body that is not sent, and are
/// passed on.
fn write_fields(message: &Message, framing: Option<Framing>, connection: ConnectionField, out: &mut Vec<u8>) {
    let mut length_said = false;
    let mut chunked_said = false;
    for (_, name, value) in message.fields() {
        match name.len() {
            14 if name == b"content-length" => match framing {
                Some(Framing::Length(length)) if !length_said => {
                    length_said = true;
                    write_field(name, itoa::Buffer::new().format(length).as_bytes(), out);
                    continue;
                }
                Some(_) => continue,
                None => {}
            },
            17 if name == b"transfer-encoding" => match framing {
                Some(Framing::Chunked) if !chunked_said => {
                    chunked_said = true;
                    write_field(name, b"chunked", out);
                    continue;
                }
                Some(_) => continue,
                None => {}
            },
            2 if name == b"te" => {
                // A relay can pass on only `trailers` of the codings that a peer accepts.
                if accepts_trailers(value) {
                    write_field(name, b"trailers", out);
                }
                continue;
            }
            _ => {}
        }
        write_field(name, value, out);
    }
    match framing {
        Some(Framing::Length(length)) if !length_said => {
            write_field(b"content-length", itoa::Buffer::new().format(length).as_bytes(), out);
        }
        _ => {}
    }
    match connection {
        ConnectionField::None => {}
        ConnectionField::Close => write_field(b"connection", b"close", out),
        ConnectionField::KeepAlive => write_field(b"connection", b"keep-alive", out),
    }
    // The last field, as in HAProxy.
    if framing == Some(Framing::Chunked) && !chunked_said {
        write_field(b"transfer-encoding", b"chunked", out);
    }
    out.extend_from_slice(b"\r\n");
}

fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn accepts_trailers(value: &[u8]) -> bool {
    super::field::elements(value).any(|element| element.eq_ignore_ascii_case(b"trailers"))
}
