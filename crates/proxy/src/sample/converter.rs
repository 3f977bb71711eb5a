//! Converters, compiled: arguments resolved, engines found, names interned.

use std::borrow::Cow;
use std::sync::Arc;

use sluicegate_config::catalogue::Converter;
use sluicegate_config::model::Arg;
use sluicegate_wire::engine::{Engine, PendingReply, Started};
use sluicegate_wire::reply::Reply;
use smallvec::SmallVec;

use super::value::Value;
use super::variables::VarRef;
use crate::lua::LuaCall;
use crate::running::Engines;
use crate::stream::StreamContext;

/// A converter with its arguments.
#[derive(Clone)]
pub enum ConverterCode {
    /// `lower`.
    Lower,
    /// `upper`.
    Upper,
    /// `concat([start[,variable[,end]]])`.
    Concat {
        /// Put after the sample.
        start: Box<[u8]>,
        /// Then the variable's text, if it is set.
        variable: Option<VarRef>,
        /// Then this.
        end: Box<[u8]>,
    },
    /// `lua.NAME`.
    Lua(Arc<LuaCall>),
    /// `field(index,delimiters[,count])`.
    Field(Cut),
    /// `word(index,delimiters[,count])`.
    Word(Cut),
    /// `store_get(store)`: the value under the sample as key.
    StoreGet(Arc<dyn Engine>),
    /// `store_incr(store[,by])`: the counter under the sample as key, after adding.
    StoreIncr {
        /// Whom to ask.
        engine: Arc<dyn Engine>,
        /// What is added, in decimal.
        by: Box<str>,
    },
}

/// Where parts start and end; few texts have more than fit without an allocation.
type Spans = SmallVec<[(usize, usize); 16]>;

/// Which part `field` and `word` take.
#[derive(Clone, Debug)]
pub struct Cut {
    /// From 1, negative from the end.
    index: i64,
    /// Any of these bytes separates.
    delimiters: Box<[u8]>,
    /// How many parts; 0 means all that follow.
    count: usize,
}

/// What a converter made of its sample.
pub enum Converted<'a> {
    /// A value.
    Value(Value<'a>),
    /// No sample: the expression gives nothing.
    Nothing,
    /// The store could not answer; the expression gives nothing and `txn.store_err` says this.
    Failed(String),
    /// The store answers later; pass its reply to [`ConverterCode::finish`].
    Pending(PendingReply),
}

impl ConverterCode {
    /// Resolves a converter and its arguments.
    pub fn compile(converter: Converter, args: &[Arg], engines: &Engines) -> Result<ConverterCode, String> {
        Ok(match converter {
            Converter::Lower => ConverterCode::Lower,
            Converter::Upper => ConverterCode::Upper,
            Converter::Concat => ConverterCode::Concat {
                start: text(args, 0)?,
                variable: match args.get(1) {
                    Some(Arg::Var(name)) => {
                        Some(VarRef::intern(name).ok_or("too many variable names in this process")?)
                    }
                    Some(Arg::Str(name)) if !name.is_empty() => {
                        Some(VarRef::parse(name).ok_or_else(|| format!("'{name}' is not a variable's name"))?)
                    }
                    Some(Arg::Str(_) | Arg::Absent) | None => None,
                    Some(other) => return Err(format!("concat needs a variable's name, found {other:?}")),
                },
                end: text(args, 2)?,
            },
            Converter::Lua => ConverterCode::Lua(Arc::new(LuaCall::converter(args)?)),
            Converter::Field => ConverterCode::Field(Cut::compile(args)?),
            Converter::Word => ConverterCode::Word(Cut::compile(args)?),
            Converter::StoreGet => ConverterCode::StoreGet(engine(args, engines)?),
            Converter::StoreIncr => ConverterCode::StoreIncr {
                engine: engine(args, engines)?,
                by: int(args, 1)?.unwrap_or(1).to_string().into(),
            },
        })
    }

    /// It may have to wait, so it is refused where nothing may.
    pub fn may_wait(&self) -> bool {
        matches!(self, ConverterCode::StoreGet(_) | ConverterCode::StoreIncr { .. })
    }

    /// Converts; no sample gives none.
    pub fn convert<'a>(&'a self, value: Value<'a>, cx: &'a StreamContext) -> Converted<'a> {
        match self {
            ConverterCode::Lower => Converted::Value(map_case(value, u8::is_ascii_uppercase, u8::to_ascii_lowercase)),
            ConverterCode::Upper => Converted::Value(map_case(value, u8::is_ascii_lowercase, u8::to_ascii_uppercase)),
            ConverterCode::Concat { start, variable, end } => {
                let mut text = value.into_text().into_owned();
                text.extend_from_slice(start);
                match variable {
                    Some(VarRef::Process(variable)) => {
                        if let Some(sample) = variable.get() {
                            sample.as_value().append_text(&mut text);
                        }
                    }
                    Some(variable) => {
                        if let Some(sample) = cx.variables.get_local(variable) {
                            sample.as_value().append_text(&mut text);
                        }
                    }
                    None => {}
                }
                text.extend_from_slice(end);
                Converted::Value(Value::owned_text(text))
            }
            ConverterCode::Lua(call) => match call.now(Some(value.into_sample()), cx) {
                Some(sample) => Converted::Value(Value::from_sample(sample)),
                None => Converted::Nothing,
            },
            ConverterCode::Field(cut) => cut_value(value, |text| cut.field(text)),
            ConverterCode::Word(cut) => cut_value(value, |text| cut.word(text)),
            ConverterCode::StoreGet(engine) => {
                let started = value.with_text(|key| engine.start(0, &[b"GET", key]));
                answered(started)
            }
            ConverterCode::StoreIncr { engine, by } => {
                answered(value.with_text(|key| engine.start(0, &[b"INCRBY", key, by.as_bytes()])))
            }
        }
    }

    /// What the store's reply means: a null is no sample, an error is a failure.
    pub fn finish(reply: Reply) -> Converted<'static> {
        match reply {
            Reply::Null => Converted::Nothing,
            Reply::Error(message) => Converted::Failed(message),
            reply => match reply_value(reply) {
                Some(value) => Converted::Value(value),
                None => Converted::Failed("ERR the reply is not a single value".to_owned()),
            },
        }
    }
}

fn answered(started: Started) -> Converted<'static> {
    match started {
        Started::Done(reply) => ConverterCode::finish(reply),
        Started::Pending(reply) => Converted::Pending(reply),
    }
}

/// A reply as a sample; `None` for nulls, errors and whatever holds several values.
pub fn reply_value(reply: Reply) -> Option<Value<'static>> {
    Some(match reply {
        Reply::Integer(number) => Value::Int(number),
        Reply::Simple(text) | Reply::BigNumber(text) => Value::owned_text(text.into_bytes()),
        Reply::Bulk(bytes) | Reply::Verbatim(_, bytes) => Value::owned_text(bytes),
        Reply::Boolean(truth) => Value::Bool(truth),
        Reply::Double(number) => Value::owned_text(number.to_string().into_bytes()),
        Reply::Null | Reply::Error(_) | Reply::Array(_) | Reply::Map(_) | Reply::Set(_) | Reply::Push(_) => {
            return None;
        }
    })
}

fn text(args: &[Arg], index: usize) -> Result<Box<[u8]>, String> {
    match args.get(index) {
        Some(Arg::Str(text)) => Ok(text.as_bytes().into()),
        Some(Arg::Int(number)) => Ok(number.to_string().into_bytes().into()),
        None | Some(Arg::Absent) => Ok(Box::default()),
        Some(other) => Err(format!("argument {} of a converter must be text, found {other:?}", index + 1)),
    }
}

fn int(args: &[Arg], index: usize) -> Result<Option<i64>, String> {
    match args.get(index) {
        Some(Arg::Int(number)) => Ok(Some(*number)),
        Some(Arg::Str(text)) => text.parse().map(Some).map_err(|_| format!("'{text}' is not an integer")),
        None | Some(Arg::Absent) => Ok(None),
        Some(other) => Err(format!("argument {} of a converter must be an integer, found {other:?}", index + 1)),
    }
}

fn engine(args: &[Arg], engines: &Engines) -> Result<Arc<dyn Engine>, String> {
    match args.first() {
        Some(Arg::Store(name) | Arg::Str(name)) => {
            engines.get(name).cloned().ok_or_else(|| format!("no store is named '{name}'"))
        }
        other => Err(format!("a store's name is needed, found {other:?}")),
    }
}

/// Changes case; text that has nothing to change stays borrowed.
fn map_case(value: Value<'_>, changes: fn(&u8) -> bool, change: fn(&u8) -> u8) -> Value<'_> {
    let mut text = value.into_text();
    if text.iter().any(changes) {
        text.to_mut().iter_mut().for_each(|byte| *byte = change(byte));
    }
    Value::Str(text)
}

/// Cuts a part out; borrowed text stays borrowed.
fn cut_value<'a>(value: Value<'a>, cut: impl Fn(&[u8]) -> Option<std::ops::Range<usize>>) -> Converted<'a> {
    match value.into_text() {
        Cow::Borrowed(text) => cut(text).map(|range| Value::text(&text[range])),
        Cow::Owned(text) => cut(&text).map(|range| Value::owned_text(text[range].to_vec())),
    }
    .map_or(Converted::Nothing, Converted::Value)
}

impl Cut {
    fn compile(args: &[Arg]) -> Result<Cut, String> {
        let index = int(args, 0)?.ok_or("an index is needed")?;
        let delimiters = text(args, 1)?;
        let count = int(args, 2)?.unwrap_or(1);
        if index == 0 {
            return Err("the index counts from 1, or from -1 backwards".to_owned());
        }
        let count = usize::try_from(count).map_err(|_| format!("the count {count} is negative"))?;
        Ok(Cut { index, delimiters, count })
    }

    fn separates(&self, byte: u8) -> bool {
        self.delimiters.contains(&byte)
    }

    /// Parts between single delimiters; empty parts count.
    fn field(&self, text: &[u8]) -> Option<std::ops::Range<usize>> {
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

    /// Parts between runs of delimiters; there are no empty parts.
    fn word(&self, text: &[u8]) -> Option<std::ops::Range<usize>> {
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

    /// From the part by number over as many parts as wanted: rightwards, or leftwards from the end. Where fewer are
    /// left the cut goes to the text's edge, delimiters included.
    fn take(&self, parts: &[(usize, usize)], length: usize) -> Option<std::ops::Range<usize>> {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a single field or word is, by the parts themselves; several are compared in the differential tests.
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
        }
    }

    #[track_caller]
    fn check_error(converter: Converter, args: &[&str], expected: &str) {
        let args: Vec<_> = args.iter().map(|arg| Arg::Str(Arc::from(*arg))).collect();
        let error = ConverterCode::compile(converter, &args, &Engines::new()).err();
        assert_eq!(error.as_deref(), Some(expected));
    }

    #[test]
    fn wrong_arguments_are_named() {
        check_error(Converter::Field, &[], "an index is needed");
        check_error(Converter::Field, &["0", ","], "the index counts from 1, or from -1 backwards");
        check_error(Converter::Word, &["x", ","], "'x' is not an integer");
        check_error(Converter::Word, &["1", ",", "-1"], "the count -1 is negative");
        check_error(Converter::Concat, &["a", "nothing"], "'nothing' is not a variable's name");
        check_error(Converter::StoreGet, &["none"], "no store is named 'none'");
    }
}
