//! A master, its replicas and three sentinels on loopback: discovery, failover, reads from replicas, and wrong
//! information from sentinels.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_client::{Address, Auth, Client, Mode, Options};
use sluicegate_testkit::{PATIENCE, Program, RedisServer, free_port, wait_for};
use sluicegate_wire::engine::NodeFigures;
use sluicegate_wire::reply::Reply;

use crate::own::own;
use crate::support::{ask, ask_in, bulk, error, figures, patient, worker};

/// A quorum that is never reached: sentinels see that a master is down, but do not replace it.
const NEVER: u32 = 100;

/// The time after which sentinels consider an engine down, where a test waits for that.
const SOON_MS: u32 = 2_000;

/// The same everywhere else, where a stalled machine must not cause it.
const LATE_MS: u32 = 600_000;

/// Three engines, the first of which is the master at first and the second its successor, and three sentinels.
struct Watched {
    engines: Vec<RedisServer>,
    sentinels: Vec<(Program, u16)>,
    _directory: tempfile::TempDir,
}

impl Watched {
    fn start() -> Watched {
        let directory = tempfile::tempdir().expect("a directory");
        let mut watched = Watched { engines: Vec::new(), sentinels: Vec::new(), _directory: directory };
        watched.engine(None, "100");
        watched.engine(Some(0), "100");
        watched.engine(Some(0), "0");
        // Sentinels rarely query a master's replicas.
        (1..3).for_each(|index| watched.catch_up(0, index));
        for index in 0..3 {
            let started = watched.sentinel(index, 0, "secret");
            watched.sentinels.push(started);
        }
        watched.settle(0, "2");
        for index in 0..3 {
            // Sentinels reconfigure an engine whose role differs from theirs after four such periods.
            let reply = worker(ask(&watched.observer(index), "SENTINEL DEBUG publish-period 2000"));
            assert_eq!(reply, Reply::Simple("OK".into()));
        }
        watched
    }

    /// Adds an engine; one with priority 0 never becomes the master.
    fn engine(&mut self, master: Option<usize>, priority: &str) {
        let dir = self._directory.path().to_str().expect("ASCII");
        let (file, port) = (format!("{}.rdb", self.engines.len()), master.map(|of| self.engines[of].port.to_string()));
        let common = ["--requirepass", "secret", "--masterauth", "secret", "--repl-diskless-sync-delay", "0"];
        let own = ["--dir", dir, "--dbfilename", &file, "--replica-priority", priority];
        let follows = port.iter().flat_map(|port| ["--replicaof", "127.0.0.1", port]);
        let words: Vec<&str> = common.into_iter().chain(own).chain(follows).collect();
        let engine = RedisServer::start(&words);
        self.engines.push(engine);
    }

    /// Waits until a write to the master is visible on a replica; its link may be up a second earlier.
    fn catch_up(&self, master: usize, index: usize) {
        let [master, replica] = [master, index].map(|index| self.engine_client(index));
        wait_for("the replica to follow", || {
            let Reply::Integer(number) = worker(ask(&master, "INCR marker")) else { panic!("no number") };
            (worker(ask(&replica, "GET marker")) == bulk(&number.to_string())).then_some(())
        });
    }

    /// Returns a client of one engine, whatever its current role.
    fn engine_client(&self, index: usize) -> Client {
        Client::new(Options { name: "test".into(), auth: secret("secret"), ..patient(self.engines[index].port) })
    }

    fn observer(&self, sentinel: usize) -> Client {
        Client::new(Options { name: "test".into(), auth: secret("hidden"), ..patient(self.sentinels[sentinel].1) })
    }

    /// Waits until the sentinels know each other, the master and its replicas, so that they can agree. A sentinel that
    /// replaces a master has finished by then; before, it would ignore what others say about a newer master.
    fn settle(&self, master: usize, replicas: &str) {
        let port = self.engines[master].port.to_string();
        for index in 0..3 {
            let observer = self.observer(index);
            wait_for("the sentinels to know each other", || {
                let reply = worker(ask(&observer, "SENTINEL MASTER mymaster"));
                let Reply::Map(pairs) = reply else { return None };
                let is = |name: &str, value: &str| pairs.contains(&(bulk(name), bulk(value)));
                let knows = is("num-other-sentinels", "2") && is("num-slaves", replicas) && is("port", &port);
                (knows && is("flags", "master")).then_some(())
            });
        }
    }

    /// Starts a sentinel of this master; `password` is that of the engines.
    fn sentinel(&self, index: usize, master: usize, password: &str) -> (Program, u16) {
        let path = self._directory.path().join(format!("sentinel-{index}.conf"));
        for _ in 0..5 {
            let port = free_port();
            let text = format!(
                "port {port}\nbind 127.0.0.1\nrequirepass hidden\nsentinel sentinel-pass hidden\n\
                 sentinel monitor mymaster 127.0.0.1 {} {NEVER}\n\
                 sentinel auth-pass mymaster {password}\nsentinel down-after-milliseconds mymaster {LATE_MS}\n\
                 sentinel failover-timeout mymaster 5000\n",
                self.engines[master].port
            );
            std::fs::write(&path, text).expect("writable");
            let mut command = std::process::Command::new("redis-server");
            command.arg(&path).arg("--sentinel");
            let mut program = Program::start(command, &[]);
            if program.comes_to_print("+monitor master") {
                // The sentinel polls more often, and never enters TILT mode, however slow the machine.
                let own = Client::new(Options { name: "test".into(), auth: secret("hidden"), ..patient(port) });
                let hasty = "SENTINEL DEBUG info-period 200 publish-period 200 tilt-trigger 600000";
                assert_eq!(worker(ask(&own, hasty)), Reply::Simple("OK".into()));
                return (program, port);
            }
        }
        panic!("a sentinel found no free port in five tries");
    }

    /// Sets how many sentinels must agree that the master is down for it to be replaced. The number is `NEVER` except
    /// where a test waits for that: a stalled machine could cause it at any time.
    fn quorum(&self, number: u32) {
        self.set(&format!("quorum {number}"));
    }

    /// Sets how long an engine is silent before a sentinel considers it down.
    fn down_after(&self, milliseconds: u32) {
        self.set(&format!("down-after-milliseconds {milliseconds}"));
    }

    fn set(&self, words: &str) {
        for index in 0..self.sentinels.len() {
            let reply = worker(ask(&self.observer(index), &format!("SENTINEL SET mymaster {words}")));
            assert_eq!(reply, Reply::Simple("OK".into()));
        }
    }

    fn info(&self, index: usize) -> String {
        text(worker(ask(&self.engine_client(index), "INFO replication")))
    }

    fn options(&self) -> Options {
        let sentinels = self.sentinels.iter().map(|(_, port)| Address::Tcp("127.0.0.1".into(), *port));
        Options {
            mode: by_sentinels("mymaster", false),
            servers: sentinels.collect(),
            auth: secret("secret"),
            connect_rate: 1000,
            ..patient(0)
        }
    }
}

fn by_sentinels(master: &str, from_replicas: bool) -> Mode {
    Mode::Sentinel { master: master.into(), auth: secret("hidden"), from_replicas }
}

/// Returns the figures of an engine or a sentinel; empty ones if it is not known.
fn node(client: &Client, address: &str) -> NodeFigures {
    figures(client).nodes.into_iter().find(|node| node.address == address).unwrap_or_default()
}

/// Returns the master's address, as known to the client.
fn master(client: &Client) -> String {
    figures(client).nodes.into_iter().find(|node| node.role == "master").map(|node| node.address).unwrap_or_default()
}

/// Repeats a command until `seen` returns true.
async fn until(client: &Client, command: &str, seen: impl Fn() -> bool) {
    let asking = async {
        while !seen() {
            ask(client, command).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("{:?}", figures(client)));
}

fn text(reply: Reply) -> String {
    match reply {
        Reply::Bulk(text) | Reply::Verbatim(_, text) => String::from_utf8(text).expect("text"),
        reply => panic!("{reply:?}"),
    }
}

fn secret(password: &str) -> Option<Auth> {
    Some(Auth { user: None, password: password.into() })
}

/// One set of processes for all scenarios, in this order, since starting one takes seconds.
#[test]
fn a_master_is_found_through_sentinels_whatever_happens_to_it() {
    let mut watched = Watched::start();
    let mut step = |name: &str, run: &dyn Fn(&mut Watched)| {
        let begun = std::time::Instant::now();
        run(&mut watched);
        println!("{name}: {:?}", begun.elapsed());
    };
    step("everyday", &|watched| everyday(watched));
    step("replicas", &|watched| replicas_are_read_from(watched));
    step("come and go", &replicas_come_and_go);
    step("orphans", &|watched| replicas_without_their_master_stand_in_for_it(watched));
    step("stop", &|watched| a_master_that_stops_is_replaced(watched));
    step("death", &|watched| sentinels_that_die_are_not_missed(watched));
    step("stale", &a_sentinel_that_was_cut_off_is_not_believed);
}

/// Returns why there is no master; a sentinel may take longer to report it than a command waits.
fn why(client: &Client) -> String {
    wait_for("a sentinel's word", || {
        let text = error(worker(ask(client, "GET k")));
        (!text.starts_with("QUEUETIMEOUT")).then_some(text)
    })
}

fn everyday(watched: &Watched) {
    let client = Client::new(watched.options());
    worker(async {
        assert_eq!(ask(&client, "SET k v").await, Reply::Simple("OK".into()));
        assert_eq!(ask_in(&client, 2, "GET k").await, Reply::Null);
        let seen = figures(&client);
        let master = seen.nodes.iter().find(|node| node.role == "master").expect("it is known");
        assert_eq!((&*master.address, master.connects), (&*watched.engines[0].address(), 2));
        assert!(seen.nodes.iter().any(|node| node.role == "sentinel" && node.replies > 0), "{seen:?}");
    });
    let unknown = Client::new(Options {
        mode: by_sentinels("nobody", false),
        timeout_queue: Duration::from_millis(200),
        ..watched.options()
    });
    let text = why(&unknown);
    assert!(text.starts_with("CONNECT 127.0.0.1:") && text.ends_with("no master of this name is watched"), "{text}");
    let stranger = Client::new(Options {
        mode: Mode::Sentinel { master: "mymaster".into(), auth: None, from_replicas: false },
        timeout_queue: Duration::from_millis(500),
        ..watched.options()
    });
    let text = why(&stranger);
    assert!(text.contains("NOAUTH"), "{text}");
}

fn replicas_are_read_from(watched: &Watched) {
    let options = Options { mode: by_sentinels("mymaster", true), ..watched.options() };
    let client = Client::new(options);
    let [first, second] = [1, 2].map(|index| watched.engines[index].address());
    let replies = |address: &str| node(&client, address).replies;
    worker(async {
        // Sentinels list the replicas once they know how far these have read.
        until(&client, "GET a", || replies(&first) > 0 || replies(&second) > 0).await;
        // All reads of a key go to one replica; of many keys, both replicas get some, and the master none.
        let before = (replies(&first), replies(&second), replies(&master(&client)));
        for _ in 0..10 {
            assert_eq!(ask(&client, "GET k").await, bulk("v"));
        }
        let after = (replies(&first), replies(&second), replies(&master(&client)));
        assert!(
            after == (before.0 + 10, before.1, before.2) || after == (before.0, before.1 + 10, before.2),
            "{after:?}"
        );
        for number in 0..40 {
            assert_eq!(ask(&client, &format!("GET none:{number}")).await, Reply::Null);
        }
        assert!(replies(&first) > after.0 && replies(&second) > after.1, "{:?}", figures(&client));
        assert_eq!(replies(&master(&client)), after.2);
        // Writes, and commands on all keys, go to the master.
        for command in ["SET r 1", "EVAL return(redis.call('INCR',KEYS[1])) 1 r", "DBSIZE", "SCAN 0", "KEYS r"] {
            let reply = ask(&client, command).await;
            assert!(!matches!(reply, Reply::Error(_)), "{command}: {reply:?}");
        }
        assert_eq!(replies(&master(&client)), after.2 + 5);
        // A read in another database succeeds as well.
        assert_eq!(ask_in(&client, 3, "GET k").await, Reply::Null);
    });
}

/// Replicas are added, stop, continue and die; reads get replies all the time.
fn replicas_come_and_go(watched: &mut Watched) {
    let short = Duration::from_secs(3);
    let bounds = Options { timeout_server: short, timeout_connect: short, ..watched.options() };
    let client = Client::new(Options { mode: by_sentinels("mymaster", true), ..bounds });
    let role = |address: &str| node(&client, address).role;
    let reads = async || assert_eq!(ask(&client, "GET k").await, bulk("v"));
    worker(async {
        until(&client, "GET k", || watched.engines[1..].iter().all(|engine| role(&engine.address()) == "replica"))
            .await;
    });
    watched.engine(Some(0), "0");
    watched.catch_up(0, 3);
    let third = watched.engines[3].address();
    worker(until(&client, "GET k", || role(&third) == "replica"));
    // A stopped replica gets no more reads before the sentinels know, and is used again later.
    watched.down_after(SOON_MS);
    worker(async {
        let replies = || {
            let nodes = figures(&client).nodes.into_iter().filter(|node| node.role == "replica");
            nodes.map(|node| (node.address, node.replies)).collect::<Vec<_>>()
        };
        let before = replies();
        reads().await;
        let reader = replies().into_iter().find(|node| !before.contains(node)).expect("one of them was asked").0;
        let stopped = watched.engines.iter().find(|engine| engine.address() == reader).expect("it is one of them");
        stopped.program.signal(libc::SIGSTOP);
        // Reads that were sent before time out; later ones go elsewhere.
        while ask(&client, "GET k").await != bulk("v") {}
        let before = node(&client, &reader).replies;
        reads().await;
        assert_eq!(node(&client, &reader).replies, before);
        until(&client, "GET k", || role(&reader) != "replica").await;
        stopped.program.signal(libc::SIGCONT);
        until(&client, "GET k", || role(&reader) == "replica" && node(&client, &reader).replies > before + 10).await;
    });
    watched.down_after(LATE_MS);
    // Without replicas, reads go to the master.
    for engine in &watched.engines[1..] {
        engine.program.signal(libc::SIGSTOP);
    }
    worker(async {
        let of_master = || node(&client, &watched.engines[0].address()).replies;
        while of_master() == 0 {
            ask(&client, "GET k").await;
        }
        let before = of_master();
        for _ in 0..10 {
            reads().await;
        }
        assert!(of_master() >= before + 9, "{:?}", figures(&client));
    });
    for engine in &watched.engines[1..] {
        engine.program.signal(libc::SIGCONT);
    }
    (1..4).for_each(|index| watched.catch_up(0, index));
    // A dead replica is forgotten.
    watched.engines.truncate(3);
    worker(until(&client, "GET k", || role(&third) != "replica" && role(&watched.engines[2].address()) == "replica"));
    watched.settle(0, "3");
}

/// Replicas that have lost the master serve reads only while the master does not respond either.
fn replicas_without_their_master_stand_in_for_it(watched: &Watched) {
    let short = Duration::from_secs(3);
    let bounds = Options { timeout_server: short, timeout_connect: short, ..watched.options() };
    let client = Client::new(Options { mode: by_sentinels("mymaster", true), ..bounds });
    let [there, first, second] = [0, 1, 2].map(|index| watched.engines[index].address());
    let of_replicas = || node(&client, &first).replies + node(&client, &second).replies;
    let own = watched.engine_client(0);
    let observer = watched.observer(0);
    worker(async {
        let ok = Reply::Simple("OK".into());
        until(&client, "GET k", || of_replicas() > 0).await;
        // The replica's connection to the master had the password in time.
        assert_eq!(ask(&client, "SET k v").await, ok);
        // The replicas cannot reconnect, and the sentinel notices it.
        assert_eq!(ask(&own, "CONFIG SET requirepass other").await, ok);
        assert_eq!(ask(&own, "CLIENT KILL TYPE replica").await, Reply::Integer(2));
        let lost = (bulk("master-link-status"), bulk("err"));
        let is_lost = |state: &Reply| matches!(state, Reply::Map(pairs) if pairs.contains(&lost));
        loop {
            let reply = ask(&observer, "SENTINEL REPLICAS mymaster").await;
            let Reply::Array(states) = &reply else { panic!("{reply:?}") };
            if states.iter().filter(|state| is_lost(state)).count() >= 2 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let before = node(&client, &there).replies;
        until(&client, "GET k", || node(&client, &there).replies >= before + 10).await;
        let before = of_replicas();
        assert_eq!(ask(&client, "GET k").await, bulk("v"));
        assert_eq!(of_replicas(), before);
        watched.engines[0].program.signal(libc::SIGSTOP);
        until(&client, "GET k", || of_replicas() >= before + 10).await;
        assert_eq!(ask(&client, "GET k").await, bulk("v"));
        let unanswered = error(ask(&client, "SET k other").await);
        assert!(unanswered.starts_with("CONNECT") || unanswered.starts_with("BREAKER"), "{unanswered}");
        watched.engines[0].program.signal(libc::SIGCONT);
        assert_eq!(ask(&own, "CONFIG SET requirepass secret").await, ok);
    });
    (1..3).for_each(|index| watched.catch_up(0, index));
    watched.settle(0, "3");
}

/// Increments under load while the master stops for longer than the sentinels wait. Every acknowledged increment is
/// counted.
fn a_master_that_stops_is_replaced(watched: &Watched) {
    let client = Client::new(watched.options());
    let reader = Client::new(Options { mode: by_sentinels("mymaster", true), ..watched.options() });
    let replies = |index: usize| node(&reader, &watched.engines[index].address()).replies;
    worker(until(&reader, "GET k", || replies(1) + replies(2) > 0));
    let (done, unknown) = (AtomicU64::new(0), AtomicU64::new(0));
    let (stop, stopped, subscribed) = (AtomicBool::new(false), &AtomicBool::new(false), &AtomicBool::new(false));
    let goes_on = || {
        let before = done.load(Ordering::Relaxed);
        wait_for("the counting to go on", || (done.load(Ordering::Relaxed) > before + 20).then_some(()));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            worker(async {
                let one = async || {
                    while !stop.load(Ordering::Relaxed) {
                        match ask(&client, "INCR hits").await {
                            Reply::Integer(_) => done.fetch_add(1, Ordering::Relaxed),
                            Reply::Error(text) => match text.split(' ').next().expect("a word") {
                                "CONNLOST" | "TIMEOUT" => unknown.fetch_add(1, Ordering::Relaxed),
                                "CONNECT" | "BREAKER" | "QUEUETIMEOUT" => {
                                    // With the breaker open the answer is there at once.
                                    tokio::time::sleep(Duration::from_millis(1)).await;
                                    0
                                }
                                _ => panic!("{text}"),
                            },
                            reply => panic!("{reply:?}"),
                        };
                    }
                };
                tokio::join!(one(), one(), one(), one());
            });
        });
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        goes_on();
        // Commands that were sent before fail as soon as there is another master, not at their time limit.
        let waits = Client::new(Options { timeout_server: Duration::from_secs(3600), ..watched.options() });
        // Nor does any client keep waiting there for an element or a message, which would never come.
        let pops = Client::new(watched.options());
        let popping =
            scope.spawn(move || worker(async { tokio::time::timeout(PATIENCE, ask(&pops, "BLPOP l 0")).await }));
        let hears = Client::new(watched.options());
        let hearing = scope.spawn(move || {
            worker(async {
                let mut own = own(&hears);
                assert_eq!(own.subscribe(false, &[b"channel"]).await, Reply::Simple("OK".into()));
                subscribed.store(true, Ordering::Relaxed);
                tokio::time::timeout(PATIENCE, own.message(None)).await
            })
        });
        let waiting = scope.spawn(move || {
            worker(async {
                assert_eq!(ask(&waits, "INCR waits").await, Reply::Integer(1));
                let mut popping = false;
                while !(popping && subscribed.load(Ordering::Relaxed)) {
                    popping = text(ask(&waits, "INFO clients").await).contains("blocked_clients:1\r\n");
                }
                watched.engines[0].program.signal(libc::SIGSTOP);
                stopped.store(true, Ordering::Relaxed);
                tokio::time::timeout(PATIENCE, ask(&waits, "INCR waits")).await
            })
        });
        wait_for("the master to stop", || stopped.load(Ordering::Relaxed).then_some(()));
        watched.quorum(2);
        watched.down_after(SOON_MS);
        // Reads succeed all the time.
        while !watched.info(1).contains("role:master") {
            assert_eq!(worker(ask(&reader, "GET k")), bulk("v"));
        }
        wait_for("the replica to be the master", || watched.info(1).contains("role:master").then_some(()));
        watched.quorum(NEVER);
        goes_on();
        for waiting in [waiting, popping, hearing] {
            let given_up = error(waiting.join().expect("no panic").expect("it is given up"));
            assert!(
                given_up.starts_with("CONNLOST") && given_up.ends_with("another engine has taken over"),
                "{given_up}"
            );
        }
        // For a while the old master still considers itself the master; it gets no commands.
        watched.engines[0].program.signal(libc::SIGCONT);
        assert!(watched.info(0).contains("role:master"));
        goes_on();
    });
    let (done, unknown) = (done.into_inner(), unknown.into_inner());
    let Reply::Bulk(there) = worker(ask(&client, "GET hits")) else { panic!("no count") };
    let there: u64 = String::from_utf8(there).expect("digits").parse().expect("a number");
    assert!((done..=done + unknown).contains(&there), "{done} + {unknown}, there are {there}");
    let seen = figures(&client);
    let master = seen.nodes.iter().find(|node| node.role == "master").expect("it is known");
    assert_eq!(master.address, watched.engines[1].address());
    // To finish the failover, the sentinels wait for the missing engine, unless they consider it down.
    watched.settle(1, "3");
    watched.down_after(LATE_MS);
}

/// The client knows one sentinel from its configuration, and learns the others from that one.
fn sentinels_that_die_are_not_missed(watched: &Watched) {
    let mut told = watched.options();
    told.servers.truncate(1);
    let client = Client::new(told);
    assert_eq!(worker(ask(&client, "GET k")), bulk("v"));
    watched.sentinels[0].0.signal(libc::SIGKILL);
    // The master is replaced, and the remaining sentinels report it; one of them stops responding once it is asked.
    // They would reconfigure the old master themselves some seconds later.
    let follow = format!("REPLICAOF 127.0.0.1 {}", watched.engines[1].port);
    assert_eq!(worker(ask(&watched.engine_client(0), &follow)), Reply::Simple("OK".into()));
    watched.catch_up(1, 0);
    let [second, third] = [1, 2].map(|index| watched.observer(index));
    wait_for("the sentinel to see it", || {
        let Reply::Array(all) = worker(ask(&second, "SENTINEL REPLICAS mymaster")) else { return None };
        let follows = (bulk("master-link-status"), bulk("ok"));
        let port = (bulk("port"), bulk(&watched.engines[0].port.to_string()));
        let is =
            |state: &Reply| matches!(state, Reply::Map(pairs) if pairs.contains(&follows) && pairs.contains(&port));
        all.iter().any(is).then_some(())
    });
    let there = Reply::Array(vec![bulk("127.0.0.1"), bulk(&watched.engines[0].port.to_string())]);
    let asked = "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster";
    // The sentinel refuses if it has not heard of the replica for some seconds, and gives up if the replica is slow to
    // take over.
    wait_for("the sentinel to hand over", || {
        let is_done = worker(ask(&second, asked)) == there;
        if !is_done {
            let reply = worker(ask(&second, "SENTINEL FAILOVER mymaster"));
            let is_fine = |text: &str| text.starts_with("INPROG") || text.starts_with("NOGOODSLAVE");
            assert!(
                matches!(&reply, Reply::Simple(_)) || matches!(&reply, Reply::Error(text) if is_fine(text)),
                "{reply:?}"
            );
        }
        is_done.then_some(())
    });
    wait_for("the other sentinel to hear", || (worker(ask(&third, asked)) == there).then_some(()));
    watched.sentinels[1].0.signal(libc::SIGSTOP);
    worker(until(&client, "SET after 1", || master(&client) == watched.engines[0].address()));
    assert_eq!(worker(ask(&client, "SET after 2")), Reply::Simple("OK".into()));
    let own = watched.engine_client(0);
    assert_eq!(worker(ask(&own, "GET after")), bulk("2"));
    watched.sentinels[1].0.signal(libc::SIGCONT);
}

/// A sentinel without access to the engines keeps reporting an old master, which still claims the role.
fn a_sentinel_that_was_cut_off_is_not_believed(watched: &mut Watched) {
    let stale = watched.sentinel(3, 1, "wrong");
    let [there, stray] = [0, 1].map(|index| watched.engines[index].address());
    let mut told = watched.options();
    told.servers.truncate(1);
    told.servers[0] = Address::Tcp("127.0.0.1".into(), watched.sentinels[2].1);
    told.servers.push(Address::Tcp("127.0.0.1".into(), stale.1));
    let client = Client::new(told.clone());
    assert_eq!(worker(ask(&client, "SET k there")), Reply::Simple("OK".into()));
    assert_eq!(master(&client), there);
    watched.sentinels.clear();
    let own = watched.engine_client(1);
    assert_eq!(worker(ask(&own, "REPLICAOF NO ONE")), Reply::Simple("OK".into()));
    // A client that knows only this sentinel uses the old master.
    told.servers.remove(0);
    let led = Client::new(told);
    assert_eq!(worker(ask(&led, "SET k astray")), Reply::Simple("OK".into()));
    assert_eq!(master(&led), stray);
    let heard = format!("127.0.0.1:{}", stale.1);
    worker(until(&client, "INCR n", || node(&client, &heard).replies >= 12));
    assert_eq!((master(&client), worker(ask(&client, "GET k"))), (there, bulk("there")));
}
