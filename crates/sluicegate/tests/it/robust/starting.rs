//! Errors that prevent the start: all are reported at once, with their positions, and the exit code is 1.

use std::process::Command;

use sluicegate_testkit::{Client, Listening, Program, wait_for};

use crate::BINARY;

use super::PATIENT;

/// Runs `sluicegate run` on this text in a directory with further files; returns its exit code and its output.
fn fails(text: &str, files: &[(&str, &str)]) -> (i32, String) {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, content) in files {
        std::fs::write(directory.path().join(name), content).expect("writable");
    }
    let file = directory.path().join("bad.cfg");
    std::fs::write(&file, text.replace("@DIR@", directory.path().to_str().expect("UTF-8"))).expect("writable");
    let mut command = Command::new(BINARY);
    command.arg("run").arg(&file);
    let mut program = Program::start(command, &[]);
    let code = program.wait();
    (code, program.output())
}

#[track_caller]
fn check(text: &str, files: &[(&str, &str)], expected: &[&str]) {
    let (code, output) = fails(text, files);
    assert_eq!(code, 1, "{output}");
    for expected in expected {
        assert!(output.contains(expected), "no {expected:?} in:\n{output}");
    }
}

#[test]
fn scripts_that_can_not_be_loaded_are_located() {
    for (script, expected) in [
        (None, vec!["bad.cfg:2", "cannot open", "gone.lua"]),
        (Some("x = = 1"), vec!["bad.cfg:2", "gone.lua:1: unexpected symbol near '='"]),
        (Some("local x\nerror('boom')"), vec!["bad.cfg:2", "gone.lua:2: boom"]),
    ] {
        for word in ["lua-load", "lua-load-per-thread"] {
            let text = format!("global\n    {word} @DIR@/gone.lua\n");
            let files: Vec<_> = script.map(|script| ("gone.lua", script)).into_iter().collect();
            check(&text, &files, &expected);
        }
    }
}

#[test]
fn sockets_that_can_not_be_bound_are_all_told() {
    let taken = Listening::new();
    let text = format!(
        "global\n    stats socket @DIR@/none/stats\n{PATIENT}store main\n    bind {taken}\norigin o\n    bind {taken}\n\
         frontend f\n    bind {taken}\n    http-request return status 200\nfrontend g\n    bind unix@@DIR@/file\n    \
         bind fd@987\n    http-request return status 200\n",
        taken = taken.address()
    );
    let in_use = format!("cannot bind {} (Address already in use)", taken.address());
    let lines = [2, 9, 11, 13, 16, 17].map(|line| format!("bad.cfg:{line}"));
    let mut expected: Vec<&str> = lines.iter().map(String::as_str).collect();
    expected.extend([in_use.as_str(), "/none/stats (No such file or directory)"]);
    check(&text, &[("file", "no socket")], &expected);
}

#[test]
fn what_is_not_supported_yet_is_said() {
    let later = "listen www\n    bind 127.0.0.1:443 quic-socket listener\n";
    check(later, &[], &["bad.cfg:2", "'quic-socket' of 'bind' is not supported yet"]);
}

/// A store on a public address without a password replies to other machines as Redis's protected mode does. The test
/// runs in a network namespace of its own, so that no other machine can reach the store.
#[test]
fn a_public_store_without_a_password_refuses_strangers() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("public.cfg");
    std::fs::write(&file, "store main\n    bind 0.0.0.0:7379\n").expect("writable");
    let script = format!(
        "set -e; exec 2>&1; ip link set lo up; ip addr add 10.9.9.9/32 dev lo; \
         {BINARY} run {file} & gate=$!; trap 'kill $gate' EXIT; \
         for i in $(seq 1000); do redis-cli -h 127.0.0.1 -p 7379 PING 2>/dev/null && break; sleep 0.05; done; \
         echo stranger; redis-cli -h 10.9.9.9 -p 7379 PING; \
         redis-cli -h 127.0.0.1 -p 7379 CONFIG SET requirepass secret; \
         redis-cli -h 10.9.9.9 -p 7379 PING; redis-cli -h 10.9.9.9 -p 7379 -a secret --no-auth-warning PING",
        file = file.display()
    );
    let mut command = Command::new("unshare");
    command.args(["-n", "bash", "-c", &script]);
    let mut program = Program::start(command, &[]);
    program.wait();
    let output = program.output();
    let replies: Vec<&str> = output.lines().filter(|line| !line.is_empty()).collect();
    let at = replies.iter().position(|line| *line == "stranger").unwrap_or_else(|| panic!("{output}"));
    let (before, after) = replies.split_at(at);
    assert!(before.contains(&"PONG"), "{output}");
    let denied = after.iter().any(|line| {
        line.contains("DENIED Redis is running in protected mode") || line.contains("reset") || line.contains("closed")
    });
    assert!(denied, "{output}");
    assert!(after.contains(&"OK"), "{output}");
    assert!(after.iter().any(|line| line.contains("NOAUTH")), "{output}");
    assert_eq!(after.last(), Some(&"PONG"), "{output}");
}

/// A second process on the same unix socket is refused while the first runs; the socket of a dead process is taken
/// over.
#[test]
fn a_stats_socket_of_a_living_process_is_spared() {
    let front = Listening::new();
    let text = format!("{PATIENT}frontend f\n    bind {}\n    http-request return status 200\n", front.word());
    let gate = super::Gate::start(1, "", &text, &[&front]);
    let second = format!("global\n    stats socket {}\norigin o\n    bind unix@@DIR@/o\n", gate.stats.display());
    check(&second, &[], &["bad.cfg:2", "Address already in use"]);
    assert!(gate.info("Pid") > 0, "the first still answers");
    let stats = gate.stats.clone();
    gate.server.program.signal(libc::SIGKILL);
    wait_for("its end", || std::os::unix::net::UnixStream::connect(&stats).err());
    let other = Listening::new();
    let text = format!(
        "global\n    stats socket {}\n{PATIENT}frontend f\n    bind {}\n    http-request return status 200\n",
        stats.display(),
        other.word()
    );
    let server = crate::start(&text, &[&other]);
    assert_eq!(Client::connect(&other.address()).get("/").status, 200);
    assert_eq!(super::info(&stats, "Pid"), u64::from(server.program.pid()));
}
