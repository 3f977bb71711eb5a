//! Converters, compiled: arguments resolved, engines found, names interned. One theme per file.
//!
//! **Items.** A converter is its row in the configuration's catalogue, its line in [`compile`] and the function there,
//! which reads the arguments and returns the code that applies it ([`code`]).
//!
//! **Cost.** Converters that cut, compare or count borrow the sample; those that make a new text allocate it once.
//! **Limits.** A converted text or byte string is at most [`VALUE_LIMIT`] bytes; a longer one is no sample.

mod args;
mod cipher;
mod code;
mod encode;
mod fix;
mod forwarded;
mod hash;
mod json;
mod jwt;
mod map;
mod message;
mod mqtt;
mod net;
mod number;
mod protobuf;
mod secret;
mod state;
mod store;
mod table;
mod text;
mod time;
mod variable;
mod when;

use std::sync::Arc;

use sluicegate_config::catalogue::Converter;
use sluicegate_wire::engine::PendingReply;

use super::value::{Sample, Value};
use super::variables::VarRef;
use crate::stream::{ScriptCall, StreamContext};
use args::Args;
use code::Compiled;
pub use code::ConverterCode;
pub use store::reply_value;
pub use variable::Setting;
pub(crate) use variable::conditions_hold;

pub use encode::fuzz_decoders;
pub(crate) use encode::url_decode;
pub(crate) use forwarded::{is_forwarded, is_host, node_name, node_port};
pub use json::fuzz_json;
pub(crate) use json::json_text;
pub(crate) use time::present_http_date;

/// The maximum length in bytes of a converter's result. HAProxy's limit is `tune.bufsize`; this one prevents a chain of
/// converters that each double their text from growing without end.
pub const VALUE_LIMIT: usize = 1 << 20;

/// Compiles a converter: its function reads the arguments and returns the code that applies it. The match is
/// exhaustive, so the Rust compiler demands a function for every row of the catalogue.
fn compile(converter: Converter, args: &Args<'_>) -> Compiled {
    match converter {
        Converter::Add => number::add(args),
        Converter::Sub => number::sub(args),
        Converter::Mul => number::mul(args),
        Converter::Div => number::div(args),
        Converter::Mod => number::modulo(args),
        Converter::And => number::and(args),
        Converter::Or => number::or(args),
        Converter::Xor => number::xor(args),
        Converter::Neg => number::neg(args),
        Converter::Cpl => number::cpl(args),
        Converter::Bool => number::bool(args),
        Converter::Not => number::not(args),
        Converter::Odd => number::odd(args),
        Converter::Even => number::even(args),
        Converter::Lower => text::lower(args),
        Converter::Upper => text::upper(args),
        Converter::Concat => text::concat(args),
        Converter::AddItem => text::add_item(args),
        Converter::Field => text::field(args),
        Converter::Word => text::word(args),
        Converter::Bytes => text::bytes(args),
        Converter::Length => text::length(args),
        Converter::Ltrim => text::ltrim(args),
        Converter::Rtrim => text::rtrim(args),
        Converter::CutCrlf => text::cut_crlf(args),
        Converter::Strcmp => text::strcmp(args),
        Converter::SecureMemcmp => text::secure_memcmp(args),
        Converter::Iif => text::iif(args),
        Converter::Language => text::language(args),
        Converter::Param => text::param(args),
        Converter::Regsub => text::regsub(args),
        Converter::Crc32 => hash::crc32(args),
        Converter::Crc32c => hash::crc32c(args),
        Converter::Djb2 => hash::djb2(args),
        Converter::Sdbm => hash::sdbm(args),
        Converter::Wt6 => hash::wt6(args),
        Converter::Xxh3 => hash::xxh3(args),
        Converter::Xxh32 => hash::xxh32(args),
        Converter::Xxh64 => hash::xxh64(args),
        Converter::Sha1 => hash::sha1(args),
        Converter::Sha2 => hash::sha2(args),
        Converter::Digest => hash::digest(args),
        Converter::Hmac => secret::hmac(args),
        Converter::Base64 => encode::base64(args),
        Converter::B64dec => encode::b64dec(args),
        Converter::Ub64enc => encode::ub64enc(args),
        Converter::Ub64dec => encode::ub64dec(args),
        Converter::Hex => encode::hex(args),
        Converter::Hex2i => encode::hex2i(args),
        Converter::Base2 => encode::base2(args),
        Converter::Be2dec => encode::be2dec(args),
        Converter::Le2dec => encode::le2dec(args),
        Converter::Be2hex => encode::be2hex(args),
        Converter::Htonl => number::htonl(args),
        Converter::UrlDec => encode::url_dec(args),
        Converter::UrlEnc => encode::url_enc(args),
        Converter::Json => json::json(args),
        Converter::JsonQuery => json::json_query(args),
        Converter::JwtHeaderQuery => json::jwt_header_query(args),
        Converter::JwtPayloadQuery => json::jwt_payload_query(args),
        Converter::Ipmask => net::ipmask(args),
        Converter::HostOnly => net::host_only(args),
        Converter::PortOnly => net::port_only(args),
        Converter::X509VErrStr => number::x509_v_err_str(args),
        Converter::HttpDate => time::http_date(args),
        Converter::Ltime => time::ltime(args),
        Converter::Utime => time::utime(args),
        Converter::MsLtime => time::ms_ltime(args),
        Converter::MsUtime => time::ms_utime(args),
        Converter::UsLtime => time::us_ltime(args),
        Converter::UsUtime => time::us_utime(args),
        Converter::SetVar => variable::set_var(args),
        Converter::UnsetVar => variable::unset_var(args),
        Converter::HasCtl => text::has_ctl(args),
        Converter::Reverse => text::reverse(args),
        Converter::ReverseDom => text::reverse_dom(args),
        Converter::AesGcmEnc => secret::aes_gcm_enc(args),
        Converter::AesGcmDec => secret::aes_gcm_dec(args),
        Converter::JwtVerify => secret::jwt_verify(args),
        Converter::Le2hex => encode::le2hex(args),
        Converter::HttpToDate => time::http_to_date(args),
        Converter::FixIsValid => message::fix_is_valid(args),
        Converter::FixTagValue => message::fix_tag_value(args),
        Converter::MqttIsValid => message::mqtt_is_valid(args),
        Converter::MqttFieldValue => message::mqtt_field_value(args),
        Converter::Protobuf => message::protobuf(args),
        Converter::Ungrpc => message::ungrpc(args),
        Converter::Rfc7239IsValid => message::rfc7239_is_valid(args),
        Converter::Rfc7239Field => message::rfc7239_field(args),
        Converter::Rfc7239N2nn => message::rfc7239_n2nn(args),
        Converter::Rfc7239N2np => message::rfc7239_n2np(args),
        Converter::Rfc7239Nn => message::rfc7239_nn(args),
        Converter::Rfc7239Np => message::rfc7239_np(args),
        Converter::CaptureReq => state::capture_req(args),
        Converter::CaptureRes => state::capture_res(args),
        Converter::Nbsrv => state::nbsrv(args),
        Converter::SrvQueue => state::srv_queue(args),
        Converter::When => when::when(args),
        Converter::Debug => state::debug(args),
        Converter::StoreGet => store::get(args),
        Converter::StoreIncr => store::incr(args),
        Converter::StoreHget => store::hget(args),
        Converter::StoreCall => store::call(args),
        Converter::Map(..) => map::map(args),
        Converter::Table(figure) => table::table(figure, args),
        Converter::Lua => Ok(ConverterCode::Lua(Arc::new(ScriptCall::converter(args.list)?))),
    }
}

/// A side effect of a converter.
pub enum Effect {
    /// Sets a variable, or unsets it.
    Set(VarRef, Option<Sample>),
    /// Stores a text in a capture slot.
    Capture {
        /// Whether the slot is one of the response; otherwise it is one of the request.
        response: bool,
        /// The index of the slot, which exists.
        slot: usize,
        /// The text, cut to the slot's length.
        text: Box<[u8]>,
    },
}

impl Effect {
    /// Makes the change.
    pub fn apply(self, cx: &mut StreamContext) {
        match self {
            Effect::Set(variable, Some(value)) => _ = cx.variables.set(&variable, value),
            Effect::Set(variable, None) => cx.variables.unset(&variable),
            Effect::Capture { response: false, slot, text } => cx.log.captures.request.set(slot, &text),
            Effect::Capture { response: true, slot, text } => cx.log.captures.response.set(slot, &text),
        }
    }
}

/// The result of a converter.
pub enum Converted<'a> {
    /// A value.
    Value(Value<'a>),
    /// No sample: the expression has no result.
    Nothing,
    /// Set the variable to the sample, or unset it if `false`; the sample is passed on unchanged.
    Assign(VarRef, bool, Value<'a>),
    /// Apply another effect; the sample is passed on.
    Effect(Box<Effect>, Value<'a>),
    /// The store could not answer; the expression has no result, and `txn.store_err` is set to this text.
    Failed(String),
    /// The store answers later; pass its reply to [`ConverterCode::finish`].
    Pending(PendingReply),
}

/// Runs `f` on a variable's value, if it has one.
fn variable_value<R>(variable: &VarRef, cx: &StreamContext, f: impl FnOnce(&Value<'_>) -> R) -> Option<R> {
    cx.variables.with_value(variable, f)
}

#[cfg(test)]
mod tests {
    use sluicegate_config::model::Arg;

    use super::super::fetch::FetchScope;
    use super::*;
    use crate::engines::Engines;

    #[track_caller]
    fn check_error(converter: Converter, args: &[&str], expected: &str) {
        let args: Vec<_> = args.iter().map(|arg| Arg::Str(Arc::from(*arg))).collect();
        let error = ConverterCode::compile(converter, &args, &Engines::new(), FetchScope::default()).err();
        assert_eq!(error.as_deref(), Some(expected));
    }

    #[test]
    fn wrong_arguments_are_named() {
        check_error(Converter::Field, &[], "an index is needed");
        check_error(Converter::Field, &["0", ","], "the index counts from 1, or from -1 backwards");
        check_error(Converter::Word, &["x", ","], "'x' is not an integer");
        check_error(Converter::Concat, &["a", "nothing"], "'nothing' is not a variable's name");
        check_error(Converter::StoreGet, &["none"], "no store is named 'none'");
    }
}
