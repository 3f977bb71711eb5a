//! The descriptors over which connections are passed (`sockpair@N`): the process must have inherited them.

use std::io;

use sluicegate_config::model::{BindAddress, Position, Server, ServerAddress};
use sluicegate_config::{Config, Diagnostics};
use sluicegate_transport::carrier;

use crate::shape::privileges::reason;

/// Reports the descriptors that are not there or carry no connections, in HAProxy's words.
pub fn check(config: &Config, diagnostics: &mut Diagnostics) {
    let proxies = config.proxies.iter().chain(config.peers.iter().map(|peers| &peers.proxy));
    for bind in proxies.flat_map(|proxy| &proxy.binds) {
        for number in bind.addresses.iter().filter_map(listening) {
            report("'bind'", number, &bind.at, diagnostics);
        }
    }
    for socket in &config.global.stats_sockets {
        if let Some(number) = listening(&socket.address) {
            report("'stats socket'", number, &socket.at, diagnostics);
        }
    }
    for (owner, server, number) in servers(config) {
        report(&format!("'server {owner}/{}'", server.name), number, &server.at, diagnostics);
    }
}

/// Returns the errors of servers, for a process that runs already.
pub fn missing(config: &Config) -> Vec<String> {
    let missing = |(owner, server, number): (&str, &Server, i32)| {
        let error = carrier(number).err()?;
        let Position { file, line, .. } = &server.at;
        let name = format!("'server {owner}/{}'", server.name);
        Some(format!("{file}:{line}: {name}: {}", unusable(number, &error)))
    };
    servers(config).filter_map(missing).collect()
}

fn servers(config: &Config) -> impl Iterator<Item = (&str, &Server, i32)> {
    let proxies = config.proxies.iter().chain(config.peers.iter().map(|peers| &peers.proxy));
    let proxies = proxies.chain(config.rings.iter().map(|ring| &ring.proxy));
    let servers = proxies.flat_map(|proxy| proxy.servers.iter().map(|server| (&*proxy.name, server)));
    servers.filter_map(|(owner, server)| match server.address {
        ServerAddress::Sockpair(number) => Some((owner, server, number)),
        _ => None,
    })
}

fn listening(address: &BindAddress) -> Option<i32> {
    match address {
        BindAddress::Sockpair(number) => Some(*number),
        _ => None,
    }
}

fn report(what: &str, number: i32, at: &Position, diagnostics: &mut Diagnostics) {
    if let Err(error) = carrier(number) {
        diagnostics.error(at.clone(), format!("{what}: {}", unusable(number, &error)));
    }
}

fn unusable(number: i32, error: &io::Error) -> String {
    format!("cannot use file descriptor '{number}': {}", reason(error))
}
