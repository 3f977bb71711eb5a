//! The reader against bytes that nobody wrote, and against files of its own.

use std::io::Read;

use super::super::seal;
use super::{Checksum, Event, FileReader};
use crate::object::limits::Limits;

/// A source that gives a number of bytes at a time.
struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let len = self.1.min(out.len()).min(self.0.len());
        out[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        Ok(len)
    }
}

/// Returns what a file consists of, a line for each part, and how it ends.
fn told(source: impl Read, checks: bool) -> (Vec<String>, Result<Checksum, String>) {
    let mut told = Vec::new();
    let limits = Limits::new();
    let mut reader = match FileReader::new(source) {
        Ok(reader) => reader.checked(checks),
        Err(fault) => return (told, Err(fault.to_string())),
    };
    loop {
        match reader.next() {
            Ok(Event::End(checksum)) => return (told, Ok(checksum)),
            Ok(Event::Key(key)) => {
                let value = match key.decode(&limits) {
                    Ok(value) => value.map_or(0, |value| super::super::dump(&value).len()),
                    Err(fault) => return (told, Err(fault.to_string())),
                };
                told.push(format!("{key:?}: {value}"));
            }
            Ok(event) => told.push(format!("{event:?}")),
            Err(fault) => return (told, Err(fault.to_string())),
        }
    }
}

/// Reads untrusted bytes as a file: unchanged, and as what comes after the first bytes of a file. Must not panic, and must
/// tell the same however the bytes arrive.
pub fn fuzz_file(data: &[u8]) {
    for magic in [&b""[..], b"REDIS0012", b"VALKEY080"] {
        let file = [magic, data].concat();
        let whole = told(&file[..], false);
        assert!(whole.0.len() <= data.len());
        assert_eq!(whole, told(Pieces(&file, 1), false));
    }
    // As a payload's object, to reach values.
    let _ = super::super::restore(&seal(data.to_vec(), 80), &Limits::new());
}

#[cfg(test)]
mod tests {
    use super::super::super::encode::{Compression, PIECE_BYTES, Times, VERSION_VALKEY};
    use super::super::{Chunk, Contents, FaultKind, KeyHead, Settings, Usage, Written};
    use super::*;
    use crate::object::elements::{Expiry, TIMELESS};
    use crate::object::list::End;
    use crate::object::stream::{Group, NEVER, StreamId};
    use crate::object::{Hash, Kind, List, Object, Set, Stream, Zset};
    use crate::random::{damage, numbers};
    use crate::value::Value;

    const NOW_MS: i64 = 1_700_000_000_000;

    fn settings() -> Settings {
        Settings { version_max: VERSION_VALKEY, ..Settings::new(NOW_MS) }
    }

    fn hash(fields: usize, every: usize) -> Value<'static> {
        let mut hash = Hash::empty();
        for field in 0..fields {
            let expiry = if field % every == 0 { Expiry::At(NOW_MS + 1 + field as i64 * 1_000) } else { Expiry::None };
            let value = b"a value ".repeat(field % 9);
            hash.insert(format!("f{field}").as_bytes(), &value, expiry, TIMELESS, &Limits::new());
        }
        Value::Object(hash.into_object())
    }

    fn set(members: usize) -> Value<'static> {
        let mut set = Set::empty();
        for member in 0..members {
            let name = format!("m{member}");
            match member % 3 {
                0 => set.add_expiring(name.as_bytes(), NOW_MS + (1_i64 << (member % 60)), false, TIMELESS),
                _ => set.add(name.as_bytes(), TIMELESS, &Limits::new()),
            };
        }
        Value::Object(set.into_object())
    }

    fn stream(is_active: bool) -> Value<'static> {
        stream_of(NOW_MS - i64::from(is_active))
    }

    /// Returns a stream whose consumer succeeded at this time.
    fn stream_of(active_ms: i64) -> Value<'static> {
        let (mut stream, limits) = (Stream::empty(), Limits::new());
        for ms in 1..300 {
            stream.add(StreamId { ms, seq: 1 }, &[b"field", b"value"], &limits);
        }
        let mut group = Group::new(StreamId { ms: 10, seq: 1 }, 10);
        let consumer = group.add_consumer(b"c", NOW_MS, active_ms).expect("a new one");
        (5..10).for_each(|ms| group.assign(StreamId { ms, seq: 1 }, consumer, NOW_MS, 2));
        stream.add_group(b"g", group);
        Value::Object(stream.into_object())
    }

    /// Returns a value of every type in its small and its large form.
    fn values() -> Vec<Value<'static>> {
        let limits = Limits::new();
        let mut values = vec![Value::Int(-5), Value::Int(1 << 40), Value::of(b"short"), Value::of(&[b'x'; 5_000])];
        for len in [3, 700] {
            let texts: Vec<String> = (0..len).map(|n| format!("element {n}")).collect();
            let (mut list, mut ints, mut plain, mut zset) = (List::empty(), Set::empty(), Set::empty(), Zset::empty());
            for (n, text) in texts.iter().enumerate() {
                list.push(End::Tail, text.as_bytes(), &limits);
                ints.add(n.to_string().as_bytes(), TIMELESS, &limits);
                plain.add(text.as_bytes(), TIMELESS, &limits);
                zset.set(text.as_bytes(), n as f64 / 4.0, &limits);
            }
            let objects = [list.into_object(), ints.into_object(), plain.into_object(), zset.into_object()];
            values.extend(objects.map(Value::Object));
            values.extend([hash(len, len + 1), hash(len, 2), set(len)]);
        }
        values.push(stream(false));
        values
    }

    /// Returns a file of these values, one chunk each, and the contents.
    fn file(values: &[Value<'_>], settings: Settings) -> Vec<u8> {
        let mut chunks = vec![Chunk::new(settings)];
        chunks[0].aux(b"redis-ver", b"7.2.4");
        chunks[0].library(b"#!lua name=a\n");
        for (index, value) in values.iter().enumerate() {
            let mut chunk = Chunk::new(settings);
            chunk.database(index as u64 % 3);
            chunk.sizes(1, 0);
            let name = format!("key {index}");
            let head = KeyHead {
                name: name.as_bytes(),
                expiry_ms: (index % 2 == 0).then_some(NOW_MS + 5),
                usage: [Usage::Unknown, Usage::IdleS(70_000), Usage::Frequency(9)][index % 3],
                is_sticky: index % 4 == 1,
            };
            assert!(chunk.key(head, Written::of(value)));
            chunks.push(chunk);
        }
        assemble(&chunks)
    }

    fn assemble(chunks: &[Chunk]) -> Vec<u8> {
        let mut contents = Contents::default();
        chunks.iter().for_each(|chunk| contents.add(chunk.summed()));
        let magic = contents.magic();
        let bodies: Vec<u8> = chunks.iter().flat_map(Chunk::bytes).copied().collect();
        assert_eq!(contents.bytes(), 9 + bodies.len() as u64);
        [&magic[..], &bodies, &contents.tail(magic, true)].concat()
    }

    /// Checks that the file has exactly these values.
    #[track_caller]
    fn check(file: &[u8], values: &[Value<'_>]) {
        let mut reader = FileReader::new(file).expect("a file of our own");
        let mut index = 0;
        loop {
            match reader.next().expect("a file of our own") {
                Event::End(checksum) => {
                    assert_eq!((checksum, index), (Checksum::Right, values.len()));
                    return;
                }
                Event::Key(key) => {
                    assert_eq!(key.name, format!("key {index}").as_bytes());
                    assert_eq!(key.expiry_ms, (index % 2 == 0).then_some(NOW_MS + 5));
                    assert_eq!(
                        (key.idle_s, key.frequency),
                        [(None, None), (Some(70_000), None), (None, Some(9))][index % 3]
                    );
                    assert_eq!((key.is_sticky, key.db), (index % 4 == 1, index as u64 % 3));
                    let value = key.decode(&Limits::new()).expect("a value").expect("elements");
                    let (ours, theirs) = (sorted(&value), sorted(&values[index]));
                    assert!(ours == theirs, "{index}: {} {}", ours.len(), theirs.len());
                    index += 1;
                }
                Event::Sizes { keys, expiries } => assert_eq!((keys, expiries), (1, 0)),
                Event::Aux { name, value } => assert_eq!((name, value), (&b"redis-ver"[..], &b"7.2.4"[..])),
                Event::Library(code) => assert_eq!(code, b"#!lua name=a\n"),
                Event::Database(db) => assert_eq!(db, index as u64 % 3),
                Event::Module(name) => panic!("{name}"),
            }
        }
    }

    /// Returns the content of a value in an order of its own.
    fn sorted(value: &Value<'_>) -> Vec<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        match value {
            Value::Object(Object::Hash(hash)) => hash.each_timed(TIMELESS, |field, value, at_ms| {
                parts.push([field, b"=", value, format!(" {at_ms:?}").as_bytes()].concat());
            }),
            Value::Object(Object::Set(set)) => set.each(TIMELESS, |member| {
                let text = member.text(&mut itoa::Buffer::new()).to_vec();
                let at_ms = set.expiry_of(&text, TIMELESS);
                parts.push([&text[..], format!(" {at_ms:?}").as_bytes()].concat());
            }),
            other => parts.push(super::super::super::dump(other)),
        }
        parts.sort();
        parts
    }

    #[test]
    fn values_come_back_with_every_setting() {
        let values = values();
        for compression in [Compression::Lzf, Compression::Off] {
            for hash_times in [Times::Without, Times::Redis, Times::Valkey] {
                let file = file(&values, Settings { compression, hash_times, ..settings() });
                let magic: &[u8] = match hash_times {
                    Times::Redis => b"REDIS0012",
                    Times::Valkey => b"VALKEY080",
                    _ => b"REDIS0010",
                };
                assert_eq!(file[..9], *magic);
                check(&file, &values);
            }
        }
    }

    #[test]
    fn the_version_is_the_lowest_that_carries_the_data() {
        let times = [stream(true), stream_of(NEVER)];
        let exact = file(&times, settings());
        assert_eq!(exact[..9], *b"REDIS0011");
        check(&exact, &times);
        // For a reader that does not know it, the times follow the value.
        let older = file(&times, Settings { version_max: 10, hash_times: Times::Valkey, ..settings() });
        assert_eq!(older[..9], *b"REDIS0010");
        check(&older, &times);
        // A reader that does not know Valkey's hashes gets plain ones.
        let hashes = [hash(5, 2)];
        check(&file(&hashes, Settings { version_max: 11, hash_times: Times::Valkey, ..settings() }), &hashes);
    }

    #[test]
    fn a_large_value_in_pieces_is_the_same() {
        let limits = Limits::new();
        let (mut list, mut hash, mut zset, mut set) = (List::empty(), Hash::empty(), Zset::empty(), Set::empty());
        for n in 0..400_u32 {
            let mut next = numbers(u64::from(n));
            let text: Vec<u8> = (0..7_000).map(|_| next(256) as u8).collect();
            list.make_room(&[&text], &limits);
            list.push(End::Tail, &text, &limits);
            hash.insert(&text, &text, Expiry::None, TIMELESS, &limits);
            zset.set(&text, f64::from(n), &limits);
            set.add(&text, TIMELESS, &limits);
        }
        for object in [list.into_object(), hash.into_object(), zset.into_object(), set.into_object()] {
            let (head, written) = (KeyHead { name: b"k", ..KeyHead::default() }, Written::Object(&object));
            let (mut whole, mut chunk) = (Chunk::new(settings()), Chunk::new(settings()));
            assert!(whole.key(head, written));
            let mut pieces = Vec::new();
            assert!(chunk.key_in_pieces(head, written, &mut |piece| {
                assert!((PIECE_BYTES..PIECE_BYTES + 20_000).contains(&piece.bytes().len()));
                pieces.extend_from_slice(piece.bytes());
            }));
            assert!(pieces.len() >= 2 * PIECE_BYTES);
            pieces.extend(chunk.into_bytes());
            assert!(pieces == whole.into_bytes());
        }
    }

    #[test]
    fn expired_elements_are_left_out() {
        let mut chunk = Chunk::new(Settings { now_ms: i64::MAX - 1, ..settings() });
        chunk.database(0);
        let head = KeyHead { name: b"k", ..KeyHead::default() };
        assert!(!chunk.key(head, Written::of(&hash(3, 1))));
        assert!(chunk.key(head, Written::of(&hash(300, 2))));
        assert!(chunk.key(head, Written::of(&set(9))));
        let file = assemble(&[chunk]);
        let (told, end) = told(&file[..], true);
        assert_eq!((told.len(), end), (3, Ok(Checksum::Right)));
    }

    #[test]
    fn a_file_that_is_cut_off_is_refused() {
        let values = [Value::Int(7), Value::of(b"text"), hash(3, 2), set(4), stream(true)];
        let file = file(&values, settings());
        for len in 0..file.len() {
            let (_, end) = told(&file[..len], true);
            assert!(end.is_err_and(|text| text.starts_with("Short read")), "{len}");
        }
        // Bytes behind the end are not part of the file.
        let longer = [&file[..], b"*1\r\n"].concat();
        let mut reader = FileReader::new(Pieces(&longer, usize::MAX)).expect("a file");
        while !matches!(reader.next(), Ok(Event::End(_))) {}
        assert_eq!(reader.into_rest().1, b"*1\r\n");
    }

    #[test]
    fn a_file_with_a_changed_byte_is_refused() {
        let file = file(&[Value::Int(7), hash(3, 2), stream(true)], settings());
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut bad = file.clone();
                bad[at] ^= 1 << bit;
                let (_, end) = told(&bad[..], true);
                // A version below is one that is read.
                assert!(end.is_err() || at < 9, "{at} {bit}");
            }
        }
    }

    #[test]
    fn faults_are_reported_in_the_words_of_redis() {
        let fault = |file: &[u8]| told(file, true).1.expect_err("a wrong file");
        assert_eq!(fault(b"RADIS0010"), "Wrong signature trying to load DB from file (offset 9)");
        assert_eq!(fault(b"REDIS0013"), "Can't handle RDB format version 13 (offset 9)");
        assert_eq!(fault(b"VALKEY079"), "Can't handle RDB format version 79 (offset 9)");
        assert_eq!(fault(b"REDIS0000"), "Can't handle RDB format version 0 (offset 9)");
        let short = "Short read or OOM loading DB. Unrecoverable error, aborting now.";
        assert_eq!(fault(b"REDIS"), format!("{short} (offset 0)"));
        assert_eq!(fault(b"REDIS0010\0\x01k\x05v"), format!("{short} (offset 13, key 'k')"));
        // A length of 4 GiB in a short file.
        assert_eq!(fault(b"REDIS0010\0\x01k\x81\0\0\0\x01\0\0\0\0v"), format!("{short} (offset 21, key 'k')"));
        assert_eq!(fault(b"REDIS0010\x02\x01k\x80\xff\xff\xff\xff\x01v"), format!("{short} (offset 19, key 'k')"));
        assert_eq!(fault(b"REDIS0010\x08\x01k"), "Unknown RDB encoding type 8 (offset 12, key 'k')");
        assert_eq!(fault(b"REDIS0012\x16\x01k"), "Unknown RDB encoding type 22 (offset 12, key 'k')");
        assert_eq!(
            fault(b"REDIS0010\x02\x01k\x02\x01a\x01a\xff"),
            "Duplicate set members detected (offset 17, key 'k')"
        );
        assert_eq!(fault(b"REDIS0010\xf6"), "Pre-release function format not supported. (offset 10)");
        assert_eq!(
            fault(b"REDIS0010\xff\x01\0\0\0\0\0\0\0"),
            "Wrong RDB checksum expected: (eb7ea789fe37fda9) but got (1). Aborting now. (offset 18)"
        );
    }

    #[test]
    fn what_is_not_a_key_is_read_over() {
        let (parts, end) = told(
            &[
                &b"VALKEY080\xf4\x01\x02\x03\xf3\x01j\x01\0\x05\xfa\x01a\xc0\x07"[..],
                // A module's data: a number, a float, a double and a string.
                b"\xf7\x81\0\0\0\0\0\0\0\0\x02\x01\x02\x07\x03abcd\x04abcdefgh\x05\x01x\0",
                // Seconds; a hash of Valkey with a time; an empty list, which is skipped.
                b"\xfe\x02\xfd\x10\0\0\0\x16\x01h\x01\x01f\x01v\x01\0\0\0\0\0\0\0\x01\x01l\0\xff\0\0\0\0\0\0\0\0",
            ]
            .concat()[..],
            true,
        );
        assert_eq!(end, Ok(Checksum::Absent));
        assert_eq!(parts.len(), 5, "{parts:?}");
        assert!(parts[3].contains("expiry_ms: Some(16000)"), "{parts:?}");
        assert!(parts[4].ends_with(": 0"), "{parts:?}");
    }

    #[test]
    fn fuzz_file_holds() {
        let mut next = numbers(3);
        let good: Vec<Vec<u8>> = [settings(), Settings { hash_times: Times::Valkey, ..settings() }]
            .map(|settings| file(&[Value::Int(7), Value::of(&[b'y'; 100]), hash(3, 2), set(4), stream(true)], settings))
            .to_vec();
        for _ in 0..2_000 {
            let mut data = good[next(2)][if next(3) == 0 { 0 } else { 9 }..].to_vec();
            data.truncate(next(data.len() + 1).max(next(data.len() + 1)));
            let times = next(4);
            damage(&mut data, times, &mut next);
            fuzz_file(&data);
        }
        assert!(matches!(FileReader::new(&b"x"[..]), Err(fault) if matches!(fault.kind, FaultKind::Short)));
    }
}
