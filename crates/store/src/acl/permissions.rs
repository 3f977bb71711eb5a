//! What a user may do: passwords, and selectors with commands, key patterns and channels.
//!
//! A value is never changed in place: a user gets another one ([`User`](super::User)). Command permissions are a bit for
//! each row of the catalogue, so a check costs one load; beside them are the rules that led to the bits, in the order in
//! which they count, because lists and files show rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluicegate_data::glob;

use super::commands::Commands;
use crate::words::quoted;

/// A digest of a password, in hexadecimal.
pub(crate) type Digest = [u8; 64];

/// An access to a key, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Access(pub(crate) u8);

impl Access {
    /// The key is named, and neither its value is read nor is it changed.
    pub(crate) const NAMED: Access = Access(0);
    /// Its value is read.
    pub(crate) const READ: Access = Access(1);
    /// It is changed.
    pub(crate) const WRITE: Access = Access(2);
    /// Both.
    pub(crate) const BOTH: Access = Access(3);

    /// Returns whether it includes the other one.
    pub(crate) const fn has(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A pattern with its most frequent forms told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: Box<[u8]>,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Without special characters.
    Exact,
    /// A text and `*`.
    Prefix,
    Glob,
}

impl Pattern {
    pub(super) fn new(text: &[u8]) -> Pattern {
        let is_plain = |text: &[u8]| !text.iter().any(|byte| b"*?[\\".contains(byte));
        let form = match text.split_last() {
            _ if is_plain(text) => Form::Exact,
            Some((b'*', prefix)) if is_plain(prefix) => Form::Prefix,
            _ => Form::Glob,
        };
        Pattern { text: text.into(), form }
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    #[inline]
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        match self.form {
            Form::Exact => *self.text == *text,
            // As in Redis, no `*` matches an empty text.
            Form::Prefix => !text.is_empty() && text.starts_with(&self.text[..self.text.len() - 1]),
            Form::Glob => glob::matches(&self.text, text),
        }
    }
}

/// A pattern of keys, and the accesses that it allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyPattern {
    pub(super) pattern: Pattern,
    pub(super) access: Access,
}

impl KeyPattern {
    /// Appends it as a rule.
    fn show(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(match self.access {
            Access::READ => b"%R~",
            Access::WRITE => b"%W~",
            _ => b"~",
        });
        out.extend_from_slice(self.pattern.text());
    }
}

/// A set of permissions, which allows a command by itself or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(super) all_keys: bool,
    pub(super) all_channels: bool,
    /// Whether it allows all commands, also those to come.
    pub(super) all_commands: bool,
    /// A bit for each row; the one after the last row means commands to come.
    pub(super) bits: Box<[u64]>,
    /// The first arguments with which commands are allowed, in lower case, by their rows.
    pub(super) first_arguments: BTreeMap<u16, Vec<Vec<u8>>>,
    pub(super) keys: Vec<KeyPattern>,
    pub(super) channels: Vec<Pattern>,
    /// The rules about commands since all or none were allowed: `+get`, `-@write`.
    pub(super) rules: Vec<Vec<u8>>,
}

impl Selector {
    /// Returns a selector that allows nothing, except all channels if that is the default.
    pub(super) fn new(commands: &Commands, all_channels: bool) -> Selector {
        Selector {
            all_keys: false,
            all_channels,
            all_commands: false,
            bits: vec![0; commands.count() / 64 + 1].into(),
            first_arguments: BTreeMap::new(),
            keys: Vec::new(),
            channels: Vec::new(),
            rules: Vec::new(),
        }
    }

    /// Returns the bit of a row.
    #[inline]
    pub(super) fn bit(&self, row: u16) -> bool {
        self.bits[usize::from(row) / 64] >> (row % 64) & 1 == 1
    }

    /// Returns whether it allows everything.
    fn is_free(&self) -> bool {
        self.all_commands && self.all_keys && self.all_channels
    }

    /// Returns the rules about commands, from none or all of them.
    pub(crate) fn command_rules(&self, commands: &Commands) -> Vec<u8> {
        let all: &[u8] = if self.bit(commands.count() as u16) { b"+@all" } else { b"-@all" };
        std::iter::once(all).chain(self.rules.iter().map(Vec::as_slice)).collect::<Vec<_>>().join(&b' ')
    }

    /// Returns the key patterns, with blanks between.
    pub(crate) fn key_rules(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let mut out = Vec::new();
        for (at, key) in self.keys.iter().enumerate() {
            if at > 0 {
                out.push(b' ');
            }
            key.show(&mut out);
        }
        out
    }

    /// Returns the patterns of channels, with blanks between.
    pub(crate) fn channel_rules(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        let channels: Vec<Vec<u8>> = self.channels.iter().map(|channel| [b"&", channel.text()].concat()).collect();
        channels.join(&b' ')
    }

    /// Returns all its rules, with blanks between.
    fn all_rules(&self, commands: &Commands) -> Vec<u8> {
        let reset: &[u8] = if self.all_channels { b"" } else { b"resetchannels" };
        let parts = [&self.key_rules()[..], reset, &self.channel_rules(), &self.command_rules(commands)];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(&b' ')
    }
}

/// What a user may do, and how it logs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Permissions {
    pub(super) is_on: bool,
    pub(super) any_password: bool,
    pub(super) skips_sanitizing: bool,
    pub(super) passwords: Vec<Digest>,
    /// The first one is the user's own.
    pub(super) selectors: Vec<Selector>,
}

impl Permissions {
    /// Returns those of a new user: none.
    pub(super) fn none(commands: &Commands, all_channels: bool) -> Permissions {
        Permissions {
            is_on: false,
            any_password: false,
            skips_sanitizing: false,
            passwords: Vec::new(),
            selectors: vec![Selector::new(commands, all_channels)],
        }
    }

    /// Returns those of the user `default` before rules change them: all, without a password.
    pub(super) fn all(commands: &Commands) -> Permissions {
        let mut all = Permissions::none(commands, true);
        all.is_on = true;
        all.any_password = true;
        all.selectors[0].all_keys = true;
        all.selectors[0].allow_all_commands();
        all
    }

    /// Returns whether it may do everything.
    pub(crate) fn are_free(&self) -> bool {
        self.selectors.iter().any(Selector::is_free)
    }

    /// Returns whether a client that sends no password is logged in.
    pub(crate) fn need_no_password(&self) -> bool {
        self.any_password && self.is_on
    }

    /// Returns whether every password is right.
    pub(crate) fn take_any_password(&self) -> bool {
        self.any_password
    }

    pub(crate) fn are_on(&self) -> bool {
        self.is_on
    }

    /// Returns whether this password, with its digest, logs in. The time depends on the number of passwords alone.
    pub(super) fn take(&self, digest: &Digest) -> bool {
        let is_same = |password: &Digest| {
            let difference = password.iter().zip(digest).fold(0, |sum, (one, other)| sum | (one ^ other));
            std::hint::black_box(difference) == 0
        };
        self.is_on && (self.any_password || self.passwords.iter().fold(false, |found, one| found | is_same(one)))
    }

    /// Returns the names of its flags, in Redis's order.
    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.is_on { "on" } else { "off" }];
        if self.any_password {
            flags.push("nopass");
        }
        flags.push(if self.skips_sanitizing { "skip-sanitize-payload" } else { "sanitize-payload" });
        flags
    }

    pub(crate) fn passwords(&self) -> &[Digest] {
        &self.passwords
    }

    /// Returns the user's own selector, and the others.
    pub(crate) fn selectors(&self) -> (&Selector, &[Selector]) {
        (&self.selectors[0], &self.selectors[1..])
    }

    /// Returns all rules, as a line of a file has them after the name.
    pub(crate) fn rules(&self, commands: &Commands) -> Vec<u8> {
        let mut out = Vec::new();
        for flag in self.flags() {
            out.extend_from_slice(flag.as_bytes());
            out.push(b' ');
        }
        for password in &self.passwords {
            out.push(b'#');
            out.extend_from_slice(password);
            out.push(b' ');
        }
        let (own, others) = self.selectors();
        out.extend_from_slice(&own.all_rules(commands));
        for selector in others {
            let rules = selector.all_rules(commands);
            let rules: Vec<Vec<u8>> = rules.split(|byte| *byte == b' ').map(in_parentheses).collect();
            out.extend([b" (", &rules.join(&b' ')[..], b")"].concat());
        }
        out
    }

    /// Returns the channels of the new permissions if they lack some that the present ones have; [`None`] if every
    /// subscription stays allowed.
    pub(super) fn lost_channels(&self, new: &Permissions) -> Option<Channels> {
        if new.selectors.iter().any(|selector| selector.all_channels) {
            return None;
        }
        let kept: Vec<Pattern> = new.selectors.iter().flat_map(|selector| selector.channels.iter().cloned()).collect();
        let is_kept = |channel: &Pattern| kept.contains(channel);
        let are_kept = |selector: &Selector| !selector.all_channels && selector.channels.iter().all(is_kept);
        (!self.selectors.iter().all(are_kept)).then(|| Channels(kept.into()))
    }
}

/// Returns a rule of a selector as one word: in quotes if it would not be read as it is.
fn in_parentheses(rule: &[u8]) -> Vec<u8> {
    let is_read = !rule.ends_with(b")") && !rule.iter().any(|byte| matches!(byte, b'"' | b'\''));
    if is_read { rule.to_vec() } else { quoted(rule) }
}

/// The channels to which clients of a user may still listen.
#[derive(Clone, Debug)]
pub(crate) struct Channels(Arc<[Pattern]>);

impl Channels {
    /// Returns whether a channel, or a pattern of channels, is among them.
    pub(crate) fn allow(&self, name: &[u8], is_pattern: bool) -> bool {
        allows(&self.0, name, is_pattern)
    }
}

/// Returns whether patterns allow a channel. A pattern of channels is compared as a text.
pub(super) fn allows(channels: &[Pattern], name: &[u8], is_pattern: bool) -> bool {
    channels.iter().any(|channel| if is_pattern { channel.text() == name } else { channel.matches(name) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_pattern_matches_as_a_glob() {
        for pattern in ["", "a", "ab*", "*", "a*b", "a?", "[ab]*", "a\\*", "a\\", "**"] {
            for text in ["", "a", "ab", "abc", "b", "axb", "a*", "a\\"] {
                let expected = glob::matches(pattern.as_bytes(), text.as_bytes());
                assert_eq!(Pattern::new(pattern.as_bytes()).matches(text.as_bytes()), expected, "{pattern} {text}");
            }
        }
    }
}
