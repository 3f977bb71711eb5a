//! Lists.

use std::ptr::NonNull;

use super::{Kind, Packed, kind_of};
use crate::rdb;

const PACKED: u8 = 0;

/// A list.
#[derive(Debug)]
pub(crate) enum List {
    /// A small one.
    Packed(Packed),
}

impl Kind for List {
    const TAG: u8 = 0;
    const NAME: &'static str = "list";

    fn empty() -> List {
        List::Packed(Packed::new())
    }

    fn len(&self) -> usize {
        match self {
            List::Packed(packed) => packed.len(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            List::Packed(packed) => packed.bytes(),
        }
    }

    fn encoding(&self) -> &'static str {
        match self {
            List::Packed(_) => "listpack",
        }
    }

    fn copy(&self) -> List {
        match self {
            List::Packed(packed) => List::Packed(packed.clone()),
        }
    }

    fn dump(&self, out: &mut Vec<u8>) {
        match self {
            List::Packed(packed) => {
                out.push(rdb::TYPE_LIST_QUICKLIST_2);
                rdb::put_len(1, out);
                rdb::put_len(2, out);
                rdb::put_string(packed.as_bytes(), out);
            }
        }
    }

    fn into_raw(self) -> (u8, NonNull<u8>) {
        match self {
            List::Packed(packed) => (PACKED, packed.into_raw()),
        }
    }

    unsafe fn from_raw(form: u8, start: NonNull<u8>) -> List {
        debug_assert_eq!(form, PACKED);
        // SAFETY: passed on; the form says that it was a block.
        List::Packed(unsafe { Packed::from_raw(start) })
    }

    kind_of!(List);
}
