//! What a store's memory amounts to, and how much it may be: `maxmemory`.
//!
//! Every stripe knows its own bytes exactly. The sum of all is kept beside them, so that a command that writes compares
//! two numbers: a stripe tells the sum when it has drifted by more than [`Memory::slack`] from what it told last, which
//! is below a hundredth of the limit over all stripes and spares most commands a write to a line that all workers share.
//! What stands outside the stripes, such as clients' buffers, is added as it comes and goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::evict::Evictor;
use crate::value::Garbage;

/// What a command with the flag `denyoom` gets when memory is full and nothing may be evicted.
pub(crate) const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// Drift that a stripe may keep to itself while there is no limit, in bytes.
const SLACK_MAX: i64 = 4096;
/// Stripes whose drift together stays below a hundredth of the limit.
const SLACK_PARTS: i64 = 128 * 1024;

/// What is evicted when memory is full: Redis's `maxmemory-policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Policy {
    /// Keys that expire, those unused for longest first.
    VolatileLru,
    /// Keys that expire, those seldom used first.
    VolatileLfu,
    /// Keys that expire, by chance.
    VolatileRandom,
    /// Keys that expire, the next to do so first.
    VolatileTtl,
    /// Keys unused for longest.
    AllkeysLru,
    /// Keys seldom used.
    AllkeysLfu,
    /// Keys by chance.
    AllkeysRandom,
    /// Nothing: commands that need memory are refused.
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

    /// Redis's name.
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

    /// Whether it goes by how often keys are used.
    pub fn is_lfu(self) -> bool {
        matches!(self, Policy::VolatileLfu | Policy::AllkeysLfu)
    }

    /// Whether only keys with an expiry are evicted.
    pub(crate) fn is_volatile(self) -> bool {
        matches!(self, Policy::VolatileLru | Policy::VolatileLfu | Policy::VolatileRandom | Policy::VolatileTtl)
    }
}

/// The memory of a store.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Memory {
    /// The sum of what stripes and others told.
    used: AtomicI64,
    /// `i64::MAX` if there is none.
    limit: AtomicI64,
    slack: AtomicI64,
    /// A [`Policy`].
    policy: AtomicU8,
    pub(crate) evicted: AtomicU64,
    /// Bytes outside the stripes, which are part of `used`.
    outside: AtomicI64,
    /// The most that was ever in use, as far as anybody looked.
    peak: AtomicU64,
    pub(crate) evictor: Mutex<Evictor>,
    /// Large values that expired under a stripe's lock. A leaf below the stripes' locks, held for a push.
    late: Mutex<Vec<Garbage>>,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        Memory {
            used: AtomicI64::new(0),
            limit: AtomicI64::new(i64::MAX),
            slack: AtomicI64::new(SLACK_MAX),
            policy: AtomicU8::new(Policy::NoEviction as u8),
            evicted: AtomicU64::new(0),
            outside: AtomicI64::new(0),
            peak: AtomicU64::new(0),
            evictor: Mutex::default(),
            late: Mutex::default(),
        }
    }

    /// Notes how much is in use, in bytes, and returns the most that ever was.
    pub(crate) fn note_peak(&self, used: u64) -> u64 {
        self.peak.fetch_max(used, Ordering::Relaxed).max(used)
    }

    /// What stripes and others told of their use, in bytes.
    pub(crate) fn told(&self) -> u64 {
        u64::try_from(self.used.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Whether more is used than allowed.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.limit.load(Ordering::Relaxed)
    }

    /// The drift at which a stripe tells the sum, in bytes.
    #[inline]
    pub(crate) fn slack(&self) -> i64 {
        self.slack.load(Ordering::Relaxed)
    }

    /// Adds to the sum.
    pub(crate) fn add(&self, bytes: i64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn policy(&self) -> Policy {
        Policy::ALL[usize::from(self.policy.load(Ordering::Relaxed)) % Policy::ALL.len()]
    }

    /// Sets limit, 0 for none, and policy. Returns whether stripes may keep less to themselves than before.
    pub(crate) fn set(&self, limit: u64, policy: Policy) -> bool {
        let limit = match i64::try_from(limit) {
            Ok(0) | Err(_) => i64::MAX,
            Ok(limit) => limit,
        };
        self.policy.store(policy as u8, Ordering::Relaxed);
        let slack = (limit / SLACK_PARTS).min(SLACK_MAX);
        let before = self.slack.swap(slack, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
        self.evictor.lock().forget();
        slack < before
    }

    /// Frees what was removed under a stripe's lock, a large value later.
    pub(crate) fn free_late(&self, garbage: Option<Garbage>) {
        if let Some(garbage) = garbage.filter(Garbage::is_large) {
            self.late.lock().push(garbage);
        }
    }

    /// What waits to be freed.
    pub(crate) fn take_late(&self) -> Vec<Garbage> {
        std::mem::take(&mut *self.late.lock())
    }

    /// Bytes outside the stripes.
    pub(crate) fn outside(&self) -> u64 {
        u64::try_from(self.outside.load(Ordering::Relaxed)).unwrap_or(0)
    }
}

/// Bytes outside the stripes that one owner has, such as a connection's buffers; given back when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    memory: Option<Arc<Memory>>,
    bytes: usize,
}

impl Outside {
    /// How many bytes it was last.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Tells how many bytes it is now.
    #[inline]
    pub(crate) fn set(&mut self, memory: &Arc<Memory>, bytes: usize) {
        if bytes != self.bytes {
            self.change(memory, bytes);
        }
    }

    #[cold]
    fn change(&mut self, memory: &Arc<Memory>, bytes: usize) {
        let delta = bytes as i64 - self.bytes as i64;
        memory.outside.fetch_add(delta, Ordering::Relaxed);
        memory.add(delta);
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

/// Bytes that the program's allocator takes for a block: classes of 8 bytes up to 64, then four between each power of
/// two and the next.
pub(crate) fn heap_bytes(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        1..=64 => bytes.next_multiple_of(8),
        _ => bytes.next_multiple_of(bytes.next_power_of_two() / 8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_rounded_as_the_allocator_does() {
        let check = |bytes: usize, expected: usize| assert_eq!(heap_bytes(bytes), expected, "{bytes}");
        check(0, 0);
        check(1, 8);
        check(64, 64);
        check(65, 80);
        check(112, 112);
        check(113, 128);
        check(1024, 1024);
        check(1025, 1280);
        check(4097, 5120);
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
