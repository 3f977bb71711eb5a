//! HyperLogLog: PFADD, PFCOUNT, PFMERGE, and the commands that inspect one. The format is in
//! [`sluicegate_data::hyperloglog`].
//!
//! A dense string is edited in place; a sparse one, of 3 kB at most, is copied, changed and put back. PFCOUNT of several
//! keys takes copies and references and counts after unlocking.

use std::sync::Arc;

use sluicegate_data::hyperloglog::{self as format, Corrupt, Registers};
use sluicegate_data::value::{Entry, INLINE_MAX, Value, View};
use sluicegate_wire::resp::ReplySink;

use super::{Refused, WRONG_TYPE, c_string, is, or_error};
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler, Records};
use crate::context::{Ctx, KeyMut};
use crate::keys::KeyRule;
use crate::notify::Class;

const INVALID: &str = "WRONGTYPE Key is not a valid HyperLogLog string value.";
const CORRUPT: &str = "INVALIDOBJ Corrupted HLL object detected";

impl From<Corrupt> for Refused {
    fn from(_: Corrupt) -> Refused {
        CORRUPT.into()
    }
}

/// Returns the value as a HyperLogLog.
fn of_entry(entry: &Entry) -> Result<&[u8], Refused> {
    match entry.string() {
        None => Err(WRONG_TYPE.into()),
        Some(View::Bytes(bytes)) if format::is_valid(bytes) => Ok(bytes),
        Some(_) => Err(INVALID.into()),
    }
}

/// Calls `change` on the HyperLogLog of a key, which must exist; changes before an error stay.
fn edit<R>(key: &mut KeyMut<'_, '_>, change: impl FnOnce(&mut Vec<u8>) -> Result<R, Refused>) -> Result<R, Refused> {
    let bytes = key.entry().map_or(Ok(&[][..]), of_entry)?;
    let len = bytes.len();
    if !format::is_sparse(bytes) {
        let mut change = Some(change);
        let mut result = None;
        // A dense string keeps its length.
        let edited = key.edit(len, |bytes| result = change.take().map(|change| change(bytes)));
        debug_assert!(edited, "dense strings are long");
        return result.unwrap_or(Err(INVALID.into()));
    }
    let mut copy = Vec::with_capacity(len + 16);
    copy.extend_from_slice(bytes);
    let result = change(&mut copy);
    put(key, copy);
    result
}

/// Gives a short string the encoding `raw`, as Redis does before it looks into it.
fn unshare(key: &mut KeyMut<'_, '_>) -> Result<(), Refused> {
    match key.entry() {
        Some(entry) if of_entry(entry).is_ok() && entry.encoding() == "embstr" => edit(key, |_| Ok(())),
        _ => Ok(()),
    }
}

/// Replaces a string, in the same memory if possible.
fn put(key: &mut KeyMut<'_, '_>, bytes: Vec<u8>) {
    let in_place = bytes.len() > INLINE_MAX
        && key.edit(bytes.len(), |old| {
            old.clear();
            old.extend_from_slice(&bytes);
        });
    if !in_place {
        key.set_value(Value::Vec { bytes, raw: true });
    }
}

fn pfadd(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let (words, sparse_max) = (ctx.words, &ctx.limits().hll_sparse);
    let mut key = ctx.key(0);
    let add = |bytes: &mut Vec<u8>| {
        let mut grown = false;
        for element in &words[2..] {
            grown |= format::add(bytes, element, sparse_max)?;
        }
        if grown {
            format::invalidate(bytes);
        }
        Ok(grown)
    };
    let result = if key.exists() {
        edit(&mut key, add)
    } else {
        let mut bytes = format::empty();
        let result = add(&mut bytes);
        format::invalidate(&mut bytes);
        key.set(Value::Vec { bytes, raw: true }, None);
        result.map(|_| true)
    };
    if let Ok(true) = result {
        ctx.notify(0, Class::String, "pfadd");
    }
    or_error(result.map(|changed| out.integer(i64::from(changed))), out);
}

/// A key's string, to be read after unlocking.
enum Taken {
    Shared(Arc<Vec<u8>>),
    Copied(Vec<u8>),
}

/// Returns the strings of keys that exist. If several keys are invalid, the error is that of the first of them.
fn take_all(ctx: &mut Ctx<'_>) -> Result<Vec<Taken>, Refused> {
    let mut all = Vec::with_capacity(ctx.places.len());
    for index in 0..ctx.places.len() {
        let Some(entry) = ctx.read(index) else { continue };
        let bytes = of_entry(entry)?;
        format::check(bytes)?;
        all.push(entry.shared().map_or_else(|| Taken::Copied(bytes.to_vec()), Taken::Shared));
    }
    Ok(all)
}

fn union(all: &[Taken]) -> Result<Registers, Refused> {
    let mut registers = Registers::new();
    for taken in all {
        match taken {
            Taken::Shared(bytes) => registers.merge(bytes)?,
            Taken::Copied(bytes) => registers.merge(bytes)?,
        }
    }
    Ok(registers)
}

/// Counts one key, and caches the result in the string until an element is added.
fn count_one(ctx: &mut Ctx<'_>) -> Result<u64, Refused> {
    let Some(mut key) = ctx.key_of_reader(0) else { return Ok(0) };
    unshare(&mut key)?;
    let bytes = key.entry().map_or(Ok(&[][..]), of_entry)?;
    if let Some(count) = format::cached(bytes) {
        return Ok(count);
    }
    let count = format::count(bytes)?;
    edit(&mut key, |bytes| {
        format::cache(bytes, count);
        Ok(count)
    })?;
    // Redis treats this as a modification of the key, which only clients that watch it notice.
    ctx.touch(0);
    Ok(count)
}

fn pfcount(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = if ctx.places.len() == 1 {
        count_one(ctx)
    } else {
        take_all(ctx).and_then(|all| {
            ctx.unlock();
            // SAFETY: the strings are this function's own or held by reference, and everything is unlocked.
            unsafe { ctx.pass.outside(|| union(&all).map(|registers| registers.count())) }
        })
    };
    or_error(result.map(|count| out.integer(count as i64)), out);
}

fn pfmerge(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let all = take_all(ctx)?;
        let dense = all.iter().any(|taken| match taken {
            Taken::Shared(bytes) => !format::is_sparse(bytes),
            Taken::Copied(bytes) => !format::is_sparse(bytes),
        });
        let sparse_max = &ctx.limits().hll_sparse;
        let mut key = ctx.key(0);
        // An existing destination, the first of `all`, is no source: the union is merged into its registers.
        let registers = union(&all[usize::from(key.exists())..])?;
        // References would keep the destination from being edited in place.
        drop(all);
        if key.exists() {
            edit(&mut key, |bytes| Ok(registers.write(bytes, dense, sparse_max)?))?;
        } else {
            let mut bytes = format::empty();
            registers.write(&mut bytes, dense, sparse_max)?;
            key.set(Value::Vec { bytes, raw: true }, None);
        }
        ctx.notify(0, Class::String, "pfadd");
        out.ok();
        Ok(())
    })();
    or_error(result, out);
}

fn pfdebug(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let mut key = ctx.key(0);
        unshare(&mut key)?;
        let Some(entry) = key.entry() else { return Err("ERR The specified key does not exist".into()) };
        let bytes = of_entry(entry)?;
        let sparse = format::is_sparse(bytes);
        match words[1] {
            name if is(name, "getreg") => {
                let mut registers = Registers::new();
                registers.merge(bytes)?;
                if sparse {
                    edit(&mut key, |bytes| Ok(format::to_dense(bytes)?))?;
                }
                out.array(format::REGISTERS);
                registers.values().iter().for_each(|value| out.integer(i64::from(*value)));
            }
            name if is(name, "decode") => {
                if !sparse {
                    return Err("ERR HLL encoding is not sparse".into());
                }
                out.bulk(format::decoded(bytes).as_bytes());
            }
            name if is(name, "encoding") => out.simple(if sparse { "sparse" } else { "dense" }),
            name if is(name, "todense") => {
                if sparse {
                    edit(&mut key, |bytes| Ok(format::to_dense(bytes)?))?;
                }
                out.integer(i64::from(sparse));
            }
            name => {
                return Err([b"ERR Unknown PFDEBUG subcommand '", c_string(name, usize::MAX), b"'"].concat().into());
            }
        }
        Ok(())
    })();
    or_error(result, out);
}

fn pfselftest(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let sparse_max = &ctx.limits().hll_sparse;
    // SAFETY: the command has no key and looks at no database.
    match unsafe { ctx.pass.outside(|| format::self_test(sparse_max)) } {
        Ok(()) => out.ok(),
        Err(text) => out.error(&text),
    }
}

const ALL: CommandSpec = CommandSpec {
    arity: -2,
    flags: Flags::WRITE.and(Flags::DENYOOM),
    keys: KeyRule::ALL,
    categories: &[Category::HyperLogLog],
    since: "2.8.9",
    group: "hyperloglog",
    ..CommandSpec::EMPTY
};

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "pfadd",
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: KeyRule::ONE,
        summary: "Adds elements to a HyperLogLog key. Creates the key if it doesn't exist.",
        complexity: "O(1) to add every element.",
        handler: Handler::Keyspace(pfadd),
        ..ALL
    },
    CommandSpec {
        name: "pfcount",
        is_replicated: true,
        flags: Flags::READONLY,
        cost: Cost::PerByte,
        summary: "Returns the approximated cardinality of the set(s) observed by the HyperLogLog key(s).",
        complexity: "O(1) with a very small average constant time when called with a single key. O(N) with N being the number of keys, and much bigger constant times, when called with multiple keys.",
        handler: Handler::Keyspace(pfcount),
        ..ALL
    },
    CommandSpec {
        name: "pfmerge",
        cost: Cost::PerByte,
        summary: "Merges one or more HyperLogLog values into a single key.",
        complexity: "O(N) to merge N HyperLogLogs, but with high constant times.",
        records: Records::Derived,
        handler: Handler::Keyspace(pfmerge),
        ..ALL
    },
    CommandSpec {
        name: "pfdebug",
        arity: 3,
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::ADMIN),
        keys: KeyRule::Range { first: 2, last: 2, step: 1 },
        summary: "Internal commands for debugging HyperLogLog values.",
        complexity: "N/A",
        handler: Handler::Keyspace(pfdebug),
        ..ALL
    },
    CommandSpec {
        name: "pfselftest",
        arity: 1,
        flags: Flags::ADMIN,
        keys: KeyRule::None,
        summary: "An internal command for testing HyperLogLog values.",
        complexity: "N/A",
        handler: Handler::Keyspace(pfselftest),
        ..ALL
    },
];
