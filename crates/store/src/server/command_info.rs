//! COMMAND: the catalogue, for clients.

use sluicegate_data::glob;
use sluicegate_wire::resp::{ReplySink, ReplyWriter, parse_i64};

use super::dispatch::{self, About, INDEX, Outcome, Row};
use crate::catalogue::Flags;
use crate::facts::{self, Begin, Find};
use crate::keys::KeyRule;
use crate::syntax::{self, Argument, Kind};

/// `COMMAND`.
pub(super) fn all(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let rows = INDEX.top();
    out.array(rows.len());
    rows.into_iter().for_each(|row| describe(row, out));
    Outcome::Done
}

/// `COMMAND COUNT`.
pub(super) fn count(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.integer(INDEX.top().len() as i64);
    Outcome::Done
}

/// `COMMAND HELP`.
pub(super) fn help(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    dispatch::help("command", out)
}

/// `COMMAND INFO [name…]`: a null for each name that doesn't exist.
pub(super) fn info(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let [_, _, names @ ..] = args else { return Outcome::Done };
    if names.is_empty() {
        return all(about, args, out);
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
    let categories: Vec<String> = spec.acl_categories().map(|name| format!("@{name}")).collect();
    out.set(categories.len());
    categories.iter().for_each(|name| out.simple(name));
    let tips = facts::of(&row.full_name).map_or(&[][..], |facts| &facts.tips);
    out.set(tips.len());
    tips.iter().for_each(|tip| out.bulk(tip.as_bytes()));
    key_specs(row, out);
    let subcommands = INDEX.subcommands(row);
    out.set(subcommands.len());
    subcommands.iter().for_each(|row| describe(row, out));
}

fn statuses(words: &[&str], out: &mut ReplyWriter<'_>) {
    out.set(words.len());
    words.iter().for_each(|word| out.simple(word));
}

/// Writes the key positions in the form of Redis 7: from its facts, or from the row for commands that Redis does not
/// have.
fn key_specs(row: &Row, out: &mut ReplyWriter<'_>) {
    let Some(facts) = facts::of(&row.full_name).filter(|facts| !facts.specs.is_empty()) else {
        return derived_key_specs(row, out);
    };
    out.set(facts.specs.len());
    for spec in &facts.specs {
        out.map(3);
        out.bulk(b"flags");
        statuses(&spec.flags, out);
        out.bulk(b"begin_search");
        match spec.begin {
            Begin::Index(index) => map_of_type("index", &[("index", index)], out),
            Begin::Keyword(word, from) => {
                out.map(2);
                out.bulk(b"type");
                out.bulk(b"keyword");
                out.bulk(b"spec");
                out.map(2);
                out.bulk(b"keyword");
                out.bulk(word.as_bytes());
                out.bulk(b"startfrom");
                out.integer(from);
            }
            Begin::Unknown => map_of_type("unknown", &[], out),
        }
        out.bulk(b"find_keys");
        match spec.find {
            Find::Range(last, step, limit) => {
                map_of_type("range", &[("lastkey", last), ("keystep", step), ("limit", limit)], out);
            }
            Find::Counted(number, first, step) => {
                map_of_type("keynum", &[("keynumidx", number), ("firstkey", first), ("keystep", step)], out);
            }
            Find::Unknown => map_of_type("unknown", &[], out),
        }
    }
}

/// Like [`key_specs`], for commands that only this store has.
fn derived_key_specs(row: &Row, out: &mut ReplyWriter<'_>) {
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
pub(super) fn docs(_: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let rows: Vec<&Row> = match &args[2..] {
        [] => INDEX.top(),
        names => names.iter().filter_map(|name| INDEX.find_full(name)).collect(),
    };
    out.map(rows.len());
    rows.into_iter().for_each(|row| document(row, out));
    Outcome::Done
}

fn document(row: &Row, out: &mut ReplyWriter<'_>) {
    let subcommands = INDEX.subcommands(row);
    out.bulk(row.full_name.as_bytes());
    let all = syntax::of(&row.full_name);
    let (flag, replaced) = (facts::doc_flag(&row.full_name), facts::replaced(&row.full_name));
    let optional = [flag.is_some(), !all.is_empty(), !subcommands.is_empty()];
    out.map(4 + optional.iter().filter(|is_there| **is_there).count() + if replaced.is_some() { 2 } else { 0 });
    let spec = row.spec;
    for (field, value) in
        [("summary", spec.summary), ("since", spec.since), ("group", spec.group), ("complexity", spec.complexity)]
    {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    if let Some(flag) = flag {
        out.bulk(b"doc_flags");
        statuses(&[flag], out);
    }
    if let Some((since, by)) = replaced {
        for (field, value) in [("deprecated_since", since), ("replaced_by", by)] {
            out.bulk(field.as_bytes());
            out.bulk(value.as_bytes());
        }
    }
    if !all.is_empty() {
        out.bulk(b"arguments");
        arguments(all, out);
    }
    if !subcommands.is_empty() {
        out.bulk(b"subcommands");
        out.map(subcommands.len());
        subcommands.iter().for_each(|row| document(row, out));
    }
}

fn arguments(all: &[Argument], out: &mut ReplyWriter<'_>) {
    out.array(all.len());
    for argument in all {
        let inner = argument.kind.inner();
        let key = match argument.kind {
            Kind::Key(spec) => Some(spec),
            Kind::Pattern(spec) => spec,
            _ => None,
        };
        let flags: Vec<&str> = [
            (argument.is_optional, "optional"),
            (argument.is_multiple, "multiple"),
            (argument.repeats_token, "multiple_token"),
        ]
        .iter()
        .filter_map(|(is_set, name)| is_set.then_some(*name))
        .collect();
        let fields = [inner.is_empty(), key.is_some(), argument.token.is_some(), !flags.is_empty(), !inner.is_empty()];
        out.map(2 + fields.iter().filter(|is_there| **is_there).count());
        let mut text = |field: &str, value: &str| {
            out.bulk(field.as_bytes());
            out.bulk(value.as_bytes());
        };
        text("name", &argument.name);
        text("type", argument.kind.name());
        if inner.is_empty() {
            text("display_text", &argument.name);
        }
        if let Some(spec) = key {
            out.bulk(b"key_spec_index");
            out.integer(i64::from(spec));
        }
        if let Some(token) = argument.token {
            out.bulk(b"token");
            out.bulk(token.as_bytes());
        }
        if !flags.is_empty() {
            out.bulk(b"flags");
            out.set(flags.len());
            flags.iter().for_each(|flag| out.simple(flag));
        }
        if !inner.is_empty() {
            out.bulk(b"arguments");
            arguments(inner, out);
        }
    }
}

/// `COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN pattern]`, commands of containers included.
pub(super) fn list(_: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let wanted: Box<dyn Fn(&Row) -> bool> = match &args[2..] {
        [] => Box::new(|_| true),
        [filter, kind, value] if filter.eq_ignore_ascii_case(b"filterby") => {
            let value = value.to_ascii_lowercase();
            match &kind.to_ascii_lowercase()[..] {
                b"module" => Box::new(|_| false),
                b"aclcat" => {
                    Box::new(move |row| row.spec.acl_categories().any(|category| category.as_bytes() == value))
                }
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
    let top = INDEX.top();
    let rows = top.iter().copied().chain(top.iter().flat_map(|row| INDEX.subcommands(row)));
    let names: Vec<&str> = rows.filter(|row| wanted(row)).map(|row| row.full_name.as_str()).collect();
    out.array(names.len());
    names.iter().for_each(|name| out.bulk(name.as_bytes()));
    Outcome::Done
}

/// Returns the row of a command with its words, and the positions of its keys, or Redis's error.
fn find_keys(words: &[&[u8]]) -> Result<(&'static Row, Vec<usize>), &'static str> {
    let mut at = INDEX.find(words[0]);
    if let (Some(container), Some(name)) = (at, words.get(1))
        && !INDEX.rows()[usize::from(container)].subcommands.is_empty()
    {
        at = INDEX.subcommand(container, name);
    }
    let row = &INDEX.rows()[usize::from(at.ok_or("ERR Invalid command specified")?)];
    if row.spec.has_no_keys() {
        return Err("ERR The command has no key arguments");
    }
    if !row.spec.takes(words.len()) {
        return Err("ERR Invalid number of arguments specified for command");
    }
    if let KeyRule::Counted { count, destination } = row.spec.keys {
        let places = counted_keys(words, count as usize, destination);
        let may_be_none = row.spec.flags.has(Flags::NO_MANDATORY_KEYS);
        let is_wrong = places.is_empty() && !may_be_none;
        return if is_wrong { Err("ERR Invalid arguments specified for command") } else { Ok((row, places)) };
    }
    let is_wrong = |spec: &facts::KeySpec| matches!(spec.begin, Begin::Index(_)) && spec.places(words).is_empty();
    if facts::of(&row.full_name).is_some_and(|facts| facts.specs.iter().any(is_wrong)) {
        return Err("ERR Invalid arguments specified for command");
    }
    Ok((row, row.spec.keys.keys(words, 0).iter().map(|key| key.word as usize).collect()))
}

/// Returns the keys of a command that has their number in a word, in the order in which Redis gives them. A number that
/// the command itself refuses, such as `01` or `1x`, is read as by C's `atoi`, and then the destination comes last.
fn counted_keys(words: &[&[u8]], count: usize, destination: bool) -> Vec<usize> {
    let first = count + 1;
    let exact = parse_i64(words[count]);
    let number = exact.unwrap_or_else(|| leading_integer(words[count])) as i32;
    let number = usize::try_from(number).ok().filter(|number| (1..=words.len() - first).contains(number));
    let mut places: Vec<usize> = number.map(|number| first..first + number).into_iter().flatten().collect();
    if destination && !places.is_empty() {
        places.insert(if exact.is_some() { 0 } else { places.len() }, 1);
    }
    places
}

/// Returns the integer at the beginning of a text, as C's `strtol` reads it.
fn leading_integer(text: &[u8]) -> i64 {
    let start = text.iter().position(|byte| !matches!(byte, b' ' | b'\t'..=b'\r')).unwrap_or(text.len());
    let (negative, digits) = match &text[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit()).map(|byte| i64::from(byte - b'0'));
    digits.fold(0, |number: i64, digit| {
        let digit = if negative { -digit } else { digit };
        number.saturating_mul(10).saturating_add(digit)
    })
}

/// `COMMAND GETKEYS command argument…`.
pub(super) fn getkeys(_: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let words = &args[2..];
    match find_keys(words) {
        Err(text) => out.error(text),
        Ok((_, places)) => {
            out.array(places.len());
            places.iter().for_each(|place| out.bulk(words[*place]));
        }
    }
    Outcome::Done
}

/// `COMMAND GETKEYSANDFLAGS command argument…`: each key with its access flags.
pub(super) fn getkeysandflags(_: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let words = &args[2..];
    match find_keys(words) {
        Err(text) => out.error(text),
        Ok((row, places)) => {
            out.array(places.len());
            for place in places {
                out.array(2);
                out.bulk(words[place]);
                statuses(&flags_of_key(row, words, place), out);
            }
        }
    }
    Outcome::Done
}

/// Returns the access flags of one of a command's keys.
fn flags_of_key(row: &Row, words: &[&[u8]], place: usize) -> Vec<&'static str> {
    if let KeyRule::Counted { count, .. } = row.spec.keys
        && parse_i64(words[count as usize]).is_none()
    {
        // Redis does not report keys that it finds this way.
        return Vec::new();
    }
    if let Some(flags) = row.spec.key_flags.and_then(|flags| flags(words)) {
        return flags.to_vec();
    }
    let spec =
        facts::of(&row.full_name).and_then(|facts| facts.specs.iter().find(|spec| spec.places(words).contains(&place)));
    match spec {
        Some(spec) => spec.flags.iter().copied().filter(|flag| *flag != "variable_flags").collect(),
        // A destination that an option names.
        None if row.spec.flags.has(Flags::WRITE) => vec!["OW", "update"],
        None => vec!["RO", "access"],
    }
}
