//! Samples: typed values that fetches produce, converters change, and conditions compare.
//!
//! Everything here is a plain function of a [`StreamContext`](crate::stream::StreamContext): no I/O, no waiting, and
//! the values borrow from the message as far as possible. Converters that may wait, those of the store, return their
//! operation ([`Converted::Pending`]) to the evaluator: the rule runner awaits it, other evaluators refuse it.

mod acl;
mod args;
pub(crate) mod base64;
mod converter;
mod encode;
mod expression;
mod fetch;
pub(crate) mod field;
mod format;
mod looks;
mod lookup;
mod matcher;
mod preset;
mod value;
mod variables;

pub(crate) use base64::Base64;
pub(crate) use converter::json_text;
pub use converter::{Converted, ConverterCode, Effect, Setting, VALUE_LIMIT, fuzz_decoders, fuzz_json, reply_value};
pub(crate) use converter::{is_forwarded, is_host, node_name, node_port};
pub(crate) use converter::{present_http_date, url_decode};
pub(crate) use encode::{Writer as EncodedWriter, append_json_string, parts as encoded_parts};
pub use expression::ExpressionCode;
pub use fetch::{FetchCode, FetchScope};
pub(crate) use fetch::{basic, basic_credentials, new_uuid};
pub use fetch::{fuzz_distcc, fuzz_hello, path, path_and_query, query};
pub use field::{Cursor, cookies, header_values, set_cookies};
pub(crate) use field::{elements, is_chunked, trim};
pub use format::{FormatMode, append_text, append_value};
pub use looks::Looks;
pub use lookup::{CallError, Called, call_converter, call_fetch, converter_by_name, fetch_by_name, finish_call};
pub use matcher::MatcherCode;
pub(crate) use preset::set as set_preset;
pub use value::{Sample, Value, append_hex, append_int, append_ip};
pub use variables::{NAMES_LIMIT, ProcVariable, STREAM_LIMIT, SessionVariables, VarMap, VarRef, Variables};
pub(crate) use variables::{limit as limit_variables, of_process};
