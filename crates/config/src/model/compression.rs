//! Compression of bodies (HAProxy configuration manual 4.2 and 9.2).

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionAlgorithm {
    /// Not at all, but framed as if it were.
    Identity,
    /// RFC 1952.
    Gzip,
    /// RFC 1950.
    Deflate,
    /// RFC 1951 under the name of the former, as some clients want it.
    RawDeflate,
}

impl CompressionAlgorithm {
    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            CompressionAlgorithm::Identity => "identity",
            CompressionAlgorithm::Gzip => "gzip",
            CompressionAlgorithm::Deflate => "deflate",
            CompressionAlgorithm::RawDeflate => "raw-deflate",
        }
    }

    /// Its name in `Accept-Encoding` and `Content-Encoding`.
    pub fn coding(self) -> &'static str {
        match self {
            CompressionAlgorithm::RawDeflate => "deflate",
            other => other.name(),
        }
    }

    /// The algorithm of a name in a configuration.
    pub(crate) fn named(name: &str) -> Option<CompressionAlgorithm> {
        use CompressionAlgorithm::{Deflate, Gzip, Identity, RawDeflate};
        [Identity, Gzip, Deflate, RawDeflate].into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// The `compression` lines of a proxy.
#[derive(Clone, Debug, Default)]
pub struct Compression {
    /// `direction`: requests.
    pub requests: bool,
    /// `direction` says that responses are not compressed.
    pub not_responses: bool,
    /// `offload`: servers are not told that the client takes compressed bodies.
    pub offload: bool,
    /// `algo-req`.
    pub request_algorithm: Option<CompressionAlgorithm>,
    /// `algo`, `algo-res`; the last one wins where the client has no preference, as in HAProxy.
    pub algorithms: Vec<CompressionAlgorithm>,
    /// `type-req`; empty: any.
    pub request_types: Vec<String>,
    /// `type`, `type-res`; empty: any.
    pub types: Vec<String>,
    /// `minsize-req`.
    pub request_min: u64,
    /// `minsize-res`.
    pub min: u64,
}

/// What `global` says of compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionLimits {
    /// `tune.comp.maxlevel`.
    pub level: u32,
    /// `tune.zlib.windowsize`, bits.
    pub window_bits: u8,
    /// `maxcomprate`, bytes a second; 0: no limit.
    pub rate: u64,
    /// `maxcompcpuusage`: so much of their time the workers must be idle, percent; 0: no limit.
    pub idle: u32,
    /// `maxzlibmem`, bytes; 0: no limit.
    pub memory: u64,
}

impl Default for CompressionLimits {
    fn default() -> CompressionLimits {
        CompressionLimits { level: 1, window_bits: 15, rate: 0, idle: 0, memory: 0 }
    }
}
