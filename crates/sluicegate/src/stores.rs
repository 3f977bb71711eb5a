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
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sluicegate_config::Config;
use sluicegate_config::model::StoreSection;
use sluicegate_proxy::engines::Engines;
use sluicegate_proxy::log::{Logger, Severity};
use sluicegate_store::config::{ConfigLine, ServerOptions};
use sluicegate_store::server::{Beginning, Ending, Server};
use sluicegate_store::{Store, StoreOptions};
use sluicegate_wire::engine::{Denial, Engine, Figures, Origin, Own, Started};
use sluicegate_wire::reply::Reply;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

/// Every store, by the name of its section.
#[derive(Default)]
pub struct Stores {
    by_name: Mutex<ByName>,
    /// The files of new stores, which are loaded once the process serves.
    beginnings: Mutex<Vec<(Arc<str>, Beginning)>>,
}

type ByName = HashMap<Arc<str>, Kept>;

/// A store of the process.
#[derive(Clone)]
struct Kept {
    store: Store,
    server: Arc<Server>,
    place: Arc<Place>,
}

/// Makes a connection to a store of another process, by its name.
pub type Connect = Arc<dyn Fn(&str) -> io::Result<UnixStream> + Send + Sync>;

/// Where the commands of rules and scripts for a store are carried out.
#[derive(Clone, Default)]
pub enum Site {
    /// In this process.
    #[default]
    Here,
    /// That is being decided: they wait.
    Moving,
    /// In the process that has replaced this one.
    There(Connect),
}

/// The place of a store. The flag makes the common case, here, one load.
struct Place {
    is_elsewhere: AtomicBool,
    site: watch::Sender<Site>,
}

impl Default for Place {
    fn default() -> Place {
        Place { is_elsewhere: AtomicBool::new(false), site: watch::Sender::default() }
    }
}

impl Place {
    fn is_elsewhere(&self) -> bool {
        self.is_elsewhere.load(Ordering::Acquire)
    }

    fn site(&self) -> Site {
        self.site.borrow().clone()
    }

    /// Waits until it is decided.
    async fn settled(&self) -> Site {
        let mut changes = self.site.subscribe();
        // The sender lives as long as the place.
        let settled = changes.wait_for(|site| !matches!(site, Site::Moving)).await;
        settled.map_or(Site::Here, |site| site.clone())
    }

    fn set(&self, site: Site) {
        let is_here = matches!(site, Site::Here);
        if !is_here {
            self.is_elsewhere.store(true, Ordering::Release);
        }
        self.site.send_replace(site);
        if is_here {
            self.is_elsewhere.store(false, Ordering::Release);
        }
    }
}

/// The changes of a new configuration, by the name of the section.
pub type Changes = Vec<(Arc<str>, Change)>;

/// The change of one store: its parameters, and its users.
pub struct Change {
    parameters: Vec<(String, String)>,
    users: Vec<ConfigLine>,
    /// The names of users that have no line any more.
    removed: Vec<String>,
}

impl Stores {
    /// Returns the stores of a configuration. Those for whose name `is_taken` returns true come from another process, and
    /// leave their files alone until then. The error lists every file of the others that cannot be read.
    pub fn new(
        config: &Config,
        options: Vec<ServerOptions>,
        logger: &Logger,
        is_taken: impl Fn(&str) -> bool,
    ) -> Result<Stores, Vec<String>> {
        let stores = Stores::default();
        let made = config.stores.iter().zip(options);
        let made = made.map(|(section, options)| stores.add(section, config, options, logger, is_taken(&section.name)));
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
        is_taken: bool,
    ) -> Result<(), String> {
        let made = make(section, config, options, logger);
        let name = &section.name;
        made.server.load_users().map_err(|error| format!("store '{name}': {error}"))?;
        if let Some((user, at)) = &section.rules_user
            && !made.server.set_rules_user(user.as_bytes())
        {
            return Err(format!("{}:{}: store '{name}' has no user '{user}' for 'rules-user'", at.file, at.line));
        }
        if !section.binds.is_empty() {
            made.server.await_ports();
        }
        if !is_taken && let Some(beginning) = made.server.begin().map_err(|error| format!("store '{name}': {error}"))? {
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
        for (name, Kept { store, .. }) in
            known.iter().filter(|(name, _)| !is.stores.iter().any(|store| store.name == **name))
        {
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
                None => stores.add(section, is, options, logger, false)?,
            }
        }
        Ok((stores, changes))
    }

    /// Replaces the stores by `next`. Returns messages about changes that were not possible.
    pub fn replace(&self, next: Stores, changes: &Changes) -> Vec<String> {
        self.beginnings.lock().extend(next.beginnings.into_inner());
        let gone = std::mem::replace(&mut *self.by_name.lock(), next.by_name.into_inner());
        let known = self.by_name.lock();
        for (_, Kept { server, .. }) in gone.iter().filter(|(name, _)| !known.contains_key(*name)) {
            server.stop();
        }
        let mut failed = Vec::new();
        for (name, change) in changes {
            let Some(Kept { server, .. }) = known.get(name) else { continue };
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
        let embedded = |(name, kept): (&Arc<str>, &Kept)| {
            let Kept { server, place, .. } = kept.clone();
            (name.clone(), Arc::new(Embedded { name: name.clone(), server, place }) as Arc<dyn Engine>)
        };
        stores.iter().map(embedded).collect()
    }

    /// Returns the servers of the stores.
    pub fn servers(&self) -> HashMap<Arc<str>, Arc<Server>> {
        self.by_name.lock().iter().map(|(name, kept)| (name.clone(), kept.server.clone())).collect()
    }

    /// Gives the append-only files to the user and the group that the process is about to have. Returns errors.
    pub fn give_files(&self, user: Option<u32>, group: Option<u32>) -> Vec<String> {
        let given = self.servers().into_iter().filter_map(|(name, server)| {
            let error = server.give_files(user, group).err()?;
            Some(format!("store '{name}': the append-only files can't be given to the user of the process: {error}"))
        });
        given.collect()
    }

    /// Returns the number of keys of each store, by its name.
    pub fn keys(&self) -> Vec<(Arc<str>, u64)> {
        self.by_name.lock().iter().map(|(name, kept)| (name.clone(), kept.store.keys())).collect()
    }

    /// Sets where the commands of rules and scripts for a store are carried out.
    pub fn set_site(&self, name: &str, site: Site) {
        if let Some(kept) = self.by_name.lock().get(name) {
            kept.place.set(site);
        }
    }

    /// Syncs append-only files, for the end of the process. Returns errors.
    pub fn sync_at_end(&self) -> Vec<String> {
        let stores = self.by_name.lock();
        let synced = stores.iter().filter_map(|(name, kept)| Some((name, kept.store.sync_at_end()?.err()?)));
        synced.map(|(name, error)| format!("store '{name}': the append-only file can't be synced: {error}")).collect()
    }

    /// Removes expired keys, and does the periodic work of stores without a server.
    pub fn tick(&self) {
        let stores: Vec<Kept> = self.by_name.lock().values().cloned().collect();
        for Kept { store, server, .. } in &stores {
            store.tick();
            server.tick();
        }
    }
}

/// The interface of a store for rules and scripts. A command is a function call; one that needs a connection uses a
/// connection of this process to itself, so that all rules about connections apply.
#[derive(Clone)]
struct Embedded {
    name: Arc<str>,
    server: Arc<Server>,
    place: Arc<Place>,
}

impl Embedded {
    fn connection(&self, db: u32) -> Box<dyn Own> {
        let (server, place, name) = (Arc::downgrade(&self.server), self.place.clone(), self.name.clone());
        sluicegate_client::own_here(&self.name, db, move || match place.site() {
            Site::Here => server.upgrade().ok_or(io::ErrorKind::NotConnected)?.connect(),
            // It is decided in a moment; whoever asks for a connection of its own tries again.
            Site::Moving => Err(io::ErrorKind::NotConnected.into()),
            Site::There(connect) => connect(&name),
        })
    }

    /// Starts a command in this process.
    fn start_here(&self, origin: Origin<'_>, db: u32, args: &[&[u8]]) -> Started {
        if sluicegate_client::waits_for_others(args) {
            return sluicegate_client::alone(self.connection(db), args);
        }
        self.server.start_from(origin, db, args)
    }

    /// Starts a command once it is decided where it is carried out.
    #[cold]
    fn start_elsewhere(&self, origin: Origin<'_>, db: u32, args: &[&[u8]]) -> Started {
        let (this, origin) = (self.clone(), origin());
        let args: Vec<Vec<u8>> = args.iter().map(|word| word.to_vec()).collect();
        Started::Pending(Box::pin(async move {
            let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            let started = match this.place.settled().await {
                Site::There(_) => sluicegate_client::alone(this.connection(db), &args),
                // The flag may still say otherwise.
                _ => this.start_here(&|| origin.clone(), db, &args),
            };
            started.finish().await
        }))
    }

    /// Like [`start_elsewhere`](Self::start_elsewhere), for a transaction.
    #[cold]
    fn together_elsewhere(&self, db: u32, commands: &[&[&[u8]]]) -> Started {
        let this = self.clone();
        let commands: Vec<Vec<Vec<u8>>> =
            commands.iter().map(|args| args.iter().map(|word| word.to_vec()).collect()).collect();
        Started::Pending(Box::pin(async move {
            this.place.settled().await;
            let commands: Vec<Vec<&[u8]>> =
                commands.iter().map(|args| args.iter().map(Vec::as_slice).collect()).collect();
            let (multi, exec): (&[&[u8]], &[&[u8]]) = (&[b"MULTI"], &[b"EXEC"]);
            let all = [multi].into_iter().chain(commands.iter().map(Vec::as_slice)).chain([exec]);
            let all: Vec<&[&[u8]]> = all.collect();
            match this.connection(db).start(&all).await {
                Reply::Array(mut replies) => replies.pop().unwrap_or(Reply::Null),
                reply => reply,
            }
        }))
    }
}

impl Engine for Embedded {
    fn start(&self, db: u32, args: &[&[u8]]) -> Started {
        if self.place.is_elsewhere() {
            return self.start_elsewhere(&String::new, db, args);
        }
        if sluicegate_client::waits_for_others(args) {
            return sluicegate_client::alone(self.connection(db), args);
        }
        self.server.start(db, args)
    }

    fn start_from(&self, origin: Origin<'_>, db: u32, args: &[&[u8]]) -> Started {
        if self.place.is_elsewhere() {
            return self.start_elsewhere(origin, db, args);
        }
        self.start_here(origin, db, args)
    }

    fn together(&self, origin: Origin<'_>, db: u32, commands: &[&[&[u8]]]) -> Option<Started> {
        if self.place.is_elsewhere() {
            return Some(self.together_elsewhere(db, commands));
        }
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
fn changed(before: Option<&StoreSection>, section: &StoreSection, users: Vec<ConfigLine>) -> Change {
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

fn make(section: &StoreSection, config: &Config, options: ServerOptions, logger: &Logger) -> Kept {
    let store = Store::new(StoreOptions { databases: options.databases, ..StoreOptions::default() });
    let server = Server::new(store.clone(), options);
    let (logger, targets, name) = (logger.clone(), config.global.log.clone(), section.name.clone());
    server.set_log(move |level, text| {
        // Debug, info for what Redis calls verbose, notice, warning.
        let severity = Severity::from_level([7, 6, 5, 4][usize::from(level.min(3))]);
        let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
        logger.send(&targets, severity, format!("store {name}: {text}").as_bytes());
    });
    Kept { store, server, place: Arc::default() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Between two steps of [`Place::set`] the flag and the site differ; a command that starts then is carried out here.
    #[test]
    fn a_command_between_two_steps_is_carried_out_here() {
        let store = Store::new(StoreOptions::default());
        let server = Server::new(store, ServerOptions::default());
        let place = Arc::new(Place::default());
        place.is_elsewhere.store(true, Ordering::SeqCst);
        let embedded = Embedded { name: "data".into(), server, place };
        let runtime = tokio::runtime::LocalRuntime::new().expect("a runtime");
        let reply = runtime.block_on(async {
            let command = embedded.start(0, &[b"INCR", b"n"]).finish();
            tokio::time::timeout(Duration::from_secs(60), command).await
        });
        assert_eq!(reply.expect("a reply"), Reply::Integer(1));
    }
}
