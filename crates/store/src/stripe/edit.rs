//! A value edited in place, while the stripe's sum of bytes follows it.

use std::sync::Arc;

use super::Stripe;
use crate::object::{Kind, Object};
use crate::table::Slot;
use crate::value::{EditingAs, Entry};

impl Stripe {
    /// Edits the value at `slot` in place if it has a vector of its own; see [`Entry::edit`].
    pub(crate) fn edit(&mut self, slot: Slot, final_len: usize, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Stripe { table, outside_bytes, changed, .. } = self;
        let entry = table.entry_mut(slot);
        let before = entry.outside_bytes();
        Edited { entry, before, outside_bytes, changed }.entry.edit(final_len, change)
    }

    /// Edits the object at `slot` in place; [`None`] if the value is a string.
    pub(crate) fn edit_object<R>(&mut self, slot: Slot, change: impl FnOnce(&mut Object) -> R) -> Option<R> {
        let Stripe { table, outside_bytes, changed, .. } = self;
        let entry = table.entry_mut(slot);
        let before = entry.outside_bytes();
        let result = Edited { entry, before, outside_bytes, changed }.entry.edit_object(change);
        if let Some(at_ms) = self.table.entry(slot).elements_due() {
            self.elements_expire_at(slot, at_ms);
        }
        result
    }

    /// Notes an access of the key at `slot` and lets `change` edit its object in place; [`None`] if the value is not of
    /// this type.
    #[inline]
    pub(crate) fn edit_as<K: Kind, R>(&mut self, slot: Slot, now: u32, change: impl FnOnce(&mut K) -> R) -> Option<R> {
        let Stripe { table, outside_bytes, changed, .. } = self;
        let entry = table.entry_mut(slot);
        entry.touch(now);
        let value = entry.edit_as::<K>()?;
        let before = value.bytes();
        let mut edited = EditedAs { value, before, outside_bytes, changed };
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
        self.table.entry_mut(slot).edit_object(|object| std::mem::replace(object, stand_in))
    }

    /// Takes a string of [`SHARED_MIN`](crate::value::SHARED_MIN) bytes or more out of `slot`, where an empty one stands in for it until
    /// [`put_string_back`](Self::put_string_back); the stripe's sum of bytes stays as it is.
    pub(crate) fn detach_string(&mut self, slot: Slot) -> Option<Arc<Vec<u8>>> {
        self.table.entry_mut(slot).swap_shared(Arc::default())
    }

    /// Puts back at `slot` what was [taken out](Self::detach_string) when it had so many bytes, and was changed.
    pub(crate) fn put_string_back(&mut self, slot: Slot, long: Arc<Vec<u8>>, bytes: usize) {
        let entry = self.table.entry_mut(slot);
        drop(entry.swap_shared(long));
        entry.set_raw();
        self.outside_bytes = self.outside_bytes + entry.outside_bytes() - bytes;
        self.changed = true;
    }

    /// Puts an object back at `slot` that was [detached](Self::detach) when it had so many bytes. Returns what stood in
    /// for it.
    pub(crate) fn put_back(&mut self, slot: Slot, object: Object, bytes: usize) -> Option<Object> {
        let entry = self.table.entry_mut(slot);
        let stand_in = entry.edit_object(|place| std::mem::replace(place, object));
        self.outside_bytes = self.outside_bytes + entry.outside_bytes() - bytes;
        self.changed = true;
        if let Some(at_ms) = self.table.entry(slot).elements_due() {
            self.elements_expire_at(slot, at_ms);
        }
        stand_in
    }
}

/// Accounts for an edited value, even if the change panicked.
struct Edited<'s> {
    entry: &'s mut Entry,
    before: usize,
    outside_bytes: &'s mut usize,
    changed: &'s mut bool,
}

impl Drop for Edited<'_> {
    fn drop(&mut self) {
        account(self.before, self.entry.outside_bytes(), self.outside_bytes, self.changed);
    }
}

/// The same for an object of a known type.
struct EditedAs<'s, K: Kind> {
    value: EditingAs<'s, K>,
    before: usize,
    outside_bytes: &'s mut usize,
    changed: &'s mut bool,
}

impl<K: Kind> Drop for EditedAs<'_, K> {
    #[inline]
    fn drop(&mut self) {
        account(self.before, self.value.bytes(), self.outside_bytes, self.changed);
    }
}

/// A value has `after` bytes where it had `before`.
#[inline]
fn account(before: usize, after: usize, outside_bytes: &mut usize, changed: &mut bool) {
    if before != after {
        *outside_bytes = *outside_bytes - before + after;
        *changed = true;
    }
}
