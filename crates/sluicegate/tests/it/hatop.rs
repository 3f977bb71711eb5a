//! Debian's `hatop`, unmodified and in a terminal of its own, against the stats socket: its views show our servers, its
//! keys act on them, and its prompt passes commands on.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use sluicegate_testkit::{Client, Listening, Sluicegate, wait_for};

use super::start;

const END: &str = "\u{1b}OF";
const UP: &str = "\u{1b}OA";
const F4: &str = "\u{1b}OS";
const F5: &str = "\u{1b}[15~";
const F6: &str = "\u{1b}[17~";
const F7: &str = "\u{1b}[18~";
const F8: &str = "\u{1b}[19~";
const F9: &str = "\u{1b}[20~";
const F10: &str = "\u{1b}[21~";

/// A program in a terminal of 40 lines and 132 columns.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn start(mut command: Command) -> Terminal {
        let size = libc::winsize { ws_row: 40, ws_col: 132, ws_xpixel: 0, ws_ypixel: 0 };
        let (mut near, mut far) = (-1, -1);
        // SAFETY: both descriptors and the size are written and read through pointers to locals that outlive the call;
        // a name and settings of the terminal are not asked for.
        let made = unsafe { libc::openpty(&mut near, &mut far, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: openpty has just made both, so nobody else owns them.
        let (near, far) = unsafe { (OwnedFd::from_raw_fd(near), OwnedFd::from_raw_fd(far)) };
        let number = far.as_raw_fd();
        // SAFETY: between fork and exec only setsid and ioctl run, which are async-signal-safe and touch no memory.
        unsafe {
            command.pre_exec(move || {
                if libc::setsid() < 0 || libc::ioctl(number, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let stdio = || Stdio::from(far.try_clone().expect("a copy"));
        command.env("TERM", "xterm").stdin(stdio()).stdout(stdio()).stderr(stdio());
        let child = command.spawn().expect("hatop starts");
        let keyboard = File::from(near);
        let mut from = keyboard.try_clone().expect("a copy");
        let screen = Arc::new(Mutex::new(Vec::new()));
        std::thread::spawn({
            let screen = screen.clone();
            move || {
                let mut buffer = [0; 4096];
                // Reading a terminal whose last program has ended is an error.
                while let Ok(count @ 1..) = from.read(&mut buffer) {
                    screen.lock().expect("not poisoned").extend_from_slice(&buffer[..count]);
                }
            }
        });
        Terminal { child, keyboard, screen }
    }

    fn press(&mut self, key: &str) {
        self.keyboard.write_all(key.as_bytes()).expect("a terminal");
    }

    /// Presses a key that changes nothing but the screen, and waits until it has.
    #[track_caller]
    fn moves(&mut self, key: &str) {
        let before = self.printed();
        self.press(key);
        wait_for("the screen to change", || (self.printed() > before).then_some(()));
    }

    /// Presses a key that sends a command about this server. Once hatop has the answer it says so in the place of the
    /// name, which comes back when it has read new figures: from there on the next key works with them.
    #[track_caller]
    fn acts(&mut self, key: &str, server: &str) {
        let before = self.printed();
        self.press(key);
        let said = self.shows(before, "updating...");
        self.shows(said, server);
    }

    /// How much was printed so far.
    fn printed(&self) -> usize {
        self.screen.lock().expect("not poisoned").len()
    }

    /// Waits until `text` is printed behind the first `from` bytes; gives how much was printed up to its end.
    #[track_caller]
    fn shows(&self, from: usize, text: &str) -> usize {
        wait_for(&format!("{text:?} on the screen"), || {
            let screen = self.screen.lock().expect("not poisoned");
            let at = screen[from..].windows(text.len()).position(|bytes| bytes == text.as_bytes())?;
            Some(from + at + text.len())
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- screen:\n{:?}", String::from_utf8_lossy(&self.screen.lock().expect("not poisoned")));
        }
    }
}

/// The named column of one server, by `show stat`.
fn column(stats: &Path, server: &str, name: &str) -> String {
    let csv = Sluicegate::stats(stats, "show stat app 4 -1");
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next().expect("a header").trim_start_matches("# ").split(',').collect();
    let at = names.iter().position(|known| *known == name).expect("a column");
    let row = lines.find(|line| line.split(',').nth(1) == Some(server)).expect("the server");
    row.split(',').nth(at).expect("a cell").to_owned()
}

#[track_caller]
fn becomes(stats: &Path, server: &str, name: &str, expected: &str) {
    wait_for(&format!("{name} of {server} to be {expected}"), || {
        (column(stats, server, name) == expected).then_some(())
    });
}

fn served() -> (Sluicegate, PathBuf, Listening) {
    let gate = Listening::new();
    let server = start(
        &format!(
            "global\n stats socket @DIR@/stats level admin\n stats timeout 30s\ndefaults\n mode http\n timeout client \
             5s\n timeout server 60s\n timeout connect 60s\nfrontend www\n bind {}\n default_backend app\nbackend app\n \
             server nimble 127.0.0.1:1 weight 20\n server steady 127.0.0.1:1\n",
            gate.word()
        ),
        &[&gate],
    );
    let stats = server.directory().join("stats");
    // A process that answers also listens.
    Sluicegate::stats(&stats, "show info");
    (server, stats, gate)
}

#[test]
fn hatop_shows_servers_and_its_keys_act() {
    let (server, stats, _gate) = served();
    let mut command = Command::new("/usr/bin/hatop");
    command.arg("-s").arg(&stats).args(["-i", "1"]);
    let mut hatop = Terminal::start(command);
    for text in ["HAProxy Version: 3.2.0-sluicegate", &format!("PID: {}", server.program.pid()), "www", "app"] {
        hatop.shows(0, text);
    }
    hatop.shows(0, "nimble");
    hatop.shows(0, "steady");

    // The last row is the backend's; above it stand its servers in order.
    for key in [END, UP, UP] {
        hatop.moves(key);
    }
    hatop.acts(F10, "nimble");
    assert_eq!(column(&stats, "nimble", "status"), "MAINT");
    hatop.acts(F9, "nimble");
    assert_eq!(column(&stats, "nimble", "status"), "no check");
    for (key, weight) in [(F6, "19"), (F5, "9"), (F7, "10"), (F8, "20"), (F6, "19"), (F4, "20")] {
        hatop.acts(key, "nimble");
        assert_eq!(column(&stats, "nimble", "weight"), weight);
    }

    // Its other views read the same answers: each shows columns that no other has.
    for (key, text) in [("2", "RATE"), ("3", "2xx"), ("4", "ERRORS")] {
        let before = hatop.printed();
        hatop.press(key);
        hatop.shows(before, text);
    }
    // Its prompt passes commands on.
    hatop.moves("5");
    let before = hatop.printed();
    hatop.press("show cli level\r");
    hatop.shows(before, "admin");
    hatop.press("disable server app/steady\r");
    becomes(&stats, "steady", "status", "MAINT");
}

/// While all connections that `maxconn` allows are in use and more wait, hatop starts, reads figures and acts.
#[test]
fn hatop_answers_while_the_proxy_is_saturated() {
    const MOST: usize = 3;
    let gate = Listening::new();
    let origin = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let server = start(
        &format!(
            "global\n maxconn {MOST}\n stats socket @DIR@/stats level admin\n stats timeout 30s\ndefaults\n mode http\n \
             timeout client 60s\n timeout server 60s\n timeout connect 60s\nfrontend www\n bind {}\n \
             default_backend app\nbackend app\n server nimble {} weight 20\n server steady 127.0.0.1:1 disabled\n",
            gate.word(),
            origin.local_addr().expect("bound")
        ),
        &[&gate],
    );
    let stats = server.directory().join("stats");
    let mut clients: Vec<Client> = (0..2 * MOST).map(|_| Client::connect(&gate.address())).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    }
    let accept = || {
        let (mut peer, _) = origin.accept().expect("the proxy connects");
        assert!(peer.read(&mut [0; 4096]).expect("a request") > 0);
        peer
    };
    let held: Vec<TcpStream> = (0..MOST).map(|_| accept()).collect();
    let info = Sluicegate::stats(&stats, "show info");
    assert!(info.contains(&format!("\nCurrConns: {MOST}\n")), "{info}");

    let mut command = Command::new("/usr/bin/hatop");
    command.arg("-s").arg(&stats).args(["-i", "1"]);
    let mut hatop = Terminal::start(command);
    for text in ["www", "app", "nimble", "steady"] {
        hatop.shows(0, text);
    }
    for key in [END, UP, UP] {
        hatop.moves(key);
    }
    hatop.acts(F6, "nimble");
    assert_eq!(column(&stats, "nimble", "weight"), "19");
    assert_eq!(column(&stats, "nimble", "scur"), MOST.to_string(), "nothing was answered meanwhile");

    // The waiting clients are served once there is room.
    let answer = |mut peer: TcpStream| {
        peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            .expect("the proxy reads");
    };
    held.into_iter().for_each(answer);
    (0..MOST).for_each(|_| answer(accept()));
    for client in &mut clients {
        assert_eq!(client.read_response().status, 200);
    }
}
