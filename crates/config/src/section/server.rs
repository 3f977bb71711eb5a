//! `server` and `default-server` lines (HAProxy configuration manual 5.2).

pub mod dynamic;
pub(crate) mod finish;
mod initial;
pub(crate) mod peer;
mod send_proxy;
pub(crate) mod template;
pub(crate) mod tls;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::address::{self, Transport};
use crate::catalogue::known::is_known;
use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::limits;
use crate::model::{
    InitAddr, InitialState, LogProto, NamedNamespace, OnObserved, Pool, Server, ServerAddress, ServerHashKey,
    ServerNamespace, ServerTcp, Source,
};
use crate::names;
use crate::section::proxy::ProxyReader;
use crate::section::source;
use crate::section::table::{Row, Table};
use crate::section::tls::ServerWords;
use crate::suggest;
use crate::unit::{self, TimeUnit};
use crate::word::Line;
use crate::word::bad_name_byte;

/// The settings of options; a `server` starts with those of a `default-server`.
#[derive(Clone, Debug)]
pub(crate) struct ServerSettings {
    sid: Option<u32>,
    init_addr: Option<Vec<InitAddr>>,
    resolvers: Option<String>,
    prefer_v4: bool,
    networks: Vec<(IpAddr, u8)>,
    duplicates: bool,
    ignore_weight: bool,
    weight: u16,
    maxconn: Option<u32>,
    minconn: Option<u32>,
    maxqueue: Option<u32>,
    slowstart: Option<Duration>,
    strict_maxconn: bool,
    hash_key: ServerHashKey,
    pool: Pool,
    backup: bool,
    disabled: bool,
    cookie: Option<String>,
    non_stick: bool,
    send_proxy: send_proxy::Settings,
    source: Option<Source>,
    tcp: ServerTcp,
    guid: Option<String>,
    redirect: Option<String>,
    check: bool,
    inter: Duration,
    fastinter: Option<Duration>,
    downinter: Option<Duration>,
    rise: u32,
    fall: u32,
    port: Option<u16>,
    addr: Option<IpAddr>,
    /// The port in the argument of `addr`; `port` has priority.
    addr_port: Option<u16>,
    check_send_proxy: bool,
    /// `check-reuse-pool` or `no-check-reuse-pool`.
    check_reuse_pool: Option<bool>,
    check_pool_name: Option<Arc<str>>,
    agent: AgentSettings,
    observe: Option<bool>,
    on_observed: OnObserved,
    error_limit: u32,
    shut_sessions_when_down: bool,
    shut_backups_when_up: bool,
    track: Option<String>,
    initial: InitialState,
    shard: u32,
    log_proto: LogProto,
    log_bufsize: Option<usize>,
    tls: ServerWords,
}

/// The settings of `agent-check`.
#[derive(Clone, Debug, Default)]
struct AgentSettings {
    on: bool,
    inter: Option<Duration>,
    port: Option<u16>,
    addr: Option<IpAddr>,
    send: Vec<u8>,
}

/// Reads an option's value; the message of an error is completed with the option's name.
pub(crate) type ServerOption = fn(&mut ServerSettings, &str) -> Result<(), String>;

const fn option(
    name: &'static str,
    values: usize,
    usage: &'static str,
    docs: &'static str,
    parser: ServerOption,
) -> Row<ServerOption> {
    Row { name, contexts: Contexts::SERVER_OPTION, min: values, max: values, usage, docs, parser }
}

/// Options behind a server's address.
pub(crate) static OPTIONS: Table<ServerOption> = Table::new(&[
    option("addr", 1, "ADDRESS", "The address for checks, if not the server's.", |s, v| {
        let (address, port) = address::numeric(v)?;
        s.addr = Some(address);
        s.addr_port = port;
        Ok(())
    }),
    option("agent-addr", 1, "ADDRESS", "The address of the agent, if not the server's.", |s, v| {
        // The port of an agent is an option of its own; as in HAProxy, a port in this argument is ignored.
        s.agent.addr = Some(address::numeric(v)?.0);
        Ok(())
    }),
    option(
        "agent-check",
        0,
        "",
        "Polls an agent on the server, which reports in a line the server's state, weight and more.",
        |s, _| {
            s.agent.on = true;
            Ok(())
        },
    ),
    option("agent-inter", 1, "TIME", "The interval of the agent's checks; inter by default.", |s, v| {
        s.agent.inter = Some(interval(v)?);
        Ok(())
    }),
    option("agent-port", 1, "PORT", "The agent's port.", |s, v| {
        s.agent.port = Some(unit::leading_integer(v, 1, 65535)? as u16);
        Ok(())
    }),
    option("agent-send", 1, "TEXT", "The text sent to the agent after connecting.", |s, v| {
        s.agent.send = crate::bytes::to_bytes(v).into_owned();
        Ok(())
    }),
    option("backup", 0, "", "Used only while no other server is up.", |s, _| {
        s.backup = true;
        Ok(())
    }),
    option("check", 0, "", "Checks the server by connecting, or as an option of its backend defines.", |s, _| {
        s.check = true;
        Ok(())
    }),
    option(
        "check-pool-conn-name",
        1,
        "NAME",
        "The name of the connections that 'check-reuse-pool' takes, in place of \
     'check-sni'; see pool-conn-name.",
        |s, v| {
            s.check_pool_name = Some(v.into());
            Ok(())
        },
    ),
    option(
        "check-reuse-pool",
        0,
        "",
        "Checks take an idle connection if there is one. It has no effect where checks have \
     settings of a connection: an address, a port, 'check-ssl', 'alpn', 'proto' or a PROXY header. Servers with an 'rhttp@' \
     address have it.",
        |s, _| {
            s.check_reuse_pool = Some(true);
            Ok(())
        },
    ),
    option("check-via-socks4", 0, "", "Checks go through the proxy of 'socks4', too.", |s, _| {
        s.tcp.check_via_socks4 = true;
        Ok(())
    }),
    option("check-send-proxy", 0, "", "Checks begin with a line of the PROXY protocol.", |s, _| {
        s.check_send_proxy = true;
        Ok(())
    }),
    option("cookie", 1, "VALUE", "The value that names the server in the backend's cookie.", |s, v| {
        s.cookie = Some(v.to_owned());
        Ok(())
    }),
    option("disabled", 0, "", "The server starts in maintenance.", |s, _| {
        s.disabled = true;
        Ok(())
    }),
    option("downinter", 1, "TIME", "The interval of checks while the server is down; inter by default.", |s, v| {
        s.downinter = Some(interval(v)?);
        Ok(())
    }),
    option("enabled", 0, "", "Undoes a 'disabled' of default-server.", |s, _| {
        s.disabled = false;
        Ok(())
    }),
    option("error-limit", 1, "N", "Failures in a row that 'observe' counts as a failed check; 10.", |s, v| {
        s.error_limit = unit::leading_integer(v, 1, 1_000_000)? as u32;
        Ok(())
    }),
    option("fall", 1, "N", "Number of failed checks in a row until the server is down; 3.", |s, v| {
        s.fall = unit::leading_integer(v, 1, 1_000_000)? as u32;
        Ok(())
    }),
    option(
        "fastinter",
        1,
        "TIME",
        "The interval of checks while the server is changing its state; inter by default.",
        |s, v| {
            s.fastinter = Some(interval(v)?);
            Ok(())
        },
    ),
    option("guid", 1, "TEXT", "The server's global identifier: unique, and the same whatever its name is.", |s, v| {
        crate::section::guid::check(v)?;
        s.guid = Some(v.to_owned());
        Ok(())
    }),
    option(
        "hash-key",
        1,
        "id|addr|addr-port",
        "The source of the server's points on the ring of 'hash-type consistent': its number, or its address.",
        |s, v| {
            s.hash_key = match v {
                "id" => ServerHashKey::Id,
                "addr" => ServerHashKey::Addr,
                "addr-port" => ServerHashKey::AddrPort,
                _ => return Err(format!("expects one of id, addr, addr-port, not '{v}'")),
            };
            Ok(())
        },
    ),
    option("id", 1, "N", "The server's number in statistics.", |s, v| {
        s.sid = Some(unit::leading_integer(v, 1, i64::from(i32::MAX))? as u32);
        Ok(())
    }),
    option(
        "idle-ping",
        1,
        "TIME",
        "An idle connection of HTTP/2 is sent a PING after this time, and closed if the server has not acknowledged it \
         when the time has passed again. Not set.",
        |s, v| {
            let time = unit::time(v, TimeUnit::Milliseconds)?;
            s.pool.idle_ping = (!time.is_zero()).then_some(time);
            Ok(())
        },
    ),
    option(
        "init-addr",
        1,
        "last|libc|none|ADDRESS[,…]",
        "The methods that resolve a name at start, tried in turn. 'none' starts the server in maintenance without an \
         address, for 'resolvers' or 'set server … addr'; 'last' is skipped. Default: last,libc, and with 'resolvers' \
         last,libc,none.",
        |s, v| {
            let way = |word: &str| match word {
                "last" => Ok(InitAddr::Last),
                "libc" => Ok(InitAddr::Libc),
                "none" => Ok(InitAddr::None),
                _ => word.parse().map(InitAddr::Ip).map_err(|_| {
                    format!("expects last, libc, none or a numeric address, several with ',' between, not '{word}'")
                }),
            };
            s.init_addr = Some(v.split(',').map(way).collect::<Result<_, _>>()?);
            Ok(())
        },
    ),
    option(
        "init-state",
        1,
        "none|up|fully-up|down|fully-down",
        "The initial state of a checked server: up until its first failure (none, up), up until 'fall' failures \
         (fully-up), down until its first success (down), or down until 'rise' successes (fully-down).",
        |s, v| {
            s.initial = match v {
                "none" | "up" => InitialState::Up,
                "fully-up" => InitialState::FullyUp,
                "down" => InitialState::Down,
                "fully-down" => InitialState::FullyDown,
                _ => return Err(format!("expects one of none, up, fully-up, down, fully-down, not '{v}'")),
            };
            Ok(())
        },
    ),
    option("inter", 1, "TIME", "The interval of checks; 2 s.", |s, v| {
        s.inter = interval(v)?;
        Ok(())
    }),
    option(
        "log-bufsize",
        1,
        "BYTES",
        "The size of the ring in which messages wait for a server of a log backend that is reached by a stream; 16384.",
        |s, v| {
            let bytes = unit::leading_integer(v, i64::MIN, limits::RING_BYTES as i64)?;
            s.log_bufsize = Some(usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or("has to be > 0.")?);
            Ok(())
        },
    ),
    option(
        "log-proto",
        1,
        "legacy|octet-count",
        "How messages are separated that are sent to a server of a ring or of a log backend by a stream: each ends with a \
         line feed (legacy, the default), or begins with its length.",
        |s, v| {
            let unknown = || format!("expects one of 'legacy' or 'octet-count' but got '{v}'");
            s.log_proto = LogProto::named(v).ok_or_else(unknown)?;
            Ok(())
        },
    ),
    option(
        "max-reuse",
        1,
        "N",
        "Maximum number of requests on one connection after its first; -1: unlimited, the default.",
        |s, v| {
            s.pool.max_reuse = at_most(v)?;
            Ok(())
        },
    ),
    option("maxconn", 1, "N", "Limit of concurrent requests; further ones wait in the server's queue.", |s, v| {
        let n = unit::leading_integer(v, 0, i64::from(i32::MAX))? as u32;
        s.maxconn = (n > 0).then_some(n);
        Ok(())
    }),
    option("maxqueue", 1, "N", "Maximum number of requests in the server's queue.", |s, v| {
        let n = unit::leading_integer(v, 0, i64::from(i32::MAX))? as u32;
        s.maxqueue = (n > 0).then_some(n);
        Ok(())
    }),
    option(
        "minconn",
        1,
        "N",
        "The dynamic limit at low load: it grows with the backend's load up to 'maxconn' at 'fullconn'.",
        |s, v| {
            let n = unit::leading_integer(v, 0, i64::from(i32::MAX))? as u32;
            s.minconn = (n > 0).then_some(n);
            Ok(())
        },
    ),
    option("no-agent-check", 0, "", "Undoes an 'agent-check' of default-server.", |s, _| {
        s.agent.on = false;
        Ok(())
    }),
    option("no-backup", 0, "", "Undoes a 'backup' of default-server.", |s, _| {
        s.backup = false;
        Ok(())
    }),
    option("no-send-proxy", 0, "", "Undoes a 'send-proxy' of default-server.", |s, _| {
        s.send_proxy.v1 = false;
        Ok(())
    }),
    option("no-send-proxy-v2", 0, "", "Undoes a 'send-proxy-v2' of default-server.", |s, _| {
        s.send_proxy.v2 = false;
        Ok(())
    }),
    option("no-send-proxy-v2-ssl", 0, "", "Undoes a 'send-proxy-v2-ssl' of default-server.", |s, _| {
        (s.send_proxy.v2, s.send_proxy.tls.used) = (false, false);
        Ok(())
    }),
    option("no-send-proxy-v2-ssl-cn", 0, "", "Undoes a 'send-proxy-v2-ssl-cn' of default-server.", |s, _| {
        (s.send_proxy.v2, s.send_proxy.tls.used, s.send_proxy.tls.cn) = (false, false, false);
        Ok(())
    }),
    option("no-check", 0, "", "Undoes a 'check' of default-server.", |s, _| {
        s.check = false;
        Ok(())
    }),
    option("no-check-reuse-pool", 0, "", "Checks open connections of their own.", |s, _| {
        s.check_reuse_pool = Some(false);
        Ok(())
    }),
    option("no-check-send-proxy", 0, "", "Undoes a 'check-send-proxy' of default-server.", |s, _| {
        s.check_send_proxy = false;
        Ok(())
    }),
    option("no-tfo", 0, "", "Undoes a 'tfo' of default-server.", |s, _| {
        s.tcp.fast_open = false;
        Ok(())
    }),
    option(
        "namespace",
        1,
        "NAME|*",
        "The network namespace of connections to the server, a file in /var/run/netns; '*': that of the client's \
         connection, by its PROXY protocol header or its 'bind' line. Needs CAP_SYS_ADMIN.",
        // `options` reads it, which knows the position.
        |_, _| Ok(()),
    ),
    option("non-stick", 0, "", "Stick rules never store it.", |s, _| {
        s.non_stick = true;
        Ok(())
    }),
    option(
        "observe",
        1,
        "layer4|layer7",
        "Counts failures of traffic like failed checks: failed connections, or also failed responses.",
        |s, v| {
            s.observe = match v {
                "none" => None,
                "layer4" => Some(false),
                "layer7" => Some(true),
                _ => return Err(format!("expects one of none, layer4, layer7, not '{v}'")),
            };
            Ok(())
        },
    ),
    option(
        "on-error",
        1,
        "fastinter|fail-check|sudden-death|mark-down",
        "The action of 'observe' at 'error-limit': an early next check; that and a failed check (the default); that \
         and a down state after the next failure; or an immediate down state.",
        |s, v| {
            s.on_observed = match v {
                "fastinter" => OnObserved::FastInter,
                "fail-check" => OnObserved::FailCheck,
                "sudden-death" => OnObserved::SuddenDeath,
                "mark-down" => OnObserved::MarkDown,
                _ => {
                    return Err(format!("expects one of fastinter, fail-check, sudden-death, mark-down, not '{v}'"));
                }
            };
            Ok(())
        },
    ),
    option("on-marked-down", 1, "shutdown-sessions", "Ends the streams of a server that goes down.", |s, v| {
        s.shut_sessions_when_down = v == "shutdown-sessions";
        if s.shut_sessions_when_down { Ok(()) } else { Err(format!("expects shutdown-sessions, not '{v}'")) }
    }),
    option(
        "on-marked-up",
        1,
        "shutdown-backup-sessions",
        "Ends the streams of backup servers when this server comes up.",
        |s, v| {
            s.shut_backups_when_up = v == "shutdown-backup-sessions";
            if s.shut_backups_when_up { Ok(()) } else { Err(format!("expects shutdown-backup-sessions, not '{v}'")) }
        },
    ),
    option(
        "pool-low-conn",
        1,
        "N",
        "Idle connections that are kept beyond those that requests have used at once lately; while there are fewer, no \
         worker takes one from another. 0.",
        |s, v| {
            s.pool.low = unit::leading_integer(v, 0, i64::from(i32::MAX))? as u32;
            Ok(())
        },
    ),
    option("pool-max-conn", 1, "N", "Maximum number of idle connections kept; -1: unlimited, the default.", |s, v| {
        s.pool.max = at_most(v)?;
        Ok(())
    }),
    option(
        "pool-purge-delay",
        1,
        "TIME",
        "The interval at which half of the unneeded idle connections are closed; 5 s, 0: none is kept.",
        |s, v| {
            let time = unit::time(v, TimeUnit::Milliseconds)?;
            s.pool.purge_delay = (!time.is_zero()).then_some(time);
            Ok(())
        },
    ),
    option("port", 1, "PORT", "The port for checks, if not the server's.", |s, v| {
        s.port = Some(unit::leading_integer(v, 0, 65535)? as u16).filter(|port| *port > 0);
        Ok(())
    }),
    option(
        "proxy-v2-options",
        1,
        "OPTION[,…]",
        "Additional content of the header of 'send-proxy-v2': 'crc32c' a checksum, 'unique-id' the stream's, \
         'authority' that of the client's own header or the name in its hello; of the client's TLS 'ssl' the version, \
         'ssl-cipher' the suite, of its certificate 'cert-cn' the common name, 'cert-key' and 'cert-sig' algorithms.",
        |s, v| s.send_proxy.options(v),
    ),
    option(
        "redir",
        1,
        "PREFIX",
        "Requests by GET and HEAD are not sent to the server but redirected (302) to this prefix followed by the \
         request's path and query; '/' alone adds nothing. Other requests go to the server.",
        |s, v| {
            s.redirect = Some(v.to_owned());
            Ok(())
        },
    ),
    option("resolve-net", 1, "NETWORK[,…]", "Preferred networks among the addresses of a name.", |s, v| {
        let read = |word| sluicegate_pattern::network(word).ok_or_else(|| format!("'{word}' is no network"));
        s.networks = v.split(',').map(read).collect::<Result<_, _>>()?;
        if s.networks.len() > NETWORKS {
            return Err(format!("{NETWORKS} networks at most"));
        }
        Ok(())
    }),
    option(
        "resolve-opts",
        1,
        "OPTION[,…]",
        "'allow-dup-ip': several servers of a backend may use the same address of a name, 'prevent-dup-ip', the \
         default: they may not; 'ignore-weight': weights of SRV records are ignored.",
        |s, v| {
            for word in v.split(',') {
                match word {
                    "allow-dup-ip" => s.duplicates = true,
                    "prevent-dup-ip" => s.duplicates = false,
                    "ignore-weight" => s.ignore_weight = true,
                    _ => {
                        return Err(format!(
                            "expects some of allow-dup-ip, ignore-weight, prevent-dup-ip, not '{word}'"
                        ));
                    }
                }
            }
            Ok(())
        },
    ),
    option("resolve-prefer", 1, "ipv4|ipv6", "The preferred address family, queried first; ipv6.", |s, v| {
        s.prefer_v4 = match v {
            "ipv4" => true,
            "ipv6" => false,
            _ => return Err(format!("expects ipv4 or ipv6, not '{v}'")),
        };
        Ok(())
    }),
    option(
        "resolvers",
        1,
        "SECTION",
        "Resolves the server's name periodically with this 'resolvers' section, and updates the server. A name that \
         begins with '_' refers to SRV records, each of which fills a server: its target, port and weight.",
        |s, v| {
            s.resolvers = Some(v.to_owned());
            Ok(())
        },
    ),
    option("rise", 1, "N", "Number of successful checks in a row until the server is up; 2.", |s, v| {
        s.rise = unit::leading_integer(v, 1, 1_000_000)? as u32;
        Ok(())
    }),
    option(
        "send-proxy",
        0,
        "",
        "Connections to the server begin with a PROXY protocol header, version 1, with the client's address.",
        |s, _| {
            s.send_proxy.v1 = true;
            Ok(())
        },
    ),
    option("send-proxy-v2", 0, "", "The same with version 2.", |s, _| {
        s.send_proxy.v2 = true;
        Ok(())
    }),
    option("send-proxy-v2-ssl", 0, "", "The same with what is known of the client's TLS.", |s, _| {
        (s.send_proxy.v2, s.send_proxy.tls.used) = (true, true);
        Ok(())
    }),
    option("send-proxy-v2-ssl-cn", 0, "", "The same with the common name of the client's certificate.", |s, _| {
        (s.send_proxy.v2, s.send_proxy.tls.used, s.send_proxy.tls.cn) = (true, true, true);
        Ok(())
    }),
    option(
        "set-proxy-v2-tlv-fmt",
        1,
        "(ID) FORMAT",
        "A TLV of a header of 'send-proxy-v2': its type, 0 to 255 or 0x00 to 0xff, and the format of its value.",
        // `send_proxy::tlv` parses this option, because formats need the reader.
        |_, _| Ok(()),
    ),
    option(
        "shard",
        1,
        "N",
        "Of a peer: the part of the keys that it is sent, 1 to 'shards' of its section; 0, the default: all.",
        |s, v| {
            s.shard = unit::leading_integer(v, 0, i64::from(i32::MAX))? as u32;
            Ok(())
        },
    ),
    option(
        "slowstart",
        1,
        "TIME",
        "The time in which a server that comes back reaches its weight and its maxconn; whole seconds.",
        |s, v| {
            let time = unit::time(v, TimeUnit::Milliseconds)?;
            s.slowstart = (!time.is_zero()).then(|| Duration::from_secs(time.as_millis().div_ceil(1000) as u64));
            Ok(())
        },
    ),
    option(
        "socks4",
        1,
        "ADDRESS",
        "Connections to the server are made by this proxy of SOCKS 4, an address with a port; the server's must be of \
         IPv4.",
        |s, v| {
            let (address, port) = address::numeric(v)?;
            let port = port.filter(|port| *port > 0).ok_or_else(|| format!("missing port in '{v}'"))?;
            s.tcp.socks4 = Some((address, port).into());
            Ok(())
        },
    ),
    // `source::read` parses this option, which has several arguments.
    option("source", 1, source::USAGE, source::DOCS, |_, _| Ok(())),
    option("stick", 0, "", "Undoes a 'non-stick' of default-server.", |s, _| {
        s.non_stick = false;
        Ok(())
    }),
    option(
        "strict-maxconn",
        0,
        "",
        "'maxconn' also limits connections: an idle one is closed if it prevents a new one; if there is none, the \
         request fails.",
        |s, _| {
            s.strict_maxconn = true;
            Ok(())
        },
    ),
    option("tcp-ut", 1, "TIME", "Maximum time that data sent to the server may stay unacknowledged.", |s, v| {
        let time = unit::time(v, TimeUnit::Milliseconds)?;
        s.tcp.user_timeout = (!time.is_zero()).then_some(time);
        Ok(())
    }),
    option(
        "tfo",
        0,
        "",
        "The first data leaves with the first packet of a connection (TCP fast open), where this side sends first: in \
         'mode http', with TLS or a PROXY protocol header. A refused connection then fails when it is used: see \
         'retry-on'.",
        |s, _| {
            s.tcp.fast_open = true;
            Ok(())
        },
    ),
    option("track", 1, "[BACKEND/]SERVER", "Copies the state of that server, in place of own checks.", |s, v| {
        s.track = Some(v.to_owned());
        Ok(())
    }),
    option("weight", 1, "N", "The server's weight, 0 to 256; 1.", |s, v| {
        s.weight = unit::leading_integer(v, 0, 256)? as u16;
        Ok(())
    }),
]);

/// Returns the names of all options.
fn option_names() -> impl Iterator<Item = &'static str> {
    OPTIONS.names(Contexts::SERVER_OPTION).chain(tls::OPTIONS.names(Contexts::SERVER_OPTION))
}

/// The maximum number of networks of one 'resolve-net', as in HAProxy.
const NETWORKS: usize = 5;

/// Parses a limit; -1 means that there is none.
fn at_most(text: &str) -> Result<Option<u32>, String> {
    let n = unit::leading_integer(text, -1, i64::from(i32::MAX))?;
    Ok((n >= 0).then_some(n as u32))
}

fn interval(text: &str) -> Result<Duration, String> {
    match unit::time(text, TimeUnit::Milliseconds)? {
        Duration::ZERO => Err("the interval must not be 0".to_owned()),
        time => Ok(time),
    }
}

/// Adds HAProxy's warnings about the duration that follows an option.
fn time_warnings(diagnostics: &mut Diagnostics, line: &Line, index: usize) {
    let (option, text) = (line.text(index), line.text(index + 1));
    diagnostics.behind_unit(line.at(index + 1), text);
    if matches!(option, "agent-inter" | "downinter" | "fastinter" | "inter") && unit::is_suspicious(text) {
        let message = format!(
            "'{option} {text}' in server '{}' is suspiciously small for a value in milliseconds. Please use an explicit \
             unit ('{text}ms') if that was the intent",
            line.text(1)
        );
        diagnostics.warning(line.at(index + 1), message);
    }
}

/// Reads options, starting with word `start`; returns false after an error that prevents reading the rest.
fn options(reader: &mut ProxyReader<'_>, line: &Line, start: usize, settings: &mut ServerSettings) -> bool {
    let keyword = line.text(0);
    let mut next = start;
    while next < line.len() {
        let word = line.text(next);
        if word.starts_with(send_proxy::TLV) {
            send_proxy::tlv(reader, line, next, settings);
            next += 2;
            continue;
        }
        if word == "source" {
            let Some((source, behind)) = source::read(reader, line, next + 1, true) else { return false };
            settings.source = Some(source);
            next = behind;
            continue;
        }
        if let Some((row, _)) = tls::OPTIONS.find(word, "") {
            if keyword == "default-server" && !tls::may_be_default(word) {
                // HAProxy ignores the word, too, and starts.
                let message = format!("'{word}' option is not accepted in default-server sections");
                let warning = reader.diagnostics.warning(line.at(next), message);
                warning.hint("it is ignored: use 'ssl-min-ver' and 'ssl-max-ver'");
                next += 1;
                continue;
            }
            let Some(behind) = tls::option(reader, line, next, row, settings) else { return false };
            next = behind;
            continue;
        }
        if word == "usesrc" {
            let error = reader.diagnostics.error(line.at(next), "'usesrc' only allowed after a 'source' statement");
            error.hint("write 'source ADDRESS usesrc …'");
            return false;
        }
        let Some((row, _)) = OPTIONS.find(word, "") else {
            if is_known(known::SERVER_OPTIONS, word) {
                reader.diagnostics.error(line.at(next), format!("'{word}' of '{keyword}' is not supported yet"));
            } else if is_known(known::NEWER_SERVER_OPTIONS, word) {
                reader.diagnostics.error(line.at(next), format!("'{word}' of '{keyword}' is newer than HAProxy 3.2"));
            } else {
                let names = option_names().chain(known::SERVER_OPTIONS.iter().copied());
                let near = suggest::nearest(word, names);
                let error = reader.diagnostics.error(line.at(next), format!("unknown keyword '{word}' of '{keyword}'"));
                error.did_you_mean(near);
            }
            return false;
        };
        if row.max > 0 && next + 1 >= line.len() {
            let message = format!("'{word}' of '{keyword}' expects {}", row.usage);
            reader.diagnostics.error(line.at(next + 1), message);
            return false;
        }
        if word == "namespace" {
            let name = line.text(next + 1);
            settings.tcp.namespace = Some(match name {
                "*" => ServerNamespace::OfClient,
                name => ServerNamespace::Named(NamedNamespace { name: name.into(), at: line.at(next + 1) }),
            });
        }
        let value = match row.usage {
            "ADDRESS" => names::numeric(line.address(next + 1), reader.loaded.files),
            _ => Ok(line.text(next + 1).into()),
        };
        match value.and_then(|value| (row.parser)(settings, &value)) {
            Err(message) => {
                reader.diagnostics.error(line.at(next + 1), format!("'{word}' of '{keyword}': {message}"));
            }
            Ok(()) if row.usage == "TIME" => time_warnings(reader.diagnostics, line, next),
            Ok(()) => {}
        }
        next += 1 + row.max;
    }
    true
}

/// Reads `default-server OPTION…`; its settings add to those of the `default-server` lines before it.
pub(crate) fn default_server(reader: &mut ProxyReader<'_>, line: &Line) {
    let mut settings = reader.settings.default_server.clone();
    if let Some(index) = (1..line.len()).find(|i| line.text(*i) == "id") {
        reader.diagnostics.error(line.at(index), "'id' is not allowed in 'default-server'");
        return;
    }
    options(reader, line, 1, &mut settings);
    reader.settings.default_server = settings;
}

/// Reads `server NAME ADDRESS OPTION…`.
pub(crate) fn server(reader: &mut ProxyReader<'_>, line: &Line) {
    let name = line.text(1);
    if let Some(offset) = bad_name_byte(name) {
        let bad = name[offset..].chars().next().unwrap_or('?');
        let message = format!("character '{bad}' is not permitted in server name '{name}'");
        reader.diagnostics.error(line.within(1, offset), message);
        return;
    }
    let name = reader.server_name(line, 1, name.into());
    declare(reader, line, 2, [name]);
}

/// Adds the servers of one line, whose address is word `at`, followed by the options.
fn declare(reader: &mut ProxyReader<'_>, line: &Line, at: usize, names: impl IntoIterator<Item = Arc<str>>) {
    let mut names = names.into_iter();
    let Some(name) = names.next() else { return };
    let address = match address::server_line(line.address(at)) {
        Ok(address) => Some(address),
        Err(problem) => {
            let message = format!("'{} {name}': {}", line.text(0), problem.message);
            let error = reader.diagnostics.error(line.within_address(at, problem.offset), message);
            if let Some(hint) = problem.hint {
                error.hint(hint);
            }
            None
        }
    };
    let mut settings = reader.settings.default_server.clone();
    settings.tls.inherit();
    let whole = options(reader, line, at + 1, &mut settings);
    let Some((address, transport)) = address.filter(|_| whole) else {
        return;
    };
    let datagram = transport == Transport::Datagram;
    settings.tcp.multipath = transport == Transport::Multipath;
    if settings.agent.on && settings.agent.port.is_none() {
        let message = format!("server '{name}' does not have agent port");
        reader.diagnostics.error(line.at(2), message).hint("say where its agent listens: 'agent-port N'");
    }
    if settings.check && settings.track.is_some() {
        let message = format!("server '{name}' cannot have checks and track another server at the same time");
        reader.diagnostics.error(line.at(1), message).hint("leave out 'check' or 'track'");
    }
    let servers = &mut reader.settings.proxy.servers;
    if let Some(sid) = settings.sid
        && let Some(other) = servers.iter().find(|s| s.sid == sid)
    {
        let message = format!("the id {sid} of server '{name}' is already used by '{}'", other.name);
        reader.diagnostics.error(line.at(1), message);
    }
    let resolve = settings.resolve();
    if let Some(resolve) = &resolve
        && !reader.stores.resolvers.contains(&resolve.section)
    {
        let message = format!("server '{name}': unable to find required resolvers '{}'", resolve.section);
        let near = suggest::nearest(&resolve.section, reader.stores.resolvers.iter().map(|known| &**known));
        reader.diagnostics.error(line.at(0), message).did_you_mean(near);
    }
    if let (ServerAddress::Name(host, _), None) = (&address, &resolve)
        && host.starts_with('_')
    {
        let message = format!("server '{name}': no method found to resolve address '{host}'");
        reader.diagnostics.error(line.at(at), message).hint("SRV records need 'resolvers SECTION'");
    }
    reader.settings.server_words.push((reader.settings.proxy.servers.len(), settings.tls.clone()));
    let servers = &mut reader.settings.proxy.servers;
    let server = Server { datagram, ..settings.server(name, address, line.at(0)) };
    // The servers of a template differ by their names; an 'id' belongs to the first one.
    servers.push(server.clone());
    servers.extend(names.map(|name| Server { name, sid: 0, ..server.clone() }));
}
