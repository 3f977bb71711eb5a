//! `resolvers` sections, and the queries of servers and rules.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::model::{Position, VarName};

/// A `resolvers` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolvers {
    /// Its name.
    pub name: Arc<str>,
    /// The name servers; each is asked every question.
    pub nameservers: Vec<Nameserver>,
    /// `resolve_retries`: how often a question is sent.
    pub retries: u32,
    /// `timeout resolve`: the interval of questions about a name.
    pub resolve: Duration,
    /// `timeout retry`: how long an answer is waited for.
    pub retry: Duration,
    /// `hold`.
    pub hold: Hold,
    /// `accepted_payload_size`: the longest answer over UDP.
    pub payload: u16,
    /// `dns-accept-family` of the process.
    pub families: DnsFamilies,
    /// Its position in the file; `None` for the implicit section `default`.
    pub at: Option<Position>,
}

/// `dns-accept-family`: the families of addresses that are asked for and used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DnsFamilies {
    /// `ipv4,ipv6`.
    #[default]
    Both,
    /// `ipv4`.
    V4,
    /// `ipv6`.
    V6,
    /// `auto`: IPv4, and IPv6 while the system has a route for it.
    Auto,
}

/// A `nameserver`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nameserver {
    /// Its name.
    pub name: Arc<str>,
    /// Its address.
    pub address: SocketAddr,
    /// Asked over TCP.
    pub tcp: bool,
}

/// The validity of earlier results after an answer of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// A rule takes an answer that is so old.
    pub valid: Duration,
    /// A record that answers no longer hold is used for so long.
    pub obsolete: Duration,
    /// The name does not exist.
    pub nx: Duration,
    /// The name servers refuse.
    pub refused: Duration,
    /// No answer.
    pub timeout: Duration,
    /// All else that is no good answer.
    pub other: Duration,
}

/// The run-time resolution of a server's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerResolve {
    /// `resolvers`: the section's name.
    pub section: Arc<str>,
    /// `resolve-prefer ipv4`; IPv6 is preferred otherwise.
    pub prefer_v4: bool,
    /// `resolve-net`: preferred networks, as address and prefix length.
    pub networks: Vec<(IpAddr, u8)>,
    /// `resolve-opts allow-dup-ip`: servers of a backend may have one address.
    pub duplicates: bool,
    /// `resolve-opts ignore-weight`: weights of SRV records are passed over.
    pub ignore_weight: bool,
}

/// `do-resolve`.
#[derive(Clone, Debug)]
pub struct DoResolve {
    /// The variable that gets the address.
    pub variable: VarName,
    /// The section's name.
    pub section: Arc<str>,
    /// `ipv4`.
    pub prefer_v4: bool,
    /// The position of the action.
    pub at: Position,
}
