//! Transactions concurrent with changes of whole databases, and in a full store: replies, and refused commands.

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, RedisServer};
use sluicegate_wire::reply::Reply;

use super::{clocks_apart, normalised, parse};
use crate::Random;
use crate::support::Running;

/// A client of redis-server and one of this store, whose replies must be the same.
struct Both([Client; 2]);

fn is_equal(words: &[&str], ours: Reply, theirs: Reply) -> Result<(), String> {
    let (ours, theirs) = (normalised(words, ours), normalised(words, theirs));
    match (&ours, &theirs) {
        (Reply::Integer(ours), Reply::Integer(theirs))
            if clocks_apart(words).is_some_and(|apart| *ours > 0 && (ours - theirs).abs() <= apart) =>
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

    /// Sends a command to both; returns this store's reply, then Redis's.
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

#[test]
fn databases_that_change_as_a_whole_touch_what_redis_touches() {
    let redis = RedisServer::start(&[]);
    let ours = Running::with(ServerOptions::default(), 2);
    let mut watcher = Both::new(&redis, &ours);
    let mut writer = Both::new(&redis, &ours);
    let mut random = Random(24);
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
    // Cases that random commands may have missed: each command touches an existing key.
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
        // Any command is refused when it is queued in a full store.
        client.check(&["SET", "a", "1"]);
        client.check(&["MULTI"]);
        limit(&mut admin, "1");
        client.check(queued);
        client.check(&["EXEC"]);
        limit(&mut admin, "0");
        // A command that was queued before is refused by EXEC if it needs memory.
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
