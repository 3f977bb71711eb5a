//! Every timeout, with short values; a test waits for the consequences and never measures durations.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use sluicegate_config::model::{Mode, Proxy};
use sluicegate_testkit::wait_for;

use crate::support::{Gate, OK, Origin, listen};

const SHORT: Option<Duration> = Some(Duration::from_millis(100));

/// A timeout that must not expire before a step of the test: longer than a busy machine delays the test.
const LATE: Option<Duration> = Some(Duration::from_secs(5));

fn http(origin: &Origin, change: impl FnOnce(&mut Proxy)) -> Gate {
    let mut proxy = listen(Mode::Http, &[origin.address]);
    change(&mut proxy);
    Gate::start(1, proxy)
}

#[test]
fn a_request_that_does_not_end_gets_a_408() {
    let origin = Origin::new();
    let gate = http(&origin, |proxy| proxy.timeouts.http_request = SHORT);
    for bytes in ["", "GET / HT"] {
        let mut client = gate.client();
        client.send(bytes);
        assert!(client.read_to_end().starts_with(b"HTTP/1.1 408 Request Time-out\r\n"));
    }
}

#[test]
fn an_idle_connection_is_closed_silently() {
    let origin = Origin::new();
    let gate = http(&origin, |proxy| proxy.timeouts.http_keep_alive = SHORT);
    let mut client = gate.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut peer = origin.accept();
    peer.head();
    peer.send(OK);
    client.read_response();
    assert_eq!(client.read_to_end(), b"");
}

#[test]
fn a_silent_server_is_a_504() {
    let origin = Origin::new();
    let gate = http(&origin, |proxy| proxy.timeouts.server = SHORT);
    let mut client = gate.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut peer = origin.accept();
    peer.head();
    assert_eq!(client.read_response().status, 504);
    assert_eq!(peer.read_to_end(), b"");
}

#[test]
fn a_server_that_stops_in_its_body_ends_the_client() {
    let origin = Origin::new();
    let gate = http(&origin, |proxy| proxy.timeouts.server = LATE);
    let mut client = gate.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut peer = origin.accept();
    peer.head();
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345");
    assert!(client.read_to_end().ends_with(b"12345"));
}

#[test]
fn a_client_that_stops_in_its_body_is_let_go() {
    let origin = Origin::new();
    // The head has a timeout of its own, which does not expire before the head is sent.
    let gate = http(&origin, |proxy| {
        proxy.timeouts.http_request = Some(Duration::from_secs(60));
        proxy.timeouts.client = SHORT;
    });
    let mut client = gate.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345");
    let mut peer = origin.accept();
    peer.head();
    assert_eq!(client.read_response().status, 408);
    assert_eq!(peer.read_to_end(), b"12345");
}

/// As in HAProxy, the server's time begins with the end of the request.
#[test]
fn a_client_that_stops_in_its_body_does_not_use_up_the_servers_time() {
    let origin = Origin::new();
    let gate = http(&origin, |proxy| {
        proxy.timeouts.http_request = Some(Duration::from_secs(60));
        proxy.timeouts.client = SHORT;
        proxy.timeouts.server = Some(Duration::from_millis(1));
    });
    for (body, status) in [("12345", 408), ("1234567890", 504)] {
        let mut client = gate.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{body}"));
        assert_eq!(client.read_response().status, status);
    }
    drop(origin);
}

/// As in HAProxy, a silent side is treated as closed: the other side receives a FIN and may still answer.
#[test]
fn tcp_sides_have_their_timeouts() {
    let start = |change: fn(&mut Proxy)| {
        let origin = Origin::new();
        let mut proxy = listen(Mode::Tcp, &[origin.address]);
        change(&mut proxy);
        let gate = Gate::start(1, proxy);
        let client = gate.client();
        let peer = origin.accept();
        (gate, client, peer)
    };
    let (_gate, mut client, mut peer) = start(|proxy| proxy.timeouts.client = SHORT);
    assert_eq!(peer.read_to_end(), b"");
    peer.send("answer");
    drop(peer);
    assert_eq!(client.read_to_end(), b"answer");
    let (_gate, mut client, mut peer) = start(|proxy| proxy.timeouts.server = SHORT);
    assert_eq!(client.read_to_end(), b"");
    client.send("last");
    drop(client);
    assert_eq!(peer.read_to_end(), b"last");
    let (_gate, mut client, mut peer) = start(|proxy| proxy.timeouts.tunnel = SHORT);
    assert_eq!(client.read_to_end(), b"");
    assert_eq!(peer.read_to_end(), b"");
}

#[test]
fn a_client_that_keeps_its_side_open_is_not_waited_for_forever() {
    let origin = Origin::new();
    let mut proxy = listen(Mode::Tcp, &[origin.address]);
    proxy.timeouts.client_fin = SHORT;
    let gate = Gate::start(1, proxy);
    let mut client = gate.client();
    origin.accept();
    assert_eq!(client.read_to_end(), b"");
    wait_for("the session's end", || (gate.process().sessions.current() == 0).then_some(()));
}

#[test]
fn a_server_that_keeps_its_side_open_is_not_waited_for_forever() {
    let origin = Origin::new();
    let mut proxy = listen(Mode::Tcp, &[origin.address]);
    proxy.timeouts.server_fin = SHORT;
    let gate = Gate::start(1, proxy);
    let mut client = gate.client();
    let mut peer = origin.accept();
    client.send("bye");
    client.finish();
    assert_eq!(peer.read_to_end(), b"bye");
    assert_eq!(client.read_to_end(), b"");
    wait_for("the session's end", || (gate.process().sessions.current() == 0).then_some(()));
}

/// With `option independent-streams`, data that is sent to a side does not keep it alive.
#[test]
fn sides_can_be_independent() {
    let independent = |change: fn(&mut Proxy)| {
        let origin = Origin::new();
        let mut proxy = listen(Mode::Tcp, &[origin.address]);
        proxy.options.independent_streams = true;
        change(&mut proxy);
        (Gate::start(1, proxy), origin)
    };
    let (gate, origin) = independent(|proxy| proxy.timeouts.server = SHORT);
    let mut client = gate.client();
    let _peer = origin.accept();
    let talker = Talker::start(client.stream());
    assert_eq!(client.read_to_end(), b"", "the server is taken to have ended while it is talked to");
    drop(talker);

    let (gate, origin) = independent(|proxy| proxy.timeouts.client = SHORT);
    let _client = gate.client();
    let mut peer = origin.accept();
    let talker = Talker::start(&peer.stream);
    assert_eq!(peer.read_to_end(), b"", "the client is taken to have ended while it is talked to");
    drop(talker);
}

/// Sends data repeatedly until it is dropped.
struct Talker {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Talker {
    fn start(stream: &TcpStream) -> Talker {
        let over = Arc::new(AtomicBool::new(false));
        let (mut stream, ends) = (stream.try_clone().expect("a descriptor"), over.clone());
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) && stream.write_all(b".").is_ok() {
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Talker { over, thread: Some(thread) }
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
