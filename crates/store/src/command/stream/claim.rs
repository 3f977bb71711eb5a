//! Commands about pending entries: XACK, XPENDING, XCLAIM and XAUTOCLAIM.
//!
//! XCLAIM and XAUTOCLAIM first change all entries and then reply them: the number of elements precedes them, and no entry
//! of the stream itself changes.

use sluicegate_data::object::stream::{Group, Pending, Stream, StreamId};
use sluicegate_data::object::{Kind, Object};
use sluicegate_wire::resp::{ReplySink, parse_i64};
use smallvec::SmallVec;

use super::{range_end, say_entry, say_id, strict_id, text_of};
use crate::command::{integer, is, or_error};
use crate::context::Ctx;
use crate::notify::Class;
use crate::refused::{Refused, SYNTAX, c_string};
use crate::visits::{self, ELEMENTS_MAX, Visits};

/// The default COUNT of XAUTOCLAIM.
const CLAIMED: usize = 100;
/// The number of entries that XAUTOCLAIM examines for each that it may claim.
const EXAMINED_PER_CLAIM: usize = 10;
/// The highest COUNT of XAUTOCLAIM: Redis allocates 16 bytes for each.
const CLAIMED_MAX: i64 = i64::MAX / 16;

type Ids = SmallVec<[StreamId; 8]>;

fn no_group(key: &[u8], group: &[u8]) -> Refused {
    let [key, group] = [key, group].map(|word| c_string(word, word.len()));
    [b"NOGROUP No such key '", key, b"' or consumer group '", group, b"'"].concat().into()
}

pub(super) fn xack(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let mut key = ctx.key(0);
        key.note_read_aloud();
        let acknowledge = |stream: &mut Stream| {
            stream.edit_group(words[2], |_, group| {
                // All IDs are parsed first: if one is invalid, no entry is acknowledged.
                let ids: Ids = words[3..].iter().map(|word| strict_id(word)).collect::<Result<_, _>>()?;
                Ok::<usize, Refused>(ids.into_iter().filter(|id| group.acknowledge(*id)).count())
            })
        };
        let acknowledged = key.edit_existing_as(acknowledge)?.flatten().unwrap_or(Ok(0))?;
        if acknowledged > 0 {
            ctx.note_change(0);
        }
        out.integer(acknowledged as i64);
        Ok(())
    })();
    or_error(result, out);
}

/// The arguments of XPENDING that ask for single entries.
struct Listed<'w> {
    idle_ms: i64,
    start: StreamId,
    end: StreamId,
    count: usize,
    consumer: Option<&'w [u8]>,
}

impl<'w> Listed<'w> {
    /// Parses the words; none if the command asks for a summary.
    fn parse(words: &[&'w [u8]]) -> Result<Option<Listed<'w>>, Refused> {
        let (idle_ms, rest) = match words.len() {
            3 => return Ok(None),
            6..=9 if is(words[3], "idle") => {
                let idle_ms = integer(words[4])?;
                (idle_ms, words.get(5..).filter(|rest| rest.len() >= 3).ok_or(SYNTAX)?)
            }
            6..=9 => (0, &words[3..]),
            _ => return Err(SYNTAX.into()),
        };
        let count = usize::try_from(integer(rest[2])?).unwrap_or(0);
        let (start, end) = interval(rest[0], rest[1])?;
        Ok(Some(Listed { idle_ms, start, end, count, consumer: rest.get(3).copied() }))
    }
}

/// Parses the two ends of a range; the first error is that of the start.
fn interval(start: &[u8], end: &[u8]) -> Result<(StreamId, StreamId), Refused> {
    let start = interval_start(start)?;
    let (end, is_open) = range_end(end, u64::MAX)?;
    let end = if is_open { end.previous().ok_or("ERR invalid end ID for the interval")? } else { end };
    Ok((start, end))
}

fn interval_start(word: &[u8]) -> Result<StreamId, Refused> {
    let (start, is_open) = range_end(word, 0)?;
    Ok(if is_open { start.next().ok_or("ERR invalid start ID for the interval")? } else { start })
}

pub(super) fn xpending(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let listed = Listed::parse(words)?;
        let now_ms = ctx.now.ms();
        let stream = ctx.read_as::<Stream>(0)?;
        let group = stream.as_ref().and_then(|stream| stream.groups().get(words[2]));
        let group = group.ok_or_else(|| no_group(words[1], words[2]))?;
        match listed {
            None => say_summary(group, out),
            Some(listed) => say_pending(group, &listed, now_ms, out),
        }
        Ok(())
    })();
    or_error(result, out);
}

fn say_summary(group: &Group, out: &mut dyn ReplySink) {
    out.array(4);
    out.integer(group.pending_len() as i64);
    let Some((first, last)) = group.pending_ends() else {
        out.null();
        out.null();
        out.null_array();
        return;
    };
    say_id(first, out);
    say_id(last, out);
    let busy = || group.consumers().filter(|consumer| consumer.pending_len() > 0);
    out.array(busy().count());
    for consumer in busy() {
        out.array(2);
        out.bulk(consumer.name());
        out.bulk(itoa::Buffer::new().format(consumer.pending_len()).as_bytes());
    }
}

fn say_pending(group: &Group, listed: &Listed<'_>, now_ms: i64, out: &mut dyn ReplySink) {
    let is_listed = |(_, pending): &(StreamId, Pending)| {
        listed.idle_ms == 0 || now_ms.wrapping_sub(pending.delivered_ms) >= listed.idle_ms
    };
    let own = listed.consumer.map(|name| group.find(name));
    let found: Vec<(StreamId, Pending)> = match own {
        Some(None) => Vec::new(),
        Some(Some(consumer)) => {
            let ids = group.consumer(consumer).pending_from(listed.start).take_while(|id| **id <= listed.end);
            let pending = ids.filter_map(|id| Some((*id, *group.pending_of(*id)?)));
            pending.filter(is_listed).take(listed.count).collect()
        }
        None => {
            let pending = group.pending_from(listed.start).take_while(|(id, _)| **id <= listed.end);
            pending.map(|(id, pending)| (*id, *pending)).filter(is_listed).take(listed.count).collect()
        }
    };
    out.array(found.len());
    for (id, pending) in &found {
        out.array(4);
        say_id(*id, out);
        out.bulk(group.owner(pending).name());
        out.integer(now_ms.wrapping_sub(pending.delivered_ms).max(0));
        out.integer(pending.count as i64);
    }
}

/// The arguments of XCLAIM.
struct Claim {
    idle_ms: i64,
    ids: Ids,
    delivered_ms: i64,
    /// The number of deliveries to set.
    count: Option<u64>,
    /// Whether entries that are not pending become so.
    is_forced: bool,
    /// Whether the reply has only IDs, and the number of deliveries stays.
    is_only_ids: bool,
    last: StreamId,
}

impl Claim {
    fn parse(words: &[&[u8]], now_ms: i64) -> Result<Claim, Refused> {
        let number = |word: &[u8], text: &'static str| parse_i64(word).ok_or(Refused::from(text));
        let idle_ms = number(words[4], "ERR Invalid min-idle-time argument for XCLAIM")?.max(0);
        // Options begin with the first word that is not an ID.
        let ids: Ids = words[5..].iter().map_while(|word| strict_id(word).ok()).collect();
        // -1 is what Redis takes for a time that is not given.
        let (mut delivered_ms, mut count) = (-1_i64, -1);
        let (mut is_forced, mut is_only_ids, mut last) = (false, false, StreamId::MIN);
        let mut rest = words[5 + ids.len()..].iter();
        while let Some(word) = rest.next() {
            let argument = rest.as_slice().first();
            match argument {
                _ if is(word, "force") => is_forced = true,
                _ if is(word, "justid") => is_only_ids = true,
                Some(idle) if is(word, "idle") => {
                    let idle_ms = number(idle, "ERR Invalid IDLE option argument for XCLAIM")?;
                    delivered_ms = now_ms.wrapping_sub(idle_ms);
                    rest.next();
                }
                Some(time) if is(word, "time") => {
                    delivered_ms = number(time, "ERR Invalid TIME option argument for XCLAIM")?;
                    rest.next();
                }
                Some(number_of) if is(word, "retrycount") => {
                    count = number(number_of, "ERR Invalid RETRYCOUNT option argument for XCLAIM")?;
                    rest.next();
                }
                Some(id) if is(word, "lastid") => {
                    last = strict_id(id)?;
                    rest.next();
                }
                _ => {
                    let word = c_string(word, word.len());
                    return Err([b"ERR Unrecognized XCLAIM option '", word, b"'"].concat().into());
                }
            }
        }
        if !(0..=now_ms).contains(&delivered_ms) {
            delivered_ms = now_ms;
        }
        Ok(Claim { idle_ms, ids, delivered_ms, count: u64::try_from(count).ok(), is_forced, is_only_ids, last })
    }

    /// Moves the entries to a consumer. Returns the claimed ones.
    fn run(&self, stream: &Stream, group: &mut Group, consumer: &[u8], now_ms: i64) -> Claimed {
        group.raise_last(self.last);
        let (consumer, is_new) = group.see(consumer, now_ms);
        let mut claimed = Claimed { is_new, ..Claimed::default() };
        for id in &self.ids {
            if stream.entry(*id).is_none() {
                if group.acknowledge(*id) {
                    claimed.deleted.push(*id);
                }
                continue;
            }
            let old_count = match group.pending_of(*id) {
                None if !self.is_forced => continue,
                // Redis makes such an entry pending with one delivery before it claims it.
                None => 1,
                Some(pending) if is_fresh(pending, self.idle_ms, now_ms) => continue,
                Some(pending) => pending.count,
            };
            let count = self.count.unwrap_or(old_count.wrapping_add(u64::from(!self.is_only_ids)));
            group.assign(*id, consumer, self.delivered_ms, count);
            claimed.ids.push(*id);
        }
        if !claimed.ids.is_empty() {
            group.note_success(consumer, now_ms);
        }
        claimed
    }
}

/// Returns whether an entry was delivered too recently to be claimed.
fn is_fresh(pending: &Pending, idle_ms: i64, now_ms: i64) -> bool {
    idle_ms > 0 && now_ms.wrapping_sub(pending.delivered_ms) < idle_ms
}

/// The result of a claim.
#[derive(Default)]
struct Claimed {
    ids: Ids,
    /// Entries that were pending and do not exist any more.
    deleted: Ids,
    /// The ID at which to continue.
    next: StreamId,
    /// Whether the consumer was added.
    is_new: bool,
}

/// Writes claimed entries, or only their IDs.
fn say_claimed(stream: &Stream, ids: &[StreamId], is_only_ids: bool, out: &mut dyn ReplySink) {
    out.array(ids.len());
    for id in ids {
        match stream.entry(*id).filter(|_| !is_only_ids) {
            Some(entry) => say_entry(&entry, out),
            None => say_id(*id, out),
        }
    }
}

/// Records that a consumer was added.
pub(super) fn record_consumer(ctx: &mut Ctx<'_>, key: &[u8], group: &[u8], consumer: &[u8]) {
    ctx.record_as(&[b"XGROUP", b"CREATECONSUMER", key, group, consumer]);
}

/// Records up to where a group has read.
pub(super) fn record_position(ctx: &mut Ctx<'_>, key: &[u8], group: &[u8], last: StreamId, read: i64) {
    if ctx.records() {
        let read = read.to_string();
        ctx.record_as(&[b"XGROUP", b"SETID", key, group, &text_of(last), b"ENTRIESREAD", read.as_bytes()]);
    }
}

/// Records the state of pending entries of key `index`, whose name is `key`.
pub(super) fn record_pending(ctx: &mut Ctx<'_>, index: usize, key: &[u8], group: &[u8], ids: &[StreamId]) {
    if !ctx.records() || ids.is_empty() {
        return;
    }
    // Entries with the same state are recorded together.
    let mut states: Vec<(Vec<u8>, Pending, Vec<Vec<u8>>)> = Vec::new();
    let mut last = StreamId::MIN;
    if let Some(stream) = ctx.key(index).object::<Stream>().ok().flatten()
        && let Some(found) = stream.groups().get(group)
    {
        last = found.last();
        for id in ids {
            let Some(pending) = found.pending_of(*id) else { continue };
            let (owner, text) = (found.owner(pending).name(), text_of(*id));
            let is_like = |(name, other, ids): &&mut (Vec<u8>, Pending, Vec<Vec<u8>>)| {
                name == owner
                    && (other.delivered_ms, other.count) == (pending.delivered_ms, pending.count)
                    && ids.len() < RECORDED_MAX
            };
            match states.last_mut().filter(is_like) {
                Some((.., ids)) => ids.push(text),
                None => states.push((owner.to_vec(), *pending, vec![text])),
            }
        }
    }
    for (owner, pending, ids) in states {
        let [time, count] = [pending.delivered_ms.to_string(), pending.count.to_string()];
        let last = text_of(last);
        let head = [&b"XCLAIM"[..], key, group, &owner, b"0"].into_iter();
        let tail = [&b"TIME"[..], time.as_bytes(), b"RETRYCOUNT", count.as_bytes(), b"FORCE", b"JUSTID", b"LASTID"];
        let words = head.chain(ids.iter().map(Vec::as_slice)).chain(tail).chain([&last[..]]);
        ctx.record_as(&words.collect::<Vec<&[u8]>>());
    }
}

/// The maximum number of entries that one command records.
const RECORDED_MAX: usize = 1024;

/// Carries out a claim on key 0, whose access is recorded already: `claim` changes the group and `say` writes the reply.
fn claim(
    ctx: &mut Ctx<'_>,
    claim: impl FnOnce(&Stream, &mut Group, i64) -> Result<Claimed, Refused>,
    say: impl FnOnce(&Stream, &Claimed),
) -> Result<(), Refused> {
    let words = ctx.words;
    let now_ms = ctx.now.ms();
    let claimed = ctx.key(0).edit_existing_as(|stream: &mut Stream| {
        stream.edit_group(words[2], |stream, group| {
            let before = group.last();
            let claimed = claim(stream, group, now_ms)?;
            say(stream, &claimed);
            let moved = (group.last() != before).then(|| (group.last(), group.stored_read()));
            Ok((claimed, moved))
        })
    })?;
    let (claimed, moved) = claimed.flatten().unwrap_or_else(|| Err(no_group(words[1], words[2])))?;
    if claimed.is_new {
        record_consumer(ctx, words[1], words[2], words[3]);
        ctx.announce(0, Class::Stream, "xgroup-createconsumer");
    }
    if ctx.records() {
        // Entries that do not exist any more.
        if !claimed.deleted.is_empty() {
            let ids: Vec<Vec<u8>> = claimed.deleted.iter().copied().map(text_of).collect();
            let head = [&b"XACK"[..], words[1], words[2]].into_iter();
            ctx.record_as(&head.chain(ids.iter().map(Vec::as_slice)).collect::<Vec<&[u8]>>());
        }
        if let Some((last, read)) = moved {
            record_position(ctx, words[1], words[2], last, read);
        }
        record_pending(ctx, 0, words[1], words[2], &claimed.ids);
    }
    if !claimed.ids.is_empty() || !claimed.deleted.is_empty() {
        ctx.note_change(0);
    }
    Ok(())
}

pub(super) fn xclaim(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    ctx.key(0).note_read_aloud();
    let is_only_ids = std::cell::Cell::new(false);
    let run = |stream: &Stream, group: &mut Group, now_ms: i64| {
        let claim = Claim::parse(words, now_ms)?;
        is_only_ids.set(claim.is_only_ids);
        Ok(claim.run(stream, group, words[3], now_ms))
    };
    let result = claim(ctx, run, |stream, claimed| say_claimed(stream, &claimed.ids, is_only_ids.get(), out));
    or_error(result, out);
}

/// The arguments of XAUTOCLAIM.
struct Scan {
    idle_ms: i64,
    start: StreamId,
    count: usize,
    is_only_ids: bool,
}

impl Scan {
    fn parse(words: &[&[u8]]) -> Result<Scan, Refused> {
        let idle_ms = parse_i64(words[4]).ok_or("ERR Invalid min-idle-time argument for XAUTOCLAIM")?.max(0);
        let mut scan = Scan { idle_ms, start: interval_start(words[5])?, count: CLAIMED, is_only_ids: false };
        let mut rest = words[6..].iter();
        while let Some(word) = rest.next() {
            let argument = rest.as_slice().first();
            match argument {
                Some(count) if is(word, "count") => {
                    let count = parse_i64(count).filter(|count| (1..=CLAIMED_MAX).contains(count));
                    scan.count = count.ok_or("ERR COUNT must be > 0")? as usize;
                    rest.next();
                }
                _ if is(word, "justid") => scan.is_only_ids = true,
                _ => return Err(SYNTAX.into()),
            }
        }
        Ok(scan)
    }

    fn run(&self, stream: &Stream, group: &mut Group, consumer: &[u8], now_ms: i64) -> Claimed {
        let (consumer, is_new) = group.see(consumer, now_ms);
        let mut claimed = Claimed { is_new, ..Claimed::default() };
        let mut at = Some(self.start);
        for _ in 0..self.count.saturating_mul(EXAMINED_PER_CLAIM) {
            if claimed.ids.len() + claimed.deleted.len() == self.count {
                break;
            }
            let Some((id, pending)) = at.and_then(|at| group.pending_from(at).next()) else { break };
            let (id, pending) = (*id, *pending);
            at = id.next();
            if stream.entry(id).is_none() {
                group.acknowledge(id);
                claimed.deleted.push(id);
            } else if !is_fresh(&pending, self.idle_ms, now_ms) {
                group.assign(id, consumer, now_ms, pending.count.wrapping_add(u64::from(!self.is_only_ids)));
                claimed.ids.push(id);
            }
        }
        if !claimed.ids.is_empty() {
            group.note_success(consumer, now_ms);
        }
        let next = at.and_then(|at| group.pending_from(at).next());
        claimed.next = next.map_or(StreamId::MIN, |(id, _)| *id);
        claimed
    }
}

pub(super) fn xautoclaim(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    // Redis looks up the key before it parses the arguments.
    ctx.key(0).note_read_aloud();
    let result = Scan::parse(words).and_then(|scan| {
        let run = |stream: &Stream, group: &mut Group, now_ms: i64| Ok(scan.run(stream, group, words[3], now_ms));
        claim(ctx, run, |stream, claimed| {
            out.array(3);
            say_id(claimed.next, out);
            say_claimed(stream, &claimed.ids, scan.is_only_ids, out);
            out.array(claimed.deleted.len());
            claimed.deleted.iter().for_each(|id| say_id(*id, out));
        })
    });
    or_error(result, out);
}

/// Returns the group that word 2 names.
fn group_of<'o>(words: &[&[u8]], object: &'o Object) -> Option<&'o Group> {
    Stream::of(object)?.groups().get(words[2])
}

/// XPENDING iterates over entries, over all that are not idle long enough, or over the consumers.
pub(super) fn visits_of_xpending(words: &[&[u8]]) -> Option<Visits> {
    let listed = Listed::parse(words).ok()?;
    let are_few = listed.is_some_and(|listed| listed.idle_ms == 0 && listed.count <= ELEMENTS_MAX);
    visits::counted(are_few, |words, object| {
        let (Some(group), Ok(listed)) = (group_of(words, object), Listed::parse(words)) else { return 0 };
        match listed {
            None => group.consumers().len(),
            Some(listed) if listed.idle_ms == 0 => group.pending_len().min(listed.count),
            Some(_) => group.pending_len(),
        }
    })
}

pub(super) fn visits_of_xautoclaim(words: &[&[u8]]) -> Option<Visits> {
    let examined = Scan::parse(words).ok()?.count.saturating_mul(EXAMINED_PER_CLAIM);
    visits::counted(examined <= ELEMENTS_MAX, |words, object| {
        let examined = Scan::parse(words).map_or(0, |scan| scan.count.saturating_mul(EXAMINED_PER_CLAIM));
        group_of(words, object).map_or(0, |group| group.pending_len().min(examined))
    })
}
