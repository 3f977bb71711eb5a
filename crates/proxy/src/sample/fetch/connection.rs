//! Addresses, and the kernel's data about a connection (HAProxy configuration manual 7.3.3).
//!
//! `src` and `dst` are the addresses of the PROXY protocol header, if there was one, or those that rules set for the
//! stream; `fc_src`, `fc_dst` and their ports are those of the connection. Data of the descriptor (the server's
//! addresses, round trip times) is read from the kernel when it is fetched: one system call, and none without such a
//! fetch.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use sluicegate_config::model::Proto;
use sluicegate_wire::proxy_protocol::tlv;

use super::args::Args;
use super::code::{Compiled, read, read_with};
use crate::proxied::HandshakeError;
use crate::sample::value::Value;
use crate::server::StreamFacts;
use crate::stream::{Side, StreamContext, TcpFigure};

/// Returns the peer of the client's connection.
pub(super) fn source(cx: &StreamContext) -> Option<SocketAddr> {
    cx.source
}

/// Returns the local address of the client's connection.
pub(super) fn destination(cx: &StreamContext) -> Option<SocketAddr> {
    cx.destination
}

/// Returns the peer of the client's connection, ignoring a PROXY protocol header.
pub(super) fn own_source(cx: &StreamContext) -> Option<SocketAddr> {
    cx.client.proxied().map_or(cx.client.ends().0.or(cx.source), |proxied| proxied.peer)
}

/// Returns the local address of the client's connection, ignoring a PROXY protocol header.
pub(super) fn own_destination(cx: &StreamContext) -> Option<SocketAddr> {
    cx.client.proxied().map_or(cx.client.ends().1.or(cx.destination), |proxied| proxied.local)
}

/// Returns the local address of the server's connection.
pub(super) fn server_source(cx: &StreamContext) -> Option<SocketAddr> {
    cx.sockets.server_local()
}

/// Returns the peer of the server's connection.
pub(super) fn server_destination(cx: &StreamContext) -> Option<SocketAddr> {
    cx.sockets.server_peer()
}

/// Returns a fetch of an address without its port.
pub(super) fn ip(of: impl Fn(&StreamContext) -> Option<SocketAddr> + Send + Sync + 'static) -> Compiled {
    read(move |cx| Some(Value::Ip(of(cx)?.ip())))
}

/// Returns a fetch of the port of an address; 0 is none.
pub(super) fn port(of: impl Fn(&StreamContext) -> Option<SocketAddr> + Send + Sync + 'static) -> Compiled {
    read(move |cx| Some(of(cx)?.port()).filter(|port| *port != 0).map(|port| Value::Int(i64::from(port))))
}

/// Returns a fetch of whether an address belongs to this machine.
pub(super) fn local(of: impl Fn(&StreamContext) -> Option<SocketAddr> + Send + Sync + 'static) -> Compiled {
    read(move |cx| Some(Value::Bool(is_local(of(cx)?.ip()))))
}

/// Returns a fetch of one of the kernel's TCP figures.
pub(super) fn tcp(side: Side, figure: TcpFigure) -> Compiled {
    read_with((side, figure), |(side, figure), cx| Some(Value::Int(i64::from(cx.sockets.tcp(*side, *figure)?))))
}

/// Returns a fetch of one of the kernel's TCP times, in milliseconds unless `us` is given.
pub(super) fn tcp_time(args: &Args<'_>, side: Side, figure: TcpFigure) -> Compiled {
    match args.str(0)? {
        Some("us") => tcp(side, figure),
        None | Some("ms") => read_with((side, figure), |(side, figure), cx| {
            Some(Value::Int((i64::from(cx.sockets.tcp(*side, *figure)?) + 500) / 1000))
        }),
        Some(other) => Err(format!("'{other}' is not ms or us")),
    }
}

pub(super) fn bc_reused(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Bool(cx.sockets.server_reused()?)))
}

pub(super) fn fc_http_major(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(if cx.client.http2().is_some() { 2 } else { 1 })))
}

pub(super) fn fc_nb_streams(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(cx.client.http2().map_or(1, |facts| facts.streams().into()))))
}

pub(super) fn fc_streams_limit(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(cx.client.http2().map_or(1, |facts| facts.limit().into()))))
}

pub(super) fn fc_glitches(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(cx.client.http2()?.glitches().into())))
}

pub(super) fn fs_id(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(cx.stream_id.into())))
}

pub(super) fn fs_rst_code(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(cx.client.http2()?.reset_code(cx.stream_id)?.into())))
}

pub(super) fn bc_http_major(_: &Args<'_>) -> Compiled {
    read(|cx| {
        // One that could not be made counts, too.
        let failed = cx.log.server.as_ref().filter(|_| cx.log.ending.phase == b'C');
        let of_http2 = cx.server_http2.is_some() || failed.is_some_and(|server| server.config.proto == Some(Proto::H2));
        let is_there = failed.is_some() || cx.sockets.server_reused().is_some();
        is_there.then_some(Value::Int(if of_http2 { 2 } else { 1 }))
    })
}

/// Returns a fetch of a fact of the stream to the server, which is `otherwise` with HTTP/1.
pub(super) fn of_server(fact: fn(&StreamFacts) -> u32, otherwise: i64) -> Compiled {
    read(move |cx| Some(Value::Int(cx.server_http2.as_ref().map_or(otherwise, |facts| fact(facts).into()))))
}

pub(super) fn bs_rst_code(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(cx.server_http2?.reset?.into())))
}

pub(super) fn bc_glitches(_: &Args<'_>) -> Compiled {
    read(|cx| Some(Value::Int(cx.server_http2?.glitches.into())))
}

pub(super) fn fc_rcvd_proxy(_: &Args<'_>) -> Compiled {
    read(|cx| match cx.refused {
        Some(_) => None,
        None => Some(Value::Bool(cx.client.proxied().is_some_and(|proxied| proxied.tlvs.is_some()))),
    })
}

/// Returns a fetch of a part of the PROXY protocol header.
fn proxied(kind: u8) -> Compiled {
    read_with(kind, |kind, cx| Some(Value::Str(cx.client.proxied()?.tlv(*kind)?.into())))
}

pub(super) fn fc_pp_authority(_: &Args<'_>) -> Compiled {
    proxied(tlv::AUTHORITY)
}

pub(super) fn fc_pp_unique_id(_: &Args<'_>) -> Compiled {
    proxied(tlv::UNIQUE_ID)
}

pub(super) fn fc_pp_tlv(args: &Args<'_>) -> Compiled {
    let kind = args.wanted_int(0)?;
    proxied(u8::try_from(kind).map_err(|_| format!("Invalid TLV Type '{kind}'"))?)
}

// A connection that rules see has no error, but for a client's whose handshake was refused.

pub(super) fn fc_err(_: &Args<'_>) -> Compiled {
    read(|cx| match cx.refused {
        Some(error) => Some(Value::Int(error.number())),
        None => cx.sockets.is_there(Side::Client).then_some(Value::Int(0)),
    })
}

pub(super) fn fc_err_name(_: &Args<'_>) -> Compiled {
    read(|cx| match cx.refused {
        Some(error) => Some(Value::text(error.name().as_bytes())),
        None => cx.sockets.is_there(Side::Client).then_some(Value::text(b"")),
    })
}

pub(super) fn fc_err_str(_: &Args<'_>) -> Compiled {
    read(|cx| match cx.refused {
        Some(error) => Some(Value::Str(error.text().into_bytes().into())),
        None => cx.sockets.is_there(Side::Client).then_some(Value::text(b"Success")),
    })
}

pub(super) fn bc_err(_: &Args<'_>) -> Compiled {
    read(|cx| match server_error(cx) {
        Some(error) => Some(Value::Int(error.number())),
        None => cx.sockets.is_there(Side::Server).then_some(Value::Int(0)),
    })
}

pub(super) fn bc_err_name(_: &Args<'_>) -> Compiled {
    read(|cx| match server_error(cx) {
        Some(error) => Some(Value::text(error.name().as_bytes())),
        None => cx.sockets.is_there(Side::Server).then_some(Value::text(b"")),
    })
}

pub(super) fn bc_err_str(_: &Args<'_>) -> Compiled {
    read(|cx| match server_error(cx) {
        Some(error) => Some(Value::Str(error.text().into_bytes().into())),
        None => cx.sockets.is_there(Side::Server).then_some(Value::text(b"Success")),
    })
}

/// Returns the error of TLS with the server.
fn server_error(cx: &StreamContext) -> Option<HandshakeError> {
    cx.log.server_error.map(|error| HandshakeError::Tls(error.failure))
}

/// Returns whether an address belongs to this machine: whether a socket can be bound to it, which is also HAProxy's
/// method.
fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_local() {
        for (ip, expected) in [("127.0.0.1", true), ("127.9.9.9", true), ("192.0.2.1", false), ("2001:db8::1", false)] {
            assert_eq!(is_local(ip.parse().expect("an address")), expected, "{ip}");
        }
    }
}
