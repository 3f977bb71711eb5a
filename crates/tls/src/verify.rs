//! Verification of the peer's chain, behind rustls's traits.
