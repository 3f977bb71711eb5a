//! Commands on lists, including blocking ones.
//!
//! Commands on the ends take constant time; an index or a pivot in the middle is searched from the nearer end or from
//! the start. A blocking command checks its keys like its non-blocking counterpart, and leaves a waiter
//! ([`block`](crate::block)) if there is no element; elements are later served to it by the same functions.

use sluicegate_data::object::COPIED_MAX;
use sluicegate_data::object::list::End;
use sluicegate_data::object::packed::{Element, integer as integer_of};
use sluicegate_data::object::{Kind, List};
use sluicegate_data::value::Garbage;
use sluicegate_wire::resp::{ReplySink, parse_i64};
use smallvec::SmallVec;

use super::wait::{first_filled, take_or_block};
use super::{NO_SUCH_KEY, NOT_INTEGER, Refused, SYNTAX, integer, is, or_error};
use crate::catalogue::Blocking;
use crate::catalogue::Timeout;
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::notify::Class;
use crate::visits::{self, FindVisits};

const NOT_POSITIVE: &str = "ERR value is out of range, must be positive";

fn say(element: Element<'_>, out: &mut dyn ReplySink) {
    out.bulk(element.text(&mut itoa::Buffer::new()));
}

/// LEFT or RIGHT.
fn end(word: &[u8]) -> Result<End, Refused> {
    match () {
        () if is(word, "left") => Ok(End::Head),
        () if is(word, "right") => Ok(End::Tail),
        () => Err(SYNTAX.into()),
    }
}

/// Parses a count; every invalid one has the same error, as in Redis.
fn count(word: &[u8], least: i64, error: &'static str) -> Result<usize, Refused> {
    let count = parse_i64(word).filter(|count| *count >= least).ok_or(error)?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

fn push_event(end: End) -> &'static str {
    if end == End::Head { "lpush" } else { "rpush" }
}

fn pop_event(end: End) -> &'static str {
    if end == End::Head { "lpop" } else { "rpop" }
}

/// Emits the events of removed elements of key `index`, of which `left` remain.
fn note_removal(ctx: &mut Ctx<'_>, index: usize, event: &'static str, left: usize) {
    ctx.notify(index, Class::List, event);
    if left == 0 {
        ctx.notify(index, Class::Generic, "del");
    }
}

/// Frees the part cut off a list after the stripes are unlocked.
fn free_late(ctx: &mut Ctx<'_>, cut: Option<List>) {
    if let Some(list) = cut {
        ctx.garbage.push(Garbage::Object(list.into_object()));
    }
}

/// Removes up to `max` elements from key `index`, if it exists, and writes them after `head`, which receives their
/// number. Returns the number of remaining elements.
fn take(
    ctx: &mut Ctx<'_>,
    index: usize,
    from: End,
    max: usize,
    out: &mut dyn ReplySink,
    head: impl FnOnce(usize, &mut dyn ReplySink),
) -> Result<Option<usize>, Refused> {
    let (mut cut, limits) = (None, ctx.limits());
    let left = ctx.key(index).edit_existing_as(|list: &mut List| {
        head(max.min(list.len()), out);
        cut = list.pop(from, max, &mut |element| say(element, out), limits);
        list.len()
    })?;
    free_late(ctx, cut);
    if let Some(left) = left
        && max > 0
    {
        note_removal(ctx, index, pop_event(from), left);
    }
    Ok(left)
}

fn push(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, to: End, only_if_exists: bool) {
    let (words, limits) = (&ctx.words[2..], ctx.limits());
    let add = |list: &mut List| {
        list.make_room(words, limits);
        words.iter().for_each(|word| list.push(to, word, limits));
        list.len()
    };
    let mut key = ctx.key(0);
    let result = match only_if_exists && !key.exists() {
        true => Ok(None),
        false => key.edit_as(add).map(Some),
    };
    let result = result.map(|len| {
        if len.is_some() {
            ctx.notify(0, Class::List, push_event(to));
        }
        out.integer(len.unwrap_or(0) as i64);
    });
    or_error(result, out);
}

fn lpush(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    push(ctx, out, End::Head, false);
}

fn rpush(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    push(ctx, out, End::Tail, false);
}

fn lpushx(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    push(ctx, out, End::Head, true);
}

fn rpushx(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    push(ctx, out, End::Tail, true);
}

/// Returns whether the first `count` elements from an end of key `index` are so long that the command moves to the
/// thread pool.
fn defers_taking(ctx: &mut Ctx<'_>, index: usize, from: End, count: usize) -> bool {
    let is_long = match ctx.key(index).object::<List>() {
        Ok(Some(list)) if list.bytes() > COPIED_MAX => {
            let len = |element: Element<'_>| if let Element::Bytes(bytes) = element { bytes.len() } else { 0 };
            list.iter(from).take(count).map(len).sum::<usize>() > COPIED_MAX
        }
        _ => false,
    };
    is_long && ctx.defer()
}

fn pop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, from: End, name: &str) {
    let taken = match ctx.words {
        [_, _, max] => count(max, 0, NOT_POSITIVE).unwrap_or(0),
        _ => 1,
    };
    if defers_taking(ctx, 0, from, taken) {
        return;
    }
    let result = match ctx.words {
        [_, _] => take(ctx, 0, from, 1, out, |_, _| {}).map(|left| {
            if left.is_none() {
                out.null();
            }
        }),
        [_, _, max] => count(max, 0, NOT_POSITIVE).and_then(|max| {
            let left = take(ctx, 0, from, max, out, |count, out| out.array(count))?;
            if left.is_none() {
                out.null_array();
            }
            Ok(())
        }),
        _ => Err(format!("ERR wrong number of arguments for '{name}' command").into()),
    };
    or_error(result, out);
}

fn lpop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    pop(ctx, out, End::Head, "lpop");
}

fn rpop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    pop(ctx, out, End::Tail, "rpop");
}

fn llen(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = ctx.read_as::<List>(0).map(|list| out.integer(list.map_or(0, |list| list.len()) as i64));
    or_error(result, out);
}

/// Converts a range from `first` to `last`, both included, to the index of the first element and the number of
/// elements.
fn range(first: i64, last: i64, len: usize) -> (usize, usize) {
    let len = len as i64;
    let absolute = |index: i64| if index < 0 { index + len } else { index };
    let (first, last) = (absolute(first).max(0), absolute(last).min(len - 1));
    if first > last { (0, 0) } else { (first as usize, (last - first + 1) as usize) }
}

fn lrange(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let (first, last) = (integer(words[2])?, integer(words[3])?);
        let list = ctx.read_as::<List>(0)?;
        let Some(list) = list else {
            out.array(0);
            return Ok(());
        };
        let (start, count) = range(first, last, list.len());
        out.array(count);
        list.visit(start, count, |element| say(element, out));
        Ok(())
    })();
    or_error(result, out);
}

fn lindex(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let (word, defers) = (ctx.words[2], ctx.defers);
    let result = ctx.read_as::<List>(0).and_then(|list| {
        let Some(list) = list else {
            out.null();
            return Ok(false);
        };
        let index = list.index(integer(word)?);
        match index.and_then(|index| list.get(index)) {
            Some(element) if defers && element.is_long() => return Ok(true),
            Some(element) => say(element, out),
            None => out.null(),
        }
        Ok(false)
    });
    if result == Ok(true) {
        ctx.defer();
    }
    or_error(result.map(drop), out);
}

fn lset(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let (words, limits) = (ctx.words, ctx.limits());
    let result = ctx
        .key(0)
        .edit_existing_as(|list: &mut List| {
            let index = list.index(integer(words[2])?).unwrap_or(list.len());
            if list.set(index, words[3], limits) { Ok::<(), Refused>(()) } else { Err("ERR index out of range".into()) }
        })
        .and_then(|set| set.ok_or(NO_SUCH_KEY)?)
        .map(|()| {
            ctx.notify(0, Class::List, "lset");
            out.ok();
        });
    or_error(result, out);
}

fn linsert(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let (words, limits) = (ctx.words, ctx.limits());
    let result = (|| {
        let before = match () {
            () if is(words[2], "before") => true,
            () if is(words[2], "after") => false,
            () => return Err(SYNTAX.into()),
        };
        let inserted = ctx.key(0).edit_existing_as(|list: &mut List| {
            let inserted = list.insert(words[3], before, words[4], limits);
            inserted.then(|| list.len())
        })?;
        match inserted {
            None => out.integer(0),
            Some(None) => out.integer(-1),
            Some(Some(len)) => {
                ctx.notify(0, Class::List, "linsert");
                out.integer(len as i64);
            }
        }
        Ok(())
    })();
    or_error(result, out);
}

fn lrem(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let (words, limits) = (ctx.words, ctx.limits());
    let result = integer(words[2]).and_then(|count| {
        let from = if count < 0 { End::Tail } else { End::Head };
        let max = if count == 0 { usize::MAX } else { count.unsigned_abs() as usize };
        let removed =
            ctx.key(0).edit_existing_as(|list: &mut List| (list.remove(words[3], from, max, limits), list.len()))?;
        let (removed, left) = removed.unwrap_or((0, 0));
        if removed > 0 {
            note_removal(ctx, 0, "lrem", left);
        }
        out.integer(removed as i64);
        Ok(())
    });
    or_error(result, out);
}

fn ltrim(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let (words, limits) = (ctx.words, ctx.limits());
    let result = (|| {
        let (first, last) = (integer(words[2])?, integer(words[3])?);
        let mut cut = [None, None];
        let left = ctx.key(0).edit_existing_as(|list: &mut List| {
            let (start, count) = range(first, last, list.len());
            cut[0] = list.remove_range(start + count, list.len() - start - count, limits);
            cut[1] = list.remove_range(0, start, limits);
            list.len()
        })?;
        let [behind, before] = cut;
        free_late(ctx, behind);
        free_late(ctx, before);
        if let Some(left) = left {
            note_removal(ctx, 0, "ltrim", left);
        }
        out.ok();
        Ok(())
    })();
    or_error(result, out);
}

struct Search {
    /// The first match that counts, from 1.
    rank: usize,
    from: End,
    /// The maximum number of matches, 0 for all; [`None`] for one match, which is not replied as an array.
    count: Option<usize>,
    /// Elements to compare, 0 for all.
    compared_max: usize,
}

impl Search {
    fn parse(words: &[&[u8]]) -> Result<Search, Refused> {
        let mut search = Search { rank: 1, from: End::Head, count: None, compared_max: 0 };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value = words.next();
            match value {
                Some(value) if is(word, "rank") => {
                    let rank = parse_i64(value).ok_or(NOT_INTEGER)?;
                    if rank == i64::MIN {
                        return Err(
                            "ERR value is out of range, must between -9223372036854775807 and 9223372036854775807"
                                .into(),
                        );
                    }
                    if rank == 0 {
                        return Err("ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list".into());
                    }
                    search.from = if rank < 0 { End::Tail } else { End::Head };
                    search.rank = rank.unsigned_abs() as usize;
                }
                Some(value) if is(word, "count") => {
                    search.count = Some(count(value, 0, "ERR COUNT can't be negative")?);
                }
                Some(value) if is(word, "maxlen") => {
                    search.compared_max = count(value, 0, "ERR MAXLEN can't be negative")?;
                }
                _ => return Err(SYNTAX.into()),
            }
        }
        Ok(search)
    }

    fn matches(&self, list: &List, text: &[u8]) -> Vec<usize> {
        let compared_max = if self.compared_max == 0 { usize::MAX } else { self.compared_max };
        let wanted = match self.count {
            None => 1,
            Some(0) => usize::MAX,
            Some(count) => count,
        };
        if self.from == End::Head {
            // Walking over blocks is quicker than going from element to element.
            let (mut found, mut skipped) = (Vec::new(), 0);
            list.each_index(text, |index| {
                if index >= compared_max {
                    return false;
                }
                skipped += 1;
                if skipped >= self.rank {
                    found.push(index);
                }
                found.len() < wanted
            });
            return found;
        }
        let (value, last) = (integer_of(text), list.len().wrapping_sub(1));
        let matching = list.iter(self.from).take(compared_max).enumerate();
        let matching = matching.filter(|(_, element)| element.is(text, value));
        let place = |(index, _)| last - index;
        matching.skip(self.rank - 1).take(wanted).map(place).collect()
    }
}

fn lpos(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = Search::parse(&words[3..]).and_then(|search| {
        let list = ctx.read_as::<List>(0)?;
        let found = list.map_or_else(Vec::new, |list| search.matches(&list, words[2]));
        match (search.count, found.first()) {
            (Some(_), _) => {
                out.array(found.len());
                found.iter().for_each(|index| out.integer(*index as i64));
            }
            (None, Some(index)) => out.integer(*index as i64),
            (None, None) => out.null(),
        }
        Ok(())
    });
    or_error(result, out);
}

/// Moves an element from key 0 to key 1 and writes it. Returns false, without a reply, if key 0 has no element.
fn move_one(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, from: End, to: End) -> Result<bool, Refused> {
    if ctx.key(0).object::<List>()?.is_none() {
        return Ok(false);
    }
    ctx.key(1).object::<List>()?;
    if !ctx.win() {
        return Ok(true);
    }
    let (mut text, limits) = (SmallVec::<[u8; 128]>::new(), ctx.limits());
    let add = |list: &mut List, text: &[u8]| {
        list.make_room(&[text], limits);
        list.push(to, text, limits);
    };
    let same = ctx.words[ctx.places[0].word as usize] == ctx.words[ctx.places[1].word as usize];
    let left = ctx.key(0).edit_existing_as(|list: &mut List| {
        if same {
            list.rotate(from, to, &mut |moved| text.extend_from_slice(moved), limits);
        } else {
            let mut keep = |element: Element<'_>| text.extend_from_slice(element.text(&mut itoa::Buffer::new()));
            drop(list.pop(from, 1, &mut keep, limits));
        }
        list.len()
    })?;
    if !same {
        ctx.key(1).edit_as(|list: &mut List| add(list, &text))?;
    }
    // BLMOVE and BRPOPLPUSH: a replay does not wait. Replicas of old versions know no LMOVE.
    if matches!(ctx.words[0].first(), Some(b'b' | b'B')) {
        let is_pop = ctx.words[0].eq_ignore_ascii_case(b"brpoplpush");
        let word = |end: End| if end == End::Head { &b"LEFT"[..] } else { b"RIGHT" };
        let [source, destination] = [0, 1].map(|index| ctx.words[ctx.places[index].word as usize]);
        match is_pop {
            true => ctx.record_as(&[b"RPOPLPUSH", source, destination]),
            false => ctx.record_as(&[b"LMOVE", source, destination, word(from), word(to)]),
        }
    }
    ctx.notify(1, Class::List, push_event(to));
    note_removal(ctx, 0, pop_event(from), left.unwrap_or(0));
    out.bulk(&text);
    Ok(true)
}

fn rpoplpush(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    if defers_taking(ctx, 0, End::Tail, 1) {
        return;
    }
    let result = move_one(ctx, out, End::Tail, End::Head).map(|moved| {
        if !moved {
            out.null();
        }
    });
    or_error(result, out);
}

fn lmove(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = (|| {
        let (from, to) = (end(words[3])?, end(words[4])?);
        if !defers_taking(ctx, 0, from, 1) && !move_one(ctx, out, from, to)? {
            out.null();
        }
        Ok(())
    })();
    or_error(result, out);
}

/// Parses the words of LMPOP and BLMPOP after their keys: the end and the count.
fn many_options(words: &[&[u8]], number: usize) -> Result<(End, usize), Refused> {
    let keys = count(words[number], 1, "ERR numkeys should be greater than 0")?;
    let options = words.get(number.saturating_add(1).saturating_add(keys)..).unwrap_or_default();
    let (first, rest) = options.split_first().ok_or(SYNTAX)?;
    let from = end(first)?;
    match rest {
        [] => Ok((from, 1)),
        [option, max] if is(option, "count") => Ok((from, count(max, 1, "ERR count should be greater than 0")?)),
        // The valid option is parsed before the invalid one after it is reported.
        [option, max, ..] if is(option, "count") => {
            count(max, 1, "ERR count should be greater than 0")?;
            Err(SYNTAX.into())
        }
        _ => Err(SYNTAX.into()),
    }
}

/// Returns the command that removes elements from this end.
fn pop_command(from: End) -> &'static [u8] {
    match from {
        End::Head => b"LPOP",
        End::Tail => b"RPOP",
    }
}

/// Removes elements from key `index`, which has some, and writes them with its name.
fn take_many(ctx: &mut Ctx<'_>, index: usize, from: End, max: usize, out: &mut dyn ReplySink) -> Result<(), Refused> {
    let key = ctx.words[ctx.places[index].word as usize];
    ctx.record_as(&[pop_command(from), key, itoa::Buffer::new().format(max).as_bytes()]);
    take(ctx, index, from, max, out, |count, out| {
        out.array(2);
        out.bulk(key);
        out.array(count);
    })
    .map(|_| ())
}

fn lmpop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let (from, max) = many_options(ctx.words, 1)?;
        match first_filled::<List>(ctx)? {
            Some(index) if defers_taking(ctx, index, from, max) => Ok(()),
            Some(index) => take_many(ctx, index, from, max, out),
            None => {
                out.null_array();
                Ok(())
            }
        }
    })();
    or_error(result, out);
}

/// Removes one element from key `index`, which has elements, and writes it with the key's name.
fn take_named(ctx: &mut Ctx<'_>, index: usize, from: End, out: &mut dyn ReplySink) -> Result<(), Refused> {
    let key = ctx.words[ctx.places[index].word as usize];
    ctx.record_as(&[pop_command(from), key]);
    take(ctx, index, from, 1, out, |_, out| {
        out.array(2);
        out.bulk(key);
    })
    .map(|_| ())
}

fn block_pop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, from: End, blocking: &Blocking) {
    let result = blocking
        .deadline(ctx.words)
        .and_then(|_| take_or_block::<List>(ctx, blocking, out, |ctx, index, out| take_named(ctx, index, from, out)));
    or_error(result, out);
}

fn blpop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    block_pop(ctx, out, End::Head, &BLPOP);
}

fn brpop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    block_pop(ctx, out, End::Tail, &BRPOP);
}

fn block_move(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, ends: Result<(End, End), Refused>, blocking: &Blocking) {
    let result = ends.and_then(|(from, to)| {
        blocking.deadline(ctx.words)?;
        if !move_one(ctx, out, from, to)? {
            ctx.block(blocking, out);
        }
        Ok(())
    });
    or_error(result, out);
}

fn brpoplpush(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    block_move(ctx, out, Ok((End::Tail, End::Head)), &BRPOPLPUSH);
}

fn ends(words: &[&[u8]]) -> Result<(End, End), Refused> {
    Ok((end(words[3])?, end(words[4])?))
}

fn blmove(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let ends = ends(ctx.words);
    block_move(ctx, out, ends, &BLMOVE);
}

fn blmpop(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let result = (|| {
        let (from, max) = many_options(ctx.words, 2)?;
        BLMPOP.deadline(ctx.words)?;
        take_or_block::<List>(ctx, &BLMPOP, out, |ctx, index, out| take_many(ctx, index, from, max, out))
    })();
    or_error(result, out);
}

const BLPOP: Blocking = Blocking {
    wants: List::TAG,
    timeout: Timeout::Word(-1),
    destination: None,
    suits: None,
    fails_without: false,
    serve: |ctx, out| or_error(take_named(ctx, 0, End::Head, out), out),
    nothing: |out| out.null_array(),
};

const BRPOP: Blocking = Blocking { serve: |ctx, out| or_error(take_named(ctx, 0, End::Tail, out), out), ..BLPOP };

const BRPOPLPUSH: Blocking = Blocking {
    destination: Some(2),
    serve: |ctx, out| or_error(move_one(ctx, out, End::Tail, End::Head).map(|_| ()), out),
    nothing: |out| out.null(),
    ..BLPOP
};

const BLMOVE: Blocking = Blocking {
    serve: |ctx, out| {
        let result = ends(ctx.words).and_then(|(from, to)| move_one(ctx, out, from, to).map(|_| ()));
        or_error(result, out);
    },
    ..BRPOPLPUSH
};

const BLMPOP: Blocking = Blocking {
    timeout: Timeout::Word(1),
    serve: |ctx, out| {
        let result = many_options(ctx.words, 2).and_then(|(from, max)| take_many(ctx, 0, from, max, out));
        or_error(result, out);
    },
    ..BLPOP
};

const WRITES: Flags = Flags::WRITE.and(Flags::DENYOOM);
const BLOCKS: Flags = Flags::WRITE.and(Flags::BLOCKING);

const fn row(
    name: &'static str,
    arity: i32,
    flags: Flags,
    summary: &'static str,
    complexity: &'static str,
    handle: super::Handle,
) -> CommandSpec {
    CommandSpec {
        name,
        arity,
        flags,
        summary,
        complexity,
        keys: KeyRule::ONE,
        categories: &[Category::List],
        group: "list",
        handler: Handler::Keyspace(handle),
        ..CommandSpec::EMPTY
    }
}

const fn per_element(row: CommandSpec) -> CommandSpec {
    CommandSpec { cost: Cost::PerElement, ..row }
}

const fn goes_over(visits: FindVisits, row: CommandSpec) -> CommandSpec {
    CommandSpec { visits: Some(visits), ..row }
}

const fn waits(since: &'static str, keys: KeyRule, blocking: &'static Blocking, row: CommandSpec) -> CommandSpec {
    CommandSpec { since, keys, blocking: Some(blocking), ..row }
}

const PUSHED: &str =
    "O(1) for each element added, so O(N) to add N elements when the command is called with multiple arguments.";
const POPPED: &str = "O(N) where N is the number of elements returned";
const NEARER: &str = "O(N) where N is the number of elements to traverse to get to the element at index, from the nearer end. This makes asking for the first or the last element of the list O(1).";
const KEYS_AND_COUNT: &str = "O(N+M) where N is the number of provided keys and M is the number of elements returned.";
const KEYS: &str = "O(N) where N is the number of provided keys.";

pub(super) const COMMANDS: &[CommandSpec] = &[
    waits(
        "6.2.0",
        KeyRule::TWO,
        &BLMOVE,
        row(
            "blmove",
            6,
            WRITES.and(Flags::BLOCKING),
            "Moves an element from one list to another, and waits for one if there is none.",
            "O(1)",
            blmove,
        ),
    ),
    waits(
        "7.0.0",
        KeyRule::Counted { count: 2, destination: false },
        &BLMPOP,
        row(
            "blmpop",
            -5,
            BLOCKS.and(Flags::MOVABLEKEYS),
            "Removes elements from the first list that has some, and waits for one if none has.",
            KEYS_AND_COUNT,
            blmpop,
        ),
    ),
    waits(
        "2.0.0",
        KeyRule::Range { first: 1, last: -2, step: 1 },
        &BLPOP,
        row(
            "blpop",
            -3,
            BLOCKS,
            "Removes the first element of the first list that has one, and waits if none has.",
            KEYS,
            blpop,
        ),
    ),
    waits(
        "2.0.0",
        KeyRule::Range { first: 1, last: -2, step: 1 },
        &BRPOP,
        row(
            "brpop",
            -3,
            BLOCKS,
            "Removes the last element of the first list that has one, and waits if none has.",
            KEYS,
            brpop,
        ),
    ),
    waits(
        "2.2.0",
        KeyRule::TWO,
        &BRPOPLPUSH,
        row(
            "brpoplpush",
            4,
            WRITES.and(Flags::BLOCKING),
            "Moves the last element of a list to the start of another, and waits for one if there is none.",
            "O(1)",
            brpoplpush,
        ),
    ),
    per_element(row("lindex", 3, Flags::READONLY, "Returns an element of a list by its index.", NEARER, lindex)),
    goes_over(
        visits::all,
        per_element(CommandSpec {
            since: "2.2.0",
            ..row(
                "linsert",
                5,
                WRITES,
                "Inserts an element before or after another one.",
                "O(N) where N is the number of elements to traverse before seeing the value pivot.",
                linsert,
            )
        }),
    ),
    row("llen", 2, Flags::READONLY.and(Flags::FAST), "Returns the length of a list.", "O(1)", llen),
    CommandSpec {
        since: "6.2.0",
        keys: KeyRule::TWO,
        ..row("lmove", 5, WRITES, "Moves an element from one list to another.", "O(1)", lmove)
    },
    goes_over(
        visits::behind_count,
        per_element(CommandSpec {
            since: "7.0.0",
            keys: KeyRule::Counted { count: 1, destination: false },
            ..row(
                "lmpop",
                -4,
                Flags::WRITE.and(Flags::MOVABLEKEYS),
                "Removes elements from the first list that has some.",
                KEYS_AND_COUNT,
                lmpop,
            )
        }),
    ),
    CommandSpec {
        cost: Cost::PerCount,
        visits: Some(visits::as_many),
        ..row("lpop", -2, Flags::WRITE.and(Flags::FAST), "Removes the first elements of a list.", POPPED, lpop)
    },
    goes_over(
        visits::all,
        per_element(CommandSpec {
            since: "6.0.6",
            ..row(
                "lpos",
                -3,
                Flags::READONLY,
                "Returns the indices of elements that have a value.",
                "O(N) where N is the number of elements in the list, for the average case.",
                lpos,
            )
        }),
    ),
    row("lpush", -3, WRITES.and(Flags::FAST), "Adds elements at the start of a list.", PUSHED, lpush),
    CommandSpec {
        since: "2.2.0",
        ..row(
            "lpushx",
            -3,
            WRITES.and(Flags::FAST),
            "Adds elements at the start of a list that exists.",
            PUSHED,
            lpushx,
        )
    },
    goes_over(
        visits::between,
        per_element(row(
            "lrange",
            4,
            Flags::READONLY,
            "Returns a range of elements of a list.",
            "O(S+N) where S is the distance of the start from the nearer end and N is the number of elements in the range.",
            lrange,
        )),
    ),
    goes_over(
        visits::all,
        per_element(row(
            "lrem",
            4,
            Flags::WRITE,
            "Removes elements that have a value.",
            "O(N+M) where N is the length of the list and M is the number of elements removed.",
            lrem,
        )),
    ),
    per_element(row("lset", 4, WRITES, "Sets an element of a list by its index.", NEARER, lset)),
    goes_over(
        visits::outside,
        per_element(row(
            "ltrim",
            4,
            Flags::WRITE,
            "Removes the elements at both ends of a list that are not in a range.",
            "O(N) where N is the number of elements to be removed by the operation.",
            ltrim,
        )),
    ),
    CommandSpec {
        cost: Cost::PerCount,
        visits: Some(visits::as_many),
        ..row("rpop", -2, Flags::WRITE.and(Flags::FAST), "Removes the last elements of a list.", POPPED, rpop)
    },
    CommandSpec {
        since: "1.2.0",
        keys: KeyRule::TWO,
        ..row("rpoplpush", 3, WRITES, "Moves the last element of a list to the start of another.", "O(1)", rpoplpush)
    },
    row("rpush", -3, WRITES.and(Flags::FAST), "Adds elements at the end of a list.", PUSHED, rpush),
    CommandSpec {
        since: "2.2.0",
        ..row("rpushx", -3, WRITES.and(Flags::FAST), "Adds elements at the end of a list that exists.", PUSHED, rpushx)
    },
];
