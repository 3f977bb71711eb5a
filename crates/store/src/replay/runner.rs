//! Commands that run without a client: under the locks of their keys if possible.

use std::sync::Arc;

use sluicegate_wire::resp::Protocol;

use crate::Inner;
use crate::catalogue::{CommandSpec, Handle, Handler};
use crate::effect::Collected;
use crate::execute::{Attempted, Origin, Who};
use crate::owned::{Finished, ReplyForm};
use crate::script::errors_only::ErrorsOnly;
use crate::thread::block_on;
use crate::waiter::Blocks;

/// The number of errors of commands that are logged.
pub(super) const ERRORS_LOGGED: usize = 100;

/// A thread that runs commands, and what it has to tell.
pub(super) struct Runner {
    inner: Arc<Inner>,
    /// The events of commands, which are dropped.
    collected: Collected,
    /// The error of the last command.
    error: Vec<u8>,
    pub(super) told: Told,
}

/// What is told of commands that ran.
#[derive(Default)]
pub(super) struct Told {
    pub(super) commands: u64,
    /// Those of them whose reply was an error.
    pub(super) errors: u64,
    /// Lines for the log about the first of these.
    pub(super) lines: Vec<String>,
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
    pub(super) fn new(inner: Arc<Inner>) -> Runner {
        Runner { inner, collected: Collected::default(), error: Vec::new(), told: Told::default() }
    }

    /// Executes a command of the store; `hash` is that of its only key, if it is known.
    #[inline]
    pub(super) fn run(&mut self, spec: &'static CommandSpec, db: u32, words: &[&[u8]], hash: Option<u64>) {
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
        let plain = Who::plain(ReplyForm::Value, false);
        let who = Who { collected: Some(&self.collected), blocks: Blocks::Never, hash, ..plain };
        let attempted = {
            let pass = self.inner.gate.enter();
            let out = &mut ErrorsOnly(&mut self.error);
            self.inner.attempt(&pass, spec, handle, words, db, who, out, None)
        };
        match attempted {
            Attempted::Done | Attempted::Blocked(_) => {}
            Attempted::Ready(ready) => self.inner.serve_and_end(*ready),
            // A script of the file is still giving its keys back.
            Attempted::Held | Attempted::Long => self.run_alone(spec, db, words),
        }
        let collected = self.collected.get_mut();
        if !collected.is_empty() {
            collected.clear();
        }
    }

    /// Executes a command as a client's, and waits for its end.
    #[cold]
    fn run_alone(&mut self, spec: &'static CommandSpec, db: u32, words: &[&[u8]]) {
        let (origin, form) = (Origin { db, ..Origin::default() }, ReplyForm::Wire(Protocol::Resp2));
        let out = &mut ErrorsOnly(&mut self.error);
        let Some(mut parked) = self.inner.start(&self.inner, spec, words, origin, form, out) else { return };
        // Nobody else would serve it.
        parked.time_out();
        match block_on(|context| parked.poll_finished(context)) {
            Finished::Wire(reply) if reply.starts_with(b"-") => self.error = reply,
            Finished::Wire(_) | Finished::Value(_) => {}
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
            let error = self.error.trim_ascii();
            let error = error.strip_prefix(b"-").unwrap_or(error).escape_ascii();
            self.told.lines.push(format!(
                "== CRITICAL == This server is sending an error to its AOF-loading-client: '{error}' after processing the \
                 command '{command}'"
            ));
        }
        self.error.clear();
    }
}
