//! Commands that return members in no order: ZSCAN and ZRANDMEMBER.

use std::collections::BTreeSet;

use sluicegate_data::object::{Kind, Zset, score};
use sluicegate_data::random::{Selection, below, random};
use sluicegate_data::texts::Texts;
use sluicegate_wire::resp::ReplySink;

use super::super::set::count_to_draw;
use super::super::{Refused, SYNTAX, integer, is, or_error, scan};
use super::{per_element, say_pair};
use crate::catalogue::{CommandSpec, Flags};
use crate::context::Ctx;
use crate::visits;

fn zscan(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let cursor = scan::cursor(words)?;
        let Some(zset) = ctx.read_as::<Zset>(0)? else {
            scan::say(None, &Texts::default(), out);
            return Ok(());
        };
        let options = scan::Options::parse(&words[3..], false)?;
        // A small sorted set returns scores as its block stores them.
        let text = if zset.is_small() { score::stored } else { score::text_17 };
        let mut found = Texts::default();
        let next = zset.scan(cursor, options.count, |member, score| {
            if options.wants(member) {
                found.push(member);
                found.push(&text(score));
            }
        });
        scan::say(next, &found, out);
        Ok(())
    })();
    or_error(result, out);
}

/// Returns distinct random ranks in ascending order.
fn different(count: usize, len: usize) -> Vec<usize> {
    // A few of many ranks are drawn until enough are distinct; otherwise all are scanned.
    if count < len / 3 {
        let mut ranks = BTreeSet::new();
        while ranks.len() < count {
            ranks.insert(below(len, &mut random));
        }
        return ranks.into_iter().collect();
    }
    let mut random = random;
    let mut selection = Selection::new(count, len, &mut random);
    (0..len).filter(|_| selection.takes()).collect()
}

fn zrandmember(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let [_, _, count, options @ ..] = words else {
            match ctx.read_as::<Zset>(0)? {
                Some(zset) => {
                    let rank = below(zset.len(), &mut random);
                    zset.each(rank..rank + 1, |member, _| out.bulk(member));
                }
                None => out.null(),
            }
            return Ok(());
        };
        if integer(count)? == i64::MIN {
            count_to_draw(count)?;
        }
        let with_scores = match options {
            [] => false,
            [option] if is(option, "withscores") => true,
            _ => return Err(SYNTAX.into()),
        };
        if with_scores && !(-(i64::MAX / 2)..=i64::MAX / 2).contains(&integer(count)?) {
            return Err(Refused::from("ERR value is out of range"));
        }
        let (count, is_different) = count_to_draw(count)?;
        let Some(zset) = ctx.read_as::<Zset>(0)? else {
            out.array(0);
            return Ok(());
        };
        let len = zset.len();
        let ranks = match is_different {
            true => different(count, len),
            false => (0..count).map(|_| below(len, &mut random)).collect(),
        };
        let nested = if with_scores { out.pairs(ranks.len()) } else { false };
        if !with_scores {
            out.array(ranks.len());
        }
        for rank in ranks {
            zset.each(rank..rank + 1, |member, score| match with_scores {
                true => say_pair(member, score, nested, out),
                false => out.bulk(member),
            });
        }
        Ok(())
    })();
    or_error(result, out);
}

pub(crate) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        since: "6.2.0",
        complexity: "O(N*log(M)) where N is the number of members returned and M that of all.",
        visits: Some(visits::drawn),
        ..per_element("zrandmember", -2, Flags::READONLY, "Returns members chosen by chance.", zrandmember)
    },
    CommandSpec {
        since: "2.8.0",
        complexity: "O(1) for every call, O(N) for all members.",
        visits: Some(visits::behind_count),
        ..per_element("zscan", -3, Flags::READONLY, "Goes through the members and scores of a sorted set.", zscan)
    },
];
