//! Replacement of the configuration in the running process.
//!
//! A [`Running`] built after another one ([`build_after`]) shares its counters, queues, states and tables.
//! [`Current::replace`] makes it the current one: changed definitions are applied to the shared objects, the workers
//! switch, and the old snapshot is dropped with its last stream. Nothing here can fail: all fallible steps were taken
//! before.
//!
//! When file and run-time state differ: a definition that the new file changes wins, with a message; for an unchanged
//! definition the run-time state stays.

mod certificates;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use sluicegate_config::Config;
use sluicegate_config::model::{self, ProxyId};
use tokio::sync::watch;

pub(crate) use self::certificates::{Part, decoded, listeners, take_over, update_pair};
use crate::cli::Socket;
use crate::listener::{Sockets, Wanted, bind_after};
use crate::log::{Identity, Logger, Severity};
use crate::peers;
use crate::process::{Phase, Process};
use crate::running::{Parts, ProxyRun, Running, build_after};
use crate::server;
use crate::site::Site;
use crate::stats::status_lines;

/// The snapshot that is served, and the sockets of the control thread that go with it.
pub struct Current {
    running: watch::Sender<Arc<Running>>,
    stats: watch::Sender<Vec<Socket>>,
    /// Locked while the next snapshot is built from this one.
    making: Arc<tokio::sync::Mutex<()>>,
}

/// While this is held, no other replacement of the configuration can start.
pub struct Turn(#[expect(dead_code, reason = "held, never read")] tokio::sync::OwnedMutexGuard<()>);

/// The configuration that is served, changed at run time.
pub(crate) struct Amended {
    pub(crate) config: Config,
    /// The backend to whose end a server was added.
    pub(crate) added: Option<ProxyId>,
}

/// No new sockets: all listening sockets exist.
struct NoSockets;

impl Sockets for NoSockets {
    fn listen(&self, _: Wanted<'_>) -> io::Result<OwnedFd> {
        Err(io::Error::other("a frontend was shut down, and only a reload opens it"))
    }
}

impl Process {
    /// Returns the current configuration and the means to change it; `None` before the first one.
    pub(crate) fn current(&self) -> Option<Arc<Current>> {
        self.current.get()?.upgrade()?.downcast().ok()
    }
}

impl Current {
    /// Returns the first configuration, with the means to change it.
    pub fn new(running: Arc<Running>, stats: Vec<Socket>) -> Arc<Current> {
        let process = running.process.clone();
        process.certificates.adopt(&running.config.tls_files);
        let (running, stats) = (watch::Sender::new(running), watch::Sender::new(stats));
        let current = Arc::new(Current { running, stats, making: Arc::default() });
        let weak: Weak<Current> = Arc::downgrade(&current);
        let set = process.current.set(weak);
        debug_assert!(set.is_ok(), "a process serves one configuration after the other");
        current
    }

    /// Returns the current snapshot.
    pub fn running(&self) -> Arc<Running> {
        self.running.borrow().clone()
    }

    /// Returns the sockets of `stats socket` lines.
    pub fn stats_sockets(&self) -> Vec<Socket> {
        self.stats.borrow().clone()
    }

    /// Waits until no other thread builds a successor of the current snapshot; servers added or deleted in the meantime
    /// wait in turn, and then see the result. Blocks, so it is for dedicated threads.
    pub fn take_turn(&self) -> Turn {
        Turn(self.making.clone().blocking_lock_owned())
    }

    /// Like [`take_turn`](Self::take_turn), without blocking the thread.
    pub(crate) async fn turn(&self) -> Turn {
        Turn(self.making.clone().lock_owned().await)
    }

    /// Like [`turn`](Self::turn), without waiting; `None` if a successor is being built.
    pub(crate) fn try_turn(&self) -> Option<Turn> {
        self.making.clone().try_lock_owned().ok().map(Turn)
    }

    /// Returns a receiver of the current snapshot and its replacements.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Running>> {
        self.running.subscribe()
    }

    /// Returns the sockets of `stats socket` lines, and their changes.
    pub(crate) fn watch_stats(&self) -> watch::Receiver<Vec<Socket>> {
        self.stats.subscribe()
    }

    /// Replaces the configuration by the one that `change` derives from it, or returns the error. Scripts keep running.
    pub(crate) async fn amend(
        &self,
        change: impl FnOnce(&Arc<Running>) -> Result<Amended, String>,
    ) -> Result<(), String> {
        let _turn = self.making.lock().await;
        let old = self.running();
        let Amended { config, added } = change(&old)?;
        let process = old.process.clone();
        if process.phase() != Phase::Serving {
            return Err("The process is stopping.".to_owned());
        }
        let config = Arc::new(config);
        let logger = Logger::after(&config, Identity::default(), Some(&old.logger));
        logger.open(None).map_err(|errors| errors.join("\n"))?;
        // The caller holds the turn, so no other change happens before this one is built.
        if added.is_some() {
            process.turn_of_servers(true);
        }
        let parts =
            Parts { pages: old.pages.clone(), engines: old.engines.clone(), lua: old.lua.clone(), logger, process };
        let lines = |errors: Vec<String>| errors.join("\n");
        let next = build_after(config, parts, Some(&old))
            .map_err(|errors| lines(errors.iter().map(ToString::to_string).collect()))?;
        server::keep_addresses(&next, &old);
        if let Some(backend) = added {
            let backend = &next.proxies[backend.0 as usize].backend;
            let index = backend.servers.len() - 1;
            backend.update(index, Instant::now(), |status| {
                (status.checks, status.agent.enabled) = (false, false);
                status.admin = server::Admin::Maintenance;
                status.operation = server::Operation::Stopped;
                (status.health.level, status.unchecked_level) = (0, 0);
            });
        }
        peers::bind(&next, Some(&old), &NoSockets).map_err(lines)?;
        let listeners = bind_after(&next, old.listeners(), &NoSockets)
            .map_err(|errors| lines(errors.iter().map(ToString::to_string).collect()))?;
        let process = next.process.clone();
        // The file is the same, so there are no messages.
        self.replace(next, listeners, self.stats_sockets()).await;
        if added.is_none() {
            process.turn_of_servers(false);
        }
        Ok(())
    }

    /// Switches to `next`, which was built after the current snapshot and has bound its addresses. Returns the
    /// messages: differences from the file's earlier definitions, and removed proxies.
    pub async fn replace(
        &self,
        next: Arc<Running>,
        listeners: Vec<Arc<crate::listener::Listener>>,
        stats: Vec<Socket>,
    ) -> Vec<Said> {
        let old = self.running();
        let said = commit(&old, &next);
        // A change of one server loads no files, and its configuration does not contain later changes of them.
        if !Arc::ptr_eq(&old.config.tls_files, &next.config.tls_files) {
            next.process.certificates.adopt(&next.config.tls_files);
        }
        next.set_listeners(listeners);
        old.listeners().iter().for_each(|listener| listener.leave_to(next.listeners()));
        if let Some(lua) = next.lua.as_ref().filter(|_| next.has_scripts_of(&old)) {
            lua.follow(&next);
        }
        next.process.adopt(&next).await;
        old.listeners().iter().for_each(|listener| listener.close());
        self.running.send_replace(next);
        self.stats.send_replace(stats);
        said
    }
}

/// A line about a change, for stderr and for the logs of the proxy that it is about.
pub struct Said {
    /// The proxy whose log also receives it.
    pub proxy: Arc<ProxyRun>,
    /// Its severity.
    pub severity: Severity,
    /// The line.
    pub text: String,
}

/// Applies the definitions in which `next` differs from `old` to the objects that both share.
fn commit(old: &Running, next: &Running) -> Vec<Said> {
    let mut said = Vec::new();
    let now = Instant::now();
    for proxy in &next.proxies {
        let Some(before) = old.proxy(&proxy.config.name, proxy.config.kind) else { continue };
        let mut say = |text: String| said.push(Said { proxy: proxy.clone(), severity: Severity::Notice, text });
        let (was, is) = (&before.config, &proxy.config);
        if was.maxconn != is.maxconn {
            proxy.frontend.sessions.set_max(is.maxconn);
        }
        if was.session_rate != is.session_rate {
            proxy.frontend.set_session_rate(is.session_rate);
        }
        server::commit(before, proxy, now, &mut say);
        commit_table(old, next, was.stick_table.as_ref(), is.stick_table.as_ref(), &mut say);
    }
    let of_peers = |config: &Config| config.peers.iter().flat_map(|peers| peers.tables.clone()).collect::<Vec<_>>();
    let was = of_peers(&old.config);
    for is in of_peers(&next.config) {
        let was = was.iter().find(|was| was.name == is.name);
        // A section is no proxy with a log of its own.
        commit_table(old, next, was, Some(&is), &mut |_| ());
    }
    for section in &next.config.caches {
        if let Some(cache) = next.directory.cache(&section.name) {
            cache.redefine(section, &next.engines);
        }
    }
    next.settle_trackers();
    for listener in next_listener_limits(old, next) {
        listener.0.set_max(listener.1);
    }
    if old.config.global.maxconn != next.config.global.maxconn && next.config.global.maxconn.is_some() {
        next.process.sessions.set_max(next.config.global.maxconn);
    }
    let rates = |global: &model::Global| (global.maxconnrate, global.maxsessrate, global.compression.rate);
    if rates(&old.config.global) != rates(&next.config.global) {
        next.process.set_rates(&next.config.global);
    }
    let gone = status_lines::stopped(old).into_iter().filter(|(proxy, _)| {
        next.proxy(&proxy.config.name, proxy.config.kind).is_none_or(|proxy| proxy.config.disabled)
    });
    let gone: Vec<Said> =
        gone.map(|(proxy, text)| Said { proxy: proxy.clone(), severity: Severity::Warning, text }).collect();
    said.extend(gone);
    said
}

/// Returns the limits of `bind` lines that the new file changes.
fn next_listener_limits<'a>(
    old: &'a Running,
    next: &'a Running,
) -> impl Iterator<Item = (Arc<crate::process::Limit>, Option<u32>)> + 'a {
    old.listeners().iter().filter_map(|listener| {
        let maxconn = |proxy: &Site, bind: usize| proxy.config.binds[bind].maxconn;
        let successor = listener.successor(next.listeners())?;
        let (was, is) = (maxconn(&listener.proxy, listener.bind), maxconn(&successor.proxy, successor.bind));
        (was != is).then(|| (listener.sessions.clone(), is))
    })
}

fn commit_table(
    old: &Running,
    next: &Running,
    was: Option<&model::StickTable>,
    is: Option<&model::StickTable>,
    say: &mut dyn FnMut(String),
) {
    let (Some(_), Some(is)) = (was, is) else { return };
    let tables = old.directory.table(&is.name).zip(next.directory.table(&is.name));
    match tables {
        Some((before, table)) if Arc::ptr_eq(before, table) => table.redefine(is),
        // Other nodes share it.
        Some((before, table)) if table.succeed(before) => {}
        Some((before, _)) => {
            let lost = before.len();
            say(format!("Stick-table {} holds something else now: its {lost} entries are given up.", is.name));
        }
        None => {}
    }
}
