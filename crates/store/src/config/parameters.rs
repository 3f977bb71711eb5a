//! The parameters that act in every store.

use super::{Field, Parameter, ServerOptions};

const fn limit(
    name: &'static str,
    field: fn(&mut ServerOptions) -> &mut i64,
    min: i64,
    docs: &'static str,
) -> Parameter {
    Parameter { name, live: true, docs, field: Field::Signed(field, min, i64::MAX) }
}

const fn size(name: &'static str, field: fn(&mut ServerOptions) -> &mut i64, docs: &'static str) -> Parameter {
    Parameter { name, live: true, docs, field: Field::Size(field) }
}

/// Returns a parameter of TLS. Those of clients alone belong to the process.
const fn tls(name: &'static str, field: fn(&mut ServerOptions) -> &mut Vec<u8>, docs: &'static str) -> Parameter {
    Parameter { name, live: true, docs, field: Field::Text(field) }
}

/// Parameters that act, by name.
pub static PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "acl-pubsub-default",
        live: true,
        docs: "Channels of a new user: resetchannels for none, allchannels for all.",
        field: Field::Choice(|options| &mut options.acl_pubsub_default, &["allchannels", "resetchannels"]),
    },
    Parameter {
        name: "aclfile",
        live: false,
        docs: "The file of users, which ACL LOAD reads and ACL SAVE writes; then there are no lines of users elsewhere.",
        field: Field::Text(|options| &mut options.aclfile),
    },
    limit("acllog-max-len", |o| &mut o.acllog_max_len, 0, "Maximum number of entries of ACL LOG."),
    Parameter {
        name: "aof-load-truncated",
        live: true,
        docs: "Whether an append-only file whose end is cut off is loaded up to the last whole command.",
        field: Field::Switch(|options| &mut options.aof_load_truncated),
    },
    Parameter {
        name: "aof-timestamp-enabled",
        live: true,
        docs: "Whether the append-only file gets the time, once a second.",
        field: Field::Switch(|options| &mut options.aof_timestamps),
    },
    Parameter {
        name: "appenddirname",
        live: false,
        docs: "The directory of the append-only files, in 'dir'.",
        field: Field::PartName(|options| &mut options.appenddirname, "appenddirname", "dirname"),
    },
    Parameter {
        name: "appendfilename",
        live: false,
        docs: "The start of the names of the append-only files.",
        field: Field::PartName(|options| &mut options.appendfilename, "appendfilename", "filename"),
    },
    Parameter {
        name: "appendfsync",
        live: true,
        docs: "When the append-only file is synced: always (before a reply), everysec, or no (when the kernel wants to).",
        field: Field::Choice(|options| &mut options.appendfsync, &["everysec", "always", "no"]),
    },
    Parameter {
        name: "appendonly",
        live: true,
        docs: "Whether every change is appended to a file, from which the store begins.",
        field: Field::Switch(|options| &mut options.appendonly),
    },
    Parameter {
        name: "auto-aof-rewrite-min-size",
        live: true,
        docs: "The size of the append-only files below which none is rewritten by itself.",
        field: Field::Memory(|options| &mut options.aof_rewrite_min_bytes, 0, i64::MAX as u64),
    },
    Parameter {
        name: "auto-aof-rewrite-percentage",
        live: true,
        docs: "The growth of the append-only files, in percent, after which they are rewritten; 0: never.",
        field: Field::Integer(|options| &mut options.aof_rewrite_percentage, 0, i32::MAX as u32),
    },
    Parameter {
        name: "bind-source-addr",
        live: true,
        docs: "The address from which the store connects to its master; empty: the kernel's choice.",
        field: Field::Text(|options| &mut options.bind_source_addr),
    },
    Parameter {
        name: "busy-reply-threshold",
        live: true,
        docs: "Milliseconds after which clients waiting for a script's keys get BUSY and SCRIPT KILL may end it; 0 for \
         never.",
        field: Field::Signed(|options| &mut options.busy_reply_threshold_ms, 0, i64::MAX),
    },
    Parameter {
        name: "client-output-buffer-limit",
        live: true,
        docs: "Limits of unread replies, beyond which a client is disconnected: class, hard limit, soft limit, \
         seconds.",
        field: Field::Output(|options| &mut options.client_output_buffer_limit),
    },
    Parameter {
        name: "client-query-buffer-limit",
        live: true,
        docs: "Maximum size of a client's unprocessed requests; beyond it the client is disconnected.",
        field: Field::Memory(|options| &mut options.client_query_buffer_limit, 1 << 20, i64::MAX as u64),
    },
    Parameter {
        name: "databases",
        live: false,
        docs: "Number of databases that SELECT can choose.",
        field: Field::Integer(|options| &mut options.databases, 1, i32::MAX as u32),
    },
    Parameter {
        name: "dbfilename",
        live: true,
        docs: "The name of the RDB file in 'dir'. Protected: see 'enable-protected-configs'.",
        field: Field::FileName(|options| &mut options.dbfilename),
    },
    Parameter {
        name: "default_lua_flags",
        live: true,
        docs: "Default flags of scripts, separated by commas, as in SCRIPT FLAGS. A parameter of Dragonfly.",
        field: Field::LuaFlags(|options| &mut options.default_lua_flags),
    },
    Parameter {
        name: "dir",
        live: true,
        docs: "The directory of the store's files, from which its data set is loaded at the start. In a store section, \
         without it nothing is loaded. Protected: see 'enable-protected-configs'.",
        field: Field::Text(|options| &mut options.dir),
    },
    Parameter {
        name: "enable-debug-command",
        live: false,
        docs: "Clients that may call DEBUG: no, yes, or local for clients of this machine.",
        field: Field::Choice(|options| &mut options.enable_debug_command, &["no", "yes", "local"]),
    },
    Parameter {
        name: "enable-protected-configs",
        live: false,
        docs: "Clients that may change 'dir' and 'dbfilename': no, yes, or local for clients of this machine.",
        field: Field::Choice(|options| &mut options.enable_protected_configs, &["no", "yes", "local"]),
    },
    limit(
        "hash-max-listpack-entries",
        |o| &mut o.limits[0],
        0,
        "Maximum number of fields of a hash in its small form.",
    ),
    size("hash-max-listpack-value", |o| &mut o.limits[1], "Maximum length of a field or value in the small form."),
    size("hll-sparse-max-bytes", |o| &mut o.limits[8], "Maximum size of a HyperLogLog in its small form, in bytes."),
    Parameter {
        name: "key-load-delay",
        live: true,
        docs: "Microseconds for which a load sleeps for each key or command of a file, as if the disk were slow; negative: one \
         for so many keys. For tests.",
        field: Field::Signed(|options| &mut options.key_load_delay_us, i32::MIN as i64, i32::MAX as i64),
    },
    Parameter {
        name: "latency-monitor-threshold",
        live: true,
        docs: "Milliseconds from which an event is recorded for LATENCY; 0 for none.",
        field: Field::Signed(|options| &mut options.latency_threshold_ms, 0, i64::MAX),
    },
    Parameter {
        name: "latency-tracking",
        live: true,
        docs: "Whether the durations of commands are recorded for LATENCY HISTOGRAM and INFO latencystats.",
        field: Field::Switch(|options| &mut options.latency_tracking),
    },
    Parameter {
        name: "latency-tracking-info-percentiles",
        live: true,
        docs: "Percentiles that INFO latencystats shows.",
        field: Field::Percentiles(|options| &mut options.latency_percentiles),
    },
    Parameter {
        name: "list-max-listpack-size",
        live: true,
        docs: "Maximum number of elements of a list's node, or from -1 to -5 its size of 4 to 64 KiB.",
        field: Field::Signed(|options| &mut options.limits[7], i32::MIN as i64, i32::MAX as i64),
    },
    Parameter {
        name: "lfu-decay-time",
        live: true,
        docs: "Minutes without an access after which a key's access counter is decremented; 0 for never.",
        field: Field::Integer(|options| &mut options.lfu_decay_time, 0, i32::MAX as u32),
    },
    Parameter {
        name: "lua-memory-limit",
        live: true,
        docs: "Memory limit of a script interpreter, in bytes; a script that exceeds it ends with an error. Not a \
         parameter of Redis.",
        field: Field::Memory(|options| &mut options.lua_memory_limit, 1 << 20, 1 << 40),
    },
    Parameter {
        name: "lua-undeclared-keys",
        live: true,
        docs: "Whether scripts may use undeclared keys: allow or deny. Not a parameter of Redis.",
        field: Field::Choice(|options| &mut options.lua_undeclared_keys, &["allow", "deny"]),
    },
    Parameter {
        name: "lua_mem_gc_threshold",
        live: true,
        docs: "Size of an interpreter, in bytes, from which it collects garbage after a script. A parameter of \
         Dragonfly.",
        field: Field::Memory(|options| &mut options.lua_mem_gc_threshold, 0, 1 << 40),
    },
    Parameter {
        name: "lua_auto_async",
        live: true,
        docs: "Whether redis.call and redis.pcall as separate statements do not convert the reply, as acall and \
         apcall, in scripts compiled from now on. A parameter of Dragonfly.",
        field: Field::Switch(|options| &mut options.lua_auto_async),
    },
    Parameter {
        name: "masterauth",
        live: true,
        docs: "The password for the master.",
        field: Field::Text(|options| &mut options.masterauth),
    },
    Parameter {
        name: "masteruser",
        live: true,
        docs: "The user for the master; empty: the default user.",
        field: Field::Text(|options| &mut options.masteruser),
    },
    Parameter {
        name: "maxclients",
        live: true,
        docs: "Maximum number of clients; further ones get an error and are closed.",
        field: Field::Integer(|options| &mut options.maxclients, 1, u32::MAX),
    },
    Parameter {
        name: "maxmemory",
        live: true,
        docs: "Maximum memory of data and clients' buffers, in bytes; beyond it keys are evicted according to \
         maxmemory-policy; 0 for no limit.",
        field: Field::Memory(|options| &mut options.maxmemory, 0, u64::MAX),
    },
    Parameter {
        name: "maxmemory-clients",
        live: true,
        docs: "Maximum memory of clients' buffers and queues, in bytes, or N% of maxmemory; beyond it the largest \
         clients are closed; 0: only maxmemory applies.",
        field: Field::Share(|options| &mut options.maxmemory_clients),
    },
    Parameter {
        name: "maxmemory-policy",
        live: true,
        docs: "The eviction policy at maxmemory; with noeviction commands that need memory are refused.",
        field: Field::Policy(|options| &mut options.maxmemory_policy),
    },
    Parameter {
        name: "min-replicas-max-lag",
        live: true,
        docs: "Seconds for which a replica that counts for min-replicas-to-write may have been silent.",
        field: Field::Integer(|options| &mut options.replication.max_lag_s, 0, i32::MAX as u32),
    },
    Parameter {
        name: "min-replicas-to-write",
        live: true,
        docs: "Replicas without which commands that write are refused; 0 for none.",
        field: Field::Integer(|options| &mut options.replication.min_replicas, 0, i32::MAX as u32),
    },
    Parameter {
        name: "no-appendfsync-on-rewrite",
        live: true,
        docs: "Whether the append-only file is not synced while it is rewritten.",
        field: Field::Switch(|options| &mut options.no_fsync_on_rewrite),
    },
    Parameter {
        name: "notify-keyspace-events",
        live: true,
        docs: "Events published about keys: K and E select the channels, g$lshzxetdmn the classes, A most of them.",
        field: Field::Events(|options| &mut options.notify_keyspace_events),
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
        docs: "Maximum length of an argument, and of a string made by a command, in bytes.",
        field: Field::Memory(|options| &mut options.proto_max_bulk_len, 1 << 20, i64::MAX as u64),
    },
    Parameter {
        name: "rdb-key-save-delay",
        live: true,
        docs: "Microseconds for which a save sleeps for each key, as if the disk were slow; negative: one for so many keys. \
         For tests.",
        field: Field::Signed(|options| &mut options.rdb_key_save_delay_us, i32::MIN as i64, i32::MAX as i64),
    },
    Parameter {
        name: "rdbchecksum",
        live: false,
        docs: "Whether RDB files get a checksum, and that of a file is compared when it is loaded.",
        field: Field::Switch(|options| &mut options.rdbchecksum),
    },
    Parameter {
        name: "rdbcompression",
        live: true,
        docs: "Whether strings of more than 20 bytes are compressed in the file of a save.",
        field: Field::Switch(|options| &mut options.rdb_compression),
    },
    Parameter {
        name: "repl-backlog-size",
        live: true,
        docs: "Bytes of the stream that are kept for replicas that come back.",
        field: Field::Memory(|options| &mut options.replication.backlog_bytes, 1, i64::MAX as u64),
    },
    Parameter {
        name: "repl-backlog-ttl",
        live: true,
        docs: "Seconds without replicas after which these bytes are not kept any longer; 0: they always are.",
        field: Field::Signed(|options| &mut options.replication.backlog_ttl_s, 0, i64::MAX),
    },
    Parameter {
        name: "repl-disable-tcp-nodelay",
        live: true,
        docs: "Whether the packets to a replica wait for more data.",
        field: Field::Switch(|options| &mut options.repl_disable_tcp_nodelay),
    },
    Parameter {
        name: "repl-diskless-load",
        live: true,
        docs: "When the data set of a master is loaded as it comes, in place of a file in 'dir': disabled, on-empty-db, swapdb \
         (beside the old one, which stays if that fails, and is served meanwhile if it is of the same history) or \
         flush-before-load. A store without 'dir' always does so.",
        field: Field::Loads(|options| &mut options.repl_diskless_load),
    },
    Parameter {
        name: "repl-diskless-sync",
        live: true,
        docs: "Whether replicas get the data set without a file.",
        field: Field::Switch(|options| &mut options.replication.is_diskless),
    },
    Parameter {
        name: "repl-diskless-sync-delay",
        live: true,
        docs: "Seconds for which such a transfer waits for further replicas.",
        field: Field::Integer(|options| &mut options.replication.diskless_delay_s, 0, i32::MAX as u32),
    },
    Parameter {
        name: "repl-diskless-sync-max-replicas",
        live: true,
        docs: "The number of replicas with which it does not wait any longer; 0: it always waits.",
        field: Field::Integer(|options| &mut options.replication.diskless_max, 0, i32::MAX as u32),
    },
    Parameter {
        name: "repl-ping-replica-period",
        live: true,
        docs: "Seconds between signs of life to replicas.",
        field: Field::Integer(|options| &mut options.replication.ping_s, 1, i32::MAX as u32),
    },
    Parameter {
        name: "repl-timeout",
        live: true,
        docs: "Seconds without a word after which a master and a replica give each other up.",
        field: Field::Integer(|options| &mut options.repl_timeout_s, 1, i32::MAX as u32),
    },
    Parameter {
        name: "replica-announce-ip",
        live: true,
        docs: "The address that a replica gives to its master; empty: that of its connection.",
        field: Field::Text(|options| &mut options.replica_announce_ip),
    },
    Parameter {
        name: "replica-announce-port",
        live: true,
        docs: "The port that a replica gives to its master; 0: the one that it listens on.",
        field: Field::Integer(|options| &mut options.replica_announce_port, 0, 65_535),
    },
    Parameter {
        name: "replica-announced",
        live: true,
        docs: "Whether Sentinel tells its clients of this replica.",
        field: Field::Switch(|options| &mut options.replica_announced),
    },
    Parameter {
        name: "replica-ignore-maxmemory",
        live: true,
        docs: "Whether a replica evicts nothing by itself, because its master does.",
        field: Field::Switch(|options| &mut options.replica_ignore_maxmemory),
    },
    Parameter {
        name: "replica-priority",
        live: true,
        docs: "The rank of a replica when Sentinel looks for a new master, lower first; 0: never.",
        field: Field::Integer(|options| &mut options.replica_priority, 0, i32::MAX as u32),
    },
    Parameter {
        name: "replica-read-only",
        live: true,
        docs: "Whether commands of clients that write are refused by a replica.",
        field: Field::Switch(|options| &mut options.replica_read_only),
    },
    Parameter {
        name: "replica-serve-stale-data",
        live: true,
        docs: "Whether a replica serves clients while its link to the master is down.",
        field: Field::Switch(|options| &mut options.replica_serve_stale_data),
    },
    Parameter {
        name: "replicaof",
        live: false,
        docs: "The master that the store follows: its host and its port. REPLICAOF changes it.",
        field: Field::Master(|options| &mut options.replicaof),
    },
    Parameter {
        name: "requirepass",
        live: true,
        docs: "The password of the default user; empty for none.",
        field: Field::Text(|options| &mut options.requirepass),
    },
    Parameter {
        name: "save",
        live: true,
        docs: "Pairs of seconds and changes: the store is saved when so many changes were made and so much time has passed \
         since the last save; empty for never.",
        field: Field::SavePoints(|options| &mut options.save_points),
    },
    limit(
        "set-max-intset-entries",
        |o| &mut o.limits[2],
        0,
        "Maximum number of members of a set of integers in its \
     small form.",
    ),
    limit("set-max-listpack-entries", |o| &mut o.limits[3], 0, "Maximum number of members of a set in its small form."),
    size("set-max-listpack-value", |o| &mut o.limits[4], "Maximum length of a member in the small form."),
    Parameter {
        name: "slowlog-log-slower-than",
        live: true,
        docs: "Microseconds of execution from which a command is recorded in the slow log; negative for none.",
        field: Field::Signed(|options| &mut options.slowlog_slower_than_us, -1, i64::MAX),
    },
    Parameter {
        name: "slowlog-max-len",
        live: true,
        docs: "Maximum number of entries of the slow log.",
        field: Field::Signed(|options| &mut options.slowlog_max_len, 0, i64::MAX),
    },
    Parameter {
        name: "stop-writes-on-bgsave-error",
        live: true,
        docs: "Whether commands that write are refused after a save in the background that failed, while save points are set.",
        field: Field::Switch(|options| &mut options.stop_writes_on_bgsave_error),
    },
    size("stream-node-max-bytes", |o| &mut o.limits[9], "Maximum size of a stream's node, in bytes; 0: unlimited."),
    limit(
        "stream-node-max-entries",
        |o| &mut o.limits[10],
        0,
        "Maximum number of entries of a stream's node; 0: \
     unlimited.",
    ),
    Parameter {
        name: "tcp-keepalive",
        live: true,
        docs: "Seconds between keep-alive probes to a silent client; 0 for none. Applies to new connections.",
        field: Field::Integer(|options| &mut options.tcp_keepalive_s, 0, i32::MAX as u32),
    },
    Parameter {
        name: "timeout",
        live: true,
        docs: "Seconds after which an idle client is disconnected; 0 for never.",
        field: Field::Integer(|options| &mut options.timeout_s, 0, i32::MAX as u32),
    },
    tls(
        "tls-ca-cert-dir",
        |options| &mut options.process.tls.ca_cert_dir,
        "A directory whose files each begin with the certificate of an authority that signs the certificates of masters, \
         and of clients of 'tls-port'.",
    ),
    tls(
        "tls-ca-cert-file",
        |options| &mut options.process.tls.ca_cert_file,
        "The certificates of authorities that sign the certificates of masters, and of clients of 'tls-port'. Files are \
         read when they are set, for new connections.",
    ),
    tls(
        "tls-ciphers",
        |options| &mut options.process.tls.ciphers,
        "Suites of TLS 1.2, of 'tls-port' and of the link to a master, as an OpenSSL cipher list; empty: all.",
    ),
    tls("tls-ciphersuites", |options| &mut options.process.tls.ciphersuites, "Suites of TLS 1.3; empty: all."),
    tls(
        "tls-client-cert-file",
        |options| &mut options.process.tls.client_cert_file,
        "The certificate that the link to a master shows, with 'tls-replication yes'; empty: 'tls-cert-file', if there is \
         one.",
    ),
    tls(
        "tls-client-key-file",
        |options| &mut options.process.tls.client_key_file,
        "The key of 'tls-client-cert-file'.",
    ),
    tls(
        "tls-client-key-file-pass",
        |options| &mut options.process.tls.client_key_file_pass,
        "The pass phrase of an encrypted 'tls-client-key-file'.",
    ),
    tls(
        "tls-protocols",
        |options| &mut options.process.tls.protocols,
        "Protocol versions of 'tls-port' and of the link to a master: TLSv1.2, TLSv1.3, or both with a blank between them; \
         empty: both. Older ones do not exist here.",
    ),
    Parameter {
        name: "tls-replication",
        live: true,
        docs: "Whether the link to a master is encrypted, and the master's certificate verified by the authorities of \
         'tls-ca-cert-file' and 'tls-ca-cert-dir'.",
        field: Field::Switch(|options| &mut options.process.tls.replication),
    },
    Parameter {
        name: "tracking-table-max-keys",
        live: true,
        docs: "Maximum number of keys of which it is known which clients with CLIENT TRACKING have read them; beyond it \
         these clients are told to forget some. 0: unlimited.",
        field: Field::Signed(|options| &mut options.tracking_table_max_keys, 0, i64::MAX),
    },
    limit(
        "zset-max-listpack-entries",
        |o| &mut o.limits[5],
        0,
        "Maximum number of members of a sorted set in its \
     small form.",
    ),
    size("zset-max-listpack-value", |o| &mut o.limits[6], "Maximum length of a member in the small form."),
];
