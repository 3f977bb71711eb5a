//! The decoder: a field block to fields.
//!
//! A [`Block`] is read one field at a time, so that the rules of a head see each field as it comes and the bytes of a
//! head that is too large are not kept. Of such a head ([`Block::next`] with `keep` false) only what enters the dynamic
//! table is decoded; a reference to the table costs nothing then, so a small block can't become a large head.
//!
//! What the rules of heads ask of every field is a property of the table's entries: the class of the name, and whether the
//! value has bytes that a line of HTTP/1 can't have. A field that comes again, as most do, is not examined again.

use std::ops::Range;

use super::super::{class::Class, huffman};
use super::table::{STATIC, STATIC_LEN, Table};

/// The reason why a block can't be decoded, which ends its connection with COMPRESSION_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Error {
    /// The block ends within a field.
    Truncated,
    /// A number of more than 28 bits.
    Number,
    /// No entry has this index.
    Index,
    /// A string is not in the Huffman code.
    Huffman,
    /// The table is resized behind the first field, or to more than this side allows.
    Resize,
}

impl Error {
    pub(in super::super) fn text(self) -> &'static str {
        match self {
            Error::Truncated => "truncated field block",
            Error::Number => "number too large in a field block",
            Error::Index => "unknown index in a field block",
            Error::Huffman => "invalid Huffman code in a field block",
            Error::Resize => "invalid resizing of the dynamic table",
        }
    }
}

/// A decoded field: ranges of the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Field {
    pub(in super::super) name: Range<usize>,
    pub(in super::super) value: Range<usize>,
    pub(in super::super) class: Class,
    /// Whether the value has neither NUL nor CR nor LF.
    pub(in super::super) clean: bool,
}

/// What the table knows of an entry.
#[derive(Clone, Copy, Debug)]
struct Known {
    class: Class,
    clean: bool,
}

/// The decoder of one direction.
#[derive(Debug)]
pub(in super::super) struct Decoder {
    table: Table<Known>,
    /// The limit of the table that this side has announced.
    announced: u32,
}

impl Decoder {
    /// Returns a decoder whose peer may let the table grow to `announced` bytes.
    pub(in super::super) fn new(announced: u32) -> Decoder {
        Decoder { table: Table::new(announced.min(super::DEFAULT_TABLE_SIZE)), announced }
    }

    /// Begins to decode a block.
    pub(in super::super) fn block<'a>(&'a mut self, bytes: &'a [u8]) -> Block<'a> {
        Block { decoder: self, rest: bytes, begun: false }
    }
}

/// A block that is being decoded.
pub(in super::super) struct Block<'a> {
    decoder: &'a mut Decoder,
    rest: &'a [u8],
    /// Whether a field was read, behind which the table can't be resized.
    begun: bool,
}

impl Block<'_> {
    /// Decodes the next field into the end of `arena`; `None`: the block is complete.
    ///
    /// Without `keep` the arena is left as it is and the ranges are undefined.
    pub(in super::super) fn next(&mut self, arena: &mut Vec<u8>, keep: bool) -> Result<Option<Field>, Error> {
        loop {
            let Some(first) = self.rest.first() else { return Ok(None) };
            return match first {
                0x80.. => self.indexed(arena, keep).map(Some),
                0x40.. => self.literal(6, true, arena, keep).map(Some),
                0x20.. => {
                    let limit = self.number(5)?;
                    if self.begun || limit > self.decoder.announced {
                        return Err(Error::Resize);
                    }
                    self.decoder.table.set_limit(limit);
                    continue;
                }
                _ => self.literal(4, false, arena, keep).map(Some),
            };
        }
    }

    fn indexed(&mut self, arena: &mut Vec<u8>, keep: bool) -> Result<Field, Error> {
        self.begun = true;
        let index = self.number(7)?;
        let start = arena.len();
        let (name_len, known) = self.append(index, arena, keep, true)?;
        let middle = start + name_len;
        Ok(Field { name: start..middle, value: middle..arena.len(), class: known.class, clean: known.clean })
    }

    /// Decodes a literal whose index has so many bits in the first byte.
    fn literal(&mut self, bits: u32, inserted: bool, arena: &mut Vec<u8>, keep: bool) -> Result<Field, Error> {
        self.begun = true;
        let index = self.number(bits)?;
        let start = arena.len();
        let class = if index > 0 {
            self.append(index, arena, true, false)?.1.class
        } else {
            self.string(arena)?;
            Class::of(&arena[start..])
        };
        let middle = arena.len();
        if !keep && !inserted {
            arena.truncate(start);
            self.skip_string()?;
            return Ok(Field { name: 0..0, value: 0..0, class, clean: true });
        }
        self.string(arena)?;
        let clean = is_clean(&arena[middle..]);
        let field = Field { name: start..middle, value: middle..arena.len(), class, clean };
        if inserted {
            self.decoder.table.insert(&arena[start..middle], &arena[middle..], Known { class, clean });
        }
        if !keep {
            arena.truncate(start);
        }
        Ok(field)
    }

    /// Appends the name of an index of both tables, and its value if wanted. Returns the length of the name and what is
    /// known of the entry.
    #[inline]
    fn append(&self, index: u32, arena: &mut Vec<u8>, keep: bool, with_value: bool) -> Result<(usize, Known), Error> {
        match index {
            0 => Err(Error::Index),
            1..=STATIC_LEN => {
                let field = &STATIC[index as usize - 1];
                if keep {
                    arena.extend_from_slice(field.name);
                    if with_value {
                        arena.extend_from_slice(field.value);
                    }
                }
                Ok((field.name.len(), Known { class: field.class, clean: true }))
            }
            _ => {
                let entry = self.decoder.table.get((index - STATIC_LEN - 1) as usize);
                let (pair, name_len, known) = entry.ok_or(Error::Index)?;
                if keep {
                    arena.extend_from_slice(if with_value { pair } else { &pair[..name_len] });
                }
                Ok((name_len, known))
            }
        }
    }

    /// Decodes a number that begins in the lowest `bits` of the next byte (RFC 7541 5.1).
    fn number(&mut self, bits: u32) -> Result<u32, Error> {
        let (first, mut rest) = self.rest.split_first().ok_or(Error::Truncated)?;
        let mask = (1 << bits) - 1;
        let mut number = u32::from(*first) & mask;
        if number == mask {
            let mut shift = 0;
            loop {
                let (byte, tail) = rest.split_first().ok_or(Error::Truncated)?;
                rest = tail;
                // Four bytes are enough for all lengths and indices; zeros behind them are only waste.
                if shift > 21 {
                    return Err(Error::Number);
                }
                number += u32::from(*byte & 0x7f) << shift;
                shift += 7;
                if *byte < 0x80 {
                    break;
                }
            }
        }
        self.rest = rest;
        Ok(number)
    }

    /// Returns the bytes of a string and whether they are in the Huffman code.
    fn raw_string(&mut self) -> Result<(&[u8], bool), Error> {
        let coded = self.rest.first().ok_or(Error::Truncated)? & 0x80 != 0;
        let len = self.number(7)? as usize;
        let (string, rest) = self.rest.split_at_checked(len).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok((string, coded))
    }

    fn skip_string(&mut self) -> Result<(), Error> {
        self.raw_string().map(|_| ())
    }

    fn string(&mut self, arena: &mut Vec<u8>) -> Result<(), Error> {
        let (string, coded) = self.raw_string()?;
        if coded {
            huffman::decode(string, arena).map_err(|_| Error::Huffman)
        } else {
            arena.extend_from_slice(string);
            Ok(())
        }
    }
}

/// Returns whether a value has neither NUL nor CR nor LF.
fn is_clean(value: &[u8]) -> bool {
    // Values rarely have a byte that is smaller than 14. A borrow from the byte before may be taken for one.
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let small = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word);
        word.wrapping_sub(ONES * 14) & !word
    };
    let suspicious = match value.last_chunk::<8>() {
        Some(last) => {
            let words = value.as_chunks::<8>().0.iter();
            words.fold(small(last), |any, word| any | small(word)) & (ONES * 0x80) != 0
        }
        None => value.iter().any(|byte| *byte < 14),
    };
    !suspicious || memchr::memchr3(b'\0', b'\r', b'\n', value).is_none()
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::{Class, Decoder, Error, Range, is_clean};

    type Pairs = Vec<(String, String)>;

    /// Decodes a block to names and values.
    pub(in super::super::super) fn decoded(decoder: &mut Decoder, bytes: &[u8]) -> Result<Pairs, Error> {
        let (mut arena, mut pairs) = (Vec::new(), Vec::new());
        let mut block = decoder.block(bytes);
        while let Some(field) = block.next(&mut arena, true)? {
            let text = |range: Range<usize>| String::from_utf8_lossy(&arena[range]).into_owned();
            pairs.push((text(field.name), text(field.value)));
        }
        Ok(pairs)
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// Decodes one block after the other. `expected` has the fields of each, one on a line; `table` the names and values
    /// of the dynamic table after the last, the newest first, and its size.
    fn check(limit: u32, blocks: &[(&str, &str)], table: &str, size: usize) {
        let mut decoder = Decoder::new(4096);
        decoder.table.set_limit(limit);
        for (bytes, expected) in blocks {
            let fields = decoded(&mut decoder, &hex(bytes)).unwrap();
            let fields: Vec<_> = fields.into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
            assert_eq!(fields.join("\n"), *expected);
        }
        let entries = (0..).map_while(|index| decoder.table.get(index));
        let text = |bytes| std::str::from_utf8(bytes).unwrap();
        let entries: Vec<_> = entries
            .map(|(pair, name_len, _)| format!("{}: {}", text(&pair[..name_len]), text(&pair[name_len..])))
            .collect();
        assert_eq!(entries.join("\n"), table);
        let sizes = (0..).map_while(|index| decoder.table.get(index)).map(|entry| entry.0.len() + 32);
        assert_eq!(sizes.sum::<usize>(), size);
    }

    #[test]
    fn literals_of_appendix_c_2() {
        check(
            4096,
            &[("400a637573746f6d2d6b65790d637573746f6d2d686561646572", "custom-key: custom-header")],
            "custom-key: custom-header",
            55,
        );
        check(4096, &[("040c2f73616d706c652f70617468", ":path: /sample/path")], "", 0);
        check(4096, &[("100870617373776f726406736563726574", "password: secret")], "", 0);
        check(4096, &[("82", ":method: GET")], "", 0);
    }

    #[test]
    fn requests_of_appendix_c_3_and_4() {
        let first = ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com";
        let second = ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\ncache-control: no-cache";
        let third = ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\n\
            custom-key: custom-value";
        let table = "custom-key: custom-value\ncache-control: no-cache\n:authority: www.example.com";
        let plain = [
            ("828684410f7777772e6578616d706c652e636f6d", first),
            ("828684be58086e6f2d6361636865", second),
            ("828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565", third),
        ];
        check(4096, &plain, table, 164);
        let coded = [
            ("828684418cf1e3c2e5f23a6ba0ab90f4ff", first),
            ("828684be5886a8eb10649cbf", second),
            ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", third),
        ];
        check(4096, &coded, table, 164);
    }

    #[test]
    fn responses_of_appendix_c_5_and_6() {
        let rest = "cache-control: private\ndate: Mon, 21 Oct 2013 20:13:21 GMT\nlocation: https://www.example.com";
        let first = format!(":status: 302\n{rest}");
        let second = format!(":status: 307\n{rest}");
        let third = ":status: 200\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:22 GMT\n\
            location: https://www.example.com\ncontent-encoding: gzip\n\
            set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
        let table = "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1\ncontent-encoding: gzip\n\
            date: Mon, 21 Oct 2013 20:13:22 GMT";
        let plain = [
            (
                "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e17687474
                 70733a2f2f7777772e6578616d706c652e636f6d",
                &first[..],
            ),
            ("4803333037c1c0bf", &second),
            (
                "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153444a
                 4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31",
                third,
            ),
        ];
        check(256, &plain, table, 215);
        let coded = [
            (
                "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae
                 82ae43d3",
                &first[..],
            ),
            ("4883640effc1c0bf", &second),
            (
                "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960
                 d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
                third,
            ),
        ];
        check(256, &coded, table, 215);
    }

    #[test]
    fn blocks_that_end_the_connection() {
        for (bytes, error) in [
            ("80", Error::Index),
            ("be", Error::Index),
            ("7e", Error::Index),
            ("ff", Error::Truncated),
            ("ffffffff7f", Error::Index),
            ("ffffffffff01", Error::Number),
            ("ff8080808000", Error::Number),
            ("40", Error::Truncated),
            ("4001", Error::Truncated),
            ("400161", Error::Truncated),
            ("40016102", Error::Truncated),
            ("0001617f", Error::Truncated),
            ("00016181ff", Error::Huffman),
            ("000161821fff", Error::Huffman),
            ("008461616161", Error::Huffman),
            ("8220", Error::Resize),
            ("3fe21f", Error::Resize),
        ] {
            assert_eq!(decoded(&mut Decoder::new(4096), &hex(bytes)), Err(error), "{bytes}");
        }
        assert_eq!(decoded(&mut Decoder::new(4096), &hex("203fe11f82")).map(|fields| fields.len()), Ok(1));
        assert_eq!(decoded(&mut Decoder::new(8192), &hex("3fe13f82")).map(|fields| fields.len()), Ok(1));
        assert_eq!(decoded(&mut Decoder::new(4096), b""), Ok(vec![]));
    }

    #[test]
    fn what_is_not_kept_still_enters_the_table() {
        let mut decoder = Decoder::new(4096);
        let mut arena = b"before".to_vec();
        let bytes = hex("828684418cf1e3c2e5f23a6ba0ab90f4ff be 0f0d023432 400161 0162 be");
        let mut block = decoder.block(&bytes);
        let mut classes = Vec::new();
        while let Some(field) = block.next(&mut arena, false).unwrap() {
            classes.push(field.class);
            assert_eq!(arena, b"before");
        }
        use Class::{Authority, ContentLength, Method, Other, Path, Scheme};
        assert_eq!(classes, [Method, Scheme, Path, Authority, Authority, ContentLength, Other, Other]);
        assert_eq!(decoded(&mut decoder, &hex("bebf")).unwrap()[1], (":authority".into(), "www.example.com".into()));
    }

    #[test]
    fn bytes_that_end_a_line_are_found_everywhere() {
        for len in 0..40 {
            for filling in [b'x', b'\t', 0x0e, 0x80, 0xff] {
                let mut value = vec![filling; len];
                assert!(is_clean(&value));
                for at in 0..len {
                    for byte in [0, b'\r', b'\n', 0x0b, 0x0c, 0x01] {
                        value[at] = byte;
                        assert_eq!(is_clean(&value), !matches!(byte, 0 | b'\r' | b'\n'), "{value:?}");
                    }
                    value[at] = filling;
                }
            }
        }
    }
}
