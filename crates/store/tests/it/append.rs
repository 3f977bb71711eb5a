//! The append-only file from outside: what survives, what clients are told, and files of other servers.

use std::path::Path;
use std::process::Command;

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, RedisServer, wait_for};

use crate::server::check_alike;
use crate::support::Running;

fn in_directory(directory: &Path) -> ServerOptions {
    let dir = directory.as_os_str().as_encoded_bytes().to_vec();
    ServerOptions { dir, appendonly: true, enable_debug_command: "yes", ..ServerOptions::default() }
}

/// Starts a store on what is in a directory.
fn start(options: ServerOptions) -> Running {
    let ours = Running::with(options, 2);
    if let Some(beginning) = ours.server.begin().expect("right files") {
        beginning.load().expect("right files");
    }
    ours
}

/// Returns why a store does not start.
fn start_refused(options: ServerOptions) -> String {
    Running::with(options, 1).server.begin().expect_err("it is refused")
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
    assert_eq!(files, 3, "manifest, base and increment");
    let manifest = directory.path().join("appendonlydir/appendonly.aof.manifest");
    let checked = Command::new("redis-check-aof").arg(manifest).output().expect("it runs");
    let told = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success() && told.contains("All AOF files and manifest are valid"), "{told}");
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
    assert!(ask(&mut client, "BGREWRITEAOF").starts_with("-ERR"));
    let refused = "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n";
    assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), refused);
    for _ in 0..2 {
        assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK\r\n");
        assert_eq!(ask(&mut client, "INCR times"), ask(&mut client, "GET times").replacen("$1\r\n", ":", 1));
        assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), "*2\r\n:1\r\n:0\r\n");
        assert_eq!(info(&mut client, "aof_enabled"), "1");
        // The files are this store's, and others may read a copy.
        let copy = tempfile::tempdir().expect("a directory");
        let files = copy.path().join("appendonlydir");
        std::fs::create_dir(&files).expect("a directory");
        for file in std::fs::read_dir(directory.path().join("appendonlydir")).expect("the directory").flatten() {
            std::fs::copy(file.path(), files.join(file.file_name())).expect("a file");
        }
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
