//! Strings: SET and GET in all their forms, counters, ranges.

use std::sync::Arc;

use sluicegate_data::float::Extended;
use sluicegate_data::object::COPIED_MAX;
use sluicegate_data::value::{COPIED_BY_WORKER_MAX, Entry, Value, View};
use sluicegate_wire::resp::{ReplySink, parse_i64};

use super::expire::Unit;
use super::{NOT_INTEGER, Refused, SYNTAX, WRONG_TYPE, integer, is, or_error};
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Halves, Handler, LongWords};
use crate::context::{Ctx, KeyMut};
use crate::keys::KeyRule;
use crate::notify::Class;

const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
const NOT_FLOAT: &str = "ERR value is not a valid float";

/// Writes a value, or null.
fn say(view: Option<View<'_>>, out: &mut dyn ReplySink) {
    match view {
        None => out.null(),
        Some(View::Int(value)) => out.bulk_integer(value),
        Some(View::Bytes(bytes)) => out.bulk(bytes),
    }
}

/// Writes the value of a key that is about to change. A long one is returned instead, for [`say_late`], because copying
/// it takes longer than a stripe may be locked.
#[must_use = "a long value is still to be said"]
fn say_old(key: &KeyMut<'_, '_>, out: &mut dyn ReplySink) -> Result<Option<Arc<Vec<u8>>>, Refused> {
    let long = key.entry().and_then(Entry::shared);
    if long.is_none() {
        say(key.string()?, out);
    }
    Ok(long)
}

/// Unlocks the stripes and writes the key's former long value.
fn say_late(ctx: &mut Ctx<'_>, long: Option<Arc<Vec<u8>>>, out: &mut dyn ReplySink) {
    if let Some(bytes) = long {
        ctx.unlock();
        out.bulk(&bytes);
    }
}

/// Returns whether writing the value of key 0 takes too long for a worker, so that the command moves to the thread
/// pool.
fn defers_saying_old(ctx: &mut Ctx<'_>) -> bool {
    let long = ctx.key(0).entry().and_then(Entry::shared);
    long.is_some_and(|bytes| bytes.len() > COPIED_MAX) && ctx.defer()
}

/// Writes the value of key 0; a long one is copied after the stripe is unlocked, on the thread pool if it takes too
/// long for a worker.
fn say_first(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let entry = ctx.read(0);
    let bytes = match entry.map(|entry| (entry.shared(), entry.string())) {
        None => return out.null(),
        Some((None, Some(view))) => return say(Some(view), out),
        Some((None, None)) => return out.error(WRONG_TYPE),
        Some((Some(bytes), _)) => bytes,
    };
    if bytes.len() > COPIED_BY_WORKER_MAX && ctx.defer() {
        return;
    }
    ctx.unlock();
    out.bulk(&bytes);
}

fn get(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    say_first(ctx, out);
}

/// The options of SET and GETEX.
#[derive(Default)]
struct Options<'a> {
    nx: bool,
    xx: bool,
    get: bool,
    keep_ttl: bool,
    persist: bool,
    /// After Dragonfly: the key is never evicted.
    stick: bool,
    expiry: Option<(Unit, &'a [u8])>,
}

impl<'a> Options<'a> {
    /// Parses options; `sets` distinguishes SET from GETEX. Mutual exclusion follows Redis, which accepts the same time
    /// option twice and uses the last one.
    fn parse(words: &[&'a [u8]], sets: bool) -> Result<Options<'a>, Refused> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let unit = match () {
                () if is(word, "ex") => Some(Unit::Seconds),
                () if is(word, "px") => Some(Unit::Millis),
                () if is(word, "exat") => Some(Unit::UnixSeconds),
                () if is(word, "pxat") => Some(Unit::UnixMillis),
                () => None,
            };
            let timeless = options.expiry.is_none();
            match unit {
                Some(unit) => {
                    let other = options.expiry.is_some_and(|(before, _)| before != unit);
                    let time = words.next().ok_or(SYNTAX)?;
                    if other || options.keep_ttl || options.persist {
                        return Err(SYNTAX.into());
                    }
                    options.expiry = Some((unit, time));
                }
                None if is(word, "nx") && !options.xx && sets => options.nx = true,
                None if is(word, "xx") && !options.nx && sets => options.xx = true,
                None if is(word, "stick") && sets => options.stick = true,
                None if is(word, "get") && sets => options.get = true,
                None if is(word, "keepttl") && !options.persist && timeless && sets => options.keep_ttl = true,
                None if is(word, "persist") && !options.keep_ttl && timeless && !sets => options.persist = true,
                None => return Err(SYNTAX.into()),
            }
        }
        Ok(options)
    }
}

fn set(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    if words.len() == 3 {
        let value = ctx.value(2);
        ctx.key(0).set(value, None);
        ctx.notify(0, Class::String, "set");
        return out.ok();
    }
    let result = (|| {
        let options = Options::parse(&words[3..], true)?;
        let expiry = match options.expiry {
            Some((unit, time)) => Some(unit.expiry(time, "set", || ctx.now.ms())?),
            None => None,
        };
        if options.get && defers_saying_old(ctx) {
            return Ok(());
        }
        let value = ctx.value(2);
        let mut key = ctx.key(0);
        let mut long = None;
        if options.get {
            key.note_read_aloud();
            long = say_old(&key, out)?;
        }
        let goes = !(options.nx && key.exists() || options.xx && !key.exists());
        if goes {
            let kept = if options.keep_ttl { key.expiry() } else { None };
            key.set(value, expiry.or(kept));
            if options.stick {
                key.set_sticky(true);
            }
            if expiry.is_some() || options.stick {
                record_set(ctx, words[2], expiry, options.keep_ttl);
            }
            if options.stick {
                ctx.record_own(&[b"STICK", words[1]]);
            }
            ctx.notify(0, Class::String, "set");
            if expiry.is_some() {
                ctx.notify(0, Class::Generic, "expire");
            }
        }
        match (options.get, goes) {
            (true, _) => say_late(ctx, long, out),
            (false, true) => out.ok(),
            (false, false) => out.null(),
        }
        Ok(())
    })();
    or_error(result, out);
}

/// Records that key 0 was set.
fn record_set(ctx: &mut Ctx<'_>, value: &[u8], expiry: Option<i64>, keeps_ttl: bool) {
    let key = ctx.words[1];
    match expiry {
        Some(at_ms) => ctx.record_as(&[b"SET", key, value, b"PXAT", itoa::Buffer::new().format(at_ms).as_bytes()]),
        None if keeps_ttl => ctx.record_as(&[b"SET", key, value, b"KEEPTTL"]),
        None => ctx.record_as(&[b"SET", key, value]),
    }
}

fn set_for(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, unit: Unit, command: &str) {
    let time = ctx.words[2];
    let result = unit.expiry(time, command, || ctx.now.ms()).map(|at_ms| {
        let value = ctx.value(3);
        ctx.key(0).set(value, Some(at_ms));
        record_set(ctx, ctx.words[3], Some(at_ms), false);
        ctx.notify(0, Class::String, "set");
        ctx.notify(0, Class::Generic, "expire");
        out.ok();
    });
    or_error(result, out);
}

fn setex(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    set_for(ctx, out, Unit::Seconds, "setex");
}

fn psetex(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    set_for(ctx, out, Unit::Millis, "psetex");
}

fn setnx(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let value = ctx.value(2);
    let mut key = ctx.key(0);
    let absent = !key.exists();
    if absent {
        key.set(value, None);
        ctx.notify(0, Class::String, "set");
    }
    out.integer(i64::from(absent));
}

fn getset(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    if defers_saying_old(ctx) {
        return;
    }
    let value = ctx.value(2);
    let mut key = ctx.key(0);
    key.note_read_aloud();
    match say_old(&key, out) {
        Ok(long) => {
            key.set(value, None);
            record_set(ctx, ctx.words[2], None, false);
            ctx.notify(0, Class::String, "set");
            say_late(ctx, long, out);
        }
        Err(text) => out.error_bytes(text.text()),
    }
}

fn getdel(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    if defers_saying_old(ctx) {
        return;
    }
    let mut key = ctx.key(0);
    key.note_read_aloud();
    match say_old(&key, out) {
        Ok(long) => {
            if key.remove() {
                ctx.record_as(&[b"DEL", ctx.words[1]]);
                ctx.notify(0, Class::Generic, "del");
            }
            say_late(ctx, long, out);
        }
        Err(text) => out.error_bytes(text.text()),
    }
}

fn getex(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let options = Options::parse(&words[2..], false)?;
        if defers_saying_old(ctx) {
            return Ok(());
        }
        let mut key = ctx.key(0);
        key.note_read_aloud();
        if key.string()?.is_none() {
            out.null();
            return Ok(());
        }
        let expiry = match options.expiry {
            Some((unit, time)) => Some(unit.expiry(time, "getex", || key.now.ms())?),
            None => None,
        };
        let long = say_old(&key, out)?;
        match expiry {
            Some(at_ms) if at_ms <= key.expiry_ms() => {
                key.remove();
                ctx.record_as(&[b"DEL", words[1]]);
                ctx.notify(0, Class::Generic, "del");
            }
            Some(at_ms) => {
                key.set_expiry(Some(at_ms));
                ctx.record_as(&[b"PEXPIREAT", words[1], itoa::Buffer::new().format(at_ms).as_bytes()]);
                ctx.notify(0, Class::Generic, "expire");
            }
            None if options.persist && key.expiry().is_some() => {
                key.set_expiry(None);
                ctx.record_as(&[b"PERSIST", words[1]]);
                ctx.notify(0, Class::Generic, "persist");
            }
            None => {}
        }
        say_late(ctx, long, out);
        Ok(())
    })();
    or_error(result, out);
}

fn strlen(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    match ctx.read_string(0) {
        Ok(view) => out.integer(view.map_or(0, View::len) as i64),
        Err(text) => out.error_bytes(text.text()),
    }
}

/// Returns the bytes of `text` from `start` to `end`, both counted from the end if negative.
fn range(text: &[u8], start: i64, end: i64) -> &[u8] {
    let len = text.len() as i64;
    if start < 0 && end < 0 && start > end {
        return b"";
    }
    let from_end = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if start > end || len == 0 { b"" } else { &text[start as usize..=end as usize] }
}

fn getrange(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let (start, end) = (integer(ctx.words[2])?, integer(ctx.words[3])?);
        let Some(entry) = ctx.read(0) else {
            out.bulk(b"");
            return Ok(());
        };
        match entry.shared() {
            Some(bytes) => {
                ctx.unlock();
                out.bulk(range(&bytes, start, end));
            }
            None => {
                let view = entry.string().ok_or(WRONG_TYPE)?;
                out.bulk(range(view.text(&mut itoa::Buffer::new()), start, end));
            }
        }
        Ok(())
    })();
    or_error(result, out);
}

/// Lets `change` edit the key's value, which is made at least `end` bytes long with zeros and becomes `raw`; the last `own`
/// of them are bytes that `change` writes anyway. Returns the new length.
///
/// A value with a vector of its own is edited in place, unless the gap is longer than the value: the zeros of a new
/// vector come from the system as they are needed, those of a grown one are written here. What [takes
/// long](KeyMut::takes_long_to_edit) is done without a lock where the command runs aside.
pub(super) fn edit_bytes(
    key: &mut KeyMut<'_, '_>,
    end: usize,
    own: usize,
    mut change: impl FnMut(&mut [u8]),
) -> Result<usize, Refused> {
    let old_len = key.string()?.map_or(0, View::len);
    let len = end.max(old_len);
    let gap = end.saturating_sub(own).saturating_sub(old_len);
    if key.is_apart() && key.takes_long_to_edit(end, own) {
        key.edit_string_apart(len, |value| change(value));
        return Ok(len);
    }
    let in_place = |value: &mut Vec<u8>| {
        if value.len() < end {
            value.resize(end, 0);
        }
        change(value);
    };
    if gap <= old_len && len > sluicegate_data::value::INLINE_MAX && key.edit(len, in_place) {
        return Ok(len);
    }
    let mut value = vec![0; len];
    if let Some(view) = key.string()? {
        value[..old_len].copy_from_slice(view.text(&mut itoa::Buffer::new()));
    }
    change(&mut value);
    key.set_value(Value::Vec { bytes: value, raw: true });
    Ok(len)
}

/// Puts `bytes` at `offset` of the key's value, which is filled with zeros up to there. Returns the new length.
fn write_at(key: &mut KeyMut<'_, '_>, offset: usize, bytes: &[u8]) -> Result<usize, Refused> {
    let end = offset + bytes.len();
    edit_bytes(key, end, bytes.len(), |value| value[offset..end].copy_from_slice(bytes))
}

fn setrange(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let offset = integer(words[2])?;
        if offset < 0 {
            return Err("ERR offset is out of range".into());
        }
        let string_max = ctx.string_max();
        let mut key = ctx.key(0);
        let len = key.string()?.map_or(0, View::len);
        if words[3].is_empty() {
            out.integer(len as i64);
            return Ok(());
        }
        if offset.saturating_add(words[3].len() as i64) > string_max as i64 {
            return Err(TOO_LONG.into());
        }
        if key.takes_long_to_edit(offset as usize + words[3].len(), words[3].len()) {
            if ctx.defer() {
                return Ok(());
            }
            key = ctx.key(0);
        }
        let len = write_at(&mut key, offset as usize, words[3])?;
        ctx.notify(0, Class::String, "setrange");
        out.integer(len as i64);
        Ok(())
    })();
    or_error(result, out);
}

fn append(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let value = ctx.value(2);
    let string_max = ctx.string_max();
    let mut key = ctx.key(0);
    let len = key.string().map(|view| view.map(View::len));
    if let Ok(Some(len)) = len
        && len + words[2].len() <= string_max
        && key.takes_long_to_edit(len + words[2].len(), words[2].len())
    {
        if ctx.defer() {
            return;
        }
        key = ctx.key(0);
    }
    let result = len.and_then(|len| match len {
        None => {
            key.set(value, None);
            Ok(words[2].len())
        }
        Some(len) if len + words[2].len() > string_max => Err(TOO_LONG.into()),
        Some(len) => write_at(&mut key, len, words[2]),
    });
    match result {
        Ok(len) => {
            ctx.notify(0, Class::String, "append");
            out.integer(len as i64);
        }
        Err(text) => out.error_bytes(text.text()),
    }
}

/// Adds to the number at key 0 and writes the sum.
fn add(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, delta: i64) {
    let mut key = ctx.key(0);
    let old = match key.string() {
        Err(text) => return out.error_bytes(text.text()),
        Ok(None) => Some(0),
        Ok(Some(View::Int(value))) => Some(value),
        Ok(Some(View::Bytes(bytes))) => parse_i64(bytes),
    };
    let Some(old) = old else { return out.error(NOT_INTEGER) };
    let Some(sum) = old.checked_add(delta) else {
        return out.error("ERR increment or decrement would overflow");
    };
    key.set_value(Value::Int(sum));
    ctx.notify(0, Class::String, "incrby");
    out.integer(sum);
}

fn incr(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    add(ctx, out, 1);
}

fn decr(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    add(ctx, out, -1);
}

fn incrby(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    match integer(ctx.words[2]) {
        Ok(delta) => add(ctx, out, delta),
        Err(text) => out.error_bytes(text.text()),
    }
}

fn decrby(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    match integer(ctx.words[2]) {
        Ok(i64::MIN) => out.error("ERR decrement would overflow"),
        Ok(delta) => add(ctx, out, -delta),
        Err(text) => out.error_bytes(text.text()),
    }
}

fn incrbyfloat(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let mut key = ctx.key(0);
        let old = match key.string()? {
            None => Some(Extended::ZERO),
            Some(view) => Extended::parse(view.text(&mut itoa::Buffer::new())),
        };
        let (Some(old), Some(delta)) = (old, Extended::parse(words[2])) else { return Err(NOT_FLOAT.into()) };
        let sum = old.checked_add(delta).ok_or("ERR increment would produce NaN or Infinity")?;
        let text = sum.to_text();
        key.set_value(Value::Bytes { bytes: &text, raw: false });
        record_set(ctx, &text, None, true);
        ctx.notify(0, Class::String, "incrbyfloat");
        out.bulk(&text);
        Ok(())
    })();
    or_error(result, out);
}

fn mget(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let keys = ctx.places.len();
    out.array(keys);
    let mut index = 0;
    while index < keys {
        let entry = ctx.read(index);
        if entry.as_ref().is_some_and(|entry| entry.shared().is_some()) {
            break;
        }
        // A key of another type counts as none, as in Redis.
        say(entry.and_then(|entry| entry.string()), out);
        index += 1;
    }
    // From the first long value on, all are taken along and copied after the stripes are unlocked.
    let rest: Vec<Option<Arc<Vec<u8>>>> = (index..keys)
        .map(|index| {
            let entry = ctx.read(index)?;
            let copy = |view: View<'_>| Arc::new(view.text(&mut itoa::Buffer::new()).to_vec());
            entry.shared().or_else(|| entry.string().map(copy))
        })
        .collect();
    if rest.is_empty() {
        return;
    }
    ctx.unlock();
    for value in rest {
        match value {
            Some(bytes) => out.bulk(&bytes),
            None => out.null(),
        }
    }
}

fn pairs_are_whole(ctx: &Ctx<'_>, out: &mut dyn ReplySink, command: &str) -> bool {
    let whole = ctx.words.len() % 2 == 1;
    if !whole {
        out.error(&format!("ERR wrong number of arguments for '{command}' command"));
    }
    whole
}

fn set_pairs(ctx: &mut Ctx<'_>) {
    for index in 0..ctx.places.len() {
        let value = ctx.value(2 + 2 * index);
        ctx.key(index).set(value, None);
        ctx.notify(index, Class::String, "set");
    }
}

fn mset(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    if pairs_are_whole(ctx, out, "mset") {
        set_pairs(ctx);
        out.ok();
    }
}

fn msetnx(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    if !pairs_are_whole(ctx, out, "msetnx") {
        return;
    }
    let free = (0..ctx.places.len()).all(|index| !ctx.key(index).exists());
    if free {
        set_pairs(ctx);
    }
    out.integer(i64::from(free));
}

/// SET only writes its key unless it has the option GET.
fn set_key_flags(words: &[&[u8]]) -> Option<&'static [&'static str]> {
    let gets = words.iter().skip(3).any(|word| is(word, "get"));
    (!gets).then_some(&["OW", "update"])
}

const READS: CommandSpec = CommandSpec {
    flags: Flags::READONLY.and(Flags::FAST),
    keys: KeyRule::ONE,
    categories: &[Category::String],
    group: "string",
    long_words: LongWords::Read,
    ..CommandSpec::EMPTY
};

const WRITES: CommandSpec =
    CommandSpec { flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST), long_words: LongWords::Copied, ..READS };

const fn row(
    base: CommandSpec,
    name: &'static str,
    arity: i32,
    since: &'static str,
    summary: &'static str,
    handle: super::Handle,
) -> CommandSpec {
    CommandSpec { name, arity, since, summary, handler: Handler::Keyspace(handle), ..base }
}

const SLOW_WRITES: CommandSpec = CommandSpec { flags: Flags::WRITE.and(Flags::DENYOOM), ..WRITES };
const RANGES: CommandSpec = CommandSpec {
    flags: Flags::READONLY,
    cost: Cost::PerByte,
    complexity: "O(N) where N is the length of the returned string. The complexity is ultimately determined by the returned length, but because creating a substring from an existing string is very cheap, it can be considered O(1) for small strings.",
    ..READS
};
const PAIRS: CommandSpec = CommandSpec {
    keys: KeyRule::PAIRS,
    cost: Cost::PerKey,
    complexity: "O(N) where N is the number of keys to set.",
    ..SLOW_WRITES
};

pub(super) const COMMANDS: &[CommandSpec] = &[
    row(READS, "get", 2, "1.0.0", "Returns the string value of a key.", get),
    row(
        CommandSpec { key_flags: Some(set_key_flags), replaces_values: true, ..SLOW_WRITES },
        "set",
        -3,
        "1.0.0",
        "Sets the string value of a key, ignoring its type. The key is created if it doesn't exist.",
        set,
    ),
    row(WRITES, "setnx", 3, "1.0.0", "Set the string value of a key only when the key doesn't exist.", setnx),
    row(
        CommandSpec { replaces_values: true, ..SLOW_WRITES },
        "setex",
        4,
        "2.0.0",
        "Sets the string value and expiration time of a key. Creates the key if it doesn't exist.",
        setex,
    ),
    row(
        SLOW_WRITES,
        "psetex",
        4,
        "2.6.0",
        "Sets both string value and expiration time in milliseconds of a key. The key is created if it doesn't exist.",
        psetex,
    ),
    row(
        WRITES,
        "getset",
        3,
        "1.0.0",
        "Returns the previous string value of a key after setting it to a new value.",
        getset,
    ),
    row(
        CommandSpec { flags: Flags::WRITE.and(Flags::FAST), ..READS },
        "getdel",
        2,
        "6.2.0",
        "Returns the string value of a key after deleting the key.",
        getdel,
    ),
    row(
        CommandSpec { flags: Flags::WRITE.and(Flags::FAST), ..READS },
        "getex",
        -2,
        "6.2.0",
        "Returns the string value of a key after setting its expiration time.",
        getex,
    ),
    row(READS, "strlen", 2, "2.2.0", "Returns the length of a string value.", strlen),
    row(RANGES, "getrange", 4, "2.4.0", "Returns a substring of the string stored at a key.", getrange),
    row(RANGES, "substr", 4, "1.0.0", "Returns a substring from a string value.", getrange),
    row(
        CommandSpec { cost: Cost::PerByte, long_words: LongWords::Read, ..SLOW_WRITES },
        "setrange",
        4,
        "2.2.0",
        "Overwrites a part of a string value with another by an offset. Creates the key if it doesn't exist.",
        setrange,
    ),
    row(
        WRITES,
        "append",
        3,
        "2.0.0",
        "Appends a string to the value of a key. Creates the key if it doesn't exist.",
        append,
    ),
    row(
        WRITES,
        "incr",
        2,
        "1.0.0",
        "Increments the integer value of a key by one. Uses 0 as initial value if the key doesn't exist.",
        incr,
    ),
    row(
        WRITES,
        "decr",
        2,
        "1.0.0",
        "Decrements the integer value of a key by one. Uses 0 as initial value if the key doesn't exist.",
        decr,
    ),
    row(
        WRITES,
        "incrby",
        3,
        "1.0.0",
        "Increments the integer value of a key by a number. Uses 0 as initial value if the key doesn't exist.",
        incrby,
    ),
    row(
        WRITES,
        "decrby",
        3,
        "1.0.0",
        "Decrements a number from the integer value of a key. Uses 0 as initial value if the key doesn't exist.",
        decrby,
    ),
    row(
        WRITES,
        "incrbyfloat",
        3,
        "2.6.0",
        "Increment the floating point value of a key by a number. Uses 0 as initial value if the key doesn't exist.",
        incrbyfloat,
    ),
    row(
        CommandSpec {
            keys: KeyRule::ALL,
            cost: Cost::PerKey,
            complexity: "O(N) where N is the number of keys to retrieve.",
            ..READS
        },
        "mget",
        -2,
        "1.0.0",
        "Atomically returns the string values of one or more keys.",
        mget,
    ),
    row(PAIRS, "mset", -3, "1.0.1", "Atomically creates or modifies the string values of one or more keys.", mset),
    row(
        CommandSpec { halves: Some(Halves { look: "exists", write: "mset" }), ..PAIRS },
        "msetnx",
        -3,
        "1.0.1",
        "Atomically modifies the string values of one or more keys only when all keys don't exist.",
        msetnx,
    ),
];

#[cfg(test)]
mod tests {
    #[test]
    fn ranges_are_cut_as_in_redis() {
        let check = |start, end, expected: &str| {
            assert_eq!(super::range(b"Hello World", start, end), expected.as_bytes(), "{start} {end}");
        };
        check(0, 3, "Hell");
        check(0, -1, "Hello World");
        check(-4, -1, "orld");
        check(5, 3, "");
        check(5, 5000, " World");
        check(-5000, 10_000, "Hello World");
        check(-1, -5, "");
        check(0, -100, "H");
        check(i64::MIN, i64::MAX, "Hello World");
        assert_eq!(super::range(b"", 0, -1), b"");
    }
}
