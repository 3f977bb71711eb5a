//! Scripts that try to break the interpreter, with the expected replies; `corpus/hostile.txt` contains those that
//! redis-server survives.

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Client, wait_for};

use super::Ticking;
use crate::support::Running;

/// A table that is nested a million times.
const DEEP: &str = "local t = {} for i = 1, 1000000 do t = {t} end";

/// Scripts, and a part of their reply.
const HOSTILE: &[(&str, &str)] = &[
    // Recursion through C.
    ("local function f() return coroutine.wrap(f)() end return f()", "C stack overflow"),
    ("local t = setmetatable({}, {__index = function(t, k) return t[k] end}) return t.x", "C stack overflow"),
    ("local function f(s) return s:gsub('x', f) end return f('x')", "C stack overflow"),
    ("local function f() table.sort({1, 2}, f) end f()", "C stack overflow"),
    ("return string.find(('a'):rep(30000), ('a?'):rep(30000) .. ('a'):rep(30000))", "*"),
    // All memory.
    ("local s = 'x' while true do s = s .. s end", "not enough memory"),
    ("return ('x'):rep(2^30)", "not enough memory"),
    ("local t = {} while true do t = {t} end", "not enough memory"),
    ("local t = {} for i = 1, 3000 do t[i] = ('x'):rep(1e6) end return cjson.encode(t)", "not enough memory"),
    ("local s = ('x = 1 '):rep(1e5) return load(function() return s end)", "not enough memory"),
    ("return cmsgpack.unpack('\\221\\255\\255\\255\\255' .. ('\\192'):rep(100))", "Missing bytes"),
    // Endless replies.
    ("local t = {} t[1] = t return t", "reached lua stack limit"),
    ("local t = {} t.map = t return t", "reached lua stack limit"),
    ("local t = {} t.set = {[t] = true} return t", "reached lua stack limit"),
    ("{DEEP} return t", "reached lua stack limit"),
    ("local t = {} t[1] = t t[2] = t return t", "-ERR reached lua stack limit\r\n"),
    ("local t = {} t.map = t t[1] = t return t", "-ERR reached lua stack limit\r\n"),
    ("local t = {} t.set = {[t] = true, [{t}] = true} return t", "-ERR reached lua stack limit\r\n"),
    (
        "local t = ('x'):rep(1e4) for i = 1, 100 do t = {t, t} end return t",
        "-ERR the script's reply is longer than 512 MiB\r\n",
    ),
    (
        "local s, t = ('x'):rep(2^20), {} for i = 1, 513 do t[i] = s end return {1, t}",
        "-ERR the script's reply is longer than 512 MiB\r\n",
    ),
    ("{DEEP} return cjson.encode(t)", "excessive nesting"),
    ("{DEEP} return #cmsgpack.pack(t)", ":"),
    ("{DEEP} error({err = 'MY deep', t})", "-MY deep"),
    ("{DEEP} t = nil collectgarbage() return 1", ":1"),
    // Errors that have no message.
    ("error({})", "-ERR unknown error"),
    ("error({err = {}})", "-ERR unknown error"),
    ("error(setmetatable({}, {__index = function() error('asked') end}))", "-ERR unknown error"),
    ("error(setmetatable({}, {__tostring = function() return 'said' end}))", "-ERR unknown error"),
    ("error(error)", "-ERR function: "),
    ("error(coroutine.create(function() end))", "-ERR thread: "),
    ("return setmetatable({}, {__index = function(t, k) error('asked') end})", "*0"),
    // To-be-closed variables, which only exist in Lua 5.4.
    (
        "do local x <close> = setmetatable({}, {__close = function() redis.call('SET', 'k', 'closed') end}) end return redis.call('GET', 'k')",
        "closed",
    ),
    (
        "local x <close> = setmetatable({}, {__close = function() redis.call('SET', 'k', 'after') end}) error('MY end')",
        "MY end",
    ),
    ("local x <close> = setmetatable({}, {__close = function() error('in close') end}) error('before')", "before"),
    ("local x <close> = 5", "non-closable value"),
    (
        "local c = coroutine.create(function() local x <close> = setmetatable({}, {__close = function() redis.call('SET', 'k', 'left') end}) coroutine.yield() end) coroutine.resume(c) return 1",
        ":1",
    ),
    // Bytes that are not source text.
    ("\u{1b}Lua", "Error compiling script"),
    ("return loadstring('\\27LuaT\\0\\25\\147') == nil", ":1"),
    // Arguments of commands.
    ("return redis.call('SET', 'k', ('x'):rep(2^29 + 1))", "-ERR"),
    ("local t = {} for i = 1, 200 do t[i] = ('x'):rep(1e6) end return redis.call('MSET', unpack(t))", "+OK"),
];

#[test]
fn hostile_scripts_get_an_error_and_nobody_else_does() {
    let ours = Running::with(ServerOptions::default(), 2);
    let mut other = ours.connect();
    for (script, expected) in HOSTILE {
        let mut client = ours.connect();
        let script = script.replace("{DEEP}", DEEP);
        client.command(&["EVAL", &script, "0"]);
        // Even after a forged reply, the next reply belongs to the next request.
        client.command(&["ECHO", "next"]);
        let reply = client.read_reply();
        let text = String::from_utf8_lossy(&reply);
        assert!(*expected == "*" || text.contains(expected), "{script}: {}", reply.escape_ascii());
        assert_eq!(client.read_reply(), b"$4\r\nnext\r\n", "{script}");
        assert_eq!(
            other.ask(&["EVAL", "return {#KEYS, #ARGV, redis.call('ECHO', 'well')}", "0"]),
            "*3\r\n:0\r\n:0\r\n$4\r\nwell\r\n"
        );
    }
    assert_eq!(other.ask(&["FLUSHALL"]), "+OK\r\n");
}

fn killed(client: &mut Client, killer: &mut Client) {
    wait_for("the script to be ended", || (killer.ask(&["SCRIPT", "KILL"]) == "+OK\r\n").then_some(()));
    let reply = String::from_utf8_lossy(&client.read_reply()).into_owned();
    assert!(reply.contains("Script killed by user"), "{reply}");
}

/// Scripts that do not end, and try to prevent being ended.
const ENDLESS: &[&str] = &[
    "while true do pcall(function() local x <close> = setmetatable({}, {__close = function() while true do end end}) error('x') end) end",
    "local x <close> = setmetatable({}, {__close = function() while true do end end}) while true do end",
    "local function f() pcall(f) end while true do f() end",
    "while true do coroutine.wrap(function() while true do end end)() end",
    "while true do pcall(coroutine.wrap(function() pcall(function() while true do end end) end)) end",
    "while true do xpcall(function() while true do end end, function() while true do end end) end",
    "setmetatable({}, {__index = function() while true do end end}).x = 1 local t = setmetatable({}, {__index = function() while true do end end}) return t.x",
    "table.sort({1, 2, 3}, function() while true do end end)",
    "return ('x'):gsub('x', function() while true do end end)",
    "while true do loadstring('return ' .. ('{'):rep(100)) end",
    "goto here ::here:: goto here",
    "for i = 1, math.huge do end",
    "local t = {} while true do pcall(function() t[#t + 1] = ('x'):rep(1e7) .. #t end) end",
    "for i = 1, math.huge do redis.call('PING') end",
    "while true do redis.pcall('nosuch') end",
    "local t = {} while true do t[1] = cjson.encode({t = ('x'):rep(1000)}) end",
    "return string.find(('a'):rep(100000), '.-.-.-.-b')",
];

#[test]
fn scripts_that_resist_are_ended() {
    let options = ServerOptions { busy_reply_threshold_ms: 1, ..ServerOptions::default() };
    let ours = Running::with(options, 2);
    let _ticking = Ticking::start(&ours);
    let mut killer = ours.connect();
    for script in ENDLESS {
        let mut client = ours.connect();
        client.command(&["EVAL", script, "1", "k"]);
        killed(&mut client, &mut killer);
        assert_eq!(killer.ask(&["SET", "k", "v"]), "+OK\r\n", "{script}");
    }
}
