//! A certificate of this side with its chain and private key.

/// A certificate with its chain and private key.
#[derive(Debug)]
pub struct Pair {
    /// The path as it was written, by which the runtime API knows it.
    pub path: String,
}
