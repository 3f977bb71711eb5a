//! A reader with a buffer that keeps the current event whole: what is read from a source in parts whose length shows only
//! while they are read.
//!
//! When the buffer is full it doubles, so a length makes it no larger than twice the bytes that were received. After a large
//! event it becomes small again.

use std::io::{self, ErrorKind, Read};
use std::ops::Range;

/// The usual size of the buffer.
const BUFFER: usize = 256 << 10;
/// A buffer beyond this size is given back after the event that needed it.
pub const BUFFER_KEPT: usize = 2 << 20;

/// The window. Places are counted from the start of the event, which stays where it is when more is read.
pub struct Window<R> {
    source: R,
    buffer: Vec<u8>,
    /// The start of the current event.
    kept: usize,
    /// The next byte.
    at: usize,
    /// The end of what was read.
    filled: usize,
    /// The position in the source of the buffer's start.
    start: u64,
}

impl<R> std::fmt::Debug for Window<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {}", self.position())
    }
}

impl<R> Window<R> {
    /// Returns the window of a source that is at a position, given what was read from it and not used.
    pub fn behind(source: R, rest: Vec<u8>, position: u64) -> Window<R> {
        Window { source, kept: 0, at: 0, filled: rest.len(), buffer: rest, start: position }
    }

    /// Returns the source, and what was read from it and not used.
    pub fn into_rest(mut self) -> (R, Vec<u8>) {
        self.buffer.truncate(self.filled);
        self.buffer.drain(..self.at);
        (self.source, self.buffer)
    }

    /// Returns the position of the next byte in the source.
    #[inline]
    pub fn position(&self) -> u64 {
        self.start + self.at as u64
    }

    /// Returns the place of the next byte.
    #[inline]
    pub fn place(&self) -> usize {
        self.at - self.kept
    }

    /// Begins an event: what was read before is not needed any more.
    #[inline]
    pub fn begin(&mut self) {
        self.kept = self.at;
    }

    /// Returns the event, with what was read beyond it.
    #[inline]
    pub fn event(&self) -> &[u8] {
        &self.buffer[self.kept..self.filled]
    }

    /// Returns bytes of the event.
    #[inline]
    pub fn bytes(&self, places: Range<usize>) -> &[u8] {
        &self.event()[places]
    }

    /// Returns what was read and not taken.
    #[inline]
    pub fn ahead(&self) -> &[u8] {
        &self.buffer[self.at..self.filled]
    }

    /// Returns what was taken from a position on, which is not before the event.
    pub fn taken_from(&self, position: u64) -> &[u8] {
        &self.buffer[(position - self.start) as usize..self.at]
    }

    /// Takes bytes that were read.
    #[inline]
    pub fn take(&mut self, len: usize) {
        debug_assert!(len <= self.ahead().len());
        self.at += len;
    }

    /// Puts the last byte back.
    #[inline]
    pub fn put_back(&mut self) {
        self.at -= 1;
    }

    /// Goes back to a place.
    #[inline]
    pub fn go_to(&mut self, place: usize) {
        self.at = self.kept + place;
    }
}

impl<R: Read> Window<R> {
    /// Reads until so many bytes are ahead. Returns false if the source ends before.
    #[cold]
    pub fn fill(&mut self, len: usize) -> io::Result<bool> {
        if self.kept > 0 {
            self.buffer.copy_within(self.kept..self.filled, 0);
            self.start += self.kept as u64;
            (self.at, self.filled, self.kept) = (self.at - self.kept, self.filled - self.kept, 0);
            if self.buffer.len() > BUFFER_KEPT && self.filled <= BUFFER {
                self.buffer.truncate(BUFFER);
                self.buffer.shrink_to_fit();
            }
        }
        while self.filled - self.at < len {
            if self.read()? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads as much as there is, at least a byte unless the source ends.
    fn read(&mut self) -> io::Result<usize> {
        if self.filled == self.buffer.len() {
            self.buffer.resize(BUFFER.max(2 * self.filled), 0);
        }
        loop {
            match self.source.read(&mut self.buffer[self.filled..]) {
                Ok(count) => {
                    self.filled += count;
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether all that follows is zeros. Reads it, up to the first other byte.
    pub fn rest_is_zeros(&mut self) -> io::Result<bool> {
        while self.ahead().iter().all(|byte| *byte == 0) {
            self.start += self.filled as u64;
            (self.at, self.kept, self.filled) = (0, 0, 0);
            if self.read()? == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
