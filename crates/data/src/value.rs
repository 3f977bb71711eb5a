//! One key with its value, in one block.
//!
//! ```text
//! 0     1      2       3       4..8     [8..16]   [4]        ..      ..
//! form  flags  keylen  vallen  access   expiry    long keylen key    value
//! ```
//!
//! The form takes three bits and the flags five; the other eight of the two bytes count accesses, see [`Entry::touch`].
//! Both bytes are read and written as atomics, because a command on the thread pool reads an entry that it holds while
//! others, under the stripe's lock, count their accesses and change its [parity](Entry::parity).
//! `access` is the tick of the last one. `expiry` (Unix milliseconds) exists if the key has one, the long key length if
//! the key is longer than 255 bytes. The value is a 64-bit integer, or bytes in place, or (from [`INLINE_MAX`] up) a
//! separate vector, which from [`SHARED_MIN`] up is reference-counted: a reader takes a reference under the stripe's
//! lock and copies after it. So a 16-byte key with a 32-byte value is 56 bytes, and a key with a counter is 32.
//!
//! Redis's encoding (`int`, `embstr`, `raw`) is stored separately from the place of the bytes, because `OBJECT
//! ENCODING` depends on history: an appended string stays `raw` however short it is.
//!
//! An entry is moved to another block when its shape changes (an expiry is added or removed, the value outgrows its
//! place); the table's slot is then updated.

mod typed;
mod usage;

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::object::{Kind, Object, ObjectRef, Raw};
use crate::slab::Slab;
use crate::slab::heap_bytes;
use crate::table::{Item, prefetch};
pub use typed::EditingAs;
pub use usage::Access;

/// Values longer than this many bytes have a vector of their own.
pub const INLINE_MAX: usize = 192;
/// Values of at least this many bytes are built, copied and freed outside the stripe's lock.
pub const SHARED_MIN: usize = 4096;
/// A longer string is copied on the thread pool; up to this many bytes, the worker copies it, while nothing is locked.
pub const COPIED_BY_WORKER_MAX: usize = 4 << 20;
/// The longest string, in bytes: Redis's default `proto-max-bulk-len`.
pub const STRING_MAX: usize = 512 << 20;
/// Values with more elements, or bytes, are freed on the thread pool.
const LARGE_ELEMENTS: usize = 2_000;
const LARGE_BYTES: usize = 8 << 20;
/// Redis shows strings up to this length as `embstr`.
const EMBSTR_MAX: usize = 44;

const HEAD: usize = 8;
/// The mask of the form in its byte.
const FORM_BITS: u8 = 0b111;
/// The counter of a new key, as in Redis: no access yet.
const COUNTER_NEW: u8 = 5;

const EXPIRES: u8 = 1;
const LONG_KEY: u8 = 2;
const RAW: u8 = 4;
const STICKY: u8 = 8;
const PARITY: u8 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Form {
    Int,
    Inline,
    Own,
    Shared,
    Object,
}

/// A value to be stored.
pub enum Value<'a> {
    /// An integer.
    Int(i64),
    /// Bytes, to be copied; `raw` as `OBJECT ENCODING` shows it.
    Bytes {
        /// The string.
        bytes: &'a [u8],
        /// Whether OBJECT ENCODING shows it as `raw`.
        raw: bool,
    },
    /// A vector to be taken over.
    Vec {
        /// The string.
        bytes: Vec<u8>,
        /// Whether OBJECT ENCODING shows it as `raw`.
        raw: bool,
    },
    /// A shared vector to be taken over.
    Shared {
        /// The string.
        bytes: Arc<Vec<u8>>,
        /// Whether OBJECT ENCODING shows it as `raw`.
        raw: bool,
    },
    /// A list, set, hash, sorted set or stream.
    Object(Object),
}

impl<'a> Value<'a> {
    /// Returns the value as SET stores it: an integer if its text is one, bytes otherwise.
    #[inline]
    pub fn of(bytes: &'a [u8]) -> Value<'a> {
        match (bytes.len() <= 20).then(|| sluicegate_wire::resp::parse_i64(bytes)).flatten() {
            Some(value) => Value::Int(value),
            None => Value::Bytes { bytes, raw: false },
        }
    }
}

impl Value<'_> {
    /// Returns the string that an entry with this value would show; [`None`] for another type.
    #[inline]
    pub fn string(&self) -> Option<View<'_>> {
        match self {
            Value::Int(value) => Some(View::Int(*value)),
            Value::Bytes { bytes, .. } => Some(View::Bytes(bytes)),
            Value::Vec { bytes, .. } => Some(View::Bytes(bytes)),
            Value::Shared { bytes, .. } => Some(View::Bytes(bytes)),
            Value::Object(_) => None,
        }
    }
}

/// The string that an entry holds.
#[derive(Clone, Copy, Debug)]
pub enum View<'a> {
    /// An integer.
    Int(i64),
    /// Any other string.
    Bytes(&'a [u8]),
}

impl<'a> View<'a> {
    /// Returns the value as text; an integer's digits go to `digits`.
    #[inline]
    pub fn text<'b>(self, digits: &'b mut itoa::Buffer) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            View::Int(value) => digits.format(value).as_bytes(),
            View::Bytes(bytes) => bytes,
        }
    }

    /// Returns the length of the value as text, in bytes.
    #[inline]
    pub fn len(self) -> usize {
        match self {
            View::Int(value) => itoa::Buffer::new().format(value).len(),
            View::Bytes(bytes) => bytes.len(),
        }
    }
}

/// The memory of a value, to be freed after the stripe is unlocked.
#[derive(Debug)]
pub enum Garbage {
    /// A string.
    Own(Vec<u8>),
    /// A string that others may still read.
    Shared(Arc<Vec<u8>>),
    /// An object.
    Object(Object),
}

impl Garbage {
    /// Returns whether freeing it takes longer than a command may.
    #[inline]
    pub fn is_large(&self) -> bool {
        match self {
            Garbage::Own(_) => false,
            Garbage::Shared(bytes) => bytes.capacity() >= LARGE_BYTES,
            // A stream is freed node by node.
            Garbage::Object(Object::Stream(stream)) => {
                stream.pieces() > LARGE_ELEMENTS || stream.bytes() >= LARGE_BYTES
            }
            Garbage::Object(object) => object.len() > LARGE_ELEMENTS,
        }
    }
}

/// An owned entry. It must be released with [`free`](Entry::free): dropping it leaks.
#[derive(Debug)]
#[repr(transparent)]
pub struct Entry(NonNull<u8>);

// SAFETY: an entry owns its block alone, and what the block points to may be sent.
unsafe impl Send for Entry {}

#[derive(Clone, Copy)]
#[repr(C)]
struct Own {
    start: *mut u8,
    len: u32,
    capacity: u32,
}

/// A value that was taken out of its entry to be changed, and returns there when this is dropped.
struct Editing<'e, T> {
    entry: &'e mut Entry,
    value: ManuallyDrop<T>,
    put_back: fn(&mut Entry, ManuallyDrop<T>),
}

impl<T> Drop for Editing<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `value` is not touched after this.
        let value = ManuallyDrop::new(unsafe { ManuallyDrop::take(&mut self.value) });
        (self.put_back)(self.entry, value);
    }
}

impl Entry {
    /// Makes an entry. `access` is the tick of its last access.
    pub fn new(slab: &mut Slab, key: &[u8], value: Value<'_>, expiry: Option<i64>, access: u32) -> Entry {
        let raw = match &value {
            Value::Bytes { raw, .. } | Value::Vec { raw, .. } | Value::Shared { raw, .. } => *raw,
            Value::Int(_) | Value::Object(_) => false,
        };
        // Convert the value to the form in which it is stored.
        let value = match value {
            Value::Bytes { bytes, raw } if bytes.len() > INLINE_MAX => Value::Vec { bytes: bytes.to_vec(), raw },
            Value::Vec { ref bytes, .. } if bytes.len() <= INLINE_MAX => Value::Bytes { bytes, raw },
            value => value,
        };
        let value = match value {
            Value::Vec { bytes, raw } if bytes.len() >= SHARED_MIN => Value::Shared { bytes: Arc::new(bytes), raw },
            value => value,
        };
        let (form, value_bytes) = match &value {
            Value::Int(_) => (Form::Int, 8),
            Value::Bytes { bytes, .. } => (Form::Inline, bytes.len()),
            Value::Vec { .. } => (Form::Own, size_of::<Own>()),
            Value::Shared { .. } => (Form::Shared, 8),
            Value::Object(_) => (Form::Object, 8),
        };
        let long_key = key.len() > usize::from(u8::MAX);
        let flags = if expiry.is_some() { EXPIRES } else { 0 }
            | if long_key { LONG_KEY } else { 0 }
            | if raw { RAW } else { 0 };
        let at_key = HEAD + if expiry.is_some() { 8 } else { 0 } + if long_key { 4 } else { 0 };
        let block = slab.alloc(at_key + key.len() + value_bytes);
        let start = block.as_ptr();
        // SAFETY: the block has room for the head, the key and the value, as added up above; every write stays within
        // its part. Parts may be unaligned, hence the unaligned writes.
        unsafe {
            start.write(form as u8 | (COUNTER_NEW & 31) << 3);
            start.add(1).write(flags | COUNTER_NEW & !31);
            start.add(2).write(if long_key { 0 } else { key.len() as u8 });
            start.add(3).write(if form == Form::Inline { value_bytes as u8 } else { 0 });
            start.add(4).cast::<u32>().write(access);
            if let Some(expiry) = expiry {
                start.add(HEAD).cast::<i64>().write(expiry);
            }
            if long_key {
                start.add(at_key - 4).cast::<u32>().write_unaligned(key.len() as u32);
            }
            start.add(at_key).copy_from_nonoverlapping(key.as_ptr(), key.len());
            let place = start.add(at_key + key.len());
            match value {
                Value::Int(value) => place.cast::<i64>().write_unaligned(value),
                Value::Bytes { bytes, .. } => place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()),
                Value::Vec { bytes, .. } => {
                    let mut bytes = ManuallyDrop::new(bytes);
                    // Own values are shorter than SHARED_MIN, but a vector may have room for more than 4 GiB.
                    if u32::try_from(bytes.capacity()).is_err() {
                        bytes.shrink_to_fit();
                    }
                    let (len, capacity) = (bytes.len() as u32, bytes.capacity() as u32);
                    place.cast::<Own>().write_unaligned(Own { start: bytes.as_mut_ptr(), len, capacity });
                }
                Value::Shared { bytes, .. } => {
                    place.cast::<*const Vec<u8>>().write_unaligned(Arc::into_raw(bytes));
                }
                Value::Object(object) => {
                    let object = object.into_raw();
                    start.add(3).write(object.tag());
                    place.cast::<NonNull<u8>>().write_unaligned(object.start());
                }
            }
        }
        Entry(block)
    }

    /// Returns another handle of the same entry, to be used for reading and never freed.
    ///
    /// # Safety
    /// The entry is neither changed nor freed while the handle is used.
    #[inline]
    pub unsafe fn alias(&self) -> Entry {
        Entry(self.0)
    }

    /// Returns the entry in a block, as another handle of it.
    ///
    /// # Safety
    /// [`new`](Self::new) wrote the block, or its contents were copied there since; otherwise as for
    /// [`alias`](Self::alias).
    #[inline]
    pub unsafe fn at(block: NonNull<u8>) -> Entry {
        Entry(block)
    }

    /// Returns the block to its slab, and the value to the caller if it is not in the block.
    #[inline]
    pub fn free(self, slab: &mut Slab) -> Option<Garbage> {
        let garbage = self.take_value();
        // SAFETY: the block came from this stripe's slab (entries never leave their stripe), has this size, and this
        // consumes the only handle.
        unsafe { slab.free(self.0, self.block_bytes()) };
        garbage
    }

    /// Frees only the block and returns its value, for an entry that continues under another name.
    pub fn into_value(self, slab: &mut Slab) -> Value<'static> {
        let raw = self.flag(RAW);
        let value = match (self.take_value(), self.string()) {
            (Some(Garbage::Object(object)), _) => Value::Object(object),
            (Some(Garbage::Own(bytes)), _) => Value::Vec { bytes, raw },
            (Some(Garbage::Shared(bytes)), _) => Value::Shared { bytes, raw },
            (None, Some(View::Int(value))) => Value::Int(value),
            (None, Some(View::Bytes(bytes))) => Value::Vec { bytes: bytes.to_vec(), raw },
            (None, None) => unreachable!("an object is never in the block"),
        };
        // SAFETY: as in `free`.
        unsafe { slab.free(self.0, self.block_bytes()) };
        value
    }

    /// Returns a copy of the value, for another key.
    #[inline]
    pub fn copy_value(&self) -> Value<'static> {
        let raw = self.flag(RAW);
        if let Some(object) = self.object() {
            return Value::Object(object.copy());
        }
        match (self.shared(), self.string()) {
            (Some(bytes), _) => Value::Shared { bytes, raw },
            (None, Some(View::Int(value))) => Value::Int(value),
            (None, Some(View::Bytes(bytes))) => Value::Vec { bytes: bytes.to_vec(), raw },
            (None, None) => unreachable!("no object, as just seen"),
        }
    }

    /// Takes the value out if it is outside the block; the entry must not be used afterwards except for its size.
    fn take_value(&self) -> Option<Garbage> {
        // SAFETY: the form determines the type at the value's place, where `new` wrote it; it is taken once, because
        // both callers consume the entry.
        unsafe {
            match self.form() {
                Form::Int | Form::Inline => None,
                Form::Own => {
                    let own = self.value_place().cast::<Own>().read_unaligned();
                    Some(Garbage::Own(Vec::from_raw_parts(own.start, own.len as usize, own.capacity as usize)))
                }
                Form::Shared => Some(Garbage::Shared(Arc::from_raw(self.shared_place().read_unaligned()))),
                Form::Object => Some(Garbage::Object(Object::from_raw(self.raw_object()))),
            }
        }
    }

    /// Returns a byte of the head.
    #[inline]
    fn byte(&self, at: usize) -> u8 {
        // SAFETY: callers ask for bytes of the head only, which every block has; shared ones are changed by
        // `set_byte` alone.
        unsafe { AtomicU8::from_ptr(self.0.as_ptr().add(at)) }.load(Ordering::Relaxed)
    }

    /// Sets one of the head's first two bytes, under the stripe's lock.
    #[inline]
    fn set_byte(&self, at: usize, byte: u8) {
        debug_assert!(at < 2);
        // SAFETY: every head has both; they are read and written as atomics only.
        unsafe { AtomicU8::from_ptr(self.0.as_ptr().add(at)) }.store(byte, Ordering::Relaxed);
    }

    /// Sets or clears a flag, under the stripe's lock.
    #[inline]
    fn set_flag(&self, flag: u8, is_set: bool) {
        self.set_byte(1, if is_set { self.byte(1) | flag } else { self.byte(1) & !flag });
    }

    #[inline]
    fn form(&self) -> Form {
        match self.byte(0) & FORM_BITS {
            0 => Form::Int,
            1 => Form::Inline,
            2 => Form::Own,
            3 => Form::Shared,
            _ => Form::Object,
        }
    }

    #[inline]
    fn flag(&self, flag: u8) -> bool {
        self.byte(1) & flag != 0
    }

    #[inline]
    fn at_key(&self) -> usize {
        HEAD + if self.flag(EXPIRES) { 8 } else { 0 } + if self.flag(LONG_KEY) { 4 } else { 0 }
    }

    #[inline]
    fn key_len(&self) -> usize {
        match self.flag(LONG_KEY) {
            false => usize::from(self.byte(2)),
            // SAFETY: an entry with a long key has its length right before the key.
            true => unsafe { self.0.as_ptr().add(self.at_key() - 4).cast::<u32>().read_unaligned() as usize },
        }
    }

    /// Returns the key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        // SAFETY: `new` wrote `key_len` bytes at `at_key`; they live as long as the entry and never change.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(self.at_key()), self.key_len()) }
    }

    #[inline]
    fn value_place(&self) -> *mut u8 {
        // SAFETY: the value follows the key in the same block.
        unsafe { self.0.as_ptr().add(self.at_key() + self.key_len()) }
    }

    #[inline]
    fn shared_place(&self) -> *mut *const Vec<u8> {
        self.value_place().cast()
    }

    /// Returns the bytes of the block, without the value's own vector.
    #[inline]
    pub fn block_bytes(&self) -> usize {
        let value = match self.form() {
            Form::Int | Form::Shared | Form::Object => 8,
            Form::Inline => usize::from(self.byte(3)),
            Form::Own => size_of::<Own>(),
        };
        self.at_key() + self.key_len() + value
    }

    /// Returns the bytes of the value's own vector.
    #[inline]
    pub fn outside_bytes(&self) -> usize {
        // SAFETY: the form determines the type at the value's place.
        unsafe {
            match self.form() {
                Form::Int | Form::Inline => 0,
                Form::Own => heap_bytes(self.value_place().cast::<Own>().read_unaligned().capacity as usize),
                Form::Shared => heap_bytes((*self.shared_place().read_unaligned()).capacity()) + 40,
                Form::Object => ObjectRef::new(self.raw_object()).bytes(),
            }
        }
    }

    /// Returns the value, if it is a string.
    pub fn string(&self) -> Option<View<'_>> {
        // SAFETY: the form determines the type at the value's place; the bytes live as long as the entry, and change
        // only through `&mut self`.
        unsafe {
            Some(match self.form() {
                Form::Int => View::Int(self.value_place().cast::<i64>().read_unaligned()),
                Form::Inline => View::Bytes(std::slice::from_raw_parts(self.value_place(), usize::from(self.byte(3)))),
                Form::Own => {
                    let own = self.value_place().cast::<Own>().read_unaligned();
                    View::Bytes(std::slice::from_raw_parts(own.start, own.len as usize))
                }
                Form::Shared => View::Bytes(&*self.shared_place().read_unaligned()),
                Form::Object => return None,
            })
        }
    }

    /// Returns the value, if it is not a string.
    #[inline]
    pub fn object(&self) -> Option<ObjectRef<'_>> {
        // SAFETY: the object is this entry's, which is borrowed as long as the reference lives.
        (self.form() == Form::Object).then(|| unsafe { ObjectRef::new(self.raw_object()) })
    }

    /// Returns the object of an entry that has one.
    #[inline]
    fn raw_object(&self) -> Raw {
        debug_assert_eq!(self.form(), Form::Object);
        // SAFETY: such an entry has the object's pointer at the value's place.
        Raw::new(self.byte(3), unsafe { self.value_place().cast::<NonNull<u8>>().read_unaligned() })
    }

    /// Fetches the value if it is outside the entry.
    #[inline]
    pub fn prefetch_value(&self) {
        // SAFETY: the form determines the type at the value's place.
        let place = unsafe {
            match self.form() {
                Form::Int | Form::Inline => return,
                Form::Own => self.value_place().cast::<Own>().read_unaligned().start.cast_const(),
                Form::Shared => self.shared_place().read_unaligned().cast(),
                Form::Object => self.value_place().cast::<*const u8>().read_unaligned(),
            }
        };
        prefetch(place);
    }

    /// Returns a time before which no element of the value expires, in Unix milliseconds; none if none expires.
    #[inline]
    pub fn elements_due(&self) -> Option<i64> {
        if self.form() != Form::Object || !self.raw_object().is_timed() {
            return None;
        }
        self.object().and_then(|object| object.earliest_ms())
    }

    /// Lets `change` edit an object. [`None`], and nothing is done, if the value is a string.
    pub fn edit_object<R>(&mut self, change: impl FnOnce(&mut Object) -> R) -> Option<R> {
        if self.form() != Form::Object {
            return None;
        }
        // SAFETY: the object is this entry's; `Editing` puts it back however `change` ends, so it has one owner at any
        // time.
        let object = unsafe { Object::from_raw(self.raw_object()) };
        let mut editing = Editing { entry: self, value: ManuallyDrop::new(object), put_back: Entry::put_object };
        Some(change(&mut editing.value))
    }

    #[inline]
    fn put_object(&mut self, object: ManuallyDrop<Object>) {
        self.put_raw(ManuallyDrop::into_inner(object).into_raw());
    }

    #[inline]
    fn put_raw(&mut self, object: Raw) {
        // SAFETY: called for entries of this form only, which have room for a pointer there; the tag is the head's
        // fourth byte.
        unsafe {
            self.0.as_ptr().add(3).write(object.tag());
            self.value_place().cast::<NonNull<u8>>().write_unaligned(object.start());
        }
    }

    /// Returns a reference to a value of [`SHARED_MIN`] bytes or more.
    #[inline]
    pub fn shared(&self) -> Option<Arc<Vec<u8>>> {
        if self.form() != Form::Shared {
            return None;
        }
        // SAFETY: the pointer came from Arc::into_raw and the entry holds one count, which stays with it.
        unsafe {
            let pointer = self.shared_place().read_unaligned();
            Arc::increment_strong_count(pointer);
            Some(Arc::from_raw(pointer))
        }
    }

    /// Overwrites an integer with another.
    ///
    /// Returns false, and does nothing, if the value is not kept as an integer.
    #[inline]
    pub fn set_int(&mut self, value: i64) -> bool {
        if self.form() != Form::Int {
            return false;
        }
        // SAFETY: an integer's 8 bytes stand at the value's place.
        unsafe { self.value_place().cast::<i64>().write_unaligned(value) };
        true
    }

    /// Overwrites bytes in the block with as many others.
    ///
    /// Returns false, and does nothing, if the value is not in the block or of another length.
    #[inline]
    pub fn set_inline(&mut self, bytes: &[u8], raw: bool) -> bool {
        if self.form() != Form::Inline || usize::from(self.byte(3)) != bytes.len() || self.flag(RAW) != raw {
            return false;
        }
        // SAFETY: the value's place has as many bytes, as just compared, and `bytes` cannot be part of this entry,
        // which is borrowed mutably.
        unsafe { self.value_place().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        true
    }

    /// Returns the number of bytes that are moved when the string is extended to this length in place.
    #[inline]
    pub fn moved_by_edit(&self, len: usize) -> usize {
        if self.form() != Form::Shared {
            return 0;
        }
        // SAFETY: the pointer came from `Arc::into_raw` and the entry holds one count, so it is alive; this handle is
        // never dropped, so the count stays.
        let bytes = ManuallyDrop::new(unsafe { Arc::from_raw(self.shared_place().read_unaligned()) });
        if Arc::strong_count(&bytes) > 1 || bytes.capacity() < len { bytes.len() } else { 0 }
    }

    /// Replaces a vector of [`SHARED_MIN`] bytes or more by another one, and returns the old one. Returns [`None`], and
    /// changes nothing, if the value is not such a vector.
    #[inline]
    pub fn swap_shared(&mut self, bytes: Arc<Vec<u8>>) -> Option<Arc<Vec<u8>>> {
        if self.form() != Form::Shared {
            return None;
        }
        // SAFETY: the entry's count goes to the caller, and that of `bytes` to the entry; there is room for a pointer.
        unsafe {
            let old = Arc::from_raw(self.shared_place().read_unaligned());
            self.shared_place().write_unaligned(Arc::into_raw(bytes));
            Some(old)
        }
    }

    /// Makes a string look as if it had been changed in place.
    #[inline]
    pub fn set_raw(&mut self) {
        self.set_flag(RAW, true);
    }

    /// Lets `change` edit a value that has a vector of its own; the vector must not become shorter than `INLINE_MAX`
    /// nor reach another form. A vector that readers still share is copied first.
    ///
    /// Returns false, and does nothing, if the value has no vector.
    pub fn edit(&mut self, final_len: usize, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        debug_assert!(final_len > INLINE_MAX);
        match self.form() {
            Form::Own if final_len < SHARED_MIN => {
                // SAFETY: the form says that there is an `Own` at the value's place, made from a vector; `Editing` puts
                // the vector back however `change` ends, so it has one owner at any time.
                let bytes = unsafe {
                    let own = self.value_place().cast::<Own>().read_unaligned();
                    Vec::from_raw_parts(own.start, own.len as usize, own.capacity as usize)
                };
                change(&mut Editing { entry: self, value: ManuallyDrop::new(bytes), put_back: Entry::put_own }.value);
            }
            Form::Shared => {
                // SAFETY: as above; the pointer came from `Arc::into_raw`.
                let bytes = unsafe { Arc::from_raw(self.shared_place().read_unaligned()) };
                let mut editing = Editing { entry: self, value: ManuallyDrop::new(bytes), put_back: Entry::put_shared };
                change(Arc::make_mut(&mut editing.value));
            }
            _ => return false,
        }
        self.set_raw();
        true
    }

    #[inline]
    fn put_own(&mut self, mut bytes: ManuallyDrop<Vec<u8>>) {
        let (len, capacity) = (bytes.len() as u32, bytes.capacity() as u32);
        let own = Own { start: bytes.as_mut_ptr(), len, capacity };
        // SAFETY: called for entries of this form only, which have room for an `Own` there.
        unsafe { self.value_place().cast::<Own>().write_unaligned(own) };
    }

    #[inline]
    fn put_shared(&mut self, bytes: ManuallyDrop<Arc<Vec<u8>>>) {
        // SAFETY: called for entries of this form only, which have room for a pointer there.
        unsafe { self.shared_place().write_unaligned(Arc::into_raw(ManuallyDrop::into_inner(bytes))) };
    }

    /// Unix milliseconds at which the key expires.
    #[inline]
    pub fn expiry(&self) -> Option<i64> {
        // SAFETY: an entry with the flag has its expiry after the head.
        self.flag(EXPIRES).then(|| unsafe { self.0.as_ptr().add(HEAD).cast::<i64>().read() })
    }

    /// Replaces the expiry of an entry that has one; returns false otherwise.
    #[inline]
    pub fn set_expiry(&mut self, at_ms: i64) -> bool {
        if !self.flag(EXPIRES) {
            return false;
        }
        // SAFETY: as in `expiry`.
        unsafe { self.0.as_ptr().add(HEAD).cast::<i64>().write(at_ms) };
        true
    }

    /// Returns whether the key is never evicted.
    #[inline]
    pub fn sticky(&self) -> bool {
        self.flag(STICKY)
    }

    /// Sets whether the key is never evicted.
    #[inline]
    pub fn set_sticky(&mut self, sticky: bool) {
        self.set_flag(STICKY, sticky);
    }

    /// Returns the bit by which a snapshot tells the entries that it has saved from the others. It stays with the entry
    /// when that moves to another block; a new entry has none.
    #[inline]
    pub fn parity(&self) -> bool {
        self.flag(PARITY)
    }

    /// Sets this bit, under the stripe's lock. Commands that hold the key may be reading the entry.
    #[inline]
    pub fn set_parity(&self, parity: bool) {
        self.set_flag(PARITY, parity);
    }

    /// Redis's name for the encoding.
    pub fn encoding(&self) -> &'static str {
        match self.string() {
            Some(View::Int(_)) => "int",
            Some(View::Bytes(bytes)) if bytes.len() <= EMBSTR_MAX && !self.flag(RAW) => "embstr",
            Some(View::Bytes(_)) => "raw",
            None => self.object().map_or("raw", |object| object.encoding()),
        }
    }

    /// Returns the reply of TYPE.
    pub fn type_name(&self) -> &'static str {
        self.object().map_or("string", |object| object.type_name())
    }
}

impl Item for Entry {
    #[inline]
    fn key(&self) -> &[u8] {
        Entry::key(self)
    }

    #[inline]
    fn due(&self) -> Option<i64> {
        match (self.expiry(), self.elements_due()) {
            (Some(at_ms), Some(element_ms)) => Some(at_ms.min(element_ms)),
            (at_ms, element_ms) => at_ms.or(element_ms),
        }
    }

    #[inline]
    fn address(&self) -> *const u8 {
        self.0.as_ptr()
    }

    #[inline]
    fn expiry(&self) -> Option<i64> {
        Entry::expiry(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::limits::Limits;

    #[track_caller]
    fn check(key_len: usize, value: &[u8], expiry: Option<i64>, encoding: &str, block_bytes: usize) {
        let mut slab = Slab::new();
        let key = vec![b'k'; key_len];
        let mut entry = Entry::new(&mut slab, &key, Value::of(value), expiry, 7);
        assert_eq!(entry.key(), key);
        assert_eq!(entry.string().unwrap().text(&mut itoa::Buffer::new()), value);
        assert_eq!(entry.string().unwrap().len(), value.len());
        assert_eq!((entry.expiry(), entry.access(), entry.counter()), (expiry, 7, 5));
        assert_eq!((entry.encoding(), entry.block_bytes()), (encoding, block_bytes));
        entry.touch(Access { ticks: 9, is_traceless: false, limits: &Limits::new() });
        assert_eq!(entry.set_expiry(5), expiry.is_some());
        assert_eq!((entry.expiry(), entry.access(), entry.counter()), (expiry.map(|_| 5), 9, 6));
        entry.set_counter(u8::MAX);
        assert_eq!((entry.counter(), entry.encoding(), entry.block_bytes()), (u8::MAX, encoding, block_bytes));
        assert_eq!(entry.string().unwrap().text(&mut itoa::Buffer::new()), value);
        assert_eq!(entry.key(), key);
        entry.free(&mut slab);
        assert_eq!(slab.bytes(), 0);
    }

    #[test]
    fn entries_keep_what_they_were_given() {
        check(16, &[b'v'; 32], None, "embstr", 56);
        check(16, &[b'v'; 32], Some(1), "embstr", 64);
        check(16, b"-12", None, "int", 32);
        check(0, b"", None, "embstr", 8);
        check(300, &[b'v'; 45], Some(-1), "raw", 8 + 8 + 4 + 300 + 45);
        check(3, &[b'v'; 192], None, "raw", 8 + 3 + 192);
        check(3, &[b'v'; 193], None, "raw", 8 + 3 + 16);
        check(3, &[b'v'; 4095], None, "raw", 8 + 3 + 16);
        check(3, &[b'v'; 4096], None, "raw", 8 + 3 + 8);
        check(3, b"00", None, "embstr", 8 + 3 + 2);
        check(3, b"9223372036854775808", None, "embstr", 8 + 3 + 19);
    }

    #[test]
    fn an_object_lives_in_its_entry_and_comes_out_again() {
        use crate::object::{Kind, List};

        let mut slab = Slab::new();
        let mut entry = Entry::new(&mut slab, b"k", Value::Object(List::empty().into_object()), Some(5), 0);
        assert_eq!((entry.type_name(), entry.encoding(), entry.block_bytes()), ("list", "listpack", 8 + 8 + 1 + 8));
        assert!(entry.string().is_none());
        let bytes = entry.outside_bytes();
        let grown = entry.edit_object(|object| {
            let List::Packed(packed) = List::of_mut(object).unwrap() else { panic!("a small list") };
            (0..100).for_each(|_| packed.push_back(b"element"));
        });
        assert!(grown.is_some() && entry.outside_bytes() > bytes + 900);
        let Value::Object(copy) = entry.copy_value() else { panic!("an object was put in") };
        assert_eq!(copy.len(), 100);
        let Value::Object(object) = entry.into_value(&mut slab) else { panic!("an object was put in") };
        assert_eq!(object.len(), 100);
        let panics = std::panic::AssertUnwindSafe(|| {
            let mut entry = Entry::new(&mut slab, b"k", Value::Object(object), None, 0);
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                entry.edit_object(|object| {
                    let List::Packed(packed) = List::of_mut(object).unwrap() else { panic!("a small list") };
                    packed.remove(packed.first().unwrap(), 99);
                    panic!("a fault in a change");
                })
            }));
            assert_eq!(entry.object().unwrap().len(), 1);
            assert!(entry.free(&mut slab).is_some());
        });
        panics();
    }

    #[test]
    fn a_value_that_is_read_is_not_edited_under_the_reader() {
        let mut slab = Slab::new();
        let mut entry = Entry::new(&mut slab, b"k", Value::of(&[b'a'; SHARED_MIN]), None, 0);
        let reader = entry.shared().unwrap();
        assert!(entry.edit(SHARED_MIN + 1, |bytes| bytes.push(b'b')));
        assert_eq!((reader.len(), entry.string().unwrap().len()), (SHARED_MIN, SHARED_MIN + 1));
        assert!(entry.free(&mut slab).is_some());
    }

    #[test]
    fn a_change_that_panics_leaves_the_value_in_its_entry() {
        for len in [INLINE_MAX + 1, SHARED_MIN] {
            let mut slab = Slab::new();
            let mut entry = Entry::new(&mut slab, b"k", Value::of(&vec![b'a'; len]), None, 0);
            let reader = entry.shared();
            let panics = std::panic::AssertUnwindSafe(|| {
                entry.edit(len + 1, |bytes| {
                    // Grown, so that the old memory is gone.
                    bytes.resize(1 << 20, b'b');
                    panic!("a fault in a change");
                })
            });
            assert!(std::panic::catch_unwind(panics).is_err());
            assert_eq!((entry.string().unwrap().len(), entry.outside_bytes() >= 1 << 20), (1 << 20, true));
            assert!(reader.is_none_or(|reader| reader.len() == len));
            assert!(entry.free(&mut slab).is_some());
        }
    }
}
