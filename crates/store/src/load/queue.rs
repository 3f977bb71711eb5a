//! Batches of keys on their way from the thread that reads a file to those that build the values.
//!
//! A batch has copies of the bytes of its keys, all of one database. Batches leave the queue in the order of the file. A
//! queue that is full makes the reader wait, so the memory of a load is bounded by [`QUEUED_BYTES`], one batch and the
//! batches that threads work on; empty batches return to the reader.

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
    /// The end of its name, of its value and of the times of the value's elements.
    ends: [usize; 3],
    offset: u64,
    expiry_ms: Option<i64>,
    idle_s: Option<u64>,
    frequency: Option<u8>,
    kind: u8,
    is_valkey: bool,
    is_sticky: bool,
    has_times: bool,
}

/// Keys of one database.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) db: u32,
    bytes: Vec<u8>,
    items: Vec<Item>,
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
        self.bytes.len() + size_of_val(&self.items[..])
    }

    /// Adds a copy of a key.
    pub(super) fn push(&mut self, key: &StoredKey<'_>) {
        let ends = [key.name, key.value.object, key.value.times.unwrap_or_default()].map(|part| {
            self.bytes.extend_from_slice(part);
            self.bytes.len()
        });
        self.items.push(Item {
            ends,
            offset: key.offset,
            expiry_ms: key.expiry_ms,
            idle_s: key.idle_s,
            frequency: key.frequency,
            kind: key.value.kind,
            is_valkey: key.value.is_valkey,
            is_sticky: key.is_sticky,
            has_times: key.value.times.is_some(),
        });
    }

    /// Returns its keys.
    pub(super) fn keys(&self) -> impl ExactSizeIterator<Item = StoredKey<'_>> {
        let mut start = 0;
        self.items.iter().map(move |item| {
            let [name, object, times] = item.ends;
            let name_start = std::mem::replace(&mut start, times);
            StoredKey {
                db: self.db.into(),
                name: &self.bytes[name_start..name],
                expiry_ms: item.expiry_ms,
                idle_s: item.idle_s,
                frequency: item.frequency,
                is_sticky: item.is_sticky,
                value: Stored {
                    kind: item.kind,
                    is_valkey: item.is_valkey,
                    object: &self.bytes[name..object],
                    times: item.has_times.then(|| &self.bytes[object..times]),
                },
                offset: item.offset,
            }
        })
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
