//! What is queued since MULTI, and the commands that begin and end a queue or a watch.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_wire::resp::{ReplySink, ReplyWriter};

use crate::Inner;
use crate::catalogue::{CommandSpec, Cost, ELEMENTS_MAX, Flags, Handler, KEYS_MAX};
use crate::memory::{Account, Share};
use crate::multi_lock::{COMMANDS_MAX, are_short, suits};
use crate::owned::Words;
use crate::server::dispatch::{Context, INDEX, Outcome, Row, Session, judge};
use crate::server::{pause, slowlog};
use crate::watching::Watching;

/// Commands of more bytes than this are freed by a thread aside.
pub(super) const FREED_ASIDE: usize = 128 << 10;
/// What a queued command takes beside its words, in bytes.
const OVERHEAD: usize = size_of::<Queued>() + 32;

/// A command that waits for EXEC.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) row: u16,
    pub(super) words: Words,
}

impl Queued {
    pub(super) fn spec(&self) -> &'static CommandSpec {
        INDEX.rows()[usize::from(self.row)].spec
    }

    pub(super) fn cost(&self) -> Cost {
        self.spec().cost_of(self.words.len())
    }

    /// Keeps it for the slow log and as an event if it took long.
    pub(super) fn judge(&self, spent: Duration, context: &Context<'_>) {
        let words = || slowlog::shortened(&INDEX.rows()[usize::from(self.row)], &self.words.to_vec());
        judge(&context.worker.server, context.options, self.row, spent, || context.client.sender(), words);
    }

    /// Whether it may have to be carried out by another thread.
    pub(super) fn may_take_long(&self) -> bool {
        match self.cost() {
            _ if matches!(self.spec().handler, Handler::Script(_)) => true,
            Cost::Constant => self.words.len() > ELEMENTS_MAX,
            Cost::PerKey => self.words.len() > KEYS_MAX,
            _ => matches!(self.spec().handler, Handler::Keyspace(_) | Handler::Script(_)),
        }
    }
}

/// What is queued since MULTI.
#[derive(Debug, Default)]
pub(in crate::server) struct Multi {
    pub(super) commands: Vec<Queued>,
    pub(super) bytes: usize,
    /// What its client's account knows of that.
    pub(super) share: Share,
    /// A command was refused, so EXEC will be, and nothing more is queued.
    pub aborted: bool,
    /// Commands that were queued before, which are kept no longer.
    dropped: usize,
    /// The flags of all commands together.
    flags: u32,
    /// One of them does more than is done under one locking.
    pub(super) is_long: bool,
    /// One of them needs the keyspace for itself.
    pub(super) is_alone: bool,
    /// One of them is about scripts.
    pub(super) has_script: bool,
}

/// Commands of the connection that may be run while stripes are locked: they lock nothing, wake nobody and are short.
const UNDER_LOCKS: &[&str] = &["echo", "ping", "select", "unwatch"];

impl Multi {
    /// Queues a command, on the account of its client.
    pub fn push(
        &mut self,
        account: &Arc<Account>,
        row: u16,
        command: &Row,
        args: &[&[u8]],
        received: Option<&crate::owned::Received>,
    ) {
        let spec = command.spec;
        let words = Words::within(received, args);
        self.bytes += args.iter().map(|word| word.len() + size_of::<usize>()).sum::<usize>() + OVERHEAD;
        self.flags |= spec.flags.0;
        self.is_long |= self.commands.len() == COMMANDS_MAX
            || match command.local() {
                Some(_) => !UNDER_LOCKS.contains(&&*command.full_name) || !are_short(args),
                None => !suits(spec, args),
            };
        self.is_alone |= spec.needs_everything();
        self.has_script |= matches!(spec.handler, Handler::Script(_));
        self.commands.push(Queued { row, words });
        self.share.set(account, self.bytes);
    }

    /// Frees what was queued because there is no memory: EXEC will be refused.
    pub fn give_up(&mut self, inner: &Inner) {
        let given_up = Multi { aborted: true, dropped: self.size().0, flags: self.flags, ..Multi::default() };
        let mut queued = std::mem::replace(self, given_up);
        // What is freed aside is as good as free: its client is not to be closed because of it.
        queued.share.set_own(0);
        queued.free(inner);
    }

    /// Frees what is queued and will not be run, a long queue aside.
    pub fn free(self, inner: &Inner) {
        if self.bytes > FREED_ASIDE {
            inner.aside.run(move || drop(self));
        }
    }

    /// Number of commands, and the bytes they take.
    pub fn size(&self) -> (usize, usize) {
        (self.dropped + self.commands.len(), self.bytes)
    }

    /// Whether one of the commands waits while writes are paused.
    pub fn may_write(&self, inner: &Arc<Inner>) -> bool {
        self.commands.iter().any(|queued| pause::may_write(inner, queued.spec(), &queued.words.to_vec()))
    }

    /// Whether one of the commands has this flag.
    pub fn has(&self, flag: Flags) -> bool {
        Flags(self.flags).has(flag)
    }
}

/// `MULTI`.
pub(in crate::server) fn multi(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if context.session.rare.multi.is_some() {
        out.error("ERR MULTI calls can not be nested");
    } else {
        context.session.rare.multi = Some(Box::default());
        out.ok();
    }
    Outcome::Done
}

/// `DISCARD`.
pub(in crate::server) fn discard(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
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
pub(in crate::server) fn watch(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if context.session.rare.multi.is_some() {
        out.error("ERR WATCH inside MULTI is not allowed");
        return Outcome::Done;
    }
    let inner = &context.worker.server.store.0;
    let watching =
        context.session.rare.watching.get_or_insert_with(|| Box::new(Watching::new(inner, &context.client.account)));
    args[1..].iter().for_each(|key| watching.add(inner, context.session.db, key));
    out.ok();
    Outcome::Done
}

/// `UNWATCH`.
pub(in crate::server) fn unwatch(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    // Queued, it comes too late to change anything: EXEC has ended the watch.
    end_watch(context.session, &context.worker.server.store.0);
    out.ok();
    Outcome::Done
}

/// Forgets what is queued since MULTI, if anything is.
pub(in crate::server) fn end_queue(session: &mut Session, inner: &Inner) {
    if let Some(multi) = session.rare.multi.take() {
        multi.free(inner);
    }
}

/// Ends the watch of a client.
pub(in crate::server) fn end_watch(session: &mut Session, inner: &Inner) {
    if let Some(watching) = session.rare.watching.take() {
        watching.end(inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::dispatch::INDEX;
    use crate::{Store, StoreOptions};

    #[test]
    fn a_long_queue_is_freed_aside_and_a_short_one_at_once() {
        for (count, threads) in [(10, 0), (10_000, 1)] {
            let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
            let row = INDEX.find(b"set").expect("it exists");
            let command = &INDEX.rows()[usize::from(row)];
            let mut multi = Multi::default();
            let account = Account::new(&store.0.memory);
            for _ in 0..count {
                multi.push(&account, row, command, &[b"SET", b"k", b"v"], None);
            }
            assert!(multi.bytes.abs_diff(account.bytes()) < 1024, "{count} commands");
            multi.free(&store.0);
            assert_eq!(store.0.aside.threads(), threads, "{count} commands");
        }
    }
}
