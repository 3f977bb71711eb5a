//! Commands that take members from an end: ZPOPMIN, ZPOPMAX, ZMPOP.

use std::ops::Range;

use sluicegate_wire::resp::ReplySink;

use super::super::{Refused, SYNTAX, integer, is, or_error};
use super::change::note_removal;
use super::{per_element, say_pair};
use crate::catalogue::{CommandSpec, Flags};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::object::{Kind, Zset};

/// The end from which members are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Lowest,
    Highest,
}

impl End {
    /// `MIN` or `MAX`.
    pub(super) fn parse(word: &[u8]) -> Result<End, Refused> {
        match () {
            () if is(word, "min") => Ok(End::Lowest),
            () if is(word, "max") => Ok(End::Highest),
            () => Err(SYNTAX.into()),
        }
    }

    pub(super) fn event(self) -> &'static str {
        match self {
            End::Lowest => "zpopmin",
            End::Highest => "zpopmax",
        }
    }

    /// The ranks of `count` members at this end.
    fn ranks(self, zset: &Zset, count: usize) -> Range<usize> {
        let len = zset.len();
        let count = count.min(len);
        match self {
            End::Lowest => 0..count,
            End::Highest => len - count..len,
        }
    }

    /// Says the members at this end and removes them; gives how many they are.
    pub(super) fn pop(
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

/// The number after COUNT, or of keys: 1 or more.
pub(super) fn positive(word: &[u8], error: &'static str) -> Result<usize, Refused> {
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
            // Nothing changes, but the type is looked at.
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

/// What ZMPOP and BZMPOP say after their timeout: the number of keys, the end, and how many members.
pub(super) struct Multi {
    pub(super) keys: usize,
    pub(super) end: End,
    pub(super) count: usize,
}

impl Multi {
    /// Reads the words from the number of keys on.
    pub(super) fn parse(words: &[&[u8]]) -> Result<Multi, Refused> {
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
        Ok(Multi { keys, end, count })
    }

    /// Pops from the first key that has members; false, and nothing is said, if none has.
    pub(super) fn pop(&self, ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) -> Result<bool, Refused> {
        for index in 0..self.keys {
            let word = ctx.words[ctx.places[index].word as usize];
            let popped = ctx.key(index).edit_existing_as(|zset: &mut Zset| {
                out.array(2);
                out.bulk(word);
                let popped = self.end.pop(zset, self.count, out, |len, out| {
                    out.array(len);
                    true
                });
                (popped, zset.len() == 0)
            })?;
            if let Some((popped, emptied)) = popped {
                note_removal(ctx, index, popped, emptied, self.end.event());
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn zmpop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = Multi::parse(&ctx.words[1..]).and_then(|multi| {
        if !multi.pop(ctx, out)? {
            out.null_array();
        }
        Ok(())
    });
    or_error(result, out);
}

const fn pops(name: &'static str, summary: &'static str, handle: super::Handle) -> CommandSpec {
    CommandSpec {
        since: "5.0.0",
        complexity: "O(log(N)*M) where N is the number of members and M the number of those removed.",
        ..per_element(name, -2, Flags::WRITE.and(Flags::FAST), summary, handle)
    }
}

pub(crate) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        since: "7.0.0",
        keys: KeyRule::Counted { count: 1, destination: false },
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
