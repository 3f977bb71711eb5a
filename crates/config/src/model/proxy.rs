//! Proxies: listeners, servers, timeouts.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Acl, Affinity, Balance, BindTls, CheckTls, Condition, ErrorPages, Expr, HashType, LogTarget, Logging, PersistRule,
    PersistenceCookie, Position, Proto, ProxyHealth, ProxyId, Return, Rule, ServerHashKey, ServerHealth, ServerResolve,
    ServerTls, StatsPage, StatsSocket, StickRule, StickTable, UseBackend, UseServer, WebSockets,
};

/// The kind of a proxy section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyKind {
    /// `frontend`.
    Frontend,
    /// `backend`.
    Backend,
    /// `listen`: both.
    Listen,
}

/// `mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Bytes.
    #[default]
    Tcp,
    /// HTTP/1.
    Http,
    /// Log messages: of `log-forward` sections, and of backends that `log` lines name.
    Log,
    /// Messages to agents (SPOP): of backends only.
    Spop,
}

/// A `frontend`, `backend` or `listen`, with its `defaults` folded in.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Its name.
    pub name: Arc<str>,
    /// The kind of the section.
    pub kind: ProxyKind,
    /// `mode`.
    pub mode: Mode,
    /// `id N`, or the least free number from 2 on, as HAProxy does (`iid` of `show stat`).
    pub uid: u32,
    /// The start of the section.
    pub at: Position,
    /// `disabled`.
    pub disabled: bool,
    /// Every `timeout`.
    pub timeouts: Timeouts,
    /// `option …` flags.
    pub options: ProxyOptions,
    /// `log` targets, `log global` already expanded.
    pub log: Vec<LogTarget>,
    /// The log formats and captures of a stream.
    pub logging: Logging,
    /// `bind` lines (frontend side).
    pub binds: Vec<Bind>,
    /// `maxconn` of the frontend side.
    pub maxconn: Option<u32>,
    /// `backlog` of the frontend side.
    pub backlog: Option<u32>,
    /// `rate-limit sessions`, a second.
    pub session_rate: Option<u32>,
    /// `acl` lines; [`Condition`]s refer to them by index.
    pub acls: Vec<Acl>,
    /// `tcp-request connection` (frontend side).
    pub tcp_request_connection: Vec<Rule>,
    /// `tcp-request session` (frontend side).
    pub tcp_request_session: Vec<Rule>,
    /// `tcp-request content`.
    pub tcp_request_content: Vec<Rule>,
    /// `tcp-request inspect-delay`.
    pub inspect_delay: Option<Duration>,
    /// `tcp-response content`.
    pub tcp_response_content: Vec<Rule>,
    /// `tcp-response inspect-delay`.
    pub response_inspect_delay: Option<Duration>,
    /// `http-request`, legacy `redirect` lines last.
    pub http_request: Vec<Rule>,
    /// The number of trailing rules that are `redirect` lines: the statistics page precedes these.
    pub redirects: usize,
    /// `stats …`.
    pub stats: Option<Box<StatsPage>>,
    /// `http-response`.
    pub http_response: Vec<Rule>,
    /// `http-after-response`.
    pub http_after_response: Vec<Rule>,
    /// `use_backend` (frontend side), in order.
    pub use_backend: Vec<UseBackend>,
    /// `default_backend` (frontend side); a `listen` with none uses itself.
    pub default_backend: Option<ProxyId>,
    /// `server` lines (backend side).
    pub servers: Vec<Server>,
    /// `persist rdp-cookie`: the cookie that names a server by its address.
    pub persist_rdp_cookie: Option<super::Expr>,
    /// `max-keep-alive-queue`: requests that may wait for a server that is preferred; `None`: any number.
    pub max_keep_alive_queue: Option<u32>,
    /// `max-session-srv-conns`: idle connections to servers that a session of the frontend has of its own.
    pub max_session_srv_conns: u32,
    /// `source`.
    pub source: Option<super::Source>,
    /// `balance`.
    pub balance: Balance,
    /// `hash-type`.
    pub hash_type: HashType,
    /// `hash-balance-factor`, percent; 0: none.
    pub hash_balance_factor: u32,
    /// `hash-preserve-affinity`.
    pub hash_preserve_affinity: Affinity,
    /// `fullconn`; `None`: a tenth of the `maxconn` of the frontends that name this backend.
    pub fullconn: Option<u32>,
    /// `retries`; 3.
    pub retries: u32,
    /// `retry-on`.
    pub retry_on: RetryOn,
    /// `option redispatch [N]`: `None` off, `Some(-1)` the last retry (the default form), `Some(n)` every nth.
    pub redispatch: Option<i32>,
    /// `http-reuse`.
    pub http_reuse: HttpReuse,
    /// `compression`.
    pub compression: Option<Arc<super::Compression>>,
    /// `filter`, in order; that of `compression` lines without one is the last.
    pub filters: Vec<super::Filter>,
    /// `cookie`.
    pub cookie: Option<PersistenceCookie>,
    /// `dynamic-cookie-key`.
    pub dynamic_cookie_key: Option<String>,
    /// `force-persist` and `ignore-persist`, in order.
    pub persist_rules: Vec<PersistRule>,
    /// `use-server`, in order.
    pub use_server: Vec<UseServer>,
    /// `stick`, in order.
    pub stick_rules: Vec<StickRule>,
    /// `stick-table`.
    pub stick_table: Option<StickTable>,
    /// `http-error`: the responses for statuses whose page is [`ErrorPage::Reply`](super::ErrorPage::Reply).
    pub http_errors: BTreeMap<u16, Return>,
    /// The settings of a `log-forward` section, if it is one.
    pub log_forward: Option<super::LogForward>,
    /// `email-alert` lines.
    pub email_alert: Option<super::EmailAlert>,
    /// `monitor-uri`.
    pub monitor_uri: Option<Vec<u8>>,
    /// `monitor fail`.
    pub monitor_fail: Vec<Condition>,
    /// `http-send-name-header`.
    pub send_name_header: Option<String>,
    /// `errorfile`, `errorloc`, `errorfiles`: replacements of built-in pages.
    pub errors: ErrorPages,
    /// Check settings of its servers.
    pub health: ProxyHealth,
    /// `load-server-state-from-file`.
    pub state_source: StateSource,
    /// `server-state-file-name`; the section's name by default.
    pub state_file: Option<String>,
    /// Whether its number is its `id`.
    pub forced_id: bool,
    /// `description`, for the statistics page.
    pub description: Option<String>,
    /// `dispatch` or `option transparent`: where requests go that persistence sends to no server, by default settings.
    pub dispatch: Option<Box<Server>>,
    /// `guid`.
    pub guid: Option<String>,
}

/// `load-server-state-from-file`: from where servers have the states in which they start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateSource {
    /// Without the keyword: those of the previous process (`runtime-state-file`), or from the configuration.
    #[default]
    Unset,
    /// `none`: from the configuration.
    None,
    /// `global`: from the file of `server-state-file`.
    Global,
    /// `local`: from the section's own file.
    Local,
}

/// `retry-on`: the failures after which a request is sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryOn {
    /// Whether the server can't be connected to.
    pub conn_failure: bool,
    /// The server ends the connection before a whole head of a response.
    pub empty_response: bool,
    /// Whether the response is not HTTP.
    pub junk_response: bool,
    /// `timeout server` passes before a response.
    pub response_timeout: bool,
    /// These statuses.
    pub statuses: Vec<u16>,
}

impl ProxyKind {
    /// Returns HAProxy's word for such a section.
    pub fn word(self) -> &'static str {
        match self {
            ProxyKind::Frontend => "frontend",
            ProxyKind::Backend => "backend",
            // HAProxy calls a section with both sides a proxy.
            ProxyKind::Listen => "proxy",
        }
    }
}

impl Proxy {
    /// Returns whether it is a backend of log messages.
    pub fn is_log_backend(&self) -> bool {
        self.mode == Mode::Log && self.kind != ProxyKind::Frontend && !self.disabled
    }

    /// Returns a section with default settings.
    pub fn new(name: Arc<str>, kind: ProxyKind, at: Position) -> Proxy {
        Proxy {
            name,
            kind,
            mode: Mode::Tcp,
            uid: 0,
            at,
            disabled: false,
            timeouts: Timeouts::default(),
            options: ProxyOptions::default(),
            log: Vec::new(),
            logging: Logging::default(),
            binds: Vec::new(),
            maxconn: None,
            acls: Vec::new(),
            tcp_request_connection: Vec::new(),
            tcp_request_session: Vec::new(),
            tcp_request_content: Vec::new(),
            inspect_delay: None,
            tcp_response_content: Vec::new(),
            response_inspect_delay: None,
            http_request: Vec::new(),
            redirects: 0,
            stats: None,
            http_response: Vec::new(),
            http_after_response: Vec::new(),
            use_backend: Vec::new(),
            default_backend: None,
            servers: Vec::new(),
            backlog: None,
            session_rate: None,
            retry_on: RetryOn::default(),
            log_forward: None,
            email_alert: None,
            persist_rdp_cookie: None,
            max_keep_alive_queue: None,
            max_session_srv_conns: 5,
            source: None,
            balance: Balance::default(),
            hash_type: HashType::default(),
            hash_balance_factor: 0,
            hash_preserve_affinity: Affinity::default(),
            fullconn: None,
            retries: 3,
            redispatch: None,
            http_reuse: HttpReuse::Safe,
            compression: None,
            filters: Vec::new(),
            cookie: None,
            dynamic_cookie_key: None,
            persist_rules: Vec::new(),
            use_server: Vec::new(),
            stick_rules: Vec::new(),
            stick_table: None,
            http_errors: BTreeMap::new(),
            monitor_uri: None,
            monitor_fail: Vec::new(),
            send_name_header: None,
            errors: ErrorPages::new(),
            health: ProxyHealth::default(),
            state_source: StateSource::Unset,
            state_file: None,
            forced_id: false,
            description: None,
            dispatch: None,
            guid: None,
        }
    }
}

impl Default for RetryOn {
    fn default() -> RetryOn {
        RetryOn { conn_failure: true, ..RetryOn::none() }
    }
}

impl RetryOn {
    /// Nothing.
    pub fn none() -> RetryOn {
        RetryOn {
            conn_failure: false,
            empty_response: false,
            junk_response: false,
            response_timeout: false,
            statuses: Vec::new(),
        }
    }
}

/// Every `timeout` keyword; `None` means no limit.
#[derive(Clone, Debug, Default)]
pub struct Timeouts {
    /// `timeout client`.
    pub client: Option<Duration>,
    /// `timeout client-hs`.
    pub client_handshake: Option<Duration>,
    /// `timeout client-fin`.
    pub client_fin: Option<Duration>,
    /// `timeout connect`.
    pub connect: Option<Duration>,
    /// `timeout server`.
    pub server: Option<Duration>,
    /// `timeout server-fin`.
    pub server_fin: Option<Duration>,
    /// `timeout http-request`; falls back to `client` at run time.
    pub http_request: Option<Duration>,
    /// `timeout http-keep-alive`; falls back to `http_request`, then `client`.
    pub http_keep_alive: Option<Duration>,
    /// `timeout queue`; falls back to `connect`.
    pub queue: Option<Duration>,
    /// `timeout check`.
    pub check: Option<Duration>,
    /// `timeout tunnel`; replaces client and server in a tunnel.
    pub tunnel: Option<Duration>,
    /// `timeout tarpit`; falls back to `connect`.
    pub tarpit: Option<Duration>,
}

/// `option` flags of a proxy.
#[derive(Clone, Debug, Default)]
pub struct ProxyOptions {
    /// `option forwardfor`.
    pub forwardfor: Option<ForwardFor>,
    /// `option originalto`.
    pub originalto: Option<ForwardFor>,
    /// `option forwarded`.
    pub forwarded: Option<Forwarded>,
    /// The fate of connections after a response.
    pub connection: ConnectionMode,
    /// `option dontlognull`.
    pub dontlognull: bool,
    /// `option abortonclose` (3.2: off by default).
    pub abortonclose: bool,
    /// `option persist`: requests persistent on a server that is down are still sent to it.
    pub persist: bool,
    /// `option http-buffer-request`.
    pub buffer_request: bool,
    /// `option http-ignore-probes`.
    pub http_ignore_probes: bool,
    /// `option http-pretend-keepalive`.
    pub pretend_keepalive: bool,
    /// `option independent-streams`.
    pub independent_streams: bool,
    /// `option idle-close-on-response`.
    pub idle_close_on_response: bool,
    /// `option http-restrict-req-hdr-names`.
    pub header_names: Option<HeaderNames>,
    /// `option accept-unsafe-violations-in-http-request`.
    pub unsafe_requests: bool,
    /// `option accept-unsafe-violations-in-http-response`.
    pub unsafe_responses: bool,
    /// `option h1-case-adjust-bogus-client`.
    pub case_for_clients: bool,
    /// `option h1-case-adjust-bogus-server`.
    pub case_for_servers: bool,
    /// `option http-drop-request-trailers`.
    pub drop_request_trailers: bool,
    /// `option http-drop-response-trailers`.
    pub drop_response_trailers: bool,
    /// `option nolinger`.
    pub nolinger: bool,
    /// `option clitcpka` and `clitcpka-*`.
    pub client_probes: Probes,
    /// `option srvtcpka` and `srvtcpka-*`.
    pub server_probes: Probes,
    /// `option http-use-proxy-header`.
    pub use_proxy_header: bool,
    /// `option allbackups`.
    pub all_backups: bool,
    /// `option prefer-last-server`.
    pub prefer_last_server: bool,
    /// `option disable-h2-upgrade`: the preface of HTTP/2 on a connection without TLS changes nothing.
    pub disable_h2_upgrade: bool,
    /// `option checkcache`: a response that caches keep may not set a cookie.
    pub check_cache: bool,
    /// `option socket-stats`: each listening socket has figures of its own.
    pub socket_stats: bool,
}

/// `option http-restrict-req-hdr-names`: the treatment of a field whose name contains characters other than letters,
/// digits and `-`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderNames {
    /// It passes.
    #[default]
    Preserve,
    /// It is removed.
    Delete,
    /// The request is denied.
    Reject,
}

/// Probes of idle connections by the kernel (`option tcpka`, `clitcpka`, `srvtcpka`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probes {
    /// Whether they are sent.
    pub on: bool,
    /// The number of unanswered probes after which the connection is closed.
    pub count: Option<u32>,
    /// The idle time before the first probe.
    pub idle: Option<Duration>,
    /// Time between two.
    pub interval: Option<Duration>,
}

/// `option forwarded`: the parts of the field, in the order in which they are sent.
#[derive(Clone, Debug, Default)]
pub struct Forwarded {
    /// `proto`.
    pub proto: bool,
    /// `host`, `host-expr`.
    pub host: Option<ForwardedPart>,
    /// `by`, `by-expr`.
    pub by: Option<ForwardedPart>,
    /// `by_port`, `by_port-expr`.
    pub by_port: Option<ForwardedPart>,
    /// `for`, `for-expr`.
    pub source: Option<ForwardedPart>,
    /// `for_port`, `for_port-expr`.
    pub source_port: Option<ForwardedPart>,
}

/// The source of a part of the field.
#[derive(Clone, Debug)]
pub enum ForwardedPart {
    /// The connection, or the request's Host.
    Own,
    /// A sample.
    Expr(Expr),
}

/// `option http-keep-alive|http-server-close|httpclose`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionMode {
    /// Keep both sides.
    #[default]
    KeepAlive,
    /// Keep the client's side.
    ServerClose,
    /// Close both.
    Close,
}

/// `option forwardfor [except NET] [header NAME] [if-none]`.
#[derive(Clone, Debug)]
pub struct ForwardFor {
    /// Networks whose clients get no header.
    pub except: Option<(IpAddr, u8)>,
    /// Header name; `X-Forwarded-For`.
    pub header: String,
    /// Whether it is only added to requests without one.
    pub if_none: bool,
}

/// `http-reuse`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpReuse {
    /// Never.
    Never,
    /// The first request of a client connection is never sent on a used idle connection unless it may be retried.
    #[default]
    Safe,
    /// Only connections that were reused at least once.
    Aggressive,
    /// Always.
    Always,
}

/// A `bind` line; ports of a range are expanded into several addresses.
#[derive(Clone, Debug)]
pub struct Bind {
    /// The listening addresses, at least one.
    pub addresses: Vec<BindAddress>,
    /// `name`.
    pub name: Option<String>,
    /// `maxconn`.
    pub maxconn: Option<u32>,
    /// `backlog`.
    pub backlog: Option<u32>,
    /// The parts of `thread`: their groups, or 0, and their lowest threads.
    pub threads: Vec<(u32, u32)>,
    /// `v6only`/`v4v6`.
    pub v6only: Option<bool>,
    /// `mode` of a unix socket, octal.
    pub mode: Option<u32>,
    /// `user`/`uid` of a unix socket.
    pub user: Option<String>,
    /// `group`/`gid` of a unix socket.
    pub group: Option<String>,
    /// Options of its TCP sockets.
    pub tcp: BindTcp,
    /// `id`: the number of its first socket.
    pub id: Option<u32>,
    /// `accept-proxy`: connections begin with a PROXY protocol header.
    pub accept_proxy: bool,
    /// `ssl` with all that belongs to it.
    pub tls: Option<Arc<BindTls>>,
    /// `proto`.
    pub proto: Option<Proto>,
    /// `idle-ping`: the silence after which a client of HTTP/2 is tested.
    pub idle_ping: Option<Duration>,
    /// `dgram-bind`: datagrams are received.
    pub datagram: bool,
    /// `accept-netscaler-cip`: connections begin with such a header with this number.
    pub cip: Option<u32>,
    /// `guid-prefix`.
    pub guid_prefix: Option<String>,
    /// `nbconn`: the connections that are kept to the server of an `rhttp@` address.
    pub reverse_connections: u32,
    /// Options of command sockets, which others ignore.
    pub of_commands: OfCommands,
    /// Its position in the file.
    pub at: Position,
}

/// Options of a `bind` line that are for command sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfCommands {
    /// `level`.
    pub level: Option<super::StatsLevel>,
    /// `expose-fd listeners`.
    pub expose: bool,
    /// `severity-output`.
    pub severity: super::SeverityOutput,
}

/// Options of the TCP sockets of a `bind` line; accepted connections inherit them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindTcp {
    /// `interface`.
    pub interface: Option<String>,
    /// `mss`.
    pub mss: Option<u32>,
    /// `tcp-ut`.
    pub user_timeout: Option<Duration>,
    /// `defer-accept`.
    pub defer_accept: bool,
    /// `tfo`.
    pub fast_open: bool,
    /// `transparent`.
    pub transparent: bool,
    /// `mptcp@`: connections may be of MPTCP.
    pub multipath: bool,
    /// `namespace`.
    pub namespace: Option<super::NamedNamespace>,
    /// Whether each worker has a listening socket of its own (no `noreuseport`).
    pub shares_port: bool,
}

impl BindTcp {
    /// As the system has them.
    pub const NONE: BindTcp = BindTcp {
        interface: None,
        mss: None,
        user_timeout: None,
        defer_accept: false,
        fast_open: false,
        transparent: false,
        multipath: false,
        namespace: None,
        shares_port: true,
    };
}

impl Bind {
    /// Returns the `bind` that corresponds to a command socket.
    pub fn of_stats_socket(socket: &StatsSocket) -> Bind {
        Bind {
            addresses: vec![socket.address.clone()],
            backlog: socket.backlog,
            v6only: socket.v6only,
            mode: socket.mode,
            user: socket.user.clone(),
            group: socket.group.clone(),
            tcp: socket.tcp.clone(),
            ..Bind::blank(socket.at.clone())
        }
    }

    /// Returns whether it accepts nothing and connects to servers that send requests (`rhttp@`).
    pub fn is_reverse(&self) -> bool {
        self.addresses.iter().any(|address| matches!(address, BindAddress::Reverse(_)))
    }

    /// Returns a line with one address.
    pub(crate) fn at(address: BindAddress, at: Position) -> Bind {
        Bind { addresses: vec![address], ..Bind::blank(at) }
    }

    /// Returns a line without addresses and options.
    pub(crate) fn blank(at: Position) -> Bind {
        Bind {
            addresses: Vec::new(),
            name: None,
            maxconn: None,
            backlog: None,
            threads: Vec::new(),
            v6only: None,
            mode: None,
            user: None,
            group: None,
            tcp: BindTcp::NONE,
            id: None,
            accept_proxy: false,
            tls: None,
            proto: None,
            idle_ping: None,
            datagram: false,
            cip: None,
            guid_prefix: None,
            reverse_connections: 1,
            of_commands: OfCommands::default(),
            at,
        }
    }
}

/// The name of an abstract unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbstractName {
    /// The name, without the zero before it.
    pub name: String,
    /// Whether the address ends with the name (`abnsz@`); otherwise zeros fill it (`abns@`).
    pub is_exact: bool,
}

impl fmt::Display for AbstractName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", if self.is_exact { "abnsz" } else { "abns" }, self.name)
    }
}

/// An address that is listened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindAddress {
    /// An address and a port; `*` and an empty host are 0.0.0.0.
    Inet(IpAddr, u16),
    /// A unix socket's path.
    Unix(PathBuf),
    /// An abstract unix socket.
    Abstract(AbstractName),
    /// An inherited listening descriptor (`fd@N`).
    Fd(i32),
    /// An inherited unix socket over which connections are passed as descriptors (`sockpair@N`).
    Sockpair(i32),
    /// `rhttp@BACKEND/SERVER`: connections to this server, which sends requests on them.
    Reverse(Arc<str>),
}

impl BindAddress {
    /// With its family in front, as HAProxy lists sockets in `HAPROXY_CLI`: `unix@/run/s`, `ipv4@127.0.0.1:80`.
    pub fn with_family(&self) -> String {
        match self {
            BindAddress::Inet(IpAddr::V4(ip), port) => format!("ipv4@{ip}:{port}"),
            BindAddress::Inet(IpAddr::V6(ip), port) => format!("ipv6@[{ip}]:{port}"),
            BindAddress::Unix(path) => format!("unix@{}", path.display()),
            BindAddress::Abstract(name) => name.to_string(),
            BindAddress::Fd(number) => format!("fd@{number}"),
            BindAddress::Sockpair(number) => format!("sockpair@{number}"),
            BindAddress::Reverse(server) => format!("rhttp@{server}"),
        }
    }
}

impl Server {
    /// Returns whether it has no address, and connects to this side itself (`rhttp@`).
    pub fn is_reverse(&self) -> bool {
        self.address == ServerAddress::Reverse
    }
}

/// An address that is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// An address and a port; port 0 means the port that the client connected to (`+N`/`-N` is an offset).
    Inet(IpAddr, ServerPort),
    /// A name that the start resolves once.
    Name(String, ServerPort),
    /// A unix socket's path.
    Unix(PathBuf),
    /// An abstract unix socket.
    Abstract(AbstractName),
    /// An inherited unix socket over which an end of each connection is passed (`sockpair@N`).
    Sockpair(i32),
    /// `rhttp@`: none; the server has connected to this side (`attach-srv`).
    Reverse,
}

impl ServerAddress {
    /// Returns whether a check of it would have no port. As in HAProxy, an unspecified address needs none, nor does a name: its
    /// port may come from a service's record.
    pub(crate) fn lacks_port(&self) -> bool {
        match self {
            ServerAddress::Inet(host, ServerPort::Offset(_)) => !host.is_unspecified(),
            _ => false,
        }
    }
}

/// A way to find the first address of a server's name (`init-addr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitAddr {
    /// `last`: the address in a state file; without one, the next way is tried.
    Last,
    /// `libc`: the system's resolver.
    Libc,
    /// `none`: no address; the server starts in maintenance and gets one by `set server … addr`.
    None,
    /// This address.
    Ip(IpAddr),
}

/// The port of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPort {
    /// This one.
    Fixed(u16),
    /// The port the client connected to plus this.
    Offset(i32),
}

/// A `server` line with `default-server` folded in.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its name.
    pub name: Arc<str>,
    /// `id N`, or the position in the backend counted from 1 (`sid` of `show stat`).
    pub sid: u32,
    /// Whether it has that number by `id`.
    pub forced_id: bool,
    /// Whether an expression names it, such as `srv_is_up(BACKEND/NAME)`: then it is not deleted at run time.
    pub is_named: bool,
    /// Its address.
    pub address: ServerAddress,
    /// `init-addr`, in order.
    pub init_addr: Vec<InitAddr>,
    /// The run-time resolution of its name.
    pub resolve: Option<ServerResolve>,
    /// `weight`, 0–256; 1.
    pub weight: u16,
    /// `maxconn`; `None` unlimited.
    pub maxconn: Option<u32>,
    /// `strict-maxconn`: `maxconn` bounds connections as well, idle ones included.
    pub strict_maxconn: bool,
    /// `minconn`; `None`: the limit does not follow the backend's load.
    pub minconn: Option<u32>,
    /// `maxqueue`; `None` unlimited.
    pub maxqueue: Option<u32>,
    /// `slowstart`.
    pub slowstart: Option<Duration>,
    /// `hash-key`.
    pub hash_key: ServerHashKey,
    /// The settings of idle connections.
    pub pool: Pool,
    /// `backup`.
    pub backup: bool,
    /// `non-stick`: it is not stored in stick tables.
    pub non_stick: bool,
    /// `disabled`: starts in maintenance.
    pub disabled: bool,
    /// Whether it was added at run time.
    pub dynamic: bool,
    /// `cookie VALUE`: what names it in the backend's cookie.
    pub cookie: Option<String>,
    /// `send-proxy`, `send-proxy-v2`: connections to it begin with a PROXY protocol header.
    pub send_proxy: Option<SendProxy>,
    /// `source`.
    pub source: Option<super::Source>,
    /// Options of its connections.
    pub tcp: super::ServerTcp,
    /// `guid`.
    pub guid: Option<String>,
    /// `redir`: the prefix of the locations to which requests by GET and HEAD are redirected.
    pub redirect: Option<String>,
    /// `check` and related options; `None` without `check`.
    pub check: Option<Check>,
    /// Whatever else decides about its health.
    pub health: ServerHealth,
    /// `ssl`, or what `check-ssl` and `set server … ssl on` need.
    pub tls: Option<Arc<ServerTls>>,
    /// `no-ssl`, which HAProxy shows in the state of the server.
    pub no_tls: bool,
    /// `proto`.
    pub proto: Option<Proto>,
    /// `ws`.
    pub websockets: WebSockets,
    /// `log-proto`.
    pub log_proto: super::LogProto,
    /// `log-bufsize`: the size of the ring of a server of log messages, bytes.
    pub log_bufsize: Option<usize>,
    /// Whether it gets datagrams (`udp@`), which is for servers of log messages.
    pub datagram: bool,
    /// `pool-conn-name`: the name of the connections that a request may reuse, in place of that of `sni`.
    pub pool_name: Option<Expr>,
    /// `shard`, of a peer: the number of the part of the keys that it is sent; 0: all.
    pub shard: u32,
    /// Its position in the file.
    pub at: Position,
}

/// The PROXY protocol header that a server is sent ahead of a connection's first byte.
#[derive(Clone, Debug, Default)]
pub struct SendProxy {
    /// Version 2; the following settings apply to it only.
    pub v2: bool,
    /// `proxy-v2-options crc32c`: a checksum.
    pub checksum: bool,
    /// `proxy-v2-options unique-id`: the stream's.
    pub unique_id: bool,
    /// `proxy-v2-options authority`: the authority in the client's own header, or the name in its hello.
    pub authority: bool,
    /// What is sent of the client's TLS.
    pub tls: SendProxyTls,
    /// `set-proxy-v2-tlv-fmt`: types and values.
    pub tlvs: Vec<(u8, Arc<super::LogFormat>)>,
}

/// The TLV `PP2_TYPE_SSL` of a PROXY protocol header, and its parts beside the version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendProxyTls {
    /// `send-proxy-v2-ssl`, `proxy-v2-options ssl`: whether it is sent.
    pub used: bool,
    /// `send-proxy-v2-ssl-cn`, `cert-cn`: the common name of the client's certificate.
    pub cn: bool,
    /// `cert-key`: the algorithm of the key of this side's certificate.
    pub key: bool,
    /// `cert-sig`: the algorithm of the signature of this side's certificate.
    pub signature: bool,
    /// `ssl-cipher`: the suite.
    pub cipher: bool,
}

/// `pool-max-conn`, `pool-low-conn`, `pool-purge-delay`, `max-reuse`, `idle-ping` of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Idle connections that are kept; `None` without a limit.
    pub max: Option<u32>,
    /// The number of idle connections below which no other worker takes one.
    pub low: u32,
    /// Time between purges; `None`: nothing is kept.
    pub purge_delay: Option<Duration>,
    /// Requests on one connection after its first; `None` without a limit.
    pub max_reuse: Option<u32>,
    /// The silence after which an idle connection of HTTP/2 is tested.
    pub idle_ping: Option<Duration>,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { max: None, low: 0, purge_delay: Some(Duration::from_secs(5)), max_reuse: None, idle_ping: None }
    }
}

/// `check inter … rise … fall …`.
#[derive(Clone, Debug)]
pub struct Check {
    /// `inter`; 2 s.
    pub inter: Duration,
    /// `fastinter`.
    pub fastinter: Option<Duration>,
    /// `downinter`.
    pub downinter: Option<Duration>,
    /// `rise`; 2.
    pub rise: u32,
    /// `fall`; 3.
    pub fall: u32,
    /// `port`.
    pub port: Option<u16>,
    /// `addr`.
    pub addr: Option<IpAddr>,
    /// `check-send-proxy`.
    pub send_proxy: bool,
    /// `check-reuse-pool`: an idle connection is used if there is one.
    pub reuse_pool: bool,
    /// `check-pool-conn-name`.
    pub pool_name: Option<Arc<str>>,
    /// `check-ssl` and related options.
    pub tls: CheckTls,
}
