//! Commands that name members: ZADD, ZINCRBY, ZREM, ZSCORE, ZMSCORE, and ZCARD.

use sluicegate_data::object::limits::Limits;
use sluicegate_data::object::{Kind, Zset};
use sluicegate_wire::resp::ReplySink;
use smallvec::SmallVec;

use super::super::{Refused, SYNTAX, is, or_error};
use super::{READS, WRITES, row, score};
use crate::catalogue::{CommandSpec, Flags};
use crate::context::Ctx;
use crate::notify::Class;

const NOT_A_NUMBER: &str = "ERR resulting score is not a number (NaN)";

/// The options of ZADD.
#[derive(Clone, Copy, Default)]
pub(crate) struct AddOptions {
    pub(crate) nx: bool,
    pub(crate) xx: bool,
    gt: bool,
    lt: bool,
    /// CH: changed members count, too.
    pub(crate) changed: bool,
    increments: bool,
}

/// The result for one member.
#[derive(Clone, Copy, Default)]
struct Added {
    added: bool,
    updated: bool,
    /// The score it has now; [`None`] if the options left it alone.
    score: Option<f64>,
}

impl AddOptions {
    /// Reads options from word 2 on; returns them with the position of the first score.
    fn parse(words: &[&[u8]], increments: bool) -> Result<(AddOptions, usize), Refused> {
        let mut options = AddOptions { increments, ..AddOptions::default() };
        let mut at = 2;
        while let Some(word) = words.get(at) {
            match word {
                word if is(word, "nx") => options.nx = true,
                word if is(word, "xx") => options.xx = true,
                word if is(word, "gt") => options.gt = true,
                word if is(word, "lt") => options.lt = true,
                word if is(word, "ch") => options.changed = true,
                word if is(word, "incr") => options.increments = true,
                _ => break,
            }
            at += 1;
        }
        let scored = words.len() - at;
        if scored == 0 || !scored.is_multiple_of(2) {
            return Err(SYNTAX.into());
        }
        if options.nx && options.xx {
            return Err("ERR XX and NX options at the same time are not compatible".into());
        }
        if (options.lt || options.gt) && options.nx || options.gt && options.lt {
            return Err("ERR GT, LT, and/or NX options at the same time are not compatible".into());
        }
        if options.increments && scored > 2 {
            return Err("ERR INCR option supports a single increment-element pair".into());
        }
        Ok((options, at))
    }

    /// Adds or updates one member.
    fn apply(self, zset: &mut Zset, member: &[u8], score: f64, limits: &Limits) -> Result<Added, Refused> {
        let conditional = self.nx || self.xx || self.gt || self.lt || self.increments;
        if !conditional {
            let old = zset.set(member, score, limits);
            let updated = old.is_some_and(|old| old != score);
            return Ok(Added { added: old.is_none(), updated, score: Some(score) });
        }
        let Some(old) = zset.get(member) else {
            if self.xx {
                return Ok(Added::default());
            }
            zset.set(member, score, limits);
            return Ok(Added { added: true, score: Some(score), ..Added::default() });
        };
        if self.nx {
            return Ok(Added::default());
        }
        let new = if self.increments { old + score } else { score };
        if new.is_nan() {
            return Err(NOT_A_NUMBER.into());
        }
        if self.gt && new <= old || self.lt && new >= old {
            return Ok(Added::default());
        }
        let updated = new != old;
        if updated {
            zset.set(member, new, limits);
        }
        Ok(Added { updated, score: Some(new), ..Added::default() })
    }
}

fn add(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, increments: bool) -> Result<(), Refused> {
    let words = ctx.words;
    let (options, first) = AddOptions::parse(words, increments)?;
    let mut scored = Scored::new();
    for pair in words[first..].chunks_exact(2) {
        scored.push((score(pair[0])?, pair[1]));
    }
    add_scored(ctx, out, options, &scored)
}

/// Scores with their members.
pub(crate) type Scored<'a> = SmallVec<[(f64, &'a [u8]); 4]>;

/// Adds members to key 0 and writes the result.
pub(crate) fn add_scored(
    ctx: &mut Ctx<'_>,
    out: &mut dyn ReplySink,
    options: AddOptions,
    scored: &Scored<'_>,
) -> Result<(), Refused> {
    let limits = ctx.limits();
    let change = |zset: &mut Zset| {
        let (mut added, mut updated, mut last) = (0, 0, None);
        zset.expect(scored.len(), limits);
        for (score, member) in scored {
            let done = options.apply(zset, member, *score, limits)?;
            added += usize::from(done.added);
            updated += usize::from(done.updated);
            last = done.score;
        }
        Ok::<_, Refused>((added, updated, last))
    };
    let mut key = ctx.key(0);
    // With XX no key is created that would have to be removed.
    let done =
        if options.xx { key.edit_existing_as(change)?.unwrap_or(Ok((0, 0, None))) } else { key.edit_as(change)? };
    let (added, updated, last) = done?;
    if added + updated > 0 {
        ctx.notify(0, Class::Zset, if options.increments { "zincr" } else { "zadd" });
    }
    match (options.increments, last) {
        (false, _) => out.integer((added + if options.changed { updated } else { 0 }) as i64),
        (true, Some(score)) => out.double(score),
        (true, None) => out.null(),
    }
    Ok(())
}

fn zadd(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    or_error(add(ctx, out, false), out);
}

fn zincrby(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    or_error(add(ctx, out, true), out);
}

fn zrem(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let removed = ctx.key(0).edit_existing_as(|zset: &mut Zset| {
        let removed = words[2..].iter().filter(|member| zset.remove(member).is_some()).count();
        (removed, zset.len() == 0)
    });
    let result = removed.map(|removed| {
        let (removed, emptied) = removed.unwrap_or_default();
        note_removal(ctx, 0, removed, emptied, "zrem");
        out.integer(removed as i64);
    });
    or_error(result, out);
}

/// Emits the events of members removed from a key, and of the key removed with the last of them.
pub(super) fn note_removal(ctx: &mut Ctx<'_>, key: usize, removed: usize, emptied: bool, event: &'static str) {
    if removed > 0 {
        ctx.notify(key, Class::Zset, event);
        if emptied {
            ctx.notify(key, Class::Generic, "del");
        }
    }
}

/// Writes a score, or null.
fn say(score: Option<f64>, out: &mut dyn ReplySink) {
    match score {
        Some(score) => out.double(score),
        None => out.null(),
    }
}

fn zscore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let member = ctx.words[2];
    let result = ctx.read_as::<Zset>(0).map(|zset| say(zset.and_then(|zset| zset.get(member)), out));
    or_error(result, out);
}

fn zmscore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = ctx.read_as::<Zset>(0).map(|zset| {
        out.array(words.len() - 2);
        words[2..].iter().for_each(|member| say(zset.as_ref().and_then(|zset| zset.get(member)), out));
    });
    or_error(result, out);
}

fn zcard(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = ctx.read_as::<Zset>(0).map(|zset| out.integer(zset.map_or(0, |zset| zset.len()) as i64));
    or_error(result, out);
}

pub(crate) const COMMANDS: &[CommandSpec] = &[
    row(
        "zadd",
        -4,
        WRITES.and(Flags::FAST),
        "Adds members to a sorted set or updates their scores; returns how many are new.",
        zadd,
    ),
    CommandSpec {
        complexity: "O(1)",
        ..row("zcard", 2, READS, "Returns the number of members of a sorted set.", zcard)
    },
    row("zincrby", 4, WRITES.and(Flags::FAST), "Adds to the score of a member; 0 if there is none.", zincrby),
    CommandSpec {
        since: "6.2.0",
        complexity: "O(N) where N is the number of members named.",
        ..row("zmscore", -3, READS, "Returns the scores of some members.", zmscore)
    },
    CommandSpec {
        complexity: "O(M*log(N)) where N is the number of members and M the number of those named.",
        ..row(
            "zrem",
            -3,
            Flags::WRITE.and(Flags::FAST),
            "Removes members of a sorted set, and the sorted set with its last one.",
            zrem,
        )
    },
    CommandSpec { complexity: "O(1)", ..row("zscore", 3, READS, "Returns the score of a member.", zscore) },
];
