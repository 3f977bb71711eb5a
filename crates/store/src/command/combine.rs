//! Commands that combine several sets: SINTER, SUNION, SDIFF, and their variants that store or count.
//!
//! An intersection iterates over the smallest set and queries the others, the next smallest first. A union queries the
//! earlier sets for each member of a set, as long as these are few. A difference either iterates over the first set and
//! queries the others, the largest first, or removes the members of all others from a copy, whichever Redis expects to
//! examine fewer members. All sets are locked meanwhile. The result becomes a set only if it is stored.

use sluicegate_data::object::asked::{Asked, Gathered};
use sluicegate_data::object::elements::{Elements, Expiry};
use sluicegate_data::object::limits::Limits;
use sluicegate_data::object::packed::Element;
use sluicegate_data::object::{Kind, Ref, Set};
use sluicegate_data::value::Value;
use sluicegate_wire::resp::{ReplySink, parse_i64};

use super::{Refused, SYNTAX, is, or_error};
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler, Records, WrittenKeys};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::notify::Class;
use crate::visits::{self, FindVisits};

type Sets<'s> = Vec<Option<Ref<'s, Set>>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Intersection,
    Union,
    Difference,
}

/// A union of more sets than this records the members seen instead of querying all earlier sets.
const ASKED_MAX: usize = 4;

/// Visits the members that all sets have, up to `limit` of them; returns how many they are.
fn intersect(sets: &Sets<'_>, limit: usize, now_ms: i64, mut visit: impl FnMut(Element<'_>)) -> usize {
    let Some(mut sets) = sets.iter().map(Option::as_deref).collect::<Option<Vec<&Set>>>() else { return 0 };
    sets.sort_by_key(|set| set.len());
    let Some((smallest, others)) = sets.split_first() else { return 0 };
    let others = others.iter().filter(|other| !std::ptr::eq(**other, *smallest));
    let times = smallest.len().min(limit);
    let mut others: Vec<Asked<'_>> = others.map(|other| Asked::new(other, times, Some(smallest))).collect();
    let mut found = 0;
    smallest.each_while(now_ms, |member| {
        if others.iter_mut().all(|other| other.has(member, now_ms)) {
            visit(member);
            found += 1;
        }
        found < limit
    });
    found
}

/// Visits the members that any set has, each once.
fn unite(sets: &Sets<'_>, now_ms: i64, mut visit: impl FnMut(Element<'_>)) {
    let sets: Vec<&Set> = sets.iter().flatten().map(|set| &**set).collect();
    if sets.len() > ASKED_MAX {
        let mut seen = Elements::new();
        for set in sets {
            set.each(now_ms, |member| {
                if seen.insert(member.text(&mut itoa::Buffer::new()), None, Expiry::None, now_ms) {
                    visit(member);
                }
            });
        }
        return;
    }
    for (at, set) in sets.iter().enumerate() {
        let before = sets[..at].iter();
        let mut before: Vec<Asked<'_>> = before.map(|other| Asked::new(other, set.len(), Some(set))).collect();
        set.each(now_ms, |member| {
            if !before.iter_mut().any(|other| other.has(member, now_ms)) {
                visit(member);
            }
        });
    }
}

/// The result of combining sets.
enum Combined<'l> {
    /// Members that were collected individually.
    Gathered(Gathered<'l>),
    /// The remainder of a copy.
    Left(Set),
}

impl Combined<'_> {
    fn len(&self) -> usize {
        match self {
            Combined::Gathered(gathered) => gathered.len(),
            Combined::Left(set) => set.len(),
        }
    }

    /// Returns the form in which it is stored.
    fn into_set(self) -> Set {
        match self {
            Combined::Gathered(gathered) => gathered.into_set(),
            Combined::Left(set) => set,
        }
    }
}

fn combine<'l>(sets: &Sets<'_>, operation: Operation, now_ms: i64, limits: &'l Limits) -> Combined<'l> {
    let mut found = Gathered::new(limits);
    match operation {
        Operation::Intersection => {
            let smallest = sets.iter().flatten().map(|set| &**set).min_by_key(|set| set.len());
            found = Gathered::of_intersection(smallest, limits);
            intersect(sets, usize::MAX, now_ms, |member| found.push(member));
        }
        Operation::Union => unite(sets, now_ms, |member| found.push(member)),
        Operation::Difference => {
            let Some((Some(first), others)) = sets.split_first() else { return Combined::Gathered(found) };
            let mut others: Vec<&Set> = others.iter().flatten().map(|set| &**set).collect();
            // Queries count half, because they end with the first set that has the member.
            let asked = first.len() * sets.len() / 2;
            let taken_out = first.len() + others.iter().map(|set| set.len()).sum::<usize>();
            if asked > taken_out {
                return Combined::Left(take_out(first, &others, now_ms, limits));
            }
            others.sort_by_key(|set| std::cmp::Reverse(set.len()));
            let mut others: Vec<Asked<'_>> =
                others.into_iter().map(|other| Asked::new(other, first.len(), Some(first))).collect();
            first.each(now_ms, |member| {
                if !others.iter_mut().any(|other| other.has(member, now_ms)) {
                    found.push(member);
                }
            });
        }
    }
    Combined::Gathered(found)
}

/// Returns a copy of `first` without the members of the others.
fn take_out(first: &Set, others: &[&Set], now_ms: i64, limits: &Limits) -> Set {
    let mut left = Gathered::new(limits);
    first.each(now_ms, |member| left.push(member));
    let mut left = left.into_set();
    for other in others {
        other.each(now_ms, |member| {
            left.remove(member.text(&mut itoa::Buffer::new()), now_ms);
        });
    }
    left
}

fn replied(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, operation: Operation) {
    let keys = ctx.places.len();
    let (now_ms, limits) = (ctx.expiry_ms(), ctx.limits());
    let result =
        ctx.read_all_as::<Set>(0..keys).map(|sets| combine(&sets, operation, now_ms, limits)).map(|combined| {
            ctx.unlock();
            out.set(combined.len());
            match combined {
                Combined::Gathered(gathered) => gathered.each(|member| out.bulk(member)),
                Combined::Left(set) => set.each(now_ms, |member| out.bulk(member.text(&mut itoa::Buffer::new()))),
            }
        });
    or_error(result, out);
}

fn stored(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, operation: Operation, event: &'static str) {
    let keys = ctx.places.len();
    let (now_ms, limits) = (ctx.expiry_ms(), ctx.limits());
    let result =
        ctx.read_all_as::<Set>(1..keys).map(|sets| combine(&sets, operation, now_ms, limits)).map(|combined| {
            let len = combined.len();
            if len > 0 {
                ctx.key(0).set(Value::Object(combined.into_set().into_object()), None);
                ctx.notify(0, Class::Set, event);
            } else if ctx.key(0).remove() {
                ctx.notify(0, Class::Generic, "del");
            }
            out.integer(len as i64);
        });
    or_error(result, out);
}

fn sinter(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    replied(ctx, out, Operation::Intersection);
}

fn sunion(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    replied(ctx, out, Operation::Union);
}

fn sdiff(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    replied(ctx, out, Operation::Difference);
}

fn sinterstore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    stored(ctx, out, Operation::Intersection, "sinterstore");
}

fn sunionstore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    stored(ctx, out, Operation::Union, "sunionstore");
}

fn sdiffstore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    stored(ctx, out, Operation::Difference, "sdiffstore");
}

/// Parses the number of keys, which must match the words.
fn numkeys(words: &[&[u8]]) -> Result<usize, Refused> {
    let count = parse_i64(words[1]).and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
    let count = count.ok_or("ERR numkeys should be greater than 0")?;
    if count > words.len() - 2 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    Ok(count)
}

fn sintercard(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let keys = numkeys(ctx.words)?;
        let mut limit = 0;
        let mut options = ctx.words[2 + keys..].iter();
        while let Some(option) = options.next() {
            let (true, Some(value)) = (is(option, "limit"), options.next()) else { return Err(SYNTAX.into()) };
            limit =
                parse_i64(value).and_then(|limit| usize::try_from(limit).ok()).ok_or("ERR LIMIT can't be negative")?;
        }
        let now_ms = ctx.expiry_ms();
        let sets = ctx.read_all_as::<Set>(0..keys)?;
        let found = intersect(&sets, if limit == 0 { usize::MAX } else { limit }, now_ms, |_| {});
        out.integer(found as i64);
        Ok(())
    })();
    or_error(result, out);
}

const INTERSECTS: (&str, FindVisits) =
    ("O(N*M) worst case where N is the cardinality of the smallest set and M is the number of sets.", visits::smallest);
const ALL_MEMBERS: (&str, FindVisits) = ("O(N) where N is the total number of members in all given sets.", visits::all);

const fn row(
    name: &'static str,
    (complexity, visits): (&'static str, FindVisits),
    summary: &'static str,
    handle: super::Handle,
) -> CommandSpec {
    CommandSpec {
        visits: Some(visits),
        name,
        arity: -2,
        flags: Flags::READONLY,
        summary,
        keys: KeyRule::ALL,
        categories: &[Category::Set],
        cost: Cost::PerElement,
        group: "set",
        complexity,
        handler: Handler::Keyspace(handle),
        ..CommandSpec::EMPTY
    }
}

const fn stores(row: CommandSpec) -> CommandSpec {
    CommandSpec {
        arity: -3,
        flags: Flags::WRITE.and(Flags::DENYOOM),
        writes: WrittenKeys::First,
        records: Records::Derived,
        ..row
    }
}

pub(super) const COMMANDS: &[CommandSpec] = &[
    row("sdiff", ALL_MEMBERS, "Returns the members of the first set that no other set has.", sdiff),
    stores(row("sdiffstore", ALL_MEMBERS, "Stores the members of the first set that no other set has.", sdiffstore)),
    row("sinter", INTERSECTS, "Returns the members that all sets have.", sinter),
    CommandSpec {
        arity: -3,
        flags: Flags::READONLY.and(Flags::MOVABLEKEYS),
        keys: KeyRule::Counted { count: 1, destination: false },
        since: "7.0.0",
        ..row("sintercard", INTERSECTS, "Returns how many members all sets have.", sintercard)
    },
    stores(row("sinterstore", INTERSECTS, "Stores the members that all sets have.", sinterstore)),
    row("sunion", ALL_MEMBERS, "Returns the members of all sets.", sunion),
    stores(row("sunionstore", ALL_MEMBERS, "Stores the members of all sets.", sunionstore)),
];
