//! `compression` lines.

use std::sync::Arc;

use super::keywords::row;
use super::{ProxyParser, ProxyReader};
use crate::catalogue::Contexts;
use crate::model::{Compression, CompressionAlgorithm};
use crate::section::table::{self, MANY, Row};
use crate::word::Line;
use crate::{suggest, unit};

const ALGORITHMS: [&str; 4] = ["gzip", "deflate", "raw-deflate", "identity"];

const PROXY: Contexts = Contexts::PROXY;

/// `compression algo`.
pub(super) const ALGO: Row<ProxyParser> = row(
    "compression algo",
    PROXY,
    1,
    MANY,
    "gzip|deflate|raw-deflate|identity…",
    "Compresses responses if the client's Accept-Encoding accepts one of these; identity: framed as if compressed.",
    |r, line| r.compression_algorithms(line),
);

/// `compression algo-req`.
pub(super) const ALGO_REQ: Row<ProxyParser> = row(
    "compression algo-req",
    PROXY,
    1,
    1,
    "gzip|deflate|raw-deflate|identity",
    "The algorithm for requests, if 'compression direction' includes them.",
    |r, line| r.compression_algorithm_of_requests(line),
);

/// `compression algo-res`.
pub(super) const ALGO_RES: Row<ProxyParser> = row(
    "compression algo-res",
    PROXY,
    1,
    MANY,
    "gzip|deflate|raw-deflate|identity…",
    "The same as 'compression algo'.",
    |r, line| r.compression_algorithms(line),
);

/// `compression direction`.
pub(super) const DIRECTION: Row<ProxyParser> = row(
    "compression direction",
    PROXY,
    1,
    1,
    "request|response|both",
    "The direction of compressed bodies; response by default.",
    |r, line| r.compression_direction(line),
);

/// `compression minsize-req`.
pub(super) const MINSIZE_REQ: Row<ProxyParser> = row(
    "compression minsize-req",
    PROXY,
    1,
    1,
    "SIZE",
    "Minimum size of compressed requests with a known length; 0.",
    |r, line| r.compression_size(line, |c| &mut c.request_min),
);

/// `compression minsize-res`.
pub(super) const MINSIZE_RES: Row<ProxyParser> = row(
    "compression minsize-res",
    PROXY,
    1,
    1,
    "SIZE",
    "Minimum size of compressed responses with a known length; 0.",
    |r, line| r.compression_size(line, |c| &mut c.min),
);

/// `compression offload`.
pub(super) const OFFLOAD: Row<ProxyParser> = row(
    "compression offload",
    PROXY,
    0,
    0,
    "",
    "Removes Accept-Encoding from requests, so that servers do not compress.",
    |r, line| r.compression_offload(line),
);

/// `compression type`.
pub(super) const TYPE: Row<ProxyParser> = row(
    "compression type",
    PROXY,
    1,
    MANY,
    "TYPE…",
    "Compresses only responses whose Content-Type begins with one of these; by default all but multipart.",
    |r, line| r.compression_types(line, |c| &mut c.types),
);

/// `compression type-req`.
pub(super) const TYPE_REQ: Row<ProxyParser> = row(
    "compression type-req",
    PROXY,
    1,
    MANY,
    "TYPE…",
    "Compresses only requests whose Content-Type begins with one of these.",
    |r, line| r.compression_types(line, |c| &mut c.request_types),
);

/// `compression type-res`.
pub(super) const TYPE_RES: Row<ProxyParser> =
    row("compression type-res", PROXY, 1, MANY, "TYPE…", "The same as 'compression type'.", |r, line| {
        r.compression_types(line, |c| &mut c.types)
    });

impl ProxyReader<'_> {
    fn compression(&mut self) -> &mut Compression {
        Arc::make_mut(self.settings.proxy.compression.get_or_insert_default())
    }

    fn algorithm(&mut self, line: &Line, index: usize) -> Option<CompressionAlgorithm> {
        let word = line.text(index);
        let found = CompressionAlgorithm::named(word);
        if found.is_none() {
            let message = format!("'compression {}' expects {}, not '{word}'", line.text(1), table::list(&ALGORITHMS));
            let near = suggest::nearest(word, ALGORITHMS);
            self.diagnostics.error(line.at(index), message).did_you_mean(near);
        }
        found
    }

    pub(super) fn compression_algorithms(&mut self, line: &Line) {
        for index in 2..line.len() {
            if let Some(algorithm) = self.algorithm(line, index) {
                self.compression().algorithms.push(algorithm);
            }
        }
    }

    pub(super) fn compression_algorithm_of_requests(&mut self, line: &Line) {
        if let Some(algorithm) = self.algorithm(line, 2) {
            self.compression().request_algorithm = Some(algorithm);
        }
    }

    pub(super) fn compression_types(&mut self, line: &Line, types: fn(&mut Compression) -> &mut Vec<String>) {
        let words = (2..line.len()).map(|index| line.text(index).to_owned());
        let words: Vec<String> = words.collect();
        types(self.compression()).extend(words);
    }

    pub(super) fn compression_direction(&mut self, line: &Line) {
        let (requests, responses) = match line.text(2) {
            "request" => (true, false),
            "response" => (false, true),
            "both" => (true, true),
            word => {
                let message = format!("'compression direction' expects 'request', 'response' or 'both', not '{word}'");
                self.diagnostics.error(line.at(2), message);
                return;
            }
        };
        let compression = self.compression();
        (compression.requests, compression.not_responses) = (requests, !responses);
    }

    pub(super) fn compression_size(&mut self, line: &Line, size: fn(&mut Compression) -> &mut u64) {
        match unit::size(line.text(2), u64::from(u32::MAX)) {
            Ok(bytes) => *size(self.compression()) = bytes,
            Err(message) => {
                self.diagnostics.error(line.at(2), format!("'compression {}': {message}", line.text(1)));
            }
        }
    }

    pub(super) fn compression_offload(&mut self, line: &Line) {
        if self.context == Contexts::DEFAULTS {
            self.diagnostics.warning(line.at(1), "'compression offload' is ignored in a 'defaults' section");
            return;
        }
        self.compression().offload = true;
    }
}
