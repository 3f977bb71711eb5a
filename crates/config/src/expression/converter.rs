//! Checks of converters' arguments beyond their types, and the files and expressions that they name.

use std::sync::Arc;

use sluicegate_pattern::{Kind, Method, Regex, ValueType};

use crate::Severity;
use crate::catalogue::{Converter, ConverterRow, Place};
use crate::expression::condition;
use crate::expression::{ExpressionReader, Problem, StoreNames, variable};
use crate::model::{Arg, MapGives, MapUse, MqttField, VarCondition};

/// The index of a wrong argument and the error.
type Refused = (usize, String);

/// Checks typed arguments as HAProxy does and resolves the names in them.
pub(crate) fn finish(row: &ConverterRow, mut args: Vec<Arg>, stores: &StoreNames<'_>) -> Result<Vec<Arg>, Refused> {
    let text = |index: usize| match args.get(index) {
        Some(Arg::Str(text)) => Some(text.clone()),
        _ => None,
    };
    let int = |index: usize| match args.get(index) {
        Some(Arg::Int(number)) => Some(*number),
        _ => None,
    };
    match row.converter {
        Converter::StoreCall => {
            if let (Some(Arg::Store(store)), Some(command)) = (args.first(), text(1)) {
                let rest: Vec<Option<Arc<str>>> = (2..args.len()).map(text).collect();
                let mut words: Vec<Option<&[u8]>> = vec![Some(command.as_bytes()), None];
                words.extend(rest.iter().map(|word| word.as_deref().map(str::as_bytes)));
                if let Err((Severity::Error, problem)) = stores.command(store, &words) {
                    let hint = problem.hint.map_or_else(String::new, |hint| format!("; {hint}"));
                    return Err((1, format!("{}{hint}", problem.message)));
                }
            }
        }
        Converter::Field | Converter::Word => {
            if int(0) == Some(0) {
                return Err((0, "the index counts from 1, or from -1 backwards".to_owned()));
            }
            if text(1).is_some_and(|separators| separators.is_empty()) {
                return Err((1, "Empty separators list.".to_owned()));
            }
        }
        Converter::AddItem if !matches!(args.get(1), Some(Arg::Var(_))) && text(2).is_none() => {
            return Err((0, "a variable or a string must follow".to_owned()));
        }
        Converter::Be2dec | Converter::Le2dec => {
            if int(1).is_none_or(|size| !(1..=8).contains(&size)) {
                return Err((1, "the size of a chunk must be between 1 and 8".to_owned()));
            }
            truncation(int(2))?;
        }
        Converter::Be2hex | Converter::Le2hex => {
            let size = int(1).unwrap_or(0);
            if size < 0 || size == 0 && (text(0).is_some() || int(2).is_some_and(|truncate| truncate != 0)) {
                return Err((1, "the size of a chunk must be at least 1".to_owned()));
            }
            truncation(int(2))?;
        }
        Converter::Sha2 => {
            if let Some(bits) = int(0).filter(|bits| ![224, 256, 384, 512].contains(bits)) {
                return Err((0, format!("'{bits}' is none of 224, 256, 384 and 512")));
            }
        }
        Converter::Bytes => {
            if int(0).is_some_and(|offset| offset < 0) {
                return Err((0, "expects a non-negative integer".to_owned()));
            }
            if int(1).is_some_and(|length| length <= 0) {
                return Err((1, "expects a positive integer".to_owned()));
            }
        }
        Converter::HasCtl => {
            let mask = control_mask(&text(0).unwrap_or_default()).map_err(|message| (0, message))?;
            args = vec![Arg::Int(mask)];
        }
        Converter::AesGcmEnc | Converter::AesGcmDec => {
            if int(0).is_none_or(|bits| ![128, 192, 256].contains(&bits)) {
                return Err((0, "key size must be 128, 192 or 256 (bits)".to_owned()));
            }
            let last = if row.converter == Converter::AesGcmDec { 3 } else { 2 };
            let tag = text(3).unwrap_or_default();
            for (index, arg) in args.iter_mut().enumerate().take(last + 1).skip(1) {
                *arg = base64_or_variable(arg.clone()).map_err(|message| (index, message))?;
            }
            if last == 2 {
                args[3] = Arg::Var(variable(&tag).map_err(|(message, _)| (3, message))?);
            }
        }
        Converter::FixTagValue => {
            let name = text(0).unwrap_or_default();
            args[0] = Arg::Int(fix_tag(&name).ok_or_else(|| (0, format!("unknown FIX tag name '{name}'")))?);
        }
        Converter::MqttFieldValue => {
            let (packet, field) = (text(0).unwrap_or_default(), text(1).unwrap_or_default());
            let (packet, field) = MqttField::named(&packet, &field)?;
            args = vec![Arg::Mqtt(packet, field)];
        }
        Converter::Protobuf | Converter::Ungrpc => {
            let path = text(0).unwrap_or_default();
            if path.split('.').any(|number| number.is_empty() || number.parse::<u32>().is_err()) {
                return Err((0, format!("'{path}' is no field number, such as 1 or 1.3")));
            }
            if let Some(kind) = text(1).filter(|kind| !PROTOBUF_TYPES.contains(&&**kind)) {
                return Err((1, format!("wrong protocol buffer type '{kind}': {} are", PROTOBUF_TYPES.join(", "))));
            }
        }
        Converter::JwtVerify => {
            let (name, key) = (text(0).unwrap_or_default(), text(1).unwrap_or_default());
            match variable(&name) {
                Ok(name) => args[0] = Arg::Var(name),
                Err(_) if JWT_ALGORITHMS.contains(&&*name) => {}
                Err(_) => {
                    return Err((
                        0,
                        format!("unknown JWT algorithm '{name}': {} are known", JWT_ALGORITHMS.join(", ")),
                    ));
                }
            }
            if let Ok(name) = variable(&key) {
                args[1] = Arg::Var(name);
            } else if let Some(file) = stores.files.and_then(|files| files.read(key.as_ref().as_ref()).ok()) {
                // A secret that is no file's name is a secret, and a key that can't be read is one that is unknown.
                args.push(Arg::File(file.into()));
            }
        }
        Converter::Rfc7239Field => {
            let name = text(0).unwrap_or_default();
            if !["for", "by", "host", "proto"].contains(&&*name) {
                return Err((0, format!("'{name}' is none of for, by, host and proto")));
            }
        }
        Converter::When => {
            let word = text(0).unwrap_or_default();
            let bare = word.strip_prefix('!').unwrap_or(&word);
            if !WHEN.contains(&bare) {
                return Err((0, format!("expects one of {} but got '{bare}'", WHEN.join(", "))));
            }
            if bare == "acl" {
                let name = text(1).filter(|name| !name.is_empty());
                let name = name.ok_or((1, "'acl' requires the name of an ACL".to_owned()))?;
                args[1] = Arg::Acl(condition::resolve(stores, &[&name]).map_err(|message| (1, message))?);
            }
        }
        Converter::Debug => {
            if let Some(name) = text(1) {
                stores.find_sink(&name).map_err(|message| (1, message))?;
            }
        }
        Converter::Digest => algorithm(&text(0).unwrap_or_default())?,
        Converter::Hmac => {
            algorithm(&text(0).unwrap_or_default())?;
            args[1] = base64_or_variable(args[1].clone()).map_err(|message| (1, message))?;
        }
        Converter::Json => {
            const CODES: [&str; 6] = ["", "ascii", "utf8", "utf8s", "utf8p", "utf8ps"];
            if let Some(code) = text(0).filter(|code| !CODES.contains(&&**code)) {
                return Err((0, format!("'{code}' is none of ascii, utf8, utf8s, utf8p and utf8ps")));
            }
        }
        Converter::JsonQuery | Converter::JwtHeaderQuery | Converter::JwtPayloadQuery => {
            // As in HAProxy, a text that is no path finds nothing.
            if text(0).is_some_and(|path| path.is_empty()) {
                return Err((0, "json_path must not be empty".to_owned()));
            }
            if let Some(kind) = text(1).filter(|kind| &**kind != "int") {
                return Err((1, format!("'{kind}' is no output type: only 'int' is")));
            }
        }
        Converter::UrlEnc => {
            if let Some(kind) = text(0).filter(|kind| &**kind != "query") {
                return Err((0, format!("'{kind}' is no type of encoding: only 'query' is")));
            }
        }
        Converter::Param => {
            let byte = text(1)
                .and_then(|delimiter| u8::from_str_radix(delimiter.strip_prefix("0x")?, 16).ok().filter(u8::is_ascii));
            if let Some(delimiter) = text(1).filter(|delimiter| delimiter.len() != 1 && byte.is_none()) {
                return Err((1, format!("the delimiter '{delimiter}' is not one character")));
            }
            if matches!(args.get(1), Some(Arg::Absent)) {
                return Err((1, "the delimiter is missing".to_owned()));
            }
            if let Some(byte) = byte {
                args[1] = Arg::Str(char::from(byte).to_string().into());
            }
        }
        Converter::SetVar => {
            for index in 1..args.len() {
                if let Some(word) = text(index).filter(|word| VarCondition::named(word).is_none()) {
                    return Err((index, format!("'{word}' is no condition")));
                }
            }
        }
        Converter::Regsub => {
            let flags = text(2).unwrap_or_default();
            if let Some(flag) = flags.chars().find(|flag| !matches!(flag, 'g' | 'i')) {
                return Err((2, format!("'{flag}' is no flag: 'g' and 'i' are")));
            }
            let pattern = text(0).unwrap_or_default();
            let regex = Regex::new(pattern.as_bytes(), flags.contains('i')).map_err(|e| (0, e.to_string()))?;
            args[0] = Arg::Regex(Arc::new(regex));
        }
        Converter::Map(method, gives) => {
            let file = stores.load(&text(0).unwrap_or_default(), Kind::Map).map_err(|message| (0, message))?;
            let index = file.index(method, false).map_err(|error| (0, error.to_string()))?;
            if let MapGives::Value(values) = gives {
                file.require(values).map_err(|error| (0, error.to_string()))?;
                if let Some(default) = text(1) {
                    default_value(values, &default).map_err(|message| (1, message))?;
                }
            }
            args[0] = Arg::Map(MapUse { file, index, method, gives });
        }
        _ => {}
    }
    Ok(args)
}

/// Returns the notice of `check` about valid arguments.
pub(crate) fn notice(args: &[Arg]) -> Option<String> {
    match args.first() {
        Some(Arg::Regex(regex)) => regex.notice(),
        Some(Arg::Map(map)) if map.method == Method::Reg => {
            map.file.notice().map(|notice| format!("{notice} (file '{}')", map.file.name()))
        }
        _ => None,
    }
}

fn default_value(values: ValueType, text: &str) -> Result<(), String> {
    match values {
        ValueType::Int if ValueType::integer(text.as_bytes()).is_none() => Err(format!("'{text}' is not an integer")),
        ValueType::Ip if ValueType::address(text.as_bytes()).is_none() => Err(format!("'{text}' is not an address")),
        _ => Ok(()),
    }
}

fn truncation(flag: Option<i64>) -> Result<(), Refused> {
    match flag {
        None | Some(0 | 1) => Ok(()),
        Some(other) => Err((2, format!("'{other}' is neither 0 nor 1"))),
    }
}

/// Checks that a digest algorithm exists.
fn algorithm(name: &str) -> Result<(), Refused> {
    if digest_name(name).is_some() {
        return Ok(());
    }
    let known: Vec<&str> = DIGESTS.iter().map(|names| names[0]).collect();
    Err((0, format!("'{name}' is no digest that is supported: {} are", known.join(", "))))
}

/// The digests, each with the other names that OpenSSL knows it by.
const DIGESTS: &[&[&str]] = &[
    &["md5", "ssl3-md5", "rsa-md5", "md5withrsaencryption", "1.2.840.113549.2.5"],
    &["md5-sha1"],
    &["sha1", "sha-1", "ssl3-sha1", "rsa-sha1", "rsa-sha1-2", "sha1withrsaencryption", "sha1withrsa", "1.3.14.3.2.26"],
    &["sha224", "sha-224", "sha2-224", "rsa-sha224", "sha224withrsaencryption", "2.16.840.1.101.3.4.2.4"],
    &["sha256", "sha-256", "sha2-256", "rsa-sha256", "sha256withrsaencryption", "2.16.840.1.101.3.4.2.1"],
    &["sha384", "sha-384", "sha2-384", "rsa-sha384", "sha384withrsaencryption", "2.16.840.1.101.3.4.2.2"],
    &["sha512", "sha-512", "sha2-512", "rsa-sha512", "sha512withrsaencryption", "2.16.840.1.101.3.4.2.3"],
    &["sha512-224", "sha-512/224", "sha2-512/224", "rsa-sha512/224", "2.16.840.1.101.3.4.2.5"],
    &["sha512-256", "sha-512/256", "sha2-512/256", "rsa-sha512/256", "2.16.840.1.101.3.4.2.6"],
    &["sha3-224", "rsa-sha3-224", "id-rsassa-pkcs1-v1_5-with-sha3-224", "2.16.840.1.101.3.4.2.7"],
    &["sha3-256", "rsa-sha3-256", "id-rsassa-pkcs1-v1_5-with-sha3-256", "2.16.840.1.101.3.4.2.8"],
    &["sha3-384", "rsa-sha3-384", "id-rsassa-pkcs1-v1_5-with-sha3-384", "2.16.840.1.101.3.4.2.9"],
    &["sha3-512", "rsa-sha3-512", "id-rsassa-pkcs1-v1_5-with-sha3-512", "2.16.840.1.101.3.4.2.10"],
    &["blake2b512", "blake2b-512", "1.3.6.1.4.1.1722.12.2.1.16"],
    &["blake2s256", "blake2s-256", "1.3.6.1.4.1.1722.12.2.2.8"],
    &["ripemd160", "ripemd-160", "ripemd", "rmd160", "rsa-ripemd160", "ripemd160withrsa", "1.3.36.3.2.1"],
    &["sm3", "rsa-sm3", "sm3withrsaencryption", "1.2.156.10197.1.401"],
];

/// Returns the first name of the digest that OpenSSL knows by a name, in any case.
pub fn digest_name(name: &str) -> Option<&'static str> {
    let names = DIGESTS.iter().find(|names| names.iter().any(|known| name.eq_ignore_ascii_case(known)));
    names.map(|names| names[0])
}

/// Returns the control characters that `has_ctl` looks for: bit 32 stands for DEL.
fn control_mask(word: &str) -> Result<i64, String> {
    const ALL: i64 = 0x1_ffff_ffff;
    let mask = match word {
        "" => ALL & !(1 << 9),
        "any" => ALL,
        "http" => 0x2401,
        word => {
            let parsed = match word.strip_prefix("0x") {
                Some(digits) => i64::from_str_radix(digits, 16),
                None => word.parse(),
            };
            parsed.map_err(|_| format!("cannot parse '{word}': expecting an integer, 'any' or 'http'"))?
        }
    };
    if mask & !ALL != 0 { Err(format!("unsupported excess bits in '{word}'")) } else { Ok(mask) }
}

/// The types of Protocol Buffers' fields.
const PROTOBUF_TYPES: [&str; 14] = [
    "int32", "uint32", "sint32", "int64", "uint64", "sint64", "bool", "enum", "fixed32", "sfixed32", "float",
    "fixed64", "sfixed64", "double",
];

/// The algorithms of JSON web tokens.
const JWT_ALGORITHMS: [&str; 13] = [
    "none", "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512",
];

/// The conditions of `when`.
const WHEN: [&str; 7] = ["error", "forwarded", "normal", "processed", "stopping", "toapplet", "acl"];

/// Returns the number of a FIX tag.
fn fix_tag(name: &str) -> Option<i64> {
    const NAMES: [(&str, i64); 6] = [
        ("MsgType", 35),
        ("CheckSum", 10),
        ("BodyLength", 9),
        ("TargetCompID", 56),
        ("BeginString", 8),
        ("SenderCompID", 49),
    ];
    let number = name.parse::<u32>().ok().filter(|number| *number > 0 && !name.starts_with('+'));
    let named = || NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, number)| *number);
    number.map(i64::from).or_else(named)
}

/// Returns an argument that is base64, or the name of a variable that holds it.
fn base64_or_variable(arg: Arg) -> Result<Arg, String> {
    let Arg::Str(text) = &arg else { return Ok(arg) };
    if let Ok(name) = variable(text) {
        return Ok(Arg::Var(name));
    }
    if is_base64(text.as_bytes()) { Ok(arg) } else { Err(format!("'{text}' is neither a variable nor base64")) }
}

fn is_base64(text: &[u8]) -> bool {
    let body = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    text.len().is_multiple_of(4) && body.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'))
}

/// Types a script's arguments of a converter; what names files is refused, since scripts have objects for them.
pub fn script_arguments(converter: Converter, args: &[&str]) -> Result<Vec<Arg>, String> {
    let row = ConverterRow::of(converter);
    if matches!(converter, Converter::Map(..)) {
        return Err(format!("'{}' is not available to scripts, which look into maps by 'Map'", row.name));
    }
    let stores = StoreNames { any_store: true, ..StoreNames::default() };
    let reader = ExpressionReader { stores: &stores, place: Place::HttpRequest, acl: false };
    let raw: Vec<(usize, Vec<u8>)> = args.iter().map(|arg| (0, arg.as_bytes().to_vec())).collect();
    let said = |problem: Problem| problem.message;
    let args = reader.typed(raw, 0, row.name, row.args, row.required).map_err(said)?;
    finish(row, args, &stores)
        .map_err(|(index, message)| format!("argument {} of '{}': {message}", index + 1, row.name))
}
