//! Checks of reverse HTTP: `bind rhttp@`, `server … rhttp@` and `attach-srv`. The messages are HAProxy's, which reports
//! what is wrong with the server of a `bind` line only when it starts.

use std::net::IpAddr;

use crate::diagnostic::Diagnostics;
use crate::model::{
    Action, AttachServer, BindAddress, Config, ForeignSource, Mode, Position, Proto, Proxy, ProxyKind, Server,
    ServerAddress, Source,
};

/// Checks everything that belongs to reverse HTTP.
pub(crate) fn check(config: &Config, diagnostics: &mut Diagnostics) {
    // After an error a server may seem to be missing.
    let whole = !diagnostics.has_errors();
    check_rings(config, diagnostics);
    for proxy in &config.proxies {
        for server in proxy.servers.iter().filter(|server| server.is_reverse()) {
            let name = format!("'server {}/{}'", proxy.name, server.name);
            experimental(config, &server.at, &format!("{name} : Address 'rhttp@'"), diagnostics);
            if let Err(message) = check_server(proxy, server) {
                diagnostics.error(server.at.clone(), message);
            }
        }
        for (address, at) in
            proxy.binds.iter().flat_map(|bind| bind.addresses.iter().map(|address| (address, &bind.at)))
        {
            let BindAddress::Reverse(server) = address else { continue };
            experimental(config, at, &format!("'bind' : Address 'rhttp@{server}'"), diagnostics);
            if proxy.disabled || !whole {
                continue;
            }
            if let Err(message) = check_bind(config, server) {
                diagnostics.error(at.clone(), format!("frontend {}: protocol rev: {message}", proxy.name));
            }
        }
        for rule in &proxy.tcp_request_session {
            let Action::AttachServer(attach) = &rule.action else { continue };
            experimental(config, &rule.at, "'attach-srv' action", diagnostics);
            if !whole {
                continue;
            }
            if let Err(message) = check_attach(config, proxy, attach) {
                diagnostics.error(attach.at.clone(), format!("Proxy '{}': attach-srv rule{message}", proxy.name));
            }
        }
    }
}

/// Reports servers of rings that would have to connect to this side.
fn check_rings(config: &Config, diagnostics: &mut Diagnostics) {
    for ring in &config.rings {
        for server in ring.proxy.servers.iter().filter(|server| server.is_reverse()) {
            let message = format!(
                "ring '{}' : server {} uses reverse HTTP addressing which can only be used with HTTP mode.",
                ring.name, server.name
            );
            diagnostics.error(server.at.clone(), message);
        }
    }
}

/// Reports what `expose-experimental-directives` does not allow.
fn experimental(config: &Config, at: &Position, what: &str, diagnostics: &mut Diagnostics) {
    if !config.global.experimental {
        diagnostics.experimental(at.clone(), what);
    }
}

fn check_server(proxy: &Proxy, server: &Server) -> Result<(), String> {
    let (kind, name) = (proxy.kind.word(), &server.name);
    if proxy.mode != Mode::Http {
        return Err(format!(
            "{kind} '{}' : server {name} uses reverse HTTP addressing which can only be used with HTTP mode.",
            proxy.name
        ));
    }
    Ok(())
}

/// Finds a server by its backend's name and its own, `BACKEND/SERVER`.
fn find<'c>(config: &'c Config, server: &str) -> Result<(&'c Proxy, &'c Server), Missing> {
    let (backend, name) = server.split_once('/').unwrap_or((server, ""));
    if name.is_empty() {
        return Err(Missing::Name);
    }
    let is_backend = |proxy: &&Proxy| *proxy.name == *backend && proxy.kind != ProxyKind::Frontend;
    let proxy = config.proxies.iter().find(is_backend).ok_or(Missing::Backend)?;
    let server = proxy.servers.iter().find(|server| *server.name == *name).ok_or(Missing::Server)?;
    Ok((proxy, server))
}

/// The reason why there is no such server.
enum Missing {
    /// The name is incomplete.
    Name,
    Backend,
    Server,
}

fn check_bind(config: &Config, server: &str) -> Result<(), String> {
    let (proxy, found) = find(config, server).map_err(|missing| match missing {
        Missing::Name => format!("Invalid server name: '{server}'."),
        Missing::Backend => format!("No such backend: '{}'.", server.split('/').next().unwrap_or_default()),
        Missing::Server => format!("No such server: '{server}'."),
    })?;
    if found.is_reverse() {
        return Err(format!("Cannot use reverse HTTP server '{server}' as target to a reverse bind."));
    }
    let is_transparent = match &found.address {
        ServerAddress::Inet(address, _) => IpAddr::is_unspecified(address),
        ServerAddress::Name(..) => false,
        ServerAddress::Unix(_) | ServerAddress::Abstract(_) | ServerAddress::Sockpair(_) | ServerAddress::Reverse => {
            true
        }
    };
    if is_transparent {
        return Err(format!("Cannot use transparent server '{server}' as target to a reverse bind."));
    }
    let tls = found.tls.as_ref().filter(|tls| tls.enabled);
    let alpn = tls.and_then(|tls| tls.settings.policy.alpn.as_deref());
    if found.proto != Some(Proto::H2) && alpn.is_none_or(|protocols| protocols != [b"h2".to_vec()]) {
        return Err(format!(
            "Cannot reverse connect with server '{server}' unless HTTP/2 is activated on it with either proto or alpn \
             keyword."
        ));
    }
    let is_dynamic = |source: &Option<Source>| {
        let foreign = source.as_ref().and_then(|source| source.foreign.as_ref());
        foreign.is_some_and(|foreign| !matches!(foreign, ForeignSource::Address(_)))
    };
    if is_dynamic(&found.source) || is_dynamic(&proxy.source) {
        return Err(format!(
            "Cannot reverse connect with server '{server}' which uses dynamic source address setting."
        ));
    }
    Ok(())
}

fn check_attach(config: &Config, proxy: &Proxy, attach: &AttachServer) -> Result<(), String> {
    if proxy.mode != Mode::Http {
        return Err(" requires HTTP proxy mode".to_owned());
    }
    let name = &attach.server;
    let (_, server) = find(config, name).map_err(|missing| match missing {
        Missing::Name => format!(": invalid server name '{name}'"),
        Missing::Backend => format!(": no such backend '{name}'"),
        Missing::Server => format!(": no such server '{name}'"),
    })?;
    let has_name = server.pool_name.is_some() || server.tls.as_ref().is_some_and(|tls| tls.sni.is_some());
    match (&attach.name, has_name) {
        (Some(_), false) => Err(format!(
            " has a name argument while server '{name}' does not use pool-conn-name; either reconfigure the server or \
             remove the name argument from this attach-srv rule"
        )),
        (None, true) => Err(format!(
            " has no name argument while server '{name}' uses pool-conn-name; either add a name argument to the \
             attach-srv rule or reconfigure the server"
        )),
        _ => Ok(()),
    }
}
