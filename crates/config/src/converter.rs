//! What a converter's arguments must be beyond their types, and the files and expressions they name.

use std::sync::Arc;

use sluicegate_pattern::{Kind, Method, Regex, ValueType};

use crate::Severity;
use crate::catalogue::{Converter, ConverterRow, Place};
use crate::expression::{ExpressionReader, Problem, StoreNames, variable};
use crate::model::{Arg, MapGives, MapUse, VarCondition};

/// What is wrong with an argument, and which one it is.
type Refused = (usize, String);

/// Checks typed arguments as HAProxy does and resolves what they name.
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
                match stores.command(store, &words) {
                    Err((Severity::Error, problem)) => {
                        let hint = problem.hint.map_or_else(String::new, |hint| format!("; {hint}"));
                        return Err((1, format!("{}{hint}", problem.message)));
                    }
                    _ => {}
                }
            }
        }
        Converter::Field | Converter::Word => {
            if int(0) == Some(0) {
                return Err((0, "the index counts from 1, or from -1 backwards".to_owned()));
            }
            if let Some(count) = int(2).filter(|count| *count < 0) {
                return Err((2, format!("the count {count} is negative")));
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
        Converter::Be2hex => {
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
        Converter::Digest => algorithm(&text(0).unwrap_or_default())?,
        Converter::Hmac => {
            algorithm(&text(0).unwrap_or_default())?;
            let key = text(1).unwrap_or_default();
            if let Ok(name) = variable(&key) {
                args[1] = Arg::Var(name);
            } else if !is_base64(key.as_bytes()) {
                return Err((1, format!("'{key}' is neither a variable nor base64")));
            }
        }
        Converter::Json => {
            const CODES: [&str; 6] = ["", "ascii", "utf8", "utf8s", "utf8p", "utf8ps"];
            if let Some(code) = text(0).filter(|code| !CODES.contains(&&**code)) {
                return Err((0, format!("'{code}' is none of ascii, utf8, utf8s, utf8p and utf8ps")));
            }
        }
        Converter::JsonQuery | Converter::JwtHeaderQuery | Converter::JwtPayloadQuery => {
            if let Some(path) = text(0).filter(|path| !path.starts_with('$')) {
                return Err((0, format!("'{path}' is no path: it begins with '$'")));
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
            if let Some(delimiter) = text(1).filter(|delimiter| delimiter.len() != 1) {
                return Err((1, format!("the delimiter '{delimiter}' is not one character")));
            }
            if text(0).is_none_or(|name| name.is_empty()) {
                return Err((0, "the parameter's name is empty".to_owned()));
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

/// What `check` says about arguments that are good.
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

/// The digests that there are.
fn algorithm(name: &str) -> Result<(), Refused> {
    let known = ["md5", "sha1", "sha224", "sha256", "sha384", "sha512"];
    if known.iter().any(|known| name.eq_ignore_ascii_case(known)) {
        return Ok(());
    }
    Err((0, format!("'{name}' is no digest that is supported: {} are", known.join(", "))))
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
