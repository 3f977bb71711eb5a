//! Caches of responses (`cache` sections, `cache-use`, `cache-store`; HAProxy configuration manual 6).
//!
//! A `Cache` is shared by all workers: an index from the digest of a URI to its responses, one unless they vary by
//! fields of the request, in the order of their last use, behind one mutex that is held for look-ups and changes of the
//! index only. A response is an immutable `Entry` behind a counted reference, so it is sent without a lock, and
//! remains whole if it is evicted meanwhile.
//!
//! What may be stored and used is HAProxy's narrowing of RFC 9111: GET requests of HTTP/1.1 or later without
//! Authorization, responses with status 200, a lifetime or a validator (`rules`); the response's lifetime is cut to
//! `max-age`. Requests for ranges are answered with the whole response, as in HAProxy.
//!
//! **Limits.** Memory is counted in blocks of 1 KiB, those of responses that are being received included, and never
//! exceeds `total-max-size`: the response that was not used for longest makes room, unless it is being sent.

mod entry;
mod request;
mod rules;
mod stored;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use sluicegate_config::model::CacheSection;
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::http::Message;

use crate::date::unix_seconds;
use crate::engines::Engines;

pub(crate) use entry::{Entry, Writer};
pub use request::StreamCache;
pub(crate) use request::{CacheKey, Hit, VaryKey};
pub(crate) use rules::not_modified;
pub use stored::fuzz_stored;

/// The size of a block, in bytes.
const BLOCK: u64 = 1024;

/// The assumed size of an entry without its head and body, in bytes.
const OVERHEAD: u64 = 160;

/// A cache.
pub struct Cache {
    config: RwLock<Arc<CacheSection>>,
    /// The store that keeps the responses, too.
    engine: RwLock<Option<Arc<dyn Engine>>>,
    state: Mutex<State>,
    /// The number of the next entry.
    next: AtomicU64,
}

/// An entry in the index.
struct Slot {
    entry: Arc<Entry>,
    /// Its place in the order of use; entries that are being received have none.
    used: Option<u64>,
}

#[derive(Default)]
struct State {
    /// Entries by their URIs; several vary by fields of the request.
    entries: HashMap<CacheKey, Vec<Slot>, foldhash::fast::RandomState>,
    /// The URIs and numbers of complete entries, in the order of their last use.
    order: BTreeMap<u64, (CacheKey, u64)>,
    /// The number of the next use.
    clock: u64,
    /// Blocks of complete entries.
    held: u64,
    /// Blocks of entries that are being received.
    reserved: u64,
    /// The writes into the store that have not ended, by their URIs.
    writes: HashMap<CacheKey, Writes, foldhash::fast::RandomState>,
}

/// The writes of a URI into the store that have not ended.
#[derive(Default)]
struct Writes {
    count: usize,
    /// Whether the URI was invalidated meanwhile: what they write is removed once they have ended. The store may else
    /// execute the removal, which goes over another connection, before them.
    invalidated: bool,
}

impl State {
    /// Makes room for this many blocks; `false` if that is impossible.
    fn make_room(&mut self, blocks: u64, total: u64) -> bool {
        while self.held + self.reserved + blocks > total {
            // An entry that is being sent has another owner.
            let idle = |(at, (key, number)): (&u64, &(CacheKey, u64))| {
                let slot = self.entries.get(key)?.iter().find(|slot| slot.entry.number == *number)?;
                (Arc::strong_count(&slot.entry) == 1).then_some((*at, *key, *number))
            };
            let Some((_, key, number)) = self.order.iter().find_map(idle) else { return false };
            self.remove(&key, number);
        }
        true
    }

    /// Removes an entry.
    fn remove(&mut self, key: &CacheKey, number: u64) {
        let Some(slots) = self.entries.get_mut(key) else { return };
        let Some(at) = slots.iter().position(|slot| slot.entry.number == number) else { return };
        let slot = slots.remove(at);
        if slots.is_empty() {
            self.entries.remove(key);
        }
        if let Some(used) = slot.used {
            self.order.remove(&used);
            self.held -= slot.entry.blocks;
        }
    }

    /// Makes a complete entry the most recently used one.
    fn touch(&mut self, key: &CacheKey, number: u64) {
        self.clock += 1;
        let now = self.clock;
        let slots = self.entries.get_mut(key).into_iter().flatten();
        if let Some(slot) = { slots }.find(|slot| slot.entry.number == number) {
            if let Some(before) = slot.used.replace(now) {
                self.order.remove(&before);
            }
            self.order.insert(now, (*key, number));
        }
    }

    /// Removes what has expired of a URI.
    fn expire(&mut self, key: &CacheKey, now: i64) {
        let slots = self.entries.get(key).into_iter().flatten();
        let late: Vec<u64> = slots.filter(|slot| slot.entry.expires <= now).map(|slot| slot.entry.number).collect();
        late.into_iter().for_each(|number| self.remove(key, number));
    }
}

/// The outcome of a look-up.
pub(crate) enum Found {
    /// No response of the URI is known: one that varies by fields of the request may be stored.
    Nothing,
    /// There are responses of the URI, and none of them may be used.
    Unusable,
    /// A response that may be used.
    Entry(Arc<Entry>),
}

impl Cache {
    fn new(config: CacheSection) -> Cache {
        Cache {
            config: RwLock::new(Arc::new(config)),
            engine: RwLock::default(),
            state: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }

    /// Returns the caches of a configuration; those of the one before it are kept by their names.
    pub(crate) fn all(config: &[CacheSection], engines: &Engines, before: &[Arc<Cache>]) -> Vec<Arc<Cache>> {
        let kept = |section: &CacheSection| before.iter().find(|known| known.config().name == section.name);
        let one = |section: &CacheSection| match kept(section) {
            Some(known) => known.clone(),
            None => {
                let cache = Cache::new(section.clone());
                cache.redefine(section, engines);
                Arc::new(cache)
            }
        };
        config.iter().map(one).collect()
    }

    /// Applies a definition, with the store that it names; responses that no longer fit are removed when the next one
    /// is stored.
    pub(crate) fn redefine(&self, config: &CacheSection, engines: &Engines) {
        *self.config.write() = Arc::new(config.clone());
        *self.engine.write() = config.store.as_ref().and_then(|name| engines.get(name)).cloned();
    }

    /// Asks the store of this cache for a response; `None` if it has no store.
    pub(crate) fn ask(&self, key: &CacheKey) -> Option<Started> {
        let engine = self.engine.read().clone()?;
        Some(engine.start(0, &[b"GET", &stored::name(&self.config().name, key)]))
    }

    /// Takes a response that the store has; `None` if it is not valid.
    pub(crate) fn adopt(&self, key: &CacheKey, value: &[u8], head_max: usize) -> Option<Arc<Entry>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = stored::read(key, number, value, &self.config(), head_max)?;
        let mut state = self.state.lock();
        state.expire(key, unix_seconds());
        if state.entries.contains_key(key) || !state.make_room(entry.blocks, self.blocks_max()) {
            // Another stream was faster, or there is no room: this stream alone uses it.
            return Some(Arc::new(entry));
        }
        state.held += entry.blocks;
        let entry = Arc::new(entry);
        state.entries.insert(*key, vec![Slot { entry: entry.clone(), used: Some(0) }]);
        state.touch(key, number);
        Some(entry)
    }

    /// Puts a complete response into the store; the write was counted.
    fn keep(self: &Arc<Self>, key: CacheKey, entry: &Entry, engine: Arc<dyn Engine>) {
        let seconds = (entry.expires - unix_seconds()).max(1).to_string();
        let (name, value) = (stored::name(&self.config().name, &key), stored::value(&key, entry));
        match engine.start(0, &[b"SET", &name, &value, b"EX", seconds.as_bytes()]) {
            Started::Done(_) => self.end_write(&key, &*engine),
            Started::Pending(reply) => {
                let cache = self.clone();
                tokio::task::spawn_local(async move {
                    // Its failure costs a response that would be found.
                    _ = reply.await;
                    cache.end_write(&key, &*engine);
                });
            }
        }
    }

    /// Ends a write into the store.
    fn end_write(&self, key: &CacheKey, engine: &dyn Engine) {
        let is_invalid = {
            let mut state = self.state.lock();
            let Some(writes) = state.writes.get_mut(key) else { return };
            writes.count -= 1;
            writes.count == 0 && state.writes.remove(key).is_some_and(|writes| writes.invalidated)
        };
        if is_invalid {
            self.remove_kept(key, engine);
        }
    }

    /// Removes a response from the store.
    fn remove_kept(&self, key: &CacheKey, engine: &dyn Engine) {
        // The command is executed although nobody waits for its reply.
        drop(engine.start(0, &[b"DEL", &stored::name(&self.config().name, key)]));
    }

    /// Returns the definition.
    pub(crate) fn config(&self) -> Arc<CacheSection> {
        self.config.read().clone()
    }

    fn blocks_max(&self) -> u64 {
        self.config.read().size / BLOCK
    }

    /// Looks for a response to a request. `vary` returns the request's fields by which responses may vary.
    pub(crate) fn find(&self, key: &CacheKey, vary: impl FnOnce(u8) -> Option<VaryKey>) -> Found {
        let now = unix_seconds();
        let mut state = self.state.lock();
        let Some(slots) = state.entries.get(key) else { return Found::Nothing };
        let Some(first) = slots.first().filter(|slot| slot.entry.expires > now) else { return Found::Nothing };
        let signature = first.entry.signature;
        let slot = match signature {
            0 => Some(first),
            _ if first.used.is_none() => None,
            _ => {
                let Some(vary) = vary(signature) else { return Found::Unusable };
                slots.iter().find(|slot| slot.entry.vary.allows(&vary)).filter(|slot| slot.entry.expires > now)
            }
        };
        let Some(entry) = slot.filter(|slot| slot.used.is_some()).map(|slot| slot.entry.clone()) else {
            return Found::Unusable;
        };
        state.touch(key, entry.number);
        Found::Entry(entry)
    }

    /// Removes the responses of a URI that an unsafe method has changed: the first one, as in HAProxy.
    pub(crate) fn invalidate(&self, key: &CacheKey) {
        let mut state = self.state.lock();
        let first = state.entries.get(key).and_then(|slots| slots.first()).map(|slot| slot.entry.number);
        if let Some(number) = first {
            state.remove(key, number);
        }
        if let Some(writes) = state.writes.get_mut(key) {
            writes.invalidated = true;
        }
        drop(state);
        if let Some(engine) = self.engine.read().clone() {
            self.remove_kept(key, &*engine);
        }
    }

    /// Begins to store a response with this head, which replaces the one before it; `None` if another one is being
    /// received or there is no room.
    fn begin(&self, key: &CacheKey, entry: Entry) -> Option<Arc<Entry>> {
        let now = unix_seconds();
        let config = self.config();
        let mut state = self.state.lock();
        state.expire(key, now);
        let slots = state.entries.get(key).map_or(&[][..], |slots| slots);
        let same = match entry.signature {
            0 => slots.first(),
            _ => slots.iter().find(|slot| slot.entry.signature != 0 && slot.entry.vary.allows(&entry.asked)),
        };
        match same.map(|slot| (slot.used.is_some(), slot.entry.number)) {
            Some((false, _)) => return None,
            Some((true, number)) => state.remove(key, number),
            None => {}
        }
        let count = state.entries.get(key).map_or(0, Vec::len);
        if entry.signature != 0 && count as u64 >= u64::from(config.secondary_entries) {
            return None;
        }
        let entry = Arc::new(entry);
        state.entries.entry(*key).or_default().push(Slot { entry: entry.clone(), used: None });
        Some(entry)
    }

    /// Accounts for memory of a response that is being received; `false` if there is none.
    fn reserve(&self, blocks: u64) -> bool {
        let total = self.blocks_max();
        let mut state = self.state.lock();
        let room = state.make_room(blocks, total);
        state.reserved += if room { blocks } else { 0 };
        room
    }

    /// Ends the receipt of a response: `complete` takes the place of the one that has begun.
    fn finish(self: &Arc<Self>, key: &CacheKey, number: u64, reserved: u64, complete: Option<Entry>) {
        let engine = self.engine.read().clone();
        let mut state = self.state.lock();
        state.reserved -= reserved;
        let Some(complete) = complete else { return state.remove(key, number) };
        let complete = Arc::new(complete);
        let slots = state.entries.get_mut(key).into_iter().flatten();
        // Without a slot it was invalidated while it was received.
        let Some(slot) = { slots }.find(|slot| slot.entry.number == number) else { return };
        slot.entry = complete.clone();
        state.held += complete.blocks;
        state.touch(key, number);
        // Responses that vary stay in memory.
        let Some(engine) = engine.filter(|_| complete.signature == 0) else { return };
        state.writes.entry(*key).or_default().count += 1;
        drop(state);
        self.keep(*key, &complete, engine);
    }

    /// Calls `f` with each response that has not expired, and the number of blocks that are available.
    pub(crate) fn list(&self, mut f: impl FnMut(&CacheKey, &Entry, usize)) -> u64 {
        let now = unix_seconds();
        let total = self.blocks_max();
        let state = self.state.lock();
        let mut all: Vec<_> =
            state.entries.iter().flat_map(|(key, slots)| slots.iter().map(move |s| (key, s))).collect();
        all.sort_by_key(|(key, slot)| (key.number(), slot.entry.number));
        for (key, slot) in all.into_iter().filter(|(_, slot)| slot.entry.expires > now) {
            f(key, &slot.entry, Arc::strong_count(&slot.entry) - 1);
        }
        total.saturating_sub(state.reserved)
    }

    /// Returns a writer for a response with this head, if it may be stored.
    pub(crate) fn store(
        self: &Arc<Self>,
        stream: &StreamCache,
        response: &mut Message,
        length: Option<u64>,
        head_max: usize,
    ) -> Option<Writer> {
        let config = self.config();
        let key = stream.key.filter(|_| stream.storable)?;
        let head = crate::counters::head_size(response) as u64;
        if length.is_some_and(|length| head + length > config.object_size) {
            return None;
        }
        let (signature, asked) = rules::vary(response, &config, stream)?;
        if !rules::may_store(response) {
            return None;
        }
        let life = rules::Life::of(response, &config)?;
        if response.fields().count() * 8 + head as usize > head_max {
            return None;
        }
        let vary = rules::stored_vary(response, signature, &asked)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = Entry::new(number, response, (signature, asked, vary), &life);
        Writer::begin(self.clone(), key, entry, config.object_size)
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("name", &self.config().name).finish_non_exhaustive()
    }
}
