//! Transactions of a master, on its replica: others see all of one or nothing.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter};
use smallvec::SmallVec;

use crate::Inner;
use crate::behalf::Behalf;
use crate::catalogue::{CommandSpec, Flags, Guard, Numbered};
use crate::memory::Account;
use crate::refused::DB_RANGE;
use crate::replay::runner::Runner;
use crate::thread::block_on;
use crate::transaction::{Connection, Exec, Multi, Ran, selected};
use crate::watching::Watching;

/// The time after which a transaction that was refused because too many wait is tried again.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

/// Runs a transaction that begins with this database selected, and returns the one that it leaves selected. Waits for its
/// keys. `peer` is the master's address, for MONITOR.
pub(crate) fn run_for_master(
    inner: &Arc<Inner>,
    commands: &[(Numbered, SmallVec<[&[u8]; 16]>)],
    db: u32,
    runner: &mut Runner,
    peer: &str,
) -> u32 {
    let account = Account::new(&inner.memory);
    loop {
        let mut multi = Multi::default();
        commands.iter().for_each(|(row, words)| multi.push(&account, *row, words, None));
        let mut exec = Exec::new(inner.clone(), multi, db);
        let mut master = Master { inner, db, runner, watching: None, peer };
        let mut output = Vec::new();
        block_on(|context| exec.poll(context.waker(), &mut master, &mut output));
        // Without a reply it was refused, and has done nothing.
        if exec.reply_start().is_some() {
            return master.db;
        }
        std::thread::sleep(REFUSED_PAUSE);
    }
}

/// The master in place of a client.
struct Master<'m> {
    inner: &'m Inner,
    db: u32,
    runner: &'m mut Runner,
    watching: Option<Box<Watching>>,
    peer: &'m str,
}

impl Master<'_> {
    /// Shows a command to clients that watch all commands, if it is one that is shown before it runs, or after.
    fn show<'w>(&self, row: u16, is_before: bool, words: impl FnOnce() -> Vec<&'w [u8]>) {
        let is_known = self.has_monitors() && usize::from(row) < self.inner.rows.count();
        if is_known && self.inner.rows.spec(row).flags.has(Flags::SKIP_MONITOR) == is_before {
            self.inner.scripts.show(row, &words(), self.db, self.peer);
        }
    }
}

impl Connection for Master<'_> {
    fn db(&self) -> u32 {
        self.db
    }

    fn protocol(&self) -> Protocol {
        Protocol::Resp2
    }

    fn behalf(&self) -> Behalf {
        Behalf::MASTER
    }

    fn is_mute(&self) -> bool {
        true
    }

    fn client(&self) -> u64 {
        0
    }

    fn is_restricted(&self) -> bool {
        false
    }

    fn permits(&self, _: Numbered, _: &[&[u8]]) -> bool {
        true
    }

    fn denial(&mut self, _: Numbered, _: &[&[u8]]) -> Option<Vec<u8>> {
        None
    }

    fn guard(&mut self) -> Option<Arc<dyn Guard>> {
        None
    }

    fn count_denied(&self, _: &[u8]) {}

    fn watching(&mut self) -> &mut Option<Box<Watching>> {
        &mut self.watching
    }

    fn drain_messages(&mut self, _: &mut Vec<u8>) {}

    fn has_monitors(&self) -> bool {
        self.inner.scripts.watches.shows()
    }

    fn is_timed(&self, _: &CommandSpec, _: usize) -> bool {
        false
    }

    fn run(&mut self, _: u16, words: &[&[u8]], out: &mut ReplyWriter<'_>) -> Ran {
        // The only one of its commands that concerns a connection is SELECT.
        match words.get(1).and_then(|word| selected(self.inner, word)) {
            Some(db) => {
                self.db = db;
                out.ok();
            }
            None => out.error(DB_RANGE),
        }
        Ran::Done
    }

    fn changes_listening(&self, _: u16) -> bool {
        false
    }

    fn pushes(&self, _: u16) -> bool {
        false
    }

    fn show_before<'w>(&self, row: u16, words: impl FnOnce() -> Vec<&'w [u8]>) {
        self.show(row, true, words);
    }

    fn show_after<'w>(&self, row: u16, words: impl FnOnce() -> Vec<&'w [u8]>) {
        self.show(row, false, words);
    }

    fn judge<'w>(&self, _: u16, _: Duration, _: impl FnOnce() -> Vec<&'w [u8]>) {}

    fn count(&mut self, row: u16, reply: &[u8]) {
        self.runner.told.commands += 1;
        if reply.first() == Some(&b'-') {
            let rows = self.inner.rows;
            let name = if usize::from(row) < rows.count() { rows.spec(row).name } else { "an effect of another store" };
            self.runner.add_error(name, reply);
        }
    }
}
