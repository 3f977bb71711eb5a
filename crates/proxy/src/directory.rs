//! Proxies, tables and limits referenced by rules.

use std::collections::HashMap;
use std::sync::Arc;

use sluicegate_config::model::{self, ProxyId, ProxyKind, StatusClasses};

use crate::auth::UserList;
use crate::cache::Cache;
use crate::frontend::{FrontendShared, Gate};
use crate::limit::Limit;
use crate::process::Process;
use crate::resolve::Resolver;
use crate::ring::LineSink;
use crate::server::{BackendShared, ServerRun, build_backend};
use crate::stick::Table;

/// Both sides of every proxy, for rules that refer to another proxy than their stream's. It is built before the rules,
/// so that names in rules can be resolved when they are compiled.
pub struct Directory {
    /// Limits and figures of the process.
    pub process: Arc<Process>,
    /// The proxies, by [`ProxyId`].
    pub proxies: Vec<Arc<Sides>>,
    /// Backends (and listens) by name, for names that are computed per request.
    pub backends: HashMap<Arc<str>, ProxyId>,
    /// Stick tables, in the order of the file.
    pub tables: Vec<Arc<Table>>,
    /// User lists by name.
    pub user_lists: HashMap<Arc<str>, Arc<UserList>>,
    /// `resolvers` sections, in the order of the file.
    pub resolvers: Vec<Arc<Resolver>>,
    /// `cache` sections, in the order of the file.
    pub(crate) caches: Vec<Arc<Cache>>,
    /// Limits of rules, in the order of the file.
    pub limits: Vec<Arc<Limit>>,
    /// Destinations of lines by their names: rings and outputs.
    pub(crate) sinks: Vec<Arc<dyn LineSink>>,
    /// Statuses that count as errors of the client and as failures of the server.
    pub status_classes: StatusClasses,
}

/// The two sides of a proxy and its servers: the part of it that is counted and changes.
pub struct Sides {
    /// The proxy's name.
    pub name: Arc<str>,
    pub(crate) kind: ProxyKind,
    /// The frontend's limits and figures.
    pub frontend: Arc<FrontendShared>,
    /// The backend's queue, balance and figures.
    pub backend: Arc<BackendShared>,
    /// Its servers.
    pub servers: Vec<Arc<ServerRun>>,
    /// See [`Site::dispatch`](crate::site::Site).
    pub(crate) dispatch: Option<(Arc<BackendShared>, Vec<Arc<ServerRun>>)>,
}

impl Sides {
    /// Returns the sides of a proxy that `workers` workers serve; `before` are the configuration and the sides of the
    /// same proxy in the previous snapshot.
    pub(crate) fn new(
        config: &model::Proxy,
        workers: usize,
        revision: u32,
        fullconn: u32,
        before: Option<(&model::Proxy, &Arc<FrontendShared>, &Arc<BackendShared>)>,
    ) -> Sides {
        let backend_before = before.map(|(config, _, backend)| (config, backend));
        let (backend, servers) = build_backend(config, (workers, revision), fullconn, backend_before);
        let frontend = match before {
            // A frontend that was shut down has no sockets left; the new file opens it again.
            Some((_, frontend, _)) if frontend.gate() != Gate::Shut => frontend.clone(),
            _ => Arc::new(FrontendShared::new(workers, config.maxconn, config.session_rate)),
        };
        let dispatch = config.dispatch.as_deref().map(|server| {
            // As in HAProxy, its connections are private: each client has its own.
            let http_reuse = model::HttpReuse::Never;
            let alone = model::Proxy { servers: vec![server.clone()], http_reuse, ..config.clone() };
            build_backend(&alone, (workers, revision), fullconn, None)
        });
        Sides { name: config.name.clone(), kind: config.kind, frontend, backend, servers, dispatch }
    }

    /// Returns the server of this name.
    pub fn server(&self, name: &str) -> Option<&Arc<ServerRun>> {
        self.servers.iter().find(|server| &**server.name() == name)
    }
}

impl std::fmt::Debug for Sides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sides").field("name", &self.name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory").field("proxies", &self.proxies).finish_non_exhaustive()
    }
}

impl Directory {
    /// Returns the frontend or listen of this name.
    pub fn frontend(&self, name: &str) -> Option<&Arc<Sides>> {
        self.proxies.iter().find(|sides| sides.kind != ProxyKind::Backend && &*sides.name == name)
    }

    /// Returns the stick table of this name.
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.tables.iter().find(|table| &*table.name == name)
    }

    /// Returns the ring or the output of this name.
    pub(crate) fn sink(&self, name: &str) -> Option<&Arc<dyn LineSink>> {
        self.sinks.iter().find(|sink| sink.name() == name)
    }

    /// Returns the cache of this name.
    pub(crate) fn cache(&self, name: &str) -> Option<&Arc<Cache>> {
        self.caches.iter().find(|cache| *cache.config().name == *name)
    }

    /// Returns the limit of this name.
    pub fn limit(&self, name: &str) -> Option<&Arc<Limit>> {
        self.limits.iter().find(|limit| *limit.config.name == *name)
    }

    /// Returns the `resolvers` section of this name.
    pub fn resolver(&self, name: &str) -> Option<&Arc<Resolver>> {
        self.resolvers.iter().find(|resolver| &*resolver.config.name == name)
    }

    /// Returns the backend or listen of this name.
    pub fn backend(&self, name: &str) -> Option<&Arc<Sides>> {
        self.proxies.iter().find(|sides| sides.kind != ProxyKind::Frontend && &*sides.name == name)
    }
}
