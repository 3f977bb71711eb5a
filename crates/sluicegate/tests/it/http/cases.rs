//! Conversations of well-behaved clients and servers.

use super::{Case, Reply, Step, case, reply, reply_after, reply_and_close, seen, send, wait};

const GET: &str = "GET /a HTTP/1.1\r\nHost: h\r\nX-Order: 1\r\nAccept: */*\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 3\r\n\r\none";

/// A rule that answers with a built-in page, named by its line.
fn page(rule: &'static [&'static str]) -> Case {
    case(rule[0], vec![send(GET), wait("</html>\n")], vec![]).options(rule)
}

/// Answered without reading the body: whether the connection is kept depends on whether the body had arrived by then.
const ANSWERED_EARLY: [&str; 2] = ["deny a post", "server refuses a post"];

pub(super) fn cases() -> Vec<Case> {
    let splits = |case: Case| if ANSWERED_EARLY.contains(&case.name) { case } else { case.splits() };
    all().into_iter().map(splits).collect()
}

#[rustfmt::skip]
fn all() -> Vec<Case> {
    vec![
        // Connections.
        case("one request", vec![send(GET), wait("one")], vec![reply(OK)]),
        case("keep-alive", vec![send(GET), wait("one"), send(GET), wait("two")],
            vec![reply(OK), reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo")]),
        case("pipelined", vec![send(GET.repeat(3)), wait("one"), wait("two"), wait("three")],
            vec![reply(OK), reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo"),
                reply("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nthree")]),
        case("pipelined after a body", vec![send("POST /p HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\n\r\n"),
            wait("one"), wait("two")],
            vec![reply_after("abc", OK), reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo")]),
        case("byte by byte", GET.bytes().map(|byte| send(char::from(byte).to_string())).chain([wait("one")]).collect(),
            vec![reply(OK)]),
        case("client closes", vec![send("GET / HTTP/1.1\r\nConnection: close\r\n\r\n")], vec![reply(OK)]),
        case("client closes in upper case", vec![send("GET / HTTP/1.1\r\nCONNECTION: Close\r\n\r\n")], vec![reply(OK)]),
        case("server closes", vec![send(GET), wait("one"), send(GET), wait("two")],
            vec![reply_and_close("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\none"),
                reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo")]),
        case("client says keep-alive", vec![send("GET / HTTP/1.1\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n\r\n"), wait("one")],
            vec![reply("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: timeout=9\r\nContent-Length: 3\r\n\r\none")]),
        case("other connection options", vec![send("GET / HTTP/1.1\r\nConnection: TE, keep-alive, X-Hop\r\nTE: trailers, gzip\r\nX-Hop: 1\r\n\r\n"), wait("one")],
            vec![reply(OK)]),
        case("te without trailers", vec![send("GET / HTTP/1.1\r\nTE: gzip\r\n\r\n"), wait("one")], vec![reply(OK)]),
        case("http-server-close", vec![send(GET), wait("one"), send(GET), wait("two")],
            vec![reply(OK), reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo")])
            .options(&["option http-server-close"]),
        case("httpclose", vec![send(GET)], vec![reply(OK)]).options(&["option httpclose"]),
        case("forwardfor", vec![send(GET), wait("one")], vec![reply(OK)]).options(&["option forwardfor"]),
        // Versions.
        case("1.0 client", vec![send("GET /a HTTP/1.0\r\nHost: h\r\n\r\n")], vec![reply(OK)]),
        case("1.0 client keeps alive", vec![send("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"), wait("one"),
            send("GET /b HTTP/1.0\r\n\r\n")],
            vec![reply(OK), reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo")]),
        case("1.0 server", vec![send(GET), wait("one")],
            vec![reply_and_close("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\none")]),
        case("1.0 server until close", vec![send(GET)],
            vec![reply_and_close("HTTP/1.0 200 OK\r\n\r\neverything")]),
        case("1.0 server keeps alive", vec![send(GET), wait("one"), send(GET), wait("two")],
            vec![reply("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\none"),
                reply_and_close("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\ntwo")]),
        case("1.0 both", vec![send("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"), wait("one")],
            vec![reply("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\none")]),
        case("1.0 client, chunked answer", vec![send("GET /a HTTP/1.0\r\n\r\n")],
            vec![reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n")])
            .instead("HTTP/1.0 knows no chunks (RFC 9112 7.1)", "HTTP/1.1 200 OK\nconnection: close\n\none\n--- server\nGET /a HTTP/1.0\nconnection: keep-alive\n\n"),
        case("1.9 client", vec![send("GET /a HTTP/1.9\r\n\r\n"), wait("one")], vec![reply(OK)]),
        // Bodies.
        case("post", vec![send("POST /p HTTP/1.1\r\nContent-Length: 11\r\nX: y\r\n\r\nhello world"), wait("one")],
            vec![reply_after("hello world", OK)]),
        case("empty post", vec![send("POST /p HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), wait("one")], vec![reply(OK)]),
        case("post without length", vec![send("POST /p HTTP/1.1\r\nHost: h\r\n\r\n"), wait("one")], vec![reply(OK)]),
        case("get with a body", vec![send("GET /p HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), wait("one")],
            vec![reply_after("abc", OK)]),
        case("large post", vec![send("POST /p HTTP/1.1\r\nContent-Length: 300000\r\n\r\n"), send("x".repeat(299_997)), send("end"), wait("one")],
            vec![reply_after("end", OK)]),
        case("large answer", vec![send(GET), wait("end")],
            vec![reply(format!("HTTP/1.1 200 OK\r\nContent-Length: 300003\r\n\r\n{}end", "y".repeat(300_000)))]),
        case("chunked post", vec![send("POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n5;ext=1\r\nhello\r\n"),
            send("6\r\n world\r\n0\r\n\r\n"), wait("one")], vec![reply_after("0\r\n\r\n", OK)]),
        case("chunked post with trailers", vec![send("POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\n\r\n5\r\nhello\r\n0\r\nT: u\r\nV:  w \r\n\r\n"), wait("one")],
            vec![reply_after("w\r\n\r\n", OK)]),
        case("chunked answer", vec![send(GET), wait("0\r\n\r\n"), send(GET), wait("two")],
            vec![reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"),
                reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo")]),
        case("chunked answer with trailers", vec![send(GET), wait("\r\n\r\n"), wait("\r\n\r\n")],
            vec![reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: u\r\n\r\n")]),
        case("answer until close", vec![send(GET)], vec![reply_and_close("HTTP/1.1 200 OK\r\nX: y\r\n\r\neverything")]),
        case("answer before the body's end", vec![send("POST /p HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc"), wait("one"), send("defghij"), seen("defghij")],
            vec![reply(OK)]),
        // Answers without a body.
        case("head", vec![send("HEAD / HTTP/1.1\r\n\r\n"), wait("\r\n\r\n"), send("HEAD /b HTTP/1.1\r\n\r\n"), wait("\r\n\r\n")],
            vec![reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"), reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")]).head(),
        case("head without length", vec![send("HEAD / HTTP/1.1\r\n\r\n"), wait("\r\n\r\n")], vec![reply("HTTP/1.1 200 OK\r\nX: y\r\n\r\n")]).head(),
        case("204", vec![send(GET), wait("\r\n\r\n"), send(GET), wait("one")], vec![reply("HTTP/1.1 204 No Content\r\nX: y\r\n\r\n"), reply(OK)]),
        case("204 with length", vec![send(GET), wait("\r\n\r\n")], vec![reply("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n")]),
        case("304", vec![send(GET), wait("\r\n\r\n"), send(GET), wait("one")],
            vec![reply("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: \"x\"\r\n\r\n"), reply(OK)]),
        case("empty answer", vec![send(GET), wait("\r\n\r\n"), send(GET), wait("one")],
            vec![reply("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), reply(OK)]),
        case("no reason", vec![send(GET), wait("one")], vec![reply("HTTP/1.1 200\r\nContent-Length: 3\r\n\r\none")])
            .instead("3.2 fills the reason in", "HTTP/1.1 200 OK\ncontent-length: 3\n\none\n--- server\nGET /a HTTP/1.1\nhost: h\nx-order: 1\naccept: */*\n\n"),
        case("status of its own", vec![send(GET), wait("one")], vec![reply("HTTP/1.1 799 What Ever\r\nContent-Length: 3\r\n\r\none")]),
        // Expect, interim answers.
        case("expect", vec![send("POST /p HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"), wait("100 Continue\r\n\r\n"), send("abc"), wait("one")],
            vec![reply("HTTP/1.1 100 Continue\r\n\r\n"), reply_after("abc", OK)]),
        case("expect refused", vec![send("POST /p HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"), wait("no")],
            vec![reply("HTTP/1.1 417 No\r\nContent-Length: 2\r\n\r\nno")]),
        case("interim answers", vec![send(GET), wait("one")],
            vec![reply(format!("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n{OK}"))]),
        // Tunnels.
        case("upgrade", vec![send("GET /chat HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n"), wait("\r\n\r\n"), send("ping"), wait("pong")],
            vec![reply("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n"), reply_after("ping", "pong")]),
        case("websocket", vec![send("GET /chat HTTP/1.1\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"), wait("\r\n\r\n"), send("ping"), wait("pong")],
            vec![reply("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"), reply_after("ping", "pong")]),
        case("upgrade refused", vec![send("GET /chat HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n"), wait("one"), send(GET), wait("two")],
            vec![reply(OK), reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo")]),
        case("upgrade to h2c", vec![send("GET /chat HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n"), wait("one")], vec![reply(OK)])
            .instead("3.2 does not pass the wish on", "HTTP/1.1 200 OK\nserver: x\ncontent-length: 3\n\none\n--- server\nGET /chat HTTP/1.1\nconnection: Upgrade, HTTP2-Settings\nhttp2-settings: AA\n\n"),
        case("tunnel closed by the server", vec![send("GET /chat HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n"), wait("bye")],
            vec![reply_and_close("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\nbye")]),
        case("connect", vec![send("CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n"), wait("\r\n\r\n"), send("ping"), wait("pong")],
            vec![reply("HTTP/1.1 200 Tunnel\r\n\r\n"), reply_after("ping", "pong")]),
        // Forms of targets.
        case("absolute form", vec![send("GET http://h/a HTTP/1.1\r\nHost: h\r\n\r\n"), wait("one")], vec![reply(OK)]),
        case("absolute form without host", vec![send("GET http://h/a HTTP/1.1\r\n\r\n"), wait("one")], vec![reply(OK)]),
        case("absolute form with default port", vec![send("GET http://h:80/a HTTP/1.1\r\nHost: h\r\n\r\n"), wait("one")], vec![reply(OK)]),
        case("absolute form, host with default port", vec![send("GET http://h/a HTTP/1.1\r\nHost: h:80\r\n\r\n"), wait("one")], vec![reply(OK)]),
        case("absolute form without path", vec![send("GET http://h?x HTTP/1.1\r\nHost: h\r\n\r\n"), wait("one")], vec![reply(OK)])
            .instead("a query needs no path (RFC 3986 3.3), as 3.5 has it", "HTTP/1.1 200 OK\nserver: x\ncontent-length: 3\n\none\n--- server\nGET http://h?x HTTP/1.1\nhost: h\n\n"),
        case("absolute form with user", vec![send("GET http://u:p@h:80/ HTTP/1.1\r\nHost: h\r\n\r\n"), wait("one")], vec![reply(OK)]),
        case("asterisk", vec![send("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n"), wait("one")], vec![reply(OK)]),
        case("odd characters", vec![send("GET /~%zz?a=[]|{}\"<>\\^` HTTP/1.1\r\nX: \u{1}\u{e9}\r\n\r\n"), wait("one")], vec![reply(OK)]),
        case("method of its own", vec![send("BREW /a HTTP/1.1\r\n\r\n"), wait("one")], vec![reply(OK)]),
        // Failures of servers.
        case("server closes without answer", vec![send(GET)], vec![reply_and_close("")]),
        case("server closes in the head", vec![send(GET)], vec![reply_and_close("HTTP/1.1 200 OK\r\nX: ")]),
        case("server closes in the body", vec![send(GET)], vec![reply_and_close("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")]),
        case("server closes in a chunk", vec![send(GET)], vec![reply_and_close("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc")]),
        case("server answers garbage", vec![send(GET)], vec![reply("SSH-2.0-OpenSSH_9\r\n")]),
        case("server is silent", vec![send(GET)], vec![]).options(&["timeout server 200ms"]),
        case("server sends too much", vec![send(GET), wait("one"), send(GET), wait("two")],
            vec![reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\noneEXTRA"), reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo")]),
        // Failures of clients.
        case("client is silent", vec![wait("never")], vec![]).options(&["timeout http-request 200ms"]),
        case("client stalls in the head", vec![send("GET / HT"), wait("never")], vec![]).options(&["timeout http-request 200ms"]),
        case("client ends in the head", vec![send("GET / HT")], vec![]),
        case("client ends in the body", vec![send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc"), seen("abc"), Step::Finish], vec![]),
        // Answers of the proxy's own.
        case("deny", vec![send(GET), wait("</html>\n"), send(GET), wait("</html>\n")], vec![]).options(&["http-request deny"]),
        case("deny with a status", vec![send(GET), wait("</html>\n")], vec![]).options(&["http-request deny deny_status 429"]),
        case("deny a head", vec![send("HEAD / HTTP/1.1\r\n\r\n"), wait("\r\n\r\n")], vec![]).options(&["http-request deny"]).head(),
        case("deny a post", vec![send("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n\r\n"), wait("</html>\n"), wait("</html>\n")], vec![]).options(&["http-request deny"]),
        case("deny 1.0", vec![send("GET / HTTP/1.0\r\n\r\n")], vec![]).options(&["http-request deny"]),
        case("redirect", vec![send(GET), wait("\r\n\r\n"), send(GET), wait("\r\n\r\n")], vec![]).options(&["http-request redirect location /there"]),
        case("redirect prefix", vec![send("GET /a?b=c HTTP/1.1\r\nHost: h\r\n\r\n"), wait("\r\n\r\n")], vec![]).options(&["http-request redirect prefix http://x code 301"]),
        case("redirect scheme", vec![send("GET /a?b=c HTTP/1.1\r\nHost: h\r\n\r\n"), wait("\r\n\r\n")], vec![]).options(&["http-request redirect scheme https"]),
        case("redirect 1.0 keep-alive", vec![send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"), wait("\r\n\r\n")], vec![]).options(&["http-request redirect location /there"]),
        case("return", vec![send(GET), wait("text"), send(GET), wait("text")], vec![]).options(&["http-request return status 200 content-type text/plain string text hdr X-A b"]),
        case("return without body", vec![send(GET), wait("\r\n\r\n")], vec![]).options(&["http-request return status 200"]),
        case("headers of rules", vec![send(GET), wait("one")], vec![reply(OK)])
            .options(&["http-request set-header X-Order 2", "http-request add-header X-New a", "http-request del-header Accept", "http-response set-header Server y", "http-response add-header X-Also z"]),
        // Less common, still honest.
        case("expect something else", vec![send("POST /p HTTP/1.1\r\nExpect: 200-ok\r\nContent-Length: 3\r\n\r\nabc"), wait("one")], vec![reply_after("abc", OK)]),
        case("expect in 1.0", vec![send("POST /p HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc")], vec![reply_after("abc", OK)]),
        case("body sent without waiting for 100", vec![send("POST /p HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"), wait("one")],
            vec![reply_after("abc", format!("HTTP/1.1 100 Continue\r\n\r\n{OK}"))]),
        case("1.0 post", vec![send("POST /p HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc")], vec![reply_after("abc", OK)]),
        case("1.0 head", vec![send("HEAD / HTTP/1.0\r\n\r\n")], vec![reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")]).head(),
        case("pipelined after head", vec![send("HEAD / HTTP/1.1\r\n\r\nHEAD /b HTTP/1.1\r\n\r\n"), wait("ength: 3\r\n\r\n"), wait("ength: 4\r\n\r\n")],
            vec![reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"), reply("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")]).head(),
        case("close and keep-alive", vec![send("GET / HTTP/1.1\r\nConnection: keep-alive, close\r\n\r\n")], vec![reply(OK)]),
        case("two connection fields", vec![send("GET / HTTP/1.1\r\nConnection: X\r\nConnection: close\r\n\r\n")], vec![reply(OK)]),
        case("many fields of a name", vec![send("GET / HTTP/1.1\r\nA: 1\r\nB: 2\r\nA: 3\r\nCookie: x=y\r\nCookie: z\r\n\r\n"), wait("one")],
            vec![reply("HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nX: y\r\nSet-Cookie: b\r\nContent-Length: 3\r\n\r\none")]),
        case("answer after empty lines", vec![send(GET), wait("one")], vec![reply(format!("\r\n\r\n{OK}"))]),
        case("answer with bare LF", vec![send(GET), wait("one")], vec![reply("HTTP/1.1 200 OK\nContent-Length: 3\n\none")]),
        case("answer in pieces", vec![send(GET), wait("two")], vec![reply("HTTP/1.1 200 OK\r\nContent-Le"), reply_after("", "ngth: 6\r\n\r\none"), reply_after("", "two")]),
        case("server closes after chunks", vec![send(GET), wait("0\r\n\r\n"), send(GET), wait("two")],
            vec![reply_and_close("HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo")]),
        case("large chunked post", vec![send("POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), send(format!("1000\r\n{}\r\n", "x".repeat(4096)).repeat(50)), send("0\r\n\r\n"), wait("one")],
            vec![reply_after("0\r\n\r\n", OK)]),
        case("large chunk", vec![send(format!("POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n{}\r\n0\r\n\r\n", "x".repeat(100_000))), wait("one")],
            vec![reply_after("0\r\n\r\n", OK)]),
        case("large chunked answer", vec![send(GET), wait("\r\n0\r\n\r\n")],
            vec![reply(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n", format!("800\r\n{}\r\n", "y".repeat(2048)).repeat(100)))]),
        case("many small chunks", vec![send(GET), wait("\r\n0\r\n\r\n")],
            vec![reply(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n", "1\r\nz\r\n".repeat(20_000)))]),
        case("upgrade without a protocol", vec![send("GET / HTTP/1.1\r\nConnection: Upgrade\r\n\r\n"), wait("one")], vec![reply(OK)]),
        case("protocol without upgrade", vec![send("GET / HTTP/1.1\r\nUpgrade: own\r\n\r\n"), wait("one")], vec![reply(OK)]),
        case("upgrade with a body", vec![send("POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: own\r\nContent-Length: 3\r\n\r\nabc"), wait("\r\n\r\n"), send("ping"), wait("pong")],
            vec![reply_after("abc", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n"), reply_after("ping", "pong")])
            .options(&["timeout http-request 2s"])
            .instead("2.6 took the wish away from requests with a body, which broke its users (haproxy issue 2684)",
                "HTTP/1.1 101 Switching Protocols\nconnection: Upgrade\nupgrade: own\n\npong\n--- server\nPOST / HTTP/1.1\nconnection: Upgrade\nupgrade: own\ncontent-length: 3\n\nabc\nping\n[no end of head]\n"),
        case("upgrade with early data", vec![send("GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\nping"), wait("pong")],
            vec![reply("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n"), reply_after("ping", "pong")]),
        case("connect refused", vec![send("CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n"), wait("one")], vec![reply("HTTP/1.1 403 No\r\nContent-Length: 3\r\n\r\none")]),
        case("bad chunk after good ones", vec![send("POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"), seen("abc"), send("xyz\r\n")], vec![]),
        case("bad chunk after an answer's start", vec![send("POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\nabc"), wait("one"), send("def")],
            vec![reply_after("abc", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n"), reply_after("def", "xyz\r\n")]),
        // No server.
        case("server refuses", vec![send(GET), wait("</html>\n"), send(GET), wait("one")], vec![reply(OK)]).options(&["server dead 127.0.0.1:1"]),
        case("server refuses a post", vec![send("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), wait("</html>\n")], vec![]).options(&["server dead 127.0.0.1:1"]),
        case("server refuses a head", vec![send("HEAD / HTTP/1.1\r\n\r\n"), wait("\r\n\r\n")], vec![]).head().options(&["server dead 127.0.0.1:1"]),
        // Pages.
        page(&["http-request deny deny_status 200"]),
        page(&["http-request deny deny_status 400"]),
        page(&["http-request deny deny_status 401"]),
        page(&["http-request deny deny_status 404"]),
        page(&["http-request deny deny_status 405"]),
        page(&["http-request deny deny_status 407"]),
        page(&["http-request deny deny_status 408"]),
        page(&["http-request deny deny_status 410"]),
        page(&["http-request deny deny_status 413"]),
        page(&["http-request deny deny_status 421"]),
        page(&["http-request deny deny_status 422"]),
        page(&["http-request deny deny_status 425"]),
        page(&["http-request deny deny_status 500"]),
        page(&["http-request deny deny_status 501"]),
        page(&["http-request deny deny_status 502"]),
        page(&["http-request deny deny_status 503"]),
        page(&["http-request deny deny_status 504"]),
        // TCP.
        case("tcp", vec![send("ping"), wait("pong"), send("ping"), wait("done")], vec![reply_after("ping", "pong"), reply_after("ping", "done")]).options(&["mode tcp"]),
        case("tcp, client ends first", vec![send("all"), Step::Finish, wait("answer")], vec![reply_after("all", "answer")]).options(&["mode tcp"]),
        case("tcp, server ends first", vec![send("hello"), wait("bye"), send("more"), seen("more")], vec![Reply { after: "hello", send: "bye".into(), close: true }]).options(&["mode tcp"]),
    ]
}
