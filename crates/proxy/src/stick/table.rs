//! A table: entries behind sharded locks, found by key, evicted by age.
//!
//! Entries are in chunks of words that never move, in [memory](super::memory) of the table's own, so that it grows
//! without copying; an entry is identified by its index. Untracked entries are in a list in the order of their last
//! use, which is also the order of expiry, as all entries of a table have the same lifetime. Expired entries are
//! removed when their shard is next used, a few at a time, when the table is listed, and once a second.

mod image;
mod shared;
mod successor;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use foldhash::quality::RandomState;
use hashbrown::HashTable;
use parking_lot::{Mutex, RwLock};
use sluicegate_config::model::{self, DataKind, TableData, TableKey};

use super::key::{self, Key};
use super::memory::{Memory, Piece};
use super::row::{Layout, Row};
use super::{is_past, now_ms, ticks};
use crate::sample::Sample;

#[cfg(test)]
pub(crate) use image::tests::moved;
pub(crate) use image::{Column, Origin, Shift};
pub(crate) use shared::{Changed, Learned, Sharing, Wake};

/// Tables up to this size have one shard, so that they evict exactly the oldest entries.
pub(super) const SMALL: u32 = 4_096;
/// The number of shards of larger tables.
const SHARDS: usize = 64;
/// The number of entries of one chunk.
const CHUNK: u32 = 64;
/// No entry.
const NONE: u32 = u32::MAX;
/// The maximum number of expired entries removed along the way when a shard is used.
const SWEPT: usize = 4;
/// The maximum number of expired entries removed under one lock acquisition when no request waits for them.
const SWEPT_ASIDE: usize = 256;
/// The maximum number of memory regions that get huge pages in one call; each costs the kernel some hundred
/// microseconds.
const COLLAPSED_MAX: usize = 32;
/// The maximum distance from the list's end for inserting an entry that was tracked for longer than since its last use.
const REORDERED: usize = 64;

/// The words before an entry's key.
const HASH: usize = 0;
const REFS: usize = 1;
const EXPIRE: usize = 2;
const PREVIOUS: usize = 3;
const NEXT: usize = 4;
const HEAD: usize = 5;

/// [`Table::expire`] of a table where no entry expires.
const NEVER: u32 = u32::MAX;

/// [`REFS`] of an entry that is free.
const FREE: u32 = u32::MAX;

/// A stick table.
pub struct Table {
    /// Its name.
    pub name: Arc<str>,
    /// The type of its keys.
    pub key: TableKey,
    /// Whether entries refer to servers by their addresses.
    pub by_address: bool,
    /// The maximum number of entries.
    size: AtomicU32,
    /// The lifetime of an unused entry, in ticks; [`NEVER`] if none expires.
    expire: AtomicU32,
    nopurge: AtomicBool,
    /// The data of each entry, in the order of the configuration.
    data: Vec<TableData>,
    layout: Layout,
    key_words: usize,
    stride: usize,
    shards: Box<[Mutex<Shard>]>,
    /// Acquired while a shard's lock is held.
    memory: Mutex<Memory>,
    entries: AtomicUsize,
    hasher: RandomState,
    /// The names of servers; entries refer to them by their index in this list, from 1.
    names: RwLock<Vec<Arc<str>>>,
    /// The exchange with peers, if the table is shared.
    shared: Option<shared::Shared>,
}

#[repr(align(128))]
struct Shard {
    index: HashTable<u32>,
    chunks: Vec<Piece>,
    /// The first free entry; its [`NEXT`] refers to the next one.
    free: u32,
    /// The number of entries that were ever used.
    used: u32,
    /// The entry that was unused for longest.
    oldest: u32,
    /// The entry that was used last.
    newest: u32,
    stride: usize,
    /// Entries that have changed since their changes were numbered, in a shared table.
    changed: Vec<u32>,
}

/// A tracked entry: it is not removed until this is dropped.
pub struct Held {
    /// Its table.
    pub table: Arc<Table>,
    shard: u32,
    entry: u32,
    /// Whether it counts among the connections of the entry.
    counts: bool,
}

/// An entry as a listing shows it.
pub struct Seen<'a> {
    /// Its key.
    pub key: Sample,
    /// The number of its trackers.
    pub trackers: u32,
    /// The time in milliseconds until it expires; 0 in a table without expiry.
    pub expires_ms: u32,
    /// A number that is unique in the table.
    pub number: u64,
    /// The part of the keys that it belongs to among peers; 0 if they are not divided.
    pub shard: u32,
    /// Its data.
    pub row: Row<'a>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("name", &self.name).field("entries", &self.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({}/{}/{})", self.table.name, self.shard, self.entry)
    }
}

impl Shard {
    fn words(&self, entry: u32) -> &[u32] {
        let at = (entry % CHUNK) as usize * self.stride;
        &self.chunks[(entry / CHUNK) as usize][at..at + self.stride]
    }

    fn words_mut(&mut self, entry: u32) -> &mut [u32] {
        let at = (entry % CHUNK) as usize * self.stride;
        &mut self.chunks[(entry / CHUNK) as usize][at..at + self.stride]
    }

    fn find(&self, hash: u32, key: &[u32]) -> Option<u32> {
        let same = |entry: &u32| {
            let words = self.words(*entry);
            words[HASH] == hash && words[HEAD..HEAD + key.len()] == *key
        };
        self.index.find(spread(hash), same).copied()
    }

    /// Removes an entry from the list.
    fn unlink(&mut self, entry: u32) {
        let words = self.words(entry);
        let (previous, next) = (words[PREVIOUS], words[NEXT]);
        match previous {
            NONE => self.oldest = next,
            previous => self.words_mut(previous)[NEXT] = next,
        }
        match next {
            NONE => self.newest = previous,
            next => self.words_mut(next)[PREVIOUS] = previous,
        }
    }

    /// Inserts an entry into the list after `previous`.
    fn link(&mut self, entry: u32, previous: u32) {
        let next = match previous {
            NONE => std::mem::replace(&mut self.oldest, entry),
            previous => std::mem::replace(&mut self.words_mut(previous)[NEXT], entry),
        };
        match next {
            NONE => self.newest = entry,
            next => self.words_mut(next)[PREVIOUS] = entry,
        }
        let words = self.words_mut(entry);
        (words[PREVIOUS], words[NEXT]) = (previous, next);
    }

    /// Inserts an entry into the list where its time of expiry belongs, if that is near the end.
    fn link_by_expiry(&mut self, entry: u32) {
        let until = self.words(entry)[EXPIRE];
        let mut previous = self.newest;
        for _ in 0..REORDERED {
            if previous == NONE || is_past(self.words(previous)[EXPIRE], until) {
                break;
            }
            previous = self.words(previous)[PREVIOUS];
        }
        self.link(entry, previous);
    }

    /// Creates an entry that is untracked and in no list.
    fn create(&mut self, hash: u32, key: &[u32], memory: &Mutex<Memory>) -> u32 {
        let entry = match self.free {
            NONE => {
                let entry = self.used;
                self.used += 1;
                if entry.is_multiple_of(CHUNK) {
                    self.chunks.push(memory.lock().piece(self.stride * CHUNK as usize));
                }
                entry
            }
            entry => {
                self.free = self.words(entry)[NEXT];
                entry
            }
        };
        let words = self.words_mut(entry);
        words[HASH] = hash;
        words[REFS] = 0;
        words[HEAD..HEAD + key.len()].copy_from_slice(key);
        let Shard { index, chunks, stride, .. } = self;
        let hash_of = |entry: &u32| {
            let at = (entry % CHUNK) as usize * *stride;
            spread(chunks[(entry / CHUNK) as usize][at + HASH])
        };
        index.insert_unique(spread(hash), entry, hash_of);
        entry
    }

    /// Frees an entry that is in no list.
    fn remove(&mut self, entry: u32) {
        let hash = self.words(entry)[HASH];
        if let Ok(found) = self.index.find_entry(spread(hash), |other| *other == entry) {
            found.remove();
        }
        let free = self.free;
        let words = self.words_mut(entry);
        (words[REFS], words[NEXT]) = (FREE, free);
        self.free = entry;
    }
}

/// Returns the hash for the index, which needs 64 bits whose upper and lower parts differ; all hashes of a shard have
/// the same lowest bits.
fn spread(hash: u32) -> u64 {
    let product = u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    product ^ product >> 32
}

impl Table {
    /// Returns an empty table that is not shared.
    pub fn new(config: &model::StickTable) -> Table {
        Table::with(config, None)
    }

    /// Returns an empty table, shared if it is to be.
    pub(crate) fn with(config: &model::StickTable, sharing: Option<Sharing>) -> Table {
        let nodes = sharing.as_ref().map_or(0, |sharing| sharing.nodes.len());
        let rank = sharing.as_ref().map_or(0, |sharing| sharing.rank);
        let layout = Layout::new(&config.data, nodes, rank);
        let key_words = key::words(config.key);
        let stride = HEAD + key_words + layout.all_words() + usize::from(sharing.is_some());
        let shard = || Shard {
            index: HashTable::new(),
            chunks: Vec::new(),
            free: NONE,
            used: 0,
            oldest: NONE,
            newest: NONE,
            stride,
            changed: Vec::new(),
        };
        let shards = if config.size <= SMALL { 1 } else { SHARDS };
        Table {
            name: config.name.clone(),
            key: config.key,
            size: AtomicU32::new(config.size),
            expire: AtomicU32::new(config.expire.map_or(NEVER, ticks)),
            nopurge: AtomicBool::new(config.nopurge),
            by_address: config.by_address,
            data: config.data.clone(),
            layout,
            key_words,
            stride,
            shards: (0..shards).map(|_| Mutex::new(shard())).collect(),
            memory: Mutex::default(),
            entries: AtomicUsize::new(0),
            hasher: RandomState::default(),
            names: RwLock::default(),
            shared: sharing.map(shared::Shared::new),
        }
    }

    /// Returns whether the table's entries fit this definition: the same keys and data, shared with the same nodes.
    pub(crate) fn holds(&self, config: &model::StickTable, sharing: Option<&Sharing>) -> bool {
        self.key == config.key
            && self.shared.as_ref().map(|shared| &shared.sharing) == sharing
            && self.by_address == config.by_address
            && self.data == config.data
    }

    /// Applies a new definition whose entries the table [holds](Table::holds): `size`, `expire` and `nopurge` take
    /// effect for later operations.
    pub(crate) fn redefine(&self, config: &model::StickTable) {
        self.size.store(config.size, Ordering::Relaxed);
        let before = self.expire.swap(config.expire.map_or(NEVER, ticks), Ordering::Relaxed);
        if let (NEVER, Some(expire)) = (before, self.expire_after()) {
            // What never expired has no time to expire at yet.
            let at = now_ms().wrapping_add(expire);
            for shard in &self.shards {
                let mut shard = shard.lock();
                for entry in 0..shard.used {
                    shard.words_mut(entry)[EXPIRE] = at;
                }
            }
        }
        self.nopurge.store(config.nopurge, Ordering::Relaxed);
    }

    /// Returns the maximum number of entries.
    pub fn size(&self) -> u32 {
        self.size.load(Ordering::Relaxed)
    }

    /// Returns the lifetime of an unused entry, in ticks; `None` if none expires.
    fn expire_after(&self) -> Option<u32> {
        Some(self.expire.load(Ordering::Relaxed)).filter(|ticks| *ticks != NEVER)
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// Returns the lifetime of an unused entry in milliseconds; 0 if none expires.
    pub fn expire_ms(&self) -> u32 {
        self.expire_after().unwrap_or(0)
    }

    /// Returns whether a full table accepts no new entry (`nopurge`).
    pub fn is_nopurge(&self) -> bool {
        self.nopurge.load(Ordering::Relaxed)
    }

    /// Returns whether the table has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether entries store this datum.
    pub fn has(&self, kind: DataKind) -> bool {
        self.layout.has(kind)
    }

    /// Returns the data of entries, in the order of listings.
    pub fn data(&self) -> impl Iterator<Item = TableData> {
        self.layout.data()
    }

    /// Returns the number of a server's name in this table.
    pub fn name_number(&self, name: &Arc<str>) -> u32 {
        let known = |names: &[Arc<str>]| names.iter().position(|other| other == name).map(|at| at as u32 + 1);
        if let Some(number) = known(&self.names.read()) {
            return number;
        }
        let mut names = self.names.write();
        known(&names).unwrap_or_else(|| {
            names.push(name.clone());
            names.len() as u32
        })
    }

    /// Returns the server name with this number.
    pub fn name_of(&self, number: u64) -> Option<Arc<str>> {
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        self.names.read().get(at).cloned()
    }

    fn place(&self, key: &Key) -> (u32, usize) {
        use std::hash::BuildHasher;
        let hash = self.hasher.hash_one(&key.0[..]) as u32;
        (hash, hash as usize % self.shards.len())
    }

    fn row<'a>(&'a self, shard: &'a mut Shard, entry: u32, now: u32) -> Row<'a> {
        let (start, count) = (HEAD + self.key_words, self.layout.all_words());
        let words = &mut shard.words_mut(entry)[start..start + count];
        Row { layout: &self.layout, words, now }
    }

    fn is_expired(&self, shard: &Shard, entry: u32, now: u32) -> bool {
        let words = shard.words(entry);
        self.expire_after().is_some() && words[REFS] == 0 && is_past(words[EXPIRE], now)
    }

    fn give_up(&self, shard: &mut Shard, entry: u32) {
        shard.unlink(entry);
        shard.remove(entry);
        self.entries.fetch_sub(1, Ordering::Relaxed);
    }

    /// Removes at most `most` expired entries; returns the number removed.
    fn sweep(&self, shard: &mut Shard, now: u32, most: usize) -> usize {
        for swept in 0..most {
            match shard.oldest {
                NONE => return swept,
                entry if self.is_expired(shard, entry, now) => self.give_up(shard, entry),
                _ => return swept,
            }
        }
        most
    }

    /// Removes expired entries.
    pub fn expire(&self) {
        if self.expire_after().is_some() && !self.is_empty() {
            let now = now_ms();
            for shard in &self.shards {
                // Not all under one lock acquisition: counting requests wait for it.
                while self.sweep(&mut shard.lock(), now, SWEPT_ASIDE) == SWEPT_ASIDE {}
            }
        }
    }

    /// Moves full regions to huge pages. Must be called twice a second.
    pub(crate) fn settle(&self) {
        if self.is_empty() {
            return;
        }
        let full = self.memory.lock().take_full(COLLAPSED_MAX);
        full.iter().for_each(|region| region.collapse());
    }

    fn touch(&self, shard: &mut Shard, entry: u32, now: u32) {
        let until = now.wrapping_add(self.expire_after().unwrap_or(0));
        let words = shard.words_mut(entry);
        if words[EXPIRE] == until && words[NEXT] == NONE {
            return;
        }
        words[EXPIRE] = until;
        if words[REFS] == 0 {
            shard.unlink(entry);
            let newest = shard.newest;
            shard.link(entry, newest);
        }
    }

    /// Runs `f` on the entry of a key, if there is one, without marking it as used.
    pub fn read<R>(&self, key: &Key, f: impl FnOnce(&Row<'_>, &Life) -> R) -> Option<R> {
        let (hash, at) = self.place(key);
        let now = now_ms();
        let mut shard = self.shards[at].lock();
        self.sweep(&mut shard, now, SWEPT);
        let entry = shard.find(hash, &key.0)?;
        if self.is_expired(&shard, entry, now) {
            self.give_up(&mut shard, entry);
            return None;
        }
        let words = shard.words(entry);
        let left = words[EXPIRE].wrapping_sub(now) as i32;
        let life =
            Life { trackers: words[REFS], left_ms: left.max(0) as u32, expire_ms: self.expire_after().unwrap_or(0) };
        Some(f(&self.row(&mut shard, entry, now), &life))
    }

    /// Runs `f` on the entry of a key, created if necessary, and marks it as used. `None` if a full table cannot evict
    /// an entry.
    pub fn change<R>(&self, key: &Key, f: impl FnOnce(&mut Row<'_>) -> R) -> Option<R> {
        self.entry(key, |table, (shard, _), entry, now| {
            table.touch(shard, entry, now);
            table.note(shard, entry);
            f(&mut table.row(shard, entry, now))
        })
    }

    /// Runs `f` on the entry of a key, if there is one, and marks it as used.
    pub fn change_known<R>(&self, key: &Key, f: impl FnOnce(&mut Row<'_>) -> R) -> Option<R> {
        self.read(key, |_, _| ())?;
        self.change(key, f)
    }

    /// Tracks the entry of a key, creating it if necessary, and runs `f` on it.
    pub fn track<R>(self: &Arc<Self>, key: &Key, f: impl FnOnce(&mut Row<'_>) -> R) -> Option<(Held, R)> {
        self.entry(key, |table, (shard, at), entry, now| {
            if shard.words(entry)[REFS] == 0 {
                shard.unlink(entry);
            }
            let words = shard.words_mut(entry);
            words[REFS] += 1;
            words[EXPIRE] = now.wrapping_add(table.expire_after().unwrap_or(0));
            table.note(shard, entry);
            let result = f(&mut table.row(shard, entry, now));
            (Held { table: self.clone(), shard: at as u32, entry, counts: true }, result)
        })
    }

    /// Tracks the entry of a key, creating it if necessary, without counting a connection.
    pub(crate) fn hold(self: &Arc<Self>, key: &Key) -> Option<Held> {
        let (mut held, ()) = self.track(key, |_| ())?;
        held.counts = false;
        Some(held)
    }

    /// Calls `f` with the entry of a key, created if necessary, its shard with its index, and the time.
    fn entry<R>(&self, key: &Key, f: impl FnOnce(&Self, (&mut Shard, usize), u32, u32) -> R) -> Option<R> {
        debug_assert_eq!(key.0.len(), self.key_words, "a key of another table's type");
        let (hash, at) = self.place(key);
        let now = now_ms();
        loop {
            let mut shard = self.shards[at].lock();
            self.sweep(&mut shard, now, SWEPT);
            if let Some(entry) = shard.find(hash, &key.0) {
                if !self.is_expired(&shard, entry, now) {
                    return Some(f(self, (&mut shard, at), entry, now));
                }
                self.give_up(&mut shard, entry);
            }
            if self.reserve() {
                let entry = shard.create(hash, &key.0, &self.memory);
                // The number of its last change is cleared with its data.
                self.layout.clear(&mut shard.words_mut(entry)[HEAD + self.key_words..], now);
                shard.words_mut(entry)[EXPIRE] = now.wrapping_add(self.expire_after().unwrap_or(0));
                let newest = shard.newest;
                shard.link(entry, newest);
                return Some(f(self, (&mut shard, at), entry, now));
            }
            drop(shard);
            // Never under the lock: the evicted entry may be of another shard.
            if self.nopurge.load(Ordering::Relaxed) || !self.purge_oldest(at) {
                return None;
            }
        }
    }

    fn reserve(&self) -> bool {
        let room = |count: usize| (count < self.size() as usize).then_some(count + 1);
        self.entries.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    /// Evicts the oldest entries: a 256th of the table, spread over all shards. Returns `false` if all entries are
    /// tracked.
    fn purge_oldest(&self, first: usize) -> bool {
        let mut wanted = (self.size() as usize >> 8) + 1;
        let share = wanted.div_ceil(self.shards.len());
        let mut any = false;
        for at in 0..self.shards.len() {
            let mut shard = self.shards[(first + at) % self.shards.len()].lock();
            for _ in 0..share.min(wanted) {
                if shard.oldest == NONE {
                    break;
                }
                let oldest = shard.oldest;
                self.give_up(&mut shard, oldest);
                wanted -= 1;
                any = true;
            }
            if wanted == 0 {
                break;
            }
        }
        any
    }

    /// Removes the entry of a key; returns `false` if it is tracked and therefore stays.
    pub fn remove(&self, key: &Key) -> bool {
        let (hash, at) = self.place(key);
        let mut shard = self.shards[at].lock();
        match shard.find(hash, &key.0) {
            None => true,
            Some(entry) if shard.words(entry)[REFS] > 0 => false,
            Some(entry) => {
                self.give_up(&mut shard, entry);
                true
            }
        }
    }

    /// Shows the entry of a key, if there is one.
    pub fn see(&self, key: &Key, f: impl FnOnce(Seen<'_>)) {
        let (hash, at) = self.place(key);
        let mut shard = self.shards[at].lock();
        let now = now_ms();
        let entry = shard.find(hash, &key.0).filter(|entry| !self.is_expired(&shard, *entry, now));
        if let Some(entry) = entry {
            f(self.seen(at, &mut shard, entry, now));
        }
    }

    fn seen<'a>(&'a self, at: usize, shard: &'a mut Shard, entry: u32, now: u32) -> Seen<'a> {
        let words = shard.words(entry);
        Seen {
            key: key::sample(self.key, &words[HEAD..HEAD + self.key_words]),
            trackers: words[REFS],
            expires_ms: (words[EXPIRE].wrapping_sub(now) as i32).max(0) as u32,
            shard: self.shard_of(&words[HEAD..HEAD + self.key_words]),
            number: ((at as u64) << 32 | u64::from(entry)) * self.stride as u64 * 4 + 4_096,
            row: self.row(shard, entry, now),
        }
    }

    /// Passes entries from a position on to `f`, at most `most` under one lock; returns the next position. Untracked
    /// entries for which `f` returns `false` are removed.
    pub fn page(&self, from: (usize, u32), most: u32, mut f: impl FnMut(Seen<'_>) -> bool) -> Option<(usize, u32)> {
        let (at, mut next) = from;
        let mut shard = self.shards.get(at)?.lock();
        let now = now_ms();
        let end = shard.used.min(next.saturating_add(most));
        while next < end {
            let entry = next;
            next += 1;
            let refs = shard.words(entry)[REFS];
            if refs == FREE || self.is_expired(&shard, entry, now) {
                continue;
            }
            let seen = self.seen(at, &mut shard, entry, now);
            if !f(seen) && refs == 0 {
                self.give_up(&mut shard, entry);
            }
        }
        if next < shard.used { Some((at, next)) } else { (at + 1 < self.shards.len()).then_some((at + 1, 0)) }
    }
}

/// The lifetime of an entry, and its trackers.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// The number of its trackers.
    pub trackers: u32,
    /// The time until it expires, in milliseconds.
    pub left_ms: u32,
    /// The lifetime of an unused entry, in milliseconds.
    pub expire_ms: u32,
}

impl Held {
    /// Runs `f` on the entry and marks it as used.
    pub fn change<R>(&self, f: impl FnOnce(&mut Row<'_>) -> R) -> R {
        let now = now_ms();
        let mut shard = self.table.shards[self.shard as usize].lock();
        shard.words_mut(self.entry)[EXPIRE] = now.wrapping_add(self.table.expire_after().unwrap_or(0));
        self.table.note(&mut shard, self.entry);
        f(&mut self.table.row(&mut shard, self.entry, now))
    }

    /// Runs `f` on the entry.
    pub fn read<R>(&self, f: impl FnOnce(&Row<'_>, &Life) -> R) -> R {
        let now = now_ms();
        let mut shard = self.table.shards[self.shard as usize].lock();
        let trackers = shard.words(self.entry)[REFS];
        let life = Life { trackers, left_ms: 0, expire_ms: 0 };
        f(&self.table.row(&mut shard, self.entry, now), &life)
    }

    /// Runs `f` on the words of a rate, its definition, the number of trackers and the time; `None` if the rate is not
    /// stored.
    pub(crate) fn with_rate<R>(
        &self,
        kind: DataKind,
        f: impl FnOnce(&mut [u32], TableData, u32, u32) -> R,
    ) -> Option<R> {
        let now = now_ms();
        let mut shard = self.table.shards[self.shard as usize].lock();
        let trackers = shard.words(self.entry)[REFS];
        self.table.row(&mut shard, self.entry, now).with_rate(kind, |words, data| f(words, data, trackers, now))
    }

    /// Returns the entry's key as a sample.
    pub fn key_sample(&self) -> Sample {
        super::key::sample(self.table.key, &self.key().0)
    }

    /// Returns the entry's key, for a table with keys of the same type.
    pub fn key(&self) -> Key {
        let shard = self.table.shards[self.shard as usize].lock();
        Key(shard.words(self.entry)[HEAD..HEAD + self.table.key_words].into())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let table = &self.table;
        let now = now_ms();
        let mut shard = table.shards[self.shard as usize].lock();
        if self.counts && table.has(DataKind::ConnCur) {
            table.row(&mut shard, self.entry, now).decrement(DataKind::ConnCur);
            shard.words_mut(self.entry)[EXPIRE] = now.wrapping_add(table.expire_after().unwrap_or(0));
            table.note(&mut shard, self.entry);
        }
        let words = shard.words_mut(self.entry);
        words[REFS] -= 1;
        if words[REFS] > 0 {
            return;
        }
        shard.link_by_expiry(self.entry);
        if table.is_expired(&shard, self.entry, now) {
            table.give_up(&mut shard, self.entry);
        }
    }
}
