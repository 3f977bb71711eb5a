//! Names that are resolved while the process runs: `resolvers` sections, the servers that follow a name, and rules that
//! ask for one.
//!
//! A [`Resolver`] is a section. What it knows stands behind one lock (`state`) and moves by three things: time, a
//! message, and a rule that asks. The control thread drives it (`run`): it owns the sockets, sends questions and reads
//! answers, and changes servers (`servers`), so no worker ever waits for a name server. A rule that asks takes the
//! lock for a look-up, gets an answer that is fresh enough at once, or waits for a channel.
//!
//! Names, their records and the times of the last good answers outlive a snapshot: the next one has the same `Resolver`
//! if its section is the same.
//!
//! Limits: records of a name `state::RECORDS`, rules that wait `state::WAITING`, a message of `accepted_payload_size`
//! bytes, and as many messages as a channel holds.

mod message;
pub(crate) mod run;
mod servers;
mod state;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use sluicegate_config::model;
use tokio::sync::{Notify, oneshot};

use self::message::Kind;
pub use self::message::fuzz_answer;
use self::state::State;
use crate::server::ServerRun;

/// A `resolvers` section, outside any snapshot.
pub struct Resolver {
    /// Its definition.
    pub config: model::Resolvers,
    /// What `show resolvers` counts, by name server.
    pub counters: Vec<Counters>,
    /// Questions of rules that were refused or came to nothing (`FailedResolutions`).
    pub failed: AtomicU64,
    state: Mutex<State>,
    /// A rule asks.
    wake: Notify,
}

/// What is counted of a name server.
#[derive(Debug, Default)]
pub struct Counters {
    /// Questions.
    pub sent: AtomicU64,
    /// Questions that could not be sent.
    pub snd_error: AtomicU64,
    /// Good answers.
    pub valid: AtomicU64,
    /// Answers that gave a server another address.
    pub update: AtomicU64,
    /// Aliases that lead nowhere.
    pub cname_error: AtomicU64,
    /// Answers without records.
    pub any_err: AtomicU64,
    /// The name does not exist.
    pub nx: AtomicU64,
    /// Refusals.
    pub refused: AtomicU64,
    /// Other errors.
    pub other: AtomicU64,
    /// Messages that can't be read.
    pub invalid: AtomicU64,
    /// Messages longer than `accepted_payload_size`.
    pub too_big: AtomicU64,
    /// Answers that were cut off.
    pub truncated: AtomicU64,
    /// Answers to what is asked no longer, or was never asked.
    pub outdated: AtomicU64,
}

/// What a rule that asks gets.
pub(crate) enum Asked {
    /// The address is known, or there is none.
    Known(Option<IpAddr>),
    /// It will be.
    Later(oneshot::Receiver<Option<IpAddr>>),
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

    /// The sections of a configuration; what `before` has and defines alike is taken over.
    pub(crate) fn all(config: &[model::Resolvers], before: &[Arc<Resolver>]) -> Vec<Arc<Resolver>> {
        let alike = |a: &model::Resolvers, b: &model::Resolvers| {
            model::Resolvers { at: None, ..a.clone() } == model::Resolvers { at: None, ..b.clone() }
        };
        let known = |section| before.iter().find(|known| alike(&known.config, section)).cloned();
        config.iter().map(|section| known(section).unwrap_or_else(|| Arc::new(Resolver::new(section)))).collect()
    }

    /// Asks for an address of a name on behalf of a rule.
    pub(crate) fn ask(&self, name: &[u8], prefer_v4: bool) -> Asked {
        let kind = if prefer_v4 { Kind::V4 } else { Kind::V6 };
        let asked = match message::name(name) {
            Some(name) if !self.config.nameservers.is_empty() => self.state.lock().ask(name, kind, Instant::now()),
            _ => Asked::Known(None),
        };
        match &asked {
            Asked::Known(None) => _ = self.failed.fetch_add(1, Ordering::Relaxed),
            Asked::Known(Some(_)) => {}
            Asked::Later(_) => self.wake.notify_one(),
        }
        asked
    }

    /// Has a server of the section follow another name, and says what became of that, as HAProxy does. Its address stays
    /// until the new name has one.
    pub(crate) fn rename(&self, backend: &Arc<str>, server: &ServerRun, name: &str) -> String {
        let said = self.state.lock().rename(backend, server, name, Instant::now());
        self.wake.notify_one();
        said
    }

    /// The name that a server follows at the moment, where it is a service's.
    pub fn name_of(&self, backend: &str, server: &str) -> Option<String> {
        self.state.lock().name_of(backend, server)
    }
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").field("name", &self.config.name).finish_non_exhaustive()
    }
}
