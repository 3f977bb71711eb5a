//! Configurations made in code, workers in this process, and servers that a test drives byte by byte.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::model::{
    Bind, BindAddress, BindTcp, Config, ConnectionMode, Global, Mode, Pool, Position, Proxy, ProxyId, ProxyKind,
    ProxyOptions, Server, ServerAddress, ServerHashKey, ServerPort, Timeouts,
};
use sluicegate_proxy::listener::{self, SystemSockets};
use sluicegate_proxy::process::Process;
use sluicegate_proxy::running::{self, Parts, Running};
use sluicegate_proxy::worker::{self, Workers};
use sluicegate_testkit::{Client, PATIENCE};

fn nowhere() -> Position {
    Position { file: "test.cfg".into(), line: 1, column: 1 }
}

pub fn bind() -> Bind {
    Bind {
        addresses: vec![BindAddress::Inet(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)],
        name: None,
        maxconn: None,
        threads: Vec::new(),
        backlog: None,
        v6only: None,
        mode: None,
        user: None,
        group: None,
        tcp: BindTcp::NONE,
        id: None,
        accept_proxy: false,
        tls: None,
        proto: None,
        idle_ping: None,
        datagram: false,
        cip: None,
        guid_prefix: None,
        reverse_connections: 1,
        of_commands: Default::default(),
        at: nowhere(),
    }
}

pub fn server(name: &str, address: SocketAddr) -> Server {
    Server {
        name: name.into(),
        sid: 1,
        forced_id: false,
        is_named: false,
        address: ServerAddress::Inet(address.ip(), ServerPort::Fixed(address.port())),
        init_addr: Vec::new(),
        resolve: None,
        weight: 1,
        maxconn: None,
        strict_maxconn: false,
        minconn: None,
        maxqueue: None,
        slowstart: None,
        hash_key: ServerHashKey::Id,
        pool: Pool::default(),
        backup: false,
        non_stick: false,
        disabled: false,
        dynamic: false,
        cookie: None,
        send_proxy: None,
        source: None,
        tcp: Default::default(),
        guid: None,
        redirect: None,
        check: None,
        health: Default::default(),
        tls: None,
        proto: None,
        no_tls: false,
        log_proto: Default::default(),
        log_bufsize: None,
        datagram: false,
        shard: 0,
        pool_name: None,
        websockets: Default::default(),
        at: nowhere(),
    }
}

/// Returns a `listen` with long timeouts and the given servers.
pub fn listen(mode: Mode, servers: &[SocketAddr]) -> Proxy {
    let long = Some(Duration::from_secs(60));
    Proxy {
        mode,
        uid: 1,
        timeouts: Timeouts { client: long, server: long, connect: long, ..Timeouts::default() },
        options: ProxyOptions { connection: ConnectionMode::KeepAlive, ..ProxyOptions::default() },
        binds: vec![bind()],
        default_backend: Some(ProxyId(0)),
        servers: servers.iter().enumerate().map(|(index, address)| server(&format!("s{index}"), *address)).collect(),
        ..Proxy::new("www".into(), ProxyKind::Listen, nowhere())
    }
}

/// Running workers; dropping it ends them.
pub struct Gate {
    pub running: Arc<Running>,
    pub address: SocketAddr,
    workers: Option<Workers>,
}

impl Gate {
    pub fn start(workers: usize, proxy: Proxy) -> Gate {
        Gate::with_global(workers, proxy, Global::default())
    }

    pub fn with_global(workers: usize, proxy: Proxy, global: Global) -> Gate {
        let process = Process::new(workers, global.maxconn);
        let config = Config {
            global,
            proxies: vec![proxy],
            stores: Vec::new(),
            engines: Vec::new(),
            origins: Vec::new(),
            tls_files: Arc::default(),
            patterns: Arc::default(),
            environment: Default::default(),
            user_lists: Vec::new(),
            resolvers: Vec::new(),
            namespaces: Vec::new(),
            limits: Vec::new(),
            peers: Vec::new(),
            rings: Vec::new(),
            traces: Default::default(),
            acme: Vec::new(),
            mailers: Vec::new(),
            caches: Vec::new(),
            log_profiles: Vec::new(),
            programs: Vec::new(),
        };
        let parts = Parts {
            pages: sluicegate_proxy::stats::pages(),
            engines: Default::default(),
            lua: None,
            logger: Default::default(),
            process,
        };
        let running = running::build(Arc::new(config), parts).expect("rules compile");
        let bound = listener::bind(&running, &SystemSockets).unwrap_or_else(|errors| panic!("{errors:?}"));
        let address = bound[0].local.expect("an inet address");
        let workers = worker::start(&running, bound, Vec::new()).expect("threads");
        Gate { running, address, workers: Some(workers) }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.address.to_string())
    }

    pub fn process(&self) -> &Process {
        &self.running.process
    }

    /// Waits until the workers end by themselves.
    pub fn join(mut self) {
        self.workers.take().expect("not joined yet").join().expect("workers end well");
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.running.process.stop_now();
        if let Some(workers) = self.workers.take() {
            let result = workers.join();
            if !std::thread::panicking() {
                result.expect("workers end well");
            }
        }
    }
}

/// A server whose connections the test accepts one by one.
pub struct Origin {
    listener: TcpListener,
    pub address: SocketAddr,
}

impl Origin {
    pub fn new() -> Origin {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        Origin { listener, address }
    }

    pub fn accept(&self) -> Peer {
        self.listener.set_nonblocking(true).unwrap();
        let stream = sluicegate_testkit::wait_for("a connection to the server", || self.listener.accept().ok()).0;
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Peer { stream, received: Vec::new() }
    }

    /// Returns whether no connection is waiting.
    pub fn is_unvisited(&self) -> bool {
        self.listener.set_nonblocking(true).unwrap();
        self.listener.accept().is_err()
    }

    /// Answers every request on every connection with `response`, in threads that end with their connections.
    pub fn serve(self, response: impl Into<Vec<u8>>) -> SocketAddr {
        let response: Arc<[u8]> = response.into().into();
        let address = self.address;
        std::thread::spawn(move || {
            while let Ok((stream, _)) = self.listener.accept() {
                let response = response.clone();
                std::thread::spawn(move || {
                    let mut peer = Peer { stream, received: Vec::new() };
                    while peer.try_read_until(b"\r\n\r\n").is_some() && peer.stream.write_all(&response).is_ok() {}
                });
            }
        });
        address
    }
}

/// A connection of a server.
pub struct Peer {
    pub stream: TcpStream,
    received: Vec<u8>,
}

impl Peer {
    fn fill(&mut self) -> bool {
        let mut buffer = [0; 65536];
        match self.stream.read(&mut buffer) {
            Ok(count) if count > 0 => {
                self.received.extend_from_slice(&buffer[..count]);
                true
            }
            _ => false,
        }
    }

    pub fn try_read_until(&mut self, end: &[u8]) -> Option<String> {
        loop {
            if let Some(at) = self.received.windows(end.len()).position(|window| window == end) {
                let bytes: Vec<u8> = self.received.drain(..at + end.len()).collect();
                return Some(String::from_utf8_lossy(&bytes).into_owned());
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// Reads a request head.
    #[track_caller]
    pub fn head(&mut self) -> String {
        self.try_read_until(b"\r\n\r\n").unwrap_or_else(|| panic!("a head, not {:?}", self.received))
    }

    #[track_caller]
    pub fn read_exact(&mut self, count: usize) -> Vec<u8> {
        while self.received.len() < count {
            assert!(self.fill(), "closed before {count} bytes: {:?}", String::from_utf8_lossy(&self.received));
        }
        self.received.drain(..count).collect()
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the proxy reads");
    }

    /// Reads until the proxy closes its side.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        while self.fill() {}
        std::mem::take(&mut self.received)
    }
}

pub const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
