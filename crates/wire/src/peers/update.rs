//! Updates of entries.

use std::sync::Arc;

use super::{Column, Form, KeyKind, Malformed, TABLES, dictionary, form, frame, varint};

/// What the type of an update says of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateHead {
    /// Whether it has a number; without one, its number is one more than that of the previous update of the table.
    pub has_id: bool,
    /// Whether it has the time until the entry expires.
    pub is_timed: bool,
}

/// The first part of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update<'a> {
    /// Its number.
    pub id: Option<u32>,
    /// The time until the entry expires, in milliseconds.
    pub expire_ms: Option<u32>,
    /// The [key](read_key) and the [values](read_values).
    pub rest: &'a [u8],
}

fn word(bytes: &mut &[u8]) -> Result<u32, Malformed> {
    let (word, rest) = bytes.split_first_chunk().ok_or(Malformed)?;
    *bytes = rest;
    Ok(u32::from_be_bytes(*word))
}

impl<'a> Update<'a> {
    /// Reads the body of an update.
    ///
    /// # Errors
    /// It is malformed.
    pub fn read(head: UpdateHead, mut body: &'a [u8]) -> Result<Update<'a>, Malformed> {
        let id = head.has_id.then(|| word(&mut body)).transpose()?;
        let expire_ms = head.is_timed.then(|| word(&mut body)).transpose()?;
        Ok(Update { id, expire_ms, rest: body })
    }

    /// Appends an update; `rest` has its key and its values. `scratch` is emptied and used.
    pub fn write(&self, out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        let head = UpdateHead { has_id: self.id.is_some(), is_timed: self.expire_ms.is_some() };
        scratch.clear();
        for word in [self.id, self.expire_ms].into_iter().flatten() {
            scratch.extend_from_slice(&word.to_be_bytes());
        }
        scratch.extend_from_slice(self.rest);
        frame(TABLES, head.kind(), scratch, out);
    }
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// An integer.
    Integer(u32),
    /// A text, at most as long as keys of the table.
    Text(&'a [u8]),
    /// An address, or bytes of the length that keys of the table have.
    Bytes(&'a [u8]),
}

/// Returns the length of a key of a fixed length.
pub fn key_length(kind: KeyKind, size: u32) -> Option<u32> {
    match kind {
        KeyKind::Integer | KeyKind::Text => None,
        KeyKind::Ipv4 => Some(4),
        KeyKind::Ipv6 => Some(16),
        KeyKind::Binary => Some(size),
    }
}

/// Returns the key at the start of `rest`, and skips it. `size` is the size of the table's keys.
///
/// # Errors
/// It is malformed.
pub fn read_key<'a>(rest: &mut &'a [u8], kind: KeyKind, size: u32) -> Result<Key<'a>, Malformed> {
    match key_length(kind, size) {
        Some(length) => {
            let (key, behind) = rest.split_at_checked(length as usize).ok_or(Malformed)?;
            *rest = behind;
            Ok(Key::Bytes(key))
        }
        None if kind == KeyKind::Integer => word(rest).map(Key::Integer),
        None => {
            let length = usize::try_from(varint::take(rest)?).map_err(|_| Malformed)?;
            let (key, behind) = rest.split_at_checked(length).ok_or(Malformed)?;
            *rest = behind;
            Ok(Key::Text(&key[..length.min(size.saturating_sub(1) as usize)]))
        }
    }
}

/// Appends a key.
pub fn write_key(key: &Key<'_>, out: &mut Vec<u8>) {
    match key {
        Key::Integer(number) => out.extend_from_slice(&number.to_be_bytes()),
        Key::Bytes(bytes) => out.extend_from_slice(bytes),
        Key::Text(text) => {
            varint::write(text.len() as u64, out);
            out.extend_from_slice(text);
        }
    }
}

/// A rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The age of the current period in milliseconds.
    pub age_ms: u32,
    /// The events of the current period.
    pub current: u32,
    /// The events of the period before.
    pub previous: u32,
}

impl Rate {
    /// Appends the rate.
    pub fn write(&self, out: &mut Vec<u8>) {
        for part in [self.age_ms, self.current, self.previous] {
            varint::write(part.into(), out);
        }
    }

    /// Returns the rate at the start of `bytes`, and skips it.
    ///
    /// # Errors
    /// It is malformed.
    pub fn take(bytes: &mut &[u8]) -> Result<Rate, Malformed> {
        let mut take = || varint::take(bytes).map(|part| part as u32);
        Ok(Rate { age_ms: take()?, current: take()?, previous: take()? })
    }
}

/// A value of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A rate.
    Rate(Rate),
    /// A server's name, if there is one.
    Name(Option<Arc<str>>),
}

/// Appends the values of an update to `values`: those of each column in turn, elements of arrays one after another.
///
/// # Errors
/// They are malformed.
pub fn read_values(
    mut bytes: &[u8],
    columns: &[Column],
    names: &mut dictionary::Received,
    values: &mut Vec<Value>,
) -> Result<(), Malformed> {
    for column in columns {
        let (form, _) = form(column.number).ok_or(Malformed)?;
        for _ in 0..column.elements {
            values.push(match form {
                Form::Number => Value::Number(varint::take(&mut bytes)?),
                Form::Rate => Value::Rate(Rate::take(&mut bytes)?),
                Form::Name => Value::Name(names.take(&mut bytes)?),
            });
        }
    }
    Ok(())
}
