//! The restrictions of a connection's user: the check of its commands, and the guard that its scripts get.

use std::sync::{Arc, Weak};

use super::Server;
use super::client::Client;
use super::dispatch::{Context, INDEX};
use crate::acl::{Denied, Permissions, Refusal, User, Where};
use crate::catalogue::{Flags, Guard, Numbered};

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

impl Context<'_> {
    /// Returns whether a client that has not logged in has to.
    #[cold]
    pub fn needs_login(&self) -> bool {
        !self.worker.server.store.0.acl.admits_anyone()
    }

    /// Returns the permissions of the connection's user, which are restricted and have this version.
    fn kept(&mut self, version: u64) -> &mut Kept {
        let user = &self.session.user;
        let kept = &mut self.session.rare.kept;
        // No two users have permissions of the same version.
        if kept.as_ref().is_none_or(|kept| kept.version != version) {
            *kept = None;
        }
        kept.get_or_insert_with(|| Kept::new(version, user))
    }

    /// Returns whether the user, whose permissions have this version, may call a command, as far as the connection knows
    /// that at once; if not, [`denial`](Self::denial) decides.
    #[inline(always)]
    pub fn is_allowed(&self, version: u64, row: u16, args: &[&[u8]]) -> bool {
        let Some(kept) = &self.session.rare.kept else { return false };
        let commands = self.worker.server.store.0.acl.commands();
        kept.version == version && kept.permissions.allow_at_once(commands, row, args)
    }

    /// Returns the error of a command that the user may not call, after it was logged.
    #[inline(never)]
    pub fn denial(&mut self, version: u64, row: u16, args: &[&[u8]]) -> Option<Vec<u8>> {
        let row = Numbered { spec: INDEX.rows()[usize::from(row)].spec, number: row };
        let in_multi = self.session.rare.multi.is_some();
        if in_multi && row.spec.flags.has(Flags::NO_MULTI) {
            return None;
        }
        let worker = self.worker;
        let commands = worker.server.store.0.acl.commands();
        let permissions = &self.kept(version).permissions;
        match permissions.refuses(commands, row, args)? {
            Refusal::Denied(denied) => {
                Some(self.note_denied(denied, if in_multi { Where::Transaction } else { Where::TopLevel }, row, args))
            }
            // Inside MULTI it is queued.
            Refusal::Others(text) => (!in_multi).then(|| text.into()),
        }
    }

    /// Logs what was denied, and returns the error.
    #[cold]
    fn note_denied(&mut self, denied: Denied, place: Where, row: Numbered, args: &[&[u8]]) -> Vec<u8> {
        if !self.session.in_exec {
            self.session.command = &INDEX.rows()[usize::from(row.number)].full_name;
        }
        self.show_own_state(args);
        let (server, user) = (&self.worker.server, &self.session.user);
        server.note_denied(denied, place, user, row, args, || self.client.line(&server.store));
        let full_name = &INDEX.rows()[usize::from(row.number)].full_name;
        [b"NOPERM ", &denied.text(user.name(), full_name)[..]].concat()
    }

    /// Returns the error of a command of a transaction that its user may not call any more.
    pub fn denial_in_exec(&mut self, row: Numbered, args: &[&[u8]]) -> Option<Vec<u8>> {
        let version = self.session.user.restrictions()?;
        let worker = self.worker;
        let commands = worker.server.store.0.acl.commands();
        let permissions = &self.kept(version).permissions;
        let denied = match permissions.refuses(commands, row, args)? {
            Refusal::Denied(denied) => denied,
            Refusal::Others(text) => return Some(text.into()),
        };
        self.note_denied(denied, Where::Transaction, row, args);
        let text = format!(
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command \
             is no longer allowed for the following reason: {}",
            denied.reason_in_transaction()
        );
        Some(text.into_bytes())
    }

    /// Prepares the permissions for commands of the client's scripts. Returns false if its user is not restricted.
    #[inline(never)]
    pub fn prepare_guard(&mut self, args: &[&[u8]]) -> bool {
        let Some(version) = self.session.user.restrictions() else { return false };
        // The log shows the client, which may be on another thread then.
        self.show_own_state(args);
        let (worker, client) = (self.worker, self.client);
        self.kept(version).guard(&worker.server, Some(client));
        true
    }

    /// Returns the permissions for commands of the client's scripts, if its user is restricted.
    pub fn guard(&mut self, args: &[&[u8]]) -> Option<Arc<dyn Guard>> {
        if !self.prepare_guard(args) {
            return None;
        }
        self.session.rare.kept.as_ref().and_then(Kept::prepared_guard).cloned()
    }

    /// Makes the connection one of another user.
    pub fn log_in(&mut self, user: Arc<User>, authenticated: bool) {
        self.session.authenticated = authenticated;
        self.session.rare.kept = None;
        *self.client.user.lock() = user.clone();
        self.session.user = user;
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
        let denied = match self.permissions.refuses(commands, row, words)? {
            Refusal::Denied(denied) => denied,
            Refusal::Others(text) => return Some(text.into()),
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
