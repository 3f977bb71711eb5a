//! Health checks: requests to a server, expected responses, and the consequences (configuration manual 4.2 and 5.2).
//!
//! Every `option …chk` is translated into one [`CheckSequence`] of typed steps. Its first step is always a connection.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_pattern::Regex;

use super::{Expr, LogFormat, Position, ProxyId, VarName, VarTarget};

/// Check settings of a proxy's servers.
#[derive(Clone, Debug, Default)]
pub struct ProxyHealth {
    /// The steps of a check; `None`: it only connects.
    pub sequence: Option<Arc<CheckSequence>>,
    /// `option log-health-checks`.
    pub log_checks: bool,
    /// `http-check disable-on-404`.
    pub disable_on_404: bool,
    /// `http-check send-state`.
    pub send_state: bool,
    /// `option external-check`: a program checks the servers.
    pub external: Option<ExternalCheck>,
    /// `external-check command`.
    pub external_command: Option<String>,
    /// `external-check path`.
    pub external_path: Option<String>,
}

/// A program that checks servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalCheck {
    /// Its path, or its name in one of the places of `path`.
    pub command: String,
    /// The places in which programs are searched for, separated by `:`; its `PATH`.
    pub path: Option<String>,
    /// `external-check preserve-env` of `global`: it gets the environment of this process, too.
    pub keeps_environment: bool,
}

impl ProxyHealth {
    /// Returns whether a step connects with TLS whatever the server's line says.
    pub fn connects_with_tls(&self) -> bool {
        let mut steps = self.sequence.iter().flat_map(|sequence| &sequence.steps);
        steps.any(|step| matches!(&step.kind, CheckStepKind::Connect(connect) if connect.tls.enabled))
    }

    /// Returns the text that says which port is missing for a server without ports, unless the steps have all.
    pub(crate) fn missing_port(&self) -> Option<&'static str> {
        let sequence = self.sequence.as_ref();
        let steps = sequence.map_or(&[][..], |sequence| &sequence.steps);
        let connections = || {
            steps.iter().filter_map(|step| match &step.kind {
                CheckStepKind::Connect(connect) => Some(connect),
                _ => None,
            })
        };
        // A computed port may turn out to be none.
        let has_port = |connect: &CheckConnect| {
            matches!(connect.port, Some(CheckPort::Fixed(_))) || connect.addr.is_some_and(|(_, port)| port != 0)
        };
        // The connection without which a sequence has no step is added once ports are checked.
        let is_empty = |first: &CheckConnect| first.implicit && steps.len() == 1;
        let Some(first) = connections().next().filter(|first| !is_empty(first)) else {
            return Some("has neither service port nor check port");
        };
        if !has_port(first) {
            return Some("has neither service port nor check port nor tcp_check rule 'connect' with port information");
        }
        (!connections().all(has_port)).then_some(
            "has neither service port nor check port, and a tcp_check rule 'connect' with no port information",
        )
    }
}

/// The steps of a check.
#[derive(Clone, Debug)]
pub struct CheckSequence {
    /// The protocol of answers, which also determines the wording of failures.
    pub protocol: CheckProtocol,
    /// Its steps; the first is a [`CheckStepKind::Connect`], unless variables are set before.
    pub steps: Vec<CheckStep>,
}

impl CheckSequence {
    /// Returns whether its steps are requests of HTTP.
    pub fn is_http(&self) -> bool {
        self.protocol == CheckProtocol::Http
    }

    /// Returns whether it exchanges hellos with an agent.
    pub(crate) fn is_spop(&self) -> bool {
        self.steps.iter().any(|step| match &step.kind {
            CheckStepKind::Expect(expect) => matches!(expect.what, Expected::SpopHello),
            _ => false,
        })
    }
}

/// The protocol of a sequence's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckProtocol {
    /// `option tcp-check`: bytes.
    Tcp,
    /// `option httpchk`: HTTP/1 responses.
    Http,
    /// Bytes of a protocol that has an option of its own.
    Fixed,
}

/// A step.
#[derive(Clone, Debug)]
pub struct CheckStep {
    /// Its number among the section's lines, from 1; 0 for an implicit connection.
    pub number: u32,
    /// Its description in failure messages.
    pub comment: Option<Arc<str>>,
    /// Its operation.
    pub kind: CheckStepKind,
}

/// The operation of a step.
#[derive(Clone, Debug)]
pub enum CheckStepKind {
    /// Opens a new connection and closes the previous one.
    Connect(CheckConnect),
    /// Sends bytes.
    Send(CheckBytes),
    /// Sends a request.
    Request(Box<CheckRequest>),
    /// Expects an answer.
    Expect(Box<CheckExpect>),
    /// `set-var`.
    SetVar(VarTarget, Expr),
    /// `set-var-fmt`.
    SetVarFormat(VarTarget, LogFormat),
    /// `unset-var`.
    UnsetVar(VarName),
}

/// `connect`.
#[derive(Clone, Debug, Default)]
pub struct CheckConnect {
    /// Whether no line requests it.
    pub implicit: bool,
    /// Behaves like a check without steps: the server's `check-send-proxy` applies.
    pub default: bool,
    /// `port`.
    pub port: Option<CheckPort>,
    /// `addr`, and the port given with it.
    pub addr: Option<(IpAddr, u16)>,
    /// `send-proxy`.
    pub send_proxy: bool,
    /// `linger`: the connection is closed with FIN instead of a reset.
    pub linger: bool,
    /// `via-socks4`: through the proxy of the server's `socks4`.
    pub via_socks4: bool,
    /// `ssl`, `sni`, `alpn` and `proto`.
    pub tls: super::CheckTls,
}

/// The port of a step's connection.
#[derive(Clone, Debug)]
pub enum CheckPort {
    /// A fixed port.
    Fixed(u16),
    /// The value of an expression.
    Computed(Box<Expr>),
}

/// Bytes to send or to search for.
#[derive(Clone, Debug)]
pub enum CheckBytes {
    /// Fixed bytes.
    Plain(Vec<u8>),
    /// The text of a log-format.
    Format(LogFormat),
    /// The bytes given by a log-format in hexadecimal.
    HexFormat(LogFormat),
}

/// `http-check send`.
#[derive(Clone, Debug)]
pub struct CheckRequest {
    /// `meth`.
    pub method: Arc<str>,
    /// `uri`, `uri-lf`.
    pub uri: CheckBytes,
    /// `ver`.
    pub version: Arc<str>,
    /// `hdr`, in order.
    pub headers: Vec<(Arc<str>, LogFormat)>,
    /// `body`, `body-lf`.
    pub body: Option<CheckBytes>,
}

/// `expect`.
#[derive(Clone, Debug)]
pub struct CheckExpect {
    /// The expected answer.
    pub what: Expected,
    /// `!`.
    pub negated: bool,
    /// `min-recv`: a mismatch is final once this many bytes were received; `None`: only at the end.
    pub min_recv: Option<u32>,
    /// `ok-status`.
    pub ok_status: Option<CheckStatus>,
    /// `error-status`.
    pub error_status: Option<CheckStatus>,
    /// `tout-status`.
    pub timeout_status: Option<CheckStatus>,
    /// `on-success`.
    pub on_success: Option<LogFormat>,
    /// `on-error`.
    pub on_error: Option<LogFormat>,
    /// `status-code`.
    pub status_code: Option<Expr>,
}

impl CheckExpect {
    /// Returns an expectation without any modifier.
    pub fn new(what: Expected) -> CheckExpect {
        CheckExpect {
            what,
            negated: false,
            min_recv: None,
            ok_status: None,
            error_status: None,
            timeout_status: None,
            on_success: None,
            on_error: None,
            status_code: None,
        }
    }
}

/// The expectation of a step.
#[derive(Clone, Debug)]
pub enum Expected {
    /// `string`, `string-lf`: this is in the received bytes, or in the body.
    String(CheckBytes),
    /// `rstring`.
    Regex(Regex),
    /// `binary`, `binary-lf`.
    Binary(CheckBytes),
    /// `rbinary`: matches the received bytes in hexadecimal.
    BinaryRegex(Regex),
    /// `status`: any of these ranges.
    Status(Vec<(u16, u16)>),
    /// `rstatus`.
    StatusRegex(Regex),
    /// `hdr`, `fhdr`.
    Header(Box<ExpectedHeader>),
    /// A MySQL packet that is not an error.
    MysqlPacket,
    /// The answer of an LDAP server to an anonymous bind.
    LdapBind,
    /// The hello of an agent (SPOP).
    SpopHello,
}

/// `hdr`, `fhdr`.
#[derive(Clone, Debug)]
pub struct ExpectedHeader {
    /// `fhdr`: the whole field, commas included.
    pub full: bool,
    /// Its name.
    pub name: ExpectedText,
    /// Its value; `None`: any.
    pub value: Option<ExpectedText>,
}

/// The comparison of a name or value.
#[derive(Clone, Debug)]
pub enum ExpectedText {
    /// `-m str`.
    Exact(CheckBytes),
    /// `-m beg`.
    Prefix(CheckBytes),
    /// `-m end`.
    Suffix(CheckBytes),
    /// `-m sub`.
    Substring(CheckBytes),
    /// `-m reg`.
    Regex(Regex),
}

/// The result of a check, with HAProxy's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckStatus {
    /// An agent's answer without an effect.
    Checked = 3,
    /// Too many failures were observed in traffic.
    Hana = 4,
    /// The socket could not be created, or the connection broke.
    SockErr = 5,
    /// Connected.
    L4Ok = 6,
    /// No connection within the timeout.
    L4Tout = 7,
    /// Refused, unreachable, reset.
    L4Con = 8,
    /// The TLS layer is established.
    L6Ok = 9,
    /// The TLS layer was not established within the timeout.
    L6Tout = 10,
    /// The TLS layer failed in another way.
    L6Rsp = 11,
    /// No complete answer within the timeout.
    L7Tout = 12,
    /// An invalid answer.
    L7Rsp = 13,
    /// A good answer.
    L7Ok = 15,
    /// A good answer that asks for no new traffic.
    L7OkCond = 16,
    /// A negative answer.
    L7Sts = 17,
    /// The program of a check has failed.
    ProcErr = 18,
    /// The program of a check has not ended within the timeout.
    ProcTout = 19,
    /// The program of a check has succeeded.
    ProcOk = 20,
}

/// The effect of a status on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// Nothing.
    Neutral = 1,
    /// A failure.
    Failed = 2,
    /// A success.
    Passed = 3,
    /// A success that asks for no new traffic.
    Conditional = 4,
}

impl CheckStatus {
    /// Every status.
    pub const ALL: [CheckStatus; 17] = [
        CheckStatus::Checked,
        CheckStatus::Hana,
        CheckStatus::SockErr,
        CheckStatus::L4Ok,
        CheckStatus::L4Tout,
        CheckStatus::L4Con,
        CheckStatus::L6Ok,
        CheckStatus::L6Tout,
        CheckStatus::L6Rsp,
        CheckStatus::L7Tout,
        CheckStatus::L7Rsp,
        CheckStatus::L7Ok,
        CheckStatus::L7OkCond,
        CheckStatus::L7Sts,
        CheckStatus::ProcErr,
        CheckStatus::ProcTout,
        CheckStatus::ProcOk,
    ];

    /// Returns the name in `show stat`'s `check_status`.
    pub fn name(self) -> &'static str {
        match self {
            CheckStatus::Checked => "CHECKED",
            CheckStatus::Hana => "HANA",
            CheckStatus::SockErr => "SOCKERR",
            CheckStatus::L4Ok => "L4OK",
            CheckStatus::L4Tout => "L4TOUT",
            CheckStatus::L4Con => "L4CON",
            CheckStatus::L6Ok => "L6OK",
            CheckStatus::L6Tout => "L6TOUT",
            CheckStatus::L6Rsp => "L6RSP",
            CheckStatus::L7Tout => "L7TOUT",
            CheckStatus::L7Rsp => "L7RSP",
            CheckStatus::L7Ok => "L7OK",
            CheckStatus::L7OkCond => "L7OKC",
            CheckStatus::L7Sts => "L7STS",
            CheckStatus::ProcErr => "PROCERR",
            CheckStatus::ProcTout => "PROCTOUT",
            CheckStatus::ProcOk => "PROCOK",
        }
    }

    /// Returns the description in logs and `check_desc`.
    pub fn description(self) -> &'static str {
        match self {
            CheckStatus::Checked => "No status change",
            CheckStatus::Hana => "Health analyze",
            CheckStatus::SockErr => "Socket error",
            CheckStatus::L4Ok => "Layer4 check passed",
            CheckStatus::L4Tout => "Layer4 timeout",
            CheckStatus::L4Con => "Layer4 connection problem",
            CheckStatus::L6Ok => "Layer6 check passed",
            CheckStatus::L6Tout => "Layer6 timeout",
            CheckStatus::L6Rsp => "Layer6 invalid response",
            CheckStatus::L7Tout => "Layer7 timeout",
            CheckStatus::L7Rsp => "Layer7 invalid response",
            CheckStatus::L7Ok => "Layer7 check passed",
            CheckStatus::L7OkCond => "Layer7 check conditionally passed",
            CheckStatus::L7Sts => "Layer7 wrong status",
            CheckStatus::ProcErr => "External check error",
            CheckStatus::ProcTout => "External check timeout",
            CheckStatus::ProcOk => "External check passed",
        }
    }

    /// Returns its effect on the server.
    pub fn result(self) -> CheckResult {
        match self {
            CheckStatus::Checked => CheckResult::Neutral,
            CheckStatus::L4Ok | CheckStatus::L6Ok | CheckStatus::L7Ok | CheckStatus::ProcOk => CheckResult::Passed,
            CheckStatus::L7OkCond => CheckResult::Conditional,
            _ => CheckResult::Failed,
        }
    }

    /// Returns whether an answer was understood, so that it has a code.
    pub fn has_code(self) -> bool {
        self >= CheckStatus::L7Ok
    }
}

/// Health settings of a `server` line other than `check`.
#[derive(Clone, Debug, Default)]
pub struct ServerHealth {
    /// `agent-check`.
    pub agent: Option<Agent>,
    /// `observe`.
    pub observe: Option<Observe>,
    /// `on-marked-down shutdown-sessions`.
    pub shut_sessions_when_down: bool,
    /// `on-marked-up shutdown-backup-sessions`.
    pub shut_backups_when_up: bool,
    /// `track`.
    pub track: Option<TrackedServer>,
    /// `init-state`.
    pub initial: InitialState,
    /// The levels of a server without `check`, as `show servers state` prints them.
    pub unchecked: UncheckedLevels,
}

/// The health that `show servers state` prints for a server without `check`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UncheckedLevels {
    /// `rise` of the server, and the level at the start.
    pub rise: u32,
    /// The highest level, which `set server … health up` sets.
    pub top: u32,
}

/// `init-state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InitialState {
    /// Up, one failure from down.
    #[default]
    Up,
    /// Up, `fall` failures from down.
    FullyUp,
    /// Down, one success from up.
    Down,
    /// Down, `rise` successes from up.
    FullyDown,
}

/// `track`: this server copies another server's state.
#[derive(Clone, Debug)]
pub struct TrackedServer {
    /// The word of the line.
    pub word: Arc<str>,
    /// The tracked server's proxy and index in it, once the whole file has been read.
    pub target: Option<(ProxyId, usize)>,
    /// Its position in the file.
    pub at: Position,
}

/// `agent-check` and related options.
#[derive(Clone, Debug)]
pub struct Agent {
    /// `agent-inter`; `inter` by default.
    pub inter: Duration,
    /// `agent-port`.
    pub port: u16,
    /// `agent-addr`; the server's by default.
    pub addr: Option<IpAddr>,
    /// `agent-send`.
    pub send: Vec<u8>,
}

/// `observe` and related options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observe {
    /// `layer7`; else `layer4`.
    pub layer7: bool,
    /// `on-error`.
    pub on_error: OnObserved,
    /// `error-limit`.
    pub limit: u32,
}

/// `on-error` of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnObserved {
    /// Schedules the next check after `fastinter`; all others do this, too.
    FastInter,
    /// A failed check.
    #[default]
    FailCheck,
    /// A failed check, after which the next failure marks the server down.
    SuddenDeath,
    /// Marks the server down immediately.
    MarkDown,
}
