//! Fetches and converters by the names that scripts know: `txn.f:req_hdr("host")`, `txn.c:lower("X")`.
//!
//! A script's names are the catalogue's with `.`, `-` and `+` turned into `_`; its arguments are text and are typed at
//! each call. Nothing here waits: a store's converter that would hands its operation back.

use std::borrow::Cow;
use std::sync::Arc;

use sluicegate_config::catalogue::{Converter, Fetch, converter_for_scripts};
use sluicegate_config::model::Arg;
use sluicegate_wire::engine::PendingReply;
use sluicegate_wire::reply::Reply;

use super::converter::{Converted, ConverterCode, Effect};
use super::fetch::{FetchCode, FetchScope};
use super::value::Sample;
use crate::engines::Engines;
use crate::stream::StreamContext;

/// The reason why a script's call was rejected: its arguments are wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CallError(pub String);

/// The result of a converter called by a script.
pub enum Called {
    /// A sample, or none.
    Sample(Option<Sample>),
    /// A sample, and a change of the stream, which the caller makes.
    Changed(Box<Effect>, Sample),
    /// The store could not answer.
    Failed(String),
    /// The store answers later: await it and pass its reply to [`finish_call`], or refuse to wait.
    Pending(PendingReply),
}

/// Returns the fetch with a script's name for it, such as `req_hdr`.
pub fn fetch_by_name(name: &str) -> Option<Fetch> {
    // A script calls its own functions itself: by this way it would wait for the state that it holds.
    Fetch::named_in_scripts(name).filter(|fetch| *fetch != Fetch::Lua)
}

/// Returns the converter with a script's name for it, such as `lower`.
pub fn converter_by_name(name: &str) -> Option<Converter> {
    converter_for_scripts(name).filter(|converter| *converter != Converter::Lua)
}

/// Calls a fetch with a script's arguments.
pub fn call_fetch(fetch: Fetch, args: &[&str], cx: &StreamContext) -> Result<Option<Sample>, CallError> {
    let scope = FetchScope { directory: Some(&cx.frontend.directory), own: None };
    let code = FetchCode::compile_in(fetch, &typed(args), scope).map_err(CallError)?;
    Ok(code.fetch(cx).map(super::Value::into_sample))
}

/// Calls a converter with a script's sample and arguments.
pub fn call_converter(
    converter: Converter,
    input: &Sample,
    args: &[&str],
    cx: &StreamContext,
    engines: &Engines,
) -> Result<Called, CallError> {
    let args = sluicegate_config::script_arguments(converter, args).map_err(CallError)?;
    let scope = FetchScope { directory: Some(&cx.frontend.directory), own: None };
    let code = ConverterCode::compile(converter, &args, engines, scope).map_err(CallError)?;
    Ok(called(code.convert(input.as_value(), cx)))
}

/// Interprets the reply to [`Called::Pending`].
pub fn finish_call(reply: Reply) -> Called {
    called(ConverterCode::finish(reply))
}

fn called(converted: Converted<'_>) -> Called {
    match converted {
        Converted::Value(value) => Called::Sample(Some(value.into_sample())),
        Converted::Nothing => Called::Sample(None),
        Converted::Assign(variable, set, value) => {
            let sample = value.into_sample();
            Called::Changed(Box::new(Effect::Set(variable, set.then(|| sample.clone()))), sample)
        }
        Converted::Effect(effect, value) => Called::Changed(effect, value.into_sample()),
        Converted::Failed(message) => Called::Failed(message),
        Converted::Pending(reply) => Called::Pending(reply),
    }
}

fn typed(args: &[&str]) -> Vec<Arg> {
    args.iter().map(|arg| Arg::Str(Arc::from(Cow::Borrowed(*arg)))).collect()
}
