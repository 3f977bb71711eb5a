//! `close-spread-time`: the moments at which clients' connections end when the process stops or reloads.

use sluicegate_testkit::Program;
use sluicegate_wire::http2::ErrorCode;

use super::*;

/// So long that no moment within it comes while a test runs.
const LONG: &str = "24d";

fn text(spread: &str, answer: &str, gates: [&Listening; 2]) -> String {
    let [plain, http2] = gates.map(Listening::word);
    format!(
        "{}frontend front\n bind {plain}\n bind {http2} proto h2\n http-request tarpit if {{ path /wait }}\n \
         timeout tarpit 600s\n http-request return status 200 hdr name {answer}\n",
        DEFAULTS.replacen("global\n", &format!("global\n {spread}\n"), 1)
    )
}

/// A process with this line of `global`, and idle connections of both protocols to it.
fn serving(spread: &str) -> (Sluicegate, Vec<Plain>, Vec<Client>) {
    let gates = [Listening::new(), Listening::new()];
    let server = start(&text(spread, "one", [&gates[0], &gates[1]]), &[&gates[0], &gates[1]]);
    let mut plain: Vec<_> = (0..5).map(|_| Plain::connect(&gates[0].address())).collect();
    plain.iter_mut().for_each(|client| assert!(client.get("/").head.starts_with("HTTP/1.1 200")));
    let mut http2: Vec<_> = (0..5).map(|_| Client::connect(&gates[1].address())).collect();
    http2.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 200));
    (server, plain, http2)
}

/// Stops the process softly; when this returns, it listens no more.
fn stop(server: &Sluicegate) {
    server.program.signal(libc::SIGUSR1);
    let path = server.directory().join("stats");
    sluicegate_testkit::wait_for("the stop", || {
        Sluicegate::stats(&path, "show info").contains("\nStopping: 1\n").then_some(())
    });
}

#[test]
fn connections_go_on_until_their_moment() {
    for spread in ["close-spread-time infinite", &format!("close-spread-time {LONG}")] {
        let (mut server, mut plain, mut http2) = serving(spread);
        stop(&server);
        for client in &mut plain {
            for _ in 0..2 {
                let answer = client.get("/");
                assert!(!answer.head.contains("onnection: close"), "{spread}: {}", answer.head);
            }
        }
        for client in &mut http2 {
            assert_eq!(client.get("/").status, 200, "{spread}");
            assert_eq!(client.goaway, None, "{spread}");
        }
        assert!(server.program.is_running());
        drop((plain, http2));
        assert_eq!(server.program.wait(), 0, "{spread}");
    }
}

#[test]
fn the_moments_of_all_connections_come() {
    let (mut server, mut plain, mut http2) = serving("close-spread-time 1s");
    // An unfinished stream keeps its connection open; a GOAWAY tells the client to open no further stream.
    let busy = &mut http2[0];
    busy.begin("GET /wait\nhost: h", true);
    assert_eq!(busy.get("/").status, 200);
    stop(&server);
    for client in &mut plain {
        assert_eq!(client.read_to_end(), b"");
    }
    for client in &mut http2[1..] {
        client.until_closed();
        assert_eq!(client.goaway.map(|(_, code)| code), Some(ErrorCode::NO_ERROR));
    }
    let mut busy = http2.remove(0);
    busy.until("a GOAWAY", |client| client.goaway.is_some());
    assert!(server.program.is_running());
    drop(busy);
    assert_eq!(server.program.wait(), 0);
}

/// Without the keyword, and with 0, nothing is waited for.
#[test]
fn connections_end_at_once_by_default() {
    for spread in ["", "close-spread-time 0"] {
        let (mut server, mut plain, mut http2) = serving(spread);
        server.program.signal(libc::SIGUSR1);
        plain.iter_mut().for_each(|client| assert_eq!(client.read_to_end(), b""));
        http2.iter_mut().for_each(Client::until_closed);
        assert_eq!(server.program.wait(), 0);
    }
}

/// A connection with a stream is not asked to end before its moment; without one it follows.
#[test]
fn a_reload_is_spread_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let gates = [Listening::new(), Listening::new()];
    let spread = format!("close-spread-time {LONG}");
    let file = directory.path().join("a.cfg");
    let write = |answer| {
        let text = text(&spread, answer, [&gates[0], &gates[1]]).replace("@DIR@", &directory.path().to_string_lossy());
        std::fs::write(&file, text).expect("written");
    };
    write("one");
    let mut command = std::process::Command::new(crate::BINARY);
    command.args(["run", "a.cfg"]).current_dir(directory.path());
    let mut program = Program::start(command, &[gates[0].fd(), gates[1].fd()]);
    program.wait_for_output("listening on");
    let mut client = Client::connect(&gates[1].address());
    let waiting = client.begin("GET /wait\nhost: h", true);
    assert_eq!(client.get("/").field("name"), Some("one"));
    write("two");
    let done = std::process::Command::new(crate::BINARY).args(["reload", &program.pid().to_string()]).output();
    assert!(done.expect("it runs").status.success());
    // Its streams have the configuration with which it is busy.
    assert_eq!(client.get("/").field("name"), Some("one"));
    client.reset(waiting, ErrorCode::CANCEL);
    sluicegate_testkit::wait_for("the new configuration", || {
        (client.get("/").field("name") == Some("two")).then_some(())
    });
    assert_eq!(client.goaway, None);
}
