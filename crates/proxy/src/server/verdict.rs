//! Conclusions about a server's health.
//!
//! [`conclude`] counts a report of a check, an agent or traffic ([`observe`]) in the server's state; a change reaches
//! the balancer and the queue within the call. Other consequences are returned: the caller lets
//! [`notice`](super::notice) log the change, end streams and update the servers that track this one.

use std::sync::atomic::Ordering;
use std::time::Instant;

use sluicegate_config::model::{CheckResult, CheckStatus, OnObserved};

use super::event::Condition;
use super::health::{CheckReport, Health};
use super::run::ServerRun;
use super::shared::{Admin, Operation, ServerStatus, Turn};

/// The source of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opinion {
    /// A check, or an observation of traffic that counts as one.
    Check,
    /// The agent.
    Agent,
}

impl ServerStatus {
    /// Counts a report; returns whether the health moved.
    fn count(&mut self, opinion: Opinion, report: &CheckReport) -> bool {
        let health = match opinion {
            Opinion::Check => &mut self.health,
            Opinion::Agent => &mut self.agent.health,
        };
        match report.status.result() {
            CheckResult::Neutral => false,
            // An unreachable agent implies nothing about its server.
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

    /// Changes the operation as a counted report demands; returns the change.
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

/// The conclusion from a report.
#[must_use]
pub(super) struct Concluded {
    pub(super) opinion: Opinion,
    pub(super) report: CheckReport,
    /// Whether the health changed.
    pub(super) moved: bool,
    /// Whether the health changed, or the report differs from the last one.
    pub(super) notable: bool,
    /// The health counter that the report changed.
    pub(super) health: Health,
    pub(super) weight: u32,
    /// The operation changed.
    pub(super) turn: Option<Turn>,
    pub(super) before: Before,
}

/// Counts a report on a server; returns the consequences. `prepare` changes the state before the report counts.
pub(super) fn conclude(
    server: &ServerRun,
    opinion: Opinion,
    report: CheckReport,
    prepare: impl FnOnce(&mut ServerStatus),
) -> Concluded {
    let now = Instant::now();
    let before = Before::of(server, now);
    let passed = matches!(report.status.result(), CheckResult::Passed | CheckResult::Conditional);
    if opinion == Opinion::Check && passed {
        server.shared.failures.store(0, Ordering::Relaxed);
    }
    let (moved, other, health, weight, turn) = server.backend.update(server.shared.index, now, |status| {
        prepare(status);
        let kept = match opinion {
            Opinion::Check => &mut status.check,
            Opinion::Agent => &mut status.agent.report,
        };
        let last = kept.replace(report.clone());
        let other = last.is_none_or(|last| last.status != report.status);
        // In maintenance, checks have no effect on the health.
        if status.admin() == Admin::Maintenance && opinion == Opinion::Check {
            return (false, false, status.health, status.weight, None);
        }
        let moved = status.count(opinion, &report);
        let turn = status.follow(opinion, report.status);
        let health = if opinion == Opinion::Check { status.health } else { status.agent.health };
        (moved, other, health, status.weight, turn)
    });
    Concluded { opinion, report, moved, notable: moved || other, health, weight, turn, before }
}

/// A server's state before a change, for the log lines about it.
pub(super) struct Before {
    pub(super) backend_up: bool,
    pub(super) waiting: u32,
    pub(super) common: u32,
    pub(super) condition: Condition,
}

impl Before {
    pub(super) fn of(server: &ServerRun, now: Instant) -> Before {
        let waiting = server.shared.queued.load(Ordering::Relaxed);
        Before {
            backend_up: server.backend.summary(now).up,
            waiting,
            common: server.backend.queue.len(),
            condition: server.condition(),
        }
    }
}

/// An observation of traffic to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    /// It was connected to.
    Connected,
    /// It could not be connected to.
    NotConnected,
    /// A good response came.
    GoodResponse,
    /// A response came whose status counts as a failure.
    WrongResponse,
    /// A response came whose head is malformed.
    InvalidHead,
    /// A response came whose body is malformed.
    InvalidBody,
    /// No response came in time.
    ReadTimeout,
    /// The connection ended before its response.
    BrokenPipe,
}

impl Observed {
    /// Returns a response's status as `observe layer7` sees it.
    pub(crate) fn of_status(status: u16) -> Observed {
        match status {
            100..=499 | 501 | 505 => Observed::GoodResponse,
            _ => Observed::WrongResponse,
        }
    }

    /// Returns whether the observation is a failure at a layer; `None`: it has no meaning for that layer.
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

/// Counts an observation for a server whose health it may change (`observe`); returns the conclusion.
#[cold]
pub(super) fn observe(server: &ServerRun, seen: Observed) -> Option<Concluded> {
    let observe = server.config.health.observe?;
    if !server.shared.status().checks || server.config.check.is_none() {
        return None;
    }
    let failures = &server.shared.failures;
    match seen.failed(observe.layer7) {
        None => return None,
        Some(false) => {
            failures.store(0, Ordering::Relaxed);
            return None;
        }
        Some(true) => {}
    }
    let count = failures.fetch_add(1, Ordering::Relaxed) + 1;
    if count < observe.limit {
        return None;
    }
    let report = CheckReport {
        status: CheckStatus::Hana,
        code: 0,
        info: format!("Detected {count} consecutive errors, last one was: {}", seen.description()).into_bytes(),
        duration: None,
    };
    let concluded = match observe.on_error {
        OnObserved::FastInter => None,
        OnObserved::FailCheck => Some(conclude(server, Opinion::Check, report, |_| ())),
        OnObserved::SuddenDeath => Some(conclude(server, Opinion::Check, report, |status| {
            let health = &mut status.health;
            health.level = health.level.min(health.rise + 1);
        })),
        OnObserved::MarkDown => Some(conclude(server, Opinion::Check, report, |status| {
            status.health.level = status.health.rise;
        })),
    };
    failures.store(0, Ordering::Relaxed);
    server.backend.update(server.shared.index, Instant::now(), |status| status.observed += 1);
    server.shared.hurry.notify_one();
    concluded
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
}
