//! DUMP and RESTORE: values in serialised form, for another server or for later.
//!
//! Checksums and compression take milliseconds a megabyte, so neither is done under a stripe's lock: DUMP takes a copy
//! of a short value or a reference to a long one and works after unlocking, RESTORE decodes before locking. A RESTORE
//! that is then refused (`BUSYKEY`) has decoded in vain. A table of elements so short that none is compressed is written
//! in less time than it is copied, so only its checksum is left for later.

use sluicegate_data::rdb;
use sluicegate_data::value::{Entry, Value};
use sluicegate_wire::resp::ReplySink;

use super::{Refused, SYNTAX, integer, is, or_error};
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::notify::Class;
use crate::visits::{self, Visits};

/// The payload's word in RESTORE.
const PAYLOAD: usize = 3;

/// Bytes of an element on average, with its share of the table, up to which hardly any is compressed.
const SHORT_BYTES: usize = 96;

enum Dumped {
    /// All but the trailer.
    Body(Vec<u8>),
    Copy(Value<'static>),
}

impl Dumped {
    fn of(entry: &Entry) -> Dumped {
        match entry.object() {
            Some(object)
                if matches!(object.encoding(), "hashtable" | "skiplist")
                    && object.bytes() <= SHORT_BYTES * object.len() =>
            {
                let mut body = Vec::with_capacity(object.bytes());
                object.dump(rdb::encode::Form::PAYLOAD, &mut rdb::encode::Out::whole(&mut body));
                Dumped::Body(body)
            }
            _ => Dumped::Copy(entry.copy_value()),
        }
    }

    fn seal(self) -> Vec<u8> {
        match self {
            Dumped::Body(body) => rdb::sealed_of_any_version(body),
            Dumped::Copy(value) => rdb::dump(&value),
        }
    }
}

fn dump(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let Some(dumped) = ctx.read(0).map(Dumped::of) else { return out.null() };
    ctx.unlock();
    // SAFETY: the dumped value is a copy of this function, and everything is unlocked.
    let payload = unsafe { ctx.pass.outside(|| dumped.seal()) };
    out.bulk(&payload);
}

#[derive(Default)]
struct Options {
    replace: bool,
    absolute: bool,
    /// After Dragonfly: the key is never evicted.
    stick: bool,
    idle_s: Option<i64>,
    /// 0 to 255; only an LFU policy keeps it, as in Redis.
    frequency: Option<i64>,
}

impl Options {
    fn parse(words: &[&[u8]]) -> Result<Options, Refused> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let argument = words.as_slice().first();
            match argument {
                _ if is(word, "replace") => options.replace = true,
                _ if is(word, "stick") => options.stick = true,
                _ if is(word, "absttl") => options.absolute = true,
                Some(argument) if is(word, "idletime") && options.frequency.is_none() => {
                    let idle_s = integer(argument)?;
                    if idle_s < 0 {
                        return Err("ERR Invalid IDLETIME value, must be >= 0".into());
                    }
                    options.idle_s = Some(idle_s);
                    words.next();
                }
                Some(argument) if is(word, "freq") && options.idle_s.is_none() => {
                    let frequency = integer(argument)?;
                    if !(0..=255).contains(&frequency) {
                        return Err("ERR Invalid FREQ value, must be >= 0 and <= 255".into());
                    }
                    options.frequency = Some(frequency);
                    words.next();
                }
                _ => return Err(SYNTAX.into()),
            }
        }
        Ok(options)
    }
}

/// Decodes the payload; nothing is locked yet.
fn decode(ctx: &mut Ctx<'_>) {
    let (payload, limits) = (ctx.words[PAYLOAD], ctx.limits());
    // SAFETY: no database has been looked up yet.
    let decoded = unsafe { ctx.pass.outside(|| rdb::restore(payload, limits)) };
    ctx.ahead.get_or_insert_default().decoded = Some(decoded);
}

fn restore(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let options = Options::parse(&words[PAYLOAD + 1..])?;
        let decoded = ctx.ahead.as_mut().and_then(|ahead| ahead.decoded.take());
        let (is_lfu, limits) = (ctx.inner.memory.policy().is_lfu(), ctx.limits());
        let mut key = ctx.key(0);
        if !options.replace && key.exists() {
            return Err("BUSYKEY Target key name already exists.".into());
        }
        let ttl = integer(words[2])?;
        if ttl < 0 {
            return Err("ERR Invalid TTL value, must be >= 0".into());
        }
        let value = decoded.unwrap_or_else(|| rdb::restore(words[PAYLOAD], limits));
        let value = value.map_err(|wrong| wrong.to_string())?;
        let expiry = match ttl {
            0 => None,
            at_ms if options.absolute => Some(at_ms),
            // Redis lets a time beyond its clock wrap around too: the key has then expired long ago.
            ttl_ms => Some(ttl_ms.wrapping_add(key.now.ms())),
        };
        if expiry.is_some_and(|at_ms| at_ms <= key.expiry_ms()) {
            if key.remove() {
                ctx.record_as(&[b"DEL", words[1]]);
                ctx.notify(0, Class::Generic, "del");
            }
        } else {
            key.remove();
            key.set(value, expiry);
            key.set_sticky(options.stick);
            if !is_lfu {
                key.set_idle(options.idle_s.unwrap_or(0));
            } else if let Some(frequency) = options.frequency {
                key.set_frequency(frequency as u8);
            }
            record_restored(ctx, expiry, &options);
            ctx.notify(0, Class::Generic, "restore");
        }
        out.ok();
        Ok(())
    })();
    or_error(result, out);
}

/// Records that key 0 was restored: with the same payload if every server reads it.
fn record_restored(ctx: &mut Ctx<'_>, expiry: Option<i64>, options: &Options) {
    if !ctx.records() {
        return;
    }
    let (words, at_ms) = (ctx.words, expiry.unwrap_or(0).to_string());
    if !rdb::is_of_redis_7(words[PAYLOAD]) {
        return ctx.record_value(0);
    }
    let mut all = vec![&b"RESTORE"[..], words[1], at_ms.as_bytes(), words[PAYLOAD]];
    all.extend([&b"REPLACE"[..], b"ABSTTL"]);
    let usage = options.idle_s.map(|idle_s| (b"IDLETIME", idle_s.to_string()));
    if let Some((name, value)) = &usage {
        all.extend([&name[..], value.as_bytes()]);
    }
    ctx.record_as(&all);
    if options.stick {
        ctx.record_own(&[b"STICK", words[1]]);
    }
}

/// The longest payload that RESTORE decodes non-preemptibly, in bytes.
const PAYLOAD_MAX: usize = 64 << 10;

fn visits_of_payload(words: &[&[u8]]) -> Option<Visits> {
    (words[3].len() > PAYLOAD_MAX).then_some(Visits::Much)
}

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "dump",
        visits: Some(visits::dumped),
        arity: 2,
        flags: Flags::READONLY,
        keys: KeyRule::ONE,
        categories: &[Category::Keyspace],
        cost: Cost::PerByte,
        since: "2.6.0",
        group: "generic",
        summary: "Returns a serialized representation of the value stored at a key.",
        complexity: "O(N) where N is the length of the value.",
        handler: Handler::Keyspace(dump),
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "restore",
        visits: Some(visits_of_payload),
        arity: -4,
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: KeyRule::ONE,
        categories: &[Category::Keyspace, Category::Dangerous],
        cost: Cost::PerByte,
        since: "2.6.0",
        group: "generic",
        summary: "Creates a key from the serialized representation of a value.",
        complexity: "O(N) where N is the length of the payload and of the value.",
        prepare: Some(decode),
        handler: Handler::Keyspace(restore),
        ..CommandSpec::EMPTY
    },
];
