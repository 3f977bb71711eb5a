//! Figures of a served store for rules, scripts and monitoring.

use sluicegate_wire::engine::{Appended, Disk, Engine, Figures, Origin, Started};

use super::Server;
use super::inside::NOWHERE;

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
            expired: store.expired,
            evicted: store.evicted,
            denied: self.store.0.acl.denied(),
            tracking: self.store.0.tracking.counts(),
            disk: self.disk(),
        })
    }
}

impl Server {
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
