//! Servers that misbehave: every kind of error is seen, counted under its name, and none is lost.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_testkit::{Listening, free_port, wait_for};

use super::{Fields, run, run_with};

/// The reaction of a server to a request.
#[derive(Clone, Copy)]
enum Act {
    Answer(&'static str),
    /// Sends this text and closes.
    Close(&'static str),
    Reset,
    Silence,
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Starts a server that does `act` with each request, by its number over all connections; returns the counter of the
/// requests that it has read.
fn server(listener: TcpListener, end: &'static [u8], act: fn(u64) -> Act) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    let counter = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let counter = counter.clone();
            std::thread::spawn(move || serve(stream, end, &counter, act));
        }
    });
    count
}

fn serve(mut stream: TcpStream, end: &[u8], counter: &AtomicU64, act: fn(u64) -> Act) {
    let (mut received, mut part) = (Vec::new(), [0; 4096]);
    loop {
        while let Some(at) = received.windows(end.len()).position(|window| window == end) {
            received.drain(..at + end.len());
            match act(counter.fetch_add(1, Ordering::SeqCst)) {
                Act::Answer(bytes) => drop(stream.write_all(bytes.as_bytes())),
                Act::Close(bytes) => {
                    let _ = stream.write_all(bytes.as_bytes());
                    let _ = stream.shutdown(std::net::Shutdown::Write);
                    // The rest of the client's data is read: closing with unread data would reset the connection.
                    while stream.read(&mut part).is_ok_and(|count| count > 0) {}
                    return;
                }
                Act::Reset => {
                    let _ = socket2::SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO));
                    return;
                }
                Act::Silence => {}
            }
        }
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return,
            Ok(count) => received.extend_from_slice(&part[..count]),
        }
    }
}

/// Sends 20 requests by two connections to a server that does `act`; returns the report after the checks that apply to
/// every run.
fn check(act: fn(u64) -> Act, words: &str) -> Fields {
    let listening = Listening::new();
    let url = format!("http://{}/", listening.address());
    let count = server(listening.listener, b"\r\n\r\n", act);
    let ran = run_with(&format!("http -c 2 -n 20 --json {words}"), &[&url]);
    let fields = ran.fields();
    fields.balance();
    assert_eq!(fields.count("requests.intended"), 20);
    let pipelined = fields.count("failures.dropped.count");
    let sent = fields.count("requests.sent");
    // The server may read requests for whose responses the client no longer waits.
    let read = wait_for("the requests at the server", || {
        let read = count.load(Ordering::SeqCst);
        (read + pipelined >= sent - fields.count("failures.reset.count")).then_some(read)
    });
    assert!(read <= sent, "{read} of {sent} came");
    assert_eq!(ran.code, u8::from(fields.count("requests.answered") == 0), "{}", ran.err);
    fields
}

#[test]
fn requests_without_an_answer_stand_under_their_kind() {
    let fields = check(|number| if number % 4 == 3 { Act::Close("") } else { Act::Answer(OK) }, "");
    assert_eq!((fields.count("failures.closed.count"), fields.count("requests.answered")), (5, 15));
    // Five connections were closed; of these, the last one of each of the two may not have been needed again.
    assert!(fields.count("connections.made_again") >= 3);

    let fields = check(
        |number| {
            if number % 4 == 3 { Act::Close("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok") } else { Act::Answer(OK) }
        },
        "",
    );
    assert_eq!((fields.count("failures.short.count"), fields.count("requests.answered")), (5, 15));

    let fields = check(|number| if number % 4 == 3 { Act::Reset } else { Act::Answer(OK) }, "");
    assert_eq!((fields.count("failures.reset.count"), fields.count("requests.answered")), (5, 15));

    let fields = check(|number| if number % 4 == 3 { Act::Answer("SSH-2.0-x\r\n") } else { Act::Answer(OK) }, "");
    assert_eq!((fields.count("failures.bad_response.count"), fields.count("requests.answered")), (5, 15));
    assert_eq!(fields.text("failures.bad_response.example"), "malformed start line");

    let fields = check(|number| if number % 10 == 3 { Act::Silence } else { Act::Answer(OK) }, "--timeout 50ms");
    assert!(fields.count("failures.timeout.count") >= 2);
}

#[test]
fn what_was_pipelined_behind_a_fault_is_dropped_and_counted() {
    let fields = check(|number| if number % 4 == 3 { Act::Reset } else { Act::Answer(OK) }, "-P 4 -c 1");
    assert_eq!(fields.count("requests.sent"), 20);
    assert!(fields.count("failures.dropped.count") > 0);
    let closing = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
    fn close(_: u64) -> Act {
        Act::Close("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
    }
    let fields = check(close, "-P 4 -c 1");
    assert_eq!((fields.count("requests.answered"), fields.count("failures.dropped.count")), (5, 15), "{closing}");
}

#[test]
fn a_server_that_never_answers_does_not_hold_a_run_for_ever() {
    // Each connection is given up after a dozen failed attempts in a row; the unsent requests are reported.
    let fields = check(|_| Act::Close(""), "-n 1000000 --requests 20");
    assert_eq!(fields.count("requests.answered"), 0);
    let fields = check(|_| Act::Silence, "--timeout 20ms");
    assert_eq!(fields.count("requests.answered"), 0);
}

#[test]
fn bodies_end_as_their_heads_say() {
    let fields = check(
        |number| match number % 4 {
            0 => Act::Answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
            1 => Act::Answer("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 3\r\n\r\nabc"),
            2 => Act::Answer("HTTP/1.1 204 No Content\r\n\r\n"),
            _ => Act::Close("HTTP/1.1 404 Not Found\r\n\r\nuntil the end"),
        },
        "",
    );
    let classes = (fields.count("statuses.200"), fields.count("statuses.201"), fields.count("statuses.204"));
    assert_eq!((classes, fields.count("statuses.404")), ((5, 5, 5), 5));
    assert_eq!(fields.count("bytes.bodies"), 5 * (3 + 3 + 13));
    assert_eq!(fields.count("requests.failed"), 0);
}

#[test]
fn a_message_that_nobody_asked_for_is_not_an_answer() {
    let twice = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(twice.matches("HTTP").count(), 2);
    let fields = check(
        |_| {
            Act::Answer(
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n",
            )
        },
        "-c 1 -r 200",
    );
    assert_eq!(fields.count("requests.answered"), 20);
    assert!(fields.count("connections.unasked_messages") >= 1);
}

#[test]
fn nobody_listens() {
    for words in ["", "-r 100", "--no-keep-alive", "-n 10", "-n 10 -r 100"] {
        let url = format!("http://127.0.0.1:{}/", free_port());
        let ran = run_with(&format!("http -c 3 --json {words}"), &[&url]);
        let fields = ran.fields();
        fields.balance();
        assert_eq!(ran.code, 1, "{words}");
        assert!(fields.count("connect_failures.refused.count") >= 3, "{words}");
        assert_eq!(fields.count("connections.made"), 0);
        if words.contains("keep-alive") {
            assert_eq!(fields.count("failures.connect.count"), fields.count("requests.sent"));
        } else {
            assert_eq!(fields.count("requests.sent"), 0, "{words}");
        }
        assert!(ran.err.contains("every request failed"), "{}", ran.err);
    }
    let ran = run("redis --server unix:/nowhere/at.all --json -n 5");
    assert_eq!(ran.code, 1);
    assert!(ran.fields().count("connect_failures.path.count") >= 1);
}

#[test]
fn replies_that_are_none_or_errors() {
    let listening = Listening::new();
    let address = listening.address();
    server(listening.listener, b"PING\r\n", |number| match number % 4 {
        0 => Act::Answer("+PONG\r\n"),
        1 => Act::Answer("-OOM no memory\r\n"),
        2 => Act::Answer("$-1\r\n"),
        _ => Act::Answer("?what\r\n"),
    });
    let ran = run_with("redis -c 1 -n 20 --json PING --server", &[&address]);
    let fields = ran.fields();
    fields.balance();
    assert_eq!(fields.count("replies.values"), 5);
    assert_eq!(fields.count("replies.nulls"), 5);
    assert_eq!((fields.count("replies.errors"), fields.count("replies.codes.OOM.count")), (5, 5));
    assert_eq!(fields.text("replies.codes.OOM.example"), "OOM no memory");
    assert_eq!(fields.count("failures.bad_response.count"), 5);
}
