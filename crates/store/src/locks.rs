//! The locked stripes of a command, in the order in which they were locked.
//!
//! Nearly every command has one key and so one stripe. Its lock is in the context itself, and finding it is one
//! comparison; the other locks of commands on several keys are in a vector.

use std::iter::Chain;
use std::ops::{Index, IndexMut};
use std::{option, slice};

use crate::stripe::{Locked, Stripe};

#[derive(Default)]
pub(crate) struct Locks<'p> {
    /// [`None`] only if there are no locks.
    first: Option<Locked<'p>>,
    rest: Vec<Locked<'p>>,
}

impl<'p> Locks<'p> {
    #[inline]
    pub(crate) fn new() -> Locks<'p> {
        Locks { first: None, rest: Vec::new() }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, locked: Locked<'p>) {
        match self.first {
            None => self.first = Some(locked),
            Some(_) => self.rest.push(locked),
        }
    }

    /// Makes room for this many locks, if there are none.
    pub(crate) fn reserve(&mut self, count: usize) {
        if count > 1 {
            self.rest.reserve_exact(count - 1);
        }
    }

    /// Unlocks all stripes.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.first = None;
        self.rest.clear();
    }

    /// Unlocks the only stripe. Returns false, without any effect, if there are or were others.
    #[inline]
    pub(crate) fn clear_one(&mut self) -> bool {
        if self.rest.capacity() > 0 {
            return false;
        }
        self.first = None;
        true
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Locked<'p>> {
        match index.checked_sub(1) {
            None => self.first.as_ref(),
            Some(index) => self.rest.get(index),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Locked<'p>> {
        match index.checked_sub(1) {
            None => self.first.as_mut(),
            Some(index) => self.rest.get_mut(index),
        }
    }

    /// Returns whether the predicate holds for one of the stripes.
    #[inline]
    pub(crate) fn any(&self, is: impl Fn(&Stripe) -> bool) -> bool {
        // Asked before the loop, which costs more to begin than most commands have to look at.
        self.first.as_ref().is_some_and(|stripe| is(stripe))
            || !self.rest.is_empty() && self.rest.iter().any(|stripe| is(stripe))
    }

    pub(crate) fn iter_mut(&mut self) -> Chain<option::IterMut<'_, Locked<'p>>, slice::IterMut<'_, Locked<'p>>> {
        self.first.iter_mut().chain(&mut self.rest)
    }
}

impl<'l, 'p> IntoIterator for &'l mut Locks<'p> {
    type Item = &'l mut Locked<'p>;
    type IntoIter = Chain<option::IterMut<'l, Locked<'p>>, slice::IterMut<'l, Locked<'p>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<'p> Index<usize> for Locks<'p> {
    type Output = Locked<'p>;

    #[inline]
    fn index(&self, index: usize) -> &Locked<'p> {
        self.get(index).expect("a lock that was taken")
    }
}

impl<'p> IndexMut<usize> for Locks<'p> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut Locked<'p> {
        self.get_mut(index).expect("a lock that was taken")
    }
}
