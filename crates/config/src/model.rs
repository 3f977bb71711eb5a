//! The typed configuration: what the rest of the program sees of a file.
//!
//! Everything here is plain data with positions. Words have been unquoted, defaults applied, names resolved to
//! indices and expressions typed against the catalogues; nothing here opens a socket, resolves a name or reads a
//! clock. The objects that run are built from it by the `proxy` and `store` crates.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::catalogue::{Converter, Fetch};

/// Where a word stands: the file as the user named it, line and column from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The file, as given on the command line.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
    /// Column in bytes, from 1.
    pub column: u32,
}

/// A whole configuration, every default applied.
#[derive(Clone, Debug)]
pub struct Config {
    /// The `global` section.
    pub global: Global,
    /// Frontends, backends and listens in the order of the file; a [`ProxyId`] is an index here.
    pub proxies: Vec<Proxy>,
    /// Embedded stores; never empty (`store default` where the file names none).
    pub stores: Vec<StoreSection>,
    /// External engines; read and checked, refused at start until they are supported.
    pub engines: Vec<RedisSection>,
    /// Demo servers.
    pub origins: Vec<OriginSection>,
}

/// An index into [`Config::proxies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProxyId(pub u32);

/// The `global` section.
#[derive(Clone, Debug, Default)]
pub struct Global {
    /// `nbthread`: workers; `None` means one per available core.
    pub nbthread: Option<u16>,
    /// `maxconn`: sessions of the whole process; `None` means derived from the descriptor limit.
    pub maxconn: Option<u32>,
    /// `daemon`: parsed; acts with the drop-in service, check warns until then.
    pub daemon: bool,
    /// `log` targets of the section.
    pub log: Vec<LogTarget>,
    /// `stats socket` lines.
    pub stats_sockets: Vec<StatsSocket>,
    /// `stats timeout`; default 10 s.
    pub stats_timeout: Option<Duration>,
    /// `lua-load` and `lua-load-per-thread`, in order.
    pub lua_loads: Vec<LuaLoad>,
    /// `lua-prepend-path PATTERN [path|cpath]`, in order.
    pub lua_prepend_paths: Vec<LuaPath>,
    /// `tune.*`.
    pub tune: Tune,
    /// `hard-stop-after`.
    pub hard_stop_after: Option<Duration>,
}

/// The `tune.*` keywords that act.
#[derive(Clone, Debug)]
pub struct Tune {
    /// `tune.bufsize`, bytes; 16384.
    pub bufsize: usize,
    /// `tune.maxrewrite`, bytes; 1024.
    pub maxrewrite: usize,
    /// `tune.http.maxhdr`; 101.
    pub http_maxhdr: usize,
    /// `tune.lua.session-timeout`, run time of one action in total; 4 s. `None`: unlimited.
    pub lua_session_timeout: Option<Duration>,
    /// `tune.lua.task-timeout`; none.
    pub lua_task_timeout: Option<Duration>,
    /// `tune.lua.service-timeout`; 4 s.
    pub lua_service_timeout: Option<Duration>,
    /// `tune.lua.burst-timeout`, run time between two yields; 1 s.
    pub lua_burst_timeout: Option<Duration>,
    /// `tune.lua.forced-yield`, instructions between voluntary yields; parsed for compatibility.
    pub lua_forced_yield: Option<u32>,
    /// `tune.lua.maxmem`, bytes for all states together; 0 means unlimited.
    pub lua_maxmem: usize,
    /// `tune.lua.bool-sample-conversion pre-3.1-bug`: Lua gets boolean samples as 0 and 1; HAProxy's default.
    pub lua_bool_as_integer: bool,
    /// `tune.lua.log.loggers`.
    pub lua_log_loggers: bool,
    /// `tune.lua.log.stderr`: `on`, `off` or `auto`.
    pub lua_log_stderr: LuaLogStderr,
}

impl Default for Tune {
    fn default() -> Self {
        Tune {
            bufsize: 16384,
            maxrewrite: 1024,
            http_maxhdr: 101,
            lua_session_timeout: Some(Duration::from_secs(4)),
            lua_task_timeout: None,
            lua_service_timeout: Some(Duration::from_secs(4)),
            lua_burst_timeout: Some(Duration::from_secs(1)),
            lua_forced_yield: None,
            lua_maxmem: 0,
            lua_bool_as_integer: true,
            lua_log_loggers: true,
            lua_log_stderr: LuaLogStderr::Auto,
        }
    }
}

/// `tune.lua.log.stderr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LuaLogStderr {
    /// Always.
    On,
    /// Only when no logger is there.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// `lua-load[-per-thread] FILE [ARG…]`.
#[derive(Clone, Debug)]
pub struct LuaLoad {
    /// The script; relative to the working directory, as HAProxy.
    pub path: PathBuf,
    /// Arguments, the script's `...`.
    pub args: Vec<String>,
    /// A state per worker instead of the shared one.
    pub per_thread: bool,
    /// Where it stands.
    pub at: Position,
}

/// `lua-prepend-path`.
#[derive(Clone, Debug)]
pub struct LuaPath {
    /// The pattern, e.g. `/usr/share/lua/5.1/?.lua`.
    pub pattern: String,
    /// `package.cpath` instead of `package.path`.
    pub cpath: bool,
}

/// `stats socket ADDRESS [mode M] [level L] [user U] [group G] [name N] …`.
#[derive(Clone, Debug)]
pub struct StatsSocket {
    /// Where it listens.
    pub address: BindAddress,
    /// `mode`, octal.
    pub mode: Option<u32>,
    /// `level`; operator by default.
    pub level: StatsLevel,
    /// `user` or `uid`, as written.
    pub user: Option<String>,
    /// `group` or `gid`, as written.
    pub group: Option<String>,
    /// Where it stands.
    pub at: Position,
}

/// Rights on the stats socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatsLevel {
    /// Reads non-sensitive data.
    User,
    /// Reads everything, changes what is harmless.
    #[default]
    Operator,
    /// Changes everything.
    Admin,
}

/// A `log` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTarget {
    /// Where lines go.
    pub to: LogAddress,
    /// `format`.
    pub format: LogWire,
    /// `len`, bytes of a line; 1024.
    pub max_len: usize,
    /// Syslog facility, 0–23.
    pub facility: u8,
    /// Least severe level that is sent, 0 (emerg) to 7 (debug); 7 by default.
    pub max_level: u8,
    /// More severe than this is sent as this; 0 by default.
    pub min_level: u8,
}

/// Destinations of `log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogAddress {
    /// `stdout` (descriptor 1).
    Stdout,
    /// `stderr` (descriptor 2).
    Stderr,
    /// `fd@N`.
    Fd(i32),
    /// A datagram socket by path; acts with the drop-in service.
    Unix(PathBuf),
    /// Syslog by UDP; acts with the drop-in service.
    Udp(String, u16),
}

/// `format` of a `log` line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogWire {
    /// `local`: priority and date, no host name. HAProxy's default for sockets.
    #[default]
    Local,
    /// `rfc3164`.
    Rfc3164,
    /// `rfc5424`.
    Rfc5424,
    /// `short`: `<level>message`.
    Short,
    /// `raw`: the message alone.
    Raw,
}

/// What a proxy section is.
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
}

/// A `frontend`, `backend` or `listen`, with its `defaults` folded in.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Its name.
    pub name: Arc<str>,
    /// Which section it is.
    pub kind: ProxyKind,
    /// `mode`.
    pub mode: Mode,
    /// `id N`, or the least free number from 2 on, as HAProxy does (`iid` of `show stat`).
    pub uid: u32,
    /// Where the section starts.
    pub at: Position,
    /// `disabled`.
    pub disabled: bool,
    /// Every `timeout`.
    pub timeouts: Timeouts,
    /// `option …` flags.
    pub options: ProxyOptions,
    /// `log` targets, `log global` already expanded.
    pub log: Vec<LogTarget>,
    /// Which line is logged.
    pub log_line: LogLine,
    /// `bind` lines (frontend side).
    pub binds: Vec<Bind>,
    /// `maxconn` of the frontend side.
    pub maxconn: Option<u32>,
    /// `acl` lines; [`Condition`]s refer to them by index.
    pub acls: Vec<Acl>,
    /// `tcp-request connection` (frontend side).
    pub tcp_request_connection: Vec<Rule>,
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
    /// `http-response`.
    pub http_response: Vec<Rule>,
    /// `use_backend` (frontend side), in order.
    pub use_backend: Vec<UseBackend>,
    /// `default_backend` (frontend side); a `listen` with none uses itself.
    pub default_backend: Option<ProxyId>,
    /// `server` lines (backend side).
    pub servers: Vec<Server>,
    /// `balance`.
    pub balance: Balance,
    /// `fullconn`: changes nothing while no server has `minconn`.
    pub fullconn: Option<u32>,
    /// `retries`; 3.
    pub retries: u32,
    /// `option redispatch [N]`: `None` off, `Some(-1)` the last retry (the default form), `Some(n)` every nth.
    pub redispatch: Option<i32>,
    /// `http-reuse`.
    pub http_reuse: HttpReuse,
}

/// Every `timeout` keyword; `None` means no limit.
#[derive(Clone, Debug, Default)]
pub struct Timeouts {
    /// `timeout client`.
    pub client: Option<Duration>,
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
    /// How connections end after a response.
    pub connection: ConnectionMode,
    /// `option dontlognull`.
    pub dontlognull: bool,
    /// `option abortonclose` (3.2: off by default).
    pub abortonclose: bool,
    /// `option http-ignore-probes`.
    pub http_ignore_probes: bool,
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
    /// Only where the request has none yet.
    pub if_none: bool,
}

/// Which log line a proxy writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLine {
    /// `Connect from …`.
    #[default]
    Default,
    /// `option httplog`.
    Http,
    /// `option tcplog`.
    Tcp,
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

/// `balance`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Weighted round robin, smooth.
    #[default]
    RoundRobin,
}

/// A `bind` line; ports of a range are expanded into several addresses.
#[derive(Clone, Debug)]
pub struct Bind {
    /// Where it listens, at least one.
    pub addresses: Vec<BindAddress>,
    /// `name`.
    pub name: Option<String>,
    /// `maxconn`.
    pub maxconn: Option<u32>,
    /// `backlog`.
    pub backlog: Option<u32>,
    /// `v6only`/`v4v6`.
    pub v6only: Option<bool>,
    /// `mode` of a unix socket, octal.
    pub mode: Option<u32>,
    /// `user`/`uid` of a unix socket.
    pub user: Option<String>,
    /// `group`/`gid` of a unix socket.
    pub group: Option<String>,
    /// Where it stands.
    pub at: Position,
}

/// An address that is listened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindAddress {
    /// An address and a port; `*` and an empty host are 0.0.0.0.
    Inet(IpAddr, u16),
    /// A unix socket's path.
    Unix(PathBuf),
    /// An abstract unix socket's name (`abns@`).
    Abstract(String),
    /// An inherited listening descriptor (`fd@N`).
    Fd(i32),
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
    /// An abstract unix socket's name.
    Abstract(String),
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
    /// Where it is.
    pub address: ServerAddress,
    /// `weight`, 0–256; 1.
    pub weight: u16,
    /// `maxconn`; `None` unlimited.
    pub maxconn: Option<u32>,
    /// `maxqueue`; `None` unlimited.
    pub maxqueue: Option<u32>,
    /// `backup`.
    pub backup: bool,
    /// `disabled`: starts in maintenance.
    pub disabled: bool,
    /// `cookie VALUE`: without the backend's `cookie` it changes nothing.
    pub cookie: Option<String>,
    /// `check` and what goes with it; `None` without `check`.
    pub check: Option<Check>,
    /// Where it stands.
    pub at: Position,
}

/// `check inter … rise … fall …`: a connection is tried.
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
}

/// `use_backend NAME|FORMAT [if …]`.
#[derive(Clone, Debug)]
pub struct UseBackend {
    /// Which.
    pub target: BackendName,
    /// When.
    pub condition: Option<Condition>,
    /// Where it stands.
    pub at: Position,
}

/// A backend by a name that is known, or computed per request.
#[derive(Clone, Debug)]
pub enum BackendName {
    /// Known.
    Static(ProxyId),
    /// A log-format; an unknown result falls through to the next rule.
    Dynamic(LogFormat),
}

/// A rule: an action and its condition.
#[derive(Clone, Debug)]
pub struct Rule {
    /// What it does.
    pub action: Action,
    /// When.
    pub condition: Option<Condition>,
    /// Where it stands.
    pub at: Position,
}

/// Actions of every rule set; which sets allow which is the catalogue's matter.
#[derive(Clone, Debug)]
pub enum Action {
    /// `accept` / `allow`: ends the rule set.
    Accept,
    /// `reject`: closes without an answer.
    Reject,
    /// `deny [deny_status N] [content-type T] [file|string|lf-file|lf-string …] [hdr N F]…`.
    Deny(Return),
    /// `return [status N] …`.
    Return(Return),
    /// `redirect location|prefix|scheme FORMAT [code N] [drop-query] [append-slash] [set-cookie C] [clear-cookie C]`.
    Redirect(Redirect),
    /// `set-header NAME FORMAT`.
    SetHeader(String, LogFormat),
    /// `add-header NAME FORMAT`.
    AddHeader(String, LogFormat),
    /// `del-header NAME`.
    DelHeader(String),
    /// `set-var(scope.name) EXPR`.
    SetVar(VarName, Expr),
    /// `set-var-fmt(scope.name) FORMAT`.
    SetVarFormat(VarName, LogFormat),
    /// `unset-var(scope.name)`.
    UnsetVar(VarName),
    /// `store-call STORE COMMAND FORMAT… [set-var(v)]`.
    StoreCall(StoreCall),
    /// `lua.NAME ARG…`.
    Lua(LuaAction),
}

/// `lua.NAME` in a rule.
#[derive(Clone, Debug)]
pub struct LuaAction {
    /// The name without `lua.`.
    pub name: Arc<str>,
    /// The arguments, as many as were registered.
    pub args: Vec<String>,
}

/// What `return` and `deny` answer.
#[derive(Clone, Debug)]
pub struct Return {
    /// The status; 200 for return, 403 for deny of a request, 502 of a response.
    pub status: u16,
    /// The body and what it is.
    pub body: ReturnBody,
    /// `hdr NAME FORMAT`.
    pub headers: Vec<(String, LogFormat)>,
    /// `content-type`; none with the built-in error page.
    pub content_type: Option<String>,
}

/// A local answer's body.
#[derive(Clone, Debug)]
pub enum ReturnBody {
    /// The built-in page of the status (`default-errorfiles`, and `deny` without more).
    ErrorPage,
    /// No body.
    Empty,
    /// `string` or `file`, read at start.
    Bytes(Arc<[u8]>),
    /// `lf-string` or `lf-file`.
    Format(LogFormat),
}

/// `redirect`.
#[derive(Clone, Debug)]
pub struct Redirect {
    /// Which form.
    pub kind: RedirectKind,
    /// The target.
    pub to: LogFormat,
    /// 301, 302, 303, 307 or 308.
    pub code: u16,
    /// `drop-query` (prefix only).
    pub drop_query: bool,
    /// `append-slash` (prefix with drop-query).
    pub append_slash: bool,
    /// `set-cookie` or `clear-cookie`: the whole value of the Set-Cookie header.
    pub set_cookie: Option<String>,
    /// `ignore-empty`.
    pub ignore_empty: bool,
}

/// Forms of `redirect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectKind {
    /// The whole location.
    Location,
    /// Put before the path.
    Prefix,
    /// Replaces the scheme; host and path stay.
    Scheme,
}

/// `store-call`.
#[derive(Clone, Debug)]
pub struct StoreCall {
    /// The store's or engine's name.
    pub store: Arc<str>,
    /// The command and its arguments.
    pub args: Vec<LogFormat>,
    /// Where the reply goes.
    pub set_var: Option<VarName>,
    /// `on-error`.
    pub on_error: OnError,
}

/// What a rule gets when the store fails; the reason is in `txn.store_err` each time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The request goes on.
    #[default]
    Open,
    /// The request is denied with 503 (TCP: closed).
    Closed,
    /// The variable gets this value.
    Value(String),
}

/// A variable's scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VarScope {
    /// `proc.`: the process.
    Proc,
    /// `sess.`: the client connection.
    Sess,
    /// `txn.`: one request and its response.
    Txn,
    /// `req.`: while the request is processed.
    Req,
    /// `res.`: while the response is processed.
    Res,
}

/// `scope.name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VarName {
    /// Scope.
    pub scope: VarScope,
    /// Name without the scope.
    pub name: Arc<str>,
}

/// An ACL: it holds if any of its tests does.
#[derive(Clone, Debug)]
pub struct Acl {
    /// Its name; empty for an anonymous one.
    pub name: Arc<str>,
    /// Lines of the same name, or-ed.
    pub tests: Vec<AclTest>,
    /// Where the first line stands.
    pub at: Position,
}

/// One `acl` line or anonymous `{ … }`.
#[derive(Clone, Debug)]
pub struct AclTest {
    /// What is fetched.
    pub expr: Expr,
    /// How it is compared.
    pub matcher: Matcher,
    /// `-i`.
    pub ignore_case: bool,
}

/// `-m METHOD` with its patterns, typed. A list holds if any of its patterns matches.
#[derive(Clone, Debug)]
pub enum Matcher {
    /// The sample exists.
    Found,
    /// It is true (an integer: not 0).
    Bool,
    /// Integer comparisons, ranges included; open ends are i64's.
    Int(Vec<(i64, i64)>),
    /// Length ranges.
    Len(Vec<(i64, i64)>),
    /// Networks.
    Ip(Vec<(IpAddr, u8)>),
    /// Exact strings; lower-cased already with `-i`.
    Str(Vec<Vec<u8>>),
    /// Prefixes.
    Beg(Vec<Vec<u8>>),
    /// Suffixes.
    End(Vec<Vec<u8>>),
    /// Substrings.
    Sub(Vec<Vec<u8>>),
    /// Whole path components between `/` (and `?`).
    Dir(Vec<Vec<u8>>),
    /// Whole domain components between `.` (and `/ ? :`).
    Dom(Vec<Vec<u8>>),
    /// Exact bytes, from hexadecimal.
    Bin(Vec<Vec<u8>>),
    /// Regular expressions; `-i` is compiled in.
    Reg(Vec<regex::bytes::Regex>),
}

/// `if`/`unless`: a disjunction of conjunctions.
#[derive(Clone, Debug)]
pub struct Condition {
    /// `unless`: the result is inverted.
    pub unless: bool,
    /// Or-ed groups of and-ed terms.
    pub any: Vec<Vec<Term>>,
}

/// One term of a condition.
#[derive(Clone, Debug)]
pub struct Term {
    /// `!`.
    pub negated: bool,
    /// What is tested.
    pub acl: AclRef,
}

/// The ACL of a term.
#[derive(Clone, Debug)]
pub enum AclRef {
    /// Declared in the section: an index into [`Proxy::acls`].
    Named(u32),
    /// `{ … }`, or one of HAProxy's predefined names (TRUE, FALSE, METH_GET, LOCALHOST…), which expand to it.
    Inline(Arc<Acl>),
}

/// A sample expression: a fetch and its converters.
#[derive(Clone, Debug)]
pub struct Expr {
    /// What is fetched.
    pub fetch: Fetch,
    /// The fetch's arguments, as many and of the types its catalogue row says.
    pub args: Vec<Arg>,
    /// Converters in order.
    pub converters: Vec<ConverterCall>,
    /// Where it stands.
    pub at: Position,
}

/// One converter of an expression.
#[derive(Clone, Debug)]
pub struct ConverterCall {
    /// Which.
    pub converter: Converter,
    /// Its arguments.
    pub args: Vec<Arg>,
}

/// A typed argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// Text.
    Str(Arc<str>),
    /// An integer.
    Int(i64),
    /// A variable.
    Var(VarName),
    /// A duration.
    Time(Duration),
    /// A store or engine, by name; it exists.
    Store(Arc<str>),
    /// An optional argument that was left out before a later one.
    Absent,
}

/// A log-format string: text, aliases such as `%ci`, and `%[expression]`s.
#[derive(Clone, Debug, Default)]
pub struct LogFormat {
    /// Its parts in order.
    pub parts: Vec<FormatPart>,
}

/// A part of a log-format.
#[derive(Clone, Debug)]
pub enum FormatPart {
    /// Literal text.
    Text(Vec<u8>),
    /// `%[…]`.
    Expr(Box<Expr>, FormatFlags),
    /// `%xx`.
    Alias(LogAlias, FormatFlags),
}

/// `%{+Q,+E,+X}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormatFlags {
    /// `+Q`.
    pub quote: bool,
    /// `+X`.
    pub hex: bool,
    /// `+E`.
    pub escape: bool,
}

/// Log-format aliases (HAProxy configuration manual 8.2.6), those of httplog and tcplog and their kin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each is named as in the manual
pub enum LogAlias {
    Ci,
    Cp,
    Fi,
    Fp,
    Bi,
    Bp,
    Si,
    Sp, // addresses and ports
    Tr,
    T,
    Ft,
    F,
    B,
    S, // %tr date, %t date, %ft, %f, %b backend, %s server
    TimerTR,
    TimerTw,
    TimerTc,
    TimerTr,
    TimerTa,
    TimerTt,
    TimerTh,
    TimerTi,
    TimerTq,
    TimerTd,
    TimerTu,
    Status,
    BytesRead,
    BytesUploaded,
    CaptureReqCookie,
    CaptureResCookie,
    Ts,
    Tsc,
    Ac,
    Fc,
    Bc,
    Sc,
    Rc,
    Sq,
    Bq,
    Hr,
    Hs,
    Request,
    HttpMethod,
    HttpPath,
    HttpQuery,
    HttpUri,
    HttpVersion,
    Pid,
    Rt,
    HostName,
}

/// A `store NAME` section.
#[derive(Clone, Debug)]
pub struct StoreSection {
    /// Its name.
    pub name: Arc<str>,
    /// `bind ADDRESS:PORT`: RESP for everyone else; empty without.
    pub binds: Vec<Bind>,
    /// Any CONFIG parameter, lower-cased, with its value and place; the store's own catalogue types them.
    pub parameters: Vec<(String, String, Position)>,
    /// Where it stands.
    pub at: Position,
}

/// A `redis NAME` section: read and kept as words until engines are supported.
#[derive(Clone, Debug)]
pub struct RedisSection {
    /// Its name.
    pub name: Arc<str>,
    /// Keyword lines as words.
    pub lines: Vec<(Vec<String>, Position)>,
    /// Where it stands.
    pub at: Position,
}

/// An `origin NAME` section: a demo server.
#[derive(Clone, Debug)]
pub struct OriginSection {
    /// Its name.
    pub name: Arc<str>,
    /// Where it listens.
    pub binds: Vec<Bind>,
    /// Where it stands.
    pub at: Position,
}
