//! Keys and elements that a command finds expired: they are removed, and that is recorded before the command.

use sluicegate_data::object::{Hash, Kind, Set};

use super::Ctx;
use crate::notify::Class;

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
        if stripe.holds.is_some() && !writes {
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
        let Some(Some(is_empty)) = expired.filter(|_| !gone.is_empty()) else { return };
        stripe.expired_elements += gone.len() as u64;
        if is_empty {
            self.garbage.extend(stripe.remove(slot));
        }
        self.record_gone(index, false, &gone);
        // These are not changes of the command itself.
        let changed = self.changed;
        self.notify(index, Class::Hash, "hexpired");
        if is_empty {
            self.notify(index, Class::Generic, "del");
        }
        self.changed = changed;
    }

    /// Records that a key was found expired and removed.
    #[cold]
    pub(super) fn record_expired(&mut self, index: usize) {
        let place = self.places[index];
        self.record_apart(place.db, &[b"DEL", self.words[place.word as usize]]);
    }

    /// Records that elements of key `index` have expired and were removed.
    pub(super) fn record_gone(&mut self, index: usize, is_set: bool, elements: &[Box<[u8]>]) {
        let place = self.places[index];
        let name: &[u8] = if is_set { b"SREM" } else { b"HDEL" };
        let head = [name, self.words[place.word as usize]];
        let words: Vec<&[u8]> = head.into_iter().chain(elements.iter().map(|element| &element[..])).collect();
        self.record_apart(place.db, &words);
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
        let Some((is_empty, is_set)) = purged else { return };
        if is_empty {
            let garbage = stripe.remove(slot);
            self.garbage.extend(garbage);
        }
        if gone.is_empty() {
            return;
        }
        self.locks[usize::from(place.lock)].expired_elements += gone.len() as u64;
        self.record_gone(index, is_set, &gone);
        let changed = self.changed;
        if is_set {
            self.notify(index, Class::Set, "srem");
        } else {
            self.notify(index, Class::Hash, "hexpired");
        }
        if is_empty {
            self.notify(index, Class::Generic, "del");
        }
        self.changed = changed;
    }
}
