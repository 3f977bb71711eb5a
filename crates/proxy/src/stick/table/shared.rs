//! The changes of a table that is shared with peers, and what peers have changed.
//!
//! The last word of an entry has the number of its last change ([`CHANGED`] until the control thread has numbered it), so
//! an entry is in its shard's list of changes at most once, however often it changes. The log has the places of entries in
//! the order of their numbers; a place is void if its entry has another number by now. Numbers wrap like HAProxy's, and
//! only differences are meaningful.
//!
//! **Limits:** lists and log are at most about twice as long as the table has entries: beyond that, what is void is
//! removed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sluicegate_config::model::{DataForm, DataKind};
use sluicegate_wire::peers::Value;
use tokio::sync::Notify;

use super::{EXPIRE, FREE, HEAD, REFS, Shard, Table};
use crate::stick::row::{Row, is_summed, is_tag};
use crate::stick::{Key, for_peer, now_ms, set_rate_parts};

/// The number of an entry that has changed since changes were numbered.
const CHANGED: u32 = u32::MAX;
/// The number of an entry as a state file had it.
const RESTORED: u32 = u32::MAX - 1;
/// The number of entries of a list or of the log that are not worth a clean-up.
const FEW: usize = 1_024;
/// A period that begins less than this behind its message begins now: each thread of a HAProxy has a clock of its own.
const AHEAD_MAX_MS: u32 = 60_000;
/// The maximum number of names of servers that peers add to a table.
const NAMES_MAX: usize = 4_096;

/// Wakes the control thread when an entry of a section's tables has changed.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    is_changed: AtomicBool,
    changed: Notify,
}

impl Wake {
    fn ring(&self) {
        if !self.is_changed.load(Ordering::Relaxed) && !self.is_changed.swap(true, Ordering::AcqRel) {
            self.changed.notify_one();
        }
    }

    /// Waits for a change since the last call. Changes are to be collected after this returns.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
        self.is_changed.store(false, Ordering::Release);
    }
}

/// How a table is shared.
#[derive(Clone, Debug)]
pub(crate) struct Sharing {
    /// Wakes the exchange of its section.
    pub(crate) wake: Arc<Wake>,
    /// Whether values are sums over the nodes.
    pub(crate) aggregate: bool,
    /// The other nodes, in a table with `aggregate`; their parts have these numbers.
    pub(crate) nodes: Arc<[Arc<str>]>,
    /// This node's rank among all of them.
    pub(crate) rank: u8,
    /// The number of parts into which keys are divided (`shards`); 0: they are not.
    pub(crate) shards: u32,
}

impl Sharing {
    /// Returns the part of the keys that an entry belongs to, from 1; 0 if keys are not divided. HAProxy divides them in
    /// the same way.
    pub(crate) fn shard_of(&self, table: &Table, key: &[u32]) -> u32 {
        if self.shards == 0 {
            return 0;
        }
        let seed = xxhash_rust::xxh64::xxh64(table.name.as_bytes(), 0);
        let part = |bytes: &[u8]| (xxhash_rust::xxh64::xxh64(bytes, seed) % u64::from(self.shards)) as u32 + 1;
        for_peer(table.key, key, |_, bytes| part(bytes))
    }
}

impl PartialEq for Sharing {
    fn eq(&self, other: &Sharing) -> bool {
        Arc::ptr_eq(&self.wake, &other.wake)
            && self.nodes == other.nodes
            && self.rank == other.rank
            && self.shards == other.shards
    }
}

pub(super) struct Shared {
    pub(super) sharing: Sharing,
    /// Acquired before a shard's lock.
    log: Mutex<Log>,
}

/// Changes in the order of their numbers.
#[derive(Default)]
struct Log {
    /// The last number.
    last: u32,
    places: VecDeque<Place>,
}

#[derive(Clone, Copy)]
struct Place {
    number: u32,
    shard: u32,
    entry: u32,
}

/// A copy of an entry.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// The number of its change; 0 if it is copied for another reason.
    pub(crate) number: u32,
    /// The time until it expires, in milliseconds.
    pub(crate) left_ms: u32,
    words: Vec<u32>,
    key_words: usize,
    now: u32,
}

/// The values of an entry that a peer has sent.
pub(crate) struct Learned<'a> {
    /// The kind and the element of each value; `None`: it is not taken over.
    pub(crate) places: &'a [Option<(DataKind, u32)>],
    /// The values.
    pub(crate) values: &'a [Value],
    /// The other node whose part the summed ones are, by its number in [`Sharing::nodes`].
    pub(crate) node: Option<usize>,
    /// The time until the entry expires, if the peer says so.
    pub(crate) expire_ms: Option<u32>,
    /// The version of its tags, of which the greatest wins; `None`: a program has set them that knows none.
    pub(crate) version: Option<u64>,
    /// Values below this node's own ones are not taken over: they are its own, as others remember them.
    pub(crate) is_own: bool,
    /// A change of the sum is a change of this node: there are peers that are sent sums.
    pub(crate) passes_on: bool,
    /// It is one of very many, after which [`Table::put_in_order`] is called: its place in the order of expiry is not
    /// looked for. The part of a node never becomes less by it.
    pub(crate) is_of_many: bool,
}

impl Shared {
    pub(super) fn new(sharing: Sharing) -> Shared {
        Shared { sharing, log: Mutex::default() }
    }
}

impl Changed {
    /// Returns the words of its key.
    pub(crate) fn key(&self) -> &[u32] {
        &self.words[..self.key_words]
    }

    /// Returns its data.
    pub(crate) fn row<'a>(&'a mut self, table: &'a Table) -> Row<'a> {
        Row { layout: &table.layout, words: &mut self.words[self.key_words..], now: self.now }
    }
}

impl Table {
    /// Records a change of an entry by this node.
    #[inline]
    pub(super) fn note(&self, shard: &mut Shard, entry: u32) {
        if let Some(shared) = &self.shared {
            self.note_shared(shared, shard, entry);
        }
    }

    fn note_shared(&self, shared: &Shared, shard: &mut Shard, entry: u32) {
        let last = self.stride - 1;
        let number = &mut shard.words_mut(entry)[last];
        if *number == CHANGED {
            return;
        }
        *number = CHANGED;
        if shard.changed.len() > 2 * shard.used as usize + FEW {
            // Entries that were removed and created again are in the list more than once.
            shard.changed.sort_unstable();
            shard.changed.dedup();
        }
        shard.changed.push(entry);
        shared.sharing.wake.ring();
    }

    /// Records that an entry is as a state file had it.
    pub(super) fn mark_restored(&self, words: &mut [u32]) {
        if self.shared.is_some() {
            words[self.stride - 1] = RESTORED;
        }
    }

    /// Returns the part of the keys that an entry belongs to.
    pub(crate) fn shard_of(&self, key: &[u32]) -> u32 {
        self.shared.as_ref().map_or(0, |shared| shared.sharing.shard_of(self, key))
    }

    /// Returns the other nodes that have parts of its entries.
    pub(crate) fn nodes(&self) -> &[Arc<str>] {
        self.shared.as_ref().map_or(&[], |shared| &shared.sharing.nodes)
    }

    /// Returns whether its counters are sums over the nodes.
    pub(crate) fn is_aggregate(&self) -> bool {
        self.layout.nodes() > 0
    }

    /// Numbers the changes since the last call, and returns the last number.
    pub(crate) fn number_changes(&self) -> u32 {
        let Some(shared) = &self.shared else { return 0 };
        let mut log = shared.log.lock();
        let last = self.stride - 1;
        for (at, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.lock();
            let mut changed = std::mem::take(&mut shard.changed);
            for entry in changed.drain(..) {
                let words = shard.words_mut(entry);
                if words[REFS] == FREE || words[last] != CHANGED {
                    continue;
                }
                // 0 is the number before the first; two numbers are marks.
                log.last = match log.last.wrapping_add(1) {
                    0 | RESTORED | CHANGED => 1,
                    number => number,
                };
                words[last] = log.last;
                let number = log.last;
                log.places.push_back(Place { number, shard: at as u32, entry });
            }
            shard.changed = changed;
        }
        let is_long = log.places.len() > 2 * self.len() + FEW;
        if is_long {
            log.places
                .retain(|place| self.shards[place.shard as usize].lock().words(place.entry)[last] == place.number);
        }
        log.last
    }

    /// Returns the number of the last numbered change.
    pub(crate) fn last_change(&self) -> u32 {
        self.shared.as_ref().map_or(0, |shared| shared.log.lock().last)
    }

    /// Calls `f` with copies of the entries whose last change is after `number`, one that was returned before, in order,
    /// until it returns `false`. Returns the number of the last change that was passed.
    pub(crate) fn changes_after(
        &self,
        number: u32,
        copy: &mut Changed,
        mut f: impl FnMut(&mut Changed) -> bool,
    ) -> u32 {
        let Some(shared) = &self.shared else { return number };
        let log = shared.log.lock();
        let is_after = |place: &Place| place.number.wrapping_sub(number).cast_signed() > 0;
        let first = log.places.partition_point(|place| !is_after(place));
        let now = now_ms();
        for place in log.places.range(first..) {
            let shard = self.shards[place.shard as usize].lock();
            let words = shard.words(place.entry);
            let is_current = words[REFS] != FREE && words[self.stride - 1] == place.number;
            if !is_current || self.is_expired(&shard, place.entry, now) {
                continue;
            }
            self.copy_words(words, now, copy);
            drop(shard);
            copy.number = place.number;
            if !f(copy) {
                return place.number;
            }
        }
        log.last
    }

    fn copy_words(&self, words: &[u32], now: u32, copy: &mut Changed) {
        copy.words.clear();
        copy.words.extend_from_slice(&words[HEAD..self.stride - 1]);
        copy.key_words = self.key_words;
        copy.now = now;
        copy.number = 0;
        // A tracked entry expires later than any other.
        let left = words[EXPIRE].wrapping_sub(now).cast_signed().max(0).cast_unsigned();
        copy.left_ms = if words[REFS] > 0 { self.expire_after().unwrap_or(0) } else { left };
    }

    /// Forgets changes up to a number: all peers have them.
    pub(crate) fn forget_changes(&self, number: u32) {
        let Some(shared) = &self.shared else { return };
        let mut log = shared.log.lock();
        while log.places.front().is_some_and(|place| place.number.wrapping_sub(number).cast_signed() <= 0) {
            log.places.pop_front();
        }
    }

    /// Calls `f` with copies of all entries from a position on, until it returns `false`; returns the next position, `None`
    /// at the end.
    pub(crate) fn entries_from(
        &self,
        from: (usize, u32),
        copy: &mut Changed,
        mut f: impl FnMut(&mut Changed) -> bool,
    ) -> Option<(usize, u32)> {
        let (mut at, mut next) = from;
        let now = now_ms();
        while at < self.shards.len() {
            let shard = self.shards[at].lock();
            if next >= shard.used {
                drop(shard);
                (at, next) = (at + 1, 0);
                continue;
            }
            let entry = next;
            next += 1;
            let words = shard.words(entry);
            if words[REFS] == FREE || self.is_expired(&shard, entry, now) {
                continue;
            }
            self.copy_words(words, now, copy);
            drop(shard);
            if !f(copy) {
                return Some((at, next));
            }
        }
        None
    }

    /// Takes the values over that a peer has sent for a key. Returns whether there was room for the entry.
    pub(crate) fn learn(&self, key: &Key, learned: &Learned<'_>) -> bool {
        // There is one kind of data with names.
        let name = learned.values.iter().find_map(|value| match value {
            Value::Name(Some(name)) => self.learn_name(name),
            _ => None,
        });
        let done = self.entry(key, |table, (shard, _), entry, now| {
            let last = table.stride - 1;
            let (is_restored, left) = {
                let words = shard.words(entry);
                (words[last] == RESTORED, words[EXPIRE].wrapping_sub(now).cast_signed())
            };
            let expires = table.expire_after();
            if let (true, Some(_), Some(expire_ms)) = (is_restored, expires, learned.expire_ms)
                && i64::from(left) > i64::from(expire_ms)
            {
                // The state file's entry was used later than the peer's.
                return;
            }
            let mut row = table.row(shard, entry, now);
            let takes_tags = learned.version.zip(row.tag_version()).is_none_or(|(given, own)| given > own);
            let (mut is_changed, mut is_tagged) = (false, false);
            for (place, value) in learned.places.iter().zip(learned.values) {
                let Some((kind, element)) = *place else { continue };
                if !takes_tags && is_tag(kind) {
                    continue;
                }
                let is_other = row.learn(kind, element, learned, value, name);
                is_changed |= is_other && is_summed(kind);
                is_tagged |= is_other && is_tag(kind);
            }
            match learned.version {
                Some(version) if takes_tags => row.set_tag_version(version),
                None if is_tagged => row.renew_tag_version(),
                _ => {}
            }
            if is_restored {
                shard.words_mut(entry)[last] = 0;
            }
            if is_changed && learned.passes_on {
                table.note(shard, entry);
            }
            if let Some(limit) = expires {
                let expire = learned.expire_ms.map_or(limit, |ms| ms.min(limit));
                let words = shard.words_mut(entry);
                // A part never shortens the life of the sum.
                let expire =
                    if learned.node.is_some() || learned.is_own { expire.max(left.max(0) as u32) } else { expire };
                words[EXPIRE] = now.wrapping_add(expire);
                if words[REFS] == 0 {
                    shard.unlink(entry);
                    let newest = shard.newest;
                    match learned.is_of_many {
                        true => shard.link(entry, newest),
                        false => shard.link_by_expiry(entry),
                    }
                }
            }
        });
        done.is_some()
    }

    /// Returns the number of a server's name that a peer has sent; `None` if there are too many.
    fn learn_name(&self, name: &Arc<str>) -> Option<u32> {
        let is_full = self.names.read().len() >= NAMES_MAX;
        if is_full && !self.names.read().contains(name) {
            return None;
        }
        Some(self.name_number(name))
    }
}

impl Row<'_> {
    /// Takes a value over; returns whether it is another one than before.
    fn learn(&mut self, kind: DataKind, element: u32, learned: &Learned<'_>, value: &Value, name: Option<u32>) -> bool {
        let now = self.now;
        let node = learned.node.filter(|_| is_summed(kind));
        let Some(words) = self.words_of(kind, element, node) else { return false };
        // A node that teaches may have been restarted, and not know all of its part.
        let takes_greater = learned.is_own || learned.is_of_many && node.is_some();
        // The start of a rate's period is not a value.
        let of = |words: &[u32]| (words[words.len().saturating_sub(2)], words[words.len() - 1]);
        let before = of(words);
        match (kind.form(), value) {
            (DataForm::Word, Value::Number(number)) => {
                let number = *number as u32;
                words[0] = if takes_greater { words[0].max(number) } else { number };
            }
            (DataForm::Long, Value::Number(number)) => {
                let own = u64::from(words[0]) | u64::from(words[1]) << 32;
                let number = if takes_greater { own.max(*number) } else { *number };
                (words[0], words[1]) = (number as u32, (number >> 32) as u32);
            }
            (DataForm::Rate, Value::Rate(rate)) => {
                let events = u64::from(words[1]) + u64::from(words[2]);
                let age_ms = if rate.age_ms > 0_u32.wrapping_sub(AHEAD_MAX_MS) { 0 } else { rate.age_ms };
                if age_ms > i32::MAX as u32 {
                    // So long ago that the scale of times would wrap.
                    if !takes_greater {
                        set_rate_parts(words, now, (0, 0, 0));
                    }
                } else if !takes_greater || events < u64::from(rate.current) + u64::from(rate.previous) {
                    set_rate_parts(words, now, (age_ms, rate.current, rate.previous));
                }
            }
            (DataForm::Name, Value::Name(Some(_))) => {
                if let Some(name) = name {
                    words[0] = name;
                }
            }
            _ => {}
        }
        of(words) != before
    }
}

#[cfg(test)]
mod tests;
