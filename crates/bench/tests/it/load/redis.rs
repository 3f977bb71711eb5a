//! Load of RESP against a real redis-server, compared with the server's own counters.

use std::time::Duration;

use sluicegate_testkit::{Client, RedisServer, wait_for};

use super::{run, run_with};

/// Returns the number of calls of a command that the server has counted.
pub(super) fn calls(server: &RedisServer, command: &str) -> u64 {
    let text = Client::connect(&server.address()).ask(&["INFO", "commandstats"]);
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |rest| rest.split(',').next().unwrap_or_default().parse().expect("a number"))
}

#[test]
fn the_servers_count_is_the_clients() {
    for words in ["", "-t 2 -P 7", "-r 3000", "--resp3 --no-keep-alive"] {
        let server = RedisServer::start(&[]);
        let words = format!("redis -c 5 -n 1200 --ratio 1:3 --json {words} --server {}", server.address());
        let ran = run_with(&words, &["SET __key__ __data__", "GET __key__"]);
        let fields = ran.fields();
        fields.balance();
        assert_eq!((ran.code, fields.count("requests.answered")), (0, 1200), "{words}: {}", ran.err);
        assert_eq!((calls(&server, "set"), calls(&server, "get")), (300, 900), "{words}");
        assert_eq!((fields.count("commands.0.answered"), fields.count("commands.1.answered")), (300, 900));
        assert_eq!(fields.count("commands.1.nulls"), fields.count("replies.nulls"));
        if words.contains("resp3") {
            assert_eq!(calls(&server, "hello"), 1200);
        }
    }
}

#[test]
fn sequential_keys_are_all_written_with_their_data() {
    let server = RedisServer::start(&[]);
    let words = "redis -c 4 -t 2 -n 300 --key-min 1 --key-max 300 --key-prefix p: --key-pattern sequential --data-size 7 \
                 --db 3 --server";
    let ran = run_with(words, &[&server.address(), "SET __key__ __data__"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let mut client = Client::connect(&server.address());
    client.ask(&["SELECT", "3"]);
    assert_eq!(client.ask(&["DBSIZE"]), ":300\r\n");
    assert_eq!(client.ask(&["GET", "p:300"]), "$7\r\nxxxxxxx\r\n");
}

/// `GET` asks for the keys that `SET` has written, whatever the ratio and the numbers of connections and threads.
#[test]
fn each_command_walks_sequential_keys_by_itself() {
    for (words, ratio, gets) in [
        ("-c 1 -n 400", "1:1", 200),
        ("-c 1 -n 400", "3:1", 100),
        ("-c 1 -n 400", "1:3", 300),
        ("-c 4 -n 400", "1:1", 200),
        ("-c 4 -t 2 -n 400", "1:1", 200),
    ] {
        let server = RedisServer::start(&[]);
        // The keys exist already, because a GET may precede the SET of its key.
        let fill = "redis -n 100 -c 1 --key-min 0 --key-max 99 --key-pattern sequential --server";
        assert_eq!(run_with(fill, &[&server.address(), "SET __key__ old"]).code, 0);
        let words =
            format!("redis {words} --ratio {ratio} --json --key-min 0 --key-max 99 --key-pattern sequential --server");
        let fields = run_with(&words, &[&server.address(), "SET __key__ new", "GET __key__"]).fields();
        assert_eq!((fields.count("commands.1.answered"), fields.count("replies.nulls")), (gets, 0), "{words}");
        let mut client = Client::connect(&server.address());
        assert_eq!(client.ask(&["DBSIZE"]), ":100\r\n", "{words}");
        // Both walk the whole range.
        if ratio == "1:1" {
            let all: Vec<String> = (0..100).map(|number| format!("key:{number}")).collect();
            for key in &all {
                assert_eq!(client.ask(&["GET", key]), "$3\r\nnew\r\n", "{words} {key}");
            }
        }
    }
}

/// Commands of a batch are answered together, so the report contains no times of single commands.
#[test]
fn a_pipeline_has_no_latency_by_command() {
    let server = RedisServer::start(&[]);
    let words =
        |pipeline: &str| format!("redis -n 300 -c 1 {pipeline} --test set,get,incr --server {}", server.address());
    let ran = run(&words("--pipeline 16"));
    assert!(ran.out.contains("by command") && !ran.out.contains("  INCR "), "{}", ran.out);
    let ran = run(&words(""));
    assert!(!ran.out.contains("by command") && ran.out.contains("  INCR "), "{}", ran.out);
}

#[test]
fn every_preset_works() {
    let server = RedisServer::start(&[]);
    let tests = "ping,set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange,mset";
    let ran = run_with("redis -n 300 -c 3 --json --key-max 20 --test", &[tests, "--server", &server.address()]);
    let fields = ran.fields();
    fields.balance();
    assert_eq!((ran.code, fields.count("replies.errors")), (0, 0), "{}", ran.out);
    for number in 0..15 {
        assert_eq!(fields.count(&format!("commands.{number}.answered")), 20);
    }
}

#[test]
fn big_values_pass_through() {
    let server = RedisServer::start(&[]);
    let mut client = Client::connect(&server.address());
    client.ask(&["SET", "big", &"v".repeat(3_000_000)]);
    let ran = run_with("redis -n 10 -c 2 -P 2 --json --server", &[&server.address(), "GET big"]);
    let fields = ran.fields();
    assert_eq!((ran.code, fields.count("replies.values")), (0, 10), "{}", ran.err);
    assert!(fields.count("bytes.received") > 30_000_000);
}

#[test]
fn logins() {
    let server = RedisServer::start(&["--requirepass", "secret"]);
    let address = server.address();
    let ran = run(&format!("redis -n 10 -c 2 --server {address} --password secret --db 2 --json"));
    assert_eq!((ran.code, ran.fields().count("replies.values")), (0, 10), "{}", ran.err);
    let ran = run(&format!("redis -n 10 -c 2 --server redis://default:secret@{address}/1 --resp3"));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = run(&format!("redis -n 10 -c 2 --server {address} --password wrong"));
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("the server refuses the connection's login: WRONGPASS"), "{}", ran.err);
    // Without a login every command is refused, and the run is no success.
    let ran = run(&format!("redis -n 10 -c 2 --server {address} --json"));
    assert_eq!((ran.code, ran.fields().count("replies.codes.NOAUTH.count")), (1, 10));
}

#[test]
fn a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("redis.sock");
    let _server = RedisServer::start(&["--unixsocket", path.to_str().unwrap()]);
    let ran = run_with("redis -n 50 -c 3 --json --server", &[&format!("unix:{}", path.display())]);
    assert_eq!((ran.code, ran.fields().count("replies.values")), (0, 50), "{}", ran.err);
}

/// Runs `words` for eight seconds and stops the server for two of them; the replies arrive when it continues.
fn with_a_stop(words: &str) -> super::Fields {
    let server = RedisServer::start(&[]);
    let words = format!("redis -c 10 -d 8s --timeout 60s --json {words} --server {}", server.address());
    let load = std::thread::spawn(move || run_with(&words, &["INCR counter"]));
    let mut client = Client::connect(&server.address());
    wait_for("the load", || {
        let count = client.ask(&["GET", "counter"]);
        count.lines().nth(1).and_then(|count| count.parse::<u64>().ok()).filter(|count| *count > 100)
    });
    server.program.signal(19); // SIGSTOP
    std::thread::sleep(Duration::from_secs(2));
    server.program.signal(18); // SIGCONT
    let ran = load.join().expect("no panic");
    let fields = ran.fields();
    fields.balance();
    assert_eq!(fields.count("requests.failed"), 0, "{}", ran.out);
    fields
}

#[test]
fn a_server_that_stops_shows_in_an_open_loops_p99() {
    let fields = with_a_stop("-r 400");
    assert_eq!(fields.count("requests.intended"), 3200);
    // A quarter of all requests were due while the server was stopped, and waited for a second on average.
    assert!(fields.number("latency_us.p90") > 50_000.0);
    assert!(fields.number("latency_us.p99") > 800_000.0);
    // Without correction only the requests in flight, one per connection, show the stop.
    assert!(fields.number("service_us.p99") < fields.number("latency_us.p99"));
    assert!(fields.count("late_sends.by_connections") > 300);
}

#[test]
fn a_server_that_stops_shows_in_a_closed_loops_corrected_p99() {
    let fields = with_a_stop("--correct 500us");
    assert!(fields.number("latency_us.max") > 900_000.0);
    assert!(fields.number("latency_us.p99") < 500_000.0, "ten of many thousand requests don't reach the p99");
    assert!(fields.number("corrected_us.p99") > 500_000.0);
    assert!(fields.count("corrected_us.count") > fields.count("latency_us.count"));
}

/// Returns the number of connections that a server has accepted so far.
fn accepted(server: &RedisServer) -> u64 {
    let text = Client::connect(&server.address()).ask(&["INFO", "stats"]);
    let line = text.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.and_then(|count| count.trim().parse().ok()).expect("a number")
}

#[test]
fn a_connection_for_each_command_is_compared_with_one_for_all() {
    let server = RedisServer::start(&[]);
    let before = accepted(&server);
    let words = format!("redis --reconnect -n 300 --key-prefix p: --server {}", server.address());
    let ran = run(&words);
    assert_eq!(ran.code, 0, "{}", ran.err);
    // One connection that is kept, one for each command of the other run, and this test's own.
    assert_eq!(accepted(&server) - before, 1 + 300 + 1);
    assert_eq!(calls(&server, "set"), 600);
    let mut client = Client::connect(&server.address());
    assert_eq!(client.ask(&["DBSIZE"]), ":300\r\n");
    assert_eq!(client.ask(&["EXISTS", "p:0", "p:299"]), ":2\r\n");
    let lines: Vec<Vec<&str>> = ran.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(&lines[2], &["user", "system", "total", "real"], "{}", ran.out);
    for (line, name) in lines[3..5].iter().zip(["reuse", "new"]) {
        assert_eq!((&line[..2], line.len()), (&[name, "redis"][..], 7), "{}", ran.out);
        let seconds = |word: &str| word.trim_matches(['(', ')']).parse::<f64>().expect("seconds");
        assert!((seconds(line[2]) + seconds(line[3]) - seconds(line[4])).abs() < 0.001, "{}", ran.out);
        assert!(seconds(line[6]) > 0.0, "{}", ran.out);
    }
    let ran = run_with(&format!("{words} --json -c 2"), &["INCR n"]);
    let fields = ran.fields();
    assert_eq!((fields.count("reuse.requests.answered"), fields.count("new.requests.answered")), (300, 300));
    assert_eq!(fields.text("new.settings.keep_alive"), "false");
    assert_eq!(client.ask(&["GET", "n"]), "$3\r\n600\r\n");
}

#[test]
fn a_comparison_without_a_server_says_so() {
    let ran = run("redis --reconnect -n 3 --server 127.0.0.1:1");
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.err.contains("every request failed"), "{}", ran.err);
}
