//! Backends of log messages (`mode log`; HAProxy configuration manual 4, `mode`), and the `log` lines that name them.
//!
//! A server of such a backend is a datagram socket, or has a ring of its own from which a stream is fed.

use std::sync::Arc;

use super::ring;
use crate::diagnostic::Diagnostics;
use crate::model::{
    Balance, Config, HashKey, LogAddress, Mode, Position, Proxy, ProxyId, ProxyKind, Ring, ServerAddress, ServerPort,
};

/// Finds the backends that `log` lines name.
pub(crate) fn resolve(config: &mut Config, diagnostics: &mut Diagnostics) {
    let backends = config.proxies.iter().filter(|proxy| proxy.kind != ProxyKind::Frontend);
    let backends: Vec<(Arc<str>, bool)> = backends.map(|proxy| (proxy.name.clone(), proxy.mode == Mode::Log)).collect();
    let owners = config.proxies.iter_mut().flat_map(Proxy::log_lists).map(|(owner, targets)| (Some(owner), targets));
    for (owner, targets) in [(None, &mut config.global.log)].into_iter().chain(owners) {
        for target in targets {
            let LogAddress::Backend(name) = &target.to else { continue };
            let what = match backends.iter().find(|(known, _)| known == name) {
                None => "unknown",
                Some((_, false)) => "incompatible",
                Some(_) => continue,
            };
            let near = backends.iter().filter(|(_, takes_messages)| *takes_messages).map(|(name, _)| &**name);
            let what = format!("{what} log backend '{name}'");
            ring::complain(owner.as_deref(), target, (&what, name), near, diagnostics);
        }
    }
}

/// Checks the backends, and that no other section has their servers.
pub(crate) fn check(config: &mut Config, diagnostics: &mut Diagnostics) {
    for proxy in config.proxies.iter_mut().filter(|proxy| !proxy.disabled) {
        if proxy.is_log_backend() {
            backend(proxy, diagnostics);
        } else {
            streams_only(proxy, diagnostics);
        }
    }
}

/// Checks a backend, and drops what HAProxy ignores with a warning.
fn backend(proxy: &mut Proxy, diagnostics: &mut Diagnostics) {
    let (kind, name, at) = (proxy.kind.word(), proxy.name.clone(), proxy.at.clone());
    let place = format!("with 'mode log' in {kind} '{name}'");
    let mut ignored = |what: &str, many: bool| {
        let they = if many { "They" } else { "It" };
        diagnostics.warning(at.clone(), format!("Cannot {what} {place}. {they} will be ignored."));
    };
    let early = [&mut proxy.tcp_request_connection, &mut proxy.tcp_request_session, &mut proxy.tcp_request_content];
    if early.iter().any(|rules| !rules.is_empty()) {
        ignored("use tcp-request rules", true);
        early.into_iter().for_each(Vec::clear);
    }
    if !std::mem::take(&mut proxy.tcp_response_content).is_empty() {
        ignored("use tcp-response rules", true);
    }
    if proxy.stick_table.take().is_some() {
        ignored("use stick table", false);
    }
    if !std::mem::take(&mut proxy.stick_rules).is_empty() {
        ignored("use sticking rules", true);
    }
    if proxy.send_name_header.take().is_some() {
        ignored("set \"http-send-name-header\"", false);
    }
    if proxy.dynamic_cookie_key.take().is_some() {
        ignored("set \"dynamic-cookie-key\"", false);
    }
    if !std::mem::take(&mut proxy.use_server).is_empty() {
        ignored("use \"use-server\" rules", true);
    }
    if proxy.logging.steps.take().is_some() && proxy.kind != ProxyKind::Backend {
        ignored("use \"log-steps\"", false);
    }
    match &mut proxy.balance {
        Balance::RoundRobin | Balance::Sticky => {}
        // One draw, as in HAProxy, whatever the line has.
        Balance::Random(draws) => *draws = 1,
        Balance::Hash(key) if matches!(**key, HashKey::Message(_)) => {
            if proxy.hash_type.consistent {
                let message = format!(
                    "log backend '{name}': failed to initialize: unsupported hash method (from \"hash-type\")."
                );
                diagnostics.error(at.clone(), message).hint("'balance log-hash' needs 'hash-type map-based'");
            }
        }
        _ => {
            let message = format!(
                "in {kind} '{name}': \"balance\" only supports 'roundrobin', 'random', 'sticky' and 'log-hash'."
            );
            diagnostics.error(at.clone(), message);
        }
    }
    servers(proxy, diagnostics);
}

fn servers(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    for server in &proxy.servers {
        if !matches!(server.address, ServerAddress::Inet(..) | ServerAddress::Name(..)) {
            let message = "log server address family not supported for log backend server.";
            diagnostics.error(server.at.clone(), message);
        } else if server.datagram != proxy.servers[0].datagram {
            let message = format!(
                "log backend '{}': failed to initialize: cannot mix server types within a log backend, '{}' srv's network \
                 type differs from previous server.",
                proxy.name, server.name
            );
            diagnostics.error(server.at.clone(), message);
            return;
        }
    }
}

/// Refuses servers that are reached by datagrams elsewhere.
fn streams_only(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    let mode = if proxy.mode == Mode::Http { "http" } else { "tcp" };
    for server in proxy.servers.iter().filter(|server| server.datagram) {
        let message = format!("unsupported transport for server address in '{mode}' backend.");
        diagnostics.error(server.at.clone(), message).hint("datagrams are for servers of 'mode log'");
    }
}

/// Returns the destination of a server's messages.
fn destination(proxy: &Proxy, index: usize) -> LogAddress {
    let server = &proxy.servers[index];
    if !server.datagram {
        return LogAddress::Ring(ring_name(proxy, index));
    }
    let port = |port: &ServerPort| match port {
        ServerPort::Fixed(port) => *port,
        ServerPort::Offset(_) => 0,
    };
    match &server.address {
        ServerAddress::Inet(ip, at) => LogAddress::Udp(ip.to_string(), port(at)),
        ServerAddress::Name(name, at) => LogAddress::Udp(name.to_string(), port(at)),
        // Refused by the check.
        _ => LogAddress::Stderr,
    }
}

fn ring_name(proxy: &Proxy, index: usize) -> Arc<str> {
    format!("{}/{}", proxy.name, proxy.servers[index].name).into()
}

impl Proxy {
    /// Returns the destinations of the servers of a backend of `mode log`, in their order.
    pub fn log_destinations(&self) -> Vec<LogAddress> {
        (0..self.servers.len()).map(|index| destination(self, index)).collect()
    }
}

/// Gives each server that is reached by a stream its ring.
pub(crate) fn add_rings(config: &mut Config) {
    for (id, proxy) in (0..).map(ProxyId).zip(&config.proxies).filter(|(_, proxy)| proxy.is_log_backend()) {
        for (index, server) in proxy.servers.iter().enumerate().filter(|(_, server)| !server.datagram) {
            let name = ring_name(proxy, index);
            let mut sender = Proxy::new(name.clone(), ProxyKind::Backend, server.at.clone());
            sender.timeouts = proxy.timeouts.clone();
            sender.source = proxy.source.clone();
            sender.servers.push(server.clone());
            let Position { file, line, .. } = &server.at;
            config.rings.push(Ring {
                name,
                description: format!("created from log backend declared into '{file}' at line {line}").into(),
                format: None,
                max_len: None,
                size: server.log_bufsize.unwrap_or(Ring::SIZE),
                backing: None,
                proxy: sender,
                backend: Some(id),
                at: server.at.clone(),
            });
        }
    }
}
