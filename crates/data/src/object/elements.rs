//! The elements of a large set or hash: a [`Table`] of [`Cell`]s, which grows one segment at a time like a stripe's.
//!
//! An element may expire on its own (HEXPIRE, SADDEX). Its time is in its cell, and the summary of all times in one box
//! that is created with the first of them, so that a value without expiring elements pays for a pointer. Readers do not
//! see an expired element; [`purge`](Elements::purge) removes it, in steps.

use std::collections::HashSet;
use std::sync::LazyLock;

use super::cell::Cell;
use crate::random::Selection;
use crate::table::{Due, Item, KeyHasher, Slot, Table};

/// The hasher of all large values, seeded once.
pub(super) static HASHER: LazyLock<KeyHasher> = LazyLock::new(KeyHasher::default);

/// A table with fewer elements than this may be rebuilt when most of it is empty: that takes some 100 µs.
const REBUILT_MAX: usize = 2_048;
/// The number of slots per element from which on a table is rebuilt.
const SLOTS_PER_ELEMENT: usize = 32;

/// A time before all expiries, for readers of values in which nothing expires.
pub const TIMELESS: i64 = i64::MIN;

/// One element: a member, or a field with its value.
#[derive(Debug)]
#[repr(transparent)]
pub struct Element(Cell);

impl Element {
    /// Returns the member or field.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.0.key()
    }

    /// Returns the field's value; empty for a member.
    #[inline]
    pub fn value(&self) -> &[u8] {
        self.0.value()
    }

    /// Returns its expiry, in Unix milliseconds.
    #[inline]
    pub fn expiry(&self) -> Option<i64> {
        self.0.word().map(|word| word as i64)
    }

    /// Returns whether it still exists at this time.
    #[inline]
    pub fn lives(&self, now_ms: i64) -> bool {
        // Most readers pass the time before all expiries, so the element's expiry need not be read.
        now_ms == TIMELESS || self.expiry().is_none_or(|at_ms| at_ms > now_ms)
    }
}

impl Item for Element {
    #[inline]
    fn key(&self) -> &[u8] {
        self.0.key()
    }

    #[inline]
    fn expiry(&self) -> Option<i64> {
        Element::expiry(self)
    }
}

/// The summary of the expiring elements.
#[derive(Debug)]
struct Timing {
    /// The number of expiring elements.
    count: usize,
    /// A lower bound of their expiries, in Unix milliseconds.
    earliest_ms: i64,
    /// The hash at which a purge continues; 0 if none is in progress.
    purge_from: u64,
    /// A lower bound of the expiries that the purge in progress has passed.
    purged_earliest_ms: i64,
}

/// The effect of a change of one element on its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The element has no expiry afterwards.
    None,
    /// The element keeps its expiry.
    Keep,
    /// The element expires at this time, in Unix milliseconds.
    At(i64),
}

/// The elements.
pub struct Elements {
    table: Table<Element>,
    /// The bytes of the cells.
    bytes: usize,
    timing: Option<Box<Timing>>,
}

impl Default for Elements {
    #[inline]
    fn default() -> Elements {
        Elements::new()
    }
}

impl Elements {
    /// Returns an empty table of elements.
    #[inline]
    pub fn new() -> Elements {
        Elements { table: Table::new(HASHER.clone(), 0), bytes: 0, timing: None }
    }

    /// Returns the number of elements, including those that have expired and are not removed yet.
    #[inline]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the bytes of table and cells.
    #[inline]
    pub fn bytes(&self) -> usize {
        let timing = if self.timing.is_some() { size_of::<Timing>() } else { 0 };
        size_of::<Elements>() + self.table.bytes() + self.bytes + timing
    }

    /// Returns a lower bound of the expiries, in Unix milliseconds; [`None`] if nothing expires.
    #[inline]
    pub fn earliest_ms(&self) -> Option<i64> {
        self.timing.as_ref().map(|timing| timing.earliest_ms)
    }

    /// Returns the element with this key, if it has not expired.
    #[inline]
    pub fn get(&self, key: &[u8], now_ms: i64) -> Option<&Element> {
        let slot = self.table.find(HASHER.hash(key), key)?;
        let element = self.table.entry(slot);
        element.lives(now_ms).then_some(element)
    }

    /// Sets an element. Returns true if it is new, or the old one had expired.
    pub fn insert(&mut self, key: &[u8], value: Option<&[u8]>, expiry: Expiry, now_ms: i64) -> bool {
        let hash = HASHER.hash(key);
        let Some(slot) = self.table.find(hash, key) else {
            let at_ms = if let Expiry::At(at_ms) = expiry { Some(at_ms) } else { None };
            self.put_new(hash, Cell::new(key, value, at_ms.map(|at_ms| at_ms as u64)), at_ms);
            return true;
        };
        let old = self.table.entry(slot);
        let (lived, had) = (old.lives(now_ms), old.expiry());
        let at_ms = match expiry {
            Expiry::None => None,
            Expiry::Keep => had.filter(|_| lived),
            Expiry::At(at_ms) => Some(at_ms),
        };
        let same_shape = had.is_some() == at_ms.is_some();
        let done = same_shape && value.is_none_or(|value| self.table.entry_mut(slot).0.set_value(value));
        if done {
            if let Some(at_ms) = at_ms {
                self.table.entry_mut(slot).0.set_word(at_ms as u64);
                self.table.note_expiry(slot, at_ms);
                self.note(Some(at_ms), 0);
            }
        } else {
            self.put(slot, key, value, at_ms, had);
        }
        !lived
    }

    /// Adds an element that does not exist, without looking it up.
    #[inline]
    pub fn insert_new(&mut self, key: &[u8], value: Option<&[u8]>, at_ms: Option<i64>) {
        debug_assert!(self.get(key, TIMELESS).is_none());
        self.put_new(HASHER.hash(key), Cell::new(key, value, at_ms.map(|at_ms| at_ms as u64)), at_ms);
    }

    #[inline]
    fn put_new(&mut self, hash: u64, cell: Cell, at_ms: Option<i64>) {
        self.bytes += cell.bytes();
        self.table.insert(hash, Element(cell));
        self.note(at_ms, i32::from(at_ms.is_some()));
    }

    /// Replaces a cell.
    #[inline]
    fn put(&mut self, slot: Slot, key: &[u8], value: Option<&[u8]>, at_ms: Option<i64>, had: Option<i64>) {
        let cell = Cell::new(key, value, at_ms.map(|at_ms| at_ms as u64));
        self.bytes += cell.bytes();
        self.bytes -= self.table.replace(slot, Element(cell)).0.bytes();
        self.note(at_ms, i32::from(at_ms.is_some()) - i32::from(had.is_some()));
    }

    /// Sets or removes the expiry of an element. Returns false if there is no such element.
    pub fn set_expiry(&mut self, key: &[u8], expiry: Option<i64>, now_ms: i64) -> bool {
        let Some(slot) = self.table.find(HASHER.hash(key), key) else { return false };
        let element = self.table.entry(slot);
        if !element.lives(now_ms) {
            return false;
        }
        let had = element.expiry();
        match (had, expiry) {
            (None, None) => {}
            (Some(_), Some(at_ms)) => {
                self.table.entry_mut(slot).0.set_word(at_ms as u64);
                self.table.note_expiry(slot, at_ms);
                self.note(Some(at_ms), 0);
            }
            _ => {
                let value = element.0.has_value().then(|| element.value().to_vec());
                self.put(slot, key, value.as_deref(), expiry, had);
            }
        }
        true
    }

    /// Updates the summary with a new expiry, if there is one, and the change of the number of expiring elements.
    fn note(&mut self, at_ms: Option<i64>, change: i32) {
        if at_ms.is_none() && change == 0 || self.timing.is_none() && change <= 0 {
            return;
        }
        let timing = self.timing.get_or_insert_with(|| {
            Box::new(Timing { count: 0, earliest_ms: i64::MAX, purge_from: 0, purged_earliest_ms: i64::MAX })
        });
        timing.count = timing.count.wrapping_add_signed(change as isize);
        if let Some(at_ms) = at_ms {
            timing.earliest_ms = timing.earliest_ms.min(at_ms);
            timing.purged_earliest_ms = timing.purged_earliest_ms.min(at_ms);
        }
        if timing.count == 0 {
            self.timing = None;
        }
    }

    /// Removes an element. Returns true if it existed and had not expired.
    #[inline]
    pub fn remove(&mut self, key: &[u8], now_ms: i64) -> bool {
        let Some(slot) = self.table.find(HASHER.hash(key), key) else { return false };
        let element = self.table.remove(slot);
        self.bytes -= element.0.bytes();
        if element.expiry().is_some() {
            self.note(None, -1);
        }
        self.shrink();
        element.lives(now_ms)
    }

    /// Rebuilds a table that is nearly empty, so that random choices from it stay fast and its memory is freed.
    /// Rebuilding larger ones would take too long for one command.
    #[inline]
    fn shrink(&mut self) {
        let len = self.table.len();
        if len > 0 && len < REBUILT_MAX && self.table.bytes() > 9 * SLOTS_PER_ELEMENT * len.max(32) {
            let mut table = Table::new(HASHER.clone(), 0);
            self.table.clear(|element| table.insert(HASHER.hash(element.key()), element));
            std::mem::swap(&mut self.table, &mut table);
        }
    }

    /// Removes elements that have expired by `now_ms`, examining about `limit` of them from where the last call
    /// stopped, and calls `gone` with each. Returns how many it removed, and whether it reached the end.
    pub fn purge(&mut self, now_ms: i64, limit: usize, gone: &mut dyn FnMut(&[u8])) -> (usize, bool) {
        let Some(timing) = &mut self.timing else { return (0, true) };
        if timing.purge_from == 0 {
            timing.purged_earliest_ms = i64::MAX;
        }
        let (mut removed, mut bytes) = (0, 0);
        let swept = self.table.sweep(
            now_ms,
            timing.purge_from,
            limit,
            |_| Due::Remove,
            |element| {
                gone(element.key());
                removed += 1;
                bytes += element.0.bytes();
            },
        );
        self.bytes -= bytes;
        timing.count -= removed;
        timing.purge_from = swept.next.unwrap_or(0);
        timing.purged_earliest_ms = timing.purged_earliest_ms.min(swept.earliest_ms);
        let done = swept.next.is_none();
        if done {
            timing.earliest_ms = timing.purged_earliest_ms;
        }
        if timing.count == 0 {
            self.timing = None;
        }
        (removed, done || self.timing.is_none())
    }

    /// Returns the elements that have not expired, in no order.
    #[inline]
    pub fn iter(&self, now_ms: i64) -> impl Iterator<Item = &Element> {
        self.table.entries().filter(move |element| element.lives(now_ms))
    }

    /// Visits elements as SCAN does: from the cursor on, about `count` of them. Returns the next cursor.
    pub fn scan(&self, cursor: u64, mut count: usize, now_ms: i64, mut visit: impl FnMut(&Element)) -> Option<u64> {
        let mut from = (cursor < 1 << crate::table::ORDER_BITS).then_some(cursor)?;
        loop {
            let next = self.table.scan(from, &mut count, |element| {
                if element.lives(now_ms) {
                    visit(element);
                }
            });
            from = next?;
            if count == 0 {
                return Some(from);
            }
        }
    }

    /// Returns a random element.
    #[inline]
    pub fn any(&self, now_ms: i64, random: &mut dyn FnMut() -> u64) -> Option<&Element> {
        let drawn = (0..64).filter_map(|_| self.table.random(&mut *random)).find(|element| element.lives(now_ms));
        // Most have expired and wait to be removed: choose among those that have not.
        drawn.or_else(|| {
            let living = self.iter(now_ms).count();
            self.iter(now_ms).nth(crate::random::below(living, random))
        })
    }

    /// Returns `count` different random elements, or all of them, in no order.
    pub fn some(&self, count: usize, now_ms: i64, random: &mut dyn FnMut() -> u64) -> Vec<&Element> {
        // Random choice is faster as long as it seldom finds the same element twice.
        if self.timing.is_none() && count <= self.len() / 4 {
            let mut drawn = HashSet::with_capacity(count);
            let mut found = Vec::with_capacity(count);
            while found.len() < count {
                let Some(element) = self.table.random(&mut *random) else { break };
                if drawn.insert(element.key().as_ptr()) {
                    found.push(element);
                }
            }
            return found;
        }
        let living = if self.timing.is_none() { self.len() } else { self.iter(now_ms).count() };
        let mut selection = Selection::new(count, living, random);
        self.iter(now_ms).filter(|_| selection.takes()).collect()
    }

    /// Returns a table of its own with the same elements.
    pub fn copy(&self) -> Elements {
        let mut copy = Elements::new();
        for element in self.table.entries() {
            let cell = element.0.clone();
            copy.put_new(HASHER.hash(element.key()), cell, element.expiry());
        }
        copy
    }

    /// Returns the bytes of the cells, and the number of expiring elements.
    #[cfg(test)]
    pub fn accounts(&self) -> (usize, usize) {
        (self.bytes, self.timing.as_ref().map_or(0, |timing| timing.count))
    }
}

impl Drop for Elements {
    #[inline]
    fn drop(&mut self) {
        self.table.clear(drop);
    }
}

impl std::fmt::Debug for Elements {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} elements", self.table.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    struct Random(u64);

    impl Random {
        fn bits(&mut self) -> u64 {
            let bits;
            (self.0, bits) = crate::random::step(self.0);
            bits
        }

        fn below(&mut self, limit: u64) -> u64 {
            self.bits() % limit
        }
    }

    type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<i64>)>;

    #[track_caller]
    fn check(elements: &Elements, model: &Model, now_ms: i64) {
        let living = |at_ms: Option<i64>| at_ms.is_none_or(|at_ms| at_ms > now_ms);
        let found: BTreeMap<&[u8], &[u8]> = elements.iter(now_ms).map(|e| (e.key(), e.value())).collect();
        let expected: BTreeMap<&[u8], &[u8]> =
            model.iter().filter(|(_, (_, at_ms))| living(*at_ms)).map(|(k, (v, _))| (&k[..], &v[..])).collect();
        assert_eq!(found, expected);
        let cells: usize = elements.table.entries().map(|element| element.0.bytes()).sum();
        let timed = elements.table.entries().filter(|element| element.expiry().is_some()).count();
        assert_eq!(elements.accounts(), (cells, timed));
        let earliest = elements.table.entries().filter_map(Element::expiry).min();
        assert!(earliest >= elements.earliest_ms() || earliest.is_none(), "an element would never be purged");
    }

    #[test]
    fn a_map_with_times_does_the_same() {
        for seed in 1..=4 {
            let (mut elements, mut model, mut random) = (Elements::new(), Model::new(), Random(seed));
            let mut now_ms = 0;
            for round in 0..30_000 {
                let key = format!("field:{}", random.below(3_000)).into_bytes();
                let lives = model.get(&key).is_some_and(|(_, at_ms)| at_ms.is_none_or(|at_ms| at_ms > now_ms));
                let at_ms = now_ms + 1 + random.below(5_000) as i64;
                match random.below(10) {
                    0..4 => {
                        let value = vec![b'v'; random.below(300) as usize];
                        let kept = model.get(&key).filter(|_| lives).and_then(|(_, at_ms)| *at_ms);
                        let (expiry, expected) = match random.below(3) {
                            0 => (Expiry::None, None),
                            1 => (Expiry::Keep, kept),
                            _ => (Expiry::At(at_ms), Some(at_ms)),
                        };
                        assert_eq!(elements.insert(&key, Some(&value), expiry, now_ms), !lives);
                        model.insert(key, (value, expected));
                    }
                    4..6 => {
                        let expiry = (random.below(3) > 0).then_some(at_ms);
                        assert_eq!(elements.set_expiry(&key, expiry, now_ms), lives);
                        if lives {
                            model.get_mut(&key).expect("it lives").1 = expiry;
                        }
                    }
                    6..8 => {
                        assert_eq!(elements.remove(&key, now_ms), lives);
                        model.remove(&key);
                    }
                    8 => now_ms += random.below(20) as i64,
                    _ => {
                        elements.purge(now_ms, 100, &mut |_| {});
                    }
                }
                if round % 3_000 == 2_999 {
                    check(&elements, &model, now_ms);
                    check(&elements.copy(), &model, now_ms);
                }
            }
            now_ms += 10_000;
            // The first end may be that of a purge in progress, which did not start at the beginning.
            while !elements.purge(now_ms, 100, &mut |_| {}).1 {}
            while !elements.purge(now_ms, 100, &mut |_| {}).1 {}
            model.retain(|_, (_, at_ms)| at_ms.is_none());
            assert_eq!((elements.len(), elements.earliest_ms()), (model.len(), None));
            check(&elements, &model, now_ms);
        }
    }

    #[test]
    fn chance_prefers_nobody_and_repeats_nobody() {
        let mut random = Random(3);
        for (len, expired) in [(300, 0), (300, 100), (300, 295)] {
            let mut elements = Elements::new();
            for n in 0..len {
                let expiry = if n < expired { Expiry::At(5) } else { Expiry::None };
                elements.insert(format!("{n}").as_bytes(), None, expiry, 0);
            }
            let living = len - expired;
            for count in [1, 20, 299] {
                let mut drawn = BTreeMap::<Vec<u8>, u32>::new();
                for _ in 0..len * 20 {
                    let some = elements.some(count, 5, &mut || random.bits());
                    assert_eq!(some.len(), count.min(living));
                    let different: HashSet<&[u8]> = some.iter().map(|element| element.key()).collect();
                    assert_eq!(different.len(), some.len());
                    different.into_iter().for_each(|key| *drawn.entry(key.to_vec()).or_default() += 1);
                }
                assert_eq!(drawn.len(), living);
                // Within six standard deviations, and the unevenness of hashes.
                let mean = (len * 20 * count.min(living)) as f64 / living as f64;
                let spread = 6.0 * mean.sqrt() + 0.1 * mean;
                assert!(drawn.values().all(|n| (f64::from(*n) - mean).abs() <= spread), "{len} {expired} {count}");
            }
            let mut drawn = BTreeMap::<Vec<u8>, u32>::new();
            for _ in 0..living * 200 {
                let any = elements.any(5, &mut || random.bits()).expect("something lives");
                *drawn.entry(any.key().to_vec()).or_default() += 1;
            }
            assert!(drawn.len() == living && drawn.values().all(|n| (90..=330).contains(n)), "{drawn:?}");
        }
    }

    #[test]
    fn what_is_emptied_becomes_small_and_stays_quick() {
        let mut elements = Elements::new();
        (0..100_000).for_each(|n| {
            elements.insert(format!("{n}").as_bytes(), None, Expiry::None, TIMELESS);
        });
        let full = elements.bytes();
        (10..100_000).for_each(|n| assert!(elements.remove(format!("{n}").as_bytes(), TIMELESS)));
        assert!(elements.bytes() < full / 100, "{} of {full} bytes", elements.bytes());
        assert_eq!(elements.iter(TIMELESS).count(), 10);
        assert!((0..10).all(|n| elements.get(format!("{n}").as_bytes(), TIMELESS).is_some()));
    }

    #[test]
    fn a_scan_meets_every_element_once() {
        let mut elements = Elements::new();
        (0..5_000).for_each(|n| {
            elements.insert(format!("{n}").as_bytes(), None, Expiry::None, TIMELESS);
        });
        let (mut seen, mut cursor) = (HashSet::new(), Some(0));
        while let Some(from) = cursor {
            let before = seen.len();
            cursor = elements.scan(from, 70, TIMELESS, |e| assert!(seen.insert(e.key().to_vec())));
            assert!(seen.len() >= before + 70 || cursor.is_none());
        }
        assert_eq!(seen.len(), 5_000);
        assert_eq!(elements.scan(u64::MAX, 10, TIMELESS, |_| panic!("beyond the end")), None);
    }
}
