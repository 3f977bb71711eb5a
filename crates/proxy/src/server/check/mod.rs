//! Checks of servers and their agents: when they run, and what follows from how they end.
//!
//! [`run`] checks every server with `check` or `agent-check` once per process, on the control thread. First checks are
//! spread over the interval, so that a restart does not probe every server in the same instant; the next check comes an
//! interval after the last one ended: `inter` while fully up, `downinter` while fully down, `fastinter` between, more
//! or less by `spread-checks`.
//!
//! [`conclude`] takes any opinion on a server in, whether a check's, an agent's or traffic's (`observe`): its health,
//! its operation, the lines of the log, streams that are ended, and the servers that track it. A change reaches the
//! balancer and the queue within the call.
//!
//! Cost: a task of a few hundred bytes per check, one connection per interval, and an answer's bytes while it runs.

mod answer;
mod code;
mod expect;
mod probe;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluicegate_config::model::{Agent, Check, CheckResult, CheckStatus, OnObserved};
use tokio::task::JoinSet;

use answer::AgentLine;
pub use answer::fuzz_answers;
pub use code::CheckCode;
use probe::{Aim, Outcome, Probe};

use super::admin::{Directive, Notice, WeightError, parse_weight, say};
use super::health::CheckReport;
use super::shared::{Admin, Operation, ServerRun, ServerStatus, Turn};
use crate::cli::shut_sessions;
use crate::log::Severity;
use crate::running::{ProxyRun, Running};
use crate::site::Site;
use crate::stats::info::node_name;
use crate::stream::Killer;

/// Intervals below this do not decide over how long first checks are spread (HAProxy's SRV_CHK_INTER_THRES).
const SPREAD_MIN: Duration = Duration::from_secs(1);

/// Whose opinion a report is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opinion {
    /// A check's, or traffic's that counts as one.
    Check,
    /// The agent's.
    Agent,
}

/// What is checked: a server by itself, or its agent.
#[derive(Clone)]
enum Subject {
    Server(Check),
    Agent(Agent),
}

/// A server and its proxy.
type Target = (Arc<ProxyRun>, Arc<ServerRun>);

/// Checks every server that has `check` or `agent-check`, for as long as the future lives. Runs on the control thread's
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

/// A time more or less by chance, by up to so many percent.
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
    let begun = Instant::now();
    let address = address(server, subject);
    let aim = Aim { proxy, server, code, inter, address, send_proxy, node };
    let outcome = Probe::new(aim).run().await;
    mark(server, opinion, false);
    let Outcome { status, code, info, agent } = outcome;
    let mut report = CheckReport { status, code, info, duration: Some(begun.elapsed()) };
    let enabled = || {
        let status = server.shared.status();
        (opinion == Opinion::Check && status.checks) || (opinion == Opinion::Agent && status.agent.enabled)
    };
    // What was said while an administrator turned it off is no longer asked for.
    if !enabled() {
        return;
    }
    if let Some(line) = agent {
        apply(running, proxy, server, line, &mut report);
    }
    conclude(running, proxy, server, opinion, report, |_| ());
}

/// Checks begin with a header of the PROXY protocol where traffic's connections do and checks go to the same place, or
/// if the server says so.
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
    (address.port() != 0).then_some(address)
}

/// Does what an agent's line asks for, and makes a report of what it says.
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
            // Why it is down is not covered by what is odd about the rest.
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

impl ServerStatus {
    /// Counts a report; whether the health moved.
    fn count(&mut self, opinion: Opinion, report: &CheckReport) -> bool {
        let health = match opinion {
            Opinion::Check => &mut self.health,
            Opinion::Agent => &mut self.agent.health,
        };
        match report.status.result() {
            CheckResult::Neutral => false,
            // An agent that can't be asked says nothing about its server.
            CheckResult::Failed if opinion == Opinion::Agent => {
                if report.status == CheckStatus::L7Sts {
                    health.level = 0;
                }
                false
            }
            CheckResult::Failed => {
                let moved = health.failed();
                self.failed_checks += u64::from(moved);
                moved
            }
            CheckResult::Passed | CheckResult::Conditional => health.passed(),
        }
    }

    /// What follows from a counted report.
    fn follow(&mut self, opinion: Opinion, status: CheckStatus) -> Option<Turn> {
        let well = (!self.checks || self.health.is_up()) && (!self.agent.enabled || self.agent.health.is_up());
        match (status.result(), opinion) {
            (CheckResult::Neutral, _) | (CheckResult::Conditional, Opinion::Agent) => None,
            (CheckResult::Failed, Opinion::Check) => {
                if self.health.level == 0 {
                    self.turn(Operation::Stopped)
                } else {
                    None
                }
            }
            (CheckResult::Failed, Opinion::Agent) if status == CheckStatus::L7Sts => self.turn(Operation::Stopped),
            (CheckResult::Failed, Opinion::Agent) => None,
            (CheckResult::Passed, _) if well => self.turn(Operation::Running),
            (CheckResult::Conditional, Opinion::Check) if well => self.turn(Operation::Stopping),
            (CheckResult::Passed | CheckResult::Conditional, _) => None,
        }
    }
}

/// Takes a report in. `prepare` changes the state before it counts.
fn conclude(
    running: &Arc<Running>,
    proxy: &Site,
    server: &ServerRun,
    opinion: Opinion,
    report: CheckReport,
    prepare: impl FnOnce(&mut ServerStatus),
) {
    let now = Instant::now();
    let before = Before::of(proxy, server, now);
    let passed = matches!(report.status.result(), CheckResult::Passed | CheckResult::Conditional);
    if opinion == Opinion::Check && passed {
        server.shared.failures.store(0, Ordering::Relaxed);
    }
    let (notable, health, weight, turn) = proxy.backend.update(server.shared.index, now, |status| {
        prepare(status);
        let kept = match opinion {
            Opinion::Check => &mut status.check,
            Opinion::Agent => &mut status.agent.report,
        };
        let last = kept.replace(report.clone());
        let other = last.is_none_or(|last| last.status != report.status);
        // In maintenance nobody's opinion on its health counts.
        if status.admin() == Admin::Maintenance && opinion == Opinion::Check {
            return (false, status.health, status.weight, None);
        }
        let moved = status.count(opinion, &report);
        let turn = status.follow(opinion, report.status);
        let health = if opinion == Opinion::Check { status.health } else { status.agent.health };
        (moved || other, health, status.weight, turn)
    });
    let logs = proxy.config.health.log_checks;
    if logs && notable && report.status.result() != CheckResult::Neutral {
        let what = if opinion == Opinion::Agent { "Agent" } else { "Health" };
        let backup = if server.config.backup { "backup " } else { "" };
        let how = match report.status.result() {
            CheckResult::Conditional => "conditionally succeeded",
            CheckResult::Passed => "succeeded",
            _ => "failed",
        };
        let mut line = format!("{what} check for {backup}server {}/{} {how}", proxy.config.name, server.name());
        report.append_reason(&mut line);
        let (level, of, word) = match health.is_up() {
            true => (health.level + 1 - health.rise, health.fall, if weight > 0 { "UP" } else { "DRAIN" }),
            false => (health.level, health.rise, "DOWN"),
        };
        line.push_str(&format!(", status: {level}/{of} {word}."));
        say(proxy, &running.logger, "WARNING", Severity::Notice, &line);
    }
    let mut cause = String::new();
    // With a line of its own a check's end is not told again.
    if !logs {
        report.append_reason(&mut cause);
    }
    if let Some(turn) = turn {
        turned(running, proxy, server, turn, &cause, before);
    }
}

/// How things were before a change, for the lines about it.
pub(super) struct Before {
    backend_up: bool,
    waiting: u32,
    common: u32,
}

impl Before {
    pub(super) fn of(proxy: &Site, server: &ServerRun, now: Instant) -> Before {
        let waiting = server.shared.queued.load(Ordering::Relaxed);
        Before { backend_up: proxy.backend.summary(now).up, waiting, common: proxy.backend.queue.len() }
    }

    pub(super) fn notice<'a>(&self, running: &'a Running, proxy: &'a Site, server: &'a ServerRun) -> Notice<'a> {
        Notice { proxy, server, logger: &running.logger, waiting: self.waiting, common: self.common }
    }

    pub(super) fn backend_up(&self) -> bool {
        self.backend_up
    }
}

/// Tells of a server's turn, ends what it ends, and turns the servers that track it.
pub(super) fn turned(
    running: &Arc<Running>,
    proxy: &Site,
    server: &ServerRun,
    turn: Turn,
    cause: &str,
    before: Before,
) {
    let notice = before.notice(running, proxy, server);
    match turn {
        Turn::Down { expected } => {
            let severity = if expected { Severity::Notice } else { Severity::Alert };
            notice.goes(&format!("is DOWN{cause}"), severity);
        }
        Turn::Stopping => notice.comes(&format!("is stopping{cause}")),
        Turn::Up => notice.comes(&format!("is UP{cause}")),
    }
    notice.backend_down(before.backend_up);
    let health = &server.config.health;
    if matches!(turn, Turn::Down { .. }) && health.shut_sessions_when_down {
        shut_sessions(running, &server.shared, Killer::Down);
    }
    if turn == Turn::Up && health.shut_backups_when_up && !server.config.backup && server.shared.effective_weight() > 0
    {
        for backup in proxy.servers.iter().filter(|server| server.config.backup) {
            shut_sessions(running, &backup.shared, Killer::Up);
        }
    }
    let to = match turn {
        Turn::Down { .. } => Operation::Stopped,
        Turn::Stopping => Operation::Stopping,
        Turn::Up => Operation::Running,
    };
    let via = format!(" via {}/{}", proxy.config.name, server.name());
    for (tracker_proxy, tracker) in running.trackers(proxy.id, server.shared.index) {
        let now = Instant::now();
        let before = Before::of(tracker_proxy, tracker, now);
        let turn = tracker_proxy.backend.update(tracker.shared.index, now, |status| status.turn(to));
        if let Some(turn) = turn {
            turned(running, tracker_proxy, tracker, turn, &via, before);
        }
    }
}

/// What traffic shows of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    /// It was connected to.
    Connected,
    /// It could not be connected to.
    NotConnected,
    /// A good response came.
    GoodResponse,
    /// A response came whose status is a failure.
    WrongResponse,
    /// A response came whose head is none.
    InvalidHead,
    /// A response came whose body is malformed.
    InvalidBody,
    /// No response came in time.
    ReadTimeout,
    /// The connection ended before its response.
    BrokenPipe,
}

impl Observed {
    /// A response's status as `observe layer7` sees it.
    pub(crate) fn of_status(status: u16) -> Observed {
        match status {
            100..=499 | 501 | 505 => Observed::GoodResponse,
            _ => Observed::WrongResponse,
        }
    }

    /// What it is for a layer: a failure, a success, or nothing.
    fn failed(self, layer7: bool) -> Option<bool> {
        match self {
            Observed::Connected => (!layer7).then_some(false),
            Observed::NotConnected => Some(true),
            Observed::GoodResponse => layer7.then_some(false),
            _ => layer7.then_some(true),
        }
    }

    fn description(self) -> &'static str {
        match self {
            Observed::Connected => "L4 successful connection",
            Observed::NotConnected => "L4 unsuccessful connection",
            Observed::GoodResponse => "Correct http response",
            Observed::WrongResponse => "Wrong http response",
            Observed::InvalidHead => "Invalid http response (headers)",
            Observed::InvalidBody => "Invalid http response",
            Observed::ReadTimeout => "Read timeout (http)",
            Observed::BrokenPipe => "Close from server (http)",
        }
    }
}

/// Tells a server's health what traffic shows of it (`observe`).
#[inline]
pub(crate) fn observe(running: &Arc<Running>, proxy: &Site, server: &ServerRun, seen: Observed) {
    if server.config.health.observe.is_some() {
        adjust(running, proxy, server, seen);
    }
}

#[cold]
fn adjust(running: &Arc<Running>, proxy: &Site, server: &ServerRun, seen: Observed) {
    let Some(observe) = server.config.health.observe else { return };
    if !server.shared.status().checks || server.config.check.is_none() {
        return;
    }
    let failures = &server.shared.failures;
    match seen.failed(observe.layer7) {
        None => return,
        Some(false) => return failures.store(0, Ordering::Relaxed),
        Some(true) => {}
    }
    let count = failures.fetch_add(1, Ordering::Relaxed) + 1;
    if count < observe.limit {
        return;
    }
    let report = CheckReport {
        status: CheckStatus::Hana,
        code: 0,
        info: format!("Detected {count} consecutive errors, last one was: {}", seen.description()).into_bytes(),
        duration: None,
    };
    match observe.on_error {
        OnObserved::FastInter => {}
        OnObserved::FailCheck => conclude(running, proxy, server, Opinion::Check, report, |_| ()),
        OnObserved::SuddenDeath => conclude(running, proxy, server, Opinion::Check, report, |status| {
            let health = &mut status.health;
            health.level = health.level.min(health.rise + 1);
        }),
        OnObserved::MarkDown => conclude(running, proxy, server, Opinion::Check, report, |status| {
            status.health.level = status.health.rise;
        }),
    }
    failures.store(0, Ordering::Relaxed);
    proxy.backend.update(server.shared.index, Instant::now(), |status| status.observed += 1);
    server.shared.hurry.notify_one();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_that_are_failures() {
        for (status, good) in [(200, true), (404, true), (500, false), (501, true), (503, false), (505, true)] {
            assert_eq!(Observed::of_status(status) == Observed::GoodResponse, good, "{status}");
        }
        assert_eq!(Observed::NotConnected.failed(true), Some(true));
        assert_eq!(Observed::Connected.failed(true), None);
        assert_eq!(Observed::ReadTimeout.failed(false), None);
    }

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
