//! Streams: entries in the order of their IDs, which only grow.
//!
//! Entries are in nodes of up to `stream-node-max-entries` entries and about `stream-node-max-bytes` bytes, which equal
//! Redis's byte for byte (see `stream_node`); the nodes are in an array sorted by their first
//! IDs. So an entry of five short fields with the names of its node costs its values and some 12 bytes, an ID is found
//! by a binary search and the scan of one node, and trimming removes node by node.
//!
//! A stream without entries exists, with the properties derived from former entries. Its consumer groups are stored next
//! to the nodes, which do not refer to them (see `stream_group`).
//!
//! Costs: an entry is added at the end of the last node; a seek is two dozen steps and a node. Removing a node from the
//! middle moves a part of the array, 32 bytes for each node; XDEL moves it once. Limit: an entry of 1 GiB.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ptr::NonNull;

use smallvec::SmallVec;

use super::limits::Limits;
use super::packed::At;
pub use super::stream_group::{Consumer, ConsumerId, Group, Groups, NEVER, PENDING_BYTES, Pending, UNKNOWN};
pub use super::stream_node::{BYTES_MAX, Entry, StreamId};
use super::stream_node::{Head, Node};
use super::{Kind, kind_of};
use crate::rdb::encode::{self, Form, Out};

/// Up to this many nodes are freed immediately; more are freed later by the caller.
const FREED_AT_ONCE: usize = 8;
/// The average bytes of a node of the trees of groups.
const PIECE_BYTES: usize = 512;

/// The target of trimming.
#[derive(Clone, Copy, Debug)]
pub enum Keep {
    /// The last entries, this many of them.
    Last(u64),
    /// The entries from this ID on.
    From(StreamId),
}

/// The parameters of trimming.
#[derive(Clone, Copy, Debug)]
pub struct Trim {
    /// The entries to keep.
    pub keep: Keep,
    /// Whether only whole nodes are removed.
    pub is_rough: bool,
    /// The maximum number of entries removed at a time; 0 for any number.
    pub limit: u64,
}

/// A stream.
#[derive(Clone, Debug)]
pub struct Stream(Box<Body>);

#[derive(Clone, Debug, Default)]
struct Body {
    /// The nodes, in the order of their masters.
    nodes: VecDeque<Node>,
    /// The number of entries that are not deleted.
    len: usize,
    /// The bytes of the nodes' blocks.
    bytes: usize,
    first: StreamId,
    last: StreamId,
    max_deleted: StreamId,
    added: u64,
    /// Most streams have no groups.
    groups: Option<Box<Groups>>,
}

impl Body {
    fn remove_node(&mut self, index: usize) {
        if let Some(node) = self.nodes.remove(index) {
            self.bytes -= node.bytes();
        }
    }

    /// Changes a node and updates the sums.
    fn change<R>(&mut self, index: usize, change: impl FnOnce(&mut Node) -> R) -> R {
        let node = &mut self.nodes[index];
        self.bytes -= node.bytes();
        self.len -= node.live as usize;
        let result = change(node);
        self.bytes += node.bytes();
        self.len += node.live as usize;
        result
    }

    /// Returns the node that contains this ID, if any does; the first one if the ID precedes all.
    fn node_of(&self, id: StreamId) -> usize {
        self.nodes.partition_point(|node| node.master <= id).saturating_sub(1)
    }
}

/// The properties of a stream other than its entries.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The ID of the first entry; 0-0 if there is none.
    pub first: StreamId,
    /// The highest ID that an entry has had, or that was set.
    pub last: StreamId,
    /// The highest ID that was deleted by XDEL.
    pub max_deleted: StreamId,
    /// The number of entries that were ever added.
    pub added: u64,
}

impl Stream {
    /// Returns the stream's properties other than its entries.
    pub fn facts(&self) -> Facts {
        let Body { first, last, max_deleted, added, .. } = *self.0;
        Facts { first, last, max_deleted, added }
    }

    /// Sets the properties that XSETID sets.
    pub fn set_facts(&mut self, last: StreamId, added: Option<u64>, max_deleted: Option<StreamId>) {
        self.0.last = last;
        self.0.added = added.unwrap_or(self.0.added);
        self.0.max_deleted = max_deleted.unwrap_or(self.0.max_deleted);
    }

    /// Returns whether an entry with this ID or a higher one may have been deleted, as far as that is recorded.
    pub(super) fn has_tombstone_from(&self, start: StreamId) -> bool {
        let Body { len, max_deleted, .. } = *self.0;
        len > 0 && max_deleted != StreamId::MIN && start <= max_deleted
    }

    /// Returns the number of entries ever added up to an ID, if that is known: for the first and the last entry and what
    /// is outside them, unless deletions have made the numbers uncertain.
    pub fn distance_to(&self, id: StreamId) -> Option<u64> {
        let Body { len, first, last, max_deleted, added, .. } = *self.0;
        let len = len as u64;
        match id.cmp(&last) {
            _ if added == 0 => Some(0),
            Ordering::Less | Ordering::Equal if len == 0 => Some(added),
            // Entries between the ID and the last one were deleted.
            _ if id != StreamId::MIN && id < max_deleted => None,
            Ordering::Equal => Some(added),
            Ordering::Greater => None,
            Ordering::Less if max_deleted != StreamId::MIN && max_deleted >= first => None,
            Ordering::Less => match id.cmp(&first) {
                Ordering::Less => Some(added.wrapping_sub(len)),
                Ordering::Equal => Some(added.wrapping_sub(len).wrapping_add(1)),
                Ordering::Greater => None,
            },
        }
    }

    /// Returns the entry with an ID.
    pub fn entry(&self, id: StreamId) -> Option<Entry<'_>> {
        self.range(id, id, false).next()
    }

    /// Returns the consumer groups.
    pub fn groups(&self) -> &Groups {
        static NONE: Groups = Groups::NONE;
        self.0.groups.as_deref().unwrap_or(&NONE)
    }

    /// Adds a consumer group. Returns false if the name is taken.
    pub fn add_group(&mut self, name: &[u8], group: Group) -> bool {
        self.0.groups.get_or_insert_default().add(name, group)
    }

    /// Removes a consumer group. Returns it within a stream without entries, because freeing it may take long.
    pub fn remove_group(&mut self, name: &[u8]) -> Option<Stream> {
        let group = self.0.groups.as_mut()?.remove(name)?;
        let mut removed = Stream::empty();
        removed.add_group(name, group);
        Some(removed)
    }

    /// Calls `change` with the stream and one of its groups; [`None`] if there is no such group. The stream that the
    /// change sees has no groups.
    pub fn edit_group<R>(&mut self, name: &[u8], change: impl FnOnce(&Stream, &mut Group) -> R) -> Option<R> {
        let groups = self.0.groups.take()?;
        let mut apart = Apart { stream: self, groups: Some(groups) };
        let Apart { stream, groups } = &mut apart;
        groups.as_mut()?.edit(name, |group| change(stream, group))
    }

    /// Returns the approximate number of pieces of memory that freeing it takes.
    pub fn pieces(&self) -> usize {
        self.nodes() + self.groups().bytes() / PIECE_BYTES
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.0.nodes.len()
    }

    /// Adds an entry of these names and values, whose ID is above [the last](Facts::last) and whose words together have
    /// less than [`BYTES_MAX`] bytes.
    pub fn add(&mut self, id: StreamId, words: &[&[u8]], limits: &Limits) {
        let body = &mut *self.0;
        let text_bytes: usize = words.iter().map(|word| word.len()).sum();
        match body.nodes.back().is_some_and(|node| node.takes(text_bytes, limits)) {
            true => body.change(body.nodes.len() - 1, |node| node.add(id, words)),
            false => {
                let node = Node::new(id, words);
                body.bytes += node.bytes();
                body.len += 1;
                body.nodes.push_back(node);
            }
        }
        body.last = id;
        body.added = body.added.wrapping_add(1);
        if body.len == 1 {
            body.first = id;
        }
    }

    /// Removes entries from the start. Returns their number, and the removed part if freeing it takes long.
    pub fn trim(&mut self, trim: Trim) -> (u64, Option<Stream>) {
        let body = &mut *self.0;
        let (mut whole, mut removed) = (0, 0_u64);
        let mut left = body.len as u64;
        let mut rest = None;
        for node in &body.nodes {
            let live = u64::from(node.live);
            if matches!(trim.keep, Keep::Last(keep) if left <= keep) || trim.limit > 0 && removed + live > trim.limit {
                break;
            }
            let is_whole = match trim.keep {
                Keep::Last(keep) => left - live >= keep,
                Keep::From(id) => {
                    let head = node.head();
                    node.last().is_none_or(|at| node.entry(&head, at).id < id)
                }
            };
            if !is_whole {
                rest = (!trim.is_rough).then_some(whole);
                break;
            }
            left -= live;
            removed += live;
            whole += 1;
        }
        if let Some(index) = rest {
            removed += body.change(index, |node| {
                let live = u64::from(node.live);
                let gone = node.delete_while(|id, still| match trim.keep {
                    Keep::Last(keep) => left - (live - u64::from(still)) > keep,
                    Keep::From(first) => id < first,
                });
                u64::from(gone)
            });
        }
        let cut = self.cut(whole);
        if removed > 0 {
            self.find_first();
        }
        (removed, cut)
    }

    /// Removes this many nodes from the start. Frees them if they are few, otherwise returns them.
    fn cut(&mut self, count: usize) -> Option<Stream> {
        let body = &mut *self.0;
        let kept = body.nodes.len() - count;
        let nodes: VecDeque<Node> = match kept < count {
            true => {
                let kept = body.nodes.split_off(count);
                std::mem::replace(&mut body.nodes, kept)
            }
            false => body.nodes.drain(..count).collect(),
        };
        let bytes: usize = nodes.iter().map(Node::bytes).sum();
        let len = nodes.iter().map(|node| node.live as usize).sum();
        body.bytes -= bytes;
        body.len -= len;
        (count > FREED_AT_ONCE).then(|| Stream(Box::new(Body { nodes, len, bytes, ..Body::default() })))
    }

    fn find_first(&mut self) {
        self.0.first = self.range(StreamId::MIN, StreamId::MAX, false).next().map_or(StreamId::MIN, |entry| entry.id);
    }

    /// Deletes entries by their IDs. Returns the number of those that existed.
    pub fn delete(&mut self, ids: &[StreamId]) -> usize {
        let body = &mut *self.0;
        let before = body.len;
        let mut is_first_gone = false;
        // The master IDs of nodes that became empty.
        let mut emptied: SmallVec<[StreamId; 4]> = SmallVec::new();
        for id in ids {
            let index = body.node_of(*id);
            if body.nodes.is_empty() || !body.change(index, |node| node.delete(*id)) {
                continue;
            }
            is_first_gone |= *id == body.first;
            body.max_deleted = body.max_deleted.max(*id);
            if body.nodes[index].live == 0 {
                emptied.push(body.nodes[index].master);
            }
        }
        let removed = before - body.len;
        match &mut emptied[..] {
            [] => {}
            [master] => {
                let index = body.node_of(*master);
                body.remove_node(index);
            }
            masters => {
                masters.sort_unstable();
                let bytes = &mut body.bytes;
                body.nodes.retain(|node| {
                    let goes = masters.binary_search(&node.master).is_ok();
                    *bytes -= if goes { node.bytes() } else { 0 };
                    !goes
                });
            }
        }
        if is_first_gone || body.len == 0 {
            self.find_first();
        }
        removed
    }

    /// Returns the entries from one ID to another, both included, or back from the second to the first.
    pub fn range(&self, start: StreamId, end: StreamId, is_back: bool) -> Range<'_> {
        let body = &*self.0;
        let nodes = match start <= end && !body.nodes.is_empty() {
            true => body.node_of(start)..body.node_of(end) + 1,
            false => 0..0,
        };
        let (first, last) = (nodes.start, nodes.end.saturating_sub(1));
        Range { body, nodes, first, last, start, end, is_back, node: None }
    }

    /// Returns the number of entries in a [range](Self::range), at most `limit`.
    pub fn count(&self, start: StreamId, end: StreamId, limit: usize) -> usize {
        let range = self.range(start, end, false);
        let inner = range.first + 1..range.last.max(range.first + 1);
        let mut count = 0;
        // Whole nodes are counted first, by their totals; the edges are scanned.
        for node in self.0.nodes.range(inner.start.min(self.nodes())..inner.end.min(self.nodes())) {
            count += node.live as usize;
            if count >= limit {
                return limit;
            }
        }
        count + range.edges().take(limit - count).count()
    }

    /// Returns the approximate number of entries in a range, without examining each node.
    pub fn estimate(&self, start: StreamId, end: StreamId) -> usize {
        let range = self.range(start, end, false);
        range.nodes.len().saturating_mul(self.0.len) / self.nodes().max(1)
    }

    /// Returns the ID of the last existing entry.
    pub fn last_entry(&self) -> Option<StreamId> {
        self.range(StreamId::MIN, StreamId::MAX, true).next().map(|entry| entry.id)
    }

    /// Returns a stream from a payload's nodes, each with its ID, and properties; [`None`] if one is malformed, or they
    /// are inconsistent. Properties missing in payloads before Redis 7 are derived from the entries.
    pub fn parse(
        nodes: impl IntoIterator<Item = (StreamId, Vec<u8>)>,
        len: usize,
        last: StreamId,
        facts: Option<(StreamId, StreamId, u64)>,
    ) -> Option<Stream> {
        let mut body = Body { last, ..Body::default() };
        for (master, bytes) in nodes {
            let node = Node::parse(master, &bytes)?;
            if body.nodes.back().is_some_and(|before| before.master >= master) {
                return None;
            }
            body.bytes += node.bytes();
            body.len += node.live as usize;
            body.nodes.push_back(node);
        }
        if body.len != len {
            return None;
        }
        let mut stream = Stream(Box::new(body));
        match facts {
            Some((first, max_deleted, added)) => {
                let body = &mut *stream.0;
                (body.first, body.max_deleted, body.added) = (first, max_deleted, added);
            }
            None => {
                stream.find_first();
                stream.0.added = len as u64;
            }
        }
        Some(stream)
    }
}

/// A stream whose groups are apart from it while one of them is changed. They are put back when this is dropped.
struct Apart<'s> {
    stream: &'s mut Stream,
    groups: Option<Box<Groups>>,
}

impl Drop for Apart<'_> {
    fn drop(&mut self) {
        self.stream.0.groups = self.groups.take();
    }
}

/// Entries of a stream in order.
#[derive(Clone, Debug)]
pub struct Range<'s> {
    body: &'s Body,
    /// The nodes that were not started yet.
    nodes: std::ops::Range<usize>,
    first: usize,
    last: usize,
    start: StreamId,
    end: StreamId,
    is_back: bool,
    /// The current node, whether it is at an edge of the range, and the next entry.
    node: Option<(&'s Node, Head, bool, Option<At>)>,
}

impl<'s> Range<'s> {
    /// Returns only the entries of the first and the last node.
    fn edges(mut self) -> impl Iterator<Item = Entry<'s>> {
        let last = (self.last > self.first).then(|| Range { nodes: self.last..self.nodes.end, ..self.clone() });
        self.nodes.end = self.nodes.end.min(self.first + 1);
        self.chain(last.into_iter().flatten())
    }

    fn step(&self, node: &Node, entry: &Entry<'_>, at: At) -> Option<At> {
        if self.is_back { node.previous(at) } else { entry.next }
    }
}

impl<'s> Iterator for Range<'s> {
    type Item = Entry<'s>;

    fn next(&mut self) -> Option<Entry<'s>> {
        loop {
            if let Some((node, head, is_edge, Some(at))) = self.node {
                let entry = node.entry(&head, at);
                self.node = Some((node, head, is_edge, self.step(node, &entry, at)));
                // In the nodes between the edges no IDs are compared, so that the result equals the nodes' numbers of
                // entries.
                if !entry.is_deleted && (!is_edge || (self.start..=self.end).contains(&entry.id)) {
                    return Some(entry);
                }
                continue;
            }
            let index = if self.is_back { self.nodes.next_back()? } else { self.nodes.next()? };
            let node = &self.body.nodes[index];
            let head = node.head();
            let at = if self.is_back { node.last() } else { head.entries };
            self.node = Some((node, head, index == self.first || index == self.last, at));
        }
    }
}

impl Kind for Stream {
    const TAG: u8 = 4;
    const NAME: &'static str = "stream";

    fn empty() -> Stream {
        Stream(Box::default())
    }

    fn len(&self) -> usize {
        self.0.len
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn bytes(&self) -> usize {
        size_of::<Body>() + self.0.nodes.capacity() * size_of::<Node>() + self.0.bytes + self.groups().bytes()
    }

    fn encoding(&self) -> &'static str {
        "stream"
    }

    fn copy(&self) -> Stream {
        self.clone()
    }

    fn dump(&self, form: Form, out: &mut Out<'_>) {
        let body = &*self.0;
        let groups = self.groups();
        // Only the later type has the times of consumers' successes; readers of the earlier one take that of the last
        // attempt for it.
        let mut consumers = groups.iter().flat_map(|(_, group)| group.consumers());
        let has_times = form.version_max >= encode::VERSION_OF_STREAM_3
            && consumers.any(|consumer| consumer.active_ms != consumer.seen_ms);
        out.push(if has_times { encode::TYPE_STREAM_3 } else { encode::TYPE_STREAM_2 });
        encode::put_len(body.nodes.len(), out);
        for node in &body.nodes {
            form.put_string(&node.master.to_bytes(), out);
            form.put_string(node.as_bytes(), out);
            out.end_part();
        }
        encode::put_len(body.len, out);
        [body.last, body.first, body.max_deleted].iter().for_each(|id| put_id(*id, out));
        encode::put_len(body.added as usize, out);
        encode::put_len(groups.len(), out);
        groups.iter().for_each(|(name, group)| dump_group(name, group, has_times, form, out));
    }

    fn into_raw(self) -> (u8, NonNull<u8>) {
        (0, NonNull::from(Box::leak(self.0)).cast())
    }

    unsafe fn from_raw(_: u8, start: NonNull<u8>) -> Stream {
        // SAFETY: passed on; there is one form, a box.
        unsafe { Stream(Box::from_raw(start.cast().as_ptr())) }
    }

    kind_of!(Stream);
}

/// Appends the two numbers of an ID as lengths.
fn put_id(id: StreamId, out: &mut Vec<u8>) {
    encode::put_len(id.ms as usize, out);
    encode::put_len(id.seq as usize, out);
}

/// Appends a group to a payload, with the times of consumers' successes or without.
fn dump_group(name: &[u8], group: &Group, has_times: bool, form: Form, out: &mut Vec<u8>) {
    form.put_string(name, out);
    put_id(group.last(), out);
    encode::put_len(group.stored_read() as usize, out);
    encode::put_len(group.pending_len(), out);
    for (id, pending) in group.pending_from(StreamId::MIN) {
        out.extend(id.to_bytes());
        out.extend(pending.delivered_ms.to_le_bytes());
        encode::put_len(pending.count as usize, out);
    }
    let consumers = group.consumers();
    encode::put_len(consumers.len(), out);
    for consumer in consumers {
        form.put_string(consumer.name(), out);
        out.extend(consumer.seen_ms.to_le_bytes());
        if has_times {
            out.extend(consumer.active_ms.to_le_bytes());
        }
        encode::put_len(consumer.pending_len(), out);
        consumer.pending_from(StreamId::MIN).for_each(|id| out.extend(id.to_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::random::numbers;

    type Model = BTreeMap<StreamId, Vec<Vec<u8>>>;

    fn words(entry: &Entry<'_>) -> Vec<Vec<u8>> {
        let text = |element: super::super::packed::Element<'_>| element.text(&mut itoa::Buffer::new()).to_vec();
        entry.pairs().flat_map(|(name, value)| [text(name), text(value)]).collect()
    }

    fn id(ms: u64, seq: u64) -> StreamId {
        StreamId { ms, seq }
    }

    /// Checks that the stream has the model's entries, in both directions, and that its sizes are right.
    #[track_caller]
    fn check(stream: &Stream, model: &Model) {
        assert_eq!(stream.len(), model.len());
        let all = |is_back| stream.range(StreamId::MIN, StreamId::MAX, is_back).map(|entry| (entry.id, words(&entry)));
        let expected: Vec<_> = model.iter().map(|(id, words)| (*id, words.clone())).collect();
        assert!(all(false).eq(expected.iter().cloned()) && all(true).eq(expected.iter().rev().cloned()));
        assert_eq!(stream.0.bytes, stream.0.nodes.iter().map(Node::bytes).sum::<usize>());
        assert_eq!(stream.last_entry(), model.keys().next_back().copied());
        assert_eq!(stream.facts().first, model.keys().next().copied().unwrap_or_default());
    }

    #[track_caller]
    fn check_range(stream: &Stream, model: &Model, start: StreamId, end: StreamId) {
        let expected: Vec<StreamId> = match start <= end {
            true => model.range(start..=end).map(|(id, _)| *id).collect(),
            false => Vec::new(),
        };
        let ids = |is_back| stream.range(start, end, is_back).map(|entry| entry.id);
        assert!(ids(false).eq(expected.iter().copied()) && ids(true).eq(expected.iter().rev().copied()));
        for limit in [0, 1, 5, usize::MAX] {
            assert_eq!(stream.count(start, end, limit), expected.len().min(limit));
        }
        assert!(stream.estimate(start, end) >= expected.len() / 4 || stream.nodes() < 4);
    }

    /// Restores payloads of a stream, unchanged and with changed bytes.
    fn restored(stream: &Stream) -> Option<Stream> {
        let mut object = Vec::new();
        stream.dump(Form::PAYLOAD, &mut Out::whole(&mut object));
        match crate::rdb::restore(&encode::sealed(object), &Limits::new()) {
            Ok(crate::value::Value::Object(super::super::Object::Stream(stream))) => Some(stream),
            _ => None,
        }
    }

    #[test]
    fn a_map_of_ids_does_the_same() {
        for seed in 0..12 {
            let mut next = numbers(seed);
            let (mut stream, mut model) = (Stream::empty(), Model::new());
            let (mut last, mut added) = (StreamId::MIN, 0);
            for _ in 0..3_000 {
                let any = |next: &mut dyn FnMut(usize) -> usize| id(next(last.ms as usize + 2) as u64, next(3) as u64);
                match next(20) {
                    0..15 => {
                        last = id(last.ms + next(2) as u64, 0).max(last).next().expect("there are more");
                        let pairs = 1 + next(3);
                        let same = next(3) > 0;
                        let entry: Vec<Vec<u8>> = (0..2 * pairs)
                            .map(|at| match (at % 2 == 0 && same, next(12)) {
                                (true, _) => format!("name{at}").into_bytes(),
                                (_, 0) => vec![b'v'; next(900)],
                                (_, number) => (number * 1_000_003).to_string().into_bytes(),
                            })
                            .collect();
                        let words: Vec<&[u8]> = entry.iter().map(Vec::as_slice).collect();
                        stream.add(last, &words, &Limits::new());
                        model.insert(last, entry);
                        added += 1;
                    }
                    15 => {
                        let kept = next(400) as u64;
                        let (removed, cut) = stream.trim(Trim { keep: Keep::Last(kept), is_rough: false, limit: 0 });
                        let gone = (model.len() as u64).saturating_sub(kept);
                        assert_eq!(removed, gone);
                        (0..gone).for_each(|_| drop(model.pop_first()));
                        assert!(cut.is_none_or(|cut| cut.nodes() > FREED_AT_ONCE && cut.len() <= gone as usize));
                    }
                    16 => {
                        let keep = any(&mut next);
                        let (removed, _) = stream.trim(Trim { keep: Keep::From(keep), is_rough: false, limit: 0 });
                        let kept = model.split_off(&keep);
                        assert_eq!(removed, std::mem::replace(&mut model, kept).len() as u64);
                    }
                    17 => {
                        // Only whole nodes are removed, never entries to be kept, and never more than the limit.
                        let (kept, limit) = (next(300) as u64, next(3) as u64 * 120);
                        let (removed, _) = stream.trim(Trim { keep: Keep::Last(kept), is_rough: true, limit });
                        assert!(
                            removed <= (model.len() as u64).saturating_sub(kept) && (limit == 0 || removed <= limit)
                        );
                        (0..removed).for_each(|_| drop(model.pop_first()));
                    }
                    18 => {
                        let ids: Vec<StreamId> = (0..next(200)).map(|_| any(&mut next)).collect();
                        let before = model.len();
                        ids.iter().for_each(|id| drop(model.remove(id)));
                        assert_eq!(stream.delete(&ids), before - model.len());
                    }
                    _ => {
                        let (start, end) = (any(&mut next), any(&mut next));
                        check_range(&stream, &model, start, end);
                    }
                }
            }
            check(&stream, &model);
            assert_eq!((stream.facts().last, stream.facts().added), (last, added));
            for other in [stream.copy(), restored(&stream).expect("a payload of our own")] {
                check(&other, &model);
                assert_eq!(other.facts().max_deleted, stream.facts().max_deleted);
            }
        }
    }

    #[test]
    fn damaged_payloads_are_refused_or_streams() {
        let mut next = numbers(5);
        let mut stream = Stream::empty();
        for n in 1..=60 {
            let value = "v".repeat(next(40));
            let words: [&[u8]; 4] = [b"name", value.as_bytes(), if n % 7 == 0 { b"other" } else { b"n" }, b"12"];
            stream.add(id(1, n), &words, &Limits::new());
        }
        stream.delete(&[id(1, 5), id(1, 60)]);
        let body = &stream.0;
        let good = body.nodes[0].as_bytes();
        let mut taken = 0;
        for _ in 0..10_000 {
            let mut bytes = good.to_vec();
            crate::random::damage(&mut bytes, 1 + next(3), &mut next);
            let Some(found) = Stream::parse([(id(1, 1), bytes)], body.len, body.last, None) else { continue };
            taken += 1;
            // Every step stays within the block, and the stream is valid after deletions.
            let ids: Vec<StreamId> = found.range(StreamId::MIN, StreamId::MAX, false).map(|entry| entry.id).collect();
            assert_eq!(found.range(StreamId::MIN, StreamId::MAX, true).count(), ids.len());
            let mut found = found;
            found.range(StreamId::MIN, StreamId::MAX, false).for_each(|entry| drop(words(&entry)));
            found.trim(Trim { keep: Keep::Last(3), is_rough: false, limit: 0 });
            found.delete(&ids);
            found.add(StreamId::MAX, &[b"f", b"v"], &Limits::new());
        }
        assert!(taken > 100, "only {taken} were taken");
    }

    #[test]
    fn entries_of_one_shape_share_their_names() {
        let mut stream = Stream::empty();
        for n in 1..=10_000 {
            stream.add(id(1_700_000_000_000 + n, 0), &[b"name", b"value", b"other", b"7"], &Limits::new());
        }
        // Flags, time, sequence and number of elements take 9 bytes, the values 9.
        assert!(stream.bytes() < 22 * 10_000, "{} bytes an entry", stream.bytes() / 10_000);
        assert_eq!(stream.nodes(), 100);
    }
}
