//! ACL: information about users. There is one, `default`, with all permissions; `requirepass` is the password.

use std::fmt::Write;

use sha2::{Digest, Sha256};
use sluicegate_wire::resp::{ReplySink, ReplyWriter};

use super::dispatch::{self, About, INDEX, Outcome};

/// The one user.
const USER: &str = "default";

/// Categories of commands, in Redis's order.
const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// Returns the digests of the user's passwords, as Redis shows them.
fn passwords(about: &About<'_>) -> Option<String> {
    about.options.needs_password().then(|| {
        Sha256::digest(&about.options.requirepass).iter().fold(String::new(), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    })
}

fn strings(words: &[&str], out: &mut ReplyWriter<'_>) {
    out.array(words.len());
    words.iter().for_each(|word| out.bulk(word.as_bytes()));
}

/// `ACL WHOAMI`.
pub(super) fn whoami(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.bulk(USER.as_bytes());
    Outcome::Done
}

/// `ACL USERS`.
pub(super) fn users(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    strings(&[USER], out);
    Outcome::Done
}

/// `ACL LIST`.
pub(super) fn list(about: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let password = passwords(about).map_or("nopass".to_owned(), |digest| format!("#{digest}"));
    let rules = match about.options.needs_password() {
        true => format!("user {USER} on sanitize-payload {password} ~* &* +@all"),
        false => format!("user {USER} on {password} sanitize-payload ~* &* +@all"),
    };
    strings(&[&rules], out);
    Outcome::Done
}

/// `ACL GETUSER name`: null for a user that does not exist.
pub(super) fn getuser(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if args[2] != USER.as_bytes() {
        out.null();
        return Outcome::Done;
    }
    let password = passwords(about);
    let flags: &[&str] = match password {
        Some(_) => &["on", "sanitize-payload"],
        None => &["on", "nopass", "sanitize-payload"],
    };
    out.map(6);
    out.bulk(b"flags");
    out.set(flags.len());
    flags.iter().for_each(|flag| out.bulk(flag.as_bytes()));
    out.bulk(b"passwords");
    strings(&password.iter().map(String::as_str).collect::<Vec<_>>(), out);
    for (field, value) in [("commands", "+@all"), ("keys", "~*"), ("channels", "&*")] {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"selectors");
    out.array(0);
    Outcome::Done
}

/// `ACL CAT [category]`.
pub(super) fn cat(_: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    match args {
        [_, _] => strings(&CATEGORIES, out),
        [_, _, wanted] => {
            let wanted = wanted.to_ascii_lowercase();
            if !CATEGORIES.iter().any(|category| category.as_bytes() == wanted) {
                out.error_bytes(&[b"ERR Unknown category '", args[2], b"'"].concat());
                return Outcome::Done;
            }
            let is_in = |name: &&str| name.as_bytes()[1..] == wanted[..];
            let rows = INDEX.rows().iter().filter(|row| row.spec.acl_categories().iter().any(is_in));
            // A container stands for its commands.
            let names: Vec<&str> =
                rows.filter(|row| row.subcommands.is_empty()).map(|row| row.full_name.as_str()).collect();
            strings(&names, out);
        }
        _ => out.error("ERR unknown subcommand or wrong number of arguments for 'CAT'. Try ACL HELP."),
    }
    Outcome::Done
}

/// `ACL HELP`.
pub(super) fn help(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    dispatch::help("acl", out)
}
