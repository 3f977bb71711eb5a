//! The scripts of `examples/scripts`: their results and effects, compared with redis-server where Redis can run them.

use std::path::Path;

use super::both::Both;
use crate::support::Running;

fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/scripts");
    std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The commands that create the keys before the scripts run.
const BEGIN: &[&str] = &[
    "RPUSH feed:2 old older oldest",
    "ZADD room:1 50 ann 40 bob 30 eve",
    "ZADD room:2 7 bob 9 ann 1 joe 3 a 3 b 3 c 3 d 3 e 3 f 3 g 3 h 3 i",
    "ZADD room:3 1 ann 2 joe",
    "ZADD room:4 5 zoe",
    "SADD suspicious before",
    "HSET user:1 score 10 name ann",
    "HSET user:2 score 15.5",
    "HSET user:3 name bob",
    "HSET other score 1000",
    "SADD online:eu a b c",
    "SADD online:us d",
];

/// A script, its keys and arguments, its result, and a command whose reply shows its effect.
type Example =
    (&'static str, &'static [&'static str], &'static [&'static str], &'static str, (&'static str, &'static str));

/// The examples that Redis can run.
const EXAMPLES: &[Example] = &[
    (
        "bulk_push.lua",
        &["numbers"],
        &["1000"],
        ":1000\r\n",
        ("LRANGE numbers 0 1", "*2\r\n$4\r\n1000\r\n$3\r\n999\r\n"),
    ),
    (
        "json_to_lists.lua",
        &["feed:1", "feed:2"],
        &["[\"hello\",\"world\"]", "3"],
        ":4\r\n",
        ("LRANGE feed:2 0 -1", "*3\r\n$5\r\nworld\r\n$5\r\nhello\r\n$3\r\nold\r\n"),
    ),
    (
        "suspicious_players.lua",
        &["suspicious", "room:1", "room:2", "room:3", "room:4"],
        &[],
        ":2\r\n",
        ("SORT suspicious ALPHA", "*2\r\n$3\r\nann\r\n$3\r\nbob\r\n"),
    ),
    ("average_score.lua", &[], &["user:*"], "*2\r\n:2\r\n$5\r\n12.75\r\n", ("HGET user:1 score", "$2\r\n10\r\n")),
    ("average_score.lua", &[], &["nobody:*"], "*2\r\n:0\r\n$1\r\n0\r\n", ("EXISTS user:1", ":1\r\n")),
];

fn request(script: &str, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
    let (body, count) = (example(script), keys.len().to_string());
    sluicegate_testkit::encode(&[&["EVAL", body.as_str(), count.as_str()], keys, arguments].concat())
}

#[test]
fn examples_do_what_they_say_and_what_redis_does() {
    let mut both = Both::start();
    both.begin(2);
    let begin: Vec<Vec<u8>> = BEGIN.iter().map(|line| format!("{line}\r\n").into_bytes()).collect();
    both.send(&begin);
    for (script, keys, arguments, returned, (look, left)) in EXAMPLES {
        let said = both.send(&[request(script, keys, arguments), format!("{look}\r\n").into_bytes()]);
        for (said, expected) in said.iter().zip([returned, left]) {
            assert_eq!(said.0.each_ref().map(|bytes| String::from_utf8_lossy(bytes)), [*expected; 2], "{script}");
        }
    }
    let [theirs, ours] = both.keyspace();
    assert_eq!(ours, theirs);
}

#[test]
fn a_metric_that_sticks_stays_when_memory_is_full() {
    let ours = Running::start();
    let mut client = ours.connect();
    for line in BEGIN {
        client.send(format!("{line}\r\n"));
        client.read_reply();
    }
    client.send(request("sticky_metric.lua", &["last-metric", "online:eu", "online:us"], &[]));
    assert_eq!(client.read_reply(), b":4\r\n");
    // The key sticks already.
    assert_eq!(client.ask(&["STICK", "last-metric"]), ":0\r\n");
    assert_eq!(client.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]), "+OK\r\n");
    assert_eq!(client.ask(&["CONFIG", "SET", "maxmemory", "1"]), "+OK\r\n");
    client.ask(&["SET", "more", "memory"]);
    assert_eq!(client.ask(&["CONFIG", "SET", "maxmemory", "0"]), "+OK\r\n");
    assert_eq!(client.ask(&["GET", "last-metric"]), "$1\r\n4\r\n");
    assert_eq!(client.ask(&["EXISTS", "user:1", "room:1", "feed:2"]), ":0\r\n", "all others are gone");
}

#[test]
fn every_example_is_in_the_readme() {
    let readme = example("README.md");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/scripts");
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        assert!(name == "README.md" || readme.contains(&format!("--eval {name}")), "{name} is not in the README");
        let is_run = EXAMPLES.iter().any(|example| example.0 == name) || name == "sticky_metric.lua";
        assert!(name == "README.md" || is_run, "no test runs {name}");
    }
}
