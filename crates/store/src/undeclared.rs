//! Commands whose keys are known only while they run: SORT with BY or GET of other keys.
//!
//! Such a command is a section. It begins with the keys that its words name, and acquires each further one when it
//! reaches it; all are held in shared mode until it has replied, so its reply is a consistent snapshot, as in Redis. If
//! a further key is held by another ticket, the section ends, having written nothing, and restarts with all keys
//! declared to which its value refers by now: then it waits for them, like any section. It has to restart again only if
//! the value changes while the referenced keys are held; after [`TRIES_MAX`] starts it is refused.
//!
//! A large one runs on the [thread pool](crate::aside). In a transaction it is part of the transaction's section, which
//! declares in advance the keys to which the value refers; in an [`Alone`] transaction it acquires nothing, because
//! there are no other commands.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sluicegate_data::object::limits::Limits;
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::ReplySink;

use crate::behalf::Behalf;
use crate::catalogue::{CommandSpec, Handler, Keys, OtherKeys, Rows};
use crate::claim::Claim;
use crate::context::Ctx;
use crate::effect::Collected;
use crate::execute::{Attempted, Origin, Who};
use crate::gate::Closed;
use crate::hold::{Mode, NOBODY};
use crate::owned::{Finished, ReplyForm, Words, caught};
use crate::park::{Parked, Waits, Work};
use crate::refused::SectionError;
use crate::section::{Section, SectionWait};
use crate::stripe::Frozen;
use crate::waiter::Blocks;
use crate::{Inner, Store};

/// The maximum number of starts of a command.
const TRIES_MAX: usize = 16;
/// The maximum number of keys and elements that a command processes on the worker itself.
pub(crate) const WORK_MAX: usize = 256;

impl Keys for Section {
    fn rows(&self) -> &'static Rows {
        self.inner().rows
    }

    fn limits(&self) -> &Limits {
        &self.inner().limits
    }

    fn read(
        &mut self,
        spec: &'static CommandSpec,
        db: u32,
        words: &[&[u8]],
        out: &mut dyn ReplySink,
    ) -> Result<(), SectionError> {
        // As in Redis, a client that tracks keys is told of changes of those that it has named.
        let behalf = self.behalf();
        self.set_behalf(behalf.untracked());
        let executed = self.execute_resolved(spec, db, words, out);
        self.set_behalf(behalf);
        executed
    }

    fn see(
        &mut self,
        spec: &CommandSpec,
        db: u32,
        words: &[&[u8]],
        work: &mut dyn FnMut(&mut Ctx<'_>),
    ) -> Result<(), SectionError> {
        self.pinned(spec, db, words, work)
    }
}

/// A transaction that has closed the gate: nothing is held, and waiters are served after the gate is open.
pub(crate) struct Alone<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) closed: &'a Closed<'a>,
    pub(crate) time: Frozen,
    /// On whose behalf its commands run.
    pub(crate) behalf: Behalf,
    /// The list of its deferred effects.
    pub(crate) collected: &'a Collected,
}

impl Alone<'_> {
    fn who(&self) -> Who<'_> {
        Who {
            hash: None,
            id: NOBODY,
            time: Some(&self.time),
            collected: Some(self.collected),
            covers: false,
            blocks: Blocks::Never,
            of_script: false,
            behalf: self.behalf,
            request: &[],
        }
    }

    /// Runs a command.
    pub(crate) fn execute(&mut self, spec: &'static CommandSpec, db: u32, words: &[&[u8]], out: &mut dyn ReplySink) {
        let carried_out = match spec.leads(words) {
            Some(others) => (others.run)(self, db, words, out),
            None => self.attempt(self.who(), spec, db, words, out),
        };
        if let Err(refused) = carried_out {
            out.error(&refused.to_string());
        }
    }

    fn attempt(
        &self,
        who: Who<'_>,
        spec: &'static CommandSpec,
        db: u32,
        words: &[&[u8]],
        out: &mut dyn ReplySink,
    ) -> Result<(), SectionError> {
        let Handler::Keyspace(handle) = spec.handler else { return Err(SectionError::NotAllowed) };
        let pass = self.closed.pass();
        let attempted = self.inner.attempt(&pass, spec, handle, words, db, who, out, None);
        debug_assert!(matches!(attempted, Attempted::Done), "a hold behind a closed gate");
        Ok(())
    }
}

impl Keys for Alone<'_> {
    fn rows(&self) -> &'static Rows {
        self.inner.rows
    }

    fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    fn read(
        &mut self,
        spec: &'static CommandSpec,
        db: u32,
        words: &[&[u8]],
        out: &mut dyn ReplySink,
    ) -> Result<(), SectionError> {
        self.attempt(Who { behalf: self.behalf.untracked(), ..self.who() }, spec, db, words, out)
    }

    fn see(
        &mut self,
        spec: &CommandSpec,
        db: u32,
        words: &[&[u8]],
        work: &mut dyn FnMut(&mut Ctx<'_>),
    ) -> Result<(), SectionError> {
        self.inner.with_keys(&self.closed.pass(), spec, words, db, self.who(), work);
        Ok(())
    }
}

/// A command in progress.
pub(crate) struct Undeclared {
    inner: Arc<Inner>,
    spec: &'static CommandSpec,
    others: &'static OtherKeys,
    words: Words,
    db: u32,
    form: ReplyForm,
    behalf: Behalf,
    step: Step,
    tries: usize,
}

enum Step {
    /// It waits for its keys.
    Wait(SectionWait),
    /// Another thread runs it; the result is `None` if a key was held.
    Aside(Arc<Claim<Option<Reply>>>),
}

impl Inner {
    /// Starts a command whose words refer to other keys; most reply immediately.
    pub(crate) fn start_undeclared(
        self: &Arc<Inner>,
        spec: &'static CommandSpec,
        others: &'static OtherKeys,
        words: &[&[u8]],
        origin: Origin<'_>,
        form: ReplyForm,
        out: &mut dyn ReplySink,
    ) -> Option<Parked> {
        let Origin { db, behalf, .. } = origin;
        let step = Step::Wait(section(self, spec, words, db, &[]));
        let (inner, words) = (self.clone(), Words::new(words));
        let mut command = Box::new(Undeclared { inner, spec, others, words, db, form, behalf, step, tries: 1 });
        if let Poll::Ready(reply) = command.poll_reply(&mut Context::from_waker(Waker::noop())) {
            out.reply(&reply);
            return None;
        }
        Some(Parked(Waits::Work(command)))
    }
}

impl Work for Undeclared {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Finished> {
        self.poll_reply(context).map(|reply| self.form.collect(|out| out.reply(&reply)))
    }
}

impl Undeclared {
    fn poll_reply(&mut self, context: &mut Context<'_>) -> Poll<Reply> {
        loop {
            let reply = match &mut self.step {
                Step::Wait(wait) => match std::pin::Pin::new(wait).poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(refused)) => Some(Reply::Error(refused.to_string())),
                    Poll::Ready(Ok(mut section)) => {
                        section.set_behalf(self.behalf);
                        let words = self.words.to_vec();
                        if (self.others.work)(&self.inner, &words, self.db) > WORK_MAX {
                            self.step = Step::Aside(self.go_aside(section));
                            continue;
                        }
                        run(section, self.others, &words, self.db)
                    }
                },
                Step::Aside(claim) => match claim.poll(context.waker()) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(reply) => reply,
                },
            };
            if let Some(reply) = reply {
                return Poll::Ready(reply);
            }
            if self.tries == TRIES_MAX {
                return Poll::Ready(Reply::Error(SectionError::Held.to_string()));
            }
            self.tries += 1;
            let words = self.words.to_vec();
            let found = (self.others.find)(&self.inner, &words, self.db, usize::MAX);
            self.step = Step::Wait(section(&self.inner, self.spec, &words, self.db, &found));
        }
    }

    fn go_aside(&self, section: Section) -> Arc<Claim<Option<Reply>>> {
        let claim = Arc::new(Claim::new());
        let (others, words, db, answered) = (self.others, self.words.clone(), self.db, claim.clone());
        self.inner.aside.run(move || answered.answer(run(section, others, &words.to_vec(), db)));
        claim
    }
}

/// Returns the section of a command: its keys, and the further ones that are known.
fn section(inner: &Arc<Inner>, spec: &CommandSpec, words: &[&[u8]], db: u32, found: &[Vec<u8>]) -> SectionWait {
    let named = inner.keys_of(spec, words, db);
    let named = named.iter().map(|key| (key.db, words[key.word as usize], spec.mode()));
    Store(inner.clone()).section(named.chain(found.iter().map(|key| (db, &key[..], Mode::Shared))))
}

/// Runs a command and ends its section. Returns `None` if a key is held by others.
fn run(mut section: Section, others: &OtherKeys, words: &[&[u8]], db: u32) -> Option<Reply> {
    let mut result = Ok(());
    let (finished, _) = caught(ReplyForm::Value, |out| {
        result = (others.run)(&mut section, db, words, out);
        if result.is_err() {
            // The reply is discarded, but must be complete.
            out.null();
        }
    });
    section.finish();
    match (result, finished) {
        (Ok(()), Finished::Value(reply)) => Some(reply),
        (Err(SectionError::Held), _) => None,
        (Err(refused), _) => Some(Reply::Error(refused.to_string())),
        (Ok(()), Finished::Wire(_)) => unreachable!("a value was asked for"),
    }
}
