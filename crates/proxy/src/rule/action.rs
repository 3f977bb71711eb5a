//! Execution of a rule's action once its condition holds.
//!
//! **Items.** An action consists of its row in the configuration's catalogue, its variant of the model's `Action`, and
//! its line in [`compile`] with a function, which lets the builder emit what the action needs of the stream (a sample,
//! texts) and returns the code to execute. A variant without a line does not compile. Executing an action costs one
//! indirect call.

use std::time::Duration;

use sluicegate_config::model::{Action, BodyWait, ProxyId, Rule};
use sluicegate_wire::engine::PendingReply;
use sluicegate_wire::http::Message;
use sluicegate_wire::reply::Reply;

use super::build::Builder;
use super::code::Machine;
use super::reply::page_reply;
use super::resolve::Resolving;
use super::{
    Hook, ReplySource, Verdict, cache, carrier, counter, edit, filter, limit, patterns, reply, script, spoe, store,
    stream, variable,
};
use crate::limit::{Answer, PendingAnswer};
use crate::sample::Sample;
use crate::stream::{BoundAction, ScriptHook, StreamContext};

/// An action that is ready to run.
pub(super) struct ActionCode {
    /// Whether the accumulator is its input.
    pub(super) takes_sample: bool,
    act: Box<dyn Act>,
}

/// The objects of an action.
pub(super) struct Run<'r> {
    /// The texts that were rendered for it.
    pub(super) machine: &'r mut Machine,
    /// The rule set.
    pub(super) hook: Hook,
    /// The maximum size of an edited head, in bytes.
    pub(super) room: usize,
    pub(super) cx: &'r mut StreamContext,
}

/// The execution of an action.
pub(super) trait Act: Send + Sync {
    /// Executes the action, with the sample if it uses one and there is one.
    fn act<'a>(&'a self, sample: Option<Sample>, run: &mut Run<'_>) -> Done<'a>;

    /// Handles the reply that the action waited for; a verdict ends the rule list.
    fn take_reply(&self, _reply: Reply, _run: &mut Run<'_>) -> Option<Verdict> {
        None
    }

    /// Handles the answer of a limit that the action waited for; a verdict ends the rule list.
    fn take_answer(&self, _answer: Answer, _run: &mut Run<'_>) -> Option<Verdict> {
        None
    }
}

/// The result of an action.
pub(super) enum Done<'a> {
    /// Continue with the next operation.
    Next,
    /// The rule list ends.
    Verdict(Verdict),
    /// The store answers later: its reply must be passed to [`Act::take_reply`].
    Wait(PendingReply),
    /// The limit's decision is known later: its answer must be passed to [`Act::take_answer`].
    Limit(PendingAnswer),
    /// Wait for the body.
    Body(BodyWait),
    /// Wait for this time.
    Pause(Duration),
    /// Send an interim response.
    Hints,
    /// A name server answers later.
    Resolve(Resolving),
    /// An agent answers later.
    Spoe(Box<spoe::Asked>),
    /// Run a script's action.
    Lua(&'a BoundAction, ScriptHook),
    /// `use_backend` chose this backend.
    Backend(ProxyId),
    /// `use_backend` chose the backend that the text names.
    BackendNamed,
}

/// The result of an action's compile function.
pub(super) type Compiled = Result<ActionCode, String>;

/// The position of an action in its rule set.
pub(super) struct Place<'a> {
    /// The rule.
    pub(super) rule: &'a Rule,
    /// The rule after it.
    pub(super) next: Option<&'a Rule>,
}

/// Compiles an action with the function for its kind.
pub(super) fn compile(b: &mut Builder<'_>, place: &Place<'_>) -> Compiled {
    match &place.rule.action {
        Action::Accept => reply::accept(),
        Action::Reject => reply::reject(),
        Action::Deny(answer) => reply::answer(b, answer, ReplySource::Deny),
        Action::Return(answer) => reply::answer(b, answer, ReplySource::Return),
        Action::Tarpit(answer) => reply::answer(b, answer, ReplySource::Tarpit),
        Action::Redirect(redirect) => super::redirect::redirect(b, redirect),
        Action::Auth(realm) => reply::auth(realm),
        Action::EarlyHint(name, value) => reply::early_hint(b, name, value, place.next),
        Action::UseService(name) => script::use_service(b, name),
        Action::Exporter => script::exporter(),
        Action::Lua(action) => script::lua(b, action),
        Action::Capture { expr, slot, response } => stream::capture(b, expr, *slot, *response),
        Action::SetLogLevel(level) => stream::set_log_level(*level),
        Action::DoLog => stream::do_log(b),
        Action::CloseServer => reply::close_server(),
        Action::AttachServer(attach) => stream::attach_server(b, attach),
        Action::ExpectCip => stream::expect_cip(),
        Action::ExpectProxy => stream::expect_proxy(),
        Action::DisableL7Retry => stream::disable_l7_retry(),
        Action::SwitchMode(proto) => stream::switch_mode(*proto),
        Action::SetPriorityClass(expr) => stream::set_priority_class(b, expr),
        Action::SetPriorityOffset(expr) => stream::set_priority_offset(b, expr),
        Action::WaitForBody(wait) => stream::wait_for_body(*wait),
        Action::CacheUse(rule) => cache::cache_use(b, rule),
        Action::CacheStore(rule) => cache::cache_store(b, rule),
        Action::SetBandwidthLimit(set) => filter::set_bandwidth_limit(b, set),
        Action::SendSpoeGroup(group) => spoe::send_group(b, group),
        Action::StrictMode(on) => stream::strict_mode(*on),
        Action::Nothing => stream::nothing(),
        Action::Track(track) => counter::track(b, track),
        Action::ChangeCounter(change) => counter::change(b, change),
        Action::SetHeader(name, value) => edit::set_header(b, name, value),
        Action::AddHeader(name, value) => edit::add_header(b, name, value),
        Action::DelHeader(name) => edit::del_header(name),
        Action::Edit(what) => edit::edit(b, what),
        Action::Carrier(what) => carrier::carrier(b, what),
        Action::DoResolve(resolve, expr) => super::resolve::do_resolve(b, resolve, expr),
        Action::SetVar(target, expr) => variable::set_var(b, target, expr),
        Action::SetVarFormat(target, format) => variable::set_var_fmt(b, target, format),
        Action::UnsetVar(name) => variable::unset_var(name),
        Action::EditPatterns(edit) => patterns::edit_patterns(b, edit),
        Action::StoreCall(call) => store::store_call(b, call, &place.rule.at),
        Action::Limit(rule) => limit::limit(b, rule, &place.rule.at),
    }
}

struct OnStream<F>(F);

struct OnSample<F>(F);

impl<F> Act for OnStream<F>
where
    F: Fn(&mut Run<'_>) -> Done<'static> + Send + Sync,
{
    fn act<'a>(&'a self, _: Option<Sample>, run: &mut Run<'_>) -> Done<'a> {
        self.0(run)
    }
}

impl<F> Act for OnSample<F>
where
    F: Fn(Sample, &mut Run<'_>) -> Done<'static> + Send + Sync,
{
    fn act<'a>(&'a self, sample: Option<Sample>, run: &mut Run<'_>) -> Done<'a> {
        match sample {
            Some(sample) => self.0(sample, run),
            // As in HAProxy.
            None => Done::Next,
        }
    }
}

impl ActionCode {
    /// Returns an action that takes no sample.
    pub(super) fn of(act: impl Act + 'static) -> ActionCode {
        ActionCode { takes_sample: false, act: Box::new(act) }
    }

    /// Returns an action that takes the accumulator, even if there is no sample.
    pub(super) fn with_sample(act: impl Act + 'static) -> ActionCode {
        ActionCode { takes_sample: true, act: Box::new(act) }
    }

    /// Executes the action; running scripts and choosing a backend are left to the caller.
    pub(super) fn act(&self, sample: Option<Sample>, run: &mut Run<'_>) -> Done<'_> {
        self.act.act(sample, run)
    }

    /// Handles the reply that the action waited for.
    pub(super) fn take_reply(&self, reply: Reply, run: &mut Run<'_>) -> Option<Verdict> {
        self.act.take_reply(reply, run)
    }

    /// Handles the answer of a limit that the action waited for.
    pub(super) fn take_answer(&self, answer: Answer, run: &mut Run<'_>) -> Option<Verdict> {
        self.act.take_answer(answer, run)
    }
}

/// Returns an action that calls a function.
pub(super) fn action<F>(act: F) -> Compiled
where
    F: Fn(&mut Run<'_>) -> Done<'static> + Send + Sync + 'static,
{
    Ok(ActionCode::of(OnStream(act)))
}

/// Returns an action on the accumulator, for which the builder has emitted code; without a sample it has no effect.
pub(super) fn on_sample<F>(act: F) -> Compiled
where
    F: Fn(Sample, &mut Run<'_>) -> Done<'static> + Send + Sync + 'static,
{
    Ok(ActionCode { takes_sample: true, act: Box::new(OnSample(act)) })
}

impl Run<'_> {
    /// Returns the head that the rule set edits.
    pub(super) fn message(&mut self) -> &mut Message {
        if self.hook.is_response() { &mut self.cx.response } else { &mut self.cx.request }
    }

    /// Returns the result of an edit that can't be made: it ends the stream, or continues with the next rule under
    /// `strict-mode off`.
    pub(super) fn does_not_fit(&mut self) -> Done<'static> {
        self.cx.failed_rewrites += 1;
        if self.machine.soft {
            Done::Next
        } else {
            Done::Verdict(Verdict::Reply(page_reply(500, ReplySource::Rewrite)))
        }
    }
}
