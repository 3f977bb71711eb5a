//! FUNCTION and FCALL: replies equal to redis-server's, payloads that both accept, functions that run long.

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, RedisServer, wait_for};

use super::{Ticking, check_alike_in_resp3};
use crate::server::check_alike;
use crate::support::Running;

/// Requests whose replies must be equal byte for byte. Each runs on a connection of its own, after those before it.
const ALIKE: &[&str] = &[
    // Valid and invalid libraries.
    "FUNCTION\r\nFUNCTION nosuch\r\nFUNCTION LOAD\r\nFUNCTION LOAD ''\r\nFUNCTION LOAD x\r\nFUNCTION LOAD '#!lua'\r\n",
    "FUNCTION LOAD \"#!lua\\n\"\r\nFUNCTION LOAD \"#!lua name=x\\n\"\r\nFUNCTION LOAD \"#! name=x\\n\"\r\n",
    "FUNCTION LOAD \"#!foo name=x\\n\"\r\nFUNCTION LOAD \"#!lua name=x foo=y\\n\"\r\nFUNCTION LOAD \"#!lua name=x-y\\n\"\r\n",
    "FUNCTION LOAD \"#!lua name=x name=y\\n\"\r\nFUNCTION LOAD \"#!lua name=\\n\"\r\nFUNCTION LOAD \"#!lua name\\n\"\r\n",
    "FUNCTION LOAD foo bar\r\nFUNCTION LOAD foo bar baz\r\nFUNCTION LOAD REPLACE\r\nFUNCTION LOAD REPLACE REPLACE x\r\n",
    "FUNCTION LOAD \"#!lua name=x\\nlocal\"\r\nFUNCTION LOAD \"#!lua name=x\\n\\n\\nredis.nosuch()\"\r\n",
    // The environment of a library while it is loaded.
    "FUNCTION LOAD \"#!lua name=x\\nredis.call('get','x')\"\r\nFUNCTION LOAD \"#!lua name=x\\nerror('foo')\"\r\n",
    "FUNCTION LOAD \"#!lua name=x\\nx = 1\"\r\nFUNCTION LOAD \"#!lua name=x\\nredis.foo = 1\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nlocal a = _G\"\r\nFUNCTION LOAD \"#!lua name=x\\nlocal a = KEYS\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nlocal a = string\"\r\nFUNCTION LOAD \"#!lua name=x\\nlocal a = redis.setresp\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nlocal a = nil + 1\"\r\nFUNCTION LOAD \"#!lua name=x\\nlocal a = {} a()\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.log(1)\"\r\nFUNCTION LOAD \"#!lua name=x\\nredis.log('a','b')\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nlocal a = redis.REDIS_VERSION_NUM + redis.LOG_WARNING\"\r\n",
    // The registration of functions.
    "FUNCTION LOAD \"#!lua name=x\\nredis.register_function()\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function('f')\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function('f', 1)\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function({}, function() end)\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function('f', function() end, {'no-writes'})\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function('f-x', function() end)\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function('', function() end)\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function('f', function() end) redis.register_function('f', function() end)\"\r\n",
    "FUNCTION LOAD \"#!lua name=x\\nredis.register_function{function_name='f'}\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function{callback=function() end}\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function{function_name={}, callback=function() end}\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function{function_name='f', callback=1}\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function{[1]='f', callback=function() end}\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function{[true]='f'}\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function{function_name='f', callback=function() end, foo='x'}\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function{function_name='f', callback=function() end, description={}}\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function{function_name='f', callback=function() end, flags='x'}\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function{function_name='f', callback=function() end, flags={'bad'}}\"\r\n\
     FUNCTION LOAD \"#!lua name=x\\nredis.register_function{function_name='f', callback=function() end, flags={1}}\"\r\n",
    "FUNCTION LOAD \"#!LUA NAME='x' \\nredis.register_function{Function_Name='f', CALLBACK=function() return 1 end, \
     Flags={'No-Writes', 'allow-oom', 'allow-stale', 'no-cluster', 'allow-cross-slot-keys'}, DESCRIPTION=5}\"\r\n\
     FUNCTION LIST\r\nFCALL f 0\r\nFCALL_RO F 0\r\nFUNCTION DELETE x\r\nFCALL f 0\r\n",
    "FUNCTION LOAD \"#!lua name=x\\nredis.register_function(5, function() return 'five' end)\"\r\nFCALL 5 0\r\nFUNCTION FLUSH\r\n",
    // Names that are already in use.
    "FUNCTION LOAD \"#!lua name=lib1\\nredis.register_function('f1', function() return 'one' end)\"\r\n\
     FUNCTION LOAD \"#!lua name=lib1\\nlocal\"\r\n\
     FUNCTION LOAD \"#!lua name=lib2\\nredis.register_function('f1', function() return 'two' end)\"\r\n\
     FUNCTION LOAD \"#!lua name=lib2\\nredis.register_function('F1', function() return 'two' end)\"\r\n\
     FUNCTION LOAD REPLACE \"#!lua name=lib1\\nlocal\"\r\nFCALL f1 0\r\n\
     FUNCTION LOAD replace \"#!lua name=lib1\\nredis.register_function('f1', function() return 'new' end)\"\r\nFCALL f1 0\r\n",
    "FUNCTION LIST\r\nFUNCTION LIST LIBRARYNAME\r\nFUNCTION LIST LIBRARYNAME x\r\nFUNCTION LIST libraryname 'LIB*'\r\n\
     FUNCTION LIST WITHCODE\r\nFUNCTION LIST withcode withcode\r\nFUNCTION LIST foo\r\nFUNCTION LIST LIBRARYNAME a LIBRARYNAME b\r\n\
     FUNCTION LIST WITHCODE LIBRARYNAME lib1\r\nFUNCTION DELETE LIB1\r\nFUNCTION DELETE\r\nFUNCTION DELETE a b\r\n",
    "FUNCTION DELETE lib1\r\n",
    "FUNCTION STATS\r\nFUNCTION STATS x\r\nFUNCTION KILL\r\nFUNCTION FLUSH foo\r\nFUNCTION FLUSH sync x\r\nFUNCTION FLUSH ASYNC\r\n",
    // Calls.
    "FCALL\r\nFCALL x\r\nFCALL x 0\r\nFCALL x a\r\nFCALL x -1\r\nFCALL x 2 a\r\nFCALL_RO x 0\r\n",
    "FUNCTION LOAD \"#!lua name=w\\nredis.register_function('f', function(keys, args) keys[1] = 5 return {keys, args, 3.9} end)\\n\
     redis.register_function{function_name='ro', callback=function() return redis.call('set', 'k', 'v') end, flags={'no-writes'}}\"\r\n\
     FCALL f a\r\nFCALL f -1\r\nFCALL f 2 a\r\nFCALL f 99999999999999999999\r\nFCALL f 2 a b c\r\nFCALL_RO f 0\r\n\
     FCALL ro 0\r\nFCALL_RO ro 0\r\nFUNCTION FLUSH\r\n",
    "FUNCTION LOAD \"#!lua name=w\\n\\nredis.register_function('f', function(keys, args) return loadstring(args[1])() end)\"\r\n\
     FCALL f 0 \"return redis.call('nosuch')\"\r\nFCALL f 0 \"return redis.pcall('nosuch')\"\r\nFUNCTION FLUSH\r\n",
    "FUNCTION LOAD \"#!lua name=w\\nlocal f = {}\\nf.a = function() return redis.call('nosuch') end\\n\
     f.b = function() return KEYS[1] end f.c = function() x = 1 end\\nf.d = function() return y end\\n\
     f.e = function() error('boo') end f.f = function() error({err='boo'}) end\\nf.g = function() return nil + 1 end\\n\
     f.h = function() return redis.call('fcall', 'f', 0) end f.i = function() return redis.call('function', 'list') end\\n\
     f.j = function() return redis.REDIS_VERSION_NUM > 0 end f.k = function() return {type(redis.replicate_commands), type(redis.breakpoint), type(redis.debug), type(redis.x)} end\\n\
     f.l = function() return redis.error_reply('x') end f.m = function() return redis.status_reply('x') end\\n\
     f.n = function() getmetatable(_G).x = 1 end f.o = function() setmetatable(_G, {}) end f.p = function() rawset(_G, 'a', 1) end\\n\
     f.q = function() redis.call = nil end f.r = function() string.x = 1 end f.s = function() return {#_G, type(_G.redis)} end\\n\
     f.t = function() return 1, 2 end f.u = function(...) return {select('#', ...), ...} end f.v = function() end\\n\
     f.w = function() return redis.call('get', 'k', 'too many') end\\n\
     f.x = function() redis.call('select', 3) redis.call('set', 'in3', 'v') end\\n\
     f.y = function() redis.setresp(3) return redis.call('hgetall', 'none') end\\n\
     f.z = function() coroutine.yield() end\\n\
     redis.register_function('a', f.a) redis.register_function('b', f.b) redis.register_function('c', f.c) redis.register_function('d', f.d)\\n\
     redis.register_function('e', f.e) redis.register_function('f', f.f) redis.register_function('g', f.g) redis.register_function('h', f.h)\\n\
     redis.register_function('i', f.i) redis.register_function('j', f.j) redis.register_function('k', f.k) redis.register_function('l', f.l)\\n\
     redis.register_function('m', f.m) redis.register_function('n', f.n) redis.register_function('o', f.o) redis.register_function('p', f.p)\\n\
     redis.register_function('q', f.q) redis.register_function('r', f.r) redis.register_function('s', f.s) redis.register_function('t', f.t)\\n\
     redis.register_function('u', f.u) redis.register_function('v', f.v) redis.register_function('w', f.w) redis.register_function('x', f.x)\\n\
     redis.register_function('y', f.y) redis.register_function('z', f.z)\"\r\n\
     FCALL a 0\r\nFCALL b 0\r\nFCALL c 0\r\nFCALL d 0\r\nFCALL e 0\r\nFCALL f 0\r\nFCALL g 0\r\nFCALL h 0\r\nFCALL i 0\r\n\
     FCALL j 0\r\nFCALL k 0\r\nFCALL l 0\r\nFCALL m 0\r\nFCALL n 0\r\nFCALL o 0\r\nFCALL p 0\r\nFCALL q 0\r\nFCALL r 0\r\n\
     FCALL s 0\r\nFCALL t 0\r\nFCALL u 0\r\nFCALL v 0\r\nFCALL w 0\r\nFCALL x 0\r\nGET in3\r\nSELECT 3\r\nGET in3\r\nDEL in3\r\n\
     FCALL y 0\r\nFCALL z 0\r\n",
    "FUNCTION FLUSH SYNC\r\nFUNCTION LOAD \"#!lua name=w\\nlocal redis = redis redis.register_function('f', function() return redis.call('get', 'x') end)\"\r\n\
     FCALL f 0\r\nFUNCTION FLUSH\r\n\
     FUNCTION LOAD \"#!lua name=w\\nlocal rf = redis.register_function rf('f', function() return rf('g', function() end) end)\"\r\n\
     FCALL f 0\r\nFUNCTION FLUSH\r\n",
    "FUNCTION LOAD \"#!lua name=w\\nlocal c = 0 redis.register_function('f', function() c = c + 1 return c end)\"\r\nFCALL f 0\r\nFCALL f 0\r\n",
    "MULTI\r\nFCALL f 0\r\nFUNCTION DELETE w\r\nFCALL f 0\r\nFUNCTION LOAD \"#!lua name=v\\nredis.register_function('f', function() return redis.call('incr', 'in multi') end)\"\r\n\
     FCALL f 1 'in multi'\r\nGET 'in multi'\r\nFUNCTION LOAD nonsense\r\nEXEC\r\nFUNCTION FLUSH\r\nDEL 'in multi'\r\n",
    "EVAL \"return redis.call('fcall', 'f', 0)\" 0\r\nEVAL \"return redis.call('function', 'list')\" 0\r\n",
    // Payloads.
    "FUNCTION DUMP\r\nFUNCTION DUMP x\r\nFUNCTION RESTORE xx\r\nFUNCTION RESTORE xx FOO\r\nFUNCTION RESTORE xx FLUSH APPEND\r\n",
    "FUNCTION RESTORE \"\\n\\x00]\\x9b\\\\@\\x0f\\x7f\\xa2\\xda\"\r\nFUNCTION RESTORE \"\\x00\\x01x\\n\\x00\\\"\\x80\\x86_\\xbd\\xe8H\\xd0\"\r\n\
     FUNCTION RESTORE \"\\xf5\\n\\x00?\\x97u!\\x84\\xd9\\\\\\xa4\"\r\nFUNCTION RESTORE \"\\xf5\\x01x\\n\\x00T\\xa5\\xad\\xd7\\xcc\\xb0T\\xb7\"\r\n",
    "FUNCTION LOAD \"#!lua name=a\\nredis.register_function('f', function() return 1 end)\"\r\nFUNCTION DUMP\r\nFUNCTION FLUSH\r\n",
    // The replies of COMMAND.
    "COMMAND GETKEYS eval x 0 a\r\nCOMMAND GETKEYS eval x 5 a\r\nCOMMAND GETKEYS eval x a b\r\nCOMMAND GETKEYS eval x\r\n\
     COMMAND GETKEYS fcall x 1 a\r\nCOMMAND GETKEYS fcall_ro x -1 a\r\nCOMMAND GETKEYSANDFLAGS evalsha x 2 a b c\r\n\
     COMMAND GETKEYSANDFLAGS fcall_ro x 1 a\r\nCOMMAND GETKEYS script load x\r\nCOMMAND GETKEYS function load x\r\n",
    "COMMAND INFO evalsha evalsha_ro function|load function|restore function|stats function|flush function|dump function|delete function|list\r\n",
];

/// Like [`ALIKE`], in RESP3.
const ALIKE_IN_RESP3: &[&str] = &[
    "FUNCTION STATS\r\nFUNCTION LIST\r\n\
     FUNCTION LOAD \"#!lua name=w\\nredis.register_function{function_name='f', flags={'no-writes'}, callback=function(keys) \
     if keys[1] then redis.setresp(tonumber(keys[1])) end return {redis.call('hgetall', 'none'), true, false, {double=1.5}} end}\"\r\n\
     FUNCTION STATS\r\nFUNCTION LIST WITHCODE\r\nFCALL f 0\r\nFCALL f 1 2\r\nFCALL f 1 3\r\nFCALL f 1 4\r\n",
    "COMMAND INFO evalsha function|load script|exists\r\nCOMMAND GETKEYSANDFLAGS fcall x 1 a\r\n",
];

#[test]
fn replies_are_those_of_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    check_alike(ALIKE, &redis, &ours);
    check_alike_in_resp3(ALIKE_IN_RESP3, &redis, &ours);
}

/// Returns the bytes of a bulk reply.
fn bulk(reply: &[u8]) -> Vec<u8> {
    let start = reply.windows(2).position(|pair| pair == b"\r\n").expect("a line") + 2;
    reply[start..reply.len() - 2].to_vec()
}

#[test]
fn payloads_go_from_redis_to_us_and_back() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let (mut theirs, mut own) = (Client::connect(&redis.address()), ours.connect());
    let names = ["a", "b", "c"];
    for name in names {
        // The last library is long enough to be compressed.
        let comment = if name == "c" { "-- nothing\n".repeat(500) } else { String::new() };
        let code =
            format!("#!lua name={name}\n{comment}redis.register_function('of_{name}', function() return '{name}' end)");
        assert_eq!(theirs.ask(&["FUNCTION", "LOAD", &code]), format!("$1\r\n{name}\r\n"));
    }
    theirs.command(&["FUNCTION", "DUMP"]);
    let payload = bulk(&theirs.read_reply());
    own.command(&[&b"FUNCTION"[..], b"RESTORE", &payload]);
    assert_eq!(own.read_reply(), b"+OK\r\n");
    for name in names {
        assert_eq!(own.ask(&["FCALL", &format!("of_{name}"), "0"]), format!("$1\r\n{name}\r\n"));
    }
    own.command(&["FUNCTION", "DUMP"]);
    let payload = bulk(&own.read_reply());
    for (policy, expected) in [("APPEND", "-ERR Library "), ("REPLACE", "+OK\r\n"), ("FLUSH", "+OK\r\n")] {
        theirs.command(&[&b"FUNCTION"[..], b"RESTORE", &payload, policy.as_bytes()]);
        let reply = theirs.read_reply();
        assert!(reply.starts_with(expected.as_bytes()), "{policy}: {}", reply.escape_ascii());
        own.command(&[&b"FUNCTION"[..], b"RESTORE", &payload, policy.as_bytes()]);
        let reply = own.read_reply();
        assert!(reply.starts_with(expected.as_bytes()), "{policy}: {}", reply.escape_ascii());
    }
    for client in [&mut theirs, &mut own] {
        for name in names {
            assert_eq!(client.ask(&["FCALL", &format!("of_{name}"), "0"]), format!("$1\r\n{name}\r\n"));
        }
        assert!(
            client.ask(&["FUNCTION", "STATS"]).ends_with("libraries_count\r\n:3\r\n$15\r\nfunctions_count\r\n:3\r\n")
        );
    }
}

#[test]
fn a_library_that_takes_too_long_is_not_loaded() {
    let ours = Running::start();
    let (mut loading, mut other) = (ours.connect(), ours.connect());
    for code in ["while true do end", "local s = ('x'):rep(1000) while true do s:find(('x?'):rep(30) .. 'y') end"] {
        loading.command(&["FUNCTION", "LOAD", &format!("#!lua name=x\n{code}")]);
        // The worker is not occupied.
        for _ in 0..100 {
            assert_eq!(other.ask(&["SET", "k", "v"]), "+OK\r\n");
        }
        let reply = String::from_utf8_lossy(&loading.read_reply()).into_owned();
        assert_eq!(reply, "-ERR Error registering functions: ERR FUNCTION LOAD timeout\r\n");
    }
    assert_eq!(loading.ask(&["FUNCTION", "LIST"]), "*0\r\n");
}

#[test]
fn functions_that_run_long_are_shown_and_ended() {
    let options = ServerOptions { busy_reply_threshold_ms: 50, ..ServerOptions::default() };
    let ours = Running::with(options, 2);
    let _ticking = Ticking::start(&ours);
    let (mut endless, mut same, mut killer) = (ours.connect(), ours.connect(), ours.connect());
    let code = "#!lua name=x\nredis.register_function('slow', function(keys)\nwhile true do pcall(function() while true do end end) end end)\n\
                redis.register_function('writes', function(keys) redis.call('SET', keys[1], 'v') while true do end end)";
    killer.ask(&["FUNCTION", "LOAD", code]);
    endless.command(&["FCALL", "SLOW", "1", "k", "a b"]);
    wait_for("those behind it to be told", || {
        let busy = "-BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.\r\n";
        (same.ask(&["GET", "k"]) == busy).then_some(())
    });
    let busy = "-BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.\r\n";
    assert_eq!(killer.ask(&["SCRIPT", "KILL"]), busy);
    let stats = killer.ask(&["FUNCTION", "STATS"]);
    let start = "*4\r\n$14\r\nrunning_script\r\n*6\r\n$4\r\nname\r\n$4\r\nslow\r\n$7\r\ncommand\r\n*5\r\n$5\r\nfcall\r\n\
                 $4\r\nslow\r\n$1\r\n1\r\n$1\r\nk\r\n$3\r\na b\r\n$11\r\nduration_ms\r\n:";
    assert!(stats.starts_with(start), "{stats:?}");
    assert_eq!(killer.ask(&["FUNCTION", "KILL"]), "+OK\r\n");
    let reply = String::from_utf8_lossy(&endless.read_reply()).into_owned();
    assert!(
        reply.starts_with("-ERR Script killed by user with SCRIPT KILL... script: slow, on @user_function:"),
        "{reply}"
    );
    assert!(killer.ask(&["FUNCTION", "STATS"]).starts_with("*4\r\n$14\r\nrunning_script\r\n$-1\r\n"));

    endless.command(&["FCALL", "writes", "1", "k"]);
    wait_for("it to write", || (killer.ask(&["DBSIZE"]) == ":1\r\n").then_some(()));
    wait_for("the function to be too old", || {
        killer.ask(&["FUNCTION", "KILL"]).starts_with("-UNKILLABLE").then_some(())
    });
    assert!(killer.ask(&["SCRIPT", "KILL"]).starts_with("-UNKILLABLE"));
    assert!(killer.ask(&["FUNCTION", "KILL", "writes"]).starts_with("-UNKILLABLE"));
    assert_eq!(killer.ask(&["FUNCTION", "KILL", "slow"]), "-NOTBUSY No scripts in execution right now.\r\n");
    assert_eq!(killer.ask(&["FUNCTION", "KILL", "Writes", "FORCE"]), "+OK\r\n");
    assert!(endless.read_reply().starts_with(b"-ERR Script killed by user"));
    assert_eq!(same.ask(&["GET", "k"]), "$1\r\nv\r\n");
}

#[test]
fn every_interpreter_loads_a_library_by_itself() {
    let ours = Running::with(ServerOptions::default(), 2);
    let mut first = ours.connect();
    let code = "#!lua name=x\nlocal function sum(n) local s = 0 for i = 1, n do s = (s + i) % 1000003 end return s end\n\
                redis.register_function('sum', function(keys, args) return sum(args[1]) end)\n\
                redis.register_function('chance', function() return math.random(1000000000) end)";
    first.ask(&["FUNCTION", "LOAD", code]);
    let mut clients: Vec<Client> = (0..8).map(|_| ours.connect()).collect();
    // They are so long that they overlap, so several interpreters are needed.
    clients.iter_mut().for_each(|client| client.command(&["FCALL", "sum", "0", "2000000"]));
    let replies: Vec<Vec<u8>> = clients.iter_mut().map(|client| client.read_reply()).collect();
    assert!(replies.iter().all(|reply| *reply == replies[0] && reply.starts_with(b":")), "{replies:?}");
    let chances: std::collections::HashSet<String> = (0..20).map(|_| first.ask(&["FCALL", "chance", "0"])).collect();
    assert!(chances.len() > 10, "each call has chances of its own");
}
