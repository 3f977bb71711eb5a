//! Random commands against a model: a map from key to value and expiry, with a clock that is moved by hand.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sluicegate_store::{Clock, ManualClock, Store, StoreOptions};

use crate::ask;

#[derive(Clone, Debug)]
enum Step {
    Set(u8, u16),
    SetFor(u8, u16, u16),
    Incr(u8),
    Append(u8, u8),
    Del(u8),
    Expire(u8, u16),
    Persist(u8),
    Rename(u8, u8),
    Advance(u16),
    Tick,
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0u8..40;
    prop_oneof![
        6 => (key.clone(), any::<u16>()).prop_map(|(key, value)| Step::Set(key, value)),
        4 => (key.clone(), any::<u16>(), 1u16..500).prop_map(|(key, value, ms)| Step::SetFor(key, value, ms)),
        4 => key.clone().prop_map(Step::Incr),
        4 => (key.clone(), any::<u8>()).prop_map(|(key, len)| Step::Append(key, len)),
        3 => key.clone().prop_map(Step::Del),
        4 => (key.clone(), 0u16..500).prop_map(|(key, ms)| Step::Expire(key, ms)),
        2 => key.clone().prop_map(Step::Persist),
        2 => (key.clone(), key).prop_map(|(from, to)| Step::Rename(from, to)),
        4 => (1u16..200).prop_map(Step::Advance),
        2 => Just(Step::Tick),
        1 => Just(Step::Flush),
    ]
}

#[derive(Default)]
struct Model {
    keys: BTreeMap<u8, (String, Option<i64>)>,
    now_ms: i64,
}

impl Model {
    fn expire(&mut self) {
        let now_ms = self.now_ms;
        self.keys.retain(|_, (_, at_ms)| at_ms.is_none_or(|at_ms| at_ms > now_ms));
    }

    /// Executes the step on the model and returns the expected reply.
    fn step(&mut self, step: &Step) -> String {
        self.expire();
        match *step {
            Step::Set(key, value) => {
                self.keys.insert(key, (value.to_string(), None));
                "+OK\r\n".into()
            }
            Step::SetFor(key, value, ms) => {
                self.keys.insert(key, (value.to_string(), Some(self.now_ms + i64::from(ms))));
                "+OK\r\n".into()
            }
            Step::Incr(key) => {
                let entry = self.keys.entry(key).or_insert(("0".into(), None));
                match entry.0.parse::<i64>() {
                    Ok(value) => {
                        entry.0 = (value + 1).to_string();
                        format!(":{}\r\n", value + 1)
                    }
                    Err(_) => "-ERR value is not an integer or out of range\r\n".into(),
                }
            }
            Step::Append(key, len) => {
                let entry = self.keys.entry(key).or_default();
                entry.0.push_str(&"x".repeat(usize::from(len) + 1));
                format!(":{}\r\n", entry.0.len())
            }
            Step::Del(key) => format!(":{}\r\n", i64::from(self.keys.remove(&key).is_some())),
            Step::Expire(key, ms) => {
                let found = self.keys.get_mut(&key).map(|entry| entry.1 = Some(self.now_ms + i64::from(ms)));
                self.expire();
                format!(":{}\r\n", i64::from(found.is_some()))
            }
            Step::Persist(key) => {
                let had = self.keys.get_mut(&key).and_then(|entry| entry.1.take()).is_some();
                format!(":{}\r\n", i64::from(had))
            }
            Step::Rename(from, to) => match self.keys.remove(&from) {
                Some(entry) => {
                    self.keys.insert(to, entry);
                    "+OK\r\n".into()
                }
                None => "-ERR no such key\r\n".into(),
            },
            Step::Advance(ms) => {
                self.now_ms += i64::from(ms);
                String::new()
            }
            Step::Tick => String::new(),
            Step::Flush => {
                self.keys.clear();
                "+OK\r\n".into()
            }
        }
    }
}

fn do_step(store: &Store, clock: &ManualClock, step: &Step) -> String {
    match *step {
        Step::Set(key, value) => ask(store, &format!("SET {key} {value}")),
        Step::SetFor(key, value, ms) => ask(store, &format!("SET {key} {value} PX {ms}")),
        Step::Incr(key) => ask(store, &format!("INCR {key}")),
        Step::Append(key, len) => ask(store, &format!("APPEND {key} {}", "x".repeat(usize::from(len) + 1))),
        Step::Del(key) => ask(store, &format!("DEL {key}")),
        Step::Expire(key, ms) => ask(store, &format!("PEXPIRE {key} {ms}")),
        Step::Persist(key) => ask(store, &format!("PERSIST {key}")),
        Step::Rename(from, to) => ask(store, &format!("RENAME {from} {to}")),
        Step::Advance(ms) => {
            clock.advance(i64::from(ms));
            String::new()
        }
        Step::Tick => {
            store.tick();
            String::new()
        }
        Step::Flush => ask(store, "FLUSHDB"),
    }
}

/// Few cases by default, because each has hundreds of steps.
fn few() -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let cases = std::env::var_os("PROPTEST_CASES").map_or(64, |_| config.cases);
    ProptestConfig { cases, ..config }
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn the_store_does_what_the_model_does(steps in proptest::collection::vec(step(), 1..300)) {
        let clock = ManualClock::new(1_000_000);
        // Few stripes, so that segments split and keys share them.
        let options = StoreOptions { stripes: 2, clock: Clock::Manual(clock.clone()), ..StoreOptions::default() };
        let store = Store::new(options);
        let mut model = Model { now_ms: 1_000_000, ..Model::default() };
        for step in &steps {
            prop_assert_eq!(do_step(&store, &clock, step), model.step(step), "{:?}", step);
        }
        model.expire();
        for key in 0..40u8 {
            let expected = match model.keys.get(&key) {
                Some((value, _)) => format!("${}\r\n{value}\r\n", value.len()),
                None => "$-1\r\n".into(),
            };
            prop_assert_eq!(ask(&store, &format!("GET {key}")), expected);
            let left = model.keys.get(&key).map_or(-2, |(_, at_ms)| at_ms.map_or(-1, |at_ms| at_ms - model.now_ms));
            prop_assert_eq!(ask(&store, &format!("PTTL {key}")), format!(":{left}\r\n"));
        }
        prop_assert_eq!(ask(&store, "DBSIZE"), format!(":{}\r\n", model.keys.len()));
        let expires = model.keys.values().filter(|(_, at_ms)| at_ms.is_some()).count() as u64;
        prop_assert_eq!(store.stats().databases.first().map_or(0, |db| db.expires), expires);
        ask(&store, "FLUSHALL");
        store.tick();
    }
}

#[test]
fn a_tick_removes_what_has_expired_and_nothing_else() {
    let clock = ManualClock::new(1_000);
    let store = Store::new(StoreOptions { clock: Clock::Manual(clock.clone()), ..StoreOptions::default() });
    for n in 0..20_000 {
        ask(&store, &format!("SET short:{n} v PX {}", 1 + n % 1000));
        ask(&store, &format!("SET long:{n} v PX 5000"));
        ask(&store, &format!("SET ever:{n} v"));
    }
    assert_eq!(ask(&store, "DBSIZE"), ":60000\r\n");
    clock.advance(1_000);
    // The sweep is bounded by time, so a slow machine may need several ticks; ten are Redis's second.
    let swept = (0..1_000).any(|_| {
        store.tick();
        ask(&store, "DBSIZE") == ":40000\r\n"
    });
    assert!(swept, "{}", ask(&store, "DBSIZE"));
    assert_eq!(store.stats().expired, 20_000);
    assert_eq!(ask(&store, "GET long:7"), "$1\r\nv\r\n");
}

#[test]
fn memory_returns_when_keys_go() {
    let store = Store::new(StoreOptions { stripes: 16, ..StoreOptions::default() });
    let empty = store.used_bytes();
    (0..50_000).for_each(|n| drop(ask(&store, &format!("SET key:{n:012} {}", "v".repeat(32)))));
    let full = store.used_bytes();
    let per_key = (full - empty) / 50_000;
    assert!((60..=85).contains(&per_key), "{per_key} bytes a key");
    (0..50_000).for_each(|n| drop(ask(&store, &format!("DEL key:{n:012}"))));
    let entries_gone = full - store.used_bytes();
    assert!(entries_gone >= 50_000 * 56, "{entries_gone} bytes came back");
    ask(&store, "FLUSHALL");
    while store.used_bytes() > empty {
        store.tick();
    }
}

#[test]
fn a_database_is_made_by_the_first_write_to_it() {
    let store = Store::new(StoreOptions::default());
    let empty = store.used_bytes();
    let mut caller = sluicegate_store::Caller { db: 7, ..Default::default() };
    for words in [&[&b"GET"[..], b"k"][..], &[b"EXISTS", b"a", b"b"], &[b"SCAN", b"0"], &[b"RANDOMKEY"]] {
        crate::run(&store, &mut caller, words);
    }
    assert_eq!(store.used_bytes(), empty, "who reads makes none");
    crate::run(&store, &mut caller, &[b"SET", b"k", b"v"]);
    assert!(store.used_bytes() >= 2 * empty, "it has as many stripes as the first");
}
