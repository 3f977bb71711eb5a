//! Loading of files into a typed configuration, in the order of its phases: words, `.if` and `global`; the Lua bodies,
//! on this thread; every other section with the names that Lua registered; the stores' parameters.
//!
//! `check` and `run` share this code, so a file that passes the check also starts.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use sluicegate_config::model::{
    Acme, BindAddress, Global, LogAddress, LogTarget, LuaLogStderr, Position, Program, ProxyKind, StoreSection,
    TlsFiles,
};
use sluicegate_config::{Config, Diagnostics, Draft, Environment, Files, LuaNames, MemoryFiles, NoLua};
use sluicegate_pattern::{Kind, PatternFiles};
use sluicegate_proxy::log::{self, Logger};
use sluicegate_proxy::lua::{LineKind, LoadMap, LogSink, LuaPatterns, LuaStates, ReadBody};
use sluicegate_proxy::stats::info::node_name;
use sluicegate_proxy::time_zone;
use sluicegate_store::config::{ConfigLine, FileError, ServerOptions};
use sluicegate_store::server::{check_link, check_users};
use sluicegate_tls::x509::PrivateKey;

use crate::arguments::Service;
use crate::files::{Disk, Recorder};
use crate::report::Report;
use crate::shape::privileges::{self, Privileges};
use crate::{clients, commands, output, passed};

/// A configuration without errors.
pub struct Loaded {
    /// The configuration.
    pub config: Arc<Config>,
    /// Each store's parameters, by the order of [`Config::stores`].
    pub stores: Vec<ServerOptions>,
    /// The Lua states, in which the bodies of the scripts have run.
    pub lua: Option<Arc<LuaStates>>,
    /// The logger of scripts once the process runs; until it is set they log to stderr.
    pub lua_logger: Arc<OnceLock<Logger>>,
    /// The number of workers.
    pub workers: usize,
    /// The number of warnings.
    pub warnings: usize,
    /// The privileges that the process drops.
    pub privileges: Privileges,
}

impl Loaded {
    /// Returns whether clients can connect: an enabled section has a `bind`, or there is a stats socket, which HAProxy
    /// counts, too.
    pub fn listens(&self) -> bool {
        let config = &self.config;
        config.proxies.iter().any(|proxy| !proxy.disabled && !proxy.binds.is_empty())
            || config.stores.iter().any(|store| !store.binds.is_empty())
            || config.origins.iter().any(|origin| !origin.binds.is_empty())
            || config.peers.iter().any(|peers| peers.is_active() && peers.bind().is_some())
            || !config.global.stats_sockets.is_empty()
    }
}

/// The source from which a configuration is read.
pub struct Reading {
    files: Arc<dyn Files + Send + Sync>,
    /// Environment variables that replace those of this process.
    environment: Option<Vec<(String, String)>>,
    /// Set if a running process takes over the configuration.
    living: Option<Living>,
    /// Digests of certificates' files that need not be parsed.
    trusted: Vec<[u8; 32]>,
    /// Whether scripts are also read through `files`.
    scripts: bool,
}

/// Properties of the running process that takes over a configuration.
pub struct Living {
    /// Its fixed number of workers.
    pub workers: usize,
    /// The map and ACL files that the process has loaded.
    pub patterns: Arc<PatternFiles>,
    /// The certificates and other files of TLS that it has loaded.
    pub tls_files: Arc<TlsFiles>,
}

impl Default for Reading {
    /// Returns a source that reads from the disk, for a process that starts.
    fn default() -> Reading {
        Reading { files: Arc::new(Disk), environment: None, living: None, trusted: Vec::new(), scripts: false }
    }
}

impl Reading {
    /// Returns a source that reads from the disk, for a process that passes its files on to one that has parsed the
    /// certificates with these digests.
    pub fn recorded(files: Arc<Recorder>, environment: Vec<(String, String)>, trusted: Vec<[u8; 32]>) -> Reading {
        Reading { files, environment: Some(environment), trusted, ..Reading::default() }
    }

    /// Returns a source with the files that another process has read and checked.
    pub fn handed_over(files: MemoryFiles, environment: Vec<(String, String)>, living: Living) -> Reading {
        let (files, living) = (Arc::new(files), Some(living));
        Reading { files, environment: Some(environment), living, trusted: Vec::new(), scripts: true }
    }
}

/// The parsed words and the `global` section, which decide the shape of the processes before anything is created that a
/// fork would lose.
pub struct Begun {
    draft: Draft,
    environment: Environment,
    report: Report,
    reading: Reading,
}

/// Reads and checks the whole configuration; prints every diagnostic. `Err` contains the number of errors.
pub fn load(service: &Service) -> Result<Loaded, usize> {
    begin(service, Reading::default())?.finish(service)
}

/// Reads the files, up to `global`.
pub fn begin(service: &Service, reading: Reading) -> Result<Begun, usize> {
    let report = Report::new(service);
    if let Some(directory) = &service.directory
        && reading.living.is_none()
        && let Err(error) = std::env::set_current_dir(directory)
    {
        report.error(&format!("cannot change to directory {}: {error}", directory.display()));
        return Err(1);
    }
    let mut environment = match &reading.environment {
        Some(variables) => environment_from(service, variables.iter().cloned()),
        None => environment(service),
    };
    let source =
        sluicegate_config::read(&*reading.files, &service.files).map_err(|found| report.diagnostics(&found))?;
    if source.files.is_empty() {
        report.error("no configuration file: the directories have none whose name ends in .cfg");
        return Err(1);
    }
    let mut draft = sluicegate_config::parse(source, &*reading.files, &mut environment);
    match &reading.living {
        Some(living) => {
            draft.patterns().take_over(living.patterns.clone());
            draft.replace(living.tls_files.clone());
        }
        // Certificates of ACME survive a restart in the way in which they survive a reload.
        None => match sluicegate_proxy::acme::restored(draft.global()) {
            Ok(files) => files.into_iter().for_each(|files| draft.replace(Arc::new(files))),
            Err(message) => report.warning(&message),
        },
    }
    draft.trust(reading.trusted.iter().copied());
    if service.no_server_verify {
        draft.disable_server_verify();
    }
    Ok(Begun { draft, environment, report, reading })
}

/// Returns the `program` sections of the files as they are now; `None` if they cannot be read.
pub fn programs(service: &Service) -> Option<Vec<Program>> {
    let mut environment = environment(service);
    let source = sluicegate_config::read(&Disk, &service.files).ok()?;
    Some(sluicegate_config::parse(source, &Disk, &mut environment).programs())
}

impl Begun {
    /// Returns the `program` sections.
    pub fn programs(&self) -> Vec<Program> {
        self.draft.programs()
    }

    /// Returns the `global` section, as far as it could be read.
    pub fn global(&self) -> &Global {
        self.draft.global()
    }

    /// Returns whether the `global` section has errors, which [`Begun::finish`] will report.
    pub fn global_failed(&self) -> bool {
        self.draft.global_failed()
    }

    /// Loads the rest: scripts, sections, parameters; prints every diagnostic.
    ///
    /// The command line's settings override the file's `global` and are merged into it here, so that later code reads
    /// only one of them.
    pub fn finish(self, service: &Service) -> Result<Loaded, usize> {
        let Begun { mut draft, environment, report, reading } = self;
        let Reading { files: source, living, scripts, environment: replaced, .. } = reading;
        let workers = living.as_ref().map_or_else(|| workers(draft.global()), |living| living.workers);
        let lua_logger = Arc::new(OnceLock::new());
        let lua = if draft.global().lua_loads.is_empty() {
            None
        } else if draft.global_failed() {
            draft.skip_lua();
            None
        } else {
            // Where there are threads, they may be reading it.
            if living.is_none() {
                export(&environment);
            }
            let sink = lua_sink(draft.global(), service, lua_logger.clone());
            let files = draft.patterns().clone();
            let (known, disk) = (files.clone(), source.clone());
            let load_map: LoadMap =
                Arc::new(move |name| sluicegate_config::load_patterns(&*disk, &known, name, Kind::Map));
            let patterns = LuaPatterns { files, load_map };
            let read = |path: &std::path::Path| source.read(path);
            let read: Option<ReadBody<'_>> = if scripts { Some(&read) } else { None };
            let mut global = draft.global().clone();
            global.insecure_fork |= service.insecure_fork;
            match LuaStates::load_with(&global, workers, sink, patterns, read) {
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
        let mut privileges = Privileges::default();
        let global = draft.global().clone();
        let check_rest = |config: &Config, diagnostics: &mut Diagnostics| {
            stores = store_options(&config.stores, diagnostics);
            // A running process has already dropped its privileges, and cannot resolve names any more.
            if living.is_none() {
                check_links(&config.stores, &stores, diagnostics);
                privileges = Privileges::resolve(&global, diagnostics);
                privileges::check_owners(config, diagnostics);
            }
            // A process that hands its files over has not inherited what the serving one has.
            if living.is_none() && replaced.is_none() {
                passed::check(config, diagnostics);
            }
            clients::check(config, diagnostics);
            check_tls(config, diagnostics);
            commands::check_scripts(&global, config, &*source, diagnostics);
        };
        draft.check_commands(commands::check);
        let (config, diagnostics) = draft.finish_with(&*source, names, check_rest);
        // As in HAProxy, a file's `quiet` also silences diagnostics.
        let report = report.quieted(service.is_quiet(&global));
        let errors = report.diagnostics(&diagnostics);
        let Some(mut config) = config else { return Err(errors) };
        config.global.tune.splices &= !service.no_splice;
        if service.no_reuse_port {
            let binds = config.proxies.iter_mut().flat_map(|proxy| &mut proxy.binds);
            binds.for_each(|bind| bind.tcp.shares_port = false);
        }
        let mut warnings = diagnostics.warnings();
        if !service.master_sockets.is_empty() && !service.mode(&global).has_master() {
            report.warning("a master's socket ('-S') is of no use without a master process ('-W')");
            warnings += 1;
        }
        if warnings > 0 && (service.zero_warning || global.zero_warning) {
            report.error("some warnings were found and 'zero-warning' is set, aborting");
            return Err(1);
        }
        fold(service, &mut config);
        Ok(Loaded { warnings, config: Arc::new(config), stores, lua, lua_logger, workers, privileges })
    }
}

/// Creates the keys of accounts of `acme` sections that do not exist yet; sections with the same path share one. Each
/// file is new, with mode 0600.
pub fn create_account_keys(loaded: &mut Loaded, report: Report) -> Result<(), String> {
    let is_missing = |acme: &Acme| acme.account_key.is_none();
    if !loaded.config.acme.iter().any(is_missing) {
        return Ok(());
    }
    let mut created: HashMap<String, PrivateKey> = HashMap::new();
    for acme in Arc::make_mut(&mut loaded.config).acme.iter_mut().filter(|acme| is_missing(acme)) {
        let path = &acme.account_path;
        let key = match created.get(path) {
            Some(key) => key.clone(),
            None => {
                report.notice(&format!("acme: generate account key '{path}' for acme section '{}'.", acme.name));
                let key = PrivateKey::generate(acme.key).map_err(|reason| format!("acme: {reason}"))?;
                let written = key.to_pem().ok_or(io::ErrorKind::InvalidData.into());
                let written = written.and_then(|pem| output::create_secret(Path::new(path), &pem));
                written.map_err(|error| format!("acme: cannot write account key '{path}': {error}"))?;
                key
            }
        };
        created.insert(path.clone(), key.clone());
        acme.account_key = Some(key);
    }
    Ok(())
}

/// Warns about certificates whose OCSP response cannot be updated. HAProxy does not start with them.
fn check_tls(config: &Config, diagnostics: &mut Diagnostics) {
    let mut seen = BTreeSet::new();
    for bind in config.proxies.iter().flat_map(|proxy| &proxy.binds) {
        let entries = bind.tls.iter().flat_map(|tls| &tls.settings.entries);
        for pair in entries.map(|entry| &entry.pair) {
            let path = &*pair.path;
            if config.tls_files.ocsp_updates.contains(path)
                && pair.leaf().ocsp_uri().is_some()
                && pair.ocsp_key().is_none()
                && seen.insert(path)
            {
                let message = format!(
                    "'{path}' has an OCSP auto-update set to 'on' but an error occurred (maybe the OCSP URI or the issuer \
                     could not be found)"
                );
                let hint = "add the issuer's certificate behind it in its file, or by 'issuer' in a 'crt-store'";
                diagnostics.warning(bind.at.clone(), message).hint(hint);
            }
        }
    }
}

/// `nbthread` or one per core, at most `thread-hard-limit`.
fn workers(global: &Global) -> usize {
    let wanted = global.nbthread.map_or_else(cores, usize::from);
    global.thread_hard_limit.map_or(wanted, |most| wanted.min(most.into()))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the variables available in configuration files: those of the process, and those that HAProxy derives from
/// its command line (configuration manual 2.3). Values that are not UTF-8 are omitted, because no word of a file could
/// contain them.
pub fn environment(service: &Service) -> Environment {
    let texts =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    environment_from(service, texts)
}

/// Like [`environment`], with these variables of the process.
fn environment_from(service: &Service, texts: impl Iterator<Item = (String, String)>) -> Environment {
    let mut environment: Environment = texts.collect();
    environment.set_localpeer(&service.localpeer.clone().unwrap_or_else(node_name), service.localpeer.is_some());
    environment.remove("HAPROXY_CLI");
    if service.master_worker {
        environment.set("HAPROXY_MWORKER", "1");
    }
    if !service.master_sockets.is_empty() {
        let sockets: Vec<String> = service.master_sockets.iter().map(|socket| socket.address.with_family()).collect();
        environment.set("HAPROXY_MASTER_CLI", sockets.join(";"));
    }
    environment
}

/// Merges the command line's settings into `global`.
fn fold(service: &Service, config: &mut Config) {
    let global = &mut config.global;
    global.memory_mib = service.memory_mib;
    global.maxconn = service.maxconn.or(global.maxconn);
    global.pidfile = service.pidfile.clone().or(global.pidfile.take());
    global.localpeer = service.localpeer.clone().or(global.localpeer.take());
    let frontends = config.proxies.iter_mut().filter(|proxy| proxy.kind != ProxyKind::Backend);
    frontends.for_each(|proxy| proxy.maxconn = proxy.maxconn.or(service.proxy_maxconn));
}

/// Exports the environment that `setenv` has changed, so that scripts can read it (`os.getenv`).
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

/// Returns a script's message as HAProxy writes it: bytes other than printable ASCII become dots.
fn cleaned(text: &str) -> String {
    let dots = |char: char| if char == char::REPLACEMENT_CHARACTER { 1 } else { char.len_utf8() };
    text.chars().fold(String::with_capacity(text.len()), |mut clean, char| {
        match char {
            ' '..='~' => clean.push(char),
            _ => clean.extend(std::iter::repeat_n('.', dots(char))),
        }
        clean
    })
}

/// `tune.lua.log.*`: returns the receiver of scripts' messages. They go to the targets of the stream's proxy, or of
/// `global` outside a stream, and to stderr always, never, or if there are no such targets. Failures go to the targets and
/// to stderr.
fn lua_sink(global: &Global, service: &Service, logger: Arc<OnceLock<Logger>>) -> LogSink {
    let (to_targets, to_stderr) = (global.tune.lua_log_loggers, global.tune.lua_log_stderr);
    let (quiet, debug) = (service.is_quiet(global), service.debug);
    let own = global.log.clone();
    // HAProxy reads the file line by line: what follows `lua-load` is not there yet for the script's body.
    let first = global.lua_loads.first().map(|load| load.at.clone());
    let is_known = |target: &LogTarget| {
        first.as_ref().is_none_or(|first| target.at.file != first.file || target.at.line < first.line)
    };
    let known = own.iter().any(is_known);
    // Once the process runs, stderr is written by the control thread like any log: a full pipe delays no request.
    let stderr = [LogTarget::raw(LogAddress::Stderr)];
    Arc::new(move |line| {
        let severity = log::Severity::from_level(line.level);
        let text = cleaned(line.text);
        let targets = line.proxy.map_or(&own, |proxy| &proxy.log);
        let logger = logger.get();
        let say = |text: String| match logger {
            Some(logger) => logger.send(&stderr, severity, text.as_bytes()),
            None => eprintln!("{text}"),
        };
        if let Some(logger) = logger
            && (to_targets || line.kind != LineKind::Own)
        {
            logger.send(targets, severity, text.as_bytes());
        }
        let pid = std::process::id();
        match line.kind {
            LineKind::Failure if !quiet => return say(format!("[ALERT]    ({pid}) : {text}")),
            LineKind::Warning if !quiet && logger.is_none() => return say(format!("[WARNING]  ({pid}) : {text}")),
            LineKind::Failure => return,
            LineKind::Own | LineKind::Warning => {}
        }
        let has_targets = to_targets && if logger.is_some() { !targets.is_empty() } else { known };
        let wanted = match to_stderr {
            LuaLogStderr::On => true,
            LuaLogStderr::Off => false,
            LuaLogStderr::Auto => !has_targets,
        };
        let shown = (!quiet || logger.is_none()) && (debug || !matches!(severity, log::Severity::Debug));
        if wanted && shown {
            let time = time_zone::day_and_time(SystemTime::now());
            say(format!("[{}] {time} ({pid}) : {text}", severity.word().to_ascii_lowercase()));
        }
    })
}

/// Returns the users of a section as the store reads them, with their places in the list as the numbers of lines.
fn users(section: &StoreSection) -> Vec<ConfigLine> {
    let line = |(number, (words, _)): (usize, &(Vec<String>, Position))| ConfigLine {
        number,
        text: format!("user {}", words.join(" ")).into_bytes(),
        words: words.iter().map(|word| word.clone().into_bytes()).collect(),
    };
    section.users.iter().enumerate().map(line).collect()
}

/// Checks the files of encrypted links to masters.
fn check_links(sections: &[StoreSection], stores: &[ServerOptions], diagnostics: &mut Diagnostics) {
    // After an error there are fewer stores than sections.
    if sections.len() != stores.len() {
        return;
    }
    for (section, options) in sections.iter().zip(stores) {
        let Err(why) = check_link(&options.process.tls) else { continue };
        let line = section.parameters.iter().find(|(name, ..)| name == "tls-replication");
        let at = line.map_or(&section.at, |(_, _, at)| at);
        diagnostics.error(at.clone(), format!("'tls-replication yes': {why}"));
    }
}

/// Parses the parameters of every `store` section, and warns about a store that strangers can reach.
fn store_options(sections: &[StoreSection], diagnostics: &mut Diagnostics) -> Vec<ServerOptions> {
    let mut all = Vec::new();
    for section in sections {
        let options = match sluicegate_store::config::apply(&section.parameters) {
            Ok(options) => ServerOptions { users: users(section), ..options },
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
        if let Err(FileError::Line { number, message, .. }) = check_users(&options) {
            diagnostics.error(section.users[number].1.clone(), message);
            continue;
        }
        if let Some((name, at)) = &section.rules_user
            && options.aclfile.is_empty()
            && name != "default"
            && !section.users.iter().any(|(words, _)| words[0] == *name)
        {
            let message = format!("store '{}' has no user '{name}'", section.name);
            diagnostics.error(at.clone(), message).hint(format!("add a line 'user {name} on …' to the section"));
            continue;
        }
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
