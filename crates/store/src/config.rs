//! The parameters of a store: CONFIG GET and SET, and the keywords of a `store` section.
//!
//! One catalogue serves all three. A parameter either acts ([`Parameter`]), or is a plain truth about this store that
//! can be read but not changed ([`FIXED`]), or is refused by its name with the reason ([`REFUSED`]); no name is
//! accepted and then ignored. Names, ranges, units and error texts are Redis's.
//!
//! Values live in one [`ServerOptions`], which is replaced as a whole, so a reader never sees half of a change.

use crate::memory::Policy;

/// Everything that can be set, typed. Made by [`apply`] or by [`Default`], changed by `CONFIG SET`.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerOptions {
    /// The password of the default user; empty: none is needed.
    pub requirepass: Vec<u8>,
    /// Refuse clients from other machines while there is no password.
    pub protected_mode: bool,
    /// Databases that SELECT can choose.
    pub databases: u32,
    /// Most clients at a time.
    pub maxclients: u32,
    /// Seconds after which an idle client is disconnected; 0: never.
    pub timeout_s: u32,
    /// Seconds between TCP keep-alive probes; 0: none.
    pub tcp_keepalive_s: u32,
    /// Longest single argument, in bytes.
    pub proto_max_bulk_len: u64,
    /// Most bytes of requests that one client may have outstanding.
    pub client_query_buffer_limit: u64,
    /// What a client may leave unread: normal, replica and pub/sub clients.
    pub client_output_buffer_limit: [OutputLimit; 3],
    /// Most bytes of data and clients' buffers; 0: no limit.
    pub maxmemory: u64,
    /// What is evicted at `maxmemory`.
    pub maxmemory_policy: Policy,
    /// Minutes without an access in which a key's counter of accesses goes down by one; 0: it never does.
    pub lfu_decay_time: u32,
}

/// A class's row of `client-output-buffer-limit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimit {
    /// Bytes at which a client is disconnected at once; 0: no limit.
    pub hard: u64,
    /// Bytes above which a client may not stay for longer than `soft_s`; 0: no limit.
    pub soft: u64,
    /// Seconds.
    pub soft_s: u64,
}

const OUTPUT_CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            requirepass: Vec::new(),
            protected_mode: true,
            databases: 16,
            maxclients: 10_000,
            timeout_s: 0,
            tcp_keepalive_s: 300,
            proto_max_bulk_len: 512 << 20,
            client_query_buffer_limit: 1 << 30,
            client_output_buffer_limit: [
                OutputLimit::default(),
                OutputLimit { hard: 256 << 20, soft: 64 << 20, soft_s: 60 },
                OutputLimit { hard: 32 << 20, soft: 8 << 20, soft_s: 60 },
            ],
            maxmemory: 0,
            maxmemory_policy: Policy::NoEviction,
            lfu_decay_time: 1,
        }
    }
}

impl ServerOptions {
    /// The value of a parameter as `CONFIG GET` shows it; [`None`] for a name without a value.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        if let Some(parameter) = find(name) {
            return Some(parameter.field.text(&mut self.clone()));
        }
        FIXED.iter().find(|fixed| fixed.name == name).map(|fixed| fixed.value.into())
    }

    /// Sets a parameter from its text; the error is the part of Redis's message behind the dash.
    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        if let Some(parameter) = find(name) {
            return parameter.field.parse(self, value);
        }
        if let Some(fixed) = FIXED.iter().find(|fixed| fixed.name == name) {
            return match value.eq_ignore_ascii_case(fixed.value.as_bytes()) {
                true => Ok(()),
                false => Err(fixed.why.to_owned()),
            };
        }
        match REFUSED.iter().find(|refused| refused.0 == name) {
            Some(refused) => Err(refused.1.to_owned()),
            None => Err("unknown parameter".to_owned()),
        }
    }

    /// Whether a client must authenticate.
    pub fn needs_password(&self) -> bool {
        !self.requirepass.is_empty()
    }

    /// What to warn of when the store listens on `address`: a bind that other machines reach, and no password. Protected
    /// mode refuses their clients then; without it the store is open to everybody.
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

    /// Whether clients from other machines are refused: protected mode, and no password.
    pub fn refuses_strangers(&self) -> bool {
        self.protected_mode && !self.needs_password()
    }
}

/// A parameter that acts.
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Whether `CONFIG SET` may change it; otherwise it is read at start.
    pub live: bool,
    /// One sentence.
    pub docs: &'static str,
    field: Field,
}

/// Where a parameter's value lives, its type and its range.
enum Field {
    Integer(fn(&mut ServerOptions) -> &mut u32, u32, u32),
    Memory(fn(&mut ServerOptions) -> &mut u64, u64, u64),
    Switch(fn(&mut ServerOptions) -> &mut bool),
    Text(fn(&mut ServerOptions) -> &mut Vec<u8>),
    Output(fn(&mut ServerOptions) -> &mut [OutputLimit; 3]),
    Policy(fn(&mut ServerOptions) -> &mut Policy),
}

/// Parameters that act, by name.
pub static PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "client-output-buffer-limit",
        live: true,
        docs: "Disconnects a client that leaves more replies unread: class, hard limit, soft limit, seconds.",
        field: Field::Output(|options| &mut options.client_output_buffer_limit),
    },
    Parameter {
        name: "client-query-buffer-limit",
        live: true,
        docs: "Disconnects a client that has more bytes of requests outstanding.",
        field: Field::Memory(|options| &mut options.client_query_buffer_limit, 1 << 20, i64::MAX as u64),
    },
    Parameter {
        name: "databases",
        live: false,
        docs: "How many databases SELECT can choose.",
        field: Field::Integer(|options| &mut options.databases, 1, i32::MAX as u32),
    },
    Parameter {
        name: "lfu-decay-time",
        live: true,
        docs: "Minutes without an access in which a key's counter of accesses goes down by one; 0 for never.",
        field: Field::Integer(|options| &mut options.lfu_decay_time, 0, i32::MAX as u32),
    },
    Parameter {
        name: "maxclients",
        live: true,
        docs: "Most clients at a time; further ones get an error and are closed.",
        field: Field::Integer(|options| &mut options.maxclients, 1, u32::MAX),
    },
    Parameter {
        name: "maxmemory",
        live: true,
        docs: "Most bytes of data and clients' buffers; beyond, keys are evicted as maxmemory-policy says; 0 for no limit.",
        field: Field::Memory(|options| &mut options.maxmemory, 0, u64::MAX),
    },
    Parameter {
        name: "maxmemory-policy",
        live: true,
        docs: "Which keys are evicted at maxmemory; with noeviction commands that need memory are refused.",
        field: Field::Policy(|options| &mut options.maxmemory_policy),
    },
    Parameter {
        name: "protected-mode",
        live: true,
        docs: "Refuses clients from other machines while there is no password.",
        field: Field::Switch(|options| &mut options.protected_mode),
    },
    Parameter {
        name: "proto-max-bulk-len",
        live: true,
        docs: "The longest argument of a request.",
        field: Field::Memory(|options| &mut options.proto_max_bulk_len, 1 << 20, i64::MAX as u64),
    },
    Parameter {
        name: "requirepass",
        live: true,
        docs: "The password of the default user; empty for none.",
        field: Field::Text(|options| &mut options.requirepass),
    },
    Parameter {
        name: "tcp-keepalive",
        live: true,
        docs: "Seconds between keep-alive probes to a silent client; 0 for none. Acts on new connections.",
        field: Field::Integer(|options| &mut options.tcp_keepalive_s, 0, i32::MAX as u32),
    },
    Parameter {
        name: "timeout",
        live: true,
        docs: "Seconds after which an idle client is disconnected; 0 for never.",
        field: Field::Integer(|options| &mut options.timeout_s, 0, i32::MAX as u32),
    },
];

/// A truth about this store that Redis makes a parameter of: it can be read, and "set" to what it is.
pub struct Fixed {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: &'static str,
    /// Why it can't be changed.
    pub why: &'static str,
}

const NOT_YET: &str = "not available yet";

const fn fixed(name: &'static str, value: &'static str, why: &'static str) -> Fixed {
    Fixed { name, value, why }
}

/// Truths, by name.
pub static FIXED: &[Fixed] = &[
    fixed("appendonly", "no", NOT_YET),
    fixed("cluster-enabled", "no", "an embedded store is not a cluster node"),
    fixed("daemonize", "no", "'daemon' in the global section decides that"),
    fixed("enable-debug-command", "no", NOT_YET),
    fixed("enable-module-command", "no", "modules are not supported"),
    fixed("io-threads", "1", "'nbthread' in the global section sets the workers"),
    fixed("notify-keyspace-events", "", NOT_YET),
    fixed("replicaof", "", "replication is not supported"),
    fixed("save", "", NOT_YET),
    fixed("slaveof", "", "replication is not supported"),
];

/// Names that Redis has and this store refuses, with the reason.
pub static REFUSED: &[(&str, &str)] = &[
    ("aclfile", NOT_YET),
    ("active-expire-effort", "expiry adapts by itself"),
    ("activedefrag", "the allocator here does not fragment that way"),
    ("activerehashing", "tables here never rehash as a whole"),
    ("appenddirname", NOT_YET),
    ("appendfilename", NOT_YET),
    ("appendfsync", NOT_YET),
    ("auto-aof-rewrite-min-size", NOT_YET),
    ("auto-aof-rewrite-percentage", NOT_YET),
    ("bind", "write 'bind ADDRESS:PORT' in the store section"),
    ("busy-reply-threshold", NOT_YET),
    ("dbfilename", NOT_YET),
    ("dir", NOT_YET),
    ("dynamic-hz", "expiry adapts by itself"),
    ("hash-max-listpack-entries", NOT_YET),
    ("hash-max-listpack-value", NOT_YET),
    ("hll-sparse-max-bytes", NOT_YET),
    ("hz", "expiry adapts by itself"),
    ("latency-monitor-threshold", NOT_YET),
    ("latency-tracking", NOT_YET),
    ("lazyfree-lazy-eviction", "large values are always freed outside the locks"),
    ("lazyfree-lazy-expire", "large values are always freed outside the locks"),
    ("lazyfree-lazy-server-del", "large values are always freed outside the locks"),
    ("lazyfree-lazy-user-del", "large values are always freed outside the locks"),
    ("lazyfree-lazy-user-flush", "large values are always freed outside the locks"),
    ("lfu-log-factor", "the first accesses are counted one by one, and a counter ends at half a million"),
    ("list-compress-depth", NOT_YET),
    ("list-max-listpack-size", NOT_YET),
    ("logfile", "'log' in the global section decides that"),
    ("loglevel", "'log' in the global section decides that"),
    ("lua-time-limit", NOT_YET),
    ("masterauth", "replication is not supported"),
    ("masteruser", "replication is not supported"),
    ("maxmemory-clients", "clients are not evicted; see client-output-buffer-limit"),
    ("maxmemory-eviction-tenacity", "a command takes half a millisecond for eviction at most"),
    ("maxmemory-samples", "the worst of every sixteen keys is evicted; there is nothing to choose"),
    ("pidfile", "'pidfile' in the global section decides that"),
    ("port", "write 'bind ADDRESS:PORT' in the store section"),
    ("repl-backlog-size", "replication is not supported"),
    ("set-max-intset-entries", NOT_YET),
    ("slowlog-log-slower-than", NOT_YET),
    ("slowlog-max-len", NOT_YET),
    ("stream-node-max-bytes", NOT_YET),
    ("stream-node-max-entries", NOT_YET),
    ("tcp-backlog", "'backlog' belongs to the bind line"),
    ("tls-port", NOT_YET),
    ("tracking-table-max-keys", NOT_YET),
    ("unixsocket", "write 'bind PATH' in the store section"),
    ("unixsocketperm", "'mode' belongs to the bind line"),
    ("zset-max-listpack-entries", NOT_YET),
    ("zset-max-listpack-value", NOT_YET),
];

/// The parameter that acts under this name, in lower case.
pub fn find(name: &str) -> Option<&'static Parameter> {
    PARAMETERS.iter().find(|parameter| parameter.name == name)
}

/// Every name the catalogue knows, in groups.
pub fn names() -> impl Iterator<Item = &'static str> {
    PARAMETERS
        .iter()
        .map(|parameter| parameter.name)
        .chain(FIXED.iter().map(|fixed| fixed.name))
        .chain(REFUSED.iter().map(|refused| refused.0))
}

impl Field {
    fn text(&self, options: &mut ServerOptions) -> Vec<u8> {
        match self {
            Field::Integer(field, ..) => field(options).to_string().into(),
            Field::Memory(field, ..) => field(options).to_string().into(),
            Field::Switch(field) => if *field(options) { "yes" } else { "no" }.into(),
            Field::Text(field) => field(options).clone(),
            Field::Policy(field) => field(options).name().into(),
            Field::Output(field) => {
                let rows = OUTPUT_CLASSES.iter().zip(field(options).iter());
                let rows = rows.map(|(class, row)| format!("{class} {} {} {}", row.hard, row.soft, row.soft_s));
                rows.collect::<Vec<_>>().join(" ").into()
            }
        }
    }

    fn parse(&self, options: &mut ServerOptions, value: &[u8]) -> Result<(), String> {
        match self {
            Field::Integer(field, min, max) => {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
                let number = number.ok_or("argument couldn't be parsed into an integer")?;
                match u32::try_from(number) {
                    Ok(number) if (*min..=*max).contains(&number) => *field(options) = number,
                    _ => return Err(format!("argument must be between {min} and {max} inclusive")),
                }
            }
            Field::Memory(field, min, max) => {
                let bytes = parse_memory(value).ok_or("argument must be a memory value")?;
                if !(*min..=*max).contains(&bytes) {
                    return Err(format!("argument must be between {min} and {max} inclusive"));
                }
                *field(options) = bytes;
            }
            Field::Switch(field) => {
                *field(options) = match value {
                    value if value.eq_ignore_ascii_case(b"yes") => true,
                    value if value.eq_ignore_ascii_case(b"no") => false,
                    _ => return Err("argument must be 'yes' or 'no'".into()),
                }
            }
            Field::Text(field) => *field(options) = value.to_vec(),
            Field::Output(field) => parse_output_limits(field(options), value)?,
            Field::Policy(field) => {
                let named = |policy: &Policy| policy.name().as_bytes().eq_ignore_ascii_case(value);
                *field(options) = Policy::ALL.into_iter().find(named).ok_or_else(|| {
                    let names: Vec<&str> = Policy::ALL.iter().map(|policy| policy.name()).collect();
                    format!("argument(s) must be one of the following: {}", names.join(", "))
                })?;
            }
        }
        Ok(())
    }
}

fn parse_output_limits(rows: &mut [OutputLimit; 3], value: &[u8]) -> Result<(), String> {
    let words: Vec<&[u8]> = value.split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty()).collect();
    if words.is_empty() || !words.len().is_multiple_of(4) {
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

/// A number of bytes: `1k` is 1,000, `1kb` is 1,024, as in Redis.
pub fn parse_memory(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number: u64 = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
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
    number.checked_mul(unit)
}

/// A keyword of a `store` section that can't be taken.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterError<P> {
    /// The keyword.
    pub name: String,
    /// Where it stands, as the caller names places.
    pub at: P,
    /// What is wrong.
    pub message: String,
    /// What to write instead, if that is known.
    pub hint: Option<String>,
}

/// Types the keywords of a `store` section; all errors are reported, each with its place.
///
/// Where a keyword stands twice the last one counts, as in a Redis configuration file.
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
        } else if let Err(why) = options.set(&name, value.as_bytes()) {
            fail(format!("'{name} {value}': {why}"), find(&name).map(|parameter| parameter.docs.to_owned()));
        }
    }
    if errors.is_empty() { Ok(options) } else { Err(errors) }
}

/// The known name that is fewest edits away, if those are few.
fn nearest(name: &str) -> Option<&'static str> {
    let near = names().map(|known| (distance(name.as_bytes(), known.as_bytes()), known)).min()?;
    (near.0 <= name.len().div_ceil(3)).then_some(near.1)
}

/// Insertions, deletions and replacements between two words (Levenshtein).
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
        assert!(options.needs_password() && !options.refuses_strangers());

        let errors = apply(&words(&[("timout", "30"), ("maxclients", "0"), ("maxmemory-clients", "1g"), ("save", "")]));
        let errors = errors.expect_err("wrong");
        let texts: Vec<(usize, &str)> = errors.iter().map(|error| (error.at, error.message.as_str())).collect();
        assert_eq!(
            texts,
            [
                (0, "unknown store parameter 'timout'"),
                (1, "'maxclients 0': argument must be between 1 and 4294967295 inclusive"),
                (2, "'maxmemory-clients 1g': clients are not evicted; see client-output-buffer-limit"),
            ]
        );
        assert_eq!(errors[0].hint.as_deref(), Some("did you mean 'timeout'?"));
    }

    #[test]
    fn every_parameter_reads_back_what_it_shows_and_no_name_stands_twice() {
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
        for bad in ["", "-1", "1xb", "k", "99999999999999999999", "99999999999gb"] {
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
