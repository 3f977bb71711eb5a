//! Keywords of `global` that are accepted without effect, each with the reason.
//!
//! A keyword is listed here only if users see no difference: it tunes a mechanism that does not exist here, or it
//! prepares TLS, which every `bind` and `server` that would use it rejects by name. Values are still checked,
//! since HAProxy rejects invalid ones.

use super::{GlobalRow, INT, Parser, line, one, row};
use crate::section::table::{MANY, Row, Table};
use crate::suggest;
use crate::word::Line;

/// A number that nothing looks at.
const NUMBER: Parser = Parser::Integer(0, INT, |_, _| ());
/// A size that nothing looks at.
const SIZE: Parser = Parser::Size(0, 1 << 40, |_, _| ());
/// A switch that nothing looks at.
const SWITCH: Parser = Parser::OneOf(&["on", "off"], |_, _| ());
/// Words that nothing looks at.
const WORDS: Parser = Parser::Line(|_, _| ());

const TLS: &str = "No effect without TLS, which is not supported yet: 'ssl' on a bind or server is refused.";
const HTTP2: &str = "No effect: HTTP/2 is not supported.";
const QUIC: &str = "No effect: QUIC is not supported.";
const DATAGRAMS: &str = "No effect: it applies to the datagram sockets of QUIC, which is not supported.";
const POLLER: &str = "No effect: epoll is the only poller.";
const CPUS: &str = "No effect: the kernel decides where workers run.";
const COPYING: &str = "No effect on data: it tunes HAProxy's forwarding.";
const SCHEDULING: &str = "No effect: it tunes HAProxy's own scheduler.";
const MEMORY: &str = "No effect: it tunes HAProxy's own memory pools.";

/// Returns the keyword alone.
const fn alone(name: &'static str, docs: &'static str) -> Row<GlobalRow> {
    row(name, 0, 0, "", docs, WORDS)
}

const fn number(name: &'static str, docs: &'static str) -> Row<GlobalRow> {
    one(name, "N", docs, NUMBER)
}

/// Returns a number from `min` to `max`.
const fn bounded(name: &'static str, min: i64, max: i64, docs: &'static str) -> Row<GlobalRow> {
    one(name, "N", docs, Parser::Integer(min, max, |_, _| ()))
}

const fn size(name: &'static str, docs: &'static str) -> Row<GlobalRow> {
    one(name, "SIZE", docs, SIZE)
}

const fn switch(name: &'static str, docs: &'static str) -> Row<GlobalRow> {
    one(name, "on|off", docs, SWITCH)
}

const fn word(name: &'static str, usage: &'static str, docs: &'static str) -> Row<GlobalRow> {
    one(name, usage, docs, WORDS)
}

const fn tls_options(name: &'static str) -> Row<GlobalRow> {
    line(name, 1, MANY, "OPTION…", TLS, ssl_options)
}

/// The keywords.
pub(crate) static KEYWORDS: Table<GlobalRow> = Table::new(&[
    alone("busy-polling", "No effect: workers sleep when they have no work."),
    word("ca-base", "DIRECTORY", TLS),
    word("close-spread-time", "TIME|infinite", "No effect: idle connections are closed as soon as the process stops."),
    word("cluster-secret", "SECRET", QUIC),
    line("cpu-map", 2, MANY, "THREADS CPU…", CPUS, |_, _| ()),
    line("cpu-policy", 1, MANY, "POLICY", CPUS, |_, _| ()),
    line("cpu-set", 1, MANY, "RULE…", CPUS, |_, _| ()),
    word("crt-base", "DIRECTORY", TLS),
    alone("expose-deprecated-directives", "No effect: all supported directives are available without it."),
    alone("expose-experimental-directives", "No effect: all supported directives are available without it."),
    row(
        "external-check",
        0,
        1,
        "[preserve-env]",
        "No effect: it allows 'option external-check', which is refused.",
        WORDS,
    ),
    alone("h2-workaround-bogus-websocket-clients", HTTP2),
    word("httpclient.ssl.ca-file", "FILE", TLS),
    one("httpclient.ssl.verify", "none|required", TLS, Parser::OneOf(&["none", "required"], |_, _| ())),
    word("issuers-chain-path", "DIRECTORY", TLS),
    word("key-base", "DIRECTORY", TLS),
    alone("limited-quic", QUIC),
    number("maxsslconn", TLS),
    number("maxsslrate", TLS),
    number("mworker-max-reloads", "No effect: a reload happens within the serving process, so no old process remains."),
    alone("no-memory-trimming", MEMORY),
    alone("no-quic", QUIC),
    alone("noepoll", POLLER),
    alone("noevports", POLLER),
    alone("nogetaddrinfo", "No effect: names are resolved by the system's resolver."),
    alone("nokqueue", POLLER),
    alone("nopoll", POLLER),
    row("numa-cpu-mapping", 0, 0, "", CPUS, WORDS),
    switch("ocsp-update.disable", TLS),
    word("ocsp-update.httpproxy", "ADDRESS", TLS),
    number("ocsp-update.maxdelay", TLS),
    number("ocsp-update.mindelay", TLS),
    switch("ocsp-update.mode", TLS),
    alone("prealloc-fd", MEMORY),
    switch("profiling.memory", "No effect: there is no such profile."),
    one(
        "profiling.tasks",
        "on|auto|off",
        "No effect: there is no such profile.",
        Parser::OneOf(&["on", "auto", "off"], |_, _| ()),
    ),
    word("ssl-default-bind-ciphers", "CIPHERS", TLS),
    word("ssl-default-bind-ciphersuites", "CIPHERS", TLS),
    word("ssl-default-bind-client-sigalgs", "SIGALGS", TLS),
    word("ssl-default-bind-curves", "CURVES", TLS),
    tls_options("ssl-default-bind-options"),
    word("ssl-default-bind-sigalgs", "SIGALGS", TLS),
    word("ssl-default-server-ciphers", "CIPHERS", TLS),
    word("ssl-default-server-ciphersuites", "CIPHERS", TLS),
    word("ssl-default-server-client-sigalgs", "SIGALGS", TLS),
    word("ssl-default-server-curves", "CURVES", TLS),
    tls_options("ssl-default-server-options"),
    word("ssl-default-server-sigalgs", "SIGALGS", TLS),
    word("ssl-dh-param-file", "FILE", "No effect without TLS, which is not supported yet; the file is not read."),
    line("ssl-engine", 1, MANY, "NAME [algo ALGORITHM…]", TLS, |_, _| ()),
    alone("ssl-load-extra-del-ext", TLS),
    line("ssl-load-extra-files", 1, MANY, "TYPE…", TLS, |_, _| ()),
    alone("ssl-mode-async", TLS),
    word("ssl-propquery", "QUERY", TLS),
    word("ssl-provider", "NAME", TLS),
    word("ssl-provider-path", "DIRECTORY", TLS),
    one("ssl-security-level", "N", TLS, Parser::Integer(0, 5, |_, _| ())),
    one("ssl-server-verify", "none|required", TLS, Parser::OneOf(&["none", "required"], |_, _| ())),
    alone("ssl-skip-self-issued-ca", TLS),
    line("stats bind-process", 1, MANY, "all|odd|even|NUMBER…", crate::section::bind::ONE_PROCESS, |_, _| ()),
    line("thread-group", 1, MANY, "GROUP [THREADS]…", CPUS, |_, _| ()),
    one("thread-groups", "N", CPUS, Parser::Integer(1, 32, |_, _| ())),
    switch("tune.applet.zero-copy-forwarding", COPYING),
    number("tune.buffers.limit", MEMORY),
    number("tune.buffers.reserve", MEMORY),
    size("tune.bufsize.small", MEMORY),
    size("tune.chksize", "No effect: the buffers of checks have a fixed size."),
    alone("tune.disable-fast-forward", COPYING),
    alone("tune.disable-zero-copy-forwarding", COPYING),
    line("tune.epoll.mask-events", 1, 1, "EVENT[,EVENT]…", POLLER, |_, _| ()),
    number("tune.events.max-events-at-once", SCHEDULING),
    switch("tune.fd.edge-triggered", POLLER),
    switch("tune.h1.zero-copy-fwd-recv", COPYING),
    switch("tune.h1.zero-copy-fwd-send", COPYING),
    bounded("tune.glitches.kill.cpu-usage", 0, 100, HTTP2),
    number("tune.h2.be.glitches-threshold", HTTP2),
    number("tune.h2.be.initial-window-size", HTTP2),
    number("tune.h2.be.max-concurrent-streams", HTTP2),
    size("tune.h2.be.rxbuf", HTTP2),
    number("tune.h2.fe.glitches-threshold", HTTP2),
    number("tune.h2.fe.initial-window-size", HTTP2),
    number("tune.h2.fe.max-concurrent-streams", HTTP2),
    number("tune.h2.fe.max-total-streams", HTTP2),
    size("tune.h2.fe.rxbuf", HTTP2),
    one("tune.h2.header-table-size", "N", HTTP2, Parser::Integer(0, 65535, |_, _| ())),
    number("tune.h2.initial-window-size", HTTP2),
    number("tune.h2.max-concurrent-streams", HTTP2),
    one("tune.h2.max-frame-size", "N", HTTP2, Parser::Integer(16384, 16_777_215, |_, _| ())),
    switch("tune.h2.zero-copy-fwd-send", HTTP2),
    switch("tune.idle-pool.shared", "No effect: idle server connections are shared as 'http-reuse' allows."),
    bounded("tune.idletimer", 0, 65535, COPYING),
    one(
        "tune.listener.default-shards",
        "by-process|by-thread|by-group",
        CPUS,
        Parser::OneOf(&["by-process", "by-thread", "by-group"], |_, _| ()),
    ),
    one("tune.listener.multi-queue", "on|fair|off", CPUS, Parser::OneOf(&["on", "fair", "off"], |_, _| ())),
    number("tune.max-checks-per-thread", SCHEDULING),
    number("tune.max-rules-at-once", SCHEDULING),
    one("tune.maxaccept", "N", SCHEDULING, Parser::Integer(-1, INT, |_, _| ())),
    number("tune.maxpollevents", SCHEDULING),
    one("tune.memory.hot-size", "SIZE", MEMORY, Parser::Size(1, 1 << 40, |_, _| ())),
    bounded("tune.peers.max-updates-at-once", 1, INT, "No effect: 'peers' sections are refused."),
    number("tune.pattern.cache-size", "No effect: look-ups in lists are not cached."),
    bounded("tune.pool-high-fd-ratio", 0, 100, "No effect: idle server connections are limited by their number."),
    bounded("tune.pool-low-fd-ratio", 0, 100, "No effect: idle server connections are limited by their number."),
    switch("tune.pt.zero-copy-forwarding", COPYING),
    word("tune.quic.frontend.max-idle-timeout", "TIME", QUIC),
    number("tune.quic.max-frame-loss", QUIC),
    size("tune.rcvbuf.backend", DATAGRAMS),
    size("tune.rcvbuf.frontend", DATAGRAMS),
    size("tune.sndbuf.backend", DATAGRAMS),
    size("tune.sndbuf.frontend", DATAGRAMS),
    number("tune.quic.retry-threshold", QUIC),
    one("tune.quic.socket-owner", "listener|connection", QUIC, Parser::OneOf(&["listener", "connection"], |_, _| ())),
    number("tune.recv_enough", COPYING),
    bounded("tune.ring.queues", 0, 16, MEMORY),
    number("tune.runqueue-depth", SCHEDULING),
    switch("tune.sched.low-latency", SCHEDULING),
    number("tune.ssl.cachesize", TLS),
    number("tune.ssl.capture-buffer-size", TLS),
    number("tune.ssl.capture-cipherlist-size", TLS),
    one("tune.ssl.default-dh-param", "BITS", TLS, Parser::Integer(1024, 1 << 16, |_, _| ())),
    alone("tune.ssl.force-private-cache", TLS),
    number("tune.ssl.hard-maxrecord", TLS),
    switch("tune.ssl.keylog", TLS),
    one("tune.ssl.lifetime", "TIME", TLS, Parser::Seconds),
    number("tune.ssl.maxrecord", TLS),
    number("tune.ssl.ocsp-update.maxdelay", TLS),
    number("tune.ssl.ocsp-update.mindelay", TLS),
    number("tune.ssl.ssl-ctx-cache-size", TLS),
    one(
        "tune.takeover-other-tg-connections",
        "none|restricted|full",
        CPUS,
        Parser::OneOf(&["none", "restricted", "full"], |_, _| ()),
    ),
    one(
        "tune.zlib.memlevel",
        "1-9",
        "No effect: the compressor's tables have a fixed size.",
        Parser::Integer(1, 9, |_, _| ()),
    ),
    word(
        "warn-blocked-traffic-after",
        "TIME",
        "No effect: a long-running script is preempted, so it blocks no traffic.",
    ),
]);

/// Options of `ssl-default-bind-options` and `ssl-default-server-options`, with whether a value follows.
const SSL_OPTIONS: [(&str, bool); 19] = [
    ("force-sslv3", false),
    ("force-strict-sni", false),
    ("force-tlsv10", false),
    ("force-tlsv11", false),
    ("force-tlsv12", false),
    ("force-tlsv13", false),
    ("no-sslv3", false),
    ("no-strict-sni", false),
    ("no-tls-tickets", false),
    ("no-tlsv10", false),
    ("no-tlsv11", false),
    ("no-tlsv12", false),
    ("no-tlsv13", false),
    ("prefer-client-ciphers", false),
    ("ssl-max-ver", true),
    ("ssl-min-ver", true),
    ("strict-sni", false),
    ("tls-tickets", false),
    ("no-ssl-reuse", false),
];

/// Versions of TLS by the names of their options.
const TLS_VERSIONS: [&str; 5] = ["SSLv3", "TLSv1.0", "TLSv1.1", "TLSv1.2", "TLSv1.3"];

fn ssl_options(r: &mut super::Reading<'_>, line: &Line) {
    let mut next = 1;
    while next < line.len() {
        let word = line.text(next);
        let Some((name, valued)) = SSL_OPTIONS.iter().find(|(name, _)| *name == word) else {
            let near = suggest::nearest(word, SSL_OPTIONS.iter().map(|(name, _)| *name));
            let message = format!("unknown option '{word}' of '{}'", r.name);
            r.diagnostics.error(line.at(next), message).did_you_mean(near);
            return;
        };
        next += 1;
        if *valued {
            if !TLS_VERSIONS.contains(&line.text(next)) {
                let message = format!("'{name}' expects one of {}", crate::section::table::list(&TLS_VERSIONS));
                r.diagnostics.error(line.at(next), message);
                return;
            }
            next += 1;
        }
    }
}
