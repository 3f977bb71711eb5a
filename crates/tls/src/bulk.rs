//! Collections that are freed by a separate thread if they are large.
//!
//! Certificates are shared by a configuration, its listeners and the process, and the last reference to those that a
//! reload has replaced may be a worker's. Freeing 5,000 certificates with their keys takes some 20 ms, in which no
//! request of that worker would be served; starting a thread takes some 50 µs.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

/// The number of entries from which on a collection is freed by a separate thread.
const MANY: usize = 128;

/// A type whose values a [`Bulk`] holds.
pub trait Collection: Default + Send + 'static {
    /// Returns the number of entries.
    fn count(&self) -> usize;
}

impl<T: Send + 'static> Collection for Vec<T> {
    fn count(&self) -> usize {
        self.len()
    }
}

impl<K: Send + 'static, V: Send + 'static> Collection for BTreeMap<K, V> {
    fn count(&self) -> usize {
        self.len()
    }
}

/// A collection that is freed by a separate thread if it is large.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bulk<T: Collection>(T);

impl<T: Collection> Drop for Bulk<T> {
    fn drop(&mut self) {
        if self.0.count() < MANY {
            return;
        }
        let freed = std::mem::take(&mut self.0);
        // Without a thread, the closure and the collection in it are dropped here.
        let _ = std::thread::Builder::new().name("free".into()).spawn(move || drop(freed));
    }
}

impl<T: Collection> From<T> for Bulk<T> {
    fn from(collection: T) -> Self {
        Bulk(collection)
    }
}

impl<T: Collection> Deref for Bulk<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Collection> DerefMut for Bulk<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<'a, T: Collection> IntoIterator for &'a Bulk<T>
where
    &'a T: IntoIterator,
{
    type Item = <&'a T as IntoIterator>::Item;
    type IntoIter = <&'a T as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        (&self.0).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{ThreadId, current};

    use super::*;

    /// Reports the thread on which it is dropped.
    struct Witness(Sender<ThreadId>);

    impl Drop for Witness {
        fn drop(&mut self) {
            let _ = self.0.send(current().id());
        }
    }

    #[test]
    fn a_large_collection_is_freed_elsewhere_and_a_small_one_here() {
        for (count, here) in [(MANY - 1, true), (MANY, false)] {
            let (sender, freed) = channel();
            drop(Bulk::from((0..count).map(|_| Witness(sender.clone())).collect::<Vec<_>>()));
            drop(sender);
            // The channel ends with the last witness.
            let threads: Vec<ThreadId> = freed.iter().collect();
            assert_eq!(threads.len(), count);
            assert!(threads.iter().all(|thread| (*thread == current().id()) == here), "{count} entries");
        }
    }
}
