//! Writing of Redis's serialised form: types, lengths, strings and the trailer.

use std::ops::{Deref, DerefMut};

use sluicegate_wire::resp::parse_i64;

use super::crc64::crc64;
use super::lzf;

/// The version that is written.
pub(super) const VERSION: u16 = 10;
/// The version in which [`TYPE_STREAM_3`] came.
pub const VERSION_OF_STREAM_3: u16 = 11;
/// The highest version that is read.
pub(super) const VERSION_MAX: u16 = 12;
pub(super) const VERSION_BYTES: usize = 2;
pub(super) const CHECKSUM_BYTES: usize = 8;

pub(super) const TYPE_STRING: u8 = 0;
/// A list as its number of elements and the elements.
pub(super) const TYPE_LIST: u8 = 1;
/// A list as one ziplist.
pub(super) const TYPE_LIST_ZIPLIST: u8 = 10;
/// A hash as one zipmap; only read, as are ziplists.
pub(super) const TYPE_HASH_ZIPMAP: u8 = 9;
/// A sorted set as one ziplist of members and scores.
pub(super) const TYPE_ZSET_ZIPLIST: u8 = 12;
/// A hash as one ziplist of fields and values.
pub(super) const TYPE_HASH_ZIPLIST: u8 = 13;
/// A list as its number of nodes, each a ziplist.
pub(super) const TYPE_LIST_QUICKLIST: u8 = 14;
/// A set as its number of members and the members.
pub const TYPE_SET: u8 = 2;
/// A sorted set as its number of members, and members and scores as texts; only read.
pub(super) const TYPE_ZSET: u8 = 3;
/// A set of integers as one intset.
pub const TYPE_SET_INTSET: u8 = 11;
/// A set as one listpack, from version 11 on; read only.
pub(super) const TYPE_SET_LISTPACK: u8 = 20;
/// A set with members that expire, which only this store has: its number of members, and each member with 8 bytes,
/// little endian, of its time in Unix milliseconds, or 0.
pub const TYPE_SET_EXPIRING: u8 = 240;
/// The version from which on the numbers are Valkey's; the versions between are Redis's after the two had parted.
pub(super) const VERSION_VALKEY: u16 = 80;
/// A hash as its number of fields, and fields and values.
pub const TYPE_HASH: u8 = 4;
/// A sorted set as its number of members, and members and scores of 8 bytes, little endian.
pub const TYPE_ZSET_2: u8 = 5;
/// A hash as one listpack.
pub const TYPE_HASH_LISTPACK: u8 = 16;
/// A hash with expiring fields, from version 12 on: 8 bytes, little-endian, of the earliest time in Unix milliseconds,
/// the number of fields, and for each its time, field and value. The time is 0 for none, otherwise one more than its
/// difference from the earliest.
pub const TYPE_HASH_METADATA: u8 = 24;
/// A hash with expiring fields in Valkey, from its version 80 on: the number of fields, and each field with its value and
/// 8 bytes, little-endian, of its time in Unix milliseconds, or -1. Redis's release candidates gave the number to another
/// type.
pub const TYPE_HASH_VALKEY: u8 = 22;
/// Like [`TYPE_HASH_METADATA`], as one listpack of fields, values and times, preceded by the earliest time.
pub const TYPE_HASH_LISTPACK_EX: u8 = 25;
/// A sorted set as one listpack.
pub const TYPE_ZSET_LISTPACK: u8 = 17;
/// A list as its number of nodes, each a container (1: one plain element, 2: a listpack) with its bytes.
pub const TYPE_LIST_QUICKLIST_2: u8 = 18;
/// A stream, as Redis 5 wrote it: the number of nodes, each an ID of 16 bytes, big endian, with a listpack; the number of
/// entries, the last ID, and consumer groups.
pub(super) const TYPE_STREAM: u8 = 15;
/// Like `TYPE_STREAM`, with the first ID, the highest deleted one, and the number of entries ever added, before the
/// groups.
pub const TYPE_STREAM_2: u8 = 19;
/// Like `TYPE_STREAM_2`, with the time of each consumer's last success, from version 11 on.
pub const TYPE_STREAM_3: u8 = 21;
/// A list's node that consists of one element.
pub(super) const NODE_PLAIN: usize = 1;
/// A list's node that is a listpack.
pub const NODE_LISTPACK: usize = 2;

pub(super) const LEN_14: u8 = 0b01 << 6;
pub(super) const LEN_32: u8 = 0x80;
pub(super) const LEN_64: u8 = 0x81;
pub(super) const ENCODED: u8 = 0b11 << 6;
pub(super) const INT_8: u8 = ENCODED;
pub(super) const INT_16: u8 = ENCODED | 1;
pub(super) const INT_32: u8 = ENCODED | 2;
pub(super) const LZF: u8 = ENCODED | 3;

/// The maximum length of strings that are written as integers if they represent one.
pub(super) const INTEGER_TEXT_MAX: usize = 11;
/// Strings beyond this length are compressed if that saves some bytes.
pub const UNCOMPRESSED_MAX: usize = 20;
pub(super) const SAVING_MIN: usize = 4;
/// The length from which on a payload grows by no more than the string needs.
pub(super) const EXACT_MIN: usize = 4 << 10;

/// Whether strings are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// Strings of more than 20 bytes are, where that makes them shorter.
    Lzf,
    /// No string is.
    Off,
}

/// The types in which sets and hashes with expiring elements are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Times {
    /// With all times, in Redis's types for hashes and in [`TYPE_SET_EXPIRING`]: payloads, which this store reads.
    Own,
    /// Without times, in types that every version of Redis reads.
    Without,
    /// Hashes in the types of Redis 7.4, sets without times.
    Redis,
    /// Hashes in the type of Valkey 9, sets without times.
    Valkey,
}

/// Takes a piece, and empties the vector.
type HandOver<'o> = &'o mut dyn FnMut(&mut Vec<u8>);

/// The bytes of a value that is being written. A large one can be handed over in pieces, so that it is never whole in
/// memory.
pub struct Out<'o> {
    bytes: &'o mut Vec<u8>,
    hand_over: Option<HandOver<'o>>,
}

/// The size from which a piece is handed over.
pub const PIECE_BYTES: usize = 1 << 20;

impl<'o> Out<'o> {
    /// Returns the target of a value that stays whole.
    pub fn whole(bytes: &'o mut Vec<u8>) -> Out<'o> {
        Out { bytes, hand_over: None }
    }

    /// Returns the target of a value whose bytes are given to `hand_over` whenever there are [`PIECE_BYTES`], which
    /// empties the vector.
    pub fn in_pieces(bytes: &'o mut Vec<u8>, hand_over: HandOver<'o>) -> Out<'o> {
        Out { bytes, hand_over: Some(hand_over) }
    }

    /// Ends an element, or a node.
    #[inline]
    pub fn end_part(&mut self) {
        if self.bytes.len() >= PIECE_BYTES
            && let Some(hand_over) = &mut self.hand_over
        {
            hand_over(self.bytes);
        }
    }
}

impl Deref for Out<'_> {
    type Target = Vec<u8>;

    #[inline]
    fn deref(&self) -> &Vec<u8> {
        self.bytes
    }
}

impl DerefMut for Out<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        self.bytes
    }
}

/// The form in which objects are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// Whether strings are compressed.
    pub compression: Compression,
    /// The types of what expires in parts.
    pub times: Times,
    /// The highest version that the reader knows; of the types, only [`TYPE_STREAM_3`] depends on it.
    pub version_max: u16,
    /// Elements that have expired at this time, in Unix milliseconds, are left out.
    pub now_ms: i64,
}

impl Form {
    /// The form of payloads: everything.
    pub const PAYLOAD: Form =
        Form { compression: Compression::Lzf, times: Times::Own, version_max: VERSION_MAX, now_ms: i64::MIN };

    /// Appends a string, compressed or as an integer where Redis does so.
    #[inline]
    pub fn put_string(self, bytes: &[u8], out: &mut Vec<u8>) {
        put_string(bytes, self.compression, out);
    }
}

/// Returns an object with the trailer of the first version that knows its type.
pub fn sealed_of_any_version(object: Vec<u8>) -> Vec<u8> {
    let version = match object[0] {
        TYPE_HASH_METADATA | TYPE_HASH_LISTPACK_EX | TYPE_SET_EXPIRING => VERSION_MAX,
        TYPE_STREAM_3 => VERSION_OF_STREAM_3,
        _ => VERSION,
    };
    seal(object, version)
}

/// Returns an object with the trailer of this version.
pub fn sealed(object: Vec<u8>) -> Vec<u8> {
    seal(object, VERSION)
}

pub(super) fn seal(mut object: Vec<u8>, version: u16) -> Vec<u8> {
    object.extend(version.to_le_bytes());
    object.extend(crc64(&object).to_le_bytes());
    object
}

/// Appends a length.
pub fn put_len(len: usize, out: &mut Vec<u8>) {
    match len {
        0..0x40 => out.push(len as u8),
        0x40..0x4000 => out.extend((len as u16 | u16::from(LEN_14) << 8).to_be_bytes()),
        0x4000..=0xffff_ffff => {
            out.push(LEN_32);
            out.extend((len as u32).to_be_bytes());
        }
        _ => {
            out.push(LEN_64);
            out.extend((len as u64).to_be_bytes());
        }
    }
}

/// Appends a string without compression.
pub fn put_raw(bytes: &[u8], out: &mut Vec<u8>) {
    put_len(bytes.len(), out);
    out.extend_from_slice(bytes);
}

pub(super) fn put_integer(value: i64, out: &mut Vec<u8>) {
    if let Ok(value) = i8::try_from(value) {
        out.push(INT_8);
        out.extend(value.to_le_bytes());
    } else if let Ok(value) = i16::try_from(value) {
        out.push(INT_16);
        out.extend(value.to_le_bytes());
    } else if let Ok(value) = i32::try_from(value) {
        out.push(INT_32);
        out.extend(value.to_le_bytes());
    } else {
        put_raw(itoa::Buffer::new().format(value).as_bytes(), out);
    }
}

/// Appends a string, compressed or as an integer where Redis does so.
pub fn put_string(bytes: &[u8], compression: Compression, out: &mut Vec<u8>) {
    if bytes.len() <= INTEGER_TEXT_MAX
        && let Some(value) = parse_i64(bytes)
    {
        return put_integer(value, out);
    }
    if bytes.len() > UNCOMPRESSED_MAX
        && compression == Compression::Lzf
        && let Some(packed) = lzf::compress(bytes, bytes.len() - SAVING_MIN)
    {
        out.push(LZF);
        put_len(packed.len(), out);
        return put_raw_after(bytes.len(), &packed, out);
    }
    // Room for the trailer is included, so that a long value is not moved for it. Room for many short ones grows like a
    // vector's; otherwise each would move all bytes before it.
    if bytes.len() >= EXACT_MIN {
        out.reserve_exact(bytes.len() + 32);
    }
    put_raw(bytes, out);
}

/// Writes the uncompressed length, then the compressed bytes.
fn put_raw_after(len: usize, packed: &[u8], out: &mut Vec<u8>) {
    put_len(len, out);
    if packed.len() >= EXACT_MIN {
        out.reserve_exact(packed.len() + 32);
    }
    out.extend_from_slice(packed);
}
