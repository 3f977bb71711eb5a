//! Clients behind a script that has run for too long: which of them get `BUSY`, and which continue to wait.

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, wait_for};

use super::Ticking;
use crate::support::Running;

const BUSY: &str = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";

/// A server on which an endless script holds the key `held`, and has run for too long.
struct Behind {
    ours: Running,
    _ticking: Ticking,
    endless: Client,
    admin: Client,
}

impl Behind {
    /// Starts the server and, after `before`, the script.
    fn start(before: impl FnOnce(&Running)) -> Behind {
        let ours = Running::with(ServerOptions { busy_reply_threshold_ms: 50, ..ServerOptions::default() }, 2);
        let ticking = Ticking::start(&ours);
        before(&ours);
        let (mut endless, mut admin) = (ours.connect(), ours.connect());
        endless.command(&["EVAL", "while true do end", "1", "held"]);
        wait_for("it to be too old", || (admin.ask(&["GET", "held"]) == BUSY).then_some(()));
        Behind { ours, _ticking: ticking, endless, admin }
    }

    fn kill(&mut self) {
        assert_eq!(self.admin.ask(&["SCRIPT", "KILL"]), "+OK\r\n");
        assert!(String::from_utf8_lossy(&self.endless.read_reply()).starts_with("-ERR Script killed"));
    }
}

#[test]
fn whoever_waits_behind_it_is_told() {
    let mut behind = Behind::start(|ours| _ = ours.connect().ask(&["RPUSH", "list", ""]));
    for command in [
        "SET held x",
        "MGET a held",
        "RENAME held a",
        "EVAL 'return 1' 1 held",
        "EVAL_RO 'return 1' 2 a held",
        // The script's keys are visible while it runs.
        "EVAL \"return redis.call('GET', 'held')\" 0",
        "EVAL \"redis.call('GET', KEYS[1]) return redis.pcall('GET', 'held')\" 1 a",
        "SORT list BY x_* GET held*",
        // Would block if it found no element.
        "BLPOP held 0",
        "BRPOP a held 1000",
        "BLMOVE held a LEFT LEFT 0",
        "BLMOVE a held LEFT LEFT 0",
        "BLMPOP 0 2 a held LEFT",
        "BZPOPMIN held 0",
        "XREAD BLOCK 0 STREAMS held 0",
        "EVAL \"return redis.call('KEYS', '*')\" 0",
        "EVAL \"redis.call('GET', KEYS[1]) return redis.call('FLUSHALL')\" 1 a",
        // Waits until no script runs.
        "FLUSHALL",
        "FLUSHDB",
        "SWAPDB 0 1",
    ] {
        let mut client = behind.ours.connect();
        client.send(format!("{command}\r\n"));
        assert_eq!(String::from_utf8_lossy(&client.read_reply()), BUSY, "{command}");
        // A script in a transaction does not restart, so it continues to wait at a key that it did not declare.
        if !command.starts_with("EVAL \"") {
            let mut client = behind.ours.connect();
            client.send(format!("MULTI\r\n{command}\r\nGET a\r\nEXEC\r\n"));
            let replies: Vec<_> = (0..4).map(|_| client.read_reply()).collect();
            assert_eq!(String::from_utf8_lossy(&replies[3]), BUSY, "{command} in a transaction");
        }
        // Other clients are not affected.
        assert_eq!(behind.admin.ask(&["EVAL", "return redis.call('SET', KEYS[1], 'x')", "1", "other"]), "+OK\r\n");
    }
    // A script, and a command that needs the whole keyspace.
    let mut client = behind.ours.connect();
    client.send("MULTI\r\nEVAL 'return 1' 1 a\r\nFLUSHALL\r\nEXEC\r\n");
    let replies: Vec<_> = (0..4).map(|_| client.read_reply()).collect();
    assert_eq!(String::from_utf8_lossy(&replies[3]), BUSY);
    behind.kill();
    assert_eq!(behind.admin.ask(&["RPUSH", "held", "x"]), ":1\r\n");
    assert_eq!(behind.admin.ask(&["FLUSHALL"]), "+OK\r\n");
    assert_eq!(behind.ours.store().stats().tickets, 0);
}

#[test]
fn who_had_blocked_before_waits_on() {
    let mut blocked = None;
    let mut behind = Behind::start(|ours| {
        let mut client = ours.connect();
        client.command(&["BLMOVE", "source", "held", "LEFT", "LEFT", "0"]);
        let mut admin = ours.connect();
        wait_for("it to block", || admin.ask(&["INFO", "clients"]).contains("blocked_clients:1").then_some(()));
        blocked = Some(client);
    });
    // The blocked client could be served, but its destination is held.
    assert_eq!(behind.admin.ask(&["RPUSH", "source", "x"]), ":1\r\n");
    assert_eq!(behind.admin.ask(&["GET", "held"]), BUSY);
    behind.kill();
    assert_eq!(blocked.expect("it was made").read_reply(), b"$1\r\nx\r\n");
    assert_eq!(behind.admin.ask(&["LRANGE", "held", "0", "-1"]), "*1\r\n$1\r\nx\r\n");
}

#[test]
fn a_script_that_has_written_waits_on() {
    let mut behind = Behind::start(|_| {});
    let mut half = behind.ours.connect();
    half.command(&["EVAL", "redis.call('SET', KEYS[1], 'x') return redis.call('SET', 'held', 'y')", "1", "half"]);
    // The clients behind that script get `BUSY`, too.
    wait_for("it to be too old", || (behind.admin.ask(&["GET", "half"]) == BUSY).then_some(()));
    behind.kill();
    assert_eq!(half.read_reply(), b"+OK\r\n");
    assert_eq!(behind.admin.ask(&["MGET", "half", "held"]), "*2\r\n$1\r\nx\r\n$1\r\ny\r\n");
}
