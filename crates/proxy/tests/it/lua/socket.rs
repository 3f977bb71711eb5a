//! `core.tcp`: against a peer that the test drives, byte by byte, and against redis-server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use sluicegate_testkit::{RedisServer, free_port};

use super::fixture::{Scripts, bench, unlimited};

/// A peer that serves its connections one after another with `serve`.
fn peer(serve: impl Fn(TcpStream) + Send + 'static) -> u16 {
    let listener = sluicegate_testkit::lasting_listener();
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            serve(stream.expect("accepted"));
        }
    });
    port
}

/// Runs a script's body with `s`, a socket connected to `port`, and gives what it passed to `result`.
fn with_socket(port: u16, body: &str) -> String {
    let code = format!(
        "core.register_action('a', {{'http-req'}}, function(txn)
           local function result(...)
             local t = table.pack(...)
             for i = 1, t.n do t[i] = tostring(t[i]) end
             txn:set_var('txn.result', table.concat(t, ' '))
           end
           local s = core.tcp()
           local connected, why = s:connect('127.0.0.1', {port})
           {body}
         end)"
    );
    let redis = "/usr/share/lua/5.1/?.lua";
    let scripts = Scripts::new().with(&code, false).path(redis).tune(unlimited);
    bench(scripts, 1, |bench| Box::pin(async move { bench.result("a").await }))
}

/// What `body` gives against a peer that sends `bytes` (in the pieces given) and closes.
#[track_caller]
fn check(pieces: &[&[u8]], body: &str, expected: &str) {
    let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
    let port = peer(move |mut stream| {
        stream.set_nodelay(true).expect("set");
        for piece in &pieces {
            // The script may have closed already.
            let _ = stream.write_all(piece);
        }
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert_eq!(with_socket(port, body), expected, "{body}");
}

#[test]
fn receive_patterns() {
    check(&[b"one\r\ntwo\n"], "result(connected, s:receive(), s:receive('*l'))", "1 one two");
    check(
        &[b"on", b"e\r", b"\ntwo"],
        "result(s:receive(), s:receive(), s:receive())",
        "one two nil connection closed.",
    );
    check(
        &[b"abcdef"],
        "result(s:receive(2), s:receive('3'), s:receive(0), s:receive(9), s:receive(1))",
        "ab cde  f nil connection closed.",
    );
    check(&[b"a\r\nb"], "result(#s:receive('*a'), s:receive('*a'))", "4 nil connection closed.");
    check(&[b"line\n"], "result(s:receive('*l', 'prefix-'))", "prefix-line");
    check(&[b""], "result(s:receive())", "nil connection closed.");
    check(&[], "result(pcall(function() s:receive('*n') end))", "false Unsupported pattern.");
}

#[test]
fn big_values_and_long_lines() {
    static BIG: [u8; 300_000] = [b'x'; 300_000];
    check(
        &[&BIG, b"\r\n+OK\r\n"],
        "local v = s:receive(300002) result(#v, v:sub(-2) == '\\r\\n', s:receive())",
        "300002 true +OK",
    );
    // A line is kept up to the buffer's size; what is there is given then.
    check(&[&BIG, b"\n"], "local l = s:receive() result(#l >= 16384, #l < 300000)", "true true");
}

#[test]
fn sends() {
    let port = peer(|mut stream| {
        let mut all = Vec::new();
        BufReader::new(&stream).read_until(b'!', &mut all).expect("reads");
        let _ = stream.write_all(format!("{}\n", all.len() - 1).as_bytes());
    });
    assert_eq!(
        with_socket(port, "result(s:send('abc'), s:send('abcdef', 2, 4), s:send(12), s:send('!'), s:receive())"),
        "3 3 2 1 8"
    );
    // More than the kernel takes at once.
    let body = "result(s:send(('x'):rep(8 << 20)), s:send('!'), s:receive())";
    assert_eq!(with_socket(port, body), format!("{0} 1 {0}", 8 << 20));
}

#[test]
fn what_is_dead_says_so_in_haproxy_s_words() {
    let unused = free_port();
    assert_eq!(with_socket(unused, "result(connected, why)"), "nil Can't connect");
    let port = peer(drop);
    assert_eq!(with_socket(port, "result(s:receive())"), "nil connection closed.");
    assert_eq!(
        with_socket(port, "s:close() s:close() result(s:receive(), s:send('x'), s:getpeername())"),
        "nil -1 nil"
    );
    assert_eq!(
        with_socket(port, "result(pcall(s.connect, s, 'a b', 1))"),
        "false connect: cannot parse destination address 'a b:'"
    );
    assert_eq!(
        with_socket(port, "result(pcall(function() s:connect('127.0.0.1') end))"),
        "false connect: port missing"
    );
    assert_eq!(with_socket(port, "result(pcall(function() s:receive(-1) end))"), "false Unsupported size.");
    let refused = format!("result(core.tcp():connect_ssl('127.0.0.1', {unused}))");
    assert_eq!(with_socket(port, &refused), "nil Can't connect");
    assert_eq!(
        with_socket(port, "result(pcall(s.settimeout, s, -1))"),
        "false settimeout: cannot set negatives values"
    );
    assert_eq!(
        with_socket(port, "result(pcall(function() s.send({}, 'x') end))"),
        "false bad argument #1 to 'send' (socket expected)"
    );
}

#[test]
fn a_timeout_gives_what_is_there_and_ends_the_connection() {
    let port = peer(|mut stream| {
        let _ = stream.write_all(b"partial");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    // What came with the first byte is there.
    let body = "local first = s:receive(1) s:settimeout(0.05) result(first, s:receive(), s:receive())";
    assert_eq!(with_socket(port, body), "p artial nil connection closed.");
    assert_eq!(with_socket(port, "result(s:settimeout(1, 't'), s:setoption('keepalive', true))"), "1");
}

#[test]
fn names_shutdown_and_addresses() {
    let port = peer(|mut stream| {
        let mut all = String::new();
        let _ = stream.read_to_string(&mut all);
        let _ = stream.write_all(format!("{all}!\n").as_bytes());
    });
    let body = "s:send('hello') result(s:shutdown('send'), s:receive())";
    assert_eq!(with_socket(port, body), "1 hello!");
    let body =
        format!("local t = core.tcp() result(t:connect('localhost', {port}), t:getpeername(), s:getsockname() ~= nil)");
    assert_eq!(with_socket(port, &body), format!("1 127.0.0.1:{port} true"));
    let body = format!("local t = core.tcp() result(t:connect('127.0.0.1:{port}'), t:getpeername())");
    assert_eq!(with_socket(port, &body), format!("1 127.0.0.1:{port}"));
}

#[test]
fn unix_sockets() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("peer.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.expect("accepted").write_all(b"here\n");
        }
    });
    let port = peer(drop);
    for form in [format!("{}", path.display()), format!("unix@{}", path.display())] {
        let body = format!("local t = core.tcp() result(t:connect('{form}'), t:receive())");
        assert_eq!(with_socket(port, &body), "1 here");
    }
}

#[test]
fn abstract_sockets_and_inherited_descriptors() {
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    // As HAProxy's, filled up with zeros.
    let name = format!("sluicegate-lua-{}", std::process::id());
    let mut padded = [0; 107];
    padded[..name.len()].copy_from_slice(name.as_bytes());
    let address = SocketAddr::from_abstract_name(padded).expect("it fits");
    let listener = UnixListener::bind_addr(&address).expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.expect("accepted").write_all(b"abstract\n");
        }
    });
    let port = peer(drop);
    let body = format!("local t = core.tcp() result(t:connect('abns@{name}'), t:receive())");
    assert_eq!(with_socket(port, &body), "1 abstract");
    let body = "local t = core.tcp() result(t:connect('abns@sluicegate-nobody'))";
    assert_eq!(with_socket(port, body), "nil Can't connect");
    let (mut other, inherited) = UnixStream::pair().expect("a pair");
    let inherited = OwnedFd::from(inherited);
    other.write_all(b"inherited\n").expect("sent");
    let body = format!(
        "local t = core.tcp() result(t:connect('fd@{0}'), t:receive(), t:send('back\\n'), t:shutdown('send'))",
        inherited.as_raw_fd()
    );
    assert_eq!(with_socket(port, &body), "1 inherited 5 1");
    let mut back = String::new();
    drop(inherited);
    other.read_to_string(&mut back).expect("its end");
    assert_eq!(back, "back\n");
    let body = "local t = core.tcp() result(t:connect('fd@9999'))";
    assert_eq!(with_socket(port, body), "nil Can't connect");
}

#[test]
fn a_socket_waits_for_as_long_as_its_script_says() {
    // Both stay silent; the one with a time limit gives up first, the other is ended by its close.
    let port = peer(|mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let body = format!(
        "local patient, order = core.tcp(), {{}}
        patient:connect('127.0.0.1', {port})
        core.register_task(function() patient:receive() order[#order + 1] = 'patient' end)
        core.yield()
        s:settimeout(0.02) s:receive() order[#order + 1] = 'limited'
        patient:close() core.msleep(1) core.yield()
        while #order < 2 do core.msleep(1) end
        result(order[1], order[2])"
    );
    // One connection at a time is what the peer serves, so the first one is closed by its timeout.
    assert_eq!(with_socket(port, &body), "limited patient");
}

#[test]
fn io_inside_the_script_s_own_coroutines_and_under_pcall() {
    let lines: &[&[u8]] = &[b"1\n2\n3\n"];
    check(
        lines,
        "local gen = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(s:receive()) end end) result(gen(), gen(), gen())",
        "1 2 3",
    );
    check(lines, "result(pcall(function() return s:receive() .. s:receive() end))", "true 12");
}

#[test]
fn another_coroutine_s_close_wakes_the_reader() {
    let port = peer(|mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let body = "core.register_task(function() core.msleep(5) s:close() end) result(s:receive())";
    assert_eq!(with_socket(port, body), "nil connection closed.");
}

#[test]
fn redis_lua_works_whole() {
    let redis = RedisServer::start(&[]);
    let port = redis.address().rsplit_once(':').expect("a port").1.parse().expect("a number");
    let with_client = |body: &str| {
        with_socket(port, &format!("local client = require('redis').connect({{socket = s}}) client:flushdb() {body}"))
    };
    assert_eq!(
        with_client("result(client:set('k', 'v'), client:get('k'), client:incrby('n', 3), client:get('none'))"),
        "true v 3 nil"
    );
    assert_eq!(with_client("client:set('big', ('x'):rep(200000)) result(#client:get('big'))"), "200000");
    assert_eq!(
        with_client("client:hmset('h', {a = 1}) result(client:hmget('h', 'a', 'b')[1], client:hgetall('h').a)"),
        "1 1"
    );
    assert_eq!(
        with_client("local r = client:transaction(function(t) t:incr('a') t:incr('a') end) result(#r, r[1], r[2])"),
        "2 1 2"
    );
    // redis-lua's pipelines hold commands with a parser of replies before those without, since Lua 5.3.
    assert_eq!(
        with_client(
            "client:set('k', 1)
            local r = client:pipeline(function(p) p:exists('k') p:exists('none') p:incr('k') end) result(#r, r[1], r[2], r[3])"
        ),
        "3 true false 2"
    );
    let inside = "local co = coroutine.wrap(function() client:set('c', 1) coroutine.yield(client:incr('c')) return client:get('c') end)
        result(co(), co())";
    assert_eq!(with_client(inside), "2 2");
    let refused = with_client("result(pcall(client.incrby, client, 'k', 'x'))");
    assert!(refused.starts_with("false") && refused.contains("redis error: ERR value is not an integer"), "{refused}");
    let quit = with_client("result(client:quit(), pcall(client.ping, client))");
    assert!(quit.starts_with("true false"), "{quit}");
    drop(redis);
}

/// What `body` gives with LuaSocket's module as `socket`, against a peer that sends pieces and closes.
fn check_module(pieces: &'static [&'static [u8]], body: &str, expected: &str) {
    let port = peer(move |mut stream| {
        for piece in pieces {
            stream.write_all(piece).expect("sent");
        }
    });
    super::fixture::check(&format!("local socket = require('socket') local port = {port} {body}"), expected);
}

#[test]
fn the_module_socket_answers_as_luasocket_does() {
    check_module(&[], "local s = socket.connect('127.0.0.1', port) result(s:receive())", "nil closed ");
    check_module(
        &[b"one\r\ntwo"],
        "local s = socket.tcp() result(s:connect('localhost', port), s:receive('*l'), s:receive())",
        "1 one nil closed two",
    );
    check_module(
        &[b"abcdef"],
        "local s = socket.connect('127.0.0.1', port) result(s:receive(2), s:receive('*a'))",
        "ab cdef",
    );
    check_module(
        &[b"x"],
        "local s = socket.connect('127.0.0.1', port)
        local ip, at = s:getpeername()
        result(s:setoption('tcp-nodelay', true), s:settimeout(nil), ip, at == port, s:send('abc', 2), s:shutdown('send'), s:close())",
        "1 1 127.0.0.1 true 3 1 1",
    );
    check_module(&[], "result(socket.connect('127.0.0.1', 1))", "nil connection refused");
    check_module(
        &[],
        "result(socket.dns.toip('127.0.0.1') == '127.0.0.1', type(socket.gettime()), socket.sleep(0.001),
            select(2, pcall(function() return socket.udp end)):gsub('^.-: ', ''))",
        "true number nil not available in this host: socket.udp 1",
    );
    check_module(&[], "local f = socket.protect(function() return socket.try(nil, 'why') end) result(f())", "nil why");
}

#[test]
fn a_timeout_of_the_module_socket_leaves_the_connection_open() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let port = peer(move |mut stream| {
        let mut byte = [0];
        stream.write_all(b"par").expect("sent");
        stream.read_exact(&mut byte).expect("the script has timed out");
        stream.write_all(b"t\n").expect("sent");
        let _ = wait.recv();
    });
    let body = format!(
        "local s = require('socket').connect('127.0.0.1', {port})
        -- What came with the first byte is there.
        s:receive(1) s:settimeout(0.05, 't')
        local line, why, part = s:receive()
        s:settimeout(10) s:send('!')
        result(line, why, part, s:receive('*l', part))"
    );
    super::fixture::check(&body, "nil timeout ar art");
    drop(go);
}

/// A connection on which an answer may still be on its way, or which can't be written to, is for nobody else.
#[test]
fn only_connections_in_order_are_kept() {
    let port = peer(|mut stream| {
        let _ = stream.write_all(b"+OK\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let again = format!(
        "local line, kept = s:receive(), s:setkeepalive()
        local t = core.tcp()
        t:connect('127.0.0.1', {port})
        result(line, kept, s:getreusedtimes(), t:getreusedtimes())"
    );
    assert_eq!(with_socket(port, &again), "+OK 1 nil 1");
    let shut = "s:receive() s:shutdown('send') result(s:setkeepalive())";
    assert_eq!(with_socket(port, shut), "nil closed");
    // More than the kernel takes for a peer that reads nothing.
    let (held, hold) = std::sync::mpsc::channel::<()>();
    let stuck = peer(move |stream| {
        let _ = hold.recv();
        drop(stream);
    });
    let sent = "s:settimeout(0.01) local sent = s:send(('x'):rep(16 << 20)) result(sent < 16 << 20, s:setkeepalive())";
    assert_eq!(with_socket(stuck, sent), "true nil closed");
    let module = |port: u16, body: &str| {
        super::fixture::check(
            &format!("local s = require('socket').connect('127.0.0.1', {port}) {body}"),
            "timeout nil closed nil",
        );
    };
    let late = "s:receive() s:settimeout(0.01)
        local _, why = s:receive()
        local kept, problem = s:setkeepalive()
        result(why, kept, problem, s:getpeername())";
    module(port, late);
    let sent = "s:settimeout(0.01) local _, why = s:send(('x'):rep(16 << 20))
        local kept, problem = s:setkeepalive()
        result(why, kept, problem, s:getpeername())";
    drop(held);
    let (held, hold) = std::sync::mpsc::channel::<()>();
    let stuck = peer(move |stream| {
        let _ = hold.recv();
        drop(stream);
    });
    module(stuck, sent);
    drop(held);
    // What was late has come.
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let slow = peer(move |mut stream| {
        let mut byte = [0];
        let _ = stream.read_exact(&mut byte);
        let _ = stream.write_all(b"late\n");
        let _ = wait.recv();
    });
    let body = format!(
        "local s = require('socket').connect('127.0.0.1', {slow}) s:settimeout(0.01)
        local _, why = s:receive()
        s:settimeout(10) s:send('!')
        result(why, s:receive(), s:setkeepalive())"
    );
    super::fixture::check(&body, "timeout late 1");
    drop(go);
}

/// Whatever calls a socket's finalizer, and whenever: the socket is empty and never gone.
#[test]
fn a_finalizer_called_by_hand_ends_a_socket() {
    let port = peer(|mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let body = format!(
        "local finalize = getmetatable(s).__gc
        local options = setmetatable({{}}, {{__index = function() finalize(s) end}})
        local connected, why = pcall(s.connect, s, '127.0.0.1', {port}, options)
        result(connected, why:match('socket expected'), (pcall(s.receive, s)), (pcall(finalize, s)))"
    );
    assert_eq!(with_socket(port, &body), "false socket expected false false");
}

/// A socket whose reader was somewhere in a line when another script connected it anew.
#[test]
fn a_new_connection_begins_with_a_new_line() {
    let port = peer(|mut stream| {
        let _ = stream.write_all(b"a long piece of a line");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let other = peer(|mut stream| {
        let _ = stream.write_all(b"x\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let body = format!(
        "local waits = false
        -- What came with the first byte is in the buffer, and the task looks at it before it waits.
        s:receive(1)
        core.register_task(function() waits = true s:receive('*l') end)
        while not waits do core.msleep(1) end
        s:close()
        local connected = s:connect('127.0.0.1', {other})
        result(connected, pcall(s.receive, s))"
    );
    assert_eq!(with_socket(port, &body), "1 true x");
}

#[test]
fn a_name_without_an_address_is_haproxy_s_error() {
    let connect = |arguments: &str| format!("return core.tcp():connect({arguments})");
    let cases =
        ["'no.such.host.invalid', 80", "'a b', 1", "'no.such.host.invalid:80'", "'256.1.1.1', '80'", "'x:', 80"]
            .map(connect);
    super::compared::compare("", &cases.each_ref().map(String::as_str));
}
