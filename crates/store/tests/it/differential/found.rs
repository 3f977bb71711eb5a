//! Differences from redis-server that random commands have found (`cargo xtask differential`), each as a named test.

use sluicegate_testkit::{Client, RedisServer};

use crate::support::Running;

/// Sends each line to both servers on a connection of its own, in RESP2 and in RESP3, and compares the replies. A line
/// contains commands separated by semicolons.
#[track_caller]
fn check(lines: &[&str]) {
    check_beside(&RedisServer::start(&["--hz", "500"]), lines);
}

/// Like [`check`], for a given server.
#[track_caller]
fn check_beside(redis: &RedisServer, lines: &[&str]) {
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
        // In a transaction, which cannot wait, the replies are the usual ones.
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
        // Line breaks at the end are dropped, others become spaces.
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
    let cut_off = r#"SET p "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00abc""#;
    check(&[
        "PFADD p a 9999; APPEND p abc; PFDEBUG DECODE p; PFCOUNT p; APPEND p c; PFDEBUG DECODE p",
        &format!("{cut_off}; PFADD p 10000 mynewtext; GET p; PFCOUNT p; PFDEBUG DECODE p"),
        &format!("{cut_off}; PFADD p a; GET p; PFADD p b c d; GET p; PFADD p e f g h i j k; GET p; PFCOUNT p"),
        &format!("{cut_off}; PFADD p 1; PFADD p 2; PFADD p 3; PFADD p 4; GET p; PFMERGE p q; PFDEBUG TODENSE p"),
    ]);
}

#[test]
fn lists_of_commands_are_arrays() {
    check(&["COMMAND LIST FILTERBY PATTERN get; COMMAND GETKEYSANDFLAGS SET a GET"]);
}

/// A small sorted set drops the sign of a score of -0, a large one keeps it. So the sign shows which form a value has
/// passed through.
#[test]
fn a_score_of_minus_zero_keeps_its_sign_as_in_redis() {
    const LONG: &str = "a-member-that-is-somewhat-longer-than-the-sixty-four-bytes-of-a-small-one";
    let members: Vec<String> = (0..130).map(|n| format!("{n} m{n}")).collect();
    let made = format!("ZADD z {}; ZUNIONSTORE z 1 z WEIGHTS -0", members.join(" "));
    check(&[
        "ZADD z -0 a; ZSCORE z a; ZINCRBY z -0 b; ZRANGE z 0 -1 WITHSCORES; ZADD z INCR -0 c",
        &format!("{made}; ZRANGE z 0 -1 WITHSCORES; ZDIFF 1 z WITHSCORES"),
        &format!("{made}; ZRANGESTORE d z 0 -1; ZRANGE d 0 -1 WITHSCORES"),
        &format!("{made}; ZRANGESTORE d z 0 128 REV; ZRANGE d 0 -1 WITHSCORES"),
        &format!("{made}; ZRANGESTORE d z 1 2; ZRANGE d 0 -1 WITHSCORES"),
        &format!("{made}; ZRANGESTORE d z -inf inf BYSCORE; ZRANGE d 0 -1 WITHSCORES"),
        &format!("{made}; ZRANGESTORE d z - + BYLEX; ZRANGE d 0 -1 WITHSCORES"),
        &format!(
            "ZADD z -0 a; ZADD z -0 {LONG}; ZRANGE z 0 -1 WITHSCORES; ZRANGESTORE d z 0 -1; ZRANGE d 0 -1 WITHSCORES"
        ),
    ]);
}

#[test]
fn texts_and_numbers_to_be_sorted_end_at_a_nul() {
    let texts = r#"RPUSH l "a\x00c" "a\x00b" "a" b "a\x00a" "b\x00""#;
    let numbers = r#"RPUSH l "5\x00x" 3 "" "\x00" "4\x00""#;
    check(&[
        // Equal elements keep their order in the list.
        &format!("{texts}; SORT l ALPHA; SORT l ALPHA DESC; SORT l ALPHA LIMIT 1 3; SORT l ALPHA DESC LIMIT 0 2"),
        &format!("{texts}; SORT l ALPHA GET # GET none; SORT_RO l ALPHA; SORT l BY none_* ALPHA DESC"),
        &format!("{texts}; SORT l ALPHA STORE d; LRANGE d 0 -1; SORT l ALPHA DESC STORE d; LRANGE d 0 -1"),
        &format!(r##"{numbers}; SORT l; SORT l DESC; SORT l GET "#\x00x" GET #; SORT l STORE d; LRANGE d 0 -1"##),
        r#"RPUSH l 1 2 3; MSET w_1 "5\x00x" w_2 "\x00" w_3 ""; SORT l BY w_*; SORT l BY w_* DESC; SET w_3 " "; SORT l BY w_*"#,
        "RPUSH l 0x1p-1074 1; SORT l",
    ]);
}

#[test]
fn a_cursor_ends_at_a_zero_byte() {
    let cursors = ["", "\\x00", "0\\x00junk", "1\\x00 ", "x\\x00", "\\x00x", "-\\x00", "-0", "+0\\x00", "\\t\\x00"];
    // Small values, and a set of integers, are returned in one reply. The order of a hash table is random in Redis.
    let lines = cursors.map(|cursor| {
        format!("ZADD z 1 a; SADD s 1; HSET h f v; ZSCAN z \"{cursor}\"; SSCAN s \"{cursor}\"; HSCAN h \"{cursor}\"")
    });
    check_beside(&RedisServer::start_valkey("8.1", &[]), &lines.each_ref().map(String::as_str));
}
