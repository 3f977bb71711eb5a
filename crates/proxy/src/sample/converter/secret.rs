//! Converters that need keys: `hmac`, `aes_gcm_enc`, `aes_gcm_dec` and `jwt_verify`.

use sluicegate_config::model::Arg;

use super::super::base64::Base64;
use super::super::value::{Sample, Value};
use super::super::variables::VarRef;
use super::args::Args;
use super::cipher::KeySize;
use super::code::{Compiled, changing, value};
use super::{Converted, Effect, hash, jwt, variable_value};
use crate::stream::StreamContext;

/// A key whose bytes are given in base64.
enum Key {
    /// A constant, decoded when the rule was compiled.
    Constant(Box<[u8]>),
    /// Base64 in a variable, decoded each time.
    Variable(VarRef),
}

/// A text that is used unchanged.
enum TextOrVariable {
    /// A constant.
    Constant(Box<[u8]>),
    /// The content of a variable.
    Variable(VarRef),
}

pub(super) fn hmac(args: &Args<'_>) -> Compiled {
    value((hash::kind(args)?, key(args, 1)?), |(kind, key), value, cx| {
        let bytes = value.into_bytes();
        key.with(cx, |key| Value::Bin(kind.keyed(key, &bytes).into()))
    })
}

fn size(args: &Args<'_>) -> Result<KeySize, String> {
    KeySize::of_bits(args.int(0)?.unwrap_or(0)).ok_or_else(|| "a key has 128, 192 or 256 bits".to_owned())
}

/// `aes_gcm_enc`: stores the tag in the variable.
pub(super) fn aes_gcm_enc(args: &Args<'_>) -> Compiled {
    let compiled = (size(args)?, key(args, 1)?, key(args, 2)?, args.wanted_variable(3)?);
    changing(compiled, |(size, nonce, key, tag), value, cx| {
        let mut bytes = value.into_bytes().into_owned();
        let made = nonce.with(cx, |nonce| key.with(cx, |key| size.encrypt(key, nonce, &mut bytes)));
        let Some(made) = made.flatten().flatten() else { return Converted::Nothing };
        let effect = Effect::Set(tag.clone(), Some(Sample::Str(Base64::Standard.encode(&made))));
        Converted::Effect(Box::new(effect), Value::Bin(bytes.into()))
    })
}

pub(super) fn aes_gcm_dec(args: &Args<'_>) -> Compiled {
    let compiled = (size(args)?, key(args, 1)?, key(args, 2)?, key(args, 3)?);
    value(compiled, |(size, nonce, key, tag), value, cx| {
        let mut bytes = value.into_bytes().into_owned();
        let decrypted =
            nonce.with(cx, |nonce| key.with(cx, |key| tag.with(cx, |tag| size.decrypt(key, nonce, tag, &mut bytes))));
        decrypted.flatten().flatten().flatten().map(|()| Value::Bin(bytes.into()))
    })
}

pub(super) fn jwt_verify(args: &Args<'_>) -> Compiled {
    if let (Some(Arg::Str(name)), Some(Arg::File(file))) = (args.list.get(1), args.list.get(2))
        && let Some(key) = public_key(file)
    {
        jwt::keep(name, &key.into());
    }
    let word = |index| match args.list.get(index) {
        Some(Arg::Var(_)) => args.wanted_variable(index).map(TextOrVariable::Variable),
        _ => args.text(index).map(TextOrVariable::Constant),
    };
    value((word(0)?, word(1)?), |(algorithm, key), value, cx| {
        let bytes = value.into_bytes();
        let verdict = algorithm.with(cx, |algorithm| key.with(cx, |key| jwt::verify(&bytes, algorithm, key)));
        verdict.flatten().map(|verdict| Value::Int(verdict as i64))
    })
}

impl Key {
    /// Runs `f` on the bytes; returns `None` if the variable has no value.
    fn with<R>(&self, cx: &StreamContext, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match self {
            Key::Constant(key) => Some(f(key)),
            Key::Variable(variable) => {
                let decoded = variable_value(variable, cx, |key| key.with_text(|key| Base64::Standard.decode(key)));
                decoded.flatten().map(|key| f(&key))
            }
        }
    }
}

impl TextOrVariable {
    fn with<R>(&self, cx: &StreamContext, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match self {
            TextOrVariable::Constant(text) => Some(f(text)),
            TextOrVariable::Variable(variable) => variable_value(variable, cx, |value| value.with_text(f)),
        }
    }
}

fn key(args: &Args<'_>, index: usize) -> Result<Key, String> {
    Ok(match args.list.get(index) {
        Some(Arg::Str(key)) => {
            Key::Constant(Base64::Standard.decode(key.as_bytes()).ok_or("a key is not base64")?.into())
        }
        _ => Key::Variable(args.variable(index)?.ok_or("a key is needed")?),
    })
}

/// Returns the public key in a file: the first PEM block with that label.
fn public_key(file: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(file).ok()?;
    let (_, text) = text.split_once("-----BEGIN PUBLIC KEY-----")?;
    let (text, _) = text.split_once("-----END PUBLIC KEY-----")?;
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    Base64::Standard.decode(&digits)
}
