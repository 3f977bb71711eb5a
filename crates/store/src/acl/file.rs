//! Users in files: those of `aclfile`, and the lines `user NAME RULE…` of a configuration.
//!
//! A file is read as a whole before anything changes; its errors are collected as Redis does, so that the reply to ACL
//! LOAD names all lines.

use std::collections::BTreeMap;

use super::DEFAULT;
use super::permissions::Permissions;
use super::rules::{RuleError, Setting, has_blanks, merged, up_to_nul};
use crate::Store;
use crate::config::{ConfigLine, FileError};

type Users = BTreeMap<Vec<u8>, Permissions>;

/// Returns the users of a file, or all its errors in one text.
pub(super) fn parse(path: &str, text: &[u8], setting: Setting<'_>) -> Result<Users, Vec<u8>> {
    let mut users = Users::new();
    let mut errors = Vec::new();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let number = index + 1;
        let trimmed = trim(line, b" \t\r\n");
        if trimmed.is_empty() {
            continue;
        }
        let words: Vec<&[u8]> = trimmed.split(|byte| *byte == b' ').collect();
        let [b"user", name, rules @ ..] = &words[..] else {
            let text = format!("{path}:{number} should start with user keyword followed by the username. ");
            errors.extend_from_slice(text.as_bytes());
            continue;
        };
        if has_blanks(name) {
            errors.extend_from_slice(format!("'{path}:{number}: username '").as_bytes());
            errors.extend_from_slice(up_to_nul(name));
            errors.extend_from_slice(b"' contains invalid characters. ");
            continue;
        }
        if users.contains_key(*name) {
            errors.extend_from_slice(b"WARNING: Duplicate user '");
            errors.extend_from_slice(name);
            errors.extend_from_slice(format!("' found on line {number}. ").as_bytes());
            continue;
        }
        let mut permissions = Permissions::none(setting.commands, setting.all_channels);
        match merged(rules) {
            Err(_) => {
                let text = format!("{path}:{number}: Unmatched parenthesis in selector definition.");
                errors.extend_from_slice(text.as_bytes());
            }
            Ok(rules) => apply(&rules, &mut permissions, &format!("{path}:{number}"), setting, &mut errors),
        }
        users.insert(name.to_vec(), permissions);
    }
    if errors.is_empty() {
        return Ok(users);
    }
    errors
        .extend_from_slice(b"WARNING: ACL errors detected, no change to the previously active ACL rules was performed");
    Err(errors)
}

/// Applies rules of a line, and appends its errors: all unknown commands, and the first one of another kind.
fn apply(rules: &[Vec<u8>], permissions: &mut Permissions, place: &str, setting: Setting<'_>, errors: &mut Vec<u8>) {
    let mut has_error = false;
    for rule in rules {
        let rule = trim(rule, b"\t\r\n");
        match permissions.apply(rule, setting) {
            Ok(()) => {}
            Err(error @ RuleError::Unknown) => {
                errors.extend_from_slice(format!("{place}: Error in applying operation '").as_bytes());
                errors.extend_from_slice(up_to_nul(rule));
                errors.extend_from_slice(format!("': {error}. ").as_bytes());
            }
            Err(error) => {
                if !std::mem::replace(&mut has_error, true) {
                    errors.extend_from_slice(format!("{place}: {error}. ").as_bytes());
                }
            }
        }
    }
}

fn trim<'t>(text: &'t [u8], blanks: &[u8]) -> &'t [u8] {
    let is_text = |byte: &u8| !blanks.contains(byte);
    let Some(start) = text.iter().position(is_text) else { return &[] };
    let end = text.iter().rposition(is_text).map_or(start, |last| last + 1);
    &text[start..end]
}

/// Returns the users of the lines of a configuration.
pub(super) fn configured(lines: &[ConfigLine], setting: Setting<'_>) -> Result<Users, FileError> {
    let mut users = Users::new();
    for line in lines {
        let fail = |what: &[u8], error: &dyn std::fmt::Display| FileError::Line {
            number: line.number,
            text: line.text.clone(),
            message: format!("Error in user declaration '{}': {error}", String::from_utf8_lossy(what)),
        };
        let words: Vec<&[u8]> = line.words.iter().map(Vec::as_slice).collect();
        let Some((name, rules)) = words.split_first() else { continue };
        if has_blanks(name) {
            return Err(fail(name, &"Spaces not allowed in ACL usernames"));
        }
        if users.contains_key(*name) {
            return Err(fail(name, &RuleError::Duplicate));
        }
        let merged = merged(rules).map_err(|at| fail(rules[at], &"Unmatched parenthesis in acl selector"))?;
        let mut permissions = Permissions::none(setting.commands, setting.all_channels);
        for rule in &merged {
            permissions.apply(rule, setting).map_err(|error| fail(up_to_nul(rule), &error))?;
        }
        users.insert(name.to_vec(), permissions);
    }
    Ok(users)
}

/// Arbitrary bytes as rules and as a file, for fuzzing: any error is right, a panic is not, and users that were taken
/// are shown by rules that make the same users.
pub fn fuzz_users(store: &Store, bytes: &[u8]) {
    let acl = &store.0.acl;
    let permissions = || acl.users().iter().map(|user| (user.name().to_vec(), user.permissions())).collect::<Vec<_>>();
    let line = [b"user ", DEFAULT, b" ", bytes].concat();
    for text in [bytes, &line[..]] {
        if acl.load("file", text).is_err() {
            continue;
        }
        let (before, shown) = (permissions(), acl.lines().join(&b'\n'));
        let again = acl.load("file", &shown);
        assert!(again.is_ok() && permissions() == before, "{}", shown.escape_ascii());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreOptions;

    fn check(text: &str, expected: Result<&[&str], &str>) {
        let store = Store::new(StoreOptions::default());
        let found = parse("f", text.as_bytes(), store.0.acl.setting());
        match (found, expected) {
            (Ok(users), Ok(names)) => assert!(users.keys().eq(names.iter().map(|name| name.as_bytes())), "{text}"),
            (Err(found), Err(expected)) => {
                let end = "WARNING: ACL errors detected, no change to the previously active ACL rules was performed";
                assert_eq!(String::from_utf8_lossy(&found), format!("{expected}{end}"));
            }
            (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn a_file_is_taken_as_a_whole() {
        check("", Ok(&[]));
        check("user b on nopass\n\n  user a (+get ~x) +@read \r\n", Ok(&["a", "b"]));
        check("usr a", Err("f:1 should start with user keyword followed by the username. "));
        check("user", Err("f:1 should start with user keyword followed by the username. "));
        check("user a\nuser a on", Err("WARNING: Duplicate user 'a' found on line 2. "));
        check("user a (+get", Err("f:1: Unmatched parenthesis in selector definition."));
        check(
            "user a +foo bar baz +@nix",
            Err("f:1: Error in applying operation '+foo': Unknown command or category name in ACL. \
                 f:1: Syntax error. \
                 f:1: Error in applying operation '+@nix': Unknown command or category name in ACL. "),
        );
    }

    #[test]
    fn arbitrary_rules_never_panic_and_are_shown_as_they_are() {
        let words = [
            "on",
            "off",
            "nopass",
            "resetpass",
            ">p",
            "<p",
            "#",
            "!",
            "(",
            ")",
            "(+get ~a)",
            "((",
            "clearselectors",
            "reset",
            "skip-sanitize-payload",
            "~a*",
            "%R~b",
            "%W~b",
            "%RW~c",
            "%",
            "%~",
            "%R",
            "~*",
            "allkeys",
            "resetkeys",
            "&a",
            "&*",
            "allchannels",
            "resetchannels",
            "+get",
            "-get",
            "+config|set",
            "-config|set",
            "+config",
            "-config",
            "+select|0",
            "+select|",
            "+config|get|x",
            "+@read",
            "-@read",
            "+@all",
            "-@all",
            "allcommands",
            "nocommands",
            "+@nix",
            "+nix",
            "\0",
            "on\0x",
            "~\u{fffd}",
            "~",
            "&",
            "+",
            "-",
            "+|",
            "+@",
        ];
        let store = Store::new(StoreOptions::default());
        let mut next = sluicegate_data::random::numbers(7);
        for _ in 0..3000 {
            let line: Vec<&str> = (0..next(8)).map(|_| words[next(words.len())]).collect();
            fuzz_users(&store, line.join(" ").as_bytes());
        }
        for _ in 0..1000 {
            let mut line = words.join(" ").into_bytes();
            sluicegate_data::random::damage(&mut line, 8, &mut next);
            fuzz_users(&store, &line);
        }
    }
}
