//! A `resolvers` section: its state behind one lock, for rules that ask and for the loop that drives it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use sluicegate_config::model;
use tokio::sync::Notify;

use super::message;
use super::state::{Asked, Counters, State};
use crate::server::ServerRun;

/// A `resolvers` section, independent of the snapshots.
pub struct Resolver {
    /// Its definition.
    pub config: model::Resolvers,
    /// The counters of `show resolvers`, by name server.
    pub counters: Vec<Counters>,
    /// The number of questions of rules that were refused or had no result (`FailedResolutions`).
    pub failed: AtomicU64,
    pub(super) state: Mutex<State>,
    /// Notified when a rule asks.
    pub(super) wake: Notify,
}

impl Resolver {
    fn new(config: &model::Resolvers) -> Resolver {
        Resolver {
            config: config.clone(),
            counters: config.nameservers.iter().map(|_| Counters::default()).collect(),
            failed: AtomicU64::new(0),
            state: Mutex::new(State::new(config)),
            wake: Notify::new(),
        }
    }

    /// Returns the sections of a configuration; sections of `before` with the same definition are reused.
    pub(crate) fn all(config: &[model::Resolvers], before: &[Arc<Resolver>]) -> Vec<Arc<Resolver>> {
        let alike = |a: &model::Resolvers, b: &model::Resolvers| {
            model::Resolvers { at: None, ..a.clone() } == model::Resolvers { at: None, ..b.clone() }
        };
        let known = |section| before.iter().find(|known| alike(&known.config, section)).cloned();
        config.iter().map(|section| known(section).unwrap_or_else(|| Arc::new(Resolver::new(section)))).collect()
    }

    /// Asks for an address of a name on behalf of a rule.
    pub(crate) fn ask(&self, name: &[u8], prefer_v4: bool) -> Asked {
        let asked = match message::name(name) {
            Some(name) if !self.config.nameservers.is_empty() => self.state.lock().ask(name, prefer_v4, Instant::now()),
            _ => Asked::Known(None),
        };
        match &asked {
            Asked::Known(None) => _ = self.failed.fetch_add(1, Ordering::Relaxed),
            Asked::Known(Some(_)) => {}
            Asked::Later(_) => self.wake.notify_one(),
        }
        asked
    }

    /// Makes a server of the section follow another name, and returns HAProxy's message about it. Its address stays
    /// until the new name has one.
    pub(crate) fn rename(&self, backend: &Arc<str>, server: &ServerRun, name: &str) -> String {
        let said = self.state.lock().rename(backend, server, name, Instant::now());
        self.wake.notify_one();
        said
    }

    /// Returns the name that a server currently follows, if it comes from a service record.
    pub fn name_of(&self, backend: &str, server: &str) -> Option<String> {
        self.state.lock().name_of(backend, server)
    }
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").field("name", &self.config.name).finish_non_exhaustive()
    }
}
