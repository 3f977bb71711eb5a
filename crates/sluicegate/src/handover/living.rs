//! The serving process's side: receives the offer of an errand, builds the configuration, and switches to it.
//!
//! All steps that may fail run on a separate thread and change nothing of the running configuration. The control
//! thread then switches, which cannot fail.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_config::model::{Bind, BindAddress, Global};
use sluicegate_config::{Config, MemoryFiles};
use sluicegate_proxy::listener::{self, BindError, DisplayAddress, Listener, Sockets, SystemSockets, Wanted};
use sluicegate_proxy::log::{Identity, Logger, Severity};
use sluicegate_proxy::process::Phase;
use sluicegate_proxy::reload::{Current, Turn};
use sluicegate_proxy::running::{Parts, Running, build_after};
use sluicegate_proxy::{cli, peers, server};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::errand::Origin;
use super::offer::{Offer, WantedSocket};
use super::{Kind, receive, send};
use crate::clients::Clients;
use crate::descriptors;
use crate::load::{self, Living as Kept, Loaded, Reading};
use crate::passed;
use crate::posts::{self, Post, Posts};
use crate::report::{Report, kept};
use crate::stores::{Changes, Stores};

/// The time limit for one answer of the reloading process.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running service, from the perspective of a reload.
pub struct Living {
    /// The current configuration.
    pub current: Arc<Current>,
    /// Its stores.
    pub stores: Stores,
    /// Its engines.
    pub clients: Clients,
    /// The receiver of the process's own messages.
    pub report: Report,
    /// The command line of the start, or of the last reload.
    pub origin: Mutex<Origin>,
    /// The sockets of stores and demo servers.
    pub posts: Mutex<Vec<Post>>,
    /// The user that may reload, besides root.
    pub owner: u32,
    /// The [file](super::program) of the program.
    pub program: String,
}

/// A configuration that is ready to be served.
pub(super) struct Prepared {
    running: Arc<Running>,
    listeners: Vec<Arc<Listener>>,
    stats: Vec<cli::Socket>,
    posts: Posts,
    stores: Stores,
    clients: Clients,
    parameters: Changes,
    origin: Origin,
    maxconn: Option<u32>,
    notes: Vec<String>,
    /// Held so that no servers are added or deleted during the preparation; such changes would be lost.
    turn: Turn,
}

/// A request of a reloading thread to the control thread.
pub(super) enum Asked {
    /// To switch to a configuration.
    ChangeOver(Box<Prepared>, mpsc::Sender<Result<(), String>>),
    /// To answer between two events.
    Pass(mpsc::Sender<()>),
}

/// Receives such requests.
pub(super) type Hand = UnboundedSender<Asked>;

impl Living {
    /// Executes reloads, one after the other, for the lifetime of the future; `reloaded` is called for each successful
    /// one.
    pub async fn take_errands(self: Arc<Self>, listener: tokio::net::UnixListener, mut reloaded: impl FnMut()) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let allowed = stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == self.owner);
            let Ok(stream) = stream.into_std() else { continue };
            if !allowed {
                continue;
            }
            let (hand, mut handed) = unbounded_channel();
            let living = self.clone();
            let thread = std::thread::Builder::new().name("reload".into());
            if thread.spawn(move || living.converse(stream, &hand)).is_err() {
                continue;
            }
            while let Some(asked) = handed.recv().await {
                // The requester may have disconnected, which has no effect.
                match asked {
                    Asked::ChangeOver(prepared, answer) => {
                        let result = self.change_over(*prepared).await;
                        if result.is_ok() {
                            reloaded();
                        }
                        let _ = answer.send(result);
                    }
                    Asked::Pass(answer) => {
                        let _ = answer.send(());
                    }
                }
            }
        }
    }

    /// Handles one reload, on a separate thread.
    fn converse(&self, mut stream: UnixStream, hand: &Hand) {
        let ready = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(PATIENCE)));
        if ready.and_then(|()| stream.set_write_timeout(Some(PATIENCE))).is_err() {
            return;
        }
        let Ok(mut message) = receive(&mut stream) else { return };
        if message.0 == Kind::Ask {
            let Origin { words, directory, environment } = self.origin.lock().clone();
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let certificates = self.current.running().process.certificates.files();
            let checked = certificates.pairs.values().filter_map(|pair| pair.file_digest()).collect();
            let program = self.program.clone();
            let answer = Offer { version, words, directory, environment, checked, program, ..Offer::default() };
            if send(&mut stream, Kind::Offer, &answer.encode(), None).is_err() {
                return;
            }
            // The requester may find an error in the files and disconnect.
            let Ok(next) = receive(&mut stream) else { return };
            message = next;
        }
        if message.0 == Kind::Stores {
            if let Err(error) = self.be_replaced(stream, hand) {
                self.report.warning(&format!("The process is not replaced: {error}"));
            }
            return;
        }
        let result = match message {
            (Kind::Offer, bytes, _) => self.take(&bytes, &mut stream, hand),
            _ => Err(String::from("that is no offer")),
        };
        let (kind, text) = match result {
            Ok(()) => (Kind::Done, String::new()),
            Err(text) => (Kind::Refused, text),
        };
        if kind == Kind::Refused {
            self.report.warning(&format!("Reload refused: {}", text.trim_end()));
        }
        let _ = send(&mut stream, kind, text.as_bytes(), None);
    }

    fn take(&self, bytes: &[u8], stream: &mut UnixStream, hand: &Hand) -> Result<(), String> {
        let offer = Offer::decode(bytes).map_err(|error| error.to_string())?;
        let prepared = self.prepare(offer, stream)?;
        for note in &prepared.notes {
            send(stream, Kind::Say, note.as_bytes(), None).map_err(|error| error.to_string())?;
        }
        let (answer, answered) = mpsc::channel();
        let gone = || String::from("the process ends");
        hand.send(Asked::ChangeOver(Box::new(prepared), answer)).map_err(|_| gone())?;
        answered.recv().map_err(|_| gone())?
    }

    /// Builds everything in `offer`, without changing running objects.
    fn prepare(&self, offer: Offer, stream: &mut UnixStream) -> Result<Prepared, String> {
        let Offer { version, words, directory, environment, files, names, engines: known, .. } = offer;
        if version != env!("CARGO_PKG_VERSION") {
            return Err(format!("the service is of version {}, not {version}", env!("CARGO_PKG_VERSION")));
        }
        let origin = Origin { words, directory, environment };
        let service = origin.service()?;
        let turn = self.current.take_turn();
        let before = self.current.running();
        let workers = before.process.workers.len();
        let files = files.into_iter().fold(MemoryFiles::new(), |files, (path, bytes)| files.with(path, bytes));
        let tls_files = Arc::new(before.process.certificates.files());
        let living = Kept { workers, patterns: before.config.patterns.clone(), tls_files };
        let reading = Reading::handed_over(files, origin.environment.clone(), living);
        let (loaded, said) = kept(|| load::begin(&service, reading).and_then(|begun| begun.finish(&service)));
        // Found good by the errand, it is good here, too, unless a script finds other circumstances.
        let loaded = loaded.map_err(|_| said)?;
        let Loaded { config, stores: mut options, lua, lua_logger, .. } = loaded;
        // Replaced settings were reported at the start; missing resources are an error.
        let quiet = self.report.quieted(true);
        let maxconn = descriptors::raise(&config, &mut options, workers, quiet)?;
        let logger = Logger::after(&config, Identity::default(), Some(&before.logger));
        let mut notes = logger.open(None).map_err(|errors| errors.join("\n"))?;
        notes.extend(fixed(&before.config.global, &config.global, workers));
        let (stores, parameters) = self.stores.after(&before.config, &config, options, &logger)?;
        let clients = self.clients.after(&config, &known)?;
        let mut engines = stores.engines();
        engines.extend(clients.engines());
        let parts = Parts {
            pages: sluicegate_proxy::stats::pages(),
            engines,
            lua: lua.map(|lua| lua as _),
            logger,
            process: before.process.clone(),
        };
        let running = build_after(config.clone(), parts, Some(&before))
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
        server::take_addresses(&running, &names);
        let maker = Remote(Mutex::new(stream));
        let missing = passed::missing(&config);
        if !missing.is_empty() {
            return Err(missing.join("\n"));
        }
        let bound = listener::bind_after(&running, before.listeners(), &maker);
        let listening: Vec<_> = before.listeners().iter().filter_map(|listener| listener.local).collect();
        let (process, served) = (&running.process, self.posts.lock());
        let posts = posts::bind(&config, &stores.servers(), workers, &served, &listening, process, &maker);
        drop(served);
        let stats = stats_sockets(&config, &before, &self.current.stats_sockets(), &maker);
        let peers = peers::bind(&running, Some(&before), &maker);
        let (listeners, posts, stats) = match (bound, posts, stats, peers) {
            (Ok(listeners), Ok(posts), Ok(stats), Ok(())) => (listeners, posts, stats),
            (listeners, posts, stats, peers) => {
                let errors = listeners.err().into_iter().flatten().map(|error| error.to_string());
                let errors = errors.chain(posts.err().into_iter().flatten()).chain(stats.err().into_iter().flatten());
                let errors = errors.chain(peers.err().into_iter().flatten());
                return Err(errors.collect::<Vec<_>>().join("\n"));
            }
        };
        let _ = lua_logger.set(running.logger.clone());
        if let Some(lua) = &running.lua {
            lua.init()?;
        }
        let maxconn = (before.config.global.maxconn != config.global.maxconn).then_some(maxconn);
        Ok(Prepared { running, listeners, stats, posts, stores, clients, parameters, origin, maxconn, notes, turn })
    }

    /// Switches to the prepared configuration. Runs on the control thread.
    async fn change_over(&self, prepared: Prepared) -> Result<(), String> {
        let Prepared { running, listeners, stats, posts, stores, clients, parameters, origin, maxconn, turn, .. } =
            prepared;
        let process = running.process.clone();
        if process.phase() != Phase::Serving {
            return Err(String::from("the process is stopping"));
        }
        let logger = running.logger.clone();
        let (before, next) = (self.current.running(), running.clone());
        let said = self.current.replace(running, listeners, stats).await;
        next.preset(Some(&before)).iter().for_each(|error| self.report.warning(error));
        drop((before, next));
        drop(turn);
        if let Some(maxconn) = maxconn {
            process.set_maxconn(maxconn);
        }
        let mut served = std::mem::take(&mut *self.posts.lock());
        posts.replace(&mut served, &process).await;
        *self.posts.lock() = served;
        self.clients.replace(clients);
        let failed = self.stores.replace(stores, &parameters);
        failed.iter().for_each(|error| self.report.warning(error));
        let (mut unloaded, report) = (self.stores.load(|_| ()), self.report);
        tokio::task::spawn_local(async move {
            while let Some(error) = unloaded.recv().await {
                report.warning(&format!("{error}; the store refuses commands until the process is restarted"));
            }
        });
        for said in said {
            self.report.warning(&said.text);
            logger.send(&said.proxy.config.log, said.severity, said.text.as_bytes());
        }
        *self.origin.lock() = origin;
        self.report.notice("Loading success.");
        let global = &self.current.running().config.global.log;
        logger.send(global, Severity::Notice, b"The configuration was read again and is served.");
        Ok(())
    }
}

/// Returns messages about changed settings that are fixed for the lifetime of a process.
fn fixed(was: &Global, is: &Global, workers: usize) -> Vec<String> {
    let threads = is.nbthread.map(usize::from).filter(|wanted| *wanted != workers);
    let mut notes: Vec<String> = threads
        .map(|wanted| {
            format!("'nbthread {wanted}' takes effect when the process is restarted: it has {workers} workers")
        })
        .into_iter()
        .collect();
    let same = [
        ("chroot", was.chroot == is.chroot),
        ("user", (&was.user, was.uid) == (&is.user, is.uid)),
        ("group", (&was.group, was.gid) == (&is.group, is.gid)),
        ("daemon", was.daemon == is.daemon),
        ("master-worker", was.master_worker == is.master_worker),
        ("pidfile", was.pidfile == is.pidfile),
    ];
    let changed = same.iter().filter(|(_, same)| !same);
    notes.extend(changed.map(|(keyword, _)| format!("'{keyword}' takes effect when the process is restarted")));
    notes
}

/// Returns the stats sockets of a configuration: those of `known`, by their addresses in `before`, or new ones.
fn stats_sockets(
    config: &Config,
    before: &Running,
    known: &[cli::Socket],
    maker: &dyn Sockets,
) -> Result<Vec<cli::Socket>, Vec<String>> {
    let mut free: Vec<_> = before.config.global.stats_sockets.iter().map(|socket| &socket.address).zip(known).collect();
    let mut errors = Vec::new();
    let mut sockets = Vec::new();
    for socket in &config.global.stats_sockets {
        let clients = cli::SocketClients::of(socket);
        let tls = match posts::tls_of(socket, &before.process) {
            Ok(tls) => tls,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        if let Some(at) = free.iter().position(|(address, _)| **address == socket.address) {
            let (_, known) = free.remove(at);
            sockets.push(cli::Socket { listener: known.listener.clone(), clients, tls });
            continue;
        }
        let bind = Bind::of_stats_socket(socket);
        match listener::listen(&bind, &socket.address, 1, maker) {
            Ok(made) => sockets.extend(made.into_iter().map(|made| {
                let (listener, tls) = (Arc::new(made), tls.clone());
                cli::Socket { listener, clients, tls }
            })),
            Err(error) => {
                errors.push(BindError::new(&bind, "stats socket", &socket.address, error).to_string());
            }
        }
    }
    if errors.is_empty() { Ok(sockets) } else { Err(errors) }
}

/// Sockets created by the reloading process.
struct Remote<'a>(Mutex<&'a mut UnixStream>);

impl Sockets for Remote<'_> {
    fn listen(&self, wanted: Wanted<'_>) -> io::Result<OwnedFd> {
        let stream = &mut **self.0.lock();
        send(stream, Kind::Want, &WantedSocket::new(wanted).encode(), None)?;
        match receive(stream)? {
            (Kind::Socket, _, Some(socket)) => Ok(socket),
            // An inherited descriptor may be one of this process.
            (Kind::NoSocket, ..) if matches!(wanted.address, BindAddress::Fd(_) | BindAddress::Sockpair(_)) => {
                SystemSockets.listen(wanted)
            }
            (Kind::NoSocket, bytes, _) => {
                let code = bytes.try_into().map_or(libc::EPERM, i32::from_le_bytes);
                Err(io::Error::from_raw_os_error(code))
            }
            _ => {
                let address = DisplayAddress(wanted.address);
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("no socket for {address} came")))
            }
        }
    }
}
