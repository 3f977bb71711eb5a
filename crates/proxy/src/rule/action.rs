//! What a rule does once its condition holds.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::model::{BodyWait, DataKind, LogLevel, PatternEdit, ProxyId};
use sluicegate_pattern::PatternFile;
use sluicegate_wire::engine::{PendingReply, Started};
use sluicegate_wire::http::{Message, Version};

use super::carrier::CarrierCode;
use super::code::Machine;
use super::edit::EditCode;
use super::limit::{LimitCode, Limited};
use super::redirect::RedirectCode;
use super::reply::{ReplyCode, page_reply};
use super::store::StoreCode;
use super::{Hook, ReplySource, Verdict};
use crate::limit::PendingAnswer;
use crate::persist::{self, StickCode};
use crate::resolve::{Asked, Resolver};
use crate::sample::{Sample, Setting, VarRef};
use crate::stick::{Change, Counted, Table};
use crate::stream::{BoundAction, BoundService, ScriptHook, StreamContext};

/// An action, compiled. What it needs of the stream stands in the accumulator or in the machine's texts.
pub(super) enum ActionCode {
    /// `accept`, `allow`.
    Accept,
    /// `reject`.
    Reject,
    /// `return` and `deny`.
    Reply(ReplyCode),
    /// `redirect`.
    Redirect(RedirectCode),
    /// `set-header`: one of the name is left, at the end.
    SetHeader(Box<[u8]>),
    /// `add-header`.
    AddHeader(Box<[u8]>),
    /// `del-header`.
    DeleteHeader(Box<[u8]>),
    /// What changes a head otherwise; its text is the machine's.
    Edit(EditCode),
    /// What changes connections, addresses and times.
    Carrier(CarrierCode),
    /// `early-hint`; the last of those that follow each other sends them.
    EarlyHint(Box<[u8]>, bool),
    /// `auth`: the challenge.
    Auth(Box<[u8]>),
    /// `strict-mode`.
    StrictMode(bool),
    /// What changes nothing.
    Nothing,
    /// `do-resolve`: the accumulator is the name.
    DoResolve(Resolve),
    /// `set-var`: the accumulator; no sample leaves the variable alone.
    SetVar(Setting),
    /// `set-var-fmt`: the text.
    SetVarText(Setting),
    /// `unset-var`.
    UnsetVar(VarRef),
    /// `capture`: the accumulator, cut to what the frontend's slot takes.
    Capture { slot: usize, response: bool },
    /// `set-log-level`.
    SetLogLevel(LogLevel),
    /// `track-scN`: the accumulator is the key.
    Track(usize, Arc<Table>),
    /// `sc-inc-gpc*`, `sc-add-gpc`, `sc-set-gpt*`; without a number the accumulator is it.
    ChangeCounter { slot: usize, kind: DataKind, element: u32, by: Option<u32> },
    /// `expect-proxy`.
    ExpectProxy,
    /// `disable-l7-retry`.
    DisableL7Retry,
    /// `switch-mode http`: ends the set.
    SwitchMode,
    /// `set-priority-class`: the accumulator.
    SetPriorityClass,
    /// `set-priority-offset`: the accumulator.
    SetPriorityOffset,
    /// `force-persist`, or with `false` `ignore-persist`.
    Persist(bool),
    /// `use-server NAME`, by its place.
    UseServer(usize),
    /// `use-server` with a log-format: the text is the name.
    UseServerNamed,
    /// `stick`: the accumulator is the key.
    Stick(Arc<Table>, StickCode),
    /// `set-map`, `del-map`, `add-acl`, `del-acl`: the texts are the key and the value.
    EditPatterns(Arc<PatternFile>, PatternEdit),
    /// `store-call`.
    StoreCall(StoreCode),
    /// `limit`.
    Limit(Box<LimitCode>),
    /// `wait-for-body`.
    WaitForBody(BodyWait),
    /// `lua.NAME`.
    Lua(BoundAction, ScriptHook),
    /// `use-service lua.NAME`.
    Service(BoundService),
    /// `use-service prometheus-exporter`.
    Exporter,
    /// `use_backend NAME`.
    UseBackend(ProxyId),
    /// `use_backend` with a log-format: the text is the name.
    UseBackendNamed,
}

/// What came of an action.
pub(super) enum Done {
    /// The next operation.
    Next,
    /// The rule list ends.
    Verdict(Verdict),
    /// The store answers later.
    Wait(PendingReply),
    /// Whether a limit allows it is said later.
    Limit(PendingAnswer),
    /// The body is waited for.
    Body(BodyWait),
    /// Time passes.
    Pause(Duration),
    /// An interim response is sent.
    Hints,
    /// A name server answers later.
    Resolve(Resolving),
}

/// `do-resolve`, compiled.
pub(super) struct Resolve {
    pub(super) resolver: Arc<Resolver>,
    pub(super) prefer_v4: bool,
    pub(super) variable: VarRef,
}

/// A name that a rule waits for.
pub(super) struct Resolving {
    answer: tokio::sync::oneshot::Receiver<Option<IpAddr>>,
    variable: VarRef,
    most: Duration,
}

impl Resolve {
    fn act(&self, sample: Option<Sample>, cx: &mut StreamContext) -> Done {
        let Some(sample) = sample else { return Done::Next };
        match self.resolver.ask(&sample.as_value().into_text(), self.prefer_v4) {
            Asked::Known(found) => {
                if let Some(ip) = found {
                    cx.variables.set(&self.variable, Sample::Ip(ip));
                }
                Done::Next
            }
            Asked::Later(answer) => {
                let config = &self.resolver.config;
                // Both families in turn; a section that a reload has ended says nothing any more.
                let most = config.retry * config.retries * 2 + config.retry;
                Done::Resolve(Resolving { answer, variable: self.variable.clone(), most })
            }
        }
    }
}

impl Resolving {
    /// Waits for the answer and sets the variable, if there is one.
    pub(super) async fn finish(self, cx: &mut StreamContext) {
        if let Ok(Ok(Some(ip))) = tokio::time::timeout(self.most, self.answer).await {
            cx.variables.set(&self.variable, Sample::Ip(ip));
        }
    }
}

impl ActionCode {
    /// The accumulator is its input.
    #[inline]
    pub(super) fn takes_sample(&self) -> bool {
        use ActionCode::{
            Capture, ChangeCounter, DoResolve, SetPriorityClass, SetPriorityOffset, SetVar, Stick, Track,
        };
        matches!(
            self,
            SetVar(_)
                | DoResolve(_)
                | Capture { .. }
                | Stick(..)
                | Track(..)
                | ChangeCounter { by: None, .. }
                | SetPriorityClass
                | SetPriorityOffset
        ) || matches!(self, ActionCode::Carrier(code) if code.takes_sample())
    }

    /// Acts; Lua and the choice of a backend are the runner's.
    pub(super) fn act(
        &self,
        sample: Option<Sample>,
        machine: &Machine,
        hook: Hook,
        bufsize: usize,
        cx: &mut StreamContext,
    ) -> Done {
        match self {
            ActionCode::Accept => return Done::Verdict(Verdict::Continue),
            ActionCode::Service(service) => return Done::Verdict(Verdict::Service(service.clone())),
            ActionCode::Exporter => return Done::Verdict(Verdict::Exporter),
            ActionCode::Reject => return Done::Verdict(Verdict::Close),
            ActionCode::SwitchMode => {
                // On a stream of HTTP it changes nothing.
                if cx.request_number == 0 {
                    cx.switch_to_http = true;
                    return Done::Verdict(Verdict::Continue);
                }
            }
            ActionCode::Reply(reply) => return Done::Verdict(Verdict::Reply(reply.build(machine, &mut cx.response))),
            ActionCode::Redirect(redirect) => {
                let mut texts = machine.texts();
                let to = texts.next().unwrap_or(b"");
                if let Some(reply) = redirect.build(to, texts.next(), &cx.request, &mut cx.response) {
                    return Done::Verdict(Verdict::Reply(reply));
                }
            }
            ActionCode::SetHeader(name) => {
                message(hook, cx).delete_all(name);
                return add_field(cx, hook, name, machine, bufsize);
            }
            ActionCode::AddHeader(name) => return add_field(cx, hook, name, machine, bufsize),
            ActionCode::Edit(edit) => return edit.apply(machine, hook, bufsize, cx),
            ActionCode::Carrier(carrier) => return carrier.apply(sample, cx),
            ActionCode::EarlyHint(name, last) => {
                if cx.request.version() == Version::Http11 {
                    if cx.early_hints.status() == 0 {
                        cx.early_hints.set_response(Version::Http11, 103, b"Early Hints");
                    }
                    cx.early_hints.add_lower(name, machine.text());
                }
                if *last && cx.early_hints.status() != 0 {
                    return Done::Hints;
                }
            }
            ActionCode::Auth(challenge) => {
                let (status, name): (u16, &[u8]) =
                    if cx.is_proxied() { (407, b"proxy-authenticate") } else { (401, b"www-authenticate") };
                cx.challenge = Some((name, challenge.to_vec()));
                return Done::Verdict(Verdict::Reply(page_reply(status, ReplySource::Auth)));
            }
            ActionCode::Nothing | ActionCode::StrictMode(_) => {}
            ActionCode::DeleteHeader(name) => {
                message(hook, cx).delete_all(name);
            }
            // A value that does not fit into the stream's limit is not set, as in HAProxy.
            ActionCode::DoResolve(resolve) => return resolve.act(sample, cx),
            ActionCode::SetVar(setting) => {
                if let Some(sample) = sample {
                    setting.set(&mut cx.variables, sample);
                }
            }
            ActionCode::SetVarText(setting) => {
                setting.set(&mut cx.variables, Sample::Str(machine.text().to_vec()));
            }
            ActionCode::UnsetVar(variable) => cx.variables.unset(variable),
            ActionCode::Capture { slot, response } => capture(*slot, *response, sample, cx),
            ActionCode::SetLogLevel(level) => cx.log.level = Some(*level),
            ActionCode::Persist(force) => {
                let flags = &mut cx.persistence;
                *(if *force { &mut flags.forced } else { &mut flags.ignored }) = true;
                return Done::Verdict(Verdict::Continue);
            }
            ActionCode::UseServer(index) if persist::ask_for(*index, cx) => return Done::Verdict(Verdict::Continue),
            ActionCode::UseServerNamed if persist::ask_for_named(machine.text(), cx) => {
                return Done::Verdict(Verdict::Continue);
            }
            ActionCode::UseServer(_) | ActionCode::UseServerNamed => {}
            ActionCode::Stick(table, rule) => {
                if let Some(sample) = sample {
                    persist::stick(table, rule, &sample, cx);
                }
            }
            ActionCode::Track(slot, table) => {
                if let Some(sample) = sample {
                    track(*slot, table, &sample, hook, cx);
                }
            }
            ActionCode::ChangeCounter { slot, kind, element, by } => {
                let by =
                    by.or_else(|| sample.and_then(|sample| sample.as_value().to_int()).map(|number| number as u32));
                if let Some(by) = by {
                    change_counter(*slot, *kind, *element, by, cx);
                }
            }
            ActionCode::ExpectProxy => cx.expects_header = true,
            ActionCode::DisableL7Retry => cx.no_l7_retry = true,
            // What is no number changes nothing, one that is out of range is cut, as in HAProxy.
            ActionCode::SetPriorityClass => {
                if let Some(class) = sample.and_then(|sample| sample.as_value().to_int()) {
                    cx.priority.class = class.clamp(-2047, 2047) as i16;
                }
            }
            ActionCode::SetPriorityOffset => {
                if let Some(offset) = sample.and_then(|sample| sample.as_value().to_int()) {
                    cx.priority.offset = offset.clamp(-524_287, 524_287) as i32;
                }
            }
            ActionCode::WaitForBody(wait) => return Done::Body(*wait),
            ActionCode::EditPatterns(file, edit) => edit_patterns(file, *edit, machine),
            ActionCode::StoreCall(call) => match call.start(machine) {
                Started::Done(reply) => {
                    if let Some(verdict) = call.finish(reply, machine, hook, cx) {
                        return Done::Verdict(verdict);
                    }
                }
                Started::Pending(reply) => return Done::Wait(reply),
            },
            ActionCode::Limit(limit) => match limit.start(machine, hook, cx) {
                Limited::Done(None) => {}
                Limited::Done(Some(verdict)) => return Done::Verdict(verdict),
                Limited::Later(answer) => return Done::Limit(answer),
            },
            ActionCode::Lua(..) | ActionCode::UseBackend(_) | ActionCode::UseBackendNamed => {
                debug_assert!(false, "the runner's action");
            }
        }
        Done::Next
    }
}

/// A key or value that the file's users cannot take, and what does not fit into it, changes nothing, as in HAProxy.
fn edit_patterns(file: &PatternFile, edit: PatternEdit, machine: &Machine) {
    let mut texts = machine.texts();
    let key = texts.next().unwrap_or(b"");
    match edit {
        PatternEdit::Set => _ = file.put(key, texts.next().unwrap_or(b"")),
        PatternEdit::Add if file.contains(key) => {}
        PatternEdit::Add => _ = file.add(key, b""),
        PatternEdit::Remove => _ = file.del(key),
    }
}

/// Tracks for the session before there is a stream, for the stream then. What a stream's request or response would
/// have counted before is counted now, as HAProxy does.
fn track(slot: usize, table: &Arc<Table>, sample: &Sample, hook: Hook, cx: &mut StreamContext) {
    let value = sample.as_value();
    if hook.is_early() {
        return cx.client.tracked.borrow_mut().track(slot, table, &value, false, &[]);
    }
    // A stream begins with its session's counters, so these numbers are taken.
    if cx.client.tracked.borrow().get(slot).is_some() {
        return;
    }
    let status = if matches!(hook, Hook::HttpResponse | Hook::HttpAfterResponse) { cx.response.status() } else { 0 };
    let classes = &cx.frontend.directory.status_classes;
    let events: &[Counted] = match (classes.errors.contains(status), classes.failures.contains(status)) {
        (true, false) => &[Counted::Request, Counted::Error],
        (false, true) => &[Counted::Request, Counted::Failure],
        (true, true) => &[Counted::Request, Counted::Error, Counted::Failure],
        (false, false) if hook.is_http() => &[Counted::Request],
        (false, false) => &[],
    };
    let backend = cx.backend.as_ref().is_some_and(|backend| backend.id != cx.frontend.id);
    cx.tracked.track(slot, table, &value, backend, events);
}

fn change_counter(slot: usize, kind: DataKind, element: u32, by: u32, cx: &StreamContext) {
    let session = cx.client.tracked.borrow();
    let Some(held) = cx.tracked.get(slot).or_else(|| session.get(slot)) else { return };
    held.change(|row| match kind {
        DataKind::Gpt | DataKind::Gpt0 => _ = row.set(kind, element, u64::from(by)),
        kind => _ = row.change(kind, element, Change::Add(by)),
    });
}

/// A slot that the frontend doesn't have, or a sample that isn't there, keeps nothing.
fn capture(slot: usize, response: bool, sample: Option<Sample>, cx: &mut StreamContext) {
    let logging = &cx.frontend.config.logging;
    let (slots, kept) = match response {
        false => (&logging.request_captures, &mut cx.log.captures.request),
        true => (&logging.response_captures, &mut cx.log.captures.response),
    };
    let (Some(slot_of), Some(sample)) = (slots.get(slot), sample) else { return };
    let mut text = Vec::new();
    sample.as_value().append_text(&mut text);
    kept.set(slot, &text[..text.len().min(slot_of.len)]);
}

/// Adds a field; a head that no longer fits a buffer ends the stream with 500, as in HAProxy. What becomes of Host
/// becomes of the authority of a target that has one.
fn add_field(cx: &mut StreamContext, hook: Hook, name: &[u8], machine: &Machine, bufsize: usize) -> Done {
    let (message, value) = (message(hook, cx), machine.text());
    if message.wire_len() + name.len() + value.len() + 4 > bufsize {
        return does_not_fit(machine, cx);
    }
    message.add_lower(name, value);
    if !hook.is_response() && name == b"host" {
        message.set_authority(value);
    }
    Done::Next
}

/// An edit that can't be made ends the stream, unless `strict-mode off` leaves it out.
pub(super) fn does_not_fit(machine: &Machine, cx: &mut StreamContext) -> Done {
    cx.failed_rewrites += 1;
    if machine.soft { Done::Next } else { Done::Verdict(Verdict::Reply(page_reply(500, ReplySource::Rewrite))) }
}

/// The head that a rule set edits.
pub(super) fn message(hook: Hook, cx: &mut StreamContext) -> &mut Message {
    if hook.is_response() { &mut cx.response } else { &mut cx.request }
}
