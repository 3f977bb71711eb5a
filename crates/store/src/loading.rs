//! The reasons for which commands are kept from the data set — a file that is being loaded, a save that failed, an
//! append-only file that cannot be written, a disk that is too slow for a file, a master that alone may write — and the
//! progress of a load.
//!
//! Threads that load write it, INFO reads it, and commands read one word of it: while a file is loaded only those with
//! the flag `loading` run, and after a save that failed only those that do not write, as in Redis. Expiry and eviction rest meanwhile, because they would take keys from a data set
//! that is not whole yet.

use std::future::poll_fn;
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::refused::MISCONF;

/// The reply to commands that need the data set.
pub(crate) const LOADING: &str = "LOADING Redis is loading the dataset in memory";

/// The reply to commands that write on a master with too few replicas.
pub(crate) const NOREPLICAS: &str = "NOREPLICAS Not enough good replicas to write.";

/// The reply to commands that write on a replica.
pub(crate) const READONLY: &str = "READONLY You can't write against a read only replica.";

/// The reply to commands that need the data set while the link to the master is down.
pub(crate) const MASTERDOWN: &str = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";

/// The reply to callers in the process that would have to wait until less waits to be appended.
pub(crate) const BEHIND: &str = "MISCONF the disk is too slow: too much waits to be written to the append-only file";

/// A file is being loaded.
const IS_ON: u16 = 1;
/// The last save failed.
const UNSAVED: u16 = 2;
/// The append-only file cannot be written.
const UNWRITTEN: u16 = 4;
/// Replies wait until what they follow is on the disk.
const HOLDS_REPLIES: u16 = 8;
/// The store follows a master and takes writes from it alone.
const READ_ONLY: u16 = 64;
/// The link to the master is down, and what may be old is not shown.
const STALE: u16 = 128;
/// The store has too few replicas.
const LACKS_REPLICAS: u16 = 256;
/// The file that is being loaded becomes a second data set, and the first one is served meanwhile.
const SERVES: u16 = 512;
/// It becomes a second data set.
const ASIDE: u16 = 1024;

/// A file for which so much waits to be written that commands that write wait, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Behind {
    AppendOnly = 16,
    Snapshot = 32,
}

/// All of them.
const BEHIND_ANY: u16 = Behind::AppendOnly as u16 | Behind::Snapshot as u16;

/// The start of the reply to commands that write while the append-only file cannot be written.
const UNWRITTEN_TEXT: &str = "MISCONF Errors writing to the AOF file: ";
/// The number of different errors of which each has a reply of its own.
const TEXTS_MAX: usize = 64;

/// The time after which a load that sleeps looks whether it still should.
const LOOKS_EACH: Duration = Duration::from_millis(10);

/// The progress of the present load, and the result of the last one.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    /// [`IS_ON`], [`UNSAVED`], [`UNWRITTEN`], [`HOLDS_REPLIES`], [`READ_ONLY`], [`STALE`], [`LACKS_REPLICAS`], [`SERVES`], [`ASIDE`] and
    /// [`Behind`].
    refuses: AtomicU16,
    /// Clients that wait until no file is behind.
    held: Mutex<Vec<Waker>>,
    /// The reply while the append-only file cannot be written.
    unwritten: RwLock<&'static str>,
    /// When it began, in Unix seconds.
    pub(crate) started_s: AtomicU64,
    /// The size of the file; 0: unknown.
    pub(crate) total_bytes: AtomicU64,
    pub(crate) loaded_bytes: AtomicU64,
    /// The memory that the writer of the file used, in bytes; 0: unknown.
    pub(crate) used_bytes: AtomicU64,
    /// Keys of the present or the last load.
    pub(crate) keys: AtomicU64,
    /// Keys that it has dropped because they had expired.
    pub(crate) expired: AtomicU64,
    /// Microseconds for which a load sleeps for each key; if negative, one for so many keys.
    pub(crate) key_delay_us: AtomicI64,
}

impl Loading {
    /// Returns whether a file is being loaded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.refuses.load(Ordering::Relaxed) & IS_ON != 0
    }

    /// Returns whether a file is being loaded beside the data set, which is served meanwhile.
    pub(crate) fn serves(&self) -> bool {
        self.refuses.load(Ordering::Relaxed) & SERVES != 0
    }

    /// Returns whether a file is being loaded beside the data set: then no save may begin, whose cut would make entries of
    /// the second data set look saved.
    pub(crate) fn is_aside(&self) -> bool {
        self.refuses.load(Ordering::SeqCst) & ASIDE != 0
    }

    /// Lets the file that is being loaded become a second data set.
    pub(crate) fn set_aside(&self, serves: bool) {
        self.refuses.fetch_or(if serves { ASIDE | SERVES } else { ASIDE }, Ordering::SeqCst);
    }

    /// Returns whether commands that write are refused, because the last save failed.
    #[inline]
    pub(crate) fn refuses_writes(&self) -> bool {
        self.refuses.load(Ordering::Relaxed) & UNSAVED != 0
    }

    /// Returns the reply to commands that write, if the last save failed or the append-only file cannot be written.
    pub(crate) fn refusal_by_disk(&self) -> Option<&'static str> {
        self.refuses_writes().then_some(MISCONF).or_else(|| self.refuses_appending())
    }

    /// Returns the reply to commands that write, if they are refused.
    pub(crate) fn refusal_of_writes(&self) -> Option<&'static str> {
        let of_replicas = || (self.refuses.load(Ordering::Relaxed) & LACKS_REPLICAS != 0).then_some(NOREPLICAS);
        self.refusal_by_disk().or_else(of_replicas).or_else(|| self.is_read_only().then_some(READONLY))
    }

    /// Sets whether commands that write are refused because the store has too few replicas.
    pub(crate) fn set_lacks_replicas(&self, lacks: bool) {
        match lacks {
            true => self.refuses.fetch_or(LACKS_REPLICAS, Ordering::SeqCst),
            false => self.refuses.fetch_and(!LACKS_REPLICAS, Ordering::SeqCst),
        };
    }

    /// Returns whether commands that write are refused because the store follows a master.
    pub(crate) fn is_read_only(&self) -> bool {
        self.refuses.load(Ordering::Relaxed) & READ_ONLY != 0
    }

    /// Returns whether the data set may be old and is not shown.
    pub(crate) fn is_stale(&self) -> bool {
        self.refuses.load(Ordering::Relaxed) & STALE != 0
    }

    /// Sets whether commands that write are refused because the store follows a master, and whether the data set is not
    /// shown.
    pub(crate) fn set_replica(&self, is_read_only: bool, is_stale: bool) {
        let flags = if is_read_only { READ_ONLY } else { 0 } | if is_stale { STALE } else { 0 };
        // What is refused in the end is never more than both.
        self.refuses.fetch_or(flags, Ordering::SeqCst);
        self.refuses.fetch_and(flags | !(READ_ONLY | STALE), Ordering::SeqCst);
    }

    /// Returns the reply to commands that write, if the append-only file cannot be written.
    pub(crate) fn refuses_appending(&self) -> Option<&'static str> {
        (self.refuses.load(Ordering::Relaxed) & UNWRITTEN != 0).then(|| *self.unwritten.read())
    }

    /// Sets the error because of which commands that write are refused.
    pub(crate) fn refuse_appending(&self, error: Option<&str>) {
        match error {
            Some(error) => {
                *self.unwritten.write() = interned(error);
                self.refuses.fetch_or(UNWRITTEN, Ordering::SeqCst);
            }
            None => {
                self.refuses.fetch_and(!UNWRITTEN, Ordering::SeqCst);
            }
        }
    }

    /// Returns whether commands that write wait, because too much waits to be written.
    pub(crate) fn holds_writes(&self) -> bool {
        self.refuses.load(Ordering::SeqCst) & BEHIND_ANY != 0
    }

    /// Returns whether they wait for this file.
    pub(crate) fn holds_writes_for(&self, behind: Behind) -> bool {
        self.refuses.load(Ordering::SeqCst) & behind as u16 != 0
    }

    /// Lets commands that write wait for a file.
    pub(crate) fn hold_writes(&self, behind: Behind) {
        self.refuses.fetch_or(behind as u16, Ordering::SeqCst);
    }

    /// Lets commands that write go on, if they wait for this file alone.
    pub(crate) fn release_writes(&self, behind: Behind) {
        if self.holds_writes_for(behind)
            && self.refuses.fetch_and(!(behind as u16), Ordering::SeqCst) & BEHIND_ANY == behind as u16
        {
            let held = std::mem::take(&mut *self.held.lock());
            held.into_iter().for_each(Waker::wake);
        }
    }

    /// Waits until commands that write need not.
    pub(crate) async fn room(&self) {
        poll_fn(|context| {
            if !self.holds_writes() {
                return Poll::Ready(());
            }
            {
                let mut held = self.held.lock();
                held.retain(|waker| !waker.will_wake(context.waker()));
                held.push(context.waker().clone());
            }
            // Registered before looking, so that an end in between is not missed.
            if self.holds_writes() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await
    }

    /// Returns whether replies wait until what they follow is on the disk.
    #[inline]
    pub(crate) fn holds_replies(&self) -> bool {
        self.refuses.load(Ordering::Relaxed) & HOLDS_REPLIES != 0
    }

    /// Sets whether replies wait.
    pub(crate) fn hold_replies(&self, holds: bool) {
        match holds {
            true => self.refuses.fetch_or(HOLDS_REPLIES, Ordering::SeqCst),
            false => self.refuses.fetch_and(!HOLDS_REPLIES, Ordering::SeqCst),
        };
    }

    /// Returns whether some commands are refused or wait, or replies do.
    #[inline]
    pub(crate) fn is_special(&self) -> bool {
        self.refuses.load(Ordering::Relaxed) != 0
    }

    /// Returns whether commands may be refused or wait, or their replies may: that a replica refuses to be written to does
    /// not concern those that only read.
    #[inline]
    pub(crate) fn concerns(&self, only_reads: bool) -> bool {
        let harmless = if only_reads { READ_ONLY } else { 0 };
        self.refuses.load(Ordering::Relaxed) & !harmless != 0
    }

    /// Returns whether some commands are refused, or wait.
    #[inline]
    pub(crate) fn refuses_some(&self) -> bool {
        self.refuses.load(Ordering::Relaxed) & !HOLDS_REPLIES != 0
    }

    /// Sets whether commands that write are refused.
    pub(crate) fn refuse_writes(&self, refuses: bool) {
        match refuses {
            true => self.refuses.fetch_or(UNSAVED, Ordering::SeqCst),
            false => self.refuses.fetch_and(!UNSAVED, Ordering::SeqCst),
        };
    }

    /// Begins a load. Returns false if one is in progress.
    pub(crate) fn begin(&self, now_s: u64, total_bytes: u64) -> bool {
        if self.refuses.fetch_or(IS_ON, Ordering::SeqCst) & IS_ON != 0 {
            return false;
        }
        self.started_s.store(now_s, Ordering::Relaxed);
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
        for figure in [&self.loaded_bytes, &self.used_bytes, &self.keys, &self.expired] {
            figure.store(0, Ordering::Relaxed);
        }
        true
    }

    /// Returns whether a load sleeps for each key by itself.
    pub(crate) fn sleeps_for_each(&self) -> bool {
        self.key_delay_us.load(Ordering::Relaxed) > 0
    }

    /// Sleeps for so many keys, as if the disk were slow, for as long as `key_delay_us` says meanwhile.
    pub(crate) fn sleep_for(&self, keys: u64) {
        let began = Instant::now();
        loop {
            let delay = key_delay(self.key_delay_us.load(Ordering::Relaxed), keys);
            let left = delay.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(LOOKS_EACH));
        }
    }

    /// Ends a load.
    pub(crate) fn end(&self) {
        self.refuses.fetch_and(!(IS_ON | SERVES | ASIDE), Ordering::SeqCst);
    }

    /// Returns the part of the file that is loaded, in percent, and the seconds that the rest will take, as Redis
    /// estimates them.
    pub(crate) fn estimate(&self, now_s: u64) -> (f64, u64) {
        let [total, loaded] =
            [&self.total_bytes, &self.loaded_bytes].map(|figure| u128::from(figure.load(Ordering::Relaxed)));
        let elapsed_s = u128::from(now_s.saturating_sub(self.started_s.load(Ordering::Relaxed)));
        let (percent, left) = match total {
            0 => (0.0, 1),
            _ => (loaded as f64 * 100.0 / total as f64, total.saturating_sub(loaded)),
        };
        // In the first second there is too little to go by.
        let eta_s = if elapsed_s == 0 { 1 } else { elapsed_s * left / (loaded + 1) };
        (percent, u64::try_from(eta_s).unwrap_or(u64::MAX))
    }
}

/// Returns the time for which a save or a load sleeps for so many keys, as if the disk were slow: so many microseconds for
/// each; if negative, one for so many keys.
pub(crate) fn key_delay(us: i64, keys: u64) -> Duration {
    let keys = i64::try_from(keys).unwrap_or(i64::MAX);
    let us = if us < 0 { keys / us.saturating_neg() } else { keys.saturating_mul(us) };
    Duration::from_micros(us.unsigned_abs())
}

/// Returns the reply for an error of the disk: there are few different ones, and each is kept for good.
fn interned(error: &str) -> &'static str {
    static TEXTS: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut texts = TEXTS.lock();
    let is_it = |text: &&&'static str| text.strip_prefix(UNWRITTEN_TEXT) == Some(error);
    if let Some(text) = texts.iter().find(is_it) {
        return text;
    }
    if texts.len() >= TEXTS_MAX {
        return "MISCONF Errors writing to the AOF file: see the log";
    }
    let text: &'static str = format!("{UNWRITTEN_TEXT}{error}").leak();
    texts.push(text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_estimated_from_what_is_done() {
        let loading = Loading::default();
        assert!(loading.begin(100, 1_000) && !loading.begin(100, 1_000));
        loading.loaded_bytes.store(249, Ordering::Relaxed);
        assert_eq!(loading.estimate(100), (24.9, 1));
        assert_eq!(loading.estimate(110), (24.9, 30));
        loading.end();
        assert!(loading.begin(0, 0) && loading.is_on());
        assert_eq!(loading.estimate(5), (0.0, 5));
    }
}
