//! Compaction: entries are moved to other pages, so that sparsely used pages are freed.
//!
//! When nine of ten keys were deleted, or have moved to another size class, their former pages are used to a tenth.
//! Each stripe publishes the number of unused bytes in its pages; a tick examines stripes in which that number has
//! grown since the last examination, and empties one page after the other, each under the stripe's lock for some
//! microseconds. A store without loose bytes costs the scan of a dense array.
//!
//! The time of a tick depends on the possible gain: [`BUDGET`], or [`BUDGET_MUCH`] if it is an eighth of all memory.
//! Moving an entry costs about half a microsecond, so the removal of nine tenths of ten million keys is compacted in
//! half a minute.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sluicegate_data::slab::Emptied;

use crate::Inner;
use crate::keyspace::Db;
use crate::stripe::Figures;

/// The maximum time of a tick for compaction.
const BUDGET: Duration = Duration::from_micros(2_500);
/// The same if there is much to gain.
const BUDGET_MUCH: Duration = Duration::from_millis(10);
/// The gain is large if it is this part of all memory.
const MUCH_PART: u64 = 8;
/// A stripe is examined when this many bytes have become loose since the last examination.
const LOOSE_MIN: u32 = 1_024;

/// The position at which compaction continues after its time was over.
#[derive(Default)]
pub(crate) struct Compactor {
    db: AtomicU32,
    stripe: AtomicUsize,
}

impl Inner {
    /// Empties pages until the time of a tick is over.
    pub(crate) fn compact(&self) {
        let start = Instant::now();
        let databases = self.keyspace.databases();
        let loosened: u64 = (0..databases)
            .filter_map(|index| {
                let pass = self.gate.enter();
                let db = self.keyspace.db(&pass, index)?;
                let loosened = db.figures.iter().map(Figures::loosened).filter(|bytes| *bytes >= LOOSE_MIN);
                Some(loosened.map(u64::from).sum::<u64>())
            })
            .sum();
        if loosened > 0 {
            let budget = if loosened * MUCH_PART > self.memory.told() { BUDGET_MUCH } else { BUDGET };
            let first = self.compactor.db.load(Ordering::Relaxed);
            for step in 0..=databases {
                let index = (first + step) % databases;
                let stripe = if step == 0 { self.compactor.stripe.load(Ordering::Relaxed) } else { 0 };
                if let Some(stripe) = self.compact_db(index, stripe, || start.elapsed() >= budget) {
                    self.compactor.db.store(index, Ordering::Relaxed);
                    self.compactor.stripe.store(stripe, Ordering::Relaxed);
                    break;
                }
            }
        }
    }

    /// Compacts one database from a stripe on. Returns the stripe at which the time ran out.
    fn compact_db(&self, index: u32, first: usize, is_over: impl Fn() -> bool) -> Option<usize> {
        for stripe in first..self.keyspace.stripes() {
            loop {
                // The gate is passed anew each time, because a flush may wait for it.
                let pass = self.gate.enter();
                let db = self.keyspace.db(&pass, index)?;
                if db.figures[stripe].loosened() < LOOSE_MIN || !step(db, stripe) {
                    break;
                }
                drop(pass);
                if is_over() {
                    return Some(stripe);
                }
            }
        }
        None
    }
}

/// Empties a page of a stripe that is not in use. Returns whether it did.
fn step(db: &Db, stripe: usize) -> bool {
    let Some(mut locked) = db.try_lock(stripe) else { return false };
    let emptied = locked.compact();
    let loose = locked.loose_bytes();
    drop(locked);
    if emptied == Emptied::Nothing {
        db.figures[stripe].settled.store(loose, Ordering::Relaxed);
    }
    emptied == Emptied::Page
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::{Caller, Store, StoreOptions, execute};

    fn run(store: &Store, words: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = sluicegate_wire::resp::ReplyWriter::new(&mut out, Default::default());
        assert!(matches!(execute(store, &mut Caller::default(), words, &mut writer), crate::Executed::Done));
        out
    }

    fn key(n: usize) -> Vec<u8> {
        format!("key:{n:012}").into_bytes()
    }

    /// Returns the bytes of all pages, and those of their content.
    fn pages(store: &Store) -> (usize, usize) {
        let inner = &store.0;
        let pass = inner.gate.enter();
        let db = inner.keyspace.db(&pass, 0).expect("it exists");
        let of_stripes = (0..inner.keyspace.stripes()).map(|stripe| db.lock(stripe).page_figures());
        of_stripes.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
    }

    #[test]
    fn what_nine_of_ten_keys_leave_is_given_back_and_used_again() {
        const COUNT: usize = 200_000;
        let store = Store::new(StoreOptions { stripes: 64, ..StoreOptions::default() });
        (0..COUNT).for_each(|n| drop(run(&store, &[b"SET", &key(n), &[b'v'; 32]])));
        let goes = |n: usize| !(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(10);
        let gone: Vec<usize> = (0..COUNT).filter(|n| goes(*n)).collect();
        gone.iter().for_each(|n| drop(run(&store, &[b"DEL", &key(*n)])));
        let (sparse, used) = pages(&store);
        assert!(sparse > 5 * used, "{sparse} bytes of pages for {used}");
        // Each tick empties at least one page while there are sparse ones.
        (0..sparse / 2048).for_each(|_| store.tick());
        let (dense, still_used) = pages(&store);
        assert_eq!(used, still_used);
        assert!(dense * 4 <= used * 5, "{dense} bytes of pages for {used}");
        gone.iter().for_each(|n| drop(run(&store, &[b"SET", &key(*n), &[b'w'; 96]])));
        (0..100).for_each(|_| store.tick());
        let (bytes, used) = pages(&store);
        assert!(bytes * 4 <= used * 5, "{bytes} bytes of pages for {used}");
        for n in 0..COUNT {
            let value = if goes(n) { vec![b'w'; 96] } else { vec![b'v'; 32] };
            let expected = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
            assert!(run(&store, &[b"GET", &key(n)]) == expected, "key {n} is not as it was written");
        }
    }

    #[test]
    fn readers_and_writers_go_on_while_entries_move() {
        const KEYS: usize = 1_000;
        const THREADS: usize = 3;
        let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let compacting = scope.spawn(|| {
                let mut emptied = 0_usize;
                loop {
                    // A last pass follows the end of all writes, in case this thread did not run before.
                    let is_last = over.load(Ordering::SeqCst);
                    for stripe in 0..4 {
                        let pass = store.0.gate.enter();
                        let db = store.0.keyspace.db(&pass, 0).expect("it exists");
                        emptied += usize::from(super::step(db, stripe));
                    }
                    if is_last {
                        break emptied;
                    }
                    std::thread::yield_now();
                }
            });
            let workers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let store = &store;
                    scope.spawn(move || {
                        // Each thread has keys of its own in the same stripes, so it knows their expected values.
                        let mut lens = vec![None; KEYS];
                        let mut random = 0x5851_f42d_4c95_7f2d_u64 ^ thread as u64;
                        for _ in 0..40_000 {
                            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                            let n = (random >> 33) as usize % KEYS;
                            let name = format!("{thread}:{n}").into_bytes();
                            let expected = match lens[n] {
                                None => b"$-1\r\n".to_vec(),
                                Some(len) => [format!("${len}\r\n").as_bytes(), &vec![n as u8; len], b"\r\n"].concat(),
                            };
                            assert!(run(store, &[b"GET", &name]) == expected, "{thread}:{n} is not what was written");
                            // Whole phases delete or write, so that pages become sparse and fill up.
                            let writes = random >> 20 & 7 < if random >> 60 & 1 == 0 { 2 } else { 6 };
                            if writes {
                                let len = 21 + (random >> 24) as usize % 90;
                                drop(run(store, &[b"SET", &name, &vec![n as u8; len]]));
                                lens[n] = Some(len);
                            } else {
                                drop(run(store, &[b"DEL", &name]));
                                lens[n] = None;
                            }
                        }
                        lens.iter().flatten().count()
                    })
                })
                .collect();
            let keys: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            over.store(true, Ordering::SeqCst);
            let keys: usize = keys.into_iter().map(|keys| keys.expect("it went well")).sum();
            assert!(compacting.join().expect("it went well") > 0, "nothing was ever moved");
            assert_eq!(store.stats().databases[0].keys, keys as u64);
        });
    }
}
