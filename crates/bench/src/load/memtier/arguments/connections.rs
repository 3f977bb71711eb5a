//! Options about connections: how they begin, and how lost ones are replaced.

use super::{Given, MAX_SECONDS};
use crate::load::arguments::MAX_CONNECTIONS;
use crate::load::plan::Reconnects;

/// The clients of each thread that begin with a run, those that each step adds, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::load::memtier) struct Staircase {
    pub(in crate::load::memtier) first: u64,
    pub(in crate::load::memtier) step: u64,
    pub(in crate::load::memtier) step_s: u64,
}

/// Returns the steps in which the clients of a thread begin, if the options tell it.
pub(super) fn staircase(given: &Given, clients: u64) -> Result<Option<Staircase>, String> {
    let first = given.number("clients-start", 1, MAX_CONNECTIONS)?;
    let step = given.number("clients-step", 1, MAX_CONNECTIONS)?;
    let step_s = given.number("step-duration", 1, MAX_SECONDS)?;
    match (first, step, step_s) {
        (None, None, None) => Ok(None),
        (Some(first), Some(step), Some(step_s)) => {
            if given.has("requests") {
                return Err("--requests cannot be used with client staircase mode. Use --test-time instead.".to_owned());
            }
            if first >= clients {
                return Err(format!("--clients-start ({first}) must be less than --clients ({clients})."));
            }
            if !given.has("test-time") {
                return Err("--test-time is required when using client staircase mode.".to_owned());
            }
            Ok(Some(Staircase { first, step, step_s }))
        }
        _ => Err("--clients-start, --clients-step, and --step-duration must all be specified together.".to_owned()),
    }
}

/// Returns the shortest and the longest pause between the first connections of a thread, in microseconds.
pub(super) fn jitter_us(given: &Given) -> Result<(u64, u64), String> {
    let (min, max) = ("thread-conn-start-min-jitter-micros", "thread-conn-start-max-jitter-micros");
    let micros = |name: &str| Ok::<u64, String>(given.number(name, 0, u32::MAX.into())?.unwrap_or(0));
    match (micros(min)?, micros(max)?) {
        (least, most) if least > most => Err(format!("{min} ({least}) cannot be greater than {max} ({most}).")),
        pauses => Ok(pauses),
    }
}

/// Returns how lost connections are replaced, if the options tell it.
pub(super) fn reconnects(given: &Given) -> Result<Option<Reconnects>, String> {
    let (most, factor) = ("max-reconnect-attempts", "reconnect-backoff-factor");
    let max = given.number(most, 0, u32::MAX.into())?;
    let growth = given.fraction(factor, 0.0, 1e9)?;
    if !given.has("reconnect-on-error") {
        return match [most, factor].into_iter().find(|name| given.has(name)) {
            Some(name) => Err(format!("--{name} is of no use without --reconnect-on-error")),
            None => Ok(None),
        };
    }
    let most = max.filter(|max| *max > 0).map(|max| max as u32);
    Ok(Some(Reconnects { most, factor: if growth > 0.0 { growth } else { 1.0 } }))
}
