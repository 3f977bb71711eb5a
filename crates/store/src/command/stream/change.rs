//! Commands that change a stream: XADD, XDEL, XTRIM and XSETID.

use sluicegate_data::object::Kind;
use sluicegate_data::object::limits::Limits;
use sluicegate_data::object::stream::{BYTES_MAX, Keep, Stream, StreamId, Trim};
use sluicegate_data::value::Garbage;
use sluicegate_wire::resp::ReplySink;

use super::{Said, Seq, say_id, strict_id, text_of};
use crate::command::{integer, is, or_error};
use crate::context::Ctx;
use crate::notify::Class;
use crate::refused::NO_SUCH_KEY;
use crate::refused::Refused;
use crate::refused::SYNTAX;

/// The default limit of what `~` removes: the entries of this many nodes, or `ROUGH_ENTRIES` if a node's entries are
/// not limited; never more than `ROUGH_ENTRIES_MAX`.
const ROUGH_NODES: i64 = 100;
const ROUGH_ENTRIES: i64 = 10_000;
const ROUGH_ENTRIES_MAX: i64 = 1_000_000;

/// The options of XADD and XTRIM, which precede the entry.
struct Options {
    /// The ID of XADD; none for `*`.
    id: Option<Said>,
    only_if_exists: bool,
    trim: Option<Trim>,
    /// The position of the first word after the options: the ID, if there is one.
    end: usize,
}

impl Options {
    fn parse(words: &[&[u8]], adds: bool, limits: &Limits) -> Result<Options, Refused> {
        let (mut id, mut only_if_exists, mut keep, mut is_rough, mut limit) = (None, false, None, false, None);
        let mut at = 2;
        while at < words.len() {
            let (word, behind) = (words[at], &words[at + 1..]);
            if adds && word == b"*" {
                break;
            } else if (is(word, "maxlen") || is(word, "minid")) && !behind.is_empty() {
                if keep.is_some() {
                    return Err("ERR syntax error, MAXLEN and MINID options at the same time are not compatible".into());
                }
                let has_sign = behind.len() >= 2 && matches!(behind[0], b"~" | b"=");
                is_rough = has_sign && behind[0] == b"~";
                let threshold = behind[usize::from(has_sign)];
                keep = Some(match is(word, "maxlen") {
                    true => {
                        let len = integer(threshold)?;
                        Keep::Last(u64::try_from(len).map_err(|_| "ERR The MAXLEN argument must be >= 0.")?)
                    }
                    false => Keep::From(strict_id(threshold)?),
                });
                at += 1 + usize::from(has_sign);
            } else if is(word, "limit") && !behind.is_empty() {
                let count = integer(behind[0])?;
                limit = Some(u64::try_from(count).map_err(|_| "ERR The LIMIT argument must be >= 0.")?);
                at += 1;
            } else if adds && is(word, "nomkstream") {
                only_if_exists = true;
            } else if adds {
                id = Some(Said::parse(word, true)?);
                break;
            } else {
                return Err(SYNTAX.into());
            }
            at += 1;
        }
        if limit.is_some_and(|limit| limit > 0) && keep.is_none() {
            return Err("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy".into());
        }
        if !adds && keep.is_none() {
            return Err("ERR syntax error, XTRIM must be called with a trimming strategy".into());
        }
        let limit = match limit {
            Some(_) if !is_rough => {
                return Err("ERR syntax error, LIMIT cannot be used without the special ~ option".into());
            }
            Some(limit) => limit,
            None if is_rough => rough_limit(limits),
            None => 0,
        };
        let trim = keep.map(|keep| Trim { keep, is_rough, limit });
        Ok(Options { id, only_if_exists, trim, end: at })
    }
}

/// Returns the default maximum of entries that `~` removes.
fn rough_limit(limits: &Limits) -> u64 {
    match limits.stream_node_entries.get().saturating_mul(ROUGH_NODES) {
        ..=0 => ROUGH_ENTRIES as u64,
        entries => entries.min(ROUGH_ENTRIES_MAX) as u64,
    }
}

/// Returns the ID of an entry that is added at `now_ms` to a stream whose last ID is `last`.
fn next_id(last: StreamId, said: Option<Said>, now_ms: u64) -> Result<StreamId, Refused> {
    const NOT_ABOVE: &str = "ERR The ID specified in XADD is equal or smaller than the target stream top item";
    if last == StreamId::MAX {
        return Err("ERR The stream has exhausted the last possible ID, unable to add more items".into());
    }
    let id = match said {
        None if now_ms > last.ms => Some(StreamId { ms: now_ms, seq: 0 }),
        None => last.next(),
        Some(Said { ms, seq: Some(Seq::Next) }) if ms == last.ms => {
            last.seq.checked_add(1).map(|seq| StreamId { ms, seq })
        }
        Some(said) => Some(said.or(0)),
    };
    id.filter(|id| *id > last).ok_or(NOT_ABOVE.into())
}

/// Records that an entry was added to key 0, and what remained of the others.
fn record_added(ctx: &mut Ctx<'_>, options: &Options, id: StreamId, entry: &[&[u8]]) {
    if ctx.records() {
        ctx.record_as(&[&[b"XADD", ctx.words[1], &text_of(id)], entry].concat());
        if options.trim.is_some() {
            record_trimmed(ctx);
        }
    }
}

/// Records that key 0 was trimmed to the length that it has now.
fn record_trimmed(ctx: &mut Ctx<'_>) {
    if ctx.records() {
        let len = ctx.key(0).object::<Stream>().ok().flatten().map_or(0, |stream| stream.len());
        ctx.record_as(&[b"XTRIM", ctx.words[1], b"MAXLEN", b"=", len.to_string().as_bytes()]);
    }
}

/// Queues the part that was trimmed, which is freed after the stripes are unlocked.
fn free_late(ctx: &mut Ctx<'_>, cut: Option<Stream>) {
    ctx.garbage.extend(cut.map(|stream| Garbage::Object(stream.into_object())));
}

pub(super) fn xadd(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let (words, limits) = (ctx.words, ctx.limits());
    let result = (|| {
        let options = Options::parse(words, true, limits)?;
        let entry = words.get(options.end + 1..).unwrap_or_default();
        if entry.is_empty() || !entry.len().is_multiple_of(2) {
            return Err("ERR wrong number of arguments for 'xadd' command".into());
        }
        if options.id == Some(Said { ms: 0, seq: None })
            || options.id == Some(Said { ms: 0, seq: Some(Seq::Number(0)) })
        {
            return Err("ERR The ID specified in XADD must be greater than 0-0".into());
        }
        let now_ms = ctx.now.ms();
        let mut key = ctx.key(0);
        if !key.exists() && options.only_if_exists {
            out.null();
            return Ok(());
        }
        if entry.iter().map(|word| word.len()).sum::<usize>() > BYTES_MAX {
            key.object::<Stream>()?;
            return Err("ERR Elements are too large to be stored".into());
        }
        let (id, trimmed, cut) = key.edit_as(|stream: &mut Stream| {
            let id = next_id(stream.facts().last, options.id, now_ms as u64)?;
            stream.add(id, entry, limits);
            let (trimmed, cut) = options.trim.map_or((0, None), |trim| stream.trim(trim));
            Ok::<_, Refused>((id, trimmed, cut))
        })??;
        key.wake();
        free_late(ctx, cut);
        record_added(ctx, &options, id, entry);
        say_id(id, out);
        ctx.notify(0, Class::Stream, "xadd");
        if trimmed > 0 {
            ctx.notify(0, Class::Stream, "xtrim");
        }
        Ok(())
    })();
    or_error(result, out);
}

pub(super) fn xtrim(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = Options::parse(ctx.words, false, ctx.limits()).and_then(|options| {
        let trim = options.trim.ok_or(SYNTAX)?;
        let trimmed = ctx.key(0).edit_existing_as(|stream: &mut Stream| stream.trim(trim))?;
        let (removed, cut) = trimmed.unwrap_or((0, None));
        free_late(ctx, cut);
        if removed > 0 {
            if trim.is_rough {
                record_trimmed(ctx);
            }
            ctx.notify(0, Class::Stream, "xtrim");
        }
        out.integer(removed as i64);
        Ok(())
    });
    or_error(result, out);
}

pub(super) fn xdel(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let removed = ctx.key(0).edit_existing_as(|stream: &mut Stream| {
        // All IDs are parsed first: if one is invalid, no entry is deleted.
        let ids: Vec<StreamId> = words[2..].iter().map(|word| strict_id(word)).collect::<Result<_, _>>()?;
        Ok::<usize, Refused>(stream.delete(&ids))
    });
    let result = removed.and_then(|removed| removed.unwrap_or(Ok(0))).map(|removed| {
        if removed > 0 {
            ctx.notify(0, Class::Stream, "xdel");
        }
        out.integer(removed as i64);
    });
    or_error(result, out);
}

/// The properties that XSETID sets in addition to the last ID.
#[derive(Default)]
struct Facts {
    added: Option<u64>,
    max_deleted: Option<StreamId>,
}

impl Facts {
    fn parse(words: &[&[u8]], last: StreamId) -> Result<Facts, Refused> {
        let mut facts = Facts::default();
        for pair in words.chunks(2) {
            match pair {
                [option, count] if is(option, "entriesadded") => {
                    let count = integer(count)?;
                    facts.added = Some(u64::try_from(count).map_err(|_| "ERR entries_added must be positive")?);
                }
                [option, id] if is(option, "maxdeletedid") => {
                    let id = strict_id(id)?;
                    if last < id {
                        return Err(
                            "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id".into()
                        );
                    }
                    facts.max_deleted = Some(id).filter(|id| *id != StreamId::MIN);
                }
                _ => return Err(SYNTAX.into()),
            }
        }
        Ok(facts)
    }

    fn fit(&self, last: StreamId, stream: &Stream) -> Result<(), Refused> {
        if last < stream.facts().max_deleted {
            return Err("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id".into());
        }
        if stream.last_entry().is_some_and(|top| last < top) {
            return Err("ERR The ID specified in XSETID is smaller than the target stream top item".into());
        }
        if self.added.is_some_and(|added| (stream.len() as u64) > added) {
            return Err("ERR The entries_added specified in XSETID is smaller than the target stream length".into());
        }
        Ok(())
    }
}

pub(super) fn xsetid(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let last = strict_id(words[2])?;
        let facts = Facts::parse(&words[3..], last)?;
        let set = ctx.key(0).edit_existing_as(|stream: &mut Stream| {
            facts.fit(last, stream)?;
            stream.set_facts(last, facts.added, facts.max_deleted);
            Ok::<(), Refused>(())
        })?;
        set.ok_or(NO_SUCH_KEY)??;
        out.ok();
        // As in Redis, this is no change for clients that watch the key.
        ctx.announce(0, Class::Stream, "xsetid");
        Ok(())
    })();
    or_error(result, out);
}
