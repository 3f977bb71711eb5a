//! Commands on keys of any type: DEL, EXISTS, RENAME, COPY, MOVE…

use sluicegate_data::value::Entry;
use sluicegate_wire::resp::ReplySink;

use super::{DB_RANGE, NO_SUCH_KEY, Refused, SYNTAX, is, or_error, small_integer};
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler, Records, WrittenKeys};
use crate::context::Ctx;
use crate::keys::{KeyRule, KeyWord};
use crate::notify::Class;
use crate::visits;

fn del(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let mut count = 0;
    for index in 0..ctx.places.len() {
        if ctx.key(index).remove() {
            ctx.notify(index, Class::Generic, "del");
            count += 1;
        }
    }
    out.integer(count);
}

fn exists(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let count = (0..ctx.places.len()).filter(|index| ctx.peek(*index).is_some()).count();
    out.integer(count as i64);
}

fn touch(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    // TOUCH records the access, even for a client with CLIENT NO-TOUCH.
    ctx.now.behalf.is_traceless = false;
    let count = (0..ctx.places.len()).filter(|index| ctx.read(*index).is_some()).count();
    out.integer(count as i64);
}

fn type_of(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    out.simple(ctx.peek(0).map_or("none", Entry::type_name));
}

/// Moves key 0 to key 1, value and expiry, and writes the reply of RENAME or RENAMENX.
fn rename_to(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, only_if_absent: bool) {
    let same = ctx.words[1] == ctx.words[2];
    if !ctx.key(0).exists() {
        return out.error(NO_SUCH_KEY);
    }
    let done = same || {
        let free = !(only_if_absent && ctx.key(1).exists());
        let sticky = ctx.key(0).entry().is_some_and(Entry::sticky);
        if free && let Some((value, expiry)) = ctx.key(0).take() {
            // The destination is a new key, even if it existed before.
            let mut destination = ctx.key(1);
            destination.remove();
            destination.set(value, expiry);
            destination.set_sticky(sticky);
            ctx.notify(0, Class::Generic, "rename_from");
            ctx.notify(1, Class::Generic, "rename_to");
        }
        free
    };
    match only_if_absent {
        true => out.integer(i64::from(done && !same)),
        false => out.ok(),
    }
}

fn rename(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    rename_to(ctx, out, false);
}

fn renamenx(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    rename_to(ctx, out, true);
}

/// Returns a database that a command names.
fn database(word: &[u8], ctx: &Ctx<'_>) -> Result<u32, Refused> {
    let index = small_integer(word, None)?;
    u32::try_from(index).ok().filter(|index| *index < ctx.inner.keyspace.databases()).ok_or(DB_RANGE.into())
}

/// Parses a database for locking; an invalid word is reported later.
fn database_to_lock(word: &[u8]) -> Option<u32> {
    small_integer(word, None).ok().and_then(|index| u32::try_from(index).ok())
}

struct CopyOptions {
    db: u32,
    replace: bool,
}

fn copy_options(ctx: &Ctx<'_>) -> Result<CopyOptions, Refused> {
    let mut options = CopyOptions { db: ctx.db, replace: false };
    let mut words = ctx.words[3..].iter();
    while let Some(word) = words.next() {
        if is(word, "replace") {
            options.replace = true;
        } else if is(word, "db") {
            options.db = database(words.next().ok_or(SYNTAX)?, ctx)?;
        } else {
            return Err(SYNTAX.into());
        }
    }
    Ok(options)
}

fn copy_destination(words: &[&[u8]], db: u32) -> Option<KeyWord> {
    let mut destination = db;
    let mut options = words.get(3..)?.iter();
    while let Some(word) = options.next() {
        if is(word, "db") {
            destination = database_to_lock(options.next()?)?;
        }
    }
    Some(KeyWord { db: destination, word: 2 })
}

fn copy(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let options = copy_options(ctx)?;
        if options.db == ctx.db && ctx.words[1] == ctx.words[2] {
            return Err("ERR source and destination objects are the same".into());
        }
        let value = ctx.read(0).map(|entry| (entry.copy_value(), entry.expiry(), entry.sticky()));
        let Some((value, expiry, sticky)) = value else {
            out.integer(0);
            return Ok(());
        };
        let mut destination = ctx.key(1);
        let free = options.replace || !destination.exists();
        if free {
            destination.remove();
            destination.set(value, expiry);
            destination.set_sticky(sticky);
            ctx.notify(1, Class::Generic, "copy_to");
        }
        out.integer(i64::from(free));
        Ok(())
    })();
    or_error(result, out);
}

fn move_destination(words: &[&[u8]], _db: u32) -> Option<KeyWord> {
    database_to_lock(words.get(2)?).map(|db| KeyWord { db, word: 1 })
}

fn move_key(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let db = database(ctx.words[2], ctx)?;
        if db == ctx.db {
            return Err("ERR source and destination objects are the same".into());
        }
        let free = ctx.key(0).exists() && !ctx.key(1).exists();
        let sticky = ctx.key(0).entry().is_some_and(Entry::sticky);
        if free && let Some((value, expiry)) = ctx.key(0).take() {
            let mut destination = ctx.key(1);
            destination.set(value, expiry);
            destination.set_sticky(sticky);
            ctx.notify(0, Class::Generic, "move_from");
            ctx.notify(1, Class::Generic, "move_to");
        }
        out.integer(i64::from(free));
        Ok(())
    })();
    or_error(result, out);
}

const READS: CommandSpec = CommandSpec {
    flags: Flags::READONLY.and(Flags::FAST),
    keys: KeyRule::ALL,
    categories: &[Category::Keyspace],
    group: "generic",
    cost: Cost::PerKey,
    ..CommandSpec::EMPTY
};

const WRITES: CommandSpec = CommandSpec { flags: Flags::WRITE, keys: KeyRule::TWO, cost: Cost::Constant, ..READS };

const fn row(
    base: CommandSpec,
    name: &'static str,
    arity: i32,
    since: &'static str,
    summary: &'static str,
    complexity: &'static str,
    handle: super::Handle,
) -> CommandSpec {
    CommandSpec { name, arity, since, summary, complexity, handler: Handler::Keyspace(handle), ..base }
}

pub(super) const COMMANDS: &[CommandSpec] = &[
    row(
        CommandSpec { keys: KeyRule::ALL, cost: Cost::PerKey, replaces_values: true, ..WRITES },
        "del",
        -2,
        "1.0.0",
        "Deletes one or more keys.",
        "O(N) where N is the number of keys that will be removed.",
        del,
    ),
    row(
        CommandSpec {
            flags: Flags::WRITE.and(Flags::FAST),
            ..CommandSpec { keys: KeyRule::ALL, cost: Cost::PerKey, replaces_values: true, ..WRITES }
        },
        "unlink",
        -2,
        "4.0.0",
        "Asynchronously deletes one or more keys.",
        "O(1) for each key removed regardless of its size.",
        del,
    ),
    row(
        READS,
        "exists",
        -2,
        "1.0.0",
        "Determines whether one or more keys exist.",
        "O(N) where N is the number of keys to check.",
        exists,
    ),
    row(
        READS,
        "touch",
        -2,
        "3.2.1",
        "Returns the number of existing keys out of those specified after updating the time they were last accessed.",
        "O(N) where N is the number of keys that will be touched.",
        touch,
    ),
    row(
        CommandSpec { keys: KeyRule::ONE, cost: Cost::Constant, ..READS },
        "type",
        2,
        "1.0.0",
        "Determines the type of value stored at a key.",
        "O(1)",
        type_of,
    ),
    row(WRITES, "rename", 3, "1.0.0", "Renames a key and overwrites the destination.", "O(1)", rename),
    row(
        CommandSpec { flags: Flags::WRITE.and(Flags::FAST), ..WRITES },
        "renamenx",
        3,
        "1.0.0",
        "Renames a key only when the target key name doesn't exist.",
        "O(1)",
        renamenx,
    ),
    row(
        CommandSpec {
            flags: Flags::WRITE.and(Flags::DENYOOM),
            keys: KeyRule::WithDatabase { last: 2, second: copy_destination },
            cost: Cost::PerByte,
            visits: Some(visits::all),
            writes: WrittenKeys::Others,
            records: Records::Derived,
            ..WRITES
        },
        "copy",
        -3,
        "6.2.0",
        "Copies the value of a key to a new key.",
        "O(N) worst case for collections, where N is the number of nested items. O(1) for string values.",
        copy,
    ),
    row(
        CommandSpec {
            flags: Flags::WRITE.and(Flags::FAST),
            keys: KeyRule::WithDatabase { last: 1, second: move_destination },
            ..WRITES
        },
        "move",
        3,
        "1.0.0",
        "Moves a key to another database.",
        "O(1)",
        move_key,
    ),
];
