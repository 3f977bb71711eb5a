//! MULTI and related commands: the same bytes as redis-server's, and atomicity among many clients.

use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_store::Mode;
use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, RedisServer, wait_for};

use crate::server::{check_alike, check_alike_by_default};
use crate::support::Running;
use crate::{Random, block_on};

/// Requests whose replies must be the same to the byte. Each runs on a connection of its own.
const ALIKE: &[&str] = &[
    "MULTI\r\nMULTI\r\nWATCH a\r\nUNWATCH\r\nEXEC\r\n",
    "EXEC\r\nDISCARD\r\nWATCH\r\nMULTI a\r\nUNWATCH\r\nUNWATCH a\r\nDISCARD a\r\n",
    "MULTI\r\nnosuch\r\nSET a\r\nEXEC\r\nPING\r\n",
    "MULTI\r\nSET a 1\r\nEXEC a\r\nEXEC\r\nGET a\r\n",
    "MULTI\r\nDISCARD a\r\nEXEC\r\n",
    "MULTI\r\nCLIENT FOO\r\nEXEC\r\n",
    "MULTI\r\nDISCARD\r\nMULTI\r\nQUIT\r\nPING\r\n",
    "MULTI\r\nSET quit 1\r\nRESET\r\nEXEC\r\nGET quit\r\n",
    "MULTI\r\nEXEC\r\nMULTI\r\nPING\r\nPING a\r\nECHO b\r\nEXEC\r\n",
    "DEL a\r\nMULTI\r\nSET a 1\r\nINCR a\r\nHSET a f v\r\nGET a\r\nnot queued\r\nDISCARD\r\nGET a\r\n",
    "MULTI\r\nSET a 1\r\nINCR a\r\nHSET a f v\r\nGET a\r\nMGET a none\r\nEXEC\r\n",
    "MULTI\r\nSELECT 99\r\nSELECT 3\r\nSET in3 v\r\nCONFIG GET maxclients\r\nDBSIZE\r\nEXEC\r\nGET in3\r\nSELECT 0\r\nGET in3\r\n",
    "MULTI\r\nFLUSHALL\r\nSET a b\r\nDBSIZE\r\nKEYS *\r\nSWAPDB 0 1\r\nGET a\r\nSWAPDB 0 1\r\nGET a\r\nFLUSHDB\r\nEXEC\r\n",
    "MULTI\r\nFLUSHALL foo\r\nSWAPDB x y\r\nEXEC\r\n",
    "WATCH a b\r\nSET a 1\r\nMULTI\r\nPING\r\nEXEC\r\nMULTI\r\nPING\r\nEXEC\r\n",
    "WATCH a b\r\nSET c 1\r\nMULTI\r\nPING\r\nEXEC\r\n",
    "WATCH a\r\nSET a 1\r\nUNWATCH\r\nMULTI\r\nPING\r\nEXEC\r\n",
    "WATCH a\r\nSET a 1\r\nMULTI\r\nDISCARD\r\nMULTI\r\nPING\r\nEXEC\r\n",
    "WATCH a\r\nSET a 1\r\nMULTI\r\nUNWATCH\r\nEXEC\r\n",
    "WATCH a\r\nSET a 1\r\nMULTI\r\nnosuch\r\nEXEC\r\n",
    "WATCH a\r\nSELECT 1\r\nSET a 1\r\nMULTI\r\nPING\r\nEXEC\r\nDEL a\r\n",
    "WATCH none\r\nDEL none\r\nEXPIRE none 1\r\nPERSIST none\r\nMULTI\r\nPING\r\nEXEC\r\n",
    "SET w v\r\nWATCH w\r\nFLUSHALL\r\nMULTI\r\nPING\r\nEXEC\r\n",
    "DEL w\r\nWATCH w\r\nFLUSHALL\r\nMULTI\r\nPING\r\nEXEC\r\n",
    "SET w v PXAT 1\r\nWATCH w\r\nGET w\r\nMULTI\r\nPING\r\nEXEC\r\n",
    "SET w v PXAT 1\r\nWATCH w\r\nFLUSHALL\r\nMULTI\r\nPING\r\nEXEC\r\n",
    "SET w v PXAT 1\r\nWATCH w\r\nSET w v\r\nMULTI\r\nPING\r\nEXEC\r\n",
    "SET w v\r\nWATCH w\r\nRENAME w w2\r\nMULTI\r\nPING\r\nEXEC\r\n",
    "SET w v\r\nWATCH w2\r\nRENAME w w2\r\nMULTI\r\nPING\r\nEXEC\r\nDEL w2\r\n",
    "SET w v\r\nWATCH w\r\nRENAME w w\r\nEXPIRE w 100 XX\r\nMULTI\r\nPING\r\nEXEC\r\n",
    "SET w v\r\nWATCH w\r\nSWAPDB 0 1\r\nMULTI\r\nPING\r\nEXEC\r\nSWAPDB 0 1\r\n",
    "MULTI\r\nSSUBSCRIBE c\r\nPSUBSCRIBE c*\r\nEXEC\r\n",
    "MULTI\r\nSUBSCRIBE c\r\nPING\r\nUNSUBSCRIBE c\r\nEXEC\r\nPING\r\n",
    "SUBSCRIBE a\r\nMULTI\r\nEXEC\r\n",
    "MULTI\r\nAUTH x\r\nCLIENT REPLY FOO\r\nCLIENT SETNAME bob\r\nCLIENT GETNAME\r\nEXEC\r\n",
    "CLIENT REPLY OFF\r\nMULTI\r\nSET replied 1\r\nCLIENT REPLY ON\r\nEXEC\r\nPING\r\n",
    "CLIENT REPLY SKIP\r\nMULTI\r\nSET replied 1\r\nEXEC\r\n",
    "MULTI\r\nSET a b\r\nPOST x\r\nEXEC\r\n",
    "MULTI\r\n*x\r\n",
    "MULTI\r\nWAIT 0 0\r\nWAIT 3 0\r\nEXEC\r\n",
    "COMMAND INFO multi exec discard watch unwatch\r\nCOMMAND GETKEYS watch a b\r\n",
];

#[test]
fn replies_are_those_of_redis() {
    check_alike_by_default(ALIKE);
}

#[test]
fn a_password_is_asked_for_first() {
    let redis = RedisServer::start(&["--requirepass", "secret"]);
    let ours = Running::with(ServerOptions { requirepass: b"secret".to_vec(), ..ServerOptions::default() }, 1);
    let scripts = ["MULTI\r\nEXEC\r\nWATCH a\r\nAUTH secret\r\nMULTI\r\nPING\r\nRESET\r\nEXEC\r\n"];
    check_alike(&scripts, &redis, &ours);
}

fn command_of(words: &str) -> Vec<&str> {
    words.split(' ').collect()
}

#[test]
fn messages_of_a_transaction_leave_at_its_end_and_behind_its_reply() {
    let ours = Running::start();
    let mut client = ours.connect();
    client.command(&["HELLO", "3"]);
    client.read_reply();
    client.ask(&["CONFIG", "SET", "notify-keyspace-events", "KA"]);
    client.ask(&["SUBSCRIBE", "c", "__keyspace@0__:k"]);
    client.read_reply();
    for words in ["MULTI", "SET k 1", "PUBLISH c between", "DEL k"] {
        client.ask(&command_of(words));
    }
    assert_eq!(client.ask(&["EXEC"]), "*3\r\n+OK\r\n:1\r\n:1\r\n");
    let mut last = || {
        let message = String::from_utf8(client.read_reply()).expect("text");
        message.trim_end().rsplit("\r\n").next().expect("a message").to_owned()
    };
    assert_eq!([last(), last(), last()], ["set", "between", "del"]);
}

#[test]
fn client_list_and_the_query_limit_know_what_is_queued() {
    let ours = Running::start();
    let mut client = ours.connect();
    let mut other = ours.connect();
    let id = client.ask(&["CLIENT", "ID"]).trim_start_matches(':').trim().to_owned();
    client.ask(&["WATCH", "k"]);
    client.ask(&["MULTI"]);
    client.ask(&["SET", "k", &"v".repeat(1000)]);
    other.ask(&["SET", "k", "other"]);
    let list = wait_for("the client's state", || {
        let list = other.ask(&["CLIENT", "LIST", "ID", &id]);
        list.contains(" multi=1 ").then_some(list)
    });
    assert!(list.contains(" flags=x"), "{list}");
    let memory = list.split(" multi-mem=").nth(1).and_then(|rest| rest.split(' ').next()).expect("a field");
    assert!((1000..2000).contains(&memory.parse::<usize>().expect("a number")), "{list}");
    assert_eq!(other.ask(&["CONFIG", "SET", "client-query-buffer-limit", "1mb"]), "+OK\r\n");
    let value = "v".repeat(200_000);
    for _ in 0..10 {
        use std::io::Write;
        let command = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{value}\r\n", value.len());
        // The server closes in the middle.
        if client.stream().write_all(command.as_bytes()).is_err() {
            break;
        }
    }
    wait_for("the client to be dropped", || (ours.server.client_count() == 1).then_some(()));
    assert_eq!(other.ask(&["GET", "k"]), "$5\r\nother\r\n", "nothing of it was run");
}

/// Returns the number of sections that EXEC of these commands starts.
#[track_caller]
fn sections_of(ours: &Running, client: &mut Client, commands: &[&str]) -> u64 {
    let before = ours.store().stats().granted;
    client.ask(&["MULTI"]);
    commands.iter().for_each(|words| assert_eq!(client.ask(&command_of(words)), "+QUEUED\r\n", "{words}"));
    let reply = client.ask(&["EXEC"]);
    assert!(reply.starts_with(&format!("*{}\r\n", commands.len())), "{reply}");
    let stats = ours.store().stats();
    assert_eq!(stats.tickets, 0);
    stats.granted - before
}

#[test]
fn a_short_transaction_holds_nothing_and_a_long_one_does() {
    let ours = Running::start();
    let mut client = ours.connect();
    let long = "v".repeat(5_000);
    let mut check = |commands: &[&str], sections: u64| {
        assert_eq!(sections_of(&ours, &mut client, commands), sections, "{commands:?}");
    };
    check(&["SET a 1", "GET a", "INCR counter"], 0);
    check(&["PING", "SELECT 3", "SET a 1", "ECHO x", "SELECT 0", "PUBLISH c m", "UNWATCH"], 0);
    check(&["MSET a 1 b 2 c 3 d 4", "MGET e f g h", "LPUSH l x", "DEL l", "RPOPLPUSH l l"], 1);
    check(&["MSET a 1 b 2 c 3 d 4", "MGET e f g", "DEL a", "LPUSH l x"], 0);
    check(&["BLPOP l 0", "BLPOP l 0"], 0);
    check(&["SMEMBERS s"], 1);
    check(&["CLIENT ID", "SET a 1"], 1);
    check(&["DBSIZE", "SET a 1"], 1);
    check(&[&format!("SET a {long}")], 1);
    check(&["GET a"], 1);
    check(&["DEL a"], 1);
    check(&["GET a"], 0);
    check(&vec!["INCR n"; 32], 0);
    check(&vec!["INCR n"; 33], 1);
}

#[test]
fn a_short_transaction_serves_those_who_wait_for_its_elements() {
    let ours = Running::with(ServerOptions::default(), 2);
    let mut waiting = ours.connect();
    waiting.command(&["BLMOVE", "from", "to", "LEFT", "LEFT", "0"]);
    let mut behind = ours.connect();
    behind.command(&["BLPOP", "to", "0"]);
    let mut client = ours.connect();
    wait_for("both to block", || client.ask(&["INFO", "clients"]).contains("blocked_clients:2").then_some(()));
    client.ask(&["WATCH", "to"]);
    client.ask(&["MULTI"]);
    client.ask(&["RPUSH", "from", "x"]);
    client.ask(&["RPUSH", "from", "y"]);
    assert_eq!(client.ask(&["EXEC"]), "*2\r\n:1\r\n:2\r\n");
    assert_eq!(waiting.read_reply(), b"$1\r\nx\r\n");
    assert_eq!(behind.read_reply(), b"*2\r\n$2\r\nto\r\n$1\r\nx\r\n");
    assert_eq!(client.ask(&["LRANGE", "from", "0", "-1"]), "*1\r\n$1\r\ny\r\n");
    assert_eq!(ours.store().stats().tickets, 0);
}

/// The sum of eight accounts is constant for readers while transactions move money between them.
#[test]
fn transfers_keep_the_sum() {
    const ACCOUNTS: usize = 8;
    let ours = Running::with(ServerOptions::default(), 3);
    let names: Vec<String> = (0..ACCOUNTS).map(|account| format!("account:{account}")).collect();
    let mut client = ours.connect();
    names.iter().for_each(|name| assert_eq!(client.ask(&["SET", name, "1000"]), "+OK\r\n"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let (names, address) = (&names, ours.address());
                scope.spawn(move || {
                    let mut random = Random(writer);
                    let mut client = Client::connect(&address);
                    for _ in 0..400 {
                        let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
                        let amount = random.below(50).to_string();
                        client.command(&["MULTI"]);
                        client.command(&["DECRBY", &names[from], &amount]);
                        if random.below(8) == 0 {
                            // A long transaction, with several slices between which others run.
                            (0..300).for_each(|_| client.command(&["GET", &names[from]]));
                            (0..300).for_each(|_| assert_ne!(client.read_reply(), b""));
                        }
                        client.command(&["INCRBY", &names[to], &amount]);
                        client.command(&["EXEC"]);
                        (0..3).for_each(|_| assert_ne!(client.read_reply()[0], b'-'));
                        assert_eq!(client.read_reply()[0], b'*');
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            let (names, address, done) = (&names, ours.address(), &done);
            scope.spawn(move || {
                let mut client = Client::connect(&address);
                let mut words = vec!["MGET"];
                words.extend(names.iter().map(String::as_str));
                while !done.load(Ordering::Relaxed) {
                    let reply = client.ask(&words);
                    let sum: i64 = reply.lines().skip(2).step_by(2).map(|n| n.parse::<i64>().expect("a number")).sum();
                    assert_eq!(sum, 1000 * ACCOUNTS as i64);
                }
            });
        }
        writers.into_iter().for_each(|writer| writer.join().expect("it wrote"));
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(ours.store().stats().tickets, 0);
}

/// Increments by WATCH, GET, MULTI, SET, EXEC: none is lost, so the counter ends at the number of successes.
#[test]
fn optimistic_counters_lose_nothing() {
    let ours = Running::with(ServerOptions::default(), 3);
    let successes: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let address = ours.address();
                scope.spawn(move || {
                    let mut client = Client::connect(&address);
                    let mut successes = 0;
                    while successes < 100 {
                        client.ask(&["WATCH", "counter"]);
                        let value = client.ask(&["GET", "counter"]);
                        let value = value.lines().nth(1).map_or(0, |text| text.parse::<u64>().expect("a number"));
                        client.ask(&["MULTI"]);
                        client.ask(&["SET", "counter", &(value + 1).to_string()]);
                        successes += usize::from(client.ask(&["EXEC"]) != "*-1\r\n");
                    }
                    successes
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("it counted")).sum()
    });
    assert_eq!(ours.connect().ask(&["GET", "counter"]), format!("${}\r\n{successes}\r\n", successes.to_string().len()));
}

/// Two clients watch both keys and write one each: never both, or each would have decided on what the other changed.
#[test]
fn of_two_that_watch_each_others_keys_one_at_most_succeeds() {
    let ours = Running::with(ServerOptions::default(), 2);
    let mut clients = [ours.connect(), ours.connect()];
    let (mut none, mut one) = (0, 0);
    for round in 0..500 {
        let keys = [format!("a:{round}"), format!("b:{round}")];
        for (client, own) in clients.iter_mut().zip(&keys) {
            client.ask(&["WATCH", &keys[0], &keys[1]]);
            client.ask(&["MULTI"]);
            client.ask(&["SET", own, "1"]);
        }
        // Both at once.
        clients.iter_mut().for_each(|client| client.command(&["EXEC"]));
        let done = clients.iter_mut().filter_map(|client| client.read_reply().starts_with(b"*1").then_some(())).count();
        assert!(done <= 1, "both in round {round}");
        if done == 1 { one += 1 } else { none += 1 }
    }
    assert!(one > none, "{one} {none}");
}

#[test]
fn a_transaction_waits_for_held_keys_and_a_killed_client_takes_it_along() {
    let ours = Running::with(ServerOptions::default(), 2);
    let hold = || block_on(ours.store().section([(0, &b"k"[..], Mode::Exclusive)])).expect("a free key");
    for words in [&["APPEND k x"][..], &["APPEND k x", "FLUSHDB"], &["APPEND k x", "PING"]] {
        // The transaction waits, and runs when the key is free.
        ours.connect().ask(&["DEL", "k"]);
        let section = hold();
        let mut client = ours.connect();
        client.ask(&["MULTI"]);
        words.iter().for_each(|words| assert_eq!(client.ask(&command_of(words)), "+QUEUED\r\n"));
        client.command(&["EXEC"]);
        let mut other = ours.connect();
        let waits = || other.ask(&["CLIENT", "LIST"]).contains(" cmd=exec ").then_some(());
        wait_for("EXEC to wait", waits);
        drop(section);
        assert!(client.read_reply().starts_with(format!("*{}\r\n:1\r\n", words.len()).as_bytes()));
        // The transaction waits, and its client is killed.
        other.ask(&["SET", "k", "untouched"]);
        let section = hold();
        client.ask(&["MULTI"]);
        words.iter().for_each(|words| assert_eq!(client.ask(&command_of(words)), "+QUEUED\r\n"));
        client.command(&["EXEC"]);
        wait_for("EXEC to wait", || other.ask(&["CLIENT", "LIST"]).contains(" flags=b").then_some(()));
        other.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
        wait_for("the client to leave", || (ours.server.client_count() == 1).then_some(()));
        drop(section);
        assert_eq!(other.ask(&["GET", "k"]), "$9\r\nuntouched\r\n");
        wait_for("no ticket to be left", || (ours.store().stats().tickets == 0).then_some(()));
        // A global command is not blocked.
        assert_eq!(other.ask(&["FLUSHALL"]), "+OK\r\n");
    }
}

/// Clients disconnect at any moment of a long transaction: it is executed completely or not at all, and no hold
/// remains.
#[test]
fn a_client_that_leaves_leaves_no_half_transaction() {
    let ours = Running::with(ServerOptions::default(), 2);
    let mut random = Random(5);
    for round in 0..60 {
        let mut client = ours.connect();
        let mut bytes = b"MULTI\r\nINCR first\r\n".to_vec();
        (0..random.below(3_000)).for_each(|_| bytes.extend_from_slice(b"GET first\r\n"));
        if round % 7 == 0 {
            bytes.extend_from_slice(b"KEYS none*\r\n");
        }
        bytes.extend_from_slice(b"INCR last\r\nEXEC\r\n");
        let cut = bytes.len() - random.below(40).min(bytes.len());
        client.send(&bytes[..cut]);
        if round % 2 == 0 { client.reset() } else { drop(client) }
    }
    wait_for("all to leave", || (ours.server.client_count() == 0).then_some(()));
    let mut client = ours.connect();
    let both = client.ask(&["MGET", "first", "last"]);
    let values: Vec<&str> = both.lines().skip(1).collect();
    assert_eq!(values[..values.len() / 2], values[values.len() / 2..], "{both}");
    wait_for("no ticket to be left", || (ours.store().stats().tickets == 0).then_some(()));
    assert_eq!(client.ask(&["FLUSHALL"]), "+OK\r\n");
}

/// Exclusive and other transactions, among plain commands: all end, and the exclusive ones see a consistent state.
#[test]
fn transactions_with_global_commands_are_alone_and_starve_nobody() {
    let ours = Running::with(ServerOptions::default(), 3);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let address = ours.address();
            scope.spawn(move || {
                let mut random = Random(thread);
                let mut client = Client::connect(&address);
                for _ in 0..150 {
                    client.ask(&["MULTI"]);
                    let alone = random.below(3) == 0;
                    if alone {
                        client.ask(&["FLUSHDB"]);
                    }
                    for key in ["x", "y", "z"] {
                        client.ask(&["INCR", key]);
                    }
                    if alone {
                        client.ask(&["KEYS", "*"]);
                    }
                    let reply = client.ask(&["EXEC"]);
                    let numbers: Vec<&str> = reply.lines().filter(|line| line.starts_with(':')).collect();
                    assert_eq!(numbers.len(), 3, "{reply}");
                    assert!(numbers.iter().all(|number| *number == numbers[0]), "{reply}");
                    assert!(!alone || numbers[0] == ":1" && reply.contains("*3\r\n$1\r\n"), "{reply}");
                }
            });
        }
    });
    assert_eq!(ours.store().stats().tickets, 0);
}

#[test]
fn watched_keys_that_expire_refuse_exec() {
    /// Watches a key that soon expires, and was still there when it was watched.
    fn watch_alive(client: &mut Client) {
        wait_for("a key to be watched before it expires", || {
            client.ask(&["UNWATCH"]);
            client.ask(&["SET", "k", "v", "PX", "20"]);
            client.ask(&["WATCH", "k"]);
            (client.ask(&["EXISTS", "k"]) == ":1\r\n").then_some(())
        });
    }
    let ours = Running::start();
    let mut client = ours.connect();
    let mut other = ours.connect();
    watch_alive(&mut client);
    client.ask(&["MULTI"]);
    client.ask(&["PING"]);
    other.ask(&["SET", "twin", "v", "PX", "25"]);
    wait_for("it to expire", || (other.ask(&["EXISTS", "twin"]) == ":0\r\n").then_some(()));
    assert_eq!(client.ask(&["EXEC"]), "*-1\r\n");
    // The sweep removes the key.
    watch_alive(&mut client);
    wait_for("the sweep", || {
        ours.store().tick();
        (other.ask(&["DBSIZE"]) == ":0\r\n").then_some(())
    });
    client.ask(&["MULTI"]);
    assert_eq!(client.ask(&["EXEC"]), "*-1\r\n");
}

/// KEYS at the end of a transaction whose commands before it take a while.
#[test]
fn keys_at_the_end_of_a_transaction_are_those_of_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::with(ServerOptions::default(), 2);
    let replies = [Client::connect(&redis.address()), ours.connect()].map(|mut client| {
        client.ask(&["RPUSH", "list", "3", "1", "2"]);
        client.ask(&["MSET", "gone", "1", "old", "1", "moved", "1", "stays", "1", "not", "1"]);
        client.ask(&["SET", "past", "v", "PXAT", "1"]);
        client.ask(&["SELECT", "1"]);
        client.ask(&["MSET", "far", "1", "old", "1"]);
        client.ask(&["SELECT", "0"]);
        client.ask(&["MULTI"]);
        let queued = [
            // From here on the transaction is not exclusive any more.
            "SORT list",
            "SET new 1",
            "GET new",
            "DEL gone",
            "KEYS *",
            "RENAME old renamed",
            "MOVE moved 1",
            "MGET stays new",
            "KEYS *",
            "KEYS s*",
            "SELECT 1",
            "DEL far",
            "KEYS *",
            "SELECT 0",
            "DEL new",
            "PEXPIRE stays 0",
            "KEYS *",
            "PING",
        ];
        queued.iter().for_each(|line| assert_eq!(client.ask(&command_of(line)), "+QUEUED\r\n"));
        client.command(&["EXEC"]);
        let reply = String::from_utf8(client.read_reply()).expect("text");
        // Each list is sorted by name, as the order of a hash table is arbitrary.
        let mut lines: Vec<&str> = reply.split("\r\n").filter(|line| !line.starts_with('$')).collect();
        let mut at = 0;
        while at < lines.len() {
            let len =
                if at > 0 { lines[at].strip_prefix('*').map_or(0, |len| len.parse().expect("a number")) } else { 0 };
            lines[at + 1..=at + len].sort_unstable();
            at += 1 + len;
        }
        lines.join(" ")
    });
    assert_eq!(replies[1], replies[0], "ours, then Redis's");
    assert_eq!(ours.store().stats().tickets, 0);
}

/// Other clients proceed while a long transaction precedes its KEYS, whose reply is the state at one moment.
#[test]
fn a_transaction_with_keys_at_its_end_lets_others_in() {
    let ours = Running::with(ServerOptions::default(), 1);
    let mut client = ours.connect();
    assert_eq!(client.ask(&["SET", "k", "v"]), "+OK\r\n");
    let mut bytes = b"MULTI\r\n".to_vec();
    (0..100_000).for_each(|_| bytes.extend_from_slice(b"INCR own\r\n"));
    bytes.extend_from_slice(b"KEYS other:*\r\n");
    let store = ours.store();
    // There is time for thousands of commands while the transaction holds its key, unless this thread is descheduled;
    // while the transaction is exclusive, all wait at the gate.
    wait_for("others to be let in", || {
        assert_eq!(client.ask(&["FLUSHALL"]), "+OK\r\n");
        client.send(&bytes);
        for _ in 0..100_002 {
            client.read_reply();
        }
        let (mut set, mut meanwhile) = (0, 0);
        let reply = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                client.command(&["EXEC"]);
                client.read_reply()
            });
            while !running.is_finished() {
                let holds_before = store.stats().tickets > 0;
                crate::ask(store, &format!("SET other:{set} v"));
                set += 1;
                meanwhile += usize::from(holds_before && store.stats().tickets > 0);
            }
            running.join().expect("a reply")
        });
        let reply = String::from_utf8(reply).expect("text");
        let listed: Vec<&str> = reply.split("\r\n").filter_map(|line| line.strip_prefix("other:")).collect();
        let mut numbers: Vec<usize> = listed.iter().map(|number| number.parse().expect("a number")).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..numbers.len()), "a state that never was");
        // Later keys are not listed.
        (meanwhile > 10 && numbers.len() < set).then_some(())
    });
}

/// Hundreds of commands, whose keys are gathered before the transaction queues, with every command that needs all keys.
#[test]
fn very_many_commands_are_answered_as_by_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::with(ServerOptions::default(), 2);
    let many = |line: &str| (0..700).map(|n| line.replace('#', &n.to_string())).collect::<Vec<_>>();
    let one = |line: &str| vec![line.to_owned()];
    let transactions = [
        [many("SET k:# #"), many("INCR k:#"), many("GET k:#"), one("DBSIZE")].concat(),
        [many("INCR k:#"), one("SELECT 1"), many("SET k:# other"), one("KEYS k:1*"), one("SELECT 0"), one("KEYS *99")]
            .concat(),
        [many("APPEND k:# x"), one("SWAPDB 0 1"), many("GET k:#"), one("SWAPDB 0 1"), one("MGET k:1 k:2")].concat(),
        [many("DEL k:#"), one("FLUSHDB"), one("KEYS *"), many("SET k:# again"), one("DBSIZE")].concat(),
        [one("FLUSHALL"), many("RPUSH l:# c a b"), many("SORT l:# ALPHA"), one("KEYS l:69*")].concat(),
        [many("LPOP l:#"), one("LPUSH"), one("FLUSHALL"), one("DBSIZE")].concat(),
        [many("INCR n"), one("FLUSHALL"), many("INCR n"), one("KEYS *")].concat(),
    ];
    let mut clients = [Client::connect(&redis.address()), ours.connect()];
    for commands in &transactions {
        let replies = clients.each_mut().map(|client| {
            client.send(format!("MULTI\r\n{}\r\nEXEC\r\n", commands.join("\r\n")));
            (0..=commands.len()).for_each(|_| drop(client.read_reply()));
            let reply = String::from_utf8(client.read_reply()).expect("text");
            let mut lines: Vec<&str> = reply.split("\r\n").collect();
            if commands.iter().any(|line| line.starts_with("KEYS")) {
                // The order of names is that of a hash table, which is arbitrary.
                lines.sort_unstable();
            }
            lines.join(" ")
        });
        assert_eq!(replies[1], replies[0], "ours, then Redis's, of {:?}…", &commands[..2]);
        let sizes = clients.each_mut().map(|client| client.ask(&["DBSIZE"]));
        assert_eq!(sizes[1], sizes[0]);
    }
    wait_for("the last section's end", || (ours.store().stats().tickets == 0).then_some(()));
}

/// With much work before it changes databases, a transaction is a section that holds everything; only a short one
/// closes the gate for its duration.
#[test]
fn a_long_transaction_does_not_stand_in_the_gate_until_it_flushes() {
    let ours = Running::start();
    let mut client = ours.connect();
    for last in ["FLUSHALL", "FLUSHDB", "SWAPDB 0 1"] {
        let long: Vec<&str> = std::iter::repeat_n("INCR n", 300).chain([last]).collect();
        assert_eq!(sections_of(&ours, &mut client, &long), 1, "{last}");
        let wide = format!("DEL{}", " key".repeat(600));
        assert_eq!(sections_of(&ours, &mut client, &[&wide, last]), 1, "{last}");
        assert_eq!(sections_of(&ours, &mut client, &["INCR n", last]), 0, "{last}");
    }
}

/// Of many keys that are set together, no client sees only a part, and a modified watched key aborts them all.
#[test]
fn very_many_keys_change_at_once() {
    const KEYS: usize = 20_000;
    let ours = Running::with(ServerOptions::default(), 2);
    let (mut client, mut other) = (ours.connect(), ours.connect());
    assert_eq!(client.ask(&["WATCH", "watched"]), "+OK\r\n");
    for value in ["first", "second", "third"] {
        let mut bytes = b"MULTI\r\n".to_vec();
        (0..KEYS).for_each(|n| bytes.extend_from_slice(format!("SET k:{n} {value}\r\n").as_bytes()));
        client.send(&bytes);
        (0..=KEYS).for_each(|_| drop(client.read_reply()));
        let is_refused = value == "first";
        if is_refused {
            other.ask(&["SET", "watched", "touched"]);
        }
        let last = format!("k:{}", KEYS - 1);
        let reply = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                client.command(&["EXEC"]);
                client.read_reply()
            });
            while !running.is_finished() {
                let seen = other.ask(&["MGET", "k:0", &last, "k:777"]);
                let values: Vec<&str> = seen.split("\r\n").skip(1).filter(|line| !line.is_empty()).collect();
                assert!(values.chunks(values.len() / 3).all(|value| value == &values[..values.len() / 3]), "{seen}");
            }
            running.join().expect("a reply")
        });
        assert_eq!(reply.starts_with(b"*-1"), is_refused);
        let expected = if is_refused { "$-1\r\n".to_owned() } else { format!("${}\r\n{value}\r\n", value.len()) };
        assert_eq!(other.ask(&["GET", &last]), expected);
    }
}

/// The commands of a transaction see the time of its beginning.
#[test]
fn times_to_live_are_right_in_a_transaction_that_is_alone() {
    let ours = Running::start();
    let mut client = ours.connect();
    client.ask(&["SET", "past", "v", "PXAT", "1"]);
    client.ask(&["SET", "k", "v"]);
    client.ask(&["MULTI"]);
    for line in [
        "KEYS *",
        "PEXPIRE k 100000000",
        "SETEX new 200 v",
        "TTL k",
        "TTL new",
        "GET past",
        "PSETEX k 9223372036854775807 v",
    ] {
        assert_eq!(client.ask(&line.split(' ').collect::<Vec<_>>()), "+QUEUED\r\n");
    }
    let refused = "-ERR invalid expire time in 'psetex' command\r\n";
    let expected = format!("*7\r\n*1\r\n$1\r\nk\r\n:1\r\n+OK\r\n:100000\r\n:200\r\n$-1\r\n{refused}");
    assert_eq!(client.ask(&["EXEC"]), expected);
    assert_eq!(client.ask(&["EXISTS", "k", "new"]), ":2\r\n");
}

/// With KEYS, a transaction closes the gate that every command passes; commands about the connection pass it, too.
#[test]
fn commands_about_the_store_run_in_a_transaction_that_is_alone() {
    let options = ServerOptions { enable_debug_command: "yes", ..ServerOptions::default() };
    let ours = Running::with(options, 2);
    let mut client = ours.connect();
    client.ask(&["SET", "k", "v"]);
    client.ask(&["MULTI"]);
    let queued: [&[&str]; 8] = [
        &["KEYS", "*"],
        &["CONFIG", "RESETSTAT"],
        &["CONFIG", "SET", "maxmemory", "100mb"],
        &["INFO", "everything"],
        &["MEMORY", "STATS"],
        &["DEBUG", "OBJECT", "k"],
        &["CLUSTER", "COUNTKEYSINSLOT", "7629"],
        &["DBSIZE"],
    ];
    for words in queued {
        assert_eq!(client.ask(words), "+QUEUED\r\n", "{words:?}");
    }
    let reply = client.ask(&["EXEC"]);
    assert!(reply.starts_with("*8\r\n*1\r\n$1\r\nk\r\n+OK\r\n+OK\r\n") && reply.ends_with(":1\r\n:1\r\n"), "{reply}");
    assert_eq!(ours.connect().ask(&["GET", "k"]), "$1\r\nv\r\n");
}

/// Long commands inside of transactions, which are executed by another thread.
#[test]
fn long_commands_in_transactions_are_answered_as_by_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::with(ServerOptions::default(), 2);
    let mut both = [Client::connect(&redis.address()), ours.connect()];
    let mut check = |words: &[&str]| {
        let [theirs, ours] = both.each_mut().map(|client| {
            client.command(words);
            String::from_utf8(client.read_reply()).expect("text")
        });
        assert!(ours == theirs, "{:?}: ours {:.300}\nRedis's {theirs:.300}", &words[..words.len().min(4)], ours);
    };
    let numbers: Vec<String> = (0..24_000).map(|n| (n * 7919 % 24_001).to_string()).collect();
    for chunk in numbers.chunks(2_000) {
        for head in [["RPUSH", "l"], ["SADD", "s"]] {
            let mut words = head.to_vec();
            words.extend(chunk.iter().map(String::as_str));
            check(&words);
        }
    }
    let keys: Vec<String> = (0..300).map(|n| format!("key:{n}")).collect();
    let with_keys = |name: &'static str, values: bool| {
        let mut words = vec![name];
        for key in &keys {
            words.push(key.as_str());
            if values {
                words.push("v");
            }
        }
        words
    };
    for protocol in ["2", "3"] {
        for client in &mut both {
            client.command(&["HELLO", protocol]);
            client.read_reply();
        }
        let mut check = |words: &[&str]| {
            let [theirs, ours] = both.each_mut().map(|client| {
                client.command(words);
                String::from_utf8(client.read_reply()).expect("text")
            });
            assert!(ours == theirs, "{:?}: ours {:.300}\nRedis's {theirs:.300}", &words[..words.len().min(4)], ours);
        };
        check(&["MULTI"]);
        for words in [
            &["INCR", "n"][..],
            &["LRANGE", "l", "0", "-1"],
            &["SORT", "l"],
            &["SORT", "l", "DESC", "STORE", "sorted"],
            &["SUNIONSTORE", "d", "s", "s"],
            &["SCARD", "d"],
            &["LLEN", "sorted"],
            &["LRANGE", "n", "0", "-1"],
            &["SORT", "l", "BY", "key:*", "GET", "key:*", "LIMIT", "0", "10"],
        ] {
            check(words);
        }
        check(&with_keys("MSET", true));
        check(&with_keys("EXISTS", false));
        check(&with_keys("MSETNX", true));
        check(&with_keys("MSET", true)[..600]);
        check(&with_keys("MGET", false));
        check(&with_keys("DEL", false));
        check(&["INCR", "n"]);
        check(&["EXEC"]);
        check(&["GET", "n"]);
    }
    wait_for("the last section's end", || (ours.store().stats().tickets == 0).then_some(()));
}

/// A transaction that flushes and then runs long: others are admitted after a while, and still see all of it or
/// nothing.
#[test]
fn a_long_transaction_that_began_alone_is_seen_whole() {
    const INCREMENTS: usize = 4_000;
    let ours = Running::with(ServerOptions::default(), 2);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (ours, done) = (&ours, &done);
        for _ in 0..2 {
            scope.spawn(move || {
                let mut client = ours.connect();
                while !done.load(Ordering::SeqCst) {
                    let reply = client.ask(&["MGET", "a", "b"]);
                    let values: Vec<&str> = reply.lines().skip(1).collect();
                    assert_eq!(values[..values.len() / 2], values[values.len() / 2..], "{reply}");
                    let whole = INCREMENTS.to_string();
                    assert!(values[0] == "$-1" || values[1] == whole, "{reply}");
                    // A key that it does not use is changed before or after it, and flushed in the first case.
                    assert_eq!(client.ask(&["SET", "else", "1"]), "+OK\r\n");
                }
            });
        }
        for round in 0..6 {
            let mut client = ours.connect();
            let mut bytes = b"MULTI\r\nFLUSHDB\r\n".to_vec();
            (0..INCREMENTS).for_each(|_| bytes.extend_from_slice(b"INCR a\r\nINCR b\r\n"));
            bytes.extend_from_slice(b"PUBLISH c m\r\nLPUSH l x\r\nDEL l\r\nEXEC\r\n");
            client.send(&bytes);
            let replies = 2 * INCREMENTS + 5;
            if round % 3 == 2 {
                client.reset();
                continue;
            }
            (0..replies).for_each(|_| assert_ne!(client.read_reply()[0], b'-'));
            let reply = String::from_utf8(client.read_reply()).expect("text");
            assert!(reply.starts_with(&format!("*{}\r\n+OK\r\n:1\r\n:1\r\n:2\r\n", 2 * INCREMENTS + 4)), "{reply:.60}");
            assert!(reply.ends_with(":0\r\n:1\r\n:1\r\n"));
        }
        done.store(true, Ordering::SeqCst);
    });
    wait_for("no ticket to be left", || (ours.store().stats().tickets == 0).then_some(()));
    assert_eq!(ours.connect().ask(&["FLUSHALL"]), "+OK\r\n");
}

/// Clients disconnect while a command of their transaction is executed by another thread.
#[test]
fn a_client_that_leaves_a_long_command_leaves_no_half_transaction() {
    let ours = Running::with(ServerOptions::default(), 2);
    let mut client = ours.connect();
    for from in (0..30_000).step_by(1_000) {
        let numbers: Vec<String> = (from..from + 1_000).map(|n| n.to_string()).collect();
        let mut words = vec!["SADD", "s"];
        words.extend(numbers.iter().map(String::as_str));
        client.ask(&words);
    }
    for round in 0..20 {
        let mut leaving = ours.connect();
        let mut bytes = b"MULTI\r\nINCR first\r\nSUNIONSTORE d s\r\n".to_vec();
        (0..100 * (round % 3)).for_each(|_| bytes.extend_from_slice(b"GET first\r\n"));
        bytes.extend_from_slice(b"SMEMBERS s\r\nINCR last\r\nEXEC\r\n");
        leaving.send(&bytes);
        if round % 2 == 0 { leaving.reset() } else { drop(leaving) }
    }
    wait_for("all to leave", || (ours.server.client_count() == 1).then_some(()));
    wait_for("no ticket to be left", || (ours.store().stats().tickets == 0).then_some(()));
    let both = client.ask(&["MGET", "first", "last"]);
    let values: Vec<&str> = both.lines().skip(1).collect();
    assert_eq!(values[..values.len() / 2], values[values.len() / 2..], "{both}");
    assert_eq!(client.ask(&["FLUSHALL"]), "+OK\r\n");
}

/// It delays only the reply: the changes of the transaction are visible before.
#[test]
fn debug_sleep_in_a_transaction_delays_its_own_client() {
    for global in [false, true] {
        let options = ServerOptions { enable_debug_command: "yes", ..ServerOptions::default() };
        let ours = Running::with(options, 1);
        let (mut sleeper, mut other) = (ours.connect(), ours.connect());
        let first: &[&str] = if global { &["FLUSHALL"] } else { &["DEL", "k"] };
        for words in
            [&["MULTI"][..], first, &["DEBUG", "SLEEP", "0.02"], &["SET", "k", "v"], &["DEBUG", "SLEEP", "100000"]]
        {
            sleeper.ask(words);
        }
        sleeper.command(&["EXEC"]);
        wait_for("the transaction to be over", || (other.ask(&["GET", "k"]) == "$1\r\nv\r\n").then_some(()));
        assert_eq!(other.ask(&["SET", "k", "w"]), "+OK\r\n", "its keys are free");
        assert_eq!(other.ask(&["CLIENT", "KILL", "TYPE", "normal"]), ":1\r\n");
        assert_eq!(sleeper.read_to_end(), b"");
        let mut sleeper = ours.connect();
        for words in [&["MULTI"][..], first, &["DEBUG", "SLEEP", "0.02"], &["GET", "k"]] {
            sleeper.ask(words);
        }
        let reply = sleeper.ask(&["EXEC"]);
        assert!(reply.starts_with("*3\r\n") && reply.ends_with("+OK\r\n$-1\r\n"), "{reply}");
    }
}

/// A key that a script has changed, and may change again, is watched once the script has ended: nobody has seen the first
/// change before.
#[test]
fn a_key_that_a_script_is_changing_is_watched_behind_it() {
    let ours = Running::with(ServerOptions::default(), 2);
    let (mut one, mut two) = (ours.connect(), ours.connect());
    let code = "redis.call('set',KEYS[1],1) for _=1,3e7 do end redis.call('set',KEYS[1],2) return 1";
    one.command(&["EVAL", code, "1", "k"]);
    wait_for("the script", || (ours.store().stats().tickets > 0).then_some(()));
    assert_eq!(two.ask(&["WATCH", "other", "k"]), "+OK\r\n");
    assert_eq!(ours.store().stats().tickets, 0, "the script has ended");
    assert_eq!(two.ask(&["GET", "k"]), "$1\r\n2\r\n");
    assert_eq!(two.ask(&["MULTI"]), "+OK\r\n");
    assert_eq!(two.ask(&["SET", "k", "3"]), "+QUEUED\r\n");
    assert_eq!(two.ask(&["EXEC"]), "*1\r\n+OK\r\n");
    assert_eq!(one.read_reply(), b":1\r\n");
}
