//! Where values end, and what they are.

use std::io::Read;

use super::super::encode::*;
use super::super::{ElementTimes, Reader, Wrong};
use super::input::Input;
use super::{Fault, FaultKind};
use crate::object::limits::Limits;
use crate::value::Value;

const TYPE_MODULE_EARLY: u8 = 6;
const TYPE_MODULE: u8 = 7;

/// A value as a file has it, with the bytes borrowed from the reader or from a copy of them.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'f> {
    /// The number of its type.
    pub kind: u8,
    /// Whether the number is one of Valkey's, where those of Redis differ.
    pub is_valkey: bool,
    /// The object.
    pub object: &'f [u8],
    /// The times of its elements, if they are stored apart from it.
    pub times: Option<&'f [u8]>,
}

impl<'f> Stored<'f> {
    /// Returns the value, which borrows a string that is in the file as it is; [`None`] if it has no elements: Redis
    /// skips such a key.
    pub fn decode(self, limits: &Limits) -> Result<Option<Value<'f>>, FaultKind> {
        let mut reader = Reader(self.object);
        if self.kind == TYPE_STRING && self.times.is_none() {
            let text = reader.string().map_err(|_| FaultKind::Value(integrity(self.kind)))?;
            return Ok(Some(text.into_borrowed()));
        }
        let attributes = |_| FaultKind::Attributes;
        let mut times = self.times.map(ElementTimes::new).transpose().map_err(attributes)?;
        match reader.value(self.kind, self.is_valkey, times.as_mut(), limits) {
            Ok(_) if times.is_some_and(|times| !times.rest.0.is_empty()) => Err(FaultKind::Attributes),
            Ok(value) => Ok(Some(value)),
            Err(Wrong::Empty) => Ok(None),
            Err(_) => Err(FaultKind::Value(integrity(self.kind))),
        }
    }
}

/// Returns Redis's text for a malformed value of a type.
fn integrity(kind: u8) -> &'static str {
    match kind {
        TYPE_STRING => "Invalid LZF compressed string",
        TYPE_LIST => "List integrity check failed.",
        TYPE_LIST_ZIPLIST => "List ziplist integrity check failed.",
        TYPE_LIST_QUICKLIST => "Ziplist integrity check failed.",
        TYPE_LIST_QUICKLIST_2 => "Listpack integrity check failed.",
        TYPE_SET | TYPE_SET_EXPIRING => "Duplicate set members detected",
        TYPE_SET_INTSET => "Intset integrity check failed.",
        TYPE_SET_LISTPACK => "Set listpack integrity check failed.",
        TYPE_ZSET | TYPE_ZSET_2 => "Duplicate zset fields detected",
        TYPE_ZSET_ZIPLIST => "Zset ziplist integrity check failed.",
        TYPE_ZSET_LISTPACK => "Zset listpack integrity check failed.",
        TYPE_HASH_ZIPMAP => "Zipmap integrity check failed.",
        TYPE_HASH_ZIPLIST => "Hash ziplist integrity check failed.",
        TYPE_HASH_LISTPACK | TYPE_HASH_LISTPACK_EX => "Hash listpack integrity check failed.",
        TYPE_STREAM | TYPE_STREAM_2 | TYPE_STREAM_3 => "Stream listpack integrity check failed.",
        _ => "Duplicate hash fields detected",
    }
}

/// Returns the name of a module's type, which is a number in the file.
pub(super) fn module_name(id: u64) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    // Nine letters of six bits, then ten bits of the version.
    (1..10).map(|letter| char::from(LETTERS[(id >> (64 - 6 * letter) & 63) as usize])).collect()
}

impl<R: Read> Input<R> {
    fn each(&mut self, mut part: impl FnMut(&mut Input<R>) -> Result<(), FaultKind>) -> Result<(), FaultKind> {
        // Every part has a byte, so that the file ends before a number that is too large does.
        (0..self.length()?).try_for_each(|_| part(self))
    }

    /// Reads over a value.
    pub(super) fn skip_value(&mut self, kind: u8, is_valkey: bool) -> Result<(), FaultKind> {
        match kind {
            TYPE_STRING | TYPE_LIST_ZIPLIST | TYPE_SET_INTSET | TYPE_SET_LISTPACK | TYPE_ZSET_ZIPLIST
            | TYPE_ZSET_LISTPACK | TYPE_HASH_ZIPMAP | TYPE_HASH_ZIPLIST | TYPE_HASH_LISTPACK => self.skip_string(),
            TYPE_LIST | TYPE_SET | TYPE_LIST_QUICKLIST => self.each(Input::skip_string),
            TYPE_LIST_QUICKLIST_2 => self.each(|input| {
                input.length()?;
                input.skip_string()
            }),
            TYPE_SET_EXPIRING | TYPE_ZSET_2 => self.each(|input| {
                input.skip_string()?;
                input.skip(8)
            }),
            TYPE_ZSET => self.each(|input| {
                input.skip_string()?;
                match input.byte()? {
                    253..=255 => Ok(()),
                    len => input.skip(usize::from(len)),
                }
            }),
            TYPE_HASH => self.each(|input| {
                input.skip_string()?;
                input.skip_string()
            }),
            TYPE_HASH_VALKEY if is_valkey => self.each(|input| {
                input.skip_string()?;
                input.skip_string()?;
                input.skip(8)
            }),
            TYPE_HASH_METADATA if !is_valkey => {
                self.skip(8)?;
                self.each(|input| {
                    input.length()?;
                    input.skip_string()?;
                    input.skip_string()
                })
            }
            TYPE_HASH_LISTPACK_EX if !is_valkey => {
                self.skip(8)?;
                self.skip_string()
            }
            TYPE_STREAM | TYPE_STREAM_2 | TYPE_STREAM_3 => self.skip_stream(kind),
            TYPE_MODULE => Err(FaultKind::Module(module_name(self.length()?))),
            TYPE_MODULE_EARLY => Err(FaultKind::EarlyModule),
            other => Err(FaultKind::Type(other)),
        }
    }

    fn skip_stream(&mut self, kind: u8) -> Result<(), FaultKind> {
        self.each(|input| {
            input.skip_string()?;
            input.skip_string()
        })?;
        self.skip_lengths(if kind == TYPE_STREAM { 3 } else { 8 })?;
        self.each(|input| {
            input.skip_string()?;
            input.skip_lengths(if kind == TYPE_STREAM { 2 } else { 3 })?;
            input.each(|input| {
                input.skip(16 + 8)?;
                input.skip_lengths(1)
            })?;
            input.each(|input| {
                input.skip_string()?;
                input.skip(if kind == TYPE_STREAM_3 { 16 } else { 8 })?;
                input.each(|input| input.skip(16))
            })
        })
    }

    pub(super) fn skip_lengths(&mut self, count: usize) -> Result<(), FaultKind> {
        (0..count).try_for_each(|_| self.length().map(drop))
    }

    /// Reads over the data of a module, and returns its name.
    pub(super) fn skip_module(&mut self) -> Result<String, FaultKind> {
        const UNSIGNED: u64 = 2;
        let name = module_name(self.length()?);
        if self.length()? != UNSIGNED {
            return Err(FaultKind::ModuleAux);
        }
        self.length()?;
        loop {
            match self.length()? {
                0 => return Ok(name),
                1 | UNSIGNED => self.skip_lengths(1)?,
                3 => self.skip(4)?,
                4 => self.skip(8)?,
                5 => self.skip_string()?,
                _ => return Err(FaultKind::ModuleAux),
            }
        }
    }

    /// Reads over the slots that a node of Valkey imports.
    pub(super) fn skip_import(&mut self) -> Result<(), FaultKind> {
        self.skip_string()?;
        self.each(|input| input.skip_lengths(2))
    }

    /// Returns a fault with its place.
    pub(super) fn fault(&self, kind: FaultKind, key: Option<&[u8]>) -> Fault {
        Fault { kind, offset: self.offset(), key: key.map(<[u8]>::to_vec) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_named() {
        // "test-type" with version 5.
        let letters = [45, 30, 44, 45, 62, 45, 50, 41, 30];
        let id = letters.iter().fold(0_u64, |id, letter| id << 6 | letter) << 10 | 5;
        assert_eq!(module_name(id), "test-type");
    }
}
