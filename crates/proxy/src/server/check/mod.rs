//! Checks of servers and their agents: scheduling and reports.
//!
//! [`run`] checks every server with `check` or `agent-check` once per process, on the control thread. First checks are
//! spread over the interval, so that a restart does not probe all servers at once; the next check starts an interval
//! after the end of the last one: `inter` while fully up, `downinter` while fully down, `fastinter` in between, varied
//! by `spread-checks`.
//!
//! Every check ends with a report; [`verdict`](super::verdict) draws conclusions from it, and [`notice`](super::notice)
//! carries out their consequences.
//!
//! Cost: a task of a few hundred bytes per check, one connection per interval, and an answer's bytes while it runs.

mod answer;
mod code;
mod expect;
mod external;
mod fcgi;
mod h2;
mod pooled;
mod probe;
mod translator;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::model::{Agent, Check, CheckResult, CheckStatus};
use tokio::task::JoinSet;

use answer::AgentLine;
pub use answer::fuzz_answers;
pub use code::CheckCode;
use probe::{Aim, Outcome, Probe};

use super::admin::{Directive, WeightError, parse_weight};
use super::health::CheckReport;
use super::notice::announce;
use super::run::ServerRun;
use super::shared::{Admin, ServerStatus};
use super::verdict::{Opinion, conclude};
use crate::hosts::node_name;
use crate::log::{Events, Level, Source, Subject as Traced};
use crate::running::{ProxyRun, Running};
use crate::site::Site;

/// Shorter intervals do not influence the time over which the first checks are spread (HAProxy's SRV_CHK_INTER_THRES).
const SPREAD_MIN: Duration = Duration::from_secs(1);

/// The subject of a check: a server itself, or its agent.
#[derive(Clone)]
enum Subject {
    Server(Check),
    Agent(Agent),
}

/// A server and its proxy.
type Target = (Arc<ProxyRun>, Arc<ServerRun>);

/// Checks every server that has `check` or `agent-check`, for the lifetime of the future. Runs on the control thread's
/// runtime.
pub async fn run(running: Arc<Running>) {
    let mut subjects: Vec<(Target, Subject)> = Vec::new();
    for proxy in running.proxies.iter().filter(|proxy| !proxy.config.disabled) {
        for server in &proxy.servers {
            // A check of the configuration before, which a reload gave up.
            mark(server, Opinion::Check, false);
            mark(server, Opinion::Agent, false);
            let target = || (proxy.clone(), server.clone());
            if let Some(check) = &server.config.check {
                subjects.push((target(), Subject::Server(check.clone())));
            }
            if let Some(agent) = &server.config.health.agent {
                subjects.push((target(), Subject::Agent(agent.clone())));
            }
        }
    }
    let first = |(target, subject): &(Target, Subject)| interval(&target.1.shared.status(), subject);
    let spread = subjects.iter().map(first).filter(|time| *time >= SPREAD_MIN).min().unwrap_or_default();
    let count = subjects.len().max(1) as u32;
    let global = &running.config.global;
    let node: Arc<str> = global.node.clone().unwrap_or_else(node_name).into();
    let mut tasks = JoinSet::new();
    for (place, entry) in (0..).zip(subjects) {
        let own = spread.max(first(&entry));
        let over = wander(own, global.spread_checks).min(global.max_spread_checks.unwrap_or(Duration::MAX));
        let ((proxy, server), subject) = entry;
        tasks.spawn(check_forever(running.clone(), proxy, server, subject, over * place / count, node.clone()));
    }
    while tasks.join_next().await.is_some() {}
}

/// Varies a time randomly by up to this percentage.
fn wander(time: Duration, percent: u32) -> Duration {
    if percent == 0 {
        return time;
    }
    let most = time.as_millis() as u64 * u64::from(percent) / 100;
    let chance = crate::random::random() % (2 * most + 1);
    (time + Duration::from_millis(chance)).saturating_sub(Duration::from_millis(most))
}

fn interval(status: &ServerStatus, subject: &Subject) -> Duration {
    match subject {
        Subject::Server(check) => status.health.interval(check, status.operation),
        Subject::Agent(agent) => agent.inter,
    }
}

async fn check_forever(
    running: Arc<Running>,
    proxy: Arc<ProxyRun>,
    server: Arc<ServerRun>,
    subject: Subject,
    delay: Duration,
    node: Arc<str>,
) {
    tokio::time::sleep(delay).await;
    let percent = running.config.global.spread_checks;
    loop {
        let status = server.shared.status();
        let due = match subject {
            Subject::Server(_) => status.checks,
            Subject::Agent(_) => status.agent.enabled,
        };
        // An agent may take its server out of maintenance; a check can't.
        let paused = status.admin() == Admin::Maintenance && matches!(subject, Subject::Server(_));
        if due && !paused {
            check_once(&running, &proxy, &server, &subject, &node).await;
        }
        let pause = wander(interval(&server.shared.status(), &subject), percent);
        let begun = tokio::time::Instant::now();
        if matches!(subject, Subject::Server(_))
            && tokio::time::timeout(pause, server.shared.hurry.notified()).await.is_ok()
            && let Some(soon) = server.config.check.as_ref().and_then(|check| check.fastinter)
        {
            // Traffic failed: the next check comes `fastinter` from now, unless it was due before.
            tokio::time::sleep_until((begun + pause).min(tokio::time::Instant::now() + soon)).await;
        } else {
            tokio::time::sleep_until(begun + pause).await;
        }
    }
}

async fn check_once(
    running: &Arc<Running>,
    proxy: &Arc<ProxyRun>,
    server: &Arc<ServerRun>,
    subject: &Subject,
    node: &str,
) {
    let agent_code;
    let (code, inter, send_proxy) = match subject {
        Subject::Server(check) => (&*proxy.checks, check.inter, sends_proxy(server, check)),
        Subject::Agent(agent) => {
            let sent = server.shared.agent_send();
            agent_code = CheckCode::agent(sent.as_deref().unwrap_or(&agent.send));
            (&agent_code, agent.inter, false)
        }
    };
    let opinion = match subject {
        Subject::Server(_) => Opinion::Check,
        Subject::Agent(_) => Opinion::Agent,
    };
    mark(server, opinion, true);
    trace(running, (proxy, server, opinion), (&["hchck_start"], Level::Proto), || "starting health-check".to_owned());
    let begun = Instant::now();
    let outcome = match (&proxy.config.health.external, opinion) {
        (Some(external), Opinion::Check) => external::run(external, running, proxy, server, inter).await,
        _ => {
            let address = address(server, subject);
            let never_local = running.config.global.never_local;
            let check = match subject {
                Subject::Server(check) => Some(check),
                Subject::Agent(_) => None,
            };
            let aim = Aim { proxy, server, check, code, inter, address, send_proxy, never_local, node };
            Probe::new(aim).run().await
        }
    };
    mark(server, opinion, false);
    let Outcome { status, code, info, agent } = outcome;
    let passed = matches!(status.result(), CheckResult::Passed | CheckResult::Conditional);
    let events: Events = if passed { (&["hchck_succ"], Level::Proto) } else { (&["hchck_err"], Level::Error) };
    trace(running, (proxy, server, opinion), events, || format!("health-check {}", status.name()));
    trace(running, (proxy, server, opinion), (&["hchck_end"], Level::State), || "health-check finished".to_owned());
    let mut report = CheckReport { status, code, info, duration: Some(begun.elapsed()) };
    let enabled = || {
        let status = server.shared.status();
        (opinion == Opinion::Check && status.checks) || (opinion == Opinion::Agent && status.agent.enabled)
    };
    // A result that arrives after an administrator has disabled the check is discarded.
    if !enabled() {
        return;
    }
    if let Some(line) = agent {
        apply(running, proxy, server, line, &mut report);
    }
    announce(running, proxy, server, conclude(server, opinion, report, |_| ()));
}

/// Reports an event of a check to the traces of the process.
fn trace(
    running: &Running,
    (proxy, server, opinion): (&ProxyRun, &ServerRun, Opinion),
    events: Events,
    text: impl FnOnce() -> String,
) {
    if !running.logger.is_traced(Source::Check) {
        return;
    }
    let (backend, name) = (&*proxy.config.name, &**server.name());
    let part = Some(u64::from(opinion == Opinion::Agent));
    let subject = Traced { backend: Some(backend), server: Some(name), part, ..Traced::default() };
    running.logger.trace(Source::Check, events, &subject, |verbosity| match verbosity {
        0 => text(),
        _ => format!("{} : srv={backend}/{name}", text()),
    });
}

/// Returns whether a check's connection begins with a PROXY protocol header: if those for traffic do and checks use the
/// same address, or if the check options request it.
fn sends_proxy(server: &ServerRun, check: &Check) -> bool {
    // A server that was added at run time has to say so itself, as in HAProxy.
    let implied = !server.config.dynamic && check.port.is_none() && check.addr.is_none();
    check.send_proxy || server.config.send_proxy.is_some() && implied
}

fn mark(server: &ServerRun, opinion: Opinion, under_way: bool) {
    server.backend.update(server.shared.index, Instant::now(), |status| match opinion {
        Opinion::Check => status.checking = under_way,
        Opinion::Agent => status.agent.asking = under_way,
    });
}

/// Returns the address that a check connects to, with port 0 if only its steps have one.
fn address(server: &ServerRun, subject: &Subject) -> Option<SocketAddr> {
    let moved = server.shared.moved();
    let (host, port) = match subject {
        Subject::Server(check) => (moved.check_addr.or(check.addr), moved.check_port.or(check.port)),
        Subject::Agent(agent) => (moved.agent_addr.or(agent.addr), moved.agent_port.or(Some(agent.port))),
    };
    let mut address = match (server.socket_addr(None).or_else(|| server.host_only()), host, port) {
        (Some(address), _, _) => address,
        (None, Some(host), Some(port)) => SocketAddr::new(host, port),
        _ => return None,
    };
    if let Some(host) = host {
        address.set_ip(host);
    }
    if let Some(port) = port {
        address.set_port(port);
    }
    Some(address)
}

/// Applies an agent's line, and builds a report from it.
fn apply(running: &Arc<Running>, proxy: &Site, server: &ServerRun, line: AgentLine, report: &mut CheckReport) {
    if let Some(admin) = line.admin {
        proxy.direct(running, server, Directive::State(admin));
    }
    let mut warning = None;
    if let Some(text) = &line.weight {
        match parse_weight(text, server.config.weight, proxy.backend.dynamic) {
            Ok(weight) => proxy.direct(running, server, Directive::Weight(weight)),
            Err(error) => warning = Some(WeightError::message(error)),
        }
    }
    if let Some(text) = &line.maxconn {
        match parse_maxconn(text) {
            Ok(maxconn) => proxy.backend.set_maxconn(server.shared.index, maxconn),
            Err(message) => warning = warning.or(Some(message)),
        }
    }
    let warning = warning.filter(|text| !text.is_empty());
    report.status = CheckStatus::Checked;
    report.info = match (line.health, line.unknown) {
        (Some((word, up)), unknown) => {
            report.status = if up { CheckStatus::L7Ok } else { CheckStatus::L7Sts };
            // The reason for being down is not hidden by a warning about the rest.
            let odd = unknown.as_deref().or(warning).filter(|_| up || line.description.is_empty());
            match odd.unwrap_or(&line.description) {
                "" => format!("via agent : {word}"),
                text => format!("via agent : {word} ({text})"),
            }
        }
        (None, Some(unknown)) => format!("agent reports an error : {unknown}"),
        (None, None) => warning.map_or_else(String::new, |text| format!("agent warns : {text}")),
    }
    .into_bytes();
    report.info.truncate(127);
}

fn parse_maxconn(text: &str) -> Result<u32, &'static str> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    match (digits, text[..digits].parse::<u32>()) {
        (0, _) if text.is_empty() => Err("Require <maxconn>.\n"),
        (0, _) => Err("maxconn string empty or preceded by garbage"),
        (length, _) if length < text.len() => Err("Trailing garbage in maxconn string"),
        (_, Ok(maxconn)) => Ok(maxconn),
        (_, Err(_)) => Err("maxconn string empty or preceded by garbage"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wandering_stays_within_its_bounds() {
        let second = Duration::from_secs(1);
        assert_eq!(wander(second, 0), second);
        for _ in 0..500 {
            let time = wander(second, 50);
            assert!((Duration::from_millis(500)..=Duration::from_millis(1_500)).contains(&time), "{time:?}");
        }
    }

    #[test]
    fn limits_of_agents() {
        assert_eq!(parse_maxconn("30"), Ok(30));
        assert_eq!(parse_maxconn(""), Err("Require <maxconn>.\n"));
        assert_eq!(parse_maxconn("x"), Err("maxconn string empty or preceded by garbage"));
        assert_eq!(parse_maxconn("3x"), Err("Trailing garbage in maxconn string"));
    }
}
