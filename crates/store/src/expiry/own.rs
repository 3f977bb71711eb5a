//! Keys of a writable replica whose expiry its own clients have set.
//!
//! What has expired on a replica is removed by its master, which does not know these keys. So the replica remembers them,
//! by the time at which they expire, and removes them itself, as Redis does (`replica-read-only no`). A key that is set
//! to another expiry, or has none any more, is looked at when the remembered time comes.
//!
//! **Limits**: [`BYTES_MAX`] for the names; a key beyond that is hidden once it has expired, and is not removed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::memory::{Kind, Memory, Outside};

/// The maximum number of bytes that the names of keys take here.
const BYTES_MAX: usize = if cfg!(test) { 1 << 12 } else { 64 << 20 };
/// The bytes of a key without its name: the shares of a hash table and of a tree.
const KEY_BYTES: usize = 128;

/// The keys of all databases.
#[derive(Default)]
pub(crate) struct OwnExpiring {
    state: Mutex<State>,
    /// Their number, so that a tick without any takes no lock.
    count: AtomicUsize,
}

struct State {
    times: HashMap<Key, i64>,
    by_time: BTreeSet<(i64, Key)>,
    bytes: usize,
    counted: Outside,
}

/// Database and name.
type Key = (u32, Arc<[u8]>);

impl Default for State {
    fn default() -> State {
        let (times, by_time) = (HashMap::new(), BTreeSet::new());
        State { times, by_time, bytes: 0, counted: Outside::of(Kind::Apart) }
    }
}

impl OwnExpiring {
    /// Remembers a key that expires at this time.
    pub(crate) fn remember(&self, memory: &Arc<Memory>, db: u32, name: &[u8], at_ms: i64) {
        let key: Key = (db, name.into());
        let mut state = self.state.lock();
        let own_bytes = KEY_BYTES + name.len();
        match state.times.get(&key) {
            Some(&known_ms) => {
                state.by_time.remove(&(known_ms, key.clone()));
            }
            None if state.bytes + own_bytes > BYTES_MAX => return,
            None => state.bytes += own_bytes,
        }
        state.times.insert(key.clone(), at_ms);
        state.by_time.insert((at_ms, key));
        self.count(&mut state, memory);
    }

    /// Forgets and returns a key whose time has come.
    pub(super) fn take_due(&self, memory: &Arc<Memory>, now_ms: i64) -> Option<Key> {
        if self.len() == 0 {
            return None;
        }
        let mut state = self.state.lock();
        let (at_ms, _) = state.by_time.first()?;
        if *at_ms > now_ms {
            return None;
        }
        let (_, key) = state.by_time.pop_first()?;
        state.times.remove(&key);
        state.bytes -= KEY_BYTES + key.1.len();
        self.count(&mut state, memory);
        Some(key)
    }

    fn count(&self, state: &mut State, memory: &Arc<Memory>) {
        let bytes = state.bytes;
        state.counted.set(memory, bytes);
        self.count.store(state.times.len(), Ordering::Relaxed);
    }

    /// Returns the number of keys.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Forgets all keys: they were removed, or this server removes what has expired.
    pub(crate) fn clear(&self) {
        if self.len() > 0 {
            let mut state = self.state.lock();
            self.count.store(0, Ordering::Relaxed);
            *state = State::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_known_once_and_due_in_order() {
        let store = crate::Store::new(crate::StoreOptions::default());
        let (memory, own) = (&store.0.memory, OwnExpiring::default());
        for (db, name, at_ms) in [(0, "a", 5), (0, "b", 3), (1, "a", 4), (0, "a", 9), (0, "b", 3)] {
            own.remember(memory, db, name.as_bytes(), at_ms);
        }
        assert_eq!(own.len(), 3);
        assert_eq!(own.state.lock().bytes, 3 * (KEY_BYTES + 1));
        let due = |now_ms| own.take_due(memory, now_ms).map(|(db, name)| (db, name[0] as char));
        assert_eq!(
            [due(2), due(4), due(4), due(8), due(9), due(99)],
            [None, Some((0, 'b')), Some((1, 'a')), None, Some((0, 'a')), None]
        );
        let state = own.state.lock();
        assert_eq!((own.len(), state.bytes, state.counted.bytes()), (0, 0, 0));
    }

    #[test]
    fn names_take_limited_memory() {
        let store = crate::Store::new(crate::StoreOptions::default());
        let (memory, own) = (&store.0.memory, OwnExpiring::default());
        for number in 0..100 {
            own.remember(memory, 0, format!("key {number:03}").as_bytes(), number);
        }
        let len = own.len();
        assert_eq!(len, BYTES_MAX / (KEY_BYTES + 7));
        assert_eq!(own.state.lock().counted.bytes(), len * (KEY_BYTES + 7));
        own.remember(memory, 0, b"key 000", 1_000);
        assert_eq!(own.take_due(memory, 0), None, "a known one gets its new time");
        own.clear();
        assert_eq!((own.len(), own.take_due(memory, 9_999)), (0, None));
    }
}
