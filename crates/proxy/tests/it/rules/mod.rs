//! Rules and samples: against a real haproxy, and what happens when a store makes them wait.

mod converters;
mod differential;
pub mod fixture;
mod waiting;
