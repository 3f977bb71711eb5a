//! The server's side.

use super::*;

/// Feeds a server and compares the events, and what it sends.
fn check(input: &[Vec<u8>], events: &[&str], sent: &[&str]) {
    let mut side = Side::server(Settings::default());
    let got = side.receive(&input.concat());
    assert_eq!(got, events);
    assert_eq!(side.sent(), sent);
}

/// A request with these fields must lead to this event.
fn request(fields: &str, event: &str) {
    check_request(Settings::default(), true, fields, event);
}

fn check_request(settings: Settings, end: bool, fields: &str, event: &str) {
    let mut side = Side::server(settings);
    let input = if end { last_headers(1, fields) } else { headers(1, fields) };
    assert_eq!(side.receive(&input), [event], "{fields}");
    // Whatever the head was, the connection goes on with the tables in step.
    let next = side.receive(&last_headers(3, GET));
    assert_eq!(next, ["request 3\nGET https://a/ Http2\nhost: a"]);
}

fn malformed(fields: &str, reason: &str) {
    request(fields, &format!("refused 1 PROTOCOL_ERROR {reason}"));
}

#[test]
fn a_request_and_its_response() {
    let mut side = Side::of(Connection::server(Settings::default()));
    let input = [&PREFACE[..], &settings(&[(setting::INITIAL_WINDOW_SIZE, 100)]), &headers(1, POST)].concat();
    let events = side.receive(&input);
    assert_eq!(events, ["settings", "request 1 Chunked\nPOST https://a/ Http2\nhost: a"]);
    assert_eq!(side.sent(), ["SETTINGS 8=1 4=16384 3=100", "WINDOW_UPDATE 0 2147418112", "SETTINGS ack"]);
    assert_eq!(side.receive(&[data(1, "some "), last_data(1, "body")].concat()), ["data 1 some body", "end 1"]);
    let mut head = status(200);
    head.add(b"Server", b"x");
    let key = side.key(1);
    side.connection.send_response(key, &status(103), Framing::None, false).unwrap();
    side.connection.send_response(key, &head, Framing::Length(120), false).unwrap();
    assert_eq!(side.connection.send_data(key, &[b'x'; 120], true), 100);
    assert_eq!(side.connection.send_data(key, &[b'x'; 20], true), 0);
    assert_eq!(side.receive(&window_update(1, 20)), ["writable 1"]);
    assert_eq!(side.connection.send_data(key, &[b'x'; 20], true), 20);
    assert_eq!(
        side.sent(),
        [
            "HEADERS 1\n:status: 103",
            "HEADERS 1\n:status: 200\nserver: x\ncontent-length: 120",
            &format!("DATA 1 {}", "x".repeat(100)),
            &format!("DATA 1 {} end", "x".repeat(20)),
        ]
    );
    assert!(side.connection.is_closed(key));
    assert_eq!((side.connection.open_streams(), side.connection.held_streams()), (0, 1));
    side.connection.release(key);
    assert_eq!(side.connection.held_streams(), 0);
    assert_eq!(side.sent(), [""; 0]);
}

#[test]
fn requests_become_messages() {
    request(GET, "request 1\nGET https://a/ Http2\nhost: a");
    request(":method: GET\n:scheme: http\n:path: /b?c\nhost: d\nx: y", "request 1\nGET /b?c Http2\nhost: d\nx: y");
}
