//! From the typed configuration to flat code.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::Config;
use sluicegate_config::model::{
    self, Acl, AclRef, Action, BackendName, Carrier, Condition, CounterValue, Edit, Expr, FormatFlags, FormatPart,
    LogFormat, LogTarget, Matcher, NumberOr, Position, ProxyId, ProxyKind, ReturnBody, Rule, ServerChoice, StatsAccess,
    TimeOr,
};
use sluicegate_pattern::PatternFiles;

use super::action::{ActionCode, Resolve};
use super::carrier::CarrierCode;
use super::code::{Op, Program};
use super::edit::EditCode;
use super::failed::Failed;
use super::forwardfor::ForwardedCode;
use super::limit::LimitCode;
use super::redirect::RedirectCode;
use super::reply::{ReplyCode, lower};
use super::store::StoreCode;
use super::{CompileError, Hook, Looks, ReplySource, RuleList};
use crate::directory::Directory;
use crate::engines::Engines;
use crate::log::Logger;
use crate::persist::StickCode;
use crate::sample::{
    ConverterCode, ExpressionCode, FetchCode, FetchScope, FormatMode, MatcherCode, Setting, VarRef, encoded_parts,
};
use crate::server::KeyCode;
use crate::stream::{Bindings, RulePlace, ScriptHook, Side};

/// A proxy's rules, compiled.
#[derive(Debug, Default)]
pub struct ProxyRules {
    /// `tcp-request connection`.
    pub tcp_request_connection: RuleList,
    /// `tcp-request session`.
    pub tcp_request_session: RuleList,
    /// `tcp-request content`.
    pub tcp_request_content: RuleList,
    /// `tcp-response content`.
    pub tcp_response_content: RuleList,
    /// `http-request`.
    pub http_request: RuleList,
    /// Legacy `redirect` lines, which come after the page of statistics.
    pub redirect: RuleList,
    /// `http-response`.
    pub http_response: RuleList,
    /// `http-after-response`.
    pub http_after_response: RuleList,
    /// Who may see the page of statistics: the first list that closes is the first rule that applies.
    pub stats_access: Vec<(RuleList, StatsAccess)>,
    /// It closes for those who may change servers on the page.
    pub stats_admin: RuleList,
    /// `force-persist` and `ignore-persist`.
    pub persist: RuleList,
    /// `use-server`.
    pub use_server: RuleList,
    /// `stick`, but for `store-response`.
    pub stick_request: RuleList,
    /// `stick store-response`.
    pub stick_response: RuleList,
    /// `monitor fail`: a list that does not end by itself says that nothing fails.
    pub monitor_fail: RuleList,
    /// `http-error`, by status: lists that answer.
    pub http_errors: BTreeMap<u16, RuleList>,
    /// `option forwarded`, if the proxy has it.
    pub(crate) forwarded: Option<ForwardedCode>,
    /// `use_backend`, for [`choose_backend`](super::choose_backend).
    pub(super) use_backend: RuleList,
    /// `default_backend`; a `listen` without one is its own.
    pub(super) default_backend: Option<ProxyId>,
    /// What servers are chosen by, if `balance` hashes something.
    pub(crate) balance_key: Option<KeyCode>,
    /// `persist rdp-cookie`.
    pub(crate) rdp_cookie: Option<ExpressionCode>,
}

impl ProxyRules {
    /// Compiles a proxy's rules; every error of the proxy is reported.
    pub fn compile(
        proxy: &model::Proxy,
        config: &Config,
        engines: &Engines,
        lua: Option<&dyn Bindings>,
        directory: &Arc<Directory>,
        logger: &Logger,
    ) -> Result<ProxyRules, Vec<CompileError>> {
        let mut errors = Vec::new();
        let bufsize = config.global.tune.bufsize;
        let own = config.proxies.iter().position(|other| std::ptr::eq(other, proxy));
        let scope = FetchScope { directory: Some(directory), own };
        let targets: Arc<[LogTarget]> = [&proxy.log, &config.global.log]
            .into_iter()
            .find(|log| !log.is_empty())
            .map_or_else(Arc::default, |log| log.as_slice().into());
        let mut build = |hook, fill: &dyn Fn(&mut Builder<'_>)| {
            let mut builder = Builder {
                proxy,
                engines,
                patterns: &config.patterns,
                lua,
                scope,
                hook,
                bufsize,
                ops: Vec::new(),
                rules: Vec::new(),
                logger,
                targets: &targets,
                failed: Vec::new(),
                looks: Looks::default(),
                errors: &mut errors,
            };
            fill(&mut builder);
            builder.finish()
        };
        let (requests, redirects) = proxy.http_request.split_at(proxy.http_request.len() - proxy.redirects);
        let mut list = |rules: &[Rule], hook| {
            build(hook, &|builder| {
                for (index, rule) in rules.iter().enumerate() {
                    builder.rule(rule, rules.get(index + 1));
                }
            })
        };
        let mut compiled = ProxyRules {
            tcp_request_connection: list(&proxy.tcp_request_connection, Hook::TcpRequestConnection),
            tcp_request_session: list(&proxy.tcp_request_session, Hook::TcpRequestSession),
            tcp_request_content: list(&proxy.tcp_request_content, Hook::TcpRequestContent),
            tcp_response_content: list(&proxy.tcp_response_content, Hook::TcpResponseContent),
            http_request: list(requests, Hook::HttpRequest),
            redirect: list(redirects, Hook::HttpRequest).without_places(),
            http_response: list(&proxy.http_response, Hook::HttpResponse),
            http_after_response: list(&proxy.http_after_response, Hook::HttpAfterResponse),
            default_backend: proxy.default_backend,
            ..ProxyRules::default()
        };
        if let Some(page) = &proxy.stats {
            let closes = |condition: Option<&Condition>, at: &Position| Rule {
                action: Action::Reject,
                condition: condition.cloned(),
                at: at.clone(),
            };
            let admin: Vec<Rule> = page.admin.iter().map(|(condition, at)| closes(Some(condition), at)).collect();
            compiled.stats_admin = list(&admin, Hook::HttpRequest).without_places();
            let access = page.access.iter().map(|rule| {
                let condition = closes(rule.condition.as_ref(), &rule.at);
                (list(&[condition], Hook::HttpRequest), rule.access.clone())
            });
            compiled.stats_access = access.collect();
        }
        let sticks = |builder: &mut Builder<'_>, response| {
            proxy.stick_rules.iter().filter(|rule| rule.response == response).for_each(|rule| builder.stick(rule));
        };
        let hook = Hook::HttpRequest;
        compiled.persist =
            build(hook, &|builder| proxy.persist_rules.iter().for_each(|rule| builder.persist_rule(rule)));
        compiled.use_server = build(hook, &|builder| proxy.use_server.iter().for_each(|rule| builder.use_server(rule)));
        compiled.monitor_fail = build(hook, &|builder| {
            for condition in &proxy.monitor_fail {
                builder.guarded(Some(condition), |builder| builder.ops.push(Op::Act(ActionCode::Reject)));
            }
        });
        for (status, reply) in &proxy.http_errors {
            let list = build(hook, &|builder| {
                let code = builder.reply(reply, ReplySource::Return);
                builder.ops.push(Op::Act(code));
            });
            compiled.http_errors.insert(*status, list);
        }
        compiled.stick_request = build(hook, &|builder| sticks(builder, false));
        compiled.stick_response = build(Hook::HttpResponse, &|builder| sticks(builder, true));
        compiled.use_backend =
            build(hook, &|builder| proxy.use_backend.iter().for_each(|rule| builder.use_backend(rule)));
        if proxy.default_backend.is_none() && proxy.kind == ProxyKind::Listen {
            let own = config.proxies.iter().position(|other| other.uid == proxy.uid && other.name == proxy.name);
            compiled.default_backend = own.map(|index| ProxyId(index as u32));
        }
        match proxy.options.forwarded.as_ref().map(|option| ForwardedCode::compile(option, engines, scope)).transpose()
        {
            Ok(forwarded) => compiled.forwarded = forwarded,
            Err(message) => errors.push(CompileError { at: proxy.at.clone(), message }),
        }
        match KeyCode::compile(proxy, engines, scope) {
            Ok(key) => compiled.balance_key = key,
            Err((at, message)) => errors.push(CompileError { at, message }),
        }
        if let Some(cookie) = &proxy.persist_rdp_cookie {
            match ExpressionCode::compile(cookie, engines, scope) {
                Ok(code) => compiled.rdp_cookie = Some(code),
                Err(message) => errors.push(CompileError { at: cookie.at.clone(), message }),
            }
        }
        if errors.is_empty() { Ok(compiled) } else { Err(errors) }
    }
}

impl ProxyRules {
    /// What choosing a backend looks at besides heads.
    pub fn looks_for_backend(&self) -> Looks {
        self.use_backend.looks()
    }
}

/// A place in the code that is not known yet: the operations that jump there.
#[derive(Default)]
struct Label {
    jumps: Vec<usize>,
}

struct Builder<'a> {
    proxy: &'a model::Proxy,
    engines: &'a Engines,
    /// Map and ACL files, for the rules that change them.
    patterns: &'a PatternFiles,
    lua: Option<&'a dyn Bindings>,
    scope: FetchScope<'a>,
    hook: Hook,
    bufsize: usize,
    ops: Vec<Op>,
    /// Behind which operation each rule ends, where the last rule is logged.
    rules: Vec<(u32, RulePlace)>,
    /// Where failures of stores are told.
    logger: &'a Logger,
    targets: &'a Arc<[LogTarget]>,
    failed: Vec<(u32, Arc<Failed>)>,
    looks: Looks,
    errors: &'a mut Vec<CompileError>,
}

impl Builder<'_> {
    fn finish(mut self) -> RuleList {
        if !self.ops.is_empty() {
            self.ops.push(Op::Stop);
        }
        RuleList { code: Program::new(self.ops, self.rules, self.failed, self.bufsize), looks: self.looks }
    }

    fn error(&mut self, at: &Position, message: impl Into<String>) {
        self.errors.push(CompileError { at: at.clone(), message: message.into() });
    }

    /// Emits an operation that jumps to `label`.
    fn jump(&mut self, op: Op, label: &mut Label) {
        label.jumps.push(self.ops.len());
        self.ops.push(op);
    }

    /// `label` is here.
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

    fn rule(&mut self, rule: &Rule, next: Option<&Rule>) {
        let mut end = Label::default();
        if let Some(condition) = &rule.condition {
            self.condition(condition, &mut end);
        }
        match &rule.action {
            Action::EarlyHint(name, value) => {
                self.text(value, FormatMode::Http);
                // Hints that surely follow each other go out together.
                let more =
                    next.is_some_and(|next| matches!(next.action, Action::EarlyHint(..)) && next.condition.is_none());
                self.ops.push(Op::Act(ActionCode::EarlyHint(lower(name), !more)));
            }
            action => self.action(action, &rule.at),
        }
        if !self.hook.is_early() {
            self.rules.push((self.ops.len() as u32, RulePlace::of(&rule.at)));
        }
        self.place(end);
    }

    fn persist_rule(&mut self, rule: &model::PersistRule) {
        self.guarded(rule.condition.as_ref(), |builder| builder.ops.push(Op::Act(ActionCode::Persist(rule.force))));
    }

    fn use_server(&mut self, rule: &model::UseServer) {
        self.guarded(rule.condition.as_ref(), |builder| match &rule.server {
            ServerChoice::Named(name) => match builder.proxy.servers.iter().position(|server| server.name == *name) {
                Some(index) => builder.ops.push(Op::Act(ActionCode::UseServer(index))),
                None => builder.error(&rule.at, format!("no server is named '{name}'")),
            },
            ServerChoice::Computed(format) => {
                builder.text(format, FormatMode::Plain);
                builder.ops.push(Op::Act(ActionCode::UseServerNamed));
            }
        });
    }

    fn stick(&mut self, rule: &model::StickRule) {
        self.guarded(rule.condition.as_ref(), |builder| match builder.scope.table(&rule.table) {
            Err(message) => builder.error(&rule.at, message),
            Ok(table) => {
                builder.expr(&rule.key);
                let code = StickCode { matches: rule.matches, stores: rule.stores, response: rule.response };
                builder.ops.push(Op::Act(ActionCode::Stick(table, code)));
            }
        });
    }

    /// What is done where a condition holds.
    fn guarded(&mut self, condition: Option<&Condition>, emit: impl FnOnce(&mut Self)) {
        let mut end = Label::default();
        if let Some(condition) = condition {
            self.condition(condition, &mut end);
        }
        emit(self);
        self.place(end);
    }

    fn use_backend(&mut self, rule: &model::UseBackend) {
        let mut end = Label::default();
        if let Some(condition) = &rule.condition {
            self.condition(condition, &mut end);
        }
        match &rule.target {
            BackendName::Static(id) => self.ops.push(Op::Act(ActionCode::UseBackend(*id))),
            BackendName::Dynamic(name) => {
                self.text(name, FormatMode::Plain);
                self.ops.push(Op::Act(ActionCode::UseBackendNamed));
            }
        }
        self.place(end);
    }

    /// Falls through where the condition holds and jumps to `otherwise` where it does not.
    fn condition(&mut self, condition: &Condition, otherwise: &mut Label) {
        if matches!(self.hook, Hook::TcpRequestContent | Hook::TcpResponseContent) {
            return self.content_condition(condition, otherwise);
        }
        let mut holds = Label::default();
        for group in &condition.any {
            let mut next_group = Label::default();
            for term in group {
                let mut matched = Label::default();
                self.acl(&term.acl, &mut matched);
                if term.negated {
                    // No test matched: the term holds, so jump over what the match does.
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

    /// The same for content rules, where a test may be undecided until more data has come.
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

    /// Jumps to `matched` if any of the ACL's tests does, and falls through otherwise.
    fn acl(&mut self, acl: &AclRef, matched: &mut Label) {
        let acl: &Acl = match acl {
            AclRef::Named(index) => &self.proxy.acls[*index as usize],
            AclRef::Inline(acl) => acl,
        };
        let inspects = matches!(self.hook, Hook::TcpRequestContent | Hook::TcpResponseContent);
        for test in &acl.tests {
            let matcher = MatcherCode::new(test.matcher.clone(), test.ignore_case).with_files(&test.files);
            let Some(mut fetch) = self.fetch(&test.expr) else { continue };
            // Patterns are groups there, while the sample is a user; `-m found` asks for the user.
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

    /// Where the failures of a rule go; one place for a line of the file that does the same several times.
    fn failed_at(&self, at: &Position, what: &str) -> Arc<Failed> {
        let known = self.failed.iter().rev().map(|(_, failed)| failed).find(|failed| failed.is_of(at, what));
        known.cloned().unwrap_or_else(|| Arc::new(Failed::new(at, what, self.logger, self.targets)))
    }

    /// Leaves the expression's sample in the accumulator.
    fn expr(&mut self, expr: &Expr) {
        if let Some(fetch) = self.fetch(expr) {
            self.push_fetch(fetch);
            self.converters(expr);
        }
    }

    /// What finds out who a request is comes before those who want to know it, because it may wait.
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

    /// Renders one log-format.
    fn text(&mut self, format: &LogFormat, mode: FormatMode) {
        self.ops.push(Op::Begin);
        self.parts(format, mode);
    }

    /// Renders several.
    fn texts<'f>(&mut self, formats: impl Iterator<Item = &'f LogFormat>, mode: FormatMode) {
        self.ops.push(Op::Begin);
        for format in formats {
            self.parts(format, mode);
            self.ops.push(Op::EndText);
        }
    }

    fn parts(&mut self, format: &LogFormat, mode: FormatMode) {
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

    fn variable(&mut self, name: &model::VarName, at: &Position) -> Option<VarRef> {
        let variable = VarRef::intern(name);
        if variable.is_none() {
            self.error(at, "too many variable names in this process");
        }
        variable
    }

    fn setting(&mut self, target: &model::VarTarget, at: &Position) -> Option<Setting> {
        let variable = self.variable(&target.name, at)?;
        Some(Setting { variable, conditions: target.conditions.clone().into() })
    }

    fn reply(&mut self, reply: &model::Return, source: ReplySource) -> ActionCode {
        let body = match &reply.body {
            ReturnBody::Format(format) => Some(format),
            ReturnBody::ErrorPage | ReturnBody::ErrorFile(_) | ReturnBody::Empty | ReturnBody::Bytes(_) => None,
        };
        self.texts(reply.headers.iter().map(|(_, format)| format), FormatMode::Http);
        // A body is no header line: its line breaks stay.
        if let Some(format) = body {
            self.parts(format, FormatMode::Plain);
            self.ops.push(Op::EndText);
        }
        ActionCode::Reply(ReplyCode::new(reply, source))
    }

    fn action(&mut self, action: &Action, at: &Position) {
        let code = match action {
            Action::Accept => ActionCode::Accept,
            Action::Reject => ActionCode::Reject,
            Action::Deny(reply) => self.reply(reply, ReplySource::Deny),
            Action::Return(reply) => self.reply(reply, ReplySource::Return),
            Action::Tarpit(reply) => self.reply(reply, ReplySource::Tarpit),
            Action::Capture { expr, slot, response } => {
                self.expr(expr);
                ActionCode::Capture { slot: *slot as usize, response: *response }
            }
            Action::SetLogLevel(level) => ActionCode::SetLogLevel(*level),
            Action::Track(track) => {
                let table = match self.scope.table(&track.table) {
                    Ok(table) => table,
                    Err(message) => return self.error(at, message),
                };
                self.expr(&track.key);
                ActionCode::Track(track.slot, table)
            }
            Action::ChangeCounter(change) => {
                let by = match &change.by {
                    CounterValue::Int(number) => Some(*number),
                    CounterValue::Expr(expr) => {
                        self.expr(expr);
                        None
                    }
                };
                ActionCode::ChangeCounter { slot: change.slot, kind: change.kind, element: change.element, by }
            }
            Action::ExpectProxy => ActionCode::ExpectProxy,
            Action::DisableL7Retry => ActionCode::DisableL7Retry,
            Action::SwitchMode => ActionCode::SwitchMode,
            Action::SetPriorityClass(expr) => {
                self.expr(expr);
                ActionCode::SetPriorityClass
            }
            Action::SetPriorityOffset(expr) => {
                self.expr(expr);
                ActionCode::SetPriorityOffset
            }
            Action::Redirect(redirect) => {
                self.texts(std::iter::once(&redirect.to).chain(&redirect.cookie_format), FormatMode::Http);
                ActionCode::Redirect(RedirectCode::new(redirect))
            }
            Action::SetHeader(name, value) => {
                self.text(value, FormatMode::Http);
                ActionCode::SetHeader(lower(name))
            }
            Action::AddHeader(name, value) => {
                self.text(value, FormatMode::Http);
                ActionCode::AddHeader(lower(name))
            }
            Action::Edit(edit) => {
                match edit {
                    Edit::ReplaceField { by, .. } | Edit::ReplaceTarget(_, _, by) => self.text(by, FormatMode::Http),
                    Edit::SetTarget(_, format) | Edit::SetMethod(format) => self.text(format, FormatMode::Http),
                    Edit::DelMatching(_) | Edit::SetStatus(..) | Edit::Normalize(_) => {}
                }
                ActionCode::Edit(EditCode::new(edit))
            }
            Action::Carrier(carrier) => ActionCode::Carrier(self.carrier(carrier)),
            Action::Auth(realm) => ActionCode::Auth(format!("Basic realm=\"{realm}\"").into_bytes().into()),
            Action::StrictMode(on) => ActionCode::StrictMode(*on),
            Action::Nothing => ActionCode::Nothing,
            Action::EarlyHint(..) => {
                debug_assert!(false, "a rule of its own");
                return;
            }
            Action::DelHeader(name) => ActionCode::DeleteHeader(lower(name)),
            Action::DoResolve(resolve, expr) => {
                let Some(variable) = self.variable(&resolve.variable, at) else { return };
                let found = self.scope.directory.and_then(|directory| directory.resolver(&resolve.section));
                let Some(resolver) = found.cloned() else {
                    return self.error(at, format!("there is no resolvers section '{}'", resolve.section));
                };
                self.expr(expr);
                ActionCode::DoResolve(Resolve { resolver, prefer_v4: resolve.prefer_v4, variable })
            }
            Action::SetVar(target, expr) => {
                let Some(setting) = self.setting(target, at) else { return };
                self.expr(expr);
                ActionCode::SetVar(setting)
            }
            Action::SetVarFormat(target, format) => {
                let Some(setting) = self.setting(target, at) else { return };
                self.text(format, FormatMode::Plain);
                ActionCode::SetVarText(setting)
            }
            Action::UnsetVar(name) => {
                let Some(variable) = self.variable(name, at) else { return };
                ActionCode::UnsetVar(variable)
            }
            Action::WaitForBody(wait) => ActionCode::WaitForBody(*wait),
            Action::EditPatterns(edit) => {
                let Some(file) = self.patterns.get(&edit.file) else {
                    self.error(
                        at,
                        format!("no map or acl uses the file '{}', so nothing would see the change", edit.file),
                    );
                    return;
                };
                self.texts(std::iter::once(&edit.key).chain(&edit.value), FormatMode::Plain);
                ActionCode::EditPatterns(file, edit.edit)
            }
            Action::StoreCall(call) => {
                let Some(code) = self.store_call(call, at) else { return };
                code
            }
            Action::Limit(rule) => {
                let Some(code) = self.limit(rule, at) else { return };
                code
            }
            Action::Exporter => ActionCode::Exporter,
            Action::UseService(name) => {
                let http = self.hook == Hook::HttpRequest;
                let Some(service) = self.lua.and_then(|states| states.bind_service(name, http)) else {
                    self.error(at, format!("no Lua service is registered as '{name}'"));
                    return;
                };
                ActionCode::Service(service)
            }
            Action::Lua(action) => {
                let Some(code) = self.lua(action, at) else { return };
                code
            }
        };
        self.ops.push(Op::Act(code));
    }

    fn carrier(&mut self, carrier: &Carrier) -> CarrierCode {
        let mut number = |value: &NumberOr| match value {
            NumberOr::Number(number) => Some(*number),
            NumberOr::Expr(expr) => {
                self.expr(expr);
                None
            }
        };
        match carrier {
            Carrier::Address(part, expr) => {
                self.expr(expr);
                CarrierCode::Address(*part)
            }
            Carrier::Socket { server, mark, value } => {
                CarrierCode::Socket(if *server { Side::Server } else { Side::Client }, *mark, number(value))
            }
            Carrier::Retries(value) => CarrierCode::Retries(number(value)),
            Carrier::Timeout(side, time) => CarrierCode::Timeout(*side, self.time(time)),
            Carrier::Pause(time) => CarrierCode::Pause(self.time(time)),
            Carrier::SilentDrop(ttl) => CarrierCode::SilentDrop(*ttl),
        }
    }

    fn time(&mut self, time: &TimeOr) -> Option<Duration> {
        match time {
            TimeOr::Time(time) => Some(*time),
            TimeOr::Expr(expr) => {
                self.expr(expr);
                None
            }
        }
    }

    fn store_call(&mut self, call: &model::StoreCall, at: &Position) -> Option<ActionCode> {
        if self.hook.is_early() {
            self.error(at, "a store cannot be waited for before a stream");
            return None;
        }
        let Some(engine) = self.engines.get(&call.store).cloned() else {
            self.error(at, format!("no store is named '{}'", call.store));
            return None;
        };
        if call.args.is_empty() {
            self.error(at, "store-call needs a command");
            return None;
        }
        let set_var = match &call.set_var {
            Some(name) => Some(self.variable(name, at)?),
            None => None,
        };
        self.texts(call.args.iter(), FormatMode::Plain);
        let failed = self.failed_at(at, &format!("store-call {}", call.store));
        Some(ActionCode::StoreCall(StoreCode { engine, set_var, on_error: call.on_error.clone(), failed }))
    }

    fn limit(&mut self, rule: &model::LimitRule, at: &Position) -> Option<ActionCode> {
        let name = &rule.limit.name;
        let Some(limit) = self.scope.directory.and_then(|directory| directory.limit(name)).cloned() else {
            self.error(at, format!("no store of the limit '{name}' is named '{}'", rule.limit.store));
            return None;
        };
        let failed = self.failed_at(at, &format!("limit {name}"));
        let Some((code, prefix)) = LimitCode::new(rule, limit, failed) else {
            self.error(at, "too many variable names in this process");
            return None;
        };
        self.ops.extend([Op::Begin, Op::Text(prefix)]);
        for expr in std::iter::once(&rule.key).chain(&rule.cost) {
            self.expr(expr);
            self.ops.push(Op::AppendValue(FormatFlags::default(), FormatMode::Plain));
            self.ops.push(Op::EndText);
        }
        Some(ActionCode::Limit(Box::new(code)))
    }

    fn lua(&mut self, action: &model::LuaAction, at: &Position) -> Option<ActionCode> {
        let hook = match self.hook {
            Hook::TcpRequestConnection | Hook::TcpRequestSession => {
                self.error(at, "Lua actions are not available before a stream");
                return None;
            }
            Hook::TcpRequestContent => ScriptHook::TcpReq,
            Hook::TcpResponseContent => ScriptHook::TcpRes,
            Hook::HttpRequest => ScriptHook::HttpReq,
            Hook::HttpResponse => ScriptHook::HttpRes,
            Hook::HttpAfterResponse => ScriptHook::HttpAfterRes,
        };
        match self.lua.and_then(|states| states.bind_action(action, hook)) {
            Some(bound) => Some(ActionCode::Lua(bound, hook)),
            None => {
                self.error(at, format!("no Lua action is registered as '{}'", action.name));
                None
            }
        }
    }
}
