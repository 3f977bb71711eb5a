//! Figures of a served store for rules, scripts and monitoring.

use sluicegate_wire::engine::{Appended, Denial, Disk, Engine, Figures, Origin, Replicated, Started};

use super::Server;
use super::inside::NOWHERE;
use crate::replication::replica::Phase;

impl Engine for Server {
    fn start(&self, db: u32, args: &[&[u8]]) -> Started {
        self.start_from(&|| NOWHERE.to_owned(), db, args)
    }

    fn start_from(&self, origin: Origin<'_>, db: u32, args: &[&[u8]]) -> Started {
        self.start_inside(origin, db, args)
    }

    fn together(&self, origin: Origin<'_>, db: u32, commands: &[&[&[u8]]]) -> Option<Started> {
        self.together_inside(origin, db, commands)
    }

    fn figures(&self) -> Option<Figures> {
        let store = self.store.stats();
        let [per_second, ..] = self.rate.lock().per_second;
        Some(Figures {
            keys: store.databases.iter().map(|database| database.keys).sum(),
            expiring: store.databases.iter().map(|database| database.expires).sum(),
            used_bytes: store.used_bytes,
            max_bytes: self.options.read().maxmemory,
            clients: self.clients.count() as u64,
            commands: self.all_time().commands,
            commands_per_second: per_second.round() as u64,
            hits: store.hits,
            misses: store.misses,
            holds: store.tickets,
            waited: store.parked,
            refused: store.refused,
            slow: self.slowlog.count(),
            expired: store.expired,
            evicted: store.evicted,
            denied: self.store.0.acl.denied(),
            tracking: self.store.0.tracking.counts(),
            disk: self.disk(),
            replication: self.replicated(),
        })
    }

    fn denials(&self, most: usize) -> Vec<Denial> {
        self.store.0.acl.denials(most, self.store.0.clock.now_ms())
    }
}

impl Server {
    /// Returns what there is to say of the store's master and replicas; [`None`] if it has neither, and had none lately.
    fn replicated(&self) -> Option<Replicated> {
        let inner = &self.store.0;
        let (replication, link) = (&inner.replication, &inner.link);
        let replicas = replication.visible_replicas();
        if !link.is_replica() && replicas.is_empty() && !replication.told().has_backlog {
            return None;
        }
        let offset = replication.offset();
        let online = || replicas.iter().filter(|replica| replica.phase() == Phase::Online);
        let behind = online().map(|replica| offset.saturating_sub(replica.acknowledged(false).unwrap_or(0)));
        let figures = &replication.figures;
        Some(Replicated {
            is_replica: link.is_replica(),
            is_linked: link.is_up(),
            is_syncing: link.is_syncing(),
            offset,
            replicas: replicas.len() as u64,
            good_replicas: replication.good() as u64,
            slowest_bytes: behind.max().unwrap_or(0),
            silent_s: online().map(|replica| replica.lag().as_secs()).max().unwrap_or(0),
            syncs: figures.syncs(),
        })
    }

    /// Returns what the store has on the disk; [`None`] if it has no directory.
    fn disk(&self) -> Option<Disk> {
        let inner = &self.store.0;
        inner.saver.files()?;
        let saves = self.store.save_figures();
        let is_rewrite = inner.saver.job().is_some_and(|job| job.is_rewrite());
        let appended = inner.appender.is_open().then(|| {
            let state = inner.appender.state.lock();
            Appended {
                bytes: state.bytes(),
                backlog_bytes: state.backlog,
                is_failing: state.error.is_some(),
                is_rewriting: is_rewrite,
                rewrite_failed: state.last_failed,
                rewrites: state.rewrites,
                delayed_syncs: state.delayed_syncs,
            }
        });
        Some(Disk {
            is_loading: inner.loading.is_on(),
            loaded_percent: inner.loading.estimate(0).0 as u64,
            changes: saves.changes,
            last_save_s: saves.last_s,
            is_saving: saves.is_running,
            save_failed: !saves.last_succeeded,
            saves: saves.saves,
            appended,
        })
    }
}
