//! XGROUP: consumer groups are created, moved and removed, and so are their consumers.
//!
//! Changes of a group are no changes of the key for clients that watch it, as in Redis.

use sluicegate_data::object::Kind;
use sluicegate_data::object::stream::{Group, Stream, UNKNOWN};
use sluicegate_data::value::Garbage;
use sluicegate_wire::resp::ReplySink;

use super::{range_end, strict_id, wrong_subcommand};
use crate::command::{integer, is, or_error};
use crate::context::{Ctx, KeyMut};
use crate::notify::Class;
use crate::refused::{Refused, c_string};
use crate::visits::{self, Visits};

const NO_KEY: &str = "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the \
    MKSTREAM option to create an empty stream automatically.";

/// The index of the group's name.
const GROUP: usize = 3;

pub(super) fn help(_: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let lines = [
        "CREATE <key> <groupname> <id|$> [option]",
        "    Create a new consumer group. Options are:",
        "    * MKSTREAM",
        "      Create the empty stream if it does not exist.",
        "    * ENTRIESREAD entries_read",
        "      Set the group's entries_read counter (internal use).",
        "CREATECONSUMER <key> <groupname> <consumer>",
        "    Create a new consumer in the specified group.",
        "DELCONSUMER <key> <groupname> <consumer>",
        "    Remove the specified consumer.",
        "DESTROY <key> <groupname>",
        "    Remove the specified group.",
        "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
        "    Set the current group ID and entries_read counter.",
    ];
    crate::command::help("XGROUP", &lines, out);
}

/// The options of CREATE and SETID.
struct Options {
    makes_stream: bool,
    read: i64,
}

impl Options {
    fn parse(words: &[&[u8]], creates: bool) -> Result<Options, Refused> {
        let mut options = Options { makes_stream: false, read: UNKNOWN };
        let mut rest = words[5..].iter();
        while let Some(word) = rest.next() {
            if creates && is(word, "mkstream") {
                options.makes_stream = true;
            } else if is(word, "entriesread")
                && let Some(number) = rest.next()
            {
                options.read = integer(number)?;
                if options.read < 0 && options.read != UNKNOWN {
                    return Err("ERR value for ENTRIESREAD must be positive or -1".into());
                }
            } else {
                return Err(wrong_subcommand("XGROUP", words[1]));
            }
        }
        Ok(options)
    }
}

/// Checks that the key exists and is a stream.
fn check_stream(key: &KeyMut<'_, '_>) -> Result<(), Refused> {
    key.object::<Stream>()?.map(|_| ()).ok_or(NO_KEY.into())
}

/// Returns the error of a group that does not exist.
pub(super) fn no_group(key: &[u8], group: &[u8]) -> Refused {
    let [key, group] = [key, group].map(|word| c_string(word, word.len()));
    [b"NOGROUP No such consumer group '", group, b"' for key name '", key, b"'"].concat().into()
}

pub(super) fn create(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let Options { makes_stream, read } = Options::parse(words, true)?;
        let mut key = ctx.key(0);
        let is_new = key.object::<Stream>()?.is_none();
        if is_new && !makes_stream {
            return Err(NO_KEY.into());
        }
        if words.len() > 8 {
            return Err(wrong_subcommand("XGROUP", words[1]));
        }
        let last = if words[4] == b"$" { None } else { Some(strict_id(words[4])?) };
        let is_added = key.edit_as(|stream: &mut Stream| {
            let last = last.unwrap_or(stream.facts().last);
            stream.add_group(words[GROUP], Group::new(last, read))
        })?;
        if !is_added {
            return Err("BUSYGROUP Consumer Group name already exists".into());
        }
        if is_new {
            ctx.touch(0);
        }
        ctx.announce(0, Class::Stream, "xgroup-create");
        out.ok();
        Ok(())
    })();
    or_error(result, out);
}

pub(super) fn set_id(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let Options { read, .. } = Options::parse(words, false)?;
        let mut key = ctx.key(0);
        check_stream(&key)?;
        let moved = key.edit_existing_as(|stream: &mut Stream| {
            let last = stream.facts().last;
            let moved = stream.edit_group(words[GROUP], |_, group| {
                let id = match words[4] {
                    _ if !matches!(words.len(), 5 | 7) => return Err(wrong_subcommand("XGROUP", words[1])),
                    b"$" => last,
                    // An end of a range is any ID here, `-` and `+` included, but not an excluded one.
                    [b'(', ..] => return Err(super::INVALID_ID.into()),
                    id => range_end(id, 0)?.0,
                };
                group.set_position(id, read);
                Ok(())
            });
            moved.unwrap_or_else(|| Err(no_group(words[2], words[GROUP])))
        })?;
        moved.unwrap_or(Ok(()))?;
        ctx.announce(0, Class::Stream, "xgroup-setid");
        out.ok();
        Ok(())
    })();
    or_error(result, out);
}

pub(super) fn destroy(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let mut key = ctx.key(0);
        check_stream(&key)?;
        let removed = key.edit_existing_as(|stream: &mut Stream| stream.remove_group(words[GROUP]))?.flatten();
        let is_removed = removed.is_some();
        if let Some(removed) = removed {
            // Its consumers that wait get an error.
            key.wake();
            ctx.garbage.push(Garbage::Object(removed.into_object()));
            ctx.announce(0, Class::Stream, "xgroup-destroy");
        }
        out.integer(is_removed.into());
        Ok(())
    })();
    or_error(result, out);
}

pub(super) fn create_consumer(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let now_ms = ctx.now.ms();
        let mut key = ctx.key(0);
        check_stream(&key)?;
        let add = |stream: &mut Stream| {
            stream.edit_group(words[GROUP], |_, group| group.find(words[4]).is_none() && group.see(words[4], now_ms).1)
        };
        let is_added = key.edit_existing_as(add)?.flatten().ok_or_else(|| no_group(words[2], words[GROUP]))?;
        if is_added {
            ctx.announce(0, Class::Stream, "xgroup-createconsumer");
        }
        out.integer(is_added.into());
        Ok(())
    })();
    or_error(result, out);
}

pub(super) fn delete_consumer(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let mut key = ctx.key(0);
        check_stream(&key)?;
        let remove = |stream: &mut Stream| stream.edit_group(words[GROUP], |_, group| group.remove_consumer(words[4]));
        let removed = key.edit_existing_as(remove)?.flatten().ok_or_else(|| no_group(words[2], words[GROUP]))?;
        if removed.is_some() {
            ctx.announce(0, Class::Stream, "xgroup-delconsumer");
        }
        out.integer(removed.unwrap_or(0) as i64);
        Ok(())
    })();
    or_error(result, out);
}

/// DELCONSUMER iterates over the consumer's pending entries.
pub(super) fn visits_of_delete_consumer(_: &[&[u8]]) -> Option<Visits> {
    visits::counted(false, |words, object| {
        let group = Stream::of(object).and_then(|stream| stream.groups().get(words[GROUP]));
        let consumer = |group: &Group| Some(group.consumer(group.find(words[4])?).pending_len());
        group.and_then(consumer).unwrap_or(0)
    })
}
