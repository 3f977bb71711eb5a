//! Servers that a client selects without a rule: by an RDP cookie, or because it used the server before; compared with
//! Debian's haproxy.

use std::io::{Read, Write};
use std::net::SocketAddr;

use sluicegate_testkit::Client;

use crate::pair::{answering, both, origin, ours, read_head, theirs};

/// Starts a TCP server that sends its name and closes.
fn named(name: &'static str) -> SocketAddr {
    origin(move |mut stream| {
        let _ = stream.read(&mut [0; 256]);
        let _ = stream.write_all(name.as_bytes());
    })
}

/// Returns the first packet of an RDP client, with a cookie as its text.
fn connection_request(cookie: &str) -> Vec<u8> {
    let mut packet = b"\x03\x00\x00\x00\x00\xe0\x00\x00\x00\x00\x00".to_vec();
    packet.extend_from_slice(cookie.as_bytes());
    packet.extend_from_slice(b"\r\n\x01\x00\x08\x00\x03\x00\x00\x00");
    let length = packet.len() as u8;
    (packet[3], packet[4]) = (length, length - 5);
    packet
}

/// Returns an address in Microsoft's notation for cookies.
fn as_cookie(address: SocketAddr) -> String {
    let SocketAddr::V4(address) = address else { panic!("tests listen on 127.0.0.1") };
    format!("{}.{}.0000", u32::from_le_bytes(address.ip().octets()), address.port().swap_bytes())
}

fn ask(address: &str, cookie: &str) -> String {
    let mut client = Client::connect(address);
    client.send(connection_request(cookie));
    String::from_utf8_lossy(&client.read_to_end()).into_owned()
}

const DEFAULTS: &str = "defaults\n timeout client 60s\n timeout connect 60s\n timeout server 60s\nlisten l\n bind @BIND@\n tcp-request \
     inspect-delay 5s\n tcp-request content accept if RDP_COOKIE\n tcp-request content reject\n";

#[test]
fn an_rdp_cookie_names_its_server() {
    let servers = [named("a"), named("b"), named("c")];
    let lines: String = servers.iter().enumerate().map(|(i, at)| format!(" server s{i} {at}\n")).collect();
    for (persist, name) in [("persist rdp-cookie", "msts"), ("persist rdp-cookie(other)", "other")] {
        let text = format!("{DEFAULTS} {persist}\n balance roundrobin\n{lines}");
        let cookies: Vec<String> = [2, 2, 0, 1]
            .iter()
            .map(|server: &usize| format!("Cookie: {name}={}", as_cookie(servers[*server])))
            .chain(["Cookie: msts=1.2.0000".to_owned(), "Cookie: msts=x".to_owned(), "Cookie: mstshash=u".to_owned()])
            .collect();
        let (ours, theirs) =
            both(&text, |address, _| cookies.iter().map(|cookie| ask(address, cookie)).collect::<Vec<_>>());
        assert_eq!(ours[..4], ["c", "c", "a", "b"], "{persist}");
        assert_eq!(ours, theirs, "{persist}");
    }
}

#[test]
fn a_user_goes_where_the_hash_of_the_name_says() {
    let servers = [named("a"), named("b"), named("c"), named("d")];
    let lines: String = servers.iter().enumerate().map(|(i, at)| format!(" server s{i} {at}\n")).collect();
    for balance in ["rdp-cookie", "rdp-cookie(mstshash)", "rdp-cookie(other)"] {
        let text = format!("{DEFAULTS} balance {balance}\n{lines}");
        let users = ["anna", "bert", "carla", "dora", "emil", "fritz", "gerd"];
        let (ours, theirs) =
            both(&text, |address, _| users.map(|user| ask(address, &format!("Cookie: mstshash={user}"))).join(""));
        assert_eq!(ours, theirs, "{balance}");
        let other = ours.bytes().any(|server| server != ours.as_bytes()[0]);
        assert!(other, "{ours}");
    }
}

/// Starts an HTTP server that answers with its name.
fn web(name: &'static str) -> SocketAddr {
    answering(move |_| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()).into_bytes())
}

#[test]
fn the_last_server_is_preferred() {
    let (a, b) = (web("a"), web("b"));
    let talk = |address: &str| {
        let mut first = Client::connect(address);
        let mut second = Client::connect(address);
        let mut seen = String::new();
        for client in [0, 0, 1, 0, 1, 1, 0, 0] {
            let client = if client == 0 { &mut first } else { &mut second };
            seen += &client.get("/").text();
        }
        seen
    };
    for (option, stays) in [("", false), (" option prefer-last-server\n", true)] {
        for balance in ["roundrobin", "leastconn", "random", "first"] {
            let text = format!(
                "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\nlisten l\n bind \
                 @BIND@\n http-reuse never\n balance {balance}\n{option} server a {a}\n server b {b}\n"
            );
            if balance == "random" && !stays {
                continue;
            }
            let (ours, theirs) = both(&text, |address, _| talk(address));
            // With 'random' a client's first server is random; only whether the client stays with it is checked.
            let letters = |seen: &str| match balance {
                "random" => {
                    seen.chars()
                        .zip("00101100".chars())
                        .map(|(s, c)| (c, s))
                        .collect::<std::collections::BTreeSet<_>>()
                        .len()
                        == 2
                }
                _ => ours == theirs,
            };
            assert!(letters(&ours) && letters(&theirs), "{balance}{option}: {ours} {theirs}");
            if stays && balance == "roundrobin" {
                assert_eq!(ours, "aababbaa".replace('x', ""), "{option}");
            }
        }
    }
}

/// `max-keep-alive-queue`: a client that would wait too long for its last server gets another one.
#[test]
fn a_long_queue_ends_the_preference() {
    let (send, held) = std::sync::mpsc::channel();
    let slow = origin(move |mut stream| {
        while let Some(head) = read_head(&mut stream) {
            match String::from_utf8_lossy(&head).contains("/hold") {
                true => send.send(()).expect("the test waits"),
                false => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")),
            }
        }
    });
    let b = web("b");
    for (limit, expected) in [("0", "b"), ("-1", "503"), ("5", "503")] {
        let text = format!(
            "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\n timeout queue 100ms\nlisten \
             l\n bind @BIND@\n http-reuse never\n option prefer-last-server\n max-keep-alive-queue {limit}\n server a {slow} \
             maxconn 1\n server b {b}\n"
        );
        let (ours, theirs) = both(&text, |address, _| {
            let mut client = Client::connect(address);
            assert_eq!(client.get("/").text(), "a");
            let mut other = Client::connect(address);
            assert_eq!(other.get("/").text(), "b");
            // The third client gets server a again, and keeps it busy from here on.
            let mut third = Client::connect(address);
            third.send(b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
            held.recv().expect("the server has it");
            let answer = client.get("/");
            if answer.status == 200 { answer.text() } else { answer.status.to_string() }
        });
        assert_eq!((ours.as_str(), theirs.as_str()), (expected, expected), "{limit}");
    }
}

/// `max-session-srv-conns`: a client's private server connections beyond this number are closed.
#[test]
fn a_client_has_so_many_connections_of_its_own() {
    // The body is the number of the server's connection on which the request arrived.
    let web = || {
        let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        origin(move |mut stream| {
            let own = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            while read_head(&mut stream).is_some() {
                let body = own.to_string();
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        })
    };
    for (limit, used, expected) in [
        ("max-session-srv-conns 0", 2, "00 11"),
        ("max-session-srv-conns 1", 2, "00 01"),
        ("max-session-srv-conns 2", 3, "000 001"),
        ("max-session-srv-conns 3", 3, "000 000"),
        ("", 5, "00000 00000"),
        ("", 6, "000000 000001"),
    ] {
        let talk = |address: &str| {
            let mut client = Client::connect(address);
            let mut round = || -> String { (0..used).map(|at| client.get(&format!("/s{at}")).text()).collect() };
            format!("{} {}", round(), round())
        };
        let text = || {
            let server = |at| format!(" use-server s{at} if {{ path /s{at} }}\n server s{at} {}\n", web());
            let servers: String = (0..used).map(server).collect();
            format!(
                "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\n http-reuse never\n\
                 frontend f\n bind @BIND@\n {limit}\n default_backend b\nbackend b\n{servers}"
            )
        };
        assert_eq!(ours(&text(), |address, _| talk(address)), expected, "{limit}");
        assert_eq!(theirs(&text(), |address, _| talk(address)), expected, "haproxy: {limit}");
    }
}

/// `prio_class` and `prio_offset` return the priority that rules have set for a request.
#[test]
fn a_requests_turn_can_be_asked_for() {
    let text = "defaults\n mode http\n timeout client 60s\nlisten l\n bind @BIND@\n http-request set-var(txn.b) prio_class\n \
                http-request set-priority-class int(-3) if { path /set }\n http-request set-priority-offset int(250) if { path \
                /set }\n http-request return status 200 hdr x-turn \"%[var(txn.b)] %[prio_class] %[prio_offset]\"\n";
    let (ours, theirs) = both(text, |address, _| {
        ["/", "/set"].map(|path| Client::connect(address).get(path).header("x-turn").map(str::to_owned))
    });
    assert_eq!(ours, theirs);
    assert_eq!(ours, [Some("0 0 0".to_owned()), Some("0 -3 250".to_owned())]);
}
