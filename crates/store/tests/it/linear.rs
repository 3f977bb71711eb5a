//! Linearizability: whatever clients of several workers see of a few keys could have come from one command after the
//! other, each at some moment between its request and its reply (Wing and Gong's check, over many short histories).
//!
//! Keys are held now and then by sections, so that commands park and transactions take holds; otherwise they run under
//! locks. The model is this file's own: strings, lists and sets under five names, with the versions that WATCH asks for.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Mode, Store, StoreOptions};
use sluicegate_testkit::Client;

use crate::support::Running;
use crate::{Random, block_on};

const CLIENTS: usize = 3;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";

type Key = usize;

#[derive(Clone, Debug)]
enum Op {
    Set(Key, u32),
    Get(Key),
    Incr(Key),
    Mset(Key, Key, u32),
    Mget(Key, Key),
    Del(Key, Key),
    Rename(Key, Key),
    Copy(Key, Key),
    Rpush(Key, u32),
    Lpop(Key),
    Blpop(Key, Key),
    Lmove(Key, Key),
    Sadd(Key, u32),
    Smove(Key, Key, u32),
    Watch(Key, Key),
    /// The commands of a transaction, and the number of fillers that make it too long for one locking.
    Exec(Vec<Op>, usize),
}

impl Op {
    fn words(&self) -> Vec<String> {
        let words = |text: String| text.split(' ').map(str::to_owned).collect();
        let name = |key: &Key| NAMES[*key];
        words(match self {
            Op::Set(key, value) => format!("SET {} {value}", name(key)),
            Op::Get(key) => format!("GET {}", name(key)),
            Op::Incr(key) => format!("INCR {}", name(key)),
            Op::Mset(a, b, value) => format!("MSET {} {value} {} {value}", name(a), name(b)),
            Op::Mget(a, b) => format!("MGET {} {}", name(a), name(b)),
            Op::Del(a, b) => format!("DEL {} {}", name(a), name(b)),
            Op::Rename(a, b) => format!("RENAME {} {}", name(a), name(b)),
            Op::Copy(a, b) => format!("COPY {} {}", name(a), name(b)),
            Op::Rpush(key, value) => format!("RPUSH {} {value}", name(key)),
            Op::Lpop(key) => format!("LPOP {}", name(key)),
            Op::Blpop(a, b) => format!("BLPOP {} {} 0.005", name(a), name(b)),
            Op::Lmove(a, b) => format!("LMOVE {} {} LEFT RIGHT", name(a), name(b)),
            Op::Sadd(key, value) => format!("SADD {} {value}", name(key)),
            Op::Smove(a, b, value) => format!("SMOVE {} {} {value}", name(a), name(b)),
            Op::Watch(a, b) => format!("WATCH {} {}", name(a), name(b)),
            Op::Exec(..) => "EXEC".into(),
        })
    }

    /// Executes the operation and returns the reply.
    fn ask(&self, client: &mut Client) -> String {
        let ask = |client: &mut Client, words: &[String]| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            client.command(&words);
        };
        let mut behind = 0;
        if let Op::Exec(ops, filling) = self {
            ask(client, &["MULTI".to_owned()]);
            ops.iter().for_each(|op| ask(client, &op.words()));
            (0..*filling).for_each(|_| ask(client, &["PING".to_owned()]));
            behind = 1 + ops.len() + filling;
        }
        ask(client, &self.words());
        (0..behind).for_each(|_| assert_ne!(client.read_reply()[0], b'-'));
        String::from_utf8(client.read_reply()).expect("text")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Value {
    Text(u32),
    List(VecDeque<u32>),
    Set(BTreeSet<u32>),
}

/// The values of the keys, and the state of WATCH.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    keys: BTreeMap<Key, Value>,
    versions: [u32; NAMES.len()],
    /// The versions that each client watches.
    watched: [Option<Vec<(Key, u32)>>; CLIENTS],
}

fn bulk(value: u32) -> String {
    let text = value.to_string();
    format!("${}\r\n{text}\r\n", text.len())
}

const NULL: &str = "$-1\r\n";

impl State {
    fn touch(&mut self, key: Key) {
        self.versions[key] += 1;
    }

    fn put(&mut self, key: Key, value: Value) {
        self.keys.insert(key, value);
        self.touch(key);
    }

    /// Pops the first element of a list, if the key has one; an error for other types.
    fn pop(&mut self, key: Key) -> Result<Option<u32>, ()> {
        let (element, is_empty) = match self.keys.get_mut(&key) {
            None => return Ok(None),
            Some(Value::List(list)) => (list.pop_front(), list.is_empty()),
            Some(_) => return Err(()),
        };
        if is_empty {
            self.keys.remove(&key);
        }
        self.touch(key);
        Ok(element)
    }

    fn push(&mut self, key: Key, element: u32) -> usize {
        let value = self.keys.entry(key).or_insert_with(|| Value::List(VecDeque::new()));
        let Value::List(list) = value else { panic!("looked at before") };
        list.push_back(element);
        let len = list.len();
        self.touch(key);
        len
    }

    fn is_list_or_none(&self, key: Key) -> bool {
        matches!(self.keys.get(&key), None | Some(Value::List(_)))
    }

    /// Returns the reply of a BLPOP that has waited for this key: other keys, of whatever type, no longer matter.
    fn pop_for_waiting(&mut self, key: Key) -> String {
        match self.pop(key) {
            Ok(Some(element)) => format!("*2\r\n$1\r\n{}\r\n{}", NAMES[key], bulk(element)),
            _ => "*-1\r\n".into(),
        }
    }

    /// Executes a command and returns its reply.
    fn apply(&mut self, client: usize, op: &Op) -> String {
        let ok = || "+OK\r\n".to_owned();
        match op {
            Op::Set(key, value) => {
                self.put(*key, Value::Text(*value));
                ok()
            }
            Op::Get(key) => match self.keys.get(key) {
                None => NULL.into(),
                Some(Value::Text(value)) => bulk(*value),
                Some(_) => WRONG.into(),
            },
            Op::Incr(key) => match self.keys.get(key).cloned().unwrap_or(Value::Text(0)) {
                Value::Text(value) => {
                    self.put(*key, Value::Text(value + 1));
                    format!(":{}\r\n", value + 1)
                }
                _ => WRONG.into(),
            },
            Op::Mset(a, b, value) => {
                [a, b].into_iter().for_each(|key| self.put(*key, Value::Text(*value)));
                ok()
            }
            Op::Mget(a, b) => {
                let text = |key: &Key| match self.keys.get(key) {
                    Some(Value::Text(value)) => bulk(*value),
                    _ => NULL.into(),
                };
                format!("*2\r\n{}{}", text(a), text(b))
            }
            Op::Del(a, b) => {
                let mut count = 0;
                for key in [a, b] {
                    if self.keys.remove(key).is_some() {
                        self.touch(*key);
                        count += 1;
                    }
                }
                format!(":{count}\r\n")
            }
            Op::Rename(a, b) => match self.keys.get(a).cloned() {
                None => "-ERR no such key\r\n".into(),
                Some(_) if a == b => ok(),
                Some(value) => {
                    self.keys.remove(a);
                    self.touch(*a);
                    self.put(*b, value);
                    ok()
                }
            },
            Op::Copy(a, b) => match self.keys.get(a).cloned() {
                Some(value) if !self.keys.contains_key(b) => {
                    self.put(*b, value);
                    ":1\r\n".into()
                }
                _ => ":0\r\n".into(),
            },
            Op::Rpush(key, _) if !self.is_list_or_none(*key) => WRONG.into(),
            Op::Rpush(key, value) => format!(":{}\r\n", self.push(*key, *value)),
            Op::Lpop(key) => match self.pop(*key) {
                Ok(element) => element.map_or(NULL.into(), bulk),
                Err(()) => WRONG.into(),
            },
            Op::Blpop(a, b) => {
                for key in [a, b] {
                    match self.pop(*key) {
                        Ok(None) => {}
                        Ok(Some(element)) => {
                            return format!("*2\r\n$1\r\n{}\r\n{}", NAMES[*key], bulk(element));
                        }
                        Err(()) => return WRONG.into(),
                    }
                }
                "*-1\r\n".into()
            }
            Op::Lmove(a, b) => match self.keys.get(a) {
                None => NULL.into(),
                Some(Value::List(_)) if self.is_list_or_none(*b) => {
                    let element = self.pop(*a).expect("a list").expect("an element");
                    self.push(*b, element);
                    bulk(element)
                }
                Some(_) => WRONG.into(),
            },
            Op::Sadd(key, member) => match self.keys.entry(*key).or_insert_with(|| Value::Set(BTreeSet::new())) {
                Value::Set(set) => {
                    let new = set.insert(*member);
                    if new {
                        self.touch(*key);
                    }
                    format!(":{}\r\n", u32::from(new))
                }
                _ => WRONG.into(),
            },
            Op::Smove(a, b, member) => {
                let Some(source) = self.keys.get(a).cloned() else { return ":0\r\n".into() };
                let Value::Set(mut source) = source else { return WRONG.into() };
                let Value::Set(mut destination) = self.keys.get(b).cloned().unwrap_or(Value::Set(BTreeSet::new()))
                else {
                    return WRONG.into();
                };
                if a == b || !source.contains(member) {
                    return format!(":{}\r\n", u32::from(source.contains(member)));
                }
                source.remove(member);
                self.touch(*a);
                if source.is_empty() {
                    self.keys.remove(a);
                } else {
                    self.keys.insert(*a, Value::Set(source));
                }
                if destination.insert(*member) {
                    self.touch(*b);
                }
                self.keys.insert(*b, Value::Set(destination));
                ":1\r\n".into()
            }
            Op::Watch(a, b) => {
                let versions = self.versions;
                let watched = self.watched[client].get_or_insert_default();
                for key in [a, b] {
                    if !watched.iter().any(|(known, _)| known == key) {
                        watched.push((*key, versions[*key]));
                    }
                }
                ok()
            }
            Op::Exec(ops, filling) => {
                let watched = self.watched[client].take().unwrap_or_default();
                if watched.iter().any(|(key, version)| self.versions[*key] != *version) {
                    return "*-1\r\n".into();
                }
                let replies: String = ops.iter().map(|op| self.apply(client, op)).collect();
                format!("*{}\r\n{replies}{}", ops.len() + filling, "+PONG\r\n".repeat(*filling))
            }
        }
    }
}

/// One command of a history.
#[derive(Debug)]
struct Call {
    client: usize,
    op: Op,
    reply: String,
    from: u64,
    to: u64,
}

/// Returns whether some order of the calls explains all replies.
fn is_linearizable(calls: &[Call]) -> bool {
    let mut seen: HashSet<(u64, State)> = HashSet::new();
    let mut open = vec![(0_u64, State::default())];
    while let Some((done, state)) = open.pop() {
        if done == (1 << calls.len()) - 1 {
            return true;
        }
        let is_left = |at: usize| done & 1 << at == 0;
        let first_end = (0..calls.len()).filter(|at| is_left(*at)).map(|at| calls[at].to).min().unwrap_or(u64::MAX);
        for (at, call) in calls.iter().enumerate() {
            // A call that began after the end of another comes after it.
            if !is_left(at) || call.from > first_end {
                continue;
            }
            // A client that has waited is served by the key that got an element first, whatever the order in its
            // command.
            let served_by = match call.op {
                Op::Blpop(a, b) => vec![None, Some(a), Some(b)],
                _ => vec![None],
            };
            for key in served_by {
                let mut next = state.clone();
                let reply = match key {
                    None => next.apply(call.client, &call.op),
                    Some(key) => next.pop_for_waiting(key),
                };
                if reply == call.reply && seen.insert((done | 1 << at, next.clone())) {
                    open.push((done | 1 << at, next));
                }
            }
        }
    }
    false
}

/// Returns a command on the given keys.
fn command(random: &mut Random, keys: &[Key], value: &mut u32) -> Op {
    *value += 1;
    let value = *value;
    let a = keys[random.below(keys.len())];
    let others: Vec<Key> = keys.iter().copied().filter(|key| *key != a).collect();
    let b = others[random.below(others.len())];
    match random.below(18) {
        0..2 => Op::Set(a, value),
        2..4 => Op::Get(a),
        4 => Op::Incr(a),
        5 => Op::Mset(a, b, value),
        6..8 => Op::Mget(a, b),
        8 => Op::Del(a, b),
        9 => Op::Rename(a, b),
        10 => Op::Copy(a, b),
        11..13 => Op::Rpush(a, value),
        13 => Op::Lpop(a),
        14 => Op::Lmove(a, b),
        15 => Op::Blpop(a, b),
        16 => Op::Sadd(a, value % 2),
        _ => Op::Smove(a, b, value % 2),
    }
}

/// Returns the commands of one client in a round.
fn program(random: &mut Random, keys: &[Key], value: &mut u32) -> Vec<Op> {
    let mut program = Vec::new();
    while program.len() < 4 {
        let exec = |random: &mut Random, value: &mut u32| {
            let ops = (0..1 + random.below(3)).map(|_| command(random, keys, value)).collect();
            Op::Exec(ops, if random.below(3) == 0 { 40 } else { 0 })
        };
        match random.below(6) {
            // Of two transactions each of which watches what the other writes, at most one succeeds.
            0 => {
                let at = random.below(keys.len() - 1);
                program.push(Op::Watch(keys[at], keys[at + 1]));
                program.push(Op::Mget(keys[at], keys[at + 1]));
                let key = keys[at + random.below(2)];
                *value += 1;
                program.push(Op::Exec(vec![Op::Set(key, *value)], if random.below(2) == 0 { 40 } else { 0 }));
            }
            1 => program.push(exec(random, value)),
            2 => {
                program.push(Op::Watch(keys[0], keys[1]));
                program.push(exec(random, value));
            }
            _ => program.push(command(random, keys, value)),
        }
    }
    program
}

fn histories_are_linearizable(seed: u64, rounds: usize) {
    let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
    let ours = Running::serving(store, ServerOptions::default(), CLIENTS);
    let clock = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let barrier = Barrier::new(CLIENTS);
    let mut calls: Vec<Vec<Vec<Call>>> = Vec::new();
    std::thread::scope(|scope| {
        // Another section holds keys for a moment, so that commands park.
        scope.spawn(|| {
            let mut random = Random(seed + 99);
            while !over.load(Ordering::SeqCst) {
                let mode = if random.below(2) == 0 { Mode::Shared } else { Mode::Exclusive };
                let held = [0, 1].map(|_| NAMES[random.below(NAMES.len())]);
                let keys = held.iter().map(|key| (0, key.as_bytes(), mode));
                let section = block_on(ours.store().section(keys)).expect("room");
                (0..random.below(40)).for_each(|_| std::thread::yield_now());
                drop(section);
                (0..random.below(40)).for_each(|_| std::thread::yield_now());
            }
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (clock, barrier, address) = (&clock, &barrier, ours.address());
                scope.spawn(move || {
                    let mut client = Client::connect(&address);
                    // All threads draw the same numbers, and each takes its own program.
                    let mut random = Random(seed);
                    (0..rounds)
                        .map(|_| {
                            let mut value = 0;
                            let from = random.below(NAMES.len() - 2);
                            let keys: Vec<Key> = (from..from + 2 + random.below(2)).collect();
                            let programs: Vec<Vec<Op>> =
                                (0..CLIENTS).map(|_| program(&mut random, &keys, &mut value)).collect();
                            barrier.wait();
                            if number == 0 {
                                client.ask(&["FLUSHALL"]);
                            }
                            client.ask(&["UNWATCH"]);
                            barrier.wait();
                            let carry_out = |op: Op| {
                                let from = clock.fetch_add(1, Ordering::SeqCst);
                                let reply = op.ask(&mut client);
                                Call { client: number, op, reply, from, to: clock.fetch_add(1, Ordering::SeqCst) }
                            };
                            programs.into_iter().nth(number).expect("a program").into_iter().map(carry_out).collect()
                        })
                        .collect::<Vec<Vec<Call>>>()
                })
            })
            .collect();
        calls = clients.into_iter().map(|client| client.join().expect("it ended")).collect();
        over.store(true, Ordering::SeqCst);
    });
    let mut overlapping = 0;
    for _ in 0..rounds {
        let history: Vec<Call> = calls.iter_mut().flat_map(|client| client.remove(0)).collect();
        overlapping += history
            .iter()
            .filter(|call| {
                history.iter().any(|other| other.client != call.client && other.from < call.to && call.from < other.to)
            })
            .count();
        assert!(is_linearizable(&history), "no order explains {history:#?}");
    }
    assert!(overlapping > rounds, "the histories have nothing to check: {overlapping} commands overlap");
    assert_eq!(ours.store().stats().tickets, 0);
}

#[test]
fn histories_of_few_keys_are_linearizable() {
    histories_are_linearizable(1, 250);
}

#[test]
fn other_histories_of_few_keys_are_linearizable() {
    histories_are_linearizable(2, 250);
}

/// The checker rejects impossible histories.
#[test]
fn impossible_histories_are_found() {
    let call = |client, op, reply: &str, from, to| Call { client, op, reply: reply.into(), from, to };
    // Two transactions that watch the same keys and write one each cannot both succeed.
    let skew = |second: &str| {
        vec![
            call(0, Op::Watch(0, 1), "+OK\r\n", 0, 1),
            call(1, Op::Watch(0, 1), "+OK\r\n", 2, 3),
            call(0, Op::Exec(vec![Op::Set(0, 1)], 0), "*1\r\n+OK\r\n", 4, 6),
            call(1, Op::Exec(vec![Op::Set(1, 2)], 0), second, 5, 7),
        ]
    };
    assert!(!is_linearizable(&skew("*1\r\n+OK\r\n")));
    assert!(is_linearizable(&skew("*-1\r\n")));
    // A read after a write does not see the previous value.
    let stale = |to| vec![call(0, Op::Set(0, 1), "+OK\r\n", 0, 2), call(1, Op::Get(0), NULL, 1.max(to), 9)];
    assert!(is_linearizable(&stale(1)));
    assert!(!is_linearizable(&stale(3)));
    // Half of a write of two keys.
    let torn = vec![
        call(0, Op::Mset(0, 1, 5), "+OK\r\n", 0, 5),
        call(1, Op::Mget(0, 1), &format!("*2\r\n{}{NULL}", bulk(5)), 1, 4),
    ];
    assert!(!is_linearizable(&torn));
}
