//! Commands over very many elements of one value, worked aside.
//!
//! SMEMBERS of five million members under the stripe's lock would stop every key of the stripe for a second, and the
//! worker with all its clients. Such a command becomes a parked one: it holds its keys, readers shared, and is run by a
//! thread [aside](crate::aside), which takes no stripe's lock while it reads. What it reads stays as it is meanwhile:
//! who writes waits for the hold; expiry, eviction and compaction pass over held keys, and a stripe with holds notes
//! no accesses. Its handler is the same; only the [`Ctx`](crate::Ctx) finds keys in another way.
//!
//! Whether there is so much to do is asked before anything is locked, of a value that may change until it is; then a
//! command of 20,001 elements runs in one breath, or one of 19,999 aside, and nobody can tell.
//!
//! KEYS over more keys than that goes aside, too; it holds nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluicegate_wire::resp::ReplySink;

use crate::Inner;
use crate::catalogue::{CommandSpec, Cost, Flags, Handler};
use crate::command::zset::range::ranks_of_query;
use crate::object::{Kind, Object, Zset};
use crate::park::{OwnedCommand, Parked, ReplyForm, Waits, Words};

/// The most elements that a command goes over in one breath.
pub(crate) const ELEMENTS_MAX: usize = 20_000;
/// So many elements take more bytes than this, whatever they are.
const BYTES_MIN: usize = 4 * ELEMENTS_MAX;

/// Commands that go over all elements of all their keys.
const WHOLE: &[&str] = &[
    "dump",
    "hgetall",
    "hkeys",
    "hvals",
    "sdiff",
    "sdiffstore",
    "smembers",
    "sort",
    "sort_ro",
    "sunion",
    "sunionstore",
    "zdiff",
    "zdiffstore",
    "zunion",
    "zunionstore",
];
/// Commands that go over the elements of their smallest key.
const SMALLEST: &[&str] = &["sinter", "sintercard", "sinterstore", "zinter", "zintercard", "zinterstore"];

/// How many elements the command will go over in this value.
fn visits(name: &str, words: &[&[u8]], object: &Object) -> usize {
    match name {
        "lrange" => match (crate::command::integer(words[2]), crate::command::integer(words[3])) {
            (Ok(start), Ok(stop)) => between(start, stop, object.len()),
            _ => 0,
        },
        _ if name.starts_with('z') && !WHOLE.contains(&name) && !SMALLEST.contains(&name) => {
            Zset::of(object).map_or(0, |zset| ranks_of_query(name, words, zset))
        }
        _ => object.len(),
    }
}

/// How many elements of so many are from the first index to the last, which count from the end if negative.
fn between(start: i64, stop: i64, len: usize) -> usize {
    let len = len as i64;
    let from_start = |index: i64| if index < 0 { index.saturating_add(len) } else { index };
    let (start, stop) = (from_start(start).max(0), from_start(stop).min(len - 1));
    usize::try_from(stop.saturating_sub(start).saturating_add(1)).unwrap_or(0)
}

impl Inner {
    /// Whether the command goes over so much that it is to be worked aside.
    pub(crate) fn is_for_aside(&self, spec: &'static CommandSpec, words: &[&[u8]], db: u32) -> bool {
        if spec.flags.has(Flags::WRITE) {
            // Who writes may wake clients that wait for a key, which is done where its stripe is locked.
            return false;
        }
        match spec.cost {
            Cost::Keyspace if spec.name == "keys" => {
                let pass = self.gate.enter();
                self.keyspace.db(&pass, db).is_some_and(|db| db.keys() > ELEMENTS_MAX as u64)
            }
            Cost::PerElement => self.visits_many(spec, words, db),
            Cost::PerByte if spec.name == "dump" => self.visits_many(spec, words, db),
            _ => false,
        }
    }

    fn visits_many(&self, spec: &CommandSpec, words: &[&[u8]], db: u32) -> bool {
        let smallest = SMALLEST.contains(&spec.name);
        let is_range = spec.name == "lrange" || spec.name.contains("range");
        if !smallest && !is_range && !WHOLE.contains(&spec.name) {
            return false;
        }
        let pass = self.gate.enter();
        let (mut sum, mut least) = (0_usize, usize::MAX);
        for key in self.keys_of(spec, words, db) {
            let word = words[key.word as usize];
            let hash = self.keyspace.hasher.hash(word);
            let stripe = self.keyspace.stripe_of(hash);
            let Some(db) = self.keyspace.db(&pass, key.db) else { continue };
            let visits = match db.figures[stripe].bytes.load(Ordering::Relaxed) {
                0..BYTES_MIN => 0,
                _ => {
                    let locked = db.lock(stripe);
                    let entry = locked.table.find(hash, word).map(|slot| locked.table.entry(slot));
                    let object = entry.and_then(|entry| entry.object());
                    object.map_or(0, |object| visits(spec.name, words, &object))
                }
            };
            sum += visits;
            least = least.min(visits);
        }
        ELEMENTS_MAX < if smallest { least } else { sum }
    }

    /// Starts a command that is worked aside.
    pub(crate) fn start_aside(
        &self,
        spec: &'static CommandSpec,
        words: &[&[u8]],
        db: u32,
        form: ReplyForm,
        out: &mut dyn ReplySink,
    ) -> Option<Parked> {
        if self.gate.tickets() >= self.tickets_max {
            out.error("BUSY too many commands wait for keys that are held by scripts or transactions");
            return None;
        }
        let ticket = self.new_ticket(OwnedCommand { spec, words: Words::new(words), db, form, waiter: None });
        ticket.put_aside();
        if self.gate.must_wait() {
            self.gate.queue(ticket.clone());
            self.run_waiting();
        } else if self.enter_queues(&ticket) {
            self.go_aside(ticket.clone());
        }
        Some(Parked(Waits::Ticket(ticket)))
    }

    /// Lets another thread run a command that was granted its keys, and pass them on.
    pub(crate) fn go_aside(&self, ticket: Arc<crate::hold::Ticket>) {
        let Some(inner) = self.this.upgrade() else { return };
        self.aside.run(move || {
            inner.run_pinned(&ticket);
            inner.end(ticket, &[]);
        });
    }

    /// Runs a command on keys that its ticket holds, locking a stripe only to find a key or to change one.
    fn run_pinned(&self, ticket: &crate::hold::Ticket) {
        let Some(command) = ticket.take_command() else { return };
        let Handler::Keyspace(handle) = command.spec.handler else { return };
        let words = command.words.to_vec();
        let (reply, worked) = crate::turn::caught(command.form, |out| {
            let pass = self.gate.enter();
            handle(&mut self.pinned(&pass, command.spec, &words, command.db), out);
        });
        ticket.finish(reply, worked);
    }
}
