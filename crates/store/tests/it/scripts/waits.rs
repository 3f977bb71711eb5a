//! Scripts that wait for keys that they did not declare: behind other scripts, in cycles, and until they are killed.

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, wait_for};

use super::{Ticking, figure};
use crate::support::Running;

/// Returns a loop that waits until DBSIZE, which counts held keys, has this value.
fn until(keys: usize) -> String {
    format!("while redis.call('DBSIZE') < {keys} do end ")
}

/// Returns the number of commands and sections that had to wait.
fn parked(client: &mut Client) -> u64 {
    figure(client, "sections_parked")
}

#[test]
fn a_script_goes_before_those_who_wait_for_its_keys() {
    let ours = Running::start();
    let (mut one, mut both, mut reader) = (ours.connect(), ours.connect(), ours.connect());
    let mut admin = ours.connect();
    // The script holds x, and will need y.
    one.command(&[
        "EVAL",
        &format!("redis.call('SET', KEYS[1], 0) {} return redis.call('INCR', 'y')", until(2)),
        "1",
        "x",
    ]);
    wait_for("the script to begin", || (admin.ask(&["DBSIZE"]) == ":1\r\n").then_some(()));
    // This script waits for x, and lets no other client acquire y once it was overtaken often enough.
    both.command(&["EVAL", "redis.call('INCR', KEYS[1]) return redis.call('INCR', KEYS[2])", "2", "x", "y"]);
    wait_for("the other to wait", || (parked(&mut admin) == 1).then_some(()));
    reader.send(b"GET y\r\n".repeat(70));
    wait_for("the key to be reserved", || (parked(&mut admin) == 2).then_some(()));
    admin.ask(&["SET", "signal", "v"]);
    assert_eq!(one.read_reply(), b":1\r\n");
    assert_eq!(both.read_reply(), b":2\r\n");
    // The commands that overtook it did not see its effects yet.
    let replies: Vec<_> = (0..70).map(|_| reader.read_reply()).collect();
    let (nothing, both): (&[u8], &[u8]) = (b"$-1\r\n", b"$1\r\n2\r\n");
    let waited = replies.iter().position(|reply| reply == both).unwrap_or(70);
    assert!(waited <= 64 && replies[..waited].iter().all(|reply| reply == nothing), "{waited}");
    assert!(replies[waited..].iter().all(|reply| reply == both), "{waited}");
    assert_eq!(ours.store().stats().tickets, 0);
}

/// The wait of the third script closes two cycles, one of which is broken by a restart of the second.
#[test]
fn one_wait_may_close_two_circles() {
    let ours = Running::start();
    let (mut first, mut second, mut third, mut admin) =
        (ours.connect(), ours.connect(), ours.connect(), ours.connect());
    let script = |key: &str, keys: usize, wanted: &str| {
        format!("redis.call('SET', '{key}', 0) {} return redis.call('INCR', '{wanted}')", until(keys))
    };
    first.command(&["EVAL", &script("q", 3, "z"), "0"]);
    third.command(&["EVAL", &script("z", 4, "q"), "0"]);
    wait_for("both to begin", || (admin.ask(&["DBSIZE"]) == ":2\r\n").then_some(()));
    second.command(&["EVAL", "redis.call('GET', 't') return redis.call('GET', 'q')", "0"]);
    admin.ask(&["SET", "signal", "v"]);
    // Meanwhile the first script probably waits already; if it does not, the cycles are still the same.
    admin.ask(&["SET", "again", "v"]);
    let (first, third) = (first.read_reply(), third.read_reply());
    let refused: &[u8] = b"-BUSY an undeclared key is held by another script or transaction";
    let (one, other) = if first.starts_with(refused) { (third, first) } else { (first, third) };
    assert_eq!((one.escape_ascii().to_string().as_str(), other.starts_with(refused)), (":1\\r\\n", true));
    let reply = second.read_reply();
    assert!(reply.starts_with(b"$1\r\n"), "{}", reply.escape_ascii());
    assert_eq!(figure(&mut admin, "sections_refused"), 1);
    assert_eq!(ours.store().stats().tickets, 0);
}

/// Loads a script and returns its SHA-1.
fn loaded(client: &mut Client, script: &str) -> String {
    client.ask(&["SCRIPT", "LOAD", script]).lines().nth(1).expect("a digest").to_owned()
}

#[test]
fn a_script_is_ended_where_it_waits() {
    let ours = Running::start();
    let (mut endless, mut waits, mut admin) = (ours.connect(), ours.connect(), ours.connect());
    let keeper = loaded(&mut admin, "redis.call('SET', KEYS[1], 'v') while true do end");
    endless.command(&["EVALSHA", &keeper, "1", "held"]);
    wait_for("the script to begin", || (admin.ask(&["DBSIZE"]) == ":1\r\n").then_some(()));
    let script = "redis.call('GET', 'taken') return redis.call('GET', 'held')";
    let sha = loaded(&mut admin, script);
    waits.command(&["EVALSHA", &sha, "0"]);
    wait_for("the script to wait", || (admin.ask(&["SCRIPT", "KILL", &sha]) == "+OK\r\n").then_some(()));
    let reply = waits.read_reply();
    assert!(reply.starts_with(b"-ERR Script killed by user with SCRIPT KILL"), "{}", reply.escape_ascii());
    assert_eq!(admin.ask(&["SET", "taken", "v"]), "+OK\r\n");
    // A function waits in the same way.
    let library = "#!lua name=waiting\nredis.register_function('waits', function() \
                   redis.call('GET', 'taken') return redis.call('GET', 'held') end)";
    assert_eq!(admin.ask(&["FUNCTION", "LOAD", library]), "$7\r\nwaiting\r\n");
    waits.command(&["FCALL", "waits", "0"]);
    wait_for("the function to wait", || (admin.ask(&["FUNCTION", "KILL", "waits"]) == "+OK\r\n").then_some(()));
    let reply = waits.read_reply();
    assert!(reply.starts_with(b"-ERR Script killed by user with"), "{}", reply.escape_ascii());
    // A script that is not atomic waits for the reply of a waiting command.
    let sha = loaded(&mut admin, "--!df flags=disable-atomicity\nreturn redis.call('GET', 'held')");
    waits.command(&["EVALSHA", &sha, "0"]);
    wait_for("the script to wait", || (admin.ask(&["SCRIPT", "KILL", &sha]) == "+OK\r\n").then_some(()));
    assert!(waits.read_reply().starts_with(b"-ERR Script killed by user with SCRIPT KILL"));
    assert_eq!(admin.ask(&["SCRIPT", "KILL", &keeper, "FORCE"]), "+OK\r\n");
    assert!(endless.read_reply().starts_with(b"-ERR Script killed by user with SCRIPT KILL"));
    // The remaining command of the script that was not atomic has run by now.
    wait_for("all to end", || (ours.store().stats().tickets == 0).then_some(()));
}

#[test]
fn kill_in_all_its_forms() {
    let ours = Running::with(ServerOptions { busy_reply_threshold_ms: 0, ..ServerOptions::default() }, 1);
    let (mut reads, mut writes, mut admin) = (ours.connect(), ours.connect(), ours.connect());
    const NOTBUSY: &str = "-NOTBUSY No scripts in execution right now.\r\n";
    let reader = loaded(&mut admin, "while true do redis.call('GET', KEYS[1]) end");
    let writer = loaded(&mut admin, "while true do redis.call('INCR', KEYS[1]) end");
    for none in [
        &["SCRIPT", "KILL"][..],
        &["SCRIPT", "KILL", &reader],
        &["SCRIPT", "KILL", "1"],
        &["SCRIPT", "KILL", "1", "FORCE"],
    ] {
        assert_eq!(admin.ask(none), NOTBUSY);
    }
    assert_eq!(admin.ask(&["SCRIPT", "KILL", &reader, "NOW"]), "-ERR syntax error\r\n");
    assert_eq!(admin.ask(&["SCRIPT", "KILL", &reader, "FORCE", "x"]), "-ERR syntax error\r\n");
    let ended = |client: &mut Client| {
        let reply = client.read_reply();
        assert!(
            reply.starts_with(b"-ERR Script killed by user with SCRIPT KILL... script: "),
            "{}",
            reply.escape_ascii()
        );
    };
    let begins = |sha: &str, admin: &mut Client| {
        // Until the script is listed, the reply is NOTBUSY.
        wait_for("the script to be seen", || (admin.ask(&["SCRIPT", "KILL", sha]) != NOTBUSY).then_some(()));
    };

    // By digest, in upper or lower case.
    reads.command(&["EVALSHA", &reader, "1", "r"]);
    begins(&reader.to_uppercase(), &mut admin);
    ended(&mut reads);

    // A script that has written is only ended with FORCE.
    writes.command(&["EVALSHA", &writer, "1", "w"]);
    wait_for("it to write", || admin.ask(&["SCRIPT", "PS"]).contains("$5\r\nwrote\r\n:1\r\n").then_some(()));
    for kill in [&["SCRIPT", "KILL"][..], &["SCRIPT", "KILL", &writer]] {
        let reply = admin.ask(kill);
        assert!(reply.starts_with("-UNKILLABLE Sorry the script already executed write commands"), "{reply}");
    }
    assert_eq!(admin.ask(&["SCRIPT", "KILL", &reader, "FORCE"]), NOTBUSY);
    // Without a name, all scripts that can be ended are ended.
    reads.command(&["EVALSHA", &reader, "1", "r"]);
    wait_for("the reader to be ended", || (admin.ask(&["SCRIPT", "KILL"]) == "+OK\r\n").then_some(()));
    ended(&mut reads);
    assert_eq!(admin.ask(&["SCRIPT", "KILL", &writer, "force"]), "+OK\r\n");
    ended(&mut writes);
    let written = admin.ask(&["GET", "w"]);
    assert!(written.starts_with('$'), "what it wrote is there: {written}");

    // By number: numbers are assigned in order, and only few were used.
    reads.command(&["EVALSHA", &reader, "1", "r"]);
    wait_for("the script to be found", || {
        (1..100).any(|number| admin.ask(&["SCRIPT", "KILL", &number.to_string()]) == "+OK\r\n").then_some(())
    });
    ended(&mut reads);
    assert_eq!(admin.ask(&["SCRIPT", "KILL"]), NOTBUSY);
}

/// With more scripts than threads for them, on one worker, other clients are still answered.
#[test]
fn kill_answers_while_all_threads_are_busy() {
    const SCRIPTS: &[&str] = &[
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "while true do redis.pcall('NOSUCH') end",
        "local c = coroutine.wrap(function() while true do coroutine.yield() end end) while true do c() end",
        "return ('a'):rep(40):find(('a*'):rep(40) .. 'b')",
    ];
    let ours = Running::with(ServerOptions { busy_reply_threshold_ms: 0, ..ServerOptions::default() }, 1);
    let _ticking = Ticking::start(&ours);
    let mut admin = ours.connect();
    let shas: Vec<String> = SCRIPTS.iter().map(|script| loaded(&mut admin, script)).collect();
    let mut clients: Vec<Client> = (0..40).map(|_| ours.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.command(&["EVALSHA", &shas[n % shas.len()], "0"]);
    }
    wait_for("all to begin", || (ours.store().stats().granted == 40).then_some(()));
    for sha in &shas {
        // Scripts in their first slice are not listed yet.
        let mut ended = 0;
        wait_for("the scripts to be ended", || {
            let reply = admin.ask(&["SCRIPT", "KILL", sha]);
            assert!(reply == "+OK\r\n" || reply.starts_with("-NOTBUSY"), "{reply}");
            ended += u32::from(reply.starts_with("-NOTBUSY"));
            (ended > 1).then_some(())
        });
    }
    wait_for("all to end", || {
        admin.ask(&["SCRIPT", "KILL"]);
        (ours.store().stats().tickets == 0).then_some(())
    });
    for client in &mut clients {
        assert!(client.read_reply().starts_with(b"-ERR Script killed by user with SCRIPT KILL"));
    }
    assert_eq!(ours.store().stats().tickets, 0);
}

#[test]
fn a_transaction_goes_on_after_a_script_in_it_was_ended() {
    let ours = Running::start();
    let (mut client, mut admin) = (ours.connect(), ours.connect());
    // The code is too long to be compiled on a worker.
    let long = format!("local a {} while true do end", "a = {1, 2, 3} ".repeat(100_000));
    for script in ["while true do end", &long] {
        let sha = loaded(&mut admin, script);
        for words in [&["MULTI"][..], &["INCR", "before"], &["EVALSHA", &sha, "0"], &["INCR", "after"]] {
            client.ask(words);
        }
        client.command(&["EXEC"]);
        wait_for("the script to be ended", || (admin.ask(&["SCRIPT", "KILL", &sha]) == "+OK\r\n").then_some(()));
        let reply = String::from_utf8_lossy(&client.read_reply()).into_owned();
        let lines: Vec<&str> = reply.lines().collect();
        assert!(lines[2].starts_with("-ERR Script killed by user with SCRIPT KILL"), "{reply}");
        assert!(lines[0] == "*3" && lines[1].starts_with(':') && lines[3].starts_with(':'), "{reply}");
    }
    assert_eq!(admin.ask(&["MGET", "before", "after"]), "*2\r\n$1\r\n2\r\n$1\r\n2\r\n");
}

#[test]
fn a_script_goes_on_when_its_client_has_gone() {
    let ours = Running::start();
    let mut admin = ours.connect();
    let script = format!("redis.call('SET', KEYS[1], 'half') {} return redis.call('SET', KEYS[1], 'whole')", until(3));
    // The script has left the worker, waits for a key, or is in a transaction, the rest of which is executed.
    for (round, is_killed) in [(0, false), (1, true), (2, false), (3, true)] {
        assert_eq!(admin.ask(&["FLUSHALL"]), "+OK\r\n");
        let mut leaves = ours.connect();
        let id = leaves.ask(&["CLIENT", "ID"])[1..].trim().to_owned();
        if round >= 2 {
            leaves.ask(&["MULTI"]);
            leaves.ask(&["EVAL", &script, "1", "k"]);
            leaves.ask(&["APPEND", "k", " and more"]);
            leaves.command(&["EXEC"]);
        } else {
            leaves.command(&["EVAL", &script, "1", "k"]);
        }
        wait_for("the script to begin", || (admin.ask(&["DBSIZE"]) == ":1\r\n").then_some(()));
        match is_killed {
            true => assert_eq!(admin.ask(&["CLIENT", "KILL", "ID", &id]), ":1\r\n"),
            false => leaves.reset(),
        }
        admin.ask(&["MSET", "signal", "1", "again", "1"]);
        let whole = if round >= 2 { "$14\r\nwhole and more\r\n" } else { "$5\r\nwhole\r\n" };
        assert_eq!(admin.ask(&["GET", "k"]), whole);
        wait_for("its ticket to end", || (ours.store().stats().tickets == 0).then_some(()));
    }
}

#[test]
fn one_that_waits_for_a_key_goes_on_when_its_client_has_gone() {
    let ours = Running::start();
    let (mut keeper, mut admin) = (ours.connect(), ours.connect());
    keeper.command(&["EVAL", &format!("redis.call('SET', 'held', 'v') {} return 1", until(3)), "0"]);
    wait_for("the script to begin", || (admin.ask(&["DBSIZE"]) == ":1\r\n").then_some(()));
    let mut leaves = ours.connect();
    let id = leaves.ask(&["CLIENT", "ID"])[1..].trim().to_owned();
    leaves.command(&[
        "EVAL",
        "redis.call('SET', KEYS[1], 'half') redis.call('GET', 'held') return redis.call('SET', KEYS[1], 'whole')",
        "1",
        "k",
    ]);
    wait_for("the other to begin", || (admin.ask(&["DBSIZE"]) == ":2\r\n").then_some(()));
    assert_eq!(admin.ask(&["CLIENT", "KILL", "ID", &id]), ":1\r\n");
    admin.ask(&["SET", "signal", "v"]);
    assert_eq!(keeper.read_reply(), b":1\r\n");
    assert_eq!(admin.ask(&["GET", "k"]), "$5\r\nwhole\r\n");
    wait_for("all to end", || (ours.store().stats().tickets == 0).then_some(()));
}

/// A script whose results and effects must not reveal that it was restarted.
const SPOILS: &str = "\
math.randomseed(5)
local first = {KEYS[1], ARGV[1], math.random(1000), math.random(1000), #KEYS, #ARGV,
  tostring(pcall(cjson.encode, {[1000000] = 1})), cjson.encode({0.1234567890123}), tostring(KEYS.more)}
redis.call('GET', 'a')
redis.call('PUBLISH', 'channel', 'once')
KEYS[1], ARGV[1], KEYS.more = 'spoiled', 'spoiled', 'spoiled'
KEYS[2], ARGV[2] = 'more', 'more'
cjson.encode_sparse_array(true)
cjson.encode_number_precision(3)
redis.setresp(3)
";

#[test]
fn a_restart_does_not_show() {
    let ours = Running::start();
    let (mut one, mut two, mut admin) = (ours.connect(), ours.connect(), ours.connect());
    let (mut listens, mut keeps) = (ours.connect(), ours.connect());
    assert!(listens.ask(&["SUBSCRIBE", "channel"]).starts_with("*3"));
    let ends = "return {first[1], first[2], first[3], first[4], first[5], first[6], first[7], first[8], first[9]}";
    let alone = admin.ask(&["EVAL", &format!("{SPOILS} redis.call('GET', 'b') {ends}"), "1", "key", "argument"]);
    assert!(alone.starts_with("*9\r\n$3\r\nkey\r\n$8\r\nargument\r\n:"), "{alone}");
    listens.read_reply();
    let restarted = figure(&mut admin, "sections_restarted");
    // The script holds a and needs b, while the other one holds b, has written, and needs a: they wait for each other
    // unless the first one was so slow that the other one acquired a before it.
    wait_for("one to begin anew", || {
        assert_eq!(admin.ask(&["FLUSHALL"]), "+OK\r\n");
        one.command(&["EVAL", &format!("{SPOILS} {} redis.call('GET', 'b') {ends}", until(2)), "1", "key", "argument"]);
        two.command(&["EVAL", &format!("redis.call('SET', 'b', 0) {} return redis.call('INCR', 'a')", until(2)), "0"]);
        keeps.ask(&["SET", "signal", "v"]);
        assert_eq!(String::from_utf8_lossy(&one.read_reply()), alone);
        assert_eq!(two.read_reply(), b":1\r\n");
        let message = String::from_utf8_lossy(&listens.read_reply()).into_owned();
        assert!(message.contains("once"), "{message}");
        (figure(&mut admin, "sections_restarted") > restarted).then_some(())
    });
    // Each script has published once.
    assert_eq!(admin.ask(&["PUBLISH", "channel", "last"]), ":1\r\n");
    assert!(String::from_utf8_lossy(&listens.read_reply()).contains("last"));
    assert_eq!(ours.store().stats().tickets, 0);
}

#[test]
fn a_script_that_leaves_its_worker_is_counted() {
    let ours = Running::start();
    let mut client = ours.connect();
    let moved = figure(&mut client, "sections_moved");
    let mut admin = ours.connect();
    client.command(&["EVAL", &until(1), "0"]);
    wait_for("the script to leave its worker", || (figure(&mut admin, "sections_moved") == moved + 1).then_some(()));
    admin.ask(&["SET", "signal", "v"]);
    assert_eq!(client.read_reply(), b"$-1\r\n");
}

/// SORT determines keys only while it runs; other scripts hold some of them, and wait for SORT's keys themselves.
#[test]
fn sort_by_other_keys_in_scripts_under_contention() {
    let ours = Running::with(ServerOptions::default(), 2);
    let mut admin = ours.connect();
    admin.ask(&["RPUSH", "list", "1", "2", "3", "4", "5", "6", "7", "8"]);
    for n in 1..=8 {
        admin.ask(&["MSET", &format!("weight:{n}"), &(9 - n).to_string(), &format!("data:{n}"), &format!("d{n}")]);
    }
    let sorts = "return table.concat(redis.call('SORT', KEYS[1], 'BY', 'weight:*', 'GET', 'data:*'), ' ')";
    // The exchange of two weights is atomic, so SORT always sees eight different weights.
    let changes = "local a, b = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2]) redis.call('SET', KEYS[1], b) \
                   for i = 1, tonumber(ARGV[1]) do end redis.call('SET', KEYS[2], a) return 'done'";
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let (mut sorter, mut changer) = (ours.connect(), ours.connect());
            scope.spawn(move || {
                for _ in 0..100 {
                    let reply = sorter.ask(&["EVAL", sorts, "1", "list"]);
                    let mut data: Vec<&str> = reply.lines().nth(1).unwrap_or_default().split(' ').collect();
                    data.sort_unstable();
                    assert_eq!(data, ["d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8"], "{reply}");
                }
            });
            scope.spawn(move || {
                let mut random = crate::Random(seed);
                for _ in 0..100 {
                    let from = random.below(8);
                    let to = (from + 1 + random.below(7)) % 8;
                    let [from, to] = [from, to].map(|n| format!("weight:{}", n + 1));
                    let turns = random.below(20_000).to_string();
                    assert_eq!(changer.ask(&["EVAL", changes, "2", &from, &to, &turns]), "$4\r\ndone\r\n");
                }
            });
        }
    });
    let weights: std::collections::BTreeSet<String> =
        (1..=8).map(|n| admin.ask(&["GET", &format!("weight:{n}")])).collect();
    assert_eq!(weights.len(), 8);
    assert_eq!(ours.store().stats().tickets, 0);
}
