//! The handshake of a WebSocket whose client speaks HTTP/2.
//!
//! An extended CONNECT (RFC 8441) has no key. Towards a server of HTTP/1 the request needs one (RFC 6455 4.1), and the
//! server's proof that it has read it is checked here instead of by the client.

use sha1::{Digest, Sha1};
use sluicegate_wire::http::{Message, Version};

use crate::random::random;
use crate::sample::base64::Base64;

/// The name of the field with the key, as HAProxy writes it.
pub(super) const KEY_FIELD: &[u8] = b"Sec-Websocket-Key";

/// The name of the field with the server's proof.
const ACCEPT_FIELD: &[u8] = b"sec-websocket-accept";

/// The suffix of the key in the server's proof.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A key that was made here.
#[derive(Debug)]
pub(super) struct Key(Vec<u8>);

impl Key {
    /// Returns a key for a request that needs one and has none.
    pub(super) fn for_request(head: &Message) -> Option<Key> {
        if head.version() != Version::Http2 || head.first(b"sec-websocket-key").is_some() {
            return None;
        }
        let mut protocols = head.first(b"upgrade")?.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        if !protocols.any(|protocol| protocol.eq_ignore_ascii_case(b"websocket")) {
            return None;
        }
        let bytes = (u128::from(random()) << 64 | u128::from(random())).to_be_bytes();
        Some(Key(Base64::Standard.encode(&bytes)))
    }

    /// Returns the key as it is sent.
    pub(super) fn text(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether a response proves that its server has read the key.
    pub(super) fn is_accepted_by(&self, response: &Message) -> bool {
        response.first(ACCEPT_FIELD).is_some_and(|value| value == proof(&self.0))
    }
}

/// Adds the proof that a client of HTTP/1 wants to a response whose server speaks HTTP/2, where no key is read.
pub(crate) fn accept(request: &Message, response: &mut Message) {
    if response.first(ACCEPT_FIELD).is_none()
        && let Some(key) = request.first(b"sec-websocket-key")
    {
        response.add(ACCEPT_FIELD, &proof(key));
    }
}

/// Returns a server's proof that it has read a key.
fn proof(key: &[u8]) -> Vec<u8> {
    Base64::Standard.encode(&Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(version: Version, fields: &[(&str, &str)]) -> Message {
        let mut head = Message::new();
        head.set_request(b"GET", b"/", version);
        for (name, value) in fields {
            head.add(name.as_bytes(), value.as_bytes());
        }
        head
    }

    #[test]
    fn keys_are_made_for_websockets_of_http_2() {
        let upgrade = ("upgrade", "websocket");
        let key = Key::for_request(&request(Version::Http2, &[upgrade])).expect("a key");
        assert_eq!(Base64::Standard.decode(key.text()).map(|bytes| bytes.len()), Some(16));
        for (version, fields) in [
            (Version::Http11, &[upgrade][..]),
            (Version::Http2, &[]),
            (Version::Http2, &[("upgrade", "other")]),
            (Version::Http2, &[upgrade, ("sec-websocket-key", "x")]),
        ] {
            assert!(Key::for_request(&request(version, fields)).is_none(), "{fields:?}");
        }
    }

    /// The example of RFC 6455 1.3.
    #[test]
    fn proofs_are_checked() {
        let key = Key(b"dGhlIHNhbXBsZSBub25jZQ==".to_vec());
        let mut response = Message::new();
        response.set_response(Version::Http11, 101, b"");
        assert!(!key.is_accepted_by(&response));
        response.add(b"sec-websocket-accept", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(key.is_accepted_by(&response));
        response.set(b"sec-websocket-accept", b"x");
        assert!(!key.is_accepted_by(&response));
    }
}
