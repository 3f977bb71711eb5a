//! Rules whose store or engine fails: variables of the stream, the log line, and messages.

use std::sync::Arc;

use sluicegate_config::model::{LogAddress, LogTarget, Position, VarName, VarScope};

use crate::log::{Logger, Severity, Throttle};
use crate::sample::{Sample, VarRef};
use crate::stream::StreamContext;

/// The maximum number of bytes of a key in a log line.
pub(super) const KEY_SHOWN: usize = 64;
/// The maximum number of bytes of a reason in a log line, because it is an engine's text.
const REASON_SHOWN: usize = 256;

/// The receiver of a rule's failures: it logs at most once a second.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The rule's position and action, for the log.
    rule: String,
    /// The rule's position as a store shows it: `rule:FILE:LINE`.
    pub(crate) origin: Box<str>,
    logger: Logger,
    targets: Arc<[LogTarget]>,
    throttle: Throttle,
    /// `None`: there are too many names of variables already.
    store_err: Option<VarRef>,
}

impl Failed {
    /// Creates the receiver for the rule at a place with the action `what`. Without targets, failures go to stderr.
    pub(crate) fn new(at: &Position, what: &str, logger: &Logger, targets: &Arc<[LogTarget]>) -> Failed {
        let targets = match targets.is_empty() {
            true => Arc::from([LogTarget::raw(LogAddress::Stderr)]),
            false => targets.clone(),
        };
        let store_err = VarRef::intern(&VarName { scope: VarScope::Txn, name: Arc::from("store_err") });
        Failed {
            rule: named(at, what),
            origin: origin(at),
            logger: logger.clone(),
            targets,
            throttle: Throttle::default(),
            store_err,
        }
    }

    /// Returns whether this receiver belongs to the rule at a position with this action.
    pub(super) fn is_of(&self, at: &Position, what: &str) -> bool {
        self.rule == named(at, what)
    }

    /// Records that the rule received no answer for `key`. The reason is stored in the stream's `txn.store_err`, and
    /// the failure is counted (`txn.store_failures`).
    pub(crate) fn note(&self, key: &[u8], reason: &str, cx: &mut StreamContext) {
        cx.log.store_failures = cx.log.store_failures.saturating_add(1);
        if let Some(variable) = &self.store_err {
            cx.variables.set(variable, Sample::Str(reason.as_bytes().to_vec()));
        }
        self.tell(key, reason);
    }

    fn tell(&self, key: &[u8], reason: &str) {
        let Some(count) = self.throttle.count() else { return };
        let times = if count == 1 { String::new() } else { format!(" {count} times") };
        let (key, reason) = (shown(key, KEY_SHOWN), shown(reason.as_bytes(), REASON_SHOWN));
        let line = format!("{} failed{times}, the last time for key '{key}': {reason}", self.rule);
        self.logger.send(&self.targets, Severity::Warning, line.as_bytes());
    }
}

/// Returns the position of a rule as MONITOR and SLOWLOG show it. Characters that would end a word become underscores.
fn origin(at: &Position) -> Box<str> {
    let file = at.file.rsplit('/').next().unwrap_or_default();
    let is_odd = |char: char| char.is_whitespace() || char.is_control() || matches!(char, '[' | ']');
    format!("rule:{}:{}", file.replace(is_odd, "_"), at.line).into()
}

fn named(at: &Position, what: &str) -> String {
    format!("{}:{}: {what}", at.file, at.line)
}

/// Returns the start of a text chosen by a peer, without characters that would break a line.
pub(crate) fn shown(text: &[u8], most: usize) -> String {
    let start = String::from_utf8_lossy(&text[..text.len().min(most)]);
    let more = if text.len() > most { "…" } else { "" };
    start.chars().map(|char| if char.is_control() { '.' } else { char }).chain(more.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_chose_is_short_and_on_one_line() {
        assert_eq!(shown(b"a\nb\x1b[1m", 64), "a.b.[1m");
        assert_eq!(shown(b"0123456789", 4), "0123…");
        assert_eq!(shown("é".as_bytes(), 1), "\u{fffd}…");
    }
}
