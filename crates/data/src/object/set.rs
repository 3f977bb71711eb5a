//! Sets: members without order.
//!
//! A small set of integers is an [`Intset`], another small set a [`Packed`] block of members, both up to the limits of
//! `set-max-intset-entries` and `set-max-listpack-*`; a larger set is a table of [`Elements`]. It is never converted
//! back, as in Redis. Members that expire (SADDEX) make it a table, too.
//!
//! Reading needs the present time, because an expired member is invisible; [`TIMELESS`] suffices for a set in which
//! nothing expires.

use std::ptr::NonNull;

use smallvec::SmallVec;

use super::elements::{Elements, Expiry, TIMELESS};
use super::intset::{COUNT_MAX, Intset};
use super::limits::Limits;
use super::packed::{At, Element, integer};
use super::{Kind, Packed, kind_of};
use crate::random::{Selection, below};
use crate::rdb::encode::{self, Form, Out};

const INTS: u8 = 0;
const PACKED: u8 = 1;
const MEMBERS: u8 = 2;
/// The form of a large set in which something expires.
pub(super) const TIMED: u8 = 3;

/// A set.
#[derive(Debug)]
pub enum Set {
    /// A small set of integers, ascending.
    Ints(Intset),
    /// Another small set.
    Packed(Packed),
    /// A large set.
    Members(Box<Elements>),
}

/// Returns whether this many integers are stored as an [`Intset`].
#[inline]
pub(super) fn fits_intset(count: usize, limits: &Limits) -> bool {
    limits.set_intset.allows(count) && count < COUNT_MAX
}

impl Set {
    /// Returns an empty set in the form suitable for this many members, `first` being one of them.
    #[inline]
    pub fn for_members(first: &[u8], count: usize, limits: &Limits) -> Set {
        if integer(first).is_some() && fits_intset(count, limits) {
            Set::Ints(Intset::new())
        } else if limits.set_entries.allows(count) {
            Set::Packed(Packed::new())
        } else {
            Set::Members(Box::<Elements>::default())
        }
    }

    /// Prepares for adding this many members: if a small form may not have as many, the set becomes a large one
    /// immediately.
    #[inline]
    pub fn expect(&mut self, count: usize, limits: &Limits) {
        let fits = match self {
            Set::Ints(_) => fits_intset(count, limits),
            Set::Packed(_) => limits.set_entries.allows(count),
            Set::Members(_) => true,
        };
        if !fits {
            self.grow();
        }
    }

    /// Returns whether it has this member.
    #[inline]
    pub fn contains(&self, member: &[u8], now_ms: i64) -> bool {
        match self {
            Set::Ints(ints) => integer(member).is_some_and(|value| ints.contains(value)),
            Set::Packed(packed) => packed.find(member, 1).is_some(),
            Set::Members(members) => members.get(member, now_ms).is_some(),
        }
    }

    /// Like [`contains`](Self::contains), for a member of another set.
    #[inline]
    pub fn has(&self, member: Element<'_>, now_ms: i64) -> bool {
        match (self, member) {
            (Set::Ints(ints), Element::Int(value)) => ints.contains(value),
            _ => self.contains(member.text(&mut itoa::Buffer::new()), now_ms),
        }
    }

    /// Adds a member. Returns true if it is new. An existing member keeps its expiry.
    pub fn add(&mut self, member: &[u8], now_ms: i64, limits: &Limits) -> bool {
        match self {
            Set::Ints(ints) => {
                if let Some(value) = integer(member) {
                    let new = ints.insert(value);
                    if new && !fits_intset(ints.len(), limits) {
                        self.grow();
                    }
                    return new;
                }
                let longest = ints.iter().next().into_iter().chain(ints.iter().last()).map(digits).max();
                if limits.set_entries.allows(ints.len() + 1)
                    && limits.set_value.allows(member.len().max(longest.unwrap_or(0)))
                {
                    let mut packed = Packed::new();
                    ints.iter().for_each(|value| packed.push_back(itoa::Buffer::new().format(value).as_bytes()));
                    packed.push_back(member);
                    *self = Set::Packed(packed);
                } else {
                    self.grow().insert(member, None, Expiry::None, now_ms);
                }
                true
            }
            Set::Packed(packed) => {
                if packed.find(member, 1).is_some() {
                    return false;
                }
                if limits.set_entries.allows(packed.len() + 1) && limits.set_value.allows(member.len()) {
                    packed.push_back(member);
                } else {
                    self.grow().insert(member, None, Expiry::None, now_ms);
                }
                true
            }
            Set::Members(members) => members.insert(member, None, Expiry::Keep, now_ms),
        }
    }

    /// Adds an expiring member. Returns true if it is new. An existing member gets the new expiry, unless it may `keep`
    /// its own.
    #[inline]
    pub fn add_expiring(&mut self, member: &[u8], at_ms: i64, keep: bool, now_ms: i64) -> bool {
        let members = self.grow();
        if keep && members.get(member, now_ms).is_some() {
            return false;
        }
        members.insert(member, None, Expiry::At(at_ms), now_ms)
    }

    /// Returns a member's expiry, if it has one; [`None`] if the member does not exist.
    #[inline]
    pub fn expiry_of(&self, member: &[u8], now_ms: i64) -> Option<Option<i64>> {
        match self {
            Set::Members(members) => members.get(member, now_ms).map(|element| element.expiry()),
            _ => self.contains(member, now_ms).then_some(None),
        }
    }

    /// Sets or removes the expiry of a member. Returns false if there is no such member.
    #[inline]
    pub fn set_expiry(&mut self, member: &[u8], expiry: Option<i64>, now_ms: i64) -> bool {
        self.contains(member, now_ms)
            && match (&mut *self, expiry) {
                (Set::Members(members), expiry) => members.set_expiry(member, expiry, now_ms),
                (_, None) => true,
                (_, expiry) => self.grow().set_expiry(member, expiry, now_ms),
            }
    }

    /// Removes a member. Returns true if it existed.
    #[inline]
    pub fn remove(&mut self, member: &[u8], now_ms: i64) -> bool {
        match self {
            Set::Ints(ints) => integer(member).is_some_and(|value| ints.remove(value)),
            Set::Packed(packed) => packed.find(member, 1).map(|at| packed.remove(at, 1)).is_some(),
            Set::Members(members) => members.remove(member, now_ms),
        }
    }

    /// Converts the set to its large form.
    fn grow(&mut self) -> &mut Elements {
        if !matches!(self, Set::Members(_)) {
            let mut members = Elements::new();
            self.each(TIMELESS, |member| {
                members.insert(member.text(&mut itoa::Buffer::new()), None, Expiry::None, TIMELESS);
            });
            *self = Set::Members(Box::new(members));
        }
        match self {
            Set::Members(members) => members,
            _ => unreachable!("it has just grown"),
        }
    }

    /// Visits all members; those of a large set in no order.
    pub fn each(&self, now_ms: i64, mut visit: impl FnMut(Element<'_>)) {
        self.each_while(now_ms, |member| {
            visit(member);
            true
        });
    }

    /// Visits members until `visit` returns false. Returns true if it never did.
    pub fn each_while(&self, now_ms: i64, mut visit: impl FnMut(Element<'_>) -> bool) -> bool {
        match self {
            Set::Ints(ints) => ints.iter().all(|value| visit(Element::Int(value))),
            Set::Packed(packed) => packed.iter().all(visit),
            Set::Members(members) => members.iter(now_ms).all(|member| visit(Element::Bytes(member.key()))),
        }
    }

    /// Returns the number of members that have not expired at this time.
    #[inline]
    pub fn living(&self, now_ms: i64) -> usize {
        match self {
            Set::Members(members) if members.earliest_ms().is_some_and(|at_ms| at_ms <= now_ms) => {
                members.iter(now_ms).count()
            }
            _ => self.len(),
        }
    }

    /// Visits members as SSCAN does: a small set whole, a large one from the cursor on, about `count` of them. Returns
    /// the next cursor.
    pub fn scan(&self, cursor: u64, count: usize, now_ms: i64, mut visit: impl FnMut(Element<'_>)) -> Option<u64> {
        match self {
            Set::Members(members) => members.scan(cursor, count, now_ms, |member| visit(Element::Bytes(member.key()))),
            _ => {
                self.each(now_ms, visit);
                None
            }
        }
    }

    /// Visits `count` random members, each of which may be visited several times.
    pub fn draw(&self, count: usize, now_ms: i64, random: &mut dyn FnMut() -> u64, mut visit: impl FnMut(Element<'_>)) {
        match self {
            Set::Ints(ints) => (0..count).for_each(|_| visit(Element::Int(ints.get(below(ints.len(), random))))),
            Set::Packed(packed) => {
                let places: SmallVec<[At; 128]> = packed.places().collect();
                (0..count).for_each(|_| visit(packed.get(places[below(places.len(), random)])));
            }
            Set::Members(members) => (0..count)
                .map_while(|_| members.any(now_ms, random))
                .for_each(|member| visit(Element::Bytes(member.key()))),
        }
    }

    /// Visits `count` different random members, or all of them.
    pub fn some(&self, count: usize, now_ms: i64, random: &mut dyn FnMut() -> u64, mut visit: impl FnMut(Element<'_>)) {
        if let Set::Members(members) = self {
            return members
                .some(count, now_ms, random)
                .into_iter()
                .for_each(|member| visit(Element::Bytes(member.key())));
        }
        let mut selection = Selection::new(count, self.len(), random);
        self.each(now_ms, |member| {
            if selection.takes() {
                visit(member);
            }
        });
    }

    /// Returns the set of an RDB intset.
    #[inline]
    pub fn of_intset(bytes: &[u8], limits: &Limits) -> Option<Set> {
        let mut set = Set::Ints(Intset::parse(bytes)?);
        set.expect(set.len(), limits);
        Some(set)
    }

    /// Returns the set of an RDB listpack; [`None`] if it is empty or a member occurs twice.
    pub fn of_listpack(bytes: &[u8], limits: &Limits) -> Option<Set> {
        let packed = Packed::parse(bytes)?;
        let mut different = Elements::new();
        let twice = packed
            .iter()
            .any(|member| !different.insert(member.text(&mut itoa::Buffer::new()), None, Expiry::None, TIMELESS));
        if twice || packed.is_empty() {
            return None;
        }
        let mut set = Set::Packed(packed);
        set.expect(set.len(), limits);
        Some(set)
    }
}

/// Returns the number of digits of a number, including its sign.
#[inline]
fn digits(value: i64) -> usize {
    itoa::Buffer::new().format(value).len()
}

impl Kind for Set {
    const TAG: u8 = 1;
    const NAME: &'static str = "set";

    #[inline]
    fn empty() -> Set {
        Set::Ints(Intset::new())
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Set::Ints(ints) => ints.len(),
            Set::Packed(packed) => packed.len(),
            Set::Members(members) => members.len(),
        }
    }

    #[inline]
    fn bytes(&self) -> usize {
        match self {
            Set::Ints(ints) => ints.bytes(),
            Set::Packed(packed) => packed.bytes(),
            Set::Members(members) => members.bytes(),
        }
    }

    fn encoding(&self) -> &'static str {
        match self {
            Set::Ints(_) => "intset",
            Set::Packed(_) => "listpack",
            Set::Members(_) => "hashtable",
        }
    }

    fn copy(&self) -> Set {
        match self {
            Set::Ints(ints) => Set::Ints(ints.clone()),
            Set::Packed(packed) => Set::Packed(packed.clone()),
            Set::Members(members) => Set::Members(Box::new(members.copy())),
        }
    }

    /// Writes a packed set, like a large one, as a set of strings, because RDB version 10 has no listpack type for
    /// sets.
    fn dump(&self, form: Form, out: &mut Out<'_>) {
        match self {
            Set::Ints(ints) => {
                out.push(encode::TYPE_SET_INTSET);
                form.put_string(ints.as_bytes(), out);
            }
            Set::Members(members) if members.earliest_ms().is_some() && form.times == encode::Times::Own => {
                out.push(encode::TYPE_SET_EXPIRING);
                encode::put_len(self.living(form.now_ms), out);
                for member in members.iter(form.now_ms) {
                    form.put_string(member.key(), out);
                    out.extend(member.expiry().unwrap_or(0).to_le_bytes());
                    out.end_part();
                }
            }
            _ => {
                out.push(encode::TYPE_SET);
                encode::put_len(self.living(form.now_ms), out);
                self.each(form.now_ms, |member| {
                    form.put_string(member.text(&mut itoa::Buffer::new()), out);
                    out.end_part();
                });
            }
        }
    }

    #[inline]
    fn earliest_ms(&self) -> Option<i64> {
        match self {
            Set::Members(members) => members.earliest_ms(),
            _ => None,
        }
    }

    #[inline]
    fn purge(&mut self, now_ms: i64, limit: usize, gone: &mut dyn FnMut(&[u8])) -> (usize, bool) {
        match self {
            Set::Members(members) => members.purge(now_ms, limit, gone),
            _ => (0, true),
        }
    }

    #[inline]
    fn into_raw(self) -> (u8, NonNull<u8>) {
        match self {
            Set::Ints(ints) => (INTS, ints.into_raw()),
            Set::Packed(packed) => (PACKED, packed.into_raw()),
            Set::Members(members) => {
                let form = if members.earliest_ms().is_some() { TIMED } else { MEMBERS };
                (form, NonNull::from(Box::leak(members)).cast())
            }
        }
    }

    #[inline]
    unsafe fn from_raw(form: u8, start: NonNull<u8>) -> Set {
        // SAFETY: the caller passes the form and the pointer of one set.
        unsafe {
            match form {
                INTS => Set::Ints(Intset::from_raw(start)),
                PACKED => Set::Packed(Packed::from_raw(start)),
                _ => Set::Members(Box::from_raw(start.cast().as_ptr())),
            }
        }
    }

    kind_of!(Set);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_set_does_the_same_through_growth() {
        for numbers in [true, false] {
            let (mut set, mut model) = (Set::empty(), BTreeSet::<Vec<u8>>::new());
            let mut seed = 1_u64;
            for step in 0..20_000 {
                let bits;
                (seed, bits) = crate::random::step(seed);
                let number = bits % if step < 5_000 { 60 } else { 3_000 };
                let member = match numbers {
                    true => format!("{}", number as i64 * if step > 10_000 { i64::from(i32::MAX) } else { -9 }),
                    false => format!("member:{number}"),
                };
                let member = member.into_bytes();
                match bits >> 32 & 3 {
                    0 => assert_eq!(set.remove(&member, TIMELESS), model.remove(&member)),
                    _ => assert_eq!(set.add(&member, TIMELESS, &Limits::new()), model.insert(member.clone())),
                }
                assert_eq!((set.contains(&member, TIMELESS), set.len()), (model.contains(&member), model.len()));
                let encoding = set.encoding();
                assert!(
                    step >= 5_000 || model.is_empty() || encoding == if numbers { "intset" } else { "listpack" },
                    "{encoding}"
                );
            }
            assert_eq!(set.encoding(), "hashtable");
            let mut found = BTreeSet::new();
            set.copy().each(TIMELESS, |member| {
                found.insert(member.text(&mut itoa::Buffer::new()).to_vec());
            });
            assert_eq!(found, model);
        }
    }

    /// Asserts that Pearson's statistic of how often each of `len` members was drawn is within five standard deviations
    /// of its mean; both follow from the degrees of freedom.
    #[track_caller]
    fn check_even(drawn: &std::collections::BTreeMap<Vec<u8>, u32>, len: usize) {
        assert_eq!(drawn.len(), len);
        let mean = f64::from(drawn.values().sum::<u32>()) / len as f64;
        let statistic: f64 = drawn.values().map(|n| (f64::from(*n) - mean).powi(2) / mean).sum();
        let freedom = len as f64 - 1.0;
        assert!(statistic <= freedom + 5.0 * (2.0 * freedom).sqrt(), "{statistic} with {freedom} degrees");
    }

    #[test]
    fn chance_prefers_no_member_of_any_form() {
        let mut state = 5;
        let mut random = move || {
            let bits;
            (state, bits) = crate::random::step(state);
            bits
        };
        for (prefix, len) in [("", 50_usize), ("m", 50), ("m", 1), ("m", 400), ("", 700)] {
            let mut set = Set::empty();
            for n in 0..len {
                set.add(format!("{prefix}{n}").as_bytes(), TIMELESS, &Limits::new());
            }
            let mut drawn = std::collections::BTreeMap::new();
            let mut count = |member: Element<'_>| {
                *drawn.entry(member.text(&mut itoa::Buffer::new()).to_vec()).or_insert(0_u32) += 1;
            };
            set.draw(len * 100, TIMELESS, &mut random, &mut count);
            check_even(&drawn, len);
            drawn.clear();
            let some = len.div_ceil(3);
            for _ in 0..300 {
                let mut different = BTreeSet::new();
                set.some(some, TIMELESS, &mut random, |member| {
                    assert!(different.insert(member.text(&mut itoa::Buffer::new()).to_vec()));
                });
                assert_eq!(different.len(), some);
                different.into_iter().for_each(|member| *drawn.entry(member).or_insert(0) += 1);
            }
            check_even(&drawn, len);
        }
    }

    #[track_caller]
    fn check(members: &[&str], encoding: &str) {
        let mut set = Set::for_members(members[0].as_bytes(), members.len(), &Limits::new());
        set.expect(members.len(), &Limits::new());
        members.iter().for_each(|member| {
            set.add(member.as_bytes(), TIMELESS, &Limits::new());
        });
        assert_eq!(set.encoding(), encoding, "{} members", members.len());
    }

    #[test]
    fn forms_change_where_those_of_redis_7_2_do() {
        let numbers: Vec<String> = (0..600).map(|n| n.to_string()).collect();
        let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
        let with = |count: usize, more: &'static str| [&numbers[..count], &[more]].concat();
        let long = "x".repeat(65);
        check(&numbers[..512], "intset");
        check(&numbers[..513], "hashtable");
        check(&with(127, "a"), "listpack");
        check(&with(128, "a"), "hashtable");
        check(&["a", "1"], "listpack");
        check(&["a", &long], "hashtable");
        check(&["1", &long[1..]], "listpack");
        check(&["1", &long], "hashtable");
        let mut set = Set::empty();
        set.add(b"1", TIMELESS, &Limits::new());
        assert!(set.add_expiring(b"2", 5, false, TIMELESS) && set.encoding() == "hashtable");
        assert_eq!((set.expiry_of(b"1", 0), set.expiry_of(b"2", 0)), (Some(None), Some(Some(5))));
        assert_eq!((set.living(5), set.len(), set.contains(b"2", 5)), (1, 2, false));
    }
}
