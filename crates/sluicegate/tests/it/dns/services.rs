//! Servers that are made of SRV records.

use sluicegate_testkit::wait_for;

use super::nameserver::{Record, SRV, address, answer_with, service};
use super::{TIMES, both, servers};

const NAME: &str = "_http._tcp.example";

/// The servers' addresses, ports and weights, in order; which server has which is the program's affair.
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
    let mut sides = both(TIMES, &backends, |_| ());
    for side in &mut sides {
        let gone = "MAINT (resolution) 1 ";
        side.wait_for_servers("t", &[1, 2, 3].map(|n| format!("s{n} {gone}")).each_ref().map(String::as_str));
        side.names.know(zone(&[(10, 8001, "a.example", "127.0.0.2"), (600, 8002, "b.example", "127.0.0.3")]));
        let wait = |backend: &str, expected: &[&str]| {
            let mut last = Vec::new();
            let mut polls = 0;
            wait_for("servers", || {
                last = found(&side.place, backend);
                polls += 1;
                (last == expected || polls == 2_000).then_some(())
            });
            assert_eq!(last, expected);
        };
        wait("t", &[gone, "no check 1 127.0.0.2:8001", "no check 3 127.0.0.3:8002"]);
        wait("same", &["no check 1 127.0.0.2:8001", "no check 1 127.0.0.3:8002"]);
        // Another weight, another address, and one more.
        side.names.know(zone(&[
            (10, 8001, "a.example", "127.0.0.4"),
            (1000, 8002, "b.example", "127.0.0.3"),
            (1, 8003, "c.example", "127.0.0.5"),
        ]));
        wait("t", &["no check 1 127.0.0.4:8001", "no check 1 127.0.0.5:8003", "no check 4 127.0.0.3:8002"]);
        // What is no service any more is given up, and its server is free for the next one.
        side.names.know(zone(&[(1000, 8002, "b.example", "127.0.0.3")]));
        wait("t", &[gone, gone, "no check 4 127.0.0.3:8002"]);
        side.names.know(zone(&[(1000, 8002, "b.example", "127.0.0.3"), (1, 9001, "d.example", "127.0.0.6")]));
        wait("t", &[gone, "no check 1 127.0.0.6:9001", "no check 4 127.0.0.3:8002"]);
        let state = side.ask("show servers state t");
        let line = state.lines().find(|line| line.contains("127.0.0.6")).expect("its server");
        assert_eq!(line.split(' ').skip(17).take(3).collect::<Vec<_>>(), ["d.example", "9001", NAME]);
        side.names.refuse(super::NX);
        wait("t", &[gone, gone, "MAINT (resolution) 4 "]);
    }
    let [haproxy, own] = &mut sides;
    let all = |lines: Vec<String>| {
        let mut kinds: Vec<String> = lines
            .into_iter()
            .filter(|line| line.contains("changed its IP") && line.starts_with("t/"))
            .map(|line| line.split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap_or_default())
            .collect();
        kinds.sort();
        kinds.dedup();
        kinds
    };
    let (own, haproxy) = (all(own.said()), all(haproxy.said()));
    assert!(own.iter().any(|line| line.starts_with("changed its IP from (none) to 127.0.0.2 by ")), "{own:?}");
    assert!(haproxy.iter().any(|line| line.starts_with("changed its IP from (none) to 127.0.0.2 by ")), "{haproxy:?}");
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
