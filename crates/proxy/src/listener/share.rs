//! The connections of `rhttp@` addresses: the number that each worker keeps, and the holders of their places.

use std::sync::Arc;

use parking_lot::Mutex;
use sluicegate_config::model::BindAddress;

use crate::process::Limit;

/// The last log line about a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Stopped,
    Begun,
    Failed,
    Complete,
}

/// The connections of one `rhttp@` address.
#[derive(Debug)]
pub(crate) struct Reverse {
    /// `BACKEND/SERVER`.
    pub(super) server: Arc<str>,
    /// The connections of each worker.
    shares: Box<[Limit]>,
    pub(super) stage: Mutex<Stage>,
}

impl Reverse {
    /// Returns the connections of an address, if it is one of a server; those of `before` go on. `first` is the worker
    /// with the first connection.
    pub(super) fn of(
        address: &BindAddress,
        count: u32,
        workers: usize,
        first: u32,
        before: Option<&Arc<Reverse>>,
    ) -> Option<Arc<Reverse>> {
        let BindAddress::Reverse(server) = address else { return None };
        let share = |worker: usize| {
            let place = (worker + workers - first as usize % workers) % workers;
            Some((count as usize + workers - 1 - place) as u32 / workers as u32)
        };
        if let Some(before) = before {
            before.shares.iter().enumerate().for_each(|(worker, limit)| limit.set_max(share(worker)));
            return Some(before.clone());
        }
        let shares = (0..workers).map(|worker| Limit::new(share(worker))).collect();
        Some(Arc::new(Reverse { server: server.clone(), shares, stage: Mutex::new(Stage::Stopped) }))
    }

    /// Returns whether all connections are there, or being opened.
    pub(super) fn is_complete(&self) -> bool {
        self.shares.iter().all(|share| !share.leaves(1))
    }
}

/// A place in a worker's share of connections.
pub(super) struct Share {
    reverse: Arc<Reverse>,
    worker: usize,
}

impl Share {
    /// Waits for a place.
    pub(super) async fn take(reverse: &Arc<Reverse>, worker: usize) -> Share {
        while !reverse.shares[worker].take() {
            reverse.shares[worker].room().await;
        }
        Share { reverse: reverse.clone(), worker }
    }

    /// Returns the number of places of this worker.
    pub(super) fn places(&self) -> usize {
        self.reverse.shares[self.worker].max().unwrap_or(0) as usize
    }

    /// Moves to the connections of another configuration, which has room for it or not.
    pub(super) fn follow(&mut self, to: &Arc<Reverse>) {
        if !Arc::ptr_eq(&self.reverse, to) {
            to.shares[self.worker].force();
            *self = Share { reverse: to.clone(), worker: self.worker };
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.reverse.shares[self.worker].give();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_spread_over_workers() {
        for (count, workers, first, expected) in [
            (1, 1, 1, &[1][..]),
            (1, 2, 0, &[1, 0]),
            (1, 2, 1, &[0, 1]),
            (5, 3, 1, &[1, 2, 2]),
            (2, 4, 7, &[1, 0, 0, 1]),
        ] {
            let address = BindAddress::Reverse("b/s".into());
            let reverse = Reverse::of(&address, count, workers, first, None).unwrap();
            let shares: Vec<u32> = reverse.shares.iter().map(|share| share.max().unwrap()).collect();
            assert_eq!(shares, expected, "{count} from {first}");
        }
    }
}
