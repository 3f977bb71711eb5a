//! The store as a replica: of redis-server and Valkey, and of masters that talk nonsense.

mod aside;
mod chains;
mod clients;
mod masters;
mod nonsense;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, PATIENCE, wait_for};

use crate::Random;
use crate::support::Running;

/// A store on two workers, and its log.
struct Replica {
    running: Running,
    log: Arc<Mutex<Vec<String>>>,
    ticker: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(ticker) = self.ticker.take() {
            // Its panics were printed.
            let _ = ticker.join();
        }
    }
}

impl Replica {
    fn start() -> Replica {
        Replica::with(ServerOptions::default())
    }

    fn with(options: ServerOptions) -> Replica {
        let running = Running::with(ServerOptions { enable_debug_command: "yes", ..options }, 2);
        let log = running.logged();
        // Threads of a store that has just ended may still have its files.
        if let Some(beginning) = wait_for("right files", || running.server.begin().ok()) {
            beginning.load().expect("right files");
        }
        // What a process does ten times a second.
        let (is_over, store) = (Arc::<AtomicBool>::default(), running.store().clone());
        let stop = is_over.clone();
        let ticker = std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                store.tick();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Replica { running, log, ticker: Some(ticker), is_over }
    }

    fn connect(&self) -> Client {
        self.running.connect()
    }

    /// Returns the lines of the log so far.
    fn log(&self) -> Vec<String> {
        self.log.lock().expect("not poisoned").clone()
    }

    /// Waits until the log has a line with this text, from a line on; returns the number of the line behind it.
    #[track_caller]
    fn wait_for_line(&self, from: usize, text: &str) -> usize {
        wait_for(text, || {
            let found = self.log().iter().skip(from).position(|line| line.contains(text));
            found.map(|place| from + place + 1)
        })
    }

    /// Follows the master at this port.
    #[track_caller]
    fn follow(&self, port: u16) {
        assert_eq!(ask(&mut self.connect(), &format!("REPLICAOF 127.0.0.1 {port}")), "+OK\r\n");
    }
}

/// Sends a command, whose words are separated by blanks.
fn ask(client: &mut Client, line: &str) -> String {
    client.ask(&line.split(' ').collect::<Vec<_>>())
}

/// Returns a value of INFO.
fn info(client: &mut Client, section: &str, name: &str) -> Option<String> {
    let info = client.ask(&["INFO", section]);
    info.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).map(str::to_owned)
}

/// Waits until a replica has everything that its master has sent, and has it connected.
#[track_caller]
fn wait_in_step(master: &mut Client, replica: &mut Client) {
    let offset = |client: &mut Client, name: &str| info(client, "replication", name);
    wait_for("the replica to be in step", || {
        let is_up = offset(replica, "master_link_status").as_deref() == Some("up");
        let wanted = offset(master, "master_repl_offset");
        (is_up && offset(replica, "slave_repl_offset") == wanted).then_some(())
    });
}

/// Checks that two servers have the same data, once what expires has done so on both.
#[track_caller]
fn check_same(master: &mut Client, replica: &mut Client) {
    let deadline = Instant::now() + PATIENCE;
    let mut digests;
    loop {
        digests = [&mut *master, &mut *replica].map(|client| client.ask(&["DEBUG", "DIGEST"]));
        if digests[0] == digests[1] {
            return;
        }
        if Instant::now() > deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut differences = String::new();
    for db in 0..4 {
        let mut keys: Vec<Vec<String>> = Vec::new();
        for client in [&mut *master, &mut *replica] {
            ask(client, &format!("SELECT {db}"));
            let reply = client.ask(&["KEYS", "*"]);
            let mut names: Vec<String> =
                reply.lines().filter(|line| !line.starts_with(['*', '$'])).map(str::to_owned).collect();
            names.sort();
            keys.push(names);
        }
        for key in keys.concat() {
            let told = [&mut *master, &mut *replica].map(|client| {
                let (value, ttl) = (client.ask(&["DEBUG", "DIGEST-VALUE", &key]), client.ask(&["PTTL", &key]));
                (value, ttl == ":-1\r\n", client.ask(&["TYPE", &key]))
            });
            if told[0] != told[1] && !differences.contains(&format!("{db} {key}:")) {
                differences += &format!("{db} {key}: {told:?}\n");
            }
        }
    }
    let sizes =
        [master, replica].map(|client| [client.ask(&["INFO", "keyspace"]), client.ask(&["INFO", "replication"])]);
    panic!("the data differ: {digests:?}\n{differences}\n{sizes:#?}");
}

/// Sends random commands on few keys, all of which change something, in several databases. All replies are read.
fn load(client: &mut Client, random: &mut Random, count: usize, is_valkey: bool) {
    let mut pending = 0;
    for _ in 0..count {
        let commands = random_command(random, is_valkey);
        for words in &commands {
            client.command(words);
            pending += 1;
        }
        if pending > 100 {
            (0..std::mem::take(&mut pending)).for_each(|_| drop(client.read_reply()));
        }
    }
    (0..pending).for_each(|_| drop(client.read_reply()));
}

/// Returns a random command, or a transaction.
fn random_command(random: &mut Random, is_valkey: bool) -> Vec<Vec<Vec<u8>>> {
    let line = |text: String| text.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    let one = |random: &mut Random| -> Vec<Vec<u8>> {
        let (n, m) = (random.below(12), random.below(40));
        let other = random.below(12);
        line(match random.below(44) {
            0 => format!("SET s{n} {m}"),
            1 => format!("INCRBY s{n} {m}"),
            2 => format!("APPEND s{n} x{m}"),
            3 => format!("SETRANGE s{n} {m} yy"),
            4 => format!("SET s{n} {m} PX {}", 1 + random.below(300)),
            5 => format!("SET s{n} {m} EX 1000"),
            6 => format!("GETDEL s{n}"),
            7 => format!("GETEX s{n} PX {}", 1 + random.below(300)),
            8 => format!("INCRBYFLOAT s{n} 1.5"),
            9 => format!("MSET s{n} {m} s{other} {n}"),
            10 => format!("BITFIELD s{n} SET u8 {m} 7"),
            11 => format!("RPUSH l{n} {m} b c"),
            12 => format!("LPOP l{n} 2"),
            13 => format!("LINSERT l{n} BEFORE b z{m}"),
            14 => format!("LMOVE l{n} l{other} LEFT RIGHT"),
            15 => format!("BLPOP l{n} 0.001"),
            16 => format!("LTRIM l{n} 0 20"),
            17 => format!("SADD e{n} {m} {other} x{m}"),
            18 => format!("SPOP e{n} 2"),
            19 => format!("SMOVE e{n} e{other} {m}"),
            20 => format!("SUNIONSTORE e{n} e{other} e{m}"),
            21 => format!("HSET h{n} f{m} {other} g{other} x"),
            22 => format!("HDEL h{n} f{m} f{other}"),
            23 => format!("HINCRBYFLOAT h{n} c 0.25"),
            24 => format!("ZADD z{n} {m} a{m} {other} b"),
            25 => format!("ZPOPMIN z{n} 1"),
            26 => format!("ZUNIONSTORE z{n} 2 z{other} e{m}"),
            27 => format!("ZREMRANGEBYSCORE z{n} 0 {m}"),
            28 => format!("XADD x{n} MAXLEN ~ 100 * f {m}"),
            29 => format!("XGROUP CREATE x{n} g 0 MKSTREAM"),
            30 => format!("XREADGROUP GROUP g c{other} COUNT 2 STREAMS x{n} >"),
            31 => format!("XAUTOCLAIM x{n} g c{m} 0 0 COUNT 3"),
            32 => format!("XTRIM x{n} MAXLEN = 50"),
            33 => format!("PEXPIRE {}{n} {}", ["s", "l", "e", "h", "z"][random.below(5)], 1 + random.below(400)),
            34 => format!("PERSIST s{n}"),
            35 => format!("RENAME s{n} s{other}"),
            36 => format!("COPY h{n} h{other} REPLACE"),
            37 => format!("DEL s{n} l{other} e{m}"),
            38 => format!("PFADD p{n} {m} {other}"),
            39 => format!("GEOADD geo{n} 1{n}.5 4{n}.5 m{m}"),
            40 => format!("SORT l{n} ALPHA STORE l{other}"),
            41 => format!("SELECT {}", random.below(3)),
            42 if random.below(60) == 0 => ["FLUSHALL", "FLUSHDB", "SWAPDB 0 1"][random.below(3)].to_owned(),
            42 => format!("MOVE s{n} {}", random.below(3)),
            _ => format!("SETBIT s{n} {m} 1"),
        })
    };
    let script = |random: &mut Random| -> Vec<Vec<u8>> {
        let body = "redis.call('SET', KEYS[1], ARGV[1]) redis.call('RPUSH', KEYS[2], ARGV[1], 'q') \
                    return redis.call('INCR', KEYS[1])";
        let (n, m) = (random.below(12), random.below(40));
        let words = ["EVAL", body, "2", &format!("s{n}"), &format!("l{m}"), &m.to_string()];
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    };
    match random.below(20) {
        0 => {
            let mut all = vec![line("MULTI".into())];
            (0..1 + random.below(4)).for_each(|_| all.push(one(random)));
            all.push(line("EXEC".into()));
            all
        }
        1 => vec![script(random)],
        2 => {
            let long = vec![b'a' + random.below(20) as u8; 1 << random.below(18)];
            vec![vec![b"SET".to_vec(), b"long".to_vec(), long]]
        }
        3 if is_valkey => vec![line(format!("PUBLISH c {}", random.below(9)))],
        _ => vec![one(random)],
    }
}
