//! The running objects of one configuration: an immutable snapshot, shared by every worker.
//!
//! A reload builds a new [`Running`] while the old one serves ([`build_after`]) and swaps them
//! ([`reload`](crate::reload)). Objects that must outlive a snapshot (counters, queues, health, run-time changes) are
//! `shared` fields, handed over by the names of proxies and servers.

mod certificates;
pub mod pages;
mod rings;

use std::collections::{BTreeSet, HashMap};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use sluicegate_config::Config;
use sluicegate_config::model::{self, BackendName, HttpReuse, Position, ProxyId, ProxyKind};
use sluicegate_script::Watch;
use sluicegate_tls::listener::Listener as TlsListener;
use sluicegate_wire::engine::Engine;

pub(crate) use self::certificates::{Place, connectors as tls_connectors, places};
use self::pages::Pages;
pub(crate) use self::rings::RingServer;
use crate::cache::Cache;
use crate::counters::Figures;
use crate::directory::{Directory, Names, Sides};
use crate::engines::Engines;
use crate::errors::CompileError;
use crate::frontend::FrontendShared;
use crate::http_client::{HttpClient, Journal};
use crate::limit::Limit;
use crate::listener::Listener;
use crate::log::{LogBackend, Logger, ProxyLog, Severity};
use crate::mail::Alerts;
use crate::peers::{self, Section, States};
use crate::process::Process;
use crate::resolve::Resolver;
use crate::rule::{ProxyRules, bind_filters};
use crate::sample::FetchScope;
use crate::script_commands::Registry;
use crate::server::{
    Admin, App, BackendShared, BusyBackends, CheckCode, Common, Headers, IdleConnections, KeyCode, ServerEvent,
    ServerNames, ServerRun, connectors, set_sockets,
};
use crate::site::Site;
use crate::stick::Table;
use crate::stream::{Bindings, BoundFilter, Scripts};
use crate::tls::BindsTls;

/// The scripts that a configuration loads.
pub trait ScriptStates: Bindings + Send + Sync {
    /// Gives scripts the stores they may name, before [`init`](Self::init) and before any worker starts.
    fn attach(&self, engines: Engines);

    /// Publishes the running objects to scripts: `core.proxies`, `core.frontends` and `core.backends`. Called once,
    /// when the snapshot is complete, before any worker starts.
    fn publish(&self, running: &Arc<Running>);

    /// Makes scripts see another snapshot from now on, whose proxies are the same.
    fn follow(&self, running: &Arc<Running>);

    /// Adds the commands of scripts to the stats socket of a snapshot that is not served yet.
    fn add_commands(&self, running: &Running);

    /// Returns whether a script has subscribed to events.
    fn has_subscribers(&self) -> bool;

    /// Queues an event of a server for its subscribers.
    fn event(&self, event: &ServerEvent);

    /// Runs the functions of `core.register_init`, once, before traffic; an error is the message of the first that
    /// fails.
    fn init(&self) -> Result<(), String>;

    /// Returns one worker's scripts; `index` from 0. Call it on the worker's thread.
    fn worker(self: Arc<Self>, index: usize) -> Rc<dyn Scripts>;

    /// Returns the watchdog's view of a worker that runs scripts.
    fn watch_of(&self, worker: usize) -> Option<Watch>;
}

/// A running configuration.
pub struct Running {
    /// The configuration it was built from.
    pub config: Arc<Config>,
    /// The proxies, by [`ProxyId`].
    pub proxies: Vec<Arc<ProxyRun>>,
    /// The engines, by name.
    pub engines: Engines,
    /// The Lua states, if the file loads any script.
    pub lua: Option<Arc<dyn ScriptStates>>,
    /// The statistics page and the exporter.
    pub pages: Arc<dyn Pages>,
    /// Log lines go here; the control thread writes them.
    pub logger: Logger,
    /// Limits and figures of the whole process.
    pub process: Arc<Process>,
    /// Commands of the stats socket that scripts added.
    pub commands: Registry,
    /// The frontend and backend side of every proxy, and the stick tables.
    pub directory: Arc<Directory>,
    /// `peers` sections that exchange tables.
    pub(crate) peers: Vec<Arc<Section>>,
    /// The HTTP client of the process.
    pub(crate) client: Arc<HttpClient>,
    /// The servers that track each server that is tracked.
    trackers: HashMap<(ProxyId, usize), Vec<(ProxyId, usize)>>,
    /// Servers whose connections are not shared between sessions (`http-reuse never`).
    pub(crate) unshared: Box<[Arc<ServerRun>]>,
    /// Each worker's idle server connections, by worker.
    pub idle: Box<[Arc<IdleConnections>]>,
    /// The number of the snapshot: one more than that of the previous snapshot.
    pub generation: u64,
    /// The servers of rings.
    pub(crate) rings: Vec<Arc<RingServer>>,
    /// The frontends, of which there are few where backends are many.
    pub(crate) frontends: Box<[Arc<FrontendShared>]>,
    /// The backends with sessions in the last seconds, of this configuration and of those before it.
    pub(crate) busy: Arc<BusyBackends>,
    /// The backends with servers that have `slowstart`.
    pub(crate) slow_starts: Box<[Arc<BackendShared>]>,
    listeners: OnceLock<Vec<Arc<Listener>>>,
    /// Figures of listeners that a previous process has left, until they are bound.
    pub(crate) left_figures: Mutex<LeftFigures>,
}

/// Figures by section and [identity](Listener) of a listener.
pub(crate) type LeftFigures = HashMap<(Box<str>, Box<str>), Arc<Figures>>;

impl Running {
    /// Returns the listeners of the frontends, once workers serve this snapshot.
    pub fn listeners(&self) -> &[Arc<Listener>] {
        self.listeners.get().map_or(&[], |listeners| listeners)
    }

    /// Returns whether this snapshot continues with the Lua states of another one.
    pub(crate) fn has_scripts_of(&self, other: &Running) -> bool {
        matches!((&self.lua, &other.lua), (Some(own), Some(others)) if Arc::ptr_eq(own, others))
    }

    /// Returns a backend and its server by their names, `BACKEND/SERVER`.
    pub(crate) fn server_named(&self, name: &str) -> Option<(&Arc<ProxyRun>, &Arc<ServerRun>)> {
        let (backend, name) = name.split_once('/')?;
        let proxy = &self.proxies[self.directory.backend_id(backend)?.0 as usize];
        let server = proxy.servers.iter().find(|server| **server.name() == *name)?;
        Some((proxy, server))
    }

    /// Returns the listeners of one frontend.
    pub fn listeners_of(&self, proxy: ProxyId) -> &[Arc<Listener>] {
        // The listeners are sorted by proxy.
        let all = self.listeners();
        let start = all.partition_point(|listener| listener.proxy.id.0 < proxy.0);
        let count = all[start..].partition_point(|listener| listener.proxy.id == proxy);
        &all[start..start + count]
    }

    /// Returns the listeners of one frontend if each has statistics of its own (`option socket-stats`), otherwise none.
    pub fn counted_listeners(&self, proxy: &ProxyRun) -> &[Arc<Listener>] {
        if proxy.config.options.socket_stats { self.listeners_of(proxy.id) } else { &[] }
    }

    /// Sets the listeners, once.
    pub(crate) fn set_listeners(&self, listeners: Vec<Arc<Listener>>) {
        let set = self.listeners.set(listeners);
        debug_assert!(set.is_ok(), "a snapshot is served once");
        crate::trace::announce(&self.config, self.process.workers.len());
    }

    /// Returns the TLS of all `bind` lines, those of stores included.
    pub(crate) fn tls_listeners(&self) -> impl Iterator<Item = Arc<TlsListener>> + '_ {
        let own = self.proxies.iter().flat_map(|proxy| proxy.tls.iter().flatten().cloned());
        own.chain(self.process.certificates.other_listeners())
    }

    /// Returns the servers of all proxies.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Arc<ServerRun>> {
        self.proxies.iter().flat_map(|proxy| &proxy.servers)
    }

    /// Returns the proxy of this name and kind.
    pub fn proxy(&self, name: &str, kind: ProxyKind) -> Option<&Arc<ProxyRun>> {
        let id = match kind {
            ProxyKind::Frontend => self.directory.frontend_id(name)?,
            ProxyKind::Backend | ProxyKind::Listen => self.directory.backend_id(name)?,
        };
        self.proxies.get(id.0 as usize).filter(|proxy| proxy.config.kind == kind)
    }
}

/// The inputs of [`build`] in addition to the configuration.
pub struct Parts {
    /// The stores and engines that rules and scripts may name.
    pub engines: Engines,
    /// The Lua states, if the file loads any script.
    pub lua: Option<Arc<dyn ScriptStates>>,
    /// The statistics page and the exporter.
    pub pages: Arc<dyn Pages>,
    /// The destination of log lines.
    pub logger: Logger,
    /// Limits and figures of the process; it knows how many workers there are.
    pub process: Arc<Process>,
}

/// Builds the running objects of a configuration, or returns the rules that cannot run. It opens nothing and starts
/// nothing.
pub fn build(config: Arc<Config>, parts: Parts) -> Result<Arc<Running>, Vec<CompileError>> {
    build_after(config, parts, None)
}

/// The same for a configuration that replaces `before`: counters and run-time state are shared by both, matched by the
/// names of proxies and servers. `before` is not changed.
pub fn build_after(
    config: Arc<Config>,
    parts: Parts,
    before: Option<&Running>,
) -> Result<Arc<Running>, Vec<CompileError>> {
    if before.is_none() {
        parts.process.set_rates(&config.global);
    }
    crate::sample::limit_variables(&config.global.tune.variables);
    if let Some(lua) = &parts.lua {
        lua.attach(parts.engines.clone());
    }
    let workers = parts.process.workers.len();
    let limit = parts.process.sessions.max();
    let revision = parts.process.server_revision();
    let busy = before.map_or_else(Arc::default, |before| before.busy.clone());
    let sides = config.proxies.iter().zip(fullconns(&config, limit)).map(|(proxy, fullconn)| {
        let known = before.and_then(|before| before.proxy(&proxy.name, proxy.kind));
        let known = known.map(|known| (&*known.config, &known.frontend, &known.backend));
        Arc::new(Sides::new(proxy, Common { workers, revision, busy: &busy }, fullconn, known))
    });
    let sides: Vec<_> = sides.collect();
    let peers_before = before.map_or(&[][..], |before| &before.peers);
    let states = States::new(&config, peers_before);
    let table = |table: &model::StickTable| {
        let sharing = states.sharing(&config, table);
        let known = before.and_then(|before| before.directory.table(&table.name));
        let known = known.filter(|known| known.holds(table, sharing.as_ref()));
        known.cloned().unwrap_or_else(|| Arc::new(Table::with(table, sharing)))
    };
    let tables: Vec<_> = config.all_tables().map(table).collect();
    let user_lists = crate::auth::lists(&config)?;
    let resolvers = Resolver::all(&config.resolvers, before.map_or(&[], |before| &before.directory.resolvers));
    let client = HttpClient::new(
        &config.global.tls,
        &config.global.http_client,
        &resolvers,
        &parts.process.tls,
        Some(Journal {
            logger: parts.logger.clone(),
            targets: config.global.log.clone(),
            process: parts.process.clone(),
        }),
        before.map(|before| &before.client),
    );
    let client = client.map_err(|message| {
        let at = config.global.tls.client_ca.as_ref().map(|(_, at)| at.clone());
        let at = at.unwrap_or_else(|| Position { file: "global".into(), line: 0, column: 0 });
        vec![CompileError { at, message: format!("TLS of the HTTP client: {message}") }]
    })?;
    let limits = Limit::all(&config.limits, &parts.engines, before.map_or(&[], |before| &before.directory.limits));
    let caches = Cache::all(&config.caches, &parts.engines, before.map_or(&[], |before| &before.directory.caches));
    let sinks = parts.logger.by_name();
    let status_classes = config.global.status_classes;
    let process = parts.process.clone();
    let directory = Directory {
        names: Names::of(&sides, &tables),
        process,
        proxies: sides,
        tables,
        user_lists,
        resolvers,
        caches,
        limits,
        sinks,
        status_classes,
    };
    let directory = Arc::new(directory);
    let peers = peers::sections(&config, &states, &directory, &parts.engines, peers_before)?;
    let mut proxies = Vec::with_capacity(config.proxies.len());
    let mut errors = Vec::new();
    let of_binds = config.proxies.iter().flat_map(|proxy| &proxy.binds).filter_map(|bind| bind.tcp.namespace.as_ref());
    for namespace in config.namespaces.iter().chain(of_binds) {
        errors.extend(parts.process.namespaces.open(namespace).err());
    }
    let mut logs = Vec::with_capacity(config.proxies.len());
    for (index, proxy) in config.proxies.iter().enumerate() {
        let scope = FetchScope { directory: Some(&directory), own: Some(index) };
        let log = ProxyLog::compile(proxy, &config.log_profiles, &parts.engines, scope);
        logs.push(Arc::new(log.map_err(|found| errors.extend(found)).unwrap_or_default()));
    }
    let logs: Arc<[Arc<ProxyLog>]> = logs.into();
    let lua = parts.lua.as_deref().map(|lua| lua as &dyn Bindings);
    for (index, proxy) in config.proxies.iter().enumerate() {
        let id = ProxyId(index as u32);
        let rules = ProxyRules::compile(id, &config, &parts.engines, lua, &directory, (&parts.logger, &logs));
        let scope = FetchScope { directory: Some(&directory), own: Some(index) };
        let headers = Headers::compile(proxy, &parts.engines, scope);
        let checks = match &proxy.health.sequence {
            Some(sequence) => CheckCode::compile(sequence, &parts.engines, scope),
            None => Ok(CheckCode::connect()),
        };
        let known = before.and_then(|before| before.proxy(&proxy.name, proxy.kind));
        let known = known.map(|known| (&*known.config, &known.tls));
        let tls = crate::tls::listeners(proxy, &parts.process.resumption, known);
        let names = ServerNames::compile(proxy, &parts.engines, scope);
        let known = before.and_then(|before| before.proxy(&proxy.name, proxy.kind));
        let own = &directory.proxies[index].servers;
        let servers = connectors(own, known.map_or(&[], |known| &known.servers));
        let all = own.iter().chain(directory.proxies[index].dispatch.iter().flat_map(|(_, servers)| servers));
        let sockets = set_sockets(all, &config.global.tune.server_sockets, &parts.process.namespaces);
        let servers = servers.and(sockets);
        let filters = bind_filters(proxy, lua);
        match (rules, headers, checks, tls, names, servers, filters) {
            (Ok(rules), Ok(headers), Ok(checks), Ok(tls), Ok(names), Ok(()), Ok(filters)) => {
                let alerts = Alerts::of(proxy, &config);
                proxies.push(build_proxy(
                    id,
                    proxy,
                    (rules, logs[index].clone(), headers, names, checks, filters),
                    tls,
                    alerts,
                    (&directory, &parts.logger),
                ));
            }
            (rules, headers, checks, tls, names, servers, filters) => {
                let others = headers.err().into_iter().chain(checks.err()).chain(tls.err());
                let others = others.chain(names.err()).chain(servers.err()).chain(filters.err());
                errors.extend(rules.err().into_iter().chain(others).flatten());
            }
        }
    }
    let known = before.map_or(&[][..], |before| &before.rings);
    let rings = RingServer::all(&parts.logger, &directory, &parts.engines, known);
    let rings = rings.map_err(|found| errors.extend(found)).unwrap_or_default();
    if !errors.is_empty() {
        return Err(errors);
    }
    let backends = proxies.iter().filter(|proxy| proxy.config.is_log_backend()).map(|proxy| {
        let scope = FetchScope { directory: Some(&directory), own: None };
        // The proxy's rules have compiled the key, too, so there is no error.
        let key = KeyCode::compile(&proxy.config, &parts.engines, scope).ok().flatten();
        LogBackend::new(proxy.site.clone(), key)
    });
    parts.logger.set_backends(backends.collect());
    let trackers = trackers(&config);
    let unshared = proxies.iter().flat_map(|proxy| {
        let own = proxy.servers.iter().filter(|_| proxy.config.http_reuse == HttpReuse::Never);
        own.chain(proxy.dispatch.iter().flat_map(|(_, servers)| servers)).cloned()
    });
    let unshared = unshared.collect();
    let frontends = proxies.iter().filter(|proxy| proxy.config.kind != ProxyKind::Backend);
    let frontends = frontends.map(|proxy| proxy.frontend.clone()).collect();
    let slow_starts = proxies.iter().filter(|proxy| proxy.backend.slow_starts);
    let slow_starts = slow_starts.map(|proxy| proxy.backend.clone()).collect();
    let running = Arc::new(Running {
        frontends,
        busy,
        slow_starts,
        config,
        peers,
        client,
        proxies,
        engines: parts.engines,
        lua: parts.lua,
        pages: parts.pages,
        logger: parts.logger,
        process: parts.process,
        commands: Registry::default(),
        directory,
        trackers,
        unshared,
        idle: match before {
            Some(before) => before.idle.clone(),
            None => (0..workers).map(|_| Arc::new(IdleConnections::default())).collect(),
        },
        generation: before.map_or(0, |before| before.generation + 1),
        rings,
        listeners: OnceLock::new(),
        left_figures: Mutex::default(),
    });
    // Shared objects of the current snapshot change only when the new one takes over.
    if before.is_none() {
        running.settle_trackers();
    }
    if let Some(lua) = &running.lua {
        if before.is_none_or(|before| !running.has_scripts_of(before)) {
            lua.publish(&running);
        }
        lua.add_commands(&running);
    }
    Ok(running)
}

/// Returns the trackers of each tracked server, the last one first, as in HAProxy: those that were added at run time come
/// before those of the file.
fn trackers(config: &Config) -> HashMap<(ProxyId, usize), Vec<(ProxyId, usize)>> {
    let mut trackers: HashMap<_, Vec<_>> = HashMap::new();
    for added in [true, false] {
        for (id, proxy) in (0..config.proxies.len() as u32).map(ProxyId).zip(&config.proxies).rev() {
            for (index, server) in proxy.servers.iter().enumerate().rev().filter(|(_, server)| server.dynamic == added)
            {
                if let Some(target) = server.health.track.as_ref().and_then(|track| track.target) {
                    trackers.entry(target).or_default().push((id, index));
                }
            }
        }
    }
    trackers
}

impl Running {
    /// Returns the result of `of` for each engine that has one, with the engine's name, in the order of the names.
    pub(crate) fn told<T>(&self, of: impl Fn(&dyn Engine) -> Option<T>) -> Vec<(&str, T)> {
        let mut told: Vec<_> =
            self.engines.iter().filter_map(|(name, engine)| Some((&**name, of(&**engine)?))).collect();
        told.sort_by_key(|(name, _)| *name);
        told
    }

    /// Returns the servers that track this server.
    pub fn trackers(&self, proxy: ProxyId, server: usize) -> impl Iterator<Item = (&Arc<ProxyRun>, &Arc<ServerRun>)> {
        self.trackers.get(&(proxy, server)).into_iter().flatten().map(|(id, index)| {
            let proxy = &self.proxies[id.0 as usize];
            (proxy, &proxy.servers[*index])
        })
    }

    /// Returns the server whose health is this one's: itself, unless it tracks.
    pub fn tracked<'a>(&'a self, mut server: &'a ServerRun) -> &'a ServerRun {
        // The configuration has no cycles.
        while let Some((id, index)) = server.config.health.track.as_ref().and_then(|track| track.target) {
            server = &self.proxies[id.0 as usize].servers[index];
        }
        server
    }

    /// Copies the state of tracked servers to their trackers.
    pub(crate) fn settle_trackers(&self) {
        for proxy in &self.proxies {
            for server in &proxy.servers {
                let tracks = server.config.health.track.is_some();
                if !tracks && server.shared.status().inherited == Admin::Ready {
                    continue;
                }
                let first = self.tracked(server).shared.status();
                proxy.backend.update(server.shared.index, Instant::now(), |status| {
                    status.inherited = if tracks { first.admin } else { Admin::Ready };
                    status.operation = first.operation;
                    if status.admin() == Admin::Maintenance {
                        status.unchecked_level = 0;
                    }
                });
            }
        }
    }
}

/// Returns the `fullconn` of each proxy as a backend, or a tenth of the limits of the frontends that name it; names
/// computed per request do not count. A frontend without a limit counts with `limit`, that of the process.
fn fullconns(config: &Config, limit: Option<u32>) -> Vec<u32> {
    let mut held = vec![0_u64; config.proxies.len()];
    let frontends = (0..).map(ProxyId).zip(&config.proxies).filter(|(_, proxy)| proxy.kind != ProxyKind::Backend);
    for (id, proxy) in frontends {
        let own = (proxy.kind == ProxyKind::Listen).then_some(id);
        let named = proxy.use_backend.iter().filter_map(|rule| match rule.target {
            BackendName::Static(backend) => Some(backend),
            _ => None,
        });
        let backends: BTreeSet<ProxyId> = named.chain(proxy.default_backend.or(own)).collect();
        for backend in backends {
            held[backend.0 as usize] += u64::from(proxy.maxconn.or(limit).unwrap_or(i32::MAX as u32));
        }
    }
    let tenth = |total: u64| u32::try_from(total.div_ceil(10)).unwrap_or(u32::MAX).max(1);
    config.proxies.iter().zip(held).map(|(proxy, held)| proxy.fullconn.unwrap_or_else(|| tenth(held))).collect()
}

/// Returns an application whose messages are logged as its section says.
fn application(app: &Arc<model::FcgiApp>, logger: &Logger) -> App {
    let (logger, config) = (logger.clone(), app.clone());
    App::new(app.clone(), Box::new(move |message| logger.send(&config.log, Severity::Error, message)))
}

/// The code of a proxy.
type Compiled = (ProxyRules, Arc<ProxyLog>, Headers, ServerNames, CheckCode, Vec<(usize, BoundFilter)>);

fn build_proxy(
    id: ProxyId,
    config: &model::Proxy,
    (rules, log, headers, names, checks, script_filters): Compiled,
    tls: BindsTls,
    alerts: Option<Alerts>,
    (directory, logger): (&Arc<Directory>, &Logger),
) -> Arc<ProxyRun> {
    let sides = &directory.proxies[id.0 as usize];
    let site = Arc::new(Site {
        id,
        config: Arc::new(config.clone()),
        frontend: sides.frontend.clone(),
        backend: sides.backend.clone(),
        servers: sides.servers.clone(),
        dispatch: sides.dispatch.clone(),
        has_foreign_sources: crate::server::has_foreign_sources(config),
        tls,
        cookies: crate::persist::cookie_values(config),
        fcgi: config.fcgi_app().map(|app| Arc::new(application(app, logger))),
        alerts,
        directory: directory.clone(),
        lines: log.counts_lines().then(AtomicU64::default),
    });
    Arc::new(ProxyRun { site, rules, log, headers, names, checks: Arc::new(checks), script_filters })
}

/// A running frontend, backend or listen: its [`Site`], and the code that is compiled for it.
pub struct ProxyRun {
    /// Everything but compiled code; its `id` is the index in [`Running::proxies`].
    pub site: Arc<Site>,
    /// Its rules, compiled.
    pub rules: ProxyRules,
    /// Its log lines, compiled.
    pub log: Arc<ProxyLog>,
    /// The first bytes of connections to its servers, compiled.
    pub headers: Headers,
    /// The names that its servers are asked for in TLS, compiled.
    pub names: ServerNames,
    /// The checks of its servers, compiled.
    pub checks: Arc<CheckCode>,
    /// The filters of scripts that it names, with the numbers of their lines among its filters.
    pub script_filters: Vec<(usize, BoundFilter)>,
}

impl Deref for ProxyRun {
    type Target = Site;

    #[inline]
    fn deref(&self) -> &Site {
        &self.site
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the snapshot of a configuration without proxies, in the process in which `before` ran.
    pub(crate) fn without_proxies(process: &Arc<Process>, before: Option<&Running>) -> Arc<Running> {
        let mut config = sluicegate_config::Config {
            global: Default::default(),
            proxies: Vec::new(),
            stores: Vec::new(),
            engines: Vec::new(),
            origins: Vec::new(),
            tls_files: Default::default(),
            patterns: Default::default(),
            environment: Default::default(),
            user_lists: Vec::new(),
            resolvers: Vec::new(),
            peers: Vec::new(),
            namespaces: Vec::new(),
            limits: Vec::new(),
            rings: Vec::new(),
            traces: Default::default(),
            caches: Vec::new(),
            acme: Vec::new(),
            mailers: Vec::new(),
            programs: Vec::new(),
            log_profiles: Vec::new(),
        };
        // The threads of other tests keep their privileges.
        config.global.insecure_setuid = true;
        let parts = Parts {
            pages: crate::stats::pages(),
            engines: Default::default(),
            lua: None,
            logger: Default::default(),
            process: process.clone(),
        };
        build_after(Arc::new(config), parts, before).expect("a configuration without proxies")
    }
}
