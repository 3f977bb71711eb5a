//! Converters, compiled: arguments resolved, engines found, names interned. One theme per file.
//!
//! **Cost.** What cuts, compares or counts borrows; what makes a new text allocates it once. **Limits.** A converted
//! text or byte string is at most [`VALUE_LIMIT`] bytes; a longer one is no sample.

mod cipher;
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
mod table;
mod text;
mod time;
mod variable;
mod when;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use sluicegate_config::catalogue::Converter;
use sluicegate_config::model::{Arg, VarCondition};
use sluicegate_pattern::Regex;
use sluicegate_wire::engine::{Engine, PendingReply, Started};
use sluicegate_wire::reply::Reply;
use smallvec::SmallVec;

use super::acl::AclCode;
use super::fetch::FetchScope;
use super::value::{Sample, Value, append_hex};
use super::variables::VarRef;
use crate::engines::Engines;
use crate::hash::Hash;
use crate::stream::{ScriptCall, StreamContext};
use encode::{Base64, Chunks};
use hash::DigestKind;
use json::{InputCode, Path};
use map::MapCode;
use message::MessageCode;
use number::{Binary, Operand, Unary};
use secret::SecretCode;
use state::StateCode;
use table::TableCode;
use text::{Cut, cut_value, map_case};
use time::{DateFormat, Unit};
pub use variable::Setting;
pub(crate) use variable::conditions_hold;
use when::When;

pub use encode::fuzz_decoders;
pub(crate) use encode::url_decode;
pub(crate) use forwarded::{is_forwarded, is_host, node_name, node_port};
pub use json::fuzz_json;

/// Bytes that a converter may give. HAProxy's limit is `tune.bufsize`; this one keeps a chain of converters that each
/// double their text from growing without end.
pub const VALUE_LIMIT: usize = 1 << 20;

/// A converter with its arguments.
#[derive(Clone)]
#[allow(missing_docs)] // each variant is named as its converters, whose rows in the catalogue hold the documentation
pub enum ConverterCode {
    /// `lua.NAME`.
    Lua(Arc<ScriptCall>),
    /// Messages of other protocols.
    Message(MessageCode),
    /// What needs keys.
    Secret(Box<SecretCode>),
    /// What is not in the sample.
    State(StateCode),
    /// `when`, and whether it is negated.
    When(When, bool),
    Reverse,
    ReverseDomain,
    HttpDateToSeconds,
    Lower,
    Upper,
    Concat {
        start: Box<[u8]>,
        variable: Option<VarRef>,
        end: Box<[u8]>,
    },
    AddItem {
        delimiter: Box<[u8]>,
        variable: Option<VarRef>,
        end: Box<[u8]>,
    },
    Field(Cut),
    Word(Cut),
    Bytes {
        offset: Operand,
        length: Option<Operand>,
    },
    /// Bit N stands for the byte N, bit 32 for 0x7f.
    HasControl(u64),
    Length,
    Trim {
        start: bool,
        characters: Box<[u8]>,
    },
    CutCrlf,
    Compare(VarRef),
    SecureCompare(VarRef),
    Choose(Box<[u8]>, Box<[u8]>),
    Language {
        known: Box<[Box<[u8]>]>,
        default: Option<Box<[u8]>>,
    },
    Parameter {
        name: Box<[u8]>,
        delimiter: u8,
    },
    Replace {
        regex: Arc<Regex>,
        template: Box<[u8]>,
        global: bool,
    },
    Binary(Binary, Operand),
    Unary(Unary),
    Hash(Hash, i64),
    Digest(DigestKind),
    Encode(Base64),
    Decode(Base64),
    Hex,
    HexToInt,
    BinaryDigits,
    ChunksInDecimal {
        chunks: Chunks,
        little_end: bool,
    },
    ChunksInHex {
        chunks: Chunks,
        little_end: bool,
    },
    NetworkOrder,
    UrlDecode {
        form: bool,
    },
    UrlEncode,
    JsonEscape(InputCode),
    JsonQuery {
        path: Path,
        integer: bool,
    },
    /// One of a token's parts, by number, and what is looked up in it.
    JwtQuery {
        part: usize,
        path: Option<Path>,
        integer: bool,
    },
    Map(MapCode),
    Table(TableCode),
    Mask {
        v4: Ipv4Addr,
        v6: Option<Ipv6Addr>,
    },
    HostOnly,
    PortOnly,
    HttpDate {
        offset: i64,
        unit: Unit,
    },
    FormatDate(DateFormat),
    SetVar(Setting),
    UnsetVar(VarRef),
    /// `store_get(store)`: the value under the sample as key.
    StoreGet(Source),
    /// `store_incr(store[,by])`: the counter under the sample as key, after adding.
    StoreIncr {
        engine: Source,
        by: Box<str>,
    },
    /// `store_hget(store,field)`: the field of the hash under the sample as key.
    StoreHget {
        engine: Source,
        field: Box<[u8]>,
    },
    /// `store_call(store,command[,argument…])`: the reply to a command of which the sample is the first argument.
    StoreCall {
        engine: Source,
        command: Box<[u8]>,
        rest: Box<[Box<[u8]>]>,
    },
}

/// What a converter changes besides its sample.
pub enum Effect {
    /// A variable gets a value, or is unset.
    Set(VarRef, Option<Sample>),
    /// A capture slot gets a text.
    Capture {
        /// Of the response, or of the request.
        response: bool,
        /// Which one; it exists.
        slot: usize,
        /// The text, cut to its length.
        text: Box<[u8]>,
    },
}

/// What a converter made of its sample.
pub enum Converted<'a> {
    /// A value.
    Value(Value<'a>),
    /// No sample: the expression gives nothing.
    Nothing,
    /// The variable gets the sample, or with `false` is unset; the sample is passed on as it is.
    Assign(VarRef, bool, Value<'a>),
    /// Something else changes; the sample is passed on.
    Effect(Box<Effect>, Value<'a>),
    /// The store could not answer; the expression gives nothing and `txn.store_err` says this.
    Failed(String),
    /// The store answers later; pass its reply to [`ConverterCode::finish`].
    Pending(PendingReply),
}

impl<'a> Converted<'a> {
    fn text(text: Vec<u8>) -> Converted<'a> {
        Converted::Value(Value::owned_text(text))
    }

    fn text_or_nothing(text: Option<Vec<u8>>) -> Converted<'a> {
        text.map_or(Converted::Nothing, Converted::text)
    }
}

impl ConverterCode {
    /// Resolves a converter and its arguments.
    pub fn compile(
        converter: Converter,
        args: &[Arg],
        engines: &Engines,
        scope: FetchScope<'_>,
    ) -> Result<ConverterCode, String> {
        let hash = |hash| Ok::<_, String>(ConverterCode::Hash(hash, int(args, 0)?.unwrap_or(0)));
        let binary = |operation| {
            let operand = match args.first() {
                Some(Arg::Int(number)) => Operand::Constant(*number),
                _ => Operand::Variable(variable(args, 0)?.ok_or("an integer or a variable is needed")?),
            };
            Ok::<_, String>(ConverterCode::Binary(operation, operand))
        };
        let trim = |start| Ok::<_, String>(ConverterCode::Trim { start, characters: text(args, 0)? });
        let date = |unit, local| {
            let format = DateFormat::new(&text(args, 0)?, int(args, 1)?.unwrap_or(0), unit, local);
            format.map(ConverterCode::FormatDate).ok_or("a zero byte in a date's format".to_owned())
        };
        let jwt = |part| {
            Ok::<_, String>(ConverterCode::JwtQuery { part, path: path(args)?, integer: !text(args, 1)?.is_empty() })
        };
        let chunks = || {
            let size = usize::try_from(int(args, 1)?.unwrap_or(0)).map_err(|_| "the size is negative")?;
            Ok::<_, String>(Chunks { separator: text(args, 0)?, size, truncate: int(args, 2)?.unwrap_or(0) != 0 })
        };
        if let Some(code) = MessageCode::compile(converter, args)? {
            return Ok(ConverterCode::Message(code));
        }
        if let Some(code) = SecretCode::compile(converter, args)? {
            return Ok(ConverterCode::Secret(Box::new(code)));
        }
        if let Some(code) = StateCode::compile(converter, args, scope)? {
            return Ok(ConverterCode::State(code));
        }
        Ok(match converter {
            Converter::Lua => ConverterCode::Lua(Arc::new(ScriptCall::converter(args)?)),
            Converter::Reverse => ConverterCode::Reverse,
            Converter::ReverseDom => ConverterCode::ReverseDomain,
            Converter::HttpToDate => ConverterCode::HttpDateToSeconds,
            Converter::When => {
                let word = text(args, 0)?;
                let bare = word.strip_prefix(b"!").unwrap_or(&word);
                let negated = bare.len() < word.len();
                let (when, inverted) = match bare {
                    b"stopping" => (When::Stopping, false),
                    b"error" => (When::Error, false),
                    b"normal" => (When::Error, true),
                    b"forwarded" => (When::Forwarded, false),
                    b"toapplet" => (When::ToApplet, false),
                    b"processed" => (When::Processed, false),
                    _ => match args.get(1) {
                        Some(Arg::Acl(terms)) => (When::Acl(AclCode::compile(terms, scope)?), false),
                        _ => return Err("an ACL is needed".to_owned()),
                    },
                };
                ConverterCode::When(when, negated != inverted)
            }
            Converter::Lower => ConverterCode::Lower,
            Converter::Upper => ConverterCode::Upper,
            Converter::Concat => {
                ConverterCode::Concat { start: text(args, 0)?, variable: variable(args, 1)?, end: text(args, 2)? }
            }
            Converter::AddItem => {
                ConverterCode::AddItem { delimiter: text(args, 0)?, variable: variable(args, 1)?, end: text(args, 2)? }
            }
            Converter::Field => ConverterCode::Field(cut(args)?),
            Converter::Word => ConverterCode::Word(cut(args)?),
            Converter::Bytes => {
                let offset = operand(args, 0)?.ok_or("an offset is needed")?;
                ConverterCode::Bytes { offset, length: operand(args, 1)? }
            }
            Converter::HasCtl => ConverterCode::HasControl(int(args, 0)?.unwrap_or(0) as u64),
            Converter::Length => ConverterCode::Length,
            Converter::Ltrim => trim(true)?,
            Converter::Rtrim => trim(false)?,
            Converter::CutCrlf => ConverterCode::CutCrlf,
            Converter::Strcmp => ConverterCode::Compare(variable(args, 0)?.ok_or("a variable is needed")?),
            Converter::SecureMemcmp => ConverterCode::SecureCompare(variable(args, 0)?.ok_or("a variable is needed")?),
            Converter::Iif => ConverterCode::Choose(text(args, 0)?, text(args, 1)?),
            Converter::Language => ConverterCode::Language {
                known: text(args, 0)?.split(|byte| *byte == b';').map(Into::into).collect(),
                default: Some(text(args, 1)?).filter(|default| !default.is_empty()),
            },
            Converter::Param => ConverterCode::Parameter {
                name: text(args, 0)?,
                delimiter: text(args, 1)?.first().copied().unwrap_or(b'&'),
            },
            Converter::Regsub => {
                let Some(Arg::Regex(regex)) = args.first() else { return Err("a pattern is needed".to_owned()) };
                let global = text(args, 2)?.contains(&b'g');
                ConverterCode::Replace { regex: regex.clone(), template: text(args, 1)?, global }
            }
            Converter::Add => binary(Binary::Add)?,
            Converter::Sub => binary(Binary::Sub)?,
            Converter::Mul => binary(Binary::Mul)?,
            Converter::Div => binary(Binary::Div)?,
            Converter::Mod => binary(Binary::Mod)?,
            Converter::And => binary(Binary::And)?,
            Converter::Or => binary(Binary::Or)?,
            Converter::Xor => binary(Binary::Xor)?,
            Converter::Neg => ConverterCode::Unary(Unary::Neg),
            Converter::Cpl => ConverterCode::Unary(Unary::Cpl),
            Converter::Bool => ConverterCode::Unary(Unary::Bool),
            Converter::Not => ConverterCode::Unary(Unary::Not),
            Converter::Odd => ConverterCode::Unary(Unary::Odd),
            Converter::Even => ConverterCode::Unary(Unary::Even),
            Converter::Crc32 => hash(Hash::Crc32)?,
            Converter::Crc32c => hash(Hash::Crc32c)?,
            Converter::Djb2 => hash(Hash::Djb2)?,
            Converter::Sdbm => hash(Hash::Sdbm)?,
            Converter::Wt6 => hash(Hash::Wt6)?,
            Converter::Xxh32 => hash(Hash::Xxh32)?,
            Converter::Xxh64 => hash(Hash::Xxh64)?,
            Converter::Xxh3 => hash(Hash::Xxh3)?,
            Converter::Sha1 => ConverterCode::Digest(DigestKind::Sha1),
            Converter::Sha2 => ConverterCode::Digest(match int(args, 0)?.unwrap_or(256) {
                224 => DigestKind::Sha224,
                256 => DigestKind::Sha256,
                384 => DigestKind::Sha384,
                512 => DigestKind::Sha512,
                other => return Err(format!("'{other}' is none of 224, 256, 384 and 512")),
            }),
            Converter::Digest => ConverterCode::Digest(digest(args)?),
            Converter::Base64 => ConverterCode::Encode(Base64::Standard),
            Converter::B64dec => ConverterCode::Decode(Base64::Standard),
            Converter::Ub64enc => ConverterCode::Encode(Base64::Url),
            Converter::Ub64dec => ConverterCode::Decode(Base64::Url),
            Converter::Hex => ConverterCode::Hex,
            Converter::Hex2i => ConverterCode::HexToInt,
            Converter::Base2 => ConverterCode::BinaryDigits,
            Converter::Be2dec => ConverterCode::ChunksInDecimal { chunks: chunks()?, little_end: false },
            Converter::Le2dec => ConverterCode::ChunksInDecimal { chunks: chunks()?, little_end: true },
            Converter::Be2hex => ConverterCode::ChunksInHex { chunks: chunks()?, little_end: false },
            Converter::Le2hex => ConverterCode::ChunksInHex { chunks: chunks()?, little_end: true },
            Converter::Htonl => ConverterCode::NetworkOrder,
            Converter::UrlDec => ConverterCode::UrlDecode { form: int(args, 0)?.unwrap_or(0) != 0 },
            Converter::UrlEnc => ConverterCode::UrlEncode,
            Converter::Json => {
                let name = text(args, 0)?;
                let code = std::str::from_utf8(&name).ok().and_then(InputCode::named);
                ConverterCode::JsonEscape(code.ok_or("unknown input code")?)
            }
            Converter::JsonQuery => ConverterCode::JsonQuery {
                path: path(args)?.ok_or("a path is needed")?,
                integer: !text(args, 1)?.is_empty(),
            },
            Converter::JwtHeaderQuery => jwt(0)?,
            Converter::JwtPayloadQuery => jwt(1)?,
            Converter::Map(..) => {
                let Some(Arg::Map(uses)) = args.first() else { return Err("a map file is needed".to_owned()) };
                let default =
                    matches!(args.get(1), Some(Arg::Str(_) | Arg::Bytes(_) | Arg::Int(_))).then(|| text(args, 1));
                ConverterCode::Map(MapCode::new(uses, default.transpose()?.as_deref())?)
            }
            Converter::Ipmask => {
                let v4 = int(args, 0)?.and_then(|mask| u32::try_from(mask).ok()).ok_or("a mask is needed")?;
                let v6 = match args.get(1) {
                    Some(Arg::Str(mask)) => Some(mask.parse().map_err(|_| format!("'{mask}' is no IPv6 mask"))?),
                    _ => None,
                };
                ConverterCode::Mask { v4: Ipv4Addr::from(v4), v6 }
            }
            Converter::HostOnly => ConverterCode::HostOnly,
            Converter::PortOnly => ConverterCode::PortOnly,
            Converter::HttpDate => ConverterCode::HttpDate {
                offset: int(args, 0)?.unwrap_or(0),
                unit: match &*text(args, 1)? {
                    b"" | b"s" => Unit::Seconds,
                    b"ms" => Unit::Milliseconds,
                    _ => Unit::Microseconds,
                },
            },
            Converter::Ltime => date(Unit::Seconds, true)?,
            Converter::Utime => date(Unit::Seconds, false)?,
            Converter::MsLtime => date(Unit::Milliseconds, true)?,
            Converter::MsUtime => date(Unit::Milliseconds, false)?,
            Converter::UsLtime => date(Unit::Microseconds, true)?,
            Converter::UsUtime => date(Unit::Microseconds, false)?,
            Converter::SetVar => {
                let mut conditions = Vec::new();
                for index in 1..args.len() {
                    let name = text(args, index)?;
                    if !name.is_empty() {
                        let named = std::str::from_utf8(&name).ok().and_then(VarCondition::named);
                        conditions.push(named.ok_or("unknown condition")?);
                    }
                }
                let variable = variable(args, 0)?.ok_or("a variable is needed")?;
                ConverterCode::SetVar(Setting { variable, conditions: conditions.into() })
            }
            Converter::UnsetVar => ConverterCode::UnsetVar(variable(args, 0)?.ok_or("a variable is needed")?),
            Converter::Table(figure) => {
                let at = usize::from(figure.has_element());
                let element = if at == 1 { int(args, 0)?.unwrap_or(0) } else { 0 };
                let element = u32::try_from(element).map_err(|_| "the element's number is negative")?;
                let name = match args.get(at) {
                    Some(Arg::Table(name) | Arg::Str(name)) => name,
                    _ => return Err("a table is needed".to_owned()),
                };
                ConverterCode::Table(TableCode {
                    table: scope.table(name)?,
                    figure,
                    element,
                    default: int(args, at + 1)?,
                })
            }
            Converter::StoreGet => ConverterCode::StoreGet(engine(args, engines)?),
            Converter::StoreIncr => ConverterCode::StoreIncr {
                engine: engine(args, engines)?,
                by: int(args, 1)?.unwrap_or(1).to_string().into(),
            },
            Converter::StoreHget => ConverterCode::StoreHget { engine: engine(args, engines)?, field: text(args, 1)? },
            Converter::StoreCall => ConverterCode::StoreCall {
                engine: engine(args, engines)?,
                command: Some(text(args, 1)?).filter(|command| !command.is_empty()).ok_or("a command is needed")?,
                rest: (2..args.len()).map(|index| text(args, index)).collect::<Result<_, _>>()?,
            },
            other => return Err(format!("the converter {other:?} belongs to no module")),
        })
    }

    /// It may have to wait, so it is refused where nothing may.
    pub fn may_wait(&self) -> bool {
        self.store().is_some()
    }

    /// The name of a converter that asks a store or an engine.
    pub fn store(&self) -> Option<&'static str> {
        match self {
            ConverterCode::StoreGet(_) => Some("store_get"),
            ConverterCode::StoreIncr { .. } => Some("store_incr"),
            ConverterCode::StoreHget { .. } => Some("store_hget"),
            ConverterCode::StoreCall { .. } => Some("store_call"),
            _ => None,
        }
    }

    /// Whom a converter asks that asks a store or an engine.
    pub fn source(&mut self) -> Option<&mut Source> {
        match self {
            ConverterCode::StoreGet(engine)
            | ConverterCode::StoreIncr { engine, .. }
            | ConverterCode::StoreHget { engine, .. }
            | ConverterCode::StoreCall { engine, .. } => Some(engine),
            _ => None,
        }
    }

    /// Converts; no sample gives none.
    pub fn convert<'a>(&'a self, value: Value<'a>, cx: &'a StreamContext) -> Converted<'a> {
        match self.apply(value, cx) {
            Converted::Value(Value::Str(text) | Value::Bin(text)) if text.len() > VALUE_LIMIT => Converted::Nothing,
            converted => converted,
        }
    }

    fn apply<'a>(&'a self, value: Value<'a>, cx: &'a StreamContext) -> Converted<'a> {
        match self {
            ConverterCode::Lua(call) => match call.now(Some(value.into_sample()), cx) {
                Some(sample) => Converted::Value(Value::from_sample(sample)),
                None => Converted::Nothing,
            },
            ConverterCode::Message(code) => code.convert(value, cx),
            ConverterCode::Secret(code) => code.convert(value, cx),
            ConverterCode::State(code) => code.convert(value, cx),
            ConverterCode::When(when, negated) => match when.holds(cx) != *negated {
                true => Converted::Value(value),
                false => Converted::Nothing,
            },
            ConverterCode::Reverse => {
                let mut text = value.into_text().into_owned();
                text.reverse();
                Converted::text(text)
            }
            ConverterCode::ReverseDomain => Converted::text_or_nothing(value.with_text(text::reverse_domain)),
            ConverterCode::HttpDateToSeconds => match value.with_text(time::parse_http_date) {
                Some(date) => Converted::Value(Value::Int(date)),
                None => Converted::Nothing,
            },
            ConverterCode::Lower => Converted::Value(map_case(value, u8::is_ascii_uppercase, u8::to_ascii_lowercase)),
            ConverterCode::Upper => Converted::Value(map_case(value, u8::is_ascii_lowercase, u8::to_ascii_uppercase)),
            ConverterCode::Concat { start, variable, end } => {
                let mut text = value.into_text().into_owned();
                text.extend_from_slice(start);
                append_variable(variable.as_ref(), cx, &mut text);
                text.extend_from_slice(end);
                Converted::text(text)
            }
            ConverterCode::AddItem { delimiter, variable, end } => {
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
                Converted::text(text)
            }
            ConverterCode::Field(cut) => cut_value(value, |text| cut.field(text)),
            ConverterCode::Word(cut) => cut_value(value, |text| cut.word(text)),
            ConverterCode::Bytes { offset, length } => {
                let Some(offset) = offset.value(cx) else { return Converted::Nothing };
                let length = match length.as_ref().map(|length| length.value(cx)) {
                    Some(None) => return Converted::Nothing,
                    length => length.flatten(),
                };
                let more = cx.inspection.is_open();
                match text::part(value.into_bytes(), |bytes| text::bytes(bytes, offset, length, more)) {
                    Some(bytes) => Converted::Value(Value::Bin(bytes)),
                    None => Converted::Nothing,
                }
            }
            ConverterCode::HasControl(mask) => {
                let bit = |byte: u8| if byte == 0x7f { 32 } else { u32::from(byte) };
                let is_one = |byte: &u8| (*byte < 0x20 || *byte == 0x7f) && mask & (1 << bit(*byte)) != 0;
                Converted::Value(Value::Bool(value.into_bytes().iter().any(is_one)))
            }
            ConverterCode::Length => Converted::Value(Value::Int(value.with_text(|text| text.len() as i64))),
            ConverterCode::Trim { start, characters } => cut_value(value, |text| {
                let kept = |byte: &u8| !characters.contains(byte);
                Some(match *start {
                    true => text.iter().position(kept).unwrap_or(text.len())..text.len(),
                    false => 0..text.iter().rposition(kept).map_or(0, |last| last + 1),
                })
            }),
            ConverterCode::CutCrlf => {
                cut_value(value, |text| Some(0..memchr::memchr2(b'\r', b'\n', text).unwrap_or(text.len())))
            }
            ConverterCode::Compare(variable) => {
                let compared = value.with_text(|text| {
                    variable_value(variable, cx, |other| other.with_text(|other| text::compare(text, other)))
                });
                compared.map_or(Converted::Nothing, |order| Converted::Value(Value::Int(order)))
            }
            ConverterCode::SecureCompare(variable) => {
                let bytes = value.into_bytes();
                let equal = variable_value(variable, cx, |other| {
                    text::equal_in_constant_time(&bytes, &other.clone().into_bytes())
                });
                equal.map_or(Converted::Nothing, |equal| Converted::Value(Value::Bool(equal)))
            }
            ConverterCode::Choose(yes, no) => match value.to_bool() {
                Some(truth) => Converted::Value(Value::text(if truth { yes } else { no })),
                None => Converted::Nothing,
            },
            ConverterCode::Language { known, default } => {
                let chosen = value.with_text(|text| text::language(text, known)).map(|index| &known[index]);
                match chosen.or(default.as_ref()) {
                    Some(language) => Converted::Value(Value::text(language)),
                    None => Converted::Nothing,
                }
            }
            ConverterCode::Parameter { name, delimiter } => {
                cut_value(value, |text| text::parameter(text, name, *delimiter))
            }
            ConverterCode::Replace { regex, template, global } => {
                let mut out = Vec::new();
                value.with_text(|text| regex.replace(text, template, *global, VALUE_LIMIT, &mut out));
                Converted::text(out)
            }
            ConverterCode::Binary(operation, operand) => number::binary(*operation, operand, &value, cx),
            ConverterCode::Unary(operation) => number::unary(*operation, &value),
            ConverterCode::Hash(hash, argument) => {
                Converted::Value(Value::Int(hash.of(&value.into_bytes(), *argument)))
            }
            ConverterCode::Digest(kind) => Converted::Value(kind.of(&value.into_bytes())),
            ConverterCode::Encode(base) => Converted::text(base.encode(&value.into_bytes())),
            ConverterCode::Decode(base) => match value.with_text(|text| base.decode(text)) {
                Some(bytes) => Converted::Value(Value::Bin(bytes.into())),
                None => Converted::Nothing,
            },
            ConverterCode::Hex => Converted::text(encode::hex(&value.into_bytes())),
            ConverterCode::HexToInt => match value.with_text(encode::hex_to_int) {
                Some(number) => Converted::Value(Value::Int(number)),
                None => Converted::Nothing,
            },
            ConverterCode::BinaryDigits => Converted::text(encode::binary_digits(&value.into_bytes())),
            ConverterCode::ChunksInDecimal { chunks, little_end } => {
                Converted::text(chunks.render(&value.into_bytes(), |out, chunk| {
                    let push = |number: u64, byte: &u8| (number << 8) | u64::from(*byte);
                    let number = match little_end {
                        true => chunk.iter().rev().fold(0, push),
                        false => chunk.iter().fold(0, push),
                    };
                    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
                }))
            }
            ConverterCode::ChunksInHex { chunks, little_end } => {
                Converted::text(chunks.render(&value.into_bytes(), |out, chunk| match little_end {
                    true => chunk.iter().rev().for_each(|byte| append_hex(out, *byte)),
                    false => chunk.iter().for_each(|byte| append_hex(out, *byte)),
                }))
            }
            ConverterCode::NetworkOrder => match value.to_int() {
                Some(number) => Converted::Value(Value::Bin((number as u32).to_be_bytes().to_vec().into())),
                None => Converted::Nothing,
            },
            ConverterCode::UrlDecode { form } => {
                Converted::text_or_nothing(value.with_text(|text| encode::url_decode(text, *form)))
            }
            ConverterCode::UrlEncode => Converted::text(value.with_text(encode::url_encode)),
            ConverterCode::JsonEscape(code) => {
                Converted::text_or_nothing(value.with_text(|text| json::escape(text, *code)))
            }
            ConverterCode::JsonQuery { path, integer } => {
                value.with_text(|text| json::query(text, path, *integer)).map_or(Converted::Nothing, Converted::Value)
            }
            ConverterCode::JwtQuery { part, path, integer } => {
                let token = value.into_bytes();
                let decoded = token.split(|byte| *byte == b'.').nth(*part).and_then(|part| Base64::Url.decode(part));
                match (decoded, path) {
                    (Some(decoded), Some(path)) => {
                        json::query(&decoded, path, *integer).map_or(Converted::Nothing, Converted::Value)
                    }
                    (decoded, _) => Converted::text_or_nothing(decoded),
                }
            }
            ConverterCode::Table(table) => table.find(&value).map_or(Converted::Nothing, Converted::Value),
            ConverterCode::Map(map) => map.find(&value).map_or(Converted::Nothing, Converted::Value),
            ConverterCode::Mask { v4, v6 } => match net::address(&value).and_then(|ip| net::mask(ip, *v4, *v6)) {
                Some(network) => Converted::Value(Value::Ip(network)),
                None => Converted::Nothing,
            },
            ConverterCode::HostOnly => match cut_value(value, |text| Some(net::host(text))) {
                Converted::Value(host) => {
                    Converted::Value(map_case(host, u8::is_ascii_uppercase, u8::to_ascii_lowercase))
                }
                other => other,
            },
            ConverterCode::PortOnly => Converted::Value(Value::Int(value.with_text(net::port))),
            ConverterCode::HttpDate { offset, unit } => {
                Converted::text_or_nothing(value.to_int().and_then(|date| time::http_date(date, *offset, *unit)))
            }
            ConverterCode::FormatDate(format) => {
                Converted::text_or_nothing(value.to_int().and_then(|date| format.render(date)))
            }
            ConverterCode::SetVar(setting) => match setting.may(&cx.variables, &value) {
                true => Converted::Assign(setting.variable.clone(), true, value),
                false => Converted::Nothing,
            },
            ConverterCode::UnsetVar(variable) => Converted::Assign(variable.clone(), false, value),
            ConverterCode::StoreGet(engine) => answered(value.with_text(|key| engine.start(&[b"GET", key]))),
            ConverterCode::StoreIncr { engine, by } => {
                answered(value.with_text(|key| engine.start(&[b"INCRBY", key, by.as_bytes()])))
            }
            ConverterCode::StoreHget { engine, field } => {
                answered(value.with_text(|key| engine.start(&[b"HGET", key, field])))
            }
            ConverterCode::StoreCall { engine, command, rest } => answered(value.with_text(|key| {
                let mut args: SmallVec<[&[u8]; 8]> = SmallVec::from_slice(&[command, key]);
                args.extend(rest.iter().map(|arg| &**arg));
                engine.start(&args)
            })),
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

/// Runs `f` on a variable's value, if it has one.
fn variable_value<R>(variable: &VarRef, cx: &StreamContext, f: impl FnOnce(&Value<'_>) -> R) -> Option<R> {
    cx.variables.with_value(variable, f)
}

fn append_variable(variable: Option<&VarRef>, cx: &StreamContext, out: &mut Vec<u8>) {
    if let Some(variable) = variable {
        variable_value(variable, cx, |value| value.append_text(out));
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
        Some(Arg::Bytes(bytes)) => Ok((&**bytes).into()),
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

/// An integer, or a variable that holds one.
fn operand(args: &[Arg], index: usize) -> Result<Option<Operand>, String> {
    Ok(match args.get(index) {
        Some(Arg::Var(_)) => variable(args, index)?.map(Operand::Variable),
        _ => match int(args, index) {
            Ok(number) => number.map(Operand::Constant),
            Err(_) => variable(args, index)?.map(Operand::Variable),
        },
    })
}

/// A store or an engine as a converter asks it.
#[derive(Clone)]
pub struct Source {
    engine: Arc<dyn Engine>,
    /// The rule as the store shows it: `rule:FILE:LINE`; `lua` of a converter that a script calls.
    pub(crate) origin: Box<str>,
}

impl Source {
    fn start(&self, args: &[&[u8]]) -> Started {
        self.engine.start_from(&|| self.origin.to_string(), 0, args)
    }
}

fn engine(args: &[Arg], engines: &Engines) -> Result<Source, String> {
    match args.first() {
        Some(Arg::Store(name) | Arg::Str(name)) => {
            let engine = engines.get(name).cloned().ok_or_else(|| format!("no store is named '{name}'"))?;
            Ok(Source { engine, origin: "lua".into() })
        }
        other => Err(format!("a store's name is needed, found {other:?}")),
    }
}

fn variable(args: &[Arg], index: usize) -> Result<Option<VarRef>, String> {
    match args.get(index) {
        Some(Arg::Var(name)) => {
            VarRef::intern(name).map(Some).ok_or("too many variable names in this process".to_owned())
        }
        Some(Arg::Str(name)) if !name.is_empty() => {
            VarRef::parse(name).map(Some).ok_or_else(|| format!("'{name}' is not a variable's name"))
        }
        Some(Arg::Str(_) | Arg::Absent) | None => Ok(None),
        Some(other) => Err(format!("a variable's name is needed, found {other:?}")),
    }
}

fn cut(args: &[Arg]) -> Result<Cut, String> {
    let index = int(args, 0)?.ok_or("an index is needed")?;
    let count = int(args, 2)?.unwrap_or(1);
    if index == 0 {
        return Err("the index counts from 1, or from -1 backwards".to_owned());
    }
    let count = usize::try_from(count).map_err(|_| format!("the count {count} is negative"))?;
    Ok(Cut { index, delimiters: text(args, 1)?, count })
}

fn digest(args: &[Arg]) -> Result<DigestKind, String> {
    let name = text(args, 0)?;
    let kind = std::str::from_utf8(&name).ok().and_then(DigestKind::named);
    kind.ok_or_else(|| format!("'{}' is no digest", String::from_utf8_lossy(&name)))
}

fn path(args: &[Arg]) -> Result<Option<Path>, String> {
    match args.first() {
        Some(Arg::Str(text)) => Path::parse(text).map(Some).ok_or_else(|| format!("'{text}' is no path")),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        check_error(Converter::Word, &["1", ",", "-1"], "the count -1 is negative");
        check_error(Converter::Concat, &["a", "nothing"], "'nothing' is not a variable's name");
        check_error(Converter::StoreGet, &["none"], "no store is named 'none'");
    }
}
