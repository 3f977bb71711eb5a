//! Connections that end when their client wants it: websockets across a reload, and how long they may keep a process.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use sluicegate_testkit::{Client, Listening};

use super::{DEFAULTS, Service, Way};

/// A server that changes to another protocol, in which it answers every byte with the one behind it.
fn websocket() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                    head.push(byte[0]);
                }
                let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                              Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
                let _ = stream.write_all(answer.as_bytes());
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&[byte[0] + 1]).is_ok() {}
            });
        }
    });
    address
}

fn text(web: &Listening, global: &str, rest: &str) -> String {
    format!(
        "global\n nbthread 2\n stats socket @DIR@/stats level admin\n{global}{DEFAULTS} timeout tunnel 60s\nfrontend \
         web\n bind {}\n{rest}",
        web.word()
    )
}

/// A client that has changed to the other protocol.
fn upgraded(web: &Listening) -> Client {
    let mut client = Client::connect(&web.address());
    client.send(
        "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    client.read_until(b"\r\n\r\n");
    said(&mut client, "a", "b");
    client
}

fn said(client: &mut Client, sent: &str, expected: &str) {
    client.send(sent);
    assert_eq!(client.read_exact(1), expected.as_bytes());
}

#[test]
fn a_websocket_outlives_the_file_that_it_began_under() {
    let server = websocket();
    for way in [Way::Command, Way::Signal] {
        let web = Listening::new();
        let to = format!(" default_backend app\nbackend app\n server s {server}\n");
        let mut service = Service::start(way, &text(&web, "", &to), &[&web]);
        let mut client = upgraded(&web);
        service.reload();
        said(&mut client, "c", "d");
        // Not even its backend is left.
        service.write(&text(&web, "", " http-request return status 204\n"));
        service.reload();
        said(&mut client, "e", "f");
        assert_eq!(Client::connect(&web.address()).get("/").status, 204);
        said(&mut client, "g", "h");
        client.finish();
        assert_eq!(client.read_to_end(), b"");
    }
}

#[test]
fn hard_stop_after_is_what_the_last_file_says() {
    let server = websocket();
    let web = Listening::new();
    let to = format!(" default_backend app\nbackend app\n server s {server}\n");
    let mut service = Service::start(Way::Command, &text(&web, " hard-stop-after 1h\n", &to), &[&web]);
    let mut client = upgraded(&web);
    service.write(&text(&web, " hard-stop-after 100ms\n", &to));
    service.reload();
    said(&mut client, "c", "d");
    service.program.signal(libc::SIGUSR1);
    assert_eq!(service.program.wait(), 0);
    assert_eq!(client.read_to_end(), b"");
}
