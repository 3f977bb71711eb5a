//! Windows by `tune.h2.*`, as SETTINGS and WINDOW_UPDATE announce them to clients and to servers.

use super::requests::headers;
use super::server::{Server, frame};
use super::*;
use sluicegate_wire::http2::{ErrorCode, Settings};

/// The unit in which receive buffers are shared.
const BUFFER: u32 = 16_384;

/// A value of settings for clients or servers, the initial window that follows, and the credit of the first stream
/// whose body has an unknown length: its share of the receive buffers, without the window that it already has.
const CASES: &[(&str, u32, u32)] = &[
    // A buffer for each of 100 streams; an eighth is kept for the 99 that may still be opened.
    ("", BUFFER, (87 - 1) * BUFFER),
    ("tune.h2.@.max-concurrent-streams 10", BUFFER, (8 - 1) * BUFFER),
    ("tune.h2.@.max-concurrent-streams 10\n tune.h2.@.rxbuf 1m", BUFFER, (62 - 1) * BUFFER),
    ("tune.h2.@.max-concurrent-streams 10\n tune.h2.@.rxbuf 320k", BUFFER, (18 - 1) * BUFFER),
    // A larger window uses several buffers at once.
    ("tune.h2.@.max-concurrent-streams 10\n tune.h2.@.initial-window-size 65536", 65_536, (8 - 1) * 65_536),
    ("tune.h2.@.max-concurrent-streams 10\n tune.h2.initial-window-size 32768", 32_768, (8 - 1) * 32_768),
];

/// Starts a frontend before a server of HTTP/2 with these lines of `global`.
fn proxy(lines: &str, server: &str) -> (Sluicegate, Listening) {
    let gate = Listening::new();
    let text = format!(
        "{}frontend front\n bind {}\n default_backend back\nbackend back\n server s {server}\n",
        DEFAULTS.replacen("global\n", &format!("global\n {lines}\n"), 1),
        gate.word(),
    );
    (start(&text, &[&gate]), gate)
}

/// Returns the initial window of SETTINGS; 65,535 without that setting.
fn initial_window(settings: &[u8]) -> u32 {
    let of = |setting: &[u8]| u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
    settings.chunks_exact(6).find(|setting| setting[..2] == [0, 4]).map_or(65_535, of)
}

#[test]
fn clients_are_told_their_windows() {
    let origin = Origin::echo();
    for (lines, window, credit) in CASES {
        let (_server, gate) = proxy(&lines.replace('@', "fe"), &origin.address());
        let mut client = Client::by_hand(&gate.address());
        // Announced values apply from their acknowledgement on.
        client.until("the settings", |client| !client.settings.is_empty());
        client.raw(&frame(4, 1, b""));
        let post = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "h")];
        client.raw(&headers(1, 4, &post));
        let mut data = frame(0, 0, &[b'x'; 100]);
        data[8] = 1;
        client.raw(&data);
        client.until("credit", |client| client.credit.iter().any(|(stream, _)| *stream == 1));
        assert_eq!(initial_window(&client.settings), *window, "{lines}");
        let found = client.credit.iter().find(|(stream, _)| *stream == 1);
        assert_eq!(found, Some(&(1, *credit)), "{lines}");
    }
}

/// A client that opens no more window is told that its response is not whole, also if all of it has come from the server.
#[test]
fn a_response_that_does_not_fit_a_window_does_not_end() {
    let origin = Origin::start(|mut client| {
        while let Some(request) = Request::read(&mut client) {
            client.send(match request.head.starts_with("GET /chunked ") {
                true => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n14\r\n01234567890123456789\r\n0\r\n\r\n",
                false => "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n01234567890123456789",
            });
        }
    });
    let lines = " timeout client 300ms\n timeout http-request 60s\n http-request deny if { path /deny }";
    for path in ["/length", "/chunked", "/deny"] {
        let (_server, gate) = before(&origin, lines, "");
        let settings = Settings { max_concurrent_streams: 0, initial_window: 10, ..Settings::default() };
        let mut client = Client::with(&gate.address(), settings);
        client.consumes = false;
        let stream = client.begin(&format!("GET {path}\nhost: h"), true);
        client.until("the end", |client| client.seen(stream).is_over());
        let answer = client.seen(stream);
        assert_eq!((answer.body.len(), answer.complete), (10, false), "{path} {answer:?}");
        assert_eq!(answer.reset, Some(ErrorCode::CANCEL), "{path}");
    }
}

/// Settings by their numbers.
type Announced = &'static [(u16, u32)];

/// Lines of `global`, and the settings that clients and servers are sent for them, apart from ENABLE_PUSH.
const SETTINGS: &[(&str, Announced, Announced)] = &[
    ("", &[(8, 1), (4, 16_384), (3, 100)], &[(8, 1), (4, 16_384), (3, 100)]),
    (
        "tune.h2.header-table-size 8192\n tune.h2.fe.max-concurrent-streams 8\n tune.h2.be.max-concurrent-streams 9",
        &[(8, 1), (1, 8192), (4, 16_384), (3, 8)],
        &[(8, 1), (1, 8192), (4, 16_384), (3, 9)],
    ),
    // A frame is as large as a buffer at most.
    ("tune.h2.max-frame-size 20000", &[(8, 1), (4, 16_384), (3, 100)], &[(8, 1), (4, 16_384), (3, 100)]),
    (
        "tune.bufsize 32768\n tune.h2.initial-window-size 70000",
        &[(8, 1), (4, 70_000), (3, 100), (5, 32_768)],
        &[(8, 1), (4, 70_000), (3, 100), (5, 32_768)],
    ),
    (
        "tune.bufsize 32768\n tune.h2.max-frame-size 30000\n tune.h2.max-concurrent-streams 7\n \
         tune.h2.initial-window-size 70000\n h2-workaround-bogus-websocket-clients",
        &[(4, 70_000), (3, 7), (5, 30_000)],
        &[(4, 70_000), (3, 7), (5, 30_000)],
    ),
];

#[test]
fn settings_are_announced() {
    let parsed = |settings: &[u8]| -> Vec<(u16, u32)> {
        let one = |bytes: &[u8]| {
            (u16::from_be_bytes([bytes[0], bytes[1]]), u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]))
        };
        settings.chunks_exact(6).map(one).filter(|(id, _)| *id != 2).collect()
    };
    for (lines, clients, servers) in SETTINGS {
        let server = Server::start();
        let (_proxy, gate) = proxy(lines, &format!("{} proto h2", server.address));
        let mut client = Client::by_hand(&gate.address());
        client.until("the settings", |client| !client.settings.is_empty());
        assert_eq!(parsed(&client.settings), *clients, "{lines}");
        assert_eq!(Client::connect(&gate.address()).get("/").status, 200);
        assert_eq!(parsed(&server.settings.lock().expect("unharmed")[0]), *servers, "{lines}");
    }
}

/// Uploads to a server that opens no window, and answers to a client that opens none: both wait without using the CPU.
#[test]
fn closed_windows_cost_no_time() {
    use std::time::Duration;
    /// The time in which the processes are looked at, and what they may use of it.
    const STALL: Duration = Duration::from_secs(1);
    const MOST: Duration = Duration::from_millis(200);
    // A server whose initial window is 0.
    let server = Server::greeting(&[0, 4, 0, 0, 0, 0]);
    let (back, gate) = proxy("", &format!("{} proto h2", server.address));
    let mut upload = Client::connect(&gate.address());
    for _ in 0..5 {
        let stream = upload.begin("POST /\nhost: h", false);
        upload.data(stream, &[b'x'; 2000], false);
    }
    let origin = Origin::start(|mut client| {
        while Request::read(&mut client).is_some() {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
            client.send(pattern(1_000_000));
        }
    });
    let (front, gate) = proxy("", &origin.address());
    let settings = sluicegate_wire::http2::Settings { initial_window: 0, ..Default::default() };
    let mut download = Client::with(&gate.address(), settings);
    let streams: Vec<_> = (0..5).map(|_| download.begin("GET /\nhost: h", true)).collect();
    for stream in streams {
        assert_eq!(download.head(stream).status, 200);
    }
    // The window of the connection is used up, too.
    let mut other = Client::connect(&gate.address());
    other.consumes = false;
    let stream = other.begin("GET /\nhost: h", true);
    assert_eq!(other.head(stream).status, 200);
    let used = |proxy: &Sluicegate| sluicegate_testkit::cpu_time(proxy.program.pid());
    let before = (used(&back), used(&front));
    std::thread::sleep(STALL);
    let spent = (used(&back) - before.0, used(&front) - before.1);
    assert!(spent.0 < MOST && spent.1 < MOST, "{spent:?} of {STALL:?}");
}

#[test]
fn servers_are_told_their_windows() {
    // A body of an unknown length, whose end does not come.
    let server_of = || Server::answering(vec![frame(1, 4, &[0x88]), frame(0, 0, &[b'x'; 100])]);
    for (lines, window, credit) in CASES {
        let server = server_of();
        let (_proxy, gate) = proxy(&lines.replace('@', "be"), &format!("{} proto h2", server.address));
        let mut client = Plain::connect(&gate.address());
        client.send("GET / HTTP/1.1\r\nhost: h\r\n\r\n");
        assert_eq!(server.wait_for_credit(1), *credit, "{lines}");
        let settings = server.settings.lock().expect("unharmed");
        assert_eq!(initial_window(&settings[0]), *window, "{lines}");
    }
}
