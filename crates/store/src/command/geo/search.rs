//! Members within a circle or a rectangle: GEOSEARCH and the GEORADIUS family.
//!
//! The score ranges of up to nine cells are scanned, and the distance of each member in them is computed.

use sluicegate_data::object::{Kind as _, Object, Zset};
use sluicegate_wire::resp::ReplySink;

use super::super::zset::{score, store};
use super::super::{Refused, SYNTAX, integer, is, or_error};
use super::cells::{self, Position, Search, Shape};
use super::{Handle, position, row, say_distance, say_position, unit};
use crate::catalogue::{CommandSpec, Cost, Flags, Records, WrittenKeys};
use crate::context::Ctx;
use crate::keys::{KeyRule, KeyWord};
use crate::visits::{self, FindVisits};

/// The command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// GEORADIUS: the center and the radius have their places.
    Radius { stores: bool },
    /// GEORADIUSBYMEMBER: a member is the center.
    RadiusByMember { stores: bool },
    /// GEOSEARCH.
    Search,
    /// GEOSEARCHSTORE, whose destination is word 1.
    SearchStore,
}

impl Kind {
    fn is_search(self) -> bool {
        matches!(self, Kind::Search | Kind::SearchStore)
    }

    fn may_store(self) -> bool {
        matches!(self, Kind::Radius { stores: true } | Kind::RadiusByMember { stores: true })
    }

    /// Returns the first word of the options.
    fn options(self) -> usize {
        match self {
            Kind::Radius { .. } => 6,
            Kind::RadiusByMember { .. } => 5,
            Kind::Search => 2,
            Kind::SearchStore => 3,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Ascending,
    Descending,
}

/// The parsed query.
#[derive(Default)]
struct Query {
    center: Option<Position>,
    /// Whether the center was given as a member, even of a key that does not exist.
    from_member: bool,
    from_position: bool,
    shape: Option<(Shape, f64)>,
    order: Option<Order>,
    /// The most members, 0 for all.
    count: usize,
    any: bool,
    with_distance: bool,
    with_hash: bool,
    with_position: bool,
    /// Whether a destination was given.
    stores: bool,
    stores_distance: bool,
}

/// A member that was found.
struct Found {
    member: Vec<u8>,
    score: f64,
    distance_m: f64,
}

/// Returns a number of units that is not negative, and metres of a unit.
fn radius(number: &[u8], name: &[u8]) -> Result<(Shape, f64), Refused> {
    let radius = score(number).map_err(|_| "ERR need numeric radius")?;
    if radius < 0.0 {
        return Err("ERR radius cannot be negative".into());
    }
    Ok((Shape::Circle { radius }, unit(name)?))
}

fn rectangle(width: &[u8], height: &[u8], name: &[u8]) -> Result<(Shape, f64), Refused> {
    let width = score(width).map_err(|_| "ERR need numeric width")?;
    let height = score(height).map_err(|_| "ERR need numeric height")?;
    if width < 0.0 || height < 0.0 {
        return Err("ERR height or width cannot be negative".into());
    }
    Ok((Shape::Rectangle { width, height }, unit(name)?))
}

/// Returns a member's position; [`None`] if the key does not exist.
fn member_position(zset: Option<&Zset>, member: &[u8]) -> Result<Option<Position>, Refused> {
    let Some(zset) = zset else { return Ok(None) };
    match zset.get(member) {
        Some(score) => Ok(Some(cells::position_of(score))),
        None => Err("ERR could not decode requested zset member".into()),
    }
}

impl Query {
    fn parse(words: &[&[u8]], kind: Kind, zset: Option<&Zset>) -> Result<Query, Refused> {
        let mut query = Query { stores: kind == Kind::SearchStore, ..Query::default() };
        match kind {
            Kind::Radius { .. } => {
                query.center = Some(position(words[2], words[3])?);
                query.shape = Some(radius(words[4], words[5])?);
            }
            Kind::RadiusByMember { .. } if zset.is_some() => {
                query.center = member_position(zset, words[2])?;
                query.shape = Some(radius(words[3], words[4])?);
            }
            _ => {}
        }
        let mut rest = words[kind.options()..].iter();
        while let Some(word) = rest.next() {
            let values = rest.as_slice();
            let taken = query.option(word, values, kind, zset)?;
            rest = values[taken..].iter();
        }
        query.check(words[0], kind)?;
        if query.count > 0 && query.order.is_none() && !query.any {
            // COUNT means the nearest members.
            query.order = Some(Order::Ascending);
        }
        Ok(query)
    }

    /// Parses an option and returns the number of the following words that belong to it.
    fn option(&mut self, word: &[u8], values: &[&[u8]], kind: Kind, zset: Option<&Zset>) -> Result<usize, Refused> {
        Ok(match values {
            _ if is(word, "withdist") => {
                self.with_distance = true;
                0
            }
            _ if is(word, "withhash") => {
                self.with_hash = true;
                0
            }
            _ if is(word, "withcoord") => {
                self.with_position = true;
                0
            }
            _ if is(word, "any") => {
                self.any = true;
                0
            }
            _ if is(word, "asc") => {
                self.order = Some(Order::Ascending);
                0
            }
            _ if is(word, "desc") => {
                self.order = Some(Order::Descending);
                0
            }
            [count, ..] if is(word, "count") => {
                let count = integer(count)?;
                let count = usize::try_from(count).ok().filter(|count| *count > 0);
                self.count = count.ok_or("ERR COUNT must be > 0")?;
                1
            }
            [_, ..] if kind.may_store() && (is(word, "store") || is(word, "storedist")) => {
                self.stores = true;
                self.stores_distance = is(word, "storedist");
                1
            }
            [member, ..] if kind.is_search() && !self.from_position && is(word, "frommember") => {
                self.center = member_position(zset, member)?;
                self.from_member = true;
                1
            }
            [longitude, latitude, ..] if kind.is_search() && !self.from_member && is(word, "fromlonlat") => {
                self.center = Some(position(longitude, latitude)?);
                self.from_position = true;
                2
            }
            [number, unit, ..]
                if kind.is_search()
                    && !matches!(self.shape, Some((Shape::Rectangle { .. }, _)))
                    && is(word, "byradius") =>
            {
                self.shape = Some(radius(number, unit)?);
                2
            }
            [width, height, unit, ..]
                if kind.is_search() && !matches!(self.shape, Some((Shape::Circle { .. }, _))) && is(word, "bybox") =>
            {
                self.shape = Some(rectangle(width, height, unit)?);
                3
            }
            _ if kind == Kind::SearchStore && is(word, "storedist") => {
                self.stores_distance = true;
                0
            }
            _ => return Err(SYNTAX.into()),
        })
    }
    /// Checks that the options fit together.
    fn check(&self, name: &[u8], kind: Kind) -> Result<(), Refused> {
        if self.stores && (self.with_distance || self.with_hash || self.with_position) {
            let what = if kind.is_search() { "GEOSEARCHSTORE" } else { "STORE option in GEORADIUS" };
            return Err(format!("ERR {what} is not compatible with WITHDIST, WITHHASH and WITHCOORD options").into());
        }
        let name = || String::from_utf8_lossy(name).into_owned();
        if kind.is_search() && !self.from_member && !self.from_position {
            let text = format!("ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for {}", name());
            return Err(text.into());
        }
        if kind.is_search() && self.shape.is_none() {
            return Err(format!("ERR exactly one of BYRADIUS and BYBOX can be specified for {}", name()).into());
        }
        if self.any && self.count == 0 {
            return Err("ERR the ANY argument requires COUNT argument".into());
        }
        Ok(())
    }
    /// Returns the members that are asked for, and metres of the unit.
    fn find(&self, zset: &Zset) -> (Vec<Found>, f64) {
        let (Some(center), Some((shape, unit_m))) = (self.center, self.shape) else { return (Vec::new(), 1.0) };
        let search = Search { center, shape, unit_m };
        let mut found: Vec<Found> = Vec::new();
        let enough = if self.any { self.count } else { usize::MAX };
        for (from, to) in search.ranges() {
            let mut next = zset.position(|score| score < from);
            let end = zset.position(|score| score < to);
            // In steps, to end soon after it is enough.
            while next < end && found.len() < enough {
                let step = end.min(next + 64);
                zset.each(next..step, |member, score| {
                    if found.len() < enough
                        && let Some(distance_m) = search.distance_m(cells::position_of(score))
                    {
                        found.push(Found { member: member.to_vec(), score, distance_m });
                    }
                });
                next = step;
            }
        }
        let ascending = |a: &Found, b: &Found| a.distance_m.total_cmp(&b.distance_m);
        match self.order {
            Some(Order::Ascending) => found.sort_by(ascending),
            Some(Order::Descending) => found.sort_by(|a, b| ascending(b, a)),
            None => {}
        }
        if self.count > 0 {
            found.truncate(self.count);
        }
        (found, unit_m)
    }

    /// Writes the result.
    fn say(&self, found: &[Found], unit_m: f64, out: &mut dyn ReplySink) {
        let parts = 1 + [self.with_distance, self.with_hash, self.with_position].iter().filter(|with| **with).count();
        out.array(found.len());
        for Found { member, score, distance_m } in found {
            if parts > 1 {
                out.array(parts);
            }
            out.bulk(member);
            if self.with_distance {
                say_distance(distance_m / unit_m, out);
            }
            if self.with_hash {
                out.integer(cells::bits_of(*score) as i64);
            }
            if self.with_position {
                say_position(cells::position_of(*score), out);
            }
        }
    }
}

/// Returns the number of members that a search examines; 0 if its words are invalid.
fn count_searched(words: &[&[u8]], object: &Object, kind: Kind) -> usize {
    let Some(zset) = Zset::of(object) else { return 0 };
    let Ok(Query { center: Some(center), shape: Some((shape, unit_m)), .. }) = Query::parse(words, kind, Some(zset))
    else {
        return 0;
    };
    let ranges = Search { center, shape, unit_m }.ranges().into_iter();
    let members = ranges.map(|(from, to)| zset.position(|score| score < to) - zset.position(|score| score < from));
    members.sum()
}

fn run(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, kind: Kind) {
    let words = ctx.words;
    // GEOSEARCHSTORE has its destination before its source, GEORADIUS after it.
    let (source, destination, event) = match kind {
        Kind::SearchStore => (1, 0, "geosearchstore"),
        _ => (0, 1, "georadiusstore"),
    };
    let result = (|| {
        let (query, (found, unit_m)) = {
            let zset = ctx.read_as::<Zset>(source)?;
            let query = Query::parse(words, kind, zset.as_deref())?;
            let found = zset.map_or((Vec::new(), 1.0), |zset| query.find(&zset));
            (query, found)
        };
        if !query.stores {
            query.say(&found, unit_m, out);
            return Ok(());
        }
        let longest = found.iter().map(|found| found.member.len()).max().unwrap_or(0);
        let mut zset = Zset::for_members(found.len(), longest, ctx.limits());
        for Found { member, score, distance_m } in &found {
            zset.set(member, if query.stores_distance { distance_m / unit_m } else { *score }, ctx.limits());
        }
        store(ctx, destination, zset, event, out);
        Ok(())
    })();
    or_error(result, out);
}

fn georadius(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    run(ctx, out, Kind::Radius { stores: true });
}

fn georadius_ro(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    run(ctx, out, Kind::Radius { stores: false });
}

fn georadiusbymember(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    run(ctx, out, Kind::RadiusByMember { stores: true });
}

fn georadiusbymember_ro(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    run(ctx, out, Kind::RadiusByMember { stores: false });
}

fn geosearch(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    run(ctx, out, Kind::Search);
}

fn geosearchstore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    run(ctx, out, Kind::SearchStore);
}

/// Returns the word after the last STORE or STOREDIST.
fn destination(words: &[&[u8]], db: u32) -> Option<KeyWord> {
    let mut found = None;
    let mut at = 5;
    while at + 1 < words.len() {
        if is(words[at], "store") || is(words[at], "storedist") {
            at += 1;
            found = Some(KeyWord { db, word: at as u32 });
        }
        at += 1;
    }
    found
}

const fn area(
    name: &'static str,
    arity: i32,
    flags: Flags,
    summary: &'static str,
    (handle, visits): (Handle, FindVisits),
) -> CommandSpec {
    CommandSpec {
        cost: Cost::PerElement,
        visits: Some(visits),
        complexity: "O(N+log(M)) where N is the number of members in the cells around the shape and M that of all.",
        ..row(name, arity, flags, summary, handle)
    }
}

const STORES: Flags = Flags::WRITE.and(Flags::DENYOOM);
const MAY_STORE: Flags = STORES.and(Flags::MOVABLEKEYS);
const DESTINATION: KeyRule = KeyRule::WithDatabase { last: 1, second: destination };

pub(crate) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        keys: DESTINATION,
        writes: WrittenKeys::Others,
        records: Records::Derived,
        ..area(
            "georadius",
            -6,
            MAY_STORE,
            "Returns or stores members within a distance of a position.",
            (georadius, |_| {
                visits::counted(false, |words, object| count_searched(words, object, Kind::Radius { stores: true }))
            }),
        )
    },
    CommandSpec {
        since: "3.2.10",
        ..area(
            "georadius_ro",
            -6,
            Flags::READONLY,
            "Returns members within a distance of a position.",
            (georadius_ro, |_| {
                visits::counted(false, |words, object| count_searched(words, object, Kind::Radius { stores: false }))
            }),
        )
    },
    CommandSpec {
        keys: DESTINATION,
        writes: WrittenKeys::Others,
        records: Records::Derived,
        ..area(
            "georadiusbymember",
            -5,
            MAY_STORE,
            "Returns or stores members within a distance of a member.",
            (georadiusbymember, |_| {
                visits::counted(false, |words, object| {
                    count_searched(words, object, Kind::RadiusByMember { stores: true })
                })
            }),
        )
    },
    CommandSpec {
        since: "3.2.10",
        ..area(
            "georadiusbymember_ro",
            -5,
            Flags::READONLY,
            "Returns members within a distance of a member.",
            (georadiusbymember_ro, |_| {
                visits::counted(false, |words, object| {
                    count_searched(words, object, Kind::RadiusByMember { stores: false })
                })
            }),
        )
    },
    CommandSpec {
        since: "6.2.0",
        ..area(
            "geosearch",
            -7,
            Flags::READONLY,
            "Returns members within a circle or a rectangle.",
            (geosearch, |_| visits::counted(false, |words, object| count_searched(words, object, Kind::Search))),
        )
    },
    CommandSpec {
        since: "6.2.0",
        keys: KeyRule::TWO,
        writes: WrittenKeys::First,
        records: Records::Derived,
        ..area(
            "geosearchstore",
            -8,
            STORES,
            "Stores members within a circle or a rectangle.",
            (geosearchstore, |_| {
                visits::counted(false, |words, object| count_searched(words, object, Kind::SearchStore))
            }),
        )
    },
];
