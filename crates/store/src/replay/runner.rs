//! Commands that run without a client: under the locks of their keys if possible. Those of a file tell nobody of what they
//! change; those of a master do, and do not keep a stripe locked for longer than a client's.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_wire::resp::Protocol;

use crate::Inner;
use crate::behalf::Behalf;
use crate::catalogue::{CommandSpec, Handle, Handler};
use crate::effect::Collected;
use crate::execute::{Attempted, Origin, Who};
use crate::owned::{Finished, ReplyForm};
use crate::script::errors_only::ErrorsOnly;
use crate::thread::block_on;
use crate::waiter::Blocks;

/// Where commands without a client come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// An append-only file that is replayed.
    File,
    /// The master of this replica.
    Master,
}

/// The time after which a command that would be refused is tried again.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
/// The number of errors of commands that are logged.
pub(crate) const ERRORS_LOGGED: usize = 100;

/// A thread that runs commands, and what it has to tell.
pub(crate) struct Runner {
    inner: Arc<Inner>,
    source: Source,
    /// The events of a file's commands, which are dropped.
    collected: Collected,
    /// The error of the last command.
    error: Vec<u8>,
    pub(crate) told: Told,
}

/// What is told of commands that ran.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) commands: u64,
    /// Those of them whose reply was an error.
    pub(crate) errors: u64,
    /// Lines for the log about the first of these.
    pub(crate) lines: Vec<String>,
}

impl Told {
    /// Adds what another thread has to tell.
    pub(super) fn add(&mut self, other: &mut Told) {
        self.commands += std::mem::take(&mut other.commands);
        self.errors += std::mem::take(&mut other.errors);
        self.lines.append(&mut other.lines);
    }
}

impl Runner {
    pub(crate) fn new(inner: Arc<Inner>, source: Source) -> Runner {
        Runner { inner, source, collected: Collected::default(), error: Vec::new(), told: Told::default() }
    }

    /// Executes a command of the store; `hash` is that of its only key, if it is known.
    #[inline]
    pub(crate) fn run(&mut self, spec: &'static CommandSpec, db: u32, words: &[&[u8]], hash: Option<u64>) {
        match spec.handler {
            Handler::Keyspace(handle) if spec.leads(words).is_none() => self.run_now(spec, handle, db, words, hash),
            _ => self.run_alone(spec, db, words),
        }
        self.told.commands += 1;
        if !self.error.is_empty() {
            self.report(spec, words);
        }
    }

    /// Executes a command under the locks of its keys.
    #[inline]
    fn run_now(&mut self, spec: &'static CommandSpec, handle: Handle, db: u32, words: &[&[u8]], hash: Option<u64>) {
        let plain = Who::plain(ReplyForm::Value, self.behalf());
        let collected = (self.source == Source::File).then_some(&self.collected);
        let who = Who { collected, blocks: Blocks::Never, hash, ..plain };
        let attempted = {
            let pass = self.inner.gate.enter();
            let out = &mut ErrorsOnly(&mut self.error);
            self.inner.attempt(&pass, spec, handle, words, db, who, out, None)
        };
        match attempted {
            Attempted::Done | Attempted::Blocked(_) => {}
            Attempted::Ready(ready) => self.inner.serve_and_end(*ready),
            // A script has its keys, or it takes long.
            Attempted::Held | Attempted::Long if self.inner.rows.has(spec) => self.run_alone(spec, db, words),
            Attempted::Held | Attempted::Long => self.insist(spec, handle, db, words),
        }
        let collected = self.collected.get_mut();
        if !collected.is_empty() {
            collected.clear();
        }
    }

    /// Executes a command as a client's, and waits for its end.
    #[cold]
    fn run_alone(&mut self, spec: &'static CommandSpec, db: u32, words: &[&[u8]]) {
        let origin = Origin { db, behalf: self.behalf(), ..Origin::default() };
        let form = ReplyForm::Wire(Protocol::Resp2);
        loop {
            self.error.clear();
            let out = &mut ErrorsOnly(&mut self.error);
            if let Some(mut parked) = self.inner.start(&self.inner, spec, words, origin, form, out) {
                // Nobody else would serve it.
                parked.time_out();
                match block_on(|context| parked.poll_finished(context)) {
                    Finished::Wire(reply) if reply.starts_with(b"-") => self.error = reply,
                    Finished::Wire(_) | Finished::Value(_) => {}
                }
            }
            // Clients are refused behind a long script, or if too many wait; the master's command waits.
            if self.source == Source::File || !self.error.starts_with(b"-BUSY ") {
                return;
            }
            std::thread::sleep(BUSY_PAUSE);
        }
    }

    /// Executes a command that is in no catalogue, whenever its keys are free.
    #[cold]
    fn insist(&mut self, spec: &'static CommandSpec, handle: Handle, db: u32, words: &[&[u8]]) {
        loop {
            let who = Who {
                collected: Some(&self.collected),
                blocks: Blocks::Never,
                ..Who::plain(ReplyForm::Value, self.behalf())
            };
            let attempted = {
                let pass = self.inner.gate.enter();
                let out = &mut ErrorsOnly(&mut self.error);
                self.inner.attempt(&pass, spec, handle, words, db, who, out, None)
            };
            match attempted {
                Attempted::Held | Attempted::Long => std::thread::sleep(BUSY_PAUSE),
                Attempted::Ready(ready) => return self.inner.serve_and_end(*ready),
                Attempted::Done | Attempted::Blocked(_) => return self.inner.emit(self.collected.take()),
            }
        }
    }

    fn behalf(&self) -> Behalf {
        match self.source {
            Source::File => Behalf::CLIENT,
            Source::Master => Behalf::MASTER,
        }
    }

    /// Records the error of a command that was run otherwise.
    pub(crate) fn add_error(&mut self, command: &str, error: &[u8]) {
        self.told.errors += 1;
        if self.told.lines.len() < ERRORS_LOGGED {
            self.told.lines.push(line(self.source, command, error));
        }
    }

    /// Records the error of a command.
    #[cold]
    fn report(&mut self, spec: &CommandSpec, words: &[&[u8]]) {
        self.told.errors += 1;
        if self.told.lines.len() < ERRORS_LOGGED {
            let command = match self.inner.rows.find(words[0]).map(|row| row.spec) {
                Some(container) if matches!(container.handler, Handler::Container) => {
                    format!("{}|{}", container.name, spec.name)
                }
                _ => spec.name.to_owned(),
            };
            self.told.lines.push(line(self.source, &command, &self.error));
        }
        self.error.clear();
    }
}

/// Returns Redis's log line about the error of a command.
fn line(source: Source, command: &str, error: &[u8]) -> String {
    let error = error.trim_ascii();
    // In the log quotes are no danger.
    let error = error.strip_prefix(b"-").unwrap_or(error).escape_ascii().to_string().replace("\\'", "'");
    let (from, to) = match source {
        Source::File => ("server", "AOF-loading-client"),
        Source::Master => ("replica", "master"),
    };
    format!(
        "== CRITICAL == This {from} is sending an error to its {to}: '{error}' after processing the command '{command}'"
    )
}
