//! Sorted sets: members with their scores, in order of score and then of bytes.
//!
//! A small sorted set is a block of members and scores, in order; beyond the limits of `zset-max-listpack-*` it is a
//! [`Table`] that finds an element by its member, and a [`RankTree`] with the same elements in order. An element is one
//! block with member and score, owned by the table; the tree has pointers. So a member of 13 bytes costs its block of
//! 23, 10 to 19 bytes of the table, and 8 to 16 of the tree, which is two thirds of Redis's memory.
//!
//! Range queries first determine ranks, at the cost of one or two descents, and so LIMIT costs nothing.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::LazyLock;

use super::cell::Cell;
use super::limits::Limits;
use super::packed::{At, Element, integer};
use super::rank_tree::{RankTree, score_of};
use super::{Kind, Packed, kind_of, score};
use crate::rdb::encode::{self, Form, Out};
use crate::table::{Item, KeyHasher, Table};

const PACKED: u8 = 0;
const MEMBERS: u8 = 1;

/// The hasher of all large values, seeded once.
static HASHER: LazyLock<KeyHasher> = LazyLock::new(KeyHasher::default);

/// A member of a large sorted set with its score.
#[derive(Debug)]
#[repr(transparent)]
struct Member(Cell);

impl Item for Member {
    #[inline]
    fn key(&self) -> &[u8] {
        self.0.key()
    }
}

/// The members of a large sorted set.
pub struct Members {
    table: Table<Member>,
    /// The elements of `table`, in order: both have the same elements.
    tree: RankTree,
    /// The bytes of the cells.
    bytes: usize,
}

impl Members {
    #[inline]
    fn new() -> Members {
        Members { table: Table::new(HASHER.clone(), 0), tree: RankTree::new(), bytes: 0 }
    }

    #[inline]
    fn get(&self, member: &[u8]) -> Option<f64> {
        self.table.find(HASHER.hash(member), member).map(|slot| score_of(&self.table.entry(slot).0))
    }

    fn set(&mut self, member: &[u8], score: f64) -> Option<f64> {
        let hash = HASHER.hash(member);
        let Some(slot) = self.table.find(hash, member) else {
            let cell = Cell::new(member, None, Some(score.to_bits()));
            self.bytes += cell.bytes();
            let alias = cell.alias();
            self.table.insert(hash, Member(cell));
            // SAFETY: an element leaves the tree before the table frees it or its score changes.
            unsafe { self.tree.insert(alias) };
            return None;
        };
        let cell = &mut self.table.entry_mut(slot).0;
        let old = score_of(cell);
        if score == old {
            return Some(old);
        }
        let rank = self.tree.rank(old, member);
        if self.tree.keeps_place(rank, score) {
            cell.set_word(score.to_bits());
            return Some(old);
        }
        let alias = self.tree.remove(rank);
        cell.set_word(score.to_bits());
        // SAFETY: as above.
        unsafe { self.tree.insert(alias) };
        Some(old)
    }

    #[inline]
    fn remove(&mut self, member: &[u8]) -> Option<f64> {
        let slot = self.table.find(HASHER.hash(member), member)?;
        let score = score_of(&self.table.entry(slot).0);
        self.tree.remove(self.tree.rank(score, member));
        self.bytes -= self.table.remove(slot).0.bytes();
        Some(score)
    }

    #[inline]
    fn remove_range(&mut self, ranks: Range<usize>) {
        for rank in ranks.rev() {
            let cell = self.tree.get(rank);
            let hash = HASHER.hash(cell.key());
            let slot = self.table.find(hash, cell.key()).expect("the table has what the tree has");
            self.tree.remove(rank);
            self.bytes -= self.table.remove(slot).0.bytes();
        }
    }
}

impl Drop for Members {
    #[inline]
    fn drop(&mut self) {
        self.table.clear(drop);
    }
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} members", self.table.len())
    }
}

/// A sorted set.
#[derive(Debug)]
pub enum Zset {
    /// A small sorted set: member, score, member, score… in order.
    Packed(Packed),
    /// A large sorted set.
    Members(Box<Members>),
}

/// An end of a range of members of equal scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LexBound<'a> {
    /// `-`
    Lowest,
    /// `+`
    Highest,
    /// `[member`
    With(&'a [u8]),
    /// `(member`
    Without(&'a [u8]),
}

impl LexBound<'_> {
    /// Returns whether a member is above this lower end.
    #[inline]
    fn is_below(&self, member: &[u8]) -> bool {
        match self {
            LexBound::Lowest => true,
            LexBound::Highest => false,
            LexBound::With(bound) => member >= *bound,
            LexBound::Without(bound) => member > *bound,
        }
    }

    /// Returns whether a member is below this upper end.
    #[inline]
    fn is_above(&self, member: &[u8]) -> bool {
        match self {
            LexBound::Lowest => false,
            LexBound::Highest => true,
            LexBound::With(bound) => member <= *bound,
            LexBound::Without(bound) => member < *bound,
        }
    }

    /// Returns whether no member can be between the two.
    #[inline]
    pub fn excludes_all(min: &LexBound<'_>, max: &LexBound<'_>) -> bool {
        match (min, max) {
            (LexBound::Highest, _) | (_, LexBound::Lowest) => true,
            (LexBound::Lowest, _) | (_, LexBound::Highest) => false,
            (LexBound::With(min), LexBound::With(max)) => min > max,
            (LexBound::With(min) | LexBound::Without(min), LexBound::With(max) | LexBound::Without(max)) => min >= max,
        }
    }
}

/// Returns the score that an element of a block represents.
#[inline]
fn score_in(element: Element<'_>) -> f64 {
    match element {
        Element::Int(value) => value as f64,
        Element::Bytes(bytes) => score::parse(bytes).unwrap_or(0.0),
    }
}

/// Returns the place of the score that follows a member.
#[inline]
fn after(packed: &Packed, at: At) -> At {
    packed.next(at).expect("a member is followed by its score")
}

/// Returns the members and scores of a block with their places, in order.
#[inline]
fn pairs(packed: &Packed) -> impl Iterator<Item = (At, Element<'_>, f64)> {
    packed.places().step_by(2).map(|at| (at, packed.get(at), score_in(packed.get(after(packed, at)))))
}

/// Inserts a member that does not exist into a block.
#[inline]
fn put(packed: &mut Packed, member: &[u8], score: f64) {
    let place = pairs(packed).find(|(_, other, other_score)| {
        *other_score > score || *other_score == score && other.text(&mut itoa::Buffer::new()) > member
    });
    let at = place.map(|(at, ..)| at);
    packed.insert(at, &[member, &score::stored(score)]);
}

impl Zset {
    /// Returns an empty sorted set in the form suitable for this many members of at most this many bytes.
    #[inline]
    pub fn for_members(count: usize, longest: usize, limits: &Limits) -> Zset {
        if limits.zset_entries.allows(count) && limits.zset_value.allows(longest) {
            Zset::empty()
        } else {
            Zset::Members(Box::new(Members::new()))
        }
    }

    /// Returns whether the sorted set is one block.
    #[inline]
    pub fn is_small(&self) -> bool {
        matches!(self, Zset::Packed(_))
    }

    /// Returns the score of a member.
    #[inline]
    pub fn get(&self, member: &[u8]) -> Option<f64> {
        match self {
            Zset::Packed(packed) => packed.find(member, 2).map(|at| score_in(packed.get(after(packed, at)))),
            Zset::Members(members) => members.get(member),
        }
    }

    /// Prepares for adding this many members: if a small form may not have as many, it becomes a large one immediately,
    /// as in Redis, which assumes that they are distinct.
    #[inline]
    pub fn expect(&mut self, count: usize, limits: &Limits) {
        if self.is_small() && !limits.zset_entries.allows(count) {
            self.grow();
        }
    }

    /// Sets the score of a member, which is not NaN; adds the member if it does not exist. Returns its previous score.
    pub fn set(&mut self, member: &[u8], score: f64, limits: &Limits) -> Option<f64> {
        debug_assert!(!score.is_nan());
        if let Zset::Packed(packed) = self {
            if let Some(at) = packed.find(member, 2) {
                let old = score_in(packed.get(after(packed, at)));
                if old != score {
                    packed.remove(at, 2);
                    put(packed, member, score);
                }
                return Some(old);
            }
            if limits.zset_entries.allows(packed.len() / 2 + 1) && limits.zset_value.allows(member.len()) {
                put(packed, member, score);
                return None;
            }
            self.grow();
        }
        match self {
            Zset::Members(members) => members.set(member, score),
            Zset::Packed(_) => unreachable!("it has just grown"),
        }
    }

    /// Converts the sorted set to its large form.
    fn grow(&mut self) {
        let mut members = Members::new();
        self.each(0..self.len(), |member, score| {
            members.set(member, score);
        });
        *self = Zset::Members(Box::new(members));
    }

    /// Removes a member. Returns its score, if it existed.
    #[inline]
    pub fn remove(&mut self, member: &[u8]) -> Option<f64> {
        match self {
            Zset::Packed(packed) => {
                let at = packed.find(member, 2)?;
                let score = score_in(packed.get(after(packed, at)));
                packed.remove(at, 2);
                Some(score)
            }
            Zset::Members(members) => members.remove(member),
        }
    }

    /// Removes the members of these ranks, which must exist.
    #[inline]
    pub fn remove_range(&mut self, ranks: Range<usize>) {
        match self {
            _ if ranks.is_empty() => {}
            Zset::Packed(packed) => {
                if let Some(at) = packed.seek(2 * ranks.start as i64) {
                    packed.remove(at, 2 * ranks.len());
                }
            }
            Zset::Members(members) => members.remove_range(ranks),
        }
    }

    /// Returns a member's rank and score.
    pub fn rank(&self, member: &[u8]) -> Option<(usize, f64)> {
        match self {
            Zset::Packed(packed) => {
                let value = integer(member);
                let mut ranked = pairs(packed).enumerate();
                ranked.find(|(_, (_, other, _))| other.is(member, value)).map(|(rank, (_, _, score))| (rank, score))
            }
            Zset::Members(members) => {
                let score = members.get(member)?;
                Some((members.tree.rank(score, member), score))
            }
        }
    }

    /// Returns the number of members at the start whose scores are `before` something: true up to some score, and false
    /// from there on.
    pub fn position(&self, before: impl Fn(f64) -> bool) -> usize {
        match self {
            Zset::Packed(packed) => pairs(packed).take_while(|(_, _, score)| before(*score)).count(),
            Zset::Members(members) => members.tree.position(|score, _| before(score)),
        }
    }

    /// Returns the ranks of the members between two ends, if all scores are equal. If they are not, the result for a
    /// small set is that of Redis: from the first member above the lower end on, as long as members are below the upper
    /// one; or, `back`wards, from the last member below the upper end.
    pub fn lex_range(&self, min: &LexBound<'_>, max: &LexBound<'_>, back: bool) -> Range<usize> {
        if LexBound::excludes_all(min, max) {
            return 0..0;
        }
        let range = match self {
            Zset::Packed(packed) => {
                let mut digits = itoa::Buffer::new();
                let len = packed.len() / 2;
                let mut is = |at: At, bound: &LexBound<'_>, lower: bool| {
                    let member = packed.get(at).text(&mut digits);
                    if lower { bound.is_below(member) } else { bound.is_above(member) }
                };
                let (Some(first), Some(last)) = (packed.first(), packed.seek(-2)) else { return 0..0 };
                if !is(last, min, true) || !is(first, max, false) {
                    return 0..0;
                }
                if back {
                    let places = || packed.places_back().skip(1).step_by(2);
                    let skipped = places().take_while(|at| !is(*at, max, false)).count();
                    let found = places().skip(skipped).take_while(|at| is(*at, min, true)).count();
                    len - skipped - found..len - skipped
                } else {
                    let places = || packed.places().step_by(2);
                    let skipped = places().take_while(|at| !is(*at, min, true)).count();
                    let found = places().skip(skipped).take_while(|at| is(*at, max, false)).count();
                    skipped..skipped + found
                }
            }
            Zset::Members(members) => {
                let start = members.tree.position(|_, cell| !min.is_below(cell.key()));
                start..members.tree.position(|_, cell| max.is_above(cell.key()))
            }
        };
        range.start..range.end.max(range.start)
    }

    /// Visits the members of these ranks, which must exist, in order.
    pub fn each(&self, ranks: Range<usize>, mut visit: impl FnMut(&[u8], f64)) {
        match self {
            _ if ranks.is_empty() => {}
            Zset::Packed(packed) => {
                let mut next = packed.seek(2 * ranks.start as i64);
                for _ in ranks {
                    let Some(at) = next else { break };
                    let score = after(packed, at);
                    visit(packed.get(at).text(&mut itoa::Buffer::new()), score_in(packed.get(score)));
                    next = packed.next(score);
                }
            }
            Zset::Members(members) => members.tree.each(ranks, |cell| visit(cell.key(), score_of(cell))),
        }
    }

    /// Like [`each`](Self::each), from the last to the first.
    pub fn each_back(&self, ranks: Range<usize>, mut visit: impl FnMut(&[u8], f64)) {
        match self {
            _ if ranks.is_empty() => {}
            Zset::Packed(packed) => {
                let mut next = packed.seek(2 * ranks.end as i64 - 2);
                for _ in ranks {
                    let Some(at) = next else { break };
                    let score = score_in(packed.get(after(packed, at)));
                    visit(packed.get(at).text(&mut itoa::Buffer::new()), score);
                    next = packed.previous(at).and_then(|score| packed.previous(score));
                }
            }
            Zset::Members(members) => members.tree.each_back(ranks, |cell| visit(cell.key(), score_of(cell))),
        }
    }

    /// Visits all members in order.
    pub fn all(&self, visit: impl FnMut(&[u8], f64)) {
        self.each(0..self.len(), visit);
    }

    /// Visits about `count` members from `cursor` on, in no particular order, and returns the next cursor; [`None`] at
    /// the end. A member that exists from the first call to the last is visited. A small set is visited at once.
    pub fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(&[u8], f64)) -> Option<u64> {
        let Zset::Members(members) = self else {
            self.all(visit);
            return None;
        };
        let (mut cursor, mut count) = (cursor, count);
        while count > 0 {
            cursor = members.table.scan(cursor, &mut count, |member| visit(member.key(), score_of(&member.0)))?;
        }
        Some(cursor)
    }

    /// Returns the sorted set of an RDB listpack; [`None`] if a member has no score or occurs twice.
    pub fn of_listpack(bytes: &[u8], limits: &Limits) -> Option<Zset> {
        let packed = Packed::parse(bytes)?;
        if packed.is_empty() || !packed.len().is_multiple_of(2) {
            return None;
        }
        let mut zset = Zset::empty();
        let mut elements = packed.iter();
        while let (Some(member), Some(score)) = (elements.next(), elements.next()) {
            let score = score::parse(score.text(&mut itoa::Buffer::new()))?;
            if zset.set(member.text(&mut itoa::Buffer::new()), score, limits).is_some() {
                return None;
            }
        }
        Some(zset)
    }
}

impl Kind for Zset {
    const TAG: u8 = 3;
    const NAME: &'static str = "zset";

    #[inline]
    fn empty() -> Zset {
        Zset::Packed(Packed::new())
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Zset::Packed(packed) => packed.len() / 2,
            Zset::Members(members) => members.table.len(),
        }
    }

    #[inline]
    fn bytes(&self) -> usize {
        match self {
            Zset::Packed(packed) => packed.bytes(),
            Zset::Members(members) => {
                size_of::<Members>() + members.table.bytes() + members.tree.bytes() + members.bytes
            }
        }
    }

    fn encoding(&self) -> &'static str {
        match self {
            Zset::Packed(_) => "listpack",
            Zset::Members(_) => "skiplist",
        }
    }

    fn copy(&self) -> Zset {
        match self {
            Zset::Packed(packed) => Zset::Packed(packed.clone()),
            Zset::Members(_) => {
                let mut members = Members::new();
                self.all(|member, score| {
                    members.set(member, score);
                });
                Zset::Members(Box::new(members))
            }
        }
    }

    fn dump(&self, form: Form, out: &mut Out<'_>) {
        match self {
            Zset::Packed(packed) => {
                out.push(encode::TYPE_ZSET_LISTPACK);
                form.put_string(packed.as_bytes(), out);
            }
            Zset::Members(_) => {
                out.push(encode::TYPE_ZSET_2);
                encode::put_len(self.len(), out);
                // From the last member to the first, as in Redis.
                self.each_back(0..self.len(), |member, score| {
                    form.put_string(member, out);
                    out.extend(score.to_bits().to_le_bytes());
                    out.end_part();
                });
            }
        }
    }

    #[inline]
    fn into_raw(self) -> (u8, NonNull<u8>) {
        match self {
            Zset::Packed(packed) => (PACKED, packed.into_raw()),
            Zset::Members(members) => (MEMBERS, NonNull::from(Box::leak(members)).cast()),
        }
    }

    #[inline]
    unsafe fn from_raw(form: u8, start: NonNull<u8>) -> Zset {
        // SAFETY: passed on; the form says what it was.
        unsafe {
            match form {
                PACKED => Zset::Packed(Packed::from_raw(start)),
                _ => Zset::Members(Box::from_raw(start.cast().as_ptr())),
            }
        }
    }

    kind_of!(Zset);
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % limit
        }

        fn score(&mut self) -> f64 {
            match self.below(8) {
                0 => [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1e300, 5e-324, -2.5][self.below(7) as usize],
                1 => self.below(1 << 31) as f64 / 7.0,
                _ => self.below(300) as f64 - 100.0,
            }
        }
    }

    /// A score and a member in order.
    #[derive(Clone, Debug, PartialEq)]
    struct Ranked(f64, Vec<u8>);

    impl Eq for Ranked {}

    impl PartialOrd for Ranked {
        fn partial_cmp(&self, other: &Ranked) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for Ranked {
        fn cmp(&self, other: &Ranked) -> std::cmp::Ordering {
            self.0.partial_cmp(&other.0).expect("no NaN").then_with(|| self.1.cmp(&other.1))
        }
    }

    #[derive(Default)]
    struct Model {
        scores: BTreeMap<Vec<u8>, f64>,
        ranked: BTreeSet<Ranked>,
    }

    impl Model {
        fn set(&mut self, member: &[u8], score: f64) -> Option<f64> {
            let old = self.scores.get(member).copied();
            if old != Some(score) {
                self.remove(member);
                self.scores.insert(member.to_vec(), score);
                self.ranked.insert(Ranked(score, member.to_vec()));
            }
            old
        }

        fn remove(&mut self, member: &[u8]) -> Option<f64> {
            let score = self.scores.remove(member)?;
            self.ranked.remove(&Ranked(score, member.to_vec()));
            Some(score)
        }
    }

    fn contents(zset: &Zset) -> Vec<Ranked> {
        let mut all = Vec::new();
        zset.all(|member, score| all.push(Ranked(score, member.to_vec())));
        all
    }

    fn check(zset: &Zset, model: &Model, random: &mut Random) {
        let all: Vec<Ranked> = model.ranked.iter().cloned().collect();
        assert_eq!(contents(zset), all);
        assert_eq!(zset.len(), all.len());
        let mut back = Vec::new();
        let ranks = {
            let (a, b) = (random.below(all.len() as u64 + 1) as usize, random.below(all.len() as u64 + 1) as usize);
            a.min(b)..a.max(b)
        };
        zset.each_back(ranks.clone(), |member, score| back.push(Ranked(score, member.to_vec())));
        back.reverse();
        assert_eq!(back, all[ranks]);
        for (rank, Ranked(score, member)) in all.iter().enumerate().step_by(7) {
            assert_eq!(zset.rank(member), Some((rank, *score)));
            assert_eq!(zset.position(|other| other < *score), all.iter().filter(|other| other.0 < *score).count());
        }
        let mut scanned = BTreeSet::new();
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            cursor = zset.scan(from, 10, |member, score| {
                scanned.insert(Ranked(score, member.to_vec()));
            });
        }
        assert_eq!(scanned, model.ranked);
        if let Zset::Members(members) = zset {
            assert_eq!(members.tree.len(), members.table.len());
            assert_eq!(members.bytes, members.table.entries().map(|member| member.0.bytes()).sum::<usize>());
        }
    }

    fn random_work(seed: u64, members: u64, steps: usize) {
        let mut random = Random(seed);
        let (mut zset, mut model) = (Zset::empty(), Model::default());
        for step in 0..steps {
            let member = match random.below(members) {
                number if number % 3 == 0 => number.to_string().into_bytes(),
                number => format!("member:{number}").into_bytes(),
            };
            match random.below(if step < steps / 2 { 20 } else { 12 }) {
                0 => assert_eq!(zset.remove(&member), model.remove(&member)),
                1 if random.below(40) == 0 => {
                    let len = model.ranked.len() as u64;
                    let start = random.below(len + 1) as usize;
                    let end = start + random.below(len + 1 - start as u64) as usize;
                    zset.remove_range(start..end);
                    let gone: Vec<_> = model.ranked.iter().skip(start).take(end - start).cloned().collect();
                    for Ranked(_, member) in gone {
                        model.remove(&member);
                    }
                }
                _ => {
                    let score = random.score();
                    assert_eq!(zset.set(&member, score, &Limits::new()), model.set(&member, score));
                    assert_eq!(zset.get(&member), Some(score));
                }
            }
            if step % (steps / 40) == 0 {
                check(&zset, &model, &mut random);
            }
        }
        check(&zset, &model, &mut random);
        check(&zset.copy(), &model, &mut random);
        zset.remove_range(0..zset.len());
        assert!(zset.len() == 0 && contents(&zset).is_empty());
    }

    #[test]
    fn a_model_does_the_same_through_growth() {
        random_work(1, 60, 4_000);
        random_work(2, 3_000, 20_000);
        random_work(3, 30_000, 40_000);
    }

    #[test]
    fn members_of_equal_scores_have_ranges() {
        let names: Vec<String> = (0..500).map(|number| format!("{number:03}")).collect();
        for count in [100, 500] {
            let mut zset = Zset::empty();
            for name in &names[..count] {
                zset.set(name.as_bytes(), 0.0, &Limits::new());
            }
            let range = |min, max| zset.lex_range(&min, &max, false);
            assert_eq!(range(LexBound::Lowest, LexBound::Highest), 0..count);
            assert_eq!(range(LexBound::With(b"010"), LexBound::With(b"020")), 10..21);
            assert_eq!(range(LexBound::Without(b"010"), LexBound::Without(b"020")), 11..20);
            assert!(range(LexBound::Without(b"010"), LexBound::Without(b"010")).is_empty());
            assert!(range(LexBound::Highest, LexBound::Lowest).is_empty());
            assert!(range(LexBound::With(b"a"), LexBound::Highest).is_empty());
            assert_eq!(zset.lex_range(&LexBound::With(b"0"), &LexBound::With(b"0100"), true), 0..11);
        }
    }
}
