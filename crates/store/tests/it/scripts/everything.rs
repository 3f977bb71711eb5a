//! Scripts that need all keys: FLUSHALL, FLUSHDB, SWAPDB and KEYS in scripts, and next to scripts in a transaction.

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, RedisServer, wait_for};

use super::Ticking;
use crate::server::check_alike;
use crate::support::Running;

const ENDLESS: &str = "redis.call('SET', KEYS[1], 'x') while true do end";

/// Requests whose replies must be equal byte for byte.
const ALIKE: &[&str] = &[
    "MSET a 1 b 2\r\nEVAL \"redis.call('set','c',3) redis.call('flushall') redis.call('set','d',4) return redis.call('dbsize')\" 0\r\n\
     MGET a b c d\r\nEVAL \"return redis.call('keys','*')\" 0\r\nDEL d\r\n",
    "SET a 1\r\nSELECT 2\r\nSET b 2\r\nEVAL \"redis.call('flushdb') return redis.call('get','b')\" 0\r\nSELECT 0\r\nGET a\r\nDEL a\r\n",
    "SET a 1\r\nEVAL \"redis.call('swapdb',0,1) return redis.call('get','a')\" 0\r\nSELECT 1\r\nGET a\r\nFLUSHALL\r\n",
    "EVAL \"return redis.call('swapdb',0)\" 0\r\nEVAL \"return redis.call('swapdb',0,99)\" 0\r\nEVAL \"return redis.call('flushall','x')\" 0\r\n",
    "EVAL_RO \"return redis.call('flushall')\" 0\r\nSET a 1\r\nEVAL_RO \"return redis.call('keys','a*')\" 0\r\nDEL a\r\n",
    "SET a 1\r\nMULTI\r\nEVAL \"return redis.call('incr',KEYS[1])\" 1 a\r\nKEYS *\r\nFLUSHALL\r\n\
     EVAL \"return redis.call('incr',KEYS[1])\" 1 a\r\nSELECT 1\r\nSET b 1\r\nSWAPDB 0 1\r\nEVAL \"return redis.call('keys','*')\" 0\r\nDBSIZE\r\nEXEC\r\n\
     GET a\r\nFLUSHALL\r\n",
    "MULTI\r\nEVAL \"return redis.call('flushall')\" 0\r\nSET a 1\r\nEXEC\r\nWATCH a\r\nSET a 2\r\nMULTI\r\nEVAL 'return 1' 0\r\nFLUSHALL\r\nEXEC\r\nGET a\r\nDEL a\r\n",
    "EVAL \"return redis.call('randomkey')\" 0\r\nSET a 1\r\nEVAL \"return {redis.call('randomkey'),redis.call('scan',0),redis.call('dbsize')}\" 0\r\nDEL a\r\n",
];

#[test]
fn replies_are_those_of_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    check_alike(ALIKE, &redis, &ours);
}

/// Returns a script that creates its key, waits until DBSIZE, which counts held keys, equals its argument, and then
/// runs `call`.
fn staged(call: &str) -> String {
    format!(
        "redis.call('SET', KEYS[1], 'x')
         local function seen(n) repeat until redis.call('DBSIZE') >= n end
         seen(tonumber(ARGV[1]))
         {call}"
    )
}

fn begin(client: &mut Client, script: &str, words: &[&str]) {
    let mut all = vec!["EVAL", script];
    all.extend(words);
    client.command(&all);
}

/// Returns the number of commands and sections that wait for keys.
fn parked(admin: &mut Client) -> usize {
    admin
        .ask(&["INFO", "stats"])
        .lines()
        .find_map(|line| line.strip_prefix("sections_parked:")?.parse().ok())
        .expect("a number")
}

#[test]
fn nobody_sees_the_middle_of_a_script_that_flushes() {
    let ours = Running::with(ServerOptions::default(), 2);
    let (mut one, mut admin, mut reader, mut writer) = (ours.connect(), ours.connect(), ours.connect(), ours.connect());
    admin.ask(&["SET", "old", "1"]);
    // The script flushes, and then runs until there is a subscriber.
    let script = "redis.call('FLUSHALL')
        repeat until redis.call('PUBSUB', 'NUMSUB', 'go on')[2] == 1
        redis.call('MSET', 'a', '1', 'b', '1')
        return 'whole'";
    begin(&mut one, script, &["0"]);
    wait_for("the database to be empty", || (admin.ask(&["DBSIZE"]) == ":0\r\n").then_some(()));
    let before = parked(&mut admin);
    reader.command(&["MGET", "a", "b", "old"]);
    writer.command(&["SET", "b", "2"]);
    wait_for("both to wait", || (parked(&mut admin) >= before + 2).then_some(()));
    let mut signal = ours.connect();
    signal.ask(&["SUBSCRIBE", "go on"]);
    assert_eq!(one.read_reply(), b"$5\r\nwhole\r\n");
    let seen = reader.read_reply();
    assert!(seen.starts_with(b"*3\r\n$1\r\n1\r\n$1\r\n"), "half of a script was seen: {}", seen.escape_ascii());
    assert!(seen.ends_with(b"$-1\r\n"));
    assert_eq!(writer.read_reply(), b"+OK\r\n");
    assert_eq!(admin.ask(&["MGET", "a", "b"]), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    // No key stays held.
    assert_eq!(admin.ask(&["SWAPDB", "0", "1"]), "+OK\r\n");
    assert_eq!(admin.ask(&["FLUSHALL"]), "+OK\r\n");
}

#[test]
fn scripts_with_keys_that_want_everything_do_not_wait_for_each_other() {
    let ours = Running::with(ServerOptions::default(), 2);
    let (mut one, mut two, mut other, mut admin) = (ours.connect(), ours.connect(), ours.connect(), ours.connect());
    // Both scripts have read their key when they need all keys.
    let reads = "redis.call('GET', KEYS[1])
        redis.call('PUBLISH', 'here', 'x')
        for i = 1, 3000000 do end
        return #redis.call('KEYS', '*')";
    admin.ask(&["MSET", "a", "1", "b", "2"]);
    for _ in 0..20 {
        begin(&mut one, reads, &["1", "a"]);
        begin(&mut two, reads, &["1", "b"]);
        other.ask(&["INCR", "a"]);
        assert_eq!(one.read_reply(), b":2\r\n");
        assert_eq!(two.read_reply(), b":2\r\n");
    }
    // Both scripts have written: one is refused, unless it ended before the other one needed all keys.
    for round in 0..20 {
        // A different script each time, because a refused script runs exclusively among its kind from then on.
        let writes = staged(&format!("return #redis.call('KEYS', '*'), {round}"));
        admin.ask(&["FLUSHALL"]);
        begin(&mut one, &writes, &["1", "a", "2"]);
        begin(&mut two, &writes, &["1", "b", "2"]);
        for reply in [one.read_reply(), two.read_reply()] {
            assert!(reply == b":2\r\n" || reply.starts_with(b"-BUSY"), "{round}: {}", reply.escape_ascii());
        }
    }
    assert_eq!(admin.ask(&["FLUSHALL"]), "+OK\r\n");
}

#[test]
fn a_script_that_holds_a_key_and_one_that_wants_everything_and_that_key() {
    let ours = Running::with(ServerOptions::default(), 2);
    let (mut one, mut two, mut admin) = (ours.connect(), ours.connect(), ours.connect());
    // One script holds a key and needs all; the other one holds a key and needs that of the first.
    let takes = "redis.call('GET', KEYS[1]) for i = 1, 3000000 do end return redis.call('INCR', ARGV[1])";
    let flushes = "redis.call('GET', KEYS[1]) for i = 1, 3000000 do end redis.call('FLUSHALL') return redis.call('INCR', KEYS[1])";
    for _ in 0..20 {
        begin(&mut one, flushes, &["1", "a"]);
        begin(&mut two, takes, &["1", "b", "a"]);
        assert_eq!(one.read_reply(), b":1\r\n");
        assert!(two.read_reply().starts_with(b":"));
    }
    assert_eq!(admin.ask(&["FLUSHALL"]), "+OK\r\n");
}

#[test]
fn all_keys_are_keys_that_were_not_declared() {
    let ours = Running::start();
    let mut client = ours.connect();
    client.ask(&["CONFIG", "SET", "lua-undeclared-keys", "deny"]);
    client.ask(&["SET", "k", "v"]);
    for call in ["'FLUSHALL'", "'FLUSHDB'", "'SWAPDB', 0, 1", "'KEYS', '*'"] {
        let body = format!("return redis.call({call})");
        let refused = client.ask(&["EVAL", &body, "1", "k"]);
        assert!(refused.starts_with("-ERR script tried accessing undeclared key"), "{refused}");
        let allowed = client.ask(&["EVAL", &format!("#!lua flags=allow-undeclared-keys\n{body}"), "1", "k"]);
        assert!(!allowed.starts_with('-'), "{allowed}");
        // Without atomicity no key is held, and each command runs like a client's.
        let alone = client.ask(&["EVAL", &format!("--!df flags=disable-atomicity\n{body}"), "1", "k"]);
        assert!(!alone.starts_with('-'), "{alone}");
    }
}

#[test]
fn those_who_block_are_served_by_a_database_that_a_script_swaps_in() {
    let ours = Running::with(ServerOptions::default(), 2);
    let (mut blocked, mut admin) = (ours.connect(), ours.connect());
    admin.send("SELECT 1\r\nRPUSH list x\r\nSELECT 0\r\n");
    (0..3).for_each(|_| drop(admin.read_reply()));
    blocked.command(&["BLPOP", "list", "0"]);
    wait_for("it to block", || admin.ask(&["INFO", "clients"]).contains("blocked_clients:1").then_some(()));
    assert_eq!(admin.ask(&["EVAL", "return redis.call('SWAPDB', 0, 1)", "0"]), "+OK\r\n");
    assert_eq!(blocked.read_reply(), b"*2\r\n$4\r\nlist\r\n$1\r\nx\r\n");
}

#[test]
fn a_script_that_waits_for_everything_can_be_ended_and_lets_others_go_on() {
    let options = ServerOptions { busy_reply_threshold_ms: 50, ..ServerOptions::default() };
    let ours = Running::with(options, 2);
    let _ticking = Ticking::start(&ours);
    let (mut endless, mut flushing, mut behind, mut admin) =
        (ours.connect(), ours.connect(), ours.connect(), ours.connect());
    begin(&mut endless, ENDLESS, &["1", "a"]);
    wait_for("it to begin", || (admin.ask(&["DBSIZE"]) == ":1\r\n").then_some(()));
    // The script has written, so it does not get `BUSY` itself.
    begin(
        &mut flushing,
        "redis.call('SET', KEYS[1], 1) redis.call('FLUSHALL') return redis.call('DBSIZE')",
        &["1", "b"],
    );
    // A script on another key waits until then, and gets `BUSY`.
    wait_for("a script behind it to be told", || {
        begin(&mut behind, "return redis.call('GET', KEYS[1])", &["1", "c"]);
        behind.read_reply().starts_with(b"-BUSY").then_some(())
    });
    // A command on another key does not wait.
    assert_eq!(admin.ask(&["SET", "c", "1"]), "+OK\r\n");
    wait_for("the endless one to be ended", || {
        let listed = admin.ask(&["SCRIPT", "KILL", &sha_of(ENDLESS), "FORCE"]);
        (listed == "+OK\r\n").then_some(())
    });
    assert!(endless.read_reply().starts_with(b"-ERR Script killed"));
    assert_eq!(flushing.read_reply(), b":0\r\n");
    begin(&mut behind, "return redis.call('GET', KEYS[1])", &["1", "c"]);
    assert_eq!(behind.read_reply(), b"$-1\r\n");
}

fn sha_of(body: &str) -> String {
    use sha1::{Digest, Sha1};
    Sha1::digest(body).iter().map(|byte| format!("{byte:02x}")).collect()
}
