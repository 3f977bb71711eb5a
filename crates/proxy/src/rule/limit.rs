//! `limit` as a rule: the query, and its effect on the stream.
//!
//! The machine's texts are the key, after the common prefix of the limit's keys, and the cost. The decision about a
//! request is in the stream's context until its response is sent, and so is its lease until it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluicegate_config::model::{self, FormatFlags, LimitHeaders, LimitOnError, Position, VarName, VarScope};

use super::action::{Act, ActionCode, Compiled, Done, Run};
use super::build::Builder;
use super::code::{Machine, Op};
use super::failed::Failed;
use super::reply::page_reply;
use super::{Hook, ReplySource, Verdict};
use crate::limit::{self, Answer, Asked, COST_MAX, Fresh, KEY_MAX, Limit, Outcome, Plan};
use crate::sample::{FormatMode, Sample, VarRef};
use crate::stream::StreamContext;

/// `limit`, compiled.
struct LimitCode {
    /// The limit's number in the process.
    number: u32,
    limit: Arc<Limit>,
    plan: Arc<Plan>,
    stand_in: Option<Arc<Plan>>,
    /// Bytes of the first text before the key.
    prefix: usize,
    headers: LimitHeaders,
    deny_status: u16,
    shadow: bool,
    on_error: LimitOnError,
    /// `txn.limit.NAME`.
    variable: VarRef,
    failed: Arc<Failed>,
}

/// `limit NAME key EXPRESSION …`.
pub(super) fn limit(b: &mut Builder<'_>, rule: &model::LimitRule, at: &Position) -> Compiled {
    let name = &rule.limit.name;
    let found = b.scope.directory.and_then(|directory| directory.limit(name)).cloned();
    let limit = found.ok_or_else(|| format!("no store of the limit '{name}' is named '{}'", rule.limit.store))?;
    let failed = b.failed_at(at, &format!("limit {name}"));
    let (code, prefix) = LimitCode::new(rule, limit, failed).ok_or("too many variable names in this process")?;
    b.ops.extend([Op::Begin, Op::Text(prefix)]);
    for expr in std::iter::once(&rule.key).chain(&rule.cost) {
        b.expr(expr);
        b.ops.push(Op::AppendValue(FormatFlags::default(), FormatMode::Plain));
        b.ops.push(Op::EndText);
    }
    Ok(ActionCode::of(code))
}

impl Act for LimitCode {
    fn act<'a>(&'a self, _: Option<Sample>, run: &mut Run<'_>) -> Done<'a> {
        if !run.hook.is_http() && run.cx.limits.passed.contains(&self.number) {
            return Done::Next;
        }
        let (stored, cost) = {
            let mut texts = run.machine.texts();
            (texts.next().unwrap_or(b""), texts.next().filter(|cost| !cost.is_empty()).unwrap_or(b"1"))
        };
        let key = self.key(run.machine);
        let wrong = if key.is_empty() {
            Some("the key is empty")
        } else if key.len() > KEY_MAX {
            Some("the key is longer than 1024 bytes")
        } else if cost != b"1" && !is_cost(cost) {
            Some("the cost is no number from 0 to 1000000000")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            return self.fail(wrong, key, run.hook, run.cx).map_or(Done::Next, Done::Verdict);
        }
        match limit::ask(&self.limit, &self.plan, self.stand_in.as_ref(), stored, without_zeros(cost)) {
            Asked::Done(answer) => self.take_answer(answer, run).map_or(Done::Next, Done::Verdict),
            Asked::Later(answer) => Done::Limit(answer),
        }
    }

    fn take_answer(&self, answer: Answer, run: &mut Run<'_>) -> Option<Verdict> {
        let (key, hook, cx) = (self.key(run.machine), run.hook, &mut *run.cx);
        let Answer { told, away, lease } = answer;
        let told = match told {
            Ok(told) => told,
            Err(reason) => return self.fail(&away.unwrap_or(reason), key, hook, cx),
        };
        let plan = match (&away, &self.stand_in) {
            (Some(reason), Some(stand_in)) => {
                self.limit.failed(true);
                self.failed.note(key, reason, cx);
                stand_in
            }
            _ => &self.plan,
        };
        cx.limits.leases.extend(lease);
        let fresh = Fresh { name: &self.limit.config.name, plan, told };
        if hook.is_http() {
            cx.limits.fields.add(self.headers, &fresh);
        } else {
            cx.limits.passed.push(self.number);
        }
        if told.allowed {
            let near = told.remaining.saturating_mul(5) <= plan.capacity;
            self.limit.count(key, if near { Outcome::Near } else { Outcome::Allowed });
            if near {
                self.say("near", cx);
            }
            return None;
        }
        self.limit.count(key, if self.shadow { Outcome::Shadowed } else { Outcome::Denied });
        self.say("denied", cx);
        if self.shadow {
            return None;
        }
        if !hook.is_http() {
            return Some(Verdict::Close);
        }
        cx.limits.fields.retry_after(&fresh);
        Some(Verdict::Reply(page_reply(self.deny_status, ReplySource::Deny)))
    }
}

impl LimitCode {
    /// Returns the rule and the prefix of its first text; `None` if the limit of variable names is reached.
    fn new(rule: &model::LimitRule, limit: Arc<Limit>, failed: Arc<Failed>) -> Option<(LimitCode, Box<[u8]>)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let config = limit.config.clone();
        let name = format!("limit.{}", config.name.replace('-', "_"));
        let prefix = limit.prefix().into_bytes();
        let code = LimitCode {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            plan: Arc::new(Plan::new(&config, 1.0, config.external).of(&failed.origin)),
            stand_in: match rule.on_error {
                LimitOnError::Local(fraction) => Some(Arc::new(Plan::new(&config, fraction, false).of(&failed.origin))),
                LimitOnError::Open | LimitOnError::Closed => None,
            },
            limit,
            prefix: prefix.len(),
            headers: rule.headers,
            deny_status: rule.deny_status,
            shadow: rule.shadow,
            on_error: rule.on_error,
            variable: VarRef::intern(&VarName { scope: VarScope::Txn, name: name.into() })?,
            failed,
        };
        Some((code, prefix.into()))
    }

    /// Returns the key of the current request.
    fn key<'m>(&self, machine: &'m Machine) -> &'m [u8] {
        machine.texts().next().and_then(|text| text.get(self.prefix..)).unwrap_or(b"")
    }

    fn say(&self, word: &str, cx: &mut StreamContext) {
        cx.variables.set(&self.variable, Sample::Str(word.as_bytes().to_vec()));
    }

    /// Handles a limit that could not be queried.
    fn fail(&self, reason: &str, key: &[u8], hook: Hook, cx: &mut StreamContext) -> Option<Verdict> {
        self.limit.failed(false);
        self.failed.note(key, reason, cx);
        self.say("failed", cx);
        if !hook.is_http() {
            cx.limits.passed.push(self.number);
        }
        if self.shadow || self.on_error != LimitOnError::Closed {
            return None;
        }
        Some(if hook.is_http() { Verdict::Reply(page_reply(503, ReplySource::Deny)) } else { Verdict::Close })
    }
}

/// Returns a number without leading zeros, with which stores would reject it.
fn without_zeros(text: &[u8]) -> &[u8] {
    let zeros = text.iter().take_while(|byte| **byte == b'0').count();
    &text[zeros.min(text.len().saturating_sub(1))..]
}

fn is_cost(text: &[u8]) -> bool {
    let number = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    number.and_then(|text| text.parse::<u64>().ok()).is_some_and(|cost| cost <= COST_MAX)
}
