//! Indexes over the entries of a file: one per match method and case, each a function of the keys alone.
//!
//! | method | structure | cost of a lookup |
//! |---|---|---|
//! | str, bin | hash table | one hash of the text |
//! | beg | hash table of all keys, and the lengths that occur | one pass over the text, a probe per length, longest first |
//! | ip | a hash table per prefix length and family | a probe per length, longest first |
//! | int, len | hash table of single numbers, list of ranges | one probe, and the ranges before it |
//! | sub, end, dir, dom, reg | list in the file's order | every pattern until one matches |
//!
//! HAProxy uses trees for the first three. A table holds 5 to 9 bytes per key and is changed in place; the advantage of
//! trees, ordered traversal, is not needed here. Tables are keyed with random seeds, so that keys which requests
//! choose (`http-request set-map`) cannot be made to collide.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use memchr::memmem;

use super::content::{Content, EntryId};
use crate::network::{mask_v4, mask_v6};
use crate::{Captures, DIRECTORY, DOMAIN, Key, Method, Regex, embedded_ipv4, has_component, hexadecimal, network};

pub(super) struct Index {
    pub(super) method: Method,
    pub(super) fold: bool,
    /// Entries that an earlier one with the same key hides; while there are any, a removal rebuilds.
    hidden: usize,
    shape: Shape,
}

enum Shape {
    Text(Table),
    Prefix(Prefixes),
    Numbers {
        exact: HashMap<i64, EntryId, RandomState>,
        ranges: Vec<(i64, i64, EntryId)>,
    },
    Networks {
        v4: Vec<(u8, HashMap<u32, EntryId, RandomState>)>,
        v6: Vec<(u8, HashMap<u128, EntryId, RandomState>)>,
    },
    /// Each entry with its pattern if that differs from the key, because it is in lower case.
    List(Vec<(EntryId, Option<Box<[u8]>>)>),
    Binary(HashMap<Box<[u8]>, EntryId, RandomState>),
    Regular(Vec<(Regex, EntryId)>),
}

#[derive(Default)]
struct Table {
    slots: HashTable<EntryId>,
    hasher: RandomState,
}

struct Prefixes {
    slots: HashTable<EntryId>,
    seed: u64,
    /// Lengths that occur, ascending, and how often.
    lengths: Vec<(u32, u32)>,
}

/// A key, typed for an index.
pub(super) enum Parsed {
    Plain,
    Range(i64, i64),
    Network(IpAddr, u8),
    Binary(Box<[u8]>),
    Regular(Box<Regex>),
}

/// Returns the text as a case-insensitive index sees it.
fn folded<R>(text: &[u8], fold: bool, f: impl FnOnce(&[u8]) -> R) -> R {
    if fold && text.iter().any(u8::is_ascii_uppercase) { f(&text.to_ascii_lowercase()) } else { f(text) }
}

fn equal(a: &[u8], b: &[u8], fold: bool) -> bool {
    if fold { a.eq_ignore_ascii_case(b) } else { a == b }
}

impl Table {
    fn hash(&self, key: &[u8], fold: bool) -> u64 {
        folded(key, fold, |key| self.hasher.hash_one(key))
    }
}

impl Prefixes {
    /// Returns the hash extended by one byte: the product of two words folded onto itself, with a secret in each step.
    #[inline]
    fn step(&self, hash: u64, byte: u8, fold: bool) -> u64 {
        let byte = if fold { byte.to_ascii_lowercase() } else { byte };
        let product = u128::from(hash ^ u64::from(byte)) * u128::from(self.seed | 1);
        (product as u64) ^ ((product >> 64) as u64) ^ self.seed.rotate_left(17)
    }

    fn hash(&self, key: &[u8], fold: bool) -> u64 {
        key.iter().fold(self.seed, |hash, byte| self.step(hash, *byte, fold))
    }
}

impl Index {
    pub(super) fn new(method: Method, fold: bool) -> Index {
        let shape = match method {
            Method::Str => Shape::Text(Table::default()),
            Method::Beg => Shape::Prefix(Prefixes {
                slots: HashTable::new(),
                seed: RandomState::default().hash_one(0x5EED_u64),
                lengths: Vec::new(),
            }),
            Method::Int | Method::Len => Shape::Numbers { exact: HashMap::default(), ranges: Vec::new() },
            Method::Ip => Shape::Networks { v4: Vec::new(), v6: Vec::new() },
            Method::End | Method::Sub | Method::Dir | Method::Dom => Shape::List(Vec::new()),
            Method::Bin => Shape::Binary(HashMap::default()),
            Method::Reg => Shape::Regular(Vec::new()),
        };
        Index { method, fold, hidden: 0, shape }
    }

    /// Reserves room for this many entries, so that a file is loaded without growing and rehashing.
    pub(super) fn reserve(&mut self, content: &Content) {
        let (fold, more) = (self.fold, content.len());
        match &mut self.shape {
            Shape::Text(table) => {
                let hasher = |id: &EntryId| folded(content.key(*id), fold, |key| table.hasher.hash_one(key));
                table.slots.reserve(more, hasher);
            }
            Shape::Prefix(prefixes) => {
                let mut slots = std::mem::take(&mut prefixes.slots);
                slots.reserve(more, |id| prefixes.hash(content.key(*id), fold));
                prefixes.slots = slots;
            }
            Shape::List(list) => list.reserve_exact(more),
            Shape::Regular(list) => list.reserve_exact(more),
            // How their entries spread over the tables is not known before.
            Shape::Numbers { .. } | Shape::Networks { .. } | Shape::Binary(_) => {}
        }
    }

    /// Parses a key, or returns why it is not a pattern of this method. `grouped`: the groups of an expression have
    /// numbers.
    pub(super) fn parse(&self, key: &[u8], grouped: bool) -> Result<Parsed, String> {
        let text = || String::from_utf8_lossy(key);
        Ok(match self.method {
            Method::Str | Method::Beg | Method::End | Method::Sub | Method::Dir | Method::Dom => Parsed::Plain,
            Method::Int | Method::Len => {
                let (low, high) = range(&text())?;
                Parsed::Range(low, high)
            }
            Method::Ip => {
                let (ip, length) =
                    network(&text()).ok_or_else(|| format!("'{}' is not a valid IPv4 or IPv6 address", text()))?;
                Parsed::Network(ip, length)
            }
            Method::Bin => Parsed::Binary(
                hexadecimal(key).ok_or_else(|| format!("'{}' is not hexadecimal", text()))?.into_boxed_slice(),
            ),
            Method::Reg => {
                let compile = if grouped { Regex::new } else { Regex::without_groups };
                Parsed::Regular(Box::new(compile(key, self.fold).map_err(|error| error.to_string())?))
            }
        })
    }

    /// Adds an entry, which is the file's last.
    pub(super) fn insert(&mut self, content: &Content, id: EntryId, parsed: Parsed) {
        let fold = self.fold;
        let key = content.key(id);
        let hidden = match (&mut self.shape, parsed) {
            (Shape::Text(table), _) => {
                let hash = table.hash(key, fold);
                let known = table.slots.find(hash, |other| equal(content.key(*other), key, fold)).is_some();
                if !known {
                    let hasher = |other: &EntryId| folded(content.key(*other), fold, |key| table.hasher.hash_one(key));
                    table.slots.insert_unique(hash, id, hasher);
                }
                known
            }
            (Shape::Prefix(prefixes), _) => {
                let hash = prefixes.hash(key, fold);
                let known = prefixes.slots.find(hash, |other| equal(content.key(*other), key, fold)).is_some();
                if !known {
                    let mut slots = std::mem::take(&mut prefixes.slots);
                    slots.insert_unique(hash, id, |other| prefixes.hash(content.key(*other), fold));
                    prefixes.slots = slots;
                    let length = key.len() as u32;
                    match prefixes.lengths.binary_search_by_key(&length, |(length, _)| *length) {
                        Ok(at) => prefixes.lengths[at].1 += 1,
                        Err(at) => prefixes.lengths.insert(at, (length, 1)),
                    }
                }
                known
            }
            (Shape::Numbers { exact, ranges }, Parsed::Range(low, high)) => {
                if low == high {
                    let before = exact.len();
                    exact.entry(low).or_insert(id);
                    exact.len() == before
                } else {
                    ranges.push((low, high, id));
                    false
                }
            }
            (Shape::Networks { v4, .. }, Parsed::Network(IpAddr::V4(ip), length)) => {
                hides(by_length(v4, length), u32::from(ip) & mask_v4(length), id)
            }
            (Shape::Networks { v6, .. }, Parsed::Network(IpAddr::V6(ip), length)) => {
                hides(by_length(v6, length), u128::from(ip) & mask_v6(length), id)
            }
            (Shape::List(list), _) => {
                list.push((id, fold.then(|| key.to_ascii_lowercase().into_boxed_slice())));
                false
            }
            (Shape::Binary(map), Parsed::Binary(bytes)) => {
                let before = map.len();
                map.entry(bytes).or_insert(id);
                map.len() == before
            }
            (Shape::Regular(list), Parsed::Regular(regex)) => {
                list.push((*regex, id));
                false
            }
            _ => {
                debug_assert!(false, "a key that another method parsed");
                false
            }
        };
        self.hidden += usize::from(hidden);
    }

    /// Forgets an entry whose key `content` still has; `false`: the index must be rebuilt, because an entry with the
    /// same key may have to take its place.
    #[must_use]
    pub(super) fn remove(&mut self, content: &Content, id: EntryId) -> bool {
        if self.hidden > 0 {
            return false;
        }
        let fold = self.fold;
        let key = content.key(id);
        let parsed = match self.method {
            Method::Int | Method::Len | Method::Ip | Method::Bin => self.parse(key, false).ok(),
            _ => None,
        };
        match (&mut self.shape, parsed) {
            (Shape::Text(table), _) => {
                let hash = table.hash(key, fold);
                if let Ok(slot) = table.slots.find_entry(hash, |other| *other == id) {
                    slot.remove();
                }
            }
            (Shape::Prefix(prefixes), _) => {
                let hash = prefixes.hash(key, fold);
                if let Ok(slot) = prefixes.slots.find_entry(hash, |other| *other == id) {
                    slot.remove();
                    let length = key.len() as u32;
                    if let Ok(at) = prefixes.lengths.binary_search_by_key(&length, |(length, _)| *length) {
                        prefixes.lengths[at].1 -= 1;
                        if prefixes.lengths[at].1 == 0 {
                            prefixes.lengths.remove(at);
                        }
                    }
                }
            }
            (Shape::Numbers { exact, ranges }, Some(Parsed::Range(low, high))) => {
                if low == high {
                    exact.remove(&low);
                } else {
                    ranges.retain(|(_, _, other)| *other != id);
                }
            }
            (Shape::Networks { v4, .. }, Some(Parsed::Network(IpAddr::V4(ip), length))) => {
                by_length(v4, length).remove(&(u32::from(ip) & mask_v4(length)));
                v4.retain(|(_, map)| !map.is_empty());
            }
            (Shape::Networks { v6, .. }, Some(Parsed::Network(IpAddr::V6(ip), length))) => {
                by_length(v6, length).remove(&(u128::from(ip) & mask_v6(length)));
                v6.retain(|(_, map)| !map.is_empty());
            }
            (Shape::List(list), _) => list.retain(|(other, _)| *other != id),
            (Shape::Binary(map), Some(Parsed::Binary(bytes))) => _ = map.remove(&bytes),
            (Shape::Regular(list), _) => list.retain(|(_, other)| *other != id),
            _ => return false,
        }
        true
    }

    /// Returns the entry whose key is the text itself, for an index of method str.
    pub(super) fn exact(&self, content: &Content, key: &[u8]) -> Option<EntryId> {
        let Shape::Text(table) = &self.shape else { return None };
        let hash = table.hash(key, self.fold);
        table.slots.find(hash, |id| equal(content.key(*id), key, self.fold)).copied()
    }

    /// Returns the entry that matches; groups are filled for regular expressions if asked for.
    pub(super) fn find(&self, content: &Content, key: Key<'_>, captures: Option<&mut Captures>) -> Option<EntryId> {
        match (&self.shape, key) {
            (Shape::Text(_), Key::Bytes(text)) => self.exact(content, text),
            (Shape::Prefix(prefixes), Key::Bytes(text)) => prefixes.longest(content, text, self.fold),
            (Shape::Numbers { exact, ranges }, Key::Int(number)) => {
                let single = exact.get(&number).copied();
                let inside = ranges
                    .iter()
                    .take_while(|(_, _, id)| single.is_none_or(|single| *id < single))
                    .find(|(low, high, _)| (*low..=*high).contains(&number));
                inside.map(|(_, _, id)| *id).or(single)
            }
            (Shape::Numbers { .. }, Key::Bytes(text)) => self.find(content, Key::Int(text.len() as i64), None),
            (Shape::Networks { v4, v6 }, Key::Ip(ip)) => {
                let in_v4 = |ip: u32| v4.iter().find_map(|(length, map)| map.get(&(ip & mask_v4(*length))).copied());
                let in_v6 = |ip: u128| v6.iter().find_map(|(length, map)| map.get(&(ip & mask_v6(*length))).copied());
                match ip {
                    IpAddr::V4(ip) => in_v4(u32::from(ip)).or_else(|| in_v6(u128::from(ip.to_ipv6_mapped()))),
                    IpAddr::V6(ip) => in_v6(u128::from(ip)).or_else(|| in_v4(u32::from(embedded_ipv4(ip)?))),
                }
            }
            (Shape::List(list), Key::Bytes(text)) => folded(text, self.fold, |text| {
                let found = list.iter().find(|(id, lower)| {
                    let pattern = lower.as_deref().unwrap_or_else(|| content.key(*id));
                    match self.method {
                        Method::Sub => memmem::find(text, pattern).is_some(),
                        Method::End => text.ends_with(pattern),
                        Method::Dir => has_component(text, pattern, DIRECTORY),
                        _ => has_component(text, pattern, DOMAIN),
                    }
                });
                found.map(|(id, _)| *id)
            }),
            (Shape::Binary(map), Key::Bytes(bytes)) => map.get(bytes).copied(),
            (Shape::Regular(list), Key::Bytes(text)) => match captures {
                Some(captures) => list.iter().find(|(regex, _)| regex.captures(text, captures)).map(|(_, id)| *id),
                None => list.iter().find(|(regex, _)| regex.is_match(text)).map(|(_, id)| *id),
            },
            _ => None,
        }
    }

    /// Returns the first pattern that needs backtracking, as [`Regex::notice`] says it.
    pub(super) fn notice(&self) -> Option<String> {
        match &self.shape {
            Shape::Regular(list) => list.iter().find_map(|(regex, _)| regex.notice()),
            _ => None,
        }
    }

    /// Returns the bytes on the heap, without those of regular expressions.
    pub(super) fn heap_bytes(&self) -> usize {
        const ID: usize = size_of::<EntryId>();
        match &self.shape {
            Shape::Text(table) => table.slots.capacity() * 8 / 7 * (ID + 1),
            Shape::Prefix(prefixes) => prefixes.slots.capacity() * 8 / 7 * (ID + 1),
            Shape::Numbers { exact, ranges } => exact.capacity() * 8 / 7 * 17 + ranges.capacity() * 24,
            Shape::Networks { v4, v6 } => {
                v4.iter().map(|(_, map)| map.capacity() * 8 / 7 * 9).sum::<usize>()
                    + v6.iter().map(|(_, map)| map.capacity() * 8 / 7 * 33).sum::<usize>()
            }
            Shape::List(list) => list.capacity() * size_of::<(EntryId, Option<Box<[u8]>>)>(),
            Shape::Binary(map) => map.capacity() * 8 / 7 * 25,
            Shape::Regular(list) => list.capacity() * size_of::<(Regex, EntryId)>(),
        }
    }
}

impl Prefixes {
    /// Returns the longest key that the text begins with: hashes of all prefixes in one pass, then probes from the
    /// longest.
    fn longest(&self, content: &Content, text: &[u8], fold: bool) -> Option<EntryId> {
        const INLINE: usize = 64;
        let longest = text.len() as u32;
        let lengths = &self.lengths[..self.lengths.partition_point(|(length, _)| *length <= longest)];
        let mut inline = [0u64; INLINE];
        let mut heap = Vec::new();
        let hashes = if lengths.len() <= INLINE {
            &mut inline[..lengths.len()]
        } else {
            heap.resize(lengths.len(), 0);
            &mut heap[..]
        };
        let (mut hash, mut at) = (self.seed, 0);
        for ((length, _), slot) in lengths.iter().zip(hashes.iter_mut()) {
            for byte in &text[at..*length as usize] {
                hash = self.step(hash, *byte, fold);
            }
            at = *length as usize;
            *slot = hash;
        }
        lengths.iter().zip(hashes.iter()).rev().find_map(|((length, _), hash)| {
            let prefix = &text[..*length as usize];
            self.slots.find(*hash, |id| equal(content.key(*id), prefix, fold)).copied()
        })
    }
}

/// Returns the table of a prefix length, longest first.
fn by_length<K>(
    tables: &mut Vec<(u8, HashMap<K, EntryId, RandomState>)>,
    length: u8,
) -> &mut HashMap<K, EntryId, RandomState> {
    let at = tables.binary_search_by(|(other, _)| length.cmp(other));
    let at = at.unwrap_or_else(|at| {
        tables.insert(at, (length, HashMap::default()));
        at
    });
    &mut tables[at].1
}

/// Inserts an entry unless an earlier one has the key; returns whether one had.
fn hides<K: std::hash::Hash + Eq>(map: &mut HashMap<K, EntryId, RandomState>, key: K, id: EntryId) -> bool {
    let before = map.len();
    map.entry(key).or_insert(id);
    map.len() == before
}

/// `N`, `LOW:HIGH`, `LOW:` or `:HIGH`; old files have `-` in place of `:`.
fn range(text: &str) -> Result<(i64, i64), String> {
    let bad = || format!("'{text}' is neither a number nor a range");
    let number = |text: &str| text.parse::<i64>().map_err(|_| bad());
    let dashed = || if text.parse::<i64>().is_ok() { None } else { text.split_once('-') };
    let Some((low, high)) = text.split_once(':').or_else(dashed) else {
        return number(text).map(|number| (number, number));
    };
    let low = if low.is_empty() { i64::MIN } else { number(low)? };
    let high = if high.is_empty() { i64::MAX } else { number(high)? };
    if low <= high { Ok((low, high)) } else { Err(format!("the range '{text}' is empty")) }
}
