//! Commands over very many elements, executed on the thread pool.
//!
//! SMEMBERS of five million members under the stripe's lock would block every key of the stripe for a second, and the
//! worker with all its clients. Such a command becomes a parked one: it holds its keys (shared, if it only reads them)
//! and runs on the [thread pool](crate::aside), which locks a stripe only to find a key or to replace a value. The data
//! that it reads stays unchanged meanwhile: writers wait for the hold; expiry, eviction and compaction skip held keys,
//! and a stripe with holds records no accesses. A value that it changes in place, as ZREMRANGEBYRANK does, is taken out
//! of its entry, changed, and put back. Its handler is the same; only the [`Ctx`](crate::Ctx) finds and edits keys in
//! another way. Waiters for a key that it created are served at its end, before its holds are released.
//!
//! The decision is made before anything is locked, from a value that may change until it is; then a command on 20,001
//! elements runs non-preemptibly, or one on 19,999 on the pool, without a visible difference.
//!
//! The same applies to commands on one key with very many words, or with a word of megabytes, to RESTORE of a long
//! payload, and to KEYS over more keys than that, which holds nothing. Words that came in a buffer of their own are not
//! copied for it.
//!
//! Whether a string must be copied to be changed (APPEND without spare capacity, SETBIT while a reader shares it) is
//! known only under the lock. Then the handler gives up before it has done anything ([`Ctx::defer`](crate::Ctx)), and
//! the command starts again on the pool, where a long string is taken out of its entry, changed, and put back.
//!
//! LINDEX, HGET, LPOP, LMOVE and similar commands give up in the same way if an element is long.
//!
//! Limit: one long element that another command reads or takes out of a list, set or sorted set, such as BLPOP or SPOP,
//! is copied under the lock. Its block is freed [later](sluicegate_data::object::cell).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluicegate_wire::resp::ReplySink;

use crate::Inner;
use crate::catalogue::{CommandSpec, Cost, Flags, Handler, WrittenKeys};
use crate::execute::Origin;
use crate::gate::Pass;
use crate::hold::{HeldKeys, Mode, OwnedCommand, Ticket};
use crate::loading::READONLY;
use crate::owned::{ReplyForm, Words, caught};
use crate::park::{Parked, Waits};
use crate::visits::{ELEMENTS_MAX, Visits};
use crate::waiter::ReadyKey;

/// The number of pairs of bytes that LCS compares in the time of an element.
const PAIRS_PER_ELEMENT: usize = 32;
/// Returns the mode in which a command on the pool holds its key at this place: shared if it only reads it.
fn mode(spec: &CommandSpec, place: usize) -> Mode {
    let is_written = match spec.writes {
        WrittenKeys::Flagged => spec.flags.has(Flags::WRITE),
        WrittenKeys::First => place == 0,
        WrittenKeys::Others => place > 0,
    };
    if is_written { Mode::Exclusive } else { Mode::Shared }
}

impl Inner {
    /// Returns whether the command processes so much that it must run on the pool. `held` has the ticket that holds its
    /// only key, and the key's hash, if there is such a key.
    pub(crate) fn is_for_aside(
        &self,
        spec: &'static CommandSpec,
        words: &[&[u8]],
        db: u32,
        held: Option<(&HeldKeys, u64)>,
    ) -> bool {
        // A blocking command takes one element; only XREAD reads more, and would wait only if the elements disappeared
        // at this moment.
        if spec.blocking.is_some() && spec.visits.is_none() {
            return false;
        }
        if words.len() > ELEMENTS_MAX {
            return true;
        }
        if let Some((ticket, hash)) = held
            && spec.cost_of(words.len()) == Cost::PerElement
            && !words.get(2).is_some_and(|word| word.starts_with(b"-"))
        {
            // It processes the actual elements of its key, not the requested number, and most stripes have no large
            // value.
            let pass = self.gate.enter_with(ticket);
            if !self.may_be_large(&pass, db, hash) {
                return false;
            }
        }
        match spec.visits.and_then(|visits| visits(words)) {
            None => false,
            Some(Visits::Much) => true,
            Some(Visits::Names) => {
                let pass = self.gate.enter();
                self.keyspace.db(&pass, db).is_some_and(|db| db.keys() > ELEMENTS_MAX as u64)
            }
            Some(visits) => self.visits_many(visits, spec, words, db),
        }
    }

    /// Returns whether the value at a key may have more than [`ELEMENTS_MAX`] elements.
    #[inline]
    fn may_be_large(&self, pass: &Pass<'_>, db: u32, hash: u64) -> bool {
        let stripe = self.keyspace.stripe_of(hash);
        self.keyspace.db(pass, db).is_some_and(|db| db.figures[stripe].large.load(Ordering::Relaxed) > 0)
    }

    fn visits_many(&self, visits: Visits, spec: &CommandSpec, words: &[&[u8]], db: u32) -> bool {
        let pass = self.gate.enter();
        // Most stripes have no large value.
        if let Some(word) = spec.keys.only().filter(|_| !matches!(visits, Visits::Pairs | Visits::Drawn(_)))
            && !self.may_be_large(&pass, db, self.keyspace.hasher.hash(words[word]))
        {
            return false;
        }
        let keys = self.keys_of(spec, words, db);
        let (mut sum, mut least, mut product) = (0_usize, usize::MAX, 1_usize);
        for (place, key) in keys.iter().enumerate() {
            if mode(spec, place) == Mode::Exclusive && mode(spec, 1 - place.min(1)) == Mode::Shared {
                // A destination's old value is not read.
                continue;
            }
            let word = words[key.word as usize];
            let hash = self.keyspace.hasher.hash(word);
            let stripe = self.keyspace.stripe_of(hash);
            let of_key = self.keyspace.db(&pass, key.db).map_or(0, |db| {
                let may_be_large = db.figures[stripe].large.load(Ordering::Relaxed) > 0;
                if !may_be_large && !matches!(visits, Visits::Pairs | Visits::Drawn(_)) {
                    return 0;
                }
                let locked = db.lock(stripe);
                let entry = locked.table.find(hash, word).map(|slot| locked.table.entry(slot));
                entry.map_or(0, |entry| visits.of(words, entry))
            });
            sum += of_key;
            least = least.min(of_key);
            product = product.saturating_mul(of_key);
        }
        ELEMENTS_MAX
            < match visits {
                Visits::Smallest if !keys.is_empty() => least,
                Visits::Pairs => product / PAIRS_PER_ELEMENT,
                _ => sum,
            }
    }

    /// Starts a command that runs on the thread pool.
    pub(crate) fn start_aside(
        &self,
        spec: &'static CommandSpec,
        words: &[&[u8]],
        origin: Origin<'_>,
        form: ReplyForm,
        out: &mut dyn ReplySink,
    ) -> Option<Parked> {
        let Origin { db, received, behalf, .. } = origin;
        if self.gate.tickets() >= self.tickets_max {
            out.error("BUSY too many commands wait for keys that are held by scripts or transactions");
            return None;
        }
        let keys = self.keys_of(spec, words, db);
        let keys = keys.iter().enumerate().map(|(place, key)| (key.db, words[key.word as usize], mode(spec, place)));
        let words = Words::within(received, words);
        let command = OwnedCommand { behalf, ..self.owned_command(spec, words, db, form) };
        let ticket = Arc::new(self.ticket_of(self.held_keys(keys), Some(command)));
        ticket.put_aside();
        if self.gate.must_wait() {
            self.gate.queue(ticket.clone());
            self.run_waiting();
        } else if self.enter_queues(&ticket) {
            self.go_aside(ticket.clone());
        }
        Some(Parked(Waits::Ticket(ticket)))
    }

    /// Lets the thread pool run a command that was granted its keys, and release them.
    pub(crate) fn go_aside(&self, ticket: Arc<Ticket>) {
        let Some(inner) = self.this.upgrade() else { return };
        self.aside.run(move || {
            let ready = inner.run_pinned(&ticket);
            let extra = inner.serve(ticket.id, ready);
            inner.end(ticket, &extra);
        });
    }

    /// Runs a command on keys that its ticket holds, locking a stripe only to find a key or to change one. Returns the
    /// created keys for which other clients wait.
    fn run_pinned(&self, ticket: &Ticket) -> VecDeque<ReadyKey> {
        let mut ready = VecDeque::new();
        let Some(command) = ticket.take_command() else { return ready };
        let spec = self.rows.spec(command.row);
        let Handler::Keyspace(handle) = spec.handler else { return ready };
        let words = command.words.to_vec();
        let (reply, worked) = caught(command.form, |out| {
            let pass = self.gate.enter();
            if self.comes_late(spec, command.behalf) {
                return out.error(READONLY);
            }
            let mut ctx = self.pinned(&pass, spec, &words, command.db);
            ctx.now.behalf = command.behalf;
            if let Some(prepare) = spec.prepare {
                prepare(&mut ctx);
            }
            handle(&mut ctx, out);
            ctx.conclude(|| spec.recorded());
            ready = ctx.take_ready_pins();
            ctx.finish();
        });
        ticket.finish(reply, worked);
        ready
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use sluicegate_data::object::Set;

    use super::{ELEMENTS_MAX, Ordering};
    use crate::{Caller, Executed, Store, StoreOptions, commands, execute};

    fn run(store: &Store, words: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = sluicegate_wire::resp::ReplyWriter::new(&mut out, Default::default());
        assert!(matches!(execute(store, &mut Caller::default(), words, &mut writer), Executed::Done));
        out
    }

    #[test]
    fn a_fault_while_a_string_is_changed_apart_puts_it_back() {
        let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
        assert_eq!(run(&store, &[b"SETRANGE", b"k", b"5000", b"x"]), b":5001\r\n");
        let used = store.used_bytes();
        let inner = &store.0;
        let spec = commands::find(b"append").expect("it exists");
        let words: [&[u8]; 3] = [b"APPEND", b"k", b"y"];
        let fault = catch_unwind(AssertUnwindSafe(|| {
            let pass = inner.gate.enter();
            let mut ctx = inner.pinned(&pass, spec, &words, 0);
            ctx.key(0).edit_string_apart(6000, |bytes| {
                // The stripe is not locked meanwhile, and others see a string.
                assert_eq!(run(&store, &[b"TYPE", b"k"]), b"+string\r\n");
                assert_eq!(run(&store, &[b"SET", b"other", b"v"]), b"+OK\r\n");
                assert!(store.used_bytes() >= used, "its bytes count");
                assert_eq!((bytes.len(), bytes[5000]), (6000, b'x'));
                panic!("a fault in a change");
            });
        }));
        assert!(fault.is_err());
        assert_eq!(run(&store, &[b"GETRANGE", b"k", b"5000", b"5001"]), b"$2\r\nx\0\r\n");
        assert_eq!(run(&store, &[b"GET", b"other"]), b"$1\r\nv\r\n");
        assert_eq!(run(&store, &[b"DEL", b"k"]), b":1\r\n");
        assert!(store.used_bytes() + 5000 < used, "its bytes were counted");
    }

    #[test]
    fn a_fault_while_a_value_is_changed_apart_puts_it_back() {
        let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
        assert_eq!(run(&store, &[b"SADD", b"s", b"a", b"b", b"c"]), b":3\r\n");
        let inner = &store.0;
        let spec = commands::find(b"srem").expect("it exists");
        let words: [&[u8]; 3] = [b"SREM", b"s", b"a"];
        let fault = catch_unwind(AssertUnwindSafe(|| {
            let pass = inner.gate.enter();
            let mut ctx = inner.pinned(&pass, spec, &words, 0);
            let _ = ctx.key(0).edit_as(|set: &mut Set| {
                // The stripe is not locked meanwhile, and others see a set.
                assert_eq!(run(&store, &[b"TYPE", b"s"]), b"+set\r\n");
                assert_eq!(run(&store, &[b"SET", b"k", b"v"]), b"+OK\r\n");
                for n in 0..1_000 {
                    set.add(format!("member:{n}").as_bytes(), 0, &inner.limits);
                }
                panic!("a fault in a change");
            });
        }));
        assert!(fault.is_err());
        assert_eq!(run(&store, &[b"SCARD", b"s"]), b":1003\r\n");
        assert_eq!(run(&store, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        let used = store.used_bytes();
        assert_eq!(run(&store, &[b"DEL", b"s"]), b":1\r\n");
        assert!(store.used_bytes() + 1_000 * 11 < used, "its bytes were counted");
    }

    /// The smallest elements are numbers of a list, and a stripe is looked at as long as one of its values may have many.
    #[test]
    fn only_stripes_with_large_values_are_looked_at() {
        let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
        let large = || {
            let pass = store.0.gate.enter();
            let db = store.0.keyspace.db(&pass, 0).expect("there is one");
            db.figures[0].large.load(Ordering::Relaxed)
        };
        for number in 0..20 {
            let long = vec![b'x'; 3_000 * usize::from(number % 2 == 0)];
            let words: [&[u8]; 4] = [b"RPUSH", &[b'k', number], b"1", &long];
            assert_eq!(run(&store, &words), b":2\r\n");
        }
        assert_eq!(large(), 0, "there are many bytes, but no large value");
        for (key, other) in [(b"a", b"b"), (b"b", b"a")] {
            let mut words: Vec<&[u8]> = vec![b"RPUSH", key];
            words.resize(2 + ELEMENTS_MAX / 2, b"1");
            let pushed = || assert!(run(&store, &words).starts_with(b":"));
            pushed();
            assert_eq!(large(), 0);
            pushed();
            words.truncate(4);
            assert!(run(&store, &words).starts_with(b":2000"), "two are still small");
            assert_eq!(large(), 1);
            assert_eq!(run(&store, &[b"RENAME", key, other]), b"+OK\r\n");
            assert_eq!(large(), 1);
            assert_eq!(run(&store, &[b"LTRIM", other, b"0", b"9"]), b"+OK\r\n");
            assert_eq!(large(), 0);
            assert_eq!(run(&store, &[b"DEL", other]), b":1\r\n");
        }
    }

    #[track_caller]
    fn check(command: &str, is_looked_at: bool) {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        let visits = commands::find(words[0]).and_then(|spec| spec.visits).expect("it goes over elements");
        assert_eq!(visits(&words).is_some(), is_looked_at, "{command}");
    }

    #[test]
    fn short_ranges_are_known_by_their_words() {
        for command in [
            "lrange k 0 99",
            "lrange k 5 0",
            "zrange k 5 20004",
            "zrevrange k -20000 -1",
            "zrangebyscore k 0 inf LIMIT 70000 20000",
            "zrangebylex k - + limit 0 10",
        ] {
            check(command, false);
        }
        for command in [
            "lrange k 0 -1",
            "lrange k -5 5",
            "zrange k 5 20005",
            "zrange k 0 9 BYSCORE",
            "zrange k 0 x",
            "zrangebyscore k 0 inf",
            "zrangebyscore k 0 inf LIMIT 0 -1",
            "zrangebyscore k 0 inf LIMIT 0 20001",
            "zrangestore d k 0 9",
        ] {
            check(command, true);
        }
    }
}
