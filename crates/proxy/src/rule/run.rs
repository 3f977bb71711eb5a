//! The rule runner: the one place where a rule list waits.

use std::cell::Cell;
use std::time::Duration;

use sluicegate_config::model::{BodyWait, ProxyId};
use sluicegate_wire::engine::PendingReply;
use sluicegate_wire::reply::Reply;

use super::action::{Done, Run};
use super::code::{Machine, Program, Step, step};
use super::reply::page_reply;
use super::resolve::Resolving;
use super::spoe::Asked;
use super::{Hook, ProxyRules, ReplySource, RuleList, Verdict};
use crate::auth;
use crate::limit::PendingAnswer;
use crate::sample::{Effect, Sample};
use crate::stream::{
    ActionOutcome, BoundAction, Pending, ScriptAttempt, ScriptCall, ScriptHook, Scripts, StreamContext,
};

thread_local! {
    /// The machine of this worker's last finished list, kept for its memory. One is enough, because a list that waits
    /// keeps its own and the next list then allocates another.
    static SPARE: Cell<Option<Box<Machine>>> = const { Cell::new(None) };
}

fn take_machine() -> Box<Machine> {
    let mut machine = SPARE.take().unwrap_or_default();
    machine.reset();
    machine
}

fn give_machine(machine: Box<Machine>) {
    SPARE.set(Some(machine));
}

/// The result of [`try_run`].
#[must_use]
pub enum Attempt {
    /// The list ended without waiting.
    Ready(Verdict),
    /// The list waits: pass this to [`resume`].
    Suspended(Suspended),
}

/// The result of [`try_choose_backend`].
#[must_use]
pub enum BackendAttempt {
    /// The choice was made without waiting; `None`: there is no backend for this stream.
    Ready(Option<ProxyId>),
    /// The choice waits: pass this to [`resume_backend`].
    Suspended(Suspended),
}

/// A rule list that waits. Dropping it ends the list; a command that was started is still executed, and a Lua action
/// continues detached.
pub struct Suspended {
    machine: Box<Machine>,
    wait: Wait,
    /// The program that it stopped in.
    program: usize,
}

/// The operation that is awaited.
enum Wait {
    /// A converter's store: the reply becomes the accumulator.
    Sample(PendingReply),
    /// A `store-call`: the operation before the machine's next one.
    StoreCall(PendingReply),
    /// A `limit`: also the operation before the machine's next one.
    Limit(PendingAnswer),
    /// A Lua action.
    Lua(Pending<ActionOutcome>),
    /// A fetch or converter of a script: its sample becomes the accumulator.
    LuaSample(Pending<Option<Sample>>),
    /// A message's body: the owner of the connection reads it.
    Body(BodyWait),
    /// A password's hash.
    Auth(auth::Check),
    /// The end of a pause.
    Pause(Duration),
    /// The answer of a name server.
    Resolve(Resolving),
    /// The answer of an agent.
    Spoe(Box<Asked>),
    /// An interim response: the owner of the connection sends it.
    Hints,
}

/// An operation that a list needs from the owner of the client's connection before it continues.
pub enum Ask {
    /// The message's body.
    Body(BodyWait),
    /// The interim response in the context must be sent.
    Hints,
}

impl Suspended {
    /// Returns the operation needed before the list continues; `None` if [`resume_once`] awaits everything.
    pub fn asks(&self) -> Option<Ask> {
        match &self.wait {
            Wait::Body(wait) => Some(Ask::Body(*wait)),
            Wait::Hints => Some(Ask::Hints),
            _ => None,
        }
    }
}

/// The reason why [`advance`] stopped.
enum Progress<'a> {
    Verdict(Verdict),
    Wait(Wait),
    Lua(&'a BoundAction, ScriptHook),
    LuaSample(&'a ScriptCall, Option<Sample>),
    Backend(ProxyId),
    /// The text is the backend's name.
    BackendNamed,
}

/// Runs until a step needs more than the stream's own data.
fn advance<'a>(program: &'a Program, machine: &mut Machine, hook: Hook, cx: &mut StreamContext) -> Progress<'a> {
    loop {
        match step(program, machine, cx) {
            Step::Done => return Progress::Verdict(Verdict::Continue),
            Step::Act(action, sample) => {
                let room = program.room(cx.held);
                match action.act(sample, &mut Run { machine, hook, room, cx }) {
                    Done::Next => {}
                    Done::Verdict(verdict) => {
                        note_last_rule(program, machine, cx);
                        return Progress::Verdict(verdict);
                    }
                    Done::Wait(reply) => return Progress::Wait(Wait::StoreCall(reply)),
                    Done::Limit(answer) => return Progress::Wait(Wait::Limit(answer)),
                    Done::Body(wait) => return Progress::Wait(Wait::Body(wait)),
                    Done::Pause(time) => return Progress::Wait(Wait::Pause(time)),
                    Done::Hints => return Progress::Wait(Wait::Hints),
                    Done::Resolve(resolving) => return Progress::Wait(Wait::Resolve(resolving)),
                    Done::Spoe(asked) => return Progress::Wait(Wait::Spoe(asked)),
                    Done::Lua(action, hook) => return Progress::Lua(action, hook),
                    Done::Backend(id) => return Progress::Backend(id),
                    Done::BackendNamed => return Progress::BackendNamed,
                }
            }
            Step::Assign(variable, set, sample) => {
                Effect::Set(variable, set.then(|| sample.clone())).apply(cx);
                machine.give(Some(sample));
            }
            Step::Effect(effect, sample) => {
                effect.apply(cx);
                machine.give(Some(sample));
            }
            Step::Missing => return Progress::Verdict(Verdict::Missing),
            Step::StoreFailed(reason) => program.store_failed(machine, &reason, cx),
            Step::Authenticate(check) => return Progress::Wait(Wait::Auth(check)),
            Step::Wait(reply) => return Progress::Wait(Wait::Sample(reply)),
            Step::Lua(call, input) => return Progress::LuaSample(call, input),
        }
    }
}

/// Records the rule that ended its list, for `last_rule_file` and `last_rule_line`.
fn note_last_rule(program: &Program, machine: &Machine, cx: &mut StreamContext) {
    if let Some(place) = program.last_rule(machine) {
        cx.log.last_rule = Some(place);
    }
}

/// Returns the verdict for a Lua action's outcome; `None`: continue with the next rule.
fn lua_verdict(outcome: ActionOutcome, hook: Hook) -> Option<Verdict> {
    let page = |request: u16, response: u16, source| {
        Some(match hook {
            Hook::HttpRequest => Verdict::Reply(page_reply(request, source)),
            Hook::HttpResponse | Hook::HttpAfterResponse => Verdict::Reply(page_reply(response, source)),
            _ => Verdict::Close,
        })
    };
    match outcome {
        ActionOutcome::Continue => None,
        ActionOutcome::Stop => Some(Verdict::Continue),
        ActionOutcome::Reply(reply) => Some(Verdict::Reply(*reply)),
        ActionOutcome::Deny => page(403, 502, ReplySource::Deny),
        ActionOutcome::Error => page(500, 500, ReplySource::Internal),
        ActionOutcome::Invalid => page(400, 502, ReplySource::Invalid),
        ActionOutcome::Abort if hook == Hook::HttpRequest => page(503, 503, ReplySource::Deny),
        ActionOutcome::Abort => Some(Verdict::Close),
        ActionOutcome::Close => Some(Verdict::End),
    }
}

/// Runs a rule list as far as possible without waiting; needs no future and no allocation of its own.
pub fn try_run(list: &RuleList, hook: Hook, cx: &mut StreamContext, scripts: Option<&dyn Scripts>) -> Attempt {
    if list.is_empty() {
        return Attempt::Ready(Verdict::Continue);
    }
    let mut machine = take_machine();
    if matches!(hook, Hook::TcpRequestContent | Hook::TcpResponseContent) {
        machine.start_at(cx.inspection.take_start());
    }
    go_on(&list.code, machine, hook, cx, scripts)
}

fn go_on(
    program: &Program,
    mut machine: Box<Machine>,
    hook: Hook,
    cx: &mut StreamContext,
    scripts: Option<&dyn Scripts>,
) -> Attempt {
    let verdict = loop {
        match advance(program, &mut machine, hook, cx) {
            Progress::Verdict(verdict) => break verdict,
            Progress::Wait(wait) => return suspended(program, machine, wait, cx),
            Progress::Lua(action, lua_hook) => match lua_action(cx, action, lua_hook, scripts) {
                ScriptAttempt::Ready(outcome) => {
                    if let Some(verdict) = lua_verdict(outcome, hook) {
                        note_last_rule(program, &machine, cx);
                        break verdict;
                    }
                }
                ScriptAttempt::Pending(pending) => return suspended(program, machine, Wait::Lua(pending), cx),
            },
            Progress::LuaSample(call, input) => {
                if let Some(pending) = lua_sample(&mut machine, call, input, hook, cx, scripts) {
                    return suspended(program, machine, Wait::LuaSample(pending), cx);
                }
            }
            Progress::Backend(_) | Progress::BackendNamed => {
                debug_assert!(false, "use_backend in a rule list");
            }
        }
    };
    give_machine(machine);
    Attempt::Ready(verdict)
}

/// Returns a list that waits, and records its rule for `waiting_entity`.
fn suspended(program: &Program, machine: Box<Machine>, wait: Wait, cx: &mut StreamContext) -> Attempt {
    cx.log.waiting_rule = program.last_rule(&machine);
    Attempt::Suspended(Suspended { machine, wait, program: program.id() })
}

/// Awaits the pending operation of a rule list, and runs it to its end. `list` and `hook` are those of its suspension.
/// A body is not awaited: a caller that can read it checks [`Suspended::asks`] and resumes step by step with
/// [`resume_once`].
pub async fn resume(
    list: &RuleList,
    suspended: Suspended,
    hook: Hook,
    cx: &mut StreamContext,
    scripts: Option<&dyn Scripts>,
) -> Verdict {
    let mut suspended = suspended;
    loop {
        match resume_once(list, suspended, hook, cx, scripts).await {
            Attempt::Ready(verdict) => return verdict,
            Attempt::Suspended(again) => suspended = again,
        }
    }
}

/// Awaits one operation that a rule list waits for, and runs the list until it ends or waits again.
pub async fn resume_once(
    list: &RuleList,
    suspended: Suspended,
    hook: Hook,
    cx: &mut StreamContext,
    scripts: Option<&dyn Scripts>,
) -> Attempt {
    let Suspended { mut machine, wait, program } = suspended;
    assert_eq!(program, list.code.id(), "a rule list is resumed with its own program");
    let ended = match wait {
        Wait::Sample(reply) => {
            answer(&list.code, &mut machine, reply.await, cx);
            None
        }
        Wait::StoreCall(reply) => {
            let reply = reply.await;
            let room = list.code.room(cx.held);
            list.code.last_action(&machine).take_reply(reply, &mut Run { machine: &mut machine, hook, room, cx })
        }
        Wait::Limit(answer) => {
            let answer = answer.await;
            let room = list.code.room(cx.held);
            list.code.last_action(&machine).take_answer(answer, &mut Run { machine: &mut machine, hook, room, cx })
        }
        Wait::Lua(pending) => lua_verdict(pending.finish(cx).await, hook),
        Wait::LuaSample(pending) => {
            machine.give(pending.finish(cx).await);
            None
        }
        Wait::Auth(check) => {
            cx.auth = Some(check.finish().await);
            None
        }
        Wait::Pause(time) => {
            tokio::time::sleep(time).await;
            None
        }
        Wait::Resolve(resolving) => {
            resolving.finish(cx).await;
            None
        }
        Wait::Spoe(asked) => {
            asked.finish(cx).await;
            None
        }
        Wait::Body(_) | Wait::Hints => None,
    };
    cx.see_arrived();
    cx.log.waiting_rule = None;
    if let Some(verdict) = ended {
        note_last_rule(&list.code, &machine, cx);
        give_machine(machine);
        return Attempt::Ready(verdict);
    }
    go_on(&list.code, machine, hook, cx, scripts)
}

/// Calls a script's fetch or converter; its result becomes the accumulator unless it waits.
fn lua_sample(
    machine: &mut Machine,
    call: &ScriptCall,
    input: Option<Sample>,
    hook: Hook,
    cx: &mut StreamContext,
    scripts: Option<&dyn Scripts>,
) -> Option<Pending<Option<Sample>>> {
    let attempt = match scripts {
        Some(scripts) => scripts.try_sample(cx, call, input, ScriptHook::of(hook), !hook.is_early()),
        None => ScriptAttempt::Ready(None),
    };
    match attempt {
        ScriptAttempt::Ready(sample) => {
            machine.give(sample);
            None
        }
        ScriptAttempt::Pending(pending) => Some(pending),
    }
}

/// Runs the first burst of a script's action; on a worker without scripts the next rule follows.
fn lua_action(
    cx: &mut StreamContext,
    action: &BoundAction,
    hook: ScriptHook,
    scripts: Option<&dyn Scripts>,
) -> ScriptAttempt<ActionOutcome> {
    match scripts {
        Some(scripts) => scripts.try_action(cx, action, hook),
        None => ScriptAttempt::Ready(ActionOutcome::Continue),
    }
}

fn answer(program: &Program, machine: &mut Machine, reply: Reply, cx: &mut StreamContext) {
    if let Some(reason) = machine.answer(reply) {
        program.store_failed(machine, &reason, cx);
    }
}

/// Runs a rule list to its end.
pub async fn run(list: &RuleList, hook: Hook, cx: &mut StreamContext, scripts: Option<&dyn Scripts>) -> Verdict {
    match try_run(list, hook, cx, scripts) {
        Attempt::Ready(verdict) => verdict,
        Attempt::Suspended(suspended) => resume(list, suspended, hook, cx, scripts).await,
    }
}

/// Chooses the backend of a stream by `use_backend` and `default_backend`, as far as possible without waiting.
pub fn try_choose_backend(rules: &ProxyRules, cx: &mut StreamContext, scripts: Option<&dyn Scripts>) -> BackendAttempt {
    if rules.use_backend.is_empty() {
        return BackendAttempt::Ready(rules.default_backend);
    }
    go_on_choosing(rules, take_machine(), cx, scripts)
}

fn go_on_choosing(
    rules: &ProxyRules,
    mut machine: Box<Machine>,
    cx: &mut StreamContext,
    scripts: Option<&dyn Scripts>,
) -> BackendAttempt {
    let program = &rules.use_backend.code;
    let chosen = loop {
        match advance(program, &mut machine, Hook::HttpRequest, cx) {
            Progress::Backend(id) => break Some(id),
            Progress::BackendNamed => {
                let name = std::str::from_utf8(machine.text()).ok();
                // Without a backend of this name the default is used, as in HAProxy, not a later rule.
                let named = name.and_then(|name| cx.frontend.directory.backend_id(name));
                break named.or(rules.default_backend);
            }
            Progress::Verdict(_) => break rules.default_backend,
            Progress::Wait(wait) => {
                return BackendAttempt::Suspended(Suspended { machine, wait, program: program.id() });
            }
            Progress::Lua(..) => debug_assert!(false, "a Lua action chooses no backend"),
            Progress::LuaSample(call, input) => {
                if let Some(pending) = lua_sample(&mut machine, call, input, Hook::HttpRequest, cx, scripts) {
                    return BackendAttempt::Suspended(Suspended {
                        machine,
                        wait: Wait::LuaSample(pending),
                        program: program.id(),
                    });
                }
            }
        }
    };
    give_machine(machine);
    BackendAttempt::Ready(chosen)
}

/// Awaits the pending operation of the choice of a backend, and chooses.
pub async fn resume_backend(
    rules: &ProxyRules,
    suspended: Suspended,
    cx: &mut StreamContext,
    scripts: Option<&dyn Scripts>,
) -> Option<ProxyId> {
    let mut suspended = suspended;
    loop {
        let Suspended { mut machine, wait, program } = suspended;
        assert_eq!(program, rules.use_backend.code.id(), "a rule list is resumed with its own program");
        match wait {
            Wait::Sample(reply) => answer(&rules.use_backend.code, &mut machine, reply.await, cx),
            Wait::LuaSample(pending) => machine.give(pending.finish(cx).await),
            Wait::Auth(check) => cx.auth = Some(check.finish().await),
            Wait::StoreCall(_)
            | Wait::Limit(_)
            | Wait::Lua(_)
            | Wait::Body(_)
            | Wait::Pause(_)
            | Wait::Resolve(_)
            | Wait::Spoe(_)
            | Wait::Hints => {
                debug_assert!(false, "use_backend acts on nothing")
            }
        }
        match go_on_choosing(rules, machine, cx, scripts) {
            BackendAttempt::Ready(chosen) => return chosen,
            BackendAttempt::Suspended(again) => suspended = again,
        }
    }
}

/// Chooses the backend of a stream; `None` if there is none.
pub async fn choose_backend(
    rules: &ProxyRules,
    cx: &mut StreamContext,
    scripts: Option<&dyn Scripts>,
) -> Option<ProxyId> {
    match try_choose_backend(rules, cx, scripts) {
        BackendAttempt::Ready(chosen) => chosen,
        BackendAttempt::Suspended(suspended) => resume_backend(rules, suspended, cx, scripts).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a verdict as text: `-` continues, `ok` ends the list, `close` refuses, `end` closes, otherwise the
    /// status and the source.
    fn shown(verdict: Option<Verdict>) -> String {
        match verdict {
            None => "-".to_owned(),
            Some(Verdict::Continue) => "ok".to_owned(),
            Some(Verdict::Close) => "close".to_owned(),
            Some(Verdict::End) => "end".to_owned(),
            Some(Verdict::Missing) => "missing".to_owned(),
            Some(Verdict::Service(service)) => service.name().to_string(),
            Some(Verdict::Reply(reply)) => format!("{} {:?}", reply.head.status(), reply.source),
            Some(Verdict::Exporter) => "exporter".to_owned(),
        }
    }

    #[test]
    fn a_lua_outcome_means_what_its_hook_can_do() {
        let check = |outcome: fn() -> ActionOutcome, expected: [&str; 3]| {
            let hooks = [Hook::HttpRequest, Hook::HttpResponse, Hook::TcpRequestContent];
            assert_eq!(hooks.map(|hook| shown(lua_verdict(outcome(), hook))), expected, "{:?}", outcome());
        };
        check(|| ActionOutcome::Continue, ["-", "-", "-"]);
        check(|| ActionOutcome::Stop, ["ok", "ok", "ok"]);
        check(|| ActionOutcome::Deny, ["403 Deny", "502 Deny", "close"]);
        check(|| ActionOutcome::Error, ["500 Internal", "500 Internal", "close"]);
        check(|| ActionOutcome::Invalid, ["400 Invalid", "502 Invalid", "close"]);
        check(|| ActionOutcome::Abort, ["503 Deny", "close", "close"]);
        check(|| ActionOutcome::Close, ["end", "end", "end"]);
        let reply = || ActionOutcome::Reply(Box::new(page_reply(404, ReplySource::Return)));
        check(reply, ["404 Return", "404 Return", "404 Return"]);
    }
}
