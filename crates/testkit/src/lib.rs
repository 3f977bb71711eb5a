//! Test support: sockets that listen before their server starts, real peers as child processes,
//! raw clients with deadlines, and inspection of processes from outside.
//!
//! Nothing here sleeps for a guessed time: a wait polls a condition until a deadline and panics with its last state. A
//! listener is bound to port 0 by the test and handed over as an inherited descriptor (`fd@N`), to Sluicegate and to
//! Debian's haproxy alike; programs that accept only a port number (redis-server) get one from [`free_port`], which is
//! handed out only once.

mod certificates;
mod client;
pub mod history;
mod pebble;
mod peer;
mod process;

pub use certificates::{Certificates, handshake, s_client, shown};
pub use client::{Client, Response, encode};
pub use pebble::Pebble;
pub use peer::{Haproxy, Program, RedisServer, Sluicegate, newer_peer};
pub use process::{cpu_time, descriptors, ended, rss_bytes, threads};

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// The time limit for events that should happen immediately: long enough to end only hanging tests, even on a machine
/// loaded with ten times its capacity.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Polls `condition` every few milliseconds until it gives a value; panics with `what` after [`PATIENCE`].
#[track_caller]
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    wait_until(what, || condition().ok_or(""))
}

/// The same, with a condition that says what is there instead.
#[track_caller]
pub fn wait_until<T, F: std::fmt::Display>(what: &str, mut condition: impl FnMut() -> Result<T, F>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match condition() {
            Ok(value) => return value,
            Err(found) => assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what} {found}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A listening socket on a port of the kernel's choice, to be inherited by a child process.
pub struct Listening {
    /// The socket; dropping it closes the test's copy.
    pub listener: TcpListener,
}

impl Listening {
    /// Listens on 127.0.0.1 with a port of the kernel's choice.
    pub fn new() -> Listening {
        Listening::at(Ipv4Addr::LOCALHOST)
    }

    /// The same on another loopback address.
    pub fn at(host: Ipv4Addr) -> Listening {
        Listening { listener: TcpListener::bind((host, 0)).expect("a loopback port") }
    }

    /// The same on `::1`.
    pub fn v6() -> Listening {
        Listening { listener: TcpListener::bind("[::1]:0").expect("a loopback port") }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.listener.local_addr().expect("bound").port()
    }

    /// `127.0.0.1:PORT`, or the address that it was made for.
    pub fn address(&self) -> String {
        self.listener.local_addr().expect("bound").to_string()
    }

    /// Returns the descriptor that a child started by this crate inherits under the same number.
    pub fn fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Returns the configuration word, `fd@N`.
    pub fn word(&self) -> String {
        format!("fd@{}", self.fd())
    }
}

impl Default for Listening {
    fn default() -> Self {
        Listening::new()
    }
}

/// Returns a port of 127.0.0.1 for programs that cannot inherit a socket, and for addresses where nobody listens.
///
/// A socket that does not listen holds it as long as this process runs, so that the kernel gives it to no other test,
/// neither for a listener nor for a connection. Servers can bind it all the same, as all of them set SO_REUSEADDR or
/// SO_REUSEPORT.
pub fn free_port() -> u16 {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("an option");
    socket.set_reuse_port(true).expect("an option");
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a loopback port");
    let address = socket.local_addr().ok().and_then(|address| address.as_socket()).expect("bound");
    // It stays open.
    let _ = aside(OwnedFd::from(socket)).into_raw_fd();
    address.port()
}

/// Listens on 127.0.0.1 with a port of the kernel's choice, for a server that lives as long as the test process.
pub fn lasting_listener() -> TcpListener {
    aside(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port").into()).into()
}

/// Gives a descriptor a high number, so that low ones are there for [`Listening`]: haproxy accepts none above a limit
/// that follows from its `maxconn`.
fn aside(fd: OwnedFd) -> OwnedFd {
    const HIGH: libc::c_int = 4096;
    // SAFETY: the descriptor is open, and its duplicate has no other owner.
    unsafe {
        match libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH) {
            high @ 0.. => OwnedFd::from_raw_fd(high),
            // The limit of descriptors is lower.
            _ => fd,
        }
    }
}
