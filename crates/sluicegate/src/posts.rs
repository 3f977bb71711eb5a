//! Listening sockets that are not the proxy's: those of stores and of demo servers.
//!
//! A [`Post`] is one address of a `bind` line of such a section, with a socket for each worker. It survives reloads
//! as long as the file has that address; after that it accepts no further connections, and existing ones continue.
//!
//! A store shares its port with no other process and no other section: the kernel would distribute its clients over
//! different data. Its first socket is bound without `SO_REUSEPORT`, unless this process has the address already.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_bench::origin;
use sluicegate_config::Config;
use sluicegate_config::model::{Bind, BindAddress, StatsSocket};
use sluicegate_proxy::listener::{self, BindError, DisplayAddress, Sockets};
use sluicegate_proxy::process::Process;
use sluicegate_proxy::worker::{Worker, WorkerTask};
use sluicegate_store::server::{Generation, Server};
use sluicegate_tls::listener::Listener as TlsListener;
use sluicegate_tls::policy::Settings;
use socket2::SockRef;
use tokio::sync::watch;

/// The server behind a post.
#[derive(Clone)]
enum Host {
    Store(Arc<Server>, Option<Arc<TlsListener>>),
    Origin,
}

/// One address of a store or demo server that is being served.
pub struct Post {
    key: String,
    stop: watch::Sender<bool>,
    host: Host,
    /// Duplicates of its sockets by worker, on which other workers accept if that worker is stuck.
    sockets: Vec<OwnedFd>,
}

impl Post {
    /// Returns its sockets, to be passed to another process.
    pub fn sockets(&self) -> &[OwnedFd] {
        &self.sockets
    }

    fn is_of(&self, server: &Arc<Server>) -> bool {
        matches!(&self.host, Host::Store(host, _) if Arc::ptr_eq(host, server))
    }

    fn has_tls(&self) -> bool {
        matches!(self.host, Host::Store(_, Some(_)))
    }
}

/// A post that is not served yet.
pub struct NewPost {
    post: Post,
    sockets: Vec<OwnedFd>,
}

/// The posts of a configuration: those that are served already, and new ones.
#[derive(Default)]
pub struct Posts {
    kept: Vec<String>,
    /// The TLS settings of kept posts, by their keys.
    tls: Vec<(String, Settings)>,
    new: Vec<NewPost>,
}

/// Builds the TLS of a stats socket.
pub(crate) fn tls_of(socket: &StatsSocket, process: &Process) -> Result<Option<Arc<TlsListener>>, String> {
    let tls = socket.tls.as_ref().map(|tls| TlsListener::new(tls.settings.clone(), &process.resumption).map(Arc::new));
    tls.transpose().map_err(|error| format!("{}:{}: 'stats socket': {error}", socket.at.file, socket.at.line))
}

/// Finds or binds every post of a configuration. `served` are the existing posts, and `listening` the addresses of this
/// process's frontends. `process` holds the certificates and the TLS sessions. The error lists every address that
/// cannot be bound.
pub fn bind(
    config: &Config,
    servers: &HashMap<Arc<str>, Arc<Server>>,
    workers: usize,
    served: &[Post],
    listening: &[SocketAddr],
    process: &Process,
    maker: &dyn Sockets,
) -> Result<Posts, Vec<String>> {
    // A store may bind these addresses again: a reload replaces their sections, or they belong to the same store.
    let mut own = listening.to_vec();
    own.extend(served.iter().filter_map(|post| local_address(&post.sockets)));
    let stores = config.stores.iter().map(|store| (&store.name, &store.binds, servers.get(&store.name)));
    let origins = config.origins.iter().map(|origin| (&origin.name, &origin.binds, None));
    let mut posts = Posts::default();
    let mut errors = Vec::new();
    for (name, binds, server) in stores.chain(origins) {
        for bind in binds {
            let tls =
                bind.tls.as_ref().map(|tls| TlsListener::new(tls.settings.clone(), &process.resumption).map(Arc::new));
            let tls = match tls.transpose() {
                Ok(tls) => tls,
                Err(error) => {
                    errors.push(format!("{}:{}: 'bind' of store '{name}': {error}", bind.at.file, bind.at.line));
                    continue;
                }
            };
            let host = server.map_or(Host::Origin, |server| Host::Store(server.clone(), tls.clone()));
            for address in &bind.addresses {
                let kind = if server.is_some() { "store" } else { "origin" };
                let mut key = format!("{kind} {name} {}", DisplayAddress(address));
                if tls.is_some() {
                    key += " ssl";
                }
                let count =
                    posts.keys().filter(|known| **known == key || known.starts_with(&format!("{key}#"))).count();
                let key = if count == 0 { key } else { format!("{key}#{count}") };
                let contender = server.and_then(|_| contender(config, name, bind, address));
                if let Some(other) = contender {
                    errors.push(in_use(bind, name, address, &other));
                    continue;
                }
                if served.iter().any(|post| post.key == key) {
                    posts.tls.extend(tls.as_ref().map(|tls| (key.clone(), Settings::clone(&tls.settings()))));
                    posts.kept.push(key);
                    continue;
                }
                let listened = match server {
                    Some(_) => listen_for_store(bind, name, address, workers, &own, maker),
                    None => listen(bind, name, address, workers, maker),
                };
                match listened {
                    Ok(sockets) => {
                        if let Host::Store(_, Some(tls)) = &host {
                            process.certificates.add_listener(tls);
                        }
                        own.extend(local_address(&sockets));
                        let copies = sockets.iter().filter_map(|socket| socket.try_clone().ok()).collect();
                        let (stop, host) = (watch::Sender::new(false), host.clone());
                        posts.new.push(NewPost { post: Post { key, stop, host, sockets: copies }, sockets });
                    }
                    Err(error) => errors.push(error),
                }
            }
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    // The link of a new store waits for this. Others have their ports until the configuration takes effect.
    let is_served = |server: &Arc<Server>| served.iter().any(|post| post.is_of(server));
    let new: Vec<&Post> = posts.new.iter().map(|new| &new.post).collect();
    announce(servers.values().filter(|server| !is_served(server)), &new);
    Ok(posts)
}

/// Tells stores the ports of their first TCP listeners without and with TLS. A link to a master tells it one of them, and
/// may begin between the listeners of a store.
fn announce<'a>(servers: impl Iterator<Item = &'a Arc<Server>>, posts: &[&Post]) {
    for server in servers {
        let [plain, tls] = [false, true].map(|has_tls| {
            let mut posts = posts.iter().filter(|post| post.is_of(server) && post.has_tls() == has_tls);
            posts.find_map(|post| local_address(&post.sockets)).map_or(0, |address| address.port().into())
        });
        server.will_listen_on(plain, tls);
    }
}

/// Creates a socket for each worker.
fn listen(
    bind: &Bind,
    owner: &str,
    address: &BindAddress,
    workers: usize,
    maker: &dyn Sockets,
) -> Result<Vec<OwnedFd>, String> {
    let made = listener::listen(bind, address, workers, maker).and_then(|made| for_each(workers, made));
    made.map_err(|error| BindError::new(bind, owner, address, error).to_string())
}

/// Like [`listen`], for a store. An address in use is an error, unless it is one of `own`, the addresses of this
/// process.
fn listen_for_store(
    bind: &Bind,
    owner: &str,
    address: &BindAddress,
    workers: usize,
    own: &[SocketAddr],
    maker: &dyn Sockets,
) -> Result<Vec<OwnedFd>, String> {
    let wanted = (address, bind.v6only);
    let is_own = own.iter().any(|own| overlap(wanted, (&BindAddress::Inet(own.ip(), own.port()), None)));
    let make = if is_own { listener::listen } else { listener::claim };
    let made = make(bind, address, workers, maker).and_then(|made| for_each(workers, made));
    made.map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => in_use(bind, owner, address, "another process listens on it"),
        _ => BindError::new(bind, owner, address, error).to_string(),
    })
}

/// Adds copies of a socket that the workers share.
fn for_each(workers: usize, mut made: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
    while made.len() < workers {
        made.push(made[0].try_clone()?);
    }
    Ok(made)
}

/// Returns the error for a store's address that is in use.
fn in_use(bind: &Bind, store: &str, address: &BindAddress, holder: &str) -> String {
    let error = BindError::new(bind, store, address, io::Error::from_raw_os_error(libc::EADDRINUSE));
    format!("{error}: {holder}, and the store '{store}' does not share it: stop that one or change 'bind'")
}

/// Returns the section of the same configuration that uses a store's address, too: a proxy, an origin, or an earlier
/// store.
fn contender(config: &Config, store: &str, bind: &Bind, address: &BindAddress) -> Option<String> {
    let proxies = config.proxies.iter().filter(|proxy| !proxy.disabled).map(|proxy| (&proxy.name, &proxy.binds));
    let stores = config.stores.iter().take_while(|other| *other.name != *store);
    let stores = stores.map(|other| (&other.name, &other.binds));
    let origins = config.origins.iter().map(|origin| (&origin.name, &origin.binds));
    let wanted = (address, bind.v6only);
    let has = |other: &&Bind| other.addresses.iter().any(|address| overlap(wanted, (address, other.v6only)));
    proxies.chain(stores).chain(origins).find_map(|(name, binds)| {
        let other = binds.iter().find(has)?;
        Some(format!("'{name}' ({}:{}) listens on it", other.at.file, other.at.line))
    })
}

/// Returns whether two addresses with their `v6only` accept common destinations. Port 0 is a free port and overlaps
/// with none.
fn overlap((one, one_only): (&BindAddress, Option<bool>), (other, other_only): (&BindAddress, Option<bool>)) -> bool {
    let covers = |all: &IpAddr, only: Option<bool>, one: &IpAddr| {
        all == one || all.is_unspecified() && (all.is_ipv4() == one.is_ipv4() || all.is_ipv6() && only != Some(true))
    };
    match (one, other) {
        (BindAddress::Inet(one, port), BindAddress::Inet(other, other_port)) => {
            *port != 0 && port == other_port && (covers(one, one_only, other) || covers(other, other_only, one))
        }
        _ => false,
    }
}

fn local_address(sockets: &[OwnedFd]) -> Option<SocketAddr> {
    SockRef::from(sockets.first()?).local_addr().ok()?.as_socket()
}

impl Posts {
    fn keys(&self) -> impl Iterator<Item = &String> {
        self.kept.iter().chain(self.new.iter().map(|new| &new.post.key))
    }

    /// Starts all posts; returns them, and each worker's tasks.
    pub fn start(self, workers: usize) -> (Vec<Post>, Vec<Vec<WorkerTask>>) {
        let mut tasks: Vec<Vec<WorkerTask>> = (0..workers).map(|_| Vec::new()).collect();
        let mut posts = Vec::new();
        for NewPost { post, sockets } in self.new {
            for (socket, tasks) in sockets.into_iter().zip(&mut tasks) {
                let (host, stop) = (post.host.clone(), post.stop.subscribe());
                tasks.push(Box::new(move |_: &Rc<Worker>| Box::pin(serve(host, socket, stop)) as Task));
            }
            posts.push(post);
        }
        (posts, tasks)
    }

    /// Replaces `served` in a running process. Removed posts accept no further connections.
    pub async fn replace(self, served: &mut Vec<Post>, process: &Process) {
        for (key, settings) in self.tls {
            let post = served.iter().find(|post| post.key == key);
            if let Some(Host::Store(_, Some(tls))) = post.map(|post| &post.host) {
                // A listener with these settings was built before.
                let _ = tls.replace(settings);
            }
        }
        let after = served.iter().filter(|post| self.kept.contains(&post.key));
        let after: Vec<&Post> = after.chain(self.new.iter().map(|new| &new.post)).collect();
        let hosts = served.iter().chain(after.iter().copied()).map(|post| &post.host);
        let changed = hosts.filter_map(|host| if let Host::Store(server, _) = host { Some(server) } else { None });
        announce(changed, &after);
        served.retain(|post| {
            let kept = self.kept.contains(&post.key);
            if !kept {
                post.stop.send_replace(true);
            }
            kept
        });
        for NewPost { post, sockets } in self.new {
            for (worker, socket) in sockets.into_iter().enumerate() {
                let (host, stop) = (post.host.clone(), post.stop.subscribe());
                let begin = move |_: &Rc<Worker>| drop(tokio::task::spawn_local(serve(host, socket, stop)));
                // An error means that the worker has ended, and then the process ends, too.
                let _ = process.on_worker(worker, begin).await;
            }
            served.push(post);
        }
    }
}

/// Makes other workers accept on the sockets of stuck workers, until these continue. Runs for the lifetime of the
/// future.
pub async fn relieve(posts: &Mutex<Vec<Post>>, process: &Arc<Process>) {
    let is_stuck = |worker: usize| process.workers[worker].stuck.load(Ordering::Relaxed);
    let mut relieved: Vec<bool> = process.workers.iter().map(|_| false).collect();
    let mut interval = tokio::time::interval(STUCK_LOOK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        for worker in 0..relieved.len() {
            if std::mem::replace(&mut relieved[worker], is_stuck(worker)) || !is_stuck(worker) {
                continue;
            }
            let load = |worker: &usize| process.workers[*worker].load.load(Ordering::Relaxed);
            let Some(other) = (0..relieved.len()).filter(|other| !is_stuck(*other)).min_by_key(load) else { continue };
            let share = |post: &Post| {
                let socket = post.sockets.get(worker)?.try_clone().ok()?;
                // Workers share a unix socket.
                let is_unix = SockRef::from(&socket).local_addr().is_ok_and(|address| address.is_unix());
                (!is_unix).then(|| (post.host.clone(), socket, post.stop.subscribe()))
            };
            let shares: Vec<_> = posts.lock().iter().filter_map(share).collect();
            let job = process.clone();
            let begin = move |_: &Rc<Worker>| {
                for (host, socket, stop) in shares {
                    let process = job.clone();
                    let is_back = async move {
                        while process.workers[worker].stuck.load(Ordering::Relaxed) {
                            tokio::time::sleep(STUCK_LOOK).await;
                        }
                    };
                    tokio::task::spawn_local(async move {
                        tokio::select! {
                            () = serve(host, socket, stop) => {}
                            () = is_back => {}
                        }
                    });
                }
            };
            let _ = process.on_worker(other, begin).await;
        }
    }
}

/// The interval of checking whether a worker is stuck, and whether it continues.
const STUCK_LOOK: Duration = Duration::from_millis(250);

type Task = Pin<Box<dyn Future<Output = ()>>>;

async fn serve(host: Host, socket: OwnedFd, mut stop: watch::Receiver<bool>) {
    let (what, serving): (_, Pin<Box<dyn Future<Output = io::Result<()>>>>) = match host {
        Host::Store(server, tls) => {
            let generation = server.generation();
            ("store", Box::pin(serve_store(server, generation, socket, tls)))
        }
        Host::Origin => ("origin", Box::pin(origin::serve(TcpListener::from(socket)))),
    };
    tokio::select! {
        result = serving => {
            if let Err(error) = result {
                eprintln!("error: a {what} stopped: {error}");
            }
        }
        // A dropped sender does not stop the post, because then the process ends.
        Ok(_) = stop.wait_for(|stop| *stop) => {}
    }
}

/// Serves a socket of either kind until the server stops, or a TCP socket until its generation ends.
pub async fn serve_store(
    server: Arc<Server>,
    generation: Generation,
    socket: OwnedFd,
    tls: Option<Arc<TlsListener>>,
) -> io::Result<()> {
    if SockRef::from(&socket).local_addr()?.is_unix() {
        server.serve_unix(UnixListener::from(socket), tls).await
    } else {
        server.serve_tcp(generation, TcpListener::from(socket), tls).await
    }
}
