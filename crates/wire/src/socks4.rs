//! The client's side of SOCKS 4, as HAProxy speaks it: one request, one reply, then the bytes of the connection.

use std::net::SocketAddrV4;

/// Bytes of a request.
pub const REQUEST_LEN: usize = 16;
/// Bytes of a reply.
pub const REPLY_LEN: usize = 8;

/// The user in requests, with the zero at its end.
const USER: &[u8; 8] = b"HAProxy\0";

/// Returns the request for a connection to an address.
pub fn request(target: SocketAddrV4) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    // Version 4, CONNECT.
    bytes[..2].copy_from_slice(&[4, 1]);
    bytes[2..4].copy_from_slice(&target.port().to_be_bytes());
    bytes[4..8].copy_from_slice(&target.ip().octets());
    bytes[8..].copy_from_slice(USER);
    bytes
}

/// Returns whether a reply grants the request; nothing else of it counts.
pub fn is_granted(reply: &[u8; REPLY_LEN]) -> bool {
    const GRANTED: u8 = 90;
    reply[1] == GRANTED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_version_command_port_address_and_user() {
        let bytes = request("192.0.2.9:443".parse().unwrap());
        assert_eq!(bytes, *b"\x04\x01\x01\xbb\xc0\x00\x02\x09HAProxy\0");
        assert!(is_granted(&[0, 90, 0, 0, 0, 0, 0, 0]));
        assert!(!is_granted(&[0, 91, 0, 0, 0, 0, 0, 0]));
    }
}
