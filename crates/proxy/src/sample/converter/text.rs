//! Texts: parts, comparisons, choices.

use std::borrow::Cow;
use std::ops::Range;

use sluicegate_config::model::Arg;
use smallvec::SmallVec;

use super::super::value::Value;
use super::super::variables::VarRef;
use super::args::Args;
use super::code::{Compiled, value};
use super::{VALUE_LIMIT, variable_value};
use crate::stream::StreamContext;

/// The starts and ends of parts; most texts have few enough to need no allocation.
type Spans = SmallVec<[(usize, usize); 16]>;

/// The part selected by `field` and `word`.
#[derive(Clone, Debug)]
struct Cut {
    /// The index of the first part, from 1; negative values count from the end.
    index: i64,
    /// The set of separator bytes.
    delimiters: Box<[u8]>,
    /// The number of parts; 0 means all the rest.
    count: usize,
}

pub(super) fn lower(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| Some(to_lower(value)))
}

pub(super) fn upper(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| Some(map_case(value, u8::is_ascii_lowercase, u8::to_ascii_uppercase)))
}

pub(super) fn reverse(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| {
        let mut text = value.into_text().into_owned();
        text.reverse();
        Some(Value::owned_text(text))
    })
}

pub(super) fn reverse_dom(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| value.with_text(reverse_domain).map(Value::owned_text))
}

/// A text, a variable and another text, which `concat` and `add_item` append.
type Appended = (Box<[u8]>, Option<VarRef>, Box<[u8]>);

fn appended(args: &Args<'_>) -> Result<Appended, String> {
    Ok((args.text(0)?, args.variable(1)?, args.text(2)?))
}

pub(super) fn concat(args: &Args<'_>) -> Compiled {
    value(appended(args)?, |(start, variable, end), value, cx| {
        let mut text = value.into_text().into_owned();
        text.extend_from_slice(start);
        append_variable(variable.as_ref(), cx, &mut text);
        text.extend_from_slice(end);
        Some(Value::owned_text(text))
    })
}

pub(super) fn add_item(args: &Args<'_>) -> Compiled {
    value(appended(args)?, |(delimiter, variable, end), value, cx| {
        let mut text = value.into_text().into_owned();
        let before = text.len();
        if before > 0 {
            text.extend_from_slice(delimiter);
        }
        let delimited = text.len();
        append_variable(variable.as_ref(), cx, &mut text);
        text.extend_from_slice(end);
        if text.len() == delimited {
            text.truncate(before);
        }
        Some(Value::owned_text(text))
    })
}

fn append_variable(variable: Option<&VarRef>, cx: &StreamContext, out: &mut Vec<u8>) {
    if let Some(variable) = variable {
        variable_value(variable, cx, |value| value.append_text(out));
    }
}

pub(super) fn field(args: &Args<'_>) -> Compiled {
    value(Cut::new(args)?, |cut, value, _| cut_value(value, |text| cut.field(text)))
}

pub(super) fn word(args: &Args<'_>) -> Compiled {
    value(Cut::new(args)?, |cut, value, _| cut_value(value, |text| cut.word(text)))
}

pub(super) fn bytes(args: &Args<'_>) -> Compiled {
    let offset = args.operand(0)?.ok_or("an offset is needed")?;
    value((offset, args.operand(1)?), |(offset, length), value, cx| {
        let offset = offset.value(cx)?;
        let length = match length {
            Some(length) => Some(length.value(cx)?),
            None => None,
        };
        let more = cx.inspection.is_open();
        part(value.into_bytes(), |bytes| range(bytes, offset, length, more)).map(Value::Bin)
    })
}

/// `has_ctl`: bit N of the mask stands for the byte N, bit 32 for 0x7f.
pub(super) fn has_ctl(args: &Args<'_>) -> Compiled {
    value(args.int(0)?.unwrap_or(0) as u64, |mask, value, _| {
        let bit = |byte: u8| if byte == 0x7f { 32 } else { u32::from(byte) };
        let is_one = |byte: &u8| (*byte < 0x20 || *byte == 0x7f) && mask & (1 << bit(*byte)) != 0;
        Some(Value::Bool(value.into_bytes().iter().any(is_one)))
    })
}

pub(super) fn length(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| Some(Value::Int(value.with_text(|text| text.len() as i64))))
}

pub(super) fn ltrim(args: &Args<'_>) -> Compiled {
    value(args.text(0)?, |characters, value, _| {
        cut_value(value, |text| {
            Some(text.iter().position(|byte| !characters.contains(byte)).unwrap_or(text.len())..text.len())
        })
    })
}

pub(super) fn rtrim(args: &Args<'_>) -> Compiled {
    value(args.text(0)?, |characters, value, _| {
        cut_value(value, |text| {
            Some(0..text.iter().rposition(|byte| !characters.contains(byte)).map_or(0, |last| last + 1))
        })
    })
}

pub(super) fn cut_crlf(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| {
        cut_value(value, |text| Some(0..memchr::memchr2(b'\r', b'\n', text).unwrap_or(text.len())))
    })
}

pub(super) fn strcmp(args: &Args<'_>) -> Compiled {
    value(args.wanted_variable(0)?, |variable, value, cx| {
        let order = value
            .with_text(|text| variable_value(variable, cx, |other| other.with_text(|other| compare(text, other))))?;
        Some(Value::Int(order))
    })
}

pub(super) fn secure_memcmp(args: &Args<'_>) -> Compiled {
    value(args.wanted_variable(0)?, |variable, value, cx| {
        let bytes = value.into_bytes();
        let equal = variable_value(variable, cx, |other| equal_in_constant_time(&bytes, &other.clone().into_bytes()))?;
        Some(Value::Bool(equal))
    })
}

pub(super) fn iif(args: &Args<'_>) -> Compiled {
    value((args.text(0)?, args.text(1)?), |(yes, no), value, _| {
        value.to_bool().map(|truth| Value::text(if truth { yes } else { no }))
    })
}

pub(super) fn language(args: &Args<'_>) -> Compiled {
    let known: Box<[Box<[u8]>]> = args.text(0)?.split(|byte| *byte == b';').map(Into::into).collect();
    let default = Some(args.text(1)?).filter(|default| !default.is_empty());
    value((known, default), |(known, default), value, _| {
        let chosen = value.with_text(|text| preferred_language(text, known)).map(|index| &known[index]);
        chosen.or(default.as_ref()).map(|language| Value::text(language))
    })
}

pub(super) fn param(args: &Args<'_>) -> Compiled {
    let delimiter = args.text(1)?.first().copied().unwrap_or(b'&');
    value((args.text(0)?, delimiter), |(name, delimiter), value, _| {
        cut_value(value, |text| parameter(text, name, *delimiter))
    })
}

pub(super) fn regsub(args: &Args<'_>) -> Compiled {
    let Some(Arg::Regex(regex)) = args.list.first() else { return Err("a pattern is needed".to_owned()) };
    let global = args.text(2)?.contains(&b'g');
    value((regex.clone(), args.text(1)?, global), |(regex, template, global), value, _| {
        let mut out = Vec::new();
        value.with_text(|text| regex.replace(text, template, *global, VALUE_LIMIT, &mut out));
        Some(Value::owned_text(out))
    })
}

/// Changes the case of a text; a text without characters to change stays borrowed.
fn map_case(value: Value<'_>, changes: fn(&u8) -> bool, change: fn(&u8) -> u8) -> Value<'_> {
    let mut text = value.into_text();
    if text.iter().any(changes) {
        text.to_mut().iter_mut().for_each(|byte| *byte = change(byte));
    }
    Value::Str(text)
}

/// Returns a text in lower case.
pub(super) fn to_lower(value: Value<'_>) -> Value<'_> {
    map_case(value, u8::is_ascii_uppercase, u8::to_ascii_lowercase)
}

/// Extracts a part; borrowed text stays borrowed.
pub(super) fn cut_value<'a>(value: Value<'a>, cut: impl Fn(&[u8]) -> Option<Range<usize>>) -> Option<Value<'a>> {
    part(value.into_text(), cut).map(Value::Str)
}

/// Returns a part of a text; owned text is cut in place.
fn part<'a>(text: Cow<'a, [u8]>, cut: impl Fn(&[u8]) -> Option<Range<usize>>) -> Option<Cow<'a, [u8]>> {
    let range = cut(&text)?;
    Some(match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[range]),
        Cow::Owned(mut text) => {
            text.truncate(range.end);
            text.drain(..range.start);
            Cow::Owned(text)
        }
    })
}

/// Returns the labels of a domain name in reverse order; `None` if one is empty. One final dot is ignored.
fn reverse_domain(name: &[u8]) -> Option<Vec<u8>> {
    let name = name.strip_suffix(b".").unwrap_or(name);
    let labels: SmallVec<[&[u8]; 8]> = name.rsplit(|byte| *byte == b'.').collect();
    if labels.iter().any(|label| label.is_empty()) {
        return None;
    }
    Some(labels.join(&b'.'))
}

impl Cut {
    fn new(args: &Args<'_>) -> Result<Cut, String> {
        let index = args.int(0)?.ok_or("an index is needed")?;
        let count = args.int(2)?.unwrap_or(1);
        if index == 0 {
            return Err("the index counts from 1, or from -1 backwards".to_owned());
        }
        // As in HAProxy, a negative count is none.
        Ok(Cut { index, delimiters: args.text(1)?, count: usize::try_from(count).unwrap_or(0) })
    }

    fn separates(&self, byte: u8) -> bool {
        self.delimiters.contains(&byte)
    }

    /// Returns the range of the parts between single delimiters; empty parts count.
    fn field(&self, text: &[u8]) -> Option<Range<usize>> {
        let mut parts = Spans::new();
        let mut start = 0;
        for (at, byte) in text.iter().enumerate() {
            if self.separates(*byte) {
                parts.push((start, at));
                start = at + 1;
            }
        }
        parts.push((start, text.len()));
        self.take(&parts, text.len())
    }

    /// Returns the range of the parts between runs of delimiters; there are no empty parts.
    fn word(&self, text: &[u8]) -> Option<Range<usize>> {
        let mut parts = Spans::new();
        let mut start = None;
        for (at, byte) in text.iter().enumerate() {
            match (self.separates(*byte), start) {
                (true, Some(from)) => {
                    parts.push((from, at));
                    start = None;
                }
                (false, None) => start = Some(at),
                _ => {}
            }
        }
        parts.extend(start.map(|from| (from, text.len())));
        self.take(&parts, text.len())
    }

    /// Returns the range that starts with the selected part and covers the configured number of parts: rightwards or,
    /// for an index from the end, leftwards. If fewer are left, the range extends to the edge of the text, delimiters
    /// included.
    fn take(&self, parts: &[(usize, usize)], length: usize) -> Option<Range<usize>> {
        let nth = usize::try_from(self.index.unsigned_abs()).ok()?;
        if nth > parts.len() {
            return None;
        }
        let more = if self.count == 0 { usize::MAX } else { self.count - 1 };
        if self.index > 0 {
            let first = nth - 1;
            let end = first.checked_add(more).and_then(|last| parts.get(last)).map_or(length, |part| part.1);
            Some(parts[first].0..end)
        } else {
            let last = parts.len() - nth;
            let start = last.checked_sub(more).map_or(0, |first| parts[first].0);
            Some(start..parts[last].1)
        }
    }
}

/// Returns the range from an offset on, limited to the given length; `None` for negative numbers, and for missing data
/// if more may arrive.
fn range(text: &[u8], offset: i64, length: Option<i64>, more: bool) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    if start >= text.len() {
        return (!more).then_some(text.len()..text.len());
    }
    let end = match length {
        Some(length) => start.saturating_add(usize::try_from(length).ok()?),
        None => text.len(),
    };
    if end > text.len() && more { None } else { Some(start..end.min(text.len())) }
}

/// Compares two texts: a negative, zero or positive result, from the first bytes that differ or else from the lengths.
fn compare(a: &[u8], b: &[u8]) -> i64 {
    let differing = a.iter().zip(b).find(|(a, b)| a != b);
    match differing {
        Some((a, b)) => i64::from(*a) - i64::from(*b),
        None => a.len().cmp(&b.len()) as i64,
    }
}

/// Compares two byte strings in a time that depends only on their lengths.
pub(super) fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b));
    // The hint prevents the compiler from ending the loop early.
    a.len() == b.len() && std::hint::black_box(differing) == 0
}

/// Returns the value of a parameter in a query string.
fn parameter(text: &[u8], name: &[u8], delimiter: u8) -> Option<Range<usize>> {
    let mut start = 0;
    for pair in text.split(|byte| *byte == delimiter) {
        // Behind a last delimiter nothing stands, not even a parameter without a name.
        if start >= text.len() {
            break;
        }
        if let Some(rest) = pair.strip_prefix(name)
            && (rest.is_empty() || rest[0] == b'=')
        {
            let end = start + pair.len();
            return Some((start + name.len() + 1).min(end)..end);
        }
        start += pair.len() + 1;
    }
    None
}

/// Returns the language in a list to which an Accept-Language header assigns the highest weight; among equal weights,
/// the first one in the header.
fn preferred_language(header: &[u8], known: &[Box<[u8]>]) -> Option<usize> {
    let mut best: Option<(u32, usize)> = None;
    for element in header.split(|byte| *byte == b',') {
        let mut parts = element.split(|byte| *byte == b';');
        let range = parts.next().unwrap_or(b"").trim_ascii();
        let weight = match parts.next() {
            None => 1000,
            Some(parameter) => match weight(parameter.trim_ascii()) {
                Some(weight) => weight,
                None => continue,
            },
        };
        if range.is_empty() || weight == 0 || best.is_some_and(|(most, _)| weight <= most) {
            continue;
        }
        // A variant that is not listed counts as its language.
        let base = range.split(|byte| *byte == b'-').next().unwrap_or(range);
        let find = |name: &[u8]| known.iter().position(|known| **known == *name);
        if let Some(index) = find(range).or_else(|| find(base)) {
            best = Some((weight, index));
        }
    }
    best.map(|(_, index)| index)
}

/// Parses `q=0.123` into thousandths.
fn weight(text: &[u8]) -> Option<u32> {
    let number = std::str::from_utf8(text.strip_prefix(b"q")?.trim_ascii_start().strip_prefix(b"=")?).ok()?;
    let (whole, fraction) = number.trim().split_once('.').unwrap_or((number.trim(), ""));
    let whole: u32 = whole.parse().ok().filter(|whole| *whole <= 9)?;
    if fraction.len() > 3 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let thousandths = format!("{fraction:0<3}").parse::<u32>().ok()?;
    Some((whole * 1000 + thousandths).min(1000))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a single field or word, from the list of parts; several parts are compared in the differential tests.
    fn model(text: &[u8], index: i64, words: bool) -> Option<Vec<u8>> {
        let parts: Vec<&[u8]> = text.split(|byte| *byte == b',').filter(|part| !words || !part.is_empty()).collect();
        let nth = usize::try_from(index.unsigned_abs()).ok()?;
        let place = if index > 0 { nth.checked_sub(1)? } else { parts.len().checked_sub(nth)? };
        parts.get(place).map(|part| part.to_vec())
    }

    proptest! {
        #[test]
        fn one_part_is_that_part(text in "[a,]{0,12}", index in prop_oneof![-5i64..=-1, 1i64..=5], words: bool) {
            let cut = Cut { index, delimiters: b",".as_slice().into(), count: 1 };
            let text = text.as_bytes();
            let range = if words { cut.word(text) } else { cut.field(text) };
            prop_assert_eq!(range.map(|range| text[range].to_vec()), model(text, index, words));
        }

        #[test]
        fn a_cut_stays_inside_any_text(
            text in proptest::collection::vec(any::<u8>(), 0..40),
            index in any::<i64>(),
            count in any::<usize>(),
            delimiters in proptest::collection::vec(any::<u8>(), 0..3),
        ) {
            let cut = Cut { index: if index == 0 { 1 } else { index }, delimiters: delimiters.into(), count };
            for range in [cut.field(&text), cut.word(&text)].into_iter().flatten() {
                prop_assert!(text.get(range).is_some());
            }
            preferred_language(&text, &[b"a".as_slice().into()]);
            prop_assert!(parameter(&text, b"a", b'&').is_none_or(|range| text.get(range).is_some()));
        }
    }

    #[test]
    fn parameters_of_a_query() {
        let check = |text: &str, expected: Option<&str>| {
            let found = parameter(text.as_bytes(), b"a", b'&').map(|range| &text[range]);
            assert_eq!(found, expected, "{text}");
        };
        check("a=1&b=2", Some("1"));
        check("b=2&a=3", Some("3"));
        check("aa=2&a&b", Some(""));
        check("b=a", None);
    }
}
