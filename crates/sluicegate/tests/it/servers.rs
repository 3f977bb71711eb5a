//! `add server` and `del server`, beside Debian's haproxy, under traffic and over a reload.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate, lasting_listener, wait_for};

use crate::{BINARY, start};

fn file(gate: &Listening, place: &str) -> String {
    format!(
        "global\n stats socket {place} level admin\n nbthread 2\ndefaults\n mode http\n timeout client 60s\n timeout server \
         20s\n timeout connect 1s\n timeout queue 20s\nfrontend f\n bind {}\n default_backend t\nbackend t\n server w \
         127.0.0.1:1 disabled\nbackend ring\n balance source\n hash-type consistent\n server w 127.0.0.1:1\nbackend map\n \
         balance source\n server w 127.0.0.1:1\nbackend fixed\n balance static-rr\n server w 127.0.0.1:1\nbackend named\n \
         use-server w if TRUE\n server w 127.0.0.1:1 disabled\n server checked 127.0.0.1:1 check inter 1h disabled\n \
         server behind 127.0.0.1:1 track named/checked\n server asked 127.0.0.1:1 disabled\nbackend asking\n http-request \
         deny if {{ srv_is_up(named/asked) }}\n",
        gate.word()
    )
}

/// Both programs, by their stats sockets.
fn both() -> ([PathBuf; 2], impl Sized) {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("stats");
    let gates = [Listening::new(), Listening::new()];
    let haproxy = Haproxy::start(&file(&gates[0], &place.display().to_string()), &[&gates[0]]);
    let server = start(&file(&gates[1], "@DIR@/stats"), &[&gates[1]]);
    let own = server.directory().join("stats");
    ([place, own], (directory, gates, haproxy, server))
}

/// Name, state, weight, roles, number and address of each server.
fn servers(place: &Path, backend: &str) -> Vec<String> {
    let text = Sluicegate::stats(place, &format!("show stat {backend} 4 -1"));
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let cells = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        [1, 17, 18, 19, 20, 28, 73].map(|index| cells[index]).join(" ")
    };
    lines.map(cells).collect()
}

fn admin(place: &Path, backend: &str) -> Vec<String> {
    let text = Sluicegate::stats(place, &format!("show servers state {backend}"));
    let lines = text.lines().skip(2).filter(|line| !line.is_empty());
    // Name, states, weights, and what is known of checks and agents. Whether a check that is off rests besides for its
    // server's maintenance is told otherwise by haproxy if that is how the server came.
    let cells = |line: &str| {
        let cells: Vec<&str> = line.split(' ').collect();
        let check: u32 = cells[13].parse().expect("a number");
        // Later versions than 2.6 show no level of a server whose check is not configured.
        let level = if check & 2 == 0 { "-" } else { cells[12] };
        format!("{} {level} {}", [3, 5, 6, 7, 8, 14].map(|index| cells[index]).join(" "), check & !8)
    };
    lines.map(cells).collect()
}

#[test]
fn servers_come_and_go_as_in_haproxy() {
    let ([haproxy, own], _running) = both();
    for command in [
        "add server t/a 127.0.0.1:2",
        "add server t/a 127.0.0.1:2",
        "add server none/a 127.0.0.1:2",
        "add server f/a 127.0.0.1:2",
        "add server t",
        "add server t/",
        "add server",
        "add server t/a/b 127.0.0.1:2",
        "add server t/b",
        "add server t/q! 127.0.0.1:2",
        "add server map/a 127.0.0.1:2",
        "add server fixed/a 127.0.0.1:2",
        "add server ring/a 127.0.0.1:2 check inter 1h",
        "add server t/name name.invalid:80",
        "add server t/c 127.0.0.1:2 init-addr none",
        "add server t/c 127.0.0.1:2 resolvers default",
        "add server t/numbered 127.0.0.1:2 id 77",
        "add server t/spare 127.0.0.1:2 backup maxconn 3",
        "add server t/off 127.0.0.1:2 disabled",
        "add server t/on 127.0.0.1:2",
        "enable server t/on",
        "add server t/agent 127.0.0.1:2 agent-check agent-port 9 agent-inter 1h",
        "add server t/slow 127.0.0.1:2 slowstart 3s",
        "add server t/variable ${SLUICEGATE_NOT_SET}127.0.0.1:2${SLUICEGATE_NOT_SET}",
        "add server t/late 127.0.0.1:2 send-proxy",
        "enable server t/late",
        "del server t/a",
        "del server t/a",
        "del server none/a",
        "del server t",
        "del server",
        "del server t/on",
        "set server t/on state drain",
        "del server t/on",
        "set server t/on state maint",
        "del server t/on",
        "set server t/on state ready",
        "add server t/next 127.0.0.1:3",
        "enable server t/next",
        "disable server t/next",
        "set server t/next addr 127.0.0.4 port 4",
        "enable health ring/a",
        "disable health ring/a",
        "enable agent t/agent",
        "disable agent t/agent",
        "del server t/agent",
        // Servers of the file may be deleted as well, unless something needs them.
        "del server t/w",
        "del server named/w",
        "del server named/checked",
        "del server named/behind",
        "del server named/asked",
        "set server named/behind health up",
        "set server named/behind health",
        "get weight t/next",
        "del server t/next",
    ] {
        // Behind some messages 3.2 has an empty line, and 2.6 has none.
        let [ours, theirs] = [&own, &haproxy].map(|place| Sluicegate::stats(place, command));
        assert!(ours == theirs || ours == format!("{theirs}\n"), "{command}: {ours:?}, haproxy {theirs:?}");
        for backend in ["t", "ring", "map", "fixed", "named"] {
            assert_eq!(servers(&own, backend), servers(&haproxy, backend), "{backend} after {command}");
        }
        for backend in ["t", "ring"] {
            assert_eq!(admin(&own, backend), admin(&haproxy, backend), "{backend} after {command}");
        }
    }
    for (command, said) in [
        ("add server t/x 127.0.0.1:2 foo", "unknown keyword 'foo'"),
        ("add server t/x 127.0.0.1:2 weight 300", "weight of server x is not within 0 and 256 (300)."),
        ("add server t/x 127.0.0.1:2 weight", "expects"),
        ("add server t/x 127.0.0.1:2 enabled", "'enabled' option is not accepted for dynamic server"),
        ("add server t/x 127.0.0.1:2 non-stick", "'non-stick' option is not accepted for dynamic server"),
        ("add server t/x 127.0.0.1:2 max-reuse 4", "'max-reuse' option is not accepted for dynamic server"),
        ("add server t/x 127.0.0.1:2 tcp-ut 5s", "'tcp-ut' option is not accepted for dynamic server"),
        ("add server t/x 127.0.0.1:2 track t/spare", "unable to use t/spare for tracking as it is a dynamic server."),
        ("add server t/x 127.0.0.1:2 id 77", "custom id 77 already used"),
        ("add server t/x 127.0.0.1:2 track t/slow", "unable to use t/slow for tracking"),
        ("add server t/x 127.0.0.1:2 check track t/slow", "at the same time"),
        ("add server t/x 127.0.0.1 check", "neither service port nor check port"),
        ("add server t/x nonsense[:2", "invalid"),
    ] {
        let answer = Sluicegate::stats(&own, command);
        assert!(answer.contains(said), "{command}: {answer}");
        assert!(!servers(&own, "t").iter().any(|line| line.starts_with("x ")));
    }
}

/// A server that answers each request with its name, connection after connection.
fn origin(name: &'static str) -> (u16, Arc<AtomicBool>) {
    let listening = Listening::new();
    let port = listening.port();
    let ended = Arc::new(AtomicBool::new(false));
    let end = ended.clone();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listening.listener.accept() {
            if end.load(Ordering::SeqCst) {
                return;
            }
            std::thread::spawn(move || {
                let mut stream = stream;
                let mut buffer = [0; 2048];
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len());
                while let Ok(1..) = std::io::Read::read(&mut stream, &mut buffer) {
                    if std::io::Write::write_all(&mut stream, answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, ended)
}

/// Reads all servers in each request, and those that existed in earlier requests.
const LOOKS: &str = "
local held = {}
core.register_action('look', { 'http-req' }, function()
  for name, server in pairs(core.backends.t.servers) do held[name] = server end
  for name, server in pairs(held) do
    if server:get_name() == nil then held[name] = nil end
    server:get_stats() server:get_addr() server:get_proxy() server:get_trackers() server:set_maxconn(0)
  end
end)
";

#[test]
fn traffic_goes_where_servers_are() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("a.lua"), LOOKS).expect("written");
    let gate = Listening::new();
    let text = file(&gate, "@DIR@/stats").replace("nbthread 2", "nbthread 2\n lua-load-per-thread @DIR@/a.lua");
    let text = text.replace(" default_backend t", " http-request lua.look\n default_backend t");
    let server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
    let place = server.directory().join("stats");
    let ask = |command: &str| Sluicegate::stats(&place, command).trim_end().to_owned();
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/").status, 503);
    let (one, _) = origin("one");
    let (two, _) = origin("two");
    assert_eq!(ask(&format!("add server t/one 127.0.0.1:{one}")), "New server registered.");
    // It begins in maintenance.
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/").status, 503);
    assert_eq!(ask("enable server t/one"), "");
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/").text(), "one");
    // Requests that never fail, while servers come and go.
    let ended = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..3)
        .map(|_| {
            let (ended, address) = (ended.clone(), gate.address());
            std::thread::spawn(move || {
                let mut counts = [0u32; 2];
                while !ended.load(Ordering::SeqCst) {
                    let mut client = Client::connect(&address);
                    for _ in 0..20 {
                        let response = client.get("/");
                        assert_eq!(response.status, 200);
                        counts[usize::from(response.text() == "two")] += 1;
                    }
                }
                counts
            })
        })
        .collect();
    for _ in 0..8 {
        assert_eq!(ask(&format!("add server t/two 127.0.0.1:{two}")), "New server registered.");
        ask("enable server t/two");
        wait_for("its turn", || {
            let text = Sluicegate::stats(&place, "show stat t 4 -1");
            let line = text.lines().find(|line| line.starts_with("t,two,"))?;
            (line.split(',').nth(7)?.parse::<u32>().ok()? > 5).then_some(())
        });
        assert_eq!(ask("disable server t/two"), "");
        wait_for("its last request", || (ask("del server t/two") == "Server deleted.").then_some(()));
    }
    ended.store(true, Ordering::SeqCst);
    let counts = load.into_iter().map(|thread| thread.join().expect("no request fails"));
    let sum = counts.fold([0, 0], |sum, counts| [sum[0] + counts[0], sum[1] + counts[1]]);
    assert!(sum[0] > 0 && sum[1] > 0, "{sum:?}");
    // The counters of the other server continued.
    let text = Sluicegate::stats(&place, "show stat t 4 -1");
    let line = text.lines().find(|line| line.starts_with("t,one,")).expect("the first server");
    let total: u32 = line.split(',').nth(7).and_then(|cell| cell.parse().ok()).expect("a number");
    assert_eq!(total, sum[0] + 1);
}

#[test]
fn a_server_with_requests_stays() {
    let gate = Listening::new();
    let target = Listening::new();
    let server = start(&file(&gate, "@DIR@/stats"), &[&gate]);
    let place = server.directory().join("stats");
    Sluicegate::stats(&place, &format!("add server t/one 127.0.0.1:{}; enable server t/one", target.port()));
    let mut client = Client::connect(&gate.address());
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    let (mut stream, _) = target.listener.accept().expect("a connection");
    Sluicegate::stats(&place, "disable server t/one");
    let said = Sluicegate::stats(&place, "del server t/one");
    assert_eq!(said.trim_end(), "Server still has connections attached to it, cannot remove it.");
    // Another server takes its place meanwhile, and the request ends where it began.
    Sluicegate::stats(&place, "add server t/two 127.0.0.1:1");
    std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").expect("it reads");
    assert_eq!(client.read_response().text(), "ok");
    wait_for("its end", || Sluicegate::stats(&place, "del server t/one").starts_with("Server deleted.").then_some(()));
}

/// A request that ends at this moment does not keep its server, whichever worker is about to note that.
#[test]
fn a_server_whose_last_request_ends_goes() {
    let gate = Listening::new();
    let target = Listening::new();
    let server = start(&file(&gate, "@DIR@/stats"), &[&gate]);
    let place = server.directory().join("stats");
    for _ in 0..60 {
        let add = format!("add server t/one 127.0.0.1:{}; enable server t/one", target.port());
        Sluicegate::stats(&place, &add);
        let mut client = Client::connect(&gate.address());
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        let (mut stream, _) = target.listener.accept().expect("a connection");
        Sluicegate::stats(&place, "disable server t/one");
        let mut control = std::os::unix::net::UnixStream::connect(&place).expect("a connection");
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 256 << 10).into_bytes();
        stream.write_all(&[answer, vec![b'x'; 256 << 10]].concat()).expect("it reads");
        control.write_all(b"del server t/one\n").expect("it reads");
        let mut said = String::new();
        std::io::Read::read_to_string(&mut control, &mut said).expect("an answer");
        assert_eq!(said.trim(), "Server deleted.");
        assert_eq!(client.read_response().status, 200);
    }
}

/// Streams identify their server by more than its index, which another one gets once servers before it are deleted.
#[test]
fn streams_are_ended_of_the_server_that_is_meant() {
    let gate = Listening::new();
    let target = Listening::new();
    let server = start(&file(&gate, "@DIR@/stats"), &[&gate]);
    let place = server.directory().join("stats");
    let ask = |line: &str| Sluicegate::stats(&place, line).trim_end().to_owned();
    ask(&format!("add server t/one 127.0.0.1:{}; enable server t/one", target.port()));
    let begin = || {
        let mut client = Client::connect(&gate.address());
        client.send("GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        let stream = target.listener.accept().expect("a connection").0;
        wait_for("its stream", || ask("show sess").contains("srv=one").then_some(()));
        (client, stream)
    };
    let (mut client, mut stream) = begin();
    assert_eq!(ask("del server t/w"), "Server deleted.");
    assert_eq!(ask("add server t/two 127.0.0.1:1; enable server t/two"), "New server registered.");
    assert_eq!(ask("shutdown sessions server t/two"), "");
    std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").expect("it reads");
    assert_eq!(client.read_response().text(), "ok");
    ask("disable server t/two");
    let (mut client, _stream) = begin();
    assert_eq!(ask("del server t/two"), "Server deleted.");
    assert_eq!(ask("shutdown sessions server t/one"), "");
    let rest = client.read_to_end();
    assert!(!rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));
}

/// A task that counts, and commands that look at servers, in one state for all workers.
const SCRIPT: &str = "
local held, count = {}, 0
core.register_task(function()
  while true do
    core.msleep(1)
    count = count + 1
  end
end)
local function all(...)
  local values = table.pack(...)
  for i = 1, values.n do values[i] = tostring(values[i]) end
  return table.concat(values, ' ')
end
local function told(server)
  local stats = server:get_stats()
  return all(server:get_name(), server:get_puid(), server:get_rid(), server:is_dynamic(), server:get_addr(),
    stats and stats.svname .. '=' .. stats.status)
end
local commands = {
  list = function()
    local lines = {}
    for name, server in pairs(core.backends.t.servers) do
      held[name .. server:get_rid()] = server
      lines[#lines + 1] = all(name, told(server), server == core.backends.t.servers[name], server:get_proxy().name)
    end
    lines[#lines + 1] = all(#core.backends.t.servers, core.backends.t.servers.nosuch, core.backends.t.servers[1])
    return table.concat(lines, '\\n')
  end,
  held = function(name) return told(held[name]) end,
  every = function(name)
    local server = held[name]
    local values = {}
    for _, method in ipairs({ 'get_name', 'get_puid', 'get_rid', 'get_addr', 'get_stats', 'get_cur_sess',
        'get_pend_conn', 'get_maxconn', 'get_weight', 'is_draining', 'is_backup', 'is_dynamic', 'get_proxy',
        'tracking', 'get_trackers', 'set_drain', 'set_maint', 'set_ready', 'check_enable', 'check_disable',
        'check_force_up', 'check_force_nolb', 'check_force_down', 'agent_enable', 'agent_disable', 'agent_force_up',
        'agent_force_down', 'shut_sess' }) do
      local value = server[method](server)
      values[#values + 1] = tostring(value)
    end
    return table.concat(values, ' ') .. ' ' ..
      all(server:set_maxconn(3), server:set_weight(4), server:set_addr('127.0.0.1', 5))
  end,
  forget = function(name) held[name] = nil collectgarbage() return 'forgotten' end,
  set = function(name)
    held[name]:set_weight(7)
    held[name]:set_maint()
    return told(held[name])
  end,
  track = function()
    local servers = core.backends.named.servers
    return all(servers.behind:tracking() == servers.checked, #servers.checked:get_trackers(),
      servers.checked:get_trackers()[1] == servers.behind, servers.checked:tracking())
  end,
  count = function() return tostring(count) end,
}
core.register_cli({ 'ask' }, 'ask', function(applet, _, what, name)
  local done, said = pcall(commands[what], name)
  applet:send(tostring(said) .. '\\n')
end)
core.register_action('mark', { 'http-req' }, function(txn) txn:set_var('txn.mark', 'marked') end)
";

#[test]
fn scripts_see_servers_that_come_and_go() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("a.lua"), SCRIPT).expect("written");
    let gate = Listening::new();
    let text = file(&gate, "@DIR@/stats").replace("nbthread 2", "nbthread 2\n lua-load @DIR@/a.lua").replace(
        " default_backend t",
        " http-request lua.mark\n http-response set-header mark %[var(txn.mark)]\n default_backend t",
    );
    let server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
    let place = server.directory().join("stats");
    let ask = |line: &str| Sluicegate::stats(&place, line).trim_end().to_owned();
    let gone = format!("{}nil nil nil", "nil ".repeat(28));
    let count = || ask("ask count").parse::<u64>().expect("a number");
    let goes_on = |after: u64| wait_for("the task", || (count() > after + 3).then_some(()));

    assert_eq!(ask("ask list"), "w w 1 0 false 127.0.0.1:1 w=MAINT true t\n1 nil nil");
    let (one, _) = origin("one");
    assert_eq!(ask(&format!("add server t/a 127.0.0.1:{one}; enable server t/a")), "New server registered.");
    let line = format!("a a 2 0 true 127.0.0.1:{one} a=no check true t");
    assert_eq!(ask("ask list"), format!("w w 1 0 false 127.0.0.1:1 w=MAINT true t\n{line}\n2 nil nil"));
    // Rules of the new snapshot run the scripts, whose task continues.
    let response = Client::connect(&gate.address()).get("/");
    assert_eq!((response.status, response.header("mark")), (200, Some("marked")));
    goes_on(count());
    // A preceding server is deleted, and the object of this one finds it at its new index.
    assert_eq!(ask("del server t/w"), "Server deleted.");
    assert_eq!(ask("ask every w0"), gone);
    assert_eq!(ask("ask held a0"), format!("a 2 0 true 127.0.0.1:{one} a=no check"));
    assert_eq!(ask("ask set a0"), format!("a 2 0 true 127.0.0.1:{one} a=MAINT"));
    assert!(ask("show stat t 4 -1").contains("t,a,") && ask("get weight t/a") == "7 (initial 1)");
    wait_for("its last request", || (ask("del server t/a") == "Server deleted.").then_some(()));
    assert_eq!(ask("ask every a0"), gone);
    assert_eq!(ask("ask list"), "0 nil nil");
    // A new server of the same name does not inherit anything from the first one.
    assert_eq!(ask("add server t/a 127.0.0.1:3"), "New server registered.");
    assert_eq!(ask("ask list"), "a a 1 1 true 127.0.0.1:3 a=MAINT true t\n1 nil nil");
    assert_eq!(ask("ask every a0"), gone);
    assert_eq!(ask("ask held a1"), "a 1 1 true 127.0.0.1:3 a=MAINT");
    assert_eq!(ask("ask track"), "true 1 true nil");
    assert_eq!(ask("ask forget a1"), "forgotten");
    goes_on(count());
    assert_eq!(ask("ask list"), "a a 1 1 true 127.0.0.1:3 a=MAINT true t\n1 nil nil");
    // A reload loads the scripts anew.
    let pid = server.program.pid().to_string();
    let reload = Command::new(BINARY).args(["reload", &pid]).output().expect("it starts");
    assert!(reload.status.success(), "{}", String::from_utf8_lossy(&reload.stderr));
    assert_eq!(ask("ask list"), "w w 1 1 false 127.0.0.1:1 w=MAINT true t\n1 nil nil");
    assert_eq!(ask("add server t/b 127.0.0.1:3"), "New server registered.");
    goes_on(count());
    assert!(ask("ask list").contains("\nb b 2 1 true "), "{}", ask("ask list"));
}

#[test]
fn a_reload_knows_the_file_only() {
    let gate = Listening::new();
    let server = start(&file(&gate, "@DIR@/stats"), &[&gate]);
    let place = server.directory().join("stats");
    let before = servers(&place, "t");
    Sluicegate::stats(&place, "add server t/more 127.0.0.1:2; enable server t/more");
    Sluicegate::stats(&place, "set server named/checked weight 7");
    assert_eq!(Sluicegate::stats(&place, "del server t/w").trim_end(), "Server deleted.");
    assert_eq!(servers(&place, "t"), ["more no check 1 1 0 2 127.0.0.1:2"]);
    let pid = server.program.pid().to_string();
    let reload = Command::new(BINARY).args(["reload", &pid]).output().expect("it starts");
    assert!(reload.status.success(), "{}", String::from_utf8_lossy(&reload.stderr));
    assert_eq!(servers(&place, "t"), before);
    // Changes of other servers are kept.
    assert!(servers(&place, "named")[1].starts_with("checked MAINT 7 "));
}

#[test]
fn states_tell_whether_connections_use_tls() {
    let gate = Listening::new();
    let text = "global\n stats socket @DIR@/stats level admin\n ssl-server-verify none\n server-state-file @DIR@/kept\n\
                defaults\n mode tcp\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n \
                load-server-state-from-file global\nlisten f\n bind @F@\n server none 127.0.0.1:1 no-ssl\n \
                server plain 127.0.0.1:1\n server own 127.0.0.1:1 ssl\n default-server ssl\n server off 127.0.0.1:1 \
                no-ssl\n";
    let directory = tempfile::tempdir().expect("a directory");
    let line = |name: &str, tls: u8| format!("2 f 1 {name} 127.0.0.1 2 0 1 1 9 1 0 0 0 0 0 0 - 1 - {tls} 0 - - 0\n");
    std::fs::write(directory.path().join("kept"), format!("1\n{}{}", line("plain", 1), line("own", 0)))
        .expect("writable");
    let server = Sluicegate::start_in(BINARY, &text.replace("@F@", &gate.word()), &[&gate], directory);
    let ask = |line: &str| Sluicegate::stats(&server.directory().join("stats"), line);
    let column = || -> Vec<String> {
        let state = wait_for("the stats socket", || Some(ask("show servers state f")).filter(|text| !text.is_empty()));
        let lines = state.lines().skip(2).filter(|line| !line.is_empty());
        lines.map(|line| line.split(' ').nth(20).expect("a column").to_owned()).collect()
    };
    // A state file's column counts for servers whose lines have settings of TLS.
    assert_eq!(column(), ["-1", "0", "0", "-1"]);
    ask("set server f/off ssl on");
    ask("set server f/own ssl on");
    assert_eq!(column(), ["-1", "0", "1", "1"]);
    ask("set server f/off ssl off");
    assert_eq!(column(), ["-1", "0", "1", "0"]);
    assert_eq!(ask("add server f/h2 127.0.0.1:1 proto h2"), "MUX protocol is not usable for server.\n\n");
}

/// An origin that keeps connections open; it returns, for each request, its target and whether it is its connection's
/// first.
fn lasting_origin() -> (String, mpsc::Receiver<(String, bool)>) {
    let listener = lasting_listener();
    let address = listener.local_addr().expect("bound").to_string();
    let (sender, seen) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                let mut is_first = true;
                loop {
                    let mut line = String::new();
                    if reader.read_line(&mut line).unwrap_or(0) == 0 {
                        return;
                    }
                    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
                    while line.trim_end() != "" {
                        line.clear();
                        if reader.read_line(&mut line).unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    if sender.send((target, std::mem::take(&mut is_first))).is_err()
                        || reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    (address, seen)
}

/// `check-reuse-pool`: a check takes an idle connection of its server.
#[test]
fn checks_may_take_idle_connections() {
    for (words, reuses) in [("check-reuse-pool", true), ("", false), ("check-reuse-pool check-send-proxy", false)] {
        let (gate, (origin, seen)) = (Listening::new(), lasting_origin());
        let text = format!(
            "global\n nbthread 2\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n \
             timeout check 60s\nlisten f\n bind {}\n http-reuse always\n option httpchk GET /check\n default-server inter 50ms\n \
             server s {origin} check {words}\n",
            gate.word()
        );
        let _program = start(&text, &[&gate]);
        assert_eq!(Client::connect(&gate.address()).get("/traffic").status, 200);
        let mut after = seen.iter().skip_while(|(target, _)| target != "/traffic").skip(1);
        // One check may have begun before the connection was idle.
        let next: Vec<_> = after.by_ref().take(4).collect();
        assert_eq!(next.iter().any(|(_, is_first)| !is_first), reuses, "{words}: {next:?}");
    }
}

/// A check's request leaves the connection that it has taken open if it says so, and the whole response has arrived.
#[test]
fn checks_return_idle_connections() {
    for (field, returns) in [("hdr connection keep-alive", true), ("", false), ("hdr connection close", false)] {
        let (gate, (origin, seen)) = (Listening::new(), lasting_origin());
        let text = format!(
            "global\n nbthread 1\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n \
             timeout check 60s\nlisten f\n bind {}\n http-reuse always\n option httpchk\n http-check send meth GET uri /check {field}\n \
             default-server inter 50ms\n server s {origin} check check-reuse-pool\n",
            gate.word()
        );
        let _program = start(&text, &[&gate]);
        assert_eq!(Client::connect(&gate.address()).get("/traffic").status, 200);
        let mut after = seen.iter().skip_while(|(target, _)| target != "/traffic").skip(1);
        // One check may have begun before the connection was idle; it has one of its own.
        let most = if returns { 200 } else { 6 };
        let reused = after.by_ref().take(most).filter(|(_, is_first)| !is_first).take(2).count();
        assert_eq!(reused == 2, returns, "{field}");
    }
}

/// The ports of a check's connections are enough for a server whose own port is the client's.
#[test]
fn checks_have_ports_of_their_own() {
    let (gate, open) = (Listening::new(), lasting_listener());
    let port = open.local_addr().expect("an address").port();
    let text = format!(
        "global\n stats socket @DIR@/stats\ndefaults\n mode tcp\n timeout client 5s\n timeout server 5s\n timeout connect 1s\n\
         listen l\n bind {}\n option tcp-check\n tcp-check connect port {port}\n tcp-check connect addr 127.0.0.1:{port}\n \
         server a 127.0.0.1: check inter 50ms rise 1\nbackend b\n option tcp-check\n tcp-check connect port {port}\n \
         tcp-check connect port 1\n server a 127.0.0.1 check inter 50ms fall 1\n",
        gate.word()
    );
    let program = start(&text, &[&gate]);
    let status = |backend: &str| servers(&program.directory().join("stats"), backend).concat();
    wait_for("checks of both", || {
        let states = [status("l"), status("b")];
        (states[0].starts_with("a UP ") && states[1].starts_with("a DOWN ")).then_some(())
    });
}
