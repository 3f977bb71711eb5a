//! Tests with real clients in several languages: redis-py, ioredis, go-redis, jedis, redis-cli and redis-benchmark, and
//! with libraries that are built on scripts: Bull, BullMQ, Celery, asynq.
//!
//! The programs beside this file contain the assertions; each reports how many operations it checked.
//!
//! The libraries are in `target/clients`, where `cargo xtask test --install` puts the versions that this folder pins.

#[path = "../it/support.rs"]
#[allow(dead_code, reason = "shared with the other tests, which use more of it")]
mod support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use sluicegate_testkit::{RedisServer, wait_for};
use support::Running;

/// Runs a program, which must succeed, and returns its output.
#[track_caller]
fn run(command: &mut Command) -> String {
    finished(command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}")), command)
}

#[track_caller]
fn finished(output: Output, command: &Command) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?} ended with {}:\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

/// Returns the path of an installed library.
#[track_caller]
fn installed(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients").join(name);
    assert!(path.exists(), "{} is missing: `cargo xtask test --install` brings it", path.display());
    path
}

/// Runs a client's program, which reports how many operations it checked.
#[track_caller]
fn check(command: &mut Command) {
    let text = run(command);
    let count = text.trim().strip_prefix("operations: ").and_then(|count| count.parse::<u32>().ok());
    assert!(count.is_some_and(|count| count >= 20), "{text}");
}

fn redis_py(part: &str) {
    let ours = Running::start();
    check(
        Command::new(installed("python/bin/python"))
            .arg(here().join("redis_py.py"))
            .args([&ours.port.to_string(), part]),
    );
}

#[test]
fn redis_py_in_resp2() {
    redis_py("2");
}

#[test]
fn redis_py_in_resp3() {
    redis_py("3");
}

#[test]
fn redis_py_asyncio() {
    redis_py("asyncio");
}

#[test]
fn redis_py_cluster() {
    redis_py("cluster");
}

#[test]
fn ioredis() {
    let ours = Running::start();
    check(Command::new("node").arg(here().join("ioredis.js")).arg(ours.port.to_string()).arg(installed("npm")));
}

#[test]
fn go_redis() {
    let ours = Running::start();
    check(Command::new(installed("go/goredis")).arg(ours.port.to_string()));
}

#[test]
fn jedis() {
    let ours = Running::start();
    let path = installed("jedis");
    let path = format!("{0}:{0}/*", path.display());
    check(Command::new("java").args(["-cp", &path, "JedisClient", &ours.port.to_string()]));
}

/// Runs a library that is built on scripts against redis-server and against the store, which must not refuse any atomic
/// section.
#[track_caller]
fn check_scripts(command: impl Fn(&str) -> Command) {
    let redis = RedisServer::start(&[]);
    let address = redis.address();
    let port = address.rsplit(':').next().expect("an address has a port");
    check(&mut command(port));
    let ours = Running::start();
    check(&mut command(&ours.port.to_string()));
    let info = ours.connect().ask(&["INFO"]);
    assert!(info.contains("sections_refused:0\r\n"), "{info}");
}

#[test]
fn bull_and_defined_commands() {
    check_scripts(|port| {
        let mut command = Command::new("node");
        command.arg(here().join("bull.js")).arg(port).arg(installed("npm"));
        command
    });
}

#[test]
fn bullmq() {
    check_scripts(|port| {
        let mut command = Command::new("node");
        command.arg(here().join("bullmq.js")).arg(port).arg(installed("npm"));
        command
    });
}

#[test]
fn celery_and_locks() {
    check_scripts(|port| {
        let mut command = Command::new(installed("python/bin/python"));
        command.arg(here().join("celery_tasks.py")).arg(port).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    });
}

#[test]
fn asynq_and_scripts() {
    check_scripts(|port| {
        let mut command = Command::new(installed("asynq/asynq"));
        command.arg(port);
        command
    });
}

fn redis_cli(ours: &Running) -> Command {
    let mut command = Command::new("redis-cli");
    command.args(["-p", &ours.port.to_string()]);
    command
}

#[test]
fn redis_cli_asks_and_surveys() {
    let ours = Running::start();
    let ask = |words: &[&str]| run(redis_cli(&ours).args(words));
    for (words, reply) in [
        (&["PING"][..], "PONG\n"),
        (&["SET", "s", "value"], "OK\n"),
        (&["GET", "s"], "value\n"),
        (&["-3", "HSET", "h", "f", "v", "g", "w"], "2\n"),
        (&["-3", "HGET", "h", "g"], "w\n"),
        (&["MSET", "a", "1", "b", "2"], "OK\n"),
        (&["MGET", "a", "none", "b"], "1\n\n2\n"),
        (&["INCR", "s"], "ERR value is not an integer or out of range\n\n"),
        (&["-n", "1", "SET", "elsewhere", "x"], "OK\n"),
        (&["-n", "1", "DBSIZE"], "1\n"),
        (&["-r", "3", "INCR", "n"], "1\n2\n3\n"),
        (&["SADD", "set", "x", "y", "z"], "3\n"),
        (&["ZADD", "z", "1", "one"], "1\n"),
        (&["SETBIT", "bits", "100000", "1"], "0\n"),
        (&["--csv", "MGET", "a", "b"], "\"1\",\"2\"\n"),
        (&["OBJECT", "ENCODING", "n"], "int\n"),
    ] {
        assert_eq!(ask(words), reply, "{words:?}");
    }
    let mut keys: Vec<String> = ask(&["--scan"]).lines().map(str::to_owned).collect();
    keys.sort();
    assert_eq!(keys, ["a", "b", "bits", "h", "n", "s", "set", "z"]);
    assert_eq!(ask(&["--scan", "--pattern", "[ab]"]).lines().count(), 2);
    let big = ask(&["--bigkeys"]);
    assert!(big.contains("Sampled 8 keys in the keyspace!"), "{big}");
    assert!(big.contains("Biggest string found '\"bits\"' has 12501 bytes"), "{big}");
    assert!(big.contains("1 sets with 3 members"), "{big}");
    let memory = ask(&["--memkeys"]);
    assert!(
        memory.contains("Sampled 8 keys in the keyspace!") && memory.contains("Biggest string found '\"bits\"' has"),
        "{memory}"
    );
}

#[test]
fn redis_cli_pipes() {
    let ours = Running::start();
    let mut command = redis_cli(&ours);
    let mut child = command
        .arg("--pipe")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("redis-cli is there");
    let mut input = child.stdin.take().expect("piped");
    let commands: String = (0..10_000).map(|n| format!("SET key:{n} value:{n}\r\n")).collect();
    input.write_all(commands.as_bytes()).expect("taken");
    input.write_all(b"INCR key:1\r\n").expect("taken");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("errors: 1, replies: 10001"), "{text}");
    assert_eq!(run(redis_cli(&ours).arg("DBSIZE")), "10000\n");
}

#[test]
fn redis_cli_shows_statistics() {
    use std::io::{BufRead, BufReader};

    let ours = Running::start();
    run(redis_cli(&ours).args(["SET", "k", "v"]));
    wait_for("its connection to end", || (ours.server.client_count() == 0).then_some(()));
    let mut child =
        redis_cli(&ours).args(["--stat", "-i", "0.05"]).stdout(Stdio::piped()).spawn().expect("redis-cli is there");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let lines: Vec<String> = lines.take(6).map(|line| line.expect("text")).collect();
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert!(lines[1].contains("keys") && lines[1].contains("clients"), "{lines:?}");
    for line in &lines[2..] {
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((cells[0], cells[2]), ("1", "1"), "keys and clients in {line}");
    }
}

#[test]
fn redis_benchmark_runs_its_tests() {
    let ours = Running::start();
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &ours.port.to_string(), "-n", "2000", "-c", "10", "-P", "4", "-q"]);
    let text = run(command.args(["-t", "ping,set,get,incr,sadd,hset,zadd,mset"]));
    assert!(!text.to_lowercase().contains("error"), "{text}");
    for test in ["PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "SADD", "HSET", "ZADD", "MSET (10 keys)"] {
        let done = text
            .split(['\r', '\n'])
            .any(|line| line.starts_with(&format!("{test}:")) && line.contains("requests per second"));
        assert!(done, "{test} in {text}");
    }
}
