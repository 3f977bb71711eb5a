//! `retry-on` by the way in which a server of HTTP/2 fails. The statuses and the numbers of retries are those of HAProxy
//! 3.2.0, except that it does not repeat a request for REFUSED_STREAM or a GOAWAY alone.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use super::server::frame;
use super::*;

/// Every word of `retry-on`; the codes are one value.
const WORDS: [&str; 8] = [
    "none",
    "conn-failure",
    "empty-response",
    "junk-response",
    "response-timeout",
    "0rtt-rejected",
    "404 503",
    "all-retryable-errors",
];

/// The ways to fail: their names, the status that the client gets, and the words of [`WORDS`] that retry.
const FAILURES: [(&str, u16, &[usize]); 14] = [
    ("refused", 503, &[1, 7]),
    // The server's settings do not come: the connection is not established.
    ("closed", 503, &[1, 7]),
    ("other-protocol", 503, &[1, 7]),
    ("no-settings", 503, &[1, 7]),
    ("goaway-at-once", 503, &[1, 7]),
    ("goaway", 502, &[1, 2, 7]),
    ("refused-stream", 502, &[1, 2, 7]),
    ("internal-error", 502, &[2, 7]),
    ("ended", 502, &[2, 7]),
    ("window-update", 502, &[2, 7]),
    ("malformed", 502, &[3, 7]),
    ("silent", 504, &[4, 7]),
    ("404", 404, &[6]),
    ("503", 503, &[6, 7]),
];

/// Serves a connection as the name says; `None` is its end.
fn serve(name: &str, mut socket: TcpStream) -> Option<()> {
    let mut preface = [0; 24];
    socket.read_exact(&mut preface).ok()?;
    match name {
        "closed" => return None,
        "other-protocol" => socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok()?,
        "no-settings" => {}
        "goaway-at-once" => socket.write_all(&[frame(4, 0, b""), frame(7, 0, &[0; 8])].concat()).ok()?,
        _ => socket.write_all(&frame(4, 0, b"")).ok()?,
    }
    loop {
        let mut header = [0; 9];
        socket.read_exact(&mut header).ok()?;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([header[1], header[2]]))];
        socket.read_exact(&mut payload).ok()?;
        // The end of a request.
        if !matches!(header[3], 0 | 1) || header[4] & 1 == 0 {
            continue;
        }
        let answer = match name {
            "goaway" => frame(7, 0, &[0; 8]),
            "refused-stream" => frame(3, 0, &[0, 0, 0, 7]),
            "internal-error" => frame(3, 0, &[0, 0, 0, 2]),
            "window-update" => frame(8, 0, &[0; 4]),
            "malformed" => frame(1, 5, b"\x88\x00\x01A\x01b"),
            "second" if header[8] == 1 => frame(1, 5, &[0x88]),
            "second" => frame(3, 0, &[0, 0, 0, 2]),
            "interim" => frame(1, 5, b"\x08\x03103"),
            "404" => frame(1, 5, &[0x8d]),
            "503" => frame(1, 5, b"\x08\x03503"),
            "silent" => continue,
            _ => return None,
        };
        let stream = if name == "goaway" { &[0; 4] } else { &header[5..] };
        socket.write_all(&[&answer[..5], stream, &answer[9..]].concat()).ok()?;
    }
}

/// Returns the address of a server that fails like this.
fn failing(name: &'static str) -> String {
    if name == "refused" {
        return "127.0.0.1:1".to_owned();
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(name, socket));
        }
    });
    address
}

#[test]
fn retry_on_names_the_failures_that_are_repeated() {
    let gate = Listening::new();
    let mut text = format!(
        "{DEFAULTS} retries 1\nfrontend front\n bind {}\n http-after-response set-header x-retries %[txn.conn_retries]\n \
         use_backend %[path,field(2,/)]\n",
        gate.word()
    );
    for (name, ..) in FAILURES {
        let address = failing(name);
        let time = match name {
            "no-settings" => " timeout connect 100ms\n",
            "silent" => " timeout server 200ms\n",
            _ => "",
        };
        for (at, words) in WORDS.iter().enumerate() {
            text += &format!("backend {name}-{at}\n retry-on {words}\n{time} server s {address} proto h2\n");
        }
    }
    let _proxy = start(&text, &[&gate]);
    let check = |(name, status, retried): (&str, u16, &[usize])| {
        for (at, words) in WORDS.iter().enumerate() {
            let mut client = Plain::connect(&gate.address());
            client.send(format!("POST /{name}-{at} HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\n\r\nbody"));
            let response = client.read_response();
            let seen = (response.head.split(' ').nth(1).map(str::to_owned), response.header("x-retries"));
            let retries = if retried.contains(&at) { "1" } else { "0" };
            assert_eq!(seen, (Some(status.to_string()), Some(retries)), "{name}, retry-on {words}");
        }
    };
    std::thread::scope(|scope| {
        for failure in FAILURES {
            scope.spawn(move || check(failure));
        }
    });
}

/// HAProxy closes the client's connection in the first case, and forwards the informational response in the second.
#[test]
fn a_stream_that_fails_is_answered() {
    for (name, flags, requests) in [("second", "SH", 2), ("interim", "PH", 1)] {
        let lines =
            " log stdout format raw local0\n log-format \"%ST %ts\"\n default_backend back\nbackend back\n server s";
        let (mut proxy, gate) = front(&format!("{lines} {} proto h2", failing(name)));
        let mut client = Plain::connect(&gate.address());
        let last = (0..requests).map(|_| client.get("/").head).last().unwrap_or_default();
        assert!(last.starts_with("HTTP/1.1 502 "), "{name}: {last}");
        proxy.program.wait_for_output(&format!("502 {flags}\n"));
    }
}
