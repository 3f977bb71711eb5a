//! The words of a command that are keys, and their database.

use std::iter::{Chain, StepBy};
use std::ops::Range;
use std::option;

use sluicegate_wire::resp::parse_i64;
use smallvec::SmallVec;

/// The positions of a command's keys.
#[derive(Clone, Copy, Debug)]
pub enum KeyRule {
    /// The command has no keys.
    None,
    /// Words `first`, `first + step`… up to `last`, which counts from the end if negative.
    Range {
        /// The index of the first key's word; the name is word 0.
        first: i8,
        /// The index of the last key's word.
        last: i8,
        /// The distance from key to key.
        step: i8,
    },
    /// Words 1 to `last`, from the end if negative, are channels: `COMMAND` shows them, but they are not keys.
    Channels {
        /// The index of the last channel's word.
        last: i8,
    },
    /// Word `count` is the number of keys that follow it; with `destination` word 1 is a key, too. An invalid number
    /// yields no further keys: the handler reports it.
    Counted {
        /// The index of the word with the number.
        count: i8,
        /// Whether word 1 is a key that is written.
        destination: bool,
    },
    /// The first half of the words after STREAMS, which follows the options of XREAD or XREADGROUP. Invalid words yield no keys: the handler
    /// reports them.
    Streams,
    /// The first key is word 1, in the caller's database; `second` finds the other one, which may be in another
    /// database. Invalid words have no second key: the handler reports them.
    WithDatabase {
        /// The index of the last key's word, for `COMMAND`.
        last: i8,
        /// Finds the word and the database of the second key.
        second: fn(words: &[&[u8]], db: u32) -> Option<KeyWord>,
    },
}

/// One key of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyWord {
    /// Its database.
    pub db: u32,
    /// The index of its word.
    pub word: u32,
}

impl KeyRule {
    /// Word 1.
    pub const ONE: KeyRule = KeyRule::Range { first: 1, last: 1, step: 1 };
    /// Words 1 and 2.
    pub const TWO: KeyRule = KeyRule::Range { first: 1, last: 2, step: 1 };
    /// All words.
    pub const ALL: KeyRule = KeyRule::Range { first: 1, last: -1, step: 1 };
    /// Every other word, from the first on.
    pub const PAIRS: KeyRule = KeyRule::Range { first: 1, last: -1, step: 2 };

    /// Returns the index of the key's word, for a command that has exactly one key.
    #[inline]
    pub fn only(self) -> Option<usize> {
        match self {
            KeyRule::Range { first, last, .. } if first == last => Some(first as usize),
            _ => None,
        }
    }

    /// Returns the keys of a command whose number of words has been checked.
    pub fn keys(self, words: &[&[u8]], db: u32) -> SmallVec<[KeyWord; 4]> {
        let places = self.places(words.len(), |place| words[place]);
        let mut keys: SmallVec<[KeyWord; 4]> = SmallVec::with_capacity(places.size_hint().0);
        // Faster than to collect them, which asks both halves of the chain for each of them.
        places.for_each(|word| keys.push(KeyWord { db, word: word as u32 }));
        if let KeyRule::WithDatabase { second, .. } = self {
            keys.extend(second(words, db));
        }
        keys
    }

    /// Returns the position of the key among this many words, if a range of them has one only.
    #[inline]
    pub(crate) fn single(self, words: usize) -> Option<usize> {
        let KeyRule::Range { first, last, step } = self else { return None };
        if first != last {
            let last = if last < 0 { words as i64 + i64::from(last) } else { i64::from(last) };
            let between = last - i64::from(first);
            if between < 0 || between >= i64::from(step) || last >= words as i64 {
                return None;
            }
        }
        Some(first as usize)
    }

    /// Returns the positions of the keys of the caller's database among this many words, except the second one of
    /// `WithDatabase`. Only words that determine positions are read.
    pub(crate) fn places<'w>(self, words: usize, word: impl Fn(usize) -> &'w [u8]) -> Places {
        let (before, row, step) = match self {
            KeyRule::None | KeyRule::Channels { .. } => (None, 0..0, 1),
            KeyRule::Range { first, last, step } => {
                let last = if last < 0 { words as i64 + i64::from(last) } else { i64::from(last) };
                (None, first as usize..words.min((last + 1).max(0) as usize), step.max(1) as usize)
            }
            KeyRule::Counted { count, destination } => {
                let first = count as usize + 1;
                let number = (first <= words).then(|| word(count as usize)).and_then(parse_i64);
                let number = number.and_then(|number| usize::try_from(number).ok()).unwrap_or(0);
                (destination.then_some(1), first..first.saturating_add(number).min(words), 1)
            }
            KeyRule::Streams => {
                let is = |place: &usize, option: &str| {
                    *place < words && word(*place).eq_ignore_ascii_case(option.as_bytes())
                };
                let mut place = 1;
                loop {
                    place += match () {
                        () if is(&place, "block") || is(&place, "count") => 2,
                        () if is(&place, "group") => 3,
                        () if is(&place, "noack") => 1,
                        () => break,
                    };
                }
                let first = if is(&place, "streams") { place + 1 } else { words };
                (None, first..first + (words - first) / 2, 1)
            }
            KeyRule::WithDatabase { .. } => (None, 1..2.min(words), 1),
        };
        before.into_iter().chain(row.step_by(step))
    }
}

/// The indices of keys at equal distances, possibly after a single one.
pub(crate) type Places = Chain<option::IntoIter<usize>, StepBy<Range<usize>>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rule: KeyRule, words: &str, expected: &[u32]) {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        let found: Vec<u32> = rule.keys(&words, 0).iter().map(|key| key.word).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn keys_are_found_where_the_rule_says() {
        check(KeyRule::None, "DBSIZE", &[]);
        check(KeyRule::ONE, "SET a b", &[1]);
        check(KeyRule::Counted { count: 1, destination: false }, "ZUNION 2 a b WITHSCORES", &[2, 3]);
        check(KeyRule::Counted { count: 2, destination: true }, "ZUNIONSTORE d 9 a b", &[1, 3, 4]);
        check(KeyRule::Counted { count: 1, destination: false }, "ZUNION x a", &[]);
        check(KeyRule::Streams, "XREAD COUNT streams STREAMS a b 0 0", &[4, 5]);
        check(KeyRule::Streams, "XREAD block 5 streams streams streams", &[4]);
        check(KeyRule::Streams, "XREAD STREAMS a b 0", &[2]);
        check(KeyRule::Streams, "XREAD FOO STREAMS a 0", &[]);
        check(KeyRule::Streams, "XREADGROUP GROUP streams noack NOACK COUNT 5 STREAMS a b > >", &[8, 9]);
        check(KeyRule::Streams, "XREADGROUP BLOCK 5 GROUP g", &[]);
        check(KeyRule::Streams, "XREAD COUNT 5", &[]);
        check(KeyRule::TWO, "RENAME a b", &[1, 2]);
        check(KeyRule::ALL, "DEL a b c", &[1, 2, 3]);
        check(KeyRule::PAIRS, "MSET a 1 b 2", &[1, 3]);
    }

    #[test]
    fn the_only_key_is_the_one_that_the_rule_finds() {
        for rule in [KeyRule::ONE, KeyRule::TWO, KeyRule::ALL, KeyRule::PAIRS, KeyRule::Streams, KeyRule::None] {
            for count in 3..8 {
                let words = vec![&b"x"[..]; count];
                let found: Vec<usize> = rule.keys(&words, 0).iter().map(|key| key.word as usize).collect();
                let only = (found.len() == 1).then(|| found[0]);
                assert_eq!(
                    rule.single(count),
                    only.filter(|_| matches!(rule, KeyRule::Range { .. })),
                    "{rule:?} {count}"
                );
            }
        }
    }
}
