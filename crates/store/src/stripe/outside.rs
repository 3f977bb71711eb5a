//! The bytes that the values of a stripe have outside its slab, and the number of large values.

#[cfg(test)]
use sluicegate_data::value::Entry;

/// The maximum number of elements that a command processes without preemption.
pub(crate) const ELEMENTS_MAX: usize = 20_000;

/// The bytes from which on a value may have more than [`ELEMENTS_MAX`] elements; they are those of small numbers in a list.
const LARGE_BYTES: usize = 2 * ELEMENTS_MAX;

/// The values of a stripe that have vectors of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outside {
    /// The bytes of these vectors.
    pub(crate) bytes: usize,
    /// The number of values that may have more than [`ELEMENTS_MAX`] elements.
    pub(crate) large: u32,
}

impl Outside {
    /// A value with so many bytes was added.
    #[inline]
    pub(super) fn add(&mut self, bytes: usize) {
        self.replace(0, bytes);
    }

    /// A value with so many bytes was removed.
    #[inline]
    pub(super) fn remove(&mut self, bytes: usize) {
        self.replace(bytes, 0);
    }

    /// A value has `after` bytes where it had `before`.
    #[inline]
    pub(super) fn replace(&mut self, before: usize, after: usize) {
        self.bytes = self.bytes - before + after;
        self.large = self.large - u32::from(before >= LARGE_BYTES) + u32::from(after >= LARGE_BYTES);
    }
}

#[cfg(test)]
impl<'e> FromIterator<&'e Entry> for Outside {
    fn from_iter<I: IntoIterator<Item = &'e Entry>>(entries: I) -> Outside {
        let mut outside = Outside::default();
        entries.into_iter().for_each(|entry| outside.add(entry.outside_bytes()));
        outside
    }
}
