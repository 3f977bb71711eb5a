//! What a connection knows of its user's restrictions, and what its scripts are told of them.

use std::sync::{Arc, Weak};

use super::Server;
use super::client::Client;
use super::dispatch::INDEX;
use crate::acl::{Denied, Permissions, User, Where};
use crate::catalogue::{Guard, Numbered};

/// The restricted permissions of a connection's user, as they were at a version.
#[derive(Debug)]
pub(super) struct Kept {
    pub version: u64,
    pub user: Arc<User>,
    pub permissions: Arc<Permissions>,
    /// For scripts, once one was called.
    guard: Option<Arc<dyn Guard>>,
}

impl Kept {
    pub fn new(version: u64, user: &Arc<User>) -> Kept {
        Kept { version, user: user.clone(), permissions: user.permissions(), guard: None }
    }

    /// Returns whether these are the permissions of a user at a version.
    pub fn is_of(&self, version: u64, user: &Arc<User>) -> bool {
        self.version == version && Arc::ptr_eq(&self.user, user)
    }

    /// Returns the guard that was made for scripts.
    pub fn prepared_guard(&self) -> Option<&Arc<dyn Guard>> {
        self.guard.as_ref()
    }

    /// Returns the guard of the commands of scripts that this client calls; without a client, the process calls them.
    pub fn guard(&mut self, server: &Server, client: Option<&Arc<Client>>) -> &Arc<dyn Guard> {
        self.guard.get_or_insert_with(|| {
            let (user, permissions) = (self.user.clone(), self.permissions.clone());
            Arc::new(ScriptGuard { server: server.this.clone(), client: client.cloned(), user, permissions })
        })
    }
}

/// The permissions of the caller of a script, as they were when it called.
struct ScriptGuard {
    server: Weak<Server>,
    client: Option<Arc<Client>>,
    user: Arc<User>,
    permissions: Arc<Permissions>,
}

impl std::fmt::Debug for ScriptGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.user.fmt(f)
    }
}

impl Guard for ScriptGuard {
    fn denial(&self, row: Numbered, words: &[&[u8]]) -> Option<Vec<u8>> {
        let server = self.server.upgrade()?;
        let commands = server.store.0.acl.commands();
        let Some(denied) = self.permissions.denies(commands, row, words) else {
            let text = row.spec.others.and_then(|_| self.permissions.denies_others(commands, row, words));
            return text.map(|text| text.as_bytes().to_vec());
        };
        self.note(&server, denied, row, words);
        let full_name = &INDEX.rows()[usize::from(row.number)].full_name;
        Some([b"ERR ACL failure in script: ", &denied.text(self.user.name(), full_name)[..]].concat())
    }

    fn allows_key(&self, key: &[u8]) -> bool {
        self.permissions.allow_key(key)
    }

    fn allows(&self, row: Numbered, words: &[&[u8]]) -> bool {
        let Some(server) = self.server.upgrade() else { return false };
        self.permissions.denies(server.store.0.acl.commands(), row, words).is_none()
    }
}

impl ScriptGuard {
    #[cold]
    fn note(&self, server: &Server, denied: Denied, row: Numbered, words: &[&[u8]]) {
        server.note_denied(denied, Where::Script, &self.user, row, words, || {
            self.client.as_ref().map_or_else(String::new, |client| client.line(&server.store))
        });
    }
}
