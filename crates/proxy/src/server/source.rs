//! The source address of a connection to a server (`source`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sluicegate_config::model::{self, ForeignSource, Source};
use sluicegate_transport::LocalEnd;
use sluicegate_wire::http::Message;

use crate::sample::header_values;
use crate::site::Site;
use crate::stream::StreamContext;

/// The address bound before a connection is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local<'a> {
    source: &'a Source,
    /// The result of `usesrc` for a request; checks have none.
    foreign: Option<Option<SocketAddr>>,
}

/// The foreign source of each server of a backend, for one request; empty where no server has one.
pub(super) type Foreign = Vec<Option<SocketAddr>>;

/// Returns a server's source: its own or its backend's.
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

/// Returns the address to which a connection without a client, such as a check's, is bound: that of `source`, ignoring
/// `usesrc`.
pub(crate) fn local_of_check<'a>(proxy: &'a model::Proxy, server: &'a model::Server) -> Option<Local<'a>> {
    source(proxy, server).map(|source| Local { source, foreign: None })
}

impl Local<'_> {
    /// Returns the local end of a connection to an address.
    pub(super) fn end(&self, address: SocketAddr) -> LocalEnd<'_> {
        let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let Source { address: own, ports, interface, .. } = self.source;
        let (ip, first_port, ports) = match self.foreign {
            Some(Some(from)) => (from.ip(), from.port(), 1),
            Some(None) => (any, 0, 1),
            None => {
                let (low, high) = ports.unwrap_or((0, 0));
                (own.unwrap_or(any), low, high - low + 1)
            }
        };
        let is_transparent = self.foreign.is_some();
        LocalEnd { ip, first_port, ports, interface: interface.as_deref(), is_transparent }
    }
}
