//! A scanner of replies: it finds the end and the kind of each without storing it.
//!
//! A load generator reads millions of replies and checks only that each is complete, well-formed and not an error.
//! [`ReplyParser`](super::ReplyParser) would build values and need a long string whole in the buffer; the scanner
//! allocates nothing and discards the bytes of a string as they arrive. Both accept the same bytes and find the same
//! ends, which a test checks.
//!
//! Limits: those of [`ReplyLimits`]; a line is at most 64 KiB.

use std::ops::Range;

use super::read::{LINE_MAX, double, is_integer, number};
use super::{ReplyLimits, ReplyParseError};

/// The kind of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// An error, simple or bulk.
    Error,
    /// A null of any protocol.
    Null,
    /// A push message, which answers no command.
    Push,
    /// Anything else.
    Value,
}

/// A whole reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedReply {
    /// Its kind.
    pub kind: ReplyKind,
    /// The range of an error's text in the `buf` of the call that returned this reply; empty for other kinds, and for
    /// an error of more than 64 KiB.
    pub text: Range<usize>,
}

/// Finds the ends of replies, one after the other.
#[derive(Debug, Default)]
pub struct ReplyScanner {
    limits: ReplyLimits,
    /// Aggregates that are open, outermost first: elements missing, and whether it is an attribute.
    open: Vec<(u64, bool)>,
    elements: u64,
    /// Bytes of a string still to come, its line end included.
    string: u64,
    kind: Option<ReplyKind>,
    text: Range<usize>,
}

impl ReplyScanner {
    /// Returns a scanner at the start of a reply.
    pub fn new(limits: ReplyLimits) -> ReplyScanner {
        ReplyScanner { limits, ..ReplyScanner::default() }
    }

    /// Continues with `buf`, which starts with the first byte not consumed so far. Returns the number of bytes
    /// consumed, and the reply if it is complete. At most one reply is consumed; without one, more bytes are needed.
    pub fn scan(&mut self, buf: &[u8]) -> Result<(usize, Option<ScannedReply>), ReplyParseError> {
        let mut at = 0;
        loop {
            if self.string > 0 {
                at += self.pass_string(&buf[at..])?;
                if self.string > 0 {
                    return Ok((at, None));
                }
                if let Some(reply) = self.close_element() {
                    return Ok((at, Some(reply)));
                }
            }
            let Some(used) = self.element(buf, at)? else { return Ok((at, None)) };
            at += used;
            if self.string > 0 {
                continue;
            }
            if let Some(reply) = self.close_element() {
                return Ok((at, Some(reply)));
            }
        }
    }

    /// True between two replies.
    pub fn at_border(&self) -> bool {
        self.open.is_empty() && self.elements == 0 && self.string == 0
    }

    /// Skips bytes of a string, and checks the line end behind it once both of its bytes have arrived.
    fn pass_string(&mut self, buf: &[u8]) -> Result<usize, ReplyParseError> {
        let data = (self.string.saturating_sub(2)).min(buf.len() as u64);
        self.string -= data;
        let data = data as usize;
        match &buf[data..] {
            [b'\r', b'\n', ..] if self.string == 2 => {
                self.string = 0;
                Ok(data + 2)
            }
            [_, _, ..] if self.string == 2 => Err(ReplyParseError::MissingLineEnd),
            _ => Ok(data),
        }
    }

    /// An element is complete (or an aggregate has been opened): closes what that completes.
    fn close_element(&mut self) -> Option<ScannedReply> {
        loop {
            match self.open.last_mut() {
                None => {
                    self.elements = 0;
                    let kind = self.kind.take().unwrap_or(ReplyKind::Value);
                    return Some(ScannedReply { kind, text: std::mem::take(&mut self.text) });
                }
                Some((0, attribute)) => {
                    let attribute = *attribute;
                    self.open.pop();
                    if attribute {
                        return None; // the value that it describes follows
                    }
                    if let Some((missing, _)) = self.open.last_mut() {
                        *missing -= 1;
                    }
                }
                Some((1.., _)) => return None,
            }
        }
    }

    /// Parses the element at `at`; returns the number of bytes consumed, or `None` if the element is incomplete. The
    /// bytes of a string are left to [`ReplyScanner::pass_string`].
    fn element(&mut self, buf: &[u8], at: usize) -> Result<Option<usize>, ReplyParseError> {
        if self.elements > self.limits.max_elements {
            return Err(ReplyParseError::TooMany);
        }
        let input = &buf[at..];
        let Some(&mark) = input.first() else { return Ok(None) };
        if !b"+-:$*%~>,#_(=!|".contains(&mark) {
            return Err(ReplyParseError::UnknownType(mark));
        }
        let Some(end) = memchr::memchr(b'\r', &input[..input.len().min(LINE_MAX)]) else {
            return if input.len() < LINE_MAX { Ok(None) } else { Err(ReplyParseError::LongLine) };
        };
        match input.get(end + 1) {
            None => return Ok(None),
            Some(b'\n') => {}
            Some(_) => return Err(ReplyParseError::MissingLineEnd),
        }
        let (line, used) = (&input[1..end], end + 2);
        match mark {
            b'+' => self.value(ReplyKind::Value),
            b'-' => self.error(at + 1..at + end),
            b':' => {
                number(line.strip_prefix(b"+").unwrap_or(line))?;
                self.value(ReplyKind::Value);
            }
            b'_' if line.is_empty() => self.value(ReplyKind::Null),
            b'#' if matches!(line, b"t" | b"f") => self.value(ReplyKind::Value),
            b',' => {
                double(line)?;
                self.value(ReplyKind::Value);
            }
            b'(' if is_integer(line) => self.value(ReplyKind::Value),
            b'_' | b'#' | b'(' => return Err(ReplyParseError::BadValue),
            b'$' | b'=' | b'!' => return self.string(mark, number(line)?, buf, at, used),
            _ => self.aggregate(mark, number(line)?)?,
        }
        Ok(Some(used))
    }

    fn string(
        &mut self,
        mark: u8,
        len: i64,
        buf: &[u8],
        at: usize,
        used: usize,
    ) -> Result<Option<usize>, ReplyParseError> {
        if len == -1 {
            self.value(ReplyKind::Null);
            return Ok(Some(used));
        }
        let len = u64::try_from(len).map_err(|_| ReplyParseError::BadNumber)?;
        if len > self.limits.max_bulk {
            return Err(ReplyParseError::LongBulk);
        }
        let rest = &buf[at + used..];
        // The bytes to be examined must have arrived: an error's text, unless it is absurdly long, and the format of a
        // verbatim string.
        if mark == b'!' && len <= LINE_MAX as u64 {
            if (rest.len() as u64) < len + 2 {
                return Ok(None);
            }
            self.error(at + used..at + used + len as usize);
        } else if mark == b'=' {
            if (rest.len() as u64) < len.min(4) + 2 {
                return Ok(None);
            }
            if len < 4 || rest[3] != b':' {
                return Err(ReplyParseError::BadValue);
            }
            self.value(ReplyKind::Value);
        } else {
            self.value(if mark == b'!' { ReplyKind::Error } else { ReplyKind::Value });
        }
        self.string = len + 2;
        Ok(Some(used))
    }

    fn aggregate(&mut self, mark: u8, count: i64) -> Result<(), ReplyParseError> {
        if count == -1 && mark == b'*' {
            self.value(ReplyKind::Null);
            return Ok(());
        }
        let count = u64::try_from(count).map_err(|_| ReplyParseError::BadNumber)?;
        let count = if matches!(mark, b'%' | b'|') { count.saturating_mul(2) } else { count };
        self.elements += 1;
        if count > 0 {
            if self.open.len() >= self.limits.max_depth {
                return Err(ReplyParseError::TooDeep);
            }
            if self.elements.saturating_add(count) > self.limits.max_elements {
                return Err(ReplyParseError::TooMany);
            }
        }
        if mark != b'|' && self.open.is_empty() {
            self.kind = Some(if mark == b'>' { ReplyKind::Push } else { ReplyKind::Value });
        }
        // An empty aggregate is closed at once by `close_element`, like one whose last element has arrived.
        self.open.push((count, mark == b'|'));
        Ok(())
    }

    /// Counts a single value: an element of the innermost open aggregate or, without one, the whole reply.
    fn value(&mut self, kind: ReplyKind) {
        self.elements += 1;
        match self.open.last_mut() {
            Some((missing, _)) => *missing = missing.saturating_sub(1),
            None => self.kind = Some(kind),
        }
    }

    fn error(&mut self, text: Range<usize>) {
        if self.open.is_empty() {
            self.text = text;
        }
        self.value(ReplyKind::Error);
    }
}

/// Scans `data` whole and in pieces: both find the ends that [`ReplyParser`](super::ReplyParser) finds.
pub fn fuzz_resp_scan(data: &[u8]) {
    let limits = ReplyLimits { max_bulk: 1 << 20, max_depth: 16, max_elements: 1 << 16 };
    let expected = ends(data, limits);
    for step in [usize::MAX, 1, 7] {
        let (mut scanner, mut found) = (ReplyScanner::new(limits), Vec::new());
        let (mut start, mut arrived, mut refused) = (0usize, 0usize, false);
        while arrived < data.len() && !refused {
            arrived = arrived.saturating_add(step).min(data.len());
            loop {
                match scanner.scan(&data[start..arrived]) {
                    Ok((used, reply)) => {
                        start += used;
                        match reply {
                            Some(reply) => found.push((start, reply.kind)),
                            None => break,
                        }
                    }
                    Err(_) => {
                        refused = true;
                        break;
                    }
                }
            }
        }
        assert_eq!(found, expected.0, "{} in steps of {step}", data.escape_ascii());
        // The scanner may refuse sooner: the parser looks into a string only when all of it is there.
        assert!(refused || !expected.1, "{} in steps of {step} is accepted", data.escape_ascii());
    }
}

/// Returns the ends that the parser finds, with kinds, and whether an error ended it.
fn ends(data: &[u8], limits: ReplyLimits) -> (Vec<(usize, ReplyKind)>, bool) {
    use crate::reply::Reply;
    let mut parser = super::ReplyParser::new(limits);
    let (mut found, mut start) = (Vec::new(), 0);
    loop {
        match parser.parse(&data[start..]) {
            Ok(progress) => {
                start += progress.consumed;
                let kind = match progress.reply {
                    None => return (found, false),
                    Some(Reply::Error(_)) => ReplyKind::Error,
                    Some(Reply::Null) => ReplyKind::Null,
                    Some(Reply::Push(_)) => ReplyKind::Push,
                    Some(_) => ReplyKind::Value,
                };
                found.push((start, kind));
            }
            Err(_) => return (found, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(input: &str, kind: ReplyKind, text: &str) {
        let mut scanner = ReplyScanner::new(ReplyLimits::default());
        let (used, reply) = scanner.scan(input.as_bytes()).expect("a good reply");
        let reply = reply.expect("a whole reply");
        assert_eq!((used, reply.kind, &input[reply.text]), (input.len(), kind, text), "{input:?}");
        assert!(scanner.at_border());
        fuzz_resp_scan(input.as_bytes());
    }

    #[test]
    fn each_kind() {
        check("+OK\r\n", ReplyKind::Value, "");
        check("-ERR x\r\n", ReplyKind::Error, "ERR x");
        check("!5\r\nERR x\r\n", ReplyKind::Error, "ERR x");
        check("$-1\r\n", ReplyKind::Null, "");
        check("_\r\n", ReplyKind::Null, "");
        check("$2\r\nhi\r\n", ReplyKind::Value, "");
        check("*0\r\n", ReplyKind::Value, "");
        check("*-1\r\n", ReplyKind::Null, "");
        check("*2\r\n-no\r\n*2\r\n*0\r\n$1\r\na\r\n", ReplyKind::Value, "");
        check("%1\r\n+a\r\n_\r\n", ReplyKind::Value, "");
        check(">2\r\n+a\r\n:1\r\n", ReplyKind::Push, "");
        check("|1\r\n+a\r\n:1\r\n-ERR x\r\n", ReplyKind::Error, "ERR x");
        check("=5\r\ntxt:a\r\n", ReplyKind::Value, "");
    }

    #[test]
    fn a_long_string_passes_through_a_short_buffer() {
        let mut scanner = ReplyScanner::new(ReplyLimits::default());
        assert_eq!(scanner.scan(b"$1000000\r\n"), Ok((10, None)));
        for _ in 0..1000 {
            assert_eq!(scanner.scan(&[b'x'; 1000]), Ok((1000, None)));
        }
        assert_eq!(scanner.scan(b"\r"), Ok((0, None)));
        assert!(matches!(scanner.scan(b"\r\n:1"), Ok((2, Some(_)))));
    }

    proptest! {
        #[test]
        fn any_bytes_end_where_the_parser_ends_them(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            fuzz_resp_scan(&data);
        }

        #[test]
        fn almost_replies_end_where_the_parser_ends_them(
            data in "([+:$*%~>,#_(=!|-][0-9a-z]{0,2}\r\n|[ab:]{0,5}\r\n){0,20}",
        ) {
            fuzz_resp_scan(data.as_bytes());
        }
    }
}
