//! `store-call`: one command of a store or an engine, as a rule.
//!
//! The arguments were rendered into the machine's text, one after another, so a call borrows them from there. Every
//! failure sets its reason in `txn.store_err` and is reported by [`Failed`]; a success does not change that variable,
//! so a condition after several calls sees that one of them failed.

use std::sync::Arc;

use sluicegate_config::model::{self, OnError, Position};
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;
use smallvec::SmallVec;

use super::action::{Act, ActionCode, Compiled, Done, Run};
use super::build::Builder;
use super::failed::Failed;
use super::reply::page_reply;
use super::variable::variable;
use super::{ReplySource, Verdict};
use crate::sample::{FormatMode, Sample, Value, VarRef, reply_value};

/// `store-call`, compiled; command and arguments are the machine's texts.
struct StoreCode {
    engine: Arc<dyn Engine>,
    set_var: Option<VarRef>,
    on_error: OnError,
    failed: Arc<Failed>,
}

/// `store-call STORE COMMAND [FORMAT]… [set-var(NAME)] [on-error …]`.
pub(super) fn store_call(b: &mut Builder<'_>, call: &model::StoreCall, at: &Position) -> Compiled {
    if b.hook.is_early() {
        return Err("a store cannot be waited for before a stream".to_owned());
    }
    let engine = b.engines.get(&call.store).cloned().ok_or_else(|| format!("no store is named '{}'", call.store))?;
    if call.args.is_empty() {
        return Err("store-call needs a command".to_owned());
    }
    let set_var = call.set_var.as_ref().map(variable).transpose()?;
    b.texts(call.args.iter(), FormatMode::Plain);
    let failed = b.failed_at(at, &format!("store-call {}", call.store));
    Ok(ActionCode::of(StoreCode { engine, set_var, on_error: call.on_error.clone(), failed }))
}

impl Act for StoreCode {
    fn act<'a>(&'a self, _: Option<Sample>, run: &mut Run<'_>) -> Done<'a> {
        let started = {
            let args: SmallVec<[&[u8]; 8]> = run.machine.texts().collect();
            self.engine.start_from(&|| self.failed.origin.to_string(), 0, &args)
        };
        match started {
            Started::Done(reply) => self.take_reply(reply, run).map_or(Done::Next, Done::Verdict),
            Started::Pending(reply) => Done::Wait(reply),
        }
    }

    fn take_reply(&self, reply: Reply, run: &mut Run<'_>) -> Option<Verdict> {
        let cx = &mut *run.cx;
        let failure = match (reply, &self.set_var) {
            (Reply::Error(reason), _) => reason,
            (Reply::Null, Some(variable)) => {
                cx.variables.unset(variable);
                return None;
            }
            (_, None) => return None,
            (reply, Some(variable)) => match reply_value(reply).map(Value::into_sample) {
                Some(sample) => {
                    if cx.variables.set(variable, sample) {
                        return None;
                    }
                    "ERR the reply is too big for a variable".to_owned()
                }
                None => "ERR the reply is not a single value".to_owned(),
            },
        };
        // The first argument is the key of most commands.
        self.failed.note(run.machine.texts().nth(1).unwrap_or_default(), &failure, cx);
        match (&self.on_error, &self.set_var) {
            (OnError::Open, _) | (OnError::Value(_), None) => None,
            (OnError::Value(value), Some(variable)) => {
                cx.variables.set(variable, Sample::Str(value.clone().into_bytes()));
                None
            }
            (OnError::Closed, _) if run.hook.is_http() => Some(Verdict::Reply(page_reply(503, ReplySource::Deny))),
            (OnError::Closed, _) => Some(Verdict::Close),
        }
    }
}
