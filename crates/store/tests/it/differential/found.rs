//! What random commands against redis-server have found (`cargo xtask differential`), each by its name.

use sluicegate_testkit::{Client, RedisServer};

use crate::support::Running;

/// Gives both each line on a connection of its own, in RESP2 and in RESP3; commands stand between semicolons.
#[track_caller]
fn check(lines: &[&str]) {
    let redis = RedisServer::start(&["--hz", "500"]);
    let ours = Running::start();
    for hello in ["HELLO 2", "HELLO 3"] {
        for line in lines {
            let mut clients = [Client::connect(&ours.address()), Client::connect(&redis.address())];
            for command in [hello, "FLUSHALL"].into_iter().chain(line.split("; ")) {
                let [ours, theirs] = clients.each_mut().map(|client| {
                    client.send(format!("{command}\r\n"));
                    client.read_reply()
                });
                if command != hello {
                    let [ours, theirs] = [ours, theirs].map(|reply| reply.escape_ascii().to_string());
                    assert_eq!(ours, theirs, "ours, then Redis's, to {command} behind {hello} in: {line}");
                }
            }
        }
    }
}

#[test]
fn a_wait_that_ends_for_nothing_is_answered_by_a_null_array() {
    check(&[
        "BRPOPLPUSH none to 0.001",
        "BLMOVE none to LEFT RIGHT 0.001",
        "BLPOP none 0.001",
        "BZPOPMIN none 0.001",
        // One that may not wait is answered as ever.
        "MULTI; BRPOPLPUSH none to 0.001; BLMOVE none to LEFT LEFT 1; BLPOP none 1; EXEC",
    ]);
}

#[test]
fn an_empty_text_matches_no_star() {
    check(&[
        "SET \"\" v; KEYS *; KEYS **; KEYS \"\"; SCAN 0 MATCH *; SCAN 0 MATCH **; SCAN 0 MATCH \"\"",
        "SADD s \"\"; SSCAN s 0 MATCH *; SSCAN s 0 MATCH **; SSCAN s 0 MATCH \"\"",
        "HSET h \"\" v; HSCAN h 0 MATCH *; HSCAN h 0 MATCH **",
        "PSUBSCRIBE *; PUBLISH \"\" x",
    ]);
}

#[test]
fn errors_repeat_bytes_and_end_at_a_nul() {
    check(&[
        "EXPIRE k 1 \"\\xe3\\x07\"",
        "EXPIRE k 1 \"a\\x00b\"",
        "PFADD p x; PFDEBUG \"\\xff\" p",
        "PFADD p x; PFDEBUG \"a\\x00b\" p",
        // Line breaks at the end are dropped, others become blanks.
        "EXPIRE k 1 \"a\\r\\nb\\n\\r\\n\"",
    ]);
}

#[test]
fn a_hyperloglog_that_was_looked_into_is_raw() {
    check(&[
        "SET p \"HYLL\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\"; OBJECT ENCODING p; PFCOUNT p; OBJECT ENCODING p",
        "SET q \"HYLL\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\"; PFDEBUG ENCODING q; OBJECT ENCODING q",
    ]);
}

#[test]
fn a_hyperloglog_that_is_cut_off_is_shown_as_by_redis() {
    check(&["PFADD p a 9999; APPEND p abc; PFDEBUG DECODE p; PFCOUNT p; APPEND p c; PFDEBUG DECODE p"]);
}

#[test]
fn lists_of_commands_are_arrays() {
    check(&["COMMAND LIST FILTERBY PATTERN get; COMMAND GETKEYSANDFLAGS SET a GET"]);
}
