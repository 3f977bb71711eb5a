//! Balancing algorithms and hash functions of a backend.

use std::sync::Arc;

use super::Expr;

/// `balance`.
#[derive(Clone, Debug, Default)]
pub enum Balance {
    /// Weighted round robin, smooth, with weights that may change.
    #[default]
    RoundRobin,
    /// Weighted round robin over a fixed table.
    StaticRoundRobin,
    /// The server with the fewest requests for its weight.
    LeastConn,
    /// The first server, by its number, that has a free slot.
    First,
    /// The least loaded of this many servers, drawn at random by weight.
    Random(u32),
    /// The server selected by the hash of a key.
    Hash(Arc<HashKey>),
    /// The first usable server, until it is down.
    Sticky,
}

impl Balance {
    /// Returns the name used in the file and by `show stat`.
    pub fn name(&self) -> &'static str {
        match self {
            Balance::RoundRobin => "roundrobin",
            Balance::StaticRoundRobin => "static-rr",
            Balance::LeastConn => "leastconn",
            Balance::First => "first",
            Balance::Random(_) => "random",
            Balance::Sticky => "sticky",
            Balance::Hash(key) => match **key {
                HashKey::Source => "source",
                HashKey::Uri { .. } => "uri",
                HashKey::UrlParam { .. } => "url_param",
                HashKey::Header { .. } => "hdr",
                HashKey::Sample(_) => "hash",
                HashKey::Message(_) => "log-hash",
                HashKey::RdpCookie(_) => "rdp-cookie",
            },
        }
    }

    /// Returns whether the request itself determines the server (HAProxy's kind "HI"); with every other algorithm one
    /// server is as good as another.
    pub fn follows_requests(&self) -> bool {
        matches!(self, Balance::Hash(_))
    }
}

/// The key of a hash.
#[derive(Clone, Debug)]
pub enum HashKey {
    /// The client's address.
    Source,
    /// The request's target, up to its query.
    Uri {
        /// Maximum number of its bytes; 0: all.
        len: u32,
        /// Maximum number of its directories; 0: all.
        depth: u32,
        /// With its query.
        whole: bool,
        /// Without scheme and authority.
        path_only: bool,
    },
    /// A parameter of the target's query, or of the body of a POST.
    UrlParam {
        /// Its name.
        name: String,
    },
    /// A header field's first value.
    Header {
        /// The field's name.
        name: String,
        /// Whether only a part of a host name is hashed: the one before the last dot, without subdomains.
        domain_only: bool,
    },
    /// An expression's value.
    Sample(Expr),
    /// A log message, after the converters of this expression.
    Message(Expr),
    /// `rdp-cookie`: the value of the fetch of that name.
    RdpCookie(Expr),
}

/// `hash-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashType {
    /// Uses a ring, on which adding or removing a server moves only its own share; otherwise a table.
    pub consistent: bool,
    /// The function.
    pub function: HashFunction,
    /// Whether the hash is mixed once more.
    pub avalanche: bool,
}

impl Default for HashType {
    fn default() -> HashType {
        HashType { consistent: false, function: HashFunction::Sdbm, avalanche: false }
    }
}

/// A function of `hash-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashFunction {
    /// `sdbm`.
    Sdbm,
    /// `djb2`.
    Djb2,
    /// `wt6`.
    Wt6,
    /// `crc32`.
    Crc32,
    /// `none`: the key is a number, which is the hash.
    None,
}

/// `hash-preserve-affinity`: conditions for skipping the server of a hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// Never.
    #[default]
    Always,
    /// If it has no free slot.
    Maxconn,
    /// Also if its queue is full.
    Maxqueue,
}

/// `hash-key` of a server: the source of its points on the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerHashKey {
    /// Its number.
    #[default]
    Id,
    /// Its address.
    Addr,
    /// Its address and port.
    AddrPort,
}
