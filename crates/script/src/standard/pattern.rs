//! Lua 5.4's patterns: a matcher that can be suspended and continued.
//!
//! A pattern can take exponential time, and its subject often comes from a client. The matcher therefore asks a meter
//! every few thousand steps whether to continue. If not, the search can be saved and restored as a plain copy of its
//! state ([`Matcher`]), because an array of [`Frame`]s takes the place of a recursive matcher's C stack.
//!
//! A frame is a choice to which the matcher may have to backtrack. Matching an item that has alternatives pushes a
//! frame; a mismatch pops frames until one has another alternative left.
//!
//! Limits are Lua's: 32 captures, and [`DEPTH_MAX`] nested choices, beyond which a pattern is too complex.
//!
//! The sandbox of the store has a different matcher, with the semantics of Lua 5.1, which restarts on another thread
//! instead of continuing.

use std::ffi::CStr;

/// The maximum number of captures of a pattern (`LUA_MAXCAPTURES`).
pub(super) const CAPTURES_MAX: usize = 32;

/// The maximum number of nested choices (`MAXCCALLS` of Lua's string library).
const DEPTH_MAX: usize = 200;

/// The number of steps between two calls of the meter.
const FUEL: u32 = 4096;

/// Bytes that one step of a scan looks at.
const PIECE: usize = 1024;

/// An error in a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    TooComplex,
    EndsWithPercent,
    MissingBracket,
    Unbalanced,
    MissingSet,
    /// The number after the percent sign.
    CaptureIndex(u8),
    PatternCapture,
    TooManyCaptures,
}

impl Fault {
    /// Lua's message; that of [`Fault::CaptureIndex`] lacks its number.
    pub(super) fn message(self) -> &'static CStr {
        match self {
            Fault::TooComplex => c"pattern too complex",
            Fault::EndsWithPercent => c"malformed pattern (ends with '%')",
            Fault::MissingBracket => c"malformed pattern (missing ']')",
            Fault::Unbalanced => c"malformed pattern (missing arguments to '%b')",
            Fault::MissingSet => c"missing '[' after '%f' in pattern",
            Fault::CaptureIndex(_) => c"invalid capture index",
            Fault::PatternCapture => c"invalid pattern capture",
            Fault::TooManyCaptures => c"too many captures",
        }
    }
}

/// A captured pair of parentheses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Capture {
    start: usize,
    len: usize,
}

/// The length that marks an open capture; [`POSITION`] marks a capture that is a position.
const OPEN: usize = usize::MAX;
const POSITION: usize = usize::MAX - 1;

/// A capture as the caller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caught {
    /// From, to.
    Bytes(usize, usize),
    /// `()`: an offset into the subject.
    Position(usize),
    /// Its parenthesis was never closed.
    Unfinished,
}

/// A choice to which the matcher may backtrack.
#[derive(Clone, Copy, Debug)]
enum Frame {
    /// `x?` matched one item: continue at `s` without it.
    Optional { s: usize, p: usize },
    /// `x*` matched as many items as possible, up to `at`: continue with one less, but not before `least`.
    Most { least: usize, at: usize, p: usize },
    /// `x-` matched as few items as possible, up to `s`: match one more of the item `p..end`.
    Least { s: usize, p: usize, end: usize },
    /// A capture was opened.
    Opened,
    /// This capture was closed.
    Closed(u8),
}

/// The next step of the matcher.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Begin an attempt at `from`.
    Begin,
    /// Match the pattern from `p` on at `s`.
    Walk,
    /// Count how many bytes from `at` on match the item `p..end`; the item may not end before `least`.
    Count { least: usize, at: usize, p: usize, end: usize },
    /// Find the end of the balanced pair that began at `s`: `at` is next, `depth` pairs are open.
    Balance { at: usize, depth: usize },
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A match, from and to.
    Found(usize, usize),
    /// No match.
    Nothing,
    /// The pattern is at fault.
    Fault(Fault),
    /// The meter refused: the next call of [`Matcher::run`] continues here.
    Interrupted,
}

/// A search in progress: plain data, without references to the subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matcher {
    /// The start of the current attempt.
    from: usize,
    /// The place in the pattern where every attempt begins: after a `^`.
    start: usize,
    anchored: bool,
    s: usize,
    p: usize,
    stage: Stage,
    fuel: u32,
    level: usize,
    depth: usize,
    captures: [Capture; CAPTURES_MAX],
    frames: [Frame; DEPTH_MAX],
}

impl Default for Matcher {
    fn default() -> Self {
        Matcher {
            from: 0,
            start: 0,
            anchored: false,
            s: 0,
            p: 0,
            stage: Stage::Begin,
            fuel: FUEL,
            level: 0,
            depth: 0,
            captures: [Capture::default(); CAPTURES_MAX],
            frames: [Frame::Opened; DEPTH_MAX],
        }
    }
}

impl Matcher {
    /// Starts a search for the first match at `from` or later; only at `from` if there is a `^` and it `anchors`.
    pub(super) fn begin(&mut self, pattern: &[u8], from: usize, anchors: bool) {
        self.anchored = anchors && pattern.first() == Some(&b'^');
        self.start = usize::from(self.anchored);
        self.from = from;
        self.stage = Stage::Begin;
        self.fuel = FUEL;
        self.level = 0;
        self.depth = 0;
    }

    /// Returns whether the search matches only at the position where it began.
    pub(super) fn is_anchored(&self) -> bool {
        self.anchored
    }

    /// Returns the number of captures of the match.
    pub(super) fn captures(&self) -> usize {
        self.level
    }

    /// Returns the capture of this number, from 0.
    pub(super) fn caught(&self, index: usize) -> Caught {
        let Capture { start, len } = self.captures[index];
        match len {
            OPEN => Caught::Unfinished,
            POSITION => Caught::Position(start),
            len => Caught::Bytes(start, start + len),
        }
    }

    /// Continues until there is a result or `go_on`, called every few thousand steps, returns false.
    pub(super) fn run(&mut self, subject: &[u8], pattern: &[u8], mut go_on: impl FnMut() -> bool) -> Outcome {
        loop {
            if self.fuel == 0 {
                self.fuel = FUEL;
                if !go_on() {
                    return Outcome::Interrupted;
                }
            }
            self.fuel -= 1;
            let progress = match self.stage {
                Stage::Begin => {
                    if let Some(byte) = literal(&pattern[self.start..]).filter(|_| !self.anchored) {
                        match memchr::memchr(byte, &subject[self.from.min(subject.len())..]) {
                            Some(skipped) => self.from += skipped,
                            None => return Outcome::Nothing,
                        }
                    }
                    self.s = self.from;
                    self.p = self.start;
                    self.level = 0;
                    self.depth = 0;
                    self.stage = Stage::Walk;
                    Ok(true)
                }
                Stage::Walk => {
                    if self.p == pattern.len() {
                        return Outcome::Found(self.from, self.s);
                    }
                    self.walk(subject, pattern)
                }
                Stage::Count { least, at, p, end } => self.count(subject, pattern, [least, at, p, end]),
                Stage::Balance { at, depth } => self.balance(subject, pattern, at, depth),
            };
            match progress {
                Err(fault) => return Outcome::Fault(fault),
                Ok(true) => {}
                Ok(false) => {
                    if !self.back(subject, pattern) {
                        if self.anchored || self.from >= subject.len() {
                            return Outcome::Nothing;
                        }
                        self.from += 1;
                        self.stage = Stage::Begin;
                    }
                }
            }
        }
    }

    /// Pushes a choice, under which matching continues.
    #[inline]
    fn push(&mut self, frame: Frame) -> Result<bool, Fault> {
        self.frames[self.depth] = frame;
        self.depth += 1;
        if self.depth == DEPTH_MAX { Err(Fault::TooComplex) } else { Ok(true) }
    }

    /// Backtracks to the last choice that has another alternative; returns false if none has.
    #[inline]
    fn back(&mut self, subject: &[u8], pattern: &[u8]) -> bool {
        self.stage = Stage::Walk;
        while self.depth > 0 {
            match &mut self.frames[self.depth - 1] {
                Frame::Optional { s, p } => {
                    (self.s, self.p) = (*s, *p);
                    self.depth -= 1;
                    return true;
                }
                Frame::Most { least, at, p } => {
                    if *at > *least {
                        *at -= 1;
                        (self.s, self.p) = (*at, *p);
                        return true;
                    }
                }
                Frame::Least { s, p, end } => {
                    if fits(subject, *s, pattern, *p, *end) {
                        *s += 1;
                        (self.s, self.p) = (*s, *end + 1);
                        return true;
                    }
                }
                Frame::Opened => self.level -= 1,
                Frame::Closed(index) => self.captures[usize::from(*index)].len = OPEN,
            }
            self.depth -= 1;
        }
        false
    }

    /// Matches one item. `Ok(false)` is a mismatch.
    #[inline]
    fn walk(&mut self, subject: &[u8], pattern: &[u8]) -> Result<bool, Fault> {
        let p = self.p;
        let next = pattern.get(p + 1).copied();
        match pattern[p] {
            b'(' => {
                if self.level >= CAPTURES_MAX {
                    return Err(Fault::TooManyCaptures);
                }
                let is_position = next == Some(b')');
                let len = if is_position { POSITION } else { OPEN };
                self.captures[self.level] = Capture { start: self.s, len };
                self.level += 1;
                self.p += 1 + usize::from(is_position);
                return self.push(Frame::Opened);
            }
            b')' => {
                let Some(index) = self.captures[..self.level].iter().rposition(|capture| capture.len == OPEN) else {
                    return Err(Fault::PatternCapture);
                };
                self.captures[index].len = self.s - self.captures[index].start;
                self.p += 1;
                return self.push(Frame::Closed(index as u8));
            }
            b'$' if next.is_none() => {
                self.p += 1;
                return Ok(self.s == subject.len());
            }
            b'%' => match next {
                Some(b'b') => {
                    if p + 3 >= pattern.len() {
                        return Err(Fault::Unbalanced);
                    }
                    if subject.get(self.s) != Some(&pattern[p + 2]) {
                        return Ok(false);
                    }
                    self.stage = Stage::Balance { at: self.s + 1, depth: 1 };
                    return Ok(true);
                }
                Some(b'f') => {
                    if pattern.get(p + 2) != Some(&b'[') {
                        return Err(Fault::MissingSet);
                    }
                    let end = item_end(pattern, p + 2)?;
                    let before = if self.s == 0 { 0 } else { subject[self.s - 1] };
                    let after = subject.get(self.s).copied().unwrap_or(0);
                    let set = &pattern[p + 2..end];
                    self.p = end;
                    return Ok(!in_set(before, set) && in_set(after, set));
                }
                Some(digit @ b'0'..=b'9') => {
                    let index = usize::from(digit).wrapping_sub(usize::from(b'1'));
                    if index >= self.level || self.captures[index].len == OPEN {
                        return Err(Fault::CaptureIndex(digit - b'0'));
                    }
                    // The length of a position is larger than any subject, as in Lua.
                    let Capture { start, len } = self.captures[index];
                    if len > subject.len() - self.s || subject[start..start + len] != subject[self.s..self.s + len] {
                        return Ok(false);
                    }
                    self.fuel = self.fuel.saturating_sub((len / 64).min(FUEL as usize) as u32);
                    self.s += len;
                    self.p += 2;
                    return Ok(true);
                }
                _ => {}
            },
            _ => {}
        }
        let end = item_end(pattern, p)?;
        let s = self.s;
        match pattern.get(end) {
            Some(b'?') => {
                self.p = end + 1;
                if fits(subject, s, pattern, p, end) {
                    self.s += 1;
                    return self.push(Frame::Optional { s, p: end + 1 });
                }
                Ok(true)
            }
            Some(b'*') => {
                self.stage = Stage::Count { least: s, at: s, p, end };
                Ok(true)
            }
            Some(b'+') => {
                if !fits(subject, s, pattern, p, end) {
                    return Ok(false);
                }
                self.stage = Stage::Count { least: s + 1, at: s + 1, p, end };
                Ok(true)
            }
            Some(b'-') => {
                self.p = end + 1;
                self.push(Frame::Least { s, p, end })
            }
            _ => {
                if !fits(subject, s, pattern, p, end) {
                    return Ok(false);
                }
                self.s += 1;
                self.p = end;
                Ok(true)
            }
        }
    }

    /// Counts the matches of an item with `*` or `+` in one piece of the subject. After the last piece, matching
    /// continues behind all of them.
    fn count(&mut self, subject: &[u8], pattern: &[u8], place: [usize; 4]) -> Result<bool, Fault> {
        let [least, at, p, end] = place;
        let piece = &subject[at.min(subject.len())..subject.len().min(at + PIECE)];
        let run = run_of(piece, &pattern[p..end]);
        let at = at + run;
        if run == PIECE {
            self.stage = Stage::Count { least, at, p, end };
            self.fuel = self.fuel.saturating_sub(PIECE as u32 / 4);
            return Ok(true);
        }
        self.stage = Stage::Walk;
        (self.s, self.p) = (at, end + 1);
        self.push(Frame::Most { least, at, p: end + 1 })
    }

    /// Looks through a piece for the end of a balanced pair.
    fn balance(&mut self, subject: &[u8], pattern: &[u8], at: usize, mut depth: usize) -> Result<bool, Fault> {
        let (open, close) = (pattern[self.p + 2], pattern[self.p + 3]);
        let stop = subject.len().min(at + PIECE);
        for (offset, byte) in subject[at..stop].iter().enumerate() {
            if *byte == close {
                depth -= 1;
                if depth == 0 {
                    self.stage = Stage::Walk;
                    self.s = at + offset + 1;
                    self.p += 4;
                    return Ok(true);
                }
            } else if *byte == open {
                depth += 1;
            }
        }
        self.fuel = self.fuel.saturating_sub(PIECE as u32 / 2);
        self.stage = Stage::Balance { at: stop, depth };
        Ok(stop < subject.len())
    }
}

/// Returns the end of the single item that begins at `p`.
#[inline]
fn item_end(pattern: &[u8], p: usize) -> Result<usize, Fault> {
    match pattern[p] {
        b'%' if p + 1 >= pattern.len() => Err(Fault::EndsWithPercent),
        b'%' => Ok(p + 2),
        b'[' => {
            let mut at = p + 1;
            if pattern.get(at) == Some(&b'^') {
                at += 1;
            }
            // The first member may be a closing bracket.
            loop {
                let Some(&member) = pattern.get(at) else { return Err(Fault::MissingBracket) };
                at += 1;
                if member == b'%' && at < pattern.len() {
                    at += 1;
                }
                if pattern.get(at) == Some(&b']') {
                    return Ok(at + 1);
                }
            }
        }
        _ => Ok(p + 1),
    }
}

/// Returns the byte that every match begins with, if the pattern starts with a literal byte that must occur.
#[inline]
fn literal(pattern: &[u8]) -> Option<u8> {
    let first = *pattern.first()?;
    let is_plain = !matches!(first, b'(' | b')' | b'%' | b'.' | b'[' | b'$');
    (is_plain && !matches!(pattern.get(1), Some(b'?' | b'*' | b'-'))).then_some(first)
}

/// Returns whether the byte at `s` matches the item `p..end`.
#[inline]
fn fits(subject: &[u8], s: usize, pattern: &[u8], p: usize, end: usize) -> bool {
    let Some(&byte) = subject.get(s) else { return false };
    match pattern[p] {
        b'.' => true,
        b'%' => in_class(byte, pattern[p + 1]),
        b'[' => in_set(byte, &pattern[p..end]),
        literal => literal == byte,
    }
}

/// Returns how many bytes from the start match the item.
#[inline]
fn run_of(bytes: &[u8], item: &[u8]) -> usize {
    let stop = match item[0] {
        b'.' => None,
        b'%' => bytes.iter().position(|byte| !in_class(*byte, item[1])),
        b'[' => bytes.iter().position(|byte| !in_set(*byte, item)),
        literal => bytes.iter().position(|byte| *byte != literal),
    };
    stop.unwrap_or(bytes.len())
}

/// The letters of classes; the index of a letter is its bit in [`CLASSES`].
const LETTERS: [u8; 11] = *b"acdglpsuwxz";

/// For each byte, the classes that contain it.
static CLASSES: [u16; 256] = {
    let mut classes = [0; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        let takes = [
            byte.is_ascii_alphabetic(),
            byte.is_ascii_control(),
            byte.is_ascii_digit(),
            byte.is_ascii_graphic(),
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

/// Returns whether `[set]` contains `byte`; `set` includes the brackets.
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

/// Returns whether a pattern consists of literal bytes only.
pub(super) fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| matches!(byte, b'^' | b'$' | b'*' | b'+' | b'?' | b'.' | b'(' | b'[' | b'%' | b'-'))
}

/// Returns roughly the maximum number of steps of a search; `None` if that is too many for a search that cannot be
/// suspended.
pub(super) fn steps(subject: usize, pattern: &[u8]) -> Option<usize> {
    /// A millisecond or so.
    const STEPS_MAX: usize = 200_000;
    let places = subject.saturating_add(1);
    // One attempt at each place, which looks at each item once.
    let mut steps = places.checked_mul(pattern.len() + 1)?;
    let mut before = 0;
    for byte in pattern {
        let alternatives = match byte {
            b'*' | b'+' | b'-' => places,
            b'?' => 2,
            // `%b` looks through the subject, `%1` to `%9` compare a part of it.
            b'b' | b'1'..=b'9' if before == b'%' => places,
            _ => 1,
        };
        before = *byte;
        steps = steps.checked_mul(alternatives)?;
        if steps > STEPS_MAX {
            return None;
        }
    }
    (steps <= STEPS_MAX).then_some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(subject: &[u8], pattern: &[u8]) -> Outcome {
        let mut matcher = Matcher::default();
        matcher.begin(pattern, 0, true);
        matcher.run(subject, pattern, || true)
    }

    #[test]
    fn choices_within_each_other_end() {
        let subject = vec![b'a'; 1000];
        assert_eq!(find(&subject, &b"a?".repeat(DEPTH_MAX - 1)), Outcome::Found(0, DEPTH_MAX - 1));
        assert_eq!(find(&subject, &b"a?".repeat(DEPTH_MAX)), Outcome::Fault(Fault::TooComplex));
    }

    #[test]
    fn a_search_that_is_interrupted_everywhere_ends_as_one_that_is_not() {
        let mut state = 1u64;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % bound
        };
        const USUAL: &[u8] = b"%%%[]^$()().*+-?abcdfgswxzb019- \0";
        for _ in 0..50_000 {
            let mut some = |len: usize| -> Vec<u8> { (0..below(len)).map(|_| USUAL[below(USUAL.len())]).collect() };
            let (pattern, subject) = (some(14), some(24));
            let whole = {
                let mut matcher = Matcher::default();
                matcher.begin(&pattern, 0, true);
                let outcome = matcher.run(&subject, &pattern, || true);
                (outcome, matcher.captures[..matcher.level].to_vec())
            };
            let mut matcher = Matcher::default();
            matcher.begin(&pattern, 0, true);
            let outcome = loop {
                // The search is interrupted after each step and continues in a copy.
                matcher.fuel = matcher.fuel.min(1);
                let mut asked = false;
                match matcher.run(&subject, &pattern, || std::mem::replace(&mut asked, true)) {
                    Outcome::Interrupted => matcher = *Box::new(matcher),
                    outcome => break outcome,
                }
            };
            assert_eq!((outcome, matcher.captures[..matcher.level].to_vec()), whole, "{pattern:?} in {subject:?}");
            if let Outcome::Found(start, end) = outcome {
                assert!(start <= end && end <= subject.len());
            }
        }
    }

    #[test]
    fn what_may_take_long_is_told_from_what_can_not() {
        assert!(steps(100, b"^(%w+)=(%w*)$").is_none(), "two repetitions within each other");
        assert!(steps(20, b"^(%w+)=(%w*)$").is_some());
        assert!(steps(30_000, b".-.-.-b").is_none());
        assert!(steps(1000, b"abc").is_some());
        assert!(steps(usize::MAX, b"a").is_none());
    }
}
