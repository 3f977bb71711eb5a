//! `redis` sections: rules and scripts use an engine in another process as they use a store.

use std::io::{Read as _, Write as _};

use sluicegate_testkit::{Certificates, Client, Listening, RedisServer, Sluicegate, free_port, wait_for};

use crate::BINARY;

/// Lines of a section whose engine may be unresponsive for seconds.
pub(crate) const PATIENT: &str = "    timeout connect 60s\n    timeout queue 30s\n    timeout server 60s\n";

/// The same queries to the section `data`, whatever its kind, in every kind of function that may query.
const LUA: &str = r##"
local data = core.redis('data')

core.register_action('count', {'http-req'}, function(txn)
  txn:set_var('txn.said', 'action ' .. data:incr('hits'))
end)

core.register_action('types', {'http-req'}, function(txn)
  data:hset('h', 'f', 'v')
  data:rpush('l', 'a', 'b')
  local nothing, problem = data:pcall('INCR', 'l')
  local ok = pcall(function() data:multi() end)
  local replies = data:pipeline(function(p)
    p:set('p', 1.5)
    p:call('APPEND', 'p', 0)
    p:incr('l')
    p:get('none')
    p:get('p')
  end)
  local none = data:pipeline(function() end)
  local wrong = select(2, pcall(data.pipeline, data, function(p) p:get({}) end)):gsub('^.*: pipeline', 'pipeline')
  data:acall('INCRBY', 'forgotten', 7)
  data:acall('INCR', 'l')
  local forgotten = data:get('forgotten')
  txn:set_var('txn.said', table.concat({
    data:hgetall('h').f, #data:lrange('l', 0, -1), tostring(data:get('none')), tostring(nothing), problem,
    tostring(ok), math.type(data:strlen('none')),
    replies.n, replies[1], replies[2], replies[3].err, tostring(replies[4]), replies[5], none.n, wrong, forgotten,
  }, ';'))
end)

core.register_fetches('hits', function(txn)
  return 'fetch ' .. data:get('hits')
end)

core.register_converters('look', function(key)
  return 'converter ' .. (data:get(key) or 'none')
end)

core.register_service('say', 'http', function(applet)
  local body = 'service ' .. data:incrby('served', 5)
  applet:set_status(200)
  applet:add_header('content-length', #body)
  applet:start_response()
  applet:send(body)
end)

core.register_task(function()
  while not pcall(data.set, data, 'task', 'was here') do core.msleep(10) end
end)
"##;

const FRONT: &str = "defaults
    mode http
    timeout client 60s
    timeout server 60s
    timeout connect 60s
frontend front
    bind \"GATE\"
    http-request lua.count if { path /action }
    http-request lua.types if { path /types }
    http-request set-var(txn.said) lua.hits if { path /fetch }
    http-request set-var(txn.said) str(hits),lua.look if { path /converter }
    http-request set-var(txn.said) str(task),store_get(data) if { path /task }
    http-request use-service lua.say if { path /service }
    http-request store-call data INCRBY \"rule:%[path]\" 2 set-var(txn.said) if { path /rule }
    http-request set-var(txn.said) str(h),store_hget(data,f),store_call(data,APPEND,x) if { path /hget }
    http-request return status 200 content-type text/plain lf-string %[var(txn.said)]\n";

/// Returns the responses of all paths, requested in order.
fn answers(section: &str, keyword: &str, workers: u32) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("ask.lua"), LUA).unwrap();
    let gate = Listening::new();
    let front = FRONT.replace("GATE", &gate.word());
    let text = format!("global\n    nbthread {workers}\n    {keyword} @DIR@/ask.lua\n{section}\n{front}");
    let server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
    let mut client = Client::connect(&gate.address());
    let mut ask = |path: &str| client.get(path).text();
    wait_for("the task", || (ask("/task") == "was here").then_some(()));
    let paths =
        ["/action", "/action", "/fetch", "/converter", "/service", "/service", "/rule", "/rule", "/types", "/hget"];
    let answers = paths.map(ask).to_vec();
    // The failure of a command whose reply nobody awaits is logged.
    wait_for("what failed to be told", || {
        server
            .program
            .output()
            .contains("redis:acall: 1 commands failed, the last one of 'data': WRONGTYPE")
            .then_some(())
    });
    answers
}

#[test]
fn an_engine_answers_what_a_store_answers() {
    for (keyword, workers) in [("lua-load", 1), ("lua-load", 2), ("lua-load-per-thread", 2)] {
        let engine = RedisServer::start(&["--requirepass", "secret"]);
        let section = format!("redis data\n{PATIENT}    server one {}\n    auth secret\n    db 1", engine.address());
        let here = answers("store data", keyword, workers);
        assert_eq!(here[..2], ["action 1", "action 2"]);
        assert_eq!(here[6..8], ["2", "4"]);
        let types = "v;2;nil;nil;WRONGTYPE Operation against a key holding the wrong kind of value;false;integer;\
                     5;OK;4;WRONGTYPE Operation against a key holding the wrong kind of value;nil;1.50;0;\
                     pipeline: strings or numbers are expected;7";
        assert_eq!(here[8], types);
        // The field's value became a key, and the text behind it that key's value.
        assert_eq!(here[9], "1");
        assert_eq!(answers(&section, keyword, workers), here, "{keyword}, {workers} workers");
    }
}

/// Commands that need a dedicated connection, sent to the section `data`, whatever its kind.
const OWN: &str = r##"
local data = core.redis('data')
local function show(value)
  if type(value) ~= 'table' then return tostring(value) end
  local parts = {}
  for index = 1, value.n do
    local part = value[index]
    parts[index] = type(part) == 'table' and (part.err or show(part)) or tostring(part)
  end
  return '{' .. table.concat(parts, ' ') .. '}'
end

core.register_action('own', {'http-req'}, function(txn)
  local said = {}
  local function say(...) said[#said + 1] = show(...) end
  say(data:multi(function(m) m:set('a', 1) m:incr('a') m:lpush('a', 'x') m:get('none') m:get('a') end))
  say(data:multi({watch = 'w'}, function(m, c)
    data:incr('w')
    m:set('never', c:get('w'))
  end))
  local tries = 0
  say(data:multi({watch = {'w', 'x'}, retry = 5}, function(m, c)
    tries = tries + 1
    local was = c:get('w')
    if tries < 3 then data:incr('w') end
    m:set('w', was * 10)
    m:get('w')
  end))
  say(tries)
  say(data:get('never'))
  say(data:multi(function() end))
  say(data:multi(function(m, c) m:set('seen', c:get('a')) m:get('seen') end))
  say(data:multi(function(m) for number = 1, 40 do m:incr('many') end end).n)
  say(data:multi(function(m) m:unwatch() m:get('seen') end))
  local ok, problem = pcall(data.multi, data, function(m) m:set('a', 9) m:set('lonely') end)
  say(ok) say(problem) say(data:get('a'))
  say(data:own(function(c)
    c:rpush('l', 'one', 'two')
    say(c:pipeline(function(p) p:llen('l') p:lpop('l') end))
    say(select(2, c:pcall('SELECT', 1)):match('^ERR SELECT is not allowed here'))
    return c:blpop('l', 1)
  end))
  ok, problem = pcall(data.own, data, function(c) c:set('mine', 1) error('mine', 0) end)
  say(ok) say(problem) say(data:get('mine'))
  say(data:blpop('none', 0.01))
  data:rpush('q', 'direct')
  say(data:brpop('q', 'r', 1))
  ok, problem = pcall(data.watch, data, 'k')
  say(ok)
  txn:set_var('txn.said', table.concat(said, ';'))
end)

core.register_task(function()
  local listener
  while not pcall(function() listener = data:subscribe('news', 'other') end) do core.msleep(10) end
  local patterns = data:psubscribe('n*s')
  data:set('listening', 1)
  local heard = {}
  while #heard < 3 do
    local message, channel = listener:receive(30)
    heard[#heard + 1] = tostring(channel) .. '=' .. tostring(message)
  end
  heard[4] = select(2, listener:receive(0.01))
  local message, channel, pattern = patterns:receive()
  heard[5] = pattern .. '>' .. channel .. '=' .. message
  listener:close()
  patterns:close()
  heard[6] = select(2, listener:receive())
  data:set('heard', table.concat(heard, ' '))
end)

core.register_task(function()
  local handed
  while not pcall(function() handed = data:blpop('hand', 60) end) do core.msleep(10) end
  data:set('handed', handed[2])
end)

core.register_action('publish', {'http-req'}, function(txn)
  txn:set_var('txn.said', table.concat({data:publish('news', 'one'), data:publish('other', 'two'),
    data:multi(function(m) m:publish('news', 'three') m:rpush('hand', 'over') end)[1]}, ' '))
end)
"##;

#[test]
fn transactions_blocking_commands_and_channels_are_alike_in_stores_and_engines() {
    let answers = |section: &str, keyword: &str, workers: u32| {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("own.lua"), OWN).unwrap();
        let gate = Listening::new();
        let text = format!(
            "global\n    nbthread {workers}\n    {keyword} @DIR@/own.lua\n{section}\n{}    \
             http-request lua.own if {{ path /own }}\n    http-request lua.publish if {{ path /publish }}\n    \
             http-request set-var(txn.said) path,regsub(^/get/,),store_get(data) if {{ path_beg /get/ }}\n    \
             http-request return status 200 content-type text/plain lf-string %[var(txn.said)]\n",
            front(&gate)
        );
        let _server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
        let mut client = Client::connect(&gate.address());
        let mut ask = |path: &str| client.get(path).text();
        wait_for("the task", || (ask("/get/listening") == "1").then_some(()));
        let mut answers = vec![ask("/publish"), ask("/wait"), ask("/own")];
        wait_for("what was handed over", || (ask("/get/handed") == "over").then_some(()));
        answers.push(wait_for("what was heard", || Some(ask("/get/heard")).filter(|heard| !heard.is_empty())));
        answers
    };
    for (keyword, workers) in [("lua-load", 2), ("lua-load-per-thread", 1)] {
        let here = answers("store data", keyword, workers);
        assert_eq!(here[..2], ["2 1 2", ""]);
        let expected = "{OK 2 WRONGTYPE Operation against a key holding the wrong kind of value nil 2};nil;{OK 30};3;nil;{};{OK 2};40;\
                        {OK 2};false;ERR wrong number of arguments for 'set' command;2;{2 one};ERR SELECT is not allowed here;\
                        {l two};false;mine;1;nil;{q direct};false";
        assert_eq!(here[2], expected);
        assert_eq!(here[3], "news=one other=two news=three timeout n*s>news=one closed");
        let engine = RedisServer::start(&["--requirepass", "secret"]);
        let section = format!("redis data\n{PATIENT}    server one {}\n    auth secret\n    db 1", engine.address());
        assert_eq!(answers(&section, keyword, workers), here, "{keyword}, {workers} workers");
    }
}

/// An engine's reply chooses the backend, and decides whether a connection may continue, without an inspect delay.
#[test]
fn a_choice_may_wait_for_an_engine() {
    let engine = RedisServer::start(&[]);
    let mut own = Client::connect(&engine.address());
    let directory = tempfile::tempdir().unwrap();
    let script = "local data = core.redis('data')
        core.register_fetches('pick', function(txn) return data:hget('backends', txn.f:path()) or 'none' end)
        core.register_fetches('known', function(txn) return data:exists(txn.f:src()) end)
        core.register_action('wait', {'tcp-req'}, function(txn) data:blpop('go', 0) end)";
    std::fs::write(directory.path().join("pick.lua"), script).unwrap();
    let gates = [(); 4].map(|()| Listening::new());
    let [http, lua, rule, action] = &gates;
    let mut text = format!(
        "global\n    stats socket @DIR@/stats level admin\n    lua-load @DIR@/pick.lua\nredis data\n{PATIENT}    server one {}\n    client-cache 1m\n{}    \
         use_backend %[lua.pick]\n    default_backend other\n\
         backend one\n    http-request return status 200 content-type text/plain string one\n\
         backend other\n    http-request return status 200 content-type text/plain string other\n",
        engine.address(),
        front(http)
    );
    for (name, gate, rules) in [
        ("lua", lua, "tcp-request content reject unless { lua.known eq 1 }"),
        ("rule", rule, "tcp-request content reject unless { src,store_get(data) -m found }"),
        ("action", action, "tcp-request content lua.wait"),
    ] {
        let word = gate.word();
        text.push_str(&format!(
            "listen {name}\n    mode tcp\n    bind \"{word}\"\n    {rules}\n    server s {}\n",
            engine.address()
        ));
    }
    let all: Vec<&Listening> = gates.iter().collect();
    let server = Sluicegate::start_in(BINARY, &text, &all, directory);
    let mut client = Client::connect(&http.address());
    assert_eq!(client.get("/a").text(), "other");
    own.ask(&["HSET", "backends", "/a", "one"]);
    wait_for("the engine to tell that it changed", || (client.get("/a").text() == "one").then_some(()));
    let is_let_in = |gate: &Listening| {
        let mut stream = std::net::TcpStream::connect(gate.address()).unwrap();
        let mut reply = [0; 7];
        // A refused connection may be closed before its request is sent.
        stream.write_all(b"PING\r\n").and_then(|()| stream.read_exact(&mut reply)).is_ok()
    };
    for gate in [lua, rule] {
        own.ask(&["DEL", "127.0.0.1"]);
        wait_for("nobody to be let in", || (!is_let_in(gate)).then_some(()));
        own.ask(&["SET", "127.0.0.1", "known"]);
        wait_for("somebody to be let in", || is_let_in(gate).then_some(()));
    }
    // A script that waits for another client delays no other request.
    let mut waiting = Client::connect(&action.address());
    wait_for("the script to wait", || own.ask(&["INFO", "clients"]).contains("blocked_clients:1").then_some(()));
    assert_eq!(client.get("/a").text(), "one");
    own.ask(&["RPUSH", "go", "on"]);
    assert_eq!(waiting.ask(&["PING"]), "+PONG\r\n");
    let shown = Sluicegate::stats(&server.directory().join("stats"), "show engines data");
    let hits = shown.lines().find_map(|line| line.strip_prefix("cache: hits=")).expect("a line of the cache");
    assert!(!hits.starts_with("0 "), "{shown}");
}

/// The cache of a section is kept true by a store as by Redis.
#[test]
fn a_store_tells_the_cache_of_a_section_what_has_changed() {
    let (data, gate) = (Listening::new(), Listening::new());
    let _store = Sluicegate::start(BINARY, &format!("store data\n    bind \"{}\"\n", data.word()), &[&data]);
    let mut own = Client::connect(&data.address());
    let text = format!(
        "global\n    stats socket @DIR@/stats level admin\nredis data\n{PATIENT}    server one {}\n    client-cache 1m\n\
         defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
         frontend front\n    bind \"{}\"\n    \
         http-request return status 200 content-type text/plain lf-string \"%[path,store_get(data)]\"\n",
        data.address(),
        gate.word()
    );
    let server = Sluicegate::start(BINARY, &text, &[&gate]);
    let mut client = Client::connect(&gate.address());
    let figures = |server: &Sluicegate| {
        let shown = Sluicegate::stats(&server.directory().join("stats"), "show engines data");
        shown.lines().find_map(|line| line.strip_prefix("cache: ").map(str::to_owned)).expect("a line of the cache")
    };
    // The first reply may precede the connection's tracking, and is then not cached.
    wait_for("a cached value", || {
        client.get("/a");
        (!figures(&server).starts_with("hits=0 ")).then_some(())
    });
    for number in 0..20 {
        let value = format!("value {number}");
        match number % 4 {
            0 => own.ask(&["SET", "/a", &value]),
            1 => own.ask(&["EVAL", "return redis.call('set',KEYS[1],ARGV[1])", "1", "/a", &value]),
            2 => own.ask(&["MSET", "/a", &value, "/b", &value]),
            _ => own.ask(&["RENAME", "/b", "/a"]),
        };
        let expected = if number % 4 == 3 { format!("value {}", number - 1) } else { value };
        wait_for("the new value", || (client.get("/a").text() == expected).then_some(()));
        assert_eq!(client.get("/a").text(), expected);
    }
    own.ask(&["FLUSHALL"]);
    wait_for("nothing", || client.get("/a").text().is_empty().then_some(()));
    assert!(own.ask(&["INFO", "clients"]).contains("\r\ntracking_clients:1\r\n"));
    assert!(own.ask(&["CLIENT", "LIST"]).contains(" flags=t "));
}

#[test]
fn a_listener_whose_connection_ended_is_told_that_it_may_have_missed_something() {
    let engine = RedisServer::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let script = "core.register_task(function()
        local data = core.redis('data')
        local listener = data:subscribe('news')
        data:rpush('heard', 'listening')
        while true do
            local message, why = listener:receive()
            data:rpush('heard', message or why:match('^%w+'))
        end
    end)";
    std::fs::write(directory.path().join("listen.lua"), script).unwrap();
    let gate = Listening::new();
    let text = format!(
        "global\n    lua-load @DIR@/listen.lua\nredis data\n{PATIENT}    server one {}\n{}",
        engine.address(),
        front(&gate)
    );
    let _server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
    let mut own = Client::connect(&engine.address());
    let mut heard = |words: &[&str]| {
        let expected: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        let expected = format!("*{}\r\n{expected}", words.len());
        wait_for("it to be heard", || (own.ask(&["LRANGE", "heard", "0", "-1"]) == expected).then_some(()));
    };
    heard(&["listening"]);
    let mut other = Client::connect(&engine.address());
    other.ask(&["PUBLISH", "news", "one"]);
    heard(&["listening", "one"]);
    other.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    heard(&["listening", "one", "CONNLOST", "reconnected"]);
    other.ask(&["PUBLISH", "news", "two"]);
    heard(&["listening", "one", "CONNLOST", "reconnected", "two"]);
}

#[test]
fn a_connection_is_shared_by_the_streams_of_a_worker() {
    let engine = RedisServer::start(&[]);
    let gate = Listening::new();
    let text = format!(
        "global\n    nbthread 1\n    stats socket @DIR@/stats level admin\nredis data\n{PATIENT}    server one {}\n{}    \
         http-request use-service prometheus-exporter if {{ path /metrics }}\n    \
         http-request store-call data INCR hits set-var(txn.n)\n    \
         http-request return status 200 content-type text/plain lf-string %[var(txn.n)]\n",
        engine.address(),
        front(&gate)
    );
    let server = Sluicegate::start(BINARY, &text, &[&gate]);
    let mut clients: Vec<Client> = (0..50).map(|_| Client::connect(&gate.address())).collect();
    for _ in 0..10 {
        clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
        clients.iter_mut().for_each(|client| assert_eq!(client.read_response().status, 200));
    }
    let mut own = Client::connect(&engine.address());
    assert!(own.ask(&["GET", "hits"]).contains("500"));
    let list = own.ask(&["CLIENT", "LIST"]);
    assert_eq!(list.matches("name=data").count(), 1, "{list}");
    own.ask(&["SET", "hits", "no number"]);
    assert_eq!(clients[0].get("/").status, 200);
    let parts = [
        &format!("# engine: data, address: {}, breaker: closed\n", engine.address()),
        "connections: connected=1 connecting=0 max=20 connects=1\n",
        "commands: total=501 replies=501 errors=1 resent=0 redirected=0 queued=0 in_flight=0\n",
        "failures: queue_full=0 queue_timeout=0 connect=0",
        "last_failure: none\n",
        "cache: hits=0 misses=0 invalidated=0 bytes=0\n",
    ];
    // A client may have its answer a moment before all of it is counted.
    let mut shown = String::new();
    for part in parts {
        wait_for(part, || {
            shown = Sluicegate::stats(&server.directory().join("stats"), "show engines");
            shown.contains(part).then_some(())
        });
    }
    let waits = shown.lines().find_map(|line| line.strip_prefix("waits: ")).expect("a line");
    let counted: u64 =
        waits.split(' ').map(|bucket| bucket.split_once('=').expect("a count").1.parse::<u64>().unwrap()).sum();
    assert_eq!(counted, 501, "{shown}");
    let one = |line: &str| Sluicegate::stats(&server.directory().join("stats"), line);
    assert_eq!(one("show engines data"), shown);
    assert!(one("show engines other").contains("Can't find that redis section"));
    let metrics = clients[0].get("/metrics").text();
    for line in [
        "sluicegate_engine_connections{engine=\"data\"} 1",
        "sluicegate_engine_replies_total{engine=\"data\"} 501",
        "sluicegate_engine_cache_hits_total{engine=\"data\"} 0",
        "sluicegate_engine_failures_total{engine=\"data\",reason=\"breaker\"} 0",
        &format!(
            "sluicegate_engine_node_replies_total{{engine=\"data\",node=\"{}\",role=\"master\"}} 501",
            engine.address()
        ),
        "sluicegate_engine_wait_seconds_bucket{engine=\"data\",le=\"+Inf\"} 501",
        "sluicegate_engine_wait_seconds_count{engine=\"data\"} 501",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

fn front(gate: &Listening) -> String {
    format!(
        "defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
         frontend front\n    bind \"{}\"\n",
        gate.word()
    )
}

#[test]
fn an_engine_that_is_away_opens_closes_or_gives_a_value() {
    let port = free_port();
    let gate = Listening::new();
    let text = format!(
        "redis data\n    server one 127.0.0.1:{port}\n    breaker 2\n    on-error closed\n{}    \
         http-request store-call data INCR hits if {{ path /section }}\n    \
         http-request store-call data INCR hits on-error open if {{ path /open }}\n    \
         http-request store-call data GET v set-var(txn.v) on-error value:7 if {{ path /value }}\n    \
         http-request store-call data GET \"%[path]\" if {{ path_beg /long }}\n    \
         http-request set-var(txn.v) str(k),store_get(data) if {{ path /fetch }}\n    \
         http-request return status 200 content-type text/plain lf-string \
         \"%[var(txn.v)] %[var(txn.store_err),word(1,' ')] %[txn.store_failures]\"\n",
        front(&gate)
    );
    let mut server = Sluicegate::start(BINARY, &text, &[&gate]);
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/section").status, 503, "{}", server.program.output());
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/open").text(), " BREAKER 1");
    assert_eq!(client.get("/value").text(), "7 BREAKER 1");
    assert_eq!(client.get("/fetch").text(), " BREAKER 1");
    let key = format!("/long{}", "x".repeat(100));
    client.send(format!("GET {key} HTTP/1.1\r\nHost: x\r\n\r\n"));
    assert_eq!(client.read_response().status, 503);
    // Each rule logs its position, its command, the key and the reason.
    for line in [
        "12: store-call data failed, the last time for key 'hits': BREAKER ",
        "13: store-call data failed, the last time for key 'hits': BREAKER ",
        "14: store-call data failed, the last time for key 'v': BREAKER ",
        &format!("15: store-call data failed, the last time for key '{}…': BREAKER ", &key[..64]),
        "16: store_get failed, the last time for key 'k': BREAKER ",
    ] {
        server.program.wait_for_output(&format!(".cfg:{line}"));
    }
    let mut client = Client::connect(&gate.address());
    // The engine starts, and the next probe finds it.
    let mut command = std::process::Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    let mut engine = sluicegate_testkit::Program::start(command, &[]);
    engine.wait_for_output("Ready to accept connections");
    wait_for("the engine to be used", || (client.get("/open").text() == "  0").then_some(()));
}

#[test]
fn a_reload_keeps_the_connections_of_sections_that_stay() {
    let engine = RedisServer::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let gate = Listening::new();
    let text = |maxqueue: u32| {
        format!(
            "global\n    nbthread 1\nredis data\n{PATIENT}    server one {}\n    maxqueue {maxqueue}\n{}    \
             http-request store-call data ECHO \"served\" set-var(txn.said)\n    \
             http-request return status 200 content-type text/plain lf-string %[var(txn.said)]\n",
            engine.address(),
            front(&gate)
        )
    };
    let path = directory.path().join("a.cfg");
    std::fs::write(&path, text(100)).unwrap();
    let mut command = std::process::Command::new(BINARY);
    command.arg("run").arg(&path);
    let mut program = sluicegate_testkit::Program::start(command, &[gate.fd()]);
    let mut own = Client::connect(&engine.address());
    // Returns the number of the connection that has served a request.
    let mut ask = || {
        assert_eq!(Client::connect(&gate.address()).get("/").text(), "served");
        let list = own.ask(&["CLIENT", "LIST"]);
        let lines = list.lines().filter(|line| line.contains(" name=data ") && line.contains(" cmd=echo "));
        let number = |line: &str| -> u64 { line.split(['=', ' ']).nth(1).expect("an ID").parse().expect("a number") };
        lines.map(number).max().expect("a connection")
    };
    let first = ask();
    let mut reload = |maxqueue: u32| {
        std::fs::write(&path, text(maxqueue)).unwrap();
        let done = std::process::Command::new(BINARY).args(["reload", &program.pid().to_string()]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        assert!(program.is_running());
    };
    reload(100);
    assert_eq!(ask(), first);
    reload(200);
    assert_ne!(ask(), first);
    wait_for("the old connection to end", || {
        (own.ask(&["CLIENT", "LIST"]).matches("name=data").count() == 1).then_some(())
    });
}

/// `ssl` of a section, in both directions: the engine requests a certificate, and its own is verified.
#[test]
fn an_engine_behind_tls_is_asked() {
    let made = Certificates::new();
    let (_engine, port) = made.engine("here", "yes");
    let both = [made.read("client.crt"), made.read("client.key")].concat();
    std::fs::write(made.path("both.pem"), both).unwrap();
    let gate = Listening::new();
    let section = |name: &str, words: &str| {
        format!(
            "redis {name}\n    server one 127.0.0.1:{port}\n    ssl\n    timeout queue 30s\n    timeout connect 60s\n    timeout server 60s\n{words}"
        )
    };
    let (ca, other, crt) = (made.path("ca.crt"), made.path("other.crt"), made.path("both.pem"));
    let text = format!(
        "{}{}{}{}    http-request store-call data INCR n set-var(txn.said) if {{ path /data }}\n    \
         http-request store-call stranger INCR n set-var(txn.said) if {{ path /stranger }}\n    \
         http-request store-call bare INCR n set-var(txn.said) if {{ path /bare }}\n    \
         http-request return status 200 content-type text/plain lf-string \"%[var(txn.said)]%[var(txn.store_err)]\"\n",
        section("data", &format!("    verify required\n    ca-file {ca}\n    crt {crt}\n")),
        section("stranger", &format!("    breaker 1\n    ca-file {other}\n    crt {crt}\n")),
        section("bare", "    breaker 1\n    verify none\n"),
        front(&gate),
    );
    let _server = Sluicegate::start(BINARY, &text, &[&gate]);
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/data").text(), "1");
    assert_eq!(client.get("/data").text(), "2");
    let refused = client.get("/stranger").text();
    assert!(refused.starts_with("BREAKER") && refused.contains("invalid peer certificate: UnknownIssuer"), "{refused}");
    // The engine requires a certificate, and gets none.
    let refused = client.get("/bare").text();
    assert!(refused.starts_with("BREAKER"), "{refused}");
    assert_eq!(client.get("/data").text(), "3");
}
