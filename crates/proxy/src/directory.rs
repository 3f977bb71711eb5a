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
use crate::server::{BackendShared, Common, ServerRun, build_backend};
use crate::stick::Table;

/// Both sides of every proxy, for rules that refer to another proxy than their stream's. It is built before the rules,
/// so that names in rules can be resolved when they are compiled.
pub struct Directory {
    /// Limits and figures of the process.
    pub process: Arc<Process>,
    /// The proxies, by [`ProxyId`].
    pub proxies: Vec<Arc<Sides>>,
    /// The places of proxies and stick tables by name.
    pub(crate) names: Names,
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

/// Proxies and stick tables by name; of several with one name the first is found. There may be many thousand.
pub(crate) struct Names {
    /// Frontends and listens.
    frontends: HashMap<Arc<str>, ProxyId>,
    /// Backends and listens.
    backends: HashMap<Arc<str>, ProxyId>,
    /// Indices into [`Directory::tables`].
    tables: HashMap<Arc<str>, usize>,
}

impl Names {
    /// Returns the names of these proxies and tables.
    pub(crate) fn of(proxies: &[Arc<Sides>], tables: &[Arc<Table>]) -> Names {
        let but = |kind: ProxyKind| {
            let others = (0..).map(ProxyId).zip(proxies).filter(move |(_, sides)| sides.kind != kind);
            by_name(others.map(|(id, sides)| (&sides.name, id)))
        };
        Names {
            frontends: but(ProxyKind::Backend),
            backends: but(ProxyKind::Frontend),
            tables: by_name(tables.iter().enumerate().map(|(index, table)| (&table.name, index))),
        }
    }
}

fn by_name<'a, T>(places: impl Iterator<Item = (&'a Arc<str>, T)>) -> HashMap<Arc<str>, T> {
    let mut map = HashMap::new();
    for (name, place) in places {
        map.entry(name.clone()).or_insert(place);
    }
    map
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
        common: Common<'_>,
        fullconn: u32,
        before: Option<(&model::Proxy, &Arc<FrontendShared>, &Arc<BackendShared>)>,
    ) -> Sides {
        let backend_before = before.map(|(config, _, backend)| (config, backend));
        let (backend, servers) = build_backend(config, common, fullconn, backend_before);
        let frontend = match before {
            // A frontend that was shut down has no sockets left; the new file opens it again.
            Some((_, frontend, _)) if frontend.gate() != Gate::Shut => frontend.clone(),
            _ => Arc::new(FrontendShared::new(common.workers, config.maxconn, config.session_rate)),
        };
        let dispatch = config.dispatch.as_deref().map(|server| {
            // As in HAProxy, its connections are private: each client has its own.
            let http_reuse = model::HttpReuse::Never;
            let alone = model::Proxy { servers: vec![server.clone()], http_reuse, ..config.clone() };
            build_backend(&alone, common, fullconn, None)
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
        Some(&self.proxies[self.frontend_id(name)?.0 as usize])
    }

    /// Returns the frontend or listen of this name.
    pub(crate) fn frontend_id(&self, name: &str) -> Option<ProxyId> {
        self.names.frontends.get(name).copied()
    }

    /// Returns the backend or listen of this name.
    pub(crate) fn backend_id(&self, name: &str) -> Option<ProxyId> {
        self.names.backends.get(name).copied()
    }

    /// Returns the stick table of this name.
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        Some(&self.tables[*self.names.tables.get(name)?])
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
        Some(&self.proxies[self.backend_id(name)?.0 as usize])
    }
}
