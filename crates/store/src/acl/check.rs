//! The check of a command: whether one of a user's selectors allows the command, all its keys and all its channels.

use super::commands::{Commands, Keys, Span};
use super::permissions::{Access, Permissions, Selector, allows};
use crate::catalogue::{Flags, Numbered};

/// The part of a command that a user lacks the permission for. Words are given by their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Denied {
    Command,
    Key(usize),
    Channel(usize),
}

impl Denied {
    /// Returns the error of a client's command, without its code.
    pub(crate) fn text(self, user: &[u8], full_name: &str) -> Vec<u8> {
        match self {
            Denied::Command => {
                [b"User ", user, b" has no permissions to run the '", full_name.as_bytes(), b"' command"].concat()
            }
            Denied::Key(_) => b"No permissions to access a key".to_vec(),
            Denied::Channel(_) => b"No permissions to access a channel".to_vec(),
        }
    }

    /// Returns the same with the key or the channel, for ACL DRYRUN.
    pub(crate) fn long_text(self, user: &[u8], full_name: &str, words: &[&[u8]]) -> Vec<u8> {
        let (at, what): (usize, &[u8]) = match self {
            Denied::Command => return self.text(user, full_name),
            Denied::Key(at) => (at, b"' key"),
            Denied::Channel(at) => (at, b"' channel"),
        };
        [b"User ", user, b" has no permissions to access the '", words[at], what].concat()
    }

    /// Returns the reason in the reply of EXEC.
    pub(crate) fn reason_in_transaction(self) -> &'static str {
        match self {
            Denied::Command => "no permission to execute the command or subcommand",
            Denied::Key(_) => "no permission to touch the specified keys",
            Denied::Channel(_) => "no permission to access one of the channels used as arguments to the command",
        }
    }
}

/// The reason why a command may not run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    Denied(Denied),
    /// It leads to keys that its words do not name, with this error.
    Others(&'static str),
}

impl Permissions {
    /// Returns why a command is not allowed, if it is not: the last key or channel that no selector allows, or the
    /// command if no selector allows it.
    pub(crate) fn denies(&self, commands: &Commands, row: Numbered, words: &[&[u8]]) -> Option<Denied> {
        if self.allow_at_once(commands, row.number, words) { None } else { self.denies_all(commands, row, words) }
    }

    fn denies_all(&self, commands: &Commands, row: Numbered, words: &[&[u8]]) -> Option<Denied> {
        let mut keys = None;
        let mut denied = Denied::Command;
        for selector in &self.selectors {
            denied = denied.max(selector.denies(commands, row, words, &mut keys)?);
        }
        Some(denied)
    }

    /// Returns why a command may not run, if it may not.
    pub(crate) fn refuses(&self, commands: &Commands, row: Numbered, words: &[&[u8]]) -> Option<Refusal> {
        if self.allow_at_once(commands, row.number, words) {
            return None;
        }
        let others = || self.denies_others(commands, row, words).map(Refusal::Others);
        self.denies_all(commands, row, words).map(Refusal::Denied).or_else(others)
    }

    /// Returns the error of a command that leads to keys that its words do not name, unless one selector allows to read
    /// every key.
    fn denies_others(&self, commands: &Commands, row: Numbered, words: &[&[u8]]) -> Option<&'static str> {
        let text = row.spec.others.and_then(|others| (others.denial)(words))?;
        (!self.read_all_keys(commands, row, words)).then_some(text)
    }

    /// Returns whether one selector allows to use a key somehow.
    pub(crate) fn allow_key(&self, key: &[u8]) -> bool {
        self.selectors.iter().any(|selector| selector.all_keys || selector.allows_key(key, Access::NAMED))
    }

    fn read_all_keys(&self, commands: &Commands, row: Numbered, words: &[&[u8]]) -> bool {
        let mut keys = None;
        self.selectors
            .iter()
            .any(|selector| selector.denies(commands, row, words, &mut keys).is_none() && selector.reads_all_keys())
    }
}

impl Selector {
    /// Returns whether it allows the key of a command that has one, at a fixed place.
    #[inline(always)]
    pub(super) fn allows_one(&self, span: Span, words: &[&[u8]]) -> bool {
        words.get(span.first()).is_some_and(|key| self.allows_key(key, span.access))
    }

    /// Returns whether it allows all keys of a command whose keys are at fixed places.
    #[inline(never)]
    pub(super) fn allows_spans(&self, spans: [Span; 2], words: &[&[u8]]) -> bool {
        let allows = |span: Span| span.all(words, |key| self.allows_key(key, span.access));
        allows(spans[0]) && (spans[1].is_none() || allows(spans[1]))
    }

    fn denies(&self, commands: &Commands, row: Numbered, words: &[&[u8]], keys: &mut Option<Keys>) -> Option<Denied> {
        let is_allowed = self.all_commands
            || self.bit(row.number)
            || row.spec.flags.has(Flags::NO_AUTH)
            || self.allows_argument(commands, row.number, words);
        if !is_allowed {
            return Some(Denied::Command);
        }
        if !self.all_keys && !commands.has_no_keys(row.number) {
            if let Some((place, access)) = commands.only_key(row.number, words) {
                if words.get(place).is_some_and(|key| !self.allows_key(key, access)) {
                    return Some(Denied::Key(place));
                }
            } else {
                let keys = keys.get_or_insert_with(|| commands.keys(row, words));
                let denied = keys.iter().find(|(place, access)| !self.allows_key(words[*place], *access));
                if let Some((place, _)) = denied {
                    return Some(Denied::Key(*place));
                }
            }
        }
        if !self.all_channels
            && let Some((mut places, is_pattern)) = commands.channels(row.spec, words.len())
        {
            let is_denied =
                |place: &usize| words.get(*place).is_some_and(|channel| !allows(&self.channels, channel, is_pattern));
            let denied = places.find(is_denied);
            return denied.map(Denied::Channel);
        }
        None
    }

    #[cold]
    fn allows_argument(&self, commands: &Commands, row: u16, words: &[&[u8]]) -> bool {
        let Some(known) = self.first_arguments.get(&row) else { return false };
        let place = if commands.is_subcommand(row) { 2 } else { 1 };
        words.get(place).is_some_and(|word| known.iter().any(|argument| argument.eq_ignore_ascii_case(word)))
    }

    #[inline(always)]
    fn allows_key(&self, key: &[u8], access: Access) -> bool {
        // A loop becomes a part of its caller, an iterator's `any` a call.
        for known in &self.keys {
            if known.access.has(access) && known.pattern.matches(key) {
                return true;
            }
        }
        false
    }

    fn reads_all_keys(&self) -> bool {
        self.all_keys || self.keys.iter().any(|key| key.access.has(Access::READ) && key.pattern.text() == b"*")
    }
}

#[cfg(test)]
mod tests {
    use crate::{Store, StoreOptions};

    /// The short check allows nothing that the whole one refuses, and decides most commands of clients.
    #[test]
    fn what_is_allowed_at_once_is_allowed() {
        let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
        let acl = &store.0.acl;
        let commands = acl.commands();
        let texts: Vec<&[u8]> = vec![b"app:1", b"app:other", b"other", b"1", b"get", b"store", b"by", b"app:*"];
        let mut at_once = 0;
        for rules in [
            "+@all ~app:*",
            "+@all %R~app:* %W~other",
            "+@all %R~* ~app:other",
            "+@read +@write -sort -del ~app:* ~1 &app:*",
            "+@all -@dangerous ~* resetchannels",
            "+get|app:1 +config|get +@keyspace ~app:* (+set ~other) (+@all %R~app:*)",
            "allcommands allkeys &news",
        ] {
            let name = rules.as_bytes();
            let rules: Vec<&[u8]> = rules.split_inclusive(')').flat_map(words_of).map(str::as_bytes).collect();
            drop(acl.set_user(name, &rules).expect("rules"));
            let permissions = acl.user(name).expect("a user").permissions();
            for number in 0..commands.count() as u16 {
                let names: Vec<&[u8]> = commands.full_name(number).split('|').map(str::as_bytes).collect();
                let row = commands.called(&names).expect("a row");
                for seed in 0..200_usize {
                    let others = (0..seed % 7).map(|at| texts[(seed * (at + 3) + at * at) % texts.len()]);
                    let words: Vec<&[u8]> = names.iter().copied().chain(others).collect();
                    if !row.spec.takes(words.len()) || !permissions.allow_at_once(commands, number, &words) {
                        continue;
                    }
                    let name = commands.full_name(number);
                    assert_eq!(permissions.denies_all(commands, row, &words), None, "{name} {words:?}");
                    assert_eq!(permissions.denies_others(commands, row, &words), None, "{name} {words:?}");
                    at_once += 1;
                }
            }
        }
        assert!(at_once > 10_000, "{at_once}");
        drop(acl.set_user(b"u", &[b"+@all", b"~app:*"]).expect("rules"));
        let permissions = acl.user(b"u").expect("a user").permissions();
        for (line, is_seen) in [
            ("GET app:1", true),
            ("SET app:1 v GET", true),
            ("MGET app:1 app:2", true),
            ("MGET app:1 other", false),
            ("MSET app:1 other app:2 other", true),
            ("RENAME app:1 app:2", true),
            ("RENAME app:1 other", false),
            ("BLPOP app:1 app:2 0", true),
            ("PING", true),
            ("SORT app:1", false),
            ("EVAL body 1 app:1", false),
            ("PUBLISH app:1 m", false),
        ] {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let row = commands.called(&words).expect("a command");
            assert_eq!(permissions.allow_at_once(commands, row.number, &words), is_seen, "{line}");
        }
    }

    /// Splits rules at blanks outside of parentheses.
    fn words_of(part: &str) -> Vec<&str> {
        match part.find('(') {
            Some(at) => part[..at].split_whitespace().chain([&part[at..]]).collect(),
            None => part.split_whitespace().collect(),
        }
    }
}
