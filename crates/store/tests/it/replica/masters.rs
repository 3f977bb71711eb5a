//! Real masters: full and partial syncs while they are written to, and lost connections.

use std::path::Path;

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::RedisServer;

use super::{Replica, ask, check_same, info, load, wait_in_step};
use crate::Random;

/// Arguments of masters.
const MASTER: [&str; 6] =
    ["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0", "--repl-backlog-size", "10mb"];

fn master(version: Option<&str>, more: &[&str]) -> RedisServer {
    let arguments = [&MASTER[..], more].concat();
    match version {
        None => RedisServer::start(&arguments),
        Some(version) => RedisServer::start_valkey(version, &arguments),
    }
}

fn in_directory(directory: &Path) -> ServerOptions {
    ServerOptions { dir: directory.as_os_str().as_encoded_bytes().to_vec(), ..ServerOptions::default() }
}

/// Follows a master through random commands and lost connections.
fn check(master: &RedisServer, replica: &Replica, seed: u64) {
    let mut random = Random(seed);
    let mut there = sluicegate_testkit::Client::connect(&master.address());
    let mut admin = sluicegate_testkit::Client::connect(&master.address());
    let mut here = replica.connect();
    load(&mut there, &mut random, 500, true);
    replica.follow(master.port);
    for round in 0..4 {
        load(&mut there, &mut random, 800, true);
        wait_in_step(&mut admin, &mut here);
        if round < 3 {
            let partial = info(&mut admin, "stats", "sync_partial_ok");
            load(&mut there, &mut random, 50, true);
            ask(&mut admin, "CLIENT KILL TYPE replica");
            load(&mut there, &mut random, 300, true);
            sluicegate_testkit::wait_for("a partial sync", || {
                (info(&mut admin, "stats", "sync_partial_ok") != partial).then_some(())
            });
        }
    }
    // What is about to expire does so on the master first.
    wait_in_step(&mut admin, &mut here);
    check_same(&mut admin, &mut here);
    assert_eq!(info(&mut admin, "stats", "sync_full").as_deref(), Some("1"));
    assert_eq!(info(&mut here, "replication", "role").as_deref(), Some("slave"));
    let log = replica.log();
    assert!(!log.iter().any(|line| line.contains("CRITICAL")), "{log:#?}");
}

#[test]
fn a_redis_server_is_followed_through_lost_connections() {
    let directory = tempfile::tempdir().expect("a directory");
    check(&master(None, &[]), &Replica::start(), 1);
    check(
        &master(None, &["--repl-diskless-sync", "no", "--dir", directory.path().to_str().expect("text")]),
        &Replica::start(),
        2,
    );
    check(&master(None, &[]), &Replica::with(in_directory(directory.path())), 3);
}

#[test]
fn a_valkey_is_followed_through_lost_connections() {
    let directory = tempfile::tempdir().expect("a directory");
    check(&master(Some("8.1"), &[]), &Replica::start(), 4);
    check(&master(Some("9.1"), &[]), &Replica::with(in_directory(directory.path())), 5);
}
