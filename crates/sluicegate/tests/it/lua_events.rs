//! Events that scripts subscribe to: the same script and the same commands with HAProxy 2.8 and with this program. Events
//! of pattern references, which 2.8 lacks, are those of the manual of 3.2.

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate, wait_for};

use super::BINARY;
use super::dns::{NX, Nameserver, address_record};

/// Keeps what happens, by server, and answers with it.
const SCRIPT: &str = r#"
local said, order = {}, {}
local function show(value)
  if type(value) ~= 'table' then return tostring(value) end
  local names, parts = {}, {}
  for name in pairs(value) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do
    local inner = value[name]
    if name == 'duration' then inner = math.type(inner) end
    if name == 'reference' then inner = inner:get_proxy():get_name() .. '/' .. inner:get_name() end
    parts[i] = name .. '=' .. show(inner)
  end
  return '{' .. table.concat(parts, ' ') .. '}'
end
local function keep(about, text)
  if not said[about] then
    said[about] = {}
    order[#order + 1] = about
  end
  table.insert(said[about], text)
end
local function try(name, ...)
  local arguments = table.pack(...)
  local ok, why = pcall(function()
    core.event_sub(table.unpack(arguments, 1, arguments.n))
    return nil
  end)
  keep('errors', name .. ' ' .. tostring(ok) .. ' ' .. tostring(why):gsub('^.-%.lua:%d+: ', ''))
end
try('none')
try('type', 'SERVER', print)
try('number', { 1 }, print)
try('unknown', { 'SERVER_GONE' }, print)
try('empty', {}, print)
core.event_sub({ 'SERVER' }, function(event, data, sub, when)
  if math.abs(when - os.time()) > 100 then event = 'late ' .. event end
  keep(data.name, event .. ' ' .. show(data))
end)
core.event_sub({ 'SERVER_ADMIN', 'SERVER_ADD' }, function(event, data, sub)
  core.msleep(1)
  keep('waits', event .. ' ' .. data.name)
  error('of the handler')
end)
core.register_init(function()
  core.backends.b.servers.s:event_sub({ 'SERVER_UP', 'SERVER_DOWN' }, function(event, data, sub)
    keep('only s', event .. ' ' .. data.name)
    if event == 'SERVER_UP' then sub:unsub() end
  end)
end)
core.register_fetches('said', function()
  table.sort(order)
  local all = {}
  for _, about in ipairs(order) do
    all[#all + 1] = about .. ': ' .. table.concat(said[about], '\n' .. about .. ': ')
  end
  return table.concat(all, '\n')
end)
"#;

fn configuration(directory: &str, gate: &Listening) -> String {
    format!(
        "global\n nbthread 1\n max-spread-checks 1ms\n stats socket {directory}/stats level admin\n lua-load {directory}/script.lua\n\
         defaults\n mode http\n timeout client 9s\n timeout server 9s\n timeout connect 9s\n\
         frontend www\n bind {}\n http-request return status 200 content-type text/plain lf-string \"%[lua.said]\"\n\
         backend b\n server s {} weight 3 check inter 99s\n server t 127.0.0.1:1 track s\n server slow 127.0.0.1:1 slowstart 99s\n\
         backend checked\n server c 127.0.0.1:1 check inter 20ms fall 1 rise 1\n",
        gate.word(),
        gate.address()
    )
}

const COMMANDS: &[&str] = &[
    "set server b/s state drain",
    "set server b/s state maint",
    "set server b/s state drain",
    "set server b/s state ready",
    "set server b/s state maint",
    "set server b/s state ready",
    "set server b/s health stopping",
    "set server b/s health down",
    "set server b/s health up",
    "set server b/s health down",
    "set server b/s health up",
    "set server b/slow health down",
    "set server b/slow health up",
    "set server b/slow addr 127.0.0.2 port 2",
    "add server b/d 127.0.0.1:1",
    "enable server b/d",
    "disable server b/d",
    "del server b/d",
];

/// Runs the commands, and returns what the script has said.
fn conversation(address: &str, directory: &std::path::Path) -> Vec<String> {
    let socket = directory.join("stats");
    let said = || Client::connect(address).get("/").text().replace("%0A", "\n");
    wait_for("the checks", || {
        ["c: SERVER_STATE", "s: SERVER_CHECK"].iter().all(|text| said().contains(text)).then_some(())
    });
    for command in COMMANDS {
        if command.starts_with("del server") {
            // Events that no handler has seen yet lose their server when it goes.
            let seen = || said().lines().filter(|line| line.starts_with("d: ")).count();
            wait_for("the events of the server", || (seen() == 7).then_some(()));
        }
        Sluicegate::stats(&socket, command);
    }
    wait_for("the last event", || said().contains("d: SERVER_DEL").then_some(()));
    let waits = || said().lines().filter(|line| line.starts_with("waits: ")).count();
    wait_for("the handler that waits", || (waits() >= 19).then_some(()));
    let text = said();
    let body = text.split("\r\n\r\n").last().unwrap_or_default();
    let mut lines: Vec<String> = body.lines().map(str::to_owned).collect();
    // A server's events are in one order; those of servers that track it come between them otherwise.
    let first = lines.iter().position(|line| line.starts_with("waits: ")).unwrap_or(lines.len());
    lines[first..].sort();
    lines
}

fn folder() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("script.lua"), SCRIPT).expect("writable");
    directory
}

#[test]
fn events_of_servers_are_haproxys() {
    let gates = [Listening::new(), Listening::new()];
    let directory = folder();
    let path = directory.path().to_str().expect("a UTF-8 path");
    let haproxy = Haproxy::start_2_8(&configuration(path, &gates[0]), &[&gates[0]]);
    let theirs = conversation(&gates[0].address(), directory.path());
    drop(haproxy);
    let text = configuration("@DIR@", &gates[1]);
    let mut server = Sluicegate::start_in(BINARY, &text, &[&gates[1]], folder());
    let mut ours = conversation(&gates[1].address(), &server.directory());
    // An event of later versions.
    let moved = "slow: SERVER_INETADDR {name=slow proxy_name=b proxy_uuid=3 puid=3 reference=b/slow rid=0}";
    let at = ours.iter().position(|line| line == moved).expect("an event of the address");
    ours.remove(at);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours, theirs);
    server.program.wait_for_output("Lua event_hdl: [state-id 0] runtime error: ");
}

/// Does not return from its first call before it may, and counts.
const SLOW: &str = r#"
local released, count = false, 0
core.event_sub({ 'SERVER_ADMIN' }, function()
  while not released do core.msleep(1) end
  count = count + 1
end)
core.register_fetches('count', function() return tostring(count) end)
core.register_fetches('release', function()
  released = true
  return tostring(count)
end)
"#;

/// More than a hundred events that wait pause a subscription until there are none.
#[test]
fn a_handler_that_is_too_slow_misses_events() {
    let see = |ours: bool| {
        let gate = Listening::new();
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("slow.lua"), SLOW).expect("writable");
        let place = directory.path().to_str().expect("a UTF-8 path").to_owned();
        let text = format!(
            "global\n nbthread 1\n stats socket PLACE/stats level admin\n lua-load PLACE/slow.lua\n\
             defaults\n mode http\n timeout client 9s\n timeout server 9s\n timeout connect 9s\n\
             frontend www\n bind {}\n http-request return status 200 hdr n %[lua.release] if {{ path /release }}\n \
             http-request return status 200 hdr n %[lua.count]\nbackend b\n server s 127.0.0.1:1\n",
            gate.word()
        );
        let (mut haproxy, mut own) = (None, None);
        match ours {
            true => own = Some(Sluicegate::start_in(BINARY, &text.replace("PLACE", "@DIR@"), &[&gate], directory)),
            false => haproxy = Some((Haproxy::start_2_8(&text.replace("PLACE", &place), &[&gate]), directory)),
        }
        let count = |path: &str| {
            let response = Client::connect(&gate.address()).get(path);
            response.header("n").expect("a count").parse::<usize>().expect("a number")
        };
        assert_eq!(count("/"), 0);
        let stats = std::path::Path::new(&place).join("stats");
        for _ in 0..60 {
            // The first one is being handled, so the queue has a hundred before the end.
            for state in ["maint", "ready"] {
                Sluicegate::stats(&stats, &format!("set server b/s state {state}"));
            }
        }
        let program = match (&mut haproxy, &mut own) {
            (Some((haproxy, _)), _) => &mut haproxy.program,
            (None, own) => &mut own.as_mut().expect("it runs").program,
        };
        program.wait_for_output(
            "Lua event_hdl: pausing the subscription because the handler fails to keep up the pace (101 unconsumed \
             events) from ",
        );
        count("/release");
        wait_for("all that wait", || (count("/") >= 102).then_some(()));
        // Now the handler keeps up.
        let mut state = ["maint", "ready"].iter().cycle();
        wait_for("a later event", || {
            Sluicegate::stats(&stats, &format!("set server b/s state {}", state.next().expect("a state")));
            (count("/") > 102).then_some(())
        });
    };
    see(false);
    see(true);
}

/// A server that DNS moves: an event of later versions.
#[test]
fn events_of_addresses_that_dns_changes() {
    const SCRIPT: &str = "local said = {}\n\
        core.event_sub({ 'SERVER_INETADDR' }, function(event, data)\n\
          said[#said + 1] = event .. ' ' .. data.name .. ' ' .. data.reference:get_addr()\n\
        end)\n\
        core.register_fetches('said', function() return table.concat(said, ',') end)\n";
    let (names, gate) = (Nameserver::start(), Listening::new());
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("script.lua"), SCRIPT).expect("writable");
    let text = format!(
        "global\n nbthread 1\n lua-load @DIR@/script.lua\nresolvers dns\n nameserver one {}\n timeout resolve 20ms\n \
         timeout retry 2s\n hold nx 20ms\n hold valid 20ms\ndefaults\n mode http\n timeout client 9s\n timeout server 9s\n \
         timeout connect 9s\nfrontend www\n bind {}\n http-request return status 200 hdr x \"%[lua.said]\"\nbackend b\n \
         server s web.example:80 resolvers dns resolve-prefer ipv4 init-addr none\n",
        names.address,
        gate.word()
    );
    let _program = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
    let mut wanted = Vec::new();
    let mut wait = |address: &str| {
        wanted.push(format!("SERVER_INETADDR s {address}"));
        let wanted = wanted.join(",");
        wait_for(&wanted, || {
            let response = Client::connect(&gate.address()).get("/");
            (response.header("x") == Some(&*wanted)).then_some(())
        });
    };
    for ip in ["127.0.0.2", "127.0.0.3"] {
        names.know(vec![address_record("web.example", ip)]);
        wait(&format!("{ip}:80"));
    }
    names.refuse(NX);
    wait("<unknown>");
}

/// Keeps the events of a map's changes, which have no data.
const OF_A_MAP: &str = r#"
local said = {}
core.register_init(function()
  local ref = core.get_patref('@DIR@/some.map')
  ref:event_sub({ 'PAT_REF' }, function(event, sub, when)
    said[#said + 1] = event .. ' ' .. type(sub.unsub) .. ' ' .. math.type(when)
  end)
  ref:event_sub({ 'PAT_REF_ADD' }, function(event, sub)
    said[#said + 1] = 'once ' .. event
    sub:unsub()
  end)
  said[#said + 1] = tostring((pcall(ref.event_sub, ref, { 'SERVER', 'PAT_REF' }, print)))
end)
core.register_action('change', { 'http-req' }, function()
  local ref = core.get_patref('@DIR@/some.map')
  ref:add('lua', '1')
  ref:set('lua', '2')
  ref:del('lua')
  ref:prepare()
  ref:add('new', '1')
  ref:commit()
  ref:purge()
end)
core.register_fetches('said', function() return table.concat(said, ',') end)
"#;

#[test]
fn events_of_pattern_references() {
    let gate = Listening::new();
    let directory = tempfile::tempdir().expect("a directory");
    let script = OF_A_MAP.replace("@DIR@", directory.path().to_str().expect("a UTF-8 path"));
    std::fs::write(directory.path().join("script.lua"), script).expect("writable");
    std::fs::write(directory.path().join("some.map"), "a 1\n").expect("writable");
    let text = format!(
        "global\n nbthread 2\n stats socket @DIR@/stats level admin\n lua-load @DIR@/script.lua\n\
         defaults\n mode http\n timeout client 9s\n\
         frontend www\n bind {}\n http-request lua.change if {{ path /change }}\n \
         http-request set-map(@DIR@/some.map) k %[path] if {{ path /rule }}\n \
         http-request return status 200 content-type text/plain lf-string \"%[lua.said]\" if {{ path /said }}\n \
         http-request return status 200 hdr x %[str(a),map(@DIR@/some.map)]\n",
        gate.word()
    );
    let server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
    let ask = |path: &str| {
        let text = Client::connect(&gate.address()).get(path).text();
        text.split("\r\n\r\n").last().unwrap_or_default().to_owned()
    };
    let count = |wanted: usize| {
        wait_for("the events", || {
            let said = ask("/said");
            (said.split(',').count() >= wanted).then_some(said)
        })
    };
    let command = |line: &str| Sluicegate::stats(&server.directory().join("stats"), line);
    let map = server.directory().join("some.map").display().to_string();
    assert_eq!(count(1), "false");
    command(&format!("add map {map} b 2"));
    // Two subscriptions have no order among each other.
    let mut first: Vec<String> = count(3).split(',').map(str::to_owned).collect();
    first.sort();
    assert_eq!(first, ["PAT_REF_ADD function integer", "false", "once PAT_REF_ADD"]);
    for line in ["set map MAP b 3", "del map MAP b", "del map MAP b", "prepare map MAP", "add map @1 MAP c 4"] {
        command(&line.replace("MAP", &map));
    }
    command(&format!("commit map @1 {map}"));
    command(&format!("clear map {map}"));
    ask("/rule");
    ask("/rule");
    ask("/change");
    let said = count(14);
    let kinds: Vec<&str> =
        said.split(',').skip(3).filter_map(|text| text.strip_prefix("PAT_REF_")?.split(' ').next()).collect();
    assert_eq!(
        kinds,
        ["SET", "DEL", "COMMIT", "CLEAR", "ADD", "SET", "ADD", "SET", "DEL", "COMMIT", "CLEAR"],
        "{said}"
    );
}
