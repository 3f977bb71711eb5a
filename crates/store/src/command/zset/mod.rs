//! Commands on sorted sets, a theme per file.
//!
//! Commands on one member cost a look-up and one or two descents of the tree; a command on a range finds its ranks
//! first, so LIMIT skips for free, and then iterates over its result under the stripe's lock.

pub(super) mod change;
pub(super) mod combine;
pub(super) mod pick;
pub(super) mod pop;
pub(crate) mod range;

use sluicegate_data::object::{Kind, Zset, score};
use sluicegate_data::value::Value;
use sluicegate_wire::resp::ReplySink;

use super::{Handle, Refused};
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::notify::Class;

const NOT_FLOAT: &str = "ERR value is not a valid float";

/// Returns a score argument.
pub(super) fn score(word: &[u8]) -> Result<f64, Refused> {
    score::parse(word).ok_or(NOT_FLOAT.into())
}

/// Writes a member with its score, as a pair in RESP3.
fn say_pair(member: &[u8], score: f64, nested: bool, out: &mut dyn ReplySink) {
    if nested {
        out.array(2);
    }
    out.bulk(member);
    out.double(score);
}

/// Stores a command's result in a key, or removes the key if it is empty; writes the number of members.
pub(super) fn store(ctx: &mut Ctx<'_>, key: usize, zset: Zset, event: &'static str, out: &mut dyn ReplySink) {
    let len = zset.len();
    if len > 0 {
        ctx.key(key).set(Value::Object(zset.into_object()), None);
        ctx.notify(key, Class::Zset, event);
    } else if ctx.key(key).remove() {
        ctx.notify(key, Class::Generic, "del");
    }
    out.integer(len as i64);
}

/// Returns a row of a command on one key.
const fn row(name: &'static str, arity: i32, flags: Flags, summary: &'static str, handle: Handle) -> CommandSpec {
    CommandSpec {
        name,
        arity,
        flags,
        summary,
        keys: KeyRule::ONE,
        categories: &[Category::SortedSet],
        since: "1.2.0",
        group: "sorted-set",
        complexity: "O(log(N)) where N is the number of members.",
        handler: Handler::Keyspace(handle),
        ..CommandSpec::EMPTY
    }
}

/// Returns a row of a command whose work grows with its result, its changes or the members it examines.
const fn per_element(
    name: &'static str,
    arity: i32,
    flags: Flags,
    summary: &'static str,
    handle: Handle,
) -> CommandSpec {
    CommandSpec {
        cost: Cost::PerElement,
        complexity: "O(log(N)+M) where N is the number of members and M the number of those returned or removed.",
        ..row(name, arity, flags, summary, handle)
    }
}

const WRITES: Flags = Flags::WRITE.and(Flags::DENYOOM);
const READS: Flags = Flags::READONLY.and(Flags::FAST);
