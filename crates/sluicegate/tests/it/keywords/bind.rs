//! `bind`: address forms and options.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use sluicegate_testkit::{Client, Listening, Program, Sluicegate, wait_for};
use socket2::{Domain, Socket, Type};

use super::{DEFAULTS, answer, info, one_proxy};
use crate::{BINARY, start};

/// Reserves a port, unless another socket has it; the returned socket does not listen.
fn hold(port: u16) -> Option<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], port)).into()).ok()?;
    Some(socket)
}

/// Starts a proxy whose addresses `bind` makes from a port and the next one. The returned sockets reserve both.
fn start_on_port(bind: impl Fn(u16) -> String) -> (Sluicegate, u16, [Socket; 2]) {
    let (port, held) = wait_for("two ports", || {
        // The kernel gives a listener without SO_REUSEPORT a port that no other socket has.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let next = port.checked_add(1)?;
        drop(TcpListener::bind(("127.0.0.1", next)).ok()?);
        Some((port, [hold(port)?, hold(next)?]))
    });
    let text = format!("{DEFAULTS}listen gate\n    bind {}\n{}", bind(port), answer("%[dst_port]"));
    (start(&text, &[]), port, held)
}

#[test]
fn a_range_is_a_listener_for_each_port() {
    let (_server, port, _held) = start_on_port(|port| format!("127.0.0.1:{port}-{}", port + 1));
    for port in [port, port + 1] {
        assert_eq!(Client::connect(&format!("127.0.0.1:{port}")).get("/").text(), port.to_string());
    }
}

#[test]
fn several_addresses_on_a_line() {
    let (_server, port, _held) = start_on_port(|port| format!("127.0.0.1:{port},127.0.0.1:{} name both", port + 1));
    for port in [port, port + 1] {
        assert_eq!(Client::connect(&format!("127.0.0.1:{port}")).get("/").text(), port.to_string());
    }
}

#[test]
fn v6only_keeps_ipv4_out_and_v4v6_lets_it_in() {
    if TcpListener::bind("[::1]:0").is_err() {
        // Without IPv6 there is nothing to test.
        return;
    }
    for (option, open) in [("v4v6", true), ("v6only", false)] {
        // A reserved IPv4 port, which no other process gets; an IPv4 listener shares it with the reserving socket.
        let port = sluicegate_testkit::free_port();
        let text = format!("{DEFAULTS}listen gate\n    bind [::]:{port} {option}\n{}", answer("%[dst_port]"));
        let _server = start(&text, &[]);
        wait_for("the start", || TcpStream::connect(("::1", port)).ok());
        assert_eq!(Client::connect(&format!("[::1]:{port}")).get("/").status, 200, "{option}");
        assert_eq!(TcpStream::connect(("127.0.0.1", port)).is_ok(), open, "{option}");
    }
}

/// Returns a listening socket's backlog, for which the kernel uses the field of an established socket's lost segments.
fn backlog(socket: &Socket) -> u32 {
    // SAFETY: the struct is plain numbers, for which zeros are valid, and its size is passed.
    unsafe {
        let mut info: libc::tcp_info = std::mem::zeroed();
        let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
        let into = std::ptr::from_mut(&mut info).cast();
        assert_eq!(libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, into, &mut size), 0);
        info.tcpi_sacked
    }
}

#[test]
fn backlog_is_the_kernels_queue() {
    for (frontend, option, expected) in [
        ("", "", 1024),
        ("", "backlog 7", 7),
        ("    maxconn 9\n", "", 9),
        ("    maxconn 9\n", "maxconn 8", 8),
        ("    maxconn 9\n", "maxconn 8 backlog 7", 7),
    ] {
        // Bound and not yet listening: the process that inherits it listens.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.cfg");
        let fd = socket.as_raw_fd();
        let rule = answer("ok");
        let text = format!("{DEFAULTS}listen gate\n{frontend}    bind \"fd@{fd}\" {option}\n{rule}");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(BINARY);
        command.arg("run").arg(&file);
        let _program = Program::start(command, &[fd]);
        let address = socket.local_addr().unwrap().as_socket().unwrap().to_string();
        assert_eq!(Client::connect(&address).get("/").status, 200);
        assert_eq!(backlog(&socket), expected, "{frontend} {option}");
    }
}

#[test]
fn maxconn_bounds_one_line() {
    let (gate, other) = (Listening::new(), Listening::new());
    let text = format!(
        "{} maxconn 1\n    bind \"{}\"\n{}",
        one_proxy("    stats socket @DIR@/stats\n", &gate, "").trim_end(),
        other.word(),
        answer("ok")
    );
    let server = start(&text, &[&gate, &other]);
    let mut first = Client::connect(&gate.address());
    assert_eq!(first.get("/").status, 200);
    let mut second = Client::connect(&gate.address());
    second.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    // The frontend's other `bind` line continues to accept.
    let mut beside = Client::connect(&other.address());
    assert_eq!(beside.get("/").status, 200);
    assert_eq!(info(&server, "CurrConns"), "2");
    drop(first);
    assert_eq!(second.read_response().status, 200);
}

#[test]
fn a_unix_socket_has_its_mode_and_owner() {
    // SAFETY: neither call takes anything or can fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // Only root may give a file to another user.
    let owner = if uid == 0 { (65533, 65532) } else { (uid, gid) };
    for (options, mode, owner) in [
        ("mode 600".to_owned(), 0o600, (uid, gid)),
        (format!("mode 666 uid {} gid {}", owner.0, owner.1), 0o666, owner),
        (format!("mode 644 user {} group {}", owner.0, owner.1), 0o644, owner),
    ] {
        let gate = Listening::new();
        let text = format!("{}    bind unix@@DIR@/gate {options}\n", one_proxy("", &gate, &answer("ok")));
        let server = start(&text, &[&gate]);
        assert_eq!(Client::connect(&gate.address()).get("/").status, 200);
        let file = std::fs::metadata(server.directory().join("gate")).unwrap();
        assert_eq!((file.mode() & 0o777, file.uid(), file.gid()), (mode, owner.0, owner.1), "{options}");
    }
}

/// Runs a command in the network namespace of a process; returns its output if it succeeds.
fn beside(pid: u32, words: &[&str]) -> Option<String> {
    let output = Command::new("nsenter").args(["-t", &pid.to_string(), "-n"]).args(words).output().expect("nsenter");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// In a network namespace of its own, a program listens on addresses that only later become local, by routes.
#[test]
fn a_transparent_socket_listens_on_addresses_of_others() {
    if !Command::new("unshare").args(["-n", "true"]).status().is_ok_and(|status| status.success()) {
        // Without the right to create a network namespace there is nothing to test.
        return;
    }
    let own = std::fs::read_link("/proc/self/ns/net").expect("linux");
    let addresses = ["203.0.113.7:8000", "[2001:db8::7]:8000"];
    for (program, words) in [("/usr/sbin/haproxy", &["-db", "-f"][..]), (BINARY, &["run"])] {
        let started = |option: &str| {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("a.cfg");
            let binds = addresses.map(|address| format!("    bind {address} {option}\n")).concat();
            std::fs::write(&file, format!("{DEFAULTS}listen gate\n{binds}{}", answer("%[dst] %[src]"))).unwrap();
            let mut command = Command::new("unshare");
            command.args(["-n", program]).args(words).arg(&file);
            (Program::start(command, &[]), directory)
        };
        let (mut refused, _directory) = started("");
        assert_ne!(refused.wait(), 0, "{program}: the addresses are not there");
        let (listens, _directory) = started("transparent");
        let pid = listens.pid();
        wait_for("a network of its own", || {
            let network = std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
            (network != own).then_some(())
        });
        let is_listening = |file: &str| {
            // Its port is 8000, its state that of listening sockets.
            let table = std::fs::read_to_string(format!("/proc/{pid}/net/{file}")).ok()?;
            table.lines().any(|line| line.contains(":1F40 ") && line.contains(" 0A ")).then_some(())
        };
        wait_for("its sockets", || is_listening("tcp").and_then(|()| is_listening("tcp6")));
        for words in [
            &["ip", "link", "set", "lo", "up"][..],
            &["ip", "route", "add", "local", "203.0.113.0/24", "dev", "lo"],
            &["ip", "-6", "route", "add", "local", "2001:db8::/64", "dev", "lo"],
        ] {
            beside(pid, words).unwrap_or_else(|| panic!("{words:?}"));
        }
        for address in addresses {
            let url = format!("http://{address}/");
            let host = address.trim_end_matches(":8000").trim_matches(['[', ']']);
            let said = beside(pid, &["curl", "-s", "-g", "--max-time", "30", &url]).expect("an answer");
            assert_eq!(said.split(' ').next(), Some(host), "{program}: {said}");
        }
    }
}
