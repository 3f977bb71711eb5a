//! The servers of rings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use sluicegate_config::model::{self, LogProto, Position, ProxyId, SocketSizes, Timeouts};
use tokio::sync::Notify;

use crate::directory::{Directory, Sides};
use crate::engines::Engines;
use crate::errors::CompileError;
use crate::log::{LogRing, Logger};
use crate::ring::Ring;
use crate::sample::FetchScope;
use crate::server::{Common, ServerNames, ServerRun, connectors, set_sockets};
use crate::site::Site;
use crate::stream::{LogRecord, StreamContext};

/// A server that gets the messages of a ring.
pub(crate) struct RingServer {
    pub(crate) ring: Arc<Ring>,
    pub(crate) server: Arc<ServerRun>,
    /// The server of a log backend for which this one exists: commands move that one.
    original: Option<Arc<ServerRun>>,
    /// The proxy that exists for the ring's servers.
    pub(crate) site: Arc<Site>,
    names: Arc<ServerNames>,
    /// Whether a task sends to it.
    pub(crate) served: AtomicBool,
    /// Whether messages were read from the ring that the server has not got yet.
    pub(crate) busy: AtomicBool,
    left: AtomicBool,
    leave: Notify,
}

impl RingServer {
    /// Returns the servers of a configuration's rings. A server that is defined alike for the same ring in `before` stays
    /// connected.
    pub(super) fn all(
        logger: &Logger,
        directory: &Arc<Directory>,
        engines: &Engines,
        before: &[Arc<RingServer>],
    ) -> Result<Vec<Arc<RingServer>>, Vec<CompileError>> {
        let mut all = Vec::new();
        let mut errors = Vec::new();
        for log_ring in logger.rings() {
            let Some((config, ring)) = log_ring.config.as_ref().zip(log_ring.ring()) else { continue };
            let known: Vec<_> = before.iter().filter(|known| Arc::ptr_eq(&known.ring, ring)).collect();
            if known.len() == config.proxy.servers.len() && known.iter().all(|known| known.is_in(&config.proxy)) {
                all.extend(known.into_iter().cloned());
                continue;
            }
            match RingServer::of(log_ring, config, ring, directory, engines, &known) {
                Ok(servers) => all.extend(servers),
                Err(found) => errors.extend(found),
            }
        }
        if errors.is_empty() { Ok(all) } else { Err(errors) }
    }

    fn of(
        log_ring: &LogRing,
        config: &model::Ring,
        ring: &Arc<Ring>,
        directory: &Arc<Directory>,
        engines: &Engines,
        known: &[&Arc<RingServer>],
    ) -> Result<Vec<Arc<RingServer>>, Vec<CompileError>> {
        debug_assert!(log_ring.config.is_some());
        let process = &directory.process;
        let common =
            Common { workers: process.workers.len(), revision: process.server_revision(), busy: &Arc::default() };
        let sides = Sides::new(&config.proxy, common, 1, None);
        let before: Vec<_> = known.iter().map(|known| known.server.clone()).collect();
        connectors(&sides.servers, &before)?;
        set_sockets(sides.servers.iter(), &SocketSizes::default(), &process.namespaces)?;
        let names = ServerNames::compile(&config.proxy, engines, FetchScope { directory: Some(directory), own: None })?;
        let site = Arc::new(Site::of_servers(config.proxy.clone(), &sides, directory));
        let names = Arc::new(names);
        let backend = config.backend.and_then(|ProxyId(index)| directory.proxies.get(index as usize));
        let make = |server: &Arc<ServerRun>| {
            Arc::new(RingServer {
                ring: ring.clone(),
                server: server.clone(),
                original: backend.and_then(|backend| backend.server(server.name())).cloned(),
                site: site.clone(),
                names: names.clone(),
                served: AtomicBool::new(false),
                busy: AtomicBool::new(false),
                left: AtomicBool::new(false),
                leave: Notify::new(),
            })
        };
        Ok(sides.servers.iter().map(make).collect())
    }

    /// Returns whether a proxy defines the server as this one is.
    fn is_in(&self, proxy: &model::Proxy) -> bool {
        let nowhere = Position { file: "".into(), line: 0, column: 0 };
        let text = |server: &model::Server| {
            let server = model::Server { at: nowhere.clone(), tls: None, ..server.clone() };
            format!("{server:?}")
        };
        let times = |timeouts: &Timeouts| (timeouts.connect, timeouts.server);
        times(&self.site.config.timeouts) == times(&proxy.timeouts)
            && proxy
                .servers
                .iter()
                .any(|server| server.tls == self.server.config.tls && text(server) == text(&self.server.config))
    }

    /// Goes where a command or DNS has moved the server that it stands for; the next connection finds it there.
    pub(crate) fn move_along(&self) {
        if let Some(original) = &self.original {
            let moved = original.shared.moved();
            self.server.shared.set_moved(|own| *own = moved);
        }
    }

    /// Returns how messages to it are separated.
    pub(crate) fn proto(&self) -> LogProto {
        self.server.config.log_proto
    }

    /// Returns the name that is asked for in TLS.
    pub(crate) fn sni(&self) -> Option<String> {
        let log = LogRecord::new(SystemTime::now(), Instant::now());
        self.names.sent_without_stream(&StreamContext::unconnected(self.site.clone(), log), &self.server)
    }

    /// Ends the task that sends to it.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
        self.leave.notify_one();
    }

    /// Waits until [`leave`](Self::leave) is called.
    pub(crate) async fn is_left(&self) {
        while !self.left.load(Ordering::Relaxed) {
            self.leave.notified().await;
        }
    }
}
