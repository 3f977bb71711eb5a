//! Users and what they may do: Redis's access control lists.
//!
//! A [`User`] is shared by its connections, and its permissions are replaced as a whole. A connection asks one word of
//! its user before each command: 0 means that the user may do everything, and is all that a client without restrictions
//! pays; otherwise it is the version of the permissions, which the connection keeps a reference to and reads again only
//! if the version is another one. So a change reaches all workers with their next command. A user that was removed may do
//! nothing any more.
//!
//! The owner of a command: a command of a client, and every command of its scripts and transactions, belongs to the client's
//! user; commands of rules and of scripts of the proxy belong to the process, which may do everything, or to the user that
//! the store's section names.
//!
//! Rules and files are Redis's ([`rules`]); texts on the wire are those of Redis 7.2 and Valkey.
//!
//! **Limits**: `acllog-max-len` entries of the log. Users are not limited; one has 64 bytes of bits for each selector,
//! and its patterns.

mod check;
mod commands;
mod file;
mod log;
mod permissions;
mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use sluicegate_wire::engine::Denial;

use crate::catalogue::{Numbered, Rows};
use crate::config::{ConfigLine, FileError, ServerOptions};
pub(crate) use check::{Denied, Refusal};
use commands::Commands;
pub(crate) use commands::category;
pub use file::fuzz_users;
pub(crate) use log::{Entry, Reason, Where};
pub(crate) use permissions::{Channels, Permissions, Selector};
use rules::Setting;
pub(crate) use rules::{digest, has_blanks, merged, up_to_nul};

/// The name of the user that a connection has before it logs in.
pub(crate) const DEFAULT: &[u8] = b"default";

/// The name of the process itself in CLIENT LIST, as Redis has it.
const PROCESS: &[u8] = b"(superuser)";

/// The version of a user that may do everything.
const FREE: u64 = 0;

/// A user.
pub(crate) struct User {
    name: Box<[u8]>,
    /// Whether it stands for the process itself, which is none of the users by name.
    is_process: bool,
    /// [`FREE`], or the version of its permissions, which no other permissions of this store had.
    version: AtomicU64,
    permissions: RwLock<Arc<Permissions>>,
}

impl User {
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns whether it stands for the process itself.
    pub(crate) fn is_process(&self) -> bool {
        self.is_process
    }

    /// Returns the version of its permissions if it may not do everything.
    #[inline]
    pub(crate) fn restrictions(&self) -> Option<u64> {
        match self.version.load(Ordering::Acquire) {
            FREE => None,
            version => Some(version),
        }
    }

    pub(crate) fn permissions(&self) -> Arc<Permissions> {
        self.permissions.read().clone()
    }
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "User({})", self.name.escape_ascii())
    }
}

/// The consequence of new permissions for connected clients.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// The user has other permissions, and its clients may listen to these channels only, if that is less than before.
    Changed(Arc<User>, Option<Channels>),
    /// The user was removed.
    Removed(Arc<User>),
}

/// All users of a store.
pub(crate) struct Acl {
    commands: Commands,
    /// By name, in the order of bytes.
    users: RwLock<BTreeMap<Box<[u8]>, Arc<User>>>,
    default: Arc<User>,
    /// The process itself, which may do everything.
    process: Arc<User>,
    next_version: AtomicU64,
    /// Whether new users may use all channels: `acl-pubsub-default`.
    all_channels: AtomicBool,
    log: Mutex<log::Log>,
    log_max: AtomicUsize,
    /// The number of events by reason.
    denied: [AtomicU64; 4],
}

impl Acl {
    /// Returns the users of a new store: `default`, which may do everything.
    pub(crate) fn new(rows: &'static Rows) -> Acl {
        let commands = Commands::new(rows);
        let free = |name: &[u8]| {
            let permissions = RwLock::new(Permissions::all(&commands).settled(&commands));
            let (version, is_process) = (AtomicU64::new(FREE), name == PROCESS);
            Arc::new(User { name: name.into(), is_process, version, permissions })
        };
        let (default, process) = (free(DEFAULT), free(PROCESS));
        Acl {
            commands,
            users: RwLock::new(BTreeMap::from([(DEFAULT.into(), default.clone())])),
            default,
            process,
            next_version: AtomicU64::new(FREE + 1),
            all_channels: AtomicBool::new(false),
            log: Mutex::default(),
            log_max: AtomicUsize::new(128),
            denied: Default::default(),
        }
    }

    /// Adopts the parameters.
    pub(crate) fn set(&self, options: &ServerOptions) {
        self.all_channels.store(options.acl_pubsub_default == "allchannels", Ordering::Relaxed);
        self.log_max.store(usize::try_from(options.acllog_max_len).unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    fn setting(&self) -> Setting<'_> {
        Setting { commands: &self.commands, all_channels: self.all_channels.load(Ordering::Relaxed) }
    }

    pub(crate) fn commands(&self) -> &Commands {
        &self.commands
    }

    /// Returns the user that a connection has before it logs in.
    pub(crate) fn default_user(&self) -> &Arc<User> {
        &self.default
    }

    /// Returns the user of commands that the process itself sends.
    pub(crate) fn process_user(&self) -> &Arc<User> {
        &self.process
    }

    pub(crate) fn user(&self, name: &[u8]) -> Option<Arc<User>> {
        self.users.read().get(name).cloned()
    }

    /// Returns all users in the order of their names.
    pub(crate) fn users(&self) -> Vec<Arc<User>> {
        self.users.read().values().cloned().collect()
    }

    /// Returns whether a new connection is logged in as the default user.
    pub(crate) fn admits_anyone(&self) -> bool {
        self.default.permissions.read().need_no_password()
    }

    /// Returns whether the default user takes any password.
    pub(crate) fn default_takes_any_password(&self) -> bool {
        self.default.permissions.read().take_any_password()
    }

    /// Returns the user with this name and this password, if it may log in.
    pub(crate) fn log_in(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        let user = self.user(name)?;
        let permissions = user.permissions();
        permissions.take(&digest(password)).then_some(user)
    }

    /// Returns the number of changes of permissions so far.
    pub(crate) fn changes(&self) -> u64 {
        self.next_version.load(Ordering::Acquire)
    }

    /// Returns the version of permissions that are new.
    fn version_of(&self, permissions: &Permissions) -> u64 {
        let version = self.next_version.fetch_add(1, Ordering::AcqRel);
        if permissions.are_free() { FREE } else { version }
    }

    /// Gives a user other permissions. The caller holds the lock of the users, so changes come one after the other.
    fn replace(&self, user: &User, permissions: Permissions) -> Option<Channels> {
        let version = self.version_of(&permissions);
        let mut current = user.permissions.write();
        let lost = current.lost_channels(&permissions);
        *current = permissions.settled(&self.commands);
        user.version.store(version, Ordering::Release);
        lost
    }

    /// Gives the user of this name these permissions, or makes one with them.
    fn put(&self, users: &mut BTreeMap<Box<[u8]>, Arc<User>>, name: &[u8], permissions: Permissions) -> Change {
        if let Some(user) = users.get(name) {
            let lost = self.replace(user, permissions);
            return Change::Changed(user.clone(), lost);
        }
        let user = Arc::new(User {
            name: name.into(),
            is_process: false,
            version: AtomicU64::new(self.version_of(&permissions)),
            permissions: RwLock::new(permissions.settled(&self.commands)),
        });
        users.insert(name.into(), user.clone());
        Change::Changed(user, None)
    }

    /// `ACL SETUSER`: applies rules to a user, or to a new one, all or none. An error is Redis's, without its code.
    pub(crate) fn set_user(&self, name: &[u8], rules: &[&[u8]]) -> Result<Change, Vec<u8>> {
        let rules = merged(rules).map_err(|at| {
            [b"Unmatched parenthesis in acl selector starting at '", up_to_nul(rules[at]), b"'."].concat()
        })?;
        let setting = self.setting();
        let mut users = self.users.write();
        let mut permissions = match users.get(name) {
            Some(user) => (*user.permissions()).clone(),
            None => Permissions::none(setting.commands, setting.all_channels),
        };
        for rule in &rules {
            permissions.apply(rule, setting).map_err(|error| {
                let text = error.to_string();
                [b"Error in ACL SETUSER modifier '", up_to_nul(rule), b"': ", text.as_bytes()].concat()
            })?;
        }
        Ok(self.put(&mut users, name, permissions))
    }

    /// Removes users; `default` is not among them. Returns those that there were.
    pub(crate) fn remove(&self, names: &[&[u8]]) -> Vec<Change> {
        let mut users = self.users.write();
        names.iter().filter_map(|name| self.take_out(&mut users, name)).collect()
    }

    /// Removes a user. Whoever still has it may do nothing any more.
    fn take_out(&self, users: &mut BTreeMap<Box<[u8]>, Arc<User>>, name: &[u8]) -> Option<Change> {
        let user = users.remove(name)?;
        self.replace(&user, Permissions::none(&self.commands, false));
        Some(Change::Removed(user))
    }

    /// Sets the password of the default user: `requirepass`.
    pub(crate) fn set_default_password(&self, password: &[u8]) {
        let _users = self.users.write();
        let mut permissions = (*self.default.permissions()).clone();
        permissions.set_password(password);
        self.replace(&self.default, permissions);
    }

    /// Replaces all users by those of a file; `default` may do everything if the file does not name it.
    fn adopt(&self, new: BTreeMap<Vec<u8>, Permissions>) -> Vec<Change> {
        let mut users = self.users.write();
        let mut new = new;
        new.entry(DEFAULT.to_vec()).or_insert_with(|| Permissions::all(&self.commands));
        let gone: Vec<Box<[u8]>> = users.keys().filter(|name| !new.contains_key(&name[..])).cloned().collect();
        let mut changes: Vec<Change> = gone.iter().filter_map(|name| self.take_out(&mut users, name)).collect();
        changes.extend(new.into_iter().map(|(name, permissions)| self.put(&mut users, &name, permissions)));
        changes
    }

    /// Reads the text of a file of users and adopts them, all or none. An error is Redis's, without its code.
    pub(crate) fn load(&self, path: &str, text: &[u8]) -> Result<Vec<Change>, Vec<u8>> {
        file::parse(path, text, self.setting()).map(|users| self.adopt(users))
    }

    /// Returns all users as lines of a file.
    pub(crate) fn lines(&self) -> Vec<Vec<u8>> {
        let line = |user: &Arc<User>| [b"user ", user.name(), b" ", &user.permissions().rules(&self.commands)].concat();
        self.users().iter().map(line).collect()
    }

    /// Adopts the users of the configuration at the start: the password of `default`, and the lines of users.
    pub(crate) fn begin(&self, options: &ServerOptions) -> Result<(), FileError> {
        if !options.requirepass.is_empty() {
            self.set_default_password(&options.requirepass);
        }
        self.set_lines(&options.users).map(drop)
    }

    /// Makes the users of lines of a configuration what the lines say, all or none.
    pub(crate) fn set_lines(&self, lines: &[ConfigLine]) -> Result<Vec<Change>, FileError> {
        let configured = file::configured(lines, self.setting())?;
        let mut users = self.users.write();
        Ok(configured.into_iter().map(|(name, permissions)| self.put(&mut users, &name, permissions)).collect())
    }

    /// Counts an event and adds it to the log; `client` is called only if it is kept.
    pub(crate) fn note(&self, event: Event<'_>, now_ms: i64, client: impl FnOnce() -> String) {
        self.denied[event.reason as usize].fetch_add(1, Ordering::Relaxed);
        let limit = self.log_max.load(Ordering::Relaxed);
        let entry = Entry {
            count: 1,
            reason: event.reason,
            place: event.place,
            object: event.object.to_vec(),
            user: event.user.to_vec(),
            client: if limit > 0 { client() } else { String::new() },
            id: 0,
            created_ms: now_ms,
            updated_ms: now_ms,
        };
        self.log.lock().add(entry, limit);
    }

    /// Returns the latest entries of the log, the last one first.
    pub(crate) fn events(&self, count: usize) -> Vec<Entry> {
        self.log.lock().latest(count, Entry::clone)
    }

    /// Returns the latest entries of the log for monitoring, the last one first.
    pub(crate) fn denials(&self, count: usize, now_ms: i64) -> Vec<Denial> {
        self.log.lock().latest(count, |entry| entry.denial(now_ms))
    }

    /// Removes the entries of the log.
    pub(crate) fn clear_log(&self) {
        self.log.lock().clear();
    }

    /// Returns the number of events for each reason: logins, commands, keys, channels.
    pub(crate) fn denied(&self) -> [u64; 4] {
        [0, 1, 2, 3].map(|at: usize| self.denied[at].load(Ordering::Relaxed))
    }

    /// Returns the event of a denied command.
    pub(crate) fn event<'e>(
        &'e self,
        denied: Denied,
        place: Where,
        user: &'e User,
        row: Numbered,
        words: &'e [&'e [u8]],
    ) -> Event<'e> {
        let (reason, object) = match denied {
            Denied::Command => (Reason::Command, self.commands.full_name(row.number).as_bytes()),
            Denied::Key(at) => (Reason::Key, words[at]),
            Denied::Channel(at) => (Reason::Channel, words[at]),
        };
        Event { reason, place, object, user: user.name() }
    }
}

/// An event for the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'e> {
    pub(crate) reason: Reason,
    pub(crate) place: Where,
    pub(crate) object: &'e [u8],
    pub(crate) user: &'e [u8],
}
