//! Commands that read a stream: XLEN, XRANGE and XREVRANGE, and XREAD, which may block.
//!
//! A client blocked by XREAD waits for entries after an ID, so `$` is replaced by its ID before the client blocks, and
//! a stream that is created, or grows, suits only clients whose ID is below its last one. Reading removes nothing, so
//! all of them are served, in order of arrival.
//!
//! A client that waits for several streams gets the entries that a transaction added to any of them (Redis 7.2).

use std::time::{Duration, Instant};

use sluicegate_data::object::stream::{Entry, Stream, StreamId};
use sluicegate_data::object::{Kind, Object};
use sluicegate_wire::resp::{ReplySink, parse_i64};
use smallvec::SmallVec;

use super::{range_end, say_entry, strict_id, text_of};
use crate::catalogue::Blocking;
use crate::catalogue::Timeout;
use crate::command::{integer, is, or_error};
use crate::context::Ctx;
use crate::owned::Words;
use crate::refused::Refused;
use crate::refused::SYNTAX;
use crate::visits::{self, Visits, has_small_count};

/// The ID in XREAD that means the last entry of a stream (Redis 7.4).
const LATEST: &[u8] = b"+";

/// The number of entries of a range that are collected before any is written; more are counted first.
const GATHERED: usize = 32;

pub(super) fn xlen(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = ctx.read_as::<Stream>(0).map(|stream| out.integer(stream.map_or(0, |stream| stream.len()) as i64));
    or_error(result, out);
}

/// Writes up to `max` entries from one ID to another, or in reverse.
pub(super) fn say_range(
    stream: &Stream,
    (start, end): (StreamId, StreamId),
    is_back: bool,
    max: usize,
    out: &mut dyn ReplySink,
) {
    say_each(stream, (start, end), is_back, max, out, |_| {});
}

/// Like [`say_range`]; `each` receives the ID of each entry.
pub(super) fn say_each(
    stream: &Stream,
    (start, end): (StreamId, StreamId),
    is_back: bool,
    max: usize,
    out: &mut dyn ReplySink,
    mut each: impl FnMut(StreamId),
) {
    let mut entries = stream.range(start, end, is_back).take(max);
    let gathered: SmallVec<[Entry<'_>; GATHERED]> = entries.by_ref().take(GATHERED).collect();
    let count = match gathered.len() {
        GATHERED => stream.count(start, end, max),
        count => count,
    };
    out.array(count);
    let mut say = |entry: &Entry<'_>| {
        say_entry(entry, out);
        each(entry.id);
    };
    gathered.iter().for_each(&mut say);
    if count > GATHERED {
        entries.for_each(|entry| say(&entry));
    }
}

/// The arguments of XRANGE and XREVRANGE.
struct Ranged {
    start: StreamId,
    end: StreamId,
    /// None without a limit.
    count: Option<usize>,
}

impl Ranged {
    fn parse(words: &[&[u8]], is_back: bool) -> Result<Ranged, Refused> {
        let (start, end) = if is_back { (words[3], words[2]) } else { (words[2], words[3]) };
        let (mut start, is_open) = range_end(start, 0)?;
        if is_open {
            start = start.next().ok_or("ERR invalid start ID for the interval")?;
        }
        let (mut end, is_open) = range_end(end, u64::MAX)?;
        if is_open {
            end = end.previous().ok_or("ERR invalid end ID for the interval")?;
        }
        let mut count = None;
        for option in words[4..].chunks(2) {
            match option {
                [option, number] if is(option, "count") => {
                    count = Some(usize::try_from(integer(number)?).unwrap_or(0));
                }
                _ => return Err(SYNTAX.into()),
            }
        }
        Ok(Ranged { start, end, count })
    }
}

/// Returns about how many entries XRANGE or XREVRANGE iterates over; 0 if its arguments are invalid.
fn count_ranged(words: &[&[u8]], object: &Object, is_back: bool) -> usize {
    let Some(stream) = Stream::of(object) else { return 0 };
    Ranged::parse(words, is_back)
        .map_or(0, |ranged| stream.estimate(ranged.start, ranged.end).min(ranged.count.unwrap_or(usize::MAX)))
}

pub(super) fn visits_of_xrange(words: &[&[u8]]) -> Option<Visits> {
    visits::counted(has_small_count(&words[4..]), |words, object| count_ranged(words, object, false))
}

pub(super) fn visits_of_xrevrange(words: &[&[u8]]) -> Option<Visits> {
    visits::counted(has_small_count(&words[4..]), |words, object| count_ranged(words, object, true))
}

pub(super) fn visits_of_xread(words: &[&[u8]]) -> Option<Visits> {
    let are_few = has_small_count(&words[1..]) || has_small_count(words.get(3..)?);
    visits::counted(are_few, |words, object| {
        let Some(stream) = Stream::of(object) else { return 0 };
        Read::parse(words, false).map_or(0, |read| {
            // The estimate uses the lowest of all IDs for each stream.
            let ids = words[read.ids()..].iter().filter_map(|word| after(stream, word));
            let Some(lowest) = ids.min() else { return 0 };
            stream.estimate(lowest, StreamId::MAX).min(read.count)
        })
    })
}

fn ranged(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, is_back: bool) {
    let result = Ranged::parse(ctx.words, is_back).and_then(|Ranged { start, end, count }| {
        match (ctx.read_as::<Stream>(0)?, count) {
            (None, _) => out.array(0),
            (Some(_), Some(0)) => out.null_array(),
            (Some(stream), count) => say_range(&stream, (start, end), is_back, count.unwrap_or(usize::MAX), out),
        }
        Ok(())
    });
    or_error(result, out);
}

pub(super) fn xrange(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    ranged(ctx, out, false);
}

pub(super) fn xrevrange(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    ranged(ctx, out, true);
}

/// The arguments of XREAD and XREADGROUP.
pub(super) struct Read {
    /// Milliseconds to wait, 0 for any number; none if it does not wait.
    pub(super) block_ms: Option<u64>,
    pub(super) count: usize,
    /// The index of the first key.
    pub(super) first: usize,
    /// The number of keys, and of the IDs after them.
    pub(super) number: usize,
    /// The index of the word that names the group, which the consumer's name follows; 0 for XREAD.
    pub(super) group: usize,
    /// Whether entries need no acknowledgement.
    pub(super) is_noack: bool,
}

impl Read {
    /// Parses the words of XREAD, or of XREADGROUP.
    pub(super) fn parse(words: &[&[u8]], of_group: bool) -> Result<Read, Refused> {
        let (mut block_ms, mut count, mut group, mut is_noack) = (None, usize::MAX, 0, false);
        let mut at = 1;
        while at < words.len() {
            let (word, behind) = (words[at], words.get(at + 1));
            match behind {
                Some(behind) if is(word, "block") => {
                    block_ms = Some(timeout_ms(behind)?);
                    at += 1;
                }
                Some(behind) if is(word, "count") => {
                    count = match integer(behind)? {
                        ..=0 => usize::MAX,
                        count => count as usize,
                    };
                    at += 1;
                }
                Some(_) if is(word, "streams") => {
                    let number = words.len() - at - 1;
                    if !number.is_multiple_of(2) {
                        let name = String::from_utf8_lossy(words[0]).to_lowercase();
                        let id = if of_group { '>' } else { '$' };
                        return Err(format!(
                            "ERR Unbalanced '{name}' list of streams: for each stream key an ID or '{id}' must be specified."
                        )
                        .into());
                    }
                    if of_group && group == 0 {
                        return Err("ERR Missing GROUP option for XREADGROUP".into());
                    }
                    return Ok(Read { block_ms, count, first: at + 1, number: number / 2, group, is_noack });
                }
                Some(_) if is(word, "group") && at + 2 < words.len() && of_group => {
                    group = at + 1;
                    at += 2;
                }
                _ if is(word, "noack") && of_group => is_noack = true,
                Some(_) if is(word, "group") && at + 2 < words.len() => {
                    return Err(
                        "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.".into()
                    );
                }
                _ if is(word, "noack") => {
                    return Err(
                        "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.".into()
                    );
                }
                _ => return Err(SYNTAX.into()),
            }
            at += 1;
        }
        Err(SYNTAX.into())
    }

    /// Checks that the end of the wait is a time that Redis can represent.
    pub(super) fn check_timeout(&self, now_ms: i64) -> Result<(), Refused> {
        match self.block_ms.is_some_and(|ms| i64::try_from(ms).is_ok_and(|ms| ms.checked_add(now_ms).is_none())) {
            true => Err("ERR timeout is out of range".into()),
            false => Ok(()),
        }
    }

    /// Ends an attempt that found no entries: the command waits if it was asked to, and replies null otherwise.
    pub(super) fn nothing(&self, ctx: &mut Ctx<'_>, blocking: &'static Blocking, out: &mut dyn ReplySink) {
        if self.block_ms.is_some() {
            ctx.block(blocking, out);
        } else if ctx.win() {
            out.null_array();
        }
    }

    /// Returns the deadline of a wait that begins now; the outer `None` means that the command does not wait.
    pub(super) fn deadline(&self) -> Option<Option<Instant>> {
        self.block_ms.map(|ms| match ms {
            0 => None,
            ms => Instant::now().checked_add(Duration::from_millis(ms)),
        })
    }

    /// Returns the index of the first ID.
    pub(super) fn ids(&self) -> usize {
        self.first + self.number
    }

    /// Writes the entries of some of the streams, each given by the key's index, the word's index, and the ID after
    /// which to read.
    fn say(&self, ctx: &mut Ctx<'_>, found: &[(usize, usize, StreamId)], out: &mut dyn ReplySink) {
        let is_nested = out.keyed(found.len());
        for (place, word, after) in found {
            if is_nested {
                out.array(2);
            }
            out.bulk(ctx.words[*word]);
            let start = after.next().unwrap_or(StreamId::MAX);
            match ctx.read_as::<Stream>(*place) {
                Ok(Some(stream)) => say_range(&stream, (start, StreamId::MAX), false, self.count, out),
                _ => out.array(0),
            }
        }
    }
}

/// Returns a timeout in whole milliseconds.
fn timeout_ms(word: &[u8]) -> Result<u64, Refused> {
    let ms = parse_i64(word).ok_or("ERR timeout is not an integer or out of range")?;
    u64::try_from(ms).map_err(|_| "ERR timeout is negative".into())
}

/// Returns the ID after which a client that blocks with this argument waits for entries, given the stream's present
/// state.
fn after(stream: &Stream, word: &[u8]) -> Option<StreamId> {
    match word {
        LATEST => stream.facts().last.previous(),
        word => strict_id(word).ok(),
    }
}

/// Returns whether a stream has entries after an ID.
pub(super) fn has_behind(stream: &Stream, after: StreamId) -> bool {
    stream.last_entry().is_some_and(|last| last > after)
}

pub(super) fn xread(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let read = Read::parse(words, false)?;
        if read.block_ms.is_some() {
            read.check_timeout(ctx.now.ms())?;
        }
        let mut found: SmallVec<[(usize, usize, StreamId); 4]> = SmallVec::new();
        let mut missing: SmallVec<[usize; 4]> = SmallVec::new();
        // The words with each `$` replaced by its ID, if there are any.
        let mut resolved: Option<Vec<Vec<u8>>> = None;
        for place in 0..read.number {
            let (key, word) = (read.first + place, read.ids() + place);
            let stream = ctx.read_as::<Stream>(place)?;
            let after = match words[word] {
                b"$" => {
                    let last = stream.as_ref().map_or(StreamId::MIN, |stream| stream.facts().last);
                    let words = resolved.get_or_insert_with(|| words.iter().map(|word| word.to_vec()).collect());
                    words[word] = text_of(last);
                    last
                }
                LATEST => match &stream {
                    None => StreamId::MIN,
                    Some(stream) => stream.facts().last.previous().ok_or("ERR the stream last element ID is 0-0")?,
                },
                b">" => {
                    return Err("ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.".into());
                }
                id => strict_id(id)?,
            };
            match stream {
                None => missing.push(place),
                Some(stream) if has_behind(&stream, after) => found.push((place, key, after)),
                Some(_) => {}
            }
        }
        // Redis looks up each key once more; if it is missing, that is a keyspace event of its own.
        for place in missing {
            ctx.read(place);
        }
        if !found.is_empty() {
            if ctx.win() {
                read.say(ctx, &found, out);
            }
        } else {
            if let Some(words) = resolved.filter(|_| read.block_ms.is_some()) {
                let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                ctx.resolved = Some(Box::new(Words::new(&words)));
            }
            read.nothing(ctx, &XREAD, out);
        }
        Ok(())
    })();
    or_error(result, out);
}

/// Writes the entries of the keys that woke the client.
fn serve(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = Read::parse(words, false).map(|read| {
        let mut found: SmallVec<[(usize, usize, StreamId); 4]> = SmallVec::new();
        for place in 0..read.number {
            let (word, id) = (read.first + place, words[read.ids() + place]);
            let ready = ctx.places.iter().position(|ready| words[ready.word as usize] == words[word]);
            if let Some(ready) = ready
                && let Ok(Some(stream)) = ctx.read_as::<Stream>(ready)
                && let Some(after) = after(&stream, id)
                && has_behind(&stream, after)
            {
                found.push((ready, word, after));
            }
        }
        read.say(ctx, &found, out);
    });
    or_error(result, out);
}

/// Returns whether the key's content suits a client that waits with these words.
fn suits(words: &[&[u8]], key: &[u8], object: &Object) -> bool {
    let (Some(stream), Ok(read)) = (Stream::of(object), Read::parse(words, false)) else { return false };
    let mut pairs = (0..read.number).map(|place| (words[read.first + place], words[read.ids() + place]));
    pairs.any(|(name, id)| name == key && after(stream, id).is_some_and(|after| has_behind(stream, after)))
}

fn deadline(words: &[&[u8]]) -> Result<Option<Option<Instant>>, Refused> {
    Ok(Read::parse(words, false)?.deadline())
}

pub(super) const XREAD: Blocking = Blocking {
    wants: Stream::TAG,
    timeout: Timeout::Of(deadline),
    destination: None,
    suits: Some(suits),
    fails_without: false,
    serve,
    nothing: |out| out.null_array(),
};
