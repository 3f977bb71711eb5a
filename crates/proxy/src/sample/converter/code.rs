//! A converter that is ready to run: its compiled arguments and the function that applies it.
//!
//! **Why.** Each converter has one function that reads its arguments and returns a [`ConverterCode`], which [`value`]
//! or [`changing`] builds from the compiled arguments and a closure that uses them. The closure's type is known to the
//! compiler, so applying a converter is one indirect call without a second dispatch on the converter's kind.

use std::sync::Arc;

use sluicegate_config::catalogue::Converter;
use sluicegate_config::model::Arg;
use sluicegate_wire::reply::Reply;

use super::super::fetch::FetchScope;
use super::super::value::Value;
use super::args::Args;
use super::store::{StoreCode, finish};
use super::{Converted, VALUE_LIMIT};
use crate::engines::Engines;
use crate::stream::{ScriptCall, StreamContext};

/// A converter with its arguments.
pub enum ConverterCode {
    /// Anything that neither waits nor calls a script.
    Plain(Box<dyn Convert>),
    /// Queries a store or an engine, so it may wait.
    Store(Box<StoreCode>),
    /// `lua.NAME`.
    Lua(Arc<ScriptCall>),
}

/// The application of a converter.
pub trait Convert: Send + Sync {
    /// Converts a sample.
    fn convert<'a>(&'a self, value: Value<'a>, cx: &'a StreamContext) -> Converted<'a>;
}

/// The result of a converter's compile function.
pub(super) type Compiled = Result<ConverterCode, String>;

struct ToValue<T, F> {
    args: T,
    apply: F,
}

struct Changing<T, F> {
    args: T,
    apply: F,
}

impl<T, F> Convert for ToValue<T, F>
where
    T: Send + Sync,
    F: for<'a> Fn(&'a T, Value<'a>, &'a StreamContext) -> Option<Value<'a>> + Send + Sync,
{
    fn convert<'a>(&'a self, value: Value<'a>, cx: &'a StreamContext) -> Converted<'a> {
        (self.apply)(&self.args, value, cx).map_or(Converted::Nothing, Converted::Value)
    }
}

impl<T, F> Convert for Changing<T, F>
where
    T: Send + Sync,
    F: for<'a> Fn(&'a T, Value<'a>, &'a StreamContext) -> Converted<'a> + Send + Sync,
{
    fn convert<'a>(&'a self, value: Value<'a>, cx: &'a StreamContext) -> Converted<'a> {
        (self.apply)(&self.args, value, cx)
    }
}

/// Returns a converter that produces a value or nothing, from its compiled arguments and the function that applies it.
pub(super) fn value<T, F>(args: T, apply: F) -> Compiled
where
    T: Send + Sync + 'static,
    F: for<'a> Fn(&'a T, Value<'a>, &'a StreamContext) -> Option<Value<'a>> + Send + Sync + 'static,
{
    Ok(ConverterCode::Plain(Box::new(ToValue { args, apply })))
}

/// Returns a converter whose function decides on the whole [`Converted`], not only on a value.
pub(super) fn changing<T, F>(args: T, apply: F) -> Compiled
where
    T: Send + Sync + 'static,
    F: for<'a> Fn(&'a T, Value<'a>, &'a StreamContext) -> Converted<'a> + Send + Sync + 'static,
{
    Ok(ConverterCode::Plain(Box::new(Changing { args, apply })))
}

impl ConverterCode {
    /// Resolves a converter and its arguments.
    pub fn compile(
        converter: Converter,
        args: &[Arg],
        engines: &Engines,
        scope: FetchScope<'_>,
    ) -> Result<ConverterCode, String> {
        super::compile(converter, &Args { list: args, engines, scope })
    }

    /// Returns whether the converter may have to wait; such a converter is rejected where waiting is impossible.
    #[inline]
    pub fn may_wait(&self) -> bool {
        matches!(self, ConverterCode::Store(_))
    }

    /// Converts a value. The result is [`Converted::Nothing`] if it would be longer than [`VALUE_LIMIT`].
    pub fn convert<'a>(&'a self, value: Value<'a>, cx: &'a StreamContext) -> Converted<'a> {
        let converted = match self {
            ConverterCode::Plain(code) => code.convert(value, cx),
            ConverterCode::Store(code) => code.ask(&value),
            ConverterCode::Lua(call) => match call.now(Some(value.into_sample()), cx) {
                Some(sample) => Converted::Value(Value::from_sample(sample)),
                None => Converted::Nothing,
            },
        };
        match converted {
            Converted::Value(Value::Str(text) | Value::Bin(text)) if text.len() > VALUE_LIMIT => Converted::Nothing,
            converted => converted,
        }
    }

    /// Interprets the store's reply: a null is no sample, an error is a failure.
    pub fn finish(reply: Reply) -> Converted<'static> {
        finish(reply)
    }
}
