//! Windows by `tune.h2.*`, as SETTINGS and WINDOW_UPDATE announce them to clients and to servers.

use super::requests::headers;
use super::server::{Server, frame};
use super::*;

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
