//! Names that HAProxy 3.2 has and this program does not support yet. They distinguish "not supported yet" from a typo
//! ("did you mean"). A name that ends in `*` matches any suffix (`sc-inc-gpc(0)`, `track-sc0`). When a keyword gets its
//! row, its name is removed from here, which a test asserts.

/// Sections.
#[rustfmt::skip]
pub const SECTIONS: &[&str] = &[
    "fcgi-app", "log-steps", "program", "traces",
];

/// Keywords of `global`.
#[rustfmt::skip]
pub const GLOBAL: &[&str] = &[
    "51degrees-data-file", "anonkey", "debug",
    "deviceatlas-json-file", "deviceatlas-log-level", "dns-accept-family", "force-cfg-parser-pause", "grace",
    "h1-accept-payload-with-any-method", "h1-do-not-close-on-insecure-transfer-encoding",
    "harden.reject-privileged-ports.quic", "harden.reject-privileged-ports.tcp",
    "limits", "load-server-state-from-file", "noreuseport",
    "oqs", "pp2-never-send-local", "setcap",
    "stats-file", "stress-level", "tune.fail-alloc",
    "tune.notsent-lowat.client", "tune.notsent-lowat.server",
    "tune.rcvbuf.client", "tune.rcvbuf.server",
    "tune.renice.runtime", "tune.renice.startup", "tune.sndbuf.client",
    "tune.sndbuf.server", "tune.vars.check-max-size",
    "tune.vars.global-max-size", "tune.vars.proc-max-size", "tune.vars.reqres-max-size",
    "tune.vars.sess-max-size", "tune.vars.txn-max-size", "wurfl-data-file",
];

/// Keywords of `global` that came after HAProxy 3.2.
#[rustfmt::skip]
pub const NEWER_GLOBAL: &[&str] = &[
    "cpu-affinity", "jwt.decrypt_alg_list", "jwt.decrypt_enc_list", "max-threads-per-group", "noktls",
    "shm-stats-file", "shm-stats-file-max-objects", "ssl-passphrase-cmd", "tune.bufsize.large", "tune.cli.max-payload-size",
    "tune.defaults.purge", "tune.fd.tables", "tune.h1.be.glitches-threshold", "tune.h1.fe.glitches-threshold",
    "tune.h2.be.max-frames-at-once", "tune.h2.fe.max-frames-at-once", "tune.h2.fe.max-rst-at-once",
    "tune.h2.log-errors", "tune.lua.openlibs", "tune.ssl.certificate-compression", "tune.ssl.keyupdate-rate-limit",
    "tune.streams-elasticity",
];

/// Keywords of proxies.
#[rustfmt::skip]
pub const PROXY: &[&str] = &[
    "dispatch",
    "force-be-switch", "guid",
    "log-steps",
    "option checkcache",
    "option httpclog",
    "option transparent", "option use-small-buffers",
    "transparent",
    "use-fcgi-app",
];

/// Keywords of proxies that HAProxy 3.2 refuses with a hint at the replacement; the hints are in `section::removed`.
#[rustfmt::skip]
pub const REMOVED: &[&str] = &[
    "appsession", "block", "cliexp", "clitimeout", "contimeout", "grace", "monitor-net", "option forceclose",
    "option http-tunnel", "option http_proxy", "redisp", "redispatch", "reqadd", "reqallow", "reqdel", "reqdeny",
    "reqiallow", "reqidel", "reqideny", "reqipass", "reqirep", "reqitarpit", "reqpass", "reqrep", "reqtarpit", "rspadd",
    "rspdel", "rspdeny", "rspidel", "rspideny", "rspirep", "rsprep", "srvexp", "srvtimeout", "timeout clitimeout",
];

/// Options of `bind`.
#[rustfmt::skip]
pub const BIND_OPTIONS: &[&str] = &[
    "accept-netscaler-cip", "expose-fd", "guid-prefix", "label", "level", "namespace", "nbconn", "ocsp-update",
    "quic-cc-algo", "quic-force-retry", "quic-socket", "severity-output",
];

/// Options of `bind` that came after HAProxy 3.2.
#[rustfmt::skip]
pub const NEWER_BIND_OPTIONS: &[&str] = &["cc", "ech", "force-strict-sni", "ktls", "tcp-md5sig", "tcp-ss"];

/// Options of `stats socket`.
#[rustfmt::skip]
pub const STATS_SOCKET_OPTIONS: &[&str] = &[
    "accept-proxy", "backlog", "interface", "maxconn", "namespace", "proto", "severity-output", "tcp-ut", "v4v6",
    "v6only",
];

/// Options of `server`.
#[rustfmt::skip]
pub const SERVER_OPTIONS: &[&str] = &[
    "check-pool-conn-name", "check-reuse-pool", "check-via-socks4", "guid", "log-bufsize", "namespace",
    "no-check-reuse-pool", "redir", "socks4", "tcp-ut", "tfo", "usesrc",
];

/// Options of `server` that came after HAProxy 3.2.
#[rustfmt::skip]
pub const NEWER_SERVER_OPTIONS: &[&str] = &[
    "cc", "check-sni-auto", "no-check-sni-auto", "no-renegotiate", "no-sni-auto", "renegotiate", "sni-auto",
    "tcp-md5sig",
];

/// Algorithms of `balance`.
#[rustfmt::skip]
pub const BALANCE: &[&str] = &[
    "log-hash", "log-sticky", "sticky",
];

/// Actions, by rule set.
#[rustfmt::skip]
pub const ACTIONS: &[(&str, &[&str])] = &[
    ("tcp-request connection", &["do-log", "expect-netscaler-cip"]),
    ("tcp-request session", &["attach-srv", "do-log"]),
    ("tcp-request content", &[
        "close", "do-log", "ot-group", "send-spoe-group",
    ]),
    ("tcp-response content", &["close", "do-log", "ot-group", "send-spoe-group"]),
    ("http-request", &[
        "add-headers-bin", "del-headers-bin", "do-log", "ot-group",
        "send-spoe-group", "set-headers-bin",
    ]),
    ("http-response", &[
        "do-log", "ot-group", "send-spoe-group",
    ]),
    ("http-after-response", &["do-log", "ot-group", "set-headers-bin", "add-headers-bin", "del-headers-bin"]),
];

/// Sample fetches.
#[rustfmt::skip]
pub const FETCHES: &[&str] = &[
    "bs.debug_str", "cpu_calls", "cpu_ns_avg", "cpu_ns_tot", "distcc_body", "distcc_param", "fcgi.docroot",
    "fcgi.index", "fs.debug_str", "internal.htx.data", "internal.htx.free", "internal.htx.free_data",
    "internal.htx.has_eom", "internal.htx.nbblks", "internal.htx.size", "internal.htx.used", "internal.htx_blk.data",
    "internal.htx_blk.hdrname", "internal.htx_blk.hdrval", "internal.htx_blk.size", "internal.htx_blk.start_line",
    "internal.htx_blk.type", "lat_ns_avg", "lat_ns_tot", "req.bytes_in", "req.bytes_out", "res.bytes_in",
    "sc1_clr_gpc", "server_status", "spoe.engine-id", "srv_bytes_in", "term_events",
    "waiting_entity",
];

/// Converters.
#[rustfmt::skip]
pub const CONVERTERS: &[&str] = &[
    "aes_cbc_dec", "aes_cbc_enc", 
    "jwt_decrypt_secret", 
    
    "rfc7239_nph",
];

/// No names, for sections that HAProxy does not have.
pub const NONE: &[&str] = &[];

/// Returns whether a word is in a list of HAProxy's keywords; a name that ends in `*` matches any suffix.
pub(crate) fn is_known(known: &[&str], word: &str) -> bool {
    known.iter().any(|name| match name.strip_suffix('*') {
        Some(stem) => {
            word.starts_with(stem) && word[stem.len()..].starts_with(|c: char| c == '(' || c.is_ascii_digit())
        }
        None => *name == word,
    })
}
