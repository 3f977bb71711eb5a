//! The fuzz target of the language: any bytes are a configuration, good or refused, in bounded time.

use crate::environment::Environment;
use crate::source::{MemoryFiles, Source};
use crate::{LuaNames, parse};

/// Every action is registered, with as many arguments as its name has letters after the first, at most two.
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
}

/// Reads any bytes as a configuration; asserts what holds for all of them.
pub fn fuzz_config(data: &[u8]) {
    let mut env = Environment::new();
    env.set("VAR", "a b\\\"c' #d");
    let (config, diagnostics) =
        parse(Source::from_text("fuzz.cfg", data), &mut env).finish(&MemoryFiles::new(), &AnyLua);
    assert_eq!(config.is_some(), !diagnostics.has_errors());
    for diagnostic in &diagnostics {
        let _ = diagnostic.to_string();
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
}
