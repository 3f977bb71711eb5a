//! The gate of all writes: every function that changes a key of a stripe, under the stripe's lock.
//!
//! A command, lazy expiry, the sweep, eviction, a section, a worker aside: each sets, edits, takes or removes a key by a
//! function of this module, which calls [`Stripe::before_change`], `before_removal` or `before_creation` first. There the
//! old value is kept for a [snapshot](crate::snapshot) that has not saved it; a sequenced record of writes is to be taken
//! there, too. Access times and counters, and
//! compaction, which moves an entry to another block, change no key and do not pass.
//!
//! Whole databases change by [`Keyspace::flush`](crate::keyspace::Keyspace) and `swap` alone, with the gate of the keyspace
//! closed. They change no key one by one; a stripe that is cleared belongs to a database that was taken away before.
//!
//! A value that is edited in place is accounted for: the stripe's sum of bytes follows it, even if the edit panics. A test
//! runs generated commands of all rows: one that changes what DUMP shows has passed, and one that only reads has not.

use std::sync::Arc;

use sluicegate_data::object::{Kind, Object, Set};
use sluicegate_data::table::{Due, Item, Slot};
use sluicegate_data::value::{Access, EditingAs, Entry, Garbage, Value};

use super::Stripe;
use super::image::{Images, keep, keep_if_small};
use super::outside::Outside;
use crate::notify::Class;
use crate::record::{RecordWords, removal_of};
use crate::snapshot::Snapshots;

#[cfg(test)]
thread_local! {
    /// The number of passes of this thread through the gate.
    pub(crate) static PASSED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts a pass, for tests.
#[inline(always)]
fn count_pass() {
    #[cfg(test)]
    PASSED.set(PASSED.get() + 1);
}

/// [`Stripe::before_change`] where the sweep has borrowed the stripe's parts.
#[inline(always)]
fn before_change_of(images: &mut Option<Box<Images>>, snapshots: &Snapshots, entry: &Entry) {
    count_pass();
    if snapshots.misses(entry) {
        keep(images, snapshots, entry);
    }
}

/// [`Stripe::before_removal`] there.
#[inline(always)]
fn before_removal_of(images: &mut Option<Box<Images>>, snapshots: &Snapshots, entry: &Entry) {
    count_pass();
    if snapshots.misses(entry) {
        keep_if_small(images, snapshots, entry);
    }
}

impl Stripe {
    /// Runs before the key at `slot` is changed, and returns its entry. The stripe is locked, and the old value is whole.
    #[inline(always)]
    fn before_change(&mut self, slot: Slot) -> &mut Entry {
        let Stripe { table, images, snapshots, .. } = self;
        let entry = table.entry_mut(slot);
        before_change_of(images, snapshots, entry);
        entry
    }

    /// Runs before the key at `slot` is removed or replaced, and returns its entry, which goes to
    /// [`dispose`](Self::dispose).
    #[inline(always)]
    fn before_removal(&mut self, slot: Slot) -> &mut Entry {
        let Stripe { table, images, snapshots, .. } = self;
        let entry = table.entry_mut(slot);
        before_removal_of(images, snapshots, entry);
        entry
    }

    /// Runs before a key is made.
    #[inline(always)]
    #[allow(clippy::unused_self, reason = "what is to be recorded is the stripe's")]
    fn before_creation(&mut self) {
        count_pass();
    }

    /// Sets whether the key at `slot` is never evicted.
    pub(crate) fn set_sticky(&mut self, slot: Slot, sticky: bool) {
        self.before_change(slot).set_sticky(sticky);
    }

    /// Removes a key that has expired.
    #[cold]
    pub(super) fn expire(&mut self, slot: Slot, key: &[u8], at_ms: i64) {
        self.expired += 1;
        let garbage = self.remove(slot);
        self.memory.free_late(garbage);
        self.touch_expired(key, at_ms);
    }

    /// Sets the key, which is at `slot` if it exists, to a value and an expiry. Returns the old value's remains to
    /// free.
    #[inline(always)]
    pub(crate) fn set(
        &mut self,
        (hash, key): (u64, &[u8]),
        slot: Option<Slot>,
        value: Value<'_>,
        expiry: Option<i64>,
        access: Access<'_>,
    ) -> Option<Garbage> {
        match slot {
            Some(slot) => {
                if overwrite(self.before_removal(slot), &value, expiry, access) {
                    if let Some(at_ms) = expiry {
                        self.expires_at(slot, at_ms);
                    }
                    return None;
                }
            }
            None => self.before_creation(),
        }
        self.put((hash, key), slot.map(|slot| (slot, access)), value, expiry, access.ticks)
    }

    /// Makes a new entry of the key, which takes the place of the one at a slot if there is one.
    #[inline(never)]
    fn put(
        &mut self,
        (hash, key): (u64, &[u8]),
        old: Option<(Slot, Access<'_>)>,
        value: Value<'_>,
        expiry: Option<i64>,
        ticks: u32,
    ) -> Option<Garbage> {
        if let Some(waits) = &mut self.waits {
            waits.note(key);
        }
        let mut entry = Entry::new(&mut self.slab, key, value, expiry, ticks);
        if self.snapshots.parity() {
            entry.set_parity(true);
        }
        if let Some((slot, access)) = old {
            entry.inherit_use(self.table.entry(slot));
            entry.touch(access);
        }
        self.changed = true;
        self.outside.add(entry.outside_bytes());
        self.expires += u32::from(expiry.is_some());
        if let Some(at_ms) = entry.due() {
            self.has_timed |= entry.elements_due().is_some();
            self.note_expiry(at_ms);
        }
        match old {
            Some((slot, _)) => {
                let old = self.table.replace(slot, entry);
                self.dispose(old)
            }
            None => {
                self.table.insert(hash, entry);
                None
            }
        }
    }

    /// Removes the entry at `slot`.
    pub(crate) fn remove(&mut self, slot: Slot) -> Option<Garbage> {
        self.before_removal(slot);
        let entry = self.table.remove(slot);
        self.changed = true;
        self.dispose(entry)
    }

    /// Removes the entry at `slot` and keeps its value.
    pub(crate) fn take(&mut self, slot: Slot) -> Value<'static> {
        self.before_change(slot);
        let entry = self.table.remove(slot);
        self.changed = true;
        self.forget(&entry);
        entry.into_value(&mut self.slab)
    }

    fn dispose(&mut self, entry: Entry) -> Option<Garbage> {
        self.forget(&entry);
        if self.snapshots.misses(&entry) {
            return self.move_out(entry);
        }
        entry.free(&mut self.slab)
    }

    fn forget(&mut self, entry: &Entry) {
        if let Some(waits) = &mut self.waits {
            waits.note_removed(entry.key());
        }
        self.outside.remove(entry.outside_bytes());
        self.expires -= u32::from(entry.expiry().is_some());
    }

    /// Gives the key at `slot` another expiry, or none.
    pub(crate) fn set_expiry(&mut self, hash: u64, slot: Slot, expiry: Option<i64>) {
        let entry = self.before_change(slot);
        match (entry.expiry(), expiry) {
            (None, None) => {}
            (Some(_), Some(at_ms)) => {
                entry.set_expiry(at_ms);
                self.expires_at(slot, at_ms);
            }
            _ => {
                // The head grows or shrinks, so the entry moves to another block with its value.
                let (access, counter, sticky) = (entry.access(), entry.counter(), entry.sticky());
                let key = smallvec::SmallVec::<[u8; 128]>::from_slice(entry.key());
                let value = self.take(slot);
                drop(self.put((hash, &key), None, value, expiry, access));
                if let Some(slot) = self.table.find(hash, &key) {
                    let entry = self.table.entry_mut(slot);
                    entry.set_counter(counter);
                    entry.set_sticky(sticky);
                }
            }
        }
    }

    /// Examines about `limit` keys, from where the last call stopped, and removes those that expired by `now_ms`, and
    /// expired elements. `tell` receives each affected key and its treatment, `record`, if there is one, the commands that
    /// do the same. Returns whether it reached the end; the next call starts again then.
    pub(crate) fn sweep(
        &mut self,
        now_ms: i64,
        limit: usize,
        garbage: &mut Vec<Garbage>,
        mut tell: impl FnMut(Class, &'static str, &[u8]),
        mut record: Option<RecordWords<'_>>,
    ) -> bool {
        if self.sweep_from == 0 {
            self.swept_earliest_ms = i64::MAX;
        }
        let mut gone = Vec::new();
        let Stripe { table, holds, outside, watched, expired_elements, images, snapshots, .. } = self;
        let is_watched = watched.is_some();
        let mut purged_keys: Vec<Box<[u8]>> = Vec::new();
        let due = |entry: &mut Entry| {
            if holds.as_deref().is_some_and(|holds| holds.concerns(entry.key())) {
                return Due::Keep { next_ms: entry.due().unwrap_or(i64::MAX), removed: 0 };
            }
            if entry.expiry().is_some_and(|at_ms| at_ms <= now_ms) {
                before_removal_of(images, snapshots, entry);
                return Due::Remove;
            }
            if entry.elements_due().is_some_and(|at_ms| at_ms <= now_ms) {
                before_change_of(images, snapshots, entry);
            }
            let before = entry.outside_bytes();
            let mut elements: Vec<Box<[u8]>> = Vec::new();
            let records = record.is_some();
            let purged = entry.edit_object(|object| {
                let mut gone = |element: &[u8]| {
                    if records {
                        elements.push(element.into());
                    }
                };
                (object.purge(now_ms, limit, &mut gone), object.is_gone())
            });
            outside.replace(before, entry.outside_bytes());
            let ((removed, done), is_empty) = purged.unwrap_or(((0, true), false));
            *expired_elements += removed as u64;
            if removed > 0 {
                let is_set = entry.type_name() == Set::NAME;
                let (class, name) = if is_set { (Class::Set, "srem") } else { (Class::Hash, "hexpired") };
                tell(class, name, entry.key());
                if let Some(record) = &mut record {
                    record(&removal_of(entry.key(), is_set, &elements));
                }
                if is_watched {
                    purged_keys.push(entry.key().into());
                }
            }
            match (is_empty, done) {
                (true, _) => Due::Remove,
                (false, true) => Due::Keep { next_ms: entry.due().unwrap_or(i64::MAX), removed },
                (false, false) => Due::Unfinished,
            }
        };
        let swept = table.sweep(now_ms, self.sweep_from, limit, due, |entry| gone.push(entry));
        purged_keys.iter().for_each(|key| self.touch(key));
        for entry in gone {
            if let Some(record) = &mut record {
                record(&[b"DEL", entry.key()]);
            }
            match entry.expiry() {
                Some(at_ms) if at_ms <= now_ms => {
                    self.expired += 1;
                    tell(Class::Expired, "expired", entry.key());
                    self.touch_expired(entry.key(), at_ms);
                }
                _ => tell(Class::Generic, "del", entry.key()),
            }
            garbage.extend(self.dispose(entry));
        }
        self.changed = true;
        self.sweep_from = swept.next.unwrap_or(0);
        self.swept_earliest_ms = self.swept_earliest_ms.min(swept.earliest_ms);
        if swept.next.is_none() {
            self.earliest_ms = self.swept_earliest_ms;
        }
        swept.next.is_none()
    }

    /// Removes a key if it has expired by `now_ms` and nobody holds it. Returns [`None`] if it did, otherwise the time at
    /// which to look again, if there is one.
    pub(crate) fn remove_due(
        &mut self,
        (hash, key): (u64, &[u8]),
        now_ms: i64,
        held_until_ms: i64,
    ) -> Option<Option<i64>> {
        let Some(slot) = self.table.find(hash, key) else { return Some(None) };
        let Some(at_ms) = self.table.entry(slot).expiry() else { return Some(None) };
        if at_ms > now_ms {
            return Some(Some(at_ms));
        }
        if self.holds.as_deref().is_some_and(|holds| holds.concerns(key)) {
            return Some(Some(held_until_ms));
        }
        self.expire(slot, key, at_ms);
        None
    }

    /// Frees every entry.
    pub(crate) fn clear(&mut self) {
        let Stripe { slab, table, memory, .. } = self;
        // The stripe is of a database that `Keyspace::flush` has taken away, or of a store that goes.
        table.clear(|entry| memory.free_late(entry.free(slab)));
        self.images = None;
        self.expires = 0;
        self.outside = Outside::default();
        self.earliest_ms = i64::MAX;
        self.sweep_from = 0;
        self.changed = true;
    }

    /// Edits the value at `slot` in place if it has a vector of its own; see [`Entry::edit`].
    pub(crate) fn edit(&mut self, slot: Slot, final_len: usize, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Stripe { table, images, snapshots, outside, changed, .. } = self;
        let entry = table.entry_mut(slot);
        before_change_of(images, snapshots, entry);
        let before = entry.outside_bytes();
        Edited { entry, before, outside, changed }.entry.edit(final_len, change)
    }

    /// Edits the object at `slot` in place; [`None`] if the value is a string.
    pub(crate) fn edit_object<R>(&mut self, slot: Slot, change: impl FnOnce(&mut Object) -> R) -> Option<R> {
        let Stripe { table, images, snapshots, outside, changed, .. } = self;
        let entry = table.entry_mut(slot);
        before_change_of(images, snapshots, entry);
        let before = entry.outside_bytes();
        let result = Edited { entry, before, outside, changed }.entry.edit_object(change);
        if let Some(at_ms) = self.table.entry(slot).elements_due() {
            self.elements_expire_at(slot, at_ms);
        }
        result
    }

    /// Notes an access of the key at `slot` and lets `change` edit its object in place; [`None`] if the value is not of
    /// this type.
    #[inline]
    pub(crate) fn edit_as<K: Kind, R>(
        &mut self,
        slot: Slot,
        access: Access<'_>,
        change: impl FnOnce(&mut K) -> R,
    ) -> Option<R> {
        let Stripe { table, images, snapshots, outside, changed, .. } = self;
        let entry = table.entry_mut(slot);
        before_change_of(images, snapshots, entry);
        entry.touch(access);
        let value = entry.edit_as::<K>()?;
        let before = value.bytes();
        let mut edited = EditedAs { value, before, outside, changed };
        let result = change(&mut edited.value);
        let due = edited.value.earliest_ms();
        drop(edited);
        if let Some(at_ms) = due {
            self.elements_expire_at(slot, at_ms);
        }
        Some(result)
    }

    /// Puts another object at `slot`, which has one, and returns the old one. The stripe's sum of bytes stays as it is:
    /// the old one comes back by [`put_back`](Self::put_back).
    pub(crate) fn detach(&mut self, slot: Slot, stand_in: Object) -> Option<Object> {
        self.before_change(slot).edit_object(|object| std::mem::replace(object, stand_in))
    }

    /// Takes a string of [`SHARED_MIN`](sluicegate_data::value::SHARED_MIN) bytes or more out of `slot`, where an empty one stands in for it until
    /// [`put_string_back`](Self::put_string_back); the stripe's sum of bytes stays as it is.
    pub(crate) fn detach_string(&mut self, slot: Slot) -> Option<Arc<Vec<u8>>> {
        self.before_change(slot).swap_shared(Arc::default())
    }

    /// Puts the changed string back at `slot`, which had this many bytes when it was [taken out](Self::detach_string).
    pub(crate) fn put_string_back(&mut self, slot: Slot, long: Arc<Vec<u8>>, bytes: usize) {
        let entry = self.before_change(slot);
        drop(entry.swap_shared(long));
        entry.set_raw();
        let after = entry.outside_bytes();
        self.outside.replace(bytes, after);
        self.changed = true;
    }

    /// Puts the object back at `slot`, which had this many bytes when it was [detached](Self::detach). Returns its
    /// placeholder.
    pub(crate) fn put_back(&mut self, slot: Slot, object: Object, bytes: usize) -> Option<Object> {
        let entry = self.before_change(slot);
        let stand_in = entry.edit_object(|place| std::mem::replace(place, object));
        let after = entry.outside_bytes();
        self.outside.replace(bytes, after);
        self.changed = true;
        if let Some(at_ms) = self.table.entry(slot).elements_due() {
            self.elements_expire_at(slot, at_ms);
        }
        stand_in
    }
}

/// Writes a value over the old one if it has the same shape: no block changes hands. Returns whether it has.
#[inline(always)]
fn overwrite(entry: &mut Entry, value: &Value<'_>, expiry: Option<i64>, access: Access<'_>) -> bool {
    if entry.expiry().is_some() != expiry.is_some() {
        return false;
    }
    let done = match value {
        Value::Int(value) => entry.set_int(*value),
        Value::Bytes { bytes, raw } => entry.set_inline(bytes, *raw),
        Value::Vec { .. } | Value::Shared { .. } | Value::Object(_) => false,
    };
    if done {
        entry.touch(access);
        if let Some(at_ms) = expiry {
            entry.set_expiry(at_ms);
        }
    }
    done
}

/// Accounts for an edited value, even if the change panicked.
struct Edited<'s> {
    entry: &'s mut Entry,
    before: usize,
    outside: &'s mut Outside,
    changed: &'s mut bool,
}

impl Drop for Edited<'_> {
    fn drop(&mut self) {
        account(self.before, self.entry.outside_bytes(), self.outside, self.changed);
    }
}

/// The same for an object of a known type.
struct EditedAs<'s, K: Kind> {
    value: EditingAs<'s, K>,
    before: usize,
    outside: &'s mut Outside,
    changed: &'s mut bool,
}

impl<K: Kind> Drop for EditedAs<'_, K> {
    #[inline]
    fn drop(&mut self) {
        account(self.before, self.value.bytes(), self.outside, self.changed);
    }
}

/// A value has `after` bytes where it had `before`.
#[inline]
fn account(before: usize, after: usize, outside: &mut Outside, changed: &mut bool) {
    if before != after {
        outside.replace(before, after);
        *changed = true;
    }
}
