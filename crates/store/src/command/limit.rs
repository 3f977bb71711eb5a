//! LIMIT.TAKE and LIMIT.LEASE: rate and concurrency limits, each as one command that decides and updates the count.
//!
//! Rules use these commands with a store in their own process; for external engines an equivalent script exists (in the
//! proxy). Times come from the store's clock. A key's value has the same format as the script's. It expires when it is
//! no longer needed, at most two milliseconds late, since an expiry that is rounded down would drop valid state.

use sluicegate_data::limit::{COUNT, LONGEST_NS, PERIOD_US, Pace, Parts, Sliding, Told, Window, Windows};
use sluicegate_data::object::{Kind, Zset};
use sluicegate_data::value::{Value, View};
use sluicegate_wire::resp::{ReplySink, parse_i64};
use smallvec::SmallVec;

use super::{Refused, SYNTAX, integer, is, or_error};
use crate::catalogue::{Category, CommandSpec, Flags, Handler, LongWords};
use crate::context::{Ctx, KeyMut};
use crate::keys::KeyRule;
use crate::notify::Class;

const RANGE: &str = "ERR the rate, the burst or the cost is out of range";
const NO_LIMIT: &str = "ERR the key holds no limit of this kind";
/// The longest lease, ms: a day.
const LEASE_MAX_MS: i64 = 86_400_000;

/// Returns a number that may be 0.
fn cost(word: &[u8]) -> Result<i64, Refused> {
    integer(word).ok().filter(|cost| (0..=*COUNT.end()).contains(cost)).ok_or(RANGE.into())
}

fn say(told: Told, out: &mut dyn ReplySink) {
    out.array(4);
    out.integer(i64::from(told.allowed));
    out.integer(told.remaining);
    out.integer(told.retry_us);
    out.integer(told.reset_us);
}

/// Returns the expiry of a state that is needed for another `us` microseconds.
fn expiry(now_us: i64, us: i64) -> Option<i64> {
    Some(now_us / 1000 + (us + 999) / 1000 + 1)
}

/// `LIMIT.TAKE key GCRA|SLIDING|FIXED count period_us burst cost`.
fn take(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let count = integer(words[3])?;
        let period_us = integer(words[4])?;
        let burst = integer(words[5])?;
        let cost = cost(words[6])?;
        if !COUNT.contains(&count) || !PERIOD_US.contains(&period_us) || !COUNT.contains(&burst) {
            return Err(RANGE.into());
        }
        let now_us = ctx.now.us();
        let mut key = ctx.key(0);
        let told = if is(words[2], "gcra") {
            let pace = Pace::new(count, period_us, burst, cost).ok_or(RANGE)?;
            let stored = match key.string()? {
                None => None,
                Some(View::Int(value)) => Some(value),
                Some(View::Bytes(bytes)) => Some(parse_i64(bytes).ok_or(NO_LIMIT)?),
            };
            let (told, next) = pace.take(stored, now_us);
            if let Some(next) = next {
                key.set(Value::Int(next), expiry(now_us, told.reset_us));
            }
            told
        } else if is(words[2], "fixed") {
            let windows = Windows { count, period_us };
            let stored = match text(&key)? {
                None => None,
                Some(bytes) => Some(window(bytes).ok_or(NO_LIMIT)?),
            };
            let (told, next) = windows.take(stored, now_us, cost);
            if let Some(next) = next {
                put(&mut key, &[next.start_us, next.used], expiry(now_us, told.reset_us));
            }
            told
        } else if is(words[2], "sliding") {
            let sliding = Sliding { count, period_us };
            let mut parts = match text(&key)? {
                None => Parts::default(),
                Some(bytes) => parts(bytes).ok_or(NO_LIMIT)?,
            };
            let told = sliding.take(&mut parts, now_us, cost);
            if told.allowed && cost > 0 {
                let len = parts.counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
                let mut numbers: SmallVec<[i64; 24]> = SmallVec::new();
                numbers.push(parts.start_us);
                numbers.extend_from_slice(&parts.counts[..len]);
                put(&mut key, &numbers, expiry(now_us, told.reset_us));
            }
            told
        } else {
            return Err(SYNTAX.into());
        };
        if told.allowed {
            ctx.note_change(0);
            ctx.record_string(0);
        }
        say(told, out);
        Ok(())
    })();
    or_error(result, out);
}

/// Returns the value of a key whose state consists of several numbers.
fn text<'k>(key: &'k KeyMut<'_, '_>) -> Result<Option<&'k [u8]>, Refused> {
    match key.string()? {
        None => Ok(None),
        Some(View::Bytes(bytes)) => Ok(Some(bytes)),
        Some(View::Int(_)) => Err(NO_LIMIT.into()),
    }
}

fn put(key: &mut KeyMut<'_, '_>, numbers: &[i64], expiry: Option<i64>) {
    let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
    for (index, number) in numbers.iter().enumerate() {
        bytes.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes());
        bytes.push(if index == 0 { b':' } else { b',' });
    }
    bytes.pop();
    key.set(Value::Bytes { bytes: &bytes, raw: false }, expiry);
}

/// Parses `START:NUMBER[,NUMBER]…`. A start beyond the range that scripts can represent is refused, so sums with it do
/// not overflow.
fn numbers(bytes: &[u8]) -> Option<(i64, impl Iterator<Item = Option<i64>>)> {
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    let number = |text: &[u8]| parse_i64(text).filter(|number| *number >= 0);
    let rest = bytes[colon + 1..].split(|byte| *byte == b',');
    let start_us = number(&bytes[..colon]).filter(|start_us| *start_us <= LONGEST_NS)?;
    Some((start_us, rest.map(number)))
}

fn window(bytes: &[u8]) -> Option<Window> {
    let (start_us, mut counts) = numbers(bytes)?;
    let used = counts.next()??;
    counts.next().is_none().then_some(Window { start_us, used: used.min(*COUNT.end()) })
}

fn parts(bytes: &[u8]) -> Option<Parts> {
    let (start_us, counts) = numbers(bytes)?;
    let mut parts = Parts { start_us, ..Parts::default() };
    for (index, count) in counts.enumerate() {
        *parts.counts.get_mut(index)? = count?.min(*COUNT.end());
    }
    Some(parts)
}

/// `LIMIT.LEASE key max lease_ms id [RENEW]`: acquires one of `max` slots for `lease_ms`. With RENEW, or if `id` has a
/// slot already, the lease starts anew even if all slots are taken.
fn lease(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let (max, lease_ms, id) = (integer(words[2])?, integer(words[3])?, words[4]);
        let renews = match words.get(5..) {
            Some([]) => false,
            Some([word]) if is(word, "renew") => true,
            _ => return Err(SYNTAX.into()),
        };
        if !COUNT.contains(&max) || !(1..=LEASE_MAX_MS).contains(&lease_ms) {
            return Err(RANGE.into());
        }
        let (now_ms, limits) = (ctx.now.ms(), ctx.limits());
        let mut key = ctx.key(0);
        let (mut last_ms, mut are_gone) = (0.0, false);
        let told = key.edit_as(|leases: &mut Zset| {
            let gone = leases.position(|until_ms| until_ms <= now_ms as f64);
            leases.remove_range(0..gone);
            are_gone = gone > 0;
            let allowed = renews || (leases.len() as i64) < max || leases.get(id).is_some();
            if allowed {
                leases.set(id, (now_ms + lease_ms) as f64, limits);
            }
            let len = leases.len();
            leases.each(len.saturating_sub(1)..len, |_, until_ms| last_ms = until_ms);
            let remaining = (max - len as i64).max(0);
            Told { allowed, remaining, retry_us: if allowed { 0 } else { -1 }, reset_us: 0 }
        })?;
        // Members added by other commands may end later, or never.
        let at_ms = (last_ms as i64).min(now_ms + LEASE_MAX_MS) + 1;
        let is_changed = told.allowed || are_gone || key.expiry() != Some(at_ms) && key.exists();
        key.set_expiry(Some(at_ms));
        if is_changed && ctx.records() {
            let [now, until, at] = [now_ms, now_ms + lease_ms, at_ms].map(|ms| ms.to_string().into_bytes());
            // In this order the key is there all the time, with what belongs to it.
            if told.allowed {
                ctx.record_as(&[b"ZADD", words[1], &until, id]);
            }
            if are_gone {
                ctx.record_as(&[b"ZREMRANGEBYSCORE", words[1], b"-inf", &now]);
            }
            ctx.record_as(&[b"PEXPIREAT", words[1], &at]);
        }
        if told.allowed {
            ctx.notify(0, Class::Zset, "zadd");
        } else if is_changed {
            ctx.note_change(0);
        }
        say(told, out);
        Ok(())
    })();
    or_error(result, out);
}

const BOTH: CommandSpec = CommandSpec {
    flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
    keys: KeyRule::ONE,
    since: "",
    ..CommandSpec::EMPTY
};

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "limit.lease",
        arity: -5,
        categories: &[Category::SortedSet],
        group: "sorted-set",
        summary: "Takes or renews one of max places for so many ms. Replies allowed, remaining, -1 if it was refused, and 0.",
        complexity: "O(log(N)) where N is the number of leases, besides those that have expired.",
        handler: Handler::Keyspace(lease),
        ..BOTH
    },
    CommandSpec {
        name: "limit.take",
        arity: 7,
        categories: &[Category::String],
        group: "string",
        long_words: LongWords::Copied,
        summary: "Limits a rate. Replies allowed, remaining, retry after and reset after, in microseconds.",
        handler: Handler::Keyspace(take),
        ..BOTH
    },
];
