//! Commands on ranges: ZRANGE in all its forms, counts, ranks, and removal by range.

use std::ops::Range;

use sluicegate_data::object::Object;
use sluicegate_data::object::zset::LexBound;
use sluicegate_data::object::{Kind, Zset, score};
use sluicegate_data::value::Garbage;
use sluicegate_wire::resp::ReplySink;

use super::super::{Refused, SYNTAX, integer, is, or_error};
use super::change::note_removal;
use super::{READS, WRITES, per_element, row, say_pair, store};
use crate::catalogue::{CommandSpec, Flags, Handle, Records, WrittenKeys};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::visits::{self, FindVisits, is_limited, is_short};

const NOT_SCORES: &str = "ERR min or max is not a float";
const NOT_MEMBERS: &str = "ERR min or max not valid string range item";

/// The criterion of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Lex,
}

/// An end of a range of scores.
#[derive(Clone, Copy, Debug)]
struct ScoreBound {
    score: f64,
    without: bool,
}

impl ScoreBound {
    fn parse(word: &[u8]) -> Option<ScoreBound> {
        match word {
            [b'(', score @ ..] => score::parse_bound(score).map(|score| ScoreBound { score, without: true }),
            score => score::parse_bound(score).map(|score| ScoreBound { score, without: false }),
        }
    }
}

fn lex_bound(word: &[u8]) -> Option<LexBound<'_>> {
    match word {
        b"-" => Some(LexBound::Lowest),
        b"+" => Some(LexBound::Highest),
        [b'[', member @ ..] => Some(LexBound::With(member)),
        [b'(', member @ ..] => Some(LexBound::Without(member)),
        _ => None,
    }
}

/// A range as the command names it, with parsed ends.
#[derive(Clone, Copy, Debug)]
enum Named<'a> {
    Ranks(i64, i64),
    Scores(ScoreBound, ScoreBound),
    Members(LexBound<'a>, LexBound<'a>),
}

impl<'a> Named<'a> {
    /// Reads the ends, the lower one first.
    fn parse(by: By, min: &'a [u8], max: &'a [u8]) -> Result<Named<'a>, Refused> {
        match by {
            By::Rank => Ok(Named::Ranks(integer(min)?, integer(max)?)),
            By::Score => ScoreBound::parse(min)
                .zip(ScoreBound::parse(max))
                .map(|(min, max)| Named::Scores(min, max))
                .ok_or(NOT_SCORES.into()),
            By::Lex => {
                lex_bound(min).zip(lex_bound(max)).map(|(min, max)| Named::Members(min, max)).ok_or(NOT_MEMBERS.into())
            }
        }
    }

    /// Returns the ranks of its elements; with `back`, the ranks that the command names count from the end.
    fn ranks(&self, zset: &Zset, back: bool) -> Range<usize> {
        let len = zset.len();
        match *self {
            Named::Ranks(start, end) => {
                let from_start = |rank: i64| if rank < 0 { rank.saturating_add(len as i64) } else { rank };
                let (start, end) = (from_start(start).max(0), from_start(end));
                if start > end || start >= len as i64 {
                    return 0..0;
                }
                let (start, end) = (start as usize, (end as usize + 1).min(len));
                if back { len - end..len - start } else { start..end }
            }
            Named::Scores(min, max) => {
                let start = match min {
                    ScoreBound { score: f64::NEG_INFINITY, without: false } => 0,
                    _ => zset.position(|score| score < min.score || min.without && score == min.score),
                };
                let end = match max {
                    ScoreBound { score: f64::INFINITY, without: false } => len,
                    _ => zset.position(|score| score < max.score || !max.without && score == max.score),
                };
                start..end.max(start)
            }
            Named::Members(min, max) => zset.lex_range(&min, &max, back),
        }
    }
}

/// The LIMIT of a range.
#[derive(Clone, Copy, Debug)]
struct Limit {
    offset: i64,
    /// All if negative.
    count: i64,
}

impl Limit {
    const NONE: Limit = Limit { offset: 0, count: -1 };

    fn of(self, ranks: Range<usize>, back: bool) -> Range<usize> {
        let Ok(offset) = usize::try_from(self.offset) else { return 0..0 };
        let left = ranks.len().saturating_sub(offset);
        let count = usize::try_from(self.count).map_or(left, |count| count.min(left));
        if back {
            ranks.end - offset.min(ranks.len()) - count..ranks.end - offset.min(ranks.len())
        } else {
            let start = ranks.start + offset.min(ranks.len());
            start..start + count
        }
    }
}

/// A query of the ZRANGE family.
#[derive(Clone, Copy, Debug)]
struct Query<'a> {
    named: Named<'a>,
    limit: Limit,
    back: bool,
    with_scores: bool,
}

impl<'a> Query<'a> {
    /// Parses a query whose ends are word `first` and the following one. `by` and `back` are set if the command's name
    /// implies them; for ZRANGE and ZRANGESTORE they are options.
    fn parse(
        words: &[&'a [u8]],
        first: usize,
        by: Option<By>,
        back: Option<bool>,
        stores: bool,
    ) -> Result<Query<'a>, Refused> {
        let (mut option_by, mut option_back) = (by, back);
        let (mut limit, mut with_scores) = (Limit::NONE, false);
        let mut rest = words[first + 2..].iter();
        while let Some(word) = rest.next() {
            match rest.as_slice() {
                _ if !stores && is(word, "withscores") => with_scores = true,
                [offset, count, ..] if is(word, "limit") => {
                    limit = Limit { offset: integer(offset)?, count: integer(count)? };
                    rest.nth(1);
                }
                _ if option_back.is_none() && is(word, "rev") => option_back = Some(true),
                _ if option_by.is_none() && is(word, "bylex") => option_by = Some(By::Lex),
                _ if option_by.is_none() && is(word, "byscore") => option_by = Some(By::Score),
                _ => return Err(SYNTAX.into()),
            }
        }
        let (by, back) = (option_by.unwrap_or(By::Rank), option_back.unwrap_or(false));
        if by == By::Rank && limit.count != -1 {
            return Err("ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX".into());
        }
        if with_scores && by == By::Lex {
            return Err("ERR syntax error, WITHSCORES not supported in combination with BYLEX".into());
        }
        if by == By::Rank {
            // An offset alone is taken and ignored.
            limit = Limit::NONE;
        }
        let (mut min, mut max) = (words[first], words[first + 1]);
        if back && by != By::Rank {
            (min, max) = (max, min);
        }
        Ok(Query { named: Named::parse(by, min, max)?, limit, back, with_scores })
    }

    /// Returns the ranks that it asks for.
    fn ranks(&self, zset: &Zset) -> Range<usize> {
        self.limit.of(self.named.ranks(zset, self.back), self.back)
    }

    fn each(&self, zset: &Zset, visit: impl FnMut(&[u8], f64)) {
        let ranks = self.ranks(zset);
        if self.back { zset.each_back(ranks, visit) } else { zset.each(ranks, visit) }
    }
}

/// Returns the number of elements processed by a query whose options begin after word `first`; 0 if its words are
/// invalid.
fn count_queried(
    words: &[&[u8]],
    object: &Object,
    (first, by, back, stores): (usize, Option<By>, Option<bool>, bool),
) -> usize {
    let Some(zset) = Zset::of(object) else { return 0 };
    Query::parse(words, first, by, back, stores).map_or(0, |query| query.ranks(zset).len())
}

/// Returns the number of elements that a command of the ZREMRANGE family removes; 0 if its words are invalid.
fn count_removed(words: &[&[u8]], object: &Object, by: By) -> usize {
    let Some(zset) = Zset::of(object) else { return 0 };
    Named::parse(by, words[2], words[3]).map_or(0, |named| named.ranks(zset, false).len())
}

/// Answers a query on key 0.
fn answer(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, by: Option<By>, back: Option<bool>) {
    let result = Query::parse(ctx.words, 2, by, back, false).and_then(|query| {
        let Some(zset) = ctx.read_as::<Zset>(0)? else {
            out.array(0);
            return Ok(());
        };
        let len = query.ranks(&zset).len();
        if query.with_scores {
            let nested = out.pairs(len);
            query.each(&zset, |member, score| say_pair(member, score, nested, out));
        } else {
            out.array(len);
            query.each(&zset, |member, _| out.bulk(member));
        }
        Ok(())
    });
    or_error(result, out);
}

fn zrange(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    answer(ctx, out, None, None);
}

fn zrevrange(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    answer(ctx, out, Some(By::Rank), Some(true));
}

fn zrangebyscore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    answer(ctx, out, Some(By::Score), Some(false));
}

fn zrevrangebyscore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    answer(ctx, out, Some(By::Score), Some(true));
}

fn zrangebylex(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    answer(ctx, out, Some(By::Lex), Some(false));
}

fn zrevrangebylex(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    answer(ctx, out, Some(By::Lex), Some(true));
}

fn zrangestore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = Query::parse(ctx.words, 3, None, None, true).and_then(|query| {
        let (mut made, limits) = (Zset::empty(), ctx.limits());
        if let Some(zset) = ctx.read_as::<Zset>(1)? {
            if let Named::Ranks(..) = query.named {
                // As in Redis, only a range of ranks chooses the form in advance, by the number of elements; in the
                // large form -0 keeps its sign.
                made = Zset::for_members(query.ranks(&zset).len(), 0, limits);
            }
            query.each(&zset, |member, score| {
                made.set(member, score, limits);
            });
        }
        store(ctx, 0, made, "zrangestore", out);
        Ok(())
    });
    or_error(result, out);
}

/// Writes the number of members in the range of words 2 and 3.
fn count(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, by: By) {
    let words = ctx.words;
    let result = Named::parse(by, words[2], words[3]).and_then(|named| {
        let len = ctx.read_as::<Zset>(0)?.map_or(0, |zset| named.ranks(&zset, false).len());
        out.integer(len as i64);
        Ok(())
    });
    or_error(result, out);
}

fn zcount(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    count(ctx, out, By::Score);
}

fn zlexcount(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    count(ctx, out, By::Lex);
}

/// Removes the range of words 2 and 3.
fn remove(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, by: By, event: &'static str) {
    let words = ctx.words;
    let result = Named::parse(by, words[2], words[3]).and_then(|named| {
        let mut whole = None;
        let removed = ctx.key(0).edit_existing_as(|zset: &mut Zset| {
            let ranks = named.ranks(zset, false);
            if ranks.len() == zset.len() {
                whole = Some(std::mem::replace(zset, Zset::empty()));
            } else {
                zset.remove_range(ranks.clone());
            }
            (ranks.len(), zset.len() == 0)
        })?;
        // A set that becomes empty is freed after its stripe is unlocked.
        ctx.garbage.extend(whole.map(|zset| Garbage::Object(zset.into_object())));
        let (removed, emptied) = removed.unwrap_or_default();
        note_removal(ctx, 0, removed, emptied, event);
        out.integer(removed as i64);
        Ok(())
    });
    or_error(result, out);
}

fn zremrangebyrank(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    remove(ctx, out, By::Rank, "zremrangebyrank");
}

fn zremrangebyscore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    remove(ctx, out, By::Score, "zremrangebyscore");
}

fn zremrangebylex(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    remove(ctx, out, By::Lex, "zremrangebylex");
}

/// Writes a member's rank, from the end if `back`; with its score if requested (Redis 7.2).
fn rank(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, back: bool) {
    let words = ctx.words;
    let with_score = match words {
        [_, _, _] => Ok(false),
        [_, _, _, option] if is(option, "withscore") => Ok(true),
        [_, _, _, _] => Err(SYNTAX.into()),
        _ => {
            Err(format!("ERR wrong number of arguments for '{}' command", if back { "zrevrank" } else { "zrank" })
                .into())
        }
    };
    let result = with_score.and_then(|with_score| {
        let found = ctx.read_as::<Zset>(0)?.and_then(|zset| {
            let (rank, score) = zset.rank(words[2])?;
            Some((if back { zset.len() - 1 - rank } else { rank }, score))
        });
        match (found, with_score) {
            (None, false) => out.null(),
            (None, true) => out.null_array(),
            (Some((rank, _)), false) => out.integer(rank as i64),
            (Some((rank, score)), true) => {
                out.array(2);
                out.integer(rank as i64);
                out.double(score);
            }
        }
        Ok(())
    });
    or_error(result, out);
}

fn zrank(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    rank(ctx, out, false);
}

fn zrevrank(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    rank(ctx, out, true);
}

const fn since(since: &'static str, row: CommandSpec) -> CommandSpec {
    CommandSpec { since, ..row }
}

/// Returns a row of a command on a range of members.
const fn ranged(
    name: &'static str,
    arity: i32,
    flags: Flags,
    summary: &'static str,
    (handle, visits): (Handle, FindVisits),
) -> CommandSpec {
    CommandSpec { visits: Some(visits), ..per_element(name, arity, flags, summary, handle) }
}

pub(crate) const COMMANDS: &[CommandSpec] = &[
    since("2.0.0", row("zcount", 4, READS, "Counts the members whose scores are in a range.", zcount)),
    since("2.8.9", row("zlexcount", 4, READS, "Counts the members of equal scores that are in a range.", zlexcount)),
    ranged(
        "zrange",
        -4,
        Flags::READONLY,
        "Returns the members in a range of ranks, scores or members.",
        (zrange, |words| {
            visits::counted(is_short(words), |words, object| count_queried(words, object, (2, None, None, false)))
        }),
    ),
    since(
        "2.8.9",
        ranged(
            "zrangebylex",
            -4,
            Flags::READONLY,
            "Returns the members between two members.",
            (zrangebylex, |words| {
                visits::counted(is_limited(words), |words, object| {
                    count_queried(words, object, (2, Some(By::Lex), Some(false), false))
                })
            }),
        ),
    ),
    since(
        "1.0.5",
        ranged(
            "zrangebyscore",
            -4,
            Flags::READONLY,
            "Returns the members between two scores.",
            (zrangebyscore, |words| {
                visits::counted(is_limited(words), |words, object| {
                    count_queried(words, object, (2, Some(By::Score), Some(false), false))
                })
            }),
        ),
    ),
    CommandSpec {
        keys: KeyRule::TWO,
        writes: WrittenKeys::First,
        records: Records::Derived,
        ..since(
            "6.2.0",
            ranged(
                "zrangestore",
                -5,
                WRITES,
                "Stores a range of members in a key.",
                (zrangestore, |_| {
                    visits::counted(false, |words, object| count_queried(words, object, (3, None, None, true)))
                }),
            ),
        )
    },
    since("2.0.0", row("zrank", -3, READS, "Returns a member's place in order of scores.", zrank)),
    since(
        "2.8.9",
        ranged(
            "zremrangebylex",
            4,
            Flags::WRITE,
            "Removes the members between two members.",
            (zremrangebylex, |_| visits::counted(false, |words, object| count_removed(words, object, By::Lex))),
        ),
    ),
    since(
        "2.0.0",
        ranged(
            "zremrangebyrank",
            4,
            Flags::WRITE,
            "Removes the members in a range of ranks.",
            (zremrangebyrank, |_| visits::counted(false, |words, object| count_removed(words, object, By::Rank))),
        ),
    ),
    ranged(
        "zremrangebyscore",
        4,
        Flags::WRITE,
        "Removes the members between two scores.",
        (zremrangebyscore, |_| visits::counted(false, |words, object| count_removed(words, object, By::Score))),
    ),
    ranged(
        "zrevrange",
        -4,
        Flags::READONLY,
        "Returns the members in a range of ranks, the last first.",
        (zrevrange, |words| {
            visits::counted(is_short(words), |words, object| {
                count_queried(words, object, (2, Some(By::Rank), Some(true), false))
            })
        }),
    ),
    since(
        "2.8.9",
        ranged(
            "zrevrangebylex",
            -4,
            Flags::READONLY,
            "Returns the members between two members, the last first.",
            (zrevrangebylex, |words| {
                visits::counted(is_limited(words), |words, object| {
                    count_queried(words, object, (2, Some(By::Lex), Some(true), false))
                })
            }),
        ),
    ),
    since(
        "2.2.0",
        ranged(
            "zrevrangebyscore",
            -4,
            Flags::READONLY,
            "Returns the members between two scores, the last first.",
            (zrevrangebyscore, |words| {
                visits::counted(is_limited(words), |words, object| {
                    count_queried(words, object, (2, Some(By::Score), Some(true), false))
                })
            }),
        ),
    ),
    since("2.0.0", row("zrevrank", -3, READS, "Returns a member's place in order of scores, from the last.", zrevrank)),
];
