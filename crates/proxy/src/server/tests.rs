//! Slots, queues, connections and checks together, on backends built from configuration texts.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant, SystemTime};

use proptest::prelude::*;
use sluicegate_config::{Config, Environment, Files, NoLua, load};
use sluicegate_transport::Socket;
use tokio::io::AsyncWriteExt;

use super::assign::{Assignment, turn_around};
use super::connection::Link;
use super::idle::{IdleConnections, Keeper};
use super::opening::ConnectError;
use super::queue::{Positions, Turn, Wait};
use super::tls::Names;
use super::*;
use crate::balance::{Pick, Wish};
use crate::running::{Parts, ProxyRun, Running, build};
use crate::stream::{Endings, LogRecord};

struct OneFile(String);

impl Files for OneFile {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Ok(self.0.clone().into_bytes())
    }
    fn list(&self, _: &Path) -> io::Result<Vec<PathBuf>> {
        Err(io::ErrorKind::NotADirectory.into())
    }
}

fn config(text: &str) -> Config {
    let (config, diagnostics) =
        load(&OneFile(text.to_owned()), &["test.cfg".into()], &mut Environment::default(), &NoLua);
    config.unwrap_or_else(|| panic!("{diagnostics:?}"))
}

/// Returns the running objects of a configuration for `workers` workers.
pub(super) fn running_with(text: &str, workers: usize) -> Arc<Running> {
    let config = Arc::new(config(text));
    let logger = crate::log::Logger::new(&config, crate::log::Identity::default());
    let process = crate::process::Process::new(workers, None);
    build(config, Parts { pages: crate::stats::pages(), engines: Default::default(), lua: None, logger, process })
        .unwrap()
}

/// Returns a backend with these configuration lines, in `mode http`, for `workers` workers.
fn backend_for(lines: &str, workers: usize) -> (Arc<Running>, Arc<ProxyRun>) {
    let running = running_with(&format!("backend be\n mode http\n{lines}\n"), workers);
    let proxy = running.proxies[0].clone();
    (running, proxy)
}

fn backend(lines: &str) -> Arc<ProxyRun> {
    backend_for(lines, 1).1
}

fn record() -> LogRecord {
    let now = Instant::now();
    LogRecord { request_done: Some(now), ..LogRecord::new(SystemTime::now(), now) }
}

fn assignment(proxy: &ProxyRun, worker: usize, allow_reuse: bool) -> Assignment<'_> {
    Assignment {
        asked_for: None,
        stays: false,
        preferred: None,
        has_reserved: false,
        config: &proxy.config,
        backend: &proxy.backend,
        counted: &proxy.backend,
        redirects: false,
        servers: &proxy.servers,
        proxies: &[],
        observer: None,
        worker,
        destination: None,
        headers: (&proxy.headers, Vec::new()),
        names: Names::default(),
        totals: &proxy.directory.process.tls,
        foreign: Vec::new(),
        namespace: None,
        http2: None,
        agents: None,
        application: None,
        websocket: false,
        allow_reuse,
        keeper: Keeper { session: 0, most: proxy.config.max_session_srv_conns },
        hash: None,
        retries: proxy.config.retries,
        priority: Priority::default(),
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

/// Counts its wake-ups.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll(wait: &mut Wait<'_>, woken: &Arc<Woken>) -> Poll<Turn> {
    let waker = Waker::from(woken.clone());
    Pin::new(wait).poll(&mut Context::from_waker(&waker))
}

const ANY: &str = "server a 127.0.0.1:1 maxconn 1\n server b 127.0.0.1:1 maxconn 1";

fn free(proxy: &ProxyRun, server: usize) {
    proxy.backend.give_slot(server);
    proxy.backend.queue.dispatch(&proxy.backend, server);
}

#[test]
fn a_freed_slot_goes_to_who_came_first() {
    let proxy = backend(ANY);
    let shared = &proxy.backend;
    assert!(shared.servers.iter().all(|server| server.take_slot()));
    let woken = Arc::new(Woken::default());
    let mut first = shared.queue.wait(shared, None, Priority::default(), false);
    let mut second = shared.queue.wait(shared, None, Priority::default(), false);
    assert!(poll(&mut first, &woken).is_pending() && poll(&mut second, &woken).is_pending());
    assert_eq!(shared.queue.len(), 2);
    free(&proxy, 1);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(poll(&mut second, &woken).is_pending());
    assert_eq!(poll(&mut first, &woken), Poll::Ready(Turn::Granted(1)));
    assert_eq!(first.positions(), Positions { server: 0, backend: 1 });
    drop(first);
    free(&proxy, 1);
    assert_eq!(poll(&mut second, &woken), Poll::Ready(Turn::Granted(1)));
    assert_eq!(second.positions(), Positions { server: 0, backend: 2 });
    assert_eq!((shared.queue.len(), shared.queue.highest()), (0, 2));
}

#[test]
fn a_waiter_that_is_dropped_loses_no_slot() {
    let proxy = backend(ANY);
    let shared = &proxy.backend;
    assert!(shared.servers.iter().all(|server| server.take_slot()));
    let woken = Arc::new(Woken::default());
    let leaves = shared.queue.wait(shared, None, Priority::default(), false);
    let granted = shared.queue.wait(shared, None, Priority::default(), false);
    let mut last = shared.queue.wait(shared, None, Priority::default(), false);
    assert!(poll(&mut last, &woken).is_pending());
    drop(leaves);
    free(&proxy, 0);
    assert!(poll(&mut last, &woken).is_pending(), "the slot is the second one's");
    drop(granted);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert_eq!(poll(&mut last, &woken), Poll::Ready(Turn::Granted(0)));
    drop(last);
    free(&proxy, 0);
    assert!(shared.servers[0].take_slot());
}

#[test]
fn the_only_backup_has_a_queue_of_its_own_that_is_sent_away_when_it_goes() {
    let proxy =
        backend("option redispatch\n server a 127.0.0.1:1 disabled\n server b 127.0.0.1:1 maxconn 1 backup maxqueue 1");
    let shared = &proxy.backend;
    assert!(shared.servers[1].take_slot());
    let woken = Arc::new(Woken::default());
    let mut wait = shared.queue.wait(shared, Some(1), Priority::default(), false);
    assert!(poll(&mut wait, &woken).is_pending());
    assert_eq!((shared.servers[1].queued.load(Ordering::Relaxed), shared.queue.len()), (1, 0));
    let full = block_on(assignment(&proxy, 0, false).run(&mut record())).unwrap_err();
    assert_eq!((full, full.ending()), (ServerFailure::QueueFull, Endings { who: b'S', phase: b'Q' }));

    let now = Instant::now();
    shared.update(1, now, |status| status.admin = Admin::Maintenance);
    assert_eq!((shared.servers[1].queued.load(Ordering::Relaxed), shared.queue.len()), (0, 0));
    assert_eq!(poll(&mut wait, &woken), Poll::Ready(Turn::Again));
    let mut common = shared.queue.wait(shared, None, Priority::default(), false);
    assert!(poll(&mut common, &woken).is_pending(), "no server is left");
    shared.update(0, now, |status| status.admin = Admin::Ready);
    assert_eq!(poll(&mut common, &woken), Poll::Ready(Turn::Granted(0)), "a server that comes up takes who waits");
}

#[test]
fn a_raised_maxconn_serves_who_waits() {
    let proxy = backend("server a 127.0.0.1:1 maxconn 1");
    let shared = &proxy.backend;
    assert!(shared.servers[0].take_slot());
    let woken = Arc::new(Woken::default());
    let mut wait = shared.queue.wait(shared, None, Priority::default(), false);
    assert!(poll(&mut wait, &woken).is_pending());
    shared.set_maxconn(0, 2);
    assert_eq!(poll(&mut wait, &woken), Poll::Ready(Turn::Granted(0)));
}

proptest! {
    /// Any sequence of joins, departures, polls, freed slots and servers that go up and down: slots are never exceeded,
    /// grants follow the order of arrival, and no waiter waits while a usable slot is free.
    #[test]
    fn queues_keep_their_promise(steps in proptest::collection::vec((0u8..6, 0usize..8), 1..200)) {
        let proxy = backend("server a 127.0.0.1:1 maxconn 1\n server b 127.0.0.1:1 maxconn 2");
        let shared = &proxy.backend;
        let woken = Arc::new(Woken::default());
        let mut waiting: Vec<Wait<'_>> = Vec::new();
        let mut held: Vec<usize> = Vec::new();
        for (step, which) in steps {
            match step {
                0 | 1 => waiting.push(shared.queue.wait(shared, (step == 1 && which < 2).then_some(which), Priority::default(), false)),
                2 if !waiting.is_empty() => drop(waiting.remove(which % waiting.len())),
                3 if !held.is_empty() => free(&proxy, held.remove(which % held.len())),
                4 => {
                    shared.update(which % 2, Instant::now(), |status| {
                        status.admin = if which < 4 { Admin::Maintenance } else { Admin::Ready };
                    });
                }
                _ => {
                    let mut still = Vec::new();
                    for mut wait in std::mem::take(&mut waiting) {
                        match poll(&mut wait, &woken) {
                            Poll::Ready(Turn::Granted(server)) => held.push(server),
                            Poll::Ready(Turn::Again) => panic!("nobody chose by a key"),
                            Poll::Pending => still.push(wait),
                        }
                    }
                    waiting = still;
                }
            }
            for (server, max) in shared.servers.iter().zip([1, 2]) {
                let used = server.figures.scur.load(Ordering::Relaxed);
                prop_assert!(used <= max);
                if used < max && server.effective_weight() > 0 {
                    prop_assert_eq!(shared.queue.len(), 0, "a slot of {} is free", server.name);
                    prop_assert_eq!(server.queued.load(Ordering::Relaxed), 0);
                }
            }
        }
        drop(waiting);
        for server in held {
            free(&proxy, server);
        }
        prop_assert!(shared.servers.iter().all(|server| server.figures.scur.load(Ordering::Relaxed) == 0));
        prop_assert!(!shared.queue.has_waiters());
    }
}

/// Threads compete for two slots; none starves and the limit holds at every moment.
#[test]
fn threads_share_slots_without_losing_any() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 2_000;
    let (_running, proxy) = backend_for(ANY, THREADS);
    let inside = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                block_on(async {
                    for _ in 0..ROUNDS {
                        let server = match proxy.backend.pick(Wish::default()) {
                            Pick::Taken(server) => server,
                            _ => match proxy.backend.queue.wait(&proxy.backend, None, Priority::default(), false).await
                            {
                                Turn::Granted(server) => server,
                                Turn::Again => panic!("nobody chose by a key"),
                            },
                        };
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(now <= 2);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(run::Slot { server: proxy.servers[server].clone() });
                    }
                });
            });
        }
    });
    assert!(proxy.backend.servers.iter().all(|server| server.figures.scur.load(Ordering::Relaxed) == 0));
}

#[test]
fn without_a_server_it_fails_at_once() {
    let proxy = backend("server a 127.0.0.1:1 disabled\n server b 127.0.0.1:1 weight 0");
    let mut log = record();
    let failure = block_on(assignment(&proxy, 0, false).run(&mut log)).unwrap_err();
    assert_eq!((failure, failure.status()), (ServerFailure::NoServer, 503));
    assert_eq!(failure.ending(), Endings { who: b'S', phase: b'C' });
    assert!(log.server.is_none() && log.queue_done.is_none());
    assert_eq!(proxy.backend.figures.sum(|c| &c.econ), 1);
}

/// Returns a loopback address that refuses connections.
fn refusing() -> SocketAddr {
    ([127, 0, 0, 1], sluicegate_testkit::free_port()).into()
}

#[test]
fn a_refusing_server_is_tried_again_and_then_given_up() {
    let proxy = backend(&format!("timeout connect 20ms\n retries 2\n server a {}", refusing()));
    let mut log = record();
    let begun = Instant::now();
    let failure = block_on(assignment(&proxy, 0, false).run(&mut log)).unwrap_err();
    assert_eq!(failure, ServerFailure::Refused);
    assert_eq!(failure.ending(), Endings { who: b'S', phase: b'C' });
    assert!(begun.elapsed() >= Duration::from_millis(40), "two pauses of timeout connect");
    assert_eq!((log.retries, log.redispatched), (2, false));
    assert_eq!(**log.server.as_ref().unwrap().name(), *"a");
    for figures in [&proxy.backend.figures, &proxy.servers[0].shared.figures] {
        assert_eq!([figures.sum(|c| &c.wretr), figures.sum(|c| &c.econ), figures.sum(|c| &c.connect)], [2, 1, 3]);
    }
    assert_eq!(proxy.servers[0].shared.figures.sum(|c| &c.stot), 3, "every attempt is a session of the server");
    assert_eq!(proxy.servers[0].shared.figures.scur.load(Ordering::Relaxed), 0);
}

#[test]
fn a_redispatch_goes_to_another_server_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let good = listener.local_addr().unwrap();
    let proxy =
        backend(&format!("timeout connect 30s\n option redispatch\n server a {}\n server b {good}", refusing()));
    let mut log = record();
    let connection = block_on(async { assignment(&proxy, 0, false).run(&mut log).await.unwrap() });
    assert_eq!(**connection.server().name(), *"b");
    assert_eq!((log.retries, log.redispatched), (1, true));
    assert_eq!([&proxy.servers[0], &proxy.servers[1]].map(|s| s.shared.figures.sum(|c| &c.wredis)), [1, 0]);
    assert_eq!(proxy.backend.figures.sum(|c| &c.wredis), 1);
}

#[test]
fn a_silent_server_is_a_connect_timeout() {
    // A listener whose backlog is full drops further handshakes.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let fill: Vec<_> =
        (0..4).map(|_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(50))).collect();
    assert!(fill.iter().any(Result::is_err), "the backlog is full");
    let proxy = backend(&format!("timeout connect 30ms\n retries 1\n server a {address}"));
    let mut log = record();
    let failure = block_on(assignment(&proxy, 0, false).run(&mut log)).unwrap_err();
    assert_eq!(failure, ServerFailure::ConnectTimeout);
    assert_eq!(failure.ending(), Endings { who: b's', phase: b'C' });
    assert_eq!(log.retries, 1);
}

#[test]
fn a_wait_ends_with_timeout_queue_and_is_logged() {
    let proxy = backend("timeout queue 20ms\n server a 127.0.0.1:1 maxconn 1");
    assert!(proxy.backend.servers[0].take_slot());
    let mut log = record();
    let failure = block_on(assignment(&proxy, 0, false).run(&mut log)).unwrap_err();
    assert_eq!(failure, ServerFailure::QueueTimeout);
    assert_eq!(failure.ending(), Endings { who: b's', phase: b'Q' });
    assert_eq!((log.backend_queue, log.server_queue), (1, 0));
    assert!(log.queue_done.is_some() && log.server.is_none());
    assert!(!proxy.backend.queue.has_waiters());
}

#[test]
fn a_client_that_leaves_the_queue_is_logged_as_such() {
    let proxy = backend("server a 127.0.0.1:1 maxconn 1");
    assert!(proxy.backend.servers[0].take_slot());
    let mut log = record();
    block_on(async {
        let assignment = assignment(&proxy, 0, false);
        let mut waiting = Box::pin(assignment.run(&mut log));
        assert!(futures_now(waiting.as_mut()).is_pending());
        drop(waiting);
    });
    assert_eq!(log.phase_before_server(), b'Q');
    assert_eq!(log.backend_queue, 1);
    assert!(!proxy.backend.queue.has_waiters());
}

/// Polls once.
fn futures_now<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn socket_of(connection: &ServerConnection) -> &Socket {
    match &connection.link {
        Link::Own(socket) => socket,
        link => panic!("{link:?}"),
    }
}

async fn connected(proxy: &ProxyRun, worker: usize, allow_reuse: bool) -> ServerConnection {
    assignment(proxy, worker, allow_reuse).run(&mut record()).await.unwrap()
}

#[test]
fn released_connections_are_reused_and_dead_ones_noticed() {
    block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = backend(&format!("server a {}", listener.local_addr().unwrap()));
        let owner = Arc::new(IdleConnections::default());
        let first = connected(&proxy, 0, true).await;
        let (mut peer, _) = listener.accept().await.unwrap();
        assert!(!first.was_reused());
        first.release(&owner, 0);
        assert_eq!((owner.len(), proxy.servers[0].shared.idle_connections()), (1, 1));
        assert_eq!(proxy.servers[0].shared.figures.scur.load(Ordering::Relaxed), 0, "an idle one holds no slot");

        let fresh = connected(&proxy, 0, false).await;
        assert!(!fresh.was_reused(), "http-reuse safe: a first request gets its own");
        drop(fresh);
        let again = connected(&proxy, 0, true).await;
        assert!(again.was_reused());
        assert!(owner.is_empty());
        again.release(&owner, 0);

        peer.shutdown().await.unwrap();
        drop(peer);
        // The task of the list of idle connections notices the peer's close and drops the connection, although nobody
        // asks for one.
        for _ in 0..10_000 {
            if owner.is_empty() {
                break;
            }
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(owner.is_empty());
        assert!(!connected(&proxy, 0, true).await.was_reused());
        assert_eq!([proxy.backend.figures.sum(|c| &c.reuse), proxy.backend.figures.sum(|c| &c.connect)], [1, 3]);
    });
}

#[test]
fn stray_data_ends_an_idle_connection() {
    block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = backend(&format!("server a {}", listener.local_addr().unwrap()));
        let owner = Arc::new(IdleConnections::default());
        let first = connected(&proxy, 0, true).await;
        let (mut peer, _) = listener.accept().await.unwrap();
        peer.write_all(b"unasked").await.unwrap();
        socket_of(&first).readable().await.unwrap();
        first.release(&owner, 0);
        assert!(owner.is_empty());
    });
}

#[test]
fn another_workers_idle_connection_is_taken_before_a_new_one_is_made() {
    let (running, proxy, listener) = block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (running, proxy) = backend_for(&format!("server a {}", listener.local_addr().unwrap()), 2);
        (running, proxy, listener)
    });
    // The first worker's runtime lives as long as its connection is idle.
    let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&first, async {
        connected(&proxy, 0, true).await.release(&running.idle[0], 0);
    });
    let (mut peer, _) = listener.accept().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block_on(async {
                let taken = connected(&proxy, 1, true).await;
                assert!(taken.was_reused());
                assert!(running.idle[0].is_empty());
                socket_of(&taken).writable().await.unwrap();
                socket_of(&taken).try_write(b"x").unwrap();
                taken.release(&running.idle[1], 1);
            });
        });
    });
    let mut byte = [0];
    io::Read::read_exact(&mut peer, &mut byte).unwrap();
    assert_eq!(byte, *b"x");
}

#[test]
fn unused_connections_are_purged_by_halves() {
    block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = backend(&format!("server a {}", listener.local_addr().unwrap()));
        let owner = Arc::new(IdleConnections::default());
        let mut open = Vec::new();
        for _ in 0..5 {
            open.push(connected(&proxy, 0, false).await);
        }
        open.into_iter().for_each(|connection| connection.release(&owner, 0));
        let list = &proxy.servers[0].shared.idle[0];
        assert!(list.purge(), "nothing was idle for a whole period yet");
        assert_eq!(owner.len(), 5);
        assert!(list.purge());
        assert_eq!(owner.len(), 2);
        connected(&proxy, 0, true).await.release(&owner, 0);
        assert!(list.purge());
        assert_eq!(owner.len(), 1, "one was needed, so only one was spare");
    });
}

#[test]
fn names_without_an_address_are_told_with_their_line() {
    let running = running_with("backend be\n server a name.invalid:80\n server b localhost:80\n", 1);
    let errors = resolve_names(&running, &HashMap::new()).unwrap_err();
    assert_eq!(errors.len(), 1);
    let text = errors[0].to_string();
    assert!(text.starts_with("test.cfg:2: server be/a: could not resolve address 'name.invalid'"), "{text}");
    let local = running.proxies[0].servers[1].socket_addr(None).unwrap();
    assert!(local.ip().is_loopback() && local.port() == 80);
}

#[test]
fn a_port_may_follow_the_clients() {
    let proxy = backend("server a 127.0.0.1:+100\n server b 127.0.0.1");
    let destination = Some("192.0.2.1:8000".parse().unwrap());
    assert_eq!(proxy.servers[0].socket_addr(destination).unwrap().port(), 8100);
    assert_eq!(proxy.servers[1].socket_addr(destination).unwrap().port(), 8000);
    assert_eq!(proxy.servers[0].socket_addr(None), None);
}

/// Checks against a listener that goes and comes: status, counters, log lines and the balancer follow.
#[test]
fn checks_take_a_server_out_and_bring_it_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let running = running_with(
        &format!(
            "global\n log stdout format raw local0\ndefaults\n log global\n timeout connect 1s\nbackend be\n \
             server a {address} check inter 10ms rise 2 fall 2\n"
        ),
        1,
    );
    let server = running.proxies[0].servers[0].shared.clone();
    let backend = running.proxies[0].backend.clone();
    let logged = running.logger.clone();
    block_on(async {
        let checks = tokio::spawn(run_health_checks(running.clone()));
        wait_until(|| server.status().health.level == 3).await;
        drop(listener);
        wait_until(|| server.effective_weight() == 0).await;
        assert!(!backend.summary(Instant::now()).up);
        assert_eq!(backend.usable_servers(), (0, 0));
        let _again = TcpListener::bind(address).unwrap();
        wait_until(|| server.effective_weight() == 1).await;
        checks.abort();
    });
    let status = server.status();
    assert_eq!((status.failed_checks, status.times_down), (2, 1));
    let lines = logged.pending();
    let lines: Vec<_> = lines.lines().map(without_duration).collect();
    assert_eq!(
        lines,
        [
            "Server be/a is DOWN, reason: Layer4 connection problem, info: \"Connection refused\", check duration: \
             Nms. 0 active and 0 backup servers left. 0 sessions active, 0 requeued, 0 remaining in queue.",
            "backend be has no server available!",
            "Server be/a is UP, reason: Layer4 check passed, check duration: Nms. 1 active and 0 backup servers \
             online. 0 sessions requeued, 0 total in queue.",
        ]
    );
}

fn without_duration(line: &str) -> String {
    match (line.find("duration: "), line.find("ms. ")) {
        (Some(start), Some(end)) => format!("{}N{}", &line[..start + 10], &line[end..]),
        _ => line.to_owned(),
    }
}

async fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_slow_start_raises_weight_and_slots_second_by_second() {
    let running = running_with(
        "backend be\n server a 127.0.0.1:1 weight 10 maxconn 40 slowstart 4s\n server b 127.0.0.1:1 weight 10\n",
        1,
    );
    let backend = running.proxies[0].backend.clone();
    let server = backend.servers[0].clone();
    let now = Instant::now();
    assert_eq!((server.effective_weight(), server.limit()), (10, Some(40)), "not at the start");
    backend.update(0, now, |status| status.admin = Admin::Maintenance);
    backend.update(0, now, |status| status.admin = Admin::Ready);
    for (elapsed, weight, throttle, limit) in [
        (0, 1, Some(6), 1),
        (1, 4, Some(31), 10),
        (2, 6, Some(56), 20),
        (3, 9, Some(81), 30),
        (4, 10, None, 40),
        (5, 10, None, 40),
    ] {
        backend.warm_up(now + Duration::from_secs(elapsed));
        let found = (server.effective_weight(), server.status().throttle(), server.limit());
        assert_eq!(found, (weight, throttle, Some(limit)), "after {elapsed} s");
    }
    backend.update(0, now, |status| status.admin = Admin::Drain);
    backend.update(0, now, |status| status.admin = Admin::Ready);
    assert_eq!(server.effective_weight(), 10, "it was up all the time");
}

#[test]
fn a_fixed_table_knows_no_slow_weights() {
    let running = running_with("backend be\n balance static-rr\n server a 127.0.0.1:1 weight 10 slowstart 4s\n", 1);
    let backend = running.proxies[0].backend.clone();
    let now = Instant::now();
    backend.update(0, now, |status| status.admin = Admin::Maintenance);
    backend.update(0, now, |status| status.admin = Admin::Ready);
    assert_eq!(backend.servers[0].effective_weight(), 10);
}

#[test]
fn what_a_hash_sent_to_a_server_that_goes_chooses_anew() {
    let servers = "server a 127.0.0.1:1 maxconn 1\n server b 127.0.0.1:1 maxconn 1";
    let proxy = backend(&format!("balance uri\n option redispatch\n {servers}"));
    let shared = &proxy.backend;
    assert!(shared.servers[0].take_slot());
    let woken = Arc::new(Woken::default());
    let mut stays = shared.queue.wait(shared, Some(0), Priority::default(), true);
    let mut keyed = shared.queue.wait(shared, Some(0), Priority::default(), false);
    assert!(poll(&mut keyed, &woken).is_pending(), "the other server is free, and not the one that it asked for");
    shared.update(0, Instant::now(), |status| status.admin = Admin::Maintenance);
    assert_eq!(poll(&mut keyed, &woken), Poll::Ready(Turn::Again));
    assert_eq!(keyed.positions(), Positions { server: 1, backend: 0 });
    assert!(poll(&mut stays, &woken).is_pending(), "`force-persist` keeps it here");
    drop(stays);
    let sent_away = shared.queue.wait(shared, Some(0), Priority::default(), false);
    shared.queue.redistribute(shared, 0);
    drop(sent_away);
    assert!(!shared.queue.has_waiters());
}

#[test]
fn who_waits_for_a_server_that_goes_stays_without_redispatch() {
    for (option, admin) in
        [("", Admin::Maintenance), ("", Admin::Drain), ("option redispatch\n option persist\n", Admin::Drain)]
    {
        let proxy = backend(&format!("{option} server a 127.0.0.1:1 maxconn 1\n server b 127.0.0.1:1 maxconn 1"));
        let shared = &proxy.backend;
        assert!(shared.servers[0].take_slot());
        let woken = Arc::new(Woken::default());
        let mut wait = shared.queue.wait(shared, Some(0), Priority::default(), false);
        shared.update(0, Instant::now(), |status| status.admin = admin);
        assert!(poll(&mut wait, &woken).is_pending());
        assert_eq!(shared.servers[0].queued.load(Ordering::Relaxed), 1);
        free(&proxy, 0);
        assert_eq!(poll(&mut wait, &woken), Poll::Ready(Turn::Granted(0)), "its slots serve who waited for it");
    }
    let proxy = backend("option redispatch\n server a 127.0.0.1:1 maxconn 1\n server b 127.0.0.1:1");
    let shared = &proxy.backend;
    assert!(shared.servers[0].take_slot());
    let woken = Arc::new(Woken::default());
    let mut wait = shared.queue.wait(shared, Some(0), Priority::default(), false);
    assert!(poll(&mut wait, &woken).is_pending());
    shared.update(0, Instant::now(), |status| status.admin = Admin::Drain);
    assert_eq!(poll(&mut wait, &woken), Poll::Ready(Turn::Again), "a drained server sends them away as well");
}

#[test]
fn a_retry_goes_elsewhere_at_once_unless_the_request_determines_its_server() {
    // The algorithm; whether the request selects `a` (`true`: by force); the number of retries; the server that serves
    // the request.
    let cases = [
        ("roundrobin", None, 1, Some("b")),
        ("static-rr", None, 1, Some("b")),
        ("leastconn", None, 1, Some("b")),
        ("first", None, 1, Some("b")),
        ("leastconn", Some(false), 2, Some("b")),
        ("leastconn", Some(true), 2, None),
        // The hash is 0, which selects `a`, the first server in the table.
        ("source", None, 2, None),
    ];
    for (algorithm, asked, retries, served) in cases {
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = backend(&format!(
            "balance {algorithm}\n timeout connect 20ms\n retries 2\n option redispatch\n server a {}\n server b {}",
            refusing(),
            good.local_addr().unwrap()
        ));
        let mut log = record();
        let mut assignment = assignment(&proxy, 0, false);
        assignment.asked_for = asked.map(|forced| (0, forced));
        assignment.stays = asked == Some(true);
        assignment.hash = proxy.config.balance.follows_requests().then_some(0);
        let connection = block_on(async { assignment.run(&mut log).await.ok() });
        let name = connection.map(|connection| connection.server().name().clone());
        assert_eq!((name.as_deref(), log.retries), (served, retries), "{algorithm} {asked:?}");
    }
}

#[test]
fn a_retry_pauses_unless_it_may_go_to_another_active_server() {
    let short = Some(Duration::from_millis(300));
    let cases = [
        (ConnectError::Refused, false, 2, short),
        (ConnectError::Refused, true, 2, None),
        (ConnectError::Refused, true, 1, short),
        (ConnectError::RefusedAtOnce, false, 2, None),
        (ConnectError::TimedOut, false, 2, None),
    ];
    for (error, redispatch, active, pause) in cases {
        assert_eq!(turn_around(error, redispatch, active, short), pause, "{error:?} {redispatch} {active}");
    }
    let long = Some(Duration::from_secs(5));
    assert_eq!(turn_around(ConnectError::Refused, false, 1, long), Some(Duration::from_secs(1)));
}

#[test]
fn pools_keep_what_they_are_told_to() {
    block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for (options, kept) in [("", 4), ("pool-max-conn 3", 3), ("pool-max-conn 0", 0), ("pool-purge-delay 0", 0)] {
            let proxy = backend(&format!("server a {address} {options}"));
            let owner = Arc::new(IdleConnections::default());
            let mut open = Vec::new();
            for _ in 0..4 {
                open.push(connected(&proxy, 0, false).await);
            }
            open.into_iter().for_each(|connection| connection.release(&owner, 0));
            assert_eq!(owner.len(), kept, "{options}");
        }
        let proxy = backend(&format!("server a {address} max-reuse 2"));
        let owner = Arc::new(IdleConnections::default());
        for reused in [false, true, true, false, true, true, false] {
            let connection = connected(&proxy, 0, true).await;
            assert_eq!(connection.was_reused(), reused);
            connection.release(&owner, 0);
        }
    });
}

#[test]
fn few_idle_connections_are_left_to_their_worker() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for (low, taken) in [(1, true), (2, false)] {
        let (running, proxy) = backend_for(&format!("server a {address} pool-low-conn {low}"), 2);
        // The first worker's runtime lives as long as its connection is idle.
        let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&first, async {
            connected(&proxy, 0, true).await.release(&running.idle[0], 0);
        });
        block_on(async {
            assert_eq!(connected(&proxy, 1, true).await.was_reused(), taken, "{low}");
        });
    }
}

#[test]
fn traffic_gives_a_verdict_that_the_caller_carries_out() {
    let (running, proxy) =
        backend_for(" server s 127.0.0.1:1 check observe layer4 error-limit 2 on-error mark-down", 1);
    let server = &proxy.servers[0];
    assert!(verdict::observe(server, Observed::NotConnected).is_none(), "one failure is below the limit");
    let concluded = verdict::observe(server, Observed::NotConnected).expect("the limit is reached");
    // The call has changed the state; the change is logged only by `announce`.
    assert_eq!(concluded.turn, Some(shared::Turn::Down { expected: false }));
    assert!(!server.shared.status().is_running());
    assert_eq!(running.logger.pending(), "");
    notice::announce(&running, &proxy, server, concluded);
    assert!(running.logger.pending().contains("Server be/s is DOWN, reason: "), "{}", running.logger.pending());
    assert!(verdict::observe(server, Observed::Connected).is_none());
}
