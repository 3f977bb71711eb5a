//! What clients see of a replica.

use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, RedisServer, encode, wait_for};
use sluicegate_wire::engine::{Engine, Started};

use super::nonsense::{Peer, stream};
use super::{Replica, ask, info, wait_in_step};
use crate::support::exchange;

/// What clients send to a replica, each in a connection of its own.
const TO_A_REPLICA: &[&str] = &[
    "SET a b\r\nGET a\r\nDEL a\r\nEXPIRE a 1\r\nGETEX a EX 1\r\nBLPOP l 1\r\nSORT l STORE m\r\nSORT_RO l\r\nPFCOUNT p\r\nMSET a b\r\n",
    "MULTI\r\nGET a\r\nSET a b\r\nEXEC\r\nMULTI\r\nGET a\r\nEXEC\r\n",
    "EVAL 'return redis.call(\"SET\", KEYS[1], 1)' 1 a\r\nEVAL 'return redis.call(\"GET\", KEYS[1])' 1 a\r\n",
    "EVAL 'return redis.pcall(\"SET\", KEYS[1], 1)' 1 a\r\nEVAL_RO 'return redis.call(\"SET\", KEYS[1], 1)' 1 a\r\n",
    "EVAL \"#!lua\\nreturn 1\" 0\r\nEVAL \"#!lua flags=no-writes\\nreturn 1\" 0\r\n",
    "FLUSHALL\r\nFLUSHDB\r\nSWAPDB 0 1\r\nFUNCTION FLUSH\r\nSCRIPT FLUSH\r\nFUNCTION LIST\r\nPUBLISH c d\r\n",
    "XGROUP CREATE x g 0 MKSTREAM\r\nXREADGROUP GROUP g c STREAMS x >\r\nXREAD COUNT 1 STREAMS x 0\r\n",
    "REPLICAOF 127.0.0.1 x\r\nREPLICAOF 127.0.0.1 70000\r\nREPLICAOF 127.0.0.1 -1\r\nSLAVEOF a\r\nREPLICAOF no two\r\n",
    "CONFIG GET replica-read-only\r\nCONFIG GET slave-priority\r\nCONFIG GET slaveof\r\nCONFIG GET masteruser\r\nCONFIG SET replicaof x\r\n",
    "CONFIG SET replica-priority -1\r\nCONFIG SET slave-priority 5\r\nCONFIG GET replica-priority\r\nCONFIG SET repl-timeout 0\r\n",
    "CONFIG SET replica-read-only maybe\r\nCONFIG SET replica-announce-port 70000\r\nCONFIG SET repl-timeout 61\r\nCONFIG GET repl-timeout\r\n",
];

/// What clients send while the link to the master is down and `replica-serve-stale-data` is `no`.
const TO_A_STALE_ONE: &[&str] = &[
    "GET a\r\nSET a b\r\nPING\r\nECHO x\r\nDBSIZE\r\nKEYS *\r\nSELECT 1\r\nTYPE a\r\nINFO nosuch\r\nCONFIG GET timeout\r\n",
    "MULTI\r\nGET a\r\nEXEC\r\nMULTI\r\nPING\r\nEXEC\r\nMULTI\r\nSELECT 1\r\nCONFIG GET timeout\r\nEXEC\r\n",
    "EVAL 'return 1' 0\r\nEVAL 'return redis.call(\"GET\", KEYS[1])' 1 a\r\nEVAL \"#!lua\\nreturn 1\" 0\r\n",
    "EVAL \"#!lua flags=allow-stale\\nreturn redis.call('ECHO', 'x')\" 0\r\nEVAL \"#!lua flags=allow-stale\\nreturn redis.call('GET', 'x')\" 0\r\n",
    "EVAL 'return redis.call(\"SET\", KEYS[1], 1)' 1 a\r\nEVAL \"#!lua flags=no-writes\\nreturn 1\" 0\r\nSCRIPT LOAD 'return 1'\r\n",
    "SUBSCRIBE a\r\nPING\r\nUNSUBSCRIBE\r\n",
    "PUBLISH a b\r\nPUBSUB NUMPAT\r\nWATCH a\r\nUNWATCH\r\nCLIENT GETNAME\r\nSLOWLOG LEN x\r\nSLOWLOG RESET\r\nLASTSAVE x\r\nFUNCTION LIST\r\nHELLO 9\r\n",
    "OBJECT ENCODING a\r\nMEMORY USAGE a\r\nSCAN 0\r\nRANDOMKEY\r\nXREAD BLOCK 1 STREAMS s $\r\nBLPOP a 1\r\nCOMMAND COUNT x\r\n",
];

/// What clients that understand redirections send to a replica, each in a connection of its own.
const TO_REDIRECT: &[&str] = &[
    "CLIENT CAPA\r\nCLIENT CAPA nosuch\r\nGET a\r\nCLIENT CAPA nosuch Redirect\r\nGET a\r\nSET a b\r\nREADONLY\r\nGET a\r\nSET a b\r\nREADWRITE\r\nGET a\r\n",
    "CLIENT CAPA redirect\r\nDBSIZE\r\nKEYS *\r\nSCAN 0\r\nRANDOMKEY\r\nOBJECT ENCODING a\r\nMEMORY USAGE a\r\nXREAD COUNT 1 STREAMS s 0\r\nBLPOP l 1\r\nSORT a\r\nPFCOUNT p\r\n",
    "CLIENT CAPA redirect\r\nPING\r\nECHO x\r\nSELECT 1\r\nSELECT 0\r\nWATCH a\r\nUNWATCH\r\nPUBLISH c d\r\nFUNCTION LIST\r\nFUNCTION FLUSH\r\nSCRIPT EXISTS a\r\nFLUSHALL\r\nSWAPDB 0 1\r\nGET\r\nSET a\r\n",
    "CLIENT CAPA redirect\r\nMULTI\r\nGET a\r\nPING\r\nEXEC\r\nMULTI\r\nPING\r\nEXEC\r\nREADONLY\r\nMULTI\r\nGET a\r\nEXEC\r\nMULTI\r\nGET a\r\nSET a b\r\nEXEC\r\nMULTI\r\nREADWRITE\r\nGET a\r\nEXEC\r\nGET a\r\n",
    "CLIENT CAPA redirect\r\nEVAL 'return 1' 0\r\nEVAL 'return redis.call(\"GET\", KEYS[1])' 1 a\r\nEVAL_RO 'return redis.call(\"GET\", KEYS[1])' 1 a\r\nREADONLY\r\nEVAL_RO 'return redis.call(\"GET\", KEYS[1])' 1 a\r\n",
    "CLIENT CAPA redirect\r\nREADONLY\r\nRESET\r\nGET a\r\nSUBSCRIBE c\r\nPING\r\nUNSUBSCRIBE c\r\nGET a\r\n",
    "CONFIG GET primaryauth\r\nCONFIG GET primarya*\r\nCONFIG GET *ryuser\r\nCONFIG SET primaryuser u\r\nCONFIG GET masteruser\r\nCONFIG SET masteruser v\r\nCONFIG GET PrimaryUser\r\nCONFIG SET primaryuser ''\r\n",
];

/// Sends the same to two servers, and returns the differences of what they reply.
fn differences(addresses: &[String; 2], requests: &[&str]) -> String {
    let mut differences = String::new();
    for request in requests {
        let replies = addresses
            .each_ref()
            .map(|address| String::from_utf8_lossy(&exchange(address, request.as_bytes())).into_owned());
        if replies[0] != replies[1] {
            differences += &format!("{request:?}\n  redis: {:?}\n  ours:  {:?}\n", replies[0], replies[1]);
        }
    }
    differences
}

#[test]
fn a_replica_answers_as_one_of_redis() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("text");
    let master = RedisServer::start(&["--repl-diskless-sync-delay", "0", "--dir", path]);
    let theirs = RedisServer::start(&["--dir", path]);
    let ours = Replica::start();
    let mut here = ours.connect();
    let mut there = Client::connect(&theirs.address());
    let mut admin = Client::connect(&master.address());
    ask(&mut admin, "RPUSH l 1 2 3");
    ask(&mut admin, "XADD x 1-1 f v");
    let replicaof = format!("REPLICAOF 127.0.0.1 {}", master.port);
    for client in [&mut here, &mut there] {
        assert_eq!(ask(client, &replicaof), "+OK\r\n");
        wait_in_step(&mut admin, client);
    }
    let addresses = [theirs.address(), ours.running.address()];
    assert_eq!(differences(&addresses, TO_A_REPLICA), "");
    assert_eq!(
        differences(&addresses, &[&format!("{replicaof}\r\n"), "CONFIG GET replicaof\r\n", "HELLO 3\r\n"][..2]),
        ""
    );
    // The lines of INFO, without figures.
    let lines = |client: &mut Client| -> Vec<String> {
        let info = client.ask(&["INFO", "replication"]);
        let lines = info.lines().skip(1).take_while(|line| !line.starts_with("connected_slaves"));
        let names = lines.map(|line| match line.split_once(':') {
            Some((name, _)) if name.contains("offset") || name.contains("seconds") => name.to_owned(),
            _ => line.to_owned(),
        });
        names.collect()
    };
    assert_eq!(lines(&mut there), lines(&mut here));
    assert_eq!(ask(&mut there, "ROLE")[..30], ask(&mut here, "ROLE")[..30]);
    // Rules, scripts of the proxy, and scripts that run their commands one by one.
    let inside = |words: &[&[u8]]| match ours.running.store().start(0, words) {
        Started::Done(reply) => format!("{reply:?}"),
        Started::Pending(_) => panic!("it waits"),
    };
    assert!(inside(&[b"SET", b"a", b"b"]).contains("READONLY You can't write against a read only replica."));
    assert!(!inside(&[b"GET", b"a"]).contains("Error"));
    assert!(ours.running.store().together(&String::new, 0, &[&[b"SET", b"a", b"b"], &[b"GET", b"a"]]).is_none());
    assert!(ours.running.store().together(&String::new, 0, &[&[b"GET", b"a"], &[b"GET", b"b"]]).is_some());
    let script = "--!df flags=disable-atomicity\nreturn redis.pcall('SET', 'a', 'b')";
    assert!(here.ask(&["EVAL", script, "0"]).starts_with("-READONLY "));
    for client in [&mut here, &mut there] {
        assert_eq!(ask(client, "CONFIG SET replica-serve-stale-data no"), "+OK\r\n");
        assert_eq!(ask(client, "REPLICAOF 127.0.0.1 1"), "+OK\r\n");
    }
    assert_eq!(differences(&addresses, TO_A_STALE_ONE), "");
    let inside = ours.running.store().start(0, &[b"GET", b"a"]);
    assert!(matches!(inside, Started::Done(reply) if format!("{reply:?}").contains("MASTERDOWN")));
    assert_eq!(lines(&mut there), lines(&mut here));
    for client in [&mut here, &mut there] {
        assert_eq!(ask(client, "REPLICAOF NO ONE"), "+OK\r\n");
        assert_eq!(ask(client, "GET a"), "$-1\r\n");
        assert_eq!(ask(client, "SET a b"), "+OK\r\n");
        assert!(ask(client, "ROLE").contains("master"));
    }
}

#[test]
fn what_expires_is_hidden_and_removed_by_the_master_alone() {
    let replica = Replica::start();
    let (_listener, mut peer) = stream(&replica);
    let mut client = replica.connect();
    peer.run(&["SELECT 0", "SET k v", "PEXPIREAT k 1", "HSET h f v", "PEXPIREAT h 1", "SET gone v PXAT 1"]);
    for (command, reply) in
        [("GET k", "$-1\r\n"), ("EXISTS k h gone", ":0\r\n"), ("HGET h f", "$-1\r\n"), ("DBSIZE", ":3\r\n")]
    {
        assert_eq!(ask(&mut client, command), reply, "{command}");
    }
    // For the master they are there, and may be revived.
    peer.run(&["APPEND k x", "PERSIST k", "HINCRBY h n 1", "MULTI", "PERSIST h", "SET other 1", "EXEC", "DEL gone"]);
    for (command, reply) in
        [("GET k", "$2\r\nvx\r\n"), ("HGET h f", "$1\r\nv\r\n"), ("HLEN h", ":2\r\n"), ("DBSIZE", ":3\r\n")]
    {
        assert_eq!(ask(&mut client, command), reply, "{command}");
    }
    assert_eq!(info(&mut client, "stats", "expired_keys").as_deref(), Some("0"));
    // A master removes what has expired itself.
    peer.run(&["PEXPIREAT k 1"]);
    assert_eq!(ask(&mut client, "REPLICAOF NO ONE"), "+OK\r\n");
    wait_for("the key to go", || {
        replica.running.store().tick();
        (ask(&mut client, "DBSIZE") == ":2\r\n").then_some(())
    });
}

#[test]
fn transactions_of_the_master_are_seen_whole() {
    let replica = Replica::start();
    let (_listener, mut peer) = stream(&replica);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut client = replica.connect();
            ask(&mut client, "SELECT 1");
            let mut seen = 0;
            while !is_over.load(Ordering::SeqCst) {
                let reply = ask(&mut client, "MGET x y z");
                let values: Vec<&str> = reply.lines().skip(2).step_by(2).collect();
                assert!(values.windows(2).all(|pair| pair[0] == pair[1]), "{reply}");
                seen += 1;
            }
            seen
        });
        // Short ones, which lock their keys together, and long ones, which hold them.
        for number in 0..200 {
            let mut sent = vec![encode(&["MULTI"])];
            let value = number.to_string();
            sent.extend(["x", "y"].map(|key| encode(&["SET", key, &value])));
            for more in 0..if number % 4 == 0 { 100 } else { 0 } {
                sent.push(encode(&["SADD", "s", &more.to_string(), &value]));
            }
            sent.push(encode(&["SET", "z", &value]));
            sent.push(encode(&["EXEC"]));
            match number % 50 {
                0 => peer.run_bytes(&sent.concat()),
                _ => peer.more(&sent.concat()),
            }
        }
        peer.run(&[]);
        is_over.store(true, Ordering::SeqCst);
        assert!(reader.join().expect("no panic") > 0);
    });
}

/// MONITOR shows what comes from the master as a replica of Redis does: its address, the database, each command when it has run.
#[test]
fn monitor_shows_the_commands_of_the_master() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("text");
    let ping = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];
    let master = RedisServer::start(&[&ping[..], &["--dir", path]].concat());
    let theirs = RedisServer::start(&["--dir", path]);
    let ours = Replica::start();
    let mut client = Client::connect(&master.address());
    ask(&mut Client::connect(&theirs.address()), &format!("REPLICAOF 127.0.0.1 {}", master.port));
    ours.follow(master.port);
    let addresses = [theirs.address(), ours.running.address()];
    for address in &addresses {
        wait_in_step(&mut client, &mut Client::connect(address));
    }
    let mut monitors = addresses.each_ref().map(|address| Client::connect(address));
    for monitor in &mut monitors {
        assert_eq!(ask(monitor, "MONITOR"), "+OK\r\n");
    }
    for line in [
        "SET a 1",
        "SELECT 3",
        "SET b 2 EX 1000",
        "MULTI",
        "SET x 1",
        "SELECT 5",
        "INCR y",
        "EXEC",
        "MULTI",
        "SET only one",
        "EXEC",
        "SPOP none",
        "PUBLISH ch \u{e9}\u{0}",
        "FLUSHDB",
        "SCRIPT FLUSH",
    ] {
        ask(&mut client, line);
    }
    client.ask(&["EVAL", "redis.call('SET', 'k', 'v') redis.call('incr', 'n')", "2", "k", "n"]);
    ask(&mut client, "SET last 1");
    let shown = monitors.map(|mut monitor| {
        let (mut lines, mut pings) = (Vec::new(), 0);
        while pings == 0 || !lines.last().is_some_and(|line: &String| line.contains("last")) {
            let line = String::from_utf8_lossy(&monitor.read_reply()).into_owned();
            let (_, line) = line.split_once(' ').expect("a time before it");
            // The database is that of the moment.
            match line.contains("\"ping\"") {
                true => pings += usize::from(line.ends_with(&format!(" 127.0.0.1:{}] \"ping\"\r\n", master.port))),
                false => lines.push(line.to_owned()),
            }
        }
        lines
    });
    assert_eq!(shown[1], shown[0]);
    assert_eq!(shown[0][1], format!("[0 127.0.0.1:{}] \"SET\" \"a\" \"1\"\r\n", master.port));
}

#[test]
fn clients_are_told_of_what_the_master_changes() {
    let replica = Replica::start();
    let (_listener, mut peer) = stream(&replica);
    let [mut blocked, mut watching, mut listening, mut admin] = [(); 4].map(|()| replica.connect());
    for client in [&mut blocked, &mut watching] {
        ask(client, "SELECT 1");
    }
    ask(&mut admin, "CONFIG SET notify-keyspace-events KEA");
    listening.command(&["SUBSCRIBE", "c", "__keyspace@1__:k"]);
    (0..2).for_each(|_| drop(listening.read_reply()));
    blocked.command(&["XREAD", "BLOCK", "0", "STREAMS", "x", "$"]);
    wait_for("a blocked client", || {
        (info(&mut admin, "clients", "blocked_clients").as_deref() == Some("1")).then_some(())
    });
    ask(&mut watching, "WATCH k");
    peer.run(&["XADD x 1-1 f v", "SET k v", "PUBLISH c message", "MULTI", "PUBLISH c second", "SET k w", "EXEC"]);
    assert!(String::from_utf8_lossy(&blocked.read_reply()).contains("1-1"));
    ask(&mut watching, "MULTI");
    ask(&mut watching, "GET k");
    assert_eq!(ask(&mut watching, "EXEC"), "*-1\r\n");
    let told: Vec<String> = (0..4).map(|_| String::from_utf8_lossy(&listening.read_reply()).into_owned()).collect();
    for text in ["set", "message", "second"] {
        assert!(told.iter().any(|reply| reply.contains(&format!("\r\n{text}\r\n"))), "{text}: {told:?}");
    }
}

#[test]
fn a_replica_becomes_a_master_and_keeps_its_data() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("redis.conf");
    std::fs::write(&path, "timeout 0\nreplicaof 127.0.0.1 1\n").expect("written");
    let written = || std::fs::read_to_string(&path).expect("read");
    for in_transaction in [false, true] {
        let replica = Replica::start();
        replica.running.server.set_config_file(path.to_str().expect("text"));
        let (listener, mut peer) = stream(&replica);
        peer.run(&["SET k v"]);
        let mut client = replica.connect();
        assert_eq!(ask(&mut client, "CONFIG REWRITE"), "+OK\r\n");
        let port = listener.local_addr().expect("bound").port();
        assert_eq!(
            written(),
            format!("timeout 0\nreplicaof 127.0.0.1 {port}\n# Generated by CONFIG REWRITE\n")
                .replace("# Generated by CONFIG REWRITE\n", "")
        );
        if in_transaction {
            for command in ["MULTI", "SLAVEOF NO ONE", "CONFIG REWRITE", "CLIENT KILL TYPE pubsub"] {
                ask(&mut client, command);
            }
            assert_eq!(ask(&mut client, "EXEC"), "*3\r\n+OK\r\n+OK\r\n:0\r\n");
        } else {
            assert_eq!(ask(&mut client, "SLAVEOF no one"), "+OK\r\n");
            assert_eq!(ask(&mut client, "CONFIG REWRITE"), "+OK\r\n");
        }
        assert_eq!(written(), "timeout 0\n");
        wait_for("a master", || (ask(&mut client, "SET a b") == "+OK\r\n").then_some(()));
        ask(&mut client, "SELECT 1");
        assert_eq!(ask(&mut client, "GET k"), "$1\r\nv\r\n");
        assert_eq!(info(&mut client, "replication", "role").as_deref(), Some("master"));
        peer.wait_for_end();
        replica.wait_for_line(0, "MASTER MODE enabled (user request from 'id=");
        assert_eq!(ask(&mut client, "REPLICAOF NO ONE"), "+OK\r\n");
        std::fs::write(&path, "timeout 0\nreplicaof 127.0.0.1 1\n").expect("written");
    }
}

/// A script that does not end holds up the change of role, and the client that wants it is told so.
#[test]
fn a_change_of_role_behind_an_endless_script_is_busy() {
    const BUSY: &str = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";
    let replica = Replica::start();
    let (listener, _peer) = stream(&replica);
    let [mut client, mut scripting, mut changing] = [(); 3].map(|()| replica.connect());
    ask(&mut client, "CONFIG SET busy-reply-threshold 50");
    let script = "while true do redis.call('GET', KEYS[1]) end";
    scripting.command(&["EVAL", script, "1", "k"]);
    // It has its key once others wait for that in vain.
    wait_for("the script to run", || (ask(&mut client, "GET k") == BUSY).then_some(()));
    // While it is young it is waited for.
    ask(&mut client, "CONFIG SET busy-reply-threshold 0");
    changing.command(&["REPLICAOF", "NO", "ONE"]);
    wait_for("the order", || info(&mut client, "replication", "master_host").is_none().then_some(()));
    ask(&mut client, "CONFIG SET busy-reply-threshold 50");
    assert_eq!(String::from_utf8_lossy(&changing.read_reply()), BUSY);
    assert_eq!(ask(&mut client, "REPLICAOF 127.0.0.1 1"), BUSY);
    let port = listener.local_addr().expect("bound").port();
    assert_eq!(ask(&mut client, "SCRIPT KILL"), "+OK\r\n");
    assert!(scripting.read_line().contains("Script killed by user"));
    wait_for("a master", || (ask(&mut client, "SET a b") == "+OK\r\n").then_some(()));
    assert_eq!(ask(&mut client, &format!("REPLICAOF 127.0.0.1 {port}")), "+OK\r\n");
}

#[test]
fn a_replica_that_may_be_written_to_and_one_that_is_full() {
    let replica = Replica::with(ServerOptions { replica_read_only: false, ..ServerOptions::default() });
    let (_listener, mut peer) = stream(&replica);
    let mut client = replica.connect();
    assert_eq!(ask(&mut client, "SET own v PX 1"), "+OK\r\n");
    // Its own keys expire for it, too, and a write finds them gone.
    wait_for("the key to expire", || (ask(&mut client, "GET own") == "$-1\r\n").then_some(()));
    assert_eq!(ask(&mut client, "APPEND own x"), ":1\r\n");
    assert_eq!(ask(&mut client, "CONFIG SET replica-read-only yes"), "+OK\r\n");
    assert!(ask(&mut client, "SET own v").starts_with("-READONLY"));
    // Only the master keeps within the memory.
    assert_eq!(ask(&mut client, "CONFIG SET maxmemory-policy allkeys-lru maxmemory 1"), "+OK\r\n");
    peer.run(&["SET k v", "MULTI", "SET l v", "SET m v", "EXEC"]);
    ask(&mut client, "SELECT 1");
    assert_eq!(ask(&mut client, "MGET k l m a"), "*4\r\n$1\r\nv\r\n$1\r\nv\r\n$1\r\nv\r\n$5\r\nvalue\r\n");
    assert_eq!(ask(&mut client, "CONFIG SET replica-ignore-maxmemory no"), "+OK\r\n");
    wait_for("keys to be evicted", || {
        replica.running.store().tick();
        (ask(&mut client, "DBSIZE") == ":0\r\n").then_some(())
    });
}

/// Clients that say that they understand it are told of the master, as by Valkey 8.1, and the parameters about it have Valkey's
/// names, too.
#[test]
fn clients_are_redirected_to_the_master_as_by_valkey() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("text");
    let master = RedisServer::start_valkey("8.1", &["--repl-diskless-sync-delay", "0", "--dir", path]);
    let theirs = RedisServer::start_valkey("8.1", &["--dir", path]);
    let ours = Replica::start();
    let mut client = Client::connect(&master.address());
    ask(&mut client, "SET a 1");
    let addresses = [theirs.address(), ours.running.address()];
    // Their clients are told of it once they have a master.
    let mut clients = addresses.each_ref().map(|address| Client::connect(address));
    for client in &mut clients {
        assert_eq!(ask(client, "CLIENT CAPA redirect"), "+OK\r\n");
        for (line, reply) in
            [("MULTI", "+OK\r\n"), ("GET a", "+QUEUED\r\n"), ("SET a b", "+QUEUED\r\n"), ("READONLY", "+QUEUED\r\n")]
        {
            assert_eq!(ask(client, line), reply);
        }
    }
    for address in &addresses {
        let mut replica = Client::connect(address);
        ask(&mut replica, &format!("REPLICAOF 127.0.0.1 {}", master.port));
        wait_in_step(&mut client, &mut replica);
    }
    let told = clients.each_mut().map(|client| ["EXEC", "EXEC", "GET a", "PING"].map(|line| ask(client, line)));
    assert_eq!(told[1], told[0]);
    assert_eq!(told[1][0], format!("-REDIRECT 127.0.0.1:{}\r\n", master.port));
    assert_eq!(differences(&addresses, TO_REDIRECT), "");
    // A replica that may be written to sends them away, too.
    for client in &mut clients {
        assert_eq!(ask(client, "CONFIG SET replica-read-only no"), "+OK\r\n");
        assert!(ask(client, "SET a b").starts_with("-REDIRECT "));
    }
    let mut plain = ours.connect();
    assert_eq!(ask(&mut plain, "GET a"), "$1\r\n1\r\n");
    assert_eq!(ask(&mut plain, "REPLICAOF NO ONE"), "+OK\r\n");
    assert_eq!(ask(&mut clients[1], "SET a b"), "+OK\r\n");
}

/// A replica removes what its own clients let expire, as Redis does, and nothing else.
#[test]
fn keys_that_clients_of_a_replica_let_expire_are_removed_by_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("text");
    let master = RedisServer::start(&["--repl-diskless-sync-delay", "0", "--dir", path]);
    let theirs = RedisServer::start(&["--dir", path, "--replica-read-only", "no"]);
    let ours = Replica::with(ServerOptions { replica_read_only: false, ..ServerOptions::default() });
    let mut of_master = Client::connect(&master.address());
    ask(&mut of_master, "MSET m v n v");
    ask(&mut Client::connect(&theirs.address()), &format!("REPLICAOF 127.0.0.1 {}", master.port));
    ours.follow(master.port);
    let mut clients = [Client::connect(&theirs.address()), ours.connect()];
    for client in &mut clients {
        wait_in_step(&mut of_master, client);
        assert_eq!(ask(client, "CONFIG SET notify-keyspace-events Ex"), "+OK\r\n");
    }
    let mut listeners = [Client::connect(&theirs.address()), ours.connect()];
    for listener in &mut listeners {
        ask(listener, "SUBSCRIBE __keyevent@0__:expired");
    }
    let told = clients.each_mut().map(|client| {
        for line in [
            "SET a v PX 50",
            "SET b v",
            "PEXPIRE b 50",
            "SET c v PX 100000",
            "SET d v PX 2000",
            "RENAME d e",
            "SET f v PX 2000",
            "PERSIST f",
            "SET g v PX 2000",
            "SET g w",
            "MULTI",
            "SET h v",
            "PEXPIRE h 20",
            "EXEC",
            "RPUSH l v",
            "SELECT 1",
            "SET a v PX 50",
            "SELECT 0",
            "PEXPIRE m 50",
        ] {
            let reply = ask(client, line);
            assert!(!reply.starts_with('-'), "{line}: {reply}");
        }
        client.ask(&["EVAL", "redis.call('SET', KEYS[1], 'v', 'PX', 20)", "1", "s"]);
        // What is left: c, f, g, l and n; of the other database nothing.
        wait_for("keys to be removed", || {
            let is_left = ask(client, "DBSIZE") == ":5\r\n" && info(client, "keyspace", "db1").is_none();
            let tracked = info(client, "stats", "slave_expires_tracked_keys");
            (is_left && tracked.as_deref() == Some("1")).then_some(())
        });
        let of_keys = ["TTL m", "TTL c", "TTL f", "EXISTS a b e h s m", "TYPE l"].map(|line| ask(client, line));
        let expired = info(client, "stats", "expired_keys");
        assert_eq!(ask(client, "FLUSHALL"), "+OK\r\n");
        (of_keys, expired, info(client, "stats", "slave_expires_tracked_keys"))
    });
    assert_eq!(told[1], told[0]);
    let names = listeners.map(|mut listener| {
        let mut names: Vec<String> =
            (0..6).map(|_| String::from_utf8_lossy(&listener.read_reply()).into_owned()).collect();
        names.sort();
        names
    });
    assert_eq!(names[1], names[0]);

    // The keys of the master stay, hidden, until it says otherwise.
    let (_listener, mut peer) = stream(&ours);
    let mut client = ours.connect();
    ask(&mut client, "SELECT 1");
    let before = ask(&mut client, "DBSIZE");
    peer.run(&["SET k v PX 1"]);
    assert_eq!(ask(&mut client, "SET own v PX 1"), "+OK\r\n");
    wait_for("the own key to be removed", || {
        (info(&mut client, "stats", "slave_expires_tracked_keys").as_deref() == Some("0")).then_some(())
    });
    assert_eq!(ask(&mut client, "GET k"), "$-1\r\n");
    assert_ne!(ask(&mut client, "DBSIZE"), before);
}

/// Within a transaction the store becomes a master behind it: what the transaction does belongs to the history before that.
#[test]
fn a_transaction_that_ends_the_link_is_of_the_old_history() {
    let replica = Replica::start();
    let mut client = replica.connect();
    assert_eq!(ask(&mut client, "REPLICAOF 127.0.0.1 1"), "+OK\r\n");
    for line in ["MULTI", "REPLICAOF NO ONE", "ROLE"] {
        ask(&mut client, line);
    }
    client.ask(&["EVAL", "return redis.call('SET', 'k', 'v')", "0"]);
    let told = ask(&mut client, "EXEC");
    assert!(told.starts_with("*3\r\n+OK\r\n*3\r\n$6\r\nmaster\r\n"), "{told}");
    // The script writes, or is still refused.
    assert!(told.ends_with("$2\r\nOK\r\n") || told.ends_with("+OK\r\n") || told.contains("-READONLY "), "{told}");
    wait_for("the store to be a master", || (ask(&mut client, "SET k v") == "+OK\r\n").then_some(()));
    assert_eq!(info(&mut client, "replication", "role").as_deref(), Some("master"));
}

#[test]
fn clients_that_wait_for_what_a_replica_cannot_give_are_told() {
    let replica = Replica::start();
    let mut admin = replica.connect();
    let mut blocked = ["BLPOP l 0", "XREAD BLOCK 0 STREAMS s $", "WAIT 1 0"].map(|line| {
        let mut client = replica.connect();
        client.send([encode(&line.split(' ').collect::<Vec<_>>()), encode(&["SET", "after", "1"])].concat());
        client
    });
    wait_for("blocked clients", || {
        (info(&mut admin, "clients", "blocked_clients").as_deref() == Some("3")).then_some(())
    });
    let (listener, mut peer) = stream(&replica);
    // They are told, and disconnected: what they have sent behind it is not run.
    for client in &mut blocked {
        let told = String::from_utf8_lossy(&client.read_to_end()).into_owned();
        assert_eq!(
            told,
            "-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n"
        );
    }
    // Another order ends this link at once.
    peer.run(&["SET k v"]);
    ask(&mut admin, "REPLICAOF 127.0.0.1 1");
    peer.wait_for_end();
    ask(&mut admin, &format!("REPLICAOF 127.0.0.1 {}", listener.local_addr().expect("bound").port()));
    let psync = Peer::accept(&listener).shake_hands();
    assert_ne!(psync[1], "?");
}
