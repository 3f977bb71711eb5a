//! What keeps commands from the data set — a file that is being loaded, and a save that failed — and how far a load has
//! come.
//!
//! Threads that load write it, INFO reads it, and commands read one word of it: while a file is loaded only those with
//! the flag `loading` run, and after a save that failed only those that do not write, as in Redis. Expiry and eviction rest meanwhile, because they would take keys from a data set
//! that is not whole yet.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The reply to commands that need the data set.
pub(crate) const LOADING: &str = "LOADING Redis is loading the dataset in memory";

/// A file is being loaded.
const IS_ON: u8 = 1;
/// The last save failed.
const UNSAVED: u8 = 2;

/// The progress of the present load, and the result of the last one.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    /// [`IS_ON`] and [`UNSAVED`].
    refuses: AtomicU8,
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
}

impl Loading {
    /// Returns whether a file is being loaded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.refuses.load(Ordering::Relaxed) & IS_ON != 0
    }

    /// Returns whether commands that write are refused, because the last save failed.
    #[inline]
    pub(crate) fn refuses_writes(&self) -> bool {
        self.refuses.load(Ordering::Relaxed) & UNSAVED != 0
    }

    /// Returns whether some commands are refused.
    #[inline]
    pub(crate) fn refuses_some(&self) -> bool {
        self.refuses.load(Ordering::Relaxed) != 0
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

    /// Ends a load.
    pub(crate) fn end(&self) {
        self.refuses.fetch_and(!IS_ON, Ordering::SeqCst);
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
