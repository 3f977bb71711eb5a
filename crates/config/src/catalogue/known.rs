//! Names that HAProxy 3.2 has and this program does not support yet. They distinguish "not supported yet" from a typo
//! ("did you mean"). A name that ends in `*` matches any suffix (`sc-inc-gpc(0)`, `track-sc0`). When a keyword gets its
//! row, its name is removed from here, which a test asserts.

/// Sections.
#[rustfmt::skip]
pub const SECTIONS: &[&str] = &[];

/// Keywords of `global`.
#[rustfmt::skip]
pub const GLOBAL: &[&str] = &[
    "51degrees-data-file", "deviceatlas-json-file", "deviceatlas-log-level", "oqs", "wurfl-data-file",
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
];

/// Keywords of proxies that came after HAProxy 3.2.
pub const NEWER_PROXY: &[&str] = &["force-be-switch", "option use-small-buffers"];

/// Keywords of proxies that HAProxy 3.2 refuses with a hint at the replacement; the hints are in `section::removed`.
#[rustfmt::skip]
pub const REMOVED: &[&str] = &[
    "appsession", "bind-process", "block", "cliexp", "clitimeout", "contimeout", "grace", "monitor-net", "option forceclose",
    "option http-tunnel", "option http_proxy", "option httpclog", "option http-use-htx", "redisp", "redispatch", "reqadd", "reqallow", "reqdel", "reqdeny",
    "reqiallow", "reqidel", "reqideny", "reqipass", "reqirep", "reqitarpit", "reqpass", "reqrep", "reqtarpit", "rspadd",
    "rspdel", "rspdeny", "rspidel", "rspideny", "rspirep", "rsprep", "srvexp", "srvtimeout", "timeout clitimeout", "timeout contimeout", "timeout srvtimeout",
];

/// Keywords of `global` that HAProxy 3.2 refuses.
pub const REMOVED_GLOBAL: &[&str] = &["debug", "nosepoll", "stats bind-process", "tune.chksize"];

/// Options of `bind`.
#[rustfmt::skip]
pub const BIND_OPTIONS: &[&str] = &["quic-cc-algo", "quic-force-retry", "quic-socket"];

/// Options of `bind` that came after HAProxy 3.2.
#[rustfmt::skip]
pub const NEWER_BIND_OPTIONS: &[&str] = &["cc", "ech", "force-strict-sni", "ktls", "tcp-md5sig", "tcp-ss"];

/// Options of `server`.
#[rustfmt::skip]
pub const SERVER_OPTIONS: &[&str] = &[];

/// Options of `server` that came after HAProxy 3.2.
#[rustfmt::skip]
pub const NEWER_SERVER_OPTIONS: &[&str] = &[
    "cc", "check-sni-auto", "no-check-sni-auto", "no-renegotiate", "no-sni-auto", "renegotiate", "sni-auto",
    "tcp-md5sig",
];

/// Actions, by rule set.
#[rustfmt::skip]
pub const ACTIONS: &[(&str, &[&str])] = &[
    ("tcp-request content", &["ot-group"]),
    ("tcp-response content", &["ot-group"]),
    ("http-request", &["ot-group"]),
    ("http-response", &["ot-group"]),
    ("http-after-response", &["ot-group"]),
];

/// Actions that came after HAProxy 3.2.
#[rustfmt::skip]
pub const NEWER_ACTIONS: &[&str] = &["add-headers-bin", "del-headers-bin", "set-headers-bin"];

/// Sample fetches.
#[rustfmt::skip]
pub const FETCHES: &[&str] = &[
    "internal.htx.data", "internal.htx.free", "internal.htx.free_data", "internal.htx.has_eom", "internal.htx.nbblks", "internal.htx.size",
    "internal.htx.used", "internal.htx_blk.data", "internal.htx_blk.hdrname", "internal.htx_blk.hdrval",
    "internal.htx_blk.size", "internal.htx_blk.start_line", "internal.htx_blk.type",
];

/// Sample fetches that came after HAProxy 3.2.
pub const NEWER_FETCHES: &[&str] = &["req.bytes_in", "req.bytes_out", "res.bytes_in", "res.bytes_out", "srv_bytes_in"];

/// Converters that came after HAProxy 3.2.
pub const NEWER_CONVERTERS: &[&str] =
    &["aes_cbc_dec", "aes_cbc_enc", "jwt_decrypt_cert", "jwt_decrypt_jwk", "jwt_decrypt_secret"];

/// Converters.
pub const CONVERTERS: &[&str] = &[];

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
