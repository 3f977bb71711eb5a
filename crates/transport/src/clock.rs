//! The time of a turn: one reading of the clock for all that a session does before it waits again.
//!
//! A request is stamped many times (arrival, assignment, activity of each side, end), and reading the clock takes 35 to
//! 100 ns. What a session does between two waits takes some microseconds, and times are logged in milliseconds, so one
//! reading serves them all. HAProxy's times are of the beginning of its turn for all sessions in it; these are of the
//! session's own.
//!
//! Code that may compute for longer within a turn, such as that which runs a script, calls [`renew`] afterwards, or [`read`] if
//! it needs the time itself.

use std::cell::Cell;
use std::time::Instant;

#[derive(Clone, Copy)]
enum Reading {
    /// No turn runs: each call reads the clock.
    Outside,
    Due,
    Read(Instant),
}

thread_local! {
    static READING: Cell<Reading> = const { Cell::new(Reading::Outside) };
}

/// Begins a turn of this thread.
#[inline]
pub fn begin() {
    READING.set(Reading::Due);
}

/// Begins a turn, unless one runs.
#[inline]
pub fn begin_or_go_on() {
    if matches!(READING.get(), Reading::Outside) {
        begin();
    }
}

/// Ends the turn.
#[inline]
pub fn end() {
    READING.set(Reading::Outside);
}

/// Has the next call of [`now`] read the clock.
#[inline]
pub fn renew() {
    if let Reading::Read(_) = READING.get() {
        begin();
    }
}

/// Reads the clock, and makes it the time of the turn.
#[inline]
pub fn read() -> Instant {
    let at = Instant::now();
    if !matches!(READING.get(), Reading::Outside) {
        READING.set(Reading::Read(at));
    }
    at
}

/// Returns the time of the turn; without one, the time.
#[inline]
pub fn now() -> Instant {
    match READING.get() {
        Reading::Read(at) => at,
        Reading::Due => {
            let at = Instant::now();
            READING.set(Reading::Read(at));
            at
        }
        Reading::Outside => Instant::now(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns once the clock differs from `at`.
    fn wait(at: Instant) {
        while Instant::now() == at {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_turn_has_one_time_until_it_is_renewed() {
        begin();
        let first = now();
        wait(first);
        begin_or_go_on();
        assert_eq!(now(), first);
        renew();
        let second = now();
        assert!(second > first);
        wait(second);
        assert_eq!(now(), second);
        begin();
        assert!(now() > second);
        let third = read();
        assert!(third > second);
        wait(third);
        assert_eq!(now(), third);
        end();
    }

    #[test]
    fn without_a_turn_the_clock_is_read() {
        for start in [renew, end] {
            start();
            let first = now();
            wait(first);
            assert!(now() > first);
            let read = read();
            wait(read);
            assert!(now() > read, "no turn has begun");
        }
        begin_or_go_on();
        let first = now();
        wait(first);
        assert_eq!(now(), first);
        end();
    }
}
