//! Compilation of the typed configuration to flat code.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluicegate_config::Config;
use sluicegate_config::model::{
    self, Action, BackendName, Condition, LogTarget, Position, ProxyId, ProxyKind, Rule, ServerChoice, SpoeEvent,
    StatsAccess,
};

use super::build::{Builder, Sources};
use super::forwardfor::ForwardedCode;
use super::spoe::EventLists;
use super::{CompileError, Hook, Looks, ReplySource, RuleList, fcgi, reply, spoe, stream};
use crate::directory::Directory;
use crate::engines::Engines;
use crate::log::{Logger, ProxyLog};
use crate::sample::{ExpressionCode, FetchScope};
use crate::server::KeyCode;
use crate::stream::Bindings;

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
    /// Access rules of the statistics page: a rule applies if its list ends with a close; the first such rule counts.
    pub stats_access: Vec<(RuleList, StatsAccess)>,
    /// A list that ends with a close for clients that may administer servers on the page.
    pub stats_admin: RuleList,
    /// `force-persist` and `ignore-persist`.
    pub persist: RuleList,
    /// `use-server`.
    pub use_server: RuleList,
    /// `stick`, but for `store-response`.
    pub stick_request: RuleList,
    /// `stick store-response`.
    pub stick_response: RuleList,
    /// `monitor fail`: a list that does not end by itself means no failure.
    pub monitor_fail: RuleList,
    /// `http-error`, by status: lists that end with the reply.
    pub http_errors: BTreeMap<u16, RuleList>,
    /// `option forwarded`, if the proxy has it.
    pub(crate) forwarded: Option<ForwardedCode>,
    /// `use_backend`, for [`choose_backend`](super::choose_backend).
    pub(super) use_backend: RuleList,
    /// `default_backend`; a `listen` section without one is its own backend.
    pub(super) default_backend: Option<ProxyId>,
    /// The hash key of `balance`, if it uses one.
    pub(crate) balance_key: Option<KeyCode>,
    /// `persist rdp-cookie`.
    pub(crate) rdp_cookie: Option<ExpressionCode>,
    /// The rules of its FastCGI application.
    pub fcgi: RuleList,
    /// The messages of events.
    spoe: EventLists,
}

impl ProxyRules {
    /// Compiles a proxy's rules; every error of the proxy is reported.
    pub fn compile(
        id: ProxyId,
        config: &Config,
        engines: &Engines,
        lua: Option<&dyn Bindings>,
        directory: &Arc<Directory>,
        (logger, logs): (&Logger, &Arc<[Arc<ProxyLog>]>),
    ) -> Result<ProxyRules, Vec<CompileError>> {
        let own = id.0 as usize;
        let proxy = &config.proxies[own];
        let scope = FetchScope { directory: Some(directory), own: Some(own) };
        let targets: Arc<[LogTarget]> = [&proxy.log, &config.global.log]
            .into_iter()
            .find(|log| !log.is_empty())
            .map_or_else(Arc::default, |log| log.as_slice().into());
        let bufsize = config.global.tune.bufsize;
        let patterns = &config.patterns;
        let agents = spoe::engines(&proxy.filters, logger);
        let agents = agents.map_err(|message| vec![CompileError { at: proxy.at.clone(), message }])?;
        let logs = logs.clone();
        let sources = Sources { proxy, engines, patterns, lua, scope, bufsize, logger, logs, targets, agents: &agents };
        let mut lists = Lists { sources: &sources, errors: Vec::new() };
        let mut compiled = lists.rule_sets();
        if let Some(page) = &proxy.stats {
            lists.statistics(page, &mut compiled);
        }
        lists.servers(&mut compiled);
        lists.answers(&mut compiled);
        compiled.default_backend = proxy.default_backend;
        if proxy.default_backend.is_none() && proxy.kind == ProxyKind::Listen {
            compiled.default_backend = Some(id);
        }
        lists.keys(&mut compiled);
        if let Some(app) = proxy.fcgi_app() {
            compiled.fcgi = lists.build(Hook::HttpRequest, |builder| fcgi::rules(builder, app));
        }
        if !agents.is_empty() {
            compiled.spoe =
                EventLists::new(|event| lists.build(spoe::hook(event), |builder| spoe::event(builder, event)));
        }
        if lists.errors.is_empty() { Ok(compiled) } else { Err(lists.errors) }
    }
}

/// The rule lists of a proxy while they are compiled.
struct Lists<'a> {
    sources: &'a Sources<'a>,
    errors: Vec<CompileError>,
}

impl Lists<'_> {
    fn build(&mut self, hook: Hook, fill: impl FnOnce(&mut Builder<'_>)) -> RuleList {
        let mut builder = Builder::new(self.sources, hook, &mut self.errors);
        fill(&mut builder);
        builder.finish()
    }

    fn list(&mut self, rules: &[Rule], hook: Hook) -> RuleList {
        self.build(hook, |builder| {
            for (index, rule) in rules.iter().enumerate() {
                builder.rule(rule, rules.get(index + 1));
            }
        })
    }

    /// Returns the result, or records the error at its position.
    fn keep<T>(&mut self, at: &Position, result: Result<T, String>) -> Option<T> {
        result.map_err(|message| self.errors.push(CompileError { at: at.clone(), message })).ok()
    }

    /// Compiles the rule sets of TCP and HTTP.
    fn rule_sets(&mut self) -> ProxyRules {
        let proxy = self.sources.proxy;
        let (requests, redirects) = proxy.http_request.split_at(proxy.http_request.len() - proxy.redirects);
        ProxyRules {
            tcp_request_connection: self.list(&proxy.tcp_request_connection, Hook::TcpRequestConnection),
            tcp_request_session: self.list(&proxy.tcp_request_session, Hook::TcpRequestSession),
            tcp_request_content: self.list(&proxy.tcp_request_content, Hook::TcpRequestContent),
            tcp_response_content: self.list(&proxy.tcp_response_content, Hook::TcpResponseContent),
            http_request: self.list(requests, Hook::HttpRequest),
            redirect: self.list(redirects, Hook::HttpRequest).without_places(),
            http_response: self.list(&proxy.http_response, Hook::HttpResponse),
            http_after_response: self.list(&proxy.http_after_response, Hook::HttpAfterResponse),
            ..ProxyRules::default()
        }
    }

    /// Compiles the access rules of the statistics page: lists that end with a close.
    fn statistics(&mut self, page: &model::StatsPage, compiled: &mut ProxyRules) {
        let closes = |condition: Option<&Condition>, at: &Position| Rule {
            action: Action::Reject,
            condition: condition.cloned(),
            at: at.clone(),
        };
        let admin: Vec<Rule> = page.admin.iter().map(|(condition, at)| closes(Some(condition), at)).collect();
        compiled.stats_admin = self.list(&admin, Hook::HttpRequest).without_places();
        let access = page.access.iter().map(|rule| {
            let condition = closes(rule.condition.as_ref(), &rule.at);
            (self.list(&[condition], Hook::HttpRequest), rule.access.clone())
        });
        compiled.stats_access = access.collect();
    }

    /// Compiles the rules that choose backends and servers.
    fn servers(&mut self, compiled: &mut ProxyRules) {
        let proxy = self.sources.proxy;
        let hook = Hook::HttpRequest;
        compiled.persist = self.build(hook, |builder| {
            for rule in &proxy.persist_rules {
                builder.guarded(rule.condition.as_ref(), &proxy.at, |_| stream::persist(rule));
            }
        });
        compiled.use_server = self.build(hook, |builder| {
            for rule in &proxy.use_server {
                builder.guarded(rule.condition.as_ref(), &rule.at, |builder| match &rule.server {
                    ServerChoice::Named(name) => stream::use_server(builder, name),
                    ServerChoice::Computed(format) => stream::use_server_named(builder, format),
                });
            }
        });
        let mut stick = |response, hook| {
            self.build(hook, |builder| {
                for rule in proxy.stick_rules.iter().filter(|rule| rule.response == response) {
                    builder.guarded(rule.condition.as_ref(), &rule.at, |builder| stream::stick(builder, rule));
                }
            })
        };
        compiled.stick_request = stick(false, hook);
        compiled.stick_response = stick(true, Hook::HttpResponse);
        compiled.use_backend = self.build(hook, |builder| {
            for rule in &proxy.use_backend {
                builder.guarded(rule.condition.as_ref(), &rule.at, |builder| match &rule.target {
                    BackendName::Static(id) => stream::use_backend(*id),
                    BackendName::Dynamic(name) => stream::use_backend_named(builder, name),
                });
            }
        });
    }

    /// `monitor fail` and `http-error`.
    fn answers(&mut self, compiled: &mut ProxyRules) {
        let proxy = self.sources.proxy;
        compiled.monitor_fail = self.build(Hook::HttpRequest, |builder| {
            for condition in &proxy.monitor_fail {
                builder.guarded(Some(condition), &proxy.at, |_| reply::reject());
            }
        });
        for (status, answer) in &proxy.http_errors {
            let list = self.build(Hook::HttpRequest, |builder| {
                builder.guarded(None, &proxy.at, |builder| reply::answer(builder, answer, ReplySource::Return));
            });
            compiled.http_errors.insert(*status, list);
        }
    }

    /// Compiles the values that are computed outside of rules.
    fn keys(&mut self, compiled: &mut ProxyRules) {
        let Sources { proxy, engines, scope, .. } = *self.sources;
        let forwarded = proxy.options.forwarded.as_ref();
        let forwarded = forwarded.map(|option| ForwardedCode::compile(option, engines, scope)).transpose();
        compiled.forwarded = self.keep(&proxy.at, forwarded).flatten();
        match KeyCode::compile(proxy, engines, scope) {
            Ok(key) => compiled.balance_key = key,
            Err((at, message)) => self.errors.push(CompileError { at, message }),
        }
        if let Some(cookie) = &proxy.persist_rdp_cookie {
            compiled.rdp_cookie = self.keep(&cookie.at, ExpressionCode::compile(cookie, engines, scope));
        }
    }
}

impl ProxyRules {
    /// Returns the list that sends the messages of an event, with its rule set.
    pub(crate) fn event(&self, event: SpoeEvent) -> (&RuleList, Hook) {
        (self.spoe.of(event), spoe::hook(event))
    }

    /// Returns the data other than heads that the choice of a backend reads.
    pub fn looks_for_backend(&self) -> Looks {
        self.use_backend.looks()
    }
}
