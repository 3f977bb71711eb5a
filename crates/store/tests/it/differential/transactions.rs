//! Transactions of random commands, with a second client that writes between: replies, and who is refused.

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, RedisServer};
use sluicegate_wire::reply::Reply;

use super::{DISTINCT, KEYS, distinct_time, is_time, normalised, parse, seed, words};
use crate::Random;
use crate::support::Running;

/// A client of redis-server and one of ours, which say the same.
struct Both([Client; 2]);

/// Whether chance or the version of Redis decides the reply.
fn is_loose(words: &[&str]) -> bool {
    let name = words[0].to_ascii_lowercase();
    name.contains("rand") || name.contains("pop") || name == "object" || name == "scan"
}

fn is_equal(words: &[&str], ours: Reply, theirs: Reply) -> Result<(), String> {
    let (ours, theirs) = (normalised(words, ours), normalised(words, theirs));
    match (&ours, &theirs) {
        (Reply::Integer(ours), Reply::Integer(theirs))
            if is_time(words[0]) && *ours > 0 && (ours - theirs).abs() < 5_000 =>
        {
            Ok(())
        }
        _ if ours == theirs => Ok(()),
        _ => Err(format!("{words:?}: ours {ours:?}, Redis's {theirs:?}")),
    }
}

impl Both {
    fn new(redis: &RedisServer, ours: &Running) -> Both {
        Both([Client::connect(&redis.address()), ours.connect()])
    }

    /// Gives both a command; ours, then Redis's reply.
    fn ask(&mut self, words: &[&str]) -> [Reply; 2] {
        let [redis, ours] = &mut self.0;
        redis.command(words);
        ours.command(words);
        [parse(&ours.read_reply()), parse(&redis.read_reply())]
    }

    #[track_caller]
    fn check(&mut self, words: &[&str]) -> Reply {
        let [ours, theirs] = self.ask(words);
        if let Err(difference) = is_equal(words, ours.clone(), theirs) {
            panic!("{difference}");
        }
        ours
    }
}

fn next_words<'a>(random: &mut Random, distinct: &'a str) -> Vec<&'a str> {
    loop {
        let words: Vec<&'a str> =
            words(random).into_iter().map(|word| if word == DISTINCT { distinct } else { word }).collect();
        if !is_loose(&words) {
            return words;
        }
    }
}

fn random_transactions(protocol: &str, fixed_seed: u64) {
    let redis = RedisServer::start(&[]);
    let ours = Running::with(ServerOptions::default(), 2);
    let mut one = Both::new(&redis, &ours);
    let mut other = Both::new(&redis, &ours);
    for client in [&mut one, &mut other] {
        client.ask(&["HELLO", protocol]);
    }
    let mut random = Random(seed(fixed_seed));
    let (mut refused, mut aborted, mut done) = (0, 0, 0);
    for round in 0..500 {
        let db = random.below(2).to_string();
        one.check(&["SELECT", &db]);
        other.check(&["SELECT", &random.below(2).to_string()]);
        let distinct: Vec<String> = (0..20).map(|step| distinct_time(round * 20 + step)).collect();
        let mut step = 0;
        let mut next = |random: &mut Random| {
            step += 1;
            next_words(random, &distinct[step % 20])
        };
        for _ in 0..random.below(3) {
            one.check(&["WATCH", random.pick(&KEYS), random.pick(&KEYS)]);
        }
        if random.below(8) == 0 {
            one.check(&["UNWATCH"]);
        }
        if random.below(3) == 0 {
            other.check(&next(&mut random));
        }
        one.check(&["MULTI"]);
        let mut queued = Vec::new();
        for _ in 0..random.below(6) {
            let words = match random.below(12) {
                0 => vec!["SELECT", random.pick(&["0", "1", "99", "x"])],
                1 => vec![random.pick(&["PING", "UNWATCH", "DBSIZE", "ECHO"])],
                _ => next(&mut random),
            };
            if one.check(&words) == Reply::Simple("QUEUED".into()) {
                queued.push(words);
            }
        }
        if random.below(4) == 0 {
            other.check(&next(&mut random));
        }
        if random.below(5) == 0 {
            other.check(&["SET", random.pick(&KEYS), "other"]);
        }
        if random.below(10) == 0 {
            one.check(&["DISCARD"]);
            continue;
        }
        match one.ask(&["EXEC"]) {
            [Reply::Array(ours), Reply::Array(theirs)] => {
                assert_eq!(ours.len(), queued.len());
                for ((words, ours), theirs) in queued.iter().zip(ours).zip(theirs) {
                    if let Err(difference) = is_equal(words, ours, theirs) {
                        panic!("{difference}\nin {queued:?}");
                    }
                }
                done += 1;
            }
            [ours, theirs] => {
                assert_eq!(ours, theirs, "after {queued:?}");
                match ours {
                    Reply::Null => refused += 1,
                    _ => aborted += 1,
                }
            }
        }
    }
    assert!(refused > 3 && aborted > 5 && done > 100, "{refused} {aborted} {done}");
}

#[test]
fn random_transactions_are_answered_as_by_redis_in_resp2() {
    random_transactions("2", 21);
}

#[test]
fn random_transactions_are_answered_as_by_redis_in_resp3() {
    random_transactions("3", 22);
}

/// Whether a command touches a key is asked by a watch on every key.
#[test]
fn random_commands_touch_what_redis_touches() {
    let redis = RedisServer::start(&[]);
    let ours = Running::with(ServerOptions::default(), 2);
    let mut watcher = Both::new(&redis, &ours);
    let mut writer = Both::new(&redis, &ours);
    let mut random = Random(seed(23));
    let mut touched = 0;
    for round in 0..2_000 {
        let distinct = distinct_time(round);
        let words = next_words(&mut random, &distinct);
        let Some(key) = words.iter().skip(1).find(|word| !word.is_empty()) else { continue };
        let watched = if random.below(2) == 0 { key } else { random.pick(&KEYS) };
        watcher.check(&["WATCH", watched]);
        writer.check(&words);
        watcher.check(&["MULTI"]);
        let [ours, theirs] = watcher.ask(&["EXEC"]);
        assert_eq!(ours, theirs, "with a watch on {watched:?}, after {words:?}");
        touched += usize::from(ours == Reply::Null);
    }
    assert!(touched > 100, "{touched}");
}

#[test]
fn databases_that_change_as_a_whole_touch_what_redis_touches() {
    let redis = RedisServer::start(&[]);
    let ours = Running::with(ServerOptions::default(), 2);
    let mut watcher = Both::new(&redis, &ours);
    let mut writer = Both::new(&redis, &ours);
    let mut random = Random(seed(24));
    for _ in 0..300 {
        for client in [&mut watcher, &mut writer] {
            client.check(&["SELECT", &random.below(3).to_string()]);
        }
        for _ in 0..random.below(3) {
            let key = random.pick(&["a", "b", "c"]);
            match random.below(4) {
                0 => writer.check(&["SET", key, "v", "PXAT", "1"]),
                1 => writer.check(&["DEL", key]),
                _ => writer.check(&["SET", key, "v"]),
            };
        }
        watcher.check(&["WATCH", random.pick(&["a", "b", "c"])]);
        for _ in 0..random.below(3) {
            match random.below(4) {
                0 => writer.check(&["FLUSHDB"]),
                1 => writer.check(&["FLUSHALL"]),
                _ => writer.check(&["SWAPDB", random.pick(&["0", "1", "2"]), random.pick(&["0", "1", "2"])]),
            };
        }
        watcher.check(&["MULTI"]);
        watcher.check(&["GET", "a"]);
        watcher.check(&["EXEC"]);
    }
    // What chance may not have made: each command touches a key that is there.
    for change in [&["FLUSHDB"][..], &["FLUSHALL"], &["SWAPDB", "0", "1"]] {
        for client in [&mut watcher, &mut writer] {
            client.check(&["SELECT", "0"]);
        }
        writer.check(&["SET", "a", "v"]);
        watcher.check(&["WATCH", "a"]);
        writer.check(change);
        watcher.check(&["MULTI"]);
        assert_eq!(watcher.check(&["EXEC"]), Reply::Null, "{change:?}");
    }
}

#[test]
fn a_full_store_refuses_transactions_that_need_memory() {
    let redis = RedisServer::start(&[]);
    let ours = Running::with(ServerOptions::default(), 1);
    let mut client = Both::new(&redis, &ours);
    let mut admin = Both::new(&redis, &ours);
    let limit = |admin: &mut Both, bytes: &str| admin.check(&["CONFIG", "SET", "maxmemory", bytes]);
    for queued in [&["GET", "a"][..], &["SET", "a", "2"]] {
        // Refused when it is queued, whatever it is.
        client.check(&["SET", "a", "1"]);
        client.check(&["MULTI"]);
        limit(&mut admin, "1");
        client.check(queued);
        client.check(&["EXEC"]);
        limit(&mut admin, "0");
        // Queued in time, and refused at the end if it needs memory.
        client.check(&["MULTI"]);
        client.check(queued);
        limit(&mut admin, "1");
        client.check(&["EXEC"]);
        client.check(&["EXEC"]);
        client.check(&["MULTI"]);
        client.check(&["DISCARD"]);
        limit(&mut admin, "0");
        client.check(&["GET", "a"]);
    }
}
