//! The lines that say how proxies and their servers are: what HAProxy writes on SIGHUP, and as proxies stop and pause.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sluicegate_config::model::ProxyKind;

use crate::running::{ProxyRun, Running};

/// A line, with the proxy to whose log targets it is sent.
pub type Line<'a> = (&'a Arc<ProxyRun>, String);

fn enabled(running: &Running) -> impl Iterator<Item = &Arc<ProxyRun>> {
    running.proxies.iter().filter(|proxy| !proxy.config.disabled && proxy.config.log_forward.is_none())
}

/// Returns a line per server and per proxy, in the order of the file (SIGHUP).
pub fn states(running: &Running) -> Vec<Line<'_>> {
    let now = Instant::now();
    let mut lines = Vec::new();
    for proxy in enabled(running) {
        for server in &proxy.servers {
            let shared = &server.shared;
            let line = format!(
                "SIGHUP: Server {}/{} is {}. Conn: {} act, {} pend, {} tot.",
                proxy.config.name,
                server.name(),
                if shared.status().is_running() { "UP" } else { "DOWN" },
                shared.figures.scur.load(Ordering::Relaxed),
                shared.queued.load(Ordering::Relaxed),
                shared.figures.sum(|counters| &counters.stot),
            );
            lines.push((proxy, line));
        }
        let summary = proxy.backend.summary(now);
        let state = if proxy.servers.is_empty() {
            "has no servers.".to_owned()
        } else if summary.active > 0 {
            format!("has {} active servers and {} backup servers available.", summary.active, summary.backup)
        } else if summary.backup > 0 {
            "is running on backup servers !".to_owned()
        } else {
            "has no server available !".to_owned()
        };
        let own: u32 = proxy.backend.queue.len();
        let queued: u32 = proxy.servers.iter().map(|server| server.shared.queued.load(Ordering::Relaxed)).sum();
        let line = format!(
            "SIGHUP: Proxy {} {state} Conn: act(FE+BE): {}+{}, {} pend ({own} unass), tot(FE+BE): {}+{}.",
            proxy.config.name,
            proxy.frontend.sessions.current(),
            proxy.backend.figures.scur.load(Ordering::Relaxed),
            own + queued,
            proxy.frontend.figures.sum(|counters| &counters.stot),
            proxy.backend.figures.sum(|counters| &counters.stot),
        );
        lines.push((proxy, line));
    }
    lines
}

/// Returns a line per stopping proxy.
pub fn stopped(running: &Running) -> Vec<Line<'_>> {
    let line = |proxy: &ProxyRun| {
        format!(
            "Proxy {} stopped (cumulated conns: FE: {}, BE: {}).",
            proxy.config.name,
            proxy.frontend.figures.sum(|counters| &counters.stot),
            proxy.backend.figures.sum(|counters| &counters.stot),
        )
    };
    enabled(running).map(|proxy| (proxy, line(proxy))).collect()
}

/// Returns a line per frontend that has connections when `hard-stop-after` is over.
pub fn hard_stopped(running: &Running) -> Vec<Line<'_>> {
    let line = |proxy: &ProxyRun, left: u32| {
        format!("Proxy {} hard-stopped ({left} remaining conns will be closed).", proxy.config.name)
    };
    let left = |proxy: &ProxyRun| Some(proxy.frontend.sessions.current()).filter(|left| *left > 0);
    enabled(running).filter_map(|proxy| Some((proxy, line(proxy, left(proxy)?)))).collect()
}

/// Returns a line per listening proxy; `word` is `Paused` or `Resumed`.
pub fn listening<'a>(running: &'a Running, word: &str) -> Vec<Line<'a>> {
    let line = |proxy: &ProxyRun| {
        let kind = if proxy.config.kind == ProxyKind::Frontend { "frontend" } else { "proxy" };
        format!("{word} {kind} {}.", proxy.config.name)
    };
    let listens = |proxy: &&Arc<ProxyRun>| !proxy.config.binds.is_empty();
    enabled(running).filter(listens).map(|proxy| (proxy, line(proxy))).collect()
}
