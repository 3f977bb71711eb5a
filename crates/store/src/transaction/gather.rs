//! Collection of a transaction's key set before it queues.
//!
//! The keys that the commands name are known without reading the store, so they are collected in slices, while other
//! tasks run, whether they are the keys of very many commands or of one: the keys with their stripes, and, if they are
//! more than a few, the tables that the stripes receive when all are free ([`hold::Gathered`](Gathered)). The work that
//! remains while all stripes are locked, or behind the closed gate, is a few words for each stripe.
//!
//! Cost: about a third of a microsecond for each key, and as much again if its keys are held on arrival.

use std::task::{Poll, Waker};
use std::time::Instant;

use sluicegate_transport::{SLICE, give_way};

use super::alone::alone_until;
use super::{Connection, Exec, Queued, Turn, selected};
use crate::big::KEYS_PER_LOOK;
use crate::catalogue::Handler;
use crate::hold::{Gathered, Mode, Ticket};
use crate::keys::{KeyRule, Places};
use crate::watching::Watching;
use crate::{Inner, Store};

/// The maximum number of elements of a list, set or sorted set whose further keys SORT declares before the transaction
/// begins.
const DECLARED_MAX: usize = 1000;

/// A transaction whose keys are being collected.
pub(super) struct Gathering {
    /// Whether it becomes exclusive afterwards.
    is_alone: bool,
    /// Whether it has a script, which may write keys that other commands of the transaction only read.
    has_script: bool,
    /// The index of the next command, and its remaining keys if it has been started.
    next: usize,
    places: Option<Places>,
    db: u32,
    /// The index of the next watched key.
    watched: usize,
    keys: Gathered,
}

/// The data needed before a transaction becomes exclusive.
pub(super) struct Ready {
    /// Its ticket, in case it continues as a section.
    pub(super) ticket: Ticket,
    /// The indices of its SELECTs and KEYS.
    pub(super) marks: Vec<usize>,
    /// The first command from which on it need not be exclusive.
    pub(super) free: usize,
}

impl Ready {
    fn of(commands: &[Queued], ticket: Ticket) -> Ready {
        let is_mark = |queued: &Queued| queued.spec().selects() || queued.spec().reads_all_keys;
        let marks = commands.iter().enumerate().filter(|(_, queued)| is_mark(queued)).map(|(at, _)| at).collect();
        Ready { ticket, marks, free: alone_until(commands) }
    }
}

impl Queued {
    /// Returns the positions of the keys that the command names.
    fn places(&self) -> Places {
        let rule = match self.spec().handler {
            Handler::Keyspace(_) | Handler::Script(_) => self.spec().keys,
            _ => KeyRule::None,
        };
        rule.places(self.words.len(), |place| self.words.get(place))
    }
}

impl Gathering {
    pub(super) fn new(inner: &Inner, db: u32, is_alone: bool, has_script: bool) -> Box<Gathering> {
        let keys = Gathered::new(inner);
        Box::new(Gathering { is_alone, has_script, next: 0, places: None, db, watched: 0, keys })
    }

    fn add(&mut self, inner: &Inner, db: u32, key: &[u8], mode: Mode) {
        self.keys.add(inner, db, key, if self.has_script { Mode::Exclusive } else { mode });
    }

    /// Adds some keys of the next command; continues with the following one when none is left.
    fn add_some(&mut self, inner: &Inner, queued: &Queued) {
        let mode = queued.spec().mode();
        let mut places = self.places.take().unwrap_or_else(|| queued.places());
        places.by_ref().take(KEYS_PER_LOOK).for_each(|place| self.add(inner, self.db, queued.words.get(place), mode));
        if places.size_hint().0 > 0 {
            self.places = Some(places);
            return;
        }
        self.add_led(inner, queued);
        self.next += 1;
    }

    /// Adds the other keys to which the command's words refer, and applies a SELECT to the following commands.
    fn add_led(&mut self, inner: &Inner, queued: &Queued) {
        let spec = queued.spec();
        if let KeyRule::WithDatabase { second, .. } = spec.keys {
            let key = second(&queued.words.to_vec(), self.db).filter(|key| key.db < inner.keyspace.databases());
            key.into_iter().for_each(|key| self.add(inner, key.db, queued.words.get(key.word as usize), spec.mode()));
        }
        // An exclusive transaction reads nothing before it is exclusive.
        if !self.is_alone && spec.others.is_some() {
            let words = queued.words.to_vec();
            let led = spec.leads(&words).map(|others| (others.find)(inner, &words, self.db, DECLARED_MAX));
            led.into_iter().flatten().for_each(|key| self.add(inner, self.db, &key, Mode::Shared));
        }
        if spec.selects() {
            self.db = selected(inner, queued.words.get(1)).unwrap_or(self.db);
        }
    }

    /// Works for a slice. Returns whether everything is collected.
    fn work(&mut self, inner: &Inner, commands: &[Queued], watching: Option<&Watching>) -> bool {
        let start = Instant::now();
        let watched = watching.map_or(&[][..], |watching| &watching.keys);
        let watched = if self.is_alone { &[] } else { watched };
        loop {
            if let Some(queued) = commands.get(self.next) {
                self.add_some(inner, queued);
            } else if self.watched < watched.len() {
                let some = &watched[self.watched..watched.len().min(self.watched + KEYS_PER_LOOK)];
                some.iter().for_each(|watched| self.add(inner, watched.db, &watched.key, Mode::Shared));
                self.watched += some.len();
            } else {
                return self.keys.order(start);
            }
            if start.elapsed() >= SLICE {
                return false;
            }
        }
    }
}

impl Exec {
    /// Collects keys for a slice, and queues the transaction when all are collected.
    pub(super) fn poll_gathering(&mut self, waker: &Waker, context: &mut impl Connection) -> Poll<()> {
        let Turn::Gathering(gathering) = &mut self.turn else { return Poll::Ready(()) };
        if !gathering.work(&self.inner, &self.commands, context.watching().as_deref()) {
            give_way(waker);
            return Poll::Pending;
        }
        if let Turn::Gathering(gathering) = std::mem::replace(&mut self.turn, Turn::Over) {
            let ticket = gathering.keys.ticket();
            self.turn = match gathering.is_alone {
                true => {
                    self.gathered = Some(Ready::of(&self.commands, ticket));
                    Turn::Alone(None)
                }
                false => Turn::Keys(Store(self.inner.clone()).section_of(ticket)),
            };
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::Context;

    use super::*;
    use crate::StoreOptions;
    use crate::hold::{GRANTS, NOBODY, QUEUED};
    use crate::memory::Account;
    use crate::section::{Section, SectionWait};
    use crate::transaction::Multi;

    const KEYS: usize = 10_000;
    const STRIPES: usize = 64;

    fn name(number: usize) -> Vec<u8> {
        format!("key:{number}").into_bytes()
    }

    fn store() -> Store {
        Store::new(StoreOptions { stripes: STRIPES, ..StoreOptions::default() })
    }

    /// What is queued.
    fn queued(commands: &[Vec<Vec<u8>>]) -> Multi {
        let store = store();
        let (mut multi, account) = (Multi::default(), Account::new(&store.0.memory));
        for words in commands {
            let words: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
            multi.push(&account, store.0.rows.find(words[0]).expect("a command"), &words, None);
        }
        multi
    }

    /// Gathers the keys of commands, as a transaction does. Whether the first one is more than a piece, too.
    fn gathered(store: &Store, multi: &Multi, watching: Option<&Watching>) -> (Ticket, bool) {
        let mut gathering = Gathering::new(&store.0, 0, false, multi.has_script);
        gathering.add_some(&store.0, &multi.commands[0]);
        let is_more = gathering.next == 0;
        while !gathering.work(&store.0, &multi.commands, watching) {}
        (gathering.keys.ticket(), is_more)
    }

    /// A command with very many keys, from this one on, with something behind each.
    fn of_keys(words: &[&str], from: usize, behind: Option<&str>) -> Vec<Vec<u8>> {
        let keys = (from..from + KEYS).flat_map(|number| [Some(name(number)), behind.map(Into::into)]);
        words.iter().map(|word| word.as_bytes().to_vec()).chain(keys.flatten()).collect()
    }

    #[test]
    fn very_many_keys_of_few_commands_are_gathered() {
        let store = store();
        let script = of_keys(&["EVAL", "return 1", &KEYS.to_string()], KEYS / 2, None);
        let (reads, writes) = (of_keys(&["EXISTS"], 0, None), of_keys(&["MSET"], 0, Some("value")));
        // Commands, keys that they name together, and those of them that others may read meanwhile.
        let cases = [
            (vec![reads.clone()], KEYS, KEYS),
            (vec![writes], KEYS, 0),
            (vec![reads.clone(), of_keys(&["DEL"], KEYS / 2, None)], KEYS * 3 / 2, KEYS / 2),
            (vec![reads, script], KEYS * 3 / 2, 0),
        ];
        for (commands, keys, shared) in cases {
            let (ticket, is_more) = gathered(&store, &queued(&commands), None);
            assert!(is_more, "the words of one command are gone over in pieces, too");
            assert_eq!((ticket.keys.len(), ticket.stripes.len()), (keys, STRIPES));
            assert_eq!(ticket.keys.iter().filter(|held| held.mode == Mode::Shared).count(), shared);
            GRANTS.set(0);
            drop(begun(&mut store.section_of(ticket)));
            assert_eq!(GRANTS.get(), 0, "none was gone over while stripes were locked");
            assert_eq!(store.stats().tickets, 0);
        }
    }

    #[test]
    fn all_keys_are_gathered_that_a_section_of_them_needs() {
        let store = store();
        let account = Account::new(&store.0.memory);
        let mut watching = Watching::new(&store.0, &account);
        watching.add(&store.0, 3, b"watched");
        let split = |line: &&str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let lines = ["GET a", "SET a 1", "SELECT 2", "MOVE b 4", "SELECT 99", "ZUNIONSTORE to 2 x y", "PING c"];
        let commands: Vec<Vec<Vec<u8>>> = lines.iter().map(split).collect();
        let (ticket, _) = gathered(&store, &queued(&commands), Some(&watching));
        let mut keys: Vec<(u32, &[u8], bool)> =
            ticket.keys.iter().map(|held| (held.db, &*held.key, held.mode == Mode::Exclusive)).collect();
        keys.sort_unstable();
        let expected: &[(u32, &str, bool)] = &[
            (0, "a", true),
            (2, "b", true),
            (2, "to", true),
            (2, "x", true),
            (2, "y", true),
            (3, "watched", false),
            (4, "b", true),
        ];
        let expected: Vec<(u32, &[u8], bool)> =
            expected.iter().map(|(db, key, own)| (*db, key.as_bytes(), *own)).collect();
        assert_eq!(keys, expected);
        watching.end(&store.0);
    }

    /// A ticket on so many keys, each for reading and every other one for writing, too.
    fn ticket(store: &Store) -> Ticket {
        let inner = &*store.0;
        let mut keys = Gathered::new(inner);
        let mut add = |number: usize, mode| {
            keys.add(inner, 0, &name(number), mode);
        };
        for number in 0..KEYS {
            [Mode::Shared, Mode::Exclusive, Mode::Shared][..1 + number % 2 * 2]
                .iter()
                .for_each(|mode| add(number, *mode));
        }
        while keys.order_some() {}
        keys.ticket()
    }

    fn poll(wait: &mut SectionWait) -> Poll<Section> {
        Pin::new(wait).poll(&mut Context::from_waker(Waker::noop())).map(|section| section.expect("not refused"))
    }

    fn begun(wait: &mut SectionWait) -> Section {
        match poll(wait) {
            Poll::Ready(section) => section,
            Poll::Pending => panic!("its keys are free"),
        }
    }

    /// How many of the keys others may read, and write.
    fn free(store: &Store) -> (usize, usize) {
        let inner = &*store.0;
        let pass = inner.gate.enter();
        let may = |number: usize, mode| {
            let key = name(number);
            let stripe = inner.keyspace.stripe_of_key(&key);
            let locked = inner.keyspace.db_to_write(&pass, 0).lock(stripe);
            locked.holds.as_deref().is_none_or(|holds| holds.admits(NOBODY, &key, mode))
        };
        let count = |mode| (0..KEYS).filter(|number| may(*number, mode)).count();
        (count(Mode::Shared), count(Mode::Exclusive))
    }

    #[test]
    fn very_many_keys_are_held_by_a_step_for_each_stripe() {
        let store = store();
        let mut wait = store.section_of(ticket(&store));
        GRANTS.set(0);
        let section = begun(&mut wait);
        assert_eq!(GRANTS.get(), 0, "none was gone over while stripes were locked");
        assert_eq!(section.declared().len(), KEYS, "each once");
        assert_eq!(free(&store), (KEYS / 2, 0));
        section.finish();
        assert_eq!(free(&store), (KEYS, KEYS));
        assert_eq!(store.stats().tickets, 0);
    }

    #[test]
    fn stripes_that_have_holds_keep_them() {
        let store = store();
        let mut other = store.section([(0, &b"another key"[..], Mode::Exclusive)]);
        let other = begun(&mut other);
        let mut wait = store.section_of(ticket(&store));
        GRANTS.set(0);
        let section = begun(&mut wait);
        assert_eq!(GRANTS.get(), 0, "the other key was moved over");
        assert_eq!(free(&store), (KEYS / 2, 0));
        let pass = store.0.gate.enter();
        assert!(other.has_declared(&pass, 0, b"another key") && !section.has_declared(&pass, 0, b"another key"));
        drop(pass);
        drop((section, other));
        assert_eq!((free(&store), store.stats().tickets), ((KEYS, KEYS), 0));
    }

    #[test]
    fn one_whose_key_is_held_waits() {
        let store = store();
        let key = name(77);
        let mut other = store.section([(0, &key[..], Mode::Shared)]);
        let other = begun(&mut other);
        let mut wait = store.section_of(ticket(&store));
        assert!(poll(&mut wait).is_pending());
        drop(other);
        let section = begun(&mut wait);
        assert_eq!(free(&store), (KEYS / 2, 0));
        section.finish();
        assert_eq!((free(&store), store.stats().tickets), ((KEYS, KEYS), 0));
    }

    /// Polls until it stands in the queues.
    fn queue(wait: &mut SectionWait) {
        while wait.ticket().is_none() {
            assert!(poll(wait).is_pending(), "a key is held");
        }
    }

    #[test]
    fn very_many_keys_are_waited_for_by_a_step_for_each_stripe() {
        let overtaken_for = std::time::Duration::MAX;
        let store = Store::new(StoreOptions { stripes: STRIPES, overtaken_for, ..StoreOptions::default() });
        let section = |key: &[u8], mode| store.section([(0, key, mode)]);
        let (held, later) = (name(77), name(78));
        let (mut other, mut beside) = (section(&held, Mode::Exclusive), section(b"another key", Mode::Exclusive));
        let (other, beside) = (begun(&mut other), begun(&mut beside));
        QUEUED.set(0);
        let mut wait = store.section_of(ticket(&store));
        queue(&mut wait);
        assert_eq!(QUEUED.get(), 0, "none was gone over while stripes were locked");
        assert_eq!(free(&store), (KEYS - 1, KEYS - 1), "others go before it");
        // Some come and go before it, and one waits behind it.
        for number in [5, 78, 9_000] {
            drop(begun(&mut section(&name(number), Mode::Exclusive)));
        }
        let mut behind = section(&held, Mode::Shared);
        assert!(poll(&mut behind).is_pending());
        let mut passing = section(&later, Mode::Exclusive);
        let passing = begun(&mut passing);
        drop(other);
        assert!(poll(&mut wait).is_pending(), "somebody has another key meanwhile");
        GRANTS.set(0);
        drop(passing);
        let section = begun(&mut wait);
        assert!(GRANTS.get() <= 8, "{} were gone over while stripes were locked", GRANTS.get());
        assert_eq!(free(&store), (KEYS / 2, 0));
        assert!(poll(&mut behind).is_pending());
        drop((section, beside));
        drop(begun(&mut behind));
        assert_eq!((free(&store), store.stats().tickets), ((KEYS, KEYS), 0));
    }

    #[test]
    fn very_many_keys_that_are_given_up_keep_nobody() {
        let store = store();
        let held = name(77);
        let mut other = store.section([(0, &held[..], Mode::Exclusive)]);
        let other = begun(&mut other);
        let mut wait = store.section_of(ticket(&store));
        queue(&mut wait);
        let mut behind = store.section([(0, &held[..], Mode::Shared)]);
        assert!(poll(&mut behind).is_pending());
        drop((wait, other));
        while !store.0.aside.is_at_rest() {
            std::thread::yield_now();
        }
        drop(begun(&mut behind));
        assert_eq!((free(&store), store.stats().tickets), ((KEYS, KEYS), 0));
    }

    /// Random sections, large and small, that come, give up and go: in one store those of many keys are large tickets,
    /// in the other they stand in every queue by themselves. What is granted when is the same.
    #[test]
    fn large_tickets_wait_like_others() {
        const NAMES: u64 = 300;
        let options =
            || StoreOptions { stripes: 8, overtaken_for: std::time::Duration::MAX, ..StoreOptions::default() };
        for seed in 1..=60_u64 {
            let stores = [Store::new(options()), Store::new(options())];
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut random = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let mut waits: Vec<[SectionWait; 2]> = Vec::new();
            let mut sections: Vec<[Section; 2]> = Vec::new();
            for step in 0..120 {
                match random(10) {
                    0..=5 => {
                        let count = if random(4) == 0 { 70 + random(120) } else { 1 + random(3) };
                        let keys: Vec<(Vec<u8>, Mode)> = (0..count)
                            .map(|_| {
                                let mode = if random(2) == 0 { Mode::Shared } else { Mode::Exclusive };
                                (name(random(NAMES) as usize), mode)
                            })
                            .collect();
                        let large = {
                            let inner = &*stores[0].0;
                            let mut gathered = Gathered::new(inner);
                            for (key, mode) in &keys {
                                gathered.add(inner, 0, key, *mode);
                            }
                            while gathered.order_some() {}
                            gathered.ticket()
                        };
                        let plain = stores[1].0.ticket_on(keys.iter().map(|(key, mode)| (0, &key[..], *mode)));
                        waits.push([stores[0].section_of(large), stores[1].section_of(plain)]);
                    }
                    6 if !waits.is_empty() => drop(waits.remove(random(waits.len() as u64) as usize)),
                    _ if !sections.is_empty() => drop(sections.remove(random(sections.len() as u64) as usize)),
                    _ => {}
                }
                // Those who gave up leave the queues on another thread.
                while !stores[0].0.aside.is_at_rest() {
                    std::thread::yield_now();
                }
                let mut at = 0;
                while at < waits.len() {
                    let [large, plain] = &mut waits[at];
                    let mut polled = [poll(large), poll(plain)];
                    while large.ticket().is_none() && polled[0].is_pending() {
                        polled[0] = poll(large);
                    }
                    match polled {
                        [Poll::Ready(large), Poll::Ready(plain)] => {
                            sections.push([large, plain]);
                            drop(waits.remove(at));
                            // Whoever was polled in vain may be invited by what comes behind.
                            at = 0;
                        }
                        [Poll::Pending, Poll::Pending] => at += 1,
                        [large, _] => {
                            panic!("seed {seed}, step {step}: only one is granted, large: {}", large.is_ready())
                        }
                    }
                }
            }
            // Everybody comes to his turn.
            while !sections.is_empty() || !waits.is_empty() {
                assert!(!sections.is_empty(), "seed {seed}: {} wait for nobody", waits.len());
                drop(sections.remove(0));
                let mut at = 0;
                while at < waits.len() {
                    let [large, plain] = &mut waits[at];
                    match [poll(large), poll(plain)] {
                        [Poll::Ready(large), Poll::Ready(plain)] => {
                            sections.push([large, plain]);
                            drop(waits.remove(at));
                        }
                        [Poll::Pending, Poll::Pending] => at += 1,
                        [large, _] => panic!("seed {seed}, end: only one is granted, large: {}", large.is_ready()),
                    }
                }
            }
            assert_eq!([stores[0].stats().tickets, stores[1].stats().tickets], [0, 0]);
        }
    }
}
