//! The manifest of the append-only file, in Redis's format:
//!
//! ```text
//! file appendonly.aof.2.base.rdb seq 2 type b
//! file appendonly.aof.1.incr.aof seq 1 type h
//! file appendonly.aof.2.incr.aof seq 2 type i
//! ```
//!
//! The parser accepts what Redis accepts, and refuses the rest with its texts: comments, pairs in any order and unknown
//! ones, names in quotes, numbers with anything behind them.

use std::fmt;

use crate::words::{quote, split};

/// The longest line, in bytes, its end included.
const LINE_MAX: usize = 1024;
/// The longest manifest that is read, in bytes: some 10,000 lines.
pub(crate) const MANIFEST_MAX: u64 = 1 << 20;

/// The files of an append-only file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Manifest {
    /// The data set with which it begins.
    pub(crate) base: Option<Part>,
    /// Files that are not needed any more and are still to be removed.
    pub(crate) history: Vec<Part>,
    /// The commands since, with ascending numbers.
    pub(crate) increments: Vec<Part>,
}

/// One file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) name: Vec<u8>,
    /// Its number among those of its kind; not 0.
    pub(crate) seq: i64,
}

/// Why a manifest is refused. Its text is the one that Redis logs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ManifestFault {
    /// It is empty.
    Empty,
    /// A line has no end within [`LINE_MAX`] bytes.
    LongLine,
    /// It is longer than [`MANIFEST_MAX`].
    Long,
    /// A line is malformed: its number from 1, itself, and why.
    Line(usize, Vec<u8>, &'static str),
}

impl fmt::Display for ManifestFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ManifestFault::Empty => f.write_str("Found an empty AOF manifest"),
            ManifestFault::LongLine => f.write_str("The AOF manifest file contains too long line"),
            ManifestFault::Long => write!(f, "The AOF manifest file is longer than {MANIFEST_MAX} bytes"),
            ManifestFault::Line(number, line, why) => {
                let line = String::from_utf8_lossy(line);
                write!(f, "Reading the manifest file, at line {number}\n>>> '{line}'\n{why}")
            }
        }
    }
}

const FORMAT: &str = "Invalid AOF manifest file format";

impl Manifest {
    /// Parses the contents of a file.
    pub(crate) fn parse(text: &[u8]) -> Result<Manifest, ManifestFault> {
        if text.is_empty() {
            return Err(ManifestFault::Empty);
        }
        if text.len() as u64 > MANIFEST_MAX {
            return Err(ManifestFault::Long);
        }
        let mut manifest = Manifest::default();
        let (mut rest, mut number) = (text, 0);
        while !rest.is_empty() {
            // A longer line comes in pieces, and one of a comment is one as well.
            let piece = &rest[..rest.len().min(LINE_MAX)];
            let end = piece.iter().position(|byte| *byte == b'\n').map_or(piece.len(), |at| at + 1);
            let (line, after) = rest.split_at(end);
            (rest, number) = (after, number + 1);
            if line[0] == b'#' {
                continue;
            }
            if line.last() != Some(&b'\n') || line.contains(&0) {
                return Err(ManifestFault::LongLine);
            }
            let line = trim(line);
            manifest.add(line).map_err(|why| ManifestFault::Line(number, line.to_vec(), why))?;
        }
        Ok(manifest)
    }

    /// Adds what a line names.
    fn add(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let words = split(line).ok_or(FORMAT)?;
        if words.len() < 6 || words.len() % 2 == 1 {
            return Err(FORMAT);
        }
        let (mut name, mut seq, mut kind) = (None, 0, 0);
        for pair in words.chunks_exact(2) {
            // Words end at a zero byte, which can be in quotes.
            let value = pair[1].split(|byte| *byte == 0).next().unwrap_or_default();
            if pair[0].eq_ignore_ascii_case(b"file") {
                if value.contains(&b'/') || value.contains(&b'\\') {
                    return Err("File can't be a path, just a filename");
                }
                name = Some(value.to_vec());
            } else if pair[0].eq_ignore_ascii_case(b"seq") {
                seq = number(value);
            } else if pair[0].eq_ignore_ascii_case(b"type") {
                kind = value.first().copied().unwrap_or(0);
            }
        }
        let Some(name) = name.filter(|_| seq != 0 && kind != 0) else { return Err(FORMAT) };
        let part = Part { name, seq };
        match kind {
            b'b' if self.base.is_some() => return Err("Found duplicate base file information"),
            b'b' => self.base = Some(part),
            b'h' => self.history.push(part),
            b'i' if seq <= self.increments.last().map_or(0, |last| last.seq) => {
                return Err("Found a non-monotonic sequence number");
            }
            b'i' => self.increments.push(part),
            _ => return Err("Unknown AOF file type"),
        }
        Ok(())
    }

    /// Returns the contents of the file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let history = self.history.iter().map(|part| (part, 'h'));
        let increments = self.increments.iter().map(|part| (part, 'i'));
        for (part, kind) in self.base.iter().map(|part| (part, 'b')).chain(history).chain(increments) {
            text.extend_from_slice(b"file ");
            let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"'\\".contains(byte);
            match part.name.is_empty() || !part.name.iter().all(is_plain) {
                true => quote(&part.name, &mut text),
                false => text.extend_from_slice(&part.name),
            }
            text.extend_from_slice(format!(" seq {} type {kind}\n", part.seq).as_bytes());
        }
        text
    }
}

/// Returns a line without blanks around it.
fn trim(line: &[u8]) -> &[u8] {
    let is_blank = |byte: &u8| b" \t\r\n".contains(byte);
    let Some(start) = line.iter().position(|byte| !is_blank(byte)) else { return &[] };
    let end = line.iter().rposition(|byte| !is_blank(byte)).map_or(start, |last| last + 1);
    &line[start..end]
}

/// Reads a number as C's `atoll` does: blanks, a sign, digits, anything.
fn number(text: &[u8]) -> i64 {
    let start = text.iter().position(|byte| !byte.is_ascii_whitespace() && *byte != 0x0b).unwrap_or(text.len());
    let (is_negative, digits) = match text[start..].split_first() {
        Some((b'-', digits)) => (true, digits),
        Some((b'+', digits)) => (false, digits),
        _ => (false, &text[start..]),
    };
    let digits = digits.iter().map_while(|byte| byte.is_ascii_digit().then(|| i64::from(byte - b'0')));
    digits.fold(0_i64, |number, digit| {
        let digit = if is_negative { -digit } else { digit };
        number.saturating_mul(10).saturating_add(digit)
    })
}

/// Parses untrusted bytes. What is accepted must be the same once it is written and read again.
pub fn fuzz_manifest(data: &[u8]) {
    if let Ok(manifest) = Manifest::parse(data) {
        assert!(manifest.increments.is_sorted_by(|one, other| one.seq < other.seq));
        let text = manifest.encode();
        match Manifest::parse(&text) {
            Ok(again) => assert_eq!(again, manifest),
            // Names become longer in quotes.
            Err(ManifestFault::LongLine) => {
                assert!(text.split(|byte| *byte == b'\n').any(|line| line.len() >= LINE_MAX))
            }
            Err(fault) => assert!(text.is_empty(), "{fault}"),
        }
    } else {
        let prefixed = [b"file \"\\x00", data].concat();
        let _ = Manifest::parse(&prefixed);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use sluicegate_data::random::{damage, numbers};

    use super::*;

    /// Returns why redis-check-aof, which reads manifests as redis-server does, refuses one; it finds no file of it.
    fn refused_by_redis(directory: &std::path::Path, text: &[u8]) -> Option<String> {
        let path = directory.join("x.manifest");
        std::fs::write(&path, text).expect("a file");
        let checked = std::process::Command::new("redis-check-aof").arg(path).output().expect("redis-check-aof");
        let told = String::from_utf8_lossy(&checked.stdout).into_owned();
        let (_, why) = told.split_once("FATAL AOF MANIFEST FILE ERROR ***\n")?;
        // A line begins with the process, the time and the level.
        let lines = why.lines().filter_map(|line| line.split_once(" # ").map(|(_, text)| text));
        Some(lines.collect::<Vec<_>>().join("\n"))
    }

    /// The words are those of redis-server 7.0.
    #[test]
    fn manifests_are_accepted_and_refused_as_by_redis() {
        let directory = tempfile::tempdir().expect("a directory");
        let check = |text: &[u8], expected: &str| {
            let found = match Manifest::parse(text) {
                Ok(manifest) => String::from_utf8_lossy(&manifest.encode()).into_owned(),
                Err(fault) => fault.to_string(),
            };
            assert_eq!(found, expected, "{}", text.escape_ascii());
            // It takes what does not begin with such a line for a file of commands.
            let first = text.split(|byte| *byte == b'\n').find(|line| line.first() != Some(&b'#'));
            if first.is_some_and(|line| line.starts_with(b"file")) {
                let own = Manifest::parse(text).is_err().then_some(found);
                assert_eq!(refused_by_redis(directory.path(), text), own, "{}", text.escape_ascii());
            }
        };
        let plain = "file a.base seq 1 type b\nfile a.incr seq 1 type i\n";
        check(plain.as_bytes(), plain);
        check(b"file a.incr seq 1 type i\nfile a.base seq 1 type b\n", plain);
        check(b"#\n# comment\n  TYPE b SEQ 1 other 5 FILE \"\\x61.base\" \r\nfile a.incr seq +1x type incr\n", plain);
        check(b"file 'a.incr' seq \" 1\" type i file \"b c\\n\" seq 7\n", "file \"b c\\n\" seq 7 type i\n");
        check(b"file a.incr seq 99999999999999999999 type i\n", "file a.incr seq 9223372036854775807 type i\n");
        check(b"file a.base seq -3 type b\n", "file a.base seq -3 type b\n");
        check(b"file a seq 2 type h\nfile b seq 1 type h\n", "file a seq 2 type h\nfile b seq 1 type h\n");
        check(b"# nothing else", "");
        check(b"file \"a\\x00b\" seq 1 type b\n", "file a seq 1 type b\n");
        check(&[b"#".repeat(LINE_MAX - 1), b"\n".to_vec()].concat(), "");
        check(b"", "Found an empty AOF manifest");
        for text in [&b"file a.incr seq 1 type i"[..], b"file a.incr seq 1 type i\0\n", &[b'x'; LINE_MAX + 1], b" "] {
            check(text, "The AOF manifest file contains too long line");
        }
        let at = |number: usize, line: &str, why: &str| {
            format!("Reading the manifest file, at line {number}\n>>> '{line}'\n{why}")
        };
        for line in [
            "",
            "file",
            "file a.incr type i",
            "file a.incr seq 1",
            "file a.incr seq 1 type i more",
            "file a.incr seq 0 type i",
            "file a.incr seq x type i",
            "file a.incr seq 0x1 type i",
            "file a.incr seq \"\" type i",
            "file a.incr seq 1 type \"\"",
            "file \"a.incr seq 1 type i",
            "file \"a\"b seq 1 type i",
            "a b c d e f",
        ] {
            check(format!("{line}\n").as_bytes(), &at(1, line, FORMAT));
            check(format!("# one\n\t{line} \r\n").as_bytes(), &at(2, line, FORMAT));
        }
        check(&[b"#".repeat(LINE_MAX), b"\n".to_vec()].concat(), &at(2, "", FORMAT));
        let path = "File can't be a path, just a filename";
        check(b"file d/a seq 1 type i\n", &at(1, "file d/a seq 1 type i", path));
        check(b"file \"a\\\\b\" seq 1 type i\n", &at(1, "file \"a\\\\b\" seq 1 type i", path));
        check(b"file a seq 1 type x\n", &at(1, "file a seq 1 type x", "Unknown AOF file type"));
        let twice = "Found duplicate base file information";
        check(b"file a seq 1 type b\nfile a seq 1 type b\n", &at(2, "file a seq 1 type b", twice));
        for seq in [2, 1, -1] {
            let line = format!("file b seq {seq} type i");
            let text = format!("file a seq 2 type i\n{line}\n");
            check(text.as_bytes(), &at(2, &line, "Found a non-monotonic sequence number"));
        }
        check(&b"#\n".repeat(1 << 20), "The AOF manifest file is longer than 1048576 bytes");
    }

    #[test]
    fn fuzz_manifest_holds() {
        let mut next = numbers(29);
        let seeds = [
            &b"file a.base seq 1 type b\nfile a.incr seq 1 type i\n"[..],
            b"# x\nfile \"\\x61 b\" seq 5 type h\nfile 'c' seq 7 type i\nFILE d SEQ 9 TYPE i x y\n",
        ];
        for round in 0..20_000 {
            let mut data = seeds[round % 2].repeat(1 + next(2));
            damage(&mut data, next(6), &mut next);
            data.truncate(next(data.len() + 1).max(data.len() / 2));
            fuzz_manifest(&data);
        }
    }
}
