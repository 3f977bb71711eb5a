//! The health counter of a server.
//!
//! [`Health`] is HAProxy's counter as a pure state machine: 0 to `rise + fall - 1`, up from `rise` on; one failure
//! below `rise` falls to 0, one success that reaches `rise` jumps to the top. A server starts up, one failure away from
//! down, unless `init-state` says otherwise.

use std::time::Duration;

use sluicegate_config::model::{Check, CheckStatus};

use super::shared::Operation;

/// The health counter of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// 0 to `rise + fall - 1`.
    pub level: u32,
    /// The number of successes that bring the server up.
    pub rise: u32,
    /// The number of failures that bring the server down.
    pub fall: u32,
}

impl Health {
    /// Returns the health of a server with `check` at start; `rise` and `fall` are at least 1.
    pub fn new(rise: u32, fall: u32) -> Health {
        let (rise, fall) = (rise.max(1), fall.max(1));
        Health { level: rise, rise, fall }
    }

    /// Returns the health of a server without `check`: up for good.
    pub fn unchecked() -> Health {
        Health { level: 1, rise: 1, fall: 1 }
    }

    /// Returns whether the server is up.
    pub fn is_up(&self) -> bool {
        self.level >= self.rise
    }

    pub(crate) fn top(&self) -> u32 {
        self.rise + self.fall - 1
    }

    /// Records a passed check; returns whether that changed anything.
    pub fn passed(&mut self) -> bool {
        if self.level >= self.top() {
            return false;
        }
        self.level += 1;
        if self.is_up() {
            self.level = self.top();
        }
        true
    }

    /// Records a failed check; returns whether that changed anything.
    pub fn failed(&mut self) -> bool {
        if self.level == 0 {
            return false;
        }
        self.level -= 1;
        if !self.is_up() {
            self.level = 0;
        }
        true
    }

    /// Returns the time until the next check of a server in this state.
    pub fn interval(&self, check: &Check, operation: Operation) -> Duration {
        if self.level == self.top() {
            check.inter
        } else if operation == Operation::Stopped && self.level == 0 {
            check.downinter.unwrap_or(check.inter)
        } else {
            check.fastinter.unwrap_or(check.inter)
        }
    }
}

/// The last check of a server, or its agent's last answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// The status at its end.
    pub status: CheckStatus,
    /// The protocol's numeric code, such as the HTTP status; meaningful if the check status has one.
    pub code: u32,
    /// The message of the system or the server; empty if there is none.
    pub info: Vec<u8>,
    /// Its duration; `None` without a check.
    pub duration: Option<Duration>,
}

impl CheckReport {
    /// Appends the end of a log line about the check: `, reason: …`.
    pub(super) fn append_reason(&self, line: &mut String) {
        use std::fmt::Write as _;
        // Writing to a string can't fail.
        let _ = write!(line, ", reason: {}", self.status.description());
        if self.status.has_code() {
            let _ = write!(line, ", code: {}", self.code);
        }
        if !self.info.is_empty() {
            line.push_str(", info: \"");
            for byte in &self.info {
                match byte {
                    b'"' | 0..0x20 | 0x7f.. => _ = write!(line, "<{byte:02X}>"),
                    _ => line.push(*byte as char),
                }
            }
            line.push('"');
        }
        if let Some(duration) = self.duration {
            let _ = write!(line, ", check duration: {}ms", duration.as_millis());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every level and both results, for every small rise and fall, against the rules in words: `fall` failures in a
    /// row bring a fully healthy server down, `rise` successes in a row bring it fully up, anything between starts
    /// over.
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
                        assert_eq!(health.failed(), level > 0, "{start:?} after {failure} failures");
                        assert_eq!(health.is_up(), was_up && failure < needed);
                    }
                    assert_eq!(health.level, 0, "down is fully down");
                    assert!(!health.failed());

                    let mut health = start;
                    let needed = if was_up { u32::from(level < top) } else { rise - level };
                    for success in 1..=needed {
                        assert!(health.passed());
                        assert_eq!(health.is_up(), was_up || success == needed, "{start:?}");
                    }
                    assert_eq!(health.level, top, "up is fully up");
                    assert!(!health.passed());
                }
            }
        }
    }

    #[test]
    fn a_server_starts_up_and_one_failure_from_down() {
        let mut health = Health::new(2, 3);
        assert!(health.is_up());
        health.failed();
        assert!(!health.is_up());
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
            send_proxy: false,
            reuse_pool: false,
            pool_name: None,
            tls: Default::default(),
        };
        let mut health = Health::new(2, 3);
        let interval = |health: &Health, check: &Check| {
            health.interval(check, if health.is_up() { Operation::Running } else { Operation::Stopped })
        };
        assert_eq!(interval(&health, &check), ms(500), "unchecked");
        health.passed();
        assert_eq!(interval(&health, &check), ms(2000));
        health.failed();
        assert_eq!(interval(&health, &check), ms(500));
        health.failed();
        health.failed();
        assert_eq!(interval(&health, &check), ms(9000));
        health.passed();
        assert_eq!(interval(&health, &check), ms(500));
        let plain = Check { fastinter: None, downinter: None, ..check };
        assert_eq!(interval(&health, &plain), ms(2000));
    }

    #[test]
    fn reasons_quote_what_is_no_text() {
        let report = CheckReport {
            status: CheckStatus::L7Sts,
            code: 503,
            info: b"No\x01 \"W\xe9y".to_vec(),
            duration: Some(Duration::from_millis(7)),
        };
        let mut line = String::new();
        report.append_reason(&mut line);
        let expected = ", reason: Layer7 wrong status, code: 503, info: \"No<01> <22>W<E9>y\", check duration: 7ms";
        assert_eq!(line, expected);
    }
}
