//! `balance roundrobin`: weighted, smooth, with weights that may change at any time.
//!
//! The method is HAProxy's "fast weighted round robin", so that the order of servers is the same. Time is a position
//! that advances by one per choice; a round is as long as the sum of the weights. Every server has the position at
//! which it is due next, one step of `round / weight` after its last (the division's remainder accumulates, so no
//! share is lost). Servers that were never used in this round wait in `init`, heaviest first; those that are due in
//! the running round stand in `current` by position; those due later stand in `next`, which becomes `init` when the
//! round ends.
//!
//! Invariant: a usable server stands in exactly one of the three lists of its group, another in none. Backup servers
//! are a group of their own that serves only while the active group is empty, and then only its first usable server.
//!
//! Cost: one choice is a removal and an insertion in a short sorted vector, without allocation; n servers cost
//! O(log n) comparisons and a move of at most 24·n bytes.

use super::{Pick, WEIGHT_SCALE};

const WEIGHT_MAX: u32 = 256 * WEIGHT_SCALE;

/// Which list a server stands in.
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
    usable: usize,
    init: Sorted,
    next: Sorted,
    current: Sorted,
}

/// The balancer of one backend.
#[derive(Debug, Default)]
pub struct RoundRobin {
    entries: Vec<Entry>,
    active: Group,
    backup: Group,
    inserted: u64,
    skipped: Vec<usize>,
}

impl RoundRobin {
    /// A balancer of servers given as `(user weight, backup)`; weight 0 means not usable at first.
    pub fn new(servers: impl IntoIterator<Item = (u32, bool)>) -> RoundRobin {
        let mut balancer = RoundRobin::default();
        for (weight, backup) in servers {
            let weight = weight * WEIGHT_SCALE;
            balancer.entries.push(Entry { weight, backup, ..Entry::default() });
            let group = if backup { &mut balancer.backup } else { &mut balancer.active };
            group.next_weight += weight;
            group.usable += usize::from(weight > 0);
        }
        for group in [&mut balancer.active, &mut balancer.backup] {
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
        if self.entries[server].backup { &mut self.backup } else { &mut self.active }
    }

    /// Usable servers: active, backup.
    pub fn usable(&self) -> (usize, usize) {
        (self.active.usable, self.backup.usable)
    }

    /// Sum of the user weights of the group that serves.
    pub fn total_weight(&self) -> u32 {
        if self.active.usable > 0 {
            self.active.next_weight / WEIGHT_SCALE
        } else {
            self.entries
                .iter()
                .find(|entry| entry.backup && entry.weight > 0)
                .map_or(0, |entry| entry.weight / WEIGHT_SCALE)
        }
    }

    /// Sets a server's user weight; 0 takes it out (also what a server that is down gets).
    pub fn set_weight(&mut self, server: usize, user_weight: u32) {
        let new = user_weight * WEIGHT_SCALE;
        let old = self.entries[server].weight;
        if new == old {
            return;
        }
        let group = self.group(server);
        group.next_weight = group.next_weight - old + new;
        group.usable = group.usable + usize::from(new > 0) - usize::from(old > 0);
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

    /// A server comes back: it is due after one of its steps, counted from the whole of what is left of this round
    /// and the next, so that it isn't flooded.
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

    /// Positions in `next` are relative to the round that follows; makes one absolute again.
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

    /// Puts a server where its position says: the running round or the next.
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

    /// The next server of a group by position alone; it stays in its list.
    fn due(&mut self, backup: bool) -> Option<usize> {
        let group = if backup { &mut self.backup } else { &mut self.active };
        let current = group.current.first();
        if let Some(server) = current
            && self.entries[server].due <= group.position
        {
            return current;
        }
        // Nobody is due at this position: someone who has not served in this round fills the hole.
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

    /// Chooses a server. `take` tries to take a slot of a server; `avoid` is chosen only if nobody else can serve.
    pub fn pick(&mut self, avoid: Option<usize>, mut take: impl FnMut(usize) -> bool) -> Pick {
        if self.active.usable == 0 {
            let first = self.entries.iter().position(|entry| entry.backup && entry.weight > 0);
            return match first {
                Some(server) if take(server) => Pick::Taken(server),
                Some(server) => Pick::Wait(server),
                None => Pick::None,
            };
        }
        let mut switched = false;
        let mut avoided = None;
        let mut skipped = std::mem::take(&mut self.skipped);
        let found = loop {
            let group = &mut self.active;
            if group.weight == 0 {
                group.weight = group.next_weight;
                group.position = group.next_weight;
            }
            let server = match self.due(false) {
                Some(server) => server,
                None if !switched => {
                    switched = true;
                    self.switch_round();
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

    fn switch_round(&mut self) {
        let group = &mut self.active;
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

    fn order(weights: &[u32], picks: usize) -> String {
        let mut balancer = RoundRobin::new(weights.iter().map(|&weight| (weight, false)));
        (0..picks)
            .map(|_| match balancer.pick(None, |_| true) {
                Pick::Taken(server) => (b'a' + server as u8) as char,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn equal_weights_take_turns() {
        assert_eq!(order(&[1, 1, 1], 7), "abcabca");
    }

    #[test]
    fn full_servers_are_skipped_and_backups_wait() {
        let mut balancer = RoundRobin::new([(1, false), (1, false), (1, true), (1, true)]);
        assert_eq!(balancer.pick(None, |server| server == 1), Pick::Taken(1));
        assert_eq!(balancer.pick(None, |_| false), Pick::Full);
        assert_eq!(balancer.pick(Some(0), |_| true), Pick::Taken(1));
        assert_eq!(balancer.pick(Some(0), |server| server == 0), Pick::Taken(0), "the avoided one if nobody else");
        balancer.set_weight(0, 0);
        balancer.set_weight(1, 0);
        assert_eq!(balancer.pick(None, |_| true), Pick::Taken(2), "the first backup only");
        assert_eq!(balancer.pick(None, |_| false), Pick::Wait(2));
        assert_eq!(balancer.total_weight(), 1);
        balancer.set_weight(2, 0);
        balancer.set_weight(3, 0);
        assert_eq!(balancer.pick(None, |_| true), Pick::None);
        balancer.set_weight(1, 5);
        assert_eq!(balancer.pick(None, |_| true), Pick::Taken(1));
    }

    proptest! {
        /// Over whole rounds every server serves its weight, and no window drifts from it by more than two choices.
        #[test]
        fn shares_are_exact_and_smooth(weights in proptest::collection::vec(1u32..=20, 1..8)) {
            let total: u32 = weights.iter().sum();
            let mut balancer = RoundRobin::new(weights.iter().map(|&weight| (weight, false)));
            let mut counts = vec![0u32; weights.len()];
            for pick in 1..=(total * 32) {
                match balancer.pick(None, |_| true) {
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
        /// only usable ones.
        #[test]
        fn changes_never_lose_a_server(
            servers in 1usize..6,
            steps in proptest::collection::vec((0usize..6, 0u32..=256, any::<u8>()), 1..300),
        ) {
            let mut balancer = RoundRobin::new((0..servers).map(|server| (1, server == 5)));
            let mut weights = vec![1u32; servers];
            for (server, weight, full) in steps {
                let server = server % servers;
                if weight % 3 == 0 {
                    balancer.set_weight(server, weight);
                    weights[server] = weight;
                }
                let free = |candidate: usize| full & (1 << candidate) == 0;
                let avoid = (full & 0x80 != 0).then_some(server);
                let picked = balancer.pick(avoid, free);
                let active = (0..servers).filter(|&s| s != 5 && weights[s] > 0).collect::<Vec<_>>();
                match picked {
                    Pick::Taken(chosen) => {
                        prop_assert!(weights[chosen] > 0 && free(chosen));
                        prop_assert!(active.is_empty() || active.contains(&chosen));
                    }
                    Pick::Full => prop_assert!(active.iter().all(|&s| !free(s)) && !active.is_empty()),
                    Pick::Wait(chosen) => prop_assert!(active.is_empty() && weights[chosen] > 0 && !free(chosen)),
                    Pick::None => prop_assert!(weights.iter().all(|&w| w == 0)),
                }
                for (index, weight) in weights.iter().enumerate() {
                    prop_assert_eq!(balancer.entries[index].place == Place::Out, *weight == 0);
                }
            }
        }
    }
}
