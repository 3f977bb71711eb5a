//! The state of one server: administrative state, the results of checks, agents and traffic, and its weight.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use sluicegate_config::model::{self, InitialState};

use super::health::{CheckReport, Health};
use crate::balance::WEIGHT_SCALE;

/// The administrative state of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Admin {
    /// Serves while it is healthy.
    #[default]
    Ready,
    /// Accepts only new traffic that is persistent on it.
    Drain,
    /// Maintenance (`disabled`, `disable server`): no traffic, no checks.
    Maintenance,
}

/// The operational state of a server, set by checks, an agent, traffic, a tracked server or an administrator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operation {
    /// It serves.
    #[default]
    Running,
    /// Serves, but accepts only new traffic that is persistent on it.
    Stopping,
    /// Does not serve.
    Stopped,
}

/// A change of a server's [`Operation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is down.
    Down {
        /// Whether the server accepted no new traffic before.
        expected: bool,
    },
    /// The server accepts no new traffic from now on.
    Stopping,
    /// It is up.
    Up,
}

/// The state reported by an agent.
#[derive(Clone, Debug)]
pub struct AgentStatus {
    /// Whether the agent is configured and its checks are enabled.
    pub enabled: bool,
    /// The agent's report, as a counter with a threshold of one.
    pub health: Health,
    /// Whether an agent check is in progress.
    pub asking: bool,
    /// Its last answer.
    pub report: Option<CheckReport>,
}

/// A server's state, behind its lock.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// The administrative state set by an administrator or the agent.
    pub admin: Admin,
    /// The administrative state of the server that it tracks.
    pub inherited: Admin,
    /// Whether its name has no address: it is in maintenance until it gets one.
    pub unresolved: bool,
    /// Its operational state.
    pub operation: Operation,
    /// The result of its checks.
    pub health: Health,
    /// The report of its agent.
    pub agent: AgentStatus,
    /// Whether a check is under way.
    pub checking: bool,
    /// Whether checks are enabled (`enable health`, `disable health`).
    pub checks: bool,
    /// The level that HAProxy shows for a server without `check`: only its administrative state counts.
    pub unchecked_level: u32,
    /// User weight at run time, 0–256.
    pub weight: u32,
    /// Whether the server came up recently and is in its slow start (`slowstart`).
    pub starting: bool,
    /// The part of its weight, out of [`WEIGHT_SCALE`], that is in effect: the whole except in slow start.
    pub steps: u32,
    /// The time of its last change between up and down.
    pub changed: Instant,
    /// Time spent down before `changed`.
    pub downtime: Duration,
    /// The last check.
    pub check: Option<CheckReport>,
    /// Failed checks while it was up (`chkfail`).
    pub failed_checks: u64,
    /// Transitions to down (`chkdown`).
    pub times_down: u64,
    /// The number of times `observe` acted (`hanafail`).
    pub observed: u64,
}

impl ServerStatus {
    /// Returns the weight that the balancer uses: the user weight times [`WEIGHT_SCALE`], less during slow start.
    pub fn effective_weight(&self) -> u32 {
        let serves = self.admin() == Admin::Ready && self.operation == Operation::Running;
        if serves { self.weight * self.steps } else { 0 }
    }

    /// Returns its current weight, including slow start, in user weights and rounded up.
    pub fn current_weight(&self) -> u32 {
        (self.weight * self.steps).div_ceil(WEIGHT_SCALE)
    }

    /// Returns the share of its weight that a server in slow start has, in percent (`throttle`).
    pub fn throttle(&self) -> Option<u32> {
        let share = || match self.weight {
            0 => 100,
            weight => (100 * weight * self.steps + WEIGHT_SCALE - 1) / (WEIGHT_SCALE * weight),
        };
        self.starting.then(share)
    }

    /// Advances a slow start; returns the percentage of the server's slots that may be used.
    pub(super) fn warm(&mut self, now: Instant, slowstart: Duration, weighs: bool) -> u32 {
        if !self.starting {
            return 100;
        }
        let (elapsed, whole) = (now.saturating_duration_since(self.changed).as_secs(), slowstart.as_secs().max(1));
        if elapsed >= whole {
            (self.starting, self.steps) = (false, WEIGHT_SCALE);
            return 100;
        }
        if weighs {
            self.steps = ((u64::from(WEIGHT_SCALE) * elapsed + whole) / whole) as u32;
        }
        (100 * elapsed / whole) as u32
    }

    /// Returns whether the server is up: healthy and not in maintenance, even if drained or of weight 0.
    pub fn is_running(&self) -> bool {
        self.admin() != Admin::Maintenance && self.operation != Operation::Stopped
    }

    /// Returns the effective administrative state: the stricter one of its own and that of the server that it tracks;
    /// without an address it is in maintenance.
    pub fn admin(&self) -> Admin {
        if self.unresolved { Admin::Maintenance } else { self.admin.max(self.inherited) }
    }

    /// Changes the operational state, unless the server is in that state already or in maintenance.
    pub(crate) fn turn(&mut self, to: Operation) -> Option<Turn> {
        if self.admin() == Admin::Maintenance || self.operation == to {
            return None;
        }
        let before = std::mem::replace(&mut self.operation, to);
        Some(match to {
            Operation::Running => Turn::Up,
            Operation::Stopping => Turn::Stopping,
            Operation::Stopped => {
                self.times_down += 1;
                Turn::Down { expected: before == Operation::Stopping || self.admin() == Admin::Drain }
            }
        })
    }

    /// Returns the time spent down so far; the caller rounds it to seconds.
    pub fn downtime_at(&self, now: Instant) -> Duration {
        if self.is_running() { self.downtime } else { self.downtime + now.saturating_duration_since(self.changed) }
    }
}

/// The address and check address of a server set at run time; `None`: as in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// `set server … addr`.
    pub ip: Option<IpAddr>,
    /// Whether the server's name has no address any more; the one resolved at the start is then not used either.
    pub lost: bool,
    /// `set server … addr … port`, or the port of a service's record.
    pub port: Option<u16>,
    /// `set server … check-port`.
    pub check_port: Option<u16>,
    /// `set server … check-addr`.
    pub check_addr: Option<IpAddr>,
    /// `set server … agent-addr`.
    pub agent_addr: Option<IpAddr>,
    /// `set server … agent-port`.
    pub agent_port: Option<u16>,
}

/// Returns a server's health at its start, and after maintenance.
pub(super) fn initial(config: &model::Server) -> (Health, Operation) {
    let Some(check) = &config.check else { return (Health::unchecked(), Operation::Running) };
    let mut health = Health::new(check.rise, check.fall);
    let operation = match config.health.initial {
        InitialState::Up => Operation::Running,
        InitialState::FullyUp => {
            health.level = health.top();
            Operation::Running
        }
        InitialState::Down => {
            health.level = health.rise - 1;
            Operation::Stopped
        }
        InitialState::FullyDown => {
            health.level = 0;
            Operation::Stopped
        }
    };
    (health, operation)
}
