//! Holds by the names of their keys.
//!
//! A stripe usually has one or two, and each short script adds one and removes it, so the first few are in a list that
//! is compared name by name; further ones move everything into a table until it is empty again.

use std::collections::HashMap;
use std::mem;

use sluicegate_data::short::same;

use super::{Hold, KeyName};

/// The maximum number of holds in the list.
const FEW: usize = 4;

/// The holds of a stripe.
#[derive(Default)]
pub(super) struct Holds {
    /// Empty if `many` is in use.
    few: Vec<(KeyName, Hold)>,
    many: HashMap<KeyName, Hold, foldhash::fast::RandomState>,
}

impl Holds {
    pub(super) fn len(&self) -> usize {
        self.few.len() + self.many.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.is_empty()
    }

    /// Returns the number of entries that fit without another block.
    pub(super) fn capacity(&self) -> usize {
        self.many.capacity().max(self.few.capacity())
    }

    /// Reserves room for more entries.
    pub(super) fn reserve(&mut self, more: usize) {
        if self.len() + more > FEW {
            self.spill();
            self.many.reserve(more);
        }
    }

    fn place(&self, key: &[u8]) -> Option<usize> {
        self.few.iter().position(|(name, _)| same(name, key))
    }

    fn spill(&mut self) {
        self.many.extend(self.few.drain(..));
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Hold> {
        if self.many.is_empty() {
            return self.place(key).map(|place| &self.few[place].1);
        }
        self.many.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &[u8]) -> Option<&mut Hold> {
        if self.many.is_empty() {
            return self.place(key).map(|place| &mut self.few[place].1);
        }
        self.many.get_mut(key)
    }

    /// Returns the hold on a key, created if necessary.
    pub(super) fn get_or_default(&mut self, key: &[u8]) -> &mut Hold {
        if self.many.is_empty() {
            let place = self.place(key);
            if place.is_some() || self.few.len() < FEW {
                let place = place.unwrap_or_else(|| {
                    self.few.push((KeyName::from_slice(key), Hold::default()));
                    self.few.len() - 1
                });
                return &mut self.few[place].1;
            }
            self.spill();
        }
        self.many.entry(KeyName::from_slice(key)).or_default()
    }

    /// Replaces the hold on this key.
    pub(super) fn insert(&mut self, key: KeyName, hold: Hold) {
        *self.get_or_default(&key) = hold;
    }

    /// Removes the only hold if `id` has its key exclusively and there are no waiters; false otherwise.
    pub(super) fn end_only(&mut self, id: u64, key: &[u8]) -> bool {
        let is_it = matches!(&self.few[..], [(name, hold)]
            if hold.exclusive == Some(id) && hold.queue.is_empty() && same(name, key));
        if is_it {
            self.few.clear();
        }
        is_it
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<Hold> {
        if self.many.is_empty() {
            return self.place(key).map(|place| self.few.swap_remove(place).1);
        }
        self.many.remove(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&KeyName, &Hold)> {
        self.few.iter().map(|(name, hold)| (name, hold)).chain(&self.many)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &KeyName> {
        self.iter().map(|(name, _)| name)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Hold> {
        self.iter().map(|(_, hold)| hold)
    }

    /// Takes all holds out.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (KeyName, Hold)> + use<> {
        let Holds { few, many } = mem::take(self);
        few.into_iter().chain(many)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sluicegate_data::random::numbers;

    use super::*;

    /// Does the same to a map of the standard library, and compares.
    #[test]
    fn a_list_that_becomes_a_table_and_a_list_again_has_what_a_map_has() {
        let mut below = numbers(7);
        let (mut holds, mut model) = (Holds::default(), BTreeMap::new());
        let (mut was_many, mut was_few_again) = (false, false);
        for step in 0..20_000_u64 {
            // Grows for a while, then shrinks.
            let grows = step / 40 % 2 == 0;
            let name = format!("key:{}", below(12));
            let key = name.as_bytes();
            assert_eq!(holds.get(key).and_then(|hold| hold.exclusive), model.get(key).copied());
            match below(4) {
                0 => assert_eq!(holds.get_mut(key).and_then(|hold| hold.exclusive), model.get(key).copied()),
                _ if grows => {
                    holds.get_or_default(key).exclusive = Some(step);
                    model.insert(key.to_vec(), step);
                }
                _ => assert_eq!(holds.remove(key).and_then(|hold| hold.exclusive), model.remove(key)),
            }
            assert_eq!((holds.len(), holds.is_empty()), (model.len(), model.is_empty()));
            assert!(holds.few.is_empty() || holds.many.is_empty());
            was_few_again |= was_many && !holds.few.is_empty();
            was_many |= !holds.many.is_empty();
        }
        assert!(was_many && was_few_again);
        let all: BTreeMap<Vec<u8>, u64> =
            holds.take().filter_map(|(name, hold)| Some((name.to_vec(), hold.exclusive?))).collect();
        assert_eq!((all, holds.len()), (model, 0));
    }
}
