//! The progress of a load: whether a file is being loaded, and how far.
//!
//! Threads that load write it, INFO reads it, and commands read one word of it: while a file is loaded only those with
//! the flag `loading` run, as in Redis. Expiry and eviction rest meanwhile, because they would take keys from a data set
//! that is not whole yet.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The reply to commands that need the data set.
pub(crate) const LOADING: &str = "LOADING Redis is loading the dataset in memory";

/// The progress of the present load, and the result of the last one.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    is_on: AtomicBool,
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
        self.is_on.load(Ordering::Relaxed)
    }

    /// Begins a load. Returns false if one is in progress.
    pub(crate) fn begin(&self, now_s: u64, total_bytes: u64) -> bool {
        if self.is_on.swap(true, Ordering::SeqCst) {
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
        self.is_on.store(false, Ordering::SeqCst);
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
