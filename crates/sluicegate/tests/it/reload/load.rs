//! Twenty reloads while clients of every kind are busy.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use sluicegate_testkit::{Client, Listening, rss_bytes, wait_for};

use super::{DEFAULTS, Service, Way, word};

/// Sends back what it gets, to any number of clients.
fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bindable");
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut buffer = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

struct Sites {
    web: Listening,
    tunnel: Listening,
    store: Listening,
    origin: Listening,
    echo: String,
}

impl Sites {
    fn new() -> Sites {
        let new = Listening::new;
        Sites { web: new(), tunnel: new(), store: new(), origin: new(), echo: echo() }
    }

    fn listening(&self) -> [&Listening; 4] {
        [&self.web, &self.tunnel, &self.store, &self.origin]
    }

    /// The file as it is after so many reloads: every second one defines the backend otherwise.
    fn text(&self, reloads: usize) -> String {
        format!(
            "global\n nbthread 2\n stats socket @DIR@/stats level admin\n{DEFAULTS}frontend web\n bind {}\n http-request \
             track-sc0 src table seen\n http-request store-call main INCR requests\n http-request set-header x-round \
             {reloads}\n default_backend app\nbackend seen\n stick-table type ip size 1k expire 1h store \
             http_req_cnt\nbackend app\n balance {}\n server a {} maxconn 3\n server b {} maxconn {}\nlisten tunnel\n \
             mode tcp\n bind {}\n server e {}\nstore main\n bind {}\norigin demo\n bind {}\n",
            self.web.word(),
            if reloads.is_multiple_of(2) { "roundrobin" } else { "leastconn" },
            self.origin.address(),
            self.origin.address(),
            1 + reloads % 3,
            self.tunnel.word(),
            self.echo,
            self.store.word(),
            self.origin.word(),
        )
    }
}

/// Clients that ask until they are told to stop; an answer that is missing or not 200 ends the test.
struct Busy {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    fn start(address: &str) -> Busy {
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..6).map(|number| {
            let (stop, asked, address) = (stop.clone(), asked.clone(), address.to_owned());
            std::thread::spawn(move || {
                let mut kept = None;
                while !stop.load(Ordering::Relaxed) {
                    // Half of them keep their connection for all of the test; one that said nothing would be counted.
                    let mut client = kept.take().unwrap_or_else(|| Client::connect(&address));
                    let response = client.get("/fast");
                    assert_eq!(response.status, 200);
                    assert_eq!(response.header("connection"), None, "a connection is told to close");
                    asked.fetch_add(1, Ordering::Relaxed);
                    kept = (number % 2 == 1).then_some(client);
                }
            })
        });
        let threads = threads.collect();
        Busy { stop, asked, threads }
    }

    /// Requests that were answered, once all clients have ended.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("every request is answered");
        }
        self.asked.load(Ordering::Relaxed)
    }
}

#[track_caller]
fn check(way: Way) {
    let sites = Sites::new();
    let mut service = Service::start(way, &sites.text(0), &sites.listening());
    let mut tunnel = Client::connect(&sites.tunnel.address());
    let mut redis = Client::connect(&sites.store.address());
    let busy = Busy::start(&sites.web.address());
    let mut highest = 0;
    for round in 1..=20 {
        service.write(&sites.text(round));
        service.reload();
        tunnel.send(format!("{round}\n"));
        assert_eq!(tunnel.read_line(), format!("{round}"));
        assert_eq!(redis.ask(&["INCR", "rounds"]).trim(), format!(":{round}"));
        let seen = service.stat("app", "BACKEND", "req_tot");
        assert!(seen >= highest, "a counter went back from {highest} to {seen}");
        highest = seen;
        let known = [("web", "FRONTEND"), ("app", "a"), ("app", "b"), ("tunnel", "FRONTEND")];
        wait_for("everybody to be asked", || {
            known.iter().all(|(proxy, server)| service.stat(proxy, server, "stot") > 0).then_some(())
        });
    }
    let asked = busy.end();
    assert_eq!(service.stat("web", "FRONTEND", "req_tot"), asked);
    assert_eq!(service.stat("app", "a", "stot") + service.stat("app", "b", "stot"), asked);
    // A client may have its answer a moment before its place at the server is given back.
    let current = || service.stat("app", "a", "scur") + service.stat("app", "b", "scur");
    wait_for("the streams to end", || (current() == 0).then_some(()));
    assert!(service.ask("show table seen").contains(&format!("http_req_cnt={asked}\n")));
    assert_eq!(word(&redis.ask(&["GET", "requests"])), asked.to_string());
    assert_eq!(service.stat("app", "BACKEND", "econ") + service.stat("app", "BACKEND", "eresp"), 0);
}

#[test]
fn nothing_fails_and_nothing_is_lost_by_command() {
    check(Way::Command);
}

#[test]
fn nothing_fails_and_nothing_is_lost_by_signal() {
    check(Way::Signal);
}

#[test]
fn nothing_fails_and_nothing_is_lost_by_the_masters_socket() {
    check(Way::Socket);
}

#[test]
fn nothing_fails_and_nothing_is_lost_by_sf() {
    check(Way::Instead);
}

/// A hundred snapshots, each held by a tunnel and by a client for a while, go when those do.
#[test]
fn snapshots_go_with_their_last_stream() {
    let sites = Sites::new();
    let mut service = Service::start(Way::Command, &sites.text(0), &sites.listening());
    let mut round = 0;
    let mut rounds = |service: &mut Service, count: usize| {
        for _ in 0..count {
            round += 1;
            let mut client = Client::connect(&sites.web.address());
            assert_eq!(client.get("/fast").status, 200);
            let mut tunnel = Client::connect(&sites.tunnel.address());
            tunnel.send("x\n");
            assert_eq!(tunnel.read_line(), "x");
            service.write(&sites.text(round));
            service.reload();
            assert_eq!(client.get("/fast").status, 200);
        }
        rss_bytes(service.pid)
    };
    let before = rounds(&mut service, 30);
    let after = rounds(&mut service, 100);
    assert!(after < before + (6 << 20), "{} KiB became {} KiB in 100 reloads", before >> 10, after >> 10);
}
