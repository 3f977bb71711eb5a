//! Source addresses of connections to servers.

use std::net::{IpAddr, SocketAddr};

/// `source`, of a backend or a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The address; `None`: the system's choice.
    pub address: Option<IpAddr>,
    /// The ports, the first and the last; `None`: the system's choice.
    pub ports: Option<(u16, u16)>,
    /// `usesrc`: a foreign address, in place of the others.
    pub foreign: Option<ForeignSource>,
    /// `interface`.
    pub interface: Option<String>,
}

/// `usesrc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForeignSource {
    /// `client`: the client's address and port.
    Client,
    /// `clientip`: its address.
    ClientIp,
    /// `hdr_ip(NAME[,N])`: the Nth value of a header field, counted from the last if negative.
    Header(String, i32),
    /// This address; port 0 is the system's choice.
    Address(SocketAddr),
}
