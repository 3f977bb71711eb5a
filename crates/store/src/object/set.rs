//! Sets.

use std::ptr::NonNull;

use super::{Kind, Packed, kind_of};
use crate::rdb;

const PACKED: u8 = 0;

/// A set.
#[derive(Debug)]
pub(crate) enum Set {
    /// A small one.
    Packed(Packed),
}

impl Kind for Set {
    const TAG: u8 = 1;
    const NAME: &'static str = "set";

    fn empty() -> Set {
        Set::Packed(Packed::new())
    }

    fn len(&self) -> usize {
        match self {
            Set::Packed(packed) => packed.len(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Set::Packed(packed) => packed.bytes(),
        }
    }

    fn encoding(&self) -> &'static str {
        match self {
            Set::Packed(_) => "listpack",
        }
    }

    fn copy(&self) -> Set {
        match self {
            Set::Packed(packed) => Set::Packed(packed.clone()),
        }
    }

    fn dump(&self, out: &mut Vec<u8>) {
        match self {
            Set::Packed(packed) => {
                out.push(rdb::TYPE_SET);
                rdb::put_len(packed.len(), out);
                packed.iter().for_each(|member| rdb::put_string(member.text(&mut itoa::Buffer::new()), out));
            }
        }
    }

    fn into_raw(self) -> (u8, NonNull<u8>) {
        match self {
            Set::Packed(packed) => (PACKED, packed.into_raw()),
        }
    }

    unsafe fn from_raw(form: u8, start: NonNull<u8>) -> Set {
        debug_assert_eq!(form, PACKED);
        // SAFETY: passed on; the form says that it was a block.
        Set::Packed(unsafe { Packed::from_raw(start) })
    }

    kind_of!(Set);
}
