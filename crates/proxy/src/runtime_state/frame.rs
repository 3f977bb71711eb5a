//! The format of the state file: a header, frames, and a frame that ends the file. Numbers are little-endian.
//!
//! | part | content |
//! |---|---|
//! | header | `SLGSTATE`, version (4 bytes), [`Header`], CRC-32C of all that |
//! | frame | kind (1), length (4), body, CRC-32C of kind, length and body |
//! | last frame | kind 0; its body is the number of frames before it (8) |
//!
//! A frame stands for itself, so the file is written and read frame by frame, and a reader skips frames of kinds that it
//! does not know. [`read`] looks at the whole file before it passes on the first frame: a damaged file is not used at all.
//!
//! Limits: a body has at most [`BODY_MAX`] bytes; memory is that of one frame.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::hash::crc32c;

const MAGIC: &[u8; 8] = b"SLGSTATE";
const VERSION: u32 = 1;
/// The number of bytes of the header.
pub(super) const HEADER: usize = 8 + 4 + 8 + 8 + 4 + 4;
/// The maximum number of bytes of a frame's body.
pub(super) const BODY_MAX: usize = 4 << 20;
/// The size at which writers end a body and begin the next one.
pub(super) const BODY_FULL: usize = 64 << 10;
const HEAD: usize = 5;

/// The kind of the last frame.
const END: u8 = 0;

/// The content of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The start of the process that wrote the file, in milliseconds since 1970.
    pub(super) started_ms: u64,
    /// The time of the file: milliseconds since 1970…
    pub(super) unix_ms: u64,
    /// …and on the scale of stick tables.
    pub(super) ticks: u32,
}

/// A reason for not using a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is not a state file")]
    Foreign,
    #[error("it is of version {0}, which this program does not know")]
    Version(u32),
    #[error("it is cut off after {0} bytes")]
    Short(u64),
    #[error("it is damaged at byte {0}")]
    Damaged(u64),
}

/// Writes frames.
pub(super) struct Writer<W> {
    out: W,
    frames: u64,
    /// The checksum of all frames, by which two files with the same content are known.
    digest: u32,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(mut out: W, header: &Header) -> io::Result<Writer<W>> {
        let bytes = header.encode();
        out.write_all(&bytes)?;
        Ok(Writer { out, frames: 0, digest: 0, bytes: bytes.len() as u64 })
    }

    /// Writes a frame. A body that is too large is left out: that of a table whose single entry is larger than this.
    pub(super) fn frame(&mut self, kind: u8, body: &[u8]) -> io::Result<()> {
        if body.len() > BODY_MAX {
            return Ok(());
        }
        self.frames += 1;
        self.put(kind, body)
    }

    /// Writes a frame and empties its body if that is full.
    pub(super) fn frame_if_full(&mut self, kind: u8, body: &mut Put) -> io::Result<()> {
        if body.0.len() >= BODY_FULL { self.rest(kind, body) } else { Ok(()) }
    }

    /// Writes a frame and empties its body, unless that is empty.
    pub(super) fn rest(&mut self, kind: u8, body: &mut Put) -> io::Result<()> {
        if body.0.is_empty() {
            return Ok(());
        }
        let written = self.frame(kind, &body.0);
        body.0.clear();
        written
    }

    fn put(&mut self, kind: u8, body: &[u8]) -> io::Result<()> {
        let head = head(kind, body.len());
        let sum = sum(&head, body);
        self.digest = self.digest.rotate_left(1) ^ sum;
        self.bytes += (head.len() + body.len() + 4) as u64;
        self.out.write_all(&head)?;
        self.out.write_all(body)?;
        self.out.write_all(&sum.to_le_bytes())
    }

    /// Writes the last frame. Returns the writer below, and a digest and the size of the file.
    pub(super) fn finish(mut self) -> io::Result<(W, u32, u64)> {
        self.put(END, &self.frames.to_le_bytes())?;
        self.out.flush()?;
        Ok((self.out, self.digest, self.bytes))
    }
}

fn head(kind: u8, length: usize) -> [u8; HEAD] {
    let [a, b, c, d] = (length as u32).to_le_bytes();
    [kind, a, b, c, d]
}

fn sum(head: &[u8], body: &[u8]) -> u32 {
    // The head's sum stands for it, so that the body need not be copied.
    crc32c(body) ^ crc32c(head).rotate_left(13)
}

impl Header {
    fn encode(&self) -> [u8; HEADER] {
        let mut put = Put::default();
        put.bytes(MAGIC);
        put.u32(VERSION);
        put.u64(self.started_ms);
        put.u64(self.unix_ms);
        put.u32(self.ticks);
        put.u32(crc32c(&put.0));
        let mut bytes = [0; HEADER];
        bytes.copy_from_slice(&put.0);
        bytes
    }

    /// Reads a header.
    pub(super) fn read(from: &mut impl Read) -> Result<Header, Fault> {
        let mut bytes = [0; HEADER];
        let got = fill(from, &mut bytes)?;
        let mut take = Take(&bytes[..got]);
        if take.some(MAGIC.len().min(got)) != Some(&MAGIC[..MAGIC.len().min(got)]) {
            return Err(Fault::Foreign);
        }
        let short = || Fault::Short(got as u64);
        let version = take.u32().ok_or_else(short)?;
        if version != VERSION {
            return Err(Fault::Version(version));
        }
        let started_ms = take.u64().ok_or_else(short)?;
        let unix_ms = take.u64().ok_or_else(short)?;
        let ticks = take.u32().ok_or_else(short)?;
        let sum = take.u32().ok_or_else(short)?;
        if sum != crc32c(&bytes[..HEADER - 4]) {
            return Err(Fault::Damaged(0));
        }
        Ok(Header { started_ms, unix_ms, ticks })
    }
}

/// Reads until the buffer is full or the input ends; returns the number of bytes.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match from.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

/// Reads frames one after the other.
struct Frames<R> {
    from: R,
    at: u64,
    frames: u64,
    body: Vec<u8>,
}

impl<R: Read> Frames<R> {
    /// Reads the next frame into `body`, and returns its kind; `None` after the last one.
    fn next(&mut self) -> Result<Option<u8>, Fault> {
        let mut head = [0; HEAD];
        let start = self.at;
        let got = fill(&mut self.from, &mut head)?;
        self.at += got as u64;
        if got < HEAD {
            return Err(Fault::Short(self.at));
        }
        let [kind, length @ ..] = head;
        let length = u32::from_le_bytes(length) as usize;
        if length > BODY_MAX {
            return Err(Fault::Damaged(start));
        }
        self.body.resize(length, 0);
        let got = fill(&mut self.from, &mut self.body)?;
        self.at += got as u64;
        let mut sum_read = [0; 4];
        let got_sum = fill(&mut self.from, &mut sum_read)?;
        self.at += got_sum as u64;
        if got + got_sum < length + 4 {
            return Err(Fault::Short(self.at));
        }
        if u32::from_le_bytes(sum_read) != sum(&head, &self.body) {
            return Err(Fault::Damaged(start));
        }
        if kind != END {
            self.frames += 1;
            return Ok(Some(kind));
        }
        let is_last = self.body == self.frames.to_le_bytes() && fill(&mut self.from, &mut [0])? == 0;
        if is_last { Ok(None) } else { Err(Fault::Damaged(start)) }
    }
}

/// Reads a file twice: first to see that it is whole, then to pass its frames on.
pub(super) fn read(mut from: impl Read + Seek, mut each: impl FnMut(&Header, u8, &[u8])) -> Result<Header, Fault> {
    let start = from.stream_position()?;
    let header = Header::read(&mut from)?;
    let mut frames = Frames { from: &mut from, at: HEADER as u64, frames: 0, body: Vec::new() };
    while frames.next()?.is_some() {}
    let body = std::mem::take(&mut frames.body);
    from.seek(SeekFrom::Start(start + HEADER as u64))?;
    let mut frames = Frames { from, at: HEADER as u64, frames: 0, body };
    while let Some(kind) = frames.next()? {
        each(&header, kind, &frames.body);
    }
    Ok(header)
}

/// A body while it is written.
#[derive(Default)]
pub(super) struct Put(pub(super) Vec<u8>);

impl Put {
    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends a length and bytes.
    pub(super) fn text(&mut self, text: &[u8]) {
        self.u32(text.len() as u32);
        self.bytes(text);
    }

    pub(super) fn words(&mut self, words: &[u32]) {
        words.iter().for_each(|word| self.u32(*word));
    }
}

/// A body while it is read; `None`: it is too short.
pub(super) struct Take<'a>(pub(super) &'a [u8]);

impl<'a> Take<'a> {
    pub(super) fn some(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.some(1).map(|bytes| bytes[0])
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.some(4)?.try_into().ok()?))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.some(8)?.try_into().ok()?))
    }

    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        self.some(length)
    }

    /// Reads a length and UTF-8.
    pub(super) fn name(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.text()?).ok()
    }

    /// Reads words into `out`.
    pub(super) fn words(&mut self, count: usize, out: &mut Vec<u32>) -> Option<()> {
        let (words, _) = self.some(count.checked_mul(4)?)?.as_chunks::<4>();
        out.clear();
        out.extend(words.iter().map(|word| u32::from_le_bytes(*word)));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    const HEADER_HERE: Header = Header { started_ms: 7, unix_ms: 1_700_000_000_000, ticks: u32::MAX };

    fn file(frames: &[(u8, &[u8])]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), &HEADER_HERE).expect("memory");
        frames.iter().for_each(|(kind, body)| writer.frame(*kind, body).expect("memory"));
        let (bytes, _, size) = writer.finish().expect("memory");
        assert_eq!(bytes.len() as u64, size);
        bytes
    }

    fn frames(bytes: &[u8]) -> Result<Vec<(u8, Vec<u8>)>, String> {
        let mut found = Vec::new();
        let header = read(Cursor::new(bytes), |_, kind, body| found.push((kind, body.to_vec())));
        assert!(header.is_ok() || found.is_empty(), "a part of a damaged file was used");
        header.map(|_| found).map_err(|fault| fault.to_string())
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        let large = vec![9; BODY_MAX];
        let all: [(u8, &[u8]); 4] = [(1, b"one"), (255, b""), (1, b"one"), (2, &large)];
        let found = frames(&file(&all)).expect("a whole file");
        assert!(found.iter().map(|(kind, body)| (*kind, &body[..])).eq(all));
        assert_eq!(Header::read(&mut &file(&[])[..]).expect("a header"), HEADER_HERE);
        assert_eq!(frames(&file(&[])).expect("a whole file"), []);
    }

    #[test]
    fn what_is_cut_or_changed_is_not_used() {
        let bytes = file(&[(1, b"one"), (2, b"two and more")]);
        for end in 0..bytes.len() {
            let said = frames(&bytes[..end]).expect_err("cut");
            assert!(said == format!("it is cut off after {end} bytes"), "{end}: {said}");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                frames(&bytes).expect_err("changed");
            }
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(frames(&longer).expect_err("longer").starts_with("it is damaged at byte"));
        assert_eq!(frames(b"# certificates from ACME").expect_err("another"), "it is not a state file");
        let mut later = bytes;
        later[8] = 9;
        assert_eq!(frames(&later).expect_err("later"), "it is of version 9, which this program does not know");
    }
}
