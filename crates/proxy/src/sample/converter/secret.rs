//! Converters that need keys: `hmac`, `aes_gcm_enc`, `aes_gcm_dec` and `jwt_verify`.

use sluicegate_config::catalogue::Converter;
use sluicegate_config::model::Arg;

use super::super::value::{Sample, Value};
use super::super::variables::VarRef;
use super::cipher::KeySize;
use super::encode::Base64;
use super::hash::DigestKind;
use super::{Converted, Effect, digest, int, jwt, text, variable, variable_value};
use crate::stream::StreamContext;

/// Bytes that are given in base64.
#[derive(Clone)]
pub enum Key {
    /// Decoded when the rule was compiled.
    Constant(Box<[u8]>),
    /// Base64 in a variable, decoded each time.
    Variable(VarRef),
}

/// Text that is given as it is.
#[derive(Clone)]
pub enum TextOrVariable {
    /// A constant.
    Constant(Box<[u8]>),
    /// A variable's.
    Variable(VarRef),
}

/// A converter of this module with its arguments.
#[derive(Clone)]
#[allow(missing_docs)] // each is named as its converter
pub enum SecretCode {
    Hmac(DigestKind, Key),
    Encrypt { size: KeySize, nonce: Key, key: Key, tag: VarRef },
    Decrypt { size: KeySize, nonce: Key, key: Key, tag: Key },
    VerifyToken { algorithm: TextOrVariable, key: TextOrVariable },
}

impl SecretCode {
    /// Resolves a converter; `None` if it is another module's.
    pub(super) fn compile(converter: Converter, args: &[Arg]) -> Result<Option<SecretCode>, String> {
        let size = || KeySize::of_bits(int(args, 0)?.unwrap_or(0)).ok_or("a key has 128, 192 or 256 bits".to_owned());
        let word = |index| match args.get(index) {
            Some(Arg::Var(_)) => {
                Ok::<_, String>(TextOrVariable::Variable(variable(args, index)?.ok_or("a variable is needed")?))
            }
            _ => Ok(TextOrVariable::Constant(text(args, index)?)),
        };
        Ok(Some(match converter {
            Converter::Hmac => SecretCode::Hmac(digest(args)?, key(args, 1)?),
            Converter::AesGcmEnc => SecretCode::Encrypt {
                size: size()?,
                nonce: key(args, 1)?,
                key: key(args, 2)?,
                tag: variable(args, 3)?.ok_or("a variable is needed")?,
            },
            Converter::AesGcmDec => {
                SecretCode::Decrypt { size: size()?, nonce: key(args, 1)?, key: key(args, 2)?, tag: key(args, 3)? }
            }
            Converter::JwtVerify => {
                if let (Some(Arg::Str(name)), Some(Arg::File(file))) = (args.get(1), args.get(2))
                    && let Some(key) = public_key(file)
                {
                    jwt::keep(name, &key.into());
                }
                SecretCode::VerifyToken { algorithm: word(0)?, key: word(1)? }
            }
            _ => return Ok(None),
        }))
    }

    /// Converts.
    pub(super) fn convert<'a>(&self, value: Value<'a>, cx: &StreamContext) -> Converted<'a> {
        let bytes = value.into_bytes();
        let converted = match self {
            SecretCode::Hmac(kind, key) => key.with(cx, |key| Value::Bin(kind.keyed(key, &bytes).into())),
            SecretCode::Encrypt { size, nonce, key, tag } => {
                let mut bytes = bytes.into_owned();
                let made = nonce.with(cx, |nonce| key.with(cx, |key| size.encrypt(key, nonce, &mut bytes)));
                let Some(made) = made.flatten().flatten() else { return Converted::Nothing };
                let effect = Effect::Set(tag.clone(), Some(Sample::Str(Base64::Standard.encode(&made))));
                return Converted::Effect(Box::new(effect), Value::Bin(bytes.into()));
            }
            SecretCode::Decrypt { size, nonce, key, tag } => {
                let mut bytes = bytes.into_owned();
                let decrypted = nonce.with(cx, |nonce| {
                    key.with(cx, |key| tag.with(cx, |tag| size.decrypt(key, nonce, tag, &mut bytes)))
                });
                decrypted.flatten().flatten().flatten().map(|()| Value::Bin(bytes.into()))
            }
            SecretCode::VerifyToken { algorithm, key } => {
                let verdict = algorithm.with(cx, |algorithm| key.with(cx, |key| jwt::verify(&bytes, algorithm, key)));
                verdict.flatten().map(|verdict| Value::Int(verdict as i64))
            }
        };
        converted.map_or(Converted::Nothing, Converted::Value)
    }
}

impl Key {
    /// Runs `f` on the bytes; `None` where a variable has none.
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

fn key(args: &[Arg], index: usize) -> Result<Key, String> {
    Ok(match args.get(index) {
        Some(Arg::Str(key)) => {
            Key::Constant(Base64::Standard.decode(key.as_bytes()).ok_or("a key is not base64")?.into())
        }
        _ => Key::Variable(variable(args, index)?.ok_or("a key is needed")?),
    })
}

/// The public key of a file: the first block that PEM calls so.
fn public_key(file: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(file).ok()?;
    let (_, text) = text.split_once("-----BEGIN PUBLIC KEY-----")?;
    let (text, _) = text.split_once("-----END PUBLIC KEY-----")?;
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    Base64::Standard.decode(&digits)
}
