//! The typed configuration: the form of a file that the rest of the program uses.
//!
//! Everything here is plain data with positions. Words have been unquoted, defaults applied, names resolved to
//! indices and expressions typed against the catalogues; nothing here opens a socket, resolves a name or reads a
//! clock. The objects that run are built from it by the `proxy` and `store` crates.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_pattern::PatternFiles;

use crate::Environment;

mod acme;
mod balance;
mod cache;
mod check;
mod compression;
mod edit;
mod error;
mod expression;
mod fcgi;
mod filter;
mod http_client;
mod limit;
mod log;
mod mailers;
mod mqtt;
mod peers;
mod persist;
mod program;
mod proxy;
mod resolvers;
mod rule;
mod socket;
mod source;
mod spoe;
mod stats;
mod status;
mod stick;
mod tls;
mod users;

pub use crate::position::Position;
pub use acme::*;
pub use balance::*;
pub use cache::*;
pub use check::*;
pub use compression::*;
pub use edit::*;
pub use error::*;
pub use expression::*;
pub use fcgi::*;
pub use filter::*;
pub use http_client::*;
pub use limit::*;
pub use log::*;
pub use mailers::*;
pub use mqtt::*;
pub use peers::*;
pub use persist::*;
pub use program::*;
pub use proxy::*;
pub use resolvers::*;
pub use rule::*;
pub use socket::*;
pub use source::*;
pub use spoe::*;
pub use stats::*;
pub use status::*;
pub use stick::*;
pub use tls::*;
pub use users::*;

/// A whole configuration, every default applied.
#[derive(Clone, Debug)]
pub struct Config {
    /// The `global` section.
    pub global: Global,
    /// Frontends, backends and listens in the order of the file; a [`ProxyId`] is an index here.
    pub proxies: Vec<Proxy>,
    /// Embedded stores; never empty (`store default` where the file names none).
    pub stores: Vec<StoreSection>,
    /// External engines: `redis` sections.
    pub engines: Vec<RedisSection>,
    /// Demo servers.
    pub origins: Vec<OriginSection>,
    /// `userlist` sections.
    pub user_lists: Vec<UserList>,
    /// `resolvers` sections; one of them is called `default`.
    pub resolvers: Vec<Resolvers>,
    /// `peers` sections.
    pub peers: Vec<Peers>,
    /// `log-profile` sections.
    pub log_profiles: Vec<LogProfile>,
    /// `mailers` sections.
    pub mailers: Vec<Mailers>,
    /// `program` sections.
    pub programs: Vec<Program>,
    /// `cache` sections.
    pub caches: Vec<CacheSection>,
    /// Network namespaces of `namespace_list` sections.
    pub namespaces: Vec<NamedNamespace>,
    /// The settings of `traces` sections.
    pub traces: crate::traces::Traces,
    /// `acme` sections.
    pub acme: Vec<Acme>,
    /// `ring` sections, and the rings of `log` lines whose target is a stream.
    pub rings: Vec<Ring>,
    /// The settings of `limit` rules, one per name.
    pub limits: Vec<Arc<Limit>>,
    /// Certificates and other files of TLS by name. A configuration that replaces this one may share them.
    pub tls_files: Arc<TlsFiles>,
    /// Map and ACL files by name. They change at run time: a copy of the configuration shares them.
    pub patterns: Arc<PatternFiles>,
    /// The environment as the file has changed it.
    pub environment: Environment,
}

impl Config {
    /// Returns all stick tables in the order of `all_tables_mut`: those of proxies, then those of
    /// `peers` sections.
    pub fn all_tables(&self) -> impl Iterator<Item = &StickTable> {
        let proxies = self.proxies.iter().filter_map(|proxy| proxy.stick_table.as_ref());
        proxies.chain(self.peers.iter().flat_map(|peers| &peers.tables))
    }

    /// Returns all stick tables, to be changed.
    pub(crate) fn all_tables_mut(&mut self) -> impl Iterator<Item = &mut StickTable> {
        let proxies = self.proxies.iter_mut().filter_map(|proxy| proxy.stick_table.as_mut());
        proxies.chain(self.peers.iter_mut().flat_map(|peers| &mut peers.tables))
    }
}

/// An index into [`Config::proxies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProxyId(pub u32);

/// The time at which clients' connections end that should carry no further request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CloseSpread {
    /// As soon as they can.
    #[default]
    AtOnce,
    /// Each at a moment of its own within this time.
    Within(Duration),
    /// When their clients or timeouts end them.
    Never,
}

/// The `global` section.
#[derive(Clone, Debug, Default)]
pub struct Global {
    /// `nbthread`: workers; `None` means one per available core.
    pub nbthread: Option<u16>,
    /// `thread-groups`, of which there is one by default; listeners may name no others.
    pub thread_groups: Option<u16>,
    /// `maxconn`: sessions of the whole process; `None` means derived from the descriptor limit.
    pub maxconn: Option<u32>,
    /// `maxconnrate`: connections a second of all frontends; 0: without a limit.
    pub maxconnrate: u32,
    /// `maxsessrate`: sessions a second of all frontends; 0: without a limit.
    pub maxsessrate: u32,
    /// `h1-case-adjust` and its file: field names in lower case, and their spelling for peers that need it.
    pub name_cases: BTreeMap<Vec<u8>, Vec<u8>>,
    /// `h1-case-adjust-file` and its position.
    pub name_case_file: Option<(String, Position)>,
    /// `daemon`: parsed; acts with the drop-in service, check warns until then.
    pub daemon: bool,
    /// `master-worker`.
    pub master_worker: bool,
    /// `master-worker no-exit-on-failure`.
    pub no_exit_on_failure: bool,
    /// `expose-deprecated-directives`: `program` sections are allowed.
    pub expose_deprecated: bool,
    /// `node`: the name in `show info`; `None` means the machine's.
    pub node: Option<String>,
    /// `http-err-codes`, `http-fail-codes`.
    pub status_classes: StatusClasses,
    /// `description`, for `show info`.
    pub description: Option<String>,
    /// `quiet`.
    pub quiet: bool,
    /// `zero-warning`.
    pub zero_warning: bool,
    /// Memory of the process in MiB, which the command line alone sets (`-m`).
    pub memory_mib: Option<u64>,
    /// Limits of compression.
    pub compression: CompressionLimits,
    /// `expose-experimental-directives`.
    pub experimental: bool,
    /// `acme.scheduler off`: certificates are renewed by commands alone.
    pub acme_unscheduled: bool,
    /// `acme.state-file`: certificates of ACME across restarts, a path inside `chroot`.
    pub acme_state_file: Option<PathBuf>,
    /// `httpclient.*`.
    pub http_client: HttpClientSettings,
    /// `chroot`.
    pub chroot: Option<PathBuf>,
    /// `user`, a name.
    pub user: Option<String>,
    /// `uid`.
    pub uid: Option<u32>,
    /// `group`, a name.
    pub group: Option<String>,
    /// `gid`.
    pub gid: Option<u32>,
    /// `pidfile`.
    pub pidfile: Option<PathBuf>,
    /// `ulimit-n`, descriptors; `None` means derived from `maxconn`.
    pub ulimit_n: Option<u64>,
    /// `fd-hard-limit`.
    pub fd_hard_limit: Option<u64>,
    /// `external-check [preserve-env]`: whether its programs get the environment of this process.
    pub external_check: Option<bool>,
    /// `insecure-fork-wanted`.
    pub insecure_fork: bool,
    /// `insecure-setuid-wanted`.
    pub insecure_setuid: bool,
    /// `set-dumpable`.
    pub dumpable: bool,
    /// `strict-limits`.
    pub limits: Limits,
    /// `thread-hard-limit`.
    pub thread_hard_limit: Option<u16>,
    /// `unix-bind`.
    pub unix_bind: UnixBind,
    /// `spread-checks`, percent.
    pub spread_checks: u32,
    /// `max-spread-checks`.
    pub max_spread_checks: Option<Duration>,
    /// `localpeer`; `None` means the machine's name.
    pub localpeer: Option<String>,
    /// `log` targets of the section.
    pub log: Vec<LogTarget>,
    /// `log-tag`; the program's name by default.
    pub log_tag: Option<Arc<str>>,
    /// `log-send-hostname`.
    pub log_host: LogHost,
    /// `server-state-file`.
    pub server_state_file: Option<String>,
    /// `server-state-base`: where state files are whose names are no absolute paths.
    pub server_state_base: Option<PathBuf>,
    /// `runtime-state-file`.
    pub runtime_state: Option<RuntimeState>,
    /// `stats-file`.
    pub stats_file: Option<PathBuf>,
    /// `stats socket` lines.
    pub stats_sockets: Vec<StatsSocket>,
    /// `stats maxconn`; default 10.
    pub stats_maxconn: Option<usize>,
    /// `stats timeout`; default 10 s.
    pub stats_timeout: Option<Duration>,
    /// `default-path`.
    pub default_paths: crate::DefaultPaths,
    /// `lua-load` and `lua-load-per-thread`, in order.
    pub lua_loads: Vec<LuaLoad>,
    /// `lua-prepend-path PATTERN [path|cpath]`, in order.
    pub lua_prepend_paths: Vec<LuaPath>,
    /// TLS.
    pub tls: GlobalTls,
    /// `tune.*`.
    pub tune: Tune,
    /// `noreuseport`.
    pub no_reuse_port: bool,
    /// `no-quic`.
    pub no_quic: bool,
    /// `dns-accept-family`.
    pub dns_families: DnsFamilies,
    /// `h1-accept-payload-with-any-method`.
    pub any_payload: bool,
    /// `h1-do-not-close-on-insecure-transfer-encoding`.
    pub keeps_insecure: bool,
    /// `pp2-never-send-local`.
    pub never_local: bool,
    /// `anonkey`; 0 is a random key.
    pub anonymous_key: u32,
    /// `grace`: the time between SIGUSR1 and the soft stop.
    pub grace: Option<Duration>,
    /// `setcap`: a bit for each number of a capability.
    pub capabilities: u32,
    /// `tune.renice.startup`.
    pub startup_priority: Option<i8>,
    /// `tune.renice.runtime`.
    pub runtime_priority: Option<i8>,
    /// `harden.reject-privileged-ports.tcp`.
    pub refuses_privileged_ports: bool,
    /// `set-var` and `set-var-fmt`, in order.
    pub presets: Vec<Preset>,
    /// `hard-stop-after`.
    pub hard_stop_after: Option<Duration>,
    /// `close-spread-time`.
    pub close_spread: CloseSpread,
    /// The last position of each keyword of the section; see [`Global::at`].
    pub places: BTreeMap<&'static str, Position>,
}

/// `runtime-state-file`: what a process learned while it ran, for the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeState {
    /// The file, a path inside `chroot`.
    pub path: PathBuf,
    /// The time between two writes.
    pub interval: Duration,
}

/// A variable of the process that the configuration sets.
#[derive(Clone, Debug)]
pub struct Preset {
    /// Its scope is `proc`.
    pub target: VarTarget,
    /// Its value.
    pub value: PresetValue,
    /// The value as it is written in the file.
    pub text: String,
    /// Its position in the file.
    pub at: Position,
}

/// The value of a variable.
#[derive(Clone, Debug)]
pub enum PresetValue {
    /// `set-var`.
    Expr(Expr),
    /// `set-var-fmt`.
    Format(LogFormat),
}

/// `tune.vars.*-max-size`: bytes of variables; 0 is unlimited. Each scope counts those within it as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VariableLimits {
    /// `tune.vars.global-max-size`.
    pub global: usize,
    /// `tune.vars.proc-max-size`.
    pub process: usize,
    /// `tune.vars.sess-max-size`.
    pub session: usize,
    /// `tune.vars.txn-max-size`.
    pub transaction: usize,
    /// `tune.vars.reqres-max-size`.
    pub message: usize,
    /// `tune.vars.check-max-size`.
    pub check: usize,
}

/// `strict-limits`.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Whether a limit that can't be raised refuses the start.
    pub strict: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { strict: true }
    }
}

/// `unix-bind`: defaults of unix sockets.
#[derive(Clone, Debug, Default)]
pub struct UnixBind {
    /// The prefix of the paths of `bind` lines.
    pub prefix: Option<String>,
    /// `mode`, octal.
    pub mode: Option<u32>,
    /// `user` or `uid`, as written.
    pub user: Option<String>,
    /// `group` or `gid`, as written.
    pub group: Option<String>,
}

impl Global {
    /// Returns the position of a keyword, for errors found in its value later (a user that does not exist).
    pub fn at(&self, keyword: &str) -> Option<&Position> {
        self.places.get(keyword)
    }
}

/// The `tune.*` keywords that act.
#[derive(Clone, Debug)]
pub struct Tune {
    /// Whether large bodies pass through kernel pipes (no `nosplice`).
    pub splices: bool,
    /// `maxpipes`, of all workers together.
    pub maxpipes: Option<u32>,
    /// `tune.peers.max-updates-at-once`: updates that a peer is sent before others have their turn; 200.
    pub peers_updates: u32,
    /// `tune.stick-counters`.
    pub stick_counters: usize,
    /// `tune.pipesize`, bytes; 0: the default.
    pub pipesize: usize,
    /// `tune.vars.*`.
    pub variables: VariableLimits,
    /// Sizes of clients' sockets.
    pub client_sockets: SocketSizes,
    /// Sizes of sockets to servers.
    pub server_sockets: SocketSizes,
    /// `tune.bufsize`, bytes; 16384.
    pub bufsize: usize,
    /// `tune.maxrewrite`, bytes; 1024.
    pub maxrewrite: usize,
    /// `tune.http.maxhdr`; 101.
    pub http_maxhdr: usize,
    /// `tune.http.cookielen`; 63.
    pub http_cookielen: usize,
    /// `tune.http.logurilen`; 1023.
    pub http_logurilen: usize,
    /// `tune.h2.*`.
    pub h2: Http2,
    /// `tune.lua.session-timeout`, run time of one action in total; 4 s. `None`: unlimited.
    pub lua_session_timeout: Option<Duration>,
    /// `tune.lua.task-timeout`; none.
    pub lua_task_timeout: Option<Duration>,
    /// `tune.lua.service-timeout`; 4 s.
    pub lua_service_timeout: Option<Duration>,
    /// `tune.lua.burst-timeout`, run time between two yields; 1 s.
    pub lua_burst_timeout: Option<Duration>,
    /// `tune.lua.forced-yield`, instructions between voluntary yields; parsed for compatibility.
    pub lua_forced_yield: Option<u32>,
    /// `tune.lua.maxmem`, bytes for all states together; 0 means unlimited.
    pub lua_maxmem: usize,
    /// `tune.lua.bool-sample-conversion pre-3.1-bug`: Lua gets boolean samples as 0 and 1; HAProxy's default,
    /// where it is not set.
    pub lua_bool_as_integer: Option<bool>,
    /// `tune.lua.openlibs`: a bit for each of [`LUA_LIBRARIES`].
    pub lua_libraries: u8,
    /// `tune.lua.watchdog-abort`.
    pub lua_watchdog_abort: bool,
    /// `tune.lua.log.loggers`.
    pub lua_log_loggers: bool,
    /// `tune.lua.log.stderr`: `on`, `off` or `auto`.
    pub lua_log_stderr: LuaLogStderr,
}

impl Tune {
    /// Returns the number of pipes of all workers together.
    pub fn pipes(&self, workers: usize) -> u32 {
        /// The default number of pipes of a worker.
        const PIPES: u32 = 64;
        if self.splices { self.maxpipes.unwrap_or(PIPES.saturating_mul(workers as u32)) } else { 0 }
    }
}

impl Default for Tune {
    fn default() -> Self {
        Tune {
            splices: true,
            maxpipes: None,
            peers_updates: 200,
            stick_counters: crate::limits::TRACKED_COUNTERS,
            pipesize: 0,
            variables: VariableLimits::default(),
            client_sockets: SocketSizes::default(),
            server_sockets: SocketSizes::default(),
            bufsize: 16384,
            maxrewrite: 1024,
            http_maxhdr: 101,
            http_cookielen: 63,
            http_logurilen: 1023,
            h2: Http2::default(),
            lua_session_timeout: Some(Duration::from_secs(4)),
            lua_task_timeout: None,
            lua_service_timeout: Some(Duration::from_secs(4)),
            lua_burst_timeout: Some(Duration::from_secs(1)),
            lua_forced_yield: None,
            lua_maxmem: 0,
            lua_bool_as_integer: None,
            lua_libraries: u8::MAX,
            lua_watchdog_abort: false,
            lua_log_loggers: true,
            lua_log_stderr: LuaLogStderr::Auto,
        }
    }
}

/// The libraries that `tune.lua.openlibs` names.
pub const LUA_LIBRARIES: [&str; 8] = ["table", "io", "os", "string", "math", "utf8", "package", "debug"];

/// `tune.lua.log.stderr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LuaLogStderr {
    /// Always.
    On,
    /// Only if there is no logger.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// `lua-load[-per-thread] FILE [ARG…]`.
#[derive(Clone, Debug)]
pub struct LuaLoad {
    /// The script, as it is written.
    pub path: PathBuf,
    /// The base of relative paths and the working directory of the script's body (`default-path`); `None`: the
    /// process's.
    pub directory: Option<PathBuf>,
    /// Arguments, the script's `...`.
    pub args: Vec<String>,
    /// A state per worker instead of the shared one.
    pub per_thread: bool,
    /// Its position in the file.
    pub at: Position,
}

impl LuaLoad {
    /// Returns the script's file, seen from the working directory.
    pub fn file(&self) -> PathBuf {
        match &self.directory {
            Some(directory) => directory.join(&self.path),
            None => self.path.clone(),
        }
    }
}

/// `lua-prepend-path`.
#[derive(Clone, Debug)]
pub struct LuaPath {
    /// The pattern, e.g. `/usr/share/lua/5.1/?.lua`.
    pub pattern: String,
    /// `package.cpath` instead of `package.path`.
    pub cpath: bool,
}

impl Config {
    /// Returns whether connections of clients or of servers use TLS.
    pub fn uses_tls(&self) -> bool {
        let peers = self.peers.iter().map(|peers| &peers.proxy);
        self.proxies.iter().chain(peers).any(|proxy| {
            proxy.binds.iter().any(|bind| bind.tls.is_some()) || proxy.servers.iter().any(|server| server.tls.is_some())
        })
    }
}

/// `stats socket ADDRESS [mode M] [level L] [user U] [group G] [name N] …`.
#[derive(Clone, Debug)]
pub struct StatsSocket {
    /// The listening address.
    pub address: BindAddress,
    /// `mode`, octal.
    pub mode: Option<u32>,
    /// `level`; operator by default.
    pub level: StatsLevel,
    /// `user` or `uid`, as written.
    pub user: Option<String>,
    /// `group` or `gid`, as written.
    pub group: Option<String>,
    /// `expose-fd listeners`: passes the listening sockets to clients that request them.
    pub expose: bool,
    /// `severity-output`.
    pub severity: SeverityOutput,
    /// `accept-proxy`: connections begin with a PROXY protocol header.
    pub accept_proxy: bool,
    /// `maxconn`.
    pub maxconn: Option<u32>,
    /// `backlog`.
    pub backlog: Option<u32>,
    /// `v6only`, `v4v6`.
    pub v6only: Option<bool>,
    /// Options of a TCP socket.
    pub tcp: BindTcp,
    /// `ssl` with all that belongs to it.
    pub tls: Option<Arc<BindTls>>,
    /// Its position in the file.
    pub at: Position,
}

/// The prefix of messages on a stats socket (`severity-output`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeverityOutput {
    /// Nothing.
    #[default]
    None,
    /// `[3]: `, a level of syslog.
    Number,
    /// `[err]: `, its name.
    String,
}

/// Rights on the stats socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatsLevel {
    /// Reads non-sensitive data.
    User,
    /// Reads everything, makes only harmless changes.
    #[default]
    Operator,
    /// Changes everything.
    Admin,
}

/// A `store NAME` section.
#[derive(Clone, Debug)]
pub struct StoreSection {
    /// Its name.
    pub name: Arc<str>,
    /// `bind ADDRESS:PORT`: RESP for everyone else; empty without.
    pub binds: Vec<Bind>,
    /// Any CONFIG parameter, lower-cased, with its value and place; the store's own catalogue types them.
    pub parameters: Vec<(String, String, Position)>,
    /// `user NAME [RULE]…`: the name and the rules; the store reads them.
    pub users: Vec<(Vec<String>, Position)>,
    /// `rules-user NAME`: the user as which rules and scripts of this process use the store; `None`: they may do
    /// everything.
    pub rules_user: Option<(String, Position)>,
    /// Its position in the file.
    pub at: Position,
}

/// A `redis NAME` section: an engine in another process.
#[derive(Clone, Debug)]
pub struct RedisSection {
    /// Its name.
    pub name: Arc<str>,
    /// `mode`, with what only this mode has.
    pub mode: EngineMode,
    /// The engine, its sentinels, or some of a cluster's nodes.
    pub servers: Vec<EngineServer>,
    /// `ssl`.
    pub tls: Option<EngineTls>,
    /// `auth [USER] PASSWORD`.
    pub auth: Option<(Option<String>, String)>,
    /// `db N`: the default database.
    pub db: u32,
    /// `maxconn N`: most connections of the process; `None`: the default.
    pub maxconn: Option<u32>,
    /// `maxqueue N`: most commands that wait for a connection.
    pub maxqueue: Option<u32>,
    /// `timeout connect`.
    pub timeout_connect: Option<Duration>,
    /// `timeout queue`.
    pub timeout_queue: Option<Duration>,
    /// `timeout server`.
    pub timeout_server: Option<Duration>,
    /// `timeout idle`; zero: idle connections stay.
    pub timeout_idle: Option<Duration>,
    /// `max-lifetime TIME`; zero: connections are not renewed.
    pub max_lifetime: Option<Duration>,
    /// `connect-rate N`: most attempts to connect in a second.
    pub connect_rate: Option<u32>,
    /// `breaker N`: failures in a row after which the engine is not asked for a while.
    pub breaker: Option<u32>,
    /// `client-cache SIZE`: bytes of cached replies, which the engine invalidates when keys change.
    pub client_cache: Option<u64>,
    /// `on-error`: the handling of failures in rules without an `on-error` of their own.
    pub on_error: OnError,
    /// Its position in the file.
    pub at: Position,
}

/// `mode` of a `redis` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineMode {
    /// One engine.
    Single,
    /// An engine that sentinels know.
    Sentinel {
        /// `sentinel-master NAME`.
        master: String,
        /// `sentinel-auth [USER] PASSWORD`.
        auth: Option<(Option<String>, String)>,
        /// `read-from replica`.
        from_replicas: bool,
    },
    /// Several engines that share the slots.
    Cluster {
        /// `read-from replica`.
        from_replicas: bool,
    },
}

/// `ssl` of a `redis` section, with the contents of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineTls {
    /// `verify required` with `ca-file FILE`; `None`: `verify none`.
    pub authorities: Option<Vec<u8>>,
    /// `crt FILE`: certificates and key.
    pub certificate: Option<Vec<u8>>,
    /// `sni NAME`.
    pub name: Option<String>,
    /// The position of `ssl`.
    pub at: Position,
}

/// `server NAME ADDRESS` of a `redis` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineServer {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: EngineAddress,
    /// Its position in the file.
    pub at: Position,
}

/// The address of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineAddress {
    /// A name or address, and a port; names are looked up at each connect.
    Tcp(String, u16),
    /// A unix socket's path.
    Unix(PathBuf),
}

/// An `origin NAME` section: a demo server.
#[derive(Clone, Debug)]
pub struct OriginSection {
    /// Its name.
    pub name: Arc<str>,
    /// The listening addresses.
    pub binds: Vec<Bind>,
    /// Its position in the file.
    pub at: Position,
}
