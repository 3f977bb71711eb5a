//! `core.httpclient` against a server that answers as a path says, in haproxy and here.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use super::compared::{compare, ours};

/// A server whose threads end with the last of their connections; the one that accepts ends with the test.
pub fn server() -> SocketAddr {
    let listener = sluicegate_testkit::lasting_listener();
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            thread::spawn(move || answer(stream));
        }
    });
    address
}

/// Answers requests until the client closes or an answer ends the connection.
fn answer(mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    loop {
        let mut request = String::new();
        while !request.ends_with("\r\n\r\n") {
            if reader.read_line(&mut request).unwrap_or(0) == 0 {
                return;
            }
        }
        if request.contains("chunked") {
            while !request.ends_with("0\r\n\r\n") {
                if reader.read_line(&mut request).unwrap_or(0) == 0 {
                    return;
                }
            }
        }
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let (text, stays) = match path.split('?').next().unwrap_or_default() {
            "/chunk" => (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nX-A: 1\r\nx-a: 2\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
                true,
            ),
            "/interim" => {
                ("HTTP/1.1 103 Early Hints\r\nl: 1\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", true)
            }
            "/moved" => ("HTTP/1.1 302 Found\r\nlocation: /chunk\r\ncontent-length: 0\r\n\r\n", true),
            "/none" => ("HTTP/1.1 204 No Content\r\n\r\n", true),
            "/close" => ("HTTP/1.0 404 Nope Not\r\nX: y\r\n\r\nuntil the end", false),
            "/cut" => ("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", false),
            "/garbage" => ("hello there\r\n\r\n", false),
            "/head" => ("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", true),
            "/silent" => {
                let _ = reader.read(&mut [0]);
                return;
            }
            _ => ("", true),
        };
        let text = if text.is_empty() {
            format!("HTTP/1.1 201 Made It\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{request}", request.len())
        } else {
            text.to_owned()
        };
        if stream.write_all(text.as_bytes()).is_err() || !stays {
            return;
        }
    }
}

#[test]
fn requests_and_answers_are_those_of_haproxys_client() {
    let base = format!("http://{}", server());
    let cases: Vec<String> = [
        "return core.httpclient():get{url=B..'/echo?a=b', headers={['X-H']={'one','two'}}}",
        "return core.httpclient():post{url=B..'/p', body='some body'}",
        "return core.httpclient():put{url=B, body='x'}",
        "return core.httpclient():put{url=B, body=''}",
        "return core.httpclient():head{url=B..'/garbage'}",
        "return core.httpclient():delete{url=B..'/d'}",
        "return core.httpclient():get{url=B..'/h', headers={host={'other'}}}",
        "return core.httpclient():get{url=B..'/u', headers={['User-Agent']={'me'}}}",
        "return core.httpclient():head{url=B..'/head'}",
        "return core.httpclient():get{url=B..'/chunk'}",
        "return core.httpclient():get{url=B..'/moved'}",
        "return core.httpclient():get{url=B..'/none'}",
        "return core.httpclient():get{url=B..'/close'}",
        "return core.httpclient():get{url=B..'/cut'}",
        "return core.httpclient():get{url=B..'/garbage'}",
        "return core.httpclient():get{url=B..'/silent', timeout=20}",
        "return core.httpclient():get{url='http://127.0.0.1:1/'}",
        "return core.httpclient():get{url='http://www.example.com/dst', dst=B:sub(8)}",
        "return core.httpclient():get{url='http://www.example.com/dst', dst='foo'}",
        "return core.httpclient():get{}",
        "return core.httpclient():get()",
        "return core.httpclient():head('x')",
        "return core.httpclient():get{url='foo'}",
        "return core.httpclient():get{url=B..'/x', headers={a='b'}}",
        "return core.httpclient():get{url=B..'/x', headers=5}",
        "return core.httpclient():get{url=B, nonsense=5}",
    ]
    .map(|case| format!("local B = '{base}'\n{case}"))
    .into();
    compare("", &cases.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn what_would_split_a_request_is_refused_and_names_are_resolved() {
    let address = server();
    let body = "x".repeat(300_000);
    let cases: Vec<String> = [
        "return core.httpclient():get{url=B..'/a b'}",
        "return core.httpclient():get{url=B, headers={x={'a\\r\\nb: c'}}}",
        "return core.httpclient():get{url=B..'/interim'}",
        "return core.httpclient():get{url='https://127.0.0.1/'}",
        "return core.httpclient():get{url='http://localhost:PORT/n'}.status",
        "return core.httpclient():get{url='http://no.such.name.invalid/'}",
        "return #core.httpclient():post{url=B..'/big', body=('x'):rep(300000)}.body",
    ]
    .map(|case| format!("local B = 'http://{address}'\n{}", case.replace("PORT", &address.port().to_string())))
    .into();
    let answers = ours("", &cases.iter().map(String::as_str).collect::<Vec<_>>());
    let request = format!(
        "POST /big HTTP/1.1\r\nhost: {address}\r\naccept: */*\r\nuser-agent: HAProxy\r\ntransfer-encoding: chunked\r\n\r\n\
         {:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    assert_eq!(
        answers,
        [
            "couldn't start the httpclient",
            "invalid header",
            // HAProxy 2.6 takes the interim answer's head for that of the final one.
            "{body=ok,headers={content-length={0=2}},reason=OK,status=200}",
            // These scripts have servers to verify, and no authorities.
            "httpclient: SSL was disabled (wrong verify/ca-file)!",
            "201",
            "{body=,headers={content-length={0=0}},reason=Service Unavailable,status=503}",
            &request.len().to_string(),
        ]
    );
}

/// Fields of a request that a script passes on, as with HAProxy 3.2; 2.6 sends them.
#[test]
fn fields_that_frame_another_body_are_left_out() {
    let base = format!("http://{}", server());
    let cases = [
        "get{url=B..'/f', headers={['Content-Length']={'0'}, connection={'keep-alive'}}}",
        "post{url=B..'/f', body='x', headers={['content-length']={'7'}, ['Transfer-Encoding']={'gzip'}}}",
        "get{url=B..'/f', headers={connection={'close'}}}",
    ]
    .map(|case| format!("local B = '{base}'\nreturn core.httpclient():{case}.body"));
    let answers = ours("", &cases.each_ref().map(String::as_str));
    let host = base.trim_start_matches("http://");
    let usual = format!("host: {host}\r\naccept: */*\r\nuser-agent: HAProxy\r\n");
    assert_eq!(
        answers,
        [
            format!("GET /f HTTP/1.1\r\n{usual}\r\n"),
            format!("POST /f HTTP/1.1\r\n{usual}transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"),
            format!("GET /f HTTP/1.1\r\nconnection: close\r\n{usual}\r\n"),
        ]
    );
}

/// A server that ends its first two connections without a response, and then answers; one that is late at first.
#[test]
fn a_missing_response_is_requested_again() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address");
    let served = std::thread::spawn(move || {
        let mut seen = Vec::new();
        let mut late = Vec::new();
        for number in 0..6 {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut request = [0; 1024];
            let count = stream.read(&mut request).expect("a request");
            seen.push(String::from_utf8_lossy(&request[..count]).lines().next().unwrap_or_default().to_owned());
            match number {
                0 | 1 => {}
                3 | 4 => late.push(stream),
                _ => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").expect("sent"),
            }
        }
        seen
    });
    let cases = ["get{url=B..'/ends'}", "post{url=B..'/late', body='x', timeout=100}"]
        .map(|case| format!("local B = 'http://{address}'\nreturn core.httpclient():{case}.body"));
    assert_eq!(ours("", &cases.each_ref().map(String::as_str)), ["ok", "ok"]);
    let late = "POST /late HTTP/1.1";
    let ends = "GET /ends HTTP/1.1";
    assert_eq!(served.join().expect("it ends"), [ends, ends, ends, late, late, late]);
}
