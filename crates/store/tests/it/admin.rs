//! Commands about clusters and replication: CLUSTER, ROLE, WAIT…, compared with redis-server with and without a
//! cluster.

use std::time::{Duration, Instant};

use sluicegate_testkit::{Client, RedisServer, free_port, wait_for};

use crate::support::Running;

/// Compares the replies to a series of commands.
#[track_caller]
fn check_alike(redis: &str, ours: &Running, commands: &[&str]) {
    for protocol in ["2", "3"] {
        let (mut theirs, mut own) = (Client::connect(redis), ours.connect());
        for client in [&mut theirs, &mut own] {
            client.ask(&["HELLO", protocol]);
        }
        for command in commands {
            let words: Vec<&str> = command.split(' ').collect();
            assert_eq!(own.ask(&words), theirs.ask(&words), "{command} in RESP{protocol}");
        }
    }
}

#[test]
fn a_master_without_replicas_answers_as_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    check_alike(
        &redis.address(),
        &ours,
        &[
            "ROLE",
            "ROLE x",
            "REPLICAOF NO ONE",
            "slaveof no one",
            "REPLICAOF a",
            "WAIT 0 0",
            "WAIT 0 100",
            "WAIT -1 0",
            "WAIT 1 20",
            "WAIT x 1",
            "WAIT 1 x",
            "WAIT 1 -1",
            "WAIT 1",
            "SHUTDOWN foo",
            "SHUTDOWN ABORT",
            "SHUTDOWN ABORT NOW",
            "SHUTDOWN SAVE NOSAVE",
            "LOLWUT VERSION x",
            "CLUSTER",
            "CLUSTER FOO",
            "READONLY x",
            "READWRITE x",
            "ASKING x",
            "CLUSTER KEYSLOT",
        ],
    );
    let mut client = ours.connect();
    assert_eq!(client.ask(&["LOLWUT"]), "$17\r\nRedis ver. 7.2.5\n\r\n");
    assert!(client.ask(&["SHUTDOWN"]).starts_with("-ERR SHUTDOWN is refused: this store lives in a proxy's process"));
    for command in ["READONLY", "READWRITE", "ASKING"] {
        assert_eq!(client.ask(&[command]), "+OK\r\n");
    }
}

#[test]
fn wait_ends_with_its_time_and_not_before() {
    let ours = Running::start();
    let (mut client, mut other) = (ours.connect(), ours.connect());
    let start = Instant::now();
    client.send("WAIT 1 300\r\nPING\r\n");
    assert_eq!(other.ask(&["PING"]), "+PONG\r\n", "the worker serves the others");
    assert_eq!(client.read_reply(), b":0\r\n");
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert_eq!(client.read_reply(), b"+PONG\r\n");
    // Redis 7.2.
    for (command, expected) in [
        ("WAITAOF 0 0 0", "*2\r\n:0\r\n:0\r\n"),
        ("WAITAOF 0 1 20", "*2\r\n:0\r\n:0\r\n"),
        ("WAITAOF 1 0 0", "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n"),
        ("WAITAOF 2 0 0", "-ERR value is out of range, value must between 0 and 1\r\n"),
        ("WAITAOF 0 x 0", "-ERR value is out of range, must be positive\r\n"),
        ("WAITAOF x 0 0", "-ERR value is not an integer or out of range\r\n"),
        ("WAITAOF 0 -1 0", "-ERR value is out of range, must be positive\r\n"),
        ("WAITAOF 0 1 -1", "-ERR timeout is negative\r\n"),
    ] {
        assert_eq!(client.ask(&command.split(' ').collect::<Vec<_>>()), expected, "{command}");
    }
    // Another client may end the wait.
    let id = client.ask(&["CLIENT", "ID"]).trim_start_matches(':').trim().to_owned();
    for (command, how, expected) in [
        (&["WAIT", "1", "0"][..], None, ":0\r\n"),
        (&["WAIT", "1", "100000"], Some("TIMEOUT"), ":0\r\n"),
        (&["WAIT", "1", "0"], Some("ERROR"), "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"),
        (&["WAITAOF", "0", "1", "0"], None, "*2\r\n:0\r\n:0\r\n"),
    ] {
        client.command(command);
        wait_for("it to wait", || other.ask(&["CLIENT", "LIST", "ID", &id]).contains(" flags=b ").then_some(()));
        let words: Vec<&str> = ["CLIENT", "UNBLOCK", &id].into_iter().chain(how).collect();
        assert_eq!(other.ask(&words), ":1\r\n", "{command:?}");
        assert_eq!(client.read_reply(), expected.as_bytes(), "{command:?} {how:?}");
        assert_eq!(other.ask(&words), ":0\r\n", "nothing waits any more");
    }
    // A client that waits for ever can be killed.
    client.command(&["WAIT", "1", "0"]);
    wait_for("it to wait", || other.ask(&["CLIENT", "LIST", "ID", &id]).contains(" flags=b ").then_some(()));
    assert_eq!(other.ask(&["CLIENT", "KILL", "ID", &id]), ":1\r\n");
    assert_eq!(client.read_to_end(), b"");
}

/// Starts a redis-server that is a cluster of one node with all slots.
fn cluster() -> (RedisServer, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().display().to_string();
    let redis = RedisServer::start_with(|| {
        // The port that it would choose by itself may exceed the highest one.
        let bus = free_port().to_string();
        ["--cluster-enabled", "yes", "--dir", &folder, "--cluster-port", &bus].map(str::to_owned).to_vec()
    });
    let mut client = Client::connect(&redis.address());
    assert_eq!(client.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "+OK\r\n");
    wait_for("the cluster", || client.ask(&["CLUSTER", "INFO"]).contains("cluster_state:ok").then_some(()));
    (redis, directory)
}

#[test]
fn one_node_has_every_slot() {
    let (redis, _directory) = cluster();
    let ours = Running::start();
    check_alike(
        &redis.address(),
        &ours,
        &[
            "CLUSTER KEYSLOT foo{bar}",
            "CLUSTER KEYSLOT a",
            "SET {t}a 1",
            "SET {t}b 1",
            "CLUSTER COUNTKEYSINSLOT 15891",
            "CLUSTER COUNTKEYSINSLOT 1",
            "CLUSTER COUNTKEYSINSLOT x",
            "CLUSTER COUNTKEYSINSLOT 99999",
            "CLUSTER COUNTKEYSINSLOT -1",
            "CLUSTER GETKEYSINSLOT 1 5",
            "CLUSTER GETKEYSINSLOT 15891 0",
            "CLUSTER GETKEYSINSLOT 1 -1",
            "CLUSTER GETKEYSINSLOT 1 x",
            "CLUSTER GETKEYSINSLOT 99999 1",
            "CLUSTER LINKS",
            "CLUSTER REPLICAS x",
            "CLUSTER SLAVES x",
            "CLUSTER COUNT-FAILURE-REPORTS x",
            "READONLY",
            "READWRITE",
            "ASKING",
        ],
    );
    // The same except for addresses and names.
    let shown = |address: &str, command: &str| {
        let mut client = Client::connect(address);
        let id = client.ask(&["CLUSTER", "MYID"]).split("\r\n").nth(1).expect("an id").to_owned();
        let port = address.rsplit(':').next().expect("a port").to_owned();
        let bus = match client.ask(&["CONFIG", "GET", "cluster-port"]).split("\r\n").nth(4) {
            Some(bus) if bus != "0" => bus.to_owned(),
            _ => (port.parse::<u32>().expect("a number") + 10_000).to_string(),
        };
        let text = client.ask(&command.split(' ').collect::<Vec<_>>());
        // redis-server does not know its own address before another node tells it.
        let text = text.replace(&id, "ID").replace(&port, "PORT").replace(&bus, "BUS").replace("127.0.0.1", "");
        text.lines().filter(|line| !line.starts_with('$')).collect::<Vec<_>>().join("\n")
    };
    for command in ["CLUSTER INFO", "CLUSTER NODES", "CLUSTER SLOTS", "CLUSTER SHARDS"] {
        assert_eq!(shown(&ours.address(), command), shown(&redis.address(), command), "{command}");
    }
    let mut client = ours.connect();
    assert!(client.ask(&["CLUSTER", "SLOTS"]).contains("\r\n127.0.0.1\r\n"), "clients are told an address");
    assert_eq!(client.ask(&["CLUSTER", "MYSHARDID"]), client.ask(&["CLUSTER", "MYID"]));
    let id = client.ask(&["CLUSTER", "MYID"]).split("\r\n").nth(1).expect("an id").to_owned();
    assert_eq!(client.ask(&["CLUSTER", "REPLICAS", &id]), "*0\r\n");
    assert_eq!(client.ask(&["CLUSTER", "COUNT-FAILURE-REPORTS", &id]), ":0\r\n");
    assert!(client.ask(&["CLUSTER", "HELP"]).starts_with('*'));
}

#[test]
fn a_cluster_client_connects() {
    let ours = Running::start();
    let cli = |words: &[&str]| {
        let output = std::process::Command::new("redis-cli")
            .args(["-c", "-p", &ours.port.to_string()])
            .args(words)
            .output()
            .expect("redis-cli starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(cli(&["SET", "foo", "1"]), "OK\n");
    assert_eq!(cli(&["GET", "foo"]), "1\n");
}

#[test]
fn what_is_not_here_is_refused_by_name() {
    let ours = Running::start();
    let mut client = ours.connect();
    for (command, why) in [
        ("MIGRATE", "command 'MIGRATE': the store is one node that has every slot"),
        ("CLUSTER ADDSLOTS 1", "subcommand 'ADDSLOTS' of CLUSTER: the store is one node that has every slot"),
        ("MODULE LOAD x", "subcommand 'LOAD' of MODULE: modules are not supported"),
    ] {
        let reply = client.ask(&command.split(' ').collect::<Vec<_>>());
        assert_eq!(reply, format!("-ERR unknown {why}\r\n"), "{command}");
    }
}

/// Parameters of one store do not affect another store of the process (defect: they were statics).
#[test]
fn the_parameters_of_a_store_are_its_own() {
    let (changed, other) = (Running::start(), Running::start());
    let (mut changed, mut other) = (changed.connect(), other.connect());
    let small = [
        ("hash-max-listpack-entries", "HSET k a 1 b 2", "listpack", "hashtable"),
        ("set-max-intset-entries", "SADD k 1 2", "intset", "listpack"),
        ("set-max-listpack-entries", "SADD k a b", "listpack", "hashtable"),
        ("zset-max-listpack-entries", "ZADD k 1 a 2 b", "listpack", "skiplist"),
        ("list-max-listpack-size", "RPUSH k a b", "listpack", "quicklist"),
    ];
    for (parameter, command, before, after) in small {
        let words: Vec<&str> = command.split(' ').collect();
        assert_eq!(changed.ask(&["CONFIG", "SET", parameter, "1"]), "+OK\r\n");
        for (client, expected) in [(&mut changed, after), (&mut other, before)] {
            client.ask(&words);
            let encoding = client.ask(&["OBJECT", "ENCODING", "k"]);
            assert!(encoding.contains(&format!("\r\n{expected}\r\n")), "{parameter}: {encoding:?}");
            client.ask(&["DEL", "k"]);
        }
    }
    let nodes = |client: &mut sluicegate_testkit::Client| {
        client.ask(&["XADD", "k", "*", "a", "1"]);
        client.ask(&["XADD", "k", "*", "a", "1"]);
        client.ask(&["XINFO", "STREAM", "k"])
    };
    assert_eq!(changed.ask(&["CONFIG", "SET", "stream-node-max-entries", "1"]), "+OK\r\n");
    assert!(nodes(&mut changed).contains("radix-tree-keys\r\n:2\r\n"));
    assert!(nodes(&mut other).contains("radix-tree-keys\r\n:1\r\n"));
    let bytes = |client: &mut sluicegate_testkit::Client| {
        client.ask(&["PFADD", "h", "a", "b", "c", "d"]);
        client.ask(&["PFDEBUG", "ENCODING", "h"])
    };
    assert_eq!(changed.ask(&["CONFIG", "SET", "hll-sparse-max-bytes", "20"]), "+OK\r\n");
    assert!(bytes(&mut changed).contains("dense") && bytes(&mut other).contains("sparse"));
    // A server that starts later with default parameters does not reset the changed ones.
    let third = Running::start();
    assert!(third.connect().ask(&["PING"]).contains("PONG"));
    assert_eq!(changed.ask(&["HSET", "k2", "a", "1", "b", "2"]), ":2\r\n");
    assert!(changed.ask(&["OBJECT", "ENCODING", "k2"]).contains("hashtable"));
}
