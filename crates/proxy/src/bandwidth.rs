//! Bandwidth limits of bodies (`filter bwlim-in`, `filter bwlim-out`, `set-bandwidth-limit`).
//!
//! The amounts and waits are HAProxy's: a stream may forward what the rate of the current and the previous period
//! leaves, divided among the streams that share the rate; a stream that is ahead of its rate waits, and no stream
//! forwards less than `min-size` at a time unless that is all that it has. The rate of a stream is its own, or that of
//! an entry of a stick table, whose trackers are the streams that share it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::model::{BandwidthFilter, BandwidthLimit, DataKind};

use crate::stick::{Held, now_ms, rate};

/// A bandwidth filter of a stream as its rules have set it; shared with the body's [`Bandwidth`], because a later rule
/// may change it.
#[derive(Debug)]
pub(crate) struct BandwidthSetting {
    /// The filter.
    pub(crate) filter: Arc<BandwidthFilter>,
    /// `limit` of the rule.
    pub(crate) limit: Option<u32>,
    /// `period` of the rule.
    pub(crate) period: Option<Duration>,
    /// The entry whose rate counts.
    pub(crate) entry: Option<Held>,
    /// The rate of this stream.
    rate: [u32; rate::WORDS],
    until: Option<Instant>,
}

impl BandwidthSetting {
    /// Returns a filter that no rule has set yet.
    pub(crate) fn new(filter: Arc<BandwidthFilter>) -> BandwidthSetting {
        let mut own = [0; rate::WORDS];
        rate::clear(&mut own, now_ms());
        BandwidthSetting { filter, limit: None, period: None, entry: None, rate: own, until: None }
    }

    /// Ends a wait, because a rule has set other limits.
    pub(crate) fn restart(&mut self) {
        self.until = None;
    }

    /// Returns how many of `len` bytes may be forwarded now.
    fn allow(&mut self, len: usize) -> usize {
        let now = Instant::now();
        if self.until.is_some_and(|until| until > now) {
            return 0;
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let min = self.filter.min_size;
        let (taken, wait_ms) = match &self.filter.limit {
            BandwidthLimit::Stream { limit, period } => {
                let terms = Terms {
                    limit: self.limit.unwrap_or(*limit),
                    period: ms(self.period.unwrap_or(*period)),
                    users: 1,
                    factor: 1,
                    min,
                };
                terms.allow(&mut self.rate, now_ms(), len)
            }
            BandwidthLimit::Shared { limit, .. } => {
                let kind = if self.filter.request { DataKind::BytesInRate } else { DataKind::BytesOutRate };
                let Some(entry) = &self.entry else { return len as usize };
                let allowed = entry.with_rate(kind, |words, data, users, now| {
                    let terms = Terms { limit: *limit, period: data.period_ms, users, factor: data.block, min };
                    terms.allow(words, now, len)
                });
                // HAProxy forwards nothing of a table without the rate; such a table is refused with the file.
                allowed.unwrap_or((len, 0))
            }
        };
        self.until = (wait_ms > 0).then(|| now + Duration::from_millis(wait_ms));
        taken as usize
    }
}

/// The bandwidth filters that rules have set for a stream.
#[derive(Debug, Default)]
pub struct StreamBandwidth {
    set: Vec<Rc<RefCell<BandwidthSetting>>>,
}

impl StreamBandwidth {
    /// Returns the setting of a bandwidth filter, which is enabled from now on.
    pub(crate) fn enable(&mut self, filter: &Arc<BandwidthFilter>) -> &Rc<RefCell<BandwidthSetting>> {
        let known = self.set.iter().position(|known| Arc::ptr_eq(&known.borrow().filter, filter));
        let at = known.unwrap_or_else(|| {
            self.set.push(Rc::new(RefCell::new(BandwidthSetting::new(filter.clone()))));
            self.set.len() - 1
        });
        &self.set[at]
    }

    /// Returns the setting of a bandwidth filter, if a rule has enabled it.
    pub(crate) fn enabled(&self, filter: &Arc<BandwidthFilter>) -> Option<&Rc<RefCell<BandwidthSetting>>> {
        self.set.iter().find(|known| Arc::ptr_eq(&known.borrow().filter, filter))
    }

    /// Forgets all settings.
    pub(crate) fn clear(&mut self) {
        self.set.clear();
    }
}

fn ms(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1)
}

/// The terms of a limit.
struct Terms {
    /// Blocks in a period.
    limit: u32,
    /// Milliseconds.
    period: u32,
    /// The streams that share the rate.
    users: u32,
    /// The bytes of a block.
    factor: u32,
    /// The least number of bytes at a time.
    min: u32,
}

impl Terms {
    /// Returns how many of `len` bytes may be forwarded, counts them, and returns the milliseconds to wait for more.
    fn allow(&self, words: &mut [u32], now: u32, len: u32) -> (u32, u64) {
        let (limit, period) = (self.limit.max(1), self.period.max(1));
        let (users, factor) = (u64::from(self.users.max(1)), u64::from(self.factor.max(1)));
        let ahead = rate::overshoot(words, period, limit, now);
        if ahead > 0 {
            let bytes = u64::from(self.min) + ahead as u64;
            return (0, (bytes * u64::from(period) * users / u64::from(limit)).max(1));
        }
        let remain = u64::from(rate::remain(words, period, limit, now)) * factor;
        let tokens = remain.div_ceil(users);
        let (mut taken, mut wait) = (u64::from(len), 0);
        let per_period = u64::from(limit) * factor;
        if tokens < taken {
            taken = tokens;
            let least = u64::from(self.min.min(len));
            if tokens < least {
                taken = least;
                if taken <= remain {
                    wait = ((taken - tokens) * u64::from(period) * users).div_ceil(per_period);
                } else {
                    taken = if per_period < taken { remain } else { 0 };
                }
            }
        }
        rate::add(words, period, now, taken.div_ceil(factor) as u32);
        if taken < u64::from(len) {
            let pending = (u64::from(len) - taken).min(u64::from(self.min) * users);
            wait += rate::delay(words, period, limit, pending, now);
            return (taken as u32, wait.max(1));
        }
        (taken as u32, 0)
    }
}

/// A bandwidth filter of one body.
#[derive(Debug)]
pub(crate) struct Bandwidth(Kind);

#[derive(Debug)]
enum Kind {
    Set(Rc<RefCell<BandwidthSetting>>),
    /// Amounts that are allowed in turn.
    #[cfg(test)]
    Steps(Vec<usize>, usize),
}

impl Bandwidth {
    /// Returns the filter of a body by the stream's setting.
    pub(crate) fn new(setting: Rc<RefCell<BandwidthSetting>>) -> Bandwidth {
        Bandwidth(Kind::Set(setting))
    }

    /// Returns a filter that allows these amounts in turn.
    #[cfg(test)]
    pub(crate) fn of_steps(steps: &[usize]) -> Bandwidth {
        Bandwidth(Kind::Steps(steps.to_vec(), 0))
    }

    /// Returns whether both have the same setting.
    pub(crate) fn is_same(&self, other: &Bandwidth) -> bool {
        match (&self.0, &other.0) {
            (Kind::Set(one), Kind::Set(other)) => Rc::ptr_eq(one, other),
            #[cfg(test)]
            _ => false,
        }
    }

    /// Returns how many of `len` bytes may be forwarded now.
    pub(crate) fn allow(&mut self, len: usize) -> usize {
        match &mut self.0 {
            Kind::Set(setting) => setting.borrow_mut().allow(len),
            #[cfg(test)]
            Kind::Steps(steps, at) => {
                *at += 1;
                steps[*at % steps.len()].min(len)
            }
        }
    }

    /// Returns the time before which nothing may be forwarded.
    pub(crate) fn waits_until(&self) -> Option<Instant> {
        match &self.0 {
            Kind::Set(setting) => setting.borrow().until,
            #[cfg(test)]
            Kind::Steps(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forwards `len` bytes as the terms allow; returns the pieces with the milliseconds at which each passed.
    #[track_caller]
    fn check(terms: &Terms, len: u32, expected: &[(u64, u32)]) {
        let mut words = [0; rate::WORDS];
        let start = 1_000_000;
        rate::clear(&mut words, start);
        let (mut at, mut left, mut pieces) = (0, len, Vec::new());
        while left > 0 && pieces.len() < expected.len() {
            let (taken, wait) = terms.allow(&mut words, start + at as u32, left);
            if taken > 0 {
                pieces.push((at, taken));
            }
            left -= taken;
            assert!(wait > 0 || taken > 0, "progress");
            at += wait;
        }
        assert_eq!(pieces, expected);
    }

    #[test]
    fn pieces_pass_as_the_rate_allows() {
        let terms = |limit, min, users, factor| Terms { limit, period: 1_000, users, factor, min };
        // Everything fits.
        check(&terms(1_000, 0, 1, 1), 500, &[(0, 500)]);
        // The first piece uses the whole period; what follows passes as the previous period fades.
        check(&terms(1_000, 0, 1, 1), 1_500, &[(0, 1_000), (1_001, 1), (1_002, 1)]);
        check(&terms(1_000, 100, 1, 1), 1_200, &[(0, 1_000), (1_100, 100), (1_200, 100)]);
        // Two streams share what is left.
        check(&terms(1_000, 0, 2, 1), 1_000, &[(0, 500)]);
        // A rate of blocks.
        check(&terms(10, 0, 1, 100), 1_500, &[(0, 1_000)]);
    }
}
