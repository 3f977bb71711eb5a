//! A few elements in one block, in the format of Redis's listpack: the form of small lists, sets, hashes and sorted
//! sets, which DUMP writes byte for byte.
//!
//! ```text
//! 0..4         4..6      6..                                      end
//! total bytes  elements  head data length-backwards  …            0xff
//! ```
//!
//! An element's head encodes whether it is an integer (7, 13, 16, 24, 32 or 64 bits) or a string (length of 6, 12 or 32
//! bits); the data is followed by the element's length, to be read from the end, so that backward iteration is as cheap
//! as forward iteration. So a string of up to 63 bytes costs 2 bytes more than itself, and an integer below 128 is 2
//! bytes.
//!
//! A handle is one pointer. The block's size follows from the bytes in use, so no capacity is stored.
//!
//! Cost: access by index and search are linear, an insertion moves the bytes after it: a few KiB at most. Limits: 4
//! GiB; from 65,535 elements on they must be counted.

use std::ptr::NonNull;

use sluicegate_wire::resp::parse_i64;
use smallvec::SmallVec;

use super::COPIED_MAX;
use super::block;
use super::elements::HASHER;

/// The alignment of a block.
const ALIGN: usize = 4;
const HEAD: usize = 6;
const END: u8 = 0xff;
const COUNT_UNKNOWN: u16 = u16::MAX;

/// An element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element<'a> {
    /// An integer.
    Int(i64),
    /// Any other text.
    Bytes(&'a [u8]),
}

impl<'a> Element<'a> {
    /// Returns the element as text; an integer's digits go to `digits`.
    #[inline]
    pub fn text<'b>(self, digits: &'b mut itoa::Buffer) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            Element::Int(value) => digits.format(value).as_bytes(),
            Element::Bytes(bytes) => bytes,
        }
    }

    /// Returns whether the element is too long to be copied under a lock.
    #[inline]
    pub fn is_long(self) -> bool {
        matches!(self, Element::Bytes(bytes) if bytes.len() > COPIED_MAX)
    }

    /// Returns whether the element equals this text. `value` is the text's [`integer`], so that a search parses it only
    /// once.
    #[inline]
    pub fn is(self, text: &[u8], value: Option<i64>) -> bool {
        match self {
            Element::Int(int) => value == Some(int),
            Element::Bytes(bytes) => bytes == text,
        }
    }
}

/// Returns the integer as which this text is stored in a block, if it is: the same texts as in Redis.
#[inline]
pub fn integer(text: &[u8]) -> Option<i64> {
    if text.is_empty() || text.len() > 20 { None } else { parse_i64(text) }
}

/// The start of an element; valid until the block changes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At(u32);

/// A block of elements.
#[derive(Debug)]
pub struct Packed(NonNull<u8>);

// SAFETY: a block belongs to its handle alone.
unsafe impl Send for Packed {}
// SAFETY: through a shared handle the block is only read.
unsafe impl Sync for Packed {}

impl Default for Packed {
    #[inline]
    fn default() -> Packed {
        Packed::new()
    }
}

impl Packed {
    /// Returns a block without elements.
    #[inline]
    pub fn new() -> Packed {
        Packed::from_raw_listpack(&[HEAD as u8 + 1, 0, 0, 0, 0, 0, END])
    }

    /// Returns a block with a copy of these bytes, which are a valid listpack.
    #[inline]
    fn from_raw_listpack(bytes: &[u8]) -> Packed {
        Packed(block::copy_of(bytes, ALIGN))
    }

    /// Parses an untrusted payload. Returns [`None`] if it is not a valid listpack.
    pub fn parse(bytes: &[u8]) -> Option<Packed> {
        let total = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
        if total != bytes.len() || total < HEAD + 1 || bytes.last() != Some(&END) {
            return None;
        }
        let (mut at, mut count) = (HEAD, 0_usize);
        while at < total - 1 {
            let size = Encoded::read(bytes.get(at..total - 1)?)?.size();
            let end = at.checked_add(size)?.checked_add(backward_bytes(size))?;
            if end > total - 1 || backward(bytes, end)? != (size, backward_bytes(size)) {
                return None;
            }
            at = end;
            count += 1;
        }
        let told = u16::from_le_bytes([bytes[4], bytes[5]]);
        if told != COUNT_UNKNOWN && usize::from(told) != count {
            return None;
        }
        let mut packed = Packed::from_raw_listpack(bytes);
        packed.set_count(count);
        Some(packed)
    }

    /// Returns the block in the format of Redis's listpack.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the block has `used` initialised bytes, and changes only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.used()) }
    }

    #[inline]
    fn used(&self) -> usize {
        // SAFETY: every block begins with its 4 bytes of length, aligned.
        u32::from_le(unsafe { self.0.as_ptr().cast::<u32>().read() }) as usize
    }

    /// Returns the bytes of the block.
    #[inline]
    pub fn bytes(&self) -> usize {
        block::size(self.used())
    }

    /// Returns the number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        // SAFETY: bytes 4 and 5 of every block are its count.
        match u16::from_le_bytes(unsafe { self.0.as_ptr().add(4).cast::<[u8; 2]>().read() }) {
            COUNT_UNKNOWN => self.counted(),
            count => usize::from(count),
        }
    }

    #[cold]
    fn counted(&self) -> usize {
        self.iter().count()
    }

    /// Returns whether there are no elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used() == HEAD + 1
    }

    #[inline]
    fn set_count(&mut self, count: usize) {
        let count = u16::try_from(count).unwrap_or(COUNT_UNKNOWN);
        // SAFETY: bytes 4 and 5 of every block are its count.
        unsafe { self.0.as_ptr().add(4).cast::<[u8; 2]>().write(count.to_le_bytes()) };
    }

    /// Returns the first element's place.
    #[inline]
    pub fn first(&self) -> Option<At> {
        (!self.is_empty()).then_some(At(HEAD as u32))
    }

    /// Returns the last element's place.
    #[inline]
    pub fn last(&self) -> Option<At> {
        self.before(self.used() - 1)
    }

    /// Returns the place after this element.
    #[inline]
    pub fn next(&self, at: At) -> Option<At> {
        let next = self.end_of(at);
        (next < self.used() - 1).then_some(At(next as u32))
    }

    /// Returns the place before this element.
    #[inline]
    pub fn previous(&self, at: At) -> Option<At> {
        self.before(at.0 as usize)
    }

    #[inline]
    fn before(&self, end: usize) -> Option<At> {
        if end == HEAD {
            return None;
        }
        let bytes = self.as_bytes();
        if let size @ 0..0x80 = bytes[end - 1] {
            return Some(At((end - 1) as u32 - u32::from(size)));
        }
        let (size, tail) = backward(bytes, end).expect("a block is well-formed");
        Some(At((end - tail - size) as u32))
    }

    #[inline(always)]
    fn end_of(&self, at: At) -> usize {
        let at = at.0 as usize;
        match WHOLE_BYTES[usize::from(self.as_bytes()[at])] {
            0 => self.end_of_long(At(at as u32)),
            bytes => at + usize::from(bytes),
        }
    }

    #[cold]
    fn end_of_long(&self, at: At) -> usize {
        let size = self.encoded(at).size();
        at.0 as usize + size + backward_bytes(size)
    }

    #[inline]
    fn encoded(&self, at: At) -> Encoded<'_> {
        Encoded::read(&self.as_bytes()[at.0 as usize..self.used() - 1]).expect("a block is well-formed")
    }

    /// Returns the element at a place.
    #[inline]
    pub fn get(&self, at: At) -> Element<'_> {
        self.encoded(at).element
    }

    /// Returns the element at a place, and the place after it.
    #[inline]
    pub fn read(&self, at: At) -> (Element<'_>, Option<At>) {
        let (bytes, place) = (self.as_bytes(), at.0 as usize);
        // Nearly all elements are short strings or small numbers.
        let (element, next) = match bytes[place] {
            first @ 0..0x80 => (Element::Int(i64::from(first)), place + 2),
            first @ 0x80..0xc0 => {
                let end = place + 1 + usize::from(first & 0x3f);
                (Element::Bytes(&bytes[place + 1..end]), end + 1)
            }
            _ => self.read_long(at),
        };
        (element, (next < bytes.len() - 1).then_some(At(next as u32)))
    }

    #[inline(never)]
    fn read_long(&self, at: At) -> (Element<'_>, usize) {
        let encoded = self.encoded(at);
        let size = encoded.size();
        (encoded.element, at.0 as usize + size + backward_bytes(size))
    }

    /// Returns the place of the element with this index, from the nearer end; negative indices count from the end.
    pub fn seek(&self, index: i64) -> Option<At> {
        let len = self.len() as i64;
        let index = if index < 0 { index + len } else { index };
        if !(0..len).contains(&index) {
            return None;
        }
        // There are as many elements, so each of these steps finds one.
        if index <= len / 2 {
            Some((0..index).fold(self.first()?, |at, _| At(self.end_of(at) as u32)))
        } else {
            (index + 1..len).try_fold(self.last()?, |at, _| self.previous(at))
        }
    }

    /// Returns the elements in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Element<'_>> {
        let mut place = self.first();
        std::iter::from_fn(move || {
            let (element, next) = self.read(place?);
            place = next;
            Some(element)
        })
    }

    /// Returns the places in order.
    #[inline]
    pub fn places(&self) -> impl Iterator<Item = At> {
        std::iter::successors(self.first(), |at| self.next(*at))
    }

    /// Returns the places from the last to the first.
    #[inline]
    pub fn places_back(&self) -> impl Iterator<Item = At> {
        std::iter::successors(self.last(), |at| self.previous(*at))
    }

    /// Returns the place of the first element that equals this text, examining every `step`th element: with 2, the
    /// fields of field-value pairs.
    #[inline]
    pub fn find(&self, text: &[u8], step: usize) -> Option<At> {
        self.search(self.first(), text, step).map(|(at, _)| at)
    }

    /// Like [`find`](Self::find), from a place on. Also returns the number of elements examined before the one found.
    pub fn search(&self, from: Option<At>, text: &[u8], step: usize) -> Option<(At, usize)> {
        let value = integer(text);
        let bytes = self.as_bytes();
        // The head that a string of this length has, unless it has a longer one than it needs. Elements of one block often
        // begin and measure alike, so the last byte is compared before the others.
        let head = if text.len() < 64 { 0x80 | text.len() as u8 } else { 0 };
        let (mut place, mut passed) = (from, 0);
        loop {
            let at = place?;
            let start = at.0 as usize + 1;
            let found = match bytes[at.0 as usize] {
                first @ 0..0x80 => value == Some(i64::from(first)),
                first @ 0x80..0xc0 => {
                    first == head
                        && text.last().is_none_or(|last| bytes[start + text.len() - 1] == *last)
                        && bytes[start..start + text.len()] == *text
                }
                _ => self.get(at).is(text, value),
            };
            if found {
                return Some((at, passed));
            }
            passed += 1;
            place = self.next(at);
            for _ in 1..step {
                place = self.next(place?);
            }
        }
    }

    /// Builds an index, for looking up many texts.
    #[inline]
    pub fn index(&self) -> Index<'_> {
        let mask = (2 * self.len()).next_power_of_two() - 1;
        let mut index = Index { packed: self, places: SmallVec::from_elem(0, mask + 1) };
        for at in self.places() {
            let mut slot = Index::hash(self.get(at)) & mask;
            while index.places[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            index.places[slot] = at.0;
        }
        index
    }

    /// Adds an element at the end.
    #[inline]
    pub fn push_back(&mut self, text: &[u8]) {
        self.put(self.used() - 1, text);
    }

    /// Adds an element at the start.
    #[inline]
    pub fn push_front(&mut self, text: &[u8]) {
        self.put(HEAD, text);
    }

    /// Adds elements before the one at `at`, or at the end.
    #[inline]
    pub fn insert(&mut self, at: Option<At>, texts: &[&[u8]]) {
        let place = at.map_or(self.used() - 1, |at| at.0 as usize);
        self.splice(place, 0, texts, texts.len() as isize);
    }

    /// Replaces an element.
    #[inline]
    pub fn replace(&mut self, at: At, text: &[u8]) {
        let old = self.end_of(at) - at.0 as usize;
        self.splice(at.0 as usize, old, &[text], 0);
    }

    /// Removes up to `count` elements from `at` on. Returns the same place if there are elements after them.
    #[inline]
    pub fn remove(&mut self, at: At, count: usize) -> Option<At> {
        let (place, last) = (at.0 as usize, self.used() - 1);
        let mut end = place;
        let mut removed = 0;
        while removed < count && end < last {
            end = self.end_of(At(end as u32));
            removed += 1;
        }
        self.gap(place, end - place, 0, -(removed as isize));
        (end < last).then_some(at)
    }

    /// Moves the elements from `at` on to a block of their own.
    pub fn split_off(&mut self, at: At) -> Packed {
        let (place, used) = (at.0 as usize, self.used());
        let total = HEAD + used - place;
        let mut bytes = Vec::with_capacity(total);
        bytes.extend_from_slice(&(total as u32).to_le_bytes());
        bytes.extend_from_slice(&COUNT_UNKNOWN.to_le_bytes());
        bytes.extend_from_slice(&self.as_bytes()[place..]);
        let mut tail = Packed::from_raw_listpack(&bytes);
        let moved = tail.len();
        tail.set_count(moved);
        self.splice(place, used - 1 - place, &[], -(moved as isize));
        tail
    }

    /// Replaces `old` bytes at `place` by the encoded `texts`.
    #[inline]
    fn splice(&mut self, place: usize, old: usize, texts: &[&[u8]], change: isize) {
        let new: usize = texts.iter().map(|text| encoded_bytes(text)).sum();
        let gap = self.gap(place, old, new, change);
        let mut at = 0;
        for text in texts {
            let text = Text::of(text);
            text.write(&mut gap[at..][..text.whole]);
            at += text.whole;
        }
        debug_assert_eq!(at, new);
    }

    /// Adds one element at `place`.
    #[inline]
    fn put(&mut self, place: usize, text: &[u8]) {
        let text = Text::of(text);
        text.write(self.gap(place, 0, text.whole, 1));
    }

    /// Makes `new` bytes of `old` ones at `place`, and `change` elements more of those there are. The caller writes the
    /// new bytes.
    #[inline]
    fn gap(&mut self, place: usize, old: usize, new: usize, change: isize) -> &mut [u8] {
        let count = self.len();
        let used = self.used();
        let total = used - old + new;
        assert!(place + old < used && total <= u32::MAX as usize, "a block is at most 4 GiB");
        // Room first, then the move: no byte is lost if the allocation fails.
        if total > used {
            self.resize(used, total);
        }
        // SAFETY: the block has room for `max(used, total)` bytes; `place + old` is less than `used`, and the bytes
        // after it move within the block, which has `total` bytes in use then.
        unsafe {
            let start = self.0.as_ptr();
            if place + old == used - 1 {
                start.add(place + new).write(END);
            } else {
                std::ptr::copy(start.add(place + old), start.add(place + new), used - place - old);
            }
            start.cast::<u32>().write((total as u32).to_le());
        }
        if total < used {
            self.resize(used, total);
        }
        self.set_count(count.wrapping_add_signed(change));
        // SAFETY: these bytes are among the `total` ones of the block, which is borrowed mutably; both callers write all of
        // them and read none.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().add(place), new) }
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
    pub unsafe fn from_raw(block: NonNull<u8>) -> Packed {
        Packed(block)
    }
}

/// The elements of a block by their hashes, for many look-ups, which are then not linear.
///
/// The hash of a string has the seed of the process. That of a number has none, so an attacker who chooses the numbers
/// may make a search as slow as without an index.
pub struct Index<'p> {
    packed: &'p Packed,
    /// The starts of elements, each at its hash or in the next free place; no element begins at 0.
    places: SmallVec<[u32; 256]>,
}

impl Index<'_> {
    /// Returns the hash of an element. A text and the integer that it represents have the same hash, because a payload
    /// may contain either.
    #[inline]
    fn hash(element: Element<'_>) -> usize {
        let value = match element {
            Element::Int(value) => Some(value),
            Element::Bytes(bytes) => integer(bytes),
        };
        match (value, element) {
            (None, Element::Bytes(bytes)) => HASHER.hash(bytes) as usize,
            (value, _) => (value.unwrap_or(0) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes() as usize,
        }
    }

    /// Returns whether this element exists.
    pub fn has(&self, element: Element<'_>) -> bool {
        let mut digits = itoa::Buffer::new();
        let text = element.text(&mut digits);
        let value = match element {
            Element::Int(value) => Some(value),
            Element::Bytes(bytes) => integer(bytes),
        };
        let mask = self.places.len() - 1;
        let mut slot = Index::hash(element) & mask;
        // At most half of the slots are in use, so a free one is found.
        while let at @ 1.. = self.places[slot] {
            if self.packed.get(At(at)).is(text, value) {
                return true;
            }
            slot = (slot + 1) & mask;
        }
        false
    }
}

impl Clone for Packed {
    #[inline]
    fn clone(&self) -> Packed {
        Packed::from_raw_listpack(self.as_bytes())
    }
}

impl Drop for Packed {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, which follows from the bytes in use.
        unsafe { super::cell::free(self.0, block::layout(self.used(), ALIGN)) }
    }
}

/// The size of an element with its trailing length, by its first byte; 0 if that does not determine it. Most look-ups
/// in a block consist of iterating over elements.
const WHOLE_BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut first = 0;
    while first < 256 {
        bytes[first] = match first {
            0..0x80 => 2,
            0x80..0xc0 => 2 + (first as u8 & 0x3f),
            0xc0..0xe0 => 3,
            0xf1 => 4,
            0xf2 => 5,
            0xf3 => 6,
            0xf4 => 10,
            _ => 0,
        };
        first += 1;
    }
    bytes
};

/// An element as it is encoded in a block.
struct Encoded<'a> {
    element: Element<'a>,
    head: usize,
    data: usize,
}

impl<'a> Encoded<'a> {
    /// Decodes the element at the start of `bytes`; [`None`] if they end within it or do not begin with one.
    fn read(bytes: &'a [u8]) -> Option<Encoded<'a>> {
        let first = *bytes.first()?;
        let string = |head: usize, len: usize| {
            let data = bytes.get(head..head.checked_add(len)?)?;
            Some(Encoded { element: Element::Bytes(data), head, data: len })
        };
        let int = |len: usize| {
            let mut wide = [0; 8];
            wide[..len].copy_from_slice(bytes.get(1..1 + len)?);
            let shift = 64 - 8 * len as u32;
            let value = i64::from_le_bytes(wide) << shift >> shift;
            Some(Encoded { element: Element::Int(value), head: 1, data: len })
        };
        match first {
            0..0x80 => Some(Encoded { element: Element::Int(i64::from(first)), head: 1, data: 0 }),
            0x80..0xc0 => string(1, usize::from(first & 0x3f)),
            0xc0..0xe0 => {
                let value = i64::from(first & 0x1f) << 8 | i64::from(*bytes.get(1)?);
                Some(Encoded { element: Element::Int(value << 51 >> 51), head: 1, data: 1 })
            }
            0xe0..0xf0 => string(2, usize::from(first & 0xf) << 8 | usize::from(*bytes.get(1)?)),
            0xf0 => string(5, u32::from_le_bytes(*bytes.get(1..)?.first_chunk()?) as usize),
            0xf1 => int(2),
            0xf2 => int(3),
            0xf3 => int(4),
            0xf4 => int(8),
            _ => None,
        }
    }

    /// Returns the bytes of head and data.
    #[inline]
    fn size(&self) -> usize {
        self.head + self.data
    }
}

/// A text that is to be encoded as an element.
struct Text<'t> {
    text: &'t [u8],
    /// Its value, if it is stored as an integer.
    value: Option<i64>,
    /// The bytes of head and data.
    size: usize,
    /// The bytes including the trailing length.
    whole: usize,
}

impl<'t> Text<'t> {
    #[inline]
    fn of(text: &'t [u8]) -> Text<'t> {
        let value = integer(text);
        let size = match value {
            Some(0..=127) => 1,
            Some(-4096..=4095) => 2,
            Some(-0x8000..=0x7fff) => 3,
            Some(-0x80_0000..=0x7f_ffff) => 4,
            Some(-0x8000_0000..=0x7fff_ffff) => 5,
            Some(_) => 9,
            None if text.len() < 64 => 1 + text.len(),
            None if text.len() < 4096 => 2 + text.len(),
            None => 5 + text.len(),
        };
        Text { text, value, size, whole: size + backward_bytes(size) }
    }

    /// Encodes the text as an element.
    #[inline]
    fn write(&self, out: &mut [u8]) {
        let Text { text, size, whole, .. } = *self;
        match self.value {
            Some(value @ 0..=127) => out[0] = value as u8,
            Some(value @ -4096..=4095) => {
                out[..2].copy_from_slice(&((value as u16 & 0x1fff) | 0xc000).to_be_bytes());
            }
            Some(value) => {
                out[0] = [0xf1, 0xf2, 0xf3, 0, 0, 0, 0xf4][size - 3];
                out[1..size].copy_from_slice(&value.to_le_bytes()[..size - 1]);
            }
            None => {
                let head = size - text.len();
                match head {
                    1 => out[0] = 0x80 | text.len() as u8,
                    2 => out[..2].copy_from_slice(&(0xe000 | text.len() as u16).to_be_bytes()),
                    _ => {
                        out[0] = 0xf0;
                        out[1..5].copy_from_slice(&(text.len() as u32).to_le_bytes());
                    }
                }
                out[head..size].copy_from_slice(text);
            }
        }
        if whole == size + 1 {
            out[size] = size as u8;
            return;
        }
        // From its end the length is read 7 bits at a time, the lowest last; a set top bit means that more precede it.
        for (index, byte) in out[size..whole].iter_mut().rev().enumerate() {
            let more = if size + index + 1 < whole { 0x80 } else { 0 };
            *byte = (size >> (7 * index)) as u8 & 0x7f | more;
        }
    }
}

/// Returns the bytes of a text encoded as an element, including the trailing length.
#[inline]
pub fn encoded_bytes(text: &[u8]) -> usize {
    Text::of(text).whole
}

/// Returns the bytes of an element's trailing length.
#[inline]
fn backward_bytes(size: usize) -> usize {
    match size {
        0..=0x7f => 1,
        0x80..0x3fff => 2,
        0x3fff..0x1f_ffff => 3,
        0x1f_ffff..0xfff_ffff => 4,
        _ => 5,
    }
}

/// Decodes the trailing length that ends at `end`. Returns the size of its element, and its own bytes.
#[inline]
fn backward(bytes: &[u8], end: usize) -> Option<(usize, usize)> {
    let mut size = 0;
    for index in 0..5 {
        let byte = *bytes.get(end.checked_sub(index + 1)?)?;
        size |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((size, index + 1));
        }
    }
    None
}

/// Parses any payload: must not panic, and a parsed one must be well-formed.
#[inline]
pub fn fuzz_packed(data: &[u8]) {
    let Some(mut packed) = Packed::parse(data) else { return };
    let count = packed.places_back().count();
    assert_eq!(count, packed.iter().count());
    assert_eq!(count, packed.len());
    packed.push_front(data);
    let first = packed.first().expect("one was added");
    assert!(packed.get(first).is(data, integer(data)));
    packed.remove(first, 1);
    assert_eq!(packed.len(), count);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(packed: &Packed) -> Vec<Vec<u8>> {
        packed.iter().map(|element| element.text(&mut itoa::Buffer::new()).to_vec()).collect()
    }

    /// Values at every border of the format.
    fn borders() -> Vec<Vec<u8>> {
        let mut values: Vec<Vec<u8>> =
            [0, 1, 62, 63, 64, 125, 126, 127, 128, 4095, 4096, 16_377, 16_378, 16_379, 16_400, 100_000]
                .iter()
                .map(|len| vec![b'x'; *len])
                .collect();
        for power in [7, 12, 13, 15, 16, 23, 24, 31, 32, 62] {
            for value in [1_i64 << power, (1 << power) - 1, -(1 << power), -(1 << power) - 1] {
                values.push(value.to_string().into_bytes());
            }
        }
        values.extend(
            [i64::MIN.to_string(), i64::MAX.to_string(), "007".into(), "-0".into(), "+1".into()]
                .map(String::into_bytes),
        );
        values
    }

    #[test]
    fn every_value_comes_back_and_parses() {
        let mut packed = Packed::new();
        for value in borders() {
            packed.push_back(&value);
        }
        assert_eq!(texts(&packed), borders());
        let back: Vec<_> =
            packed.places_back().map(|at| packed.get(at).text(&mut itoa::Buffer::new()).to_vec()).collect();
        assert_eq!(back, borders().into_iter().rev().collect::<Vec<_>>());
        let parsed = Packed::parse(packed.as_bytes()).expect("what was written is well-formed");
        assert_eq!(texts(&parsed), borders());
        let indexed = packed.index();
        for (index, value) in borders().iter().enumerate() {
            assert_eq!(packed.find(value, 1), packed.seek(index as i64), "{index}");
            let element = integer(value).map_or(Element::Bytes(value), Element::Int);
            assert!(indexed.has(element) && indexed.has(Element::Bytes(value)), "{index}");
        }
        for other in [&b""[..], b"x", b"y", b"5", b"-1", &[b'y'; 63], &[b'y'; 64]] {
            let known = borders().iter().any(|value| value == other);
            assert_eq!((packed.find(other, 1).is_some(), indexed.has(Element::Bytes(other))), (known, known));
        }
    }

    #[test]
    fn what_is_encoded_otherwise_than_here_is_found() {
        // A number as text, one in more bytes than it needs, and a short string with the head of a long one.
        let bytes = b"\x16\0\0\0\x03\0\x8212\x03\xf1\x05\0\x03\xf0\x01\0\0\0a\x06\xff";
        let packed = Packed::parse(bytes).expect("it is well-formed");
        let indexed = packed.index();
        for (at, text) in ["12", "5", "a"].into_iter().enumerate() {
            assert_eq!(packed.find(text.as_bytes(), 1), packed.seek(at as i64), "{text}");
            let value = integer(text.as_bytes()).map_or(Element::Bytes(text.as_bytes()), Element::Int);
            assert!(indexed.has(Element::Bytes(text.as_bytes())) && indexed.has(value), "{text}");
        }
        assert!(packed.find(b"a", 2).is_some() && packed.find(b"5", 2).is_none());
    }

    #[test]
    fn a_vector_does_the_same() {
        proptest::proptest!(|(steps in proptest::collection::vec((0_u8..6, 0_usize..40, "[0-9a]{0,70}"), 0..200))| {
            let (mut packed, mut model) = (Packed::new(), Vec::<Vec<u8>>::new());
            for (step, index, text) in steps {
                let text = text.into_bytes();
                let at = packed.seek(index as i64);
                assert_eq!(at.is_some(), index < model.len());
                match (step, at) {
                    (0, _) => { packed.push_back(&text); model.push(text); }
                    (1, _) => { packed.push_front(&text); model.insert(0, text); }
                    (2, Some(at)) => { packed.replace(at, &text); model[index] = text; }
                    (3, Some(at)) => { packed.insert(Some(at), &[&text, b"1"]); model.splice(index..index, [text, b"1".to_vec()]); }
                    (4, Some(at)) => {
                        let end = (index + 2).min(model.len());
                        let next = packed.remove(at, 2);
                        model.drain(index..end);
                        assert_eq!(next.is_some(), index < model.len());
                    }
                    _ => { packed.insert(None, &[]); }
                }
                assert_eq!(texts(&packed), model);
                assert!(Packed::parse(packed.as_bytes()).is_some());
            }
        });
    }

    #[test]
    fn any_bytes_are_refused_or_read() {
        proptest::proptest!(|(mut bytes in proptest::collection::vec(0_u8.., 0..80), change in 0_usize..100, to in 0_u8..)| {
            fuzz_packed(&bytes);
            let mut packed = Packed::new();
            packed.insert(None, &[&bytes, b"12", b"70000"]);
            bytes = packed.as_bytes().to_vec();
            fuzz_packed(&bytes);
            let place = change % bytes.len();
            bytes[place] = to;
            fuzz_packed(&bytes);
        });
    }
}
