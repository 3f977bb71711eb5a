//! Requests: arrays of bulk strings, and lines typed by hand ("inline").
//!
//! The parser remembers how far it came and hands out ranges of the caller's buffer, so a request is neither copied
//! nor read twice, however it was split. Only inline requests are copied, because quoting changes their bytes.
//! The errors, their order and the unchecked parts (the two bytes after a bulk string) are those of Redis.
//!
//! Limits: 64 KiB for an inline request and for a line with a count; [`CommandLimits`] for the rest. The spans take
//! 16 bytes an argument, and an argument takes at least 6 bytes of the buffer, whose size its owner limits.

use smallvec::SmallVec;

use crate::resp::number::parse_i64;

/// Longest inline request and longest line with a count: Redis's PROTO_INLINE_MAX_SIZE.
const LINE_MAX: usize = 64 * 1024;

/// Spans kept between requests; a longer list is given back when the next request starts.
const SPANS_KEPT: usize = 1024;

/// Most arguments of a request that [`CommandParser::plain`] reads.
pub const PLAIN_ARGS: usize = 8;

/// The longest of them: three digits.
const PLAIN_ARG_MAX: u64 = 999;

/// The limits of a connection's requests.
#[derive(Clone, Copy, Debug)]
pub struct CommandLimits {
    /// Longest argument, in bytes: `proto-max-bulk-len`.
    pub max_bulk: u64,
    /// Most arguments in a request.
    pub max_args: u32,
    /// Whether the client has yet to authenticate: at most 10 arguments of 16 KiB.
    pub unauthenticated: bool,
}

impl Default for CommandLimits {
    fn default() -> CommandLimits {
        CommandLimits { max_bulk: 512 * 1024 * 1024, max_args: i32::MAX as u32, unauthenticated: false }
    }
}

/// The reason why a request cannot be parsed. The connection answers with [`message`](ProtocolError::message) and
/// closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// A line without an end in sight, where an inline request should be.
    TooBigInline,
    /// A quote that never closes, or is followed by something other than a space.
    UnbalancedQuotes,
    /// A line without an end in sight, where the number of arguments should be.
    TooBigCount,
    /// Not a number, or too large.
    InvalidCount,
    /// Too many arguments for a client that has yet to authenticate.
    UnauthenticatedCount,
    /// A line without an end in sight, where an argument's length should be.
    TooBigLength,
    /// Something else where an argument should start.
    ExpectedBulk(u8),
    /// Not a number, negative or too large.
    InvalidLength,
    /// Too long an argument for a client that has yet to authenticate.
    UnauthenticatedLength,
}

impl ProtocolError {
    /// Returns the error reply, without the dash. A byte quoted in it is not always UTF-8.
    pub fn message(self) -> SmallVec<[u8; 64]> {
        let text: &[u8] = match self {
            ProtocolError::TooBigInline => b"too big inline request",
            ProtocolError::UnbalancedQuotes => b"unbalanced quotes in request",
            ProtocolError::TooBigCount => b"too big mbulk count string",
            ProtocolError::InvalidCount => b"invalid multibulk length",
            ProtocolError::UnauthenticatedCount => b"unauthenticated multibulk length",
            ProtocolError::TooBigLength => b"too big bulk count string",
            ProtocolError::ExpectedBulk(_) => b"expected '$', got '",
            ProtocolError::InvalidLength => b"invalid bulk length",
            ProtocolError::UnauthenticatedLength => b"unauthenticated bulk length",
        };
        let mut message = SmallVec::from_slice(b"ERR Protocol error: ");
        message.extend_from_slice(text);
        if let ProtocolError::ExpectedBulk(got) = self {
            // Redis formats with %c into a C string, so a NUL ends the text.
            if got != 0 {
                message.extend_from_slice(&[got, b'\'']);
            }
        }
        message
    }
}

/// The result of [`CommandParser::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandStatus {
    /// A request of `consumed` bytes. No arguments means an empty line or `*0`, which has no reply.
    Complete {
        /// Bytes of the buffer that the request took.
        consumed: usize,
    },
    /// More bytes are needed; at least `need` of them as far as is known.
    Incomplete {
        /// A lower bound, at least 1.
        need: usize,
    },
    /// The connection can't be read further.
    Error(ProtocolError),
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
}

/// Reads one request after the other from a buffer.
#[derive(Debug, Default)]
pub struct CommandParser {
    spans: Vec<Span>,
    inline: Vec<u8>, // arguments of an inline request, unquoted
    is_inline: bool,
    position: usize,     // where reading goes on
    missing: usize,      // arguments still to come; 0 before the count was read
    bulk: Option<usize>, // length of the argument being read
    done: bool,          // the last call completed a request
}

impl CommandParser {
    /// Returns a parser at the start of a request.
    pub fn new() -> CommandParser {
        CommandParser::default()
    }

    /// Reads on in `buf`, which starts with the first byte of the current request and holds everything received since.
    ///
    /// After `Complete`, the arguments are read with [`args`](Self::args) from the same buffer, and the next call
    /// starts with the bytes behind the consumed ones.
    pub fn parse(&mut self, buf: &[u8], limits: &CommandLimits) -> CommandStatus {
        if self.done {
            self.reset();
        }
        if self.missing > 0 {
            return self.read_arguments(buf, limits);
        }
        match buf.first() {
            None => CommandStatus::Incomplete { need: 1 },
            Some(b'*') => self.read_count(buf, limits),
            Some(_) => self.read_inline(buf),
        }
    }

    /// Reads a request as nearly all are, an array of few short arguments, all of which have come, into `args`, and
    /// tells how many bytes and arguments it has. [`parse`](Self::parse) reads it too, but takes three times as long.
    /// The caller goes on with the bytes behind it as after `Complete`.
    #[inline]
    pub fn plain<'b>(
        &self,
        buf: &'b [u8],
        limits: &CommandLimits,
        args: &mut [&'b [u8]; PLAIN_ARGS],
    ) -> Option<(usize, usize)> {
        let (head, mut rest) = buf.split_first_chunk()?;
        let [b'*', count, b'\r', _] = *head else { return None };
        let count = usize::from(count.wrapping_sub(b'0'));
        let is_plain = (1..=PLAIN_ARGS).contains(&count)
            && self.at_border()
            && limits.max_args as usize >= PLAIN_ARGS
            && limits.max_bulk >= PLAIN_ARG_MAX;
        if !is_plain {
            return None;
        }
        for arg in &mut args[..count] {
            let (len, head) = plain_length(rest)?;
            *arg = rest.get(head..head + len)?;
            rest = rest.get(head + len + 2..)?;
        }
        Some((buf.len() - rest.len(), count))
    }

    /// Returns the length of the request at the start of a buffer, in which few short arguments were found, if it is what
    /// every client writes for them. The parser is content with less: it does not look at all ends of lines.
    #[inline]
    pub fn exact_len(buf: &[u8], args: &[&[u8]]) -> Option<usize> {
        // Compared as one word.
        #[inline(always)]
        fn without<const N: usize>(bytes: &mut &[u8], start: [u8; N]) -> Option<()> {
            let (head, rest) = bytes.split_first_chunk()?;
            (*head == start).then(|| *bytes = rest)
        }
        let digit = |number: usize| b'0' + number as u8;
        let (head, mut rest) = buf.split_first_chunk()?;
        if args.len() > 9 || *head != [b'*', digit(args.len()), b'\r', b'\n'] {
            return None;
        }
        for arg in args {
            let len = arg.len();
            match len {
                0..10 => without(&mut rest, [b'$', digit(len), b'\r', b'\n'])?,
                10..100 => without(&mut rest, [b'$', digit(len / 10), digit(len % 10), b'\r', b'\n'])?,
                100..1000 => {
                    let digits = [digit(len / 100), digit(len / 10 % 10), digit(len % 10)];
                    without(&mut rest, [b'$', digits[0], digits[1], digits[2], b'\r', b'\n'])?;
                }
                _ => return None,
            }
            rest = rest.get(len..)?;
            without(&mut rest, *b"\r\n")?;
        }
        Some(buf.len() - rest.len())
    }

    /// Returns the arguments of the request that was just completed, the command's name first.
    pub fn args<'a>(&'a self, buf: &'a [u8]) -> SmallVec<[&'a [u8]; 8]> {
        let from = if self.is_inline { &self.inline[..] } else { buf };
        self.spans.iter().map(|span| &from[span.start..span.end]).collect()
    }

    /// True at the border between two requests: nothing was read of the next one.
    pub fn at_border(&self) -> bool {
        self.done || (self.missing == 0 && self.position == 0)
    }

    /// Bytes the parser itself holds.
    pub fn memory(&self) -> usize {
        self.spans.capacity() * size_of::<Span>() + self.inline.capacity()
    }

    /// Forgets the current request, keeps a modest amount of memory.
    pub fn reset(&mut self) {
        self.spans.clear();
        self.spans.shrink_to(SPANS_KEPT);
        self.inline.clear();
        self.is_inline = false;
        self.position = 0;
        self.missing = 0;
        self.bulk = None;
        self.done = false;
    }

    fn complete(&mut self, consumed: usize) -> CommandStatus {
        self.done = true;
        CommandStatus::Complete { consumed }
    }

    fn read_count(&mut self, buf: &[u8], limits: &CommandLimits) -> CommandStatus {
        let (count, next) = match short_count(buf, 1) {
            Some((count, next)) => (Some(i64::from(count)), next),
            None => match count_line(buf, 0) {
                Line::Found { text, next } => (parse_i64(&text[1..]), next),
                Line::Incomplete => return CommandStatus::Incomplete { need: 1 },
                Line::TooLong => return CommandStatus::Error(ProtocolError::TooBigCount),
            },
        };
        let Some(count) = count.filter(|count| *count <= i64::from(limits.max_args)) else {
            return CommandStatus::Error(ProtocolError::InvalidCount);
        };
        if count > 10 && limits.unauthenticated {
            return CommandStatus::Error(ProtocolError::UnauthenticatedCount);
        }
        if count <= 0 {
            return self.complete(next);
        }
        self.missing = count as usize;
        self.position = next;
        self.read_arguments(buf, limits)
    }

    fn read_arguments(&mut self, buf: &[u8], limits: &CommandLimits) -> CommandStatus {
        loop {
            let len = match self.bulk {
                Some(len) => len,
                None => {
                    let short = match buf.get(self.position) {
                        Some(b'$') => short_count(buf, self.position + 1),
                        _ => None,
                    };
                    let (len, next) = match short {
                        Some((len, next)) => (u64::from(len), next),
                        None => match self.read_length(buf) {
                            Ok(read) => read,
                            Err(status) => return status,
                        },
                    };
                    if len > limits.max_bulk {
                        return CommandStatus::Error(ProtocolError::InvalidLength);
                    }
                    if len > 16384 && limits.unauthenticated {
                        return CommandStatus::Error(ProtocolError::UnauthenticatedLength);
                    }
                    self.position = next;
                    self.bulk = Some(len as usize);
                    len as usize
                }
            };
            let end = self.position + len;
            if buf.len() < end + 2 {
                return CommandStatus::Incomplete { need: end + 2 - buf.len() };
            }
            self.spans.push(Span { start: self.position, end });
            self.position = end + 2;
            self.bulk = None;
            self.missing -= 1;
            if self.missing == 0 {
                return self.complete(self.position);
            }
        }
    }

    /// Returns an argument's length and where it starts, from a line of any form.
    #[cold]
    fn read_length(&self, buf: &[u8]) -> Result<(u64, usize), CommandStatus> {
        let (text, next) = match count_line(buf, self.position) {
            Line::Found { text, next } => (text, next),
            // An argument takes at least "$0\r\n\r\n".
            Line::Incomplete => return Err(CommandStatus::Incomplete { need: 1 }),
            Line::TooLong => return Err(CommandStatus::Error(ProtocolError::TooBigLength)),
        };
        // Redis looks for the end of the line first, so the line may be empty; the byte at its start is then its CR.
        match buf[self.position] {
            b'$' => {}
            got => return Err(CommandStatus::Error(ProtocolError::ExpectedBulk(got))),
        }
        let len = parse_i64(&text[1..]).and_then(|len| u64::try_from(len).ok());
        len.map(|len| (len, next)).ok_or(CommandStatus::Error(ProtocolError::InvalidLength))
    }

    fn read_inline(&mut self, buf: &[u8]) -> CommandStatus {
        let Some(found) = memchr::memchr(b'\n', &buf[self.position..]) else {
            // The bytes searched so far have no line end, so they are not searched again when more arrive.
            self.position = buf.len();
            return match buf.len() > LINE_MAX {
                true => CommandStatus::Error(ProtocolError::TooBigInline),
                false => CommandStatus::Incomplete { need: 1 },
            };
        };
        let end = self.position + found;
        let line = buf[..end].strip_suffix(b"\r").unwrap_or(&buf[..end]);
        self.is_inline = true;
        match split_arguments(line, &mut self.inline, &mut self.spans) {
            true => self.complete(end + 1),
            false => CommandStatus::Error(ProtocolError::UnbalancedQuotes),
        }
    }
}

enum Line<'a> {
    Found { text: &'a [u8], next: usize },
    Incomplete,
    TooLong,
}

/// Returns an argument's length of up to three digits, and the bytes of its line. The byte behind the line's CR is not
/// looked at.
#[inline(always)]
fn plain_length(rest: &[u8]) -> Option<(usize, usize)> {
    let digit = |byte: u8| usize::from(byte.wrapping_sub(b'0'));
    let [b'$', first, second, third] = *rest.first_chunk()? else { return None };
    let (first, last) = (digit(first), digit(second));
    if second == b'\r' {
        return (first <= 9).then_some((first, 4));
    }
    // A leading zero is left to the general parser, which follows Redis.
    if !(1..=9).contains(&first) || last > 9 {
        return None;
    }
    let len = first * 10 + last;
    if third == b'\r' {
        return Some((len, 5));
    }
    let last = digit(third);
    (last <= 9 && rest.get(4) == Some(&b'\r')).then_some((len * 10 + last, 6))
}

/// Returns a count of up to four digits that starts at `from`, and where the line behind it starts, if it is as every
/// client writes it and its line has come. Nearly all are, and the general way costs three times as much.
#[inline]
fn short_count(buf: &[u8], from: usize) -> Option<(u32, usize)> {
    let rest = buf.get(from..)?;
    let mut count = u32::from(rest.first()?.wrapping_sub(b'0'));
    if count > 9 {
        return None;
    }
    for at in 1..5 {
        match *rest.get(at)? {
            b'\r' if at + 1 < rest.len() => return Some((count, from + at + 2)),
            digit @ b'0'..=b'9' if count > 0 => count = count * 10 + u32::from(digit - b'0'),
            _ => return None,
        }
    }
    None
}

/// Returns the line that starts at `from`, up to its CR; the byte behind the CR must have come and is not looked at.
fn count_line(buf: &[u8], from: usize) -> Line<'_> {
    let rest = &buf[from..];
    // A count has a handful of digits: a plain loop finds its end faster than setting up a vector search.
    let near = rest.len().min(16);
    let found = match rest[..near].iter().position(|&b| b == b'\r') {
        Some(at) => Some(at),
        None => memchr::memchr(b'\r', &rest[near..]).map(|at| at + near),
    };
    match found {
        Some(at) if at + 2 <= rest.len() => Line::Found { text: &rest[..at], next: from + at + 2 },
        Some(_) => Line::Incomplete,
        None if rest.len() > LINE_MAX => Line::TooLong,
        None => Line::Incomplete,
    }
}

/// Splits a line into words as a shell would, with Redis's escapes; false when quotes don't balance.
fn split_arguments(line: &[u8], out: &mut Vec<u8>, spans: &mut Vec<Span>) -> bool {
    let mut at = 0;
    loop {
        while at < line.len() && (line[at].is_ascii_whitespace() || line[at] == 0x0b) {
            at += 1;
        }
        if at == line.len() {
            return true;
        }
        let start = out.len();
        match word(&line[at..], out) {
            Some(used) => at += used,
            None => return false,
        }
        spans.push(Span { start, end: out.len() });
    }
}

/// Appends one unquoted word and returns how many bytes of `text` it consumed.
fn word(text: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' | 0 => break,
            b'"' => {
                at = double_quoted(text, at + 1, out)?;
                return closed(text, at);
            }
            b'\'' => {
                at = single_quoted(text, at + 1, out)?;
                return closed(text, at);
            }
            byte => out.push(byte),
        }
        at += 1;
    }
    // A NUL that ends a word must be stepped over, or the caller would not advance.
    Some(if text.get(at) == Some(&0) { at + 1 } else { at })
}

/// A closing quote ends the word; only a space may follow.
fn closed(text: &[u8], at: usize) -> Option<usize> {
    match text.get(at) {
        None => Some(at),
        Some(byte) if byte.is_ascii_whitespace() || *byte == 0x0b => Some(at),
        Some(_) => None,
    }
}

fn double_quoted(text: &[u8], mut at: usize, out: &mut Vec<u8>) -> Option<usize> {
    loop {
        match *text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => match (text.get(at + 1), text.get(at + 2), text.get(at + 3)) {
                (Some(b'x'), Some(high), Some(low)) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                    out.push(hex(*high) << 4 | hex(*low));
                    at += 4;
                }
                (Some(escaped), ..) => {
                    out.push(match *escaped {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 0x08,
                        b'a' => 0x07,
                        other => other,
                    });
                    at += 2;
                }
                (None, ..) => {
                    out.push(b'\\');
                    at += 1;
                }
            },
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
}

fn single_quoted(text: &[u8], mut at: usize, out: &mut Vec<u8>) -> Option<usize> {
    loop {
        match *text.get(at)? {
            b'\'' => return Some(at + 1),
            b'\\' if text.get(at + 1) == Some(&b'\'') => {
                out.push(b'\'');
                at += 2;
            }
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit.wrapping_sub(b'A').wrapping_add(10),
    }
}

/// Parses `data` whole and split at every place its bytes suggest, and checks that both see the same requests.
pub fn fuzz_resp_command(data: &[u8]) {
    let limits = CommandLimits { max_bulk: 1 << 20, ..CommandLimits::default() };
    let whole = run(data, &limits, |_| usize::MAX);
    let by_byte = run(data, &limits, |_| 1);
    assert_eq!(whole, by_byte, "one byte at a time");
    let odd = run(data, &limits, |at| 1 + data.get(at).map_or(0, |byte| usize::from(byte % 13)));
    assert_eq!(whole, odd, "in odd pieces");
}

/// Returns all requests of `data`, which arrives in pieces of `step(bytes arrived)` bytes, and the error that ended it.
fn run(
    data: &[u8],
    limits: &CommandLimits,
    step: impl Fn(usize) -> usize,
) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let mut parser = CommandParser::new();
    let (mut requests, mut start, mut arrived) = (Vec::new(), 0, 0);
    while arrived < data.len() {
        arrived = arrived.saturating_add(step(arrived)).min(data.len());
        loop {
            let buf = &data[start..arrived];
            let mut args = Default::default();
            let plain = parser.plain(buf, limits, &mut args);
            let status = parser.parse(buf, limits);
            if let Some((consumed, count)) = plain {
                assert_eq!(status, CommandStatus::Complete { consumed });
                let args = &args[..count];
                assert_eq!(args[..], parser.args(buf)[..]);
                let words =
                    args.iter().flat_map(|arg| [format!("${}\r\n", arg.len()).as_bytes(), arg, b"\r\n"].concat());
                let exact: Vec<u8> = format!("*{count}\r\n").into_bytes().into_iter().chain(words).collect();
                let is_exact = exact == buf[..consumed];
                assert_eq!(CommandParser::exact_len(buf, args), is_exact.then_some(consumed));
            }
            match status {
                CommandStatus::Complete { consumed } => {
                    assert!(consumed > 0 && consumed <= buf.len());
                    requests.push(parser.args(buf).iter().map(|arg| arg.to_vec()).collect());
                    start += consumed;
                }
                CommandStatus::Incomplete { need } => {
                    assert!(need > 0);
                    break;
                }
                CommandStatus::Error(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(input: &[u8], expected: &[&[&str]], error: Option<ProtocolError>) {
        let expected: Vec<Vec<Vec<u8>>> =
            expected.iter().map(|args| args.iter().map(|arg| arg.as_bytes().to_vec()).collect()).collect();
        for pieces in [1, 2, 7, usize::MAX] {
            let found = run(input, &CommandLimits::default(), |_| pieces);
            assert_eq!(found, (expected.clone(), error), "{} in {pieces}", input.escape_ascii());
        }
    }

    #[test]
    fn multibulk_and_inline_requests_are_read_in_order() {
        check(b"*1\r\n$4\r\nPING\r\n", &[&["PING"]], None);
        check(b"PING\r\nGET a\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n", &[&["PING"], &["GET", "a"], &["GET", ""]], None);
        check(b"\r\n*0\r\n*-1\r\nPING\r\n", &[&[], &[], &[], &["PING"]], None);
        check(b"*1\r\n$4\r\nPINGxx*1\r\n$1\r\na\r\n", &[&["PING"], &["a"]], None);
    }

    fn plain_of(parser: &CommandParser, text: &str) -> Option<(usize, usize)> {
        parser.plain(text.as_bytes(), &CommandLimits::default(), &mut Default::default())
    }

    #[test]
    fn what_is_whole_and_short_is_plain() {
        let parser = CommandParser::new();
        let is_plain = |text: &str| plain_of(&parser, text).is_some();
        let long = |len: usize| format!("*1\r\n${len}\r\n{}\r\n", "x".repeat(len));
        assert!(is_plain("*2\r\n$3\r\nGET\r\n$0\r\n\r\n*"));
        assert!(is_plain(&long(99)) && is_plain(&long(999)) && !is_plain(&long(1000)));
        for other in ["", "PING\r\n", "*0\r\n", "*9\r\n", "*1\r\n$4\r\nPING\r", "*1\r\n$04\r\nPING\r\n"] {
            assert!(!is_plain(other), "{other:?}");
        }
        let mut parser = CommandParser::new();
        let _ = parser.parse(b"*1\r\n$4\r\n", &CommandLimits::default());
        assert!(plain_of(&parser, "*1\r\n$4\r\nPING\r\n").is_none(), "it is being read");
    }

    #[test]
    fn a_request_is_exact_if_its_lines_end() {
        let parser = CommandParser::new();
        let lens = [1, 0, 9, 10, 99, 100, 999];
        let mut text = format!("*{}\r\n", lens.len());
        lens.iter().for_each(|len| text += &format!("${len}\r\n{}\r\n", "x".repeat(*len)));
        for at in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = b'x';
            let mut args = Default::default();
            if let Some((consumed, count)) = parser.plain(&other, &CommandLimits::default(), &mut args) {
                let is_exact = text.as_bytes()[at] == b'x';
                assert_eq!(CommandParser::exact_len(&other, &args[..count]), is_exact.then_some(consumed), "{at}");
            }
        }
        let long = [&b"x"[..]; 10];
        let text = format!("*10\r\n{}", "$1\r\nx\r\n".repeat(10));
        assert_eq!(CommandParser::exact_len(text.as_bytes(), &long), None);
        assert_eq!(CommandParser::exact_len(b"PING\r\n", &[b"PING"]), None);
        assert_eq!(CommandParser::exact_len(b"", &[b"PING"]), None);
    }

    #[test]
    fn inline_quotes_follow_redis() {
        check(b"set \"a b\" 'c d'\r\n", &[&["set", "a b", "c d"]], None);
        check(b"a\"b\" 'it\\'s' \"\\x41\\n\\q\\x4\"\n", &[&["ab", "it's", "A\nqx4"]], None);
        check(b"a \"\" ''\n", &[&["a", "", ""]], None);
        for bad in [&b"a \"b\n"[..], b"a 'b\n", b"\"a\"b\n", b"'a'b\n", b"\"a\\\n"] {
            check(bad, &[], Some(ProtocolError::UnbalancedQuotes));
        }
    }

    #[test]
    fn errors_are_those_of_redis() {
        check(b"*x\r\n", &[], Some(ProtocolError::InvalidCount));
        check(b"*\r\n", &[], Some(ProtocolError::InvalidCount));
        check(b"*3000000000\r\n", &[], Some(ProtocolError::InvalidCount));
        check(b"*1\r\nx\r\n", &[], Some(ProtocolError::ExpectedBulk(b'x')));
        check(b"*1\r\n\r\n", &[], Some(ProtocolError::ExpectedBulk(b'\r')));
        check(b"*1\r\n$-1\r\n", &[], Some(ProtocolError::InvalidLength));
        check(b"*1\r\n$536870913\r\n", &[], Some(ProtocolError::InvalidLength));
        check(&[b'a'; LINE_MAX + 1], &[], Some(ProtocolError::TooBigInline));
        let mut long = vec![b'*'];
        long.resize(LINE_MAX + 1, b'1');
        check(&long, &[], Some(ProtocolError::TooBigCount));
        let mut long = b"*1\r\n$".to_vec();
        long.resize(LINE_MAX + 5, b'1');
        check(&long, &[], Some(ProtocolError::TooBigLength));
        assert_eq!(&ProtocolError::ExpectedBulk(b'x').message()[..], b"ERR Protocol error: expected '$', got 'x'");
    }

    #[test]
    fn a_client_without_a_password_may_send_little() {
        let limits = CommandLimits { unauthenticated: true, ..CommandLimits::default() };
        assert_eq!(run(b"*11\r\n", &limits, |_| 9).1, Some(ProtocolError::UnauthenticatedCount));
        assert_eq!(run(b"*1\r\n$16385\r\n", &limits, |_| 9).1, Some(ProtocolError::UnauthenticatedLength));
        assert_eq!(run(b"*10\r\n$16384\r\n", &limits, |_| 9).1, None);
    }

    #[test]
    fn the_hint_tells_what_is_missing_of_an_argument() {
        let mut parser = CommandParser::new();
        let status = parser.parse(b"*1\r\n$100\r\nabc", &CommandLimits::default());
        assert_eq!(status, CommandStatus::Incomplete { need: 99 });
        assert!(!parser.at_border());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_alike_however_they_are_split(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            fuzz_resp_command(&data);
        }

        #[test]
        fn almost_requests_are_read_alike_however_they_are_split(
            data in "(\\*[0-9x-]{1,2}\r\n|\\$[0-9]{1,2}\r\n|[a-c\"' \\\\x]{0,5}\r?\n){0,12}",
        ) {
            fuzz_resp_command(data.as_bytes());
        }

        #[test]
        fn requests_come_out_as_they_went_in(
            requests in proptest::collection::vec(
                proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..6), 0..6),
            piece in 1usize..50,
        ) {
            let mut data = Vec::new();
            for args in &requests {
                data.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
                for arg in args {
                    data.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
                    data.extend_from_slice(arg);
                    data.extend_from_slice(b"\r\n");
                }
            }
            prop_assert_eq!(run(&data, &CommandLimits::default(), |_| piece), (requests, None));
        }
    }
}
