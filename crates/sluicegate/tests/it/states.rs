//! Fetches of the state of proxies and servers, while that changes: Debian's haproxy and Sluicegate return the same
//! numbers after the same steps.

use std::path::Path;

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate};

use super::start;

const ASKED: [&str; 13] = [
    "nbsrv(away)",
    "srv_is_up(away/b)",
    "srv_conn(away/a)",
    "srv_conn(away/b)",
    "srv_conn_free(away/a)",
    "srv_weight(away/b)",
    "srv_uweight(away/b)",
    "queue(away)",
    "avg_queue(away)",
    "be_conn(away)",
    "be_conn_free(away)",
    "connslots(away)",
    "fe_conn(www)",
];

fn configuration(stats: &str, gate: &Listening, [a, b]: [&Listening; 2]) -> String {
    let asked: Vec<String> = ASKED.iter().map(|fetch| format!("{fetch}=%[{fetch}]")).collect();
    format!(
        "global\n nbthread 1\n stats socket {stats} level admin\ndefaults\n mode http\n timeout client 60s\n timeout \
         server 60s\n timeout connect 60s\n timeout queue 60s\n option abortonclose\nfrontend www\n bind {}\n http-request return status 200 \
         content-type text/plain lf-string \"{}\" if {{ path /state }}\n default_backend away\nbackend away\n \
         server a {} maxconn 1 maxqueue 4 weight 10\n server b {} maxconn 1 maxqueue 4 weight 10\n",
        gate.word(),
        asked.join(" "),
        a.address(),
        b.address()
    )
}

/// One of the two programs with its clients.
struct Side {
    address: String,
    stats: std::path::PathBuf,
    waiting: Vec<Client>,
}

impl Side {
    fn state(&self) -> String {
        Client::connect(&self.address).get("/state").text()
    }

    /// A request that no server answers.
    fn ask(&mut self) {
        let mut client = Client::connect(&self.address);
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        self.waiting.push(client);
    }

    fn tell(&self, command: &str) {
        assert_eq!(Sluicegate::stats(Path::new(&self.stats), command).trim(), "", "{command}");
    }
}

#[test]
fn states_are_haproxys_while_they_change() {
    // Connections complete in the backlogs, and no request is ever answered.
    let deaf = [Listening::new(), Listening::new()];
    let gates = [Listening::new(), Listening::new()];
    let directory = tempfile::tempdir().expect("a directory");
    let stats = directory.path().join("stats");
    let theirs = configuration(&stats.display().to_string(), &gates[0], deaf.each_ref());
    let _haproxy = Haproxy::start(&theirs, &[&gates[0]]);
    let server = start(&configuration("@DIR@/stats", &gates[1], deaf.each_ref()), &[&gates[1]]);
    let own = server.directory().join("stats");
    let mut sides = [(&gates[0], stats), (&gates[1], own)].map(|(gate, stats)| Side {
        address: gate.address(),
        stats,
        waiting: Vec::new(),
    });

    let mut seen: Vec<String> = Vec::new();
    type Step = (&'static str, fn(&mut Side));
    let steps: [Step; 9] = [
        ("at rest", |_| {}),
        ("a request", Side::ask),
        ("both servers full", Side::ask),
        ("one that waits", Side::ask),
        ("two that wait", Side::ask),
        ("another weight", |side| side.tell("set weight away/b 3")),
        ("a server in maintenance", |side| side.tell("disable server away/b")),
        ("it is back", |side| side.tell("enable server away/b")),
        ("those who wait have left", |side| side.waiting.truncate(2)),
    ];
    for (step, act) in steps {
        sides.iter_mut().for_each(act);
        let mut last = [String::new(), String::new()];
        let deadline = std::time::Instant::now() + sluicegate_testkit::PATIENCE;
        // A step reaches the programs at different times; only their final states are compared.
        while last[0].is_empty() || last[0] != last[1] || seen.last() == Some(&last[1]) {
            assert!(std::time::Instant::now() < deadline, "{step}: haproxy's, then ours:\n{}\n{}", last[0], last[1]);
            std::thread::sleep(std::time::Duration::from_millis(5));
            last = sides.each_ref().map(Side::state);
        }
        seen.push(last[1].clone());
    }
    // Each fetch has had two values at least.
    for fetch in ASKED {
        let value = |state: &String| state.split(' ').find_map(|word| word.strip_prefix(fetch)).map(str::to_owned);
        assert!(
            seen.iter().any(|state| value(state) != value(&seen[0])),
            "{fetch} never changed:\n{}",
            seen.join("\n")
        );
    }
}

/// Returns how many of twelve requests each server gets.
fn shares(gate: &Listening) -> [usize; 2] {
    let mut counts = [0; 2];
    for _ in 0..12 {
        counts[usize::from(Client::connect(&gate.address()).get("/").text() == "b")] += 1;
    }
    counts
}

#[test]
fn weights_set_over_the_socket_turn_the_balance_as_haproxys() {
    let gates = [Listening::new(), Listening::new()];
    let servers = [Listening::new(), Listening::new()];
    let origin = start(
        &["a", "b"]
            .iter()
            .zip(&servers)
            .map(|(name, socket)| {
                format!(
                    "frontend {name}\n mode http\n timeout client 60s\n bind {}\n http-request return status 200 \
                     content-type text/plain string {name}\n",
                    socket.word()
                )
            })
            .collect::<String>(),
        &servers.each_ref(),
    );
    let directory = tempfile::tempdir().expect("a directory");
    let configuration = |stats: &str, gate: &Listening| {
        format!(
            "global\n nbthread 1\n stats socket {stats} level admin\ndefaults\n mode http\n timeout client 60s\n timeout \
             server 5s\n timeout connect 60s\nfrontend www\n bind {}\n default_backend pair\nbackend pair\n balance \
             roundrobin\n server a {} weight 10\n server b {} weight 10\n",
            gate.word(),
            servers[0].address(),
            servers[1].address()
        )
    };
    let theirs = directory.path().join("stats");
    let _haproxy = Haproxy::start(&configuration(theirs.to_str().expect("UTF-8"), &gates[0]), &[&gates[0]]);
    let server = start(&configuration("@DIR@/stats", &gates[1]), &[&gates[1]]);
    let sockets = [theirs, server.directory().join("stats")];
    for (command, expected) in [
        ("show version", [6, 6]),
        ("set weight pair/b 30", [3, 9]),
        ("set server pair/b weight 200%", [4, 8]),
        ("set weight pair/b 0", [12, 0]),
        ("set weight pair/b 50%", [8, 4]),
    ] {
        for (gate, socket) in gates.iter().zip(&sockets) {
            Sluicegate::stats(socket, command);
            // The first round depends on the position in the rotation before the change, so it is not compared.
            shares(gate);
            assert_eq!(shares(gate), expected, "{command}: {}", gate.address());
        }
    }
    drop(origin);
}
