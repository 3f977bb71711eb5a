//! `cache` sections: limits, `show cache` beside HAProxy's, and responses in a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sluicegate_testkit::{Client, Haproxy, Listening, RedisServer, Sluicegate, lasting_listener, wait_for};

use sluicegate_wire::http2::Settings;

use crate::{http2, start};

const DEFAULTS: &str = "defaults\n mode http\n timeout connect 60s\n timeout client 60s\n timeout server 60s\n";

/// A server that answers each request with a body of this size and the number of the request.
pub(crate) struct Origin {
    pub(crate) address: String,
    asked: Arc<AtomicUsize>,
}

impl Origin {
    pub(crate) fn start(size: usize) -> Origin {
        let listener = lasting_listener();
        let address = listener.local_addr().expect("bound").to_string();
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let counted = counted.clone();
                std::thread::spawn(move || {
                    let mut client = Client::from(stream);
                    // The test ends with the proxy's connections.
                    while client.stream().peek(&mut [0]).is_ok_and(|count| count > 0) {
                        let request = client.read_until(b"\r\n\r\n");
                        let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
                        let request = String::from_utf8_lossy(&request).into_owned();
                        let age = request.split_once("/age=").and_then(|(_, rest)| rest.split(' ').next());
                        let age = age.map(|age| format!("age: {age}\r\n")).unwrap_or_default();
                        let head = format!(
                            "HTTP/1.1 200 OK\r\ncontent-length: {size}\r\netag: \"e\"\r\ncache-control: max-age=300\r\n{age}x-n: {number}\r\n\r\n"
                        );
                        client.try_send(&[head.as_bytes(), &vec![b'o'; size]].concat());
                    }
                });
            }
        });
        Origin { address, asked }
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Returns a `listen` before it, with the cache `c`.
    fn listen(&self, gate: &Listening, cache: &str) -> String {
        format!(
            "{DEFAULTS}listen l\n bind {}\n http-request cache-use c\n http-response cache-store c\n server s {}\n\
             cache c\n total-max-size 1\n max-age 300\n{cache}",
            gate.word(),
            self.address
        )
    }
}

/// Asks for a path; returns the number of the origin's response and whether it has an age.
pub(crate) fn get(address: &str, path: &str) -> (usize, bool) {
    let response = Client::connect(address).get(path);
    let number = response.header("x-n").expect("a response of the origin").parse().expect("a number");
    (number, response.header("age").is_some())
}

/// Returns the lines of `show cache` without addresses and the rests of lifetimes.
fn listed(socket: &std::path::Path) -> Vec<String> {
    let text = Sluicegate::stats(socket, "show cache");
    let masked = text.lines().filter(|line| !line.is_empty()).map(|line| {
        let words = line.split(' ').map(|word| match word {
            word if word.starts_with("0x") => "ADDRESS".to_owned(),
            word if word.starts_with("(shctx:") => "(SHCTX".to_owned(),
            // The second key has grown since 2.8.
            word if word.starts_with("vary:0x0") => "VARY".to_owned(),
            word if word.starts_with("size:") => "SIZE".to_owned(),
            word if word.starts_with("refcount:") => "USERS".to_owned(),
            word if word.starts_with("expire:") => "EXPIRE".to_owned(),
            word => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    });
    masked.collect()
}

#[test]
fn show_cache_lists_what_haproxy_lists() {
    let ask = |ours: bool| {
        let origin = Origin::start(10);
        let gate = Listening::new();
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("stats");
        let text = format!("global\n stats socket {} level admin\n", socket.display()) + &origin.listen(&gate, "");
        let lines = |of: &dyn Fn() -> Vec<String>| {
            let before = of();
            get(&gate.address(), "/a");
            get(&gate.address(), "/a");
            wait_for("the entry", || Some((before.clone(), of())).filter(|(_, lines)| lines.len() > 1))
        };
        let result = match ours {
            true => {
                let _program = start(&text, &[&gate]);
                lines(&|| listed(&socket))
            }
            false => {
                let _program = Haproxy::start_2_8(&text, &[&gate]);
                lines(&|| listed(&socket))
            }
        };
        // The digest is of the host's port, too.
        let hash =
            |line: String| line.split(' ').filter(|word| !word.starts_with("hash:")).collect::<Vec<_>>().join(" ");
        (result.0, result.1.into_iter().map(hash).collect::<Vec<_>>())
    };
    let (theirs, ours) = (ask(false), ask(true));
    assert_eq!(ours, theirs);
    assert_eq!(ours.1[1], "ADDRESS VARY SIZE (1 blocks), USERS EXPIRE");
}

/// A response that is some time old already when it comes, or too old.
#[test]
fn the_age_that_the_origin_says_counts() {
    let ask = |ours: bool| {
        let (origin, gate) = (Origin::start(10), Listening::new());
        // With one thread a response is stored before the next request is read.
        let text = format!("global\n nbthread 1\n{}", origin.listen(&gate, ""));
        let _program: Box<dyn std::any::Any> = match ours {
            true => Box::new(start(&text, &[&gate])),
            false => Box::new(Haproxy::start_2_8(&text, &[&gate])),
        };
        let found = |age: &&str| {
            let path = format!("/age={age}");
            let of = || {
                let response = Client::connect(&gate.address()).get(&path);
                let age = response.header("age").map(|age| age.parse::<u32>().map(|seconds| seconds / 50));
                (response.header("x-n").map(str::to_owned), age)
            };
            let (first, second) = (of(), of());
            (age.to_string(), first.0 == second.0, first.1, second.1)
        };
        ["0", "100", "300", "400", "4294967296", "-1", "old"].iter().map(found).collect::<Vec<_>>()
    };
    let (ours, theirs) = (ask(true), ask(false));
    assert_eq!(ours, theirs);
    let stored = |age: &str| ours.iter().any(|(of, is_stored, ..)| of == age && *is_stored);
    assert!(stored("100") && !stored("400"), "{ours:?}");
}

/// A full cache removes what was not used for longest, and never has more than it may.
#[test]
fn a_full_cache_removes_the_oldest() {
    let origin = Origin::start(3_000);
    let gate = Listening::new();
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("stats");
    let text = format!("global\n nbthread 1\n stats socket {} level admin\n", socket.display());
    let _program = start(&(text + &origin.listen(&gate, "")), &[&gate]);
    let address = gate.address();
    let mut client = Client::connect(&address);
    for index in 0..300 {
        client.get(&format!("/{index}"));
        // It is used all the time, so it stays.
        client.get("/0");
    }
    assert_eq!(origin.asked(), 300);
    let text = Sluicegate::stats(&socket, "show cache");
    let blocks = text.lines().filter_map(|line| line.split_once('(')?.1.split_once(" blocks")?.0.parse::<usize>().ok());
    let blocks: Vec<usize> = blocks.collect();
    assert!((1_000..=1_024).contains(&blocks.iter().sum::<usize>()), "{} entries", blocks.len());
    assert_eq!(get(&address, "/0"), (1, true));
    assert_eq!(get(&address, "/299").0, 300);
    assert_eq!(get(&address, "/1"), (301, false));
}

/// Clients of HTTP/2 get stored responses as those of HTTP/1 do, whatever their windows are. As in HAProxy, each has its own:
/// the key has the target, which is absolute in HTTP/2.
#[test]
fn clients_of_http2_are_served() {
    let ask = |ours: bool| {
        let (origin, gate) = (Origin::start(3_000), Listening::new());
        let text = format!("global\n nbthread 1\n{}", origin.listen(&gate, ""));
        let _program: Box<dyn std::any::Any> = match ours {
            true => Box::new(start(&text, &[&gate])),
            false => Box::new(Haproxy::start_2_8(&text, &[&gate])),
        };
        let plain = |path: &str| {
            let mut client = Client::connect(&gate.address());
            client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
            let response = client.read_response();
            format!("{} {:?} {}", response.status, response.header("x-n"), response.header("age").is_some())
        };
        let settings = Settings { max_concurrent_streams: 0, initial_window: 100, ..Settings::default() };
        let mut client = http2::Client::with(&gate.address(), settings);
        let mut framed = |head: &str| {
            let answer = client.ask(head);
            let has_age = answer.field("age").is_some();
            format!("{} {:?} {has_age} {}", answer.status, answer.field("x-n"), answer.body.len())
        };
        let seen = [
            plain("/a"),
            framed("GET /a\nhost: h"),
            framed("HEAD /a\nhost: h"),
            framed("GET /a\nhost: h\nif-none-match: \"e\""),
            framed("GET /b\nhost: h"),
            framed("GET /b\nhost: h"),
            plain("/b"),
            framed("GET /b\nhost: other"),
        ];
        (seen, origin.asked())
    };
    let (ours, theirs) = (ask(true), ask(false));
    assert_eq!(ours, theirs);
    let expected = [
        "200 Some(\"1\") false",
        "200 Some(\"2\") false 3000",
        "200 Some(\"2\") true 0",
        "304 Some(\"2\") true 0",
        "200 Some(\"3\") false 3000",
        "200 Some(\"3\") true 3000",
        "200 Some(\"4\") false",
        "200 Some(\"5\") false 3000",
    ];
    assert_eq!(ours.0, expected);
}

/// A response whose server leaves before its end is not stored.
#[test]
fn an_incomplete_response_is_not_stored() {
    let listener = lasting_listener();
    let gate = Listening::new();
    let origin = Origin { address: listener.local_addr().expect("bound").to_string(), asked: Arc::default() };
    let _program = start(&origin.listen(&gate, ""), &[&gate]);
    for number in 1..3 {
        let mut client = Client::connect(&gate.address());
        client.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut server = Client::from(listener.accept().expect("a connection").0);
        server.read_until(b"\r\n\r\n");
        server.send(format!(
            "HTTP/1.1 200 OK\r\ncontent-length: 10\r\ncache-control: max-age=99\r\nx-n: {number}\r\n\r\nabc"
        ));
        client.read_until(b"abc");
        drop(server);
        client.read_to_end();
    }
}

/// Responses of a store's section survive the process's memory, and only valid ones are used.
#[test]
fn responses_are_kept_in_a_redis() {
    let redis = RedisServer::start(&[]);
    let origin = Origin::start(100);
    let gates = [Listening::new(), Listening::new(), Listening::new()];
    let engine = format!("redis shared\n server r {}\n", redis.address());
    let text = |gate: &Listening| origin.listen(gate, " store-in shared\n") + &engine;
    let mut client = Client::connect(&redis.address());
    let key = {
        let _first = start(&text(&gates[0]), &[&gates[0]]);
        let mut asked = Client::connect(&gates[0].address());
        asked.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(asked.read_response().header("x-n"), Some("1"));
        let keys =
            wait_for("the key", || Some(client.ask(&["KEYS", "cache:c:*"])).filter(|reply| reply.contains("cache:c:")));
        keys[keys.find("cache:c:").expect("a key")..].trim().to_owned()
    };
    assert_eq!(key.len(), "cache:c:".len() + 40, "{key}");
    let seconds: i64 = client.ask(&["TTL", &key]).trim().trim_start_matches(':').parse().expect("a number");
    assert!((1..=300).contains(&seconds), "{seconds}");
    // Another process uses it, and so does a conditional request.
    let _second = start(&text(&gates[1]), &[&gates[1]]);
    let ask = |gate: &Listening| {
        let mut client = Client::connect(&gate.address());
        client.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
        client.read_response()
    };
    let response = ask(&gates[1]);
    assert_eq!((response.header("x-n"), response.body.len()), (Some("1"), 100));
    assert!(response.header("age").is_some());
    assert_eq!(origin.asked(), 1);
    // What is not valid is not used, and is replaced.
    client.ask(&["APPEND", &key, "more"]);
    let _third = start(&text(&gates[2]), &[&gates[2]]);
    assert_eq!(ask(&gates[2]).header("x-n"), Some("2"));
    assert_eq!(origin.asked(), 2);
    // An unsafe method removes it there, too.
    let mut unsafe_client = Client::connect(&gates[2].address());
    unsafe_client.send("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    unsafe_client.read_response();
    wait_for("no key", || client.ask(&["EXISTS", &key]).contains(":0").then_some(()));
}

/// The embedded store keeps responses, too.
#[test]
fn responses_are_kept_in_a_store_section() {
    let origin = Origin::start(100);
    let (gate, port) = (Listening::new(), Listening::new());
    let text = format!("store main\n bind {}\n", port.word()) + &origin.listen(&gate, " store-in main\n");
    let _program = start(&text, &[&gate, &port]);
    assert_eq!(get(&gate.address(), "/a"), (1, false));
    assert_eq!(get(&gate.address(), "/a"), (1, true));
    let mut client = Client::connect(&port.address());
    assert!(client.ask(&["KEYS", "cache:c:*"]).contains("cache:c:"));
}
