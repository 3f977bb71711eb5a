//! XINFO: properties of a stream.

use sluicegate_data::object::Kind;
use sluicegate_data::object::stream::{Stream, StreamId};
use sluicegate_wire::resp::ReplySink;

use super::read::say_range;
use super::{say_entry, say_id};
use crate::command::{integer, is, or_error};
use crate::context::Ctx;
use crate::refused::NO_SUCH_KEY;
use crate::refused::Refused;

/// The default number of entries that FULL shows.
const SHOWN: usize = 10;

pub(super) fn help(_: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let lines = [
        "CONSUMERS <key> <groupname>",
        "    Show consumers of <groupname>.",
        "GROUPS <key>",
        "    Show the stream consumer groups.",
        "STREAM <key> [FULL [COUNT <count>]",
        "    Show information about the stream.",
    ];
    crate::command::help("XINFO", &lines, out);
}

/// Parses the number of entries to show; none without FULL.
fn shown(words: &[&[u8]]) -> Result<Option<usize>, Refused> {
    const WRONG: &str = "ERR unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP.";
    match words {
        [_, _, _] => Ok(None),
        [_, _, _, full] if is(full, "full") => Ok(Some(SHOWN)),
        [_, _, _, full, option, count] if is(full, "full") && is(option, "count") => Ok(Some(match integer(count)? {
            ..0 => SHOWN,
            0 => usize::MAX,
            count => count as usize,
        })),
        _ => Err(WRONG.into()),
    }
}

pub(super) fn stream(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = ctx.read_as::<Stream>(0).and_then(|stream| {
        let stream = stream.ok_or(NO_SUCH_KEY)?;
        tell(&stream, shown(words)?, out);
        Ok(())
    });
    or_error(result, out);
}

fn tell(stream: &Stream, shown: Option<usize>, out: &mut dyn ReplySink) {
    let facts = stream.facts();
    out.map(if shown.is_some() { 9 } else { 10 });
    let number = |out: &mut dyn ReplySink, name: &str, value: u64| {
        out.bulk(name.as_bytes());
        out.integer(value as i64);
    };
    let id = |out: &mut dyn ReplySink, name: &str, id: StreamId| {
        out.bulk(name.as_bytes());
        say_id(id, out);
    };
    number(out, "length", stream.len() as u64);
    number(out, "radix-tree-keys", stream.nodes() as u64);
    // The store has no radix tree; a tree of this many keys has at least one more node.
    number(out, "radix-tree-nodes", stream.nodes() as u64 + 1);
    id(out, "last-generated-id", facts.last);
    id(out, "max-deleted-entry-id", facts.max_deleted);
    number(out, "entries-added", facts.added);
    id(out, "recorded-first-entry-id", facts.first);
    let Some(shown) = shown else {
        number(out, "groups", 0);
        for (name, is_back) in [("first-entry", false), ("last-entry", true)] {
            out.bulk(name.as_bytes());
            match stream.range(StreamId::MIN, StreamId::MAX, is_back).next() {
                Some(entry) => say_entry(&entry, out),
                None => out.null(),
            }
        }
        return;
    };
    out.bulk(b"entries");
    say_range(stream, (StreamId::MIN, StreamId::MAX), false, shown, out);
    out.bulk(b"groups");
    out.array(0);
}
