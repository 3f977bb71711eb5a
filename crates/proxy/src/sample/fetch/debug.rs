//! `fs.debug_str` and `bs.debug_str`: a side of a stream as a text for those who look for a fault (HAProxy configuration
//! manual 7.3.3).
//!
//! The layers and their numbers are HAProxy's, the fields this program's own. Each begins with a space, as in HAProxy, so
//! that the texts of layers can be put together.

use std::fmt::Write;

use sluicegate_tls::session::Facts;

use super::args::Args;
use super::code::{Compiled, read_with};
use super::connection;
use crate::sample::value::Value;
use crate::stream::{Side, StreamContext, TcpFigure};

const STREAM: i64 = 1;
const CONNECTION_OF_STREAMS: i64 = 2;
const TLS: i64 = 4;
const CONNECTION: i64 = 8;
const SOCKET: i64 = 16;

/// `fs.debug_str([layers])`, `bs.debug_str([layers])`: the layers of a side, by the sum of their numbers; 0: all.
pub(super) fn debug_str(args: &Args<'_>, side: Side) -> Compiled {
    let layers = match args.int(0)?.unwrap_or(0) {
        0 => i64::MAX,
        layers => layers,
    };
    read_with((side, layers), |(side, layers), cx| {
        cx.sockets.is_there(*side).then(|| Value::owned_text(text(*side, *layers, cx).into_bytes()))
    })
}

fn text(side: Side, layers: i64, cx: &StreamContext) -> String {
    let mut out = String::new();
    let asked = |layer| layers & layer != 0;
    let is_client = side == Side::Client;
    let client = cx.client.http2().filter(|_| is_client);
    let server = cx.server_http2.as_ref().filter(|_| !is_client);
    let is_http2 = client.is_some() || server.is_some();
    if asked(STREAM) {
        let (id, reset) = match (client, server) {
            (Some(facts), _) => (cx.stream_id, facts.reset_code(cx.stream_id)),
            (_, Some(facts)) => (facts.id, facts.reset),
            _ => (0, None),
        };
        let bytes = if is_client { cx.log.bytes_uploaded } else { cx.log.bytes_read };
        _ = write!(out, " stream={:#x} id={id} received={bytes} rst=", cx.id);
        _ = match reset {
            Some(code) => write!(out, "{code:#x}"),
            None => write!(out, "-"),
        };
    }
    if asked(CONNECTION_OF_STREAMS) {
        let (streams, limit, glitches) = match (client, server) {
            (Some(facts), _) => (facts.streams(), facts.limit(), facts.glitches()),
            (_, Some(facts)) => (facts.streams, facts.limit, facts.glitches),
            _ => (1, 1, 0),
        };
        let version = if is_http2 { "h2" } else { "h1" };
        _ = write!(out, " mux={version} streams={streams} limit={limit} glitches={glitches}");
    }
    let tls = if is_client { cx.client.tls_facts() } else { cx.server_tls.as_deref() };
    if let Some(facts) = tls.filter(|_| asked(TLS)) {
        _ = write!(out, " tls={} cipher={} resumed={}", Facts::protocol(facts), facts.cipher(), facts.resumed);
    }
    if asked(CONNECTION) {
        let (source, destination) = match is_client {
            true => (connection::own_source(cx), connection::own_destination(cx)),
            false => (connection::server_source(cx), connection::server_destination(cx)),
        };
        for (name, address) in [("src", source), ("dst", destination)] {
            _ = match address {
                Some(address) => write!(out, " {name}={address}"),
                None => write!(out, " {name}=-"),
            };
        }
        if !is_client {
            _ = write!(out, " reused={}", cx.sockets.server_reused().unwrap_or(false));
        }
    }
    if asked(SOCKET) {
        if let Some(fd) = cx.sockets.descriptor(side) {
            _ = write!(out, " fd={fd}");
        }
        for (name, figure) in [
            ("rtt_us", TcpFigure::Rtt),
            ("rttvar_us", TcpFigure::RttVariation),
            ("lost", TcpFigure::Lost),
            ("retrans", TcpFigure::Retransmitted),
            ("unacked", TcpFigure::Unacknowledged),
        ] {
            if let Some(value) = cx.sockets.tcp(side, figure) {
                _ = write!(out, " {name}={value}");
            }
        }
    }
    out
}
