//! Changes of servers that the statistics page's form asks for.

use std::sync::Arc;

use sluicegate_config::model::{ProxyKind, StatsPage};

use super::{Act, Outcome, Posted, in_scope};
use crate::running::{ProxyRun, Running};
use crate::server::{Admin, Directive, HealthWord, ServerRun};
use crate::stream::{Killer, Which, end_streams};

/// Executes a posted form.
pub async fn change(running: &Arc<Running>, own: &ProxyRun, page: &StatsPage, posted: &Posted) -> Outcome {
    let named = posted.backend.as_deref();
    let number = named.and_then(|name| name.strip_prefix('#')).and_then(|number| number.parse::<u32>().ok());
    let mut backends = running.proxies.iter().filter(|proxy| proxy.config.kind != ProxyKind::Frontend);
    let backend = backends.find(|proxy| match number {
        Some(number) => proxy.config.uid == number,
        None => named == Some(&*proxy.config.name),
    });
    if named.is_some() {
        // A client that may not see a backend does not learn whether it exists.
        let shown = backend.is_some_and(|backend| in_scope(page, own, backend));
        if !page.scope.is_empty() && !shown {
            return Outcome::Denied;
        }
        if backend.is_none() {
            return Outcome::Invalid;
        }
    }
    let (Some(backend), Some(act)) = (backend, posted.act) else { return Outcome::Nothing };
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
        (0, _) => Outcome::Nothing,
        (_, 0) => Outcome::Invalid,
        (all, changed) if all == changed => Outcome::Done,
        _ => Outcome::Partial,
    }
}

/// Executes the action on one server; returns `None` if the action is not applicable to it.
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
