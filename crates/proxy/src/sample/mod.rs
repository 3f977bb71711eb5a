//! Samples: typed values that fetches produce, converters change, and conditions compare.

mod value;

pub use value::Sample;

/// The variables of a stream and its session.
#[derive(Debug, Default)]
pub struct Variables {}
