//! Permission to connect to a node: back-off, a rate limit, and the circuit breaker. The state depends only on the
//! times passed in; the clock is never read.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest pause after a failure.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The longest pause, so that a recovered engine is noticed within half a second.
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// The health of a node as its connections have observed it.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// The number of consecutive failures that opens the breaker.
    limit: u32,
    /// Failures since the last success.
    failures: u32,
    backoff: Duration,
    /// No connection is attempted before this time.
    not_before: Option<Instant>,
    /// One command probes whether the node has recovered. Until this time no other command may, unless the probe's
    /// result arrives earlier.
    next_probe: Option<Instant>,
    rate: f64,
    /// The number of connection attempts available at `refilled`.
    tokens: f64,
    refilled: Instant,
}

/// The breaker's decision on a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The command may be sent.
    Go,
    /// The command may be sent as a probe; other commands are refused until its result arrives or the next probe is
    /// due.
    Probe,
    /// The breaker is open, after this many failures.
    Open(u32),
}

impl Breaker {
    pub(crate) fn new(limit: u32, connects_per_second: u32, now: Instant) -> Breaker {
        let rate = f64::from(connects_per_second.max(1));
        Breaker {
            limit: limit.max(1),
            failures: 0,
            backoff: BACKOFF_MIN,
            not_before: None,
            next_probe: None,
            rate,
            tokens: rate,
            refilled: now,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.failures >= self.limit
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Decides whether a command may be queued for this node.
    pub(crate) fn admit(&mut self, now: Instant) -> Admission {
        if !self.is_open() {
            return Admission::Go;
        }
        if self.not_before.max(self.next_probe).is_some_and(|at| now < at) {
            return Admission::Open(self.failures);
        }
        self.next_probe = Some(now + BACKOFF_MAX);
        Admission::Probe
    }

    /// Takes the permission for one connection attempt. An error is the time at which to try again.
    pub(crate) fn try_connect(&mut self, now: Instant) -> Result<(), Instant> {
        if let Some(at) = self.not_before.filter(|at| now < *at) {
            return Err(at);
        }
        let passed = now.saturating_duration_since(self.refilled).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate).min(self.rate);
        self.refilled = now;
        if self.tokens < 1.0 {
            return Err(now + Duration::from_secs_f64((1.0 - self.tokens) / self.rate) + Duration::from_micros(1));
        }
        self.tokens -= 1.0;
        Ok(())
    }

    /// Records that the node answered. Returns true if it had failed before.
    pub(crate) fn succeeded(&mut self) -> bool {
        let failed = self.failures > 0;
        self.failures = 0;
        self.backoff = BACKOFF_MIN;
        (self.not_before, self.next_probe) = (None, None);
        failed
    }

    /// Records a failed attempt to connect or an unexpected end of a connection. `random` is between 0 and 1: the next
    /// pause is chosen between the shortest and three times the last, so that many processes don't reconnect at the
    /// same time. Returns true if this failure opened the breaker.
    pub(crate) fn failed(&mut self, now: Instant, random: f64) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.next_probe = None;
        let span = (self.backoff * 3).saturating_sub(BACKOFF_MIN);
        self.backoff = (BACKOFF_MIN + span.mul_f64(random.clamp(0.0, 1.0))).min(BACKOFF_MAX);
        self.not_before = Some(now + self.backoff);
        self.failures == self.limit
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_lets_one_through() {
        let start = Instant::now();
        let mut breaker = Breaker::new(3, 100, start);
        assert!(!breaker.failed(start, 0.5));
        assert!(breaker.succeeded());
        assert!(!breaker.succeeded());
        assert!(!breaker.failed(start, 0.5));
        assert!(!breaker.failed(start, 0.5));
        assert_eq!(breaker.admit(start), Admission::Go);
        assert!(breaker.failed(start, 0.5));
        assert_eq!(breaker.admit(start), Admission::Open(3));
        let later = start + BACKOFF_MAX;
        assert_eq!(breaker.admit(later), Admission::Probe);
        assert_eq!(breaker.admit(later), Admission::Open(3));
        // A probe that never attempted to connect does not block the next one.
        assert_eq!(breaker.admit(later + BACKOFF_MAX), Admission::Probe);
        assert!(!breaker.failed(later, 1.0));
        assert_eq!(breaker.admit(later), Admission::Open(4));
        assert_eq!(breaker.admit(later + BACKOFF_MAX), Admission::Probe);
        breaker.succeeded();
        assert_eq!(breaker.admit(later), Admission::Go);
    }

    proptest! {
        #[test]
        fn connects_keep_to_the_rate_and_pauses_to_their_bounds(
            rate in 1u32..50, events in proptest::collection::vec((0u64..400, 0.0f64..1.0, any::<bool>()), 1..200)
        ) {
            let start = Instant::now();
            let mut breaker = Breaker::new(5, rate, start);
            let (mut now, mut connects) = (start, Vec::new());
            for (pause, random, fails) in events {
                now += ms(pause);
                match breaker.try_connect(now) {
                    Ok(()) => {
                        connects.push(now);
                        if fails {
                            breaker.failed(now, random);
                            let next = breaker.try_connect(now).expect_err("it pauses");
                            prop_assert!(next >= now + BACKOFF_MIN && next <= now + BACKOFF_MAX);
                        } else {
                            breaker.succeeded();
                        }
                    }
                    Err(at) => {
                        prop_assert!(at > now);
                        prop_assert!(at <= now + BACKOFF_MAX.max(Duration::from_secs(1) + ms(1)));
                    }
                }
            }
            // A bucket of one second: no second has more than twice the rate.
            for (index, at) in connects.iter().enumerate() {
                let within = connects[index..].iter().take_while(|other| **other < *at + Duration::from_secs(1)).count();
                prop_assert!(within <= 2 * rate as usize);
            }
        }
    }
}
