//! Properties of every algorithm, and the choices of each one.

use std::cell::RefCell;
use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_config::model::{Affinity, Balance, HashFunction, HashKey, HashType};

use super::*;

/// Servers with limits, without a backend around them.
#[derive(Default)]
struct Slots {
    /// (limit, served, limit of the queue, queued); 0: no limit.
    servers: RefCell<Vec<(u32, u32, u32, u32)>>,
}

impl Slots {
    fn new(count: usize) -> Slots {
        Slots { servers: RefCell::new(vec![(0, 0, 0, 0); count]) }
    }

    fn set(&self, server: usize, limit: u32, served: u32, queue: u32, queued: u32) {
        self.servers.borrow_mut()[server] = (limit, served, queue, queued);
    }
}

impl Load for Slots {
    fn take(&self, server: usize) -> bool {
        let (limit, served, _, queued) = &mut self.servers.borrow_mut()[server];
        let free = *queued == 0 && (*limit == 0 || served < limit);
        *served += u32::from(free);
        free
    }
    fn may_queue(&self, server: usize) -> bool {
        let (limit, _, queue, queued) = self.servers.borrow()[server];
        limit > 0 && queue > 0 && queued < queue
    }
    fn served(&self, server: usize) -> u32 {
        self.servers.borrow()[server].1
    }
    fn in_flight(&self, server: usize) -> u32 {
        self.servers.borrow()[server].1 + self.servers.borrow()[server].3
    }
    fn all_served(&self) -> u32 {
        self.servers.borrow().iter().map(|server| server.1).sum()
    }
    fn is_full(&self, server: usize) -> bool {
        let (limit, served, _, _) = self.servers.borrow()[server];
        limit > 0 && served >= limit
    }
    fn queue_is_full(&self, server: usize) -> bool {
        let (limit, _, queue, queued) = self.servers.borrow()[server];
        limit > 0 && queue > 0 && queued >= queue
    }
}

fn members(weights: &[(u32, bool)]) -> Vec<Member> {
    let member = |(number, &(weight, backup)): (u32, &(u32, bool))| Member {
        weight,
        effective: weight * WEIGHT_SCALE,
        backup,
        number,
        seed: number * 4096,
    };
    (1..).zip(weights).map(member).collect()
}

fn hashing(consistent: bool) -> Method {
    let hash_type = HashType { consistent, function: HashFunction::None, avalanche: false };
    Method { balance: Balance::Hash(Arc::new(HashKey::Source)), hash_type, ..Method::default() }
}

fn plain(balance: Balance) -> Method {
    Method { balance, ..Method::default() }
}

fn every_method() -> Vec<Method> {
    let algorithms = [
        Balance::RoundRobin,
        Balance::StaticRoundRobin,
        Balance::LeastConn,
        Balance::First,
        Balance::Random(1),
        Balance::Random(2),
    ];
    algorithms.into_iter().map(plain).chain([hashing(false), hashing(true)]).collect()
}

fn anyone() -> Wish {
    Wish::default()
}

fn of(hash: u32) -> Wish {
    Wish { hash: Some(hash), avoid: None }
}

#[test]
fn backups_serve_one_by_one_or_all_of_them() {
    for method in every_method() {
        for all_backups in [false, true] {
            let method = Method { all_backups, ..method.clone() };
            let mut balancer = Balancer::new(&method, &members(&[(1, false), (1, true), (1, true)]));
            let slots = Slots::new(3);
            assert_eq!(balancer.pick(anyone(), &slots), Pick::Taken(0), "{method:?}");
            assert_eq!(balancer.usable(), (1, 2));
            balancer.set_weight(0, 0);
            let mut seen = [0; 3];
            for hash in 0..64u32 {
                match balancer.pick(of(hash.wrapping_mul(0x0505_0505)), &slots) {
                    Pick::Taken(server) => seen[server] += 1,
                    other => panic!("{method:?}: {other:?}"),
                }
            }
            // `first` fills its first server, which has no limit here.
            let both = all_backups && !matches!(method.balance, Balance::First);
            assert_eq!((seen[0], seen[1] > 0, seen[2] > 0), (0, true, both), "{method:?}");
            assert_eq!(balancer.total_weight(), if all_backups { 2 } else { 1 });
            let serving = [0, 1, 2].map(|server| balancer.serves_any(server));
            assert_eq!(serving, [false, true, all_backups], "{method:?}");
            balancer.set_weight(1, 0);
            balancer.set_weight(2, 0);
            assert_eq!(balancer.pick(anyone(), &slots), Pick::None, "{method:?}");
            balancer.set_weight(0, 16);
            assert_eq!(balancer.pick(anyone(), &slots), Pick::Taken(0), "{method:?}");
        }
    }
}

#[test]
fn the_only_backup_is_waited_for() {
    let mut balancer = Balancer::new(&plain(Balance::RoundRobin), &members(&[(0, false), (1, true)]));
    let slots = Slots::new(2);
    slots.set(1, 1, 1, 0, 0);
    assert_eq!(balancer.pick(anyone(), &slots), Pick::Wait(1));
}

#[test]
fn full_servers_are_passed_over_except_by_a_hash() {
    for method in every_method() {
        let mut balancer = Balancer::new(&method, &members(&[(1, false), (1, false), (1, false)]));
        let slots = Slots::new(3);
        (0..3).for_each(|server| slots.set(server, 1, u32::from(server != 1), 0, 0));
        for server in 0..3 {
            balancer.load_changed(server, slots.in_flight(server));
        }
        assert_eq!(balancer.pick(anyone(), &slots), Pick::Taken(1), "{method:?}");
        assert_eq!(balancer.pick(anyone(), &slots), Pick::Full, "{method:?}");
        if let Balance::Hash(_) = method.balance {
            assert!(matches!(balancer.pick(of(7), &slots), Pick::Wait(_)), "{method:?}");
        }
    }
}

#[test]
fn who_failed_is_chosen_only_if_nobody_else_can_serve() {
    for method in every_method() {
        let mut balancer = Balancer::new(&method, &members(&[(1, false), (9, false)]));
        let slots = Slots::new(2);
        for _ in 0..20 {
            assert_eq!(balancer.pick(Wish { hash: None, avoid: Some(1) }, &slots), Pick::Taken(0), "{method:?}");
        }
        slots.set(0, 1, 1, 0, 0);
        balancer.load_changed(0, 1);
        assert_eq!(balancer.pick(Wish { hash: None, avoid: Some(1) }, &slots), Pick::Taken(1), "{method:?}");
    }
}

#[test]
fn the_least_busy_for_its_weight_serves() {
    let mut balancer = Balancer::new(&plain(Balance::LeastConn), &members(&[(1, false), (3, false), (1, false)]));
    let slots = Slots::new(3);
    let mut order = String::new();
    for _ in 0..10 {
        match balancer.pick(anyone(), &slots) {
            Pick::Taken(server) => order.push((b'a' + server as u8) as char),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(order, "abcbbbbacb", "{:?}", slots.servers);
    // A server whose queue has room is waited for where its turn comes.
    (0..3).for_each(|server| slots.set(server, 2, 2, 0, 0));
    slots.set(1, 2, 2, 4, 1);
    (0..3).for_each(|server| balancer.load_changed(server, slots.in_flight(server)));
    assert_eq!(balancer.pick(anyone(), &slots), Pick::Wait(1));
    slots.set(1, 2, 2, 4, 4);
    balancer.load_changed(1, 6);
    assert_eq!(balancer.pick(anyone(), &slots), Pick::Full);
}

#[test]
fn first_fills_servers_by_their_numbers() {
    let mut members = members(&[(1, false), (1, false), (256, false)]);
    (members[0].number, members[1].number, members[2].number) = (30, 10, 20);
    let mut balancer = Balancer::new(&plain(Balance::First), &members);
    let slots = Slots::new(3);
    (0..3).for_each(|server| slots.set(server, 2, 0, 0, 0));
    let order: Vec<_> = (0..7).map(|_| balancer.pick(anyone(), &slots)).collect();
    let taken = Pick::Taken;
    assert_eq!(order, [taken(1), taken(1), taken(2), taken(2), taken(0), taken(0), Pick::Full]);
}

#[test]
fn random_keeps_to_weights_and_to_who_is_less_busy() {
    for (draws, [least, most]) in [(1, [2_600, 3_400]), (8, [2_990, 3_010])] {
        let mut balancer = Balancer::new(&plain(Balance::Random(draws)), &members(&[(1, false), (3, false)]));
        let slots = Slots::new(2);
        for _ in 0..4_000 {
            assert!(matches!(balancer.pick(anyone(), &slots), Pick::Taken(_)));
        }
        let heavier = slots.served(1);
        assert!((least..=most).contains(&heavier), "{draws} draws: {heavier} of 4,000");
    }
}

#[test]
fn a_ring_moves_only_what_was_a_servers() {
    let mut balancer = Balancer::new(&hashing(true), &members(&[(1, false), (2, false), (1, false), (1, false)]));
    let slots = Slots::new(4);
    let hashes = || (0..2_000u32).map(full_hash);
    let chosen = |balancer: &mut Balancer| -> Vec<usize> {
        let pick = |hash| match balancer.pick(of(hash), &slots) {
            Pick::Taken(server) => server,
            other => panic!("{other:?}"),
        };
        hashes().map(pick).collect()
    };
    let before = chosen(&mut balancer);
    balancer.set_weight(2, 0);
    for (was, is) in before.iter().zip(chosen(&mut balancer)) {
        assert!(is != 2 && (*was == 2 || *was == is));
    }
    balancer.set_weight(2, 16);
    assert_eq!(chosen(&mut balancer), before);
    balancer.set_weight(1, 64);
    for (was, is) in before.iter().zip(chosen(&mut balancer)) {
        assert!(is == 1 || *was == is);
    }
    balancer.set_weight(1, 32);
    assert_eq!(chosen(&mut balancer), before);
}

/// After its seed has changed, a server is chosen as if it had always had that seed.
#[test]
fn places_follow_from_what_a_server_is_known_by() {
    let given = [(2, false), (1, false), (3, false), (1, true)];
    let slots = Slots::new(4);
    let chosen = |balancer: &mut Balancer| -> Vec<Pick> {
        (0..500u32).map(|key| balancer.pick(of(full_hash(key)), &slots)).collect()
    };
    let mut other = members(&given);
    other[2].seed = 77;
    other[3].seed = 78;
    let mut always = Balancer::new(&hashing(true), &other);
    let mut moved = Balancer::new(&hashing(true), &members(&given));
    assert_ne!(chosen(&mut moved), chosen(&mut always));
    moved.set_seed(2, 77);
    moved.set_seed(3, 78);
    assert_eq!(chosen(&mut moved), chosen(&mut always));
    // One that is out has no places, and gets the new ones when it comes back.
    moved.set_weight(0, 0);
    moved.set_seed(0, 79);
    moved.set_seed(0, members(&given)[0].seed);
    moved.set_weight(0, 2 * WEIGHT_SCALE);
    assert_eq!(chosen(&mut moved), chosen(&mut always));
}

#[test]
fn a_factor_bounds_how_busy_a_server_gets() {
    let method = Method { factor: 125, ..hashing(true) };
    let mut balancer = Balancer::new(&method, &members(&[(1, false), (1, false), (2, false)]));
    let slots = Slots::new(3);
    for total in 1..=400u32 {
        assert!(matches!(balancer.pick(of(0x1234_5678), &slots), Pick::Taken(_)));
        for (server, weight) in [(0, 1), (1, 1), (2, 2)] {
            let bound = (total * 125 * weight).div_ceil(400) + 1;
            assert!(slots.served(server) <= bound, "{server} of {total}: {:?}", slots.servers);
        }
    }
    assert!((0..3).all(|server| slots.served(server) >= 25), "{:?}", slots.servers);
}

#[test]
fn affinity_gives_way_to_limits_where_it_is_told_to() {
    for (affinity, full, queue_full) in
        [(Affinity::Always, true, true), (Affinity::Maxconn, false, false), (Affinity::Maxqueue, true, false)]
    {
        let method = Method { affinity, ..hashing(true) };
        let mut balancer = Balancer::new(&method, &members(&[(1, false), (1, false)]));
        let slots = Slots::new(2);
        let Pick::Taken(own) = balancer.pick(of(99), &slots) else { panic!("it is free") };
        let waits = |balancer: &mut Balancer| balancer.pick(of(99), &slots) == Pick::Wait(own);
        slots.set(own, 1, 1, 2, 0);
        assert_eq!(waits(&mut balancer), full, "{affinity:?}");
        slots.set(own, 1, 1, 2, 2);
        assert_eq!(waits(&mut balancer), queue_full, "{affinity:?}");
    }
}

proptest! {
    /// Any sequence of weights, loads and choices: the chosen server is usable and on the serving side, and no request
    /// is refused while a server is free, except by a hash.
    #[test]
    fn choices_are_usable(
        steps in proptest::collection::vec((0usize..5, 0u32..=256, any::<u8>(), any::<u32>()), 1..120),
        which in 0usize..8,
        all_backups: bool,
    ) {
        let method = Method { all_backups, ..every_method().swap_remove(which) };
        let mut weights = [1u32, 1, 1, 1, 1];
        let backup = [false, false, false, true, true];
        let given: Vec<_> = weights.iter().copied().zip(backup).collect();
        let mut balancer = Balancer::new(&method, &members(&given));
        let slots = Slots::new(5);
        for (server, weight, full, hash) in steps {
            if weight % 3 == 0 {
                let weight = if method.is_dynamic() { weight * 5 } else { WEIGHT_SCALE * u32::from(weight > 99) };
                balancer.set_weight(server, weight);
                weights[server] = weight;
            }
            for server in 0..5 {
                slots.set(server, 1, u32::from(full & (1 << server) != 0), 0, 0);
                balancer.load_changed(server, slots.in_flight(server));
            }
            let usable = |side: bool| (0..5).filter(move |&s| backup[s] == side && weights[s] > 0).collect::<Vec<_>>();
            let mut serving = usable(false);
            if serving.is_empty() {
                serving = usable(true);
                serving.truncate(if all_backups { 5 } else { 1 });
            }
            let free = |server: &usize| full & (1 << server) == 0;
            let keyed = matches!(method.balance, Balance::Hash(_)) && hash % 2 == 0;
            let wish = Wish { hash: keyed.then_some(hash), avoid: (full & 0x80 != 0).then_some(server) };
            match balancer.pick(wish, &slots) {
                Pick::Taken(chosen) => prop_assert!(serving.contains(&chosen) && free(&chosen)),
                Pick::Wait(chosen) => prop_assert!(serving.contains(&chosen) && !free(&chosen)),
                Pick::Full => prop_assert!(!serving.is_empty() && !serving.iter().any(free) && !keyed),
                Pick::None => prop_assert!(serving.is_empty()),
            }
            prop_assert_eq!((0..5).filter(|s| balancer.serves_any(*s)).collect::<Vec<_>>(), serving);
        }
    }
}

#[test]
fn a_sticky_server_is_left_when_it_is_down() {
    let method = Method { balance: Balance::Sticky, ..Method::default() };
    let all = members(&[(1, false), (1, false), (1, true), (1, true)]);
    let (mut balancer, load) = (Balancer::new(&method, &all), Slots::new(4));
    let mut after = |server: usize, weight: u32| {
        balancer.set_weight(server, weight);
        balancer.pick(Wish::default(), &load)
    };
    assert_eq!(after(1, 16), Pick::Taken(0));
    assert_eq!(after(0, 0), Pick::Taken(1));
    assert_eq!(after(0, 16), Pick::Taken(1));
    assert_eq!(after(0, 0), Pick::Taken(1));
    assert_eq!(after(1, 0), Pick::Taken(2));
    assert_eq!(after(2, 0), Pick::Taken(3));
    // A backup does not leave another one, but an active server does.
    assert_eq!(after(2, 16), Pick::Taken(3));
    assert_eq!(after(1, 16), Pick::Taken(1));
    assert_eq!([after(1, 0), after(2, 0), after(3, 0)], [Pick::Taken(2), Pick::Taken(3), Pick::None]);
    assert_eq!(after(3, 16), Pick::Taken(3));
}
