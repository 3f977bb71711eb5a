//! The running objects of one configuration: an immutable snapshot, shared by every worker.
//!
//! A reload builds a new [`Running`] beside the old one and swaps it. What must outlive a snapshot (counters, queues,
//! health, run-time changes) hangs off `shared` fields and is handed over by proxy and server name.

use std::collections::HashMap;
use std::sync::Arc;

use sluicegate_config::Config;
use sluicegate_config::model::{self, ProxyId, ProxyKind};
use sluicegate_wire::engine::Engine;

use crate::cli::catalogue::Registry;
use crate::listener::FrontendShared;
use crate::log::{Logger, ProxyLog};
use crate::lua::LuaStates;
use crate::process::Process;
use crate::rule::{CompileError, ProxyRules};
use crate::server::{BackendShared, IdleConnections, ServerRun, build_backend};

/// The stores and engines that rules and scripts may name.
pub type Engines = HashMap<Arc<str>, Arc<dyn Engine>>;

/// One configuration, running.
pub struct Running {
    /// What it was built from.
    pub config: Arc<Config>,
    /// By [`ProxyId`].
    pub proxies: Vec<Arc<ProxyRun>>,
    /// Backends (and listens) by name, for names that are computed per request.
    pub backends: HashMap<Arc<str>, ProxyId>,
    /// By name.
    pub engines: Engines,
    /// The Lua states, if the file loads any script.
    pub lua: Option<Arc<LuaStates>>,
    /// Log lines go here; the control thread writes them.
    pub logger: Logger,
    /// Limits and figures of the whole process.
    pub process: Arc<Process>,
    /// Commands of the stats socket that scripts added.
    pub commands: Registry,
    /// Each worker's idle server connections, by worker.
    pub idle: Box<[Arc<IdleConnections>]>,
}

/// What [`build`] needs besides the configuration.
pub struct Parts {
    /// The stores and engines that rules and scripts may name.
    pub engines: Engines,
    /// The Lua states, if the file loads any script.
    pub lua: Option<Arc<LuaStates>>,
    /// Where log lines go.
    pub logger: Logger,
    /// Limits and figures of the process; it knows how many workers there are.
    pub process: Arc<Process>,
}

/// Builds the running objects of a configuration, or says which rules can't run. It opens nothing and starts nothing.
pub fn build(config: Arc<Config>, parts: Parts) -> Result<Arc<Running>, Vec<CompileError>> {
    if let Some(lua) = &parts.lua {
        lua.attach(parts.engines.clone());
    }
    let workers = parts.process.workers.len();
    let mut proxies = Vec::with_capacity(config.proxies.len());
    let mut errors = Vec::new();
    for (index, proxy) in config.proxies.iter().enumerate() {
        let rules = ProxyRules::compile(proxy, &config, &parts.engines, parts.lua.as_ref());
        let log = ProxyLog::compile(&proxy.logging, &parts.engines);
        match (rules, log) {
            (Ok(rules), Ok(log)) => proxies.push(build_proxy(ProxyId(index as u32), proxy, rules, log, workers)),
            (rules, log) => errors.extend(rules.err().into_iter().chain(log.err()).flatten()),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let backends = proxies
        .iter()
        .filter(|proxy| proxy.config.kind != ProxyKind::Frontend)
        .map(|proxy| (proxy.config.name.clone(), proxy.id))
        .collect();
    let running = Arc::new(Running {
        config,
        proxies,
        backends,
        engines: parts.engines,
        lua: parts.lua,
        logger: parts.logger,
        process: parts.process,
        commands: Registry::default(),
        idle: (0..workers).map(|_| Arc::new(IdleConnections::default())).collect(),
    });
    if let Some(lua) = &running.lua {
        lua.publish(&running);
    }
    Ok(running)
}

fn build_proxy(id: ProxyId, config: &model::Proxy, rules: ProxyRules, log: ProxyLog, workers: usize) -> Arc<ProxyRun> {
    let (backend, servers) = build_backend(config, workers);
    Arc::new(ProxyRun {
        id,
        config: Arc::new(config.clone()),
        rules,
        log,
        frontend: Arc::new(FrontendShared::new(workers, config.maxconn)),
        backend,
        servers,
    })
}

/// A frontend, backend or listen, running.
pub struct ProxyRun {
    /// Its place in [`Running::proxies`].
    pub id: ProxyId,
    /// Its configuration.
    pub config: Arc<model::Proxy>,
    /// Its rules, compiled.
    pub rules: ProxyRules,
    /// What it logs, compiled.
    pub log: ProxyLog,
    /// The frontend's limits and figures; counted even where the section has no frontend side.
    pub frontend: Arc<FrontendShared>,
    /// The backend's queue, balance and figures.
    pub backend: Arc<BackendShared>,
    /// Its servers.
    pub servers: Vec<Arc<ServerRun>>,
}
