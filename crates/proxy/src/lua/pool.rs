//! Pooled connections of scripts (`tcp:setkeepalive`), modelled on OpenResty.
//!
//! Each worker has its own pools, by name, so there are no locks and no moves between threads. The most recently used
//! connection is reused first. A connection is checked before reuse, and once a second while idle: if the other side
//! has closed it or sent unexpected data, it is dropped.
//!
//! Limits: [`ALL_MAX`] connections of a worker; in a pool as many as its scripts set, [`SIZE`] by default; the idle
//! time that scripts set, [`IDLE`] by default. Beyond the limits the connection that has been idle for longest in the
//! pool is closed.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use sluicegate_transport::Socket;

/// The maximum number of idle connections in all pools of a worker.
const ALL_MAX: usize = 1024;
/// The default number of idle connections of a pool.
pub(super) const SIZE: usize = 30;
/// The default time for which a connection stays in a pool.
pub(super) const IDLE: Duration = Duration::from_secs(60);
/// The interval of checks.
const SWEEP: Duration = Duration::from_secs(1);

struct Resting {
    stream: Socket,
    until: Instant,
    reused: u32,
}

#[derive(Default)]
struct Pools {
    by_name: HashMap<Box<str>, VecDeque<Resting>>,
    count: usize,
}

thread_local! {
    static POOLS: RefCell<Pools> = RefCell::default();
    static SWEEPING: Cell<bool> = const { Cell::new(false) };
}

impl Pools {
    fn take(&mut self, name: &str) -> Option<Resting> {
        let pool = self.by_name.get_mut(name)?;
        let now = Instant::now();
        let mut found = None;
        while found.is_none()
            && let Some(last) = pool.pop_back()
        {
            self.count -= 1;
            found = Some(last).filter(|last| last.until > now && last.stream.is_quiet());
        }
        if pool.is_empty() {
            self.by_name.remove(name);
        }
        found
    }

    fn put(&mut self, name: &str, resting: Resting, most: usize) {
        if most == 0 || self.count >= ALL_MAX && !self.by_name.contains_key(name) {
            return;
        }
        let pool = self.by_name.entry(name.into()).or_default();
        pool.push_back(resting);
        self.count += 1;
        while pool.len() > most || self.count > ALL_MAX {
            pool.pop_front();
            self.count -= 1;
        }
    }

    /// Drops connections that are no longer usable; returns false if none is left.
    fn sweep(&mut self) -> bool {
        let now = Instant::now();
        self.by_name.retain(|_, pool| {
            pool.retain(|resting| resting.until > now && resting.stream.is_quiet());
            !pool.is_empty()
        });
        self.count = self.by_name.values().map(VecDeque::len).sum();
        self.count > 0
    }
}

/// Takes a connection from the pool with this name; also returns how often it was taken before.
pub(super) fn take(name: &str) -> Option<(Socket, u32)> {
    let found = POOLS.with_borrow_mut(|pools| pools.take(name))?;
    Some((found.stream, found.reused + 1))
}

/// Puts a connection into a pool for other scripts.
pub(super) fn put(name: &str, stream: Socket, reused: u32, most: usize, idle: Duration) {
    let until = Instant::now() + idle.min(Duration::from_secs(86_400));
    POOLS.with_borrow_mut(|pools| pools.put(name, Resting { stream, until, reused }, most));
    if !SWEEPING.replace(true) {
        tokio::task::spawn_local(async {
            loop {
                tokio::time::sleep(SWEEP).await;
                if !POOLS.with_borrow_mut(Pools::sweep) {
                    SWEEPING.set(false);
                    return;
                }
            }
        });
    }
}
