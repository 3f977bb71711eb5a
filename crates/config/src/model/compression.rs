//! Compression of bodies (HAProxy configuration manual 4.2 and 9.2).

/// The algorithm of a compressed body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionAlgorithm {
    /// No compression, but framed as if compressed.
    Identity,
    /// RFC 1952.
    Gzip,
    /// RFC 1950.
    Deflate,
    /// RFC 1951 under the name of RFC 1950's format, as some clients expect it.
    RawDeflate,
}

impl CompressionAlgorithm {
    /// Returns its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            CompressionAlgorithm::Identity => "identity",
            CompressionAlgorithm::Gzip => "gzip",
            CompressionAlgorithm::Deflate => "deflate",
            CompressionAlgorithm::RawDeflate => "raw-deflate",
        }
    }

    /// Returns its name in `Accept-Encoding` and `Content-Encoding`.
    pub fn coding(self) -> &'static str {
        match self {
            CompressionAlgorithm::RawDeflate => "deflate",
            other => other.name(),
        }
    }

    /// Returns the algorithm with this name in a configuration.
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
    /// `direction` excludes responses.
    pub not_responses: bool,
    /// `offload`: removes Accept-Encoding from requests.
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

/// Compression limits of `global`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionLimits {
    /// `tune.comp.maxlevel`.
    pub level: u32,
    /// `tune.zlib.windowsize`, bits.
    pub window_bits: u8,
    /// `maxcomprate`, bytes a second; 0: no limit.
    pub rate: u64,
    /// `maxcompcpuusage`: the percentage of time that workers must be idle; 0: no limit.
    pub idle: u32,
    /// `maxzlibmem`, bytes; 0: no limit.
    pub memory: u64,
}

impl Default for CompressionLimits {
    fn default() -> CompressionLimits {
        CompressionLimits { level: 1, window_bits: 15, rate: 0, idle: 0, memory: 0 }
    }
}
