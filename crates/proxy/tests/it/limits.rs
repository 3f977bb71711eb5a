//! Limits, stopping, and the release of every resource.

use sluicegate_config::model::{BindAddress, Global, Mode};
use sluicegate_proxy::process::Phase;
use sluicegate_testkit::wait_for;

use crate::support::{Gate, OK, Origin, listen};

#[test]
fn what_exceeds_maxconn_waits_in_the_backlog() {
    for which in ["process", "frontend", "bind"] {
        let address = Origin::new().serve(OK);
        let mut proxy = listen(Mode::Http, &[address]);
        let mut global = Global::default();
        // By default the backlog is as small as the limit, as in HAProxy, and the kernel would drop SYNs.
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
        // SO_REUSEPORT decides in which worker's backlog each client waits; all of them are accepted in the end.
        let mut waiting: Vec<_> = (0..6).map(|_| gate.client()).collect();
        for client in &mut waiting {
            client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        }
        assert_eq!(first.get("/").status, 200);
        let peak = || match which {
            "process" => gate.process().sessions.peak(),
            // A slot of the process is acquired first and released if a narrower limit is reached, so its peak may
            // be higher; only the peak of the limit itself is exact.
            _ => gate.running.proxies[0].frontend.sessions.peak(),
        };
        // A worker may briefly hold a slot that it releases because a narrower limit is reached.
        let current = || gate.running.proxies[0].frontend.sessions.current();
        wait_for(&format!("two sessions, no more: {which}"), || (current() == 2).then_some(()));
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

#[test]
fn a_thousand_connections_leave_no_descriptor_and_no_session_behind() {
    let address = Origin::new().serve(OK);
    let gate = Gate::start(2, listen(Mode::Http, &[address]));
    for round in 0..4 {
        for number in 0..250 {
            let mut client = gate.client();
            match number % 4 {
                // A whole request, half a request, no request, and a request whose client resets the connection.
                0 => assert_eq!(client.get("/").status, 200),
                1 => client.send("GET / HT"),
                2 => {}
                _ => {
                    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                    client.reset();
                }
            }
        }
        wait_for(&format!("the end of round {round}"), || (gate.process().sessions.current() == 0).then_some(()));
    }
    let streams = || -> u64 {
        let workers = &gate.process().workers;
        workers.iter().map(|worker| worker.streams.load(std::sync::atomic::Ordering::Relaxed)).sum()
    };
    wait_for("the last stream", || (streams() == 0).then_some(()));
    // Other tests open descriptors in this process meanwhile, so only sockets bound to the gate's port are counted.
    // Connections to the server are not: idle ones stay open.
    let own = gate.address.port();
    wait_for("the last socket", || (established_to(own) == 0).then_some(()));
}

/// Sockets of this process that are bound to `port` and connected.
fn established_to(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("readable");
    let local = format!(":{port:04X}");
    let states = table.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let here = words.next()?;
        let state = words.nth(1)?;
        here.ends_with(&local).then_some(state)
    });
    // 01 is ESTABLISHED and 08 CLOSE_WAIT: the states of sockets that this process has not closed.
    states.filter(|state| matches!(*state, "01" | "08")).count()
}

#[test]
fn unix_and_inherited_sockets_are_served_by_every_worker() {
    use std::io::{Read, Write};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gate");
    let parent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut proxy = listen(Mode::Http, &[Origin::new().serve(OK)]);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&parent);
    proxy.binds[0].addresses.push(BindAddress::Unix(path.clone()));
    proxy.binds[0].addresses.push(BindAddress::Fd(fd));
    let gate = Gate::start(3, proxy);
    let mut inherited = sluicegate_testkit::Client::connect(&parent.local_addr().unwrap().to_string());
    assert_eq!(inherited.get("/").status, 200);
    let mut clients: Vec<_> =
        (0..9).map(|_| std::os::unix::net::UnixStream::connect(&path).expect("listening")).collect();
    for client in &mut clients {
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut bytes = [0; OK.len()];
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, OK.replace("Content-Length", "content-length").as_bytes());
    }
    let served = gate.process().workers.iter().filter(|worker| worker.requests.get() > 0).count();
    assert_eq!(served, 3, "who accepts hands over");
}
