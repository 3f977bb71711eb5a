//! Data sets that are loaded beside the old one: `repl-diskless-load swapdb`.

use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_data::rdb::file::{Chunk, Settings};
use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, RedisServer, encode, wait_for};

use super::nonsense::{ID, Peer, file, full, listen, whole};
use super::{Replica, ask, check_same, info, load, wait_in_step};
use crate::Random;

const OTHER_ID: &str = "76543210fedcba9876543210fedcba9876543210";
const OLD: &str = "#!lua name=old\nredis.register_function('old', function() return 1 end)";
const NEW: &str = "#!lua name=new\nredis.register_function('new', function() return 2 end)";

/// Returns a file with a library.
fn library(code: &str) -> Vec<u8> {
    let mut chunk = Chunk::new(Settings::new(0));
    chunk.library(code.as_bytes());
    whole(&chunk)
}

/// A master with its replica, which has the keys `old` and `same` in database 1.
struct Pair {
    replica: Replica,
    listener: std::net::TcpListener,
    client: Client,
}

impl Pair {
    fn start() -> (Pair, Peer) {
        let replica = Replica::with(ServerOptions { repl_diskless_load: "swapdb", ..ServerOptions::default() });
        let mut client = replica.connect();
        assert_eq!(client.ask(&["FUNCTION", "LOAD", OLD]), "$3\r\nold\r\n");
        let (listener, port) = listen();
        replica.follow(port);
        let mut peer = Peer::accept(&listener);
        peer.shake_hands();
        peer.send(&full(&file(&["old", "same"])));
        assert_eq!(peer.ack(), 100);
        assert_eq!(client.ask(&["FUNCTION", "LIST"]), "*0\r\n");
        assert_eq!(ask(&mut client, "SELECT 1"), "+OK\r\n");
        assert_eq!(ask(&mut client, "DBSIZE"), ":2\r\n");
        (Pair { replica, listener, client }, peer)
    }

    /// Ends the connection, and begins a full sync of this history on the next one, with so much of the data set.
    #[track_caller]
    fn sync_again(&mut self, before: Peer, id: &str, payload: &[u8], sent: usize) -> Peer {
        drop(before);
        let mut peer = Peer::accept(&self.listener);
        let psync = peer.shake_hands();
        assert_eq!(psync[1..], [ID.to_owned(), "101".to_owned()], "it still has the old history");
        peer.send(format!("+FULLRESYNC {id} 500\r\n${}\r\n", payload.len()).as_bytes());
        peer.send(&payload[..sent]);
        peer
    }

    #[track_caller]
    fn wait_for_load(&mut self, name: &str) {
        wait_for("the load", || (info(&mut self.client, "persistence", name).as_deref() == Some("1")).then_some(()));
    }

    #[track_caller]
    fn check(&mut self, line: &str, expected: &str) {
        assert_eq!(ask(&mut self.client, line), expected, "{line}");
    }

    /// Waits until nothing is loaded any more, and checks that the old data set is there.
    #[track_caller]
    fn check_kept(&mut self) {
        self.replica.wait_for_line(0, "MASTER <-> REPLICA sync: Discarding temporary DB in background");
        wait_for("the end of the load", || (!ask(&mut self.client, "DBSIZE").starts_with('-')).then_some(()));
        self.check("DBSIZE", ":2\r\n");
        self.check("GET old", "$5\r\nvalue\r\n");
    }
}

#[test]
fn the_old_data_set_is_served_until_the_new_one_is_whole() {
    let (mut pair, peer) = Pair::start();
    let mut watching = pair.replica.connect();
    for (line, reply) in [
        ("HELLO 3", "%"),
        ("SELECT 1", "+OK"),
        ("CLIENT TRACKING on", "+OK"),
        ("GET same", "$5"),
        ("WATCH old", "+OK"),
        ("MULTI", "+OK"),
        ("GET same", "+QUEUED"),
    ] {
        assert!(ask(&mut watching, line).starts_with(reply), "{line}");
    }
    let payload = file(&["same", "new"]);
    let mut peer = pair.sync_again(peer, ID, &payload, payload.len() - 20);
    pair.wait_for_load("async_loading");
    assert_eq!(info(&mut pair.client, "persistence", "loading").as_deref(), Some("0"));
    assert_eq!(info(&mut pair.client, "replication", "master_sync_in_progress").as_deref(), Some("1"));
    for (line, reply) in [
        ("GET old", "$5\r\nvalue\r\n"),
        ("EXISTS new", ":0\r\n"),
        ("DBSIZE", ":2\r\n"),
        ("EVAL return{redis.call('GET','old')} 0", "*1\r\n$5\r\nvalue\r\n"),
        ("SET old 2", "-READONLY You can't write against a read only replica.\r\n"),
        ("BGSAVE", "-LOADING Redis is loading the dataset in memory\r\n"),
        ("BGREWRITEAOF", "-LOADING Redis is loading the dataset in memory\r\n"),
        ("REPLICAOF NO ONE", "-LOADING Redis is loading the dataset in memory\r\n"),
    ] {
        pair.check(line, reply);
    }
    peer.send(&payload[payload.len() - 20..]);
    assert_eq!(peer.ack(), 500);
    pair.check("EXISTS old same new", ":2\r\n");
    pair.check("DBSIZE", ":2\r\n");
    assert_eq!(info(&mut pair.client, "persistence", "async_loading").as_deref(), Some("0"));
    // Clients are told that what they have read, or watch, is another data set.
    assert_eq!(String::from_utf8_lossy(&watching.read_reply()), ">2\r\n$10\r\ninvalidate\r\n_\r\n");
    assert_eq!(ask(&mut watching, "EXEC"), "_\r\n");
    let log = pair.replica.log();
    let swapped = log.iter().position(|line| line.contains("Swapping active DB with loaded DB")).expect("a line");
    assert!(log[swapped + 1].contains("Discarding old DB in background"), "{log:#?}");
    peer.send(&[encode(&["SELECT", "1"]), encode(&["SET", "more", "1"])].concat());
    wait_for("the stream", || (ask(&mut pair.client, "GET more") == "$1\r\n1\r\n").then_some(()));
}

#[test]
fn a_new_data_set_that_fails_leaves_the_old_one() {
    // Cut off, damaged, of another history, with a wrong library; the next attempt still has the old history.
    let right = file(&["new"]);
    let mut damaged = right.clone();
    damaged[right.len() - 12] ^= 0x55;
    for (id, payload, sent) in [
        (ID, &right, right.len() - 20),
        (ID, &damaged, right.len()),
        (OTHER_ID, &damaged, right.len()),
        (OTHER_ID, &library("#!lua name=new\nno code"), usize::MAX),
    ] {
        let (mut pair, peer) = Pair::start();
        let peer = pair.sync_again(peer, id, payload, sent.min(payload.len()));
        if sent < payload.len() {
            pair.wait_for_load("async_loading");
        }
        // The end of the connection is what cuts a file off.
        let next = (sent >= payload.len()).then_some(peer);
        pair.check_kept();
        if let Some(peer) = next {
            peer.wait_for_end();
        }
        let mut peer = Peer::accept(&pair.listener);
        assert_eq!(peer.shake_hands()[1..], [ID.to_owned(), "101".to_owned()]);
        peer.send(format!("+FULLRESYNC {OTHER_ID} 900\r\n").as_bytes());
        let payload = library(NEW);
        peer.send(format!("${}\r\n", payload.len()).as_bytes());
        peer.send(&payload[..payload.len() - 4]);
        // Of another history: nothing is served that does not belong to the master.
        pair.wait_for_load("loading");
        pair.check("GET old", "-LOADING Redis is loading the dataset in memory\r\n");
        peer.send(&payload[payload.len() - 4..]);
        assert_eq!(peer.ack(), 900);
        pair.check("DBSIZE", ":0\r\n");
        let listed = pair.client.ask(&["FUNCTION", "LIST"]);
        assert!(listed.starts_with("*1\r\n") && listed.contains("\r\nnew\r\n"), "{listed}");
    }
}

/// A reader of the replica finds what never changes, at every moment of full syncs that follow each other.
#[test]
fn readers_of_a_replica_see_no_gap_during_full_syncs() {
    let directories = [tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory")];
    let [of_master, path] = directories.each_ref().map(|directory| directory.path().to_str().expect("text"));
    let arguments = ["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0", "--repl-backlog-size", "16kb"];
    let delay = ["--rdb-key-save-delay", "20", "--dir", of_master];
    let master = RedisServer::start(&[&arguments[..], &delay].concat());
    let dir = path.as_bytes().to_vec();
    let options = ServerOptions { dir, appendonly: true, repl_diskless_load: "swapdb", ..ServerOptions::default() };
    let replica = Replica::with(options.clone());
    let mut random = Random(11);
    let (mut there, mut admin) = (Client::connect(&master.address()), Client::connect(&master.address()));
    let mut here = replica.connect();
    assert_eq!(ask(&mut there, "SET always 1"), "+OK\r\n");
    assert_eq!(ask(&mut there, "DEBUG POPULATE 5000"), "+OK\r\n");
    replica.follow(master.port);
    wait_in_step(&mut admin, &mut here);
    let is_over = AtomicBool::new(false);
    let full = |client: &mut Client| info(client, "stats", "sync_full").expect("a number").parse::<u32>().expect("one");
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut reader, mut reads, mut reads_during) = (replica.connect(), 0, 0);
            while !is_over.load(Ordering::SeqCst) {
                assert_eq!(ask(&mut reader, "GET always"), "$1\r\n1\r\n", "after {reads}");
                let is_loading = info(&mut reader, "persistence", "async_loading").as_deref() == Some("1");
                (reads, reads_during) = (reads + 1, reads_during + u32::from(is_loading));
            }
            reads_during
        });
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 2..5 {
                // At once, so that the replica cannot return in between: the backlog is shorter.
                for line in ["MULTI", "CLIENT KILL TYPE replica"] {
                    ask(&mut admin, line);
                }
                admin.ask(&["SET", "long", &"x".repeat(100_000)]);
                ask(&mut admin, "EXEC");
                load(&mut there, &mut random, 300, true);
                wait_for("a full sync", || (full(&mut admin) >= round).then_some(()));
                wait_in_step(&mut admin, &mut here);
            }
        }));
        is_over.store(true, Ordering::SeqCst);
        let reads = reader.join().expect("no gap");
        ended.map(|()| reads).unwrap_or_else(|fault| std::panic::resume_unwind(fault))
    });
    assert!(reads > 0, "no read fell into a load");
    check_same(&mut admin, &mut here);
    drop((here, replica));
    let again = Replica::with(options);
    check_same(&mut admin, &mut again.connect());
}
