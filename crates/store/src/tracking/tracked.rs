//! A client that tracks keys, as all threads see it: its modes, where its messages go, and its prefixes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sluicegate_data::slab::heap_bytes;

use crate::memory::{Account, Share};
use crate::pubsub::Subscriber;

/// The size of a prefix in the table of all and in its client's own list in addition to its name, in bytes.
const PREFIX_BYTES: usize = 300;

/// A client that can track keys, and to which messages can be redirected.
pub(crate) trait Tracked: Subscriber {
    /// Returns its state of tracking, if it has ever tracked.
    fn tracks(&self) -> Option<&Tracks>;
    /// Returns whether it subscribes to a channel.
    fn is_subscriber(&self) -> bool;
    /// Returns whether its connection is closed, or about to be.
    fn is_gone(&self) -> bool;
}

/// The options of CLIENT TRACKING, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Modes(u8);

impl Modes {
    /// It tracks.
    pub(crate) const ON: Modes = Modes(1);
    pub(crate) const BCAST: Modes = Modes(1 << 1);
    pub(crate) const OPTIN: Modes = Modes(1 << 2);
    pub(crate) const OPTOUT: Modes = Modes(1 << 3);
    pub(crate) const NOLOOP: Modes = Modes(1 << 4);
    /// The client to which messages are redirected is gone.
    pub(crate) const BROKEN: Modes = Modes(1 << 5);
    /// CLIENT CACHING was called for the next command.
    pub(crate) const CACHING: Modes = Modes(1 << 6);

    pub(crate) const fn and(self, other: Modes) -> Modes {
        Modes(self.0 | other.0)
    }

    pub(crate) fn has(self, other: Modes) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether the keys of the client's next command are remembered.
    pub(crate) fn remembers(self) -> bool {
        let is_chosen = if self.has(Modes::OPTIN) {
            self.has(Modes::CACHING)
        } else {
            !(self.has(Modes::OPTOUT) && self.has(Modes::CACHING))
        };
        self.has(Modes::ON) && !self.has(Modes::BCAST) && is_chosen
    }
}

/// The receiver of a client's messages, if it is not the client itself.
#[derive(Clone)]
pub(super) struct Redirection {
    pub(super) id: u64,
    pub(super) to: Weak<dyn Tracked>,
}

/// A client's state of tracking, as all threads see it. Only the owner of the connection changes it, except for
/// [`Modes::BROKEN`].
#[derive(Default)]
pub(crate) struct Tracks {
    modes: AtomicU8,
    pub(super) redirection: Mutex<Option<Redirection>>,
    pub(super) prefixes: Mutex<OwnPrefixes>,
}

/// The prefixes of a client in broadcasting mode.
#[derive(Default)]
pub(super) struct OwnPrefixes {
    pub(super) names: BTreeSet<Box<[u8]>>,
    share: Share,
}

impl std::fmt::Debug for Tracks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracks").field("modes", &self.modes()).finish_non_exhaustive()
    }
}

impl Tracks {
    pub(crate) fn modes(&self) -> Modes {
        Modes(self.modes.load(Ordering::Acquire))
    }

    pub(super) fn set_modes(&self, modes: Modes) {
        self.modes.store(modes.0, Ordering::Release);
    }

    /// Notes that the client to which messages are redirected is gone.
    pub(super) fn set_broken(&self) {
        self.modes.fetch_or(Modes::BROKEN.0, Ordering::AcqRel);
    }

    /// Sets whether CLIENT CACHING was called.
    pub(crate) fn set_caching(&self, is_called: bool) {
        match is_called {
            true => self.modes.fetch_or(Modes::CACHING.0, Ordering::AcqRel),
            false => self.modes.fetch_and(!Modes::CACHING.0, Ordering::AcqRel),
        };
    }

    /// Returns the number of the client to which messages are redirected; 0: none.
    pub(crate) fn redirection(&self) -> u64 {
        self.redirection.lock().as_ref().map_or(0, |redirection| redirection.id)
    }

    /// Returns its prefixes, in order.
    pub(crate) fn prefixes(&self) -> Vec<Box<[u8]>> {
        self.prefixes.lock().names.iter().cloned().collect()
    }

    /// Returns a prefix of the client that overlaps with `prefix`.
    pub(crate) fn overlapping(&self, prefix: &[u8]) -> Option<Box<[u8]>> {
        let own = self.prefixes.lock();
        own.names.iter().find(|other| overlap(other, prefix)).cloned()
    }
}

/// Returns whether two prefixes are prefixes of the same names.
pub(crate) fn overlap(one: &[u8], other: &[u8]) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

impl OwnPrefixes {
    pub(super) fn charge(&mut self, account: &Arc<Account>) {
        let bytes = self.names.iter().map(|name| 2 * heap_bytes(name.len()) + PREFIX_BYTES).sum();
        self.share.set(account, bytes);
    }
}
