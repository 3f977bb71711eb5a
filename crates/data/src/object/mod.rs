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
mod block;
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
mod stream_group;
mod stream_node;
pub mod zset;

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::rdb::encode::{Form, Out};
pub use hash::Hash;
pub use list::List;
pub use packed::Packed;
pub use set::Set;
pub use stream::Stream;
pub use zset::Zset;

/// The maximum number of bytes that are copied under a stripe's lock, where that can be avoided: some 0.2 ms.
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
    /// The upper four bits are the type; the lower four its form, as numbered in the type's file.
    tag: u8,
    start: NonNull<u8>,
}

impl Raw {
    /// Returns an object with this tag at this address.
    #[inline]
    pub fn new(tag: u8, start: NonNull<u8>) -> Raw {
        Raw { tag, start }
    }

    /// Returns the tag: the type and the form.
    #[inline]
    pub fn tag(self) -> u8 {
        self.tag
    }

    /// Returns the address.
    #[inline]
    pub fn start(self) -> NonNull<u8> {
        self.start
    }

    /// Returns an object in the form in which an entry stores it.
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

    /// Returns whether elements of the object may expire on their own, judging by its form alone.
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
    /// The type's number, in the upper half of the tag.
    const TAG: u8;
    /// The name that TYPE replies.
    const NAME: &'static str;

    /// Returns a value without elements, in its smallest form.
    fn empty() -> Self;

    /// Returns the number of elements.
    fn len(&self) -> usize;

    /// Returns whether a key with this value does not exist: most types have no value without elements.
    #[inline]
    fn is_gone(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of the value outside the key's entry.
    fn bytes(&self) -> usize;

    /// Returns Redis's name for the encoding.
    fn encoding(&self) -> &'static str;

    /// Returns a separate value with the same elements.
    fn copy(&self) -> Self;

    /// Appends the type's number in an RDB file and the value in the form of RDB files.
    fn dump(&self, form: Form, out: &mut Out<'_>);

    /// Returns a lower bound of the elements' expiries, in Unix milliseconds; `None` if no elements expire.
    #[inline]
    fn earliest_ms(&self) -> Option<i64> {
        None
    }

    /// Removes elements that have expired by `now_ms`, examining about `limit` of them from where the last call
    /// stopped, and calls `gone` with each. Returns how many it removed, and whether it reached the end.
    #[inline]
    fn purge(&mut self, _now_ms: i64, _limit: usize, _gone: &mut dyn FnMut(&[u8])) -> (usize, bool) {
        (0, true)
    }

    /// Returns the value as a form and a pointer.
    fn into_raw(self) -> (u8, NonNull<u8>);

    /// Returns the value that was converted to this form and pointer.
    ///
    /// # Safety
    /// Both came from [`into_raw`](Self::into_raw), and the value is used and dropped through one handle only.
    unsafe fn from_raw(form: u8, start: NonNull<u8>) -> Self;

    /// Returns the object as this type, if it has this type.
    fn of(object: &Object) -> Option<&Self>;
    /// Like [`of`](Self::of), to change it.
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

/// Calls the same method of the object's type.
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

    /// Returns the number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        each!(self, value => value.len())
    }

    /// Returns whether a key with this value does not exist.
    #[inline]
    pub fn is_gone(&self) -> bool {
        each!(self, value => value.is_gone())
    }

    /// Returns the bytes outside the key's entry.
    #[inline]
    pub fn bytes(&self) -> usize {
        each!(self, value => value.bytes())
    }

    /// Returns Redis's name for the encoding.
    pub fn encoding(&self) -> &'static str {
        each!(self, value => value.encoding())
    }

    /// Returns a lower bound of the elements' expiries, in Unix milliseconds; `None` if no elements expire.
    #[inline]
    pub fn earliest_ms(&self) -> Option<i64> {
        each!(self, value => value.earliest_ms())
    }

    /// Removes elements that have expired; see [`Kind::purge`].
    #[inline]
    pub fn purge(&mut self, now_ms: i64, limit: usize, gone: &mut dyn FnMut(&[u8])) -> (usize, bool) {
        each!(self, value => value.purge(now_ms, limit, gone))
    }

    /// Returns a separate object with the same elements.
    pub fn copy(&self) -> Object {
        each!(self, value => value.copy().into_object())
    }

    /// Appends the type's number in an RDB file and the object in the form of RDB files.
    pub fn dump(&self, form: Form, out: &mut Out<'_>) {
        each!(self, value => value.dump(form, out));
    }

    /// Returns the object in the form in which an entry stores it.
    #[inline]
    pub fn into_raw(self) -> Raw {
        each!(self, value => Raw::of(value))
    }

    /// Returns the object that an entry stores.
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

/// A shared reference to an object that an entry stores.
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

    /// Returns the object as this type, if it has this type.
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

/// A shared reference to an object of a known type.
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
