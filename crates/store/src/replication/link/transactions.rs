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
        let mut master = Master { inner, db, behalf: Behalf::MASTER, runner, watching: None, peer };
        if attempt(inner, &account, commands, &mut master).is_ok() {
            return master.db;
        }
        std::thread::sleep(REFUSED_PAUSE);
    }
}

/// Runs a transaction. The error is the reply of one that was refused, and has done nothing.
fn attempt(
    inner: &Arc<Inner>,
    account: &Arc<Account>,
    commands: &[(Numbered, SmallVec<[&[u8]; 16]>)],
    master: &mut Master<'_>,
) -> Result<(), Vec<u8>> {
    let mut multi = Multi::default();
    commands.iter().for_each(|(row, words)| multi.push(account, *row, words, None));
    let mut exec = Exec::new(inner.clone(), multi, master.db);
    let mut output = Vec::new();
    block_on(|context| exec.poll(context.waker(), master, &mut output));
    if exec.reply_start().is_some() { Ok(()) } else { Err(output) }
}

/// The master in place of a client.
struct Master<'m> {
    inner: &'m Inner,
    db: u32,
    behalf: Behalf,
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
        self.behalf
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::runner::Source;
    use crate::{Store, StoreOptions};

    /// A transaction of a client whose checks came before the store was made a replica does nothing behind that, in whatever
    /// way it runs: under a few locks, with holds, or alone.
    #[test]
    fn a_transaction_that_comes_late_is_refused() {
        let store = Store::new(StoreOptions::default());
        let inner = &store.0;
        let account = Account::new(&inner.memory);
        let run = |behalf: Behalf, lines: &[&str]| {
            let mut runner = Runner::new(inner.clone(), Source::Master);
            let commands: Vec<(Numbered, SmallVec<[&[u8]; 16]>)> = lines
                .iter()
                .map(|line| {
                    let words: SmallVec<[&[u8]; 16]> = line.split(' ').map(str::as_bytes).collect();
                    (inner.rows.resolve_numbered(&words).expect("a command"), words)
                })
                .collect();
            let mut master = Master { inner, db: 0, behalf, runner: &mut runner, watching: None, peer: "" };
            attempt(inner, &account, &commands, &mut master)
        };
        let transactions = [
            &["GET k", "SET k v"][..],
            &["SET k v", "SORT k BY x* STORE l"],
            &["SET k v", "FLUSHALL", "SET k v"],
            &["KEYS *", "SET k v"],
        ];
        inner.loading.set_replica(true, false);
        for lines in transactions {
            let told = run(Behalf::CLIENT, lines).expect_err("it is refused");
            let text = "-EXECABORT Transaction discarded because of: READONLY You can't write against a read only replica.\r\n";
            assert_eq!(String::from_utf8_lossy(&told), text, "{lines:?}");
            assert_eq!(store.keys(), 0);
        }
        assert!(run(Behalf::CLIENT, &["GET k", "EXISTS k"]).is_ok());
        for lines in transactions {
            assert!(run(Behalf::MASTER, lines).is_ok(), "{lines:?}");
        }
        assert_eq!(store.keys(), 1);
        inner.loading.set_replica(false, false);
        assert!(run(Behalf::CLIENT, transactions[0]).is_ok());
    }
}
