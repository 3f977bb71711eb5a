//! One element of a large value, in one block behind one pointer: a key, and perhaps a value and a word of 8 bytes.
//!
//! ```text
//! 0      [8]                    1|4        1|4                ..   ..
//! flags  word (score, expiry)   key bytes  value bytes        key  value
//! ```
//!
//! Lengths take one byte up to 255 and four beyond. So a set's member costs 2 bytes more than itself, a hash's field 3
//! more than field and value, a sorted set's member 10.
//!
//! Returning a block of megabytes to the kernel takes milliseconds, and an element is mostly removed under the lock of
//! a stripe. So blocks of that size, these and those of packed elements, wait in a list of the process for the next
//! tick of any store, which has them freed on the thread pool; blocks beyond a limit do not wait.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use parking_lot::Mutex;

/// Blocks of at least this size are freed later.
const LATE_MIN: usize = 4 << 20;
/// The maximum number of bytes that wait to be freed, plus one block.
const LATE_MAX: usize = 256 << 20;

/// A block that is no longer used.
pub struct Late(NonNull<u8>, Layout);

// SAFETY: a block belongs to its handle alone.
unsafe impl Send for Late {}

impl Drop for Late {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the caller that handed the block over promised that it has this layout and is not used.
        unsafe { dealloc(self.0.as_ptr(), self.1) }
    }
}

/// The blocks that wait to be freed, and their bytes. This lock comes after the stripes' locks, and is held only to add
/// one.
static LATE: Mutex<(Vec<Late>, usize)> = Mutex::new((Vec::new(), 0));

/// Frees a block; a large one later.
///
/// # Safety
/// It was allocated with this layout and is not used afterwards.
pub(super) unsafe fn free(start: NonNull<u8>, layout: Layout) {
    let block = Late(start, layout);
    if layout.size() < LATE_MIN {
        return drop(block);
    }
    let mut late = LATE.lock();
    if late.1 >= LATE_MAX {
        drop(late);
        return drop(block);
    }
    late.1 += layout.size();
    late.0.push(block);
    #[cfg(test)]
    tests::WAITED.set(tests::WAITED.get() + 1);
}

/// Takes the blocks that wait to be freed.
pub fn take_late() -> Vec<Late> {
    std::mem::take(&mut *LATE.lock()).0
}

const WORD: u8 = 1;
const VALUE: u8 = 2;
const LONG_KEY: u8 = 4;
const LONG_VALUE: u8 = 8;

/// An element.
#[derive(Debug)]
#[repr(transparent)]
pub struct Cell(NonNull<u8>);

// SAFETY: a block belongs to its handle alone.
unsafe impl Send for Cell {}
// SAFETY: through a shared handle the block is only read.
unsafe impl Sync for Cell {}

/// A second pointer to an element with another owner.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Alias(NonNull<u8>);

// SAFETY: it is as good as a shared reference to what may be sent and shared.
unsafe impl Send for Alias {}
// SAFETY: as above.
unsafe impl Sync for Alias {}

impl Alias {
    /// Returns the element.
    ///
    /// # Safety
    /// During the borrow the element is neither freed nor changed.
    #[inline]
    pub unsafe fn cell(&self) -> &Cell {
        // SAFETY: both types are one pointer to the block; the caller promises the rest. The element is never dropped
        // through a shared reference.
        unsafe { &*std::ptr::from_ref(self).cast::<Cell>() }
    }
}

impl Cell {
    /// Returns another pointer to this element.
    #[inline]
    pub fn alias(&self) -> Alias {
        Alias(self.0)
    }

    /// Returns an element with a copy of these parts, each at most 4 GiB.
    pub fn new(key: &[u8], value: Option<&[u8]>, word: Option<u64>) -> Cell {
        let long = |bytes: &[u8]| bytes.len() > usize::from(u8::MAX);
        let flags = if word.is_some() { WORD } else { 0 }
            | if value.is_some() { VALUE } else { 0 }
            | if long(key) { LONG_KEY } else { 0 }
            | if value.is_some_and(long) { LONG_VALUE } else { 0 };
        let size = head_bytes(flags) + key.len() + value.map_or(0, <[u8]>::len);
        let layout = Layout::from_size_align(size, 1).expect("strings are at most 512 MiB");
        // SAFETY: the size is not 0, as the flags take a byte.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        // SAFETY: the block is new and has `size` bytes.
        let block = unsafe {
            start.as_ptr().write_bytes(0, size);
            std::slice::from_raw_parts_mut(start.as_ptr(), size)
        };
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            block[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&[flags]);
        if let Some(word) = word {
            put(&word.to_le_bytes());
        }
        for (bytes, long) in [(Some(key), flags & LONG_KEY != 0), (value, flags & LONG_VALUE != 0)] {
            let Some(bytes) = bytes else { continue };
            match long {
                false => put(&[bytes.len() as u8]),
                true => put(&(bytes.len() as u32).to_le_bytes()),
            }
        }
        put(key);
        put(value.unwrap_or_default());
        Cell(start)
    }

    #[inline]
    fn flags(&self) -> u8 {
        // SAFETY: every block begins with its flags.
        unsafe { self.0.as_ptr().read() }
    }

    #[inline]
    fn head(&self) -> &[u8] {
        // SAFETY: every block has a head of this many bytes, initialised.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), head_bytes(self.flags())) }
    }

    /// Returns the lengths of the head and the key, and the offset of the value.
    fn parts(&self) -> (usize, usize, usize) {
        let head = self.head();
        let flags = head[0];
        let mut lengths = &head[1 + if flags & WORD != 0 { 8 } else { 0 }..];
        let mut next = |long: bool| {
            let (len, rest) = match long {
                false => (usize::from(lengths[0]), &lengths[1..]),
                true => {
                    let (first, rest) = lengths.split_first_chunk().expect("a long length has 4 bytes");
                    (u32::from_le_bytes(*first) as usize, rest)
                }
            };
            lengths = rest;
            len
        };
        let key = next(flags & LONG_KEY != 0);
        let value = if flags & VALUE != 0 { next(flags & LONG_VALUE != 0) } else { 0 };
        (head.len(), key, value)
    }

    /// Returns the key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        let (head, key, _) = self.parts();
        // SAFETY: `new` wrote that many bytes there.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(head), key) }
    }

    /// Returns the value; empty if there is none.
    #[inline]
    pub fn value(&self) -> &[u8] {
        let (head, key, value) = self.parts();
        // SAFETY: `new` wrote that many bytes there.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(head + key), value) }
    }

    /// Returns whether there is a value, possibly empty.
    #[inline]
    pub fn has_value(&self) -> bool {
        self.flags() & VALUE != 0
    }

    /// Returns the word.
    #[inline]
    pub fn word(&self) -> Option<u64> {
        let head = self.head();
        (head[0] & WORD != 0).then(|| u64::from_le_bytes(*head[1..].first_chunk().expect("a head with a word")))
    }

    /// Replaces the word of an element that has one; returns false, and does nothing, otherwise.
    #[inline]
    pub fn set_word(&mut self, word: u64) -> bool {
        if self.flags() & WORD == 0 {
            return false;
        }
        // SAFETY: the word's 8 bytes follow the flags.
        unsafe { self.0.as_ptr().add(1).cast::<[u8; 8]>().write_unaligned(word.to_le_bytes()) };
        true
    }

    /// Replaces the value by one of the same length; returns false, and does nothing, otherwise.
    #[inline]
    pub fn set_value(&mut self, bytes: &[u8]) -> bool {
        let (head, key, value) = self.parts();
        if self.flags() & VALUE == 0 || value != bytes.len() {
            return false;
        }
        // SAFETY: the value has as many bytes, and `bytes` can't be part of this element, which is borrowed mutably.
        unsafe { self.0.as_ptr().add(head + key).copy_from_nonoverlapping(bytes.as_ptr(), value) };
        true
    }

    /// Returns the bytes of the block.
    #[inline]
    pub fn bytes(&self) -> usize {
        let (head, key, value) = self.parts();
        head + key + value
    }
}

impl Clone for Cell {
    #[inline]
    fn clone(&self) -> Cell {
        Cell::new(self.key(), self.has_value().then(|| self.value()), self.word())
    }
}

impl Drop for Cell {
    #[inline]
    fn drop(&mut self) {
        let layout = Layout::from_size_align(self.bytes(), 1).expect("as it was allocated");
        // SAFETY: allocated with this layout, and not used afterwards.
        unsafe { free(self.0, layout) }
    }
}

#[inline]
fn head_bytes(flags: u8) -> usize {
    let length = |there: bool, long: bool| if !there { 0 } else { 1 + 3 * usize::from(long) };
    1 + if flags & WORD != 0 { 8 } else { 0 }
        + length(true, flags & LONG_KEY != 0)
        + length(flags & VALUE != 0, flags & LONG_VALUE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Packed;

    thread_local! {
        /// Blocks of this thread that were left to be freed later.
        pub(super) static WAITED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn large_blocks_wait_to_be_freed() {
        let long = vec![b'x'; LATE_MIN];
        drop(Cell::new(&long[..LATE_MIN / 2], None, None));
        assert_eq!(WAITED.get(), 0);
        drop(Cell::new(&long, None, None));
        assert_eq!(WAITED.get(), 1);
        let mut packed = Packed::new();
        packed.push_back(&long);
        drop(packed);
        assert_eq!(WAITED.get(), 2);
        // The number of waiting blocks is bounded.
        for _ in 0..2 * LATE_MAX / LATE_MIN {
            drop(Cell::new(&long, None, None));
            assert!(LATE.lock().1 <= LATE_MAX + 2 * LATE_MIN);
        }
        take_late();
    }

    #[track_caller]
    fn check(key: usize, value: Option<usize>, word: Option<u64>, bytes: usize) {
        let (key, value) = (vec![b'k'; key], value.map(|len| vec![b'v'; len]));
        let mut cell = Cell::new(&key, value.as_deref(), word);
        assert_eq!((cell.key(), cell.value()), (&key[..], value.as_deref().unwrap_or_default()));
        assert_eq!((cell.word(), cell.bytes()), (word, bytes));
        assert_eq!(cell.set_word(7), word.is_some());
        let other = value.as_ref().map(|value| vec![b'w'; value.len()]);
        assert_eq!(cell.set_value(other.as_deref().unwrap_or_default()), value.is_some());
        let copy = cell.clone();
        assert_eq!((copy.key(), copy.value()), (&key[..], other.as_deref().unwrap_or_default()));
        assert_eq!((copy.word(), copy.bytes()), (word.map(|_| 7), bytes));
        assert!(!cell.set_value(b"of another length"));
    }

    #[test]
    fn parts_come_back() {
        check(0, None, None, 2);
        check(8, None, None, 10);
        check(8, None, Some(1), 18);
        check(8, Some(6), None, 17);
        check(8, Some(0), Some(u64::MAX), 19);
        check(255, Some(255), None, 3 + 510);
        check(256, Some(256), Some(9), 1 + 8 + 8 + 512);
    }
}
