//! The examples of engines, started as their first lines say.

use std::process::Command;

use sluicegate_testkit::{Client, Program, RedisServer, free_port};

use crate::{BINARY, workspace};

/// A copy of the example on another port.
fn copied() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["reconnect.cfg", "reconnect.lua"] {
        let text = std::fs::read_to_string(workspace().join("examples/engines").join(name)).expect("an example");
        std::fs::write(directory.path().join(name), text.replace("10062", &free_port().to_string())).expect("writable");
    }
    directory
}

/// The example, started in another directory than its own.
fn reconnect(directory: &tempfile::TempDir, variables: &[(&str, String)]) -> Program {
    let mut command = Command::new(BINARY);
    command.arg("run").arg(directory.path().join("reconnect.cfg")).current_dir("/");
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    Program::start(command, &[])
}

#[test]
fn without_a_redis_the_example_says_what_is_missing() {
    let (directory, port) = (copied(), free_port().to_string());
    let mut program = reconnect(&directory, &[("REDIS_PORT", port.clone())]);
    program.wait_for_output(&format!("No Redis at 127.0.0.1:{port} ("));
    program.wait_for_output("Start redis-server, or name another one with REDIS_HOST and REDIS_PORT. Ctrl-C ends");
    program.signal(libc::SIGINT);
    assert_eq!(program.wait(), -libc::SIGINT);
}

#[test]
fn a_connection_for_each_command_is_measured() {
    let redis = RedisServer::start(&[]);
    let (host, port) = redis.address().split_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("a port");
    // No request is sent to the listener; its port differs, so that the example itself can run at the same time.
    let directory = copied();
    let mut program = reconnect(&directory, &[("REDIS_HOST", host), ("REDIS_PORT", port), ("COUNT", "200".to_owned())]);
    program.wait_for_output("new redis");
    program.wait_for_output("Done. Ctrl-C ends this example.\n");
    let mut client = Client::connect(&redis.address());
    assert_eq!(client.ask(&["DBSIZE"]), ":200\r\n");
    assert_eq!(client.ask(&["GET", "199"]), "$3\r\n204\r\n");
    // Both halves set each key; the first half opens a connection for each command, the second one uses one, and this
    // test has its own.
    assert!(client.ask(&["INFO", "commandstats"]).contains("cmdstat_set:calls=400,"));
    let stats = client.ask(&["INFO", "stats"]);
    assert!(stats.contains("total_connections_received:202\r\n"), "{stats}");
    let output = program.output();
    let words: Vec<Vec<&str>> = output.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(words.contains(&vec!["user", "system", "total", "real"]), "{output}");
    for name in ["reuse", "new"] {
        assert!(words.iter().any(|words| words.len() == 7 && words[..2] == [name, "redis"]), "{output}");
    }
}
