//! The encoder: fields to a field block.
//!
//! A field enters the dynamic table when it is sent for the second time. A server's constant fields are in the table
//! from the second response of a connection on and are one byte from the third; dates, lengths and identifiers are sent
//! as literals and don't evict anything. Which fields were sent is a table of 64 hashes, in which each also leads to its
//! entry, so a field is found by one look-up and one comparison. Strings are not Huffman coded: that would cost the CPU
//! more than the wire saves. Secrets and cookies are literals that no one on the way may index (RFC 7541 7.1).
//!
//! Cost: 264 bytes, and the dynamic table of at most 4096.

use super::super::class::Class;
use super::table::{self, STATIC_LEN, Table};

/// The number of fields that are remembered, a power of two.
const SEEN: usize = 64;

/// A field that was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The upper half of its hash; the lower one selects the place.
    hash: u16,
    /// The insertion of its entry, or 0. The count of insertions wraps; an entry that was thus mistaken for another
    /// fails the comparison.
    insertion: u16,
}

/// The encoder of one direction.
#[derive(Debug)]
pub(in super::super) struct Encoder {
    table: Table<()>,
    seen: Box<[Seen; SEEN]>,
    /// Changes of the limit that the next block announces: the smallest since the last block, and the current one.
    resized: Option<(u32, u32)>,
}

impl Encoder {
    pub(in super::super) fn new() -> Encoder {
        let table = Table::new(super::DEFAULT_TABLE_SIZE);
        Encoder { table, seen: Box::new([Seen::default(); SEEN]), resized: None }
    }

    /// Obeys the peer's SETTINGS_HEADER_TABLE_SIZE. More than 4096 bytes are never used.
    pub(in super::super) fn set_limit(&mut self, announced: u32) {
        let limit = announced.min(super::DEFAULT_TABLE_SIZE);
        if limit as usize != self.table.limit() {
            self.table.set_limit(limit);
            let smallest = self.resized.map_or(limit, |(smallest, _)| smallest.min(limit));
            self.resized = Some((smallest, limit));
        }
    }

    /// Begins a block.
    pub(in super::super) fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some((smallest, limit)) = self.resized.take() {
            if smallest < limit {
                number(out, 0x20, 5, smallest);
            }
            number(out, 0x20, 5, limit);
        }
    }

    /// Appends an entry of the static table.
    pub(in super::super) fn fixed(&mut self, out: &mut Vec<u8>, index: u8) {
        debug_assert!((1..=STATIC_LEN as u8).contains(&index));
        out.push(0x80 | index);
    }

    /// Appends a status.
    pub(in super::super) fn status(&mut self, out: &mut Vec<u8>, status: u16) {
        let index = match status {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => {
                let digits = [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8);
                return self.field(out, b":status", &digits, Class::Status);
            }
        };
        self.fixed(out, index);
    }

    /// Appends a field. White space at the ends of the value, which a field can't have in HTTP/2, is left out.
    pub(in super::super) fn field(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8], class: Class) {
        let value = crate::http::trim(value);
        if matches!(class, Class::Secret | Class::Cookie) {
            return literal(out, 0x10, 4, name, value);
        }
        // What is an entry alone is not worth the others that it evicts.
        if name.len() + value.len() > self.table.limit() / 4 {
            return literal(out, 0, 4, name, value);
        }
        let hash = hash(name, value);
        let seen = &mut self.seen[hash as usize % SEEN];
        let hash = (hash >> 16) as u16;
        if seen.hash != hash {
            *seen = Seen { hash, insertion: 0 };
            return literal(out, 0, 4, name, value);
        }
        if let Some(index) = self.table.index_of(seen.insertion)
            && let Some((pair, name_len, ())) = self.table.get(index)
            && let (its_name, its_value) = pair.split_at(name_len)
            && its_name == name
            && its_value == value
        {
            return number(out, 0x80, 7, STATIC_LEN + 1 + index as u32);
        }
        if self.table.insert(name, value, ()) {
            seen.insertion = self.table.inserted();
            literal(out, 0x40, 6, name, value);
        } else {
            literal(out, 0, 4, name, value);
        }
    }
}

/// Appends a literal, whose name is one of the static table if it is there.
fn literal(out: &mut Vec<u8>, pattern: u8, bits: u32, name: &[u8], value: &[u8]) {
    match table::static_name(name) {
        Some(index) => number(out, pattern, bits, u32::from(index)),
        None => {
            out.push(pattern);
            string(out, name);
        }
    }
    string(out, value);
}

fn string(out: &mut Vec<u8>, string: &[u8]) {
    number(out, 0, 7, string.len() as u32);
    out.extend_from_slice(string);
}

/// Appends a number whose first `bits` stand behind a pattern (RFC 7541 5.1).
fn number(out: &mut Vec<u8>, pattern: u8, bits: u32, number: u32) {
    let mask = (1 << bits) - 1;
    if number < mask {
        out.push(pattern | number as u8);
        return;
    }
    out.push(pattern | mask as u8);
    let mut rest = number - mask;
    while rest >= 0x80 {
        out.push(0x80 | rest as u8);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Returns a hash that tells apart fields that a server sends; a comparison decides.
fn hash(name: &[u8], value: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = name.len() as u64;
    let mut add = |word: u64| hash = (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    for part in [name, value] {
        let (words, rest) = part.as_chunks::<8>();
        for word in words {
            add(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        add(u64::from_le_bytes(last));
    }
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::decode::{Decoder, tests::decoded};
    use super::*;

    fn encoded(encoder: &mut Encoder, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        for (name, value) in fields {
            encoder.field(&mut out, name.as_bytes(), value.as_bytes(), Class::of_field(name.as_bytes()));
        }
        out
    }

    fn check(encoder: &mut Encoder, decoder: &mut Decoder, fields: &[(&str, &str)]) -> usize {
        let block = encoded(encoder, fields);
        let pairs = decoded(decoder, &block).unwrap();
        let expected: Vec<_> = fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        assert_eq!(pairs, expected);
        block.len()
    }

    #[test]
    fn numbers_of_appendix_c_1() {
        for (value, bits, expected) in [(10, 5, &[10][..]), (1337, 5, &[31, 0x9a, 10]), (42, 8, &[42])] {
            let mut out = Vec::new();
            number(&mut out, 0, bits, value);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn fields_that_repeat_become_one_byte() {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4096));
        let fields = [("server", "a server"), ("content-type", "text/html; charset=utf-8"), ("x-own", "and its value")];
        let literals = check(&mut encoder, &mut decoder, &fields);
        assert_eq!(check(&mut encoder, &mut decoder, &fields), literals - 2, "an index of six bits is shorter");
        assert_eq!(check(&mut encoder, &mut decoder, &fields), fields.len());
        let changing = [("etag", "1"), ("server", "a server"), ("etag", "2"), ("x-own", "and its value")];
        check(&mut encoder, &mut decoder, &changing);
        assert_eq!(check(&mut encoder, &mut decoder, &fields), fields.len(), "what changes evicts nothing");
    }

    #[test]
    fn secrets_are_never_indexed() {
        let mut encoder = Encoder::new();
        for _ in 0..3 {
            let block = encoded(&mut encoder, &[("authorization", "a"), ("cookie", "b"), ("set-cookie", "c")]);
            assert_eq!(block, b"\x1f\x08\x01a\x1f\x11\x01b\x1f\x28\x01c");
        }
    }

    #[test]
    fn a_status_is_an_index_or_three_digits() {
        let mut encoder = Encoder::new();
        let mut out = Vec::new();
        encoder.status(&mut out, 404);
        encoder.status(&mut out, 503);
        assert_eq!(out, b"\x8d\x08\x03503");
    }

    #[test]
    fn the_peer_s_limit_is_announced_and_obeyed() {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4096));
        let fields = [("a", "1"), ("b", "2")];
        for _ in 0..3 {
            check(&mut encoder, &mut decoder, &fields);
        }
        encoder.set_limit(0);
        encoder.set_limit(1 << 20);
        assert_eq!(&encoded(&mut encoder, &[]), b"\x20\x3f\xe1\x1f");
        let block = encoded(&mut encoder, &fields);
        assert_eq!(block[0], 0x40, "seen, but not in the table any more");
        encoder.set_limit(33);
        encoder.set_limit(0);
        assert_eq!(&encoded(&mut encoder, &fields), b"\x20\x00\x01a\x011\x00\x01b\x012");
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            blocks in prop::collection::vec(
                (prop::option::weighted(0.2, 0u32..5000), prop::collection::vec((0usize..6, 0usize..6), 0..8)), 1..60),
        ) {
            const NAMES: [&str; 6] = ["server", "x-a", "set-cookie", "date", "b", "content-type"];
            let (long, longer) = ("long".repeat(60), "x".repeat(1200));
            let values = ["", "1", "text/html", &long, &longer, "b"];
            let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4096));
            for (limit, fields) in blocks {
                limit.into_iter().for_each(|limit| encoder.set_limit(limit));
                let fields: Vec<_> = fields.into_iter().map(|(name, value)| (NAMES[name], values[value])).collect();
                check(&mut encoder, &mut decoder, &fields);
            }
        }
    }
}
