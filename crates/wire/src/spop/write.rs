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

/// Appends HAPROXY-HELLO: of a health check, or of a connection of this engine.
pub fn write_hello(out: &mut Vec<u8>, max_frame_size: u32, engine: Option<&str>) {
    let at = begin(out, kind::HELLO, 0, 0);
    let mut item = |name: &str, value: Data<'_>| {
        text(out, name.as_bytes());
        data(out, &value);
    };
    item("supported-versions", Data::Str(VERSION.as_bytes()));
    item("max-frame-size", Data::Uint32(max_frame_size));
    match engine {
        Some(engine) => {
            item("capabilities", Data::Str(b"pipelining"));
            item("engine-id", Data::Str(engine.as_bytes()));
        }
        None => {
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

/// A NOTIFY frame that is being written.
pub struct Notify<'a> {
    out: &'a mut Vec<u8>,
    at: usize,
    /// The place of the number of arguments of the last message.
    count: usize,
}

impl<'a> Notify<'a> {
    /// Begins a frame.
    pub fn begin(out: &'a mut Vec<u8>, stream: u64, frame: u64) -> Notify<'a> {
        let at = begin(out, kind::NOTIFY, stream, frame);
        Notify { out, at, count: 0 }
    }

    /// Begins a message.
    pub fn message(&mut self, name: &str) {
        text(self.out, name.as_bytes());
        self.count = self.out.len();
        self.out.push(0);
    }

    /// Adds an argument to the message, which may have up to 255.
    pub fn argument(&mut self, name: &str, value: &Data<'_>) {
        text(self.out, name.as_bytes());
        data(self.out, value);
        self.out[self.count] = self.out[self.count].saturating_add(1);
    }

    /// Ends the frame; returns its length without the field of the length.
    pub fn end(self) -> usize {
        end(self.out, self.at);
        self.out.len() - self.at - 4
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
        write_hello(&mut out, 16_380, None);
        let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
    }

    #[test]
    fn messages_and_their_arguments() {
        let mut out = Vec::new();
        let mut notify = Notify::begin(&mut out, 3, 1);
        notify.message("m");
        notify.argument("a", &Data::Int64(-1));
        notify.argument("", &Data::Null);
        notify.message("n");
        assert_eq!(notify.end(), out.len() - 4);
        assert_eq!(out[4..11], [3, 0, 0, 0, 1, 3, 1]);
        assert_eq!(out[11..16], [1, b'm', 2, 1, b'a']);
        assert_eq!(out[out.len() - 5..], [0, 0, 1, b'n', 0]);
    }
}
