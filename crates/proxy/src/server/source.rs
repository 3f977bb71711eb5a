//! The source address of a connection to a server (`source`).
//!
//! The ports of a range are tried in turn: whether a port is free shows when it is bound or when the connection starts,
//! since the same port may be used for connections to different servers. So there is no list of free ports to keep
//! consistent with the kernel's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

use sluicegate_config::model::{self, ForeignSource, Source};
use sluicegate_wire::http::Message;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpSocket, TcpStream};

use crate::sample::header_values;
use crate::site::Site;
use crate::stream::StreamContext;

/// Ports of a range that one attempt tries.
const TRIES_MAX: u16 = 1024;

/// The start of the next search in a range.
static NEXT: AtomicU16 = AtomicU16::new(0);

/// The address bound before a connection is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local<'a> {
    source: &'a Source,
    /// The result of `usesrc` for a request; checks have none.
    foreign: Option<Option<SocketAddr>>,
}

/// The foreign source of each server of a backend, for one request; empty where no server has one.
pub(super) type Foreign = Vec<Option<SocketAddr>>;

/// A server's source: its own or its backend's.
fn source<'a>(proxy: &'a model::Proxy, server: &'a model::Server) -> Option<&'a Source> {
    server.source.as_ref().or(proxy.source.as_ref())
}

/// Returns whether connections to some server may have a foreign source address.
pub(crate) fn has_foreign_sources(proxy: &model::Proxy) -> bool {
    proxy.servers.iter().any(|server| source(proxy, server).is_some_and(|source| source.foreign.is_some()))
}

/// Returns the foreign source address of a request's connection to each server, if any.
pub(super) fn foreign(proxy: &Site, cx: &StreamContext) -> Foreign {
    // Known beforehand: there may be thousands of servers, and this is asked for each request.
    if !proxy.has_foreign_sources {
        return Foreign::new();
    }
    let proxy = &*proxy.config;
    let of = |server| source(proxy, server)?.foreign.as_ref();
    let find = |foreign: &ForeignSource| match foreign {
        ForeignSource::Client => cx.source,
        ForeignSource::ClientIp => cx.source.map(|source| SocketAddr::new(source.ip(), 0)),
        ForeignSource::Header(name, number) => {
            in_field(&cx.request, name.as_bytes(), *number).map(|ip| SocketAddr::new(ip, 0))
        }
        ForeignSource::Address(address) => Some(*address),
    };
    proxy.servers.iter().map(|server| find(of(server)?)).collect()
}

fn in_field(request: &Message, name: &[u8], number: i32) -> Option<IpAddr> {
    let values: Vec<&[u8]> = header_values(request, name, false).collect();
    let place = match number {
        1.. => number as usize - 1,
        0 => values.len().checked_sub(1)?,
        below => values.len().checked_sub(below.unsigned_abs() as usize)?,
    };
    std::str::from_utf8(values.get(place)?).ok()?.parse().ok()
}

/// Returns the address to which a connection to a server is bound.
pub(crate) fn local<'a>(
    proxy: &'a model::Proxy,
    server: &'a model::Server,
    foreign: Option<SocketAddr>,
) -> Option<Local<'a>> {
    source(proxy, server).map(|source| Local { source, foreign: source.foreign.is_some().then_some(foreign) })
}

/// Returns the address to which a check's connection is bound: that of `source`, ignoring `usesrc`.
pub(super) fn local_of_check<'a>(proxy: &'a model::Proxy, server: &'a model::Server) -> Option<Local<'a>> {
    source(proxy, server).map(|source| Local { source, foreign: None })
}

/// Begins a connection from there.
pub(super) async fn connect(local: &Local<'_>, address: SocketAddr) -> io::Result<TcpStream> {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let Source { address: own, ports, interface, .. } = local.source;
    let (from, first, count) = match local.foreign {
        Some(Some(from)) => (from.ip(), from.port(), 1),
        Some(None) => (any, 0, 1),
        None => {
            let (low, high) = ports.unwrap_or((0, 0));
            (own.unwrap_or(any), low, high - low + 1)
        }
    };
    let start = if count > 1 { NEXT.fetch_add(1, Ordering::Relaxed) % count } else { 0 };
    let mut taken = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
    for step in 0..count.min(TRIES_MAX) {
        let port = first + ((u32::from(start) + u32::from(step)) % u32::from(count)) as u16;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        if local.foreign.is_some() {
            if address.is_ipv4() { socket.set_ip_transparent_v4(true)? } else { socket.set_ip_transparent_v6(true)? }
        }
        if let Some(interface) = interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        // Connections to several servers may share a port.
        socket.set_reuse_address(true)?;
        let begun = async {
            if port != 0 || !from.is_unspecified() {
                socket.bind(&SocketAddr::new(from, port).into())?;
            }
            TcpSocket::from_std_stream(socket.into()).connect(address).await
        };
        match begun.await {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE)) => taken = error,
            result => return result,
        }
    }
    Err(taken)
}
