//! Masters, replicas, tracking and users beside redis-server's and Valkey's: full syncs under load, the cost of a replica,
//! the speed of one, a row of tracking, and the cost of many users.
//!
//! Runs of the servers alternate. The replica of a master under test is Valkey 8.1's, whoever the master is. Files are on
//! tmpfs. `--keys` scales all parts; five million are the 5 GB of the full sync that `soak` makes.

mod apply;
mod cost;
mod sync;
mod tracking;
mod users;

use std::time::{Duration, Instant};

use crate::connection::Client;
use crate::durable::peer::{Server, info};
use crate::durable::session::Session;
use crate::report::{Measure, Options, Report};

pub(crate) const REPLICAS: Report = Report { name: "replicas", title: "Replicas and users", parts: PARTS };

const PARTS: &[Measure] = &[
    ("sync", sync::sync),
    ("cost", cost::cost),
    ("apply", apply::apply),
    ("tracking", tracking::tracking),
    ("users", users::users),
];

/// The keys of the full sync that its figures are stated for.
const KEYS: usize = 500_000;
/// The time that a replica has to follow.
const PATIENCE: Duration = Duration::from_secs(600);
const LOOKS_EACH: Duration = Duration::from_millis(20);

/// `bench replicas [PART…] [--keys N] [--runs N] [--profile NAME | --program PATH] [--write]`.
pub fn replicas(arguments: &[&str]) -> Result<(), String> {
    let _session = Session::new();
    REPLICAS.measure(arguments)
}

/// Returns a number of keys or commands that a part uses if its figures are stated for `stated`.
fn scaled(options: &Options, stated: usize) -> usize {
    (stated as f64 * options.keys.unwrap_or(KEYS) as f64 / KEYS as f64).ceil() as usize
}

/// Makes a server the replica of another one, and waits until it is connected. Returns an error if that takes more than one
/// full sync.
fn follow(replica: &Server, master: &Server) -> Result<(), String> {
    if try_follow(replica, master)? { Ok(()) } else { Err(format!("{} began a second full sync", master.peer.name())) }
}

/// Like [`follow`], but returns false at the beginning of a second full sync.
fn try_follow(replica: &Server, master: &Server) -> Result<bool, String> {
    let mut client = replica.client()?;
    client.must(&["REPLICAOF", "127.0.0.1", &master.port().to_string()])?;
    let mut of_master = master.client()?;
    let deadline = Instant::now() + PATIENCE;
    while !client.must(&["INFO", "replication"])?.contains("master_link_status:up") {
        if !is_only_full_sync(&mut of_master)? {
            return Ok(false);
        }
        if Instant::now() > deadline {
            return Err(format!("{} does not follow {}", replica.peer.name(), master.peer.name()));
        }
        std::thread::sleep(LOOKS_EACH);
    }
    is_only_full_sync(&mut of_master)
}

/// Returns whether a master has begun at most one full sync, given a client of it.
fn is_only_full_sync(of_master: &mut Client) -> Result<bool, String> {
    Ok(info(of_master, "stats", "sync_full")? <= Some(1.0))
}

/// Waits until the replica of a master has all writes so far.
fn wait_in_step(master: &Server) -> Result<(), String> {
    let mut client = master.client()?;
    client.must(&["SET", "last", "1"])?;
    match client.must(&["WAIT", "1", &PATIENCE.as_millis().to_string()])?.as_str() {
        ":1" => Ok(()),
        other => Err(format!("WAIT 1 of {} returned {other}", master.peer.name())),
    }
}
