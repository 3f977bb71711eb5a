//! Keywords whose effect shows in the transferred bytes, in the order of events or in a state.

use sluicegate_testkit::{Client, free_port, wait_for};

use super::fixture::Whole;
use crate::support::{OK, Origin, Peer};

fn start(rows: &str) -> Whole {
    Whole::start(
        &format!(
            "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\nfrontend f\n bind \
             127.0.0.1:1\n default_backend be\nbackend be\n{rows}"
        ),
        1,
    )
}

/// Returns an address where nobody listens.
fn closed() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// Starts servers that answer with their names.
fn named(names: &str) -> Vec<(String, String)> {
    let serve = |name: char| {
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{name}");
        (name.to_string(), Origin::new().serve(response).to_string())
    };
    names.chars().map(serve).collect()
}

/// Returns the servers that answer `count` requests of one connection; `-` stands for a 503.
fn order(whole: &Whole, count: usize) -> String {
    let mut client = Client::connect(&whole.address());
    (0..count)
        .map(|_| {
            let response = client.get("/");
            if response.status == 503 { "-".to_owned() } else { response.text() }
        })
        .collect()
}

#[test]
fn servers_that_are_backup_weightless_or_disabled_get_nothing() {
    let servers = named("abcd");
    let rows = |words: [&str; 4]| -> String {
        servers
            .iter()
            .zip(words)
            .map(|((name, address), words)| format!(" server {name} {address} {words}\n"))
            .collect()
    };
    for (words, expected) in [
        (["", "", "", ""], "abcdabcd"),
        (["", "", "backup", "backup"], "abababab"),
        (["weight 0", "", "backup", ""], "bdbdbdbd"),
        (["disabled", "disabled", "backup", "backup"], "cccccccc"),
        (["disabled", "", "", "weight 0"], "bcbcbcbc"),
        (["disabled", "disabled", "disabled", "disabled"], "--------"),
    ] {
        assert_eq!(order(&start(&rows(words)), 8), expected, "{words:?}");
    }
    let rows = format!(" default-server weight 0 disabled\n{}", rows(["enabled weight 1", "", "", ""]));
    assert_eq!(order(&start(&rows), 3), "aaa", "a server's own words come after default-server's");
}

#[test]
fn fullconn_and_a_server_s_cookie_alone_change_nothing() {
    let servers = named("ab");
    let with = |rows: &str, cookies: [&str; 2]| {
        let lines: String = servers
            .iter()
            .zip(cookies)
            .map(|((name, address), cookie)| format!(" server {name} {address} {cookie}\n"))
            .collect();
        let whole = start(&format!("{rows}{lines}"));
        let mut client = Client::connect(&whole.address());
        let mut answers = String::new();
        for _ in 0..4 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\nCookie: SERVERID=two; two=two\r\n\r\n");
            let response = client.read_response();
            assert_eq!(response.header("set-cookie"), None);
            answers += &response.text();
        }
        // More clients at once than `fullconn`: none of them waits.
        let mut clients: Vec<_> = (0..4).map(|_| Client::connect(&whole.address())).collect();
        for client in &mut clients {
            assert_eq!(client.get("/").status, 200);
        }
        answers
    };
    assert_eq!(with("", ["", ""]), "abab");
    assert_eq!(with(" fullconn 1\n", ["cookie one", "cookie two"]), "abab");
}

#[test]
fn http_reuse_decides_who_shares_a_server_s_connection() {
    let served = |peer: &mut Peer, client: &mut Client, path: &str| {
        assert!(peer.head().starts_with(&format!("GET {path} ")), "{path}");
        peer.send(OK);
        assert_eq!(client.read_response().status, 200);
    };
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    for policy in ["never", "safe", "always"] {
        let origin = Origin::new();
        // The limits of the pool do not apply to a connection that is kept for one client alone.
        let limits = if policy == "never" { "pool-max-conn 0 max-reuse 1 pool-purge-delay 0" } else { "" };
        let whole = start(&format!(" http-reuse {policy}\n server s {} {limits}\n", origin.address));
        let mut one = Client::connect(&whole.address());
        one.send(request("/1"));
        let mut first = origin.accept();
        served(&mut first, &mut one, "/1");
        one.send(request("/2"));
        served(&mut first, &mut one, "/2");
        let mut other = Client::connect(&whole.address());
        other.send(request("/3"));
        if policy == "always" {
            served(&mut first, &mut other, "/3");
            continue;
        }
        let mut second = origin.accept();
        served(&mut second, &mut other, "/3");
        // Two connections are idle: under `never` each client has its own.
        if policy == "never" {
            one.send(request("/4"));
            served(&mut first, &mut one, "/4");
            other.send(request("/5"));
            served(&mut second, &mut other, "/5");
            drop(one);
            assert_eq!(first.read_to_end(), b"", "it ends with its client");
            other.send(request("/6"));
            served(&mut second, &mut other, "/6");
        }
    }
}

/// Idle connections count, too: the oldest one is closed if a new one would exceed the limit.
#[test]
fn strict_maxconn_bounds_connections_as_well() {
    for (word, workers, most) in [("strict-maxconn", 1, 2), ("strict-maxconn", 2, 2), ("", 1, 3)] {
        let origin = Origin::new();
        let text = format!(
            "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\nlisten l\n \
             bind 127.0.0.1:1\n server s {} maxconn 2 pool-low-conn 9 {word}\n",
            origin.address
        );
        let whole = Whole::start(&text, workers);
        let (mut clients, mut peers) = (Vec::new(), Vec::new());
        // A first request does not use an idle connection.
        for number in 1..=3 {
            let mut client = Client::connect(&whole.address());
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            let mut peer = origin.accept();
            peer.head();
            peer.send(OK);
            assert_eq!(client.read_response().status, 200);
            let idle = || whole.running.proxies[0].servers[0].shared.idle_connections();
            wait_for("an idle connection", || (idle() == most.min(number)).then_some(()));
            clients.push(client);
            peers.push(peer);
        }
        if most == 2 {
            assert_eq!(peers[0].read_to_end(), b"", "{workers} workers");
        }
    }
}

#[test]
fn retries_and_redispatch_decide_how_often_and_where() {
    let good = named("g").remove(0).1;
    let bad = closed();
    let attempts = |connect: &str, rows: &str, servers: &str| {
        let text = format!(
            "global\n log @LOG@ format raw local0\ndefaults\n mode http\n log global\n option httplog\n timeout client \
             20s\n timeout server 60s\n timeout connect {connect}\n{rows}listen l\n bind 127.0.0.1:1\n{servers}"
        );
        let whole = Whole::start(&text, 1);
        let status = Client::connect(&whole.address()).get("/").status;
        let line = whole.log_lines(1).remove(0);
        // %ac/%fc/%bc/%sc/%rc follow the times.
        let is_counts = |word: &&str| {
            word.matches('/').count() == 4 && word.chars().all(|c| c.is_ascii_digit() || matches!(c, '/' | '+'))
        };
        let counts = line.split(' ').rfind(is_counts).expect("a line of httplog");
        let retries = counts.rsplit('/').next().expect("there are five").to_owned();
        (status, retries)
    };
    let only_bad = format!(" server bad {bad}\n");
    // With two usable servers, round robin may select the other one for a retry; the refusing one is first.
    let both = format!(" server bad {bad}\n server good {good}\n");
    // The pause before a retry at the same server is 'timeout connect', at most a second.
    for (connect, rows, servers, expected) in [
        ("1ms", " retries 0\n", &only_bad, (503, "0")),
        ("1ms", " retries 2\n", &only_bad, (503, "2")),
        ("1ms", "", &only_bad, (503, "3")),
        ("1ms", " retries 1\n", &both, (503, "1")),
        ("20s", " retries 1\n option redispatch\n", &both, (200, "+1")),
        ("20s", " retries 2\n option redispatch 2\n", &both, (200, "+1")),
        ("1ms", " retries 0\n option redispatch\n", &both, (503, "0")),
    ] {
        let (status, retries) = attempts(connect, rows, servers);
        assert_eq!((status, retries.as_str()), expected, "{rows}{servers}");
    }
}

#[test]
fn timeout_queue_answers_who_waits_and_the_slot_serves_the_next() {
    let origin = Origin::new();
    let whole = start(&format!(" timeout queue 1s\n server s {} maxconn 1\n", origin.address));
    let mut first = Client::connect(&whole.address());
    first.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut peer = origin.accept();
    peer.head();
    let mut second = Client::connect(&whole.address());
    assert_eq!(second.get("/second").status, 503);
    assert!(origin.is_unvisited());
    peer.send(OK);
    assert_eq!(first.read_response().status, 200);
    second.send("GET /third HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = peer.head();
    assert!(head.starts_with("GET /third "), "{head}");
    peer.send(OK);
    assert_eq!(second.read_response().status, 200);
}

#[test]
fn without_timeout_queue_timeout_connect_bounds_the_wait() {
    let origin = Origin::new();
    let whole = start(&format!(" timeout connect 20ms\n server s {} maxconn 1\n", origin.address));
    let mut first = Client::connect(&whole.address());
    first.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut peer = origin.accept();
    peer.head();
    assert_eq!(Client::connect(&whole.address()).get("/").status, 503);
}

#[test]
fn an_upgraded_connection_lives_by_timeout_tunnel() {
    for (rows, outlives) in [(" timeout server 4s\n timeout tunnel 60s\n", true), (" timeout tunnel 30ms\n", false)] {
        let origin = Origin::new();
        let whole = start(&format!("{rows} server s {}\n", origin.address));
        let mut client = Client::connect(&whole.address());
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
        let mut peer = origin.accept();
        peer.head();
        peer.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
        assert_eq!(client.read_response().status, 101);
        if outlives {
            // A plain request without an answer times out after the same silence; the tunnel is still open.
            let mut other = Client::connect(&whole.address());
            other.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            let mut silent = origin.accept();
            silent.head();
            assert_eq!(other.read_response().status, 504);
            peer.send("still");
            client.send("here");
            assert_eq!(peer.read_exact(4), b"here");
            drop(peer);
            assert_eq!(client.read_to_end(), b"still");
        } else {
            assert_eq!(client.read_to_end(), b"");
            assert_eq!(peer.read_to_end(), b"");
        }
    }
}

#[test]
fn maxconn_of_a_server_makes_requests_wait_in_order() {
    let origin = Origin::new();
    let whole = start(&format!(" timeout queue 20s\n server s {} maxconn 1\n", origin.address));
    let ask = |number: u32| {
        let mut client = Client::connect(&whole.address());
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        client
    };
    let mut clients = vec![ask(0)];
    let mut peer = origin.accept();
    let queue = &whole.running.proxies[1].backend.queue;
    for number in 1..4 {
        clients.push(ask(number));
        wait_for("its place in the queue", || (queue.len() == number).then_some(()));
    }
    for (number, client) in clients.iter_mut().enumerate() {
        // A session's first request opens a connection of its own.
        if number > 0 {
            peer = origin.accept();
        }
        let head = peer.head();
        assert!(head.starts_with(&format!("GET /{number} ")), "{head}");
        assert!(origin.is_unvisited());
        peer.send(OK);
        assert_eq!(client.read_response().status, 200);
    }
}
