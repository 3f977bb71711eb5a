//! `sluicegate top`, on a terminal and without one, of this program and of the real haproxy.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate, wait_for};

use crate::{BINARY, start};

const PROXIES: &str = "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\nfrontend www\n bind \
                       \"@FRONT@\"\n default_backend app\nbackend app\n server s1 127.0.0.1:1 weight 7\n server s2 127.0.0.1:2\n";

/// The program on a pseudo-terminal of 160 columns and 40 lines.
struct Terminal {
    child: Child,
    master: File,
    seen: Arc<Mutex<String>>,
}

impl Terminal {
    fn start(words: &[&str]) -> Terminal {
        let (mut master, mut slave) = (-1, -1);
        let size = libc::winsize { ws_row: 40, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: both numbers and the size are valid places, and no name or settings are wanted.
        let done = unsafe { libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(done, 0);
        // SAFETY: openpty has just opened both, and nothing else has them.
        let (master, slave) = unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let side = || Stdio::from(slave.try_clone().expect("a descriptor"));
        let child =
            Command::new(BINARY).args(words).stdin(side()).stdout(side()).stderr(side()).spawn().expect("started");
        drop(slave);
        let master = File::from(master);
        let seen = Arc::new(Mutex::new(String::new()));
        let (mut reader, shown) = (master.try_clone().expect("a descriptor"), seen.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            // The terminal ends with its last program.
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                shown.lock().expect("not poisoned").push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Terminal { child, master, seen }
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("typed");
    }

    fn wait_for(&self, text: &str) {
        wait_for(text, || shown(&self.seen.lock().expect("not poisoned")).contains(text).then_some(()));
    }
}

/// What is on the screen after these bytes, of which a frame has only the cells that changed.
fn shown(bytes: &str) -> String {
    let mut lines = vec![vec![' '; 160]; 40];
    let (mut x, mut y) = (0, 0);
    let mut rest = bytes.chars();
    while let Some(character) = rest.next() {
        if character != '\x1b' {
            if let Some(cell) = lines.get_mut(y).and_then(|line: &mut Vec<char>| line.get_mut(x)) {
                *cell = character;
            }
            x += 1;
            continue;
        }
        let sequence: String = rest.by_ref().skip(1).take_while(|character| !character.is_ascii_alphabetic()).collect();
        // Of all sequences only moves of the cursor have two numbers.
        if let Some((row, column)) = sequence.split_once(';')
            && let (Ok(row), Ok(column)) = (row.parse::<usize>(), column.parse::<usize>())
            && row > 0
        {
            (y, x) = (row - 1, column - 1);
        }
    }
    lines.iter().map(|line| line.iter().collect::<String>() + "\n").collect()
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn once(socket: &str) -> String {
    let output = Command::new(BINARY).args(["top", socket, "--once"]).output().expect("started");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn keys_change_servers_and_everything_is_shown() {
    let (front, store) = (Listening::new(), Listening::new());
    let text = format!(
        "global\n    stats socket @DIR@/stats level admin\nstore main\n    bind \"{}\"\n{}",
        store.word(),
        PROXIES.replace("@FRONT@", &front.word()).replace(
            "default_backend",
            "http-request limit per-ip key src rate 1/1h \
        store main\n default_backend"
        )
    );
    let server = start(&text, &[&front, &store]);
    let socket = server.directory().join("stats").display().to_string();
    assert_eq!(Client::connect(&front.address()).get("/").status, 503);
    assert_eq!(Client::connect(&front.address()).get("/").status, 429);
    let shown = once(&socket);
    for part in ["www FRONTEND", "  s1", "app BACKEND", "main", "per-ip", "key=127.0.0.1"] {
        assert!(shown.contains(part), "no {part} in\n{shown}");
    }
    let mut terminal = Terminal::start(&["top", &socket, "-i", "0.2"]);
    terminal.wait_for("www FRONTEND");
    terminal.press("\x1b[Bd");
    terminal.wait_for("MAINT");
    let state = |column: &str| {
        let stat = Sluicegate::stats(&server.directory().join("stats"), "show stat");
        let names: Vec<&str> = stat.lines().next().expect("a head").trim_start_matches("# ").split(',').collect();
        let at = names.iter().position(|name| *name == column).expect("a column");
        let row = stat.lines().find(|line| line.starts_with("app,s1,")).expect("a row");
        row.split(',').nth(at).expect("a cell").to_owned()
    };
    assert_eq!(state("status"), "MAINT");
    terminal.press("e");
    wait_for("the server", || (state("status") != "MAINT").then_some(()));
    terminal.press("w9\r");
    wait_for("the weight", || (state("weight") == "9").then_some(()));
    terminal.press("D");
    wait_for("the drain", || state("status").starts_with("DRAIN").then_some(()));
    terminal.press("c");
    wait_for("the counters", || (state("stot") == "0").then_some(()));
    terminal.press("2");
    terminal.wait_for("expiring");
    terminal.press("4");
    terminal.wait_for("shadowed");
    terminal.press("q");
    assert!(terminal.child.wait().expect("ended").success());
    wait_for("the screen before", || {
        terminal.seen.lock().expect("not poisoned").ends_with("\x1b[?1049l").then_some(())
    });
}

#[test]
fn a_real_haproxy_is_shown() {
    let front = Listening::new();
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("stats").display().to_string();
    let text =
        format!("global\n    stats socket {socket} level admin\n{}", PROXIES.replace("\"@FRONT@\"", &front.word()));
    let _haproxy = Haproxy::start(&text, &[&front]);
    wait_for("the socket", || std::os::unix::net::UnixStream::connect(&socket).ok());
    let shown = once(&socket);
    for part in ["HAProxy 2.", "www FRONTEND", "  s1", "app BACKEND"] {
        assert!(shown.contains(part), "no {part} in\n{shown}");
    }
    let mut terminal = Terminal::start(&["top", &socket, "-i", "0.2"]);
    terminal.wait_for("www FRONTEND");
    terminal.press("\x1b[Bd");
    terminal.wait_for("MAINT");
    terminal.press("\x03");
    assert!(terminal.child.wait().expect("ended").success());
}

#[test]
fn what_is_no_stats_socket_is_named() {
    let output = Command::new(BINARY).args(["top", "/nonexistent/socket"]).output().expect("started");
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("stats socket /nonexistent/socket: No such file"), "{text}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        // A close with unread bytes would be a reset.
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad request\r\n\r\n");
    });
    let output = Command::new(BINARY).args(["top", &address]).output().expect("started");
    assert!(String::from_utf8_lossy(&output.stderr).contains("does not answer as a stats socket"), "{output:?}");
}
