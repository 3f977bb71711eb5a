//! The bytes of a file as they arrive, with their checksum: lengths and strings in a [`Window`].

use std::io::Read;
use std::ops::Range;

use super::super::Text;
use super::super::crc64::Sum;
use super::super::encode::{ENCODED, INT_8, INT_16, INT_32, LEN_14, LEN_32, LEN_64, LZF};
use super::FaultKind;
use crate::window::Window;

/// A reader with its buffer and the checksum of what was read.
pub(super) struct Input<R> {
    window: Window<R>,
    /// The checksum of what comes before `summed`, a position in the file.
    sum: Sum,
    summed: u64,
    pub(super) checks: bool,
}

impl<R: Read> Input<R> {
    pub(super) fn new(source: R) -> Input<R> {
        Input { window: Window::behind(source, Vec::new(), 0), sum: Sum::default(), summed: 0, checks: true }
    }

    /// Returns the reader, and what was read from it and not used.
    pub(super) fn into_rest(self) -> (R, Vec<u8>) {
        self.window.into_rest()
    }

    /// Returns the position in the file.
    pub(super) fn offset(&self) -> u64 {
        self.window.position()
    }

    /// Begins an event: what was read before is not needed any more.
    #[inline]
    pub(super) fn keep(&mut self) {
        self.window.begin();
    }

    /// Returns the place within the event.
    #[inline]
    pub(super) fn place(&self) -> usize {
        self.window.place()
    }

    /// Returns bytes of the event.
    #[inline]
    pub(super) fn bytes(&self, places: Range<usize>) -> &[u8] {
        self.window.bytes(places)
    }

    /// Returns the checksum of everything up to here.
    pub(super) fn crc(&mut self) -> u64 {
        self.sum_up();
        self.sum.crc()
    }

    fn sum_up(&mut self) {
        if self.checks {
            self.sum.add(self.window.taken_from(self.summed));
        }
        self.summed = self.window.position();
    }

    /// Makes sure that as many bytes were read.
    #[inline]
    fn need(&mut self, len: usize) -> Result<(), FaultKind> {
        if self.window.ahead().len() >= len { Ok(()) } else { self.fill(len) }
    }

    #[cold]
    fn fill(&mut self, len: usize) -> Result<(), FaultKind> {
        // What was taken may leave the buffer.
        self.sum_up();
        if self.window.fill(len)? { Ok(()) } else { Err(FaultKind::Short) }
    }

    /// Returns the next byte without taking it.
    #[inline]
    pub(super) fn peek(&mut self) -> Result<u8, FaultKind> {
        self.need(1)?;
        Ok(self.window.ahead()[0])
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, FaultKind> {
        let byte = self.peek()?;
        self.window.take(1);
        Ok(byte)
    }

    #[inline]
    pub(super) fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], FaultKind> {
        self.need(LEN)?;
        let bytes = *self.window.ahead().first_chunk().expect("as many were read");
        self.window.take(LEN);
        Ok(bytes)
    }

    #[inline]
    pub(super) fn skip(&mut self, len: usize) -> Result<(), FaultKind> {
        self.need(len)?;
        self.window.take(len);
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
        // A length beyond the address space is beyond the end of the file, too.
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
