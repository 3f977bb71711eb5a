//! Options of sockets: namespaces, shared ports, privileged ports, stats sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use sluicegate_testkit::{Client, Listening, PATIENCE, Sluicegate, free_port, wait_for};
use socket2::{Domain, Protocol, Socket, Type};

use super::{DEFAULTS, answer, one_proxy};
use crate::start;

/// A network namespace that `ip netns` knows by a name of this process.
struct Namespace(String);

impl Namespace {
    /// Returns one with a loopback interface that is up; `None` without the right to make it.
    fn new(purpose: &str) -> Option<Namespace> {
        let name = format!("sluicegate-{}-{purpose}", std::process::id());
        let ip = |words: &[&str]| Command::new("ip").args(words).status().is_ok_and(|status| status.success());
        ip(&["netns", "add", &name]).then_some(())?;
        let namespace = Namespace(name);
        ip(&["-n", &namespace.0, "link", "set", "lo", "up"]).then_some(namespace)
    }

    /// Runs a command in it; returns its output if it succeeds.
    fn run(&self, words: &[&str]) -> Option<String> {
        let output = Command::new("ip").args(["netns", "exec", &self.0]).args(words).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn sockets_are_in_the_namespaces_of_their_lines() {
    let Some(inside) = Namespace::new("inside") else { return };
    let gate = Listening::new();
    let name = &inside.0;
    // The server's port is a listener's in the namespace, and nobody's outside it.
    let text = format!(
        "{DEFAULTS}namespace_list\n    namespace {name}\nlisten gate\n    bind \"{}\"\n    \
         use-server own if {{ path /of-client }}\n    server s 127.0.0.1:18000 namespace {name}\n    \
         server own 127.0.0.1:18000 namespace * weight 0\nlisten inside\n    bind 127.0.0.1:18000 namespace {name}\n    \
         use_backend other if {{ path /again }}\n{}backend other\n    server s 127.0.0.1:18000 namespace *\n",
        gate.word(),
        answer("inside %[dst]").trim_end().to_owned() + " if ! { path /again }\n",
    );
    let _server = start(&text, &[&gate]);
    assert_eq!(Client::connect(&gate.address()).get("/").text(), "inside 127.0.0.1");
    // The client's connection has none.
    assert_eq!(Client::connect(&gate.address()).get("/of-client").status, 503);
    let said = inside.run(&["curl", "-s", "--max-time", "30", "http://127.0.0.1:18000/"]);
    assert_eq!(said.as_deref(), Some("inside 127.0.0.1"));
    assert!(TcpStream::connect("127.0.0.1:18000").is_err());
}

#[test]
fn a_namespace_that_is_not_there_is_an_error() {
    let text =
        format!("{DEFAULTS}listen gate\n    bind 127.0.0.1:1\n    server s 127.0.0.1:1 namespace not-there-at-all\n");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("a.cfg");
    std::fs::write(&file, text).expect("writable");
    let output = Command::new(crate::BINARY).arg("check").arg(&file).output().expect("runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("Cannot open namespace 'not-there-at-all'"), "{said}");
}

#[test]
fn noreuseport_keeps_others_from_the_port() {
    for (keyword, shared) in [("", true), ("    noreuseport\n", false)] {
        let port = sluicegate_testkit::free_port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let text =
            format!("global\n    nbthread 3\n{keyword}{DEFAULTS}listen gate\n    bind {address}\n{}", answer("ok"));
        let _server = start(&text, &[]);
        wait_for("the start", || TcpStream::connect(address).ok());
        for _ in 0..9 {
            assert_eq!(Client::connect(&address.to_string()).get("/").status, 200, "{keyword}");
        }
        let other = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        other.set_reuse_port(true).expect("settable");
        assert_eq!(other.bind(&address.into()).is_ok(), shared, "{keyword}");
    }
}

#[test]
fn addresses_say_which_kind_of_socket_they_are_of() {
    let (gate, inner) = (Listening::new(), Listening::new());
    // Both lines name the kind that they would have without it.
    let text = format!(
        "{DEFAULTS}listen gate\n    bind \"stream+{}\"\n    server s stream+{}\nlisten inner\n    bind \"{}\"\n{}",
        gate.word(),
        inner.address(),
        inner.word(),
        answer("inside %[dst_port]"),
    );
    let _server = start(&text, &[&gate, &inner]);
    let port = inner.address().rsplit(':').next().expect("a port").to_owned();
    assert_eq!(Client::connect(&gate.address()).get("/").text(), format!("inside {port}"));
}

/// Returns a connection from a port below 1024; `None` without the right to such a port.
fn privileged(to: &str) -> Option<TcpStream> {
    let to: SocketAddr = to.parse().expect("an address");
    for port in (600..1024).rev() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        match socket.bind(&SocketAddr::from(([127, 0, 0, 1], port)).into()) {
            Ok(()) => {
                socket.connect(&to.into()).expect("somebody listens");
                return Some(socket.into());
            }
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return None,
            Err(_) => {}
        }
    }
    None
}

#[test]
fn privileged_ports_of_clients_are_refused_on_demand() {
    for (keyword, served) in [
        ("", true),
        ("    harden.reject-privileged-ports.tcp off\n", true),
        ("    harden.reject-privileged-ports.tcp on\n", false),
    ] {
        let gate = Listening::new();
        let _server = start(&one_proxy(keyword, &gate, &answer("ok")), &[&gate]);
        assert_eq!(Client::connect(&gate.address()).get("/").status, 200);
        let Some(mut stream) = privileged(&gate.address()) else { return };
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        // A connection that is closed at once may refuse the bytes, or reset what follows.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert_eq!(said.starts_with(b"HTTP/1.1 200"), served, "{keyword}");
    }
}

#[test]
fn a_stats_socket_has_the_options_of_bind() {
    let gate = Listening::new();
    let port = sluicegate_testkit::free_port();
    let global = format!(
        "    stats socket @DIR@/stats level admin severity-output string\n    \
         stats socket 127.0.0.1:{port} level user maxconn 1 backlog 5 accept-proxy interface lo tcp-ut 5s v4v6 id 7\n"
    );
    let server = start(&one_proxy(&global, &gate, "    server a 127.0.0.1:1\n"), &[&gate]);
    let said = Sluicegate::stats(&server.directory().join("stats"), "set server gate/a weight x");
    assert!(said.starts_with("[err]: "), "{said}");
    let ask = |first: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        stream.write_all(first.as_bytes()).expect("writable");
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        said
    };
    assert_eq!(ask("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nshow cli level\n"), "user\n\n");
    assert_eq!(ask("show cli level\n"), "", "without the header");
    // One client at once: the second waits for the end of the first.
    let begin = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.write_all(b"PROXY UNKNOWN\r\nprompt\n").expect("writable");
        stream
    };
    let answers = |stream: &mut TcpStream, patience: Duration| {
        stream.set_read_timeout(Some(patience)).expect("settable");
        stream.read(&mut [0; 16]).is_ok_and(|count| count > 0)
    };
    let mut first = begin();
    assert!(answers(&mut first, PATIENCE));
    let mut second = begin();
    assert!(!answers(&mut second, Duration::from_millis(100)));
    drop(first);
    assert!(answers(&mut second, PATIENCE));
}

#[test]
fn anonkey_is_the_key_of_set_anon_on() {
    let shown = |keyword: &str| {
        let gate = Listening::new();
        let global = format!("    stats socket @DIR@/stats level admin\n{keyword}");
        let server = start(&one_proxy(&global, &gate, &answer("ok")), &[&gate]);
        Sluicegate::stats(&server.directory().join("stats"), "set anon on; show anon; echo gate")
    };
    let one = shown("    anonkey 12345\n");
    assert!(one.contains("Key : 12345"), "{one}");
    assert_eq!(one, shown("    anonkey 12345\n"));
    assert_ne!(one, shown("    anonkey 54321\n"));
}

/// Returns whether a connection is one of MPTCP to its end.
fn is_multipath(socket: &impl AsRawFd) -> bool {
    /// `TCP_IS_MPTCP`.
    const IS_MULTIPATH: libc::c_int = 43;
    let mut value: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    let into = std::ptr::from_mut(&mut value).cast();
    // SAFETY: the kernel writes one integer, whose size is passed.
    let got = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, IS_MULTIPATH, into, &mut size) };
    got == 0 && value == 1
}

#[test]
fn addresses_of_mptcp() {
    let multipath = || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP));
    // A kernel without it has nothing to test.
    let Ok(origin) = multipath() else { return };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    origin.bind(&any.into()).expect("a port");
    origin.listen(8).expect("listening");
    let place = origin.local_addr().expect("bound").as_socket().expect("an address");
    let port = free_port();
    let text = format!("{DEFAULTS}listen gate\n mode tcp\n bind mptcp@127.0.0.1:{port}\n server s mptcp4@{place}\n");
    let program = start(&text, &[]);
    let gate = SocketAddr::from(([127, 0, 0, 1], port)).into();
    let client = wait_for("the start", || {
        let client = multipath().expect("a socket");
        client.connect(&gate).ok().map(|()| client)
    });
    let (served, _) = origin.accept().expect("a connection");
    assert!(is_multipath(&client) && is_multipath(&served));
    drop(program);
}
