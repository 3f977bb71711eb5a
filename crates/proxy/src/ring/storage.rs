//! Messages in a circular area, and the places of readers.
//!
//! Positions count the bytes ever written; a position's byte is at its remainder in the area. Each message is preceded
//! by a byte, which HAProxy uses as a counter of readers and which is 0 here, and by its length; the byte of the next
//! message follows, so that the storage is never empty.

use super::area::Area;
use super::{READERS_MAX, Taken};

/// The state of a slot for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    /// The reader has not read yet, and holds no place.
    Waiting,
    /// The reader's next message.
    At(u64),
}

#[derive(Debug)]
pub(super) struct Storage {
    area: Area,
    /// The byte in front of the oldest message.
    head: u64,
    /// The end of the last byte.
    tail: u64,
    readers: Vec<Slot>,
}

impl Storage {
    pub(super) fn new(mut area: Area) -> Storage {
        area.bytes()[0] = 0;
        area.set_ends(0, 1);
        Storage { area, head: 0, tail: 1, readers: Vec::new() }
    }

    /// Appends a message of several parts, cut to `max_len` bytes; returns whether it fits.
    pub(super) fn write(&mut self, parts: &[&[u8]], max_len: usize) -> bool {
        let len = parts.iter().map(|part| part.len()).sum::<usize>().min(max_len);
        let (digits, digits_len) = encode(len as u64);
        let size = self.area.bytes().len() as u64;
        let needed = (digits_len + len + 1) as u64;
        if needed + 1 > size {
            return false;
        }
        // As in HAProxy, two bytes stay free, unless the message is alone.
        while self.tail - self.head > 1 && self.tail - self.head + needed + 2 > size {
            if self.readers.contains(&Slot::At(self.head)) {
                return false;
            }
            self.head = self.next(self.head);
        }
        let mut at = self.tail;
        let mut left = len;
        at = self.put(at, &digits[..digits_len]);
        for part in parts {
            let part = &part[..part.len().min(left)];
            at = self.put(at, part);
            left -= part.len();
        }
        self.tail = self.put(at, &[0]);
        self.area.set_ends(self.head % size, self.tail % size);
        true
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> u64 {
        let area = self.area.bytes();
        let start = (at % area.len() as u64) as usize;
        let first = bytes.len().min(area.len() - start);
        area[start..start + first].copy_from_slice(&bytes[..first]);
        area[..bytes.len() - first].copy_from_slice(&bytes[first..]);
        at + bytes.len() as u64
    }

    /// Returns the start and the length of the message whose first byte is at `at`.
    fn message(&mut self, at: u64) -> (u64, usize) {
        let area = self.area.bytes();
        let size = area.len() as u64;
        let (len, digits) = decode((1..).map(|offset| area[((at + offset) % size) as usize]));
        // What another process has written to the file of the ring leads nowhere else.
        let end = self.tail - 1;
        let start = (at + 1 + digits).min(end);
        (start, len.min(end - start) as usize)
    }

    fn next(&mut self, at: u64) -> u64 {
        let (start, len) = self.message(at);
        start + len as u64
    }

    pub(super) fn attach(&mut self) -> Option<usize> {
        if let Some(free) = self.readers.iter().position(|slot| *slot == Slot::Free) {
            self.readers[free] = Slot::Waiting;
            return Some(free);
        }
        if self.readers.len() == READERS_MAX {
            return None;
        }
        self.readers.push(Slot::Waiting);
        Some(self.readers.len() - 1)
    }

    pub(super) fn detach(&mut self, slot: usize) {
        self.readers[slot] = Slot::Free;
    }

    pub(super) fn has_news(&self, slot: usize) -> bool {
        match self.readers[slot] {
            Slot::At(at) => self.tail - at > 1,
            Slot::Waiting => self.tail - self.head > 1,
            Slot::Free => false,
        }
    }

    pub(super) fn read(&mut self, slot: usize, from_end: bool, mut take: impl FnMut(&[u8], &[u8]) -> Taken) {
        let mut at = match self.readers[slot] {
            Slot::At(at) => at,
            _ if from_end => self.tail - 1,
            _ => self.head,
        };
        while self.tail - at > 1 {
            let (start, len) = self.message(at);
            let area = self.area.bytes();
            let start_byte = (start % area.len() as u64) as usize;
            let first = len.min(area.len() - start_byte);
            let taken = take(&area[start_byte..start_byte + first], &area[..len - first]);
            if taken != Taken::Not {
                at = start + len as u64;
            }
            if taken != Taken::More {
                break;
            }
        }
        self.readers[slot] = Slot::At(at);
    }
}

/// Encodes a length as HAProxy does: 4 bits in the first byte if it is not below 240, then 7 in each byte.
fn encode(mut value: u64) -> ([u8; 10], usize) {
    let mut digits = [0; 10];
    let mut len = 0;
    let mut push = |digit: u8| {
        digits[len] = digit;
        len += 1;
    };
    if value >= 0xf0 {
        push(value as u8 | 0xf0);
        value = (value - 0xf0) >> 4;
        while value >= 0x80 {
            push(value as u8 | 0x80);
            value = (value - 0x80) >> 7;
        }
    }
    push(value as u8);
    (digits, len)
}

/// Returns a length and the number of its bytes.
fn decode(mut bytes: impl Iterator<Item = u8>) -> (u64, u64) {
    let mut next = || bytes.next().unwrap_or(0);
    let first = next();
    let (mut value, mut count) = (u64::from(first), 1);
    if first >= 0xf0 {
        let mut shift = 4;
        loop {
            let byte = next();
            count += 1;
            value = value.wrapping_add(u64::from(byte) << shift);
            shift += 7;
            if byte < 0x80 || shift > 56 {
                break;
            }
        }
    }
    (value, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_encoded_as_in_haproxy() {
        for (value, expected) in [
            (0, &[0][..]),
            (0xef, &[0xef]),
            (0xf0, &[0xf0, 0]),
            (0x8ef, &[0xff, 0x7f]),
            (0x8f0, &[0xf0, 0x80, 0]),
            (1 << 20, &[0xf0, 0xf1, 0xfe, 0x02]),
        ] {
            let (digits, len) = encode(value);
            assert_eq!(decode(digits.into_iter()), (value, len as u64));
            if value != 1 << 20 {
                assert_eq!(&digits[..len], expected);
            }
        }
        for value in (0..100_000).chain([u64::from(u32::MAX), 1 << 40]) {
            let (digits, len) = encode(value);
            assert_eq!(decode(digits.into_iter()), (value, len as u64));
        }
    }
}
