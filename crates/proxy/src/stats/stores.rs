//! The figures of stores by name, for the exporter and for `show stores`.

use sluicegate_wire::engine::{Appended, Disk, Figures, Replicated};

/// The types of metrics.
pub(super) const C: &str = "counter";
pub(super) const G: &str = "gauge";

/// A metric of stores or engines: its name, its type, its description, the figure.
pub(super) type NamedMetric<T> = (&'static str, &'static str, &'static str, fn(&T) -> u64);

/// The metrics of every store.
pub(super) const STORES: &[NamedMetric<Figures>] = &[
    ("keys", G, "Keys, those expired but not yet removed included", |f| f.keys),
    ("expiring_keys", G, "Keys with a time to live", |f| f.expiring),
    ("memory_used_bytes", G, "Bytes of keys, values, tables and buffers of clients", |f| f.used_bytes),
    ("memory_max_bytes", G, "Limit of memory, 0 for none", |f| f.max_bytes),
    ("connected_clients", G, "Clients that are connected", |f| f.clients),
    ("commands_processed_total", C, "Commands of clients, rules and scripts since the start", |f| f.commands),
    ("commands_per_second", G, "Commands of clients, rules and scripts in the last second", |f| f.commands_per_second),
    ("keyspace_hits_total", C, "Look-ups that found a key since the start", |f| f.hits),
    ("keyspace_misses_total", C, "Look-ups that found none since the start", |f| f.misses),
    ("holds", G, "Sections that run or wait, and commands that wait for a key", |f| f.holds),
    ("holds_waited_total", C, "Sections and commands that had to wait since the start", |f| f.waited),
    ("holds_refused_total", C, "Sections and commands that were refused since the start", |f| f.refused),
    ("slow_commands_total", C, "Commands slower than slowlog-log-slower-than since the start", |f| f.slow),
    ("expired_keys_total", C, "Keys that expired since the start", |f| f.expired),
    ("evicted_keys_total", C, "Keys that were evicted since the start", |f| f.evicted),
    ("acl_denied_logins_total", C, "Wrong passwords and users since the start", |f| f.denied[0]),
    ("acl_denied_commands_total", C, "Commands that users were denied since the start", |f| f.denied[1]),
    ("acl_denied_keys_total", C, "Commands that users were denied because of a key since the start", |f| f.denied[2]),
    ("acl_denied_channels_total", C, "Commands that users were denied because of a channel since the start", |f| {
        f.denied[3]
    }),
    ("tracking_clients", G, "Clients that are told of changes of keys (CLIENT TRACKING)", |f| f.tracking[0]),
    ("tracking_keys", G, "Keys of which it is known which clients have read them", |f| f.tracking[1]),
    ("tracking_items", G, "Readers of all these keys", |f| f.tracking[2]),
    ("tracking_prefixes", G, "Prefixes of clients that are told of all changes", |f| f.tracking[3]),
];

/// The metrics of stores with a directory.
pub(super) const DISKS: &[NamedMetric<Disk>] = &[
    ("loading", G, "Whether the store's files are being loaded", |d| d.is_loading.into()),
    ("unsaved_changes", G, "Changes since the last save", |d| d.changes),
    ("last_save_timestamp_seconds", G, "End of the last save that succeeded, or the start, in Unix seconds", |d| {
        d.last_save_s
    }),
    ("last_save_failed", G, "Whether the last save failed", |d| d.save_failed.into()),
    ("save_in_progress", G, "Whether a save is in progress", |d| d.is_saving.into()),
    ("saves_total", C, "Saves that succeeded since the start", |d| d.saves),
];

/// The metrics of stores with an append-only file.
pub(super) const APPENDED: &[NamedMetric<Appended>] = &[
    ("append_only_bytes", G, "Bytes of the append-only file", |a| a.bytes),
    ("append_only_backlog_bytes", G, "Bytes that wait to be appended", |a| a.backlog_bytes),
    ("append_only_failing", G, "Whether the append-only file cannot be written", |a| a.is_failing.into()),
    ("append_only_rewrite_in_progress", G, "Whether a rewrite is in progress", |a| a.is_rewriting.into()),
    ("append_only_last_rewrite_failed", G, "Whether the last rewrite failed", |a| a.rewrite_failed.into()),
    ("append_only_rewrites_total", C, "Rewrites that succeeded since the start", |a| a.rewrites),
    ("append_only_delayed_syncs_total", C, "Syncs that took long since the start", |a| a.delayed_syncs),
];

/// The metrics of stores with a master or with replicas.
pub(super) const REPLICATED: &[NamedMetric<Replicated>] = &[
    ("replica", G, "Whether the store is a replica", |r| r.is_replica.into()),
    ("master_link_up", G, "Whether a replica's link to its master works", |r| r.is_linked.into()),
    ("master_sync_in_progress", G, "Whether a replica receives or loads the data set of its master", |r| {
        r.is_syncing.into()
    }),
    ("replication_offset_bytes", G, "End of the replication stream", |r| r.offset),
    ("connected_replicas", G, "Replicas", |r| r.replicas),
    ("good_replicas", G, "Replicas that were heard of within min-replicas-max-lag", |r| r.good_replicas),
    ("replica_behind_bytes", G, "Bytes of the stream that the slowest replica has not acknowledged", |r| {
        r.slowest_bytes
    }),
    ("replica_silent_seconds", G, "Time since the most silent replica was heard of", |r| r.silent_s),
    ("replica_syncs_full_total", C, "Data sets that replicas got since the start", |r| r.syncs[0]),
    ("replica_syncs_partial_total", C, "Replicas that continued since the start", |r| r.syncs[1]),
    ("replica_syncs_partial_refused_total", C, "Replicas that could not continue since the start", |r| r.syncs[2]),
];

/// Returns all figures of a store with their names.
pub(crate) fn named(of: &Figures) -> Vec<(&'static str, u64)> {
    fn all<T>(metrics: &'static [NamedMetric<T>], of: &T, out: &mut Vec<(&'static str, u64)>) {
        out.extend(metrics.iter().map(|(name, _, _, figure)| (*name, figure(of))));
    }
    let mut out = Vec::new();
    all(STORES, of, &mut out);
    if let Some(disk) = &of.disk {
        all(DISKS, disk, &mut out);
        disk.appended.iter().for_each(|appended| all(APPENDED, appended, &mut out));
    }
    of.replication.iter().for_each(|replicated| all(REPLICATED, replicated, &mut out));
    out
}
