//! The append-only file from outside: what survives, what clients are told, and files of other servers.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use sluicegate_store::config::{SavePoint, ServerOptions};
use sluicegate_store::server::Ending;
use sluicegate_testkit::{Client, RedisServer, wait_for};

use crate::server::check_alike;
use crate::support::{Running, copied_append_only, on_runtime};

fn in_directory(directory: &Path) -> ServerOptions {
    let dir = directory.as_os_str().as_encoded_bytes().to_vec();
    ServerOptions { dir, appendonly: true, enable_debug_command: "yes", ..ServerOptions::default() }
}

/// Starts a store on what is in a directory.
fn start(options: ServerOptions) -> Running {
    let ours = Running::with_files(options, 2);
    if let Some(beginning) = ours.server.begin().expect("right files") {
        beginning.load().expect("right files");
    }
    ours
}

/// Returns why a store does not start.
fn start_refused(options: ServerOptions) -> String {
    Running::with_files(options, 1).server.begin().expect_err("it is refused")
}

fn info(client: &mut Client, name: &str) -> String {
    let info = client.ask(&["INFO", "persistence"]);
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("{name} is not in {info}")).to_owned()
}

fn ask(client: &mut Client, line: &str) -> String {
    client.ask(&line.split(' ').collect::<Vec<_>>())
}

#[test]
fn a_store_comes_back_with_every_change_and_is_rewritten() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut kept = 0;
    for round in 0..3 {
        let ours = start(in_directory(directory.path()));
        let mut client = ours.connect();
        assert_eq!(ask(&mut client, "LLEN all"), format!(":{kept}\r\n"));
        for number in 0..500 {
            client.command(&["RPUSH", "all", &number.to_string()]);
        }
        (0..500).for_each(|_| drop(client.read_reply()));
        kept += 500;
        assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), "*2\r\n:1\r\n:0\r\n");
        let before: u64 = info(&mut client, "aof_current_size").parse().expect("a number");
        if round == 1 {
            assert_eq!(ask(&mut client, "BGREWRITEAOF"), "+Background append only file rewriting started\r\n");
            wait_for("a rewrite", || (info(&mut client, "aof_rewrites") == "1").then_some(()));
            let after: u64 = info(&mut client, "aof_current_size").parse().expect("a number");
            assert!(after < before, "{after} of {before}");
            assert_eq!(info(&mut client, "aof_last_bgrewrite_status"), "ok");
        }
        drop((client, ours));
    }
    let files = std::fs::read_dir(directory.path().join("appendonlydir")).expect("the directory").count();
    assert_eq!(files, 4, "manifest, base, increment and lock");
    let manifest = directory.path().join("appendonlydir/appendonly.aof.manifest");
    let checked = Command::new("redis-check-aof").arg(manifest).output().expect("it runs");
    let told = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success() && told.contains("All AOF files and manifest are valid"), "{told}");
}

#[test]
fn whoever_waits_for_a_file_that_is_switched_off_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let ours = start(in_directory(directory.path()));
    let [mut client, mut waiting] = [ours.connect(), ours.connect()];
    // Nothing is synced but at the end.
    assert_eq!(ask(&mut client, "CONFIG SET appendfsync no"), "+OK\r\n");
    assert_eq!(ask(&mut waiting, "SET a b"), "+OK\r\n");
    waiting.command(&["WAITAOF", "1", "0", "0"]);
    wait_for("the wait", || ask(&mut client, "INFO clients").contains("blocked_clients:1\r\n").then_some(()));
    assert_eq!(ask(&mut client, "CONFIG SET appendonly no"), "+OK\r\n");
    let refused = b"-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n";
    assert_eq!(waiting.read_reply(), refused);
}

#[test]
fn the_file_is_switched_on_and_off_while_the_store_serves() {
    let directory = tempfile::tempdir().expect("a directory");
    let off = ServerOptions { appendonly: false, ..in_directory(directory.path()) };
    let ours = start(off.clone());
    let mut client = ours.connect();
    for number in 0..2_000 {
        client.command(&["SET", &format!("k{number}"), "v"]);
    }
    (0..2_000).for_each(|_| drop(client.read_reply()));
    let refused = "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n";
    assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), refused);
    for _ in 0..2 {
        assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK\r\n");
        assert_eq!(ask(&mut client, "INCR times"), ask(&mut client, "GET times").replacen("$1\r\n", ":", 1));
        assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), "*2\r\n:1\r\n:0\r\n");
        assert_eq!(info(&mut client, "aof_enabled"), "1");
        // The files are this store's, and others may read a copy.
        let copy = copied_append_only(directory.path());
        assert!(start_refused(in_directory(directory.path())).contains("is in use by another process or store"));
        let again = start(in_directory(copy.path()));
        let mut reader = again.connect();
        assert_eq!(ask(&mut reader, "DBSIZE"), ":2001\r\n");
        assert_eq!(ask(&mut reader, "GET times"), ask(&mut client, "GET times"));
        drop((reader, again));
        assert_eq!(ask(&mut client, "CONFIG SET appendonly no"), "+OK\r\n");
        wait_for("the end of the file", || {
            let info = client.ask(&["INFO", "persistence"]);
            (!info.contains("aof_current_size")).then_some(())
        });
        assert_eq!(info(&mut client, "aof_enabled"), "0");
        // What is not recorded is not there later.
        assert_eq!(ask(&mut client, "SET lost v"), "+OK\r\n");
        assert_eq!(ask(&mut client, "DEL lost"), ":1\r\n");
    }
}

/// Replies, errors and parameters.
#[test]
fn clients_are_told_what_redis_tells() {
    let directories = [tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory")];
    let theirs = ["--dir", directories[0].path().to_str().expect("text"), "--appendonly", "yes"];
    let requests = [
        "CONFIG GET appendonly\r\nCONFIG GET appendfsync\r\nCONFIG GET appenddirname\r\nCONFIG GET appendfilename\r\n",
        "CONFIG GET auto-aof-rewrite-percentage\r\nCONFIG GET auto-aof-rewrite-min-size\r\nCONFIG GET aof-timestamp-enabled\r\n\
         CONFIG GET aof-load-truncated\r\nCONFIG GET no-appendfsync-on-rewrite\r\n",
        "CONFIG SET appendfsync sometimes\r\nCONFIG SET appendfsync always\r\nSET a b\r\nGET a\r\nMULTI\r\nINCR n\r\nGET n\r\nEXEC\r\n",
        "CONFIG SET appenddirname x\r\nCONFIG SET appendfilename x\r\nCONFIG SET appendonly maybe\r\n",
        "CONFIG SET auto-aof-rewrite-percentage 50 auto-aof-rewrite-min-size 1mb\r\nCONFIG GET auto-aof-rewrite-min-size\r\n",
        "CONFIG SET aof-load-truncated no aof-timestamp-enabled yes\r\nSET c d\r\nCONFIG SET appendfsync no\r\nSET e f\r\n",
        "BGREWRITEAOF x\r\nMULTI\r\nBGREWRITEAOF\r\nDISCARD\r\n",
    ];
    check_alike(&requests, &RedisServer::start(&theirs), &start(in_directory(directories[1].path())));
    // Redis 7.0 has no WAITAOF.
    let ours = start(in_directory(directories[0].path()));
    let mut client = ours.connect();
    assert_eq!(ask(&mut client, "SET a b"), "+OK\r\n");
    assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), "*2\r\n:1\r\n:0\r\n");
    assert_eq!(ask(&mut client, "WAITAOF 1 1 10"), "*2\r\n:1\r\n:0\r\n");
    assert_eq!(ask(&mut client, "WAITAOF 0 0 0"), "*2\r\n:1\r\n:0\r\n");
}

#[track_caller]
fn wait_for_line(lines: &Mutex<Vec<String>>, start: &str) {
    let is_there = || lines.lock().expect("no panic").iter().any(|line| line.starts_with(start)).then_some(());
    wait_for(start, is_there);
}

/// Waits until no save and no rewrite runs: each ends after its last line in the log.
#[track_caller]
fn wait_until_idle(client: &mut Client) {
    wait_for("the end of saves", || {
        let running = ["rdb_bgsave_in_progress", "aof_rewrite_in_progress"].map(|name| info(client, name));
        (running == ["0", "0"]).then_some(())
    });
}

/// Without a pause between, even in one transaction: only what is asked for last counts.
#[test]
fn the_file_is_switched_on_and_off_in_a_row() {
    let directory = tempfile::tempdir().expect("a directory");
    {
        let ours = start(in_directory(directory.path()));
        let mut client = ours.connect();
        for round in 0..5 {
            for (first, second) in [("no", "yes"), ("yes", "no")] {
                client.ask(&["MULTI"]);
                assert_eq!(ask(&mut client, &format!("CONFIG SET appendonly {first}")), "+QUEUED\r\n");
                assert_eq!(ask(&mut client, &format!("CONFIG SET appendonly {second}")), "+QUEUED\r\n");
                assert_eq!(ask(&mut client, "EXEC"), "*2\r\n+OK\r\n+OK\r\n", "{round}");
            }
            assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK\r\n");
            assert_eq!(info(&mut client, "aof_enabled"), "1");
            assert_eq!(ask(&mut client, "INCR n"), format!(":{}\r\n", round + 1));
        }
        wait_for("the file", || (info(&mut client, "aof_rewrite_in_progress") == "0").then_some(()));
        assert_eq!(ask(&mut client, "INCR n"), ":6\r\n");
        assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), "*2\r\n:1\r\n:0\r\n");
    }
    let ours = start(in_directory(directory.path()));
    assert_eq!(ask(&mut ours.connect(), "GET n"), "$1\r\n6\r\n");
}

/// A directory that has vanished while the file was closed is told of in the log, and in the parameter.
#[test]
fn a_file_that_cannot_be_switched_on_again_is_off() {
    let directory = tempfile::tempdir().expect("a directory");
    let dir = directory.path().join("dir");
    std::fs::create_dir(&dir).expect("a directory");
    let ours = start(in_directory(&dir));
    let lines = ours.logged();
    let mut client = ours.connect();
    std::fs::remove_dir_all(&dir).expect("removed");
    client.ask(&["MULTI"]);
    ask(&mut client, "CONFIG SET appendonly no");
    ask(&mut client, "CONFIG SET appendonly yes");
    assert_eq!(ask(&mut client, "EXEC"), "*2\r\n+OK\r\n+OK\r\n");
    wait_for_line(&lines, "3 Can't open or create append-only dir appendonlydir: No such file or directory");
    wait_for("the parameter", || (ask(&mut client, "CONFIG GET appendonly").contains("no")).then_some(()));
    let refused = ask(&mut client, "CONFIG SET appendonly yes");
    assert!(refused.contains("Unable to turn on AOF. Check server logs."), "{refused}");
}

/// The base has everything, and is what a store with an append-only file begins with. The file of an old version is not
/// touched.
#[test]
fn a_file_that_is_off_is_rewritten_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let off = ServerOptions { appendonly: false, ..in_directory(directory.path()) };
    std::fs::write(directory.path().join("appendonly.aof"), "old").expect("written");
    let manifest = || std::fs::read_to_string(directory.path().join("appendonlydir/appendonly.aof.manifest"));
    {
        let ours = start(off);
        let mut client = ours.connect();
        for round in 1..=2 {
            assert_eq!(ask(&mut client, "INCR n"), format!(":{round}\r\n"));
            assert_eq!(ask(&mut client, "BGREWRITEAOF"), "+Background append only file rewriting started\r\n");
            wait_for("a rewrite", || (info(&mut client, "aof_rewrites") == round.to_string()).then_some(()));
            let base = format!("file appendonly.aof.{round}.base.rdb seq {round} type b\n");
            assert_eq!(manifest().expect("a manifest"), base);
        }
        assert_eq!(info(&mut client, "aof_enabled"), "0");
        // One that runs gives way to the file itself.
        assert_eq!(ask(&mut client, "CONFIG SET rdb-key-save-delay 10000000"), "+OK\r\n");
        assert_eq!(ask(&mut client, "BGREWRITEAOF"), "+Background append only file rewriting started\r\n");
        assert_eq!(
            ask(&mut client, "BGREWRITEAOF"),
            "-ERR Background append only file rewriting already in progress\r\n"
        );
        assert_eq!(ask(&mut client, "CONFIG SET rdb-key-save-delay 0"), "+OK\r\n");
        assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK\r\n");
        wait_for("the file", || (info(&mut client, "aof_rewrite_in_progress") == "0").then_some(()));
        assert_eq!(ask(&mut client, "INCR n"), ":3\r\n");
        assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), "*2\r\n:1\r\n:0\r\n");
    }
    assert_eq!(std::fs::read_to_string(directory.path().join("appendonly.aof")).expect("left"), "old");
    let ours = start(in_directory(directory.path()));
    assert_eq!(ask(&mut ours.connect(), "GET n"), "$1\r\n3\r\n");
}

/// INFO tells of a rewrite that waits until the file is closed, and DEBUG LOADAOF waits for both.
#[test]
fn a_rewrite_that_waits_for_the_file_to_close_is_told_of() {
    let directory = tempfile::tempdir().expect("a directory");
    let ours = start(in_directory(directory.path()));
    let mut client = ours.connect();
    for round in 0..5 {
        assert_eq!(ask(&mut client, &format!("RPUSH list {round}")), format!(":{}\r\n", round + 1));
        let digest = ask(&mut client, "DEBUG DIGEST");
        // One transaction, so that nothing is closed before the end.
        for line in ["MULTI", "CONFIG SET appendonly no", "BGREWRITEAOF", "INFO persistence"] {
            ask(&mut client, line);
        }
        let replies = ask(&mut client, "EXEC");
        assert!(replies.contains("+Background append only file rewriting scheduled\r\n"), "{replies}");
        assert!(replies.contains("aof_rewrite_scheduled:1\r\n"), "{replies}");
        assert_eq!(ask(&mut client, "DEBUG LOADAOF"), "+OK\r\n");
        assert_eq!(ask(&mut client, "DEBUG DIGEST"), digest);
        wait_for("the rewrite", || (info(&mut client, "aof_rewrite_scheduled") == "0").then_some(()));
        wait_until_idle(&mut client);
        assert_eq!(info(&mut client, "aof_last_bgrewrite_status"), "ok");
        assert_eq!(info(&mut client, "aof_rewrites"), "1");
        assert_eq!(info(&mut client, "aof_enabled"), "0");
        assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK\r\n");
        wait_until_idle(&mut client);
    }
}

/// Loads sleep for each key or command for as long as they are told to, and end at once when they no longer are.
#[test]
fn loads_of_a_slow_disk_end_when_it_is_quick() {
    let directory = tempfile::tempdir().expect("a directory");
    let ours = start(in_directory(directory.path()));
    let [mut client, mut other] = [ours.connect(), ours.connect()];
    for words in ["SET a 1", "RPUSH b 1 2", "SET c 1"] {
        ask(&mut client, words);
    }
    for command in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        assert_eq!(ask(&mut client, "CONFIG SET key-load-delay 1000000000"), "+OK\r\n");
        client.command(&command.split(' ').collect::<Vec<_>>());
        wait_for("the load", || (info(&mut other, "loading") == "1").then_some(()));
        assert_eq!(ask(&mut other, "GET a"), "-LOADING Redis is loading the dataset in memory\r\n", "{command}");
        assert_eq!(ask(&mut other, "CONFIG SET key-load-delay -2"), "+OK\r\n");
        assert_eq!(String::from_utf8_lossy(&client.read_reply()), "+OK\r\n", "{command}");
        assert_eq!(ask(&mut other, "DBSIZE"), ":3\r\n", "{command}");
    }
}

/// Operators and their tools search the log for these lines.
#[test]
fn the_log_has_the_lines_of_redis() {
    let directory = tempfile::tempdir().expect("a directory");
    let dir = directory.path().join("dir");
    std::fs::create_dir(&dir).expect("a directory");
    let ours = Running::with_files(in_directory(&dir), 2);
    let lines = ours.logged();
    assert!(ours.server.begin().expect("right files").is_none());
    let mut client = ours.connect();
    assert_eq!(ask(&mut client, "SET a b"), "+OK\r\n");
    assert_eq!(ask(&mut client, "BGSAVE"), "+Background saving started\r\n");
    wait_for_line(&lines, "2 Background saving terminated with success");
    wait_until_idle(&mut client);
    assert_eq!(ask(&mut client, "SAVE"), "+OK\r\n");
    assert_eq!(ask(&mut client, "BGREWRITEAOF"), "+Background append only file rewriting started\r\n");
    wait_for_line(&lines, "2 Background AOF rewrite finished successfully");
    wait_until_idle(&mut client);
    assert_eq!(ask(&mut client, "DEBUG LOG hello"), "+OK\r\n");
    // A rewrite that runs ends with the file.
    assert_eq!(ask(&mut client, "CONFIG SET rdb-key-save-delay 10000000"), "+OK\r\n");
    assert_eq!(ask(&mut client, "BGREWRITEAOF"), "+Background append only file rewriting started\r\n");
    wait_for_line(&lines, "2 Creating AOF incr file appendonly.aof.3.incr.aof on background rewrite");
    assert_eq!(ask(&mut client, "CONFIG SET rdb-key-save-delay 0 appendonly no"), "+OK\r\n");
    wait_for_line(&lines, "2 Background AOF rewrite cancelled");
    wait_for("the end of the file", || (!client.ask(&["INFO"]).contains("aof_current_size")).then_some(()));
    std::fs::remove_dir_all(&dir).expect("removed");
    assert_eq!(ask(&mut client, "BGSAVE"), "+Background saving started\r\n");
    wait_for_line(&lines, "3 Background saving error");
    wait_until_idle(&mut client);
    assert_eq!(ask(&mut client, "BGREWRITEAOF"), "+Background append only file rewriting started\r\n");
    wait_for_line(&lines, "3 Background AOF rewrite terminated with error");
    let pid = std::process::id();
    let expected = [
        "2 Creating AOF incr file appendonly.aof.1.incr.aof on server start".to_owned(),
        "2 Creating AOF base file appendonly.aof.1.base.rdb on server start".to_owned(),
        format!("2 Background saving started by pid {pid}"),
        "2 Background saving terminated with success".to_owned(),
        "2 DB saved on disk".to_owned(),
        format!("2 Background append only file rewriting started by pid {pid}"),
        "2 Creating AOF incr file appendonly.aof.2.incr.aof on background rewrite".to_owned(),
        "2 Background AOF rewrite terminated with success".to_owned(),
        "2 Background AOF rewrite finished successfully".to_owned(),
        "3 DEBUG LOG: hello".to_owned(),
        format!("2 Background append only file rewriting started by pid {pid}"),
        format!("2 Killing running AOF rewrite child: {pid}"),
        "2 Background AOF rewrite cancelled".to_owned(),
        format!("2 Background saving started by pid {pid}"),
        "3 Write error saving DB on disk: No such file or directory".to_owned(),
        "3 Background saving error".to_owned(),
        "3 Background AOF rewrite terminated with error".to_owned(),
    ];
    let lines = lines.lock().expect("no panic");
    let mut found = lines.iter();
    for line in &expected {
        assert!(found.any(|found| found == line), "{line:?} in {lines:#?}");
    }
}

/// The digest is that of redis-server, and the same after the files were replayed.
#[test]
fn digests_are_those_of_redis() {
    let directory = tempfile::tempdir().expect("a directory");
    let ours = start(in_directory(directory.path()));
    let redis = RedisServer::start(&["--enable-debug-command", "yes"]);
    let commands = [
        "SET s some-text",
        "SET i 12345",
        "SET t v EX 10000",
        "RPUSH l a b 1 2 -7 a",
        "SADD ints 1 2 3 -4",
        "SADD set a 1 b c",
        "ZADD z 1 a -2.5 b 3e100 c inf d 0.1 e 3 f",
        "HSET h f v g 1 h 2.5",
        "XADD x 1-1 f v g w",
        "XADD x 1-2 f v g w",
        "XADD x 2-0 a 7",
        "XDEL x 1-1",
        "SELECT 3",
        "SET s some-text",
        "SELECT 0",
    ];
    let mut both = [ours.connect(), Client::connect(&redis.address())];
    let mut seen = Vec::new();
    for line in commands {
        both.iter_mut().for_each(|client| drop(ask(client, line)));
        let [found, expected] = both.each_mut().map(|client| ask(client, "DEBUG DIGEST"));
        assert_eq!(found, expected, "{line}");
        seen.push(found);
    }
    seen.dedup();
    assert_eq!(seen.len(), commands.len() - 2, "{seen:?}");
    for client in &mut both {
        (0..2_000).for_each(|number| drop(ask(client, &format!("SADD large {number} m{number}"))));
        (0..600).for_each(|number| drop(ask(client, &format!("ZADD large-z {number} m{number}"))));
    }
    let values = "DEBUG DIGEST-VALUE s i t l ints set z h x large large-z none";
    let [found, expected] = both.each_mut().map(|client| ask(client, values));
    assert_eq!(found, expected);
    let before = ask(&mut both[0], "DEBUG DIGEST");
    for _ in 0..2 {
        assert_eq!(ask(&mut both[0], "DEBUG LOADAOF"), "+OK\r\n");
        assert_eq!(ask(&mut both[0], "DEBUG DIGEST"), before);
        assert_eq!(ask(&mut both[0], "BGREWRITEAOF"), "+Background append only file rewriting started\r\n");
        wait_for("a rewrite", || (info(&mut both[0], "aof_rewrite_in_progress") == "0").then_some(()));
    }
    // The store goes on to append.
    assert_eq!(ask(&mut both[0], "SET more v"), "+OK\r\n");
    assert_eq!(ask(&mut both[0], "DEBUG LOADAOF"), "+OK\r\n");
    assert_eq!(ask(&mut both[0], "GET more"), "$1\r\nv\r\n");
    assert_eq!(ask(&mut both[0], "DEL more"), ":1\r\n");
    assert_eq!(ask(&mut both[0], "DEBUG DIGEST"), before);
}

/// A save that a client waits for has told it; only one in the background keeps others from writing, as in Redis.
#[test]
fn a_failed_save_keeps_writers_out_only_if_it_was_in_the_background() {
    let directory = tempfile::tempdir().expect("a directory");
    let redis = RedisServer::start(&["--dir", directory.path().to_str().expect("text"), "--save", "1000 1000"]);
    let save_points = vec![SavePoint { seconds: 1000, changes: 1000 }];
    let off = ServerOptions { appendonly: false, save_points, ..in_directory(directory.path()) };
    let ours = start(off);
    // A directory cannot be replaced by a file, whoever asks for it.
    std::fs::create_dir(directory.path().join("dump.rdb")).expect("a directory");
    for mut client in [Client::connect(&redis.address()), ours.connect()] {
        assert_eq!(ask(&mut client, "SAVE"), "-ERR\r\n");
        assert_eq!(ask(&mut client, "SET a b"), "+OK\r\n");
        assert_eq!(info(&mut client, "rdb_last_bgsave_status"), "ok");
        assert_eq!(ask(&mut client, "BGSAVE"), "+Background saving started\r\n");
        wait_for("the save", || (info(&mut client, "rdb_last_bgsave_status") == "err").then_some(()));
        assert!(ask(&mut client, "SET a b").starts_with("-MISCONF "));
        assert_eq!(ask(&mut client, "SAVE"), "-ERR\r\n");
    }
}

/// Before the first base file is there, the next start would find nothing.
#[test]
fn the_process_does_not_end_before_the_first_file_is_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let off = ServerOptions { appendonly: false, ..in_directory(directory.path()) };
    let ours = start(off);
    let lines = ours.logged();
    let mut client = ours.connect();
    assert_eq!(ask(&mut client, "SET a b"), "+OK\r\n");
    assert_eq!(ask(&mut client, "CONFIG SET rdb-key-save-delay 10000000 appendonly yes"), "+OK\r\n");
    let may_end = |how: &str| {
        let ending = Ending::of(how.as_bytes());
        let server = ours.server.clone();
        on_runtime(async move { server.save_at_end(ending).await })
    };
    for how in ["default", "nosave", "now"] {
        assert!(!may_end(how), "{how}");
        wait_for_line(&lines, "3 Writing initial AOF, can't exit.");
        lines.lock().expect("no panic").clear();
    }
    assert_eq!(ask(&mut client, "SET a c"), "+OK\r\n");
    assert!(may_end("force"));
    wait_for_line(&lines, "3 Writing initial AOF. Exiting anyway.");
    wait_for_line(&lines, "3 There is a child rewriting the AOF. Killing it!");
}

/// As in Redis, where `appenddirname` is the same for all servers that share a `dir`.
#[test]
fn stores_with_different_files_share_a_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let named = |name: &str| ServerOptions { appendfilename: name.into(), ..in_directory(directory.path()) };
    for round in 1..=3 {
        let stores = [start(named("a.aof")), start(named("b.aof"))];
        assert!(start_refused(named("b.aof")).contains("The append-only file b.aof in dir appendonlydir is in use by"));
        let mut clients = stores.each_ref().map(Running::connect);
        for (client, by) in clients.iter_mut().zip([1, 10]) {
            assert_eq!(ask(client, &format!("INCRBY n {by}")), format!(":{}\r\n", by * round));
            assert_eq!(ask(client, "BGREWRITEAOF"), "+Background append only file rewriting started\r\n");
        }
        for client in &mut clients {
            wait_for("a rewrite", || (info(client, "aof_rewrites") == "1").then_some(()));
        }
    }
}
