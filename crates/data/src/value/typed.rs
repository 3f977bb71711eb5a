//! Typed editing of objects, without checking their type at each step.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use super::{Entry, Form};
use crate::object::{Kind, Raw};

/// An object of a known type that is edited in place; put back into its entry when this is dropped.
pub struct EditingAs<'e, K: Kind> {
    entry: &'e mut Entry,
    value: ManuallyDrop<K>,
}

impl<K: Kind> Deref for EditingAs<'_, K> {
    type Target = K;

    #[inline]
    fn deref(&self) -> &K {
        &self.value
    }
}

impl<K: Kind> DerefMut for EditingAs<'_, K> {
    #[inline]
    fn deref_mut(&mut self) -> &mut K {
        &mut self.value
    }
}

impl<K: Kind> Drop for EditingAs<'_, K> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `value` is not touched after this.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        self.entry.put_raw(Raw::of(value));
    }
}

impl Entry {
    /// Returns the object, to be edited. [`None`], and nothing is done, if the value is not of this type.
    #[inline]
    pub fn edit_as<K: Kind>(&mut self) -> Option<EditingAs<'_, K>> {
        if self.form() != Form::Object {
            return None;
        }
        // SAFETY: the object is this entry's; the returned guard puts it back, so it has one owner at any time.
        let value = unsafe { self.raw_object().typed::<K>()? };
        Some(EditingAs { entry: self, value: ManuallyDrop::new(value) })
    }
}
