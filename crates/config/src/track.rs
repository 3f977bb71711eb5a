//! `track`: servers that take over the health of another server.

use std::sync::Arc;

use crate::diagnostic::Diagnostics;
use crate::model::{Config, Position, ProxyId, ProxyKind};
use crate::suggest;

type Place = (ProxyId, usize);

/// Finds the server behind every `track`, through chains, and reports those that cannot be tracked.
pub(crate) fn resolve(config: &mut Config, diagnostics: &mut Diagnostics) {
    let mut found: Vec<(Place, Place)> = Vec::new();
    for (id, proxy) in (0..).map(ProxyId).zip(&config.proxies) {
        for (index, server) in proxy.servers.iter().enumerate() {
            if let Some(track) = &server.health.track
                && let Some(target) = target(config, id, &track.word, &track.at, diagnostics)
            {
                found.push(((id, index), target));
            }
        }
    }
    for (from, to) in &found {
        check(config, &found, *from, *to, diagnostics);
    }
    for ((id, index), target) in found {
        if let Some(track) = &mut config.proxies[id.0 as usize].servers[index].health.track {
            track.target = Some(target);
        }
    }
}

fn target(
    config: &Config,
    own: ProxyId,
    word: &Arc<str>,
    at: &Position,
    diagnostics: &mut Diagnostics,
) -> Option<Place> {
    let (proxy, name) = match word.rsplit_once('/') {
        Some((backend, name)) => {
            let backends =
                || (0..).map(ProxyId).zip(&config.proxies).filter(|(_, proxy)| proxy.kind != ProxyKind::Frontend);
            let Some((id, _)) = backends().find(|(_, proxy)| &*proxy.name == backend) else {
                let near = suggest::nearest(backend, backends().map(|(_, proxy)| &*proxy.name));
                let message = format!("unable to find required proxy '{backend}' for tracking");
                diagnostics.error(at.clone(), message).did_you_mean(near);
                return None;
            };
            (id, name)
        }
        None => (own, &**word),
    };
    let servers = &config.proxies[proxy.0 as usize].servers;
    let Some(index) = servers.iter().position(|server| &*server.name == name) else {
        let near = suggest::nearest(name, servers.iter().map(|server| &*server.name));
        let message = format!("unable to find required server '{name}' for tracking");
        diagnostics.error(at.clone(), message).did_you_mean(near);
        return None;
    };
    Some((proxy, index))
}

/// Reports a chain that does not end at a server with checks, or that returns to its start.
fn check(config: &Config, found: &[(Place, Place)], from: Place, to: Place, diagnostics: &mut Diagnostics) {
    let server = |(proxy, index): Place| &config.proxies[proxy.0 as usize].servers[index];
    let name = |(proxy, index): Place| {
        let proxy = &config.proxies[proxy.0 as usize];
        format!("{}/{}", proxy.name, proxy.servers[index].name)
    };
    let at = || server(from).at.clone();
    let mut last = to;
    // A chain is at most as long as the number of links.
    for _ in 0..found.len() {
        if last == from {
            let message = format!("unable to track a server {}: it is tracked in a circle", name(to));
            diagnostics.error(at(), message).hint("one of them needs a check of its own");
            return;
        }
        match found.iter().find(|(tracker, _)| *tracker == last) {
            Some((_, next)) => last = *next,
            None => break,
        }
    }
    if found.iter().any(|(tracker, _)| *tracker == last) {
        // The chain leads into a cycle that does not contain its start; the cycle is reported elsewhere.
        return;
    }
    let end = server(last);
    if end.check.is_none() && end.health.agent.is_none() {
        let message =
            format!("unable to use {} for tracking as it does not have any check nor agent enabled", name(last));
        diagnostics.error(at(), message).hint("add 'check' to the tracked server");
    }
    let stops = |(proxy, _): Place| config.proxies[proxy.0 as usize].health.disable_on_404;
    if stops(from) != stops(to) {
        let message = format!("unable to use {} for tracking: disable-on-404 option inconsistency", name(to));
        diagnostics.error(at(), message).hint("both proxies need 'http-check disable-on-404', or none of them");
    }
}
