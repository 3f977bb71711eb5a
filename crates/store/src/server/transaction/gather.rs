//! Transactions of very many commands: what they name is gathered before they queue.
//!
//! Which keys the commands name is known without looking at the store, so it is found out in slices, while others go on:
//! the keys with their stripes, and the tables that the stripes are given when all are free ([`hold::Gathered`](Gathered)).
//! What then is done with all stripes locked, or behind the closed gate, is a few words for each stripe.
//!
//! Cost: about a third of a microsecond for each key, and as much again if its keys are held when it comes.

use std::task::{Poll, Waker};
use std::time::Instant;

use super::alone::alone_until;
use super::{COMMANDS_PER_LOOK, Context, DECLARED_MAX, Exec, Queued, SLICE, Session, Turn};
use crate::hold::{Gathered, Mode, Ticket};
use crate::park::give_way;
use crate::{Inner, Store};

/// What fewer commands name is gathered in no time.
pub(super) const GATHERED_MIN: usize = 256;

/// A transaction whose keys are being gathered.
pub(super) struct Gathering {
    /// It wants to be alone afterwards.
    is_alone: bool,
    next: usize,
    db: u32,
    keys: Gathered,
}

/// What there is to know before a transaction is alone.
pub(super) struct Ready {
    /// Its ticket, should it go on as a section.
    pub(super) ticket: Ticket,
    /// The places of its SELECTs and KEYS.
    pub(super) marks: Vec<usize>,
    /// The first command from which on it need not be alone.
    pub(super) free: usize,
}

impl Ready {
    pub(super) fn of(commands: &[Queued], ticket: Ticket) -> Ready {
        let is_mark = |queued: &Queued| matches!(queued.spec().name, "select" | "keys");
        let marks = commands.iter().enumerate().filter(|(_, queued)| is_mark(queued)).map(|(at, _)| at).collect();
        Ready { ticket, marks, free: alone_until(commands) }
    }
}

impl Gathering {
    pub(super) fn new(inner: &Inner, session: &Session, is_alone: bool) -> Box<Gathering> {
        Box::new(Gathering { is_alone, next: 0, db: session.db, keys: Gathered::new(inner) })
    }

    fn add_next(&mut self, inner: &Inner, queued: &Queued) {
        let words = queued.words.to_vec();
        let (mut keys, mut found) = (Vec::new(), Vec::new());
        // Who is to be alone reads nothing before it is.
        let most = if self.is_alone { 0 } else { DECLARED_MAX };
        queued.keys(inner, &words, &mut self.db, most, &mut keys, &mut found);
        keys.iter().for_each(|(db, key, mode)| self.keys.add(inner, *db, key, *mode));
        found.iter().for_each(|(db, key)| self.keys.add(inner, *db, key, Mode::Shared));
        self.next += 1;
    }

    /// Works for a slice; whether all is done.
    fn work(&mut self, inner: &Inner, commands: &[Queued], session: &Session) -> bool {
        let start = Instant::now();
        while self.next < commands.len() {
            self.add_next(inner, &commands[self.next]);
            if self.next == commands.len() && !self.is_alone {
                let watched = session.rare.watching.iter().flat_map(|watching| &watching.keys);
                watched.for_each(|watched| self.keys.add(inner, watched.db, &watched.key, Mode::Shared));
            }
            if self.next.is_multiple_of(COMMANDS_PER_LOOK) && start.elapsed() >= SLICE {
                return false;
            }
        }
        self.keys.order(start)
    }
}

impl Exec {
    /// Gathers for a slice; it queues when it is ready.
    pub(super) fn poll_gathering(&mut self, waker: &Waker, context: &mut Context<'_>) -> Poll<()> {
        let Turn::Gathering(gathering) = &mut self.turn else { return Poll::Ready(()) };
        if !gathering.work(&self.inner, &self.commands, context.session) {
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
    use crate::section::{Section, SectionWait};

    const KEYS: usize = 10_000;
    const STRIPES: usize = 64;

    fn name(number: usize) -> Vec<u8> {
        format!("key:{number}").into_bytes()
    }

    fn store() -> Store {
        Store::new(StoreOptions { stripes: STRIPES, ..StoreOptions::default() })
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
        drop(section);
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
        drop(section);
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

    /// Random sections, large and small, that come, give up and go: in one store those of many keys are large tickets, in
    /// the other they stand in every queue by themselves. What is granted when is the same.
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
