//! Frames of the proxy.

use super::{Data, FINAL, Status, VERSION, kind, types, varint};

/// Begins a frame; [`end`] sets its length.
fn begin(out: &mut Vec<u8>, kind: u8, stream: u64, frame: u64) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    out.push(kind);
    out.extend_from_slice(&FINAL.to_be_bytes());
    varint::write(out, stream);
    varint::write(out, frame);
    at
}

fn end(out: &mut [u8], at: usize) {
    let length = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    varint::write(out, text.len() as u64);
    out.extend_from_slice(text);
}

fn data(out: &mut Vec<u8>, data: &Data<'_>) {
    match data {
        Data::Null => out.push(types::NULL),
        Data::Bool(value) => out.push(types::BOOL | if *value { types::TRUE } else { 0 }),
        Data::Int32(value) => integer(out, types::INT32, i64::from(*value) as u64),
        Data::Uint32(value) => integer(out, types::UINT32, u64::from(*value)),
        Data::Int64(value) => integer(out, types::INT64, *value as u64),
        Data::Uint64(value) => integer(out, types::UINT64, *value),
        Data::Ipv4(address) => {
            out.push(types::IPV4);
            out.extend_from_slice(&address.octets());
        }
        Data::Ipv6(address) => {
            out.push(types::IPV6);
            out.extend_from_slice(&address.octets());
        }
        Data::Str(value) => {
            out.push(types::STR);
            text(out, value);
        }
        Data::Bin(value) => {
            out.push(types::BIN);
            text(out, value);
        }
    }
}

fn integer(out: &mut Vec<u8>, kind: u8, value: u64) {
    out.push(kind);
    varint::write(out, value);
}

/// The side of the proxy in HAPROXY-HELLO.
#[derive(Clone, Copy, Debug)]
pub enum Greeting<'a> {
    /// A health check.
    Check,
    /// A connection of an engine.
    Engine {
        /// The engine's identifier.
        id: &'a str,
        /// Whether frames may be sent before others are acknowledged.
        pipelining: bool,
    },
}

/// Appends HAPROXY-HELLO.
pub fn write_hello(out: &mut Vec<u8>, max_frame_size: u32, greeting: Greeting<'_>) {
    let at = begin(out, kind::HELLO, 0, 0);
    let mut item = |name: &str, value: Data<'_>| {
        text(out, name.as_bytes());
        data(out, &value);
    };
    item("supported-versions", Data::Str(VERSION.as_bytes()));
    item("max-frame-size", Data::Uint32(max_frame_size));
    match greeting {
        Greeting::Engine { id, pipelining } => {
            item("capabilities", Data::Str(if pipelining { b"pipelining" } else { b"" }));
            item("engine-id", Data::Str(id.as_bytes()));
        }
        Greeting::Check => {
            item("capabilities", Data::Str(b""));
            item("healthcheck", Data::Bool(true));
        }
    }
    end(out, at);
}

/// Appends HAPROXY-DISCONNECT.
pub fn write_disconnect(out: &mut Vec<u8>, status: Status) {
    let at = begin(out, kind::DISCONNECT, 0, 0);
    text(out, b"status-code");
    data(out, &Data::Uint32(status.code()));
    text(out, b"message");
    data(out, &Data::Str(status.text().as_bytes()));
    end(out, at);
}

/// Appends NOTIFY with these messages; returns the frame's length without the field of the length.
pub fn write_notify(out: &mut Vec<u8>, stream: u64, frame: u64, messages: &Messages) -> usize {
    let at = begin(out, kind::NOTIFY, stream, frame);
    out.extend_from_slice(&messages.bytes);
    end(out, at);
    out.len() - at - 4
}

/// The room that a message begins with, in bytes: that of a few arguments.
const MESSAGE_ROOM: usize = 256;

/// Messages that are being written.
#[derive(Clone, Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    /// The place of the number of arguments of the last message.
    count: usize,
}

impl Messages {
    /// Begins a message.
    pub fn message(&mut self, name: &str) {
        self.bytes.reserve(MESSAGE_ROOM);
        text(&mut self.bytes, name.as_bytes());
        self.count = self.bytes.len();
        self.bytes.push(0);
    }

    /// Adds an argument to the message, which may have up to 255.
    pub fn argument(&mut self, name: &str, value: &Data<'_>) {
        text(&mut self.bytes, name.as_bytes());
        data(&mut self.bytes, value);
        if let Some(count) = self.bytes.get_mut(self.count) {
            *count = count.saturating_add(1);
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether there is no message.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Removes all messages.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hello_of_a_check_is_haproxys() {
        let expected = "0000004e01000000010000\
                        12737570706f727465642d76657273696f6e730803322e30\
                        0e6d61782d6672616d652d73697a6503fcf0060c63617061\
                        62696c697469657308000b6865616c7468636865636b11";
        let mut out = Vec::new();
        write_hello(&mut out, 16_380, Greeting::Check);
        let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
    }

    #[test]
    fn messages_and_their_arguments() {
        let mut messages = Messages::default();
        messages.message("m");
        messages.argument("a", &Data::Int64(-1));
        messages.argument("", &Data::Null);
        messages.message("n");
        let mut out = Vec::new();
        assert_eq!(write_notify(&mut out, 3, 1, &messages), out.len() - 4);
        assert_eq!(out[4..11], [3, 0, 0, 0, 1, 3, 1]);
        assert_eq!(out[11..16], [1, b'm', 2, 1, b'a']);
        assert_eq!(out[out.len() - 5..], [0, 0, 1, b'n', 0]);
    }
}
