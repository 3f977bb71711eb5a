//! The store on its own: as `sluicegate store` and as `redis-server`, beside Debian's redis-server.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use sluicegate_testkit::{Client, Program, RedisServer, free_port, threads, wait_for};

use crate::BINARY;

/// A folder with our binary under Redis's name.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(BINARY, directory.path().join("redis-server")).unwrap();
        Place(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Our binary as redis-server, in this folder.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("redis-server"));
        command.args(words).current_dir(self.0.path());
        command
    }

    /// A store on a port; gives it once it serves.
    fn start(&self, words: &[&str]) -> (Program, String) {
        self.start_at(&[], words)
    }

    /// The same with a file.
    fn start_with(&self, file: &str) -> (Program, String) {
        self.start_at(&[file], &[])
    }

    fn start_at(&self, file: &[&str], words: &[&str]) -> (Program, String) {
        let port = free_port();
        let mut command = self.command(file);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]).args(words);
        let mut program = Program::start(command, &[]);
        program.wait_for_output("Ready to accept connections tcp");
        (program, format!("127.0.0.1:{port}"))
    }
}

fn output(mut command: Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Returns the exit code and the message with which a configuration is refused.
fn refusal(mut command: Command, file: &std::path::Path, text: &str) -> (Option<i32>, String) {
    std::fs::write(file, text).unwrap();
    command.arg(file);
    let output = output(command, "");
    let text =
        String::from_utf8_lossy(&output.stderr).replace("Redis 7.0.15", "VERSION").replace("Redis 7.2.5", "VERSION");
    (output.status.code(), text)
}

#[test]
fn files_are_refused_in_the_words_of_redis() {
    let place = Place::new();
    for line in [
        "foo bar",
        "port",
        "port x",
        "port 70000",
        "port 1 2",
        "hz",
        "maxmemory x",
        "requirepass \"a",
        "appendonly maybe",
        "client-output-buffer-limit normal 1",
        "client-output-buffer-limit foo 1 1 1",
        "save 1",
        "save \"\" \"\"",
        "save \"60 1 2\"",
        "lfu-log-factor -1",
        "repl-timeout 0",
        "maxmemory-samples 0",
        "maxmemory-clients 101%",
        "list-compress-depth -1",
        "dbfilename a/b",
        "appendfilename \"\"",
        "shutdown-on-sigterm foo",
        "shutdown-on-sigterm",
        "shutdown-on-sigint \"\"",
        "shutdown-on-sigint save nosave",
        "oom-score-adj-values 1 2",
        "syslog-facility foo",
        "replicaof 127.0.0.1",
        "replicaof 127.0.0.1 x",
        "notify-keyspace-events",
        "list-max-ziplist-value",
        "unixsocketperm 999",
        "databases 0",
        "daemonize 1",
        "timeout -1",
        "tcp-keepalive x",
        "rdbcompression maybe",
        "appendfsync sometimes",
        "hash-max-listpack-entries x",
        "slowlog-max-len -1",
        "latency-tracking-info-percentiles 101",
        "include",
    ] {
        let text = format!("# a comment\n\n   {line}  \nport 1");
        let redis = refusal(Command::new("redis-server"), &place.path("a.conf"), &text);
        assert_eq!(redis.0, Some(1), "{line}: {redis:?}");
        let mut ours = refusal(place.command(&[]), &place.path("a.conf"), &text);
        // A suggestion is ours alone.
        if let Some(at) = ours.1.find("; did you mean") {
            ours.1.replace_range(at..at + ours.1[at..].find('\n').expect("a whole line"), "");
        }
        assert_eq!(ours, redis, "{line}");
    }
    // On the command line, lines are counted in the same way.
    for words in [
        &["--foo"][..],
        &["--port", "1", "--foo", "bar baz"],
        &["--timeout"],
        &["--save", "--foo"],
        &["--shutdown-on-sigint", "now force", "--shutdown-on-sigterm"],
        &["--save", "", ""],
        &["-"],
        &["-", "--timeout", "1", "--foo"],
        &["--timeout", "x", "-"],
    ] {
        let input = match words {
            ["-"] => "port 1\ntimeout x\n",
            _ if words.contains(&"-") => "port 1\n",
            _ => "",
        };
        let mut redis = Command::new("redis-server");
        redis.args(words);
        let text = |output: Output| {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.code(), text.replace("7.0.15", "VERSION").replace("7.2.5", "VERSION"))
        };
        assert_eq!(text(output(place.command(words), input)), text(output(redis, input)), "{words:?}");
    }
}

/// Clients and scripts know commands by the names of `rename-command` lines, as redis-server's do; its own records are read again.
#[test]
fn commands_have_other_names() {
    let lines = "rename-command FLUSHALL \"\"\nrename-command set Put\nrename-command CONFIG a-name-of-more-than-16\n\
                 rename-command del gone\nrename-command GONE away\nrename-command ping PING\nrename-command MULTI begin\n";
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let path = |at: usize| dirs[at].path().to_str().expect("text").to_owned();
    let [ours, theirs] = [0, 1].map(|at| {
        let file = dirs[at].path().join("redis.conf");
        std::fs::write(&file, format!("{lines}appendonly yes\ndir {}\n", path(at))).expect("written");
        file.to_str().expect("text").to_owned()
    });
    let redis = RedisServer::start(&["--include", &theirs]);
    let place = Place::new();
    let (mut alone, address) = place.start_with(&ours);
    let mut clients = [Client::connect(&address), Client::connect(&redis.address())];
    for words in [
        &["FLUSHALL", "a"][..],
        &["SET", "k", "1"],
        &["PUT", "k", "1"],
        &["put", "l"],
        &["GET", "k"],
        &["DEL", "k"],
        &["GONE", "k"],
        &["away", "k"],
        &["PING"],
        &["CONFIG", "GET", "databases"],
        &["A-Name-Of-More-Than-16", "GET", "databases"],
        &["a-name-of-more-than-16", "nosuch"],
        &["EVAL", "return redis.call('PUT', KEYS[1], '2')", "1", "m"],
        &["EVAL", "return redis.pcall('SET', KEYS[1], '2').err", "1", "m"],
        &["EVAL", "return redis.pcall('FLUSHALL').err", "0"],
        &["COMMAND", "INFO", "flushall"],
        &["COMMAND", "LIST", "FILTERBY", "PATTERN", "flush*"],
        &["COMMAND", "GETKEYS", "put", "k", "v"],
        &["COMMAND", "GETKEYS", "set", "k", "v"],
        &["MULTI"],
        &["BEGIN"],
        &["PUT", "n", "3", "EX", "1000"],
        &["SET", "n", "3"],
        &["EXEC"],
        &["BEGIN"],
        &["PUT", "n", "4", "EX", "1000"],
        &["INCR", "n"],
        &["EXEC"],
        &["ACL", "SETUSER", "u", "on", "nopass", "+set", "~*"],
        &["ACL", "SETUSER", "u", "+put"],
        &["AUTH", "u", "x"],
        &["PUT", "o", "5"],
        &["GET", "o"],
    ] {
        let [found, expected] = clients.each_mut().map(|client| client.ask(words));
        // Redis 7.2 names the user.
        assert_eq!(found.replace("User u has", "this user has"), expected, "{words:?}");
    }
    drop(clients);
    alone.signal(libc::SIGTERM);
    alone.wait();
    let (_again, address) = place.start_with(&ours);
    let mut client = Client::connect(&address);
    for (key, value) in [("m", "2"), ("n", "5"), ("o", "5")] {
        assert_eq!(client.ask(&["GET", key]), format!("$1\r\n{value}\r\n"));
    }
    assert_eq!(client.ask(&["GET", "k"]), "$-1\r\n");

    // Invalid lines are refused with the same text.
    for line in ["rename-command nosuch a", "rename-command get set", "rename-command get", "rename-command \"\" a"] {
        let said = |mut command: Command| {
            command.args(["--port", "0"]);
            let text = String::from_utf8_lossy(&output(command, &format!("{line}\n")).stderr).into_owned();
            text.replace("7.0.15", "VERSION").replace("7.2.5", "VERSION")
        };
        let mut redis = Command::new("redis-server");
        redis.arg("-");
        let found = said(place.command(&["-"]));
        assert!(found.contains("FATAL CONFIG FILE ERROR"), "{line}: {found}");
        assert_eq!(found, said(redis), "{line}");
    }
}

/// A store and a redis-server that are started by the same words.
fn pair(place: &Place, before: &[&str], words: &[&str]) -> [(Program, String); 2] {
    let start = |name: &str| {
        let port = free_port();
        let all: Vec<&str> = before.iter().copied().chain([name]).collect();
        let mut command = Command::new(all[0]);
        command.args(&all[1..]).args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]).args(words);
        let mut program = Program::start(command, &[]);
        program.wait_for_output("Ready to accept connections");
        (program, format!("127.0.0.1:{port}"))
    };
    [start(&place.text("redis-server")), start("redis-server")]
}

/// The kernel's score of a process is that of its role, from the start, and the one before when it is left alone again.
#[test]
fn the_kernel_ends_processes_by_the_scores_of_their_roles() {
    let place = Place::new();
    let words = ["--oom-score-adj-values", "100 200 300", "--oom-score-adj", "yes"];
    let programs = pair(&place, &["setpriv", "--bounding-set=-sys_resource"], &words);
    let score = |at: usize| {
        let file = format!("/proc/{}/oom_score_adj", programs[at].0.pid());
        std::fs::read_to_string(file).expect("readable").trim().parse::<i32>().expect("a number")
    };
    let before: i32 =
        std::fs::read_to_string("/proc/self/oom_score_adj").expect("readable").trim().parse().expect("one");
    // redis-server sets its score behind the line that says that it is ready.
    wait_for("the scores of the start", || ([score(0), score(1)] == [before + 100; 2]).then_some(()));
    let mut clients = [0, 1].map(|at| Client::connect(&programs[at].1));
    for (words, expected) in [
        (&["CONFIG", "GET", "oom-score-adj"][..], before + 100),
        (&["CONFIG", "SET", "oom-score-adj", "absolute"], 100),
        (&["REPLICAOF", "127.0.0.1", "1"], 200),
        (&["CONFIG", "SET", "oom-score-adj-values", "300 400 500"], 400),
        (&["CONFIG", "SET", "oom-score-adj", "Relative"], before + 400),
        (&["CONFIG", "GET", "oom-score-adj"], before + 400),
        (&["REPLICAOF", "no", "one"], before + 300),
        (&["CONFIG", "SET", "oom-score-adj-values", "-1 0 0", "oom-score-adj", "absolute"], before + 300),
        (&["CONFIG", "GET", "oom-score-adj"], before + 300),
        (&["CONFIG", "GET", "oom-score-adj-values"], before + 300),
        (&["CONFIG", "SET", "oom-score-adj-values", "0 0 2001"], before + 300),
        (&["CONFIG", "SET", "oom-score-adj-values", "1 2"], before + 300),
        (&["CONFIG", "SET", "oom-score-adj", "maybe"], before + 300),
        (&["CONFIG", "SET", "oom-score-adj", "no"], before),
        (&["CONFIG", "SET", "oom-score-adj-values", "600 700 800"], before),
        (&["CONFIG", "SET", "oom-score-adj-values", "1500 1500 1500", "oom-score-adj", "absolute"], 1000),
    ] {
        let [found, peer] = clients.each_mut().map(|client| client.ask(words));
        assert_eq!(found, peer, "{words:?}");
        wait_for("the score of the role", || (score(0) == expected).then_some(()));
        assert_eq!(score(1), expected, "{words:?}");
    }
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let place = Place::new();
    for (line, why) in [
        ("cluster-enabled yes", "the store is one node that has every slot, without a cluster around it"),
        ("loadmodule x.so", "modules are not supported"),
    ] {
        let (code, text) = refusal(place.command(&[]), &place.path("a.conf"), line);
        assert_eq!(code, Some(1));
        assert!(text.contains(&format!(">>> '{line}'\n{why}\n")), "{text}");
    }
    let missing = output(place.command(&["nosuch.conf"]), "");
    assert_eq!(missing.status.code(), Some(1));
    let said = String::from_utf8_lossy(&missing.stdout).into_owned();
    let path = place.text("nosuch.conf");
    assert!(said.contains(&format!("# Fatal error, can't open config file '{path}': No such file")), "{said}");
    let refused = output(place.command(&["--check-system"]), "");
    assert_eq!(refused.status.code(), Some(1));
    let refused = output(place.command(&["--sentinel"]), "");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("sentinel mode is not supported"));
}

#[test]
fn version_and_help_end_at_once() {
    let place = Place::new();
    for word in ["-v", "--version"] {
        let said = output(place.command(&[word]), "");
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(text.starts_with("Redis server v=7.2.5 sha=") && text.contains(" bits=64 "), "{text}");
        assert_eq!(said.status.code(), Some(0));
    }
    for command in [place.command(&["--help"]), Command::new(BINARY)] {
        let mut command = command;
        if command.get_program() == BINARY {
            command.args(["store", "-h"]);
        }
        let said = output(command, "");
        assert!(String::from_utf8_lossy(&said.stdout).starts_with("usage: sluicegate store"));
    }
}

#[test]
fn the_own_verb_takes_flags_and_threads() {
    let place = Place::new();
    let port = free_port().to_string();
    let socket = place.text("s");
    let mut command = Command::new(BINARY);
    command.args(["store", "--port", &port, "--bind", "127.0.0.1", "-::1", "--threads", "3", "--save", ""]);
    command.args(["--unixsocket", &socket, "--unixsocketperm", "700", "--requirepass", "secret", "--databases", "3"]);
    let mut program = Program::start(command, &[]);
    program.wait_for_output("Ready to accept connections unix");
    assert!(!program.output().contains("WARNING"), "{}", program.output());
    // The control thread and three workers.
    assert_eq!(threads(program.pid()), 4);
    let mut client = Client::connect(&format!("127.0.0.1:{port}"));
    assert_eq!(client.ask(&["PING"]), "-NOAUTH Authentication required.\r\n");
    assert_eq!(client.ask(&["AUTH", "secret"]), "+OK\r\n");
    assert_eq!(client.ask(&["SELECT", "3"]), "-ERR DB index is out of range\r\n");
    for (name, value) in [("port", &port[..]), ("threads", "3"), ("unixsocket", &socket), ("bind", "127.0.0.1 -::1")] {
        let pair = format!("*2\r\n${}\r\n{name}\r\n${}\r\n{value}\r\n", name.len(), value.len());
        assert_eq!(client.ask(&["CONFIG", "GET", name]), pair);
        // Addresses change at run time, see below.
        if !matches!(name, "port" | "bind") {
            assert!(client.ask(&["CONFIG", "SET", name, "1"]).contains("can't set immutable config"), "{name}");
        }
    }
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    assert!(UnixStream::connect(&socket).is_ok());
    // A second process on the same port is refused.
    let second = output(place.command(&["--port", &port, "--bind", "127.0.0.1"]), "");
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stdout).into_owned();
    assert!(said.contains(&format!("listening socket 127.0.0.1:{port}: bind: Address already in use")), "{said}");
    program.signal(libc::SIGTERM);
    assert_eq!(program.wait(), 0);
    assert!(program.output().contains("Received SIGTERM scheduling shutdown..."));
    assert!(!place.path("s").exists(), "the socket's file goes with it");
}

/// SIGTERM and SHUTDOWN end the process while a transaction runs.
#[test]
fn a_long_transaction_does_not_outlive_the_end() {
    for ends_by_signal in [true, false] {
        let place = Place::new();
        let (mut program, address) = place.start(&["--threads", "2"]);
        let (mut client, mut other) = (Client::connect(&address), Client::connect(&address));
        let id = client.ask(&["CLIENT", "ID"]).trim_matches([':', '\r', '\n']).to_owned();
        let words: Vec<String> =
            ["RPUSH".to_owned(), "long".to_owned()].into_iter().chain((0..2000).map(|n| n.to_string())).collect();
        other.command(&words);
        other.read_reply();
        // Seconds of work; replies of a few bytes each.
        let search = sluicegate_testkit::encode(&["LPOS", "long", "none"]);
        let mut all = sluicegate_testkit::encode(&["MULTI"]);
        all.extend(sluicegate_testkit::encode(&["SET", "k", "v"]));
        (0..300_000).for_each(|_| all.extend_from_slice(&search));
        all.extend(sluicegate_testkit::encode(&["EXEC"]));
        std::thread::scope(|scope| {
            let sending = scope.spawn(move || {
                client.send(&all);
                // The end may come as a reset.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client.read_to_end()));
            });
            wait_for("the transaction to run", || {
                other.ask(&["CLIENT", "LIST", "ID", &id]).contains(" cmd=exec ").then_some(())
            });
            match ends_by_signal {
                true => program.signal(libc::SIGTERM),
                false => other.command(&["SHUTDOWN", "NOSAVE"]),
            }
            assert_eq!(program.wait(), 0);
            drop(sending.join());
        });
    }
}

#[test]
fn a_file_standard_input_and_flags_follow_each_other() {
    let place = Place::new();
    std::fs::write(place.path("more.conf"), "timeout 33\n").unwrap();
    std::fs::write(
        place.path("a.conf"),
        format!(
            "port 1\nmaxclients 77\ninclude {}\nlogfile {}\ndir {}\n",
            place.text("more.conf"),
            place.text("log"),
            place.text("")
        ),
    )
    .unwrap();
    let port = free_port().to_string();
    let mut command = place.command(&["a.conf", "--port", &port, "--bind", "127.0.0.1", "--pidfile", "pid", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"tcp-keepalive 44\nport 2\n").unwrap();
    let ready =
        || std::fs::read_to_string(place.path("log")).ok().filter(|log| log.contains("Ready to accept")).map(drop);
    wait_for("the store", ready);
    let mut client = Client::connect(&format!("127.0.0.1:{port}"));
    for (name, value) in [("maxclients", "77"), ("timeout", "33"), ("tcp-keepalive", "44")] {
        assert!(client.ask(&["CONFIG", "GET", name]).ends_with(&format!("\r\n{value}\r\n")), "{name}");
    }
    assert!(client.ask(&["INFO", "server"]).contains(&format!("config_file:{}\r\n", place.text("a.conf"))));
    assert_eq!(std::fs::read_to_string(place.path("pid")).unwrap(), format!("{}\n", child.id()));
    client.command(&["SHUTDOWN", "NOSAVE"]);
    assert_eq!(client.read_to_end(), b"");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!place.path("pid").exists());
    assert!(std::fs::read_to_string(place.path("log")).unwrap().contains("bye bye"));
}

#[test]
fn shutdown_is_that_of_redis() {
    let place = Place::new();
    let (mut program, address) = place.start(&["--save", ""]);
    let redis = sluicegate_testkit::RedisServer::start(&[]);
    for words in [
        &["SHUTDOWN", "foo"][..],
        &["SHUTDOWN", "ABORT"],
        &["SHUTDOWN", "ABORT", "NOW"],
        &["SHUTDOWN", "SAVE", "NOSAVE"],
    ] {
        let expected = Client::connect(&redis.address()).ask(words);
        assert_eq!(Client::connect(&address).ask(words), expected, "{words:?}");
    }
    let mut client = Client::connect(&address);
    client.send("PING\r\nSHUTDOWN NOW FORCE SAVE\r\nPING\r\n");
    assert_eq!(client.read_to_end(), b"+PONG\r\n");
    assert_eq!(program.wait(), 0);
}

#[test]
fn addresses_change_at_run_time_and_connections_stay() {
    let place = Place::new();
    let (_program, address) = place.start(&["--threads", "2"]);
    let mut client = Client::connect(&address);
    let port = free_port();
    assert_eq!(client.ask(&["CONFIG", "SET", "port", &port.to_string()]), "+OK\r\n");
    let moved = format!("127.0.0.1:{port}");
    wait_for("the old port to be closed", || std::net::TcpStream::connect(&address).is_err().then_some(()));
    // More of them than there are workers: each worker serves.
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(&moved)).collect();
    for client in clients.iter_mut().chain([&mut client]) {
        assert_eq!(client.ask(&["PING"]), "+PONG\r\n");
    }
    let info = client.ask(&["INFO", "server"]);
    assert!(info.contains(&format!("tcp_port:{port}\r\n")), "{info}");
    assert!(info.contains(&format!("listener0:name=tcp,bind=127.0.0.1,port={port}\r\n")), "{info}");
    // A port that is in use changes nothing.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().port().to_string();
    assert_eq!(
        client.ask(&["CONFIG", "SET", "maxclients", "77", "port", &taken]),
        "-ERR CONFIG SET failed (possibly related to argument 'port') - Unable to listen on this port. Check server \
         logs.\r\n"
    );
    assert!(client.ask(&["CONFIG", "GET", "port"]).contains(&port.to_string()));
    assert!(!client.ask(&["CONFIG", "GET", "maxclients"]).contains("77"));
    assert_eq!(
        client.ask(&["CONFIG", "SET", "bind", "192.0.2.1"]),
        "-ERR CONFIG SET failed (possibly related to argument 'bind') - Failed to bind to specified addresses.\r\n"
    );
    assert_eq!(client.ask(&["CONFIG", "SET", "bind", "127.0.0.2 -192.0.2.1"]), "+OK\r\n");
    wait_for("the old address to be closed", || std::net::TcpStream::connect(&moved).is_err().then_some(()));
    assert_eq!(Client::connect(&format!("127.0.0.2:{port}")).ask(&["PING"]), "+PONG\r\n");
    assert_eq!(client.ask(&["CONFIG", "SET", "port", "0"]), "+OK\r\n");
    assert!(client.ask(&["INFO", "server"]).contains("tcp_port:0\r\n"));
    assert_eq!(client.ask(&["CONFIG", "SET", "port", &port.to_string(), "bind", "127.0.0.1"]), "+OK\r\n");
    assert_eq!(Client::connect(&moved).ask(&["PING"]), "+PONG\r\n");
}

#[test]
fn the_background_serves_before_the_command_ends() {
    let place = Place::new();
    let port = free_port().to_string();
    let words = ["--port", &port, "--bind", "127.0.0.1", "--daemonize", "yes", "--pidfile", "pid", "--logfile", "log"];
    assert_eq!(place.command(&words).status().unwrap().code(), Some(0));
    let mut client = Client::connect(&format!("127.0.0.1:{port}"));
    assert_eq!(client.ask(&["PING"]), "+PONG\r\n");
    let log = || std::fs::read_to_string(place.path("log")).unwrap();
    wait_for("its start", || log().contains("Ready to accept connections").then_some(()));
    client.command(&["SHUTDOWN"]);
    assert_eq!(client.read_to_end(), b"");
    wait_for("its end", || (!place.path("pid").exists()).then_some(()));
    // One that fails says so with its exit code.
    let taken = sluicegate_testkit::Listening::new();
    let port = taken.port().to_string();
    let words = ["--port", &port, "--bind", "127.0.0.1", "--daemonize", "yes", "--pidfile", "pid", "--logfile", "log"];
    assert_eq!(place.command(&words).status().unwrap().code(), Some(1));
}

/// Redis assumes that all members and fields of one command differ when it chooses an encoding, and the result of
/// combining sets grows step by step. Compared with Valkey, since redis-server 7.0 has no packed sets.
#[test]
fn forms_follow_from_what_a_command_brings() {
    let valkey = RedisServer::start_valkey("8.1", &[]);
    let place = Place::new();
    let (_program, address) = place.start(&[]);
    let mut clients = [Client::connect(&address), Client::connect(&valkey.address())];
    let mut forms = Vec::new();
    for line in [
        "CONFIG SET hash-max-listpack-entries 2 zset-max-listpack-entries 2 set-max-intset-entries 2 \
         set-max-listpack-entries 4",
        "HSET h a 1 b 2; OBJECT ENCODING h; HSET h a 1 a 2 a 3; OBJECT ENCODING h",
        "HMSET h a 1 a 2 a 3; OBJECT ENCODING h; HLEN h",
        "ZADD z 1 a 2 a; OBJECT ENCODING z; ZADD z XX 1 a 2 a 3 a; OBJECT ENCODING z; ZRANGE z 0 -1 WITHSCORES",
        "ZADD z 1 a 2 a 3 a; OBJECT ENCODING z",
        "SADD s 1 2 3; OBJECT ENCODING s; SDIFFSTORE d s; OBJECT ENCODING d; SINTERSTORE d s; OBJECT ENCODING d",
        "SADD s 1 2 3 a; SDIFFSTORE d s; OBJECT ENCODING d; SUNIONSTORE d s; OBJECT ENCODING d; SINTERSTORE d s; \
         OBJECT ENCODING d",
        "SADD s a 1 2 3; SUNIONSTORE d s; OBJECT ENCODING d; SADD t 1 2 3 4 5; SINTERSTORE d s t; OBJECT ENCODING d; \
         SREM s 3; SINTERSTORE d s t; OBJECT ENCODING d",
        "SADD s 1 2; SADD t 1 2 3 4 5; SINTERSTORE d s t; OBJECT ENCODING d; SUNIONSTORE d s t; OBJECT ENCODING d",
    ] {
        for command in std::iter::once("FLUSHALL").chain(line.split("; ")) {
            let words: Vec<&str> = command.split(' ').collect();
            let [ours, theirs] = clients.each_mut().map(|client| client.ask(&words));
            assert_eq!(ours, theirs, "ours, then Valkey's, to {command} in: {line}");
            forms.push(ours);
        }
    }
    for form in ["intset", "listpack", "hashtable", "skiplist"] {
        assert!(forms.iter().any(|reply| reply.contains(form)), "{form} of {forms:?}");
    }
}

#[test]
fn small_forms_end_where_the_parameters_say() {
    let place = Place::new();
    let (_program, address) = place.start(&["--hash-max-ziplist-entries", "3"]);
    let mut client = Client::connect(&address);
    let encoding = |client: &mut Client| client.ask(&["OBJECT", "ENCODING", "h"]);
    assert_eq!(client.ask(&["HSET", "h", "a", "1", "b", "2", "c", "3"]), ":3\r\n");
    assert_eq!(encoding(&mut client), "$8\r\nlistpack\r\n");
    assert_eq!(client.ask(&["HSET", "h", "d", "4"]), ":1\r\n");
    assert_eq!(encoding(&mut client), "$9\r\nhashtable\r\n");
    assert_eq!(
        client.ask(&["CONFIG", "SET", "hash-max-listpack-value", "2", "hash-max-listpack-entries", "9"]),
        "+OK\r\n"
    );
    assert_eq!(client.ask(&["DEL", "h"]), ":1\r\n");
    assert_eq!(client.ask(&["HSET", "h", "a", "12", "b", "2", "c", "3", "d", "4"]), ":4\r\n");
    assert_eq!(encoding(&mut client), "$8\r\nlistpack\r\n");
    assert_eq!(client.ask(&["HSET", "h", "a", "123"]), ":0\r\n");
    assert_eq!(encoding(&mut client), "$9\r\nhashtable\r\n");
    // Parameter, command and the encoding before it, its value, the encoding after it.
    for (name, command, before, value, after) in [
        ("set-max-intset-entries", "SADD h 1 2 3", "intset", "2", "listpack"),
        ("set-max-listpack-entries", "SADD h a b c", "listpack", "2", "hashtable"),
        ("set-max-listpack-value", "SADD h abc", "listpack", "2", "hashtable"),
        ("zset-max-listpack-entries", "ZADD h 1 a 2 b 3 c", "listpack", "2", "skiplist"),
        ("zset-max-listpack-value", "ZADD h 1 abc", "listpack", "2", "skiplist"),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        for expected in [before, after] {
            client.ask(&["DEL", "h"]);
            assert!(client.ask(&words).starts_with(':'));
            assert_eq!(encoding(&mut client), format!("${}\r\n{expected}\r\n", expected.len()), "{name}");
            assert_eq!(client.ask(&["CONFIG", "SET", name, value]), "+OK\r\n");
        }
        assert_eq!(client.ask(&["CONFIG", "SET", name, "100"]), "+OK\r\n");
    }
    let length = |client: &mut Client| -> usize {
        client.ask(&["DEL", "h"]);
        for at in 0..50 {
            client.ask(&["PFADD", "h", &at.to_string()]);
        }
        client.ask(&["STRLEN", "h"]).trim_start_matches(':').trim().parse().expect("a number")
    };
    assert!(length(&mut client) < 1000);
    assert_eq!(client.ask(&["CONFIG", "SET", "hll-sparse-max-bytes", "20"]), "+OK\r\n");
    assert!(length(&mut client) > 12_000);
    let nodes = |client: &mut Client| -> usize {
        client.ask(&["DEL", "s"]);
        (1..=30).for_each(|n| drop(client.ask(&["XADD", "s", &format!("1-{n}"), "f", "v"])));
        let text = client.ask(&["XINFO", "STREAM", "s"]);
        let rest = text.split("radix-tree-keys\r\n:").nth(1).expect("it is told");
        rest.split('\r').next().expect("a line").parse().expect("a number")
    };
    assert_eq!(nodes(&mut client), 1);
    assert_eq!(client.ask(&["CONFIG", "SET", "stream-node-max-entries", "10"]), "+OK\r\n");
    assert_eq!(nodes(&mut client), 3);
    assert_eq!(client.ask(&["CONFIG", "SET", "stream-node-max-bytes", "1"]), "+OK\r\n");
    assert_eq!(nodes(&mut client), 30);
    assert_eq!(
        client.ask(&["CONFIG", "SET", "stream-node-max-bytes", "1kb", "stream-node-max-entries", "0"]),
        "+OK\r\n"
    );
    assert_eq!(nodes(&mut client), 1);
    // Lists follow with their commands.
    assert_eq!(client.ask(&["CONFIG", "SET", "list-max-listpack-size", "-3"]), "+OK\r\n");
}

#[test]
fn scripts_write_to_the_log_as_its_level_says() {
    let place = Place::new();
    let (mut program, address) = place.start(&["--loglevel", "verbose"]);
    let mut client = Client::connect(&address);
    let mut say = |mark: &str, level: &str| {
        let body = format!("redis.log(redis.LOG_{level}, '{mark}', 7, 'to the\\nlog')");
        assert_eq!(client.ask(&["EVAL", &body, "0"]), "$-1\r\n");
    };
    for (mark, level) in [("first", "DEBUG"), ("second", "VERBOSE"), ("third", "NOTICE"), ("fourth", "WARNING")] {
        say(mark, level);
    }
    program.wait_for_output("# fourth 7 to the log");
    let output = program.output();
    assert!(output.contains("- second 7 to the log\n") && output.contains("* third 7 to the log\n"), "{output}");
    assert!(!output.contains("first"), "{output}");
    // The level is that of the moment; a function of a library and a transaction log, too.
    let mut client = Client::connect(&address);
    assert_eq!(client.ask(&["CONFIG", "SET", "loglevel", "debug"]), "+OK\r\n");
    let library = "#!lua name=l\nredis.log(redis.LOG_DEBUG, 'loaded')\nredis.register_function('f', function() redis.log(0, 'called') end)";
    assert_eq!(client.ask(&["FUNCTION", "LOAD", library]), "$1\r\nl\r\n");
    assert_eq!(client.ask(&["FCALL", "f", "0"]), "$-1\r\n");
    client.send("MULTI\r\nEVAL \"redis.log(0, 'queued')\" 0\r\nEXEC\r\n");
    (0..3).for_each(|_| drop(client.read_reply()));
    program.wait_for_output(". queued");
    assert!(program.output().contains(". called\n"));
    assert!(program.output().contains(". loaded\n"));
    assert_eq!(client.ask(&["CONFIG", "SET", "loglevel", "nothing"]), "+OK\r\n");
    assert_eq!(client.ask(&["EVAL", "redis.log(3, 'silent')", "0"]), "$-1\r\n");
    client.command(&["SHUTDOWN"]);
    assert_eq!(program.wait(), 0);
    assert!(!program.output().contains("silent"));
}

#[test]
fn a_slow_script_is_logged_once_as_by_redis() {
    /// The line without its milliseconds.
    fn line(log: &str) -> Option<String> {
        let line = log.lines().find_map(|line| line.split_once("Slow script detected: "))?.1;
        let (start, rest) = line.split_once(" after ")?;
        Some(format!("{start} {}", rest.split_once(' ')?.1))
    }
    let place = Place::new();
    let (program, address) = place.start(&["--lua-time-limit", "1"]);
    let redis = RedisServer::start(&["--lua-time-limit", "1"]);
    let library = "#!lua name=l\nredis.register_function('f', function() while true do end end)";
    for (number, call) in [&["EVAL", "while true do end", "0"][..], &["FCALL", "f", "0"]].iter().enumerate() {
        let mut seen = Vec::new();
        for (address, program) in [(&address, &program), (&redis.address(), &redis.program)] {
            let lines = || -> Vec<String> {
                program.output().lines().filter(|line| line.contains("Slow script")).map(str::to_owned).collect()
            };
            let (mut client, mut killer) = (Client::connect(address), Client::connect(address));
            client.ask(&["FUNCTION", "LOAD", library]);
            client.command(call);
            seen.push(wait_for("the line", || line(lines().get(number)?)));
            let kill = if call[0] == "EVAL" { "SCRIPT" } else { "FUNCTION" };
            wait_for("the end", || (killer.ask(&[kill, "KILL"]) == "+OK\r\n").then_some(()));
            client.read_reply();
            assert_eq!(lines().len(), number + 1, "{}", program.output());
        }
        assert_eq!(seen[0], seen[1]);
    }
}

#[test]
fn the_longest_slice_of_a_script_is_counted() {
    let place = Place::new();
    let (_store, address) = place.start(&[]);
    let mut client = Client::connect(&address);
    let mut longest = || {
        let info = client.ask(&["INFO", "stats"]);
        let line = info.lines().find_map(|line| line.strip_prefix("script_longest_slice_usec:"));
        line.expect("the field").parse::<u64>().expect("a number")
    };
    assert_eq!(longest(), 0);
    let mut other = Client::connect(&address);
    assert_eq!(other.ask(&["EVAL", "for i = 1, 3e7 do end return 'ends'", "0"]), "$4\r\nends\r\n");
    assert!(longest() > 0);
    assert_eq!(other.ask(&["CONFIG", "RESETSTAT"]), "+OK\r\n");
    assert_eq!(longest(), 0);
}

#[test]
fn flags_of_scripts_are_given_on_the_command_line() {
    let place = Place::new();
    let (_program, address) = place.start(&["--default_lua_flags", "no-writes,allow-undeclared-keys"]);
    let mut client = Client::connect(&address);
    assert!(client.ask(&["CONFIG", "GET", "default_lua_flags"]).ends_with("\r\nno-writes,allow-undeclared-keys\r\n"));
    let refused = client.ask(&["EVAL", "return redis.call('SET', KEYS[1], 'v')", "1", "k"]);
    assert!(refused.contains("Write commands are not allowed from read-only scripts"), "{refused}");
    let output = output(place.command(&["--default_lua_flags", "nosuch"]), "");
    assert!(String::from_utf8_lossy(&output.stderr).contains("Invalid flag: nosuch"), "{output:?}");
}

#[test]
fn users_are_read_from_the_file_or_from_one_of_their_own() {
    let place = Place::new();
    for (line, why) in [
        ("user", "Bad directive or wrong number of arguments"),
        ("user a +nosuch", "Error in user declaration '+nosuch': Unknown command or category name in ACL"),
        ("user a on bogus", "Error in user declaration 'bogus': Syntax error"),
        ("user a (+get", "Error in user declaration '(+get': Unmatched parenthesis in acl selector"),
    ] {
        let (code, text) = refusal(place.command(&[]), &place.path("a.conf"), line);
        assert_eq!(code, Some(1));
        assert!(text.contains(&format!("at line 1\n>>> '{line}'\n{why}\n")), "{text}");
    }
    let twice = "# mine\nuser a on\nuser a off";
    let redis = refusal(Command::new("redis-server"), &place.path("a.conf"), twice);
    assert_eq!(refusal(place.command(&[]), &place.path("a.conf"), twice), redis);
    // Faults that show when the store begins are in the log.
    for (text, why) in [
        (
            "user default on\naclfile users.acl",
            "Configuring Redis with users defined in redis.conf and at the same setting",
        ),
        (
            "aclfile nosuch.acl",
            "Aborting Redis startup because of ACL errors: Error loading ACLs, opening file 'nosuch.acl': No such file or \
             directory",
        ),
    ] {
        std::fs::write(place.path("a.conf"), format!("port {}\n{text}", free_port())).unwrap();
        let refused = output(place.command(&["a.conf"]), "");
        assert_eq!(refused.status.code(), Some(1));
        let said = String::from_utf8_lossy(&refused.stdout).into_owned();
        assert!(said.contains(why), "{said}");
    }
    std::fs::write(place.path("users.acl"), "user default off\nuser a on nopass +@all ~*\n").unwrap();
    std::fs::write(place.path("a.conf"), "aclfile users.acl\n").unwrap();
    let (_program, address) = place.start_with("a.conf");
    let mut client = Client::connect(&address);
    assert_eq!(client.ask(&["PING"]), "-NOAUTH Authentication required.\r\n");
    assert_eq!(client.ask(&["AUTH", "a", "x"]), "+OK\r\n");
    assert_eq!(client.ask(&["ACL", "SETUSER", "b", "on"]), "+OK\r\n");
    assert_eq!(client.ask(&["ACL", "SAVE"]), "+OK\r\n");
    assert!(std::fs::read_to_string(place.path("users.acl")).unwrap().contains("\nuser b on "));
}

#[test]
fn changes_are_written_into_the_file() {
    let place = Place::new();
    std::fs::write(place.path("a.conf"), "# mine\nsave \"\"\ntimeout 5\n").unwrap();
    let (mut program, address) = place.start_with("a.conf");
    let mut client = Client::connect(&address);
    assert_eq!(client.ask(&["CONFIG", "SET", "timeout", "77", "maxclients", "88", "requirepass", "a b"]), "+OK\r\n");
    assert_eq!(client.ask(&["CONFIG", "REWRITE"]), "+OK\r\n");
    let text = std::fs::read_to_string(place.path("a.conf")).unwrap();
    assert!(text.starts_with("# mine\nsave \"\"\ntimeout 77\n"), "{text}");
    assert!(text.contains("\nmaxclients 88\n") && text.contains("\nrequirepass \"a b\"\n"), "{text}");
    client.command(&["SHUTDOWN"]);
    assert_eq!(program.wait(), 0);
    let (_program, address) = place.start_with("a.conf");
    let mut client = Client::connect(&address);
    assert_eq!(client.ask(&["AUTH", "a b"]), "+OK\r\n");
    assert!(client.ask(&["CONFIG", "GET", "timeout"]).ends_with("\r\n77\r\n"));
    std::fs::remove_file(place.path("a.conf")).unwrap();
    let refused = client.ask(&["CONFIG", "REWRITE"]);
    assert_eq!(refused, "-ERR Rewriting config file: No such file or directory\r\n");
}

fn root() -> bool {
    // SAFETY: takes nothing and always succeeds.
    unsafe { libc::geteuid() == 0 }
}

/// Debian's own file, unmodified, in namespaces where its folders are empty and the port is free.
#[test]
fn the_stock_file_starts_without_a_warning() {
    if !root() {
        return;
    }
    let place = Place::new();
    let script = format!(
        "set -e; ip link set lo up; ip addr add 10.9.9.1/24 dev lo; mount --make-rprivate /
         for folder in /run /var/log/redis /var/lib/redis; do mount -t tmpfs none $folder; done; mkdir /run/redis
         {server} /etc/redis/redis.conf; echo code $?
         cat /run/redis/redis-server.pid; redis-cli ping; redis-cli config get dir
         cat /var/log/redis/redis-server.log
         redis-cli shutdown; while test -f /run/redis/redis-server.pid; do sleep 0.01; done; echo gone
         {server} --save '' --bind '*' --daemonize yes --pidfile /run/p --logfile /run/l
         redis-cli -h 10.9.9.1 ping; redis-cli config set protected-mode no; redis-cli -h 10.9.9.1 ping
         redis-cli shutdown; while test -f /run/p; do sleep 0.01; done",
        server = place.text("redis-server")
    );
    let mut shell = Command::new("unshare");
    shell.args(["-m", "-n", "bash", "-c", &script]);
    let mut shell = Program::start(shell, &[]);
    assert_eq!(shell.wait(), 0, "{}", shell.output());
    let said = shell.output();
    for expected in ["code 0\n", "PONG\n", "/var/lib/redis", "Ready to accept connections tcp", "gone\n", "DENIED "] {
        assert!(said.contains(expected), "no {expected:?} in:\n{said}");
    }
    let warnings: Vec<&str> = said.lines().filter(|line| line.contains("WARNING")).collect();
    assert!(warnings.is_empty(), "{warnings:?}");
}

/// A script without an end does not keep the store from being saved before the process ends.
#[test]
fn a_signal_saves_despite_scripts() {
    let place = Place::new();
    let (mut program, address) = place.start(&["--save", "3600 1"]);
    let (mut client, mut admin) = (Client::connect(&address), Client::connect(&address));
    assert_eq!(admin.ask(&["SET", "kept", "v"]), "+OK\r\n");
    client.command(&["EVAL", "while true do end", "0"]);
    wait_for("the script", || (!admin.ask(&["SCRIPT", "PS"]).starts_with("*0")).then_some(()));
    program.signal(libc::SIGTERM);
    assert_eq!(program.wait(), 0, "{}", program.output());
    assert!(program.output().contains("DB saved on disk"), "{}", program.output());
    let (_program, address) = place.start(&["--save", ""]);
    wait_for("the data", || (Client::connect(&address).ask(&["GET", "kept"]) == "$1\r\nv\r\n").then_some(()));
}

/// The process ends at once despite scripts without an end, one that waits for a key, and a transaction.
#[test]
fn shutdown_does_not_wait_for_scripts() {
    let place = Place::new();
    let (mut program, address) = place.start(&["--save", ""]);
    let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(&address)).collect();
    let mut admin = Client::connect(&address);
    clients[0].command(&["EVAL", "redis.call('SET', KEYS[1], 'v') while true do end", "1", "a"]);
    wait_for("the script to begin", || (admin.ask(&["DBSIZE"]) == ":1\r\n").then_some(()));
    clients[1].command(&["EVAL", "redis.call('SET', 'b', 'v') return redis.call('GET', 'a')", "0"]);
    clients[2]
        .send("MULTI\r\nSET c v\r\nEVAL 'while true do pcall(function() while true do end end) end' 0\r\nEXEC\r\n");
    // This script waits for the key of the first one.
    clients[3].command(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "a"]);
    wait_for("the others to begin", || (admin.ask(&["DBSIZE"]) == ":3\r\n").then_some(()));
    admin.command(&["SHUTDOWN", "NOSAVE"]);
    assert_eq!(admin.read_to_end(), b"");
    assert_eq!(program.wait(), 0);
}
