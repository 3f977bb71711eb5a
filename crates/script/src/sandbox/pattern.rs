//! Lua 5.1's patterns: a matcher that counts its steps and can be interrupted.
//!
//! A pattern can take exponential time, and a `.-` over megabytes can take too long for a worker. So the matcher has
//! fuel: every byte examined and every attempt consumes some, and when it is used up a [`Meter`] decides whether to
//! continue. This module is independent of Lua; an invalid pattern is a [`Fault`].
//!
//! 5.1 differs from 5.4: `%z` matches a zero byte, `%g` is not a class, a zero byte ends the pattern, `^` is an
//! ordinary byte for gmatch, and a pattern is parsed only as far as the match gets.
//!
//! Limit: [`DEPTH_MAX`] nested attempts, one for each capture and repetition of a pattern.

use std::ffi::CStr;

/// The maximum number of captures of a pattern.
pub(crate) const CAPTURES_MAX: usize = 32;

/// The maximum number of nested attempts.
const DEPTH_MAX: u32 = 400;

/// Steps between two calls of the meter.
const FUEL: u32 = 4096;

/// Decides whether a search continues.
pub(crate) trait Meter {
    /// Called every few thousand steps; `false` ends the search with [`Fault::Interrupted`].
    fn go_on(&mut self) -> bool;
}

/// The reason why a search has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Interrupted,
    TooComplex,
    EndsWithPercent,
    MissingBracket,
    Unbalanced,
    MissingSet,
    CaptureIndex,
    PatternCapture,
    TooManyCaptures,
}

impl Fault {
    /// Lua's message.
    pub(crate) fn message(self) -> &'static CStr {
        match self {
            Fault::Interrupted => c"interrupted",
            Fault::TooComplex => c"pattern too complex",
            Fault::EndsWithPercent => c"malformed pattern (ends with '%')",
            Fault::MissingBracket => c"malformed pattern (missing ']')",
            Fault::Unbalanced => c"unbalanced pattern",
            Fault::MissingSet => c"missing '[' after '%f' in pattern",
            Fault::CaptureIndex => c"invalid capture index",
            Fault::PatternCapture => c"invalid pattern capture",
            Fault::TooManyCaptures => c"too many captures",
        }
    }
}

/// A captured pair of parentheses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capture {
    start: usize,
    len: usize,
}

/// The length of a capture that is still open, and of one that is a position.
const OPEN: usize = usize::MAX;
const POSITION: usize = usize::MAX - 1;

/// A capture as the caller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caught<'a> {
    Bytes(&'a [u8]),
    /// `()`: an offset into the subject.
    Position(usize),
    /// Its bracket was never closed.
    Unfinished,
}

/// Room for captures, reused from search to search.
pub(crate) type Captures = [Capture; CAPTURES_MAX];

/// No match from here.
const NONE: usize = usize::MAX;
/// The search ends with a fault.
const FAULT: usize = usize::MAX - 1;

/// A search in progress.
pub(crate) struct Matcher<'a, M> {
    subject: &'a [u8],
    pattern: &'a [u8],
    captures: &'a mut Captures,
    level: usize,
    depth: u32,
    fuel: u32,
    fault: Fault,
    meter: M,
}

impl<'a, M: Meter> Matcher<'a, M> {
    /// Searches `subject` for `pattern`, which has no zero byte ([`until_zero`]).
    #[inline]
    pub(crate) fn new(subject: &'a [u8], pattern: &'a [u8], captures: &'a mut Captures, meter: M) -> Matcher<'a, M> {
        let fault = Fault::Interrupted;
        Matcher { subject, pattern, captures, level: 0, depth: 0, fuel: FUEL, fault, meter }
    }

    /// Takes a leading `^` off the pattern: the match must begin where the search does.
    #[inline]
    pub(crate) fn take_anchor(&mut self) -> bool {
        match self.pattern {
            [b'^', rest @ ..] => {
                self.pattern = rest;
                true
            }
            _ => false,
        }
    }

    /// Returns the meter.
    pub(crate) fn meter(&mut self) -> &mut M {
        &mut self.meter
    }

    /// Returns the end of a match that begins at `start`.
    #[inline]
    pub(crate) fn match_at(&mut self, start: usize) -> Result<Option<usize>, Fault> {
        self.level = 0;
        self.depth = 0;
        match self.attempt(start, 0) {
            NONE => Ok(None),
            FAULT => Err(self.fault),
            end => Ok(Some(end)),
        }
    }

    /// Returns the first match that begins at `start` or later.
    #[inline]
    pub(crate) fn find(&mut self, start: usize) -> Result<Option<(usize, usize)>, Fault> {
        let first = self.literal();
        let mut at = start;
        loop {
            if let Some(byte) = first {
                match self.skip_to(at, byte) {
                    NONE => return Ok(None),
                    FAULT => return Err(self.fault),
                    found => at = found,
                }
            }
            if let Some(end) = self.match_at(at)? {
                return Ok(Some((at, end)));
            }
            at += 1;
            if at > self.subject.len() {
                return Ok(None);
            }
        }
    }

    /// Returns the byte that every match begins with, if the pattern starts with a literal byte that must occur.
    #[inline]
    fn literal(&self) -> Option<u8> {
        let first = *self.pattern.first()?;
        let plain = !matches!(first, b'(' | b')' | b'%' | b'.' | b'[' | b'$');
        (plain && !matches!(self.pattern.get(1), Some(b'?' | b'*' | b'-'))).then_some(first)
    }

    /// Returns the position of `byte` at `at` or later.
    #[inline]
    fn skip_to(&mut self, mut at: usize, byte: u8) -> usize {
        const PIECE: usize = 1 << 16;
        loop {
            let end = self.subject.len().min(at + PIECE);
            if let Some(found) = memchr::memchr(byte, &self.subject[at..end]) {
                return at + found;
            }
            if end == self.subject.len() {
                return NONE;
            }
            at = end;
            if !self.burn(FUEL / 2) {
                return FAULT;
            }
        }
    }

    /// Returns the number of captures.
    #[inline]
    pub(crate) fn captures(&self) -> usize {
        self.level
    }

    /// Returns the capture of this number, from 0.
    pub(crate) fn caught(&self, index: usize) -> Caught<'a> {
        let capture = self.captures[index];
        match capture.len {
            OPEN => Caught::Unfinished,
            POSITION => Caught::Position(capture.start),
            len => Caught::Bytes(&self.subject[capture.start..capture.start + len]),
        }
    }

    #[inline]
    fn burn(&mut self, steps: u32) -> bool {
        if self.fuel > steps {
            self.fuel -= steps;
            return true;
        }
        self.refuel()
    }

    #[cold]
    fn refuel(&mut self) -> bool {
        self.fuel = FUEL;
        let go_on = self.meter.go_on();
        if !go_on {
            self.fault = Fault::Interrupted;
        }
        go_on
    }

    #[cold]
    fn fail(&mut self, fault: Fault) -> usize {
        self.fault = fault;
        FAULT
    }

    /// Returns a byte of the pattern; 0 after its end.
    #[inline]
    fn byte(&self, at: usize) -> u8 {
        self.pattern.get(at).copied().unwrap_or(0)
    }

    /// Returns the end of a match of the pattern from `p` on that begins at `s`.
    fn attempt(&mut self, s: usize, p: usize) -> usize {
        if self.depth >= DEPTH_MAX {
            return self.fail(Fault::TooComplex);
        }
        self.depth += 1;
        let end = self.walk(s, p);
        self.depth -= 1;
        end
    }

    fn walk(&mut self, mut s: usize, mut p: usize) -> usize {
        loop {
            let Some(&item) = self.pattern.get(p) else { return s };
            if !self.burn(1) {
                return FAULT;
            }
            match item {
                b'(' if self.byte(p + 1) == b')' => return self.open(s, p + 2, POSITION),
                b'(' => return self.open(s, p + 1, OPEN),
                b')' => return self.close(s, p + 1),
                b'%' => match self.byte(p + 1) {
                    b'b' => {
                        s = self.balance(s, p + 2);
                        if s >= FAULT {
                            return s;
                        }
                        p += 4;
                        continue;
                    }
                    b'f' => {
                        p += 2;
                        if self.byte(p) != b'[' {
                            return self.fail(Fault::MissingSet);
                        }
                        let end = self.item_end(p);
                        if end >= FAULT {
                            return end;
                        }
                        let before = if s == 0 { 0 } else { self.subject[s - 1] };
                        let after = self.subject.get(s).copied().unwrap_or(0);
                        let set = &self.pattern[p..end];
                        if in_set(before, set) || !in_set(after, set) {
                            return NONE;
                        }
                        p = end;
                        continue;
                    }
                    digit @ b'0'..=b'9' => {
                        s = self.again(s, digit);
                        if s >= FAULT {
                            return s;
                        }
                        p += 2;
                        continue;
                    }
                    _ => {}
                },
                b'$' if p + 1 == self.pattern.len() => return if s == self.subject.len() { s } else { NONE },
                _ => {}
            }
            let end = self.item_end(p);
            if end >= FAULT {
                return end;
            }
            match self.byte(end) {
                b'?' => {
                    if self.fits(s, p, end) {
                        let found = self.attempt(s + 1, end + 1);
                        if found != NONE {
                            return found;
                        }
                    }
                    p = end + 1;
                }
                b'*' => return self.most(s, s, p, end),
                b'+' => return if self.fits(s, p, end) { self.most(s + 1, s + 1, p, end) } else { NONE },
                b'-' => return self.least(s, p, end),
                _ => {
                    if !self.fits(s, p, end) {
                        return NONE;
                    }
                    s += 1;
                    p = end;
                }
            }
        }
    }

    /// Returns the end of the single item that begins at `p` in the pattern.
    #[inline]
    fn item_end(&mut self, p: usize) -> usize {
        match self.byte(p) {
            b'%' if p + 1 >= self.pattern.len() => self.fail(Fault::EndsWithPercent),
            b'%' => p + 2,
            b'[' => self.set_end(p),
            _ => p + 1,
        }
    }

    fn set_end(&mut self, p: usize) -> usize {
        let mut at = p + 1;
        if self.byte(at) == b'^' {
            at += 1;
        }
        // The first member may be a closing bracket.
        loop {
            let Some(&member) = self.pattern.get(at) else { return self.fail(Fault::MissingBracket) };
            at += 1;
            if member == b'%' && at < self.pattern.len() {
                at += 1;
            }
            if self.byte(at) == b']' {
                return at + 1;
            }
        }
    }

    /// Returns whether the byte at `s` is one of the item `p..end`.
    #[inline]
    fn fits(&self, s: usize, p: usize, end: usize) -> bool {
        let Some(&byte) = self.subject.get(s) else { return false };
        match self.pattern[p] {
            b'.' => true,
            b'%' => in_class(byte, self.pattern[p + 1]),
            b'[' => in_set(byte, &self.pattern[p..end]),
            literal => literal == byte,
        }
    }

    /// Returns how many of the first bytes match the item `p..end`.
    #[inline]
    fn run(&self, bytes: &[u8], p: usize, end: usize) -> usize {
        let stop = match self.pattern[p] {
            b'.' => None,
            b'%' => {
                let class = self.pattern[p + 1];
                let (mask, wanted) = (MASKS[class as usize], class.is_ascii_lowercase());
                match mask {
                    0 => bytes.iter().position(|byte| *byte != class),
                    mask => bytes.iter().position(|byte| (CLASSES[*byte as usize] & mask != 0) != wanted),
                }
            }
            b'[' => {
                let set = &self.pattern[p..end];
                bytes.iter().position(|byte| !in_set(*byte, set))
            }
            literal => bytes.iter().position(|byte| *byte != literal),
        };
        stop.unwrap_or(bytes.len())
    }

    /// Matches the item as often as possible from `from` on; repetitions before `least` are not given up again.
    fn most(&mut self, least: usize, from: usize, p: usize, end: usize) -> usize {
        const PIECE: usize = 1024;
        let mut at = from;
        while at < self.subject.len() {
            let piece = self.subject.len().min(at + PIECE);
            let run = self.run(&self.subject[at..piece], p, end);
            at += run;
            if at < piece {
                break;
            }
            if !self.burn(run as u32) {
                return FAULT;
            }
        }
        loop {
            let found = self.attempt(at, end + 1);
            if found != NONE {
                return found;
            }
            if at == least || !self.burn(1) {
                return if at == least { NONE } else { FAULT };
            }
            at -= 1;
        }
    }

    /// Matches the item as few times as possible.
    fn least(&mut self, mut s: usize, p: usize, end: usize) -> usize {
        loop {
            let found = self.attempt(s, end + 1);
            if found != NONE {
                return found;
            }
            if !self.fits(s, p, end) {
                return NONE;
            }
            if !self.burn(1) {
                return FAULT;
            }
            s += 1;
        }
    }

    fn open(&mut self, s: usize, p: usize, len: usize) -> usize {
        if self.level >= CAPTURES_MAX {
            return self.fail(Fault::TooManyCaptures);
        }
        self.captures[self.level] = Capture { start: s, len };
        self.level += 1;
        let found = self.attempt(s, p);
        if found == NONE {
            self.level -= 1;
        }
        found
    }

    fn close(&mut self, s: usize, p: usize) -> usize {
        let Some(index) = self.captures[..self.level].iter().rposition(|capture| capture.len == OPEN) else {
            return self.fail(Fault::PatternCapture);
        };
        self.captures[index].len = s - self.captures[index].start;
        let found = self.attempt(s, p);
        if found == NONE {
            self.captures[index].len = OPEN;
        }
        found
    }

    /// `%b`: matches a balanced pair of the characters at `p`.
    fn balance(&mut self, s: usize, p: usize) -> usize {
        if p + 1 >= self.pattern.len() {
            return self.fail(Fault::Unbalanced);
        }
        let (open, close) = (self.pattern[p], self.pattern[p + 1]);
        if self.subject.get(s) != Some(&open) {
            return NONE;
        }
        let mut depth = 1;
        for at in s + 1..self.subject.len() {
            if !self.burn(1) {
                return FAULT;
            }
            let byte = self.subject[at];
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            } else if byte == open {
                depth += 1;
            }
        }
        NONE
    }

    /// `%1`: matches the text of a capture again.
    fn again(&mut self, s: usize, digit: u8) -> usize {
        let index = usize::from(digit).wrapping_sub(usize::from(b'1'));
        if index >= self.level || self.captures[index].len == OPEN {
            return self.fail(Fault::CaptureIndex);
        }
        let Capture { start, len } = self.captures[index];
        if len > self.subject.len() - s {
            return NONE;
        }
        if !self.burn((len / 64).min(FUEL as usize) as u32) {
            return FAULT;
        }
        if self.subject[start..start + len] == self.subject[s..s + len] { s + len } else { NONE }
    }
}

/// The letters of classes; the position of a letter is its bit in [`CLASSES`].
const LETTERS: [u8; 10] = *b"acdlpsuwxz";

/// The classes that take each byte.
static CLASSES: [u16; 256] = {
    let mut classes = [0; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        let takes = [
            byte.is_ascii_alphabetic(),
            byte.is_ascii_control(),
            byte.is_ascii_digit(),
            byte.is_ascii_lowercase(),
            byte.is_ascii_punctuation(),
            matches!(byte, b' ' | b'\t'..=b'\r'),
            byte.is_ascii_uppercase(),
            byte.is_ascii_alphanumeric(),
            byte.is_ascii_hexdigit(),
            byte == 0,
        ];
        let mut class = 0;
        while class < LETTERS.len() {
            classes[at] |= (takes[class] as u16) << class;
            class += 1;
        }
        at += 1;
    }
    classes
};

/// For each letter of a class its bit in [`CLASSES`]; 0 for bytes that stand for themselves.
static MASKS: [u16; 256] = {
    let mut masks = [0; 256];
    let mut class = 0;
    while class < LETTERS.len() {
        masks[LETTERS[class] as usize] = 1 << class;
        masks[LETTERS[class].to_ascii_uppercase() as usize] = 1 << class;
        class += 1;
    }
    masks
};

/// Returns whether `%class` matches `byte`. An upper-case letter is the complement of the lower-case one.
#[inline]
fn in_class(byte: u8, class: u8) -> bool {
    match MASKS[class as usize] {
        0 => class == byte,
        mask => (CLASSES[byte as usize] & mask != 0) == class.is_ascii_lowercase(),
    }
}

/// Returns whether `[set]` takes `byte`; the brackets belong to `set`.
fn in_set(byte: u8, set: &[u8]) -> bool {
    let end = set.len() - 1;
    let mut at = 1;
    let negated = set[at] == b'^';
    if negated {
        at += 1;
    }
    while at < end {
        if set[at] == b'%' {
            at += 1;
            if in_class(byte, set[at]) {
                return !negated;
            }
        } else if set[at + 1] == b'-' && at + 2 < end {
            if (set[at]..=set[at + 2]).contains(&byte) {
                return !negated;
            }
            at += 2;
        } else if set[at] == byte {
            return !negated;
        }
        at += 1;
    }
    negated
}

/// Returns the effective part of a pattern: that before a zero byte.
#[inline]
pub(crate) fn until_zero(pattern: &[u8]) -> &[u8] {
    &pattern[..pattern.iter().position(|byte| *byte == 0).unwrap_or(pattern.len())]
}

/// Returns whether all characters of a pattern without a zero byte stand for themselves.
#[inline]
pub(crate) fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| matches!(byte, b'^' | b'$' | b'*' | b'+' | b'?' | b'.' | b'(' | b'[' | b'%' | b'-'))
}

/// Searches with any pattern in any subject, both taken from `data`; asserts what holds for all of them.
pub fn fuzz_pattern(data: &[u8]) {
    struct Steps(u32);
    impl Meter for Steps {
        fn go_on(&mut self) -> bool {
            self.0 -= 1;
            self.0 > 0
        }
    }
    let Some((&cut, rest)) = data.split_first() else { return };
    let (pattern, subject) = rest.split_at(rest.len().min(usize::from(cut)));
    let mut captures = Captures::default();
    for anchored in [false, true] {
        let mut matcher = Matcher::new(subject, until_zero(pattern), &mut captures, Steps(64));
        let found = if anchored && matcher.take_anchor() {
            matcher.match_at(0).map(|end| end.map(|end| (0, end)))
        } else {
            matcher.find(0)
        };
        if let Ok(Some((start, end))) = found {
            assert!(start <= end && end <= subject.len());
            for index in 0..matcher.captures() {
                match matcher.caught(index) {
                    Caught::Bytes(bytes) => assert!(bytes.len() <= subject.len()),
                    Caught::Position(at) => assert!(at <= subject.len()),
                    Caught::Unfinished => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Endless;

    impl Meter for Endless {
        fn go_on(&mut self) -> bool {
            true
        }
    }

    fn find(subject: &[u8], pattern: &[u8]) -> Result<Option<(usize, usize)>, Fault> {
        Matcher::new(subject, pattern, &mut Captures::default(), Endless).find(0)
    }

    #[test]
    fn nesting_ends() {
        let subject = vec![b'a'; 1000];
        assert_eq!(find(&subject, &b"a?".repeat(DEPTH_MAX as usize / 2)), Ok(Some((0, DEPTH_MAX as usize / 2))));
        assert_eq!(find(&subject, &b"a?".repeat(DEPTH_MAX as usize + 1)), Err(Fault::TooComplex));
    }

    #[test]
    fn long_subjects_are_skipped_through_piece_by_piece() {
        let mut subject = vec![b'x'; 300_000];
        subject.extend_from_slice(b"abc");
        assert_eq!(find(&subject, b"ab+c"), Ok(Some((300_000, 300_003))));
        assert_eq!(find(&subject, b"x*a"), Ok(Some((0, 300_001))));
        assert_eq!(find(&subject, b"y"), Ok(None));
    }

    #[test]
    fn any_bytes_are_a_pattern() {
        let mut state = 1u64;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % bound
        };
        const USUAL: &[u8] = b"%%%[]^$()().*+-?abcdfgswxzb019- \0";
        for _ in 0..200_000 {
            let mut data = vec![below(20) as u8];
            for _ in 0..below(40) {
                data.push(if below(20) == 0 { below(256) as u8 } else { USUAL[below(USUAL.len())] });
            }
            fuzz_pattern(&data);
        }
    }
}
