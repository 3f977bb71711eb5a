//! Times to live of hash fields and set members: the HEXPIRE family of Redis 7.4, HGETEX, HSETEX and HGETDEL of Redis
//! 8.0, FIELDEXPIRE and FIELDTTL of Dragonfly.
//!
//! Replies, errors and the order of checks follow Redis's documentation and source, because the installed Redis is
//! older than these commands.

use std::ops::Range;

use sluicegate_data::object::elements::{Expiry, TIMELESS};
use sluicegate_data::object::packed::Element;
use sluicegate_data::object::{Hash, Kind, Object, Set};
use sluicegate_data::value::Entry;
use sluicegate_wire::resp::{ReplySink, parse_i64};

use super::expire::Unit;
use super::set::SPEXPIREAT;
use super::{NOT_INTEGER, Refused, WRONG_TYPE, integer, is, or_error};
use crate::catalogue::{Category, CommandSpec, Flags, Handler};
use crate::context::{Ctx, KeyMut};
use crate::keys::KeyRule;
use crate::notify::Class;

/// The latest expiry that a command may set, in Unix milliseconds: Redis stores it in 46 bits.
const LATEST_MS: i64 = (1 << 46) - 1;

const NO_FIELD: i64 = -2;
const NO_TIME: i64 = -1;
const CONDITION_FAILED: i64 = 0;
const DONE: i64 = 1;
const DELETED: i64 = 2;

const NO_FIELDS_WORD: &str = "ERR Mandatory argument FIELDS is missing or not at the right position";
const WRONG_COUNT: &str = "ERR The `numfields` parameter must match the number of arguments";
const NOT_POSITIVE: &str = "ERR Number of fields must be a positive integer";

/// Parses a number of seconds, 1 or more as in Dragonfly, and returns the time that far from now, in Unix milliseconds.
pub(super) fn seconds_from_now(word: &[u8], now_ms: i64) -> Result<i64, Refused> {
    let seconds = integer(word)?;
    let at_ms = seconds.checked_mul(1000).and_then(|ms| ms.checked_add(now_ms)).filter(|at_ms| *at_ms <= LATEST_MS);
    at_ms.filter(|_| seconds > 0).ok_or(NOT_INTEGER.into())
}

/// Parses a time in the given unit and returns it in Unix milliseconds.
fn time(word: &[u8], unit: Unit, now_ms: i64, command: &str) -> Result<i64, Refused> {
    let value = integer(word)?;
    if value < 0 {
        return Err("ERR invalid expire time, must be >= 0".into());
    }
    let (scale, base_ms) = match unit {
        Unit::Seconds => (1000, now_ms),
        Unit::Millis => (1, now_ms),
        Unit::UnixSeconds => (1000, 0),
        Unit::UnixMillis => (1, 0),
    };
    let at_ms = value.checked_mul(scale).and_then(|ms| ms.checked_add(base_ms)).filter(|at_ms| *at_ms <= LATEST_MS);
    at_ms.ok_or_else(|| format!("ERR invalid expire time in '{command}' command").into())
}

/// Returns the indices of the fields that `FIELDS numfields field…` names, where `at` is the index of FIELDS.
fn fields(words: &[&[u8]], at: usize, not_positive: &'static str) -> Result<Range<usize>, Refused> {
    if !words.get(at).is_some_and(|word| is(word, "fields")) {
        return Err(NO_FIELDS_WORD.into());
    }
    let count = words.get(at + 1).and_then(|word| parse_i64(word)).filter(|count| *count > 0).ok_or(not_positive)?;
    if usize::try_from(count).ok() != words.len().checked_sub(at + 2) {
        return Err(WRONG_COUNT.into());
    }
    Ok(at + 2..words.len())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    None,
    Nx,
    Xx,
    Gt,
    Lt,
}

impl Condition {
    fn parse(word: &[u8]) -> Condition {
        match () {
            () if is(word, "nx") => Condition::Nx,
            () if is(word, "xx") => Condition::Xx,
            () if is(word, "gt") => Condition::Gt,
            () if is(word, "lt") => Condition::Lt,
            () => Condition::None,
        }
    }

    /// Returns whether the condition allows the new time. A field without an expiry counts as never expiring: GT always
    /// fails for it, and LT always succeeds.
    fn allows(self, at_ms: i64, current: Option<i64>) -> bool {
        match self {
            Condition::None => true,
            Condition::Nx => current.is_none(),
            Condition::Xx => current.is_some(),
            Condition::Gt => current.is_some_and(|current| at_ms > current),
            Condition::Lt => current.is_none_or(|current| at_ms < current),
        }
    }
}

/// Sets a field's expiry, or removes the field if the new time has passed; returns HEXPIRE's result code.
fn expire_field(hash: &mut Hash, field: &[u8], at_ms: i64, condition: Condition, now_ms: i64) -> i64 {
    match hash.expiry_of(field, now_ms) {
        None => NO_FIELD,
        Some(current) if !condition.allows(at_ms, current) => CONDITION_FAILED,
        Some(_) if at_ms <= now_ms => {
            hash.remove(field, now_ms);
            DELETED
        }
        Some(_) => {
            hash.set_expiry(field, Some(at_ms), now_ms);
            DONE
        }
    }
}

/// Records that fields of the hash at key 0 expire at a time.
pub(super) fn record_expiry(ctx: &mut Ctx<'_>, at_ms: i64, fields: &[&[u8]]) {
    if ctx.records() && !fields.is_empty() {
        let [at, count] = [at_ms, fields.len() as i64].map(|number| number.to_string().into_bytes());
        ctx.record_own(&[&[b"HPEXPIREAT", ctx.words[1], &at, b"FIELDS", &count], fields].concat());
    }
}

/// Records which fields of the hash at key 0 expire at a time, and which were removed.
fn record_codes(ctx: &mut Ctx<'_>, fields: &[&[u8]], codes: &[i64], at_ms: i64) {
    if !ctx.records() {
        return;
    }
    record_removal(ctx, &with_code(fields, codes, DELETED));
    record_expiry(ctx, at_ms, &with_code(fields, codes, DONE));
}

/// Returns the elements of which this is the code.
fn with_code<'w>(elements: &[&'w [u8]], codes: &[i64], code: i64) -> Vec<&'w [u8]> {
    elements.iter().zip(codes).filter(|(_, found)| **found == code).map(|(element, _)| *element).collect()
}

/// Records that fields of the hash at key 0 were removed.
fn record_removal(ctx: &mut Ctx<'_>, fields: &[&[u8]]) {
    if ctx.records() && !fields.is_empty() {
        ctx.record_as(&[&[b"HDEL", ctx.words[1]], fields].concat());
    }
}

/// Emits the event of the changed fields and, if the key no longer exists, a `del` event.
fn notify(ctx: &mut Ctx<'_>, name: &'static str) {
    ctx.notify(0, Class::Hash, name);
    if !ctx.key(0).exists() {
        ctx.notify(0, Class::Generic, "del");
    }
}

/// Fails if the key exists and is not a hash.
fn check_hash(key: &KeyMut<'_, '_>) -> Result<(), Refused> {
    key.object::<Hash>().map(drop)
}

fn say_all(codes: &[i64], out: &mut dyn ReplySink) {
    out.array(codes.len());
    codes.iter().for_each(|code| out.integer(*code));
}

fn hexpire_in(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, unit: Unit, command: &str) {
    let words = ctx.words;
    let result = (|| {
        let at_ms = time(words[2], unit, ctx.now.ms(), command);
        let now_ms = ctx.expiry_ms();
        let mut key = ctx.key(0);
        check_hash(&key)?;
        let at_ms = at_ms?;
        let condition = Condition::parse(words[3]);
        let at = 3 + usize::from(condition != Condition::None);
        let fields = fields(words, at, "ERR Parameter `numFields` should be greater than 0")?;
        let fields = &words[fields];
        let codes = key.edit_existing_as(|hash: &mut Hash| {
            fields.iter().map(|field| expire_field(hash, field, at_ms, condition, now_ms)).collect::<Vec<i64>>()
        })?;
        let codes = codes.unwrap_or_else(|| vec![NO_FIELD; fields.len()]);
        record_codes(ctx, fields, &codes, at_ms);
        if codes.contains(&DELETED) {
            notify(ctx, "hdel");
        } else if codes.contains(&DONE) {
            notify(ctx, "hexpire");
        }
        say_all(&codes, out);
        Ok(())
    })();
    or_error(result, out);
}

fn hexpire(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    hexpire_in(ctx, out, Unit::Seconds, "hexpire");
}

fn hpexpire(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    hexpire_in(ctx, out, Unit::Millis, "hpexpire");
}

fn hexpireat(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    hexpire_in(ctx, out, Unit::UnixSeconds, "hexpireat");
}

fn hpexpireat(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    hexpire_in(ctx, out, Unit::UnixMillis, "hpexpireat");
}

fn httl_in(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, unit: Unit) {
    let words = ctx.words;
    let result = (|| {
        let now_ms = ctx.now.ms();
        let hash = ctx.read_as::<Hash>(0)?;
        let fields = fields(words, 2, NOT_POSITIVE)?;
        out.array(fields.len());
        for field in &words[fields] {
            let expiry = hash.as_ref().and_then(|hash| hash.expiry_of(field, now_ms));
            out.integer(match expiry {
                None => NO_FIELD,
                Some(None) => NO_TIME,
                // Seconds are rounded up, so that an existing field never has 0 left.
                Some(Some(at_ms)) => match unit {
                    Unit::Seconds => (at_ms - now_ms + 999) / 1000,
                    Unit::Millis => at_ms - now_ms,
                    Unit::UnixSeconds => (at_ms + 999) / 1000,
                    Unit::UnixMillis => at_ms,
                },
            });
        }
        Ok(())
    })();
    or_error(result, out);
}

fn httl(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    httl_in(ctx, out, Unit::Seconds);
}

fn hpttl(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    httl_in(ctx, out, Unit::Millis);
}

fn hexpiretime(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    httl_in(ctx, out, Unit::UnixSeconds);
}

fn hpexpiretime(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    httl_in(ctx, out, Unit::UnixMillis);
}

/// Removes a field's expiry.
fn persist_field(hash: &mut Hash, field: &[u8], now_ms: i64) -> i64 {
    match hash.expiry_of(field, now_ms) {
        None => NO_FIELD,
        Some(None) => NO_TIME,
        Some(Some(_)) => {
            hash.set_expiry(field, None, now_ms);
            DONE
        }
    }
}

fn hpersist(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let mut key = ctx.key(0);
        check_hash(&key)?;
        let fields = &words[fields(words, 2, NOT_POSITIVE)?];
        let now_ms = key.element_time();
        let codes = key.edit_existing_as(|hash: &mut Hash| {
            fields.iter().map(|field| persist_field(hash, field, now_ms)).collect::<Vec<i64>>()
        })?;
        let codes = codes.unwrap_or_else(|| vec![NO_FIELD; fields.len()]);
        if codes.contains(&DONE) {
            ctx.record_own(words);
            notify(ctx, "hpersist");
        }
        say_all(&codes, out);
        Ok(())
    })();
    or_error(result, out);
}

/// Returns the unit of EX, PX, EXAT and PXAT.
fn unit_of(word: &[u8]) -> Option<Unit> {
    let units = [("ex", Unit::Seconds), ("px", Unit::Millis), ("exat", Unit::UnixSeconds), ("pxat", Unit::UnixMillis)];
    units.into_iter().find(|(name, _)| is(word, name)).map(|(_, unit)| unit)
}

fn text(value: Element<'_>) -> Vec<u8> {
    value.text(&mut itoa::Buffer::new()).to_vec()
}

fn say_values(values: &[Option<Vec<u8>>], out: &mut dyn ReplySink) {
    out.array(values.len());
    values.iter().for_each(|value| match value {
        Some(value) => out.bulk(value),
        None => out.null(),
    });
}

fn hgetex(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let (clock_ms, now_ms) = (ctx.now.ms(), ctx.expiry_ms());
        let mut key = ctx.key(0);
        key.note_read();
        check_hash(&key)?;
        let mut change = Expiry::Keep;
        let mut at = 2;
        if let Some(unit) = unit_of(words[2]) {
            change = Expiry::At(time(words[3], unit, clock_ms, "hgetex")?);
            at = 4;
        } else if is(words[2], "persist") {
            (change, at) = (Expiry::None, 3);
        }
        let fields = &words[fields(words, at, NOT_POSITIVE)?];
        ctx.expire_fields(0, fields, true);
        let mut key = ctx.key(0);
        let (mut values, mut codes, mut event) = (Vec::with_capacity(fields.len()), Vec::new(), None);
        key.edit_existing_as(|hash: &mut Hash| {
            for field in fields {
                let value = hash.get(field, now_ms).map(text);
                let code = match change {
                    _ if value.is_none() => NO_FIELD,
                    Expiry::Keep => NO_TIME,
                    Expiry::None => persist_field(hash, field, now_ms),
                    Expiry::At(at_ms) => expire_field(hash, field, at_ms, Condition::None, now_ms),
                };
                event = match code {
                    DONE if change == Expiry::None => Some("hpersist"),
                    DONE => Some("hexpire"),
                    DELETED => event.or(Some("hdel")),
                    _ => event,
                };
                values.push(value);
                codes.push(code);
            }
        })?;
        values.resize(fields.len(), None);
        if let Some(event) = event {
            match change {
                Expiry::At(at_ms) => record_codes(ctx, fields, &codes, at_ms),
                _ => {
                    let count = fields.len().to_string();
                    ctx.record_own(&[&[b"HPERSIST", words[1], b"FIELDS", count.as_bytes()], fields].concat());
                }
            }
            notify(ctx, event);
        }
        say_values(&values, out);
        Ok(())
    })();
    or_error(result, out);
}

fn hgetdel(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let mut key = ctx.key(0);
        key.note_read();
        check_hash(&key)?;
        let fields = &words[fields(words, 2, NOT_POSITIVE)?];
        let now_ms = key.element_time();
        if now_ms != TIMELESS {
            ctx.expire_fields(0, fields, true);
            key = ctx.key(0);
        }
        let values = key.edit_existing_as(|hash: &mut Hash| {
            let take = |field: &&[u8]| {
                let value = hash.get(field, now_ms).map(text);
                hash.remove(field, now_ms);
                value
            };
            fields.iter().map(take).collect::<Vec<_>>()
        })?;
        let values = values.unwrap_or_else(|| vec![None; fields.len()]);
        if values.iter().any(Option::is_some) {
            record_removal(ctx, fields);
            notify(ctx, "hdel");
        }
        say_values(&values, out);
        Ok(())
    })();
    or_error(result, out);
}

/// The options of HSETEX.
struct SetOptions {
    /// `true`: all fields must exist (FXX); `false`: none may (FNX).
    condition: Option<bool>,
    expiry: Expiry,
    pairs: Range<usize>,
}

impl SetOptions {
    fn parse(words: &[&[u8]], now_ms: i64) -> Result<SetOptions, Refused> {
        let wrong_number = || Refused::from("ERR wrong number of arguments for 'hsetex' command");
        let (mut condition, mut expiry) = (None, None);
        let mut at = 2;
        while at < words.len() {
            let word = words[at];
            if is(word, "fields") {
                let count = words.get(at + 1..).filter(|rest| rest.len() >= 3).ok_or_else(wrong_number)?[0];
                let count = parse_i64(count).filter(|count| (1..=i64::from(i32::MAX)).contains(count));
                let count = count.ok_or("ERR invalid number of fields")?;
                let pairs = at + 2..words.len();
                if pairs.len() as i64 != 2 * count {
                    return Err(wrong_number());
                }
                return Ok(SetOptions { condition, expiry: expiry.unwrap_or(Expiry::None), pairs });
            }
            let unit = unit_of(word);
            if unit.is_some() || is(word, "keepttl") {
                if expiry.is_some() {
                    let text = "ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified";
                    return Err(text.into());
                }
                expiry = Some(match unit {
                    None => Expiry::Keep,
                    Some(unit) => {
                        at += 1;
                        let value = words.get(at).ok_or("ERR missing expire time")?;
                        Expiry::At(time(value, unit, now_ms, "hsetex")?)
                    }
                });
            } else if is(word, "fxx") || is(word, "fnx") {
                if condition.is_some() {
                    return Err("ERR Only one of FXX or FNX arguments can be specified".into());
                }
                condition = Some(is(word, "fxx"));
            } else {
                return Err([b"ERR unknown argument: ", word].concat().into());
            }
            at += 1;
        }
        Err(wrong_number())
    }
}

fn hsetex(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let SetOptions { condition, expiry, pairs } = SetOptions::parse(words, ctx.now.ms())?;
        let now_ms = ctx.expiry_ms();
        let set = pairs.clone();
        if let Some(there) = condition {
            // Fields are examined up to the first that does not meet the condition, as in Redis.
            let key = ctx.key(0);
            let hash = key.object::<Hash>()?;
            let meets =
                |pair: &&[&[u8]]| hash.as_ref().is_some_and(|hash| hash.get(pair[0], now_ms).is_some()) == there;
            let asked = words[pairs.clone()].chunks_exact(2).take_while(meets).count() + 1;
            let fields: Vec<&[u8]> = words[pairs.clone()].chunks_exact(2).take(asked).map(|pair| pair[0]).collect();
            ctx.expire_fields(0, &fields, true);
        }
        let limits = ctx.limits();
        let mut key = ctx.key(0);
        let past = matches!(expiry, Expiry::At(at_ms) if at_ms <= now_ms);
        let done = key.edit_as(|hash: &mut Hash| {
            let mut pairs = words[pairs].chunks_exact(2);
            if let Some(there) = condition
                && !pairs.clone().all(|pair| hash.get(pair[0], now_ms).is_some() == there)
            {
                return false;
            }
            pairs.all(|pair| {
                if past {
                    hash.remove(pair[0], now_ms);
                } else {
                    hash.insert(pair[0], pair[1], expiry, now_ms, limits);
                }
                true
            })
        })?;
        if done {
            record_set(ctx, &words[set], expiry, now_ms);
            ctx.notify(0, Class::Hash, "hset");
            match expiry {
                Expiry::At(_) if past => notify(ctx, "hdel"),
                Expiry::At(_) => ctx.notify(0, Class::Hash, "hexpire"),
                Expiry::None | Expiry::Keep => {}
            }
        }
        out.integer(i64::from(done));
        Ok(())
    })();
    or_error(result, out);
}

/// Records that HSETEX has set these fields, each with its value behind it.
fn record_set(ctx: &mut Ctx<'_>, pairs: &[&[u8]], expiry: Expiry, now_ms: i64) {
    if !ctx.records() {
        return;
    }
    let fields: Vec<&[u8]> = pairs.iter().step_by(2).copied().collect();
    if matches!(expiry, Expiry::At(at_ms) if at_ms <= now_ms) {
        return record_removal(ctx, &fields);
    }
    // HSET removes expiries, so those that stay are set again.
    let kept: Vec<(i64, &[u8])> = match expiry {
        Expiry::Keep => {
            let hash = ctx.key(0);
            let hash = hash.object::<Hash>().ok().flatten();
            let at = |field: &&[u8]| hash.as_ref()?.expiry_of(field, TIMELESS).flatten();
            fields.iter().filter_map(|field| Some((at(field)?, *field))).collect()
        }
        _ => Vec::new(),
    };
    ctx.record_as(&[&[b"HSET", ctx.words[1]], pairs].concat());
    if let Expiry::At(at_ms) = expiry {
        record_expiry(ctx, at_ms, &fields);
    }
    kept.into_iter().for_each(|(at_ms, field)| record_expiry(ctx, at_ms, &[field]));
}

/// Records which members of the set at key 0 expire at a time, and which were removed.
fn record_members(ctx: &mut Ctx<'_>, members: &[&[u8]], codes: &[i64], at_ms: i64) {
    if !ctx.records() {
        return;
    }
    let (key, at) = (ctx.words[1], at_ms.to_string());
    let (removed, timed) = (with_code(members, codes, DELETED), with_code(members, codes, DONE));
    if !removed.is_empty() {
        ctx.record_as(&[&[b"SREM", key], &removed[..]].concat());
    }
    if !timed.is_empty() {
        ctx.record_own(&[&[SPEXPIREAT, key, at.as_bytes()], &timed[..]].concat());
    }
}

/// A value whose elements may expire.
enum Timed<'o> {
    Hash(&'o Hash),
    Set(&'o Set),
}

impl<'o> Timed<'o> {
    fn of(object: &'o Object) -> Option<Timed<'o>> {
        Hash::of(object).map(Timed::Hash).or_else(|| Set::of(object).map(Timed::Set))
    }

    fn expiry_of(&self, element: &[u8], now_ms: i64) -> Option<Option<i64>> {
        match self {
            Timed::Hash(hash) => hash.expiry_of(element, now_ms),
            Timed::Set(set) => set.expiry_of(element, now_ms),
        }
    }
}

/// `FIELDTTL key field`, as in Dragonfly: the seconds left, or -1 without an expiry, -2 without the key, -3 without the
/// field.
fn fieldttl(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let field = ctx.words[2];
    let now_ms = ctx.now.ms();
    let Some(object) = ctx.read(0).map(Entry::object) else { return out.integer(-2) };
    match object.as_deref().and_then(Timed::of).map(|timed| timed.expiry_of(field, now_ms)) {
        None => out.error(WRONG_TYPE),
        Some(None) => out.integer(-3),
        Some(Some(None)) => out.integer(-1),
        Some(Some(Some(at_ms))) => out.integer((at_ms - now_ms + 999) / 1000),
    }
}

/// `FIELDEXPIRE key seconds field…`, as in Dragonfly: HEXPIRE's result for each field.
fn fieldexpire(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let at_ms = time(words[2], Unit::Seconds, ctx.now.ms(), "fieldexpire")?;
        let now_ms = ctx.expiry_ms();
        let fields = &words[3..];
        let mut key = ctx.key(0);
        let is_set = key.entry().and_then(Entry::object).is_some_and(|object| Set::of(&object).is_some());
        let codes = if is_set {
            key.edit_existing_as(|set: &mut Set| {
                let expire = |member: &&[u8]| match set.contains(member, now_ms) {
                    false => NO_FIELD,
                    true if at_ms <= now_ms => {
                        set.remove(member, now_ms);
                        DELETED
                    }
                    true => {
                        set.set_expiry(member, Some(at_ms), now_ms);
                        DONE
                    }
                };
                fields.iter().map(expire).collect::<Vec<i64>>()
            })?
        } else {
            key.edit_existing_as(|hash: &mut Hash| {
                let expire = |field: &&[u8]| expire_field(hash, field, at_ms, Condition::None, now_ms);
                fields.iter().map(expire).collect::<Vec<i64>>()
            })?
        };
        let codes = codes.unwrap_or_else(|| vec![NO_FIELD; fields.len()]);
        if is_set {
            record_members(ctx, fields, &codes, at_ms);
        } else {
            record_codes(ctx, fields, &codes, at_ms);
        }
        let (class, removed) = if is_set { (Class::Set, "srem") } else { (Class::Hash, "hdel") };
        if codes.contains(&DELETED) {
            ctx.notify(0, class, removed);
            if !ctx.key(0).exists() {
                ctx.notify(0, Class::Generic, "del");
            }
        } else if codes.contains(&DONE) {
            ctx.notify(0, class, if is_set { "fieldexpire" } else { "hexpire" });
        }
        say_all(&codes, out);
        Ok(())
    })();
    or_error(result, out);
}

const READS: Flags = Flags::READONLY.and(Flags::FAST);
const REMOVES: Flags = Flags::WRITE.and(Flags::FAST);
const ADDS: Flags = REMOVES.and(Flags::DENYOOM);

const fn row(
    name: &'static str,
    arity: i32,
    flags: Flags,
    since: &'static str,
    summary: &'static str,
    handle: super::Handle,
) -> CommandSpec {
    CommandSpec {
        name,
        arity,
        flags,
        since,
        summary,
        keys: KeyRule::ONE,
        categories: &[Category::Hash],
        group: "hash",
        complexity: "O(N) where N is the number of fields named.",
        handler: Handler::Keyspace(handle),
        ..CommandSpec::EMPTY
    }
}

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        categories: &[Category::Set, Category::Hash],
        group: "generic",
        ..row(
            "fieldexpire",
            -4,
            ADDS,
            "7.4.0",
            "Makes fields of a hash or members of a set expire; a command of Dragonfly's.",
            fieldexpire,
        )
    },
    CommandSpec {
        categories: &[Category::Keyspace],
        group: "generic",
        complexity: "O(1)",
        ..row(
            "fieldttl",
            3,
            READS,
            "7.4.0",
            "Returns the seconds that a field or member has left; a command of Dragonfly's.",
            fieldttl,
        )
    },
    row("hexpire", -6, ADDS, "7.4.0", "Makes fields expire, in seconds from now.", hexpire),
    row("hexpireat", -6, ADDS, "7.4.0", "Makes fields expire at a Unix time in seconds.", hexpireat),
    row("hexpiretime", -5, READS, "7.4.0", "Returns when fields expire, as Unix times in seconds.", hexpiretime),
    row("hgetdel", -5, REMOVES, "8.0.0", "Returns the values of fields and deletes them.", hgetdel),
    row("hgetex", -5, REMOVES, "8.0.0", "Returns the values of fields and sets their expiry.", hgetex),
    row("hpersist", -5, REMOVES, "7.4.0", "Takes the expiry of fields away.", hpersist),
    row("hpexpire", -6, ADDS, "7.4.0", "Makes fields expire, in milliseconds from now.", hpexpire),
    row("hpexpireat", -6, ADDS, "7.4.0", "Makes fields expire at a Unix time in milliseconds.", hpexpireat),
    row("hpexpiretime", -5, READS, "7.4.0", "Returns when fields expire, as Unix times in milliseconds.", hpexpiretime),
    row("hpttl", -5, READS, "7.4.0", "Returns the milliseconds that fields have left.", hpttl),
    row("hsetex", -6, ADDS, "8.0.0", "Sets fields and their expiry, perhaps only if all or none are there.", hsetex),
    row("httl", -5, READS, "7.4.0", "Returns the seconds that fields have left.", httl),
];
