//! Slots of `max` limits: a stream holds a lease from its rule to its end.
//!
//! A lease is released when it is dropped, so it is released whatever ends a stream: its last byte, an error, a client
//! that disconnected while the rule still waited. If it cannot be released, because the process died or the engine is
//! unreachable, its slot expires with the lease. Leases of longer streams are renewed by a task of their worker, which
//! scans the worker's leases every [`TICK`] and renews those of which a third has passed.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use sluicegate_wire::engine::{Engine, Started};
use tokio::task::JoinHandle;

use super::{Plan, Told};

/// The interval at which a worker's leases are scanned: a third of the shortest possible lease.
const TICK: Duration = Duration::from_millis(333);

/// A slot of a `max` limit that is held.
pub(crate) struct Lease(Rc<Held>);

struct Held {
    engine: Arc<dyn Engine>,
    plan: Arc<Plan>,
    key: Box<[u8]>,
    id: String,
    /// The start of the current lease period.
    begun: Cell<Instant>,
    /// Its index in the keeper.
    slot: Cell<usize>,
    /// Whether the engine may hold a slot that must be released.
    owed: Cell<bool>,
}

impl Held {
    fn give_back(&self) -> Started {
        let origin = || self.plan.origin.to_string();
        self.engine.start_from(&origin, 0, &[b"ZREM", &self.key, self.id.as_bytes()])
    }
}

/// Returns an id that is unique in all processes that share an engine.
fn next_id() -> String {
    static PROCESS: LazyLock<u64> = LazyLock::new(crate::random::random);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{:016x}-{:x}", *PROCESS, NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Lease {
    pub(super) fn new(engine: Arc<dyn Engine>, plan: Arc<Plan>, key: &[u8]) -> Lease {
        let (begun, slot, owed) = (Cell::new(Instant::now()), Cell::new(usize::MAX), Cell::new(true));
        let held = Rc::new(Held { engine, plan, key: key.into(), id: next_id(), begun, slot, owed });
        KEEPER.with_borrow_mut(|keeper| keeper.add(&held));
        Lease(held)
    }

    pub(super) fn id(&self) -> &[u8] {
        self.0.id.as_bytes()
    }

    /// Returns whether the answer grants the slot. After a refusal there is nothing to release; after a failure this is
    /// unknown.
    pub(super) fn is_kept(&self, told: &Result<Told, String>) -> bool {
        if let Ok(told) = told {
            self.0.owed.set(told.allowed);
        }
        told.as_ref().is_ok_and(|told| told.allowed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A worker that ends may have no keeper any more.
        let _ = KEEPER.try_with(|keeper| keeper.borrow_mut().remove(&self.0));
        if self.0.owed.take() {
            // The reply is not needed.
            drop(self.0.give_back());
        }
    }
}

thread_local! {
    static KEEPER: RefCell<Keeper> = RefCell::default();
}

/// The leases of a worker.
#[derive(Default)]
struct Keeper {
    slots: Vec<Option<Weak<Held>>>,
    free: Vec<usize>,
    task: Option<JoinHandle<()>>,
}

impl Keeper {
    fn add(&mut self, held: &Rc<Held>) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(Rc::downgrade(held));
        held.slot.set(slot);
        if self.task.as_ref().is_none_or(JoinHandle::is_finished) && tokio::runtime::Handle::try_current().is_ok() {
            self.task = Some(tokio::task::spawn_local(keep()));
        }
    }

    fn remove(&mut self, held: &Held) {
        let slot = held.slot.replace(usize::MAX);
        if slot < self.slots.len() {
            self.slots[slot] = None;
            self.free.push(slot);
        }
    }

    /// Returns the leases to be renewed.
    fn due(&self) -> Vec<Rc<Held>> {
        let held = self.slots.iter().flatten().filter_map(Weak::upgrade);
        held.filter(|held| held.plan.lease.is_some_and(|lease| held.begun.get().elapsed() >= lease / 3)).collect()
    }
}

/// Renews leases until none are left.
async fn keep() {
    loop {
        tokio::time::sleep(TICK).await;
        let due = KEEPER.with_borrow_mut(|keeper| {
            let is_empty = keeper.free.len() == keeper.slots.len();
            if is_empty {
                (keeper.slots, keeper.free, keeper.task) = (Vec::new(), Vec::new(), None);
            }
            (!is_empty).then(|| keeper.due())
        });
        let Some(due) = due else { return };
        for held in due {
            held.begun.set(Instant::now());
            let asked = held.plan.start(&held.engine, &held.key, &[held.id.as_bytes(), b"RENEW"]);
            tokio::task::spawn_local(async move {
                // The script's text may have to be sent after the slot was released; then it is released again. If the
                // engine does not answer, the next scan asks again.
                let _ = asked.finish().await;
                if !held.owed.get() {
                    drop(held.give_back());
                }
            });
        }
    }
}
