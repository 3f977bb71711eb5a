//! The bytes of a file as they arrive.
//!
//! The buffer holds what was read and not yet dropped: from the start of the current event, so that its parts are one
//! slice each, to as far as the last read went. When it is full it doubles, so a length in the file makes it no larger
//! than twice the bytes that were received. After a large value it becomes small again.

use std::io::{ErrorKind, Read};
use std::ops::Range;

use super::super::Text;
use super::super::crc64::Sum;
use super::super::encode::{ENCODED, INT_8, INT_16, INT_32, LEN_14, LEN_32, LEN_64, LZF};
use super::FaultKind;

/// The usual size of the buffer.
const BUFFER: usize = 256 << 10;
/// A buffer beyond this size is given back after the event that needed it.
const BUFFER_KEPT: usize = 2 << 20;

/// A reader with its buffer.
pub(super) struct Input<R> {
    source: R,
    buffer: Vec<u8>,
    /// The start of the current event.
    kept: usize,
    /// The next byte.
    at: usize,
    /// The end of what was read.
    filled: usize,
    /// The position in the file of the buffer's start.
    start: u64,
    /// The checksum of what comes before `summed`.
    sum: Sum,
    summed: usize,
    pub(super) checks: bool,
}

impl<R: Read> Input<R> {
    pub(super) fn new(source: R) -> Input<R> {
        let (kept, at, filled, summed) = (0, 0, 0, 0);
        Input { source, buffer: Vec::new(), kept, at, filled, start: 0, sum: Sum::default(), summed, checks: true }
    }

    /// Returns the reader, and what was read from it and not used.
    pub(super) fn into_rest(mut self) -> (R, Vec<u8>) {
        self.buffer.truncate(self.filled);
        self.buffer.drain(..self.at);
        (self.source, self.buffer)
    }

    /// Returns the position in the file.
    pub(super) fn offset(&self) -> u64 {
        self.start + self.at as u64
    }

    /// Begins an event: what was read before is not needed any more.
    #[inline]
    pub(super) fn keep(&mut self) {
        self.kept = self.at;
    }

    /// Returns the place within the event.
    #[inline]
    pub(super) fn place(&self) -> usize {
        self.at - self.kept
    }

    /// Returns bytes of the event.
    #[inline]
    pub(super) fn bytes(&self, places: Range<usize>) -> &[u8] {
        &self.buffer[self.kept..][places]
    }

    /// Returns the checksum of everything up to here.
    pub(super) fn crc(&mut self) -> u64 {
        self.sum_up();
        self.sum.crc()
    }

    fn sum_up(&mut self) {
        if self.checks {
            self.sum.add(&self.buffer[self.summed..self.at]);
        }
        self.summed = self.at;
    }

    /// Makes sure that as many bytes were read.
    #[inline]
    fn need(&mut self, len: usize) -> Result<(), FaultKind> {
        if self.filled - self.at >= len { Ok(()) } else { self.fill(len) }
    }

    #[cold]
    fn fill(&mut self, len: usize) -> Result<(), FaultKind> {
        self.sum_up();
        if self.kept > 0 {
            self.buffer.copy_within(self.kept..self.filled, 0);
            self.start += self.kept as u64;
            (self.at, self.filled, self.summed) =
                (self.at - self.kept, self.filled - self.kept, self.summed - self.kept);
            self.kept = 0;
            if self.buffer.len() > BUFFER_KEPT && self.filled <= BUFFER {
                self.buffer.truncate(BUFFER);
                self.buffer.shrink_to_fit();
            }
        }
        while self.filled - self.at < len {
            if self.filled == self.buffer.len() {
                self.buffer.resize(BUFFER.max(2 * self.filled), 0);
            }
            match self.source.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Err(FaultKind::Short),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns the next byte without taking it.
    #[inline]
    pub(super) fn peek(&mut self) -> Result<u8, FaultKind> {
        self.need(1)?;
        Ok(self.buffer[self.at])
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, FaultKind> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    pub(super) fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], FaultKind> {
        self.need(LEN)?;
        let bytes = *self.buffer[self.at..].first_chunk().expect("as many were read");
        self.at += LEN;
        Ok(bytes)
    }

    #[inline]
    pub(super) fn skip(&mut self, len: usize) -> Result<(), FaultKind> {
        self.need(len)?;
        self.at += len;
        Ok(())
    }

    /// Reads a length, or the encoding of a string.
    #[inline]
    fn length_or_encoding(&mut self) -> Result<Result<u64, u8>, FaultKind> {
        let first = self.byte()?;
        Ok(Ok(match (first & ENCODED, first) {
            (0, _) => u64::from(first),
            (LEN_14, _) => u64::from(u16::from_be_bytes([first & !ENCODED, self.byte()?])),
            (ENCODED, _) => return Ok(Err(first)),
            (_, LEN_32) => u64::from(u32::from_be_bytes(self.array()?)),
            (_, LEN_64) => u64::from_be_bytes(self.array()?),
            _ => return Err(FaultKind::Length(first)),
        }))
    }

    /// Reads a length, or a number that is written like one.
    #[inline]
    pub(super) fn length(&mut self) -> Result<u64, FaultKind> {
        self.length_or_encoding()?.map_err(FaultKind::Length)
    }

    /// Reads over as many bytes as the length before them tells.
    #[inline]
    fn skip_counted(&mut self, len: u64) -> Result<(), FaultKind> {
        // What does not fit into memory is not in the file either.
        self.skip(usize::try_from(len).map_err(|_| FaultKind::Short)?)
    }

    /// Reads over a string.
    #[inline]
    pub(super) fn skip_string(&mut self) -> Result<(), FaultKind> {
        match self.length_or_encoding()? {
            Ok(len) => self.skip_counted(len),
            Err(INT_8) => self.skip(1),
            Err(INT_16) => self.skip(2),
            Err(INT_32) => self.skip(4),
            Err(LZF) => {
                let packed = self.length()?;
                self.length()?;
                self.skip_counted(packed)
            }
            Err(other) => Err(FaultKind::Encoding(other & !ENCODED)),
        }
    }

    /// Reads a string.
    pub(super) fn string(&mut self) -> Result<Vec<u8>, FaultKind> {
        let mut string = Vec::new();
        self.string_into(&mut string)?;
        Ok(string)
    }

    /// Reads a string into a buffer, whose content it replaces.
    #[inline]
    pub(super) fn string_into(&mut self, into: &mut Vec<u8>) -> Result<(), FaultKind> {
        let start = self.place();
        self.skip_string()?;
        into.clear();
        match super::super::Reader(self.bytes(start..self.place())).string() {
            Ok(Text::Bytes(bytes)) => into.extend_from_slice(bytes),
            Ok(text) => *into = text.into_bytes(),
            Err(_) => return Err(FaultKind::Compressed),
        }
        Ok(())
    }
}
