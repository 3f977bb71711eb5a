//! Servers that are created from SRV records.

use std::net::TcpListener;
use std::time::Instant;

use sluicegate_testkit::{PATIENCE, wait_for};

use super::nameserver::{Record, SRV, address, answer_with, service};
use super::{STEADY, TIMES, both, servers};

const NAME: &str = "_http._tcp.example";

/// Returns the servers' addresses, ports and weights, sorted, since each program may assign them to other servers.
fn found(place: &std::path::Path, backend: &str) -> Vec<String> {
    let mut lines: Vec<String> = servers(place, backend)
        .into_iter()
        .map(|line| line.split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap_or_default())
        .collect();
    lines.sort();
    lines
}

fn zone(services: &[(u16, u16, &str, &str)]) -> Vec<Record> {
    services
        .iter()
        .flat_map(|(weight, port, target, ip)| [service(NAME, *weight, *port, target), address(target, ip)])
        .collect()
}

#[test]
fn services_become_servers() {
    let backends = format!(
        "backend t\n server-template s 3 {NAME} resolvers dns resolve-prefer ipv4 init-addr none\n\
         backend same\n server-template s 2 {NAME} resolvers dns resolve-prefer ipv4 resolve-opts ignore-weight,\
         allow-dup-ip\n"
    );
    let mut sides = both(STEADY, &backends, |_| ());
    for side in &mut sides {
        let gone = "MAINT (resolution) 1 ";
        side.wait_for_servers("t", &[1, 2, 3].map(|n| format!("s{n} {gone}")).each_ref().map(String::as_str));
        side.names.know(zone(&[(10, 8001, "a.example", "127.0.0.2"), (600, 8002, "b.example", "127.0.0.3")]));
        let wait = |backend: &str, expected: &[&str]| {
            let mut last = Vec::new();
            let begun = Instant::now();
            wait_for("servers", || {
                last = found(&side.place, backend);
                (last == expected || begun.elapsed() > PATIENCE / 2).then_some(())
            });
            assert_eq!(last, expected);
        };
        wait("t", &[gone, "no check 1 127.0.0.2:8001", "no check 3 127.0.0.3:8002"]);
        wait("same", &["no check 1 127.0.0.2:8001", "no check 1 127.0.0.3:8002"]);
        // One record gets another weight, one another address, and a third record is added.
        side.names.know(zone(&[
            (10, 8001, "a.example", "127.0.0.4"),
            (1000, 8002, "b.example", "127.0.0.3"),
            (1, 8003, "c.example", "127.0.0.5"),
        ]));
        wait("t", &["no check 1 127.0.0.4:8001", "no check 1 127.0.0.5:8003", "no check 4 127.0.0.3:8002"]);
        // The server of a removed record goes down and is free for the next record.
        side.names.know(zone(&[(1000, 8002, "b.example", "127.0.0.3")]));
        wait("t", &[gone, gone, "no check 4 127.0.0.3:8002"]);
        side.names.know(zone(&[(1000, 8002, "b.example", "127.0.0.3"), (1, 9001, "d.example", "127.0.0.6")]));
        wait("t", &[gone, "no check 1 127.0.0.6:9001", "no check 4 127.0.0.3:8002"]);
        let state = side.ask("show servers state t");
        let line = state.lines().find(|line| line.contains("127.0.0.6")).expect("its server");
        assert_eq!(line.split(' ').skip(17).take(3).collect::<Vec<_>>(), ["d.example", "9001", NAME]);
        // The name is one that the line does not have.
        assert_eq!(line.split(' ').nth(6), Some("64"));
        side.names.refuse(super::NX);
        wait("t", &[gone, gone, "MAINT (resolution) 4 "]);
        let resolves = |line: &String| line.ends_with(" ('a.example') is UP/READY (resolves again).");
        wait_for("the name of a target", || side.said().iter().any(resolves).then_some(()));
    }
    let [haproxy, own] = &mut sides;
    let all = |lines: Vec<String>| {
        let mut kinds: Vec<String> = lines
            .into_iter()
            .filter(|line| line.contains(": IP changed from") && line.starts_with("t/"))
            .map(|line| line.split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap_or_default())
            .collect();
        kinds.sort();
        kinds.dedup();
        kinds
    };
    for side in [own, haproxy] {
        wait_for("its first address to be told", || {
            let said = all(side.said());
            said.iter().any(|line| line.starts_with("IP changed from '(none)' to '127.0.0.2' by ")).then_some(())
        });
    }
}

/// The port of a check is that of the service; the line has none.
#[test]
fn services_are_checked() {
    let listener = TcpListener::bind("127.0.0.2:0").expect("bindable");
    let port = listener.local_addr().expect("bound").port();
    let backends = format!(
        "backend t\n server-template s 1 {NAME} resolvers dns resolve-prefer ipv4 init-addr none check inter 100ms\n"
    );
    let sides = both(STEADY, &backends, |names| names.know(zone(&[(1, port, "a.example", "127.0.0.2")])));
    for side in &sides {
        let expected = format!("UP 1 127.0.0.2:{port}");
        wait_for("a server that is up", || (found(&side.place, "t") == [&*expected]).then_some(()));
    }
}

#[test]
fn addresses_come_with_services() {
    let backends = format!("backend t\n server-template s 2 {NAME} resolvers dns resolve-prefer ipv4\n");
    let sides = both(TIMES, &backends, |names| {
        names.say(|question| {
            assert_eq!(question.kind, SRV, "nothing else needs to be asked");
            let services = [service(NAME, 1, 81, "a.example"), service(NAME, 1, 82, "b.example")];
            let known = [address("a.example", "127.0.0.2"), address("b.example", "127.0.0.3")];
            vec![answer_with(question, 0x8180, &services, &known)]
        });
    });
    for side in &sides {
        wait_for("servers", || {
            (found(&side.place, "t") == ["no check 1 127.0.0.2:81", "no check 1 127.0.0.3:82"]).then_some(())
        });
    }
}

/// Servers keep the addresses and ports of a state file until an answer with SRV records changes them.
#[test]
fn state_files_bring_services_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("states");
    let line = |server: &str, rest: &str| format!("3 t 1 {server} {rest} 0 0 - - 0\n");
    let lines = [
        line("s1", &format!("127.0.0.2 2 0 3 1 1 1 0 2 0 0 0 0 a.example 8001 {NAME}")),
        line("s2", &format!("127.0.0.3 2 0 1 1 1 1 0 2 0 0 0 0 b.example 8002 {NAME}")),
        line("s3", &format!("- 0 32 1 1 1 1 0 0 0 0 0 0 - 0 {NAME}")),
    ];
    std::fs::write(&file, format!("1\n# names\n{}", lines.concat())).expect("writable");
    let backends = format!(
        "backend t\n load-server-state-from-file global\n server-template s 3 {NAME} resolvers dns resolve-prefer ipv4\n\
         backend other\n load-server-state-from-file global\n server-template s 1 _other.example resolvers dns\n\
         global\n server-state-file {}\n",
        file.display()
    );
    // The name server does not answer at first.
    let settings = "accepted_payload_size 8192\n resolve_retries 2\n timeout resolve 50ms\n timeout retry 50ms\n \
                    hold timeout 1h\n hold other 1h\n";
    let mut sides = both(settings, &backends, |_| ());
    let mut named = Vec::new();
    for side in &mut sides {
        side.wait_for_servers(
            "t",
            &["s1 no check 3 127.0.0.2:8001", "s2 no check 1 127.0.0.3:8002", "s3 MAINT (resolution) 1 "],
        );
        let state = side.ask("show servers state t");
        let names = state.lines().skip(2).filter_map(|line| line.split(' ').nth(17));
        named.push(names.collect::<Vec<_>>().join(" "));
        // Each server keeps its record; a new record goes to a server that has none.
        side.names.know(zone(&[
            (10, 8003, "c.example", "127.0.0.5"),
            (10, 8002, "b.example", "127.0.0.3"),
            (10, 8001, "a.example", "127.0.0.4"),
        ]));
        side.wait_for_servers(
            "t",
            &["s1 no check 1 127.0.0.4:8001", "s2 no check 1 127.0.0.3:8002", "s3 no check 1 127.0.0.5:8003"],
        );
        side.names.know(zone(&[(10, 8002, "b.example", "127.0.0.3"), (10, 8003, "c.example", "127.0.0.5")]));
        side.wait_for_servers(
            "t",
            &["s1 MAINT (resolution) 1 ", "s2 no check 1 127.0.0.3:8002", "s3 no check 1 127.0.0.5:8003"],
        );
    }
    assert_eq!(named, ["a.example b.example -"; 2]);
}
