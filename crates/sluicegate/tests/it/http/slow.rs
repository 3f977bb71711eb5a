//! Peers that send a byte at a time, in every phase of a message, against the timeout that bounds the phase.
//!
//! A slow peer continues until it is disconnected, so a case fails only if it never is: the time that this takes is not
//! checked. Activity is what HAProxy 3.2 counts as such (tried with it): data of a body, and a complete interim
//! response.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use sluicegate_testkit::{Client, Listening};

/// The pause between two bytes; a small part of the timeout under test.
const STEP: Duration = Duration::from_millis(40);

/// The number of bytes after which a slow peer gives up: its timeout has passed several times then.
const MOST: usize = 300;

/// One slow peer.
struct Slow {
    name: &'static str,
    /// The timeouts of its section; those that are not tested are long.
    timeouts: &'static str,
    /// The bytes that it sends at once, and those that it then repeats one by one: however often, they stay the beginning
    /// of something valid.
    first: &'static str,
    then: &'static str,
    /// The beginning of what the client receives.
    gives: &'static str,
}

const SERVER: &str = "timeout client 60s\n    timeout server 2s";
const CLIENT: &str = "timeout client 400ms\n    timeout server 60s";
const REQUEST: &str = "timeout client 60s\n    timeout server 60s\n    timeout http-request 400ms";
const BUFFERED: &str =
    "timeout client 60s\n    timeout server 60s\n    timeout http-request 400ms\n    option http-buffer-request";
const KEPT: &str = "timeout client 60s\n    timeout server 60s\n    timeout http-request 400ms\n    \
                    timeout http-keep-alive 30s";
const WAITED: &str = "timeout client 60s\n    timeout server 60s\n    http-request wait-for-body time 400ms";
const RESPONSE: &str = "timeout client 60s\n    timeout server 2s\n    http-response wait-for-body time 30s";

const LATE: &str = "HTTP/1.1 504 Gateway Time-out\r\n";
const INCOMPLETE: &str = "HTTP/1.1 408 Request Time-out\r\n";

macro_rules! chunked {
    ($text:literal) => {
        concat!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", $text)
    };
}

macro_rules! upload {
    ($text:literal) => {
        concat!("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", $text)
    };
}

const fn slow(
    name: &'static str,
    timeouts: &'static str,
    first: &'static str,
    then: &'static str,
    gives: &'static str,
) -> Slow {
    Slow { name, timeouts, first, then, gives }
}

/// The start of a response that was forwarded before the peer became too slow.
const PASSED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n";

const SERVERS: &[Slow] = &[
    slow("a status line", SERVER, "", "HTTP/1.1 200 O", LATE),
    slow("a field's name", SERVER, "HTTP/1.1 200 OK\r\n", "x", LATE),
    slow("a field's value", SERVER, "HTTP/1.1 200 OK\r\nX: ", "y", LATE),
    slow("a field after a field", SERVER, "HTTP/1.1 200 OK\r\n", "A: b\r\n", LATE),
    slow("an interim response", SERVER, "", "HTTP/1.1 103 Early Hints and further hint", LATE),
    slow(
        "the head behind an interim response",
        SERVER,
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 200 O",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 504 Gateway Time-out\r\n",
    ),
    slow("empty lines before a status line", SERVER, "", "\r\n", LATE),
    slow("a chunk's size", SERVER, chunked!(""), "0", PASSED),
    slow("a chunk's extension", SERVER, chunked!("5;"), "x", PASSED),
    slow("a later chunk's extension", SERVER, chunked!("5\r\nhello\r\n5;"), "x", PASSED),
    slow("a trailer", SERVER, chunked!("5\r\nhello\r\n0\r\nT: "), "x", PASSED),
    slow("a trailer after a trailer", SERVER, chunked!("5\r\nhello\r\n0\r\n"), "T: v\r\n", PASSED),
    slow("a chunk's extension that a rule waits for", RESPONSE, chunked!("5;"), "x", LATE),
    slow("trailers that a rule waits for", RESPONSE, chunked!("5\r\nhello\r\n0\r\n"), "T: v\r\n", LATE),
];

const CLIENTS: &[Slow] = &[
    slow("a request line", REQUEST, "", "GET", INCOMPLETE),
    slow("a request line without http-request", CLIENT, "", "GET", INCOMPLETE),
    slow("a field", REQUEST, "GET / HTTP/1.1\r\nX: ", "y", INCOMPLETE),
    slow("fields", REQUEST, "GET / HTTP/1.1\r\n", "X: y\r\n", INCOMPLETE),
    slow("empty lines", REQUEST, "", "\r\n", INCOMPLETE),
    slow("empty lines without http-request", CLIENT, "", "\r\n", INCOMPLETE),
    slow("a second request", KEPT, "GET / HTTP/1.1\r\nHost: h\r\n\r\n", "GET", "HTTP/1.1 200 OK\r\n"),
    slow("empty lines behind a request", KEPT, "GET / HTTP/1.1\r\nHost: h\r\n\r\n", "\r\n", "HTTP/1.1 200 OK\r\n"),
    slow("a chunk's size", CLIENT, upload!(""), "0", INCOMPLETE),
    slow("a chunk's extension", CLIENT, upload!("5;"), "x", INCOMPLETE),
    slow("a later chunk's extension", CLIENT, upload!("5\r\nhello\r\n5;"), "x", INCOMPLETE),
    slow("a trailer", CLIENT, upload!("5\r\nhello\r\n0\r\nT: "), "x", INCOMPLETE),
    slow("a trailer after a trailer", CLIENT, upload!("5\r\nhello\r\n0\r\n"), "T: v\r\n", INCOMPLETE),
    slow(
        "a body that is buffered",
        BUFFERED,
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 999\r\n\r\n",
        "x",
        INCOMPLETE,
    ),
    slow("an extension that is buffered", BUFFERED, upload!("5;"), "x", INCOMPLETE),
    slow("a trailer that is buffered", BUFFERED, upload!("5\r\nhello\r\n0\r\nT: "), "x", INCOMPLETE),
    slow(
        "a body that a rule waits for",
        WAITED,
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 999\r\n\r\n",
        "x",
        INCOMPLETE,
    ),
    slow("a trailer that a rule waits for", WAITED, upload!("5\r\nhello\r\n0\r\nT: "), "x", INCOMPLETE),
    slow(
        "an extension, by the client's time alone",
        "timeout client 400ms\n    timeout server 60s\n    \
        option http-buffer-request",
        upload!("5;"),
        "x",
        INCOMPLETE,
    ),
];

/// Sends what a slow peer sends, until the other end has closed or [`MOST`] bytes are sent.
fn dribble(mut stream: &TcpStream, slow: &Slow) {
    if stream.write_all(slow.first.as_bytes()).is_err() {
        return;
    }
    for byte in slow.then.bytes().cycle().take(MOST) {
        std::thread::sleep(STEP);
        if stream.write_all(&[byte]).is_err() {
            return;
        }
    }
}

/// Returns one `listen` section for each slow peer; `server` returns the address of its server.
fn configuration(all: &[Slow], front: &[Listening], server: impl Fn(usize) -> String) -> String {
    let mut text = String::from("global\n    maxconn 500\n\ndefaults\n    mode http\n    timeout connect 60s\n");
    for (number, (slow, front)) in all.iter().zip(front).enumerate() {
        let (word, timeouts, server) = (front.word(), slow.timeouts, server(number));
        text.push_str(&format!(
            "\nlisten l{number}\n    bind {word}\n    {timeouts}\n    option http-no-delay\n    server s {server}\n"
        ));
    }
    text
}

fn check(slow: &Slow, received: &[u8]) -> Result<(), String> {
    let received = String::from_utf8_lossy(received);
    match received.starts_with(slow.gives) {
        true => Ok(()),
        false => Err(format!("{}: {:?} instead of {:?}", slow.name, received, slow.gives)),
    }
}

#[test]
fn a_server_that_sends_a_byte_at_a_time_times_out_in_every_phase() {
    let front: Vec<Listening> = SERVERS.iter().map(|_| Listening::new()).collect();
    let back: Vec<TcpListener> = SERVERS.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let text = configuration(SERVERS, &front, |number| back[number].local_addr().unwrap().to_string());
    let _proxy = crate::start(&text, &front.iter().collect::<Vec<_>>());
    let run = |slow: &Slow, front: &Listening, back: &TcpListener| {
        let mut client = Client::connect(&front.address());
        client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let (mut stream, _) = back.accept().expect("the proxy connects");
        let received = std::thread::scope(|scope| {
            let reader = scope.spawn(move || client.read_to_end());
            let mut head = [0; 1024];
            let _ = stream.read(&mut head);
            dribble(&stream, slow);
            drop(stream);
            reader.join().expect("no panic")
        });
        check(slow, &received)
    };
    run_all(SERVERS.iter().zip(front.iter().zip(&back)).map(|(slow, (front, back))| move || run(slow, front, back)));
}

#[test]
fn a_client_that_sends_a_byte_at_a_time_times_out_in_every_phase() {
    let front: Vec<Listening> = CLIENTS.iter().map(|_| Listening::new()).collect();
    for (_, front) in CLIENTS.iter().zip(&front).filter(|(slow, _)| !slow.first.is_empty()) {
        // The timeout must not begin before a client that is kept from running has sent what it sends at once.
        crate::robust::accept_with_data(&front.listener);
    }
    let back = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = back.local_addr().unwrap().to_string();
    // The server answers requests without a body, and waits for the end of others.
    std::thread::spawn(move || {
        for mut stream in back.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    if buffer[..count].starts_with(b"GET ") {
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                    }
                }
            });
        }
    });
    let _proxy = crate::start(&configuration(CLIENTS, &front, |_| address.clone()), &front.iter().collect::<Vec<_>>());
    let run = |slow: &Slow, front: &Listening| {
        let stream = TcpStream::connect(front.address()).expect("it listens");
        let mut reading = stream.try_clone().expect("a descriptor is left");
        let received = std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut received = Vec::new();
                let _ = reading.read_to_end(&mut received);
                received
            });
            dribble(&stream, slow);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            reader.join().expect("no panic")
        });
        check(slow, &received)?;
        // After an answered request the connection ends with a 408 for the next one, not because the client ends it.
        match slow.timeouts == KEPT && !String::from_utf8_lossy(&received).contains("HTTP/1.1 408 ") {
            true => Err(format!("{}: {:?}", slow.name, String::from_utf8_lossy(&received))),
            false => Ok(()),
        }
    };
    run_all(CLIENTS.iter().zip(&front).map(|(slow, front)| move || run(slow, front)));
}

/// Data is activity, whatever its framing, so a slow body is not cut off.
#[test]
fn data_that_comes_slowly_keeps_both_sides_alive() {
    let (front, back) = (Listening::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let configuration = format!(
        "defaults\n    mode http\n    timeout connect 60s\n    timeout client 3s\n    timeout server 3s\n\n\
         listen l\n    bind {}\n    option http-no-delay\n    server s {}\n",
        front.word(),
        back.local_addr().unwrap()
    );
    let _proxy = crate::start(&configuration, &[&front]);
    let mut client = Client::connect(&front.address());
    client.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    let (stream, _) = back.accept().expect("the proxy connects");
    let mut server = Client::from(stream);
    server.read_until(b"\r\n\r\n");
    for _ in 0..10 {
        client.send("1\r\nx\r\n");
        server.read_until(b"x\r\n");
        std::thread::sleep(10 * STEP);
    }
    client.send("0\r\n\r\n");
    server.read_until(b"0\r\n\r\n");
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n");
    client.read_until(b"\r\n\r\n");
    for _ in 0..10 {
        server.send("y");
        client.read_until(b"y");
        std::thread::sleep(10 * STEP);
    }
}

/// Runs jobs, which mostly wait, in parallel, and reports all that failed.
fn run_all(jobs: impl Iterator<Item = impl FnOnce() -> Result<(), String> + Send>) {
    let failures: Vec<String> = std::thread::scope(|scope| {
        let running: Vec<_> = jobs.map(|job| scope.spawn(job)).collect();
        running.into_iter().filter_map(|job| job.join().expect("no panic").err()).collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
