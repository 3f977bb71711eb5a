//! The times of a stream, as log lines and samples print them.

use std::time::{Duration, Instant};

use super::LogRecord;

/// The times of a stream, whole milliseconds; -1 for a phase that was not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// `%Th`: the handshakes of the connection.
    pub handshake: i64,
    /// `%Ti`: from the end of the handshakes, or of the previous request, to the first byte.
    pub idle: i64,
    /// `%TR`: the request's head.
    pub request: i64,
    /// `%Tq`: handshakes, idle and request.
    pub request_total: i64,
    /// `%Tw`: in queues.
    pub queue: i64,
    /// `%Tc`: connecting.
    pub connect: i64,
    /// `%Tr`: waiting for the response's head.
    pub response: i64,
    /// `%Td`: the response's body.
    pub data: i64,
    /// `%Ta`: the whole request.
    pub active: i64,
    /// `%Tu`: the total time as the user perceives it.
    pub user: i64,
    /// `%Tt`: the whole session.
    pub total: i64,
}

impl Timers {
    /// Returns the times of a stream that ended at `ended`. Each mark is cut to milliseconds before they are
    /// subtracted, so the phases never add up to more than the whole.
    pub fn of(log: &LogRecord, ended: Instant) -> Timers {
        // Marks that are equal are not subtracted, which costs more than the comparison.
        let since = |at: Instant, start: Instant| match at == start {
            true => 0,
            false => whole_ms(at.saturating_duration_since(start)),
        };
        let mark = |at: Instant| since(at, log.request_started);
        let between = |from: Option<i64>, to: Option<i64>| match (from, to) {
            (Some(from), Some(to)) => (to - from).max(0),
            _ => -1,
        };
        let handshake = log.handshake;
        let idle = (since(log.request_started, log.accepted) - handshake).max(0);
        let request = log.request_done.map(mark);
        let queue = log.queue_done.map(mark);
        let connect = log.connect_done.map(mark);
        let response = log.response_started.map(mark);
        let active = mark(ended);
        // In TCP there is neither a request nor a response to wait for.
        let tcp = request.is_none() && log.request_line.is_empty() && connect.is_some();
        Timers {
            handshake,
            idle,
            request: request.unwrap_or(-1),
            request_total: request.map_or(-1, |request| handshake + idle + request),
            queue: between(request.or(Some(0)).filter(|_| queue.is_some()), queue),
            connect: between(queue, connect),
            response: between(connect, response),
            data: between(if tcp { connect } else { response }, Some(active)),
            active,
            user: active,
            total: since(ended, log.accepted),
        }
    }
}

/// Returns whole milliseconds without a 128-bit division.
fn whole_ms(duration: Duration) -> i64 {
    duration.as_secs() as i64 * 1000 + i64::from(duration.subsec_millis())
}
