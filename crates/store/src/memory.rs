//! Memory accounting of a store, and its limit: `maxmemory`.
//!
//! Every stripe knows its own bytes exactly. The sum of all is kept separately, so that a write command compares two
//! numbers: a stripe updates the sum when it has drifted by more than [`Memory::slack`] from its last report, which
//! amounts to less than a hundredth of the limit over all stripes and saves most commands a write to a cache line
//! shared by all workers.
//!
//! Memory outside the stripes is reported through an [`Outside`] when it grows or shrinks:
//!
//! | [`Kind`] | what | in `used_memory` | counted for eviction |
//! |---|---|---|---|
//! | `Scripts` | interpreters, scripts, libraries | yes | with clients, up to half of `maxmemory` |
//! | `Clients` | buffers of connections, and what an [`Account`] has: queues of MULTI, watched keys, subscriptions, messages, arguments of commands that wait | yes | with scripts, up to half of `maxmemory`; the largest clients are closed beyond that |
//! | `Apart` | what eviction cannot free and what shrinks by itself: buffers of replicas and of an append-only file | yes | no (`mem_not_counted_for_evict`) |
//!
//! Cost: a connection's buffers are compared with the last report once per event loop iteration, an account is updated
//! for changes of [`STEP`] bytes or more, so a short MULTI or a short message reports nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluicegate_data::value::Garbage;

/// The error of a command with the flag `denyoom` when memory is full and no key may be evicted.
pub(crate) const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// The maximum drift of a stripe's memory that is not reported while there is no limit, in bytes.
const SLACK_MAX: i64 = 4096;
/// The minimum change of an account that is reported, in bytes.
const STEP: usize = 1024;
/// Clients are checked if their memory exceeds this part of `maxmemory`.
const WATCH_PARTS: i64 = 16;
/// Memory may exceed the limit by this part before clients are closed: commands are refused first, and the short-lived
/// memory of a reply closes no client.
const EXCESS_PARTS: i64 = 20;
/// Memory may always exceed the limit by this number of bytes: with a small limit, one request of some megabytes is no
/// attack.
const EXCESS_MIN: i64 = 8 << 20;
/// The minimum limit of clients' memory (Redis's CLIENT_EVICTION_MIN).
const CLIENTS_MIN: i64 = 128 << 10;

/// The divisor of the limit for a stripe's drift: all stripes together stay below a hundredth of the limit.
const SLACK_PARTS: i64 = 128 * 1024;

/// The eviction policy: Redis's `maxmemory-policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Policy {
    /// Of the keys with an expiry, the least recently used first.
    VolatileLru,
    /// Of the keys with an expiry, the least frequently used first.
    VolatileLfu,
    /// Random keys with an expiry.
    VolatileRandom,
    /// Of the keys with an expiry, those that expire first.
    VolatileTtl,
    /// The least recently used keys first.
    AllkeysLru,
    /// The least frequently used keys first.
    AllkeysLfu,
    /// Random keys.
    AllkeysRandom,
    /// No keys: commands that need memory are refused.
    #[default]
    NoEviction,
}

impl Policy {
    /// All policies, in the order in which Redis names them.
    pub const ALL: [Policy; 8] = [
        Policy::VolatileLru,
        Policy::VolatileLfu,
        Policy::VolatileRandom,
        Policy::VolatileTtl,
        Policy::AllkeysLru,
        Policy::AllkeysLfu,
        Policy::AllkeysRandom,
        Policy::NoEviction,
    ];

    /// Returns Redis's name of the policy.
    pub fn name(self) -> &'static str {
        match self {
            Policy::VolatileLru => "volatile-lru",
            Policy::VolatileLfu => "volatile-lfu",
            Policy::VolatileRandom => "volatile-random",
            Policy::VolatileTtl => "volatile-ttl",
            Policy::AllkeysLru => "allkeys-lru",
            Policy::AllkeysLfu => "allkeys-lfu",
            Policy::AllkeysRandom => "allkeys-random",
            Policy::NoEviction => "noeviction",
        }
    }

    /// Returns whether it is based on access frequency.
    pub fn is_lfu(self) -> bool {
        matches!(self, Policy::VolatileLfu | Policy::AllkeysLfu)
    }

    /// Returns whether only keys with an expiry are evicted.
    pub(crate) fn is_volatile(self) -> bool {
        matches!(self, Policy::VolatileLru | Policy::VolatileLfu | Policy::VolatileRandom | Policy::VolatileTtl)
    }
}

/// The memory of a store.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Memory {
    /// The sum of the reports of stripes and others.
    used: AtomicI64,
    /// The limit in bytes; `i64::MAX` without one.
    limit: AtomicI64,
    slack: AtomicI64,
    /// The number of a [`Policy`].
    policy: AtomicU8,
    pub(crate) evicted: AtomicU64,
    /// Bytes of [`Kind::Scripts`], which are part of `used`.
    scripts: AtomicI64,
    /// Bytes of [`Kind::Apart`], which are not.
    apart: AtomicI64,
    /// The origin of the times below.
    made: Instant,
    /// The time until which the evictor does not scan for keys, in microseconds; 0: none.
    evictor_rests_until: AtomicU64,
    /// The time until which expired keys are kept, in microseconds; 0: they are removed.
    expired_kept_until: AtomicU64,
    /// Whether a file, another process or a replica is about to continue this history.
    hands_over: AtomicBool,
    /// Whether nothing counts as expired.
    is_timeless: AtomicBool,
    /// Whether the store follows a master, which decides what has expired.
    follows: AtomicBool,
    /// The maximum memory in use that was observed.
    peak: AtomicU64,
    /// Large values that expired under a stripe's lock. This lock comes after the stripes' locks, and is held only to
    /// add one.
    late: Mutex<Vec<Garbage>>,
    clients: Clients,
}

/// The memory of clients, on a line of its own: every turn of a connection reads it.
#[repr(align(128))]
#[derive(Debug)]
struct Clients {
    /// Bytes of [`Kind::Clients`], which are part of `used`.
    bytes: AtomicI64,
    /// The memory from which a check for clients to close is worthwhile.
    watched_from: AtomicI64,
    /// `maxmemory-clients`; `i64::MAX` without a limit.
    limit: AtomicI64,
    /// Clients that were closed because of their memory.
    evicted: AtomicU64,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        Memory {
            used: AtomicI64::new(0),
            limit: AtomicI64::new(i64::MAX),
            slack: AtomicI64::new(SLACK_MAX),
            policy: AtomicU8::new(Policy::NoEviction as u8),
            evicted: AtomicU64::new(0),
            scripts: AtomicI64::new(0),
            apart: AtomicI64::new(0),
            made: Instant::now(),
            evictor_rests_until: AtomicU64::new(0),
            expired_kept_until: AtomicU64::new(0),
            hands_over: AtomicBool::new(false),
            is_timeless: AtomicBool::new(false),
            follows: AtomicBool::new(false),
            peak: AtomicU64::new(0),
            late: Mutex::default(),
            clients: Clients {
                bytes: AtomicI64::new(0),
                watched_from: AtomicI64::new(i64::MAX),
                limit: AtomicI64::new(i64::MAX),
                evicted: AtomicU64::new(0),
            },
        }
    }

    /// Records the memory in use, in bytes, and returns the maximum so far.
    pub(crate) fn note_peak(&self, used: u64) -> u64 {
        self.peak.fetch_max(used, Ordering::Relaxed).max(used)
    }

    /// Returns the reported memory of stripes and others, in bytes.
    pub(crate) fn told(&self) -> u64 {
        u64::try_from(self.used.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Returns whether memory exceeds the limit.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.limit.load(Ordering::Relaxed)
    }

    /// Returns the bytes used beyond the limit; negative below it.
    fn excess(&self) -> i64 {
        self.used.load(Ordering::Relaxed).saturating_sub(self.limit.load(Ordering::Relaxed))
    }

    /// Returns the part of this many bytes that exceeds half of the limit.
    fn beyond_half(&self, bytes: i64) -> i64 {
        (bytes - self.limit.load(Ordering::Relaxed) / 2).max(0)
    }

    /// Returns whether keys have to be evicted: the memory of clients and scripts, which eviction cannot free, counts
    /// up to half of the limit.
    pub(crate) fn is_over_without_clients(&self) -> bool {
        let fixed = self.clients.bytes.load(Ordering::Relaxed) + self.scripts.load(Ordering::Relaxed);
        self.excess() > self.beyond_half(fixed)
    }

    /// Returns whether memory is full because of clients and scripts, so that queues may not grow.
    pub(crate) fn is_over_by_clients(&self) -> bool {
        self.is_over() && !self.is_over_without_clients()
    }

    /// Returns whether clients use so much that [`clients_excess`](Self::clients_excess) must be checked.
    #[inline]
    pub(crate) fn watches_clients(&self) -> bool {
        self.clients.bytes.load(Ordering::Relaxed) > self.clients.watched_from.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes to free by closing the largest clients: the excess over `maxmemory-clients`; and, if
    /// `maxmemory` is exceeded by a twentieth, or 8 MiB if that is more, their excess over half of it, or the whole
    /// excess if no key `may_go`.
    pub(crate) fn clients_excess(&self, may_go: bool) -> i64 {
        let limit = self.limit.load(Ordering::Relaxed);
        let clients = self.clients.bytes.load(Ordering::Relaxed);
        let own = clients - self.clients.limit.load(Ordering::Relaxed);
        let (excess, data) = (self.excess(), self.used.load(Ordering::Relaxed) - clients);
        let shared = match may_go {
            _ if excess <= (limit / EXCESS_PARTS).max(EXCESS_MIN) => 0,
            true => excess.min(self.beyond_half(clients)),
            // A lower limit or growth of data by a section is not caused by clients.
            false if data <= limit => excess,
            false => 0,
        };
        own.max(shared)
    }

    /// Returns whether clients may have to be closed, depending on whether a key may be evicted.
    pub(crate) fn has_clients_excess(&self) -> bool {
        self.clients_excess(true).max(self.clients_excess(false)) > 0
    }

    /// Sets the limit of clients' memory; 0 for none.
    pub(crate) fn limit_clients(&self, limit: u64) {
        let limit = match i64::try_from(limit) {
            Ok(0) | Err(_) => i64::MAX,
            Ok(limit) => limit.max(CLIENTS_MIN),
        };
        self.clients.limit.store(limit, Ordering::Relaxed);
        let part = match self.limit.load(Ordering::Relaxed) {
            i64::MAX => i64::MAX,
            all => all / WATCH_PARTS,
        };
        self.clients.watched_from.store(limit.min(part), Ordering::Relaxed);
    }

    /// Returns the bytes of clients.
    pub(crate) fn clients(&self) -> u64 {
        u64::try_from(self.clients.bytes.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Returns the bytes in use that are not counted for eviction.
    pub(crate) fn apart(&self) -> u64 {
        u64::try_from(self.apart.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Returns the number of clients that were closed because of their memory.
    pub(crate) fn evicted_clients(&self) -> &AtomicU64 {
        &self.clients.evicted
    }

    fn now_us(&self) -> u64 {
        self.made.elapsed().as_micros() as u64
    }

    /// Keeps the evictor from scanning for keys for this time.
    pub(crate) fn rest_evictor(&self, time: Duration) {
        self.evictor_rests_until.store(self.now_us() + time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Ends the evictor's pause, because held keys have been released.
    pub(crate) fn wake_evictor(&self) {
        self.evictor_rests_until.store(0, Ordering::Relaxed);
    }

    /// Returns whether the evictor pauses.
    pub(crate) fn evictor_rests(&self) -> bool {
        is_before(&self.evictor_rests_until, || self.now_us())
    }

    /// Keeps expired keys until this time; `None`: removes them again. For CLIENT PAUSE.
    pub(crate) fn keep_expired(&self, until: Option<Instant>) {
        let until = until.map_or(0, |until| until.saturating_duration_since(self.made).as_micros() as u64);
        self.expired_kept_until.store(until, Ordering::Relaxed);
    }

    /// Sets whether something is about to continue this history: expired keys are hidden and not removed.
    pub(crate) fn set_hands_over(&self, hands_over: bool) {
        self.hands_over.store(hands_over, Ordering::SeqCst);
    }

    /// Returns whether expired keys are hidden and not removed.
    pub(crate) fn keeps_expired(&self) -> bool {
        self.follows()
            || self.hands_over.load(Ordering::Relaxed)
            || is_before(&self.expired_kept_until, || self.now_us())
    }

    /// Sets whether the store follows a master: expired keys are hidden and not removed.
    pub(crate) fn set_follows(&self, follows: bool) {
        self.follows.store(follows, Ordering::SeqCst);
    }

    /// Returns whether the store follows a master.
    pub(crate) fn follows(&self) -> bool {
        self.follows.load(Ordering::Relaxed)
    }

    /// Sets whether nothing counts as expired, neither keys nor elements: while commands of a file are replayed, of which
    /// one may revive what has expired by now.
    pub(crate) fn set_timeless(&self, is_timeless: bool) {
        self.is_timeless.store(is_timeless, Ordering::SeqCst);
    }

    /// Returns whether nothing counts as expired.
    pub(crate) fn is_timeless(&self) -> bool {
        self.is_timeless.load(Ordering::Relaxed)
    }

    /// Returns the drift from which on a stripe reports its memory, in bytes.
    #[inline]
    pub(crate) fn slack(&self) -> i64 {
        self.slack.load(Ordering::Relaxed)
    }

    /// Adds to the sum of reported memory.
    pub(crate) fn add(&self, bytes: i64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn policy(&self) -> Policy {
        Policy::ALL[usize::from(self.policy.load(Ordering::Relaxed)) % Policy::ALL.len()]
    }

    /// Sets the limit (0 for none) and the policy. Returns whether stripes have to report smaller drifts than before.
    pub(crate) fn set(&self, limit: u64, policy: Policy) -> bool {
        let limit = match i64::try_from(limit) {
            Ok(0) | Err(_) => i64::MAX,
            Ok(limit) => limit,
        };
        self.policy.store(policy as u8, Ordering::Relaxed);
        let slack = (limit / SLACK_PARTS).min(SLACK_MAX);
        let before = self.slack.swap(slack, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
        slack < before
    }

    /// Frees values removed under a stripe's lock; large ones later.
    pub(crate) fn free_late(&self, garbage: Option<Garbage>) {
        if let Some(garbage) = garbage.filter(Garbage::is_large) {
            self.late.lock().push(garbage);
        }
    }

    /// Takes the values waiting to be freed.
    pub(crate) fn take_late(&self) -> Vec<Garbage> {
        std::mem::take(&mut *self.late.lock())
    }

    /// Returns the bytes outside the stripes.
    pub(crate) fn outside(&self) -> u64 {
        u64::try_from(self.scripts.load(Ordering::Relaxed)).unwrap_or(0) + self.clients() + self.apart()
    }

    /// Adds to the sum of memory outside the stripes.
    fn add_outside(&self, kind: Kind, bytes: i64) {
        let sum = match kind {
            Kind::Scripts => &self.scripts,
            Kind::Clients => &self.clients.bytes,
            Kind::Apart => &self.apart,
        };
        sum.fetch_add(bytes, Ordering::Relaxed);
        if kind != Kind::Apart {
            self.add(bytes);
        }
    }
}

/// Returns whether a time is in the future; the clock is read only if a time is set.
fn is_before(until: &AtomicU64, now_us: impl Fn() -> u64) -> bool {
    let until = until.load(Ordering::Relaxed);
    until > 0 && now_us() < until
}

/// The kinds of memory outside the stripes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Scripts,
    Clients,
    Apart,
}

/// The bytes outside the stripes of one owner, such as a connection's buffers; subtracted when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    memory: Option<Arc<Memory>>,
    bytes: usize,
    kind: Kind,
}

impl Outside {
    /// Returns an empty account of this kind.
    pub(crate) fn of(kind: Kind) -> Outside {
        Outside { kind, memory: None, bytes: 0 }
    }

    /// Returns the last reported bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reports the current number of bytes.
    #[inline]
    pub(crate) fn set(&mut self, memory: &Arc<Memory>, bytes: usize) {
        if bytes != self.bytes {
            self.change(memory, bytes);
        }
    }

    #[cold]
    fn change(&mut self, memory: &Arc<Memory>, bytes: usize) {
        let delta = bytes as i64 - self.bytes as i64;
        memory.add_outside(self.kind, delta);
        self.bytes = bytes;
        if self.memory.is_none() {
            self.memory = Some(memory.clone());
        }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.change(&memory, 0);
        }
    }
}

/// The memory of one client in addition to its connection's buffers. Several [`Share`]s add to it; other threads read
/// it.
#[derive(Debug)]
pub(crate) struct Account {
    memory: Arc<Memory>,
    bytes: AtomicI64,
}

impl Account {
    pub(crate) fn new(memory: &Arc<Memory>) -> Arc<Account> {
        Arc::new(Account { memory: memory.clone(), bytes: AtomicI64::new(0) })
    }

    /// Returns the sum of its shares, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        usize::try_from(self.bytes.load(Ordering::Relaxed)).unwrap_or(0)
    }
}

/// A part of a client's account, which is subtracted when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Share {
    account: Option<Arc<Account>>,
    bytes: usize,
}

impl Share {
    /// Returns the bytes known to the account.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Creates a share that is reported to an account once.
    pub(crate) fn of(account: &Arc<Account>, bytes: usize) -> Share {
        let mut share = Share::default();
        share.change(account, bytes);
        share
    }

    /// Reports the current number of bytes; small changes are not reported.
    #[inline]
    pub(crate) fn set(&mut self, account: &Arc<Account>, bytes: usize) {
        if bytes.abs_diff(self.bytes) >= STEP || bytes == 0 && self.bytes > 0 {
            self.change(account, bytes);
        }
    }

    /// Like [`set`](Self::set), for a share that has an account or needs none.
    #[inline]
    pub(crate) fn set_own(&mut self, bytes: usize) {
        if bytes.abs_diff(self.bytes) >= STEP || bytes == 0 && self.bytes > 0 {
            let Some(account) = self.account.clone() else { return };
            self.change(&account, bytes);
        }
    }

    #[cold]
    fn change(&mut self, account: &Arc<Account>, bytes: usize) {
        let delta = bytes as i64 - self.bytes as i64;
        account.bytes.fetch_add(delta, Ordering::Relaxed);
        account.memory.add_outside(Kind::Clients, delta);
        self.bytes = bytes;
        if self.account.is_none() {
            self.account = Some(account.clone());
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.bytes > 0
            && let Some(account) = self.account.take()
        {
            self.change(&account, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_closed_rather_than_everything_evicted() {
        let check = |policy, data: i64, clients: i64, own: i64, may_go: bool, evicts: bool, excess: i64| {
            let memory = Arc::new(Memory::new());
            memory.set(1000 << 20, policy);
            memory.clients.limit.store(own.saturating_mul(1 << 20), Ordering::Relaxed);
            memory.add(data << 20);
            let mut buffers = Outside::of(Kind::Clients);
            buffers.set(&memory, (clients as usize) << 20);
            let mut apart = Outside::of(Kind::Apart);
            apart.set(&memory, 5000);
            assert_eq!(memory.is_over_without_clients(), evicts, "{policy:?} {data} {clients}");
            assert_eq!(memory.clients_excess(may_go).max(0), excess << 20, "{policy:?} {data} {clients}");
            assert_eq!(memory.outside(), ((clients as u64) << 20) + 5000);
            drop((buffers, apart));
            assert_eq!((memory.outside(), memory.told()), (0, (data as u64) << 20));
        };
        let none = i64::MAX;
        // Clients' buffers push out keys up to half of the limit, and are closed beyond.
        check(Policy::AllkeysLru, 900, 90, none, true, false, 0);
        check(Policy::AllkeysLru, 900, 400, none, true, true, 0);
        check(Policy::AllkeysLru, 400, 640, none, true, false, 0);
        check(Policy::AllkeysLru, 500, 600, none, true, false, 100);
        check(Policy::AllkeysLru, 900, 700, none, true, true, 200);
        check(Policy::VolatileTtl, 800, 400, none, false, true, 200);
        // Data that a lower limit left is no fault of theirs.
        check(Policy::NoEviction, 900, 140, none, false, true, 0);
        check(Policy::NoEviction, 900, 300, none, false, true, 200);
        check(Policy::NoEviction, 2000, 300, none, false, true, 0);
        check(Policy::NoEviction, 100, 300, 250, false, false, 50);
    }

    #[test]
    fn a_small_limit_closes_nobody_for_one_request() {
        let memory = Arc::new(Memory::new());
        memory.set(3 << 20, Policy::NoEviction);
        let mut buffers = Outside::of(Kind::Clients);
        buffers.set(&memory, 10 << 20);
        assert!(!memory.has_clients_excess());
        buffers.set(&memory, 12 << 20);
        assert!(memory.has_clients_excess());
    }

    #[test]
    fn a_share_leaves_its_account() {
        let memory = Arc::new(Memory::new());
        let account = Account::new(&memory);
        let mut queue = Share::default();
        queue.set(&account, 1000);
        assert_eq!((account.bytes(), memory.clients()), (0, 0), "too little to be told");
        queue.set(&account, 5000);
        let words = Share::of(&account, 10);
        assert_eq!((account.bytes(), memory.clients()), (5010, 5010));
        queue.set_own(0);
        assert_eq!(account.bytes(), 10);
        drop((queue, words));
        assert_eq!((account.bytes(), memory.clients()), (0, 0));
    }

    #[test]
    fn what_is_outside_is_given_back() {
        let memory = Arc::new(Memory::new());
        let (mut first, mut second) = (Outside::default(), Outside::default());
        first.set(&memory, 100);
        second.set(&memory, 50);
        first.set(&memory, 30);
        assert_eq!((memory.outside(), memory.used.load(Ordering::Relaxed)), (80, 80));
        drop(first);
        drop(second);
        assert_eq!((memory.outside(), memory.used.load(Ordering::Relaxed)), (0, 0));
    }
}
