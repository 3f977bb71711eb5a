//! `sluicegate run`: the order of the start, the control thread, and the shutdown.
//!
//! Files are read, scripts loaded and sockets bound on one thread, before any other exists. Then workers start, and
//! this thread becomes the control thread: signals, the stats socket, health checks, log targets, expiry of the store.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluicegate_config::Files;
use sluicegate_config::model::{Bind, BindAddress};
use sluicegate_proxy::listener::{self, Listener, Sockets};
use sluicegate_proxy::log::{Identity, Logger};
use sluicegate_proxy::process::{Phase, Process};
use sluicegate_proxy::reload::Current;
use sluicegate_proxy::running::{Parts, Running, build};
use sluicegate_proxy::stats::stats_file;
use sluicegate_proxy::worker::{self, WorkerTask};
use sluicegate_proxy::{cli, control, peers, runtime_state, server};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::arguments::{Mode, Service};
use crate::clients::{self, Clients};
use crate::files::Disk;
use crate::handover;
use crate::handover::errand::Origin;
use crate::handover::instead::Retiring;
use crate::handover::living::Living;
use crate::handover::predecessor::Predecessor;
use crate::handover::taken::Taken;
use crate::load::{self, Loaded, Reading, begin, create_account_keys};
use crate::posts;
use crate::report::{self, Report};
use crate::shape::pidfile::Pidfile;
use crate::shape::{self, Role, Shape};
use crate::signals::{self, Signals, end_by};
use crate::stores::Stores;
use crate::{descriptors, hints};

/// The interval at which expired keys are searched for.
pub const STORE_TICK: Duration = Duration::from_millis(100);

/// The time limit for workers to exit when the process ends.
const LAST_TURN: Duration = Duration::from_secs(1);

/// Serves until a signal ends it.
pub fn run(service: &Service) -> ExitCode {
    let begun = Instant::now();
    signals::hold();
    let origin = Origin::of_this_process();
    let Ok(read) = begin(service, Reading::default()) else { return ExitCode::FAILURE };
    let report = Report::new(service).quieted(service.is_quiet(read.global()));
    if let Some(code) = handover::instead::hand_over(service, &origin, report) {
        return code;
    }
    let before = shape::priority::get();
    if let Some(priority) = read.global().startup_priority {
        shape::priority::set(priority, report);
    }
    shape::try_priorities();
    // With errors in `global` nothing is started; this process reports them.
    let role = if read.global_failed() {
        Ok(Role::Serving(Shape::default()))
    } else {
        shape::take(service, (read.global(), read.programs(), load::programs), report)
    };
    let failed = |error: &dyn Display| {
        report.error(&error.to_string());
        ExitCode::FAILURE
    };
    let mut shape = match role {
        Ok(Role::Serving(shape)) => shape,
        Ok(Role::Watching(master)) => {
            // A master frees what was read from the files, so that it stays small.
            drop(read);
            return master.run().unwrap_or_else(|error| failed(&error));
        }
        Ok(Role::Ended(code)) => return code,
        Err(error) => return failed(&error),
    };
    let Ok(mut loaded) = read.finish(service) else { return ExitCode::FAILURE };
    if let Err(error) = create_account_keys(&mut loaded, report) {
        return failed(&error);
    }
    let global = &loaded.config.global;
    if let Some(priority) = global.runtime_priority.or(global.startup_priority.map(|_| before)) {
        shape::priority::set(priority, report);
    }
    match start(service, report, loaded, &mut shape, (begun, origin)) {
        Ok(Some(signal)) => end_by(signal),
        Ok(None) => ExitCode::SUCCESS,
        Err(errors) => {
            errors.iter().for_each(|error| report.error(error));
            ExitCode::FAILURE
        }
    }
}

/// Builds the running objects, binds and serves; returns the signal that ended the process, or none after a soft stop.
fn start(
    service: &Service,
    report: Report,
    loaded: Loaded,
    shape: &mut Shape,
    (begun, origin): (Instant, Origin),
) -> Result<Option<i32>, Vec<String>> {
    if !loaded.listens() {
        let hint = "hint: a 'frontend', 'listen', 'store' or 'origin' section needs a 'bind' line";
        return Err(vec![format!("no enabled listener found (check for 'bind' directives)\n\n{hint}")]);
    }
    let Loaded { config, stores: mut options, lua, lua_logger, workers, privileges, .. } = loaded;
    let maxconn = descriptors::raise(&config, &mut options, workers, report).map_err(|error| vec![error])?;
    let process = Process::new(workers, Some(maxconn));
    let logger = Logger::new(&config, Identity::default());
    // Opened before `chroot`, while `/dev/log` is still the machine's.
    let warnings = logger.open(config.global.chroot.as_deref())?;
    warnings.iter().for_each(|warning| report.warning(warning));
    let predecessor = Predecessor::find(service, report).map_err(|error| vec![error])?;
    if let Some(predecessor) = &predecessor {
        predecessor.check(&config).map_err(|error| vec![error])?;
    }
    let is_taken = |store: &str| predecessor.as_ref().is_some_and(|predecessor| predecessor.has(store));
    let stores = Stores::new(&config, options, &logger, is_taken)?;
    let clients = Clients::default().after(&config, &clients::look_up(&config)).map_err(|error| vec![error])?;
    let mut engines = stores.engines();
    engines.extend(clients.engines());
    let running = build(
        config,
        Parts { pages: sluicegate_proxy::stats::pages(), engines, lua: lua.map(|lua| lua as _), logger, process },
    )
    .map_err(|errors| texts(&errors))?;
    if let Some(predecessor) = &predecessor {
        // The sync may take long, so the state file is read after it.
        let followed = predecessor.follow(&stores, report).and_then(|()| predecessor.save_state());
        followed.map_err(|error| vec![error])?;
    }
    let mut restored = runtime_state::restore(&running);
    restored.notes.extend(stats_file::preset(&running, &|path| Disk.read(path)));
    // The others get theirs once they are loaded.
    let kept = runtime_state::stores_with_kept_keys(&running).into_iter();
    let unwritten = kept.filter(|store| !stores.has_beginning(store) && !is_taken(store));
    restored.notes.extend(unwritten.flat_map(|store| runtime_state::restore_keys(&running, &store)));
    let (addresses, notes) = server::restore_states(&running, &restored.servers, &|path| Disk.read(path));
    restored.notes.iter().chain(&notes).for_each(|note| report.warning(note));
    let unset = running.preset_unless(|preset| restored.presets.has(preset));
    if !unset.is_empty() {
        return Err(unset);
    }
    match server::resolve_names(&running, &addresses) {
        Err(errors) if service.ignore_unresolvable => {
            errors.iter().for_each(|error| report.warning(&format!("{error}, disabling server")));
        }
        resolved => resolved.map_err(|errors| texts(&errors))?,
    }
    let retiring = Retiring::new(service);
    if retiring.retires() {
        running.process.set_predecessor();
    }
    let has_master = service.mode(&running.config.global).has_master();
    let taken = Taken::by(service, has_master, report);
    let taken = match &predecessor {
        Some(predecessor) => taken.and_then(|taken| taken.or_sockets(|| predecessor.sockets())),
        None => taken,
    };
    let taken = taken.map_err(|error| vec![error])?;
    let (bound, posts, stats) = retiring.bind(|| {
        let maker = &taken.or(retiring.sockets());
        let bound = listener::bind(&running, maker).map_err(|errors| texts(&errors));
        let posts = posts::bind(&running.config, &stores.servers(), workers, &[], &[], &running.process, maker);
        let stats = stats_sockets(&running, maker);
        let peers = peers::bind(&running, None, maker);
        match (bound, posts, stats, peers) {
            (Ok(bound), Ok(posts), Ok(stats), Ok(())) => Ok((bound, posts, stats)),
            (bound, posts, stats, peers) => {
                let errors = bound.err().into_iter().chain(posts.err()).chain(stats.err()).chain(peers.err());
                Err(errors.flatten().collect::<Vec<String>>())
            }
        }
    })?;
    drop(taken);
    // Clients of the stores wait from here on.
    if let Some(predecessor) = &predecessor {
        predecessor.take(&stores).map_err(|error| vec![error])?;
    }
    // From here on scripts log as any other part does; the control thread writes it.
    let _ = lua_logger.set(running.logger.clone());
    if let Some(lua) = &running.lua {
        lua.init().map_err(|error| {
            running.logger.write_before_end(LAST_TURN);
            vec![error]
        })?;
    }
    shape.pidfile.as_ref().map_or(Ok(()), Pidfile::write).map_err(|error| vec![error])?;
    if let Some(predecessor) = &predecessor {
        predecessor.settle(&stores).map_err(|error| vec![error])?;
    }
    // Before the privileges are dropped: signals to another user's processes need them.
    retiring.retire();
    let (posts, tasks) = posts.start(workers);
    running.process.set_startup_logs(report::startup());
    let living = Arc::new(Living {
        current: Current::new(running, stats),
        stores,
        clients,
        report,
        origin: Mutex::new(origin),
        posts: Mutex::new(posts),
        owner: shape::privileges::user(),
        program: handover::program(),
    });
    let (user, group) = privileges.ids();
    if user.is_some() {
        living.stores.give_files(user, group).iter().for_each(|error| report.warning(error));
    }
    let served = privileges.drop(report).and_then(|()| {
        if living.current.running().config.global.dumpable {
            shape::privileges::allow_core_files(report);
        }
        // HAProxy and services are silent; a person in front of a terminal wants a sign of life.
        let greets = !service.as_haproxy
            && !report.is_quiet()
            && matches!(
                service.mode(&living.current.running().config.global),
                Mode::Foreground | Mode::MasterWorker { daemon: false, .. }
            );
        control(&living, bound, tasks, shape, (begun, greets)).map_err(|error| error.to_string())
    });
    if served.is_err()
        && let Some(pidfile) = &shape.pidfile
    {
        pidfile.remove();
    }
    // All sockets are closed, so only files without a listening process are removed.
    unix_paths(&living.current.running()).for_each(sluicegate_transport::remove_stale);
    served.map_err(|error| vec![error])
}

/// Returns the files of all unix sockets that this process listened on.
fn unix_paths(running: &Running) -> impl Iterator<Item = &Path> {
    let config = &running.config;
    let proxies = config.proxies.iter().filter(|proxy| !proxy.disabled).flat_map(|proxy| &proxy.binds);
    let others = config.stores.iter().flat_map(|store| &store.binds);
    let others = others.chain(config.origins.iter().flat_map(|origin| &origin.binds));
    let others = others.chain(config.peers.iter().filter_map(|peers| peers.bind()));
    let addresses = proxies.chain(others).flat_map(|bind| &bind.addresses);
    let addresses = addresses.chain(config.global.stats_sockets.iter().map(|socket| &socket.address));
    addresses.filter_map(|address| match address {
        BindAddress::Unix(path) => Some(path.as_path()),
        _ => None,
    })
}

fn texts(errors: &[impl ToString]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Binds the stats sockets. The error lists every address that cannot be bound.
fn stats_sockets(running: &Running, maker: &dyn Sockets) -> Result<Vec<cli::Socket>, Vec<String>> {
    let mut errors = Vec::new();
    let mut sockets = Vec::new();
    for socket in &running.config.global.stats_sockets {
        let bind = Bind::of_stats_socket(socket);
        let clients = cli::SocketClients::of(socket);
        let tls = match posts::tls_of(socket, &running.process) {
            Ok(tls) => tls,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        match listener::listen(&bind, &socket.address, 1, maker) {
            Ok(made) => sockets.extend(made.into_iter().map(|made| {
                let (listener, tls) = (Arc::new(made), tls.clone());
                cli::Socket { listener, clients, tls }
            })),
            Err(error) => {
                errors.push(listener::BindError::new(&bind, "stats socket", &socket.address, error).to_string());
            }
        }
    }
    if errors.is_empty() { Ok(sockets) } else { Err(errors) }
}

/// The control thread, from the start of the workers to the end of the process.
fn control(
    living: &Arc<Living>,
    bound: Vec<Arc<Listener>>,
    tasks: Vec<Vec<WorkerTask>>,
    shape: &mut Shape,
    (begun, greets): (Instant, bool),
) -> io::Result<Option<i32>> {
    let runtime = tokio::runtime::LocalRuntime::new()?;
    runtime.block_on(async {
        // Caught before there is anything to stop, so that an early signal is not lost.
        let mut signals = Signals::catch()?;
        tokio::task::spawn_local(tick(living.clone()));
        let relieved = living.clone();
        tokio::task::spawn_local(async move {
            let process = relieved.current.running().process.clone();
            posts::relieve(&relieved.posts, &process).await;
        });
        let running = living.current.running();
        // Before the workers, since a client that one of them has answered may request a reload.
        let errands = handover::listen(shape.known_as()).and_then(tokio::net::UnixListener::from_std);
        let greeting = greets.then(|| hints::greeting(&running, &bound));
        let workers = worker::start(&running, bound, tasks)?;
        if running.config.uses_tls() {
            // In parallel with the workers, which do the same.
            sluicegate_tls::library::seed();
        }
        if let Some(greeting) = greeting {
            eprint!("{greeting}");
        }
        let process = running.process.clone();
        drop(running);
        let _ = process.boot.set(begun.elapsed());
        let mut master = shape.master()?;
        match errands {
            Ok(listener) => {
                let reloaded = move || {
                    if let Some(master) = &mut master {
                        shape::reloaded(master);
                    }
                };
                tokio::task::spawn_local(living.clone().take_errands(listener, reloaded));
            }
            Err(error) => living.report.warning(&format!("the process can't be reloaded ({error})")),
        }
        shape.ready()?;
        let mut unloaded = load_stores(living);
        let drained = async {
            // The phase's sender lives in the process, so waiting can't fail.
            let _ = process.watch().wait_for(|phase| *phase >= Phase::Stopping).await;
            living.stores.stop();
            process.ended().await;
        };
        let current = living.current.clone();
        let serve_client = move |client, rights| {
            tokio::task::spawn_local(cli::serve_one(current.clone(), client, rights));
        };
        let mut outcome = Ok(None);
        let mut left_behind = false;
        let ended = async {
            let mut failed = None;
            let signal = tokio::select! {
                signal = signals.act(&living.current, living.report) => signal,
                () = drained => None,
                // A store that lacks its data must not be taken for an empty one.
                Some(error) = unloaded.recv() => {
                    failed = Some(error);
                    None
                }
                // A worker without a master cannot receive commands any more.
                _ = shape.orphaned(serve_client) => None,
            };
            process.stop_now();
            let (ended, left) = workers.join_within(LAST_TURN).await;
            if left > 0 {
                let workers = if left == 1 { "a worker" } else { "workers" };
                living.report.warning(&format!("{workers} did not stop in time ({left}); the process ends without"));
                left_behind = true;
            }
            // With a store that could not be loaded, nothing has been served.
            if failed.is_none() {
                tokio::select! {
                    failed = living.stores.save_at_end() => failed.iter().for_each(|text| living.report.warning(text)),
                    // A second signal ends the process at once.
                    () = signals.insist() => living.report.warning("the stores are not saved: the process ends at once"),
                }
            }
            outcome = match failed {
                Some(error) => Err(io::Error::other(error)),
                None => ended.map(|()| signal),
            };
        };
        control::run(living.current.clone(), ended).await?;
        living.stores.sync_at_end().iter().for_each(|error| living.report.warning(error));
        if left_behind {
            // Memory still used by a worker is not freed: the process ends here.
            unix_paths(&living.current.running()).for_each(sluicegate_transport::remove_stale);
            match outcome {
                Ok(Some(signal)) => end_by(signal),
                outcome => std::process::exit(i32::from(outcome.is_err())),
            }
        }
        outcome
    })
}

/// Loads the files of the stores, and restores the keys that the state file has for each. The receiver gets the error of
/// each store that cannot be loaded.
fn load_stores(living: &Living) -> UnboundedReceiver<String> {
    let (running, report) = (living.current.running(), living.report);
    let restore_keys = move |store: &str| {
        runtime_state::restore_keys(&running, store).iter().for_each(|note| report.warning(note));
    };
    living.stores.load(restore_keys)
}

/// Removes expired keys periodically, for the lifetime of the process.
async fn tick(living: Arc<Living>) {
    let mut interval = tokio::time::interval(STORE_TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        living.stores.tick();
    }
}
