//! Consequences of a server's change: log lines, ended streams, the servers that track it.
//!
//! The lines are those of HAProxy 2.6, to stderr and to the proxy's logs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sluicegate_config::model::{CheckResult, LogAddress, LogTarget};

use super::event::{Cause, CheckFacts, Detail};
use super::run::ServerRun;
use super::shared::{Admin, Operation, ServerStatus, Turn};
use super::verdict::{self, Before, Concluded, Observed, Opinion};
use crate::log::{Logger, Severity};
use crate::running::Running;
use crate::site::Site;
use crate::stream::{Killer, shut_sessions};

/// Counts an observation of traffic, with `observe`, and carries out its consequences.
#[inline]
pub(crate) fn observe(running: &Arc<Running>, site: &Site, server: &ServerRun, seen: Observed) {
    if server.config.health.observe.is_some()
        && let Some(concluded) = verdict::observe(server, seen)
    {
        announce(running, site, server, concluded);
    }
}

/// Logs the conclusion from a report, and carries out its consequences.
pub(super) fn announce(running: &Arc<Running>, site: &Site, server: &ServerRun, concluded: Concluded) {
    let Concluded { opinion, report, moved, notable, health, weight, turn, before } = concluded;
    let facts = CheckFacts::new(opinion, &report, health);
    if moved {
        running.tell_event(site, server, Detail::Check(facts.clone()));
    }
    let logs = site.config.health.log_checks;
    if logs && notable && report.status.result() != CheckResult::Neutral {
        let what = if opinion == Opinion::Agent { "Agent" } else { "Health" };
        let backup = if server.config.backup { "backup " } else { "" };
        let how = match report.status.result() {
            CheckResult::Conditional => "conditionally succeeded",
            CheckResult::Passed => "succeeded",
            _ => "failed",
        };
        let mut line = format!("{what} check for {backup}server {}/{} {how}", site.config.name, server.name());
        report.append_reason(&mut line);
        let (level, of, word) = match health.is_up() {
            true => (health.level + 1 - health.rise, health.fall, if weight > 0 { "UP" } else { "DRAIN" }),
            false => (health.level, health.rise, "DOWN"),
        };
        line.push_str(&format!(", status: {level}/{of} {word}."));
        say(site, &running.logger, "WARNING", Severity::Notice, &line);
        alert(site, Severity::Info, &line);
    }
    let mut cause = String::new();
    // If the check has a line of its own, its result is not repeated as a reason.
    if !logs {
        report.append_reason(&mut cause);
    }
    if let Some(turn) = turn {
        turned(running, site, server, turn, (&cause, Cause::Check(facts)), before);
    }
}

/// Logs a change of a server's operation, ends the streams that end with it, and changes the servers that track it.
/// `cause` is the end of its log line, and what events show.
pub(super) fn turned(
    running: &Arc<Running>,
    site: &Site,
    server: &ServerRun,
    turn: Turn,
    (cause, shown): (&str, Cause),
    before: Before,
) {
    let notice = Notice::new(&before, running, site, server);
    match turn {
        Turn::Down { expected } => {
            let severity = if expected { Severity::Notice } else { Severity::Alert };
            let line = notice.goes(&format!("is DOWN{cause}"), severity);
            alert(site, severity, &line);
        }
        Turn::Stopping => drop(notice.comes(&format!("is stopping{cause}"))),
        Turn::Up => {
            let line = notice.comes(&format!("is UP{cause}"));
            alert(site, Severity::Notice, &line);
        }
    }
    let requeued = notice.requeued(!matches!(turn, Turn::Down { .. }));
    running.tell_operation(site, server, before.condition, shown, requeued);
    notice.backend_down(before.backend_up);
    let health = &server.config.health;
    if matches!(turn, Turn::Down { .. }) && health.shut_sessions_when_down {
        shut_sessions(running, &server.shared, Killer::Down);
    }
    if turn == Turn::Up && health.shut_backups_when_up && !server.config.backup && server.shared.effective_weight() > 0
    {
        for backup in site.servers.iter().filter(|server| server.config.backup) {
            shut_sessions(running, &backup.shared, Killer::Up);
        }
    }
    let to = match turn {
        Turn::Down { .. } => Operation::Stopped,
        Turn::Stopping => Operation::Stopping,
        Turn::Up => Operation::Running,
    };
    let via = format!(" via {}/{}", site.config.name, server.name());
    for (tracker_proxy, tracker) in running.trackers(site.id, server.shared.index) {
        let now = Instant::now();
        let before = Before::of(tracker, now);
        let turn = tracker_proxy.backend.update(tracker.shared.index, now, |status| status.turn(to));
        if let Some(turn) = turn {
            turned(running, tracker_proxy, tracker, turn, (&via, Cause::Text(String::new())), before);
        }
    }
}

/// The part of a server's state on which its log lines depend.
pub(super) type Glimpse = (Admin, bool, Operation);

pub(super) fn glimpse(status: &ServerStatus) -> Glimpse {
    (status.admin(), status.is_running(), status.operation)
}

/// The reason why a server enters or leaves maintenance or drain.
#[derive(Clone, Copy)]
pub(super) enum Why<'a> {
    /// A decision about this server.
    Decided,
    /// Caused by a change of the tracked server.
    Tracked,
    /// The server's name has no address any more, for this reason, or has one again.
    Name {
        /// Empty if it has one.
        reason: &'a str,
        /// The name, if it is that of a service's record.
        target: Option<&'a str>,
    },
}

/// Writes a line to stderr, as `[WORD]  (pid) : …`, and to the proxy's logs.
pub(crate) fn say(proxy: &Site, logger: &Logger, word: &str, severity: Severity, line: &str) {
    say_both(proxy, logger, word, severity, line, line);
}

fn say_both(proxy: &Site, logger: &Logger, word: &str, severity: Severity, line: &str, logged: &str) {
    let stderr = LogTarget::raw(LogAddress::Stderr);
    let label = format!("[{word}]");
    let text = format!("{label:<10} ({}) : {line}", std::process::id());
    logger.send(&[stderr], severity, text.as_bytes());
    logger.send(&proxy.config.log, severity, logged.as_bytes());
}

/// Sends a line by mail, without its full stop, as in HAProxy.
fn alert(proxy: &Site, severity: Severity, line: &str) {
    if let Some(alerts) = &proxy.alerts {
        alerts.send(severity as u8, line.strip_suffix('.').unwrap_or(line));
    }
}

/// The log lines about a change of a server's state.
pub(super) struct Notice<'a> {
    proxy: &'a Site,
    server: &'a ServerRun,
    logger: &'a Logger,
    /// The number of requests in the server's queue before the change.
    waiting: u32,
    /// The number of requests in the backend's queue before the change.
    common: u32,
}

impl<'a> Notice<'a> {
    /// Returns the log lines about a change of `server`; `before` is its state before the change.
    pub(super) fn new(before: &Before, running: &'a Running, proxy: &'a Site, server: &'a ServerRun) -> Notice<'a> {
        Notice { proxy, server, logger: &running.logger, waiting: before.waiting, common: before.common }
    }

    fn subject(&self) -> String {
        let kind = if self.server.config.backup { "Backup " } else { "" };
        format!("{kind}Server {}/{}", self.proxy.config.name, self.server.name())
    }

    /// Logs the effect of a decision.
    pub(super) fn state(&self, before: Glimpse, after: Glimpse, why: Why<'_>) {
        let ((from, ran, _), (to, runs, _)) = (before, after);
        let subject = self.subject();
        let word = if runs { "UP" } else { "DOWN" };
        let kind = if matches!(why, Why::Decided) { "forced " } else { "" };
        let plain = |line: &str| say(self.proxy, self.logger, "WARNING", Severity::Notice, line);
        let name = match why {
            Why::Name { target: Some(target), .. } => Some(target.into()),
            Why::Name { target: None, .. } => self.server.hostname(),
            Why::Decided | Why::Tracked => None,
        };
        if let (Admin::Maintenance, Some(name)) = (from, name) {
            return plain(&match to {
                Admin::Ready => format!("{subject} ('{name}') is {word}/READY (resolves again)."),
                Admin::Drain => format!("{subject} ('{name}') is {word}/DRAIN (resolves again)."),
                Admin::Maintenance => format!("{subject} ('{name}') resolves again but remains in maintenance."),
            });
        }
        match (from, to) {
            (Admin::Maintenance, Admin::Ready) => {
                plain(&format!("{subject} is {word}/READY (leaving {kind}maintenance)."));
            }
            (Admin::Maintenance, Admin::Drain) => {
                plain(&format!("{subject} is {word}/DRAIN (leaving {kind}maintenance)."));
                plain(&format!("{subject} remains in {kind}drain mode."));
            }
            (Admin::Ready | Admin::Drain, Admin::Maintenance) if ran => {
                // After a drain, maintenance is expected.
                let severity = if from == Admin::Drain { Severity::Notice } else { Severity::Alert };
                drop(self.goes(&format!("is going DOWN for maintenance{}", self.cause(why)), severity));
            }
            (Admin::Ready | Admin::Drain, Admin::Maintenance) => {
                plain(&format!("{subject} was DOWN and now enters maintenance{}.", self.cause(why)));
            }
            (Admin::Ready, Admin::Drain) => {
                let line = self.comes(&format!("enters drain state{}", self.cause(why)));
                alert(self.proxy, Severity::Notice, &line);
            }
            // As in HAProxy, regardless of the originator.
            (Admin::Drain, Admin::Ready) => plain(&format!("{subject} is {word} (leaving forced drain).")),
            (Admin::Ready, Admin::Ready) | (Admin::Drain, Admin::Drain) | (Admin::Maintenance, Admin::Maintenance) => {}
        }
    }

    /// Returns the originator: a tracked server or a command.
    fn cause(&self, why: Why<'_>) -> String {
        match (why, self.server.config.health.track.as_ref().and_then(|track| track.target)) {
            (Why::Name { reason, .. }, _) => format!(" ({reason})"),
            (Why::Tracked, Some((proxy, index))) => {
                let sides = &self.proxy.directory.proxies[proxy.0 as usize];
                format!(" via {}/{}", sides.name, sides.servers[index].name())
            }
            _ => String::new(),
        }
    }

    fn usable(&self) -> (usize, usize, &'static str) {
        let (active, backup) = self.proxy.backend.usable_servers();
        (active, backup, if active == 0 && backup > 0 { " Running on backup." } else { "" })
    }

    /// Returns the number of requests that it gave back and, if it `takes` some, of those that it took from the backend's
    /// queue. Where it takes none those wait for any server, and do not count, as in HAProxy.
    pub(super) fn requeued(&self, takes: bool) -> u32 {
        let given = self.waiting.saturating_sub(self.server.shared.waiting());
        if takes { given + self.common.saturating_sub(self.proxy.backend.queue.len()) } else { given }
    }

    /// Logs that the server accepts requests, or no longer accepts new ones; returns the line.
    fn comes(&self, what: &str) -> String {
        let (active, backup, on_backup) = self.usable();
        let queue = self.server.shared.waiting();
        let moved = self.requeued(true);
        let line = format!(
            "{} {what}. {active} active and {backup} backup servers online.{on_backup} {moved} sessions requeued, {queue} \
             total in queue.",
            self.subject()
        );
        say(self.proxy, self.logger, "WARNING", Severity::Notice, &line);
        line
    }

    /// Logs that the server accepts no requests; returns the line.
    fn goes(&self, what: &str, severity: Severity) -> String {
        let (active, backup, on_backup) = self.usable();
        let current = self.server.shared.figures.scur.load(Ordering::Relaxed);
        let queue = self.server.shared.waiting();
        let moved = self.requeued(false);
        let line = format!(
            "{} {what}. {active} active and {backup} backup servers left.{on_backup} {current} sessions active, \
             {moved} requeued, {queue} remaining in queue.",
            self.subject()
        );
        say(self.proxy, self.logger, "WARNING", severity, &line);
        line
    }

    /// Logs that the backend, which had a usable server before, has none now.
    pub(super) fn backend_down(&self, was_up: bool) {
        if !was_up || self.proxy.backend.summary(Instant::now()).up {
            return;
        }
        let name = &self.proxy.config.name;
        let kind = match self.proxy.config.kind {
            sluicegate_config::model::ProxyKind::Listen => "proxy",
            _ => "backend",
        };
        let line = format!("{kind} '{name}' has no server available!");
        let logged = format!("{kind} {name} has no server available!");
        say_both(self.proxy, self.logger, "ALERT", Severity::Emergency, &line, &logged);
    }
}
