//! Sticky keys, which are never evicted: STICK, UNSTICK and OBJECT STICKY, after Dragonfly's STICK.
//!
//! The mark is a bit in the key's entry. It stays while the key does, whatever is written to it, goes with RENAME, MOVE
//! and COPY, and ends with DEL, expiry and RESTORE. It does not delay an expiry.

use sluicegate_wire::resp::ReplySink;

use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler};
use crate::context::Ctx;
use crate::keys::KeyRule;

/// Marks or unmarks all keys and writes the number of changed ones.
fn mark(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, sticky: bool) {
    let changed = (0..ctx.places.len()).filter(|index| {
        let mut key = ctx.key(*index);
        let changes = key.entry().is_some_and(|entry| entry.sticky() != sticky);
        if changes {
            key.set_sticky(sticky);
        }
        changes
    });
    let changed = changed.count();
    if changed > 0 {
        ctx.record_own(ctx.words);
    }
    out.integer(changed as i64);
}

fn stick(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    mark(ctx, out, true);
}

fn unstick(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    mark(ctx, out, false);
}

/// `OBJECT STICKY key`.
pub(super) fn object_sticky(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    match ctx.peek(0).map(|entry| entry.sticky()) {
        Some(sticky) => out.integer(i64::from(sticky)),
        None => out.null(),
    }
}

const BOTH: CommandSpec = CommandSpec {
    arity: -2,
    flags: Flags::WRITE.and(Flags::FAST),
    keys: KeyRule::ALL,
    categories: &[Category::Keyspace],
    cost: Cost::PerKey,
    since: "",
    group: "generic",
    complexity: "O(N) where N is the number of keys.",
    ..CommandSpec::EMPTY
};

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec { name: "stick", summary: "Protects keys from eviction.", handler: Handler::Keyspace(stick), ..BOTH },
    CommandSpec {
        name: "unstick",
        summary: "Gives keys up to eviction again.",
        handler: Handler::Keyspace(unstick),
        ..BOTH
    },
];
