//! The table of `balance static-rr`, which walks through it, and of `hash-type map-based`, which looks a hash up in it:
//! every server as often as its weight, spread evenly.
//!
//! Weights are divided by their greatest common divisor, to keep the table small, and may not change at run time except
//! to 0 and back. Adding or removing a server reassigns most places of the table; `hash-type consistent` keeps clients
//! at their servers.
//!
//! Cost: a choice is a division and a table look-up. The table is rebuilt at the first choice after a server was added
//! or removed, in O(sum of weights · servers), as in HAProxy.

use super::{Load, Member, Pick, Servers, WEIGHT_SCALE, Wish};

#[derive(Debug)]
pub(super) struct Table {
    /// The greatest common divisor of the weights.
    divisor: u32,
    places: Vec<u32>,
    stale: bool,
    /// The next place of the walk.
    next: usize,
}

fn common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Table {
    pub(super) fn new(members: &[Member]) -> Table {
        let divisor = members.iter().fold(0, |divisor, member| common_divisor(divisor, member.weight)).max(1);
        Table { divisor, places: Vec::new(), stale: true, next: 0 }
    }

    pub(super) fn changed(&mut self) {
        self.stale = true;
    }

    fn make(&mut self, side: usize, servers: &Servers) {
        self.stale = false;
        self.places.clear();
        let share = |server: usize| servers.weight[server].div_ceil(WEIGHT_SCALE).div_ceil(self.divisor) as i64;
        let total: i64 = servers.of(side).map(share).sum();
        // Every round raises each score by its server's share and subtracts the whole from the first server with the
        // highest number of wholes, which is at most two here.
        let mut scores = vec![0; servers.weight.len()];
        for _ in 0..total {
            let mut best: Option<(usize, i64)> = None;
            for server in servers.of(side) {
                scores[server] += share(server);
                let wholes = (scores[server] + total) / total;
                if best.is_none_or(|(_, most)| wholes > most) {
                    best = Some((server, wholes));
                }
            }
            if let Some((server, _)) = best {
                scores[server] -= total;
                self.places.push(server as u32);
            }
        }
    }

    pub(super) fn pick(&mut self, side: usize, wish: Wish, servers: &Servers, load: &dyn Load) -> Pick {
        if self.stale {
            self.make(side, servers);
        }
        let Some(hash) = wish.hash else { return self.walk(wish.avoid, load) };
        let server = self.places[hash as usize % self.places.len()] as usize;
        if load.take(server) { Pick::Taken(server) } else { Pick::Wait(server) }
    }

    fn walk(&mut self, avoid: Option<usize>, load: &dyn Load) -> Pick {
        if self.next >= self.places.len() {
            self.next = 0;
        }
        let mut avoided = None;
        for at in (self.next..self.places.len()).chain(0..self.next) {
            let server = self.places[at] as usize;
            if Some(server) == avoid {
                avoided = Some(at);
            } else if load.take(server) {
                self.next = at + 1;
                return Pick::Taken(server);
            }
        }
        match (avoid, avoided) {
            (Some(server), Some(at)) if load.take(server) => {
                self.next = at + 1;
                Pick::Taken(server)
            }
            _ => Pick::Full,
        }
    }
}
