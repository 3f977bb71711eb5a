//! EVAL, EVALSHA and SCRIPT.

use std::cell::RefCell;
use std::sync::Arc;

use sluicegate_wire::resp::{ReplySink, parse_i64};

use super::busy::Killed;
use super::call::{Call, control_of};
use super::code::Code;
use super::control::Control;
use super::interpreter;
use super::registry::{Script, Sha};
use super::run::{self, Job, Pending};
use super::source::{self, Flags};
use super::tell;
use crate::Inner;
use crate::catalogue::{Category, CommandSpec, Flags as CommandFlags, Handler, ScriptHandle, Start};
use crate::command::is;
use crate::keys::KeyRule;
use crate::loading::{MASTERDOWN, READONLY};
use crate::memory::OOM;
use crate::owned::Words;
use crate::park::{Parked, Waits};
use crate::section::Section;

pub(super) const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

fn eval(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    by_body(start, Flags::NONE, out)
}

fn eval_ro(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    by_body(start, Flags::NO_WRITES, out)
}

fn evalsha(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    by_sha(start, Flags::NONE, out)
}

fn evalsha_ro(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    by_sha(start, Flags::NO_WRITES, out)
}

fn by_body(start: &Start<'_>, more: Flags, out: &mut dyn ReplySink) -> Option<Parked> {
    let keys = keys(start, out)?;
    let epoch = start.inner.scripts.registry.epoch();
    let script = match script_of(start.inner, start.words[1], false) {
        Ok(script) => script,
        Err(text) => {
            out.error_bytes(text.as_bytes());
            return None;
        }
    };
    call(start, Arc::new(control_of(start, Code::Script(script), epoch)), more, keys, out)
}

fn by_sha(start: &Start<'_>, more: Flags, out: &mut dyn ReplySink) -> Option<Parked> {
    // A word that cannot be a digest is reported first, as in Redis.
    if start.words[1].len() != size_of::<Sha>() {
        out.error(NO_SCRIPT);
        return None;
    }
    let keys = keys(start, out)?;
    let (sha, registry) = (start.words[1], &start.inner.scripts.registry);
    let control = Control::again(start, sha, registry).or_else(|| {
        let epoch = registry.epoch();
        let script = registry.by_sha(sha)?;
        Some(Arc::new(control_of(start, Code::Script(script), epoch)))
    });
    let Some(control) = control else {
        out.error(NO_SCRIPT);
        return None;
    };
    call(start, control, more, keys, out)
}

/// Returns the number of keys. If it is invalid, writes the error and returns `None`.
fn keys(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<usize> {
    keys_or(start, "ERR value is not an integer or out of range", out)
}

/// Like [`keys`], with the error for a missing number.
pub(super) fn keys_or(start: &Start<'_>, no_number: &str, out: &mut dyn ReplySink) -> Option<usize> {
    let text = match parse_i64(start.words[2]) {
        Some(keys) if keys > start.words.len() as i64 - 3 => "ERR Number of keys can't be greater than number of args",
        Some(keys) if keys < 0 => "ERR Number of keys can't be negative",
        Some(keys) => return Some(keys as usize),
        None => no_number,
    };
    out.error(text);
    None
}

/// Returns the script with this body, compiled for the first time if it is new.
pub(crate) fn script_of(inner: &Arc<Inner>, body: &[u8], kept: bool) -> Result<Arc<Script>, String> {
    let scripts = &inner.scripts;
    if !kept && let Some(script) = scripts.registry.by_body(body) {
        return Ok(script);
    }
    let head = source::head(body)?;
    // If compiling takes too long for this thread, errors are found when the script runs.
    interpreter::check(&scripts.pool, &body[head.code..])?;
    let flags = head.flags.unwrap_or(Flags::UNSAID);
    Ok(scripts.registry.add(body, flags, head.code, kept))
}

fn call(start: &Start<'_>, control: Arc<Control>, more: Flags, keys: usize, out: &mut dyn ReplySink) -> Option<Parked> {
    let Code::Script(script) = &control.code else { return None };
    let flags = start.inner.scripts.flags_of(script);
    run(start, control, flags, more, keys, out)
}

/// Runs a script with the flags `flags` for a command that adds the flags `more`. Writes an error if they conflict, or
/// if the script may write and memory is full.
pub(super) fn run(
    start: &Start<'_>,
    control: Arc<Control>,
    flags: Flags,
    more: Flags,
    keys: usize,
    out: &mut dyn ReplySink,
) -> Option<Parked> {
    // The effects of a script without a shebang are known only when they occur.
    let writes = flags.has(Flags::SHEBANG) && !flags.has(Flags::NO_WRITES);
    if writes && !flags.has(Flags::ALLOW_OOM) && start.inner.memory.is_over() && !start.inner.make_room() {
        out.error(OOM);
        return None;
    }
    let loading = &start.inner.loading;
    let refusal = match () {
        () if start.behalf.is_masters => None,
        () if writes && loading.is_read_only() => Some(READONLY),
        () if loading.is_stale() && !flags.has(Flags::ALLOW_STALE) => Some(MASTERDOWN),
        () if writes => loading.refusal_of_writes(),
        () => None,
    };
    if let Some(text) = refusal {
        out.error(text);
        return None;
    }
    if more.has(Flags::NO_WRITES) && writes {
        out.error("ERR Can not execute a script with write flag using *_ro command.");
        return None;
    }
    let call = Call::of(start, control, flags, more, keys);
    start_call(start, call, &start.words[3..], out)
}

/// Starts a call, as a part of the caller's section if there is one.
pub(super) fn start_call(start: &Start<'_>, call: Call, words: &[&[u8]], out: &mut dyn ReplySink) -> Option<Parked> {
    let owned = || Arc::new(Words::within(start.received, words));
    if let Some(place) = start.section.and_then(|place| place.downcast_ref::<RefCell<Option<Section>>>())
        && let Some(section) = place.take()
    {
        return match Job::within(start.inner, call, words, owned, start.form, section) {
            Ok(job) => Some(Parked(Waits::Work(Box::new(Pending::new(job))))),
            Err((text, section)) => {
                place.replace(section);
                out.error_bytes(&text);
                None
            }
        };
    }
    run::start(start.inner, call, words, owned, start.form, out)
}

fn load(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    match script_of(start.inner, start.words[2], true) {
        Ok(script) => out.bulk(&script.sha),
        Err(text) => out.error_bytes(text.as_bytes()),
    }
    None
}

fn exists(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let shas = &start.words[2..];
    out.array(shas.len());
    for sha in shas {
        out.integer(start.inner.scripts.registry.by_sha(sha).is_some().into());
    }
    None
}

/// `SCRIPT KILL [id|sha [FORCE]]`.
fn kill(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let scripts = &start.inner.scripts;
    let killed = match named_to_kill(start, out) {
        Ok(None) => scripts.kill_old(false),
        Ok(Some((name, is_forced))) => scripts.kill_named(name, false, is_forced),
        Err(()) => return None,
    };
    say_killed(killed, out);
    None
}

/// Returns the target of KILL, and whether it is forced. In case of an error, writes it.
pub(super) fn named_to_kill<'s>(start: &Start<'s>, out: &mut dyn ReplySink) -> Result<Option<(&'s [u8], bool)>, ()> {
    match &start.words[2..] {
        [] => Ok(None),
        [name] => Ok(Some((name, false))),
        [name, force] if is(force, "force") => Ok(Some((name, true))),
        _ => {
            out.error("ERR syntax error");
            Err(())
        }
    }
}

pub(super) fn say_killed(killed: Killed, out: &mut dyn ReplySink) {
    match killed {
        Killed::Done => out.ok(),
        Killed::None => out.error("NOTBUSY No scripts in execution right now."),
        Killed::Unkillable => out.error(
            "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the \
             script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
        ),
        Killed::Other(text) => out.error(text),
    }
}

fn flush(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let is_known = match start.words.get(2) {
        None => true,
        Some(how) => is(how, "async") || is(how, "sync"),
    };
    if !is_known || start.words.len() > 3 {
        out.error("ERR SCRIPT FLUSH only support SYNC|ASYNC option");
        return None;
    }
    start.inner.scripts.registry.flush();
    start.inner.scripts.pool.flush();
    out.ok();
    None
}

/// Returns whether a script with these flags may write; an unknown script may.
pub(super) fn may_write(flags: Option<Flags>) -> bool {
    !flags.is_some_and(|flags| flags.has(Flags::NO_WRITES))
}

pub(super) const fn evaluates(
    name: &'static str,
    flags: CommandFlags,
    since: &'static str,
    summary: &'static str,
    handle: ScriptHandle,
) -> CommandSpec {
    CommandSpec {
        name,
        arity: -3,
        flags: CommandFlags::NOSCRIPT
            .and(CommandFlags::STALE)
            .and(CommandFlags::SKIP_MONITOR)
            .and(CommandFlags::NO_MANDATORY_KEYS)
            .and(CommandFlags::MOVABLEKEYS)
            .and(flags),
        keys: KeyRule::Counted { count: 2, destination: false },
        categories: &[Category::Scripting],
        since,
        group: "scripting",
        summary,
        complexity: "that of the script",
        handler: Handler::Script(handle),
        ..CommandSpec::EMPTY
    }
}

pub(super) const fn about(
    name: &'static str,
    arity: i32,
    since: &'static str,
    summary: &'static str,
    complexity: &'static str,
    handle: ScriptHandle,
) -> CommandSpec {
    CommandSpec {
        name,
        arity,
        flags: CommandFlags::NOSCRIPT,
        categories: &[Category::Scripting],
        since,
        group: "scripting",
        summary,
        complexity,
        handler: Handler::Script(handle),
        ..CommandSpec::EMPTY
    }
}

const SCRIPT: &[CommandSpec] = &[
    about("exists", -3, "2.6.0", "Tells which scripts are known.", "O(N), N digests", exists),
    about("flush", -2, "2.6.0", "Forgets all scripts.", "O(N), N scripts", flush),
    CommandSpec {
        flags: CommandFlags::NOSCRIPT.and(CommandFlags::ALLOW_BUSY),
        ..about("kill", -2, "2.6.0", "Ends scripts that run.", "O(N), N scripts that run", kill)
    },
    CommandSpec {
        flags: CommandFlags::NOSCRIPT.and(CommandFlags::STALE),
        ..about("load", 3, "2.6.0", "Makes a script known and returns its SHA-1.", "O(N), N bytes of the script", load)
    },
    CommandSpec {
        flags: CommandFlags::LOADING.and(CommandFlags::STALE),
        ..about("help", 2, "5.0.0", "Lists the subcommands.", "O(1)", tell::help)
    },
    about("show", 3, "8.0.0", "Returns the body of a script. Valkey has it.", "O(1)", tell::show),
    about("flags", -4, "8.0.0", FLAGS_SUMMARY, "O(1)", tell::flags),
    about(
        "list",
        2,
        "8.0.0",
        "Returns SHA-1 and body of every script. Dragonfly has it.",
        "O(N), N scripts",
        tell::list,
    ),
    about("latency", 2, "8.0.0", LATENCY_SUMMARY, "O(N), N scripts", tell::latency),
    about("gc", 2, "8.0.0", GC_SUMMARY, "O(N), N interpreters that rest", tell::collect),
    CommandSpec {
        flags: CommandFlags::NOSCRIPT.and(CommandFlags::ALLOW_BUSY),
        ..about("ps", 2, "8.0.0", PS_SUMMARY, "O(N), N keys that are held", tell::ps)
    },
];

const FLAGS_SUMMARY: &str = "Gives a script flags, by its SHA-1, in the place of those that its body names, even before it \
    is known; SCRIPT FLUSH forgets them. `allow-undeclared-keys`, `disable-atomicity`, `no-writes`, `allow-oom`, \
    `allow-stale`, and some that change nothing here: `legacy-float`, because numbers in replies always lose their fraction, \
    `no-cluster`, `allow-cross-slot-keys`. Dragonfly has it.";
const LATENCY_SUMMARY: &str = "Returns SHA-1 and a histogram, in microseconds, of the calls of every script. Dragonfly \
    has it.";
const GC_SUMMARY: &str = "Lets every interpreter that rests collect its garbage. Dragonfly has it.";
const PS_SUMMARY: &str = "Describes scripts and functions that run for longer than a slice, or wait for their keys: id, \
    sha or function, client (0: none), age-ms since it began to run or to wait, keys-held (-1: all), waiters, wrote, \
    state.";

/// The catalogue's rows of these commands.
pub(crate) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        script_may_write: Some(|inner, words| {
            may_write(script_of(inner, words[1], false).ok().map(|script| script.flags()))
        }),
        ..evaluates("eval", CommandFlags::NONE, "2.6.0", "Runs a script.", eval)
    },
    evaluates("eval_ro", CommandFlags::READONLY, "7.0.0", "Runs a script that only reads.", eval_ro),
    CommandSpec {
        script_may_write: Some(|inner, words| {
            may_write(inner.scripts.registry.by_sha(words[1]).map(|script| script.flags()))
        }),
        ..evaluates("evalsha", CommandFlags::NONE, "2.6.0", "Runs a script by its SHA-1.", evalsha)
    },
    evaluates("evalsha_ro", CommandFlags::READONLY, "7.0.0", "Runs a script that only reads by its SHA-1.", evalsha_ro),
    CommandSpec {
        name: "script",
        arity: -2,
        flags: CommandFlags::NONE,
        since: "2.6.0",
        group: "scripting",
        summary: "A container for commands about scripts.",
        complexity: "that of the subcommand",
        subcommands: SCRIPT,
        ..CommandSpec::EMPTY
    },
];
