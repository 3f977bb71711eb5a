//! The order in which servers are chosen, against Debian's haproxy with the same weights.

use sluicegate_proxy::balance::{Pick, RoundRobin};
use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate};

const NAMES: &[u8] = b"abcdefgh";

/// What happens between two requests: `(server, weight)`.
type Change = (usize, u32);

/// haproxy's servers are frontends of its own that say their name.
fn haproxys_order(weights: &[u32], backups: &[bool], requests: usize, changes: &[(usize, Change)]) -> String {
    let front = Listening::new();
    let servers: Vec<_> = weights.iter().map(|_| Listening::new()).collect();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let stats = directory.path().join("stats.sock");
    let mut text = format!(
        "global\n nbthread 1\n stats socket {} level admin\ndefaults\n mode http\n timeout client 20s\n timeout \
         server 20s\n timeout connect 20s\nfrontend f\n bind {}\n default_backend be\nbackend be\n balance \
         roundrobin\n",
        stats.display(),
        front.word()
    );
    for (index, (server, weight)) in servers.iter().zip(weights).enumerate() {
        let name = NAMES[index] as char;
        let backup = if backups[index] { " backup" } else { "" };
        text += &format!(" server {name} {} weight {weight}{backup}\n", server.address());
    }
    for (index, server) in servers.iter().enumerate() {
        let name = NAMES[index] as char;
        text += &format!(
            "frontend s{name}\n bind {}\n http-request return status 200 content-type t string {name}\n",
            server.word()
        );
    }
    let inherited: Vec<_> = std::iter::once(&front).chain(&servers).collect();
    let _haproxy = Haproxy::start(&text, &inherited);
    let mut client = Client::connect(&front.address());
    let mut order = String::new();
    for request in 0..requests {
        for (_, (server, weight)) in changes.iter().filter(|(at, _)| *at == request) {
            let line = format!("set server be/{} weight {weight}", NAMES[*server] as char);
            assert_eq!(Sluicegate::stats(&stats, &line).trim(), "");
        }
        order += client.get("/").text().trim();
    }
    order
}

fn our_order(weights: &[u32], backups: &[bool], requests: usize, changes: &[(usize, Change)]) -> String {
    let mut balancer = RoundRobin::new(weights.iter().copied().zip(backups.iter().copied()));
    let mut order = String::new();
    for request in 0..requests {
        for (_, (server, weight)) in changes.iter().filter(|(at, _)| *at == request) {
            balancer.set_weight(*server, *weight);
        }
        match balancer.pick(None, |_| true) {
            Pick::Taken(server) => order.push(NAMES[server] as char),
            other => panic!("{other:?}"),
        }
    }
    order
}

#[track_caller]
fn check(weights: &[u32], backups: &[bool], requests: usize, changes: &[(usize, Change)]) {
    let ours = our_order(weights, backups, requests, changes);
    assert_eq!(ours, haproxys_order(weights, backups, requests, changes), "{weights:?} {changes:?}");
}

#[test]
fn weights_give_haproxys_order() {
    for weights in [&[1, 1, 1][..], &[1, 2, 3], &[5, 1, 1], &[3, 2, 2, 1], &[100, 7, 33, 2], &[256, 1]] {
        let requests = (weights.iter().sum::<u32>() as usize * 3).min(600);
        check(weights, &[false; 8], requests, &[]);
    }
}

#[test]
fn changed_weights_give_haproxys_order() {
    check(&[1, 1, 1], &[false; 8], 60, &[(7, (1, 3)), (20, (0, 0)), (31, (0, 2)), (44, (1, 1))]);
    check(&[10, 20, 5], &[false; 8], 300, &[(50, (1, 0)), (101, (1, 40)), (150, (2, 1)), (222, (0, 100))]);
}

#[test]
fn backups_serve_when_nobody_else_does() {
    let backups = [false, true, true, false, false, false, false, false];
    check(&[1, 1, 1], &backups, 20, &[(5, (0, 0)), (10, (1, 0)), (15, (0, 1))]);
}
