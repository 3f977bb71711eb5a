//! Measures what a command costs and how much memory a key takes: `cargo run --release --example costs`.
//!
//! It prints nanoseconds of CPU per command over few hot keys and over a million random ones, with one and two threads, and
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

/// CPU time of the process, in nanoseconds: it does not count what other processes take.
fn cpu_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` lives across the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Prints the best of three runs: the one that was disturbed least.
fn measure(name: &str, count: usize, mut run: impl FnMut()) {
    let once = |run: &mut dyn FnMut()| {
        let start = cpu_ns();
        run();
        (cpu_ns() - start) / count as f64
    };
    let best = (0..3).map(|_| once(&mut run)).fold(f64::INFINITY, f64::min);
    println!("{name:58} {best:8.1} ns");
}

fn key(n: usize) -> [u8; 16] {
    format!("hits:{n:011}").into_bytes().try_into().expect("16 bytes")
}

fn commands(store: &Store, keys: &[[u8; 16]], seed: u64, count: usize, command: &[&[u8]]) {
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
    let count = 2_000_000;
    let hot: Vec<[u8; 16]> = (0..1_000).map(key).collect();
    let many: Vec<[u8; 16]> = (0..1_000_000).map(key).collect();
    let value = [b'v'; 32];
    // What the machine charges for going to memory, to which the numbers below are to be compared.
    let lines: Vec<[u64; 8]> = vec![[7; 8]; 80 << 14];
    measure("one dependent read at random in 80 MiB", count, || {
        let mut random = Random(5);
        let mut last = 0;
        for _ in 0..count {
            last = lines[(random.below(lines.len()) + last as usize) % lines.len()][0];
        }
        assert_eq!(last, 7);
    });
    for (name, keys) in [("1,000 hot keys", &hot), ("1,000,000 random keys", &many)] {
        let store = Store::new(StoreOptions::default());
        for (n, key) in keys.iter().enumerate() {
            commands(&store, std::slice::from_ref(key), 1, 1, &[b"INCRBY", b"1"]);
            // As the program does it ten times a second.
            if n.is_multiple_of(50_000) {
                store.tick();
            }
        }
        measure(&format!("INCRBY, {name}"), count, || commands(&store, keys, 1, count, &[b"INCRBY", b"1"]));
        measure(&format!("GET, {name}"), count, || commands(&store, keys, 2, count, &[b"GET"]));
        measure(&format!("SET of 32 bytes, {name}"), count, || commands(&store, keys, 3, count, &[b"SET", &value]));
        measure(&format!("GET of 32 bytes, {name}"), count, || commands(&store, keys, 4, count, &[b"GET"]));
        measure(&format!("INCRBY, {name}, 2 threads"), 2 * count, || {
            std::thread::scope(|scope| {
                for seed in 1..=2 {
                    let store = &store;
                    scope.spawn(move || commands(store, keys, seed, count, &[b"INCRBY", b"1"]));
                }
            });
        });
    }
    let store = Store::new(StoreOptions::default());
    measure("a round of the measuring loop alone, 1,000,000 keys", count, || {
        let mut random = Random(9);
        let sum = (0..count).map(|_| u64::from(many[random.below(many.len())][15])).sum::<u64>();
        assert!(sum > 0);
    });
    let mut random = Random(9);
    measure("INCRBY as a function (Engine), 1,000 hot keys", count, || {
        for _ in 0..count {
            let started = store.start(0, &[b"INCRBY", &hot[random.below(hot.len())], b"1"]);
            assert!(matches!(started, Started::Done(_)));
        }
    });
    let store = Store::new(StoreOptions::default());
    let (mut caller, mut out) = (Caller::default(), Vec::new());
    for n in 0..1_000_000 {
        out.clear();
        let words = [&b"SET"[..], &key(n), &value, b"PX", b"1"];
        let _ = execute(&store, &mut caller, &words, &mut ReplyWriter::new(&mut out, Protocol::Resp2));
    }
    let (mut ticks, start) = (0, cpu_ns());
    while store.stats().databases.first().is_some_and(|db| db.keys > 0) {
        store.tick();
        ticks += 1;
    }
    println!("1,000,000 keys that expired at once: {ticks} ticks, {:.0} ms of CPU", (cpu_ns() - start) / 1e6);
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
