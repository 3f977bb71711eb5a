//! Glitches that end a connection, by `tune.h2.{be,fe}.glitches-threshold` and `tune.glitches.kill.cpu-usage`. The
//! figures are those of HAProxy 3.2.0.

use std::sync::atomic::Ordering;

use sluicegate_wire::http2::ErrorCode;

use super::requests::frame;
use super::server::{Server, frame as answer};
use super::*;

/// Settings whose windows grow and shrink: a glitch each.
fn shrinking() -> [Vec<u8>; 2] {
    [[0, 4, 0, 0, 0xff, 0xff], [0, 4, 0, 0, 0xff, 0xfe]].map(|setting| answer(4, 0, &setting))
}

#[test]
fn servers_lose_their_connection() {
    // The lines of the `global` section, the glitches that the responses report, and the number of connections.
    for (tune, glitches, connections) in [
        ("", [1, 2, 3, 4, 5, 6], 1),
        ("tune.h2.fe.glitches-threshold 2", [1, 2, 3, 4, 5, 6], 1),
        ("tune.h2.be.glitches-threshold 4", [1, 2, 3, 1, 2, 3], 2),
        ("tune.h2.be.glitches-threshold 2", [1; 6], 6),
        ("tune.h2.be.glitches-threshold 2\n tune.glitches.kill.cpu-usage 0", [1; 6], 6),
        ("tune.h2.be.glitches-threshold 2\n tune.glitches.kill.cpu-usage 100", [1, 2, 3, 4, 5, 6], 1),
    ] {
        let [grown, shrunk] = shrinking();
        let server = Server::answering(vec![grown, shrunk, answer(1, 5, &[0x88])]);
        let gate = Listening::new();
        let text = format!(
            "{}listen l\n bind {}\n http-reuse always\n http-response set-header x-glitches %[bc_glitches]\n server s {} \
             proto h2\n",
            DEFAULTS.replacen("global\n", &format!("global\n {tune}\n"), 1),
            gate.word(),
            server.address
        );
        let _proxy = start(&text, &[&gate]);
        let mut client = Plain::connect(&gate.address());
        // A request whose connection ends is repeated on another one.
        let seen = [(); 6].map(|()| client.get("/").header("x-glitches").and_then(|count| count.parse().ok()));
        assert_eq!(seen, glitches.map(Some), "{tune}");
        assert_eq!(server.connections.load(Ordering::SeqCst), connections, "{tune}");
    }
}

#[test]
fn clients_lose_their_connection_while_the_processor_is_busy() {
    for (usage, code) in [(0, ErrorCode::ENHANCE_YOUR_CALM), (100, ErrorCode::NO_ERROR)] {
        let gate = Listening::new();
        let tune = format!("global\n tune.h2.fe.glitches-threshold 4\n tune.glitches.kill.cpu-usage {usage}\n");
        let text = format!("{}frontend f\n bind {} proto h2\n", DEFAULTS.replacen("global\n", &tune, 1), gate.word());
        let _proxy = start(&text, &[&gate]);
        let mut client = Client::by_hand(&gate.address());
        let bytes = [shrinking().concat().repeat(10), frame(6, 0, 0, b"the last")].concat();
        client.raw(&bytes);
        match usage {
            0 => client.until_closed(),
            _ => client.until("an answer", |client| client.pongs == 1),
        }
        // At three quarters of the limit the client is asked to open another connection.
        assert_eq!((client.pongs, client.goaway.map(|(_, code)| code)), (usize::from(usage == 100), Some(code)));
    }
}
