//! Fetches, converters and services under load: what waits, what may not, what is left behind.

use std::io::{Read, Write};
use std::net::TcpStream;

use sluicegate_testkit::{Client, PATIENCE, wait_for};

use super::fixture::{Scripts, check, shared};
use super::traffic::{Gate, Slow};

fn get(gate: &Gate, path: &str) -> u16 {
    Client::connect(&gate.address.to_string()).get(path).status
}

fn logged(gate: &Gate) -> Vec<String> {
    gate.lines.lock().unwrap().iter().map(|(_, text)| text.clone()).collect()
}

#[test]
fn a_fetch_may_wait_in_rules_of_requests_and_of_responses() {
    let code = "core.register_fetches('slow', function(txn, word) core.msleep(1) return word end)
        core.register_converters('later', function(text) core.yield() core.msleep(1) return text .. '!' end)";
    for per_thread in [false, true] {
        for workers in [1, 2, 4] {
            let rules = " tcp-request content reject if { lua.slow(a) b }
                http-request set-header x %[lua.slow(x),lua.later]
                http-request return status 200 hdr answer %[req.hdr(x)] if { lua.slow(on),lua.later on! } { path / }
                http-response set-header y %[lua.slow(y)]
                use_backend %[lua.slow(gate)]\n";
            let gate = Gate::start(workers, Scripts::new().with(code, per_thread), rules);
            let response = Client::connect(&gate.address.to_string()).get("/");
            assert_eq!(response.header("answer"), Some("x!"), "{workers} {per_thread} {:?}", logged(&gate));
            assert_eq!(get(&gate, "/else"), 503);
            assert_eq!(logged(&gate), Vec::<String>::new());
        }
    }
}

#[test]
fn where_nothing_may_wait_a_fetch_that_would_fails_and_the_connection_goes_on() {
    let code = "core.register_fetches('slow', function(txn) core.msleep(1) return 'x' end)
        core.register_fetches('quick', function(txn) return txn.sf:src() end)
        core.register_fetches('careful', function(txn) return select(2, pcall(core.msleep, 1)) end)";
    let rules = " tcp-request connection reject if { lua.slow -m found }
        tcp-request connection set-var(sess.quick) lua.quick
        tcp-request connection set-var(sess.careful) lua.careful
        http-request return status 200 hdr quick %[var(sess.quick)] hdr careful %[var(sess.careful)]\n";
    let gate = Gate::start(1, shared(code), rules);
    let response = Client::connect(&gate.address.to_string()).get("/");
    assert_eq!(response.header("quick"), Some("127.0.0.1"));
    assert!(response.header("careful").is_some_and(|text| text.ends_with("cannot wait here")), "{response:?}");
    let logged = logged(&gate);
    assert!(
        logged.len() == 1 && logged[0].contains("Lua sample-fetch 'slow': [state-id 0] runtime error: "),
        "{logged:?}"
    );
    assert!(logged[0].contains("cannot wait here"), "{logged:?}");
}

#[test]
fn a_fetch_and_a_service_have_budgets() {
    let code = "core.register_fetches('spins', function(txn) while true do end end)
        core.register_converters('spins', function(text) while true do end end)
        core.register_service('spins', 'http', function(a) while true do end end)";
    let scripts = shared(code).tune(|tune| {
        tune.lua_session_timeout = Some(std::time::Duration::from_millis(20));
        tune.lua_service_timeout = Some(std::time::Duration::from_millis(20));
    });
    let rules = " http-request use-service lua.spins if { path /service }
        tcp-request connection reject if { lua.spins -m found }
        http-request deny if { lua.spins -m found }
        http-request deny if { path,lua.spins -m found }
        http-request return status 200\n";
    let gate = Gate::start(1, scripts, rules);
    assert_eq!(get(&gate, "/"), 200);
    assert_eq!(get(&gate, "/service"), 500);
    for label in ["Lua sample-fetch 'spins'", "Lua converter 'spins'", "Lua applet http '<lua.spins>'"] {
        let ended = |line: &String| line.starts_with(label) && line.contains("execution timeout");
        wait_for(label, || logged(&gate).iter().any(ended).then_some(()));
    }
}

#[test]
fn a_thousand_clients_that_reset_in_a_fetch_leave_nothing_behind() {
    const AT_ONCE: usize = 50;
    for per_thread in [false, true] {
        let (slow, port) = Slow::start();
        let code = format!(
            "asked, answered = 0, 0
            core.register_fetches('ask', function(txn)
                asked = asked + 1
                local s <close> = core.tcp()
                assert(s:connect('127.0.0.1', {port}))
                s:send('x')
                local answer = s:receive()
                answered = answered + 1
                return answer
            end)
            core.register_fetches('counts', function(txn) return asked .. ' ' .. answered .. ' ' .. collectgarbage('count') // 1024 end)"
        );
        let rules = " http-request return status 200 hdr counts %[lua.counts] if { path /counts }
            http-request deny if { lua.ask -m found }\n";
        let gate = Gate::start(1, Scripts::new().with(&code, per_thread), rules);
        let mut sent = 0;
        while sent < 1000 {
            let clients: Vec<Client> = (0..AT_ONCE)
                .map(|_| {
                    let mut client = Client::connect(&gate.address.to_string());
                    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
                    client
                })
                .collect();
            sent += AT_ONCE;
            wait_for("the fetches to ask", || (slow.received() == sent).then_some(()));
            clients.into_iter().for_each(Client::reset);
            slow.answer_up_to(sent);
        }
        // Every fetch came to its own end, gave its socket back, and the state is small.
        let counts = wait_for("the fetches to end", || {
            let response = Client::connect(&gate.address.to_string()).get("/counts");
            let counts = response.header("counts").expect("counts").to_owned();
            counts.starts_with("1000 1000 ").then_some(counts)
        });
        let megabytes: f64 = counts.rsplit_once(' ').expect("three").1.parse().expect("a number");
        assert!(megabytes < 8.0, "{counts}");
        wait_for("the sockets to close", || (slow.connections() == 0).then_some(()));
        assert_eq!(logged(&gate), Vec::<String>::new());
    }
}

#[test]
fn bodies_of_any_size_pass_through_a_service_piece_by_piece() {
    const SIZE: usize = 32 << 20;
    let code = "core.register_service('count', 'http', function(a)
            local size, most = 0, 0
            while true do
                local piece = a:receive(100000)
                if piece == '' then break end
                size = size + #piece
                most = math.max(most, collectgarbage('count'))
            end
            a:set_status(200)
            a:add_header('size', size)
            a:add_header('most', most // 1024)
            a:start_response()
        end)
        core.register_service('echo', 'http', function(a)
            a:set_status(200)
            a:start_response()
            repeat
                local piece = a:receive(30000)
                a:send(piece)
            until piece == ''
        end)
        core.register_service('big', 'http', function(a)
            a:set_status(200)
            a:start_response()
            a:send(('y'):rep(5000000))
        end)";
    let rules = " http-request use-service lua.count if { path /count }
        http-request use-service lua.big if { path /big }
        http-request use-service lua.echo\n";
    let gate = Gate::start(1, shared(code), rules);
    let mut client = Client::connect(&gate.address.to_string());
    for chunked in [false, true] {
        let framing = if chunked { "Transfer-Encoding: chunked".to_owned() } else { format!("Content-Length: {SIZE}") };
        client.send(format!("POST /count HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n"));
        let piece = vec![b'z'; 1 << 16];
        for _ in 0..SIZE / piece.len() {
            if chunked {
                client.send(format!("{:x}\r\n", piece.len()));
                client.send(&piece);
                client.send("\r\n");
            } else {
                client.send(&piece);
            }
        }
        if chunked {
            client.send("0\r\n\r\n");
        }
        let response = client.read_response();
        assert_eq!(response.header("size"), Some(&*SIZE.to_string()), "chunked: {chunked}");
        let most: f64 = response.header("most").expect("it tells").parse().expect("a number");
        assert!(most < 8.0, "{most} MB");
    }
    // The same connection again: a body that comes back, while it is still being sent.
    let body: Vec<u8> = (0..3 << 20).map(|index: u32| (index % 251) as u8).collect();
    let mut stream = TcpStream::connect(gate.address).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut writer = stream.try_clone().expect("cloned");
    let sent = body.clone();
    let sending = std::thread::spawn(move || {
        let head = format!("POST /echo HTTP/1.0\r\nContent-Length: {}\r\n\r\n", sent.len());
        writer.write_all(head.as_bytes()).expect("sent");
        writer.write_all(&sent).expect("sent");
    });
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    sending.join().expect("sent");
    assert!(answer.ends_with(&body), "{} bytes came back", answer.len());
    assert_eq!(client.get("/big").body.len(), 5_000_000);
    assert_eq!(logged(&gate), Vec::<String>::new());
}

#[test]
fn a_service_whose_client_has_gone_is_told_so() {
    let code = "ended = 'running'
        core.register_service('drip', 'http', function(a)
            a:set_status(200)
            a:start_response()
            ended = 'running'
            local ok, message = pcall(function() while true do a:send('x') core.msleep(1) end end)
            ended = message:gsub('^.-: ', '')
        end)
        core.register_fetches('ended', function(txn) return ended end)";
    let rules = " http-request return status 200 hdr ended %[lua.ended] if { path /ended }
        http-request use-service lua.drip\n";
    let gate = Gate::start(1, shared(code), rules);
    for _ in 0..3 {
        let mut client = Client::connect(&gate.address.to_string());
        client.send("GET /drip HTTP/1.1\r\nHost: h\r\n\r\n");
        client.read_until(b"x");
        client.reset();
        wait_for("the script to hear of it", || {
            let response = Client::connect(&gate.address.to_string()).get("/ended");
            (response.header("ended") == Some("send: the client has gone")).then_some(())
        });
    }
}

#[test]
fn a_tcp_service_talks_until_its_script_returns() {
    let code = "core.register_service('talk', 'tcp', function(a)
            a:send('name?\\n')
            local name = a:getline():gsub('%s', '')
            a:send('hello ' .. name .. ', ' .. a.f:src():gsub('%.%d+$', '') .. '\\n')
            local got = a:try_receive()
            while not got do core.msleep(1) got = a:try_receive() end
            a:send('got ' .. got .. a:receive() .. '\\n')
        end)";
    let gate = Gate::start(2, shared(code), " mode tcp\n tcp-request content use-service lua.talk\n");
    let mut client = Client::connect(&gate.address.to_string());
    assert_eq!(client.read_line(), "name?");
    client.send("peter\n");
    assert_eq!(client.read_line(), "hello peter, 127.0.0");
    client.send("more");
    client.finish();
    assert_eq!(String::from_utf8_lossy(&client.read_to_end()), "got more\n");
    assert_eq!(logged(&gate), Vec::<String>::new());
}

#[test]
fn a_client_that_expects_to_be_asked_for_its_body_is_asked() {
    let code = "core.register_service('body', 'http', function(a)
            local body = a:receive()
            a:set_status(200)
            a:add_header('content-length', #body)
            a:start_response()
            a:send(body)
        end)";
    let gate = Gate::start(1, shared(code), " http-request use-service lua.body\n");
    let mut client = Client::connect(&gate.address.to_string());
    client.send("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    assert_eq!(client.read_line(), "HTTP/1.1 100 Continue");
    assert_eq!(client.read_line(), "");
    client.send("abc");
    assert_eq!(client.read_response().text(), "abc");
}

#[test]
fn queues_pass_values_between_coroutines() {
    check(
        "local q = core.queue()
        core.register_task(function() for i = 1, 3 do core.msleep(1) q:push(i) end end)
        local sum = q:pop_wait() + q:pop_wait() + q:pop_wait()
        result(sum, q:size(), q:pop(), pcall(q.push, q))",
        "6 0 nil false unexpected nil value in push",
    );
    check("local c = core.concat() c:add('a') c:add(1) c:add('b') result(c:dump())", "a1b");
}

#[test]
fn dates_and_addresses_are_read() {
    check(
        "result(core.http_date('Sun, 06 Nov 1994 08:49:37 GMT'), core.http_date('Sunday, 06-Nov-94 08:49:37 GMT'),
            core.http_date('Sun Nov  6 08:49:37 1994'), core.imf_date('Thu, 29 Feb 2024 00:00:00 GMT'),
            core.imf_date('Fri, 01 Mar 2024 00:00:00 GMT'), core.http_date('yesterday'), core.asctime_date('x'))",
        "784111777 784111777 784111777 1709164800 1709251200 nil nil",
    );
    check(
        "local a = core.parse_addr
        result(core.match_addr(a('127.0.0.1'), a('127.0.0.0/8')), core.match_addr(a('10.0.0.0/8'), a('127.0.0.1')),
            core.match_addr(a('::1'), a('::/0')), a('nowhere'))",
        "true false true nil",
    );
    check("txn:set_var('proc.from_lua', 5) result(core.get_var('proc.from_lua'), core.get_var('proc.unset'))", "5 nil");
    check("result(core.get_info().Name, math.type(core.get_info().Nbthread))", "HAProxy integer");
}

#[test]
fn a_state_in_use_gives_no_sample_where_nothing_may_wait() {
    // The fetch of `unique-id-format` runs while its own state is in a burst.
    let code = "core.register_fetches('pick', function(txn) return 'picked' end)
        core.register_action('ask', {'http-req'}, function(txn)
            txn:set_var('txn.id', '[' .. txn.sf:unique_id() .. ']')
        end)";
    let rules = " unique-id-format %[lua.pick]
        http-request lua.ask if { path /inside }
        http-request return status 200 hdr id %[var(txn.id)] if { path /inside }
        http-request return status 200 hdr id %[unique-id]\n";
    let gate = Gate::start(1, shared(code), rules);
    let id = |path: &str| Client::connect(&gate.address.to_string()).get(path).header("id").map(str::to_owned);
    assert_eq!(id("/inside").as_deref(), Some("[]"));
    assert_eq!(id("/").as_deref(), Some("picked"));
    let lines = logged(&gate);
    let busy = "Lua sample-fetch 'pick': no value, the state is in use (1 times).";
    assert!(lines.iter().any(|line| line.contains(busy)), "{lines:?}");
}
