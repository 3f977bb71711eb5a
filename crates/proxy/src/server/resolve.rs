//! Names of servers, resolved once at start, before any worker runs.
//!
//! The system's resolver may block for seconds, so this is called from the main thread while the process starts; all
//! failures are reported together, each with the line it comes from. The ways of `init-addr` are tried in turn; of the
//! resolver's answers the first address is taken, as HAProxy does.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::time::Instant;

use sluicegate_config::Config;
use sluicegate_config::model::{InitAddr, Position, Proxy, Server, ServerAddress};

use crate::running::Running;
use crate::server::{Operation, ServerRun};

/// The error for a server whose name has no address.
#[derive(Debug)]
pub struct ResolveError {
    /// The position of the server.
    pub at: Position,
    /// `backend/server`.
    pub server: String,
    /// The name.
    pub name: String,
    /// The resolver's error; `None`: an answer without an address.
    pub source: Option<io::Error>,
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ResolveError { at, server, name, source } = self;
        write!(f, "{}:{}: server {server}: could not resolve address '{name}'", at.file, at.line)?;
        match source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ResolveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// Resolves the names of all servers of `running`. Blocks. A server without an address is in maintenance; whether the
/// process starts with it (`-dr`) is the caller's decision. `last` are addresses of state files by `backend/server`.
pub fn resolve_names(running: &Running, last: &HashMap<String, IpAddr>) -> Result<(), Vec<ResolveError>> {
    let mut errors = Vec::new();
    for proxy in &running.proxies {
        for server in &proxy.servers {
            match address(&proxy.config, &server.config, server.shared.target().as_deref(), last) {
                // A second start of the same snapshot keeps the first answer.
                Ok(Found::Address(address)) => drop(server.resolved.set(address)),
                Ok(Found::NoName) => {}
                Ok(Found::Later) => wait(server),
                Err(error) => {
                    wait(server);
                    errors.push(error);
                }
            }
            server.rekey();
        }
    }
    for target in running.rings.iter().filter(|target| target.server.resolved.get().is_none()) {
        match address(&target.site.config, &target.server.config, None, &HashMap::new()) {
            Ok(Found::Address(address)) => drop(target.server.resolved.set(address)),
            Ok(Found::NoName | Found::Later) => {}
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Returns the key of a ring's server among the addresses of names.
fn ring_key(ring: &str, server: &str) -> String {
    format!("ring@{ring}/{server}")
}

/// Returns the addresses of all names of servers of a configuration, by `backend/server`, and the servers whose names
/// have none. Blocks.
pub fn addresses(config: &Config) -> (HashMap<String, IpAddr>, Vec<ResolveError>) {
    let (mut known, mut errors) = (HashMap::new(), Vec::new());
    for (proxy, server) in
        config.proxies.iter().flat_map(|proxy| proxy.servers.iter().map(move |server| (proxy, server)))
    {
        match address(proxy, server, None, &HashMap::new()) {
            Ok(Found::Address(address)) => drop(known.insert(format!("{}/{}", proxy.name, server.name), address)),
            Ok(Found::NoName | Found::Later) => {}
            Err(error) => errors.push(error),
        }
    }
    for (proxy, server) in
        config.rings.iter().flat_map(|ring| ring.proxy.servers.iter().map(|server| (&ring.proxy, server)))
    {
        match address(proxy, server, None, &HashMap::new()) {
            Ok(Found::Address(address)) => drop(known.insert(ring_key(&proxy.name, &server.name), address)),
            Ok(Found::NoName | Found::Later) => {}
            Err(error) => errors.push(error),
        }
    }
    (known, errors)
}

/// Like [`resolve_names`], with addresses already looked up.
pub fn take_addresses(running: &Running, known: &HashMap<String, IpAddr>) {
    for proxy in &running.proxies {
        for server in proxy.servers.iter().filter(|server| matches!(server.config.address, ServerAddress::Name(..))) {
            match known.get(&format!("{}/{}", proxy.config.name, server.config.name)) {
                Some(address) => drop(server.resolved.set(*address)),
                // A server that got an address at run time keeps it.
                None if server.shared.moved().ip.is_some() => {}
                None => wait(server),
            }
            server.rekey();
        }
    }
    for target in &running.rings {
        if let Some(address) = known.get(&ring_key(&target.site.config.name, target.server.name())) {
            // One that is kept from the previous snapshot has its address.
            let _ = target.server.resolved.set(*address);
        }
    }
}

/// Copies the resolved addresses of an older snapshot's servers to the servers of the same name in a new one. The host
/// names must be the same in both.
pub(crate) fn keep_addresses(next: &Running, old: &Running) {
    for proxy in &next.proxies {
        let Some(before) = old.proxy(&proxy.config.name, proxy.config.kind) else { continue };
        let known: HashMap<_, _> =
            before.servers.iter().filter_map(|server| Some((server.name(), *server.resolved.get()?))).collect();
        for server in &proxy.servers {
            if let Some(address) = known.get(server.name()) {
                // The server is new, so no address is set yet.
                let _ = server.resolved.set(*address);
                server.rekey();
            }
        }
    }
}

/// Puts a server without an address into maintenance.
fn wait(server: &ServerRun) {
    server.backend.update(server.shared.index, Instant::now(), |status| {
        status.unresolved = true;
        status.times_down += u64::from(status.operation != Operation::Stopped);
        status.operation = Operation::Stopped;
        status.health.level = 0;
        status.unchecked_level = 0;
    });
}

/// Returns the servers of a configuration, of rings too, whose names have no address, for a check. Blocks.
pub fn unresolvable(config: &Config) -> Vec<ResolveError> {
    addresses(config).1
}

/// The result of resolving a server's name.
enum Found {
    /// The server's address is not a name.
    NoName,
    Address(IpAddr),
    /// The server starts without an address (`init-addr none`).
    Later,
}

/// Returns the first address of a server's name, by the methods of `init-addr` in turn; for a service it is that of the
/// record's `target`, if a state file has one.
fn address(
    proxy: &Proxy,
    server: &Server,
    target: Option<&str>,
    last: &HashMap<String, IpAddr>,
) -> Result<Found, ResolveError> {
    let ServerAddress::Name(name, _) = &server.address else { return Ok(Found::NoName) };
    let mut name = name.as_str();
    if name.starts_with('_') && server.resolve.is_some() {
        // Services have no address; their records' targets do.
        let Some(target) = target else { return Ok(Found::Later) };
        name = target;
    }
    let mut source = None;
    for way in &server.init_addr {
        match way {
            InitAddr::Last => {
                if let Some(address) = last.get(&format!("{}/{}", proxy.name, server.name)) {
                    return Ok(Found::Address(*address));
                }
            }
            InitAddr::None => return Ok(Found::Later),
            InitAddr::Ip(address) => return Ok(Found::Address(*address)),
            InitAddr::Libc => match (name, 0).to_socket_addrs().map(|mut addresses| addresses.next()) {
                Ok(Some(address)) => return Ok(Found::Address(address.ip())),
                Ok(None) => {}
                Err(error) => source = Some(error),
            },
        }
    }
    Err(ResolveError {
        at: server.at.clone(),
        server: format!("{}/{}", proxy.name, server.name),
        name: name.to_owned(),
        source,
    })
}
