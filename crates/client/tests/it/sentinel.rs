//! A master, its replica and three sentinels on loopback: discovery, failover, what sentinels say that is not so.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_client::{Address, Auth, Client, Mode, Options};
use sluicegate_testkit::{Program, RedisServer, free_port, wait_for};
use sluicegate_wire::reply::Reply;

use crate::support::{ask, ask_in, bulk, error, figures, patient, worker};

/// Two engines, the first of which is the master at first, and three sentinels.
struct Watched {
    engines: [RedisServer; 2],
    sentinels: Vec<(Program, u16)>,
    _directory: tempfile::TempDir,
}

impl Watched {
    fn start() -> Watched {
        let directory = tempfile::tempdir().expect("a directory");
        let dir = directory.path().to_str().expect("ASCII");
        let start = |further: &[&str]| {
            let common = ["--requirepass", "secret", "--masterauth", "secret", "--repl-diskless-sync-delay", "0"];
            RedisServer::start(&[&common[..], &["--dir", dir], further].concat())
        };
        let master = start(&["--dbfilename", "master.rdb"]);
        let port = master.port.to_string();
        let replica = start(&["--dbfilename", "replica.rdb", "--replicaof", "127.0.0.1", &port]);
        let engines = [master, replica];
        let mut watched = Watched { engines, sentinels: Vec::new(), _directory: directory };
        // Sentinels ask a master rarely which replicas it has.
        wait_for("the replica to follow", || watched.info(1).contains("master_link_status:up").then_some(()));
        for index in 0..3 {
            let started = watched.sentinel(index);
            watched.sentinels.push(started);
        }
        // They know each other and the replica, so that they can agree.
        let observers: Vec<Client> = watched.sentinels.iter().map(|(_, port)| sentinel_client(*port)).collect();
        wait_for("the sentinels to know each other", || {
            let all = observers.iter().all(|observer| {
                let reply = worker(ask(observer, "SENTINEL MASTER mymaster"));
                let Reply::Map(pairs) = reply else { return false };
                let is = |name: &str, value: &str| pairs.contains(&(bulk(name), bulk(value)));
                is("num-other-sentinels", "2") && is("num-slaves", "1") && is("flags", "master")
            });
            all.then_some(())
        });
        watched
    }

    fn sentinel(&self, index: usize) -> (Program, u16) {
        let path = self._directory.path().join(format!("sentinel-{index}.conf"));
        for _ in 0..5 {
            let port = free_port();
            let text = format!(
                "port {port}\nbind 127.0.0.1\nrequirepass hidden\nsentinel sentinel-pass hidden\n\
                 sentinel monitor mymaster 127.0.0.1 {} 2\n\
                 sentinel auth-pass mymaster secret\nsentinel down-after-milliseconds mymaster 500\n\
                 sentinel failover-timeout mymaster 5000\n",
                self.engines[0].port
            );
            std::fs::write(&path, text).expect("writable");
            let mut command = std::process::Command::new("redis-server");
            command.arg(&path).arg("--sentinel");
            let mut program = Program::start(command, &[]);
            let ready = wait_for("a sentinel", || {
                if program.output().contains("+monitor master") {
                    Some(true)
                } else if program.is_running() {
                    None
                } else {
                    Some(false)
                }
            });
            if ready {
                return (program, port);
            }
        }
        panic!("a sentinel found no free port in five tries");
    }

    fn info(&self, index: usize) -> String {
        let own =
            Client::new(Options { name: "test".into(), auth: secret("secret"), ..patient(self.engines[index].port) });
        match worker(ask(&own, "INFO replication")) {
            Reply::Bulk(text) | Reply::Verbatim(_, text) => String::from_utf8(text).expect("text"),
            reply => panic!("{reply:?}"),
        }
    }

    fn options(&self) -> Options {
        let sentinels = self.sentinels.iter().map(|(_, port)| Address::Tcp("127.0.0.1".into(), *port));
        Options {
            mode: Mode::Sentinel { master: "mymaster".into(), auth: secret("hidden") },
            servers: sentinels.collect(),
            auth: secret("secret"),
            ..patient(0)
        }
    }
}

fn secret(password: &str) -> Option<Auth> {
    Some(Auth { user: None, password: password.into() })
}

fn sentinel_client(port: u16) -> Client {
    Client::new(Options { name: "test".into(), auth: secret("hidden"), ..patient(port) })
}

/// One set of processes for all that can happen to it, in this order: it takes seconds to come to be.
#[test]
fn a_master_is_found_through_sentinels_whatever_happens_to_it() {
    let watched = Watched::start();
    everyday(&watched);
    a_master_that_stops_is_replaced(&watched);
    a_sentinel_that_dies_is_not_missed(&watched);
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
        mode: Mode::Sentinel { master: "nobody".into(), auth: secret("hidden") },
        timeout_queue: Duration::from_millis(300),
        ..watched.options()
    });
    let text = error(worker(ask(&unknown, "GET k")));
    assert!(text.starts_with("CONNECT 127.0.0.1:") && text.ends_with("no master of this name is watched"), "{text}");
    let stranger = Client::new(Options {
        mode: Mode::Sentinel { master: "mymaster".into(), auth: None },
        timeout_queue: Duration::from_millis(500),
        ..watched.options()
    });
    let text = error(worker(ask(&stranger, "GET k")));
    assert!(text.contains("NOAUTH"), "{text}");
}

/// Counts under load while the master stops for longer than the sentinels wait. What was acknowledged is there.
fn a_master_that_stops_is_replaced(watched: &Watched) {
    let client = Client::new(Options { connect_rate: 1000, ..watched.options() });
    let (done, unknown, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
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
        watched.engines[0].program.signal(libc::SIGSTOP);
        wait_for("the replica to be the master", || watched.info(1).contains("role:master").then_some(()));
        goes_on();
        // The old one thinks that it is the master still, for a while; nobody asks it.
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
}

fn a_sentinel_that_dies_is_not_missed(watched: &Watched) {
    let mut told = watched.options();
    // The first is none, and the second answers no more once it was asked.
    watched.sentinels[0].0.signal(libc::SIGKILL);
    watched.sentinels[1].0.signal(libc::SIGSTOP);
    told.timeout_connect = Duration::from_millis(300);
    let client = Client::new(told);
    assert_eq!(worker(ask(&client, "GET k")), bulk("v"));
}
