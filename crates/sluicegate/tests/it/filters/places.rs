//! Filters of scripts where no server sends a body: responses of caches and of services, and tunnels, with HAProxy 2.8 and
//! with this program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use sluicegate_testkit::{Client, Listening, Sluicegate, wait_for};

use super::scripts::{beside, folder, serve};
use crate::{BINARY, http2};

/// Keeps the events of each stream; `/said` returns them. The second argument says what the filter does.
const SCRIPT: &str = r#"
local said = {}
local function say(filter, ...)
  local words = table.pack(filter.name, ...)
  for i = 1, words.n do words[i] = tostring(words[i]) end
  local line = table.concat(words, ' ')
  if said[#said] ~= line then said[#said + 1] = line end
end
local function side(of) return of:is_resp() and 'res' or 'req' end

local Trace = { flags = filter.FLT_CFG_FL_HTX }
Trace.__index = Trace
function Trace:new()
  return setmetatable({ name = self.args[1], does = self.args[2] or '', added = {} }, Trace)
end
function Trace:start_analyze(txn, channel)
  say(self, 'start', side(channel))
  filter.register_data_filter(self, channel)
end
function Trace:end_analyze(txn, channel) say(self, 'end', side(channel)) end
function Trace:http_headers(txn, message)
  local line, fields = message:get_stline(), message:get_headers()
  local length = fields['content-length'] and fields['content-length'][0]
  say(self, 'head', line.method or line.code, line.uri or line.reason, length)
  if self.does == 'adds' then message:set_body_len('chunked') end
  if self.does == 'heads' then
    message:add_header('x-filtered', self.name)
    if line.code then message:set_status(299, 'Changed') end
  elseif self.does == 'refuses request' and line.method or self.does == 'refuses response' and line.code then
    return filter.ERROR
  end
end
function Trace:http_payload(txn, message)
  local body, at = message:body(), side(message.channel)
  local length = body and #body or 0
  if length > 0 or message:eom() then say(self, 'data', at, length < 100 and body or length, message:eom()) end
  if self.does == 'holds' and not message:eom() then return 0 end
  if self.does == 'changes' and length > 0 then message:set(body:upper()) end
  local adds = self.does == 'adds' or self.does == 'exceeds ' .. at
  if adds and message:eom() and not self.added[at] then
    self.added[at] = true
    message:append('[' .. self.name .. ']')
  end
end
function Trace:http_end(txn, message) say(self, 'message end', side(message), message:eom()) end
function Trace:tcp_payload(txn, channel)
  local at = side(channel)
  say(self, 'bytes', at, txn.http_req ~= nil, txn.http_res ~= nil)
  for _, name in ipairs { 'data', 'line', 'remove' } do
    local ok, why = pcall(channel[name], channel)
    say(self, 'tries', name, at, ok, (tostring(why):gsub('^.-:%d+: ', '')))
  end
  local ok, why = pcall(channel.append, channel, 'x')
  say(self, 'tries', 'append', at, ok, (tostring(why):gsub('^.-:%d+: ', '')))
  if self.does == 'raises' then channel:data() end
end
core.register_filter('trace', Trace, function(class, args)
  class.args = { args[1], args[2] and args[2]:gsub('_', ' ') }
  return class
end)

core.register_service('text', 'http', function(applet)
  applet:set_status(200)
  applet:start_response()
  applet:send('from a ')
  core.msleep(5)
  applet:send('service')
end)
core.register_service('body', 'http', function(applet)
  local body = applet:receive()
  applet:set_status(200)
  applet:add_header('content-length', tostring(5 + #body))
  applet:add_header('x-head', applet.method .. ' ' .. (applet.headers['x-filtered'] or {})[0])
  applet:start_response()
  applet:send('body:' .. body)
end)
core.register_service('fails', 'http', function() error('as it should') end)
core.register_fetches('said', function()
  local all = table.concat(said, '\n')
  said = {}
  return all
end)
"#;

/// A server of tunnels that send back what they get, of responses for a cache, and of an invalid one.
fn server() -> String {
    serve(answer)
}

fn answer(mut stream: &TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") && reader.read_line(&mut text)? > 0 {}
    if text.contains("chunked") {
        while !text.ends_with("0\r\n\r\n") && reader.read_line(&mut text)? > 0 {}
    }
    let refused = text.contains("refused");
    if !refused && (text.starts_with("CONNECT") || text.contains("websocket")) {
        let head = match text.starts_with("CONNECT") {
            true => "200 Connected",
            false => "101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket",
        };
        stream.write_all(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes())?;
        let mut bytes = [0; 1000];
        loop {
            match reader.read(&mut bytes)? {
                0 => return Ok(()),
                count => stream.write_all(&bytes[..count])?,
            }
        }
    }
    stream.write_all(match text.split(' ').nth(1) {
        Some("/bad") => b"garbage\r\n\r\n",
        _ if refused => b"HTTP/1.1 403 No\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno",
        _ => {
            b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\netag: \"x\"\r\ncontent-length: 6\r\nconnection: close\r\n\r\nabcdef"
        }
    })
}

/// Returns the configuration with these filters' deeds: in the frontend, in front of the cache, and behind it.
fn configuration(directory: &str, gates: &[Listening], server: &str, does: [&str; 3]) -> String {
    format!(
        "global\n nbthread 1\n lua-load {directory}/filters.lua\n\
         cache c\n total-max-size 4\n max-age 60\n\
         defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\n\
         frontend f\n bind {}\n filter lua.trace F {}\n stats enable\n stats uri /stats\n \
         http-request return status 200 content-type text/plain string returned if {{ path /return }}\n \
         http-request redirect location /else if {{ path /redirect }}\n http-request deny if {{ path /deny }}\n \
         http-request use-service lua.text if {{ path /service }}\n \
         http-request use-service lua.body if {{ path /body }}\n \
         http-request use-service lua.fails if {{ path /fails }}\n \
         http-request use-service prometheus-exporter if {{ path /metrics }}\n \
         use_backend local if {{ path_beg /local }}\n default_backend b\n\
         backend local\n filter lua.trace L {}\n \
         http-request return status 200 content-type text/plain string returned if {{ path /local/return }}\n \
         http-request use-service lua.text\n\
         backend b\n filter lua.trace B {}\n filter cache c\n filter lua.trace C {}\n \
         http-request cache-use c if {{ path /cache }}\n http-response cache-store c\n server s {server}\n\
         frontend s\n bind {}\n http-request return status 200 content-type text/plain lf-string \"%[lua.said]\"\n",
        gates[0].word(),
        does[0],
        does[1],
        does[1],
        does[2],
        gates[1].word(),
    )
}

/// Returns what the filters have said, once each direction that has begun has ended. The order of both directions and the
/// number of calls without data differ. With `one_way` only the end of the request is awaited.
fn said(gate: &Listening, one_way: bool) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    wait_for("the end of both directions", || {
        let text = Client::connect(&gate.address()).get("/").text().replace("%0A", "\n");
        all.extend(text.lines().map(str::to_owned));
        let mut starts = all.iter().filter(|line| line.contains(" start "));
        starts
            .all(|line| one_way && line.ends_with("res") || all.contains(&line.replace(" start ", " end ")))
            .then_some(())
    });
    if !all.iter().any(|line| line.contains(" start res")) {
        // 2.8 ends a response that has not begun.
        all.retain(|line| !line.contains(" end res"));
    }
    let (mut requests, mut responses) = (Vec::new(), Vec::new());
    for line in all {
        let of_response =
            line.contains(" res") || ["2", "3", "4", "5"].iter().any(|digit| line.contains(&format!(" head {digit}")));
        let lines = if of_response { &mut responses } else { &mut requests };
        let repeats = (line.contains(" tries ") || !line.contains(" data ")) && lines.contains(&line);
        if !repeats {
            lines.push(line);
        }
    }
    requests.extend(responses);
    requests
}

/// Joins the chunks of a response's body; sorts the fields and leaves out those of no interest.
fn normal(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return text.into_owned() };
    let mut lines: Vec<&str> = head.lines().collect();
    lines[1..].sort_unstable();
    lines.retain(|line| !line.starts_with("age: ") && !line.starts_with("connection: "));
    let (mut joined, mut rest) = (String::new(), body);
    if lines.contains(&"transfer-encoding: chunked") {
        while let Some((size, data)) = rest.split_once("\r\n") {
            let size = usize::from_str_radix(size, 16).expect("the size of a chunk");
            joined.push_str(&data[..size]);
            rest = &data[size + 2..];
        }
    }
    format!("{}\n\n{joined}{rest}", lines.join("\n"))
}

/// Requests, each on its own connection.
const REQUESTS: &[&str] = &[
    "GET /cache HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /cache HTTP/1.1\r\nHost: h\r\n\r\n",
    "HEAD /cache HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /cache HTTP/1.1\r\nHost: h\r\nIf-None-Match: \"x\"\r\n\r\n",
    "GET /service HTTP/1.1\r\nHost: h\r\n\r\n",
    "HEAD /service HTTP/1.1\r\nHost: h\r\n\r\n",
    "POST /service HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody",
    "POST /body HTTP/1.1\r\nHost: h\r\nX-Filtered: no\r\nContent-Length: 4\r\n\r\nbody",
    "POST /body HTTP/1.1\r\nHost: h\r\nX-Filtered: no\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "GET /fails HTTP/1.1\r\nHost: h\r\n\r\n",
    "HEAD /stats HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /local HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /local/return HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /return HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /redirect HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /deny HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /bad HTTP/1.1\r\nHost: h\r\n\r\n",
];

/// Compares the answers to all requests that `asks` wants.
fn compare(does: [&str; 3], asks: impl Fn(&str) -> bool) {
    let server = server();
    let text = |directory: &str, gates: &[Listening]| configuration(directory, gates, &server, does);
    let [theirs, ours] = beside(SCRIPT, text, |gates| {
        let mut all = Vec::new();
        for request in REQUESTS.iter().filter(|request| asks(request)) {
            let mut client = Client::connect(&gates[0].address());
            client.send(request.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1));
            let mut answer = normal(&client.read_to_end());
            if does[0] == "exceeds_res" {
                // Whether the head has been sent when the filter exceeds it differs.
                assert!(answer.contains("chunked") || !answer.contains("[F]"), "{request:?}: {answer}");
                answer.clear();
            }
            if request.starts_with("HEAD /service") {
                // 2.8 announces the chunks that a body would have, 3.2 does not, as `lua_replies` says.
                answer = answer.replace("transfer-encoding: chunked\n", "");
            }
            let mut said = said(&gates[1], does.contains(&"refuses_request"));
            if does.contains(&"refuses_request") {
                // 2.8 begins with the response of a service before filters have seen the request, and may not end it.
                said.retain(|line| !line.ends_with(" res"));
            }
            assert!(!said.is_empty(), "nothing was said about {request:?}");
            all.push(format!("{request:?}\n{answer}\n{}", said.join("\n")));
        }
        all
    });
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs, "{does:?}");
    }
}

#[test]
fn the_order_of_events() {
    compare(["", "", ""], |_| true);
}

#[test]
fn answers_are_changed() {
    compare(["heads", "", ""], |_| true);
    compare(["", "heads", ""], |_| true);
    compare(["changes", "", ""], |_| true);
    compare(["", "adds", ""], |_| true);
    // The framing that a filter sets for what HEAD would get differs.
    compare(["adds", "", "changes"], |request| !request.starts_with("HEAD /stats"));
    compare(["holds", "", ""], |_| true);
}

#[test]
fn answers_are_refused() {
    let asks =
        |request: &str| ["GET /cache", "GET /service", "GET /local "].iter().any(|start| request.starts_with(start));
    compare(["refuses_request", "", ""], asks);
    compare(["refuses_response", "", ""], asks);
}

/// More than a head announces would be read as the next message.
#[test]
fn heads_limit_what_filters_add() {
    let has_length = |request: &str| !request.starts_with("HEAD");
    compare(["exceeds_res", "", ""], has_length);
    compare(["", "exceeds_req", ""], has_length);
}

const UPGRADE: &str = "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
const CONNECT: &str = "CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n";
const REFUSED: &str = "CONNECT refused:1 HTTP/1.1\r\nHost: refused:1\r\n\r\n";

/// Compares what passes tunnels, and what the filters say about it.
fn tunnels(does: [&str; 3], requests: &[&str], opens: bool) {
    let server = server();
    let text = |directory: &str, gates: &[Listening]| configuration(directory, gates, &server, does);
    let [theirs, ours] = beside(SCRIPT, text, |gates| {
        let mut all = Vec::new();
        for request in requests {
            let mut client = Client::connect(&gates[0].address());
            client.send(request);
            let mut got = Vec::new();
            if opens && *request != REFUSED {
                got.extend(client.read_until(b"\r\n\r\n"));
                for text in ["hello", "once more"] {
                    client.send(text);
                    got.extend(client.read_exact(text.len()));
                }
            }
            client.finish();
            got.extend(client.read_to_end());
            all.push(format!("{request:?}\n{}\n{}", normal(&got), said(&gates[1], false).join("\n")));
        }
        all
    });
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs, "{does:?}");
    }
}

#[test]
fn tunnels_have_bytes_and_no_messages() {
    tunnels(["", "", ""], &[UPGRADE, CONNECT, REFUSED], true);
    tunnels(["changes", "", "adds"], &[UPGRADE], true);
    tunnels(["exceeds_res", "", ""], &[UPGRADE, CONNECT], true);
}

/// What a filter adds at the end of a request is a part of it, and none of the tunnel.
#[test]
fn requests_end_before_tunnels() {
    tunnels(["exceeds_req", "", ""], &[CONNECT], true);
    tunnels(["exceeds_req", "", ""], &[UPGRADE], false);
    tunnels(["adds", "", ""], &[UPGRADE], true);
}

#[test]
fn contents_of_tunnels_are_not_accessible() {
    tunnels(["raises", "", ""], &[CONNECT], false);
}

/// Tunnels of clients of HTTP/2 are those of HTTP/1 to filters. (2.8 passes nothing in that of this test.)
#[test]
fn tunnels_of_http2() {
    const TEXTS: [&str; 2] = ["hello", "once more"];
    for does in [["", "", ""], ["changes", "", "adds"], ["exceeds_res", "", ""]] {
        let (server, gates) = (server(), [Listening::new(), Listening::new()]);
        let text = configuration("@DIR@", &gates, &server, does);
        let _ours = Sluicegate::start_in(BINARY, &text, &[&gates[0], &gates[1]], folder(SCRIPT));
        let mut plain = Client::connect(&gates[0].address());
        plain.send(CONNECT);
        plain.read_until(b"\r\n\r\n");
        let mut expected = String::new();
        for text in TEXTS {
            plain.send(text);
            expected += &String::from_utf8_lossy(&plain.read_exact(text.len()));
        }
        plain.finish();
        expected += &String::from_utf8_lossy(&plain.read_to_end());
        let events = said(&gates[1], false);

        let mut client = http2::Client::connect(&gates[0].address());
        let stream = client.begin("CONNECT h:1", false);
        assert_eq!(client.head(stream).status, 200);
        let mut length = 0;
        for text in TEXTS {
            client.data(stream, text.as_bytes(), false);
            length += text.len();
            client.until("an echo", |client| client.seen(stream).body.len() >= length);
        }
        client.data(stream, b"", true);
        client.until("the end", |client| client.seen(stream).is_over());
        let answer = client.seen(stream);
        assert_eq!((answer.text(), answer.complete), (expected, true), "{does:?}");
        assert_eq!(said(&gates[1], false), events, "{does:?}");
    }
}
