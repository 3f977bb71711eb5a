//! Redis's levels of log lines.

pub(crate) const NOTICE: u8 = 2;
pub(crate) const WARNING: u8 = 3;
