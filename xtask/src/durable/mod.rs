//! Persistence of the store beside redis-server's and Valkey's: what others wait for during a save or a rewrite, memory,
//! the speed of files, eviction beside a save, the cost of the append-only file, and of consumer groups.
//!
//! Runs of the servers alternate. Where a server saves, it has both cores, as the child of redis-server's fork has; the
//! load has core 1 before anything else, so a latency is the server's and not the load's own. Where CPU time is compared,
//! the server has core 0. Files are on tmpfs unless a part says otherwise. `--keys` scales all parts.

mod append;
mod eviction;
mod groups;
pub(crate) mod peer;
mod save;
pub(crate) mod session;
mod speed;

use crate::report::{Measure, Report};

pub(crate) const DURABLE: Report = Report { name: "durable", title: "Persistence", parts: PARTS };

const PARTS: &[Measure] = &[
    ("save", save::save),
    ("list", save::list),
    ("speed", speed::speed),
    ("eviction", eviction::eviction),
    ("append", append::append),
    ("always", append::always),
    ("rewrite", save::rewrite),
    ("groups", groups::groups),
];

/// `bench durable [PART…] [--keys N] [--runs N] [--profile NAME | --program PATH] [--write]`.
pub fn durable(arguments: &[&str]) -> Result<(), String> {
    let _session = session::Session::new();
    DURABLE.measure(arguments)
}
