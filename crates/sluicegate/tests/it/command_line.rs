//! The command line: words, exit codes and signals.

use std::io::{Read, Write};
use std::process::Command;

use sluicegate_testkit::{Client, Listening, wait_for};

use crate::{BINARY, start, workspace};

fn run(words: &[&str]) -> (i32, String, String) {
    let output = Command::new(BINARY).args(words).output().expect("starts");
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn help_and_version() {
    let (code, out, _) = run(&["--help"]);
    assert_eq!(code, 0);
    assert!(out.contains("usage: sluicegate COMMAND"), "{out}");
    let (code, out, _) = run(&["version"]);
    assert_eq!((code, out.as_str()), (0, concat!("sluicegate ", env!("CARGO_PKG_VERSION"), "\n")));
    let (code, _, error) = run(&["walk"]);
    assert_eq!(code, 1);
    assert!(error.contains("unknown command 'walk'") && error.contains("hint: "), "{error}");
}

/// A slip in a command or an option gets a suggestion, and the hint names the help of its command.
#[test]
fn slips_get_a_suggestion() {
    for (words, parts) in [
        (&["chek", "a.cfg"][..], ["did you mean 'check'?", "hint: sluicegate --help"]),
        (&["origin", "--lisen", "x"], ["did you mean '--listen'?", "hint: sluicegate origin --help"]),
        (&["run", "--frob"], ["--frob", "hint: sluicegate run --help"]),
        (&["bench", "http", "--frob"], ["--frob", "hint: sluicegate bench http --help"]),
        (&["store", "--prot", "6379"], ["Bad directive", "did you mean 'port'?"]),
    ] {
        let (code, _, error) = run(words);
        assert_eq!(code, 1, "{words:?}: {error}");
        for part in parts {
            assert!(error.contains(part), "{words:?}: no {part:?} in {error}");
        }
    }
}

#[test]
fn check_reports_every_error_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bad.cfg");
    std::fs::write(
        &file,
        "global\n    maxcon 10\nfrontend f\n    bind 127.0.0.1:notaport\n    default_backend nowhere\n",
    )
    .unwrap();
    let (code, out, error) = run(&["check", file.to_str().unwrap()]);
    let text = out + &error;
    assert_eq!(code, 1, "{text}");
    for expected in ["bad.cfg:2:", "maxconn", "bad.cfg:4:", "bad.cfg:5:", "nowhere"] {
        assert!(text.contains(expected), "no {expected:?} in:\n{text}");
    }
    let (code, _, error) = run(&["check", "/does/not/exist.cfg"]);
    assert_eq!(code, 1);
    assert!(error.contains("/does/not/exist.cfg"), "{error}");
}

#[test]
fn check_accepts_the_example() {
    let output = Command::new(BINARY)
        .args(["check", "examples/accounting/sluicegate.cfg"])
        .current_dir(workspace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn simple(gate: &Listening) -> String {
    format!(
        "global\n    nbthread 2\ndefaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    \
         timeout connect 60s\nlisten gate\n    bind \"{}\"\n    http-request return status 200 content-type text/plain string ok\n",
        gate.word()
    )
}

#[test]
fn sigterm_and_sigint_end_at_once() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let gate = Listening::new();
        let mut server = start(&simple(&gate), &[&gate]);
        let mut idle = Client::connect(&gate.address());
        assert_eq!(idle.get("/").text(), "ok");
        server.program.signal(signal);
        assert_eq!(server.program.wait(), -signal, "ends by the signal, as HAProxy does");
    }
}

#[test]
fn sigusr1_finishes_what_was_begun() {
    let (gate, origin) = (Listening::new(), Listening::new());
    let text = format!(
        "global\n    nbthread 2\ndefaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    \
         timeout connect 60s\nlisten gate\n    bind \"{}\"\n    http-request return status 200 if {{ path /fast }}\n    \
         server o {}\n",
        gate.word(),
        origin.address()
    );
    let mut server = start(&text, &[&gate]);
    let mut idle = Client::connect(&gate.address());
    assert_eq!(idle.get("/fast").status, 200);
    let mut busy = Client::connect(&gate.address());
    busy.send("GET /slow HTTP/1.1\r\nHost: test\r\n\r\n");
    // The request is in progress once the server has it.
    let (mut asked, _) = origin.listener.accept().expect("a connection");
    assert!(asked.read(&mut [0; 1024]).expect("a request") > 0);
    server.program.signal(libc::SIGUSR1);
    assert_eq!(idle.read_to_end(), b"", "an idle connection is closed");
    asked.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("the proxy reads");
    assert_eq!(busy.read_response().status, 200, "a request in progress is answered");
    assert_eq!(server.program.wait(), 0);
}

#[test]
fn an_address_in_use_is_named_with_its_line() {
    let taken = Listening::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("taken.cfg");
    let text = format!(
        "defaults\n    mode http\n    timeout client 1s\n    timeout server 1s\n    timeout connect 1s\n\
         frontend f\n    bind {}\n    http-request return status 200\n",
        taken.address()
    );
    std::fs::write(&file, text).unwrap();
    let (code, _, error) = run(&["run", file.to_str().unwrap()]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("taken.cfg:7") && error.contains(&taken.address()), "{error}");
    assert!(error.contains("in use"), "{error}");
}

#[test]
fn the_demo_server_stands_alone() {
    let port = sluicegate_testkit::free_port();
    let mut command = Command::new(BINARY);
    command.args(["origin", "--listen", &format!("127.0.0.1:{port}")]);
    let _origin = sluicegate_testkit::Program::start(command, &[]);
    let mut client = wait_for("the origin", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).ok().map(|_| Client::connect(&format!("127.0.0.1:{port}")))
    });
    assert_eq!(client.get("/fast").text(), "I'm FAST!!!!");
    assert_eq!(client.get("/status/418").status, 418);
    assert_eq!(client.get("/bytes/100000").body.len(), 100_000);
}
