//! The reference page of commands and parameters, generated from the two catalogues.

use std::fmt::Write;

use crate::catalogue::CommandSpec;
use crate::config::{ALIASES, FIXED, IDLE, PARAMETERS, PROCESS, ServerOptions};
use crate::{commands, redis, syntax};

const HEAD: &str = "\
# Store commands and parameters

The commands and parameters of the embedded store, over RESP and for rules and scripts. Commands, replies and error texts \
are those of Redis 7. `arity` is the number of words including the command's name; a negative one is a minimum. \
`COMMAND DOCS` returns the same at run time.

This page is generated from the catalogues (`crates/store`); a test compares them.

## Commands

| command | arguments | group | arity | flags | |
|---|---|---|---|---|---|
";

const REDIS_HEAD: &str = "
## Every command of Redis 7.2

*yes*: as in Redis; *differs*: with the difference; *no*: with the reason. A missing command is answered as an unknown
command, with the reason. Random commands to both programs establish [where replies differ](differences.md).

| command | here | |
|---|---|---|
";

const OWN_HEAD: &str = "
Commands that Redis 7.2 does not have: ";

const PARAMETERS_HEAD: &str = "
## Parameters

Keywords of a `store` section, and parameters of `CONFIG GET` and `CONFIG SET`. Those with an effect:

| parameter | default | `CONFIG SET` | |
|---|---|---|---|
";

const PROCESS_HEAD: &str = "
`maxmemory` limits the memory of data, scripts and clients: their buffers, commands queued by MULTI, watched keys, \
subscriptions and unread messages. With an eviction policy, half of it is reserved for data: memory of clients and scripts \
causes eviction only up to the other half. Beyond that, and without an eviction policy, commands between MULTI and EXEC are \
refused while memory is full, and the largest clients are closed once the limit is exceeded by a twentieth or 8 MiB, except \
those with `CLIENT NO-EVICT ON`. Redis closes clients only by `maxmemory-clients`, and may evict all keys because of one client.

Parameters of the process, for a store without the proxy (`sluicegate store`, or called as `redis-server`); a `store` \
section refuses them and names the alternative:

| parameter | default | `CONFIG SET` | |
|---|---|---|---|
";

const IDLE_HEAD: &str = "
Parameters of missing features. A redis.conf may contain them, since in Redis, too, they have no effect while the feature is \
off; `CONFIG GET` shows them. `CONFIG SET` accepts these, without effect:

";

const FIRM_HEAD: &str = "
`CONFIG SET` refuses to change these, because a user might rely on their effect:

";

const FIXED_HEAD: &str = "
Parameters that can be read, and set to their present value only:

| parameter | value | why |
|---|---|---|
";

/// Returns the text of `docs/reference/commands.md`.
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
        let live = if parameter.live { "immediately" } else { "no, only in the file" };
        line(&mut page, parameter.name, &[&quoted(&String::from_utf8_lossy(&value)), live, parameter.docs]);
    }
    page += PROCESS_HEAD;
    let alone = ServerOptions { standalone: true, ..ServerOptions::default() };
    for parameter in PROCESS {
        let value = alone.get(parameter.name).unwrap_or_default();
        let live = if parameter.live { "immediately" } else { "no, only at start" };
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
    let aliases: Vec<String> = ALIASES.iter().map(|(old, new)| format!("`{old}` for `{new}`")).collect();
    let _ = writeln!(page, "\nOlder names of Redis, and those of Valkey 8, are accepted: {}.", aliases.join(", "));
    page
}

/// Writes the table of Redis's commands, then the commands that Redis does not have.
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

/// Writes a line for each reason with its names.
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
