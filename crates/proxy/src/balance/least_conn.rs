//! `balance leastconn`: the server with the fewest requests, served or in its queue, for its weight.
//!
//! Servers are ordered in a tree by the load that they would have with one request more, divided by their weight;
//! servers without requests come first whatever their weight, and equal ones in the order of insertion, so that idle
//! servers take turns. Every start or end of a request moves its server: two operations of O(log n), which is why a
//! thousand servers cost little more than ten.
//!
//! Full servers are skipped; a server with a queue limit (`maxqueue`) is not full before its queue is.

use std::collections::BTreeSet;

use super::{Load, Member, Pick, WEIGHT_MAX};

#[derive(Clone, Copy, Debug)]
struct Place {
    backup: bool,
    weight: u32,
    load: u32,
    key: u32,
    order: u64,
}

#[derive(Debug)]
pub(super) struct LeastConn {
    places: Vec<Place>,
    /// Active servers, backups: (key, order of insertion, server).
    trees: [BTreeSet<(u32, u64, u32)>; 2],
    inserted: u64,
}

fn key(load: u32, weight: u32) -> u32 {
    match load {
        0 => 0,
        // It would take a million requests of a server to come near the end of the range.
        load => ((u64::from(load) + 1) * u64::from(WEIGHT_MAX) / u64::from(weight.max(1))).min(u32::MAX.into()) as u32,
    }
}

impl LeastConn {
    pub(super) fn new(members: &[Member]) -> LeastConn {
        let place = |member: &Member| Place { backup: member.backup, weight: 0, load: 0, key: 0, order: 0 };
        let mut least =
            LeastConn { places: members.iter().map(place).collect(), trees: Default::default(), inserted: 0 };
        for (server, member) in members.iter().enumerate() {
            least.set_weight(server, member.effective);
        }
        least
    }

    fn take_out(&mut self, server: usize) {
        let Place { backup, key, order, .. } = self.places[server];
        self.trees[usize::from(backup)].remove(&(key, order, server as u32));
    }

    fn put_in(&mut self, server: usize) {
        self.inserted += 1;
        let place = &mut self.places[server];
        place.key = key(place.load, place.weight);
        place.order = self.inserted;
        self.trees[usize::from(place.backup)].insert((place.key, place.order, server as u32));
    }

    pub(super) fn set_weight(&mut self, server: usize, weight: u32) {
        if self.places[server].weight > 0 {
            self.take_out(server);
        }
        self.places[server].weight = weight;
        if weight > 0 {
            self.put_in(server);
        }
    }

    pub(super) fn set_load(&mut self, server: usize, load: u32) {
        let place = &mut self.places[server];
        place.load = load;
        if place.weight > 0 && place.key != key(load, place.weight) {
            self.take_out(server);
            self.put_in(server);
        }
    }

    pub(super) fn pick(&self, side: usize, avoid: Option<usize>, load: &dyn Load) -> Pick {
        let try_one = |server: usize| {
            if load.take(server) {
                Some(Pick::Taken(server))
            } else if load.may_queue(server) {
                Some(Pick::Wait(server))
            } else {
                None
            }
        };
        let mut avoided = None;
        for &(_, _, server) in &self.trees[side] {
            let server = server as usize;
            if Some(server) == avoid {
                avoided = Some(server);
            } else if let Some(pick) = try_one(server) {
                return pick;
            }
        }
        avoided.and_then(try_one).unwrap_or(Pick::Full)
    }
}
