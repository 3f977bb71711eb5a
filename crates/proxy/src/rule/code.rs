//! The flat code of a rule list and the plain function that runs it.
//!
//! One accumulator holds the current sample, one buffer the text being rendered; conditions are jumps. When the
//! function returns no sample is alive, so the state kept during a wait is the program counter, the cursor of a
//! condition over several occurrences and the text so far.

use std::sync::Arc;

use sluicegate_config::model::{FormatFlags, LogAlias};
use sluicegate_wire::engine::PendingReply;
use sluicegate_wire::reply::Reply;
use smallvec::SmallVec;

use super::action::ActionCode;
use super::failed::{Failed, KEY_SHOWN};
use crate::auth::{self, UserList};
use crate::log::alias::{self, View};
use crate::sample::{
    Converted, ConverterCode, Cursor, Effect, FetchCode, FormatMode, MatcherCode, Sample, Value, VarRef, append_value,
    basic_credentials,
};
use crate::stream::{RulePlace, ScriptCall, StreamContext};

/// One operation.
pub(super) enum Op {
    /// Sets the accumulator to the fetch's sample, or empties it.
    Fetch(FetchCode),
    /// Authenticates the user of the request with this list.
    Authenticate(Arc<UserList>),
    /// Starts a condition whose fetch has several occurrences: none has been seen yet.
    Rewind,
    /// Moves the next occurrence to the accumulator; jumps if there is none left.
    FetchNext(FetchCode, u32),
    /// Converts the accumulator; an empty one stays empty.
    Convert(ConverterCode),
    /// Moves the result of a script's function to the accumulator.
    LuaFetch(Arc<ScriptCall>),
    /// Replaces the accumulator by the result of a script's function for it; without a sample the function is not
    /// called.
    LuaConvert(Arc<ScriptCall>),
    /// Jumps if the accumulator matches.
    JumpIfMatch(MatcherCode, u32),
    /// Jumps.
    Jump(u32),
    /// Starts a condition of content rules, which has three values; see [`Missed`].
    ConditionBegins,
    /// A test did not match: records whether the reason was missing data.
    NoteMissed,
    /// A term's ACL matched, so the data missing for it is irrelevant.
    TermHolds,
    /// A negated term's ACL did not match: the term holds, or is undecided.
    NegatedHolds,
    /// A term's ACL did not match: its group fails, unless the term is undecided.
    TermFails(u32),
    /// A negated term's ACL matched: its group fails.
    NegatedFails(u32),
    /// No term of the group failed: the group holds, or is undecided and the next group is tested.
    GroupEnds(u32),
    /// No group holds: if one is undecided, rules wait for data.
    ConditionEnds,
    /// The sample since [`Op::ConditionBegins`] may change with more data: rules wait for it, and continue there.
    AwaitSample(u32),
    /// Starts rendering: the text is empty.
    Begin,
    /// Appends to the text.
    Text(Box<[u8]>),
    /// Appends the accumulator.
    AppendValue(FormatFlags, FormatMode),
    /// Appends an alias.
    AppendAlias(LogAlias, FormatFlags, FormatMode),
    /// One of several texts ends here; see [`Machine::texts`].
    EndText,
    /// Passes the accumulator or the text to an action.
    Act(ActionCode),
    /// Ends the list.
    Stop,
}

/// A rule list's code. It ends in [`Op::Stop`] unless it is empty.
#[derive(Default)]
pub(super) struct Program {
    ops: Box<[Op]>,
    /// The index of the last operation of each rule, in order, and the rule's position in the configuration, for the
    /// log.
    rules: Box<[(u32, RulePlace)]>,
    /// Receivers of the failures of converters that query stores, each with the index of the operation behind its
    /// converter; sorted by index.
    failed: Box<[(u32, Arc<Failed>)]>,
    /// `tune.bufsize`: a text is at most this long, and so is a head that a rule edits. HAProxy renders into a buffer
    /// of that size and cuts what does not fit.
    bufsize: usize,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({} operations)", self.ops.len())
    }
}

impl Program {
    pub(super) fn new(
        ops: Vec<Op>,
        rules: Vec<(u32, RulePlace)>,
        failed: Vec<(u32, Arc<Failed>)>,
        bufsize: usize,
    ) -> Program {
        Program { ops: ops.into(), rules: rules.into(), failed: failed.into(), bufsize }
    }

    /// Drops the positions of the rules, for a list whose rules are not logged.
    pub(super) fn without_places(mut self) -> Program {
        self.rules = Box::default();
        self
    }

    /// Returns the maximum length of an edited head when `held` bytes are used otherwise.
    pub(super) fn room(&self, held: usize) -> usize {
        self.bufsize.saturating_sub(held)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Records that the store that the last converter queried did not answer.
    pub(super) fn store_failed(&self, machine: &Machine, reason: &str, cx: &mut StreamContext) {
        let found = self.failed.binary_search_by_key(&machine.next, |(next, _)| *next);
        debug_assert!(found.is_ok(), "only converters that ask stores fail");
        if let Ok(found) = found {
            self.failed[found].1.note(&machine.key, reason, cx);
        }
    }

    /// Returns the rule of the action that was executed last; `None` in lists whose rules are not logged.
    pub(super) fn last_rule(&self, machine: &Machine) -> Option<RulePlace> {
        let index = self.rules.partition_point(|(end, _)| *end < machine.next);
        self.rules.get(index).map(|(_, place)| *place)
    }

    /// Returns the action that was executed last and now waits.
    pub(super) fn last_action(&self, machine: &Machine) -> &ActionCode {
        match &self.ops[machine.next as usize - 1] {
            Op::Act(action) => action,
            _ => unreachable!("an action that waits is the last operation"),
        }
    }

    /// Returns an identifier of the program, which is unique among programs that have operations.
    pub(super) fn id(&self) -> usize {
        self.ops.as_ptr().addr()
    }
}

/// The parts of a condition of content rules that are undecided for lack of data that may still arrive.
///
/// As in HAProxy, such a condition has a third value. In a conjunction one failed term outweighs undecided ones; in a
/// disjunction one group that holds does. Only a condition that remains undecided waits.
#[derive(Clone, Copy, Debug, Default)]
struct Missed {
    term: bool,
    group: bool,
    condition: bool,
}

/// The state that the evaluator keeps between operations; its memory is reused.
#[derive(Default)]
pub(super) struct Machine {
    /// The next operation.
    next: u32,
    /// The position of the current condition among the occurrences of its fetch.
    cursor: Cursor,
    /// The undecided parts of the condition.
    missed: Missed,
    /// The text that is being rendered, or several texts, one after the other.
    out: Vec<u8>,
    /// The end of each text but the last one being rendered in `out`.
    ends: SmallVec<[u32; 8]>,
    /// The start of the key that a converter last requested from a store.
    key: Vec<u8>,
    /// The result of an awaited operation for the accumulator.
    resumed: Option<Sample>,
    /// `strict-mode off`: an edit that does not fit is skipped.
    pub(super) soft: bool,
}

/// The maximum text memory that a machine keeps for the next stream; the memory for one large body must not stay
/// allocated.
const KEPT_TEXT: usize = 64 << 10;

impl Machine {
    /// Sets the first operation.
    pub(super) fn start_at(&mut self, op: u32) {
        self.next = op;
    }

    /// Resets the machine for another program.
    pub(super) fn reset(&mut self) {
        self.next = 0;
        self.cursor = Cursor::default();
        self.resumed = None;
        self.soft = false;
        self.begin();
        if self.out.capacity() > KEPT_TEXT {
            self.out = Vec::new();
        }
    }

    fn begin(&mut self) {
        self.out.clear();
        self.ends.clear();
    }

    /// Cuts the text that is being rendered to `limit` bytes.
    #[inline]
    fn bound(&mut self, limit: usize) {
        let start = self.ends.last().map_or(0, |end| *end as usize);
        if self.out.len() - start > limit {
            self.out.truncate(start + limit);
        }
    }

    /// Returns the whole text since the last [`Op::Begin`].
    pub(super) fn text(&self) -> &[u8] {
        &self.out
    }

    /// Returns the texts that [`Op::EndText`] ended, in order.
    pub(super) fn texts(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        (0..self.ends.len()).map(|index| {
            let start = if index == 0 { 0 } else { self.ends[index - 1] };
            &self.out[start as usize..self.ends[index] as usize]
        })
    }

    /// Moves the result of a script's function to the accumulator.
    pub(super) fn give(&mut self, sample: Option<Sample>) {
        self.resumed = sample;
    }

    /// Accepts the reply to [`Step::Wait`], which becomes the accumulator. Returns the reason if the store failed.
    pub(super) fn answer(&mut self, reply: Reply) -> Option<String> {
        match ConverterCode::finish(reply) {
            Converted::Value(value) => self.resumed = Some(value.into_sample()),
            Converted::Failed(reason) => return Some(reason),
            Converted::Nothing | Converted::Pending(_) | Converted::Assign(..) | Converted::Effect(..) => {}
        }
        None
    }
}

/// The reason why the evaluator stopped.
pub(super) enum Step<'a> {
    /// The end.
    Done,
    /// Execute an action, with the sample if it uses one.
    Act(&'a ActionCode, Option<Sample>),
    /// Set a variable to the sample, or unset it if `false`; pass the sample to [`Machine::give`], then continue.
    Assign(VarRef, bool, Sample),
    /// Apply another effect; pass the sample to [`Machine::give`], then continue.
    Effect(Box<Effect>, Sample),
    /// A condition or a sample needs data that has not arrived: run the list again when there is more, from its start or
    /// from where the inspection says.
    Missing,
    /// A converter's store failed: set `txn.store_err` to the reason, then continue.
    StoreFailed(String),
    /// Call a script's function, on the sample if it is a converter; pass its result to [`Machine::give`], then
    /// continue.
    Lua(&'a ScriptCall, Option<Sample>),
    /// Verify a password; record the result, then continue.
    Authenticate(auth::Check),
    /// A converter's store answers later: pass its reply to [`Machine::answer`], then continue.
    Wait(PendingReply),
}

impl Step<'_> {
    /// Returns the step for a converter's result that is neither a value nor empty.
    fn of<'a>(converted: Converted<'_>) -> Step<'a> {
        match converted {
            Converted::Assign(variable, set, kept) => Step::Assign(variable, set, kept.into_sample()),
            Converted::Effect(effect, kept) => Step::Effect(effect, kept.into_sample()),
            Converted::Failed(reason) => Step::StoreFailed(reason),
            Converted::Pending(reply) => Step::Wait(reply),
            Converted::Value(_) | Converted::Nothing => unreachable!("a value needs no step"),
        }
    }
}

/// The next step of a condition of content rules.
enum Decision {
    /// Continue with the next operation.
    Next,
    /// Continue at another operation.
    Jump(u32),
    /// Undecided until more data has arrived.
    Undecided,
}

impl Machine {
    /// Executes an operation of a condition of content rules, which has three values; see [`Missed`].
    fn decide(&mut self, op: &Op, cx: &StreamContext) -> Decision {
        let missed = &mut self.missed;
        match op {
            Op::ConditionBegins => {
                cx.inspection.take_missed();
                *missed = Missed::default();
            }
            Op::NoteMissed => missed.term |= cx.inspection.take_missed(),
            Op::TermHolds => {
                cx.inspection.take_missed();
                missed.term = false;
            }
            Op::NegatedHolds => missed.group |= std::mem::take(&mut missed.term),
            Op::TermFails(target) => {
                missed.group = std::mem::take(&mut missed.term);
                if !missed.group {
                    return Decision::Jump(*target);
                }
            }
            Op::NegatedFails(target) => {
                cx.inspection.take_missed();
                missed.term = false;
                missed.group = false;
                return Decision::Jump(*target);
            }
            Op::GroupEnds(target) if std::mem::take(&mut missed.group) => {
                missed.condition = true;
                return Decision::Jump(*target);
            }
            Op::ConditionEnds if missed.condition => return Decision::Undecided,
            _ => {}
        }
        Decision::Next
    }
}

/// Runs the program from the machine's position until its end, or until an operation needs more than to read the
/// stream.
pub(super) fn step<'a>(program: &'a Program, machine: &mut Machine, cx: &StreamContext) -> Step<'a> {
    let ops = &program.ops;
    let resumed = machine.resumed.take();
    let mut value: Option<Value<'_>> = resumed.map(Value::from_sample);
    let mut at = machine.next as usize;
    loop {
        let Some(op) = ops.get(at) else { return Step::Done };
        at += 1;
        match op {
            Op::Fetch(fetch) => value = fetch.fetch(cx),
            Op::Authenticate(list) => {
                let credentials = basic_credentials(cx);
                if let Some(check) = credentials.and_then(|sent| auth::begin(list, sent, cx.auth.as_ref())) {
                    machine.next = at as u32;
                    return Step::Authenticate(check);
                }
            }
            Op::Rewind => machine.cursor = Cursor::default(),
            Op::FetchNext(fetch, end) => match fetch.fetch_next(cx, &mut machine.cursor) {
                None => at = *end as usize,
                found => value = found,
            },
            Op::Convert(converter) => {
                let Some(input) = value.take() else { continue };
                if converter.may_wait() {
                    machine.key.clear();
                    // One byte more than the log shows, which reveals that the key is longer.
                    input.with_text(|key| machine.key.extend_from_slice(&key[..key.len().min(KEY_SHOWN + 1)]));
                }
                match converter.convert(input, cx) {
                    Converted::Value(converted) => value = Some(converted),
                    Converted::Nothing => {}
                    other => {
                        machine.next = at as u32;
                        return Step::of(other);
                    }
                }
            }
            Op::LuaFetch(call) => {
                machine.next = at as u32;
                return Step::Lua(call, None);
            }
            Op::LuaConvert(call) => {
                let Some(input) = value.take() else { continue };
                machine.next = at as u32;
                return Step::Lua(call, Some(input.into_sample()));
            }
            Op::JumpIfMatch(matcher, target) => {
                if value.as_ref().is_some_and(|value| matcher.matches(value)) {
                    at = *target as usize;
                }
            }
            Op::Jump(target) => at = *target as usize,
            Op::ConditionBegins
            | Op::NoteMissed
            | Op::TermHolds
            | Op::NegatedHolds
            | Op::TermFails(_)
            | Op::NegatedFails(_)
            | Op::GroupEnds(_)
            | Op::ConditionEnds => match machine.decide(op, cx) {
                Decision::Next => {}
                Decision::Jump(target) => at = target as usize,
                Decision::Undecided => return Step::Missing,
            },
            Op::AwaitSample(again) => {
                if cx.inspection.take_missed() {
                    cx.inspection.continue_at(*again);
                    return Step::Missing;
                }
            }
            Op::Begin => machine.begin(),
            Op::Text(text) => machine.out.extend_from_slice(text),
            Op::AppendValue(flags, mode) => {
                append_value(value.as_ref(), *flags, *mode, &mut machine.out);
                machine.bound(program.bufsize);
            }
            Op::AppendAlias(alias, flags, mode) => {
                alias::append(*alias, *flags, *mode, &View::running(cx), &mut machine.out);
                machine.bound(program.bufsize);
            }
            Op::EndText => machine.ends.push(machine.out.len() as u32),
            Op::Act(action) => {
                machine.next = at as u32;
                let sample = if action.takes_sample { value.take().map(Value::into_sample) } else { None };
                return Step::Act(action, sample);
            }
            Op::Stop => return Step::Done,
        }
    }
}
