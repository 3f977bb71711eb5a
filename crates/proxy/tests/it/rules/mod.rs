//! Rules and samples: against a real haproxy, and what happens when a store makes them wait.

mod contents;
mod converters;
mod differential;
mod fetches;
pub mod fixture;
mod users;
mod variables;
mod waiting;
mod wire;
