//! SORT and SORT_RO.
//!
//! They sort lists, sets and sorted sets, and this store has strings. So what is left is what Redis does with every
//! other key: options are checked, a missing key is an empty result, anything else is of the wrong type. Of the options
//! only STORE acts on an empty result, and it deletes its destination.

use sluicegate_wire::resp::ReplySink;

use super::{Refused, SYNTAX, WRONG_TYPE, integer, is, or_error};
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler};
use crate::context::Ctx;
use crate::keys::{KeyRule, KeyWord};
use crate::notify::Class;

/// Checks the options; true if one is STORE, which only a command that writes may have.
fn stores(words: &[&[u8]], may_store: bool) -> Result<bool, Refused> {
    let mut stores = false;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match words.as_slice() {
            _ if is(word, "asc") || is(word, "desc") || is(word, "alpha") => {}
            [start, count, ..] if is(word, "limit") => {
                integer(start)?;
                integer(count)?;
                words.nth(1);
            }
            [_, ..] if is(word, "by") || is(word, "get") => {
                words.next();
            }
            [_, ..] if may_store && is(word, "store") => {
                stores = true;
                words.next();
            }
            _ => return Err(SYNTAX.into()),
        }
    }
    Ok(stores)
}

/// The word after the last STORE, as Redis finds it: whether the options before it make sense shows later.
fn destination(words: &[&[u8]], db: u32) -> Option<KeyWord> {
    let mut found = None;
    let mut at = 2;
    while at + 1 < words.len() {
        at += match words[at] {
            word if is(word, "limit") => 3,
            word if is(word, "by") || is(word, "get") => 2,
            word if is(word, "store") => {
                found = Some(KeyWord { db, word: at as u32 + 1 });
                2
            }
            _ => 1,
        };
    }
    found
}

fn sort(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = stores(&words[2..], true).and_then(|stores| {
        let mut source = ctx.key(0);
        source.note_read_aloud();
        if source.exists() {
            return Err(WRONG_TYPE.into());
        }
        if stores {
            if ctx.key(1).remove() {
                ctx.notify(1, Class::Generic, "del");
            }
            out.integer(0);
        } else {
            out.array(0);
        }
        Ok(())
    });
    or_error(result, out);
}

fn sort_ro(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = stores(&words[2..], false).and_then(|_| match ctx.read(0) {
        Some(_) => Err(WRONG_TYPE.into()),
        None => {
            out.array(0);
            Ok(())
        }
    });
    or_error(result, out);
}

const SORT: CommandSpec = CommandSpec {
    name: "sort",
    arity: -2,
    flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::MOVABLEKEYS),
    keys: KeyRule::WithDatabase { last: 1, second: destination },
    categories: &[Category::Set, Category::SortedSet, Category::List, Category::Dangerous],
    cost: Cost::PerByte,
    group: "generic",
    summary: "Sorts the elements in a list, a set, or a sorted set, optionally storing the result.",
    complexity: "O(N+M*log(M)) where N is the number of elements to sort and M the number of those returned.",
    handler: Handler::Keyspace(sort),
    ..CommandSpec::EMPTY
};

pub(super) const COMMANDS: &[CommandSpec] = &[
    SORT,
    CommandSpec {
        name: "sort_ro",
        flags: Flags::READONLY.and(Flags::MOVABLEKEYS),
        keys: KeyRule::ONE,
        since: "7.0.0",
        summary: "Returns the sorted elements of a list, a set, or a sorted set.",
        handler: Handler::Keyspace(sort_ro),
        ..SORT
    },
];
