//! Eviction: which keys go when memory is full.
//!
//! A hand goes round over all segments of all databases, as a clock's. It takes in about [`SEEN`] keys at a time, which
//! are as good as drawn by chance because segments are in the order of hashes, and evicts the sixteenth part that is
//! worth least. So a victim is the worst of sixteen and not, as in Redis, of five; and a key that was just written has a
//! sixteenth of a round to be used before it is judged again, which is what lets new keys in although the old ones have
//! been used more often. The price is one look at sixteen keys per victim, whose lines are asked for together: about a
//! microsecond.
//!
//! Recency is the time of last access in sixteenths of a second. Frequency is a counter as Redis's, but one that counts
//! the first accesses exactly, because what decides is whether a key was used once or four times: see
//! [`Entry::touch`](crate::value::Entry::touch). Sticky and held keys are passed over.
//!
//! Memory is looked at before a command's stripes are locked, and the command itself makes room, for at most
//! [`BUDGET`]; what is still to be evicted then is left to those that follow and to the tick. So a command is refused
//! only after the hand went round once without finding anything. What was flushed goes before keys do, in the same time:
//! right after a large FLUSHALL commands pass until it is freed, even where what is left is beyond a new limit.
//!
//! The evictor's lock stands above the stripes': it is held while a segment is looked at.

use std::time::{Duration, Instant};

use crate::Inner;
use crate::clock::idle_ticks;
use crate::effect::Effect;
use crate::memory::Policy;
use crate::notify::{Class, Event};
use crate::stripe::Stripe;
use crate::value::Entry;

/// Keys that are taken in at a time.
const SEEN: usize = 128;
/// Of so many keys one is evicted.
const PER_VICTIM: usize = 16;
/// Time that one command takes for eviction at most.
const BUDGET: Duration = Duration::from_micros(500);
/// Stripes of a flushed database that are freed before keys are evicted instead.
const STRIPES_PER_STEP: usize = 8;

/// A key that may go.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// The higher, the sooner it goes.
    score: u64,
    hash: u64,
    /// What the entry showed; one that has been used since is not evicted.
    stamp: u64,
    db: u32,
}

/// Where the hand stands, and what it found.
#[derive(Debug, Default)]
pub(crate) struct Evictor {
    db: u32,
    /// The place in SCAN's order.
    place: u64,
    /// The worst of the keys last taken in, the worst last.
    candidates: Vec<Candidate>,
    policy: Policy,
    /// Another number at each look, for policies that go by chance.
    salt: u64,
}

impl Evictor {
    /// Drops what was found under another policy.
    pub(crate) fn forget(&mut self) {
        self.candidates.clear();
    }
}

/// How an attempt to evict a key ended.
enum Evicted {
    Key,
    /// It was used, changed or removed meanwhile.
    Gone,
    /// The hand went round and found nothing.
    Nothing,
}

impl Inner {
    /// Makes room for a command that needs memory; false if nothing may be evicted. The caller is outside the gate.
    #[cold]
    pub(crate) fn make_room(&self) -> bool {
        self.make_room_for(BUDGET)
    }

    /// As [`make_room`](Self::make_room), for a time of the caller's.
    pub(crate) fn make_room_for(&self, budget: Duration) -> bool {
        let start = Instant::now();
        let mut steps = 0_u32;
        while self.memory.is_over() {
            steps += 1;
            if steps.is_multiple_of(8) && start.elapsed() >= budget {
                break;
            }
            if self.keyspace.free_discarded(STRIPES_PER_STEP) {
                continue;
            }
            let policy = self.memory.policy();
            if policy == Policy::NoEviction {
                // What was discarded last may just have been freed.
                return !self.memory.is_over();
            }
            if let Evicted::Nothing = self.evict(policy) {
                return !self.memory.is_over();
            }
        }
        true
    }

    /// Evicts one key.
    fn evict(&self, policy: Policy) -> Evicted {
        let candidate = {
            let mut evictor = self.memory.evictor.lock();
            if evictor.policy != policy {
                evictor.forget();
                evictor.policy = policy;
            }
            if evictor.candidates.is_empty() {
                self.look(&mut evictor, policy);
            }
            evictor.candidates.pop()
        };
        match candidate {
            None => Evicted::Nothing,
            Some(candidate) if self.evict_this(candidate, policy) => Evicted::Key,
            Some(_) => Evicted::Gone,
        }
    }

    /// Moves the hand until enough keys were seen, or once round.
    fn look(&self, evictor: &mut Evictor, policy: Policy) {
        let now = self.clock.coarse_ticks();
        let databases = self.keyspace.databases();
        evictor.salt = evictor.salt.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let Evictor { db: hand_db, place, candidates, salt, .. } = evictor;
        let mut seen = 0;
        // The stripe in which it begins is seen to its end at the start, and from its beginning at the end.
        let mut rounds = 0;
        let first = (*hand_db, self.keyspace.stripe_of_order(*place));
        let mut left_first = false;
        while seen < SEEN {
            let pass = self.gate.enter();
            let db = self.keyspace.db(&pass, *hand_db);
            let stripe = self.keyspace.stripe_of_order(*place);
            if left_first && (*hand_db, stripe) == first {
                rounds += 1;
            }
            let next = db.and_then(|db| {
                if !db.may_evict(stripe, policy.is_volatile()) {
                    return None;
                }
                let locked = db.lock(stripe);
                let stripe: &Stripe = &locked;
                let hash_of = |entry: &Entry| self.keyspace.hasher.hash(entry.key());
                stripe.table.visit(*place, policy.is_volatile(), |entry| {
                    if !may_go(stripe, entry, policy) {
                        return;
                    }
                    seen += 1;
                    let score = score(entry, policy, now, || hash_of(entry) ^ *salt);
                    let full = candidates.len() >= SEEN / PER_VICTIM;
                    if full && score <= candidates[0].score {
                        return;
                    }
                    if full {
                        candidates.remove(0);
                    }
                    let at = candidates.partition_point(|other| other.score < score);
                    let stamp = stamp(entry, policy);
                    candidates.insert(at, Candidate { score, hash: hash_of(entry), stamp, db: *hand_db });
                })
            });
            match next {
                Some(next) => *place = next,
                None => {
                    left_first = true;
                    if rounds > 0 {
                        break;
                    }
                    let next = if db.is_some() { stripe + 1 } else { self.keyspace.stripes() };
                    if next < self.keyspace.stripes() {
                        *place = self.keyspace.order_of_stripe(next);
                    } else {
                        *place = 0;
                        *hand_db = (*hand_db + 1) % databases;
                    }
                }
            }
        }
        let keep = seen.div_ceil(PER_VICTIM).min(candidates.len());
        candidates.drain(..candidates.len() - keep);
    }

    /// Evicts a key that was found, if it is as it was.
    fn evict_this(&self, candidate: Candidate, policy: Policy) -> bool {
        let Candidate { hash, stamp: seen, db: index, .. } = candidate;
        let mut told = None;
        {
            let pass = self.gate.enter();
            let Some(db) = self.keyspace.db(&pass, index) else { return false };
            let mut locked = db.lock(self.keyspace.stripe_of(hash));
            let stripe: &mut Stripe = &mut locked;
            let hasher = &self.keyspace.hasher;
            let is_it = |entry: &Entry| stamp(entry, policy) == seen && hasher.hash(entry.key()) == hash;
            let Some(slot) = stripe.table.find_by(hash, is_it) else { return false };
            let entry = stripe.table.entry(slot);
            if !may_go(stripe, entry, policy) {
                return false;
            }
            if self.notifier.wants(Class::Evicted) {
                told = Some(Effect::Event(Event { name: "evicted", db: index, key: entry.key().into() }));
            }
            if let Some(watched) = &mut stripe.watched {
                watched.touch(entry.key());
            }
            let garbage = stripe.remove(slot);
            drop(locked);
            drop(pass);
            self.discard(garbage);
        }
        self.memory.evicted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.emit(told);
        true
    }
}

/// Whether the policy lets the entry go, and nobody holds its key.
fn may_go(stripe: &Stripe, entry: &Entry, policy: Policy) -> bool {
    (!policy.is_volatile() || entry.expiry().is_some())
        && !entry.sticky()
        && stripe.holds.as_deref().is_none_or(|holds| !holds.concerns(entry.key()))
}

/// How little the entry is worth.
fn score(entry: &Entry, policy: Policy, now: u32, random: impl FnOnce() -> u64) -> u64 {
    let idle = idle_ticks(now, entry.access());
    match policy {
        Policy::VolatileLru | Policy::AllkeysLru => u64::from(idle),
        Policy::VolatileLfu | Policy::AllkeysLfu => u64::from(u8::MAX - entry.frequency(now)) << 32 | u64::from(idle),
        Policy::VolatileTtl => u64::MAX - entry.expiry().map_or(u64::MAX, |at_ms| u64::try_from(at_ms).unwrap_or(0)),
        Policy::VolatileRandom | Policy::AllkeysRandom => {
            let bits = random();
            (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        }
        Policy::NoEviction => 0,
    }
}

/// What changes when the entry is used or gets another score.
fn stamp(entry: &Entry, policy: Policy) -> u64 {
    match policy {
        Policy::VolatileTtl => entry.expiry().map_or(0, |at_ms| at_ms as u64),
        _ => u64::from(entry.access()) << 8 | u64::from(entry.counter()),
    }
}
