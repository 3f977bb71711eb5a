//! Commands that remove members from an end: ZPOPMIN, ZPOPMAX, ZMPOP, and their blocking variants.
//!
//! The latter check their keys like the former, and leave a waiter ([`block`](crate::block)) if no key has members;
//! members are later served to it by the same functions.

use std::ops::Range;

use sluicegate_data::object::{Kind, Zset};
use sluicegate_wire::resp::ReplySink;

use super::super::wait::{first_filled, take_or_block};
use super::super::{Refused, SYNTAX, integer, is, or_error};
use super::change::note_removal;
use super::{per_element, row, say_pair};
use crate::catalogue::Blocking;
use crate::catalogue::Timeout;
use crate::catalogue::{CommandSpec, Cost, Flags};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::visits;

/// The end from which members are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Lowest,
    Highest,
}

impl End {
    /// `MIN` or `MAX`.
    fn parse(word: &[u8]) -> Result<End, Refused> {
        match () {
            () if is(word, "min") => Ok(End::Lowest),
            () if is(word, "max") => Ok(End::Highest),
            () => Err(SYNTAX.into()),
        }
    }

    fn event(self) -> &'static str {
        match self {
            End::Lowest => "zpopmin",
            End::Highest => "zpopmax",
        }
    }

    fn command(self) -> &'static [u8] {
        match self {
            End::Lowest => b"ZPOPMIN",
            End::Highest => b"ZPOPMAX",
        }
    }

    /// Returns the ranks of `count` members at this end.
    fn ranks(self, zset: &Zset, count: usize) -> Range<usize> {
        let len = zset.len();
        let count = count.min(len);
        match self {
            End::Lowest => 0..count,
            End::Highest => len - count..len,
        }
    }

    /// Writes the members at this end and removes them; returns their number.
    fn pop(
        self,
        zset: &mut Zset,
        count: usize,
        out: &mut dyn ReplySink,
        announce: impl FnOnce(usize, &mut dyn ReplySink) -> bool,
    ) -> usize {
        let ranks = self.ranks(zset, count);
        let nested = announce(ranks.len(), out);
        let say = |member: &[u8], score: f64| say_pair(member, score, nested, out);
        match self {
            End::Lowest => zset.each(ranks.clone(), say),
            End::Highest => zset.each_back(ranks.clone(), say),
        }
        zset.remove_range(ranks.clone());
        ranks.len()
    }
}

/// Returns the number after COUNT, or of keys: 1 or more.
fn positive(word: &[u8], error: &'static str) -> Result<usize, Refused> {
    let value = integer(word).ok().and_then(|value| usize::try_from(value).ok());
    value.filter(|value| *value > 0).ok_or(error.into())
}

/// ZPOPMIN and ZPOPMAX.
fn pop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, end: End) {
    let result = (|| {
        let count = match ctx.words {
            [_, _] => None,
            [_, _, count] => {
                let count = integer(count).ok().and_then(|count| usize::try_from(count).ok());
                Some(count.ok_or("ERR value is out of range, must be positive")?)
            }
            _ => return Err(SYNTAX.into()),
        };
        if count == Some(0) {
            // Nothing changes, but the type is checked.
            ctx.key(0).object::<Zset>()?;
            out.array(0);
            return Ok(());
        }
        let popped = ctx.key(0).edit_existing_as(|zset: &mut Zset| {
            let popped = end.pop(zset, count.unwrap_or(1), out, |len, out| match count {
                Some(_) => out.pairs(len),
                None => {
                    out.array(2 * len);
                    false
                }
            });
            (popped, zset.len() == 0)
        })?;
        match popped {
            Some((popped, emptied)) => note_removal(ctx, 0, popped, emptied, end.event()),
            None => out.array(0),
        }
        Ok(())
    })();
    or_error(result, out);
}

fn zpopmin(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    pop(ctx, out, End::Lowest);
}

fn zpopmax(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    pop(ctx, out, End::Highest);
}

/// The words of ZMPOP and BZMPOP after their keys: the end, and the number of members.
struct Multi {
    end: End,
    count: usize,
}

impl Multi {
    /// Reads the words from the number of keys on.
    fn parse(words: &[&[u8]]) -> Result<Multi, Refused> {
        let keys = positive(words[0], "ERR numkeys should be greater than 0")?;
        let rest = keys.checked_add(1).and_then(|end| words.get(end..)).ok_or(SYNTAX)?;
        let [end, options @ ..] = rest else { return Err(SYNTAX.into()) };
        let end = End::parse(end)?;
        let count = match options {
            [] => 1,
            [option, count, more @ ..] if is(option, "count") => {
                let count = positive(count, "ERR count should be greater than 0")?;
                if !more.is_empty() {
                    return Err(SYNTAX.into());
                }
                count
            }
            _ => return Err(SYNTAX.into()),
        };
        Ok(Multi { end, count })
    }

    /// Pops from a key that has members, and writes them with its name.
    fn pop(&self, ctx: &mut Ctx<'_>, key: usize, out: &mut dyn ReplySink) -> Result<(), Refused> {
        let name = ctx.words[ctx.places[key].word as usize];
        pop_from(ctx, key, self.end, self.count, out, |len, out| {
            out.array(2);
            out.bulk(name);
            out.array(len);
            true
        })
    }
}

/// Pops from a key that has members.
fn pop_from(
    ctx: &mut Ctx<'_>,
    key: usize,
    end: End,
    count: usize,
    out: &mut dyn ReplySink,
    announce: impl FnOnce(usize, &mut dyn ReplySink) -> bool,
) -> Result<(), Refused> {
    let popped = ctx.key(key).edit_existing_as(|zset: &mut Zset| {
        let popped = end.pop(zset, count, out, announce);
        (popped, zset.len() == 0)
    })?;
    if let Some((popped, emptied)) = popped {
        let name = ctx.words[ctx.places[key].word as usize];
        ctx.record_as(&[end.command(), name, itoa::Buffer::new().format(popped).as_bytes()]);
        note_removal(ctx, key, popped, emptied, end.event());
    }
    Ok(())
}

fn zmpop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = Multi::parse(&ctx.words[1..]).and_then(|multi| match first_filled::<Zset>(ctx)? {
        Some(key) => multi.pop(ctx, key, out),
        None => {
            out.null_array();
            Ok(())
        }
    });
    or_error(result, out);
}

/// Removes one member and writes it between its key and its score.
fn take_one(ctx: &mut Ctx<'_>, key: usize, end: End, out: &mut dyn ReplySink) -> Result<(), Refused> {
    let name = ctx.words[ctx.places[key].word as usize];
    pop_from(ctx, key, end, 1, out, |_, out| {
        out.array(3);
        out.bulk(name);
        false
    })
}

fn wait_pop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, end: End, blocking: &Blocking) {
    let result = blocking
        .deadline(ctx.words)
        .and_then(|_| take_or_block::<Zset>(ctx, blocking, out, |ctx, key, out| take_one(ctx, key, end, out)));
    or_error(result, out);
}

fn bzpopmin(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    wait_pop(ctx, out, End::Lowest, &BZPOPMIN);
}

fn bzpopmax(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    wait_pop(ctx, out, End::Highest, &BZPOPMAX);
}

fn bzmpop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let multi = Multi::parse(&ctx.words[2..])?;
        BZMPOP.deadline(ctx.words)?;
        take_or_block::<Zset>(ctx, &BZMPOP, out, |ctx, key, out| multi.pop(ctx, key, out))
    })();
    or_error(result, out);
}

const BZPOPMIN: Blocking = Blocking {
    wants: Zset::TAG,
    timeout: Timeout::Word(-1),
    destination: None,
    suits: None,
    fails_without: false,
    serve: |ctx, out| or_error(take_one(ctx, 0, End::Lowest, out), out),
    nothing: |out| out.null_array(),
};

const BZPOPMAX: Blocking =
    Blocking { serve: |ctx, out| or_error(take_one(ctx, 0, End::Highest, out), out), ..BZPOPMIN };

const BZMPOP: Blocking = Blocking {
    timeout: Timeout::Word(1),
    serve: |ctx, out| {
        let result = Multi::parse(&ctx.words[2..]).and_then(|multi| multi.pop(ctx, 0, out));
        or_error(result, out);
    },
    ..BZPOPMIN
};

const fn pops(name: &'static str, summary: &'static str, handle: super::Handle) -> CommandSpec {
    CommandSpec {
        since: "5.0.0",
        visits: Some(visits::as_many),
        complexity: "O(log(N)*M) where N is the number of members and M the number of those removed.",
        ..per_element(name, -2, Flags::WRITE.and(Flags::FAST), summary, handle)
    }
}

const fn waits(
    name: &'static str,
    blocking: &'static Blocking,
    summary: &'static str,
    handle: super::Handle,
) -> CommandSpec {
    CommandSpec {
        since: "5.0.0",
        arity: -3,
        keys: KeyRule::Range { first: 1, last: -2, step: 1 },
        flags: Flags::WRITE.and(Flags::BLOCKING).and(Flags::FAST),
        blocking: Some(blocking),
        ..row(name, -3, Flags::WRITE, summary, handle)
    }
}

pub(crate) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        since: "7.0.0",
        arity: -5,
        flags: Flags::WRITE.and(Flags::BLOCKING).and(Flags::MOVABLEKEYS),
        keys: KeyRule::Counted { count: 2, destination: false },
        cost: Cost::PerElement,
        ..waits(
            "bzmpop",
            &BZMPOP,
            "Removes and returns members from an end of the first of several sorted sets that has any, and waits if none has.",
            bzmpop,
        )
    },
    waits(
        "bzpopmax",
        &BZPOPMAX,
        "Removes and returns the member with the highest score of the first sorted set that has any, and waits if none has.",
        bzpopmax,
    ),
    waits(
        "bzpopmin",
        &BZPOPMIN,
        "Removes and returns the member with the lowest score of the first sorted set that has any, and waits if none has.",
        bzpopmin,
    ),
    CommandSpec {
        since: "7.0.0",
        keys: KeyRule::Counted { count: 1, destination: false },
        visits: Some(visits::behind_count),
        ..per_element(
            "zmpop",
            -4,
            Flags::WRITE.and(Flags::MOVABLEKEYS),
            "Removes and returns members from an end of the first of several sorted sets that has any.",
            zmpop,
        )
    },
    pops("zpopmax", "Removes and returns the members with the highest scores.", zpopmax),
    pops("zpopmin", "Removes and returns the members with the lowest scores.", zpopmin),
];
