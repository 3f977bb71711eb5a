//! The engines of a service: clients of Redis in other processes, by the name of their sections.
//!
//! A client survives a reload that does not change its section, with its connections and counters; a changed section
//! gets a new one, and the old one's connections are closed when no reply is pending any more.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use sluicegate_client::{Address, Auth, Client, Mode, Names, Options, Tls, TlsOptions};
use sluicegate_config::model::{EngineAddress, EngineMode, EngineServer, EngineTls, RedisSection};
use sluicegate_config::{Config, Diagnostics};
use sluicegate_proxy::engines::Engines;
use sluicegate_wire::engine::Engine;

type ByName = HashMap<Arc<str>, Arc<Client>>;

/// Every engine, by the name of its section.
#[derive(Default)]
pub struct Clients(Mutex<ByName>);

impl Clients {
    /// Returns the engines of a configuration; engines in `self` that it does not change are reused. `names` is the
    /// result of [`look_up`].
    pub fn after(&self, config: &Config, names: &Names) -> Result<Clients, String> {
        let known = self.0.lock();
        let client = |section: &RedisSection| {
            let options = options(section, names).map_err(|error| format!("redis '{}': {error}", section.name))?;
            let same = known.get(&section.name).filter(|client| *client.options() == options);
            let client = same.cloned().unwrap_or_else(|| Arc::new(Client::new(options)));
            Ok((section.name.clone(), client))
        };
        let clients: Result<ByName, String> = config.engines.iter().map(client).collect();
        Ok(Clients(Mutex::new(clients?)))
    }

    /// Replaces the engines by `next`.
    pub fn replace(&self, next: Clients) {
        *self.0.lock() = next.0.into_inner();
    }

    /// Returns the engines for rules and scripts.
    pub fn engines(&self) -> Engines {
        self.0.lock().iter().map(|(name, client)| (name.clone(), client.clone() as Arc<dyn Engine>)).collect()
    }
}

/// Resolves the addresses of the engines' names, if the process will be unable to do so later. An unknown name is not
/// an error: its engine is then unreachable. Blocks.
pub fn look_up(config: &Config) -> Names {
    let mut names = Names::new();
    if config.global.chroot.is_none() {
        return names;
    }
    for server in config.engines.iter().flat_map(|section| &section.servers) {
        if let EngineAddress::Tcp(host, _) = &server.address
            && host.parse::<IpAddr>().is_err()
            && !names.contains_key(host)
            && let Ok(found) = address(server).resolve()
        {
            names.insert(host.clone(), found.iter().map(SocketAddr::ip).collect());
        }
    }
    names
}

fn address(server: &EngineServer) -> Address {
    match &server.address {
        EngineAddress::Tcp(host, port) => Address::Tcp(host.clone(), *port),
        EngineAddress::Unix(path) => Address::Unix(path.clone()),
    }
}

/// Reports errors in certificates and keys of engines with `ssl`.
pub fn check(config: &Config, diagnostics: &mut Diagnostics) {
    for section in &config.engines {
        if let Some(tls) = &section.tls
            && let Err(error) = Tls::new(tls_options(tls))
        {
            diagnostics.error(tls.at.clone(), format!("redis '{}': {error}", section.name));
        }
    }
}

fn known(server: &Address, names: &Names) -> Option<(String, Vec<IpAddr>)> {
    let Address::Tcp(host, _) = server else { return None };
    Some((host.clone(), names.get(host)?.clone()))
}

fn tls_options(tls: &EngineTls) -> TlsOptions {
    let EngineTls { authorities, certificate, name, .. } = tls.clone();
    TlsOptions { authorities, certificate, name }
}

fn options(section: &RedisSection, names: &Names) -> Result<Options, String> {
    let auth = |auth: &Option<(Option<String>, String)>| auth.clone().map(|(user, password)| Auth { user, password });
    let servers: Vec<Address> = section.servers.iter().map(address).collect();
    let of = Options::new(&section.name, servers[0].clone());
    let some = |time: Option<std::time::Duration>, default: Option<std::time::Duration>| match time {
        Some(time) => Some(time).filter(|time| !time.is_zero()),
        None => default,
    };
    Ok(Options {
        mode: match &section.mode {
            EngineMode::Single => Mode::Single,
            EngineMode::Sentinel { master, auth: of, from_replicas } => {
                Mode::Sentinel { master: master.clone(), auth: auth(of), from_replicas: *from_replicas }
            }
            EngineMode::Cluster { from_replicas } => Mode::Cluster { from_replicas: *from_replicas },
        },
        // Only the section's own names, so that changes of other sections do not affect this client.
        names: servers.iter().filter_map(|server| known(server, names)).collect(),
        servers,
        auth: auth(&section.auth),
        tls: section.tls.as_ref().map(|tls| Tls::new(tls_options(tls))).transpose()?,
        db: section.db,
        maxconn: section.maxconn.map_or(of.maxconn, |count| count as usize),
        maxqueue: section.maxqueue.map_or(of.maxqueue, |count| count as usize),
        timeout_connect: section.timeout_connect.unwrap_or(of.timeout_connect),
        timeout_queue: section.timeout_queue.unwrap_or(of.timeout_queue),
        timeout_server: section.timeout_server.unwrap_or(of.timeout_server),
        timeout_idle: some(section.timeout_idle, of.timeout_idle),
        max_lifetime: some(section.max_lifetime, of.max_lifetime),
        connect_rate: section.connect_rate.unwrap_or(of.connect_rate),
        breaker: section.breaker.unwrap_or(of.breaker),
        client_cache: section.client_cache.map_or(of.client_cache, |bytes| bytes as usize),
        ..of
    })
}
