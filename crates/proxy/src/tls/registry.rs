//! Certificates, authorities, revocation lists and lists of certificates in memory, by file name.
//!
//! The registry belongs to the process and outlives its configurations. It begins with the content that the first
//! configuration loaded, and the runtime API changes it. A reload compares files with it ([`Registry::files`]): if a
//! file has not changed since it was read, changes made at run time are kept. Certificates without a file are always
//! kept.
//!
//! Each kind has one transaction at a time: a copy that is changed until it is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use sluicegate_config::model::TlsFiles;
use sluicegate_tls::listener::Listener;
use sluicegate_tls::pair::Draft;
use sluicegate_tls::x509::Bundle;

/// The two kinds of bundles, each with commands of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BundleKind {
    /// `ca-file`.
    Authorities,
    /// `crl-file`.
    Revocations,
}

/// The content of the registry.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// Certificates and bundles that have content.
    pub(crate) files: TlsFiles,
    /// Certificates that were created and not committed yet.
    pub(crate) empty_pairs: BTreeSet<Arc<str>>,
    /// Bundles that were created and not committed yet.
    pub(crate) empty_bundles: BTreeMap<Arc<str>, BundleKind>,
    /// The open transaction on a certificate.
    pub(crate) pair: Option<Draft>,
    authorities: Option<Arc<Bundle>>,
    revocations: Option<Arc<Bundle>>,
}

impl Loaded {
    /// Returns the open transaction on a bundle of this kind.
    pub(crate) fn bundle(&mut self, kind: BundleKind) -> &mut Option<Arc<Bundle>> {
        match kind {
            BundleKind::Authorities => &mut self.authorities,
            BundleKind::Revocations => &mut self.revocations,
        }
    }

    /// Returns the kind of a bundle; `None` if there is none of this name.
    pub(crate) fn bundle_kind(&self, name: &str) -> Option<BundleKind> {
        if let Some(kind) = self.empty_bundles.get(name) {
            return Some(*kind);
        }
        let known = self.files.bundles.contains_key(name);
        known.then(|| match self.files.crl_files.contains(name) {
            true => BundleKind::Revocations,
            false => BundleKind::Authorities,
        })
    }

    /// Returns a certificate's content as a draft; `None` if there is none of this name.
    pub(crate) fn draft(&self, name: &str) -> Option<Draft> {
        match self.files.pairs.get(name) {
            Some(pair) => Some(Draft::of(pair)),
            None => self.empty_pairs.contains(name).then(|| Draft::empty(name)),
        }
    }

    /// Returns whether a certificate has this name, even an empty one.
    pub(crate) fn has_pair(&self, name: &str) -> bool {
        self.files.pairs.contains_key(name) || self.empty_pairs.contains(name)
    }
}

/// The certificates of a process.
#[derive(Debug, Default)]
pub struct Registry {
    loaded: Mutex<Loaded>,
    /// The listeners of `bind` lines outside of proxies: those of stores.
    others: Mutex<Vec<Weak<Listener>>>,
}

impl Registry {
    /// Locks the content and returns it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock()
    }

    /// Adds a listener that does not belong to a proxy, so that commands replace its certificates as well, until it is
    /// dropped.
    pub fn add_listener(&self, listener: &Arc<Listener>) {
        let mut others = self.others.lock();
        others.retain(|other| other.strong_count() > 0);
        others.push(Arc::downgrade(listener));
    }

    /// Returns the listeners that do not belong to proxies.
    pub(crate) fn other_listeners(&self) -> Vec<Arc<Listener>> {
        self.others.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the files that the next configuration may reuse.
    pub fn files(&self) -> TlsFiles {
        self.loaded.lock().files.clone()
    }

    /// Adopts the content that a configuration has loaded. Every configuration but the first was built from
    /// [`files`](Self::files). Content without a file is kept.
    pub(crate) fn adopt(&self, next: &TlsFiles) {
        let mut loaded = self.loaded.lock();
        let before = std::mem::replace(&mut loaded.files, next.clone());
        for (name, pair) in before.pairs.iter().filter(|(_, pair)| pair.file_digest().is_none()) {
            loaded.files.pairs.entry(name.clone()).or_insert_with(|| pair.clone());
        }
        for (name, bundle) in before.bundles.iter().filter(|(_, bundle)| bundle.file_digest.is_none()) {
            if before.crl_files.contains(name) && !loaded.files.bundles.contains_key(name) {
                loaded.files.crl_files.insert(name.clone());
            }
            loaded.files.bundles.entry(name.clone()).or_insert_with(|| bundle.clone());
        }
        let Loaded { files, empty_pairs, empty_bundles, .. } = &mut *loaded;
        empty_pairs.retain(|name| !files.pairs.contains_key(name));
        empty_bundles.retain(|name, _| !files.bundles.contains_key(name));
        if loaded.pair.as_ref().is_some_and(|draft| !loaded.has_pair(draft.path())) {
            loaded.pair = None;
        }
        for kind in [BundleKind::Authorities, BundleKind::Revocations] {
            let is_gone = |loaded: &Loaded, name: &str| loaded.bundle_kind(name) != Some(kind);
            let name = loaded.bundle(kind).as_ref().map(|bundle| bundle.path.clone());
            if name.is_some_and(|name| is_gone(&loaded, &name)) {
                *loaded.bundle(kind) = None;
            }
        }
    }
}
