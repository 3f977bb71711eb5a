//! The manual's page of commands and parameters, made from the two catalogues.

use std::fmt::Write;

use crate::catalogue::{self, CommandSpec};
use crate::config::{FIXED, PARAMETERS, REFUSED, ServerOptions};

const HEAD: &str = "\
# Store commands and parameters

What the embedded store answers, over RESP and as a function. Commands, replies and error texts are Redis 7's; what is \
not listed is answered as an unknown command. `arity` counts the words with the command's name; a negative one is the \
least number. `COMMAND DOCS` says the same at run time.

This page is made from the catalogues (`crates/store`); a test keeps them in step.

## Commands

| command | group | arity | flags | |
|---|---|---|---|---|
";

const PARAMETERS_HEAD: &str = "
## Parameters

Keywords of a `store` section, and parameters of `CONFIG GET` and `CONFIG SET`. Those that act:

| parameter | default | `CONFIG SET` | |
|---|---|---|---|
";

const FIXED_HEAD: &str = "
Those that can be read, and set to nothing but what they are:

| parameter | value | why |
|---|---|---|
";

const REFUSED_HEAD: &str = "
Redis's other parameters are refused with a reason:

";

/// `docs/reference/commands.md`.
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    let mut rows: Vec<&CommandSpec> = catalogue::all().collect();
    rows.sort_unstable_by_key(|row| row.name);
    for row in rows {
        command(&mut page, "", row);
        let mut subcommands: Vec<&CommandSpec> = row.subcommands.iter().collect();
        subcommands.sort_unstable_by_key(|row| row.name);
        subcommands.into_iter().for_each(|sub| command(&mut page, &format!("{} ", row.name), sub));
    }
    page += PARAMETERS_HEAD;
    let defaults = ServerOptions::default();
    for parameter in PARAMETERS {
        let value = defaults.get(parameter.name).unwrap_or_default();
        let live = if parameter.live { "at once" } else { "no, only in the file" };
        line(&mut page, parameter.name, &[&quoted(&String::from_utf8_lossy(&value)), live, parameter.docs]);
    }
    page += FIXED_HEAD;
    for fixed in FIXED {
        line(&mut page, fixed.name, &[&quoted(fixed.value), fixed.why]);
    }
    page += REFUSED_HEAD;
    let mut reasons: Vec<&str> = REFUSED.iter().map(|refused| refused.1).collect();
    reasons.sort_unstable();
    reasons.dedup();
    for reason in reasons {
        let names: Vec<String> =
            REFUSED.iter().filter(|refused| refused.1 == reason).map(|refused| quoted(refused.0)).collect();
        let _ = writeln!(page, "- {reason}: {}", names.join(", "));
    }
    page
}

fn command(page: &mut String, container: &str, row: &CommandSpec) {
    let flags: Vec<&str> = row.flags.names().collect();
    let name = format!("{container}{}", row.name);
    line(page, &name, &[row.group, &row.arity.to_string(), &flags.join(", "), row.summary]);
}

fn line(page: &mut String, name: &str, cells: &[&str]) {
    // Writing to a string cannot fail.
    let _ = writeln!(page, "| `{name}` | {} |", cells.join(" | "));
}

fn quoted(value: &str) -> String {
    if value.is_empty() { "empty".to_owned() } else { format!("`{value}`") }
}
