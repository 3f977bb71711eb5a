//! The embedded Redis-compatible store.
