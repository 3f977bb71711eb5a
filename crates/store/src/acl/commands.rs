//! The catalogue as rules about commands see it: full names, categories, and the keys and channels of each command.

use std::ops::Range;

use sluicegate_wire::resp::parse_i64;
use smallvec::SmallVec;

use super::permissions::Access;
use crate::catalogue::{CATEGORIES, Channels, CommandSpec, Flags, KeyFlags, Numbered, Rows};
use crate::facts::{self, Begin, Facts, Find, KeySpec};
use crate::keys::KeyRule;

/// The keys of a command: the indices of their words, with the access to each.
pub(super) type Keys = SmallVec<[(usize, Access); 4]>;

/// Where the keys of a row are.
enum Keyed {
    None,
    /// One word, whatever the others are; the access may depend on them.
    One(usize, Access, Option<KeyFlags>),
    /// Where Redis's specifications say.
    Specified {
        facts: &'static Facts,
        /// Whether these are all keys of all words that the command takes: they are at fixed places, or from there on.
        is_whole: bool,
    },
    /// Where the row says.
    Ruled,
}

/// Keys of a command at fixed places, whatever its words are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    /// The first key; 0: there are none.
    first: u8,
    /// The last one; negative: from the end.
    last: i8,
    step: u8,
    /// The access to each of them; the widest one if it depends on the words.
    pub(super) access: Access,
}

impl Span {
    fn new(first: i64, last: i64, step: i64, access: Access) -> Option<Span> {
        let (first, last, step) = (first.try_into().ok()?, last.try_into().ok()?, step.try_into().ok()?);
        Some(Span { first, last, step, access })
    }

    /// Returns the keys of a specification, if they are at fixed places.
    fn of(spec: &KeySpec) -> Option<Span> {
        let (Begin::Index(first), Find::Range(last, step @ 1.., 0)) = (spec.begin, spec.find) else { return None };
        let last = if last < 0 { last } else { first + last };
        Span::new(first, last, step, access_of(spec.flags.iter().copied()))
    }

    /// Returns whether there are no keys.
    #[inline]
    pub(super) fn is_none(self) -> bool {
        self.first == 0
    }

    /// Returns whether there is one key.
    pub(super) fn is_one(self) -> bool {
        self.first > 0 && self.first as i8 == self.last
    }

    /// Returns the place of the first key.
    #[inline]
    pub(super) fn first(self) -> usize {
        self.first.into()
    }

    /// Returns whether all keys among these words satisfy `is`, and there is one.
    pub(super) fn all(self, words: &[&[u8]], is: impl Fn(&[u8]) -> bool) -> bool {
        let first = self.first();
        let last = if self.last < 0 { words.len() as isize } else { 0 } + isize::from(self.last);
        let keys = usize::try_from(last).ok().and_then(|last| words.get(first..=last)).unwrap_or_default();
        !keys.is_empty() && keys.iter().step_by(self.step.into()).all(|key| is(key))
    }
}

/// One row.
struct Command {
    spec: &'static CommandSpec,
    full_name: String,
    /// Its categories, as bits in the order of their names.
    categories: u32,
    keyed: Keyed,
    subcommands: Range<u16>,
}

/// All rows, by their numbers.
pub(crate) struct Commands {
    rows: &'static Rows,
    commands: Vec<Command>,
    /// The keys of each row whose keys are all at fixed places.
    spans: Vec<[Span; 2]>,
}

impl Commands {
    pub(super) fn new(rows: &'static Rows) -> Commands {
        let mut commands: Vec<Command> = Vec::with_capacity(rows.count());
        let mut next = rows.commands().len();
        for spec in rows.commands() {
            let subcommands = next as u16..(next + spec.subcommands.len()) as u16;
            next = usize::from(subcommands.end);
            commands.push(Command::new(spec, spec.name.to_owned(), subcommands));
        }
        for spec in rows.commands() {
            let full_name = |sub: &CommandSpec| format!("{}|{}", spec.name, sub.name);
            commands.extend(spec.subcommands.iter().map(|sub| Command::new(sub, full_name(sub), 0..0)));
        }
        let spans = commands.iter().map(|command| command.keyed.spans().unwrap_or_default()).collect();
        Commands { rows, commands, spans }
    }

    /// Returns the number of rows.
    pub(super) fn count(&self) -> usize {
        self.commands.len()
    }

    /// Returns the number of rows that are no subcommands.
    pub(super) fn top(&self) -> u16 {
        self.rows.commands().len() as u16
    }

    /// Returns the row with a number.
    pub(super) fn spec(&self, row: u16) -> &'static CommandSpec {
        self.commands[usize::from(row)].spec
    }

    /// Returns `get`, `config|set`.
    pub(crate) fn full_name(&self, row: u16) -> &str {
        &self.commands[usize::from(row)].full_name
    }

    /// Returns the rows of a container's subcommands.
    pub(super) fn subcommands(&self, row: u16) -> Range<u16> {
        self.commands[usize::from(row)].subcommands.clone()
    }

    /// Returns whether a row is one of a subcommand.
    pub(super) fn is_subcommand(&self, row: u16) -> bool {
        row >= self.top()
    }

    /// Returns whether a row is in one of the categories with these bits.
    pub(super) fn is_in(&self, row: u16, categories: u32) -> bool {
        self.commands[usize::from(row)].categories & categories != 0
    }

    /// Returns the row with a name, or with those of a container and of its subcommand and a bar between.
    pub(super) fn find(&self, name: &[u8]) -> Option<u16> {
        let mut parts = name.split(|byte| *byte == b'|');
        let command = self.rows.find(parts.next()?)?;
        match (parts.next(), parts.next()) {
            (None, _) => Some(command.number),
            (Some(sub), None) => self.rows.subcommand(command, sub).map(|row| row.number),
            _ => None,
        }
    }

    /// Returns the command that words call.
    pub(crate) fn called(&self, words: &[&[u8]]) -> Option<Numbered> {
        let command = self.rows.find(words.first()?)?;
        match words.get(1) {
            Some(word) if !command.spec.subcommands.is_empty() => self.rows.subcommand(command, word),
            _ => Some(command),
        }
    }

    /// Returns whether a command has no keys, whatever its words are.
    #[inline]
    pub(super) fn has_no_keys(&self, row: u16) -> bool {
        matches!(self.commands[usize::from(row)].keyed, Keyed::None)
    }

    /// Returns the keys of a row whose keys are all at fixed places.
    #[inline]
    pub(super) fn spans(&self, row: u16) -> [Span; 2] {
        self.spans[usize::from(row)]
    }

    /// Returns the only key of a command that always has one.
    #[inline]
    pub(super) fn only_key(&self, row: u16, words: &[&[u8]]) -> Option<(usize, Access)> {
        match &self.commands[usize::from(row)].keyed {
            Keyed::One(place, access, None) => Some((*place, *access)),
            Keyed::One(place, access, Some(flags)) => {
                Some((*place, flags(words).map_or(*access, |flags| access_of(flags.iter().copied()))))
            }
            _ => None,
        }
    }

    /// Returns the keys of a command; none if it does not accept so many words.
    pub(super) fn keys(&self, row: Numbered, words: &[&[u8]]) -> Keys {
        if !row.spec.takes(words.len()) {
            return Keys::new();
        }
        match self.commands[usize::from(row.number)].keyed {
            Keyed::None => Keys::new(),
            Keyed::One(..) => self.only_key(row.number, words).into_iter().collect(),
            Keyed::Ruled => ruled(row.spec, words),
            Keyed::Specified { facts, is_whole } => {
                let mut keys = specified(facts, words);
                // The keys that the command uses are checked, even where the specifications do not find them.
                if !is_whole || keys.is_empty() {
                    let mut seen = vec![false; words.len()];
                    keys.iter().for_each(|(place, _)| seen[*place] = true);
                    keys.extend(ruled(row.spec, words).into_iter().filter(|(place, _)| !seen[*place]));
                }
                keys
            }
        }
    }

    /// Returns the words that are channels to be checked, and whether they are patterns of channels.
    pub(super) fn channels(&self, spec: &CommandSpec, words: usize) -> Option<(Range<usize>, bool)> {
        match spec.channels {
            Channels::None => None,
            Channels::Published => Some((1..2, false)),
            Channels::Joined => Some((1..words, false)),
            Channels::JoinedByPattern => Some((1..words, true)),
        }
    }
}

impl Keyed {
    /// Returns the keys, if all are at fixed places.
    fn spans(&self) -> Option<[Span; 2]> {
        match self {
            Keyed::One(place, access, flags) => {
                let place = *place as i64;
                let access = if flags.is_some() { Access::BOTH } else { *access };
                Some([Span::new(place, place, 1, access)?, Span::default()])
            }
            Keyed::Specified { facts, is_whole: true } => match &facts.specs[..] {
                [one] => Some([Span::of(one)?, Span::default()]),
                [one, other] => Some([Span::of(one)?, Span::of(other)?]),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Command {
    fn new(spec: &'static CommandSpec, full_name: String, subcommands: Range<u16>) -> Command {
        let keyed = match facts::of(&full_name) {
            Some(facts) if !facts.specs.is_empty() => match &facts.specs[..] {
                [KeySpec { flags, .. }] if flags.contains(&"not_key") => Keyed::None,
                [KeySpec { begin: Begin::Index(place), find: Find::Range(0, ..), flags }] => {
                    Keyed::One(*place as usize, access_of(flags.iter().copied()), spec.key_flags)
                }
                specs => Keyed::Specified {
                    facts,
                    is_whole: specs
                        .iter()
                        .all(|spec| matches!((spec.begin, spec.find), (Begin::Index(_), Find::Range(..)))),
                },
            },
            _ if spec.has_no_keys() => Keyed::None,
            _ => Keyed::Ruled,
        };
        Command { spec, full_name, categories: spec.category_bits(), keyed, subcommands }
    }
}

/// Returns the bits of a category by its name, in any case, without its `@`.
pub(crate) fn category(name: &[u8]) -> Option<u32> {
    CATEGORIES.iter().position(|known| known.as_bytes().eq_ignore_ascii_case(name)).map(|at| 1 << at)
}

/// Returns the access that the flags of a key specification mean.
fn access_of(mut flags: impl Iterator<Item = &'static str>) -> Access {
    flags.by_ref().fold(Access::NAMED, |access, flag| match flag {
        "access" => Access(access.0 | Access::READ.0),
        "insert" | "delete" | "update" => Access(access.0 | Access::WRITE.0),
        _ => access,
    })
}

/// Returns the keys where the specifications find them; none if one does not fit the words, which are left to the row
/// then. A keyword may be absent.
fn specified(facts: &Facts, words: &[&[u8]]) -> Keys {
    let mut keys = Keys::new();
    for spec in facts.specs.iter().filter(|spec| !spec.flags.contains(&"not_key")) {
        let places = spec.places(words);
        if places.is_empty() && !matches!(spec.begin, Begin::Keyword(..)) {
            return Keys::new();
        }
        let access = access_of(spec.flags.iter().copied());
        keys.extend(places.into_iter().map(|place| (place, access)));
    }
    keys
}

/// Returns the keys that the row names; none if the words have a number of keys that the command refuses. A key after
/// the first one, of a command that names its destination in an option, is written.
fn ruled(spec: &CommandSpec, words: &[&[u8]]) -> Keys {
    let writes = spec.flags.has(Flags::WRITE);
    let has_option = matches!(spec.keys, KeyRule::WithDatabase { .. });
    if let KeyRule::Counted { count, .. } = spec.keys {
        let count = count as usize;
        let number = words.get(count).and_then(|word| parse_i64(word));
        let fits =
            number.is_some_and(|number| usize::try_from(number).is_ok_and(|number| number < words.len() - count));
        if !fits {
            return Keys::new();
        }
    }
    let access = |at: usize| match (writes, has_option) {
        (false, _) => Access::READ,
        (true, true) if at == 0 => Access::READ,
        (true, true) => Access::WRITE,
        (true, false) => Access::BOTH,
    };
    let keys = spec.keys.keys(words, 0);
    keys.iter().enumerate().map(|(at, key)| (key.word as usize, access(at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Store, StoreOptions};

    #[test]
    fn every_key_that_a_command_uses_is_checked() {
        let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
        let commands = store.0.acl.commands();
        let words: Vec<&[u8]> = std::iter::repeat_n(&b"1"[..], 12).collect();
        let mut checked = 0;
        for number in 0..commands.count() as u16 {
            let Some(row) = commands.find(commands.full_name(number).as_bytes()) else { panic!("{number}") };
            assert_eq!(row, number);
            let names: Vec<&[u8]> = commands.full_name(number).split('|').map(str::as_bytes).collect();
            let row = commands.called(&names).expect("a row");
            for length in names.len()..words.len() {
                if !row.spec.takes(length) {
                    continue;
                }
                let words = &words[..length];
                let found = commands.keys(row, words);
                for (place, _) in ruled(row.spec, words) {
                    assert!(found.iter().any(|(at, _)| *at == place), "{} {length}", commands.full_name(number));
                    checked += 1;
                }
            }
        }
        assert!(checked > 1000, "{checked}");
    }

    #[test]
    fn keys_at_fixed_places_are_those_that_are_checked() {
        let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
        let commands = store.0.acl.commands();
        let words: Vec<&[u8]> = (0..12).map(|at| &b"0123456789ab"[at..=at]).collect();
        let mut found = 0;
        for number in 0..commands.count() as u16 {
            let names: Vec<&[u8]> = commands.full_name(number).split('|').map(str::as_bytes).collect();
            let row = commands.called(&names).expect("a row");
            let spans = commands.spans(number);
            for length in (names.len()..words.len()).filter(|length| !spans[0].is_none() && row.spec.takes(*length)) {
                let words = &words[..length];
                let (seen, name) = (std::cell::RefCell::new(Vec::new()), commands.full_name(number));
                let mut are_there = true;
                for span in spans.iter().filter(|span| !span.is_none()) {
                    are_there &= span.all(words, |key| {
                        seen.borrow_mut()
                            .push((words.iter().position(|word| *word == key).expect("a word"), span.access));
                        true
                    });
                }
                let keys = commands.keys(row, words);
                if are_there {
                    let places = |keys: &[(usize, Access)]| keys.iter().map(|key| key.0).collect::<Vec<_>>();
                    assert_eq!(places(&seen.borrow()), places(&keys), "{name} {length}");
                    let includes = |(own, key): (&(usize, Access), &(usize, Access))| own.1.has(key.1);
                    assert!(seen.borrow().iter().zip(&keys).all(includes), "{name} {length}");
                    found += 1;
                }
            }
        }
        assert!(found > 500, "{found}");
    }

    #[test]
    fn accesses_follow_from_the_words() {
        let check = |line: &str, expected: &[(usize, Access)]| {
            let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let row = store.0.acl.commands().called(&words).expect("a command");
            assert_eq!(store.0.acl.commands().keys(row, &words)[..], *expected, "{line}");
        };
        check("GET k", &[(1, Access::READ)]);
        check("EXISTS k", &[(1, Access::NAMED)]);
        check("SET k v", &[(1, Access::WRITE)]);
        check("SET k v GET", &[(1, Access::BOTH)]);
        check("BITFIELD k GET u8 0", &[(1, Access::READ)]);
        check("BITFIELD k SET u8 0 1", &[(1, Access::BOTH)]);
        check("BITFIELD k nonsense", &[(1, Access::BOTH)]);
        check("PFMERGE k", &[(1, Access::BOTH)]);
        check("COPY a b", &[(1, Access::READ), (2, Access::WRITE)]);
        check("SORT a STORE b", &[(1, Access::READ), (3, Access::WRITE)]);
        check("GEORADIUS a 0 0 1 m STORE b", &[(1, Access::READ), (7, Access::WRITE)]);
        check("ZUNIONSTORE d 2 a b", &[(1, Access::WRITE), (3, Access::READ), (4, Access::READ)]);
        check("EVAL body 1 k x", &[(3, Access::BOTH)]);
        check("EVAL body 9 k x", &[]);
        check("XREAD STREAMS a b 0 0", &[(2, Access::READ), (3, Access::READ)]);
        check("PUBLISH c m", &[]);
        check("SSUBSCRIBE c", &[]);
    }
}
