//! From files to a typed configuration, in the order that each phase needs: words, `.if` and `global`; the Lua bodies,
//! on this thread; every other section with the names that Lua registered; the stores' parameters.
//!
//! `check` and `run` share this, so what checks is what starts.

use std::sync::{Arc, OnceLock};

use sluicegate_config::model::{BindAddress, Global, LogAddress, LogTarget, LogWire, LuaLogStderr, StoreSection};
use sluicegate_config::{Config, Diagnostics, Environment, LuaNames, NoLua, Severity};
use sluicegate_proxy::log::{self, Logger};
use sluicegate_proxy::lua::{LogSink, LuaStates};
use sluicegate_store::config::ServerOptions;

use crate::arguments::Service;
use crate::files::Disk;

/// A configuration without errors.
pub struct Loaded {
    /// The file.
    pub config: Arc<Config>,
    /// Each store's parameters, by the order of [`Config::stores`].
    pub stores: Vec<ServerOptions>,
    /// The Lua states, bodies run.
    pub lua: Option<Arc<LuaStates>>,
    /// Where scripts log once the process runs; until it is filled they log to stderr.
    pub lua_logger: Arc<OnceLock<Logger>>,
    /// How many workers there will be.
    pub workers: usize,
}

impl Loaded {
    /// Somebody could connect: a section that is enabled has a `bind`.
    pub fn listens(&self) -> bool {
        let config = &self.config;
        config.proxies.iter().any(|proxy| !proxy.disabled && !proxy.binds.is_empty())
            || config.stores.iter().any(|store| !store.binds.is_empty())
            || config.origins.iter().any(|origin| !origin.binds.is_empty())
    }
}

/// Reads and types everything; prints every diagnostic. `Err` carries the number of errors.
pub fn load(service: &Service) -> Result<Loaded, usize> {
    let mut environment = Environment::new();
    for (name, value) in std::env::vars_os() {
        if let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) {
            environment.set(name, value);
        }
    }
    let source = sluicegate_config::read(&Disk, &service.files).map_err(|diagnostics| report(&diagnostics))?;
    let mut draft = sluicegate_config::parse(source, &mut environment);
    let workers = draft.global().nbthread.map_or_else(cores, usize::from);
    let lua_logger = Arc::new(OnceLock::new());
    let lua = if draft.global().lua_loads.is_empty() {
        None
    } else if draft.global_failed() {
        draft.skip_lua();
        None
    } else {
        export(&environment);
        let sink = lua_sink(draft.global(), lua_logger.clone());
        match LuaStates::load(draft.global(), workers, sink) {
            Ok(states) => Some(states),
            Err(error) => {
                draft.lua_failed(error.at, error.message);
                None
            }
        }
    };
    let names: &dyn LuaNames = match &lua {
        Some(states) => &**states,
        None => &NoLua,
    };
    let mut stores = Vec::new();
    let check_stores = |sections: &[StoreSection], diagnostics: &mut Diagnostics| {
        stores = store_options(sections, diagnostics);
    };
    let (config, diagnostics) = draft.finish_with(&Disk, names, check_stores);
    let errors = report(&diagnostics);
    let Some(config) = config else { return Err(errors) };
    Ok(Loaded { config: Arc::new(config), stores, lua, lua_logger, workers })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Prints all of them but those for the curious, which HAProxy shows with `-dD` only; gives the number of errors.
fn report(diagnostics: &Diagnostics) -> usize {
    for diagnostic in diagnostics.iter().filter(|diagnostic| diagnostic.severity > Severity::Diag) {
        eprintln!("{diagnostic}");
    }
    if diagnostics.left_off() > 0 {
        eprintln!("notice: {} more are not shown", diagnostics.left_off());
    }
    diagnostics.errors()
}

/// Scripts read the environment that `setenv` made (`os.getenv`).
fn export(environment: &Environment) {
    let known: Vec<(String, String)> =
        environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let gone: Vec<std::ffi::OsString> = std::env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| name.to_str().is_some_and(|name| environment.get(name).is_none()))
        .collect();
    // SAFETY: no other thread exists yet: files are read and scripts loaded before the first one is started.
    unsafe {
        gone.iter().for_each(|name| std::env::remove_var(name));
        known.iter().for_each(|(name, value)| std::env::set_var(name, value));
    }
}

/// `tune.lua.log.*`: to the `log` targets of `global`, and to stderr always, never, or where there is no target.
fn lua_sink(global: &Global, logger: Arc<OnceLock<Logger>>) -> LogSink {
    let targets = if global.tune.lua_log_loggers { global.log.clone() } else { Vec::new() };
    let to_stderr = match global.tune.lua_log_stderr {
        LuaLogStderr::On => true,
        LuaLogStderr::Off => false,
        LuaLogStderr::Auto => targets.is_empty(),
    };
    // Once the process runs, stderr is written by the control thread like any log: a full pipe delays no request.
    let stderr = [LogTarget {
        to: LogAddress::Stderr,
        format: LogWire::Raw,
        max_len: 65_535,
        facility: 0,
        max_level: 7,
        min_level: 0,
    }];
    Arc::new(move |level, text| {
        let severity = log::Severity::from_level(level);
        let line = || format!("[{}]    ({}) : {text}", severity.word(), std::process::id());
        match logger.get() {
            Some(logger) => {
                logger.send(&targets, severity, text.as_bytes());
                if to_stderr {
                    logger.send(&stderr, severity, line().as_bytes());
                }
            }
            None => eprintln!("{}", line()),
        }
    })
}

/// Types the parameters of every `store` section, and warns of a store that strangers reach.
fn store_options(sections: &[StoreSection], diagnostics: &mut Diagnostics) -> Vec<ServerOptions> {
    let mut all = Vec::new();
    for section in sections {
        let options = match sluicegate_store::config::apply(&section.parameters) {
            Ok(options) => options,
            Err(failed) => {
                for error in failed {
                    let diagnostic = diagnostics.error(error.at, error.message);
                    if let Some(hint) = error.hint {
                        diagnostic.hint(hint);
                    }
                }
                continue;
            }
        };
        for bind in &section.binds {
            let warning = bind.addresses.iter().find_map(|address| match address {
                BindAddress::Inet(host, _) => options.public_bind_warning(*host),
                _ => None,
            });
            if let Some(warning) = warning {
                diagnostics.warning(bind.at.clone(), warning);
            }
        }
        all.push(options);
    }
    all
}
