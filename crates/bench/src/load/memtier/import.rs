//! Items of a file that a memcache server has dumped, as `--data-import` takes them.
//!
//! A header names the columns; then each item has eight numbers, its key and its value. Words in quotation marks have a
//! quotation mark twice, and may have line breaks.

use std::io::Read;
use std::path::Path;

use crate::load::items::Item;

/// The largest file.
const MAX_BYTES: u64 = 1 << 30;

const HEADER: &[u8] = b"dumpflags, time, exptime";

/// Reads the items of a file.
pub(super) fn read(path: &Path) -> Result<Vec<Item>, String> {
    let name = path.display();
    let file = std::fs::File::open(path).map_err(|error| format!("{name}: {error}"))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| format!("{name}: {error}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("{name}: more than {MAX_BYTES} bytes are not imported"));
    }
    parse(&bytes).map_err(|(at, fault)| {
        let line = 1 + bytes[..at.min(bytes.len())].iter().filter(|byte| **byte == b'\n').count();
        format!("{name}:{line}: {fault}")
    })
}

/// The position of a fault, and what is wrong there.
type Fault = (usize, String);

fn parse(bytes: &[u8]) -> Result<Vec<Item>, Fault> {
    if !bytes.starts_with(HEADER) {
        return Err((0, format!("the first line does not begin with '{}'", HEADER.escape_ascii())));
    }
    let mut reader =
        Reader { bytes, at: bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1) };
    let mut items = Vec::new();
    while !reader.is_at_end() {
        items.push(reader.item()?);
    }
    match items.is_empty() {
        true => Err((bytes.len(), "there are no items".to_owned())),
        false => Ok(items),
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn fault<T>(&self, fault: &str) -> Result<T, Fault> {
        Err((self.at, fault.to_owned()))
    }

    /// Skips blanks and line breaks, and returns whether nothing follows.
    fn is_at_end(&mut self) -> bool {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
        self.at >= self.bytes.len()
    }

    fn item(&mut self) -> Result<Item, Fault> {
        let mut numbers = [0; 8];
        for number in &mut numbers {
            *number = self.number()?;
            self.comma()?;
        }
        let [_, _, expiry_s, value_len, .., key_len] = numbers;
        let Some(value_len) = value_len.checked_sub(2) else {
            return self.fault("the length of a value counts its line break, so it is at least 2");
        };
        let key = self.word(key_len, "key")?;
        self.comma()?;
        let value = self.word(value_len, "value")?;
        match (self.peek(), self.bytes.get(self.at + 1)) {
            (None | Some(b'\n'), _) | (Some(b'\r'), Some(b'\n')) => Ok(Item { key, value, expiry_s }),
            _ => self.fault("a line break is expected behind a value"),
        }
    }

    fn number(&mut self) -> Result<u32, Fault> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        let digits = std::str::from_utf8(&self.bytes[start..self.at]).unwrap_or_default();
        digits.parse().map_err(|_| (start, "eight numbers of 32 bits are expected before a key".to_owned()))
    }

    fn comma(&mut self) -> Result<(), Fault> {
        if self.peek() != Some(b',') {
            return self.fault("a comma is expected");
        }
        self.at += 1;
        while self.peek() == Some(b' ') {
            self.at += 1;
        }
        Ok(())
    }

    /// Reads a word of so many bytes.
    fn word(&mut self, len: u32, what: &str) -> Result<Vec<u8>, Fault> {
        let (start, len) = (self.at, len as usize);
        let mut word = Vec::new();
        if self.peek() == Some(b'"') {
            self.at += 1;
            loop {
                match (self.peek(), self.bytes.get(self.at + 1)) {
                    (None, _) => return Err((start, format!("the closing quotation mark of a {what} is missing"))),
                    (Some(b'"'), Some(b'"')) => {
                        word.push(b'"');
                        self.at += 2;
                    }
                    (Some(b'"'), _) => break,
                    (Some(byte), _) => {
                        word.push(byte);
                        self.at += 1;
                    }
                }
            }
            self.at += 1;
        } else {
            let rest = &self.bytes[self.at..];
            let end = rest.iter().position(|byte| matches!(byte, b',' | b'\r' | b'\n')).unwrap_or(rest.len());
            word.extend_from_slice(&rest[..end]);
            self.at += end;
        }
        match word.len() == len {
            true => Ok(word),
            false => Err((start, format!("a {what} of {} bytes; {len} are named before it", word.len()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &str = "dumpflags, time, exptime, nbytes, nsuffix, it_flags, clsid, nkey, key, data\n";

    #[test]
    fn items_are_read() {
        let text = format!(
            "{COLUMNS}0, 1, 0, 5, 0, 0, 0, 2, \"k1\", \"v,\n\"\r\n0, 1, 60, 4, 0, 0, 0, 3, \"a\"\"b\", \"\"\"x\"\n"
        );
        let item = |key: &[u8], value: &[u8], expiry_s| Item { key: key.to_vec(), value: value.to_vec(), expiry_s };
        assert_eq!(parse(text.as_bytes()), Ok(vec![item(b"k1", b"v,\n", 0), item(b"a\"b", b"\"x", 60)]));
        let text = format!("{COLUMNS}0,1,0,5,0,0,0,2,k1,abc");
        assert_eq!(parse(text.as_bytes()), Ok(vec![item(b"k1", b"abc", 0)]));
    }

    #[test]
    fn what_is_no_item_is_named() {
        for (text, fault) in [
            ("", "there are no items"),
            ("0, 1, 0, 5, 0, 0, 0, k1, abc", "eight numbers"),
            ("0, 1, 0, 99999999999, 0, 0, 0, 2, k1, abc", "eight numbers"),
            ("0 1", "a comma"),
            ("0, 1, 0, 1, 0, 0, 0, 2, k1, abc", "at least 2"),
            ("0, 1, 0, 5, 0, 0, 0, 3, k1, abc", "a key of 2 bytes; 3 are"),
            ("0, 1, 0, 6, 0, 0, 0, 2, k1, abc", "a value of 3 bytes; 4 are"),
            ("0, 1, 0, 5, 0, 0, 0, 2, \"k1, abc", "closing quotation mark of a key"),
            ("0, 1, 0, 5, 0, 0, 0, 2, k1, \"abc\" d", "a line break"),
        ] {
            let (at, found) = parse(format!("{COLUMNS}{text}").as_bytes()).expect_err(text);
            assert!(found.contains(fault) && at >= COLUMNS.len(), "{text}: {found} at {at}");
        }
        assert!(parse(b"key,value\n").is_err_and(|(at, fault)| at == 0 && fault.contains("dumpflags")));
    }

    /// Any bytes are items or a fault.
    #[test]
    fn fuzz_items() {
        let mut random = crate::load::random::Random::new(7);
        for _ in 0..20_000 {
            let len = random.below(60) as usize;
            let bytes = (0..len).map(|_| b"0123, \"\"kv\r\n"[random.below(12) as usize]);
            let bytes: Vec<u8> = COLUMNS.bytes().chain(bytes).collect();
            if let Err((at, _)) = parse(&bytes) {
                assert!(at <= bytes.len());
            }
        }
    }
}
