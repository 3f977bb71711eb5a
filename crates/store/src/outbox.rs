//! Messages queued for the owner of a connection, which sends them.
//!
//! They are stored in blocks, as in Redis: the queue takes hardly more memory than it has bytes, and nothing is copied
//! as it grows. A block is filled to its end, so a message may be spread over several.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::memory::{Account, Share};

/// The size of a block; a message longer than the rest of one block plus another gets a block of its own size.
const BLOCK: usize = 16 << 10;

/// The bytes that a replica gets at a time.
const REPLICA_SHARE: usize = 256 << 10;
/// The size of Redis's reply buffer, which is not counted towards any limit.
pub(crate) const UNCOUNTED: usize = 16 << 10;

/// A capacity that an emptied outbox keeps.
const KEPT_CAPACITY: usize = 4096;

/// Encoded messages queued for the owner of a connection, which sends them.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Whether it has messages; the owner checks it after each command.
    filled: AtomicBool,
    /// Whether messages are RESP3 pushes.
    pushes: AtomicBool,
    /// Bytes that the owner has taken and not sent yet; they count towards the limit.
    unsent: AtomicUsize,
    inside: Mutex<Inside>,
    /// What is sent behind the messages, if the client is a replica.
    source: OnceLock<Source>,
}

/// Moves about so many bytes to the end of a buffer; returns whether there are more.
type Read = dyn Fn(usize, &mut Vec<u8>) -> bool + Send + Sync;

struct Source(Box<Read>);

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Source")
    }
}

#[derive(Debug, Default)]
struct Inside {
    /// The blocks; only the last one has room left.
    blocks: VecDeque<Vec<u8>>,
    /// Bytes in all blocks.
    len: usize,
    /// The sum of the blocks' capacities.
    room: usize,
    /// The time from which on the soft limit is exceeded.
    over_since: Option<Instant>,
    /// The share of the blocks in the client's account.
    share: Share,
    /// Whether the client reads too slowly and is being closed: further messages are dropped.
    given_up: bool,
}

/// The effect of a message on an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// The owner has been woken for earlier messages already.
    More,
    /// The caller has to wake the owner.
    First,
    /// The client has too many unread messages.
    TooMuch,
}

impl Outbox {
    /// Returns the outbox of a client, whose account includes the queued messages.
    pub(crate) fn of(account: &Arc<Account>) -> Outbox {
        let inside = Inside { share: Share::of(account, 0), ..Inside::default() };
        Outbox { inside: Mutex::new(inside), ..Outbox::default() }
    }

    /// Returns whether a message waits.
    #[inline]
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Chooses between RESP3's pushes and RESP2's arrays.
    pub(crate) fn set_pushes(&self, pushes: bool) {
        self.pushes.store(pushes, Ordering::Relaxed);
    }

    /// Drops the queued and all further messages: the client is being closed.
    pub(crate) fn give_up(&self) {
        let mut inside = self.inside.lock();
        inside.given_up = true;
        inside.clear();
    }

    /// Puts messages that were moved out before all others.
    pub(crate) fn put_back(&self, messages: Vec<u8>) {
        let mut inside = self.inside.lock();
        if inside.given_up || messages.is_empty() {
            return;
        }
        inside.len += messages.len();
        inside.room += messages.capacity();
        let moved = messages.len();
        inside.blocks.push_front(messages);
        let _ =
            self.unsent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |unsent| Some(unsent.saturating_sub(moved)));
        inside.count();
        self.filled.store(true, Ordering::Release);
    }

    /// Moves all messages to the end of `output`.
    pub(crate) fn drain(&self, output: &mut Vec<u8>) {
        self.drain_some(usize::MAX, output);
    }

    /// Lets what a replica is to get follow the messages: `read` moves about so many bytes to the end of a buffer, and
    /// returns whether there are more.
    pub(crate) fn set_source(&self, read: impl Fn(usize, &mut Vec<u8>) -> bool + Send + Sync + 'static) {
        // A client becomes a replica once.
        let _ = self.source.set(Source(Box::new(read)));
    }

    /// Records that the replica is to get something. Returns whether the owner has to be woken.
    pub(crate) fn fill(&self) -> bool {
        !self.filled.swap(true, Ordering::AcqRel)
    }

    /// Moves messages to the end of `output`, at least `most` bytes if available; if some remain, it stays filled.
    pub(crate) fn drain_some(&self, most: usize, output: &mut Vec<u8>) {
        let mut inside = self.inside.lock();
        let mut moved = 0;
        while moved < most
            && let Some(block) = inside.blocks.pop_front()
        {
            inside.room -= block.capacity();
            if output.is_empty() && block.len() > BLOCK {
                moved += block.len();
                *output = block;
                continue;
            }
            if moved == 0 {
                output.reserve(inside.len.min(most.saturating_add(BLOCK)));
            }
            moved += block.len();
            output.extend_from_slice(&block);
            if inside.blocks.is_empty() && block.capacity() <= KEPT_CAPACITY {
                inside.keep(block);
                break;
            }
        }
        inside.len -= moved;
        self.unsent.fetch_add(moved, Ordering::Relaxed);
        if inside.len == 0 {
            self.filled.store(false, Ordering::Release);
        }
        inside.count();
        drop(inside);
        if let Some(Source(read)) = self.source.get() {
            // What comes after this read fills it again.
            if read(most.min(REPLICA_SHARE), output) {
                self.filled.store(true, Ordering::Release);
            }
        }
    }

    /// Records that `unsent` bytes of the owner's output have not been sent.
    pub(crate) fn left(&self, unsent: usize) {
        self.unsent.fetch_min(unsent, Ordering::Relaxed);
    }

    /// Returns the number of queued bytes.
    pub(crate) fn len(&self) -> usize {
        self.inside.lock().len
    }

    /// Returns whether the soft limit has been exceeded for too long, even without further messages.
    pub(crate) fn is_overdue(&self, limit: &OutputLimit) -> bool {
        if !self.is_filled() {
            return false;
        }
        let mut inside = self.inside.lock();
        let is_overdue = inside.exceeds(limit, self.unsent.load(Ordering::Relaxed));
        inside.given_up |= is_overdue;
        is_overdue
    }

    /// Returns whether the client is being closed because it had too many unread messages.
    pub(crate) fn is_given_up(&self) -> bool {
        self.inside.lock().given_up
    }

    /// Returns the type byte of messages: pushes or arrays.
    pub(crate) fn kind(&self) -> u8 {
        if self.pushes.load(Ordering::Relaxed) { b'>' } else { b'*' }
    }

    /// Queues a message; `kind` is its first byte, unless `frame` has it.
    pub(crate) fn put(&self, kind: Option<u8>, frame: &[u8], limit: &OutputLimit) -> Put {
        let mut inside = self.inside.lock();
        if inside.given_up {
            return Put::More;
        }
        inside.extend(kind.as_slice());
        inside.extend(frame);
        if inside.exceeds(limit, self.unsent.load(Ordering::Relaxed)) {
            inside.given_up = true;
            inside.clear();
            return Put::TooMuch;
        }
        inside.count();
        match self.filled.swap(true, Ordering::AcqRel) {
            true => Put::More,
            false => Put::First,
        }
    }
}

impl Inside {
    /// Appends bytes.
    fn extend(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len();
        if let Some(last) = self.blocks.back_mut() {
            let before = last.capacity();
            let left = before - last.len();
            if left < bytes.len() && before < BLOCK {
                // A small block doubles up to the size of a full one.
                let wanted = (last.len() + bytes.len()).max(2 * before).min(BLOCK);
                last.reserve_exact(wanted - last.len());
            }
            let (here, rest) = bytes.split_at(bytes.len().min(last.capacity() - last.len()));
            last.extend_from_slice(here);
            self.room += last.capacity() - before;
            bytes = rest;
        }
        if !bytes.is_empty() {
            let capacity = if self.blocks.is_empty() { bytes.len() } else { bytes.len().max(BLOCK) };
            let mut block = Vec::with_capacity(capacity);
            block.extend_from_slice(bytes);
            self.room += block.capacity();
            self.blocks.push_back(block);
        }
    }

    /// Keeps an empty block for later.
    fn keep(&mut self, mut block: Vec<u8>) {
        block.clear();
        self.room += block.capacity();
        self.blocks.push_back(block);
    }

    fn clear(&mut self) {
        (self.blocks, self.len, self.room) = (VecDeque::new(), 0, 0);
        self.count();
    }

    /// Updates the account when the size of the blocks has changed.
    fn count(&mut self) {
        self.share.set_own(self.room);
    }

    fn exceeds(&mut self, limit: &OutputLimit, unsent: usize) -> bool {
        let waiting = (self.len + unsent) as u64;
        if limit.soft > 0 && waiting >= limit.soft {
            let since = *self.over_since.get_or_insert_with(Instant::now);
            if since.elapsed() > Duration::from_secs(limit.soft_s) {
                return true;
            }
        } else {
            self.over_since = None;
        }
        limit.hard > 0 && waiting >= limit.hard
    }
}

/// A class's row of `client-output-buffer-limit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimit {
    /// The number of bytes at which a client is closed immediately; 0: no limit.
    pub hard: u64,
    /// The number of bytes that a client may exceed for at most `soft_s`; 0: no limit.
    pub soft: u64,
    /// The time limit for `soft`, in seconds.
    pub soft_s: u64,
}

impl OutputLimit {
    /// Redis's default for subscribers.
    pub(crate) const OF_SUBSCRIBERS: OutputLimit = OutputLimit { hard: 32 << 20, soft: 8 << 20, soft_s: 60 };

    /// Returns whether a client with this many bytes of replies is closed immediately.
    pub(crate) fn is_passed_by(&self, replies: usize) -> bool {
        self.hard > 0 && replies as u64 > self.hard.saturating_add(UNCOUNTED as u64)
    }

    /// Returns whether this many bytes of replies exceed the soft limit.
    pub(crate) fn is_nearly_passed_by(&self, replies: usize) -> bool {
        self.soft > 0 && replies as u64 > self.soft.saturating_add(UNCOUNTED as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    const NO_LIMIT: OutputLimit = OutputLimit { hard: 0, soft: 0, soft_s: 0 };

    #[test]
    fn messages_of_every_size_leave_in_order_in_pieces_or_at_once() {
        for most in [1, 100, BLOCK, 3 * BLOCK, usize::MAX] {
            let memory = Arc::new(Memory::new());
            let account = Account::new(&memory);
            let outbox = Outbox::of(&account);
            let mut all = Vec::new();
            let mut output = b"a reply".to_vec();
            let mut left = 0;
            for number in 0..400_usize {
                let size = [1, 10, 3000, 40, BLOCK - 1, BLOCK, BLOCK + 1, 100_000][number % 8];
                let frame: Vec<u8> = (0..size).map(|at| (at * 7 + number) as u8).collect();
                let kind = (number % 3 == 0).then_some(b'>');
                outbox.put(kind, &frame, &NO_LIMIT);
                all.extend(kind);
                all.extend(&frame);
                left += frame.len() + usize::from(kind.is_some());
                assert_eq!(outbox.len(), left);
                assert!(account.bytes() <= left + left / 8 + 2 * BLOCK, "{} for {left}", account.bytes());
                if number % 50 == 49 {
                    outbox.drain_some(most, &mut output);
                    left = outbox.len();
                    assert_eq!(outbox.is_filled(), left > 0);
                    assert_eq!(output.len() - 7 + left, all.len());
                }
            }
            outbox.drain(&mut output);
            assert!(output[7..] == all[..], "{most}");
            assert!(!outbox.is_filled());
            assert!(account.bytes() <= KEPT_CAPACITY, "{}", account.bytes());
        }
    }

    #[test]
    fn a_small_block_is_kept() {
        let outbox = Outbox::default();
        let mut output = Vec::new();
        for _ in 0..3 {
            outbox.put(Some(b'*'), b"message", &NO_LIMIT);
            outbox.drain(&mut output);
            assert_eq!(outbox.inside.lock().blocks.len(), 1);
        }
        assert_eq!(output, b"*message*message*message");
        outbox.give_up();
        assert_eq!(outbox.put(None, b"message", &NO_LIMIT), Put::More);
        assert_eq!((outbox.len(), outbox.inside.lock().blocks.len()), (0, 0));
    }
}
