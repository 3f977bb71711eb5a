//! Limits, stopping, and that nothing is left behind.

use sluicegate_config::model::{Global, Mode};
use sluicegate_proxy::process::Phase;
use sluicegate_testkit::wait_for;

use crate::support::{Gate, OK, Origin, listen};

#[test]
fn what_exceeds_maxconn_waits_in_the_backlog() {
    for which in ["process", "frontend", "bind"] {
        let address = Origin::new().serve(OK);
        let mut proxy = listen(Mode::Http, &[address]);
        let mut global = Global::default();
        // Without it HAProxy's rule makes the backlog as small as the limit, and the kernel would drop SYNs.
        proxy.binds[0].backlog = Some(64);
        match which {
            "process" => global.maxconn = Some(2),
            "frontend" => proxy.maxconn = Some(2),
            _ => proxy.binds[0].maxconn = Some(2),
        }
        let gate = Gate::with_global(2, proxy, global);
        let mut first = gate.client();
        let mut second = gate.client();
        assert_eq!(first.get("/").status, 200);
        assert_eq!(second.get("/").status, 200);
        // SO_REUSEPORT decides which worker's backlog takes each one: all of them wait, and all of them get in.
        let mut waiting: Vec<_> = (0..6).map(|_| gate.client()).collect();
        for client in &mut waiting {
            client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        }
        assert_eq!(first.get("/").status, 200);
        let peak = || match which {
            "process" => gate.process().sessions.peak(),
            // The process's slot is taken first and given back, so only the limit itself is exact.
            _ => gate.running.proxies[0].frontend.sessions.peak(),
        };
        assert_eq!(gate.running.proxies[0].frontend.sessions.current(), 2, "{which}");
        drop(first);
        for client in &mut waiting {
            assert_eq!(client.read_response().status, 200);
        }
        assert_eq!(second.get("/").status, 200);
        assert!(peak() <= if which == "bind" { 4 } else { 2 }, "{which}: {}", peak());
    }
}

#[test]
fn connections_are_spread_over_workers() {
    let address = Origin::new().serve(OK);
    let gate = Gate::start(4, listen(Mode::Http, &[address]));
    let mut clients: Vec<_> = (0..40).map(|_| gate.client()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/").status, 200);
    }
    let requests: Vec<u64> = gate.process().workers.iter().map(|worker| worker.requests.get()).collect();
    assert_eq!(requests.iter().sum::<u64>(), 40);
    assert!(requests.iter().all(|count| *count >= 7), "{requests:?}");
}

#[test]
fn a_soft_stop_finishes_what_runs_and_closes_what_is_idle() {
    let origin = Origin::new();
    let gate = Gate::start(2, listen(Mode::Http, &[origin.address]));
    let mut idle = gate.client();
    idle.send("GET /idle HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut first = origin.accept();
    first.head();
    first.send(OK);
    idle.read_response();
    let mut busy = gate.client();
    busy.send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut second = origin.accept();
    second.head();
    gate.process().begin_soft_stop();
    assert_eq!(idle.read_to_end(), b"");
    assert_eq!(gate.process().phase(), Phase::Stopping);
    wait_for("the listeners' end", || std::net::TcpStream::connect(gate.address).err());
    second.send(OK);
    let response = busy.read_response();
    assert_eq!((response.text().as_str(), response.header("connection")), ("ok", Some("close")));
    assert_eq!(busy.read_to_end(), b"");
    gate.join();
}

#[test]
fn a_stop_ends_everything_at_once() {
    let origin = Origin::new();
    let gate = Gate::start(2, listen(Mode::Http, &[origin.address]));
    let mut client = gate.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut peer = origin.accept();
    peer.head();
    gate.process().stop_now();
    assert_eq!(client.read_to_end(), b"");
    assert_eq!(peer.read_to_end(), b"");
    let running = gate.running.clone();
    gate.join();
    assert_eq!(running.process.sessions.current(), 0);
}
