//! Measures what a command costs and how much memory a key takes: `cargo run --release --example costs`.
//!
//! It prints nanoseconds per command over few hot keys and over a million random ones, with one and two threads, and
//! bytes per key for keys of 16 bytes with values of 32, counted by the store and by the kernel (resident memory).

use std::time::Instant;

use sluicegate_store::{Caller, Executed, Store, StoreOptions, execute};
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::resp::{Protocol, ReplyWriter};

fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux has /proc");
    status.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).expect("statm has two fields") * 4096.0
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

fn measure(name: &str, count: usize, run: impl FnOnce()) {
    let start = Instant::now();
    run();
    println!("{name:58} {:8.1} ns", start.elapsed().as_nanos() as f64 / count as f64);
}

fn commands(store: &Store, keys: &[Vec<u8>], seed: u64, count: usize, command: &[&[u8]]) {
    let mut caller = Caller::default();
    let mut out = Vec::with_capacity(1 << 16);
    let mut random = Random(seed);
    for _ in 0..count {
        let mut words = [&b""[..]; 3];
        words[0] = command[0];
        words[1] = &keys[random.below(keys.len())];
        words[2] = command.get(1).copied().unwrap_or_default();
        let words = &words[..command.len() + 1];
        let executed = execute(store, &mut caller, words, &mut ReplyWriter::new(&mut out, Protocol::Resp2));
        assert!(matches!(executed, Executed::Done));
        if out.len() > 60_000 {
            out.clear();
        }
    }
}

fn main() {
    let count = 3_000_000;
    let hot: Vec<Vec<u8>> = (0..1_000).map(|n| format!("hits:10.0.{}.{}", n / 256, n % 256).into_bytes()).collect();
    let many: Vec<Vec<u8>> = (0..1_000_000).map(|n| format!("hits:{n:011}").into_bytes()).collect();
    let value = [b'v'; 32];
    for (name, keys) in [("1,000 hot keys", &hot), ("1,000,000 random keys", &many)] {
        let store = Store::new(StoreOptions::default());
        keys.iter().for_each(|key| commands(&store, std::slice::from_ref(key), 1, 1, &[b"INCRBY", b"1"]));
        measure(&format!("INCRBY, {name}"), count, || commands(&store, keys, 1, count, &[b"INCRBY", b"1"]));
        measure(&format!("GET, {name}"), count, || commands(&store, keys, 2, count, &[b"GET"]));
        measure(&format!("SET of 32 bytes, {name}"), count, || commands(&store, keys, 3, count, &[b"SET", &value]));
        measure(&format!("GET of 32 bytes, {name}"), count, || commands(&store, keys, 4, count, &[b"GET"]));
        measure(&format!("INCRBY, {name}, 2 threads, per thread"), count, || {
            let store = Store::new(StoreOptions::default());
            std::thread::scope(|scope| {
                for seed in 1..=2 {
                    let store = &store;
                    scope.spawn(move || commands(store, keys, seed, count, &[b"INCRBY", b"1"]));
                }
            });
        });
    }
    let store = Store::new(StoreOptions::default());
    let mut random = Random(9);
    measure("INCRBY as a function (Engine), 1,000 hot keys", count, || {
        for _ in 0..count {
            let started = store.start(0, &[b"INCRBY", &hot[random.below(hot.len())], b"1"]);
            assert!(matches!(started, Started::Done(_)));
        }
    });
    for keys in [250_000usize, 1_000_000, 2_000_000] {
        let store = Store::new(StoreOptions::default());
        let before = resident_bytes();
        let mut caller = Caller::default();
        let mut out = Vec::new();
        for n in 0..keys {
            out.clear();
            let key = format!("key:{n:012}");
            let words = [&b"SET"[..], key.as_bytes(), &value];
            let _ = execute(&store, &mut caller, &words, &mut ReplyWriter::new(&mut out, Protocol::Resp2));
        }
        let counted = store.used_bytes() as f64 / keys as f64;
        let resident = (resident_bytes() - before) / keys as f64;
        println!("{keys:9} keys of 16 + 32 bytes: {counted:.1} B/key counted, {resident:.1} B/key resident");
        let start = Instant::now();
        let words = [&b"FLUSHALL"[..]];
        let _ = execute(&store, &mut caller, &words, &mut ReplyWriter::new(&mut out, Protocol::Resp2));
        println!("{:9} FLUSHALL {:?}", "", start.elapsed());
    }
}
