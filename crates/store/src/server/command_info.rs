//! COMMAND: the catalogue, for clients.

use sluicegate_wire::resp::{ReplySink, ReplyWriter};

use super::dispatch::{self, Context, INDEX, Outcome, Row};
use crate::catalogue::Flags;
use crate::glob;
use crate::keys::KeyRule;

/// `COMMAND`.
pub(super) fn all(_: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.array(INDEX.top().len());
    INDEX.top().iter().for_each(|row| describe(row, out));
    Outcome::Done
}

/// `COMMAND COUNT`.
pub(super) fn count(_: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.integer(INDEX.top().len() as i64);
    Outcome::Done
}

/// `COMMAND HELP`.
pub(super) fn help(_: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    dispatch::help("command", out)
}

/// `COMMAND INFO [name…]`: a null for each name that doesn't exist.
pub(super) fn info(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let [_, _, names @ ..] = args else { return Outcome::Done };
    if names.is_empty() {
        return all(context, args, out);
    }
    out.array(names.len());
    for name in names {
        match INDEX.find_full(name) {
            Some(row) => describe(row, out),
            None => out.null(),
        }
    }
    Outcome::Done
}

fn describe(row: &Row, out: &mut ReplyWriter<'_>) {
    let spec = row.spec;
    out.array(10);
    out.bulk(row.full_name.as_bytes());
    out.integer(spec.arity.into());
    let flags: Vec<&str> = spec.flags.names().collect();
    statuses(&flags, out);
    let (first, last, step) = spec.key_positions();
    out.integer(first);
    out.integer(last);
    out.integer(step);
    statuses(&spec.acl_categories(), out);
    out.set(0); // tips: for routers in front of a cluster
    key_specs(row, out);
    let subcommands = INDEX.subcommands(row);
    out.set(subcommands.len());
    subcommands.iter().for_each(|row| describe(row, out));
}

fn statuses(words: &[&str], out: &mut ReplyWriter<'_>) {
    out.set(words.len());
    words.iter().for_each(|word| out.simple(word));
}

/// Where the keys stand, in the form of Redis 7.
fn key_specs(row: &Row, out: &mut ReplyWriter<'_>) {
    if matches!(row.spec.keys, KeyRule::None) {
        return out.set(0);
    }
    let (first, last, step) = row.spec.key_positions();
    out.set(1);
    out.map(3);
    out.bulk(b"flags");
    let flags: &[&str] = match row.spec.keys {
        KeyRule::Channels { .. } => &["not_key"],
        _ if row.spec.flags.has(Flags::WRITE) => &["RW", "access", "update"],
        _ if row.spec.group == "transactions" => &["RO"],
        _ => &["RO", "access"],
    };
    statuses(flags, out);
    out.bulk(b"begin_search");
    map_of_type("index", &[("index", first)], out);
    out.bulk(b"find_keys");
    // Here the last key is counted from the first one, unless it is counted from the end.
    let last = if last > 0 { last - first } else { last };
    map_of_type("range", &[("lastkey", last), ("keystep", step), ("limit", 0)], out);
}

fn map_of_type(name: &str, spec: &[(&str, i64)], out: &mut ReplyWriter<'_>) {
    out.map(2);
    out.bulk(b"type");
    out.bulk(name.as_bytes());
    out.bulk(b"spec");
    out.map(spec.len());
    for (field, value) in spec {
        out.bulk(field.as_bytes());
        out.integer(*value);
    }
}

/// `COMMAND DOCS [name…]`: names that don't exist are left out.
pub(super) fn docs(_: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let rows: Vec<&Row> = match &args[2..] {
        [] => INDEX.top().iter().collect(),
        names => names.iter().filter_map(|name| INDEX.find_full(name)).collect(),
    };
    out.map(rows.len());
    rows.into_iter().for_each(|row| document(row, out));
    Outcome::Done
}

fn document(row: &Row, out: &mut ReplyWriter<'_>) {
    let subcommands = INDEX.subcommands(row);
    out.bulk(row.full_name.as_bytes());
    out.map(4 + usize::from(!subcommands.is_empty()));
    let spec = row.spec;
    for (field, value) in
        [("summary", spec.summary), ("since", spec.since), ("group", spec.group), ("complexity", spec.complexity)]
    {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    if !subcommands.is_empty() {
        out.bulk(b"subcommands");
        out.map(subcommands.len());
        subcommands.iter().for_each(|row| document(row, out));
    }
}

/// `COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN pattern]`, commands of containers included.
pub(super) fn list(_: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let wanted: Box<dyn Fn(&Row) -> bool> = match &args[2..] {
        [] => Box::new(|_| true),
        [filter, kind, value] if filter.eq_ignore_ascii_case(b"filterby") => {
            let value = value.to_ascii_lowercase();
            match &kind.to_ascii_lowercase()[..] {
                b"module" => Box::new(|_| false),
                b"aclcat" => Box::new(move |row| {
                    row.spec.acl_categories().iter().any(|category| category.as_bytes()[1..] == value[..])
                }),
                b"pattern" => Box::new(move |row| glob::matches(&value, row.full_name.as_bytes())),
                _ => {
                    out.error("ERR syntax error");
                    return Outcome::Done;
                }
            }
        }
        _ => {
            out.error("ERR syntax error");
            return Outcome::Done;
        }
    };
    let names: Vec<&str> = INDEX.rows().iter().filter(|row| wanted(row)).map(|row| row.full_name.as_str()).collect();
    out.set(names.len());
    names.iter().for_each(|name| out.bulk(name.as_bytes()));
    Outcome::Done
}

/// `COMMAND GETKEYS command argument…`.
pub(super) fn getkeys(_: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let words = &args[2..];
    let mut row = INDEX.find_full(words[0]);
    if let (Some(container), Some(name)) = (row, words.get(1))
        && !container.subcommands.is_empty()
    {
        row = INDEX.subcommands(container).iter().find(|row| row.spec.name.as_bytes().eq_ignore_ascii_case(name));
    }
    match row.map(|row| row.spec) {
        None => out.error("ERR Invalid command specified"),
        Some(spec) if matches!(spec.keys, KeyRule::None | KeyRule::Channels { .. }) => {
            out.error("ERR The command has no key arguments")
        }
        Some(spec) if !spec.takes(words.len()) => {
            out.error("ERR Invalid number of arguments specified for command");
        }
        Some(spec) => {
            let keys = spec.keys.keys(words, 0);
            out.array(keys.len());
            keys.iter().for_each(|key| out.bulk(words[key.word as usize]));
        }
    }
    Outcome::Done
}
