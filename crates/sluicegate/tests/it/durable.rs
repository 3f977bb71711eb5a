//! Acknowledged changes are there after the process was killed. `SLUICEGATE_KILLS` sets how often each test does that,
//! `SLUICEGATE_SEED` the first seed of the histories.

mod histories;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluicegate_testkit::{Client, PATIENCE, Program, encode, free_port, rss_bytes, wait_for};

use crate::BINARY;

/// The number of accounts between which money is moved.
const ACCOUNTS: u64 = 20;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// Returns how often the process is killed.
fn kills(count: u64) -> u64 {
    number("SLUICEGATE_KILLS").unwrap_or(count)
}

fn start(dir: &str) -> (Program, String) {
    start_with(store(), dir, "always")
}

fn store() -> Command {
    let mut command = Command::new(BINARY);
    command.arg("store");
    command
}

/// Starts a store with an append-only file that is synced like this.
fn start_with(mut command: Command, dir: &str, fsync: &str) -> (Program, String) {
    let port = free_port().to_string();
    command.args(["--port", &port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--io-threads", "2"]);
    command.args(["--appendonly", "yes", "--appendfsync", fsync]);
    let mut program = Program::start(command, &[]);
    program.wait_for_output("Ready to accept connections tcp");
    (program, format!("127.0.0.1:{port}"))
}

/// Moves money until the server is gone: by EXEC and by scripts, with declared keys and without.
fn move_money(address: &str, thread: u64, stop: &AtomicBool) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let mut buffer = [0; 1024];
    for count in 0_u64.. {
        let (from, to) = (format!("a{}", count % ACCOUNTS), format!("a{}", (count * 7 + thread) % ACCOUNTS));
        let script = "redis.call('decr', KEYS[1] or ARGV[1]) redis.call('incr', KEYS[2] or ARGV[2])";
        let request = match count % 3 {
            0 => [encode(&["MULTI"]), encode(&["DECR", &from]), encode(&["INCR", &to]), encode(&["EXEC"])].concat(),
            1 => encode(&["EVAL", script, "2", &from, &to]),
            _ => encode(&["EVAL", script, "0", &from, &to]),
        };
        if stop.load(Ordering::SeqCst) || stream.write_all(&request).is_err() {
            return;
        }
        if !matches!(stream.read(&mut buffer), Ok(1..)) {
            return;
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    let dir = directory.path().to_str().expect("text");
    let mut acknowledged = 0_u64;
    for round in 0..kills(10) {
        let (mut program, address) = start(dir);
        let mut client = Client::connect(&address);
        let found: u64 = match client.ask(&["GET", "n"]).lines().nth(1) {
            Some(number) => number.parse().expect("a number"),
            None => 0,
        };
        assert!(found >= acknowledged, "round {round}: {found} of {acknowledged}");
        let accounts = (0..ACCOUNTS).map(|account| match client.ask(&["GET", &format!("a{account}")]).lines().nth(1) {
            Some(number) => number.parse::<i64>().expect("a number"),
            None => 0,
        });
        assert_eq!(accounts.sum::<i64>(), 0, "round {round}");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            (0..3).for_each(|thread| {
                scope.spawn({
                    let (address, stop) = (&address, &stop);
                    move || move_money(address, thread, stop)
                });
            });
            let count = 150 + 31 * (round % 10);
            // Some kills come in the middle of a rewrite.
            let rewritten_at = if round % 2 == 0 { 60 } else { count - 3 };
            for number in 0..count {
                let reply = client.ask(&["INCR", "n"]);
                acknowledged = reply[1..].trim_end().parse().unwrap_or_else(|_| panic!("{reply}"));
                if number == rewritten_at {
                    assert!(client.ask(&["BGREWRITEAOF"]).starts_with('+'));
                }
            }
            program.signal(libc::SIGKILL);
            stop.store(true, Ordering::SeqCst);
        });
        program.wait();
    }
}

/// A library that is loaded before the C library. While the folder `HELD` has a file of the call's name, the calls `write`
/// and `fdatasync` do not go on for an increment of the append-only file, and write that to another file there.
const SLOW_DISK: &str = r#"
    #define _GNU_SOURCE
    #include <fcntl.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/syscall.h>
    #include <unistd.h>

    static void held(int file, const char *call) {
        char path[4096], link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length < 0) return;
        path[length] = 0;
        if (!strstr(path, ".incr.aof")) return;
        snprintf(path, sizeof path, "%s/%s", getenv("HELD"), call);
        while (access(path, F_OK) == 0) {
            char reached[4200];
            snprintf(reached, sizeof reached, "%s.reached", path);
            close(open(reached, O_CREAT | O_WRONLY, 0600));
            usleep(1000);
        }
    }
    int fdatasync(int file) {
        held(file, "fdatasync");
        return syscall(SYS_fdatasync, file);
    }
    ssize_t write(int file, const void *bytes, size_t count) {
        held(file, "write");
        return syscall(SYS_write, file, bytes, count);
    }
"#;

/// Writers wait for a disk that is too slow, with what they have written in bounded memory; readers do not. When the disk is
/// fast again, everything is there.
#[test]
fn a_slow_disk_keeps_writers_waiting() {
    const VALUE: usize = 256 << 10;
    /// Far more than what may wait, 64 MiB.
    const WRITES: u64 = 560;
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let text = |name: &str| path(name).to_str().expect("text").to_owned();
    std::fs::create_dir(path("data")).expect("made");
    std::fs::write(path("slow.c"), SLOW_DISK).expect("written");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o", &text("slow.so"), &text("slow.c")])
        .output()
        .expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let mut command = store();
    command.env("LD_PRELOAD", path("slow.so")).env("HELD", directory.path());
    command.args(["--auto-aof-rewrite-percentage", "0"]);
    let (mut program, address) = start_with(command, &text("data"), "everysec");
    let mut client = Client::connect(&address);
    // Each write puts its number at the end of one of a few values.
    let padding = "-".repeat(VALUE);
    for (round, call) in ["fdatasync", "write"].into_iter().enumerate() {
        let (first, before) = (round as u64 * WRITES, rss_bytes(program.pid()));
        std::fs::write(path(call), "").expect("written");
        wait_for("the disk to be slow", || {
            assert_eq!(client.ask(&["SET", "other", call]), "+OK\r\n");
            path(&format!("{call}.reached")).exists().then_some(())
        });
        let acknowledged = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let mut writer = TcpStream::connect(&address).expect("it listens");
            let mut replies = writer.try_clone().expect("a descriptor");
            replies.set_read_timeout(Some(PATIENCE)).expect("settable");
            let padding = &padding;
            scope.spawn(move || {
                for number in first..first + WRITES {
                    let request = encode(&["SET", &format!("k{}", number % 8), &format!("{padding}{number:0>9}")]);
                    writer.write_all(&request).expect("it is read");
                }
            });
            let acknowledged = &acknowledged;
            scope.spawn(move || {
                let mut reply = [0; 5];
                for _ in 0..WRITES {
                    replies.read_exact(&mut reply).expect("a reply");
                    assert_eq!(&reply, b"+OK\r\n");
                    acknowledged.fetch_add(1, Ordering::SeqCst);
                }
            });
            // The writer has come to a stop when a reader has had many replies meanwhile, and it had come far before. On a
            // busy machine it may only be slow, and what follows is a weaker check.
            let mut seen = (0, 0);
            let stopped = wait_for("the writer to stop", || {
                (0..100).for_each(|_| assert!(client.ask(&["GET", "other"]).starts_with('$')));
                let count = acknowledged.load(Ordering::SeqCst);
                seen = if seen.0 == count { (count, seen.1 + 1) } else { (count, 0) };
                (count as usize * VALUE >= 48 << 20 && seen.1 >= 5).then_some(count)
            });
            let bytes = stopped as usize * VALUE;
            assert!(bytes < 96 << 20, "{call}: {stopped} writes were acknowledged");
            let grown = rss_bytes(program.pid()).saturating_sub(before);
            assert!(grown < 112 << 20, "{call}: {grown} bytes more");
            std::fs::remove_file(path(call)).expect("it is there");
        });
        assert_eq!(acknowledged.load(Ordering::SeqCst), WRITES);
        assert_eq!(client.ask(&["SET", "other", call]), "+OK\r\n");
        assert_eq!(client.ask(&["WAITAOF", "1", "0", "0"]), "*2\r\n:1\r\n:0\r\n");
    }
    program.signal(libc::SIGKILL);
    program.wait();
    let (_program, address) = start_with(store(), &text("data"), "everysec");
    let mut client = Client::connect(&address);
    assert_eq!(client.ask(&["GET", "other"]), "$5\r\nwrite\r\n");
    for number in 2 * WRITES - 8..2 * WRITES {
        let found = client.ask(&["GETRANGE", &format!("k{}", number % 8), "-9", "-1"]);
        assert_eq!(found, format!("$9\r\n{number:0>9}\r\n"));
    }
}

/// `-sf` to another version of the program: the process that ends does not save over the file of its successor.
#[test]
fn a_process_that_was_replaced_leaves_the_rdb_file_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let start = |name: &str| {
        let port = free_port();
        let text = format!(
            "global\n log stderr format raw daemon\nstore data\n bind 127.0.0.1:{port}\n dir {}\n save 3600 1\n",
            directory.path().display()
        );
        std::fs::write(directory.path().join(name), text).expect("written");
        let mut command = Command::new(BINARY);
        command.args(["run", name]).current_dir(directory.path());
        let program = Program::start(command, &[]);
        let mut client = Client::connect(&format!("127.0.0.1:{port}"));
        wait_for("the store", || client.ask(&["PING"]).starts_with("+PONG").then_some(()));
        (program, client)
    };
    let (mut old, mut client) = start("old.cfg");
    assert_eq!(client.ask(&["SET", "k", "old"]), "+OK\r\n");
    let (mut new, mut other) = start("new.cfg");
    assert_eq!(other.ask(&["SET", "k", "new"]), "+OK\r\n");
    assert_eq!(other.ask(&["SAVE"]), "+OK\r\n");
    drop(client);
    old.signal(libc::SIGUSR1);
    assert_eq!(old.wait(), 0, "{}", old.output());
    let said = "store data: Another process has written the RDB file since";
    assert!(old.output().contains(said), "{}", old.output());
    new.signal(libc::SIGKILL);
    new.wait();
    let (_next, mut client) = start("next.cfg");
    assert_eq!(client.ask(&["GET", "k"]), "$3\r\nnew\r\n");
}
