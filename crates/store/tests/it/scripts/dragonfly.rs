//! Dragonfly's additions to Redis's scripts: calls without replies, and the table `dragonfly`.

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, wait_for};

use crate::support::Running;

fn eval(client: &mut Client, body: &str) -> String {
    client.ask(&["EVAL", body, "0"])
}

#[test]
fn calls_whose_replies_are_not_wanted_are_done_at_once() {
    let ours = Running::start();
    let mut client = ours.connect();
    // The command has run before the next line, and no value is returned, whatever the reply is.
    let body = "local n = select('#', redis.acall('SET', 'k', '5'))
        local m = select('#', redis.apcall('HGETALL', 'none'))
        redis.acall('INCRBY', 'k', 2)
        return {n, m, redis.call('GET', 'k')}";
    assert_eq!(eval(&mut client, body), "*3\r\n:0\r\n:0\r\n$1\r\n7\r\n");
    // An error ends the script there, like an error of `call`.
    let reply =
        eval(&mut client, "redis.acall('SET', 'k', 'x') redis.acall('INCR', 'k') redis.acall('SET', 'k', 'never')");
    assert!(reply.starts_with("-ERR value is not an integer or out of range script: "), "{reply}");
    assert_eq!(client.ask(&["GET", "k"]), "$1\r\nx\r\n");
    // The error can be caught; an error of `apcall` is ignored.
    assert_eq!(eval(&mut client, "local ok, e = pcall(redis.acall, 'INCR', 'k') return {ok, e.err}"), {
        let call = "local ok, e = pcall(redis.call, 'INCR', 'k') return {ok, e.err}";
        eval(&mut client, call)
    });
    assert_eq!(eval(&mut client, "redis.apcall('INCR', 'k') return select('#', redis.apcall('INCR', 'k'))"), ":0\r\n");
    // Unknown commands and arguments of wrong types are refused in the same way.
    assert!(eval(&mut client, "redis.acall('NOSUCH')").starts_with("-ERR Unknown Redis command"));
    assert_eq!(eval(&mut client, "redis.apcall('NOSUCH') return 1"), ":1\r\n");
    assert!(eval(&mut client, "redis.acall()").contains("Please specify at least one argument"));
    // The same holds in a script without atomicity.
    let body = "--!df flags=disable-atomicity\nredis.acall('SET', 'k', '1') redis.apcall('LPUSH', 'k', 'x') return redis.call('INCR', 'k')";
    assert_eq!(eval(&mut client, body), ":2\r\n");
    // Both exist in `server`, too, and in libraries.
    assert_eq!(eval(&mut client, "return type(server.acall) .. type(server.apcall)"), "$16\r\nfunctionfunction\r\n");
}

#[test]
fn keys_are_locked_all_or_none_until_they_are_unlocked() {
    let ours = Running::with(ServerOptions::default(), 2);
    let (mut one, mut two, mut reader, mut admin) = (ours.connect(), ours.connect(), ours.connect(), ours.connect());
    // The script locks two keys, changes one of them at once, and the other one much later.
    let body = "--!df flags=disable-atomicity
        dragonfly.lock('a', 'b')
        redis.call('SET', 'a', 'one')
        redis.call('SET', 'c', 'one')
        local turns = 0
        repeat turns = turns + 1 until turns > 20000000
        redis.call('SET', 'b', 'one')
        dragonfly.unlock()
        redis.call('SET', 'd', 'one')
        return redis.call('GET', 'a')";
    one.command(&["EVAL", body, "0"]);
    wait_for("it to begin", || (admin.ask(&["DBSIZE"]) != ":0\r\n").then_some(()));
    reader.command(&["MGET", "a", "b"]);
    // Another script that locks one of these keys and a further one gets neither before it gets both.
    two.command(&[
        "EVAL",
        "--!df flags=disable-atomicity\ndragonfly.lock('b', 'e') return redis.call('GET', 'b')",
        "0",
    ]);
    assert_eq!(reader.read_reply(), b"*2\r\n$3\r\none\r\n$3\r\none\r\n");
    assert_eq!(two.read_reply(), b"$3\r\none\r\n");
    assert_eq!(one.read_reply(), b"$3\r\none\r\n");
    assert_eq!(admin.ask(&["DEL", "a", "b", "c", "d"]), ":4\r\n", "nothing stays held");
    let list = admin.ask(&["SCRIPT", "PS"]);
    assert_eq!(list, "*0\r\n");
}

#[test]
fn a_lock_is_given_back_at_the_end_and_refused_twice() {
    let ours = Running::start();
    let mut client = ours.connect();
    let free = "--!df flags=disable-atomicity\n";
    assert_eq!(eval(&mut client, &format!("{free}dragonfly.lock('a') return redis.call('INCR', 'a')")), ":1\r\n");
    assert_eq!(client.ask(&["INCR", "a"]), ":2\r\n");
    let twice = eval(&mut client, &format!("{free}dragonfly.lock('a') dragonfly.lock('b')"));
    assert!(twice.starts_with("-ERR dragonfly.lock: keys are locked already; call dragonfly.unlock first"), "{twice}");
    assert_eq!(client.ask(&["INCR", "a"]), ":3\r\n", "an error gives it back, too");
    let again = format!(
        "{free}dragonfly.lock('a') dragonfly.unlock() dragonfly.lock('a', 'b', 'a') return redis.call('INCR', 'a')"
    );
    assert_eq!(eval(&mut client, &again), ":4\r\n");
    assert_eq!(eval(&mut client, &format!("{free}dragonfly.unlock() return 1")), ":1\r\n");
    for (body, expected) in [
        ("dragonfly.lock()", "-ERR dragonfly.lock wants at least one key"),
        ("dragonfly.lock({})", "-ERR dragonfly.lock: keys must be strings or integers"),
    ] {
        let reply = eval(&mut client, &format!("{free}{body}"));
        assert!(reply.starts_with(expected), "{reply}");
    }
    // An atomic script holds its keys until its end.
    assert_eq!(eval(&mut client, "dragonfly.lock('a') dragonfly.lock('a') return redis.call('INCR', 'a')"), ":5\r\n");
    let reply = eval(&mut client, "dragonfly.unlock()");
    assert!(reply.starts_with("-ERR dragonfly.unlock: an atomic script keeps its keys to its end"), "{reply}");
}

#[test]
fn a_hash_is_that_of_key_and_reply() {
    let ours = Running::start();
    let mut client = ours.connect();
    client.send("SET k v\r\nRPUSH l a b\r\nSADD s 1 2 3\r\nSET k2 v\r\n");
    (0..4).for_each(|_| drop(client.read_reply()));
    let number =
        |reply: String| reply.strip_prefix(':').and_then(|text| text.trim().parse::<i64>().ok()).expect(&reply);
    let mut hash = |arguments: &str| number(eval(&mut client, &format!("return dragonfly.ihash({arguments})")));
    let of_k = hash("0, false, 'GET', 'k'");
    assert_eq!(hash("0, true, 'get', 'k'"), of_k);
    assert_ne!(hash("1, false, 'GET', 'k'"), of_k, "the seed matters");
    assert_ne!(hash("0, false, 'GET', 'k2'"), of_k, "the key matters");
    assert_ne!(hash("0, false, 'GET', 'l'"), of_k, "an error adds nothing to the key's own");
    assert_eq!(
        hash("dragonfly.ihash(0, false, 'GET', 'k'), false, 'GET', 'k'"),
        hash(&format!("{of_k}, false, 'GET', 'k'"))
    );
    assert_eq!(hash("0, true, 'SMEMBERS', 's'"), hash("0, true, 'SMEMBERS', 's'"));
    let reply = eval(&mut client, "return dragonfly.ihash(0, false)");
    assert!(reply.starts_with("-ERR") || reply.starts_with(':'), "{reply}");
}

#[test]
fn random_texts_have_their_sizes() {
    let ours = Running::start();
    let mut client = ours.connect();
    let body = "local s = dragonfly.randstr(100)
        local t = dragonfly.randstr(7, 3)
        return {#s, #s:match('^[0-9A-Za-z]+$'), #t, #t[1], #t[3], s ~= dragonfly.randstr(100) and 1 or 0, type(dragonfly.randstr(1, 1))}";
    assert_eq!(eval(&mut client, body), "*7\r\n:100\r\n:100\r\n:3\r\n:7\r\n:7\r\n:1\r\n$5\r\ntable\r\n");
    for arguments in ["", "'x'", "0", "-1", "1, 0", "1e18", "1000000, 1000000", "1, 2, 3"] {
        let reply = eval(&mut client, &format!("return dragonfly.randstr({arguments})"));
        assert!(reply.starts_with("-ERR randstr: "), "{arguments}: {reply}");
    }
}
