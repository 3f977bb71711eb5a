//! A few entries of a stream in one block, in the format of Redis's streams, which DUMP writes byte for byte.
//!
//! ```text
//! live  deleted  fields  name …  0        the master entry: live and deleted entries, names of the first one
//! flags  ms  seq  value …  back           an entry with the master's names
//! flags  ms  seq  fields  name value …  back    any other entry
//! ```
//!
//! All of these are elements of a [`Packed`]. The two parts of an ID are relative to the node's own ID, which is that
//! of its first entry; `back` is the number of elements of the entry before it, for backward iteration. A deleted entry
//! keeps its place and is marked, as in Redis: `~` trims full nodes, so a node must be full when Redis's is. Its bytes
//! are freed with the node.
//!
//! Cost: an entry is searched from the node's start. So are the names of each entry that is read, if they are the
//! master's.

use super::limits::Limits;
use super::packed::{At, Element, Packed};

/// Flags of an entry.
const DELETED: i64 = 1;
const SAME_NAMES: i64 = 2;
/// The number of elements of an entry in addition to names and values: flags and the two parts of the ID.
const HEAD: usize = 3;
/// The maximum number of bytes of a node, or of the words of one entry.
pub const BYTES_MAX: usize = 1 << 30;

/// The ID of an entry: a time, and a number among those of that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId {
    /// Unix milliseconds, or a value chosen by the client.
    pub ms: u64,
    /// The number among the IDs of that time.
    pub seq: u64,
}

impl StreamId {
    /// The lowest ID.
    pub const MIN: StreamId = StreamId { ms: 0, seq: 0 };
    /// The highest ID.
    pub const MAX: StreamId = StreamId { ms: u64::MAX, seq: u64::MAX };

    /// Returns the next ID; `None` after the last.
    pub fn next(self) -> Option<StreamId> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(StreamId { seq, ..self }),
            None => Some(StreamId { ms: self.ms.checked_add(1)?, seq: 0 }),
        }
    }

    /// Returns the previous ID; `None` before the first.
    pub fn previous(self) -> Option<StreamId> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(StreamId { seq, ..self }),
            None => Some(StreamId { ms: self.ms.checked_sub(1)?, seq: u64::MAX }),
        }
    }

    /// Returns the ID as payloads contain it: both parts, big endian.
    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.ms) << 64 | u128::from(self.seq)).to_be_bytes()
    }

    /// Returns the ID of these bytes.
    pub fn of_bytes(bytes: [u8; 16]) -> StreamId {
        let both = u128::from_be_bytes(bytes);
        StreamId { ms: (both >> 64) as u64, seq: both as u64 }
    }

    /// Calls `use_text` with the ID as clients write it: `ms-seq`.
    pub fn with_text<R>(self, use_text: impl FnOnce(&[u8]) -> R) -> R {
        let (mut ms, mut seq) = (itoa::Buffer::new(), itoa::Buffer::new());
        let (ms, seq) = (ms.format(self.ms).as_bytes(), seq.format(self.seq).as_bytes());
        let mut text = [0; 41];
        text[..ms.len()].copy_from_slice(ms);
        text[ms.len()] = b'-';
        let end = ms.len() + 1 + seq.len();
        text[ms.len() + 1..end].copy_from_slice(seq);
        use_text(&text[..end])
    }

    /// Returns the ID at this distance from `master`.
    fn behind(master: StreamId, ms: i64, seq: i64) -> StreamId {
        StreamId { ms: master.ms.wrapping_add_signed(ms), seq: master.seq.wrapping_add_signed(seq) }
    }
}

/// The content of the master entry, except for the names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    names: usize,
    first_name: Option<At>,
    /// The first entry.
    pub(super) entries: Option<At>,
}

/// An entry as it is stored in a node.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'n> {
    block: &'n Packed,
    /// Its ID.
    pub id: StreamId,
    pub(super) is_deleted: bool,
    /// The master's names, if the entry has the same names.
    names: Option<At>,
    /// The number of pairs of names and values.
    len: usize,
    /// The first value, or the first name if the entry has its own.
    content: Option<At>,
    /// The next entry.
    pub(super) next: Option<At>,
}

impl<'n> Entry<'n> {
    /// Returns the number of name-value pairs.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the names with their values.
    pub fn pairs(&self) -> impl Iterator<Item = (Element<'n>, Element<'n>)> {
        let (block, mut name_at, mut at) = (self.block, self.names, self.content);
        let mut next = move || {
            let (element, next) = block.read(at?);
            at = next;
            Some(element)
        };
        let (has_own, len) = (self.names.is_none(), self.len);
        (0..len).map_while(move |_| {
            let name = if has_own {
                next()?
            } else {
                let (name, next_name) = block.read(name_at?);
                name_at = next_name;
                name
            };
            Some((name, next()?))
        })
    }
}

/// A node. The content of its block is valid: created here, or checked by [`parse`](Node::parse).
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// The ID to which its entries' IDs are relative.
    pub(super) master: StreamId,
    block: Packed,
    /// The number of entries that are not deleted.
    pub(super) live: u32,
}

fn integer(element: Element<'_>) -> i64 {
    match element {
        Element::Int(value) => value,
        Element::Bytes(_) => 0,
    }
}

impl Node {
    /// Returns a node with one entry of these names and values.
    pub(super) fn new(id: StreamId, words: &[&[u8]]) -> Node {
        let mut number = itoa::Buffer::new();
        let mut texts: Vec<&[u8]> = Vec::with_capacity(words.len() / 2 + 4);
        texts.extend([&b"0"[..], b"0", number.format(words.len() / 2).as_bytes()]);
        texts.extend(words.iter().step_by(2));
        texts.push(b"0");
        let mut block = Packed::new();
        block.insert(None, &texts);
        let mut node = Node { master: id, block, live: 0 };
        node.add(id, words);
        node
    }

    /// Returns the bytes of the block.
    pub(super) fn bytes(&self) -> usize {
        self.block.bytes()
    }

    /// Returns the block, as DUMP writes it.
    pub(super) fn as_bytes(&self) -> &[u8] {
        self.block.as_bytes()
    }

    /// Returns whether an entry of this many bytes of text should be added here and not to a new node.
    pub(super) fn takes(&self, text_bytes: usize, limits: &Limits) -> bool {
        let bytes_max = match usize::try_from(limits.stream_node_bytes.get()) {
            Ok(max @ 1..BYTES_MAX) => max,
            _ => BYTES_MAX,
        };
        let entries_max = limits.stream_node_entries.get();
        self.block.as_bytes().len() + text_bytes < bytes_max
            && (entries_max == 0 || i64::from(self.live) + self.deleted() < entries_max)
    }

    fn deleted(&self) -> i64 {
        let second = self.block.first().and_then(|first| self.block.next(first));
        second.map_or(0, |at| integer(self.block.get(at)))
    }

    /// Returns the content of the master entry.
    pub(super) fn head(&self) -> Head {
        let mut at = self.block.seek(2);
        let mut next = || {
            let (element, next) = self.block.read(at?);
            at = next;
            Some(element)
        };
        let names = next().map_or(0, integer) as usize;
        let first_name = at;
        let entries = first_name.and_then(|at| (0..=names).try_fold(at, |at, _| self.block.next(at)));
        Head { names, first_name, entries }
    }

    /// Returns the entry at a place.
    pub(super) fn entry(&self, head: &Head, at: At) -> Entry<'_> {
        let block = &self.block;
        let mut next = Some(at);
        let mut take = || {
            let Some((element, after)) = next.map(|at| block.read(at)) else { return 0 };
            next = after;
            integer(element)
        };
        let (flags, ms, seq) = (take(), take(), take());
        let is_same = flags & SAME_NAMES != 0;
        let len = if is_same { head.names } else { take() as usize };
        let content = next;
        let elements = if is_same { len } else { 2 * len };
        // The elements are followed by their number.
        let next = content.and_then(|at| (0..=elements).try_fold(at, |at, _| block.next(at)));
        Entry {
            block,
            id: StreamId::behind(self.master, ms, seq),
            is_deleted: flags & DELETED != 0,
            names: head.first_name.filter(|_| is_same),
            len,
            content,
            next,
        }
    }

    /// Returns the place of the last entry, deleted or not.
    pub(super) fn last(&self) -> Option<At> {
        self.before(self.block.last()?)
    }

    /// Returns the place of the entry before the one at `at`.
    pub(super) fn previous(&self, at: At) -> Option<At> {
        self.before(self.block.previous(at)?)
    }

    /// Returns the place of the entry whose number of elements is at `end`; `None` if that is the end of the master.
    fn before(&self, end: At) -> Option<At> {
        match integer(self.block.get(end)) {
            0 => None,
            elements => (0..elements).try_fold(end, |at, _| self.block.previous(at)),
        }
    }

    /// Adds an entry at the end.
    pub(super) fn add(&mut self, id: StreamId, words: &[&[u8]]) {
        let head = self.head();
        let names = std::iter::successors(head.first_name, |at| self.block.next(*at)).take(head.names);
        let is_same = head.names == words.len() / 2
            && names.zip(words.iter().step_by(2)).all(|(at, name)| {
                let value = super::packed::integer(name);
                self.block.get(at).is(name, value)
            });
        let number = words.len() / 2;
        let elements = HEAD + if is_same { number } else { 2 * number + 1 };
        let mut numbers: [itoa::Buffer; 4] = std::array::from_fn(|_| itoa::Buffer::new());
        let [ms, seq, len, back] = &mut numbers;
        let mut texts: smallvec::SmallVec<[&[u8]; 32]> = smallvec::SmallVec::new();
        texts.push(if is_same { b"2" } else { b"0" });
        texts.push(ms.format(id.ms.wrapping_sub(self.master.ms) as i64).as_bytes());
        texts.push(seq.format(id.seq.wrapping_sub(self.master.seq) as i64).as_bytes());
        if is_same {
            texts.extend(words.iter().skip(1).step_by(2).copied());
        } else {
            texts.push(len.format(number).as_bytes());
            texts.extend(words.iter().copied());
        }
        texts.push(back.format(elements).as_bytes());
        self.block.insert(None, &texts);
        self.live += 1;
        self.set_count(0, i64::from(self.live));
    }

    /// Sets the number of live entries, or with `index` 1 that of the deleted ones.
    fn set_count(&mut self, index: i64, count: i64) {
        if let Some(at) = self.block.seek(index) {
            self.block.replace(at, itoa::Buffer::new().format(count).as_bytes());
        }
    }

    /// Deletes entries from the first on as long as `deletes` returns true for their IDs and the number of entries in
    /// use. Returns the number of deleted entries that were in use.
    pub(super) fn delete_while(&mut self, mut deletes: impl FnMut(StreamId, u32) -> bool) -> u32 {
        let head = self.head();
        let before = self.live;
        let mut next = head.entries;
        while let Some(at) = next {
            let entry = self.entry(&head, at);
            if !deletes(entry.id, self.live) {
                break;
            }
            next = entry.next;
            if !entry.is_deleted {
                self.mark(at);
            }
        }
        self.note_deleted(before - self.live);
        before - self.live
    }

    /// Deletes an entry. Returns false if it does not exist.
    pub(super) fn delete(&mut self, id: StreamId) -> bool {
        let head = self.head();
        let mut next = head.entries;
        while let Some(at) = next {
            let entry = self.entry(&head, at);
            if entry.id == id && !entry.is_deleted {
                self.mark(at);
                self.note_deleted(1);
                return true;
            }
            next = entry.next;
        }
        false
    }

    /// Marks an entry as deleted; no place changes, because the old and the new flags take one byte each.
    fn mark(&mut self, at: At) {
        let flags = integer(self.block.get(at)) | DELETED;
        self.block.replace(at, itoa::Buffer::new().format(flags).as_bytes());
        self.live -= 1;
    }

    fn note_deleted(&mut self, count: u32) {
        if count > 0 {
            let deleted = self.deleted() + i64::from(count);
            self.set_count(1, deleted);
            self.set_count(0, i64::from(self.live));
        }
    }

    /// Parses an untrusted payload. Returns [`None`] if a step from entry to entry would leave its bounds, or the
    /// numbers of entries are wrong.
    pub(super) fn parse(master: StreamId, bytes: &[u8]) -> Option<Node> {
        let block = Packed::parse(bytes)?;
        let mut at = block.first();
        let mut element = || {
            let (element, next) = block.read(at?);
            at = next;
            Some(element)
        };
        let mut number = || match element()? {
            Element::Int(value) => Some(value),
            Element::Bytes(_) => None,
        };
        let (live, deleted) = (u32::try_from(number()?).ok()?, number()?);
        let names = usize::try_from(number()?).ok()?;
        // Each element takes two bytes, which limits valid counts.
        let within = |count: usize| (count <= bytes.len() / 2).then_some(count);
        for _ in 0..within(names)? {
            element()?;
        }
        if element()? != Element::Int(0) {
            return None;
        }
        let (mut found_live, mut found_deleted) = (0, 0);
        while let Some(first) = element() {
            let Element::Int(flags @ 0..=3) = first else { return None };
            let mut number = || match element()? {
                Element::Int(value) => Some(value),
                Element::Bytes(_) => None,
            };
            number()?;
            number()?;
            let elements = match flags & SAME_NAMES != 0 {
                true => names,
                false => 2 * within(usize::try_from(number()?).ok()?)?,
            };
            for _ in 0..elements {
                element()?;
            }
            let own = if flags & SAME_NAMES != 0 { 0 } else { 1 };
            if element()? != Element::Int((HEAD + own + elements) as i64) {
                return None;
            }
            match flags & DELETED != 0 {
                true => found_deleted += 1,
                false => found_live += 1,
            }
        }
        let is_right = (found_live, found_deleted) == (live, deleted) && found_live as i64 + found_deleted > 0;
        is_right.then_some(Node { master, block, live })
    }
}
