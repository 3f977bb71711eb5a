//! The ring of `hash-type consistent` and of `balance random`: every server has points on it in proportion to its
//! weight, and a hash selects the server with the nearest point. Adding or removing a server moves only the hashes
//! nearest to its own points.
//!
//! A server's points are computed from its number (or its address, see `hash-key`), not from its place in the file, 16
//! for each unit of weight (fewer in slow start). They form one sorted array: a look-up is a binary search, a change of
//! weight moves the array, which is rare.
//!
//! `hash-balance-factor` skips servers that have more than their share of the load; requests without a key walk around
//! the ring. `random` draws several servers and chooses the one with the fewest requests for its weight; if that is
//! full, it chooses the next one of the file that has a free slot (HAProxy would queue the request).

use sluicegate_config::model::Affinity;

use super::hash::full_hash;
use super::{Load, Member, Method, Pick, Servers, Wish};
use crate::random::random;

/// A point on the ring; points at the same position are ordered by their insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    position: u32,
    order: u32,
    server: u32,
    /// The number of the point among the server's.
    number: u32,
}

#[derive(Debug)]
pub(super) struct Ring {
    /// Active servers, backups; sorted.
    places: [Vec<Place>; 2],
    /// The number of points of each server.
    counts: Vec<u32>,
    seeds: Box<[u32]>,
    /// The sum of the weights of the usable servers of the same side before each server.
    before: Vec<u32>,
    inserted: u32,
    /// The position of the walk of requests without a key.
    last: Option<(u32, u32)>,
    factor: u32,
    affinity: Affinity,
    /// The number of servers to draw, without a key.
    draws: Option<u32>,
}

impl Ring {
    pub(super) fn new(members: &[Member], method: &Method, draws: Option<u32>) -> Ring {
        let mut ring = Ring {
            places: Default::default(),
            counts: vec![0; members.len()],
            seeds: members.iter().map(|member| member.seed).collect(),
            before: vec![0; members.len()],
            inserted: 0,
            last: None,
            factor: method.factor,
            affinity: method.affinity,
            draws,
        };
        for (server, member) in members.iter().enumerate() {
            ring.add(server, member.backup, member.effective);
        }
        ring.places.iter_mut().for_each(|places| places.sort_unstable());
        let servers = Servers::new(members, method.all_backups);
        ring.sum_up(&servers);
        ring
    }

    /// Appends a server's missing points up to this number; the caller sorts.
    fn add(&mut self, server: usize, backup: bool, count: u32) {
        for number in self.counts[server]..count {
            self.inserted = self.inserted.wrapping_add(1);
            let position = full_hash(self.seeds[server].wrapping_add(number));
            let place = Place { position, order: self.inserted, server: server as u32, number };
            self.places[usize::from(backup)].push(place);
        }
        self.counts[server] = self.counts[server].max(count);
    }

    fn sum_up(&mut self, servers: &Servers) {
        let mut sums = [0, 0];
        for (server, before) in self.before.iter_mut().enumerate() {
            let sum = &mut sums[usize::from(servers.backup[server])];
            *before = *sum;
            *sum += servers.weight[server];
        }
    }

    pub(super) fn set_weight(&mut self, server: usize, servers: &Servers) {
        let (backup, count) = (servers.backup[server], servers.weight[server]);
        let side = usize::from(backup);
        if count < self.counts[server] {
            self.counts[server] = count;
            let goes = |place: &Place| place.server as usize == server && place.number >= count;
            self.last = self.last.and_then(|last| self.after_removal(last, side, goes));
            self.places[side].retain(|place| !goes(place));
        } else {
            self.add(server, backup, count);
            self.places[side].sort_unstable();
        }
        self.sum_up(servers);
    }

    /// Recomputes a server's points after its seed has changed.
    pub(super) fn set_seed(&mut self, server: usize, seed: u32, servers: &Servers) {
        if self.seeds[server] == seed {
            return;
        }
        let (backup, side) = (servers.backup[server], usize::from(servers.backup[server]));
        let goes = |place: &Place| place.server as usize == server;
        self.last = self.last.and_then(|last| self.after_removal(last, side, goes));
        self.places[side].retain(|place| !goes(place));
        (self.seeds[server], self.counts[server]) = (seed, 0);
        self.add(server, backup, servers.weight[server]);
        self.places[side].sort_unstable();
    }

    /// Returns the position of the walk after points were removed: a removed point is replaced by its predecessor.
    fn after_removal(&self, last: (u32, u32), side: usize, goes: impl Fn(&Place) -> bool) -> Option<(u32, u32)> {
        let places = &self.places[side];
        let Ok(at) = places.binary_search_by_key(&last, |place| (place.position, place.order)) else {
            // It stands among the servers of the other side.
            return Some(last);
        };
        let (behind, ahead) = places.split_at(at);
        let next = ahead.iter().chain(behind).find(|place| !goes(place))?;
        Some((next.position, next.order))
    }

    pub(super) fn pick(&mut self, side: usize, wish: Wish, servers: &Servers, load: &dyn Load) -> Pick {
        if let Some(draws) = self.draws {
            return self.draw(draws, side, wish.avoid, servers, load);
        }
        let Some(hash) = wish.hash else { return self.walk(side, wish.avoid, load) };
        let server = self.find(hash, side, wish.avoid, servers, load);
        if load.take(server) { Pick::Taken(server) } else { Pick::Wait(server) }
    }

    /// Returns the server at a hash's position, or the next one that is not skipped.
    fn find(&self, hash: u32, side: usize, avoid: Option<usize>, servers: &Servers, load: &dyn Load) -> usize {
        let places = &self.places[side];
        let next = match places.partition_point(|place| place.position < hash) {
            end if end == places.len() => 0,
            next => next,
        };
        let before = next.checked_sub(1).unwrap_or(places.len() - 1);
        let distance_before = hash.wrapping_sub(places[before].position);
        let distance_next = places[next].position.wrapping_sub(hash);
        let start = if distance_before <= distance_next { before } else { next };
        let mut at = start;
        // A second wrap-around means that no further server is left; HAProxy stops at the same place.
        let mut wraps = 0;
        loop {
            let server = places[at].server as usize;
            let passed_over = Some(server) == avoid
                || (self.factor > 0 && !self.has_share_left(server, side, servers, load))
                || self.is_saturated(server, load);
            if !passed_over {
                return server;
            }
            at += 1;
            if at == places.len() {
                wraps += 1;
                if wraps > 1 {
                    return server;
                }
                at = 0;
            }
        }
    }

    /// Returns whether a server has served less than its share of `hash-balance-factor` percent of the average. Slots
    /// are given in whole numbers by weight, and the remainder by index, so that none is lost to rounding.
    fn has_share_left(&self, server: usize, side: usize, servers: &Servers, load: &dyn Load) -> bool {
        let slots = (u64::from(load.all_served()) + 1) * u64::from(self.factor);
        let slots = slots.div_ceil(100);
        let total = u64::from(servers.totals[side].weight).max(1);
        let (own, before) = (u64::from(servers.weight[server]), u64::from(self.before[server]));
        let (each, rest) = (slots / total, slots % total);
        let share = own * each + (before + own) * rest / total - before * rest / total;
        u64::from(load.served(server)) < share.max(1)
    }

    fn is_saturated(&self, server: usize, load: &dyn Load) -> bool {
        match self.affinity {
            Affinity::Always => false,
            Affinity::Maxconn => load.is_full(server),
            Affinity::Maxqueue => load.queue_is_full(server),
        }
    }

    /// Chooses, for a request without a key, the next point of the ring whose server has a free slot.
    fn walk(&mut self, side: usize, avoid: Option<usize>, load: &dyn Load) -> Pick {
        let places = &self.places[side];
        let key = |place: &Place| (place.position, place.order);
        let start = self.last.map_or(0, |last| places.partition_point(|place| key(place) <= last));
        let around = (start..places.len()).chain(0..start);
        let mut avoided = None;
        let mut full = usize::MAX;
        for at in around {
            let server = places[at].server as usize;
            if Some(server) == avoid {
                avoided = Some(at);
            } else if server != full {
                if load.take(server) {
                    self.last = Some(key(&places[at]));
                    return Pick::Taken(server);
                }
                full = server;
            }
        }
        match (avoid, avoided) {
            (Some(server), Some(at)) if load.take(server) => {
                self.last = Some(key(&places[at]));
                Pick::Taken(server)
            }
            _ => Pick::Full,
        }
    }

    fn draw(&self, draws: u32, side: usize, avoid: Option<usize>, servers: &Servers, load: &dyn Load) -> Pick {
        let mut best: Option<usize> = None;
        for _ in 0..draws {
            let hash = random() as u32;
            let server = self.find(hash, side, avoid, servers, load);
            // Compares requests per weight by cross-multiplication; equal servers: the later one wins.
            let worse = |than: usize| {
                u64::from(load.served(server)) * u64::from(servers.weight[than])
                    > u64::from(load.served(than)) * u64::from(servers.weight[server])
            };
            if best.is_none_or(|best| !worse(best)) {
                best = Some(server);
            }
        }
        let Some(best) = best else { return Pick::Full };
        if load.take(best) {
            return Pick::Taken(best);
        }
        let (behind, ahead): (Vec<usize>, Vec<usize>) = servers.of(side).partition(|server| *server < best);
        let others = || ahead.iter().chain(&behind).copied();
        let (last, first): (Vec<usize>, Vec<usize>) = others().partition(|server| Some(*server) == avoid);
        let found = first.into_iter().chain(last).find(|server| load.take(*server));
        found.map_or(Pick::Full, Pick::Taken)
    }
}
