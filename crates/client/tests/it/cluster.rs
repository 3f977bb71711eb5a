//! A cluster of six on loopback: slots, redirections, nodes that die, stop and move slots under load.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_client::{Address, Client, Mode, Options};
use sluicegate_testkit::{RedisServer, free_port, wait_for};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::slot::slot;

use crate::support::{ask, bulk, error, figures, patient, worker};

/// Three masters with a replica each: 0 has the first third of the slots and 3 follows it, and so on.
struct Cluster {
    nodes: Vec<RedisServer>,
    /// Clients of the single nodes, by which the test rules them.
    own: Vec<Client>,
    dead: Cell<Option<usize>>,
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
                    "--cluster-enabled yes --cluster-node-timeout 800 --cluster-config-file nodes-{index}.conf \
                     --cluster-port {bus} --dir {dir} --dbfilename {index}.rdb --repl-diskless-sync-delay 0 --cluster-replica-validity-factor 0"
                );
                line.split(' ').map(str::to_owned).collect()
            })
        };
        let nodes: Vec<RedisServer> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..6).map(|index| scope.spawn(move || start(index))).collect();
            started.into_iter().map(|node| node.join().expect("it starts")).collect()
        });
        let own = nodes.iter().map(|node| Client::new(Options { name: "test".into(), ..patient(node.port) })).collect();
        let cluster = Cluster { nodes, own, dead: Cell::new(None), _directory: directory };
        for index in 0..6 {
            cluster.ok(index, &format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
        }
        for (index, range) in ["0 5460", "5461 10922", "10923 16383"].into_iter().enumerate() {
            cluster.ok(index, &format!("CLUSTER ADDSLOTSRANGE {range}"));
        }
        for index in 1..6 {
            let port = cluster.nodes[index].port;
            let bus = cluster.config(index, "cluster-port");
            cluster.ok(0, &format!("CLUSTER MEET 127.0.0.1 {port} {bus}"));
        }
        for index in 3..6 {
            let master = cluster.id(index - 3);
            wait_for("a replica to know its master", || {
                (cluster.tell(index, &format!("CLUSTER REPLICATE {master}")) == Reply::Simple("OK".into()))
                    .then_some(())
            });
        }
        cluster.settle();
        cluster
    }

    fn tell(&self, index: usize, command: &str) -> Reply {
        worker(async { ask(&self.own[index], command).await })
    }

    #[track_caller]
    fn ok(&self, index: usize, command: &str) {
        assert_eq!(self.tell(index, command), Reply::Simple("OK".into()), "{command}");
    }

    fn text(&self, index: usize, command: &str) -> String {
        match self.tell(index, command) {
            Reply::Bulk(text) | Reply::Verbatim(_, text) => String::from_utf8(text).expect("text"),
            reply => panic!("{command}: {reply:?}"),
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
        self.dead.get() != Some(index) && self.text(index, "INFO replication").contains("role:master")
    }

    /// The master that has a key, and its replica.
    fn pair(&self, key: &str) -> [usize; 2] {
        let master = self.owner(key);
        [master, (master + 3) % 6]
    }

    /// Waits until every node knows all others, three of them are masters, and each of those has a replica that is up.
    fn settle(&self) {
        let running: Vec<usize> = (0..6).collect();
        wait_for("the cluster", || {
            let known = running.iter().all(|index| {
                let info = self.text(*index, "CLUSTER INFO");
                let nodes = self.text(*index, "CLUSTER NODES");
                info.contains("cluster_state:ok")
                    && nodes.lines().count() == 6
                    && !nodes.contains("fail")
                    && nodes.matches("slave").count() == 3
            });
            let followed = running.iter().all(|index| {
                let info = self.text(*index, "INFO replication");
                info.contains("state=online") && info.contains("role:master") || info.contains("master_link_status:up")
            });
            (known && followed).then_some(())
        });
    }

    /// The node that has a key, as master.
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

/// A key of each master.
const KEYS: [&str; 3] = ["hits:{b}", "hits:{c}", "hits:{a}"];

/// What became of the commands of one key.
#[derive(Default)]
struct Count {
    /// Acknowledged.
    done: AtomicU64,
    /// Perhaps done: the answer did not come.
    unknown: AtomicU64,
    /// Not done.
    failed: AtomicU64,
}

/// Counts in all keys, from one worker, while `meanwhile` runs. What was acknowledged is there, and nothing else but what
/// nobody knows of.
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
                            Reply::Error(text) => match text.split(' ').next().expect("a word") {
                                "CONNLOST" | "TIMEOUT" => count.unknown.fetch_add(1, Ordering::Relaxed),
                                "CONNECT" | "BREAKER" | "QUEUETIMEOUT" | "CLUSTERDOWN" => {
                                    // With the breaker open the answer is there at once.
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
        // Whatever fails, the load ends.
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

/// Waits until every key is counted on.
fn goes_on(counts: &[Count; 3]) {
    let before = counts.each_ref().map(|count| count.done.load(Ordering::Relaxed));
    wait_for("the counting to go on", || {
        let all = counts.iter().zip(before).all(|(count, before)| count.done.load(Ordering::Relaxed) > before + 20);
        all.then_some(())
    });
}

/// One cluster for all that can happen to it, in this order: it takes seconds to come to be.
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
        // The map was there before the first command went.
        assert_eq!((seen.redirected, seen.connected), (0, 3), "{seen:?}");
    });
}

fn replicas_are_read_from(cluster: &Cluster) {
    let mode = Mode::Cluster { from_replicas: true };
    let short = Duration::from_millis(300);
    let replica = &cluster.nodes[cluster.pair("hits:{a}")[1]];
    let client = Client::new(Options { mode, timeout_server: short, timeout_connect: short, ..cluster.options() });
    worker(async {
        // Masters say which replicas they have once they have heard of what those hold.
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
        // One that does not answer is not asked, and one that is back is.
        let replies = || {
            let nodes = figures(&client).nodes;
            nodes.iter().find(|node| node.address == replica.address()).expect("it is known").replies
        };
        replica.program.signal(libc::SIGSTOP);
        // What was sent before is lost; what comes then is read from the master.
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

/// Hands a slot from one master to the next.
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
    for index in [to, from] {
        cluster.ok(index, &format!("CLUSTER SETSLOT {slot} NODE {}", ids[1]));
    }
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
                    // A key that is nowhere yet is made where the slot goes.
                    assert_eq!(ask(client, "SET new:{b} 1").await, Reply::Simple("OK".into()));
                    assert_eq!(ask(client, "GET new:{b}").await, bulk("1"));
                    let both = error(ask(&hasty, "MGET hits:{b} new:{b}").await);
                    assert!(both.starts_with("TRYAGAIN"), "{both}");
                });
                let asked = figures(client).redirected;
                waiting = Some(scope.spawn(|| worker(ask(client, "MGET hits:{b} new:{b}"))));
                // It is tried again, until the keys are together.
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

fn a_master_hands_over_under_load(cluster: &Cluster) {
    let [old, new] = cluster.pair(KEYS[1]);
    under_load(cluster, cluster.options(), |counts, client| {
        cluster.ok(new, "CLUSTER FAILOVER");
        wait_for("the replica to be the master", || cluster.is_master(new).then_some(()));
        goes_on(counts);
        // No node is asked for nothing any more.
        wait_for("the map", || {
            let nodes = figures(client).nodes;
            let is = |index: usize, role: &str| {
                nodes.iter().any(|node| node.address == cluster.nodes[index].address() && node.role == role)
            };
            (is(new, "master") && !is(old, "master")).then_some(())
        });
    });
    cluster.settle();
}

fn a_master_stops_under_load(cluster: &Cluster) {
    let [old, new] = cluster.pair(KEYS[2]);
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
    cluster.settle();
}

fn a_master_dies_under_load(cluster: &Cluster) {
    let [old, new] = cluster.pair(KEYS[1]);
    under_load(cluster, Options { connect_rate: 20, ..cluster.options() }, |counts, _| {
        cluster.nodes[old].program.signal(libc::SIGKILL);
        cluster.dead.set(Some(old));
        wait_for("the replica to be the master", || cluster.is_master(new).then_some(()));
        let begun = std::time::Instant::now();
        goes_on(counts);
        println!("goes on {:?} after the engine", begun.elapsed());
    });
}
