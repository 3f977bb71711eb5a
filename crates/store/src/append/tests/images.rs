//! What the files make of a store, at its end, at each cut and in between, while threads change it in every way.
//!
//! The disk is kept as it is whenever a manifest gets its name. So a rewrite is checked by two of these images: what the
//! files make of the store at its cut, and what the new base makes of it.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::load::Existing;
use crate::memory::Policy;

const THREADS: usize = 4;
/// The amount that pairs of keys have together, the number of pairs, and their database, which nothing else changes.
const SUM: i64 = 1_000;
const PAIRS: usize = 30;
const TRANSFERS: u32 = 7;

/// Changes a pair: by MSET, by a script with its keys declared or not, or as EXEC does.
fn transfer(store: &Store, random: &mut Random) {
    let pair = random.below(PAIRS);
    let (a, b, amount) = (format!("p:{pair}"), format!("q:{pair}"), random.below(2_000) as i64 - 500);
    let code = "redis.call('decrby',KEYS[1]or(ARGV[1]),7)redis.call('incrby',KEYS[2]or(ARGV[2]),7)";
    let line = match random.below(5) {
        0 | 1 => format!("MSET {a} {amount} {b} {}", SUM - amount),
        2 => format!("EVAL {code} 2 {a} {b}"),
        3 => format!("EVAL {code} 0 {a} {b}"),
        _ => {
            let (take, give) = (format!("DECRBY {a} 3"), format!("INCRBY {b} 3"));
            // Nothing happens if others have one of them.
            let _ = store.together(&String::new, TRANSFERS, &[&words(&take), &words(&give)]);
            return;
        }
    };
    assert!(run(store, TRANSFERS, &words(&line)).is_some());
}

#[track_caller]
fn check_sums(store: &Store, context: &str) {
    for pair in 0..PAIRS {
        let amount = |name: &str| match ask(store, TRANSFERS, &[b"GET", format!("{name}:{pair}").as_bytes()]) {
            Reply::Bulk(text) => String::from_utf8_lossy(&text).parse::<i64>().expect("a number"),
            reply => panic!("{context}: {reply:?}"),
        };
        assert_eq!(amount("p") + amount("q"), SUM, "{context}: pair {pair}");
    }
}

/// Runs random commands of all rows, those whose effect depends on time, chance or other keys, and such as fill memory.
fn work(store: &Store, clock: &ManualClock, rows: &[gated::Named], random: &mut Random, flushes_all: bool) {
    clock.advance(random.below(8) as i64);
    let db = if random.below(8) == 0 { random.below(3) as u32 } else { 0 };
    let line = match random.below(6) {
        0 | 1 => gated::words_of(&rows[random.below(rows.len())], random).join(" "),
        2 if !flushes_all => return transfer(store, random),
        2 | 3 => {
            let (key, len) = (random.below(400), random.below(1_500));
            format!("SET filler:{key} {} PX {}", "x".repeat(len), 1 + random.below(4_000))
        }
        _ => {
            let rare = if random.below(20) > 0 { 3 } else { usize::from(!flushes_all) };
            SPECIAL[random.below(SPECIAL.len() - rare)].to_owned()
        }
    };
    let _ = run(store, db, &words(&line));
}

/// Returns what the file of a save makes of a store.
fn saved(disk: &Disk, clock: &ManualClock) -> Store {
    let store = store(clock);
    let file = disk.open(b"dump.rdb").expect("a file");
    let options = LoadOptions { existing: Existing::Refuse, ..LoadOptions::default() };
    store.load(file, None, options).expect("a whole file");
    store
}

/// Returns what the append-only file makes of a store.
fn replayed(disk: &Disk, clock: &ManualClock, context: &str) -> Store {
    reopened(disk, clock, true).unwrap_or_else(|fault| panic!("{context}: {fault}")).0
}

/// Checks that each new base is what the files before it made at the cut. Returns the number of rewrites.
fn check_bases(images: &[Disk], clock: &ManualClock, context: &str) -> usize {
    let options = Appending::default();
    let found = |image: &Disk| Parts::open(image, &options.directory, &options.name).expect("right files").0;
    let (mut rewrites, mut at_cut) = (0, None);
    for image in images {
        let parts = found(image);
        let (base, increments) = (parts.manifest().base.clone(), parts.manifest().increments.clone());
        match &at_cut {
            Some((before, cut)) if *before != base => {
                // What came after the cut.
                let last = increments.last().expect("an increment");
                let file = parts.directory().append(&last.name).and_then(|mut file| file.truncate(0));
                file.expect("no fault");
                drop(parts);
                let of_base = replayed(image, clock, context);
                check_same(&contents(&of_base), &contents(cut));
                assert_eq!(libraries(&of_base), libraries(cut));
                (rewrites, at_cut) = (rewrites + 1, None);
            }
            _ if increments.len() > 1 => {
                drop(parts);
                at_cut = Some((base, replayed(image, clock, context)));
            }
            _ => {}
        }
    }
    rewrites
}

/// Sets a flag when it is dropped.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Threads change a store while it is rewritten and saved in turns; keys expire, are evicted, and move to other pages.
fn check_load(seed: u64, flushes_all: bool) {
    let disk = Disk::new(seed, Plan { kept_at: Some(b".manifest"), ..Plan::default() });
    let clock = ManualClock::new(NOW_MS);
    let store = begin(&disk, &clock, Fsync::No);
    store.set_files(Some(Arc::new(disk.clone())));
    gated::prepare(&store);
    (0..PAIRS).for_each(|pair| {
        run(&store, TRANSFERS, &words(&format!("MSET p:{pair} 0 q:{pair} {SUM}")));
    });
    let policy = if flushes_all { Policy::AllkeysLru } else { Policy::VolatileLru };
    store.0.memory.set(store.0.memory.told() + (200 << 10), policy);
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let context = format!("seed {seed}");
    let (mut saves, rows) = (0, gated::rows());
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let (store, clock, rows, is_over, done) = (&store, &clock, &rows, &is_over, &done);
            scope.spawn(move || {
                let mut random = Random(seed * 100 + thread);
                while !is_over.load(Ordering::SeqCst) {
                    work(store, clock, rows, &mut random, flushes_all);
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                store.tick();
            }
        });
        // Even after a fault here.
        let _over = Sets(&is_over);
        // However busy the machine is, the threads do something between two cuts.
        let wait_for_work = || {
            let until = done.load(Ordering::SeqCst) + 300;
            sluicegate_testkit::wait_for("commands", || (done.load(Ordering::SeqCst) >= until).then_some(()));
        };
        for _ in 0..6 {
            wait_for_work();
            rewrite(&store);
            wait_for_work();
            let job = store.save(true).expect("no other save");
            // A flush of everything ends it.
            if job.wait_for_end() == SaveEnd::Saved {
                saves += 1;
                if !flushes_all {
                    check_sums(&saved(&disk, &clock), &context);
                    check_sums(&replayed(&disk.image(), &clock, &context), &context);
                }
            }
        }
    });
    assert!(saves > 0, "{context}");
    assert!(store.stats().evicted > 0 && store.stats().expired > 0, "{context}: {:?}", store.stats());
    assert_eq!(store.save(false).expect("no other save").wait_for_end(), SaveEnd::Saved);
    store.end_appending().expect("no fault");
    let expected = contents(&store);
    for again in [saved(&disk, &clock), replayed(&disk, &clock, &context)] {
        check_same(&contents(&again), &expected);
        assert_eq!(libraries(&again), libraries(&store), "{context}");
    }
    assert!(check_bases(&disk.images(), &clock, &context) >= 6, "{context}");
}

/// Runs a test with so many seeds, or as many as `SLUICEGATE_LOADS` says, from `SLUICEGATE_SEED` on.
fn on_seeds(count: u64, test: impl FnMut(u64)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("SLUICEGATE_SEED").unwrap_or(0);
    (first..first + number("SLUICEGATE_LOADS").unwrap_or(count)).for_each(test);
}

#[test]
fn memory_and_files_are_the_same_whatever_happens_meanwhile() {
    on_seeds(1, |seed| check_load(seed, true));
}

#[test]
fn files_have_transfers_whole_or_not_at_all_whatever_happens_meanwhile() {
    on_seeds(1, |seed| check_load(seed, false));
}
