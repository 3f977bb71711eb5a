//! `balance roundrobin`: weighted, smooth round robin with weights that may change at any time.
//!
//! The method is HAProxy's "fast weighted round robin", so that the order of servers is the same. Time is a position
//! that advances by one per choice; a round is as long as the sum of the weights. Every server has a due position, one
//! step of `round / weight` after its last (the division's remainder accumulates, so no share is lost). Servers not yet
//! used in this round wait in `init`, heaviest first; those due in the current round are in `current`, sorted by
//! position; those due later are in `next`, which becomes `init` when the round ends.
//!
//! Invariant: a usable server is in exactly one of the three lists of its group, another server in none. Active servers
//! and backups are separate groups.
//!
//! Cost: one choice is a removal and an insertion in a short sorted vector, without allocation; n servers cost
//! O(log n) comparisons and a move of at most 24·n bytes.

use super::{Pick, WEIGHT_MAX, WEIGHT_SCALE};

/// The list that contains a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Out,
    Init,
    Next,
    Current,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    backup: bool,
    weight: u32,
    place: Place,
    key: u64,
    order: u64,
    last: u32,
    due: u32,
    rest: u32,
}

/// Servers sorted so that the first to serve is the last element; equal keys serve in order of insertion.
#[derive(Debug, Default)]
struct Sorted(Vec<(u64, u64, usize)>);

impl Sorted {
    fn insert(&mut self, key: u64, order: u64, server: usize) {
        let at = self.0.partition_point(|&(k, o, _)| (k, o) > (key, order));
        self.0.insert(at, (key, order, server));
    }

    fn remove(&mut self, key: u64, order: u64) {
        let at = self.0.partition_point(|&(k, o, _)| (k, o) > (key, order));
        debug_assert_eq!(self.0.get(at).map(|&(k, o, _)| (k, o)), Some((key, order)));
        self.0.remove(at);
    }

    fn first(&self) -> Option<usize> {
        self.0.last().map(|&(_, _, server)| server)
    }
}

#[derive(Debug, Default)]
struct Group {
    position: u32,
    weight: u32,
    next_weight: u32,
    init: Sorted,
    next: Sorted,
    current: Sorted,
}

/// The positions of a backend's servers.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    entries: Vec<Entry>,
    /// Active servers, backups.
    groups: [Group; 2],
    inserted: u64,
    skipped: Vec<usize>,
}

impl RoundRobin {
    /// Returns the positions for servers given as `(effective weight, backup)`; a weight of 0 means initially unusable.
    pub(super) fn new(servers: impl IntoIterator<Item = (u32, bool)>) -> RoundRobin {
        let mut balancer = RoundRobin::default();
        for (weight, backup) in servers {
            balancer.entries.push(Entry { weight, backup, ..Entry::default() });
            balancer.groups[usize::from(backup)].next_weight += weight;
        }
        for group in &mut balancer.groups {
            group.weight = group.next_weight;
            group.position = group.next_weight;
        }
        for server in 0..balancer.entries.len() {
            if balancer.entries[server].weight > 0 {
                balancer.place_by_weight(server, Place::Init);
            }
        }
        balancer.skipped.reserve(balancer.entries.len());
        balancer
    }

    fn group(&mut self, server: usize) -> &mut Group {
        &mut self.groups[usize::from(self.entries[server].backup)]
    }

    /// Sets a server's effective weight; 0 removes it.
    pub(super) fn set_weight(&mut self, server: usize, new: u32) {
        let old = self.entries[server].weight;
        if new == old {
            return;
        }
        let group = self.group(server);
        group.next_weight = group.next_weight - old + new;
        if new == 0 {
            self.take_out(server);
            self.entries[server].weight = 0;
        } else if old == 0 {
            self.entries[server].weight = new;
            self.enter(server);
        } else {
            self.reweigh(server, new);
        }
    }

    /// Inserts a returning server: it is due after one of its steps, counted from the rest of this round and the next,
    /// so that it isn't flooded.
    fn enter(&mut self, server: usize) {
        let weight = self.entries[server].weight;
        let group = self.group(server);
        let ahead = (group.next_weight + group.weight).saturating_sub(group.position);
        let due = group.position + ahead / weight;
        self.entries[server].due = due;
        self.place(server);
    }

    fn reweigh(&mut self, server: usize, new: u32) {
        let place = self.entries[server].place;
        if place == Place::Init {
            self.take_out(server);
            self.entries[server].weight = new;
            self.place_by_weight(server, Place::Init);
            return;
        }
        self.undo_next(server);
        self.take_out(server);
        let group = self.group(server);
        let (position, step) = (group.position, group.next_weight / new);
        let entry = &mut self.entries[server];
        entry.weight = new;
        entry.rest = 0;
        entry.due = (entry.last + step).min(entry.due);
        if entry.due < position + 2 {
            entry.due = position + step;
        }
        self.place(server);
    }

    /// Makes a position absolute again; positions in `next` are relative to the round that follows.
    fn undo_next(&mut self, server: usize) {
        if self.entries[server].place == Place::Next {
            let weight = self.group(server).weight;
            self.entries[server].due += weight;
        }
    }

    fn take_out(&mut self, server: usize) {
        let Entry { place, key, order, .. } = self.entries[server];
        let group = self.group(server);
        match place {
            Place::Out => return,
            Place::Init => group.init.remove(key, order),
            Place::Next => group.next.remove(key, order),
            Place::Current => group.current.remove(key, order),
        }
        self.entries[server].place = Place::Out;
    }

    fn insert(&mut self, server: usize, place: Place, key: u64) {
        self.inserted += 1;
        let order = self.inserted;
        let entry = &mut self.entries[server];
        (entry.place, entry.key, entry.order) = (place, key, order);
        let group = self.group(server);
        match place {
            Place::Out => {}
            Place::Init => group.init.insert(key, order, server),
            Place::Next => group.next.insert(key, order, server),
            Place::Current => group.current.insert(key, order, server),
        }
    }

    fn place_by_weight(&mut self, server: usize, place: Place) {
        let key = u64::from(WEIGHT_MAX - self.entries[server].weight);
        self.insert(server, place, key);
    }

    /// Inserts a server by its position: in the current round or the next.
    fn place(&mut self, server: usize) {
        let (weight, next_weight) = {
            let group = self.group(server);
            (group.weight, group.next_weight)
        };
        let Entry { due, rest, weight: own, .. } = self.entries[server];
        if due >= 2 * weight || due >= weight + next_weight {
            self.entries[server].due -= weight;
            self.place_by_weight(server, Place::Next);
        } else {
            // Among servers due at one position the heavier goes first.
            let key = 256 * u64::from(due) + u64::from((WEIGHT_MAX + rest - own) / WEIGHT_SCALE);
            self.insert(server, Place::Current, key);
        }
    }

    /// Returns the next server of a group by position alone; it stays in its list.
    fn due(&mut self, side: usize) -> Option<usize> {
        let group = &self.groups[side];
        let current = group.current.first();
        if let Some(server) = current
            && self.entries[server].due <= group.position
        {
            return current;
        }
        // No server is due at this position: one that has not served in this round fills the gap.
        if let Some(server) = group.init.first() {
            self.entries[server].due = 0;
            self.entries[server].rest = 0;
            return Some(server);
        }
        current
    }

    fn advance(&mut self, server: usize) {
        let group = self.group(server);
        let (position, round) = (group.position, group.next_weight);
        group.position += 1;
        let entry = &mut self.entries[server];
        entry.last = if entry.due == 0 { position } else { entry.due };
        entry.due = entry.last + round / entry.weight;
        entry.rest += round % entry.weight;
        if entry.rest >= entry.weight {
            entry.rest -= entry.weight;
            entry.due += 1;
        }
    }

    /// Chooses a server of a side. `take` tries to acquire a slot of a server; `avoid` is chosen only if no other
    /// server can serve.
    pub(super) fn pick(&mut self, side: usize, avoid: Option<usize>, mut take: impl FnMut(usize) -> bool) -> Pick {
        let mut switched = false;
        let mut avoided = None;
        let mut skipped = std::mem::take(&mut self.skipped);
        let found = loop {
            let group = &mut self.groups[side];
            if group.weight == 0 {
                group.weight = group.next_weight;
                group.position = group.next_weight;
            }
            let server = match self.due(side) {
                Some(server) => server,
                None if !switched => {
                    switched = true;
                    self.switch_round(side);
                    continue;
                }
                None => break None,
            };
            self.advance(server);
            self.take_out(server);
            if Some(server) == avoid {
                avoided = Some(server);
            } else if take(server) {
                break Some(server);
            }
            skipped.push(server);
        };
        let found = found.or_else(|| avoided.filter(|&server| take(server)));
        if let Some(server) = found {
            self.place(server);
        }
        // The last one skipped goes first, which is the order in which HAProxy puts them back.
        for server in skipped.drain(..).rev() {
            if found != Some(server) {
                self.place(server);
            }
        }
        self.skipped = skipped;
        found.map_or(Pick::Full, Pick::Taken)
    }

    fn switch_round(&mut self, side: usize) {
        let group = &mut self.groups[side];
        std::mem::swap(&mut group.init, &mut group.next);
        group.weight = group.next_weight;
        group.position = group.weight;
        for &(_, _, server) in &group.init.0 {
            self.entries[server].place = Place::Init;
        }
        for &(_, _, server) in &group.next.0 {
            self.entries[server].place = Place::Next;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn balancer(weights: impl IntoIterator<Item = (u32, bool)>) -> RoundRobin {
        RoundRobin::new(weights.into_iter().map(|(weight, backup)| (weight * WEIGHT_SCALE, backup)))
    }

    proptest! {
        /// Over whole rounds every server serves its weight, and no window drifts from it by more than two choices.
        #[test]
        fn shares_are_exact_and_smooth(weights in proptest::collection::vec(1u32..=20, 1..8)) {
            let total: u32 = weights.iter().sum();
            let mut balancer = balancer(weights.iter().map(|&weight| (weight, false)));
            let mut counts = vec![0u32; weights.len()];
            for pick in 1..=(total * 32) {
                match balancer.pick(0, None, |_| true) {
                    Pick::Taken(server) => counts[server] += 1,
                    other => panic!("{other:?}"),
                }
                for (count, weight) in counts.iter().zip(&weights) {
                    let fair = f64::from(pick) * f64::from(*weight) / f64::from(total);
                    prop_assert!((f64::from(*count) - fair).abs() <= 3.0, "{counts:?} of {weights:?} after {pick}");
                }
            }
        }

        /// Any sequence of weight changes, full servers and choices keeps every usable server in one list and chooses
        /// only usable ones of the side that is asked for.
        #[test]
        fn changes_never_lose_a_server(
            servers in 1usize..6,
            steps in proptest::collection::vec((0usize..6, 0u32..=4096, any::<u8>()), 1..300),
        ) {
            let mut balancer = balancer((0..servers).map(|server| (1, server >= 3)));
            let mut weights = vec![WEIGHT_SCALE; servers];
            for (server, weight, full) in steps {
                let server = server % servers;
                if weight % 3 == 0 {
                    balancer.set_weight(server, weight);
                    weights[server] = weight;
                }
                let free = |candidate: usize| full & (1 << candidate) == 0;
                let avoid = (full & 0x80 != 0).then_some(server);
                let side = usize::from(full & 0x40 != 0);
                let mut usable = (0..servers).filter(|&s| (s >= 3) == (side == 1) && weights[s] > 0);
                match balancer.pick(side, avoid, free) {
                    Pick::Taken(chosen) => prop_assert!(usable.any(|s| s == chosen) && free(chosen)),
                    Pick::Full => prop_assert!(usable.all(|s| !free(s))),
                    other => panic!("{other:?}"),
                }
                for (index, weight) in weights.iter().enumerate() {
                    prop_assert_eq!(balancer.entries[index].place == Place::Out, *weight == 0);
                }
            }
        }
    }
}
