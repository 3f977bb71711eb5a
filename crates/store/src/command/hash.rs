//! Commands on hashes.

use sluicegate_wire::resp::ReplySink;

use super::or_error;
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::object::Hash;

fn hset(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    if !words.len().is_multiple_of(2) {
        return out.error("ERR wrong number of arguments for 'hset' command");
    }
    let result = ctx.key(0).edit_as(|hash: &mut Hash| {
        let pairs = words[2..].chunks_exact(2);
        pairs.filter(|pair| hash.insert(pair[0], pair[1])).count()
    });
    or_error(result.map(|added| out.integer(added as i64)), out);
}

fn hget(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let field = ctx.words[2];
    let result = ctx.read_as::<Hash>(0).map(|hash| match hash.as_ref().and_then(|hash| hash.get(field)) {
        Some(value) => out.bulk(value.text(&mut itoa::Buffer::new())),
        None => out.null(),
    });
    or_error(result, out);
}

const ROW: CommandSpec = CommandSpec {
    since: "2.0.0",
    group: "hash",
    categories: &[Category::Hash],
    keys: KeyRule::ONE,
    cost: Cost::Constant,
    ..CommandSpec::EMPTY
};

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "hset",
        arity: -4,
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        summary: "Creates or modifies the value of a field in a hash.",
        handler: Handler::Keyspace(hset),
        ..ROW
    },
    CommandSpec {
        name: "hget",
        arity: 3,
        flags: Flags::READONLY.and(Flags::FAST),
        summary: "Returns the value of a field in a hash.",
        handler: Handler::Keyspace(hget),
        ..ROW
    },
];
