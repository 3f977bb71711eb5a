//! Entries of a stripe for a [snapshot](crate::snapshot): the pass that saves them, and the old values of those that are
//! changed before it comes.
//!
//! An old value is copied in its serialised form if it is small. A large one is moved here by the command that removes
//! or replaces it, a long string by reference. What is moved is not in the sum of the stripe's bytes any more: eviction
//! could not free it.

use std::sync::atomic::Ordering;

use sluicegate_data::rdb::file::{Chunk, KeyHead, Usage, Written};
use sluicegate_data::table::Slot;
use sluicegate_data::value::{Entry, Garbage, SHARED_MIN, Value};

use super::Stripe;
use crate::snapshot::{Form, Snapshots};

/// The largest value that is copied when a command removes it, in bytes and in elements; larger ones are moved.
const COPIED_BYTES: usize = 64 << 10;
const COPIED_ELEMENTS: usize = 2_000;

/// Old values of a stripe that the pass has not taken yet.
pub(crate) struct Images {
    form: Form,
    /// Copied values.
    chunk: Chunk,
    /// The number of copied keys.
    keys: u64,
    /// Moved values.
    moved: Vec<Moved>,
}

/// A value that was moved out of its entry.
struct Moved {
    key: Box<[u8]>,
    expiry_ms: Option<i64>,
    usage: Usage,
    is_sticky: bool,
    value: Value<'static>,
    bytes: usize,
}

impl Images {
    /// Returns the bytes that wait here.
    fn bytes(&self) -> usize {
        self.chunk.bytes().len() + self.moved.iter().map(|moved| moved.bytes).sum::<usize>()
    }

    /// Frees the values.
    pub(crate) fn discard(self, snapshots: &Snapshots) {
        snapshots.waiting.fetch_sub(self.bytes() as i64, Ordering::Relaxed);
    }

    /// Passes the copied values, with their number, and the moved ones to who writes them.
    pub(crate) fn write(
        mut self,
        snapshots: &Snapshots,
        copied: impl FnOnce(&Chunk, u64),
        mut moved: impl FnMut(KeyHead<'_>, Written<'_>),
    ) {
        snapshots.waiting.fetch_sub(self.bytes() as i64, Ordering::Relaxed);
        copied(&self.chunk, self.keys);
        for Moved { key, expiry_ms, usage, is_sticky, value, .. } in self.moved.drain(..) {
            moved(KeyHead { name: &key, expiry_ms, usage, is_sticky }, Written::of(&value));
        }
    }
}

/// Returns an entry without its value.
pub(crate) fn head_of(entry: &Entry, form: Form) -> KeyHead<'_> {
    let usage = form.accesses.usage(entry);
    KeyHead { name: entry.key(), expiry_ms: entry.expiry(), usage, is_sticky: entry.sticky() }
}

/// Appends an entry to a chunk. Returns whether it is there: an entry whose elements have all expired is not.
fn write(chunk: &mut Chunk, entry: &Entry, form: Form) -> bool {
    let head = head_of(entry, form);
    match (entry.string(), entry.object()) {
        (Some(view), _) => chunk.key(head, Written::String(view)),
        (None, Some(object)) => chunk.key(head, Written::Object(&object)),
        (None, None) => false,
    }
}

/// Returns whether a value takes so long to be written that its key is held meanwhile, and not its stripe locked.
pub(crate) fn is_large(entry: &Entry) -> bool {
    entry.object().is_some() && !is_small(entry)
}

/// Returns whether a value is copied rather than moved.
fn is_small(entry: &Entry) -> bool {
    entry.outside_bytes() <= COPIED_BYTES && entry.object().is_none_or(|object| object.len() <= COPIED_ELEMENTS)
}

/// Keeps the old value of an unsaved entry that is about to be edited.
#[cold]
pub(super) fn keep(images: &mut Option<Box<Images>>, snapshots: &Snapshots, entry: &Entry) {
    entry.set_parity(snapshots.parity());
    let Some(form) = snapshots.form() else { return };
    let images = images.get_or_insert_with(|| Images::new(form));
    let before = images.bytes_copied();
    snapshots.kept.fetch_add(1, Ordering::Relaxed);
    match entry.shared() {
        // Whoever edits it finds it shared, and copies it.
        Some(bytes) => {
            let value = Value::Shared { bytes, raw: false };
            images.push(entry, value, 0);
        }
        None => images.keys += u64::from(write(&mut images.chunk, entry, form)),
    }
    snapshots.waiting.fetch_add((images.bytes_copied() - before) as i64, Ordering::Relaxed);
}

/// Keeps the old value of an unsaved entry that is about to be removed, unless it is large: then it stays unsaved, and
/// [`move_out`] takes it.
#[cold]
pub(super) fn keep_if_small(images: &mut Option<Box<Images>>, snapshots: &Snapshots, entry: &Entry) {
    if is_small(entry) || snapshots.form().is_none() {
        keep(images, snapshots, entry);
    }
}

impl Images {
    fn new(form: Form) -> Box<Images> {
        Box::new(Images { form, chunk: Chunk::new(form.settings), keys: 0, moved: Vec::new() })
    }

    fn bytes_copied(&self) -> usize {
        self.chunk.bytes().len()
    }

    fn push(&mut self, entry: &Entry, value: Value<'static>, bytes: usize) {
        let (expiry_ms, usage) = (entry.expiry(), self.form.accesses.usage(entry));
        let key = entry.key().into();
        self.moved.push(Moved { key, expiry_ms, usage, is_sticky: entry.sticky(), value, bytes });
    }
}

impl Stripe {
    /// Takes over the value of an unsaved entry that has left the table.
    #[cold]
    pub(super) fn move_out(&mut self, entry: Entry) -> Option<Garbage> {
        let Some(form) = self.snapshots.form() else { return entry.free(&mut self.slab) };
        let images = self.images.get_or_insert_with(|| Images::new(form));
        let bytes = entry.outside_bytes() + entry.key().len();
        self.snapshots.kept.fetch_add(1, Ordering::Relaxed);
        self.snapshots.moved.fetch_add(1, Ordering::Relaxed);
        self.snapshots.waiting.fetch_add(bytes as i64, Ordering::Relaxed);
        let place = images.moved.len();
        // The head is read before the entry is taken apart.
        images.push(&entry, Value::Int(0), bytes);
        images.moved[place].value = entry.into_value(&mut self.slab);
        None
    }

    /// Takes the old values that wait for the pass.
    pub(crate) fn take_images(&mut self) -> Option<Box<Images>> {
        self.images.take()
    }

    /// Saves the unsaved entries from this place in SCAN's order on, until they have about this many bytes together or
    /// `segments` parts of the table were visited; appends them to the chunk, if there is one. Large ones stay unsaved,
    /// and their names are added to `large`, perhaps more than once. Returns the place to go on from, or [`None`] at the
    /// end of the stripe.
    pub(crate) fn save(
        &mut self,
        mut from: u64,
        mut into: Option<(&mut Chunk, Form)>,
        (bytes, segments): (usize, usize),
        keys: &mut u64,
        large: &mut Vec<Box<[u8]>>,
    ) -> Option<u64> {
        let parity = self.snapshots.parity();
        // What is compressed takes time by its length before.
        let mut left = bytes;
        for _ in 0..segments {
            let mut is_full = false;
            let next = self.table.visit(from, false, |entry| {
                if entry.parity() == parity {
                    return;
                }
                if let Some((chunk, form)) = &mut into {
                    if is_large(entry) {
                        large.push(entry.key().into());
                        return;
                    }
                    if left == 0 {
                        is_full = true;
                        return;
                    }
                    left = left.saturating_sub(entry.block_bytes() + entry.outside_bytes());
                    *keys += u64::from(write(chunk, entry, *form));
                }
                entry.set_parity(parity);
            });
            if is_full {
                // The rest of the segment is still unsaved.
                return Some(from);
            }
            from = next?;
            if !large.is_empty() {
                break;
            }
        }
        Some(from)
    }

    /// Returns whether the string at a slot is one that is copied by an edit, because readers or a snapshot share it,
    /// and the bytes that are moved when it is extended to this length.
    pub(crate) fn moved_by_edit(&self, slot: Slot, len: usize) -> usize {
        let entry = self.table.entry(slot);
        match entry.string() {
            Some(view) if view.len() >= SHARED_MIN && self.snapshots.misses(entry) => view.len(),
            _ => entry.moved_by_edit(len),
        }
    }
}
