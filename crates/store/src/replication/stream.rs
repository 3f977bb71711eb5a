//! The bytes of a replication stream, from the start of the backlog, or from the position of the last replica, on.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::memory::{Kind, Memory, Outside};

/// The size of a block, by which the backlog may be longer than its parameter says.
const BLOCK: usize = 16 << 10;

/// Blocks of the stream.
pub(super) struct Stream {
    /// All but the last one are full.
    blocks: VecDeque<Vec<u8>>,
    /// The offset before the first byte, and that of the last one.
    start: u64,
    end: u64,
    /// Whether bytes are kept.
    is_kept: bool,
    memory: Arc<Memory>,
    counted: Outside,
}

impl Stream {
    pub(super) fn new(memory: Arc<Memory>) -> Stream {
        let counted = Outside::of(Kind::Apart);
        Stream { blocks: VecDeque::new(), start: 0, end: 0, is_kept: false, memory, counted }
    }

    /// Returns whether bytes are kept.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Returns the offset of the last byte.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Keeps the bytes behind this offset, unless bytes are kept already.
    pub(super) fn keep(&mut self, offset: u64) {
        if !self.is_kept {
            (self.start, self.end, self.is_kept) = (offset, offset, true);
        }
    }

    /// Lets what was kept so far come behind this offset, not behind 0.
    pub(super) fn shift(&mut self, offset: u64) {
        self.start += offset;
        self.end += offset;
    }

    /// Begins anew, at offset 0.
    pub(super) fn reset(&mut self) {
        self.clear();
        (self.start, self.end) = (0, 0);
    }

    /// Forgets all bytes.
    pub(super) fn clear(&mut self) {
        self.blocks = VecDeque::new();
        self.start = self.end;
        self.is_kept = false;
        self.count();
    }

    pub(super) fn append(&mut self, mut bytes: &[u8]) {
        self.end += bytes.len() as u64;
        if !self.is_kept {
            self.start = self.end;
            return;
        }
        while !bytes.is_empty() {
            let room = self.blocks.back().map_or(0, |last| BLOCK - last.len());
            if room == 0 {
                self.blocks.push_back(Vec::with_capacity(BLOCK));
                self.count();
                continue;
            }
            let (here, rest) = bytes.split_at(bytes.len().min(room));
            if let Some(last) = self.blocks.back_mut() {
                last.extend_from_slice(here);
            }
            bytes = rest;
        }
    }

    /// Forgets blocks that are neither of the backlog nor behind this position.
    pub(super) fn trim(&mut self, backlog_bytes: u64, position: Option<u64>) {
        let kept_from = self.end.saturating_sub(backlog_bytes).min(position.unwrap_or(u64::MAX));
        let before = self.blocks.len();
        while self.blocks.len() > 1 && self.start + BLOCK as u64 <= kept_from {
            self.blocks.pop_front();
            self.start += BLOCK as u64;
        }
        if self.blocks.len() != before {
            self.count();
        }
    }

    /// Returns whether the bytes behind this offset are there.
    pub(super) fn reaches(&self, offset: u64) -> bool {
        self.is_kept && (self.start..=self.end).contains(&offset)
    }

    /// Returns the offset of the first byte of the backlog, and the number of its bytes.
    pub(super) fn backlog(&self, backlog_bytes: u64) -> (u64, u64) {
        if !self.is_kept {
            return (0, 0);
        }
        let len = (self.end - self.start).min(backlog_bytes.max(BLOCK as u64));
        (self.end - len + 1, len)
    }

    /// Returns the number of bytes.
    pub(super) fn held(&self) -> u64 {
        if self.is_kept { self.end - self.start } else { 0 }
    }

    /// Appends the bytes behind a position to `out`, about so many at most. Returns their number; [`None`] if they are not
    /// there any more.
    pub(super) fn read(&self, position: u64, most: usize, out: &mut Vec<u8>) -> Option<usize> {
        if !self.reaches(position) {
            return None;
        }
        let behind = (position - self.start) as usize;
        let (mut block, mut at, mut count) = (behind / BLOCK, behind % BLOCK, 0);
        while count < most
            && let Some(bytes) = self.blocks.get(block)
        {
            let here = &bytes[at.min(bytes.len())..];
            let here = &here[..here.len().min(most - count)];
            out.extend_from_slice(here);
            count += here.len();
            (block, at) = (block + 1, 0);
        }
        Some(count)
    }

    fn count(&mut self) {
        self.counted.set(&self.memory, self.blocks.len() * BLOCK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_from_any_position_that_is_kept() {
        let mut stream = Stream::new(Arc::new(Memory::new()));
        stream.append(&[b'-'; 10]);
        assert!(!stream.reaches(10));
        stream.keep(10);
        let all: Vec<u8> = (0..3 * BLOCK + 700).map(|at| (at % 251) as u8).collect();
        for part in all.chunks(777) {
            stream.append(part);
        }
        let end = 10 + all.len() as u64;
        assert_eq!((stream.end(), stream.held()), (end, all.len() as u64));
        for at in [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 5, all.len() - 1, all.len()] {
            for most in [1, 100, BLOCK, usize::MAX] {
                let mut out = Vec::new();
                let count = stream.read(10 + at as u64, most, &mut out).expect("it is there");
                assert_eq!(count, out.len());
                assert!(count == most.min(all.len() - at) && out == all[at..at + count]);
            }
        }
        // A block is forgotten once the backlog does not reach into it, and no replica is in it.
        stream.trim(100, Some(10 + BLOCK as u64));
        assert!(!stream.reaches(10) && stream.reaches(10 + BLOCK as u64));
        stream.trim(BLOCK as u64, None);
        assert!(!stream.reaches(9 + 2 * BLOCK as u64) && stream.reaches(10 + 2 * BLOCK as u64));
        assert_eq!(stream.read(10, 1, &mut Vec::new()), None);
        assert_eq!(stream.read(end + 1, 1, &mut Vec::new()), None);
        assert_eq!(stream.backlog(700), (end - BLOCK as u64 + 1, BLOCK as u64));
        stream.clear();
        assert!(!stream.reaches(end) && stream.held() == 0);
    }
}
