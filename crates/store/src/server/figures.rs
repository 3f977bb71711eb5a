//! A served store as rules, scripts and whoever watches the process see it.

use sluicegate_wire::engine::{Engine, Figures, Started};

use super::Server;

impl Engine for Server {
    fn start(&self, db: u32, args: &[&[u8]]) -> Started {
        self.store.start(db, args)
    }

    fn together(&self, db: u32, commands: &[&[&[u8]]]) -> Option<Started> {
        // Monitors are shown what comes over connections.
        if self.monitors.any() { None } else { self.store.together(db, commands) }
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
        })
    }
}
