//! TLS connections of the process, of both sides: their limit and their figures, and the listeners' certificates, with
//! the registry of all that the runtime API knows by name.
//!
//! A handshake costs far more than an uncontended lock, so these figures are shared by the workers and not kept per
//! worker.

pub(crate) mod forge;
mod registry;
mod renewals;
pub(crate) mod updates;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use sluicegate_config::model;
use sluicegate_tls::listener::Listener;
use sluicegate_tls::resumption::Resumption;

use crate::counters::second;
use crate::errors::CompileError;
pub use registry::Registry;
pub(crate) use registry::{BundleKind, Loaded};
pub use renewals::Renewals;
pub use updates::OcspUpdates;

/// The TLS of a proxy's `bind` lines, by their index.
pub type BindsTls = Box<[Option<Arc<Listener>>]>;

/// Builds the TLS of a proxy's `bind` lines. A line that is equal in `before`, the replaced proxy, keeps its listener,
/// with the certificates that were set at run time.
pub(crate) fn listeners(
    proxy: &model::Proxy,
    resumption: &Arc<Resumption>,
    before: Option<(&model::Proxy, &BindsTls)>,
) -> Result<BindsTls, Vec<CompileError>> {
    let mut errors = Vec::new();
    let of_line = |bind: &model::Bind| {
        let tls = bind.tls.as_ref()?;
        let known = before.and_then(|(proxy, listeners)| same(proxy, listeners, tls));
        let built = match known {
            Some(known) => Ok(known),
            None => Listener::new(tls.settings.clone(), resumption).map(Arc::new),
        };
        built.map_err(|message| errors.push(CompileError { at: bind.at.clone(), message })).ok()
    };
    let built = proxy.binds.iter().map(of_line).collect();
    if errors.is_empty() { Ok(built) } else { Err(errors) }
}

/// Returns the listener of a line that is equal, or has become equal at run time.
fn same(proxy: &model::Proxy, listeners: &BindsTls, tls: &model::BindTls) -> Option<Arc<Listener>> {
    let lines = || {
        proxy.binds.iter().zip(listeners).filter_map(|(bind, listener)| Some((bind.tls.as_ref()?, listener.as_ref()?)))
    };
    let by_words = lines().find(|(known, _)| ***known == *tls);
    let is_alike = |known: &model::BindTls, listener: &Listener| {
        let settings = listener.settings();
        settings.entries.len() == tls.settings.entries.len() && known.lists == tls.lists && *settings == tls.settings
    };
    let found = by_words.or_else(|| lines().find(|(known, listener)| is_alike(known, listener)));
    found.map(|(_, listener)| listener.clone())
}

/// The side of a connection on which a handshake takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Towards a client.
    Front,
    /// Towards a server.
    Back,
}

/// Events per second: in the current second, in the previous one, and the largest number so far.
#[derive(Debug, Default)]
struct SharedRate(Mutex<Slots>);

#[derive(Clone, Copy, Debug, Default)]
struct Slots {
    second: u32,
    current: u32,
    previous: u32,
    most: u32,
}

impl SharedRate {
    fn add(&self, now: Instant) {
        let now = second(now);
        let mut slots = self.0.lock();
        if slots.second != now {
            let last = if slots.second + 1 == now { slots.current } else { 0 };
            *slots = Slots { second: now, current: 0, previous: last, most: slots.most };
        }
        slots.current += 1;
        slots.most = slots.most.max(slots.current);
    }

    /// Returns the number of the last whole second, or of the current one if that is larger, and the largest number.
    fn get(&self, now: Instant) -> (u32, u32) {
        let now = second(now);
        let slots = *self.0.lock();
        let rate = match now.wrapping_sub(slots.second) {
            0 => slots.previous.max(slots.current),
            1 => slots.current,
            _ => 0,
        };
        (rate, slots.most)
    }
}

/// The limit and the figures of TLS connections.
#[derive(Debug, Default)]
pub struct TlsTotals {
    /// `maxsslconn`; 0: no limit.
    most: AtomicU32,
    current: AtomicU32,
    total: AtomicU64,
    connections: SharedRate,
    front_keys: SharedRate,
    back_keys: SharedRate,
}

impl TlsTotals {
    /// Sets `maxsslconn`; 0: no limit.
    pub fn set_limit(&self, most: u32) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// Returns `maxsslconn`; 0: no limit.
    pub fn limit(&self) -> u32 {
        self.most.load(Ordering::Relaxed)
    }

    /// Counts a new connection; returns `None` if the limit is reached.
    pub fn begin(self: &Arc<Self>) -> Option<TlsPlace> {
        let before = self.current.fetch_add(1, Ordering::Relaxed);
        let place = TlsPlace(self.clone());
        if (1..=before).contains(&self.limit()) {
            return None;
        }
        self.total.fetch_add(1, Ordering::Relaxed);
        Some(place)
    }

    /// Counts the start of a handshake with a client, for `SslRate`.
    pub fn accepted(&self, now: Instant) {
        self.connections.add(now);
    }

    /// Counts a handshake that succeeded.
    pub fn done(&self, side: Side, resumed: bool, now: Instant) {
        if !resumed {
            match side {
                Side::Front => self.front_keys.add(now),
                Side::Back => self.back_keys.add(now),
            }
        }
    }

    /// Returns the number of connections now.
    pub fn current(&self) -> u32 {
        self.current.load(Ordering::Relaxed)
    }

    /// Returns the number of connections so far.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Returns clients' connections per second, also of handshakes that fail, and the largest rate.
    pub fn rate(&self, now: Instant) -> (u32, u32) {
        self.connections.get(now)
    }

    /// Returns the key exchanges per second, and the largest rate.
    pub fn key_rate(&self, side: Side, now: Instant) -> (u32, u32) {
        match side {
            Side::Front => self.front_keys.get(now),
            Side::Back => self.back_keys.get(now),
        }
    }

    /// Returns the share of clients' sessions that were resumed in the last second, in percent.
    pub fn reuse_percent(&self, now: Instant) -> u32 {
        let (all, keys) = (self.rate(now).0, self.key_rate(Side::Front, now).0);
        match all {
            0 => 0,
            all => 100_u32.saturating_sub((100 * keys + (all - 1) / 2) / all),
        }
    }
}

/// A counted TLS connection; dropping it ends the count.
#[derive(Debug)]
pub struct TlsPlace(Arc<TlsTotals>);

impl Drop for TlsPlace {
    fn drop(&mut self) {
        self.0.current.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_counts_connections_that_exist() {
        let totals = Arc::new(TlsTotals::default());
        let many: Vec<_> = (0..5).map(|_| totals.begin()).collect();
        assert!(many.iter().all(Option::is_some));
        totals.set_limit(5);
        assert!(totals.begin().is_none());
        assert_eq!((totals.current(), totals.total()), (5, 5));
        drop(many);
        assert!(totals.begin().is_some());
        assert_eq!((totals.current(), totals.total()), (0, 6));
    }

    #[test]
    fn resumed_sessions_agree_on_no_key() {
        let (totals, now) = (TlsTotals::default(), Instant::now());
        for resumed in [true, false, true, true] {
            totals.accepted(now);
            totals.done(Side::Front, resumed, now);
        }
        totals.done(Side::Back, false, now);
        assert_eq!((totals.rate(now), totals.key_rate(Side::Front, now)), ((4, 4), (1, 1)));
        assert_eq!(totals.key_rate(Side::Back, now), (1, 1));
        assert_eq!(totals.reuse_percent(now), 75);
    }
}
