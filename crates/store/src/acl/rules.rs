//! Rules of users: `on`, `>password`, `~keys*`, `+@read`, `(…)` for a selector. Meaning, order and errors are those of
//! Redis 7.2.
//!
//! As in Redis a word is read as a C string, up to a NUL, except passwords and patterns.

use std::fmt::Write as _;

use sha2::Digest as _;

use super::commands::{Commands, category};
use super::permissions::{Access, Digest, KeyPattern, Pattern, Permissions, Selector};
use crate::words::split;

/// The reason why a rule is refused; its text is Redis's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleError {
    Unknown,
    Syntax,
    AfterAllKeys,
    AfterAllChannels,
    NoSuchPassword,
    BadDigest,
    Duplicate,
    ArgumentOfSubcommand,
}

impl std::fmt::Display for RuleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RuleError::Unknown => "Unknown command or category name in ACL",
            RuleError::Syntax => "Syntax error",
            RuleError::AfterAllKeys => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any \
                 effect. Try 'resetkeys' to start with an empty list of patterns"
            }
            RuleError::AfterAllChannels => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any \
                 effect. Try 'resetchannels' to start with an empty list of channels"
            }
            RuleError::NoSuchPassword => "The password you are trying to remove from the user does not exist",
            RuleError::BadDigest => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
            RuleError::Duplicate => "Duplicate user found. A user can only be defined once in config files",
            RuleError::ArgumentOfSubcommand => "Allowing first-arg of a subcommand is not supported",
        })
    }
}

/// The surroundings in which rules are read.
#[derive(Clone, Copy)]
pub(super) struct Setting<'c> {
    pub(super) commands: &'c Commands,
    /// Whether a new selector allows all channels.
    pub(super) all_channels: bool,
}

/// Returns the digest of a password.
pub(crate) fn digest(password: &[u8]) -> Digest {
    let mut text = String::with_capacity(64);
    for byte in sha2::Sha256::digest(password) {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.into_bytes().try_into().expect("64 digits")
}

fn as_digest(text: &[u8]) -> Result<Digest, RuleError> {
    let digest: Digest = text.try_into().map_err(|_| RuleError::BadDigest)?;
    let is_hexadecimal = digest.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hexadecimal { Ok(digest) } else { Err(RuleError::BadDigest) }
}

/// Returns whether a text has blanks or NULs, so that a line with it could be read differently.
pub(crate) fn has_blanks(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b' ' | b'\t'..=b'\r' | 0))
}

/// Returns a text up to its first NUL.
pub(crate) fn up_to_nul(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns words in which each selector is one word; the error is the place of a parenthesis that is not closed.
pub(crate) fn merged(words: &[&[u8]]) -> Result<Vec<Vec<u8>>, usize> {
    let mut rules = Vec::with_capacity(words.len());
    let mut open: Option<(usize, Vec<u8>)> = None;
    for (at, word) in words.iter().enumerate() {
        let closes = word.last() == Some(&b')');
        open = match open.take() {
            None if word.first() == Some(&b'(') && !closes => Some((at, word.to_vec())),
            None => {
                rules.push(word.to_vec());
                None
            }
            Some((from, mut selector)) => {
                selector.push(b' ');
                selector.extend_from_slice(up_to_nul(word));
                if closes {
                    rules.push(selector);
                    None
                } else {
                    Some((from, selector))
                }
            }
        };
    }
    open.map_or(Ok(rules), |(from, _)| Err(from))
}

impl Permissions {
    /// Applies one rule.
    pub(super) fn apply(&mut self, rule: &[u8], setting: Setting<'_>) -> Result<(), RuleError> {
        let Some((first, rest)) = rule.split_first() else { return Ok(()) };
        match &up_to_nul(rule).to_ascii_lowercase()[..] {
            b"on" => self.is_on = true,
            b"off" => self.is_on = false,
            b"skip-sanitize-payload" => self.skips_sanitizing = true,
            b"sanitize-payload" => self.skips_sanitizing = false,
            b"nopass" => {
                self.any_password = true;
                self.passwords.clear();
            }
            b"resetpass" => {
                self.any_password = false;
                self.passwords.clear();
            }
            b"clearselectors" => self.selectors.truncate(1),
            b"reset" => {
                self.any_password = false;
                self.passwords.clear();
                self.is_on = false;
                self.skips_sanitizing = false;
                self.selectors = vec![Selector::new(setting.commands, setting.all_channels)];
            }
            _ => match first {
                b'>' => self.add_password(digest(rest)),
                b'#' => self.add_password(as_digest(rest)?),
                b'<' => self.remove_password(&digest(rest))?,
                b'!' => self.remove_password(&as_digest(rest)?)?,
                b'(' if rest.last() == Some(&b')') => {
                    let mut selector = Selector::new(setting.commands, setting.all_channels);
                    // Words that cannot be told apart are none.
                    for rule in split(&rest[..rest.len() - 1]).unwrap_or_default() {
                        selector.apply(&rule, setting.commands)?;
                    }
                    self.selectors.push(selector);
                }
                _ => self.selectors[0].apply(rule, setting.commands)?,
            },
        }
        Ok(())
    }

    fn add_password(&mut self, password: Digest) {
        if !self.passwords.contains(&password) {
            self.passwords.push(password);
        }
        self.any_password = false;
    }

    fn remove_password(&mut self, password: &Digest) -> Result<(), RuleError> {
        let place = self.passwords.iter().position(|known| known == password).ok_or(RuleError::NoSuchPassword)?;
        self.passwords.remove(place);
        Ok(())
    }

    /// Replaces the passwords by one, or by none that is needed: `requirepass`.
    pub(super) fn set_password(&mut self, password: &[u8]) {
        self.any_password = password.is_empty();
        self.passwords.clear();
        if !password.is_empty() {
            self.add_password(digest(password));
        }
    }
}

impl Selector {
    /// Allows all commands, also those to come.
    pub(super) fn allow_all_commands(&mut self) {
        self.set_all_commands(true);
    }

    fn set_all_commands(&mut self, allows: bool) {
        self.bits.fill(if allows { u64::MAX } else { 0 });
        self.all_commands = allows;
        self.rules.clear();
        self.first_arguments.clear();
    }

    /// Applies one rule that may also stand in parentheses.
    fn apply(&mut self, rule: &[u8], commands: &Commands) -> Result<(), RuleError> {
        let result = self.change(rule, commands);
        self.all_commands = self.bits.iter().all(|bits| *bits == u64::MAX);
        result
    }

    fn change(&mut self, rule: &[u8], commands: &Commands) -> Result<(), RuleError> {
        let text = up_to_nul(rule);
        match &text.to_ascii_lowercase()[..] {
            b"allkeys" | b"~*" => {
                self.all_keys = true;
                self.keys.clear();
            }
            b"resetkeys" => {
                self.all_keys = false;
                self.keys.clear();
            }
            b"allchannels" | b"&*" => {
                self.all_channels = true;
                self.channels.clear();
            }
            b"resetchannels" => {
                self.all_channels = false;
                self.channels.clear();
            }
            b"allcommands" | b"+@all" => self.set_all_commands(true),
            b"nocommands" | b"-@all" => self.set_all_commands(false),
            [b'~', ..] => self.add_keys(&rule[1..], Access::BOTH)?,
            [b'%', ..] => {
                if self.all_keys {
                    return Err(RuleError::AfterAllKeys);
                }
                let (access, pattern) = restricted(&rule[1..])?;
                self.add_keys(pattern, access)?;
            }
            [b'&', ..] => self.add_channel(&rule[1..])?,
            [b'+', b'@', name @ ..] => self.set_category(name, true, commands)?,
            [b'-', b'@', name @ ..] => self.set_category(name, false, commands)?,
            [b'+', name @ ..] => match name.iter().rposition(|byte| *byte == b'|') {
                Some(bar) => self.allow_part(name, bar, &text[2 + bar..], commands)?,
                None => self.set_command(name, true, commands)?,
            },
            [b'-', name @ ..] => self.set_command(name, false, commands)?,
            _ => return Err(RuleError::Syntax),
        }
        Ok(())
    }

    fn add_keys(&mut self, pattern: &[u8], access: Access) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(RuleError::AfterAllKeys);
        }
        if has_blanks(pattern) {
            return Err(RuleError::Syntax);
        }
        let pattern = Pattern::new(pattern);
        match self.keys.iter_mut().find(|known| known.pattern == pattern) {
            Some(known) => known.access = Access(known.access.0 | access.0),
            None => self.keys.push(KeyPattern { pattern, access }),
        }
        Ok(())
    }

    fn add_channel(&mut self, pattern: &[u8]) -> Result<(), RuleError> {
        if self.all_channels {
            return Err(RuleError::AfterAllChannels);
        }
        if has_blanks(pattern) {
            return Err(RuleError::Syntax);
        }
        let pattern = Pattern::new(pattern);
        if !self.channels.contains(&pattern) {
            self.channels.push(pattern);
        }
        Ok(())
    }

    /// Allows a command or takes it away, with all its subcommands.
    fn set_command(&mut self, name: &[u8], allows: bool, commands: &Commands) -> Result<(), RuleError> {
        let row = commands.find(name).ok_or(RuleError::Unknown)?;
        self.set_row(row, allows, commands);
        self.note(commands.full_name(row).as_bytes(), allows);
        Ok(())
    }

    /// Allows a subcommand, or a command with a first argument; the bar before it is at `bar`.
    fn allow_part(&mut self, name: &[u8], bar: usize, part: &[u8], commands: &Commands) -> Result<(), RuleError> {
        let row = commands.find(&name[..bar]).ok_or(RuleError::Unknown)?;
        if commands.is_subcommand(row) {
            return Err(RuleError::ArgumentOfSubcommand);
        }
        // With blanks, which Redis takes, it could not be read back from a file.
        if part.is_empty() || has_blanks(part) {
            return Err(RuleError::Syntax);
        }
        if commands.subcommands(row).is_empty() {
            let known = self.first_arguments.entry(row).or_default();
            let part = part.to_ascii_lowercase();
            if !known.contains(&part) {
                known.push(part);
            }
        } else {
            let row = commands.find(name).ok_or(RuleError::Unknown)?;
            self.set_row(row, true, commands);
        }
        self.note(name, true);
        Ok(())
    }

    fn set_category(&mut self, name: &[u8], allows: bool, commands: &Commands) -> Result<(), RuleError> {
        let category = category(name).ok_or(RuleError::Unknown)?;
        self.note(&[b"@", name].concat(), allows);
        for row in 0..commands.count() as u16 {
            if commands.is_in(row, category) {
                self.set_row(row, allows, commands);
            }
        }
        Ok(())
    }

    fn set_row(&mut self, row: u16, allows: bool, commands: &Commands) {
        self.first_arguments.remove(&row);
        for row in std::iter::once(row).chain(commands.subcommands(row)) {
            let (word, bit) = (usize::from(row) / 64, 1 << (row % 64));
            if allows {
                self.bits[word] |= bit;
            } else {
                self.bits[word] &= !bit;
            }
        }
    }

    /// Adds a rule about commands, which replaces earlier ones about the same command or its subcommands.
    fn note(&mut self, name: &[u8], allows: bool) {
        let is_same =
            |rule: &[u8]| rule[1..].strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"|"));
        self.rules.retain(|rule| !is_same(rule));
        self.rules.push([if allows { b"+" } else { b"-" }, name].concat());
    }
}

/// Reads `RW~pattern`, the rest of a rule that begins with `%`.
fn restricted(text: &[u8]) -> Result<(Access, &[u8]), RuleError> {
    let mut access = Access::NAMED;
    for (at, byte) in text.iter().enumerate() {
        let adds = match byte.to_ascii_uppercase() {
            b'R' => Access::READ,
            b'W' => Access::WRITE,
            b'~' if access != Access::NAMED => return Ok((access, &text[at + 1..])),
            _ => return Err(RuleError::Syntax),
        };
        if access.has(adds) {
            return Err(RuleError::Syntax);
        }
        access = Access(access.0 | adds.0);
    }
    // Without a pattern, as in Redis: it is empty.
    if access == Access::NAMED { Err(RuleError::Syntax) } else { Ok((access, &[])) }
}
