//! Linearizability: whatever clients of several workers see of a few keys could have come from one command after the
//! other, each at some moment between its request and its reply, over many short histories.
//!
//! Keys are held now and then by sections, so that commands park and transactions take holds; otherwise they run under
//! locks.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Mode, Store, StoreOptions};
use sluicegate_testkit::Client;
use sluicegate_testkit::history::{Call, Key, NAMES, Op, State, explain, program};

use crate::support::Running;
use crate::{Random, block_on};

const CLIENTS: usize = 3;

fn histories_are_linearizable(seed: u64, rounds: usize) {
    let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
    let ours = Running::serving(store, ServerOptions::default(), CLIENTS);
    let clock = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let barrier = Barrier::new(CLIENTS);
    let mut calls: Vec<Vec<Vec<Call>>> = Vec::new();
    std::thread::scope(|scope| {
        // Another section holds keys for a moment, so that commands park.
        scope.spawn(|| {
            let mut random = Random(seed + 99);
            while !over.load(Ordering::SeqCst) {
                let mode = if random.below(2) == 0 { Mode::Shared } else { Mode::Exclusive };
                let held = [0, 1].map(|_| NAMES[random.below(NAMES.len())]);
                let keys = held.iter().map(|key| (0, key.as_bytes(), mode));
                let section = block_on(ours.store().section(keys)).expect("room");
                (0..random.below(40)).for_each(|_| std::thread::yield_now());
                drop(section);
                (0..random.below(40)).for_each(|_| std::thread::yield_now());
            }
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (clock, barrier, address) = (&clock, &barrier, ours.address());
                scope.spawn(move || {
                    let mut client = Client::connect(&address);
                    // All threads draw the same numbers, and each takes its own program.
                    let mut random = Random(seed);
                    (0..rounds)
                        .map(|_| {
                            let mut value = 0;
                            let from = random.below(NAMES.len() - 2);
                            let keys: Vec<Key> = (from..from + 2 + random.below(2)).collect();
                            let programs: Vec<Vec<Op>> = (0..CLIENTS)
                                .map(|_| program(&mut |limit| random.below(limit), &keys, &mut value))
                                .collect();
                            barrier.wait();
                            if number == 0 {
                                client.ask(&["FLUSHALL"]);
                            }
                            client.ask(&["UNWATCH"]);
                            barrier.wait();
                            let carry_out = |op: Op| {
                                let from = clock.fetch_add(1, Ordering::SeqCst);
                                let reply = op.ask(&mut client);
                                Call { client: number, op, reply, from, to: clock.fetch_add(1, Ordering::SeqCst) }
                            };
                            programs.into_iter().nth(number).expect("a program").into_iter().map(carry_out).collect()
                        })
                        .collect::<Vec<Vec<Call>>>()
                })
            })
            .collect();
        calls = clients.into_iter().map(|client| client.join().expect("it ended")).collect();
        over.store(true, Ordering::SeqCst);
    });
    let mut overlapping = 0;
    for _ in 0..rounds {
        let history: Vec<Call> = calls.iter_mut().flat_map(|client| client.remove(0)).collect();
        overlapping += history
            .iter()
            .filter(|call| {
                history.iter().any(|other| other.client != call.client && other.from < call.to && call.from < other.to)
            })
            .count();
        let explained = explain(State::default(), &history);
        assert!(explained.is_ok(), "no order explains {explained:?} in {history:#?}");
    }
    assert!(overlapping > rounds, "the histories have nothing to check: {overlapping} commands overlap");
    assert_eq!(ours.store().stats().tickets, 0);
}

#[test]
fn histories_of_few_keys_are_linearizable() {
    histories_are_linearizable(1, 250);
}

#[test]
fn other_histories_of_few_keys_are_linearizable() {
    histories_are_linearizable(2, 250);
}
