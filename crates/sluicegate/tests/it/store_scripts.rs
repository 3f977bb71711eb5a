//! Scripts of the store that HAProxy Lua calls without a socket.

use sluicegate_testkit::{Client, Listening, Sluicegate};

use crate::BINARY;

/// Actions that call scripts of the store, and write the results into variables.
const LUA: &str = r##"
local store = core.redis('main')

local function show(value)
  if type(value) == 'table' then
    local parts = {}
    for at, part in ipairs(value) do parts[at] = show(part) end
    return '{' .. table.concat(parts, ',') .. '}'
  end
  return tostring(value)
end

local body = "redis.call('INCRBY', KEYS[1], ARGV[1]) return {redis.call('GET', KEYS[1]), #KEYS, ARGV[2]}"
local sha = nil

core.register_action('eval', {'http-req'}, function(txn)
  txn:set_var('txn.said', show(store:eval(body, 1, 'hits', 5, 'x')))
end)

core.register_action('evalsha', {'http-req'}, function(txn)
  sha = sha or store:script('LOAD', body)
  txn:set_var('txn.said', show(store:evalsha(sha, 1, 'hits', 5, 'x')))
end)

core.register_action('fcall', {'http-req'}, function(txn)
  local code = "#!lua name=l\nredis.register_function('f', function(keys, argv) return keys[1] .. argv[1] end)"
  store['function'](store, 'LOAD', 'REPLACE', code)
  txn:set_var('txn.said', show(store:fcall('f', 1, 'key', 'arg')))
end)

core.register_action('fails', {'http-req'}, function(txn)
  local ok, problem = pcall(store.eval, store, "return redis.call('INCR', KEYS[1], 'too many')", 1, 'hits')
  txn:set_var('txn.said', show(ok) .. ' ' .. show(problem))
end)

-- It goes on for so long that it leaves the worker, which its caller waits for.
core.register_action('long', {'http-req'}, function(txn)
  local long = "local turns = 0 repeat turns = turns + 1 until turns > 20000000 return redis.call('INCR', KEYS[1])"
  txn:set_var('txn.said', show(store:eval(long, 1, 'long')))
end)

core.register_action('everything', {'http-req'}, function(txn)
  txn:set_var('txn.said', show(store:eval("redis.call('FLUSHALL') return #redis.call('KEYS', '*')", 0)))
end)
"##;

#[test]
fn haproxy_lua_runs_scripts_of_the_store_without_a_socket() {
    for (keyword, workers) in [("lua-load", 1), ("lua-load", 2), ("lua-load-per-thread", 2)] {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("scripts.lua"), LUA).unwrap();
        let gate = Listening::new();
        let actions: String = ["eval", "evalsha", "fcall", "fails", "long", "everything"]
            .iter()
            .map(|name| format!("    http-request lua.{name} if {{ path /{name} }}\n"))
            .collect();
        // There is no `bind` in the store's section: nobody could reach it over a socket.
        let text = format!(
            "global\n    nbthread {workers}\n    {keyword} @DIR@/scripts.lua\nstore main\n\
             defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
             frontend front\n    bind \"{}\"\n{actions}    \
             http-request return status 200 content-type text/plain lf-string %[var(txn.said)]\n",
            gate.word()
        );
        let server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
        let mut client = Client::connect(&gate.address());
        let mut ask = |path: &str| {
            client.send(format!("GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n"));
            client.read_response().text()
        };
        let at = || format!("{keyword}, {workers} workers: {}", server.program.output());
        assert_eq!(ask("eval"), "{5,1,x}", "{}", at());
        assert_eq!(ask("evalsha"), "{10,1,x}", "{}", at());
        assert_eq!(ask("eval"), "{15,1,x}", "{}", at());
        assert_eq!(ask("fcall"), "keyarg", "{}", at());
        let failed = ask("fails");
        assert!(failed.contains("Wrong number of args calling Redis command from script"), "{failed} {}", at());
        assert_eq!(ask("long"), "1", "{}", at());
        assert_eq!(ask("everything"), "0", "{}", at());
        assert_eq!(ask("eval"), "{5,1,x}", "{}", at());
    }
}

#[test]
fn a_long_script_that_a_script_calls_does_not_keep_the_worker() {
    let directory = tempfile::tempdir().unwrap();
    let script = "
local store = core.redis('main')
core.register_action('waits', {'http-req'}, function(txn)
  store:eval([[#!lua flags=disable-atomicity
    local turns = 0
    repeat turns = turns + 1 until turns % 1000 == 0 and redis.call('GET', 'stop')]], 0)
end)
core.register_action('stops', {'http-req'}, function(txn) store:set('stop', 1) end)
";
    std::fs::write(directory.path().join("scripts.lua"), script).unwrap();
    let gate = Listening::new();
    let text = format!(
        "global\n    nbthread 1\n    lua-load @DIR@/scripts.lua\nstore main\n\
         defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
         frontend front\n    bind \"{}\"\n    http-request lua.waits if {{ path /waits }}\n    \
         http-request lua.stops if {{ path /stops }}\n    http-request return status 200\n",
        gate.word()
    );
    let _server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
    let mut waiting = Client::connect(&gate.address());
    waiting.send("GET /waits HTTP/1.1\r\nHost: x\r\n\r\n");
    // The other one's request comes to a worker that is free, or is never answered.
    let mut other = Client::connect(&gate.address());
    other.send("GET /stops HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(other.read_response().status, 200);
    assert_eq!(waiting.read_response().status, 200);
}

#[test]
fn scripts_of_the_store_write_to_the_log_targets_of_the_proxy() {
    let directory = tempfile::tempdir().unwrap();
    let lua = "core.register_action('say', {'http-req'}, function()
        core.redis('main'):eval(\"redis.log(redis.LOG_WARNING, 'said by', 'a script')\", 0) end)";
    std::fs::write(directory.path().join("say.lua"), lua).unwrap();
    let gate = Listening::new();
    let text = format!(
        "global\n    log stdout format raw local0\n    lua-load @DIR@/say.lua\nstore main\n\
         defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
         frontend front\n    bind \"{}\"\n    http-request lua.say\n    http-request return status 200\n",
        gate.word()
    );
    let mut server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
    assert_eq!(Client::connect(&gate.address()).get("/").status, 200);
    server.program.wait_for_output("store main: said by a script");
}
