//! `sockpair@N`: connections that are passed as descriptors over an inherited unix socket, beside HAProxy 2.8 in both
//! directions.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use sluicegate_testkit::{Client, Haproxy, Listening, PATIENCE, Program, Sluicegate, newer_peer, wait_for, wait_until};
use sluicegate_transport::{send_descriptors, try_send_descriptors};

use crate::BINARY;

const TIMES: &str =
    "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n retries 1\n";

enum Peer {
    Ours(Sluicegate),
    Theirs(Haproxy),
}

/// A program with a stats socket, whose log is its output.
struct Running {
    peer: Peer,
    place: PathBuf,
    _directory: tempfile::TempDir,
}

impl Running {
    fn start(is_ours: bool, text: &str, inherited: &[RawFd]) -> Running {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("stats");
        let text = format!(
            "global\n stats socket {} level admin\n log stdout format raw local0\n{TIMES} log global\n{text}",
            place.display()
        );
        let peer = match is_ours {
            true => Peer::Ours(Sluicegate::start_inheriting(BINARY, &text, inherited)),
            false => Peer::Theirs(Haproxy::start_2_8_inheriting(&text, inherited)),
        };
        Running { peer, place, _directory: directory }
    }

    fn program(&mut self) -> &mut Program {
        match &mut self.peer {
            Peer::Ours(ours) => &mut ours.program,
            Peer::Theirs(theirs) => &mut theirs.program,
        }
    }

    fn ask(&self, line: &str) -> String {
        Sluicegate::stats(&self.place, line)
    }

    /// The cells of a line of `show stat`.
    fn cells(&self, proxy: &str, name: &str, columns: &[&str]) -> Vec<String> {
        let text = self.ask("show stat");
        let mut lines = text.lines().map(|line| line.trim_start_matches("# ").split(',').collect::<Vec<_>>());
        let names = lines.next().expect("a header");
        let line = lines.find(|line| line[..] != [""] && line[0] == proxy && line[1] == name);
        let line = line.unwrap_or_else(|| panic!("no {proxy}/{name} in:\n{text}"));
        let cell = |column: &&str| line[names.iter().position(|name| name == column).expect("a column")].to_owned();
        columns.iter().map(cell).collect()
    }
}

/// Both ends of a unix socket.
fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().expect("a pair")
}

/// Passes a connection to a `bind`; returns its other end.
fn pass(carrier: &UnixStream) -> UnixStream {
    let (near, far) = pair();
    near.set_read_timeout(Some(PATIENCE)).expect("settable");
    assert_eq!(send_descriptors(carrier, &[0; 2], &[far.as_fd()]).expect("sent"), 2);
    near
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

/// Reads a response whose body ends with a line feed.
fn answer(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\n") || bytes.ends_with(b"\r\n") {
        assert_eq!(stream.read(&mut byte).expect("a response"), 1, "{}", String::from_utf8_lossy(&bytes));
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// Makes a request and returns the body.
fn get(stream: &mut UnixStream) -> String {
    stream.write_all(REQUEST).expect("writable");
    let text = answer(stream);
    text.split_once("\r\n\r\n").expect("a head").1.trim_end().to_owned()
}

fn has_nothing(stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).expect("settable");
    let found = (&*stream).read(&mut [0; 1]);
    stream.set_nonblocking(false).expect("settable");
    matches!(found, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn rear(carrier: &UnixStream, options: &str) -> String {
    format!(
        "frontend rear\n option socket-stats\n log-format \"ci=%ci cp=%cp fi=%fi fp=%fp bi=%bi bp=%bp ft=%ft\"\n bind \
         sockpair@{} name r {options}\n http-request return status 200 content-type text/plain lf-string \"src=%[src] \
         dst=%[dst] sport=%[src_port] dport=%[dst_port] ci=%ci cp=%cp so=%[so_id] name=%[so_name] \
         fs=%[fc_src] fd=%[fc_dst] proxied=%[fc_rcvd_proxy]\\n\"\n",
        carrier.as_raw_fd()
    )
}

fn front(gate: &Listening, carrier: &UnixStream, options: &str) -> String {
    format!(
        "frontend front\n bind {}\n log-format \"st=%ST ts=%ts rc=%rc s=%s si=%si sp=%sp\"\n http-after-response \
         set-header x-a \"b=%b s=%s bs=%[bc_src] bd=%[bc_dst] bsp=%[bc_src_port] bdp=%[bc_dst_port]\"\n default_backend \
         b\nbackend b\n server s sockpair@{} {options}\n",
        gate.word(),
        carrier.as_raw_fd()
    )
}

/// Returns the responses, log lines and figures of a connection from one program to the other.
fn conversation(front_is_ours: bool, rear_is_ours: bool, server: &str, bind: &str) -> Vec<String> {
    let (near, far) = pair();
    let gate = Listening::new();
    let mut behind = Running::start(rear_is_ours, &rear(&far, bind), &[far.as_raw_fd()]);
    drop(far);
    let text = front(&gate, &near, server);
    let mut before = Running::start(front_is_ours, &text, &[gate.fd(), near.as_raw_fd()]);
    drop(near);
    let mut client = Client::connect(&gate.address());
    let port = client.stream().local_addr().expect("connected").port();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let response = client.get("/");
        seen.push(format!("{} {:?} {}", response.status, response.header("x-a"), response.text()));
    }
    drop(client);
    behind.program().wait_for_output("ft=rear");
    before.program().wait_for_output("st=200");
    let logged = |program: &mut Program, word: &str| {
        let output = program.output();
        output.lines().find(|line| line.contains(word)).expect("a line").to_owned()
    };
    seen.push(logged(behind.program(), "ft=rear"));
    seen.extend(behind.cells("rear", "r", &["status", "addr", "proto"]));
    seen.extend(before.cells("b", "s", &["status", "addr", "econ", "wretr"]));
    let state = before.ask("show servers state b");
    let state: Vec<&str> = state.lines().nth(2).expect("a server").split(' ').collect();
    // Its address and its port.
    seen.extend([4, 18].map(|index| state[index].to_owned()));
    let said = before.ask("set server b/s addr 127.0.0.1");
    assert!(said.contains("current server address family is only supported through configuration file"), "{said}");
    let ports = [(port, "CLIENT"), (gate.port(), "GATE")];
    let named = |text: String| ports.iter().fold(text, |text, (port, name)| text.replace(&port.to_string(), name));
    seen.into_iter().map(named).collect()
}

#[test]
fn either_program_passes_connections_to_the_other() {
    for (server, bind) in [("", ""), ("check inter 60s", ""), ("send-proxy", "accept-proxy")] {
        let expected = conversation(false, false, server, bind);
        for (front, rear) in [(true, false), (false, true), (true, true)] {
            assert_eq!(conversation(front, rear, server, bind), expected, "{server} {front} {rear}");
        }
    }
}

/// Log lines have a port of servers that have no address.
#[test]
fn servers_without_an_address_are_logged_as_haproxys() {
    let found = [true, false].map(|is_ours| {
        let (near, far) = pair();
        let gate = Listening::new();
        let behind = Running::start(true, &rear(&far, ""), &[far.as_raw_fd()]);
        let place = behind.place.with_file_name("rear");
        let other = format!("frontend unix\n bind unix@{}\n http-request return status 200\n", place.display());
        let _other = Running::start(true, &other, &[]);
        wait_for("the socket", || place.exists().then_some(()));
        let text = format!(
            "frontend front\n bind {}\n log-format \"%HPO si=%{{+Q}}si sp=%sp bi=%{{+Q}}bi bp=%bp.\"\n use_backend \
             none if {{ path /none }}\n use_backend unix if {{ path /unix }}\n default_backend passed\nbackend none\nbackend \
             unix\n server s unix@{}\nbackend passed\n server s sockpair@{}\n",
            gate.word(),
            place.display(),
            near.as_raw_fd()
        );
        let mut running = Running::start(is_ours, &text, &[gate.fd(), near.as_raw_fd()]);
        let statuses = ["/", "/unix", "/none"].map(|path| {
            let status = Client::connect(&gate.address()).get(path).status;
            running.program().wait_for_output(&format!("{path} si="));
            status
        });
        assert_eq!(statuses, [200, 200, 503]);
        wait_for("the lines", || {
            let output = running.program().output();
            let lines: Vec<_> = output.lines().filter(|line| line.starts_with('/') && line.ends_with('.')).collect();
            (lines.len() == 3).then(|| lines.join("\n"))
        })
    });
    assert_eq!(found[0], found[1]);
    let lines = "/ si=\"\" sp=0 bi=\"\" bp=-.\n/unix si=\"unix\" sp=0 bi=\"unix\" bp=0.\n/none si=\"\" sp=- bi=\"\" \
                 bp=-.";
    assert_eq!(found[0], lines);
}

#[test]
fn a_receiver_that_is_gone_is_an_error_of_this_process() {
    let found = [true, false].map(|is_ours| {
        let (near, far) = pair();
        drop(far);
        let (gate, checked) = (Listening::new(), Listening::new());
        let text = front(&gate, &near, "");
        let text = format!(
            "{text}frontend checked\n bind {}\n default_backend c\nbackend c\n server s sockpair@{} check inter 2s fall 1\n",
            checked.word(),
            near.as_raw_fd()
        );
        let mut running = Running::start(is_ours, &text, &[gate.fd(), checked.fd(), near.as_raw_fd()]);
        let response = Client::connect(&gate.address()).get("/");
        running.program().wait_for_output("st=500");
        let line = running.program().output();
        let line = line.lines().find(|line| line.starts_with("st=")).expect("a line").split(" si=").next();
        let check = wait_for("the check", || {
            let cells = running.cells("c", "s", &["status", "check_status", "last_chk", "check_desc"]);
            (cells[0] == "DOWN").then_some(cells)
        });
        let errors = running.cells("b", "s", &["econ", "wretr", "status"]);
        (response.status, response.text(), line.map(str::to_owned), check, errors)
    });
    assert_eq!(found[0], found[1]);
}

/// The program does not wait for a receiver that takes nothing.
#[test]
fn a_receiver_that_takes_nothing_is_an_error() {
    let (near, _far) = pair();
    let gate = Listening::new();
    let _running = Running::start(true, &front(&gate, &near, ""), &[gate.fd(), near.as_raw_fd()]);
    let (_one, other) = pair();
    let full = loop {
        if let Err(error) = try_send_descriptors(&near, &[0; 2], &[other.as_fd()]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    assert_eq!(Client::connect(&gate.address()).get("/").status, 500);
}

#[test]
fn messages_that_pass_no_connection_do_no_harm() {
    for is_ours in [true, false] {
        let (near, far) = pair();
        let running = Running::start(is_ours, &rear(&far, ""), &[far.as_raw_fd()]);
        drop(far);
        // HAProxy closes no more than what fits into its buffer.
        let count = if is_ours { 9 } else { 1 };
        let file = std::fs::File::open("/dev/null").expect("a file");
        assert_eq!(send_descriptors(&near, &[0; 2], &[file.as_fd()]).expect("sent"), 2);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut tcp = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
        tcp.set_read_timeout(Some(PATIENCE)).expect("settable");
        let accepted = listener.accept().expect("a connection").0;
        send_descriptors(&near, &[0; 2], &[accepted.as_fd()]).expect("sent");
        drop(accepted);
        tcp.write_all(REQUEST).expect("writable");
        let over_tcp = answer(&mut tcp);
        if is_ours {
            send_descriptors(&near, &[0; 5], &[]).expect("sent");
        }
        let (mut nears, fars): (Vec<_>, Vec<_>) = (0..count).map(|_| pair()).unzip();
        let passed: Vec<_> = fars.iter().map(|far| far.as_fd()).collect();
        send_descriptors(&near, &[0; 2], &passed).expect("sent");
        drop(fars);
        let first = get(&mut nears[0]);
        assert!(over_tcp.ends_with(&format!("\r\n\r\n{first}\n")), "{over_tcp}\n{first}");
        for surplus in &mut nears[1..] {
            surplus.set_read_timeout(Some(PATIENCE)).expect("settable");
            assert_eq!(surplus.read(&mut [0; 1]).expect("closed"), 0);
        }
        assert_eq!(get(&mut pass(&near)), first);
        drop(near);
        assert_eq!(get(&mut nears[0]), first, "a connection outlives what has passed it");
        assert!(running.ask("show info").contains("Uptime"));
    }
}

#[test]
fn limits_and_pauses_hold_passed_connections_back() {
    let (near, far) = pair();
    let running = Running::start(true, &rear(&far, "maxconn 1"), &[far.as_raw_fd()]);
    drop(far);
    let mut first = pass(&near);
    let body = get(&mut first);
    let mut second = pass(&near);
    second.write_all(REQUEST).expect("writable");
    assert_eq!(get(&mut first), body);
    assert!(has_nothing(&second));
    assert_eq!(running.cells("rear", "r", &["scur", "stot"]), ["1", "1"]);
    drop(first);
    assert!(answer(&mut second).ends_with(&format!("{body}\n")));
    drop(second);
    wait_for("no session", || (running.cells("rear", "r", &["scur"]) == ["0"]).then_some(()));
    running.ask("disable frontend rear");
    let mut third = pass(&near);
    third.write_all(REQUEST).expect("writable");
    assert_eq!(running.cells("rear", "r", &["scur", "stot"]), ["0", "2"]);
    assert!(has_nothing(&third));
    running.ask("enable frontend rear");
    assert!(answer(&mut third).ends_with(&format!("{body}\n")));
}

#[test]
fn commands_come_over_passed_connections() {
    let found = [true, false].map(|is_ours| {
        let (near, far) = pair();
        let gate = Listening::new();
        let text = format!(
            "global\n stats socket sockpair@{} level user\nfrontend f\n bind {}\n http-request return status 200\nbackend \
             b\n server s 127.0.0.1:1\n",
            far.as_raw_fd(),
            gate.word()
        );
        let running = Running::start(is_ours, &text, &[far.as_raw_fd(), gate.fd()]);
        let mut client = pass(&near);
        client.write_all(b"show env NOTHING;show stat\n").expect("writable");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains("f,FRONTEND,"), "{answer}");
        let sockets = running.ask("show cli sockets");
        let sockets = sockets.lines().find(|line| line.starts_with("sockpair@")).expect("a line");
        let shown = sockets.replace(&far.as_raw_fd().to_string(), "N");
        let added = running.ask("add server b/x sockpair@987");
        (shown, added.trim().to_owned())
    });
    assert_eq!(found[0], found[1]);
}

/// The verdict of a check, and what it says.
fn verdict(program: &Path, arguments: &[&str], text: &str, inherited: &[RawFd]) -> (i32, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("a.cfg");
    std::fs::write(&file, text).expect("writable");
    let mut command = Command::new(program);
    command.args(arguments).arg(&file);
    let mut program = Program::start(command, inherited);
    (program.wait(), program.output())
}

#[test]
fn a_check_looks_at_the_descriptors() {
    let (near, _far) = pair();
    let file = std::fs::File::open("/dev/null").expect("a file");
    let good = near.as_raw_fd();
    let inherited = [good, file.as_raw_fd()];
    let http =
        "global\n localpeer a\ndefaults\n mode http\n timeout client 1s\n timeout server 1s\n timeout connect 1s\n";
    let bind = |address: &str| format!("{http}frontend f\n bind {address}\n http-request return status 200\n");
    let server = |address: &str| format!("{http}listen l\n bind 127.0.0.1:1\n server s {address}\n");
    let number = file.as_raw_fd();
    let (no_socket, closed) = ("Socket operation on non-socket", "Bad file descriptor");
    for (address, part) in [
        (format!("sockpair@{good}"), ""),
        (format!("sockpair@{good},sockpair@{good}"), ""),
        ("sockpair@987".to_owned(), closed),
        (format!("sockpair@{number}"), no_socket),
        ("sockpair@".to_owned(), "''"),
        ("sockpair@x".to_owned(), "'x'"),
        (format!("sockpair@{good}:80"), ":80'"),
        (format!("sockpair@{good} mss 1000 interface lo defer-accept tfo backlog 5 mode 600"), ""),
    ] {
        let is_list = address.contains(',');
        let is_option = address.contains(' ');
        let mut texts = vec![bind(&address)];
        if !is_list && !is_option {
            texts.push(server(&address));
            texts.push(format!("{}peers p\n peer a 127.0.0.1:1\n peer b {address}\n", bind("127.0.0.1:2")));
            texts.push(format!("{}peers p\n bind {address}\n server a\n", bind("127.0.0.1:2")));
        }
        for text in texts {
            let (theirs, said) = verdict(&newer_peer("haproxy-2.8"), &["-c", "-f"], &text, &inherited);
            let (ours, told) = verdict(Path::new(BINARY), &["check"], &text, &inherited);
            assert_eq!(ours, theirs, "{text}\n{told}\n{said}");
            assert!(told.contains(part) && said.contains(part), "{text}\n{told}\n{said}");
        }
    }
    // Stricter than HAProxy, where such a file serves nothing.
    let tcp = Listening::new();
    let (code, told) = verdict(Path::new(BINARY), &["check"], &bind(&format!("sockpair@{}", tcp.fd())), &[tcp.fd()]);
    assert_eq!(code, 1, "{told}");
    assert!(told.contains("this is no connected unix stream socket"), "{told}");
    // Neither a name nor options make it one of these.
    for text in [
        format!("store s\n bind sockpair@{good}\n"),
        format!("{http}log-forward l\n dgram-bind sockpair@{good}\n"),
        format!("redis r\n server s sockpair@{good}\n"),
        format!("{http}mailers m\n mailer a sockpair@{good}\n"),
        format!("{http}resolvers m\n nameserver a sockpair@{good}\n"),
        format!("global\n log sockpair@{good} local0\n"),
    ] {
        let (code, told) = verdict(Path::new(BINARY), &["check"], &text, &inherited);
        assert_eq!(code, 1, "{text}\n{told}");
    }
}

/// A reload keeps the descriptors, and takes others that the process has inherited.
#[test]
fn a_reload_takes_further_descriptors() {
    for master in [false, true] {
        let ((first, first_end), (second, second_end)) = (pair(), pair());
        let numbers = [first.as_raw_fd(), first_end.as_raw_fd(), second_end.as_raw_fd()];
        let word = if master { "global\n master-worker\n" } else { "" };
        let text = |body: &str, rest: &str| {
            format!(
                "{word}{TIMES}frontend one\n bind sockpair@{}\n http-request return status 200 content-type text/plain \
                 string \"{body}\\n\"\n{rest}",
                numbers[1]
            )
        };
        let mut gate = Sluicegate::start_inheriting(BINARY, &text("old", ""), &numbers);
        drop((first_end, second_end));
        assert_eq!(get(&mut pass(&first)), "old");
        let file = gate.directory().join("sluicegate.cfg");
        let reload = |gate: &mut Sluicegate, text: &str| {
            std::fs::write(&file, text).expect("writable");
            match master {
                true => {
                    gate.program.signal(libc::SIGUSR2);
                    (true, String::new())
                }
                false => {
                    let mut command = Command::new(BINARY);
                    let output = command.args(["reload", &gate.program.pid().to_string()]).output().expect("a reload");
                    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
                }
            }
        };
        let through = format!(
            "listen two\n bind sockpair@{}\n http-response set-header via two\n server s sockpair@{}\n",
            numbers[2], numbers[0]
        );
        let (good, said) = reload(&mut gate, &text("new", &through));
        assert!(good, "{said}");
        wait_until("the reload", || match get(&mut pass(&first)).as_str() {
            "new" => Ok(()),
            body => Err(body.to_owned()),
        });
        let mut client = pass(&second);
        client.write_all(REQUEST).expect("writable");
        let response = answer(&mut client);
        assert!(response.contains("via: two") && response.ends_with("new\n"), "{response}");
        if !master {
            let missing = "backend b\n server s sockpair@987\n";
            let (good, said) = reload(&mut gate, &text("newest", missing));
            assert!(!good && said.contains("cannot use file descriptor '987': Bad file descriptor"), "{said}");
            let missing = "frontend b\n bind sockpair@987\n http-request return status 200\n";
            let (good, said) = reload(&mut gate, &text("newest", missing));
            assert!(!good && said.contains("Bad file descriptor"), "{said}");
        }
        assert_eq!(get(&mut pass(&first)), "new");
        let (good, said) = reload(&mut gate, &text("last", ""));
        assert!(good, "{said}");
        wait_until("the reload", || match get(&mut pass(&first)).as_str() {
            "last" => Ok(()),
            body => Err(body.to_owned()),
        });
    }
}
