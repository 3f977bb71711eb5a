//! XINFO: properties of a stream, its consumer groups and their consumers.

use sluicegate_data::object::Kind;
use sluicegate_data::object::stream::{Consumer, Group, NEVER, Stream, StreamId};
use sluicegate_wire::resp::ReplySink;

use super::group::no_group;
use super::read::say_range;
use super::{say_entry, say_id, wrong_subcommand};
use crate::command::{integer, is, or_error};
use crate::context::Ctx;
use crate::refused::NO_SUCH_KEY;
use crate::refused::Refused;
use crate::visits::{self, Visits};

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

fn number(name: &str, value: i64, out: &mut dyn ReplySink) {
    out.bulk(name.as_bytes());
    out.integer(value);
}

fn number_or_null(name: &str, value: Option<i64>, out: &mut dyn ReplySink) {
    out.bulk(name.as_bytes());
    match value {
        Some(value) => out.integer(value),
        None => out.null(),
    }
}

fn text(name: &str, value: &[u8], out: &mut dyn ReplySink) {
    out.bulk(name.as_bytes());
    out.bulk(value);
}

fn id(name: &str, id: StreamId, out: &mut dyn ReplySink) {
    out.bulk(name.as_bytes());
    say_id(id, out);
}

/// Parses the number of entries to show; none without FULL.
fn shown(words: &[&[u8]]) -> Result<Option<usize>, Refused> {
    match words {
        [_, _, _] => Ok(None),
        [_, _, _, full] if is(full, "full") => Ok(Some(SHOWN)),
        [_, _, _, full, option, count] if is(full, "full") && is(option, "count") => Ok(Some(match integer(count)? {
            ..0 => SHOWN,
            0 => usize::MAX,
            count => count as usize,
        })),
        _ => Err(wrong_subcommand("XINFO", words[1])),
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
    number("length", stream.len() as i64, out);
    number("radix-tree-keys", stream.nodes() as i64, out);
    // The store has no radix tree; a tree of this many keys has at least one more node.
    number("radix-tree-nodes", stream.nodes() as i64 + 1, out);
    id("last-generated-id", facts.last, out);
    id("max-deleted-entry-id", facts.max_deleted, out);
    number("entries-added", facts.added as i64, out);
    id("recorded-first-entry-id", facts.first, out);
    let Some(shown) = shown else {
        number("groups", stream.groups().len() as i64, out);
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
    let groups = stream.groups().iter();
    out.array(groups.len());
    groups.for_each(|(name, group)| tell_group(stream, name, group, shown, out));
}

/// Writes a group with its consumers, and up to `shown` pending entries of each.
fn tell_group(stream: &Stream, name: &[u8], group: &Group, shown: usize, out: &mut dyn ReplySink) {
    out.map(7);
    text("name", name, out);
    id("last-delivered-id", group.last(), out);
    number_or_null("entries-read", group.read(), out);
    number_or_null("lag", group.lag(stream), out);
    number("pel-count", group.pending_len() as i64, out);
    out.bulk(b"pending");
    out.array(group.pending_len().min(shown));
    for (id, pending) in group.pending_from(StreamId::MIN).take(shown) {
        out.array(4);
        say_id(*id, out);
        out.bulk(group.owner(pending).name());
        out.integer(pending.delivered_ms);
        out.integer(pending.count as i64);
    }
    out.bulk(b"consumers");
    let consumers = group.consumers();
    out.array(consumers.len());
    consumers.for_each(|consumer| tell_consumer(group, consumer, shown, out));
}

fn tell_consumer(group: &Group, consumer: &Consumer, shown: usize, out: &mut dyn ReplySink) {
    out.map(5);
    text("name", consumer.name(), out);
    number("seen-time", consumer.seen_ms, out);
    number("active-time", consumer.active_ms, out);
    number("pel-count", consumer.pending_len() as i64, out);
    out.bulk(b"pending");
    out.array(consumer.pending_len().min(shown));
    for id in consumer.pending_from(StreamId::MIN).take(shown) {
        let Some(pending) = group.pending_of(*id) else { continue };
        out.array(3);
        say_id(*id, out);
        out.integer(pending.delivered_ms);
        out.integer(pending.count as i64);
    }
}

pub(super) fn groups(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = ctx.read_as::<Stream>(0).and_then(|stream| {
        let stream = stream.ok_or(NO_SUCH_KEY)?;
        let groups = stream.groups().iter();
        out.array(groups.len());
        for (name, group) in groups {
            out.map(6);
            text("name", name, out);
            number("consumers", group.consumers().len() as i64, out);
            number("pending", group.pending_len() as i64, out);
            id("last-delivered-id", group.last(), out);
            number_or_null("entries-read", group.read(), out);
            number_or_null("lag", group.lag(&stream), out);
        }
        Ok(())
    });
    or_error(result, out);
}

pub(super) fn consumers(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let now_ms = ctx.now.ms();
    let result = ctx.read_as::<Stream>(0).and_then(|stream| {
        let stream = stream.ok_or(NO_SUCH_KEY)?;
        let group = stream.groups().get(words[3]).ok_or_else(|| no_group(words[2], words[3]))?;
        let consumers = group.consumers();
        out.array(consumers.len());
        for consumer in consumers {
            out.map(4);
            text("name", consumer.name(), out);
            number("pending", consumer.pending_len() as i64, out);
            number("idle", now_ms.wrapping_sub(consumer.seen_ms).max(0), out);
            let inactive_ms = match consumer.active_ms {
                NEVER => NEVER,
                active_ms => now_ms.wrapping_sub(active_ms),
            };
            number("inactive", inactive_ms, out);
        }
        Ok(())
    });
    or_error(result, out);
}

/// STREAM iterates over entries and groups if it has options.
pub(super) fn visits_of_stream(words: &[&[u8]]) -> Option<Visits> {
    visits::counted(words.len() < 4, |words, object| {
        let (Some(stream), Ok(Some(shown))) = (Stream::of(object), shown(words)) else { return 0 };
        let pending = |group: &Group| group.pending_len().min(shown.saturating_mul(1 + group.consumers().len()));
        let groups = stream.groups().iter().map(|(_, group)| 1 + group.consumers().len() + 2 * pending(group));
        stream.len().min(shown) + groups.sum::<usize>()
    })
}

pub(super) fn visits_of_groups(_: &[&[u8]]) -> Option<Visits> {
    visits::counted(false, |_, object| Stream::of(object).map_or(0, |stream| stream.groups().len()))
}

pub(super) fn visits_of_consumers(_: &[&[u8]]) -> Option<Visits> {
    visits::counted(false, |words, object| {
        let group = Stream::of(object).and_then(|stream| stream.groups().get(words[3]));
        group.map_or(0, |group| group.consumers().len())
    })
}
