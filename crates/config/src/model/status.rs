//! The status codes that count as client errors and as server failures (`http-err-codes`, `http-fail-codes`).

use std::ops::RangeInclusive;

/// A set of status codes from 100 to 599.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusCodes([u64; 8]);

impl StatusCodes {
    const FIRST: u16 = 100;
    const LAST: u16 = 599;

    /// Returns a set of one range.
    fn of(range: RangeInclusive<u16>) -> StatusCodes {
        let mut codes = StatusCodes([0; 8]);
        codes.set(range, true);
        codes
    }

    /// Returns whether a status is in the set.
    #[inline]
    pub fn contains(&self, status: u16) -> bool {
        let bit = usize::from(status.wrapping_sub(StatusCodes::FIRST));
        self.0.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    fn set(&mut self, range: RangeInclusive<u16>, to: bool) {
        for status in range {
            let bit = usize::from(status - StatusCodes::FIRST);
            let mask = 1 << (bit % 64);
            self.0[bit / 64] = if to { self.0[bit / 64] | mask } else { self.0[bit / 64] & !mask };
        }
    }

    /// Applies a word: ranges between commas that are added behind `+`, removed behind `-`, and that otherwise replace
    /// the set, each of them, as in HAProxy.
    pub fn apply(&mut self, word: &str) -> Result<(), String> {
        let (operation, ranges) = match word.strip_prefix(['+', '-']) {
            Some(ranges) => (word.as_bytes()[0], ranges),
            None => (b'=', word),
        };
        for range in ranges.split(',') {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u32>().ok());
            let (Some(low), Some(high)) = (number(low).flatten(), number(high).flatten()) else {
                return Err(format!("invalid status codes range '{word}': ranges must be '[+-]LOW[-HIGH][,…]'"));
            };
            let known = u32::from(StatusCodes::FIRST)..=u32::from(StatusCodes::LAST);
            if high < low || !known.contains(&low) || !known.contains(&high) {
                return Err(format!(
                    "invalid status codes range '{word}': codes must be between 100 and 599 and ranges in ascending order"
                ));
            }
            if operation == b'=' {
                *self = StatusCodes([0; 8]);
            }
            self.set(low as u16..=high as u16, operation != b'-');
        }
        Ok(())
    }
}

/// Both sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusClasses {
    /// `http-err-codes`: errors of clients, 400 to 499.
    pub errors: StatusCodes,
    /// `http-fail-codes`: failures of servers, 500 to 599 without 501 and 505.
    pub failures: StatusCodes,
}

impl Default for StatusClasses {
    fn default() -> StatusClasses {
        let mut failures = StatusCodes::of(500..=599);
        failures.set(501..=501, false);
        failures.set(505..=505, false);
        StatusClasses { errors: StatusCodes::of(400..=499), failures }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_replace_extend_and_reduce() {
        let StatusClasses { mut errors, mut failures } = StatusClasses::default();
        assert!(errors.contains(400) && errors.contains(499) && !errors.contains(500) && !errors.contains(99));
        assert!(failures.contains(500) && !failures.contains(501) && !failures.contains(600) && !failures.contains(0));
        for word in ["220", "+300-499", "-300-399"] {
            errors.apply(word).expect("a range");
        }
        let held: Vec<u16> = (100..600).filter(|status| errors.contains(*status)).collect();
        assert_eq!((held[0], held[1], held.len()), (220, 400, 101));
        failures.apply("+501,505").expect("ranges");
        assert!(failures.contains(501) && failures.contains(505));
        // As HAProxy: each range of such a word replaces what was before it.
        failures.apply("500,503").expect("ranges");
        assert!(!failures.contains(500) && failures.contains(503));
        for wrong in ["", "+", "99", "600", "410-400", "4xx", "400,", "-400-", "400--410"] {
            assert!(errors.apply(wrong).is_err(), "{wrong}");
        }
    }
}
