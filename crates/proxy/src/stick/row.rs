//! Layout of an entry's data: the place of each datum among its words, and functions to read and change it.

use std::time::SystemTime;

use sluicegate_config::model::{DataForm, DataKind, TableData};

use super::rate;

/// The position of a datum in an entry.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u32,
    /// Its position in the part of another node, if it is summed.
    in_part: Option<u32>,
    data: TableData,
}

/// The position of each datum in a table's entries.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    places: [Option<Place>; DataKind::ALL.len()],
    words: usize,
    /// The number of other nodes whose parts follow the entry's own data (`aggregate`).
    nodes: usize,
    /// The number of words of such a part.
    part_words: usize,
    /// Whether the [version](Row::tag_version) of the data that are not summed follows the parts.
    has_tags: bool,
    /// This node's rank among the nodes, the same at all of them.
    rank: u8,
}

/// The number of words of a version.
pub(super) const VERSION: usize = 2;
/// The number of a version's lowest bits that have the rank of the node that has set the tags.
const RANK_BITS: u32 = 8;

/// Returns whether a datum of tables with `aggregate` is the sum of those of the nodes. Tags and servers are not, and
/// connections are those of this node, as everywhere.
pub(crate) fn is_summed(kind: DataKind) -> bool {
    !matches!(kind, DataKind::ServerId | DataKind::ServerKey | DataKind::Gpt0 | DataKind::Gpt | DataKind::ConnCur)
}

/// Returns whether a datum of tables with `aggregate` is the one that was set last by any node.
pub(crate) fn is_tag(kind: DataKind) -> bool {
    !is_summed(kind) && kind != DataKind::ConnCur
}

/// Returns the number of words of a datum.
pub(super) fn size(form: DataForm) -> usize {
    match form {
        DataForm::Word | DataForm::Name => 1,
        DataForm::Long => 2,
        DataForm::Rate => rate::WORDS,
    }
}

impl Layout {
    /// Returns the layout of entries with these data, and with the parts of this number of other nodes, among which this
    /// node has a rank.
    pub(super) fn new(data: &[TableData], nodes: usize, rank: u8) -> Layout {
        let mut layout =
            Layout { places: [None; DataKind::ALL.len()], words: 0, nodes, part_words: 0, has_tags: false, rank };
        for datum in data {
            let words = size(datum.kind.form()) * datum.elements as usize;
            let in_part = (nodes > 0 && is_summed(datum.kind)).then_some(layout.part_words as u32);
            layout.places[datum.kind as usize] = Some(Place { offset: layout.words as u32, in_part, data: *datum });
            layout.words += words;
            layout.part_words += if in_part.is_some() { words } else { 0 };
            layout.has_tags |= nodes > 0 && is_tag(datum.kind);
        }
        layout
    }

    /// Returns the number of words of an entry's own data.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// Returns the number of words of an entry's data, with the parts of other nodes and the version of its tags.
    pub(super) fn all_words(&self) -> usize {
        self.part(self.nodes) + if self.has_tags { VERSION } else { 0 }
    }

    /// Returns the position of the version of the tags, if there is one.
    pub(super) fn version(&self) -> Option<usize> {
        self.has_tags.then(|| self.part(self.nodes))
    }

    /// Returns the number of words of the part of another node.
    pub(super) fn part_words(&self) -> usize {
        self.part_words
    }

    /// Returns the position of the part of another node.
    pub(super) fn part(&self, node: usize) -> usize {
        self.words + node * self.part_words
    }

    /// Returns the number of other nodes with parts.
    pub(super) fn nodes(&self) -> usize {
        self.nodes
    }

    /// Returns the stored data, in the order of listings.
    pub(super) fn data(&self) -> impl Iterator<Item = TableData> {
        self.places.iter().flatten().map(|place| place.data)
    }

    /// Returns the data with the positions of their first words.
    pub(super) fn columns(&self) -> impl Iterator<Item = (usize, TableData)> {
        self.places.iter().flatten().map(|place| (place.offset as usize, place.data))
    }

    pub(super) fn has(&self, kind: DataKind) -> bool {
        self.places[kind as usize].is_some()
    }

    /// Initializes the data of a new entry.
    pub(super) fn clear(&self, words: &mut [u32], now: u32) {
        words.fill(0);
        for place in self.places.iter().flatten().filter(|place| place.data.kind.form() == DataForm::Rate) {
            for element in 0..place.data.elements as usize {
                let at = place.offset as usize + element * rate::WORDS;
                rate::clear(&mut words[at..at + rate::WORDS], now);
            }
        }
    }
}

/// A change of a general purpose counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Increases the counter by this amount, and its rate by the same number of events.
    Add(u32),
    /// Sets the counter to 0.
    Clear,
}

/// An entry's data, while its shard is locked.
pub struct Row<'a> {
    pub(super) layout: &'a Layout,
    pub(super) words: &'a mut [u32],
    pub(super) now: u32,
}

impl Row<'_> {
    /// Returns the words of a datum of this node or of another one, by its number; `None` if it is not stored.
    pub(crate) fn words_of(&mut self, kind: DataKind, element: u32, node: Option<usize>) -> Option<&mut [u32]> {
        let place = self.layout.places[kind as usize].filter(|place| element < place.data.elements)?;
        let size = size(kind.form());
        let within = element as usize * size;
        let at = match node {
            None => place.offset as usize,
            Some(node) => self.layout.part(node) + place.in_part? as usize,
        };
        self.words.get_mut(at + within..at + within + size)
    }

    /// Returns the time at which it is read.
    pub(crate) fn now(&self) -> u32 {
        self.now
    }

    /// Returns the version of the data that are not summed: the time at which they were set last, in milliseconds since
    /// 1970 but later than of all that this node had seen, and the rank of the node that did it. So the one that is set
    /// last wins, and all nodes agree on it if two set them at once. `None` outside of tables with `aggregate`.
    pub(crate) fn tag_version(&self) -> Option<u64> {
        self.layout.version().map(|at| u64::from(self.words[at]) | u64::from(self.words[at + 1]) << 32)
    }

    /// Sets the version.
    pub(crate) fn set_tag_version(&mut self, version: u64) {
        if let Some(at) = self.layout.version() {
            self.put_long(at, version);
        }
    }

    /// Gives the tags, which were just set, a version that is later than the one that they had. Times are limited to
    /// 2^56 - 1 ms.
    pub(crate) fn renew_tag_version(&mut self) {
        if let Some(before) = self.tag_version() {
            let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let time = (since_1970.as_millis() as u64).max((before >> RANK_BITS) + 1).min(u64::MAX >> RANK_BITS);
            self.set_tag_version(time << RANK_BITS | u64::from(self.layout.rank));
        }
    }

    /// Gives tags that come from a table without versions, if any is set, the lowest version: it replaces tags that were
    /// never set, and any that is set later replaces them.
    pub(super) fn give_lowest_tag_version(&mut self) {
        let layout = self.layout;
        let mut tags = layout.columns().filter(|(_, data)| is_tag(data.kind));
        let is_set = tags.any(|(at, data)| {
            let count = size(data.kind.form()) * data.elements as usize;
            self.words[at..at + count].iter().any(|word| *word != 0)
        });
        if is_set && self.tag_version() == Some(0) {
            self.set_tag_version(1 << RANK_BITS | u64::from(layout.rank));
        }
    }

    /// Returns the words of a datum; `gpc0`, `gpc1` and `gpt0` may be elements of an array.
    fn find(&self, kind: DataKind, element: u32) -> Option<(usize, Place)> {
        let place = self.layout.places[kind as usize].map(|place| (place, element));
        let (place, element) = place.or_else(|| {
            let (array, element) = match kind {
                DataKind::Gpc0 => (DataKind::Gpc, 0),
                DataKind::Gpc1 => (DataKind::Gpc, 1),
                DataKind::Gpc0Rate => (DataKind::GpcRate, 0),
                DataKind::Gpc1Rate => (DataKind::GpcRate, 1),
                DataKind::Gpt0 => (DataKind::Gpt, 0),
                _ => return None,
            };
            Some((self.layout.places[array as usize]?, element))
        })?;
        let size = size(place.data.kind.form());
        (element < place.data.elements).then(|| (place.offset as usize + element as usize * size, place))
    }

    fn value(&self, at: usize, data: TableData) -> u64 {
        match data.kind.form() {
            DataForm::Word | DataForm::Name => u64::from(self.words[at]),
            DataForm::Long => u64::from(self.words[at]) | u64::from(self.words[at + 1]) << 32,
            DataForm::Rate => {
                let blocks = rate::read(&self.words[at..at + rate::WORDS], data.period_ms, self.now);
                u64::from(blocks) * u64::from(data.block)
            }
        }
    }

    /// Returns the sum of the parts of other nodes.
    fn of_others(&self, at: usize, place: Place) -> u64 {
        let Some(in_part) = place.in_part else { return 0 };
        let offset = in_part as usize + at - place.offset as usize;
        (0..self.layout.nodes)
            .map(|node| self.value(self.layout.part(node) + offset, place.data))
            .fold(0, u64::wrapping_add)
    }

    /// Returns a datum's value (for a rate, its estimate), summed over the nodes in a table with `aggregate`; `None` if it
    /// is not stored.
    pub fn get(&self, kind: DataKind, element: u32) -> Option<u64> {
        let (at, place) = self.find(kind, element)?;
        let value = self.value(at, place.data);
        Some(if self.layout.nodes == 0 { value } else { value.wrapping_add(self.of_others(at, place)) })
    }

    /// Adds to a datum of this node; returns its new value (for a rate, that of the current period), summed over the
    /// nodes. Values wrap, as in HAProxy.
    pub fn add(&mut self, kind: DataKind, element: u32, n: u64) -> Option<u64> {
        let (at, place) = self.find(kind, element)?;
        let data = place.data;
        let own = match data.kind.form() {
            DataForm::Word | DataForm::Name => {
                self.words[at] = self.words[at].wrapping_add(n as u32);
                u64::from(self.words[at])
            }
            DataForm::Long => {
                let sum = self.value(at, data).wrapping_add(n);
                self.put_long(at, sum);
                sum
            }
            DataForm::Rate => {
                let words = &mut self.words[at..at + rate::WORDS];
                let blocks = n.div_ceil(u64::from(data.block)) as u32;
                u64::from(rate::add(words, data.period_ms, self.now, blocks)) * u64::from(data.block)
            }
        };
        Some(if self.layout.nodes == 0 { own } else { own.wrapping_add(self.of_others(at, place)) })
    }

    /// Adds to a datum that counts events. Most tables do not store most of them.
    #[inline]
    pub(super) fn count(&mut self, kind: DataKind, n: u64) {
        if self.layout.has(kind) {
            self.add(kind, 0, n);
        }
    }

    /// Sets a datum of this node; returns `false` if it is not stored.
    pub fn set(&mut self, kind: DataKind, element: u32, value: u64) -> bool {
        let Some((at, Place { data, .. })) = self.find(kind, element) else { return false };
        if is_tag(data.kind) {
            self.renew_tag_version();
        }
        match data.kind.form() {
            DataForm::Word | DataForm::Name => self.words[at] = value as u32,
            DataForm::Long => self.put_long(at, value),
            DataForm::Rate => {
                let blocks = value.div_ceil(u64::from(data.block)) as u32;
                rate::set(&mut self.words[at..at + rate::WORDS], self.now, blocks);
            }
        }
        true
    }

    /// Runs `f` on the words of a rate; `None` if it is not stored.
    pub(super) fn with_rate<R>(&mut self, kind: DataKind, f: impl FnOnce(&mut [u32], TableData) -> R) -> Option<R> {
        let (at, Place { data, .. }) = self.find(kind, 0)?;
        Some(f(&mut self.words[at..at + rate::WORDS], data))
    }

    fn put_long(&mut self, at: usize, value: u64) {
        self.words[at] = value as u32;
        self.words[at + 1] = (value >> 32) as u32;
    }

    /// Decrements a counter, unless it is 0 or missing.
    pub fn decrement(&mut self, kind: DataKind) {
        if let Some((at, _)) = self.find(kind, 0) {
            self.words[at] = self.words[at].saturating_sub(1);
        }
    }

    /// Changes a counter and the rate that belongs to it (`gpc0`, `gpc1` and `gpc`). Returns the new value of the
    /// counter or, if only the rate is stored, of the rate; for [`Change::Clear`] the previous value; `None` if neither
    /// is stored.
    pub fn change(&mut self, kind: DataKind, element: u32, change: Change) -> Option<u64> {
        let rate = match kind {
            DataKind::Gpc0 => Some(DataKind::Gpc0Rate),
            DataKind::Gpc1 => Some(DataKind::Gpc1Rate),
            DataKind::Gpc => Some(DataKind::GpcRate),
            _ => None,
        };
        match change {
            Change::Add(n) => {
                let events = rate.and_then(|rate| self.add(rate, element, u64::from(n)));
                self.add(kind, element, u64::from(n)).or(events)
            }
            Change::Clear => {
                let before = self.get(kind, element)?;
                self.set(kind, element, 0);
                Some(before)
            }
        }
    }
}
