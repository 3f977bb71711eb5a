//! Values other than strings: lists, sets, hashes, sorted sets and streams, a file each.
//!
//! A small one, unless it is a stream, is a [`Packed`] block; a large one is a separate structure. Either is one
//! pointer, stored in the key's entry with a byte for its type, so a hash of five short fields costs only its block.
//! The encoding shown by `OBJECT ENCODING` is decided where Redis decides it, by the limits in [`limits`], and as in
//! Redis a value is never converted back to the small form.
//!
//! Each type counts its bytes, so querying them costs nothing. A change is made under the stripe's lock and accounted
//! at its end, even if it panics.

pub mod asked;
pub mod cell;
pub mod elements;
pub mod hash;
pub mod intset;
pub mod limits;
pub mod list;
pub mod packed;
pub mod rank_tree;
pub mod score;
pub mod set;
pub mod stream;
mod stream_node;
pub mod zset;

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

pub use hash::Hash;
pub use list::List;
pub use packed::Packed;
pub use set::Set;
pub use stream::Stream;
pub use zset::Zset;

/// The most bytes that are copied under a stripe's lock, where that can be helped: some 0.2 ms.
pub const COPIED_MAX: usize = 1 << 20;

/// A value of one of these types.
#[derive(Debug)]
pub enum Object {
    /// A list.
    List(List),
    /// A set.
    Set(Set),
    /// A hash.
    Hash(Hash),
    /// A sorted set.
    Zset(Zset),
    /// A stream.
    Stream(Stream),
}

/// An object as stored in an entry: its type, and its address.
#[derive(Clone, Copy, Debug)]
pub struct Raw {
    /// Upper four bits: the type; lower four: its form, as the type's file numbers it.
    tag: u8,
    start: NonNull<u8>,
}

impl Raw {
    /// Returns an object of this tag that stands here.
    #[inline]
    pub fn new(tag: u8, start: NonNull<u8>) -> Raw {
        Raw { tag, start }
    }

    /// Returns what it is.
    #[inline]
    pub fn tag(self) -> u8 {
        self.tag
    }

    /// Returns where it stands.
    #[inline]
    pub fn start(self) -> NonNull<u8> {
        self.start
    }

    /// Returns an object as an entry keeps it.
    #[inline]
    pub fn of<K: Kind>(value: K) -> Raw {
        let (form, start) = value.into_raw();
        debug_assert!(form < 16);
        Raw { tag: K::TAG << 4 | form, start }
    }

    /// Returns the object, if it is of this type.
    ///
    /// # Safety
    /// It came from [`of`](Self::of) or [`Object::into_raw`], and the object is used and dropped through one handle
    /// only.
    #[inline]
    pub unsafe fn typed<K: Kind>(self) -> Option<K> {
        // SAFETY: the tag identifies the type of its `into_raw`; the caller promises the rest.
        (self.tag >> 4 == K::TAG).then(|| unsafe { K::from_raw(self.tag & 15, self.start) })
    }

    /// Returns whether elements of it may expire on their own, judging by its form alone.
    #[inline]
    pub fn is_timed(self) -> bool {
        let form = self.tag & 15;
        match self.tag >> 4 {
            Set::TAG => form == set::TIMED,
            Hash::TAG => form == hash::TIMED || form == hash::TIMED_FIELDS,
            _ => false,
        }
    }
}

/// The common interface of the types. `FORM`s are numbered within a type, 0 to 15.
pub trait Kind: Sized {
    /// The upper half of the tag.
    const TAG: u8;
    /// Returns the name that TYPE replies.
    const NAME: &'static str;

    /// Returns a value without elements, in its smallest form.
    fn empty() -> Self;

    /// Number of elements.
    fn len(&self) -> usize;

    /// Returns whether a key with this value does not exist: most types have no value without elements.
    #[inline]
    fn is_gone(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the value outside the key's entry.
    fn bytes(&self) -> usize;

    /// Redis's name for the encoding.
    fn encoding(&self) -> &'static str;

    /// Returns a value of its own with the same elements.
    fn copy(&self) -> Self;

    /// Appends the type's number in an RDB file and the value as it stands there.
    fn dump(&self, out: &mut Vec<u8>);

    /// Returns a time before which no element expires, in Unix milliseconds; none if elements do not expire.
    #[inline]
    fn earliest_ms(&self) -> Option<i64> {
        None
    }

    /// Removes elements that have expired by `now_ms`, looking at about `limit` of them from where the last call
    /// stopped. Returns how many it removed, and whether it came to the end.
    #[inline]
    fn purge(&mut self, _now_ms: i64, _limit: usize) -> (usize, bool) {
        (0, true)
    }

    /// Returns the value as a form and a pointer.
    fn into_raw(self) -> (u8, NonNull<u8>);

    /// Returns the value that became this form and pointer.
    ///
    /// # Safety
    /// Both came from [`into_raw`](Self::into_raw), and the value is used and dropped through one handle only.
    unsafe fn from_raw(form: u8, start: NonNull<u8>) -> Self;

    /// Returns the object as this type, if it is of it.
    fn of(object: &Object) -> Option<&Self>;
    /// As [`of`](Self::of), to change it.
    fn of_mut(object: &mut Object) -> Option<&mut Self>;
    /// Returns the value as an object.
    fn into_object(self) -> Object;
}

/// The parts of [`Kind`] that are the same for every type.
macro_rules! kind_of {
    ($variant:ident) => {
        #[inline]
        fn of(object: &$crate::object::Object) -> Option<&Self> {
            match object {
                $crate::object::Object::$variant(value) => Some(value),
                _ => None,
            }
        }

        #[inline]
        fn of_mut(object: &mut $crate::object::Object) -> Option<&mut Self> {
            match object {
                $crate::object::Object::$variant(value) => Some(value),
                _ => None,
            }
        }

        #[inline]
        fn into_object(self) -> $crate::object::Object {
            $crate::object::Object::$variant(self)
        }
    };
}
pub(crate) use kind_of;

/// Calls the same method of whichever type it is.
macro_rules! each {
    ($object:expr, $value:ident => $result:expr) => {
        match $object {
            Object::List($value) => $result,
            Object::Set($value) => $result,
            Object::Hash($value) => $result,
            Object::Zset($value) => $result,
            Object::Stream($value) => $result,
        }
    };
}

impl Object {
    /// Returns the name that TYPE replies.
    pub fn type_name(&self) -> &'static str {
        fn name<K: Kind>(_: &K) -> &'static str {
            K::NAME
        }
        each!(self, value => name(value))
    }

    /// Returns the type's tag.
    #[inline]
    pub fn tag(&self) -> u8 {
        fn tag<K: Kind>(_: &K) -> u8 {
            K::TAG
        }
        each!(self, value => tag(value))
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        each!(self, value => value.len())
    }

    /// Returns whether a key with this value does not exist.
    #[inline]
    pub fn is_gone(&self) -> bool {
        each!(self, value => value.is_gone())
    }

    /// Bytes outside the key's entry.
    #[inline]
    pub fn bytes(&self) -> usize {
        each!(self, value => value.bytes())
    }

    /// Redis's name for the encoding.
    pub fn encoding(&self) -> &'static str {
        each!(self, value => value.encoding())
    }

    /// Returns a time before which no element expires, in Unix milliseconds; none if elements do not expire.
    #[inline]
    pub fn earliest_ms(&self) -> Option<i64> {
        each!(self, value => value.earliest_ms())
    }

    /// Removes elements that have expired; see [`Kind::purge`].
    #[inline]
    pub fn purge(&mut self, now_ms: i64, limit: usize) -> (usize, bool) {
        each!(self, value => value.purge(now_ms, limit))
    }

    /// Returns a value of its own with the same elements.
    pub fn copy(&self) -> Object {
        each!(self, value => value.copy().into_object())
    }

    /// Appends the type's number in an RDB file and the object as it stands there.
    pub fn dump(&self, out: &mut Vec<u8>) {
        each!(self, value => value.dump(out));
    }

    /// Returns the object as an entry keeps it.
    #[inline]
    pub fn into_raw(self) -> Raw {
        each!(self, value => Raw::of(value))
    }

    /// Returns the object that an entry keeps.
    ///
    /// # Safety
    /// `raw` came from [`into_raw`](Self::into_raw), and the object is used and dropped through one handle only.
    pub unsafe fn from_raw(raw: Raw) -> Object {
        let form = raw.tag & 15;
        // SAFETY: passed on: the tag identifies the type of its `into_raw`.
        unsafe {
            match raw.tag >> 4 {
                List::TAG => Object::List(List::from_raw(form, raw.start)),
                Set::TAG => Object::Set(Set::from_raw(form, raw.start)),
                Hash::TAG => Object::Hash(Hash::from_raw(form, raw.start)),
                Stream::TAG => Object::Stream(Stream::from_raw(form, raw.start)),
                _ => Object::Zset(Zset::from_raw(form, raw.start)),
            }
        }
    }
}

/// An object that an entry keeps, to be looked at.
pub struct ObjectRef<'e> {
    object: ManuallyDrop<Object>,
    entry: PhantomData<&'e Object>,
}

impl<'e> ObjectRef<'e> {
    /// # Safety
    /// `raw` is kept by an entry that is neither changed nor freed during `'e`.
    #[inline]
    pub unsafe fn new(raw: Raw) -> ObjectRef<'e> {
        // SAFETY: the handle is never dropped, and gives out shared references only.
        let object = ManuallyDrop::new(unsafe { Object::from_raw(raw) });
        ObjectRef { object, entry: PhantomData }
    }

    /// The same as the type it is asked for.
    pub fn typed<K: Kind>(self) -> Option<Ref<'e, K>> {
        K::of(&self.object).is_some().then_some(Ref { object: self, kind: PhantomData })
    }
}

impl Deref for ObjectRef<'_> {
    type Target = Object;

    #[inline]
    fn deref(&self) -> &Object {
        &self.object
    }
}

impl std::fmt::Debug for ObjectRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.type_name(), self.len())
    }
}

/// An object of a known type.
pub struct Ref<'e, K> {
    object: ObjectRef<'e>,
    kind: PhantomData<K>,
}

impl<K: Kind> Deref for Ref<'_, K> {
    type Target = K;

    #[inline]
    fn deref(&self) -> &K {
        K::of(&self.object).expect("looked at when this was made")
    }
}
