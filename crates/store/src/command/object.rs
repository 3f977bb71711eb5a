//! OBJECT: properties of a key other than its value.

use sluicegate_data::clock::{TICKS_PER_S, idle_ticks};
use sluicegate_data::value::{Entry, View};
use sluicegate_wire::resp::ReplySink;

use super::help;
use crate::catalogue::{Category, CommandSpec, Flags, Handler};
use crate::context::Ctx;
use crate::keys::KeyRule;

/// Redis shares the integers below this number between all keys and reports this reference count for them.
const SHARED_INTEGERS: i64 = 10_000;

fn encoding(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    match ctx.inspect(0) {
        Some(entry) => out.bulk(entry.encoding().as_bytes()),
        None => out.null(),
    }
}

fn idletime(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let (now, is_lfu) = (ctx.now.ticks(), ctx.inner.memory.policy().is_lfu());
    match ctx.inspect(0).map(Entry::access) {
        None => out.null(),
        Some(_) if is_lfu => out.error(
            "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between \
             policies at runtime LRU and LFU data will take some time to adjust.",
        ),
        Some(access) => out.integer(i64::from(idle_ticks(now, access)) / TICKS_PER_S),
    }
}

fn refcount(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    match ctx.inspect(0).map(Entry::string) {
        None => out.null(),
        Some(Some(View::Int(0..SHARED_INTEGERS))) => out.integer(i64::from(i32::MAX)),
        Some(_) => out.integer(1),
    }
}

fn freq(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let (now, is_lfu, limits) = (ctx.now.ticks(), ctx.inner.memory.policy().is_lfu(), ctx.limits());
    match ctx.inspect(0) {
        None => out.null(),
        Some(entry) if is_lfu => out.integer(i64::from(entry.frequency(now, limits))),
        Some(_) => out.error(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
             switching between policies at runtime LRU and LFU data will take some time to adjust.",
        ),
    }
}

fn object_help(_ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let lines = [
        "ENCODING <key>",
        "    Return the kind of internal representation used in order to store the value",
        "    associated with a <key>.",
        "FREQ <key>",
        "    Return the access frequency index of the <key>. The returned integer is",
        "    proportional to the logarithm of the recent access frequency of the key.",
        "IDLETIME <key>",
        "    Return the idle time of the <key>, that is the approximated number of",
        "    seconds elapsed since the last access to the key.",
        "REFCOUNT <key>",
        "    Return the number of references of the value associated with the specified",
        "    <key>.",
    ];
    help("OBJECT", &lines, out);
}

const fn sub(name: &'static str, summary: &'static str, handle: super::Handle) -> CommandSpec {
    CommandSpec {
        name,
        arity: 3,
        flags: Flags::READONLY,
        keys: KeyRule::Range { first: 2, last: 2, step: 1 },
        categories: &[Category::Keyspace],
        since: "2.2.3",
        group: "generic",
        summary,
        handler: Handler::Keyspace(handle),
        ..CommandSpec::EMPTY
    }
}

pub(super) const COMMANDS: &[CommandSpec] = &[CommandSpec {
    name: "object",
    arity: -2,
    categories: &[],
    since: "2.2.3",
    group: "generic",
    summary: "A container for object introspection commands.",
    complexity: "Depends on subcommand.",
    subcommands: &[
        sub("encoding", "Returns the internal encoding of a Redis object.", encoding),
        CommandSpec {
            since: "4.0.0",
            ..sub("freq", "Returns the logarithmic access frequency counter of a Redis object.", freq)
        },
        CommandSpec {
            arity: 2,
            flags: Flags::LOADING.and(Flags::STALE),
            keys: KeyRule::None,
            since: "6.2.0",
            ..sub("help", "Returns helpful text about the different subcommands.", object_help)
        },
        sub("idletime", "Returns the time since the last access to a Redis object.", idletime),
        CommandSpec {
            since: "",
            ..sub("sticky", "Tells whether a key is never evicted.", super::stick::object_sticky)
        },
        sub("refcount", "Returns the reference count of a value of a key.", refcount),
    ],
    ..CommandSpec::EMPTY
}];
