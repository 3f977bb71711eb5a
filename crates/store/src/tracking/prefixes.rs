//! The prefixes of clients in broadcasting mode, and the keys that have changed since they were last told.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tracked::{Modes, Tracked};
use crate::aof::write::encode;

/// One prefix.
#[derive(Default)]
struct Prefix {
    clients: BTreeMap<u64, Arc<dyn Tracked>>,
    /// The changed keys, each with the client that changed it last; 0: none.
    keys: BTreeMap<Box<[u8]>, u32>,
}

/// All prefixes, in order.
#[derive(Default)]
pub(super) struct Prefixes(BTreeMap<Box<[u8]>, Prefix>);

impl Prefixes {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn add(&mut self, prefix: &[u8], client: &Arc<dyn Tracked>) {
        self.0.entry(prefix.into()).or_default().clients.insert(client.id(), client.clone());
    }

    pub(super) fn remove(&mut self, prefix: &[u8], client: u64) {
        let Some(known) = self.0.get_mut(prefix) else { return };
        known.clients.remove(&client);
        if known.clients.is_empty() {
            self.0.remove(prefix);
        }
    }

    /// Adds a changed key to the prefixes that it begins with.
    pub(super) fn note(&mut self, key: &[u8], author: u32) {
        let note = |prefix: &mut Prefix| {
            prefix.keys.insert(key.into(), author);
        };
        if self.0.len() > key.len() {
            for len in 0..=key.len() {
                self.0.get_mut(&key[..len]).into_iter().for_each(note);
            }
        } else {
            self.0.iter_mut().filter(|(name, _)| key.starts_with(name)).for_each(|(_, prefix)| note(prefix));
        }
    }

    /// Passes each client with the encoded array of its prefix's changed keys to `send`, and forgets the keys. A client
    /// that asked for it (NOLOOP) does not get those that it has changed itself.
    pub(super) fn take(&mut self, mut send: impl FnMut(&Arc<dyn Tracked>, &[u8])) {
        for prefix in self.0.values_mut().filter(|prefix| !prefix.keys.is_empty()) {
            let keys = std::mem::take(&mut prefix.keys);
            let all = array_of(keys.keys().map(|key| &**key));
            for (id, client) in &prefix.clients {
                let skips_own = client.tracks().is_some_and(|tracks| tracks.modes().has(Modes::NOLOOP));
                if skips_own && keys.values().any(|author| *author == *id as u32) {
                    let others: Vec<&[u8]> =
                        keys.iter().filter(|(_, author)| **author != *id as u32).map(|(key, _)| &**key).collect();
                    if !others.is_empty() {
                        send(client, &array_of(others.into_iter()));
                    }
                } else {
                    send(client, &all);
                }
            }
        }
    }
}

/// Returns the encoded array of keys.
pub(super) fn array_of<'k>(keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    encode(keys, &mut out);
    out
}
