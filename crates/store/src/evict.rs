//! Eviction: the choice of keys to remove when memory is full.
//!
//! A clock hand moves over all segments of all databases. It examines about [`SEEN`] keys at a time, which are
//! practically a random sample because segments are in the order of hashes, and evicts the least valuable sixteenth of
//! them. So a victim is the worst of sixteen and not, as in Redis, of five. A newly written key has a sixteenth of a
//! round in which it may be used before it is examined again, so new keys can stay even though old keys have been used
//! more often. The cost is the examination of sixteen keys per victim, whose cache lines are prefetched together: about
//! a microsecond.
//!
//! Recency is the time of last access in sixteenths of a second. Frequency is a counter like Redis's, but it counts the
//! first accesses exactly, because the distinction between one and four uses matters: see
//! [`Entry::touch`](sluicegate_data::value::Entry::touch). Sticky and held keys are skipped.
//!
//! Memory is checked before a command's stripes are locked, and the command itself evicts, for at most [`BUDGET`];
//! later commands and the tick continue. So a command is refused only after the hand made one round without finding a
//! victim. Flushed databases are freed before keys are evicted, within the same time: right after a large FLUSHALL,
//! commands are accepted until the flushed data is freed, even if the remaining data exceeds a new limit.
//!
//! **Held keys.** A long transaction or script may hold most keys, and may itself overfill the store. A scan ends after
//! [`LOOKED_MAX`] keys. If nearly all of them were held, the hand pauses for twenty times the duration of the scan;
//! meanwhile commands are accepted although memory exceeds the limit, because the held keys can be evicted soon. A
//! section that has met such a pause does not check memory again; the pause ends when the section ends.
//!
//! **Memory of clients and scripts** counts in full for refusing commands, and up to half of the limit for eviction
//! ([`Memory::is_over_without_clients`](crate::memory::Memory::is_over_without_clients)): beyond that the largest
//! clients are closed, so no client causes the eviction of everything.
//!
//! In the lock order, the evictor's lock comes before the stripes' locks: it is held while a segment is examined.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sluicegate_data::clock::idle_ticks;
use sluicegate_data::object::limits::Limits;
use sluicegate_data::value::Entry;

use crate::Inner;
use crate::effect::Effect;
use crate::memory::Policy;
use crate::notify::{Class, Event};
use crate::stripe::Stripe;
use crate::waiter::ReadyKey;

/// The number of evictable keys examined at a time.
const SEEN: usize = 128;
/// The number of keys of which one is evicted.
const PER_VICTIM: usize = 16;
/// The maximum time that one command spends on eviction.
const BUDGET: Duration = Duration::from_micros(500);
/// The maximum number of keys that one scan visits.
const LOOKED_MAX: usize = 4096;
/// The ratio of held to evictable keys that makes a scan unproductive.
const HELD_PER_FREE: usize = 16;
/// The pause after an unproductive scan, as a multiple of the scan's duration.
const REST_TIMES: u32 = 20;
/// A round that takes longer than this starts again, because keys already passed may have become evictable.
const ROUND_MAX: Duration = Duration::from_millis(100);
/// The bounds of this pause.
const REST: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(100);
/// The number of stripes of a flushed database that are freed in one step.
const STRIPES_PER_STEP: usize = 8;

/// A key that may be evicted.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// The higher, the sooner the key is evicted.
    score: u64,
    hash: u64,
    /// The entry's stamp when it was examined; an entry used since then is not evicted.
    stamp: u64,
    db: u32,
}

/// The position of the hand, and the candidates found.
#[derive(Debug, Default)]
pub(crate) struct Evictor {
    db: u32,
    /// The position in SCAN's order.
    place: u64,
    /// The least valuable of the keys examined last, in ascending order of scores.
    candidates: Vec<Candidate>,
    policy: Policy,
    /// A number that changes with each scan, for the random policies.
    salt: u64,
    /// The number of stripes that the hand has passed since it last saw an evictable key.
    passed: usize,
    /// Whether one of them had a key that would be evicted if it were not held.
    met_held: bool,
    /// The start of the current round.
    round_began: Option<Instant>,
}

impl Evictor {
    /// Drops the candidates found under another policy.
    pub(crate) fn forget(&mut self) {
        self.candidates.clear();
        self.begin_round();
    }

    fn begin_round(&mut self) {
        (self.passed, self.met_held, self.round_began) = (0, false, None);
    }
}

/// The result of an attempt to evict a key.
enum Evicted {
    Key,
    /// The candidate was used, changed or removed meanwhile.
    Gone,
    /// The scan ended before it found an evictable key.
    NotYet,
    /// The evictable keys are held by sections, and the hand pauses.
    Held,
    /// The hand made a round and found no evictable key.
    Nothing,
}

/// Whether a command that needs memory may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is enough memory, or there will be soon.
    Made,
    /// The command may run; more can be evicted only when sections have ended.
    Later,
    /// No key may be evicted.
    None,
}

impl Inner {
    /// Makes room for a command that needs memory. Returns false if nothing may be evicted. The caller is outside the
    /// gate.
    #[cold]
    pub(crate) fn make_room(&self) -> bool {
        self.make_room_for(BUDGET) != Room::None
    }

    /// Like [`make_room`](Self::make_room), for a command of a section. Returns false if the section need not call this
    /// again.
    #[cold]
    pub(crate) fn make_room_in_section(&self) -> bool {
        self.make_room_for(BUDGET) == Room::Made
    }

    /// Like [`make_room`](Self::make_room), with a time budget chosen by the caller.
    pub(crate) fn make_room_for(&self, budget: Duration) -> Room {
        if self.loading.is_on() {
            return Room::Made;
        }
        let start = Instant::now();
        let mut steps = 0_u32;
        let is_full = || if self.memory.is_over() { Room::None } else { Room::Made };
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
                // The last discarded database may just have been freed.
                return is_full();
            }
            if !self.memory.is_over_without_clients() {
                return Room::Made;
            }
            match self.evict(policy) {
                Evicted::Key | Evicted::Gone => {}
                Evicted::NotYet if start.elapsed() >= budget => break,
                Evicted::NotYet => {}
                Evicted::Held => return Room::Later,
                Evicted::Nothing => return is_full(),
            }
        }
        Room::Made
    }

    /// Evicts one key.
    fn evict(&self, policy: Policy) -> Evicted {
        let candidate = {
            let mut evictor = self.evictor.lock();
            if evictor.policy != policy {
                evictor.forget();
                evictor.policy = policy;
            }
            if evictor.candidates.is_empty() {
                if self.memory.evictor_rests() {
                    return Evicted::Held;
                }
                self.look(&mut evictor, policy);
            }
            match evictor.candidates.pop() {
                Some(candidate) => candidate,
                None if self.memory.evictor_rests() => return Evicted::Held,
                None if evictor.passed <= self.stripes_of_all() => return Evicted::NotYet,
                None => {
                    evictor.begin_round();
                    return Evicted::Nothing;
                }
            }
        };
        if self.evict_this(candidate, policy) { Evicted::Key } else { Evicted::Gone }
    }

    /// Returns the number of stripes of all databases, including databases that do not exist.
    fn stripes_of_all(&self) -> usize {
        self.keyspace.databases() as usize * self.keyspace.stripes()
    }

    /// Moves the hand until [`SEEN`] evictable keys have been examined, [`LOOKED_MAX`] keys have been visited, or the
    /// round is complete.
    fn look(&self, evictor: &mut Evictor, policy: Policy) {
        let start = Instant::now();
        let now = self.clock.coarse_ticks();
        let databases = self.keyspace.databases();
        let all = self.stripes_of_all();
        evictor.salt = evictor.salt.wrapping_add(0x9e37_79b9_7f4a_7c15);
        if start.duration_since(*evictor.round_began.get_or_insert(start)) > ROUND_MAX {
            evictor.begin_round();
            evictor.round_began = Some(start);
        }
        let Evictor { db: hand_db, place, candidates, salt, passed, met_held, round_began, .. } = evictor;
        let (mut seen, mut held, mut looked) = (0, 0, 0);
        // The stripe in which a round starts is visited twice: from the hand to its end at the start of the round, and
        // from its beginning at the end of the round.
        while seen < SEEN && looked < LOOKED_MAX && *passed <= all {
            let pass = self.gate.enter();
            let db = self.keyspace.db(&pass, *hand_db);
            let stripe = self.keyspace.stripe_of_order(*place);
            let next = db.and_then(|db| {
                if !db.may_evict(stripe, policy.is_volatile()) {
                    return None;
                }
                let locked = db.lock(stripe);
                let stripe: &Stripe = &locked;
                let hash_of = |entry: &Entry| self.keyspace.hasher.hash(entry.key());
                stripe.table.visit(*place, policy.is_volatile(), |entry| {
                    looked += 1;
                    if !would_go(entry, policy) {
                        return;
                    }
                    if is_held(stripe, entry) {
                        held += 1;
                        return;
                    }
                    seen += 1;
                    let score = score(entry, policy, (now, &self.limits), || hash_of(entry) ^ *salt);
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
                    let next = if db.is_some() { stripe + 1 } else { self.keyspace.stripes() };
                    *passed += next - stripe;
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
        *met_held |= held > 0;
        let is_barren = seen == 0 && *passed > all && *met_held;
        if seen > 0 || is_barren {
            (*passed, *met_held, *round_began) = (0, false, None);
        }
        if is_barren || looked >= LOOKED_MAX && held > HELD_PER_FREE * seen {
            self.memory.rest_evictor((start.elapsed() * REST_TIMES).clamp(*REST.start(), *REST.end()));
        }
    }

    /// Evicts a candidate, if it has not changed since it was examined.
    fn evict_this(&self, candidate: Candidate, policy: Policy) -> bool {
        let Candidate { hash, stamp: seen, db: index, .. } = candidate;
        let mut told = None;
        let changed;
        {
            let pass = self.gate.enter();
            let Some(db) = self.keyspace.db(&pass, index) else { return false };
            let mut locked = db.lock(self.keyspace.stripe_of(hash));
            let stripe: &mut Stripe = &mut locked;
            let hasher = &self.keyspace.hasher;
            let is_it = |entry: &Entry| stamp(entry, policy) == seen && hasher.hash(entry.key()) == hash;
            let Some(slot) = stripe.table.find_by(hash, is_it) else { return false };
            let entry = stripe.table.entry(slot);
            if !would_go(entry, policy) || is_held(stripe, entry) {
                return false;
            }
            if self.notifier.wants(Class::Evicted) {
                told = Some(Effect::Event(Event { name: "evicted", db: index, key: entry.key().into() }));
            }
            if let Some(watched) = &mut stripe.watched {
                watched.touch(entry.key());
            }
            self.record_expired(index, stripe.table.entry(slot).key());
            changed = self.lose_tracked(hash, stripe.table.entry(slot).key());
            let garbage = stripe.remove(slot);
            let ready: VecDeque<ReadyKey> = stripe.take_ready().collect();
            drop(locked);
            drop(pass);
            self.discard(garbage);
            if !ready.is_empty() {
                self.serve_elsewhere(ready);
            }
        }
        self.memory.evicted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.emit(changed.into_iter().chain(told));
        true
    }
}

/// Returns whether the policy allows evicting the entry.
fn would_go(entry: &Entry, policy: Policy) -> bool {
    (!policy.is_volatile() || entry.expiry().is_some()) && !entry.sticky()
}

/// Returns whether the entry's key is held.
fn is_held(stripe: &Stripe, entry: &Entry) -> bool {
    stripe.holds.as_deref().is_some_and(|holds| holds.concerns(entry.key()))
}

/// Returns the entry's score: the higher, the less valuable.
fn score(entry: &Entry, policy: Policy, (now, limits): (u32, &Limits), random: impl FnOnce() -> u64) -> u64 {
    let idle = idle_ticks(now, entry.access());
    match policy {
        Policy::VolatileLru | Policy::AllkeysLru => u64::from(idle),
        Policy::VolatileLfu | Policy::AllkeysLfu => {
            u64::from(u8::MAX - entry.frequency(now, limits)) << 32 | u64::from(idle)
        }
        Policy::VolatileTtl => u64::MAX - entry.expiry().map_or(u64::MAX, |at_ms| u64::try_from(at_ms).unwrap_or(0)),
        Policy::VolatileRandom | Policy::AllkeysRandom => {
            let bits = random();
            (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        }
        Policy::NoEviction => 0,
    }
}

/// Returns a value that changes when the entry is used or gets another score.
fn stamp(entry: &Entry, policy: Policy) -> u64 {
    match policy {
        Policy::VolatileTtl => entry.expiry().map_or(0, |at_ms| at_ms as u64),
        _ => u64::from(entry.access()) << 8 | u64::from(entry.counter()),
    }
}
