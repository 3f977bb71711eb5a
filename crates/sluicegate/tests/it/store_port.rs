//! Exclusive addresses of stores: other processes and sections are refused, reloads keep or move them.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use sluicegate_testkit::{Client, Haproxy, PATIENCE, Program, RedisServer, free_port, wait_for};

use crate::BINARY;

const GLOBAL: &str = "global\n nbthread 2\n stats socket @DIR@/stats level admin\n";

/// A directory with a file and our binary under the name `haproxy`.
struct Place(tempfile::TempDir);

impl Place {
    fn new(text: &str) -> Place {
        let place = Place(tempfile::tempdir().expect("a directory"));
        std::os::unix::fs::symlink(BINARY, place.0.path().join("haproxy")).expect("a link");
        place.write(text);
        place
    }

    /// A store at this address.
    fn store(address: &str) -> Place {
        Place::new(&format!("{GLOBAL}store main\n bind {address}\n"))
    }

    fn write(&self, text: &str) {
        let text = text.replace("@DIR@", self.0.path().to_str().expect("UTF-8"));
        std::fs::write(self.0.path().join("a.cfg"), text).expect("writable");
    }

    /// Starts `haproxy -f a.cfg` with more words.
    fn start(&self, words: &[&str]) -> Program {
        let mut command = Command::new(self.0.path().join("haproxy"));
        command.args(["-f", "a.cfg"]).args(words).current_dir(self.0.path());
        Program::start(command, &[])
    }

    /// `sluicegate run a.cfg`.
    fn run(&self) -> Program {
        let mut command = Command::new(BINARY);
        command.args(["run", "a.cfg"]).current_dir(self.0.path());
        Program::start(command, &[])
    }

    /// Asserts that a start fails; returns its output.
    #[track_caller]
    fn refused(&self, words: &[&str]) -> String {
        let mut program = self.start(words);
        assert_eq!(program.wait(), 1, "{}", program.output());
        program.comes_to_print("never printed");
        program.output()
    }
}

/// Starts `sluicegate store` on this port, with further words.
fn store(port: u16, words: &[&str]) -> Program {
    let mut command = Command::new(BINARY);
    command.args(["store", "--port", &port.to_string(), "--bind", "127.0.0.1", "--threads", "2"]).args(words);
    Program::start(command, &[])
}

/// Waits for the store on this port and connects to it.
#[track_caller]
fn client(port: u16) -> Client {
    wait_for("the store", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    Client::connect(&format!("127.0.0.1:{port}"))
}

/// Asserts that every connection reaches the store with this value.
#[track_caller]
fn all_find(port: u16, value: &str) {
    for _ in 0..16 {
        assert_eq!(client(port).ask(&["GET", "who"]), format!("${}\r\n{value}\r\n", value.len()));
    }
}

/// Two services can't share a store's port in silence, each with data of its own.
#[test]
fn a_second_service_does_not_start_on_the_port_of_a_store() {
    let port = free_port();
    let [first, second] = [(); 2].map(|()| Place::store(&format!("127.0.0.1:{port}")));
    let mut serving = first.run();
    assert_eq!(client(port).ask(&["SET", "who", "first"]), "+OK\r\n");
    let said = second.refused(&[]);
    let expected = format!(
        "a.cfg:5: 'main': cannot bind 127.0.0.1:{port} (Address already in use): another process listens on it, and the \
         store 'main' does not share it: stop that one or change 'bind'"
    );
    assert!(said.contains(&expected), "{said}");
    // `-sf` with the number of no process replaces none.
    let gone = 0x3f_ffff.to_string();
    assert!(second.refused(&["-sf", &gone]).contains("Address already in use"));
    // A store of its own is refused as well.
    let mut alone = store(port, &[]);
    assert_eq!(alone.wait(), 1);
    assert!(alone.output().contains("bind: Address already in use"), "{}", alone.output());
    all_find(port, "first");
    serving.signal(libc::SIGTERM);
    serving.wait();
    // The port is free as soon as the first has ended.
    let _next = second.run();
    assert_eq!(client(port).ask(&["GET", "who"]), "$-1\r\n");
}

#[test]
fn a_service_does_not_start_on_the_port_of_another_program() {
    let redis = RedisServer::start(&[]);
    let said = Place::store(&redis.address()).refused(&[]);
    assert!(said.contains(&format!("cannot bind {} (Address already in use)", redis.address())), "{said}");
    let port = free_port();
    let mut alone = store(port, &[]);
    alone.wait_for_output("Ready to accept connections tcp");
    let said = Place::store(&format!("127.0.0.1:{port}")).refused(&[]);
    assert!(said.contains("Address already in use"), "{said}");
    // Frontends share their ports, a store does not.
    let port = free_port();
    let text = format!("defaults\n mode tcp\n timeout client 60s\nfrontend f\n bind 127.0.0.1:{port}\n");
    let _haproxy = Haproxy::start(&text, &[]);
    wait_for("haproxy", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    let said = Place::store(&format!("127.0.0.1:{port}")).refused(&[]);
    assert!(said.contains("Address already in use"), "{said}");
}

/// In a network namespace of its own, since it listens on every address.
#[test]
fn every_address_of_a_port_holds_each_of_them() {
    let [all, one] = ["*:7379", "127.0.0.1:7379"].map(Place::store);
    for (first, second) in [(&all, &one), (&one, &all)] {
        let script = "ip link set lo up; cd \"$0\"; \"$2\" run a.cfg & gate=$!; trap 'kill $gate' EXIT; \
                      for i in $(seq 1000); do redis-cli -p 7379 PING 2>/dev/null && break; sleep 0.05; done; \
                      cd \"$1\"; \"$2\" run a.cfg 2>&1; echo code $?; redis-cli -p 7379 SET who first; \
                      for i in 1 2 3 4 5 6 7 8; do redis-cli -p 7379 GET who; done";
        let mut command = Command::new("unshare");
        command.args(["-n", "bash", "-c", script]).args([first.0.path(), second.0.path(), Path::new(BINARY)]);
        let mut program = Program::start(command, &[]);
        program.wait();
        program.comes_to_print("never printed");
        let output = program.output();
        assert!(output.contains(":7379 (Address already in use)") && output.contains("code 1"), "{output}");
        assert_eq!(output.lines().filter(|line| *line == "first").count(), 8, "{output}");
    }
}

#[test]
fn sections_of_one_file_do_not_share_the_address_of_a_store() {
    let port = free_port();
    let web = "defaults\n mode http\n timeout client 60s\nfrontend web\n http-request return status 200\n";
    for (others, holder, line) in [
        (format!("{web} bind 127.0.0.1:{port}\n"), "web", 9),
        (format!("store first\n bind 127.0.0.1:{port}\n"), "first", 5),
        (format!("origin o\n bind 127.0.0.1:{port}\n"), "o", 5),
    ] {
        let place = Place::new(&format!("{GLOBAL}{others}store main\n bind 127.0.0.1:{port}\n"));
        let said = place.refused(&[]);
        assert!(said.contains(&format!("'main': cannot bind 127.0.0.1:{port} (Address already in use)")), "{said}");
        assert!(said.contains(&format!("'{holder}' (a.cfg:{line}) listens on it")), "{said}");
    }
    // Nor does a section that comes in a reload.
    let place = Place::store(&format!("127.0.0.1:{port}"));
    let serving = place.run();
    assert_eq!(client(port).ask(&["SET", "who", "first"]), "+OK\r\n");
    place.write(&format!("{GLOBAL}store main\n bind 127.0.0.1:{port}\n{web} bind 127.0.0.1:{port}\n"));
    let ended = reload(&serving);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("'web' (a.cfg:11) listens on it"), "{ended:?}");
    all_find(port, "first");
}

fn reload(program: &Program) -> std::process::Output {
    Command::new(BINARY).args(["reload", &program.pid().to_string()]).output().expect("it starts")
}

#[test]
fn a_reload_keeps_the_port_or_moves_it() {
    let [port, next] = [free_port(), free_port()];
    let place = Place::store(&format!("127.0.0.1:{port}"));
    let serving = place.start(&["-db"]);
    assert_eq!(client(port).ask(&["SET", "who", "first"]), "+OK\r\n");
    let ended = reload(&serving);
    assert!(ended.status.success(), "{ended:?}");
    all_find(port, "first");
    // The store moves to another port, and another section gets the old one.
    let moved = format!("{GLOBAL}store main\n bind 127.0.0.1:{next}\nstore other\n bind 127.0.0.1:{port}\n");
    place.write(&moved);
    let ended = reload(&serving);
    assert!(ended.status.success(), "{ended:?}");
    all_find(next, "first");
    // The workers close the old sockets one after the other, with the connections that wait in them.
    wait_for("the other store", || {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(b"GET who\r\n").ok()?;
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).ok()?;
        (&reply == b"$-1\r\n").then_some(())
    });
    // A port of another program: the reload is refused, and the service is unchanged.
    let redis = RedisServer::start(&[]);
    place.write(&format!("{GLOBAL}store main\n bind {}\nstore other\n", redis.address()));
    let ended = reload(&serving);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("(Address already in use)"), "{ended:?}");
    all_find(next, "first");
    // `-sf` is a reload.
    place.write(&moved);
    let pid = serving.pid().to_string();
    let mut new = place.start(&["-db", "-sf", &pid]);
    new.wait_for_output("goes on with this configuration");
    all_find(next, "first");
}

#[test]
fn a_master_keeps_the_port() {
    let port = free_port();
    let place = Place::store(&format!("127.0.0.1:{port}"));
    let mut master = place.start(&["-W"]);
    assert_eq!(client(port).ask(&["SET", "who", "first"]), "+OK\r\n");
    // The start is a first success.
    master.wait_for_output("Loading success.");
    master.signal(libc::SIGUSR2);
    wait_for("a reload", || (master.output().matches("Loading success.").count() > 1).then_some(()));
    all_find(port, "first");
    master.signal(libc::SIGTERM);
}

/// `-st`: the successor binds the port before the old process ends.
#[test]
fn a_start_that_replaces_a_process_takes_the_port_over() {
    let port = free_port();
    let place = Place::store(&format!("127.0.0.1:{port}"));
    let mut old = place.start(&["-db"]);
    assert_eq!(client(port).ask(&["SET", "who", "first"]), "+OK\r\n");
    let mut new = place.start(&["-db", "-st", &old.pid().to_string()]);
    assert_eq!(old.wait(), -libc::SIGTERM, "{}", old.output());
    assert_eq!(client(port).ask(&["SET", "who", "second"]), "+OK\r\n");
    all_find(port, "second");
    assert!(new.is_running());
    // The port of the successor is exclusive as well.
    assert!(place.refused(&["-db"]).contains("Address already in use"));
}

#[test]
fn the_unix_socket_of_a_living_store_stays() {
    let place = Place::new("");
    let path = place.0.path().join("s");
    let text = path.display().to_string();
    let start = || {
        let mut program = store(0, &["--unixsocket", &text]);
        (program.comes_to_print("Ready to accept connections unix"), program)
    };
    let (serves, mut first) = start();
    assert!(serves, "{}", first.output());
    let (serves, mut second) = start();
    assert!(!serves && second.wait() == 1, "{}", second.output());
    let said = second.output();
    assert!(said.contains("Failed opening Unix socket: bind: Address already in use"), "{said}");
    place.write(&format!("{GLOBAL}store main\n bind unix@{text}\n"));
    assert!(place.refused(&["-db"]).contains("(Address already in use)"));
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    // The file of a killed store is replaced, as in Redis.
    first.signal(libc::SIGKILL);
    first.wait();
    assert!(path.exists());
    assert!(start().0);
}
