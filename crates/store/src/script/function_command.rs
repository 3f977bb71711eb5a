//! FCALL and FUNCTION.

use std::collections::HashSet;
use std::sync::Arc;

use sluicegate_data::glob;
use sluicegate_data::rdb::{dump_libraries, restore_libraries};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{ReplyBuilder, ReplySink};

use super::call::{Call, control_of};
use super::code::Code;
use super::command::{about, evaluates, keys_or, may_write, named_to_kill, run, say_killed, start_call};
use super::control::Control;
use super::library::{Function, Library, Load, Policy, Source};
use super::source::Flags;
use crate::Inner;
use crate::catalogue::{CommandSpec, Flags as CommandFlags};
use crate::catalogue::{ScriptHandle, Start};
use crate::command::{help, is};
use crate::owned::Finished;
use crate::park::Parked;
use crate::thread::block_on;

fn fcall(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    call(start, Flags::NONE, out)
}

fn fcall_ro(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    call(start, Flags::NO_WRITES, out)
}

fn call(start: &Start<'_>, more: Flags, out: &mut dyn ReplySink) -> Option<Parked> {
    let Some((library, place)) = start.inner.scripts.libraries.find(start.words[1]) else {
        out.error("ERR Function not found");
        return None;
    };
    let keys = keys_or(start, "ERR Bad number of keys provided", out)?;
    let flags = library.functions[place].flags;
    let control = Arc::new(control_of(start, Code::Function(library, place), 0));
    run(start, control, flags, more, keys, out)
}

/// `FUNCTION LOAD [REPLACE] code`.
fn load(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let (options, text) = (&start.words[2..start.words.len() - 1], start.words[start.words.len() - 1]);
    let mut policy = Policy::Append;
    for option in options {
        if !is(option, "replace") {
            out.error_bytes(&[b"ERR Unknown option given: ", *option].concat());
            return None;
        }
        policy = Policy::Replace;
    }
    let source = match Source::read(text) {
        Ok(source) => source,
        Err(text) => {
            out.error_bytes(text.as_bytes());
            return None;
        }
    };
    if policy == Policy::Append && start.inner.scripts.libraries.contains(&source.name) {
        out.error(&format!("ERR Library '{}' already exists", source.name));
        return None;
    }
    start_load(start, Load { sources: vec![source], policy, is_restored: false }, out)
}

fn start_load(start: &Start<'_>, load: Load, out: &mut dyn ReplySink) -> Option<Parked> {
    let code = Code::Load(Arc::new(load));
    let call = Call::new(start, code, Flags::NON_ATOMIC, Flags::NONE, 0);
    start_call(start, call, &[], out)
}

/// Loads a library for the loader of a file; `replaces` one of the same name. Waits for it, so it is called on a thread
/// that may. The error is Redis's text, without its code.
pub(crate) fn load_library(inner: &Arc<Inner>, text: &[u8], replaces: bool) -> Result<(), String> {
    load_libraries(inner, &[text], if replaces { Policy::Replace } else { Policy::Append })
}

/// Like [`load_library`], for all libraries of a data set: all others are removed.
pub(crate) fn replace_libraries(inner: &Arc<Inner>, texts: &[Vec<u8>]) -> Result<(), String> {
    if texts.is_empty() {
        inner.scripts.libraries.flush();
        return Ok(());
    }
    load_libraries(inner, &texts.iter().map(Vec::as_slice).collect::<Vec<_>>(), Policy::Flush)
}

fn load_libraries(inner: &Arc<Inner>, texts: &[&[u8]], policy: Policy) -> Result<(), String> {
    let without_code = |text: String| text.strip_prefix("ERR ").map_or(text.clone(), str::to_owned);
    let sources = texts.iter().map(|text| Source::read(text)).collect::<Result<_, _>>().map_err(without_code)?;
    let start = Start::of_store(inner);
    let mut reply = ReplyBuilder::new();
    let load = Load { sources, policy, is_restored: false };
    let reply = match start_load(&start, load, &mut reply) {
        None => reply.finish(),
        Some(mut parked) => match block_on(|context| parked.poll_finished(context)) {
            Finished::Value(reply) => reply,
            Finished::Wire(_) => return Err("an encoded reply".into()),
        },
    };
    match reply {
        Reply::Error(text) => Err(without_code(text)),
        _ => Ok(()),
    }
}

/// `FUNCTION DELETE library`.
fn delete(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let scripts = &start.inner.scripts;
    let is_removed = {
        // A snapshot has either the library or its removal.
        let _pass = start.inner.gate.enter();
        let is_removed = scripts.libraries.remove(start.words[2]);
        if is_removed && start.inner.record.is_on() {
            start.inner.record.put(|unit| unit.add(start.db, &[b"FUNCTION", b"DELETE", start.words[2]]));
        }
        is_removed
    };
    match is_removed {
        true => {
            scripts.pool.forget_libraries();
            out.ok();
        }
        false => out.error("ERR Library not found"),
    }
    None
}

/// `FUNCTION FLUSH [SYNC | ASYNC]`.
fn flush(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    match &start.words[2..] {
        [] => {}
        [how] if is(how, "sync") || is(how, "async") => {}
        [_] => {
            out.error("ERR FUNCTION FLUSH only supports SYNC|ASYNC option");
            return None;
        }
        _ => {
            wrong_number(start, out);
            return None;
        }
    }
    {
        let _pass = start.inner.gate.enter();
        start.inner.scripts.libraries.flush();
        if start.inner.record.is_on() {
            start.inner.record.put(|unit| unit.add(start.db, &[b"FUNCTION", b"FLUSH"]));
        }
    }
    start.inner.scripts.pool.forget_libraries();
    out.ok();
    None
}

fn wrong_number(start: &Start<'_>, out: &mut dyn ReplySink) {
    let name = start.words[1];
    out.error_bytes(
        &[b"ERR unknown subcommand or wrong number of arguments for '", name, b"'. Try FUNCTION HELP."].concat(),
    );
}

/// `FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE]`.
fn list(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let (mut pattern, mut with_code) = (None, false);
    let mut words = start.words[2..].iter();
    while let Some(word) = words.next() {
        if !with_code && is(word, "withcode") {
            with_code = true;
        } else if pattern.is_none() && is(word, "libraryname") {
            let Some(name) = words.next() else {
                out.error("ERR library name argument was not given");
                return None;
            };
            pattern = Some(name.to_ascii_lowercase());
        } else {
            out.error_bytes(&[b"ERR Unknown argument ", *word].concat());
            return None;
        }
    }
    let mut libraries = start.inner.scripts.libraries.all();
    if let Some(pattern) = pattern {
        libraries.retain(|library| glob::matches(&pattern, library.name.to_ascii_lowercase().as_bytes()));
    }
    out.array(libraries.len());
    for library in libraries {
        describe(&library, with_code, out);
    }
    None
}

fn describe(library: &Library, with_code: bool, out: &mut dyn ReplySink) {
    out.map(3 + usize::from(with_code));
    out.bulk(b"library_name");
    out.bulk(library.name.as_bytes());
    out.bulk(b"engine");
    out.bulk(b"LUA");
    out.bulk(b"functions");
    out.array(library.functions.len());
    for Function { name, description, flags, .. } in &library.functions {
        out.map(3);
        out.bulk(b"name");
        out.bulk(name.as_bytes());
        out.bulk(b"description");
        match description {
            Some(text) => out.bulk(text),
            None => out.null(),
        }
        out.bulk(b"flags");
        let flags: Vec<&str> =
            Flags::NAMES.iter().filter(|(_, flag)| flags.has(*flag)).map(|(name, _)| *name).collect();
        out.set(flags.len());
        flags.iter().for_each(|flag| out.simple(flag));
    }
    if with_code {
        out.bulk(b"library_code");
        out.bulk(&library.source);
    }
}

/// `FUNCTION DUMP`.
fn dump(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let libraries = start.inner.scripts.libraries.all();
    out.bulk(&dump_libraries(libraries.iter().map(|library| &*library.source)));
    None
}

/// `FUNCTION RESTORE payload [FLUSH | APPEND | REPLACE]`.
fn restore(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let policy = match &start.words[3..] {
        [] => Policy::Append,
        [policy] if is(policy, "append") => Policy::Append,
        [policy] if is(policy, "replace") => Policy::Replace,
        [policy] if is(policy, "flush") => Policy::Flush,
        [_] => {
            out.error("ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.");
            return None;
        }
        _ => {
            wrong_number(start, out);
            return None;
        }
    };
    match sources(start.words[2]) {
        Ok(sources) => start_load(start, Load { sources, policy, is_restored: true }, out),
        Err(text) => {
            out.error(&text);
            None
        }
    }
}

/// Returns the libraries of a payload.
pub(super) fn sources(payload: &[u8]) -> Result<Vec<Source>, String> {
    let mut names = HashSet::new();
    let mut sources = Vec::new();
    for text in restore_libraries(payload).map_err(|wrong| wrong.to_string())? {
        let source = Source::read(&text)?;
        if !names.insert(source.name.clone()) {
            return Err(format!("ERR Library '{}' already exists", source.name));
        }
        sources.push(source);
    }
    Ok(sources)
}

/// `FUNCTION STATS`: of the functions that run, it shows the one that has run for longest.
fn stats(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let scripts = &start.inner.scripts;
    out.map(2);
    out.bulk(b"running_script");
    let running = scripts.running.begun().into_iter().filter(|control| control.code.is_function());
    match running.max_by_key(|control| control.age()) {
        Some(control) => show_running(&control, out),
        None => out.null(),
    }
    out.bulk(b"engines");
    out.map(1);
    out.bulk(b"LUA");
    let (libraries, functions, _) = scripts.libraries.size();
    out.map(2);
    out.bulk(b"libraries_count");
    out.integer(libraries as i64);
    out.bulk(b"functions_count");
    out.integer(functions as i64);
    None
}

fn show_running(control: &Control, out: &mut dyn ReplySink) {
    out.map(3);
    out.bulk(b"name");
    out.bulk(control.code.name().as_bytes());
    out.bulk(b"command");
    let words = control.command();
    out.array(words.len());
    words.iter().for_each(|word| out.bulk(word));
    out.bulk(b"duration_ms");
    out.integer(control.age().as_millis() as i64);
}

/// `FUNCTION KILL [id|name [FORCE]]`.
fn kill(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let scripts = &start.inner.scripts;
    let killed = match named_to_kill(start, out) {
        Ok(None) => scripts.kill_old(true),
        Ok(Some((name, is_forced))) => scripts.kill_named(name, true, is_forced),
        Err(()) => return None,
    };
    say_killed(killed, out);
    None
}

fn function_help(_: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let lines = [
        "DELETE <library>",
        "    Removes a library with its functions.",
        "DUMP",
        "    Returns all libraries as a payload for RESTORE.",
        "FLUSH [SYNC|ASYNC]",
        "    Removes all libraries.",
        "KILL [<id>|<name> [FORCE]]",
        "    Ends functions that run: all that are too old and have not written, or those named.",
        "LIST [LIBRARYNAME <pattern>] [WITHCODE]",
        "    Describes libraries and their functions.",
        "LOAD [REPLACE] <code>",
        "    Adds a library, or puts it in the place of the one of its name.",
        "RESTORE <payload> [FLUSH|APPEND|REPLACE]",
        "    Adds the libraries of a payload: after removing all others, if no name is taken, or in the place of others.",
        "STATS",
        "    Tells which function has run for longest, and counts libraries and functions.",
    ];
    help("FUNCTION", &lines, out);
    None
}

const fn sub(
    name: &'static str,
    arity: i32,
    flags: CommandFlags,
    summary: &'static str,
    complexity: &'static str,
    handle: ScriptHandle,
) -> CommandSpec {
    let spec = about(name, arity, "7.0.0", summary, complexity, handle);
    CommandSpec { flags, ..spec }
}

const READS: CommandFlags = CommandFlags::NOSCRIPT;
const WRITES: CommandFlags = CommandFlags::NOSCRIPT.and(CommandFlags::WRITE);
const ADDS: CommandFlags = WRITES.and(CommandFlags::DENYOOM);
const AT_ANY_TIME: CommandFlags = CommandFlags::NOSCRIPT.and(CommandFlags::ALLOW_BUSY);

const FUNCTION: &[CommandSpec] = &[
    sub("delete", 3, WRITES, "Removes a library.", "O(N), N functions", delete),
    sub("dump", 2, READS, "Returns all libraries as a payload.", "O(N), N libraries", dump),
    sub("flush", -2, WRITES, "Removes all libraries.", "O(N), N libraries", flush),
    sub("help", 2, CommandFlags::LOADING.and(CommandFlags::STALE), "Lists the subcommands.", "O(1)", function_help),
    sub("kill", -2, AT_ANY_TIME, "Ends functions that run.", "O(N), N functions that run", kill),
    sub("list", -2, READS, "Describes libraries.", "O(N), N functions", list),
    sub("load", -3, ADDS, "Adds a library.", "that of its code", load),
    sub("restore", -3, ADDS, "Adds the libraries of a payload.", "that of their code", restore),
    sub("stats", 2, AT_ANY_TIME, "Tells which function runs.", "O(N), N functions that run", stats),
];

/// The rows.
pub(crate) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        script_may_write: Some(|inner, words| {
            let found = inner.scripts.libraries.find(words[1]);
            may_write(found.map(|(library, place)| library.functions[place].flags))
        }),
        ..evaluates("fcall", CommandFlags::NONE, "7.0.0", "Calls a function of a library.", fcall)
    },
    evaluates("fcall_ro", CommandFlags::READONLY, "7.0.0", "Calls a function that only reads.", fcall_ro),
    CommandSpec {
        name: "function",
        arity: -2,
        since: "7.0.0",
        group: "scripting",
        summary: "A container for commands about libraries of functions.",
        complexity: "that of the subcommand",
        subcommands: FUNCTION,
        ..CommandSpec::EMPTY
    },
];
