//! Replies of scripts on the wire: versions, lengths, chunks, reasons and the end of the connection, beside HAProxy 2.8.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use sluicegate_testkit::{Haproxy, Listening, PATIENCE, Program, Sluicegate, wait_for};

use crate::BINARY;

/// Each line: the name, the status, the reason (`-`: none is given), the fields separated by `;`, and the body.
const REPLIES: &str = "plain|200|-||hello
empty|200|-||
gone|204|-||
same|304|-|etag: \"a\"|
samebody|304|-||xx
chunks|200|-|transfer-encoding: chunked|hello
nochunk|200|-|Transfer-Encoding: Chunked|
coded|200|-|transfer-encoding: gzip, chunked|hello
twice|200|-|transfer-encoding: chunked;transfer-encoding: chunked|hello
both|200|-|transfer-encoding: chunked;content-length: 5|hello
long|200|-|content-length: 50|hello
close|200|-|connection: close|hello
Close|200|-|Connection: Close|hello
keep|200|-|connection: keep-alive|hello
option|200|-|connection: x-foo|hello
options|200|-|connection: x-foo, close|hello
blank|404||x: y|hello
own|404|Own||hello
unknown|299|||
";

const SCRIPT: &str = r#"
for line in io.lines('@LINES@') do
  local name, status, reason, fields, body = line:match('^(%w+)|(%d+)|([^|]*)|([^|]*)|(.*)$')
  if reason == '-' then reason = nil end
  local function each(object)
    object:set_status(tonumber(status), reason)
    for field, value in fields:gmatch('([^:;]+): ([^;]+)') do object:add_header(field, value) end
  end
  core.register_action(name, { 'http-req' }, function(txn)
    local reply = txn:reply()
    each(reply)
    if body ~= '' then reply:set_body(body) end
    txn:done(reply)
  end)
  core.register_service(name, 'http', function(applet)
    each(applet)
    applet:start_response()
    if body ~= '' then applet:send(body) end
  end)
end
core.register_action('table', { 'http-req' }, function(txn)
  txn:done({ status = 404, reason = '', body = 'x', headers = { connection = { 'close' } } })
end)
core.register_action('large', { 'http-req' }, function(txn)
  txn:done({ status = 200, body = ('x'):rep(40000) })
end)
core.register_action('response', { 'http-res' }, function(txn)
  local reply = txn:reply({ status = 503, body = 'y' })
  reply:add_header('transfer-encoding', 'chunked')
  txn:done(reply)
end)
"#;

const CONFIGURATION: &str = "global\n nbthread 1\n log stdout format raw local0\n lua-load @SCRIPT@\n\
    defaults\n mode http\n log global\n option httplog\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n\
    frontend origin\n bind @ORIGIN@\n no log\n http-request return status 200\n\
    frontend front\n bind @GATE@\n http-request return status 200 hdr x-end 1 if { path /end }\n \
    http-request lua.table if { path /table }\n http-request lua.large if { path /large }\n \
    http-request return status 200 hdr connection x-a,close if { path /returned }\n default_backend back\n@RULES@\
    backend back\n http-response lua.response\n server s @TO@\n";

const LAST: &str = "GET /end HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

/// The requests for a path, each with the method, the version and a field.
const WAYS: [(&str, &str, &str); 5] = [
    ("GET", "1.1", ""),
    ("HEAD", "1.1", ""),
    ("GET", "1.1", "Connection: close\r\n"),
    ("GET", "1.0", ""),
    ("GET", "1.0", "Connection: keep-alive\r\n"),
];

/// Asks for every path in every way, each time with another request behind, which is answered if the connection stays
/// open. Returns the request, what came, and the log lines without times.
fn transcript<P>(
    paths: &[String],
    start: impl Fn(&str, &[&Listening]) -> P,
    program: impl Fn(&P) -> &Program,
) -> Vec<(String, String, Vec<String>)> {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("lines"), REPLIES).unwrap();
    std::fs::write(path("script.lua"), SCRIPT.replace("@LINES@", &path("lines"))).unwrap();
    let rule = |name: &str| {
        format!(
            " http-request lua.{name} if {{ path /{name} }}\n http-request use-service lua.{name} if {{ path /s/{name} }}\n"
        )
    };
    let rules: String = names().map(rule).collect();
    let gates = [Listening::new(), Listening::new()];
    let text = CONFIGURATION.replace("@SCRIPT@", &path("script.lua")).replace("@RULES@", &rules);
    let text = text.replace("@GATE@", &gates[0].word()).replace("@ORIGIN@", &gates[1].word());
    let running = start(&text.replace("@TO@", &gates[1].address()), &[&gates[0], &gates[1]]);
    let mut seen = 0;
    let mut all = Vec::new();
    for (path, (method, version, field)) in paths.iter().flat_map(|path| WAYS.map(|way| (path, way))) {
        let request = format!("{method} {path} HTTP/{version}\r\nHost: h\r\n{field}\r\n");
        let mut stream = TcpStream::connect(gates[0].address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(format!("{request}{LAST}").as_bytes()).unwrap();
        let mut answer = Vec::new();
        // A connection that is closed with a request unread ends with a reset.
        let ended = stream.read_to_end(&mut answer);
        assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "{request:?}");
        let answer = String::from_utf8(answer).unwrap();
        let count = 1 + usize::from(answer.contains("x-end: 1"));
        let lines = wait_for("the log lines", || {
            let output = program(&running).output();
            let complete = output.rfind('\n').map_or("", |end| &output[..end]);
            let lines: Vec<String> = complete.lines().filter_map(masked).skip(seen).collect();
            (lines.len() == count).then_some(lines)
        });
        seen += count;
        all.push((request, answer, lines));
    }
    all
}

fn names() -> impl Iterator<Item = &'static str> {
    REPLIES.lines().map(|line| line.split('|').next().unwrap())
}

/// The status, the size, the termination state and the request of a log line.
fn masked(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("] front ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    Some(format!("{} {} {} {}", words[2], words[3], words[6], words[9..].join(" ")))
}

fn ours(paths: &[String]) -> Vec<(String, String, Vec<String>)> {
    transcript(paths, |text, gates| Sluicegate::start(BINARY, text, gates), |gate| &gate.program)
}

/// Whether the answer to a request is another one on purpose; `differences_from_haproxys_replies` has those.
fn differs(request: &str) -> bool {
    let path = request.split(' ').nth(1).unwrap();
    let name = path.strip_prefix("/s/").or_else(|| path.strip_prefix('/')).unwrap();
    let line = REPLIES.lines().find(|line| line.split('|').next() == Some(name));
    let chunked = line.is_some_and(|line| line.to_lowercase().contains("chunked")) || path == "/other";
    match path.starts_with("/s/") {
        true => {
            matches!(name, "gone" | "same" | "samebody" | "twice" | "both" | "long")
                || request.contains("HTTP/1.0") && chunked
                || request.starts_with("HEAD") && !chunked
        }
        false => request.contains("HTTP/1.0") && chunked,
    }
}

#[test]
fn replies_of_scripts_are_haproxys_on_the_wire() {
    let paths: Vec<String> = names().flat_map(|name| [format!("/{name}"), format!("/s/{name}")]).collect();
    let paths = [paths, ["/table", "/other", "/returned"].map(str::to_owned).to_vec()].concat();
    let mut theirs = transcript(&paths, Haproxy::start_2_8, |haproxy| &haproxy.program);
    let mut ours = ours(&paths);
    assert_eq!(ours.len(), theirs.len());
    // The logged size is that of the written coding here, and that of the script's there.
    let sized = |request: &str| !request.contains("/coded ") && !request.contains("/twice ");
    for (request, _, lines) in ours.iter_mut().chain(&mut theirs) {
        lines.truncate(if sized(request) { 2 } else { 0 });
    }
    let pairs = ours.iter().zip(&theirs).filter(|((request, ..), _)| !differs(request));
    let differing: Vec<_> = pairs.filter(|(ours, theirs)| ours != theirs).collect();
    assert!(differing.is_empty(), "ours and theirs: {differing:#?}");
}

#[test]
fn differences_from_haproxys_replies() {
    let paths = ["/s/gone", "/s/same", "/chunks", "/s/chunks", "/s/both", "/s/twice", "/s/plain", "/s/close", "/large"];
    let ours = ours(&paths.map(str::to_owned));
    let end = "HTTP/1.1 200 OK\r\nx-end: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let expect = |path: &str, way: usize, expected: &str| {
        let at = paths.iter().position(|one| *one == path).unwrap() * WAYS.len() + way;
        let expected = expected.replace("END", end).replace("CHUNKS", "5\r\nhello\r\n0\r\n\r\n");
        assert_eq!(ours[at].1, format!("HTTP/{} {expected}", WAYS[way].1), "{:?}", ours[at].0);
    };
    // HAProxy closes the connection, although neither status has a body whose end must be found.
    expect("/s/gone", 0, "204 No Content\r\n\r\nEND");
    expect("/s/gone", 4, "204 No Content\r\nconnection: keep-alive\r\n\r\nEND");
    expect("/s/same", 0, "304 Not Modified\r\netag: \"a\"\r\n\r\nEND");
    // HAProxy sends chunks to clients of HTTP/1.0, which have none.
    expect("/chunks", 3, "200 OK\r\ncontent-length: 5\r\n\r\nhello");
    expect("/chunks", 4, "200 OK\r\ncontent-length: 5\r\nconnection: keep-alive\r\n\r\nhelloEND");
    expect("/s/chunks", 3, "200 OK\r\n\r\nhello");
    // As HAProxy 3.2: chunks win over a length (`hlua_applet_http_send_response` of its src/hlua.c). 2.8 sends both.
    expect("/s/both", 0, "200 OK\r\ntransfer-encoding: chunked\r\n\r\nCHUNKSEND");
    // A reply that does not fit a buffer, which HAProxy answers with 500.
    expect("/large", 0, &format!("200 OK\r\ncontent-length: 40000\r\n\r\n{}END", "x".repeat(40000)));
    // A second coding is a script's mistake that HAProxy answers with 500.
    expect("/s/twice", 0, "200 OK\r\ntransfer-encoding: chunked\r\n\r\nCHUNKSEND");
    // As HAProxy 3.2, which writes the coding of a response that has neither length nor chunks of its own with the body
    // (`h1_make_headers` of its src/mux_h1.c). 2.8 announces it without a body, too.
    expect("/s/plain", 1, "200 OK\r\n\r\nEND");
    expect("/s/close", 1, "200 OK\r\nconnection: close\r\n\r\n");
    expect("/s/chunks", 1, "200 OK\r\ntransfer-encoding: chunked\r\n\r\nEND");
}

/// Scripts and rules of a request see what has come of its body while a script slept.
#[test]
fn a_body_that_comes_while_an_action_sleeps_is_seen() {
    let answers = |start: &dyn Fn(&str, &Listening) -> Box<dyn std::any::Any>| {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script.lua");
        let code = "local function seen(txn)
            return txn.sf:req_body_len() .. ' ' .. txn.sf:req_body_size() .. ' ' .. txn.sf:req_body_param('a') .. ' ' .. txn.sf:req_body()
          end
          core.register_action('waits', { 'http-req' }, function(txn)
            local text = seen(txn)
            while tonumber(txn.sf:req_body_len()) < 9 do core.msleep(5) end
            txn:set_var('txn.r', text .. ' then ' .. seen(txn))
          end)
          core.register_action('sleeps', { 'http-req' }, function(txn) core.msleep(400) end)";
        std::fs::write(&script, code).unwrap();
        let gate = Listening::new();
        let text = format!(
            "global\n nbthread 1\n lua-load {}\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n \
             timeout connect 60s\nfrontend f\n bind {}\n http-request lua.waits if {{ path /waits }}\n \
             http-request lua.sleeps if {{ path /sleeps }}\n http-request return status 200 content-type text/plain \
             lf-string \"%[var(txn.r)] and %[req.body] %[req.body_len]\"\n",
            script.display(),
            gate.word()
        );
        let _running = start(&text, &gate);
        let mut all = Vec::new();
        for path in ["/waits", "/sleeps"] {
            for (framing, parts) in [
                ("Content-Length: 9", ["a=v&", "c=d&e"]),
                ("Transfer-Encoding: chunked", ["4\r\na=v&\r\n2", "\r\nc=\r\n3\r\nd&e\r\n0\r\n\r\n"]),
            ] {
                let mut stream = TcpStream::connect(gate.address()).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let kind = "Content-Type: application/x-www-form-urlencoded";
                let head =
                    format!("POST {path} HTTP/1.1\r\nHost: h\r\n{kind}\r\n{framing}\r\nConnection: close\r\n\r\n");
                for part in [head.as_str()].iter().chain(&parts) {
                    stream.write_all(part.as_bytes()).unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(60));
                }
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                all.push(answer);
            }
        }
        all
    };
    let theirs = answers(&|text, gate| Box::new(Haproxy::start_2_8(text, &[gate])));
    let ours = answers(&|text, gate| Box::new(Sluicegate::start(BINARY, text, &[gate])));
    assert_eq!(ours, theirs);
    assert!(ours[0].ends_with("0 9   then 9 9 v a=v&c=d&e and a=v&c=d&e 9"), "{ours:?}");
    assert!(ours[3].ends_with(" and a=v&c=d&e 9"), "{ours:?}");
}
