//! Stores that begin with a file: what is logged, what is served until it is loaded, and what is wrong with a file.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use sluicegate_testkit::{Client, Listening, PATIENCE, Program, RedisServer, Sluicegate, free_port, wait_for};

use crate::BINARY;

/// Writes a file with these commands by redis-server.
fn written(directory: &Path, commands: &[&str]) {
    let dir = directory.to_str().expect("UTF-8");
    let redis = RedisServer::start(&["--dir", dir, "--enable-debug-command", "yes"]);
    let mut client = Client::connect(&redis.address());
    // Keys that have expired are in the file, whenever the server looks for some.
    for command in ["DEBUG SET-ACTIVE-EXPIRE 0"].iter().chain(commands) {
        client.send(format!("{command}\r\n"));
        let reply = client.read_reply();
        assert!(!reply.starts_with(b"-"), "{command}: {}", reply.escape_ascii());
    }
    assert_eq!(client.ask(&["SAVE"]), "+OK\r\n");
}

/// A file that is read as its bytes are written to it.
fn pipe(path: &Path) -> File {
    let text = CString::new(path.as_os_str().as_bytes()).expect("a path");
    // SAFETY: a path that ends with a zero, and a mode.
    assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o600) }, 0);
    // For both directions, so that neither side waits for the other to open it.
    File::options().read(true).write(true).open(path).expect("opened")
}

/// Starts `sluicegate store` in a directory.
fn store(directory: &Path, words: &[&str]) -> (Program, String) {
    let port = free_port();
    let mut command = Command::new(BINARY);
    command.args(["store", "--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]).args(words);
    command.current_dir(directory);
    (Program::start(command, &[]), format!("127.0.0.1:{port}"))
}

/// The messages of a log, from this one on, without time, process and level.
fn messages(output: &str, from: &str) -> Vec<String> {
    let message = |line: &str| Some(line.splitn(7, ' ').nth(6)?.to_owned());
    output.lines().filter_map(message).skip_while(|message| !message.starts_with(from)).collect()
}

#[test]
fn a_file_is_loaded_with_the_messages_of_redis() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    written(path, &["SET a 1", "RPUSH l x y", "SET gone 1 PX 1", "SELECT 3", "HSET h f v", "SET later 1 EX 1000"]);
    let redis = RedisServer::start(&["--dir", path.to_str().expect("UTF-8")]);
    let (mut ours, address) = store(path, &[]);
    ours.wait_for_output("Ready to accept connections");
    let [expected, found] = [&redis.program, &ours].map(|program| messages(&program.output(), "Loading RDB"));
    // Without figures that vary.
    let plain = |messages: &[String]| -> Vec<String> {
        let cut = |text: &String| match text.split_once(" seconds") {
            Some((before, _)) => before.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').to_owned(),
            None => text.strip_suffix(" tcp").unwrap_or(text).to_owned(),
        };
        messages.iter().map(cut).collect()
    };
    assert_eq!(plain(&found), plain(&expected));
    assert!(found.contains(&"Done loading RDB, keys loaded: 4, keys expired: 1.".to_owned()), "{found:?}");
    let mut client = Client::connect(&address);
    let info = client.ask(&["INFO"]);
    for line in ["loading:0", "rdb_last_load_keys_loaded:4", "rdb_last_load_keys_expired:1", "db3:keys=2,expires=1"] {
        assert!(info.contains(line), "{line}: {info}");
    }
    assert_eq!(client.ask(&["LRANGE", "l", "0", "-1"]), "*2\r\n$1\r\nx\r\n$1\r\ny\r\n");
    assert_eq!(client.ask(&["CONFIG", "GET", "dir"]).matches(path.to_str().expect("UTF-8")).count(), 1);
    // The same by parameters; a name without a file is an empty store.
    drop(ours);
    let other = tempfile::tempdir().expect("a directory");
    let dir = path.to_str().expect("UTF-8");
    for (name, keys) in [("dump.rdb", ":2\r\n"), ("other.rdb", ":0\r\n")] {
        let (mut ours, address) = store(other.path(), &["--dir", dir, "--dbfilename", name]);
        ours.wait_for_output("Ready to accept connections");
        assert_eq!(Client::connect(&address).ask(&["DBSIZE"]), keys);
    }
}

#[test]
fn a_file_that_cannot_be_loaded_ends_the_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let refused = |words: &[&str], expected: &[&str]| {
        let (mut program, _) = store(path, words);
        assert_eq!(program.wait(), 1, "{}", program.output());
        let output = program.output();
        for text in expected.iter().chain(&["Fatal error loading the DB, check server logs. Exiting."]) {
            assert!(output.contains(text), "no {text:?} in:\n{output}");
        }
        assert!(!output.contains("Ready to accept"), "{output}");
    };
    std::fs::create_dir(path.join("dump.rdb")).expect("made");
    refused(&[], &["dump.rdb: I/O error trying to load DB: Is a directory"]);
    std::fs::remove_dir(path.join("dump.rdb")).expect("removed");
    written(path, &["SET somebody 1", "RPUSH l 1 2 3"]);
    let good = std::fs::read(path.join("dump.rdb")).expect("read");
    let at = good.windows(8).position(|bytes| bytes == b"somebody").expect("the key");
    std::fs::write(path.join("dump.rdb"), &good[..at + 9]).expect("written");
    let place =
        format!("dump.rdb: Short read or OOM loading DB. Unrecoverable error, aborting now. (offset {}, key", at + 9);
    refused(&[], &[&place]);
    assert_eq!(std::fs::read(path.join("dump.rdb")).expect("read"), good[..at + 9], "the file stays as it is");
    let mut changed = good.clone();
    changed[at] = b'S';
    std::fs::write(path.join("dump.rdb"), &changed).expect("written");
    let place = format!("Internal error in RDB reading offset {} -> RDB CRC error", good.len());
    refused(&[], &["Wrong RDB checksum expected: (", &place]);
    let (mut program, address) = store(path, &["--rdbchecksum", "no"]);
    program.wait_for_output("Ready to accept connections");
    assert_eq!(Client::connect(&address).ask(&["GET", "Somebody"]), "$1\r\n1\r\n");
    std::fs::write(path.join("dump.rdb"), b"REDIS0099").expect("written");
    refused(&[], &["Can't handle RDB format version 99"]);
    refused(&["--databases", "1", "--dbfilename", "none", "--dbfilename", "dump.rdb"], &["format version"]);
}

#[test]
fn clients_are_told_while_a_file_is_loaded() {
    let directory = tempfile::tempdir().expect("a directory");
    written(directory.path(), &["SET a 1"]);
    let bytes = std::fs::read(directory.path().join("dump.rdb")).expect("read");
    let mut pipe = pipe(&directory.path().join("pipe"));
    let (mut program, address) = store(directory.path(), &["--dbfilename", "pipe"]);
    // The first bytes are read, and no more come.
    pipe.write_all(&bytes[..40]).expect("written");
    let mut client = wait_for("the store to serve", || {
        std::net::TcpStream::connect(&address).ok().map(|_| Client::connect(&address))
    });
    let loading = "-LOADING Redis is loading the dataset in memory\r\n";
    assert_eq!(client.ask(&["GET", "a"]), loading);
    assert_eq!(client.ask(&["PING"]), loading);
    let info = client.ask(&["INFO", "persistence"]);
    assert!(info.contains("loading:1\r\n") && info.contains("loading_start_time:"), "{info}");
    assert!(!program.output().contains("Ready to accept"));
    pipe.write_all(&bytes[40..]).expect("written");
    program.wait_for_output("Ready to accept connections");
    assert_eq!(client.ask(&["GET", "a"]), "$1\r\n1\r\n");
}

#[test]
fn a_store_is_ended_while_it_loads() {
    let directory = tempfile::tempdir().expect("a directory");
    let _pipe = pipe(&directory.path().join("dump.rdb"));
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let (mut program, address) = store(directory.path(), &[]);
        // Whoever answers catches signals already.
        let mut client = wait_for("the store to serve", || {
            std::net::TcpStream::connect(&address).ok().map(|_| Client::connect(&address))
        });
        assert!(client.ask(&["PING"]).starts_with("-LOADING"));
        program.signal(signal);
        assert_eq!(program.wait(), 0, "{}", program.output());
    }
    let (mut program, address) = store(directory.path(), &[]);
    let mut client = wait_for("the store to serve", || {
        std::net::TcpStream::connect(&address).ok().map(|_| Client::connect(&address))
    });
    client.command(&["SHUTDOWN", "NOSAVE"]);
    assert_eq!(program.wait(), 0, "{}", program.output());
}

#[test]
fn a_service_manager_is_told_of_a_load() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut pipe = pipe(&directory.path().join("dump.rdb"));
    let socket = directory.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&socket).expect("bound");
    manager.set_read_timeout(Some(PATIENCE)).expect("settable");
    let told = || {
        let mut buffer = [0; 500];
        let len = manager.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    let mut command = Command::new(BINARY);
    command.args(["store", "--port", &free_port().to_string(), "--bind", "127.0.0.1", "--supervised", "systemd"]);
    command.current_dir(directory.path()).env("NOTIFY_SOCKET", &socket);
    let _program = Program::start(command, &[]);
    assert_eq!(told(), "STATUS=Loading the dataset: 0%\nEXTEND_TIMEOUT_USEC=10000000\n");
    pipe.write_all(b"REDIS0010\xff\0\0\0\0\0\0\0\0").expect("written");
    while told() != "READY=1\nSTATUS=Ready to accept connections\n" {}
}

/// A proxy with a store that begins with a file, and rules that ask it.
fn proxy(dir: &str, name: &str, gate: &Listening) -> String {
    format!(
        "global\n    log stderr format raw local0\nstore data\n    dir {dir}\n    dbfilename {name}\n\
         defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
         frontend front\n    bind \"{}\"\n    \
         http-request store-call data GET a set-var(txn.v) on-error value:fallback if {{ path /value }}\n    \
         http-request store-call data INCR hits on-error closed if {{ path /closed }}\n    \
         http-request set-var(txn.v) str(a),store_get(data) if {{ path /fetch }}\n    \
         http-request limit units key src rate 5/1h store data on-error closed if {{ path /limit }}\n    \
         http-request return status 200 content-type text/plain lf-string \
         \"%[var(txn.v)] %[var(txn.store_err),word(1,' ')]\"\n",
        gate.word()
    )
}

#[test]
fn rules_fall_back_while_a_file_is_loaded() {
    let directory = tempfile::tempdir().expect("a directory");
    written(directory.path(), &["SET a 1"]);
    let bytes = std::fs::read(directory.path().join("dump.rdb")).expect("read");
    let mut pipe = pipe(&directory.path().join("pipe"));
    let gate = Listening::new();
    let text = proxy(directory.path().to_str().expect("UTF-8"), "pipe", &gate);
    let mut server = Sluicegate::start(BINARY, &text, &[&gate]);
    let get = |path: &str| {
        let response = Client::connect(&gate.address()).get(path);
        (response.status, response.text())
    };
    assert_eq!(get("/value"), (200, "fallback LOADING".into()), "{}", server.program.output());
    assert_eq!(get("/fetch"), (200, " LOADING".into()));
    assert_eq!([get("/closed").0, get("/limit").0], [503, 503]);
    pipe.write_all(&bytes).expect("written");
    server.program.wait_for_output("store data: DB loaded from disk");
    assert_eq!(get("/value"), (200, "1 ".into()));
    assert_eq!([get("/closed").0, get("/limit").0], [200, 200]);
    assert_eq!(get("/fetch"), (200, "1 ".into()));
}

#[test]
fn a_proxy_does_not_serve_without_its_data() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let dir = path.to_str().expect("UTF-8");
    let refused = |text: &str, expected: &str| {
        std::fs::write(path.join("a.cfg"), text).expect("written");
        let mut command = Command::new(BINARY);
        command.args(["run", "a.cfg"]).current_dir(path);
        let mut program = Program::start(command, &[]);
        assert_eq!(program.wait(), 1, "{}", program.output());
        assert!(program.output().contains(expected), "no {expected:?} in:\n{}", program.output());
    };
    let section = |dir: &str| format!("store data\n bind 127.0.0.1:{}\n dir {dir}\n", free_port());
    std::fs::write(path.join("dump.rdb"), b"REDIS0010\xfe").expect("written");
    refused(&section(dir), "error: store 'data': ");
    refused(&section(dir), "dump.rdb: Short read or OOM loading DB. Unrecoverable error, aborting now. (offset 10)");
    refused(&section("/nosuch"), "error: store 'data': Can't chdir to '/nosuch': No such file or directory");
    refused(&section("here"), "'dir here': argument must be an absolute path");
}

/// The stores of a proxy are saved at its end, however it ends, if they have save points.
#[test]
fn the_stores_of_a_proxy_are_saved_at_its_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let dir = path.to_str().expect("UTF-8");
    let start = |words: &str| {
        let ports = [free_port(), free_port()];
        let text = format!(
            "global\n log stderr format raw local0\nstore data\n bind 127.0.0.1:{}\n dir {dir}\n{words}store other\n bind \
             127.0.0.1:{}\n dir {dir}\n dbfilename other.rdb\n",
            ports[0], ports[1]
        );
        std::fs::write(path.join("a.cfg"), text).expect("written");
        let mut command = Command::new(BINARY);
        command.args(["run", "a.cfg"]).current_dir(path);
        let program = Program::start(command, &[]);
        let clients = ports.map(|port| {
            let address = format!("127.0.0.1:{port}");
            wait_for("the store", || std::net::TcpStream::connect(&address).ok());
            let mut client = Client::connect(&address);
            wait_for("the data", || (!client.ask(&["EXISTS", "rounds"]).starts_with("-LOADING")).then_some(()));
            client
        });
        (program, clients)
    };
    let points = " save 3600 1\n save 300 100000\n";
    for (round, signal) in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1].into_iter().enumerate() {
        let (mut program, [mut data, mut other]) = start(points);
        assert!(data.ask(&["CONFIG", "GET", "save"]).contains("3600 1 300 100000"));
        assert_eq!(data.ask(&["INCR", "rounds"]), format!(":{}\r\n", round + 1), "{}", program.output());
        assert_eq!(other.ask(&["SET", "lost", "1"]), "+OK\r\n");
        program.signal(signal);
        program.wait();
        assert!(program.output().contains("store data: Saving the final RDB snapshot before exiting."));
        assert!(!program.output().contains("store other: User"), "{}", program.output());
        assert!(!path.join("other.rdb").exists());
    }
    // A line without points takes back those before it.
    let (mut program, [mut data, _]) = start(&format!("{points} save \"\"\n"));
    assert_eq!(data.ask(&["INCR", "rounds"]), ":4\r\n");
    program.signal(libc::SIGTERM);
    program.wait();
    // A file that can't be written does not keep the process.
    let (mut program, [mut data, _]) = start(&format!("{points} dbfilename name.rdb\n"));
    std::fs::create_dir(path.join("name.rdb")).expect("made");
    assert_eq!(data.ask(&["INCR", "rounds"]), ":1\r\n");
    program.signal(libc::SIGTERM);
    program.wait();
    let expected = "store 'data' could not be saved: what changed since the last save is lost";
    assert!(program.output().contains(expected), "{}", program.output());
    let (_program, [mut data, _]) = start("");
    assert_eq!(data.ask(&["GET", "rounds"]), "$1\r\n3\r\n");
}

/// The part of a file that is in memory while it is loaded does not take its place.
#[test]
fn a_store_that_is_being_loaded_is_not_saved() {
    let directory = tempfile::tempdir().expect("a directory");
    written(directory.path(), &["SET a 1"]);
    let bytes = std::fs::read(directory.path().join("dump.rdb")).expect("read");
    let mut pipe = pipe(&directory.path().join("pipe"));
    let gate = Listening::new();
    let text = proxy(directory.path().to_str().expect("UTF-8"), "pipe\n    save 3600 1", &gate);
    let mut server = Sluicegate::start(BINARY, &text, &[&gate]);
    pipe.write_all(&bytes[..bytes.len() - 9]).expect("written");
    assert_eq!(Client::connect(&gate.address()).get("/closed").status, 503);
    server.program.signal(libc::SIGTERM);
    server.program.wait();
    let kind = std::fs::metadata(directory.path().join("pipe")).expect("there").file_type();
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&kind), "the file was replaced");
}

/// Copies a directory's append-only files to another one.
fn copied(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(to.path().join("appendonlydir")).expect("made");
    for entry in std::fs::read_dir(from.join("appendonlydir")).expect("read") {
        let entry = entry.expect("read");
        std::fs::copy(entry.path(), to.path().join("appendonlydir").join(entry.file_name())).expect("copied");
    }
    to
}

#[test]
fn append_only_files_are_loaded_with_the_messages_of_redis() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let dir = path.to_str().expect("UTF-8");
    let mut redis = RedisServer::start(&["--dir", dir, "--appendonly", "yes"]);
    let mut client = Client::connect(&redis.address());
    for line in ["SET a 1", "INCR a", "SELECT 3", "MULTI", "RPUSH l x y", "HSET h f v", "EXEC"] {
        client.send(format!("{line}\r\n"));
        assert!(!client.read_reply().starts_with(b"-"), "{line}");
    }
    redis.program.signal(libc::SIGTERM);
    assert_eq!(redis.program.wait(), 0);
    let increment = "appendonlydir/appendonly.aof.1.incr.aof";
    let whole = std::fs::read(path.join(increment)).expect("read");
    let append = ["--appendonly", "yes"];
    // Whole, cut, with bad bytes, and cut where that is not accepted: what both log, and the end.
    let bad = [&whole[..], b"x\r\n"].concat();
    for (bytes, words, serves) in [
        (&whole[..], &[][..], true),
        (&whole[..whole.len() - b"*1\r\n$4\r\nEXEC\r\n".len()], &[], true),
        (&bad, &[], false),
        (&whole[..60], &["--aof-load-truncated", "no"], false),
    ] {
        std::fs::write(path.join(increment), bytes).expect("written");
        let (theirs, mine) = (copied(path), copied(path));
        let mut redis = Command::new("redis-server");
        redis.args(["--port", &free_port().to_string(), "--bind", "127.0.0.1", "--save", ""]).current_dir(&theirs);
        let mut redis = Program::start(
            {
                redis.args(append).args(words);
                redis
            },
            &[],
        );
        let (mut ours, address) = store(mine.path(), &[&append[..], words].concat());
        for program in [&mut redis, &mut ours] {
            match serves {
                true => program.wait_for_output("Ready to accept connections"),
                false => assert_eq!(program.wait(), 1, "{}", program.output()),
            }
        }
        let [expected, found] = [&redis, &ours].map(|program| {
            let messages = messages(&program.output(), "Reading RDB base file").into_iter();
            let is_told = |message: &String| !message.starts_with("RDB ");
            messages
                .take_while(|message| !message.starts_with("Ready"))
                .filter(is_told)
                .map(without_figures)
                .collect::<Vec<_>>()
        });
        assert_eq!(found[..expected.len()], expected, "{}", ours.output());
        if serves {
            let mut client = Client::connect(&address);
            assert_eq!(client.ask(&["GET", "a"]), "$1\r\n2\r\n");
            client.ask(&["SELECT", "3"]);
            assert_eq!(client.ask(&["DBSIZE"]), format!(":{}\r\n", if bytes.len() == whole.len() { 2 } else { 0 }));
        }
    }
}

/// A message without numbers, and without what follows Redis's text.
fn without_figures(message: String) -> String {
    let message = message.replace("valkey-check-aof", "redis-check-aof");
    let message = message.split(" (offset").next().unwrap_or_default();
    message
        .split(' ')
        .filter(|word| !word.starts_with(|first: char| first.is_ascii_digit()))
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn an_append_only_file_has_one_owner_and_outlives_its_process() {
    let directory = tempfile::tempdir().expect("a directory");
    let append = ["--appendonly", "yes"];
    for (signal, value) in [(libc::SIGTERM, "1"), (libc::SIGINT, "2")] {
        let (mut owner, address) = store(directory.path(), &append);
        owner.wait_for_output("Ready to accept connections");
        let mut client = Client::connect(&address);
        assert_eq!(client.ask(&["INCR", "starts"]), format!(":{value}\r\n"));
        let (mut other, _) = store(directory.path(), &append);
        assert_eq!(other.wait(), 1);
        let told = other.output();
        assert!(
            told.contains(
                "The append-only file appendonly.aof in dir appendonlydir is in use by another process or store"
            ),
            "{told}"
        );
        // One without it may share the directory.
        let (mut without, _) = store(directory.path(), &[]);
        without.wait_for_output("Ready to accept connections");
        owner.signal(signal);
        assert_eq!(owner.wait(), 0, "{}", owner.output());
        assert!(owner.output().contains("Calling fsync() on the AOF file."), "{}", owner.output());
    }
}
