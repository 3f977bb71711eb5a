//! Templates with the placeholders `__key__` and `__data__`, and the keys that replace them.
//!
//! The placeholders are memtier's. Data that is the same filler in every request is inserted once, when the template is
//! created; keys, and values whose size or bytes differ, are drawn during the run.

use super::random::{Random, Zipf};

const KEY: &[u8] = b"__key__";
const DATA: &[u8] = b"__data__";

/// Sequences of one thread; of more URLs some share one.
const SEQUENCES_MAX: usize = 1024;

/// The order in which keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum KeyPattern {
    /// Each as often as any other.
    Uniform,
    /// One after the other, over and over, for each command or URL by itself; each thread takes those of its own
    /// residue, so that together they take all.
    Sequential,
    /// Around the middle of the range, with this deviation in keys; 0: a sixth of the range.
    Gaussian(f64),
    /// Around this number, with this deviation; 0: a sixth of the range.
    Around(f64, f64),
    /// The first key most often, by this exponent.
    Zipf(f64),
}

/// The set of keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeySpace {
    /// Stands before the number.
    pub(crate) prefix: String,
    /// Lowest number.
    pub(crate) min: u64,
    /// Highest number.
    pub(crate) max: u64,
    pub(crate) pattern: KeyPattern,
}

impl KeySpace {
    /// Returns the space of a run without keys.
    pub(crate) fn none() -> KeySpace {
        KeySpace { prefix: String::new(), min: 0, max: 0, pattern: KeyPattern::Uniform }
    }

    fn count(&self) -> u64 {
        (self.max - self.min).saturating_add(1)
    }
}

/// Draws keys for one thread: for one of its commands if they are sequential, otherwise for all of them.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    space: KeySpace,
    random: Random,
    zipf: Option<Zipf>,
    next: u64,
    step: u64,
    /// The number of the last key.
    last: u64,
    /// The last hash tag.
    tag: Tag,
}

impl Keys {
    /// Returns the keys of one client, which walks sequential keys alone from the first on. Streams of one seed are
    /// independent.
    pub(super) fn of_client(space: KeySpace, seed: u64, stream: u64) -> Keys {
        Keys { next: 0, ..Keys::new(space, seed, stream, 1) }
    }

    /// Returns the place of the last key in the range, from 0 to 1.
    fn place(&self) -> f64 {
        (self.last - self.space.min) as f64 / (self.space.max - self.space.min).max(1) as f64
    }

    pub(super) fn new(space: KeySpace, seed: u64, thread: u64, threads: u64) -> Keys {
        let zipf = match space.pattern {
            KeyPattern::Zipf(exponent) => Some(Zipf::new(space.count(), exponent)),
            _ => None,
        };
        let mut random = Random::new(seed);
        // Threads whose seeds are neighbours shall not draw neighbouring sequences.
        let random = Random::new(random.next() ^ (thread + 1).wrapping_mul(0xd134_2543_de82_ef95));
        let last = space.min;
        Keys { space, random, zipf, next: thread, step: threads, last, tag: *b"aaa" }
    }

    /// Returns the keys of so many commands or URLs. Sequential ones are walked by each of them alone: `SET` and `GET`
    /// in turn would otherwise share a sequence, and no `GET` would ever ask for a key that was set.
    pub(super) fn of_each(self, commands: usize) -> Vec<Keys> {
        let count = if self.space.pattern == KeyPattern::Sequential { commands.clamp(1, SEQUENCES_MAX) } else { 1 };
        vec![self; count]
    }

    /// Draws the number of a key.
    pub(super) fn number(&mut self) -> u64 {
        let count = self.space.count();
        let offset = match self.space.pattern {
            KeyPattern::Uniform => self.random.below(count),
            KeyPattern::Sequential => {
                let offset = self.next % count;
                self.next = self.next.wrapping_add(self.step);
                offset
            }
            KeyPattern::Gaussian(deviation) => self.around((count - 1) as f64 / 2.0, deviation),
            KeyPattern::Around(median, deviation) => self.around(median - self.space.min as f64, deviation),
            KeyPattern::Zipf(_) => match &self.zipf {
                Some(zipf) => zipf.draw(&mut self.random) - 1,
                None => 0,
            },
        };
        self.last = self.space.min + offset.min(count - 1);
        self.last
    }

    /// Draws a hash tag that `is_wanted`, or any after `most` draws.
    pub(super) fn draw_tag(&mut self, most: usize, is_wanted: impl Fn(&Tag) -> bool) {
        for _ in 0..most {
            self.tag = std::array::from_fn(|_| b'a' + self.random.below(26) as u8);
            if is_wanted(&self.tag) {
                return;
            }
        }
    }

    /// Returns the last hash tag.
    pub(super) fn tag(&self) -> Tag {
        self.tag
    }

    fn around(&mut self, middle: f64, deviation: f64) -> u64 {
        let count = self.space.count();
        let deviation = if deviation > 0.0 { deviation } else { count as f64 / 6.0 };
        let place = middle + self.random.normal() * deviation;
        place.round().clamp(0.0, (count - 1) as f64) as u64
    }

    /// Appends a newly drawn key.
    pub(super) fn write(&mut self, out: &mut Vec<u8>) {
        let number = self.number();
        out.extend_from_slice(self.space.prefix.as_bytes());
        out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }
}

/// A place in a template that each request fills.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Hole {
    Key,
    /// A value of [`Values`].
    Data,
    /// A number from the first to the second.
    Number(u64, u64),
    /// Likewise, most often from the middle.
    Around(u64, u64),
    /// A number below this one, in twelve digits; 0 if it is 0.
    Digits(u64),
    /// The hash tag of the command in braces, which puts its keys into a slot of the connection's node.
    Tag,
}

/// What a placeholder stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'a> {
    /// The same bytes in every request.
    Bytes(&'a [u8]),
    Hole(Hole),
}

/// A hash tag without its braces.
pub(super) type Tag = [u8; 3];

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Bytes(Vec<u8>),
    Hole(Hole),
}

/// The sizes of values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sizes {
    Fixed(usize),
    /// Each size of the range as often as any other.
    Range(usize, usize),
    /// From the lowest for the first key to the highest for the last.
    Growing(usize, usize),
    /// Sizes with their weights.
    Weighted(Vec<(usize, u64)>),
}

/// The values of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Values {
    sizes: Sizes,
    /// The bytes from which values are cut: as many as the largest has, or twice as many random ones.
    pool: Vec<u8>,
    are_random: bool,
}

impl Values {
    /// Random bytes are different in each value.
    pub(crate) fn new(sizes: Sizes, are_random: bool, seed: u64) -> Values {
        let largest = match &sizes {
            Sizes::Fixed(size) | Sizes::Range(_, size) | Sizes::Growing(_, size) => *size,
            Sizes::Weighted(list) => list.iter().map(|(size, _)| *size).max().unwrap_or(0),
        };
        let mut random = Random::new(seed);
        let pool = match are_random {
            true => (0..largest * 2).map(|_| random.next() as u8).collect(),
            false => vec![b'x'; largest],
        };
        Values { sizes, pool, are_random }
    }

    /// Returns the value, if all are the same.
    pub(crate) fn fixed(&self) -> Option<&[u8]> {
        match self.sizes {
            Sizes::Fixed(_) if !self.are_random => Some(&self.pool),
            _ => None,
        }
    }

    /// Appends a value for the last key of `keys`.
    pub(super) fn write(&self, keys: &mut Keys, out: &mut Vec<u8>) {
        let size = match &self.sizes {
            Sizes::Fixed(size) => *size,
            Sizes::Range(min, max) => min + keys.random.below((max - min) as u64 + 1) as usize,
            Sizes::Growing(min, max) => min + ((max - min) as f64 * keys.place()).round() as usize,
            Sizes::Weighted(list) => {
                let mut rest = keys.random.below(list.iter().map(|(_, weight)| weight).sum());
                let chosen = list.iter().find(|(_, weight)| match rest.checked_sub(*weight) {
                    Some(less) => {
                        rest = less;
                        false
                    }
                    None => true,
                });
                chosen.map_or(0, |(size, _)| *size)
            }
        };
        let room = self.pool.len() - size;
        let from = if self.are_random { keys.random.below(room as u64 + 1) as usize } else { 0 };
        out.extend_from_slice(&self.pool[from..from + size]);
    }
}

/// Draws a number of a range.
pub(super) fn draw(keys: &mut Keys, from: u64, to: u64) -> u64 {
    from + keys.random.below((to - from).saturating_add(1))
}

/// Draws a number of a range around its middle, with a sixth of its length as the deviation.
pub(super) fn draw_around(keys: &mut Keys, from: u64, to: u64) -> u64 {
    let length = (to - from) as f64;
    loop {
        let offset = length / 2.0 + keys.random.normal() * length / 6.0;
        if (0.0..length + 1.0).contains(&offset) {
            return (from + offset as u64).min(to);
        }
    }
}

/// Bytes with places for keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Template {
    parts: Vec<Part>,
}

impl Template {
    /// Reads `text`; each `__data__` becomes `data`.
    pub(crate) fn new(text: &[u8], data: &[u8]) -> Template {
        Template::with_values(text, Some(data))
    }

    /// Returns the template of a number from the first to the second.
    pub(crate) fn number(from: u64, to: u64) -> Template {
        Template { parts: vec![Part::Hole(Hole::Number(from, to))] }
    }

    /// The same, around the middle.
    pub(crate) fn number_around(from: u64, to: u64) -> Template {
        Template { parts: vec![Part::Hole(Hole::Around(from, to))] }
    }

    /// Reads `text`; each `__data__` becomes `data`, or a place for a value.
    pub(crate) fn with_values(text: &[u8], data: Option<&[u8]>) -> Template {
        let data = data.map_or(Content::Hole(Hole::Data), Content::Bytes);
        Template::of(text, &[(KEY, Content::Hole(Hole::Key)), (DATA, data)])
    }

    /// Reads `text`, in which each placeholder stands for its content.
    pub(crate) fn of(text: &[u8], placeholders: &[(&[u8], Content<'_>)]) -> Template {
        let mut parts = Vec::new();
        let mut bytes = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let found = placeholders.iter().find_map(|(name, content)| Some((rest.strip_prefix(*name)?, content)));
            match found {
                Some((after, Content::Bytes(data))) => {
                    bytes.extend_from_slice(data);
                    rest = after;
                }
                Some((after, Content::Hole(hole))) => {
                    if !bytes.is_empty() {
                        parts.push(Part::Bytes(std::mem::take(&mut bytes)));
                    }
                    parts.push(Part::Hole(*hole));
                    rest = after;
                }
                None => {
                    bytes.push(rest[0]);
                    rest = &rest[1..];
                }
            }
        }
        if !bytes.is_empty() {
            parts.push(Part::Bytes(bytes));
        }
        Template { parts }
    }

    /// Returns the template of bytes without placeholders.
    pub(crate) fn plain(bytes: &[u8]) -> Template {
        let mut template = Template { parts: Vec::new() };
        if !bytes.is_empty() {
            template.append(bytes);
        }
        template
    }

    /// Adds bytes as they are.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        match self.parts.last_mut() {
            Some(Part::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.parts.push(Part::Bytes(bytes.to_vec())),
        }
    }

    /// Returns the bytes, if there is no place for a key among them.
    pub(crate) fn fixed(&self) -> Option<&[u8]> {
        match self.parts.as_slice() {
            [] => Some(b""),
            [Part::Bytes(bytes)] => Some(bytes),
            _ => None,
        }
    }

    /// Returns whether there is such a place.
    pub(crate) fn has(&self, hole: Hole) -> bool {
        self.parts.contains(&Part::Hole(hole))
    }

    /// Appends the bytes; `key` writes each key, of a template that has no other places.
    pub(super) fn write(&self, out: &mut Vec<u8>, mut key: impl FnMut(&mut Vec<u8>)) {
        self.fill(out, |_, out| key(out));
    }

    /// Appends the bytes; `fill` writes what stands in each place.
    pub(super) fn fill(&self, out: &mut Vec<u8>, mut fill: impl FnMut(Hole, &mut Vec<u8>)) {
        for part in &self.parts {
            match part {
                Part::Bytes(bytes) => out.extend_from_slice(bytes),
                Part::Hole(hole) => fill(*hole, out),
            }
        }
    }
}

/// Returns a text that resembles a placeholder but is not one: a typing error that would otherwise be sent unchanged.
pub(crate) fn unknown_placeholder(text: &str) -> Option<&str> {
    let mut from = 0;
    while let Some(start) = text[from..].find("__").map(|at| from + at) {
        let len = text[start + 2..].find("__")?;
        let end = start + 2 + len + 2;
        let (word, name) = (&text[start..end], &text[start + 2..end - 2]);
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if is_name && word.as_bytes() != KEY && word.as_bytes() != DATA {
            return Some(word);
        }
        from = if is_name { end } else { start + 2 };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(pattern: KeyPattern, thread: u64, threads: u64) -> Keys {
        let space = KeySpace { prefix: "k:".into(), min: 10, max: 19, pattern };
        Keys::new(space, 1, thread, threads)
    }

    #[test]
    fn templates_are_filled() {
        let mut keys = keys(KeyPattern::Sequential, 0, 1);
        let template = Template::new(b"a__key__-__data__-__key__b", b"DD");
        let mut out = Vec::new();
        template.write(&mut out, |out| keys.write(out));
        assert_eq!(out, b"ak:10-DD-k:11b");
        assert_eq!(template.fixed(), None);
        assert_eq!(Template::new(b"x__data__", b"D").fixed(), Some(b"xD".as_slice()));
        assert_eq!(Template::new(b"", b"D").fixed(), Some(b"".as_slice()));
    }

    #[test]
    fn slips_are_seen() {
        for (text, expected) in [
            ("__key__", None),
            ("a__data____key__", None),
            ("__kye__", Some("__kye__")),
            ("__key__ __rand_int__", Some("__rand_int__")),
            ("a__b", None),
            ("____", None),
            ("__KEY__ __X", None),
        ] {
            assert_eq!(unknown_placeholder(text), expected, "{text}");
        }
    }

    #[test]
    fn every_pattern_stays_in_its_range() {
        let patterns = [KeyPattern::Uniform, KeyPattern::Sequential, KeyPattern::Gaussian(0.0), KeyPattern::Zipf(1.1)];
        for pattern in patterns {
            let mut keys = keys(pattern, 0, 1);
            let mut seen = [0u32; 20];
            for _ in 0..10_000 {
                seen[keys.number() as usize] += 1;
            }
            assert!(seen[..10].iter().all(|count| *count == 0), "{pattern:?}");
            assert!(seen[10..].iter().all(|count| *count > 0), "{pattern:?} {seen:?}");
        }
    }

    #[test]
    fn sequential_threads_take_every_key_once() {
        let mut seen: Vec<u64> = (0..2)
            .flat_map(|thread| {
                let mut keys = keys(KeyPattern::Sequential, thread, 2);
                (0..5).map(move |_| keys.number()).collect::<Vec<_>>()
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (10..20).collect::<Vec<_>>());
    }
}
