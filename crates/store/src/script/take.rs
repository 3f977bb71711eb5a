//! Undeclared keys of a script that are held by other tickets when it accesses them.
//!
//! The script waits for such a key while it holds others, so two scripts may wait for each other. Before a script
//! waits, it checks for a deadlock: from the holders of its key along the keys for which they wait themselves. Only
//! waiting scripts are in the map, so it costs nothing while keys are free. A script of the cycle that has written
//! nothing is restarted, with all keys declared that it has touched; none of its effects was visible. If all have
//! written, the last one to arrive is refused the key, and the scripts of the cycle are serialized from then on, so
//! that the deadlock does not recur.
//!
//! A script that waits here precedes all tickets that wait for their first keys, because it blocks others itself. If it
//! has no key yet, it waits like those tickets, so a stream of scripts without declared keys starves no ticket. A
//! script that waits for [everything](crate::everything) waits for all others here; meanwhile it keeps the tickets that
//! wait for their first keys from these, so all scripts that wait here precede them.
//!
//! A stream of scripts that have a key each and want the same second key would starve all other tickets for that key.
//! So a script that needs a key for which a ticket has waited [very long](Ticket) is restarted, with the key declared,
//! if it has written nothing: it waits behind that ticket, and holds nothing meanwhile. If it has written, it
//! continues, since the ticket may wait for it; instead, the script is serialized for a while, so that the key becomes
//! free between two calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::control::Control;
use crate::Inner;
use crate::hold::{HeldKey, KeyList, Mode, Phase, Ticket};
use crate::refused::SectionError;
use crate::section::Section;
use crate::stats::SectionCounts;

/// A script that waits for a key.
struct Waiting {
    ticket: Arc<Ticket>,
    control: Arc<Control>,
}

/// The scripts that wait for keys, by the number of their section.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<HashMap<u64, Waiting>>);

/// The result of waiting for a key.
#[derive(Debug)]
pub(crate) enum Took {
    /// The section has it.
    Key(HeldKey),
    /// The section holds everything.
    Everything,
    /// The script is restarted.
    Restart,
    /// The script may not have the key, for this reason.
    Refused(SectionError),
}

/// The wait of a script for a key.
pub(crate) struct Take {
    inner: Arc<Inner>,
    /// A ticket with the section's number and this key alone; without a key if everything is wanted.
    ticket: Arc<Ticket>,
    /// The ticket of a section without keys that wants everything.
    own: Option<Arc<Ticket>>,
    /// The result, if it was known without a wait.
    early: Option<Took>,
    is_listed: bool,
    /// Whether the section has been notified that it has the key.
    is_told: bool,
}

impl Take {
    /// Begins to wait for a key that is held.
    pub(crate) fn new(section: &Section, control: &Arc<Control>, db: u32, key: &[u8]) -> Take {
        let inner = section.inner();
        let mode = section.mode_of_more();
        let keys = inner.held_keys(std::iter::once((db, key, mode)));
        let ticket = match section.held() {
            0 => Ticket::taking_first(section.id(), keys),
            _ => Ticket::taking(section.id(), keys),
        };
        let mut take = Take::of(inner, ticket);
        if take.ticket.goes_first() && inner.starves_another(&take.ticket) {
            if control.may_restart() {
                take.early = Some(Took::Restart);
                take.ticket.cancel();
                return take;
            }
            control.code.set_in_turn_for_now();
        }
        if !take.inner.enter_as_taker(&take.ticket) {
            take.enter(control);
        }
        take
    }

    /// Begins to wait for everything. `control` belongs to a script that has begun, so that others may wait for its keys;
    /// without one, the section has no keys.
    pub(crate) fn everything(section: &Section, control: Option<&Arc<Control>>) -> Take {
        let (inner, id, nothing) = (section.inner(), section.id(), KeyList::new());
        let own = if control.is_none() { section.holding().ticket().cloned() } else { None };
        let ticket = if own.is_some() { Ticket::taking_first(id, nothing) } else { Ticket::taking(id, nothing) };
        let mut take = Take::of(inner, ticket);
        take.own = own;
        if let Some(own) = &take.own {
            inner.begin_waiting_for_everything(own);
        }
        if !take.hold_everything()
            && let Some(control) = control
        {
            take.enter(control);
        }
        take
    }

    fn of(inner: &Arc<Inner>, ticket: Ticket) -> Take {
        let (inner, ticket) = (inner.clone(), Arc::new(ticket));
        Take { inner, ticket, own: None, early: None, is_listed: false, is_told: false }
    }

    fn hold_everything(&self) -> bool {
        self.inner.hold_everything(&self.ticket, self.own.as_deref())
    }

    /// Returns whether everything is wanted.
    fn wants_everything(&self) -> bool {
        self.ticket.keys.is_empty()
    }

    /// Returns whether the section already has everything.
    pub(crate) fn has_everything(&self) -> bool {
        self.wants_everything() && self.ticket.phase() == Phase::Granted
    }

    fn enter(&mut self, control: &Arc<Control>) {
        let mut waiters = self.inner.scripts.waiters.0.lock();
        let id = self.ticket.id;
        waiters.insert(id, Waiting { ticket: self.ticket.clone(), control: control.clone() });
        self.is_listed = true;
        let mut given_up = Vec::new();
        // One wait may close several cycles. Ending it breaks them all.
        while let Some(circle) = self.inner.circle(&waiters, id) {
            let victim = circle.iter().copied().find(|member| waiters[member].control.may_restart());
            match victim {
                Some(victim) if victim != id => {
                    // If the victim was granted its key just now, it does not wait any more either.
                    let ticket = &waiters[&victim].ticket;
                    if ticket.cancel() {
                        given_up.push(ticket.clone());
                    }
                }
                victim => {
                    if victim.is_none() {
                        circle.iter().for_each(|member| waiters[member].control.code.set_in_turn());
                        SectionCounts::count(&self.inner.sections.refused);
                    }
                    self.early = Some(match victim {
                        Some(_) => Took::Restart,
                        None => Took::Refused(SectionError::Held),
                    });
                    self.ticket.cancel();
                    break;
                }
            }
        }
        drop(waiters);
        given_up.iter().for_each(|ticket| ticket.wake());
        // Listed before checking whether a section wants everything, which does these two in the opposite order.
        if !self.ticket.goes_first() && self.inner.everything.is_wanted() {
            self.inner.put_first(vec![self.ticket.clone()]);
        }
    }

    /// Returns the result.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Took> {
        if let Some(early) = self.early.take() {
            return Poll::Ready(early);
        }
        self.ticket.listen(context.waker());
        if self.wants_everything() {
            return match self.ticket.phase() {
                Phase::Cancelled => {
                    self.leave_list();
                    let refused = |text| Took::Refused(SectionError::Behind(text));
                    Poll::Ready(self.ticket.refusal().map_or(Took::Restart, refused))
                }
                Phase::Waiting if !self.hold_everything() => Poll::Pending,
                _ => {
                    self.leave_list();
                    Poll::Ready(Took::Everything)
                }
            };
        }
        match self.ticket.phase() {
            Phase::Granted => {
                self.leave_list();
                self.is_told = true;
                let held = &self.ticket.keys[0];
                let HeldKey { db, stripe, ref key, mode } = *held;
                Poll::Ready(Took::Key(HeldKey { db, stripe, key: key.clone(), mode }))
            }
            Phase::Cancelled => {
                self.leave_list();
                Poll::Ready(Took::Restart)
            }
            _ => Poll::Pending,
        }
    }

    /// Returns the key, for a script that is restarted; `None` if it wants everything.
    pub(crate) fn key(&self) -> Option<(u32, &[u8], Mode)> {
        self.ticket.keys.first().map(|held| (held.db, &*held.key, held.mode))
    }

    fn leave_list(&mut self) {
        if std::mem::take(&mut self.is_listed) {
            self.inner.scripts.waiters.0.lock().remove(&self.ticket.id);
        }
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        self.leave_list();
        self.ticket.cancel();
        if self.wants_everything() {
            if self.ticket.phase() == Phase::Cancelled {
                if let Some(own) = &self.own {
                    self.inner.end_waiting_for_everything(own);
                }
                self.inner.want_no_more(&self.ticket);
            }
            return;
        }
        match self.ticket.phase() {
            // The section holds the key without knowing it.
            Phase::Granted if !self.is_told => self.inner.drop_taken(&self.ticket),
            Phase::Cancelled => self.inner.leave_takers(&self.ticket),
            _ => {}
        }
    }
}

impl Inner {
    /// Returns the cycle of waiting scripts that `id` closes, itself first, if there is one.
    fn circle(&self, waiters: &HashMap<u64, Waiting>, id: u64) -> Option<Vec<u64>> {
        // A depth-first search; a script from which no cycle was found is not visited again.
        let blockers = |id: &u64| {
            let ticket = &waiters[id].ticket;
            if ticket.keys.is_empty() {
                // Every script here has keys, and waits.
                return waiters.keys().copied().filter(|other| other != id).collect();
            }
            self.holders(ticket)
        };
        let mut path: Vec<(u64, SmallVec<[u64; 4]>)> = vec![(id, blockers(&id))];
        let mut seen = vec![id];
        while let Some((_, ahead)) = path.last_mut() {
            let Some(next) = ahead.pop() else {
                path.pop();
                continue;
            };
            if next == id {
                return Some(path.iter().map(|(member, _)| *member).collect());
            }
            if seen.contains(&next) {
                continue;
            }
            seen.push(next);
            if waiters.get(&next).is_some_and(|waiting| waiting.ticket.phase() == Phase::Waiting) {
                path.push((next, blockers(&next)));
            }
        }
        None
    }

    /// Lets the scripts that wait for their first key precede all other tickets, because a section wants everything: it
    /// waits for these scripts, and the tickets before them wait for it.
    pub(crate) fn put_takers_first(&self) {
        let waiters = self.scripts.waiters.0.lock();
        let tickets = waiters.values().map(|waiting| &waiting.ticket);
        let first: Vec<Arc<Ticket>> = tickets.filter(|ticket| !ticket.goes_first()).cloned().collect();
        drop(waiters);
        self.put_first(first);
    }

    /// Restarts the scripts that wait for a key of this section, or for everything, and have written nothing: they then
    /// wait with the key declared, and hold nothing meanwhile.
    pub(crate) fn restart_behind(&self, section: u64) {
        let mut given_up = Vec::new();
        for waiting in self.scripts.waiters.0.lock().values() {
            let ticket = &waiting.ticket;
            let is_behind = match ticket.keys.is_empty() {
                true => ticket.id != section,
                false => self.holders(ticket).contains(&section),
            };
            if is_behind && waiting.control.may_restart() && ticket.cancel() {
                given_up.push(ticket.clone());
            }
        }
        given_up.iter().for_each(|ticket| ticket.wake());
    }

    /// Returns the tickets that wait for everything and hold nothing.
    pub(crate) fn waiting_for_everything(&self) -> Vec<Arc<Ticket>> {
        let mut waiting = self.everything.waiting();
        if !waiting.is_empty() {
            let waiters = self.scripts.waiters.0.lock();
            waiting.retain(|ticket| !waiters.contains_key(&ticket.id));
        }
        waiting
    }

    /// Returns the holders of the key for which a ticket waits.
    fn holders(&self, ticket: &Ticket) -> SmallVec<[u64; 4]> {
        let held = &ticket.keys[0];
        let pass = self.gate.enter();
        let stripe = self.keyspace.db_to_write(&pass, held.db).lock(held.stripe as usize);
        stripe.holds.as_deref().map(|holds| holds.holders(ticket.id, &held.key, held.mode)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::Waker;

    use super::*;
    use crate::command::asked::ask;
    use crate::section::SectionWait;
    use crate::turn::{Taken, Taker};
    use crate::{Store, StoreOptions};

    const HOT: &[u8] = b"hot";
    /// More than may overtake.
    const STREAM: usize = 1000;

    fn poll(wait: &mut SectionWait) -> Poll<Section> {
        Pin::new(wait).poll(&mut Context::from_waker(Waker::noop())).map(|section| section.expect("not refused"))
    }

    /// The section of a script, which holds these keys.
    fn script(store: &Store, keys: &[&[u8]]) -> Section {
        let Poll::Ready(mut section) = poll(&mut store.section(keys.iter().map(|key| (0, *key, Mode::Exclusive))))
        else {
            panic!("its keys are free")
        };
        section.extend_as(Some(Mode::Exclusive));
        section
    }

    fn hot(store: &Store) -> KeyList {
        store.0.held_keys(std::iter::once((0, HOT, Mode::Exclusive)))
    }

    /// Touches the hot key as a command of the script does; whether it was free.
    fn touch(section: &mut Section) -> bool {
        let mut out = sluicegate_wire::resp::ReplyBuilder::new();
        section.execute(0, &[b"INCR", HOT], &mut out).is_ok()
    }

    #[test]
    fn a_stream_of_scripts_that_declare_nothing_lets_one_in_that_waits() {
        let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
        let mut holder = script(&store, &[]);
        assert!(touch(&mut holder));
        let mut waits = store.section([(0, HOT, Mode::Exclusive)]);
        assert!(poll(&mut waits).is_pending());
        // Each comes when the key is free again, before the one that waits has woken up.
        let mut came = 0;
        drop(holder);
        while came < STREAM {
            came += 1;
            if !touch(&mut script(&store, &[])) {
                break;
            }
        }
        assert!(came < STREAM, "none was kept from the key");
        assert!(poll(&mut waits).is_ready());
    }

    /// Runs scripts that each have a key of their own, and reach the hot key while the script before has it. Returns
    /// how many of them got it before a ticket that had waited for long.
    #[track_caller]
    fn check_stream(script: &str) -> usize {
        let overtaken_for = std::time::Duration::from_nanos(1);
        let store = Store::new(StoreOptions { stripes: 4, overtaken_for, ..StoreOptions::default() });
        // Each script stops after it has reached the hot key, until its gate is opened.
        let begin = |number: usize| {
            let (own, gate) = (format!("own{number}"), format!("gate{number}"));
            let closed = self::script(&store, &[gate.as_bytes()]);
            let Err(mut stopped) = ask(&store, &["EVAL", script, "1", &own, &gate]) else { panic!("its gate is shut") };
            let _ = stopped.poll_finished(&mut Context::from_waker(Waker::noop()));
            (stopped, closed)
        };
        let (mut before, mut gate) = begin(0);
        let mut waits = store.section([(0, HOT, Mode::Exclusive)]);
        assert!(poll(&mut waits).is_pending());
        let mut all = Vec::new();
        for came in 1..STREAM {
            let next = begin(came);
            drop(std::mem::replace(&mut gate, next.1));
            // All scripts that can continue do.
            all.push(std::mem::replace(&mut before, next.0));
            all.retain_mut(|script| script.poll_finished(&mut Context::from_waker(Waker::noop())).is_pending());
            if let Poll::Ready(section) = poll(&mut waits) {
                drop((section, gate));
                all.push(before);
                while !all.is_empty() {
                    all.retain_mut(|script| script.poll_finished(&mut Context::from_waker(Waker::noop())).is_pending());
                }
                assert_eq!(store.stats().tickets, 0);
                return came;
            }
        }
        panic!("it never had its turn");
    }

    #[test]
    fn a_stream_of_scripts_that_have_a_key_lets_one_in_that_is_starved() {
        // The script has written nothing, and is restarted.
        check_stream("redis.call('GET', KEYS[1]) redis.call('INCR', 'hot') redis.call('GET', ARGV[1])");
        // The script has written, and is slowed down.
        check_stream("redis.call('INCR', KEYS[1]) redis.call('INCR', 'hot') redis.call('GET', ARGV[1])");
    }

    #[test]
    fn who_has_a_key_goes_before_those_who_wait_and_who_has_none_does_not() {
        let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
        for keys in [&[&b"own"[..]][..], &[]] {
            let mut holder = script(&store, &[]);
            assert!(touch(&mut holder));
            let mut waits = store.section([(0, HOT, Mode::Exclusive)]);
            assert!(poll(&mut waits).is_pending());
            let mut taker = script(&store, keys);
            assert!(!touch(&mut taker), "it is held");
            let ticket = match keys {
                [] => Ticket::taking_first(taker.id(), hot(&store)),
                _ => Ticket::taking(taker.id(), hot(&store)),
            };
            let ticket = Arc::new(ticket);
            assert!(!store.0.enter_as_taker(&ticket));
            drop(holder);
            let goes_first = !keys.is_empty();
            assert_eq!(ticket.phase() == Phase::Granted, goes_first);
            assert_eq!(poll(&mut waits).is_ready(), !goes_first);
            if goes_first {
                assert_eq!(store.0.take_key(&ticket, 0, HOT, Mode::Exclusive, Taker::Script), Taken::Before);
                store.0.drop_taken(&ticket);
            } else {
                ticket.cancel();
                store.0.leave_takers(&ticket);
            }
        }
    }

    /// Ends scripts that wait for each other's ends only, and the section behind them.
    #[track_caller]
    fn check_all_end(store: &Store, mut scripts: Vec<crate::park::Parked>, mut waits: SectionWait) {
        let count = scripts.len();
        for _ in 0..count {
            scripts.retain_mut(|script| script.poll_finished(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert_eq!(scripts.len(), 0, "they wait for each other");
        assert!(poll(&mut waits).is_ready());
        drop(waits);
        assert_eq!(store.stats().tickets, 0);
    }

    /// Begins a script that has a key and stops before it needs everything, until the section is dropped.
    fn script_that_wants_everything(store: &Store) -> (crate::park::Parked, Section) {
        let gate = script(store, &[b"gate"]);
        let text = "redis.call('SET', KEYS[1], 1) redis.call('GET', 'gate') return #redis.call('KEYS', '*')";
        (ask(store, &["EVAL", text, "1", "own"]).expect_err("its gate is shut"), gate)
    }

    #[test]
    fn a_section_without_keys_that_wants_everything_waits_for_those_that_have_keys_and_want_it() {
        for wants_first in [true, false] {
            let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
            let mut context = Context::from_waker(Waker::noop());
            let mut keyless = script(&store, &[]);
            let (mut keyed, gate) = script_that_wants_everything(&store);
            let mut take = None;
            if wants_first {
                take = Some(Take::everything(&keyless, None));
            }
            drop(gate);
            let polled = keyed.poll_finished(&mut context);
            assert_eq!(polled.is_ready(), wants_first, "the other section might be a script that has keys later");
            let mut take = take.unwrap_or_else(|| Take::everything(&keyless, None));
            if polled.is_pending() {
                assert!(keyed.poll_finished(&mut context).is_ready());
            }
            drop(keyed);
            assert!(matches!(take.poll(&mut context), Poll::Ready(Took::Everything)));
            drop(take);
            keyless.adopt_everything();
            assert_eq!(store.0.gate.granted(), 1);
            keyless.finish();
            assert_eq!(store.stats().tickets, 0);
        }
    }

    #[test]
    fn sections_without_keys_that_want_everything_have_it_one_after_the_other() {
        let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
        let mut context = Context::from_waker(Waker::noop());
        let holder = script(&store, &[HOT]);
        let sections = [(); 3].map(|()| script(&store, &[]));
        let mut takes = sections.each_ref().map(|section| Some(Take::everything(section, None)));
        // One that is given up is counted again, until it ends.
        assert_eq!((store.0.gate.granted(), takes[1].take().is_some()), (1, true));
        assert_eq!(store.0.gate.granted(), 2);
        for index in [0, 2] {
            assert!(takes[index].as_mut().is_some_and(|take| take.poll(&mut context).is_pending()));
        }
        drop(holder);
        let [first, middle, last] = sections;
        middle.finish();
        for (mut section, index) in [(first, 0), (last, 2)] {
            let took = takes[index].as_mut().map(|take| take.poll(&mut context));
            assert!(matches!(took, Some(Poll::Ready(Took::Everything))), "{took:?}");
            takes[index] = None;
            section.adopt_everything();
            section.finish();
        }
        assert_eq!((store.stats().tickets, store.0.gate.granted()), (0, 0));
    }

    #[test]
    fn who_has_no_key_goes_before_those_who_wait_as_soon_as_a_script_wants_everything() {
        const TOUCHES: &[&str] = &["EVAL", "redis.call('INCR', 'hot')", "0"];
        const FLUSHES: &[&str] = &["EVAL", "redis.call('SET', KEYS[1], 1) redis.call('FLUSHDB')", "1", "own"];
        let overtaken_for = std::time::Duration::from_nanos(1);
        for order in 0..3 {
            let store = Store::new(StoreOptions { stripes: 4, overtaken_for, ..StoreOptions::default() });
            let [holder, other] = [HOT, b"other"].map(|key| script(&store, &[key]));
            let mut waits = store.section([(0, HOT, Mode::Exclusive), (0, b"other", Mode::Exclusive)]);
            assert!(poll(&mut waits).is_pending());
            // It wants the key, and has none; the section before it reserves the key.
            let begin = |words| ask(&store, words).expect_err("it waits");
            let mut scripts = vec![begin(TOUCHES)];
            match order {
                // The key becomes free after another script wants everything, or before.
                0 => {
                    scripts.push(begin(FLUSHES));
                    drop(holder);
                }
                1 => {
                    drop(holder);
                    scripts.push(begin(FLUSHES));
                }
                // A further script reaches the key only then.
                _ => {
                    let mut late = script(&store, &[]);
                    let control = store.0.scripts.running.all()[0].clone();
                    scripts.push(begin(FLUSHES));
                    drop(holder);
                    let done = scripts[0].poll_finished(&mut Context::from_waker(Waker::noop())).is_ready();
                    assert!(done, "it has the key");
                    drop(scripts.remove(0));
                    assert!(!touch(&mut late), "the key is reserved");
                    let mut take = Take::new(&late, &control, 0, HOT);
                    let took = take.poll(&mut Context::from_waker(Waker::noop()));
                    let Poll::Ready(Took::Key(held)) = took else { panic!("{took:?}") };
                    late.adopt(held);
                    drop((take, late));
                }
            }
            drop(other);
            check_all_end(&store, scripts, waits);
        }
    }
}
