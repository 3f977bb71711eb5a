//! SPOE: agents that process messages about streams (HAProxy's SPOE.txt, section 2).

use std::sync::Arc;
use std::time::Duration;

use super::{Condition, Expr, Filter, LogTarget, Position, Proxy, ProxyId};

/// `filter spoe`: an engine, which sends messages about streams to agents.
#[derive(Clone, Debug)]
pub struct SpoeFilter {
    /// The name by which rules refer to it.
    pub engine: Arc<str>,
    /// The `spoe-agent` section.
    pub agent: SpoeAgent,
    /// The messages that events send, in the order of the agent's `messages`.
    pub messages: Vec<(SpoeEvent, Arc<SpoeMessage>)>,
    /// The messages that rules send.
    pub groups: Vec<SpoeGroup>,
}

/// A `spoe-agent` section.
#[derive(Clone, Debug)]
pub struct SpoeAgent {
    /// Its name.
    pub name: Arc<str>,
    /// `use-backend`: the backend whose servers are the agents.
    pub backend: ProxyId,
    /// `option var-prefix`: the beginning of the names of all variables.
    pub prefix: Box<str>,
    /// `option set-on-error`: the variable of the status of a failure.
    pub on_error: Option<Box<str>>,
    /// `option set-process-time`: the variable of the time that the last event or group took, in ms.
    pub process_time: Option<Box<str>>,
    /// `option set-total-time`: the variable of the time that all of a stream's have taken, in ms.
    pub total_time: Option<Box<str>>,
    /// `register-var-names`: variables of the process that agents may set.
    pub registered: Vec<Box<str>>,
    /// `option force-set-var`: agents may set any variable of the process.
    pub sets_any: bool,
    /// `option continue-on-error`: a failure does not end the processing of the stream.
    pub continues: bool,
    /// `no option pipelining` clears it: a connection then has one frame at a time.
    pub pipelining: bool,
    /// `option dontlog-normal`: only failures are logged.
    pub logs_failures_only: bool,
    /// `log`.
    pub log: Vec<LogTarget>,
    /// `log global`.
    pub log_global: bool,
    /// `timeout processing`.
    pub processing: Option<Duration>,
    /// `max-frame-size`: the maximum length of frames in bytes.
    pub max_frame_size: u32,
}

/// A `spoe-message` section.
#[derive(Clone, Debug)]
pub struct SpoeMessage {
    /// Its name.
    pub name: Box<str>,
    /// Its arguments with their names, which may be empty.
    pub args: Vec<(Box<str>, Expr)>,
    /// The condition of `event`.
    pub condition: Option<Condition>,
    /// Its position.
    pub at: Position,
}

/// A `spoe-group` section.
#[derive(Clone, Debug)]
pub struct SpoeGroup {
    /// Its name.
    pub name: Box<str>,
    /// Its messages.
    pub messages: Vec<Arc<SpoeMessage>>,
}

/// An event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpoeEvent {
    /// `on-client-session`: the stream begins.
    ClientSession,
    /// `on-frontend-tcp-request`: before the frontend's content rules.
    FrontendTcpRequest,
    /// `on-backend-tcp-request`: before the backend's content rules.
    BackendTcpRequest,
    /// `on-frontend-http-request`: before the frontend's rules of requests.
    FrontendHttpRequest,
    /// `on-backend-http-request`: before the backend's rules of requests.
    BackendHttpRequest,
    /// `on-server-session`: the server is connected.
    ServerSession,
    /// `on-tcp-response`: before content rules of responses.
    TcpResponse,
    /// `on-http-response`: before rules of responses.
    HttpResponse,
}

impl SpoeEvent {
    /// All events.
    pub const ALL: [SpoeEvent; 8] = [
        SpoeEvent::ClientSession,
        SpoeEvent::FrontendTcpRequest,
        SpoeEvent::BackendTcpRequest,
        SpoeEvent::FrontendHttpRequest,
        SpoeEvent::BackendHttpRequest,
        SpoeEvent::ServerSession,
        SpoeEvent::TcpResponse,
        SpoeEvent::HttpResponse,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            SpoeEvent::ClientSession => "on-client-session",
            SpoeEvent::FrontendTcpRequest => "on-frontend-tcp-request",
            SpoeEvent::BackendTcpRequest => "on-backend-tcp-request",
            SpoeEvent::FrontendHttpRequest => "on-frontend-http-request",
            SpoeEvent::BackendHttpRequest => "on-backend-http-request",
            SpoeEvent::ServerSession => "on-server-session",
            SpoeEvent::TcpResponse => "on-tcp-response",
            SpoeEvent::HttpResponse => "on-http-response",
        }
    }
}

/// `send-spoe-group ENGINE GROUP`.
#[derive(Clone, Debug)]
pub struct SendSpoeGroup {
    /// The engine.
    pub engine: Arc<str>,
    /// The group.
    pub group: Arc<str>,
    /// The position of the engine's name.
    pub at: Position,
}

impl Proxy {
    /// Returns the targets of its log lines, and those of its agents and its application.
    pub fn log_targets(&self) -> impl Iterator<Item = &LogTarget> {
        let agents = self.filters.iter().flat_map(|filter| match filter {
            Filter::Spoe(filter) => filter.agent.log.as_slice(),
            Filter::Fcgi(app) => app.log.as_slice(),
            _ => &[],
        });
        self.log.iter().chain(agents)
    }

    /// Returns its own `log` lines and those of each of its agents and its application, with the names of their sections.
    pub(crate) fn log_lists(&mut self) -> impl Iterator<Item = (String, &mut Vec<LogTarget>)> {
        let kind = if self.log_forward.is_some() { "log-forward" } else { "proxy" };
        let own = (format!("{kind} section '{}'", self.name), &mut self.log);
        let agents = self.filters.iter_mut().filter_map(|filter| match filter {
            Filter::Spoe(filter) => {
                let agent = &mut Arc::make_mut(filter).agent;
                Some((format!("SPOE agent section '{}'", agent.name), &mut agent.log))
            }
            Filter::Fcgi(app) => {
                let app = Arc::make_mut(app);
                Some((format!("fcgi-app section '{}'", app.name), &mut app.log))
            }
            _ => None,
        });
        std::iter::once(own).chain(agents)
    }
}
