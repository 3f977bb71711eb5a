//! Rewrites of the append-only file: a new base, and the files before it removed.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::State;
use crate::Inner;
use crate::aof::parts::{BaseFormat, Parts};
use crate::files::{Replacement, SYNCED_EACH, reason};
use crate::record::For;
use crate::save::{Basis, Job, Kind, NotSaved, SaveEnd, Saving};

/// Failures after which the next automatic rewrite has to wait, and the longest wait.
const FAILURES_MAX: u32 = 3;
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// The time after which a store that has to begin anew tries again. Shorter in tests, which have many disks that fail.
const AGAIN: Duration = if cfg!(test) { Duration::from_millis(3) } else { Duration::from_secs(1) };

/// Notes the sizes of the files.
pub(super) fn measure(parts: &Parts, state: &mut State) {
    let directory = parts.directory();
    let bytes = |name: &[u8]| directory.entry(name).ok().flatten().map_or(0, |entry| entry.bytes);
    let manifest = parts.manifest();
    state.base_bytes = manifest.base.as_ref().map_or(0, |part| bytes(&part.name));
    let mut sizes: Vec<u64> = manifest.increments.iter().map(|part| bytes(&part.name)).collect();
    state.increment_bytes = sizes.pop().unwrap_or(0);
    state.earlier_bytes = sizes.iter().sum();
}

/// The answer to BGREWRITEAOF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rewriting {
    Begun,
    Scheduled,
    InProgress,
    /// The store has no directory.
    Nowhere,
}

impl Inner {
    /// Begins a rewrite.
    pub(crate) fn begin_rewrite(&self) -> Rewriting {
        let basis = match self.appender.is_open() {
            false if self.saver.files().is_none() => return Rewriting::Nowhere,
            false => Basis::Closed,
            true if self.appender.state.lock().must_begin_anew => Basis::Anew,
            true => Basis::Files,
        };
        match self.begin_job(Kind::Rewrite(basis)) {
            Ok(_) => Rewriting::Begun,
            Err(NotSaved::Rewriting) => Rewriting::InProgress,
            Err(NotSaved::Busy) => {
                self.appender.state.lock().is_scheduled = true;
                Rewriting::Scheduled
            }
            Err(NotSaved::Nowhere) => Rewriting::Nowhere,
        }
    }

    /// Begins a rewrite that was scheduled, or that the growth of the file asks for.
    pub(crate) fn tick_rewrites(&self) {
        let is_closed = !self.record.is_for(For::File) && !self.appender.is_open();
        let options = self.appender.options();
        let is_due = {
            let mut state = self.appender.state.lock();
            if is_closed && !state.is_scheduled {
                return;
            }
            let rested = |wait: Duration| state.failed_at.is_none_or(|at| at.elapsed() >= wait);
            let wait = match state.failures.checked_sub(FAILURES_MAX) {
                None => Duration::ZERO,
                // After some failures the time doubles from one minute on.
                Some(more) => Duration::from_secs(60 << more.min(6)).min(WAIT_MAX),
            };
            let growth = state.bytes().saturating_mul(100) / state.rewritten_bytes.max(1);
            let has_grown = options.rewrite_percentage > 0
                && state.bytes() > options.rewrite_min_bytes
                && growth >= 100 + u64::from(options.rewrite_percentage);
            let is_due = state.must_begin_anew && rested(AGAIN) || state.is_scheduled || has_grown && rested(wait);
            if is_due && has_grown && !state.is_scheduled && !state.must_begin_anew && self.saver.job().is_none() {
                self.saver.log(2, &format!("Starting automatic rewriting of AOF on {}% growth", growth - 100));
            }
            is_due && {
                state.is_scheduled = false;
                true
            }
        };
        if is_due {
            self.begin_rewrite();
        }
    }

    /// Runs a rewrite.
    pub(crate) fn run_rewrite(self: &Arc<Inner>, job: &Job, basis: Basis, saving: &Saving) {
        self.saver.log(2, &format!("Background append only file rewriting started by pid {}", std::process::id()));
        self.appender.state.lock().is_rewriting = true;
        let result = match basis {
            Basis::Closed => self.rewrite_closed(job, saving),
            Basis::Files | Basis::Anew => self.rewrite(job, basis, saving),
        };
        self.end_rewrite(job, basis, result);
    }

    fn rewrite(self: &Arc<Inner>, job: &Job, basis: Basis, saving: &Saving) -> io::Result<SaveEnd> {
        let appender = &self.appender;
        let Some(parts) = appender.parts() else { return Ok(SaveEnd::Cancelled) };
        let (pass, first, last) = self.cut_for(job, saving, || {
            if basis == Basis::Anew {
                self.record.set(For::File, true);
            }
            self.record.set_barrier()
        });
        let begun = match basis {
            Basis::Files => appender.ask(|writer| writer.rotate(appender, &parts, last).map(Some)),
            _ => appender.ask(|writer| writer.begin_anew(appender, &parts, last).map(|()| None)),
        };
        let gone = || io::Error::other("the append-only file was closed");
        let (files, temporary) = {
            let parts = parts.lock();
            (parts.directory().clone(), parts.temporary())
        };
        let begun = begun.unwrap_or_else(|| Err(gone()));
        let file = match &begun {
            Ok(_) => Replacement::new(&*files, &temporary, Some(SYNCED_EACH)),
            Err(error) => Err(io::Error::new(error.kind(), reason(error))),
        };
        let Some(base) = self.fill(&pass, &first, file, saving)? else { return Ok(SaveEnd::Cancelled) };
        drop(pass);
        match begun? {
            Some(first_kept) => parts.lock().replace_base(base, BaseFormat::Rdb, first_kept, None)?,
            None => {
                // What was appended meanwhile is in the increment that is named now.
                let part = appender.ask(|writer| writer.unnamed()).flatten().ok_or_else(gone)?;
                parts.lock().replace_base(base, BaseFormat::Rdb, part.seq, Some(part))?;
                appender.ask(|writer| writer.set_named(&appender.state, last)).ok_or_else(gone)?;
            }
        }
        appender.set_holds();
        let mut parts = parts.lock();
        {
            let mut state = appender.state.lock();
            measure(&parts, &mut state);
            state.rewritten_bytes = state.bytes();
        }
        // Files that are left are removed by the next rewrite.
        if let Err(error) = parts.remove_history() {
            self.saver.log(3, &format!("Error removing old AOF files: {}", reason(&error)));
        }
        Ok(SaveEnd::Saved)
    }

    /// Writes a base file while the append-only file is off, as Redis does: the files so far are removed, and whoever
    /// begins with this directory and `appendonly yes` has the data set of this moment.
    fn rewrite_closed(self: &Arc<Inner>, job: &Job, saving: &Saving) -> io::Result<SaveEnd> {
        let Some(files) = self.saver.files() else { return Ok(SaveEnd::Cancelled) };
        let options = self.appender.options();
        let mut parts = Parts::open_to_replace(&*files, &options.directory, &options.name)
            .map_err(|fault| io::Error::other(fault.to_string()))?;
        let (pass, first, ()) = self.cut_for(job, saving, || {});
        let directory = parts.directory().clone();
        let file = Replacement::new(&*directory, &parts.temporary(), Some(SYNCED_EACH));
        let Some(base) = self.fill(&pass, &first, file, saving)? else { return Ok(SaveEnd::Cancelled) };
        drop(pass);
        parts.replace_base(base, BaseFormat::Rdb, i64::MAX, None)?;
        parts.remove_history()?;
        Ok(SaveEnd::Saved)
    }

    /// Returns whether the append-only file is rewritten although it is off.
    pub(crate) fn is_rewriting_closed(&self) -> bool {
        self.saver.job().is_some_and(|job| job.kind == Kind::Rewrite(Basis::Closed))
    }

    /// Cancels a rewrite, and waits until it has ended: to be called on a thread that may.
    pub(crate) fn cancel_rewrite(&self) {
        if let Some(job) = self.saver.job().filter(|job| job.is_rewrite()) {
            // Redis's line; its child is a thread of this process.
            self.saver.log(2, &format!("Killing running AOF rewrite child: {}", std::process::id()));
            job.cancel();
            job.wait_for_end();
        }
    }

    /// Records the end of a rewrite.
    pub(crate) fn end_rewrite(&self, job: &Job, basis: Basis, result: io::Result<SaveEnd>) {
        match &result {
            Ok(SaveEnd::Saved) => {
                self.saver.log(2, "Background AOF rewrite terminated with success");
                // Redis has one line for its child and one for the files.
                self.saver.log(2, "Background AOF rewrite finished successfully");
            }
            Ok(_) => self.saver.log(2, "Background AOF rewrite cancelled"),
            Err(error) => {
                self.saver.log(3, &format!("Write error writing append only file on disk: {}", reason(error)));
                self.saver.log(3, "Background AOF rewrite terminated with error");
            }
        }
        {
            // INFO reads the figures and the job under this lock: whoever sees the figures of this rewrite may begin another.
            let mut state = self.appender.state.lock();
            state.is_rewriting = false;
            state.last_took_s = Some(job.age_s());
            state.last_failed = result.is_err();
            if result.is_ok() {
                state.rewrites += u64::from(matches!(result, Ok(SaveEnd::Saved)));
                (state.failures, state.failed_at) = (0, None);
            } else {
                state.failures += 1;
                state.failed_at = Some(Instant::now());
                state.must_begin_anew |= basis == Basis::Anew;
            }
            self.saver.forget_job();
        }
        job.end(result.unwrap_or(SaveEnd::Failed));
        self.record.wake_taker();
    }
}
