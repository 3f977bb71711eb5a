//! Times to live of hash fields and set members.

use super::{NOT_INTEGER, Refused, integer};

/// The time that many seconds from now, in Unix milliseconds; Dragonfly takes 1 second or more.
pub(super) fn seconds_from_now(word: &[u8], now_ms: i64) -> Result<i64, Refused> {
    let seconds = integer(word)?;
    let at_ms = seconds.checked_mul(1000).and_then(|ms| ms.checked_add(now_ms));
    at_ms.filter(|_| seconds > 0).ok_or(NOT_INTEGER.into())
}
