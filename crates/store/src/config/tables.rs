//! Parameters of the process of a standalone store, and parameters of missing features.

use super::{Field, ServerOptions};
use crate::oom_score::{OomMode, OomTerms};

/// A parameter of the process: it acts where the store stands alone (`sluicegate store`, `redis-server`). In a `store`
/// section of a proxy's file it is refused, with what to write instead.
pub struct ProcessParameter {
    /// Its name.
    pub name: &'static str,
    /// Whether `CONFIG SET` may change it; otherwise it is read at the start.
    pub live: bool,
    /// One sentence.
    pub docs: &'static str,
    /// The reason why it is not allowed in a `store` section.
    pub in_section: &'static str,
    pub(super) field: Field,
}

const fn process(name: &'static str, field: Field, docs: &'static str, in_section: &'static str) -> ProcessParameter {
    ProcessParameter { name, live: false, docs, in_section, field }
}

/// Returns a parameter of TLS, which CONFIG SET can change.
const fn tls(name: &'static str, field: Field, docs: &'static str, in_section: &'static str) -> ProcessParameter {
    ProcessParameter { name, live: true, docs, in_section, field }
}

const SSL_CRT: &str = "write 'bind ADDRESS:PORT ssl crt FILE' in the store section";
const SSL_VERIFY: &str = "write 'bind ADDRESS:PORT ssl crt FILE ca-file FILE verify required' in the store section";
const SSL_CACHE: &str = "'tune.ssl.cachesize' and 'tune.ssl.lifetime' in the global section decide that";
const BIND: &str = "write 'bind ADDRESS:PORT' in the store section";
const LOG: &str = "'log' in the global section decides that";
const SIGNALS: &str = "a proxy's stores are saved when the process ends, if 'save' says so";
const OOM: &str = "a proxy leaves the score of its process to the system";
const THREADS: &str = "'nbthread' in the global section sets the workers";

/// The parameters of the process of a standalone store, by name.
pub static PROCESS: &[ProcessParameter] = &[
    ProcessParameter {
        name: "bind",
        live: true,
        docs: "Addresses to listen on; one with a leading dash is optional, '*' is every address.",
        in_section: BIND,
        field: Field::Words(|options| &mut options.process.bind),
    },
    process(
        "daemonize",
        Field::Switch(|options| &mut options.process.daemonize),
        "Runs in the background; the command ends once the store serves.",
        "'daemon' in the global section decides that",
    ),
    process(
        "io-threads",
        Field::Integer(|options| &mut options.process.threads, 0, super::THREADS_MAX),
        "Redis's name for 'threads'.",
        THREADS,
    ),
    process("logfile", Field::Text(|options| &mut options.process.logfile), "The log file; empty: stdout.", LOG),
    ProcessParameter {
        name: "loglevel",
        live: true,
        docs: "The minimum level of log lines.",
        in_section: LOG,
        field: Field::Choice(
            |options| &mut options.process.loglevel,
            &["debug", "verbose", "notice", "warning", "nothing"],
        ),
    },
    ProcessParameter {
        name: "oom-score-adj",
        live: true,
        docs: "Sets how soon the kernel ends the process when memory runs out: no, relative (or yes), absolute.",
        in_section: OOM,
        field: Field::Oom(|options| &mut options.process.oom_mode),
    },
    ProcessParameter {
        name: "oom-score-adj-values",
        live: true,
        docs: "The scores of masters, replicas and children, of which there are none.",
        in_section: OOM,
        field: Field::Formed(|options| &mut options.process.oom_values, Form::Scores),
    },
    process(
        "pidfile",
        Field::Text(|options| &mut options.process.pidfile),
        "The file that receives the process's number.",
        "'pidfile' in the global section decides that",
    ),
    ProcessParameter {
        name: "port",
        live: true,
        docs: "The TCP port; 0 for none.",
        in_section: BIND,
        field: Field::Integer(|options| &mut options.process.port, 0, 65_535),
    },
    ProcessParameter {
        name: "shutdown-on-sigint",
        live: true,
        docs: "How SIGINT ends the process: default, or words of SHUTDOWN: save, nosave, now, force.",
        in_section: SIGNALS,
        field: Field::Formed(|options| &mut options.process.shutdown_on_sigint, SHUTDOWN),
    },
    ProcessParameter {
        name: "shutdown-on-sigterm",
        live: true,
        docs: "How SIGTERM ends the process.",
        in_section: SIGNALS,
        field: Field::Formed(|options| &mut options.process.shutdown_on_sigterm, SHUTDOWN),
    },
    process(
        "supervised",
        Field::Choice(|options| &mut options.process.supervised, &["upstart", "systemd", "auto", "no"]),
        "The service manager to notify when the store serves.",
        "-Ws on the command line decides that",
    ),
    process(
        "tcp-backlog",
        Field::Integer(|options| &mut options.process.backlog, 0, i32::MAX as u32),
        "Length of the queue of connections waiting to be accepted.",
        "'backlog' belongs to the bind line",
    ),
    process(
        "threads",
        Field::Integer(|options| &mut options.process.threads, 0, super::THREADS_MAX),
        "Number of workers; 0 for the number of cores. Not a parameter of Redis.",
        THREADS,
    ),
    ProcessParameter {
        name: "tls-auth-clients",
        live: true,
        docs: "Whether clients of 'tls-port' need a certificate: yes, no, or optional: one that is sent must be valid.",
        in_section: SSL_VERIFY,
        field: Field::Choice(|options| &mut options.process.tls.auth_clients, &["no", "yes", "optional"]),
    },
    tls(
        "tls-cert-file",
        Field::Text(|options| &mut options.process.tls.cert_file),
        "The certificate of 'tls-port' and its chain. Files are read when they are set, for new connections.",
        SSL_CRT,
    ),
    tls(
        "tls-key-file",
        Field::Text(|options| &mut options.process.tls.key_file),
        "The key of 'tls-cert-file', which may be in the same file.",
        SSL_CRT,
    ),
    tls(
        "tls-key-file-pass",
        Field::Text(|options| &mut options.process.tls.key_file_pass),
        "The pass phrase of an encrypted 'tls-key-file'.",
        SSL_CRT,
    ),
    ProcessParameter {
        name: "tls-port",
        live: true,
        docs: "The TCP port for TLS; 0 for none.",
        in_section: SSL_CRT,
        field: Field::Integer(|options| &mut options.process.tls.port, 0, 65_535),
    },
    tls(
        "tls-prefer-server-ciphers",
        Field::Switch(|options| &mut options.process.tls.prefer_server_ciphers),
        "Whether the order of suites here decides, and not the client's.",
        "'prefer-client-ciphers' belongs to the bind line",
    ),
    tls(
        "tls-session-cache-size",
        Field::Integer(|options| &mut options.process.tls.session_cache_size, 0, i32::MAX as u32),
        "The number of sessions that are stored for clients without tickets; 0: 1048576, the most.",
        SSL_CACHE,
    ),
    tls(
        "tls-session-cache-timeout",
        Field::Integer(|options| &mut options.process.tls.session_cache_timeout_s, 0, i32::MAX as u32),
        "Seconds for which a session can be resumed.",
        SSL_CACHE,
    ),
    tls(
        "tls-session-caching",
        Field::Switch(|options| &mut options.process.tls.session_caching),
        "Whether sessions are stored for clients without tickets.",
        SSL_CACHE,
    ),
    process(
        "unixsocket",
        Field::Text(|options| &mut options.process.unixsocket),
        "The path of a unix socket; empty for none.",
        "write 'bind PATH' in the store section",
    ),
    process(
        "unixsocketperm",
        Field::Octal(|options| &mut options.process.unixsocketperm),
        "Its permissions; 0: 755, regardless of the umask.",
        "'mode' belongs to the bind line",
    ),
];

/// The settings of the process of a standalone store.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessOptions {
    /// Addresses as they are written; a leading `-` allows one to be missing.
    pub bind: Vec<Vec<u8>>,
    /// TCP port; 0: none.
    pub port: u32,
    /// Path; empty: none.
    pub unixsocket: Vec<u8>,
    /// Permissions; 0: 755.
    pub unixsocketperm: u32,
    /// Connections that the kernel holds ready.
    pub backlog: u32,
    /// Workers; 0: one for each core.
    pub threads: u32,
    /// Goes to the background.
    pub daemonize: bool,
    /// `no`, `systemd`, `upstart`, `auto`.
    pub supervised: &'static str,
    /// Path; empty: none.
    pub pidfile: Vec<u8>,
    /// Path; empty: standard output.
    pub logfile: Vec<u8>,
    /// `debug`, `verbose`, `notice`, `warning`, `nothing`.
    pub loglevel: &'static str,
    /// The use of these scores, by which the kernel chooses the process to end when memory runs out.
    pub(crate) oom_mode: OomMode,
    /// Scores of masters, replicas and children between blanks.
    pub oom_values: Vec<u8>,
    /// How SIGINT ends the process: words of SHUTDOWN, or `default`.
    pub shutdown_on_sigint: Vec<u8>,
    /// How SIGTERM ends it.
    pub shutdown_on_sigterm: Vec<u8>,
    /// Whether a line of `save` was read: the first one replaces the default.
    pub has_save_line: bool,
    /// TLS.
    pub tls: TlsOptions,
}

/// A number of changes after which, and of seconds after the last save, the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavePoint {
    /// Seconds since the last save.
    pub seconds: u64,
    /// Changes since then.
    pub changes: u64,
}

/// The parameters of `tls-port`, and of the link to a master; an empty text is none.
#[derive(Clone, PartialEq)]
pub struct TlsOptions {
    /// TCP port; 0: none.
    pub port: u32,
    /// Path of the certificate with its chain.
    pub cert_file: Vec<u8>,
    /// Path of the key.
    pub key_file: Vec<u8>,
    /// The key's pass phrase.
    pub key_file_pass: Vec<u8>,
    /// Whether the link to a master is encrypted.
    pub replication: bool,
    /// Path of the certificate that it shows; empty: `cert_file`.
    pub client_cert_file: Vec<u8>,
    /// Path of the key of that.
    pub client_key_file: Vec<u8>,
    /// The pass phrase of that.
    pub client_key_file_pass: Vec<u8>,
    /// Path of authorities' certificates.
    pub ca_cert_file: Vec<u8>,
    /// Directory of authorities' certificates.
    pub ca_cert_dir: Vec<u8>,
    /// `yes`, `no`, `optional`: the demand for a certificate of clients.
    pub auth_clients: &'static str,
    /// Versions between blanks.
    pub protocols: Vec<u8>,
    /// Suites of TLS 1.2.
    pub ciphers: Vec<u8>,
    /// Suites of TLS 1.3.
    pub ciphersuites: Vec<u8>,
    /// Whether the order of suites here decides.
    pub prefer_server_ciphers: bool,
    /// Whether sessions are stored.
    pub session_caching: bool,
    /// The number of sessions; 0: the most.
    pub session_cache_size: u32,
    /// The life of sessions.
    pub session_cache_timeout_s: u32,
}

impl std::fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsOptions").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Default for TlsOptions {
    fn default() -> TlsOptions {
        TlsOptions {
            port: 0,
            cert_file: Vec::new(),
            key_file: Vec::new(),
            key_file_pass: Vec::new(),
            replication: false,
            client_cert_file: Vec::new(),
            client_key_file: Vec::new(),
            client_key_file_pass: Vec::new(),
            ca_cert_file: Vec::new(),
            ca_cert_dir: Vec::new(),
            auth_clients: "yes",
            protocols: Vec::new(),
            ciphers: Vec::new(),
            ciphersuites: Vec::new(),
            prefer_server_ciphers: false,
            session_caching: true,
            session_cache_size: 20_480,
            session_cache_timeout_s: 300,
        }
    }
}

impl ProcessOptions {
    /// Returns the parameters of the score of the process.
    pub(crate) fn oom_terms(&self) -> OomTerms {
        // Only numbers are accepted.
        let text = String::from_utf8_lossy(&self.oom_values);
        let mut scores = text.split_ascii_whitespace().filter_map(|score| score.parse().ok());
        let mut next = || scores.next().unwrap_or(0);
        OomTerms { mode: self.oom_mode, of_master: next(), of_replica: next() }
    }
}

impl Default for ProcessOptions {
    fn default() -> ProcessOptions {
        ProcessOptions {
            bind: vec![b"*".to_vec(), b"-::*".to_vec()],
            port: 6379,
            unixsocket: Vec::new(),
            unixsocketperm: 0,
            backlog: 511,
            threads: 0,
            daemonize: false,
            supervised: "no",
            pidfile: Vec::new(),
            logfile: Vec::new(),
            loglevel: "notice",
            shutdown_on_sigint: b"default".to_vec(),
            oom_mode: OomMode::default(),
            oom_values: b"0 200 800".to_vec(),
            shutdown_on_sigterm: b"default".to_vec(),
            has_save_line: false,
            tls: TlsOptions::default(),
        }
    }
}

/// A parameter of a missing feature: a file may have it, with any value that Redis accepts, because it has no effect in
/// Redis either while the feature is off. `CONFIG GET` shows it. `CONFIG SET` accepts it if it is a hint, and refuses
/// to change it if a user might rely on its effect.
pub struct Idle {
    /// Its name.
    pub name: &'static str,
    /// Redis's default.
    pub default: &'static str,
    /// The values that a file may give it.
    pub form: Form,
    /// The reason why it has no effect.
    pub why: &'static str,
    /// Whether `CONFIG SET` accepts it.
    pub is_hint: bool,
}

/// Values that an [`Idle`] parameter takes.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// Any one word.
    Text,
    /// `yes` or `no`.
    Switch,
    /// A number between two others.
    Number(i64, i64),
    /// A number of bytes, at least this one.
    Memory(u64),
    /// A file's name without its directory, of which an empty one is refused or not.
    Name(&'static str, bool),
    /// Some of these words, of which the first stands for none of the others.
    Flags(&'static [&'static str]),
    /// Three numbers, as `oom-score-adj-values` has them.
    Scores,
    /// One of these.
    Choice(&'static [&'static str]),
}

/// Numbers as most parameters have them, and those of ports.
pub(super) const INT: Form = Form::Number(0, i32::MAX as i64);
pub(super) const PORT: Form = Form::Number(0, 65_535);
const LONG: Form = Form::Number(0, i64::MAX);
/// The options of a signal's shutdown.
const SHUTDOWN: Form = Form::Flags(&["default", "save", "nosave", "now", "force"]);
const FACILITY: Form =
    Form::Choice(&["user", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7"]);

const fn idle(name: &'static str, default: &'static str, form: Form, why: &'static str) -> Idle {
    Idle { name, default, form, why, is_hint: true }
}

/// Returns a parameter whose effect a user might rely on.
const fn firm(name: &'static str, default: &'static str, form: Form, why: &'static str) -> Idle {
    Idle { is_hint: false, ..idle(name, default, form, why) }
}

const CLUSTER: &str = "the store is one node that has every slot";
const EXPIRY: &str = "expiry adapts by itself";
const FREEING: &str = "large values are always freed outside the locks";
const DEFRAG: &str = "the allocator here does not fragment that way";
const TABLES: &str = "tables here never rehash as a whole";
const SYSTEM: &str = "the process leaves that to the system";

use Form::{Choice, Flags, Memory, Name, Number, Scores, Switch, Text};

/// Parameters of missing features, grouped by feature.
pub static IDLE: &[Idle] = &[
    idle("active-defrag-cycle-max", "25", Number(1, 99), DEFRAG),
    idle("active-defrag-cycle-min", "1", Number(1, 99), DEFRAG),
    idle("active-defrag-ignore-bytes", "104857600", Memory(0), DEFRAG),
    idle("active-defrag-max-scan-fields", "1000", Number(1, i64::MAX), DEFRAG),
    idle("active-defrag-threshold-lower", "10", Number(0, 1000), DEFRAG),
    idle("active-defrag-threshold-upper", "100", Number(0, 1000), DEFRAG),
    idle("jemalloc-bg-thread", "yes", Switch, DEFRAG),
    idle("active-expire-effort", "1", Number(1, 10), EXPIRY),
    idle("dynamic-hz", "yes", Switch, EXPIRY),
    idle("hz", "10", INT, EXPIRY),
    idle("activerehashing", "yes", Switch, TABLES),
    idle("list-compress-depth", "0", INT, "lists are not compressed"),
    idle("hide-user-data-from-log", "no", Switch, "the log has no data of users"),
    idle(
        "max-new-connections-per-cycle",
        "10",
        Number(1, 1000),
        "every worker accepts connections one by one, between the requests of others",
    ),
    idle(
        "max-new-tls-connections-per-cycle",
        "1",
        Number(1, 1000),
        "every worker accepts connections one by one, between the requests of others",
    ),
    idle("always-show-logo", "no", Switch, SYSTEM),
    idle("crash-log-enabled", "yes", Switch, SYSTEM),
    idle("crash-memcheck-enabled", "yes", Switch, SYSTEM),
    idle("disable-thp", "yes", Switch, SYSTEM),
    idle("ignore-warnings", "", Text, SYSTEM),
    idle("io-threads-do-reads", "no", Switch, "every worker reads, runs and writes for its own clients"),
    firm("locale-collate", "", Text, "the C locale orders strings"),
    idle("proc-title-template", "{title} {listen-addr} {server-mode}", Text, SYSTEM),
    idle("set-proc-title", "yes", Switch, SYSTEM),
    idle("syslog-facility", "local0", FACILITY, "the log is a file or standard output"),
    idle("syslog-ident", "redis", Text, "the log is a file or standard output"),
    idle("aof-disable-auto-gc", "no", Switch, "files that a rewrite replaces are always removed"),
    idle("aof-rewrite-incremental-fsync", "yes", Switch, "base files are always synced as they are written"),
    idle("aof-use-rdb-preamble", "yes", Switch, "base files are always RDB files"),
    idle("rdb-del-sync-files", "no", Switch, "what a sync by a file writes is the RDB file of the store"),
    idle("rdb-save-incremental-fsync", "yes", Switch, "RDB files are always synced as they are written"),
    idle("sanitize-dump-payload", "no", Choice(&["no", "yes", "clients"]), "RESTORE checks every payload"),
    idle(
        "propagation-error-behavior",
        "ignore",
        Choice(&["ignore", "panic", "panic-on-replicas"]),
        "errors of a master's commands are logged",
    ),
    idle("replica-ignore-disk-write-errors", "no", Switch, "what a replica cannot append waits in memory"),
    idle("replica-lazy-flush", "no", Switch, FREEING),
    idle("shutdown-timeout", "10", INT, "the end does not wait for replicas"),
    idle("cluster-allow-pubsubshard-when-down", "yes", Switch, CLUSTER),
    idle("cluster-allow-reads-when-down", "no", Switch, CLUSTER),
    idle("cluster-allow-replica-migration", "yes", Switch, CLUSTER),
    firm("cluster-announce-bus-port", "0", PORT, CLUSTER),
    firm("cluster-announce-hostname", "", Text, CLUSTER),
    firm("cluster-announce-human-nodename", "", Text, CLUSTER),
    firm("cluster-announce-ip", "", Text, CLUSTER),
    firm("cluster-announce-port", "0", PORT, CLUSTER),
    firm("cluster-announce-tls-port", "0", PORT, CLUSTER),
    idle("cluster-config-file", "nodes.conf", Text, CLUSTER),
    idle("cluster-link-sendbuf-limit", "0", Memory(0), CLUSTER),
    idle("cluster-migration-barrier", "1", INT, CLUSTER),
    idle("cluster-node-timeout", "15000", LONG, CLUSTER),
    idle("cluster-port", "0", PORT, CLUSTER),
    idle("cluster-preferred-endpoint-type", "ip", Choice(&["ip", "hostname", "unknown-endpoint"]), CLUSTER),
    idle("cluster-replica-no-failover", "no", Switch, CLUSTER),
    idle("cluster-replica-validity-factor", "10", INT, CLUSTER),
    idle("cluster-require-full-coverage", "yes", Switch, CLUSTER),
    firm("tls-cluster", "no", Switch, CLUSTER),
    firm(
        "tls-dh-params-file",
        "",
        Text,
        "TLS here has no finite-field Diffie-Hellman: every key exchange is one of elliptic curves",
    ),
    idle(
        "lfu-log-factor",
        "10",
        INT,
        "the first accesses are counted one by one, and a counter ends at half a million",
    ),
    idle(
        "maxmemory-eviction-tenacity",
        "10",
        Number(0, 100),
        "a command takes half a millisecond for eviction at most",
    ),
    idle(
        "maxmemory-samples",
        "5",
        Number(1, i32::MAX as i64),
        "the worst of every sixteen keys is evicted; there is nothing to choose",
    ),
    idle(
        "loading-process-events-interval-bytes",
        "2097152",
        Number(1024, i32::MAX as i64),
        "clients are served while files are loaded",
    ),
    idle("lazyfree-lazy-eviction", "no", Switch, FREEING),
    idle("lazyfree-lazy-expire", "no", Switch, FREEING),
    idle("lazyfree-lazy-server-del", "no", Switch, FREEING),
    idle("lazyfree-lazy-user-del", "no", Switch, FREEING),
    idle("lazyfree-lazy-user-flush", "no", Switch, FREEING),
];

/// Parameters without an effect here that `CONFIG SET` can't change in Redis either.
const IMMUTABLE: &[&str] = &[
    "always-show-logo",
    "aof-rewrite-cpulist",
    "appenddirname",
    "appendfilename",
    "bgsave-cpulist",
    "bio-cpulist",
    "cluster-config-file",
    "cluster-enabled",
    "cluster-port",
    "disable-thp",
    "enable-module-command",
    "io-threads-do-reads",
    "server-cpulist",
    "set-proc-title",
    "socket-mark-id",
    "syslog-enabled",
    "syslog-facility",
    "syslog-ident",
];

/// Returns whether a parameter without an effect is read only at the start.
pub(super) fn is_immutable(name: &str) -> bool {
    IMMUTABLE.contains(&name)
}

/// Redis's older names of the same parameters.
pub static ALIASES: &[(&str, &str)] = &[
    ("aof_rewrite_cpulist", "aof-rewrite-cpulist"),
    ("bgsave_cpulist", "bgsave-cpulist"),
    ("bio_cpulist", "bio-cpulist"),
    ("cluster-slave-no-failover", "cluster-replica-no-failover"),
    ("cluster-slave-validity-factor", "cluster-replica-validity-factor"),
    ("hash-max-ziplist-entries", "hash-max-listpack-entries"),
    ("hash-max-ziplist-value", "hash-max-listpack-value"),
    ("list-max-ziplist-size", "list-max-listpack-size"),
    ("lua-time-limit", "busy-reply-threshold"),
    ("min-slaves-max-lag", "min-replicas-max-lag"),
    ("min-slaves-to-write", "min-replicas-to-write"),
    ("primaryauth", "masterauth"),
    ("primaryuser", "masteruser"),
    ("repl-ping-slave-period", "repl-ping-replica-period"),
    ("server_cpulist", "server-cpulist"),
    ("slave-announce-ip", "replica-announce-ip"),
    ("slave-announce-port", "replica-announce-port"),
    ("slave-ignore-maxmemory", "replica-ignore-maxmemory"),
    ("slave-lazy-flush", "replica-lazy-flush"),
    ("slave-priority", "replica-priority"),
    ("slave-read-only", "replica-read-only"),
    ("slave-serve-stale-data", "replica-serve-stale-data"),
    ("slaveof", "replicaof"),
    ("zset-max-ziplist-entries", "zset-max-listpack-entries"),
    ("zset-max-ziplist-value", "zset-max-listpack-value"),
];

/// Returns the name that a parameter has in the tables.
pub fn canonical(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, known)| known)
}

/// Returns the idle parameter of this name.
pub(super) fn find_idle(name: &str) -> Option<&'static Idle> {
    IDLE.iter().find(|idle| idle.name == name)
}

impl Idle {
    /// Returns its value, as a file set it or by default.
    pub(super) fn value(&self, options: &ServerOptions) -> Vec<u8> {
        options.idle.get(self.name).cloned().unwrap_or_else(|| self.default.into())
    }

    /// A value as Redis takes it and shows it again.
    pub(super) fn parse(&self, words: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        let value = match words {
            [word] => word.clone(),
            [] if matches!(self.form, Flags(_)) => Vec::new(),
            [_, ..] if matches!(self.form, Flags(_) | Scores) => words.join(&b' '),
            _ => return Err(super::WRONG_WORDS.into()),
        };
        match self.form.parse(self.name, &value)? {
            // Redis clamps values out of range.
            number if self.name == "hz" => match &number[..] {
                b"0" => Ok(b"1".to_vec()),
                _ if super::parse_memory(&number).is_some_and(|hz| hz > 500) => Ok(b"500".to_vec()),
                _ => Ok(number),
            },
            value => Ok(value),
        }
    }
}

/// Checks that a value has this form.
pub(super) fn parse_as(form: Form, value: &[u8]) -> Result<(), String> {
    form.parse("", value).map(drop)
}

impl Form {
    /// Returns a parameter's value as Redis shows it, or Redis's error.
    pub(super) fn parse(self, name: &str, value: &[u8]) -> Result<Vec<u8>, String> {
        let lower = value.to_ascii_lowercase();
        let number = |word: &[u8]| std::str::from_utf8(word).ok().and_then(|text| text.parse::<i64>().ok());
        let between = |min: i64, max: i64| format!("argument must be between {min} and {max} inclusive");
        let words = || value.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        match self {
            Text => Ok(value.to_vec()),
            Name(_, false) if value.is_empty() => Err(format!("{name} can't be empty")),
            Name(what, _) if value.contains(&b'/') || value.contains(&b'\\') => {
                Err(format!("{name} can't be a path, just a {what}"))
            }
            Name(..) => Ok(value.to_vec()),
            Switch if matches!(&lower[..], b"yes" | b"no") => Ok(lower),
            Switch => Err(super::NOT_SWITCH.into()),
            Number(min, max) => match number(value) {
                Some(number) if (min..=max).contains(&number) => Ok(number.to_string().into()),
                Some(_) => Err(between(min, max)),
                None => Err(super::NOT_NUMBER.into()),
            },
            Memory(min) => match super::parse_memory(value) {
                Some(bytes) if (min..=i64::MAX as u64).contains(&bytes) => Ok(bytes.to_string().into()),
                Some(_) => Err(between(min as i64, i64::MAX)),
                None => Err(super::NOT_MEMORY.into()),
            },
            Choice(choices) => match choices.iter().find(|choice| choice.as_bytes() == lower) {
                Some(choice) => Ok((*choice).into()),
                None => Err(super::not_a_choice(choices)),
            },
            Flags(choices) => {
                let is_choice = |word: &[u8]| choices.iter().any(|choice| word.eq_ignore_ascii_case(choice.as_bytes()));
                if words().next().is_none() || !words().all(is_choice) {
                    return Err(super::not_a_choice(choices));
                }
                let has = |choice: &str| words().any(|word| word.eq_ignore_ascii_case(choice.as_bytes()));
                if has("save") && has("nosave") {
                    return Err("shutdown options SAVE and NOSAVE can't be used simultaneously".into());
                }
                // Each once and in this order, whatever the order that it was given in; the first stands for none.
                let chosen: Vec<&str> = choices[1..].iter().copied().filter(|choice| has(choice)).collect();
                Ok(if chosen.is_empty() { choices[0].into() } else { chosen.join(" ").into() })
            }
            Scores => {
                let numbers: Vec<Option<i64>> = words().map(number).collect();
                match &numbers[..] {
                    [_, _, _]
                        if numbers.iter().all(|score| score.is_some_and(|score| (-2000..=2000).contains(&score))) =>
                    {
                        Ok(value.to_vec())
                    }
                    [_, _, _] => Err("Invalid oom-score-adj-values, elements must be between -2000 and 2000.".into()),
                    _ => Err(super::WRONG_WORDS.into()),
                }
            }
        }
    }
}
