//! Rules: actions, and the variables they set. Conditions and expressions are in `expression`.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Carrier, Condition, CounterChange, DoResolve, Edit, ErrorPage, Expr, LimitRule, LogFormat, LogLevel, Position,
    ProxyId, Track,
};

/// `use_backend NAME|FORMAT [if …]`.
#[derive(Clone, Debug)]
pub struct UseBackend {
    /// The backend.
    pub target: BackendName,
    /// Its condition.
    pub condition: Option<Condition>,
    /// Its position in the file.
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
    /// The action.
    pub action: Action,
    /// Its condition.
    pub condition: Option<Condition>,
    /// Its position in the file.
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
    /// `tarpit [deny_status N] …`: as deny, after `timeout tarpit`.
    Tarpit(Return),
    /// `capture EXPRESSION len N|id SLOT`.
    Capture {
        /// The captured sample.
        expr: Expr,
        /// The frontend's slot; a slot that does not exist captures nothing.
        slot: u32,
        /// A slot of responses.
        response: bool,
    },
    /// `set-log-level`.
    SetLogLevel(LogLevel),
    /// `do-log`.
    DoLog,
    /// `track-scN`.
    Track(Track),
    /// `sc-inc-gpc*`, `sc-add-gpc`, `sc-set-gpt*`.
    ChangeCounter(CounterChange),
    /// `close`: ends the connection to the server.
    CloseServer,
    /// `attach-srv BACKEND/SERVER [name EXPRESSION]`: the client is a server, which expects requests.
    AttachServer(Box<AttachServer>),
    /// `expect-netscaler-cip layer4`: a header of NetScaler's Client IP insertion protocol comes first.
    ExpectCip,
    /// `expect-proxy layer4`: a PROXY protocol header comes first.
    ExpectProxy,
    /// `disable-l7-retry`.
    DisableL7Retry,
    /// `switch-mode http [proto NAME]`.
    SwitchMode(Option<super::Proto>),
    /// `set-priority-class EXPRESSION`.
    SetPriorityClass(Expr),
    /// `set-priority-offset EXPRESSION`.
    SetPriorityOffset(Expr),
    /// `redirect location|prefix|scheme FORMAT [code N] [drop-query] [append-slash] [set-cookie C] [clear-cookie C]`.
    Redirect(Redirect),
    /// `set-header NAME FORMAT`.
    SetHeader(String, LogFormat),
    /// `add-header NAME FORMAT`.
    AddHeader(String, LogFormat),
    /// `del-header NAME`.
    DelHeader(String),
    /// Other changes of a head.
    Edit(Edit),
    /// Changes of connections, addresses, timeouts.
    Carrier(Carrier),
    /// `auth [realm R]`; the proxy's name without a realm.
    Auth(String),
    /// `early-hint NAME FORMAT`.
    EarlyHint(String, LogFormat),
    /// `strict-mode on|off`.
    StrictMode(bool),
    /// Accepted for compatibility, without effect.
    Nothing,
    /// `do-resolve(scope.name,SECTION[,ipv4|ipv6]) EXPR`.
    DoResolve(DoResolve, Expr),
    /// `set-var(scope.name) EXPR`.
    SetVar(VarTarget, Expr),
    /// `set-var-fmt(scope.name) FORMAT`.
    SetVarFormat(VarTarget, LogFormat),
    /// `unset-var(scope.name)`.
    UnsetVar(VarName),
    /// `set-map`, `del-map`, `add-acl`, `del-acl`.
    EditPatterns(EditPatterns),
    /// `store-call STORE COMMAND FORMAT… [set-var(v)]`.
    StoreCall(StoreCall),
    /// `limit NAME key EXPRESSION …`.
    Limit(Box<LimitRule>),
    /// `cache-use NAME`.
    CacheUse(super::CacheRule),
    /// `cache-store NAME`.
    CacheStore(super::CacheRule),
    /// `set-bandwidth-limit NAME …`.
    SetBandwidthLimit(Box<super::SetBandwidthLimit>),
    /// `send-spoe-group ENGINE GROUP`.
    SendSpoeGroup(Box<super::SendSpoeGroup>),
    /// `wait-for-body time T [at-least N]`.
    WaitForBody(BodyWait),
    /// `lua.NAME ARG…`.
    Lua(LuaAction),
    /// `use-service lua.NAME`: the name without `lua.`.
    UseService(Arc<str>),
    /// `use-service prometheus-exporter`.
    Exporter,
}

/// `attach-srv`: the connection of a client becomes an idle connection to a server.
#[derive(Clone, Debug)]
pub struct AttachServer {
    /// `BACKEND/SERVER`.
    pub server: Arc<str>,
    /// `name`: the name that the connection has in the server's pool.
    pub name: Option<Expr>,
    /// The position of the server's name.
    pub at: Position,
}

/// The limits of waiting for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyWait {
    /// The maximum time.
    pub time: Duration,
    /// The number of bytes that is enough; 0: the whole body.
    pub at_least: u64,
}

/// A rule that changes a map or ACL file in memory.
#[derive(Clone, Debug)]
pub struct EditPatterns {
    /// The file's name as used by its look-ups.
    pub file: Arc<str>,
    /// The change.
    pub edit: PatternEdit,
    /// The key or pattern.
    pub key: LogFormat,
    /// The value, for [`PatternEdit::Set`].
    pub value: Option<LogFormat>,
}

/// The change of a map or ACL file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternEdit {
    /// `set-map`: the key's value is replaced, or the key added.
    Set,
    /// `add-acl`: adds the pattern unless it exists.
    Add,
    /// `del-map`, `del-acl`: removes every entry with this key.
    Remove,
}

/// `lua.NAME` in a rule.
#[derive(Clone, Debug)]
pub struct LuaAction {
    /// The name without `lua.`.
    pub name: Arc<str>,
    /// The arguments, as many as were registered.
    pub args: Vec<String>,
}

/// The response of `return` and `deny`.
#[derive(Clone, Debug)]
pub struct Return {
    /// The status; 200 for return, 403 for deny of a request, 502 of a response.
    pub status: u16,
    /// The body and its kind.
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
    /// A whole response of a file (`errorfile`, `errorfiles`); status, fields and type are its own.
    ErrorFile(Arc<ErrorPage>),
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
    /// Its form.
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
    /// `set-cookie-fmt`: the same as a log-format.
    pub cookie_format: Option<LogFormat>,
    /// `keep-query` (location only).
    pub keep_query: bool,
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
    /// The variable that receives the reply.
    pub set_var: Option<VarName>,
    /// `on-error`.
    pub on_error: OnError,
}

/// The result of a rule when the store fails; the reason is always in `txn.store_err`.
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
    /// `check.`: one health check.
    Check,
    /// `psess.`, `ptxn.`, `preq.` and `pres.`: a scope of the parent stream, of which messages to an agent are part.
    Parent(ParentScope),
}

/// A scope of a parent stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParentScope {
    /// `psess.`
    Sess,
    /// `ptxn.`
    Txn,
    /// `preq.`
    Req,
    /// `pres.`
    Res,
}

impl VarScope {
    /// The scopes by the words that names begin with.
    const ALL: [(&'static str, VarScope); 10] = [
        ("proc", VarScope::Proc),
        ("sess", VarScope::Sess),
        ("txn", VarScope::Txn),
        ("req", VarScope::Req),
        ("res", VarScope::Res),
        ("check", VarScope::Check),
        ("psess", VarScope::Parent(ParentScope::Sess)),
        ("ptxn", VarScope::Parent(ParentScope::Txn)),
        ("preq", VarScope::Parent(ParentScope::Req)),
        ("pres", VarScope::Parent(ParentScope::Res)),
    ];

    /// Returns the scope of the word that a name begins with.
    pub fn named(word: &str) -> Option<VarScope> {
        VarScope::ALL.iter().find_map(|(known, scope)| (*known == word).then_some(*scope))
    }
}

/// `scope.name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VarName {
    /// Scope.
    pub scope: VarScope,
    /// Name without the scope.
    pub name: Arc<str>,
}

/// A variable that is set where all conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VarTarget {
    /// The variable.
    pub name: VarName,
    /// The conditions.
    pub conditions: Vec<VarCondition>,
}

/// A condition for setting a variable (`set-var(NAME,CONDITION…)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VarCondition {
    /// It exists: it has been set, or it is a `proc.` variable; these always exist.
    Exists(bool),
    /// The new value is an empty text.
    Empty(bool),
    /// It has a value.
    Set(bool),
    /// Its integer is above the new value; other types are not compared.
    Greater,
    /// Its integer is below the new value.
    Less,
}

impl VarCondition {
    const ALL: [(&'static str, VarCondition); 8] = [
        ("ifexists", VarCondition::Exists(true)),
        ("ifnotexists", VarCondition::Exists(false)),
        ("ifempty", VarCondition::Empty(true)),
        ("ifnotempty", VarCondition::Empty(false)),
        ("ifset", VarCondition::Set(true)),
        ("ifnotset", VarCondition::Set(false)),
        ("ifgt", VarCondition::Greater),
        ("iflt", VarCondition::Less),
    ];

    /// Returns the condition of a name.
    pub fn named(name: &str) -> Option<VarCondition> {
        VarCondition::ALL.iter().find(|(known, _)| *known == name).map(|(_, condition)| *condition)
    }

    /// Returns the names of all conditions.
    pub fn names() -> impl Iterator<Item = &'static str> {
        VarCondition::ALL.iter().map(|(name, _)| *name)
    }
}
