//! Sorted integers in one block, in the format of Redis's intset: the form of small sets of integers, which DUMP writes
//! byte for byte.
//!
//! ```text
//! 0..4             4..8    8..
//! bytes a number   count   numbers, ascending
//! ```
//!
//! All little-endian. Each number takes 2, 4 or 8 bytes, the width of the widest number ever inserted. So ten small
//! integers take 28 bytes.
//!
//! A handle is one pointer. Cost: a search is binary, an insertion moves the numbers after it. Limit: the length of the
//! block fits 32 bits ([`COUNT_MAX`]); the limits of sets are far below.

use std::alloc::dealloc;
use std::ptr::NonNull;

use super::block;

/// The alignment of a block.
const ALIGN: usize = 8;
const HEAD: usize = 8;
/// The maximum number of integers in a block, as in Redis.
pub const COUNT_MAX: usize = 1 << 29;

/// A block of integers.
#[derive(Debug)]
pub struct Intset(NonNull<u8>);

// SAFETY: a block belongs to its handle alone.
unsafe impl Send for Intset {}
// SAFETY: through a shared handle the block is only read.
unsafe impl Sync for Intset {}

/// Returns the number of bytes that an integer needs.
#[inline]
fn width_of(value: i64) -> usize {
    if i16::try_from(value).is_ok() {
        2
    } else if i32::try_from(value).is_ok() {
        4
    } else {
        8
    }
}

impl Default for Intset {
    #[inline]
    fn default() -> Intset {
        Intset::new()
    }
}

impl Intset {
    /// Returns a block without numbers.
    #[inline]
    pub fn new() -> Intset {
        Intset::of_bytes(&[2, 0, 0, 0, 0, 0, 0, 0])
    }

    /// Returns a block with a copy of these bytes, which are a valid intset.
    #[inline]
    fn of_bytes(bytes: &[u8]) -> Intset {
        Intset(block::copy_of(bytes, ALIGN))
    }

    /// Parses an untrusted payload. Returns [`None`] if it is not a valid intset or is empty.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Intset> {
        let (head, numbers) = bytes.split_first_chunk::<HEAD>()?;
        let width = u32::from_le_bytes(*head.first_chunk()?) as usize;
        let count = u32::from_le_bytes(*head.last_chunk()?) as usize;
        if !matches!(width, 2 | 4 | 8) || count == 0 || count > COUNT_MAX || numbers.len() != width * count {
            return None;
        }
        let set = Intset::of_bytes(bytes);
        let ascending = (1..count).all(|index| set.get(index - 1) < set.get(index));
        ascending.then_some(set)
    }

    /// Returns the set in the format of Redis's intset.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the block has `used` initialised bytes, and changes only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.used()) }
    }

    #[inline]
    fn head(&self, word: usize) -> usize {
        debug_assert!(word < 2);
        // SAFETY: every block begins with two words of 4 bytes, aligned.
        u32::from_le(unsafe { self.0.as_ptr().cast::<u32>().add(word).read() }) as usize
    }

    #[inline]
    fn set_head(&mut self, width: usize, count: usize) {
        // SAFETY: as in `head`.
        unsafe {
            self.0.as_ptr().cast::<u32>().write((width as u32).to_le());
            self.0.as_ptr().cast::<u32>().add(1).write((count as u32).to_le());
        }
    }

    #[inline]
    fn width(&self) -> usize {
        self.head(0)
    }

    /// Returns the number of integers.
    #[inline]
    pub fn len(&self) -> usize {
        self.head(1)
    }

    #[inline]
    fn used(&self) -> usize {
        HEAD + self.width() * self.len()
    }

    /// Returns the bytes of the block.
    #[inline]
    pub fn bytes(&self) -> usize {
        block::size(self.used())
    }

    /// Returns the number with this index, in ascending order.
    #[inline]
    pub fn get(&self, index: usize) -> i64 {
        read(&self.as_bytes()[HEAD..], self.width(), index)
    }

    /// Returns all numbers, ascending.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = i64> {
        let (numbers, width) = (&self.as_bytes()[HEAD..], self.width());
        (0..self.len()).map(move |index| read(numbers, width, index))
    }

    /// Returns the index of a number, or the one at which it would be.
    fn search(&self, value: i64) -> Result<usize, usize> {
        let (numbers, width) = (&self.as_bytes()[HEAD..], self.width());
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match read(numbers, width, middle).cmp(&value) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Returns the index of the first number from index `from` on that is at least `value`; the count if there is none.
    /// The search starts at `from` and doubles its steps, so that queries in ascending order scan the set at most
    /// once.
    pub fn seek(&self, from: usize, value: i64) -> usize {
        let (numbers, width, count) = (&self.as_bytes()[HEAD..], self.width(), self.len());
        let is_below = |index: usize| index < count && read(numbers, width, index) < value;
        let (mut low, mut step) = (from, 1);
        while is_below(low + step - 1) {
            low += step;
            step *= 2;
        }
        // The number is among the `step` numbers from `low` on, or after them.
        let mut high = (low + step - 1).min(count);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_below(middle) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Returns a set of these numbers, which are in ascending order.
    #[inline]
    pub fn of_ascending(numbers: &[i64]) -> Intset {
        debug_assert!(numbers.is_sorted_by(|a, b| a < b) && numbers.len() <= COUNT_MAX);
        let width = numbers.iter().map(|number| width_of(*number)).max().unwrap_or(2);
        let mut bytes = Vec::with_capacity(HEAD + width * numbers.len());
        bytes.extend((width as u32).to_le_bytes());
        bytes.extend((numbers.len() as u32).to_le_bytes());
        numbers.iter().for_each(|number| bytes.extend(&number.to_le_bytes()[..width]));
        Intset::of_bytes(&bytes)
    }

    /// Returns whether the set contains a number.
    #[inline]
    pub fn contains(&self, value: i64) -> bool {
        self.search(value).is_ok()
    }

    /// Adds a number. Returns false if it exists. The set has fewer than [`COUNT_MAX`].
    pub fn insert(&mut self, value: i64) -> bool {
        let Err(index) = self.search(value) else { return false };
        let (count, width) = (self.len(), self.width().max(width_of(value)));
        debug_assert!(count < COUNT_MAX);
        if width > self.width() {
            let mut bytes = Vec::with_capacity(HEAD + width * (count + 1));
            bytes.extend((width as u32).to_le_bytes());
            bytes.extend((count as u32).to_le_bytes());
            self.iter().for_each(|old| bytes.extend(&old.to_le_bytes()[..width]));
            *self = Intset::of_bytes(&bytes);
        }
        let used = self.used();
        self.resize(used, used + width);
        let place = HEAD + width * index;
        // SAFETY: the block has room for `used + width` bytes, and `place` is at most `used`.
        unsafe {
            let start = self.0.as_ptr().add(place);
            std::ptr::copy(start, start.add(width), used - place);
            start.copy_from_nonoverlapping(value.to_le_bytes().as_ptr(), width);
        }
        self.set_head(width, count + 1);
        true
    }

    /// Removes a number. Returns false if it does not exist.
    pub fn remove(&mut self, value: i64) -> bool {
        let Ok(index) = self.search(value) else { return false };
        let (count, width, used) = (self.len(), self.width(), self.used());
        let place = HEAD + width * index;
        // SAFETY: the number's bytes end at `used` at the latest, and the bytes after it move within the block.
        unsafe {
            let start = self.0.as_ptr().add(place);
            std::ptr::copy(start.add(width), start, used - place - width);
        }
        self.set_head(width, count - 1);
        self.resize(used, used - width);
        true
    }

    #[inline]
    fn resize(&mut self, from: usize, to: usize) {
        // SAFETY: the block has `from` bytes in use, and every block has its head.
        self.0 = unsafe { block::resize(self.0, from, to, ALIGN) };
    }

    /// Returns the block itself, for an owner that keeps a bare pointer.
    #[inline]
    pub fn into_raw(self) -> NonNull<u8> {
        std::mem::ManuallyDrop::new(self).0
    }

    /// Returns the handle of a block.
    ///
    /// # Safety
    /// `block` came from [`into_raw`](Self::into_raw) and no other handle of it is used or dropped.
    #[inline]
    pub unsafe fn from_raw(block: NonNull<u8>) -> Intset {
        Intset(block)
    }
}

/// Returns the number with this index, each of `width` bytes.
#[inline]
fn read(numbers: &[u8], width: usize, index: usize) -> i64 {
    let bytes = &numbers[width * index..];
    match width {
        2 => bytes.first_chunk().map_or(0, |bytes| i64::from(i16::from_le_bytes(*bytes))),
        4 => bytes.first_chunk().map_or(0, |bytes| i64::from(i32::from_le_bytes(*bytes))),
        _ => bytes.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes)),
    }
}

impl Clone for Intset {
    #[inline]
    fn clone(&self) -> Intset {
        Intset::of_bytes(self.as_bytes())
    }
}

impl Drop for Intset {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, which follows from the bytes in use.
        unsafe { dealloc(self.0.as_ptr(), block::layout(self.used(), ALIGN)) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![
            -5..5_i64,
            -300..300_i64,
            any::<i16>().prop_map(i64::from),
            any::<i32>().prop_map(i64::from),
            any::<i64>(),
            Just(i64::MIN),
            Just(i64::MAX),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_block_does_what_a_set_does(steps in proptest::collection::vec((any::<bool>(), number()), 0..400)) {
            let (mut set, mut model) = (Intset::new(), BTreeSet::new());
            for (adds, value) in steps {
                if adds {
                    prop_assert_eq!(set.insert(value), model.insert(value));
                } else {
                    prop_assert_eq!(set.remove(value), model.remove(&value));
                }
                prop_assert_eq!(set.len(), model.len());
                prop_assert_eq!(set.contains(value), model.contains(&value));
            }
            prop_assert!(set.iter().eq(model.iter().copied()));
            let numbers: Vec<i64> = model.iter().copied().collect();
            prop_assert!(Intset::of_ascending(&numbers).iter().eq(set.iter()));
            for from in 0..=numbers.len() {
                for value in numbers.iter().flat_map(|n| [n.saturating_sub(1), *n, n.saturating_add(1)]) {
                    let expected = from + numbers[from..].partition_point(|number| *number < value);
                    prop_assert_eq!(set.seek(from, value), expected);
                }
            }
            let again = Intset::parse(set.as_bytes());
            prop_assert_eq!(again.map(|again| again.iter().collect()), (!model.is_empty()).then_some(model));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(0_u8..4, 0..40)) {
            if let Some(set) = Intset::parse(&bytes) {
                prop_assert_eq!(set.as_bytes(), &bytes[..]);
                prop_assert!(set.iter().all(|value| set.contains(value)));
            }
        }
    }

    #[test]
    fn bytes_are_those_of_redis() {
        let mut set = Intset::new();
        [3, -1, 2].into_iter().for_each(|value| assert!(set.insert(value)));
        assert_eq!(set.as_bytes(), b"\x02\0\0\0\x03\0\0\0\xff\xff\x02\0\x03\0");
        set.insert(70_000);
        set.remove(2);
        assert_eq!(set.as_bytes(), b"\x04\0\0\0\x03\0\0\0\xff\xff\xff\xff\x03\0\0\0\x70\x11\x01\0");
        set.remove(70_000);
        assert_eq!(set.as_bytes()[0], 4, "it stays as wide");
    }

    #[test]
    fn what_is_no_intset_is_refused() {
        for bytes in [
            &b""[..],
            b"\x02\0\0\0\0\0\0\0",
            b"\x03\0\0\0\x01\0\0\0abc",
            b"\x02\0\0\0\x02\0\0\0\x01\0",
            b"\x02\0\0\0\x01\0\0\0\x01\0\0",
            b"\x02\0\0\0\x02\0\0\0\x01\0\x01\0",
            b"\x02\0\0\0\x02\0\0\0\x02\0\x01\0",
            b"\x08\0\0\0\xff\xff\xff\xff\x01\0\0\0\0\0\0\0",
        ] {
            assert!(Intset::parse(bytes).is_none(), "{bytes:?}");
        }
    }
}
