//! Values in Redis's serialised form: the payloads of DUMP and RESTORE.
//!
//! ```text
//! type (1)   object …   version (2, little endian)   CRC-64 of everything before it (8, little endian)
//! ```
//!
//! The object is that of an RDB file (type 0: a string). Lengths have 6, 14, 32 or 64 bits, big-endian; a length whose
//! first two bits are set is instead the encoding of the string: as an integer of 8, 16 or 32 bits, little-endian, or
//! compressed (`lzf`). The written version is 10, which Redis 7.0 loads; versions up to 12 are read. Bytes after the
//! object are ignored, as in Redis; a truncated object is refused, where Redis reads on into the trailer.
//!
//! A payload comes from a peer: all its lengths are checked against the available bytes, so a malformed one allocates
//! at most 88 times its length, and never more than [`STRING_MAX`]. A string longer than that is refused, where Redis
//! allocates it.
//!
//! Another type adds its number to [`restore`] and its object to [`dump`], both over the same lengths and strings.

pub mod crc64;
pub mod encode;
pub mod file;
mod library;
mod lzf;
mod stream;
mod ziplist;
mod zipmap;

use crate::object::elements::{Expiry, TIMELESS};
use crate::object::hash::EXPIRY_MAX;
use crate::object::limits::Limits;
use crate::object::list::End;
use crate::object::{Hash, Kind, List, Packed, Set, Zset, score};
use crate::value::{STRING_MAX, Value, View};
use crc64::crc64;
use encode::{
    CHECKSUM_BYTES, ENCODED, Form, INT_8, INT_16, INT_32, LEN_14, LEN_32, LEN_64, LZF, NODE_LISTPACK, NODE_PLAIN, Out,
    TYPE_HASH, TYPE_HASH_LISTPACK, TYPE_HASH_LISTPACK_EX, TYPE_HASH_METADATA, TYPE_HASH_VALKEY, TYPE_HASH_ZIPLIST,
    TYPE_HASH_ZIPMAP, TYPE_LIST, TYPE_LIST_QUICKLIST, TYPE_LIST_QUICKLIST_2, TYPE_LIST_ZIPLIST, TYPE_SET,
    TYPE_SET_EXPIRING, TYPE_SET_INTSET, TYPE_SET_LISTPACK, TYPE_STREAM, TYPE_STREAM_2, TYPE_STREAM_3, TYPE_STRING,
    TYPE_ZSET, TYPE_ZSET_2, TYPE_ZSET_LISTPACK, TYPE_ZSET_ZIPLIST, VERSION, VERSION_BYTES, VERSION_MAX, VERSION_VALKEY,
    put_integer, put_raw, seal,
};
pub use encode::{sealed, sealed_of_any_version};
pub use library::{dump_libraries, restore_libraries};

/// The reason why a payload cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// It is of a later version, or was changed after the dump.
    #[error("ERR DUMP payload version or checksum are wrong")]
    Envelope,
    /// Its object has no elements, so that there is no such key.
    #[error("ERR Bad data format")]
    Empty,
    /// Its object is malformed, or of a type that this store does not have.
    #[error("ERR Bad data format")]
    Object,
}

/// Returns a value's payload.
pub fn dump(value: &Value<'_>) -> Vec<u8> {
    match (value, value.string()) {
        (Value::Object(object), _) => {
            let mut out = Vec::new();
            object.dump(Form::PAYLOAD, &mut Out::whole(&mut out));
            sealed_of_any_version(out)
        }
        (_, view) => dump_string(view.unwrap_or(View::Bytes(b""))),
    }
}

fn dump_string(value: View<'_>) -> Vec<u8> {
    let mut out = vec![TYPE_STRING];
    match value {
        View::Int(value) => put_integer(value, &mut out),
        View::Bytes(bytes) => Form::PAYLOAD.put_string(bytes, &mut out),
    }
    seal(out, VERSION)
}

/// Returns whether files and payloads of this version are read.
fn is_known(version: u16) -> bool {
    version <= VERSION_MAX || version == VERSION_VALKEY
}

/// Returns the content of a payload and its version, if that is known and its checksum is right.
fn opened(payload: &[u8]) -> Result<(&[u8], u16), Wrong> {
    let (object, version) = opened_unchecked(payload).ok_or(Wrong::Envelope)?;
    let (body, checksum) = payload.split_last_chunk::<CHECKSUM_BYTES>().ok_or(Wrong::Envelope)?;
    if !is_known(version) || u64::from_le_bytes(*checksum) != crc64(body) {
        return Err(Wrong::Envelope);
    }
    Ok((object, version))
}

/// Returns whether Redis 7.0 and all later servers read a payload, judging by its version and its type.
pub fn is_of_redis_7(payload: &[u8]) -> bool {
    opened_unchecked(payload).is_some_and(|(object, version)| {
        version <= VERSION && object.first().is_some_and(|kind| *kind <= TYPE_STREAM_2)
    })
}

/// Returns the content of a payload and its version.
fn opened_unchecked(payload: &[u8]) -> Option<(&[u8], u16)> {
    let (body, _) = payload.split_last_chunk::<CHECKSUM_BYTES>()?;
    let (object, version) = body.split_last_chunk::<VERSION_BYTES>()?;
    Some((object, u16::from_le_bytes(*version)))
}

/// Returns the value of a payload.
pub fn restore(payload: &[u8], limits: &Limits) -> Result<Value<'static>, Wrong> {
    let (object, version) = opened(payload)?;
    let mut reader = Reader(object);
    let kind = reader.byte()?;
    reader.value(kind, version >= VERSION_VALKEY, None, limits)
}

/// Refuses a listpack or an intset without elements.
fn refuse_empty(bytes: &[u8]) -> Result<(), Wrong> {
    match bytes {
        [7, 0, 0, 0, 0, 0, 0xff] | [2 | 4 | 8, 0, 0, 0, 0, 0, 0, 0] => Err(Wrong::Empty),
        _ => Ok(()),
    }
}

/// Returns a list that was read, unless it is empty.
fn list_value(list: List) -> Result<Value<'static>, Wrong> {
    if list.len() == 0 { Err(Wrong::Empty) } else { Ok(Value::Object(list.into_object())) }
}

fn push(list: &mut List, text: &[u8], limits: &Limits) {
    list.make_room(&[text], limits);
    list.push(End::Tail, text, limits);
}

fn push_ziplist(list: &mut List, bytes: &[u8], limits: &Limits) -> Result<(), Wrong> {
    ziplist::each(bytes, |element| push(list, element.text(&mut itoa::Buffer::new()), limits))
}

/// Returns the elements of a ziplist.
fn texts_of(bytes: &[u8]) -> Result<Vec<Vec<u8>>, Wrong> {
    let mut texts = Vec::new();
    ziplist::each(bytes, |element| texts.push(element.text(&mut itoa::Buffer::new()).to_vec()))?;
    Ok(texts)
}

/// A string in the encoding of the payload.
enum Text<'a> {
    Int(i64),
    Bytes(&'a [u8]),
    Own(Vec<u8>),
}

impl Text<'_> {
    fn into_bytes(self) -> Vec<u8> {
        match self {
            Text::Int(value) => itoa::Buffer::new().format(value).as_bytes().to_vec(),
            Text::Bytes(bytes) => bytes.to_vec(),
            Text::Own(bytes) => bytes,
        }
    }

    /// Returns the string as SET would store it.
    fn into_value(self) -> Value<'static> {
        match self.into_borrowed() {
            Value::Bytes { bytes, raw } => Value::Vec { bytes: bytes.to_vec(), raw },
            Value::Int(value) => Value::Int(value),
            Value::Vec { bytes, raw } => Value::Vec { bytes, raw },
            Value::Shared { bytes, raw } => Value::Shared { bytes, raw },
            Value::Object(object) => Value::Object(object),
        }
    }
}

impl<'a> Text<'a> {
    /// Returns the string as SET would store it, without a copy if it is there as it is.
    #[inline]
    fn into_borrowed(self) -> Value<'a> {
        match self {
            Text::Int(value) => Value::Int(value),
            Text::Bytes(bytes) => Value::of(bytes),
            Text::Own(bytes) => match Value::of(&bytes) {
                Value::Int(value) => Value::Int(value),
                _ => Value::Vec { bytes, raw: false },
            },
        }
    }
}

/// The value in a place for a length.
enum Length {
    /// A number of bytes or elements.
    Of(usize),
    /// A string in the encoding of this first byte.
    Encoded(u8),
}

/// Returns the time that is `later - 1` milliseconds after another, if it is no later than `max_ms`.
fn later_than(base_ms: i64, later: usize, max_ms: i64) -> Result<i64, Wrong> {
    let at_ms = i64::try_from(later - 1).ok().and_then(|later| later.checked_add(base_ms));
    at_ms.filter(|at_ms| (1..=max_ms).contains(at_ms)).ok_or(Wrong::Object)
}

/// Times of a value's elements, in the order of the elements: the earliest in 8 bytes, little endian, and for each
/// element a length, as in [`TYPE_HASH_METADATA`].
struct ElementTimes<'a> {
    base_ms: i64,
    rest: Reader<'a>,
}

impl<'a> ElementTimes<'a> {
    fn new(bytes: &'a [u8]) -> Result<ElementTimes<'a>, Wrong> {
        let mut rest = Reader(bytes);
        Ok(ElementTimes { base_ms: i64::from_le_bytes(rest.array()?), rest })
    }

    fn next(&mut self, max_ms: i64) -> Result<Option<i64>, Wrong> {
        match self.rest.plain_length()? {
            0 => Ok(None),
            later => later_than(self.base_ms, later, max_ms).map(Some),
        }
    }
}

/// Reads an object from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads an object of a type. `is_valkey` tells whose type a number is that Redis and Valkey use differently; `times`
    /// are those of the elements, if they are stored apart from them.
    fn value(
        &mut self,
        kind: u8,
        is_valkey: bool,
        times: Option<&mut ElementTimes<'_>>,
        limits: &Limits,
    ) -> Result<Value<'static>, Wrong> {
        if !matches!(kind, TYPE_SET | TYPE_HASH | TYPE_STREAM_2) && times.is_some() {
            return Err(Wrong::Object);
        }
        match kind {
            TYPE_STRING => Ok(self.string()?.into_value()),
            TYPE_LIST => self.list(|reader, list| {
                push(list, &reader.string()?.into_bytes(), limits);
                Ok(())
            }),
            TYPE_LIST_ZIPLIST => {
                let mut list = List::empty();
                push_ziplist(&mut list, &self.string()?.into_bytes(), limits)?;
                list_value(list)
            }
            TYPE_LIST_QUICKLIST => self.list(|reader, list| push_ziplist(list, &reader.string()?.into_bytes(), limits)),
            TYPE_LIST_QUICKLIST_2 => self.quicklist(limits),
            TYPE_SET => self.set(times, limits),
            TYPE_SET_EXPIRING => self.expiring_set(limits),
            kind @ (TYPE_SET_INTSET | TYPE_SET_LISTPACK) => {
                let bytes = self.string()?.into_bytes();
                refuse_empty(&bytes)?;
                let read = if kind == TYPE_SET_INTSET { Set::of_intset } else { Set::of_listpack };
                Ok(Value::Object(read(&bytes, limits).ok_or(Wrong::Object)?.into_object()))
            }
            TYPE_HASH => self.hash(times, limits),
            kind @ (TYPE_HASH_ZIPMAP | TYPE_HASH_ZIPLIST) => {
                let bytes = self.string()?.into_bytes();
                let mut texts = Vec::new();
                match kind {
                    TYPE_HASH_ZIPMAP => {
                        zipmap::each(&bytes, |field, value| texts.extend([field.to_vec(), value.to_vec()]))?
                    }
                    _ => texts = texts_of(&bytes)?,
                }
                let mut hash = Hash::empty();
                for pair in texts.chunks(2) {
                    let [field, value] = pair else { return Err(Wrong::Object) };
                    if !hash.insert(field, value, Expiry::None, TIMELESS, limits) {
                        return Err(Wrong::Object);
                    }
                }
                if texts.is_empty() { Err(Wrong::Empty) } else { Ok(Value::Object(hash.into_object())) }
            }
            TYPE_HASH_LISTPACK => {
                let bytes = self.string()?.into_bytes();
                refuse_empty(&bytes)?;
                let hash = Hash::of_listpack(&bytes, false, limits).ok_or(Wrong::Object)?;
                Ok(Value::Object(hash.into_object()))
            }
            TYPE_HASH_VALKEY if is_valkey => self.hash_of_valkey(limits),
            TYPE_HASH_METADATA => self.expiring_hash(limits),
            TYPE_HASH_LISTPACK_EX => {
                // The earliest time follows from the listpack.
                self.array::<8>()?;
                let bytes = self.string()?.into_bytes();
                refuse_empty(&bytes)?;
                let hash = Hash::of_listpack(&bytes, true, limits).ok_or(Wrong::Object)?;
                Ok(Value::Object(hash.into_object()))
            }
            kind @ (TYPE_ZSET | TYPE_ZSET_2) => self.zset(kind, limits),
            TYPE_ZSET_ZIPLIST => {
                let texts = texts_of(&self.string()?.into_bytes())?;
                let mut zset = Zset::empty();
                for pair in texts.chunks(2) {
                    let [member, score] = pair else { return Err(Wrong::Object) };
                    let score = score::parse(score).filter(|score| !score.is_nan()).ok_or(Wrong::Object)?;
                    if zset.set(member, score, limits).is_some() {
                        return Err(Wrong::Object);
                    }
                }
                if texts.is_empty() { Err(Wrong::Empty) } else { Ok(Value::Object(zset.into_object())) }
            }
            TYPE_ZSET_LISTPACK => {
                let bytes = self.string()?.into_bytes();
                refuse_empty(&bytes)?;
                let zset = Zset::of_listpack(&bytes, limits).ok_or(Wrong::Object)?;
                Ok(Value::Object(zset.into_object()))
            }
            kind @ (TYPE_STREAM | TYPE_STREAM_2 | TYPE_STREAM_3) => self.stream(kind, times),
            _ => Err(Wrong::Object),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Wrong> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Wrong::Object)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], Wrong> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Wrong::Object)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, Wrong> {
        self.array().map(|[byte]| byte)
    }

    fn length(&mut self) -> Result<Length, Wrong> {
        let first = self.byte()?;
        let len = match (first & ENCODED, first) {
            (ENCODED, _) => return Ok(Length::Encoded(first)),
            (0, _) => u64::from(first),
            (LEN_14, _) => u64::from(u16::from_be_bytes([first & !ENCODED, self.byte()?])),
            (_, LEN_32) => u64::from(u32::from_be_bytes(self.array()?)),
            (_, LEN_64) => u64::from_be_bytes(self.array()?),
            _ => return Err(Wrong::Object),
        };
        usize::try_from(len).map(Length::Of).map_err(|_| Wrong::Object)
    }

    fn plain_length(&mut self) -> Result<usize, Wrong> {
        match self.length()? {
            Length::Of(len) => Ok(len),
            Length::Encoded(_) => Err(Wrong::Object),
        }
    }

    /// Reads a list with the given number of parts, each read by `add`.
    fn list(&mut self, add: impl Fn(&mut Reader<'a>, &mut List) -> Result<(), Wrong>) -> Result<Value<'static>, Wrong> {
        let mut list = List::empty();
        for _ in 0..self.plain_length()? {
            add(self, &mut list)?;
        }
        list_value(list)
    }

    /// Reads nodes; empty ones are skipped.
    fn quicklist(&mut self, limits: &Limits) -> Result<Value<'static>, Wrong> {
        let mut blocks = Vec::new();
        for _ in 0..self.plain_length()? {
            let container = self.plain_length()?;
            let bytes = self.string()?.into_bytes();
            let packed = match container {
                // As in Redis, which keeps an empty element in a listpack.
                NODE_PLAIN if !bytes.is_empty() => {
                    let mut packed = Packed::new();
                    packed.push_back(&bytes);
                    packed
                }
                NODE_LISTPACK => Packed::parse(&bytes).ok_or(Wrong::Object)?,
                _ => return Err(Wrong::Object),
            };
            if !packed.is_empty() {
                blocks.push(packed);
            }
        }
        list_value(List::of_blocks(blocks, limits))
    }

    /// Reads members; a repeated one is refused.
    fn set(&mut self, mut times: Option<&mut ElementTimes<'_>>, limits: &Limits) -> Result<Value<'static>, Wrong> {
        let len = self.plain_length()?;
        let mut set = Set::empty();
        for index in 0..len {
            let member = self.string()?.into_bytes();
            if index == 0 {
                // An announced number of members that the payload can't contain must not determine the form.
                set = Set::for_members(&member, len.min(self.0.len() + 1), limits);
            }
            let new = match times.as_mut().map(|times| times.next(i64::MAX)).transpose()?.flatten() {
                None => set.add(&member, TIMELESS, limits),
                Some(at_ms) => set.add_expiring(&member, at_ms, false, TIMELESS),
            };
            if !new {
                return Err(Wrong::Object);
            }
        }
        if len == 0 { Err(Wrong::Empty) } else { Ok(Value::Object(set.into_object())) }
    }

    /// Reads members with their times.
    fn expiring_set(&mut self, limits: &Limits) -> Result<Value<'static>, Wrong> {
        let len = self.plain_length()?;
        let mut set = Set::empty();
        for _ in 0..len {
            let member = self.string()?.into_bytes();
            let new = match i64::from_le_bytes(self.array()?) {
                0 => set.add(&member, TIMELESS, limits),
                at_ms => set.add_expiring(&member, at_ms, false, TIMELESS),
            };
            if !new {
                return Err(Wrong::Object);
            }
        }
        if len == 0 { Err(Wrong::Empty) } else { Ok(Value::Object(set.into_object())) }
    }

    /// Reads fields and values; a repeated field is refused.
    fn hash(&mut self, mut times: Option<&mut ElementTimes<'_>>, limits: &Limits) -> Result<Value<'static>, Wrong> {
        let mut hash = Hash::empty();
        let len = self.plain_length()?;
        for _ in 0..len {
            let (field, value) = (self.string()?.into_bytes(), self.string()?.into_bytes());
            let at_ms = times.as_mut().map(|times| times.next(EXPIRY_MAX)).transpose()?.flatten();
            if !hash.insert(&field, &value, at_ms.map_or(Expiry::None, Expiry::At), TIMELESS, limits) {
                return Err(Wrong::Object);
            }
        }
        if len == 0 { Err(Wrong::Empty) } else { Ok(Value::Object(hash.into_object())) }
    }

    /// Reads fields and values, each with its time; a repeated field is refused.
    fn hash_of_valkey(&mut self, limits: &Limits) -> Result<Value<'static>, Wrong> {
        let mut hash = Hash::empty();
        let len = self.plain_length()?;
        for _ in 0..len {
            let (field, value) = (self.string()?.into_bytes(), self.string()?.into_bytes());
            let expiry = match i64::from_le_bytes(self.array()?) {
                -1 => Expiry::None,
                at_ms @ 0..=EXPIRY_MAX => Expiry::At(at_ms.max(1)),
                _ => return Err(Wrong::Object),
            };
            if !hash.insert(&field, &value, expiry, TIMELESS, limits) {
                return Err(Wrong::Object);
            }
        }
        if len == 0 { Err(Wrong::Empty) } else { Ok(Value::Object(hash.into_object())) }
    }

    /// Reads fields and values with their times.
    fn expiring_hash(&mut self, limits: &Limits) -> Result<Value<'static>, Wrong> {
        let mut hash = Hash::empty();
        let base_ms = i64::from_le_bytes(self.array()?);
        let len = self.plain_length()?;
        for _ in 0..len {
            let expiry = match self.plain_length()? {
                0 => Expiry::None,
                later => Expiry::At(later_than(base_ms, later, EXPIRY_MAX)?),
            };
            let (field, value) = (self.string()?.into_bytes(), self.string()?.into_bytes());
            if !hash.insert(&field, &value, expiry, TIMELESS, limits) {
                return Err(Wrong::Object);
            }
        }
        if len == 0 { Err(Wrong::Empty) } else { Ok(Value::Object(hash.into_object())) }
    }

    /// Reads members and scores; a repeated member is refused, and so is a score that is not a number.
    fn zset(&mut self, kind: u8, limits: &Limits) -> Result<Value<'static>, Wrong> {
        let len = self.plain_length()?;
        let mut zset = Zset::for_members(len, 0, limits);
        let mut member = || -> Result<(Vec<u8>, f64), Wrong> {
            let member = self.string()?.into_bytes();
            let score = if kind == TYPE_ZSET { self.score_text()? } else { f64::from_le_bytes(self.array()?) };
            Ok((member, score))
        };
        let add = |zset: &mut Zset, member: &[u8], score: f64| match score.is_nan()
            || zset.set(member, score, limits).is_some()
        {
            true => Err(Wrong::Object),
            false => Ok(()),
        };
        if zset.is_small() {
            // One long member makes it a large one, which keeps the sign of -0 of those before it, too.
            let members: Vec<(Vec<u8>, f64)> = (0..len).map(|_| member()).collect::<Result<_, _>>()?;
            zset = Zset::for_members(len, members.iter().map(|(member, _)| member.len()).max().unwrap_or(0), limits);
            members.iter().try_for_each(|(member, score)| add(&mut zset, member, *score))?;
        } else {
            for _ in 0..len {
                let (member, score) = member()?;
                add(&mut zset, &member, score)?;
            }
        }
        if len == 0 { Err(Wrong::Empty) } else { Ok(Value::Object(zset.into_object())) }
    }

    /// Reads a score as a text after its length of one byte, whose highest values mean NaN and infinities.
    fn score_text(&mut self) -> Result<f64, Wrong> {
        match self.byte()? {
            253 => Ok(f64::NAN),
            254 => Ok(f64::INFINITY),
            255 => Ok(f64::NEG_INFINITY),
            len => score::parse(self.take(usize::from(len))?).ok_or(Wrong::Object),
        }
    }

    fn string(&mut self) -> Result<Text<'a>, Wrong> {
        match self.length()? {
            Length::Of(len) => self.take(len).map(Text::Bytes),
            Length::Encoded(INT_8) => Ok(Text::Int(i8::from_le_bytes(self.array()?).into())),
            Length::Encoded(INT_16) => Ok(Text::Int(i16::from_le_bytes(self.array()?).into())),
            Length::Encoded(INT_32) => Ok(Text::Int(i32::from_le_bytes(self.array()?).into())),
            Length::Encoded(LZF) => {
                let (packed, len) = (self.plain_length()?, self.plain_length()?);
                let packed = self.take(packed)?;
                if len > STRING_MAX {
                    return Err(Wrong::Object);
                }
                lzf::decompress(packed, len).map(Text::Own).ok_or(Wrong::Object)
            }
            Length::Encoded(_) => Err(Wrong::Object),
        }
    }
}

/// Restores untrusted bytes: unchanged, and with a valid trailer so that the object is reached. Must not panic, a value
/// is never longer than its payload allows, and a restored value is unchanged after another dump and restore.
pub fn fuzz_restore(data: &[u8]) {
    let _ = restore_libraries(&seal(data.to_vec(), VERSION));
    let limits = Limits::new();
    let _ = restore(data, &limits);
    for object in [data.to_vec(), [&[TYPE_STRING], data].concat(), [&[TYPE_STRING, LZF], data].concat()] {
        let longest = object.len().saturating_mul(88).max(20);
        let Ok(value) = restore(&seal(object, VERSION), &limits) else { continue };
        let Some(view) = value.string() else { continue };
        assert!(view.len() <= longest);
        round_trip(view);
    }
    let sets = [TYPE_SET, TYPE_SET_INTSET, TYPE_SET_LISTPACK, TYPE_SET_EXPIRING];
    let zsets = [TYPE_ZSET, TYPE_ZSET_2, TYPE_ZSET_LISTPACK];
    let hashes = [TYPE_HASH, TYPE_HASH_LISTPACK, TYPE_HASH_METADATA, TYPE_HASH_LISTPACK_EX];
    let lists = [TYPE_LIST, TYPE_LIST_ZIPLIST, TYPE_LIST_QUICKLIST, TYPE_LIST_QUICKLIST_2];
    let streams = [TYPE_STREAM, TYPE_STREAM_2, TYPE_STREAM_3];
    for kind in streams {
        // The bytes of a node, which are most of a payload.
        let node = |out: &mut Vec<u8>| put_raw(data, out);
        let mut object = vec![kind, 1];
        put_raw(&[0; 16], &mut object);
        node(&mut object);
        object.extend([1; 10]);
        object.push(0);
        fuzz_object(&object[..object.len() - if kind == TYPE_STREAM { 5 } else { 1 }]);
        fuzz_object(&object);
        stream::fuzz_groups(kind, data);
    }
    let old = [TYPE_HASH_ZIPMAP, TYPE_ZSET_ZIPLIST, TYPE_HASH_ZIPLIST];
    for kind in sets.into_iter().chain(zsets).chain(hashes).chain(lists).chain(old) {
        fuzz_object(&[&[kind], data].concat());
        // As one string, as the forms in one block are written.
        let mut object = vec![kind];
        if kind == TYPE_HASH_LISTPACK_EX {
            object.extend([0; 8]);
        }
        put_raw(data, &mut object);
        fuzz_object(&object);
    }
    round_trip(View::Bytes(data));
    round_trip(View::Bytes(&data.repeat(9)));
}

/// Asserts that the value restored from these bytes has the same number of elements after another dump and restore.
fn fuzz_object(object: &[u8]) {
    let Ok(Value::Object(value)) = restore(&seal(object.to_vec(), VERSION), &Limits::new()) else { return };
    let len = value.len();
    assert!(len > 0 && len <= object.len().saturating_mul(88));
    let Ok(Value::Object(again)) = restore(&dump(&Value::Object(value)), &Limits::new()) else {
        panic!("a payload of our own")
    };
    assert_eq!(again.len(), len);
}

fn round_trip(value: View<'_>) {
    let again = restore(&dump_string(value), &Limits::new()).expect("a payload of our own");
    let (mut digits, mut digits_again) = (itoa::Buffer::new(), itoa::Buffer::new());
    assert!(again.string().expect("a string").text(&mut digits_again) == value.text(&mut digits));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Object;
    use crate::random::{damage, numbers};

    #[track_caller]
    fn check(value: &[u8], object: &[u8]) {
        for view in [View::Bytes(value), Value::of(value).string().unwrap()] {
            let payload = dump_string(view);
            assert_eq!(payload[..payload.len() - 10], *object);
            assert_eq!(payload[payload.len() - 10..payload.len() - 8], [10, 0]);
            round_trip(view);
        }
    }

    #[test]
    fn strings_are_written_as_redis_writes_them() {
        check(b"", b"\0\0");
        check(b"abc", b"\0\x03abc");
        check(b"0", b"\0\xc0\0");
        check(b"-128", b"\0\xc0\x80");
        check(b"128", b"\0\xc1\x80\0");
        check(b"-32768", b"\0\xc1\0\x80");
        check(b"32768", b"\0\xc2\0\x80\0\0");
        check(b"-2147483648", b"\0\xc2\0\0\0\x80");
        check(b"2147483648", b"\0\x0a2147483648");
        check(b"-9223372036854775808", b"\0\x14-9223372036854775808");
        check(b"007", b"\0\x03007");
        check(&[b'a'; 20], &[b"\0\x14", &[b'a'; 20][..]].concat());
        check(&[b'a'; 21], b"\0\xc3\x05\x15\0a\xe0\x0b\0");
    }

    #[test]
    fn lengths_of_all_widths_are_read() {
        let text = [b'x'; 300];
        for (len, head) in [
            (3, &b"\x03"[..]),
            (3, b"\x40\x03"),
            (300, b"\x41\x2c"),
            (300, b"\x80\0\0\x01\x2c"),
            (300, b"\x81\0\0\0\0\0\0\x01\x2c"),
        ] {
            // Bytes after the object are ignored.
            let value = restore(&seal([b"\0", head, &text].concat(), VERSION_MAX), &Limits::new()).expect("a string");
            assert_eq!(value.string().unwrap().len(), len);
        }
    }

    #[test]
    fn wrong_payloads_are_refused() {
        let good = dump_string(View::Bytes(b"value"));
        for len in 0..good.len() {
            assert_eq!(restore(&good[..len], &Limits::new()).err(), Some(Wrong::Envelope));
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(restore(&bad, &Limits::new()).err(), Some(Wrong::Envelope));
        }
        assert_eq!(restore(&seal(b"\0\x01a".to_vec(), 13), &Limits::new()).err(), Some(Wrong::Envelope));
        for object in [
            &b""[..],
            b"\0",
            b"\x01\x01a",
            b"\0\x02a",
            b"\0\x40",
            b"\0\x82",
            b"\0\xbf",
            b"\0\x80\0\0\0",
            b"\0\x81\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\0\xc0",
            b"\0\xc1\0",
            b"\0\xc2\0\0\0",
            b"\0\xc4",
            b"\0\xc3\xc0\x01\x01",
            b"\0\xc3\x02\x02\0a",
            b"\0\xc3\x02\x81\x7f\xff\xff\xff\xff\xff\xff\xff\0a",
            b"\0\xc3\x03\x02\0a",
        ] {
            assert_eq!(
                restore(&seal(object.to_vec(), VERSION), &Limits::new()).err(),
                Some(Wrong::Object),
                "{object:?}"
            );
        }
    }

    #[test]
    fn fuzz_restore_holds() {
        let mut next = numbers(1);
        for _ in 0..20_000 {
            let mut data: Vec<u8> = match next(3) {
                0 => (0..next(40)).map(|_| next(256) as u8).collect(),
                // Small numbers give lengths that nearly fit.
                1 => (0..next(40)).map(|_| next(8) as u8 * [1, 1, 0x20][next(3)]).collect(),
                _ => dump_string(View::Bytes(&vec![next(256) as u8; next(700)]))[1..].to_vec(),
            };
            let times = next(4);
            damage(&mut data, times, &mut next);
            fuzz_restore(&data);
        }
    }

    #[test]
    fn sorted_sets_are_read_in_every_form() {
        let restored = |object: &[u8]| match restore(&seal(object.to_vec(), VERSION), &Limits::new()) {
            Ok(Value::Object(Object::Zset(zset))) => Some(zset),
            _ => None,
        };
        let texts = restored(b"\x03\x04\x01a\x031.5\x01b\xfe\x01c\xff\x01d\x02-7").expect("scores as texts");
        let scores = [b"a", b"b", b"c", b"d"].map(|member| texts.get(member).expect("a member"));
        assert_eq!(scores, [1.5, f64::INFINITY, f64::NEG_INFINITY, -7.0]);
        let one = 1_f64.to_le_bytes();
        let pair = |member: &[u8], score: [u8; 8]| [b"\x01", member, &score].concat();
        assert!(restored(&[b"\x05\x01", &pair(b"a", one)[..]].concat()).is_some());
        for wrong in [
            [b"\x05\x02", &pair(b"a", one)[..]].concat(),
            [b"\x05\x02", &pair(b"a", one)[..], &pair(b"a", one)].concat(),
            [b"\x05\x01", &pair(b"a", f64::NAN.to_le_bytes())[..]].concat(),
            b"\x05\0".to_vec(),
            b"\x03\x01\x01a\xfd".to_vec(),
            b"\x03\x01\x01a\x01x".to_vec(),
            b"\x03\x01\x01a\x05".to_vec(),
        ] {
            assert!(restored(&wrong).is_none(), "{wrong:?}");
        }
        for (texts, is_right) in [
            (&[&b"a"[..], b"1", b"b", b"0.5"][..], true),
            (&[b"a", b"1", b"b"], false),
            (&[b"a", b"1", b"a", b"2"], false),
            (&[b"a", b"x"], false),
            (&[b"a", b"nan"], false),
            (&[], false),
        ] {
            let mut packed = crate::object::Packed::new();
            packed.insert(None, texts);
            let mut object = vec![TYPE_ZSET_LISTPACK];
            put_raw(packed.as_bytes(), &mut object);
            assert_eq!(restored(&object).is_some(), is_right, "{texts:?}");
        }
    }
}
