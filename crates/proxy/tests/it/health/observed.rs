//! `observe`: what traffic shows of a server; and what happens to streams when servers go up and down.

use sluicegate_testkit::{Client, wait_for};

use super::fixture::Act::{Close, Give, Take};
use super::fixture::{Either, Scripted};
use crate::server::fixture::Whole;
use crate::support::Origin;

const BAD: &[u8] = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// A body of chunks that has not ended.
const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
/// A body that is malformed where its head is there already.
const LATE: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxx\r\n";

/// Requests through a server that is checked on another port; what is said of it afterwards.
fn after(
    start: fn(&str, &str) -> (Either, String),
    words: &str,
    script: &'static [super::fixture::Act],
    count: usize,
) -> Vec<String> {
    let (checked, server) = (Scripted::new(&[Take]), Scripted::new(script));
    // Only of one that never answers the time runs out.
    let time = if matches!(script, [Take]) { "500ms" } else { "20s" };
    let text = format!(
        "defaults\n mode http\n timeout connect 60s\n timeout server {time}\n timeout client 60s\n retries 0\nfrontend f\n \
         bind @BIND@\n default_backend be\nbackend be\n server s {} check inter 1h fastinter 1h port {} {words}\n",
        server.address,
        checked.address.port()
    );
    let port = sluicegate_testkit::free_port();
    let (program, address) = start(&text, &format!("127.0.0.1:{port}"));
    wait_for("the first check", || (program.column("be", "s", "check_status") == "L4OK").then_some(()));
    for _ in 0..count {
        let mut client = Client::connect(&address);
        // A server that waits once more waits until the client has something of its answer.
        let waits = matches!(script, [Take, Give(_), Take, ..]);
        let body = if waits { "Content-Length: 1\r\n" } else { "" };
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{body}\r\n"));
        if waits {
            client.read_until(b"abc");
            client.send("x");
        }
        client.read_to_end();
    }
    at_rest(&program);
    let mut shown: Vec<String> =
        ["status", "check_status", "last_chk", "check_desc", "check_health", "hanafail", "chkfail"]
            .iter()
            .map(|column| format!("{column}: {}", program.column("be", "s", column)))
            .collect();
    shown.extend(program.lines().iter().map(|line| without_sessions(line)));
    shown
}

/// Every stream has ended, and been judged.
fn at_rest(program: &Either) {
    wait_for("the last stream", || (program.column("f", "FRONTEND", "scur") == "0").then_some(()));
}

/// A line without its number of sessions: whether requests that failed still count is a matter of moments.
fn without_sessions(line: &str) -> String {
    match line.split_once(" sessions active") {
        Some((before, behind)) => format!("{}N sessions active{behind}", before.trim_end_matches(char::is_numeric)),
        None => line.to_owned(),
    }
}

fn ours(text: &str, _: &str) -> (Either, String) {
    let program = Either::ours(&text.replace("@BIND@", "127.0.0.1:1"));
    let address = program.address();
    (program, address)
}

fn theirs(text: &str, address: &str) -> (Either, String) {
    (Either::theirs(&text.replace("@BIND@", address)), address.to_owned())
}

#[test]
fn failures_of_traffic_count_like_failed_checks() {
    let bad: &[_] = &[Take, Give(BAD), Close];
    let good: &[_] = &[Take, Give(GOOD), Close];
    for (words, script, count) in [
        ("observe layer7", bad, 9),
        ("observe layer7", bad, 10),
        ("observe layer7 error-limit 3", bad, 3),
        ("observe layer7 error-limit 3", good, 4),
        ("observe layer4 error-limit 3", bad, 4),
        ("observe layer7 error-limit 2 on-error fastinter", bad, 2),
        ("observe layer7 error-limit 2 on-error fail-check", bad, 4),
        ("observe layer7 error-limit 2 fall 9 on-error sudden-death", bad, 2),
        ("observe layer7 error-limit 2 on-error mark-down", bad, 2),
        ("observe layer7 error-limit 1 on-error mark-down", &[Take, Give(b"junk\r\n\r\n"), Close], 1),
        ("observe layer7 error-limit 1 on-error mark-down", &[Take], 1),
        ("observe layer7 error-limit 1 on-error mark-down", &[Take, Give(CHUNKED), Take, Give(b"xx\r\n"), Close], 1),
        ("observe layer7 error-limit 2 on-error mark-down", &[Take, Give(CHUNKED), Take, Give(b"xx\r\n"), Close], 3),
        ("observe layer7 error-limit 2 on-error mark-down", &[Take, Give(LATE), Close], 3),
        ("observe layer7 error-limit 1 on-error mark-down", &[Take, Give(LATE), Close], 1),
        ("observe layer7 error-limit 1 on-error mark-down", &[Take, Give(CHUNKED), Close], 1),
        ("observe layer4 error-limit 1 on-error mark-down", &[Take, Give(LATE), Close], 1),
    ] {
        let (ours, theirs) = (after(ours, words, script, count), after(theirs, words, script, count));
        assert_eq!(ours, theirs, "ours, haproxy's: {words}, {count} requests");
    }
}

#[test]
fn connections_that_fail_count_at_layer_4() {
    for (words, count) in [("observe layer4 error-limit 2 on-error mark-down", 2), ("observe layer4 error-limit 3", 2)]
    {
        let shown = |start: fn(&str, &str) -> (Either, String)| {
            let checked = Scripted::new(&[Take]);
            let text = format!(
                "defaults\n mode http\n timeout connect 60s\n timeout server 60s\n timeout client 60s\n retries 0\nfrontend \
                 f\n bind @BIND@\n default_backend be\nbackend be\n server s 127.0.0.1:1 check inter 1h port {} {words}\n",
                checked.address.port()
            );
            let (program, address) = start(&text, &format!("127.0.0.1:{}", sluicegate_testkit::free_port()));
            wait_for("the first check", || (program.column("be", "s", "check_status") == "L4OK").then_some(()));
            for _ in 0..count {
                assert_eq!(Client::connect(&address).get("/").status, 503);
            }
            at_rest(&program);
            let mut shown = vec![program.column("be", "s", "status"), program.column("be", "s", "last_chk")];
            shown.extend(program.lines().iter().map(|line| without_sessions(line)));
            shown
        };
        assert_eq!(shown(ours), shown(theirs), "ours, haproxy's: {words}");
    }
}

fn relay(rows: &str) -> Whole {
    Whole::start(
        &format!(
            "defaults\n timeout client 60s\n timeout server 60s\n timeout connect 60s\nfrontend f\n bind 127.0.0.1:1\n \
             default_backend be\nbackend be\n{rows}"
        ),
        1,
    )
}

fn ask(whole: &Whole, command: &str) -> String {
    sluicegate_testkit::Sluicegate::stats(&whole.stats, command)
}

#[test]
fn streams_of_a_server_that_goes_down_are_ended_if_it_says_so() {
    for (words, ends) in [("on-marked-down shutdown-sessions", true), ("", false)] {
        for command in ["set server be/s health down", "disable server be/s"] {
            let origin = Origin::new();
            let whole = relay(&format!(" server s {} {words}\n", origin.address));
            let mut client = Client::connect(&whole.address());
            client.send("hello");
            let mut peer = origin.accept();
            assert_eq!(peer.read_exact(5), b"hello");
            ask(&whole, command);
            if ends {
                assert_eq!(client.read_to_end(), b"", "{command}");
            } else {
                peer.send(b"still here");
                assert_eq!(client.read_exact(10), b"still here", "{command}");
            }
        }
    }
}

#[test]
fn streams_of_backups_are_ended_when_an_active_server_comes_up_if_it_says_so() {
    for (words, ends) in [("on-marked-up shutdown-backup-sessions", true), ("", false)] {
        let origin = Origin::new();
        let whole = relay(&format!(" server s {0} {words}\n server b {0} backup\n", origin.address));
        ask(&whole, "set server be/s health down");
        let mut client = Client::connect(&whole.address());
        client.send("hello");
        let mut peer = origin.accept();
        assert_eq!(peer.read_exact(5), b"hello");
        ask(&whole, "set server be/s health up");
        if ends {
            assert_eq!(client.read_to_end(), b"");
        } else {
            peer.send(b"still here");
            assert_eq!(client.read_exact(10), b"still here");
        }
    }
}
