//! `tune.h2.*` and other keywords of HTTP/2.

use super::{GlobalRow, INT, Parser, flag, one};
use crate::model::{Global, Http2Side};
use crate::section::table::{Row, Table};

/// 0 leaves the choice to the default.
fn some(n: i64) -> Option<u32> {
    (n > 0).then_some(n as u32)
}

const fn number(name: &'static str, docs: &'static str, set: fn(&mut Global, i64)) -> Row<GlobalRow> {
    one(name, "N", docs, Parser::Integer(0, INT, set))
}

fn back(global: &mut Global) -> &mut Http2Side {
    &mut global.tune.h2.back
}

fn front(global: &mut Global) -> &mut Http2Side {
    &mut global.tune.h2.front
}

/// The keywords.
pub(crate) static KEYWORDS: Table<GlobalRow> = Table::new(&[
    flag(
        "h2-workaround-bogus-websocket-clients",
        "WebSockets over HTTP/2 are not announced to clients, which then use HTTP/1.1 for them.",
        |g| &mut g.tune.h2.no_websocket,
    ),
    one(
        "tune.glitches.kill.cpu-usage",
        "PERCENT",
        "Load of a worker from which on its connections are closed for their glitches, in percent; 0: always.",
        Parser::Integer(0, 100, |g, n| g.tune.h2.glitches_load = n as u32),
    ),
    number(
        "tune.h2.be.glitches-threshold",
        "Glitches after which a server's connection is closed; 0: none.",
        |g, n| back(g).glitches = n as u32,
    ),
    number(
        "tune.h2.be.initial-window-size",
        "Bytes that a server may send on a stream before it has been read; 'tune.h2.initial-window-size' by default.",
        |g, n| back(g).initial_window = some(n),
    ),
    number(
        "tune.h2.be.max-concurrent-streams",
        "Streams of a server's connection; 'tune.h2.max-concurrent-streams' by default.",
        |g, n| back(g).max_streams = some(n),
    ),
    one(
        "tune.h2.be.rxbuf",
        "SIZE",
        "Bytes of the receive buffers of a server's connection; a buffer for each stream by default.",
        Parser::Size(0, 1 << 31, |g, size| back(g).receive_buffers = size),
    ),
    number(
        "tune.h2.fe.glitches-threshold",
        "Glitches after which a client's connection is closed; 0: none.",
        |g, n| front(g).glitches = n as u32,
    ),
    number(
        "tune.h2.fe.initial-window-size",
        "Bytes that a client may send on a stream before it has been read; 'tune.h2.initial-window-size' by default.",
        |g, n| front(g).initial_window = some(n),
    ),
    number(
        "tune.h2.fe.max-concurrent-streams",
        "Streams of a client's connection; 'tune.h2.max-concurrent-streams' by default.",
        |g, n| front(g).max_streams = some(n),
    ),
    number("tune.h2.fe.max-total-streams", "Streams after which a client's connection is closed; 0: none.", |g, n| {
        g.tune.h2.max_total_streams = n as u32
    }),
    one(
        "tune.h2.fe.rxbuf",
        "SIZE",
        "Bytes of the receive buffers of a client's connection; a buffer for each stream by default.",
        Parser::Size(0, 1 << 31, |g, size| front(g).receive_buffers = size),
    ),
    one(
        "tune.h2.header-table-size",
        "N",
        "Bytes of the table of field names and values that peers may use; 4096.",
        Parser::Integer(4096, 65536, |g, n| g.tune.h2.header_table = n as u32),
    ),
    number(
        "tune.h2.initial-window-size",
        "Bytes that a peer may send on a stream before it has been read; a buffer by default.",
        |g, n| g.tune.h2.initial_window = some(n),
    ),
    number("tune.h2.max-concurrent-streams", "Streams of a connection; 100.", |g, n| g.tune.h2.max_streams = n as u32),
    one(
        "tune.h2.max-frame-size",
        "N",
        "Bytes of a frame that peers may send, at most a buffer, which is the default; at least 16384.",
        Parser::Integer(16384, 16_777_215, |g, n| g.tune.h2.max_frame = Some(n as u32)),
    ),
    one(
        "tune.h2.zero-copy-fwd-send",
        "on|off",
        "No effect on data: it tunes HAProxy's forwarding.",
        Parser::OneOf(&["on", "off"], |_, _| ()),
    ),
]);
