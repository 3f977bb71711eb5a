//! The parameters of a store: CONFIG GET and SET, and the keywords of a `store` section.
//!
//! One catalogue serves all three. A parameter either acts ([`Parameter`], or [`ProcessParameter`] where the store has
//! a process of its own), or is a fixed property of this store that can be read but not changed ([`FIXED`]), or belongs
//! to a feature that does not exist here ([`Idle`]: a file may set it, since in Redis it has no effect either while the
//! feature is off). Names, ranges, units and error texts are Redis's.
//!
//! Values live in one [`ServerOptions`], which is replaced as a whole, so a reader never sees half of a change.

mod file;
mod parameters;
mod replication;
mod tables;

use std::collections::BTreeMap;

pub use file::{FileError, fuzz_file, lines_of_words, read, rewrite, rewrite_users};
pub use parameters::PARAMETERS;
pub use replication::ReplicationParameters;
use sluicegate_data::object::limits;
pub use tables::{
    ALIASES, Form, IDLE, Idle, PROCESS, ProcessOptions, ProcessParameter, SavePoint, TlsOptions, canonical,
};

use crate::memory::Policy;
use crate::notify::{parse_classes, show_classes};
use crate::oom_score::OomMode;
pub use crate::outbox::OutputLimit;

/// Everything that can be set, typed. Made by [`apply`] or by [`Default`], changed by `CONFIG SET`.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerOptions {
    /// The password of the default user; empty: none is needed.
    pub requirepass: Vec<u8>,
    /// The users that a file names, each in a line of its own.
    pub users: Vec<ConfigLine>,
    /// Lines `rename-command` of its file.
    pub renamed: Vec<ConfigLine>,
    /// The file of users; empty: none.
    pub aclfile: Vec<u8>,
    /// Whether users that are made may use all channels: `allchannels` or `resetchannels`.
    pub acl_pubsub_default: &'static str,
    /// Entries of ACL LOG.
    pub acllog_max_len: i64,
    /// Refuse clients from other machines while there is no password.
    pub protected_mode: bool,
    /// Databases that SELECT can choose.
    pub databases: u32,
    /// The directory of the store's files, absolute once the store has begun; empty: nothing is read or written.
    pub dir: Vec<u8>,
    /// The name of the file that is loaded at the start; empty: none.
    pub dbfilename: Vec<u8>,
    /// Whether checksums of files are written and compared.
    pub rdbchecksum: bool,
    /// The clients that may change [protected](is_protected) parameters: `no`, `yes`, or `local` for clients of this
    /// machine.
    pub enable_protected_configs: &'static str,
    /// The clients that may call DEBUG: `no`, `yes`, or `local` for clients of this machine.
    pub enable_debug_command: &'static str,
    /// The maximum number of clients.
    pub maxclients: u32,
    /// Seconds after which an idle client is disconnected; 0: never.
    pub timeout_s: u32,
    /// Seconds between TCP keep-alive probes; 0: none.
    pub tcp_keepalive_s: u32,
    /// The maximum length of a single argument, in bytes.
    pub proto_max_bulk_len: u64,
    /// The maximum size of the requests that one client may have outstanding, in bytes.
    pub client_query_buffer_limit: u64,
    /// The limits of unread output: normal, replica and pub/sub clients.
    pub client_output_buffer_limit: [OutputLimit; 3],
    /// The maximum size of data and clients' buffers, in bytes; 0: no limit.
    pub maxmemory: u64,
    /// The maximum size of clients' buffers, queued commands, watched keys and subscriptions, in bytes.
    pub maxmemory_clients: MemoryShare,
    /// The eviction policy at `maxmemory`.
    pub maxmemory_policy: Policy,
    /// The minutes without an access after which a key's access counter is decremented; 0: never.
    pub lfu_decay_time: u32,
    /// The age from which on a script is too old, in milliseconds; 0: none is.
    pub busy_reply_threshold_ms: i64,
    /// `allow` or `deny`: keys that a script uses without having declared them.
    pub lua_undeclared_keys: &'static str,
    /// The flags of scripts that declare none, separated by commas.
    pub default_lua_flags: Vec<u8>,
    /// The maximum size of an interpreter, in bytes.
    pub lua_memory_limit: u64,
    /// The size of an interpreter from which on it collects its garbage before it becomes idle, in bytes.
    pub lua_mem_gc_threshold: u64,
    /// Whether replies discarded by scripts are not converted to values.
    pub lua_auto_async: bool,
    /// Microseconds of execution from which a command is kept in the slow log; negative: none is.
    pub slowlog_slower_than_us: i64,
    /// Entries of the slow log.
    pub slowlog_max_len: i64,
    /// The maximum number of keys of which it is known which clients have read them; 0: no limit.
    pub tracking_table_max_keys: i64,
    /// Milliseconds from which an event is kept for LATENCY; 0: none is.
    pub latency_threshold_ms: i64,
    /// Whether the duration of every command is recorded in a histogram.
    pub latency_tracking: bool,
    /// Percentiles that `INFO latencystats` shows.
    pub latency_percentiles: Vec<f64>,
    /// Limits of the small forms of values, in the order of the fields of `Limits`.
    pub limits: [i64; limits::COUNT],
    /// Whether the store has this process for itself, so [`PROCESS`] acts.
    pub standalone: bool,
    /// The parameters of [`PROCESS`].
    pub process: ProcessOptions,
    /// The parameters of [`IDLE`] set by a file or `CONFIG SET`.
    pub idle: BTreeMap<&'static str, Vec<u8>>,
    /// When the store is saved by itself.
    pub save_points: Vec<SavePoint>,
    /// Whether strings are compressed in files.
    pub rdb_compression: bool,
    /// Microseconds for which a save sleeps for each key; if negative, one for so many keys.
    pub rdb_key_save_delay_us: i64,
    /// Microseconds for which a load sleeps for each key or command; if negative, one for so many keys.
    pub key_load_delay_us: i64,
    /// Whether commands that write are refused after a save that failed.
    pub stop_writes_on_bgsave_error: bool,
    /// Whether there is an append-only file.
    pub appendonly: bool,
    /// When it is synced: `always`, `everysec` or `no`.
    pub appendfsync: &'static str,
    /// The directory of its files, in `dir`.
    pub appenddirname: Vec<u8>,
    /// The start of their names.
    pub appendfilename: Vec<u8>,
    /// Whether a last file that was cut off is loaded up to there.
    pub aof_load_truncated: bool,
    /// Whether the time is written into it, once a second.
    pub aof_timestamps: bool,
    /// The growth in percent that begins a rewrite; 0: none does.
    pub aof_rewrite_percentage: u32,
    /// The size below which none begins, in bytes.
    pub aof_rewrite_min_bytes: u64,
    /// Whether it is not synced during rewrites.
    pub no_fsync_on_rewrite: bool,
    /// Classes of keyspace events that are published, as bits.
    pub notify_keyspace_events: u32,
    /// The parameters of a master.
    pub replication: ReplicationParameters,
    /// The master that the store follows.
    pub replicaof: Option<MasterAddress>,
    /// The user and the password for the master; empty: none.
    pub masteruser: Vec<u8>,
    /// See `masteruser`.
    pub masterauth: Vec<u8>,
    /// Whether clients may read what may be old, while the link to the master is down.
    pub replica_serve_stale_data: bool,
    /// Whether clients of a replica may not write.
    pub replica_read_only: bool,
    /// The rank of the replica among those of a master, for Sentinel; 0: never a master.
    pub replica_priority: u32,
    /// Whether Sentinel tells others of the replica.
    pub replica_announced: bool,
    /// The address that the replica gives to its master; empty: that of its connection.
    pub replica_announce_ip: Vec<u8>,
    /// The port that it gives; 0: the one that it listens on.
    pub replica_announce_port: u32,
    /// Whether a replica leaves it to its master to keep within `maxmemory`.
    pub replica_ignore_maxmemory: bool,
    /// The seconds without a word after which master and replica give each other up.
    pub repl_timeout_s: u32,
    /// When a replica loads the master's data set as it comes.
    pub repl_diskless_load: &'static str,
    /// Whether small packets to replicas wait for more.
    pub repl_disable_tcp_nodelay: bool,
    /// The address from which connections to a master are made; empty: the kernel's choice.
    pub bind_source_addr: Vec<u8>,
}

/// The address of a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterAddress {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A line `user NAME RULE…` or `rename-command NAME NEW` of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigLine {
    /// The line's number, from 1.
    pub number: usize,
    /// Without blanks around it.
    pub text: Vec<u8>,
    /// The words behind the first one.
    pub words: Vec<Vec<u8>>,
}

/// The maximum number of workers that `threads` can request.
pub const THREADS_MAX: u32 = 1024;

const UNKNOWN: &str = "unknown parameter";
const WRONG_WORDS: &str = "wrong number of arguments";
/// The values of `repl-diskless-load`.
const LOADS: &[&str] = &["disabled", "on-empty-db", "swapdb", "flush-before-load"];
const NOT_SWITCH: &str = "argument must be 'yes' or 'no'";
const NOT_NUMBER: &str = "argument couldn't be parsed into an integer";
const NOT_MEMORY: &str = "argument must be a memory value";
const NOT_SHARE: &str = "argument must be a memory or percent value";

fn not_a_choice(choices: &[&str]) -> String {
    format!("argument(s) must be one of the following: {}", choices.join(", "))
}

/// A limit in bytes or as a part of another one; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryShare {
    /// Bytes.
    Bytes(u64),
    /// Hundredths of `maxmemory`.
    Percent(u8),
}

impl MemoryShare {
    /// Returns the limit in bytes, where `all` is the other limit; 0 for none.
    pub fn of(self, all: u64) -> u64 {
        match self {
            MemoryShare::Bytes(bytes) => bytes,
            MemoryShare::Percent(percent) => (u128::from(all) * u128::from(percent) / 100) as u64,
        }
    }

    fn parse(text: &[u8]) -> Result<MemoryShare, String> {
        let Some(number) = text.strip_suffix(b"%") else {
            return parse_memory(text).map(MemoryShare::Bytes).ok_or_else(|| NOT_SHARE.into());
        };
        let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
        match std::str::from_utf8(number).ok().filter(|_| is_number).map(|number| number.parse::<u8>()) {
            Some(Ok(0)) => Ok(MemoryShare::Bytes(0)),
            Some(Ok(percent @ ..=100)) => Ok(MemoryShare::Percent(percent)),
            Some(_) => Err("percentage argument must be less or equal to 100".into()),
            None => Err(NOT_SHARE.into()),
        }
    }
}

const OUTPUT_CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            requirepass: Vec::new(),
            users: Vec::new(),
            renamed: Vec::new(),
            aclfile: Vec::new(),
            acl_pubsub_default: "resetchannels",
            acllog_max_len: 128,
            protected_mode: true,
            databases: 16,
            dir: Vec::new(),
            dbfilename: b"dump.rdb".to_vec(),
            rdbchecksum: true,
            enable_protected_configs: "no",
            enable_debug_command: "no",
            maxclients: 10_000,
            timeout_s: 0,
            tcp_keepalive_s: 300,
            proto_max_bulk_len: 512 << 20,
            client_query_buffer_limit: 1 << 30,
            client_output_buffer_limit: [
                OutputLimit::default(),
                OutputLimit { hard: 256 << 20, soft: 64 << 20, soft_s: 60 },
                OutputLimit::OF_SUBSCRIBERS,
            ],
            maxmemory: 0,
            maxmemory_clients: MemoryShare::Bytes(0),
            maxmemory_policy: Policy::NoEviction,
            lfu_decay_time: 1,
            busy_reply_threshold_ms: 5000,
            lua_undeclared_keys: "allow",
            default_lua_flags: Vec::new(),
            lua_memory_limit: 512 << 20,
            lua_mem_gc_threshold: 1 << 20,
            lua_auto_async: true,
            slowlog_slower_than_us: 10_000,
            slowlog_max_len: 128,
            tracking_table_max_keys: crate::tracking::KEYS_MAX as i64,
            latency_threshold_ms: 0,
            latency_tracking: true,
            latency_percentiles: vec![50.0, 99.0, 99.9],
            limits: limits::DEFAULTS,
            standalone: false,
            process: ProcessOptions::default(),
            idle: BTreeMap::new(),
            save_points: Vec::new(),
            rdb_compression: true,
            rdb_key_save_delay_us: 0,
            key_load_delay_us: 0,
            stop_writes_on_bgsave_error: true,
            appendonly: false,
            appendfsync: "everysec",
            appenddirname: b"appendonlydir".to_vec(),
            appendfilename: b"appendonly.aof".to_vec(),
            aof_load_truncated: true,
            aof_timestamps: false,
            aof_rewrite_percentage: 100,
            aof_rewrite_min_bytes: 64 << 20,
            no_fsync_on_rewrite: false,
            notify_keyspace_events: 0,
            replication: ReplicationParameters::default(),
            replicaof: None,
            masteruser: Vec::new(),
            masterauth: Vec::new(),
            replica_serve_stale_data: true,
            replica_read_only: true,
            replica_priority: 100,
            replica_announced: true,
            replica_announce_ip: Vec::new(),
            replica_announce_port: 0,
            replica_ignore_maxmemory: true,
            repl_timeout_s: 60,
            repl_diskless_load: "disabled",
            repl_disable_tcp_nodelay: false,
            bind_source_addr: Vec::new(),
        }
    }
}

/// The threshold of the slow log, in microseconds, below which commands of constant cost are timed separately, too.
const ALONE_BELOW_US: i64 = 1000;

impl ServerOptions {
    /// Returns whether every command must be timed separately, for the slow log or as an event.
    pub(crate) fn times_all(&self) -> bool {
        self.latency_threshold_ms > 0 || (0..ALONE_BELOW_US).contains(&self.slowlog_slower_than_us)
    }

    /// Returns the value of a parameter as `CONFIG GET` shows it; [`None`] for a name without a value.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        let name = canonical(name);
        if let Some(field) = self.field(name) {
            return Some(field.text(&mut self.clone()));
        }
        if let Some(fixed) = FIXED.iter().find(|fixed| fixed.name == name) {
            return Some(fixed.value.into());
        }
        tables::find_idle(name).map(|idle| idle.value(self))
    }

    /// Sets a parameter from its text; the error is the part of Redis's message behind the dash.
    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        let name = canonical(name);
        if let Some(field) = self.field(name) {
            return field.parse(self, value);
        }
        if let Some(fixed) = FIXED.iter().find(|fixed| fixed.name == name) {
            if value.eq_ignore_ascii_case(fixed.value.as_bytes()) {
                return Ok(());
            }
            // Values without meaning are reported as such.
            match fixed.name {
                _ if matches!(fixed.value, "yes" | "no") => tables::parse_as(Form::Switch, value)?,
                _ if fixed.value == "0" => tables::parse_as(tables::INT, value)?,
                _ => {}
            }
            return Err(fixed.why.to_owned());
        }
        if let Some(idle) = tables::find_idle(name) {
            let value = idle.parse(&[value.to_vec()])?;
            return match value.eq_ignore_ascii_case(&idle.value(self)) {
                true => Ok(()),
                false if idle.is_hint => {
                    self.idle.insert(idle.name, value);
                    Ok(())
                }
                false => Err(idle.why.to_owned()),
            };
        }
        if let Some(parameter) = PROCESS.iter().find(|parameter| parameter.name == name) {
            parameter.field.parse(&mut self.clone(), value)?;
            return Err(parameter.in_section.to_owned());
        }
        Err(UNKNOWN.to_owned())
    }

    /// Returns the storage of a parameter with an effect.
    fn field(&self, name: &str) -> Option<&'static Field> {
        let own = || PROCESS.iter().find(|parameter| parameter.name == name).map(|parameter| &parameter.field);
        find(name).map(|parameter| &parameter.field).or_else(|| own().filter(|_| self.standalone))
    }

    /// Returns whether a parameter is read only at the start.
    pub fn is_immutable(&self, name: &str) -> bool {
        let name = canonical(name);
        let process = PROCESS.iter().find(|parameter| self.standalone && parameter.name == name);
        find(name).is_some_and(|parameter| !parameter.live)
            || process.is_some_and(|parameter| !parameter.live)
            || tables::is_immutable(name)
    }

    /// Returns whether a client must authenticate, as far as this can be told before the users are read.
    pub fn needs_password(&self) -> bool {
        let is_default = |line: &ConfigLine| line.words.first().is_some_and(|name| name == b"default");
        match self.users.iter().find(|line| is_default(line)) {
            Some(line) => !line.words.iter().any(|rule| rule.eq_ignore_ascii_case(b"nopass")),
            None => !self.requirepass.is_empty() || !self.aclfile.is_empty(),
        }
    }

    /// Returns the warning for a store that listens on `address`: a bind reachable from other machines, without a
    /// password. Protected mode refuses their clients then; without it the store is open to everyone.
    pub fn public_bind_warning(&self, address: std::net::IpAddr) -> Option<&'static str> {
        match (self.needs_password() || address.to_canonical().is_loopback(), self.protected_mode) {
            (true, _) => None,
            (false, true) => Some(
                "no 'requirepass': protected mode refuses every client from another machine; set a password, or bind \
                 127.0.0.1",
            ),
            (false, false) => Some(
                "no 'requirepass' and 'protected-mode no': everybody who reaches this address can read and change the \
                 store",
            ),
        }
    }
}

/// A parameter that acts.
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Whether `CONFIG SET` may change it; otherwise it is read at the start.
    pub live: bool,
    /// One sentence.
    pub docs: &'static str,
    field: Field,
}

/// The storage of a parameter's value, its type and its range.
enum Field {
    Integer(fn(&mut ServerOptions) -> &mut u32, u32, u32),
    Memory(fn(&mut ServerOptions) -> &mut u64, u64, u64),
    /// Bytes, of a limit of the small forms of values.
    Size(fn(&mut ServerOptions) -> &mut i64),
    Share(fn(&mut ServerOptions) -> &mut MemoryShare),
    Switch(fn(&mut ServerOptions) -> &mut bool),
    Text(fn(&mut ServerOptions) -> &mut Vec<u8>),
    FileName(fn(&mut ServerOptions) -> &mut Vec<u8>),
    /// A name that is not empty; the parameter, and what errors call its value.
    PartName(fn(&mut ServerOptions) -> &mut Vec<u8>, &'static str, &'static str),
    Output(fn(&mut ServerOptions) -> &mut [OutputLimit; 3]),
    Policy(fn(&mut ServerOptions) -> &mut Policy),
    Signed(fn(&mut ServerOptions) -> &mut i64, i64, i64),
    Octal(fn(&mut ServerOptions) -> &mut u32),
    Choice(fn(&mut ServerOptions) -> &mut &'static str, &'static [&'static str]),
    Words(fn(&mut ServerOptions) -> &mut Vec<Vec<u8>>),
    Percentiles(fn(&mut ServerOptions) -> &mut Vec<f64>),
    Events(fn(&mut ServerOptions) -> &mut u32),
    /// A text of a form.
    Formed(fn(&mut ServerOptions) -> &mut Vec<u8>, Form),
    SavePoints(fn(&mut ServerOptions) -> &mut Vec<SavePoint>),
    LuaFlags(fn(&mut ServerOptions) -> &mut Vec<u8>),
    Master(fn(&mut ServerOptions) -> &mut Option<MasterAddress>),
    /// `repl-diskless-load`.
    Loads(fn(&mut ServerOptions) -> &mut &'static str),
    /// `oom-score-adj`.
    Oom(fn(&mut ServerOptions) -> &mut OomMode),
}

/// A fixed property of this store that is a parameter in Redis: it can be read, and "set" to its present value.
pub struct Fixed {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: &'static str,
    /// The reason why it cannot be changed.
    pub why: &'static str,
}

const fn fixed(name: &'static str, value: &'static str, why: &'static str) -> Fixed {
    Fixed { name, value, why }
}

/// Fixed properties, by name.
pub static FIXED: &[Fixed] = &[
    fixed("activedefrag", "no", "the allocator here does not fragment that way"),
    fixed("aof-rewrite-cpulist", "", "processors are left to the system"),
    fixed("bgsave-cpulist", "", "processors are left to the system"),
    fixed("bio-cpulist", "", "processors are left to the system"),
    fixed("cluster-enabled", "no", "the store is one node that has every slot, without a cluster around it"),
    fixed("enable-module-command", "no", "modules are not supported"),
    fixed("server-cpulist", "", "processors are left to the system"),
    fixed("socket-mark-id", "0", "sockets carry no mark"),
    fixed("syslog-enabled", "no", "the log is a file or standard output"),
];

/// Returns whether a parameter is for tests and shown only to those who name it, as in Redis.
pub(crate) fn is_hidden(name: &str) -> bool {
    matches!(name, "key-load-delay" | "loading-process-events-interval-bytes" | "rdb-key-save-delay")
}

/// Returns the parameter that acts under this name, in lower case.
pub fn find(name: &str) -> Option<&'static Parameter> {
    PARAMETERS.iter().find(|parameter| parameter.name == name)
}

/// Returns whether clients may change a parameter only if `enable-protected-configs` allows it, since it decides which
/// files the process writes.
pub fn is_protected(name: &str) -> bool {
    matches!(name, "dbfilename" | "dir")
}

/// Returns whether the value of a parameter is the path of a file or a directory.
fn is_path(name: &str) -> bool {
    let of_link = ["tls-ca-cert-dir", "tls-ca-cert-file", "tls-client-cert-file", "tls-client-key-file"];
    matches!(name, "aclfile" | "dir") || of_link.contains(&name)
}

/// Returns whether a parameter of the process has this name.
pub(crate) fn is_process(name: &str) -> bool {
    PROCESS.iter().any(|parameter| parameter.name == name)
}

/// Every name the catalogue knows, in groups.
pub fn names() -> impl Iterator<Item = &'static str> {
    PARAMETERS
        .iter()
        .map(|parameter| parameter.name)
        .chain(FIXED.iter().map(|fixed| fixed.name))
        .chain(PROCESS.iter().map(|parameter| parameter.name))
        .chain(IDLE.iter().map(|idle| idle.name))
        .chain(ALIASES.iter().map(|alias| alias.0))
}

impl Field {
    fn text(&self, options: &mut ServerOptions) -> Vec<u8> {
        match self {
            Field::Integer(field, ..) => field(options).to_string().into(),
            Field::Memory(field, ..) => field(options).to_string().into(),
            Field::Size(field) => field(options).to_string().into(),
            Field::Share(field) => match field(options) {
                MemoryShare::Bytes(bytes) => bytes.to_string().into(),
                MemoryShare::Percent(percent) => format!("{percent}%").into(),
            },
            Field::Switch(field) => if *field(options) { "yes" } else { "no" }.into(),
            Field::Text(field)
            | Field::FileName(field)
            | Field::PartName(field, ..)
            | Field::LuaFlags(field)
            | Field::Formed(field, _) => field(options).clone(),
            Field::Policy(field) => field(options).name().into(),
            Field::Events(field) => show_classes(*field(options)).into(),
            Field::SavePoints(field) => {
                let points = field(options).iter().map(|point| format!("{} {}", point.seconds, point.changes));
                points.collect::<Vec<_>>().join(" ").into()
            }
            Field::Output(field) => {
                let rows = OUTPUT_CLASSES.iter().zip(field(options).iter());
                let rows = rows.map(|(class, row)| format!("{class} {} {} {}", row.hard, row.soft, row.soft_s));
                rows.collect::<Vec<_>>().join(" ").into()
            }
            Field::Signed(field, ..) => field(options).to_string().into(),
            Field::Octal(field) => format!("{:o}", field(options)).into(),
            Field::Choice(field, _) | Field::Loads(field) => (*field(options)).into(),
            Field::Oom(field) => field(options).name().into(),
            Field::Words(field) => field(options).join(&b' '),
            Field::Master(field) => match field(options) {
                Some(MasterAddress { host, port }) => format!("{host} {port}").into(),
                None => Vec::new(),
            },
            Field::Percentiles(field) => field(options).iter().map(f64::to_string).collect::<Vec<_>>().join(" ").into(),
        }
    }

    fn parse(&self, options: &mut ServerOptions, value: &[u8]) -> Result<(), String> {
        match self {
            Field::Integer(field, min, max) => {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
                let number = number.ok_or(NOT_NUMBER)?;
                match u32::try_from(number) {
                    Ok(number) if (*min..=*max).contains(&number) => *field(options) = number,
                    _ => return Err(format!("argument must be between {min} and {max} inclusive")),
                }
            }
            Field::Memory(field, min, max) => {
                let bytes = parse_memory(value).ok_or(NOT_MEMORY)?;
                if !(*min..=*max).contains(&bytes) {
                    return Err(format!("argument must be between {min} and {max} inclusive"));
                }
                *field(options) = bytes;
            }
            Field::Share(field) => *field(options) = MemoryShare::parse(value)?,
            Field::Size(field) => {
                let bytes = parse_memory(value).ok_or(NOT_MEMORY)?;
                *field(options) = i64::try_from(bytes)
                    .map_err(|_| format!("argument must be between 0 and {} inclusive", i64::MAX))?;
            }
            Field::Switch(field) => {
                *field(options) = match value {
                    value if value.eq_ignore_ascii_case(b"yes") => true,
                    value if value.eq_ignore_ascii_case(b"no") => false,
                    _ => return Err(NOT_SWITCH.into()),
                }
            }
            Field::Text(field) => *field(options) = value.to_vec(),
            Field::Master(field) if value.is_empty() => *field(options) = None,
            Field::Master(field) => *field(options) = file::master(&[value.to_vec()])?,
            Field::Oom(field) => *field(options) = OomMode::parse(value).ok_or_else(|| not_a_choice(OomMode::NAMES))?,
            Field::Loads(field) => {
                let named = |choice: &&&str| choice.as_bytes().eq_ignore_ascii_case(value);
                *field(options) = LOADS.iter().find(named).ok_or_else(|| not_a_choice(LOADS))?;
            }
            Field::FileName(_) if value.contains(&b'/') || value.contains(&b'\\') => {
                return Err("dbfilename can't be a path, just a filename".into());
            }
            Field::FileName(field) => *field(options) = value.to_vec(),
            Field::PartName(field, name, what) => *field(options) = Form::Name(what, false).parse(name, value)?,
            Field::LuaFlags(field) => {
                crate::script::flags::listed(value)?;
                *field(options) = value.to_vec();
            }
            Field::Events(field) => {
                *field(options) =
                    parse_classes(value).ok_or("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")?;
            }
            Field::Formed(field, form) => *field(options) = form.parse("", value)?,
            Field::SavePoints(field) => *field(options) = file::save_points(&[value.to_vec()])?,
            Field::Output(field) => parse_output_limits(field(options), value)?,
            Field::Policy(field) => {
                let named = |policy: &Policy| policy.name().as_bytes().eq_ignore_ascii_case(value);
                *field(options) = Policy::ALL.into_iter().find(named).ok_or_else(|| {
                    let names: Vec<&str> = Policy::ALL.iter().map(|policy| policy.name()).collect();
                    format!("argument(s) must be one of the following: {}", names.join(", "))
                })?;
            }
            Field::Signed(field, min, max) => {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
                let number = number.ok_or(NOT_NUMBER)?;
                if !(*min..=*max).contains(&number) {
                    return Err(format!("argument must be between {min} and {max} inclusive"));
                }
                *field(options) = number;
            }
            Field::Octal(field) => {
                let mode = std::str::from_utf8(value).ok().and_then(|text| u32::from_str_radix(text, 8).ok());
                *field(options) = match mode {
                    Some(mode) if mode <= 0o777 => mode,
                    Some(_) => return Err("argument must be between 0 and 777 inclusive".into()),
                    None => return Err("argument couldn't be parsed as an octal number".into()),
                };
            }
            Field::Choice(field, choices) => {
                let choice = choices.iter().find(|choice| value.eq_ignore_ascii_case(choice.as_bytes()));
                *field(options) = choice.ok_or_else(|| not_a_choice(choices))?;
            }
            Field::Words(field) => *field(options) = words(value),
            Field::Percentiles(field) => {
                const WRONG: &str = "Invalid latency-tracking-info-percentiles parameters";
                const RANGE: &str = "latency-tracking-info-percentiles parameters should sit between [0.0,100.0]";
                let each = words(value).into_iter().map(|word| {
                    let number = std::str::from_utf8(&word).ok().and_then(|text| text.parse::<f64>().ok());
                    let number = number.filter(|number| !number.is_nan()).ok_or(WRONG)?;
                    if (0.0..=100.0).contains(&number) { Ok(number) } else { Err(RANGE) }
                });
                *field(options) = each.collect::<Result<_, _>>()?;
            }
        }
        Ok(())
    }
}

fn words(value: &[u8]) -> Vec<Vec<u8>> {
    value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect()
}

fn parse_output_limits(rows: &mut [OutputLimit; 3], value: &[u8]) -> Result<(), String> {
    let words: Vec<&[u8]> = value.split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty()).collect();
    if !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".into());
    }
    let mut changed = *rows;
    for row in words.chunks_exact(4) {
        let class = match row[0] {
            name if name.eq_ignore_ascii_case(b"normal") => 0,
            name if name.eq_ignore_ascii_case(b"slave") || name.eq_ignore_ascii_case(b"replica") => 1,
            name if name.eq_ignore_ascii_case(b"pubsub") => 2,
            _ => return Err("Invalid client class specified in buffer limit configuration.".into()),
        };
        let seconds = std::str::from_utf8(row[3]).ok().and_then(|text| text.parse().ok());
        let (Some(hard), Some(soft), Some(soft_s)) = (parse_memory(row[1]), parse_memory(row[2]), seconds) else {
            return Err("Error in hard, soft or soft_seconds setting in buffer limit configuration.".into());
        };
        changed[class] = OutputLimit { hard, soft, soft_s };
    }
    *rows = changed;
    Ok(())
}

/// Returns a number of bytes: `1k` is 1,000, `1kb` is 1,024, as in Redis.
pub fn parse_memory(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // As in C: without digits the number is 0, and a number that is too large is the maximum, which is outside every
    // range.
    let number = text[..digits]
        .iter()
        .fold(0u64, |number, digit| number.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    let unit: u64 = match text[digits..].to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    Some(number.saturating_mul(unit))
}

/// An invalid keyword of a `store` section.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterError<P> {
    /// The keyword.
    pub name: String,
    /// Its position, in the caller's terms.
    pub at: P,
    /// The error.
    pub message: String,
    /// The alternative, if known.
    pub hint: Option<String>,
}

/// Types the keywords of a `store` section; all errors are reported, each with its position.
///
/// The last of several lines with a keyword wins, as in a Redis configuration file.
pub fn apply<P: Clone>(parameters: &[(String, String, P)]) -> Result<ServerOptions, Vec<ParameterError<P>>> {
    let mut options = ServerOptions::default();
    let mut errors = Vec::new();
    for (name, value, at) in parameters {
        let name = name.to_ascii_lowercase();
        let mut fail = |message: String, hint: Option<String>| {
            errors.push(ParameterError { name: name.clone(), at: at.clone(), message, hint });
        };
        if !names().any(|known| known == name) {
            let hint = nearest(&name).map(|near| format!("did you mean '{near}'?"));
            fail(format!("unknown store parameter '{name}'"), hint);
        } else if is_path(&name) && !value.is_empty() && !value.starts_with('/') {
            // It must mean the same at a reload, which another process may ask for.
            fail(format!("'{name} {value}': argument must be an absolute path"), None);
        } else if let Err(why) = options.set(&name, value.as_bytes()) {
            fail(format!("'{name} {value}': {why}"), find(&name).map(|parameter| parameter.docs.to_owned()));
        }
    }
    if errors.is_empty() { Ok(options) } else { Err(errors) }
}

/// Returns the known name that is fewest edits away, if those are few.
fn nearest(name: &str) -> Option<&'static str> {
    let near = names().map(|known| (distance(name.as_bytes(), known.as_bytes()), known)).min()?;
    // Two letters that changed places count as two.
    (near.0 <= name.len().div_ceil(3).max(2.min(name.len() / 2))).then_some(near.1)
}

/// Returns the number of insertions, deletions and replacements between two words (Levenshtein).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (diagonal + usize::from(x != y)).min(above + 1).min(row[j] + 1);
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_typed_or_every_error_is_reported() {
        let words = |list: &[(&str, &str)]| -> Vec<(String, String, usize)> {
            list.iter().enumerate().map(|(line, (name, value))| (name.to_string(), value.to_string(), line)).collect()
        };
        let options = apply(&words(&[("requirepass", "secret"), ("timeout", "30"), ("proto-max-bulk-len", "1mb")]));
        let options = options.expect("right");
        let memory = apply(&words(&[("maxmemory", "1gb"), ("maxmemory-policy", "volatile-ttl")])).expect("right");
        assert_eq!((memory.maxmemory, memory.maxmemory_policy), (1 << 30, Policy::VolatileTtl));
        assert_eq!((options.timeout_s, options.proto_max_bulk_len), (30, 1 << 20));
        let master = apply(&words(&[("slaveof", "::1 6379"), ("masterauth", "secret")])).expect("right").replicaof;
        assert_eq!(master, Some(MasterAddress { host: "::1".into(), port: 6379 }));
        assert!(options.needs_password());

        let errors = apply(&words(&[
            ("timout", "30"),
            ("maxclients", "0"),
            ("maxmemory-clients", "101%"),
            ("save", ""),
            ("dir", "x"),
            ("dir", "/x"),
        ]));
        let errors = errors.expect_err("wrong");
        let texts: Vec<(usize, &str)> = errors.iter().map(|error| (error.at, error.message.as_str())).collect();
        assert_eq!(
            texts,
            [
                (0, "unknown store parameter 'timout'"),
                (1, "'maxclients 0': argument must be between 1 and 4294967295 inclusive"),
                (2, "'maxmemory-clients 101%': percentage argument must be less or equal to 100"),
                (4, "'dir x': argument must be an absolute path"),
            ]
        );
        assert_eq!(errors[0].hint.as_deref(), Some("did you mean 'timeout'?"));
    }

    #[test]
    fn every_parameter_reads_back_what_it_shows_and_no_name_stands_twice() {
        let mut options = ServerOptions { standalone: true, ..ServerOptions::default() };
        for name in names() {
            let Some(value) = options.get(name) else { continue };
            assert_eq!(options.set(name, &value), Ok(()), "{name}");
        }
        assert_eq!(options, ServerOptions { standalone: true, ..ServerOptions::default() });
        let mut options = ServerOptions::default();
        for name in PARAMETERS.iter().map(|parameter| parameter.name).chain(FIXED.iter().map(|fixed| fixed.name)) {
            let value = options.get(name).expect("a value");
            assert_eq!(options.set(name, &value), Ok(()), "{name}");
        }
        assert_eq!(options, ServerOptions::default());
        let mut all: Vec<&str> = names().collect();
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn a_public_bind_without_a_password_is_warned_of() {
        let check = |address: &str, password: &str, protected_mode: bool, expected: Option<&str>| {
            let requirepass = password.into();
            let options = ServerOptions { requirepass, protected_mode, ..ServerOptions::default() };
            let warning = options.public_bind_warning(address.parse().expect("an address"));
            assert_eq!(warning.is_some(), expected.is_some(), "{address}");
            assert!(warning.unwrap_or_default().contains(expected.unwrap_or_default()));
        };
        check("127.0.0.1", "", true, None);
        check("::1", "", false, None);
        check("0.0.0.0", "secret", true, None);
        check("0.0.0.0", "", true, Some("protected mode refuses"));
        check("::", "", false, Some("everybody"));
    }

    #[test]
    fn memory_has_decimal_and_binary_units() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(parse_memory(text.as_bytes()), expected, "{text}");
        check("5", Some(5));
        check("1k", Some(1000));
        check("1Kb", Some(1024));
        check("2GB", Some(2 << 30));
        check("", Some(0));
        check("k", Some(0));
        check("99999999999999999999", Some(u64::MAX));
        check("99999999999gb", Some(u64::MAX));
        for bad in ["-1", "1xb", "1 "] {
            check(bad, None);
        }
    }

    #[test]
    fn output_limits_change_only_the_classes_named_and_only_as_a_whole() {
        let mut options = ServerOptions::default();
        assert_eq!(options.set("client-output-buffer-limit", b"normal 1mb 1kb 2"), Ok(()));
        let text = options.get("client-output-buffer-limit").expect("a value");
        let expected = "normal 1048576 1024 2 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
        assert_eq!(String::from_utf8_lossy(&text), expected);
        assert!(options.set("client-output-buffer-limit", b"pubsub 0 0 0 normal 1 x 1").is_err());
        assert_eq!(options.get("client-output-buffer-limit"), Some(text));
    }
}
