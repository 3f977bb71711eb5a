//! Messages on a terminal once the process serves: its addresses, and for a file with demo servers commands to try.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use sluicegate_config::Config;
use sluicegate_config::model::{Bind, BindAddress, Mode, Proxy, ProxyKind, ServerAddress, ServerPort};
use sluicegate_proxy::listener::Listener;
use sluicegate_proxy::running::Running;

/// The maximum number of listeners that are listed by name; further ones are only counted.
const NAMED: usize = 32;

/// Returns one line for each listener, and example commands for a configuration with demo servers.
pub fn greeting(running: &Running, bound: &[Arc<Listener>]) -> String {
    let config = &running.config;
    let mut lines = Vec::new();
    for listener in bound {
        let proxy = &listener.proxy.config;
        let kind = if proxy.kind == ProxyKind::Listen { "listen" } else { "frontend" };
        let address = match listener.local {
            Some(_) => listener.address().into_owned(),
            None => proxy.binds.get(listener.bind).and_then(path_of).unwrap_or_else(|| "a unix socket".to_owned()),
        };
        let what = if listener.bind().is_reverse() { "connecting to" } else { "listening on" };
        lines.push(format!("{what} {address} ({kind} {})\n", proxy.name));
    }
    let stores = config.stores.iter().map(|store| ("store", &store.name, &store.binds));
    let origins = config.origins.iter().map(|origin| ("origin", &origin.name, &origin.binds));
    for (kind, name, binds) in stores.chain(origins) {
        for address in binds.iter().flat_map(|bind| &bind.addresses) {
            lines.push(format!("listening on {} ({kind} {name})\n", shown(address)));
        }
    }
    for socket in &config.global.stats_sockets {
        lines.push(format!("listening on {} (stats socket)\n", shown(&socket.address)));
    }
    let more = lines.len().saturating_sub(NAMED);
    let mut text: String = lines.into_iter().take(NAMED).collect();
    if more > 0 {
        let _ = writeln!(text, "and on {more} more");
    }
    if !config.origins.is_empty() {
        let commands = commands(config);
        if !commands.is_empty() {
            text.push_str("Try:\n");
            text.push_str(&commands);
        }
        text.push_str("Ctrl-C ends it.\n");
    }
    text
}

fn path_of(bind: &Bind) -> Option<String> {
    bind.addresses.iter().find(|address| !matches!(address, BindAddress::Inet(..))).map(shown)
}

fn shown(address: &BindAddress) -> String {
    match address {
        BindAddress::Inet(IpAddr::V6(ip), port) => format!("[{ip}]:{port}"),
        BindAddress::Inet(IpAddr::V4(ip), port) => format!("{ip}:{port}"),
        BindAddress::Unix(path) => path.display().to_string(),
        BindAddress::Abstract(_) | BindAddress::Fd(_) | BindAddress::Sockpair(_) | BindAddress::Reverse(_) => {
            address.with_family()
        }
    }
}

/// Returns the host and the port with which a client on this machine reaches a listener.
fn reachable(address: &BindAddress) -> Option<(String, u16)> {
    match address {
        BindAddress::Inet(host, port) if host.is_unspecified() => Some((String::from("127.0.0.1"), *port)),
        BindAddress::Inet(host, port) => Some((host.to_string(), *port)),
        _ => None,
    }
}

/// Returns commands that demonstrate the file's configuration.
fn commands(config: &Config) -> String {
    let mut text = String::new();
    for proxy in config.proxies.iter().filter(|proxy| proxy.mode == Mode::Http && !proxy.disabled) {
        let page = proxy.stats.as_ref().filter(|page| page.users.is_empty()).map(|page| page.uri.clone());
        let paths = leads_to_origin(config, proxy).then(|| "/fast".to_owned()).into_iter().chain(page);
        for path in paths {
            for (host, port) in proxy.binds.iter().flat_map(|bind| &bind.addresses).filter_map(reachable) {
                // An IPv6 address stands in brackets before a port.
                let host = if host.contains(':') { format!("[{host}]") } else { host };
                let _ = writeln!(text, "  curl -i 'http://{host}:{port}{path}'");
            }
        }
    }
    for store in &config.stores {
        let has_password = store.parameters.iter().any(|(name, value, _)| name == "requirepass" && !value.is_empty());
        let asks = if has_password { " --askpass" } else { "" };
        for bind in &store.binds {
            let tls = if bind.tls.is_some() { " --tls" } else { "" };
            for (host, port) in bind.addresses.iter().filter_map(reachable) {
                let host = if host == "127.0.0.1" { String::new() } else { format!(" -h {host}") };
                let _ = writeln!(text, "  redis-cli{host} -p {port}{tls}{asks} --scan");
            }
        }
    }
    for socket in &config.global.stats_sockets {
        if let BindAddress::Unix(path) = &socket.address {
            let _ = writeln!(text, "  echo \"show stat\" | nc -U {}", path.display());
        }
    }
    text
}

/// Returns whether a server behind a frontend is a demo server of this process.
fn leads_to_origin(config: &Config, proxy: &Proxy) -> bool {
    let behind = proxy.default_backend.and_then(|id| config.proxies.get(id.0 as usize));
    let addresses: Vec<_> = config.origins.iter().flat_map(|origin| &origin.binds).flat_map(|b| &b.addresses).collect();
    std::iter::once(proxy).chain(behind).flat_map(|proxy| &proxy.servers).any(|server| {
        addresses.iter().any(|address| match (address, &server.address) {
            (BindAddress::Inet(host, port), ServerAddress::Inet(to, ServerPort::Fixed(at))) => {
                port == at && (host == to || host.is_unspecified())
            }
            (BindAddress::Unix(path), ServerAddress::Unix(to)) => path == to,
            _ => false,
        })
    })
}
