//! SORT and SORT_RO.
//!
//! They sort the elements of a list, a set or a sorted set, by number or by bytes (Redis in the C locale). The sort
//! keys are the elements themselves (a `BY` without `*` asks for no order), or what `BY` refers to: the value of
//! another key or a field of another hash. The reply has the elements or what `GET` refers to. Sorting by the elements
//! is done in one go under the key's lock. With patterns that refer to other keys the command is a section that
//! acquires them as it finds them ([`undeclared`](crate::undeclared)); the source is read, and everything is sorted,
//! without a lock.
//!
//! With `ALPHA` texts are C strings, which end at a NUL, unless the result is stored. Elements of equal texts keep
//! their order, as in Redis, whose sort is stable except for `BY` other keys with a `LIMIT`.

use std::cmp::Ordering;

use sluicegate_data::object::elements::TIMELESS;
use sluicegate_data::object::limits::Limits;
use sluicegate_data::object::list::End;
use sluicegate_data::object::{Kind, List, Object, score};
use sluicegate_data::value::Value;
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{ReplyBuilder, ReplySink};

use super::{Refused, SYNTAX, WRONG_TYPE, integer, is, or_error};
use crate::Inner;
use crate::catalogue::Keys;
use crate::catalogue::OtherKeys;
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler, Records, Rows, WrittenKeys};
use crate::context::Ctx;
use crate::keys::{KeyRule, KeyWord};
use crate::notify::Class;
use crate::refused::SectionError;
use crate::visits::Visits;

const NO_NUMBERS: &str = "ERR One or more scores can't be converted into double";

/// The options of a command.
struct Options<'a> {
    descending: bool,
    alpha: bool,
    limit: Option<(i64, i64)>,
    by: Option<&'a [u8]>,
    gets: Vec<&'a [u8]>,
    stores: bool,
}

impl<'a> Options<'a> {
    fn parse(words: &[&'a [u8]], may_store: bool) -> Result<Options<'a>, Refused> {
        let mut options =
            Options { descending: false, alpha: false, limit: None, by: None, gets: Vec::new(), stores: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match words.as_slice() {
                _ if is(word, "asc") => options.descending = false,
                _ if is(word, "desc") => options.descending = true,
                _ if is(word, "alpha") => options.alpha = true,
                [start, count, ..] if is(word, "limit") => {
                    options.limit = Some((integer(start)?, integer(count)?));
                    words.nth(1);
                }
                [pattern, ..] if is(word, "by") => {
                    // As in Redis, a pattern that disables sorting stays in effect whatever follows.
                    if options.by.is_none_or(|by| Pattern::parse(by).is_some()) {
                        options.by = Some(pattern);
                    }
                    words.next();
                }
                [pattern, ..] if is(word, "get") => {
                    options.gets.push(pattern);
                    words.next();
                }
                [_, ..] if may_store && is(word, "store") => {
                    options.stores = true;
                    words.next();
                }
                _ => return Err(SYNTAX.into()),
            }
        }
        Ok(options)
    }

    /// Returns the pattern of the sort keys.
    fn weights(&self) -> Option<Pattern<'a>> {
        self.by.and_then(Pattern::parse)
    }

    /// Returns whether no order is requested.
    fn unordered(&self) -> bool {
        self.by.is_some() && self.weights().is_none()
    }

    /// Returns whether a pattern refers to other keys.
    fn leads(&self) -> bool {
        self.weights().is_some() || self.gets.iter().any(|get| !is_itself(get))
    }

    /// Returns the order of two texts.
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        let order = if self.stores { a.cmp(b) } else { up_to_nul(a).cmp(up_to_nul(b)) };
        self.turned(order)
    }

    fn turned(&self, order: Ordering) -> Ordering {
        if self.descending { order.reverse() } else { order }
    }

    /// Sorts elements by their numbers; with equal numbers, in the order of their bytes.
    fn by_numbers(&self, mut pairs: Vec<(f64, Vec<u8>)>) -> Vec<Vec<u8>> {
        pairs.sort_unstable_by(|a, b| self.turned(a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1))));
        pairs.into_iter().map(|(_, element)| element).collect()
    }

    /// Returns the elements of a value, as far as it is in order by itself in the order asked for.
    fn elements(&self, object: &Object, now_ms: i64) -> Result<Vec<Vec<u8>>, Refused> {
        let mut elements: Vec<Vec<u8>> = Vec::with_capacity(object.len());
        let mut digits = itoa::Buffer::new();
        match object {
            Object::List(list) => {
                let from = if self.unordered() && self.descending { End::Tail } else { End::Head };
                list.iter(from).for_each(|element| elements.push(element.text(&mut digits).to_vec()));
            }
            Object::Set(set) => set.each(now_ms, |member| elements.push(member.text(&mut digits).to_vec())),
            Object::Zset(zset) if self.unordered() && self.descending => {
                zset.each_back(0..zset.len(), |member, _| elements.push(member.to_vec()));
            }
            Object::Zset(zset) => zset.each(0..zset.len(), |member, _| elements.push(member.to_vec())),
            Object::Hash(_) | Object::Stream(_) => return Err(WRONG_TYPE.into()),
        }
        Ok(elements)
    }

    /// Leaves of the elements those that the limit asks for.
    fn cut<T>(&self, elements: &mut Vec<T>) {
        if let Some((start, count)) = self.limit {
            let start = usize::try_from(start).unwrap_or(0).min(elements.len());
            elements.drain(..start);
            if let Ok(count) = usize::try_from(count) {
                elements.truncate(count);
            }
        }
    }

    /// Returns the elements of a value in the order asked for, as far as the limit asks for them. With a pattern to
    /// sort by all of them, in their own order.
    fn sorted(&self, object: &Object, now_ms: i64, of_script: bool) -> Result<Vec<Vec<u8>>, Refused> {
        let mut elements = self.elements(object, now_ms)?;
        if self.weights().is_some() {
            return Ok(elements);
        }
        // A set that is stored, or that a script sees, is ordered by bytes even if no order was requested.
        let forced = self.unordered() && (self.stores || of_script) && matches!(object, Object::Set(_));
        if forced || (self.by.is_none() && self.alpha) {
            elements.sort_by(|a, b| self.compare(a, b));
        } else if self.by.is_none() {
            let numbers: Option<Vec<(f64, Vec<u8>)>> =
                elements.into_iter().map(|element| Some((number(&element)?, element))).collect();
            elements = self.by_numbers(numbers.ok_or(NO_NUMBERS)?);
        }
        self.cut(&mut elements);
        Ok(elements)
    }

    /// Sorts elements by the weights to which a pattern refers; a missing weight counts as 0, or as less than any text.
    fn by_weights(&self, elements: Vec<Vec<u8>>, weights: Vec<Option<Vec<u8>>>) -> Result<Vec<Vec<u8>>, Refused> {
        if self.alpha {
            let mut pairs: Vec<_> = weights.into_iter().zip(elements).collect();
            pairs.sort_by(|(a, _), (b, _)| match (a, b) {
                (Some(a), Some(b)) => self.compare(a, b),
                _ => self.turned(a.is_some().cmp(&b.is_some())),
            });
            return Ok(pairs.into_iter().map(|(_, element)| element).collect());
        }
        let numbers = weights.iter().map(|weight| weight.as_deref().map_or(Some(0.0), number));
        let numbers: Vec<f64> = numbers.collect::<Option<_>>().ok_or(NO_NUMBERS)?;
        Ok(self.by_numbers(numbers.into_iter().zip(elements).collect()))
    }

    /// Like [`sorted`](Self::sorted), each as often as GET asks for it.
    fn of_itself(&self, object: &Object, now_ms: i64, of_script: bool) -> Result<Vec<Vec<u8>>, Refused> {
        debug_assert!(!self.leads(), "a command with patterns is run by `run`");
        let elements = self.sorted(object, now_ms, of_script)?;
        Ok(match self.gets.len() {
            0 | 1 => elements,
            copies => elements.into_iter().flat_map(|element| std::iter::repeat_n(element, copies)).collect(),
        })
    }
}

/// A pattern that leads from an element to a key, or to a field of a hash. As in Redis it is read up to a NUL.
#[derive(Clone, Copy, Debug)]
struct Pattern<'a> {
    before: &'a [u8],
    after: &'a [u8],
    field: Option<&'a [u8]>,
}

impl<'a> Pattern<'a> {
    /// [`None`] if it has no `*`, and so leads nowhere.
    fn parse(text: &'a [u8]) -> Option<Pattern<'a>> {
        let end = up_to_nul(text).len();
        let star = memchr::memchr(b'*', &text[..end])?;
        let arrow = text[star + 1..end].windows(2).position(|pair| pair == b"->").map(|at| star + 1 + at);
        // An arrow at the end, or before a NUL, is part of the key.
        let arrow = arrow.filter(|at| at + 2 < end);
        let after = &text[star + 1..arrow.unwrap_or(text.len())];
        Some(Pattern { before: &text[..star], after, field: arrow.map(|at| &text[at + 2..]) })
    }

    fn key(&self, element: &[u8]) -> Vec<u8> {
        [self.before, element, self.after].concat()
    }

    /// Returns the value to which it refers, if that is a string or an existing field.
    fn value(
        &self,
        keys: &mut dyn Keys,
        readers: Readers,
        db: u32,
        element: &[u8],
    ) -> Result<Option<Vec<u8>>, SectionError> {
        let key = self.key(element);
        let mut reply = ReplyBuilder::new();
        match self.field {
            Some(field) => keys.read(readers.hget, db, &[b"hget", &key, field], &mut reply)?,
            None => keys.read(readers.get, db, &[b"get", &key], &mut reply)?,
        }
        Ok(match reply.finish() {
            Reply::Bulk(value) => Some(value),
            // The key does not exist, or has another type.
            _ => None,
        })
    }
}

/// The commands that read what patterns lead to.
#[derive(Clone, Copy)]
struct Readers {
    get: &'static CommandSpec,
    hget: &'static CommandSpec,
}

impl Readers {
    fn of(rows: &Rows) -> Readers {
        let row = |name| rows.find(name).expect("in the catalogue").spec;
        Readers { get: row(b"get"), hget: row(b"hget") }
    }
}

/// Returns all elements; patterns lead to other keys, see [`undeclared`](crate::undeclared).
fn visits_of_sort(words: &[&[u8]]) -> Option<Visits> {
    let has_patterns = words.iter().skip(2).any(|word| word.contains(&b'*'));
    (!has_patterns).then_some(Visits::All)
}

/// The source alone.
const SOURCE: CommandSpec =
    CommandSpec { name: "sort", flags: Flags::READONLY, keys: KeyRule::ONE, ..CommandSpec::EMPTY };
/// The destination alone.
const DESTINATION: CommandSpec = CommandSpec { flags: Flags::WRITE, ..SOURCE };

static OTHERS: OtherKeys = others::<true>();
static OTHERS_OF_RO: OtherKeys = others::<false>();

/// Returns the way in which SORT, which may store, or SORT_RO finds keys.
const fn others<const STORES: bool>() -> OtherKeys {
    OtherKeys {
        denial: denial::<STORES>,
        wanted: wanted::<STORES>,
        find: keys_led_to::<STORES>,
        work: work::<STORES>,
        run: run::<STORES>,
    }
}

fn options_of<'a, const STORES: bool>(words: &[&'a [u8]]) -> Option<Options<'a>> {
    Options::parse(&words[2..], STORES).ok()
}

/// Returns the error of the first option that leads to other keys. Errors in options before it come first.
fn denial<const STORES: bool>(words: &[&[u8]]) -> Option<&'static str> {
    let mut at = 2;
    while at < words.len() {
        let (option, pattern) = (words[at], words.get(at + 1));
        let (is_by, is_get) = (is(option, "by"), is(option, "get"));
        match pattern {
            Some(pattern) if is_by && up_to_nul(pattern).contains(&b'*') => {
                return Some("ERR BY option of SORT denied due to insufficient ACL permissions.");
            }
            Some(_) if is_get => return Some("ERR GET option of SORT denied due to insufficient ACL permissions."),
            _ => {}
        }
        at += match () {
            () if is_by || STORES && is(option, "store") => 2,
            () if is(option, "limit") => 3,
            () => 1,
        };
        // The words so far end with a whole option, or the rest is an error.
        Options::parse(words.get(2..at)?, STORES).ok()?;
    }
    None
}

fn wanted<const STORES: bool>(words: &[&[u8]]) -> bool {
    options_of::<STORES>(words).is_some_and(|options| options.leads())
}

/// Looks at the source, if it has elements to be sorted.
fn look<R>(inner: &Inner, words: &[&[u8]], db: u32, see: impl FnOnce(&Object) -> R) -> Option<R> {
    let pass = inner.gate.enter();
    let hash = inner.keyspace.hasher.hash(words[1]);
    let stripe = inner.keyspace.db(&pass, db)?.lock(inner.keyspace.stripe_of(hash));
    let slot = stripe.table.find(hash, words[1])?;
    stripe.table.entry(slot).object().map(|object| see(&object))
}

fn keys_led_to<const STORES: bool>(inner: &Inner, words: &[&[u8]], db: u32, most: usize) -> Vec<Vec<u8>> {
    let Some(options) = options_of::<STORES>(words) else { return Vec::new() };
    let elements = look(inner, words, db, |object| match object.len() <= most {
        true => options.elements(object, TIMELESS).ok(),
        false => None,
    });
    let elements = elements.flatten().unwrap_or_default();
    let patterns: Vec<Pattern<'_>> =
        options.by.into_iter().chain(options.gets.iter().copied()).filter_map(Pattern::parse).collect();
    patterns.iter().flat_map(|pattern| elements.iter().map(|element| pattern.key(element))).collect()
}

fn work<const STORES: bool>(inner: &Inner, words: &[&[u8]], db: u32) -> usize {
    let patterns =
        options_of::<STORES>(words).map_or(0, |options| usize::from(options.by.is_some()) + options.gets.len());
    look(inner, words, db, |object| object.len().saturating_mul(1 + patterns)).unwrap_or(0)
}

/// Sorts with patterns that lead to other keys.
fn run<const STORES: bool>(
    keys: &mut dyn Keys,
    db: u32,
    words: &[&[u8]],
    out: &mut dyn ReplySink,
) -> Result<(), SectionError> {
    let mut elements = Vec::new();
    let mut values = Vec::new();
    let readers = Readers::of(keys.rows());
    let result = (|| {
        let options = Options::parse(&words[2..], STORES).map_err(Ok)?;
        let mut read = Ok(Vec::new());
        let seen = keys.see(&SOURCE, db, &words[..2], &mut |ctx| {
            let (now_ms, of_script) = (ctx.expiry_ms(), ctx.of_script);
            if let Some(entry) = ctx.read(0) {
                let object = entry.object().ok_or(WRONG_TYPE.into());
                read = object.and_then(|object| options.sorted(&object, now_ms, of_script));
            }
        });
        seen.map_err(Err)?;
        elements = read.map_err(Ok)?;
        if let Some(pattern) = options.weights() {
            let weights = elements.iter().map(|element| pattern.value(keys, readers, db, element));
            let weights: Vec<Option<Vec<u8>>> = weights.collect::<Result<_, _>>().map_err(Err)?;
            elements = options.by_weights(std::mem::take(&mut elements), weights).map_err(Ok)?;
            options.cut(&mut elements);
        }
        let patterns: Vec<(bool, Option<Pattern<'_>>)> =
            options.gets.iter().map(|get| (is_itself(get), Pattern::parse(get))).collect();
        for element in &elements {
            for (itself, pattern) in &patterns {
                values.push(match pattern {
                    _ if *itself => Some(element.clone()),
                    Some(pattern) => pattern.value(keys, readers, db, element).map_err(Err)?,
                    None => None,
                });
            }
        }
        if patterns.is_empty() {
            values = std::mem::take(&mut elements).into_iter().map(Some).collect();
        }
        Ok(options.stores)
    })();
    match result {
        Err(Err(refused)) => return Err(refused),
        Err(Ok(refused)) => or_error(Err(refused), out),
        Ok(true) => {
            if let Some(key) = destination(words, db) {
                store(keys, db, words[key.word as usize], &values)?;
            }
            out.integer(values.len() as i64);
        }
        Ok(false) => {
            out.array(values.len());
            for value in &values {
                match value {
                    Some(value) => out.bulk(value),
                    None => out.null(),
                }
            }
        }
    }
    Ok(())
}

/// Puts values into the destination, or removes it if there are none.
fn store(keys: &mut dyn Keys, db: u32, key: &[u8], values: &[Option<Vec<u8>>]) -> Result<(), SectionError> {
    let list = list_of(values.iter().map(|value| value.as_deref().unwrap_or_default()), keys.limits());
    let mut list = (!values.is_empty()).then_some(list);
    keys.see(&DESTINATION, db, &[b"sort", key], &mut |ctx| match list.take() {
        None => {
            if ctx.key(0).remove() {
                ctx.notify(0, Class::Generic, "del");
            }
        }
        Some(list) => {
            ctx.key(0).set(Value::Object(list.into_object()), None);
            ctx.notify(0, Class::List, "sortstore");
        }
    })
}

fn list_of<'e>(elements: impl Iterator<Item = &'e [u8]>, limits: &Limits) -> List {
    let mut list = List::empty();
    for element in elements {
        list.make_room(&[element], limits);
        list.push(End::Tail, element, limits);
    }
    list
}

/// Returns a text as C sees it.
fn up_to_nul(text: &[u8]) -> &[u8] {
    &text[..memchr::memchr(0, text).unwrap_or(text.len())]
}

/// Returns whether this GET requests the element itself.
fn is_itself(get: &[u8]) -> bool {
    up_to_nul(get) == b"#"
}

/// Returns an element or a weight as a number, in which zero has one sign, so that it equals itself.
fn number(text: &[u8]) -> Option<f64> {
    score::parse_weight(text).map(|number| number + 0.0)
}

/// Returns the word after the last STORE, as Redis finds it: whether the options before it make sense shows later.
fn destination(words: &[&[u8]], db: u32) -> Option<KeyWord> {
    let mut found = None;
    let mut at = 2;
    while at + 1 < words.len() {
        at += match words[at] {
            word if is(word, "limit") => 3,
            word if is(word, "by") || is(word, "get") => 2,
            word if is(word, "store") => {
                found = Some(KeyWord { db, word: at as u32 + 1 });
                2
            }
            _ => 1,
        };
    }
    found
}

fn sort(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = Options::parse(&words[2..], true).and_then(|options| {
        let (now_ms, of_script) = (ctx.expiry_ms(), ctx.of_script);
        let elements = match ctx.read(0) {
            None => Vec::new(),
            Some(entry) => options.of_itself(&*entry.object().ok_or(WRONG_TYPE)?, now_ms, of_script)?,
        };
        if !options.stores {
            say(&elements, out);
        } else if elements.is_empty() {
            if ctx.key(1).remove() {
                ctx.notify(1, Class::Generic, "del");
            }
            out.integer(0);
        } else {
            let list = list_of(elements.iter().map(Vec::as_slice), ctx.limits());
            ctx.key(1).set(Value::Object(list.into_object()), None);
            ctx.notify(1, Class::List, "sortstore");
            out.integer(elements.len() as i64);
        }
        Ok(())
    });
    or_error(result, out);
}

fn say(elements: &[Vec<u8>], out: &mut dyn ReplySink) {
    out.array(elements.len());
    elements.iter().for_each(|element| out.bulk(element));
}

fn sort_ro(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    let result = Options::parse(&words[2..], false).and_then(|options| {
        let (now_ms, of_script) = (ctx.expiry_ms(), ctx.of_script);
        let elements = match ctx.read(0) {
            None => Vec::new(),
            Some(entry) => options.of_itself(&*entry.object().ok_or(WRONG_TYPE)?, now_ms, of_script)?,
        };
        say(&elements, out);
        Ok(())
    });
    or_error(result, out);
}

const SORT: CommandSpec = CommandSpec {
    name: "sort",
    arity: -2,
    flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::MOVABLEKEYS),
    keys: KeyRule::WithDatabase { last: 1, second: destination },
    categories: &[Category::Set, Category::SortedSet, Category::List, Category::Dangerous],
    cost: Cost::PerByte,
    group: "generic",
    summary: "Sorts the elements in a list, a set, or a sorted set, optionally storing the result.",
    complexity: "O(N+M*log(M)) where N is the number of elements to sort and M the number of those returned.",
    visits: Some(visits_of_sort),
    writes: WrittenKeys::Others,
    records: Records::Value,
    others: Some(&OTHERS),
    handler: Handler::Keyspace(sort),
    ..CommandSpec::EMPTY
};

pub(super) const COMMANDS: &[CommandSpec] = &[
    SORT,
    CommandSpec {
        name: "sort_ro",
        flags: Flags::READONLY.and(Flags::MOVABLEKEYS),
        keys: KeyRule::ONE,
        writes: WrittenKeys::Flagged,
        others: Some(&OTHERS_OF_RO),
        since: "7.0.0",
        summary: "Returns the sorted elements of a list, a set, or a sorted set.",
        handler: Handler::Keyspace(sort_ro),
        ..SORT
    },
];
