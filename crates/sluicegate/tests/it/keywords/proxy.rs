//! Lines of proxies and servers.

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate, wait_for};

use super::{DEFAULTS, answer};
use crate::start;

/// A proxy with these lines before the demo server.
struct Gate {
    server: Sluicegate,
    address: String,
}

impl Gate {
    /// `{origin}` in the lines is the demo server's address.
    fn start(defaults: &str, lines: &str) -> Gate {
        let (gate, origin) = (Listening::new(), Listening::new());
        let text = format!(
            "global\n    nbthread 1\n    stats socket @DIR@/stats\norigin o\n    bind \"{}\"\n{DEFAULTS}\
             {defaults}listen gate\n    bind \"{}\"\n    log stdout format raw local0\n    option httplog\n{}",
            origin.word(),
            gate.word(),
            lines.replace("{origin}", &origin.address())
        );
        let server = start(&text, &[&gate, &origin]);
        Gate { server, address: gate.address() }
    }

    fn client(&self) -> Client {
        Client::connect(&self.address)
    }

    /// Returns the log lines up to that of a request made now. One worker's lines are written in order.
    fn logged(&mut self) -> Vec<String> {
        assert_eq!(self.client().get("/last").status, 200);
        self.server.program.wait_for_output("\"GET /last HTTP/1.1\"\n");
        let output = self.server.program.output();
        output.lines().filter(|line| line.contains("] gate ") && !line.contains("/last")).map(str::to_owned).collect()
    }
}

#[test]
fn connections_that_say_nothing() {
    for (option, sent, lines, answered) in [
        ("", "", 1, true),
        ("    option dontlognull\n", "", 0, true),
        ("    option http-ignore-probes\n", "", 0, false),
        ("", "GET / HT", 1, true),
        ("    option dontlognull\n", "GET / HT", 1, true),
        ("    option http-ignore-probes\n", "GET / HT", 1, true),
    ] {
        let mut gate = Gate::start("", &format!("{option}{}", answer("ok")));
        let mut client = gate.client();
        client.send(sent);
        client.finish();
        assert_eq!(!client.read_to_end().is_empty(), answered, "{option} {sent:?}");
        assert_eq!(gate.logged().len(), lines, "{option} {sent:?}");
    }
}

#[test]
fn abortonclose_gives_up_what_nobody_waits_for() {
    for (option, delay_ms, served) in [("", 200, true), ("    option abortonclose\n", 20_000, false)] {
        let gate = Gate::start("", &format!("{option}    server a {{origin}}\n"));
        let mut client = gate.client();
        client.send(format!("GET /delay/{delay_ms} HTTP/1.1\r\nHost: test\r\n\r\n"));
        client.finish();
        let answer = String::from_utf8_lossy(&client.read_to_end()).into_owned();
        assert_eq!(answer.starts_with("HTTP/1.1 200"), served, "{option}{answer}");
    }
}

#[test]
fn a_section_overrides_the_connection_mode_of_its_defaults() {
    for (option, kept) in [("", false), ("    option http-keep-alive\n", true), ("    no option httpclose\n", true)] {
        let gate = Gate::start("    option httpclose\n", &format!("{option}    server a {{origin}}\n"));
        let mut client = gate.client();
        let closes = client.get("/fast").header("connection").is_some_and(|value| value == "close");
        assert_eq!(closes, !kept, "{option}");
        if kept {
            assert_eq!(client.get("/fast").status, 200, "{option}");
        } else {
            assert_eq!(client.read_to_end(), b"", "{option}");
        }
    }
}

#[test]
fn an_idle_connection_waits_as_long_as_it_may() {
    let gate = Gate::start("", &format!("    timeout http-keep-alive 50ms\n{}", answer("ok")));
    let mut client = gate.client();
    assert_eq!(client.get("/").status, 200);
    // The client's own timeout would take longer than the test waits.
    assert_eq!(client.read_to_end(), b"");
}

#[test]
fn connection_rules_refuse_before_anything_is_read() {
    for (rules, refused) in [
        ("    tcp-request connection reject if LOCALHOST\n", true),
        ("    tcp-request connection reject unless { src 127.0.0.0/8 }\n", false),
        ("    tcp-request connection accept\n    tcp-request connection reject\n", false),
        ("    tcp-request content reject if { src_port gt 0 }\n", true),
        ("    tcp-request inspect-delay 5s\n    tcp-request content accept\n    tcp-request content reject\n", false),
        ("    tcp-response inspect-delay 5s\n", false),
    ] {
        let gate = Gate::start("", &format!("{rules}{}", answer("ok")));
        let mut client = gate.client();
        if refused {
            let _ = std::io::Write::write_all(&mut client.stream(), b"GET / HTTP/1.1\r\nHost: test\r\n\r\n");
            assert_eq!(client.read_to_end(), b"", "{rules}");
        } else {
            assert_eq!(client.get("/").status, 200, "{rules}");
        }
    }
}

/// Returns the status of a request through these servers, and the server that its log line names.
fn served(lines: &str) -> (u16, String) {
    let mut gate = Gate::start("", lines);
    let status = gate.client().get("/fast").status;
    gate.server.program.wait_for_output("/fast HTTP/1.1\"\n");
    let output = gate.server.program.output();
    let line = output.lines().find(|line| line.contains("/fast HTTP/1.1\"")).unwrap_or_default();
    let by = line.split(" gate gate/").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    (status, by.to_owned())
}

#[test]
fn servers_undo_what_default_server_says() {
    let two = "    server a {origin}\n    server b {origin}";
    for (default, b, expected) in [
        ("disabled", "", (503, "<NOSRV>")),
        ("disabled", " enabled", (200, "b")),
        ("backup", " no-backup", (200, "b")),
        ("weight 0", " weight 1", (200, "b")),
        ("maxconn 5", "", (200, "a")),
    ] {
        let found = served(&format!("    default-server {default}\n{two}{b}\n"));
        assert_eq!((found.0, found.1.as_str()), expected, "{default}, {b}");
    }
    for (option, status) in [("", "L4OK"), (" no-check", "")] {
        let gate = Gate::start("", &format!("    default-server check\n    server a {{origin}}{option}\n"));
        let status_of = || {
            let table = Sluicegate::stats(&gate.server.directory().join("stats"), "show stat");
            let line = table.lines().find(|line| line.starts_with("gate,a,")).unwrap_or_default();
            line.split(',').nth(36).unwrap_or_default().to_owned()
        };
        // The first check takes its time; without one the column stays empty.
        wait_for("the check's outcome", || (status_of() == status).then_some(()));
    }
}

#[test]
fn a_disabled_section_is_left_alone() {
    let (gate, other) = (Listening::new(), Listening::new());
    for (defaults, line, open) in [("    disabled\n", "    enabled\n", true), ("    disabled\n", "", false)] {
        let text = format!(
            "global\n    stats socket @DIR@/stats\norigin o\n    bind \"{}\"\n{DEFAULTS}{defaults}listen gate\n    \
             bind \"{}\"\n{line}{}",
            other.word(),
            gate.word(),
            answer("ok")
        );
        let server = start(&text, &[&gate, &other]);
        let table = Sluicegate::stats(&server.directory().join("stats"), "show stat");
        assert_eq!(table.contains("\ngate,FRONTEND,"), open, "{table}");
        if open {
            assert_eq!(Client::connect(&gate.address()).get("/").status, 200);
        }
    }
}

/// Connections to the places of `dispatch` and `option transparent` belong to their client, whatever `http-reuse` says.
#[test]
fn connections_to_places_are_private() {
    let text = |gates: &[Listening], origin: &Listening| {
        format!(
            "{DEFAULTS}    http-reuse always\nlisten d\n    bind \"{}\"\n    dispatch {address}\n\
             listen t\n    bind \"{}\"\n    option transparent\n    http-request set-dst hdr(x-dst)\n    \
             http-request set-dst-port hdr(x-port)\nfrontend origin\n    bind \"{}\"\n    \
             http-request return status 200 content-type text/plain lf-string %[http_first_req]\n",
            gates[0].word(),
            gates[1].word(),
            origin.word(),
            address = origin.address()
        )
    };
    let runs = [(); 2].map(|()| ([Listening::new(), Listening::new()], Listening::new()));
    let [(our_gates, our_origin), (their_gates, their_origin)] = &runs;
    let _ours = start(&text(our_gates, our_origin), &[&our_gates[0], &our_gates[1], our_origin]);
    let _theirs =
        Haproxy::start_2_8(&text(their_gates, their_origin), &[&their_gates[0], &their_gates[1], their_origin]);
    for (gates, origin) in &runs {
        for gate in gates {
            let port = origin.port();
            let ask = |client: &mut Client| {
                client.send(format!("GET / HTTP/1.1\r\nHost: h\r\nx-dst: 127.0.0.1\r\nx-port: {port}\r\n\r\n"));
                client.read_response().text()
            };
            let [mut one, mut other] = [(); 2].map(|()| Client::connect(&gate.address()));
            let firsts = [ask(&mut one), ask(&mut one), ask(&mut other), ask(&mut other), ask(&mut one)];
            assert_eq!(firsts, ["1", "0", "1", "0", "0"]);
        }
    }
}
