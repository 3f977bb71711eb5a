//! Filters of scripts (`core.register_filter`): the same script with HAProxy 2.8 and with this program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate};

use crate::BINARY;

/// Keeps the events of each stream; `/said` returns them. The second argument says what the filter does.
const SCRIPT: &str = r#"
local said = {}
local function say(filter, ...)
  local words = table.pack(...)
  for i = 1, words.n do words[i] = tostring(words[i]) end
  local line = filter.name .. ' ' .. table.concat(words, ' ')
  -- 2.8 begins with a response twice in the filters of a backend.
  if said[#said] ~= line then said[#said + 1] = line end
end

local Trace = { id = 'trace', flags = filter.FLT_CFG_FL_HTX }
Trace.__index = Trace
function Trace:new()
  if self.args[2] == 'ignored' then return nil end
  if self.args[2] == 'fails' then error('no instance') end
  return setmetatable({ name = self.args[1], does = self.args[2], times = 0 }, Trace)
end
function Trace:start_analyze(txn, channel)
  say(self, 'start', channel:is_resp())
  if self.does ~= 'blind' then filter.register_data_filter(self, channel) end
  if self.does == 'leaves' and channel:is_resp() then filter.unregister_data_filter(self, channel) end
  txn:set_var('txn.seen', 'by a filter')
end
function Trace:end_analyze(txn, channel)
  say(self, 'end', channel:is_resp())
end
function Trace:http_headers(txn, message)
  local line = message:get_stline()
  if line.method then
    say(self, 'head', line.method, line.uri, line.version, message:get_headers()['host'][0])
  else
    say(self, 'head', line.version, line.code, line.reason, txn:get_var('txn.seen'))
  end
  local response = message:is_resp()
  if self.does == 'heads' then
    message:add_header('x-added', 'one')
    message:add_header('x-added', 'two')
    message:set_header('x-set', 'a, b')
    message:rep_value('x-set', '^a$', 'c')
    message:rep_header('x-added', '^t(.*)$', 'T\\1')
    message:del_header('x-gone')
    if response then
      message:set_status(201, 'Made')
    else
      if line.method ~= 'HEAD' then message:set_method('PUT') end
      message:set_path('/path')
      message:set_query('q=1')
    end
  elseif self.does == 'refuses' and (line.uri == '/refused' or line.code == '203') then
    return filter.ERROR
  elseif self.does == 'waits' then
    self.times = self.times + 1
    if self.times < 3 then
      filter.wake_time(10)
      return filter.WAIT
    end
  elseif self.does == 'breaks' and line.uri == '/broken' then
    error('broken')
  elseif self.does == 'rewrites' or self.does == 'holds' then
    message:set_body_len('chunked')
  elseif self.does == 'length' and response then
    message:set_body_len(5)
  end
  return filter.CONTINUE
end
function Trace:http_payload(txn, message)
  local body = message:body()
  if body and #body > 0 and #body < 100 then say(self, 'data', message:is_resp(), body, message:eom()) end
  if self.does == 'rewrites' then
    if body and #body > 0 then message:set(body:upper()) end
    if message:eom() and not self[message.channel:is_resp()] then
      self[message.channel:is_resp()] = true
      message:append('[end]')
      message:insert('[', 0)
      message:remove(1, 1)
    end
  elseif self.does == 'holds' then
    if not message:eom() then return 0 end
    message:send('(')
    message:append(')')
  elseif self.does == 'length' then
    if message:is_resp() then message:set('12345') end
  elseif self.does == 'slow' and body and #body > 0 then
    filter.wake_time(1)
    return math.max(1, #body // 2)
  elseif self.does == 'refuses' and body == 'refused' then
    return -1
  end
end
function Trace:http_end(txn, message)
  say(self, 'message end', message:is_resp(), message:eom())
end
function Trace:tcp_payload(txn, channel)
  local data = channel:data()
  if type(data) == 'string' and #data > 0 then
    say(self, 'bytes', channel:is_resp(), (data:gsub('\r?\n', '|')))
    if self.does == 'rewrites' then channel:set(data:upper()) end
    if self.does == 'inserts' then
      channel:forward(1)
      channel:insert('<', 0)
      return channel:input()
    end
  end
end
core.register_filter('trace', Trace, function(class, args)
  class.args = args
  return class
end)

local Tcp = {}
Tcp.__index = Tcp
function Tcp:new() error('a filter without the flag is not for HTTP') end
core.register_filter('tcp', Tcp, function(class) return class end)

core.register_fetches('said', function()
  local all = table.concat(said, '\n')
  said = {}
  return all
end)
"#;

/// A server that answers with what it has received, and closes the connection.
fn echo() -> String {
    serve(answer)
}

/// Starts a server that answers each connection on a thread of its own.
pub(super) fn serve(answer: fn(&TcpStream) -> std::io::Result<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that leaves early gets no answer.
            std::thread::spawn(move || _ = answer(&stream));
        }
    });
    address
}

fn answer(mut stream: &TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") && reader.read_line(&mut text)? > 0 {}
    let text = text.to_lowercase();
    let mut body = Vec::new();
    if let Some(length) = text.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()) {
        body = vec![0; length.parse().expect("a length")];
        reader.read_exact(&mut body)?;
    } else if text.contains("transfer-encoding: chunked") {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let size = usize::from_str_radix(line.trim(), 16).map_err(std::io::Error::other)?;
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk)?;
            body.extend(&chunk[..size]);
            if size == 0 {
                break;
            }
        }
    }
    let first = text.lines().next().unwrap_or_default();
    let status = if first.contains("/203") { "203 Other" } else { "200 OK" };
    let fields = text.lines().skip(1).filter(|line| line.starts_with("x-"));
    let fields: String = fields.map(|line| format!("x-seen: {line}\r\n")).collect();
    let head = format!(
        "HTTP/1.1 {status}\r\nx-line: {first}\r\n{fields}x-gone: here\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body].concat())
}

/// Returns the configuration whose filters do these things: in the frontend, in the backend.
fn configuration(directory: &str, gates: &[Listening], server: &str, does: [&str; 2], loads: &str) -> String {
    format!(
        "global\n nbthread 1\n {loads} {directory}/filters.lua\n\
         defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\n\
         frontend f\n bind {}\n http-request return status 200 content-type text/plain lf-string \"%[lua.said]\" if {{ path /said }}\n \
         http-request deny if {{ path /denied }}\n filter lua.tcp\n filter lua.trace F {}\n default_backend b\n\
         backend b\n filter lua.trace B {}\n server s {server}\n\
         frontend t\n mode tcp\n bind {}\n filter lua.trace T {}\n default_backend tb\n\
         backend tb\n mode tcp\n server s {server}\n",
        gates[0].word(),
        does[0],
        does[1],
        gates[1].word(),
        does[0],
    )
}

/// What is sent, each on a connection of its own, to the frontend of HTTP.
const REQUESTS: &[&str] = &[
    "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /203 HTTP/1.1\r\nHost: h\r\n\r\n",
    "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\n\r\nrefused",
    "POST / HTTP/1.1\r\nHost: h\r\nX-Gone: 1\r\nContent-Length: 4\r\n\r\nabcd",
    "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "GET /denied HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /refused HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /broken HTTP/1.1\r\nHost: h\r\n\r\n",
];

/// Returns what the script has said since the last question, without what the question itself causes.
fn said(gate: &Listening) -> Vec<String> {
    let said = Client::connect(&gate.address()).get("/said").text().replace("%0A", "\n");
    let said = said.split_once("\r\n\r\n").map_or(&*said, |(_, said)| said);
    said.lines().filter(|line| *line != "F start false" && *line != "F end false").map(str::to_owned).collect()
}

/// Sorts the ends of both directions, which come in any order.
fn sort_ends(said: &mut [String]) {
    said.sort_by_key(
        |line| if line.contains(" end ") && !line.contains("message") { line.clone() } else { String::new() },
    );
}

/// Sends everything; returns each response, without fields of no interest, and what the script has said then.
fn conversation(gates: &[Listening], does: [&str; 2]) -> Vec<String> {
    let mut all = Vec::new();
    let mut seen = |request: &str, gate: &Listening| {
        let mut client = Client::connect(&gate.address());
        client.send(request.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1));
        let text = String::from_utf8_lossy(&client.read_to_end()).into_owned();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("connection: ")).collect();
        let mut said = said(&gates[0]);
        // Both directions end in any order, and 2.8 ends a response that has not begun.
        sort_ends(&mut said);
        if !said.iter().any(|line| line.ends_with("start true")) {
            said.retain(|line| !line.ends_with("end true"));
        }
        if said.iter().any(|line| line.starts_with("T ")) {
            said.retain(|line| !line.starts_with("T end"));
            said.sort();
        }
        let is_quiet = request.contains("/denied") || does[0] == "ignored";
        assert!(!said.is_empty() || is_quiet, "nothing was said about {request:?}");
        all.push(format!("{request:?}\n{}\n{}", lines.join("\n"), said.join("\n")));
    };
    // The length in the answer to HEAD stays in HAProxy beside the framing that a script sets.
    let sets_length = does.iter().any(|does| ["rewrites", "holds", "length"].contains(does));
    for request in REQUESTS.iter().filter(|request| !sets_length || !request.starts_with("HEAD")) {
        seen(request, &gates[0]);
    }
    seen(REQUESTS[4], &gates[1]);
    all
}

pub(super) fn folder(script: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("filters.lua"), script).expect("writable");
    directory
}

/// Runs a configuration with the script `filters.lua` with HAProxy 2.8 and with this program; returns what `talk` sees of
/// each.
pub(super) fn beside<T>(
    script: &str,
    text: impl Fn(&str, &[Listening]) -> String,
    talk: impl Fn(&[Listening]) -> T,
) -> [T; 2] {
    [false, true].map(|ours| {
        let gates = [Listening::new(), Listening::new()];
        let directory = folder(script);
        if ours {
            let text = text("@DIR@", &gates);
            let _ours = Sluicegate::start_in(BINARY, &text, &[&gates[0], &gates[1]], directory);
            return talk(&gates);
        }
        let text = text(directory.path().to_str().expect("a UTF-8 path"), &gates);
        let _haproxy = Haproxy::start_2_8(&text, &[&gates[0], &gates[1]]);
        talk(&gates)
    })
}

fn compare(does: [&str; 2], loads: &str) {
    let server = echo();
    let text = |directory: &str, gates: &[Listening]| configuration(directory, gates, &server, does, loads);
    let [theirs, ours] = beside(SCRIPT, text, |gates| conversation(gates, does));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs, "{does:?}");
    }
}

#[test]
fn the_order_of_events() {
    compare(["", ""], "lua-load");
    compare(["blind", "leaves"], "lua-load-per-thread");
}

#[test]
fn heads_are_changed() {
    compare(["heads", ""], "lua-load");
    compare(["", "heads"], "lua-load");
}

#[test]
fn bodies_are_changed() {
    compare(["rewrites", ""], "lua-load");
    compare(["", "rewrites"], "lua-load");
    compare(["holds", "rewrites"], "lua-load-per-thread");
    compare(["inserts", "length"], "lua-load");
}

#[test]
fn filters_wait() {
    compare(["waits", ""], "lua-load");
    compare(["", "waits"], "lua-load");
}

#[test]
fn filters_refuse() {
    compare(["refuses", ""], "lua-load");
    compare(["", "breaks"], "lua-load");
    compare(["ignored", ""], "lua-load");
}

/// What is compared with nothing: 2.8 sends nothing for `channel:send`, and has no filter that holds more than its buffer.
const OWN: &str = r#"
local Own = { flags = filter.FLT_CFG_FL_HTX }
Own.__index = Own
function Own:new() return setmetatable({ does = self.args[1] }, Own) end
function Own:start_analyze(txn, channel)
  filter.register_data_filter(self, channel)
  local ok, why = pcall(core.msleep, 1)
  local other, data = pcall(channel.data, channel)
  txn:set_var('txn.why', tostring(why):gsub('^.-: ', '') .. tostring(other))
end
function Own:http_headers(txn, message)
  if message:is_resp() then
    message:add_header('x-why', txn:get_var('txn.why'))
    message:add_header('x-late', tostring(pcall(message.body, message)))
    if self.does == 'late' then message:set_body_len('chunked') end
  end
end
function Own:http_payload(txn, message)
  if not message:is_resp() or self.does ~= 'late' then return end
  if message:eom() and not self.late then
    self.late = true
    message:unset_eom()
    filter.wake_time(5)
  elseif self.late and not self.done then
    self.done = true
    message:append('late')
    message:set_eom()
  end
end
function Own:tcp_payload(txn, channel)
  if #(channel:data() or '') > 0 then channel:send('<') end
end
core.register_filter('own', Own, function(class, args) class.args = args return class end)
core.register_service('text', 'http', function(applet)
  applet:set_status(200)
  applet:start_response()
  applet:send('from a ')
  core.msleep(5)
  applet:send('service')
end)
core.register_filter('wrong', Own, function() error('no argument') end)
"#;

fn own(text: &str, gates: &[Listening]) -> Sluicegate {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("own.lua"), OWN).expect("writable");
    let gates: Vec<&Listening> = gates.iter().collect();
    let text = format!(
        "global\n nbthread 2\n tune.bufsize 16384\n lua-load @DIR@/own.lua\n\
         defaults\n timeout client 60s\n timeout connect 60s\n timeout server 60s\n{text}"
    );
    Sluicegate::start_in(BINARY, &text, &gates, directory)
}

#[test]
fn an_end_is_held_back_and_functions_do_not_wait() {
    let gates = [Listening::new()];
    let text = format!(
        "frontend f\n mode http\n bind {}\n filter lua.own late\n default_backend b\nbackend b\n mode http\n server s {}\n",
        gates[0].word(),
        echo()
    );
    let _program = own(&text, &gates);
    let mut client = Client::connect(&gates[0].address());
    client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nabcd");
    let response = client.read_response();
    assert_eq!(response.text(), "abcdlate");
    assert_eq!(response.header("x-why"), Some("cannot wait herefalse"));
    assert_eq!(response.header("x-late"), Some("false"));
    // The next request of the connection has filters of its own.
    assert_eq!(client.get("/").text(), "late");
}

#[test]
fn large_bodies_pass_whole() {
    let gates = [Listening::new(), Listening::new()];
    let text = format!(
        "frontend f\n mode http\n bind {}\n filter lua.own x\n filter trace quiet random-forwarding\n default_backend b\n\
         backend b\n mode http\n filter lua.own x\n server s {}\n\
         frontend t\n mode tcp\n bind {}\n filter lua.own x\n default_backend tb\nbackend tb\n mode tcp\n server s {}\n",
        gates[0].word(),
        echo(),
        gates[1].word(),
        echo()
    );
    let _program = own(&text, &gates);
    let body: Vec<u8> = (0..1_000_000_u32).flat_map(|number| number.to_le_bytes()).take(1_000_000).collect();
    let mut client = Client::connect(&gates[0].address());
    client.send(
        [format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat(),
    );
    assert!(client.read_response().body == body, "the body is another one");
    let mut client = Client::connect(&gates[1].address());
    client.send("GET / HTTP/1.1\r\nhost: h\r\n\r\n");
    let text = String::from_utf8_lossy(&client.read_to_end()).into_owned();
    assert!(text.starts_with("<HTTP/1.1 200 OK\r\nx-line: <get / http/1.1\r\n"), "{text}");
}

#[test]
fn answers_of_services_pass_filters() {
    let gates = [Listening::new()];
    let text = format!(
        "frontend f\n mode http\n bind {}\n filter lua.own late\n stats enable\n stats uri /stats\n \
         http-request use-service lua.text if {{ path /service }}\n",
        gates[0].word()
    );
    let _program = own(&text, &gates);
    let mut client = Client::connect(&gates[0].address());
    assert_eq!(client.get("/service").text(), "from a servicelate");
    let page = client.get("/stats").text();
    assert!(page.starts_with("<!DOCTYPE") && page.ends_with("late"), "{page}");
}

#[test]
fn lines_that_cannot_be_made_are_errors() {
    let check = |command: &str, line: &str, wanted: &str| {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("own.lua"), OWN).expect("writable");
        let path = directory.path().join("haproxy.cfg");
        let script = directory.path().join("own.lua");
        let text = format!(
            "global\n lua-load {}\nfrontend f\n mode http\n bind 127.0.0.1:1\n filter {line}\n timeout client 1s\n",
            script.display()
        );
        std::fs::write(&path, text).expect("writable");
        let output = std::process::Command::new(BINARY).arg(command).arg(&path).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() == (wanted == "valid") && text.contains(wanted), "{text}");
    };
    check("check", "lua.owm", "did you mean 'lua.own'?");
    // As in HAProxy, the functions of lines run when the process starts.
    check("check", "lua.wrong", "valid");
    check("run", "lua.wrong", "Lua filter 'wrong' : runtime error : ");
}
