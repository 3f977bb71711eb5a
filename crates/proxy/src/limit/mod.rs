//! Limits of rules: `http-request limit` and `tcp-request content limit`.
//!
//! A limit is identified by its name. One command of a store (LIMIT.TAKE, LIMIT.LEASE) or one script of an external
//! engine ([`script`]) decides and counts, so it is atomic; times are those of the store or engine, so the clocks of
//! nodes don't matter. This module builds the query and interprets the answer; rules act on it.
//!
//! The counts of a name outlive reloads. They are sharded by thread, so workers write to separate cache lines.

mod field;
mod lease;
pub mod script;
mod stream;
mod top;

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_config::model::{self, LIMIT_LONGEST_NS, LimitAlgorithm, LimitKind};
use sluicegate_wire::engine::{Engine, PendingReply, Started};
use sluicegate_wire::reply::Reply;
use smallvec::SmallVec;

use crate::engines::Engines;

pub(crate) use field::{Fields, Fresh};
pub(crate) use lease::Lease;
pub use stream::StreamLimits;
pub use top::Heavy;
use top::Top;

/// The longest key; a longer one is a mistake or an attack.
pub const KEY_MAX: usize = 1024;
/// The largest cost of a request.
pub const COST_MAX: u64 = 1_000_000_000;
/// The number of shards; this many threads can count without contention.
const SHARDS: usize = 16;

/// The decision of a store or an engine about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whether the request is allowed, and was counted.
    pub allowed: bool,
    /// The amount that is still allowed now.
    pub remaining: i64,
    /// The time in µs after which the request would be allowed; -1 if that is unknown, or never.
    pub retry_us: i64,
    /// The time in µs after which no requests of the key are counted any more.
    pub reset_us: i64,
}

impl Told {
    fn read(reply: Reply) -> Result<Told, String> {
        let wrong = || "ERR the reply is not that of a limit".to_owned();
        let parts = match reply {
            Reply::Array(parts) => parts,
            Reply::Error(reason) => return Err(reason),
            _ => return Err(wrong()),
        };
        match parts[..] {
            [
                Reply::Integer(allowed),
                Reply::Integer(remaining),
                Reply::Integer(retry_us),
                Reply::Integer(reset_us),
            ] => Ok(Told { allowed: allowed == 1, remaining: remaining.max(0), retry_us, reset_us }),
            _ => Err(wrong()),
        }
    }
}

/// The result for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Allowed, with more than a fifth left.
    Allowed,
    /// Allowed, with less left.
    Near,
    /// The request exceeds the limit and is denied.
    Denied,
    /// Beyond the limit, but allowed because of `shadow`.
    Shadowed,
}

/// The counts of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Allowed requests, including the near ones.
    pub allowed: u64,
    /// Allowed requests that left at most a fifth of the limit.
    pub near: u64,
    /// Denied requests.
    pub denied: u64,
    /// Requests that would have been denied without `shadow`.
    pub shadowed: u64,
    /// Requests without a decision of the engine, or with an invalid key or cost.
    pub failed: u64,
    /// Requests that the embedded store counted in place of the engine.
    pub local: u64,
}

#[derive(Default)]
#[repr(align(128))]
struct Shard {
    allowed: AtomicU64,
    near: AtomicU64,
    denied: AtomicU64,
    shadowed: AtomicU64,
    failed: AtomicU64,
    local: AtomicU64,
    top: Mutex<Top>,
}

/// Returns this thread's shard.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    match MINE.get() {
        usize::MAX => {
            let mine = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            MINE.set(mine);
            mine
        }
        mine => mine,
    }
}

/// The state of a limit's name, independent of the configuration.
#[derive(Default)]
struct Known {
    shards: [Shard; SHARDS],
}

impl Known {
    fn sum(&self, of: CountOf) -> u64 {
        self.shards.iter().map(|shard| of(shard).load(Ordering::Relaxed)).sum()
    }
}

/// One of a shard's counts.
type CountOf = fn(&Shard) -> &AtomicU64;

/// The counts, with the names that the state file has for them.
const NAMED: [(&str, CountOf); 6] = [
    ("allowed", |shard| &shard.allowed),
    ("near", |shard| &shard.near),
    ("denied", |shard| &shard.denied),
    ("shadowed", |shard| &shard.shadowed),
    ("failed", |shard| &shard.failed),
    ("local", |shard| &shard.local),
];

/// A limit, running.
pub struct Limit {
    /// Its configuration.
    pub config: Arc<model::Limit>,
    engine: Arc<dyn Engine>,
    stand_in: Arc<dyn Engine>,
    known: Arc<Known>,
}

impl Limit {
    /// Returns the limits of a configuration; limits whose names are in `before` keep their counts. A limit whose
    /// engine does not exist is omitted; rules that use it report that.
    pub(crate) fn all(limits: &[Arc<model::Limit>], engines: &Engines, before: &[Arc<Limit>]) -> Vec<Arc<Limit>> {
        let limit = |config: &Arc<model::Limit>| {
            let known = before.iter().find(|known| known.config.name == config.name);
            Some(Arc::new(Limit {
                config: config.clone(),
                engine: engines.get(&config.store)?.clone(),
                stand_in: engines.get(&config.stand_in)?.clone(),
                known: known.map(|known| known.known.clone()).unwrap_or_default(),
            }))
        };
        limits.iter().filter_map(limit).collect()
    }

    /// Returns the limit's counts.
    pub fn counts(&self) -> Counts {
        let sum = |of: CountOf| self.known.sum(of);
        Counts {
            allowed: sum(|shard| &shard.allowed),
            near: sum(|shard| &shard.near),
            denied: sum(|shard| &shard.denied),
            shadowed: sum(|shard| &shard.shadowed),
            failed: sum(|shard| &shard.failed),
            local: sum(|shard| &shard.local),
        }
    }

    /// Returns the counts that are not 0, by their names.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMED.iter().map(|(name, of)| (*name, self.known.sum(*of))).filter(|(_, count)| *count > 0)
    }

    /// Adds to the count of this name.
    pub(crate) fn restore(&self, name: &str, value: u64) {
        if let Some((_, count)) = NAMED.iter().find(|(known, _)| *known == name) {
            count(&self.known.shards[0]).fetch_add(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn count(&self, key: &[u8], outcome: Outcome) {
        let shard = &self.known.shards[shard()];
        let denied = matches!(outcome, Outcome::Denied | Outcome::Shadowed);
        let add = |counter: &AtomicU64| _ = counter.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Outcome::Allowed => add(&shard.allowed),
            Outcome::Near => {
                add(&shard.allowed);
                add(&shard.near);
            }
            Outcome::Denied => add(&shard.denied),
            Outcome::Shadowed => add(&shard.shadowed),
        }
        shard.top.lock().note(key, denied);
    }

    /// Counts a request for which the engine had no answer; `local`: its replacement decided.
    pub(crate) fn failed(&self, local: bool) {
        let shard = &self.known.shards[shard()];
        shard.failed.fetch_add(1, Ordering::Relaxed);
        if local {
            shard.local.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the most requested keys, in descending order.
    pub fn top(&self) -> Vec<Heavy> {
        top::merged(self.known.shards.iter().map(|shard| shard.top.lock().all()))
    }

    /// Returns the key of a store for a key of requests.
    pub fn stored_key(&self, key: &[u8]) -> Vec<u8> {
        let mut stored = self.prefix().into_bytes();
        stored.extend_from_slice(key);
        stored
    }

    /// Returns the prefix of all keys of the limit.
    pub(crate) fn prefix(&self) -> String {
        format!("limit:{}:", self.config.name)
    }

    /// Returns the stores that may have the key: the engine, and its local replacement.
    pub fn stores(&self) -> impl Iterator<Item = &Arc<dyn Engine>> {
        std::iter::once(&self.engine).chain(self.config.external.then_some(&self.stand_in))
    }

    /// Drops the state of a key.
    pub fn forget(&self, key: &[u8]) {
        self.known.shards.iter().for_each(|shard| shard.top.lock().forget(key));
    }
}

/// A limit as it is queried from one store, with its numbers as words.
pub(crate) struct Plan {
    /// The amount allowed at once.
    pub(crate) capacity: i64,
    /// The value of `RateLimit-Policy`.
    pub(crate) policy: Box<[u8]>,
    /// The first words after the key: of LIMIT.TAKE or LIMIT.LEASE for a store, of a script for an engine.
    words: SmallVec<[Box<[u8]>; 4]>,
    /// The time after which the slot of a stream is freed if its lease is not renewed (`max`).
    lease: Option<Duration>,
    /// The script for an engine (EVAL); the client sends only its digest once the engine knows it.
    script: Option<&'static str>,
    /// The rule as a store shows it: `rule:FILE:LINE`.
    origin: Box<str>,
}

impl Plan {
    /// Returns the words of a limit, or of a fraction of it, which is at least 1.
    pub(crate) fn new(limit: &model::Limit, fraction: f64, external: bool) -> Plan {
        let part = |number: u32| ((f64::from(number) * fraction) as i64).max(1);
        let word = |number: i64| number.to_string().into_bytes().into_boxed_slice();
        let name = &limit.name;
        match &limit.kind {
            LimitKind::Rate { count, period, burst, algorithm } => {
                let (count, burst, mut period_us) = (part(*count), part(*burst), period.as_micros() as i64);
                if *algorithm == LimitAlgorithm::Gcra {
                    // Of a fraction at least one is left, and for that the period may be too long.
                    let longest_us = i128::from(LIMIT_LONGEST_NS as i64 / burst - 1) * i128::from(count) / 1000;
                    period_us = i64::try_from(longest_us).map_or(period_us, |longest_us| longest_us.min(period_us));
                }
                let interval_ns = (period_us * 1000 + count - 1) / count;
                let (capacity, window_us) = match algorithm {
                    LimitAlgorithm::Gcra => (burst, (interval_ns * burst + 999) / 1000),
                    LimitAlgorithm::Sliding | LimitAlgorithm::Fixed => (count, period_us),
                };
                let words = match (external, algorithm) {
                    (false, _) => {
                        let name = algorithm.name().as_bytes().into();
                        SmallVec::from([name, word(count), word(period_us), word(burst)])
                    }
                    (true, LimitAlgorithm::Gcra) => SmallVec::from_iter([word(interval_ns), word(burst)]),
                    (true, LimitAlgorithm::Fixed) => SmallVec::from_iter([word(count), word(period_us)]),
                    (true, LimitAlgorithm::Sliding) => SmallVec::from_iter([word(count), word((period_us + 19) / 20)]),
                };
                Plan {
                    capacity,
                    policy: format!("\"{name}\";q={capacity};w={}", field::seconds(window_us)).into_bytes().into(),
                    words,
                    lease: None,
                    script: external.then(|| script::take(*algorithm)),
                    origin: Box::default(),
                }
            }
            LimitKind::Concurrency { max, lease } => {
                let max = part(*max);
                Plan {
                    capacity: max,
                    policy: format!("\"{name}\";q={max};qu=\"concurrent-requests\"").into_bytes().into(),
                    words: SmallVec::from_iter([word(max), word(lease.as_millis() as i64)]),
                    lease: Some(*lease),
                    script: external.then_some(script::LEASE),
                    origin: Box::default(),
                }
            }
        }
    }

    /// Returns the plan for a rule with this origin.
    pub(crate) fn of(self, origin: &str) -> Plan {
        Plan { origin: origin.into(), ..self }
    }

    /// Queries a store or an engine. `last` are the words after the plan's own: the cost, or a lease's id and more.
    fn start(&self, engine: &Arc<dyn Engine>, key: &[u8], last: &[&[u8]]) -> Ask {
        let mut args: SmallVec<[&[u8]; 10]> = SmallVec::new();
        match &self.script {
            None => args.extend([if self.lease.is_some() { b"LIMIT.LEASE" } else { &b"LIMIT.TAKE"[..] }, key]),
            Some(script) => args.extend([&b"EVAL"[..], script.as_bytes(), b"1", key]),
        }
        args.extend(self.words.iter().map(|word| &**word));
        args.extend_from_slice(last);
        match engine.start_from(&|| self.origin.to_string(), 0, &args) {
            Started::Done(reply) => Ask::Done(Told::read(reply)),
            Started::Pending(reply) => Ask::Later(reply),
        }
    }
}

/// An answer that is available, or pending.
enum Ask {
    Done(Result<Told, String>),
    Later(PendingReply),
}

impl Ask {
    async fn finish(self) -> Result<Told, String> {
        match self {
            Ask::Done(told) => told,
            Ask::Later(reply) => Told::read(reply.await),
        }
    }
}

/// The result for one request.
pub(crate) struct Answer {
    /// The decision, by the engine or by the store that replaces it.
    pub(crate) told: Result<Told, String>,
    /// The engine's failure, if the replacement decided.
    pub(crate) away: Option<String>,
    /// The slot of the request, if it was granted one.
    pub(crate) lease: Option<Lease>,
}

/// An answer that is pending.
pub(crate) type PendingAnswer = Pin<Box<dyn Future<Output = Answer>>>;

/// The source of an answer.
pub(crate) enum Asked {
    Done(Answer),
    Later(PendingAnswer),
}

/// Queries whether a request is allowed, from the engine or, while that is unavailable, from `stand_in`.
pub(crate) fn ask(
    limit: &Arc<Limit>,
    plan: &Arc<Plan>,
    stand_in: Option<&Arc<Plan>>,
    key: &[u8],
    cost: &[u8],
) -> Asked {
    let (first, lease) = begin(&limit.engine, plan, key, cost);
    let (engine, stand_in, key, cost) = match first {
        Ask::Done(told) if told.is_ok() || stand_in.is_none() => {
            let lease = lease.filter(|_| told.as_ref().is_ok_and(|told| told.allowed));
            return Asked::Done(Answer { told, away: None, lease });
        }
        first => (first, stand_in.cloned(), Box::<[u8]>::from(key), Box::<[u8]>::from(cost)),
    };
    let limit = limit.clone();
    Asked::Later(Box::pin(async move {
        // A lease exists while its answer is awaited, so that it is released if the caller stops waiting.
        let told = engine.finish().await;
        let lease = lease.filter(|lease| lease.is_kept(&told));
        let Some(plan) = stand_in.filter(|_| told.is_err()) else { return Answer { told, away: None, lease } };
        let away = told.err();
        let (second, lease) = begin(&limit.stand_in, &plan, &key, &cost);
        let told = second.finish().await;
        let lease = lease.filter(|lease| lease.is_kept(&told));
        Answer { told, away, lease }
    }))
}

fn begin(engine: &Arc<dyn Engine>, plan: &Arc<Plan>, key: &[u8], cost: &[u8]) -> (Ask, Option<Lease>) {
    if plan.lease.is_none() {
        return (plan.start(engine, key, &[cost]), None);
    }
    let lease = Lease::new(engine.clone(), plan.clone(), key);
    let asked = plan.start(engine, key, &[lease.id()]);
    if let Ask::Done(told) = &asked
        && !lease.is_kept(told)
    {
        return (asked, None);
    }
    (asked, Some(lease))
}
