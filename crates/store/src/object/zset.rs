//! Sorted sets: members and their scores, in order.

use std::ptr::NonNull;

use super::{Kind, Packed, kind_of};
use crate::rdb;

const PACKED: u8 = 0;

/// A zset.
#[derive(Debug)]
pub(crate) enum Zset {
    /// A small one.
    Packed(Packed),
}

impl Kind for Zset {
    const TAG: u8 = 3;
    const NAME: &'static str = "zset";

    fn empty() -> Zset {
        Zset::Packed(Packed::new())
    }

    fn len(&self) -> usize {
        match self {
            Zset::Packed(packed) => packed.len() / 2,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Zset::Packed(packed) => packed.bytes(),
        }
    }

    fn encoding(&self) -> &'static str {
        match self {
            Zset::Packed(_) => "listpack",
        }
    }

    fn copy(&self) -> Zset {
        match self {
            Zset::Packed(packed) => Zset::Packed(packed.clone()),
        }
    }

    fn dump(&self, out: &mut Vec<u8>) {
        match self {
            Zset::Packed(packed) => {
                out.push(rdb::TYPE_ZSET_LISTPACK);
                rdb::put_string(packed.as_bytes(), out);
            }
        }
    }

    fn into_raw(self) -> (u8, NonNull<u8>) {
        match self {
            Zset::Packed(packed) => (PACKED, packed.into_raw()),
        }
    }

    unsafe fn from_raw(form: u8, start: NonNull<u8>) -> Zset {
        debug_assert_eq!(form, PACKED);
        // SAFETY: passed on; the form says that it was a block.
        Zset::Packed(unsafe { Packed::from_raw(start) })
    }

    kind_of!(Zset);
}
