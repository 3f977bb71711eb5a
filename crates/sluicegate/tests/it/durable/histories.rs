//! Linearizability over kills: clients run commands of a few keys until the process is killed; what they saw, and what
//! is there after the next start, comes from one command after the other.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_testkit::history::{Call, NAMES, Op, State, explain, program};
use sluicegate_testkit::{Client, Program, wait_for};

use super::{kills, number, start};

const CLIENTS: usize = 5;

/// The numbers that decide what clients do.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Lets a client run commands until the server is gone.
fn carry_out(client: usize, address: &str, seed: u64, (clock, calls): (&AtomicU64, &Mutex<Vec<Call>>)) {
    let mut connection = Client::connect(address);
    let (mut random, mut value) = (Random(seed), client as u32 * 1_000_000);
    let now = || clock.fetch_add(1, Ordering::SeqCst);
    loop {
        let from = random.below(NAMES.len() - 2);
        let keys: Vec<usize> = (from..from + 2 + random.below(2)).collect();
        for op in program(&mut |limit| random.below(limit), &keys, &mut value) {
            let from = now();
            let reply = op.ask(&mut connection);
            let is_gone = reply.is_none();
            calls.lock().expect("nobody panics").push(Call { client, op, reply, from, to: now() });
            if is_gone {
                return;
            }
        }
    }
}

/// Runs clients, kills the server after so many calls, and starts it again. Returns the number of calls that had no reply.
fn round(dir: &str, server: &mut (Program, String), seed: u64) -> usize {
    let (program, address) = server;
    let mut reader = Client::connect(address);
    let before = State::read(&mut reader);
    let (clock, calls) = (AtomicU64::new(0), Mutex::default());
    let until = 200 + seed * 37 % 400;
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (address, told) = (&*address, (&clock, &calls));
            scope.spawn(move || carry_out(client, address, seed * 100 + client as u64, told));
        }
        let comes = |time| wait_for("calls", || (clock.load(Ordering::SeqCst) >= time).then_some(()));
        comes(until);
        if seed.is_multiple_of(3) {
            // The kill comes in the middle of it.
            reader.command(&["BGREWRITEAOF"]);
        }
        comes(until + 40);
        program.signal(libc::SIGKILL);
    });
    program.wait();
    *server = start(dir);
    let mut calls = calls.into_inner().expect("nobody panics");
    let mut reader = Client::connect(&server.1);
    for key in 0..NAMES.len() {
        let (op, from) = (Op::Read(key), clock.fetch_add(1, Ordering::SeqCst));
        let reply = op.ask(&mut reader);
        calls.push(Call { client: 0, op, reply, from, to: clock.fetch_add(1, Ordering::SeqCst) });
    }
    if let Err(at) = explain(before.clone(), &calls) {
        let from = calls[at].from;
        calls.sort_by_key(|call| call.from);
        panic!("seed {seed}: no order explains the call of {from}, from {before:?} on: {calls:#?}");
    }
    calls.iter().filter(|call| call.reply.is_none()).count()
}

#[test]
fn histories_with_kills_are_linearizable() {
    let directory = tempfile::tempdir().expect("a directory");
    let dir = directory.path().to_str().expect("text");
    let mut server = start(dir);
    let seed = number("SLUICEGATE_SEED").unwrap_or(1);
    let without_reply: usize = (seed..seed + kills(4)).map(|seed| round(dir, &mut server, seed)).sum();
    // Each client had one when the server was killed.
    assert!(without_reply > 0, "nothing was under way at a kill");
}
