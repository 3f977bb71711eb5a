//! CLUSTER: one node with every slot, for clients that only connect to clusters.
//!
//! `INFO` reports `cluster_enabled:0`: there is no cluster bus, no other node, and every database can be selected.
//! Commands that would change a cluster are refused.

use sluicegate_wire::resp::{ReplySink, ReplyWriter, parse_i64};
use sluicegate_wire::slot::{SLOTS, slot};

use super::dispatch::{About, Outcome};
use crate::Store;
use crate::refused::NOT_INTEGER;

/// The bus port that nodes announce is this much above the data port.
const BUS_OFFSET: u64 = 10_000;

/// Returns the node as this client reached it: address, port.
fn node(about: &About<'_>) -> (String, u64) {
    let port = about.server.tcp_port();
    match about.local.and_then(|local| local.rsplit_once(':')) {
        Some((host, local)) => (host.trim_matches(['[', ']']).to_owned(), local.parse().unwrap_or(port)),
        // A client of a Unix socket knows no address: an empty one means the address that it has used.
        _ => (String::new(), port),
    }
}

/// `CLUSTER HELP`.
pub(super) fn help(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    super::dispatch::help("cluster", out)
}

/// `CLUSTER INFO`.
pub(super) fn info(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let text = format!(
        "cluster_state:ok\r\ncluster_slots_assigned:{SLOTS}\r\ncluster_slots_ok:{SLOTS}\r\ncluster_slots_pfail:0\r\n\
         cluster_slots_fail:0\r\ncluster_known_nodes:1\r\ncluster_size:1\r\ncluster_current_epoch:0\r\n\
         cluster_my_epoch:0\r\ncluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n\
         total_cluster_links_buffer_limit_exceeded:0\r\n"
    );
    out.verbatim(*b"txt", text.as_bytes());
    Outcome::Done
}

/// `CLUSTER MYID`.
pub(super) fn myid(about: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.bulk(about.server.run_id.as_bytes());
    Outcome::Done
}

/// `CLUSTER NODES`.
pub(super) fn nodes(about: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let (host, port) = node(about);
    let id = &about.server.run_id;
    let line = format!("{id} {host}:{port}@{} myself,master - 0 0 0 connected 0-{}\n", port + BUS_OFFSET, SLOTS - 1);
    out.verbatim(*b"txt", line.as_bytes());
    Outcome::Done
}

/// `CLUSTER SLOTS`.
pub(super) fn slots(about: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let (host, port) = node(about);
    out.array(1);
    out.array(3);
    out.integer(0);
    out.integer(i64::from(SLOTS) - 1);
    out.array(4);
    out.bulk(host.as_bytes());
    out.integer(port as i64);
    out.bulk(about.server.run_id.as_bytes());
    out.array(0);
    Outcome::Done
}

/// `CLUSTER SHARDS`.
pub(super) fn shards(about: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let (host, port) = node(about);
    out.array(1);
    out.map(2);
    out.bulk(b"slots");
    out.array(2);
    out.integer(0);
    out.integer(i64::from(SLOTS) - 1);
    out.bulk(b"nodes");
    out.array(1);
    out.map(7);
    out.bulk(b"id");
    out.bulk(about.server.run_id.as_bytes());
    out.bulk(b"port");
    out.integer(port as i64);
    for (field, value) in [("ip", &host[..]), ("endpoint", &host), ("role", "master")] {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"replication-offset");
    out.integer(0);
    out.bulk(b"health");
    out.bulk(b"online");
    Outcome::Done
}

/// `CLUSTER LINKS`: there are none.
pub(super) fn links(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.array(0);
    Outcome::Done
}

/// `CLUSTER REPLICAS node` and `CLUSTER SLAVES node`.
pub(super) fn replicas(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if args[2] == about.server.run_id.as_bytes() {
        out.array(0);
    } else {
        out.error_bytes(&[b"ERR Unknown node ", args[2]].concat());
    }
    Outcome::Done
}

/// `CLUSTER COUNT-FAILURE-REPORTS node`.
pub(super) fn failure_reports(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if args[2] == about.server.run_id.as_bytes() {
        out.integer(0);
    } else {
        out.error_bytes(&[b"ERR Unknown node ", args[2]].concat());
    }
    Outcome::Done
}

/// `CLUSTER KEYSLOT key`.
pub(super) fn keyslot(_: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.integer(slot(args[2]).into());
    Outcome::Done
}

/// `CLUSTER COUNTKEYSINSLOT slot`: scans all keys.
pub(super) fn count_keys(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    match parse_i64(args[2]) {
        None => out.error(NOT_INTEGER),
        Some(wanted) if !(0..i64::from(SLOTS)).contains(&wanted) => out.error("ERR Invalid slot"),
        Some(wanted) => {
            let keys = about.server.store.keys_of_slot(wanted as u16, usize::MAX);
            out.integer(keys.len() as i64);
        }
    }
    Outcome::Done
}

/// `CLUSTER GETKEYSINSLOT slot count`: scans all keys.
pub(super) fn get_keys(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let (Some(wanted), Some(count)) = (parse_i64(args[2]), parse_i64(args[3])) else {
        out.error(NOT_INTEGER);
        return Outcome::Done;
    };
    if !(0..i64::from(SLOTS)).contains(&wanted) || count < 0 {
        out.error("ERR Invalid slot or number of keys");
        return Outcome::Done;
    }
    let keys = about.server.store.keys_of_slot(wanted as u16, count as usize);
    out.array(keys.len());
    keys.iter().for_each(|key| out.bulk(key));
    Outcome::Done
}

impl Store {
    /// Returns at most this many keys of database 0 in a slot; locks one stripe at a time, so no client waits.
    fn keys_of_slot(&self, wanted: u16, most: usize) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let now_ms = self.0.clock.now_ms();
        let mut stripe = 0;
        loop {
            let pass = self.0.gate.enter();
            let Some(db) = self.0.keyspace.db(&pass, 0) else { return found };
            if stripe >= db.stripes() {
                return found;
            }
            for entry in db.lock(stripe).table.entries() {
                if found.len() >= most {
                    return found;
                }
                if entry.expiry().is_none_or(|at_ms| at_ms > now_ms) && slot(entry.key()) == wanted {
                    found.push(entry.key().to_vec());
                }
            }
            stripe += 1;
        }
    }
}
