//! Times to live: the EXPIRE and TTL families, PERSIST; and the expiry options of SET and GETEX.

use sluicegate_wire::resp::ReplySink;

use super::{Refused, c_string, integer, is, or_error};
use crate::catalogue::{Category, CommandSpec, Flags, Handler};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::notify::Class;

/// The unit of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Seconds from now.
    Seconds,
    /// Milliseconds from now.
    Millis,
    /// Unix seconds.
    UnixSeconds,
    /// Unix milliseconds.
    UnixMillis,
}

impl Unit {
    fn is_seconds(self) -> bool {
        matches!(self, Unit::Seconds | Unit::UnixSeconds)
    }

    fn is_relative(self) -> bool {
        matches!(self, Unit::Seconds | Unit::Millis)
    }

    /// Returns the expiry that SET, SETEX and GETEX take: a positive time, in Unix milliseconds.
    pub(crate) fn expiry(self, word: &[u8], command: &str, now_ms: impl FnOnce() -> i64) -> Result<i64, Refused> {
        let invalid = || invalid_time(command);
        let mut at_ms = integer(word)?;
        if at_ms <= 0 {
            return Err(invalid());
        }
        if self.is_seconds() {
            at_ms = at_ms.checked_mul(1000).ok_or_else(invalid)?;
        }
        if self.is_relative() {
            at_ms = at_ms.checked_add(now_ms()).ok_or_else(invalid)?;
        }
        Ok(at_ms)
    }
}

fn invalid_time(command: &str) -> Refused {
    format!("ERR invalid expire time in '{command}' command").into()
}

#[derive(Default)]
struct Condition {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Condition {
    fn parse(words: &[&[u8]]) -> Result<Condition, Refused> {
        let mut condition = Condition::default();
        for word in words {
            match () {
                () if is(word, "nx") => condition.nx = true,
                () if is(word, "xx") => condition.xx = true,
                () if is(word, "gt") => condition.gt = true,
                () if is(word, "lt") => condition.lt = true,
                () => return Err([b"ERR Unsupported option ", c_string(word, usize::MAX)].concat().into()),
            }
        }
        if condition.nx && (condition.xx || condition.gt || condition.lt) {
            return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
        }
        if condition.gt && condition.lt {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(condition)
    }

    /// Returns whether the new expiry is allowed; a key without an expiry lives for ever: nothing is greater.
    fn allows(&self, at_ms: i64, current: Option<i64>) -> bool {
        !(self.nx && current.is_some()
            || self.xx && current.is_none()
            || self.gt && current.is_none_or(|current| at_ms <= current)
            || self.lt && current.is_some_and(|current| at_ms >= current))
    }
}

fn expire_in(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, unit: Unit, command: &str) {
    let result = (|| {
        let words = ctx.words;
        let condition = Condition::parse(&words[3..])?;
        let mut at_ms = integer(words[2])?;
        if unit.is_seconds() {
            at_ms = at_ms.checked_mul(1000).ok_or_else(|| invalid_time(command))?;
        }
        if unit.is_relative() {
            let now_ms = ctx.now.ms();
            at_ms = at_ms.checked_add(now_ms).ok_or_else(|| invalid_time(command))?;
        }
        let mut key = ctx.key(0);
        if !key.exists() || !condition.allows(at_ms, key.expiry()) {
            out.integer(0);
            return Ok(());
        }
        if at_ms <= key.expiry_ms() {
            key.remove();
            ctx.record_as(&[b"DEL", words[1]]);
            ctx.notify(0, Class::Generic, "del");
        } else {
            key.set_expiry(Some(at_ms));
            ctx.record_as(&[b"PEXPIREAT", words[1], itoa::Buffer::new().format(at_ms).as_bytes()]);
            ctx.notify(0, Class::Generic, "expire");
        }
        out.integer(1);
        Ok(())
    })();
    or_error(result, out);
}

fn expire(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    expire_in(ctx, out, Unit::Seconds, "expire");
}

fn pexpire(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    expire_in(ctx, out, Unit::Millis, "pexpire");
}

fn expireat(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    expire_in(ctx, out, Unit::UnixSeconds, "expireat");
}

fn pexpireat(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    expire_in(ctx, out, Unit::UnixMillis, "pexpireat");
}

/// Writes -2 for no key, -1 for no expiry, else the result of `show` for the expiry and now.
fn show_expiry(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, show: fn(i64, i64) -> i64) {
    let reply = match ctx.peek(0).map(|entry| entry.expiry()) {
        None => -2,
        Some(None) => -1,
        Some(Some(at_ms)) => show(at_ms, ctx.now.ms()),
    };
    out.integer(reply);
}

fn ttl(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    show_expiry(ctx, out, |at_ms, now_ms| at_ms.saturating_sub(now_ms).max(0).saturating_add(500) / 1000);
}

fn pttl(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    show_expiry(ctx, out, |at_ms, now_ms| at_ms.saturating_sub(now_ms).max(0));
}

fn expiretime(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    show_expiry(ctx, out, |at_ms, _| at_ms.saturating_add(500) / 1000);
}

fn pexpiretime(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    show_expiry(ctx, out, |at_ms, _| at_ms);
}

fn persist(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let mut key = ctx.key(0);
    let had_expiry = key.expiry().is_some();
    if had_expiry {
        key.set_expiry(None);
        ctx.notify(0, Class::Generic, "persist");
    }
    out.integer(i64::from(had_expiry));
}

const fn setter(name: &'static str, since: &'static str, summary: &'static str, handle: super::Handle) -> CommandSpec {
    CommandSpec {
        name,
        arity: -3,
        flags: Flags::WRITE.and(Flags::FAST),
        keys: KeyRule::ONE,
        categories: &[Category::Keyspace],
        since,
        group: "generic",
        summary,
        handler: Handler::Keyspace(handle),
        ..CommandSpec::EMPTY
    }
}

const fn getter(name: &'static str, since: &'static str, summary: &'static str, handle: super::Handle) -> CommandSpec {
    CommandSpec { arity: 2, flags: Flags::READONLY.and(Flags::FAST), ..setter(name, since, summary, handle) }
}

pub(super) const COMMANDS: &[CommandSpec] = &[
    setter("expire", "1.0.0", "Sets the expiration time of a key in seconds.", expire),
    setter("pexpire", "2.6.0", "Sets the expiration time of a key in milliseconds.", pexpire),
    setter("expireat", "1.2.0", "Sets the expiration time of a key to a Unix timestamp.", expireat),
    setter("pexpireat", "2.6.0", "Sets the expiration time of a key to a Unix milliseconds timestamp.", pexpireat),
    getter("ttl", "1.0.0", "Returns the expiration time in seconds of a key.", ttl),
    getter("pttl", "2.6.0", "Returns the expiration time in milliseconds of a key.", pttl),
    getter("expiretime", "7.0.0", "Returns the expiration time of a key as a Unix timestamp.", expiretime),
    getter(
        "pexpiretime",
        "7.0.0",
        "Returns the expiration time of a key as a Unix milliseconds timestamp.",
        pexpiretime,
    ),
    CommandSpec { arity: 2, ..setter("persist", "2.2.0", "Removes the expiration time of a key.", persist) },
];
