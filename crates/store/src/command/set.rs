//! Commands on sets, except those that combine several.
//!
//! Commands on named members take constant time; SMEMBERS and SPOP or SRANDMEMBER with a large count copy their reply
//! under the stripe's lock.

use sluicegate_data::object::limits::Limits;
use sluicegate_data::object::packed::Element;
use sluicegate_data::object::{Kind, Set};
use sluicegate_data::random::random;
use sluicegate_data::texts::Texts;
use sluicegate_wire::resp::{ReplySink, parse_i64};

use super::scan::{self, Options};
use super::{Refused, SYNTAX, integer, is, or_error};
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::notify::Class;
use crate::visits::{self, FindVisits};

/// Returns a member on its own.
fn owned(member: Element<'_>) -> Vec<u8> {
    member.text(&mut itoa::Buffer::new()).to_vec()
}

fn say(member: Element<'_>, out: &mut dyn ReplySink) {
    out.bulk(member.text(&mut itoa::Buffer::new()));
}

/// Emits the event of removed members and, if none is left, of the removed key.
fn notify_removal(ctx: &mut Ctx<'_>, name: &'static str) {
    ctx.notify(0, Class::Set, name);
    if !ctx.key(0).exists() {
        ctx.notify(0, Class::Generic, "del");
    }
}

fn sadd(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let members = &ctx.words[2..];
    let limits = ctx.limits();
    let mut key = ctx.key(0);
    let now_ms = key.element_time();
    let result = key.edit_as(|set: &mut Set| {
        match set.len() {
            0 => *set = Set::for_members(members[0], members.len(), limits),
            _ => set.expect(members.len(), limits),
        }
        members.iter().filter(|member| set.add(member, now_ms, limits)).count()
    });
    let result = result.map(|added| {
        if added > 0 {
            ctx.notify(0, Class::Set, "sadd");
        }
        out.integer(added as i64);
    });
    or_error(result, out);
}

/// `SADDEX key [KEEPTTL] seconds member…`, as in Dragonfly.
fn saddex(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let keep = is(ctx.words[2], "keepttl");
        let words = &ctx.words[2 + usize::from(keep)..];
        let [seconds, members @ ..] = words else { return Err(SYNTAX.into()) };
        if members.is_empty() {
            return Err("ERR wrong number of arguments for 'saddex' command".into());
        }
        let at_ms = super::field_expiry::seconds_from_now(seconds, ctx.now.ms())?;
        let now_ms = ctx.expiry_ms();
        let mut key = ctx.key(0);
        let are_new: Vec<bool> = key.edit_as(|set: &mut Set| {
            members.iter().map(|member| set.add_expiring(member, at_ms, keep, now_ms)).collect()
        })?;
        let added = are_new.iter().filter(|is_new| **is_new).count();
        if added > 0 || !keep {
            record_timed(ctx, members, at_ms, keep.then_some(&are_new));
            ctx.notify(0, Class::Set, "sadd");
        }
        out.integer(added as i64);
        Ok(())
    })();
    or_error(result, out);
}

/// Records that members were added to key 0, and that they expire; if `are_new` is given, only those that it marks do.
fn record_timed(ctx: &mut Ctx<'_>, members: &[&[u8]], at_ms: i64, are_new: Option<&Vec<bool>>) {
    if !ctx.records() {
        return;
    }
    let key = ctx.words[1];
    let is_timed = |index: usize| are_new.is_none_or(|are_new| are_new[index]);
    let timed: Vec<&[u8]> = (0..members.len()).filter(|index| is_timed(*index)).map(|index| members[index]).collect();
    ctx.record_as(&[&[b"SADD", key], members].concat());
    ctx.record_own(&[&[SPEXPIREAT, key, at_ms.to_string().as_bytes()], &timed[..]].concat());
}

/// The name of an effect: `key at_ms member…` gives members of a set this expiry, in Unix milliseconds.
pub(crate) const SPEXPIREAT: &[u8] = b"SPEXPIREAT";

/// The effect.
pub(crate) const EXPIRE_MEMBERS: CommandSpec = CommandSpec {
    name: "spexpireat",
    arity: -4,
    flags: Flags::WRITE,
    keys: KeyRule::ONE,
    handler: Handler::Keyspace(expire_members),
    ..CommandSpec::EMPTY
};

fn expire_members(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let (words, result) = (ctx.words, integer(ctx.words[2]));
    let result = result.and_then(|at_ms| {
        ctx.key(0).edit_existing_as(|set: &mut Set| {
            words[3..].iter().for_each(|member| {
                set.add_expiring(member, at_ms, false, sluicegate_data::object::elements::TIMELESS);
            });
        })
    });
    or_error(result.map(|_| out.ok()), out);
}

fn srem(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let members = &ctx.words[2..];
    let mut key = ctx.key(0);
    let now_ms = key.element_time();
    let result =
        key.edit_existing_as(|set: &mut Set| members.iter().filter(|member| set.remove(member, now_ms)).count());
    let result = result.map(|removed| {
        let removed = removed.unwrap_or(0);
        if removed > 0 {
            notify_removal(ctx, "srem");
        }
        out.integer(removed as i64);
    });
    or_error(result, out);
}

fn sismember(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let member = ctx.words[2];
    let result = ctx.read_timed::<Set>(0).map(|set| {
        out.integer(i64::from(set.is_some_and(|(set, now_ms)| set.contains(member, now_ms))));
    });
    or_error(result, out);
}

fn smismember(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let members = &ctx.words[2..];
    let result = ctx.read_timed::<Set>(0).map(|set| {
        out.array(members.len());
        for member in members {
            out.integer(i64::from(set.as_ref().is_some_and(|(set, now_ms)| set.contains(member, *now_ms))));
        }
    });
    or_error(result, out);
}

fn scard(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = ctx.read_as::<Set>(0).map(|set| out.integer(set.map_or(0, |set| set.len()) as i64));
    or_error(result, out);
}

fn smembers(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = ctx.read_timed::<Set>(0).map(|set| {
        let Some((set, now_ms)) = set else { return out.set(0) };
        out.set(set.living(now_ms));
        set.each(now_ms, |member| say(member, out));
    });
    or_error(result, out);
}

/// Returns a count of 0 or more.
fn positive(word: &[u8]) -> Result<usize, Refused> {
    let count = parse_i64(word).and_then(|count| usize::try_from(count).ok());
    count.ok_or("ERR value is out of range, must be positive".into())
}

/// The ratio of removed to remaining members from which on SPOP builds a new set of the remaining ones, as Redis does.
const STAYING_SHARE: usize = 5;

/// Removes random members.
fn pop(set: &mut Set, count: usize, now_ms: i64, limits: &Limits) -> Vec<Vec<u8>> {
    let total = set.living(now_ms);
    let mut popped = Vec::with_capacity(count.min(total));
    let staying = total.saturating_sub(count);
    if staying > 0 && staying * STAYING_SHARE <= count && set.earliest_ms().is_none() {
        let mut rest = if let Set::Ints(_) = set { Set::empty() } else { Set::for_members(b"a", staying, limits) };
        set.some(staying, now_ms, &mut random, |member| {
            rest.add(member.text(&mut itoa::Buffer::new()), now_ms, limits);
        });
        set.each(now_ms, |member| {
            if !rest.has(member, now_ms) {
                popped.push(owned(member));
            }
        });
        *set = rest;
        return popped;
    }
    set.some(count, now_ms, &mut random, |member| popped.push(owned(member)));
    popped.iter().for_each(|member| {
        set.remove(member, now_ms);
    });
    popped
}

/// The maximum number of members of a command that is recorded for SPOP.
const RECORDED_MAX: usize = 1024;

fn spop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let count = match ctx.words {
            [_, _] => None,
            [_, _, count] => Some(positive(count)?),
            _ => return Err(SYNTAX.into()),
        };
        let limits = ctx.limits();
        let mut key = ctx.key(0);
        key.note_access();
        let now_ms = key.element_time();
        let (popped, takes_all) = key
            .edit_existing_as(|set: &mut Set| {
                let takes_all = count.is_some_and(|count| count >= set.len());
                (pop(set, count.unwrap_or(1), now_ms, limits), takes_all)
            })?
            .unwrap_or_default();
        if !popped.is_empty() {
            if ctx.records() && takes_all {
                ctx.record_as(&[b"DEL", ctx.words[1]]);
            } else if ctx.records() {
                for some in popped.chunks(RECORDED_MAX) {
                    let head = [&b"SREM"[..], ctx.words[1]].into_iter();
                    let words: Vec<&[u8]> = head.chain(some.iter().map(|member| &member[..])).collect();
                    ctx.record_as(&words);
                }
            }
            notify_removal(ctx, "spop");
        }
        match (count, popped.first()) {
            (Some(_), _) => {
                out.set(popped.len());
                popped.iter().for_each(|member| out.bulk(member));
            }
            (None, Some(member)) => out.bulk(member),
            (None, None) => out.null(),
        }
        Ok(())
    })();
    or_error(result, out);
}

/// The maximum number of elements that one command replies when elements may be repeated; Redis has no limit and
/// crashes.
pub(super) const DRAWN_MAX: usize = 1 << 24;

/// Returns the count of SRANDMEMBER and HRANDFIELD: how many, and whether they must be different.
pub(super) fn count_to_draw(word: &[u8]) -> Result<(usize, bool), Refused> {
    let count = integer(word)?;
    match usize::try_from(count) {
        Ok(count) => Ok((count, true)),
        Err(_) => match count.checked_neg().and_then(|count| usize::try_from(count).ok()) {
            Some(count) if count <= DRAWN_MAX => Ok((count, false)),
            Some(_) => Err("ERR value is out of range".into()),
            None => {
                Err("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807".into())
            }
        },
    }
}

fn srandmember(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let count = match ctx.words {
            [_, _] => None,
            [_, _, count] => Some(count_to_draw(count)?),
            _ => return Err(SYNTAX.into()),
        };
        let set = ctx.read_timed::<Set>(0)?;
        // A set in which everything has expired counts as missing.
        let set = set.map(|(set, now_ms)| (set.living(now_ms), set, now_ms)).filter(|(living, ..)| *living > 0);
        match (set, count) {
            (None, None) => out.null(),
            (None, Some(_)) => out.array(0),
            (Some((_, set, now_ms)), None) => set.draw(1, now_ms, &mut random, |member| say(member, out)),
            (Some((living, set, now_ms)), Some((count, true))) => {
                out.array(count.min(living));
                set.some(count, now_ms, &mut random, |member| say(member, out));
            }
            (Some((_, set, now_ms)), Some((count, false))) => {
                out.array(count);
                set.draw(count, now_ms, &mut random, |member| say(member, out));
            }
        }
        Ok(())
    })();
    or_error(result, out);
}

fn smove(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let member = words[3];
    let result = (|| {
        let mut source = ctx.key(0);
        source.note_access();
        let from_ms = source.element_time();
        let Some(is_there) = source.object::<Set>().map(|set| set.map(|set| set.contains(member, from_ms)))? else {
            // As in Redis, the destination is not accessed.
            out.integer(0);
            return Ok(());
        };
        ctx.key(1).note_access();
        ctx.key(1).object::<Set>()?;
        if words[1] == words[2] || !is_there {
            out.integer(i64::from(is_there));
            return Ok(());
        }
        ctx.key(0).edit_existing_as(|set: &mut Set| set.remove(member, from_ms))?;
        notify_removal(ctx, "srem");
        let limits = ctx.limits();
        let mut destination = ctx.key(1);
        let to_ms = destination.element_time();
        let added = destination.edit_as(|set: &mut Set| {
            if set.len() == 0 {
                *set = Set::for_members(member, 1, limits);
            }
            set.add(member, to_ms, limits)
        })?;
        if added {
            ctx.notify(1, Class::Set, "sadd");
        }
        out.integer(1);
        Ok(())
    })();
    or_error(result, out);
}

fn sscan(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let cursor = scan::cursor(words)?;
        let Some((set, now_ms)) = ctx.read_timed::<Set>(0)? else {
            scan::say(None, &Texts::default(), out);
            return Ok(());
        };
        let options = Options::parse(&words[3..], false)?;
        let mut found = Texts::default();
        let next = set.scan(cursor, options.count, now_ms, |member| {
            let mut digits = itoa::Buffer::new();
            let member = member.text(&mut digits);
            if options.wants(member) {
                found.push(member);
            }
        });
        scan::say(next, &found, out);
        Ok(())
    })();
    or_error(result, out);
}

const READS: Flags = Flags::READONLY.and(Flags::FAST);
const REMOVES: Flags = Flags::WRITE.and(Flags::FAST);
const ADDS: Flags = REMOVES.and(Flags::DENYOOM);
const PER_MEMBER: &str = "O(N) where N is the number of members named.";
const PER_COUNT: &str = "O(1) without a count, otherwise O(N) where N is the count.";

const fn row(
    name: &'static str,
    arity: i32,
    flags: Flags,
    summary: &'static str,
    handle: super::Handle,
) -> CommandSpec {
    CommandSpec {
        name,
        arity,
        flags,
        summary,
        keys: KeyRule::ONE,
        categories: &[Category::Set],
        group: "set",
        handler: Handler::Keyspace(handle),
        ..CommandSpec::EMPTY
    }
}

const fn costs(row: CommandSpec, visits: FindVisits, complexity: &'static str) -> CommandSpec {
    CommandSpec { cost: Cost::PerElement, visits: Some(visits), complexity, ..row }
}

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        complexity: PER_MEMBER,
        ..row("sadd", -3, ADDS, "Adds members to a set; returns how many are new.", sadd)
    },
    CommandSpec {
        since: "7.2.0",
        complexity: PER_MEMBER,
        ..row("saddex", -4, ADDS, "Adds members that expire to a set; a command of Dragonfly's.", saddex)
    },
    row("scard", 2, READS, "Returns the number of members of a set.", scard),
    row("sismember", 3, READS, "Tells whether a set has a member.", sismember),
    costs(
        row("smembers", 2, Flags::READONLY, "Returns all members of a set.", smembers),
        visits::all,
        "O(N) where N is the size of the set.",
    ),
    CommandSpec {
        since: "6.2.0",
        complexity: PER_MEMBER,
        ..row("smismember", -3, READS, "Tells for each of some members whether a set has it.", smismember)
    },
    CommandSpec { keys: KeyRule::TWO, ..row("smove", 4, REMOVES, "Moves a member from one set to another.", smove) },
    costs(row("spop", -2, REMOVES, "Removes and returns members chosen by chance.", spop), visits::as_many, PER_COUNT),
    costs(
        row("srandmember", -2, Flags::READONLY, "Returns members chosen by chance.", srandmember),
        visits::drawn,
        PER_COUNT,
    ),
    CommandSpec {
        complexity: PER_MEMBER,
        ..row("srem", -3, REMOVES, "Removes members from a set, and the set with its last one.", srem)
    },
    CommandSpec {
        since: "2.8.0",
        ..costs(
            row("sscan", -3, Flags::READONLY, "Goes through the members of a set, a few at each call.", sscan),
            visits::behind_count,
            "O(1) for every call. O(N) for a complete iteration, where N is the size of the set.",
        )
    },
];
