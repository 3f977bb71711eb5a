//! Listening sockets: their creation, their limits, and the accept loop.
//!
//! [`bind`] makes the sockets of every `bind` line through [`Sockets`], before any thread exists: one per worker with
//! `SO_REUSEPORT` if the address allows it, so that the kernel distributes connections, and otherwise one from which
//! all workers accept. The kernel distributes by a hash, and a shared socket not evenly at all; so the accepting worker
//! passes the descriptor to a worker with clearly fewer sessions before it registers it (moving a registered socket
//! would cost 2.6 µs).
//!
//! A session holds a slot of its listener, its frontend and the process, and waits for the frontend's rate limit. Slots
//! are acquired before `accept`, so a limit is exact and excess connections stay in the kernel's backlog. A listener
//! without a slot waits until one is released. Without a descriptor, it closes idle server connections; if there are
//! none, it waits until a session ends, or a tenth of a second.

pub(crate) mod accept;
mod reverse;
mod share;
mod sockets;
mod state;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use parking_lot::Mutex;
use sluicegate_config::model::{Bind, BindAddress, Position};
use socket2::SockRef;

use crate::counters::Figures;
use crate::process::Limit;
use crate::running::{ProxyRun, Running};
use share::Reverse;
use sockets::set_up;
pub use sockets::{ReplacingSockets, Sockets, SystemSockets, Wanted, group_id, user_id};
use state::key_of;
pub use state::{Accepted, DisplayAddress, Listener, Slots};
pub(crate) use state::{name, numbered};

/// HAProxy's backlog of a bind without `backlog`, unless a larger `maxconn` applies.
const DEFAULT_BACKLOG: u32 = 1024;

/// A `bind` address that could not be listened on.
#[derive(Debug)]
pub struct BindError {
    /// The `bind` line.
    pub at: Position,
    /// The section's name.
    pub proxy: Arc<str>,
    /// The address as the user would write it.
    pub address: String,
    /// The system's error.
    pub error: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { file, line, .. } = &self.at;
        write!(f, "{file}:{line}: '{}': cannot bind {} ({})", self.proxy, self.address, reason(&self.error))
    }
}

impl std::error::Error for BindError {}

impl BindError {
    /// Returns an address of a `bind` line that belongs to the section `owner`.
    pub fn new(bind: &Bind, owner: &str, address: &BindAddress, error: io::Error) -> BindError {
        let address = DisplayAddress(address).to_string();
        BindError { at: bind.at.clone(), proxy: owner.into(), address, error }
    }
}

/// Returns the system's text of an error, without Rust's `(os error N)`.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// An address of a section: the index of its `bind` line, its number, and its [identity](Listener::key).
type Keyed<'r> = (usize, &'r BindAddress, u32, Arc<str>);

/// Returns the addresses of every frontend.
pub(crate) fn addresses(running: &Running) -> Vec<(&Arc<ProxyRun>, Vec<Keyed<'_>>)> {
    let mut seen = HashMap::new();
    let mut all = Vec::new();
    for proxy in running.proxies.iter().filter(|proxy| !proxy.config.disabled) {
        let binds = &proxy.config.binds;
        let keyed = numbered(binds).into_iter();
        let keyed = keyed.map(|(index, address, id)| {
            let key = key_of(&binds[index], address, &mut seen);
            // Connections to another place are no continuation.
            let place = reverse_place(running, address);
            (index, address, id, place.map_or(key.clone(), |place| format!("{key} {place}").into()))
        });
        all.push((proxy, keyed.collect()));
    }
    all
}

/// Returns the address of the server of an `rhttp@` address, as a text to compare.
fn reverse_place(running: &Running, address: &BindAddress) -> Option<String> {
    let BindAddress::Reverse(name) = address else { return None };
    let (_, server) = running.server_named(name)?;
    Some(format!("{:?}", server.config.address))
}

/// Returns the figures that a listener of the configuration will have; [`None`] if it is none with figures of its own.
pub(crate) fn left_figures(running: &Running, section: &str, key: &str) -> Option<Arc<Figures>> {
    let is_counted = |proxy: &ProxyRun| proxy.config.options.socket_stats;
    if !running.proxies.iter().any(|proxy| *proxy.config.name == *section && is_counted(proxy)) {
        return None;
    }
    let mut left = running.left_figures.lock();
    if left.is_empty() {
        let new = || Arc::new(Figures::new(running.process.workers.len()));
        let counted = addresses(running).into_iter().filter(|(proxy, _)| is_counted(proxy));
        let keys = counted.flat_map(|(proxy, addresses)| addresses.into_iter().map(move |(.., key)| (proxy, key)));
        *left = keys.map(|(proxy, key)| ((proxy.config.name.as_ref().into(), key.as_ref().into()), new())).collect();
    }
    left.get(&(section.into(), key.into())).cloned()
}

/// Binds every address of every frontend, or returns the failed ones with the reasons. Sockets of the previous snapshot
/// are taken over.
pub fn bind(running: &Running, sockets: &dyn Sockets) -> Result<Vec<Arc<Listener>>, Vec<BindError>> {
    bind_after(running, &[], sockets)
}

/// Like [`bind`], while `before` is listening: the sockets of addresses that both have stay unchanged.
pub fn bind_after(
    running: &Running,
    before: &[Arc<Listener>],
    sockets: &dyn Sockets,
) -> Result<Vec<Arc<Listener>>, Vec<BindError>> {
    let mut bound = Vec::new();
    let mut errors = Vec::new();
    let mut left = std::mem::take(&mut *running.left_figures.lock());
    for (proxy, addresses) in addresses(running) {
        for (index, address, id, key) in addresses {
            let bind = &proxy.config.binds[index];
            let is_open = |listener: &Listener| listener.is_reverse() || !listener.sockets.lock().is_empty();
            let old = before.iter().find(|listener| listener.key == key && is_open(listener));
            let figures = old.and_then(|old| old.figures.clone());
            let figures = figures.or_else(|| left.remove(&(proxy.config.name.as_ref().into(), key.as_ref().into())));
            match bind_address(running, proxy, (index, id, key), address, (old, figures), sockets) {
                Ok(listener) => bound.push(Arc::new(listener)),
                Err(error) => errors.push(BindError::new(bind, &proxy.config.name, address, error)),
            }
        }
    }
    if errors.is_empty() { Ok(bound) } else { Err(errors) }
}

/// Listens on one address of a `bind` line: with a socket for each worker if the address allows it, otherwise with one.
pub fn listen(bind: &Bind, address: &BindAddress, workers: usize, maker: &dyn Sockets) -> io::Result<Vec<OwnedFd>> {
    listen_for(bind, address, bind.backlog.or(bind.maxconn), false, workers, maker)
}

/// Like [`listen`], on an exclusive address ([`Wanted::exclusive`]).
pub fn claim(bind: &Bind, address: &BindAddress, workers: usize, maker: &dyn Sockets) -> io::Result<Vec<OwnedFd>> {
    listen_for(bind, address, bind.backlog.or(bind.maxconn), true, workers, maker)
}

fn listen_for(
    bind: &Bind,
    address: &BindAddress,
    backlog: Option<u32>,
    exclusive: bool,
    workers: usize,
    maker: &dyn Sockets,
) -> io::Result<Vec<OwnedFd>> {
    let mut wanted = Wanted {
        address,
        backlog: backlog.unwrap_or(DEFAULT_BACKLOG),
        datagram: bind.datagram,
        v6only: bind.v6only,
        transparent: bind.tcp.transparent,
        multipath: bind.tcp.multipath,
        namespace: bind.tcp.namespace.as_ref().map(|namespace| &*namespace.name),
        shared: bind.tcp.shares_port,
        exclusive,
        mode: bind.mode,
        user: bind.user.as_deref(),
        group: bind.group.as_deref(),
    };
    let first = maker.listen(wanted)?;
    let local = SockRef::from(&first).local_addr()?.as_socket();
    let mut sockets = vec![first];
    // If the port is 0, the first socket has determined the port.
    let decided;
    if let (BindAddress::Inet(host, _), Some(local)) = (address, local) {
        decided = BindAddress::Inet(*host, local.port());
        wanted.address = &decided;
        wanted.exclusive = false;
        let others = if wanted.shared { workers.saturating_sub(1) } else { 0 };
        for _ in 0..others {
            sockets.push(maker.listen(wanted)?);
        }
    }
    // As in HAProxy, options of a socket have no effect on one that only passes connections.
    if !matches!(address, BindAddress::Sockpair(_)) {
        for socket in &sockets {
            set_up(socket, bind, wanted.backlog)?;
        }
    }
    Ok(sockets)
}

fn bind_address(
    running: &Running,
    proxy: &Arc<ProxyRun>,
    (index, id, key): (usize, u32, Arc<str>),
    address: &BindAddress,
    (old, known): (Option<&Arc<Listener>>, Option<Arc<Figures>>),
    maker: &dyn Sockets,
) -> io::Result<Listener> {
    let bind = &proxy.config.binds[index];
    let backlog = bind.backlog.or(proxy.config.backlog).or(bind.maxconn).or(proxy.config.maxconn);
    let reverse = old.and_then(|old| old.reverse.as_ref());
    let workers = running.process.workers.len();
    let reverse = Reverse::of(address, bind.reverse_connections, workers, id, reverse);
    let sockets = match old {
        _ if reverse.is_some() => Vec::new(),
        Some(old) => old.sockets(),
        None => listen_for(bind, address, backlog, false, workers, maker)?.into_iter().map(Arc::new).collect(),
    };
    let local = match sockets.first() {
        Some(socket) => SockRef::from(&**socket).local_addr()?.as_socket(),
        None => None,
    };
    let sessions = || match &reverse {
        Some(_) => Arc::new(Limit::new(Some(bind.reverse_connections))),
        None => old.map_or_else(|| Arc::new(Limit::new(bind.maxconn)), |old| old.sessions.clone()),
    };
    let new = || Arc::new(Figures::new(running.process.workers.len()));
    let figures = proxy.config.options.socket_stats.then(|| known.unwrap_or_else(new));
    Ok(Listener {
        proxy: proxy.site.clone(),
        process: running.process.clone(),
        bind: index,
        id,
        key,
        generation: running.generation,
        sessions: sessions(),
        figures,
        waiting: AtomicU32::new(0),
        sockets: Mutex::new(sockets),
        removed: AtomicBool::new(false),
        local,
        is_tcp: local.is_some() && !bind.datagram,
        is_passed: matches!(address, BindAddress::Sockpair(_)),
        backlog: backlog.unwrap_or(DEFAULT_BACKLOG).min(i32::MAX as u32) as i32,
        putting_aside: Mutex::new(()),
        reverse,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_is_said_in_the_systems_words() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = BindAddress::Inet(taken.local_addr().unwrap().ip(), taken.local_addr().unwrap().port());
        let error = SystemSockets.listen(Wanted::plain(&address)).unwrap_err();
        let at = Position { file: "a.cfg".into(), line: 7, column: 5 };
        let text = BindError { at, proxy: "www".into(), address: DisplayAddress(&address).to_string(), error };
        let expected = format!("a.cfg:7: 'www': cannot bind {} (Address already in use)", taken.local_addr().unwrap());
        assert_eq!(text.to_string(), expected);
    }
}
