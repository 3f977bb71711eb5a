//! What a user may do: passwords, and selectors with commands, key patterns and channels.
//!
//! A value is never changed in place: a user gets another one ([`User`](super::User)). Command permissions are a bit for
//! each row of the catalogue, so a check costs one load; beside them are the rules that led to the bits, in the order in
//! which they count, because lists and files show rules. Once the rules are applied, two more bits for each row tell
//! what the user's own selector has to be asked about the command, if it allows it at all: nothing, or its keys, if they
//! are at fixed places. Nearly all commands are checked by these.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluicegate_data::glob;
use sluicegate_data::short::same;

use super::commands::Commands;
use crate::catalogue;
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
    /// The same with a text of at most eight bytes: it is compared with the first eight of a longer one as a number, of which
    /// the mask leaves the text's.
    Start {
        head: u64,
        mask: u64,
    },
    Glob,
}

impl Pattern {
    pub(super) fn new(text: &[u8]) -> Pattern {
        let is_plain = |text: &[u8]| !text.iter().any(|byte| b"*?[\\".contains(byte));
        let form = match text.split_last() {
            _ if is_plain(text) => Form::Exact,
            Some((b'*', prefix)) if is_plain(prefix) => match start_of(prefix) {
                Some((head, mask)) => Form::Start { head, mask },
                None => Form::Prefix,
            },
            _ => Form::Glob,
        };
        Pattern { text: text.into(), form }
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    #[inline(always)]
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        match (self.form, text.first_chunk()) {
            (Form::Start { head, mask }, Some(first)) => u64::from_le_bytes(*first) & mask == head,
            _ => self.matches_bytes(text),
        }
    }

    #[inline(never)]
    fn matches_bytes(&self, text: &[u8]) -> bool {
        match self.form {
            Form::Exact => same(&self.text, text),
            // As in Redis, no `*` matches an empty text.
            Form::Prefix | Form::Start { .. } => {
                let prefix = &self.text[..self.text.len() - 1];
                !text.is_empty() && text.get(..prefix.len()).is_some_and(|start| same(start, prefix))
            }
            Form::Glob => glob::matches(&self.text, text),
        }
    }
}

/// Returns a text of at most eight bytes as the lower bytes of a number, and the mask of these.
fn start_of(text: &[u8]) -> Option<(u64, u64)> {
    let mut bytes = [[0; 8]; 2];
    let [head, mask] = &mut bytes;
    head.get_mut(..text.len())?.copy_from_slice(text);
    mask[..text.len()].fill(u8::MAX);
    Some((u64::from_le_bytes(*head), u64::from_le_bytes(*mask)))
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
    /// Two bits for each row: [`ANY_WORDS`], [`ONE_KEY`], [`KEYS`], or 0. They are those of the rules once these are
    /// [settled](Self::settled).
    at_once: Box<[u64]>,
}

/// The number of rows of which one word has the bits.
const ROWS_IN_WORD: usize = 32;
/// The user's own selector allows the command, whatever its words are.
const ANY_WORDS: u64 = 1;
/// It does so if it allows the key, which is at a fixed place.
const ONE_KEY: u64 = 2;
/// The same for keys at fixed places.
const KEYS: u64 = 3;

impl Permissions {
    /// Returns those of a new user: none.
    pub(super) fn none(commands: &Commands, all_channels: bool) -> Permissions {
        Permissions {
            is_on: false,
            any_password: false,
            skips_sanitizing: false,
            passwords: Vec::new(),
            selectors: vec![Selector::new(commands, all_channels)],
            at_once: Box::default(),
        }
    }

    /// Returns these permissions once no more rules are applied, for a user.
    pub(super) fn settled(mut self, commands: &Commands) -> Arc<Permissions> {
        let own = &self.selectors[0];
        let mut bits = vec![0; commands.count().div_ceil(ROWS_IN_WORD)];
        for row in (0..commands.count() as u16).filter(|row| own.bit(*row)) {
            let spec = commands.spec(row);
            let has_channels = spec.channels != catalogue::Channels::None && !own.all_channels;
            // Commands that lead to keys that their words do not name are left to the whole check.
            if has_channels || spec.others.is_some() {
                continue;
            }
            let way = if own.all_keys || commands.has_no_keys(row) {
                ANY_WORDS
            } else {
                match commands.spans(row) {
                    [one, other] if one.is_one() && other.is_none() => ONE_KEY,
                    [one, _] if !one.is_none() => KEYS,
                    _ => 0,
                }
            };
            let row = usize::from(row);
            bits[row / ROWS_IN_WORD] |= way << (2 * (row % ROWS_IN_WORD));
        }
        self.at_once = bits.into();
        Arc::new(self)
    }

    /// Returns whether the user's own selector allows a command, as far as that is seen at once: most commands have no
    /// keys or few, at fixed places. If not, [`denies`](Self::denies) decides.
    #[inline(always)]
    pub(crate) fn allow_at_once(&self, commands: &Commands, row: u16, words: &[&[u8]]) -> bool {
        let place = usize::from(row);
        let Some(bits) = self.at_once.get(place / ROWS_IN_WORD) else { return false };
        let way = bits >> (2 * (place % ROWS_IN_WORD)) & 3;
        if way == ONE_KEY {
            return self.selectors[0].allows_one(commands.spans(row)[0], words);
        }
        way == ANY_WORDS || way == KEYS && self.selectors[0].allows_spans(commands.spans(row), words)
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
        let long = ["abcdefgh*", "abcdefghi*", "abcdefg*", "abcdefgx*", "abcdefghijk"];
        for pattern in ["", "a", "ab*", "*", "a*b", "a?", "[ab]*", "a\\*", "a\\", "**"].into_iter().chain(long) {
            let long = ["abcdefg", "abcdefgh", "abcdefghi", "abcdefghijk", "abxxxxxxx"];
            for text in ["", "a", "ab", "abc", "b", "axb", "a*", "a\\"].into_iter().chain(long) {
                let expected = glob::matches(pattern.as_bytes(), text.as_bytes());
                assert_eq!(Pattern::new(pattern.as_bytes()).matches(text.as_bytes()), expected, "{pattern} {text}");
            }
        }
    }
}
