//! The check of a command: whether one of a user's selectors allows the command, all its keys and all its channels.

use super::commands::{Commands, Keys};
use super::permissions::{Access, Permissions, Selector, allows};
use crate::catalogue::{Channels, Flags, Numbered};

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
    #[inline]
    pub(crate) fn denies(&self, commands: &Commands, row: Numbered, words: &[&[u8]]) -> Option<Denied> {
        // Most commands have one key, and are allowed by the user's own rules.
        if self.selectors[0].allows_simple(commands, row, words) { None } else { self.denies_all(commands, row, words) }
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
    #[inline]
    pub(crate) fn refuses(&self, commands: &Commands, row: Numbered, words: &[&[u8]]) -> Option<Refusal> {
        let others = || self.denies_others(commands, row, words).map(Refusal::Others);
        self.denies(commands, row, words).map(Refusal::Denied).or_else(others)
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
    /// Returns whether it allows a command that has at most one key, and no channel.
    #[inline]
    fn allows_simple(&self, commands: &Commands, row: Numbered, words: &[&[u8]]) -> bool {
        let allows_keys = || match commands.only_key(row.number, words) {
            Some((place, access)) => words.get(place).is_some_and(|key| self.allows_key(key, access)),
            None => commands.has_no_keys(row.number),
        };
        self.bit(row.number)
            && (self.all_keys || allows_keys())
            && (self.all_channels || row.spec.channels == Channels::None)
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

    fn allows_key(&self, key: &[u8], access: Access) -> bool {
        self.keys.iter().any(|known| known.access.has(access) && known.pattern.matches(key))
    }

    fn reads_all_keys(&self) -> bool {
        self.all_keys || self.keys.iter().any(|key| key.access.has(Access::READ) && key.pattern.text() == b"*")
    }
}
