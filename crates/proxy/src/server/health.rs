//! Health checks: a connection is tried, and `rise` and `fall` of them in a row decide.
//!
//! [`Health`] is HAProxy's counter as a pure state machine: 0 to `rise + fall - 1`, up from `rise` on; one failure
//! below `rise` falls to 0, one success that reaches `rise` jumps to the top. A server starts up, one failure away from
//! down.
//!
//! [`run`] checks every server with `check` once per process, on the control thread. First checks are spread over the
//! shortest interval (at least a second), so that a restart does not probe every server in the same instant; the next
//! check comes an interval after the last one ended: `inter` while fully up, `downinter` while fully down, `fastinter`
//! between. Each change of state reaches the balancer and the queue within the same call.
//!
//! Cost: a task of a few hundred bytes per checked server and one connection per interval.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::model::{Check, ServerAddress};
use tokio::task::JoinSet;

use super::admin::Notice;
use super::connection::{connect_tcp, connect_unix};
use super::shared::{Admin, ServerRun};
use crate::log::{Logger, Severity};
use crate::running::{ProxyRun, Running};

/// First checks are spread over no less than this (HAProxy's SRV_CHK_INTER_THRES).
const SPREAD_MIN: Duration = Duration::from_secs(1);

/// A server's health, counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// 0 to `rise + fall - 1`.
    pub level: u32,
    /// Successes that bring it up.
    pub rise: u32,
    /// Failures that bring it down.
    pub fall: u32,
}

/// What one check changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// Nothing that the balancer notices.
    None,
    /// It came up.
    Up,
    /// It went down.
    Down,
}

impl Health {
    /// The health of a server with `check` at start; `rise` and `fall` are at least 1.
    pub fn new(rise: u32, fall: u32) -> Health {
        let (rise, fall) = (rise.max(1), fall.max(1));
        Health { level: rise, rise, fall }
    }

    /// The health of a server without `check`: up for good.
    pub fn unchecked() -> Health {
        Health { level: 1, rise: 1, fall: 1 }
    }

    /// It may serve.
    pub fn is_up(&self) -> bool {
        self.level >= self.rise
    }

    pub(super) fn top(&self) -> u32 {
        self.rise + self.fall - 1
    }

    /// A check passed.
    pub fn passed(&mut self) -> Transition {
        if self.level == self.top() {
            return Transition::None;
        }
        let was_up = self.is_up();
        self.level += 1;
        if self.level < self.rise {
            return Transition::None;
        }
        self.level = self.top();
        if was_up { Transition::None } else { Transition::Up }
    }

    /// A check failed.
    pub fn failed(&mut self) -> Transition {
        if !self.is_up() {
            self.level = 0;
            return Transition::None;
        }
        self.level -= 1;
        if self.is_up() {
            return Transition::None;
        }
        self.level = 0;
        Transition::Down
    }

    /// Time to the next check.
    pub fn interval(&self, check: &Check) -> Duration {
        if self.level == self.top() {
            check.inter
        } else if self.level == 0 {
            check.downinter.unwrap_or(check.inter)
        } else {
            check.fastinter.unwrap_or(check.inter)
        }
    }
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckStatus {
    /// Connected.
    L4Ok,
    /// Refused, unreachable, reset.
    L4Con,
    /// No answer in time.
    L4Tout,
    /// No socket could be made here.
    SockErr,
}

impl CheckStatus {
    /// The name in `show stat`'s `check_status`.
    pub fn name(self) -> &'static str {
        match self {
            CheckStatus::L4Ok => "L4OK",
            CheckStatus::L4Con => "L4CON",
            CheckStatus::L4Tout => "L4TOUT",
            CheckStatus::SockErr => "SOCKERR",
        }
    }

    /// The description in logs and `check_desc`.
    pub fn description(self) -> &'static str {
        match self {
            CheckStatus::L4Ok => "Layer4 check passed",
            CheckStatus::L4Con => "Layer4 connection problem",
            CheckStatus::L4Tout => "Layer4 timeout",
            CheckStatus::SockErr => "Socket error",
        }
    }
}

/// The last check of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// How it ended.
    pub status: CheckStatus,
    /// What the system said; empty for a success or a timeout.
    pub info: String,
    /// How long it took.
    pub duration: Duration,
}

/// The longest a check may take (configuration manual, `timeout check`): its own timeout, but no longer to connect than
/// `timeout connect` or the interval; without it, the interval.
fn check_limit(proxy: &ProxyRun, check: &Check) -> Duration {
    let timeouts = &proxy.config.timeouts;
    match (timeouts.check, timeouts.connect) {
        (Some(_), Some(connect)) => connect.min(check.inter),
        _ => check.inter,
    }
}

async fn probe(server: &ServerRun, check: &Check, limit: Duration) -> CheckReport {
    let begun = Instant::now();
    let result = match (check_address(server, check), &server.config.address) {
        (Some(address), _) => connect_tcp(address, Some(limit)).await.map(drop),
        (None, unix @ (ServerAddress::Unix(_) | ServerAddress::Abstract(_))) => connect_unix(unix).map(drop),
        (None, _) => Err(io::Error::other("no address to check")),
    };
    let (status, info) = match result {
        Ok(()) => (CheckStatus::L4Ok, String::new()),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => (CheckStatus::L4Tout, String::new()),
        Err(error) => (failure_status(&error), describe(&error)),
    };
    CheckReport { status, info, duration: begun.elapsed() }
}

fn check_address(server: &ServerRun, check: &Check) -> Option<SocketAddr> {
    let mut address = match (server.socket_addr(None), check.addr, check.port) {
        (Some(address), _, _) => address,
        (None, Some(host), Some(port)) => SocketAddr::new(host, port),
        _ => return None,
    };
    if let Some(host) = check.addr {
        address.set_ip(host);
    }
    if let Some(port) = server.shared.moved().check_port.or(check.port) {
        address.set_port(port);
    }
    Some(address)
}

fn failure_status(error: &io::Error) -> CheckStatus {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EADDRNOTAVAIL) | None => {
            CheckStatus::SockErr
        }
        Some(_) => CheckStatus::L4Con,
    }
}

/// The system's words without Rust's `(os error N)`.
fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Takes a check's result in: the server's state, the balancer, the queue, and the log lines of a change.
fn conclude(proxy: &ProxyRun, server: &ServerRun, report: CheckReport, logger: &Logger) {
    let now = Instant::now();
    let backend = &server.backend;
    let waiting = server.shared.queued.load(std::sync::atomic::Ordering::Relaxed);
    let was_up = proxy.backend.summary(now).up;
    let transition = backend.update(server.shared.index, now, |status| {
        status.check = Some(report.clone());
        // What came while an administrator turned checks off is no longer asked for.
        if status.admin == Admin::Maintenance || !status.checks {
            return Transition::None;
        }
        if report.status == CheckStatus::L4Ok {
            let transition = status.health.passed();
            let resumes = std::mem::take(&mut status.stopping) && status.health.is_up();
            return if resumes { Transition::Up } else { transition };
        }
        if status.health.is_up() {
            status.failed_checks += 1;
        }
        let transition = status.health.failed();
        status.times_down += u64::from(transition == Transition::Down);
        transition
    });
    if transition == Transition::None {
        return;
    }
    let mut cause = format!(", reason: {}", report.status.description());
    // Writing to a string can't fail.
    if !report.info.is_empty() {
        let _ = write!(cause, ", info: \"{}\"", report.info);
    }
    let _ = write!(cause, ", check duration: {}ms", report.duration.as_millis());
    let notice = Notice { proxy, server, logger, waiting };
    if transition == Transition::Up {
        notice.comes(&format!("is UP{cause}"));
    } else {
        notice.goes(&format!("is DOWN{cause}"), Severity::Alert);
    }
    notice.backend_down(was_up);
}

/// Checks every server that has `check`, for as long as the future lives. Runs on the control thread's runtime.
pub async fn run(running: Arc<Running>) {
    let checked: Vec<_> = running
        .proxies
        .iter()
        .filter(|proxy| !proxy.config.disabled)
        .flat_map(|proxy| proxy.servers.iter().map(move |server| (proxy.clone(), server.clone())))
        .filter_map(|(proxy, server)| server.config.check.clone().map(|check| (proxy, server, check)))
        .collect();
    let spread = checked.iter().map(|(_, _, check)| check.inter).min().unwrap_or(SPREAD_MIN).max(SPREAD_MIN);
    let count = checked.len().max(1) as u32;
    let mut tasks = JoinSet::new();
    for (place, (proxy, server, check)) in (0..).zip(checked) {
        let logger = running.logger.clone();
        tasks.spawn(check_forever(proxy, server, check, spread * place / count, logger));
    }
    while tasks.join_next().await.is_some() {}
}

async fn check_forever(proxy: Arc<ProxyRun>, server: Arc<ServerRun>, check: Check, delay: Duration, logger: Logger) {
    tokio::time::sleep(delay).await;
    let limit = check_limit(&proxy, &check);
    loop {
        let status = server.shared.status();
        if status.admin != Admin::Maintenance && status.checks {
            let report = probe(&server, &check, limit).await;
            conclude(&proxy, &server, report, &logger);
        }
        tokio::time::sleep(server.shared.status().health.interval(&check)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every state and both results, for every small rise and fall, against the rules in words: `fall` failures in a
    /// row bring a fully healthy server down, `rise` successes in a row bring it fully up, anything between starts over.
    #[test]
    fn rise_and_fall_hold_for_every_state() {
        for rise in 1..=6 {
            for fall in 1..=6 {
                let top = rise + fall - 1;
                for level in 0..=top {
                    let start = Health { level, rise, fall };
                    let was_up = level >= rise;

                    let mut health = start;
                    let needed = if was_up { level - rise + 1 } else { 1 };
                    for failure in 1..=needed {
                        let transition = health.failed();
                        let down = was_up && failure == needed;
                        assert_eq!(transition == Transition::Down, down, "{start:?} after {failure} failures");
                        assert_eq!(health.is_up(), was_up && failure < needed);
                    }
                    assert_eq!(health.level, 0, "down is fully down");
                    assert_eq!(health.failed(), Transition::None);

                    let mut health = start;
                    let needed = if was_up { u32::from(level < top) } else { rise - level };
                    for success in 1..=needed {
                        let transition = health.passed();
                        assert_eq!(transition == Transition::Up, !was_up && success == needed, "{start:?}");
                    }
                    assert_eq!(health.level, top, "up is fully up");
                    assert_eq!(health.passed(), Transition::None);
                }
            }
        }
    }

    #[test]
    fn a_server_starts_up_and_one_failure_from_down() {
        let mut health = Health::new(2, 3);
        assert!(health.is_up());
        assert_eq!(health.failed(), Transition::Down);
    }

    #[test]
    fn intervals_follow_the_state() {
        let ms = Duration::from_millis;
        let check = Check {
            inter: ms(2000),
            fastinter: Some(ms(500)),
            downinter: Some(ms(9000)),
            rise: 2,
            fall: 3,
            port: None,
            addr: None,
        };
        let mut health = Health::new(2, 3);
        assert_eq!(health.interval(&check), ms(500), "unchecked");
        health.passed();
        assert_eq!(health.interval(&check), ms(2000));
        health.failed();
        assert_eq!(health.interval(&check), ms(500));
        health.failed();
        health.failed();
        assert_eq!(health.interval(&check), ms(9000));
        health.passed();
        assert_eq!(health.interval(&check), ms(500));
        let plain = Check { fastinter: None, downinter: None, ..check };
        assert_eq!(health.interval(&plain), ms(2000));
    }

    #[test]
    fn errors_are_told_in_the_systems_words() {
        let error = io::Error::from_raw_os_error(libc::ECONNREFUSED);
        assert_eq!(describe(&error), "Connection refused");
        assert_eq!(failure_status(&error), CheckStatus::L4Con);
        assert_eq!(failure_status(&io::Error::from_raw_os_error(libc::EMFILE)), CheckStatus::SockErr);
    }
}
