//! SPOE: the messages of events and of `send-spoe-group`, and the actions of agents' answers.
//!
//! An event, and each rule that sends a group, is a list of operations: the conditions of messages, their arguments,
//! each written behind the expression that yields it, and one operation that sends the messages and waits for the
//! answer. Its actions set variables; a failure sets the variable of `set-on-error` and, unless the agent has
//! `continue-on-error`, ends the engine's work on the stream.
//!
//! **Limits.** The messages of an exchange fit into a frame. Agents can invent at most [`INVENTED_MAX`] names of
//! variables.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sluicegate_config::model::{
    Filter, LogTarget, SendSpoeGroup, SpoeAgent, SpoeEvent, SpoeFilter, SpoeMessage, VarName, VarScope,
};
use sluicegate_transport::clock;
use sluicegate_wire::spop::{self, Actions, Data, Scope};

use super::action::{Act, ActionCode, Compiled, Done, Run};
use super::build::Builder;
use super::code::Op;
use super::variable::variable;
use super::{Hook, RuleList};
use crate::log::{Logger, Severity};
use crate::sample::{Sample, VarRef, new_uuid};
use crate::spoe::{Answer, Engine, Exchange};
use crate::stream::StreamContext;

/// The room that HAProxy leaves in a frame for its head and type.
const HEAD_ROOM: usize = 33;

/// The number of names of variables that agents may add to those that rules and scripts use.
const INVENTED_MAX: usize = 4_096;

/// The length from which on HAProxy does not set a variable: that of its scope, its prefix and its name.
const NAME_MAX: usize = 64;

/// Statuses of failures that are not a connection's.
mod status {
    pub(super) const TIMEOUT: u64 = 1;
    pub(super) const TOO_BIG: u64 = 3;
    pub(super) const INTERRUPTED: u64 = 4;
}

/// An engine of a proxy.
pub(super) struct SpoeEngine {
    filter: Arc<SpoeFilter>,
    engine: Arc<Engine>,
    on_error: Option<VarRef>,
    process_time: Option<VarRef>,
    total_time: Option<VarRef>,
    processed: AtomicU64,
    failed: AtomicU64,
    logger: Logger,
    targets: Arc<[LogTarget]>,
}

/// The lists of a proxy's events.
#[derive(Debug, Default)]
pub(super) struct EventLists([RuleList; SpoeEvent::ALL.len()]);

impl EventLists {
    /// Makes the list of each event.
    pub(super) fn new(mut list: impl FnMut(SpoeEvent) -> RuleList) -> EventLists {
        EventLists(SpoeEvent::ALL.map(&mut list))
    }

    /// Returns the list of an event.
    pub(super) fn of(&self, event: SpoeEvent) -> &RuleList {
        &self.0[event as usize]
    }
}

/// Returns the rule set whose rules run like an event's messages.
pub(super) fn hook(event: SpoeEvent) -> Hook {
    match event {
        SpoeEvent::ClientSession | SpoeEvent::FrontendTcpRequest | SpoeEvent::BackendTcpRequest => {
            Hook::TcpRequestContent
        }
        SpoeEvent::FrontendHttpRequest | SpoeEvent::BackendHttpRequest => Hook::HttpRequest,
        SpoeEvent::ServerSession | SpoeEvent::TcpResponse => Hook::TcpResponseContent,
        SpoeEvent::HttpResponse => Hook::HttpResponse,
    }
}

/// Returns the engines of a proxy's filters.
pub(super) fn engines(filters: &[Filter], logger: &Logger) -> Result<Vec<Arc<SpoeEngine>>, String> {
    let spoe = filters.iter().filter_map(|filter| if let Filter::Spoe(filter) = filter { Some(filter) } else { None });
    spoe.map(|filter| SpoeEngine::new(filter, logger).map(Arc::new)).collect()
}

impl SpoeEngine {
    fn new(filter: &Arc<SpoeFilter>, logger: &Logger) -> Result<SpoeEngine, String> {
        let agent = &filter.agent;
        let named = |scope, name: &str| variable(&VarName { scope, name: format!("{}.{name}", agent.prefix).into() });
        for name in &agent.registered {
            named(VarScope::Proc, name)?;
        }
        let of_txn = |name: &Option<Box<str>>| name.as_ref().map(|name| named(VarScope::Txn, name)).transpose();
        Ok(SpoeEngine {
            engine: Arc::new(Engine {
                id: String::from_utf8_lossy(&new_uuid(4)).into(),
                backend: agent.backend,
                max_frame_size: agent.max_frame_size,
                pipelining: agent.pipelining,
            }),
            on_error: of_txn(&agent.on_error)?,
            process_time: of_txn(&agent.process_time)?,
            total_time: of_txn(&agent.total_time)?,
            processed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            logger: logger.clone(),
            targets: agent.log.as_slice().into(),
            filter: filter.clone(),
        })
    }

    fn agent(&self) -> &SpoeAgent {
        &self.filter.agent
    }

    /// Sets the variables that follow from an answer, counts the exchange and logs it.
    fn finish(&self, began: Instant, answer: &Answer, origin: &str, cx: &mut StreamContext) {
        if let Ok(payload) = answer {
            self.apply(payload, cx);
        }
        let time = i64::try_from(clock::now().duration_since(began).as_millis()).unwrap_or(i64::MAX);
        let processed = self.processed.fetch_add(1, Ordering::Relaxed) + 1;
        let status = answer.as_ref().err().copied().unwrap_or(0);
        let failed = self.failed.fetch_add(u64::from(status != 0), Ordering::Relaxed) + u64::from(status != 0);
        if let Some(spoe) = &mut cx.spoe {
            let state = spoe.of(&self.engine);
            state.total_ms = state.total_ms.saturating_add(time);
            state.is_over |= status != 0 && !self.agent().continues;
            let total = state.total_ms;
            for (variable, value) in [(&self.process_time, time), (&self.total_time, total)] {
                if let Some(variable) = variable {
                    cx.variables.set(variable, Sample::Int(value));
                }
            }
        }
        if status != 0
            && let Some(variable) = &self.on_error
        {
            cx.variables.set(variable, Sample::Int(i64::try_from(status).unwrap_or(i64::MAX)));
        }
        if self.targets.is_empty() || (status == 0 && self.agent().logs_failures_only) {
            return;
        }
        let severity = if status == 0 { Severity::Notice } else { Severity::Warning };
        let (name, id) = (&self.agent().name, cx.id as u32);
        let line = format!("SPOE: [{name}] {origin} sid={id} st={status} {time} {failed}/{processed}");
        self.logger.send(&self.targets, severity, line.as_bytes());
    }

    /// Applies the actions of an agent up to the first that is malformed.
    fn apply(&self, payload: &[u8], cx: &mut StreamContext) {
        for action in Actions::of(payload) {
            match action {
                Ok(spop::Action::Set { scope, name, value }) => match sample(&value) {
                    Some(sample) => {
                        if let Some(variable) = self.variable(scope, name, true) {
                            cx.variables.set(&variable, sample);
                        }
                    }
                    None => self.unset(scope, name, cx),
                },
                Ok(spop::Action::Unset { scope, name }) => self.unset(scope, name, cx),
                Err(_) => return,
            }
        }
    }

    fn unset(&self, scope: Scope, name: &[u8], cx: &mut StreamContext) {
        if let Some(variable) = self.variable(scope, name, false) {
            cx.variables.unset(&variable);
        }
    }

    /// Returns the variable of an agent's name. A new name is registered where that is allowed.
    fn variable(&self, scope: Scope, name: &[u8], create: bool) -> Option<VarRef> {
        let (scope, word) = match scope {
            Scope::Process => (VarScope::Proc, "proc"),
            Scope::Session => (VarScope::Sess, "sess"),
            Scope::Transaction => (VarScope::Txn, "txn"),
            Scope::Request => (VarScope::Req, "req"),
            Scope::Response => (VarScope::Res, "res"),
        };
        let prefix = &self.agent().prefix;
        let valid = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
        if !name.iter().all(valid) || word.len() + prefix.len() + name.len() + 2 >= NAME_MAX {
            return None;
        }
        let name = [&**prefix, ".", std::str::from_utf8(name).ok()?].concat();
        if let Some(known) = VarRef::known(scope, &name) {
            return Some(known);
        }
        if !create || (scope == VarScope::Proc && !self.agent().sets_any) {
            return None;
        }
        static INVENTED: AtomicUsize = AtomicUsize::new(0);
        let more = |count: usize| (count < INVENTED_MAX).then_some(count + 1);
        INVENTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        VarRef::intern(&VarName { scope, name: name.into() })
    }
}

/// Returns the value of a variable; `None` for nothing.
fn sample(value: &Data<'_>) -> Option<Sample> {
    Some(match *value {
        Data::Null => return None,
        Data::Bool(value) => Sample::Bool(value),
        Data::Int32(value) => Sample::Int(i64::from(value)),
        Data::Uint32(value) => Sample::Int(i64::from(value)),
        Data::Int64(value) => Sample::Int(value),
        Data::Uint64(value) => Sample::Int(value as i64),
        Data::Ipv4(value) => Sample::Ip(IpAddr::V4(value)),
        Data::Ipv6(value) => Sample::Ip(IpAddr::V6(value)),
        Data::Str(value) => Sample::Str(value.to_vec()),
        Data::Bin(value) => Sample::Bin(value.to_vec()),
    })
}

/// Returns an argument as it is sent.
fn data(sample: Option<&Sample>) -> Data<'_> {
    match sample {
        None => Data::Null,
        Some(Sample::Bool(value)) => Data::Bool(*value),
        Some(Sample::Int(value)) => Data::Int64(*value),
        Some(Sample::Ip(IpAddr::V4(value))) => Data::Ipv4(*value),
        Some(Sample::Ip(IpAddr::V6(value))) => Data::Ipv6(*value),
        Some(Sample::Str(value) | Sample::Method(value)) => Data::Str(value),
        Some(Sample::Bin(value)) => Data::Bin(value),
    }
}

/// Compiles the messages of an event.
pub(super) fn event(b: &mut Builder<'_>, event: SpoeEvent) {
    for engine in b.agents {
        let messages = engine.filter.messages.iter().filter(|(of, _)| *of == event).map(|(_, message)| message);
        let messages: Vec<_> = messages.cloned().collect();
        let Some(first) = messages.first() else { continue };
        let origin = format!("<EVENT:{}>", event.name());
        b.guarded(None, &first.at, |b| send(b, engine, &messages, origin, None));
    }
}

/// `send-spoe-group ENGINE GROUP`.
pub(super) fn send_group(b: &mut Builder<'_>, group: &SendSpoeGroup) -> Compiled {
    let known = b.agents.iter().find(|engine| engine.filter.engine == group.engine);
    let found = known.and_then(|engine| {
        let group = engine.filter.groups.iter().find(|known| *known.name == *group.group)?;
        Some((engine, group))
    });
    let (engine, group) = found.ok_or_else(|| format!("unable to find SPOE group '{}'", group.group))?;
    // As in HAProxy, content rules wait for an agent only within the inspect delay.
    let delay = match b.hook {
        Hook::TcpRequestContent => Some(b.proxy.inspect_delay.unwrap_or_default()),
        Hook::TcpResponseContent => Some(b.proxy.response_inspect_delay.unwrap_or_default()),
        _ => None,
    };
    send(b, engine, &group.messages, format!("<GROUP:{}>", group.name), delay)
}

fn send(
    b: &mut Builder<'_>,
    engine: &Arc<SpoeEngine>,
    messages: &[Arc<SpoeMessage>],
    origin: String,
    delay: Option<Duration>,
) -> Compiled {
    b.ops.push(Op::Act(ActionCode::of(Begin)));
    for message in messages {
        b.guarded(message.condition.as_ref(), &message.at, |b| Ok(write(b, message)));
    }
    Ok(ActionCode::of(Send { engine: engine.clone(), origin: origin.into(), delay }))
}

/// Compiles a message; returns its last operation.
fn write(b: &mut Builder<'_>, message: &SpoeMessage) -> ActionCode {
    let mut last = ActionCode::of(Message(message.name.clone()));
    for (name, expr) in &message.args {
        let previous = std::mem::replace(&mut last, ActionCode::with_sample(Argument(name.clone())));
        b.ops.push(Op::Act(previous));
        b.expr(expr);
    }
    last
}

/// Begins an exchange.
struct Begin;

/// Writes the beginning of a message.
struct Message(Box<str>);

/// Writes an argument.
struct Argument(Box<str>);

/// Sends the messages.
struct Send {
    engine: Arc<SpoeEngine>,
    /// The event or group, for the log.
    origin: Arc<str>,
    /// The time limit of content rules.
    delay: Option<Duration>,
}

impl Act for Begin {
    fn act<'a>(&'a self, _: Option<Sample>, run: &mut Run<'_>) -> Done<'a> {
        if let Some(spoe) = &mut run.cx.spoe {
            spoe.messages.clear();
        }
        Done::Next
    }
}

impl Act for Message {
    fn act<'a>(&'a self, _: Option<Sample>, run: &mut Run<'_>) -> Done<'a> {
        if let Some(spoe) = &mut run.cx.spoe {
            spoe.messages.message(&self.0);
        }
        Done::Next
    }
}

impl Act for Argument {
    fn act<'a>(&'a self, sample: Option<Sample>, run: &mut Run<'_>) -> Done<'a> {
        if let Some(spoe) = &mut run.cx.spoe {
            spoe.messages.argument(&self.0, &data(sample.as_ref()));
        }
        Done::Next
    }
}

impl Act for Send {
    fn act<'a>(&'a self, _: Option<Sample>, run: &mut Run<'_>) -> Done<'a> {
        let cx = &mut *run.cx;
        let Some(spoe) = &mut cx.spoe else { return Done::Next };
        if spoe.messages.is_empty() || spoe.of(&self.engine.engine).is_over {
            return Done::Next;
        }
        let began = clock::now();
        let room = (self.engine.engine.max_frame_size as usize).saturating_sub(HEAD_ROOM);
        let refused = match self.delay {
            _ if spoe.messages.len() > room => Some(status::TOO_BIG),
            Some(Duration::ZERO) => Some(status::INTERRUPTED),
            _ => None,
        };
        if let Some(status) = refused {
            self.engine.finish(began, &Err(status), &self.origin, cx);
            return Done::Next;
        }
        let messages = std::mem::take(&mut spoe.messages);
        let processing = self.engine.agent().processing.map(|time| (time, status::TIMEOUT));
        let delay = self.delay.map(|time| (time, status::INTERRUPTED));
        let limit = processing.into_iter().chain(delay).min();
        let (agents, engine) = (spoe.agents.clone(), self.engine.engine.clone());
        let exchange = agents.ask(messages, engine, limit.map(|(time, _)| time), &cx.variables);
        let (engine, origin) = (self.engine.clone(), self.origin.clone());
        Done::Spoe(Box::new(Asked { engine, origin, exchange, began, limit }))
    }
}

/// Messages whose answer a list waits for.
pub(super) struct Asked {
    engine: Arc<SpoeEngine>,
    origin: Arc<str>,
    exchange: Exchange,
    began: Instant,
    /// The time after which it is given up, and the status that it has then.
    limit: Option<(Duration, u64)>,
}

impl Asked {
    /// Waits for the answer and does what follows from it.
    pub(super) async fn finish(self, cx: &mut StreamContext) {
        let Asked { engine, origin, exchange, began, limit } = self;
        let answer = match limit {
            Some((time, status)) => tokio::time::timeout(time, exchange).await.unwrap_or(Err(status)),
            None => exchange.await,
        };
        engine.finish(began, &answer, &origin, cx);
    }
}
