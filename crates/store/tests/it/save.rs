//! Saves: the files, what clients see meanwhile, and what is refused after a save that failed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use sluicegate_store::config::{SavePoint, ServerOptions};
use sluicegate_store::server::Ending;
use sluicegate_store::{Directory, Entry, File, Files, LoadOptions, Lock, Store, StoreOptions};
use sluicegate_testkit::{Client, RedisServer, wait_for};

use crate::server::check_alike;
use crate::support::{Running, copied_append_only, on_runtime};

fn in_directory(directory: &Path) -> ServerOptions {
    let dir = directory.as_os_str().as_encoded_bytes().to_vec();
    ServerOptions { dir, enable_debug_command: "yes", enable_protected_configs: "yes", ..ServerOptions::default() }
}

/// Keys of every type and form, at the limits of the forms and beyond.
fn fill(client: &mut Client) {
    let mut ask = |line: &str| {
        let reply = client.ask(&line.split(' ').collect::<Vec<_>>());
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    };
    let numbers = |count: u32| (0..count).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
    let pairs = |count: u32| (0..count).map(|n| format!("{n} v{n}")).collect::<Vec<_>>().join(" ");
    let scores = |count: u32| (0..count).map(|n| format!("{n}.5 m{n}")).collect::<Vec<_>>().join(" ");
    for value in ["12", "-9223372036854775808", "text", "0012"] {
        ask(&format!("SET s:{value} {value}"));
    }
    for len in [0, 20, 21, 44, 45, 192, 193, 4095, 4096, 70_000] {
        ask(&format!("SETRANGE s:{len} {len} x"));
        ask(&format!("SET t:{len} {}", "ab".repeat(len / 2 + 1)));
    }
    for count in [1, 127, 128, 129, 512, 513, 3_000] {
        ask(&format!("RPUSH l:{count} {}", numbers(count)));
        ask(&format!("SADD i:{count} {}", numbers(count)));
        ask(&format!("SADD m:{count} a {}", numbers(count)));
        ask(&format!("HSET h:{count} {}", pairs(count)));
        ask(&format!("ZADD z:{count} {}", scores(count)));
    }
    ask(&format!("RPUSH l:long {} a", "x".repeat(9_000)));
    ask(&format!("HSET h:long a {}", "x".repeat(65)));
    ask("ZADD z:ends -inf a +inf b 1048576 c 0.5 d");
    for id in 1..=200 {
        ask(&format!("XADD x {id}-1 a {id} b c"));
    }
    ask("XDEL x 5-1 7-1");
    ask("XGROUP CREATE x g 0");
    ask("XGROUP CREATE x h $");
    ask("XREADGROUP GROUP g one COUNT 10 STREAMS x >");
    ask("XREADGROUP GROUP g two COUNT 3 STREAMS x >");
    // One whose last attempt was not a success, which files of Redis 7.0 have no place for.
    ask("XREADGROUP GROUP h three STREAMS x >");
    ask("XGROUP CREATE empty g $ MKSTREAM");
    ask("PFADD p a b c");
    ask("SET e:1 v PXAT 4102444800123");
    ask("RPUSH e:2 a");
    ask("PEXPIREAT e:2 4102444800456");
    ask("SELECT 9");
    ask("SET other 9");
    ask("SELECT 0");
    let library = "#!lua name=lib\nredis.register_function('f', function() return 7 end)";
    assert!(!client.ask(&["FUNCTION", "LOAD", library]).starts_with('-'));
}

/// Questions whose answers show every key of [`fill`], in an order that does not depend on hashing.
fn questions() -> Vec<String> {
    let mut all = vec!["DBSIZE\r\n".to_owned(), "SELECT 9\r\nDBSIZE\r\nGET other\r\n".to_owned()];
    for value in ["12", "-9223372036854775808", "text", "0012"] {
        all.push(format!("GET s:{value}\r\nOBJECT ENCODING s:{value}\r\n"));
    }
    for len in [0, 20, 21, 44, 45, 192, 193, 4095, 4096, 70_000] {
        all.push(format!("GET s:{len}\r\nGET t:{len}\r\n"));
    }
    for count in [1, 127, 128, 129, 512, 513, 3_000] {
        all.push(format!("LRANGE l:{count} 0 -1\r\nSORT i:{count}\r\nOBJECT ENCODING i:{count}\r\n"));
        all.push(format!("SORT m:{count} ALPHA\r\nZRANGE z:{count} 0 -1 WITHSCORES\r\nOBJECT ENCODING z:{count}\r\n"));
        all.push(format!(
            "HLEN h:{count}\r\nHMGET h:{count} 0 1 126 127 128 511 512 2999\r\nOBJECT ENCODING h:{count}\r\n"
        ));
    }
    all.push("LRANGE l:long 0 -1\r\nHGETALL h:long\r\nZRANGE z:ends 0 -1 WITHSCORES\r\nPFCOUNT p\r\n".to_owned());
    all.push("XRANGE x - +\r\nXLEN x\r\nXINFO STREAM x\r\nXINFO GROUPS x\r\nXPENDING x g\r\nXLEN empty\r\nXINFO GROUPS empty\r\n".to_owned());
    all.push("PEXPIRETIME e:1\r\nPEXPIRETIME e:2\r\nPEXPIRETIME x\r\nFCALL f 0\r\n".to_owned());
    all
}

#[test]
fn files_are_loaded_by_redis_and_valkey() {
    let directory = tempfile::tempdir().expect("a directory");
    let ours = Running::with_files(in_directory(directory.path()), 1);
    let mut client = ours.connect();
    fill(&mut client);
    for settings in [["rdbcompression", "yes"], ["rdbcompression", "no"]] {
        assert_eq!(client.ask(&["CONFIG", "SET", settings[0], settings[1]]), "+OK\r\n");
        assert_eq!(client.ask(&["SAVE"]), "+OK\r\n");
        let checked = Command::new("redis-check-rdb").arg(directory.path().join("dump.rdb")).output().expect("it runs");
        let told = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(checked.status.success() && told.contains("RDB looks OK"), "{told}");
        let folder = directory.path().to_str().expect("text");
        let with_file = ["--dir", folder, "--stop-writes-on-bgsave-error", "no"];
        for peer in [
            RedisServer::start(&with_file),
            RedisServer::start_valkey("8.1", &with_file),
            RedisServer::start_valkey("9.1", &with_file),
        ] {
            for question in questions() {
                // A server closes a connection whose client has finished, whatever it has not sent yet.
                let replies = |address: String| -> String {
                    let mut client = Client::connect(&address);
                    client.send(question.as_bytes());
                    question.lines().map(|_| reply_of(&mut client)).collect()
                };
                let (theirs, mine) = (replies(peer.address()), replies(ours.address()));
                // Nodes of radix trees are not kept.
                let shown = |reply: &str| {
                    reply.replace("radix", "\nradix").lines().filter(|line| !line.starts_with("radix")).count()
                };
                let is_alike = theirs == mine || question.contains("XINFO STREAM") && shown(&theirs) == shown(&mine);
                let at =
                    theirs.bytes().zip(mine.bytes()).position(|(a, b)| a != b).unwrap_or(theirs.len().min(mine.len()));
                let around =
                    |reply: &str| reply.get(at.saturating_sub(40)..(at + 40).min(reply.len())).map(str::to_owned);
                assert!(is_alike, "{question}: at {at}\n{:?}\n{:?}", around(&theirs), around(&mine));
            }
        }
    }
}

/// Returns the payload of every key of a database, with its expiry and what Redis has no place for.
fn payloads(client: &mut Client) -> BTreeMap<String, String> {
    let keys = client.ask(&["KEYS", "*"]);
    let mut found = BTreeMap::new();
    for key in keys.split("\r\n").skip(2).step_by(2).filter(|key| !key.is_empty()) {
        let facts = ["DUMP", "PEXPIRETIME"].map(|command| client.ask(&[command, key]));
        found.insert(key.to_owned(), format!("{facts:?} {}", client.ask(&["OBJECT", "STICKY", key])));
    }
    found
}

#[test]
fn a_store_comes_back_as_it_was() {
    let directory = tempfile::tempdir().expect("a directory");
    let ours = Running::with_files(in_directory(directory.path()), 1);
    let mut client = ours.connect();
    fill(&mut client);
    // What Redis has no place for.
    for line in [
        "SADDEX times 100000 a b",
        "SADD times c",
        "HSET fields a 1 b 2",
        "HPEXPIREAT fields 4102444800123 FIELDS 1 a",
        "STICK l:1 x",
    ] {
        assert!(!client.ask(&line.split(' ').collect::<Vec<_>>()).starts_with('-'), "{line}");
    }
    let before = payloads(&mut client);
    // Large sets and hashes may be in another order.
    let is_ordered = |key: &&String| !["m:", "h:", "i:"].iter().any(|start| key.starts_with(start));
    let ordered = |all: &BTreeMap<String, String>| -> Vec<(String, String)> {
        all.iter().filter(|(key, _)| is_ordered(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    assert_eq!(client.ask(&["DEBUG", "RELOAD"]), "+OK\r\n");
    let after = payloads(&mut client);
    assert_eq!(ordered(&after), ordered(&before));
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    assert_eq!(client.ask(&["FCALL", "f", "0"]), ":7\r\n");
    // The options.
    assert_eq!(client.ask(&["SET", "later", "1"]), "+OK\r\n");
    let twice = client.ask(&["DEBUG", "RELOAD", "NOFLUSH"]);
    assert_eq!(twice, "-ERR Error trying to load the RDB dump, check server logs.\r\n");
    assert_eq!(client.ask(&["DEBUG", "RELOAD", "MERGE", "NOFLUSH", "NOSAVE"]), "+OK\r\n");
    assert_eq!(client.ask(&["SET", "later", "2"]), "+OK\r\n");
    assert_eq!(client.ask(&["DEBUG", "RELOAD", "NOSAVE"]), "+OK\r\n");
    assert_eq!(client.ask(&["GET", "later"]), "$1\r\n1\r\n");
    assert!(client.ask(&["DEBUG", "RELOAD", "X"]).starts_with("-ERR DEBUG RELOAD only supports"));
}

/// Returns the next reply.
/// Whoever would add to the old values that wait for a save's disk waits, too, once there are 64 MiB of them; who reads
/// does not. The end of the save lets them go on.
#[test]
fn writers_wait_for_a_save_that_is_far_behind() {
    const VALUES: usize = 100;
    const MIB: usize = 1 << 20;
    let directory = tempfile::tempdir().expect("a directory");
    let ours = Running::with_files(in_directory(directory.path()), 2);
    let (mut writer, mut other, mut reader) = (ours.connect(), ours.connect(), ours.connect());
    let mut set_all = |letter: &str| {
        for n in 0..VALUES {
            writer.send(format!("*3\r\n$3\r\nSET\r\n$4\r\nk{n:03}\r\n${MIB}\r\n{}\r\n", letter.repeat(MIB)).as_bytes());
        }
        (0..VALUES).for_each(|_| assert_eq!(writer.read_reply(), b"+OK\r\n"));
    };
    set_all("a");
    // Ten seconds for each key.
    assert_eq!(reader.ask(&["CONFIG", "SET", "rdb-key-save-delay", "10000000"]), "+OK\r\n");
    assert_eq!(reader.ask(&["BGSAVE"]), "+Background saving started\r\n");
    assert_eq!(other.ask(&["CLIENT", "SETNAME", "other"]), "+OK\r\n");
    std::thread::scope(|scope| {
        scope.spawn(|| set_all("b"));
        let waiting = |reader: &mut Client| info(reader, "current_cow_size").parse::<usize>().expect("a number");
        wait_for("old values", || (waiting(&mut reader) > 64 * MIB).then_some(()));
        other.send(b"SET other 1\r\n");
        wait_for("its request that waits", || {
            let clients = reader.ask(&["CLIENT", "LIST"]);
            let line = clients.lines().find(|line| line.contains(" name=other ")).expect("it is connected");
            (!line.contains(" qbuf=0 ")).then_some(())
        });
        assert_eq!(reader.ask(&["STRLEN", "k001"]), format!(":{MIB}\r\n"));
        assert_eq!(reader.ask(&["GET", "other"]), "$-1\r\n");
        assert!(waiting(&mut reader) < 66 * MIB);
        assert_eq!(reader.ask(&["BGSAVE", "CANCEL"]), "+Background saving cancelled\r\n");
    });
    assert_eq!(other.read_reply(), b"+OK\r\n");
}

fn reply_of(client: &mut Client) -> String {
    String::from_utf8(client.read_reply()).expect("tests use text")
}

/// Returns the value of a line of INFO.
fn info(client: &mut Client, name: &str) -> String {
    let info = client.ask(&["INFO", "persistence"]);
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("{name} is not in {info}")).to_owned()
}

/// The number of accounts, and what is on each at first.
const ACCOUNTS: u32 = 200;
const AMOUNT: i64 = 1_000;

/// Returns a store with what the append-only file of a directory makes of one, while that is appended to and rewritten: of
/// a copy.
fn replayed(directory: &Path) -> Running {
    let copy = copied_append_only(directory);
    let again = Running::with_files(ServerOptions { appendonly: true, ..in_directory(copy.path()) }, 1);
    if let Some(beginning) = again.server.begin().expect("right files") {
        beginning.load().expect("right files");
    }
    again
}

/// Returns a store with what the file of the last save makes of one.
fn saved(directory: &Path) -> Running {
    let loaded = Store::new(StoreOptions::default());
    let file = std::fs::File::open(directory.join("dump.rdb")).expect("a file");
    loaded.load(file, None, LoadOptions::default()).expect("a whole file, and no key twice");
    Running::serving(loaded, ServerOptions::default(), 1)
}

/// Whatever moves money between accounts while a file is saved or rewritten — EXEC, scripts with and without declared
/// keys, MSET, RENAME — the file has it on one side of the cut only.
#[test]
fn files_have_transfers_whole_or_not_at_all() {
    let directory = tempfile::tempdir().expect("a directory");
    let ours = Running::with(ServerOptions { appendonly: true, ..in_directory(directory.path()) }, 2);
    if let Some(beginning) = ours.server.begin().expect("right files") {
        beginning.load().expect("right files");
    }
    let mut client = ours.connect();
    // Each worker has a pair of its own for MSET.
    for n in 0..4 {
        let amount = AMOUNT.to_string();
        assert_eq!(client.ask(&["MSET", &format!("one:{n}"), &amount, &format!("other:{n}"), &amount]), "+OK\r\n");
    }
    for n in 0..ACCOUNTS {
        assert_eq!(client.ask(&["SET", &format!("account:{n}"), &AMOUNT.to_string()]), "+OK\r\n");
    }
    // Something to go through, so that a save takes a while.
    assert_eq!(client.ask(&["DEBUG", "POPULATE", "20000"]), "+OK\r\n");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let (ours, is_over) = (&ours, &is_over);
            scope.spawn(move || {
                let mut client = ours.connect();
                let mut random = worker + 1;
                while !is_over.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let account = |shift: u32| format!("account:{}", (random >> shift) % u64::from(ACCOUNTS));
                    let (from, to) = (account(33), account(43));
                    if from == to {
                        continue;
                    }
                    let reply = match random >> 60 {
                        0..4 => {
                            client.send(format!("MULTI\r\nDECRBY {from} 7\r\nINCRBY {to} 7\r\nEXEC\r\n").as_bytes());
                            (0..3).for_each(|_| drop(client.read_reply()));
                            reply_of(&mut client)
                        }
                        4..8 => {
                            let script = "redis.call('decrby', KEYS[1], 3) redis.call('incrby', KEYS[2], 3)";
                            client.ask(&["EVAL", script, "2", &from, &to])
                        }
                        8..12 => {
                            let script = "redis.call('decrby', ARGV[1], 5) redis.call('set', ARGV[2], redis.call('get', ARGV[2]) + 5)";
                            client.ask(&["EVAL", script, "0", &from, &to])
                        }
                        12 => {
                            let (one, amount) = ((random >> 20) as i64 % 5_000, 2 * AMOUNT);
                            let [a, b] = ["one", "other"].map(|name| format!("{name}:{worker}"));
                            client.ask(&["MSET", &a, &one.to_string(), &b, &(amount - one).to_string()])
                        }
                        13 => {
                            // The two accounts change places.
                            let script = "redis.call('rename', KEYS[1], 'x:' .. KEYS[1]) redis.call('rename', KEYS[2], KEYS[1]) redis.call('rename', 'x:' .. KEYS[1], KEYS[2])";
                            client.ask(&["EVAL", script, "2", &from, &to])
                        }
                        _ => {
                            let script = "local a, b = redis.call('mget', KEYS[1], KEYS[2])[1], redis.call('get', KEYS[2]) redis.call('mset', KEYS[1], a - 1, KEYS[2], b + 1)";
                            client.ask(&["EVAL", script, "2", &from, &to])
                        }
                    };
                    assert!(!reply.starts_with('-'), "{reply}");
                }
            });
        }
        for round in 1..=6 {
            let (figure, of_file) = if round % 2 == 1 {
                assert_eq!(client.ask(&["BGSAVE"]), "+Background saving started\r\n");
                ("rdb_saves", saved as fn(&Path) -> Running)
            } else {
                assert!(client.ask(&["BGREWRITEAOF"]).starts_with('+'));
                ("aof_rewrites", replayed as fn(&Path) -> Running)
            };
            let count = (round + 1) / 2;
            wait_for("its end", || (info(&mut client, figure) == count.to_string()).then_some(()));
            let of_file = of_file(directory.path());
            let mut of_file = of_file.connect();
            let mut amount = |key: &str| -> i64 {
                let reply = of_file.ask(&["GET", key]);
                reply.split("\r\n").nth(1).and_then(|text| text.parse().ok()).expect("a number")
            };
            let sum: i64 = (0..ACCOUNTS).map(|n| amount(&format!("account:{n}"))).sum();
            assert_eq!(sum, i64::from(ACCOUNTS) * AMOUNT, "round {round}");
            for n in 0..4 {
                assert_eq!(amount(&format!("one:{n}")) + amount(&format!("other:{n}")), 2 * AMOUNT, "round {round}");
            }
            assert_eq!(of_file.ask(&["DBSIZE"]), format!(":{}\r\n", ACCOUNTS + 20_000 + 8), "round {round}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(info(&mut client, "rdb_last_bgsave_status"), "ok");
}

/// The counter-example to cuts that sections may span: a script writes one key, another client deletes a second one, and
/// the script, which has not declared it, makes it again. The file has it once.
#[test]
fn a_key_that_a_script_makes_again_across_a_cut_is_once_in_the_file() {
    for (save, begun, figure) in
        [("BGSAVE", "rdb_bgsave_in_progress", "rdb_saves"), ("BGREWRITEAOF", "aof_rewrite_in_progress", "aof_rewrites")]
    {
        let directory = tempfile::tempdir().expect("a directory");
        let ours = Running::with_files(ServerOptions { appendonly: true, ..in_directory(directory.path()) }, 2);
        if let Some(beginning) = ours.server.begin().expect("right files") {
            beginning.load().expect("right files");
        }
        let (mut client, mut other, mut saver) = (ours.connect(), ours.connect(), ours.connect());
        for key in ["a", "n", "go"] {
            assert_eq!(client.ask(&["SET", key, "old"]), "+OK\r\n");
        }
        // It goes on once somebody has subscribed.
        let script = "redis.call('set', KEYS[1], 'new') repeat until redis.call('pubsub', 'numsub', 'go')[2] == 1 \
                      redis.call('set', ARGV[1], 'again')";
        client.command(&["EVAL", script, "1", "a", "n"]);
        wait_for("the script", || (!other.ask(&["SCRIPT", "PS"]).starts_with("*0")).then_some(()));
        saver.command(&[save]);
        wait_for("the cut", || (info(&mut other, begun) == "1").then_some(()));
        assert!(other.ask(&["DEL", "n"]).starts_with(':'));
        let mut starter = ours.connect();
        starter.command(&["SUBSCRIBE", "go"]);
        assert!(reply_of(&mut saver).starts_with('+'));
        assert_eq!(reply_of(&mut client), "$-1\r\n");
        wait_for("its end", || (info(&mut other, figure) == "1").then_some(()));
        let of_file = if save == "BGSAVE" { saved(directory.path()) } else { replayed(directory.path()) };
        let mut of_file = of_file.connect();
        if save == "BGREWRITEAOF" {
            assert_eq!(of_file.ask(&["MGET", "a", "n", "go"]), other.ask(&["MGET", "a", "n", "go"]));
        }
        assert_eq!(of_file.ask(&["GET", "go"]), "$3\r\nold\r\n");
    }
}

/// Requests to two servers whose directories are gone, with save points.
const AFTER_A_FAILURE: &[&str] = &[
    "SET a 1\r\nGET a\r\nDEL a\r\nPING\r\nECHO x\r\nFLUSHALL\r\nPUBLISH a b\r\nPFCOUNT a\r\n",
    "MULTI\r\nSET a 1\r\nEXEC\r\n",
    "MULTI\r\nGET a\r\nPING\r\nEXEC\r\n",
    "MULTI\r\nGET a\r\nEXEC\r\n",
    "EVAL 'return redis.call(\"get\", \"a\")' 0\r\nEVAL 'return redis.call(\"set\", \"a\", 1)' 0\r\n",
    "EVAL 'return redis.pcall(\"set\", \"a\", 1)' 1 a\r\nEVAL '#!lua\nreturn 1' 0\r\nEVAL '#!lua flags=no-writes\nreturn 1' 0\r\n",
    "CONFIG SET stop-writes-on-bgsave-error no\r\nSET a 1\r\nPING\r\nCONFIG SET stop-writes-on-bgsave-error yes\r\nSET a 1\r\n",
    "CONFIG SET save ''\r\nSET a 2\r\nPING\r\nCONFIG SET save '3600 1000000'\r\nSET a 2\r\nCONFIG GET save\r\n",
    "CONFIG SET save '1'\r\nCONFIG SET save 'a b'\r\nCONFIG SET save '0 1'\r\nCONFIG SET save '60 1 30 2'\r\nCONFIG GET save\r\n",
    "BGSAVE x\r\nBGSAVE SCHEDULE x\r\nSAVE x\r\nMULTI\r\nSAVE\r\nEXEC\r\n",
];

#[test]
fn commands_that_write_are_refused_after_a_save_that_failed_as_by_redis() {
    let [theirs, mine] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let redis = RedisServer::start(&["--dir", theirs.path().to_str().expect("text")]);
    let ours = Running::with_files(in_directory(mine.path()), 1);
    let back = [theirs.path().to_owned(), mine.path().to_owned()];
    drop((theirs, mine));
    let mut clients = [redis.address(), ours.address()].map(|address| Client::connect(&address));
    for client in &mut clients {
        assert_eq!(client.ask(&["CONFIG", "SET", "save", "3600 1000000"]), "+OK\r\n");
        assert_eq!(client.ask(&["BGSAVE"]), "+Background saving started\r\n");
        wait_for("the failure", || (info(client, "rdb_last_bgsave_status") == "err").then_some(()));
        assert_eq!(client.ask(&["SAVE"]), "-ERR\r\n");
    }
    check_alike(AFTER_A_FAILURE, &redis, &ours);
    // Once it can be saved, everything goes on.
    back.iter().for_each(|path| std::fs::create_dir(path).expect("made"));
    let [_, client] = &mut clients;
    assert_eq!(client.ask(&["SAVE"]), "+OK\r\n");
    assert_eq!(client.ask(&["SET", "a", "3"]), "+OK\r\n");
    back.iter().for_each(|path| std::fs::remove_dir_all(path).expect("removed"));
}

#[test]
fn a_store_is_saved_by_itself_and_by_schedule() {
    let directory = tempfile::tempdir().expect("a directory");
    let ours = Running::with_files(in_directory(directory.path()), 1);
    let mut client = ours.connect();
    assert_eq!(client.ask(&["SET", "a", "1"]), "+OK\r\n");
    assert_eq!(info(&mut client, "rdb_changes_since_last_save"), "1");
    assert_eq!(client.ask(&["CONFIG", "SET", "save", "1 2"]), "+OK\r\n");
    // One change is not enough.
    ours.store().tick();
    assert_eq!(info(&mut client, "rdb_bgsave_in_progress"), "0");
    assert_eq!(client.ask(&["SET", "b", "1"]), "+OK\r\n");
    wait_for("the save", || {
        ours.store().tick();
        (info(&mut client, "rdb_saves") == "1").then_some(())
    });
    assert_eq!(info(&mut client, "rdb_changes_since_last_save"), "0");
    assert!(directory.path().join("dump.rdb").exists());
    // In a transaction it is only scheduled.
    client.send(b"MULTI\r\nBGSAVE\r\nEXEC\r\n");
    let replies: Vec<String> = (0..3).map(|_| reply_of(&mut client)).collect();
    assert_eq!(replies[2], "*1\r\n+Background saving scheduled\r\n");
    wait_for("the save", || {
        ours.store().tick();
        (info(&mut client, "rdb_saves") == "2").then_some(())
    });
    // What is flushed does not come back.
    assert_eq!(client.ask(&["FLUSHALL"]), "+OK\r\n");
    wait_for("the save", || {
        ours.store().tick();
        (info(&mut client, "rdb_saves") == "3").then_some(())
    });
    assert_eq!(info(&mut client, "rdb_changes_since_last_save"), "0");
    assert_eq!(client.ask(&["DEBUG", "RELOAD", "NOSAVE"]), "+OK\r\n");
    assert_eq!(client.ask(&["DBSIZE"]), ":0\r\n");
    assert!(
        client.ask(&["LASTSAVE"]).trim_start_matches(':').trim().parse::<u64>().is_ok_and(|at_s| at_s > 1_700_000_000)
    );
}

#[test]
fn a_save_is_cancelled_as_in_valkey() {
    let directory = tempfile::tempdir().expect("a directory");
    let ours = Running::with_files(in_directory(directory.path()), 1);
    let valkey = RedisServer::start_valkey("8.1", &["--dir", directory.path().to_str().expect("text")]);
    check_alike(&["BGSAVE CANCEL\r\nBGSAVE CANCEL x\r\n"], &valkey, &ours);
    let mut client = ours.connect();
    assert_eq!(client.ask(&["DEBUG", "POPULATE", "1000"]), "+OK\r\n");
    // Ten seconds for each key.
    assert_eq!(client.ask(&["CONFIG", "SET", "rdb-key-save-delay", "10000000"]), "+OK\r\n");
    assert_eq!(client.ask(&["BGSAVE"]), "+Background saving started\r\n");
    wait_for("all keys", || (info(&mut client, "current_save_keys_processed") == "1000").then_some(()));
    assert_eq!(info(&mut client, "rdb_bgsave_in_progress"), "1");
    let cancelled = client.ask(&["BGSAVE", "CANCEL"]);
    wait_for("its end", || (info(&mut client, "rdb_bgsave_in_progress") == "0").then_some(()));
    assert_eq!(cancelled, "+Background saving cancelled\r\n");
    assert_eq!(info(&mut client, "rdb_saves"), "0");
    assert_eq!(std::fs::read_dir(directory.path()).expect("it is read").count(), 0, "no file is left");
    assert_eq!(client.ask(&["CONFIG", "SET", "rdb-key-save-delay", "-5"]), "+OK\r\n");
    assert_eq!(client.ask(&["SAVE"]), "+OK\r\n");
}

/// Stores of one process may share a directory, and save at the same time.
#[test]
fn stores_that_share_a_directory_do_not_mix_their_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let names = ["a.rdb", "b.rdb"];
    let mut stores = names.map(|name| {
        let options = ServerOptions { dbfilename: name.into(), ..in_directory(directory.path()) };
        let ours = Running::with_files(options, 1);
        let mut client = ours.connect();
        assert_eq!(client.ask(&["SET", "name", name]), "+OK\r\n");
        // Both files are being written while each of their passes sleeps.
        assert_eq!(client.ask(&["CONFIG", "SET", "rdb-key-save-delay", "300000"]), "+OK\r\n");
        (ours, client)
    });
    for (_, client) in &mut stores {
        assert_eq!(client.ask(&["BGSAVE"]), "+Background saving started\r\n");
    }
    for ((_, client), name) in stores.iter_mut().zip(names) {
        wait_for("the save", || (info(client, "rdb_bgsave_in_progress") == "0").then_some(()));
        assert_eq!(info(client, "rdb_saves"), "1", "{name}");
        let loaded = Store::new(StoreOptions::default());
        let file = std::fs::File::open(directory.path().join(name)).expect("a file");
        loaded.load(file, None, LoadOptions::default()).expect("a whole file");
        let loaded = Running::serving(loaded, ServerOptions::default(), 1);
        assert_eq!(loaded.connect().ask(&["GET", "name"]), format!("${}\r\n{name}\r\n", name.len()));
    }
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 2);
}

#[test]
fn signals_end_a_store_of_its_own_as_in_redis() {
    let requests = ["CONFIG SET shutdown-on-sigint \"force NOSAVE now force\"\r\nCONFIG GET shutdown-on-sigint\r\n\
     CONFIG SET shutdown-on-sigint \"\"\r\nCONFIG SET shutdown-on-sigint \"save nosave\"\r\n\
     CONFIG SET shutdown-on-sigint \"default\"\r\nCONFIG GET shutdown-on-sigint\r\n"];
    let alone = ServerOptions { standalone: true, ..ServerOptions::default() };
    check_alike(&requests, &RedisServer::start(&[]), &Running::with(alone, 1));
}

/// A directory in which no file is created until the test lets it.
struct Slow {
    directory: Directory,
    /// Told when a file is to be created.
    begun: Mutex<Sender<()>>,
    goes_on: Mutex<Receiver<()>>,
}

impl Files for Slow {
    fn create(&self, name: &[u8]) -> std::io::Result<Box<dyn File>> {
        self.begun.lock().expect("not poisoned").send(()).expect("the test waits");
        self.goes_on.lock().expect("not poisoned").recv().expect("the test lets it");
        self.directory.create(name)
    }

    fn open(&self, name: &[u8]) -> std::io::Result<Box<dyn File>> {
        self.directory.open(name)
    }

    fn append(&self, name: &[u8]) -> std::io::Result<Box<dyn File>> {
        self.directory.append(name)
    }

    fn entry(&self, name: &[u8]) -> std::io::Result<Option<Entry>> {
        self.directory.entry(name)
    }

    fn list(&self) -> std::io::Result<Vec<Vec<u8>>> {
        self.directory.list()
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> std::io::Result<()> {
        self.directory.rename(from, to)
    }

    fn remove(&self, name: &[u8]) -> std::io::Result<()> {
        self.directory.remove(name)
    }

    fn make_directory(&self, name: &[u8]) -> std::io::Result<()> {
        self.directory.make_directory(name)
    }

    fn directory(&self, name: &[u8]) -> std::io::Result<Arc<dyn Files>> {
        self.directory.directory(name)
    }

    fn link_below(&self, name: &[u8], directory: &[u8]) -> std::io::Result<()> {
        self.directory.link_below(name, directory)
    }

    fn sync_directory(&self) -> std::io::Result<()> {
        self.directory.sync_directory()
    }

    fn lock(&self, name: &[u8]) -> std::io::Result<Lock> {
        self.directory.lock(name)
    }
}

/// What is written while the store is saved for the end of the process is not acknowledged, whatever other clients do; the
/// process ends even if the client that asked for it is gone.
#[test]
fn what_is_written_during_the_last_save_is_not_acknowledged() {
    let directory = tempfile::tempdir().expect("a directory");
    let point = SavePoint { seconds: 3600, changes: 1 };
    let options = ServerOptions { standalone: true, save_points: vec![point], ..in_directory(directory.path()) };
    let ours = Running::with_files(options, 1);
    let ((begun, when_begun), (go_on, when_on)) = (channel(), channel());
    let slow =
        Slow { directory: Directory::new(directory.path()), begun: Mutex::new(begun), goes_on: Mutex::new(when_on) };
    ours.store().set_files(Some(Arc::new(slow)));
    let mut admin = ours.connect();
    assert_eq!(admin.ask(&["SET", "early", "v"]), "+OK\r\n");
    let mut writers: Vec<Client> = (0..3).map(|_| ours.connect()).collect();
    writers[2].send("MULTI\r\nSET late v\r\n");
    assert_eq!(writers[2].read_until(b"QUEUED\r\n"), b"+OK\r\n+QUEUED\r\n");
    let mut asking = ours.connect();
    asking.command(&["SHUTDOWN"]);
    when_begun.recv().expect("the save begins");
    drop(asking);
    writers[0].command(&["SET", "late", "v"]);
    writers[1].send("GET early\r\nSET late v\r\nGET early\r\n");
    writers[2].command(&["EXEC"]);
    assert_eq!(writers[1].read_until(b"v\r\n"), b"$1\r\nv\r\n");
    assert_eq!(admin.ask(&["CLIENT", "PAUSE", "1", "WRITE"]), "+OK\r\n");
    assert_eq!(admin.ask(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
    assert_eq!(admin.ask(&["GET", "late"]), "$-1\r\n");
    // A signal, which neither ends this save nor begins another.
    let server = ours.server.clone();
    let again = std::thread::spawn(move || on_runtime(async move { server.save_at_end(Ending::default()).await }));
    go_on.send(()).expect("the save waits");
    on_runtime(ours.server.shutdown_asked());
    assert!(again.join().expect("no panic"));
    assert!(when_begun.try_recv().is_err(), "one save");
    ours.server.stop();
    assert_eq!(writers[0].read_to_end(), b"");
    assert_eq!(writers[1].read_to_end(), b"");
    assert_eq!(writers[2].read_to_end(), b"");
    let file = std::fs::File::open(directory.path().join("dump.rdb")).expect("the file");
    let loaded = Store::new(StoreOptions::default()).load(file, None, LoadOptions::default()).expect("it loads");
    assert_eq!(loaded.keys, 1);
}

/// A process that is about to end leaves the file of another one alone; before that, the file is its own.
#[test]
fn a_process_that_ends_leaves_the_file_of_its_successor() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("dump.rdb");
    let start = || {
        let point = SavePoint { seconds: 3600, changes: 1 };
        let ours = Running::with_files(ServerOptions { save_points: vec![point], ..in_directory(directory.path()) }, 1);
        if let Some(beginning) = ours.server.begin().expect("nothing is wrong") {
            beginning.load().expect("it loads");
        }
        ours
    };
    let set = |ours: &Running, keys: &[&str]| {
        keys.iter().for_each(|key| assert_eq!(ours.connect().ask(&["SET", key, "v"]), "+OK\r\n"));
    };
    let save = |ours: &Running, keys: &[&str]| {
        set(ours, keys);
        assert_eq!(ours.connect().ask(&["SAVE"]), "+OK\r\n");
    };
    let end = |ours: &Running| {
        ours.server.yield_file();
        assert!(on_runtime(ours.server.save_at_end(Ending::default())));
    };
    // What is in the directory, which is nothing but the file, and in that.
    let keys = || {
        assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 1);
        let store = Store::new(StoreOptions::default());
        store.load(std::fs::File::open(&path).expect("a file"), None, LoadOptions::default()).expect("it loads").keys
    };
    let old = start();
    save(&old, &["a"]);
    let new = start();
    save(&new, &["b"]);
    // Nobody ends, so the last one counts.
    save(&old, &["c", "d"]);
    assert_eq!(keys(), 3);
    save(&new, &[]);
    set(&old, &["e"]);
    end(&old);
    assert_eq!(keys(), 2, "of the new one");
    set(&new, &["f"]);
    end(&new);
    assert_eq!(keys(), 3, "its own file");
    // One that began without a file has none of its own; a file that is gone is nobody's.
    std::fs::remove_file(&path).expect("removed");
    let (first, second) = (start(), start());
    save(&second, &["a", "b"]);
    set(&first, &["a"]);
    end(&first);
    assert_eq!(keys(), 2);
    std::fs::remove_file(&path).expect("removed");
    end(&second);
    assert_eq!(keys(), 2);
    // The other one is faster, while the last save is being written.
    let (slow, fast) = (start(), start());
    let ((begun, when_begun), (go_on, when_on)) = (channel(), channel());
    let files =
        Slow { directory: Directory::new(directory.path()), begun: Mutex::new(begun), goes_on: Mutex::new(when_on) };
    slow.store().set_files(Some(Arc::new(files)));
    set(&slow, &["c"]);
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| end(&slow));
        when_begun.recv().expect("the save begins");
        save(&fast, &["c", "d"]);
        go_on.send(()).expect("the save waits");
        ending.join().expect("no panic");
    });
    assert_eq!(keys(), 4);
    // In another place any file is its own.
    let moved = start();
    std::fs::write(directory.path().join("other.rdb"), "").expect("written");
    std::fs::remove_file(&path).expect("removed");
    assert_eq!(moved.connect().ask(&["CONFIG", "SET", "dbfilename", "other.rdb"]), "+OK\r\n");
    end(&moved);
    assert_ne!(std::fs::metadata(directory.path().join("other.rdb")).expect("a file").len(), 0);
}
