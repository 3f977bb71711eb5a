//! Backends of log messages (`mode log`).

use std::io::Write;
use std::net::TcpStream;

use sluicegate_testkit::wait_for;

use super::{Collector, Runner, Target, exactly, line, ours};

/// A frontend that logs to a backend with these lines.
fn logging_to(backend: &str) -> Runner {
    ours(&format!(
        "global\n nbthread 1\n stats socket PLACE level admin\ndefaults\n mode http\n timeout client 30s\n timeout server \
         30s\n timeout connect 5s\n log-tag gate\nfrontend f\n bind FRONT\n log backend@logs format raw local0\n log-format \
         \"%HU %ST\"\n http-request return status 200\nbackend logs\n mode log\n{backend}"
    ))
}

/// Servers that get datagrams.
struct Servers(Vec<Target>);

impl Servers {
    fn new(count: usize) -> Servers {
        Servers((0..count).map(|_| Target::new()).collect())
    }

    /// Returns their lines, named s0, s1…, with the options of each.
    fn lines(&self, options: &[&str]) -> String {
        let line = |(index, target): (usize, &Target)| {
            let option = options.get(index).copied().unwrap_or("");
            format!(" server s{index} udp@{} {option}\n", target.address())
        };
        self.0.iter().enumerate().map(line).collect()
    }

    /// Asserts that the next message of a server is this one.
    #[track_caller]
    fn has(&self, server: usize, path: &str) {
        assert_eq!(self.0[server].receive(), format!("{path} 200\n"), "server {server}");
    }
}

#[test]
fn messages_are_shared_by_weight() {
    let servers = Servers::new(2);
    let runner = logging_to(&servers.lines(&["weight 2", "weight 1"]));
    runner.get(&["/0", "/1", "/2", "/3", "/4", "/5"]);
    // The order is that of 'balance roundrobin' of requests.
    for (server, path) in [(0, "/0"), (0, "/1"), (1, "/2"), (0, "/3"), (0, "/4"), (1, "/5")] {
        servers.has(server, path);
    }
    assert!(runner.ask("show stat logs 4 -1").lines().any(|line| line.starts_with("logs,s0,")), "it has statistics");
    assert_eq!(
        runner.ask("add server logs/x 127.0.0.1:1").trim_end(),
        "Dynamic servers cannot be used with log backends."
    );
}

/// `set server … addr` moves a server, and back.
#[test]
fn a_server_moves() {
    let servers = Servers::new(2);
    let runner = logging_to(&servers.lines(&["", "weight 0"]));
    for (path, to) in [("/a", 0), ("/b", 1), ("/c", 0)] {
        let address = servers.0[to].address();
        let (ip, port) = address.rsplit_once(':').expect("an address");
        runner.ask(&format!("set server logs/s0 addr {ip} port {port}"));
        runner.get(&[path]);
        servers.has(to, path);
    }
}

/// A server that is reached by a stream keeps its connection, as in HAProxy; the next one is to the new address.
#[test]
fn a_server_of_a_stream_moves_with_its_next_connection() {
    let collectors = [Collector::new(), Collector::new()];
    let runner = logging_to(&format!(" server s0 {}\n", collectors[0].address()));
    let mut first = collectors[0].accept();
    let address = collectors[1].address();
    let (ip, port) = address.rsplit_once(':').expect("an address");
    runner.ask(&format!("set server logs/s0 addr {ip} port {port}"));
    runner.get(&["/a"]);
    assert_eq!(line(&mut first), "/a 200\n");
    drop(first);
    let mut second = collectors[1].accept();
    runner.get(&["/b"]);
    assert_eq!(line(&mut second), "/b 200\n");
}

#[test]
fn a_random_server_is_one_of_those_with_weight() {
    let servers = Servers::new(2);
    let runner = logging_to(&format!(" balance random\n{}", servers.lines(&["weight 0", "weight 1"])));
    runner.get(&["/0", "/1", "/2"]);
    ["/0", "/1", "/2"].iter().for_each(|path| servers.has(1, path));
}

#[test]
fn a_sticky_server_stays_until_it_is_down() {
    let servers = Servers::new(4);
    let runner = logging_to(&format!(" balance sticky\n{}", servers.lines(&["", "", "", "backup"])));
    let steps: [(&[&str], usize); 6] = [
        (&[], 0),
        (&["disable server logs/s0"], 1),
        (&["disable server logs/s1", "enable server logs/s0"], 2),
        (&["enable server logs/s1"], 2),
        (&["disable server logs/s0", "disable server logs/s1", "disable server logs/s2"], 3),
        (&["enable server logs/s2"], 2),
    ];
    for (number, (commands, server)) in steps.into_iter().enumerate() {
        commands.iter().for_each(|command| assert_eq!(runner.ask(command).trim(), ""));
        let path = format!("/{number}");
        runner.get(&[&path]);
        servers.has(server, &path);
    }
    // Without a server a message is dropped, and counted.
    for command in ["disable server logs/s2", "disable server logs/s3"] {
        runner.ask(command);
    }
    runner.get(&["/lost"]);
    wait_for("the count", || runner.ask("show info").contains("\nDroppedLogs: 1\n").then_some(()));
    runner.ask("enable server logs/s3");
    runner.get(&["/kept"]);
    servers.has(3, "/kept");
}

#[test]
fn a_part_of_the_message_chooses_its_server() {
    let servers = Servers::new(2);
    // The key is the number behind the slash, which is the hash.
    let runner = logging_to(&format!(
        " balance log-hash 'field(1, ),field(2,/)'\n hash-type map-based none\n{}",
        servers.lines(&[])
    ));
    runner.get(&["/0", "/1", "/2", "/3", "/5"]);
    for (server, path) in [(0, "/0"), (1, "/1"), (0, "/2"), (1, "/3"), (1, "/5")] {
        servers.has(server, path);
    }
    // A function of 'hash-type' keeps those of one key together.
    let servers = Servers::new(2);
    let runner =
        logging_to(&format!(" balance log-hash field(2,/)\n hash-type map-based crc32\n{}", servers.lines(&[])));
    runner.get(&["/a/1", "/a/2", "/a/3"]);
    let chosen = usize::from(crc32(b"a") % 2 == 1);
    ["/a/1", "/a/2", "/a/3"].iter().for_each(|path| servers.has(chosen, path));
}

/// The CRC of zlib.
fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0u32, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

#[test]
fn streams_have_rings_of_their_size() {
    let collector = Collector::new();
    let runner = logging_to(&format!(" server s {} log-proto octet-count log-bufsize 200\n", collector.address()));
    assert!(runner.ask("show events").contains("logs/s"), "a ring for each server");
    runner.get(&["/0", "/1"]);
    let mut stream = collector.accept();
    assert_eq!(exactly(&mut stream, 12), "6 /0 2006 /1 200"[..12]);
    assert_eq!(exactly(&mut stream, 4), " 200");
    // What does not fit is lost, and said.
    runner.get(&[&format!("/{}", "x".repeat(500)), "/3"]);
    assert_eq!(exactly(&mut stream, 26), "15 1 event dropped6 /3 200");
    let whole = Collector::new();
    let runner = logging_to(&format!(" server s {}\n", whole.address()));
    let path = format!("/{}", "x".repeat(500));
    runner.get(&[&path]);
    assert_eq!(line(&mut whole.accept()), format!("{path} 200\n"));
}

#[test]
fn forwarded_messages_go_to_backends() {
    let servers = Servers::new(1);
    let runner = ours(&format!(
        "global\n nbthread 1\n stats socket PLACE level admin\nlog-forward f\n bind FRONT\n log backend@logs local0\nbackend \
         logs\n mode log\n{}",
        servers.lines(&[])
    ));
    let mut client = TcpStream::connect(runner.front.address()).expect("listening");
    client.write_all(b"<13>Oct 11 22:14:15 host app[1]: text\n").expect("writable");
    assert_eq!(servers.0[0].receive(), "<13>Oct 11 22:14:15 host app[1]: text\n");
}
