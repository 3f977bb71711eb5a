//! Random commands: `grammar.txt` is parsed into rules, which generate one command at a time.
//!
//! The rules generate valid or nearly valid commands; [`Maker::command`] damages some of them. Two kinds are excluded,
//! as they would make the result depend on the clock: a time to live that may end within the run, and a long wait.

use std::collections::HashMap;

use crate::random::Random;

/// A command: its name and its arguments.
pub(super) type Words = Vec<Vec<u8>>;

#[derive(Debug)]
enum Item {
    Word(Vec<u8>),
    Rule(usize),
    Distinct,
    Small,
    Blob,
    Float,
    Payload,
    Choice(Choice),
    Optional(Choice),
    Repeat(Box<Item>, usize, usize),
    /// As many repetitions as the last [`Item::Counted`] had.
    Again(Box<Item>),
    Counted(Box<Item>),
}

/// Alternatives with their weights.
#[derive(Debug, Default)]
struct Choice {
    alternatives: Vec<(u64, Vec<Item>)>,
    total: u64,
}

impl Choice {
    fn add(&mut self, weight: u64, items: Vec<Item>) {
        self.total += weight;
        self.alternatives.push((weight, items));
    }

    fn pick(&self, random: &mut Random) -> &[Item] {
        let mut left = random.next() % self.total.max(1);
        for (weight, items) in &self.alternatives {
            if left < *weight {
                return items;
            }
            left -= weight;
        }
        &[]
    }
}

struct Line {
    items: Vec<Item>,
    may_be_spoilt: bool,
}

/// Lines with the cumulative sums of their weights, in hundredths.
#[derive(Default)]
struct Section {
    lines: Vec<Line>,
    sums: Vec<u64>,
}

/// The content of `grammar.txt`.
pub(super) struct Grammar {
    rules: Vec<Choice>,
    main: Section,
    subscriber: Section,
    junk: usize,
    any_key: usize,
    payloads: Vec<Vec<u8>>,
}

/// The state of a sequence between its commands.
pub(super) struct Maker<'a> {
    grammar: &'a Grammar,
    pub(super) random: Random,
    /// The number of times to live that were generated.
    times: u64,
    count: usize,
}

impl Grammar {
    /// Returns the grammar of this folder; `payloads` are what DUMP gives for some values.
    pub(super) fn new(payloads: Vec<Vec<u8>>) -> Grammar {
        Grammar::read(include_str!("grammar.txt"), payloads).unwrap_or_else(|fault| panic!("grammar.txt: {fault}"))
    }

    fn read(text: &str, payloads: Vec<Vec<u8>>) -> Result<Grammar, String> {
        let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut names = HashMap::new();
        for line in lines() {
            if let Some((name, _)) = rule(line) {
                names.insert(name, names.len());
            }
        }
        let mut rules = Vec::new();
        let mut sections = [Section::default(), Section::default()];
        let mut section = 0;
        for line in lines() {
            if line == "in subscriber" {
                section = 1;
                continue;
            }
            if let Some((_, right)) = rule(line) {
                let mut reader = Reader { tokens: tokens(right), at: 0, names: &names };
                rules.push(reader.choice("").map_err(|fault| format!("{line}: {fault}"))?);
                continue;
            }
            let (may_be_spoilt, line) = match line.strip_prefix("! ") {
                Some(rest) => (false, rest),
                None => (true, line),
            };
            let first = line.split(' ').next().unwrap_or_default();
            let (weight, rest) = match first.parse::<f64>() {
                Ok(weight) => (weight, line[first.len()..].trim()),
                Err(_) => (1.0, line),
            };
            let mut reader = Reader { tokens: tokens(rest), at: 0, names: &names };
            let items = reader.items("").map_err(|fault| format!("{line}: {fault}"))?;
            let section = &mut sections[section];
            section.sums.push(section.sums.last().unwrap_or(&0) + (weight * 100.0) as u64);
            section.lines.push(Line { items, may_be_spoilt });
        }
        let find = |name: &str| names.get(name).copied().ok_or(format!("no rule {name:?}"));
        let (junk, any_key) = (find("junk")?, find("any")?);
        let [main, subscriber] = sections;
        Ok(Grammar { rules, main, subscriber, junk, any_key, payloads })
    }

    pub(super) fn maker(&self, seed: u64) -> Maker<'_> {
        Maker { grammar: self, random: Random(seed), times: 0, count: 0 }
    }
}

/// Returns the name and the right side of a line that is a rule.
fn rule(line: &str) -> Option<(&str, &str)> {
    let (name, right) = line.split_once(" = ")?;
    (!name.contains(' ')).then_some((name, right))
}

fn tokens(text: &str) -> Vec<&str> {
    text.split(' ').filter(|token| !token.is_empty()).collect()
}

struct Reader<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    names: &'a HashMap<&'a str, usize>,
}

impl<'a> Reader<'a> {
    /// Parses alternatives up to a token that begins with `end`, which is left for the caller.
    fn choice(&mut self, end: &str) -> Result<Choice, String> {
        let mut choice = Choice::default();
        loop {
            let weight = self.tokens.get(self.at).and_then(|token| token.strip_prefix('*')?.parse().ok());
            self.at += usize::from(weight.is_some());
            choice.add(weight.unwrap_or(1), self.items(end)?);
            if self.tokens.get(self.at) != Some(&"|") {
                return Ok(choice);
            }
            self.at += 1;
        }
    }

    fn items(&mut self, end: &str) -> Result<Vec<Item>, String> {
        let mut items = Vec::new();
        while let Some(&token) = self.tokens.get(self.at) {
            let ends = !end.is_empty() && (token == end || token.starts_with(&format!("{end}{{")));
            if token == "|" || ends {
                break;
            }
            self.at += 1;
            items.push(self.item(token)?);
        }
        Ok(items)
    }

    fn item(&mut self, token: &'a str) -> Result<Item, String> {
        match token {
            "(" => {
                let choice = self.choice(")")?;
                self.close(Item::Choice(choice))
            }
            "[" => {
                let choice = self.choice("]")?;
                self.close(Item::Optional(choice))
            }
            "#(" => {
                let choice = self.choice(")")?;
                self.close(Item::Counted(Box::new(Item::Choice(choice))))
            }
            _ => match token.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
                Some((name, suffix)) => {
                    let item = match name {
                        "distinct" => Item::Distinct,
                        "small" => Item::Small,
                        "blob" => Item::Blob,
                        "float" => Item::Float,
                        "payload" => Item::Payload,
                        name => Item::Rule(*self.names.get(name).ok_or(format!("no rule {name:?}"))?),
                    };
                    repeated(item, suffix)
                }
                None => Ok(Item::Word(unescaped(token))),
            },
        }
    }

    fn close(&mut self, item: Item) -> Result<Item, String> {
        let token = self.tokens.get(self.at).ok_or("a bracket is open")?;
        self.at += 1;
        repeated(item, &token[1..])
    }
}

fn repeated(item: Item, suffix: &str) -> Result<Item, String> {
    if suffix.is_empty() {
        return Ok(item);
    }
    let inner = suffix.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).ok_or(format!("{suffix:?}"))?;
    if inner == "#" {
        return Ok(Item::Again(Box::new(item)));
    }
    let (least, most) = inner.split_once(',').ok_or(format!("{suffix:?}"))?;
    let parse = |text: &str| text.parse::<usize>().map_err(|_| format!("{suffix:?}"));
    Ok(Item::Repeat(Box::new(item), parse(least)?, parse(most)?))
}

fn unescaped(token: &str) -> Vec<u8> {
    match token {
        "\"\"" => return Vec::new(),
        "\\(" | "\\[" => return token[1..].into(),
        _ => {}
    }
    let mut word = Vec::new();
    let mut bytes = token.bytes();
    while let Some(byte) = bytes.next() {
        let escaped = if byte == b'\\' { bytes.next() } else { None };
        match escaped {
            Some(b'0') => word.push(0),
            Some(b'1') => word.push(1),
            Some(b's') => word.push(b' '),
            Some(b'n') => word.push(b'\n'),
            // Other backslashes are kept, because glob patterns contain them.
            other => word.extend(std::iter::once(byte).chain(other)),
        }
    }
    word
}

impl Maker<'_> {
    /// Returns a command for a connection that accepts every command.
    pub(super) fn command(&mut self) -> Words {
        self.from(&self.grammar.main)
    }

    /// Returns a command for the connection that subscribes.
    pub(super) fn subscription(&mut self) -> Words {
        self.from(&self.grammar.subscriber)
    }

    /// Returns a key of any type.
    pub(super) fn key(&mut self) -> Vec<u8> {
        self.rule(self.grammar.any_key)
    }

    fn rule(&mut self, rule: usize) -> Vec<u8> {
        let mut words = Vec::new();
        self.expand(&Item::Rule(rule), &mut words);
        words.swap_remove(0)
    }

    fn from(&mut self, section: &Section) -> Words {
        let sum = self.random.next() % section.sums.last().copied().unwrap_or(1);
        let line = &section.lines[section.sums.partition_point(|&end| end <= sum)];
        let mut words = Words::new();
        line.items.iter().for_each(|item| self.expand(item, &mut words));
        if line.may_be_spoilt && self.random.one_in(8) {
            self.spoil(&mut words);
        }
        self.keep_comparable(&mut words);
        words
    }

    fn expand(&mut self, item: &Item, words: &mut Words) {
        match item {
            Item::Word(word) => words.push(word.clone()),
            Item::Rule(rule) => {
                let grammar = self.grammar;
                self.choose(&grammar.rules[*rule], words);
            }
            Item::Distinct => words.push(self.distinct()),
            Item::Small => words.push(self.random.below(41).to_string().into_bytes()),
            Item::Blob => {
                let len = [0, 1, 3, 8, 20, 65, 300][self.random.below(7)];
                words.push((0..len).map(|_| self.random.next() as u8).collect());
            }
            Item::Float => {
                let (whole, part) = (self.random.below(2_000) as f64 - 1_000.0, self.random.below(100_000) as f64);
                let scale = [1e1, 1e3, 1e5, 1e9][self.random.below(4)];
                words.push(format!("{}", whole + part / scale).into_bytes());
            }
            Item::Payload => words.push(match self.grammar.payloads.len() {
                0 => Vec::new(),
                count => self.grammar.payloads[self.random.below(count)].clone(),
            }),
            Item::Choice(choice) => self.choose(choice, words),
            Item::Optional(choice) => {
                if self.random.one_in(2) {
                    self.choose(choice, words);
                }
            }
            Item::Repeat(item, least, most) => {
                for _ in 0..least + self.random.below(most - least + 1) {
                    self.expand(item, words);
                }
            }
            Item::Again(item) => (0..self.count).for_each(|_| self.expand(item, words)),
            Item::Counted(item) => {
                let at = words.len();
                self.expand(item, words);
                self.count = words.len() - at;
                let said = match self.random.below(20) {
                    0 => self.count + 1,
                    1 => self.count - 1,
                    _ => self.count,
                };
                words.insert(at, said.to_string().into_bytes());
            }
        }
    }

    fn choose(&mut self, choice: &Choice, words: &mut Words) {
        let items = choice.pick(&mut self.random);
        items.iter().for_each(|item| self.expand(item, words));
    }

    /// Returns a time to live of at least 500 s that differs by at least 500 s from every other one of the sequence,
    /// whether they are read as seconds or as milliseconds: the result of `GT` and `LT` never depends on the instant at
    /// which each program reads its clock.
    fn distinct(&mut self) -> Vec<u8> {
        self.times += 1;
        (self.times * 1_000_000 + 500_000).to_string().into_bytes()
    }

    fn spoil(&mut self, words: &mut Words) {
        let junk = self.rule(self.grammar.junk);
        let last = words.len() - 1;
        // The name is kept, and so is a container's subcommand.
        let first = 1 + usize::from(is_container(&words[0]) && last > 1);
        match self.random.below(if last < first { 1 } else { 6 }) {
            0 => words.push(junk),
            1 => drop(words.pop()),
            2 => drop(words.remove(first + self.random.below(last + 1 - first))),
            3 => {
                let (one, other) =
                    (first + self.random.below(last + 1 - first), first + self.random.below(last + 1 - first));
                words.swap(one, other);
            }
            _ => words[first + self.random.below(last + 1 - first)] = junk,
        }
    }

    /// Replaces times to live that end within the run, waits of more than a moment, and everything else that `NOT_SENT`
    /// names.
    fn keep_comparable(&mut self, words: &mut Words) {
        const SOON: i64 = 400_000;
        let name = words[0].to_ascii_uppercase();
        let relative_from = match &name[..] {
            b"EXPIRE" | b"PEXPIRE" | b"SETEX" | b"PSETEX" | b"GETEX" | b"RESTORE" => 2,
            b"SET" => 3,
            _ => usize::MAX,
        };
        for word in words.iter_mut().skip(relative_from) {
            if number(word).is_some_and(|time| (1..SOON).contains(&time)) {
                *word = self.distinct();
            }
        }
        // A key set with a time in the past is kept until it is accessed.
        for at in 3..words.len() {
            let far: &[u8] = match &words[at - 1].to_ascii_uppercase()[..] {
                b"EXAT" => b"99999999999",
                b"PXAT" => b"99999999999999",
                _ => continue,
            };
            if name == b"SET" && number(&words[at]).is_some_and(|time| time > 0 && time < 50_000_000_000) {
                words[at] = far.to_vec();
            }
        }
        if matches!(&name[..], b"LPOS" | b"LSET" | b"LINDEX" | b"LREM" | b"BITFIELD") {
            let least = words.iter_mut().filter(|word| word.starts_with(b"-922337203685477580"));
            least.for_each(|word| *word = b"-4611686018427387904".to_vec());
        }
        if name == b"BITCOUNT" && words.len() == 3 {
            words.truncate(2);
        }
        if name == b"LSET"
            && let Some(index) = words.get_mut(2)
            && number(index).is_some_and(|index| i32::try_from(index).is_err())
        {
            *index = i32::MIN.to_string().into_bytes();
        }
        let timeout = match &name[..] {
            b"BLPOP" | b"BRPOP" | b"BRPOPLPUSH" | b"BLMOVE" | b"BZPOPMIN" | b"BZPOPMAX" => words.len() - 1,
            b"BLMPOP" | b"BZMPOP" => 1,
            // The timeout of WAIT without replicas.
            b"WAIT" => 2,
            _ => usize::MAX,
        };
        if let Some(word) = words.get_mut(timeout)
            && timeout > 0
        {
            let seconds = std::str::from_utf8(word).ok().and_then(|text| text.parse::<f64>().ok());
            if seconds.is_some_and(|seconds| seconds == 0.0 && name != b"WAIT" || seconds > 0.002) {
                *word = if name == b"WAIT" { b"0".to_vec() } else { b"0.001".to_vec() };
            }
        }
        if name == b"XREAD" || name == b"XREADGROUP" {
            for at in 2..words.len() {
                let blocks = words[at - 1].eq_ignore_ascii_case(b"block");
                if blocks && number(&words[at]).is_some_and(|ms| ms == 0 || ms > 2) {
                    words[at] = b"1".to_vec();
                }
            }
        }
        let idle = match &name[..] {
            b"XCLAIM" | b"XAUTOCLAIM" | b"XPENDING" => 4,
            _ => usize::MAX,
        };
        if let Some(word) = words.get_mut(idle)
            && number(word).is_some_and(|ms| (1..500_000).contains(&ms))
        {
            // The time since a delivery is that of each program.
            *word = b"500000".to_vec();
        }
        if name == b"XADD" {
            // For `*` each program would take the time of its own clock.
            words.iter_mut().skip(2).filter(|word| word[..] == *b"*").for_each(|word| *word = b"9-*".to_vec());
        }
        if name == b"WAIT" && words.get(1).is_some_and(|count| number(count).is_some_and(|count| count > 0)) {
            words[1] = b"0".to_vec();
        }
    }
}

fn number(word: &[u8]) -> Option<i64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// Returns whether a command is a container: its subcommand is part of its name.
pub(super) fn is_container(name: &[u8]) -> bool {
    let containers: [&[u8]; 11] = [
        b"CLIENT", b"COMMAND", b"CONFIG", b"DEBUG", b"LATENCY", b"MEMORY", b"OBJECT", b"PFDEBUG", b"PUBSUB",
        b"SLOWLOG", b"XINFO",
    ];
    containers.iter().any(|container| name.eq_ignore_ascii_case(container))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str, commands: usize) -> Vec<String> {
        let text = format!("any = k\njunk = x\n{text}");
        let grammar = Grammar::read(&text, Vec::new()).expect("a grammar");
        let mut maker = grammar.maker(1);
        let mut made: Vec<String> = (0..commands)
            .map(|_| maker.command().iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" "))
            .collect();
        made.sort();
        made.dedup();
        made
    }

    #[test]
    fn rules_repeat_choose_and_count() {
        assert_eq!(made("! 1 A ( b | c ) [ d ]", 100), ["A b", "A b d", "A c", "A c d"]);
        assert_eq!(made("x = 1 | 2 3\n! 1 A <x>{1,1}", 100), ["A 1", "A 2 3"]);
        assert_eq!(made("! 1 A b{1,2}", 10), ["A b{1,2}"]);
        assert_eq!(made("! 1 A \"\" \\s|", 10), ["A   |"]);
        let counted = made("! 1 A #( k ) ( w ){#}", 100);
        assert!(counted.contains(&"A 1 k w".to_owned()) && counted.contains(&"A 2 k w".to_owned()), "{counted:?}");
    }

    #[test]
    fn nothing_hangs_on_the_clock() {
        let made = made("! 1 BLPOP k 5\n! 1 BLPOP k 0\n! 1 EXPIRE k 100\n! 1 SET k 5 EX 7", 100);
        assert!(made[0] == "BLPOP k 0.001", "{made:?}");
        assert!(made.iter().all(|line| !line.ends_with(" 100") && !line.ends_with(" 7")), "{made:?}");
        assert!(made.iter().any(|line| line.starts_with("SET k 5 EX ")), "{made:?}");
    }

    #[test]
    fn a_seed_makes_the_same_commands() {
        let grammar = Grammar::new(vec![b"payload".to_vec()]);
        let (mut one, mut other) = (grammar.maker(7), grammar.maker(7));
        for _ in 0..1_000 {
            assert_eq!(one.command(), other.command());
            assert_eq!(one.subscription(), other.subscription());
        }
    }
}
