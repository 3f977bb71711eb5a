//! Scripts: replies equal to redis-server's, and features that only this store has.

mod both;
mod busy;
mod called;
mod chaos;
mod commands;
mod corpus;
mod dragonfly;
mod drops;
mod everything;
mod examples;
mod functions;
mod generated;
mod grammar;
mod hostile;
mod memory;
mod overlap;
mod waits;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, RedisServer, wait_for};

use crate::server::check_alike_by_default;
use crate::support::Running;

/// Requests whose replies must be equal byte for byte. Each runs on a connection of its own.
const ALIKE: &[&str] = &[
    "EVAL \"return 1\" 0\r\nEVAL 'return {1,2,{3,\"x\"},false,true,nil,5}' 0\r\nEVAL 'return 3.9' 0\r\n",
    "EVAL \"return {KEYS[1],KEYS[2],ARGV[1],#ARGV}\" 2 a b c d\r\n",
    "EVAL 'return 1'\r\nEVAL 'return 1' x\r\nEVAL 'return 1' -1\r\nEVAL 'return 1' 3 a\r\nEVAL 'return' 0\r\n",
    "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0\r\nSCRIPT LOAD 'return 1'\r\n\
     EVALSHA E0E1F9FABFC9D4800C877A703B823AC0578FF8DB 0\r\nEVALSHA_RO e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0\r\n\
     EVALSHA nonsense 0\r\nSCRIPT EXISTS e0e1f9fabfc9d4800c877a703b823ac0578ff8db nope\r\n",
    "SCRIPT FLUSH now\r\nSCRIPT FLUSH ASYNC\r\nSCRIPT EXISTS e0e1f9fabfc9d4800c877a703b823ac0578ff8db\r\n",
    "SCRIPT KILL\r\n",
    "EVAL \"return redis.call('set',KEYS[1],ARGV[1])\" 1 s v\r\nEVAL \"return redis.call('get',KEYS[1])\" 1 s\r\n\
     EVAL \"return redis.call('incr',KEYS[1])\" 1 s\r\nEVAL \"return redis.pcall('incr',KEYS[1])\" 1 s\r\n",
    "EVAL \"return redis.call('nosuch')\" 0\r\nEVAL \"return redis.call('get')\" 0\r\nEVAL \"return redis.call()\" 0\r\n",
    "EVAL \"return redis.call('multi')\" 0\r\nEVAL \"return redis.call('eval','return 1',0)\" 0\r\n",
    "EVAL_RO \"return redis.call('set','s','v')\" 0\r\nEVAL '#!lua flags=no-writes\nreturn redis.call(\"set\",\"s\",\"v\")' 0\r\n",
    "EVAL \"error('boo')\" 0\r\nEVAL \"error({err='MY code'})\" 0\r\n",
    "EVAL \"return redis.error_reply('MY error')\" 0\r\nEVAL \"return redis.error_reply('-MY error')\" 0\r\n\
     EVAL \"return redis.status_reply('FINE')\" 0\r\nEVAL \"return {err='X y'}\" 0\r\nEVAL \"return {ok='fine'}\" 0\r\n",
    "EVAL \"return redis.error_reply('x')\" 0\r\nEVAL \"return redis.error_reply('-x')\" 0\r\nEVAL \"return redis.error_reply('')\" 0\r\n\
     EVAL \"return redis.error_reply('MY x\\r\\ny\\n')\" 0\r\nEVAL \"return redis.error_reply(' x')\" 0\r\n\
     EVAL \"return redis.error_reply('x').err\" 0\r\nEVAL \"return redis.error_reply(5)\" 0\r\nEVAL \"return redis.status_reply('x\\r\\ny')\" 0\r\n\
     EVAL \"local a = {} a()\" 0\r\nEVAL \"error('\\xff\\xfe')\" 0\r\n",
    "EVAL \"#!lua flags=No-Writes\\n\" 0\r\nEVAL \"#!LUA\\n\" 0\r\nEVAL \"#! lua\\n\" 0\r\nEVAL \"#!lua flags=,\\n\" 0\r\nEVAL \"#!lua x\\n\" 0\r\n\
     EVAL \"#!lua 'flags=no-writes,allow-oom' flags=\\r\\nreturn 1\" 0\r\nEVAL \"#!lua 'x\\n\" 0\r\nEVAL \"#!lua\\n\\nnosuch()\" 0\r\n",
    "EVAL \"return redis.sha1hex('')\" 0\r\nEVAL \"redis.setresp(3) return redis.call('hgetall','none')\" 0\r\n",
    "EVAL \"redis.call('select',3) return redis.call('set','in3','v')\" 0\r\nGET in3\r\nSELECT 3\r\nGET in3\r\nDEL in3\r\n",
    "MULTI\r\nEVAL \"return redis.call('incr','m')\" 0\r\nGET m\r\nEVAL \"return redis.call('nosuch')\" 0\r\nEXEC\r\nDEL m\r\n",
    "WATCH w\r\nMULTI\r\nEVAL \"return redis.call('set','w','1')\" 0\r\nSCRIPT EXISTS x\r\nEXEC\r\nGET w\r\nDEL w\r\n",
    "EVAL \"return {double=3.5}\" 0\r\nEVAL \"return {map={a=1}}\" 0\r\nEVAL \"return {set={a=true}}\" 0\r\n\
     EVAL \"return {big_number='123'}\" 0\r\nEVAL \"return {verbatim_string={string='x',format='txt'}}\" 0\r\n\
     EVAL \"return true\" 0\r\nEVAL \"redis.setresp(3) return {true,false}\" 0\r\n",
    "COMMAND GETKEYS EVAL x 2 a b c\r\n",
];

/// Like [`check_alike`], in RESP3.
#[track_caller]
fn check_alike_in_resp3(scripts: &[&str], redis: &RedisServer, ours: &Running) {
    let ask = |mut client: Client, script: &str| {
        client.ask(&["HELLO", "3"]);
        client.send(script);
        client.finish();
        String::from_utf8_lossy(&client.read_to_end()).into_owned()
    };
    for script in scripts {
        let expected = ask(Client::connect(&redis.address()), script);
        assert_eq!(ask(ours.connect(), script), expected, "{script:?}");
    }
}

#[test]
fn replies_are_those_of_redis() {
    check_alike_by_default(ALIKE);
}

/// Returns a number from the environment, which sets the length or the seed of a test.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Returns a field of INFO.
fn figure(client: &mut Client, name: &str) -> u64 {
    let text = client.ask(&["INFO", "stats"]);
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
}

/// A thread that does the store's background work, as its process would.
struct Ticking(Arc<AtomicBool>);

impl Ticking {
    fn start(running: &Running) -> Ticking {
        let (store, ends) = (running.store().clone(), Arc::new(AtomicBool::new(false)));
        let ended = ends.clone();
        std::thread::spawn(move || {
            while !ended.load(Ordering::SeqCst) {
                store.tick();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Ticking(ends)
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Returns a script with about this number of loop iterations.
fn turns(count: u64) -> String {
    format!("local x = 0 for i = 1, {count} do x = (x + i) % 1000003 end return x")
}

#[test]
fn a_long_script_keeps_its_keys_and_nobody_else() {
    let ours = Running::start();
    let (mut long, mut other, mut same) = (ours.connect(), ours.connect(), ours.connect());
    // The script runs until there is a subscriber.
    let script = "redis.call('SET', KEYS[1], 'half') repeat until redis.call('PUBSUB', 'NUMSUB', 'go on')[2] == 1 \
                  return redis.call('SET', KEYS[1], 'whole')";
    long.command(&["EVAL", script, "1", "k"]);
    // The script is listed as soon as it has left its worker.
    wait_for("the script to leave its worker", || (same.ask(&["SCRIPT", "PS"]) != "*0\r\n").then_some(()));
    same.command(&["GET", "k"]);
    for n in 0..100 {
        other.command(&["SET", "elsewhere", &n.to_string()]);
        assert_eq!(other.read_reply(), b"+OK\r\n");
    }
    let mut signal = ours.connect();
    signal.ask(&["SUBSCRIBE", "go on"]);
    assert_eq!(long.read_reply(), b"+OK\r\n");
    assert_eq!(same.read_reply(), b"$5\r\nwhole\r\n", "half of a script was seen");
}

#[test]
fn an_endless_script_is_ended() {
    let options = ServerOptions { busy_reply_threshold_ms: 50, ..ServerOptions::default() };
    let ours = Running::with(options, 2);
    let _ticking = Ticking::start(&ours);
    let (mut endless, mut same, mut killer) = (ours.connect(), ours.connect(), ours.connect());
    endless.command(&["EVAL", "while true do pcall(function() while true do end end) end", "1", "k"]);
    wait_for("those behind it to be told", || {
        same.command(&["GET", "k"]);
        same.read_reply().starts_with(b"-BUSY Redis is busy running a script.").then_some(())
    });
    killer.command(&["SCRIPT", "KILL"]);
    assert_eq!(killer.read_reply(), b"+OK\r\n");
    let reply = endless.read_reply();
    assert!(reply.starts_with(b"-ERR Script killed by user with SCRIPT KILL."), "{}", reply.escape_ascii());
    same.command(&["SET", "k", "v"]);
    assert_eq!(same.read_reply(), b"+OK\r\n");
    killer.command(&["SCRIPT", "KILL"]);
    assert_eq!(killer.read_reply(), b"-NOTBUSY No scripts in execution right now.\r\n");
}

#[test]
fn scripts_that_wait_for_each_other_go_on() {
    let ours = Running::start();
    let (mut one, mut two, mut after) = (ours.connect(), ours.connect(), ours.connect());
    let script = |first: &str, second: &str| {
        format!(
            "redis.call('GET', '{first}') {} redis.call('INCR', '{second}') return redis.call('INCR', '{first}')",
            turns(20_000_000).replace("return x", "")
        )
    };
    one.command(&["EVAL", &script("a", "b"), "0"]);
    two.command(&["EVAL", &script("b", "a"), "0"]);
    let (first, second) = (one.read_reply(), two.read_reply());
    assert!(first.starts_with(b":") && second.starts_with(b":"), "{}", [first, second].concat().escape_ascii());
    after.command(&["MGET", "a", "b"]);
    assert_eq!(after.read_reply(), b"*2\r\n$1\r\n2\r\n$1\r\n2\r\n");
}

#[test]
fn keys_that_were_not_declared_are_refused_where_that_is_asked_for() {
    let ours = Running::start();
    let mut client = ours.connect();
    let mut ask = |words: &[&str]| client.ask(words);
    ask(&["CONFIG", "SET", "lua-undeclared-keys", "deny"]);
    assert_eq!(ask(&["EVAL", "return redis.call('SET', KEYS[1], 'v')", "1", "k"]), "+OK\r\n");
    let refused = ask(&["EVAL", "return redis.call('GET', 'k')", "1", "other"]);
    assert!(refused.contains("script tried accessing undeclared key"), "{refused}");
    let allowed = "#!lua flags=allow-undeclared-keys\nreturn redis.call('GET', 'k')";
    assert_eq!(ask(&["EVAL", allowed, "0"]), "$1\r\nv\r\n");
    ask(&["CONFIG", "SET", "lua-undeclared-keys", "allow"]);
    assert_eq!(ask(&["EVAL", "return redis.call('GET', 'k')", "0"]), "$1\r\nv\r\n");
}

#[test]
fn replies_that_are_dropped_are_not_made_unless_that_is_asked_for() {
    let ours = Running::start();
    let mut client = ours.connect();
    let grown = "redis.call('SET', KEYS[1], 0) local before = collectgarbage('count') \
                 for i = 1, 20 do redis.call('SET', KEYS[1], i) redis.pcall('PING') end \
                 return (collectgarbage('count') - before) * 1024";
    let bytes = |client: &mut Client| {
        let reply = client.ask(&["EVAL", grown, "1", "k"]);
        reply.trim_start_matches(':').trim().parse::<i64>().unwrap_or_else(|_| panic!("{reply}"))
    };
    assert!(bytes(&mut client) < 100, "no value was made of 40 replies");
    client.ask(&["CONFIG", "SET", "lua_auto_async", "no"]);
    assert!(bytes(&mut client) > 40 * 50, "a table was made of each of 40 replies");
    client.ask(&["CONFIG", "SET", "lua_auto_async", "yes"]);
    assert!(bytes(&mut client) < 100, "it was asked for again");
    // An error is reported all the same.
    let failed = client.ask(&["EVAL", "redis.call('LPUSH', KEYS[1], 1) return 1", "1", "k"]);
    assert!(failed.starts_with("-WRONGTYPE"), "{failed}");
    let passed = "redis.pcall('LPUSH', KEYS[1], 1) return redis.call('GET', KEYS[1])";
    assert_eq!(client.ask(&["EVAL", passed, "1", "k"]), "$2\r\n20\r\n");
}

#[test]
fn keys_and_arguments_are_new_whatever_the_last_script_did_to_them() {
    let ours = Running::start();
    let mut client = ours.connect();
    let seen = "local t = {} for _, list in ipairs({KEYS, ARGV}) do \
                for k, v in pairs(list) do t[#t + 1] = k .. '=' .. v end \
                t[#t + 1] = tostring(getmetatable(list)) t[#t + 1] = tostring(list.x) end return table.concat(t, ' ')";
    for change in [
        "KEYS.x = 1",
        "ARGV[9] = 1",
        "KEYS[0] = 1 ARGV[1] = nil",
        "KEYS[1] = nil KEYS.x = 1 KEYS.x = nil ARGV[3] = 3",
        "setmetatable(ARGV, {__index = function() return 'x' end})",
        "table.insert(KEYS, 'k') table.remove(ARGV, 1)",
        "for i = 1, 100 do KEYS[i] = i end for i = 1, 99 do KEYS[i] = nil end",
        "local k = KEYS return _G ~= k",
        "local k k = KEYS k[9] = 1 k = k[1]",
        "local k local function change() k[9] = 1 end k = KEYS change() k = k[1]",
        "local t = setmetatable({}, {__add = function() KEYS[9] = 1 return 1 end}) return ARGV[t + 1]",
        "local f, list = ipairs(ARGV) list[9] = 1 for i, a in f, list, 0 do end",
        "return (table.remove or unpack)(KEYS)",
        // These scripts only read, which is detected when they are compiled.
        "return KEYS[1] .. #KEYS .. ARGV[#ARGV]",
        "for i, key in ipairs(KEYS) do redis.call('GET', key, unpack(ARGV, 9)) end return unpack(KEYS)",
        "",
    ] {
        for (words, expected) in [
            (&["2", "a", "b", "c"][..], "1=a 2=b nil nil 1=c nil nil"),
            (&["0"], "nil nil nil nil"),
            (&["1", "a", "b", "c", "d"], "1=a nil nil 1=b 2=c 3=d nil nil"),
        ] {
            client.ask(&["EVAL", change, "2", "k", "l", "m"]);
            let reply = client.ask(&[&["EVAL", seen], words].concat());
            assert_eq!(reply.lines().nth(1), Some(expected), "{change}");
        }
    }
}

#[test]
fn a_script_is_too_old_when_the_parameter_says_so() {
    let ours = Running::with(ServerOptions { busy_reply_threshold_ms: 1_000_000, ..ServerOptions::default() }, 2);
    let _ticking = Ticking::start(&ours);
    let (mut endless, mut killer) = (ours.connect(), ours.connect());
    endless.command(&["EVAL", "while true do end", "0"]);
    let reply = wait_for("the script to be too old", || {
        assert!(killer.ask(&["SCRIPT", "KILL"]).contains("NOTBUSY"));
        killer.ask(&["CONFIG", "SET", "busy-reply-threshold", "1"]);
        let reply = killer.ask(&["SCRIPT", "KILL"]);
        killer.ask(&["CONFIG", "SET", "busy-reply-threshold", "1000000"]);
        (!reply.contains("NOTBUSY")).then_some(reply)
    });
    assert_eq!(reply, "+OK\r\n");
    assert!(String::from_utf8_lossy(&endless.read_reply()).contains("killed by user with SCRIPT KILL"));
}

#[test]
fn a_script_that_wants_all_memory_gets_an_error() {
    let ours = Running::with(ServerOptions::default(), 2);
    let (mut client, mut other) = (ours.connect(), ours.connect());
    client.command(&["EVAL", "local t = {} while true do t[#t + 1] = string.rep('x', 1000000) .. #t end", "1", "k"]);
    other.command(&["SET", "elsewhere", "v"]);
    assert_eq!(other.read_reply(), b"+OK\r\n");
    let reply = client.read_reply();
    assert!(String::from_utf8_lossy(&reply).contains("not enough memory"), "{}", reply.escape_ascii());
    assert_eq!(client.ask(&["EVAL", "return redis.call('SET', KEYS[1], 'v')", "1", "k"]), "+OK\r\n");
}
