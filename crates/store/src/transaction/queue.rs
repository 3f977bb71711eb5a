//! The commands queued since MULTI.

use std::sync::Arc;
use std::time::Duration;

use super::Connection;
use crate::Inner;
use crate::catalogue::{CommandSpec, Cost, Flags, Handler, KEYS_MAX, Numbered};
use crate::memory::{Account, Share};
use crate::multi_lock::{COMMANDS_MAX, are_short, suits};
use crate::owned::Words;
use crate::visits::ELEMENTS_MAX;

/// Commands of more bytes than this are freed on the thread pool.
pub(super) const FREED_ASIDE: usize = 128 << 10;
/// The size of a queued command in addition to its words, in bytes.
const OVERHEAD: usize = size_of::<Queued>() + 32;

/// A command that waits for EXEC.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) row: Numbered,
    pub(super) words: Words,
}

impl Queued {
    pub(super) fn spec(&self) -> &'static CommandSpec {
        self.row.spec
    }

    /// Returns whether the connection, or its server, runs it.
    pub(super) fn is_own(&self) -> bool {
        matches!(self.spec().handler, Handler::Connection(_))
    }

    pub(super) fn cost(&self) -> Cost {
        self.spec().cost_of(self.words.len())
    }

    /// Reports the command to the slow log and as an event if it took long.
    pub(super) fn judge(&self, spent: Duration, context: &impl Connection) {
        context.judge(self.row.number, spent, || self.words.to_vec());
    }

    /// Returns whether it may have to run on another thread.
    pub(super) fn may_take_long(&self) -> bool {
        match self.cost() {
            _ if matches!(self.spec().handler, Handler::Script(_)) => true,
            Cost::Constant => self.words.len() > ELEMENTS_MAX,
            Cost::PerKey => self.words.len() > KEYS_MAX,
            _ => matches!(self.spec().handler, Handler::Keyspace(_) | Handler::Script(_)),
        }
    }
}

/// The commands queued since MULTI.
#[derive(Debug, Default)]
pub(crate) struct Multi {
    pub(super) commands: Vec<Queued>,
    pub(super) bytes: usize,
    /// The commands' share in the client's account.
    pub(super) share: Share,
    /// Whether a command was refused, so that EXEC will fail, and nothing more is queued.
    pub(crate) aborted: bool,
    /// The number of commands that were queued before and have been dropped.
    dropped: usize,
    /// The flags of all commands together.
    flags: u32,
    /// Whether a command does too much work to run while all stripes are locked.
    pub(super) is_long: bool,
    /// Whether a command needs the keyspace for itself.
    pub(super) is_alone: bool,
    /// Whether a command is about scripts.
    pub(super) has_script: bool,
}

impl Multi {
    /// Queues a command, charged to the account of its client.
    pub(crate) fn push(
        &mut self,
        account: &Arc<Account>,
        row: Numbered,
        args: &[&[u8]],
        received: Option<&crate::owned::Received>,
    ) {
        let spec = row.spec;
        let words = Words::within(received, args);
        self.bytes += args.iter().map(|word| word.len() + size_of::<usize>()).sum::<usize>() + OVERHEAD;
        self.flags |= spec.flags.0;
        self.is_long |= self.commands.len() == COMMANDS_MAX
            || match spec.handler {
                Handler::Connection(_) => !spec.runs_under_locks || !are_short(args),
                _ => !suits(spec, args),
            };
        self.is_alone |= spec.needs_everything();
        self.has_script |= matches!(spec.handler, Handler::Script(_));
        self.commands.push(Queued { row, words });
        self.share.set(account, self.bytes);
    }

    /// Frees the queue because there is no memory: EXEC will fail.
    pub(crate) fn give_up(&mut self, inner: &Inner) {
        let given_up = Multi { aborted: true, dropped: self.size().0, flags: self.flags, ..Multi::default() };
        let mut queued = std::mem::replace(self, given_up);
        // Memory being freed on the thread pool counts as free: its client is not to be closed because of it.
        queued.share.set_own(0);
        queued.free(inner);
    }

    /// Frees queued commands that will not run, a long queue on the thread pool.
    pub(crate) fn free(self, inner: &Inner) {
        if self.bytes > FREED_ASIDE {
            inner.aside.run(move || drop(self));
        }
    }

    /// Returns the number of commands, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.dropped + self.commands.len(), self.bytes)
    }

    /// Returns whether `is` is true of one of the commands.
    pub(crate) fn any(&self, is: impl Fn(&CommandSpec, &[&[u8]]) -> bool) -> bool {
        self.commands.iter().any(|queued| is(queued.spec(), &queued.words.to_vec()))
    }

    /// Returns whether one of the commands has this flag.
    pub(crate) fn has(&self, flag: Flags) -> bool {
        Flags(self.flags).has(flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Store, StoreOptions};

    #[test]
    fn a_long_queue_is_freed_aside_and_a_short_one_at_once() {
        for (count, threads) in [(10, 0), (10_000, 1)] {
            let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
            let row = store.0.rows.find(b"set").expect("it exists");
            let mut multi = Multi::default();
            let account = Account::new(&store.0.memory);
            for _ in 0..count {
                multi.push(&account, row, &[b"SET", b"k", b"v"], None);
            }
            assert!(multi.bytes.abs_diff(account.bytes()) < 1024, "{count} commands");
            multi.free(&store.0);
            assert_eq!(store.0.aside.threads(), threads, "{count} commands");
        }
    }
}
