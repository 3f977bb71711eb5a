//! Geo commands: positions as scores of sorted sets.

mod cells;
pub(crate) mod search;

use sluicegate_data::object::Zset;
use sluicegate_wire::resp::ReplySink;

use super::zset::change::{AddOptions, add_scored};
use super::zset::score;
use super::{Handle, Refused, SYNTAX, is, or_error};
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler};
use crate::context::Ctx;
use crate::keys::KeyRule;
use cells::{LATITUDE_MAX, LONGITUDE_MAX, Position};

/// Longitude and latitude, two words.
fn position(longitude: &[u8], latitude: &[u8]) -> Result<Position, Refused> {
    let (longitude, latitude) = (score(longitude)?, score(latitude)?);
    if longitude.abs() > LONGITUDE_MAX || latitude.abs() > LATITUDE_MAX {
        return Err(format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}").into());
    }
    Ok(Position { longitude, latitude })
}

/// Metres of a unit.
fn unit(word: &[u8]) -> Result<f64, Refused> {
    match () {
        () if is(word, "m") => Ok(1.0),
        () if is(word, "km") => Ok(1000.0),
        () if is(word, "ft") => Ok(0.3048),
        () if is(word, "mi") => Ok(1609.34),
        () => Err("ERR unsupported unit provided. please use M, KM, FT, MI".into()),
    }
}

/// Writes a distance.
fn say_distance(distance: f64, out: &mut dyn ReplySink) {
    out.bulk(format!("{distance:.4}").as_bytes());
}

/// Writes a position.
fn say_position(position: Position, out: &mut dyn ReplySink) {
    out.array(2);
    out.decimal(position.longitude);
    out.decimal(position.latitude);
}

fn geoadd(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let mut options = AddOptions::default();
        let mut first = 2;
        while let Some(word) = words.get(first) {
            match word {
                word if is(word, "nx") => options.nx = true,
                word if is(word, "xx") => options.xx = true,
                word if is(word, "ch") => options.changed = true,
                _ => break,
            }
            first += 1;
        }
        let places = &words[first..];
        if places.is_empty() || !places.len().is_multiple_of(3) || options.nx && options.xx {
            return Err(SYNTAX.into());
        }
        let mut scored = smallvec::SmallVec::new();
        for place in places.chunks_exact(3) {
            scored.push((cells::score_of(position(place[0], place[1])?), place[2]));
        }
        add_scored(ctx, out, options, &scored)
    })();
    or_error(result, out);
}

fn geodist(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let unit_m = match words {
            [_, _, _, _] => 1.0,
            [_, _, _, _, word] => unit(word)?,
            _ => return Err(SYNTAX.into()),
        };
        let zset = ctx.read_as::<Zset>(0)?;
        let [from, to] = [words[2], words[3]].map(|member| zset.as_ref().and_then(|zset| zset.get(member)));
        match from.zip(to) {
            Some((from, to)) => {
                say_distance(cells::distance_m(cells::position_of(from), cells::position_of(to)) / unit_m, out);
            }
            None => out.null(),
        }
        Ok(())
    })();
    or_error(result, out);
}

/// Writes a value for the position of each member, or the output of `absent`.
fn each_position(
    ctx: &mut Ctx<'_>,
    out: &mut dyn ReplySink,
    say: fn(Position, &mut dyn ReplySink),
    absent: fn(&mut dyn ReplySink),
) {
    let words = ctx.words;
    let result = ctx.read_as::<Zset>(0).map(|zset| {
        out.array(words.len() - 2);
        for member in &words[2..] {
            match zset.as_ref().and_then(|zset| zset.get(member)) {
                Some(score) => say(cells::position_of(score), out),
                None => absent(out),
            }
        }
    });
    or_error(result, out);
}

fn geohash(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    each_position(ctx, out, |position, out| out.bulk(&cells::letters_of(position)), |out| out.null());
}

fn geopos(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    each_position(ctx, out, say_position, |out| out.null_array());
}

/// Returns a row of a geo command.
const fn row(name: &'static str, arity: i32, flags: Flags, summary: &'static str, handle: Handle) -> CommandSpec {
    CommandSpec {
        name,
        arity,
        flags,
        summary,
        keys: KeyRule::ONE,
        categories: &[Category::Geo],
        cost: Cost::Constant,
        since: "3.2.0",
        group: "geo",
        complexity: "O(log(N)) for each member named, where N is the number of members.",
        handler: Handler::Keyspace(handle),
        ..CommandSpec::EMPTY
    }
}

pub(super) const COMMANDS: &[CommandSpec] = &[
    row("geoadd", -5, Flags::WRITE.and(Flags::DENYOOM), "Adds members at positions to a geo index.", geoadd),
    row("geodist", -4, Flags::READONLY, "Returns the distance between two members.", geodist),
    row("geohash", -2, Flags::READONLY, "Returns members' positions as geohash strings.", geohash),
    row("geopos", -2, Flags::READONLY, "Returns members' longitudes and latitudes.", geopos),
];
