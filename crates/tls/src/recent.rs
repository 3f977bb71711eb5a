//! A bounded map from names, which evicts the least recently used entry.

use std::collections::{BTreeMap, HashMap};

/// Values by name.
#[derive(Debug)]
pub(crate) struct Recent<V> {
    most: usize,
    values: HashMap<Box<str>, (u64, V)>,
    /// Names by their last use.
    uses: BTreeMap<u64, Box<str>>,
    clock: u64,
}

impl<V: Clone> Recent<V> {
    /// Returns a map of at most `most` entries.
    pub fn new(most: usize) -> Recent<V> {
        Recent { most, values: HashMap::new(), uses: BTreeMap::new(), clock: 0 }
    }

    /// Returns the value of a name, which counts as a use.
    pub fn get(&mut self, name: &str) -> Option<V> {
        let (used, value) = self.values.get_mut(name)?;
        self.clock += 1;
        let name = self.uses.remove(used).expect("each value has its last use");
        self.uses.insert(self.clock, name);
        *used = self.clock;
        Some(value.clone())
    }

    /// Adds or replaces a value.
    pub fn put(&mut self, name: &str, value: V) {
        if self.most == 0 {
            return;
        }
        if let Some((used, _)) = self.values.remove(name) {
            self.uses.remove(&used);
        } else if self.values.len() == self.most
            && let Some((_, oldest)) = self.uses.pop_first()
        {
            self.values.remove(&oldest);
        }
        self.clock += 1;
        self.uses.insert(self.clock, name.into());
        self.values.insert(name.into(), (self.clock, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_least_recently_is_forgotten() {
        let mut recent = Recent::new(2);
        recent.put("a", 1);
        recent.put("b", 2);
        assert_eq!(recent.get("a"), Some(1));
        recent.put("c", 3);
        assert_eq!((recent.get("a"), recent.get("b"), recent.get("c")), (Some(1), None, Some(3)));
        recent.put("a", 4);
        recent.put("d", 5);
        assert_eq!((recent.get("a"), recent.get("c"), recent.get("d")), (Some(4), None, Some(5)));
        assert_eq!((recent.values.len(), recent.uses.len()), (2, 2));
        let mut none = Recent::new(0);
        none.put("a", 1);
        assert_eq!(none.get("a"), None);
    }
}
