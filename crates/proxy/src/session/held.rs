//! A part of a session that may outlive it.

use std::ops::{Deref, DerefMut};

/// A value that is there until it is taken out, with which the use of its owner ends.
#[derive(Debug)]
pub(crate) struct Held<T>(Option<T>);

impl<T> Held<T> {
    pub(super) fn new(value: T) -> Held<T> {
        Held(Some(value))
    }

    /// Takes the value out; the owner may only be dropped after that.
    pub(super) fn take(&mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_ref().expect("the owner's use ends when the value is taken out")
    }
}

impl<T> DerefMut for Held<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("the owner's use ends when the value is taken out")
    }
}
