//! Commands on hashes.
//!
//! Commands on single fields take constant time; HGETALL, HKEYS and HVALS copy a whole hash under its stripe's lock. An
//! expired field that a command names is removed, with an event of its own (`hexpired`); commands over all fields skip
//! expired ones, and leave them to the sweep.

use sluicegate_data::float::Extended;
use sluicegate_data::object::COPIED_MAX;
use sluicegate_data::object::elements::{Expiry, TIMELESS};
use sluicegate_data::object::packed::Element;
use sluicegate_data::object::{Hash, Kind};
use sluicegate_data::random::random;
use sluicegate_data::texts::Texts;
use sluicegate_wire::resp::{ReplySink, parse_i64};

use super::scan::{self, Options};
use super::set::count_to_draw;
use super::{NOT_INTEGER, Refused, SYNTAX, is, or_error};
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::notify::Class;
use crate::visits;

/// In a hash with values from this size on, HMGET first checks how much is requested.
const LONG_VALUE: usize = 1024;

/// Writes a field's value.
fn say(value: Option<Element<'_>>, out: &mut dyn ReplySink) {
    match value {
        Some(value) => out.bulk(value.text(&mut itoa::Buffer::new())),
        None => out.null(),
    }
}

/// Sets pairs from word 2 on. Returns the number of new fields.
fn set_pairs(ctx: &mut Ctx<'_>, command: &str) -> Result<usize, Refused> {
    let words = ctx.words;
    if !words.len().is_multiple_of(2) {
        return Err(format!("ERR wrong number of arguments for '{command}' command").into());
    }
    let limits = ctx.limits();
    let mut key = ctx.key(0);
    let now_ms = key.element_time();
    let added = key.edit_as(|hash: &mut Hash| {
        let pairs = words[2..].chunks_exact(2);
        hash.expect(pairs.len(), limits);
        pairs.filter(|pair| hash.insert(pair[0], pair[1], Expiry::None, now_ms, limits)).count()
    })?;
    ctx.notify(0, Class::Hash, "hset");
    Ok(added)
}

fn hset(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    or_error(set_pairs(ctx, "hset").map(|added| out.integer(added as i64)), out);
}

fn hmset(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    or_error(set_pairs(ctx, "hmset").map(|_| out.ok()), out);
}

fn hsetnx(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let limits = ctx.limits();
    let mut key = ctx.key(0);
    let now_ms = key.element_time();
    if now_ms != TIMELESS {
        ctx.expire_fields(0, &words[2..3], true);
        key = ctx.key(0);
    }
    let result = key.edit_as(|hash: &mut Hash| {
        let absent = hash.get(words[2], now_ms).is_none();
        absent && hash.insert(words[2], words[3], Expiry::None, now_ms, limits)
    });
    if result == Ok(true) {
        ctx.notify(0, Class::Hash, "hset");
    }
    or_error(result.map(|set| out.integer(i64::from(set))), out);
}

/// The result of looking up named fields.
#[derive(PartialEq, Eq)]
enum Seen {
    /// The reply is complete.
    All,
    /// Fields were missed, which may have expired.
    NotAll,
    /// Nothing was written: the value is too long to be copied under the lock.
    Long,
}

impl Seen {
    fn missed(any: bool) -> Seen {
        if any { Seen::NotAll } else { Seen::All }
    }
}

/// Calls `see` with the hash at key 0 and the time, to write the reply.
fn look(
    ctx: &mut Ctx<'_>,
    out: &mut dyn ReplySink,
    fields: &[&[u8]],
    see: impl FnOnce(Option<&Hash>, i64, &mut dyn ReplySink) -> Seen,
) {
    let result = ctx.read_timed::<Hash>(0).map(|hash| match &hash {
        None => (see(None, TIMELESS, out), TIMELESS),
        Some((hash, now_ms)) => (see(Some(hash), *now_ms, out), *now_ms),
    });
    match result {
        Ok((Seen::All, _) | (Seen::NotAll, TIMELESS)) => {}
        Ok((Seen::NotAll, _)) => ctx.expire_fields(0, fields, false),
        Ok((Seen::Long, _)) => drop(ctx.defer()),
        Err(refused) => out.error_bytes(refused.text()),
    }
}

fn hget(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let (fields, defers) = (&ctx.words[2..], ctx.defers);
    look(ctx, out, fields, |hash, now_ms, out| {
        let value = hash.and_then(|hash| hash.get(fields[0], now_ms));
        if defers && value.is_some_and(Element::is_long) {
            return Seen::Long;
        }
        say(value, out);
        Seen::missed(value.is_none())
    });
}

fn hmget(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let (fields, defers) = (&ctx.words[2..], ctx.defers);
    look(ctx, out, fields, |hash, now_ms, out| {
        if let Some(hash) = hash
            && defers
            && hash.bytes() / LONG_VALUE > hash.len()
        {
            let len = |field: &&[u8]| match hash.get(field, now_ms) {
                Some(Element::Bytes(bytes)) => bytes.len(),
                _ => 0,
            };
            if fields.iter().map(len).sum::<usize>() > COPIED_MAX {
                return Seen::Long;
            }
        }
        out.array(fields.len());
        let mut misses = false;
        for field in fields {
            let value = hash.and_then(|hash| hash.get(field, now_ms));
            misses |= value.is_none();
            say(value, out);
        }
        Seen::missed(misses)
    });
}

fn hgetall(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = ctx.read_timed::<Hash>(0).map(|hash| {
        let Some((hash, now_ms)) = hash else { return out.map(0) };
        out.map(hash.living(now_ms));
        hash.each(now_ms, |field, value| {
            out.bulk(field);
            out.bulk(value);
        });
    });
    or_error(result, out);
}

/// Writes the fields, or the values.
fn one_side(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, values: bool) {
    let result = ctx.read_timed::<Hash>(0).map(|hash| {
        let Some((hash, now_ms)) = hash else { return out.array(0) };
        out.array(hash.living(now_ms));
        hash.each(now_ms, |field, value| out.bulk(if values { value } else { field }));
    });
    or_error(result, out);
}

fn hkeys(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    one_side(ctx, out, false);
}

fn hvals(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    one_side(ctx, out, true);
}

fn hlen(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = ctx.read_as::<Hash>(0).map(|hash| out.integer(hash.map_or(0, |hash| hash.len()) as i64));
    or_error(result, out);
}

fn hexists(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let fields = &ctx.words[2..];
    look(ctx, out, fields, |hash, now_ms, out| {
        let is_there = hash.is_some_and(|hash| hash.get(fields[0], now_ms).is_some());
        out.integer(i64::from(is_there));
        Seen::missed(!is_there)
    });
}

fn hstrlen(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let fields = &ctx.words[2..];
    look(ctx, out, fields, |hash, now_ms, out| {
        let value = hash.and_then(|hash| hash.get(fields[0], now_ms));
        out.integer(value.map_or(0, |value| value.text(&mut itoa::Buffer::new()).len()) as i64);
        Seen::missed(value.is_none())
    });
}

fn hdel(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let mut key = ctx.key(0);
    let now_ms = key.element_time();
    if now_ms != TIMELESS {
        ctx.expire_fields(0, &words[2..], true);
        key = ctx.key(0);
    }
    let result =
        key.edit_existing_as(|hash: &mut Hash| words[2..].iter().filter(|field| hash.remove(field, now_ms)).count());
    let is_gone = !key.exists();
    let result = result.map(|removed| removed.unwrap_or(0));
    if result.as_ref().is_ok_and(|removed| *removed > 0) {
        ctx.notify(0, Class::Hash, "hdel");
        if is_gone {
            ctx.notify(0, Class::Generic, "del");
        }
    }
    or_error(result.map(|removed| out.integer(removed as i64)), out);
}

fn hincrby(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = parse_i64(words[3]).ok_or(NOT_INTEGER.into()).and_then(|delta| {
        let limits = ctx.limits();
        let mut key = ctx.key(0);
        let now_ms = key.element_time();
        if now_ms != TIMELESS {
            ctx.expire_fields(0, &words[2..3], true);
            key = ctx.key(0);
        }
        key.edit_as(|hash: &mut Hash| {
            let old = match hash.get(words[2], now_ms) {
                None => Some(0),
                Some(Element::Int(value)) => Some(value),
                Some(Element::Bytes(bytes)) => parse_i64(bytes),
            };
            let old = old.ok_or("ERR hash value is not an integer")?;
            let sum = old.checked_add(delta).ok_or("ERR increment or decrement would overflow")?;
            hash.insert(words[2], itoa::Buffer::new().format(sum).as_bytes(), Expiry::Keep, now_ms, limits);
            Ok::<i64, Refused>(sum)
        })?
    });
    if result.is_ok() {
        ctx.notify(0, Class::Hash, "hincrby");
    }
    or_error(result.map(|sum| out.integer(sum)), out);
}

fn hincrbyfloat(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let delta = Extended::parse(words[3]).ok_or(Refused::from("ERR value is not a valid float"));
    let result = delta.and_then(|delta| {
        if delta.is_infinite() {
            return Err("ERR value is NaN or Infinity".into());
        }
        let limits = ctx.limits();
        let mut key = ctx.key(0);
        let now_ms = key.element_time();
        if now_ms != TIMELESS {
            ctx.expire_fields(0, &words[2..3], true);
            key = ctx.key(0);
        }
        key.edit_as(|hash: &mut Hash| {
            let old = match hash.get(words[2], now_ms) {
                None => Some(Extended::ZERO),
                Some(value) => Extended::parse(value.text(&mut itoa::Buffer::new())),
            };
            let old = old.ok_or("ERR hash value is not a float")?;
            let sum = old.checked_add(delta).ok_or("ERR increment would produce NaN or Infinity")?.to_text();
            hash.insert(words[2], &sum, Expiry::Keep, now_ms, limits);
            Ok::<_, Refused>(sum)
        })?
    });
    if let Ok(sum) = &result {
        if ctx.records() {
            let expiry = ctx.key(0).object::<Hash>().ok().flatten().and_then(|hash| hash.expiry_of(words[2], TIMELESS));
            ctx.record_as(&[b"HSET", words[1], words[2], sum]);
            if let Some(Some(at_ms)) = expiry {
                super::field_expiry::record_expiry(ctx, at_ms, &words[2..3]);
            }
        }
        ctx.notify(0, Class::Hash, "hincrbyfloat");
    }
    or_error(result.map(|sum| out.bulk(&sum)), out);
}

fn hscan(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let cursor = scan::cursor(words)?;
        let Some((hash, now_ms)) = ctx.read_timed::<Hash>(0)? else {
            scan::say(None, &Texts::default(), out);
            return Ok(());
        };
        let options = Options::parse(&words[3..], true)?;
        let mut found = Texts::default();
        let next = hash.scan(cursor, options.count, now_ms, |field, value| {
            if options.wants(field) {
                found.push(field);
                if !options.only_fields {
                    found.push(value);
                }
            }
        });
        scan::say(next, &found, out);
        Ok(())
    })();
    or_error(result, out);
}

/// Writes a chosen field, with its value if requested: in RESP3 such pairs are nested arrays, because a map would lose
/// repeated ones.
fn say_chosen(field: &[u8], value: &[u8], (with_values, nested): (bool, bool), out: &mut dyn ReplySink) {
    if nested {
        out.array(2);
    }
    out.bulk(field);
    if with_values {
        out.bulk(value);
    }
}

fn hrandfield(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let (count, with_values) = match ctx.words {
            [_, _] => (None, false),
            [_, _, count] => (Some(count_to_draw(count)?), false),
            [_, _, count, option] => {
                let (magnitude, different) = count_to_draw(count)?;
                if !is(option, "withvalues") {
                    return Err(SYNTAX.into());
                }
                if magnitude > i64::MAX as usize / 2 {
                    return Err("ERR value is out of range".into());
                }
                (Some((magnitude, different)), true)
            }
            [_, _, count, ..] => {
                count_to_draw(count)?;
                return Err(SYNTAX.into());
            }
            _ => unreachable!("the arity is checked"),
        };
        let mut hash = ctx.read_timed::<Hash>(0)?;
        if hash.as_ref().is_some_and(|(hash, now_ms)| hash.earliest_ms().is_some_and(|at_ms| at_ms <= *now_ms)) {
            ctx.expire_some_fields(0);
            hash = ctx.read_timed::<Hash>(0)?;
        }
        // A hash in which everything has expired counts as missing.
        let hash = hash.map(|(hash, now_ms)| (hash.living(now_ms), hash, now_ms)).filter(|(living, ..)| *living > 0);
        match (hash, count) {
            (None, None) => out.null(),
            (None, Some(_)) => out.array(0),
            (Some((_, hash, now_ms)), None) => hash.draw(1, now_ms, &mut random, |field, _| out.bulk(field)),
            (Some((living, hash, now_ms)), Some((count, different))) => {
                let said = if different { count.min(living) } else { count };
                let nested = with_values && out.pairs(said);
                if !with_values {
                    out.array(said);
                }
                let say = |field: &[u8], value: &[u8]| say_chosen(field, value, (with_values, nested), out);
                match different {
                    true => hash.some(count, now_ms, &mut random, say),
                    false => hash.draw(count, now_ms, &mut random, say),
                }
            }
        }
        Ok(())
    })();
    or_error(result, out);
}

const WRITES: Flags = Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST);
const READS: Flags = Flags::READONLY.and(Flags::FAST);

const fn row(
    name: &'static str,
    arity: i32,
    flags: Flags,
    summary: &'static str,
    handle: super::Handle,
) -> CommandSpec {
    CommandSpec {
        name,
        arity,
        flags,
        summary,
        keys: KeyRule::ONE,
        categories: &[Category::Hash],
        since: "2.0.0",
        group: "hash",
        complexity: "O(1)",
        handler: Handler::Keyspace(handle),
        ..CommandSpec::EMPTY
    }
}

/// Returns a row whose work grows with the hash.
const fn whole(name: &'static str, summary: &'static str, handle: super::Handle) -> CommandSpec {
    CommandSpec {
        cost: Cost::PerElement,
        visits: Some(visits::all),
        complexity: "O(N) where N is the size of the hash.",
        ..row(name, 2, Flags::READONLY, summary, handle)
    }
}

const PER_FIELD: &str = "O(N) where N is the number of fields named.";

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        complexity: PER_FIELD,
        ..row(
            "hdel",
            -3,
            Flags::WRITE.and(Flags::FAST),
            "Deletes fields of a hash, and the hash with its last one.",
            hdel,
        )
    },
    row("hexists", 3, READS, "Tells whether a hash has a field.", hexists),
    row("hget", 3, READS, "Returns the value of a field.", hget),
    whole("hgetall", "Returns all fields and values of a hash.", hgetall),
    row("hincrby", 4, WRITES, "Adds to the integer in a field; 0 if there is none.", hincrby),
    CommandSpec {
        since: "2.6.0",
        ..row("hincrbyfloat", 4, WRITES, "Adds to the number in a field; 0 if there is none.", hincrbyfloat)
    },
    whole("hkeys", "Returns all fields of a hash.", hkeys),
    row("hlen", 2, READS, "Returns the number of fields of a hash.", hlen),
    CommandSpec { complexity: PER_FIELD, ..row("hmget", -3, READS, "Returns the values of some fields.", hmget) },
    CommandSpec { complexity: PER_FIELD, ..row("hmset", -4, WRITES, "Sets fields of a hash.", hmset) },
    CommandSpec {
        complexity: PER_FIELD,
        ..row("hset", -4, WRITES, "Sets fields of a hash; returns how many are new.", hset)
    },
    CommandSpec {
        since: "6.2.0",
        cost: Cost::PerElement,
        visits: Some(visits::drawn),
        complexity: "O(N) where N is the number of fields returned.",
        ..row("hrandfield", -2, Flags::READONLY, "Returns fields chosen by chance.", hrandfield)
    },
    CommandSpec {
        since: "2.8.0",
        cost: Cost::PerElement,
        visits: Some(visits::behind_count),
        complexity: "O(1) for every call. O(N) for a complete iteration, where N is the size of the hash.",
        ..row("hscan", -3, Flags::READONLY, "Goes through the fields of a hash, a few at each call.", hscan)
    },
    row("hsetnx", 4, WRITES, "Sets a field that does not exist.", hsetnx),
    CommandSpec { since: "3.2.0", ..row("hstrlen", 3, READS, "Returns the length of a field's value.", hstrlen) },
    whole("hvals", "Returns all values of a hash.", hvals),
];
