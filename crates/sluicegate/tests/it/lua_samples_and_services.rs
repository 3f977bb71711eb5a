//! Fetches, converters and services of scripts: the same script must give the same bytes and the same log lines as with
//! Debian's haproxy. What haproxy can't do (waiting in a fetch) is tested with a real Redis and the embedded store.

use std::io::{Read, Write};
use std::net::TcpStream;

use sluicegate_testkit::{Client, Haproxy, Listening, PATIENCE, RedisServer, Sluicegate, wait_for};

use crate::BINARY;

const SCRIPT: &str = r#"
core.register_service('hello', 'http', function(a)
  local names = {}
  for name, values in pairs(a.headers) do
    local n = 0
    while values[n] do n = n + 1 end
    names[#names + 1] = name .. '=' .. table.concat(values, '|', 0, n - 1)
  end
  table.sort(names)
  local body = table.concat({ a.method, a.version, a.path, a.qs, a.length, a.sc:upper('x'), table.concat(names, ';') }, ' ')
  a:set_status(200)
  a:add_header('content-length', tostring(#body))
  a:start_response()
  a:send(body)
end)
core.register_service('chunk', 'http', function(a)
  a:set_status(201, 'Fine')
  a:start_response()
  local sent = a:send('one')
  a:send('two' .. tostring(sent))
end)
core.register_service('silent', 'http', function(a) a:set_status(200) end)
core.register_service('early', 'http', function(a) a:set_status(200) a:send('x') end)
core.register_service('fails', 'http', function(a) error('boom') end)
core.register_service('breaks', 'http', function(a) a:set_status(200) a:start_response() a:send('x') error('boom2') end)
core.register_service('body', 'http', function(a)
  local one, two, five, rest, none = a:getline(), a:getline(), a:receive(5), a:receive(), a:receive()
  local body = string.format('[%s][%s][%s][%s][%s]', one, two, five, rest, none)
  a:set_status(200)
  a:add_header('content-length', #body)
  a:start_response()
  a:send(body)
end)
core.register_service('ignore', 'http', function(a)
  a:set_status(200)
  a:add_header('content-length', 2)
  a:start_response()
  a:send('ok')
end)
core.register_service('less', 'http', function(a)
  a:set_status(200)
  a:add_header('content-length', 5)
  a:start_response()
  a:send('ok')
end)
core.register_service('sleeps', 'http', function(a)
  core.msleep(5)
  a:set_status(200)
  a:start_response()
  a:send('a')
  core.msleep(5)
  a:send('b')
end)
core.register_service('spins', 'http', function(a) while true do end end)
core.register_service('vars', 'http', function(a)
  a:set_var('txn.x', 'v')
  a:set_status(200)
  a:start_response()
  a:send(a:get_var('txn.x') .. tostring(a:get_var('req.before')))
end)
core.register_service('echo', 'tcp', function(a)
  local line = a:getline()
  a:send('got ' .. tostring(line))
  a:send('[' .. tostring(a:receive(3)) .. ']')
end)
core.register_service('tfails', 'tcp', function(a) a:send('x') error('tboom') end)
core.register_fetches('nothing', function(txn) return nil end)
core.register_fetches('none', function(txn) end)
core.register_fetches('table', function(txn) return {} end)
core.register_fetches('half', function(txn) return 1.5 end)
core.register_fetches('whole', function(txn) return 2.0 end)
core.register_fetches('two', function(txn) return 1, 'b' end)
core.register_fetches('yes', function(txn) return true end)
core.register_fetches('fails', function(txn) error('fboom') end)
core.register_fetches('done', function(txn) core.done() return 1 end)
core.register_fetches('args', function(txn, ...)
  local all = { ... }
  local text = tostring(select('#', ...))
  for i = 1, #all do text = text .. '|' .. all[i] end
  return text
end)
core.register_fetches('sets', function(txn) txn:set_var('txn.q', 'zz') return txn.sf:method() end)
local function body(txn) return txn.sf:req_body_len() .. ' ' .. txn.sf:req_body_size() .. ' ' .. txn.sf:req_body() end
core.register_fetches('body', body)
core.register_action('body', { 'http-req' }, function(txn) txn:set_var('txn.body', body(txn)) end)
core.register_converters('shown', function(value, ...) return type(value) .. value .. select('#', ...) .. tostring((...) or 'no') end)
core.register_converters('fails', function(value) error('cboom') end)
"#;

const CONFIGURATION: &str = r#"global
    nbthread 1
    log stdout format raw local0
    lua-load @SCRIPT@
    tune.lua.service-timeout 2s
defaults
    mode http
    log global
    option httplog
    timeout client 60s
    timeout server 60s
    timeout connect 60s
frontend front
    bind "@HTTP@"
    http-request set-var(req.before) str(before)
    http-response set-header X-Res yes
    http-request use-service lua.hello if { path /hello }
    http-request use-service lua.chunk if { path /chunk }
    http-request use-service lua.silent if { path /silent }
    http-request use-service lua.early if { path /early }
    http-request use-service lua.fails if { path /fails }
    http-request use-service lua.breaks if { path /breaks }
    http-request use-service lua.body if { path /body }
    http-request use-service lua.ignore if { path /ignore }
    http-request use-service lua.less if { path /less }
    http-request use-service lua.sleeps if { path /sleeps }
    http-request use-service lua.spins if { path /spins }
    http-request use-service lua.vars if { path /vars }
    http-request return content-type text/plain lf-string "%[lua.nothing] %[lua.none] %[lua.table] %[lua.half] %[lua.whole] %[lua.two] %[lua.fails] %[lua.args] %[lua.args(a,b)] %[lua.args(a,,c)] %[lua.args()] %[lua.yes] %[lua.sets] %[var(txn.q)] %[lua.done]\n" if { path /fetches }
    http-request return content-type text/plain lf-string "%[int(5),lua.shown] %[src,lua.shown(1,x)] %[bool(true),lua.shown] %[str(a),lua.fails] %[str(a),lua.shown,upper]\n" if { path /converters }
    http-request return content-type text/plain lf-string "%[lua.body]\n" if { path /body-of-fetch }
    http-request lua.body if { path /body-of-action }
    http-request return content-type text/plain lf-string "%[var(txn.body)]\n" if { path /body-of-action }
    http-request return status 201 if { path /found } { lua.nothing -m found } !{ lua.none -m found }
    http-request return status 202 if { path /equal } { lua.two b }
    default_backend back
backend back
    http-request use-service lua.hello if { path /behind }
listen talk
    mode tcp
    option tcplog
    bind "@TCP@"
    tcp-request content use-service lua.echo
listen broken
    mode tcp
    option tcplog
    bind "@BROKEN@"
    tcp-request content use-service lua.tfails
"#;

/// Returns what clients send, each with the number of one of the three sockets.
fn conversations() -> Vec<(usize, String)> {
    let paths =
        "hello?a=b chunk silent early fails breaks less sleeps spins vars behind fetches converters found equal";
    let get = |path: &str| {
        (0, format!("GET /{path} HTTP/1.1\r\nHost: h\r\nX-Up: a\r\nX-Up: b, c\r\nConnection: close\r\n\r\n"))
    };
    let mut all: Vec<(usize, String)> = paths.split(' ').map(get).collect();
    let last = "GET /chunk HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    all.extend(
        [
            format!("HEAD /hello HTTP/1.1\r\nHost: h\r\n\r\n{}", last.replace("GET", "HEAD")),
            "GET /chunk HTTP/1.0\r\n\r\n".to_owned(),
            "GET /hello HTTP/1.0\r\n\r\n".to_owned(),
            format!("POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 22\r\n\r\nline1\nline2\nabcdefghij{last}"),
            format!(
                "POST /body HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
                 8\r\nline1\nli\r\nA\r\nne2\nabcdef\r\n0\r\n\r\n{last}"
            ),
            format!("POST /ignore HTTP/1.1\r\nHost: h\r\nContent-Length: 22\r\n\r\nline1\nline2\nabcdefghij{last}"),
            "POST /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: close\r\n\r\n12345".to_owned(),
            // Bytes of the body that arrive with the head are visible without a rule that waits for them.
            "POST /body-of-fetch HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: close\r\n\r\na=b&c".to_owned(),
            "POST /body-of-action HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: close\r\n\r\na=b&c"
                .to_owned(),
            format!(
                "POST /body-of-action HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
                 3\r\na=b\r\n2\r\n&c\r\n0\r\n\r\n{last}"
            ),
        ]
        .map(|text| (0, text)),
    );
    all.extend([(1, "line one\nabcdef".to_owned()), (1, "short".to_owned()), (2, "zz".to_owned())]);
    all
}

/// Holds all conversations; returns responses and log lines, with everything masked that differs from run to run.
fn transcript<P>(
    start: impl Fn(&str, &[&Listening]) -> P,
    program: impl Fn(&P) -> &sluicegate_testkit::Program,
) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script.lua");
    std::fs::write(&script, SCRIPT).unwrap();
    let sockets = [Listening::new(), Listening::new(), Listening::new()];
    // A service that reads nothing must not end before a slow client has sent its data.
    sockets.iter().for_each(|socket| crate::robust::accept_with_data(&socket.listener));
    let mut text = CONFIGURATION.replace("@SCRIPT@", script.to_str().unwrap());
    for (name, socket) in ["@HTTP@", "@TCP@", "@BROKEN@"].iter().zip(&sockets) {
        text = text.replace(name, &socket.word());
    }
    let running = start(&text, &sockets.each_ref());
    let program = program(&running);
    let mut shown = Vec::new();
    for (socket, words) in conversations() {
        let before = lines(program).len();
        let mut stream = TcpStream::connect(sockets[socket].address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(words.as_bytes()).unwrap();
        if socket > 0 {
            // A service that has failed already has closed both directions.
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
        let mut answer = Vec::new();
        // A socket that is closed before everything was read sends a reset.
        let ended = stream.read_to_end(&mut answer);
        assert!(
            ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset),
            "{words:?}"
        );
        let answer = String::from_utf8_lossy(&answer).to_lowercase();
        let requests = if socket > 0 { 1 } else { words.matches(" HTTP/1.").count() };
        let logged = wait_for("the line", || {
            let lines = lines(program);
            let ended = lines[before..].iter().filter(|line| line.starts_with("ends ")).count();
            (ended == requests).then(|| lines[before..].join("\n"))
        });
        shown.push(format!("{words:?}\n{answer}\n{}", logged.replace(script.to_str().unwrap(), "SCRIPT")));
    }
    shown
}

/// Log lines: those of streams without what differs from run to run, and those of scripts.
fn lines(program: &sluicegate_testkit::Program) -> Vec<String> {
    let output = program.output();
    let complete = output.rfind('\n').map_or("", |end| &output[..end]);
    let masked = |line: &str| {
        if line.starts_with("Lua ") {
            return Some(line.to_owned());
        }
        let (_, rest) = line.split_once("] ").filter(|_| line.starts_with("127.0.0.1:"))?;
        let mut words: Vec<String> = rest.split(' ').map(str::to_owned).collect();
        let times = words.get_mut(2)?;
        *times = times.split('/').map(|time| if time == "-1" { "-1" } else { "n" }).collect::<Vec<_>>().join("/");
        Some(format!("ends {}", words.join(" ")))
    };
    complete.lines().filter_map(masked).collect()
}

#[test]
fn scripts_answer_and_are_logged_as_under_haproxy() {
    let theirs = transcript(Haproxy::start, |haproxy| &haproxy.program);
    let ours = transcript(|text, sockets| Sluicegate::start(BINARY, text, sockets), |gate| &gate.program);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        // A HEAD to a service without a length: 3.2 announces no chunks, as `lua_replies` says.
        let theirs = match theirs.starts_with("\"HEAD ") {
            true => theirs.replace("transfer-encoding: chunked\r\n", ""),
            false => theirs.clone(),
        };
        assert_eq!(ours, &theirs);
    }
    assert_eq!(ours.len(), conversations().len());
}

/// A fetch that waits, as scripts of HAProxy can't: it chooses the backend by Redis's reply.
#[test]
fn use_backend_asks_redis_in_a_fetch() {
    let redis = RedisServer::start(&[]);
    Client::connect(&redis.address()).ask(&["SET", "a.example", "two"]);
    let (host, port) = redis.address().rsplit_once(':').map(|(h, p)| (h.to_owned(), p.to_owned())).unwrap();
    let ways = [
        // redis-lua over core.tcp, redis-lua by host and port, and the store inside: three ways to ask, one rule.
        format!(
            "local t = core.tcp() t:settimeout(5) assert(t:connect('{host}', {port})) local c = require('redis').connect({{socket = t}}) return c:get(h)"
        ),
        format!("local c = require('redis').connect('localhost', {port}) local v = c:get(h) c:quit() return v"),
        "return core.redis('main'):get(h)".to_owned(),
    ];
    for (keyword, workers) in [("lua-load", 1), ("lua-load", 2), ("lua-load", 4), ("lua-load-per-thread", 2)] {
        for way in &ways {
            let directory = tempfile::tempdir().unwrap();
            let script = format!(
                "core.register_fetches('pick', function(txn) local h = txn.sf:req_hdr('host') {way} end)\n\
                 core.register_converters('asked', function(h) {way} end)\n\
                 core.register_action('fill', {{'http-req'}}, function(txn) core.redis('main'):set('a.example', 'two') end)"
            );
            std::fs::write(directory.path().join("pick.lua"), script).unwrap();
            let gate = Listening::new();
            let text = format!(
                "global\n    nbthread {workers}\n    lua-prepend-path /usr/share/lua/5.1/?.lua\n    {keyword} @DIR@/pick.lua\n\
                 store main\n\
                 defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
                 frontend front\n    bind \"{}\"\n    http-request lua.fill\n    \
                 use_backend %[lua.pick] if {{ req.hdr(host),lua.asked -m found }} {{ lua.pick two }}\n    default_backend one\n\
                 backend one\n    http-request return status 401\n\
                 backend two\n    http-request return status 402\n",
                gate.word()
            );
            let server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
            let mut client = Client::connect(&gate.address());
            for (host, status) in [("a.example", 402), ("b.example", 401), ("a.example", 402)] {
                client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
                let response = client.read_response();
                let at = format!("{keyword}, {workers} workers, {way}: {}", server.program.output());
                assert_eq!(response.status, status, "{host}, {at}");
            }
        }
    }
}

#[test]
fn commands_of_scripts_answer_on_the_stats_socket() {
    for keyword in ["lua-load", "lua-load-per-thread"] {
        let directory = tempfile::tempdir().unwrap();
        let script = "core.register_cli({'show', 'weather'}, 'show weather : forecast', function(applet, ...)
                applet:send('words: ' .. table.concat({...}, ' ') .. '\\n')
                core.msleep(1)
                for name, backend in pairs(core.backends) do
                  for server, object in pairs(backend.servers) do
                    applet:send(name .. '/' .. server .. ' ' .. object:get_addr() .. ' ' .. object:get_stats().status .. '\\n')
                  end
                end
                applet:send(('x'):rep(100000) .. '\\n')
            end)
            core.register_cli({'break'}, '', function(applet) applet:send('so far\\n') error('no more') end)";
        std::fs::write(directory.path().join("cli.lua"), script).unwrap();
        let gate = Listening::new();
        let text = format!(
            "global\n    nbthread 2\n    stats socket @DIR@/stats\n    {keyword} @DIR@/cli.lua\n\
             defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
             listen l\n    bind \"{}\"\n    server s 127.0.0.1:9\n",
            gate.word()
        );
        let server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
        let stats = server.directory().join("stats");
        assert!(Sluicegate::stats(&stats, "help show").contains("\n  show weather : forecast\n"), "{keyword}");
        let answer = Sluicegate::stats(&stats, "show weather now");
        let expected = format!("words: show weather now\nl/s 127.0.0.1:9 no check\n{}\n\n", "x".repeat(100_000));
        assert!(answer == expected, "{keyword}: {}", &answer[..answer.len().min(200)]);
        assert_eq!(Sluicegate::stats(&stats, "break"), "so far\n\n");
        wait_for("the error", || server.program.output().contains("Lua cli '<lua.cli.break>'").then_some(()));
    }
}
