//! Batches of keys on their way from the thread that reads a file to those that build the values.
//!
//! A batch has copies of the bytes of its keys, all of one database; a key without an expiry, and without anything else but
//! a value, adds 24 bytes to its own. Batches leave the queue in the order of the file. A queue that is full makes the
//! reader wait, so the memory of a load is bounded by [`QUEUED_BYTES`], one batch and the batches that threads work on;
//! empty batches return to the reader.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};
use sluicegate_data::rdb::file::{Stored, StoredKey};

/// A batch is complete at this size.
const BATCH_BYTES: usize = 512 << 10;
/// A batch is complete with this number of keys.
const BATCH_KEYS: usize = 16 << 10;
/// The bytes of batches from which on the reader waits.
const QUEUED_BYTES: usize = 16 << 20;
/// The size up to which the buffers of a batch are kept.
const KEPT_BYTES: usize = 2 * BATCH_BYTES;

/// A key of a batch: what a [`StoredKey`] says, with places among the batch's bytes.
struct Item {
    /// The end of its value.
    end: usize,
    name_len: u32,
    /// The place of what few keys have; [`PLAIN`] for none of it.
    more: u32,
    /// The position in the file, with the type of the value in its upper bits.
    offset_and_kind: u64,
}

/// A key without anything but a value.
const PLAIN: u32 = u32::MAX;
/// The bits of a position in a file.
const OFFSET_BITS: u32 = 56;

/// What few keys have.
struct More {
    expiry_ms: Option<i64>,
    idle_s: Option<u64>,
    frequency: Option<u8>,
    is_sticky: bool,
    /// The times of the value's elements.
    times: Option<Vec<u8>>,
}

/// Keys of one database.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) db: u32,
    /// The number of keys of its database in the whole file, as the file says; 0: unknown.
    pub(super) expected: u64,
    is_valkey: bool,
    bytes: Vec<u8>,
    items: Vec<Item>,
    more: Vec<More>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns whether it should be passed on.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES || self.items.len() >= BATCH_KEYS
    }

    fn size(&self) -> usize {
        let times: usize = self.more.iter().filter_map(|more| Some(more.times.as_ref()?.len())).sum();
        self.bytes.len() + size_of_val(&self.items[..]) + size_of_val(&self.more[..]) + times
    }

    /// Adds a copy of a key, whose name is at most 4 GiB long.
    #[inline]
    pub(super) fn push(&mut self, key: &StoredKey<'_>) {
        let StoredKey { expiry_ms, idle_s, frequency, is_sticky, .. } = *key;
        let is_plain = expiry_ms.is_none() && idle_s.is_none() && frequency.is_none() && !is_sticky;
        let more = match key.value.times {
            None if is_plain => PLAIN,
            times => {
                let times = times.map(<[u8]>::to_vec);
                self.more.push(More { expiry_ms, idle_s, frequency, is_sticky, times });
                self.more.len() as u32 - 1
            }
        };
        self.bytes.extend_from_slice(key.name);
        self.bytes.extend_from_slice(key.value.object);
        self.is_valkey = key.value.is_valkey;
        self.items.push(Item {
            end: self.bytes.len(),
            name_len: key.name.len() as u32,
            more,
            offset_and_kind: key.offset & ((1 << OFFSET_BITS) - 1) | u64::from(key.value.kind) << OFFSET_BITS,
        });
    }

    /// Returns the number of its keys.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns one of its keys.
    #[inline]
    pub(super) fn key(&self, index: usize) -> StoredKey<'_> {
        let item = &self.items[index];
        let start = index.checked_sub(1).map_or(0, |before| self.items[before].end);
        let (name, object) = self.bytes[start..item.end].split_at(item.name_len as usize);
        let more = self.more.get(item.more as usize);
        StoredKey {
            db: self.db.into(),
            name,
            expiry_ms: more.and_then(|more| more.expiry_ms),
            idle_s: more.and_then(|more| more.idle_s),
            frequency: more.and_then(|more| more.frequency),
            is_sticky: more.is_some_and(|more| more.is_sticky),
            value: Stored {
                kind: (item.offset_and_kind >> OFFSET_BITS) as u8,
                is_valkey: self.is_valkey,
                object,
                times: more.and_then(|more| more.times.as_deref()),
            },
            offset: item.offset_and_kind & ((1 << OFFSET_BITS) - 1),
        }
    }
}

#[derive(Default)]
struct State {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// Empty batches with their buffers.
    free: Vec<Batch>,
    /// Whether no batch is added any more.
    is_closed: bool,
}

/// Batches in the order of the file.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// For threads that wait for a batch.
    added: Condvar,
    /// For the reader that waits for room.
    taken: Condvar,
}

impl Queue {
    /// Adds a batch, once there is room. Returns an empty one; [`None`] if the queue was closed: the batch is dropped.
    pub(super) fn push(&self, batch: Batch) -> Option<Batch> {
        let mut state = self.state.lock();
        while state.bytes > QUEUED_BYTES && !state.is_closed {
            self.taken.wait(&mut state);
        }
        if state.is_closed {
            return None;
        }
        state.bytes += batch.size();
        state.batches.push_back(batch);
        self.added.notify_one();
        Some(state.free.pop().unwrap_or_default())
    }

    /// Takes the next batch, once there is one; [`None`] if no more will come. `used` is the one before.
    pub(super) fn pop(&self, used: Option<Batch>) -> Option<Batch> {
        let used = used.filter(|used| used.bytes.capacity() <= KEPT_BYTES).map(|mut used| {
            used.bytes.clear();
            used.items.clear();
            used.more.clear();
            used
        });
        let mut state = self.state.lock();
        state.free.extend(used);
        loop {
            if let Some(batch) = state.batches.pop_front() {
                state.bytes -= batch.size();
                self.taken.notify_one();
                return Some(batch);
            }
            if state.is_closed {
                return None;
            }
            self.added.wait(&mut state);
        }
    }

    /// Ends the queue: no batch is added any more, and `drops` those that nobody has taken.
    pub(super) fn close(&self, drops: bool) {
        let mut state = self.state.lock();
        state.is_closed = true;
        if drops {
            state.batches.clear();
            state.bytes = 0;
        }
        self.added.notify_all();
        self.taken.notify_all();
    }
}
