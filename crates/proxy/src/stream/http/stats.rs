//! The statistics page (`stats …`) of a proxy: who may see it, what they get, and what they change.

use std::sync::Arc;

use sluicegate_config::model::{ProxyKind, StatsAccess, StatsPage};

use super::*;
use crate::running::Running;
use crate::sample::{basic, path_and_query};
use crate::server::{Admin, Directive, HealthWord, ServerRun};
use crate::stats::Format;
use crate::stats::page::{Act, Asked, Form, Outcome as Said, Posted, Report, in_scope};
use crate::stream::{Killer, Which, end_streams};

/// What browsers ask a password for where the file does not say.
const REALM: &str = "HAProxy Statistics";

/// The page's name in place of a server's.
pub(super) const SERVICE: &str = "<STATS>";

impl Exchange<'_> {
    /// Answers if the request is for the page of this proxy.
    pub(super) async fn statistics(&mut self, proxy: &ProxyRun) -> Step<()> {
        let Some(page) = &proxy.config.stats else { return Ok(()) };
        if !matches!(self.head.method, Method::Get | Method::Head | Method::Post) {
            return Ok(());
        }
        let target = self.stream.cx.request.target();
        let target = if page.uri.starts_with('/') { path_and_query(target).unwrap_or(b"") } else { target };
        let Some(options) = target.strip_prefix(page.uri.as_bytes()) else { return Ok(()) };
        let asked = Asked::read(options, page.refresh.is_some());
        self.stats_access(proxy, page).await?;
        let worker = self.stream.worker().clone();
        let list = &proxy.rules.stats_admin;
        let verdict = rule::run(list, Hook::HttpRequest, &mut self.stream.cx, &worker).await;
        let admin = matches!(verdict, Verdict::Close);
        if self.head.method == Method::Post {
            return Err(self.stats_change(proxy, page, &asked, admin).await?);
        }
        self.begin_service(SERVICE);
        let response = &mut self.stream.cx.response;
        response.clear();
        response.set_response(Version::Http11, 200, b"OK");
        response.add_lower(b"cache-control", b"no-cache");
        response.add_lower(
            b"content-type",
            match asked.form {
                Form::Html => b"text/html",
                Form::Lines(Format::Json) | Form::Schema => b"application/json",
                Form::Lines(_) => b"text/plain",
            },
        );
        if let Some(refresh) = page.refresh.filter(|_| !asked.no_refresh) {
            response.add_lower(b"refresh", itoa::Buffer::new().format(refresh.as_secs()).as_bytes());
        }
        let running = worker.running.clone();
        let Some(own) = running.proxies.get(proxy.id.0 as usize).cloned() else { return Ok(()) };
        let mut report = Report::new(running, own, asked, admin);
        Err(Box::pin(self.document(&mut report)).await?)
    }

    /// Lets those through who may see the page.
    async fn stats_access(&mut self, proxy: &ProxyRun, page: &StatsPage) -> Step<()> {
        if !page.users.is_empty() {
            let known = basic(&self.stream.cx.request).is_some_and(|(user, password)| knows(page, &user, &password));
            return if known { Ok(()) } else { Err(self.ask_password(page.realm.as_deref()).await) };
        }
        let worker = self.stream.worker().clone();
        for (list, access) in &proxy.rules.stats_access {
            let verdict = rule::run(list, Hook::HttpRequest, &mut self.stream.cx, &worker).await;
            if matches!(verdict, Verdict::Close) {
                return match access {
                    StatsAccess::Allow => Ok(()),
                    StatsAccess::Deny => Err(self.deny().await),
                    StatsAccess::Auth(realm) => Err(self.ask_password(realm.as_deref()).await),
                };
            }
        }
        Ok(())
    }

    async fn deny(&mut self) -> After {
        self.local(rule::page_reply(403, rule::ReplySource::Deny), Hook::HttpRequest).await
    }

    /// Asks for a user and a password (RFC 7617).
    async fn ask_password(&mut self, realm: Option<&str>) -> After {
        let mut reply = rule::page_reply(401, rule::ReplySource::Return);
        let challenge = format!("Basic realm=\"{}\"", realm.unwrap_or(REALM));
        reply.head.add_lower(b"www-authenticate", challenge.as_bytes());
        self.local(reply, Hook::HttpRequest).await
    }

    /// Changes servers, and sends the client back to the page.
    async fn stats_change(&mut self, proxy: &ProxyRun, page: &StatsPage, asked: &Asked, admin: bool) -> Step<After> {
        let outcome = match admin {
            true => {
                self.await_body(self.patience(proxy), 0).await?;
                let whole = self.peek.as_ref().is_some_and(Peek::is_complete);
                match Posted::read(&self.stream.cx.request_content.data) {
                    _ if !whole => Said::TooLong,
                    Ok(posted) => {
                        let running = self.stream.worker().running.clone();
                        change(&running, proxy, page, &posted).await
                    }
                    Err(outcome) => outcome,
                }
            }
            false => Said::Denied,
        };
        self.begin_service(SERVICE);
        let location = asked.redirection(&page.uri, outcome);
        let response = &mut self.stream.cx.response;
        response.clear();
        response.set_response(Version::Http11, 303, b"See Other");
        response.add_lower(b"cache-control", b"no-cache");
        response.add_lower(b"content-type", b"text/plain");
        response.add_lower(b"content-length", b"0");
        response.add_lower(b"location", location.as_bytes());
        self.stream.cx.log.response_started = Some(Instant::now());
        self.local_response_rules().await?;
        Ok(self.answer(b"", Ending::length(false)).await)
    }
}

/// The page has this user. It takes as long for every password of a length.
fn knows(page: &StatsPage, user: &[u8], password: &[u8]) -> bool {
    let same = |one: &[u8], other: &[u8]| {
        one.len() == other.len() && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    };
    page.users
        .iter()
        .fold(false, |known, (name, word)| known | (same(name.as_bytes(), user) & same(word.as_bytes(), password)))
}

/// Carries a form out.
async fn change(running: &Arc<Running>, own: &ProxyRun, page: &StatsPage, posted: &Posted) -> Said {
    let named = posted.backend.as_deref();
    let number = named.and_then(|name| name.strip_prefix('#')).and_then(|number| number.parse::<u32>().ok());
    let mut backends = running.proxies.iter().filter(|proxy| proxy.config.kind != ProxyKind::Frontend);
    let backend = backends.find(|proxy| match number {
        Some(number) => proxy.config.uid == number,
        None => named == Some(&*proxy.config.name),
    });
    if named.is_some() {
        // Who may not see a backend is not told whether it exists.
        let shown = backend.is_some_and(|backend| in_scope(page, own, backend));
        if !page.scope.is_empty() && !shown {
            return Said::Denied;
        }
        if backend.is_none() {
            return Said::Invalid;
        }
    }
    let (Some(backend), Some(act)) = (backend, posted.act) else { return Said::Nothing };
    let (mut all, mut changed) = (0, 0);
    for name in &posted.servers {
        let done = match backend.server(name) {
            Some(server) => apply(running, backend, server, act).await,
            None => Some(false),
        };
        all += u32::from(done.is_some());
        changed += u32::from(done == Some(true));
    }
    match (all, changed) {
        (0, _) => Said::Nothing,
        (_, 0) => Said::Invalid,
        (all, changed) if all == changed => Said::Done,
        _ => Said::Partial,
    }
}

/// Acts on one server; `None` where the action means nothing to it.
async fn apply(running: &Arc<Running>, backend: &ProxyRun, server: &ServerRun, act: Act) -> Option<bool> {
    let status = server.shared.status();
    let directive = match act {
        Act::Ready => Directive::State(Admin::Ready),
        Act::Drain => Directive::State(Admin::Drain),
        Act::Maintain => Directive::State(Admin::Maintenance),
        Act::Disable if status.admin != Admin::Maintenance => Directive::State(Admin::Maintenance),
        Act::Enable if status.admin == Admin::Maintenance => Directive::State(Admin::Ready),
        Act::Stop if status.admin == Admin::Ready => Directive::State(Admin::Drain),
        Act::Start if status.admin == Admin::Drain => Directive::State(Admin::Ready),
        Act::EnableChecks | Act::DisableChecks if server.config.check.is_some() => {
            Directive::Checks(act == Act::EnableChecks)
        }
        Act::HealthUp => Directive::Health(HealthWord::Up),
        Act::HealthStopping => Directive::Health(HealthWord::Stopping),
        Act::HealthDown => Directive::Health(HealthWord::Down),
        Act::Shutdown => {
            end_streams(running, Which::OfServer(server.shared.life), Killer::Admin).await;
            return Some(true);
        }
        Act::EnableAgent | Act::DisableAgent if server.config.health.agent.is_some() => {
            Directive::AgentChecks(act == Act::EnableAgent)
        }
        Act::AgentUp | Act::AgentDown if status.agent.enabled => Directive::Agent(act == Act::AgentUp),
        Act::Disable | Act::Enable | Act::Stop | Act::Start | Act::EnableChecks | Act::DisableChecks => return None,
        Act::EnableAgent | Act::DisableAgent | Act::AgentUp | Act::AgentDown => return None,
    };
    backend.direct(running, server, directive);
    Some(true)
}
