//! Figures of a served store for rules, scripts and monitoring.

use sluicegate_wire::engine::{Engine, Figures, Origin, Started};

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
        })
    }
}
