//! Bitmaps: strings seen as bits, the most significant bit of a byte first.
//!
//! Counting and searching go over 8 bytes at a time. A long value is read through a reference after its stripe is
//! unlocked. BITOP of long values holds its keys as a section (`big`) and computes before it locks anything: under the
//! locks it only makes sure that its sources are still those that it read.

use std::sync::Arc;

use sluicegate_data::value::{Entry, SHARED_MIN, Value, View};
use sluicegate_wire::resp::{ReplySink, parse_i64};

use super::string::edit_bytes;
use super::{Refused, SYNTAX, WRONG_TYPE, integer, is, or_error};
use crate::Inner;
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler, Records, WrittenKeys};
use crate::context::Ctx;
use crate::gate::Pass;
use crate::keys::KeyRule;
use crate::notify::Class;
use crate::visits;

/// Sources with fewer bytes together than this are combined under the locks of their stripes: some 10 µs.
const COMBINED_UNDER_LOCKS: usize = 64 << 10;

/// Parses an offset in bits. With a leading `#`, if `width` is given, it counts fields of that width.
pub(super) fn bit_offset(word: &[u8], width: Option<u32>, string_max: usize) -> Result<u64, Refused> {
    let (word, width) = match (word, width) {
        ([b'#', rest @ ..], Some(width)) => (rest, i64::from(width)),
        _ => (word, 1),
    };
    // A product beyond 64 bits wraps around in Redis.
    let offset = parse_i64(word).map(|offset| offset.wrapping_mul(width));
    let offset = offset.and_then(|offset| u64::try_from(offset).ok()).filter(|offset| offset >> 3 < string_max as u64);
    offset.ok_or("ERR bit offset is not an integer or out of range".into())
}

fn setbit(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let offset = bit_offset(words[2], None, ctx.string_max())?;
        let bit = match parse_i64(words[3]) {
            Some(bit @ 0..=1) => bit as u8,
            _ => return Err("ERR bit is not an integer or out of range".into()),
        };
        let (byte, shift) = ((offset >> 3) as usize, 7 - (offset & 7) as u32);
        let mut key = ctx.key(0);
        let grows = key.string()?.map_or(0, View::len) <= byte;
        if key.takes_long_to_edit(byte + 1, 1) {
            if ctx.defer() {
                return Ok(());
            }
            key = ctx.key(0);
        }
        let mut old = 0;
        edit_bytes(&mut key, byte + 1, 1, |value| {
            old = value[byte] >> shift & 1;
            value[byte] = value[byte] & !(1 << shift) | bit << shift;
        })?;
        if grows || old != bit {
            ctx.notify(0, Class::String, "setbit");
        }
        out.integer(i64::from(old));
        Ok(())
    })();
    or_error(result, out);
}

fn getbit(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let offset = bit_offset(ctx.words[2], None, ctx.string_max())?;
        let mut digits = itoa::Buffer::new();
        let value = ctx.read_string(0)?.map_or(&b""[..], |view| view.text(&mut digits));
        let byte = value.get((offset >> 3) as usize).copied().unwrap_or(0);
        out.integer(i64::from(byte >> (7 - (offset & 7)) & 1));
        Ok(())
    })();
    or_error(result, out);
}

/// The range of bits that the words of BITCOUNT and BITPOS specify.
struct Range {
    start: i64,
    end: Option<i64>,
    in_bits: bool,
}

impl Range {
    fn unit(word: &[u8]) -> Result<bool, Refused> {
        match () {
            () if is(word, "bit") => Ok(true),
            () if is(word, "byte") => Ok(false),
            () => Err(SYNTAX.into()),
        }
    }

    /// Returns the first and last bit in a value of `len` bytes; [`None`] if the range is empty.
    fn bits(&self, len: usize) -> Option<(usize, usize)> {
        let unit = if self.in_bits { 1 } else { 8 };
        let total = len as i64 * 8 / unit;
        let from_end = |at: i64| if at < 0 { at.saturating_add(total).max(0) } else { at };
        let (start, end) = (from_end(self.start), self.end.map_or(total - 1, from_end).min(total - 1));
        (start <= end).then(|| ((start * unit) as usize, (end * unit + unit - 1) as usize))
    }
}

/// Returns the result of `answer` for the value of key 0, which is not under a lock if it is long; `absent` if the key
/// does not exist.
fn of_value(
    ctx: &mut Ctx<'_>,
    absent: i64,
    answer: impl FnOnce(&[u8]) -> Result<i64, Refused>,
) -> Result<i64, Refused> {
    let entry = ctx.read(0);
    match entry.map(|entry| (entry.shared(), entry.string())) {
        None => Ok(absent),
        Some((None, Some(view))) => answer(view.text(&mut itoa::Buffer::new())),
        Some((None, None)) => Err(WRONG_TYPE.into()),
        Some((Some(bytes), _)) => {
            ctx.unlock();
            // SAFETY: the bytes are held by reference, and everything is unlocked.
            unsafe { ctx.pass.outside(|| answer(&bytes)) }
        }
    }
}

/// Writes a number or an error.
fn say(result: Result<i64, Refused>, out: &mut dyn ReplySink) {
    or_error(result.map(|number| out.integer(number)), out);
}

/// Number of bits set from `first` to `last`, both of which are in `bytes`.
fn count(bytes: &[u8], first: usize, last: usize) -> u64 {
    let edges = u64::from((bytes[first / 8] & !(0xff >> (first % 8))).count_ones())
        + u64::from((bytes[last / 8] & (0x7f >> (last % 8))).count_ones());
    let (words, rest) = bytes[first / 8..=last / 8].as_chunks::<8>();
    let all: u64 = words.iter().map(|word| u64::from(u64::from_ne_bytes(*word).count_ones())).sum();
    all + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>() - edges
}

/// BITCOUNT's range; [`None`] if nothing can be in it.
fn count_range(words: &[&[u8]]) -> Result<Option<Range>, Refused> {
    match words {
        [_, _] => Ok(Some(Range { start: 0, end: None, in_bits: false })),
        [_, _, start, end, unit @ ..] if unit.len() <= 1 => {
            let start = integer(start)?;
            let in_bits = unit.first().map_or(Ok(false), |unit| Range::unit(unit))?;
            let end = integer(end)?;
            if start < 0 && end < 0 && start > end {
                return Ok(None);
            }
            Ok(Some(Range { start, end: Some(end), in_bits }))
        }
        _ => Err(SYNTAX.into()),
    }
}

fn bitcount(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let counted = count_range(words).and_then(|range| {
        of_value(ctx, 0, |bytes| {
            let bits = range.and_then(|range| range.bits(bytes.len()));
            Ok(bits.map_or(0, |(first, last)| count(bytes, first, last) as i64))
        })
    });
    say(counted, out);
}

/// Returns the first bit like `bit` from `first` to `last`, both of which are in `bytes`.
fn position(bytes: &[u8], bit: bool, first: usize, last: usize) -> Option<usize> {
    // With all bits turned, the first 0 is the first 1.
    let turn = if bit { 0 } else { 0xff };
    let head = (bytes[first / 8] ^ turn) & 0xff >> (first % 8);
    let at = if head != 0 {
        first / 8 * 8 + head.leading_zeros() as usize
    } else {
        let start = first / 8 + 1;
        let rest = bytes.get(start..=last / 8)?;
        let skipped = if bit { 0 } else { u64::MAX };
        let (words, _) = rest.as_chunks::<8>();
        let words = words.iter().take_while(|word| u64::from_ne_bytes(**word) == skipped).count();
        let byte = start + words * 8 + rest[words * 8..].iter().position(|byte| byte ^ turn != 0)?;
        byte * 8 + (bytes[byte] ^ turn).leading_zeros() as usize
    };
    (at <= last).then_some(at)
}

/// BITPOS's range, in the order in which Redis reads it.
fn search_range(words: &[&[u8]]) -> Result<Range, Refused> {
    let [_, _, _, start, rest @ ..] = words else { return Ok(Range { start: 0, end: None, in_bits: false }) };
    if rest.len() > 2 {
        return Err(SYNTAX.into());
    }
    let start = integer(start)?;
    let in_bits = rest.get(1).map_or(Ok(false), |unit| Range::unit(unit))?;
    let end = rest.first().map(|end| integer(end)).transpose()?;
    Ok(Range { start, end, in_bits })
}

fn bitpos(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let found = (|| {
        let bit = match integer(words[2])? {
            bit @ 0..=1 => bit == 1,
            _ => return Err("ERR The bit argument must be 1 or 0.".into()),
        };
        let range = search_range(words)?;
        of_value(ctx, if bit { -1 } else { 0 }, |bytes| {
            Ok(match range.bits(bytes.len()) {
                None => -1,
                Some((first, last)) => match position(bytes, bit, first, last) {
                    Some(at) => at as i64,
                    // A value without an explicit end continues with zeros.
                    None if !bit && range.end.is_none() => last as i64 + 1,
                    None => -1,
                },
            })
        })
    })();
    say(found, out);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    And,
    Or,
    Xor,
    Not,
}

impl Operation {
    fn parse(words: &[&[u8]]) -> Result<Operation, Refused> {
        let operation = match words[1] {
            word if is(word, "and") => Operation::And,
            word if is(word, "or") => Operation::Or,
            word if is(word, "xor") => Operation::Xor,
            word if is(word, "not") => Operation::Not,
            _ => return Err(SYNTAX.into()),
        };
        if operation == Operation::Not && words.len() != 4 {
            return Err("ERR BITOP NOT must be called with a single source key.".into());
        }
        Ok(operation)
    }

    /// Combines sources byte by byte; those that are shorter than the longest go on with zeros.
    fn combine(self, sources: &[&[u8]]) -> Vec<u8> {
        let len = sources.iter().map(|source| source.len()).max().unwrap_or(0);
        let Some((first, rest)) = sources.split_first() else { return Vec::new() };
        let mut result = Vec::with_capacity(len);
        result.extend_from_slice(first);
        result.resize(len, 0);
        for source in rest {
            let pairs = result.iter_mut().zip(*source);
            match self {
                Operation::And => {
                    pairs.for_each(|(byte, other)| *byte &= other);
                    result[source.len()..].fill(0);
                }
                Operation::Or => pairs.for_each(|(byte, other)| *byte |= other),
                Operation::Xor => pairs.for_each(|(byte, other)| *byte ^= other),
                Operation::Not => {}
            }
        }
        if self == Operation::Not {
            result.iter_mut().for_each(|byte| *byte = !*byte);
        }
        result
    }
}

/// The result of BITOP computed before anything was locked.
pub(crate) struct Combined {
    /// The values that went in; [`None`] for no key.
    sources: Vec<Option<Arc<Vec<u8>>>>,
    result: Arc<Vec<u8>>,
}

/// Returns a source as a vector: a long one by reference, a short one copied.
fn taken(entry: Option<&Entry>) -> Result<Option<Arc<Vec<u8>>>, Refused> {
    let Some(entry) = entry else { return Ok(None) };
    if let Some(bytes) = entry.shared() {
        return Ok(Some(bytes));
    }
    let view = entry.string().ok_or(WRONG_TYPE)?;
    Ok(Some(Arc::new(view.text(&mut itoa::Buffer::new()).to_vec())))
}

/// Calls a function with BITOP's sources one after the other; expired sources count as existing.
fn each_source<R>(
    inner: &Inner,
    pass: &Pass<'_>,
    (words, db): (&[&[u8]], u32),
    mut look: impl FnMut(Option<&Entry>) -> R,
) -> Vec<R> {
    let keyspace = &inner.keyspace;
    let Some(db) = keyspace.db(pass, db) else { return Vec::new() };
    let sources = words.iter().skip(3).map(|key| {
        let hash = keyspace.hasher.hash(key);
        let stripe = db.lock(keyspace.stripe_of(hash));
        look(stripe.table.find(hash, key).map(|slot| stripe.table.entry(slot)))
    });
    sources.collect()
}

/// Returns whether BITOP has so much work that it must hold its keys and compute before it locks them. Nothing is
/// locked yet.
fn is_large(inner: &Inner, pass: &Pass<'_>, words: &[&[u8]], db: u32) -> bool {
    let len = |entry: Option<&Entry>| entry.and_then(Entry::string).map_or(0, View::len);
    each_source(inner, pass, (words, db), len).into_iter().sum::<usize>() > COMBINED_UNDER_LOCKS
}

/// Combines long sources before anything is locked.
fn combine(ctx: &mut Ctx<'_>) {
    let Ok(operation) = Operation::parse(ctx.words) else { return };
    if !is_large(ctx.inner, ctx.pass, ctx.words, ctx.db) {
        return;
    }
    let sources = each_source(ctx.inner, ctx.pass, (ctx.words, ctx.db), taken);
    let Ok(sources) = sources.into_iter().collect::<Result<Vec<_>, _>>() else { return };
    // SAFETY: the sources are held by reference; no database is used after this until it is looked up again.
    let result = unsafe { ctx.pass.outside(|| operation.combine(&slices(&sources))) };
    ctx.ahead.get_or_insert_default().combined = Some(Box::new(Combined { sources, result: Arc::new(result) }));
}

fn slices(sources: &[Option<Arc<Vec<u8>>>]) -> Vec<&[u8]> {
    sources.iter().map(|source| source.as_deref().map_or(&b""[..], Vec::as_slice)).collect()
}

impl Combined {
    /// Returns the result, if the sources are unchanged.
    fn result(self, sources: &[Option<Arc<Vec<u8>>>]) -> Option<Arc<Vec<u8>>> {
        let same = self.sources.iter().zip(sources).all(|(before, now)| match (before, now) {
            // A reference keeps a long value from being edited in place.
            (Some(before), Some(now)) if before.len() >= SHARED_MIN => Arc::ptr_eq(before, now),
            (before, now) => before == now,
        });
        same.then_some(self.result)
    }
}

fn bitop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let combined = ctx.ahead.as_mut().and_then(|ahead| ahead.combined.take());
    let combined = combined.and_then(|combined| combined.downcast::<Combined>().ok());
    let result = (|| {
        let operation = Operation::parse(ctx.words)?;
        let sources: Vec<_> = (1..ctx.places.len()).map(|index| taken(ctx.read(index))).collect::<Result<_, _>>()?;
        let result = combined
            .and_then(|combined| combined.result(&sources))
            .unwrap_or_else(|| Arc::new(operation.combine(&slices(&sources))));
        let len = result.len();
        let mut key = ctx.key(0);
        if len == 0 {
            if key.remove() {
                ctx.notify(0, Class::Generic, "del");
            }
        } else {
            let value = match Arc::try_unwrap(result) {
                Ok(bytes) => Value::Vec { bytes, raw: true },
                Err(bytes) => Value::Shared { bytes, raw: true },
            };
            key.set(value, None);
            ctx.notify(0, Class::String, "set");
        }
        out.integer(len as i64);
        Ok(())
    })();
    or_error(result, out);
}

const READS: CommandSpec = CommandSpec {
    flags: Flags::READONLY,
    keys: KeyRule::ONE,
    categories: &[Category::Bitmap],
    cost: Cost::PerByte,
    group: "bitmap",
    has_offsets: true,
    complexity: "O(N)",
    ..CommandSpec::EMPTY
};

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "setbit",
        arity: 4,
        flags: Flags::WRITE.and(Flags::DENYOOM),
        cost: Cost::Constant,
        since: "2.2.0",
        summary: "Sets or clears the bit at offset of the string value. Creates the key if it doesn't exist.",
        complexity: "O(1)",
        handler: Handler::Keyspace(setbit),
        ..READS
    },
    CommandSpec {
        name: "getbit",
        arity: 3,
        flags: Flags::READONLY.and(Flags::FAST),
        cost: Cost::Constant,
        since: "2.2.0",
        summary: "Returns a bit value by offset.",
        complexity: "O(1)",
        handler: Handler::Keyspace(getbit),
        ..READS
    },
    CommandSpec {
        name: "bitcount",
        visits: Some(visits::bytes),
        arity: -2,
        since: "2.6.0",
        summary: "Counts the number of set bits (population counting) in a string.",
        handler: Handler::Keyspace(bitcount),
        ..READS
    },
    CommandSpec {
        name: "bitpos",
        visits: Some(visits::bytes),
        arity: -3,
        since: "2.8.7",
        summary: "Finds the first set (1) or clear (0) bit in a string.",
        handler: Handler::Keyspace(bitpos),
        ..READS
    },
    CommandSpec {
        name: "bitop",
        visits: Some(visits::bytes),
        writes: WrittenKeys::First,
        records: Records::Derived,
        arity: -4,
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: KeyRule::Range { first: 2, last: -1, step: 1 },
        since: "2.6.0",
        summary: "Performs bitwise operations on multiple strings, and stores the result.",
        large: Some(is_large),
        prepare: Some(combine),
        handler: Handler::Keyspace(bitop),
        ..READS
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts and finds bit by bit.
    #[track_caller]
    fn check(bytes: &[u8]) {
        let bit = |at: usize| bytes[at / 8] >> (7 - at % 8) & 1 == 1;
        for first in 0..bytes.len() * 8 {
            for last in first..bytes.len() * 8 {
                let slow = (first..=last).filter(|at| bit(*at)).count() as u64;
                assert_eq!(count(bytes, first, last), slow, "{bytes:?} {first} {last}");
                for wanted in [false, true] {
                    let slow = (first..=last).find(|at| bit(*at) == wanted);
                    assert_eq!(position(bytes, wanted, first, last), slow, "{bytes:?} {first} {last} {wanted}");
                }
            }
        }
    }

    #[test]
    fn bits_are_counted_and_found_as_one_by_one() {
        check(&[0]);
        check(&[0xff; 20]);
        check(&[0; 20]);
        check(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0x40, 0, 0]);
        check(&[0xff, 0xff, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0xff]);
        check(b"some text with many bits");
    }
}
