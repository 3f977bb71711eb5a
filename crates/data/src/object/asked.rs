//! Sets queried for the members of other sets, and members collected into a new set: the building blocks of SINTER,
//! SUNION and SDIFF.
//!
//! A small set is searched linearly, which is fastest for a few queries but not for a hundred: a packed one is then
//! indexed for the duration of the command, and one of integers that is queried in ascending order is scanned once.

use super::elements::Elements;
use super::intset::Intset;
use super::limits::Limits;
use super::packed::{Element, Index, Packed, integer};
use super::set::{Set, fits_intset};
use crate::texts::Texts;

/// The number of queries from which on an index of a packed set costs less than it saves.
const INDEXED_FROM: usize = 8;

/// A set that is queried for members.
pub enum Asked<'s> {
    /// A set of integers that is queried in ascending order, with the index at which the last query ended.
    Ascending(&'s Intset, usize),
    /// A packed set that is queried often.
    Indexed(Box<Index<'s>>),
    /// Any other set.
    Any(&'s Set),
}

impl<'s> Asked<'s> {
    /// Returns a set for about this many queries; `by` is the set whose members are queried in its order, if there is
    /// only one.
    #[inline]
    pub fn new(set: &'s Set, times: usize, by: Option<&Set>) -> Asked<'s> {
        match (set, by) {
            (Set::Ints(ints), Some(Set::Ints(_))) => Asked::Ascending(ints, 0),
            (Set::Packed(packed), _) if times >= INDEXED_FROM => Asked::Indexed(Box::new(packed.index())),
            _ => Asked::Any(set),
        }
    }

    /// Returns whether the set has this member.
    #[inline]
    pub fn has(&mut self, member: Element<'_>, now_ms: i64) -> bool {
        match (self, member) {
            (Asked::Ascending(ints, place), Element::Int(value)) => {
                *place = ints.seek(*place, value);
                *place < ints.len() && ints.get(*place) == value
            }
            (Asked::Ascending(ints, _), Element::Bytes(bytes)) => {
                integer(bytes).is_some_and(|value| ints.contains(value))
            }
            (Asked::Indexed(index), member) => index.has(member),
            (Asked::Any(set), member) => set.has(member, now_ms),
        }
    }
}

/// Distinct members that may become a set: integers as long as all of them are, which arrive in ascending order then.
#[derive(Debug)]
pub struct Gathered<'l> {
    limits: &'l Limits,
    ints: Vec<i64>,
    texts: Texts,
    /// The bytes of the longest text.
    longest: usize,
    /// Whether more integers than an [`Intset`] allows form a packed set.
    is_packed: bool,
    /// Whether there were more integers than an [`Intset`] allows, so that the set is a large one.
    is_large: bool,
}

impl<'l> Gathered<'l> {
    /// Returns an empty collection, which will become a set within these limits.
    #[inline]
    pub fn new(limits: &'l Limits) -> Gathered<'l> {
        let (ints, texts) = (Vec::new(), Texts::default());
        Gathered { limits, ints, texts, longest: 0, is_packed: false, is_large: false }
    }

    /// Returns a collection for an intersection, which in Redis begins as a packed set unless the smallest set is one
    /// of integers.
    #[inline]
    pub fn of_intersection(smallest: Option<&Set>, limits: &'l Limits) -> Gathered<'l> {
        Gathered { is_packed: !matches!(smallest, Some(Set::Ints(_))), ..Gathered::new(limits) }
    }

    /// Adds a member that is not among them.
    pub fn push(&mut self, member: Element<'_>) {
        if self.texts.len() == 0 {
            let value = match member {
                Element::Int(value) => Some(value),
                Element::Bytes(bytes) => integer(bytes),
            };
            if let Some(value) = value {
                return self.ints.push(value);
            }
            self.is_large = !self.is_packed && !self.ints.is_empty() && !fits_intset(self.ints.len(), self.limits);
            self.order();
            self.write_integers();
        }
        self.push_text(member.text(&mut itoa::Buffer::new()));
    }

    /// Converts the integers to texts.
    #[inline]
    fn write_integers(&mut self) {
        for value in std::mem::take(&mut self.ints) {
            self.push_text(itoa::Buffer::new().format(value).as_bytes());
        }
    }

    #[inline]
    fn push_text(&mut self, text: &[u8]) {
        self.longest = self.longest.max(text.len());
        self.texts.push(text);
    }

    /// Returns the number of members.
    #[inline]
    pub fn len(&self) -> usize {
        self.ints.len() + self.texts.len()
    }

    /// Sorts integers as a small set has them; in a large one, they are in any order in Redis, too.
    #[inline]
    fn order(&mut self) {
        if fits_intset(self.ints.len(), self.limits) {
            self.ints.sort_unstable();
        }
    }

    /// Visits all members.
    pub fn each(mut self, mut visit: impl FnMut(&[u8])) {
        self.order();
        self.ints.iter().for_each(|value| visit(itoa::Buffer::new().format(*value).as_bytes()));
        self.texts.iter().for_each(visit);
    }

    /// Returns the set of these members, in the form that it would have if they had been added one after the other.
    pub fn into_set(mut self) -> Set {
        self.order();
        if self.texts.len() == 0 && fits_intset(self.ints.len(), self.limits) {
            return Set::Ints(Intset::of_ascending(&self.ints));
        }
        if self.is_packed && self.limits.set_entries.allows(self.len()) {
            self.write_integers();
        }
        let is_small = self.ints.is_empty() && !self.is_large;
        if is_small && self.limits.set_entries.allows(self.len()) && self.limits.set_value.allows(self.longest) {
            let mut packed = Packed::new();
            self.texts.iter().for_each(|text| packed.push_back(text));
            return Set::Packed(packed);
        }
        let mut members = Box::<Elements>::default();
        self.each(|member| members.insert_new(member, None, None));
        Set::Members(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Kind;
    use crate::object::elements::TIMELESS;

    fn set_of(members: &[Vec<u8>]) -> Set {
        let mut set = Set::empty();
        members.iter().for_each(|member| {
            set.add(member, TIMELESS, &Limits::new());
        });
        set
    }

    #[test]
    fn gathered_members_become_the_set_that_adding_makes() {
        let number = |n: i64| n.to_string().into_bytes();
        let numbers = |count: i64| (0..count).map(|n| number((n * 7919) % count)).collect::<Vec<_>>();
        let names = |count: i64| (0..count).map(|n| format!("name:{n}").into_bytes()).collect::<Vec<_>>();
        for members in [
            vec![],
            numbers(1),
            numbers(512),
            numbers(513),
            names(128),
            names(129),
            [numbers(100), names(28)].concat(),
            [numbers(100), names(29)].concat(),
            [names(5), vec![vec![b'x'; 64]]].concat(),
            [names(5), vec![vec![b'x'; 65]]].concat(),
            vec![number(i64::MIN), number(3), number(i64::MAX), b"007".to_vec()],
        ] {
            let limits = Limits::new();
            let mut gathered = Gathered::new(&limits);
            members.iter().for_each(|member| gathered.push(Element::Bytes(member)));
            assert_eq!(gathered.len(), members.len());
            let (made, added) = (gathered.into_set(), set_of(&members));
            assert_eq!((made.encoding(), made.len()), (added.encoding(), added.len()));
            assert!(members.iter().all(|member| made.contains(member, TIMELESS)));
            if made.encoding() != "hashtable" {
                let texts = |set: &Set| {
                    let mut texts = Texts::default();
                    set.each(TIMELESS, |member| texts.push(member.text(&mut itoa::Buffer::new())));
                    texts.iter().map(<[u8]>::to_vec).collect::<Vec<_>>()
                };
                assert_eq!(texts(&made), texts(&added));
            }
        }
    }

    /// Only many queries of a packed set build an index, and all kinds of queries give the same answers.
    #[test]
    fn every_way_to_ask_answers_alike() {
        let numbers: Vec<Vec<u8>> = (0..100).map(|n| (3 * n).to_string().into_bytes()).collect();
        let names: Vec<Vec<u8>> = (0..100).map(|n| format!("m:{n}").into_bytes()).collect();
        let mixed = [&numbers[..50], &names[..50]].concat();
        let large = [&numbers[..], &names[..]].concat();
        let sets = [&numbers, &names, &mixed, &large].map(|members| set_of(members));
        for set in &sets {
            for by in &sets {
                for times in [1, INDEXED_FROM] {
                    let mut asked = Asked::new(set, times, Some(by));
                    assert_eq!(
                        matches!(asked, Asked::Indexed(_)),
                        set.encoding() == "listpack" && times == INDEXED_FROM
                    );
                    by.each(TIMELESS, |member| {
                        let expected = set.contains(member.text(&mut itoa::Buffer::new()), TIMELESS);
                        assert_eq!(asked.has(member, TIMELESS), expected, "{member:?}");
                    });
                }
            }
        }
    }
}
