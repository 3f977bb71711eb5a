//! Entries as words that another process can adopt: what the [state file](crate::runtime_state) has of a table.
//!
//! [`Table::copy`] copies entries as they are, some hundred under one lock acquisition, and computes nothing. All
//! conversions happen when a table adopts them, before it is in use: times are shifted to this process's scale, data are
//! moved to their places in this table's entries, numbers of servers' names are replaced by those of this table.

use std::sync::Arc;

use hashbrown::HashMap;
use sluicegate_config::model::{DataForm, DataKind, TableData, TableKey};

use super::super::rate;
use super::super::row::size;
use super::{EXPIRE, REFS};
use super::{FREE, HEAD, NONE, Table};
use crate::stick::{Key, now_ms};

/// A longer time is as good as this one: the scale of ticks wraps.
const LONGEST_MS: i64 = i32::MAX as i64;

/// The definition of the table that entries come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) key: TableKey,
    pub(crate) by_address: bool,
    /// The lifetime of an unused entry in milliseconds; `None` if none expires.
    pub(crate) expire_ms: Option<u32>,
    pub(crate) columns: Vec<Column>,
}

/// The data of one kind in such an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// `None` if it is a kind that this program does not know.
    pub(crate) data: Option<TableData>,
    /// The number of its words.
    pub(crate) words: usize,
}

impl Origin {
    /// Returns the number of words of an entry: its expiry, its key and its data.
    pub(crate) fn words(&self) -> usize {
        let data: usize = self.columns.iter().map(|column| column.words).sum();
        1 + crate::stick::key::words(self.key) + data
    }
}

/// How times of another process become times of this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shift {
    /// A moment on the other scale…
    pub(crate) base: u32,
    /// …and the time that has passed since then.
    pub(crate) passed_ms: u64,
    /// Now, on this scale.
    pub(crate) now: u32,
}

impl Shift {
    /// Returns how long ago a moment of the other scale was; negative if it is yet to come.
    fn age_ms(&self, at: u32) -> i64 {
        let before = i64::from(self.base.wrapping_sub(at).cast_signed());
        before.saturating_add(i64::try_from(self.passed_ms).unwrap_or(i64::MAX))
    }

    /// Returns the moment of that age.
    fn moment(&self, age_ms: i64) -> u32 {
        self.now.wrapping_sub(age_ms.clamp(-LONGEST_MS, LONGEST_MS) as i32 as u32)
    }
}

/// How the words of a column become those of a table.
#[derive(Clone, Copy, Debug)]
enum Convert {
    Copy,
    /// A rate with this period.
    Rate(u32),
    /// A server's name.
    Name,
}

/// The words of a column and their destination.
#[derive(Clone, Copy, Debug)]
struct Move {
    from: usize,
    to: usize,
    words: usize,
    convert: Convert,
}

/// A table that adopts entries of one origin.
pub(crate) struct Adoption<'a> {
    table: &'a Table,
    origin: Origin,
    shift: Shift,
    moves: Vec<Move>,
    /// The data that the table's entries do not have, or have in another form.
    pub(crate) lost: Vec<DataKind>,
    /// Entries for which there was no room.
    pub(crate) left_out: u64,
    pub(crate) adopted: u64,
}

impl Table {
    /// Returns the definition of its entries.
    pub(crate) fn origin(&self) -> Origin {
        // In the order of their words, which is that of the configuration.
        let columns = self.data.iter().map(|data| {
            let words = size(data.kind.form()) * data.elements as usize;
            Column { data: Some(*data), words }
        });
        Origin {
            key: self.key,
            by_address: self.by_address,
            expire_ms: self.expire_after(),
            columns: columns.collect(),
        }
    }

    /// Appends entries from a position on, as words, at most `most` under one lock; returns the next position.
    pub(crate) fn copy(&self, from: (usize, u32), most: u32, out: &mut Vec<u32>) -> Option<(usize, u32)> {
        let (at, mut next) = from;
        let counts_current = self.has(DataKind::ConnCur);
        let shard = self.shards.get(at)?.lock();
        let now = now_ms();
        let end = shard.used.min(next.saturating_add(most));
        while next < end {
            let entry = next;
            next += 1;
            let words = shard.words(entry);
            if words[REFS] == FREE || self.is_expired(&shard, entry, now) {
                continue;
            }
            // As if its trackers ended now.
            let is_renewed = words[REFS] > 0 && counts_current;
            out.push(if is_renewed { now.wrapping_add(self.expire_after().unwrap_or(0)) } else { words[EXPIRE] });
            out.extend_from_slice(&words[HEAD..HEAD + self.key_words + self.layout.words()]);
        }
        if next < shard.used { Some((at, next)) } else { (at + 1 < self.shards.len()).then_some((at + 1, 0)) }
    }

    /// Returns the offsets of servers' names among the words of an entry that [`copy`](Self::copy) appended.
    pub(crate) fn name_places(&self) -> Vec<usize> {
        let names = self.layout.columns().filter(|(_, data)| data.kind.form() == DataForm::Name);
        names.map(|(at, _)| 1 + self.key_words + at).collect()
    }

    /// Returns the adoption of entries of this origin; `None` if they have other keys.
    pub(crate) fn adopt(&self, origin: Origin, shift: Shift) -> Option<Adoption<'_>> {
        if self.key != origin.key || self.by_address != origin.by_address {
            return None;
        }
        let mut from = 1 + self.key_words;
        let (mut moves, mut lost) = (Vec::new(), Vec::new());
        for column in &origin.columns {
            let at = from;
            from += column.words;
            let Some(was) = column.data else { continue };
            // Those whose connections are counted are gone.
            if was.kind == DataKind::ConnCur {
                continue;
            }
            let form = was.kind.form();
            let place = self.layout.columns().find(|(_, data)| data.kind == was.kind);
            let place = place
                .filter(|(_, is)| form != DataForm::Rate || (is.period_ms, is.block) == (was.period_ms, was.block));
            let Some((to, is)) = place else {
                lost.push(was.kind);
                continue;
            };
            let words = size(form);
            // A file may promise more elements than it has words.
            let elements = (is.elements.min(was.elements) as usize).min(column.words / words);
            let convert = match form {
                DataForm::Rate => Convert::Rate(was.period_ms),
                DataForm::Name => Convert::Name,
                DataForm::Word | DataForm::Long => Convert::Copy,
            };
            let each = (0..elements).map(|element| Move {
                from: at + element * words,
                to: HEAD + self.key_words + to + element * words,
                words,
                convert,
            });
            moves.extend(each);
        }
        Some(Adoption { table: self, origin, shift, moves, lost, left_out: 0, adopted: 0 })
    }

    /// Brings the lists of entries into the order of expiry, once all are adopted or learned.
    pub(crate) fn put_in_order(&self) {
        let now = now_ms();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let live = (0..shard.used).filter(|entry| shard.words(*entry)[REFS] == 0);
            let left = |entry| (shard.words(entry)[EXPIRE].wrapping_sub(now).cast_signed(), entry);
            let mut entries: Vec<(i32, u32)> = live.map(left).collect();
            entries.sort_unstable();
            (shard.oldest, shard.newest) = (NONE, NONE);
            for (_, entry) in entries {
                let newest = shard.newest;
                shard.link(entry, newest);
            }
        }
    }
}

impl Adoption<'_> {
    /// Returns the number of words of an entry.
    pub(crate) fn words(&self) -> usize {
        self.origin.words()
    }

    /// Adopts an entry, unless it has expired or the table is full; `names` are the servers' names by their numbers.
    pub(crate) fn add(&mut self, words: &[u32], names: &HashMap<u32, Arc<str>>) {
        let (table, now) = (self.table, self.shift.now);
        let Some((expire, rest)) = words.split_first().filter(|_| words.len() == self.words()) else { return };
        let left_ms = -self.shift.age_ms(*expire);
        let expire = match (table.expire_after(), self.origin.expire_ms) {
            (Some(_), Some(_)) if left_ms <= 0 => return,
            (Some(limit), Some(_)) => now.wrapping_add(left_ms.min(i64::from(limit)) as u32),
            (Some(limit), None) => now.wrapping_add(limit),
            // The time of its last use, which is its place in the order of eviction.
            (None, before) => self.shift.moment(i64::from(before.unwrap_or(0)) - left_ms),
        };
        let key = Key(rest[..table.key_words].into());
        let (hash, at) = table.place(&key);
        let mut shard = table.shards[at].lock();
        let entry = match shard.find(hash, &key.0) {
            Some(entry) => entry,
            None if !table.reserve() => {
                self.left_out += 1;
                return;
            }
            None => {
                let entry = shard.create(hash, &key.0, &table.memory);
                let newest = shard.newest;
                shard.link(entry, newest);
                entry
            }
        };
        self.adopted += 1;
        let own = shard.words_mut(entry);
        own[EXPIRE] = expire;
        table.layout.clear(&mut own[HEAD + table.key_words..], now);
        table.mark_restored(own);
        for Move { from, to, words: count, convert } in &self.moves {
            let (given, own) = (&words[*from..*from + *count], &mut own[*to..*to + *count]);
            match convert {
                Convert::Copy => own.copy_from_slice(given),
                Convert::Name => own[0] = names.get(&given[0]).map_or(0, |name| table.name_number(name)),
                Convert::Rate(period_ms) => {
                    let age_ms = self.shift.age_ms(given[0]).max(0);
                    if age_ms < 2 * i64::from(*period_ms) {
                        own.copy_from_slice(given);
                        own[0] = self.shift.moment(age_ms);
                    } else {
                        rate::clear(own, now);
                    }
                }
            }
        }
        table.row(&mut shard, entry, now).give_lowest_tag_version();
    }
}

#[cfg(test)]
pub(crate) mod tests;
