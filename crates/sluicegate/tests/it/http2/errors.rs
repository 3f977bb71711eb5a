//! Log lines of connections and streams that carry no request, beside HAProxy 2.8.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use sluicegate_testkit::{Haproxy, PATIENCE, Program, wait_for};

use super::requests::{frame, headers};
use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What clients send that is no request.
fn clients() -> Vec<(&'static str, Vec<u8>)> {
    let greeted = |rest: Vec<u8>| [PREFACE, &frame(4, 0, 0, &[]), &rest].concat();
    vec![
        ("nothing", Vec::new()),
        ("HTTP/1", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec()),
        ("a part of the preface", PREFACE[..10].to_vec()),
        ("no settings", [PREFACE, &frame(6, 0, 0, &[0; 8])].concat()),
        ("a PING of one byte", greeted(frame(6, 0, 0, &[1]))),
        ("no HPACK", greeted(frame(1, 5, 1, &[0xff; 5]))),
        ("no path", greeted(headers(1, 5, &[(":method", "GET"), (":scheme", "http"), (":authority", "h")]))),
        ("an even stream", greeted(frame(1, 5, 2, &[0x82, 0x86, 0x84]))),
    ]
}

/// Returns the log lines without addresses, times, and the numbers of connections, of which the last may still be ending.
fn lines(program: &Program) -> Vec<String> {
    let masked = |rest: &str| {
        let words = rest.split(' ').map(|word| if word.matches('/').count() == 4 { "N" } else { word });
        words.collect::<Vec<_>>().join(" ")
    };
    let output = program.output();
    output.lines().filter_map(|line| line.split_once(" front/<NOSRV> ")).map(|(_, rest)| masked(rest)).collect()
}

/// Sends bytes, ends the connection, and returns what the proxy logs.
fn logged(program: &Program, port: u16, bytes: &[u8]) -> String {
    let before = lines(program).len();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("settable");
    stream.write_all(bytes).expect("open");
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
    wait_for("a log line", || lines(program).get(before).cloned())
}

#[test]
fn frames_that_are_no_request_are_logged() {
    let (theirs, ours) = (Listening::new(), Listening::new());
    let text = |listening: &Listening| {
        format!(
            "global\n log stdout format raw local0\ndefaults\n mode http\n log global\n option httplog\n timeout client \
             60s\nfrontend front\n bind {} proto h2\n http-request return status 200\n",
            listening.word()
        )
    };
    let haproxy = Haproxy::start_2_8(&text(&theirs), &[&theirs]);
    let sluicegate = start(&text(&ours), &[&ours]);
    for (name, bytes) in clients() {
        let expected = logged(&haproxy.program, theirs.port(), &bytes);
        assert_eq!(logged(&sluicegate.program, ours.port(), &bytes), expected, "{name}");
        assert!(expected.contains("PR-- "), "{name}: {expected}");
    }
}

#[test]
fn connections_without_a_byte_need_not_be_logged() {
    for option in ["dontlognull", "http-ignore-probes"] {
        let gate = Listening::new();
        let text = format!(
            "global\n log stdout format raw local0\ndefaults\n mode http\n log global\n option httplog\n option {option}\n \
             timeout client 60s\nfrontend front\n bind {} proto h2\n http-request return status 200\n",
            gate.word()
        );
        let server = start(&text, &[&gate]);
        drop(TcpStream::connect(("127.0.0.1", gate.port())).expect("a connection"));
        // The first line is that of a later connection.
        let line = logged(&server.program, gate.port(), &PREFACE[..10]);
        assert_eq!(lines(&server.program), [line]);
    }
}
