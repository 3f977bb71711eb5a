//! Tunnels: WebSockets by extended CONNECT to a server of HTTP/1, and plain CONNECT.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::*;
use sluicegate_wire::http2::ErrorCode;

use super::requests::headers;

/// Computes the proof of RFC 6455 for a key with tools of the machine.
fn proof(key: &str) -> String {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let script = "openssl dgst -sha1 -binary | openssl base64";
    let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let child = child.as_mut().expect("sh and openssl");
    let mut input = child.stdin.take().expect("piped");
    write!(input, "{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11").expect("written");
    drop(input);
    let mut text = String::new();
    std::io::Read::read_to_string(child.stdout.as_mut().expect("piped"), &mut text).expect("read");
    child.wait().expect("it ended");
    text.trim().to_owned()
}

/// A server that switches to WebSocket and echoes bytes, unless the path says otherwise.
fn websocket() -> Origin {
    Origin::start(|mut client| {
        let Some(head) = Request::read_head(&mut client) else { return };
        assert!(head.contains("connection: upgrade\n") && head.contains("upgrade: websocket\n"), "{head}");
        assert!(!head.contains("content-length") && !head.contains("transfer-encoding"), "{head}");
        let key = head.lines().find_map(|line| line.strip_prefix("Sec-Websocket-Key: ")).expect("a key");
        let accept = if head.starts_with("GET /wrong ") { "x".to_owned() } else { proof(key) };
        if head.starts_with("GET /no ") {
            client.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
            return;
        }
        client.send(format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: chat\r\n\r\n"
        ));
        loop {
            let line = client.read_line();
            match line.as_str() {
                "end" => return,
                _ => client.send(format!("<{line}>")),
            }
        }
    })
}

/// The head of an extended CONNECT.
fn connect(stream: u32, path: &str) -> Vec<u8> {
    let fields = [
        (":method", "CONNECT"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "h"),
        (":protocol", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "chat"),
    ];
    headers(stream, 4, &fields)
}

fn begin(client: &mut Client, path: &str) -> sluicegate_wire::http2::StreamKey {
    client.begin(
        &format!("GET {path}\nhost: h\nconnection: upgrade\nupgrade: websocket\nsec-websocket-version: 13"),
        true,
    )
}

#[test]
fn websockets_to_servers_of_http_1() {
    let log = " log stdout format raw local0 info\n log-format \"%ST %ts %HM %HPO\"";
    let (mut server, gate) = before(&websocket(), log, " timeout tunnel 60s");
    let mut client = Client::connect(&gate.address());
    let streams: Vec<_> = (0..3).map(|index| begin(&mut client, &format!("/{index}"))).collect();
    for stream in &streams {
        let answer = client.head(*stream);
        assert_eq!((answer.complete, answer.field("sec-websocket-protocol")), (false, Some("chat")), "{answer:?}");
    }
    for round in 0..3 {
        for (index, stream) in streams.iter().enumerate() {
            client.data(*stream, format!("{round} {index}\n").as_bytes(), false);
            let expected: String = (0..=round).map(|round| format!("<{round} {index}>")).collect();
            client.until("an echo", |client| client.seen(*stream).text() == expected);
        }
    }
    // The server ends one tunnel, the client another, and the third is reset.
    client.data(streams[0], b"end\n", false);
    client.until("the server's end", |client| client.seen(streams[0]).complete);
    client.data(streams[0], b"", true);
    client.end(streams[0]);
    client.data(streams[1], b"end\n", true);
    assert!(client.end(streams[1]).complete);
    client.reset(streams[2], ErrorCode::CANCEL);
    server.program.wait_for_output("101 -- GET /0\n");
    server.program.wait_for_output("101 -- GET /1\n");
    server.program.wait_for_output("101 CD GET /2\n");
    assert_eq!(client.goaway, None);
}

#[test]
fn websockets_that_are_refused() {
    let (server, gate) = before(&websocket(), " http-request deny if { path /deny }", "");
    let mut client = Client::connect(&gate.address());
    // A response with a wrong proof is not accepted.
    for (path, status) in [("/wrong", 502), ("/no", 403), ("/deny", 403)] {
        let stream = client.open();
        client.raw(&connect(stream.id(), path));
        let answer = client.head(stream);
        assert_eq!(answer.status, status, "{path} {answer:?}");
        // Nothing more is awaited of the client.
        client.until("a reset", |client| client.seen(stream).reset.is_some());
        assert_eq!(client.seen(stream).reset, Some(ErrorCode::NO_ERROR), "{path}");
    }
    assert_eq!(client.goaway, None);
    drop(server);
    // Without the announcement an extended CONNECT is an error of its stream.
    let gate = Listening::new();
    let text = format!(
        "{}frontend front\n bind {}\n http-request return status 200\n",
        DEFAULTS.replacen("global\n", "global\n h2-workaround-bogus-websocket-clients\n", 1),
        gate.word()
    );
    let _server = start(&text, &[&gate]);
    let mut client = Client::connect(&gate.address());
    let stream = client.open();
    client.raw(&connect(stream.id(), "/"));
    assert_eq!(client.end(stream).reset, Some(ErrorCode::PROTOCOL_ERROR));
}

/// Data that a client sends before the server has accepted the tunnel do not reach the server: it could parse them as a
/// request, which no rule has checked.
#[test]
fn a_server_that_refuses_a_tunnel_gets_nothing_of_it() {
    let (answers, rests) = (channel::<()>(), channel::<(String, Vec<u8>)>());
    let (answer, rest) = (Mutex::new(answers.1), Mutex::new(rests.0));
    let origin = Origin::start(move |mut client| {
        let Some(head) = Request::read_head(&mut client) else { return };
        answer.lock().expect("not poisoned").recv().expect("a sign");
        client.send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 5\r\n\r\nhello");
        rest.lock().expect("not poisoned").send((head, client.read_to_end())).expect("the test waits");
    });
    let rules = " http-request deny if { path_beg /admin }\n http-request return status 200 if { path /seen }";
    for lines in ["", " option http-buffer-request", " http-response wait-for-body time 60s"] {
        for extended in [true, false] {
            let (_server, gate) = before(&origin, &format!("{rules}\n{lines}"), "");
            let mut client = Client::connect(&gate.address());
            let stream = if extended { begin(&mut client, "/a") } else { client.begin("CONNECT h:80", false) };
            client.data(stream, b"GET /admin HTTP/1.1\r\nhost: h\r\n\r\n", false);
            // An answer to a later request: what came before it was read.
            assert_eq!(client.get("/seen").status, 200);
            answers.0.send(()).expect("the server waits");
            let answer = client.head(stream);
            assert_eq!(answer.status, 401, "{lines} {answer:?}");
            let (head, rest) = rests.1.recv().expect("the server's end");
            assert_eq!(String::from_utf8_lossy(&rest), "", "{lines} behind {head}");
        }
    }
}

#[test]
fn a_tunnel_is_no_body_to_wait_for() {
    for lines in [" option http-buffer-request", " http-request wait-for-body time 60s"] {
        let (_server, gate) = before(&websocket(), lines, " option http-buffer-request");
        let mut client = Client::connect(&gate.address());
        let stream = begin(&mut client, "/");
        assert!(!client.head(stream).complete);
        client.data(stream, b"one\n", false);
        client.until("an echo", |client| client.seen(stream).text() == "<one>");
    }
}

#[test]
fn connect_makes_a_tunnel() {
    let origin = Origin::start(|mut client| {
        let Some(head) = Request::read_head(&mut client) else { return };
        assert_eq!(head, "CONNECT far.example:443 HTTP/1.1\nhost: far.example:443\n");
        client.send("HTTP/1.1 200 OK\r\n\r\n");
        let bytes = client.read_to_end();
        client.send(bytes);
    });
    let (_server, gate) = before(&origin, "", " timeout tunnel 60s");
    let mut client = Client::connect(&gate.address());
    let stream = client.begin("CONNECT far.example:443", false);
    assert_eq!(client.head(stream).status, 200);
    client.data(stream, b"some bytes ", false);
    client.data(stream, b"and more", true);
    client.until("an echo", |client| client.seen(stream).is_over());
    let answer = client.seen(stream);
    assert_eq!((answer.text().as_str(), answer.complete), ("some bytes and more", true));
}
