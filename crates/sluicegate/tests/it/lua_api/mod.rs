//! The API of scripts: expressions, right and wrong ones, with the results that they have in HAProxy 2.8, in every place
//! where scripts run: while they are loaded, before traffic, in tasks, rules, fetches and services.

use std::io::{Read, Write};

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate};

use super::BINARY;

/// Evaluates the expressions of a list one after the other, and keeps the results.
const SCRIPT: &str = r#"
local said = {}
local function show(value, depth)
  local kind = type(value)
  if kind == "string" then return (string.format("%q", value):gsub("\\\n", "\\n")) end
  if kind == "table" and depth < 3 then
    local names, parts = {}, {}
    -- HAProxy keeps the object of a class in its field 0.
    for name in pairs(value) do
      if type(value[name]) ~= "userdata" then names[#names + 1] = name end
    end
    table.sort(names, function(one, other) return tostring(one) < tostring(other) end)
    for _, name in ipairs(names) do parts[#parts + 1] = tostring(name) .. "=" .. show(value[name], depth + 1) end
    return "{" .. table.concat(parts, ",") .. "}"
  end
  if kind == "number" or kind == "boolean" or kind == "nil" then return tostring(value) end
  return kind
end
local function evaluate(place, expressions, environment)
  setmetatable(environment, { __index = _G })
  for _, expression in ipairs(expressions) do
    local results = table.pack(pcall(assert(load("return " .. expression, "=e", "t", environment))))
    local parts = {}
    for number = 1, results.n do parts[number] = show(results[number], 0) end
    said[#said + 1] = place .. " | " .. expression .. " | " .. table.concat(parts, " ; ")
  end
end
local function lines(name)
  local all = {}
  for line in io.lines("DIRECTORY/" .. name .. ".txt") do all[#all + 1] = line end
  return all
end
local body, transaction, response, service = lines("body"), lines("transaction"), lines("response"), lines("service")
mm, mi = Map.new("DIRECTORY/words.map", Map._str), Map.new("DIRECTORY/networks.map", Map._ip)
mr, mn = Map.new("DIRECTORY/expressions.map", Map._reg), Map.new("DIRECTORY/numbers.map", Map._int)
evaluate("body", body, {})
core.register_init(function() evaluate("init", body, {}) end)
-- The task runs when the rest is over: it might be interrupted at any place, and what others say be lost.
core.register_task(function()
  while not task_may_run do core.msleep(10) end
  evaluate("task", body, {})
  task_is_over = true
end)
local function of_rules(place) return function(txn) evaluate(place, transaction, { txn = txn }) end end
core.register_action("request", { "http-req" }, of_rules("http-req"))
core.register_action("connection", { "tcp-req" }, of_rules("tcp-req"))
core.register_action("response", { "http-res" }, function(txn)
  evaluate("http-res", transaction, { txn = txn })
  evaluate("http-res", response, { txn = txn })
end)
core.register_fetches("fetch", function(txn)
  evaluate("fetch", transaction, { txn = txn })
  return "x"
end)
core.register_service("http", "http", function(applet)
  evaluate("http", service, { applet = applet })
  applet:set_status(200)
  applet:start_response()
end)
core.register_service("tcp", "tcp", function(applet) evaluate("tcp", service, { applet = applet }) end)
core.register_service("said", "http", function(applet)
  task_may_run = true
  while not task_is_over do core.msleep(10) end
  local text = table.concat(said, "\n") .. "\n"
  applet:set_status(200)
  applet:add_header("content-length", tostring(#text))
  applet:start_response()
  applet:send(text)
end)
"#;

const CONFIGURATION: &str = "global\n nbthread 1\n lua-load DIRECTORY/script.lua\n\
    defaults\n mode http\n timeout client 9s\n timeout server 9s\n timeout connect 9s\n\
    frontend f\n bind HTTP\n http-request use-service lua.said if { path /said }\n \
    http-request return status 200 hdr x-o 1 if { path /origin }\n \
    http-request lua.request if { path /request }\n http-request set-var(txn.z) lua.fetch if { path /fetch }\n \
    http-request return status 200 if { path /request /fetch }\n \
    http-request use-service lua.http if { path /service }\n default_backend o\n\
    backend o\n server s ORIGIN\n http-request set-path /origin\n http-response lua.response\n\
    backend b\n stick-table type ip size 10 expire 1m store gpc0\n server s 127.0.0.1:1 check inter 1d\n\
    listen t\n mode tcp\n bind TCP\n tcp-request inspect-delay 9s\n tcp-request content lua.connection\n \
    tcp-request content use-service lua.tcp\n";

/// Starts a program by `start`, which gets its directory and configuration, and returns what the script has said.
fn results<P>(start: impl FnOnce(tempfile::TempDir, &str, &[&Listening]) -> P) -> Vec<String> {
    let gates = [Listening::new(), Listening::new()];
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("a UTF-8 path").to_owned();
    let files: [(&str, &str); 9] = [
        ("script.lua", &SCRIPT.replace("DIRECTORY", &path)),
        ("body.txt", include_str!("body.txt")),
        ("transaction.txt", include_str!("transaction.txt")),
        ("response.txt", include_str!("response.txt")),
        ("service.txt", include_str!("service.txt")),
        ("words.map", "a b\nn 12\n"),
        ("networks.map", "10.0.0.0/8 ten\n"),
        ("expressions.map", "^foo(.*) bar\n"),
        ("numbers.map", "10:20 mid\n"),
    ];
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).expect("writable");
    }
    let configuration = CONFIGURATION.replace("DIRECTORY", &path).replace("ORIGIN", &gates[0].address());
    let configuration = configuration.replace("HTTP", &gates[0].word()).replace("TCP", &gates[1].word());
    let _program = start(directory, &configuration, &[&gates[0], &gates[1]]);
    let get = |path: &str| {
        let fields = "X-A: 1\r\nX-a: 2\r\nCookie: c=d; e=f\r\n";
        let request = format!("GET {path} HTTP/1.1\r\nHost: ex.com\r\n{fields}\r\n");
        let mut client = Client::connect(&gates[0].address());
        client.send(request.as_bytes());
        client.read_response()
    };
    for path in ["/request?x=1&y=2", "/fetch?x=1", "/service?x=1&y=2", "/response"] {
        assert_eq!(get(path).status, 200, "{path}");
    }
    let mut connection = std::net::TcpStream::connect(gates[1].address()).expect("connected");
    connection.write_all(b"hello\nworld\n").expect("sent");
    connection.read_to_end(&mut Vec::new()).expect("the end of the service");
    let said = get("/said");
    said.text().lines().map(str::to_owned).collect()
}

#[test]
fn expressions_have_haproxys_results() {
    let theirs = results(|directory, text, gates| (Haproxy::start_2_8(text, gates), directory));
    let ours = results(|directory, text, gates| Sluicegate::start_in(BINARY, text, gates, directory));
    let differing: Vec<_> = ours.iter().zip(&theirs).filter(|(ours, theirs)| ours != theirs).collect();
    assert!(differing.is_empty(), "ours and theirs: {differing:#?}");
    assert_eq!(ours.len(), theirs.len());
    assert!(ours.len() > 1_800, "{}", ours.len());
}
