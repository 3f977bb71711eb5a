//! `balance sticky`: one server gets everything until it is down.
//!
//! Then the first usable one of the configuration takes its place, an active one if there is one, and keeps it when the
//! former comes back; only a backup is left for an active server (HAProxy's `lb_ss.c`). Weights do not matter.

use super::{Load, Pick, Servers};

#[derive(Debug)]
pub(super) struct Sticky {
    chosen: Option<usize>,
}

impl Sticky {
    pub(super) fn new(servers: &Servers) -> Sticky {
        Sticky { chosen: first(servers) }
    }

    /// Follows a change of a server's weight; `servers` has the new one.
    pub(super) fn set_weight(&mut self, server: usize, servers: &Servers) {
        let goes = servers.weight[server] == 0;
        let better = |chosen: usize| servers.backup[chosen] && !servers.backup[server];
        match self.chosen {
            Some(chosen) if goes && chosen == server => self.chosen = first(servers),
            Some(chosen) if goes || !better(chosen) => {}
            _ if goes => {}
            _ => self.chosen = Some(server),
        }
    }

    pub(super) fn pick(&self, load: &dyn Load) -> Pick {
        match self.chosen {
            Some(server) if load.take(server) => Pick::Taken(server),
            Some(server) => Pick::Wait(server),
            None => Pick::None,
        }
    }
}

fn first(servers: &Servers) -> Option<usize> {
    servers.of(0).next().or_else(|| servers.first_backup())
}
