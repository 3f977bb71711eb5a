//! Replies: the sink that command code writes to, as wire bytes or as a value.

use crate::reply::Reply;
use crate::resp::number::{format_decimal, format_double};

/// The protocol that a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2, unless HELLO selects RESP3.
    #[default]
    Resp2,
    /// RESP3, after `HELLO 3`.
    Resp3,
}

/// The sink that command code writes its reply to, one call per element.
///
/// An aggregate is announced with its length and followed by exactly that many elements (a map: by that many pairs,
/// key first). Each command writes exactly one complete reply. Commands are generic over the sink, so there is no
/// dynamic call on the fast path; the trait is nevertheless dyn-compatible.
pub trait ReplySink {
    /// A status such as `OK`: one line.
    fn simple(&mut self, text: &str);
    /// An error, its code first (`ERR …`, `WRONGTYPE …`). Line breaks at its end are dropped, others become spaces.
    fn error(&mut self, text: &str);
    /// An error that quotes bytes of the request, which need not be UTF-8.
    fn error_bytes(&mut self, text: &[u8]);
    /// An integer.
    fn integer(&mut self, value: i64);
    /// A bulk string.
    fn bulk(&mut self, bytes: &[u8]);
    /// The null where a bulk string could stand.
    fn null(&mut self);
    /// The null where an array could stand; another form than [`null`](Self::null) in RESP2 only.
    fn null_array(&mut self);
    /// An array of `len` elements follows.
    fn array(&mut self, len: usize);
    /// A map of `pairs` pairs follows: key, value, key, value…
    fn map(&mut self, pairs: usize);
    /// A set of `len` elements follows.
    fn set(&mut self, len: usize);
    /// An out-of-band message of `len` elements follows.
    fn push(&mut self, len: usize);
    /// A double.
    fn double(&mut self, value: f64);
    /// A double as coordinates are said: all digits of up to 17 decimals, and never an exponent.
    fn decimal(&mut self, value: f64);
    /// An array of `len` pairs follows. If this returns true, each pair is an array of its own, as RESP3 has them, and
    /// is announced as one; otherwise the elements of all pairs stand in one array.
    fn pairs(&mut self, len: usize) -> bool;
    /// A map of `len` pairs follows. If this returns true, each pair is announced as an array of its own, as RESP2 has
    /// the streams of XREAD.
    fn keyed(&mut self, len: usize) -> bool;
    /// A truth value.
    fn boolean(&mut self, value: bool);
    /// An integer of any size, in decimal.
    fn big_number(&mut self, digits: &str);
    /// A text with its format, such as `txt` or `mkd`.
    fn verbatim(&mut self, format: [u8; 3], text: &[u8]);

    /// `+OK`.
    fn ok(&mut self) {
        self.simple("OK");
    }

    /// A bulk string of a number's decimal digits.
    fn bulk_integer(&mut self, value: i64) {
        self.bulk(itoa::Buffer::new().format(value).as_bytes());
    }

    /// A whole reply value.
    fn reply(&mut self, reply: &Reply) {
        match reply {
            Reply::Simple(text) => self.simple(text),
            Reply::Error(text) => self.error(text),
            Reply::Integer(value) => self.integer(*value),
            Reply::Bulk(bytes) => self.bulk(bytes),
            Reply::Null => self.null(),
            Reply::Array(items) => {
                self.array(items.len());
                items.iter().for_each(|item| self.reply(item));
            }
            Reply::Map(pairs) => {
                self.map(pairs.len());
                for (key, value) in pairs {
                    self.reply(key);
                    self.reply(value);
                }
            }
            Reply::Set(items) => {
                self.set(items.len());
                items.iter().for_each(|item| self.reply(item));
            }
            Reply::Double(value) => self.double(*value),
            Reply::Boolean(value) => self.boolean(*value),
            Reply::BigNumber(digits) => self.big_number(digits),
            Reply::Verbatim(format, text) => self.verbatim(*format, text),
            Reply::Push(items) => {
                self.push(items.len());
                items.iter().for_each(|item| self.reply(item));
            }
        }
    }
}

/// Writes replies as bytes of either protocol to the end of a buffer.
///
/// Cost: one reservation and one or two copies per element. The buffer's limit is its owner's business.
#[derive(Debug)]
pub struct ReplyWriter<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
}

impl<'a> ReplyWriter<'a> {
    /// Returns a writer that appends to `out`.
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> ReplyWriter<'a> {
        ReplyWriter { out, protocol }
    }

    /// Returns the protocol written.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Goes on in another protocol, as HELLO asks for.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Bytes in the buffer so far, other replies included.
    pub fn buffered(&self) -> usize {
        self.out.len()
    }

    /// Removes everything written since the buffer had `len` bytes: a reply that turned out not to be sent.
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
    }

    /// Appends replies that are already encoded in this writer's protocol.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Writes a whole reply value.
    pub fn write_reply(&mut self, reply: &Reply) {
        self.reply(reply);
    }

    fn number(&mut self, mark: u8, value: i64) {
        // Small numbers are nearly all there are: lengths, counts, flags.
        if let 0..=9 = value {
            return self.out.extend_from_slice(&[mark, b'0' + value as u8, b'\r', b'\n']);
        }
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value).as_bytes();
        self.out.reserve(digits.len() + 3);
        self.out.push(mark);
        self.out.extend_from_slice(digits);
        self.out.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, mark: u8, text: &[u8]) {
        self.out.reserve(text.len() + 3);
        self.out.push(mark);
        let start = self.out.len();
        self.out.extend_from_slice(text);
        // A line break inside would end the reply early and make the rest a forged one.
        for byte in &mut self.out[start..] {
            if matches!(*byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Returns an error's text as Redis sends it if the quoted bytes contain line ends.
fn without_line_end(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |at| at + 1);
    &text[..end]
}

impl ReplySink for ReplyWriter<'_> {
    fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    fn error(&mut self, text: &str) {
        self.error_bytes(text.as_bytes());
    }

    fn error_bytes(&mut self, text: &[u8]) {
        self.line(b'-', without_line_end(text));
    }

    fn integer(&mut self, value: i64) {
        self.number(b':', value);
    }

    fn bulk(&mut self, bytes: &[u8]) {
        self.out.reserve(bytes.len() + 32);
        match bytes.len() {
            // Most strings are so short that their header is written faster this way than by a general conversion.
            len @ 0..10 => self.out.extend_from_slice(&[b'$', b'0' + len as u8, b'\r', b'\n']),
            len @ 10..100 => {
                let (tens, ones) = (len as u8 / 10, len as u8 % 10);
                self.out.extend_from_slice(&[b'$', b'0' + tens, b'0' + ones, b'\r', b'\n']);
            }
            len => self.number(b'$', len as i64),
        }
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    fn null_array(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    fn array(&mut self, len: usize) {
        self.number(b'*', len as i64);
    }

    fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.number(b'*', 2 * pairs as i64),
            Protocol::Resp3 => self.number(b'%', pairs as i64),
        }
    }

    fn set(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.number(b'*', len as i64),
            Protocol::Resp3 => self.number(b'~', len as i64),
        }
    }

    fn push(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.number(b'*', len as i64),
            Protocol::Resp3 => self.number(b'>', len as i64),
        }
    }

    fn double(&mut self, value: f64) {
        match self.protocol {
            Protocol::Resp2 => {
                let mut text = Vec::with_capacity(32);
                format_double(value, &mut text);
                self.bulk(&text);
            }
            Protocol::Resp3 => {
                self.out.push(b',');
                format_double(value, self.out);
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    fn decimal(&mut self, value: f64) {
        let mut text = Vec::with_capacity(40);
        format_decimal(value, &mut text);
        match self.protocol {
            Protocol::Resp2 => self.bulk(&text),
            Protocol::Resp3 => self.line(b',', &text),
        }
    }

    fn pairs(&mut self, len: usize) -> bool {
        let nested = self.protocol == Protocol::Resp3;
        self.array(if nested { len } else { 2 * len });
        nested
    }

    fn keyed(&mut self, len: usize) -> bool {
        let nested = self.protocol == Protocol::Resp2;
        if nested {
            self.array(len)
        } else {
            self.map(len)
        }
        nested
    }

    fn boolean(&mut self, value: bool) {
        self.out.extend_from_slice(match (self.protocol, value) {
            (Protocol::Resp2, false) => b":0\r\n",
            (Protocol::Resp2, true) => b":1\r\n",
            (Protocol::Resp3, false) => b"#f\r\n",
            (Protocol::Resp3, true) => b"#t\r\n",
        });
    }

    fn big_number(&mut self, digits: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(digits.as_bytes()),
            Protocol::Resp3 => self.line(b'(', digits.as_bytes()),
        }
    }

    fn verbatim(&mut self, format: [u8; 3], text: &[u8]) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => {
                self.number(b'=', text.len() as i64 + 4);
                self.out.extend_from_slice(&format);
                self.out.push(b':');
                self.out.extend_from_slice(text);
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }
}

/// Builds a [`Reply`] from the calls of a [`ReplySink`].
///
/// The RESP2 difference between the two nulls is not kept: both are [`Reply::Null`].
#[derive(Debug, Default)]
pub struct ReplyBuilder {
    open: Vec<Open>,
    done: Option<Reply>,
}

#[derive(Debug)]
struct Open {
    kind: Kind,
    missing: usize,
    items: Vec<Reply>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Array,
    Map,
    Set,
    Push,
}

impl ReplyBuilder {
    /// Returns an empty builder.
    pub fn new() -> ReplyBuilder {
        ReplyBuilder::default()
    }

    /// Returns the finished reply and an empty builder again; [`None`] while elements are missing.
    pub fn take(&mut self) -> Option<Reply> {
        self.done.take()
    }

    /// Returns the reply. A command that wrote an incomplete one is a programmer's error: it panics in debug builds and
    /// answers an error otherwise.
    pub fn finish(mut self) -> Reply {
        debug_assert!(self.open.is_empty() && self.done.is_some(), "an incomplete reply");
        self.take().unwrap_or_else(|| Reply::Error("ERR internal error: incomplete reply".into()))
    }

    fn add(&mut self, mut reply: Reply) {
        while let Some(open) = self.open.last_mut() {
            open.items.push(reply);
            open.missing -= 1;
            if open.missing > 0 {
                return;
            }
            let Some(open) = self.open.pop() else { return };
            reply = open.kind.close(open.items);
        }
        debug_assert!(self.done.is_none(), "two replies where one was due");
        self.done = Some(reply);
    }

    fn open(&mut self, kind: Kind, elements: usize) {
        if elements == 0 {
            return self.add(kind.close(Vec::new()));
        }
        self.open.push(Open { kind, missing: elements, items: Vec::with_capacity(elements.min(1024)) });
    }
}

impl Kind {
    fn close(self, items: Vec<Reply>) -> Reply {
        match self {
            Kind::Array => Reply::Array(items),
            Kind::Set => Reply::Set(items),
            Kind::Push => Reply::Push(items),
            Kind::Map => Reply::Map(pairs(items)),
        }
    }
}

/// Keys and values that alternate, as pairs.
pub(super) fn pairs(items: Vec<Reply>) -> Vec<(Reply, Reply)> {
    let mut pairs = Vec::with_capacity(items.len() / 2);
    let mut items = items.into_iter();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        pairs.push((key, value));
    }
    pairs
}

impl ReplySink for ReplyBuilder {
    fn simple(&mut self, text: &str) {
        self.add(Reply::Simple(text.into()));
    }

    fn error(&mut self, text: &str) {
        self.error_bytes(text.as_bytes());
    }

    fn error_bytes(&mut self, text: &[u8]) {
        self.add(Reply::Error(String::from_utf8_lossy(without_line_end(text)).into_owned()));
    }

    fn integer(&mut self, value: i64) {
        self.add(Reply::Integer(value));
    }

    fn bulk(&mut self, bytes: &[u8]) {
        self.add(Reply::Bulk(bytes.to_vec()));
    }

    fn null(&mut self) {
        self.add(Reply::Null);
    }

    fn null_array(&mut self) {
        self.add(Reply::Null);
    }

    fn array(&mut self, len: usize) {
        self.open(Kind::Array, len);
    }

    fn map(&mut self, pairs: usize) {
        self.open(Kind::Map, 2 * pairs);
    }

    fn set(&mut self, len: usize) {
        self.open(Kind::Set, len);
    }

    fn push(&mut self, len: usize) {
        self.open(Kind::Push, len);
    }

    fn double(&mut self, value: f64) {
        self.add(Reply::Double(value));
    }

    fn decimal(&mut self, value: f64) {
        self.add(Reply::Double(value));
    }

    fn pairs(&mut self, len: usize) -> bool {
        self.array(2 * len);
        false
    }

    fn keyed(&mut self, len: usize) -> bool {
        self.map(len);
        false
    }

    fn boolean(&mut self, value: bool) {
        self.add(Reply::Boolean(value));
    }

    fn big_number(&mut self, digits: &str) {
        self.add(Reply::BigNumber(digits.into()));
    }

    fn verbatim(&mut self, format: [u8; 3], text: &[u8]) {
        self.add(Reply::Verbatim(format, text.to_vec()));
    }

    fn reply(&mut self, reply: &Reply) {
        self.add(reply.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reply: Reply, resp2: &str, resp3: &str) {
        for (protocol, expected) in [(Protocol::Resp2, resp2), (Protocol::Resp3, resp3)] {
            let mut out = Vec::new();
            ReplyWriter::new(&mut out, protocol).write_reply(&reply);
            assert_eq!(String::from_utf8_lossy(&out), expected, "{protocol:?}");
        }
    }

    #[test]
    fn each_type_has_its_form_in_both_protocols() {
        check(Reply::Simple("OK".into()), "+OK\r\n", "+OK\r\n");
        check(Reply::Error("ERR a\r\n+b".into()), "-ERR a  +b\r\n", "-ERR a  +b\r\n");
        check(Reply::Integer(-12), ":-12\r\n", ":-12\r\n");
        check(Reply::Bulk(b"a\r\nb".to_vec()), "$4\r\na\r\nb\r\n", "$4\r\na\r\nb\r\n");
        check(Reply::Null, "$-1\r\n", "_\r\n");
        check(Reply::Array(vec![Reply::Integer(1)]), "*1\r\n:1\r\n", "*1\r\n:1\r\n");
        check(Reply::Map(vec![(Reply::Integer(1), Reply::Null)]), "*2\r\n:1\r\n$-1\r\n", "%1\r\n:1\r\n_\r\n");
        check(Reply::Set(vec![]), "*0\r\n", "~0\r\n");
        check(Reply::Push(vec![]), "*0\r\n", ">0\r\n");
        check(Reply::Double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n");
        check(Reply::Boolean(true), ":1\r\n", "#t\r\n");
        check(Reply::BigNumber("12".into()), "$2\r\n12\r\n", "(12\r\n");
        check(Reply::Verbatim(*b"txt", b"hi".to_vec()), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n");
    }

    #[test]
    fn the_builder_nests_and_closes_empty_aggregates() {
        let mut builder = ReplyBuilder::new();
        builder.array(3);
        builder.map(1);
        builder.bulk(b"k");
        builder.set(0);
        builder.array(0);
        assert_eq!(builder.take(), None);
        builder.null_array();
        let map = Reply::Map(vec![(Reply::Bulk(b"k".to_vec()), Reply::Set(vec![]))]);
        assert_eq!(builder.finish(), Reply::Array(vec![map, Reply::Array(vec![]), Reply::Null]));
    }
}
