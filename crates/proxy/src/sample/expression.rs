//! A whole sample expression where nothing may wait: a fetch and its converters.

use std::fmt;

use sluicegate_config::model::Expr;

use super::{Converted, ConverterCode, FetchCode, FetchScope, Value};
use crate::engines::Engines;
use crate::stream::StreamContext;

/// An expression, compiled.
pub struct ExpressionCode {
    /// The initial fetch.
    pub fetch: FetchCode,
    converters: Box<[ConverterCode]>,
}

impl ExpressionCode {
    /// Compiles an expression, or returns the error.
    pub fn compile(expr: &Expr, engines: &Engines, scope: FetchScope<'_>) -> Result<ExpressionCode, String> {
        let fetch = FetchCode::compile_in(expr.fetch, &expr.args, scope)?;
        let converters = expr.converters.iter();
        let converters = converters.map(|call| ConverterCode::compile(call.converter, &call.args, engines, scope));
        Ok(ExpressionCode { fetch, converters: converters.collect::<Result<_, _>>()? })
    }

    /// Returns the expression's value. Variables that it would set stay unchanged, because the caller only reads its
    /// stream.
    pub fn value<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        self.converted(self.fetch.fetch(cx)?, cx)
    }

    /// Returns what the converters make of a value in place of the fetch's.
    pub(crate) fn converted<'a>(&'a self, value: Value<'a>, cx: &'a StreamContext) -> Option<Value<'a>> {
        let mut value = Some(value);
        for converter in &self.converters {
            value = match converter.convert(value?, cx) {
                Converted::Value(value) | Converted::Assign(_, _, value) | Converted::Effect(_, value) => Some(value),
                // Expressions that may wait for a store are refused when the file is checked.
                Converted::Nothing | Converted::Failed(_) | Converted::Pending(_) => None,
            };
        }
        value
    }

    /// Returns the expression's value as text.
    pub fn text(&self, cx: &StreamContext) -> Option<String> {
        self.value(cx).map(|value| String::from_utf8_lossy(&value.into_text()).into_owned())
    }
}

impl fmt::Debug for ExpressionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpressionCode").field("fetch", &self.fetch).finish_non_exhaustive()
    }
}
