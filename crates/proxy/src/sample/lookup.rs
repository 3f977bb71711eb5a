//! Fetches and converters by the names that scripts know: `txn.f:req_hdr("host")`, `txn.c:lower("X")`.
//!
//! A script's names are the catalogue's with `.`, `-` and `+` turned into `_`; its arguments are text and are typed at
//! each call. Nothing here waits: a store's converter that would hands its operation back.

use std::borrow::Cow;
use std::sync::Arc;

use sluicegate_config::catalogue::{Converter, Fetch};
use sluicegate_config::model::Arg;
use sluicegate_wire::engine::PendingReply;
use sluicegate_wire::reply::Reply;

use super::converter::{Converted, ConverterCode};
use super::fetch::FetchCode;
use super::value::Sample;
use crate::running::Engines;
use crate::stream::StreamContext;

/// Why a call from a script cannot be made: its arguments are wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CallError(pub String);

/// What a converter called by a script made of its sample.
pub enum Called {
    /// A sample, or none.
    Sample(Option<Sample>),
    /// The store could not answer.
    Failed(String),
    /// The store answers later: await it and pass its reply to [`finish_call`], or refuse to wait.
    Pending(PendingReply),
}

/// The fetch by a script's name, such as `req_hdr`.
pub fn fetch_by_name(name: &str) -> Option<Fetch> {
    Some(match name {
        "always_true" => Fetch::AlwaysTrue,
        "always_false" => Fetch::AlwaysFalse,
        "bool" => Fetch::Bool,
        "int" => Fetch::Int,
        "str" => Fetch::Str,
        "var" => Fetch::Var,
        "date" => Fetch::Date,
        "rand" => Fetch::Rand,
        "src" => Fetch::Src,
        "src_port" => Fetch::SrcPort,
        "dst" => Fetch::Dst,
        "dst_port" => Fetch::DstPort,
        "method" => Fetch::Method,
        "path" => Fetch::Path,
        "query" => Fetch::Query,
        "url" => Fetch::Url,
        "req_ver" => Fetch::ReqVer,
        "req_hdr" | "hdr" => Fetch::ReqHdr,
        "req_hdr_cnt" | "hdr_cnt" => Fetch::ReqHdrCnt,
        "req_fhdr" => Fetch::ReqFhdr,
        "req_cook" | "cook" => Fetch::ReqCook,
        "status" => Fetch::Status,
        "res_hdr" | "shdr" => Fetch::ResHdr,
        "res_hdr_cnt" | "shdr_cnt" => Fetch::ResHdrCnt,
        "res_fhdr" => Fetch::ResFhdr,
        "res_cook" | "scook" => Fetch::ResCook,
        "fe_name" => Fetch::FeName,
        "be_name" => Fetch::BeName,
        _ => return None,
    })
}

/// The converter by a script's name, such as `lower`.
pub fn converter_by_name(name: &str) -> Option<Converter> {
    Some(match name {
        "lower" => Converter::Lower,
        "upper" => Converter::Upper,
        "concat" => Converter::Concat,
        "field" => Converter::Field,
        "word" => Converter::Word,
        "store_get" => Converter::StoreGet,
        "store_incr" => Converter::StoreIncr,
        _ => return None,
    })
}

/// Calls a fetch with a script's arguments.
pub fn call_fetch(fetch: Fetch, args: &[&str], cx: &StreamContext) -> Result<Option<Sample>, CallError> {
    let code = FetchCode::compile(fetch, &typed(args)).map_err(CallError)?;
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
    let code = ConverterCode::compile(converter, &typed(args), engines).map_err(CallError)?;
    Ok(called(code.convert(input.as_value(), cx)))
}

/// What the reply to [`Called::Pending`] means.
pub fn finish_call(reply: Reply) -> Called {
    called(ConverterCode::finish(reply))
}

fn called(converted: Converted<'_>) -> Called {
    match converted {
        Converted::Value(value) => Called::Sample(Some(value.into_sample())),
        Converted::Nothing => Called::Sample(None),
        Converted::Failed(message) => Called::Failed(message),
        Converted::Pending(reply) => Called::Pending(reply),
    }
}

fn typed(args: &[&str]) -> Vec<Arg> {
    args.iter().map(|arg| Arg::Str(Arc::from(Cow::Borrowed(*arg)))).collect()
}
