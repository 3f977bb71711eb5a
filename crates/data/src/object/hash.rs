//! Hashes: fields and their values, each possibly with an expiry.
//!
//! A small hash is a block of alternating fields and values; beyond the limits of `hash-max-listpack-*` it is a table
//! of [`Elements`]. It is never converted back, as in Redis.
//!
//! A small hash with expiring fields is a block of fields, values and times, Redis's `listpackex`: expiring fields come
//! first, the earliest in front, and fields without an expiry have the time 0. So due fields are found at the front,
//! and a hash without expiring fields pays nothing.
//!
//! Reading needs the present time, because an expired field is invisible; [`TIMELESS`] suffices for a hash without
//! expiring fields. Counting does not need it: Redis's HLEN includes expired fields until they are removed.

use std::ptr::NonNull;

use smallvec::SmallVec;

use super::elements::{Elements, Expiry, TIMELESS};
use super::limits::Limits;
use super::packed::{At, Element};
use super::{Kind, Packed, kind_of};
use crate::random::{Selection, below};
use crate::rdb::encode::{self, Form, Out, Times};

const PACKED: u8 = 0;
const FIELDS: u8 = 1;
pub(super) const TIMED: u8 = 2;
/// The form of a large hash in which something expires.
pub(super) const TIMED_FIELDS: u8 = 3;

/// The time in a block that stands for no expiry.
const NO_TIME: i64 = 0;
/// The maximum expiry of a field, in Unix milliseconds: Redis stores it in 48 bits.
pub const EXPIRY_MAX: i64 = (1 << 48) - 2;

/// A hash.
#[derive(Debug)]
pub enum Hash {
    /// A small hash: field, value, field, value…
    Packed(Packed),
    /// A small hash: field, value, time, field, value, time…
    Timed(Packed),
    /// A large hash.
    Fields(Box<Elements>),
}

/// Returns the place of a field's time.
#[inline]
fn time_place(packed: &Packed, at: At) -> At {
    packed.next(at).and_then(|value| packed.next(value)).expect("a field has a value and a time")
}

/// Returns a field's time in a block with times.
#[inline]
fn time_of(packed: &Packed, at: At) -> i64 {
    match packed.get(time_place(packed, at)) {
        Element::Int(at_ms) => at_ms,
        Element::Bytes(_) => NO_TIME,
    }
}

#[inline]
fn lives(at_ms: i64, now_ms: i64) -> bool {
    at_ms == NO_TIME || at_ms > now_ms
}

/// Inserts a field at the position of its time: before fields that expire later, and before those that don't expire.
#[inline]
fn insert_timed(packed: &mut Packed, field: &[u8], value: &[u8], at_ms: i64) {
    let place = match at_ms {
        NO_TIME => None,
        _ => packed.places().step_by(3).find(|at| {
            let other = time_of(packed, *at);
            other == NO_TIME || other > at_ms
        }),
    };
    packed.insert(place, &[field, value, itoa::Buffer::new().format(at_ms).as_bytes()]);
}

impl Hash {
    /// Returns the value of a field.
    #[inline]
    pub fn get(&self, field: &[u8], now_ms: i64) -> Option<Element<'_>> {
        match self {
            Hash::Packed(packed) => packed.find(field, 2).and_then(|at| packed.next(at)).map(|at| packed.get(at)),
            Hash::Timed(packed) => {
                let at = packed.find(field, 3).filter(|at| lives(time_of(packed, *at), now_ms))?;
                packed.next(at).map(|at| packed.get(at))
            }
            Hash::Fields(fields) => fields.get(field, now_ms).map(|field| Element::Bytes(field.value())),
        }
    }

    /// Returns a field's expiry, if it has one; [`None`] if the field does not exist.
    #[inline]
    pub fn expiry_of(&self, field: &[u8], now_ms: i64) -> Option<Option<i64>> {
        match self {
            Hash::Packed(packed) => packed.find(field, 2).map(|_| None),
            Hash::Timed(packed) => {
                let at_ms = time_of(packed, packed.find(field, 3)?);
                lives(at_ms, now_ms).then_some(Some(at_ms).filter(|at_ms| *at_ms != NO_TIME))
            }
            Hash::Fields(fields) => fields.get(field, now_ms).map(|field| field.expiry()),
        }
    }

    /// Prepares for setting this many fields: if a small form may not have as many, it becomes a large one immediately,
    /// as in Redis, which assumes that they are distinct.
    #[inline]
    pub fn expect(&mut self, fields: usize, limits: &Limits) {
        if !limits.hash_entries.allows(fields) {
            self.grow();
        }
    }

    /// Sets a field. Returns true if it is new, or the old one had expired.
    pub fn insert(&mut self, field: &[u8], value: &[u8], expiry: Expiry, now_ms: i64, limits: &Limits) -> bool {
        if let (Hash::Packed(_), Expiry::At(_)) = (&*self, expiry) {
            self.add_times();
        }
        let fits = |fields: usize| limits.hash_entries.allows(fields);
        let short = limits.hash_value.allows(field.len().max(value.len()));
        match self {
            Hash::Packed(packed) if short => {
                let place = packed.find(field, 2).and_then(|at| packed.next(at));
                match place {
                    Some(at) => {
                        packed.replace(at, value);
                        return false;
                    }
                    None if fits(packed.len() / 2 + 1) => {
                        packed.insert(None, &[field, value]);
                        return true;
                    }
                    None => {}
                }
            }
            Hash::Timed(packed) if short => {
                let place = packed.find(field, 3);
                let old = place.map(|at| time_of(packed, at));
                let lived = old.is_some_and(|at_ms| lives(at_ms, now_ms));
                let at_ms = match expiry {
                    Expiry::None => NO_TIME,
                    Expiry::Keep => old.filter(|_| lived).unwrap_or(NO_TIME),
                    Expiry::At(at_ms) => at_ms,
                };
                match place {
                    Some(at) if old == Some(at_ms) => {
                        packed.replace(packed.next(at).expect("a field has a value"), value);
                        return !lived;
                    }
                    Some(at) => {
                        packed.remove(at, 3);
                        insert_timed(packed, field, value, at_ms);
                        return !lived;
                    }
                    None if fits(packed.len() / 3 + 1) => {
                        insert_timed(packed, field, value, at_ms);
                        return true;
                    }
                    None => {}
                }
            }
            _ => {}
        }
        self.grow().insert(field, Some(value), expiry, now_ms)
    }

    /// Sets or removes the expiry of a field. Returns false if there is no such field.
    pub fn set_expiry(&mut self, field: &[u8], expiry: Option<i64>, now_ms: i64) -> bool {
        if let (Hash::Packed(packed), Some(_)) = (&*self, expiry) {
            if packed.find(field, 2).is_none() {
                return false;
            }
            self.add_times();
        }
        match self {
            Hash::Packed(packed) => packed.find(field, 2).is_some(),
            Hash::Timed(packed) => {
                let Some(at) = packed.find(field, 3) else { return false };
                let (old, at_ms) = (time_of(packed, at), expiry.unwrap_or(NO_TIME));
                if !lives(old, now_ms) {
                    return false;
                }
                if old != at_ms {
                    let value = packed.get(packed.next(at).expect("a field has a value"));
                    let value = value.text(&mut itoa::Buffer::new()).to_vec();
                    packed.remove(at, 3);
                    insert_timed(packed, field, &value, at_ms);
                }
                true
            }
            Hash::Fields(fields) => fields.set_expiry(field, expiry, now_ms),
        }
    }

    /// Converts a small hash to the form with times.
    fn add_times(&mut self) {
        if let Hash::Packed(_) = self {
            let mut packed = Packed::new();
            self.each(TIMELESS, |field, value| packed.insert(None, &[field, value, b"0"]));
            *self = Hash::Timed(packed);
        }
    }

    /// Converts the hash to its large form.
    fn grow(&mut self) -> &mut Elements {
        if !matches!(self, Hash::Fields(_)) {
            let mut fields = Elements::new();
            self.each_timed(TIMELESS, |field, value, expiry| {
                fields.insert(field, Some(value), expiry.map_or(Expiry::None, Expiry::At), TIMELESS);
            });
            *self = Hash::Fields(Box::new(fields));
        }
        match self {
            Hash::Fields(fields) => fields,
            _ => unreachable!("it has just grown"),
        }
    }

    /// Removes a field. Returns true if it existed.
    #[inline]
    pub fn remove(&mut self, field: &[u8], now_ms: i64) -> bool {
        match self {
            Hash::Packed(packed) => packed.find(field, 2).map(|at| packed.remove(at, 2)).is_some(),
            Hash::Timed(packed) => {
                let Some(at) = packed.find(field, 3) else { return false };
                let lived = lives(time_of(packed, at), now_ms);
                packed.remove(at, 3);
                lived
            }
            Hash::Fields(fields) => fields.remove(field, now_ms),
        }
    }

    /// Removes a field if it has expired. Returns true if it had.
    #[inline]
    pub fn expire(&mut self, field: &[u8], now_ms: i64) -> bool {
        let before = self.len();
        self.get(field, now_ms).is_none() && !self.remove(field, now_ms) && self.len() < before
    }

    /// Visits all fields with their values; a large hash's in no order.
    pub fn each(&self, now_ms: i64, mut visit: impl FnMut(&[u8], &[u8])) {
        self.each_timed(now_ms, |field, value, _| visit(field, value));
    }

    /// Like [`each`](Self::each), with the fields' times.
    pub fn each_timed(&self, now_ms: i64, mut visit: impl FnMut(&[u8], &[u8], Option<i64>)) {
        match self {
            Hash::Packed(packed) | Hash::Timed(packed) => {
                let timed = matches!(self, Hash::Timed(_));
                let mut elements = packed.iter();
                while let (Some(field), Some(value)) = (elements.next(), elements.next()) {
                    let at_ms = match timed.then(|| elements.next()).flatten() {
                        Some(Element::Int(at_ms)) => at_ms,
                        _ => NO_TIME,
                    };
                    if lives(at_ms, now_ms) {
                        let expiry = Some(at_ms).filter(|at_ms| *at_ms != NO_TIME);
                        visit(field.text(&mut itoa::Buffer::new()), value.text(&mut itoa::Buffer::new()), expiry);
                    }
                }
            }
            Hash::Fields(fields) => {
                fields.iter(now_ms).for_each(|field| visit(field.key(), field.value(), field.expiry()));
            }
        }
    }

    /// Returns the number of fields that have not expired at this time.
    #[inline]
    pub fn living(&self, now_ms: i64) -> usize {
        match self.earliest_ms() {
            Some(at_ms) if at_ms <= now_ms => {
                let mut count = 0;
                self.each(now_ms, |_, _| count += 1);
                count
            }
            _ => self.len(),
        }
    }

    /// Visits fields as HSCAN does: a small hash whole, a large one from the cursor on, about `count` of them. Returns
    /// the next cursor.
    pub fn scan(&self, cursor: u64, count: usize, now_ms: i64, mut visit: impl FnMut(&[u8], &[u8])) -> Option<u64> {
        match self {
            Hash::Fields(fields) => fields.scan(cursor, count, now_ms, |field| visit(field.key(), field.value())),
            _ => {
                self.each(now_ms, visit);
                None
            }
        }
    }

    /// Visits `count` random fields, each of which may be visited several times.
    pub fn draw(
        &self,
        count: usize,
        now_ms: i64,
        random: &mut dyn FnMut() -> u64,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) {
        match self {
            Hash::Packed(packed) | Hash::Timed(packed) => {
                let timed = matches!(self, Hash::Timed(_));
                let fields = packed.places().step_by(if timed { 3 } else { 2 });
                let places: SmallVec<[At; 128]> =
                    fields.filter(|at| !timed || lives(time_of(packed, *at), now_ms)).collect();
                for _ in 0..if places.is_empty() { 0 } else { count } {
                    let at = places[below(places.len(), random)];
                    let value = packed.get(packed.next(at).expect("a field has a value"));
                    let mut digits = (itoa::Buffer::new(), itoa::Buffer::new());
                    visit(packed.get(at).text(&mut digits.0), value.text(&mut digits.1));
                }
            }
            Hash::Fields(fields) => {
                (0..count).map_while(|_| fields.any(now_ms, random)).for_each(|field| visit(field.key(), field.value()))
            }
        }
    }

    /// Visits `count` different random fields, or all of them.
    pub fn some(
        &self,
        count: usize,
        now_ms: i64,
        random: &mut dyn FnMut() -> u64,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) {
        if let Hash::Fields(fields) = self {
            return fields.some(count, now_ms, random).into_iter().for_each(|field| visit(field.key(), field.value()));
        }
        let mut selection = Selection::new(count, self.living(now_ms), random);
        self.each(now_ms, |field, value| {
            if selection.takes() {
                visit(field, value);
            }
        });
    }

    /// Returns the hash of an RDB listpack, with or without times; [`None`] if a field has no value or occurs twice.
    pub fn of_listpack(bytes: &[u8], timed: bool, limits: &Limits) -> Option<Hash> {
        let packed = Packed::parse(bytes)?;
        if packed.is_empty() || !packed.len().is_multiple_of(if timed { 3 } else { 2 }) {
            return None;
        }
        // Times are checked first, before a value that is not a number could count as no time.
        let wrong = |time: Element<'_>| !matches!(time, Element::Int(NO_TIME..=EXPIRY_MAX));
        if timed && packed.iter().skip(2).step_by(3).any(wrong) {
            return None;
        }
        let small = if timed { Hash::Timed(packed) } else { Hash::Packed(packed) };
        // Built again, in the required order and within the limits of this store.
        let mut hash = if timed { Hash::Timed(Packed::new()) } else { Hash::empty() };
        let mut twice = false;
        small.each_timed(TIMELESS, |field, value, expiry| {
            twice |= !hash.insert(field, value, expiry.map_or(Expiry::None, Expiry::At), TIMELESS, limits);
        });
        (!twice).then_some(hash)
    }
}

impl Kind for Hash {
    const TAG: u8 = 2;
    const NAME: &'static str = "hash";

    #[inline]
    fn empty() -> Hash {
        Hash::Packed(Packed::new())
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Hash::Packed(packed) => packed.len() / 2,
            Hash::Timed(packed) => packed.len() / 3,
            Hash::Fields(fields) => fields.len(),
        }
    }

    #[inline]
    fn bytes(&self) -> usize {
        match self {
            Hash::Packed(packed) | Hash::Timed(packed) => packed.bytes(),
            Hash::Fields(fields) => fields.bytes(),
        }
    }

    fn encoding(&self) -> &'static str {
        match self {
            Hash::Packed(_) => "listpack",
            Hash::Timed(_) => "listpackex",
            Hash::Fields(_) => "hashtable",
        }
    }

    fn copy(&self) -> Hash {
        match self {
            Hash::Packed(packed) => Hash::Packed(packed.clone()),
            Hash::Timed(packed) => Hash::Timed(packed.clone()),
            Hash::Fields(fields) => Hash::Fields(Box::new(fields.copy())),
        }
    }

    /// Without expiring fields, or if their times are not to be written, writes a type that Redis 7.0 reads.
    fn dump(&self, form: Form, out: &mut Out<'_>) {
        let earliest_ms = self.earliest_ms();
        let is_timed = earliest_ms.is_some() && form.times != Times::Without;
        let is_all_alive = earliest_ms.is_none_or(|at_ms| at_ms > form.now_ms);
        match self {
            Hash::Packed(packed) => {
                out.push(encode::TYPE_HASH_LISTPACK);
                form.put_string(packed.as_bytes(), out);
            }
            Hash::Timed(packed)
                if let Some(earliest_ms) = earliest_ms
                    && is_timed
                    && is_all_alive
                    && form.times != Times::Valkey =>
            {
                out.push(encode::TYPE_HASH_LISTPACK_EX);
                out.extend(earliest_ms.to_le_bytes());
                form.put_string(packed.as_bytes(), out);
            }
            _ => {
                // The table's bound may be below the earliest time, which is written here.
                let mut base_ms = i64::MAX;
                if is_timed {
                    self.each_timed(form.now_ms, |_, _, expiry| base_ms = base_ms.min(expiry.unwrap_or(i64::MAX)));
                }
                let is_timed = base_ms != i64::MAX;
                let is_valkey = is_timed && form.times == Times::Valkey;
                let is_redis = is_timed && !is_valkey;
                out.push(match (is_redis, is_valkey) {
                    (true, _) => encode::TYPE_HASH_METADATA,
                    (_, true) => encode::TYPE_HASH_VALKEY,
                    _ => encode::TYPE_HASH,
                });
                if is_redis {
                    out.extend(base_ms.to_le_bytes());
                }
                encode::put_len(self.living(form.now_ms), out);
                self.each_timed(form.now_ms, |field, value, expiry| {
                    if is_redis {
                        encode::put_len(expiry.map_or(0, |at_ms| (at_ms - base_ms) as usize + 1), out);
                    }
                    form.put_string(field, out);
                    form.put_string(value, out);
                    if is_valkey {
                        out.extend(expiry.unwrap_or(-1).to_le_bytes());
                    }
                    out.end_part();
                });
            }
        }
    }

    #[inline]
    fn earliest_ms(&self) -> Option<i64> {
        match self {
            Hash::Packed(_) => None,
            Hash::Timed(packed) => packed.first().map(|at| time_of(packed, at)).filter(|at_ms| *at_ms != NO_TIME),
            Hash::Fields(fields) => fields.earliest_ms(),
        }
    }

    fn purge(&mut self, now_ms: i64, limit: usize, gone: &mut dyn FnMut(&[u8])) -> (usize, bool) {
        match self {
            Hash::Packed(_) => (0, true),
            Hash::Timed(packed) => {
                let due = packed.places().step_by(3).take_while(|at| !lives(time_of(packed, *at), now_ms));
                let due = due.inspect(|at| gone(packed.get(*at).text(&mut itoa::Buffer::new()))).count();
                if let (Some(first), 1..) = (packed.first(), due) {
                    packed.remove(first, 3 * due);
                }
                (due, true)
            }
            Hash::Fields(fields) => fields.purge(now_ms, limit, gone),
        }
    }

    #[inline]
    fn into_raw(self) -> (u8, NonNull<u8>) {
        match self {
            Hash::Packed(packed) => (PACKED, packed.into_raw()),
            Hash::Timed(packed) => (TIMED, packed.into_raw()),
            Hash::Fields(fields) => {
                let form = if fields.earliest_ms().is_some() { TIMED_FIELDS } else { FIELDS };
                (form, NonNull::from(Box::leak(fields)).cast())
            }
        }
    }

    #[inline]
    unsafe fn from_raw(form: u8, start: NonNull<u8>) -> Hash {
        // SAFETY: passed on; the form says what it was.
        unsafe {
            match form {
                PACKED => Hash::Packed(Packed::from_raw(start)),
                TIMED => Hash::Timed(Packed::from_raw(start)),
                _ => Hash::Fields(Box::from_raw(start.cast().as_ptr())),
            }
        }
    }

    kind_of!(Hash);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<i64>)>;

    #[track_caller]
    fn check(hash: &Hash, model: &Model, now_ms: i64) {
        let mut found = Model::new();
        hash.each_timed(now_ms, |field, value, expiry| {
            found.insert(field.to_vec(), (value.to_vec(), expiry));
        });
        let lives = |at_ms: Option<i64>| at_ms.is_none_or(|at_ms| at_ms > now_ms);
        let expected: Model =
            model.iter().filter(|(_, (_, at_ms))| lives(*at_ms)).map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(found, expected);
        assert_eq!(hash.living(now_ms), expected.len());
    }

    /// Changes a hash at random: small and large forms, with and without times, and the conversions between them.
    fn random_work(seed: u64, fields: u64, times: bool, steps: u64) -> Hash {
        let (mut hash, mut model, mut state, mut now_ms) = (Hash::empty(), Model::new(), seed, 1);
        let mut random = move |limit: u64| {
            let bits;
            (state, bits) = crate::random::step(state);
            bits % limit
        };
        for step in 0..steps {
            let field = format!("f{}", random(fields)).into_bytes();
            let old = model.get(&field).cloned().filter(|(_, at_ms)| at_ms.is_none_or(|at_ms| at_ms > now_ms));
            let at_ms = now_ms + 1 + random(500) as i64;
            match random(if times { 8 } else { 5 }) {
                0 => {
                    assert_eq!(hash.remove(&field, now_ms), old.is_some());
                    model.remove(&field);
                }
                1..5 => {
                    let value = vec![b'v'; random(if fields < 100 || step < steps / 2 { 60 } else { 400 }) as usize];
                    let expiry = match random(3) {
                        0 if times => Expiry::At(at_ms),
                        1 if times => Expiry::Keep,
                        _ => Expiry::None,
                    };
                    assert_eq!(hash.insert(&field, &value, expiry, now_ms, &Limits::new()), old.is_none());
                    let at_ms = match expiry {
                        Expiry::None => None,
                        Expiry::Keep => old.and_then(|(_, at_ms)| at_ms),
                        Expiry::At(at_ms) => Some(at_ms),
                    };
                    model.insert(field, (value, at_ms));
                }
                5..7 => {
                    let expiry = (random(3) > 0).then_some(at_ms);
                    assert_eq!(hash.set_expiry(&field, expiry, now_ms), old.is_some());
                    if old.is_some() {
                        model.get_mut(&field).expect("it is there").1 = expiry;
                    }
                }
                _ => {
                    now_ms += random(30) as i64;
                    let before = hash.len();
                    let (removed, _) = hash.purge(now_ms, 50, &mut |_| {});
                    assert_eq!(before - removed, hash.len());
                }
            }
            if step % 500 == 0 {
                check(&hash, &model, now_ms);
                check(&hash.copy(), &model, now_ms);
            }
        }
        check(&hash, &model, now_ms);
        hash
    }

    #[test]
    fn a_map_does_the_same_through_growth() {
        for seed in 1..=3 {
            assert_eq!(random_work(seed, 700, false, 10_000).encoding(), "hashtable");
            assert_eq!(random_work(seed, 700, true, 10_000).encoding(), "hashtable");
            assert_eq!(random_work(seed, 40, true, 500).encoding(), "listpackex");
            assert_eq!(random_work(seed, 40, false, 100).encoding(), "listpack");
        }
    }

    #[test]
    fn a_small_one_has_what_expires_in_front() {
        let mut hash = Hash::empty();
        for (field, expiry) in [("a", Expiry::None), ("b", Expiry::At(30)), ("c", Expiry::At(10)), ("d", Expiry::None)]
        {
            hash.insert(field.as_bytes(), b"v", expiry, TIMELESS, &Limits::new());
        }
        assert!(hash.set_expiry(b"d", Some(20), TIMELESS) && hash.set_expiry(b"c", None, TIMELESS));
        let mut order = Vec::new();
        hash.each_timed(TIMELESS, |field, _, expiry| order.push((field[0], expiry)));
        assert_eq!(order, [(b'd', Some(20)), (b'b', Some(30)), (b'a', None), (b'c', None)]);
        assert_eq!((hash.earliest_ms(), hash.purge(25, 1, &mut |_| {}), hash.len()), (Some(20), (1, true), 3));
        assert_eq!(
            (hash.purge(30, 1, &mut |_| {}), hash.earliest_ms(), hash.encoding()),
            ((1, true), None, "listpackex")
        );
    }
}
