//! Fields of Protocol Buffers messages (`protobuf`) and of gRPC's (`ungrpc`).
//!
//! A field is named by its path of field numbers, e.g. `1.3`. The search is HAProxy's: one pass over the bytes that
//! enters each length-delimited field on the path and starts again with the first number once that field has ended.

use std::ops::Range;

/// The type as which a field is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// The unchanged bytes of the field.
    Binary,
    /// `int32`, `uint32`, `int64`, `uint64`, `bool`, `enum`.
    Varint,
    /// `sint32`, `sint64`.
    Zigzag,
    /// `fixed32`.
    Fixed32,
    /// `sfixed32`.
    Signed32,
    /// `float`.
    Float,
    /// `fixed64`, `sfixed64`.
    Fixed64,
    /// `double`.
    Double,
}

impl FieldType {
    /// Returns the type with this name.
    pub(super) fn named(name: &[u8]) -> Option<FieldType> {
        Some(match name {
            b"" => FieldType::Binary,
            b"int32" | b"uint32" | b"int64" | b"uint64" | b"bool" | b"enum" => FieldType::Varint,
            b"sint32" | b"sint64" => FieldType::Zigzag,
            b"fixed32" => FieldType::Fixed32,
            b"sfixed32" => FieldType::Signed32,
            b"float" => FieldType::Float,
            b"fixed64" | b"sfixed64" => FieldType::Fixed64,
            b"double" => FieldType::Double,
            _ => return None,
        })
    }
}

/// A field and the type as which it is read.
#[derive(Clone, Debug)]
pub struct FieldPath {
    /// The field's number, after the numbers of the fields that enclose it.
    pub(super) numbers: Box<[u32]>,
    pub(super) kind: FieldType,
}

/// A field's value.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Field {
    Integer(i64),
    /// The range of its bytes.
    Bytes(Range<usize>),
}

/// The length of the header of a gRPC message: a flag and a length.
const GRPC_HEAD: usize = 5;

impl FieldPath {
    /// Finds the field in a message.
    pub(super) fn find(&self, message: &[u8]) -> Option<Field> {
        let mut at = 0;
        self.search(message, &mut at, message.len())
    }

    /// Finds the field in a sequence of gRPC messages.
    pub(super) fn find_in_grpc(&self, bytes: &[u8]) -> Option<Field> {
        let mut at = 0;
        let mut left = bytes.len();
        while left > GRPC_HEAD {
            let head = bytes.get(at + 1..at + GRPC_HEAD)?;
            let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
            at += GRPC_HEAD;
            left -= GRPC_HEAD;
            if left < length {
                return None;
            }
            if let Some(field) = self.search(bytes, &mut at, length) {
                return Some(field);
            }
            left -= length;
        }
        None
    }

    /// Searches `left` bytes starting at `at`, which is advanced.
    fn search(&self, bytes: &[u8], at: &mut usize, left: usize) -> Option<Field> {
        let end = (*at + left).min(bytes.len());
        let mut level = 0;
        // The rest of the length-delimited field that contains the search.
        let mut inside = 0_i64;
        while *at < end {
            let mut before = *at;
            let key = varint(bytes, at, end)?;
            let found = (key >> 3) as u32 == *self.numbers.get(level)?;
            let last = found && level + 1 == self.numbers.len();
            match key & 7 {
                0 if last => return self.varint(bytes, *at, end),
                1 if last => return self.fixed64(bytes, *at, end),
                5 if last => return self.fixed32(bytes, *at, end),
                0 if !found => {
                    varint(bytes, at, end)?;
                }
                1 if !found => skip(at, 8, end)?,
                5 if !found => skip(at, 4, end)?,
                0 | 1 | 5 => {}
                2 => {
                    let length = varint(bytes, at, end)?;
                    let length = usize::try_from(length).ok().filter(|length| *length <= end - *at)?;
                    inside = length as i64;
                    before = *at;
                    if last {
                        return (self.kind == FieldType::Binary).then(|| Field::Bytes(*at..*at + length));
                    }
                    if !found {
                        skip(at, length, end)?;
                    }
                }
                _ => return None,
            }
            if inside > 0 {
                inside -= (*at - before) as i64;
            }
            if found {
                level += 1;
            } else if inside <= 0 {
                level = 0;
            }
        }
        None
    }

    fn varint(&self, bytes: &[u8], at: usize, end: usize) -> Option<Field> {
        let mut after = at;
        let number = varint(bytes, &mut after, end)?;
        Some(match self.kind {
            FieldType::Binary => Field::Bytes(at..after),
            FieldType::Varint => Field::Integer(number as i64),
            FieldType::Zigzag => Field::Integer((number >> 1) as i64 ^ -((number & 1) as i64)),
            _ => return None,
        })
    }

    fn fixed64(&self, bytes: &[u8], at: usize, end: usize) -> Option<Field> {
        let raw: [u8; 8] = bytes[at..end].first_chunk().copied()?;
        Some(match self.kind {
            FieldType::Binary => Field::Bytes(at..at + 8),
            FieldType::Fixed64 => Field::Integer(i64::from_le_bytes(raw)),
            // A fraction is cut off.
            FieldType::Double => Field::Integer(f64::from_le_bytes(raw) as i64),
            _ => return None,
        })
    }

    fn fixed32(&self, bytes: &[u8], at: usize, end: usize) -> Option<Field> {
        let raw: [u8; 4] = bytes[at..end].first_chunk().copied()?;
        Some(match self.kind {
            FieldType::Binary => Field::Bytes(at..at + 4),
            FieldType::Fixed32 => Field::Integer(u32::from_le_bytes(raw).into()),
            FieldType::Signed32 => Field::Integer(i32::from_le_bytes(raw).into()),
            // As HAProxy: the low 32 bits, without a sign.
            FieldType::Float => Field::Integer((f32::from_le_bytes(raw) as i64 as u32).into()),
            _ => return None,
        })
    }
}

fn skip(at: &mut usize, length: usize, end: usize) -> Option<()> {
    *at = at.checked_add(length).filter(|after| *after <= end)?;
    Some(())
}

/// Reads a varint of at most ten bytes; without any byte the value is 0.
fn varint(bytes: &[u8], at: &mut usize, end: usize) -> Option<u64> {
    let mut number = 0_u64;
    if *at >= end {
        return Some(0);
    }
    for place in 0..10 {
        let byte = *bytes[..end].get(*at)?;
        *at += 1;
        number |= u64::from(byte & 127) << (7 * place);
        if byte < 128 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(numbers: &[u32], kind: &str) -> FieldPath {
        FieldPath { numbers: numbers.into(), kind: FieldType::named(kind.as_bytes()).expect("a type") }
    }

    #[test]
    fn fields_are_found() {
        // 1: 150; 2: "ab"; 3 { 1: -1 (zigzag); 4: fixed32 7 }; 5: double 2.5
        let message = b"\x08\x96\x01\x12\x02ab\x1a\x07\x08\x01\x25\x07\0\0\0\x29\0\0\0\0\0\0\x04\x40";
        assert_eq!(path(&[1], "int32").find(message), Some(Field::Integer(150)));
        assert_eq!(path(&[1], "").find(message), Some(Field::Bytes(1..3)));
        assert_eq!(path(&[2], "").find(message), Some(Field::Bytes(5..7)));
        assert_eq!(path(&[2], "int32").find(message), None);
        assert_eq!(path(&[3, 1], "sint32").find(message), Some(Field::Integer(-1)));
        assert_eq!(path(&[3, 4], "fixed32").find(message), Some(Field::Integer(7)));
        assert_eq!(path(&[5], "double").find(message), Some(Field::Integer(2)));
        assert_eq!(path(&[3, 9], "").find(message), None);
        assert_eq!(path(&[1], "int32").find(b"\x08\x96"), None);
        let grpc = [b"\0\0\0\0\x02\x10\x05\0\0\0\0", &[message.len() as u8][..], message].concat();
        assert_eq!(path(&[1], "int32").find_in_grpc(&grpc), Some(Field::Integer(150)));
        assert_eq!(path(&[2], "int32").find_in_grpc(&grpc), Some(Field::Integer(5)));
    }
}
