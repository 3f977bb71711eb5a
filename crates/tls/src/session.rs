//! Facts about a connection after its handshake, for fetches, logs and PROXY headers.

use std::sync::Arc;

use rustls::server::ClientHello;
use rustls::{CipherSuite, Connection, HandshakeKind, NamedGroup, ProtocolVersion};

use crate::hello::{Start, offers_tls13};
use crate::keylog::Secrets;
use crate::pair::Pair;
use crate::policy::Version;
use crate::verify::{Outcome, Verdict};
use crate::x509::Certificate;
use crate::{group, suite, version};

/// The data about a connection that its owner has and rustls does not.
#[derive(Debug, Default)]
pub struct Known {
    /// The certificate of this side: the chosen one, or for a `server` line the one that may have been shown.
    pub pair: Option<Arc<Pair>>,
    /// The name that was sent to a server. The name that a client sent is in its connection.
    pub sni: Option<Box<str>>,
    /// The outcome of the verification of the peer.
    pub outcome: Option<Outcome>,
    /// The secrets of all steps of the handshake.
    pub secrets: Option<Box<Secrets>>,
}

/// The peer's certificates.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The peer's own certificate.
    pub leaf: Certificate,
    /// The other certificates that it sent, in this session or in the one that was resumed.
    pub sent: Vec<Certificate>,
    /// The self-issued end of the chain that was built; none after a resumption.
    pub root: Option<Certificate>,
    /// Whether it was sent now, and not in the session that was resumed.
    pub sent_now: bool,
}

/// A finished handshake.
#[derive(Clone, Debug)]
pub struct Facts {
    version: Option<Version>,
    suite: Option<CipherSuite>,
    group: Option<NamedGroup>,
    /// The protocol that ALPN chose.
    pub alpn: Option<Box<[u8]>>,
    /// The name that the client asked for, in lower case.
    pub sni: Option<Box<str>>,
    /// Whether a session was resumed.
    pub resumed: bool,
    /// The certificate of this side.
    pub pair: Option<Arc<Pair>>,
    /// The verdict on the peer's chain; for a resumed session, the session's verdict.
    pub verdict: Verdict,
    /// The peer's certificates, if it has any.
    pub peer: Option<Box<Peer>>,
    /// The secrets, if they are kept.
    pub secrets: Option<Box<Secrets>>,
    /// The beginnings of both hellos, where they are kept: the client's, and the server's.
    starts: Option<Box<(Option<Start>, Option<Start>)>>,
}

impl Facts {
    /// Collects the facts of a connection whose handshake is done.
    pub fn new(connection: &Connection, known: Known) -> Facts {
        let resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
        let version = match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => Some(Version::Tls13),
            Some(ProtocolVersion::TLSv1_2) => Some(Version::Tls12),
            _ => None,
        };
        let sni = match connection {
            Connection::Server(server) => server.server_name().map(Box::from),
            Connection::Client(_) => known.sni,
        };
        // The outcome of a session that was offered and declined does not count.
        let outcome = known.outcome.filter(|outcome| outcome.resumed == resumed);
        let verdict = outcome.as_ref().map_or_else(Verdict::default, |outcome| outcome.verdict);
        Facts {
            version,
            suite: connection.negotiated_cipher_suite().map(|suite| suite.suite()),
            group: connection.negotiated_key_exchange_group().map(|group| group.name()),
            alpn: connection.alpn_protocol().map(Box::from),
            sni,
            resumed,
            pair: known.pair,
            verdict,
            peer: peer(connection, outcome, resumed).map(Box::new),
            secrets: known.secrets,
            starts: None,
        }
    }

    /// Sets the parsed first bytes of client and server.
    pub fn set_starts(&mut self, client: Option<Start>, server: Option<Start>) {
        self.starts = Some(Box::new((client, server)));
    }

    /// Returns the client's random (`ssl_fc_client_random`).
    pub fn client_random(&self) -> Option<&[u8]> {
        let kept = self.starts.as_ref().and_then(|starts| starts.0.as_ref()).map(|start| &start.random[..]);
        kept.or_else(|| self.secrets.as_ref().map(|secrets| secrets.client_random()))
    }

    /// Returns the server's random (`ssl_fc_server_random`).
    pub fn server_random(&self) -> Option<&[u8]> {
        self.starts.as_ref().and_then(|starts| starts.1.as_ref()).map(|start| &start.random[..])
    }

    /// Returns the session's identifier (`ssl_fc_session_id`). That of TLS 1.3 is the value that the client chose for this
    /// connection: unlike OpenSSL, rustls has no identifiers for its sessions.
    pub fn session_id(&self) -> Option<&[u8]> {
        let server = self.starts.as_ref()?.1.as_ref()?;
        (!server.session.is_empty()).then_some(&server.session)
    }

    /// Returns the version as HAProxy prints it: `TLSv1.3` (`ssl_fc_protocol`, `%sslv`).
    pub fn protocol(&self) -> &'static str {
        self.version.map_or("", version::name)
    }

    /// Returns OpenSSL's name of the suite (`ssl_fc_cipher`, `%sslc`).
    pub fn cipher(&self) -> &'static str {
        self.suite.map_or("", suite::name)
    }

    /// Returns the length of the suite's key, which is also the number of its bits that count.
    pub fn key_bits(&self) -> u16 {
        self.suite.map_or(0, suite::key_bits)
    }

    /// Returns OpenSSL's name of the group of the key exchange; a session of TLS 1.2 that was resumed has none.
    pub fn curve(&self) -> Option<&'static str> {
        self.group.and_then(group::name)
    }
}

/// OpenSSL's name of no suite.
pub const NO_SUITE: &str = "(NONE)";

/// The progress of a failed handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The version that was agreed on, else the one that the client offered, as a number of the protocol.
    version: u16,
    suite: Option<CipherSuite>,
}

impl Reached {
    /// Returns the progress of a connection. As in OpenSSL, a suite of TLS 1.2 counts once the keys are in use.
    pub fn of_connection(connection: &Connection) -> Option<Reached> {
        let version = connection.protocol_version()?;
        let suite = connection.negotiated_cipher_suite().filter(|_| version == ProtocolVersion::TLSv1_3);
        Some(Reached { version: version.into(), suite: suite.map(|suite| suite.suite()) })
    }

    /// Returns the progress of a refused client, from its offer.
    pub fn of_hello(hello: &ClientHello<'_>) -> Reached {
        let version = if offers_tls13(hello) { ProtocolVersion::TLSv1_3 } else { ProtocolVersion::TLSv1_2 };
        Reached::of_version(version.into())
    }

    /// Returns what is known before the peer has answered an offer of this version.
    pub fn offered(best: Version) -> Reached {
        let version = if best == Version::Tls13 { ProtocolVersion::TLSv1_3 } else { ProtocolVersion::TLSv1_2 };
        Reached::of_version(version.into())
    }

    /// Returns what is known of a client whose first message is not complete, or of a version that does not exist here.
    pub fn of_version(version: u16) -> Reached {
        Reached { version, suite: None }
    }

    /// Returns the version as HAProxy prints it, at most the best version of this side.
    pub fn protocol(self, best: Option<Version>) -> &'static str {
        match self.version {
            ..=0x300 => "SSLv3",
            0x301 => "TLSv1",
            0x302 => "TLSv1.1",
            0x303 => version::name(Version::Tls12),
            _ => version::name(best.unwrap_or(Version::Tls13)),
        }
    }

    /// Returns OpenSSL's name of the suite.
    pub fn cipher(self) -> &'static str {
        self.suite.map_or(NO_SUITE, suite::name)
    }
}

/// Returns the peer's certificates: those that were verified, otherwise those that rustls has for a resumed session or
/// a connection without verification.
fn peer(connection: &Connection, outcome: Option<Outcome>, resumed: bool) -> Option<Peer> {
    let (sent, root) = match outcome {
        Some(Outcome { leaf: Some(leaf), sent, root, .. }) => {
            return Some(Peer { leaf, sent, root, sent_now: !resumed });
        }
        Some(outcome) => (outcome.sent, outcome.root),
        None => (Vec::new(), None),
    };
    let mut certificates = connection.peer_certificates()?.iter().map_while(|der| Certificate::from_der(der).ok());
    let leaf = certificates.next()?;
    let sent = if sent.is_empty() { certificates.collect() } else { sent };
    Some(Peer { leaf, sent, root, sent_now: !resumed })
}
