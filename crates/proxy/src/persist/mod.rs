//! Persistence: the server that a request selects by cookie, by stick table or by rule.
//!
//! The first mechanism that finds a server records its index in [`Persistence`], in HAProxy's order: `use-server`, the
//! cookie, `stick`. The assignment then uses that server and waits in its queue; if that is full and the server is not
//! forced, the balancer chooses. A server that is down is used only with `option persist` or `force-persist`.

mod cacheable;
mod cookie;
mod wish;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use sluicegate_config::model::{self, DataKind};

use crate::sample::Sample;
use crate::server::ServerRun;
use crate::site::Site;
use crate::stick::{Key, Table};
use crate::stream::StreamContext;

pub use cookie::fuzz_cookies;
pub(crate) use cookie::{at_backend, request as request_cookie, response as response_cookie};
pub use wish::Persistence;
use wish::Store;

/// Entries that one stream may store its server in.
const STORES_MAX: usize = 8;

/// Returns whether a server's response sets a cookie that caches would keep.
pub(crate) fn has_cacheable_cookie(cx: &StreamContext) -> bool {
    cx.response.first(b"set-cookie").is_some() && {
        let kept = cacheable::kept(cx);
        kept.response && kept.cookie
    }
}

/// Returns whether the persistence cookie, which was added, has made the response private.
pub(crate) fn made_private(cx: &StreamContext, backend: &Site) -> bool {
    backend.config.cookie.as_ref().is_some_and(|cookie| cookie.nocache)
        && matches!(cx.persistence.letters.1, b'I' | b'U')
}

/// Returns whether a request may select a server.
fn is_usable(backend: &Site, server: &ServerRun, forced: bool) -> bool {
    forced || backend.config.options.persist || server.shared.status().is_running()
}

/// Asks for a server unless another one was asked for; `false`: it is down.
pub(crate) fn ask_for(index: usize, cx: &mut StreamContext) -> bool {
    let Some(backend) = cx.backend.clone() else { return false };
    let usable = backend.servers.get(index).is_some_and(|server| is_usable(&backend, server, cx.persistence.forced));
    if usable {
        cx.persistence.server.get_or_insert(index);
    }
    usable
}

/// Asks for a server by a computed name; `false`: it is down. A name that nothing has leaves the choice to others.
pub(crate) fn ask_for_named(name: &[u8], cx: &mut StreamContext) -> bool {
    let mut servers = cx.backend.iter().flat_map(|backend| &backend.servers);
    let index = servers.position(|server| server.name().as_bytes() == name);
    index.is_none_or(|index| ask_for(index, cx))
}

/// The server whose address and port a cookie has, as Microsoft's session directory writes them: `ADDRESS.PORT.0000`, each
/// the decimal number of its bytes in network order, read on a little-endian machine.
pub(crate) fn rdp_cookie(value: &[u8], cx: &mut StreamContext) {
    let number = |text: Option<&str>| text?.parse::<u32>().ok();
    let Ok(text) = std::str::from_utf8(value) else { return };
    let mut parts = text.splitn(3, '.');
    let (Some(ip), Some(port), Some(_)) = (number(parts.next()), number(parts.next()), parts.next()) else { return };
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip.to_le_bytes())), (port as u16).swap_bytes());
    let mut servers = cx.backend.iter().flat_map(|backend| &backend.servers);
    if let Some(index) = servers.position(|server| server.socket_addr(None) == Some(address)) {
        ask_for(index, cx);
    }
}

/// A `stick` rule whose condition holds.
pub(crate) fn stick(table: &Arc<Table>, rule: &StickCode, sample: &Sample, cx: &mut StreamContext) {
    let stores = &cx.persistence.stores;
    // The first rule that stores in a table is the one that does.
    if rule.stores && stores.iter().any(|store| store.response == rule.response && Arc::ptr_eq(&store.table, table)) {
        return;
    }
    let Some(key) = Key::new(table.key, &sample.as_value()) else { return };
    if rule.matches {
        let found = table.change_known(&key, |row| {
            (row.get(DataKind::ServerKey, 0).unwrap_or(0), row.get(DataKind::ServerId, 0).unwrap_or(0))
        });
        if let (Some((name, id)), None) = (found, cx.persistence.server) {
            let named = table.name_of(name);
            let is_named = |server: &ServerRun| match &named {
                Some(name) if table.by_address => address(server).as_deref() == Some(name),
                Some(name) => server.name() == name,
                None => false,
            };
            // Another backend that shares the table may have no server of the name, but one of the id.
            let has_id = |server: &ServerRun| id != 0 && u64::from(server.config.sid) == id;
            let mut servers = cx.backend.iter().flat_map(|backend| &backend.servers);
            let by_name = servers.clone().position(|server| is_named(server));
            if let Some(index) = by_name.or_else(|| servers.position(|server| has_id(server))) {
                ask_for(index, cx);
            }
        }
    }
    if rule.stores && cx.persistence.stores.len() < STORES_MAX {
        cx.persistence.stores.push(Store { table: table.clone(), key, response: rule.response });
    }
}

/// Returns a server's identity in a table of `srvkey addr`.
fn address(server: &ServerRun) -> Option<Arc<str>> {
    server.socket_addr(None).map(|address| address.to_string().into())
}

/// A compiled `stick` rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StickCode {
    pub(crate) matches: bool,
    pub(crate) stores: bool,
    pub(crate) response: bool,
}

/// Stores the server that answers, where rules said so.
pub(crate) fn store(cx: &mut StreamContext) {
    let Some(server) = &cx.log.server else { return };
    for Store { table, key, .. } in cx.persistence.stores.drain(..) {
        if server.config.non_stick {
            continue;
        }
        let name = match table.by_address {
            true => address(server).map_or(0, |address| table.name_number(&address)),
            false => table.name_number(server.name()),
        };
        table.change(&key, |row| {
            row.set(DataKind::ServerId, 0, u64::from(server.config.sid));
            row.set(DataKind::ServerKey, 0, u64::from(name));
        });
    }
}

/// Returns the value of the cookie that the file gives each server of a backend.
pub(crate) fn cookie_values(config: &model::Proxy) -> Vec<Option<Arc<str>>> {
    config.servers.iter().map(|server| server.cookie.as_deref().map(Arc::from)).collect()
}

impl Site {
    /// Returns a server's value in the persistence cookie.
    pub(crate) fn cookie_of(&self, index: usize) -> Option<Arc<str>> {
        let own = self.cookies.get(index)?.clone();
        own.or_else(|| self.backend.cookies.value(self.servers.get(index)?))
    }

    /// Returns the servers that a cookie of this value names.
    fn named_by_cookie<'a>(&'a self, value: &'a [u8]) -> impl Iterator<Item = (usize, &'a Arc<ServerRun>)> {
        self.servers.iter().enumerate().filter(move |(index, server)| match &self.cookies[*index] {
            Some(own) => own.as_bytes() == value,
            None => self.backend.cookies.value(server).is_some_and(|made| made.as_bytes() == value),
        })
    }
}
