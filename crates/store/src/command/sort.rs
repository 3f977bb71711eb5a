//! SORT and SORT_RO.
//!
//! They sort the elements of a list, a set or a sorted set, by number or by bytes (Redis in the C locale), by
//! themselves: `BY` takes a word without `*`, which asks for no order, and `GET` takes `#`. A pattern that leads to
//! other keys is refused when there are elements, because those keys are not locked. Sorting is done in one go under
//! the key's lock.

use std::cmp::Ordering;

use sluicegate_wire::resp::ReplySink;

use super::{Refused, SYNTAX, WRONG_TYPE, integer, is, or_error};
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler};
use crate::context::Ctx;
use crate::float::Extended;
use crate::keys::{KeyRule, KeyWord};
use crate::notify::Class;
use crate::object::list::End;
use crate::object::{Kind, List, Object};
use crate::value::Value;

const OTHER_KEYS: &str = "ERR BY and GET with patterns of other keys are not supported by this version";

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
                    options.by = Some(pattern);
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

    /// The elements of a value in the order asked for, as far as the limit asks for them.
    fn sorted(&self, object: &Object, now_ms: i64) -> Result<Vec<Vec<u8>>, Refused> {
        if self.by.is_some_and(|by| by.contains(&b'*')) || self.gets.iter().any(|get| *get != b"#") {
            return Err(OTHER_KEYS.into());
        }
        let mut elements: Vec<Vec<u8>> = Vec::with_capacity(object.len());
        let mut digits = itoa::Buffer::new();
        match object {
            Object::List(list) => {
                let from = if self.by.is_some() && self.descending { End::Tail } else { End::Head };
                list.iter(from).for_each(|element| elements.push(element.text(&mut digits).to_vec()));
            }
            Object::Set(set) => set.each(now_ms, |member| elements.push(member.text(&mut digits).to_vec())),
            Object::Zset(zset) if self.by.is_some() && self.descending => {
                zset.each_back(0..zset.len(), |member, _| elements.push(member.to_vec()));
            }
            Object::Zset(zset) => zset.each(0..zset.len(), |member, _| elements.push(member.to_vec())),
            Object::Hash(_) => return Err(WRONG_TYPE.into()),
        }
        // A set that is stored needs an order, whatever was asked for: that of bytes.
        let forced = self.by.is_some() && self.stores && matches!(object, Object::Set(_));
        let turned = |order: Ordering| if self.descending { order.reverse() } else { order };
        if forced || (self.by.is_none() && self.alpha) {
            elements.sort_unstable_by(|a, b| turned(a.cmp(b)));
        } else if self.by.is_none() {
            let numbers: Option<Vec<(f64, Vec<u8>)>> =
                elements.into_iter().map(|element| Some((number(&element)?, element))).collect();
            let mut numbers = numbers.ok_or("ERR One or more scores can't be converted into double")?;
            // Equal numbers stand in the order of their bytes.
            numbers.sort_unstable_by(|a, b| turned(a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1))));
            elements = numbers.into_iter().map(|(_, element)| element).collect();
        }
        if let Some((start, count)) = self.limit {
            let start = usize::try_from(start).unwrap_or(0).min(elements.len());
            elements.drain(..start);
            if let Ok(count) = usize::try_from(count) {
                elements.truncate(count);
            }
        }
        let copies = self.gets.len();
        if copies > 1 {
            elements = elements.into_iter().flat_map(|element| std::iter::repeat_n(element, copies)).collect();
        }
        Ok(elements)
    }
}

/// A number as C's `strtod` reads it; nothing is 0.
fn number(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii_start();
    if text.is_empty() {
        return Some(0.0);
    }
    // Zero has one sign here, so that it equals itself.
    Extended::parse(text).map(|number| number.to_f64() + 0.0).filter(|number| !number.is_nan())
}

/// The word after the last STORE, as Redis finds it: whether the options before it make sense shows later.
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
        let now_ms = ctx.now.ms();
        let elements = match ctx.read(0) {
            None => Vec::new(),
            Some(entry) => options.sorted(&*entry.object().ok_or(WRONG_TYPE)?, now_ms)?,
        };
        if !options.stores {
            say(&elements, out);
        } else if elements.is_empty() {
            if ctx.key(1).remove() {
                ctx.notify(1, Class::Generic, "del");
            }
            out.integer(0);
        } else {
            let mut list = List::empty();
            for element in &elements {
                list.make_room(&[element]);
                list.push(End::Tail, element);
            }
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
        let now_ms = ctx.now.ms();
        let elements = match ctx.read(0) {
            None => Vec::new(),
            Some(entry) => options.sorted(&*entry.object().ok_or(WRONG_TYPE)?, now_ms)?,
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
    handler: Handler::Keyspace(sort),
    ..CommandSpec::EMPTY
};

pub(super) const COMMANDS: &[CommandSpec] = &[
    SORT,
    CommandSpec {
        name: "sort_ro",
        flags: Flags::READONLY.and(Flags::MOVABLEKEYS),
        keys: KeyRule::ONE,
        since: "7.0.0",
        summary: "Returns the sorted elements of a list, a set, or a sorted set.",
        handler: Handler::Keyspace(sort_ro),
        ..SORT
    },
];
