//! The sizes of the TLS records of one direction.
//!
//! A client deciphers a record once it has all of it. `tune.ssl.maxrecord` therefore cuts a message into small records
//! until it has become a stream: three writes in succession that came from full buffers. The stream ends after three
//! writes of half a buffer or less, after a pause of `tune.idletimer`, and with its message. A multiplexed connection
//! streams while it has more than a buffer to write. `tune.ssl.hard-maxrecord` holds in any case.

use std::time::Instant;

use sluicegate_tls::policy::RecordSizes;

/// The most plaintext of a record.
pub(super) const RECORD_MAX: usize = 16 * 1024;

/// The writes in succession that begin a stream, or end it.
const STREAK: u8 = 3;

/// The state of one direction.
#[derive(Debug, Default)]
pub(super) struct Records {
    sizes: RecordSizes,
    multiplexed: bool,
    streams: bool,
    /// Writes in succession that speak for the other state.
    streak: u8,
    /// The time of the last write; set only where it matters.
    written: Option<Instant>,
}

impl Records {
    pub(super) fn set_sizes(&mut self, sizes: RecordSizes) {
        self.sizes = sizes;
    }

    /// Many messages share the connection from here on.
    pub(super) fn multiplex(&mut self) {
        self.multiplexed = true;
    }

    /// A new message begins.
    pub(super) fn start_message(&mut self) {
        (self.streams, self.streak) = (false, 0);
    }

    /// Returns the most plaintext of the records of a write of `count` bytes.
    pub(super) fn limit(&mut self, count: usize) -> usize {
        let hard = if self.sizes.hard == 0 { RECORD_MAX } else { self.sizes.hard.min(RECORD_MAX) };
        if self.sizes.first == 0 {
            return hard;
        }
        if self.multiplexed {
            self.streams = count > self.sizes.buffer;
        } else {
            self.note(count, Instant::now());
        }
        if self.streams { hard } else { hard.min(self.sizes.first) }
    }

    /// The last write is in the kernel: what follows is a pause and not congestion.
    pub(super) fn wrote(&mut self) {
        if self.streams && !self.multiplexed {
            self.written = Some(Instant::now());
        }
    }

    fn note(&mut self, count: usize, now: Instant) {
        let RecordSizes { full, buffer, idle, .. } = self.sizes;
        let paused = self.streams && self.written.is_some_and(|written| now.duration_since(written) >= idle);
        if paused && !idle.is_zero() {
            self.start_message();
        }
        let speaks_against = if self.streams { count <= buffer / 2 } else { count >= full };
        self.streak = if speaks_against { self.streak + 1 } else { 0 };
        if self.streak == STREAK {
            (self.streams, self.streak) = (!self.streams, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SIZES: RecordSizes =
        RecordSizes { first: 1400, hard: 0, full: 15360, buffer: 16384, idle: Duration::from_secs(1) };

    fn records() -> Records {
        let mut records = Records::default();
        records.set_sizes(SIZES);
        records
    }

    #[test]
    fn three_full_writes_make_a_stream_and_three_small_ones_end_it() {
        let mut records = records();
        assert_eq!(
            [16384, 15360, 16384, 100, 100, 100].map(|count| records.limit(count)),
            [1400, 1400, 16384, 16384, 16384, 1400]
        );
        assert_eq!(
            [16384, 15359, 16384, 16384, 16384].map(|count| records.limit(count)),
            [1400, 1400, 1400, 1400, 16384]
        );
        records.start_message();
        assert_eq!(records.limit(16384), 1400);
    }

    #[test]
    fn a_pause_ends_a_stream_unless_it_is_not_looked_for() {
        for (idle, expected) in [(1, false), (0, true)] {
            let mut records = records();
            records.sizes.idle = Duration::from_secs(idle);
            let start = Instant::now();
            (0..3).for_each(|_| records.note(16384, start));
            assert!(records.streams);
            records.written = Some(start);
            records.note(16384, start + Duration::from_millis(999));
            assert!(records.streams);
            records.note(16384, start + Duration::from_secs(1));
            assert_eq!(records.streams, expected);
        }
    }

    #[test]
    fn many_messages_stream_by_what_is_to_be_written() {
        let mut records = records();
        records.multiplex();
        assert_eq!([16384, 16385, 16384].map(|count| records.limit(count)), [1400, 16384, 1400]);
        records.set_sizes(RecordSizes { hard: 512, ..SIZES });
        assert_eq!([9, 99_999].map(|count| records.limit(count)), [512, 512]);
        records.set_sizes(RecordSizes { first: 0, hard: 99_999, ..SIZES });
        assert_eq!(records.limit(1), RECORD_MAX);
    }
}
