//! Administrative changes of a server at run time, and their messages.
//!
//! All changes apply to the server's state in [`BackendShared`](super::BackendShared), so the balancer, the queue,
//! health checks and `show stat` follow immediately and a reload keeps them. The log lines are those of HAProxy 2.6, to
//! stderr and to the proxy's logs.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use sluicegate_config::model::ServerAddress;

use super::event::{Cause, Detail};
use super::notice::{Glimpse, Notice, Why, glimpse, turned};
use super::run::ServerRun;
use super::shared::{self, Admin, Operation, ServerStatus};
use super::verdict::Before;
use super::{idle, shared::Moved};
use crate::running::Running;
use crate::site::Site;
use crate::stream::{Killer, shut_sessions};

/// The highest weight of a server.
pub const WEIGHT_MAX: u32 = 256;

/// `set server … health`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthWord {
    /// Fully healthy.
    Up,
    /// Healthy, without new traffic.
    Stopping,
    /// Down until checks say otherwise.
    Down,
}

/// A change of a server at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directive {
    /// `set server … state`, `enable server`, `disable server`.
    State(Admin),
    /// `set server … health`.
    Health(HealthWord),
    /// `set server … weight`: the user weight, 0–256.
    Weight(u32),
    /// `enable health`, `disable health`.
    Checks(bool),
    /// `set server … agent`.
    Agent(bool),
    /// `enable agent`, `disable agent`.
    AgentChecks(bool),
}

/// The reason why a weight was refused, with HAProxy's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightError {
    /// No number at the start.
    Empty,
    /// Text after the number.
    Trailing,
    /// Above 256.
    Absolute,
    /// A percentage below 0.
    Relative,
    /// Neither 0 nor the configured weight, in a backend whose algorithm keeps a table of weights.
    Static,
}

impl WeightError {
    /// Returns HAProxy's message.
    pub fn message(self) -> &'static str {
        match self {
            WeightError::Empty => "Empty weight string empty or preceded by garbage",
            WeightError::Trailing => "Trailing garbage in weight string",
            WeightError::Absolute => "Absolute weight can only be between 0 and 256 inclusive.\n",
            WeightError::Relative => "Relative weight must be positive.\n",
            WeightError::Static => "Backend is using a static LB algorithm and only accepts weights '0%' and '100%'.\n",
        }
    }
}

/// Parses `N`, or `N%` of the configured weight; a percentage is limited to the highest weight. If weights are not
/// `dynamic`, only 0 and the configured weight are accepted.
pub fn parse_weight(text: &str, initial: u16, dynamic: bool) -> Result<u32, WeightError> {
    let weight = read_weight(text, initial)?;
    if !dynamic && weight != 0 && weight != u32::from(initial) {
        return Err(WeightError::Static);
    }
    Ok(weight)
}

fn read_weight(text: &str, initial: u16) -> Result<u32, WeightError> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    if end == 0 {
        return Err(WeightError::Empty);
    }
    // Too many digits are as far out of range as a sign.
    let number = if digits.len() == text.len() { digits[..end].parse::<u64>().unwrap_or(u64::MAX) } else { u64::MAX };
    match &digits[end..] {
        "" if number <= u64::from(WEIGHT_MAX) => Ok(number as u32),
        "" => Err(WeightError::Absolute),
        "%" if digits.len() != text.len() => Err(WeightError::Relative),
        "%" => Ok((u64::from(initial).saturating_mul(number) / 100).min(u64::from(WEIGHT_MAX)) as u32),
        _ => Err(WeightError::Trailing),
    }
}

/// Changes the administrative state of a server, its own or the one inherited from the server that it tracks
/// (`inherited`).
fn decide(status: &mut ServerStatus, server: &ServerRun, to: Admin, inherited: bool) {
    transit(status, server, |status| *(if inherited { &mut status.inherited } else { &mut status.admin }) = to);
}

/// Makes a change that may take a server into maintenance or out of it, and resets its health and operation
/// accordingly.
pub(super) fn transit(status: &mut ServerStatus, server: &ServerRun, change: impl FnOnce(&mut ServerStatus)) {
    let before = (status.admin(), status.is_running());
    change(status);
    let entered = status.admin() == Admin::Maintenance && before.0 != Admin::Maintenance;
    let left = before.0 == Admin::Maintenance && status.admin() != Admin::Maintenance;
    if entered {
        status.times_down += u64::from(before.1);
        status.unchecked_level = 0;
        status.operation = Operation::Stopped;
        status.health.level = 0;
    }
    if left {
        // As at the start: up by default, but the first failed check takes it down.
        (status.health, status.operation) = shared::initial(&server.config);
    }
}

impl Site {
    /// Executes a directive of the stats socket for a server of this backend, and logs the result.
    pub fn direct(&self, running: &Arc<Running>, server: &ServerRun, directive: Directive) {
        self.direct_by(running, server, directive, "CLI");
    }

    /// Like [`direct`](Self::direct), for another originator, which is named in the log.
    pub fn direct_by(&self, running: &Arc<Running>, server: &ServerRun, directive: Directive, by: &str) {
        let now = Instant::now();
        let state = Before::of(server, now);
        let checked = server.config.check.is_some();
        let tracked = server.config.health.track.as_ref().map(|_| running.tracked(server).shared.status().operation);
        let top = server.config.health.unchecked.top;
        let mut turn = None;
        let (before, after) = self.backend.update(server.shared.index, now, |status| {
            let before = glimpse(status);
            match directive {
                Directive::State(admin) => {
                    decide(status, server, admin, false);
                    if let Some(operation) = tracked
                        && before.0 == Admin::Maintenance
                        && status.admin() != Admin::Maintenance
                    {
                        status.operation = operation;
                    }
                }
                // In maintenance, health settings have no effect.
                Directive::Health(_) if before.0 == Admin::Maintenance => status.unchecked_level = top,
                Directive::Health(word) => {
                    let down = word == HealthWord::Down;
                    if checked {
                        status.health.level = if down { 0 } else { status.health.top() };
                    }
                    status.unchecked_level = if down { 0 } else { top };
                    turn = status.turn(match word {
                        HealthWord::Up => Operation::Running,
                        HealthWord::Stopping => Operation::Stopping,
                        HealthWord::Down => Operation::Stopped,
                    });
                }
                Directive::Agent(up) => {
                    status.agent.health.level = u32::from(up);
                    turn = status.turn(if up { Operation::Running } else { Operation::Stopped });
                }
                Directive::Weight(weight) => status.weight = weight,
                Directive::Checks(on) => status.checks = on,
                Directive::AgentChecks(on) => status.agent.enabled = on,
            }
            (before, glimpse(status))
        });
        if let Some(turn) = turn {
            let cause = format!("changed from {by}");
            turned(running, self, server, turn, (&format!(", {cause}"), Cause::Text(cause)), state);
        } else if matches!(directive, Directive::State(_)) {
            self.told(running, server, before, after, Why::Decided, state);
        } else {
            // A weight of 0 may have been the last one's.
            Notice::new(&state, running, self, server).backend_down(state.backend_up);
        }
    }

    /// Logs the result of a decision, and passes it on to the servers that track this one.
    fn told(
        &self,
        running: &Arc<Running>,
        server: &ServerRun,
        before: Glimpse,
        after: Glimpse,
        why: Why<'_>,
        state: Before,
    ) {
        let notice = Notice::new(&state, running, self, server);
        notice.state(before, after, why);
        let reason = if let Why::Name { reason, .. } = why { reason } else { "" };
        running.tell_admin(self, server, state.condition, reason, notice.requeued(after.1));
        notice.backend_down(state.backend_up);
        if before.1 && !after.1 && server.config.health.shut_sessions_when_down {
            shut_sessions(running, &server.shared, Killer::Down);
        }
        if before.1 && after.0 == Admin::Maintenance {
            // The server may be another one when it comes back.
            idle::clear(server);
        }
        if before.0 == after.0 {
            return;
        }
        for (proxy, tracker) in running.trackers(self.id, server.shared.index) {
            let now = Instant::now();
            let state = Before::of(tracker, now);
            let (from, to) = proxy.backend.update(tracker.shared.index, now, |status| {
                let before = glimpse(status);
                decide(status, tracker, after.0, true);
                if before.0 == Admin::Maintenance && status.admin() != Admin::Maintenance {
                    status.operation = after.2;
                }
                (before, glimpse(status))
            });
            proxy.told(running, tracker, from, to, Why::Tracked, state);
        }
    }

    /// Changes the address of a server and, if there is a `port`, its port, on behalf of `by`, so that it is not
    /// unresolved any more; returns HAProxy's message.
    pub fn move_server(
        &self,
        running: &Arc<Running>,
        server: &ServerRun,
        (address, port): (&str, Option<&str>),
        by: &str,
    ) -> String {
        let before = server.shared.moved();
        let said = server.move_to(address, port, by);
        if server.shared.moved() != before {
            running.tell_event(self, server, Detail::Address);
        }
        if server.shared.moved().ip.is_some() {
            self.set_resolved(running, server, Ok(()), None);
        }
        said
    }

    /// Records that the server's name has an address or, with the `reason`, that it has none; without one the server is
    /// in maintenance. `target`: the name that a service's record gave it. Returns whether that is a change.
    pub fn set_resolved(
        &self,
        running: &Arc<Running>,
        server: &ServerRun,
        resolved: Result<(), &str>,
        target: Option<&str>,
    ) -> bool {
        let unresolved = resolved.is_err();
        if server.shared.status().unresolved == unresolved {
            return false;
        }
        let now = Instant::now();
        let state = Before::of(server, now);
        let (before, after) = self.backend.update(server.shared.index, now, |status| {
            let before = glimpse(status);
            transit(status, server, |status| status.unresolved = unresolved);
            (before, glimpse(status))
        });
        let why = Why::Name { reason: resolved.err().unwrap_or_default(), target };
        self.told(running, server, before, after, why, state);
        true
    }
}

impl ServerRun {
    /// Changes the address or port to which checks connect.
    pub(crate) fn check_elsewhere(&self, change: impl FnOnce(&mut Moved)) {
        self.shared.set_moved(change);
    }

    /// Changes the text that is sent to the server's agent.
    pub(crate) fn send_to_agent(&self, text: &[u8]) {
        self.shared.set_agent_send(text);
    }

    /// Returns the server's address if it has one, but no port of its own.
    pub(crate) fn host_only(&self) -> Option<SocketAddr> {
        self.address().map(|ip| SocketAddr::new(ip, 0))
    }

    /// Changes the server's address and, if there is a `port`, its port, on behalf of `by`; returns HAProxy's
    /// message. Idle connections to the previous address are closed.
    fn move_to(&self, address: &str, port: Option<&str>, by: &str) -> String {
        if !matches!(self.config.address, ServerAddress::Inet(..) | ServerAddress::Name(..)) {
            return "Update for the current server address family is only supported through configuration file."
                .to_owned();
        }
        let Ok(ip) = address.parse::<IpAddr>() else { return format!("Invalid addr '{address}'") };
        // As in HAProxy, the number ends at the first character that is no digit.
        let number = |port: &str| port[..port.bytes().take_while(u8::is_ascii_digit).count()].parse::<u16>();
        let port = match port.map(|port| (port, number(port))) {
            None => None,
            Some((_, Ok(number))) if number > 0 => Some(number),
            Some((port, _)) if port.starts_with(['+', '-']) => {
                return format!("can't change the port to the port map '{port}': give the port itself");
            }
            Some((port, _)) => return format!("problem converting port '{port}' to an int"),
        };
        let (current, fixed) = (self.address(), self.port());
        let mut changes = Vec::new();
        if current != Some(ip) {
            let old = current.map_or_else(String::new, |old| old.to_string());
            changes.push(format!("IP changed from '{old}' to '{ip}'"));
        }
        if let Some(port) = port.filter(|port| fixed != Some(*port)) {
            let old = fixed.map_or_else(String::new, |old| old.to_string());
            changes.push(format!("port changed from '{old}' to '{port}'"));
        }
        if changes.is_empty() {
            return "nothing changed".to_owned();
        }
        self.set_moved(|moved| {
            moved.ip = Some(ip);
            moved.port = port.or(moved.port);
        });
        idle::clear(self);
        format!("{} by '{by}'", changes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_absolute_or_shares_of_the_first() {
        for (text, initial, expected) in [
            ("0", 3, Ok(0)),
            ("256", 3, Ok(256)),
            ("50%", 3, Ok(1)),
            ("200%", 3, Ok(6)),
            ("10000%", 200, Ok(256)),
            ("257", 3, Err(WeightError::Absolute)),
            ("-1", 3, Err(WeightError::Absolute)),
            ("-1%", 3, Err(WeightError::Relative)),
            ("99999999999999999999", 3, Err(WeightError::Absolute)),
            ("abc", 3, Err(WeightError::Empty)),
            ("%", 3, Err(WeightError::Empty)),
            ("", 3, Err(WeightError::Empty)),
            ("5x", 3, Err(WeightError::Trailing)),
            ("50%x", 3, Err(WeightError::Trailing)),
        ] {
            assert_eq!(parse_weight(text, initial, true), expected, "{text}");
        }
        for (text, expected) in
            [("50%", Err(WeightError::Static)), ("0%", Ok(0)), ("100%", Ok(30)), ("105%", Err(WeightError::Static))]
        {
            assert_eq!(parse_weight(text, 30, false), expected, "{text}");
        }
    }
}
