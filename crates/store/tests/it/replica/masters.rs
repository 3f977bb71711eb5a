//! Real masters: full and partial syncs while they are written to, and lost connections.

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, RedisServer, wait_for};

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

/// Follows a master through random commands and lost connections. The store has a directory, or none.
fn check(version: Option<&str>, more: &[&str], has_directory: bool, seed: u64) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("text");
    let of_master = tempfile::tempdir().expect("a directory");
    let master = master(version, &[more, &["--dir", of_master.path().to_str().expect("text")]].concat());
    let options = match has_directory {
        true => ServerOptions { dir: path.as_bytes().to_vec(), appendonly: true, ..ServerOptions::default() },
        false => ServerOptions::default(),
    };
    let replica = Replica::with(options.clone());
    let mut random = Random(seed);
    let mut there = Client::connect(&master.address());
    let mut admin = Client::connect(&master.address());
    let mut here = replica.connect();
    let library = |name: &str| format!("#!lua name={name}\nredis.register_function('{name}', function() return 1 end)");
    load(&mut there, &mut random, 500, true);
    assert_eq!(admin.ask(&["FUNCTION", "LOAD", &library("before")]), "$6\r\nbefore\r\n");
    replica.follow(master.port);
    assert_eq!(admin.ask(&["FUNCTION", "LOAD", &library("after")]), "$5\r\nafter\r\n");
    // Longer than what is settled at once.
    assert_eq!(admin.ask(&["SET", "huge", &"x".repeat(5_000_000)]), "+OK\r\n");
    for round in 0..3 {
        load(&mut there, &mut random, 500, true);
        if has_directory {
            let is_up =
                |client: &mut Client| info(client, "replication", "master_link_status").as_deref() == Some("up");
            wait_for("the link", || is_up(&mut here).then_some(()));
            let is_rewriting = |client: &mut Client| info(client, "persistence", "aof_rewrite_in_progress");
            wait_for("the new file", || (is_rewriting(&mut here).as_deref() == Some("0")).then_some(()));
            // The stream waits meanwhile.
            assert_eq!(ask(&mut here, ["DEBUG RELOAD", "DEBUG LOADAOF"][round % 2]), "+OK\r\n");
        }
        wait_in_step(&mut admin, &mut here);
        if round < 2 {
            let partial = info(&mut admin, "stats", "sync_partial_ok");
            load(&mut there, &mut random, 50, true);
            ask(&mut admin, "CLIENT KILL TYPE replica");
            load(&mut there, &mut random, 300, true);
            wait_for("a partial sync", || (info(&mut admin, "stats", "sync_partial_ok") != partial).then_some(()));
        }
    }
    check_same(&mut admin, &mut here);
    for name in ["before", "after"] {
        let listed = here.ask(&["FUNCTION", "LIST", "LIBRARYNAME", name]);
        assert!(listed.contains(&format!("\r\n{name}\r\n")), "{name}: {listed}");
    }
    assert_eq!(info(&mut admin, "stats", "sync_full").as_deref(), Some("1"));
    assert_eq!(info(&mut here, "replication", "role").as_deref(), Some("slave"));
    let log = replica.log();
    assert!(!log.iter().any(|line| line.contains("CRITICAL")), "{log:#?}");
    if has_directory {
        // The append-only file began anew with the data of the master, and has what followed.
        drop((here, replica));
        let again = Replica::with(options);
        check_same(&mut admin, &mut again.connect());
    }
}

#[test]
fn masters_are_followed_through_lost_connections() {
    std::thread::scope(|scope| {
        let checks = [
            (None, &[][..], false, 1),
            (None, &["--repl-diskless-sync", "no"], true, 2),
            (Some("8.1"), &[], true, 3),
            (Some("9.1"), &[], false, 4),
        ];
        let threads = checks
            .map(|(version, more, has_directory, seed)| scope.spawn(move || check(version, more, has_directory, seed)));
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn fields_that_expire_come_from_a_valkey_that_knows_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let master = master(Some("9.1"), &["--dir", directory.path().to_str().expect("text")]);
    let replica = Replica::start();
    let (mut there, mut here) = (Client::connect(&master.address()), replica.connect());
    for command in ["HSET h a 1 b 2", "HEXPIRE h 1000 FIELDS 1 a"] {
        assert!(!ask(&mut there, command).starts_with('-'), "{command}");
    }
    replica.follow(master.port);
    wait_in_step(&mut there, &mut here);
    for command in ["HSET i a 1 b 2", "HEXPIRE i 1000 FIELDS 1 b", "HSETEX j EX 1000 FIELDS 1 c 3"] {
        assert!(!ask(&mut there, command).starts_with('-'), "{command}");
    }
    wait_in_step(&mut there, &mut here);
    for command in
        ["HPEXPIRETIME h FIELDS 2 a b", "HPEXPIRETIME i FIELDS 2 a b", "HPEXPIRETIME j FIELDS 1 c", "HGETALL j"]
    {
        assert_eq!(ask(&mut there, command), ask(&mut here, command), "{command}: {:#?}", replica.log());
    }
}

#[test]
fn replicas_of_a_replica_continue_when_it_becomes_the_master() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("text");
    let start =
        || RedisServer::start(&["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0", "--dir", path]);
    let [first, beside, below] = [(); 3].map(|()| start());
    let options = ServerOptions { protected_mode: false, ..ServerOptions::default() };
    let [ours, below_ours] = [(); 2].map(|()| Replica::with(options.clone()));
    let mut random = Random(11);
    let mut there = Client::connect(&first.address());
    let mut here = ours.connect();
    assert_eq!(ask(&mut here, "CONFIG SET repl-diskless-sync-delay 0"), "+OK\r\n");
    let mut others = vec![Client::connect(&beside.address()), Client::connect(&below.address()), below_ours.connect()];
    load(&mut there, &mut random, 100, true);
    ours.follow(first.port);
    assert_eq!(ask(&mut others[0], &format!("REPLICAOF 127.0.0.1 {}", first.port)), "+OK\r\n");
    wait_in_step(&mut there, &mut here);
    for other in &mut others[1..] {
        assert_eq!(ask(other, &format!("REPLICAOF 127.0.0.1 {}", ours.running.port)), "+OK\r\n");
    }
    load(&mut there, &mut random, 300, true);
    for other in std::iter::once(&mut here).chain(&mut others) {
        wait_in_step(&mut there, other);
        check_same(&mut there, other);
    }
    // The old master, and another one of its replicas, continue with the new one, and so do its own.
    let full = info(&mut here, "stats", "sync_full");
    assert_eq!(ask(&mut here, "REPLICAOF NO ONE"), "+OK\r\n");
    load(&mut here, &mut random, 50, true);
    for other in [&mut there, &mut others[0]] {
        assert_eq!(ask(other, &format!("REPLICAOF 127.0.0.1 {}", ours.running.port)), "+OK\r\n");
    }
    load(&mut here, &mut random, 300, true);
    let mut admin = ours.connect();
    for other in std::iter::once(&mut there).chain(&mut others) {
        wait_in_step(&mut admin, other);
        check_same(&mut admin, other);
    }
    assert_eq!(info(&mut admin, "stats", "sync_full"), full);
    // What only stores know reaches the one below, alone and in a transaction, and the others go on.
    for client in std::iter::once(&mut admin).chain([&mut there]).chain(&mut others) {
        ask(client, "SELECT 0");
    }
    for command in [
        "FLUSHALL",
        "SET k 1",
        "STICK k",
        "SADDEX s 1000 m",
        "HSET h f v g w",
        "MULTI",
        "SET l 1",
        "STICK l",
        "SADDEX s 2000 n",
        "FIELDEXPIRE h 1000 f",
        "EXEC",
    ] {
        assert!(!ask(&mut admin, command).starts_with('-'), "{command}");
    }
    for other in std::iter::once(&mut there).chain(&mut others) {
        wait_in_step(&mut admin, other);
        // The digest of a hash counts the expiry of its fields.
        for command in ["GET k", "GET l", "SCARD s", "HGETALL h"] {
            assert_eq!(ask(other, command), ask(&mut admin, command), "{command}");
        }
    }
    let last = others.last_mut().expect("there is one");
    for command in ["OBJECT STICKY k", "OBJECT STICKY l", "HPEXPIRETIME h FIELDS 2 f g"] {
        assert_eq!(ask(&mut admin, command), ask(last, command), "{command}");
    }
    for (member, least) in [("m", 900), ("n", 1900)] {
        let ttl = ask(last, &format!("FIELDTTL s {member}"));
        let ttl: i32 = ttl[1..].trim_end().parse().expect("a number");
        assert!((least..=least + 100).contains(&ttl), "{member}: {ttl}");
    }
    let log = below_ours.log();
    assert!(!log.iter().any(|line| line.contains("CRITICAL")), "{log:#?}");
}
