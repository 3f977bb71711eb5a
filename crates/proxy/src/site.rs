//! A proxy of one snapshot without its compiled code.
//!
//! Streams, logs, samples and servers refer to a proxy as its [`Site`]; its compiled rules and formats belong to
//! [`ProxyRun`](crate::running::ProxyRun), which only the drivers of streams and connections access.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_config::model::{self, ProxyId};

use crate::directory::{Directory, Sides};
use crate::frontend::FrontendShared;
use crate::mail::Alerts;
use crate::server::{App, BackendShared, ServerRun};
use crate::tls::BindsTls;

/// A frontend, backend or listen: its configuration, its state and its servers.
pub struct Site {
    /// Its index among the proxies of its snapshot.
    pub id: ProxyId,
    /// Its configuration.
    pub config: Arc<model::Proxy>,
    /// The frontend's limits and figures; counted even where the section has no frontend side.
    pub frontend: Arc<FrontendShared>,
    /// The backend's queue, balance and figures.
    pub backend: Arc<BackendShared>,
    /// Its servers.
    pub servers: Vec<Arc<ServerRun>>,
    /// `dispatch`, `option transparent`: a place beside the servers, with a balancer of its own.
    pub(crate) dispatch: Option<(Arc<BackendShared>, Vec<Arc<ServerRun>>)>,
    /// Whether connections to some of the servers may come from an address that is not this machine's.
    pub(crate) has_foreign_sources: bool,
    /// The TLS of its `bind` lines.
    pub tls: BindsTls,
    /// The value of the persistence cookie for each server, as configured.
    pub cookies: Vec<Option<Arc<str>>>,
    /// Its FastCGI application.
    pub(crate) fcgi: Option<Arc<App>>,
    /// Alerts by mail about its servers.
    pub(crate) alerts: Option<Alerts>,
    /// Every proxy of the configuration.
    pub directory: Arc<Directory>,
    /// The number of lines logged so far, if some log line prints it.
    pub(crate) lines: Option<AtomicU64>,
}

impl Site {
    /// Returns a proxy that exists for servers which no proxy's clients reach: those of a ring, or peers.
    pub(crate) fn of_servers(config: model::Proxy, sides: &Sides, directory: &Arc<Directory>) -> Site {
        Site {
            id: ProxyId(u32::MAX),
            config: Arc::new(config),
            frontend: sides.frontend.clone(),
            backend: sides.backend.clone(),
            servers: sides.servers.clone(),
            dispatch: None,
            has_foreign_sources: false,
            tls: Default::default(),
            cookies: Vec::new(),
            fcgi: None,
            alerts: None,
            directory: directory.clone(),
            lines: None,
        }
    }

    /// Returns the server of this name, or of this number as `#N`.
    pub fn server(&self, name: &str) -> Option<&Arc<ServerRun>> {
        let number = name.strip_prefix('#').and_then(|number| number.parse::<u32>().ok());
        self.servers.iter().find(|server| match number {
            Some(number) => server.config.sid == number,
            None => &**server.name() == name,
        })
    }

    /// Returns the number of lines logged so far; 0 if no log line prints it.
    pub(crate) fn lines(&self) -> u64 {
        self.lines.as_ref().map_or(0, |lines| lines.load(Ordering::Relaxed))
    }

    /// Counts a logged line.
    pub(crate) fn count_line(&self) {
        if let Some(lines) = &self.lines {
            lines.fetch_add(1, Ordering::Relaxed);
        }
    }
}
