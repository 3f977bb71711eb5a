//! A transaction of a few short commands, which runs while the locks of all their stripes are held.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use sluicegate_wire::resp::{ReplySink, ReplyWriter};
use smallvec::SmallVec;

use super::queue::Queued;
use super::{Connection, selected};
use crate::Inner;
use crate::catalogue::{Handler, Numbered};
use crate::multi_lock::Plan;
use crate::park::Ready;
use crate::refused::FAILED;
use crate::watching::Watching;

/// A command of a transaction that runs under these locks.
struct Step {
    row: Numbered,
    /// The range of its words among those of all commands.
    words: Range<usize>,
    db: u32,
    /// Its index in the plan, if it is a keyspace command.
    planned: Option<usize>,
}

/// The results of commands that ran under these locks.
pub(super) struct Together {
    /// The start of the first reply in the output.
    pub(super) head: usize,
    /// The end of each reply; none if the transaction was refused because of a watched key.
    pub(super) ends: SmallVec<[usize; 8]>,
    /// The indices and durations of the commands that are timed individually; empty if none is.
    pub(super) timed: Vec<(usize, Duration)>,
    /// Keys for which blocked clients wait.
    pub(super) ready: Option<Box<Ready>>,
}

/// Runs commands under the locks of all their stripes, and ends the watch. Returns [`None`], without any effect, if the
/// commands cannot be run this way.
pub(super) fn run_together(
    inner: &Inner,
    commands: &[Queued],
    watching: Option<&Watching>,
    context: &mut impl Connection,
    output: &mut Vec<u8>,
) -> Option<Together> {
    let mut words: SmallVec<[&[u8]; 32]> = SmallVec::new();
    for queued in commands {
        words.extend((0..queued.words.len()).map(|word| queued.words.get(word)));
    }
    let mut plan = Plan::new();
    if watching.is_some_and(|watching| !plan.watch(inner, watching)) {
        return None;
    }
    let mut steps: SmallVec<[Step; 8]> = SmallVec::new();
    let (mut db, mut from, mut planned) = (context.db(), 0, 0);
    for queued in commands {
        let of_command = from..from + queued.words.len();
        from = of_command.end;
        let is_own = queued.is_own();
        if !is_own {
            if !plan.add(inner, queued.spec(), &words[of_command.clone()], db) {
                return None;
            }
            planned += 1;
        } else if queued.spec().selects() {
            db = selected(inner, words[of_command.start + 1]).unwrap_or(db);
        }
        steps.push(Step { row: queued.row, words: of_command, db, planned: (!is_own).then(|| planned - 1) });
    }
    let pass = inner.gate.enter();
    if commands.iter().any(|queued| inner.comes_late(queued.spec(), context.behalf())) {
        return None;
    }
    let mut ctx = plan.lock(inner, &pass)?;
    let is_dirty = watching.is_some_and(|watching| plan.ends_watch_dirty(&mut ctx, watching));
    let protocol = context.protocol();
    let (mut ends, mut timed) = (SmallVec::new(), Vec::new());
    if is_dirty {
        ReplyWriter::new(output, protocol).null_array();
        return Some(Together { head: output.len(), ends, timed, ready: Plan::unlock(inner, ctx) });
    }
    ReplyWriter::new(output, protocol).array(steps.len());
    let head = output.len();
    for (at, step) in steps.iter().enumerate() {
        let start = context.is_timed(step.row.spec, step.words.len()).then(Instant::now);
        let before = output.len();
        let words = &words[step.words.clone()];
        // A panic ends only its own command; the others still run.
        let run = catch_unwind(AssertUnwindSafe(|| {
            let out = &mut ReplyWriter::new(output, protocol);
            match (step.planned, step.row.spec.handler) {
                (Some(number), Handler::Keyspace(handle)) => {
                    plan.turn_to(number, &mut ctx, words, step.db);
                    ctx.now.behalf = context.behalf();
                    handle(&mut ctx, out);
                    ctx.conclude(|| step.row.spec.recorded());
                }
                (_, Handler::Connection(_)) => drop(context.run(step.row.number, words, out)),
                _ => out.error(FAILED),
            }
        }));
        if run.is_err() {
            output.truncate(before);
            ReplyWriter::new(output, protocol).error(FAILED);
        }
        ends.push(output.len());
        timed.extend(start.map(|start| (at, start.elapsed())));
    }
    Some(Together { head, ends, timed, ready: Plan::unlock(inner, ctx) })
}
