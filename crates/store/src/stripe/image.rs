//! Entries of a stripe for a [snapshot](crate::snapshot): the pass that saves them, and the old values of those that are
//! changed before it comes.
//!
//! An old value is copied if it is small: strings as they are, so that the pass compresses them and not the command,
//! objects and short strings in their serialised form. A large one is moved here by the command that removes or replaces it,
//! a long string by reference. What is moved is not in the sum of the stripe's bytes any more: eviction
//! could not free it. Nor are blocks of a very large list that it does not share with its old value any more.

use std::sync::Arc;

use sluicegate_data::object::{Kind, List};
use sluicegate_data::rdb::encode::{PIECE_BYTES, UNCOMPRESSED_MAX};
use sluicegate_data::rdb::file::{Chunk, KeyHead, Usage, Written};
use sluicegate_data::table::Slot;
use sluicegate_data::value::{Entry, Garbage, SHARED_MIN, Value, View};

use super::Stripe;
use crate::snapshot::{Form, Snapshots};

/// The largest value that is copied when a command removes it, in bytes and in elements; larger ones are moved.
const COPIED_BYTES: usize = 64 << 10;
const COPIED_ELEMENTS: usize = 2_000;
/// The size from which a list shares its blocks, and the number of those that it shares at once under the lock. Smaller
/// ones in tests, which have no large lists.
const LENT_BYTES: usize = if cfg!(test) { 16 << 10 } else { PIECE_BYTES };
const LENT_BLOCKS: usize = if cfg!(test) { 2 } else { 1_000 };

/// What is written of an entry beside its key and its value.
#[derive(Clone, Copy)]
struct Facts {
    expiry_ms: Option<i64>,
    usage: Usage,
    is_sticky: bool,
}

impl Facts {
    fn of(entry: &Entry, form: Form) -> Facts {
        Facts { expiry_ms: entry.expiry(), usage: form.accesses.usage(entry), is_sticky: entry.sticky() }
    }

    fn head(self, name: &[u8]) -> KeyHead<'_> {
        let Facts { expiry_ms, usage, is_sticky } = self;
        KeyHead { name, expiry_ms, usage, is_sticky }
    }
}

/// Old values of a stripe that the pass has not taken yet.
pub(crate) struct Images {
    pub(crate) copied: Copied,
    pub(crate) moved: Vec<Moved>,
}

/// A value that was moved out of its entry, or shares its blocks.
pub(crate) struct Moved {
    key: Box<[u8]>,
    facts: Facts,
    pub(crate) value: Value<'static>,
    bytes: usize,
}

impl Moved {
    /// Returns it without its value.
    pub(crate) fn head(&self) -> KeyHead<'_> {
        self.facts.head(&self.key)
    }
}

impl Images {
    fn new(form: Form) -> Box<Images> {
        Box::new(Images { copied: Copied::new(form), moved: Vec::new() })
    }

    /// Records that they do not wait any more.
    pub(crate) fn note_taken(&self, snapshots: &Snapshots) {
        let bytes = self.copied.waiting() + self.moved.iter().map(|moved| moved.bytes).sum::<usize>();
        snapshots.end_waiting(bytes);
    }
}

/// Returns an entry without its value.
pub(crate) fn head_of(entry: &Entry, form: Form) -> KeyHead<'_> {
    Facts::of(entry, form).head(entry.key())
}

/// Calls `write` with an entry's value.
pub(crate) fn with_value<R>(entry: &Entry, write: impl FnOnce(Written<'_>) -> R) -> R {
    match (entry.string(), entry.object()) {
        (None, Some(object)) => write(Written::Object(&object)),
        (view, _) => write(Written::String(view.unwrap_or(View::Bytes(b"")))),
    }
}

/// Appends an entry to a chunk. Returns whether it is there: an entry whose elements have all expired is not.
fn write(chunk: &mut Chunk, entry: &Entry, form: Form) -> bool {
    with_value(entry, |value| chunk.key(head_of(entry, form), value))
}

/// Returns whether a value takes so long to be written that its key is held meanwhile, and not its stripe locked.
pub(crate) fn is_large(entry: &Entry) -> bool {
    entry.object().is_some() && !is_small(entry)
}

/// Returns whether a large value is a list whose blocks are [shared](Stripe::lend), so that it is not held while it is
/// written.
pub(crate) fn is_lent(entry: &Entry) -> bool {
    entry.outside_bytes() >= LENT_BYTES && entry.type_name() == List::NAME
}

/// Returns whether a value is copied rather than moved.
fn is_small(entry: &Entry) -> bool {
    entry.outside_bytes() <= COPIED_BYTES && entry.object().is_none_or(|object| object.len() <= COPIED_ELEMENTS)
}

/// Entries as they are copied under the lock, to be serialised and compressed after it.
pub(crate) struct Copied {
    form: Form,
    /// Keys and short strings, one after the other.
    bytes: Vec<u8>,
    entries: Vec<CopiedEntry>,
    /// Entries in their serialised form.
    written: Chunk,
    written_count: u64,
}

/// An entry whose key is among the copied bytes.
struct CopiedEntry {
    key: u32,
    string: CopiedString,
    facts: Facts,
}

enum CopiedString {
    Integer(i64),
    /// So many of the copied bytes, behind the key.
    Short(u32),
    Long(Arc<Vec<u8>>),
}

impl Copied {
    pub(crate) fn new(form: Form) -> Copied {
        let written = Chunk::new(form.settings);
        Copied { form, bytes: Vec::new(), entries: Vec::new(), written, written_count: 0 }
    }

    /// Returns the bytes that it occupies, without strings that it shares.
    fn waiting(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<CopiedEntry>() + self.written.bytes().len()
    }

    /// Adds an old value, which may wait for long: one that is not compressed is smaller in its serialised form.
    fn push_old(&mut self, entry: &Entry) {
        match entry.string() {
            Some(View::Bytes(bytes)) if bytes.len() > UNCOMPRESSED_MAX => self.push(entry),
            _ => self.write_now(entry),
        }
    }

    fn write_now(&mut self, entry: &Entry) {
        self.written_count += u64::from(write(&mut self.written, entry, self.form));
    }

    fn push(&mut self, entry: &Entry) {
        let Some(view) = entry.string() else { return self.write_now(entry) };
        self.bytes.extend_from_slice(entry.key());
        let string = match (view, entry.shared()) {
            (View::Int(value), _) => CopiedString::Integer(value),
            (_, Some(bytes)) => CopiedString::Long(bytes),
            (View::Bytes(bytes), None) => {
                self.bytes.extend_from_slice(bytes);
                CopiedString::Short(bytes.len() as u32)
            }
        };
        self.entries.push(CopiedEntry { key: entry.key().len() as u32, string, facts: Facts::of(entry, self.form) });
    }

    /// Appends the entries to a chunk, and forgets them. Returns their number.
    pub(crate) fn write(&mut self, chunk: &mut Chunk) -> u64 {
        let count = self.entries.len() as u64 + std::mem::take(&mut self.written_count);
        let mut rest = &self.bytes[..];
        for CopiedEntry { key, string, facts } in self.entries.drain(..) {
            let (name, after) = rest.split_at(key as usize);
            let (short, after) = after.split_at(if let CopiedString::Short(len) = string { len as usize } else { 0 });
            rest = after;
            let view = match &string {
                CopiedString::Integer(value) => View::Int(*value),
                CopiedString::Short(_) => View::Bytes(short),
                CopiedString::Long(bytes) => View::Bytes(bytes),
            };
            chunk.key(facts.head(name), Written::String(view));
        }
        self.bytes.clear();
        if !self.written.bytes().is_empty() {
            chunk.append(&self.written);
            self.written = Chunk::new(self.form.settings);
        }
        count
    }
}

/// Keeps the old value of an unsaved entry that is about to be edited.
#[cold]
pub(super) fn keep(images: &mut Option<Box<Images>>, snapshots: &Snapshots, entry: &Entry) {
    entry.set_parity(snapshots.parity());
    let Some(form) = snapshots.form() else { return };
    let images = images.get_or_insert_with(|| Images::new(form));
    match entry.shared() {
        // Whoever edits it finds it shared, and copies it.
        Some(shared) => {
            let (key, facts, bytes): (Box<[u8]>, _, _) = (entry.key().into(), Facts::of(entry, form), shared.len());
            snapshots.add_waiting(bytes);
            images.moved.push(Moved { key, facts, value: Value::Shared { bytes: shared, raw: false }, bytes });
        }
        None => {
            let before = images.copied.waiting();
            images.copied.push_old(entry);
            snapshots.add_waiting(images.copied.waiting() - before);
        }
    }
}

/// Keeps the old value of an unsaved entry that is about to be removed, unless it is large: then it stays unsaved, and
/// [`move_out`](Stripe::move_out) takes it.
#[cold]
pub(super) fn keep_if_small(images: &mut Option<Box<Images>>, snapshots: &Snapshots, entry: &Entry) {
    if is_small(entry) || snapshots.form().is_none() {
        keep(images, snapshots, entry);
    }
}

impl Stripe {
    /// Takes over the value of an unsaved entry that has left the table.
    #[cold]
    pub(super) fn move_out(&mut self, entry: Entry) -> Option<Garbage> {
        let Some(form) = self.snapshots.form() else { return entry.free(&mut self.slab) };
        let images = self.images.get_or_insert_with(|| Images::new(form));
        let (key, facts): (Box<[u8]>, Facts) = (entry.key().into(), Facts::of(&entry, form));
        let bytes = entry.outside_bytes() + key.len();
        self.snapshots.add_waiting(bytes);
        images.moved.push(Moved { key, facts, value: entry.into_value(&mut self.slab), bytes });
        None
    }

    /// Returns the entry of a key, if it is unsaved.
    pub(crate) fn unsaved(&self, hash: u64, key: &[u8]) -> Option<&Entry> {
        let entry = self.table.entry(self.table.find(hash, key)?);
        self.snapshots.misses(entry).then_some(entry)
    }

    /// Shares more blocks of an unsaved list with `lent`, from this one on. The caller holds the key alone, and calls this
    /// until it returns [`None`]; then the entry is saved.
    pub(crate) fn lend(&mut self, hash: u64, key: &[u8], from: usize, lent: &mut Option<Moved>) -> Option<usize> {
        let slot = self.table.find(hash, key)?;
        let entry = self.table.entry_mut(slot);
        if !self.snapshots.misses(entry) {
            return None;
        }
        let next = self.snapshots.form().and_then(|form| {
            let lent = lent.get_or_insert_with(|| Moved {
                key: key.into(),
                facts: Facts::of(entry, form),
                value: Value::Object(List::empty().into_object()),
                bytes: 0,
            });
            let Value::Object(copy) = &mut lent.value else { return None };
            entry.edit_as::<List>()?.share(List::of_mut(copy)?, from, LENT_BLOCKS)
        });
        if next.is_none() {
            entry.set_parity(self.snapshots.parity());
        }
        next
    }

    /// Takes the old values that wait for the pass.
    pub(crate) fn take_images(&mut self) -> Option<Box<Images>> {
        self.images.take()
    }

    /// Saves the unsaved entries from this place in SCAN's order on, until they have about this many bytes together or
    /// `segments` parts of the table were visited: copies them to `into`, if it is given. Large ones stay unsaved then, and
    /// their names are added to `large`, perhaps more than once. Returns the place to go on from, or [`None`] at the end of
    /// the stripe.
    pub(crate) fn save(
        &mut self,
        mut from: u64,
        mut into: Option<&mut Copied>,
        (bytes, segments): (usize, usize),
        large: &mut Vec<Box<[u8]>>,
    ) -> Option<u64> {
        let parity = self.snapshots.parity();
        let mut left = bytes;
        for _ in 0..segments {
            let mut is_full = false;
            let next = self.table.visit(from, false, |entry| {
                if entry.parity() == parity {
                    return;
                }
                if let Some(copied) = &mut into {
                    if is_large(entry) {
                        large.push(entry.key().into());
                        return;
                    }
                    if left == 0 {
                        is_full = true;
                        return;
                    }
                    left = left.saturating_sub(entry.block_bytes() + entry.outside_bytes());
                    copied.push(entry);
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
