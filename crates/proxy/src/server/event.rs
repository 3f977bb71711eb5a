//! Events of servers, for scripts that have subscribed to them (`core.event_sub` of HAProxy's Lua API).
//!
//! An event is made after the change, on the thread that has made it, and only if some script subscribes to events. Its data
//! are copies: a server may be deleted before a script sees the event.

use std::sync::Arc;

use sluicegate_config::model::{CheckResult, CheckStatus};

use super::health::{CheckReport, Health};
use super::run::ServerRun;
use super::shared::{Admin, Operation, ServerStatus};
use super::verdict::Opinion;

/// The operational state of a server as HAProxy names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Down, or in maintenance.
    Stopped,
    /// Up, without new traffic.
    Stopping,
    /// Up, in its slow start.
    Starting,
    /// Up.
    Running,
}

impl Stage {
    /// Returns HAProxy's name.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Stopped => "STOPPED",
            Stage::Stopping => "STOPPING",
            Stage::Starting => "STARTING",
            Stage::Running => "RUNNING",
        }
    }
}

/// The administrative state of a server, by its sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdminFlags {
    /// Maintenance by an administrator.
    pub forced_maintenance: bool,
    /// Maintenance of the server that it tracks.
    pub inherited_maintenance: bool,
    /// Maintenance because its name has no address.
    pub unresolved: bool,
    /// Disabled in the file.
    pub configured: bool,
    /// Drain by an administrator.
    pub forced_drain: bool,
    /// Drain of the server that it tracks.
    pub inherited_drain: bool,
}

impl AdminFlags {
    /// Returns whether the server is in maintenance, for whatever reason.
    pub fn maintenance(self) -> bool {
        self.forced_maintenance || self.inherited_maintenance || self.unresolved
    }

    /// Returns the flags of both.
    pub(super) fn or(self, other: AdminFlags) -> AdminFlags {
        AdminFlags {
            forced_maintenance: self.forced_maintenance || other.forced_maintenance,
            inherited_maintenance: self.inherited_maintenance || other.inherited_maintenance,
            unresolved: self.unresolved || other.unresolved,
            configured: self.configured || other.configured,
            forced_drain: self.forced_drain || other.forced_drain,
            inherited_drain: self.inherited_drain || other.inherited_drain,
        }
    }
}

/// The part of a server's state that events show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) admin: AdminFlags,
    /// The stage of the server if it were not in maintenance.
    pub(super) stage: Stage,
}

impl Condition {
    fn of(status: &ServerStatus, configured: bool) -> Condition {
        let stage = match status.operation {
            Operation::Stopped => Stage::Stopped,
            Operation::Stopping => Stage::Stopping,
            Operation::Running if status.starting => Stage::Starting,
            Operation::Running => Stage::Running,
        };
        let admin = AdminFlags {
            forced_maintenance: status.admin == Admin::Maintenance,
            inherited_maintenance: status.inherited == Admin::Maintenance,
            unresolved: status.unresolved,
            configured,
            forced_drain: status.admin == Admin::Drain,
            inherited_drain: status.inherited == Admin::Drain,
        };
        Condition { admin, stage }
    }

    /// Returns the stage that is in effect.
    pub(super) fn effective(self) -> Stage {
        if self.admin.maintenance() { Stage::Stopped } else { self.stage }
    }
}

/// The server that an event is about.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The index of its proxy.
    pub proxy: usize,
    /// Its identity.
    pub life: u64,
    /// Its name.
    pub name: Arc<str>,
    /// Its number in its proxy.
    pub puid: u32,
    /// Its revision.
    pub rid: u32,
    /// Its proxy's name.
    pub proxy_name: Arc<str>,
    /// Its proxy's number.
    pub proxy_uuid: u32,
}

/// A check as events show it.
#[derive(Clone, Debug)]
pub struct CheckFacts {
    /// Whether it is the agent's.
    pub agent: bool,
    /// Its status.
    pub status: CheckStatus,
    /// Its code, if the status has one.
    pub code: u32,
    /// Its duration in milliseconds; -1 without a check.
    pub duration_ms: i64,
    /// The health counter after it.
    pub health: Health,
}

impl CheckFacts {
    pub(super) fn new(opinion: Opinion, report: &CheckReport, health: Health) -> CheckFacts {
        CheckFacts {
            agent: opinion == Opinion::Agent,
            status: report.status,
            code: report.code,
            duration_ms: report.duration.map_or(-1, |duration| duration.as_millis() as i64),
            health,
        }
    }

    /// Returns HAProxy's name of the result.
    pub fn result(&self) -> Option<&'static str> {
        match self.status.result() {
            CheckResult::Neutral => None,
            CheckResult::Failed => Some("FAILED"),
            CheckResult::Passed => Some("PASSED"),
            CheckResult::Conditional => Some("CONDPASS"),
        }
    }
}

/// The cause of a change.
#[derive(Clone, Debug)]
pub enum Cause {
    /// A check.
    Check(CheckFacts),
    /// Something else: HAProxy's text, which may be empty.
    Text(String),
}

/// The change that an event reports.
#[derive(Clone, Debug)]
pub enum Detail {
    /// It was added at run time.
    Added,
    /// It was deleted.
    Deleted,
    /// It is not stopped any more.
    Up,
    /// It is stopped.
    Down,
    /// Its stage has changed.
    State {
        /// Whether the change is an administrative one.
        admin: bool,
        /// The cause.
        cause: Cause,
        /// The stage before.
        old: Stage,
        /// The stage now.
        new: Stage,
        /// Requests that were moved to or from its queue.
        requeued: u32,
    },
    /// Its administrative state has changed.
    Admin {
        /// HAProxy's text, which may be empty.
        cause: String,
        /// The flags before.
        old: AdminFlags,
        /// The flags now.
        new: AdminFlags,
        /// Requests that were moved from its queue.
        requeued: u32,
    },
    /// A check has changed its health counter.
    Check(CheckFacts),
    /// Its address or port has changed.
    Address,
}

/// An event.
#[derive(Clone, Debug)]
pub struct ServerEvent {
    /// The server.
    pub subject: Subject,
    /// The change.
    pub detail: Detail,
}

impl ServerRun {
    /// Returns the state that events show.
    pub(super) fn condition(&self) -> Condition {
        Condition::of(&self.shared.status(), self.config.disabled)
    }
}
