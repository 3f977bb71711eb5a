//! `store-call`: one command of a store or an engine, as a rule.
//!
//! The arguments were rendered into the machine's text, one after another, so a call borrows them from there. Every
//! failure leaves its reason in `txn.store_err` and is told by [`Failed`]; a success leaves that variable alone, so a condition after several
//! calls sees that one of them failed.

use std::sync::Arc;

use sluicegate_config::model::OnError;
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;
use smallvec::SmallVec;

use super::code::Machine;
use super::failed::Failed;
use super::reply::page_reply;
use super::{Hook, ReplySource, Verdict};
use crate::sample::{Sample, Value, VarRef, reply_value};
use crate::stream::StreamContext;

/// `store-call`, compiled; command and arguments are the machine's texts.
pub(super) struct StoreCode {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) set_var: Option<VarRef>,
    pub(super) on_error: OnError,
    pub(super) failed: Arc<Failed>,
}

impl StoreCode {
    pub(super) fn start(&self, machine: &Machine) -> Started {
        let args: SmallVec<[&[u8]; 8]> = machine.texts().collect();
        self.engine.start_from(&|| self.failed.origin.to_string(), 0, &args)
    }

    /// Takes the reply; `Some` ends the rule list.
    pub(super) fn finish(
        &self,
        reply: Reply,
        machine: &Machine,
        hook: Hook,
        cx: &mut StreamContext,
    ) -> Option<Verdict> {
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
        self.failed.note(machine.texts().nth(1).unwrap_or_default(), &failure, cx);
        match (&self.on_error, &self.set_var) {
            (OnError::Open, _) | (OnError::Value(_), None) => None,
            (OnError::Value(value), Some(variable)) => {
                cx.variables.set(variable, Sample::Str(value.clone().into_bytes()));
                None
            }
            (OnError::Closed, _) if hook.is_http() => Some(Verdict::Reply(page_reply(503, ReplySource::Deny))),
            (OnError::Closed, _) => Some(Verdict::Close),
        }
    }
}
