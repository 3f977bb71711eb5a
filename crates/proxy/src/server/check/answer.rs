//! Answers in protocols of their own: MySQL's packets, LDAP's bind response, SPOP's hello, an agent's line.
//!
//! Each reader is a function of the bytes so far: `None` asks for more of them. Nothing is taken on trust: lengths are
//! those of the bytes that are there.

use sluicegate_config::model::CheckStatus;
use sluicegate_wire::spop::{self, Frame, Status};

use crate::server::shared::Admin;

/// The judgement of an answer: `Ok`, or the fault.
pub(super) type Judgement = Result<(), Fault>;

/// A fault in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) status: CheckStatus,
    pub(super) code: u32,
    pub(super) info: Vec<u8>,
}

fn fault(status: CheckStatus, code: u32, info: &[u8]) -> Option<Judgement> {
    Some(Err(Fault { status, code, info: info.to_vec() }))
}

/// Returns the length in bytes of the first packet of a MySQL server, or of all received bytes if it is not complete.
pub(super) fn mysql_length(bytes: &[u8]) -> usize {
    match bytes {
        [a, b, c, _, ..] => (4 + usize::from(*a) + (usize::from(*b) << 8) + (usize::from(*c) << 16)).min(bytes.len()),
        _ => bytes.len(),
    }
}

/// Judges a packet of a MySQL server: its length in three bytes, its number, and its type.
pub(super) fn mysql(bytes: &[u8], ended: bool) -> Option<Judgement> {
    let length = match bytes {
        [a, b, c, _, ..] => usize::from(*a) | usize::from(*b) << 8 | usize::from(*c) << 16,
        _ if ended => return fault(CheckStatus::L7Rsp, 0, b""),
        _ => return None,
    };
    let packet = &bytes[4..];
    if packet.len() < length {
        return if ended { fault(CheckStatus::L7Rsp, 0, b"") } else { None };
    }
    match packet {
        // An error, its number and its text.
        [0xff, low, high, text @ ..] => fault(CheckStatus::L7Sts, u32::from(u16::from_le_bytes([*low, *high])), text),
        [0xff, ..] => fault(CheckStatus::L7Rsp, 0, b""),
        _ => Some(Ok(())),
    }
}

/// Judges an LDAP server's answer to a bind (RFC 4511 4.2.2), in BER.
pub(super) fn ldap(bytes: &[u8], ended: bool) -> Option<Judgement> {
    const NOT_LDAP: &[u8] = b"Not LDAPv3 protocol";
    let short = || if ended { fault(CheckStatus::L7Rsp, 0, b"") } else { None };
    let Some(first) = bytes.get(1) else { return short() };
    // The message's length in one byte, or how many more bytes have it.
    let (more, length) = match first & 0x80 {
        0 => (0, usize::from(*first)),
        _ => {
            let more = usize::from(first & 0x7f);
            if !matches!(more, 2 | 4) {
                return fault(CheckStatus::L7Rsp, 0, NOT_LDAP);
            }
            let Some(digits) = bytes.get(2..2 + more) else { return short() };
            (more, digits.iter().fold(0usize, |length, byte| length << 8 | usize::from(*byte)))
        }
    };
    let Some(message) = bytes.get(2 + more..).filter(|message| message.len() >= length) else { return short() };
    // Number 1, and a bind response with a length of its own.
    let Some(response) = message.strip_prefix(&[2, 1, 1, 0x61]) else {
        return fault(CheckStatus::L7Rsp, 0, NOT_LDAP);
    };
    let Some(width) = response.first() else { return short() };
    let skipped = 1 + if width & 0x80 == 0 { 0 } else { usize::from(width & 0x7f) };
    match response.get(skipped..) {
        Some([0x0a, 1, 0, ..]) => Some(Ok(())),
        Some([0x0a, 1, code, ..]) => {
            fault(CheckStatus::L7Sts, u32::from(*code), b"See RFC: http://tools.ietf.org/html/rfc4511#section-4.1.9")
        }
        Some([_, _, ..]) => fault(CheckStatus::L7Rsp, 0, NOT_LDAP),
        _ => short(),
    }
}

/// The maximum length of an agent's frame, in bytes.
const SPOP_FRAME_MAX: usize = 16_380;

/// Judges the hello of an agent (SPOP).
pub(super) fn spop(bytes: &[u8], ended: bool) -> Option<Judgement> {
    let faulty = |status: Status| fault(CheckStatus::L7Rsp, status.code(), status.text().as_bytes());
    match spop::read(bytes, SPOP_FRAME_MAX) {
        Ok(Some((Frame::Hello(hello), _))) if hello.max_frame_size as usize > SPOP_FRAME_MAX => {
            faulty(Status::BadFrameSize)
        }
        Ok(Some((Frame::Hello(_), _))) => Some(Ok(())),
        Ok(Some((Frame::Disconnect { status, message: b"" }, _))) => faulty(Status::of(status)),
        Ok(Some((Frame::Disconnect { status, message }, _))) => {
            fault(CheckStatus::L7Rsp, u32::try_from(status).unwrap_or(u32::MAX), message)
        }
        Ok(None) if !ended => None,
        Ok(_) | Err(Status::Fragmented | Status::TooBig) => faulty(Status::Invalid),
        Err(status) => faulty(status),
    }
}

/// The content of an agent's line (configuration manual 5.2, `agent-check`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AgentLine {
    /// `ready`, `drain`, `maint`.
    pub(super) admin: Option<Admin>,
    /// A percentage of the weight.
    pub(super) weight: Option<String>,
    /// `maxconn:N`.
    pub(super) maxconn: Option<String>,
    /// The health word as it was written (`up`, `down`, `stopped` or `fail`), and whether it is `up`.
    pub(super) health: Option<(String, bool)>,
    /// The first unknown word.
    pub(super) unknown: Option<String>,
    /// The text after a `#`.
    pub(super) description: String,
}

/// Parses the first line; `Some(None)` means that the data ends within it.
pub(super) fn agent(bytes: &[u8], ended: bool) -> Option<Option<AgentLine>> {
    let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r' | 0)) else {
        return ended.then_some(None);
    };
    if bytes[end] == 0 {
        return ended.then_some(None);
    }
    let line = String::from_utf8_lossy(&bytes[..end]);
    let mut said = AgentLine::default();
    let mut rest = &*line;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if let Some(description) = rest.strip_prefix('#') {
            said.description = description.trim_start_matches([' ', '\t']).to_owned();
            break;
        }
        if rest.is_empty() {
            break;
        }
        let length = rest.find([' ', '\t', ',']).unwrap_or(rest.len());
        let word = &rest[..length];
        rest = &rest[length..];
        let lower = word.to_ascii_lowercase();
        match lower.as_str() {
            "up" => said.health = Some((word.to_owned(), true)),
            "down" | "stopped" | "fail" => said.health = Some((word.to_owned(), false)),
            "ready" => said.admin = Some(Admin::Ready),
            "drain" => said.admin = Some(Admin::Drain),
            "maint" => said.admin = Some(Admin::Maintenance),
            _ if word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('%') => {
                said.weight = Some(word.to_owned());
            }
            _ => match lower.strip_prefix("maxconn:") {
                Some(number) => said.maxconn = Some(number.to_owned()),
                None => _ = said.unknown.get_or_insert_with(|| word.to_owned()),
            },
        }
    }
    Some(Some(said))
}

/// The fuzz target of these parsers: any bytes are a valid input, and more bytes never revert a judgement to waiting.
pub fn fuzz_answers(data: &[u8]) {
    for ended in [false, true] {
        let waits = [mysql(data, ended).is_none(), ldap(data, ended).is_none(), agent(data, ended).is_none()];
        assert!(!ended || waits == [false; 3], "there is nothing to wait for at the end");
    }
    if let Some(Some(line)) = agent(data, true) {
        assert!(line.description.len() <= data.len() * 3, "what is no text grows by its replacement alone");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_s_words() {
        let read = |text: &str| agent(text.as_bytes(), false).expect("a whole line").expect("a line");
        let line = read("75%, UP\tready,maxconn:30 # all well\n");
        assert_eq!(line.weight.as_deref(), Some("75%"));
        assert_eq!(line.health, Some(("UP".to_owned(), true)));
        assert_eq!(line.admin, Some(Admin::Ready));
        assert_eq!(line.maxconn.as_deref(), Some("30"));
        assert_eq!((line.unknown, line.description.as_str()), (None, "all well"));
        for word in ["down", "stopped", "Fail"] {
            assert_eq!(read(&format!("up {word}\r\n")).health, Some((word.to_owned(), false)), "the last one counts");
        }
        assert_eq!(read("what ever\n").unknown.as_deref(), Some("what"));
        assert_eq!(read("\n"), AgentLine::default());
        assert_eq!(agent(b"up", false), None);
        assert_eq!(agent(b"up", true), Some(None), "a line ends with a line end");
    }

    #[test]
    fn mysql_packets() {
        assert_eq!(mysql(&[1, 0, 0, 0, 10], false), Some(Ok(())));
        assert_eq!(mysql(&[2, 0, 0, 0, 10], false), None);
        assert_eq!([&[1, 0, 0, 0, 10, 2, 0][..], &[2, 0, 0, 0, 10], &[1, 0]].map(mysql_length), [5, 5, 2]);
        assert_eq!(mysql(&[2, 0, 0, 0, 10], true), fault(CheckStatus::L7Rsp, 0, b""));
        assert_eq!(mysql(b"\x05\0\0\0\xff\x15\x04no", false), fault(CheckStatus::L7Sts, 1045, b"no"));
    }

    #[test]
    fn ldap_answers() {
        let ok = [0x30, 0x0c, 2, 1, 1, 0x61, 7, 0x0a, 1, 0, 4, 0, 4, 0];
        assert_eq!(ldap(&ok, false), Some(Ok(())));
        assert_eq!(ldap(&ok[..13], false), None);
        let long = [0x30, 0x84, 0, 0, 0, 0x10, 2, 1, 1, 0x61, 0x84, 0, 0, 0, 7, 0x0a, 1, 0, 4, 0, 4, 0];
        assert_eq!(ldap(&long, false), Some(Ok(())));
        let huge = [0x30, 0x84, 255, 255, 255, 255, 2, 1, 1, 0x61];
        assert_eq!(ldap(&huge, false), None, "a length is no reason to make room");
    }

    #[test]
    fn any_bytes_are_an_answer() {
        let mut state = 7u64;
        for seed in
            [&b"\x30\x84\0\0\0\x10\x02\x01\x01\x61\x84\0\0\0\x07\x0a\x01\0"[..], b"\x05\0\0\0\xff\x15", b"up 5%\n"]
        {
            for _ in 0..3_000 {
                let mut data = seed.to_vec();
                for _ in 0..4 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = (state >> 33) as usize % data.len();
                    match state >> 62 {
                        0 => data.truncate(at.max(1)),
                        1 => data.insert(at, (state >> 40) as u8),
                        _ => data[at] = (state >> 48) as u8,
                    }
                }
                fuzz_answers(&data);
            }
        }
    }
}
