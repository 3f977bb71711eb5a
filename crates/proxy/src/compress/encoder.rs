//! Compression of a body.
//!
//! Data is pushed as it arrives; the compressor's output is passed on in pieces. The compressor holds some of it back
//! to find repetitions, so a caller that waits for more data requests the rest ([`Encoder::flush`]): data of a slow
//! sender reaches the receiver immediately. A push of n bytes outputs little more than n bytes, whatever their content.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::{Compress, Compression, FlushCompress, Status};
use sluicegate_config::model::{CompressionAlgorithm, CompressionLimits};

/// The assumed memory of a compressor, bytes: twice its window, and tables of at least that size.
const MEMORY: u64 = 300 * 1024;

/// The maximum size of one piece in bytes.
const PIECE: usize = 16 * 1024;

/// The accounted memory of a compressor; dropping this releases it.
#[derive(Debug)]
struct Held(Arc<AtomicU64>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(MEMORY, Ordering::Relaxed);
    }
}

/// Compresses one body.
#[derive(Debug)]
pub(crate) struct Encoder {
    /// The compressor; `None`: the data is passed on unchanged.
    compress: Option<(Compress, Held)>,
    /// Whether the compressor may hold back data.
    holds: bool,
    /// Bytes in and out since the last query.
    moved: (u64, u64),
}

impl Encoder {
    /// Returns an encoder for a body; `None` if the memory limit of compressors is reached.
    pub(crate) fn new(
        algorithm: CompressionAlgorithm,
        limits: &CompressionLimits,
        held: &Arc<AtomicU64>,
    ) -> Option<Encoder> {
        let level = Compression::new(limits.level);
        let compress = match algorithm {
            CompressionAlgorithm::Identity => None,
            CompressionAlgorithm::Gzip => Some(Compress::new_gzip(level, limits.window_bits)),
            CompressionAlgorithm::Deflate => Some(Compress::new_with_window_bits(level, true, limits.window_bits)),
            CompressionAlgorithm::RawDeflate => Some(Compress::new_with_window_bits(level, false, limits.window_bits)),
        };
        let compress = match compress {
            None => None,
            Some(compress) => {
                let before = held.fetch_add(MEMORY, Ordering::Relaxed);
                let place = Held(held.clone());
                if limits.memory > 0 && before + MEMORY > limits.memory {
                    return None;
                }
                Some((compress, place))
            }
        };
        Some(Encoder { compress, holds: false, moved: (0, 0) })
    }

    /// Returns whether the encoder leaves data unchanged.
    pub(crate) fn is_identity(&self) -> bool {
        self.compress.is_none()
    }

    /// Passes the output for `data` on.
    pub(crate) fn push(&mut self, data: &[u8], give: &mut dyn FnMut(&[u8])) {
        self.moved.0 += data.len() as u64;
        if self.is_identity() {
            self.moved.1 += data.len() as u64;
            return give(data);
        }
        self.holds = true;
        self.run(data, FlushCompress::None, give);
    }

    /// Passes the data held back on; `false` if there is none.
    pub(crate) fn flush(&mut self, give: &mut dyn FnMut(&[u8])) -> bool {
        if !std::mem::take(&mut self.holds) {
            return false;
        }
        self.run(b"", FlushCompress::Sync, give);
        true
    }

    /// Passes the end of the data on.
    pub(crate) fn finish(&mut self, give: &mut dyn FnMut(&[u8])) {
        self.holds = false;
        if self.compress.is_some() {
            self.run(b"", FlushCompress::Finish, give);
        }
    }

    /// Returns the bytes in and out since the last call.
    pub(crate) fn take_moved(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.moved)
    }

    fn run(&mut self, mut data: &[u8], flush: FlushCompress, give: &mut dyn FnMut(&[u8])) {
        let Some((compress, _)) = &mut self.compress else { return };
        let mut piece = [0; PIECE];
        loop {
            let (taken, given) = (compress.total_in(), compress.total_out());
            // It fails only if its state is corrupt, which no data can cause; output so far remains valid.
            let Ok(status) = compress.compress(data, &mut piece, flush) else { return };
            let count = (compress.total_out() - given) as usize;
            data = &data[(compress.total_in() - taken) as usize..];
            if count > 0 {
                give(&piece[..count]);
                self.moved.1 += count as u64;
            }
            // A piece that is not full means that there is no more output.
            if status == Status::StreamEnd || (count < PIECE && data.is_empty()) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use proptest::prelude::*;

    const ALL: [CompressionAlgorithm; 4] = [
        CompressionAlgorithm::Identity,
        CompressionAlgorithm::Gzip,
        CompressionAlgorithm::Deflate,
        CompressionAlgorithm::RawDeflate,
    ];

    fn encoder(algorithm: CompressionAlgorithm) -> Encoder {
        Encoder::new(algorithm, &CompressionLimits::default(), &Arc::default()).expect("no limit")
    }

    fn plain(algorithm: CompressionAlgorithm, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match algorithm {
            CompressionAlgorithm::Identity => out.extend_from_slice(data),
            CompressionAlgorithm::Gzip => _ = flate2::read::GzDecoder::new(data).read_to_end(&mut out).expect("gzip"),
            CompressionAlgorithm::Deflate => {
                flate2::read::ZlibDecoder::new(data).read_to_end(&mut out).expect("zlib");
            }
            CompressionAlgorithm::RawDeflate => {
                flate2::read::DeflateDecoder::new(data).read_to_end(&mut out).expect("deflate");
            }
        }
        out
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(
            pieces in proptest::collection::vec((proptest::collection::vec(0_u8..20, 0..3000), any::<bool>()), 0..8),
            noise in proptest::collection::vec(any::<u8>(), 0..40_000),
        ) {
            for algorithm in ALL {
                let mut encoder = encoder(algorithm);
                let (mut out, mut all) = (Vec::new(), Vec::new());
                for (data, flush) in &pieces {
                    encoder.push(data, &mut |piece| out.extend_from_slice(piece));
                    all.extend_from_slice(data);
                    if *flush {
                        encoder.flush(&mut |piece| out.extend_from_slice(piece));
                    }
                }
                encoder.push(&noise, &mut |piece| out.extend_from_slice(piece));
                all.extend_from_slice(&noise);
                encoder.flush(&mut |piece| out.extend_from_slice(piece));
                // Noise grows by little, so buffers are bounded by what is pushed.
                prop_assert!(out.len() <= all.len() + all.len() / 16 + 1024);
                encoder.finish(&mut |piece| out.extend_from_slice(piece));
                prop_assert_eq!(plain(algorithm, &out), &all[..]);
                let (read, written) = encoder.take_moved();
                prop_assert_eq!(read, all.len() as u64);
                prop_assert_eq!(written, out.len() as u64);
            }
        }
    }

    #[test]
    fn what_was_flushed_can_be_read() {
        let mut encoder = encoder(CompressionAlgorithm::Gzip);
        let mut out = Vec::new();
        for text in ["slow ", "and ", "steady"] {
            encoder.push(text.as_bytes(), &mut |piece| out.extend_from_slice(piece));
            assert!(encoder.flush(&mut |piece| out.extend_from_slice(piece)));
            assert!(!encoder.flush(&mut |piece| out.extend_from_slice(piece)), "there is nothing more");
            let mut said = vec![0; 64];
            let count = flate2::read::GzDecoder::new(&out[..]).read(&mut said).expect("the start of gzip");
            assert!(count > 0);
        }
    }

    #[test]
    fn memory_is_counted() {
        let held = Arc::default();
        let limits = CompressionLimits { memory: 2 * MEMORY, ..CompressionLimits::default() };
        let one = Encoder::new(CompressionAlgorithm::Gzip, &limits, &held);
        let two = Encoder::new(CompressionAlgorithm::Deflate, &limits, &held);
        assert!(one.is_some() && two.is_some());
        assert!(Encoder::new(CompressionAlgorithm::Gzip, &limits, &held).is_none());
        assert!(Encoder::new(CompressionAlgorithm::Identity, &limits, &held).is_some());
        drop(one);
        assert!(Encoder::new(CompressionAlgorithm::Gzip, &limits, &held).is_some());
        drop(two);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}
