//! `sluicegate run`: the order of start, the control thread, and the end.
//!
//! Files are read, scripts loaded and sockets bound on one thread, before any other exists. Then workers start, and
//! this thread becomes the control thread: signals, the stats socket, health checks, log targets, expiry of the store.

use std::fmt::Display;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_bench::origin;
use sluicegate_config::model::{Bind, BindAddress};
use sluicegate_proxy::listener::{self, Bound, SystemSockets};
use sluicegate_proxy::log::{Identity, Logger, Severity};
use sluicegate_proxy::process::{Phase, Process};
use sluicegate_proxy::running::{Engines, Parts, Running, build};
use sluicegate_proxy::worker::{self, Worker, WorkerTask};
use sluicegate_proxy::{cli, control, server};
use sluicegate_store::server::Server;
use sluicegate_store::{Store, StoreOptions};
use sluicegate_wire::engine::Engine;
use socket2::SockRef;

use crate::arguments::Service;
use crate::load::{Loaded, begin};
use crate::report::Report;
use crate::shape::pidfile::Pidfile;
use crate::shape::{self, Role, Shape};
use crate::signals::{self, Signals, end_by};
use crate::{descriptors, hints};

/// How often expired keys are looked for.
pub const STORE_TICK: Duration = Duration::from_millis(100);

/// Serves until a signal ends it.
pub fn run(service: &Service) -> ExitCode {
    let begun = Instant::now();
    signals::hold();
    let Ok(read) = begin(service) else { return ExitCode::FAILURE };
    let report = Report::new(service).quieted(service.is_quiet(read.global()));
    // A `global` with errors starts nothing; this process says what is wrong with it.
    let role = if read.global_failed() {
        Ok(Role::Serving(Shape::default()))
    } else {
        shape::take(service, read.global(), report)
    };
    let failed = |error: &dyn Display| {
        report.error(&error.to_string());
        ExitCode::FAILURE
    };
    let mut shape = match role {
        Ok(Role::Serving(shape)) => shape,
        Ok(Role::Watching(master)) => {
            // A master is small: it keeps nothing of the files.
            drop(read);
            return master.run().unwrap_or_else(|error| failed(&error));
        }
        Ok(Role::Ended(code)) => return code,
        Err(error) => return failed(&error),
    };
    let Ok(loaded) = read.finish(service) else { return ExitCode::FAILURE };
    match start(service, report, loaded, &mut shape, begun) {
        Ok(Some(signal)) => end_by(signal),
        Ok(None) => ExitCode::SUCCESS,
        Err(errors) => {
            errors.iter().for_each(|error| report.error(error));
            ExitCode::FAILURE
        }
    }
}

/// Sockets of what is not a proxy.
struct Sockets {
    /// For each worker: a store's server and a socket of its `bind`.
    stores: Vec<Vec<(Arc<Server>, OwnedFd)>>,
    /// For each worker: a socket of a demo server.
    origins: Vec<Vec<OwnedFd>>,
    stats: Vec<cli::Socket>,
}

/// Builds, binds, serves; gives the signal that ended it, or none after a soft stop.
fn start(
    service: &Service,
    report: Report,
    loaded: Loaded,
    shape: &mut Shape,
    begun: Instant,
) -> Result<Option<i32>, Vec<String>> {
    if !loaded.listens() {
        let hint = "hint: a 'frontend', 'listen', 'store' or 'origin' section needs a 'bind' line";
        return Err(vec![format!("no enabled listener found (check for 'bind' directives)\n\n{hint}")]);
    }
    let Loaded { config, stores: mut options, lua, lua_logger, workers, privileges, .. } = loaded;
    let maxconn = descriptors::raise(&config, &mut options, workers, report).map_err(|error| vec![error])?;
    let process = Process::new(workers, Some(maxconn));
    let logger = Logger::new(&config, Identity::default());
    // While `/dev/log` is still the machine's: `chroot` comes later.
    let warnings = logger.open(config.global.chroot.as_deref())?;
    warnings.iter().for_each(|warning| report.warning(warning));
    let mut engines = Engines::new();
    let mut stores = Vec::new();
    let mut servers = Vec::new();
    for (section, options) in config.stores.iter().zip(options) {
        let store = Store::new(StoreOptions { databases: options.databases, ..StoreOptions::default() });
        let server = Server::new(store.clone(), options);
        engines.insert(section.name.clone(), server.clone() as Arc<dyn Engine>);
        let (logger, targets, name) = (logger.clone(), config.global.log.clone(), section.name.clone());
        server.set_script_log(move |level, text| {
            // Debug, info for what Redis calls verbose, notice, warning.
            let severity = Severity::from_level([7, 6, 5, 4][usize::from(level.min(3))]);
            let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
            logger.send(&targets, severity, format!("store {name}: {text}").as_bytes());
        });
        servers.push(server);
        stores.push(store);
    }
    let running = build(config, Parts { engines, lua, logger, process }).map_err(|errors| texts(&errors))?;
    match server::resolve_names(&running) {
        Err(errors) if service.ignore_unresolvable => {
            errors.iter().for_each(|error| report.warning(&format!("{error}, disabling server")));
        }
        resolved => resolved.map_err(|errors| texts(&errors))?,
    }
    let bound = listener::bind(&running, &SystemSockets).map_err(|errors| texts(&errors));
    let sockets = bind(&running, &servers);
    let (bound, sockets) = match (bound, sockets) {
        (Ok(bound), Ok(sockets)) => (bound, sockets),
        (bound, sockets) => return Err(bound.err().into_iter().chain(sockets.err()).flatten().collect()),
    };
    if let Some(lua) = &running.lua {
        lua.run_init().map_err(|error| vec![error.message])?;
    }
    // From here on the control thread writes what scripts log.
    let _ = lua_logger.set(running.logger.clone());
    shape.pidfile.as_ref().map_or(Ok(()), Pidfile::write).map_err(|error| vec![error])?;
    let served = privileges.drop(report).and_then(|()| {
        if running.config.global.dumpable {
            shape::privileges::allow_core_files(report);
        }
        let parts = Serving { running: &running, report, shape, begun };
        control(parts, bound, sockets, stores, servers).map_err(|error| error.to_string())
    });
    if served.is_err()
        && let Some(pidfile) = &shape.pidfile
    {
        pidfile.remove();
    }
    // All sockets are closed, so only those that nobody took over are removed.
    unix_paths(&running).for_each(listener::remove_stale);
    served.map_err(|error| vec![error])
}

/// The files of all unix sockets that this process listened on.
fn unix_paths(running: &Running) -> impl Iterator<Item = &Path> {
    let config = &running.config;
    let proxies = config.proxies.iter().filter(|proxy| !proxy.disabled).flat_map(|proxy| &proxy.binds);
    let others = config.stores.iter().flat_map(|store| &store.binds);
    let others = others.chain(config.origins.iter().flat_map(|origin| &origin.binds));
    let addresses = proxies.chain(others).flat_map(|bind| &bind.addresses);
    let addresses = addresses.chain(config.global.stats_sockets.iter().map(|socket| &socket.address));
    addresses.filter_map(|address| match address {
        BindAddress::Unix(path) => Some(path.as_path()),
        _ => None,
    })
}

/// What the control thread needs beside sockets and stores.
struct Serving<'a> {
    running: &'a Arc<Running>,
    report: Report,
    shape: &'a mut Shape,
    begun: Instant,
}

fn texts(errors: &[impl ToString]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Binds everything but the proxies; every address that can't be had is named.
fn bind(running: &Running, servers: &[Arc<Server>]) -> Result<Sockets, Vec<String>> {
    let workers = running.process.workers.len();
    let mut errors = Vec::new();
    let mut sockets = Sockets { stores: Vec::new(), origins: Vec::new(), stats: Vec::new() };
    sockets.stores.resize_with(workers, Vec::new);
    sockets.origins.resize_with(workers, Vec::new);
    for (section, server) in running.config.stores.iter().zip(servers) {
        for bind in &section.binds {
            for bound in listen(bind, &section.name, workers, &mut errors) {
                let each = sockets.stores.iter_mut().zip(bound);
                each.for_each(|(worker, socket)| worker.push((server.clone(), socket)));
            }
        }
    }
    for section in &running.config.origins {
        for bind in &section.binds {
            for bound in listen(bind, &section.name, workers, &mut errors) {
                sockets.origins.iter_mut().zip(bound).for_each(|(worker, socket)| worker.push(socket));
            }
        }
    }
    for socket in &running.config.global.stats_sockets {
        let bind = Bind::of_stats_socket(socket);
        let bound = listen(&bind, "stats socket", 1, &mut errors);
        let level = socket.level;
        sockets.stats.extend(bound.into_iter().flatten().map(|listener| cli::Socket { listener, level }));
    }
    if errors.is_empty() { Ok(sockets) } else { Err(errors) }
}

/// For each address of a `bind`: a socket for each worker.
fn listen(bind: &Bind, owner: &str, workers: usize, errors: &mut Vec<String>) -> Vec<Vec<OwnedFd>> {
    let mut bound = Vec::new();
    for address in &bind.addresses {
        match listener::listen(bind, address, workers, &SystemSockets).and_then(|made| for_each_worker(made, workers)) {
            Ok(sockets) => bound.push(sockets),
            Err(error) => errors.push(listener::BindError::new(bind, owner, address, error).to_string()),
        }
    }
    bound
}

/// Where the workers share one socket, each gets a descriptor of it.
fn for_each_worker(mut made: Vec<OwnedFd>, workers: usize) -> io::Result<Vec<OwnedFd>> {
    while made.len() < workers {
        made.push(made[0].try_clone()?);
    }
    Ok(made)
}

/// What each worker runs besides its proxies: the stores' servers and the demo servers.
fn tasks(stores: Vec<Vec<(Arc<Server>, OwnedFd)>>, origins: Vec<Vec<OwnedFd>>) -> Vec<Vec<WorkerTask>> {
    stores
        .into_iter()
        .zip(origins)
        .map(|(stores, origins)| {
            let stores = stores.into_iter().map(|(server, socket)| -> WorkerTask {
                Box::new(move |_: &Rc<Worker>| {
                    Box::pin(async move { report("store", serve_store(server, socket).await) })
                })
            });
            let origins = origins.into_iter().map(|socket| -> WorkerTask {
                let serve = async move { report("origin", origin::serve(TcpListener::from(socket)).await) };
                Box::new(move |_: &Rc<Worker>| Box::pin(serve))
            });
            stores.chain(origins).collect()
        })
        .collect()
}

/// Serves a socket of either kind until the server stops.
pub async fn serve_store(server: Arc<Server>, socket: OwnedFd) -> io::Result<()> {
    if SockRef::from(&socket).local_addr()?.is_unix() {
        server.serve_unix(UnixListener::from(socket)).await
    } else {
        server.serve_tcp(TcpListener::from(socket)).await
    }
}

fn report(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        eprintln!("error: a {what} stopped: {error}");
    }
}

/// The control thread, from the start of the workers to the end of the process.
fn control(
    serving: Serving<'_>,
    bound: Vec<Bound>,
    sockets: Sockets,
    stores: Vec<Store>,
    servers: Vec<Arc<Server>>,
) -> io::Result<Option<i32>> {
    let Serving { running, report, shape, begun } = serving;
    let runtime = tokio::runtime::LocalRuntime::new()?;
    runtime.block_on(async {
        // Caught before there is anything to stop, so that an early signal is not lost.
        let mut signals = Signals::catch()?;
        tokio::task::spawn_local(tick(stores));
        let workers = worker::start(running, bound, tasks(sockets.stores, sockets.origins))?;
        hints::print(running);
        let process = &running.process;
        let _ = process.boot.set(begun.elapsed());
        shape.ready()?;
        let drained = async {
            // The phase's sender lives in the process, so waiting can't fail.
            let _ = process.watch().wait_for(|phase| *phase >= Phase::Stopping).await;
            servers.iter().for_each(|server| server.stop());
            process.ended().await;
        };
        let mut outcome = Ok(None);
        let ended = async {
            let signal = tokio::select! {
                signal = signals.act(running, report) => signal,
                () = drained => None,
                // A worker without a master can't be told anything any more.
                _ = shape.orphaned() => None,
            };
            process.stop_now();
            outcome = workers.join().map(|()| signal);
        };
        control::run(running.clone(), sockets.stats, ended).await?;
        outcome
    })
}

/// Looks for expired keys, for as long as the process lives.
async fn tick(stores: Vec<Store>) {
    let mut interval = tokio::time::interval(STORE_TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        stores.iter().for_each(Store::tick);
    }
}
