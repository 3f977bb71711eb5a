//! Requests over sockets: exact counts by every way to count, and clients that reset in the middle.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use sluicegate_config::model::BindAddress;
use sluicegate_config::{Environment, MemoryFiles};
use sluicegate_proxy::engines::Engines;
use sluicegate_proxy::listener::{self, SystemSockets};
use sluicegate_proxy::process::Process;
use sluicegate_proxy::running::{self, Parts, Running};
use sluicegate_proxy::worker::{self, Workers};
use sluicegate_testkit::{Client, PATIENCE, RedisServer, wait_for};
use sluicegate_wire::engine::Engine;
use sluicegate_wire::reply::Reply;

use super::fixture::{Counters, Lines, Scripts};
use crate::rules::fixture::DEFAULTS;

/// Workers that run a script's action on each request.
pub struct Gate {
    pub running: Arc<Running>,
    pub address: SocketAddr,
    workers: Option<Workers>,
    pub store: Arc<Counters>,
    pub lines: Lines,
    _scripts: Scripts,
}

impl Gate {
    pub fn start(workers: usize, scripts: Scripts, rules: &str) -> Gate {
        let lines = Lines::default();
        let states = scripts.load(workers, &lines).unwrap_or_else(|error| panic!("{error}"));
        let text = format!("{DEFAULTS}listen gate\n bind 127.0.0.1:1\n{rules}");
        let files = MemoryFiles::new().with("test.cfg", text);
        let (config, diagnostics) =
            sluicegate_config::load(&files, &[PathBuf::from("test.cfg")], &mut Environment::new(), &*states);
        let mut config =
            config.unwrap_or_else(|| panic!("{}", diagnostics.iter().map(|d| d.to_string()).collect::<String>()));
        config.global = scripts.global.clone();
        // The kernel's choice, which the language has no word for.
        config.proxies[0].binds[0].addresses = vec![BindAddress::Inet(Ipv4Addr::LOCALHOST.into(), 0)];
        let process = Process::new(workers, None);
        let store = Arc::new(Counters::default());
        let engines = Engines::from([("main".into(), store.clone() as Arc<dyn Engine>)]);
        let parts = Parts {
            pages: sluicegate_proxy::stats::pages(),
            engines,
            lua: Some(states.clone()),
            logger: Default::default(),
            process,
        };
        let running = running::build(Arc::new(config), parts).expect("rules compile");
        states.run_init().expect("no init functions");
        let bound = listener::bind(&running, &SystemSockets).unwrap_or_else(|errors| panic!("{errors:?}"));
        let address = bound[0].local.expect("an inet address");
        let workers = Some(worker::start(&running, bound, Vec::new()).expect("threads"));
        Gate { running, address, workers, store, lines, _scripts: scripts }
    }

    /// Sends `requests` requests over `clients` connections at once.
    fn send(&self, clients: usize, requests: usize) {
        let address = self.address.to_string();
        thread::scope(|scope| {
            for _ in 0..clients {
                scope.spawn(|| {
                    let mut stream = BufReader::new(TcpStream::connect(&address).expect("connected"));
                    stream.get_ref().set_read_timeout(Some(PATIENCE)).expect("set");
                    for _ in 0..requests / clients {
                        stream.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("sent");
                        let mut status = String::new();
                        stream.read_line(&mut status).expect("a status line");
                        assert!(status.starts_with("HTTP/1.1 302 "), "{status}");
                        while stream.read_line(&mut status).expect("a line") > 2 {}
                    }
                });
            }
        });
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.running.process.stop_now();
        if let Some(workers) = self.workers.take() {
            let result = workers.join();
            if !thread::panicking() {
                result.expect("workers end well");
            }
        }
    }
}

const REDIRECT: &str = " http-request lua.accounting\n http-request redirect location /ok\n";

/// An example's script, told where its Redis listens.
fn example(name: &str, port: u16, per_thread: bool) -> Scripts {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/accounting");
    let code = format!(
        "local getenv = os.getenv
         os.getenv = function(name) return name == 'REDIS_PORT' and '{port}' or name ~= 'REDIS_HOST' and getenv(name) or nil end
         dofile('{}')",
        examples.join(name).display()
    );
    let own = format!("{}/?.lua", examples.display());
    Scripts::new().with(&code, per_thread).path("/usr/share/lua/5.1/?.lua").path(&own)
}

#[test]
fn every_request_is_counted_by_any_number_of_workers() {
    const REQUESTS: usize = 200;
    let redis = RedisServer::start(&[]);
    let port = redis.address().rsplit_once(':').expect("a port").1.parse().expect("a number");
    for name in ["handwritten.lua", "redis_lua_pool.lua", "redis_lua_new.lua"] {
        for workers in [1, 2, 4] {
            for per_thread in [false, true] {
                let gate = Gate::start(workers, example(name, port, per_thread), REDIRECT);
                gate.send(8, REQUESTS);
                let counted = Client::connect(&redis.address()).ask(&["GET", "127.0.0.1"]);
                let at = format!("{name}, {workers} workers, per thread: {per_thread}");
                assert_eq!(*gate.lines.lock().unwrap(), [], "{at}");
                assert_eq!(counted, format!("${}\r\n{REQUESTS}\r\n", REQUESTS.to_string().len()), "{at}");
                Client::connect(&redis.address()).ask(&["FLUSHALL"]);
            }
        }
    }
}

#[test]
fn the_store_inside_counts_exactly() {
    const REQUESTS: usize = 2000;
    for workers in [1, 2, 4] {
        for per_thread in [false, true] {
            let gate = Gate::start(workers, example("embedded.lua", 1, per_thread), REDIRECT);
            gate.send(8, REQUESTS);
            let sluicegate_wire::engine::Started::Done(counted) = gate.store.start(0, &[b"GET", b"127.0.0.1"]) else {
                panic!("it answers at once")
            };
            assert_eq!(counted, Reply::Bulk(REQUESTS.to_string().into_bytes()), "{workers} {per_thread}");
            assert_eq!(*gate.lines.lock().unwrap(), []);
        }
    }
}

/// A Redis that answers `:1` to each command, but only as many commands as it was let.
#[derive(Default)]
pub struct Slow {
    state: Mutex<(usize, usize)>, // commands received, answers allowed
    changed: Condvar,
    connections: AtomicUsize,
}

impl Slow {
    pub fn start() -> (Arc<Slow>, u16) {
        let slow = Arc::new(Slow::default());
        let listener = sluicegate_testkit::lasting_listener();
        let port = listener.local_addr().expect("bound").port();
        let shared = slow.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, slow) = (stream.expect("accepted"), shared.clone());
                slow.connections.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || {
                    slow.serve(stream);
                    slow.connections.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        (slow, port)
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut buffer = [0; 512];
        while let Ok(count) = stream.read(&mut buffer) {
            if count == 0 {
                return;
            }
            let mut state = self.state.lock().unwrap();
            state.0 += 1;
            let mine = state.0;
            while state.1 < mine {
                state = self.changed.wait(state).unwrap();
            }
            drop(state);
            if stream.write_all(b":1\r\n").is_err() {
                return;
            }
        }
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub fn received(&self) -> usize {
        self.state.lock().unwrap().0
    }

    pub fn answer_up_to(&self, count: usize) {
        self.state.lock().unwrap().1 = count;
        self.changed.notify_all();
    }
}

#[test]
fn a_thousand_clients_that_reset_leave_the_pool_full() {
    const POOL: usize = 20;
    for (workers, per_thread) in [(1, false), (2, false), (1, true)] {
        let (slow, port) = Slow::start();
        let mut scripts = example("handwritten.lua", port, per_thread);
        // Looks into the pool that the example keeps for itself.
        scripts = scripts.with(
            "core.register_action('pool', {'http-req'}, function(txn)
               local index = 1
               while true do
                 local name, value = debug.getupvalue(accounting, index)
                 if name == 'connections' then
                   txn:done{headers = {made = value.made, free = value.free.last - value.free.first + 1}}
                 end
                 index = index + 1
               end
             end)",
            per_thread,
        );
        // The example's action is kept where the other script finds it.
        let hook = "local register = core.register_action
            core.register_action = function(name, hooks, action, ...) accounting = action return register(name, hooks, action, ...) end";
        let first = scripts.directory().join("script0.lua");
        let example = std::fs::read_to_string(&first).expect("written before");
        std::fs::write(&first, format!("{hook}\n{example}\ncore.register_action = register")).expect("written");
        let rules = " http-request lua.pool if { path /pool }\n http-request lua.accounting\n http-request redirect location /ok\n";
        let gate = Gate::start(workers, scripts, rules);
        let mut sent = 0;
        while sent < 1000 {
            let clients: Vec<Client> = (0..POOL)
                .map(|_| {
                    let mut client = Client::connect(&gate.address.to_string());
                    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
                    client
                })
                .collect();
            sent += POOL;
            wait_for("the requests to be in the middle", || (slow.received() == sent).then_some(()));
            clients.into_iter().for_each(Client::reset);
            slow.answer_up_to(sent);
            let pool = || {
                let response = Client::connect(&gate.address.to_string()).get("/pool");
                (response.header("made").map(str::to_owned), response.header("free").map(str::to_owned))
            };
            wait_for("the pool to be full", || {
                let (made, free) = pool();
                let count = made.as_deref().and_then(|made| made.parse::<usize>().ok()).expect("a count");
                assert!(count <= POOL, "{count}");
                (made == free).then_some(())
            });
        }
        assert_eq!(*gate.lines.lock().unwrap(), []);
        assert!(slow.connections.load(Ordering::Relaxed) <= POOL);
    }
}
