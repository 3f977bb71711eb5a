//! The examples of engines, as their first lines say to start them.

use std::process::Command;

use sluicegate_testkit::{Client, Program, RedisServer, free_port};

use crate::{BINARY, workspace};

#[test]
fn a_connection_for_each_command_is_measured() {
    let redis = RedisServer::start(&[]);
    let (host, port) = redis.address().split_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("a port");
    // Nobody asks the gate; it makes way for whoever else runs the example.
    let text = std::fs::read_to_string(workspace().join("examples/engines/reconnect.cfg")).expect("an example");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("reconnect.cfg");
    std::fs::write(&file, text.replace("10062", &free_port().to_string())).expect("writable");
    let mut command = Command::new(BINARY);
    command.arg("run").arg(&file).current_dir(workspace());
    command.envs([("REDIS_HOST", host), ("REDIS_PORT", port), ("COUNT", "200".to_owned())]);
    let mut program = Program::start(command, &[]);
    program.wait_for_output("new redis");
    program.wait_for_output(")\n");
    let mut client = Client::connect(&redis.address());
    assert_eq!(client.ask(&["DBSIZE"]), ":200\r\n");
    assert_eq!(client.ask(&["GET", "199"]), "$3\r\n204\r\n");
    // Both halves set each key; what the first needed connections for is one, and this test has its own.
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
