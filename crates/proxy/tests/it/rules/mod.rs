//! Rules and samples: compared with a real haproxy, and their behaviour while they wait for a store.

mod contents;
mod converters;
mod differential;
mod fetches;
pub mod fixture;
mod users;
mod variables;
mod waiting;
mod wire;
