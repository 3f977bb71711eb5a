//! `server-template` and `init-addr`, compared with Debian's haproxy by the lines of `show stat`.

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate};

use crate::start;

fn file(gate: &Listening, place: &str) -> String {
    format!(
        "global\n stats socket {place} level admin\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n \
         timeout connect 1s\nfrontend f\n bind {}\n default_backend late\nbackend t\n \
         server-template web 3 127.0.0.1:80 weight 7\n server-template api 10-12 10.0.0.1:8080 id 50\n \
         server none none.invalid:80 init-addr none\n server fixed none.invalid:80 init-addr libc,10.0.0.9\n \
         server last localhost:81 init-addr last,none\n server tail none.invalid:80 init-addr last,libc,none\n\
         backend late\n server-template s 1 none.invalid:80 init-addr none\n",
        gate.word()
    )
}

/// Returns the name, state, weight, number and address of each server.
fn servers(place: &std::path::Path, backend: &str) -> Vec<String> {
    let text = Sluicegate::stats(place, &format!("show stat {backend} 4 -1"));
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            [1, 17, 18, 28, 73].map(|index| cells[index]).join(" ")
        })
        .collect()
}

#[test]
fn templates_and_first_addresses_are_haproxys() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("stats");
    let gates = [Listening::new(), Listening::new()];
    let mut haproxy = Haproxy::start(&file(&gates[0], &place.display().to_string()), &[&gates[0]]);
    let mut server = start(&file(&gates[1], "@DIR@/stats"), &[&gates[1]]);
    let own = server.directory().join("stats");
    let found = servers(&own, "t");
    assert_eq!(found, servers(&place, "t"));
    assert_eq!(found[..2], ["web1 no check 7 1 127.0.0.1:80", "web2 no check 7 2 127.0.0.1:80"]);
    assert_eq!(found[3..5], ["api10 no check 1 50 10.0.0.1:8080", "api11 no check 1 5 10.0.0.1:8080"]);
    assert_eq!(found[6..8], ["none MAINT (resolution) 1 7 ", "fixed no check 1 8 10.0.0.9:80"]);
    let admin = |place: &std::path::Path| -> Vec<String> {
        let text = Sluicegate::stats(place, "show servers state t");
        text.lines().skip(2).filter(|line| !line.is_empty()).map(|l| l.split(' ').nth(6).unwrap().to_owned()).collect()
    };
    assert_eq!(admin(&own), admin(&place));
    // Only an address brings such a server into service.
    for line in ["set server t/tail state ready", "set server t/none state maint"] {
        for place in [&place, &own] {
            assert_eq!(Sluicegate::stats(place, line).trim(), "");
        }
        assert_eq!(servers(&own, "t"), servers(&place, "t"));
        assert_eq!(admin(&own), admin(&place));
    }
    // The server is in maintenance for two reasons, one of which ends.
    for (place, program) in [(&place, &mut haproxy.program), (&own, &mut server.program)] {
        Sluicegate::stats(place, "set server t/none addr 127.0.0.1");
        program.wait_for_output("Server t/none ('none.invalid') resolves again but remains in maintenance.");
        Sluicegate::stats(place, "set server t/none state ready");
        program.wait_for_output("Server t/none is UP/READY (leaving forced maintenance).");
        Sluicegate::stats(place, "set server t/tail addr 127.0.0.1");
        program.wait_for_output("Server t/tail ('none.invalid') is UP/READY (resolves again).");
    }
    assert_eq!(admin(&own), admin(&place));
}

#[test]
fn a_server_without_an_address_gets_one() {
    let (gate, target) = (Listening::new(), Listening::new());
    let server = start(&file(&gate, "@DIR@/stats"), &[&gate]);
    let own = server.directory().join("stats");
    assert_eq!(servers(&own, "late"), ["s1 MAINT (resolution) 1 1 "]);
    assert_eq!(Client::connect(&gate.address()).get("/").status, 503);
    let port = target.port();
    let said = Sluicegate::stats(&own, &format!("set server late/s1 addr 127.0.0.1 port {port}x"));
    assert!(said.starts_with("IP changed from '' to '127.0.0.1', port changed from '80' to"), "{said}");
    assert_eq!(servers(&own, "late"), [format!("s1 no check 1 1 127.0.0.1:{port}")]);
    let mut client = Client::connect(&gate.address());
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    let (mut stream, _) = target.listener.accept().expect("a connection");
    std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").expect("it reads");
    assert_eq!(client.read_response().status, 200);
}
