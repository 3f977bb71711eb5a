//! Keywords of `global` that are accepted without effect, each with the reason.
//!
//! A keyword is listed here only if users see no difference: it tunes a mechanism that does not exist here. Values are
//! still checked, since HAProxy rejects invalid ones.

use super::{GlobalRow, INT, Parser, cpu_map, line, one, row};
use crate::section::table::{MANY, Row, Table};

/// A number that nothing looks at.
const NUMBER: Parser = Parser::Integer(0, INT, |_, _| ());
/// A size that nothing looks at.
const SIZE: Parser = Parser::Size(0, 1 << 40, |_, _| ());
/// A switch that nothing looks at.
const SWITCH: Parser = Parser::OneOf(&["on", "off"], |_, _| ());
/// Words that nothing looks at.
const WORDS: Parser = Parser::Line(|_, _| ());

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

/// The keywords.
pub(crate) static KEYWORDS: Table<GlobalRow> = Table::new(&[
    alone("busy-polling", "No effect: workers sleep when they have no work."),
    word("cluster-secret", "SECRET", QUIC),
    line("cpu-map", 2, MANY, "THREADS CPU…", CPUS, cpu_map::check),
    line("cpu-policy", 1, MANY, "POLICY", CPUS, |_, _| ()),
    line("cpu-set", 1, MANY, "RULE…", CPUS, |_, _| ()),
    alone("limited-quic", QUIC),
    number("mworker-max-reloads", "No effect: a reload happens within the serving process, so no old process remains."),
    alone("no-memory-trimming", MEMORY),
    alone("noepoll", POLLER),
    alone("noevports", POLLER),
    alone("nogetaddrinfo", "No effect: names are resolved by the system's resolver."),
    alone("nokqueue", POLLER),
    alone("nopoll", POLLER),
    row("numa-cpu-mapping", 0, 0, "", CPUS, WORDS),
    alone("prealloc-fd", MEMORY),
    switch("profiling.memory", "No effect: there is no such profile."),
    one(
        "profiling.tasks",
        "on|auto|off",
        "No effect: there is no such profile.",
        Parser::OneOf(&["on", "auto", "off"], |_, _| ()),
    ),
    switch("harden.reject-privileged-ports.quic", QUIC),
    bounded("stress-level", 0, 9, "No effect: it is for developers of HAProxy."),
    line("thread-group", 1, MANY, "GROUP [THREADS]…", CPUS, |_, _| ()),
    one("thread-groups", "N", CPUS, Parser::Integer(1, 32, |g, n| g.thread_groups = Some(n as u16))),
    switch("tune.applet.zero-copy-forwarding", COPYING),
    number("tune.buffers.limit", MEMORY),
    number("tune.buffers.reserve", MEMORY),
    size("tune.bufsize.small", MEMORY),
    alone("tune.disable-fast-forward", COPYING),
    alone("tune.disable-zero-copy-forwarding", COPYING),
    line("tune.epoll.mask-events", 1, 1, "EVENT[,EVENT]…", POLLER, |_, _| ()),
    number("tune.events.max-events-at-once", SCHEDULING),
    bounded("tune.fail-alloc", 0, 100, "No effect, as in a HAProxy that is not built to test failures of allocations."),
    switch("tune.fd.edge-triggered", POLLER),
    switch("tune.h1.zero-copy-fwd-recv", COPYING),
    switch("tune.h1.zero-copy-fwd-send", COPYING),
    switch("tune.idle-pool.shared", "No effect: idle server connections are shared as 'http-reuse' allows."),
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
