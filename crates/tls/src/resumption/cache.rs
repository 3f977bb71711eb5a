//! Stored sessions of the process: shards with a lock each, bounded by blocks of 200 bytes as HAProxy counts them.
//!
//! When a shard is full the oldest sessions are evicted, whether they are used or not: sessions are short-lived.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// The number of shards.
const SHARDS: usize = 16;

/// The size of a block in bytes.
const BLOCK: usize = 200;

/// The longest key: identifiers of sessions and of stateful tickets have at most 32 bytes.
const KEY_MAX: usize = 32;

struct Held {
    session: Box<[u8]>,
    /// In seconds.
    expires: u64,
    /// The number of this insertion in the shard.
    serial: u64,
}

#[derive(Default)]
struct Shard {
    sessions: HashMap<Box<[u8]>, Held>,
    /// Insertions, oldest first, including some whose sessions have been removed.
    order: VecDeque<(u64, Box<[u8]>)>,
    blocks: usize,
    serial: u64,
}

fn blocks_of(session: &[u8]) -> usize {
    session.len().div_ceil(BLOCK)
}

impl Shard {
    fn remove(&mut self, key: &[u8]) -> Option<Held> {
        let held = self.sessions.remove(key)?;
        self.blocks -= blocks_of(&held.session);
        Some(held)
    }

    /// Drops the oldest sessions until `blocks` more fit in `limit`; returns whether they do.
    fn make_room(&mut self, blocks: usize, limit: usize) -> bool {
        while self.blocks + blocks > limit {
            let Some((serial, key)) = self.order.pop_front() else { return false };
            if self.sessions.get(&key).is_some_and(|held| held.serial == serial) {
                self.remove(&key);
            }
        }
        true
    }

    fn put(&mut self, key: &[u8], session: Box<[u8]>, expires: u64, limit: usize) -> bool {
        self.remove(key);
        let blocks = blocks_of(&session);
        if !self.make_room(blocks, limit) {
            return false;
        }
        // Sessions that were taken leave their entries in `order` behind.
        if self.order.len() > 2 * self.sessions.len() + 64 {
            let sessions = &self.sessions;
            self.order.retain(|(serial, key)| sessions.get(key).is_some_and(|held| held.serial == *serial));
        }
        self.serial += 1;
        self.blocks += blocks;
        self.order.push_back((self.serial, key.into()));
        self.sessions.insert(key.into(), Held { session, expires, serial: self.serial });
        true
    }
}

/// Sessions by their identifiers.
pub struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    /// The most blocks of all shards.
    limit: AtomicUsize,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Cache {
    /// Returns a cache of `blocks` blocks.
    pub fn new(blocks: usize) -> Cache {
        Cache { shards: Default::default(), limit: AtomicUsize::new(blocks) }
    }

    /// Changes the number of blocks.
    pub fn resize(&self, blocks: usize) {
        if self.limit.swap(blocks, Ordering::Relaxed) <= blocks {
            return;
        }
        for shard in &self.shards {
            shard.lock().make_room(0, self.shard_limit());
        }
    }

    /// Returns whether anything is stored.
    pub fn is_enabled(&self) -> bool {
        self.limit.load(Ordering::Relaxed) > 0
    }

    fn shard_limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed).div_ceil(SHARDS)
    }

    /// Returns the shard of a key, whose bytes are random. A client that chooses keys harms nothing but its own
    /// sessions.
    fn shard(&self, key: &[u8]) -> &Mutex<Shard> {
        &self.shards[usize::from(key.last().copied().unwrap_or(0)) % SHARDS]
    }

    /// Stores a session; returns whether it fits.
    pub fn put(&self, key: &[u8], session: Box<[u8]>, expires: u64) -> bool {
        if key.is_empty() || key.len() > KEY_MAX || !self.is_enabled() {
            return false;
        }
        self.shard(key).lock().put(key, session, expires, self.shard_limit())
    }

    /// Returns a copy of a session that has not expired.
    pub fn get(&self, key: &[u8], now: u64) -> Option<Box<[u8]>> {
        let mut shard = self.shard(key).lock();
        let held = shard.sessions.get(key)?;
        if held.expires < now {
            shard.remove(key);
            return None;
        }
        Some(held.session.clone())
    }

    /// Removes and returns a session that has not expired.
    pub fn take(&self, key: &[u8], now: u64) -> Option<Box<[u8]>> {
        let held = self.shard(key).lock().remove(key)?;
        (held.expires >= now).then_some(held.session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> [u8; 32] {
        // All in one shard.
        let mut key = [number; 32];
        key[31] = 0;
        key
    }

    fn session(bytes: usize) -> Box<[u8]> {
        vec![1; bytes].into()
    }

    #[test]
    fn sessions_expire() {
        let cache = Cache::new(1000);
        assert!(cache.put(&key(1), session(100), 10));
        assert!(cache.get(&key(1), 10).is_some());
        assert!(cache.get(&key(1), 11).is_none());
        assert!(cache.get(&key(1), 0).is_none());
        assert!(cache.put(&key(2), session(100), 10));
        assert_eq!(cache.take(&key(2), 10).unwrap().len(), 100);
        assert!(cache.take(&key(2), 10).is_none());
    }

    #[test]
    fn blocks_are_the_limit() {
        // Four blocks a shard.
        let cache = Cache::new(64);
        for number in 0..4 {
            assert!(cache.put(&key(number), session(200), 10));
        }
        assert!(cache.put(&key(0), session(200), 10));
        // The oldest is 1 now.
        assert!(cache.put(&key(4), session(201), 10));
        let held = |number| cache.get(&key(number), 0).is_some();
        assert_eq!([0, 1, 2, 3, 4].map(held), [true, false, false, true, true]);
        assert!(!cache.put(&key(5), session(1000), 10));
        assert!(!cache.put(&[1; 33], session(1), 10) && !cache.put(&[], session(1), 10));
        assert!(!Cache::new(0).put(&key(1), session(1), 10));
        cache.resize(16);
        assert!([0, 3, 4].iter().filter(|number| cache.get(&key(**number), 0).is_some()).count() <= 1);
    }

    #[test]
    fn taken_sessions_leave_nothing() {
        let cache = Cache::new(1600);
        for round in 0..1000u32 {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&round.to_be_bytes());
            assert!(cache.put(&key, session(10), 10));
            assert!(cache.take(&key, 0).is_some());
        }
        let shard = cache.shards[0].lock();
        assert!(shard.sessions.is_empty() && shard.blocks == 0 && shard.order.len() <= 66);
    }
}
