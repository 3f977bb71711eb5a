//! Consumer groups of a stream: positions, consumers, and entries that were delivered and not acknowledged.
//!
//! A group has its pending entries in the order of their IDs, each with its owner, and each consumer has the IDs of its
//! own ones: reads of a consumer's history, XPENDING and XINFO iterate over either. A consumer is a numbered slot of its
//! group, so a pending entry refers to it by four bytes and a change of owner moves no names. Names are sorted as bytes,
//! which is the order in which Redis lists groups and consumers.
//!
//! A group refers to entries by their IDs alone; an entry that was deleted stays pending until it is acknowledged or
//! claimed, as in Redis.
//!
//! Costs: a delivery is an insertion into two trees, an acknowledgement a removal from both, some 0.1 µs each; a pending
//! entry takes about [`PENDING_BYTES`]. Bytes are counted by these estimates, because the trees' nodes are not visible.

use std::collections::btree_map::{self, BTreeMap};
use std::collections::{BTreeSet, btree_set};
use std::sync::Arc;

use super::stream::Stream;
use super::stream_node::StreamId;

/// The average bytes of a pending entry in the group's tree and in its owner's: trees whose keys ascend have nodes that
/// are two thirds full.
pub const PENDING_BYTES: usize = 76 + 33;
/// The bytes of a name in a tree of names, with its share of the tree.
const NAME_BYTES: usize = 64;
/// The number of entries read of a group if it is unknown.
pub const UNKNOWN: i64 = -1;
/// The time of a consumer's last success if it had none.
pub const NEVER: i64 = -1;

/// An entry that was delivered to a consumer and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The time of the last delivery, in Unix milliseconds.
    pub delivered_ms: i64,
    /// The number of deliveries.
    pub count: u64,
    owner: ConsumerId,
}

/// The number of a consumer within its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerId(u32);

/// A consumer.
#[derive(Clone, Debug)]
pub struct Consumer {
    name: Arc<[u8]>,
    /// The time of its last attempt to read or to claim, in Unix milliseconds.
    pub seen_ms: i64,
    /// The time of its last successful one; [`NEVER`] if there was none.
    pub active_ms: i64,
    pending: BTreeSet<StreamId>,
}

impl Consumer {
    /// Returns its name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the number of its pending entries.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the IDs of its pending entries, from `start` on.
    pub fn pending_from(&self, start: StreamId) -> btree_set::Range<'_, StreamId> {
        self.pending.range(start..)
    }
}

/// A consumer group.
#[derive(Clone, Debug)]
pub struct Group {
    last: StreamId,
    /// The number of the stream's entries, counted from the first ever added, up to `last`; [`UNKNOWN`] if unknown.
    read: i64,
    pending: BTreeMap<StreamId, Pending>,
    /// The consumers by number; free numbers are used again.
    consumers: Vec<Option<Consumer>>,
    names: BTreeMap<Arc<[u8]>, ConsumerId>,
    /// The bytes of all names.
    name_bytes: usize,
}

impl Group {
    /// Returns a group that has read up to an ID.
    pub fn new(last: StreamId, read: i64) -> Group {
        let (pending, consumers, names) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        Group { last, read, pending, consumers, names, name_bytes: 0 }
    }

    /// Returns the bytes of its content, in addition to those of the structure.
    fn content_bytes(&self) -> usize {
        self.consumers.capacity() * size_of::<Option<Consumer>>()
            + self.names.len() * NAME_BYTES
            + self.name_bytes
            + self.pending.len() * PENDING_BYTES
    }

    /// Returns the ID up to which it has read.
    pub fn last(&self) -> StreamId {
        self.last
    }

    /// Returns the number of entries read up to [`last`](Self::last), as it is stored: [`UNKNOWN`] if it is unknown.
    pub fn stored_read(&self) -> i64 {
        self.read
    }

    /// Returns the number of entries read up to [`last`](Self::last), if it is known.
    pub fn read(&self) -> Option<i64> {
        (self.read != UNKNOWN).then_some(self.read)
    }

    /// Sets the ID up to which it has read, and the number of entries read.
    pub fn set_position(&mut self, last: StreamId, read: i64) {
        (self.last, self.read) = (last, read);
    }

    /// Sets the ID up to which it has read if the present one is lower. The number of entries read stays.
    pub fn raise_last(&mut self, last: StreamId) {
        self.last = self.last.max(last);
    }

    /// Returns the number of the stream's entries that it has not read, if that is known.
    pub fn lag(&self, stream: &Stream) -> Option<i64> {
        let added = stream.facts().added;
        if added == 0 {
            return Some(0);
        }
        match self.read() {
            Some(read) if !stream.has_tombstone_from(self.last) => Some((added as i64).wrapping_sub(read)),
            _ => stream.distance_to(self.last).map(|read| added.wrapping_sub(read) as i64),
        }
    }

    /// Returns the number of pending entries.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the pending entries from `start` on.
    pub fn pending_from(&self, start: StreamId) -> btree_map::Range<'_, StreamId, Pending> {
        self.pending.range(start..)
    }

    /// Returns the pending entry of an ID.
    pub fn pending_of(&self, id: StreamId) -> Option<&Pending> {
        self.pending.get(&id)
    }

    /// Returns the IDs of the first and the last pending entry.
    pub fn pending_ends(&self) -> Option<(StreamId, StreamId)> {
        Some((*self.pending.first_key_value()?.0, *self.pending.last_key_value()?.0))
    }

    /// Returns the consumers in the order of their names.
    pub fn consumers(&self) -> impl ExactSizeIterator<Item = &Consumer> {
        self.names.values().map(|id| self.consumer(*id))
    }

    /// Returns the consumer of a name.
    pub fn find(&self, name: &[u8]) -> Option<ConsumerId> {
        self.names.get(name).copied()
    }

    /// Returns a consumer.
    pub fn consumer(&self, id: ConsumerId) -> &Consumer {
        self.consumers[id.0 as usize].as_ref().expect("a number is used as long as its consumer exists")
    }

    /// Returns the consumer that has a pending entry.
    pub fn owner(&self, pending: &Pending) -> &Consumer {
        self.consumer(pending.owner)
    }

    fn consumer_mut(&mut self, id: ConsumerId) -> &mut Consumer {
        self.consumers[id.0 as usize].as_mut().expect("a number is used as long as its consumer exists")
    }

    /// Adds a consumer. Returns [`None`] if the name is taken.
    pub fn add_consumer(&mut self, name: &[u8], seen_ms: i64, active_ms: i64) -> Option<ConsumerId> {
        if self.names.contains_key(name) {
            return None;
        }
        let name: Arc<[u8]> = name.into();
        self.name_bytes += name.len();
        let consumer = Consumer { name: name.clone(), seen_ms, active_ms, pending: BTreeSet::new() };
        // A free number is looked for only if there is one.
        let free = (self.names.len() < self.consumers.len()).then(|| self.consumers.iter().position(Option::is_none));
        let number = free.flatten().unwrap_or_else(|| {
            self.consumers.push(None);
            self.consumers.len() - 1
        });
        self.consumers[number] = Some(consumer);
        let id = ConsumerId(number as u32);
        self.names.insert(name, id);
        Some(id)
    }

    /// Returns the consumer of a name, which is added if it does not exist, and whether it was. Records the attempt.
    pub fn see(&mut self, name: &[u8], now_ms: i64) -> (ConsumerId, bool) {
        match self.find(name) {
            Some(id) => {
                self.consumer_mut(id).seen_ms = now_ms;
                (id, false)
            }
            None => (self.add_consumer(name, now_ms, NEVER).expect("the name is free"), true),
        }
    }

    /// Records a success of a consumer.
    pub fn note_success(&mut self, consumer: ConsumerId, now_ms: i64) {
        self.consumer_mut(consumer).active_ms = now_ms;
    }

    /// Removes a consumer and its pending entries. Returns their number; [`None`] if there is no such consumer.
    pub fn remove_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let id = self.names.remove(name)?;
        let consumer = self.consumers[id.0 as usize].take()?;
        self.name_bytes -= name.len();
        for id in &consumer.pending {
            self.pending.remove(id);
        }
        Some(consumer.pending.len())
    }

    /// Moves the position to an entry that is read now, which is behind it.
    pub fn advance(&mut self, stream: &Stream, id: StreamId) {
        // The number goes up by one only if the entry is known to be the next one that was ever added.
        let is_next = self.last >= stream.facts().first && !stream.has_tombstone_from(self.last);
        if self.read != UNKNOWN && is_next {
            self.read = self.read.wrapping_add(1);
        } else if stream.facts().added > 0 {
            self.read = stream.distance_to(id).map_or(UNKNOWN, |read| read as i64);
        }
        self.last = id;
    }

    /// Makes an entry pending for a consumer, whoever had it, with a time and a number of deliveries.
    pub fn assign(&mut self, id: StreamId, owner: ConsumerId, delivered_ms: i64, count: u64) {
        let old = self.pending.insert(id, Pending { delivered_ms, count, owner });
        match old {
            Some(old) if old.owner == owner => return,
            Some(old) => _ = self.consumer_mut(old.owner).pending.remove(&id),
            None => {}
        }
        self.consumer_mut(owner).pending.insert(id);
    }

    /// Records another delivery of a pending entry to its owner.
    pub fn deliver_again(&mut self, id: StreamId, now_ms: i64) {
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.delivered_ms = now_ms;
            pending.count = pending.count.wrapping_add(1);
        }
    }

    /// Removes an entry from the pending ones. Returns false if it is not pending.
    pub fn acknowledge(&mut self, id: StreamId) -> bool {
        let Some(pending) = self.pending.remove(&id) else { return false };
        self.consumer_mut(pending.owner).pending.remove(&id)
    }

    /// Returns a group from the parts of a payload: its pending entries, of which none has an owner, and its consumers
    /// with the IDs of their entries. [`None`] if they do not fit each other.
    pub fn parse(
        (last, read): (StreamId, i64),
        pending: Vec<(StreamId, i64, u64)>,
        consumers: Vec<(Vec<u8>, i64, i64, Vec<StreamId>)>,
    ) -> Option<Group> {
        const NOBODY: ConsumerId = ConsumerId(u32::MAX);
        let mut group = Group::new(last, read);
        let len = pending.len();
        let pending = pending.into_iter();
        group.pending =
            pending.map(|(id, delivered_ms, count)| (id, Pending { delivered_ms, count, owner: NOBODY })).collect();
        if group.pending.len() != len {
            return None;
        }
        for (name, seen_ms, active_ms, ids) in consumers {
            let consumer = group.add_consumer(&name, seen_ms, active_ms)?;
            for id in &ids {
                let pending = group.pending.get_mut(id).filter(|pending| pending.owner == NOBODY)?;
                pending.owner = consumer;
            }
            group.consumer_mut(consumer).pending = ids.into_iter().collect();
        }
        let has_owners = group.pending.values().all(|pending| pending.owner != NOBODY);
        has_owners.then_some(group)
    }
}

/// The groups of a stream, by name.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    groups: BTreeMap<Box<[u8]>, Group>,
    /// The bytes of all groups.
    bytes: usize,
}

/// Returns the bytes of a group of this name in addition to its content's.
fn own_bytes(name: &[u8]) -> usize {
    size_of::<Group>() + NAME_BYTES + name.len()
}

impl Groups {
    /// No group.
    pub const NONE: Groups = Groups { groups: BTreeMap::new(), bytes: 0 };

    /// Returns their bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of groups.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Returns whether there is no group.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns a group.
    pub fn get(&self, name: &[u8]) -> Option<&Group> {
        self.groups.get(name)
    }

    /// Returns the groups in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &Group)> {
        self.groups.iter().map(|(name, group)| (&**name, group))
    }

    /// Adds a group. Returns false if the name is taken.
    pub fn add(&mut self, name: &[u8], group: Group) -> bool {
        if self.groups.contains_key(name) {
            return false;
        }
        self.bytes += own_bytes(name) + group.content_bytes();
        self.groups.insert(name.into(), group);
        true
    }

    /// Removes a group.
    pub fn remove(&mut self, name: &[u8]) -> Option<Group> {
        let group = self.groups.remove(name)?;
        self.bytes -= own_bytes(name) + group.content_bytes();
        Some(group)
    }

    /// Calls `change` with a group, and counts its bytes afterwards, even if the change panics.
    pub fn edit<R>(&mut self, name: &[u8], change: impl FnOnce(&mut Group) -> R) -> Option<R> {
        let group = self.groups.get_mut(name)?;
        let before = group.content_bytes();
        let edited = Edited { group, before, bytes: &mut self.bytes };
        Some(change(edited.group))
    }
}

/// Counts the bytes of a group that was changed.
struct Edited<'g> {
    group: &'g mut Group,
    before: usize,
    bytes: &'g mut usize,
}

impl Drop for Edited<'_> {
    fn drop(&mut self) {
        *self.bytes = *self.bytes - self.before + self.group.content_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Kind;
    use crate::object::limits::Limits;
    use crate::object::stream::{Keep, Trim};
    use crate::random::numbers;

    /// The owner, the time and the number of deliveries of each pending entry.
    type Model = BTreeMap<StreamId, (usize, i64, u64)>;

    fn id(ms: u64) -> StreamId {
        StreamId { ms, seq: 0 }
    }

    fn name(number: usize) -> Vec<u8> {
        format!("consumer-{number}").into_bytes()
    }

    #[track_caller]
    fn check(groups: &Groups, model: &Model, names: &BTreeSet<usize>) {
        let group = groups.get(b"g").expect("it exists");
        assert_eq!(groups.bytes(), own_bytes(b"g") + group.content_bytes());
        let found = group.pending_from(StreamId::MIN);
        let found: Vec<_> = found.map(|(id, pending)| (*id, group.owner(pending).name().to_vec(), *pending)).collect();
        assert_eq!(found.len(), model.len());
        for ((id, owner, pending), (expected, (number, ms, count))) in found.iter().zip(model) {
            assert_eq!((id, owner, pending.delivered_ms, pending.count), (expected, &name(*number), *ms, *count));
        }
        assert!(
            group.consumers().map(|consumer| consumer.name().to_vec()).eq(names.iter().map(|number| name(*number)))
        );
        for number in names {
            let consumer = group.consumer(group.find(&name(*number)).expect("it exists"));
            let expected = model.iter().filter(|(_, (owner, ..))| owner == number).map(|(id, _)| id);
            assert!(consumer.pending_from(StreamId::MIN).eq(expected));
        }
    }

    #[test]
    fn a_map_of_pending_entries_does_the_same() {
        for seed in 0..8 {
            let mut next = numbers(seed);
            let mut groups = Groups::default();
            assert!(groups.add(b"g", Group::new(id(0), 0)) && !groups.add(b"g", Group::new(id(1), 0)));
            let (mut model, mut names) = (Model::new(), BTreeSet::new());
            for step in 0..1_500 {
                // One digit each, so that the order of names is that of numbers.
                let (number, entry) = (next(9), id(next(200) as u64));
                groups.edit(b"g", |group| match next(12) {
                    0..5 => {
                        let (consumer, is_new) = group.see(&name(number), step);
                        assert_eq!(is_new, names.insert(number));
                        group.assign(entry, consumer, step, 3);
                        model.insert(entry, (number, step, 3));
                    }
                    5..9 => assert_eq!(group.acknowledge(entry), model.remove(&entry).is_some()),
                    9 => {
                        group.deliver_again(entry, step);
                        if let Some((_, ms, count)) = model.get_mut(&entry) {
                            (*ms, *count) = (step, *count + 1);
                        }
                    }
                    10 => {
                        let removed = group.remove_consumer(&name(number));
                        let before = model.len();
                        model.retain(|_, (owner, ..)| *owner != number);
                        assert_eq!(removed, names.remove(&number).then_some(before - model.len()));
                    }
                    _ => assert_eq!(group.add_consumer(&name(number), step, step).is_some(), names.insert(number)),
                });
                if step % 50 == 49 {
                    check(&groups, &model, &names);
                }
            }
            assert!(groups.remove(b"g").is_some() && groups.remove(b"g").is_none());
            assert_eq!((groups.bytes(), groups.len()), (0, 0));
        }
    }

    #[test]
    fn bytes_are_counted_even_if_a_change_panics() {
        let mut stream = Stream::empty();
        let empty = stream.bytes();
        stream.add_group(b"g", Group::new(id(0), 0));
        let edited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            stream.edit_group(b"g", |_, group| {
                let consumer = group.see(b"c", 0).0;
                (1..100).for_each(|ms| group.assign(id(ms), consumer, 0, 1));
                panic!("a fault in a change");
            });
        }));
        assert!(edited.is_err());
        assert_eq!(stream.groups().get(b"g").map(Group::pending_len), Some(99));
        assert!(stream.bytes() > empty + 99 * PENDING_BYTES);
        assert!(stream.remove_group(b"g").is_some_and(|removed| removed.groups().bytes() > 99 * PENDING_BYTES));
        assert!(stream.bytes() < empty + 100);
    }

    #[test]
    fn a_lag_is_known_unless_deletions_hide_it() {
        let mut stream = Stream::empty();
        let lag = |stream: &Stream, last: u64, read: i64| Group::new(id(last), read).lag(stream);
        assert_eq!(lag(&stream, 0, UNKNOWN), Some(0));
        (1..=5).for_each(|ms| stream.add(id(ms), &[b"f", b"v"], &Limits::new()));
        for (last, read, expected) in [
            (0, UNKNOWN, Some(5)),
            (0, 0, Some(5)),
            (1, UNKNOWN, Some(4)),
            (2, UNKNOWN, None),
            (2, 2, Some(3)),
            (5, UNKNOWN, Some(0)),
            (6, UNKNOWN, None),
        ] {
            assert_eq!(lag(&stream, last, read), expected, "{last} {read}");
        }
        stream.delete(&[id(3)]);
        for (last, read, expected) in [(0, 0, None), (2, 2, None), (3, 3, None), (4, 4, Some(1)), (5, UNKNOWN, Some(0))]
        {
            assert_eq!(lag(&stream, last, read), expected, "{last} {read}");
        }
        let mut group = Group::new(id(0), 0);
        // The counter is lost on the way to the deleted entry, and known again behind it.
        for (ms, read) in [(1, None), (2, None), (4, None), (5, Some(5))] {
            group.advance(&stream, id(ms));
            assert_eq!(group.read(), read, "{ms}");
        }
        // A group behind the first entry: the numbers of trimmed entries are known, those of deleted ones are not.
        stream.trim(Trim { keep: Keep::From(id(4)), is_rough: false, limit: 0 });
        assert_eq!((lag(&stream, 1, 1), lag(&stream, 4, UNKNOWN)), (None, Some(1)));
        let mut group = Group::new(id(1), 1);
        group.advance(&stream, id(4));
        assert_eq!(group.read(), Some(4));
        stream.delete(&[id(4), id(5)]);
        assert_eq!((lag(&stream, 4, UNKNOWN), lag(&stream, 1, 1)), (Some(0), Some(4)));
    }
}
