//! Hashes: fields and their values, one after the other.

use std::ptr::NonNull;

use super::packed::Element;
use super::{Kind, Packed, kind_of};
use crate::rdb;

const PACKED: u8 = 0;

/// A hash.
#[derive(Debug)]
pub(crate) enum Hash {
    /// A small one.
    Packed(Packed),
}

impl Kind for Hash {
    const TAG: u8 = 2;
    const NAME: &'static str = "hash";

    fn empty() -> Hash {
        Hash::Packed(Packed::new())
    }

    fn len(&self) -> usize {
        match self {
            Hash::Packed(packed) => packed.len() / 2,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Hash::Packed(packed) => packed.bytes(),
        }
    }

    fn encoding(&self) -> &'static str {
        match self {
            Hash::Packed(_) => "listpack",
        }
    }

    fn copy(&self) -> Hash {
        match self {
            Hash::Packed(packed) => Hash::Packed(packed.clone()),
        }
    }

    fn dump(&self, out: &mut Vec<u8>) {
        match self {
            Hash::Packed(packed) => {
                out.push(rdb::TYPE_HASH_LISTPACK);
                rdb::put_string(packed.as_bytes(), out);
            }
        }
    }

    fn into_raw(self) -> (u8, NonNull<u8>) {
        match self {
            Hash::Packed(packed) => (PACKED, packed.into_raw()),
        }
    }

    unsafe fn from_raw(form: u8, start: NonNull<u8>) -> Hash {
        debug_assert_eq!(form, PACKED);
        // SAFETY: passed on; the form says that it was a block.
        Hash::Packed(unsafe { Packed::from_raw(start) })
    }

    kind_of!(Hash);
}

impl Hash {
    /// The value of a field.
    pub(crate) fn get(&self, field: &[u8]) -> Option<Element<'_>> {
        match self {
            Hash::Packed(packed) => packed.find(field, 2).and_then(|at| packed.next(at)).map(|at| packed.get(at)),
        }
    }

    /// Sets a field; true if it is new.
    pub(crate) fn insert(&mut self, field: &[u8], value: &[u8]) -> bool {
        match self {
            Hash::Packed(packed) => {
                let place = packed.find(field, 2).and_then(|at| packed.next(at));
                match place {
                    Some(at) => packed.replace(at, value),
                    None => packed.insert(None, &[field, value]),
                }
                place.is_none()
            }
        }
    }
}
