//! MULTI, EXEC, DISCARD, WATCH, UNWATCH of a connection, and the connection's side of a
//! [transaction](crate::transaction).

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter};

use super::dispatch::{Context, INDEX, Moment, Outcome, Session, count_error, is_timed_alone, judge};
use super::slowlog;
use crate::Inner;
use crate::behalf::Behalf;
use crate::catalogue::{CommandSpec, Guard, Numbered};
use crate::execute::Origin;
use crate::owned::ReplyForm;
use crate::park::{Parked, Waits};
use crate::script::errors_only::ErrorsOnly;
use crate::transaction::{Connection, Exec, Ran};
use crate::watching::Watching;

/// `MULTI`.
pub(super) fn multi(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if context.session.rare.multi.is_some() {
        out.error("ERR MULTI calls can not be nested");
    } else {
        context.session.rare.multi = Some(Box::default());
        out.ok();
    }
    Outcome::Done
}

/// `DISCARD`.
pub(super) fn discard(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let inner = &context.worker.server.store.0;
    if context.session.rare.multi.is_none() {
        out.error("ERR DISCARD without MULTI");
    } else {
        end_queue(context.session, inner);
        end_watch(context.session, inner);
        out.ok();
    }
    Outcome::Done
}

/// `WATCH key…`.
pub(super) fn watch(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if context.session.rare.multi.is_some() {
        out.error("ERR WATCH inside MULTI is not allowed");
        return Outcome::Done;
    }
    let inner = &context.worker.server.store.0;
    let watching =
        context.session.rare.watching.get_or_insert_with(|| Box::new(Watching::new(inner, &context.client.account)));
    let db = context.session.db;
    let held = args[1..].iter().find(|key| !watching.add(inner, db, key));
    if let Some(key) = held
        && let Some(row) = inner.rows.find(b"exists")
    {
        // A command that reads the key waits as long.
        let origin = Origin { db, client: context.client.id, ..Origin::default() };
        let out = &mut ErrorsOnly(&mut Vec::new());
        let words: [&[u8]; 2] = [b"EXISTS", key];
        return Outcome::Again(inner.start(inner, row.spec, &words, origin, ReplyForm::Wire(Protocol::Resp2), out));
    }
    out.ok();
    Outcome::Done
}

/// `UNWATCH`.
pub(super) fn unwatch(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    // Queued, it comes too late to change anything: EXEC has ended the watch.
    end_watch(context.session, &context.worker.server.store.0);
    out.ok();
    Outcome::Done
}

/// `EXEC`.
pub(super) fn exec(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let inner = context.worker.server.store.0.clone();
    let Some(multi) = context.session.rare.multi.take() else {
        out.error("ERR EXEC without MULTI");
        return Outcome::Done;
    };
    if multi.aborted {
        multi.free(&inner);
        end_watch(context.session, &inner);
        out.error("EXECABORT Transaction discarded because of previous errors.");
        return Outcome::Done;
    }
    if context.session.rare.watching.as_ref().is_some_and(|watching| watching.mark.is_dirty()) {
        multi.free(&inner);
        end_watch(context.session, &inner);
        out.null_array();
        return Outcome::Done;
    }
    Outcome::Exec(Box::new(Exec::new(inner, *multi, context.session.db)))
}

/// Polls a transaction of the connection; the reply is complete when it is ready.
pub(super) fn poll(exec: &mut Exec, waker: &Waker, context: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<()> {
    context.session.in_exec = true;
    let polled = exec.poll(waker, context, output);
    context.session.in_exec = false;
    polled
}

/// Drops the commands queued since MULTI, if any.
pub(super) fn end_queue(session: &mut Session, inner: &Inner) {
    if let Some(multi) = session.rare.multi.take() {
        multi.free(inner);
    }
}

/// Ends the watch of a client.
pub(super) fn end_watch(session: &mut Session, inner: &Inner) {
    if let Some(watching) = session.rare.watching.take() {
        watching.end(inner);
    }
}

impl Connection for Context<'_> {
    #[inline]
    fn db(&self) -> u32 {
        self.session.db
    }

    #[inline]
    fn protocol(&self) -> Protocol {
        self.session.protocol
    }

    #[inline]
    fn behalf(&self) -> Behalf {
        self.session.behalf
    }

    #[inline]
    fn is_mute(&self) -> bool {
        self.session.is_mute()
    }

    fn client(&self) -> u64 {
        self.client.id
    }

    #[inline]
    fn is_restricted(&self) -> bool {
        self.session.user.restrictions().is_some()
    }

    fn permits(&self, row: Numbered, words: &[&[u8]]) -> bool {
        let (acl, permissions) = (&self.worker.server.store.0.acl, self.session.user.permissions());
        permissions.refuses(acl.commands(), row, words).is_none()
    }

    fn denial(&mut self, row: Numbered, words: &[&[u8]]) -> Option<Vec<u8>> {
        self.denial_in_exec(row, words)
    }

    fn guard(&mut self) -> Option<Arc<dyn Guard>> {
        Context::guard(self, &[])
    }

    fn count_denied(&self, reply: &[u8]) {
        count_error(self.worker, reply, 0);
    }

    #[inline]
    fn watching(&mut self) -> &mut Option<Box<Watching>> {
        &mut self.session.rare.watching
    }

    fn drain_messages(&mut self, output: &mut Vec<u8>) {
        if (self.session.listens() || self.session.tracks_keys()) && self.client.outbox.is_filled() {
            self.client.outbox.drain(output);
        }
    }

    #[inline]
    fn has_monitors(&self) -> bool {
        self.worker.server.monitors.any()
    }

    #[inline]
    fn is_timed(&self, spec: &CommandSpec, words: usize) -> bool {
        is_timed_alone(spec, words, self.options)
    }

    fn run(&mut self, row: u16, words: &[&[u8]], out: &mut ReplyWriter<'_>) -> Ran {
        let Some(local) = INDEX.rows()[usize::from(row)].local() else { return Ran::Waits };
        match local.call(self, words, out) {
            Outcome::Done | Outcome::Paused { .. } | Outcome::Again(_) => Ran::Done,
            Outcome::Close => Ran::Close,
            Outcome::Parked(Parked(Waits::Sleep(nap, time, _))) => Ran::Sleep(nap, time),
            Outcome::Abort | Outcome::Exec(_) | Outcome::Parked(_) | Outcome::Later(_) => Ran::Waits,
        }
    }

    fn changes_listening(&self, row: u16) -> bool {
        INDEX.rows()[usize::from(row)].traits.changes_subscriptions
    }

    fn pushes(&self, row: u16) -> bool {
        INDEX.rows()[usize::from(row)].traits.pushes
    }

    #[inline]
    fn show_before<'w>(&self, row: u16, words: impl FnOnce() -> Vec<&'w [u8]>) {
        self.show(&INDEX.rows()[usize::from(row)], Moment::Before, words);
    }

    #[inline]
    fn show_after<'w>(&self, row: u16, words: impl FnOnce() -> Vec<&'w [u8]>) {
        self.show(&INDEX.rows()[usize::from(row)], Moment::After, words);
    }

    fn judge<'w>(&self, row: u16, spent: Duration, words: impl FnOnce() -> Vec<&'w [u8]>) {
        let words = || slowlog::shortened(&INDEX.rows()[usize::from(row)], &words());
        judge(&self.worker.server, self.options, row, spent, || self.client.sender(), words);
    }

    #[inline]
    fn count(&mut self, row: u16, reply: &[u8]) {
        self.session.count_inner(self.worker, row, reply);
    }
}
