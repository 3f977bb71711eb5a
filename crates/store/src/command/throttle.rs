//! CL.THROTTLE: a rate limiter by the generic cell rate algorithm, as the module redis-cell has it.
//!
//! The key's value is one number: the time, in Unix nanoseconds, at which the bucket will be empty (the *theoretical
//! arrival time*). An action is allowed if this time would not run ahead of the clock by more than the burst. The key
//! expires when the bucket is empty, so an idle limiter takes no memory.

use sluicegate_data::limit::{NS_PER_MS, NS_PER_S, Pace};
use sluicegate_data::value::{Value, View};
use sluicegate_wire::resp::{ReplySink, parse_i64};

use super::{NOT_INTEGER, Refused, integer, or_error};
use crate::catalogue::{Category, CommandSpec, Flags, Handler, LongWords};
use crate::context::Ctx;
use crate::keys::KeyRule;

/// The longest time whose sum with the present time fits in 64 bits: some hundred years.
const TIME_MAX_NS: i128 = 1 << 62;

/// A limit as its words say it.
#[derive(Clone, Copy)]
struct Limit {
    pace: Pace,
    /// Actions that an empty bucket takes at once.
    burst: i64,
}

impl Limit {
    fn parse(words: &[&[u8]]) -> Result<Limit, Refused> {
        let number = |word: &[u8]| match integer(word)? {
            number @ 0.. => Ok(number),
            _ => Err(Refused::from("ERR max_burst, count, period and quantity must not be negative")),
        };
        let (max_burst, count, period_s) = (number(words[2])?, number(words[3])?, number(words[4])?);
        let quantity = words.get(5).map_or(Ok(1), |word| number(word))?;
        if count == 0 || period_s == 0 {
            return Err("ERR zero rates are not supported".into());
        }
        // Rounded down, as redis-cell does.
        let interval = i128::from(period_s) * i128::from(NS_PER_S) / i128::from(count);
        let burst = max_burst.checked_add(1).ok_or(NOT_INTEGER)?;
        let times = |count: i64| interval.saturating_mul(i128::from(count));
        let (tolerance, increment) = (times(burst), times(quantity));
        if interval == 0 || tolerance > TIME_MAX_NS || increment > TIME_MAX_NS {
            return Err("ERR the rate or the burst is out of range".into());
        }
        let pace = Pace { interval: interval as i64, tolerance: tolerance as i64, increment: increment as i64 };
        Ok(Limit { pace, burst })
    }
}

/// Whole seconds; a part of at least a millisecond counts as one.
fn seconds(ns: i64) -> i64 {
    ns / NS_PER_S + i64::from(ns % NS_PER_S >= NS_PER_MS)
}

fn throttle(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        if words.len() > 6 {
            return Err("ERR wrong number of arguments for 'cl.throttle' command".into());
        }
        let limit = Limit::parse(words)?;
        let now = ctx.now.us() * 1000;
        let mut key = ctx.key(0);
        let stored = match key.string()? {
            None => None,
            Some(View::Int(value)) => Some(value),
            Some(View::Bytes(bytes)) => Some(parse_i64(bytes).ok_or(NOT_INTEGER)?),
        };
        let verdict = limit.pace.decide(stored, now);
        if let Some(value) = verdict.next {
            match verdict.reset_after / NS_PER_MS {
                // It would have expired before anybody could read it.
                ..=0 => {
                    key.remove();
                }
                ms => {
                    let at_ms = key.now.ms().saturating_add(ms);
                    key.set(Value::Int(value), Some(at_ms));
                }
            }
            ctx.note_change(0);
            ctx.record_string(0);
        }
        out.array(5);
        out.integer(i64::from(verdict.limited));
        out.integer(limit.burst);
        out.integer(verdict.remaining);
        out.integer(verdict.retry_after.map_or(-1, seconds));
        out.integer(seconds(verdict.reset_after));
        Ok(())
    })();
    or_error(result, out);
}

pub(super) const COMMANDS: &[CommandSpec] = &[CommandSpec {
    name: "cl.throttle",
    arity: -5,
    flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
    keys: KeyRule::ONE,
    categories: &[Category::String],
    since: "",
    group: "string",
    long_words: LongWords::Copied,
    summary: "Limits a rate: key max_burst count period [quantity]. Replies limited, limit, remaining, retry after and reset after.",
    handler: Handler::Keyspace(throttle),
    ..CommandSpec::EMPTY
}];
