//! A start with `-sf` or `-st` that replaces a service by another process: the stores go over with their data, their files
//! and their replicas, and every acknowledged change is counted.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluicegate_testkit::{Client, PATIENCE, Program, RedisServer, encode, free_port, wait_for};

use super::{BINARY, DEFAULTS, write};

/// A directory with copies of the program, and a file with a store and a frontend whose rules call it.
struct Place {
    directory: tempfile::TempDir,
    store: u16,
    web: u16,
}

impl Place {
    /// `lines` are those of the store's section.
    fn new(lines: &str) -> Place {
        let place =
            Place { directory: tempfile::tempdir().expect("a directory"), store: free_port(), web: free_port() };
        for name in ["one", "two"] {
            std::fs::create_dir(place.directory.path().join(name)).expect("a folder");
        }
        std::os::unix::fs::symlink(BINARY, place.program("one")).expect("a link");
        // Another file is another program.
        std::fs::copy(BINARY, place.program("two")).expect("a copy");
        place.write(lines, "");
        place
    }

    fn program(&self, name: &str) -> PathBuf {
        self.directory.path().join(name).join("haproxy")
    }

    fn write(&self, lines: &str, global: &str) {
        let Place { store, web, .. } = self;
        let text = format!(
            "global\n nbthread 2\n stats socket @DIR@/stats level admin\n{global}{DEFAULTS}store data\n bind \
             127.0.0.1:{store}\n{lines}frontend web\n bind 127.0.0.1:{web}\n http-request store-call data INCR http \
             set-var(txn.n)\n http-request return status 200 hdr n %[var(txn.n)]\n"
        );
        write(self.directory.path(), &text);
    }

    /// Starts a copy of the program with more words.
    fn start(&self, program: &Path, words: &[&str]) -> Program {
        let mut command = Command::new(program);
        command.args(["-f", "a.cfg", "-db"]).args(words).current_dir(self.directory.path());
        Program::start(command, &[])
    }

    /// Starts a copy instead of a process, and waits for the end of that.
    #[track_caller]
    fn replace(&self, mut old: Program, program: &str, option: &str) -> Program {
        let new = self.start(&self.program(program), &[option, &old.pid().to_string()]);
        let code = if option == "-st" { -libc::SIGTERM } else { 0 };
        assert_eq!(old.wait(), code, "{}\n{}", old.output(), new.output());
        new
    }

    fn ask(&self, words: &[&str]) -> String {
        wait_for("the store", || {
            let mut stream = TcpStream::connect(("127.0.0.1", self.store)).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).expect("settable");
            stream.write_all(&encode(words)).ok()?;
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer) {
                Ok(length @ 1..) => Some(String::from_utf8_lossy(&buffer[..length]).into_owned()),
                _ => None,
            }
        })
    }

    fn number(&self, key: &str) -> u64 {
        let reply = self.ask(&["GET", key]);
        reply.lines().nth(1).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{reply}"))
    }

    /// Sends a request; returns the counter that the rule has read, if it is answered.
    fn get(&self) -> Option<u64> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.web)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.lines().find_map(|line| line.strip_prefix("n: "))?.parse().ok()
    }
}

/// The counts of a load.
#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    acknowledged: AtomicU64,
    /// Commands whose connection was closed before a reply.
    unknown: AtomicU64,
    requests: AtomicU64,
    failed: AtomicU64,
}

/// Increments a counter over RESP, with a new connection after each one that is closed.
fn count(place: &Place, seen: &Seen) {
    let mut buffer = [0; 256];
    while !seen.stop.load(Ordering::SeqCst) {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", place.store)) else { continue };
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        while !seen.stop.load(Ordering::SeqCst) {
            if stream.write_all(&encode(&["INCR", "resp"])).is_err() {
                break;
            }
            match stream.read(&mut buffer) {
                Ok(length @ 1..) => {
                    let reply = String::from_utf8_lossy(&buffer[..length]);
                    assert!(reply.starts_with(':'), "{reply}");
                    seen.acknowledged.fetch_add(1, Ordering::SeqCst);
                }
                _ => {
                    seen.unknown.fetch_add(1, Ordering::SeqCst);
                    break;
                }
            }
        }
    }
}

/// Every change that clients and rules were told of is in the new process, three times in a row, and in its files.
#[test]
fn every_change_is_counted() {
    let place = Place::new(" dir @DIR@\n appendonly yes\n appendfsync everysec\n");
    let mut program = place.start(&place.program("one"), &[]);
    assert_eq!(
        place.ask(&["FUNCTION", "LOAD", "#!lua name=l\nredis.register_function('f', function() return 7 end)"]),
        "$1\r\nl\r\n"
    );
    for number in 0..200 {
        let key = format!("key:{number}");
        assert_eq!(place.ask(&["SET", &key, "x"]), "+OK\r\n");
    }
    let dir = place.directory.path().to_str().expect("UTF-8");
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &place.store.to_string(), "--dir", dir]);
    let mut of_replica = Client::connect(&replica.address());
    wait_for("the replica", || of_replica.ask(&["GET", "key:199"]).contains('x').then_some(()));
    let seen = Seen::default();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| count(&place, &seen));
        }
        scope.spawn(|| {
            while !seen.stop.load(Ordering::SeqCst) {
                match place.get() {
                    Some(_) => seen.requests.fetch_add(1, Ordering::SeqCst),
                    None => seen.failed.fetch_add(1, Ordering::SeqCst),
                };
            }
        });
        let replace = || {
            for name in ["two", "one", "two"] {
                let before = seen.acknowledged.load(Ordering::SeqCst);
                wait_for("the load", || (seen.acknowledged.load(Ordering::SeqCst) > before + 100).then_some(()));
                let old = std::mem::replace(&mut program, Program::start(Command::new("true"), &[]));
                program = place.replace(old, name, "-sf");
            }
        };
        let replaced = std::panic::catch_unwind(std::panic::AssertUnwindSafe(replace));
        let before = seen.requests.load(Ordering::SeqCst);
        if replaced.is_ok() {
            wait_for("requests", || (seen.requests.load(Ordering::SeqCst) > before + 10).then_some(()));
        }
        seen.stop.store(true, Ordering::SeqCst);
        replaced.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let [acknowledged, unknown, requests, failed] =
        [&seen.acknowledged, &seen.unknown, &seen.requests, &seen.failed].map(|count| count.load(Ordering::SeqCst));
    let (resp, http) = (place.number("resp"), place.number("http"));
    assert!((acknowledged..=acknowledged + unknown).contains(&resp), "{resp} of {acknowledged} and {unknown}");
    // Sockets go over with the connections that wait in them, so that no request fails.
    assert_eq!((http, failed), (requests, 0), "{}", program.output());
    assert_eq!(place.ask(&["DBSIZE"]), ":202\r\n");
    assert_eq!(place.ask(&["FCALL", "f", "0"]), ":7\r\n");
    // The replica goes on where it was.
    wait_for("the replica", || (of_replica.ask(&["GET", "resp"]) == place.ask(&["GET", "resp"])).then_some(()));
    let stats = place.ask(&["INFO", "stats"]);
    assert!(stats.contains("\r\nsync_full:0\r\n") && stats.contains("\r\nsync_partial_ok:1\r\n"), "{stats}");
    // The files have everything.
    program.signal(libc::SIGKILL);
    program.wait();
    let _again = place.start(&place.program("one"), &[]);
    wait_for("the load", || place.ask(&["GET", "resp"]).starts_with('$').then_some(()));
    assert_eq!((place.number("resp"), place.number("http")), (resp, http));
}

/// A store without files goes over as well; `-st` ends the old process at once.
#[test]
fn a_store_in_memory_goes_over() {
    for (program, option) in [("one", "-st"), ("two", "-st"), ("two", "-sf")] {
        let place = Place::new(" databases 3\n");
        let old = place.start(&place.program("one"), &[]);
        assert_eq!(place.ask(&["SET", "a", "1", "EX", "1000"]), "+OK\r\n");
        let new = place.replace(old, program, option);
        assert_eq!((place.ask(&["GET", "a"]), place.get()), ("$1\r\n1\r\n".into(), Some(1)), "{}", new.output());
        let info = place.ask(&["INFO", "replication"]);
        assert!(info.contains("role:master") && info.contains("connected_slaves:0"), "{info}");
    }
}

/// A stream that the old process still serves asks the store of the new one.
#[test]
fn rules_of_the_old_process_ask_the_new_one() {
    let place = Place::new("");
    let old = place.start(&place.program("one"), &[]);
    assert_eq!(place.ask(&["SET", "http", "10"]), "+OK\r\n");
    // A request whose head has not come whole yet.
    let mut stream = TcpStream::connect(("127.0.0.1", place.web)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("settable");
    stream.write_all(b"GET / HTTP/1.0\r\nHost:").expect("it reads");
    assert_eq!(place.get(), Some(11));
    let mut old = old;
    let new = place.start(&place.program("two"), &["-sf", &old.pid().to_string()]);
    wait_for("the new process", || {
        (place.ask(&["INFO", "server"]).contains(&format!("process_id:{}\r", new.pid()))).then_some(())
    });
    assert!(old.is_running(), "{}", old.output());
    assert_eq!(place.get(), Some(12));
    stream.write_all(b" a\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a response");
    assert!(text.contains("\r\nn: 13\r\n"), "{text}\n{}", old.output());
    assert_eq!((old.wait(), place.get()), (0, Some(14)));
}

/// What stick tables have counted up to that moment goes over by the state file, however rarely that is written.
#[test]
fn tables_go_over_by_the_state_file() {
    let place = Place::new("");
    let text = format!(
        "global\n nbthread 2\n runtime-state-file @DIR@/state interval 1h\n{DEFAULTS}frontend web\n bind 127.0.0.1:{}\n \
         stick-table type integer size 10 expire 1h store http_req_cnt\n http-request track-sc0 int(1)\n http-request \
         return status 200 hdr n %[sc0_http_req_cnt]\n",
        place.web
    );
    write(place.directory.path(), &text);
    let old = place.start(&place.program("one"), &[]);
    for count in 1..=5 {
        assert_eq!(wait_for("a response", || place.get()), count);
    }
    let new = place.replace(old, "two", "-sf");
    assert_eq!(place.get(), Some(6), "{}", new.output());
}

/// If the new process ends before it serves, the old one goes on, with its files.
#[test]
fn a_new_process_that_fails_changes_nothing() {
    let lines = " dir @DIR@\n appendonly yes\n appendfsync always\n";
    let place = Place::new(lines);
    let mut old = place.start(&place.program("one"), &[]);
    assert_eq!(place.ask(&["SET", "http", "10"]), "+OK\r\n");
    let script = place.directory.path().join("fails.lua");
    std::fs::write(&script, "core.register_init(function() core.redis('data'):set('lost', 1) error('no luck') end)")
        .expect("writable");
    place.write(lines, &format!(" lua-load {}\n", script.display()));
    let mut new = place.start(&place.program("two"), &["-sf", &old.pid().to_string()]);
    assert_eq!(new.wait(), 1, "{}", new.output());
    assert!(new.output().contains("no luck"), "{}", new.output());
    // Clients and rules may have waited for a moment.
    assert_eq!((place.get(), place.number("http")), (Some(11), 11), "{}", old.output());
    assert_eq!(place.ask(&["INCR", "http"]), ":12\r\n");
    // A store with keys must not be lost by a file that does not have it.
    write(place.directory.path(), &format!("{DEFAULTS}frontend f\n bind 127.0.0.1:{}\n", place.web));
    let mut new = place.start(&place.program("two"), &["-sf", &old.pid().to_string()]);
    assert_eq!(new.wait(), 1);
    assert!(new.output().contains("has 1 keys and is not in the files any more"), "{}", new.output());
    old.signal(libc::SIGKILL);
    old.wait();
    place.write(lines, "");
    let _again = place.start(&place.program("one"), &[]);
    wait_for("the load", || place.ask(&["GET", "http"]).starts_with('$').then_some(()));
    assert_eq!((place.number("http"), place.ask(&["GET", "lost"])), (12, "$-1\r\n".into()));
}

/// A script that runs when the data set is to be read is waited for by the new process, which can be ended.
#[test]
fn a_script_that_runs_is_waited_for() {
    let place = Place::new("");
    let old = place.start(&place.program("one"), &[]);
    assert_eq!(place.ask(&["SET", "n", "0"]), "+OK\r\n");
    let mut stream = TcpStream::connect(("127.0.0.1", place.store)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("settable");
    stream.write_all(&encode(&["EVAL", "while true do redis.call('GET', 'n') end", "0"])).expect("it reads");
    wait_for("the script", || place.ask(&["GET", "n"]).starts_with("-BUSY").then_some(()));
    let mut new = place.start(&place.program("two"), &["-sf", &old.pid().to_string()]);
    new.wait_for_output("its data set is being received from process");
    new.signal(libc::SIGTERM);
    assert_eq!(new.wait(), -libc::SIGTERM, "{}", new.output());
    assert_eq!(place.ask(&["SCRIPT", "KILL"]), "+OK\r\n");
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply, *b"-ERR", "{}", old.output());
    let _new = place.replace(old, "two", "-sf");
    assert_eq!(place.ask(&["GET", "n"]), "$1\r\n0\r\n");
}
