//! A cluster of six nodes on loopback: slots, redirections, and nodes that die, stop or move slots under load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use sluicegate_client::{Address, Client, Mode, Options};
use sluicegate_testkit::{PATIENCE, RedisServer, free_port, wait_for};
use sluicegate_wire::engine::Engine;
use sluicegate_wire::reply::Reply;
use sluicegate_wire::slot::slot;

use crate::own::{ok, on, own, together};
use crate::support::{ask, bulk, error, figures, patient, patiently, runtime, worker};
use crate::transactions::shared;

/// Three masters with a replica each: node 0 owns the first third of the slots and node 3 replicates it, and so on.
struct Cluster {
    /// The nodes. The last one does not belong to the cluster yet.
    nodes: Vec<RedisServer>,
    /// Clients of the single nodes, through which the test controls them.
    own: Vec<Client>,
    dead: OnceLock<usize>,
    _directory: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Cluster {
        let directory = tempfile::tempdir().expect("a directory");
        let dir = directory.path().to_str().expect("ASCII").to_owned();
        let start = |index: usize| {
            RedisServer::start_with(|| {
                let bus = free_port();
                let line = format!(
                    "--cluster-enabled yes --cluster-node-timeout {SLOW_MS} --cluster-config-file nodes-{index}.conf \
                     --cluster-port {bus} --enable-debug-command yes --rdbcompression no --dir {dir} --dbfilename {index}.rdb --repl-diskless-sync-delay 0 --cluster-replica-validity-factor 0"
                );
                line.split(' ').map(str::to_owned).collect()
            })
        };
        let nodes: Vec<RedisServer> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..7).map(|index| scope.spawn(move || start(index))).collect();
            started.into_iter().map(|node| node.join().expect("it starts")).collect()
        });
        let own = nodes.iter().map(|node| Client::new(Options { name: "test".into(), ..patient(node.port) })).collect();
        let cluster = Cluster { nodes, own, dead: OnceLock::new(), _directory: directory };
        for index in 0..7 {
            cluster.ok(index, &format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
        }
        for (index, range) in ["0 5460", "5461 10922", "10923 16383"].into_iter().enumerate() {
            cluster.ok(index, &format!("CLUSTER ADDSLOTSRANGE {range}"));
        }
        (1..6).for_each(|index| cluster.meet(index));
        (3..6).for_each(|index| cluster.follow(index, index - 3));
        cluster.settle();
        cluster
    }

    fn meet(&self, index: usize) {
        let port = self.nodes[index].port;
        let bus = self.config(index, "cluster-port");
        self.ok(0, &format!("CLUSTER MEET 127.0.0.1 {port} {bus}"));
    }

    fn follow(&self, index: usize, master: usize) {
        let master = self.id(master);
        wait_for("a replica to know its master", || {
            let followed = self.tell(index, &format!("CLUSTER REPLICATE {master}"));
            (followed == Reply::Simple("OK".into())).then_some(())
        });
    }

    fn tell(&self, index: usize, command: &str) -> Reply {
        worker(async { ask(&self.own[index], command).await })
    }

    #[track_caller]
    fn ok(&self, index: usize, command: &str) {
        assert_eq!(self.tell(index, command), Reply::Simple("OK".into()), "{command}");
    }

    /// Lets one replica, and no other, replace its master as soon as this does not respond; `None` ends that.
    fn may_take_over(&self, replica: Option<usize>) {
        let millis = if replica.is_some() { QUICK_MS } else { SLOW_MS };
        for index in 0..6 {
            let stays = if replica.is_some_and(|replica| replica != index) { "yes" } else { "no" };
            let line = format!("CONFIG SET cluster-node-timeout {millis} cluster-replica-no-failover {stays}");
            self.ok(index, &line);
        }
    }

    #[track_caller]
    fn text(&self, index: usize, command: &str) -> String {
        self.try_text(index, command).unwrap_or_else(|| panic!("{command}: {:?}", self.tell(index, command)))
    }

    /// Returns the text of a reply; `None` if it is an error.
    fn try_text(&self, index: usize, command: &str) -> Option<String> {
        match self.tell(index, command) {
            Reply::Bulk(text) | Reply::Verbatim(_, text) => Some(String::from_utf8(text).expect("text")),
            _ => None,
        }
    }

    fn config(&self, index: usize, name: &str) -> String {
        match self.tell(index, &format!("CONFIG GET {name}")) {
            Reply::Map(pairs) => match &pairs[0].1 {
                Reply::Bulk(value) => String::from_utf8(value.clone()).expect("text"),
                reply => panic!("{reply:?}"),
            },
            reply => panic!("{reply:?}"),
        }
    }

    fn id(&self, index: usize) -> String {
        self.text(index, "CLUSTER MYID")
    }

    fn is_master(&self, index: usize) -> bool {
        self.dead.get() != Some(&index) && self.text(index, "INFO replication").contains("role:master")
    }

    /// Returns the master of a key, and its replica.
    fn pair(&self, key: &str) -> [usize; 2] {
        let master = self.owner(key);
        [master, (master + 3) % 6]
    }

    /// Waits until every node knows all others, three of them are masters, and each of those has a replica that is up.
    fn settle(&self) {
        let running: Vec<usize> = (0..6).collect();
        wait_for("the cluster", || {
            let known = running.iter().all(|index| {
                // A replica that loads its master's data gives errors.
                let Some(info) = self.try_text(*index, "CLUSTER INFO") else { return false };
                let Some(nodes) = self.try_text(*index, "CLUSTER NODES") else { return false };
                info.contains("cluster_state:ok")
                    && nodes.lines().count() == 6
                    && !nodes.contains("fail")
                    && nodes.matches("slave").count() == 3
            });
            let followed = running.iter().all(|index| {
                let Some(info) = self.try_text(*index, "INFO replication") else { return false };
                info.contains("state=online") && info.contains("role:master") || info.contains("master_link_status:up")
            });
            (known && followed).then_some(())
        });
    }

    /// Returns the master of a key.
    fn owner(&self, key: &str) -> usize {
        let first = usize::from(slot(key.as_bytes())) / 5461;
        if self.is_master(first) { first } else { first + 3 }
    }

    fn options(&self) -> Options {
        let seeds = self.nodes[..2].iter().map(|node| Address::Tcp("127.0.0.1".into(), node.port));
        Options {
            mode: Mode::Cluster { from_replicas: false },
            servers: seeds.collect(),
            connect_rate: 1000,
            ..patient(0)
        }
    }
}

/// `cluster-node-timeout` where no replica may replace a master: a busy machine runs no node for a second.
const SLOW_MS: u32 = 4_000;
/// The same where a replica has to replace a master.
const QUICK_MS: u32 = 1_500;

/// A key of each master.
const KEYS: [&str; 3] = ["hits:{b}", "hits:{c}", "hits:{a}"];

/// The outcomes of the commands on one key.
#[derive(Default)]
struct Count {
    /// Acknowledged.
    done: AtomicU64,
    /// Perhaps done: the reply did not arrive.
    unknown: AtomicU64,
    /// Not done.
    failed: AtomicU64,
    /// The last error.
    error: Mutex<String>,
}

/// Keeps an error; returns its first word.
fn note<'a>(count: &Count, text: &'a str) -> &'a str {
    *count.error.lock().expect("nobody panics with it") = text.to_owned();
    text.split(' ').next().expect("a word")
}

/// Increments all keys, from one worker, while `meanwhile` runs. Checks that the counters contain every acknowledged
/// increment, and beyond those only increments with an unknown outcome.
fn under_load(cluster: &Cluster, options: Options, meanwhile: impl FnOnce(&[Count; 3], &Client)) -> Client {
    let (maxconn, rate) = (options.maxconn as u64, f64::from(options.connect_rate));
    let client = Client::new(options);
    let counts: [Count; 3] = Default::default();
    let before = KEYS.map(|key| number(&cluster.tell(cluster.owner(key), &format!("INCRBY {key} 0"))));
    let begun = std::time::Instant::now();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            worker(async {
                let one = async |index: usize| {
                    while !stop.load(Ordering::Relaxed) {
                        let (key, count) = (KEYS[index], &counts[index]);
                        match ask(&client, &format!("INCR {key}")).await {
                            Reply::Integer(_) => count.done.fetch_add(1, Ordering::Relaxed),
                            Reply::Error(text) => match note(count, &text) {
                                "CONNLOST" | "TIMEOUT" => count.unknown.fetch_add(1, Ordering::Relaxed),
                                "CONNECT" | "BREAKER" | "QUEUETIMEOUT" | "CLUSTERDOWN" => {
                                    // While the breaker is open, the error comes at once.
                                    tokio::time::sleep(Duration::from_millis(1)).await;
                                    count.failed.fetch_add(1, Ordering::Relaxed)
                                }
                                _ => panic!("{text}"),
                            },
                            reply => panic!("{reply:?}"),
                        };
                        let seen = figures(&client);
                        assert!(seen.connected + seen.connecting <= maxconn, "{seen:?}");
                    }
                };
                tokio::join!(one(0), one(1), one(2), one(0), one(1), one(2));
            });
        });
        // The load ends even if the test fails.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        goes_on(&counts);
        meanwhile(&counts, &client);
        goes_on(&counts);
    });
    let seconds = begun.elapsed().as_secs_f64();
    for node in figures(&client).nodes {
        assert!(node.connects as f64 <= rate * (seconds + 1.0) + 1.0, "{node:?} in {seconds} s");
    }
    for ((key, count), before) in KEYS.into_iter().zip(counts).zip(before) {
        let (done, unknown) = (count.done.into_inner(), count.unknown.into_inner());
        let there = number(&cluster.tell(cluster.owner(key), &format!("INCRBY {key} 0"))) - before;
        assert!((done..=done + unknown).contains(&there), "{key}: {done} + {unknown}, there are {there}");
    }
    client
}

fn number(reply: &Reply) -> u64 {
    match reply {
        Reply::Integer(number) => *number as u64,
        reply => panic!("{reply:?}"),
    }
}

/// Waits until every key is incremented again.
fn goes_on(counts: &[Count; 3]) {
    let before = counts.each_ref().map(|count| count.done.load(Ordering::Relaxed));
    wait_for("the counting to go on", || {
        let all = counts.iter().zip(before).all(|(count, before)| count.done.load(Ordering::Relaxed) > before + 20);
        all.then_some(())
    });
}

/// One cluster for all scenarios, in this order, since creating one takes seconds.
#[test]
fn a_cluster_is_asked_whatever_happens_to_it() {
    let cluster = Cluster::start();
    for (index, key) in KEYS.into_iter().enumerate() {
        assert_eq!(cluster.owner(key), index, "{key}");
    }
    let step = |name: &str, run: &dyn Fn(&Cluster)| {
        let begun = std::time::Instant::now();
        run(&cluster);
        println!("{name}: {:?}", begun.elapsed());
    };
    step("everyday", &everyday);
    step("replicas", &replicas_are_read_from);
    step("resharding", &slots_move_under_load);
    step("own", &connections_of_their_own_follow);
    step("growth", &a_node_comes_and_goes);
    step("loading", &nodes_that_load_are_waited_for);
    step("failover", &a_master_hands_over_under_load);
    step("pause", &a_master_stops_under_load);
    step("death", &a_master_dies_under_load);
}

fn everyday(cluster: &Cluster) {
    let client = Client::new(cluster.options());
    worker(async {
        for key in KEYS {
            assert_eq!(ask(&client, &format!("INCR {key}")).await, Reply::Integer(1));
            let script = format!("EVAL return{{KEYS[1],ARGV[1]}} 1 {key} v");
            assert_eq!(ask(&client, &script).await, Reply::Array(vec![bulk(key), bulk("v")]));
        }
        assert_eq!(ask(&client, "MSET x:{t} 1 y:{t} 2").await, Reply::Simple("OK".into()));
        assert_eq!(ask(&client, "MGET x:{t} y:{t}").await, Reply::Array(vec![bulk("1"), bulk("2")]));
        assert_eq!(ask(&client, "PING").await, Reply::Simple("PONG".into()));
        let crossing = error(ask(&client, "MGET a b").await);
        assert_eq!(crossing, "CROSSSLOT Keys in request don't hash to the same slot");
        let refused = error(ask(&client, "SCAN 0").await);
        assert!(refused.starts_with("ERR SCAN is about all nodes of a cluster"), "{refused}");
        let refused = error(crate::support::ask_in(&client, 1, "GET k").await);
        assert_eq!(refused, "ERR a cluster has database 0 only, not 1");
        let seen = figures(&client);
        // The slot map was read before the first command was sent.
        assert_eq!((seen.redirected, seen.connected), (0, 3), "{seen:?}");
    });
}

fn replicas_are_read_from(cluster: &Cluster) {
    let mode = Mode::Cluster { from_replicas: true };
    let short = Duration::from_secs(2);
    let replica = &cluster.nodes[cluster.pair("hits:{a}")[1]];
    let client = Client::new(Options { mode, timeout_server: short, timeout_connect: short, ..cluster.options() });
    worker(async {
        // Masters list their replicas once they know how far these have read.
        loop {
            for key in KEYS {
                assert!(matches!(ask(&client, &format!("GET {key}")).await, Reply::Bulk(_)));
            }
            let seen = figures(&client);
            let replicas = seen.nodes.iter().filter(|node| node.role == "replica" && node.replies > 0);
            if replicas.count() == 3 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let masters = || {
            let nodes = figures(&client).nodes;
            nodes.iter().filter(|node| node.role == "master").map(|node| node.replies).sum::<u64>()
        };
        let before = masters();
        assert!(matches!(ask(&client, "GET hits:{a}").await, Reply::Bulk(_)));
        assert_eq!(masters(), before);
        assert!(matches!(ask(&client, "INCRBY hits:{a} 0").await, Reply::Integer(_)));
        assert_eq!(masters(), before + 1);
        // A replica gets no commands while it does not respond, and gets commands again once it responds.
        let replies = || {
            let nodes = figures(&client).nodes;
            nodes.iter().find(|node| node.address == replica.address()).expect("it is known").replies
        };
        replica.program.signal(libc::SIGSTOP);
        // Reads that were already sent to the replica are lost; later ones go to the master.
        while !matches!(ask(&client, "GET hits:{a}").await, Reply::Bulk(_)) {}
        let before = (masters(), replies());
        assert!(matches!(ask(&client, "GET hits:{a}").await, Reply::Bulk(_)));
        assert_eq!(replies(), before.1);
        assert!(masters() > before.0);
        replica.program.signal(libc::SIGCONT);
        while replies() < before.1 + 10 {
            assert!(matches!(ask(&client, "GET hits:{a}").await, Reply::Bulk(_)));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Moves a slot from one master to another.
fn move_slot(cluster: &Cluster, slot: u16, from: usize, to: usize, halfway: impl FnOnce()) {
    let ids = [from, to].map(|index| cluster.id(index));
    cluster.ok(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    cluster.ok(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
    halfway();
    loop {
        let Reply::Array(keys) = cluster.tell(from, &format!("CLUSTER GETKEYSINSLOT {slot} 100")) else {
            panic!("no keys")
        };
        let keys: Vec<String> = keys
            .into_iter()
            .map(|key| match key {
                Reply::Bulk(key) => String::from_utf8(key).expect("text"),
                reply => panic!("{reply:?}"),
            })
            .collect();
        if keys.is_empty() {
            break;
        }
        let port = cluster.nodes[to].port;
        cluster.ok(from, &format!("MIGRATE 127.0.0.1 {port}  0 30000 KEYS {}", keys.join(" ")));
    }
    cluster.ok(to, &format!("CLUSTER SETSLOT {slot} NODE {}", ids[1]));
    // A master without slots becomes a replica of the one that owns its last slot.
    let reply = cluster.tell(from, &format!("CLUSTER SETSLOT {slot} NODE {}", ids[1]));
    let follows = matches!(&reply, Reply::Error(text) if text == "ERR Please use SETSLOT only with masters.");
    assert!(follows || reply == ok(), "{reply:?}");
}

fn slots_move_under_load(cluster: &Cluster) {
    let of = slot(KEYS[0].as_bytes());
    let mut failed = 0;
    let client = under_load(cluster, cluster.options(), |counts, client| {
        let short = Duration::from_millis(200);
        let hasty = Client::new(Options { timeout_queue: short, timeout_server: short, ..cluster.options() });
        std::thread::scope(|scope| {
            let mut waiting = None;
            move_slot(cluster, of, 0, 1, || {
                worker(async {
                    // A key that does not exist yet is created at the slot's destination.
                    assert_eq!(ask(client, "SET new:{b} 1").await, Reply::Simple("OK".into()));
                    assert_eq!(ask(client, "GET new:{b}").await, bulk("1"));
                    let both = loop {
                        // A busy machine may need longer for a reply than this client waits.
                        let both = error(ask(&hasty, "MGET hits:{b} new:{b}").await);
                        if !["TIMEOUT", "CONNECT"].iter().any(|late| both.starts_with(late)) {
                            break both;
                        }
                    };
                    assert!(both.starts_with("TRYAGAIN"), "{both}");
                });
                let asked = figures(client).redirected;
                waiting = Some(scope.spawn(|| worker(ask(client, "MGET hits:{b} new:{b}"))));
                // The command is retried until all keys are on one node.
                wait_for("a second try", || (figures(client).redirected >= asked + 2).then_some(()));
                goes_on(counts);
            });
            let reply = waiting.expect("it was asked").join().expect("no panic");
            assert!(matches!(&reply, Reply::Array(values) if values[1] == bulk("1")), "{reply:?}");
        });
        goes_on(counts);
        move_slot(cluster, of, 1, 0, || goes_on(counts));
        goes_on(counts);
        failed = counts
            .iter()
            .map(|count| count.failed.load(Ordering::Relaxed) + count.unknown.load(Ordering::Relaxed))
            .sum();
    });
    assert_eq!(failed, 0, "{:?}", figures(&client));
}

/// Returns whether `count` clients of a node wait for an element.
fn is_blocked(cluster: &Cluster, index: usize, count: usize) -> bool {
    cluster.text(index, "INFO clients").contains(&format!("blocked_clients:{count}\r\n"))
}

/// Waits until `count` clients of a node wait for an element.
fn blocked(cluster: &Cluster, index: usize, count: usize) {
    wait_for("a client to wait", || is_blocked(cluster, index, count).then_some(()));
}

fn connections_of_their_own_follow(cluster: &Cluster) {
    let of = slot(b"own:{b}");
    // These clients know the slot's old owner, and do not read the map again until they are redirected.
    let [plain, watching, stepping, popping, waiting, sharing] = [(); 6].map(|()| Client::new(cluster.options()));
    let queued = Reply::Simple("QUEUED".into());
    let done = |number: i64| Reply::Array(vec![ok(), queued.clone(), Reply::Array(vec![Reply::Integer(number)])]);
    let counts = ["MULTI", "INCR own:{b}", "EXEC"];
    let runtime = runtime();
    let mut watched = own(&watching);
    runtime.block_on(async {
        for client in [&plain, &watching, &stepping, &popping, &waiting, &sharing] {
            assert_eq!(ask(client, "GET own:{b}").await, Reply::Null);
        }
        assert_eq!(on(&mut *watched, "WATCH own:{b}").await, ok());
    });
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| patiently(ask(&waiting, "BLPOP list:{b} 0")));
        blocked(cluster, 0, 1);
        move_slot(cluster, of, 0, 1, || {
            // A key that does not exist yet is created at the slot's destination.
            let client = Client::new(cluster.options());
            worker(async {
                let mut half = own(&client);
                assert_eq!(together(&mut *half, &counts).await, done(1));
                assert_eq!(on(&mut *half, "GET own:{b}").await, bulk("1"));
                let both = shared(&client, 0, &["INCR shared:{b}", "INCR shared:{b}"]).await;
                assert_eq!(both, Reply::Array(vec![Reply::Integer(1), Reply::Integer(2)]));
                let mut half = own(&client);
                assert_eq!(on(&mut *half, "MULTI").await, ok());
                assert_eq!(on(&mut *half, "INCR half:{b}").await, queued);
                assert_eq!(on(&mut *half, "INCR half:{b}").await, queued);
                assert_eq!(on(&mut *half, "EXEC").await, Reply::Array(vec![Reply::Integer(1), Reply::Integer(2)]));
            });
        });
        // Blocked clients follow the slot.
        blocked(cluster, 1, 1);
        assert_eq!(cluster.tell(1, "RPUSH list:{b} v"), Reply::Integer(1));
        let popped = waits.join().expect("no panic");
        assert_eq!(popped, Reply::Array(vec![bulk("list:{b}"), bulk("v")]));
    });
    assert_eq!(cluster.tell(1, "RPUSH list:{b} w"), Reply::Integer(1));
    runtime.block_on(async {
        assert_eq!(together(&mut *own(&plain), &counts).await, done(2));
        assert!(figures(&plain).redirected <= 1, "{:?}", figures(&plain));
        let mut step = own(&stepping);
        assert_eq!(on(&mut *step, "MULTI").await, ok());
        assert_eq!(on(&mut *step, "INCR own:{b}").await, queued);
        assert_eq!(on(&mut *step, "EXEC").await, Reply::Array(vec![Reply::Integer(3)]));
        assert_eq!(ask(&popping, "BLPOP list:{b} 0").await, Reply::Array(vec![bulk("list:{b}"), bulk("w")]));
        let both = shared(&sharing, 0, &["INCR shared:{b}", "GET own:{b}"]).await;
        assert_eq!(both, Reply::Array(vec![Reply::Integer(3), bulk("3")]));
        let crossing = error(shared(&sharing, 0, &["INCR a", "INCR b"]).await);
        assert_eq!(crossing, "CROSSSLOT Keys in request don't hash to the same slot");
        // The watches stay on the old node, so the transaction fails.
        let replies = together(&mut *watched, &counts).await;
        let Reply::Array(replies) = replies else { panic!("{replies:?}") };
        let [here, there] = [0, 1].map(|index| cluster.nodes[index].address());
        let told = format!("ELSEWHERE the key is at {there}, and this connection has begun at {here}: take another");
        assert_eq!(error(replies[1].clone()), told);
        assert!(error(replies[2].clone()).starts_with("EXECABORT"));
        assert_eq!(ask(&plain, "GET own:{b}").await, bulk("3"));
        let crossing = together(&mut *own(&plain), &["MULTI", "INCR a", "INCR b", "EXEC"]).await;
        let Reply::Array(replies) = crossing else { panic!("{crossing:?}") };
        assert!(replies.iter().any(|reply| matches!(reply, Reply::Error(text) if text.starts_with("CROSSSLOT"))));
    });
    move_slot(cluster, of, 1, 0, || ());
}

/// A seventh node gets a slot, hands it back, follows a master and is forgotten.
fn a_node_comes_and_goes(cluster: &Cluster) {
    let of = slot(b"grown:{b}");
    let address = cluster.nodes[6].address();
    let client = Client::new(cluster.options());
    let seen = |client: &Client| figures(client).nodes.into_iter().find(|node| node.address == address);
    assert_eq!(worker(ask(&client, "GET grown:{b}")), Reply::Null);
    cluster.meet(6);
    wait_for("all to know the seventh", || {
        let known = (0..7).all(|index| {
            let nodes = cluster.text(index, "CLUSTER NODES");
            let settled = cluster.text(index, "CLUSTER INFO").contains("cluster_state:ok");
            settled && nodes.lines().count() == 7 && !nodes.contains("handshake") && !nodes.contains("fail")
        });
        known.then_some(())
    });
    under_load(cluster, cluster.options(), |counts, loaded| {
        move_slot(cluster, of, 0, 6, || {
            // The node is not in the map as long as it has no slot; commands to it share a connection.
            worker(async {
                for number in 0..20 {
                    assert_eq!(ask(&client, &format!("SET grown:{{b}}:{number} v")).await, ok());
                }
                let node = seen(&client).expect("it was asked");
                assert_eq!((node.role, node.replies, node.connects), ("importing", 20, 1));
            });
        });
        assert_eq!(worker(ask(&client, "GET grown:{b}:7")), bulk("v"));
        assert_eq!(seen(&client).expect("it has a slot").role, "master");
        // The counters moved with the slot.
        goes_on(counts);
        let node = seen(loaded).expect("it has a slot");
        assert!(node.role == "master" && node.connected > 0 && node.replies >= 20, "{node:?}");
        move_slot(cluster, of, 6, 0, || goes_on(counts));
        assert_eq!(worker(ask(&client, "GET grown:{b}:7")), bulk("v"));
        cluster.follow(6, 0);
        is_read_from_until_it_is_forgotten(cluster);
        wait_for("nobody to be connected to who was forgotten", || {
            seen(loaded).is_none_or(|node| node.connected == 0).then_some(())
        });
        goes_on(counts);
    });
    cluster.ok(6, "CLUSTER RESET");
    cluster.settle();
}

/// The seventh node serves reads as one of two replicas, until it is forgotten, although it keeps running.
fn is_read_from_until_it_is_forgotten(cluster: &Cluster) {
    let address = cluster.nodes[6].address();
    let reader = Client::new(Options { mode: Mode::Cluster { from_replicas: true }, ..cluster.options() });
    let seen = |client: &Client| figures(client).nodes.into_iter().find(|node| node.address == address);
    wait_for("the masters to tell of it", || {
        let port = Reply::Integer(cluster.nodes[6].port.into());
        fn tells(reply: &Reply, port: &Reply) -> bool {
            matches!(reply, Reply::Array(items) if items.contains(port) || items.iter().any(|item| tells(item, port)))
        }
        (0..3).all(|index| tells(&cluster.tell(index, "CLUSTER SLOTS"), &port)).then_some(())
    });
    let reads = async |enough: &dyn Fn() -> bool| {
        let reading = async {
            while !enough() {
                assert_eq!(ask(&reader, "GET grown:{b}:7").await, bulk("v"));
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("{:?}", figures(&reader)));
    };
    worker(reads(&|| seen(&reader).is_some_and(|node| node.role == "replica")));
    let id = cluster.id(6);
    (0..6).for_each(|index| cluster.ok(index, &format!("CLUSTER FORGET {id}")));
    // The change is noticed when the map is read next, here because a slot has moved.
    let other = slot(b"other:{b}") - 1;
    move_slot(cluster, other, 0, 1, || ());
    let key = (0..).map(|number| format!("any:{number}")).find(|key| slot(key.as_bytes()) == other).expect("a key");
    worker(async {
        assert_eq!(ask(&reader, &format!("INCR {key}")).await, Reply::Integer(1));
        reads(&|| seen(&reader).is_none_or(|node| node.role == "former" && node.connected == 0)).await;
    });
    move_slot(cluster, other, 1, 0, || ());
}

/// Reloads a node's data slowly, until a client has used the node in the meantime.
fn loads(cluster: &Cluster, index: usize, was_met: &dyn Fn() -> bool) {
    cluster.ok(index, "CONFIG SET key-load-delay 2000 loading-process-events-interval-bytes 1024");
    wait_for("a client to meet a node that loads", || {
        // Meanwhile it tells other clients that it is loading.
        cluster.ok(index, "DEBUG RELOAD");
        was_met().then_some(())
    });
    cluster.ok(index, "CONFIG SET key-load-delay 0");
}

fn nodes_that_load_are_waited_for(cluster: &Cluster) {
    let [master, replica] = cluster.pair(KEYS[2]);
    let script = "for i = 1, 200 do redis.call('set', '{a}'..i, string.rep('v', 2000)) end";
    let fill: [&[u8]; 4] = [b"EVAL", script.as_bytes(), b"1", b"{a}"];
    assert_eq!(worker(async { cluster.own[master].start(0, &fill).finish().await }), Reply::Null);
    wait_for("the replica to have it", || {
        let count = cluster.tell(replica, "DBSIZE");
        (count == cluster.tell(master, "DBSIZE")).then_some(())
    });
    // A loading replica: its reads go to the master, and later to the replica again.
    let mode = Mode::Cluster { from_replicas: true };
    let reader = Client::new(Options { mode, breaker: 1_000_000, ..cluster.options() });
    let read_from = |index: usize| {
        let address = cluster.nodes[index].address();
        figures(&reader).nodes.into_iter().find(|node| node.address == address).map_or(0, |node| node.replies)
    };
    let was_told = AtomicBool::new(false);
    let address = cluster.nodes[replica].address();
    let was_met = || {
        let node = figures(&reader).nodes.into_iter().find(|node| node.address == address);
        node.and_then(|node| node.last_failure).is_some_and(|text| text.contains("LOADING"))
    };
    std::thread::scope(|scope| {
        let reads = async |enough: &dyn Fn() -> bool| {
            while !enough() {
                assert!(matches!(ask(&reader, "GET {a}7").await, Reply::Bulk(value) if value.len() == 2000));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        patiently(reads(&|| read_from(replica) > 0));
        let by_master = read_from(master);
        scope.spawn(|| {
            loads(cluster, replica, &was_met);
            was_told.store(true, Ordering::Relaxed);
        });
        patiently(reads(&|| was_told.load(Ordering::Relaxed)));
        assert!(read_from(master) > by_master);
        let before = read_from(replica);
        patiently(reads(&|| read_from(replica) > before + 10));
    });
    // A loading master: its writes wait, and the other masters get their commands meanwhile.
    under_load(cluster, Options { breaker: 1_000_000, ..cluster.options() }, |counts, client| {
        // A new connection or a command may be the first to get the LOADING error; this waits for a command.
        loads(cluster, master, &|| figures(client).redirected > 0);
        goes_on(counts);
        for count in counts {
            let lost = (count.failed.load(Ordering::Relaxed), count.unknown.load(Ordering::Relaxed));
            assert_eq!(lost, (0, 0), "{:?}", count.error);
        }
    });
}

fn a_master_hands_over_under_load(cluster: &Cluster) {
    let [old, new] = cluster.pair(KEYS[1]);
    let waiting = Client::new(cluster.options());
    let waits = std::thread::spawn(move || patiently(ask(&waiting, "BLPOP pops:{c} 0")));
    blocked(cluster, old, 1);
    under_load(cluster, cluster.options(), |counts, client| {
        let mut asked: Option<std::time::Instant> = None;
        wait_for("the replica to be the master", || {
            // Redis gives up after 5 s without the votes of a majority.
            if asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(6)) {
                cluster.ok(new, "CLUSTER FAILOVER");
                asked = Some(std::time::Instant::now());
            }
            cluster.is_master(new).then_some(())
        });
        goes_on(counts);
        // Once the client knows the new master, it sends no command to the old one.
        wait_for("the map", || {
            let nodes = figures(client).nodes;
            let is = |index: usize, role: &str| {
                nodes.iter().any(|node| node.address == cluster.nodes[index].address() && node.role == role)
            };
            (is(new, "master") && !is(old, "master")).then_some(())
        });
    });
    // Clients that waited for an element wait on the new master.
    wait_for("the client to wait again", || {
        waits.is_finished().then_some(()).or_else(|| is_blocked(cluster, new, 1).then_some(()))
    });
    if waits.is_finished() {
        panic!("{:?}", waits.join());
    }
    assert_eq!(cluster.tell(new, "RPUSH pops:{c} v"), Reply::Integer(1));
    assert_eq!(waits.join().expect("no panic"), Reply::Array(vec![bulk("pops:{c}"), bulk("v")]));
    cluster.settle();
}

fn a_master_stops_under_load(cluster: &Cluster) {
    let [old, new] = cluster.pair(KEYS[2]);
    cluster.may_take_over(Some(new));
    under_load(cluster, cluster.options(), |counts, _| {
        cluster.nodes[old].program.signal(libc::SIGSTOP);
        wait_for("the replica to be the master", || cluster.is_master(new).then_some(()));
        let begun = std::time::Instant::now();
        goes_on(counts);
        println!("goes on {:?} after the engine", begun.elapsed());
        cluster.nodes[old].program.signal(libc::SIGCONT);
        wait_for("the old master to follow", || (!cluster.is_master(old)).then_some(()));
        goes_on(counts);
    });
    cluster.may_take_over(None);
    cluster.settle();
}

fn a_master_dies_under_load(cluster: &Cluster) {
    let [old, new] = cluster.pair(KEYS[1]);
    cluster.may_take_over(Some(new));
    under_load(cluster, Options { connect_rate: 20, ..cluster.options() }, |counts, _| {
        cluster.nodes[old].program.signal(libc::SIGKILL);
        cluster.dead.set(old).expect("it is the first");
        wait_for("the replica to be the master", || cluster.is_master(new).then_some(()));
        let begun = std::time::Instant::now();
        goes_on(counts);
        println!("goes on {:?} after the engine", begun.elapsed());
    });
}
