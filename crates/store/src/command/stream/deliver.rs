//! XREADGROUP: entries that a group has not read yet go to one consumer each; a consumer's own ones are read again.
//!
//! All keys, groups and IDs are checked first, so an error changes nothing. A consumer that does not exist is added even
//! if there is nothing to read.
//!
//! A consumer that waits is served when there are entries that its group has not read; if several wait, in the order in
//! which they began, as long as entries are left. It is served an error when its stream or group disappears.

use std::time::Instant;

use sluicegate_data::object::stream::{Stream, StreamId};
use sluicegate_data::object::{Kind, Object};
use sluicegate_wire::resp::ReplySink;
use smallvec::SmallVec;

use super::claim::{record_consumer, record_pending, record_position};
use super::read::{Read, has_behind, say_each};
use super::{say_entry, say_id, strict_id};
use crate::catalogue::{Blocking, Timeout};
use crate::command::or_error;
use crate::context::Ctx;
use crate::notify::Class;
use crate::refused::{Refused, c_string};
use crate::visits::{self, Visits, has_small_count};

const LATEST: &str = "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this \
    consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty result \
    set.";
const LAST: &str = "ERR The + ID is meaningless in the context of XREADGROUP: you want to read the history of this \
    consumer by specifying a proper ID, or use the > ID to get new messages. The + ID would just return an empty result \
    set.";

/// The entries of one stream that are asked for.
struct Request {
    /// The index of the key among those of the command.
    place: usize,
    /// The index of the key's word.
    word: usize,
    /// The ID after which a consumer's own entries are read; none for entries that its group has not read.
    after: Option<StreamId>,
    /// Whether the reply has this stream.
    is_served: bool,
}

/// A part of the command's streams: each the index of its key in the context, and its number among the streams.
type Named = SmallVec<[(usize, usize); 4]>;

/// Returns the ID after which a consumer's history is read; none for `>`.
fn parse_after(word: &[u8]) -> Result<Option<StreamId>, Refused> {
    match word {
        b"$" => Err(LATEST.into()),
        b"+" => Err(LAST.into()),
        b">" => Ok(None),
        // Redis represents `>` by the highest ID.
        id => strict_id(id).map(|id| Some(id).filter(|id| *id != StreamId::MAX)),
    }
}

fn no_group(key: &[u8], group: &[u8]) -> Refused {
    let [key, group] = [key, group].map(|word| c_string(word, word.len()));
    [b"NOGROUP No such key '", key, b"' or consumer group '", group, b"' in XREADGROUP with GROUP option"]
        .concat()
        .into()
}

/// Checks the streams and finds those of which there is something to reply.
fn check(ctx: &mut Ctx<'_>, read: &Read, named: &Named) -> Result<SmallVec<[Request; 4]>, Refused> {
    let words = ctx.words;
    let name = words[read.group];
    let mut requests: SmallVec<[Request; 4]> = SmallVec::new();
    for (place, number) in named.iter().copied() {
        let (word, id) = (read.first + number, words[read.ids() + number]);
        // A stream that is named again has fewer entries left.
        let is_same = |other: &&Request| other.is_served && other.after.is_none() && words[other.word] == words[word];
        let before = requests.iter().filter(is_same).count();
        let stream = ctx.read_as::<Stream>(place)?;
        let group = stream.as_ref().and_then(|stream| Some((stream, stream.groups().get(name)?)));
        let (stream, group) = group.ok_or_else(|| no_group(words[word], name))?;
        let after = parse_after(id)?;
        let is_served = match (after, before, group.last().next()) {
            (Some(_), ..) => true,
            (None, 0, _) => has_behind(stream, group.last()),
            (None, _, None) => false,
            (None, _, Some(start)) => {
                let taken = read.count.saturating_mul(before);
                stream.count(start, StreamId::MAX, taken.saturating_add(1)) > taken
            }
        };
        requests.push(Request { place, word, after, is_served });
    }
    Ok(requests)
}

/// Reads from some of the streams. Returns false, without a reply, if there is nothing to read.
fn deliver(ctx: &mut Ctx<'_>, read: &Read, named: &Named, out: &mut dyn ReplySink) -> Result<bool, Refused> {
    let words = ctx.words;
    let (name, consumer) = (words[read.group], words[read.group + 1]);
    let requests = check(ctx, read, named)?;
    let served = requests.iter().filter(|request| request.is_served).count();
    if served > 0 && !ctx.win() {
        return Ok(true);
    }
    let now_ms = ctx.now.ms();
    let records = ctx.records();
    let is_nested = served > 0 && out.keyed(served);
    for request in &requests {
        let mut delivered: Vec<StreamId> = Vec::new();
        let edited = ctx.key(request.place).edit_existing_as(|stream: &mut Stream| {
            stream.edit_group(name, |stream, group| {
                let (consumer, is_new) = group.see(consumer, now_ms);
                if request.is_served {
                    if is_nested {
                        out.array(2);
                    }
                    out.bulk(words[request.word]);
                }
                match request.after {
                    _ if !request.is_served => {}
                    None => {
                        let start = group.last().next().unwrap_or(StreamId::MAX);
                        say_each(stream, (start, StreamId::MAX), false, read.count, out, |id| {
                            group.advance(stream, id);
                            if !read.is_noack {
                                group.assign(id, consumer, now_ms, 1);
                                if records {
                                    delivered.push(id);
                                }
                            }
                        });
                        if !read.is_noack {
                            group.note_success(consumer, now_ms);
                        }
                    }
                    Some(after) => {
                        let start = after.next().unwrap_or(StreamId::MAX);
                        let ids = group.consumer(consumer).pending_from(start).take(read.count);
                        let ids: SmallVec<[StreamId; 32]> = ids.copied().collect();
                        out.array(ids.len());
                        for id in ids {
                            match stream.entry(id) {
                                Some(entry) => {
                                    say_entry(&entry, out);
                                    group.deliver_again(id, now_ms);
                                    if records {
                                        delivered.push(id);
                                    }
                                }
                                None => {
                                    out.array(2);
                                    say_id(id, out);
                                    out.null_array();
                                }
                            }
                        }
                    }
                }
                (is_new, group.last(), group.stored_read())
            })
        })?;
        let edited = edited.flatten();
        let is_new = edited.is_some_and(|(is_new, ..)| is_new);
        if is_new {
            record_consumer(ctx, words[request.word], name, consumer);
        }
        if records && request.is_served {
            record_pending(ctx, request.place, words[request.word], name, &delivered);
            if let (None, Some((_, last, read))) = (request.after, edited) {
                record_position(ctx, words[request.word], name, last, read);
            }
        }
        if is_new {
            ctx.announce(request.place, Class::Stream, "xgroup-createconsumer");
        }
        if request.is_served {
            ctx.note_change(request.place);
        }
    }
    Ok(served > 0)
}

pub(super) fn xreadgroup(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let read = Read::parse(ctx.words, true)?;
        if read.block_ms.is_some() {
            read.check_timeout(ctx.now.ms())?;
        }
        let named: Named = (0..read.number).map(|number| (number, number)).collect();
        if !deliver(ctx, &read, &named, out)? {
            read.nothing(ctx, &XREADGROUP, out);
        }
        Ok(())
    })();
    or_error(result, out);
}

/// Reads from the streams that woke the client.
fn serve(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = Read::parse(words, true).and_then(|read| {
        let place = |number: &usize| {
            let key = words[read.first + number];
            ctx.places.iter().position(|place| words[place.word as usize] == key)
        };
        let named: Named = (0..read.number).filter_map(|number| Some((place(&number)?, number))).collect();
        if !deliver(ctx, &read, &named, out)? {
            out.null_array();
        }
        Ok(())
    });
    or_error(result, out);
}

/// Returns whether a stream ends the wait of a client with these words: its group has entries to read, or is gone.
fn suits(words: &[&[u8]], _: &[u8], object: &Object) -> bool {
    let (Some(stream), Ok(read)) = (Stream::of(object), Read::parse(words, true)) else { return false };
    stream.groups().get(words[read.group]).is_none_or(|group| has_behind(stream, group.last()))
}

fn deadline(words: &[&[u8]]) -> Result<Option<Option<Instant>>, Refused> {
    Ok(Read::parse(words, true)?.deadline())
}

pub(super) const XREADGROUP: Blocking = Blocking {
    wants: Stream::TAG,
    timeout: Timeout::Of(deadline),
    destination: None,
    suits: Some(suits),
    fails_without: true,
    serve,
    nothing: |out| out.null_array(),
};

pub(super) fn visits_of_xreadgroup(words: &[&[u8]]) -> Option<Visits> {
    let are_few = has_small_count(&words[1..]) || has_small_count(words.get(4..)?);
    visits::counted(are_few, |words, object| {
        let (Some(stream), Ok(read)) = (Stream::of(object), Read::parse(words, true)) else { return 0 };
        let Some(group) = stream.groups().get(words[read.group]) else { return 0 };
        let start = group.last().next().unwrap_or(StreamId::MAX);
        // Each stream is asked for all that any of them is asked for.
        let is_new = |word: &&[u8]| matches!(parse_after(word), Ok(None));
        let asked = &words[read.ids()..];
        let new = if asked.iter().any(is_new) { stream.estimate(start, StreamId::MAX) } else { 0 };
        let own = || group.find(words[read.group + 1]).map_or(0, |consumer| group.consumer(consumer).pending_len());
        let old = if asked.iter().all(is_new) { 0 } else { own() };
        new.saturating_add(old).min(read.count)
    })
}
