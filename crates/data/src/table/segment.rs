//! A segment of a table: a head, fingerprints in groups of eight, and the slots.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::{Item, prefetch};
use crate::pages::{self, PAGE_BYTES};

const GROUP: usize = 8;
const EMPTY: u8 = 0;
const DELETED: u8 = 1;
/// Sizes in slots; the largest splits instead of growing.
pub(super) const CAPACITIES: [usize; 5] = [8, 24, 48, 112, 224];
pub(super) const FULL: usize = CAPACITIES[CAPACITIES.len() - 1];

#[repr(C)]
pub(super) struct Head {
    /// No entry expires before this, in Unix milliseconds.
    pub(super) earliest_ms: i64,
    capacity: u16,
    pub(super) len: u16,
    /// Slots that are not empty: entries and tombstones.
    used: u16,
    /// Bits of the hash that all entries share, beyond the stripe's.
    pub(super) depth: u8,
}

const HEAD: usize = 16;
const _: () = assert!(size_of::<Head>() == HEAD && FULL.is_multiple_of(GROUP) && layout(FULL).size() == PAGE_BYTES);

/// Returns the offset of a segment's slots. Those of the largest are aligned to a cache line, so that a group's are one
/// line.
const fn slots_at(capacity: usize) -> usize {
    if capacity == FULL { (HEAD + FULL).next_multiple_of(64) } else { HEAD + capacity }
}

/// Returns the bytes of a segment of `capacity` slots.
pub(super) const fn layout(capacity: usize) -> Layout {
    match Layout::from_size_align(slots_at(capacity) + 8 * capacity, 8) {
        Ok(layout) => layout,
        Err(_) => panic!("a segment is small"),
    }
}

/// A pointer to a segment: head, then a fingerprint per slot, then the slots. Several places of one directory hold the
/// same pointer; the table deletes each segment once.
#[repr(transparent)]
pub(super) struct Segment<T>(NonNull<Head>, PhantomData<T>);

impl<T: Item> Segment<T> {
    pub(super) fn new(capacity: usize, depth: u8) -> Segment<T> {
        const { assert!(size_of::<Option<T>>() == 8, "a slot is a pointer") };
        let layout = layout(capacity);
        // SAFETY: the layout's size is not 0, and that of the largest is a page's; head, fingerprints and slots lie in it,
        // and a capacity that is a multiple of 8 keeps the slots aligned. A null pointer is `None` of the slot's type.
        unsafe {
            let block = if capacity == FULL { pages::take() } else { alloc(layout) };
            let Some(start) = NonNull::new(block.cast::<Head>()) else { handle_alloc_error(layout) };
            start.write(Head { earliest_ms: i64::MAX, capacity: capacity as u16, len: 0, used: 0, depth });
            block.add(HEAD).write_bytes(EMPTY, layout.size() - HEAD);
            Segment(start, PhantomData)
        }
    }

    /// Another pointer to the same segment. The table's methods see to it that no reference into the segment is alive
    /// when one is made mutable through another alias: each works through one alias at a time under `&mut Table`.
    pub(super) fn alias(&self) -> Segment<T> {
        Segment(self.0, PhantomData)
    }

    pub(super) fn delete(self) {
        let (block, capacity) = (self.0.as_ptr().cast::<u8>(), self.capacity());
        // SAFETY: the table calls this once per segment, after the last alias left the directory; it goes where it came
        // from, with the layout that it was made with.
        unsafe {
            match capacity {
                FULL => pages::give([block]),
                _ => dealloc(block, layout(capacity)),
            }
        }
    }

    pub(super) fn head(&self) -> &Head {
        // SAFETY: a segment in the directory is live, and mutable access goes through `&mut Table`.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn head_mut(&mut self) -> &mut Head {
        // SAFETY: as in `head`.
        unsafe { self.0.as_mut() }
    }

    pub(super) fn capacity(&self) -> usize {
        self.head().capacity as usize
    }

    fn prints(&self) -> &[u8] {
        // SAFETY: `capacity` initialised bytes follow the head.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>().add(HEAD), self.capacity()) }
    }

    fn set_print(&mut self, index: usize, print: u8) {
        debug_assert!(index < self.capacity());
        // SAFETY: `index` is below the capacity, so the byte is a fingerprint.
        unsafe { self.0.as_ptr().cast::<u8>().add(HEAD + index).write(print) }
    }

    pub(super) fn slots(&self) -> &[Option<T>] {
        let capacity = self.capacity();
        // SAFETY: `capacity` slots follow the fingerprints, all initialised (null is `None`).
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>().add(slots_at(capacity)).cast(), capacity) }
    }

    pub(super) fn slots_mut(&mut self) -> &mut [Option<T>] {
        let capacity = self.capacity();
        // SAFETY: as in `slots`.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().cast::<u8>().add(slots_at(capacity)).cast(), capacity) }
    }

    #[inline]
    fn group(&self, group: usize) -> u64 {
        debug_assert!(group < self.groups());
        // SAFETY: `capacity` initialised bytes follow the head, and `group` is below the number of groups: each caller has
        // it from `home` or from the index of a slot, or counts up to the number of groups. They are aligned as the head.
        u64::from_le(unsafe { self.0.as_ptr().cast::<u8>().add(HEAD + group * GROUP).cast::<u64>().read() })
    }

    fn groups(&self) -> usize {
        self.capacity() / GROUP
    }

    fn home(&self, hash: u64) -> usize {
        ((hash >> 8 & 0xffff) as usize * self.groups()) >> 16
    }

    /// Returns whether there is room for another entry: at least a fourteenth of the slots stays empty, so every search
    /// ends.
    pub(super) fn has_room(&self) -> bool {
        let capacity = self.capacity();
        (self.head().used as usize) < capacity - capacity.div_ceil(14)
    }

    /// Fetches the lines that a lookup in a full-sized segment will read, all at once instead of one after the other.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        let home = ((hash >> 8 & 0xffff) as usize * (FULL / GROUP)) >> 16;
        let start = self.0.as_ptr().cast::<u8>();
        prefetch(start.wrapping_add(HEAD + home * GROUP));
        prefetch(start.wrapping_add(slots_at(FULL) + home * GROUP * size_of::<T>()));
    }

    /// Returns the entry that a lookup of this hash examines first.
    #[inline]
    pub(super) fn candidate(&self, hash: u64) -> Option<&T> {
        let group = self.home(hash);
        let hits = equal(self.group(group), fingerprint(hash));
        if hits == 0 { None } else { self.slots()[group * GROUP + hits.trailing_zeros() as usize / 8].as_ref() }
    }

    /// Returns the entry with this hash that satisfies `is_it`, and its index.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(&T) -> bool) -> Option<(usize, &T)> {
        self.prefetch(hash);
        let group = self.home(hash);
        let word = self.group(group);
        // Nearly all entries are the first in their group with their fingerprint, and nearly all groups have room.
        let hits = equal(word, fingerprint(hash));
        if hits != 0 {
            let index = group * GROUP + hits.trailing_zeros() as usize / 8;
            if let Some(entry) = self.slots()[index].as_ref().filter(|entry| is_it(entry)) {
                return Some((index, entry));
            }
        } else if equal(word, EMPTY) != 0 {
            return None;
        }
        self.find_beyond(hash, is_it)
    }

    /// [`find`](Self::find), for an entry that is not the first candidate.
    #[inline(never)]
    fn find_beyond(&self, hash: u64, is_it: impl Fn(&T) -> bool) -> Option<(usize, &T)> {
        let print = fingerprint(hash);
        let groups = self.groups();
        let slots = self.slots();
        let mut group = self.home(hash);
        for _ in 0..groups {
            let word = self.group(group);
            let mut hits = equal(word, print);
            while hits != 0 {
                let index = group * GROUP + hits.trailing_zeros() as usize / 8;
                if let Some(entry) = slots[index].as_ref().filter(|entry| is_it(entry)) {
                    return Some((index, entry));
                }
                hits &= hits - 1;
            }
            if equal(word, EMPTY) != 0 {
                return None;
            }
            group = if group + 1 == groups { 0 } else { group + 1 };
        }
        None
    }

    /// Adds an entry; there is room.
    pub(super) fn put(&mut self, hash: u64, entry: T) {
        let groups = self.groups();
        let mut group = self.home(hash);
        let index = loop {
            let word = self.group(group);
            let free = equal(word, EMPTY) | equal(word, DELETED);
            if free != 0 {
                break group * GROUP + free.trailing_zeros() as usize / 8;
            }
            group = if group + 1 == groups { 0 } else { group + 1 };
        };
        let was_empty = self.prints()[index] == EMPTY;
        let at_ms = entry.due().unwrap_or(i64::MAX);
        self.set_print(index, fingerprint(hash));
        self.slots_mut()[index] = Some(entry);
        let head = self.head_mut();
        head.len += 1;
        head.used += u16::from(was_empty);
        head.earliest_ms = head.earliest_ms.min(at_ms);
    }

    /// Removes the entry at `index`.
    pub(super) fn take(&mut self, index: usize) -> T {
        let entry = self.slots_mut()[index].take().expect("a slot that was found");
        // No search went past a group that has an empty slot, so nothing needs a tombstone there.
        let ends_here = equal(self.group(index / GROUP), EMPTY) != 0;
        self.set_print(index, if ends_here { EMPTY } else { DELETED });
        let head = self.head_mut();
        head.len -= 1;
        head.used -= u16::from(ends_here);
        entry
    }
}

/// Returns the byte kept of a hash: 2 to 255, from bits that choose neither segment nor group.
#[inline]
fn fingerprint(hash: u64) -> u8 {
    (((hash & 0xff) * 254) >> 8) as u8 + 2
}

/// Returns a word with the top bit of each byte set where `word` has `byte`.
#[inline]
fn equal(word: u64, byte: u8) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let difference = word ^ (u64::from(byte) * 0x0101_0101_0101_0101);
    !(((difference & LOW) + LOW) | difference | LOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_compared_exactly() {
        assert_eq!(equal(u64::from_le_bytes([0, 1, 0, 2, 255, 0, 3, 128]), 0), 0x0000_8000_0080_0080);
        assert_eq!(equal(u64::from_le_bytes([7; 8]), 7), 0x8080_8080_8080_8080);
        assert_eq!(equal(0x0100, 0), 0x8080_8080_8080_0080);
    }
}
