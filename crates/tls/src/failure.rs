//! OpenSSL's codes and texts for failed handshakes, derived from rustls's errors and from the connection's bytes.
//!
//! `ssl_fc_err` prints the code, `ssl_fc_err_str` and the log line of a failed handshake the text. The texts are those
//! of OpenSSL 3.0. Several errors of rustls share a code, and where OpenSSL makes distinctions that rustls lacks, the
//! code is the nearest one.

use std::fmt;

use rustls::{AlertDescription, Error, InvalidMessage, PeerIncompatible, PeerMisbehaved};

use crate::hello;

/// A packed error code of OpenSSL 3: the library (20, SSL) and a reason.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(u32);

const LIBRARY: u32 = 20 << 23;

/// The offset that is added to the number of an alert that the peer sent.
const ALERT: u32 = 1000;

impl Code {
    /// The client sent an HTTP request without TLS.
    pub const HTTP_REQUEST: Code = ssl(156);
    /// The client sent an HTTP `CONNECT` without TLS.
    pub const PROXY_REQUEST: Code = ssl(155);
    /// The peer closed the connection within the handshake.
    pub const EOF: Code = ssl(294);
    /// The choice of a certificate refused the client: `strict-sni`.
    pub const REFUSED: Code = ssl(234);
    /// The peer's certificate was not accepted.
    pub const VERIFY_FAILED: Code = ssl(134);
    /// No suite, group or signature scheme is in common.
    pub const NO_SHARED_CIPHER: Code = ssl(193);
    /// A client repeats a handshake with a version below the best common one.
    pub const FALLBACK: Code = ssl(373);
    /// A client of TLS 1.3 verifies no signature that the certificate's key can make.
    pub const NO_SCHEME: Code = ssl(118);
    /// No version is in common.
    pub const UNSUPPORTED_PROTOCOL: Code = ssl(258);
    const WRONG_VERSION: Code = ssl(267);
    const UNKNOWN_PROTOCOL: Code = ssl(252);
    const NO_KEY_SHARE: Code = ssl(101);
    const MESSAGE_TOO_LONG: Code = ssl(152);
    const NO_CERTIFICATE: Code = ssl(199);
    const UNEXPECTED_MESSAGE: Code = ssl(244);
    const BAD_RECORD: Code = ssl(281);
    const PACKET_TOO_LONG: Code = ssl(198);
    const DATA_TOO_LONG: Code = ssl(146);
    const BINDER: Code = ssl(253);
    const NO_PROTOCOL: Code = ssl(235);
    const BAD_EXTENSION: Code = ssl(110);
    const WRONG_SIGNATURE: Code = ssl(370);
    const LENGTH_MISMATCH: Code = ssl(159);
    const NO_COMPRESSION: Code = ssl(187);
    const BAD_KEY_SHARE: Code = ssl(108);
    /// An internal error of this side.
    pub const INTERNAL: Code = Code(LIBRARY | 0xc0103);

    /// Returns the code of an alert that the peer sent.
    pub fn of_alert(alert: AlertDescription) -> Code {
        ssl(ALERT + u32::from(u8::from(alert)))
    }

    /// Returns the code for first bytes that are HTTP without TLS; `None` for others.
    pub fn of_plain(bytes: &[u8]) -> Option<Code> {
        if bytes.starts_with(b"CONNE") {
            return Some(Code::PROXY_REQUEST);
        }
        let methods = [&b"GET "[..], b"POST ", b"HEAD ", b"PUT "];
        methods.iter().any(|method| bytes.starts_with(method)).then_some(Code::HTTP_REQUEST)
    }

    /// Returns the code of an error in reaction to a client's first message, which begins with these bytes, and the
    /// answer to the client, which is that of OpenSSL: none to a peer that does not speak TLS. For a client with an old
    /// version rustls reports a missing extension before it checks the version.
    pub fn of_hello(error: &Error, bytes: &[u8]) -> (Code, Answer) {
        use AlertDescription as Alert;
        if let Some(code) = Code::of_plain(bytes) {
            return (code, Answer::Silence);
        }
        if is_sslv2(bytes) {
            return (Code::UNKNOWN_PROTOCOL, Answer::Alert(Alert::ProtocolVersion));
        }
        let required = PeerIncompatible::SignatureAlgorithmsExtensionRequired;
        let is_old = hello::version(bytes).is_some_and(|version| version < 0x303);
        if is_old && *error == Error::PeerIncompatible(required) {
            return (Code::UNSUPPORTED_PROTOCOL, Answer::Alert(Alert::ProtocolVersion));
        }
        let code = match Code::from(error) {
            Code::DATA_TOO_LONG => Code::MESSAGE_TOO_LONG,
            code => code,
        };
        let answer = match code {
            Code::WRONG_VERSION => Answer::Silence,
            Code::UNEXPECTED_MESSAGE => Answer::Alert(Alert::UnexpectedMessage),
            Code::PACKET_TOO_LONG => Answer::Alert(Alert::RecordOverflow),
            Code::MESSAGE_TOO_LONG => Answer::Alert(Alert::IllegalParameter),
            _ => Answer::Rustls,
        };
        (code, answer)
    }

    /// Returns the code of an error with the configuration that was chosen for a client.
    pub fn of_choice(error: &Error, is_tls13: bool) -> Code {
        match error {
            Error::PeerIncompatible(PeerIncompatible::NoKxGroupsInCommon) if is_tls13 => Code::NO_KEY_SHARE,
            error => Code::from(error),
        }
    }

    /// Returns the number that `ssl_fc_err` prints.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Returns the code with a number; `None` for 0.
    pub fn from_number(number: u32) -> Option<Code> {
        (number != 0).then_some(Code(number))
    }

    /// Returns OpenSSL's text of the reason, if it is one of those that occur here.
    pub fn reason(self) -> Option<&'static str> {
        REASONS.iter().find(|(code, _)| *code == self.0 & 0x7f_ffff).map(|(_, text)| *text)
    }
}

/// The answer to a client whose first message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// rustls's alert.
    Rustls,
    /// Another alert.
    Alert(AlertDescription),
    /// Nothing.
    Silence,
}

/// Returns whether a client's first message has the form of SSL 2: a length with the high bit set, and the type.
fn is_sslv2(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80..=0xff, _, 1, 0 | 3, ..])
}

const fn ssl(reason: u32) -> Code {
    Code(LIBRARY | reason)
}

/// The text that `ssl_fc_err_str` prints: `error:0A0000C1:SSL routines::no shared cipher`.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error:{:08X}:SSL routines::", self.0)?;
        match self.reason() {
            Some(text) => f.write_str(text),
            None => write!(f, "reason({})", self.0 & 0x7f_ffff),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<&Error> for Code {
    fn from(error: &Error) -> Code {
        match error {
            Error::AlertReceived(alert) => Code::of_alert(*alert),
            Error::PeerIncompatible(reason) => incompatible(reason),
            Error::PeerMisbehaved(reason) => misbehaved(reason),
            Error::InvalidMessage(reason) => invalid(reason),
            Error::NoCertificatesPresented => Code::NO_CERTIFICATE,
            Error::InvalidCertificate(_) | Error::InvalidCertRevocationList(_) => Code::VERIFY_FAILED,
            Error::DecryptError => Code::BAD_RECORD,
            Error::PeerSentOversizedRecord => Code::DATA_TOO_LONG,
            Error::NoApplicationProtocol => Code::NO_PROTOCOL,
            Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
                Code::UNEXPECTED_MESSAGE
            }
            // An error of the verifier, for a code whose alert is handshake_failure.
            Error::General(_) => Code::VERIFY_FAILED,
            _ => Code::INTERNAL,
        }
    }
}

fn incompatible(reason: &PeerIncompatible) -> Code {
    use PeerIncompatible as Is;
    match reason {
        Is::Tls12NotOffered
        | Is::Tls12NotOfferedOrEnabled
        | Is::ServerDoesNotSupportTls12Or13
        | Is::ServerTlsVersionIsDisabledByOurConfig
        | Is::SupportedVersionsExtensionRequired => Code::UNSUPPORTED_PROTOCOL,
        Is::NullCompressionRequired => Code::NO_COMPRESSION,
        _ => Code::NO_SHARED_CIPHER,
    }
}

fn misbehaved(reason: &PeerMisbehaved) -> Code {
    use PeerMisbehaved as Is;
    match reason {
        Is::IncorrectBinder => Code::BINDER,
        Is::SignedKxWithWrongAlgorithm | Is::SignedHandshakeWithUnadvertisedSigScheme => Code::WRONG_SIGNATURE,
        Is::InvalidKeyShare | Is::WrongGroupForKeyShare | Is::MissingKeyShare | Is::OfferedDuplicateKeyShares => {
            Code::BAD_KEY_SHARE
        }
        Is::IllegalMiddleboxChangeCipherSpec
        | Is::KeyEpochWithPendingFragment
        | Is::MessageInterleavedWithHandshakeMessage
        | Is::TooManyEmptyFragments
        | Is::TooManyKeyUpdateRequests
        | Is::TooManyRenegotiationRequests
        | Is::TooManyWarningAlertsReceived
        | Is::TooMuchEarlyDataReceived => Code::UNEXPECTED_MESSAGE,
        _ => Code::BAD_EXTENSION,
    }
}

fn invalid(reason: &InvalidMessage) -> Code {
    use InvalidMessage as Is;
    match reason {
        Is::InvalidContentType | Is::UnknownProtocolVersion => Code::WRONG_VERSION,
        Is::MessageTooLarge => Code::PACKET_TOO_LONG,
        Is::HandshakePayloadTooLarge | Is::CertificatePayloadTooLarge => Code::DATA_TOO_LONG,
        Is::InvalidEmptyPayload | Is::UnexpectedMessage(_) | Is::InvalidCcs => Code::UNEXPECTED_MESSAGE,
        Is::DuplicateExtension(_) | Is::PreSharedKeyIsNotFinalExtension | Is::InvalidServerName => Code::BAD_EXTENSION,
        Is::NoSignatureSchemes => Code::NO_SHARED_CIPHER,
        _ => Code::LENGTH_MISMATCH,
    }
}

/// Texts by reason: OpenSSL 3.0's `openssl errstr`.
#[rustfmt::skip]
static REASONS: &[(u32, &str)] = &[
    (101, "no suitable key share"),
    (108, "bad key share"),
    (110, "bad extension"),
    (118, "no suitable signature algorithm"),
    (134, "certificate verify failed"),
    (146, "data length too long"),
    (152, "excessive message size"),
    (155, "https proxy request"),
    (156, "http request"),
    (159, "length mismatch"),
    (187, "no compression specified"),
    (193, "no shared cipher"),
    (198, "packet length too long"),
    (199, "peer did not return a certificate"),
    (234, "callback failed"),
    (235, "no application protocol"),
    (244, "unexpected message"),
    (252, "unknown protocol"),
    (253, "binder does not verify"),
    (258, "unsupported protocol"),
    (267, "wrong version number"),
    (281, "decryption failed or bad record mac"),
    (294, "unexpected eof while reading"),
    (370, "wrong signature type"),
    (373, "inappropriate fallback"),
    (1010, "sslv3 alert unexpected message"),
    (1020, "sslv3 alert bad record mac"),
    (1021, "tlsv1 alert decryption failed"),
    (1022, "tlsv1 alert record overflow"),
    (1030, "sslv3 alert decompression failure"),
    (1040, "sslv3 alert handshake failure"),
    (1041, "sslv3 alert no certificate"),
    (1042, "sslv3 alert bad certificate"),
    (1043, "sslv3 alert unsupported certificate"),
    (1044, "sslv3 alert certificate revoked"),
    (1045, "sslv3 alert certificate expired"),
    (1046, "sslv3 alert certificate unknown"),
    (1047, "sslv3 alert illegal parameter"),
    (1048, "tlsv1 alert unknown ca"),
    (1049, "tlsv1 alert access denied"),
    (1050, "tlsv1 alert decode error"),
    (1051, "tlsv1 alert decrypt error"),
    (1060, "tlsv1 alert export restriction"),
    (1070, "tlsv1 alert protocol version"),
    (1071, "tlsv1 alert insufficient security"),
    (1080, "tlsv1 alert internal error"),
    (1086, "tlsv1 alert inappropriate fallback"),
    (1090, "tlsv1 alert user cancelled"),
    (1100, "tlsv1 alert no renegotiation"),
    (1109, "tlsv13 alert missing extension"),
    (1110, "tlsv1 unsupported extension"),
    (1111, "tlsv1 certificate unobtainable"),
    (1112, "tlsv1 unrecognized name"),
    (1113, "tlsv1 bad certificate status response"),
    (1114, "tlsv1 bad certificate hash value"),
    (1115, "tlsv1 alert unknown psk identity"),
    (1116, "tlsv13 alert certificate required"),
    (1120, "tlsv1 alert no application protocol"),
    (0xc0103, "internal error"),
];

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn codes_and_texts() {
        let text = |error: Error| Code::from(&error).to_string();
        let shared = Error::from(PeerIncompatible::NoCipherSuitesInCommon);
        assert_eq!(text(shared), "error:0A0000C1:SSL routines::no shared cipher");
        let alert = Error::AlertReceived(AlertDescription::UnknownCA);
        assert_eq!(text(alert), "error:0A000418:SSL routines::tlsv1 alert unknown ca");
        let bad = Error::from(InvalidMessage::InvalidContentType);
        assert_eq!(text(bad), "error:0A00010B:SSL routines::wrong version number");
        let odd = Error::AlertReceived(AlertDescription::Unknown(200));
        assert_eq!(text(odd), "error:0A0004B0:SSL routines::reason(1200)");
        assert_eq!(Code::EOF.to_string(), "error:0A000126:SSL routines::unexpected eof while reading");
        assert_eq!(Code::REFUSED.number(), 0x0a00_00ea);
        assert_eq!(text(Error::FailedToGetCurrentTime), "error:0A0C0103:SSL routines::internal error");
        assert_eq!(Code::of_plain(b"GET / HTTP/1.1"), Some(Code::HTTP_REQUEST));
        assert_eq!(Code::of_plain(b"CONNECT a:443"), Some(Code::PROXY_REQUEST));
        assert_eq!(Code::of_plain(b"\x16\x03\x01"), None);
        let group = Error::from(PeerIncompatible::NoKxGroupsInCommon);
        let of_group = [true, false].map(|is_tls13| Code::of_choice(&group, is_tls13).number());
        assert_eq!(of_group, [0x0a00_0065, 0x0a00_00c1]);
    }

    #[test]
    fn answers_to_first_messages() {
        let answer = |error: Error, bytes: &[u8]| {
            let (code, answer) = Code::of_hello(&error, bytes);
            (code.number() - LIBRARY, answer)
        };
        let odd = || Error::from(InvalidMessage::InvalidContentType);
        assert_eq!(answer(odd(), b"GET / HTTP/1.1\r\n"), (156, Answer::Silence));
        assert_eq!(answer(odd(), b"SSH-2.0-x\r\n"), (267, Answer::Silence));
        assert_eq!(answer(odd(), b"\x80\x2e\x01\x03\x01"), (252, Answer::Alert(AlertDescription::ProtocolVersion)));
        let long = Error::from(InvalidMessage::HandshakePayloadTooLarge);
        assert_eq!(answer(long, b"\x16\x03\x01"), (152, Answer::Alert(AlertDescription::IllegalParameter)));
        let record = Error::from(InvalidMessage::MessageTooLarge);
        assert_eq!(answer(record, b"\x16\x03\x01"), (198, Answer::Alert(AlertDescription::RecordOverflow)));
        let other = Error::InappropriateMessage {
            expect_types: vec![rustls::ContentType::Handshake],
            got_type: rustls::ContentType::ApplicationData,
        };
        assert_eq!(answer(other, b"\x17\x03\x03"), (244, Answer::Alert(AlertDescription::UnexpectedMessage)));
        let shared = Error::from(PeerIncompatible::NoCipherSuitesInCommon);
        assert_eq!(answer(shared, b"\x16\x03\x01"), (193, Answer::Rustls));
    }

    #[test]
    fn texts_are_those_of_openssl() {
        let numbers: Vec<_> = REASONS.iter().map(|(reason, _)| format!("{:08X}", LIBRARY | reason)).collect();
        let Ok(output) = Command::new("openssl").arg("errstr").args(&numbers).output() else { return };
        let text = String::from_utf8(output.stdout).unwrap();
        for (line, (reason, _)) in text.lines().zip(REASONS) {
            assert_eq!(line.replace("ssl/tls alert", "sslv3 alert"), Code(LIBRARY | reason).to_string());
        }
        assert_eq!(text.lines().count(), REASONS.len());
    }
}
