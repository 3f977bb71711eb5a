//! Measures how long single-key commands execute at most, by the CPU clock of the thread that runs them:
//! `cargo run --release -p sluicegate --example stalls [KEYS]`, which `cargo xtask bench store stalls` does.
//!
//! A thread runs SET, GET, INCR and DEL on the store as a worker does, and asks its own CPU clock around each command:
//! while the database grows from nothing to ten million keys, while half of them are given an expiry, while a set of
//! five million members is deleted, while those keys expire within a second, and while the memory of what has gone is
//! put together. Last, it calls scripts that exceed their slice, and so continue on another thread. A further thread calls
//! [`Store::tick`] ten times a second, as the control thread does.
//!
//! Time in which the thread does not run is not in these figures, as when the machine does other things; what an
//! interrupt or the hypervisor takes while it runs is. So a phase without a store shows what the machine itself adds.
//!
//! Output: a line per phase: its name, commands, the longest one in µs, how many were above 1 ms, and the time above
//! which one of a million was, in µs. The line `expired` has the milliseconds from the expiry of the last of the
//! keys until all were gone.

#[path = "../src/allocator.rs"]
mod allocator;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sluicegate_store::{Caller, Executed, Store, StoreOptions, execute};
use sluicegate_wire::resp::{Protocol, ReplyWriter};

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

/// Above this a command counts as a stall.
const STALL_NS: u64 = 1_000_000;
/// Scripts that exceed their slice.
const SCRIPTS: u64 = 500;
/// Words of one command that fills.
const BATCH: usize = 1_000;

/// CPU time of this thread, ns.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` lives across the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Times of one phase.
#[derive(Default)]
struct Times {
    count: u64,
    stalls: u64,
    /// Those above 20 µs; the others are far from being the longest.
    long: Vec<u64>,
}

impl Times {
    fn add(&mut self, ns: u64) {
        self.count += 1;
        self.stalls += u64::from(ns > STALL_NS);
        if ns > 20_000 {
            self.long.push(ns);
        }
    }

    fn print(mut self, phase: &str) {
        self.long.sort_unstable_by(|a, b| b.cmp(a));
        let us = |index: usize| self.long.get(index).map_or(20.0, |ns| *ns as f64 / 1e3);
        println!("{phase} {} {:.1} {} {:.1}", self.count, us(0), self.stalls, us(self.count as usize / 1_000_000));
    }
}

struct Worker {
    store: Store,
    caller: Caller,
    out: Vec<u8>,
    times: Times,
}

impl Worker {
    /// Runs a command, and waits for it if it is worked aside.
    fn run(&mut self, words: &[&[u8]]) {
        self.out.clear();
        let executed =
            execute(&self.store, &mut self.caller, words, &mut ReplyWriter::new(&mut self.out, Protocol::Resp2));
        self.wait(executed);
        assert!(self.out.first().is_some_and(|byte| *byte != b'-'), "{}", String::from_utf8_lossy(&self.out));
    }

    /// Waits for the reply of a command that is worked aside.
    fn wait(&mut self, executed: Executed) {
        if let Executed::Parked(mut parked) = executed {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            self.out = runtime.block_on(&mut parked);
        }
    }

    /// Runs a script, by the clock as far as this thread executes it, and waits for its end.
    fn run_script(&mut self) {
        self.out.clear();
        let script = "local sum = 0 for i = 1, 2000000 do sum = sum + i end return sum";
        let before = cpu_ns();
        let mut out = ReplyWriter::new(&mut self.out, Protocol::Resp2);
        let executed = execute(&self.store, &mut self.caller, &[b"EVAL", script.as_bytes(), b"0"], &mut out);
        self.times.add(cpu_ns() - before);
        self.wait(executed);
        assert_eq!(self.out, b":2000001000000\r\n");
    }

    /// Runs a command by the clock.
    fn time(&mut self, words: &[&[u8]]) {
        self.out.clear();
        let before = cpu_ns();
        let mut out = ReplyWriter::new(&mut self.out, Protocol::Resp2);
        let executed = execute(&self.store, &mut self.caller, words, &mut out);
        self.times.add(cpu_ns() - before);
        assert!(matches!(executed, Executed::Done), "a single-key command waits");
    }

    /// Some commands on keys that stay.
    fn time_some(&mut self, round: usize) {
        let key = format!("stays:{:010}", round % 1_000);
        let key = key.as_bytes();
        match round % 4 {
            0 => self.time(&[b"SET", key, &[b'v'; 32]]),
            1 => self.time(&[b"GET", key]),
            2 => self.time(&[b"INCR", b"counter"]),
            _ => self.time(&[b"DEL", b"none"]),
        }
    }

    fn time_while(&mut self, mut goes_on: impl FnMut(&Store) -> bool) {
        let mut round = 0;
        while goes_on(&self.store) {
            for _ in 0..1_000 {
                self.time_some(round);
                round += 1;
            }
        }
    }

    fn print(&mut self, phase: &str) {
        std::mem::take(&mut self.times).print(phase);
    }
}

fn keys(store: &Store) -> u64 {
    store.stats().databases.first().map_or(0, |db| db.keys)
}

fn main() {
    sluicegate_script::short_turns();
    allocator::configure();
    let count: usize = std::env::args().nth(1).map_or(10_000_000, |word| word.parse().expect("a number of keys"));
    let store = Store::new(StoreOptions::default());
    let over = Arc::new(AtomicBool::new(false));
    let ticking = std::thread::spawn({
        let (store, over) = (store.clone(), over.clone());
        move || {
            while !over.load(Ordering::Relaxed) {
                store.tick();
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    });
    let mut worker =
        Worker { store: store.clone(), caller: Caller::default(), out: Vec::new(), times: Times::default() };

    let mut sum = 0_u64;
    for round in 0..count as u64 / 2 {
        let before = cpu_ns();
        (0..50).for_each(|step| sum = sum.wrapping_mul(6_364_136_223_846_793_005) ^ round ^ step);
        worker.times.add(cpu_ns() - before);
    }
    assert_ne!(sum, 1);
    worker.print("nothing");

    let key = |n: usize| format!("key:{n:012}");
    let start = Instant::now();
    for n in 0..count {
        worker.time(&[b"SET", key(n).as_bytes(), &[b'v'; 32]]);
    }
    worker.print("growth");

    // The odd keys will expire in one second, which is far enough away for a machine that has other things to do, too.
    let expiry_ms = store.clock().now_ms() + 20_000 + 2 * start.elapsed().as_millis() as i64;
    for n in (1..count).step_by(2) {
        let at = (expiry_ms + (n % 1_000) as i64).to_string();
        worker.time(&[b"PEXPIREAT", key(n).as_bytes(), at.as_bytes()]);
    }
    worker.print("PEXPIREAT");

    let mut next = 0;
    while next < count / 2 {
        let members: Vec<String> = (next..next + BATCH).map(|n| format!("member:{n:09}")).collect();
        let mut words = vec![&b"SADD"[..], b"large"];
        words.extend(members.iter().map(String::as_bytes));
        worker.run(&words);
        next += BATCH;
    }
    worker.time(&[b"DEL", b"large"]);
    let start = Instant::now();
    worker.time_while(|_| start.elapsed() < Duration::from_secs(3));
    worker.print("deletion");

    let left = expiry_ms - store.clock().now_ms();
    assert!(left > 0, "the keys expired while they were written");
    std::thread::sleep(Duration::from_millis(left as u64));
    let due = count as u64 / 2;
    let all = keys(&store);
    // Counting asks a thousand figures, so it is not done often.
    worker.time_while(|store| keys(store) + due > all && store.clock().now_ms() < expiry_ms + 60_000);
    let took_ms = store.clock().now_ms() - expiry_ms - 999;
    worker.print("expiry");
    println!("expired {took_ms}");

    let start = Instant::now();
    worker.time_while(|_| start.elapsed() < Duration::from_secs(5));
    worker.print("compaction");

    // The first one makes the interpreter.
    worker.run_script();
    worker.times = Times::default();
    for round in 0..SCRIPTS {
        worker.run_script();
        std::thread::sleep(Duration::from_micros(100 * round % 30_000));
    }
    worker.print("scripts");
    over.store(true, Ordering::Relaxed);
    ticking.join().expect("ticks go well");
}
