//! The most requested keys, in little memory: the space-saving algorithm (Metwally, Agrawal and El Abbadi, 2005).
//!
//! A list has [`KEPT`] keys. A new key replaces the one with the lowest count and continues from that count, so a count
//! is never too low, and too high by at most its initial value, which is stored. A key with more than one of [`KEPT`]
//! requests is always in the list. A request costs a scan of the hashes, 8 bytes each.

use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;

/// The maximum number of keys of one list.
const KEPT: usize = 64;

/// A key and the number of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heavy {
    /// The key.
    pub key: Vec<u8>,
    /// The number of requests, overestimated by at most `error`.
    pub requests: u64,
    /// Denied requests since it entered the list.
    pub denied: u64,
    /// See `requests`.
    pub error: u64,
}

#[derive(Default)]
pub(super) struct Top {
    hashes: Vec<u64>,
    keys: Vec<Heavy>,
}

impl Top {
    pub(super) fn note(&mut self, key: &[u8], denied: bool) {
        let hash = FixedState::with_seed(0).hash_one(key);
        let mut found = self.hashes.iter().position(|known| *known == hash);
        if found.is_some_and(|at| self.keys[at].key != key) {
            found = self.keys.iter().position(|known| known.key == key);
        }
        let at = match found {
            Some(at) => at,
            None if self.keys.len() < KEPT => {
                self.hashes.push(hash);
                self.keys.push(Heavy { key: key.to_vec(), requests: 0, denied: 0, error: 0 });
                self.keys.len() - 1
            }
            None => {
                let (at, least) = self.keys.iter_mut().enumerate().min_by_key(|(_, key)| key.requests).expect("some");
                least.key.clear();
                least.key.extend_from_slice(key);
                (least.error, least.denied) = (least.requests, 0);
                self.hashes[at] = hash;
                at
            }
        };
        self.keys[at].requests += 1;
        self.keys[at].denied += u64::from(denied);
    }

    pub(super) fn all(&self) -> Vec<Heavy> {
        self.keys.clone()
    }

    pub(super) fn forget(&mut self, key: &[u8]) {
        if let Some(at) = self.keys.iter().position(|known| known.key == key) {
            self.keys.swap_remove(at);
            self.hashes.swap_remove(at);
        }
    }
}

/// Merges several lists into one, in descending order of requests.
pub(super) fn merged(lists: impl Iterator<Item = Vec<Heavy>>) -> Vec<Heavy> {
    let mut all: std::collections::HashMap<Vec<u8>, Heavy> = std::collections::HashMap::new();
    for heavy in lists.flatten() {
        match all.get_mut(&heavy.key) {
            Some(known) => {
                known.requests += heavy.requests;
                known.denied += heavy.denied;
                known.error += heavy.error;
            }
            None => _ = all.insert(heavy.key.clone(), heavy),
        }
    }
    let mut all: Vec<Heavy> = all.into_values().collect();
    all.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.key.cmp(&b.key)));
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Counts are never too low and at most so much too high as they say, and what is frequent is there.
        #[test]
        fn counts_are_bounded(asked in prop::collection::vec((0_u8..100, any::<bool>()), 1..2000)) {
            let mut top = Top::default();
            let mut model = std::collections::HashMap::<Vec<u8>, (u64, u64)>::new();
            for (key, denied) in &asked {
                // Half of the requests are of ten keys.
                let key = vec![b'k', if key % 2 == 0 { key % 10 } else { *key }];
                top.note(&key, *denied);
                let count = model.entry(key).or_default();
                count.0 += 1;
                count.1 += u64::from(*denied);
            }
            let all = merged([top.all()].into_iter());
            prop_assert!(all.is_sorted_by(|a, b| a.requests >= b.requests));
            for heavy in &all {
                let (requests, denied) = model[&heavy.key];
                prop_assert!(heavy.requests >= requests && heavy.requests - heavy.error <= requests);
                prop_assert!(heavy.denied <= denied);
            }
            for (key, (requests, _)) in model {
                prop_assert!(requests <= asked.len() as u64 / KEPT as u64 || all.iter().any(|heavy| heavy.key == key));
            }
        }
    }

    #[test]
    fn lists_of_several_threads_are_one() {
        let (mut one, mut two) = (Top::default(), Top::default());
        one.note(b"a", false);
        one.note(b"b", true);
        two.note(b"b", true);
        let heavy = |key: &str, requests, denied| Heavy { key: key.into(), requests, denied, error: 0 };
        assert_eq!(merged([one.all(), two.all()].into_iter()), [heavy("b", 2, 2), heavy("a", 1, 0)]);
        one.forget(b"b");
        assert_eq!(one.all(), [heavy("a", 1, 0)]);
    }
}
