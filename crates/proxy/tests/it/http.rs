//! HTTP as clients and servers see it.

use std::io::Write;

use sluicegate_config::model::{ConnectionMode, ForwardFor, Mode};
use sluicegate_testkit::{free_port, wait_for};

use crate::support::{Gate, OK, Origin, listen};

fn http(origin: &Origin) -> Gate {
    Gate::start(1, listen(Mode::Http, &[origin.address]))
}

#[test]
fn both_sides_are_kept_alive() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("GET /1 HTTP/1.1\r\nHost: a\r\nX-Case: Kept\r\n\r\n");
    let mut peer = origin.accept();
    assert_eq!(peer.head(), "GET /1 HTTP/1.1\r\nhost: a\r\nx-case: Kept\r\n\r\n");
    peer.send(OK);
    assert_eq!(client.read_response().head, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n");
    for path in ["/2", "/3"] {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(peer.head().starts_with(&format!("GET {path} ")));
        peer.send(OK);
        assert_eq!(client.read_response().text(), "ok");
    }
    assert!(origin.is_unvisited());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\nGET /c HTTP/1.1\r\nHo");
    let mut peer = origin.accept();
    for path in ["/a", "/b", "/c"] {
        assert!(peer.head().starts_with(&format!("GET {path} ")));
        peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{path}"));
        assert_eq!(client.read_response().text(), path);
        if path == "/b" {
            client.send("st: a\r\n\r\n");
        }
    }
}

#[test]
fn a_chunked_response_keeps_its_trailers_and_loses_its_extensions() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut peer = origin.accept();
    peer.head();
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n4\r\nde");
    client.read_until(b"abc");
    peer.send("fg\r\n0\r\nX-Sum: 7\r\n\r\n");
    let rest = client.read_until(b"x-sum: 7\r\n\r\n");
    assert!(!String::from_utf8_lossy(&rest).contains("x=y"));
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    peer.head();
    peer.send(OK);
    assert_eq!(client.read_response().text(), "ok");
}

#[test]
fn an_http_1_0_client_gets_chunks_as_a_body_that_ends_with_the_connection() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let mut peer = origin.accept();
    peer.head();
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    let all = String::from_utf8(client.read_to_end()).unwrap();
    assert!(all.ends_with("\r\n\r\nabcde"), "{all}");
    assert!(!all.to_lowercase().contains("transfer-encoding"), "{all}");
}

#[test]
fn a_chunked_request_reaches_the_server_with_its_trailers() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    let mut peer = origin.accept();
    assert!(peer.head().contains("transfer-encoding: chunked\r\n"));
    assert_eq!(peer.read_exact(10), b"5\r\nhello\r\n");
    client.send("1\r\n!\r\n0\r\nA: b\r\n\r\n");
    assert_eq!(peer.read_exact(17), b"1\r\n!\r\n0\r\na: b\r\n\r\n");
    peer.send(OK);
    assert_eq!(client.read_response().status, 200);
}

#[test]
fn responses_without_a_body_end_with_their_head() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    let mut peer = None;
    for (method, response) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
    ] {
        client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"));
        let peer = peer.get_or_insert_with(|| origin.accept());
        peer.head();
        peer.send(response);
        let response = response.replace("Content-Length", "content-length");
        assert_eq!(client.read_response_to(method == "HEAD").head, response);
    }
}

#[test]
fn a_body_until_close_closes_the_client_too() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut peer = origin.accept();
    peer.head();
    peer.send("HTTP/1.1 200 OK\r\n\r\nall of it");
    drop(peer);
    let all = String::from_utf8(client.read_to_end()).unwrap();
    assert_eq!(all, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it");
}

#[test]
fn interim_responses_are_passed_on() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    let mut peer = origin.accept();
    assert!(peer.head().contains("expect: 100-continue"));
    peer.send("HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(client.read_until(b"\r\n\r\n"), b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send("body");
    assert_eq!(peer.read_exact(4), b"body");
    peer.send(format!("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n{OK}"));
    assert_eq!(client.read_until(b"\r\n\r\n"), b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n");
    assert_eq!(client.read_response().text(), "ok");
}

#[test]
fn an_upgrade_is_a_tunnel() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nfirst");
    let mut peer = origin.accept();
    assert!(peer.head().contains("upgrade: echo\r\n"));
    peer.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello");
    let head = String::from_utf8(client.read_until(b"\r\n\r\n")).unwrap();
    assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("upgrade: echo"), "{head}");
    assert_eq!(client.read_exact(5), b"hello");
    assert_eq!(peer.read_exact(5), b"first");
    client.send("ping");
    assert_eq!(peer.read_exact(4), b"ping");
    peer.send("pong");
    assert_eq!(client.read_exact(4), b"pong");
    client.finish();
    assert_eq!(peer.read_to_end(), b"");
    peer.send("last");
    drop(peer);
    assert_eq!(client.read_to_end(), b"last");
}

/// The size of a body of which the kernel buffers less than half: Linux grows a connection's buffers up to 36 MiB, and
/// a body passes through two connections.
const HELD_BACK: usize = 160 << 20;

#[test]
fn a_big_upload_is_held_back_by_a_slow_server_and_arrives_whole() {
    const SIZE: usize = HELD_BACK;
    let origin = Origin::new();
    let gate = http(&origin);
    let client = gate.client();
    let mut sending = client.stream().try_clone().unwrap();
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let progress = sent.clone();
    let upload = std::thread::spawn(move || {
        write!(sending, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {SIZE}\r\n\r\n").unwrap();
        let block = vec![7u8; 1 << 16];
        for _ in 0..SIZE / block.len() {
            sending.write_all(&block).unwrap();
            progress.fetch_add(block.len(), std::sync::atomic::Ordering::Relaxed);
        }
    });
    let mut peer = origin.accept();
    peer.head();
    // Nobody reads the body: the sockets' buffers fill up and stop the sender long before the end of the body.
    let mut last = (0, std::time::Instant::now());
    wait_for("the sender to be held back", || {
        let now = sent.load(std::sync::atomic::Ordering::Relaxed);
        if now != last.0 {
            last = (now, std::time::Instant::now());
        }
        (now > 0 && last.1.elapsed().as_millis() > 200).then_some(())
    });
    assert!(last.0 < SIZE / 2, "{} bytes were taken from a client whose server reads none", last.0);
    let mut left = SIZE;
    while left > 0 {
        let part = left.min(1 << 20);
        assert!(peer.read_exact(part).iter().all(|byte| *byte == 7));
        left -= part;
    }
    upload.join().unwrap();
    peer.send(OK);
    let mut client = client;
    assert_eq!(client.read_response().text(), "ok");
}

#[test]
fn a_big_download_is_held_back_by_a_slow_client_and_arrives_whole() {
    const SIZE: usize = HELD_BACK;
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut peer = origin.accept();
    peer.head();
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let progress = sent.clone();
    let download = std::thread::spawn(move || {
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let block = vec![9u8; 1 << 16];
        for _ in 0..SIZE / block.len() {
            peer.send(format!("{:x}\r\n", block.len()));
            peer.send(&block);
            peer.send("\r\n");
            progress.fetch_add(block.len(), std::sync::atomic::Ordering::Relaxed);
        }
        peer.send("0\r\n\r\n");
    });
    let mut last = (0, std::time::Instant::now());
    wait_for("the server to be held back", || {
        let now = sent.load(std::sync::atomic::Ordering::Relaxed);
        if now != last.0 {
            last = (now, std::time::Instant::now());
        }
        (now > 0 && last.1.elapsed().as_millis() > 200).then_some(())
    });
    assert!(last.0 < SIZE / 2, "{} bytes were taken for a client that reads none", last.0);
    let response = client.read_response();
    assert_eq!(response.body.len(), SIZE);
    assert!(response.body.iter().all(|byte| *byte == 9));
    download.join().unwrap();
}

#[test]
fn an_early_response_goes_out_while_the_upload_goes_on() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345");
    let mut peer = origin.accept();
    peer.head();
    peer.read_exact(5);
    peer.send(OK);
    assert_eq!(client.read_response().text(), "ok");
    client.send("67890");
    assert_eq!(peer.read_exact(5), b"67890");
    client.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(peer.head().starts_with("GET /next"));
    peer.send(OK);
    assert_eq!(client.read_response().text(), "ok");
}

#[test]
fn a_server_that_answers_and_leaves_during_an_upload_is_still_heard() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n12345");
    let mut peer = origin.accept();
    peer.head();
    peer.read_exact(5);
    peer.send("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n");
    drop(peer);
    assert_eq!(client.read_response().status, 413);
}

#[test]
fn a_dead_reused_connection_costs_an_idempotent_request_nothing() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut peer = origin.accept();
    peer.head();
    peer.send(OK);
    client.read_response();
    client.send("GET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
    peer.head();
    drop(peer);
    let mut peer = origin.accept();
    assert!(peer.head().starts_with("GET /2 "));
    peer.send(OK);
    assert_eq!(client.read_response().text(), "ok");
    // A request that the proxy may not repeat is left to the client, which is closed without an answer.
    client.send("POST /3 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    peer.head();
    peer.read_exact(1);
    drop(peer);
    assert_eq!(client.read_to_end(), b"");
}

#[test]
fn server_faults_have_their_statuses() {
    let check = |answer: &str, expected: u16| {
        let origin = Origin::new();
        let gate = http(&origin);
        let mut client = gate.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut peer = origin.accept();
        peer.head();
        peer.send(answer);
        drop(peer);
        assert_eq!(client.read_response().status, expected, "{answer:?}");
    };
    check("", 502);
    check("HTTP/1.1 200 OK\r\nContent-Le", 502);
    check("nonsense\r\n\r\n", 502);
    check("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 502);
    let nobody = ([127, 0, 0, 1], free_port()).into();
    let mut proxy = listen(Mode::Http, &[nobody]);
    proxy.retries = 0;
    let gate = Gate::start(1, proxy);
    let mut client = gate.client();
    assert_eq!(client.get("/").status, 503);
    assert_eq!(client.get("/").status, 503, "an error page keeps the connection");
    let gate = Gate::start(1, listen(Mode::Http, &[]));
    assert_eq!(gate.client().get("/").status, 503);
}

#[test]
fn a_response_that_breaks_off_breaks_off_for_the_client() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut peer = origin.accept();
    peer.head();
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345");
    drop(peer);
    assert!(client.read_to_end().ends_with(b"\r\n\r\n12345"));
}

#[test]
fn malformed_requests_get_the_page_and_the_end() {
    let origin = Origin::new();
    let gate = http(&origin);
    for request in [
        "\x16\x03\x01\x02",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nBad Name: x\r\n\r\n",
    ] {
        let mut client = gate.client();
        client.send(request);
        let all = String::from_utf8(client.read_to_end()).unwrap();
        assert!(all.starts_with("HTTP/1.1 400 Bad request\r\n"), "{request:?}: {all:?}");
    }
    let mut client = gate.client();
    client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(20_000)));
    assert!(client.read_to_end().starts_with(b"HTTP/1.1 431 "));
}

#[test]
fn malformed_chunks_of_a_request_get_a_400() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    let mut peer = origin.accept();
    peer.head();
    client.send("zz\r\n");
    assert_eq!(client.read_response().status, 400);
    assert!(!peer.read_to_end().ends_with(b"0\r\n\r\n"));
}

#[test]
fn connection_modes() {
    let origin = Origin::new();
    let mut proxy = listen(Mode::Http, &[origin.address]);
    proxy.options.connection = ConnectionMode::ServerClose;
    let gate = Gate::start(1, proxy);
    let mut client = gate.client();
    for _ in 0..2 {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut peer = origin.accept();
        assert!(peer.head().contains("connection: close\r\n"));
        peer.send(OK);
        assert_eq!(client.read_response().header("connection"), None);
    }
    let mut proxy = listen(Mode::Http, &[origin.address]);
    proxy.options.connection = ConnectionMode::Close;
    let gate = Gate::start(1, proxy);
    let mut client = gate.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut peer = origin.accept();
    assert!(peer.head().contains("connection: close\r\n"));
    peer.send(OK);
    assert_eq!(client.read_response().header("connection"), Some("close"));
    assert_eq!(client.read_to_end(), b"");
}

#[test]
fn forwardfor_adds_a_field_of_its_own() {
    let origin = Origin::new();
    let mut proxy = listen(Mode::Http, &[origin.address]);
    let option = ForwardFor { except: None, header: "X-Forwarded-For".into(), if_none: false };
    proxy.options.forwardfor = Some(option.clone());
    let gate = Gate::start(1, proxy);
    let mut client = gate.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n");
    let mut peer = origin.accept();
    assert!(peer.head().ends_with("x-forwarded-for: 1.2.3.4\r\nx-forwarded-for: 127.0.0.1\r\n\r\n"));
    let mut proxy = listen(Mode::Http, &[origin.address]);
    proxy.options.forwardfor = Some(ForwardFor { except: Some(("127.0.0.0".parse().unwrap(), 8)), ..option });
    let gate = Gate::start(1, proxy);
    let mut client = gate.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(!origin.accept().head().contains("forwarded"));
}

#[test]
fn a_client_that_leaves_ends_its_server_connection() {
    let origin = Origin::new();
    let gate = http(&origin);
    let mut client = gate.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut peer = origin.accept();
    peer.head();
    client.reset();
    assert_eq!(peer.read_to_end(), b"");
    wait_for("the session's end", || (gate.process().sessions.current() == 0).then_some(()));
}
