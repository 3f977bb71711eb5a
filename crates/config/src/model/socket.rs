//! Options of sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::position::Position;

/// `tune.sndbuf.*`, `tune.rcvbuf.*` and `tune.notsent-lowat.*` of one side; `None` leaves the kernel's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketSizes {
    /// The send buffer, bytes.
    pub send: Option<usize>,
    /// The receive buffer, bytes.
    pub receive: Option<usize>,
    /// Bytes that were not sent yet beyond which a socket takes no more.
    pub unsent: Option<u32>,
}

/// Options of the connections to a server.
#[derive(Clone, Debug, Default)]
pub struct ServerTcp {
    /// `tcp-ut`.
    pub user_timeout: Option<Duration>,
    /// `tfo`.
    pub fast_open: bool,
    /// `namespace`.
    pub namespace: Option<ServerNamespace>,
    /// `socks4`.
    pub socks4: Option<SocketAddr>,
    /// `mptcp@`: connections are made by MPTCP.
    pub multipath: bool,
    /// `check-via-socks4`.
    pub check_via_socks4: bool,
}

/// `namespace` of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerNamespace {
    /// This one.
    Named(NamedNamespace),
    /// `*`: that of the client's connection.
    OfClient,
}

/// A network namespace by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedNamespace {
    /// The name.
    pub name: Arc<str>,
    /// Where it is named.
    pub at: Position,
}
