//! Frames of agents.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{ABORT, Data, FINAL, FRAME_MIN, Status, VERSION, kind, types, varint};

/// A frame of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// AGENT-HELLO.
    Hello(AgentHello),
    /// AGENT-DISCONNECT.
    Disconnect {
        /// Its status.
        status: u64,
        /// Its message.
        message: &'a [u8],
    },
    /// ACK.
    Ack {
        /// The stream that was notified of.
        stream: u64,
        /// The frame that is acknowledged.
        frame: u64,
        /// Whether the agent has cancelled the exchange.
        aborted: bool,
        /// What is to be done.
        actions: Actions<'a>,
    },
    /// A frame of another type.
    Other {
        /// The stream that it names.
        stream: u64,
    },
}

/// What an agent says at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentHello {
    /// The maximum length of a frame.
    pub max_frame_size: u32,
    /// Whether frames may be sent before others are acknowledged.
    pub pipelining: bool,
}

/// The scope of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The process.
    Process,
    /// The session.
    Session,
    /// The transaction.
    Transaction,
    /// The request.
    Request,
    /// The response.
    Response,
}

/// An action of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// Sets a variable.
    Set {
        /// Its scope.
        scope: Scope,
        /// Its name, without the agent's prefix.
        name: &'a [u8],
        /// Its value.
        value: Data<'a>,
    },
    /// Removes a variable.
    Unset {
        /// Its scope.
        scope: Scope,
        /// Its name, without the agent's prefix.
        name: &'a [u8],
    },
}

/// The actions of an ACK: an error is the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actions<'a>(&'a [u8]);

fn byte(input: &mut &[u8]) -> Option<u8> {
    let (first, rest) = input.split_first()?;
    *input = rest;
    Some(*first)
}

fn bytes<'a>(input: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(count)?;
    *input = rest;
    Some(taken)
}

fn text<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = varint::read(input)?;
    bytes(input, usize::try_from(length).ok()?)
}

fn data<'a>(input: &mut &'a [u8]) -> Option<Data<'a>> {
    let kind = byte(input)?;
    Some(match kind & types::MASK {
        types::NULL => Data::Null,
        types::BOOL => Data::Bool(kind & types::TRUE != 0),
        types::INT32 => Data::Int32(varint::read(input)? as i32),
        types::UINT32 => Data::Uint32(varint::read(input)? as u32),
        types::INT64 => Data::Int64(varint::read(input)? as i64),
        types::UINT64 => Data::Uint64(varint::read(input)?),
        types::IPV4 => Data::Ipv4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes(input, 4)?).ok()?)),
        types::IPV6 => Data::Ipv6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes(input, 16)?).ok()?)),
        types::STR => Data::Str(text(input)?),
        types::BIN => Data::Bin(text(input)?),
        _ => return None,
    })
}

fn number(value: Data<'_>) -> Option<u64> {
    match value {
        Data::Int32(value) => Some(value as u64),
        Data::Int64(value) => Some(value as u64),
        Data::Uint32(value) => Some(u64::from(value)),
        Data::Uint64(value) => Some(value),
        _ => None,
    }
}

fn item<'a>(input: &mut &'a [u8]) -> Option<(&'a [u8], Data<'a>)> {
    let name = text(input).filter(|name| !name.is_empty())?;
    Some((name, data(input)?))
}

/// Parses the frame at the start of the input. Returns it with its length, that of the length's field included; `None`
/// if it is incomplete. A frame of more than `max` bytes is an error at once.
pub fn read(input: &[u8], max: usize) -> Result<Option<(Frame<'_>, usize)>, Status> {
    let Some((length, rest)) = input.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > max {
        return Err(Status::TooBig);
    }
    if length < 7 {
        return Err(Status::Invalid);
    }
    let Some(frame) = rest.get(..length) else { return Ok(None) };
    frame_of(frame).map(|frame| Some((frame, 4 + length)))
}

fn frame_of(mut input: &[u8]) -> Result<Frame<'_>, Status> {
    let input = &mut input;
    let mut head = || {
        let kind = byte(input)?;
        let flags = u32::from_be_bytes(<[u8; 4]>::try_from(bytes(input, 4)?).ok()?);
        Some((kind, flags, varint::read(input)?, varint::read(input)?))
    };
    let (kind, flags, stream, frame) = head().ok_or(Status::Invalid)?;
    if flags & FINAL == 0 {
        return Err(Status::Fragmented);
    }
    match kind {
        kind::AGENT_HELLO | kind::AGENT_DISCONNECT if (stream, frame) != (0, 0) => Err(Status::Invalid),
        kind::AGENT_HELLO => hello(input),
        kind::AGENT_DISCONNECT => disconnect(input),
        kind::ACK => Ok(Frame::Ack { stream, frame, aborted: flags & ABORT != 0, actions: Actions(input) }),
        _ => Ok(Frame::Other { stream }),
    }
}

fn hello<'a>(input: &mut &[u8]) -> Result<Frame<'a>, Status> {
    let (mut version, mut size, mut capabilities) = (None, None, None);
    while !input.is_empty() {
        match item(input).ok_or(Status::Invalid)? {
            (b"version", Data::Str(text)) => version = Some(text),
            (b"max-frame-size", value) => size = Some(number(value).ok_or(Status::Invalid)?),
            (b"capabilities", Data::Str(text)) => capabilities = Some(text),
            (b"version" | b"capabilities", _) => return Err(Status::Invalid),
            _ => {}
        }
    }
    if version.ok_or(Status::NoVersion)?.trim_ascii() != VERSION.as_bytes() {
        return Err(Status::BadVersion);
    }
    let size = size.ok_or(Status::NoFrameSize)?;
    let size = u32::try_from(size).ok().filter(|size| *size as usize >= FRAME_MIN).ok_or(Status::BadFrameSize)?;
    let mut names = capabilities.ok_or(Status::NoCapabilities)?.split(|byte| *byte == b',');
    let pipelining = names.any(|name| name.trim_ascii() == b"pipelining");
    Ok(Frame::Hello(AgentHello { max_frame_size: size, pipelining }))
}

fn disconnect<'a>(input: &mut &'a [u8]) -> Result<Frame<'a>, Status> {
    let (mut status, mut message) = (Status::Unknown.code().into(), &b""[..]);
    while !input.is_empty() {
        match item(input).ok_or(Status::Invalid)? {
            (b"status-code", value) => status = number(value).ok_or(Status::Invalid)?,
            (b"message", Data::Str(text)) => message = text,
            (b"message", _) => return Err(Status::Invalid),
            _ => {}
        }
    }
    Ok(Frame::Disconnect { status, message })
}

/// The types of actions.
const SET: u8 = 1;
const UNSET: u8 = 2;

impl<'a> Actions<'a> {
    /// Returns the actions of these bytes, the payload of an ACK.
    pub fn of(payload: &'a [u8]) -> Actions<'a> {
        Actions(payload)
    }

    /// Returns the bytes of the actions that were not read yet.
    pub fn payload(&self) -> &'a [u8] {
        self.0
    }

    fn action(&mut self) -> Option<Action<'a>> {
        let input = &mut self.0;
        let (kind, arguments) = (byte(input)?, byte(input)?);
        let scope = match byte(input)? {
            0 => Scope::Process,
            1 => Scope::Session,
            2 => Scope::Transaction,
            3 => Scope::Request,
            4 => Scope::Response,
            _ => return None,
        };
        let name = text(input).filter(|name| !name.is_empty())?;
        match (kind, arguments) {
            (SET, 3) => Some(Action::Set { scope, name, value: data(input)? }),
            (UNSET, 2) => Some(Action::Unset { scope, name }),
            _ => None,
        }
    }
}

impl<'a> Iterator for Actions<'a> {
    type Item = Result<Action<'a>, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let action = self.action();
        if action.is_none() {
            self.0 = &[];
        }
        Some(action.ok_or(Status::Invalid))
    }
}

/// Reads any bytes as frames: a frame that is read is within the input, and its actions end.
pub fn fuzz_spop(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some((frame, length))) = read(rest, 4096) {
        assert!((11..=rest.len()).contains(&length), "a frame has a head and is complete");
        if let Frame::Ack { actions, .. } = frame {
            assert!(actions.count() <= length, "an action has a byte at least");
        }
        rest = &rest[length..];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a frame of this type with this payload.
    fn frame(kind: u8, flags: u32, numbers: [u8; 2], payload: &[u8]) -> Vec<u8> {
        let body = [&[kind][..], &flags.to_be_bytes(), &numbers, payload].concat();
        [&(body.len() as u32).to_be_bytes()[..], &body].concat()
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("digits");
        digits.chunks(2).map(pair).collect()
    }

    #[test]
    fn agents_introduce_themselves() {
        let good =
            hex("00000036 65 00000001 0000 0776657273696F6E 0803322E30 0E6D61782D6672616D652D73697A65 03FCF006 \
                        0C6361706162696C6974696573 0800");
        let expected = Frame::Hello(AgentHello { max_frame_size: 16_380, pipelining: false });
        assert_eq!(read(&good, 16_380), Ok(Some((expected, good.len()))));
        for end in 0..good.len() {
            assert_eq!(read(&good[..end], 16_380), Ok(None), "{end} bytes");
        }
        for (bytes, expected) in [
            (hex("00000000"), Status::Invalid),
            (hex("00000007 65 00000000 0000"), Status::Fragmented),
            (hex("00000014 65 00000001 0000 0776657273696F6E 0803312E30"), Status::BadVersion),
            (hex("00000014 65 00000001 0000 0776657273696F6E 0803322E30"), Status::NoFrameSize),
            (hex("00000007 65 00000001 0000"), Status::NoVersion),
            (hex("00000007 65 00000001 0100"), Status::Invalid),
            (hex("7fffffff"), Status::TooBig),
            (hex("00000007 65 00000001 0001"), Status::Invalid),
        ] {
            assert_eq!(read(&bytes, 16_380), Err(expected), "{bytes:?}");
        }
    }

    #[test]
    fn actions_are_read_one_by_one() {
        let payload = b"\x01\x03\x02\x01a\x08\x02hi\x02\x02\x00\x01b\x01\x03\x07\x01a\x00";
        let bytes = frame(kind::ACK, FINAL, [5, 6], payload);
        let Ok(Some((Frame::Ack { stream: 5, frame: 6, aborted: false, actions }, _))) = read(&bytes, 4096) else {
            panic!("an ACK");
        };
        let expected = [
            Ok(Action::Set { scope: Scope::Transaction, name: b"a", value: Data::Str(b"hi") }),
            Ok(Action::Unset { scope: Scope::Process, name: b"b" }),
            Err(Status::Invalid),
        ];
        assert_eq!(actions.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn agents_say_why_they_disconnect() {
        let bytes = frame(kind::AGENT_DISCONNECT, FINAL, [0, 0], b"\x0bstatus-code\x03\x04\x07message\x08\x03bad");
        let expected = Frame::Disconnect { status: 4, message: b"bad" };
        assert_eq!(read(&bytes, 4096), Ok(Some((expected, bytes.len()))));
    }

    proptest! {
        #[test]
        fn fuzz_spop_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz_spop(&bytes);
        }

        #[test]
        fn fuzz_spop_on_frames(
            kind in prop_oneof![Just(kind::AGENT_HELLO), Just(kind::AGENT_DISCONNECT), Just(kind::ACK)],
            flags in 0u32..4,
            payload in prop::collection::vec(prop_oneof![0u8..12, any::<u8>()], 0..100),
        ) {
            fuzz_spop(&frame(kind, flags, [0, 0], &payload));
            fuzz_spop(&frame(kind, flags, [1, 2], &payload));
        }
    }
}
