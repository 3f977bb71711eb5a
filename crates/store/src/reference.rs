//! The manual's page of commands and parameters, made from the two catalogues.

use std::fmt::Write;

use crate::catalogue::CommandSpec;
use crate::config::{ALIASES, FIXED, IDLE, PARAMETERS, PROCESS, REFUSED, ServerOptions};
use crate::{commands, redis, syntax};

const HEAD: &str = "\
# Store commands and parameters

What the embedded store answers, over RESP and as a function. Commands, replies and error texts are Redis 7's. `arity` counts the words with the command's name; a negative one is the \
least number. `COMMAND DOCS` says the same at run time.

This page is made from the catalogues (`crates/store`); a test keeps them in step.

## Commands

| command | arguments | group | arity | flags | |
|---|---|---|---|---|---|
";

const REDIS_HEAD: &str = "
## Every command of Redis 7.2

*yes*: as in Redis; *differs*: how; *no*: why. A command that is not here is answered as an unknown one, with the reason.
[Where replies differ](differences.md) from those of Debian's redis-server is known by random commands to both.

| command | here | |
|---|---|---|
";

const OWN_HEAD: &str = "
Commands here that Redis 7.2 has not: ";

const PARAMETERS_HEAD: &str = "
## Parameters

Keywords of a `store` section, and parameters of `CONFIG GET` and `CONFIG SET`. Those that act:

| parameter | default | `CONFIG SET` | |
|---|---|---|---|
";

const PROCESS_HEAD: &str = "
`maxmemory` bounds data, scripts and what clients have: their buffers, commands queued by MULTI, watched keys, subscriptions \
and unread messages. Where keys are evicted, half of it is data's: what clients and scripts have pushes out keys up to the \
other half. Beyond that, and where no key may be evicted, commands between MULTI and EXEC are refused while memory is full, \
and the largest clients are closed once it is exceeded by a twentieth or 8 MiB, except those with `CLIENT NO-EVICT ON`. \
Redis closes clients by `maxmemory-clients` alone, and evicts all keys for one client's sake.

Those of the process, where the store stands alone (`sluicegate store`, or called as `redis-server`); a `store` section \
refuses them, with what to write instead:

| parameter | default | `CONFIG SET` | |
|---|---|---|---|
";

const IDLE_HEAD: &str = "
Those of what is not there. A redis.conf may have them, as they change nothing in Redis either while that is off; \
`CONFIG GET` shows them. `CONFIG SET` takes these, too, which change nothing:

";

const FIRM_HEAD: &str = "
`CONFIG SET` refuses to change these, as somebody might rely on them:

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
    let mut rows: Vec<&CommandSpec> = commands::all().collect();
    rows.sort_unstable_by_key(|row| row.name);
    for row in rows {
        command(&mut page, "", row);
        let mut subcommands: Vec<&CommandSpec> = row.subcommands.iter().collect();
        subcommands.sort_unstable_by_key(|row| row.name);
        subcommands.into_iter().for_each(|sub| command(&mut page, &format!("{} ", row.name), sub));
    }
    every_command_of_redis(&mut page);
    page += PARAMETERS_HEAD;
    let defaults = ServerOptions::default();
    for parameter in PARAMETERS {
        let value = defaults.get(parameter.name).unwrap_or_default();
        let live = if parameter.live { "at once" } else { "no, only in the file" };
        line(&mut page, parameter.name, &[&quoted(&String::from_utf8_lossy(&value)), live, parameter.docs]);
    }
    page += PROCESS_HEAD;
    let alone = ServerOptions { standalone: true, ..ServerOptions::default() };
    for parameter in PROCESS {
        let value = alone.get(parameter.name).unwrap_or_default();
        let live = if parameter.live { "at once" } else { "no, only at start" };
        line(&mut page, parameter.name, &[&quoted(&String::from_utf8_lossy(&value)), live, parameter.docs]);
    }
    page += FIXED_HEAD;
    for fixed in FIXED {
        line(&mut page, fixed.name, &[&quoted(fixed.value), fixed.why]);
    }
    page += IDLE_HEAD;
    let idle = |is_hint: bool| -> Vec<(&str, &str)> {
        IDLE.iter().filter(|idle| idle.is_hint == is_hint).map(|idle| (idle.name, idle.why)).collect()
    };
    by_reason(&mut page, &idle(true));
    page += FIRM_HEAD;
    by_reason(&mut page, &idle(false));
    page += REFUSED_HEAD;
    by_reason(&mut page, REFUSED);
    let aliases: Vec<String> = ALIASES.iter().map(|(old, new)| format!("`{old}` is `{new}`")).collect();
    let _ = writeln!(page, "\nRedis's older names are known: {}.", aliases.join(", "));
    page
}

/// Whether each command of Redis is here, and which ones Redis has not.
fn every_command_of_redis(page: &mut String) {
    let mut own: Vec<String> = Vec::new();
    for row in commands::all() {
        own.push(row.name.to_owned());
        own.extend(row.subcommands.iter().map(|sub| format!("{}|{}", row.name, sub.name)));
    }
    *page += REDIS_HEAD;
    for name in redis::names() {
        let difference = redis::DIFFERENCES.iter().find(|row| row.0 == name).map(|row| row.1);
        let cells = match (own.iter().any(|known| known == name), difference) {
            (true, None) => ["yes", ""],
            (true, Some(how)) => ["differs", how],
            (false, _) => ["no", redis::reason(name).unwrap_or_default()],
        };
        // Plain names: rows in code style are those of the catalogues, each of which a test must name.
        let _ = writeln!(page, "| {} | {} |", name.replace('|', " "), cells.join(" | "));
    }
    own.retain(|name| !redis::names().any(|known| known == name));
    own.sort_unstable();
    *page += OWN_HEAD;
    let own: Vec<String> = own.iter().map(|name| quoted(&name.replace('|', " "))).collect();
    let _ = writeln!(page, "{}.", if own.is_empty() { "none".to_owned() } else { own.join(", ") });
}

/// A line for each reason with the names it stands for.
fn by_reason(page: &mut String, rows: &[(&str, &str)]) {
    let mut reasons: Vec<&str> = rows.iter().map(|row| row.1).collect();
    reasons.sort_unstable();
    reasons.dedup();
    for reason in reasons {
        let names: Vec<String> = rows.iter().filter(|row| row.1 == reason).map(|row| quoted(row.0)).collect();
        let _ = writeln!(page, "- {reason}: {}", names.join(", "));
    }
}

fn command(page: &mut String, container: &str, row: &CommandSpec) {
    let flags: Vec<&str> = row.flags.names().collect();
    let name = format!("{container}{}", row.name);
    let arguments = syntax::written(syntax::of(&name.replace(' ', "|"))).replace('|', "\\|");
    let arguments = if arguments.is_empty() { arguments } else { format!("`{arguments}`") };
    line(page, &name, &[&arguments, row.group, &row.arity.to_string(), &flags.join(", "), row.summary]);
}

fn line(page: &mut String, name: &str, cells: &[&str]) {
    // Writing to a string cannot fail.
    let _ = writeln!(page, "| `{name}` | {} |", cells.join(" | "));
}

fn quoted(value: &str) -> String {
    if value.is_empty() { "empty".to_owned() } else { format!("`{value}`") }
}
