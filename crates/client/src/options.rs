//! The settings of a `redis` section.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::Tls;

/// The default of `maxconn`.
pub const MAXCONN_DEFAULT: usize = 20;

/// The address of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A name or address, and a port.
    Tcp(String, u16),
    /// A unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Returns the current addresses of the name; a Unix socket has none. Blocks.
    pub fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        match self {
            Address::Tcp(host, port) => Ok((host.as_str(), *port).to_socket_addrs()?.collect()),
            Address::Unix(_) => Ok(Vec::new()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix@{}", path.display()),
        }
    }
}

/// The addresses of names, resolved while that was possible: after a `chroot`, the system cannot resolve names any
/// more.
pub type Names = HashMap<String, Vec<IpAddr>>;

/// The credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Auth {
    /// `None`: the default user.
    pub user: Option<String>,
    /// Never printed.
    pub password: String,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The kind of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One process.
    Single,
    /// A master whose address the sentinels know; one of its replicas replaces it when it fails.
    Sentinel {
        /// The master's name.
        master: String,
        /// The credentials for the sentinels; `None`: they have no passwords.
        auth: Option<Auth>,
        /// Commands that only read go to replicas.
        from_replicas: bool,
    },
    /// Masters that own the slots, with their replicas.
    Cluster {
        /// Commands that only read go to replicas.
        from_replicas: bool,
    },
}

/// An engine and the bounds of its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The section's name, which is also the name of the connections in `CLIENT LIST`.
    pub name: Arc<str>,
    /// Its kind.
    pub mode: Mode,
    /// The engine's address, or those of its sentinels or of some of a cluster's nodes. Never empty.
    pub servers: Vec<Address>,
    /// Addresses to be used for names that the system cannot resolve.
    pub names: Names,
    /// The credentials; `None`: an engine without passwords.
    pub auth: Option<Auth>,
    /// The encryption of connections, if any; those to unix sockets are not encrypted.
    pub tls: Option<Tls>,
    /// The default database.
    pub db: u32,
    /// The maximum number of connections of the whole process.
    pub maxconn: usize,
    /// The maximum number of commands that wait for a connection.
    pub maxqueue: usize,
    /// The time limit for connecting and the handshake.
    pub timeout_connect: Duration,
    /// The time limit for waiting for a connection.
    pub timeout_queue: Duration,
    /// The time limit from sending a command to its reply.
    pub timeout_server: Duration,
    /// The time after which an idle connection is closed; `None`: never.
    pub timeout_idle: Option<Duration>,
    /// The age at which a connection is renewed, a tenth more or less; `None`: never.
    pub max_lifetime: Option<Duration>,
    /// The maximum number of attempts to connect per second.
    pub connect_rate: u32,
    /// The number of consecutive failures that opens the breaker.
    pub breaker: u32,
    /// The engine of a test that needs no socket.
    #[cfg(test)]
    pub(crate) place: crate::model::Place,
    /// The maximum number of bytes of replies in the client-side cache; 0: no cache.
    pub client_cache: usize,
}

impl Options {
    /// Returns an engine with the bounds that a section without further keywords has.
    pub fn new(name: &str, address: Address) -> Options {
        Options {
            name: name.into(),
            mode: Mode::Single,
            servers: vec![address],
            names: Names::new(),
            auth: None,
            tls: None,
            db: 0,
            maxconn: MAXCONN_DEFAULT,
            maxqueue: 1000,
            timeout_connect: Duration::from_secs(1),
            timeout_queue: Duration::from_secs(1),
            timeout_server: Duration::from_secs(1),
            timeout_idle: Some(Duration::from_secs(300)),
            max_lifetime: Some(Duration::from_secs(1800)),
            connect_rate: 20,
            breaker: 5,
            #[cfg(test)]
            place: crate::model::Place::default(),
            client_cache: 0,
        }
    }
}
