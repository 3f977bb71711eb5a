//! Replies as a client reads them, from either protocol, into [`Reply`] values.
//!
//! The parser consumes every complete element as it arrives, so a long array is read once however it is
//! split; only a single string must be in the buffer whole. Attributes are read and dropped. The streamed types of
//! RESP3 (`$?`), which no server sends, are errors.

use std::fmt;

use crate::reply::Reply;
use crate::resp::number::parse_i64;
use crate::resp::write::{Protocol, ReplySink, ReplyWriter, pairs};

/// Longest line: a status, an error, a number or a count.
pub(super) const LINE_MAX: usize = 64 * 1024;

/// The limits of a server's replies.
#[derive(Clone, Copy, Debug)]
pub struct ReplyLimits {
    /// Longest string, in bytes.
    pub max_bulk: u64,
    /// Deepest nesting of arrays and maps.
    pub max_depth: usize,
    /// Most elements in one reply, all levels together.
    pub max_elements: u64,
}

impl Default for ReplyLimits {
    fn default() -> ReplyLimits {
        ReplyLimits { max_bulk: 512 * 1024 * 1024, max_depth: 128, max_elements: 1 << 28 }
    }
}

/// The reason why a reply cannot be read; the connection is unusable afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyParseError {
    /// No type of RESP starts with this byte.
    UnknownType(u8),
    /// A line longer than 64 KiB.
    LongLine,
    /// A CR without LF, or a string that is not followed by both.
    MissingLineEnd,
    /// A number that is none.
    BadNumber,
    /// A value that its type doesn't have.
    BadValue,
    /// A string longer than allowed.
    LongBulk,
    /// Nested deeper than allowed.
    TooDeep,
    /// More elements than allowed.
    TooMany,
}

impl fmt::Display for ReplyParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplyParseError::UnknownType(byte) => write!(f, "unknown reply type '{}'", byte.escape_ascii()),
            ReplyParseError::LongLine => f.write_str("a line longer than 64 KiB"),
            ReplyParseError::MissingLineEnd => f.write_str("a line end is missing"),
            ReplyParseError::BadNumber => f.write_str("not a number"),
            ReplyParseError::BadValue => f.write_str("a value that its type doesn't have"),
            ReplyParseError::LongBulk => f.write_str("a string longer than allowed"),
            ReplyParseError::TooDeep => f.write_str("nested deeper than allowed"),
            ReplyParseError::TooMany => f.write_str("more elements than allowed"),
        }
    }
}

impl std::error::Error for ReplyParseError {}

/// The progress of [`ReplyParser::parse`].
#[derive(Clone, Debug, PartialEq)]
pub struct ReplyProgress {
    /// Bytes that are done with; the next call starts behind them.
    pub consumed: usize,
    /// The reply, once it is whole.
    pub reply: Option<Reply>,
    /// Without a reply: at least this many more bytes are needed.
    pub need: usize,
}

/// Reads one reply after the other.
#[derive(Debug, Default)]
pub struct ReplyParser {
    limits: ReplyLimits,
    open: Vec<Open>,
    elements: u64,
}

#[derive(Debug)]
struct Open {
    kind: Kind,
    missing: u64,
    items: Vec<Reply>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Array,
    Map,
    Set,
    Push,
    Attribute,
}

enum Element {
    Value(Reply),
    Open(Kind, u64),
}

impl ReplyParser {
    /// Returns a parser at the start of a reply.
    pub fn new(limits: ReplyLimits) -> ReplyParser {
        ReplyParser { limits, ..ReplyParser::default() }
    }

    /// Reads on in `buf`, which starts where the last call's consumed bytes ended. At most one reply is taken.
    pub fn parse(&mut self, buf: &[u8]) -> Result<ReplyProgress, ReplyParseError> {
        let mut consumed = 0;
        loop {
            let (element, used) = match self.element(&buf[consumed..])? {
                Ok(found) => found,
                Err(need) => return Ok(ReplyProgress { consumed, reply: None, need }),
            };
            consumed += used;
            self.elements += 1;
            if let Some(reply) = self.place(element)? {
                self.elements = 0;
                return Ok(ReplyProgress { consumed, reply: Some(reply), need: 0 });
            }
        }
    }

    /// True between two replies.
    pub fn at_border(&self) -> bool {
        self.open.is_empty() && self.elements == 0
    }

    fn place(&mut self, element: Element) -> Result<Option<Reply>, ReplyParseError> {
        let mut reply = match element {
            Element::Value(reply) => reply,
            Element::Open(kind, 0) => match close(kind, Vec::new()) {
                Some(reply) => reply,
                None => return Ok(None),
            },
            Element::Open(kind, count) => {
                if self.open.len() >= self.limits.max_depth {
                    return Err(ReplyParseError::TooDeep);
                }
                if self.elements.saturating_add(count) > self.limits.max_elements {
                    return Err(ReplyParseError::TooMany);
                }
                self.open.push(Open { kind, missing: count, items: Vec::with_capacity(count.min(64) as usize) });
                return Ok(None);
            }
        };
        while let Some(mut open) = self.open.pop() {
            open.items.push(reply);
            open.missing -= 1;
            if open.missing > 0 {
                self.open.push(open);
                return Ok(None);
            }
            match close(open.kind, open.items) {
                Some(closed) => reply = closed,
                None => return Ok(None), // an attribute: the value that it describes follows
            }
        }
        Ok(Some(reply))
    }

    /// Returns the next element and its length, or how many bytes are missing at least.
    fn element(&self, buf: &[u8]) -> Result<Result<(Element, usize), usize>, ReplyParseError> {
        if self.elements > self.limits.max_elements {
            return Err(ReplyParseError::TooMany);
        }
        let Some(&mark) = buf.first() else { return Ok(Err(1)) };
        if !b"+-:$*%~>,#_(=!|".contains(&mark) {
            return Err(ReplyParseError::UnknownType(mark));
        }
        let Some(end) = memchr::memchr(b'\r', &buf[..buf.len().min(LINE_MAX)]) else {
            return if buf.len() < LINE_MAX { Ok(Err(1)) } else { Err(ReplyParseError::LongLine) };
        };
        match buf.get(end + 1) {
            None => return Ok(Err(1)),
            Some(b'\n') => {}
            Some(_) => return Err(ReplyParseError::MissingLineEnd),
        }
        let (line, used) = (&buf[1..end], end + 2);
        let text = || String::from_utf8_lossy(line).into_owned();
        let value = match mark {
            b'+' => Reply::Simple(text()),
            b'-' => Reply::Error(text()),
            b':' => Reply::Integer(number(line.strip_prefix(b"+").unwrap_or(line))?),
            b'_' if line.is_empty() => Reply::Null,
            b'#' if line == b"t" => Reply::Boolean(true),
            b'#' if line == b"f" => Reply::Boolean(false),
            b',' => Reply::Double(double(line)?),
            b'(' if is_integer(line) => Reply::BigNumber(text()),
            b'_' | b'#' | b'(' => return Err(ReplyParseError::BadValue),
            b'$' | b'=' | b'!' => {
                let Some(bytes) = self.bulk(number(line)?, buf, used)? else {
                    return Ok(Ok((Element::Value(Reply::Null), used)));
                };
                let bytes = match bytes {
                    Ok(bytes) => bytes,
                    Err(need) => return Ok(Err(need)),
                };
                return Ok(Ok((Element::Value(string(mark, bytes)?), used + bytes.len() + 2)));
            }
            _ => return aggregate(mark, number(line)?).map(|element| Ok((element, used))),
        };
        Ok(Ok((Element::Value(value), used)))
    }

    /// Returns the string of `len` bytes behind the line that ended at `from`: none (null), whole, or so many bytes
    /// short.
    #[allow(clippy::type_complexity)]
    fn bulk<'a>(
        &self,
        len: i64,
        buf: &'a [u8],
        from: usize,
    ) -> Result<Option<Result<&'a [u8], usize>>, ReplyParseError> {
        if len == -1 {
            return Ok(None);
        }
        let len = u64::try_from(len).map_err(|_| ReplyParseError::BadNumber)?;
        if len > self.limits.max_bulk {
            return Err(ReplyParseError::LongBulk);
        }
        let end = from + len as usize;
        if buf.len() < end + 2 {
            return Ok(Some(Err(end + 2 - buf.len())));
        }
        match &buf[end..end + 2] {
            b"\r\n" => Ok(Some(Ok(&buf[from..end]))),
            _ => Err(ReplyParseError::MissingLineEnd),
        }
    }
}

fn string(mark: u8, bytes: &[u8]) -> Result<Reply, ReplyParseError> {
    match (mark, bytes) {
        (b'$', _) => Ok(Reply::Bulk(bytes.to_vec())),
        (b'!', _) => Ok(Reply::Error(String::from_utf8_lossy(bytes).into_owned())),
        (_, [a, b, c, b':', text @ ..]) => Ok(Reply::Verbatim([*a, *b, *c], text.to_vec())),
        _ => Err(ReplyParseError::BadValue),
    }
}

fn aggregate(mark: u8, count: i64) -> Result<Element, ReplyParseError> {
    if count == -1 && mark == b'*' {
        return Ok(Element::Value(Reply::Null));
    }
    let count = u64::try_from(count).map_err(|_| ReplyParseError::BadNumber)?;
    let (kind, count) = match mark {
        b'*' => (Kind::Array, count),
        b'~' => (Kind::Set, count),
        b'>' => (Kind::Push, count),
        b'%' => (Kind::Map, count.saturating_mul(2)),
        _ => (Kind::Attribute, count.saturating_mul(2)),
    };
    Ok(Element::Open(kind, count))
}

fn close(kind: Kind, items: Vec<Reply>) -> Option<Reply> {
    match kind {
        Kind::Array => Some(Reply::Array(items)),
        Kind::Set => Some(Reply::Set(items)),
        Kind::Push => Some(Reply::Push(items)),
        Kind::Map => Some(Reply::Map(pairs(items))),
        Kind::Attribute => None,
    }
}

pub(super) fn number(line: &[u8]) -> Result<i64, ReplyParseError> {
    parse_i64(line).ok_or(ReplyParseError::BadNumber)
}

pub(super) fn double(line: &[u8]) -> Result<f64, ReplyParseError> {
    let starts_well = match line {
        b"inf" | b"-inf" | b"nan" => true,
        _ => matches!(line, [b'0'..=b'9' | b'-' | b'+' | b'.', ..]) && !line.ends_with(b"f"),
    };
    let text = std::str::from_utf8(line).map_err(|_| ReplyParseError::BadNumber)?;
    match text.parse() {
        Ok(value) if starts_well => Ok(value),
        _ => Err(ReplyParseError::BadNumber),
    }
}

pub(super) fn is_integer(line: &[u8]) -> bool {
    let digits = line.strip_prefix(b"-").or(line.strip_prefix(b"+")).unwrap_or(line);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Parses `data` whole and byte by byte, checks that both see the same replies, and that each survives a round trip.
pub fn fuzz_resp_reply(data: &[u8]) {
    let limits = ReplyLimits { max_bulk: 1 << 20, max_depth: 16, max_elements: 1 << 16 };
    let whole = run(data, limits, usize::MAX);
    assert_eq!(whole, run(data, limits, 1), "one byte at a time");
    for text in whole.0 {
        let mut out = Vec::new();
        let mut writer = ReplyWriter::new(&mut out, Protocol::Resp3);
        writer.reply(&Reply::Bulk(text.into_bytes()));
        assert_eq!(run(&out, limits, 3).0.len(), 1);
    }
}

/// Returns all replies of `data` as text (a NaN is not equal to itself), and the error that ended it.
fn run(data: &[u8], limits: ReplyLimits, step: usize) -> (Vec<String>, Option<ReplyParseError>) {
    let mut parser = ReplyParser::new(limits);
    let (mut replies, mut start, mut arrived) = (Vec::new(), 0, 0);
    while arrived < data.len() {
        arrived = arrived.saturating_add(step).min(data.len());
        loop {
            match parser.parse(&data[start..arrived]) {
                Ok(progress) => {
                    start += progress.consumed;
                    match progress.reply {
                        Some(reply) => replies.push(format!("{reply:?}")),
                        None => break,
                    }
                }
                Err(error) => return (replies, Some(error)),
            }
        }
    }
    (replies, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(input: &str, expected: Result<Reply, ReplyParseError>) {
        let mut parser = ReplyParser::new(ReplyLimits { max_depth: 4, max_elements: 100, ..ReplyLimits::default() });
        let found = parser.parse(input.as_bytes()).map(|progress| {
            assert_eq!(progress.consumed, input.len(), "{input:?}");
            progress.reply.expect("a whole reply")
        });
        assert_eq!(found, expected, "{input:?}");
    }

    #[test]
    fn each_type_is_read() {
        check("+OK\r\n", Ok(Reply::Simple("OK".into())));
        check("-ERR x\r\n", Ok(Reply::Error("ERR x".into())));
        check("!5\r\nERR x\r\n", Ok(Reply::Error("ERR x".into())));
        check(":-7\r\n", Ok(Reply::Integer(-7)));
        check("$2\r\nhi\r\n", Ok(Reply::Bulk(b"hi".to_vec())));
        for null in ["$-1\r\n", "*-1\r\n", "_\r\n"] {
            check(null, Ok(Reply::Null));
        }
        check("*2\r\n:1\r\n*0\r\n", Ok(Reply::Array(vec![Reply::Integer(1), Reply::Array(vec![])])));
        check("%1\r\n+a\r\n:1\r\n", Ok(Reply::Map(vec![(Reply::Simple("a".into()), Reply::Integer(1))])));
        check("~1\r\n#t\r\n", Ok(Reply::Set(vec![Reply::Boolean(true)])));
        check(">1\r\n#f\r\n", Ok(Reply::Push(vec![Reply::Boolean(false)])));
        check(",1.5e3\r\n", Ok(Reply::Double(1500.0)));
        check(",-inf\r\n", Ok(Reply::Double(f64::NEG_INFINITY)));
        check("(123456789012345678901\r\n", Ok(Reply::BigNumber("123456789012345678901".into())));
        check("=7\r\ntxt:abc\r\n", Ok(Reply::Verbatim(*b"txt", b"abc".to_vec())));
        check("|1\r\n+ttl\r\n:3\r\n:5\r\n", Ok(Reply::Integer(5)));
        check("*1\r\n|1\r\n+ttl\r\n:3\r\n:5\r\n", Ok(Reply::Array(vec![Reply::Integer(5)])));
    }

    #[test]
    fn what_no_server_sends_is_refused() {
        check("?\r\n", Err(ReplyParseError::UnknownType(b'?')));
        check(":1x\r\n", Err(ReplyParseError::BadNumber));
        check(":1\rx", Err(ReplyParseError::MissingLineEnd));
        check("$1\r\nabc", Err(ReplyParseError::MissingLineEnd));
        check("$-2\r\n", Err(ReplyParseError::BadNumber));
        check("$536870913\r\n", Err(ReplyParseError::LongBulk));
        check("#x\r\n", Err(ReplyParseError::BadValue));
        check(",infinity\r\n", Err(ReplyParseError::BadNumber));
        check("(12a\r\n", Err(ReplyParseError::BadValue));
        check("=3\r\ntxt\r\n", Err(ReplyParseError::BadValue));
        check("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", Err(ReplyParseError::TooDeep));
        check("*101\r\n", Err(ReplyParseError::TooMany));
        check("*$?\r\n", Err(ReplyParseError::BadNumber));
        let long = format!("+{}", "a".repeat(LINE_MAX));
        check(&long, Err(ReplyParseError::LongLine));
    }

    fn any_reply() -> impl Strategy<Value = Reply> {
        let leaf = prop_oneof![
            "[ -~]{0,20}".prop_map(Reply::Simple),
            "[ -~]{0,20}".prop_map(Reply::Error),
            any::<i64>().prop_map(Reply::Integer),
            proptest::collection::vec(any::<u8>(), 0..30).prop_map(Reply::Bulk),
            Just(Reply::Null),
            proptest::num::f64::NORMAL.prop_map(Reply::Double),
            any::<bool>().prop_map(Reply::Boolean),
            "-?[1-9][0-9]{0,30}".prop_map(Reply::BigNumber),
            proptest::collection::vec(any::<u8>(), 0..30).prop_map(|text| Reply::Verbatim(*b"txt", text)),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Reply::Array),
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Reply::Set),
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Reply::Push),
                proptest::collection::vec((inner.clone(), inner), 0..4).prop_map(Reply::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(reply in any_reply(), piece in 1usize..40) {
            let mut out = Vec::new();
            ReplyWriter::new(&mut out, Protocol::Resp3).write_reply(&reply);
            prop_assert_eq!(run(&out, ReplyLimits::default(), piece), (vec![format!("{reply:?}")], None));
        }

        #[test]
        fn resp2_says_the_same_in_fewer_types(reply in any_reply()) {
            let mut out = Vec::new();
            ReplyWriter::new(&mut out, Protocol::Resp2).write_reply(&reply);
            let (replies, error) = run(&out, ReplyLimits::default(), usize::MAX);
            prop_assert_eq!((replies.len(), error), (1, None));
        }

        #[test]
        fn any_bytes_are_read_alike_however_they_are_split(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            fuzz_resp_reply(&data);
        }

        #[test]
        fn almost_replies_are_read_alike_however_they_are_split(
            data in "([+:$*%~>,#_(=!|-][0-9a-z]{0,2}\r\n){0,20}",
        ) {
            fuzz_resp_reply(data.as_bytes());
        }
    }
}
