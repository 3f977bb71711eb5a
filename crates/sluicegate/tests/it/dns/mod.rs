//! Names that are resolved at run time: `resolvers`, servers that follow names and rules that resolve them, compared
//! with Debian's haproxy. Each program has a name server of its own, with the same answers.

mod lies;
mod nameserver;
mod rules;
mod services;

pub(crate) use lies::udp_ports;
pub(crate) use nameserver::{NX, Nameserver, address as address_record, answer as dns_answer, read as dns_question};

use std::path::{Path, PathBuf};
use std::time::Instant;

use sluicegate_testkit::{Haproxy, Listening, PATIENCE, Program, Sluicegate, wait_for};

use self::nameserver::{A, AAAA, REFUSED, Record, address, answer};
use crate::start;

/// One of the two programs with its name server.
struct Side {
    /// Dropped before its name server, whose port another process may use afterwards.
    program: Running,
    names: Nameserver,
    place: PathBuf,
    gate: Listening,
    _directory: Option<tempfile::TempDir>,
}

enum Running {
    Haproxy(Haproxy),
    Own(Sluicegate),
}

impl Side {
    fn program(&mut self) -> &mut Program {
        match &mut self.program {
            Running::Haproxy(haproxy) => &mut haproxy.program,
            Running::Own(own) => &mut own.program,
        }
    }

    fn ask(&self, command: &str) -> String {
        Sluicegate::stats(&self.place, command)
    }

    /// Waits until the servers of a backend are as expected: name, state, weight and address of each.
    #[track_caller]
    fn wait_for_servers(&self, backend: &str, expected: &[&str]) {
        let mut found = Vec::new();
        let begun = Instant::now();
        wait_for("servers", || {
            found = servers(&self.place, backend);
            (found == expected || begun.elapsed() > PATIENCE / 2).then_some(())
        });
        assert_eq!(found, expected);
    }

    /// Returns the messages about servers, without process numbers, in the words of 3.2.
    fn said(&mut self) -> Vec<String> {
        let output = self.program().output();
        let lines = output.lines().filter(|line| line.starts_with("[WARNING]") || line.starts_with("[ALERT]"));
        let about = lines.filter_map(|line| line.split_once(") : ")).map(|(_, said)| said.to_owned());
        about.filter(|line| !line.starts_with("config")).map(in_newer_words).collect()
    }
}

/// Returns a message of 2.6 about a changed address as 3.2 has it; any other as it is.
fn in_newer_words(line: String) -> String {
    let Some((server, change)) = line.split_once(" changed its IP from ") else { return line };
    let Some((from, (to, by))) = change.split_once(" to ").and_then(|(a, b)| Some((a, b.split_once(" by ")?))) else {
        return line;
    };
    format!("{server}: IP changed from '{from}' to '{to}' by '{}'.", by.trim_end_matches('.'))
}

fn servers(place: &Path, backend: &str) -> Vec<String> {
    let text = Sluicegate::stats(place, &format!("show stat {backend} 4 -1"));
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let cells = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        [1, 17, 18, 73].map(|index| cells[index]).join(" ")
    };
    lines.map(cells).collect()
}

const TIMES: &str = "accepted_payload_size 8192\n resolve_retries 2\n timeout resolve 50ms\n timeout retry 50ms\n \
                     hold nx 100ms\n hold refused 100ms\n hold timeout 100ms\n hold other 100ms\n hold valid 100ms\n";

/// With these settings, a name server that is silent for a few seconds changes nothing; errors take effect at once.
const STEADY: &str = "accepted_payload_size 8192\n resolve_retries 2\n timeout resolve 50ms\n timeout retry 2s\n \
                      hold nx 100ms\n hold refused 100ms\n hold timeout 100ms\n hold other 100ms\n hold valid 100ms\n";

/// Starts both programs with a section `dns` of these settings and a frontend; `rest` begins with the frontend's rules.
fn both(settings: &str, rest: &str, before: impl Fn(&Nameserver)) -> [Side; 2] {
    let gates = [(); 2].map(|()| Listening::new());
    let text = |names: &Nameserver, place: &str, gate: &Listening| {
        format!(
            "global\n stats socket {place} level admin\nresolvers dns\n nameserver one {}\n {settings}\ndefaults\n \
             mode http\n timeout client 60s\n timeout server 60s\n timeout connect 1s\nfrontend gate\n bind {}\n\
             {rest}",
            names.address,
            gate.word()
        )
    };
    let [one, other] = [(); 2].map(|()| Nameserver::start());
    before(&one);
    before(&other);
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("stats");
    let haproxy = Haproxy::start(&text(&one, &place.display().to_string(), &gates[0]), &[&gates[0]]);
    let own = start(&text(&other, "@DIR@/stats", &gates[1]), &[&gates[1]]);
    let own_place = own.directory().join("stats");
    let [first, second] = gates;
    let (haproxy, own) = (Running::Haproxy(haproxy), Running::Own(own));
    [
        Side { names: one, place, gate: first, program: haproxy, _directory: Some(directory) },
        Side { names: other, place: own_place, gate: second, program: own, _directory: None },
    ]
}

#[test]
fn a_server_follows_its_name() {
    let backend = "backend t\n server s web.example:80 resolvers dns resolve-prefer ipv4 init-addr none\n";
    let mut sides = both(STEADY, backend, |_| ());
    let follow = |side: &Side| {
        side.wait_for_servers("t", &["s MAINT (resolution) 1 "]);
        let know = |ip: &str| side.names.know(vec![address("web.example", ip)]);
        know("127.0.0.2");
        side.wait_for_servers("t", &["s no check 1 127.0.0.2:80"]);
        know("127.0.0.3");
        side.wait_for_servers("t", &["s no check 1 127.0.0.3:80"]);
        let gone = || side.wait_for_servers("t", &["s MAINT (resolution) 1 "]);
        for code in [NX, REFUSED, 2] {
            side.names.refuse(code);
            gone();
            know("127.0.0.3");
            side.wait_for_servers("t", &["s no check 1 127.0.0.3:80"]);
        }
        side.names.say(|_| Vec::new());
        gone();
        // The name has addresses of the other family only.
        know("::1");
        side.wait_for_servers("t", &["s no check 1 [::1]:80"]);
        // A name without addresses counts as not existing.
        side.names.say(|question| vec![answer(question, 0, &[])]);
        gone();
    };
    // Both sides at once, because it takes time to detect silence.
    std::thread::scope(|scope| {
        for side in &sides {
            scope.spawn(|| follow(side));
        }
    });
    let [haproxy, own] = &mut sides;
    // The messages about the last state arrive a little later.
    let last = "backend 't' has no server available!";
    let all = |side: &mut Side| {
        wait_for("the last line", || {
            Some(side.said()).filter(|said| said.iter().filter(|line| *line == last).count() == 5)
        })
    };
    let said = all(own);
    assert_eq!(said, all(haproxy));
    assert_eq!(said[0], "t/s: IP changed from '(none)' to '127.0.0.2' by 'dns/one'.");
    assert!(said.iter().any(|line| line == "Server t/s administratively READY thanks to valid DNS answer."));
    for reason in ["DNS NX status", "DNS refused status", "unspecified DNS error", "DNS timeout status"] {
        let line = format!("is going DOWN for maintenance ({reason})");
        assert!(said.iter().any(|said| said.contains(&line)), "{reason}: {said:?}");
    }
}

#[test]
fn a_server_is_told_to_follow_another_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("states");
    // One name is set by a command, one by the `server` line.
    let line = |server: &str, admin: u32| {
        format!("3 kept 1 {server} - 2 {admin} 1 1 1 1 0 2 0 0 0 0 other.example 80 - 0 0 - - 0\n")
    };
    std::fs::write(&file, format!("1\n# names\n{}{}", line("told", 64), line("plain", 0))).expect("writable");
    let follows = "resolvers dns resolve-prefer ipv4 init-addr none";
    let backends = format!(
        "backend t\n server s web.example:80 {follows}\n server ip 127.0.0.9:80 {follows}\n \
         server alone 127.0.0.8:80\n server srv _http._tcp.example {follows}\n\
         backend kept\n load-server-state-from-file global\n server told web.example:80 {follows}\n \
         server plain web.example:80 {follows} resolve-opts allow-dup-ip\n\
         global\n server-state-file {}\n",
        file.display()
    );
    let zone = || vec![address("web.example", "127.0.0.2"), address("other.example", "127.0.0.3")];
    let mut sides = both(STEADY, &backends, |names| names.know(zone()));
    let gone = "srv MAINT (resolution) 1 ";
    let mut answers = Vec::new();
    for side in &mut sides {
        let (ip, alone) = ("ip no check 1 127.0.0.9:80", "alone no check 1 127.0.0.8:80");
        side.wait_for_servers("t", &["s no check 1 127.0.0.2:80", ip, alone, gone]);
        side.wait_for_servers("kept", &["told no check 1 127.0.0.3:80", "plain no check 1 127.0.0.2:80"]);
        let lines = [
            "set server t/s fqdn",
            "set server t/alone fqdn web.example",
            "set server t/srv fqdn web.example",
            "set server t/s fqdn web.example",
            "set server t/s fqdn web/example",
            "set server t/s fqdn a..b",
            "set server t/s fqdn WEB.example",
            "set server t/s fqdn other.example",
        ];
        let mut said = lines.map(|line| side.ask(line)).to_vec();
        // The answers to two simultaneous questions arrive in any order.
        let moved = "t/s: IP changed from '127.0.0.2' to '127.0.0.3'";
        wait_for(moved, || side.said().iter().any(|line| line.starts_with(moved)).then_some(()));
        said.push(side.ask("set server t/ip fqdn web.example"));
        let ip = "ip no check 1 127.0.0.2:80";
        side.wait_for_servers("t", &["s no check 1 127.0.0.3:80", ip, alone, gone]);
        let state = side.ask("show servers state t");
        let named = |line: &str| line.split(' ').nth(17).map(str::to_owned);
        said.push(state.lines().skip(2).filter_map(named).collect::<Vec<_>>().join(" "));
        answers.push(said);
        // The new name is lost and found.
        side.names.know(vec![address("web.example", "127.0.0.2")]);
        side.wait_for_servers("t", &["s MAINT (resolution) 1 ", ip, alone, gone]);
        let state = side.ask("show servers state t");
        let of_s = state.lines().find(|line| line.split(' ').nth(3) == Some("s")).expect("its line");
        let without_address: Vec<&str> = of_s.split(' ').collect();
        assert_eq!([without_address[4], without_address[18]], ["-", "80"], "{of_s}");
        side.names.know(zone());
        side.wait_for_servers("t", &["s no check 1 127.0.0.3:80", ip, alone, gone]);
        // The message about it arrives a little later.
        let ready = |line: &&String| line.starts_with("Server t/s administratively READY");
        wait_for("the last line", || (side.said().iter().filter(ready).count() == 2).then_some(()));
    }
    assert_eq!(answers[1], answers[0]);
    assert_eq!(answers[1].last().map(String::as_str), Some("other.example web.example - -"));
    let [haproxy, own] = &mut sides;
    let said = own.said();
    assert_eq!(about(&said, "t/"), about(&haproxy.said(), "t/"));
    assert!(said.iter().any(|line| line.contains("('other.example') is UP/READY (resolves again)")), "{said:?}");
}

/// Returns the lines about servers of a backend.
fn about(said: &[String], backend: &str) -> Vec<String> {
    said.iter().filter(|line| line.contains(backend)).cloned().collect()
}

#[test]
fn an_address_is_held_for_its_time() {
    // With long `hold` times, known addresses stay.
    let settings = "timeout resolve 20ms\n timeout retry 20ms\n hold obsolete 1h\n";
    let backend = "backend t\n server s web.example:80 resolvers dns resolve-prefer ipv4 init-addr none\n";
    let sides = both(settings, backend, |names| names.know(vec![address("web.example", "127.0.0.2")]));
    for side in &sides {
        side.wait_for_servers("t", &["s no check 1 127.0.0.2:80"]);
        // A new address does not replace one that is held, and errors remove none.
        for answers in [Some("127.0.0.9"), None] {
            let asked = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
            let seen = asked.clone();
            side.names.say(move |question| {
                seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let found = answers.filter(|_| question.kind == A).map(|ip| address("web.example", ip));
                vec![answer(question, if answers.is_some() { 0 } else { NX }, found.as_slice())]
            });
            wait_for("questions", || (asked.load(std::sync::atomic::Ordering::SeqCst) > 8).then_some(()));
            side.wait_for_servers("t", &["s no check 1 127.0.0.2:80"]);
        }
    }
}

#[test]
fn servers_share_the_addresses_of_a_name() {
    let backends = "backend t\n server-template s 4 web.example:80 resolvers dns resolve-prefer ipv4 init-addr none\n\
                    backend dup\n server-template s 4 web.example:80 resolvers dns resolve-prefer ipv4 init-addr none \
                    resolve-opts allow-dup-ip\n\
                    backend near\n server s web.example:80 resolvers dns resolve-net 10.0.0.0/8,192.168.7.0/24 \
                    resolve-prefer ipv4 init-addr none\n\
                    backend six\n server s web.example:80 resolvers dns resolve-prefer ipv6 init-addr none\n\
                    backend usual\n server s web.example:80 resolvers dns init-addr none\n";
    let zone = || -> Vec<Record> {
        let four = ["127.0.0.2", "127.0.0.3", "192.168.7.9"].map(|ip| address("web.example", ip));
        four.into_iter().chain(["::2", "::3"].map(|ip| address("web.example", ip))).collect()
    };
    let sides = both(STEADY, backends, |names| names.know(zone()));
    let found: Vec<Vec<String>> = sides
        .iter()
        .map(|side| {
            let up = |backend: &str, count: usize| {
                wait_for("servers", || {
                    let found = servers(&side.place, backend);
                    (found.iter().filter(|line| line.contains("no check")).count() == count).then_some(found)
                })
            };
            [("t", 3), ("dup", 4), ("near", 1), ("six", 1), ("usual", 1)]
                .into_iter()
                .flat_map(|(backend, count)| up(backend, count))
                .collect()
        })
        .collect();
    assert_eq!(found[1], found[0]);
    assert!(found[1].contains(&"s no check 1 192.168.7.9:80".to_owned()), "{found:?}");
    // One address is removed, and its server gets the next new address.
    for side in &sides {
        side.names.know(["127.0.0.3", "192.168.7.9", "127.0.0.8"].map(|ip| address("web.example", ip)).to_vec());
        wait_for("the new address", || {
            let found = servers(&side.place, "t");
            let has = |ip: &str| found.iter().any(|line| line.ends_with(&format!(" {ip}:80")));
            (has("127.0.0.8") && !has("127.0.0.2")).then_some(())
        });
    }
}

#[test]
fn figures_of_name_servers_are_haproxys() {
    // One question, or one for each address family, and then none for a long time.
    let settings = "timeout resolve 1h\n timeout retry 1h\n resolve_retries 1\n accepted_payload_size 100\n";
    type Says = fn(&nameserver::Question) -> Vec<Vec<u8>>;
    let cases: [(&str, Says); 8] = [
        ("valid", |q| vec![answer(q, 0, &[address("web.example", "127.0.0.2")])]),
        ("nx", |q| vec![answer(q, NX, &[])]),
        ("refused", |q| vec![answer(q, REFUSED, &[])]),
        ("other", |q| vec![answer(q, 2, &[])]),
        ("any_err", |q| vec![answer(q, 0, &[])]),
        ("too_big", |_| vec![vec![0; 300]]),
        ("truncated", |q| vec![nameserver::answer_with(q, 0x8380, &[address("web.example", "127.0.0.2")], &[])]),
        ("cname_error", |q| {
            vec![answer(q, 0, &[("web.example".to_owned(), nameserver::CNAME, nameserver::wire("x"))])]
        }),
    ];
    for (figure, answers) in cases {
        let backend = "backend t\n server s web.example:80 resolvers dns resolve-prefer ipv4 init-addr none\n";
        let sides = both(settings, backend, |names| names.say(answers));
        let figures = sides.each_ref().map(|side| {
            let value = |text: &str, figure: &str| -> u32 {
                let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{figure}:")));
                line.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
            };
            // The new address counts after the response that has it.
            let is_updated = |text: &str| figure != "valid" || value(text, "update") == 1;
            // After an error the name is asked for again, in the other family.
            let most = if matches!(figure, "valid" | "too_big") { 1 } else { 2 };
            wait_for(figure, || {
                Some(side.ask("show resolvers dns")).filter(|text| value(text, figure) == most && is_updated(text))
            })
        });
        assert_eq!(figures[1], figures[0], "{figure}");
    }
}

#[test]
fn sections_are_listed_as_in_haproxy() {
    let sides = both("timeout resolve 1h\n", "backend t\n server s 127.0.0.1:80\n", |_| ());
    let [haproxy, own] = sides.each_ref();
    for command in [
        "show resolvers",
        "show resolvers dns",
        "show resolvers default",
        "show resolvers x",
        "show stat domain resolvers",
        "show stat domain resolvers typed",
        "show stat domain resolvers json",
        "show stat domain x",
        "show stat domain",
    ] {
        // Between two servers HAProxy forgets a comma of JSON.
        assert_eq!(own.ask(command), haproxy.ask(command).replace("}][{", "}],[{"), "{command}");
    }
    assert!(own.ask("show resolvers").contains("Resolvers section default\n"));
}

#[test]
fn a_name_server_is_asked_over_tcp() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let place = listener.local_addr().expect("bound");
    let gate = Listening::new();
    let names = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut length = [0; 2];
        while stream.read_exact(&mut length).is_ok() {
            let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut bytes).expect("a question");
            let question = nameserver::read(&bytes);
            let kind = question.kind;
            let found = [address("web.example", "127.0.0.7")];
            let said = answer(&question, 0, if kind == AAAA { &[] } else { &found });
            let framed = [&(said.len() as u16).to_be_bytes()[..], &said].concat();
            if stream.write_all(&framed).is_err() {
                return;
            }
        }
    });
    let text = format!(
        "global\n stats socket @DIR@/stats level admin\nresolvers dns\n nameserver one tcp@{place}\n {TIMES}\ndefaults\n \
         mode http\n timeout client 60s\n timeout server 60s\n timeout connect 1s\nbackend t\n server s web.example:80 \
         resolvers dns init-addr none\nfrontend f\n bind {}\n",
        gate.word()
    );
    let own = start(&text, &[&gate]);
    let place = own.directory().join("stats");
    wait_for("the address", || (servers(&place, "t") == ["s no check 1 127.0.0.7:80"]).then_some(()));
    drop(own);
    names.join().expect("a quiet end");
}

/// A reload keeps the resolved addresses of names and the times of their questions, for servers and for rules that
/// resolve a server's name.
#[test]
fn a_reload_asks_nothing_again() {
    let names = Nameserver::start();
    names.know(vec![address("web.example", "127.0.0.2")]);
    let gate = Listening::new();
    let text = |rest: &str| {
        format!(
            "global\n stats socket @DIR@/stats level admin\nresolvers dns\n nameserver one {}\n timeout resolve 1h\n \
             timeout retry 1h\n hold valid 1h\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout \
             connect 1s\nfrontend gate\n bind {}\n http-request do-resolve(txn.ip,dns,ipv4) str(web.example)\n \
             http-request return status 200 hdr ip %[var(txn.ip)]\nbackend t\n server s web.example:80 resolvers dns \
             resolve-prefer ipv4 init-addr none\n{rest}",
            names.address,
            gate.word()
        )
    };
    let own = start(&text(""), &[&gate]);
    let place = own.directory().join("stats");
    let file = own.directory().join("sluicegate.cfg");
    let sent = || {
        let shown = Sluicegate::stats(&place, "show resolvers dns");
        let line = shown.lines().find_map(|line| line.trim().strip_prefix("sent:")).expect("a figure");
        line.trim().parse::<u32>().expect("a number")
    };
    wait_for("the address", || (servers(&place, "t") == ["s no check 1 127.0.0.2:80"]).then_some(()));
    let ask = || sluicegate_testkit::Client::connect(&gate.address()).get("/").header("ip").map(str::to_owned);
    assert_eq!(ask().as_deref(), Some("127.0.0.2"));
    assert_eq!(sent(), 1);
    names.say(|question| panic!("nobody asks for {}", question.name));
    // The same backend, and backends with other definitions.
    for rest in ["", " fullconn 7\n", " server plain 127.0.0.1:9\n", " server plain 127.0.0.1:9\n balance leastconn\n"]
    {
        let text = text(rest).replace("@DIR@", own.directory().to_str().expect("UTF-8"));
        std::fs::write(&file, text).expect("writable");
        let reload = std::process::Command::new(crate::BINARY)
            .args(["reload", &own.program.pid().to_string()])
            .output()
            .expect("it starts");
        assert!(reload.status.success(), "{}", String::from_utf8_lossy(&reload.stderr));
        assert_eq!(servers(&place, "t")[0], "s no check 1 127.0.0.2:80", "{rest}");
        assert_eq!(ask().as_deref(), Some("127.0.0.2"), "{rest}");
        assert_eq!(sent(), 1, "{rest}");
    }
}
