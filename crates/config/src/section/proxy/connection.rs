//! Options about connections, and about the client data that is passed to servers.

use super::keywords::{option, row, timeout};
use super::{ProxyParser, ProxyReader, on};
use crate::catalogue::Contexts;
use crate::model::Mode;
use crate::section::source;
use crate::section::table::{MANY, Row};
use crate::word::Line;

const FRONT: Contexts = Contexts::FRONT;
const BACK: Contexts = Contexts::BACK;
const PROXY: Contexts = Contexts::PROXY;

/// `clitcpka-cnt`.
pub(super) const CLIENT_COUNT: Row<ProxyParser> = row(
    "clitcpka-cnt",
    FRONT,
    1,
    1,
    "N",
    "Number of unanswered probes after which a client is considered gone.",
    |r, line| {
        if let Some(n) = r.integer(line, 1, 1, 127) {
            r.settings.proxy.options.client_probes.count = Some(n as u32);
        }
    },
);

/// `clitcpka-idle`.
pub(super) const CLIENT_IDLE: Row<ProxyParser> =
    timeout("clitcpka-idle", FRONT, "Idle time of a client before it is probed.", |r, line| {
        r.settings.proxy.options.client_probes.idle = r.seconds(line);
    });

/// `clitcpka-intvl`.
pub(super) const CLIENT_INTERVAL: Row<ProxyParser> =
    timeout("clitcpka-intvl", FRONT, "The time between two probes of a client.", |r, line| {
        r.settings.proxy.options.client_probes.interval = r.seconds(line);
    });

/// `option clitcpka`.
pub(super) const CLIENT_PROBES: Row<ProxyParser> = option(
    "option clitcpka",
    FRONT,
    "The kernel probes idle connections of clients, so that dead peers are detected.",
    |r, line| r.settings.proxy.options.client_probes.on = on(line),
);

/// `option contstats`.
pub(super) const CONTSTATS: Row<ProxyParser> =
    option("option contstats", FRONT, "No effect: bytes are counted while they pass.", |_, _| ());

/// `option forwarded`.
pub(super) const FORWARDED: Row<ProxyParser> = row(
    "option forwarded",
    BACK,
    0,
    MANY,
    "[proto] [host|host-expr E] [by|by-expr E] [by_port|by_port-expr E] [for|for-expr E] [for_port|for_port-expr E]",
    "Adds the field Forwarded of RFC 7239, by default with the protocol and the client's address: appended to the \
     client's own values if they are valid, else as a separate field.",
    |r, line| r.forwarded(line),
);

/// `option http-no-delay`.
pub(super) const NO_DELAY: Row<ProxyParser> =
    option("option http-no-delay", PROXY, "No effect: small data is always sent immediately.", |_, _| ());

/// `option http-pretend-keepalive`.
pub(super) const PRETEND: Row<ProxyParser> = option(
    "option http-pretend-keepalive",
    BACK,
    "The server is not told that its connection will be closed after the response.",
    |r, line| r.settings.proxy.options.pretend_keepalive = on(line),
);

/// `option http-restrict-req-hdr-names`.
pub(super) const HEADER_NAMES: Row<ProxyParser> = row(
    "option http-restrict-req-hdr-names",
    PROXY,
    1,
    1,
    "preserve|delete|reject",
    "The treatment of a request's field whose name has characters other than letters, digits and '-': it passes, is \
     removed, or the request is denied.",
    |r, line| r.header_names(line),
);

/// `option idle-close-on-response`.
pub(super) const IDLE_CLOSE: Row<ProxyParser> = option(
    "option idle-close-on-response",
    FRONT,
    "When the process stops, an idle client's connection is closed after its next response and not immediately.",
    |r, line| r.settings.proxy.options.idle_close_on_response = on(line),
);

/// `option independent-streams`.
pub(super) const INDEPENDENT: Row<ProxyParser> = option(
    "option independent-streams",
    PROXY,
    "Data sent to a side does not extend the timeout of data expected from it: 'timeout client' applies to a client \
     that only receives, 'timeout server' to a server that only reads a request.",
    |r, line| r.settings.proxy.options.independent_streams = on(line),
);

/// `option nolinger`.
pub(super) const NOLINGER: Row<ProxyParser> = option(
    "option nolinger",
    PROXY,
    "Connections are reset at their end, so that no data lingers for a peer that is gone.",
    |r, line| r.settings.proxy.options.nolinger = on(line),
);

/// `option originalto`.
pub(super) const ORIGINALTO: Row<ProxyParser> = row(
    "option originalto",
    PROXY,
    0,
    4,
    "[except NETWORK] [header NAME]",
    "Adds X-Original-To with the address that the client connected to.",
    |r, line| r.originalto(line),
);

/// `max-keep-alive-queue`.
pub(super) const KEEP_ALIVE_QUEUE: Row<ProxyParser> = row(
    "max-keep-alive-queue",
    BACK,
    1,
    1,
    "N",
    "With 'option prefer-last-server', the maximum number of requests queued for a server at which one more still \
     waits for its last server; -1: unlimited, the default.",
    |r, line| {
        if let Some(n) = r.integer(line, 1, -1, i64::from(i32::MAX)) {
            r.settings.proxy.max_keep_alive_queue = u32::try_from(n).ok();
        }
    },
);

/// `max-session-srv-conns`.
pub(super) const SESSION_CONNECTIONS: Row<ProxyParser> = row(
    "max-session-srv-conns",
    FRONT,
    1,
    1,
    "N",
    "Maximum number of idle server connections kept for a client's connection alone, as under 'http-reuse never'; further \
     ones are closed. 5.",
    |r, line| {
        if let Some(n) = r.leading_integer(line, 1, 0, i64::from(i32::MAX)) {
            r.settings.proxy.max_session_srv_conns = n as u32;
        }
    },
);

/// `option prefer-last-server`.
pub(super) const PREFER_LAST: Row<ProxyParser> = option(
    "option prefer-last-server",
    BACK,
    "The next request on a client's connection goes to the same server, while that is up, 'balance' does not use a hash \
     and the client has a connection to it that others cannot use ('http-reuse never').",
    |r, line| r.settings.proxy.options.prefer_last_server = on(line),
);

/// `persist`.
pub(super) const PERSIST_RDP: Row<ProxyParser> = row(
    "persist",
    PROXY,
    1,
    1,
    "rdp-cookie[(NAME)]",
    "A client whose RDP cookie, msts by default, contains a server's address and port goes to that server.",
    |r, line| r.persist_rdp_cookie(line),
);

/// `source`.
pub(super) const SOURCE: Row<ProxyParser> = row("source", BACK, 1, MANY, source::USAGE, source::DOCS, |r, line| {
    let Some((source, behind)) = source::read(r, line, 1, false) else { return };
    if behind < line.len() {
        let message = format!("'source' cannot handle unexpected argument '{}'", line.text(behind));
        r.diagnostics.error(line.at(behind), message).hint("behind the address stand 'usesrc' and 'interface'");
    } else {
        r.settings.proxy.source = Some(source);
    }
});

/// `option socket-stats`.
pub(super) const SOCKET_STATS: Row<ProxyParser> = option(
    "option socket-stats",
    FRONT,
    "Separate statistics for each listening socket: a line of 'show stat', of the page and of the exporter, and \
     'get_stats' of its Lua object.",
    |r, line| r.settings.proxy.options.socket_stats = on(line),
);

/// `option srvtcpka`.
pub(super) const SERVER_PROBES: Row<ProxyParser> =
    option("option srvtcpka", BACK, "The kernel probes idle connections to servers.", |r, line| {
        r.settings.proxy.options.server_probes.on = on(line)
    });

/// `option tcpka`.
pub(super) const PROBES: Row<ProxyParser> =
    option("option tcpka", PROXY, "As 'option clitcpka' and 'option srvtcpka'.", |r, line| {
        r.settings.proxy.options.client_probes.on = on(line);
        r.settings.proxy.options.server_probes.on = on(line);
    });

/// `srvtcpka-cnt`.
pub(super) const SERVER_COUNT: Row<ProxyParser> = row(
    "srvtcpka-cnt",
    BACK,
    1,
    1,
    "N",
    "Number of unanswered probes after which a server is considered gone.",
    |r, line| {
        if let Some(n) = r.integer(line, 1, 1, 127) {
            r.settings.proxy.options.server_probes.count = Some(n as u32);
        }
    },
);

/// `srvtcpka-idle`.
pub(super) const SERVER_IDLE: Row<ProxyParser> =
    timeout("srvtcpka-idle", BACK, "Idle time of a server before it is probed.", |r, line| {
        r.settings.proxy.options.server_probes.idle = r.seconds(line);
    });

/// `srvtcpka-intvl`.
pub(super) const SERVER_INTERVAL: Row<ProxyParser> =
    timeout("srvtcpka-intvl", BACK, "The time between two probes of a server.", |r, line| {
        r.settings.proxy.options.server_probes.interval = r.seconds(line);
    });

impl ProxyReader<'_> {
    /// `mode`.
    pub(super) fn mode(&mut self, line: &Line) {
        match line.text(1) {
            "log" if self.context == Contexts::FRONTEND => {
                self.diagnostics.error(line.at(1), "unknown proxy mode 'log'").hint("'mode log' is for backends");
            }
            "spop" if self.context != Contexts::FRONTEND => self.settings.proxy.mode = Mode::Spop,
            mode @ ("health" | "haterm") => {
                self.diagnostics.error(line.at(1), format!("'mode {mode}' is not supported yet"));
            }
            _ => {
                if let Some(mode) =
                    self.one_of(line, 1, &[("tcp", Mode::Tcp), ("http", Mode::Http), ("log", Mode::Log)])
                {
                    self.settings.proxy.mode = mode;
                }
            }
        }
    }
}
