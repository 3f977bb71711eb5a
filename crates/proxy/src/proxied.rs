//! A connection's PROXY protocol header, and the errors of its handshakes.

use std::fmt;
use std::net::SocketAddr;

use sluicegate_tls::connector::Connector;
use sluicegate_tls::failure::Code;
use sluicegate_tls::policy::Version;
use sluicegate_tls::session::Reached;
use sluicegate_transport::{self as transport, Socket};
use sluicegate_wire::netscaler::CipError;
use sluicegate_wire::proxy_protocol::{self, HeaderError, Tlvs, tlv};

use crate::counters::Counters;

/// A connection whose streams see other addresses than its own.
#[derive(Debug)]
pub struct Proxied {
    /// The peer of the connection.
    pub peer: Option<SocketAddr>,
    /// The local address of the connection.
    pub local: Option<SocketAddr>,
    /// The TLVs of its PROXY protocol header; without a header, session rules set the addresses.
    pub tlvs: Option<Tlvs>,
}

impl Proxied {
    /// Returns the value of a TLV, or the concatenated values if it is repeated; those about TLS are within another
    /// TLV.
    pub fn tlv(&self, kind: u8) -> Option<Vec<u8>> {
        let mut found: Option<Vec<u8>> = None;
        for (other, value) in self.tlvs.iter().flat_map(Tlvs::iter) {
            if other == kind {
                found.get_or_insert_default().extend_from_slice(value);
            }
            if other == tlv::SSL
                && (tlv::SSL_VERSION..=tlv::SSL_KEY_ALG).contains(&kind)
                && let Some(value) = within(value, kind)
            {
                found.get_or_insert_default().extend_from_slice(value);
            }
        }
        found
    }
}

/// Returns a TLV within the TLV about TLS, whose content begins with a byte and a number.
fn within(ssl: &[u8], kind: u8) -> Option<&[u8]> {
    let mut rest = ssl.get(5..)?;
    while let [other, high, low, behind @ ..] = rest {
        let (value, next) = behind.split_at_checked(usize::from(u16::from_be_bytes([*high, *low])))?;
        if *other == kind {
            return Some(value);
        }
        rest = next;
    }
    None
}

/// The reason why a connection ended before its first byte was examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The client closed the connection without sending anything.
    #[error("Connection closed while waiting for PROXY protocol header")]
    Empty,
    /// The connection broke.
    #[error("Connection error while waiting for PROXY protocol header")]
    Abort,
    /// The header did not arrive in time.
    #[error("Timeout while waiting for PROXY protocol header")]
    Timeout,
    /// The client disconnected within the header.
    #[error("Truncated PROXY protocol header received")]
    Truncated,
    /// The received bytes are not a valid header.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The client closed the connection without sending a NetScaler header.
    #[error("Connection closed while waiting for NetScaler Client IP header")]
    CipEmpty,
    /// The connection broke before its NetScaler header.
    #[error("Connection error while waiting for NetScaler Client IP header")]
    CipAbort,
    /// The NetScaler header did not arrive in time.
    #[error("Timeout while waiting for a NetScaler Client IP header")]
    CipTimeout,
    /// The client disconnected within its NetScaler header.
    #[error("Truncated NetScaler Client IP header received")]
    CipTruncated,
    /// The received bytes are not a valid NetScaler header.
    #[error(transparent)]
    Cip(#[from] CipError),
    /// The TLS handshake failed.
    #[error(transparent)]
    Tls(#[from] TlsFailure),
}

/// Counts a TLS handshake by whether it has resumed a session. A connection beyond the limit had none, and HAProxy does
/// not count one that took too long.
pub(crate) fn count_handshake(counters: &Counters, result: Result<bool, &TlsFailure>) {
    match result {
        Ok(false) => counters.tls.sessions.add(1),
        Ok(true) => counters.tls.resumed.add(1),
        Err(TlsFailure::TooMany | TlsFailure::Timeout) => {}
        Err(_) => counters.tls.failed.add(1),
    }
}

/// The reason why a TLS handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFailure {
    /// The peer closed the connection.
    #[error("Connection closed during SSL handshake")]
    Closed,
    /// The connection broke.
    #[error("Connection error during SSL handshake")]
    Broken,
    /// The handshake took too long.
    #[error("Timeout during SSL handshake")]
    Timeout,
    /// `maxsslconn` is reached.
    #[error("Too many SSL connections")]
    TooMany,
    /// The chain above the client's certificate cannot be verified.
    #[error("SSL client CA chain cannot be verified")]
    Authority,
    /// The client's certificate is not trusted.
    #[error("SSL client certificate not trusted")]
    Certificate,
    /// The server's certificate does not bear the name of `verifyhost`.
    #[error("Server presented an SSL certificate different from the configured one")]
    Mismatch,
    /// The server's certificate does not bear the name of `sni`.
    #[error("Server presented an SSL certificate different from the expected one")]
    MismatchSni,
    /// Anything else, with OpenSSL's number of the error; 0: none.
    #[error("SSL handshake failure{}", Reason(*.0))]
    Handshake(u32),
    /// The connection ended by this error after its handshake.
    #[error("SSL fatal error{}", Reason(*.0))]
    Fatal(u32),
}

/// OpenSSL's text of an error, in parentheses.
struct Reason(u32);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Code::from_number(self.0) {
            Some(code) => write!(f, " ({code})"),
            None => Ok(()),
        }
    }
}

impl From<&transport::HandshakeError> for TlsFailure {
    /// The kind of an error that does not come from the verification of the peer.
    fn from(error: &transport::HandshakeError) -> TlsFailure {
        match error {
            transport::HandshakeError::Closed { unasked: true } => TlsFailure::Closed,
            // HAProxy finds the error on the socket before OpenSSL does.
            transport::HandshakeError::Closed { unasked: false } | transport::HandshakeError::Broken(_) => {
                TlsFailure::Handshake(0)
            }
            transport::HandshakeError::Refused(_) => TlsFailure::Handshake(Code::REFUSED.number()),
            transport::HandshakeError::Tls { error, code } => {
                TlsFailure::Handshake(code.unwrap_or_else(|| Code::from(error)).number())
            }
        }
    }
}

impl TlsFailure {
    /// Returns OpenSSL's number of the error (`ssl_fc_err`); 0: none.
    pub(crate) fn code(self) -> u32 {
        match self {
            TlsFailure::Handshake(number) | TlsFailure::Fatal(number) => number,
            TlsFailure::Authority | TlsFailure::Certificate | TlsFailure::Mismatch | TlsFailure::MismatchSni => {
                Code::VERIFY_FAILED.number()
            }
            TlsFailure::Closed | TlsFailure::Broken | TlsFailure::Timeout | TlsFailure::TooMany => 0,
        }
    }

    fn number_and_name(self) -> (i64, &'static str) {
        match self {
            TlsFailure::Closed => (24, "SSL_EMPTY"),
            TlsFailure::Broken => (25, "SSL_ABORT"),
            TlsFailure::Timeout => (26, "SSL_TIMEOUT"),
            TlsFailure::TooMany => (27, "SSL_TOO_MANY"),
            TlsFailure::Authority => (30, "SSL_CA_FAIL"),
            TlsFailure::Certificate => (31, "SSL_CRT_FAIL"),
            TlsFailure::Mismatch => (32, "SSL_MISMATCH"),
            TlsFailure::MismatchSni => (33, "SSL_MISMATCH_SNI"),
            TlsFailure::Handshake(_) => (34, "SSL_HANDSHAKE"),
            TlsFailure::Fatal(_) => (43, "SSL_FATAL"),
        }
    }
}

/// An error of TLS with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTlsError {
    pub(crate) failure: TlsFailure,
    /// HAProxy's names of the version and the suite that a failed handshake has come to; none if the handshake was done.
    agreed: Option<(&'static str, &'static str)>,
}

impl ServerTlsError {
    /// Returns the error of a handshake.
    pub(crate) fn of_handshake(failure: TlsFailure, socket: &Socket, connector: &Connector) -> ServerTlsError {
        let best = connector.settings().policy.max;
        let reached = socket.tls().and_then(|tls| tls.reached());
        let reached = reached.unwrap_or_else(|| Reached::offered(best.unwrap_or(Version::Tls13)));
        ServerTlsError { failure, agreed: Some((reached.protocol(best), reached.cipher())) }
    }

    /// Returns the error that ended a connection after its handshake, if there was one.
    pub(crate) fn of_connection(socket: &Socket) -> Option<ServerTlsError> {
        let code = socket.tls()?.failure()?;
        Some(ServerTlsError { failure: TlsFailure::Fatal(code.number()), agreed: None })
    }

    /// Returns the version of a failed handshake: the one that was agreed on, else the best that is offered.
    pub(crate) fn protocol(self) -> Option<&'static str> {
        self.agreed.map(|(protocol, _)| protocol)
    }

    /// Returns OpenSSL's name of the suite of a failed handshake.
    pub(crate) fn cipher(self) -> Option<&'static str> {
        self.agreed.map(|(_, cipher)| cipher)
    }
}

impl HandshakeError {
    /// Returns HAProxy's number (`fc_err`).
    pub fn number(self) -> i64 {
        match self {
            HandshakeError::Empty => 11,
            HandshakeError::Abort => 12,
            HandshakeError::Timeout => 13,
            HandshakeError::Truncated => 14,
            HandshakeError::Header(HeaderError::NotAHeader) => 15,
            HandshakeError::Header(HeaderError::Invalid) => 16,
            HandshakeError::Header(HeaderError::Protocol) => 17,
            HandshakeError::CipEmpty => 18,
            HandshakeError::CipAbort => 19,
            HandshakeError::CipTimeout => 20,
            HandshakeError::CipTruncated => 21,
            HandshakeError::Cip(CipError::Magic) => 22,
            HandshakeError::Cip(CipError::Protocol) => 23,
            HandshakeError::Tls(failure) => failure.number_and_name().0,
        }
    }

    /// Returns HAProxy's name (`fc_err_name`).
    pub fn name(self) -> &'static str {
        match self {
            HandshakeError::Empty => "PRX_EMPTY",
            HandshakeError::Abort => "PRX_ABORT",
            HandshakeError::Timeout => "PRX_TIMEOUT",
            HandshakeError::Truncated => "PRX_TRUNCATED",
            HandshakeError::Header(HeaderError::NotAHeader) => "PRX_NOT_HDR",
            HandshakeError::Header(HeaderError::Invalid) => "PRX_BAD_HDR",
            HandshakeError::Header(HeaderError::Protocol) => "PRX_BAD_PROTO",
            HandshakeError::CipEmpty => "CIP_EMPTY",
            HandshakeError::CipAbort => "CIP_ABORT",
            HandshakeError::CipTimeout => "CIP_TIMEOUT",
            HandshakeError::CipTruncated => "CIP_TRUNCATED",
            HandshakeError::Cip(CipError::Magic) => "CIP_BAD_MAGIC",
            HandshakeError::Cip(CipError::Protocol) => "CIP_BAD_PROTO",
            HandshakeError::Tls(failure) => failure.number_and_name().1,
        }
    }

    /// Returns HAProxy's text (`fc_err_str`): that of the log line, without OpenSSL's text.
    pub fn text(self) -> String {
        match self {
            HandshakeError::Tls(TlsFailure::Handshake(_)) => TlsFailure::Handshake(0).to_string(),
            HandshakeError::Tls(TlsFailure::Fatal(_)) => TlsFailure::Fatal(0).to_string(),
            error => error.to_string(),
        }
    }

    /// Returns whether no bytes were received, which `option dontlognull` does not log.
    pub fn is_silence(self) -> bool {
        use HandshakeError::{Abort, CipAbort, CipEmpty, Empty, Tls};
        matches!(self, Empty | Abort | CipEmpty | CipAbort | Tls(TlsFailure::Closed | TlsFailure::Broken))
    }
}

/// The maximum length of a header that is skipped.
const SKIPPED_MAX: usize = 16_384;

/// Reads the PROXY protocol header at the start of a connection, and not one byte more; returns whether there is one.
pub(crate) async fn skip_header(stream: &mut Socket) -> bool {
    let mut header = Vec::new();
    let mut byte = [0];
    loop {
        match std::future::poll_fn(|cx| stream.poll_read(cx, &mut byte)).await {
            Ok(count) if count > 0 => header.push(byte[0]),
            Ok(_) | Err(_) => return false,
        }
        match proxy_protocol::read(&header, SKIPPED_MAX) {
            Ok(None) => {}
            Ok(Some(_)) => return true,
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::proxy_protocol::{Writer, read};

    use super::*;

    #[test]
    fn tlvs_about_tls_stand_within_another() {
        let mut writer = Writer::new(None, None);
        writer.tlv(0xe0, b"a").unwrap();
        writer.tlv(tlv::SSL, b"\x07\0\0\0\0\x21\0\x07TLSv1.3\x22\0\x02me").unwrap();
        writer.tlv(0xe0, b"b").unwrap();
        let mut bytes = Vec::new();
        writer.finish(&mut bytes);
        let tlvs = read(&bytes, 1024).unwrap().unwrap().tlvs;
        let proxied = Proxied { peer: None, local: None, tlvs: Some(tlvs) };
        assert_eq!(proxied.tlv(0xe0), Some(b"ab".to_vec()));
        assert_eq!(proxied.tlv(tlv::SSL_VERSION), Some(b"TLSv1.3".to_vec()));
        assert_eq!(proxied.tlv(tlv::SSL_CN), Some(b"me".to_vec()));
        assert_eq!(proxied.tlv(tlv::SSL_CIPHER), None);
        assert_eq!(proxied.tlv(tlv::UNIQUE_ID), None);
    }
}
