//! Commands that show and change map and ACL files, and the process's variables.
//!
//! A file is named by its path, or as `#N` by its number in `show map` and `show acl`; an entry by its key, or as
//! `#0xN` by its reference in their listings. HAProxy's versions (`prepare`, `commit`, `@N`) are not there, nor are
//! patterns that stand in the configuration itself. What changes a file asks for the level of an operator, as
//! HAProxy's manual says and its code does not.

use std::sync::Arc;

use sluicegate_config::model::{StatsLevel, VarScope};
use sluicegate_pattern::{EditError, Key, Kind, Method, PatternFile, ValueType};

use super::catalogue::{Call, Command, Run};
use super::protocol::Answer;
use crate::sample::{Sample, VarRef};

/// Entries that are listed under one hold of a file's lock.
const PAGE: usize = 256;

/// The theme's rows.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["add", "acl"],
        arguments: "<acl> <pattern>",
        help: "add an acl entry",
        level: StatsLevel::Operator,
        run: Run::Now(add_acl),
    },
    Command {
        name: &["add", "map"],
        arguments: "<map> <key> <val>",
        help: "add a map entry (payload supported instead of key/val)",
        level: StatsLevel::Operator,
        run: Run::Now(add_map),
    },
    Command {
        name: &["clear", "acl"],
        arguments: "<acl>",
        help: "clear the contents of this acl",
        level: StatsLevel::Operator,
        run: Run::Now(|call| clear(call, Kind::Acl)),
    },
    Command {
        name: &["clear", "map"],
        arguments: "<map>",
        help: "clear the contents of this map",
        level: StatsLevel::Operator,
        run: Run::Now(|call| clear(call, Kind::Map)),
    },
    Command {
        name: &["del", "acl"],
        arguments: "<acl> [<key>|#<ref>]",
        help: "delete acl entries matching <key>",
        level: StatsLevel::Operator,
        run: Run::Now(|call| del(call, Kind::Acl)),
    },
    Command {
        name: &["del", "map"],
        arguments: "<map> [<key>|#<ref>]",
        help: "delete map entries matching <key>",
        level: StatsLevel::Operator,
        run: Run::Now(|call| del(call, Kind::Map)),
    },
    Command {
        name: &["get", "acl"],
        arguments: "<acl> <value>",
        help: "report the patterns matching a sample for an ACL",
        level: StatsLevel::User,
        run: Run::Now(|call| get(call, Kind::Acl)),
    },
    Command {
        name: &["get", "map"],
        arguments: "<acl> <value>",
        help: "report the keys and values matching a sample for a map",
        level: StatsLevel::User,
        run: Run::Now(|call| get(call, Kind::Map)),
    },
    Command {
        name: &["get", "var"],
        arguments: "<name>",
        help: "retrieve contents of a process-wide variable",
        level: StatsLevel::Operator,
        run: Run::Now(get_var),
    },
    Command {
        name: &["set", "map"],
        arguments: "<map> [<key>|#<ref>] <value>",
        help: "modify a map entry",
        level: StatsLevel::Operator,
        run: Run::Now(set_map),
    },
    Command {
        name: &["show", "acl"],
        arguments: "[<acl>]",
        help: "report available acls or dump an acl's contents",
        level: StatsLevel::User,
        run: Run::Long(|call| show(call, Kind::Acl)),
    },
    Command {
        name: &["show", "map"],
        arguments: "[<map>]",
        help: "report available maps or dump a map's contents",
        level: StatsLevel::User,
        run: Run::Long(|call| show(call, Kind::Map)),
    },
];

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Map => "map",
        Kind::Acl => "ACL",
    }
}

/// The file that the first argument names; the client is told if there is none.
fn file(call: &mut Call<'_>, kind: Kind) -> Option<Arc<PatternFile>> {
    let files = call.running.config.patterns.all();
    let name = call.arg(0);
    let found = match name.strip_prefix('#') {
        Some(number) => number.parse().ok().and_then(|at: usize| files.get(at)),
        None => files.iter().find(|file| &**file.name() == name),
    };
    let found = found.filter(|file| file.kind() == kind).cloned();
    if found.is_none() {
        call.say(format!("Unknown {} identifier. Please use #<id> or <file>.", word(kind)));
    }
    found
}

/// The number of an entry that a word names as `#0xN`.
fn reference(word: &str) -> Option<Option<u32>> {
    let number = word.strip_prefix('#')?;
    let digits = number.strip_prefix("0x").unwrap_or(number);
    Some(u32::from_str_radix(digits, 16).ok().and_then(|number| number.checked_sub(1)))
}

fn show(mut call: Call<'_>, kind: Kind) -> Answer<'_> {
    Box::pin(async move {
        if call.arg(0).is_empty() {
            call.out.push("# id (file) description\n");
            for (number, file) in call.running.config.patterns.all().iter().enumerate() {
                if file.kind() == kind {
                    let (name, count) = (file.name(), file.len());
                    let line = format!(
                        "{number} ({name}) pattern loaded from file '{name}'. curr_ver=0 next_ver=0 entry_cnt={count}\n"
                    );
                    call.out.push(line);
                    call.out.drain().await?;
                }
            }
            return Ok(());
        }
        let Some(file) = file(&mut call, kind) else { return Ok(()) };
        let mut next = Some(0);
        while let Some(from) = next {
            let out = call.out.buffer();
            next = file.page(from, PAGE, |number, key, value| {
                out.extend_from_slice(format!("{:#x} ", u64::from(number) + 1).as_bytes());
                out.extend_from_slice(key);
                if kind == Kind::Map {
                    out.push(b' ');
                    out.extend_from_slice(value);
                }
                out.push(b'\n');
            });
            call.out.drain().await?;
        }
        Ok(())
    })
}

/// How HAProxy keeps patterns of a method, which its answers name.
fn kept(method: Method, ignore_case: bool) -> &'static str {
    match method {
        Method::Ip => "tree",
        Method::Str | Method::Beg if !ignore_case => "tree",
        _ => "list",
    }
}

fn name(method: Method) -> &'static str {
    match method {
        Method::Str => "str",
        Method::Beg => "beg",
        Method::End => "end",
        Method::Sub => "sub",
        Method::Dir => "dir",
        Method::Dom => "dom",
        Method::Reg => "reg",
        Method::Int => "int",
        Method::Len => "len",
        Method::Ip => "ip",
        Method::Bin => "bin",
    }
}

fn get(call: &mut Call<'_>, kind: Kind) {
    if call.arg(0).is_empty() || call.args.len() < 2 {
        return call.say(format!("Missing {} identifier and/or key.", word(kind)));
    }
    let Some(file) = file(call, kind) else { return };
    let asked = &call.args[1];
    let text = call.arg(1);
    let types = file.value_types();
    let mut answer = Vec::new();
    for (index, method, ignore_case) in file.indexes() {
        let case = if ignore_case { "insensitive" } else { "sensitive" };
        answer.extend_from_slice(format!("type={}, case={case}, ", name(method)).as_bytes());
        let key = match method {
            Method::Int => text.parse().ok().map(Key::Int),
            Method::Ip => text.parse().ok().map(Key::Ip),
            _ => Some(Key::Bytes(asked)),
        };
        let hit = key.and_then(|key| file.lookup(index, key, |hit| (hit.key.to_vec(), hit.value.to_vec())));
        let (is, pattern) = if kind == Kind::Map { ("found", "key") } else { ("match", "pattern") };
        let Some((key, value)) = hit else {
            answer.extend_from_slice(format!("{is}=no\n").as_bytes());
            continue;
        };
        answer.extend_from_slice(format!("{is}=yes, idx={}, {pattern}=\"", kept(method, ignore_case)).as_bytes());
        answer.extend_from_slice(&key);
        answer.push(b'"');
        if kind == Kind::Map {
            let name = match types.last() {
                Some(ValueType::Int) => "sint",
                Some(ValueType::Ip) if value.contains(&b':') => "ipv6",
                Some(ValueType::Ip) => "ipv4",
                Some(ValueType::Str) | None => "str",
            };
            answer.extend_from_slice(b", value=\"");
            answer.extend_from_slice(&value);
            answer.extend_from_slice(format!("\", type=\"{name}\"").as_bytes());
        }
        answer.push(b'\n');
    }
    call.out.push(answer);
}

/// Key and value of a line of a payload.
fn pair(line: &[u8]) -> (&[u8], &[u8]) {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = line.iter().position(|byte| !blank(byte)).unwrap_or(line.len());
    let line = &line[start..];
    let end = line.iter().position(blank).unwrap_or(line.len());
    let value = line[end..].iter().position(|byte| !blank(byte)).map_or(line.len(), |at| end + at);
    (&line[..end], &line[value..])
}

/// Adds or sets an entry; what HAProxy says if it can't.
fn change<T>(file: &PatternFile, value: &[u8], made: Result<T, EditError>) -> Result<T, String> {
    made.map_err(|error| {
        let bad = |values: &ValueType| match values {
            ValueType::Int => ValueType::integer(value).is_none(),
            ValueType::Ip => ValueType::address(value).is_none(),
            ValueType::Str => false,
        };
        if file.value_types().iter().any(bad) {
            format!("unable to parse '{}'.", String::from_utf8_lossy(value))
        } else {
            format!("{error}.")
        }
    })
}

fn add_map(call: &mut Call<'_>) {
    let words = call.args.len();
    if call.arg(0).is_empty() || (call.payload.is_none() && words < 3) {
        return call.say(
            "'add map' expects three parameters (map identifier, key and value) or one parameter (map identifier) and \
             a payload",
        );
    }
    let Some(file) = file(call, Kind::Map) else { return };
    let refused = match call.payload {
        Some(payload) => payload.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).find_map(|line| {
            let (key, value) = pair(line);
            if value.is_empty() {
                return Some(format!("Missing value for key '{}' in the payload.", String::from_utf8_lossy(key)));
            }
            change(&file, value, file.add(key, value)).err()
        }),
        None => change(&file, &call.args[2], file.add(&call.args[1], &call.args[2])).err(),
    };
    if let Some(message) = refused {
        call.say(message);
    }
}

fn add_acl(call: &mut Call<'_>) {
    if call.args.len() < 2 {
        return call.say("'add acl' expects two parameters: ACL identifier and pattern.");
    }
    let Some(file) = file(call, Kind::Acl) else { return };
    if let Err(error) = file.add(&call.args[1], b"") {
        call.say(format!("{error}."));
    }
}

fn set_map(call: &mut Call<'_>) {
    if call.args.len() < 3 {
        return call.say("'set map' expects three parameters: map identifier, key and value.");
    }
    let Some(file) = file(call, Kind::Map) else { return };
    let (key, value) = (&call.args[1], &call.args[2]);
    let (made, missing) = match reference(call.arg(1)) {
        Some(Some(number)) => (file.set_by_number(number, value), "key or pattern not found."),
        Some(None) => (Ok(false), "key or pattern not found."),
        None => (file.set(key, value).map(|count| count > 0), "entry not found."),
    };
    match change(&file, value, made) {
        Ok(true) => {}
        Ok(false) => call.say(missing),
        Err(message) => call.say(message),
    }
}

fn del(call: &mut Call<'_>, kind: Kind) {
    if call.args.len() < 2 {
        return call.say(format!("This command expects two parameters: {} identifier and key.", word(kind)));
    }
    let Some(file) = file(call, kind) else { return };
    let removed = match reference(call.arg(1)) {
        Some(number) => number.is_some_and(|number| file.del_by_number(number)),
        None => file.del(&call.args[1]) > 0,
    };
    if !removed {
        call.say("Key not found.");
    }
}

fn clear(call: &mut Call<'_>, kind: Kind) {
    if call.arg(0).is_empty() {
        return call.say(format!("Missing {} identifier.", word(kind)));
    }
    if let Some(file) = file(call, kind) {
        file.clear();
    }
}

fn get_var(call: &mut Call<'_>) {
    let name = call.arg(0).to_owned();
    if name.is_empty() {
        return call.say("Missing process-wide variable identifier.");
    }
    let known = name.strip_prefix("proc.").and_then(|name| VarRef::known(VarScope::Proc, name));
    let Some(VarRef::Process(variable)) = known else { return call.say("Variable not found.") };
    let Some(value) = variable.get() else { return call.say("Variable not found.") };
    let (kind, text) = match value {
        Sample::Bool(is) => ("bool", Vec::from(if is { "1" } else { "0" })),
        Sample::Int(number) => ("sint", number.to_string().into_bytes()),
        Sample::Ip(ip) if ip.is_ipv4() => ("ipv4", ip.to_string().into_bytes()),
        Sample::Ip(ip) => ("ipv6", ip.to_string().into_bytes()),
        Sample::Str(text) => ("str", text.to_vec()),
        Sample::Bin(bytes) => ("bin", bytes.to_vec()),
        Sample::Method(text) => ("meth", text.to_vec()),
    };
    call.out.push(format!("{name}: type={kind} value=<"));
    call.out.push(text);
    call.out.push(">");
}
