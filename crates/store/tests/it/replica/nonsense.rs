//! Masters that are made up: nonsense, stalls and damage at each step, and what follows a good start.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use sluicegate_data::rdb::file::{Chunk, Contents, KeyHead, Settings, Written};
use sluicegate_data::value::Value;
use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{PATIENCE, encode, wait_for};

use super::{Replica, ask, info};

/// A connection of a replica to a master that the test plays, and the position up to which it has sent.
pub struct Peer(BufReader<TcpStream>, u64);

impl Peer {
    /// Takes the next connection.
    #[track_caller]
    pub fn accept(listener: &TcpListener) -> Peer {
        listener.set_nonblocking(true).expect("set");
        let (stream, _) = wait_for("a connection", || listener.accept().ok());
        stream.set_nonblocking(false).expect("set");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        Peer(BufReader::new(stream), 100)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        // The replica may have gone.
        let _ = self.0.get_mut().write_all(bytes);
    }

    /// Reads a command.
    #[track_caller]
    pub fn command(&mut self) -> Vec<String> {
        let number = |line: String| line[1..].trim_end().parse::<usize>().expect("a number");
        let mut line = String::new();
        // Empty lines are signs of life.
        while line.trim_end().is_empty() {
            line.clear();
            assert_ne!(self.0.read_line(&mut line).expect("a line"), 0, "the replica has gone");
        }
        let words = (0..number(line)).map(|_| {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a line");
            let mut word = vec![0; number(line) + 2];
            self.0.read_exact(&mut word).expect("a word");
            String::from_utf8_lossy(&word).trim_end().to_owned()
        });
        words.collect()
    }

    /// Waits for the replica to close the connection.
    #[track_caller]
    pub fn wait_for_end(mut self) {
        let mut rest = Vec::new();
        // It may end with a reset.
        let _ = self.0.read_to_end(&mut rest);
    }

    /// Answers everything up to PSYNC, and returns that.
    #[track_caller]
    pub fn shake_hands(&mut self) -> Vec<String> {
        loop {
            let command = self.command();
            match &*command[0] {
                "PING" => self.send(b"+PONG\r\n"),
                "PSYNC" => return command,
                _ => self.send(b"+OK\r\n"),
            }
        }
    }

    /// Sends commands, and waits until they were carried out.
    #[track_caller]
    pub fn run(&mut self, lines: &[&str]) {
        let commands: Vec<Vec<u8>> = lines.iter().map(|line| encode(&line.split(' ').collect::<Vec<_>>())).collect();
        self.run_bytes(&commands.concat());
    }

    /// Sends a part of the stream.
    pub fn more(&mut self, bytes: &[u8]) {
        self.1 += bytes.len() as u64;
        self.send(bytes);
    }

    /// Sends a part of the stream, and waits until it was carried out.
    #[track_caller]
    pub fn run_bytes(&mut self, bytes: &[u8]) {
        let getack = encode(&["REPLCONF", "GETACK", "*"]);
        self.1 += bytes.len() as u64;
        self.send(&[bytes, &getack].concat());
        self.wait_for_ack(self.1);
        self.1 += getack.len() as u64;
    }

    /// Reads the position of the next ACK.
    #[track_caller]
    pub fn ack(&mut self) -> u64 {
        let command = self.command();
        assert_eq!(command[..2], ["REPLCONF", "ACK"], "{command:?}");
        command[2].parse().expect("a number")
    }

    /// Reads ACKs up to this position.
    #[track_caller]
    pub fn wait_for_ack(&mut self, wanted: u64) {
        while self.ack() != wanted {}
    }
}

pub const ID: &str = "0123456789abcdef0123456789abcdef01234567";
const MARK: &[u8; 40] = b"mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm";

/// Returns a file with these keys in database 1, behind which the stream goes on in that database.
pub fn file(keys: &[&str]) -> Vec<u8> {
    let mut chunk = Chunk::new(Settings::new(0));
    chunk.aux(b"redis-ver", b"7.0.0");
    chunk.aux(b"repl-stream-db", b"1");
    chunk.database(1);
    for name in keys {
        let head = KeyHead { name: name.as_bytes(), ..KeyHead::default() };
        assert!(chunk.key(head, Written::of(&Value::of(b"value"))));
    }
    whole(&chunk)
}

/// Returns a file with what a chunk contains.
pub fn whole(chunk: &Chunk) -> Vec<u8> {
    let mut contents = Contents::default();
    contents.add(chunk.summed());
    let magic = contents.magic();
    [&magic[..], chunk.bytes(), &contents.tail(magic, true)].concat()
}

pub fn full(payload: &[u8]) -> Vec<u8> {
    [format!("+FULLRESYNC {ID} 100\r\n${}\r\n", payload.len()).as_bytes(), payload].concat()
}

pub fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("bound").port();
    (listener, port)
}

/// A replica with old data, with or without a directory.
fn with_old(directory: Option<&std::path::Path>) -> Replica {
    let dir = directory.map_or_else(Vec::new, |directory| directory.as_os_str().as_encoded_bytes().to_vec());
    let replica = Replica::with(ServerOptions { dir, ..ServerOptions::default() });
    assert_eq!(ask(&mut replica.connect(), "SET old 1"), "+OK\r\n");
    replica
}

#[test]
fn nonsense_before_the_data_set_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let replicas = [with_old(None), with_old(Some(directory.path()))];
    for replica in &replicas {
        assert_eq!(ask(&mut replica.connect(), "CONFIG SET masterauth secret"), "+OK\r\n");
    }
    let damaged = |at: usize| {
        let mut file = file(&["a"]);
        file[at] ^= 0x55;
        full(&file)
    };
    // The replies to PING, AUTH, REPLCONF and PSYNC, and the line that the replica logs.
    let cases: &[(&[&[u8]], &str)] = &[
        (&[b"-ERR no\r\n"], "Error reply to PING from master: '-ERR no'"),
        (&[b"HTTP/1.1 400 Bad Request\r\n"], "Error reply to PING from master: 'HTTP/1.1 400 Bad Request'"),
        (&[&[b'x'; 5000]], "Master did not respond to command during SYNC handshake (PING)"),
        (&[b""], "Master did not respond to command during SYNC handshake (PING)"),
        (&[b"+PONG\r\n", b"-WRONGPASS no\r\n"], "Unable to AUTH to MASTER: -WRONGPASS no"),
        (
            &[b"-NOAUTH x\r\n", b"+OK\r\n", b"-ERR what\r\n"],
            "Master does not understand REPLCONF listening-port: -ERR what",
        ),
        (
            &[b"+PONG\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b"-ERR unknown command\r\n"],
            "Master does not support PSYNC",
        ),
        (
            &[b"+PONG\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b"-NOMASTERLINK x\r\n"],
            "Master is currently unable to PSYNC",
        ),
        (
            &[b"+PONG\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b"-LOADING x\r\n"],
            "Master is currently unable to PSYNC",
        ),
        (
            &[b"+PONG\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b"+WHAT\r\n"],
            "Unexpected reply to PSYNC from master: +WHAT",
        ),
        (
            &[b"+PONG\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b"+FULLRESYNC x 1\r\n"],
            "Master replied with wrong +FULLRESYNC",
        ),
        (
            &[
                b"+PONG\r\n",
                b"+OK\r\n",
                b"+OK\r\n",
                b"+OK\r\n",
                b"+OK\r\n",
                format!("+FULLRESYNC {ID} {}\r\n", u64::MAX).leak().as_bytes(),
            ],
            "Master replied with wrong +FULLRESYNC",
        ),
        (
            &[
                b"+PONG\r\n",
                b"+OK\r\n",
                b"+OK\r\n",
                b"+OK\r\n",
                b"+OK\r\n",
                format!("+FULLRESYNC {ID} 1\r\n-ERR x\r\n").leak().as_bytes(),
            ],
            "MASTER aborted replication with an error: ERR x",
        ),
        (
            &[
                b"+PONG\r\n",
                b"+OK\r\n",
                b"+OK\r\n",
                b"+OK\r\n",
                b"+OK\r\n",
                format!("+FULLRESYNC {ID} 1\r\nwhat\r\n").leak().as_bytes(),
            ],
            "Bad protocol from MASTER, the first byte is not '$' (we received 'what')",
        ),
        (&[b"+PONG\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", full(b"").leak()], "the old data set is kept"),
        (&[b"+PONG\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", damaged(0).leak()], "Wrong signature"),
        (&[b"+PONG\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", damaged(5).leak()], "RDB format version"),
    ];
    for (replies, line) in cases {
        for replica in &replicas {
            let (listener, port) = listen();
            let from = replica.log().len();
            replica.follow(port);
            let mut peer = Peer::accept(&listener);
            for reply in *replies {
                peer.command();
                peer.send(reply);
            }
            match *line {
                "Master does not understand REPLCONF listening-port: -ERR what" => {}
                _ => drop(peer.0.get_mut().shutdown(std::net::Shutdown::Write)),
            }
            replica.wait_for_line(from, line);
            drop(peer);
            assert_eq!(ask(&mut replica.connect(), "GET old"), "$1\r\n1\r\n", "{line}");
        }
    }
}

#[test]
fn a_damaged_file_is_seen_before_or_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    for (directory, size) in [(Some(directory.path()), ":1\r\n"), (None, ":0\r\n")] {
        let replica = with_old(directory);
        let mut whole = file(&["a", "b"]);
        let last = whole.len() - 12;
        whole[last] ^= 0x55;
        let (listener, port) = listen();
        replica.follow(port);
        let mut peer = Peer::accept(&listener);
        peer.shake_hands();
        peer.send(&full(&whole));
        replica.wait_for_line(0, "Failed trying to load the MASTER synchronization DB");
        peer.wait_for_end();
        let mut client = replica.connect();
        wait_for("the end of the load", || (!ask(&mut client, "DBSIZE").starts_with('-')).then_some(()));
        assert_eq!(ask(&mut client, "DBSIZE"), size);
        // The next attempt is as good as the first one; what was half loaded belongs to nothing.
        let mut peer = Peer::accept(&listener);
        let psync = peer.shake_hands();
        assert_eq!(psync[1] == "?", directory.is_none(), "{psync:?}");
        peer.send(&full(&file(&["a", "b"])));
        assert_eq!(peer.ack(), 100);
        assert_eq!((ask(&mut client, "GET old"), ask(&mut client, "SELECT 1")), ("$-1\r\n".into(), "+OK\r\n".into()));
        assert_eq!(
            (ask(&mut client, "DBSIZE"), ask(&mut client, "GET a")),
            (":2\r\n".into(), "$5\r\nvalue\r\n".into())
        );
    }
}

#[test]
fn a_file_that_is_cut_off_is_not_taken() {
    let directory = tempfile::tempdir().expect("a directory");
    for directory in [None, Some(directory.path())] {
        for by_mark in [false, true] {
            let replica = with_old(directory);
            let file = file(&["a", "b"]);
            let (listener, port) = listen();
            replica.follow(port);
            let mut peer = Peer::accept(&listener);
            peer.shake_hands();
            match by_mark {
                true => peer
                    .send(&[format!("+FULLRESYNC {ID} 100\r\n$EOF:").as_bytes(), MARK, b"\r\n", &file[..30]].concat()),
                false => peer.send(&full(&file)[..100]),
            }
            drop(peer);
            replica.wait_for_line(0, "I/O error trying to sync with MASTER: connection lost");
            // By its mark, in pieces of which one ends in the middle of it.
            let mut peer = Peer::accept(&listener);
            peer.shake_hands();
            peer.send(
                &[b"\n\n", format!("+FULLRESYNC {ID} 100\r\n\n\n$EOF:").as_bytes(), MARK, b"\r\n", &file[..]].concat(),
            );
            peer.send(&MARK[..17]);
            peer.send(&MARK[17..]);
            assert_eq!(peer.ack(), 100);
            assert_eq!(ask(&mut replica.connect(), "GET old"), "$-1\r\n");
        }
    }
}

#[test]
fn a_master_that_stalls_is_given_up() {
    /// The steps up to which the master answers.
    const STEPS: [&str; 4] = ["PING", "PSYNC", "file", "stream"];
    let check = |step: &'static str| {
        let replica = with_old(None);
        let mut client = replica.connect();
        assert_eq!(ask(&mut client, "CONFIG SET repl-timeout 1"), "+OK\r\n");
        let (listener, port) = listen();
        replica.follow(port);
        let mut peer = Peer::accept(&listener);
        let line = match step {
            "PING" => "Timeout connecting to the MASTER...",
            "PSYNC" => {
                peer.shake_hands();
                "Timeout connecting to the MASTER..."
            }
            "file" => {
                peer.shake_hands();
                peer.send(&full(&file(&["a"]))[..90]);
                "Timeout receiving bulk data from MASTER... If the problem persists try to set the 'repl-timeout'"
            }
            _ => {
                peer.shake_hands();
                peer.send(&full(&file(&["a"])));
                "MASTER timeout: no data nor PING received..."
            }
        };
        replica.wait_for_line(0, line);
        peer.wait_for_end();
        Peer::accept(&listener);
    };
    std::thread::scope(|scope| {
        STEPS.map(|step| scope.spawn(move || check(step))).map(|thread| thread.join().expect("no panic"))
    });
}

#[test]
fn a_replica_says_who_it_is() {
    let replica = Replica::start();
    let mut client = replica.connect();
    for (name, value) in [
        ("masteruser", "them"),
        ("masterauth", "secret"),
        ("replica-announce-ip", "10.0.0.9"),
        ("replica-announce-port", "4711"),
        ("bind-source-addr", "127.0.0.9"),
        ("repl-disable-tcp-nodelay", "yes"),
        ("repl-diskless-load", "ON-empty-db"),
        ("repl-diskless-load", "SwapDB"),
        ("replica-announced", "no"),
    ] {
        assert_eq!(client.ask(&["CONFIG", "SET", name, value]), "+OK\r\n");
        let value = value.to_ascii_lowercase();
        assert!(client.ask(&["CONFIG", "GET", name]).ends_with(&format!("\r\n{value}\r\n")), "{name}");
    }
    let (listener, port) = listen();
    replica.follow(port);
    let mut peer = Peer::accept(&listener);
    assert_eq!(peer.0.get_ref().peer_addr().expect("connected").ip().to_string(), "127.0.0.9");
    for expected in [
        "PING",
        "AUTH them secret",
        "REPLCONF listening-port 4711",
        "REPLCONF ip-address 10.0.0.9",
        "REPLCONF capa eof capa psync2",
        "REPLCONF version 9.0.0",
    ] {
        assert_eq!(peer.command().join(" "), expected);
        peer.send(b"+OK\r\n");
    }
    assert_eq!(peer.command()[0], "PSYNC");
    let info = client.ask(&["INFO", "replication"]);
    for line in ["master_link_status:down", "slave_priority:100", "slave_read_only:1", "replica_announced:0"] {
        assert!(info.contains(&format!("{line}\r\n")), "{line}: {info}");
    }
    assert!(ask(&mut client, "ROLE").contains("$9\r\nhandshake\r\n:-1\r\n"));
    assert_eq!(ask(&mut client, "CONFIG SET masteruser a masterauth b"), "+OK\r\n");
}

/// Brings a replica up to a stream at position 100, in database 1.
pub fn stream(replica: &Replica) -> (TcpListener, Peer) {
    let (listener, port) = listen();
    replica.follow(port);
    let mut peer = Peer::accept(&listener);
    peer.shake_hands();
    peer.send(&full(&file(&["a", "b"])));
    assert_eq!(peer.ack(), 100);
    (listener, peer)
}

#[test]
fn only_what_was_carried_out_is_counted() {
    let replica = Replica::start();
    let (listener, mut peer) = stream(&replica);
    let mut client = replica.connect();
    ask(&mut client, "SELECT 1");
    let set = encode(&["SET", "k", "1"]);
    let getack = encode(&["REPLCONF", "GETACK", "*"]);
    // The answer to GETACK does not count the question, the next one does.
    peer.send(&[&set[..], &getack].concat());
    peer.wait_for_ack(100 + set.len() as u64);
    let counted = 100 + (set.len() + getack.len()) as u64;
    peer.wait_for_ack(counted);
    assert_eq!(ask(&mut client, "GET k"), "$1\r\n1\r\n");
    let stats = ask(&mut client, "INFO commandstats");
    assert!(stats.contains("cmdstat_set:calls=1,") && stats.contains("cmdstat_replconf:calls=1,"), "{stats}");
    // A transaction counts when it is whole, and half a command does not.
    peer.send(&[encode(&["MULTI"]), encode(&["SET", "k", "2"]), encode(&["SET", "l", "2"])].concat());
    peer.wait_for_ack(counted);
    assert_eq!(ask(&mut client, "GET k"), "$1\r\n1\r\n");
    drop(peer);
    replica.wait_for_line(0, "Reconnecting to MASTER 127.0.0.1:");
    let mut peer = Peer::accept(&listener);
    assert_eq!(peer.shake_hands(), ["PSYNC", ID, &(counted + 1).to_string()]);
    let other = ID.replace('0', "f");
    peer.send(format!("+CONTINUE {other}\r\n").as_bytes());
    let rest = [
        encode(&["MULTI"]),
        encode(&["SET", "k", "3"]),
        encode(&["SELECT", "0"]),
        encode(&["SET", "l", "3"]),
        encode(&["EXEC"]),
    ];
    let rest = rest.concat();
    peer.send(&rest);
    let counted = counted + rest.len() as u64;
    peer.wait_for_ack(counted);
    assert_eq!(ask(&mut client, "GET k"), "$1\r\n3\r\n");
    assert_eq!(ask(&mut replica.connect(), "GET l"), "$1\r\n3\r\n");
    // The database that the stream has selected outlives the connection.
    drop(peer);
    let mut peer = Peer::accept(&listener);
    assert_eq!(peer.shake_hands(), ["PSYNC", &other, &(counted + 1).to_string()]);
    peer.send(b"+CONTINUE\r\n");
    let set = encode(&["SET", "m", "4"]);
    peer.send(&set);
    peer.wait_for_ack(counted + set.len() as u64);
    assert_eq!(ask(&mut replica.connect(), "GET m"), "$1\r\n4\r\n");
}

#[test]
fn a_stream_of_nonsense_ends_the_link_and_errors_do_not() {
    let replica = Replica::start();
    let (listener, mut peer) = stream(&replica);
    peer.send(
        &[encode(&["NOSUCH", "x"]), encode(&["LPUSH", "a", "x"]), encode(&["GET"]), encode(&["SELECT", "99"])].concat(),
    );
    for text in [
        "== CRITICAL == This replica is sending an error to its master: 'ERR unknown command 'NOSUCH'",
        "'WRONGTYPE Operation against a key holding the wrong kind of value' after processing the command 'lpush'",
        "'ERR wrong number of arguments for 'get' command' after processing",
        "'ERR DB index is out of range' after processing",
    ] {
        replica.wait_for_line(0, text);
    }
    peer.send(&encode(&["SET", "k", "1"]));
    peer.send(b"*1\r\n+what\r\n");
    peer.wait_for_end();
    replica.wait_for_line(0, "Protocol error from the master");
    let mut client = replica.connect();
    ask(&mut client, "SELECT 1");
    assert_eq!(ask(&mut client, "GET k"), "$1\r\n1\r\n");
    // The rest of the stream would be the same.
    let mut peer = Peer::accept(&listener);
    assert_eq!(peer.shake_hands()[1], "?");
}

#[test]
fn the_master_is_among_the_clients() {
    let replica = Replica::start();
    let (listener, mut peer) = stream(&replica);
    let address = listener.local_addr().expect("an address").to_string();
    peer.run(&["SET k 1"]);
    let mut client = replica.connect();
    let line = ask(&mut client, "CLIENT LIST TYPE master");
    for part in [&*format!(" addr={address} "), " flags=M ", " db=1 ", " user=(superuser) "] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    let id = line.split("id=").nth(1).and_then(|rest| rest.split(' ').next()).expect("an id").to_owned();
    assert!(ask(&mut client, "CLIENT LIST").contains(&format!("id={id} addr={address} ")));
    assert!(ask(&mut client, &format!("CLIENT LIST ID {id}")).contains(" flags=M "));
    assert_eq!(info(&mut client, "clients", "connected_clients").as_deref(), Some("2"));
    // The link goes on with another connection, behind what came over this one.
    for (kill, reply) in [("CLIENT KILL TYPE master", ":1\r\n"), (&*format!("CLIENT KILL {address}"), "+OK\r\n")] {
        assert_eq!(ask(&mut client, kill), reply);
        let next = (peer.1 + 1).to_string();
        peer = Peer::accept(&listener);
        assert_eq!(peer.shake_hands(), ["PSYNC", ID, &next]);
        peer.1 = next.parse::<u64>().expect("a number") - 1;
        peer.send(b"+CONTINUE\r\n");
        peer.run(&["INCR k"]);
    }
    assert!(!ask(&mut client, "CLIENT LIST TYPE master").contains(&format!("id={id} ")));
    assert_eq!(ask(&mut client, "REPLICAOF NO ONE"), "+OK\r\n");
    assert_eq!(ask(&mut client, "CLIENT KILL TYPE master"), ":0\r\n");
}

#[test]
fn what_the_master_sends_during_a_pause_is_carried_out_behind_it() {
    let replica = Replica::start();
    let (_listener, mut peer) = stream(&replica);
    peer.run(&["SET k 1"]);
    let mut client = replica.connect();
    ask(&mut client, "SELECT 1");
    assert_eq!(ask(&mut client, "CLIENT PAUSE 100000 WRITE"), "+OK\r\n");
    let before = peer.1;
    peer.more(&encode(&["SET", "k", "2"]));
    let wanted = Some(peer.1.to_string());
    wait_for("the bytes", || (info(&mut client, "replication", "slave_read_repl_offset") == wanted).then_some(()));
    assert_eq!(info(&mut client, "replication", "slave_repl_offset"), Some(before.to_string()));
    assert_eq!(ask(&mut client, "GET k"), "$1\r\n1\r\n");
    assert_eq!(ask(&mut client, "CLIENT UNPAUSE"), "+OK\r\n");
    peer.wait_for_ack(peer.1);
    assert_eq!(ask(&mut client, "GET k"), "$1\r\n2\r\n");
}

#[test]
fn effects_that_others_do_not_know_come_with_pings() {
    let replica = Replica::start();
    let (_listener, mut peer) = stream(&replica);
    let text = "#SG:STICK a";
    peer.run_bytes(&[encode(&["PING"]), encode(&["PING", "x"]), encode(&["PING", text])].concat());
    let mut client = replica.connect();
    ask(&mut client, "SELECT 1");
    assert_eq!(ask(&mut client, "OBJECT STICKY a"), ":1\r\n");
    assert_eq!(info(&mut client, "replication", "master_link_status").as_deref(), Some("up"));
}
