//! The builder of a rule list: conditions, expressions and texts become operations.

use std::sync::Arc;

use sluicegate_config::model::{
    self, Acl, AclRef, Condition, Expr, FormatPart, LogFormat, LogTarget, Matcher, Position, Rule,
};
use sluicegate_pattern::PatternFiles;

use super::action::{self, Compiled, Place};
use super::code::{Op, Program};
use super::failed::Failed;
use super::spoe::SpoeEngine;
use super::{CompileError, Hook, Looks, RuleList};
use crate::engines::Engines;
use crate::log::{Logger, ProxyLog};
use crate::sample::{ConverterCode, FetchCode, FetchScope, FormatMode, MatcherCode, encoded_parts};
use crate::stream::{Bindings, RulePlace};

/// A position in the code that is not known yet, with the operations that jump to it.
#[derive(Default)]
struct Label {
    jumps: Vec<usize>,
}

/// The inputs of a proxy's rule lists.
pub(super) struct Sources<'a> {
    pub(super) proxy: &'a model::Proxy,
    pub(super) engines: &'a Engines,
    /// Map and ACL files, for the rules that change them.
    pub(super) patterns: &'a PatternFiles,
    pub(super) lua: Option<&'a dyn Bindings>,
    pub(super) scope: FetchScope<'a>,
    pub(super) bufsize: usize,
    /// The logger of store failures.
    pub(super) logger: &'a Logger,
    /// The log formats of all proxies, for the rules that log.
    pub(super) logs: Arc<[Arc<ProxyLog>]>,
    pub(super) targets: Arc<[LogTarget]>,
    /// The engines of 'filter spoe'.
    pub(super) agents: &'a [Arc<SpoeEngine>],
}

/// A rule list that is being built.
pub(super) struct Builder<'a> {
    sources: &'a Sources<'a>,
    pub(super) hook: Hook,
    pub(super) ops: Vec<Op>,
    /// The operation after which each rule ends, for lists whose last rule is logged.
    rules: Vec<(u32, RulePlace)>,
    failed: Vec<(u32, Arc<Failed>)>,
    looks: Looks,
    errors: &'a mut Vec<CompileError>,
}

impl<'a> std::ops::Deref for Builder<'a> {
    type Target = Sources<'a>;

    fn deref(&self) -> &Sources<'a> {
        self.sources
    }
}

impl<'a> Builder<'a> {
    pub(super) fn new(sources: &'a Sources<'a>, hook: Hook, errors: &'a mut Vec<CompileError>) -> Builder<'a> {
        let (ops, rules, failed, looks) = (Vec::new(), Vec::new(), Vec::new(), Looks::default());
        Builder { sources, hook, ops, rules, failed, looks, errors }
    }
}

impl Builder<'_> {
    pub(super) fn finish(mut self) -> RuleList {
        if !self.ops.is_empty() {
            self.ops.push(Op::Stop);
        }
        RuleList { code: Program::new(self.ops, self.rules, self.failed, self.sources.bufsize), looks: self.looks }
    }

    fn error(&mut self, at: &Position, message: impl Into<String>) {
        self.errors.push(CompileError { at: at.clone(), message: message.into() });
    }

    /// Emits an operation that jumps to `label`.
    fn jump(&mut self, op: Op, label: &mut Label) {
        label.jumps.push(self.ops.len());
        self.ops.push(op);
    }

    /// Sets the position of `label` to the next operation.
    fn place(&mut self, label: Label) {
        let here = self.ops.len() as u32;
        for jump in label.jumps {
            match &mut self.ops[jump] {
                Op::Jump(target)
                | Op::JumpIfMatch(_, target)
                | Op::FetchNext(_, target)
                | Op::TermFails(target)
                | Op::NegatedFails(target)
                | Op::GroupEnds(target) => *target = here,
                _ => debug_assert!(false, "an operation that does not jump"),
            }
        }
    }

    /// Compiles a rule of a rule set; `next` is the rule after it.
    pub(super) fn rule(&mut self, rule: &Rule, next: Option<&Rule>) {
        self.guarded(rule.condition.as_ref(), &rule.at, |builder| action::compile(builder, &Place { rule, next }));
        if !self.hook.is_early() {
            self.rules.push((self.ops.len() as u32, RulePlace::of(&rule.at)));
        }
    }

    /// Compiles an action that is executed only if a condition holds.
    pub(super) fn guarded(
        &mut self,
        condition: Option<&Condition>,
        at: &Position,
        compile: impl FnOnce(&mut Self) -> Compiled,
    ) {
        let mut end = Label::default();
        if let Some(condition) = condition {
            self.condition(condition, &mut end);
        }
        match compile(self) {
            Ok(code) => self.ops.push(Op::Act(code)),
            Err(message) => self.error(at, message),
        }
        self.place(end);
    }

    /// Emits a test that continues if the condition holds and otherwise jumps to `otherwise`.
    fn condition(&mut self, condition: &Condition, otherwise: &mut Label) {
        if self.inspects() {
            return self.content_condition(condition, otherwise);
        }
        let mut holds = Label::default();
        for group in &condition.any {
            let mut next_group = Label::default();
            for term in group {
                let mut matched = Label::default();
                self.acl(&term.acl, &mut matched);
                if term.negated {
                    // No test matched: the term holds, so jump over the code for a match.
                    let mut next_term = Label::default();
                    self.jump(Op::Jump(0), &mut next_term);
                    self.place(matched);
                    self.jump(Op::Jump(0), &mut next_group);
                    self.place(next_term);
                } else {
                    self.jump(Op::Jump(0), &mut next_group);
                    self.place(matched);
                }
            }
            let target = if condition.unless { &mut *otherwise } else { &mut holds };
            self.jump(Op::Jump(0), target);
            self.place(next_group);
        }
        if !condition.unless {
            self.jump(Op::Jump(0), otherwise);
        }
        self.place(holds);
    }

    /// Like [`condition`](Self::condition) for content rules, where a test may be undecided until more data has
    /// arrived.
    fn content_condition(&mut self, condition: &Condition, otherwise: &mut Label) {
        let mut holds = Label::default();
        self.ops.push(Op::ConditionBegins);
        for group in &condition.any {
            let mut next_group = Label::default();
            for term in group {
                let mut matched = Label::default();
                self.acl(&term.acl, &mut matched);
                if term.negated {
                    let mut next_term = Label::default();
                    self.ops.push(Op::NegatedHolds);
                    self.jump(Op::Jump(0), &mut next_term);
                    self.place(matched);
                    self.jump(Op::NegatedFails(0), &mut next_group);
                    self.place(next_term);
                } else {
                    self.jump(Op::TermFails(0), &mut next_group);
                    self.place(matched);
                    self.ops.push(Op::TermHolds);
                }
            }
            self.jump(Op::GroupEnds(0), &mut next_group);
            let target = if condition.unless { &mut *otherwise } else { &mut holds };
            self.jump(Op::Jump(0), target);
            self.place(next_group);
        }
        self.ops.push(Op::ConditionEnds);
        if !condition.unless {
            self.jump(Op::Jump(0), otherwise);
        }
        self.place(holds);
    }

    /// Emits code that jumps to `matched` if any of the ACL's tests matches, and continues otherwise.
    fn acl(&mut self, acl: &AclRef, matched: &mut Label) {
        let acl: &Acl = match acl {
            AclRef::Named(index) => &self.proxy.acls[*index as usize],
            AclRef::Inline(acl) => acl,
        };
        let inspects = self.inspects();
        for test in &acl.tests {
            let matcher = MatcherCode::new(test.matcher.clone(), test.ignore_case).with_files(&test.files);
            let Some(mut fetch) = self.fetch(&test.expr) else { continue };
            // For this fetch patterns are groups, while the sample is a user; only `-m found` asks for the user.
            if let FetchCode::Auth(auth) = &mut fetch
                && !matches!(test.matcher, Matcher::Found)
            {
                auth.look_at_groups();
            }
            if !fetch.is_multiple() {
                self.push_fetch(fetch);
                self.converters(&test.expr);
                self.jump(Op::JumpIfMatch(matcher, 0), matched);
                if inspects {
                    self.ops.push(Op::NoteMissed);
                }
                continue;
            }
            let mut end = Label::default();
            self.authenticate(&fetch);
            self.ops.push(Op::Rewind);
            let again = self.ops.len() as u32;
            self.jump(Op::FetchNext(fetch, 0), &mut end);
            self.converters(&test.expr);
            self.jump(Op::JumpIfMatch(matcher, 0), matched);
            self.ops.push(Op::Jump(again));
            self.place(end);
            if inspects {
                self.ops.push(Op::NoteMissed);
            }
        }
    }

    fn fetch(&mut self, expr: &Expr) -> Option<FetchCode> {
        let code = FetchCode::compile_in(expr.fetch, &expr.args, self.scope);
        let code = code.map_err(|message| self.error(&expr.at, message)).ok()?;
        self.looks.add(&code);
        Some(code)
    }

    /// Notes what an expression reads that the action evaluates itself.
    pub(super) fn look(&mut self, fetch: &FetchCode) {
        self.looks.add(fetch);
    }

    /// Notes what an action reads.
    pub(super) fn look_with(&mut self, looks: Looks) {
        self.looks.include(looks);
    }

    fn converters(&mut self, expr: &Expr) {
        for call in &expr.converters {
            match ConverterCode::compile(call.converter, &call.args, self.engines, self.scope) {
                Ok(code) if code.may_wait() && self.hook.is_early() => {
                    self.error(&expr.at, "a store cannot be waited for before a stream");
                }
                Ok(ConverterCode::Lua(call)) => self.ops.push(Op::LuaConvert(call)),
                Ok(ConverterCode::Store(mut code)) => {
                    let failed = self.failed_at(&expr.at, code.name);
                    code.origin.clone_from(&failed.origin);
                    self.ops.push(Op::Convert(ConverterCode::Store(code)));
                    self.failed.push((self.ops.len() as u32, failed));
                }
                Ok(code) => self.ops.push(Op::Convert(code)),
                Err(message) => self.error(&expr.at, message),
            }
        }
    }

    /// Returns the receiver of a rule's failures; shared by several operations of a line of the file.
    pub(super) fn failed_at(&self, at: &Position, what: &str) -> Arc<Failed> {
        let known = self.failed.iter().rev().map(|(_, failed)| failed).find(|failed| failed.is_of(at, what));
        known.cloned().unwrap_or_else(|| Arc::new(Failed::new(at, what, self.logger, &self.targets)))
    }

    /// Emits code that leaves the expression's sample in the accumulator.
    pub(super) fn expr(&mut self, expr: &Expr) {
        if let Some(fetch) = self.fetch(expr) {
            self.push_fetch(fetch);
            self.converters(expr);
        }
    }

    /// Emits an expression whose sample content rules wait for until it cannot change any more.
    pub(super) fn stable_expr(&mut self, expr: &Expr) {
        if !self.inspects() {
            return self.expr(expr);
        }
        let again = self.ops.len() as u32;
        self.ops.push(Op::ConditionBegins);
        self.expr(expr);
        self.ops.push(Op::AwaitSample(again));
    }

    /// Returns whether the rules may wait for received data.
    fn inspects(&self) -> bool {
        matches!(self.hook, Hook::TcpRequestContent | Hook::TcpResponseContent)
    }

    /// Emits the authentication of the request before its first use, because it may wait.
    fn authenticate(&mut self, fetch: &FetchCode) {
        if !self.hook.is_http() {
            return;
        }
        match fetch {
            FetchCode::Auth(auth) => self.ops.push(Op::Authenticate(auth.list().clone())),
            FetchCode::Acl(acl) => acl.fetches().for_each(|fetch| self.authenticate(fetch)),
            _ => {}
        }
    }

    fn push_fetch(&mut self, fetch: FetchCode) {
        self.authenticate(&fetch);
        self.ops.push(match fetch {
            FetchCode::Lua(call) => Op::LuaFetch(call),
            fetch => Op::Fetch(fetch),
        });
    }

    /// Emits code that renders one log-format.
    pub(super) fn text(&mut self, format: &LogFormat, mode: FormatMode) {
        self.ops.push(Op::Begin);
        self.parts(format, mode);
    }

    /// Emits code that renders several log-formats.
    pub(super) fn texts<'f>(&mut self, formats: impl Iterator<Item = &'f LogFormat>, mode: FormatMode) {
        self.ops.push(Op::Begin);
        for format in formats {
            self.parts(format, mode);
            self.ops.push(Op::EndText);
        }
    }

    pub(super) fn parts(&mut self, format: &LogFormat, mode: FormatMode) {
        for part in &*encoded_parts(format, mode) {
            match part {
                FormatPart::Name(_) => {}
                FormatPart::Text(text) => self.ops.push(Op::Text(text.as_slice().into())),
                FormatPart::Blank => self.ops.push(Op::Text((*b" ").into())),
                FormatPart::Alias(alias, flags) => self.ops.push(Op::AppendAlias(*alias, *flags, mode)),
                FormatPart::Expr(expr, flags) => {
                    self.expr(expr);
                    self.ops.push(Op::AppendValue(*flags, mode));
                }
            }
        }
    }
}
