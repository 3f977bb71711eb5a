//! Hostile scripts in the proxy: whatever they do, other requests of the same worker are served meanwhile, each is
//! ended within its budget, and the process ends when it is told to. Blocking I/O, which nothing can interrupt, is
//! detected.

use std::ffi::CString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use sluicegate_testkit::{Client, Listening, Sluicegate, wait_for};

use super::PATIENT;
use crate::BINARY;

/// Actions that run for as long as they are allowed to. Those behind `~` are refused, or end, at once.
const HOSTILE: &str = r"
while true do end
string.find(string.rep('a', 30000), '.-.-.-b')
string.match(string.rep('a', 30000), '(.-)(.-)(.-)b')
for _ in string.gmatch(string.rep('a', 30000), '.-.-.-b') do end
string.gsub(string.rep('a', 30000), '.-.-.-b', '')
string.gsub(string.rep('a', 30000), '.*.*.*b', function() end)
string.find(string.rep('a', 40), string.rep('a?', 40) .. string.rep('a', 40))
string.find(string.rep('(', 200000), '%b()')
string.find(string.rep('x', 5000) .. 'y', '(x*)*%1z')
('x'):rep(1000):gsub('x', function() while true do end end)
('x'):gsub('x', setmetatable({}, {__index = function() while true do end end}))
while true do local s = ('x'):rep(20 << 20) end
while true do local s = ('x'):rep(4 << 20):upper() end
while true do local s = ('x'):rep(4 << 20):lower() end
while true do local s = ('x'):rep(4 << 20):reverse() end
while true do string.format('%s', setmetatable({}, {__tostring = function() while true do end end})) end
tostring(setmetatable({}, {__tostring = function() while true do end end}))
print(setmetatable({}, {__tostring = function() while true do end end}))
local t = {} for i = 1, 100 do t[i] = i end while true do string.pack(('i4'):rep(100), table.unpack(t)) end
while true do pcall(string.packsize, ('b'):rep(200000)) end
while true do local t = {} for i = 1, 100 do t[i] = ('x'):rep(100000) end table.concat(t) end
table.concat(setmetatable({}, {__index = function() return 'x' end, __len = function() return 1 << 60 end}))
table.concat(setmetatable({}, {__len = function() while true do end end}))
table.sort({3, 2, 1}, function() while true do end end)
local t = {} for i = 1, 300000 do t[i] = i * 7919 % 300007 end while true do table.sort(t, function(a, b) return a > b end) table.sort(t) end
table.sort({{}, {}}, function() while true do end end)
local m = {__lt = function() while true do end end} table.sort({setmetatable({}, m), setmetatable({}, m)})
local t = {} for i = 1, 200000 do t[i] = i end while true do table.insert(t, 1, 0) table.remove(t, 1) end
table.move({}, 1, math.maxinteger - 1, 2)
local t = {} for i = 1, 1000 do t[i] = i end while true do table.move(t, 1, 100000, 2) end
table.unpack(setmetatable({}, {__index = function() while true do end end}), 1, 10)
table.insert(setmetatable({}, {__len = function() while true do end end}), 1)
table.remove(setmetatable({}, {__len = function() while true do end end}))
while true do utf8.len(('x'):rep(4 << 20)) end
while true do for _ in utf8.codes(('x'):rep(100000)) do end end
while true do utf8.offset(('\x80'):rep(1 << 20), 1 << 20) end
setmetatable({}, {__gc = function() while true do end end}) collectgarbage()
local m = {__gc = true} for i = 1, 100 do setmetatable({}, m) end m.__gc = function() while true do end end collectgarbage()
while true do setmetatable({}, {__gc = function(o) setmetatable(o, getmetatable(o)) end}) end
local t = {} for i = 1, 200000 do t[i] = {} end while true do collectgarbage() end
collectgarbage('generational') local t = {} while true do for i = 1, 50000 do t[i] = {} end end
local x <close> = setmetatable({}, {__close = function() while true do end end})
local x <close> = setmetatable({}, {__close = function() while true do end end}) while true do end
coroutine.wrap(function() while true do end end)()
local function f() while true do local c = coroutine.wrap(function() coroutine.yield() end) c() c() end end f()
local co = coroutine.create(function() local x <close> = setmetatable({}, {__close = function() while true do end end}) coroutine.yield() end) coroutine.resume(co) coroutine.close(co)
while true do pcall(function() while true do end end) end
while true do pcall(error) end
xpcall(error, function() while true do end end)
xpcall(string.find, function() while true do end end, string.rep('a', 30000), '.-.-.-b')
while true do load('local x = 1') end
load(function() while true do end end)
while true do load(('x = 1 '):rep(50000)) end
local s = 'x' while true do s = s .. s if #s > 1 << 20 then s = 'x' end end
return 1 + setmetatable({}, {__add = function() while true do end end})
return '1' + setmetatable({}, {__add = function() while true do end end})
local t = setmetatable({}, {__index = function(t, k) return t[k + 1] end}) while true do pcall(function() return t[1] end) end
while true do debug.sethook() end
while true do core.log(core.debug, 'x') end
goto again ::again:: goto again
for i = 1, math.huge do end
repeat until false
~string.rep('x', 1 << 40)
~('x'):rep(1e9)
~string.format('%99.99f', 1e308)
~string.char(table.unpack({}, 1, 1e7))
~local function f() return 1 + f() end f()
~local function f() return f() .. 'x' end f()
~return ('x'):rep(300):find(('x?'):rep(300))
~return load('return ' .. ('('):rep(100000))
~string.pack('!17i4', 1)
~error(setmetatable({}, {__tostring = function() error('no') end}))
~os.execute('sleep 100')
~io.popen('sleep 100')
";

/// One proxy with an action for each script, named by its number.
fn hostile(load: &str, gate: &Listening) -> Sluicegate {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut script, mut rules) = (String::new(), String::new());
    for (number, body) in bodies().enumerate() {
        let body = body.trim_start_matches('~');
        let _ = writeln!(script, "core.register_action('a{number}', {{'http-req'}}, function(txn) {body} end)");
        let _ = writeln!(rules, "    http-request lua.a{number} if {{ path /{number} }}");
    }
    std::fs::write(directory.path().join("script.lua"), script).expect("writable");
    let text = format!(
        "global\n    nbthread 1\n    stats socket @DIR@/stats level admin\n    tune.lua.session-timeout 60ms\n    \
         {load} @DIR@/script.lua\n{PATIENT}listen l\n    bind {}\n{rules}    http-request return status 200\n",
        gate.word()
    );
    Sluicegate::start_in(BINARY, &text, &[gate], directory)
}

fn bodies() -> impl Iterator<Item = &'static str> {
    HOSTILE.lines().filter(|line| !line.is_empty())
}

/// Runs hostile scripts one after the other, and many at once: other requests are answered meanwhile.
#[test]
fn hostile_scripts_hold_nobody_back() {
    assert!(bodies().count() >= 40);
    for load in ["lua-load", "lua-load-per-thread"] {
        let gate = Listening::new();
        let mut server = hostile(load, &gate);
        let mut others = Client::connect(&gate.address());
        assert_eq!(others.get("/").status, 200);
        for (number, body) in bodies().enumerate() {
            // This side may have its turn only after the script, so a script that held nobody back is run again.
            wait_for(&format!("{load}: an answer during {body}"), || {
                let mut client = Client::connect(&gate.address());
                client.send(format!("GET /{number} HTTP/1.1\r\nHost: h\r\n\r\n"));
                client.stream().set_nonblocking(true).expect("settable");
                let mut during = 0;
                while client.stream().peek(&mut [0]).is_err() {
                    assert_eq!(others.get("/").status, 200, "{load}: {body}");
                    during += 1;
                }
                client.stream().set_nonblocking(false).expect("settable");
                assert_eq!(client.read_response().status, 200, "{load}: {body}");
                (during > 0 || body.starts_with('~')).then_some(())
            });
        }
        let mut clients: Vec<Client> = (0..20).map(|_| Client::connect(&gate.address())).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(format!("GET /{number} HTTP/1.1\r\nHost: h\r\n\r\n"));
        }
        assert_eq!(others.get("/").status, 200);
        server.program.signal(libc::SIGTERM);
        assert_eq!(server.program.wait(), -libc::SIGTERM, "{load}");
    }
}

/// Finalizers that run by themselves after a burst have a budget, too; their errors are logged.
#[test]
fn finalizers_end_where_nobody_asked_for_them() {
    let gate = Listening::new();
    let directory = tempfile::tempdir().expect("a directory");
    let script = "core.register_action('a', {'http-req'}, function(txn)
        for i = 1, 1000 do setmetatable({}, {__gc = function() while true do end end}) end end)";
    std::fs::write(directory.path().join("script.lua"), script).expect("writable");
    let text = format!(
        "global\n    nbthread 1\n    lua-load @DIR@/script.lua\n{PATIENT}listen l\n    bind {}\n    \
         http-request lua.a if {{ path /a }}\n    http-request return status 200\n",
        gate.word()
    );
    let mut server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
    let mut client = Client::connect(&gate.address());
    wait_for("a finalizer that is ended", || {
        assert_eq!(client.get("/a").status, 200);
        server.program.output().contains("Lua finalizer: [state-id 0] runtime error: execution timeout").then_some(())
    });
    assert_eq!(client.get("/").status, 200);
    server.program.signal(libc::SIGTERM);
    assert_eq!(server.program.wait(), -libc::SIGTERM);
}

/// A proxy of two workers whose action `/block` reads from a pipe that nobody writes to.
fn blocking(load: &str, global: &str, gate: &str, listening: &[&Listening]) -> Sluicegate {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = CString::new(directory.path().join("pipe").as_os_str().as_bytes()).expect("no zero");
    // SAFETY: the path ends in a zero.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    let script =
        "core.register_action('block', {'http-req'}, function(txn)\n  io.open(os.getenv('PIPE')):read('a')\nend)";
    std::fs::write(directory.path().join("block.lua"), script).expect("writable");
    let text = format!(
        "global\n    nbthread 2\n    stats socket @DIR@/stats level admin\n    setenv PIPE @DIR@/pipe\n{global}    \
         {load} @DIR@/block.lua\n{PATIENT}listen l\n    bind {gate}\n    http-request lua.block if {{ path /block }}\n    \
         http-request return status 200\n"
    );
    Sluicegate::start_in(BINARY, &text, listening, directory)
}

/// A worker that blocks in a C function is reported with the line of its script; others accept in its place on a socket
/// that they do not share with it, and signals end the process.
#[test]
fn a_stuck_worker_is_noticed_and_relieved() {
    for (load, signal) in [("lua-load", libc::SIGTERM), ("lua-load-per-thread", libc::SIGINT)] {
        let port = sluicegate_testkit::free_port();
        let address = format!("127.0.0.1:{port}");
        let mut server = blocking(load, "", &address, &[]);
        wait_for("the listener", || std::net::TcpStream::connect(&address).ok());
        let mut client = Client::connect(&address);
        client.send("GET /block HTTP/1.1\r\nHost: h\r\n\r\n");
        server.program.wait_for_output(" in the script at ");
        let output = server.program.output();
        assert!(output.contains("block.lua:2;") && output.contains("[ALERT]"), "{output}");
        // The kernel gives half of them to the socket of the worker that is stuck.
        for _ in 0..20 {
            assert_eq!(Client::connect(&address).get("/").status, 200, "{load}");
        }
        if signal == libc::SIGTERM {
            let pipe = server.directory().join("pipe");
            drop(std::fs::OpenOptions::new().write(true).open(pipe).expect("somebody reads it"));
            assert_eq!(client.read_response().status, 200, "{load}: it goes on");
            server.program.wait_for_output(" goes on after ");
            client.send("GET /block HTTP/1.1\r\nHost: h\r\n\r\n");
            // Until it is stuck again.
            wait_for("another alert", || {
                (server.program.output().matches("has stopped processing traffic for 1 second").count() > 1)
                    .then_some(())
            });
        }
        server.program.signal(signal);
        assert_eq!(server.program.wait(), -signal, "{load}");
    }
}

/// `tune.lua.watchdog-abort`: the process ends as HAProxy's does, and says why.
#[test]
fn the_watchdog_aborts_where_it_is_told_to() {
    let gate = Listening::new();
    let mut server = blocking("lua-load", "    tune.lua.watchdog-abort on\n", &gate.word(), &[&gate]);
    Client::connect(&gate.address()).send("GET /block HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(server.program.wait(), -libc::SIGABRT);
    let output = server.program.output();
    assert!(output.contains("block.lua:2; the process aborts."), "{output}");
}
