//! The stores of a service, which outlive its configurations.
//!
//! A store is identified by the name of its section. A reload may add sections and change parameters, as
//! CONFIG SET would. When a section is removed, its store is removed only if it is empty: a reload never loses
//! keys.
//!
//! A store with a `dir` begins with the file in it. The file is opened before the process serves, or before a reload takes
//! effect, and loaded while it serves. If that fails at the start, the process ends; after a reload, that store alone
//! refuses commands. At the end of the process, a store with save points is saved once more.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sluicegate_config::Config;
use sluicegate_config::model::StoreSection;
use sluicegate_proxy::engines::Engines;
use sluicegate_proxy::log::{Logger, Severity};
use sluicegate_store::config::{ServerOptions, UserLine};
use sluicegate_store::server::{Beginning, Ending, Server};
use sluicegate_store::{Store, StoreOptions};
use sluicegate_wire::engine::{Denial, Engine, Figures, Origin, Own, Started};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Every store, by the name of its section.
#[derive(Default)]
pub struct Stores {
    by_name: Mutex<ByName>,
    /// The files of new stores, which are loaded once the process serves.
    beginnings: Mutex<Vec<(Arc<str>, Beginning)>>,
}

type ByName = HashMap<Arc<str>, (Store, Arc<Server>)>;

/// The changes of a new configuration, by the name of the section.
pub type Changes = Vec<(Arc<str>, Change)>;

/// The change of one store: its parameters, and its users.
pub struct Change {
    parameters: Vec<(String, String)>,
    users: Vec<UserLine>,
    /// The names of users that have no line any more.
    removed: Vec<String>,
}

impl Stores {
    /// Returns the stores of a configuration. The error lists every file of theirs that cannot be read.
    pub fn new(config: &Config, options: Vec<ServerOptions>, logger: &Logger) -> Result<Stores, Vec<String>> {
        let stores = Stores::default();
        let made = config.stores.iter().zip(options);
        let made = made.map(|(section, options)| stores.add(section, config, options, logger));
        let errors: Vec<String> = made.filter_map(Result::err).collect();
        if errors.is_empty() { Ok(stores) } else { Err(errors) }
    }

    /// Adds a new store.
    fn add(
        &self,
        section: &StoreSection,
        config: &Config,
        options: ServerOptions,
        logger: &Logger,
    ) -> Result<(), String> {
        let made = make(section, config, options, logger);
        let name = &section.name;
        made.1.load_users().map_err(|error| format!("store '{name}': {error}"))?;
        if let Some((user, at)) = &section.rules_user
            && !made.1.set_rules_user(user.as_bytes())
        {
            return Err(format!("{}:{}: store '{name}' has no user '{user}' for 'rules-user'", at.file, at.line));
        }
        if let Some(beginning) = made.1.begin().map_err(|error| format!("store '{name}': {error}"))? {
            self.beginnings.lock().push((name.clone(), beginning));
        }
        self.by_name.lock().insert(name.clone(), made);
        Ok(())
    }

    /// Returns whether a store has a file that is still to be loaded.
    pub fn has_beginning(&self, name: &str) -> bool {
        self.beginnings.lock().iter().any(|(store, _)| **store == *name)
    }

    /// Loads the files of new stores, each on a thread of its own. The receiver gets the error of each that cannot be
    /// loaded; its store refuses commands. `loaded` is called with the name of each that is loaded, on the thread.
    pub fn load(&self, loaded: impl Fn(&str) + Clone + Send + 'static) -> UnboundedReceiver<String> {
        let (sender, failed) = unbounded_channel();
        for (name, beginning) in self.beginnings.lock().drain(..) {
            let (sender, of_thread) = (sender.clone(), sender.clone());
            let thread = std::thread::Builder::new().name("load".into()).spawn({
                let (name, loaded) = (name.clone(), loaded.clone());
                move || match beginning.load() {
                    Ok(()) => loaded(&name),
                    Err(error) => {
                        // The process may have ended meanwhile.
                        let _ = of_thread.send(format!("store '{name}': {error}"));
                    }
                }
            });
            if let Err(error) = thread {
                let _ = sender.send(format!("store '{name}': {error}"));
            }
        }
        failed
    }

    /// Returns the stores of a new configuration, which are existing ones and new ones, and the changed parameters.
    pub fn after(
        &self,
        was: &Config,
        is: &Config,
        options: Vec<ServerOptions>,
        logger: &Logger,
    ) -> Result<(Stores, Changes), String> {
        let known = self.by_name.lock();
        let mut lost = Vec::new();
        for (name, (store, _)) in known.iter().filter(|(name, _)| !is.stores.iter().any(|store| store.name == **name)) {
            if store.keys() > 0 {
                let keys = store.keys();
                lost.push(format!(
                    "the store '{name}' has {keys} keys and is not in the files any more: a reload loses no key, so \
                     empty it first (FLUSHALL), or restart the process"
                ));
            }
        }
        if !lost.is_empty() {
            return Err(lost.join("\n"));
        }
        let stores = Stores::default();
        let mut changes = Vec::new();
        for (section, options) in is.stores.iter().zip(options) {
            match known.get(&section.name) {
                Some(known) => {
                    let before = was.stores.iter().find(|store| store.name == section.name);
                    changes.push((section.name.clone(), changed(before, section, options.users)));
                    stores.by_name.lock().insert(section.name.clone(), known.clone());
                }
                None => stores.add(section, is, options, logger)?,
            }
        }
        Ok((stores, changes))
    }

    /// Replaces the stores by `next`. Returns messages about changes that were not possible.
    pub fn replace(&self, next: Stores, changes: &Changes) -> Vec<String> {
        self.beginnings.lock().extend(next.beginnings.into_inner());
        let gone = std::mem::replace(&mut *self.by_name.lock(), next.by_name.into_inner());
        let known = self.by_name.lock();
        for (_, (_, server)) in gone.iter().filter(|(name, _)| !known.contains_key(*name)) {
            server.stop();
        }
        let mut failed = Vec::new();
        for (name, change) in changes {
            let Some((_, server)) = known.get(name) else { continue };
            let removed: Vec<&[u8]> = change.removed.iter().map(|name| name.as_bytes()).collect();
            if let Err(error) = server.set_users(&change.users, &removed) {
                failed.push(format!("store '{name}': {error}"));
            }
            // Those of TLS fit each other only together.
            let (tls, others): (Vec<_>, Vec<_>) =
                change.parameters.iter().cloned().partition(|(name, _)| name.starts_with("tls-"));
            let each = others.chunks(1).chain(Some(&tls[..]).filter(|tls| !tls.is_empty()));
            for pairs in each {
                if let Err(error) = server.set_parameters(pairs) {
                    failed.push(format!("store '{name}': {error}; it takes effect when the process is restarted"));
                }
            }
            // The files may have other contents.
            if tls.is_empty()
                && let Err(error) = server.renew_link_tls()
            {
                failed.push(format!("store '{name}': the link to the master keeps its certificates: {error}"));
            }
        }
        failed
    }

    /// Stops serving clients, at the beginning of a soft stop. Another process may take over the files of the stores.
    pub fn stop(&self) {
        for server in self.servers().values() {
            server.yield_file();
            server.stop();
        }
    }

    /// Saves the stores that have save points, when the workers have ended. Returns what failed.
    pub async fn save_at_end(&self) -> Vec<String> {
        let mut failed = Vec::new();
        for (name, server) in self.servers() {
            server.yield_file();
            // One that is not saved has nothing to say about its end.
            if !server.options().save_points.is_empty() && !server.save_at_end(Ending::default()).await {
                failed.push(format!("store '{name}' could not be saved: what changed since the last save is lost"));
            }
        }
        failed
    }

    /// Returns the stores as engines for rules and scripts.
    pub fn engines(&self) -> Engines {
        let stores = self.by_name.lock();
        let embedded = |name: &Arc<str>, server: &Arc<Server>| Embedded { name: name.clone(), server: server.clone() };
        stores
            .iter()
            .map(|(name, (_, server))| (name.clone(), Arc::new(embedded(name, server)) as Arc<dyn Engine>))
            .collect()
    }

    /// Returns the servers of the stores.
    pub fn servers(&self) -> HashMap<Arc<str>, Arc<Server>> {
        self.by_name.lock().iter().map(|(name, (_, server))| (name.clone(), server.clone())).collect()
    }

    /// Syncs append-only files, for the end of the process. Returns errors.
    pub fn sync_at_end(&self) -> Vec<String> {
        let stores = self.by_name.lock();
        let synced = stores.iter().filter_map(|(name, (store, _))| Some((name, store.sync_at_end()?.err()?)));
        synced.map(|(name, error)| format!("store '{name}': the append-only file can't be synced: {error}")).collect()
    }

    /// Removes expired keys, and does the periodic work of stores without a server.
    pub fn tick(&self) {
        let stores: Vec<(Store, Arc<Server>)> = self.by_name.lock().values().cloned().collect();
        for (store, server) in &stores {
            store.tick();
            server.tick();
        }
    }
}

/// The interface of a store for rules and scripts. A command is a function call; one that needs a connection uses a
/// connection of this process to itself, so that all rules about connections apply.
struct Embedded {
    name: Arc<str>,
    server: Arc<Server>,
}

impl Embedded {
    fn connection(&self, db: u32) -> Box<dyn Own> {
        let server = Arc::downgrade(&self.server);
        sluicegate_client::own_here(&self.name, db, move || {
            server.upgrade().ok_or(std::io::ErrorKind::NotConnected)?.connect()
        })
    }
}

impl Engine for Embedded {
    fn start(&self, db: u32, args: &[&[u8]]) -> Started {
        if sluicegate_client::waits_for_others(args) {
            return sluicegate_client::alone(self.connection(db), args);
        }
        self.server.start(db, args)
    }

    fn start_from(&self, origin: Origin<'_>, db: u32, args: &[&[u8]]) -> Started {
        if sluicegate_client::waits_for_others(args) {
            return sluicegate_client::alone(self.connection(db), args);
        }
        self.server.start_from(origin, db, args)
    }

    fn together(&self, origin: Origin<'_>, db: u32, commands: &[&[&[u8]]]) -> Option<Started> {
        self.server.together(origin, db, commands)
    }

    fn own(&self, db: u32) -> Option<Box<dyn Own>> {
        Some(self.connection(db))
    }

    fn figures(&self) -> Option<Figures> {
        self.server.figures()
    }

    fn denials(&self, most: usize) -> Vec<Denial> {
        self.server.denials(most)
    }
}

/// Returns the parameters that the file has changed, of which one that was removed stays unchanged, and the users among
/// `users` whose lines are new or others.
fn changed(before: Option<&StoreSection>, section: &StoreSection, users: Vec<UserLine>) -> Change {
    let known = |name: &str, value: &str| {
        before.is_some_and(|before| before.parameters.iter().any(|(n, v, _)| (&**n, &**v) == (name, value)))
    };
    let changed = section.parameters.iter().filter(|(name, value, _)| !known(name, value));
    let parameters = changed.map(|(name, value, _)| (name.clone(), value.clone())).collect();
    let lines_before = before.map_or(&[][..], |before| &before.users);
    let is_known = |number: usize| lines_before.iter().any(|(words, _)| *words == section.users[number].0);
    let users = users.into_iter().filter(|line| !is_known(line.number)).collect();
    let has_line = |name: &String| section.users.iter().any(|(words, _)| words[0] == *name);
    let names_before = lines_before.iter().map(|(words, _)| &words[0]);
    let removed = names_before.filter(|name| *name != "default" && !has_line(name)).cloned().collect();
    Change { parameters, users, removed }
}

fn make(section: &StoreSection, config: &Config, options: ServerOptions, logger: &Logger) -> (Store, Arc<Server>) {
    let store = Store::new(StoreOptions { databases: options.databases, ..StoreOptions::default() });
    let server = Server::new(store.clone(), options);
    let (logger, targets, name) = (logger.clone(), config.global.log.clone(), section.name.clone());
    server.set_log(move |level, text| {
        // Debug, info for what Redis calls verbose, notice, warning.
        let severity = Severity::from_level([7, 6, 5, 4][usize::from(level.min(3))]);
        let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
        logger.send(&targets, severity, format!("store {name}: {text}").as_bytes());
    });
    (store, server)
}
