//! Linearizability: what clients see of a few keys could have come from one command after the other, each at some moment
//! between its request and its reply.
//!
//! A [`History`](explain) is checked as it happened (Wing and Gong's check, at each reply): what is known of the keys is
//! the set of states that explain all replies so far, together with the calls that have had their effect and not their
//! reply. A call whose client never got a reply, because the server was killed, may have had its effect or not.
//!
//! The model is this file's own: strings, lists and sets under five names, with the versions that WATCH asks for.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use crate::Client;

/// The maximum number of clients.
pub const CLIENTS_MAX: usize = 8;
/// The names of the keys.
pub const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
const NULL: &str = "$-1\r\n";

/// A key, by its place among the names.
pub type Key = usize;

/// The reply to an EXEC that is refused because a watched key was touched, and to a BLPOP whose time is over.
const REFUSED: &str = "*-1\r\n";

/// A command; the numbers are values.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of the commands")]
pub enum Op {
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
    /// A script that sets two keys, of which it has declared the first.
    Script(Key, Key, u32),
    /// A new connection, without what WATCH has told.
    Connect,
    /// All that a key has, in no form of the protocol.
    Read(Key),
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
            Op::Script(a, b, value) => {
                let code = "redis.call('set',KEYS[1],ARGV[2]);redis.call('set',ARGV[1],ARGV[2])";
                format!("EVAL {code} 1 {} {} {value}", name(a), name(b))
            }
            Op::Exec(..) => "EXEC".into(),
            Op::Connect | Op::Read(_) => panic!("no command"),
        })
    }

    /// Returns whether it has several commands, which take effect together at its end.
    fn is_section(&self) -> bool {
        matches!(self, Op::Exec(..) | Op::Script(..))
    }

    /// Executes the operation and returns the reply; [`None`] if the server is gone.
    pub fn ask(&self, client: &mut Client) -> Option<String> {
        let mut behind = 0;
        if let Op::Exec(ops, filling) = self {
            let mut requests = crate::encode(&["MULTI"]);
            ops.iter().for_each(|op| requests.extend(crate::encode(&op.words())));
            (0..*filling).for_each(|_| requests.extend(crate::encode(&["PING"])));
            if !client.try_send(&requests) {
                return None;
            }
            behind = 1 + ops.len() + filling;
        }
        if let Op::Read(key) = self {
            return Some(format!("{:?}", Value::read(client, NAMES[*key])));
        }
        if !client.try_send(&crate::encode(&self.words())) {
            return None;
        }
        for _ in 0..behind {
            assert_ne!(client.try_read_reply()?[0], b'-');
        }
        Some(String::from_utf8(client.try_read_reply()?).expect("text"))
    }
}

/// What a key has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Value {
    Text(u32),
    List(VecDeque<u32>),
    Set(BTreeSet<u32>),
}

impl Value {
    fn read(client: &mut Client, name: &str) -> Option<Value> {
        let mut ask = |words: &[&str]| -> Vec<u32> {
            let reply = client.ask(words);
            reply.lines().filter_map(|line| line.parse().ok()).collect()
        };
        // Only one of them has the right type.
        let (text, list, set) = (ask(&["GET", name]), ask(&["LRANGE", name, "0", "-1"]), ask(&["SMEMBERS", name]));
        match (text.first(), list.is_empty(), set.is_empty()) {
            (Some(text), ..) => Some(Value::Text(*text)),
            (None, false, _) => Some(Value::List(list.into())),
            (None, true, false) => Some(Value::Set(set.into_iter().collect())),
            (None, true, true) => None,
        }
    }
}

/// The values of the keys, and the state of WATCH.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    keys: BTreeMap<Key, Value>,
    versions: [u32; NAMES.len()],
    /// The versions that each client watches.
    watched: [Option<Vec<(Key, u32)>>; CLIENTS_MAX],
}

fn bulk(value: u32) -> String {
    let text = value.to_string();
    format!("${}\r\n{text}\r\n", text.len())
}

impl State {
    /// Returns what is there now; no command runs.
    pub fn read(client: &mut Client) -> State {
        let read = |(key, name): (Key, &&str)| Some((key, Value::read(client, name)?));
        State { keys: NAMES.iter().enumerate().filter_map(read).collect(), ..State::default() }
    }

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

    /// Returns the states after a call, with its replies.
    fn after(&self, call: &Call) -> Vec<(State, String)> {
        // A client that has waited is served by the key that got an element first, whatever the order in its command.
        let served_by = match call.op {
            Op::Blpop(a, b) => vec![None, Some(a), Some(b)],
            _ => vec![None],
        };
        let refused = refused_scripts(call);
        let after = |key| {
            let mut next = self.clone();
            let reply = match key {
                None => next.apply(call.client, &call.op, &refused),
                Some(key) => next.pop_for_waiting(key),
            };
            next.forget_versions();
            (next, reply)
        };
        served_by.into_iter().map(after).collect()
    }

    /// Returns the state after an EXEC that was refused because a watched key was touched, with its reply.
    fn refused(&self, client: usize) -> (State, String) {
        let mut next = self.clone();
        next.watched[client] = None;
        next.forget_versions();
        (next, REFUSED.into())
    }

    /// Forgets the versions if nobody compares them.
    fn forget_versions(&mut self) {
        if self.watched.iter().all(Option::is_none) {
            self.versions = Default::default();
        }
    }

    /// Executes a command and returns its reply. The scripts in the given places of a transaction, or a script alone, were
    /// refused their second key, with these texts: two that have written would have waited for each other.
    fn apply(&mut self, client: usize, op: &Op, refused: &[(usize, String)]) -> String {
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
            Op::Script(a, b, value) => {
                self.put(*a, Value::Text(*value));
                if let Some((_, text)) = refused.first() {
                    return text.clone();
                }
                self.put(*b, Value::Text(*value));
                NULL.into()
            }
            Op::Connect => {
                self.watched[client] = None;
                String::new()
            }
            Op::Read(key) => format!("{:?}", self.keys.get(key)),
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
                    return REFUSED.into();
                }
                let reply = |(at, op): (usize, &Op)| {
                    let place = refused.iter().position(|(place, _)| *place == at);
                    self.apply(client, op, place.map_or(&[], |place| &refused[place..=place]))
                };
                let replies: String = ops.iter().enumerate().map(reply).collect();
                format!("*{}\r\n{replies}{}", ops.len() + filling, "+PONG\r\n".repeat(*filling))
            }
        }
    }
}

/// One command of a history.
#[derive(Debug)]
pub struct Call {
    /// The number of the client. It has no other call meanwhile.
    pub client: usize,
    /// What it asked for.
    pub op: Op,
    /// The reply; [`None`] if the server was killed before it came.
    pub reply: Option<String>,
    /// When the request was sent, and when the reply came, or it was known that it will not. No two times are the same.
    pub from: u64,
    #[allow(missing_docs, reason = "above")]
    pub to: u64,
}

/// Returns the scripts of a call that were refused a key, by their places, with their replies.
fn refused_scripts(call: &Call) -> Vec<(usize, String)> {
    const START: &str = "-BUSY an undeclared key is held";
    let Some(reply) = call.reply.as_ref().filter(|reply| reply.contains(START)) else { return Vec::new() };
    let places: Vec<&str> = match &call.op {
        Op::Exec(ops, _) => {
            let Some((_, mut rest)) = reply.split_once("\r\n") else { return Vec::new() };
            (0..ops.len()).map_while(|_| first_reply(&mut rest)).collect()
        }
        _ => vec![reply],
    };
    let refused = places.into_iter().enumerate().filter(|(_, text)| text.starts_with(START));
    refused.map(|(at, text)| (at, text.to_owned())).collect()
}

/// Takes the first reply from several.
fn first_reply<'r>(replies: &mut &'r str) -> Option<&'r str> {
    let all = *replies;
    let (line, rest) = all.split_once("\r\n")?;
    *replies = rest;
    match (line.as_bytes().first()?, line[1..].parse::<usize>()) {
        (b'$', Ok(len)) => *replies = rest.get(len + 2..)?,
        (b'*', Ok(count)) => (0..count).try_for_each(|_| first_reply(replies).map(drop))?,
        _ => {}
    }
    Some(&all[..all.len() - replies.len()])
}

/// Checks that some order of the calls explains all replies. The error is the index of the first call, by the time of its
/// reply, whose reply no order explains.
pub fn explain(start: State, calls: &[Call]) -> Result<(), usize> {
    let moments = calls.iter().enumerate().flat_map(|(at, call)| [(call.from, at), (call.to, at)]);
    let mut moments: Vec<(u64, usize)> = moments.collect();
    moments.sort_unstable();
    let mut open: Vec<usize> = Vec::new();
    // With the clients whose open call has had its effect.
    let mut possible: HashSet<(State, u64)> = HashSet::from([(start, 0)]);
    for (_, at) in moments {
        if !open.contains(&at) {
            open.push(at);
            continue;
        }
        let (ended, has_reply) = (1 << calls[at].client, calls[at].reply.is_some());
        let mut left: Vec<(State, u64)> = possible.iter().cloned().collect();
        let (mut seen, mut after) = (possible, HashSet::new());
        while let Some((state, done)) = left.pop() {
            if done & ended != 0 || !has_reply {
                after.insert((state.clone(), done & !ended));
            }
            if done & ended != 0 {
                continue;
            }
            let is_lost = |open: &usize| calls[*open].reply.is_none() && calls[*open].op.is_section();
            let some_is_lost = open.iter().any(is_lost);
            for call in open.iter().map(|open| &calls[*open]).filter(|call| done & 1 << call.client == 0) {
                // A section that has touched a watched key and was killed before its end has refused the EXEC of another.
                let is_exec = matches!(call.op, Op::Exec(..));
                let is_refused = some_is_lost && is_exec && call.reply.as_deref() == Some(REFUSED);
                let refused = is_refused.then(|| state.refused(call.client));
                for (next, reply) in state.after(call).into_iter().chain(refused) {
                    let next = (next, done | 1 << call.client);
                    if call.reply.as_ref().is_none_or(|seen| *seen == reply) && seen.insert(next.clone()) {
                        left.push(next);
                    }
                }
            }
        }
        if after.is_empty() {
            return Err(at);
        }
        open.retain(|open| *open != at);
        possible = after;
    }
    Ok(())
}

/// Returns a command on the given keys.
pub fn command(below: &mut dyn FnMut(usize) -> usize, keys: &[Key], value: &mut u32) -> Op {
    *value += 1;
    let value = *value;
    let a = keys[below(keys.len())];
    let others: Vec<Key> = keys.iter().copied().filter(|key| *key != a).collect();
    let b = others[below(others.len())];
    match below(19) {
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
        17 => Op::Script(a, b, value),
        _ => Op::Smove(a, b, value % 2),
    }
}

/// Returns the commands of one client in a round.
pub fn program(below: &mut dyn FnMut(usize) -> usize, keys: &[Key], value: &mut u32) -> Vec<Op> {
    let mut program = Vec::new();
    while program.len() < 4 {
        let exec = |below: &mut dyn FnMut(usize) -> usize, value: &mut u32| {
            let ops = (0..1 + below(3)).map(|_| command(below, keys, value)).collect();
            Op::Exec(ops, if below(3) == 0 { 40 } else { 0 })
        };
        match below(6) {
            // Of two transactions each of which watches what the other writes, at most one succeeds.
            0 => {
                let at = below(keys.len() - 1);
                program.push(Op::Watch(keys[at], keys[at + 1]));
                program.push(Op::Mget(keys[at], keys[at + 1]));
                let key = keys[at + below(2)];
                *value += 1;
                program.push(Op::Exec(vec![Op::Set(key, *value)], if below(2) == 0 { 40 } else { 0 }));
            }
            1 => program.push(exec(below, value)),
            2 => {
                program.push(Op::Watch(keys[0], keys[1]));
                program.push(exec(below, value));
            }
            _ => program.push(command(below, keys, value)),
        }
    }
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(client: usize, op: Op, reply: &str, from: u64, to: u64) -> Call {
        Call { client, op, reply: Some(reply.into()), from, to }
    }

    fn is_linearizable(calls: &[Call]) -> bool {
        explain(State::default(), calls).is_ok()
    }

    #[test]
    fn impossible_histories_are_found() {
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
        let stale = |from| vec![call(0, Op::Set(0, 1), "+OK\r\n", 0, 2), call(1, Op::Get(0), NULL, from, 9)];
        assert!(is_linearizable(&stale(1)));
        assert!(!is_linearizable(&stale(3)));
        // Half of a write of two keys.
        let torn = vec![
            call(0, Op::Mset(0, 1, 5), "+OK\r\n", 0, 5),
            call(1, Op::Mget(0, 1), &format!("*2\r\n{}{NULL}", bulk(5)), 1, 4),
        ];
        assert!(!is_linearizable(&torn));
    }

    /// The EXEC of a client may be refused because of a transaction that is lost with a kill, and not without one.
    #[test]
    fn a_transaction_that_is_lost_may_have_refused_another() {
        let history = |lost: Option<Op>, read: &str| {
            let mut calls = vec![
                call(0, Op::Watch(0, 1), "+OK\r\n", 0, 1),
                call(0, Op::Exec(vec![Op::Get(0)], 0), "*-1\r\n", 3, 4),
                call(0, Op::Read(0), read, 6, 7),
            ];
            calls.extend(lost.map(|op| Call { client: 1, op, reply: None, from: 2, to: 5 }));
            calls
        };
        let set = || Op::Set(0, 1);
        assert!(is_linearizable(&history(Some(Op::Exec(vec![set()], 0)), "None")));
        assert!(is_linearizable(&history(Some(Op::Exec(vec![set()], 0)), "Some(Text(1))")));
        assert!(is_linearizable(&history(Some(set()), "Some(Text(1))")));
        assert!(!is_linearizable(&history(Some(set()), "None")));
        assert!(!is_linearizable(&history(None, "None")));
    }

    /// After a kill a call without a reply has had its effect or not, whole; one that was seen before has had it.
    #[test]
    fn a_call_without_a_reply_has_happened_or_not() {
        let killed = |op, seen: &str| {
            vec![
                Call { client: 0, op, reply: None, from: 0, to: 3 },
                call(1, Op::Mget(0, 1), &format!("*2\r\n{seen}"), 4, 5),
            ]
        };
        let both = [bulk(7), bulk(7)].concat();
        for (seen, is_possible) in [(&both, true), (&NULL.repeat(2), true), (&(bulk(7) + NULL), false)] {
            assert_eq!(is_linearizable(&killed(Op::Mset(0, 1, 7), seen)), is_possible, "{seen}");
            assert_eq!(is_linearizable(&killed(Op::Script(0, 1, 7), seen)), is_possible, "{seen}");
        }
        for (then, is_possible) in [(bulk(7), true), (NULL.into(), false)] {
            let seen = vec![
                Call { client: 0, op: Op::Set(0, 7), reply: None, from: 0, to: 4 },
                call(1, Op::Get(0), &bulk(7), 1, 2),
                call(1, Op::Get(0), &then, 5, 6),
            ];
            assert_eq!(is_linearizable(&seen), is_possible);
        }
        // A script that was refused its second key, in a transaction or alone, has written its first one.
        let busy = "-BUSY an undeclared key is held by another script or transaction\r\n";
        for (op, reply) in [
            (Op::Script(0, 1, 7), busy.to_owned()),
            (
                Op::Exec(vec![Op::Mget(1, 2), Op::Script(0, 1, 7)], 1),
                format!("*3\r\n*2\r\n{NULL}{NULL}{busy}+PONG\r\n"),
            ),
        ] {
            for (key, then, is_possible) in [(0, bulk(7), true), (0, NULL.into(), false), (1, NULL.into(), true)] {
                let seen = [call(0, op.clone(), &reply, 0, 1), call(0, Op::Get(key), &then, 2, 3)];
                assert_eq!(is_linearizable(&seen), is_possible, "{op:?} {key}");
            }
        }
        // An acknowledged one is not lost.
        let lost = [call(0, Op::Set(0, 1), "+OK\r\n", 0, 1), call(0, Op::Read(0), "None", 2, 3)];
        assert!(!is_linearizable(&lost));
    }
}
