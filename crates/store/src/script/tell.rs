//! The informational subcommands of SCRIPT: HELP, SHOW, FLAGS, LIST, LATENCY, GC and PS.

use std::collections::{HashMap, HashSet};

use sluicegate_wire::resp::ReplySink;

use super::command::NO_SCRIPT;
use super::control::Control;
use super::registry::{PRESETS_MAX, Sha};
use super::source;
use crate::Inner;
use crate::catalogue::Start;
use crate::command;
use crate::park::{Parked, Waits};

/// `SCRIPT HELP`.
pub(super) fn help(_: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let lines = [
        "EXISTS <sha1> [<sha1> ...]",
        "    Tells which scripts are known.",
        "FLAGS <sha1> <flag> [<flag> ...]",
        "    Gives a script flags in the place of its own.",
        "FLUSH [ASYNC|SYNC]",
        "    Forgets all scripts, and their flags.",
        "GC",
        "    Lets interpreters collect their garbage.",
        "KILL [<id>|<sha1> [FORCE]]",
        "    Ends scripts that run: all that are too old and have not written, or those named.",
        "LATENCY",
        "    Returns for each script how long its calls took.",
        "LIST",
        "    Returns all scripts.",
        "LOAD <script>",
        "    Makes a script known without running it.",
        "PS",
        "    Describes scripts that run or wait for their keys.",
        "SHOW <sha1>",
        "    Returns a script.",
    ];
    command::help("SCRIPT", &lines, out);
    None
}

/// `SCRIPT SHOW sha1`.
pub(super) fn show(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    match start.inner.scripts.registry.by_sha(start.words[2]) {
        Some(script) => out.bulk(&script.body),
        None => out.error(NO_SCRIPT),
    }
    None
}

/// `SCRIPT FLAGS sha1 flag…`.
pub(super) fn flags(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let sha = start.words[2].to_ascii_lowercase();
    let Some(sha) = Sha::try_from(sha).ok().filter(|sha| sha.iter().all(u8::is_ascii_hexdigit)) else {
        out.error("ERR Invalid SHA-1: 40 hexadecimal digits are expected");
        return None;
    };
    match source::listed(&start.words[3..].join(&b' ')) {
        Ok(flags) if start.inner.scripts.registry.set_flags(sha, flags) => out.ok(),
        Ok(_) => out.error(&format!("ERR {PRESETS_MAX} scripts have flags of their own already")),
        Err(text) => out.error(&format!("ERR Invalid config format: {text}")),
    }
    None
}

/// `SCRIPT LIST`.
pub(super) fn list(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let scripts = start.inner.scripts.registry.all();
    out.array(scripts.len());
    for script in scripts {
        out.array(2);
        out.bulk(&script.sha);
        out.bulk(&script.body);
    }
    None
}

/// `SCRIPT LATENCY`.
pub(super) fn latency(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let scripts = start.inner.scripts.registry.all();
    let called: Vec<(Sha, String)> =
        scripts.iter().filter_map(|script| Some((script.sha, script.times.text()?))).collect();
    out.array(called.len());
    for (sha, text) in called {
        out.array(2);
        out.bulk(&sha);
        out.verbatim(*b"txt", text.as_bytes());
    }
    None
}

/// `SCRIPT GC`: one interpreter after the other, in slices.
pub(super) fn collect(start: &Start<'_>, _: &mut dyn ReplySink) -> Option<Parked> {
    let inner = start.inner.clone();
    let mut left = inner.scripts.pool.assemble();
    let step = move || {
        left = left.saturating_sub(1);
        !inner.scripts.pool.collect_one() || left == 0
    };
    Some(Parked(Waits::Steps(Box::new(step), start.form)))
}

/// `SCRIPT PS`.
pub(super) fn ps(start: &Start<'_>, out: &mut dyn ReplySink) -> Option<Parked> {
    let running = start.inner.scripts.running.all();
    let waiters = if running.is_empty() { HashMap::new() } else { start.inner.waiters() };
    out.array(running.len());
    for control in running {
        describe(&control, waiters.get(&control.section()).copied().unwrap_or(0), out);
    }
    None
}

fn describe(control: &Control, waiters: usize, out: &mut dyn ReplySink) {
    out.map(8);
    out.bulk(b"id");
    out.integer(control.id as i64);
    out.bulk(if control.code.is_function() { b"function" } else { b"sha" });
    out.bulk(control.code.name().as_bytes());
    out.bulk(b"client");
    out.integer(control.client as i64);
    out.bulk(b"age-ms");
    out.integer(control.age().as_millis() as i64);
    out.bulk(b"keys-held");
    out.integer(control.held());
    out.bulk(b"waiters");
    out.integer(waiters as i64);
    out.bulk(b"wrote");
    out.integer(control.has_written().into());
    out.bulk(b"state");
    out.bulk(if control.has_begun() { b"running" } else { b"waiting" });
}

impl Inner {
    /// Returns the number of waiters for the keys of each section that holds some.
    fn waiters(&self) -> HashMap<u64, usize> {
        let mut pairs: HashSet<(u64, u64)> = HashSet::new();
        if let Some(owner) = self.everything.owner() {
            pairs.extend(self.everything.denied().iter().map(|ticket| (owner, ticket.id)));
        }
        let pass = self.gate.enter();
        for db in (0..self.keyspace.databases()).filter_map(|index| self.keyspace.db(&pass, index)) {
            for stripe in 0..db.stripes() {
                if let Some(holds) = db.lock(stripe).holds.as_deref() {
                    holds.note_waiters(&mut pairs);
                }
            }
        }
        let mut waiters = HashMap::new();
        pairs.into_iter().for_each(|(holder, _)| *waiters.entry(holder).or_default() += 1);
        waiters
    }
}
