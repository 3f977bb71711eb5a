//! `maxmemory`: which keys are evicted, which never are, and which commands are refused.

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Caller, Clock, ManualClock, Mode, Policy, Store, StoreOptions};
use sluicegate_testkit::wait_for;

use crate::support::Running;
use crate::{ask, block_on, run};

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";

/// Small enough to be filled quickly, but with enough keys to choose from.
const LIMIT: u64 = 4 << 20;

fn limited(policy: Policy) -> (Store, ManualClock) {
    let hand = ManualClock::new(1_000_000);
    let options = StoreOptions { stripes: 64, clock: Clock::Manual(hand.clone()), ..StoreOptions::default() };
    let store = Store::new(options);
    store.limit_memory(LIMIT, policy);
    (store, hand)
}

fn value() -> Vec<u8> {
    vec![b'v'; 1024]
}

/// Sets a key to a KiB; with a time to live if it is given.
#[track_caller]
fn set(store: &Store, key: &str, ttl_s: Option<u64>) -> String {
    let (value, ttl) = (value(), ttl_s.unwrap_or(0).to_string());
    let mut words = vec![&b"SET"[..], key.as_bytes(), &value];
    if ttl_s.is_some() {
        words.extend([&b"EX"[..], ttl.as_bytes()]);
    }
    String::from_utf8(run(store, &mut Caller::default(), &words)).expect("text")
}

fn is_there(store: &Store, key: &str) -> bool {
    ask(store, &format!("EXISTS {key}")) == ":1\r\n"
}

/// Returns how many of these keys are left.
fn left(store: &Store, prefix: &str, count: usize) -> usize {
    (0..count).filter(|n| is_there(store, &format!("{prefix}:{n}"))).count()
}

#[test]
fn nothing_is_refused_while_a_key_may_go() {
    for policy in Policy::ALL {
        if policy == Policy::NoEviction {
            continue;
        }
        let (store, _) = limited(policy);
        let volatile = policy.name().starts_with("volatile");
        for n in 0..500 {
            assert_eq!(set(&store, &format!("keep:{n}"), None), "+OK\r\n");
        }
        for n in 0..20_000 {
            let reply = set(&store, &format!("k:{n}"), volatile.then_some(1000 + n % 7));
            assert_eq!(reply, "+OK\r\n", "{policy:?} {n}");
            assert!(store.used_bytes() < LIMIT / 50 * 51, "{policy:?}: {} bytes", store.used_bytes());
        }
        assert!(store.used_bytes() > LIMIT / 50 * 49, "{policy:?}: only {} bytes", store.used_bytes());
        let keys = store.stats().databases[0].keys;
        assert_eq!(store.stats().evicted, 20_500 - keys);
        if volatile {
            assert_eq!(left(&store, "keep", 500), 500, "{policy:?}");
        }
    }
}

#[test]
fn without_eviction_what_needs_memory_is_refused_until_some_is_free() {
    let (store, _) = limited(Policy::NoEviction);
    let refused = (0..).find(|n| set(&store, &format!("k:{n}"), Some(100)) == OOM).expect("it is full some time");
    assert!((2_000..4_096).contains(&refused), "{refused}");
    assert_eq!(store.stats().evicted, 0);
    for command in ["APPEND k:1 x", "MSET a 1 b 2", "HSET h f v", "INCR n", "SETRANGE k:1 0 x"] {
        assert_eq!(ask(&store, command), OOM, "{command}");
    }
    // More keys than a command locks at once.
    let many = (0..300).fold("MSET".to_owned(), |text, n| format!("{text} m{n} 1"));
    assert_eq!(ask(&store, &many), OOM);
    assert_eq!(ask(&store, "EXISTS m1"), ":0\r\n");
    assert_eq!(ask(&store, "STRLEN k:1"), ":1024\r\n");
    assert_eq!(ask(&store, "EXPIRE k:1 50"), ":1\r\n");
    assert_eq!(ask(&store, "DEL k:1 k:2 k:3 k:4 k:5 k:6 k:7 k:8"), ":8\r\n");
    assert_eq!(ask(&store, "APPEND k:9 x"), ":1025\r\n");
    while set(&store, "k:1", None) != OOM {
        let _ = set(&store, &format!("more:{}", store.used_bytes()), None);
    }
    // Flushed data is freed before a command is refused.
    assert_eq!(ask(&store, "FLUSHALL"), "+OK\r\n");
    assert_eq!(set(&store, "k:1", None), "+OK\r\n");
}

#[test]
fn keys_without_an_expiry_are_no_victims_of_a_volatile_policy() {
    for policy in [Policy::VolatileLru, Policy::VolatileLfu, Policy::VolatileRandom, Policy::VolatileTtl] {
        let (store, _) = limited(policy);
        let full = (0..).find(|n| set(&store, &format!("k:{n}"), None) == OOM).expect("full");
        assert_eq!(left(&store, "k", full), full);
        // Three evictable keys are found among thousands. One might not suffice: if the last key that was stored made a
        // table grow, more memory has to be freed than one key takes.
        for key in ["k:77", "k:177", "k:1077"] {
            assert_eq!(ask(&store, &format!("EXPIRE {key} 1000")), ":1\r\n");
        }
        assert_eq!(set(&store, "last", None), "+OK\r\n", "{policy:?}");
        let gone = full - left(&store, "k", full);
        let may_go_left = ["k:77", "k:177", "k:1077"].iter().filter(|key| is_there(&store, key)).count();
        assert_eq!(gone + may_go_left, 3, "{policy:?}");
        assert!(gone > 0, "{policy:?}");
    }
}

#[test]
fn keys_in_use_stay_under_lru() {
    let (store, hand) = limited(Policy::AllkeysLru);
    (0..3_000).for_each(|n| assert_eq!(set(&store, &format!("old:{n}"), None), "+OK\r\n"));
    hand.advance(1_000);
    (0..500).for_each(|n| assert!(ask(&store, &format!("GET old:{n}")).starts_with('$')));
    // Twice as many new keys as fit beside the old ones in use. New keys are written both after and before these are
    // read.
    for n in 0..5_000 {
        hand.advance(1);
        assert_eq!(set(&store, &format!("new:{n}"), None), "+OK\r\n");
        if n % 1_000 == 0 {
            (0..500).for_each(|n| drop(ask(&store, &format!("GET old:{n}"))));
        }
    }
    let stay = left(&store, "old", 500);
    assert!(stay >= 490, "{stay} of 500 keys in use");
    assert_eq!(left(&store, "old", 3_000), stay, "none of those out of use");
}

#[test]
fn keys_used_often_stay_under_lfu_though_they_rest() {
    let (store, hand) = limited(Policy::AllkeysLfu);
    (0..3_000).for_each(|n| assert_eq!(set(&store, &format!("old:{n}"), None), "+OK\r\n"));
    for _ in 0..10 {
        (0..500).for_each(|n| assert!(ask(&store, &format!("GET old:{n}")).starts_with('$')));
    }
    assert_eq!(ask(&store, "OBJECT FREQ old:7"), ":15\r\n");
    hand.advance(3_000);
    (0..10_000).for_each(|n| assert_eq!(set(&store, &format!("new:{n}"), None), "+OK\r\n"));
    let stay = left(&store, "old", 500);
    assert!(stay >= 495, "{stay} of 500 keys used often");
    // The frequency decreases by one per minute.
    hand.advance(120_000);
    assert_eq!(ask(&store, "OBJECT FREQ old:7"), ":13\r\n");
}

#[test]
fn the_next_to_expire_goes_first_under_ttl() {
    let (store, _) = limited(Policy::VolatileTtl);
    (0..1_000).for_each(|n| assert_eq!(set(&store, &format!("late:{n}"), Some(100_000)), "+OK\r\n"));
    (0..10_000).for_each(|n| assert_eq!(set(&store, &format!("soon:{n}"), Some(100)), "+OK\r\n"));
    let stay = left(&store, "late", 1_000);
    assert!(stay >= 990, "{stay} of 1,000 keys that expire late");
}

#[test]
fn held_keys_are_no_victims() {
    let (store, _) = limited(Policy::AllkeysRandom);
    (0..100).for_each(|n| assert_eq!(set(&store, &format!("held:{n}"), None), "+OK\r\n"));
    let keys: Vec<String> = (0..100).map(|n| format!("held:{n}")).collect();
    let section = store.section(keys.iter().map(|key| (0, key.as_bytes(), Mode::Shared)));
    let section = block_on(section).expect("the keys are free");
    (0..20_000).for_each(|n| assert_eq!(set(&store, &format!("k:{n}"), None), "+OK\r\n"));
    assert_eq!(left(&store, "held", 100), 100);
    drop(section);
    (0..20_000).for_each(|n| assert_eq!(set(&store, &format!("k:{n}"), None), "+OK\r\n"));
    // Random eviction spares a few keys.
    let stay = left(&store, "held", 100);
    assert!(stay <= 30, "{stay} of 100 keys that nobody holds any more");
}

#[test]
fn all_databases_give() {
    let (store, _) = limited(Policy::AllkeysLru);
    let value = value();
    for n in 0..12_000u32 {
        let mut caller = Caller { db: n % 3, ..Caller::default() };
        let key = format!("k:{n}").into_bytes();
        assert_eq!(run(&store, &mut caller, &[b"SET", &key, &value]), b"+OK\r\n");
    }
    let keys: Vec<u64> = store.stats().databases.iter().map(|db| db.keys).collect();
    assert!(keys.len() == 3 && keys.iter().all(|keys| (600..1_800).contains(keys)), "{keys:?}");
}

#[test]
fn several_threads_write_into_a_full_store() {
    let store = Store::new(StoreOptions::default());
    store.limit_memory(LIMIT, Policy::AllkeysLfu);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                (0..10_000).for_each(|n| assert_eq!(set(store, &format!("{thread}:{n}"), None), "+OK\r\n"));
            });
        }
    });
    assert!(store.used_bytes() < LIMIT / 50 * 51, "{} bytes", store.used_bytes());
}

#[test]
fn a_lower_limit_takes_hold_at_once_and_by_the_tick() {
    let (store, _) = limited(Policy::AllkeysLru);
    (0..4_000).for_each(|n| assert_eq!(set(&store, &format!("k:{n}"), None), "+OK\r\n"));
    store.limit_memory(LIMIT / 2, Policy::AllkeysLru);
    wait_for("memory to go down", || {
        store.tick();
        (store.used_bytes() < LIMIT / 2 / 50 * 51).then_some(())
    });
    store.limit_memory(0, Policy::AllkeysLru);
    let evicted = store.stats().evicted;
    (0..8_000).for_each(|n| assert_eq!(set(&store, &format!("k:{n}"), None), "+OK\r\n"));
    assert_eq!(store.stats().evicted, evicted, "there is no limit");
}

#[test]
fn parameters_act_over_resp_and_are_shown() {
    let options = ServerOptions { maxmemory: LIMIT, maxmemory_policy: Policy::AllkeysLru, ..ServerOptions::default() };
    let ours = Running::with(options, 1);
    let mut client = ours.connect();
    let value = "v".repeat(1024);
    for n in 0..5_000 {
        assert_eq!(client.ask(&["SET", &format!("k:{n}"), &value]), "+OK\r\n");
    }
    let info = client.ask(&["INFO"]);
    assert!(info.contains("maxmemory:4194304\r\nmaxmemory_human:4.00M\r\nmaxmemory_policy:allkeys-lru\r\n"), "{info}");
    let evicted = info.lines().find_map(|line| line.strip_prefix("evicted_keys:")).expect("a line");
    assert!((500..4_500).contains(&evicted.parse::<u64>().expect("a number")), "{evicted}");
    assert_eq!(client.ask(&["CONFIG", "RESETSTAT"]), "+OK\r\n");
    assert!(client.ask(&["INFO", "stats"]).contains("\r\nevicted_keys:0\r\n"));
    assert_eq!(client.ask(&["CONFIG", "SET", "maxmemory", "1mb", "maxmemory-policy", "noeviction"]), "+OK\r\n");
    assert_eq!(client.ask(&["SET", "k", &value]), OOM);
    assert_eq!(client.ask(&["CONFIG", "SET", "maxmemory", "0"]), "+OK\r\n");
    assert_eq!(client.ask(&["SET", "k", &value]), "+OK\r\n");
    assert_eq!(client.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lfu", "lfu-decay-time", "0"]), "+OK\r\n");
    assert_eq!(client.ask(&["OBJECT", "FREQ", "k"]), ":5\r\n");
}

#[test]
fn evicted_keys_are_told_by_name() {
    let options = ServerOptions { maxmemory: LIMIT, maxmemory_policy: Policy::AllkeysLru, ..ServerOptions::default() };
    let ours = Running::with(options, 1);
    let (mut client, mut listening) = (ours.connect(), ours.connect());
    assert_eq!(client.ask(&["CONFIG", "SET", "notify-keyspace-events", "Ee"]), "+OK\r\n");
    assert!(listening.ask(&["SUBSCRIBE", "__keyevent@0__:evicted"]).ends_with(":1\r\n"));
    let value = "v".repeat(1024);
    for n in 0..5_000 {
        assert_eq!(client.ask(&["SET", &format!("k:{n}"), &value]), "+OK\r\n");
    }
    let info = client.ask(&["INFO", "stats"]);
    let evicted: usize =
        info.lines().find_map(|line| line.strip_prefix("evicted_keys:")?.parse().ok()).expect("a line");
    assert!(evicted > 500, "{evicted}");
    for _ in 0..evicted {
        let told = String::from_utf8(listening.read_reply()).expect("text");
        let key = told.strip_prefix("*3\r\n$7\r\nmessage\r\n$22\r\n__keyevent@0__:evicted\r\n").expect("a message");
        let key = key.split("\r\n").nth(1).expect("a key");
        assert_eq!(client.ask(&["EXISTS", key]), ":0\r\n", "{key}");
    }
}

#[test]
fn clients_buffers_count() {
    let ours = Running::start();
    let mut watcher = ours.connect();
    let mut used = || -> u64 {
        let info = watcher.ask(&["INFO", "memory"]);
        info.lines().find_map(|line| line.strip_prefix("used_memory:")?.parse().ok()).expect("a line")
    };
    let before = used();
    let mut slow = ours.connect();
    slow.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$8000000\r\n");
    slow.send(vec![b'v'; 4_000_000]);
    wait_for("half a request to be counted", || (used() > before + 4_000_000).then_some(()));
    drop(slow);
    wait_for("it to be given back", || (used() < before + 1_000_000).then_some(()));
}
