//! Commands of the append-only file, read one after the other.
//!
//! ```text
//! #TS:1700000000\r\n                  an annotation, of the time
//! *3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n
//! *1\r\n$5\r\nMULTI\r\n…*1\r\n$4\r\nEXEC\r\n
//! ```
//!
//! A base file, or the single file of old versions, may begin with an RDB file ([`is_rdb`]).
//!
//! The reader decides what a crash may have done and what it cannot have: a file that only ends too early is *cut*, and is
//! whole up to the last command outside of an open transaction; anything else in it is *bad*, and Redis refuses to start.
//! It decides as redis-check-aof does. redis-server also accepts what nobody writes, such as `*1x` for `*1`, and cuts a
//! file that ends within a transaction behind the transaction's last whole command, so that what is appended later
//! belongs to it. Two tails differ from both: an annotation without its end is cut, too, since the next command would
//! become part of it; and of zeros up to the end, which some file systems leave where data was not written before the
//! power failed, the end says so.
//!
//! The buffer holds one command. It only grows with what was received, whatever a length announces.

use std::io::{self, Read};
use std::ops::Range;

use sluicegate_data::value::STRING_MAX;
use sluicegate_data::window::Window;

/// The longest annotation, its end included, as in Redis, where the rest of a longer one is what comes next.
pub(crate) const ANNOTATION_MAX: usize = 1023;
/// The maximum number of words of a command, as in Redis.
const WORDS_MAX: u64 = i32::MAX as u64;

/// Returns whether a file begins with an RDB file, given its first bytes, at least five unless it is shorter.
pub(crate) fn is_rdb(start: &[u8]) -> bool {
    start.starts_with(b"REDIS") || start.starts_with(b"VALKE")
}

/// A reader of commands.
pub(crate) struct AofReader<R> {
    window: Window<R>,
    /// The words of the current command, as places in the event.
    words: Vec<Range<usize>>,
    /// The position up to which the file can be kept.
    whole: u64,
    is_in_transaction: bool,
    end: Option<End>,
}

/// A part of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event<'a> {
    Command(Command<'a>),
    /// A line that is no command, such as `#TS:1700000000`, without its end.
    Annotation(&'a [u8]),
    End(End),
}

/// A command: one or more words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Command<'a> {
    /// The position of its end in the file.
    pub(crate) end: u64,
    buffer: &'a [u8],
    words: &'a [Range<usize>],
}

/// How a file ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    /// The position up to which commands are whole.
    pub(crate) whole: u64,
    pub(crate) kind: EndKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndKind {
    /// With the last command.
    Whole,
    /// Within a command.
    Command,
    /// Within a transaction.
    Transaction,
    /// Within an annotation, which does not make it incomplete.
    Annotation,
    /// Something else than a command is at this position. It ends with zeros from there on, or not.
    Bad { at: u64, is_zeros: bool },
}

#[cfg(test)]
impl EndKind {
    /// Returns whether a crash can explain it, of the last file.
    pub(crate) fn is_cut(self) -> bool {
        matches!(self, EndKind::Command | EndKind::Transaction | EndKind::Annotation)
    }
}

impl<'a> Command<'a> {
    /// Returns the words.
    pub(crate) fn words(self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone {
        let Command { buffer, words, .. } = self;
        words.iter().map(move |word| &buffer[word.clone()])
    }

    /// Returns whether it is this one, without arguments.
    fn is(self, name: &[u8]) -> bool {
        self.words.len() == 1 && self.buffer[self.words[0].clone()].eq_ignore_ascii_case(name)
    }
}

impl std::fmt::Debug for Command<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.end)?;
        self.words().try_for_each(|word| write!(f, " {}", word.escape_ascii()))
    }
}

/// Why a command is not read.
enum Stop {
    /// The file ends.
    Short,
    /// The next byte is wrong.
    Bad,
    Io(io::Error),
}

impl<R: Read> AofReader<R> {
    /// Reads a file of commands.
    pub(crate) fn new(source: R) -> AofReader<R> {
        AofReader::behind(source, Vec::new(), 0)
    }

    /// Reads the commands behind an RDB file that ends at a position, given what was read from the source beyond it.
    pub(crate) fn behind(source: R, rest: Vec<u8>, position: u64) -> AofReader<R> {
        AofReader {
            window: Window::behind(source, rest, position),
            words: Vec::new(),
            whole: position,
            is_in_transaction: false,
            end: None,
        }
    }

    /// Returns the position up to which the file was read as whole.
    pub(crate) fn position(&self) -> u64 {
        self.whole
    }

    /// Returns the next part of the file; after the end, the end again.
    pub(crate) fn next(&mut self) -> io::Result<Event<'_>> {
        if let Some(end) = self.end {
            return Ok(Event::End(end));
        }
        self.window.begin();
        let result = match self.byte() {
            Ok(b'*') => self.command().map(|()| true),
            Ok(b'#') => self.annotation().map(|()| false),
            Ok(_) => Err(self.bad()),
            Err(stop) => Err(stop),
        };
        match result {
            Ok(true) => {
                let (end, words) = (self.window.position(), &self.words[..]);
                let command = Command { end, buffer: self.window.event(), words };
                match () {
                    () if command.is(b"MULTI") => self.is_in_transaction = true,
                    () if command.is(b"EXEC") => self.is_in_transaction = false,
                    () => {}
                }
                if !self.is_in_transaction {
                    self.whole = end;
                }
                Ok(Event::Command(command))
            }
            Ok(false) => {
                if !self.is_in_transaction {
                    self.whole = self.window.position();
                }
                Ok(Event::Annotation(self.window.bytes(0..self.window.place()).trim_ascii_end()))
            }
            Err(Stop::Io(error)) => Err(error),
            Err(Stop::Short) => {
                let kind = match self.window.event().first() {
                    _ if self.is_in_transaction => EndKind::Transaction,
                    None => EndKind::Whole,
                    Some(b'#') => EndKind::Annotation,
                    Some(_) => EndKind::Command,
                };
                Ok(self.end(kind))
            }
            Err(Stop::Bad) => {
                let at = self.window.position();
                let is_zeros = self.window.rest_is_zeros()?;
                Ok(self.end(EndKind::Bad { at, is_zeros }))
            }
        }
    }

    fn end(&mut self, kind: EndKind) -> Event<'_> {
        Event::End(*self.end.insert(End { whole: self.whole, kind }))
    }

    /// Reads a command behind its first byte.
    fn command(&mut self) -> Result<(), Stop> {
        self.words.clear();
        let start = self.window.place();
        let count = self.number(WORDS_MAX)?;
        if count == 0 {
            self.window.go_to(start);
            return Err(Stop::Bad);
        }
        for _ in 0..count {
            if self.byte()? != b'$' {
                return Err(self.bad());
            }
            let len = self.number(STRING_MAX as u64)? as usize;
            self.need(len + 2)?;
            let start = self.window.place();
            self.words.push(start..start + len);
            self.window.take(len);
            self.line_end()?;
        }
        Ok(())
    }

    /// Reads digits and the end of their line.
    fn number(&mut self, max: u64) -> Result<u64, Stop> {
        let (mut number, start) = (0_u64, self.window.place());
        loop {
            let byte = self.byte()?;
            match byte {
                b'0'..=b'9' => number = number * 10 + u64::from(byte - b'0'),
                _ => self.window.put_back(),
            }
            if number > max || !byte.is_ascii_digit() && self.window.place() == start {
                return Err(Stop::Bad);
            }
            if !byte.is_ascii_digit() {
                self.line_end()?;
                return Ok(number);
            }
        }
    }

    fn line_end(&mut self) -> Result<(), Stop> {
        for expected in *b"\r\n" {
            if self.byte()? != expected {
                return Err(self.bad());
            }
        }
        Ok(())
    }

    /// Reads an annotation behind its first byte.
    fn annotation(&mut self) -> Result<(), Stop> {
        while self.byte()? != b'\n' && self.window.place() < ANNOTATION_MAX {}
        Ok(())
    }

    /// Puts a wrong byte back, so that its position is told.
    fn bad(&mut self) -> Stop {
        self.window.put_back();
        Stop::Bad
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, Stop> {
        self.need(1)?;
        let byte = self.window.ahead()[0];
        self.window.take(1);
        Ok(byte)
    }

    /// Makes sure that as many bytes were read.
    #[inline]
    fn need(&mut self, len: usize) -> Result<(), Stop> {
        match self.window.ahead().len() >= len || self.window.fill(len).map_err(Stop::Io)? {
            true => Ok(()),
            false => Err(Stop::Short),
        }
    }
}

/// A source that gives a number of bytes at a time.
struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.1.min(out.len()).min(self.0.len());
        out[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        Ok(len)
    }
}

/// Returns what a file consists of, a line for each part, and how it ends.
fn told(source: impl Read) -> (Vec<String>, End) {
    let (mut told, mut reader) = (Vec::new(), AofReader::new(source));
    loop {
        match reader.next().expect("no errors") {
            Event::End(end) => return (told, end),
            Event::Annotation(line) => told.push(line.escape_ascii().to_string()),
            Event::Command(command) => told.push(format!("{command:?}")),
        }
    }
}

/// Reads untrusted bytes as a file of commands. The result must not depend on how they arrive, and the part that is whole
/// must be so alone.
pub fn fuzz_aof(data: &[u8]) {
    for prefix in [&b""[..], b"*1\r\n$5\r\nMULTI\r\n", b"*2\r\n$"] {
        let file = [prefix, data].concat();
        let (events, end) = told(&file[..]);
        assert_eq!(told(Pieces(&file, 1)), (events.clone(), end));
        assert!(end.whole <= file.len() as u64 && events.len() <= file.len());
        let (whole, again) = told(&file[..end.whole as usize]);
        assert_eq!(again, End { whole: end.whole, kind: EndKind::Whole });
        assert!(events.starts_with(&whole));
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_data::random::{damage, numbers};
    use sluicegate_data::rdb::file as rdb;
    use sluicegate_testkit::{Client, RedisServer, encode};

    use super::*;

    fn end_of(file: &[u8]) -> End {
        told(file).1
    }

    /// Returns up to where redis-check-aof finds a file whole.
    fn whole_by_redis(path: &std::path::Path) -> u64 {
        let checked = std::process::Command::new("redis-check-aof").arg(path).output().expect("redis-check-aof");
        let told = String::from_utf8_lossy(&checked.stdout).into_owned();
        let whole = told.split_once("ok_up_to=").and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
        whole.unwrap_or_else(|| panic!("{told}"))
    }

    #[test]
    fn commands_annotations_and_transactions_are_read() {
        let file = [
            b"#TS:17\r\n".to_vec(),
            encode(&["SELECT", "0"]),
            encode(&["SET", "k", ""]),
            b"#\n".to_vec(),
            encode(&["multi"]),
            encode(&["SET", "k", "a\r\nb"]),
            encode(&["exec"]),
        ];
        let file = file.concat();
        let expected = ["#TS:17", "31: SELECT 0", "57: SET k ", "#", "74: multi", "104: SET k a\\r\\nb", "118: exec"];
        let (events, end) = told(&file[..]);
        assert_eq!(events, expected);
        assert_eq!(end, End { whole: file.len() as u64, kind: EndKind::Whole });
        // Behind an RDB file, of which some was read too much.
        let mut reader = AofReader::behind(&file[31..], file[8..31].to_vec(), 1_008);
        let mut ends = Vec::new();
        let end = loop {
            match reader.next().expect("no errors") {
                Event::Command(command) => ends.push(command.end),
                Event::Annotation(_) => {}
                Event::End(end) => break end,
            }
        };
        assert_eq!((ends, end.whole), (vec![1_031, 1_057, 1_074, 1_104, 1_118], 1_118));
        assert_eq!(reader.next().expect("no errors"), Event::End(end));
        assert!(is_rdb(b"REDIS0010") && is_rdb(b"VALKEY080") && !is_rdb(b"*1\r\n$") && !is_rdb(b"RED"));
    }

    /// A file that is cut anywhere is whole up to where redis-check-aof says, but for annotations.
    #[test]
    fn a_file_that_is_cut_is_whole_up_to_where_redis_says() {
        let path = tempfile::tempdir().expect("a directory");
        let path = path.path().join("x.aof");
        let file = [
            encode(&["SET", "k", "value"]),
            b"#TS:1700000000\r\n".to_vec(),
            encode(&["MULTI"]),
            encode(&["DEL", "k"]),
            encode(&["EXEC"]),
            encode(&["PING"]),
        ];
        let annotation = file[0].len()..file[0].len() + file[1].len();
        let file = file.concat();
        for len in 1..file.len() {
            std::fs::write(&path, &file[..len]).expect("a file");
            let (end, expected) = (end_of(&file[..len]), whole_by_redis(&path));
            if annotation.contains(&len) && len > annotation.start {
                // The next command would be part of the annotation.
                assert_eq!(end, End { whole: annotation.start as u64, kind: EndKind::Annotation }, "{len}");
            } else {
                assert_eq!(end.whole, expected, "{len}");
                assert_eq!(end.kind.is_cut(), end.whole < len as u64, "{len}: {end:?}");
            }
        }
    }

    #[test]
    fn bad_bytes_are_found_where_redis_finds_them() {
        let path = tempfile::tempdir().expect("a directory");
        let path = path.path().join("x.aof");
        let good = encode(&["SET", "k", "value"]);
        let len = good.len() as u64;
        let check = |bad: &[u8], expected: Option<(u64, bool)>| {
            let file = [&good[..], bad].concat();
            std::fs::write(&path, &file).expect("a file");
            let end = end_of(&file);
            // Wherever the reads end.
            let mut reader = AofReader::new(Pieces(&file, 1));
            let in_pieces = std::iter::from_fn(|| match reader.next().expect("memory is read") {
                Event::End(end) => Some(Some(end)),
                _ => Some(None),
            });
            assert_eq!(in_pieces.flatten().next(), Some(end), "{}", bad.escape_ascii());
            // A command without words is one for redis-check-aof, but not for redis-server.
            let is_empty = bad.starts_with(b"*\r") || bad.starts_with(b"*0");
            assert!(is_empty || end.whole == whole_by_redis(&path), "{}", bad.escape_ascii());
            assert_eq!(end.whole, len);
            let expected = expected.map(|(at, is_zeros)| EndKind::Bad { at: len + at, is_zeros });
            assert_eq!(end.kind, expected.unwrap_or(EndKind::Command), "{}", bad.escape_ascii());
        };
        check(b"\0\0\0", Some((0, true)));
        check(&[&[0; 300_000][..], b"x"].concat(), Some((0, false)));
        check(&[0; 600_000], Some((0, true)));
        check(b"*1\r\n$4\r\nPI\0\0\0\0\0\0", Some((12, true)));
        check(b"\r\n", Some((0, false)));
        check(b"SET k v\r\n", Some((0, false)));
        check(b"*x\r\n", Some((1, false)));
        check(b"*\r\n", Some((1, false)));
        check(b"*0\r\n", Some((1, false)));
        check(b"*1x\r\n$4\r\nPING\r\n", Some((2, false)));
        check(b"*1\n$4\nPING\n", Some((2, false)));
        check(b"*1\r\n4\r\nPING\r\n", Some((4, false)));
        check(b"*1\r\n$-1\r\n", Some((5, false)));
        check(b"*1\r\n$4\r\nPINGxx", Some((12, false)));
        check(b"*1\r\n$4\r\nPING\rx", Some((13, false)));
        check(b"*2147483648\r\n$3\r\nabc", Some((11, false)));
        check(b"*1\r\n$536870913\r\nabc", Some((14, false)));
        check(b"*2147483647\r\n$3\r\nabc\r\n", None);
        check(b"*1\r\n$536870912\r\nabc", None);
    }

    /// A line of this length is one annotation; the rest of a longer one is bad.
    #[test]
    fn annotations_are_as_long_as_in_redis() {
        let path = tempfile::tempdir().expect("a directory");
        let path = path.path().join("x.aof");
        for len in [ANNOTATION_MAX - 1, ANNOTATION_MAX, ANNOTATION_MAX + 1] {
            let line = [b"#", &vec![b'x'; len - 2][..], b"\n"].concat();
            let file = [line, encode(&["PING"])].concat();
            std::fs::write(&path, &file).expect("a file");
            let end = end_of(&file);
            assert_eq!(
                (end.whole, end.kind == EndKind::Whole),
                (whole_by_redis(&path), len <= ANNOTATION_MAX),
                "{len}"
            );
        }
    }

    /// Files of redis-server with values of every type, transactions and scripts are read to the last byte.
    #[test]
    fn files_of_redis_are_read() {
        let path = tempfile::tempdir().expect("a directory");
        let dir = path.path().to_str().expect("UTF-8");
        let server = RedisServer::start(&["--dir", dir, "--appendonly", "yes", "--aof-timestamp-enabled", "yes"]);
        let mut client = Client::connect(&server.address());
        for line in [
            "SET s v EX 1000",
            "APPEND s more",
            "RPUSH l a b c",
            "LPOP l 2",
            "SADD set a b c",
            "SPOP set",
            "HSET h f v",
            "HINCRBYFLOAT h n 1.5",
            "ZADD z 1 a 2 b",
            "ZPOPMIN z",
            "XADD x * f v",
            "XGROUP CREATE x g 0",
            "XREADGROUP GROUP g c STREAMS x >",
            "PFADD p a",
            "GEOADD geo 1 2 a",
            "SELECT 3",
            "MULTI",
            "SET other x",
            "INCR n",
            "EXEC",
            "EVAL redis.call('set','a','1');redis.call('del','a') 0",
            "FLUSHDB",
            "SELECT 0",
            "EXPIRE s 0",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            client.ask(&words);
        }
        let increment = path.path().join("appendonlydir/appendonly.aof.1.incr.aof");
        let file = std::fs::read(increment).expect("a file");
        let (mut again, mut names, mut reader) = (Vec::new(), Vec::new(), AofReader::new(&file[..]));
        loop {
            match reader.next().expect("no errors") {
                Event::End(end) => {
                    assert_eq!(end, End { whole: file.len() as u64, kind: EndKind::Whole });
                    break;
                }
                Event::Annotation(line) => again.extend([line, b"\r\n"].concat()),
                Event::Command(read) => {
                    let words: Vec<&str> = read.words().map(|word| std::str::from_utf8(word).expect("text")).collect();
                    again.extend(encode(&words));
                    names.push(words[0].to_owned());
                    assert_eq!(read.end, again.len() as u64);
                }
            }
        }
        assert!(again == file);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(names.windows(2).any(|pair| pair == ["SELECT", "MULTI"]) && names.contains(&"XCLAIM"), "{names:?}");
        let base = std::fs::read(path.path().join("appendonlydir/appendonly.aof.1.base.rdb")).expect("a file");
        assert!(is_rdb(&base));

        // The single file of an old version: both in one, of which the reader of RDB files has read too much.
        let single = [&base[..], &file].concat();
        let mut rdb = rdb::FileReader::new(&single[..]).expect("an RDB file");
        while !matches!(rdb.next().expect("an RDB file"), rdb::Event::End(_)) {}
        let position = rdb.offset();
        let (source, rest) = rdb.into_rest();
        let mut reader = AofReader::behind(source, rest, position);
        let end = loop {
            if let Event::End(end) = reader.next().expect("no errors") {
                break end;
            }
        };
        assert_eq!(end, End { whole: single.len() as u64, kind: EndKind::Whole });
    }

    #[test]
    fn fuzz_aof_holds() {
        let mut next = numbers(29);
        let file = [
            encode(&["SET", "k", "value"]),
            b"#TS:1\r\n".to_vec(),
            encode(&["MULTI"]),
            encode(&["DEL", "k", "some", "more"]),
            encode(&["EXEC"]),
        ];
        let file = file.concat();
        for round in 0..3_000 {
            let mut data = file.repeat(1 + round % 2);
            damage(&mut data, next(4), &mut next);
            data.truncate(next(data.len() + 1).max(data.len() / 3));
            fuzz_aof(&data);
        }
        // A command that is larger than the buffer comes before small ones.
        let value = "v".repeat(sluicegate_data::window::BUFFER_KEPT + 1);
        let large = [encode(&["SET", "k", &value]), file].concat();
        let (events, end) = told(&large[..]);
        assert_eq!((events.len(), end.kind), (6, EndKind::Whole));
        assert!(told(Pieces(&large, 1_000)) == (events, end));
    }
}
