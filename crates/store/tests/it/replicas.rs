//! Replicas: real ones of Redis and Valkey, and some that only speak the protocol.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use sluicegate_store::config::{OutputLimit, ServerOptions};
use sluicegate_testkit::{Client, RedisServer, encode, wait_for};

use crate::Random;
use crate::support::{Running, exchange};

/// A master, whose background work a thread does.
struct Master {
    running: Running,
    stop: Arc<AtomicBool>,
    ticks: Option<JoinHandle<()>>,
}

impl Master {
    fn start(change: impl FnOnce(&mut ServerOptions)) -> Master {
        let mut options = ServerOptions { enable_debug_command: "yes", ..ServerOptions::default() };
        options.replication.diskless_delay_s = 0;
        change(&mut options);
        let running = Running::with(options, 2);
        let (store, stop) = (running.store().clone(), Arc::<AtomicBool>::default());
        let stopped = stop.clone();
        let ticks = std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                store.tick();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Master { running, stop, ticks: Some(ticks) }
    }

    fn connect(&self) -> Client {
        self.running.connect()
    }

    /// Returns the value of a line of INFO.
    fn told(&self, section: &str, name: &str) -> String {
        told(&mut self.connect(), section, name)
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // A panic there was printed.
        let _ = self.ticks.take().map(JoinHandle::join);
    }
}

fn told(client: &mut Client, section: &str, name: &str) -> String {
    let text = client.ask(&["INFO", section]);
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
}

/// Returns a random command, or a transaction.
fn commands(random: &mut Random) -> Vec<Vec<String>> {
    fn one(random: &mut Random) -> Vec<String> {
        let mut value = "v".repeat([1, 5, 30, 200, 3_000][random.below(5)]);
        value.push_str(&random.below(1_000_000).to_string());
        let mut key = |kind: char| format!("{kind}:{}", random.below(40));
        let (s, s2, n, h, l, l2, t, t2, z, z2, x) = (
            key('s'),
            key('s'),
            key('n'),
            key('h'),
            key('l'),
            key('l'),
            key('t'),
            key('t'),
            key('z'),
            key('z'),
            key('x'),
        );
        let (some, time) = (random.below(200), 1 + random.below(1_500));
        let any = [&s, &h, &l, &t, &z, &x][random.below(6)].clone();
        let line = match random.below(36) {
            0 => format!("SET {s} {value}"),
            1 => format!("SET {s} {value} PX {time}"),
            2 => format!("INCR {n}"),
            3 => format!("INCRBYFLOAT {n} 0.1"),
            4 => format!("APPEND {s} x"),
            5 => format!("HSET {h} f{some} {value} g 1"),
            6 => format!("HINCRBY {h} c 2"),
            7 => format!("HDEL {h} f{some}"),
            8 => format!("LPUSH {l} {value} 1 2"),
            9 => format!("RPOP {l}"),
            10 => format!("LREM {l} 0 1"),
            11 => format!("LMOVE {l} {l2} LEFT RIGHT"),
            12 => format!("SADD {t} {some} {value}"),
            13 => format!("SPOP {t}"),
            14 => format!("SPOP {t} 3"),
            15 => format!("SUNIONSTORE {t} {t} {t2}"),
            16 => format!("ZADD {z} {some}.25 m{some}"),
            17 => format!("ZPOPMIN {z}"),
            18 => format!("ZUNIONSTORE {z} 2 {z} {z2}"),
            19 => format!("XADD {x} * f {value}"),
            20 => format!("XTRIM {x} MAXLEN 20"),
            21 => format!("EXPIRE {any} {}", 1 + some % 2),
            22 => format!("PEXPIRE {any} {time}"),
            23 => format!("PERSIST {s}"),
            24 => format!("DEL {any} {s2}"),
            25 => format!("RENAME {s} {s2}"),
            26 => format!("COPY {h} {h} REPLACE"),
            27 => format!("SETBIT {s} {some} 1"),
            28 => format!("PFADD p:1 {value}"),
            29 => format!("GETEX {s} PX {time}"),
            30 => format!("MSET {s} {value} {s2} 1 {n} 2"),
            31 => format!("PUBLISH channel {some}"),
            32 => format!("SET {s} {}", "long".repeat(20_000 + some)),
            33 => format!("XGROUP CREATE {x} g 0"),
            34 => format!("XREADGROUP GROUP g c COUNT 2 STREAMS {x} >"),
            _ => {
                let code = "redis.call('set',KEYS[1],ARGV[1]) redis.call('rpush',KEYS[2],ARGV[1]) redis.call('spop',KEYS[3]) \
                            local k=redis.call('randomkey') if k then redis.call('pexpire',k,900) end";
                return ["EVAL", code, "3", &s, &l, &t, &value].map(str::to_owned).to_vec();
            }
        };
        line.split(' ').map(str::to_owned).collect()
    }
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    match random.below(2_000) {
        0 => vec![words("FLUSHALL")],
        1 => vec![words("FLUSHDB")],
        2..6 => vec![words("SWAPDB 0 1")],
        6..30 => vec![words(&format!("SELECT {}", random.below(3)))],
        30..120 => {
            let inner = (0..3).map(|_| one(random));
            std::iter::once(words("MULTI")).chain(inner).chain([words("EXEC")]).collect()
        }
        _ => vec![one(random)],
    }
}

/// Sends random commands from several clients; calls `between` now and then.
fn load(address: &str, seed: u64, rounds: usize, mut between: impl FnMut(usize)) {
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|number| {
                scope.spawn(move || {
                    let (mut random, mut client) = (Random(seed + number), Client::connect(address));
                    for _ in 0..rounds {
                        let batch: Vec<_> = (0..8).flat_map(|_| commands(&mut random)).collect();
                        client.send(batch.iter().flat_map(|words| encode(words)).collect::<Vec<u8>>());
                        batch.iter().for_each(|_| drop(client.read_reply()));
                    }
                })
            })
            .collect();
        let mut round = 0;
        while clients.iter().any(|client| !client.is_finished()) {
            between(round);
            round += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

fn seed() -> u64 {
    let seed = std::env::var("SLUICEGATE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(11);
    println!("SLUICEGATE_SEED={seed}");
    seed
}

/// Real replicas have the data set of their master, whatever interrupts them.
#[test]
fn real_replicas_have_what_their_master_has() {
    let directory = tempfile::tempdir().expect("a directory");
    let master = Master::start(|options| {
        options.dir = directory.path().as_os_str().as_encoded_bytes().to_vec();
        options.replication.backlog_bytes = 8 << 20;
    });
    let (address, port) = (master.running.address(), master.running.port.to_string());
    let seed = seed();
    load(&address, seed, 30, |_| {});
    let directories = [0, 1, 2].map(|_| tempfile::tempdir().expect("a directory"));
    let of_peer = |number: usize| {
        let dir = directories[number].path().to_str().expect("text");
        ["--replicaof", "127.0.0.1", &port, "--enable-debug-command", "yes", "--dir", dir].map(str::to_owned)
    };
    let of_redis = [0, 1, 2].map(of_peer);
    let words = |number: usize| of_redis[number].iter().map(String::as_str).collect::<Vec<_>>();
    let replicas: Vec<RedisServer> = std::thread::scope(|scope| {
        // They come while the master is busy.
        let busy = scope.spawn(|| load(&address, seed + 10, 60, |_| {}));
        let replicas = vec![
            RedisServer::start(&words(0)),
            RedisServer::start_valkey("8.1", &words(1)),
            RedisServer::start_valkey("9.1", &words(2)),
        ];
        busy.join().expect("no fault");
        replicas
    });
    let online = |count: usize| {
        wait_for("replicas", || {
            let told = master.connect().ask(&["INFO", "replication"]);
            (told.matches("state=online").count() == count).then_some(())
        });
    };
    let check = |context: &str| {
        online(3);
        let mut client = master.connect();
        let waited = client.ask(&["WAIT", "3", "0"]);
        assert_eq!(waited, ":3\r\n", "{context}");
        let mut told = String::new();
        // Keys may expire meanwhile.
        wait_for("equal digests", || {
            let own = client.ask(&["DEBUG", "DIGEST"]);
            let theirs: Vec<String> =
                replicas.iter().map(|peer| Client::connect(&peer.address()).ask(&["DEBUG", "DIGEST"])).collect();
            told = format!("{context}: {own}, {theirs:?}");
            // Valkey counts differently than Redis.
            (own == theirs[0] && theirs[1] == theirs[2]).then_some(())
        });
        let libraries = client.ask(&["FUNCTION", "LIST"]);
        for peer in &replicas {
            assert!(!peer.program.output().contains("CRITICAL"), "{}", peer.program.output());
            assert_eq!(Client::connect(&peer.address()).ask(&["FUNCTION", "LIST"]), libraries, "{context}");
        }
    };
    check("after full syncs");
    let library = "#!lua name=lib\nredis.register_function('f', function() return 7 end)";
    assert!(!master.connect().ask(&["FUNCTION", "LOAD", library]).starts_with('-'));
    let before = master.told("stats", "sync_full");
    load(&address, seed + 20, 100, |round| {
        if round % 8 == 3 {
            master.connect().ask(&["CLIENT", "KILL", "TYPE", "replica"]);
        }
    });
    check("after cut links");
    assert_eq!(master.told("stats", "sync_full"), before, "all could continue");
    assert_ne!(master.told("stats", "sync_partial_ok"), "0");
    // By a file, and with a backlog that does not reach back.
    let mut client = master.connect();
    assert_eq!(client.ask(&["CONFIG", "SET", "repl-diskless-sync", "no", "repl-backlog-size", "1024"]), "+OK\r\n");
    wait_for("a full sync", || {
        load(&address, seed + 30, 30, |round| {
            if round == 0 {
                client.ask(&["CLIENT", "KILL", "TYPE", "replica"]);
            }
        });
        (master.told("stats", "sync_full") != before).then_some(())
    });
    check("after syncs by a file");
    assert!(directory.path().join("dump.rdb").exists());
}

/// A replica that requests parts of the data set receives them, whatever other replicas request meanwhile; redis-cli
/// requests the functions.
#[test]
fn parts_of_the_data_set_are_sent() {
    let directory = tempfile::tempdir().expect("a directory");
    let master = Master::start(|options| options.dir = directory.path().as_os_str().as_encoded_bytes().to_vec());
    let mut client = master.connect();
    client.ask(&["FUNCTION", "LOAD", "#!lua name=kept\nredis.register_function('one', function() return 1 end)"]);
    client.ask(&["SET", "a-key", "a-value"]);
    let has = |text: &str, bytes: &[u8]| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    for is_diskless in ["no", "yes"] {
        assert_eq!(client.ask(&["CONFIG", "SET", "repl-diskless-sync", is_diskless]), "+OK\r\n");
        let file = directory.path().join("functions.rdb");
        let mut cli = Command::new("redis-cli");
        cli.args(["-p", &master.running.port.to_string(), "--functions-rdb"]).arg(&file);
        let said = cli.output().expect("it runs");
        assert!(said.status.success(), "{said:?}");
        let functions = std::fs::read(&file).expect("a file");
        assert!(has("name=kept", &functions) && !has("a-key", &functions));
        let checked = Command::new("redis-check-rdb").arg(&file).output().expect("it runs");
        let checked = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(checked.contains("0 keys read") && checked.contains("RDB looks OK!"), "{checked}");
    }
    assert!(!directory.path().join("dump.rdb").exists(), "the file is of the whole data set");
    // Others at the same time get what they want, and all get what changes afterwards.
    let mut replicas = [None, Some(""), Some("functions")].map(|parts| {
        let mut replica = Bare::connect(&master.running.address());
        if let Some(parts) = parts {
            assert_eq!(replica.0.ask(&["REPLCONF", "rdb-filter-only", parts]), "+OK\r\n");
        }
        replica.ask();
        replica
    });
    let payloads = replicas.each_mut().map(|replica| replica.payload().2);
    let found = payloads.map(|payload| [has("name=kept", &payload), has("a-key", &payload)]);
    assert_eq!(found, [[true, true], [false, false], [true, false]]);
    client.ask(&["SET", "last", "1"]);
    replicas.iter_mut().for_each(|replica| assert!(replica.read_to("SET last").len() <= 2));
}

/// A replica that only speaks the protocol.
struct Bare(Client);

impl Bare {
    fn connect(address: &str) -> Bare {
        let mut client = Client::connect(address);
        assert_eq!(client.ask(&["PING"]), "+PONG\r\n");
        for words in [&["REPLCONF", "listening-port", "7"][..], &["REPLCONF", "capa", "eof", "capa", "psync2"]] {
            assert_eq!(client.ask(words), "+OK\r\n");
        }
        Bare(client)
    }

    /// Asks for the whole data set, and reads it. Returns the identifier of the history and the offset.
    fn sync(&mut self) -> (String, u64) {
        self.ask();
        let (id, offset, _) = self.payload();
        (id, offset)
    }

    fn ask(&mut self) {
        self.0.command(&["PSYNC", "?", "-1"]);
    }

    /// Reads the data set. Returns the identifier, the offset, and the file.
    fn payload(&mut self) -> (String, u64, Vec<u8>) {
        let mut line = self.0.read_line();
        while line.is_empty() {
            line = self.0.read_line();
        }
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some("+FULLRESYNC"), "{line}");
        let id = words.next().expect("an identifier").to_owned();
        let offset = words.next().and_then(|word| word.parse().ok()).expect("an offset");
        let mark = loop {
            let line = self.0.read_line();
            if let Some(mark) = line.strip_prefix("$EOF:") {
                break mark.to_owned();
            }
            assert!(line.is_empty(), "{line}");
        };
        assert_eq!(mark.len(), 40);
        let payload = self.0.read_until(mark.as_bytes());
        assert!(payload.starts_with(b"REDIS00"));
        self.acknowledge(offset);
        (id, offset, payload)
    }

    fn acknowledge(&mut self, offset: u64) {
        self.0.command(&["REPLCONF", "ACK", &offset.to_string()]);
    }

    /// Reads commands of the stream up to one that contains a text; their words.
    fn read_to(&mut self, last: &str) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let command = String::from_utf8_lossy(&self.0.read_reply()).into_owned();
            let words: Vec<&str> = command.split("\r\n").skip(2).step_by(2).collect();
            let command = words.join(" ");
            let is_last = command.contains(last);
            if command != "PING" {
                all.push(command);
            }
            if is_last {
                return all;
            }
        }
    }
}

/// The stream is that of Redis, word for word, where nothing depends on time or chance.
#[test]
fn the_stream_is_that_of_redis() {
    let ours = Master::start(|_| {});
    let mut redis = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
    let streams = [false, true].map(|is_redis| {
        let address = if is_redis { redis.address() } else { ours.running.address() };
        let mut replica = Bare::connect(&address);
        let (_, offset) = replica.sync();
        if is_redis {
            // An acknowledgement that comes before the process that saved has ended is not heard.
            redis.program.wait_for_output("Waiting for REPLCONF ACK from");
            replica.acknowledge(offset);
        }
        let mut client = Client::connect(&address);
        for line in [
            "SET a 1",
            "INCR a",
            "GET a",
            "DEL missing",
            "SETNX a 2",
            "SELECT 3",
            "RPUSH l 1 2 3",
            "MULTI",
            "LPOP l",
            "SET b 2",
            "GET b",
            "EXEC",
            "MULTI",
            "SET only 1",
            "EXEC",
            "SELECT 0",
            "PUBLISH c m",
            "SPUBLISH c m",
            "EVAL return(redis.call('set',KEYS[1],1)) 1 s",
            "EVAL redis.call('set','x',1)redis.call('incr','x')redis.call('publish','c','m')return(1) 0",
            "EVAL return(redis.call('get','x')) 0",
            "RPUSH l 1 2 3 4",
            "SADD set one",
            "SPOP set",
            "SPOP set 2",
            "SADD set one two",
            "SPOP set 2",
            "SADD set one",
            "SPOP set 5",
            "INCRBYFLOAT f 0.5",
            "HINCRBYFLOAT h f 0.25",
            "GETDEL a",
            "SET k v EX 1000 KEEPTTL",
            "ZADD z 1 a 2 b",
            "ZPOPMAX z",
            "BLPOP l 1",
            "LMOVE l l2 LEFT RIGHT",
            "BRPOPLPUSH l2 l4 1",
            "BLMOVE l4 l2 LEFT LEFT 1",
            "XADD st 1-1 f v",
            "XADD st 2-1 f v",
            "XTRIM st MAXLEN = 1",
            "XGROUP CREATE st g 0",
            "GETEX y PERSIST",
            "LMPOP 2 nothing l LEFT COUNT 2",
            "ZADD z 5 m",
            "ZMPOP 1 z MIN",
            "SMOVE set other one",
            "SINTERSTORE d set other",
            "SETRANGE r 3 abc",
            "APPEND r d",
            "HSETNX h g 1",
            "PFADD p a b",
            "PFCOUNT p",
            "BITOP NOT dest r",
            "RENAME x y",
            "COPY l2 l3",
            "SWAPDB 1 2",
            "FLUSHDB",
            "FLUSHALL",
            "FUNCTION FLUSH",
            "SET last 1",
        ] {
            client.ask(&line.split(' ').collect::<Vec<_>>());
        }
        replica.read_to("SET last")
    });
    let [own, theirs] = streams;
    assert_eq!(own, theirs, "\n{}\n\n{}", own.join("\n"), theirs.join("\n"));
}

/// A history is continued by those who have it, at once and after a while, and by nobody else.
#[test]
fn replicas_continue_where_they_stopped() {
    let master = Master::start(|options| options.replication.backlog_bytes = 128 << 10);
    let address = master.running.address();
    let mut client = master.connect();
    client.ask(&["SET", "before", "1"]);
    let mut replica = Bare::connect(&address);
    let (id, offset) = replica.sync();
    assert_eq!((master.told("replication", "master_replid"), id.len()), (id.clone(), 40));
    client.ask(&["SET", "a", "1"]);
    assert_eq!(replica.read_to("SET a"), ["SELECT 0", "SET a 1"]);
    drop(replica);
    wait_for("the end of the link", || (master.told("replication", "connected_slaves") == "0").then_some(()));
    client.ask(&["SET", "b", "2"]);
    // From what it had, and from the start, without the data set.
    for (from, expected) in [(offset, &["SELECT 0", "SET a 1", "SET b 2"][..]), (offset + 23, &["SET a 1", "SET b 2"])]
    {
        let mut replica = Bare::connect(&address);
        let asked = replica.0.ask(&["PSYNC", &id, &(from + 1).to_string()]);
        assert_eq!(asked, format!("+CONTINUE {id}\r\n"));
        assert_eq!(replica.read_to("SET b"), expected);
    }
    let lines = master.running.logged();
    let whole = |words: &[&str], why: &str| {
        lines.lock().expect("no panic").clear();
        let mut replica = Bare::connect(&address);
        let answer = replica.0.ask(words);
        assert!(answer.starts_with(&format!("+FULLRESYNC {id} ")), "{answer}");
        let lines = lines.lock().expect("no panic");
        assert!(lines.iter().any(|line| line.contains(why)), "{why} is not in {lines:?}");
    };
    let end: u64 = master.told("replication", "master_repl_offset").parse().expect("a number");
    let other = "1".repeat(40);
    let mismatch = format!(
        "Partial resynchronization not accepted: Replication ID mismatch (Replica asked for '{other}', my replication IDs \
         are '{id}' and '{}')",
        "0".repeat(40)
    );
    whole(&["PSYNC", &other, &(offset + 1).to_string()], &mismatch);
    whole(&["PSYNC", "anything", "1"], "Partial resynchronization not accepted: 'anything' is no replication ID");
    whole(&["PSYNC", &id, &(end + 2).to_string()], &format!("for lack of backlog (Replica request was: {}).", end + 2));
    whole(&["PSYNC", &id, "0"], "for lack of backlog (Replica request was: 0).");
    // The backlog is not endless.
    for number in 0..40 {
        client.ask(&["SET", &format!("k{number}"), &"x".repeat(10_000)]);
    }
    wait_for("a later start", || {
        let first: u64 = master.told("replication", "repl_backlog_first_byte_offset").parse().expect("a number");
        (first > offset + 1).then_some(())
    });
    let why = format!("for lack of backlog (Replica request was: {}).", offset + 1);
    whole(&["PSYNC", &id, &(offset + 1).to_string()], &why);
    // The figures of INFO start again.
    for name in ["sync_full", "sync_partial_ok", "sync_partial_err"] {
        assert_ne!(told(&mut client, "stats", name), "0", "{name}");
    }
    client.ask(&["CONFIG", "RESETSTAT"]);
    for name in ["sync_full", "sync_partial_ok", "sync_partial_err"] {
        assert_eq!(told(&mut client, "stats", name), "0", "{name}");
    }
    // Nobody needs it.
    client.ask(&["CONFIG", "SET", "repl-backlog-ttl", "1"]);
    wait_for("the end of the backlog", || (master.told("replication", "repl_backlog_active") == "0").then_some(()));
    assert_ne!(master.told("replication", "master_replid"), id);
}

/// WAIT and WAITAOF count what replicas have acknowledged.
#[test]
fn clients_wait_for_replicas() {
    let master = Master::start(|_| {});
    let mut client = master.connect();
    assert_eq!(client.ask(&["WAIT", "0", "1"]), ":0\r\n");
    // It would end behind the last millisecond that there is.
    for words in [&["WAIT", "2", "9223372036854775807"][..], &["WAITAOF", "0", "2", "9223372036854775807"]] {
        assert_eq!(client.ask(words), "-ERR timeout is out of range\r\n");
    }
    let mut replicas = [0, 1].map(|_| Bare::connect(&master.running.address()));
    replicas.iter_mut().for_each(|replica| drop(replica.sync()));
    client.ask(&["SET", "a", "1"]);
    assert_eq!(told(&mut client, "clients", "connected_clients"), "1", "replicas are none");
    client.command(&["WAIT", "2", "0"]);
    for replica in &mut replicas {
        assert_eq!(replica.read_to("GETACK").last().map(String::as_str), Some("REPLCONF GETACK *"));
    }
    let end: u64 = master.told("replication", "master_repl_offset").parse().expect("a number");
    replicas[0].acknowledge(end);
    let mut other = master.connect();
    assert_eq!(other.ask(&["WAIT", "1", "0"]), ":1\r\n");
    replicas[1].acknowledge(end);
    assert_eq!(client.read_reply(), b":2\r\n");
    // Less than what was written.
    client.ask(&["SET", "a", "2"]);
    assert_eq!(client.ask(&["WAIT", "1", "20"]), ":0\r\n");
    assert_eq!(client.ask(&["WAITAOF", "0", "1", "20"]), "*2\r\n:0\r\n:0\r\n");
    let end: u64 = master.told("replication", "master_repl_offset").parse().expect("a number");
    client.command(&["WAITAOF", "0", "1", "0"]);
    replicas[0].read_to("GETACK");
    replicas[0].0.command(&["REPLCONF", "ACK", &(end + 100).to_string(), "FACK", &(end + 100).to_string()]);
    assert_eq!(client.read_reply(), b"*2\r\n:0\r\n:1\r\n");
    let role = client.ask(&["ROLE"]);
    assert!(
        role.starts_with("*3\r\n$6\r\nmaster\r\n:") && role.contains("*3\r\n$9\r\n127.0.0.1\r\n$1\r\n7\r\n"),
        "{role}"
    );
    let line = client.ask(&["CLIENT", "LIST", "TYPE", "replica"]);
    assert_eq!(line.matches(" flags=S ").count(), 2, "{line}");
}

/// A replica that reads nothing is disconnected, and nobody waits for it.
#[test]
fn replicas_that_do_not_read_are_disconnected() {
    let master = Master::start(|options| {
        options.client_output_buffer_limit[1] = OutputLimit { hard: 4 << 20, soft: 0, soft_s: 0 };
        options.repl_timeout_s = 5;
    });
    let logged = master.running.logged();
    let mut client = master.connect();
    let mut replica = Bare::connect(&master.running.address());
    replica.sync();
    for number in 0..400 {
        assert_eq!(client.ask(&["SET", &format!("k{}", number % 10), &"x".repeat(100_000)]), "+OK\r\n");
    }
    wait_for("the end of the link", || (master.told("replication", "connected_slaves") == "0").then_some(()));
    wait_for("memory given back", || {
        let held: u64 = master.told("memory", "mem_total_replication_buffers").parse().expect("a number");
        (held < 2 << 20).then_some(())
    });
    let logged = logged.lock().expect("no panic").join("\n");
    let told = "flags=S scheduled to be closed ASAP for overcoming of output buffer limits.";
    assert_eq!(logged.matches(told).count(), 1, "{logged}");
    // One that does not take its data set holds up nobody, either, and others get theirs.
    for number in 0..300 {
        client.ask(&["SET", &format!("large{number}"), &"x".repeat(100_000)]);
    }
    let mut deaf = Bare::connect(&master.running.address());
    deaf.0.command(&["PSYNC", "?", "-1"]);
    wait_for("the start of the transfer", || {
        master.connect().ask(&["INFO", "replication"]).contains("state=send_bulk").then_some(())
    });
    assert_eq!(master.told("persistence", "rdb_bgsave_in_progress"), "1");
    for number in 0..300 {
        assert_eq!(client.ask(&["SET", &format!("large{number}"), "y"]), "+OK\r\n");
    }
    wait_for("the end of the link", || (master.told("replication", "connected_slaves") == "0").then_some(()));
    let mut other = Bare::connect(&master.running.address());
    other.sync();
}

/// Parameters act on replicas that are there.
#[test]
fn parameters_of_replicas_act() {
    let master = Master::start(|options| options.replication.diskless_delay_s = 1_000);
    let mut client = master.connect();
    let mut set = |words: &[&str]| assert_eq!(client.ask(&[&["CONFIG", "SET"], words].concat()), "+OK\r\n");
    // A transfer waits for others, but not with that many.
    let mut first = Bare::connect(&master.running.address());
    first.0.command(&["PSYNC", "?", "-1"]);
    wait_for("a replica that waits", || {
        master.connect().ask(&["INFO", "replication"]).contains("state=wait_bgsave").then_some(())
    });
    assert_eq!(master.told("stats", "sync_full"), "0");
    set(&["repl-diskless-sync-max-replicas", "2"]);
    let mut second = Bare::connect(&master.running.address());
    let (_, offset) = second.sync();
    assert_eq!(master.told("stats", "sync_full"), "2");
    // Signs of life.
    set(&["repl-ping-replica-period", "1"]);
    let mut has_come = Vec::new();
    while !has_come.ends_with(b"PING\r\n") {
        has_come = second.0.read_reply();
    }
    // Writes need a replica that was heard of.
    set(&["min-replicas-max-lag", "1", "min-replicas-to-write", "1"]);
    let mut other = master.connect();
    wait_for("a refusal", || {
        (other.ask(&["SET", "a", "1"]) == "-NOREPLICAS Not enough good replicas to write.\r\n").then_some(())
    });
    for (words, expected) in [
        (&["EVAL", "return redis.call('set', 'a', 1)", "0"][..], "-NOREPLICAS "),
        (&["EVAL", "#!lua\nreturn 1", "0"], "-NOREPLICAS "),
        (&["EVAL", "#!lua flags=no-writes\nreturn 1", "0"], ":1"),
        (&["GET", "a"], "$"),
    ] {
        let reply = other.ask(words);
        assert!(reply.starts_with(expected), "{words:?}: {reply}");
    }
    assert_eq!(other.ask(&["MULTI"]), "+OK\r\n");
    assert_eq!(other.ask(&["SET", "a", "1"]), "-NOREPLICAS Not enough good replicas to write.\r\n");
    assert!(other.ask(&["EXEC"]).starts_with("-EXECABORT"));
    wait_for("a write", || {
        second.acknowledge(offset);
        (other.ask(&["SET", "a", "1"]) == "+OK\r\n").then_some(())
    });
    assert_eq!(master.told("replication", "min_slaves_good_slaves"), "1");
}

/// What is wrong in the words of replicas, and of those who want a failover, is answered as by redis-server.
#[test]
fn wrong_words_are_answered_as_by_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let long = format!("REPLCONF ip-address {}\r\nREPLCONF ip-address {}\r\n", "x".repeat(255), "x".repeat(256));
    for request in [
        "REPLCONF\r\nREPLCONF a\r\nREPLCONF listening-port x\r\nREPLCONF capa nosuch\r\nREPLCONF nosuch x\r\n",
        "REPLCONF rdb-only 2\r\nREPLCONF rdb-only x\r\nREPLCONF rdb-only 1\r\nREPLCONF capa eof nosuch x\r\nREPLCONF ip-address \"\\xff\"\r\n",
        &long,
        "REPLCONF rdb-filter-only nosuch\r\nREPLCONF rdb-filter-only \"functions n\\xff\"\r\nREPLCONF rdb-filter-only '\"x'\r\n\
         REPLCONF rdb-filter-only\r\nREPLCONF rdb-filter-only ''\r\nREPLCONF rdb-filter-only ' FUNCTIONS functions'\r\n\
         REPLCONF rdb-filter-only '' capa eof rdb-filter-only nosuch\r\n",
        "REPLCONF ack x\r\nREPLCONF ack 5\r\nREPLCONF getack *\r\nPING\r\n",
        "PSYNC ? x\r\n",
        "PSYNC\r\nPSYNC ?\r\nPSYNC ? -1 FAILOVER\r\nSYNC x\r\n",
        "MULTI\r\nPSYNC ? -1\r\nEXEC\r\nMULTI\r\nSYNC\r\nEXEC\r\nMULTI\r\nREPLCONF listening-port 1\r\nEXEC\r\n",
        "SUBSCRIBE c\r\nPSYNC ? -1\r\n",
        "MONITOR\r\nSYNC\r\n",
        "FAILOVER\r\nFAILOVER ABORT\r\nFAILOVER ABORT TO h 1\r\nFAILOVER FORCE ABORT\r\nFAILOVER ABORT ABORT\r\nFAILOVER TO h\r\nFAILOVER TO h x\r\n",
        "FAILOVER TIMEOUT x\r\nFAILOVER TIMEOUT -5\r\nFAILOVER nosuch\r\nROLE x\r\nWAIT x 1\r\nWAIT -1 0\r\nWAIT 1 x\r\nWAIT 1 -1\r\n",
    ] {
        let [expected, found] = [redis.address(), ours.address()]
            .map(|address| String::from_utf8_lossy(&exchange(&address, request.as_bytes())).into_owned());
        assert_eq!(found, expected, "{request}");
    }
    // Without pending output: parts of the data set are only sent to those who can read an end that is marked.
    let said = [redis.address(), ours.address()].map(|address| {
        let mut client = Client::connect(&address);
        [&["REPLCONF", "rdb-filter-only", ""][..], &["PSYNC", "?", "-1"], &["SYNC"]].map(|words| client.ask(words))
    });
    assert_eq!(said[0], said[1]);
}
