//! `-x`: listening sockets that go from one process to the next, between a real haproxy and this program and back.

use std::net::SocketAddr;
use std::process::Command;

use sluicegate_testkit::{Client, Program, wait_for};
use socket2::{Domain, Socket, Type};

use super::{BINARY, DEFAULTS, write};

/// The peer.
const HAPROXY: &str = "/usr/sbin/haproxy";

/// A directory with a file for a frontend that takes one connection at a time.
struct Place {
    directory: tempfile::TempDir,
    port: u16,
    /// Keeps the port from being anybody else's; it does not listen.
    _held: Socket,
}

impl Place {
    fn new() -> Place {
        let held = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        held.set_reuse_port(true).expect("settable");
        held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
        let port = held.local_addr().expect("bound").as_socket().expect("of TCP").port();
        let place = Place { directory: tempfile::tempdir().expect("a directory"), port, _held: held };
        std::os::unix::fs::symlink(BINARY, place.directory.path().join("haproxy")).expect("a link");
        place.serve("one", "expose-fd listeners");
        place
    }

    fn serve(&self, name: &str, stats: &str) {
        let text = format!(
            "global\n nbthread 1\n stats socket @DIR@/stats level admin {stats}\n{DEFAULTS} maxconn 1\nfrontend web\n \
             bind 127.0.0.1:{}\n http-request return status 200 hdr name {name}\nfrontend local\n bind @DIR@/web\n \
             http-request return status 200 hdr name {name}\n",
            self.port
        );
        write(self.directory.path(), &text);
    }

    /// Starts haproxy, or this program under its name.
    fn start(&self, haproxy: bool, words: &[&str]) -> Program {
        let ours = self.directory.path().join("haproxy");
        let mut command = Command::new(if haproxy { HAPROXY.as_ref() } else { ours.as_path() });
        command.args(["-db", "-f", "a.cfg"]).args(words).current_dir(self.directory.path());
        Program::start(command, &[])
    }

    fn connect(&self) -> Client {
        Client::connect(&format!("127.0.0.1:{}", self.port))
    }

    fn name(&self) -> Option<String> {
        std::net::TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        self.connect().get("/").header("name").map(str::to_owned)
    }

    fn stats(&self) -> String {
        self.directory.path().join("stats").display().to_string()
    }

    /// Who answers on the unix socket.
    fn local_name(&self) -> String {
        use std::io::{Read, Write};
        let mut stream =
            std::os::unix::net::UnixStream::connect(self.directory.path().join("web")).expect("it listens");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.lines().find_map(|line| line.strip_prefix("name: ")).expect(&answer).to_owned()
    }
}

/// A connection that waits in a listening socket while one process replaces another is served by the next one.
fn nobody_is_lost(old_is_haproxy: bool, new_is_haproxy: bool) {
    let place = Place::new();
    let mut old = place.start(old_is_haproxy, &[]);
    wait_for("the old process", || place.name());
    // The first connection takes the only place, so the second one waits where the kernel keeps it.
    let mut first = place.connect();
    assert_eq!(first.get("/").header("name"), Some("one"));
    let mut second = place.connect();
    second.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    place.serve("two", "expose-fd listeners");
    let pid = old.pid().to_string();
    let mut new = place.start(new_is_haproxy, &["-x", &place.stats(), "-sf", &pid]);
    let answer = second.read_response();
    assert_eq!((answer.status, answer.header("name")), (200, Some("two")));
    drop((first, second));
    assert_eq!(old.wait(), 0);
    assert_eq!(place.local_name(), "two");
    assert!(new.is_running());
}

#[test]
fn a_real_haproxys_sockets_are_taken_over() {
    nobody_is_lost(true, false);
}

#[test]
fn a_real_haproxy_takes_ours_over() {
    nobody_is_lost(false, true);
}

/// Without `-sf` both serve, as with HAProxy: whoever is first takes a connection.
#[test]
fn nobody_is_told_to_end_by_it() {
    let place = Place::new();
    let mut old = place.start(false, &[]);
    wait_for("the old process", || place.name());
    let mut first = place.connect();
    assert_eq!(first.get("/").header("name"), Some("one"));
    place.serve("two", "expose-fd listeners");
    let mut new = place.start(false, &["-x", &place.stats()]);
    wait_for("the new process", || (place.name()? == "two").then_some(()));
    assert!(old.is_running() && new.is_running());
    // The old one goes, and its socket stays.
    let mut second = place.connect();
    assert_eq!(second.get("/").header("name"), Some("two"));
    drop((first, second));
    old.signal(libc::SIGUSR1);
    assert_eq!(old.wait(), 0);
    assert_eq!(place.name().as_deref(), Some("two"));
}

/// Beside `-sf` of a service that reloads, the sockets stay where they are.
#[test]
fn a_service_that_reloads_keeps_its_sockets() {
    let place = Place::new();
    let mut old = place.start(false, &[]);
    wait_for("the service", || place.name());
    place.serve("two", "expose-fd listeners");
    let pid = old.pid().to_string();
    let mut new = place.start(false, &["-x", &place.stats(), "-sf", &pid]);
    wait_for("the new file", || (place.name()? == "two").then_some(()));
    assert!(old.is_running() && new.is_running());
}

#[test]
fn who_gives_no_sockets_stops_the_start() {
    let place = Place::new();
    place.serve("one", "");
    let mut old = place.start(false, &[]);
    wait_for("the service", || place.name());
    for (path, reason) in
        [(place.stats(), "it gives no sockets away ('expose-fd listeners')"), ("gone".into(), "No such")]
    {
        let mut new = place.start(false, &["-x", &path]);
        new.wait_for_output("Failed to get the sockets from the old process!");
        new.wait_for_output(reason);
        assert_eq!(new.wait(), 1);
        assert_eq!(place.start(true, &["-x", &path]).wait(), 1, "haproxy");
    }
    // Nobody is asked.
    old.signal(libc::SIGTERM);
    old.wait();
    let mut new = place.start(false, &["-x", "/dev/null"]);
    wait_for("the new process", || place.name());
    assert!(new.is_running());
}
