//! Commands on whole databases: SCAN, KEYS, DBSIZE, FLUSHALL, SWAPDB…
//!
//! Reading commands iterate over the stripes and ignore holds, and never wait; writing commands close the gate.

use sluicegate_data::glob;
use sluicegate_data::random::random;
use sluicegate_data::table::ORDER_BITS;
use sluicegate_data::value::Entry;
use sluicegate_wire::resp::{ReplySink, parse_i64};

use super::stream::unsigned;
use super::{NOT_INTEGER, Refused, SYNTAX, is, or_error, small_integer};
use crate::Inner;
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler};
use crate::context::Ctx;
use crate::gate::{Closed, Pass};
use crate::keyspace::{Changed, Keyspace};
use crate::visits;

fn dbsize(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let keys = ctx.inner.keyspace.db(ctx.pass, ctx.db).map_or(0, |db| db.keys());
    out.integer(keys as i64);
}

fn keys(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let found = names(ctx.inner, ctx.pass, ctx.db, ctx.now.ms(), ctx.words[1]);
    out.array(found.len());
    found.iter().for_each(|key| out.bulk(key));
}

/// Returns the keys of a database that match a pattern and are alive.
pub(crate) fn names(inner: &Inner, pass: &Pass<'_>, db: u32, now_ms: i64, pattern: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut stripe = 0;
    while let Some(db) = inner.keyspace.db(pass, db)
        && let Some(filled) = db.filled_from(stripe)
    {
        stripe = filled;
        let locked = db.lock(stripe);
        found.extend(
            locked.table.entries().filter(|entry| is_listed(entry, pattern, now_ms)).map(|entry| entry.key().to_vec()),
        );
        drop(locked);
        stripe += 1;
        // SAFETY: the database is looked up again in each round.
        unsafe { pass.give_way() };
    }
    found
}

/// Returns whether KEYS with this pattern lists the key.
pub(crate) fn is_listed(entry: &Entry, pattern: &[u8], now_ms: i64) -> bool {
    entry.expiry().is_none_or(|at_ms| at_ms > now_ms) && (pattern == b"*" || glob::matches(pattern, entry.key()))
}

struct ScanOptions<'a> {
    cursor: u64,
    count: usize,
    pattern: Option<&'a [u8]>,
    kind: Option<&'a [u8]>,
}

impl<'a> ScanOptions<'a> {
    fn parse(words: &[&'a [u8]]) -> Result<ScanOptions<'a>, Refused> {
        let cursor = parse_cursor(words[1]).ok_or("ERR invalid cursor")?;
        let mut options = ScanOptions { cursor, count: 10, pattern: None, kind: None };
        let mut rest = words[2..].iter();
        while let Some(word) = rest.next() {
            let value = *rest.next().ok_or(SYNTAX)?;
            match () {
                () if is(word, "count") => {
                    let count = super::integer(value).map_err(|_| NOT_INTEGER)?;
                    options.count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(SYNTAX)?;
                }
                () if is(word, "match") => options.pattern = Some(value).filter(|pattern| *pattern != b"*"),
                () if is(word, "type") => options.kind = Some(value),
                () => return Err(SYNTAX.into()),
            }
        }
        Ok(options)
    }
}

/// Parses a cursor up to a zero byte, as C's `strtoull` does; a negative number is none (Redis 7.4).
pub(super) fn parse_cursor(word: &[u8]) -> Option<u64> {
    unsigned(super::c_string(word, word.len()))
}

/// The cursor is a place in the order of the keys' hashes, which no split changes: a key that exists from the first
/// call to the last is returned exactly once.
fn scan(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let options = match ScanOptions::parse(ctx.words) {
        Ok(options) => options,
        Err(text) => return out.error_bytes(text.text()),
    };
    let keyspace = &ctx.inner.keyspace;
    let mut found = Vec::new();
    let mut cursor = (options.cursor < 1 << ORDER_BITS).then_some(options.cursor);
    let mut count = options.count;
    while let Some(from) = cursor
        && count > 0
    {
        // SAFETY: the database is looked up again in each round.
        unsafe { ctx.pass.give_way() };
        let Some(db) = keyspace.db(ctx.pass, ctx.db) else {
            cursor = None;
            break;
        };
        let stripe = keyspace.stripe_of_order(from);
        let next = if db.filled_from(stripe) == Some(stripe) {
            db.lock(stripe).table.scan(from, &mut count, |entry| {
                let alive = entry.expiry().is_none_or(|at_ms| at_ms > ctx.now.ms());
                let wanted = options.pattern.is_none_or(|pattern| glob::matches(pattern, entry.key()))
                    && options.kind.is_none_or(|kind| is(kind, entry.type_name()));
                if alive && wanted {
                    found.push(entry.key().to_vec());
                }
            })
        } else {
            None
        };
        cursor = next.or_else(|| db.filled_from(stripe + 1).map(|stripe| keyspace.order_of_stripe(stripe)));
    }
    out.array(2);
    out.bulk_integer(cursor.unwrap_or(0) as i64);
    out.array(found.len());
    found.iter().for_each(|key| out.bulk(key));
}

/// Tries that RANDOMKEY makes to find a key that has not expired.
const RANDOM_TRIES: usize = 100;

fn randomkey(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let Some(db) = ctx.inner.keyspace.db(ctx.pass, ctx.db) else { return out.null() };
    for _ in 0..RANDOM_TRIES {
        let random = random();
        let stripe = match db.stripe_by_share(random) {
            Ok(Some(stripe)) => stripe,
            Ok(None) => break,
            Err(Changed) => continue,
        };
        let locked = db.lock(stripe);
        let found = locked.table.any(random.rotate_left(32) ^ random);
        if let Some(entry) = found.filter(|entry| entry.expiry().is_none_or(|at_ms| at_ms > ctx.now.ms())) {
            return out.bulk(entry.key());
        }
    }
    out.null();
}

fn time(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    // The time is frozen in a script and in a transaction (Redis 7.2).
    let now_us = ctx.now.us();
    out.array(2);
    out.bulk_integer(now_us / 1_000_000);
    out.bulk_integer(now_us % 1_000_000);
}

/// Parses ASYNC or SYNC, which make no difference: flushing takes microseconds, and memory is freed in the background.
fn flush_option(words: &[&[u8]]) -> Result<(), Refused> {
    match words {
        [_] => Ok(()),
        [_, option] if is(option, "async") || is(option, "sync") => Ok(()),
        _ => Err(SYNTAX.into()),
    }
}

/// Writes the error, if there is one. Returns whether there is none.
fn is_done(result: Result<(), Refused>, out: &mut dyn ReplySink) -> bool {
    let is_done = result.is_ok();
    or_error(result, out);
    is_done
}

fn flushdb(keyspace: &Keyspace, closed: &Closed<'_>, words: &[&[u8]], db: u32, out: &mut dyn ReplySink) -> bool {
    let result = flush_option(words).map(|()| {
        keyspace.flush(closed, db);
        out.ok();
    });
    is_done(result, out)
}

fn flushall(keyspace: &Keyspace, closed: &Closed<'_>, words: &[&[u8]], _db: u32, out: &mut dyn ReplySink) -> bool {
    let result = flush_option(words).map(|()| {
        keyspace.snapshots.note_flush();
        keyspace.own_expiring.clear();
        (0..keyspace.databases()).for_each(|db| keyspace.flush(closed, db));
        out.ok();
    });
    is_done(result, out)
}

fn swapdb(keyspace: &Keyspace, closed: &Closed<'_>, words: &[&[u8]], _db: u32, out: &mut dyn ReplySink) -> bool {
    let result = (|| {
        let first = small_integer(words[1], Some("ERR invalid first DB index"))?;
        let second = small_integer(words[2], Some("ERR invalid second DB index"))?;
        let valid = |index: i32| u32::try_from(index).ok().filter(|index| *index < keyspace.databases());
        let (Some(first), Some(second)) = (valid(first), valid(second)) else { return Err(super::DB_RANGE.into()) };
        if first != second {
            keyspace.swap(closed, first, second);
        }
        out.ok();
        Ok(())
    })();
    is_done(result, out)
}

/// The number of keys that SCAN visits on a worker for a script.
const SCANNED_MAX: i64 = 4096;

/// Returns whether a SCAN requests very many keys.
fn asks_for_many_keys(words: &[&[u8]]) -> bool {
    let count = words.iter().position(|word| is(word, "count")).and_then(|at| parse_i64(words.get(at + 1)?));
    count.is_some_and(|count| count > SCANNED_MAX)
}

const LOOKS: CommandSpec = CommandSpec {
    flags: Flags::READONLY,
    categories: &[Category::Keyspace],
    cost: Cost::Keyspace,
    group: "generic",
    ..CommandSpec::EMPTY
};

const CHANGES: CommandSpec = CommandSpec {
    flags: Flags::WRITE,
    group: "server",
    categories: &[Category::Keyspace, Category::Dangerous],
    ..LOOKS
};

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "dbsize",
        arity: 1,
        flags: Flags::READONLY.and(Flags::FAST),
        group: "server",
        summary: "Returns the number of keys in the database.",
        handler: Handler::Keyspace(dbsize),
        ..LOOKS
    },
    CommandSpec {
        name: "keys",
        visits: Some(visits::names),
        reads_all_keys: true,
        arity: 2,
        categories: &[Category::Keyspace, Category::Dangerous],
        summary: "Returns all key names that match a pattern.",
        complexity: "O(N) with N being the number of keys in the database, under the assumption that the key names in the database and the given pattern have limited length.",
        handler: Handler::Keyspace(keys),
        ..LOOKS
    },
    CommandSpec {
        name: "scan",
        asks_for_much: Some(asks_for_many_keys),
        arity: -2,
        since: "2.8.0",
        summary: "Iterates over the key names in the database.",
        complexity: "O(1) for every call. O(N) for a complete iteration, including enough command calls for the cursor to return back to 0. N is the number of elements inside the collection.",
        handler: Handler::Keyspace(scan),
        ..LOOKS
    },
    CommandSpec {
        name: "randomkey",
        arity: 1,
        summary: "Returns a random key name from the database.",
        handler: Handler::Keyspace(randomkey),
        ..LOOKS
    },
    CommandSpec {
        name: "time",
        arity: 1,
        flags: Flags::LOADING.and(Flags::STALE).and(Flags::FAST),
        categories: &[],
        since: "2.6.0",
        cost: Cost::Constant,
        group: "server",
        summary: "Returns the server time.",
        handler: Handler::Keyspace(time),
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "flushdb",
        arity: -1,
        summary: "Remove all keys from the current database.",
        complexity: "O(N) where N is the number of keys in the selected database",
        handler: Handler::Global(flushdb),
        ..CHANGES
    },
    CommandSpec {
        name: "flushall",
        arity: -1,
        summary: "Removes all keys from all databases.",
        complexity: "O(N) where N is the total number of keys in all databases",
        handler: Handler::Global(flushall),
        ..CHANGES
    },
    CommandSpec {
        name: "swapdb",
        arity: 3,
        flags: Flags::WRITE.and(Flags::FAST),
        since: "4.0.0",
        summary: "Swaps two Redis databases.",
        complexity: "O(N) where N is the count of clients watching or blocking on keys from both databases.",
        handler: Handler::Global(swapdb),
        ..CHANGES
    },
];
