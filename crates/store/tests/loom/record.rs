//! The order of the record: what is merged leads to what the keys have, whoever was first, at each cut, after a flush and
//! after a panic. Each model is checked with mistakes, too, which the checker must find.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use loom::sync::atomic::Ordering;
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::order::{Effects, Merger, Order, Passed, Run};
use crate::turnstile::Turnstile;
use crate::{check, check_wrong, enter};

/// An effect: a value is appended to a key, or all keys are emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Append(usize, u32),
    Flush,
}

/// Effects, each of one unit or of a run.
#[derive(Default)]
struct Changes(Vec<Vec<Change>>);

impl Effects for Changes {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn join(&mut self) -> bool {
        if let [.., before, last] = &mut self.0[..] {
            before.append(last);
            self.0.pop();
            return true;
        }
        false
    }

    fn end_of(&self, _: usize, begin: usize, units: u64) -> usize {
        begin + units as usize
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn truncate(&mut self, count: usize) {
        self.0.truncate(count);
    }
}

const KEYS: usize = 2;

type Values = [Vec<u32>; KEYS];

/// What is done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// The unit is put when its key is free again.
    LateUnit,
    /// The number is drawn before the buffer is locked.
    EarlyNumber,
    /// A command that ends by a panic records nothing.
    ForgottenPanic,
    /// The barrier is read before the units are taken.
    EarlyBarrier,
    /// The gate is open during a cut.
    OpenGate,
    /// A flush is recorded when the gate is open again.
    LateFlush,
}

struct Store {
    mistake: Mistake,
    gate: Turnstile,
    keys: [Mutex<Vec<u32>>; KEYS],
    order: Order<Changes>,
    buffers: usize,
}

impl Store {
    fn new(buffers: usize, mistake: Mistake) -> Arc<Store> {
        let keys = std::array::from_fn(|_| Mutex::new(Vec::new()));
        Arc::new(Store { mistake, gate: Turnstile::new(1), keys, order: Order::new(buffers), buffers })
    }

    fn put(&self, thread: usize, change: Change) {
        if self.mistake == Mistake::EarlyNumber {
            let number = self.order.last.0.fetch_add(1, Ordering::SeqCst) + 1;
            let mut buffer = self.order.buffers[thread % self.buffers].0.buffer.lock();
            buffer.effects.0.push(vec![change]);
            let end = buffer.effects.0.len();
            return buffer.runs.push(Run { numbers: number..number + 1, effects: end - 1..end });
        }
        self.order.put(thread, |changes| changes.0.push(vec![change]), || {});
    }

    /// A command that changes a key.
    fn append(&self, thread: usize, key: usize, value: u32) {
        enter(&self.gate);
        let mut values = self.keys[key].lock().expect("nobody panics");
        values.push(value);
        match self.mistake {
            Mistake::LateUnit => {
                drop(values);
                self.put(thread, Change::Append(key, value));
            }
            _ => {
                self.put(thread, Change::Append(key, value));
                drop(values);
            }
        }
        self.gate.leave(self.gate.counter(0));
    }

    /// A command that empties all keys.
    fn flush(&self, thread: usize) {
        assert!(self.gate.close(), "there are no tickets");
        self.keys.iter().for_each(|key| key.lock().expect("nobody panics").clear());
        if self.mistake == Mistake::LateFlush {
            self.gate.open();
        }
        self.put(thread, Change::Flush);
        if self.mistake != Mistake::LateFlush {
            self.gate.open();
        }
    }

    fn values(&self) -> Values {
        std::array::from_fn(|key| self.keys[key].lock().expect("nobody panics").clone())
    }
}

/// Applies units to what there was.
fn replayed(mut values: Values, changes: &[Change]) -> Values {
    for change in changes {
        match *change {
            Change::Append(key, value) => values[key].push(value),
            Change::Flush => values = Values::default(),
        }
    }
    values
}

/// The thread that writes the file: two files after a cut.
struct Writer {
    merger: Merger<Changes>,
    files: [Vec<Change>; 2],
    file: usize,
}

impl Writer {
    fn new(store: &Store) -> Writer {
        Writer { merger: Merger::new(store.buffers, 2), files: Default::default(), file: 0 }
    }

    fn write(&mut self, store: &Store, until: u64) {
        let early = store.order.barrier.load(Ordering::SeqCst);
        let barrier = self.merger.take(&store.order);
        let until = until.min(if store.mistake == Mistake::EarlyBarrier { early } else { barrier });
        let Writer { merger, files, file } = self;
        while merger.pass(until, |changes, Passed { effects, part }| {
            for effect in &changes.0[effects] {
                let part = part.clone().unwrap_or(0..effect.len());
                files[*file].extend(&effect[part.start..part.end.min(effect.len())]);
            }
        }) {}
    }

    /// Begins the next file behind a unit.
    fn rotate(&mut self, store: &Store, last: u64) {
        self.write(store, last);
        self.file = 1;
        store.order.lift_barrier();
    }

    /// Writes the rest. Returns both files.
    fn end(mut self, store: &Store) -> [Vec<Change>; 2] {
        self.write(store, u64::MAX);
        assert_eq!(self.merger.next_number() - 1, store.order.last(), "a unit is missing");
        self.files
    }
}

/// Threads change the same key or different ones, with the same buffer or their own, while units are taken.
fn changes(keys: usize, buffers: usize, mistake: Mistake) -> impl Fn() + Sync + Send + 'static {
    move || {
        let store = Store::new(buffers, mistake);
        let others: Vec<_> = (0..2)
            .map(|number| {
                let store = store.clone();
                thread::spawn(move || store.append(number, number % keys, number as u32))
            })
            .collect();
        let mut writer = Writer::new(&store);
        writer.write(&store, u64::MAX);
        others.into_iter().for_each(|other| other.join().expect("it ends"));
        let files = writer.end(&store);
        assert_eq!(replayed(Values::default(), &files[0]), store.values(), "another order");
    }
}

#[test]
fn changes_are_merged_in_their_order() {
    for (keys, buffers) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        check(3, changes(keys, buffers, Mistake::None));
    }
    check_wrong(3, "another order", changes(1, 2, Mistake::LateUnit));
    check_wrong(3, "another order", changes(1, 1, Mistake::LateUnit));
    // A number that lies behind a higher one is waited for, for ever.
    check_wrong(3, "a unit is missing", changes(2, 1, Mistake::EarlyNumber));
}

/// A thread panics while it adds its unit, or when it has changed its key; its guard records what the key has.
fn panics(mistake: Mistake) -> impl Fn() + Sync + Send + 'static {
    /// Records the changes of a command, however it ends.
    struct Command<'s>(&'s Store, Option<u32>);
    impl Drop for Command<'_> {
        fn drop(&mut self) {
            if let (Some(value), false) = (self.1, self.0.mistake == Mistake::ForgottenPanic) {
                self.0.put(0, Change::Append(0, value));
            }
        }
    }
    move || {
        let store = Store::new(1, mistake);
        let other = {
            let store = store.clone();
            thread::spawn(move || {
                let mut values = store.keys[0].lock().expect("it is caught");
                let half_put = catch_unwind(AssertUnwindSafe(|| {
                    let half = |changes: &mut Changes| {
                        changes.0.push(vec![Change::Flush]);
                        resume_unwind(Box::new(()));
                    };
                    store.order.put(0, half, || {});
                }));
                assert!(half_put.is_err());
                let half_done = catch_unwind(AssertUnwindSafe(|| {
                    let mut command = Command(&store, None);
                    values.push(7);
                    command.1 = Some(7);
                    resume_unwind(Box::new(()));
                }));
                assert!(half_done.is_err());
            })
        };
        store.append(1, 0, 1);
        let mut writer = Writer::new(&store);
        writer.write(&store, u64::MAX);
        other.join().expect("it ends");
        let files = writer.end(&store);
        assert_eq!(replayed(Values::default(), &files[0]), store.values(), "another order");
    }
}

#[test]
fn a_panic_leaves_neither_a_gap_nor_half_a_unit_nor_a_change_without_one() {
    check(5, panics(Mistake::None));
    check_wrong(3, "another order", panics(Mistake::ForgottenPanic));
}

/// The record is cut while threads change keys and units are written: the first file leads to the keys at the cut, the
/// second one from there to the end.
fn cut(mistake: Mistake) -> impl Fn() + Sync + Send + 'static {
    move || {
        let store = Store::new(2, mistake);
        let writer = Arc::new(Mutex::new(Writer::new(&store)));
        let changing = {
            let store = store.clone();
            thread::spawn(move || (0..2).for_each(|number| store.append(0, number, number as u32)))
        };
        let writing = {
            let (store, writer) = (store.clone(), writer.clone());
            thread::spawn(move || writer.lock().expect("nobody panics").write(&store, u64::MAX))
        };
        let is_open = mistake == Mistake::OpenGate;
        assert!(is_open || store.gate.close(), "there are no tickets");
        let (at_cut, last) = (store.values(), store.order.set_barrier());
        if !is_open {
            store.gate.open();
        }
        writer.lock().expect("nobody panics").rotate(&store, last);
        for other in [changing, writing] {
            other.join().expect("it ends");
        }
        let writer = std::mem::replace(&mut *writer.lock().expect("nobody panics"), Writer::new(&store));
        let [before, after] = writer.end(&store);
        assert_eq!(replayed(Values::default(), &before), at_cut, "a cut elsewhere");
        assert_eq!(replayed(at_cut, &after), store.values(), "another order");
    }
}

#[test]
fn a_file_ends_at_the_cut() {
    check(2, cut(Mistake::None));
    check_wrong(2, "a cut elsewhere", cut(Mistake::EarlyBarrier));
    check_wrong(2, "a cut elsewhere", cut(Mistake::OpenGate));
}

/// A thread empties all keys while another one changes one.
fn flush(mistake: Mistake) -> impl Fn() + Sync + Send + 'static {
    move || {
        let store = Store::new(2, mistake);
        let changing = {
            let store = store.clone();
            thread::spawn(move || (1..3).for_each(|value| store.append(0, 0, value)))
        };
        store.flush(1);
        changing.join().expect("it ends");
        let files = Writer::new(&store).end(&store);
        assert_eq!(replayed(Values::default(), &files[0]), store.values(), "another order");
    }
}

/// A thread changes a key or empties all, and another one reads it: what it has seen has the number that it finds then, or
/// a lower one.
fn read(flushes: bool, mistake: Mistake) -> impl Fn() + Sync + Send + 'static {
    move || {
        let store = Store::new(2, mistake);
        store.append(0, 0, 1);
        let changing = {
            let store = store.clone();
            thread::spawn(move || if flushes { store.flush(1) } else { store.append(1, 0, 2) })
        };
        enter(&store.gate);
        let seen = store.keys[0].lock().expect("nobody panics").clone();
        store.gate.leave(store.gate.counter(0));
        let number = store.order.last();
        changing.join().expect("it ends");
        let mut writer = Writer::new(&store);
        writer.write(&store, number);
        let file = &writer.files[0];
        // Once it is durable up to that number, this cannot be lost any more.
        let is_known = (0..=file.len()).any(|end| {
            let values = replayed(Values::default(), &file[..end]);
            values[0] == seen && (end > 0 || !flushes)
        });
        assert!(is_known, "{seen:?} was seen, which {file:?} does not explain");
    }
}

#[test]
fn a_flush_has_its_place() {
    check(6, flush(Mistake::None));
    check_wrong(3, "another order", flush(Mistake::LateFlush));
}

#[test]
fn whoever_sees_a_change_finds_its_number() {
    check(6, read(false, Mistake::None));
    check(6, read(true, Mistake::None));
    check_wrong(3, "was seen", read(false, Mistake::LateUnit));
    check_wrong(3, "was seen", read(true, Mistake::LateFlush));
}
