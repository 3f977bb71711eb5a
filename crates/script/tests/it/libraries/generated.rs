//! Scripts that are generated from a seed: texts, values, formats and bytes, valid and damaged.

use super::Pair;

/// The number of cases of each kind.
const CASES: usize = 2500;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }

    pub(super) fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.below(256) as u8
    }
}

const NUMBERS: [&str; 44] = [
    "0",
    "1",
    "-1",
    "2",
    "10",
    "15",
    "16",
    "31",
    "32",
    "-32",
    "-33",
    "127",
    "128",
    "-128",
    "-129",
    "255",
    "256",
    "65535",
    "65536",
    "-32768",
    "-32769",
    "2147483647",
    "2147483648",
    "-2147483649",
    "4294967296",
    "0.5",
    "-2.5",
    "0.1",
    "3.14159",
    "1e5",
    "1e14",
    "99999999999999",
    "123456789012345",
    "-100000000000001",
    "9007199254740993",
    "1e15",
    "1e300",
    "-1e-7",
    "12345.678",
    "1.5e300",
    "2.5e-5",
    "4611686018427387904",
    "1e19",
    "33554433",
];

/// Returns bytes as a literal of Lua.
pub(super) fn literal(bytes: &[u8]) -> String {
    let mut text = String::from("'");
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b' ' | b'{' | b'}' | b'[' | b']' | b':' | b',' | b'"' => {
                text.push(char::from(*byte));
            }
            _ => text.push_str(&format!("\\{byte:03}")),
        }
    }
    text.push('\'');
    text
}

/// Changes, removes or inserts a few bytes, or cuts off the end.
pub(super) fn spoil(random: &mut Random, bytes: &mut Vec<u8>, likely: &[u8]) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() + 1);
        let byte = if random.below(4) == 0 { random.byte() } else { likely[random.below(likely.len())] };
        match random.below(5) {
            0 => bytes.insert(at, byte),
            1 => bytes.truncate(at),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            _ => bytes.get_mut(at).into_iter().for_each(|old| *old = byte),
        }
    }
}

fn json_string(random: &mut Random, text: &mut Vec<u8>) {
    text.push(b'"');
    for _ in 0..random.below(6) {
        match random.below(12) {
            0 => text
                .extend_from_slice(random.pick(&["\\n", "\\t", "\\\"", "\\\\", "\\/", "\\b", "\\f", "\\r"]).as_bytes()),
            1 => text.extend_from_slice(
                random
                    .pick(&[
                        "\\u0000",
                        "\\u00e9",
                        "\\u20AC",
                        "\\ud83d\\ude00",
                        "\\uffff",
                        "\\ud800",
                        "\\udc00",
                        "\\u12",
                    ])
                    .as_bytes(),
            ),
            2 => text.push(random.byte()),
            3 => text.extend_from_slice("é€".as_bytes()),
            4 => text.extend(std::iter::repeat_n(b'x', random.below(60))),
            _ => text.push(b"abcXYZ019 _-"[random.below(12)]),
        }
    }
    text.push(b'"');
}

pub(super) fn json(random: &mut Random, text: &mut Vec<u8>, depth: usize) {
    let space = random.pick(&["", "", "", " ", "\n", "\t\r ", "  "]);
    text.extend_from_slice(space.as_bytes());
    match random.below(if depth > 5 { 8 } else { 14 }) {
        0..=2 => text.extend_from_slice(random.pick(&NUMBERS).as_bytes()),
        3 => {
            let odd =
                ["-0", "00", "01", "-01", "0x1F", "1.", "1e", "1e+5", "1E-3", "+1", "nan", "-inf", "Infinity", ".5"];
            let long =
                ["0.10000000000000000000000000000000000001", "123456789012345678901234567890", "-1e400", "1e-400"];
            let pick = if random.below(2) == 0 { random.pick(&odd) } else { random.pick(&long) };
            text.extend_from_slice(pick.as_bytes());
        }
        4 | 5 => json_string(random, text),
        6 => text.extend_from_slice(random.pick(&["true", "false", "null"]).as_bytes()),
        7 => text.extend_from_slice(random.pick(&["[]", "{}", "[ ]", "{ }"]).as_bytes()),
        8..=10 => {
            text.push(b'[');
            let len = if random.below(30) == 0 { 150 } else { 1 + random.below(5) };
            for index in 0..len {
                if index > 0 {
                    text.push(b',');
                }
                json(random, text, depth + 1 + len / 8);
            }
            text.push(b']');
        }
        _ => {
            text.push(b'{');
            let len = if random.below(30) == 0 { 60 } else { 1 + random.below(4) };
            for index in 0..len {
                text.extend_from_slice(if index > 0 { random.pick(&[",", ", "]) } else { "" }.as_bytes());
                json_string(random, text);
                text.extend_from_slice(random.pick(&[":", ":", " : "]).as_bytes());
                json(random, text, depth + 1 + len / 8);
            }
            text.push(b'}');
        }
    }
    text.extend_from_slice(space.as_bytes());
}

#[test]
fn random_json_is_decoded_as_by_redis() {
    let mut random = Random(1);
    let cases: Vec<String> = (0..CASES)
        .map(|_| {
            let mut text = Vec::new();
            json(&mut random, &mut text, 0);
            if random.below(2) == 0 {
                spoil(&mut random, &mut text, b"{}[]:,\"\\0123456789.eE+-truefalsn \n\0\x7f\xff");
            }
            let options =
                random.pick(&["", "", "", "cjson.decode_invalid_numbers(false)", "cjson.decode_max_depth(3)"]);
            format!("{options} return cjson.decode({})", literal(&text))
        })
        .collect();
    Pair::new().check_all(cases.iter().map(String::as_str));
}

/// The allowed contents of a random Lua value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Tables have only one possible order of traversal, on both sides; they may contain anything.
    Ordered,
    /// Tables may have any keys, and all their contents can be encoded.
    Clean,
}

fn string(random: &mut Random) -> String {
    let len = if random.below(20) == 0 { [31, 32, 33, 255, 256, 300][random.below(6)] } else { random.below(8) };
    let bytes: Vec<u8> = (0..len)
        .map(|_| if random.below(5) == 0 { random.byte() } else { b"abcxyz/\"\\\n\t 019"[random.below(15)] })
        .collect();
    literal(&bytes)
}

fn value(random: &mut Random, depth: usize, kind: Kind) -> String {
    match random.below(if depth > 5 { 9 } else { 14 }) {
        0..=3 => random.pick(&NUMBERS).to_owned(),
        4 | 5 => string(random),
        6 => random.pick(&["true", "false", "cjson.null"]).to_owned(),
        7 => "{}".to_owned(),
        8 if kind == Kind::Clean => "'plain'".to_owned(),
        8 => random.pick(&["1/0", "-1/0", "0/0", "nil", "function() end"]).to_owned(),
        9..=11 => {
            let len = if random.below(20) == 0 { 20 } else { 1 + random.below(4) };
            let mut items: Vec<String> = (0..len).map(|_| value(random, depth + 1 + len / 8, kind)).collect();
            if kind == Kind::Clean && random.below(4) == 0 {
                items.push(format!("['k'..{}]={}", string(random), value(random, depth + 1, kind)));
            }
            format!("{{{}}}", items.join(","))
        }
        _ => {
            let len = if kind == Kind::Clean { 1 + random.below(4) } else { 1 };
            let pairs: Vec<String> = (0..len)
                .map(|_| {
                    let key = match random.below(6) {
                        0 if kind == Kind::Ordered => random.pick(&NUMBERS).to_owned(),
                        0 => random.pick(&["0", "-3", "1.5", "2.5e-5", "1000000"]).to_owned(),
                        1 => (1 + random.below(14)).to_string(),
                        2 if kind == Kind::Ordered => {
                            random.pick(&["true", "{}", "cjson.null", "1.5", "1/0"]).to_owned()
                        }
                        // Not the text of a number, which as a key in JSON is the same as the number.
                        _ => format!("'k'..{}", string(random)),
                    };
                    format!("[{key}]={}", value(random, depth + 1, kind))
                })
                .collect();
            format!("{{{}}}", pairs.join(","))
        }
    }
}

#[test]
fn random_values_are_encoded_as_by_redis() {
    let mut random = Random(2);
    let cases: Vec<String> = (0..CASES)
        .map(|_| {
            if random.below(2) == 0 {
                let value = value(&mut random, 0, Kind::Clean);
                return format!(
                    "cjson.encode_sparse_array(true) local s = cjson.encode({value}) return #s, cjson.decode(s)"
                );
            }
            let options = match random.below(8) {
                0 => format!("cjson.encode_number_precision({})", 1 + random.below(14)),
                1 => format!("cjson.encode_invalid_numbers({})", random.pick(&["true", "'null'"])),
                2 => format!("cjson.encode_sparse_array(true, {}, {})", 1 + random.below(4), random.below(4)),
                3 => format!("cjson.encode_sparse_array(false, {}, {})", 1 + random.below(4), random.below(4)),
                4 => format!("cjson.encode_max_depth({})", 1 + random.below(5)),
                _ => String::new(),
            };
            format!("{options} return cjson.encode({})", value(&mut random, 0, Kind::Ordered))
        })
        .collect();
    Pair::new().check_all(cases.iter().map(String::as_str));
}

#[test]
fn random_values_are_packed_as_by_redis() {
    let mut random = Random(3);
    let cases: Vec<String> = (0..CASES)
        .map(|_| {
            let count = 1 + random.below(3);
            if random.below(2) == 0 {
                let values: Vec<String> = (0..count).map(|_| value(&mut random, 0, Kind::Clean)).collect();
                return format!("local s = cmsgpack.pack({}) return #s, cmsgpack.unpack(s)", values.join(","));
            }
            let values: Vec<String> = (0..count).map(|_| value(&mut random, 0, Kind::Ordered)).collect();
            format!("return cmsgpack.pack({})", values.join(","))
        })
        .collect();
    Pair::new().check_all(cases.iter().map(String::as_str));
}

/// Appends a random value in MessagePack, in any form of its type.
pub(super) fn message(random: &mut Random, bytes: &mut Vec<u8>, depth: usize) {
    let mut noise = |bytes: &mut Vec<u8>, count: usize| (0..count).for_each(|_| bytes.push(random.byte()));
    let len = depth % 4 + 1;
    match depth {
        0..6 => {}
        _ => return noise(bytes, 1),
    }
    let small = random.below(4);
    match random.below(30) {
        0 | 1 => bytes.push(random.below(128) as u8),
        2 => bytes.push(0xe0 | random.below(32) as u8),
        3 => bytes.push([0xc0, 0xc2, 0xc3, 0xc0, 0xc1][random.below(5)]),
        kind @ 4..8 => {
            let width = kind - 4;
            bytes.push((if random.below(2) == 0 { 0xcc } else { 0xd0 }) + width as u8);
            let edge = [0x00, 0x7f, 0x80, 0xff][random.below(4)];
            bytes.push(edge);
            for _ in 1..1 << width {
                bytes.push(if random.below(2) == 0 { 0 } else { 0xff });
            }
        }
        8 => {
            bytes.push(0xca);
            bytes.extend_from_slice(
                &[0.0_f32, 1.0, -2.5, 0.1, 1e14, 3e38, f32::INFINITY][random.below(7)].to_be_bytes(),
            );
        }
        9 | 10 => {
            bytes.push(0xcb);
            let doubles = [0.0, 1.0, -2.5, 0.1, 1e14, 99999999999999.0, 1e300, f64::NAN, 9007199254740993.0];
            bytes.extend_from_slice(&doubles[random.below(9)].to_be_bytes());
        }
        11..15 => {
            bytes.push(0xa0 | small as u8);
            bytes.extend_from_slice(&b"key\xff"[..small]);
        }
        15 => bytes.extend_from_slice(&[0xd9, 2, b'a', 0]),
        16 => bytes.extend_from_slice(&[0xda, 0, 1, b'b']),
        17 => bytes.extend_from_slice(&[0xdb, 0, 0, 0, 1, b'c']),
        kind @ 18..24 => {
            match kind {
                18 => bytes.extend_from_slice(&[0xdc, 0, len as u8]),
                19 => bytes.extend_from_slice(&[0xdd, 0, 0, 0, len as u8]),
                _ => bytes.push(0x90 | len as u8),
            }
            (0..len).for_each(|_| message(random, bytes, depth + 1));
        }
        kind @ 24..29 => {
            match kind {
                24 => bytes.extend_from_slice(&[0xde, 0, len as u8]),
                25 => bytes.extend_from_slice(&[0xdf, 0, 0, 0, len as u8]),
                _ => bytes.push(0x80 | len as u8),
            }
            (0..2 * len).for_each(|_| message(random, bytes, depth + 1));
        }
        _ => bytes.push(random.byte()),
    }
}

#[test]
fn random_bytes_are_unpacked_as_by_redis() {
    let mut random = Random(4);
    let cases: Vec<String> = (0..CASES)
        .map(|_| {
            let mut bytes = Vec::new();
            (0..1 + random.below(3)).for_each(|_| message(&mut random, &mut bytes, 0));
            if random.below(2) == 0 {
                spoil(
                    &mut random,
                    &mut bytes,
                    b"\x00\x01\x80\x81\x90\x91\xa1\xc0\xc1\xc2\xc4\xcb\xcc\xd9\xdc\xdd\xde\xdf",
                );
            }
            let text = literal(&bytes);
            let offset = random.below(bytes.len() + 3) as i64 - 1;
            match random.below(4) {
                0 => format!("return cmsgpack.unpack_one({text}, {offset})"),
                1 => format!("return cmsgpack.unpack_limit({text}, {}, {offset})", random.below(4)),
                _ => format!("return cmsgpack.unpack({text})"),
            }
        })
        .collect();
    Pair::new().check_all(cases.iter().map(String::as_str));
}

pub(super) fn format(random: &mut Random) -> String {
    let mut format = String::new();
    for _ in 0..random.below(7) {
        format.push_str(random.pick(&[
            "b", "B", "h", "H", "l", "L", "T", "i", "I", "f", "d", "s", "c", "x", "c0", "<", ">", "!", " ", "i1", "i2",
            "i3", "I5", "i7", "I8", "i9", "i16", "I32", "i33", "c3", "c1", "!1", "!2", "!4", "!8", "!16", "!3", "bc0",
            "Hc0", "y", "=", "i0",
        ]));
    }
    format
}

#[test]
fn random_formats_work_as_in_redis() {
    let mut random = Random(5);
    let cases: Vec<String> = (0..CASES)
        .map(|_| {
            let format = format(&mut random);
            match random.below(5) {
                0 => format!("return struct.size('{format}')"),
                1 | 2 => {
                    let bytes: Vec<u8> =
                        (0..random.below(70)).map(|_| [0, 1, 2, 3, 0x7f, 0x80, 0xff, b'a'][random.below(8)]).collect();
                    let start = if random.below(4) == 0 { format!(", {}", random.below(9)) } else { String::new() };
                    format!("return struct.unpack('{format}', {}{start})", literal(&bytes))
                }
                _ => {
                    let values: Vec<String> = (0..random.below(8))
                        .map(|_| match random.below(8) {
                            0..=3 => random.pick(&NUMBERS).to_owned(),
                            4 => random.pick(&["'12'", "' 0x10 '", "'1e2'", "true", "nil", "'5x'"]).to_owned(),
                            _ => string(&mut random),
                        })
                        .collect();
                    format!("return struct.pack({})", [vec![format!("'{format}'")], values].concat().join(","))
                }
            }
        })
        .collect();
    Pair::new().check_all(cases.iter().map(String::as_str));
}

#[test]
fn random_bits_are_those_of_redis() {
    let mut random = Random(6);
    let names = ["tobit", "bnot", "band", "bor", "bxor", "lshift", "rshift", "arshift", "rol", "ror", "bswap", "tohex"];
    let cases: Vec<String> = (0..CASES)
        .map(|_| {
            let arguments: Vec<String> = (0..random.below(4))
                .map(|_| match random.below(12) {
                    0 => random.pick(&["'12'", "' 0x10 '", "'x'", "nil", "true", "{}", "''"]).to_owned(),
                    1..=3 => random.pick(&NUMBERS).to_owned(),
                    4 => format!("{}", random.below(40) as i64 - 3),
                    5 => format!("{:?}", (random.below(1 << 30) as f64) * 8388608.0 / 1024.0),
                    6 => format!("{:?}", random.below(1000) as f64 / 4.0),
                    _ => format!("{}", random.below(1 << 30) as i64 * 5 - (1 << 31)),
                })
                .collect();
            format!("return bit.{}({})", random.pick(&names), arguments.join(","))
        })
        .collect();
    Pair::new().check_all(cases.iter().map(String::as_str));
}
