//! Keys and elements that a command finds expired: they are removed, and that is recorded before the command.

use sluicegate_data::object::{Hash, Kind, Set};
use sluicegate_data::table::Slot;

use super::{Ctx, KeyMut};
use crate::effect::Effect;
use crate::notify::Class;
use crate::record::removal_of;
use crate::tracking::Cause;

/// The maximum number of expired fields that a command removes, in addition to those that it names.
const EXPIRED_MAX: usize = 128;

impl Ctx<'_> {
    /// Removes those of the named fields of the hash at key `index` that have expired, and records the event, as Redis
    /// does. Expired fields found by a read-only command in a stripe with holds are left to the sweep.
    #[cold]
    pub(crate) fn expire_fields(&mut self, index: usize, fields: &[&[u8]], writes: bool) {
        self.expire_in(index, writes, |hash, now_ms, gone| {
            for field in fields {
                if hash.expire(field, now_ms) {
                    gone.push((*field).into());
                }
            }
        });
    }

    /// Like [`expire_fields`](Self::expire_fields), for a limited number of any fields.
    #[cold]
    pub(crate) fn expire_some_fields(&mut self, index: usize) {
        self.expire_in(index, false, |hash, now_ms, gone| {
            hash.purge(now_ms, EXPIRED_MAX, &mut |field| gone.push(field.into()));
        });
    }

    fn expire_in(&mut self, index: usize, writes: bool, expire: impl FnOnce(&mut Hash, i64, &mut Vec<Box<[u8]>>)) {
        if self.pins.is_some() {
            return;
        }
        let now_ms = self.expiry_ms();
        let place = self.places[index];
        let Some(stripe) = self.locks.get_mut(usize::from(place.lock)) else { return };
        if !writes && (stripe.holds.is_some() || self.inner.memory.keeps_expired()) {
            return;
        }
        let key = self.words[place.word as usize];
        let Some(slot) = stripe.table.find(place.hash, key) else { return };
        let mut gone = Vec::new();
        let expired = stripe.edit_object(slot, |object| {
            Hash::of_mut(object).map(|hash| {
                expire(hash, now_ms, &mut gone);
                hash.len() == 0
            })
        });
        if let Some(Some(is_empty)) = expired {
            self.end_expiry(index, slot, false, is_empty, &gone);
        }
    }

    /// Records that a key was found expired and removed.
    #[cold]
    pub(super) fn record_expired(&mut self, index: usize) {
        let place = self.places[index];
        if self.inner.notifier.is_tracked() {
            self.forget_readers(index, Cause::Within(self.now.behalf));
        }
        self.record_apart(place.db, &[b"DEL", self.words[place.word as usize]]);
    }

    /// Removes key `index` if its expired elements, which were removed, were the last, and records and tells both.
    fn end_expiry(&mut self, index: usize, slot: Slot, is_set: bool, is_empty: bool, gone: &[Box<[u8]>]) {
        if gone.is_empty() {
            return;
        }
        let place = self.places[index];
        let stripe = &mut self.locks[usize::from(place.lock)];
        stripe.expired_elements += gone.len() as u64;
        if is_empty {
            self.garbage.extend(stripe.remove(slot));
        }
        self.record_apart(place.db, &removal_of(self.words[place.word as usize], is_set, gone));
        // These are not changes of the command itself.
        let changed = self.changed;
        match is_set {
            true => self.notify(index, Class::Set, "srem"),
            false => self.notify(index, Class::Hash, "hexpired"),
        }
        if is_empty {
            self.notify(index, Class::Generic, "del");
        }
        self.changed = changed;
    }

    /// Removes the expired elements of key `index`, which is about to be changed, and records that.
    #[cold]
    pub(super) fn remove_expired_elements(&mut self, index: usize) {
        let (place, now_ms) = (self.places[index], self.now.ms());
        let key = self.words[place.word as usize];
        let Some(stripe) = self.locks.get_mut(usize::from(place.lock)) else { return };
        let Some(slot) = stripe.table.find(place.hash, key) else { return };
        if stripe.table.entry(slot).elements_due().is_none_or(|at_ms| at_ms > now_ms) {
            return;
        }
        let mut gone: Vec<Box<[u8]>> = Vec::new();
        let purged = stripe.edit_object(slot, |object| {
            while !object.purge(now_ms, usize::MAX, &mut |element| gone.push(element.into())).1 {}
            (object.is_gone(), object.type_name() == Set::NAME)
        });
        if let Some((is_empty, is_set)) = purged {
            self.end_expiry(index, slot, is_set, is_empty, &gone);
        }
    }
}

impl KeyMut<'_, '_> {
    /// Lets a replica remember that its own client has set the expiry: its master will not remove the key.
    #[inline]
    pub(super) fn note_own_expiry(&mut self, at_ms: i64) {
        if self.stripe.follows() && !self.now.behalf.is_masters && !self.stripe.is_timeless() {
            self.effects.push(Effect::Expires { db: self.db, key: self.key.into(), at_ms });
        }
    }
}
