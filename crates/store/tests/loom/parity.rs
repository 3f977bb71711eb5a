//! The parity of entries: writers, the pass and the cut of a snapshot, as `snapshot`, `stripe::edit` and `stripe::image`
//! have them, with the gate's turnstile itself. Every key of the cut is saved once, with its value of then. Each mistake
//! must be found.

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::turnstile::Turnstile;
use crate::{check, check_wrong, enter};

/// What is done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// The gate is open during the cut.
    OpenGate,
    /// A writer reads the store's parity before it enters the gate.
    EarlyParity,
    /// A writer changes the value before it keeps the old one.
    LateCopy,
    /// A writer keeps the old value and leaves the entry unsaved.
    Unmarked,
    /// A removed entry is not kept.
    Dropped,
    /// A new entry always has the same parity.
    OldParity,
    /// The pass leaves entries unsaved.
    UnmarkedByPass,
}

/// The value of an entry, and its bit.
type Entry = (u32, bool);

#[derive(Default)]
struct Stripe {
    entry: Option<Entry>,
    /// Old values that the pass has not taken yet.
    images: Vec<u32>,
}

struct Store {
    mistake: Mistake,
    gate: Turnstile,
    parity: AtomicBool,
    /// A key each.
    stripes: [Mutex<Stripe>; 2],
}

impl Store {
    fn new(mistake: Mistake) -> Arc<Store> {
        let stripe = |entry| Mutex::new(Stripe { entry, images: Vec::new() });
        let stripes = [stripe(Some((10, false))), stripe(Some((20, false)))];
        Arc::new(Store { mistake, gate: Turnstile::new(1), parity: AtomicBool::new(false), stripes })
    }

    fn parity(&self) -> bool {
        self.parity.load(Ordering::Relaxed)
    }

    /// A command of several keys: sets them, or removes them.
    fn change(&self, keys: &[usize], value: Option<u32>) {
        let early = self.parity();
        enter(&self.gate);
        for key in keys {
            let mut stripe = self.stripes[*key].lock().expect("nobody panics");
            let parity = if self.mistake == Mistake::EarlyParity { early } else { self.parity() };
            let Stripe { entry, images } = &mut *stripe;
            match (entry.as_mut(), value) {
                (Some(old), Some(value)) => {
                    if self.mistake == Mistake::LateCopy {
                        old.0 = value;
                    }
                    if old.1 != parity {
                        images.push(old.0);
                        if self.mistake != Mistake::Unmarked {
                            old.1 = parity;
                        }
                    }
                    old.0 = value;
                }
                (Some(old), None) => {
                    if old.1 != parity && self.mistake != Mistake::Dropped {
                        images.push(old.0);
                    }
                    *entry = None;
                }
                (None, Some(value)) => *entry = Some((value, parity && self.mistake != Mistake::OldParity)),
                (None, None) => {}
            }
        }
        self.gate.leave(self.gate.counter(0));
    }

    /// Cuts, and returns the values.
    fn cut(&self) -> [Vec<u32>; 2] {
        let is_open = self.mistake == Mistake::OpenGate;
        assert!(is_open || self.gate.close(), "there are no tickets");
        let values = [0, 1].map(|key| {
            let stripe = self.stripes[key].lock().expect("nobody panics");
            stripe.entry.iter().map(|entry| entry.0).collect()
        });
        self.parity.fetch_xor(true, Ordering::Relaxed);
        if !is_open {
            self.gate.open();
        }
        values
    }

    /// The pass: returns what it saves.
    fn sweep(&self) -> [Vec<u32>; 2] {
        [0, 1].map(|key| {
            enter(&self.gate);
            let mut stripe = self.stripes[key].lock().expect("nobody panics");
            let parity = self.parity();
            let mut saved = std::mem::take(&mut stripe.images);
            if let Some(entry) = stripe.entry.as_mut().filter(|entry| entry.1 != parity) {
                saved.push(entry.0);
                if self.mistake != Mistake::UnmarkedByPass {
                    entry.1 = parity;
                }
            }
            drop(stripe);
            self.gate.leave(self.gate.counter(0));
            saved
        })
    }
}

/// Two snapshots, one after the other, beside a writer.
fn snapshots(
    mistake: Mistake,
    changes: &'static [(&'static [usize], Option<u32>)],
) -> impl Fn() + Sync + Send + 'static {
    move || {
        let store = Store::new(mistake);
        let writer = {
            let store = store.clone();
            thread::spawn(move || changes.iter().for_each(|(keys, value)| store.change(keys, *value)))
        };
        let snapshots = [0, 1].map(|_| (store.cut(), store.sweep()));
        // The checker cannot end a model whose threads are still there.
        writer.join().expect("it ends");
        for (at_cut, saved) in snapshots {
            assert_eq!(saved, at_cut, "not what was there at the cut");
            // Both keys are changed together.
            let [one, other] = at_cut.map(|values| values[..] == [1] || values[..] == [2] || values.is_empty());
            assert_eq!(one, other, "a command in part");
        }
        let parity = store.parity();
        for stripe in &store.stripes {
            let stripe = stripe.lock().expect("nobody panics");
            assert!(stripe.images.is_empty(), "an old value that no pass takes");
            assert!(stripe.entry.is_none_or(|entry| entry.1 == parity), "an entry is unsaved at rest");
        }
    }
}

const BOTH: &[usize] = &[0, 1];
const SETS: &[(&[usize], Option<u32>)] = &[(BOTH, Some(1)), (BOTH, Some(2))];
const REMOVES: &[(&[usize], Option<u32>)] = &[(BOTH, None), (BOTH, Some(2))];

#[test]
fn a_pass_saves_each_key_of_the_cut_once() {
    check(2, snapshots(Mistake::None, SETS));
    check(2, snapshots(Mistake::None, REMOVES));
    let mistakes = [
        (Mistake::OpenGate, REMOVES),
        (Mistake::EarlyParity, SETS),
        (Mistake::LateCopy, SETS),
        (Mistake::Unmarked, SETS),
        (Mistake::Dropped, REMOVES),
        (Mistake::OldParity, REMOVES),
        (Mistake::UnmarkedByPass, SETS),
    ];
    for (mistake, changes) in mistakes {
        check_wrong(2, "", snapshots(mistake, changes));
    }
}
