//! Commands that show and change map and ACL files, and the process's variables.
//!
//! A file is identified by its path, or as `#N` by its number in `show map` and `show acl`; an entry by its key, or as
//! `#0xN` by its reference in their listings. Inline patterns of the configuration count as a file if they have a
//! number (`-u`). `prepare` begins a version next to the current one, `@N` refers to it, and `commit` makes it current.
//! Changes require level `operator`, as HAProxy's manual says and its code does not.

use std::sync::Arc;

use sluicegate_config::model::{StatsLevel, VarScope};
use sluicegate_pattern::{EditError, Key, Kind, Method, PatternFile, ValueType, VersionError, VersionNumbers};

use super::catalogue::{Call, Command, Run};
use super::protocol::Answer;
use crate::sample::{Sample, VarRef, set_preset};

/// The number of entries that are listed while a file's lock is held.
const PAGE: usize = 256;

/// The commands of this module.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["add", "acl"],
        arguments: "[@<ver>] <acl> <pattern>",
        help: "add an acl entry",
        level: StatsLevel::Operator,
        run: Run::Now(add_acl),
    },
    Command {
        name: &["add", "map"],
        arguments: "[@<ver>] <map> <key> <val>",
        help: "add a map entry (payload supported instead of key/val)",
        level: StatsLevel::Operator,
        run: Run::Now(add_map),
    },
    Command {
        name: &["clear", "acl"],
        arguments: "[@<ver>] <acl>",
        help: "clear the contents of this acl",
        level: StatsLevel::Operator,
        run: Run::Now(|call| clear(call, Kind::Acl)),
    },
    Command {
        name: &["clear", "map"],
        arguments: "[@<ver>] <map>",
        help: "clear the contents of this map",
        level: StatsLevel::Operator,
        run: Run::Now(|call| clear(call, Kind::Map)),
    },
    Command {
        name: &["commit", "acl"],
        arguments: "@<ver> <acl>",
        help: "commit the ACL at this version",
        level: StatsLevel::Operator,
        run: Run::Now(|call| commit(call, Kind::Acl)),
    },
    Command {
        name: &["commit", "map"],
        arguments: "@<ver> <map>",
        help: "commit the map at this version",
        level: StatsLevel::Operator,
        run: Run::Now(|call| commit(call, Kind::Map)),
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
        name: &["prepare", "acl"],
        arguments: "<acl>",
        help: "prepare a new version for atomic ACL replacement",
        level: StatsLevel::Operator,
        run: Run::Now(|call| prepare(call, Kind::Acl)),
    },
    Command {
        name: &["prepare", "map"],
        arguments: "<acl>",
        help: "prepare a new version for atomic map replacement",
        level: StatsLevel::Operator,
        run: Run::Now(|call| prepare(call, Kind::Map)),
    },
    Command {
        name: &["set", "map"],
        arguments: "<map> [<key>|#<ref>] <value>",
        help: "modify a map entry",
        level: StatsLevel::Operator,
        run: Run::Now(set_map),
    },
    Command {
        name: &["set", "var"],
        arguments: "<name> [expr|fmt] <value>",
        help: "set a process-wide variable",
        level: StatsLevel::Operator,
        run: Run::Now(set_var),
    },
    Command {
        name: &["show", "acl"],
        arguments: "[@<ver>] <acl>]",
        help: "report available acls or dump an acl's contents",
        level: StatsLevel::User,
        run: Run::Long(|call| show(call, Kind::Acl)),
    },
    Command {
        name: &["show", "map"],
        arguments: "[@ver] [map]",
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

/// Returns the file named by the first argument, or sends the client an error.
fn file(call: &mut Call<'_>, kind: Kind) -> Option<Arc<PatternFile>> {
    let found = any_file(call).filter(|file| file.kind() == kind);
    if found.is_none() {
        call.say(unknown(kind));
    }
    found
}

fn unknown(kind: Kind) -> String {
    format!("Unknown {} identifier. Please use #<id> or <file>.", word(kind))
}

/// Returns the file named by the first argument, whether it is a map or an ACL.
fn any_file(call: &Call<'_>) -> Option<Arc<PatternFile>> {
    let files = &call.running.config.patterns;
    let name = call.arg(0);
    match name.strip_prefix('#') {
        Some(number) => number.parse().ok().and_then(|wanted: u32| {
            files.by_number().into_iter().find(|(number, _)| *number == wanted).map(|(_, file)| file)
        }),
        None => files.get(name),
    }
}

/// Returns the number of an entry that a word names as `#0xN`.
fn reference(word: &str) -> Option<Option<u32>> {
    let number = word.strip_prefix('#')?;
    let digits = number.strip_prefix("0x").unwrap_or(number);
    Some(u32::from_str_radix(digits, 16).ok().and_then(|number| number.checked_sub(1)))
}

/// Consumes the version that precedes the other words, if there is one. A version that is not a number is treated as
/// one that never existed.
fn take_version(call: &mut Call<'_>) -> Option<Option<u32>> {
    let number = call.args.first()?.strip_prefix(b"@")?;
    call.args = &call.args[1..];
    Some(std::str::from_utf8(number).ok().and_then(|number| number.parse().ok()))
}

/// Returns HAProxy's message about a version that does not exist.
fn refused(file: &PatternFile, value: &[u8], error: VersionError) -> String {
    match error {
        VersionError::Future => {
            let kind = if file.kind() == Kind::Map { "map" } else { "acl" };
            format!("Version number in the future, please use 'prepare {kind}' before.")
        }
        VersionError::Gone => "Version number out of range.".to_owned(),
        VersionError::Edit(error) => told(file, value, &error),
    }
}

/// Adds an entry to the active version, or to another one.
fn add(file: &PatternFile, version: Option<Option<u32>>, key: &[u8], value: &[u8]) -> Result<(), String> {
    let made = match version {
        None => file.add(key, value).map_err(VersionError::Edit),
        Some(Some(version)) => file.add_to(version, key, value),
        Some(None) => Err(VersionError::Gone),
    };
    made.map_err(|error| refused(file, value, error))
}

fn prepare(call: &mut Call<'_>, kind: Kind) {
    let Some(file) = file(call, kind) else { return };
    match file.prepare() {
        Ok(version) => call.say(format!("New version created: {version}")),
        Err(error) => call.say(format!("{error}.")),
    }
}

fn commit(call: &mut Call<'_>, kind: Kind) {
    let Some(version) = take_version(call) else { return call.say("Missing version number.") };
    if call.arg(0).is_empty() {
        return call.say(format!("Missing {} identifier.", word(kind)));
    }
    let Some(file) = file(call, kind) else { return };
    let committed = version.ok_or(VersionError::Gone).and_then(|version| file.commit(version));
    if let Err(error) = committed {
        call.say(refused(&file, b"", error));
    }
}

fn show(mut call: Call<'_>, kind: Kind) -> Answer<'_> {
    Box::pin(async move {
        let version = take_version(&mut call);
        if version.is_none() && call.arg(0).is_empty() {
            call.out.push("# id (file) description\n");
            let files = &call.running.config.patterns;
            for (number, file) in files.by_number() {
                if file.kind() == kind {
                    let (mut name, count) = (&**file.name(), file.len());
                    let mut description = format!("pattern loaded from file '{name}'");
                    if let Some(number) = file.number() {
                        (name, description) = ("", files.description(number).unwrap_or_default().to_string());
                    }
                    let VersionNumbers { current, last } = file.versions();
                    let line = format!(
                        "{number} ({name}) {description}. curr_ver={current} next_ver={last} entry_cnt={count}\n"
                    );
                    call.out.push(line);
                    call.out.drain().await?;
                }
            }
            return Ok(());
        }
        let Some(file) = file(&mut call, kind) else { return Ok(()) };
        if version == Some(None) {
            call.say(refused(&file, b"", VersionError::Gone));
            return Ok(());
        }
        let mut next = Some(0);
        while let Some(from) = next {
            let out = call.out.buffer();
            // Without a version this is the active one, which may be exchanged in the course of the listing.
            let at = version.flatten().unwrap_or_else(|| file.versions().current);
            next = file.page_of(at, from, PAGE, |number, key, value| {
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

/// Returns HAProxy's name for the storage of a method's patterns, as in its replies.
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
    // As in HAProxy, both look up in files of either kind.
    let Some(file) = any_file(call) else { return call.say(unknown(kind)) };
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
        if kind == Kind::Map && file.kind() == Kind::Acl {
            answer.extend_from_slice(b", value=none");
        } else if kind == Kind::Map {
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

/// Returns the key and the value in a line of a payload.
fn pair(line: &[u8]) -> (&[u8], &[u8]) {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = line.iter().position(|byte| !blank(byte)).unwrap_or(line.len());
    let line = &line[start..];
    let end = line.iter().position(blank).unwrap_or(line.len());
    let value = line[end..].iter().position(|byte| !blank(byte)).map_or(line.len(), |at| end + at);
    (&line[..end], &line[value..])
}

/// Returns HAProxy's message about an entry that cannot be added or set.
fn told(file: &PatternFile, value: &[u8], error: &EditError) -> String {
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
}

fn add_map(call: &mut Call<'_>) {
    let version = take_version(call);
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
            add(&file, version, key, value).err()
        }),
        None => add(&file, version, &call.args[1], &call.args[2]).err(),
    };
    if let Some(message) = refused {
        call.say(message);
    }
}

fn add_acl(call: &mut Call<'_>) {
    let version = take_version(call);
    if call.args.len() < 2 {
        return call.say("'add acl' expects two parameters: ACL identifier and pattern.");
    }
    if any_file(call).is_some_and(|file| file.kind() == Kind::Map) {
        return call.say(
            "This ACL is shared with a map containing samples. You must use the command 'add map' to add values.",
        );
    }
    let Some(file) = file(call, Kind::Acl) else { return };
    if let Err(message) = add(&file, version, &call.args[1], b"") {
        call.say(message);
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
    match made.map_err(|error| told(&file, value, &error)) {
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
    let version = take_version(call);
    if call.arg(0).is_empty() {
        return call.say(format!("Missing {} identifier.", word(kind)));
    }
    let Some(file) = file(call, kind) else { return };
    match version {
        None => file.clear(),
        Some(version) => {
            let cleared = version.ok_or(VersionError::Gone).and_then(|version| file.clear_version(version));
            if let Err(error) = cleared {
                call.say(refused(&file, b"", error));
            }
        }
    }
}

fn set_var(call: &mut Call<'_>) {
    if !call.session.rights.experimental {
        return call.say("This command is restricted to experimental mode only.");
    }
    let name = call.arg(0).to_owned();
    if name.is_empty() {
        return call.say("Missing process-wide variable identifier.");
    }
    let (is_format, text) = match (call.arg(1), call.arg(2)) {
        (kind @ ("expr" | "fmt"), text) if !text.is_empty() => (kind == "fmt", text),
        ("", _) => return call.say("Missing either 'expr', 'fmt' or expression."),
        (text, "") => (false, text),
        (kind, _) => {
            return call.say(format!("'set var': arg type must be either 'expr' or 'fmt' but got '{kind}'."));
        }
    };
    let set = sluicegate_config::preset(&call.running.config, &name, is_format, text)
        .and_then(|preset| set_preset(call.running, &preset));
    if let Err(message) = set {
        call.say(message);
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
    let mut answer = format!("{name}: type={kind} value=<").into_bytes();
    // As HAProxy, which shows a dot for what would act on a terminal or break the line.
    let is_shown = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    answer.extend(text.into_iter().map(|byte| if is_shown(byte) { byte } else { b'.' }));
    answer.push(b'>');
    call.answer_as((6, "info"), answer);
}
