//! The fuzz target of the language: any bytes are accepted or rejected as a configuration in bounded time.

use crate::catalogue::Place;
use crate::environment::Environment;
use crate::expression::{ExpressionReader, StoreNames};
use crate::format::{self, Blanks};
use crate::model::Position;
use crate::source::{MemoryFiles, Source};
use crate::{LuaNames, parse};

/// A Lua in which every action is registered, with as many arguments as its name has letters after the first, at most
/// two.
struct AnyLua;

impl LuaNames for AnyLua {
    fn action(&self, name: &str, _hook: &str) -> Option<usize> {
        (!name.is_empty()).then(|| name.len().saturating_sub(1).min(2))
    }
    fn actions(&self) -> Vec<String> {
        Vec::new()
    }
    fn fetches(&self) -> Vec<String> {
        vec!["a".into(), "pick".into()]
    }
    fn converters(&self) -> Vec<String> {
        vec!["a".into(), "twice".into()]
    }
    fn services(&self, _mode: &str) -> Vec<String> {
        vec!["a".into(), "hello".into()]
    }
    fn filters(&self) -> Vec<String> {
        vec!["a".into(), "trace".into()]
    }
}

/// Parses any bytes as a configuration, and asserts that the result is consistent.
pub fn fuzz_config(data: &[u8]) {
    let mut env = Environment::new();
    env.set("VAR", "a b\\\"c' #d");
    let (config, diagnostics) =
        parse(Source::from_text("fuzz.cfg", data), &MemoryFiles::new(), &mut env).finish(&MemoryFiles::new(), &AnyLua);
    assert_eq!(config.is_some(), !diagnostics.has_errors());
    for diagnostic in &diagnostics {
        let _ = diagnostic.to_string();
    }
}

/// Parses any bytes as the files that TLS settings name.
pub fn fuzz_tls_files(data: &[u8]) {
    crate::section::tls::fuzz(data);
}

/// Every place with its own set of allowed fetches.
const PLACES: [Place; 5] = [Place::TcpConnection, Place::HttpRequest, Place::HttpResponse, Place::UniqueId, Place::Log];

/// Parses any bytes as a log-format of a line and of a rule; the position of an error must be within the bytes.
pub fn fuzz_format(data: &[u8]) {
    let stores = StoreNames::default();
    let place = |offset: usize| Position { file: "fuzz".into(), line: 1, column: offset as u32 + 1 };
    for at in PLACES {
        let reader = ExpressionReader { stores: &stores, place: at, acl: false };
        for blanks in [Blanks::Kept, Blanks::Merged] {
            match format::read(data, blanks, &reader, &place) {
                Ok((format, _)) => assert!(format.parts.len() <= data.len()),
                Err(problem) => assert!(problem.offset <= data.len(), "{problem:?}"),
            }
        }
    }
}

/// Parses any text as a sample expression of a rule and of an ACL; the position of an error must be within the text.
pub fn fuzz_expression(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let stores = StoreNames::default();
    for place in PLACES {
        for acl in [false, true] {
            let reader = ExpressionReader { stores: &stores, place, acl };
            match reader.read(text, Position { file: "fuzz".into(), line: 1, column: 1 }) {
                Ok(parsed) => assert!(text.is_char_boundary(parsed.used)),
                Err(problem) => assert!(problem.offset <= text.len(), "{problem:?}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that together reach most of the code; mutations start from them.
    const SEEDS: &[&str] = &[
        include_str!("../tests/it/golden/global.cfg"),
        include_str!("../tests/it/golden/proxies.cfg"),
        include_str!("../tests/it/golden/rules.cfg"),
        include_str!("../tests/it/golden/rules-errors.cfg"),
        include_str!("../tests/it/golden/conditions.cfg"),
        include_str!("../tests/it/golden/words.cfg"),
        include_str!("../tests/it/golden/edits.cfg"),
        include_str!("../tests/it/golden/users.cfg"),
        include_str!("../tests/it/golden/tls.cfg"),
        include_str!("../tests/it/golden/tls-errors.cfg"),
    ];

    /// A small generator (SplitMix64): the same inputs on every run.
    struct Random(u64);

    impl Random {
        fn next(&mut self, below: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) % below.max(1) as u64) as usize
        }
    }

    #[test]
    fn any_bytes_are_read() {
        let mut random = Random(1);
        let interesting = b" \t\n\"'\\$%{}[]()!|&#,.:@-+0123456789aifx\x00\xff\r";
        for round in 0..400 {
            let seed = SEEDS[round % SEEDS.len()].as_bytes();
            // A slice of whole lines keeps a round short and its sections plausible.
            let start = random.next(seed.len());
            let mut data = b"global\ndefaults d\n mode http\nstore main\nlisten l\n".to_vec();
            data.extend_from_slice(&seed[start..(start + 600).min(seed.len())]);
            for _ in 0..random.next(12) {
                let at = random.next(data.len());
                match random.next(3) {
                    0 => data[at] = interesting[random.next(interesting.len())],
                    1 => data.insert(at, interesting[random.next(interesting.len())]),
                    _ => _ = data.remove(at),
                }
            }
            fuzz_config(&data);
        }
        for seed in SEEDS {
            fuzz_config(seed.as_bytes());
        }
    }

    /// Formats and expressions that together reach most of their readers.
    const FORMATS: &[&str] = &[
        "%ci:%cp [%tr] %ft %b/%s %{+Q}r %(name){+X}ms %%",
        "%{+Q,-X}o %[req.hdr(host,-1),lower,field(1,':')] %[path,regsub(a(.),\\\\1,g)]",
        "%[var(txn.a),iif(x,\"y,z\")]%{+E}[str('a b')] %[int(5),add(txn.b),ltime(\"%Y %H\",-3)]",
        "%[src,ipmask(24,64)] %[date(-1,ms)] %[bin(0a0b),hex] %[rand(10),bytes(0,1)]",
    ];
    const EXPRESSIONS: &[&str] = &[
        "req.hdr(host,-1),lower,field(1,':')",
        "path_beg",
        "var(txn.a),iif(x,\"y,z\"),regsub(a(.),b,gi)",
        "src,ipmask(24,64),concat(:,txn.p,\"'\"),json(utf8s)",
        "payload(0,10),be2dec(:,2,1),digest(sha256)",
    ];

    /// Returns a seed with some bytes changed, inserted, removed or doubled.
    fn mutated(seed: &str, random: &mut Random) -> Vec<u8> {
        let interesting = b" \"'\\%{}[](),.:+-0129aQX\x00\xff\xc3\xa9";
        let mut data = seed.as_bytes().to_vec();
        for _ in 0..=random.next(8) {
            let at = random.next(data.len());
            match random.next(4) {
                0 => data[at] = interesting[random.next(interesting.len())],
                1 => data.insert(at, interesting[random.next(interesting.len())]),
                2 if data.len() > 1 => _ = data.remove(at),
                _ => data.extend_from_within(at..),
            }
            data.truncate(400);
        }
        data
    }

    /// Returns the number of rounds, which `FUZZ_ROUNDS` sets.
    fn rounds() -> usize {
        std::env::var("FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(2_000)
    }

    /// Lines of lists, and keys of tickets.
    const TLS_FILES: &[&str] = &[
        "a.pem [alpn h2 verify none crl-file x] *.b.c !d.b.c\nb.pem\n",
        "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB\n\
         QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB\r\n\
         QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB\n",
    ];

    #[test]
    fn any_bytes_are_files_of_tls() {
        let mut random = Random(4);
        for round in 0..rounds() {
            fuzz_tls_files(&mutated(TLS_FILES[round % TLS_FILES.len()], &mut random));
        }
    }

    #[test]
    fn any_bytes_are_a_format() {
        let mut random = Random(2);
        for round in 0..rounds() {
            fuzz_format(&mutated(FORMATS[round % FORMATS.len()], &mut random));
        }
    }

    #[test]
    fn any_text_is_an_expression() {
        let mut random = Random(3);
        for round in 0..rounds() {
            fuzz_expression(&mutated(EXPRESSIONS[round % EXPRESSIONS.len()], &mut random));
        }
    }
}
