//! A test of the gate of all writes, [`stripe::edit`](crate::stripe): generated commands of every row.
//!
//! The changes of a command show in DUMP and PEXPIRETIME of all keys. A command that changed a key has passed the gate;
//! one that neither writes nor counts as a write has not.

use std::collections::BTreeSet;

use sluicegate_wire::resp::{Protocol, ReplyWriter};

use crate::catalogue::{CommandSpec, Handler};
use crate::commands;
use crate::stripe::edit::PASSED;
use crate::{Caller, Clock, Executed, ManualClock, Store, StoreOptions, execute};

const KEYS: [&str; 9] = ["string", "number", "list", "hash", "set", "ints", "zset", "stream", "new"];

const WORDS: [&str; 40] = [
    "string",
    "list",
    "hash",
    "set",
    "zset",
    "stream",
    "new",
    "a",
    "b",
    "c",
    "1",
    "2",
    "0",
    "-1",
    "10",
    "(1",
    "-",
    "+",
    "+inf",
    "-inf",
    "*",
    "LEFT",
    "RIGHT",
    "BEFORE",
    "NX",
    "XX",
    "EX",
    "PX",
    "COUNT",
    "LIMIT",
    "MAXLEN",
    "STORE",
    "FIELDS",
    "WITHSCORES",
    "BYSCORE",
    "u8",
    "m",
    "13.3",
    "GROUP",
    "PERSIST",
];

fn run(store: &Store, words: &[&[u8]]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let executed = execute(store, &mut Caller::default(), words, &mut ReplyWriter::new(&mut out, Protocol::Resp2));
    matches!(executed, Executed::Done).then_some(out)
}

pub(crate) fn prepare(store: &Store) {
    for line in [
        "SET string some-text-of-a-few-bytes",
        "SET number 10",
        "RPUSH list a b c 1 2",
        "HSET hash a 1 b 2 c text",
        "SADD set a b c 1",
        "SADD ints 1 2 3",
        "ZADD zset 1 a 2 b 3.5 c",
        "XADD stream 1-1 a 1",
        "XADD stream 2-1 b 2",
        "XGROUP CREATE stream a 0",
        "XREADGROUP GROUP a b COUNT 1 STREAMS stream >",
        "EXPIRE list 1000",
    ] {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        assert!(run(store, &words).is_some_and(|reply| reply[0] != b'-'), "{line}");
    }
}

/// Returns all that the database has.
fn digest(store: &Store) -> Vec<Vec<u8>> {
    let mut digest = Vec::new();
    let keys = WORDS.iter().chain(&KEYS).collect::<BTreeSet<_>>();
    for key in keys {
        digest
            .extend(["DUMP", "PEXPIRETIME"].map(|name| run(store, &[name.as_bytes(), key.as_bytes()]).expect("short")));
    }
    digest
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % limit as u64) as usize
    }
}

/// A command or subcommand of keys: its words and its row.
pub(crate) type Named = (Vec<&'static str>, &'static CommandSpec);

/// Returns all commands of keys.
pub(crate) fn rows() -> Vec<Named> {
    let mut rows = Vec::new();
    for spec in commands::all().filter(|spec| spec.group != "test") {
        match spec.handler {
            Handler::Keyspace(_) => rows.push((vec![spec.name], spec)),
            Handler::Container => rows.extend(
                spec.subcommands
                    .iter()
                    .filter(|sub| matches!(sub.handler, Handler::Keyspace(_)))
                    .map(|sub| (vec![spec.name, sub.name], sub)),
            ),
            _ => {}
        }
    }
    rows
}

/// Returns the words of a command that is mostly wrong.
pub(crate) fn words_of((name, spec): &Named, random: &mut Random) -> Vec<&'static str> {
    let mut words = name.clone();
    words.push(KEYS[random.below(KEYS.len())]);
    let least = spec.arity.unsigned_abs() as usize;
    let most = if spec.arity < 0 { least + random.below(4) } else { least };
    while words.len() < most {
        words.push(WORDS[random.below(WORDS.len())]);
    }
    words
}

#[test]
fn what_changes_a_key_has_passed_the_gate_and_what_reads_has_not() {
    let rows = rows();
    let mut random = Random(27);
    let mut changing = BTreeSet::new();
    for _ in 0..120 {
        let clock = Clock::Manual(ManualClock::new(1_000_000));
        let store = Store::new(StoreOptions { stripes: 4, clock, ..StoreOptions::default() });
        prepare(&store);
        let mut before = digest(&store);
        for _ in 0..60 {
            let row = &rows[random.below(rows.len())];
            let ((name, spec), words) = (row, words_of(row, &mut random));
            let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            let passed = PASSED.get();
            let done = run(&store, &bytes).is_some();
            let passed = PASSED.get() > passed;
            if !done {
                // It waits, or another thread does it.
                break;
            }
            let after = digest(&store);
            if before != after {
                assert!(passed, "{words:?} has changed a key and has not passed the gate");
                changing.insert(name.clone());
            }
            assert!(!passed || spec.counts_as_write(), "{words:?} has passed the gate and only reads");
            before = after;
        }
    }
    assert!(changing.len() >= 40, "only these have changed something: {changing:?}");
}
