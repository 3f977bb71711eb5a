//! Clients of TCP that end or fall silent while their stream waits: for content rules, in a queue, for its connection.
//! HAProxy 2.8 and Sluicegate end the same streams in the same state.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread::spawn;

use sluicegate_testkit::{Client, Haproxy, Listening, PATIENCE, Program, Sluicegate, wait_for};
use socket2::{Domain, Socket, Type};

use super::start;

/// The server of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    /// It accepts and is silent, until its peer ends.
    Silent,
    /// Its only connection is taken for this long, in milliseconds, by another client.
    Taken(u32),
    /// A connection to it is never completed.
    Hanging,
}

struct Case {
    name: &'static str,
    frontend: &'static str,
    backend: &'static str,
    server: Server,
    /// The data of the client, and whether it then ends its side.
    sends: (&'static str, bool),
    /// The termination state, and whether times of queue and connection are logged.
    ends: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "silent-in-rules",
        frontend: " timeout client 200ms\n tcp-request inspect-delay 60s\n tcp-request content accept if WAIT_END",
        backend: "",
        server: Server::Silent,
        sends: ("", false),
        ends: "cR - -",
    },
    Case {
        name: "short-in-rules",
        frontend: " timeout client 200ms\n tcp-request inspect-delay 60s\n tcp-request content accept if WAIT_END",
        backend: "",
        server: Server::Silent,
        sends: ("x", false),
        ends: "cR - -",
    },
    Case {
        name: "refused-when-late",
        frontend: " timeout client 200ms\n tcp-request inspect-delay 60s\n tcp-request content reject if { req.len 0 }",
        backend: "",
        server: Server::Silent,
        sends: ("", false),
        ends: "PR - -",
    },
    Case {
        name: "silent-in-the-backends-rules",
        frontend: " timeout client 200ms",
        backend: " tcp-request inspect-delay 60s\n tcp-request content accept if WAIT_END",
        server: Server::Silent,
        sends: ("", false),
        ends: "cR - -",
    },
    // The client's time of 3 s began before the delay of 2, the server's of 2 behind it.
    Case {
        name: "silent-behind-rules",
        frontend: " timeout client 3s\n tcp-request inspect-delay 2s\n tcp-request content accept if WAIT_END",
        backend: " timeout server 2s",
        server: Server::Silent,
        sends: ("", false),
        ends: "cD + +",
    },
    Case {
        name: "silent-in-the-responses-rules",
        frontend: " timeout client 1500ms",
        backend: " tcp-response inspect-delay 60s\n tcp-response content accept if WAIT_END",
        server: Server::Silent,
        sends: ("x", false),
        ends: "cD + +",
    },
    Case {
        name: "silent-server-in-rules",
        frontend: "",
        backend: " timeout server 200ms\n tcp-response inspect-delay 60s\n tcp-response content accept if WAIT_END",
        server: Server::Silent,
        sends: ("x", false),
        ends: "sD + +",
    },
    Case {
        name: "silent-in-queue",
        frontend: " timeout client 200ms",
        backend: "",
        server: Server::Taken(60_000),
        sends: ("", false),
        ends: "cQ - -",
    },
    Case {
        name: "short-in-queue",
        frontend: " timeout client 200ms",
        backend: " timeout queue 2s",
        server: Server::Taken(60_000),
        sends: ("x", false),
        ends: "cQ + -",
    },
    // Its data is served nevertheless, and its end follows.
    Case {
        name: "served-behind-queue",
        frontend: " timeout client 200ms",
        backend: "",
        server: Server::Taken(1_500),
        sends: ("x", false),
        ends: "cQ + +",
    },
    Case {
        name: "ended-in-queue",
        frontend: "",
        backend: "",
        server: Server::Taken(60_000),
        sends: ("", true),
        ends: "CQ + -",
    },
    Case {
        name: "sent-and-ended-in-queue",
        frontend: "",
        backend: "",
        server: Server::Taken(60_000),
        sends: ("x", true),
        ends: "-- + +",
    },
    Case {
        name: "ended-while-connecting",
        frontend: "",
        backend: "",
        server: Server::Hanging,
        sends: ("", true),
        ends: "CC + -",
    },
    Case {
        name: "silent-while-connecting",
        frontend: " timeout client 200ms",
        backend: " timeout connect 2s",
        server: Server::Hanging,
        sends: ("", false),
        ends: "cC + -",
    },
    Case {
        name: "aborted-while-connecting",
        frontend: " timeout client 200ms",
        backend: " option abortonclose",
        server: Server::Hanging,
        sends: ("", false),
        ends: "cC + -",
    },
];

/// The sockets of a case.
struct Place {
    gate: Listening,
    /// Where the other client of a server connects that is taken.
    other: Listening,
    origin: Listening,
    /// Connections that fill the origin's backlog.
    _fill: Vec<Socket>,
}

impl Place {
    fn of(case: &Case) -> Place {
        let origin = Listening::new();
        let mut fill = Vec::new();
        if case.server == Server::Hanging {
            // SAFETY: the descriptor is that of a listening socket, whose backlog becomes shorter.
            assert_eq!(unsafe { libc::listen(origin.listener.as_raw_fd(), 0) }, 0);
            for _ in 0..3 {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
                socket.set_nonblocking(true).expect("settable");
                let address: SocketAddr = origin.address().parse().expect("an address");
                let _ = socket.connect(&address.into());
                fill.push(socket);
            }
        }
        Place { gate: Listening::new(), other: Listening::new(), origin, _fill: fill }
    }

    fn lines(&self, case: &Case) -> String {
        let Case { name, frontend, backend, server, .. } = case;
        let (limit, taken) = match server {
            Server::Taken(time) => (" maxconn 1", *time),
            _ => ("", 60_000),
        };
        format!(
            "frontend {name}\n bind {}\n{frontend}\n log stdout format raw local0\n log-format \"%ft %ts %Tw %Tc.\"\n \
             default_backend b-{name}\nfrontend other-{name}\n bind {}\n timeout client {taken}ms\n default_backend \
             b-{name}\nbackend b-{name}\n{backend}\n server s {}{limit}\n",
            self.gate.word(),
            self.other.word(),
            self.origin.address()
        )
    }

    /// Plays the case; returns what the server got from the client.
    fn play(&self, case: &Case, stats: &Path) -> String {
        let accept = || self.origin.listener.accept().expect("accepted").0;
        let other = matches!(case.server, Server::Taken(_)).then(|| {
            let client = TcpStream::connect(self.other.address()).expect("connected");
            (client, accept())
        });
        if !case.sends.0.is_empty() {
            // Its time does not begin before it has sent its data.
            crate::robust::accept_with_data(&self.gate.listener);
        }
        let mut client = Client::connect(&self.gate.address());
        client.send(case.sends.0);
        if case.sends.1 {
            // Not before the stream waits for its server.
            let backend = format!("b-{},BACKEND", case.name);
            let waiting = if other.is_some() { "2" } else { "1" };
            wait_for("the stream in its backend", || {
                let text = Sluicegate::stats(stats, "show stat");
                let line = text.lines().find(|line| line.starts_with(&backend))?;
                (line.split(',').nth(4) == Some(waiting)).then_some(())
            });
            client.finish();
        }
        // The other client's time ends its connection, or it leaves because everything has come.
        let other = other.map(|(client, mut server)| {
            if case.sends.1 && case.ends.ends_with("+ +") {
                client.shutdown(std::net::Shutdown::Both).expect("shut");
            }
            spawn(move || {
                let _ = server.read_to_end(&mut Vec::new());
                drop((client, server));
            })
        });
        let mut got = String::new();
        if case.ends.ends_with("+ +") {
            let mut server = accept();
            let reading = spawn(move || {
                let mut got = String::new();
                server.set_read_timeout(Some(PATIENCE)).expect("settable");
                server.read_to_string(&mut got).expect("UTF-8");
                got
            });
            client.read_to_end();
            drop(client);
            got = reading.join().expect("read");
        } else {
            client.read_to_end();
        }
        drop(other);
        got
    }
}

/// Returns the log line of a case, with `+` for a time and `-` for none.
fn logged(program: &Program, name: &str) -> Option<String> {
    let output = program.output();
    let line = output.lines().find_map(|line| line.split_once(&format!("{name} ")).map(|(_, rest)| rest))?;
    let words: Vec<&str> = line.strip_suffix('.')?.split(' ').collect();
    let time = |word: &str| if word == "-1" { "-" } else { "+" };
    Some(format!("{} {} {}", words[0], time(words[1]), time(words[2])))
}

/// Runs a conversation with one of the programs.
fn with_program<R>(is_ours: bool, text: &str, gates: &[&Listening], talk: impl FnOnce(&mut Program) -> R) -> R {
    match is_ours {
        true => talk(&mut start(text, gates).program),
        false => talk(&mut Haproxy::start_2_8(text, gates).program),
    }
}

#[test]
fn waiting_streams_end_as_haproxys() {
    for (at, case) in CASES.iter().enumerate() {
        let run = |is_ours: bool| {
            let place = Place::of(case);
            let directory = tempfile::tempdir().expect("a directory");
            let stats = directory.path().join("stats");
            let text = format!(
                "global\n stats socket {} level admin\ndefaults\n mode tcp\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n timeout queue \
                 60s\n retries 0\n{}",
                stats.display(),
                place.lines(case)
            );
            let gates = [&place.gate, &place.other];
            with_program(is_ours, &text, &gates, |program| {
                let got = place.play(case, &stats);
                (wait_for("the log line", || logged(program, case.name)), got)
            })
        };
        // Side by side, because both wait for what times out.
        let seen = std::thread::scope(|scope| {
            let runs = [false, true].map(|is_ours| scope.spawn(move || run(is_ours)));
            runs.map(|run| run.join().expect("no panic"))
        });
        assert_eq!(seen[0], seen[1], "{at} {}: haproxy's, then ours", case.name);
        assert_eq!(seen[1].0, case.ends, "{}", case.name);
    }
}

/// A client that is late does not become one of HTTP, which would be answered 408. HAProxy closes the connection as well, but
/// logs nothing.
#[test]
fn a_client_that_is_late_does_not_switch_to_http() {
    let gate = Listening::new();
    let text = format!(
        "defaults\n timeout client 200ms\nfrontend f\n mode tcp\n bind {}\n log stdout format raw local0\n log-format \"ends \
         %b %ts\"\n tcp-request inspect-delay 60s\n tcp-request content accept if WAIT_END\n default_backend b\nbackend b\n \
         mode http\n http-request return status 200\n",
        gate.word()
    );
    let mut server = start(&text, &[&gate]);
    let mut client = Client::connect(&gate.address());
    client.send("GET / HT");
    assert_eq!(client.read_to_end(), b"");
    server.program.wait_for_output("ends f cR\n");
}

const SERVICES: &str = "
core.register_service('echo', 'tcp', function(applet)
  local line = applet:getline()
  while line ~= '' do
    applet:send(line)
    line = applet:getline()
  end
end)
core.register_service('big', 'tcp', function(applet)
  local piece = string.rep('x', 10000)
  for _ = 1, 3000 do applet:send(piece) end
end)
";

/// The log tells how a client of a script's service has left.
#[test]
fn clients_that_leave_a_service_are_logged_as_haproxys() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("services.lua");
    std::fs::write(&script, SERVICES).expect("written");
    let echoed = |client: &mut Client| {
        client.send("line\n");
        assert_eq!(client.read_exact(5), b"line\n");
    };
    type Leave = fn(Client) -> Option<Client>;
    let reset: Leave = |client| {
        client.reset();
        None
    };
    let close: Leave = |mut client| {
        client.finish();
        client.read_to_end();
        None
    };
    let cases: [(&str, &str, Leave, &str); 5] = [
        ("echo", "60s", reset, "CD"),
        ("echo", "60s", close, "--"),
        ("echo", "200ms", Some, "cD"),
        ("big", "60s", reset, "CD"),
        // It is sent more than the sockets hold, and reads nothing.
        ("big", "200ms", Some, "cD"),
    ];
    for (at, (service, time, leave, ends)) in cases.into_iter().enumerate() {
        let mut seen = Vec::new();
        for is_ours in [false, true] {
            let gate = Listening::new();
            let text = format!(
                "global\n lua-load {}\ndefaults\n mode tcp\n timeout client {time}\nfrontend f\n bind {}\n log stdout \
                 format raw local0\n log-format \"leaves %ts\"\n tcp-request content use-service lua.{service}\n",
                script.display(),
                gate.word()
            );
            seen.push(with_program(is_ours, &text, &[&gate], |program| {
                let mut client = Client::connect(&gate.address());
                match service {
                    "echo" => echoed(&mut client),
                    _ => assert_eq!(client.read_exact(1), b"x"),
                }
                let _silent = leave(client);
                program.wait_for_output("leaves ");
                wait_for("the log line", || {
                    let output = program.output();
                    let (_, rest) = output.split_once("leaves ")?;
                    (rest.len() > 2).then(|| rest[..2].to_owned())
                })
            }));
        }
        assert_eq!(seen, [ends, ends], "{at} {service}: haproxy's, then ours");
    }
}

/// Rules that wait for nothing see what a client has sent before the program looks at its connection. Both programs stand
/// still meanwhile.
#[test]
fn rules_without_a_delay_see_what_has_come() {
    let mut seen = Vec::new();
    for is_ours in [false, true] {
        let gate = Listening::new();
        let text = format!(
            "defaults\n mode tcp\n retries 0\n timeout client 9s\n timeout server 9s\n timeout connect 9s\nfrontend f\n bind {}\n \
             log stdout format raw local0\n log-format \"sees %b %[var(sess.came)]\"\n tcp-request content \
             set-var(sess.came) req.len\n use_backend b if {{ req.payload(0,0) -m beg hello }}\n default_backend a\n\
             backend a\n server s 127.0.0.1:1\nbackend b\n server s 127.0.0.1:1\n",
            gate.word()
        );
        seen.push(with_program(is_ours, &text, &[&gate], |program| {
            program.signal(libc::SIGSTOP);
            let mut client = Client::connect(&gate.address());
            client.send("hello, world");
            program.signal(libc::SIGCONT);
            wait_for("the log line", || {
                let output = program.output();
                let (_, rest) = output.split_once("sees ")?;
                rest.split_once('\n').map(|(line, _)| line.to_owned())
            })
        }));
    }
    assert_eq!(seen, ["b 12", "b 12"], "haproxy's, then ours");
}
