//! The network namespaces that the process has opened, by name.
//!
//! They are opened when a configuration is built, before `chroot`; a later configuration finds those of earlier ones here,
//! where it could not open them any more.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use sluicegate_config::model::NamedNamespace;
use sluicegate_transport::Namespace;

use crate::errors::CompileError;

/// Namespaces by name; they are never closed, as their number is that of names in configurations.
#[derive(Debug, Default)]
pub struct Namespaces(Mutex<HashMap<Arc<str>, Arc<Namespace>>>);

impl Namespaces {
    /// Returns a namespace, opened on the first use of its name.
    pub(crate) fn open(&self, named: &NamedNamespace) -> Result<Arc<Namespace>, CompileError> {
        let open = || -> io::Result<Arc<Namespace>> {
            let mut known = self.0.lock();
            if let Some(known) = known.get(&named.name) {
                return Ok(known.clone());
            }
            let opened = Arc::new(Namespace::open(&named.name)?);
            known.insert(named.name.clone(), opened.clone());
            Ok(opened)
        };
        open().map_err(|error| {
            let message = format!("Cannot open namespace '{}' ({error})", named.name);
            CompileError { at: named.at.clone(), message }
        })
    }

    /// Returns an open namespace by its name, with the name.
    pub(crate) fn get(&self, name: &str) -> Option<(Arc<str>, Arc<Namespace>)> {
        self.0.lock().get_key_value(name).map(|(name, namespace)| (name.clone(), namespace.clone()))
    }
}
