//! Commands on several sorted sets: unions, intersections and differences.
//!
//! Sources are processed from the smallest to the largest, as in Redis, because the order of adding scores affects
//! their last digits. An intersection looks the members of the smallest up in the others; a difference looks the
//! members of the first up in the others, or removes the members of the others, whichever is less work.

use sluicegate_data::object::limits::Limits;
use sluicegate_data::object::{Kind, Object, ObjectRef, Set, Zset};
use sluicegate_wire::resp::ReplySink;

use super::super::{Refused, SYNTAX, integer, is, or_error};
use super::{WRITES, per_element, say_pair, score, store};
use crate::catalogue::{CommandSpec, Flags, Records, WrittenKeys};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::visits::{self, FindVisits};

/// A member with its score.
type Scored = (Vec<u8>, f64);

/// The scores of members that may occur in several sources.
type Scores = std::collections::HashMap<Vec<u8>, f64, foldhash::fast::RandomState>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
    /// Only the number of members of an intersection.
    Count,
}

/// The combination of one member's scores.
#[derive(Clone, Copy, Debug)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn of(self, old: f64, new: f64) -> f64 {
        match self {
            // Infinity and its negative make 0.
            Aggregate::Sum => number(old + new),
            Aggregate::Min => {
                if new < old {
                    new
                } else {
                    old
                }
            }
            Aggregate::Max => {
                if new > old {
                    new
                } else {
                    old
                }
            }
        }
    }
}

/// Returns the score, or 0 if it is no number.
fn number(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// The options of a command.
struct Plan {
    weights: Vec<f64>,
    aggregate: Aggregate,
    with_scores: bool,
    /// The count at which to stop, 0 for never.
    limit: usize,
}

/// Returns the number of sources, from word `at`.
fn sources(words: &[&[u8]], at: usize, name: &str) -> Result<usize, Refused> {
    let count = integer(words[at])?;
    if count < 1 {
        return Err(format!("ERR at least 1 input key is needed for '{name}' command").into());
    }
    usize::try_from(count).ok().filter(|count| *count < words.len() - at).ok_or(SYNTAX.into())
}

impl Plan {
    /// Reads the options behind the keys.
    fn parse(words: &[&[u8]], sources: usize, operation: Operation, stores: bool) -> Result<Plan, Refused> {
        let mut plan = Plan { weights: vec![1.0; sources], aggregate: Aggregate::Sum, with_scores: false, limit: 0 };
        let weighs = matches!(operation, Operation::Union | Operation::Intersection);
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let values = rest.as_slice();
            match values {
                _ if weighs && values.len() >= sources && is(word, "weights") => {
                    for (weight, value) in plan.weights.iter_mut().zip(values) {
                        *weight = score(value).map_err(|_| "ERR weight value is not a float")?;
                    }
                    rest = values[sources..].iter();
                }
                [value, after @ ..] if weighs && is(word, "aggregate") => {
                    plan.aggregate = match () {
                        () if is(value, "sum") => Aggregate::Sum,
                        () if is(value, "min") => Aggregate::Min,
                        () if is(value, "max") => Aggregate::Max,
                        () => return Err(SYNTAX.into()),
                    };
                    rest = after.iter();
                }
                _ if !stores && operation != Operation::Count && is(word, "withscores") => plan.with_scores = true,
                [value, after @ ..] if operation == Operation::Count && is(word, "limit") => {
                    let limit = integer(value).ok().and_then(|limit| usize::try_from(limit).ok());
                    plan.limit = limit.ok_or("ERR LIMIT can't be negative")?;
                    rest = after.iter();
                }
                _ => return Err(SYNTAX.into()),
            }
        }
        Ok(plan)
    }
}

/// The number of members processed between checks of the limit.
const STEP: usize = 64;

/// One of the inputs.
#[derive(Clone, Copy)]
enum Source<'s> {
    Zset(&'s Zset),
    /// A set, with the time of the command; its members have the score 1.
    Set(&'s Set, i64),
}

impl<'s> Source<'s> {
    fn of(object: &'s Object, now_ms: i64) -> Option<Source<'s>> {
        match object {
            Object::Zset(zset) => Some(Source::Zset(zset)),
            Object::Set(set) => Some(Source::Set(set, now_ms)),
            _ => None,
        }
    }

    fn len(&self) -> usize {
        match self {
            Source::Zset(zset) => zset.len(),
            Source::Set(set, now_ms) => set.living(*now_ms),
        }
    }

    /// Returns a member's score.
    fn get(&self, member: &[u8]) -> Option<f64> {
        match self {
            Source::Zset(zset) => zset.get(member),
            Source::Set(set, now_ms) => set.contains(member, *now_ms).then_some(1.0),
        }
    }

    /// Visits all members until `visit` returns false.
    fn each(&self, mut visit: impl FnMut(&[u8], f64) -> bool) {
        match self {
            Source::Zset(zset) => {
                let (mut goes_on, mut next) = (true, 0);
                while goes_on && next < zset.len() {
                    let end = zset.len().min(next + STEP);
                    zset.each(next..end, |member, score| goes_on = goes_on && visit(member, score));
                    next = end;
                }
            }
            Source::Set(set, now_ms) => {
                set.each_while(*now_ms, |member| visit(member.text(&mut itoa::Buffer::new()), 1.0));
            }
        }
    }
}

/// Returns the combination of the sources.
fn combine(sources: &[Option<ObjectRef<'_>>], plan: &Plan, operation: Operation, now_ms: i64) -> (Vec<Scored>, usize) {
    let mut sources: Vec<(Option<Source<'_>>, f64)> = sources
        .iter()
        .zip(&plan.weights)
        .map(|(object, weight)| (object.as_deref().and_then(|object| Source::of(object, now_ms)), *weight))
        .collect();
    let len = |source: &(Option<Source<'_>>, f64)| source.0.map_or(0, |source| source.len());
    if operation != Operation::Difference {
        sources.sort_by_key(len);
    }
    let mut scored = Vec::new();
    let mut count = 0;
    match operation {
        Operation::Union => {
            let mut scores = Scores::default();
            for (source, weight) in sources.iter().filter_map(|(source, weight)| source.zip(Some(*weight))) {
                source.each(|member, score| {
                    let score = number(weight * score);
                    match scores.get_mut(member) {
                        Some(old) => *old = plan.aggregate.of(*old, score),
                        None => drop(scores.insert(member.to_vec(), score)),
                    }
                    true
                });
            }
            scored.extend(scores);
        }
        Operation::Intersection | Operation::Count => {
            let Some(((Some(first), weight), others)) = sources.split_first() else { return (scored, 0) };
            first.each(|member, score| {
                let mut sum = number(weight * score);
                for (other, weight) in others {
                    let Some(score) = other.and_then(|other| other.get(member)) else { return true };
                    sum = plan.aggregate.of(sum, weight * score);
                }
                count += 1;
                if operation == Operation::Intersection {
                    scored.push((member.to_vec(), sum));
                }
                plan.limit == 0 || count < plan.limit
            });
        }
        Operation::Difference => {
            let Some(((Some(first), _), others)) = sources.split_first() else { return (scored, 0) };
            let others: Vec<Source<'_>> = others.iter().filter_map(|(other, _)| *other).collect();
            let asks = first.len() * others.len();
            let takes = others.iter().map(Source::len).sum::<usize>() + first.len();
            first.each(|member, score| {
                if asks > takes || others.iter().all(|other| other.get(member).is_none()) {
                    scored.push((member.to_vec(), score));
                }
                true
            });
            if asks > takes {
                let mut scores: Scores = scored.drain(..).collect();
                for other in others {
                    other.each(|member, _| {
                        scores.remove(member);
                        true
                    });
                }
                scored.extend(scores);
            }
        }
    }
    (scored, count)
}

/// Sorts members by score, then by name.
fn sorted(mut scored: Vec<Scored>) -> Vec<Scored> {
    // An intersection or a difference mostly consists of long sorted runs, which a stable sort exploits.
    scored.sort_by(|(member, score), (other, other_score)| {
        score.partial_cmp(other_score).unwrap_or(std::cmp::Ordering::Equal).then_with(|| member.cmp(other))
    });
    scored
}

/// Returns the sorted set of these members, which are inserted in order, the fastest way.
fn zset_of(members: &[Scored], limits: &Limits) -> Zset {
    let longest = members.iter().map(|(member, _)| member.len()).max().unwrap_or(0);
    let mut zset = Zset::for_members(members.len(), longest, limits);
    for (member, score) in members {
        zset.set(member, *score, limits);
    }
    zset
}

/// Executes a command. `stores` is the event of a command that stores its result; key 0 is then the destination.
fn run(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, operation: Operation, name: &str, stores: Option<&'static str>) {
    let words = ctx.words;
    let first = 1 + usize::from(stores.is_some());
    let result = sources(words, first, name).and_then(|count| {
        let keys = first - 1..first - 1 + count;
        let now_ms = ctx.expiry_ms();
        let objects = ctx.read_objects(keys, |object| Source::of(object, now_ms).is_some())?;
        let plan = Plan::parse(&words[first + 1 + count..], count, operation, stores.is_some())?;
        let (scores, count) = combine(&objects, &plan, operation, now_ms);
        drop(objects);
        match stores {
            None if operation == Operation::Count => out.integer(count as i64),
            Some(event) => store(ctx, 0, zset_of(&sorted(scores), ctx.limits()), event, out),
            None if plan.with_scores => {
                let nested = out.pairs(scores.len());
                sorted(scores).iter().for_each(|(member, score)| say_pair(member, *score, nested, out));
            }
            None => {
                out.array(scores.len());
                sorted(scores).iter().for_each(|(member, _)| out.bulk(member));
            }
        }
        Ok(())
    });
    or_error(result, out);
}

fn zunion(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    run(ctx, out, Operation::Union, "zunion", None);
}

fn zinter(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    run(ctx, out, Operation::Intersection, "zinter", None);
}

fn zdiff(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    run(ctx, out, Operation::Difference, "zdiff", None);
}

fn zintercard(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    run(ctx, out, Operation::Count, "zintercard", None);
}

fn zunionstore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    run(ctx, out, Operation::Union, "zunionstore", Some("zunionstore"));
}

fn zinterstore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    run(ctx, out, Operation::Intersection, "zinterstore", Some("zinterstore"));
}

fn zdiffstore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    run(ctx, out, Operation::Difference, "zdiffstore", Some("zdiffstore"));
}

const SUMS: &str = "O(N)+O(M*log(M)) where N is the number of members of all and M that of the result.";
const LOOKS: &str = "O(N*K)+O(M*log(M)) where N is the number of members of the smallest, K the number of sorted sets \
                     and M the number of members of the result.";

const fn reads(
    name: &'static str,
    (complexity, visits): (&'static str, FindVisits),
    summary: &'static str,
    handle: super::Handle,
) -> CommandSpec {
    CommandSpec {
        complexity,
        visits: Some(visits),
        since: "6.2.0",
        keys: KeyRule::Counted { count: 1, destination: false },
        ..per_element(name, -3, Flags::READONLY.and(Flags::MOVABLEKEYS), summary, handle)
    }
}

const fn writes(
    name: &'static str,
    (complexity, visits): (&'static str, FindVisits),
    since: &'static str,
    summary: &'static str,
    handle: super::Handle,
) -> CommandSpec {
    CommandSpec {
        complexity,
        visits: Some(visits),
        since,
        keys: KeyRule::Counted { count: 2, destination: true },
        writes: WrittenKeys::First,
        records: Records::Derived,
        ..per_element(name, -4, WRITES.and(Flags::MOVABLEKEYS), summary, handle)
    }
}

pub(crate) const COMMANDS: &[CommandSpec] = &[
    reads("zdiff", (LOOKS, visits::all), "Returns the members of the first sorted set that no other has.", zdiff),
    writes(
        "zdiffstore",
        (LOOKS, visits::all),
        "6.2.0",
        "Stores the members of the first sorted set that no other has.",
        zdiffstore,
    ),
    reads("zinter", (LOOKS, visits::smallest), "Returns the members that all sorted sets have.", zinter),
    CommandSpec {
        since: "7.0.0",
        ..reads("zintercard", (LOOKS, visits::smallest), "Counts the members that all sorted sets have.", zintercard)
    },
    writes(
        "zinterstore",
        (LOOKS, visits::smallest),
        "2.0.0",
        "Stores the members that all sorted sets have.",
        zinterstore,
    ),
    reads("zunion", (SUMS, visits::all), "Returns the members of all sorted sets.", zunion),
    writes("zunionstore", (SUMS, visits::all), "2.0.0", "Stores the members of all sorted sets.", zunionstore),
];
