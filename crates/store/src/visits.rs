//! The number of elements that a command visits, estimated from its row and arguments before anything is locked.
//!
//! A row has one of the functions of this module, or one of its own; none for a command whose work is small whatever
//! its keys are. [`whole`](crate::whole) decides whether the number is too large to run without preemption.

use sluicegate_data::object::Object;
use sluicegate_data::value::Entry;
use sluicegate_wire::resp::parse_i64;

use crate::argument::{integer, is};
pub(crate) use crate::stripe::ELEMENTS_MAX;

/// The number of bytes, of a string or of longer elements, that costs about as much as an element.
const BYTES_PER_ELEMENT: usize = 256;
/// The number of bytes of a string that DUMP compresses in the time of an element.
const DUMPED_PER_ELEMENT: usize = 16;

/// Computes the elements processed by a command with these words; [`None`] if they are always few.
pub(crate) type FindVisits = fn(&[&[u8]]) -> Option<Visits>;

/// Counts the elements of a value that a command with these words processes.
pub(crate) type CountVisits = fn(&[&[u8]], &Object) -> usize;

/// The elements that a command processes in each of its keys.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Visits {
    /// All elements.
    All,
    /// All elements, or a string that is compressed.
    Dumped,
    /// All elements of the smallest of its keys.
    Smallest,
    /// The elements between two indices, words 2 and 3.
    Between,
    /// The elements outside two indices, words 2 and 3.
    Outside,
    /// The number that this function counts.
    Counted(CountVisits),
    /// At most this many elements.
    AtMost(usize),
    /// Exactly this many elements, with repetitions, if the value has any.
    Drawn(usize),
    /// The bytes of a string.
    Bytes,
    /// The pairs of bytes of two strings.
    Pairs,
    /// The names of all keys.
    Names,
    /// Very many, whatever its keys are.
    Much,
}

pub(crate) fn all(_: &[&[u8]]) -> Option<Visits> {
    Some(Visits::All)
}

pub(crate) fn dumped(_: &[&[u8]]) -> Option<Visits> {
    Some(Visits::Dumped)
}

pub(crate) fn smallest(_: &[&[u8]]) -> Option<Visits> {
    Some(Visits::Smallest)
}

/// Returns the visits of LRANGE.
pub(crate) fn between(words: &[&[u8]]) -> Option<Visits> {
    (!is_short(words)).then_some(Visits::Between)
}

/// Returns the visits of LTRIM.
pub(crate) fn outside(_: &[&[u8]]) -> Option<Visits> {
    Some(Visits::Outside)
}

pub(crate) fn bytes(_: &[&[u8]]) -> Option<Visits> {
    Some(Visits::Bytes)
}

pub(crate) fn pairs(_: &[&[u8]]) -> Option<Visits> {
    Some(Visits::Pairs)
}

pub(crate) fn names(_: &[&[u8]]) -> Option<Visits> {
    Some(Visits::Names)
}

/// Returns the number in word 2 as the number of elements.
pub(crate) fn as_many(words: &[&[u8]]) -> Option<Visits> {
    Some(Visits::AtMost(many(words.get(2)?)?))
}

/// Returns the number in the word after COUNT as the number of elements.
pub(crate) fn behind_count(words: &[&[u8]]) -> Option<Visits> {
    let option = words.iter().rposition(|word| is(word, "count"))?;
    Some(Visits::AtMost(many(words.get(option + 1)?)?))
}

/// Returns the number in word 2 as the number of elements; if it is negative, elements may be repeated.
pub(crate) fn drawn(words: &[&[u8]]) -> Option<Visits> {
    Some(match words.get(2)? {
        [b'-', count @ ..] => Visits::Drawn(many(count)?),
        count => Visits::AtMost(many(count)?),
    })
}

/// Returns the number of elements as this function counts it, unless the words limit it to few.
pub(crate) fn counted(are_few: bool, count: CountVisits) -> Option<Visits> {
    (!are_few).then_some(Visits::Counted(count))
}

/// Returns whether the first of these words limit the elements to few.
pub(crate) fn has_small_count(words: &[&[u8]]) -> bool {
    let [option, count, ..] = words else { return false };
    is(option, "count") && parse_i64(count).is_some_and(|count| (1..=ELEMENTS_MAX as i64).contains(&count))
}

/// Returns whether words 2 and 3 are indices with few elements between them, and there are no options: then the key is
/// looked up only once.
pub(crate) fn is_short(words: &[&[u8]]) -> bool {
    let [_, _, start, stop] = words else { return false };
    match (parse_i64(start), parse_i64(stop)) {
        (Some(start), Some(stop)) => (start < 0) == (stop < 0) && stop.saturating_sub(start) < ELEMENTS_MAX as i64,
        _ => false,
    }
}

/// Returns whether the last words limit the elements to few.
pub(crate) fn is_limited(words: &[&[u8]]) -> bool {
    let [.., limit, _, count] = words else { return false };
    is(limit, "limit") && parse_i64(count).is_some_and(|count| (0..=ELEMENTS_MAX as i64).contains(&count))
}

/// Returns a number of elements, if it is large.
fn many(word: &[u8]) -> Option<usize> {
    usize::try_from(integer(word).ok()?).ok().filter(|count| *count > ELEMENTS_MAX)
}

impl Visits {
    /// Returns the amount of this value that the command processes, in elements of usual size.
    pub(crate) fn of(self, words: &[&[u8]], entry: &Entry) -> usize {
        if let Some(view) = entry.string() {
            return match self {
                Visits::Bytes => view.len() / BYTES_PER_ELEMENT,
                Visits::Pairs => view.len(),
                Visits::Dumped => view.len() / DUMPED_PER_ELEMENT,
                _ => 0,
            };
        }
        let Some(object) = entry.object().filter(|_| !matches!(self, Visits::Bytes | Visits::Pairs)) else { return 0 };
        let len = object.len();
        let elements = self.elements(words, &object);
        // Long elements take longer.
        elements.max(elements.saturating_mul(object.bytes() / len.max(1)) / BYTES_PER_ELEMENT)
    }

    /// Returns the number of elements of this value that the command processes.
    fn elements(self, words: &[&[u8]], object: &Object) -> usize {
        let len = object.len();
        let indexes = || match (integer(words[2]), integer(words[3])) {
            (Ok(start), Ok(stop)) => Some(count_between(start, stop, len)),
            _ => None,
        };
        match self {
            Visits::Between => indexes().unwrap_or(0),
            Visits::Outside => indexes().map_or(0, |within| len - within),
            Visits::Counted(count) => count(words, object),
            Visits::AtMost(count) => count.min(len),
            Visits::Drawn(count) => count,
            _ => len,
        }
    }
}

/// Returns the number of elements from the first index to the last, which count from the end if negative.
fn count_between(start: i64, stop: i64, len: usize) -> usize {
    let len = len as i64;
    let from_start = |index: i64| if index < 0 { index.saturating_add(len) } else { index };
    let (start, stop) = (from_start(start).max(0), from_start(stop).min(len - 1));
    usize::try_from(stop.saturating_sub(start).saturating_add(1)).unwrap_or(0)
}
