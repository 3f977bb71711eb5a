//! Effects that only this store knows, as annotations of the append-only file: lines that other servers skip.
//!
//! The words of such an effect are quoted as in a configuration file. As a line may have [`ANNOTATION_MAX`] bytes, long
//! ones are cut: each piece but the last begins with [`PIECE`], the last with [`LAST`].

use crate::aof::read::ANNOTATION_MAX;
use crate::words::{quote, split};

/// The start of a line that ends an effect.
pub(crate) const LAST: &[u8] = b"#SG:";
/// The start of a line that the next one continues.
const PIECE: &[u8] = b"#SG+";
/// The bytes of a piece.
const PIECE_MAX: usize = ANNOTATION_MAX - LAST.len() - b"\r\n".len();

/// Appends the lines of an effect.
pub(crate) fn write(words: &[&[u8]], out: &mut Vec<u8>) {
    let mut line = Vec::new();
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            line.push(b' ');
        }
        quote(word, &mut line);
    }
    let mut pieces = line.chunks(PIECE_MAX).peekable();
    while let Some(piece) = pieces.next() {
        out.extend_from_slice(if pieces.peek().is_some() { PIECE } else { LAST });
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
}

/// The lines of an effect that have been read so far.
#[derive(Default, Debug)]
pub(crate) struct Reader(Vec<u8>);

/// An annotation is malformed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl Reader {
    /// Reads an annotation, without its end of line. Returns the words of an effect that it ends; none if it is another
    /// kind of annotation, or continues.
    pub(crate) fn read(&mut self, line: &[u8]) -> Result<Option<Vec<Vec<u8>>>, Malformed> {
        if let Some(piece) = line.strip_prefix(PIECE) {
            self.0.extend_from_slice(piece);
            return Ok(None);
        }
        let Some(piece) = line.strip_prefix(LAST) else {
            return if self.0.is_empty() { Ok(None) } else { Err(Malformed) };
        };
        self.0.extend_from_slice(piece);
        let words = split(&std::mem::take(&mut self.0)).ok_or(Malformed)?;
        if words.is_empty() { Err(Malformed) } else { Ok(Some(words)) }
    }

    /// Returns whether an effect has begun and not ended.
    pub(crate) fn is_within(&self) -> bool {
        !self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_of_any_length_are_read_back() {
        for len in [0, 1, PIECE_MAX - 20, PIECE_MAX, 3 * PIECE_MAX + 7] {
            let long: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let words: [&[u8]; 3] = [b"STICK", &long, b"a \"b\" c"];
            let mut out = Vec::new();
            write(&words, &mut out);
            let (mut reader, mut read) = (Reader::default(), None);
            for line in out.split_inclusive(|byte| *byte == b'\n') {
                assert!(line.len() <= ANNOTATION_MAX && line.ends_with(b"\r\n") && line.is_ascii());
                assert_eq!(read, None);
                read = reader.read(&line[..line.len() - 2]).expect("well formed");
            }
            assert_eq!(read.expect("an effect"), words.map(<[u8]>::to_vec));
            assert!(!reader.is_within());
        }
        assert_eq!(Reader::default().read(b"#TS:17"), Ok(None));
        assert_eq!(Reader::default().read(b"#SG:\"open"), Err(Malformed));
        assert_eq!(Reader(b"begun".to_vec()).read(b"#TS:17"), Err(Malformed));
    }
}
