//! What a message says about its body and its connection, and the part of a body that came with the head.

use sluicegate_wire::http::{BodyDecoder, BodyEvent, ChunkError, Framing, Message, Method, Version};

use crate::mux::Moved;
use crate::sample::elements;

/// The size of the largest body that is read without being forwarded.
const DRAINED_MAX: u64 = 4 * 1024 * 1024;

/// Parses the part of a body that came with its head. Returns an error if its chunks are malformed.
pub(super) fn walk_held(
    framing: Framing,
    mut data: &[u8],
    mut seen: impl FnMut(&BodyEvent, &BodyDecoder),
) -> Result<(), ChunkError> {
    let mut decoder = BodyDecoder::new(framing);
    while !data.is_empty() && !decoder.is_done() {
        let (taken, event) = decoder.decode(data)?;
        seen(&event, &decoder);
        if taken == 0 {
            break;
        }
        data = &data[taken..];
    }
    Ok(())
}

/// Returns whether a body that is not forwarded is read to its end: if its end is known and near. A new connection is
/// cheaper than reading a large body only to drop it.
pub(super) fn is_worth_draining(body: Framing) -> bool {
    match body {
        Framing::Chunked => true,
        Framing::Length(length) => length <= DRAINED_MAX,
        Framing::None | Framing::UntilClose => false,
    }
}

/// Returns how many bytes of a body, as statistics count them, arrived with its head and before any malformed chunk.
pub(super) fn held_body(framing: Framing, data: &[u8]) -> usize {
    let mut moved = Moved::default();
    let _ = walk_held(framing, data, |event, decoder| moved.count(event, decoder));
    moved.body
}

/// Returns how many of the bytes that have arrived behind a head belong to its message; a pipelined request may follow.
/// All of a malformed body counts.
pub(super) fn own_bytes(framing: Framing, data: &[u8]) -> usize {
    match framing {
        Framing::None => 0,
        Framing::UntilClose => data.len(),
        Framing::Length(length) => data.len().min(usize::try_from(length).unwrap_or(usize::MAX)),
        Framing::Chunked => {
            let mut decoder = BodyDecoder::new(framing);
            let mut own = 0;
            while own < data.len() && !decoder.is_done() {
                match decoder.decode(&data[own..]) {
                    Ok((0, _)) | Err(_) => return data.len(),
                    Ok((taken, _)) => own += taken,
                }
            }
            own
        }
    }
}

/// Returns whether a message declares HTTP/1.0 but is chunked: an HTTP/1.0 reader does not know where it ends, so it is
/// the last one on its connection (RFC 9112 6.1).
pub(super) fn chunks_in_1_0(version: Version, framing: Framing) -> bool {
    version == Version::Http10 && framing == Framing::Chunked
}

/// Returns whether a server asks for NTLM or Negotiate, which authenticate a connection and not a request: no other client
/// may use the connection then. As in HAProxy, the first letters of each scheme decide.
pub(super) fn authenticates_connections(status: u16, response: &Message) -> bool {
    let name: &[u8] = if status == 401 { b"www-authenticate" } else { b"proxy-authenticate" };
    let begins = |scheme: &[u8]| {
        let text = scheme.get(..4).unwrap_or_default();
        text.eq_ignore_ascii_case(b"nego") || text.eq_ignore_ascii_case(b"ntlm")
    };
    response.fields_named(name).any(|(_, value)| elements(value).any(begins))
}

pub(super) fn is_idempotent(method: Method) -> bool {
    !matches!(method, Method::Post | Method::Connect | Method::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipelined_request_is_not_a_part_of_the_body_before_it() {
        let own = |framing, data: &str| own_bytes(framing, data.as_bytes());
        assert_eq!(own(Framing::None, "GET / HTTP/1.1\r\n"), 0);
        assert_eq!((own(Framing::Length(3), "abcGET /"), own(Framing::Length(9), "abc")), (3, 3));
        assert_eq!(own(Framing::UntilClose, "abc"), 3);
        assert_eq!(own(Framing::Chunked, "3\r\nabc\r\n0\r\nx: y\r\n\r\nGET /"), 19);
        assert_eq!(own(Framing::Chunked, "3\r\nabc\r\n2"), 9);
        assert_eq!(own(Framing::Chunked, "3\r\nabcdef"), 9);
    }
}
